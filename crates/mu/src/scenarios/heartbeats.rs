//! A log with leaders that heartbeats suspect.

use core::time::Duration;
use std::rc::Rc;

use farfield_check::{Faults, Scenario};

use super::{open, take_part};
use crate::Heartbeats;

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        beats(
            "mu/heartbeats",
            "a leader that is suspected, and lives, corrupts nothing",
            Faults::new().pauses(1).of([0]),
        ),
        beats(
            "mu/heartbeats-die",
            "the next node leads when the leader's count stands still",
            Faults::new().crashes(1).of([0]),
        ),
    ]
}

/// All take part, and ask to lead when the leader's count stands still.
fn beats(name: &str, about: &str, faults: Faults) -> Scenario {
    Scenario::new(name, about, 3, move |cluster| {
        let (members, history) = open(cluster, 4, 4)?;
        history.is_contested.set(true);
        let beats = cluster.on_each(|node| Heartbeats::open(node, "beats", Duration::from_millis(20)))?;
        let kept = beats.clone();
        cluster.at_end(move || {
            drop(kept);
            Ok(())
        });
        for (me, (member, beats)) in members.into_iter().zip(beats).enumerate() {
            let history = Rc::clone(&history);
            beats.lead(&member.log);
            cluster.thread(me, "part", move |ep| take_part(me, &member, &history, ep));
        }
        Ok(())
    })
    .steps_max(1_000_000)
    .faults(faults)
}
