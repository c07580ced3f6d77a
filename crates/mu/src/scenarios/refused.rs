//! Operations of the leader that are refused when they are posted.

use std::rc::Rc;

use farfield_check::{Cluster, Scenario, choose};
use farfield_core::Endpoint;
use farfield_fabric::EndpointOptions;
use farfield_fabric::fault::{Faults, inject};

use super::{open, take_part};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![refused("mu/refused", "a follower that was refused an entry has it in the end, as all others")]
}

/// One of the first operations of the leader's thread is refused, whichever it is. The service threads' are not.
fn refused(name: &str, about: &str) -> Scenario {
    Scenario::new(name, about, 3, move |cluster: &Cluster| {
        let (members, history) = open(cluster, 4, 4)?;
        for (me, member) in members.into_iter().enumerate() {
            let history = Rc::clone(&history);
            cluster.thread(me, "part", move |ep| {
                let faults = Faults::default();
                let ep = Endpoint::open(inject(ep.transport().clone(), faults.clone()), EndpointOptions::default())?;
                if me == 0 {
                    faults.fail_some(choose(16) as u64, 1);
                }
                take_part(me, &member, &history, &ep)
            });
        }
        Ok(())
    })
}
