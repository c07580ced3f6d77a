//! Updates of a store that are dropped in the middle of their slow paths.

use std::rc::Rc;

use farfield_check::Scenario;
use farfield_fabric::Word;

use super::store::options;
use super::store_parts::{Opened, client, client_unfailing, open};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![beside_move(), late()]
}

/// The key of an update moves, so that the update does not count. It is dropped while it finds that out. Its client has
/// two free buffers, and needs both of them for its next updates.
fn beside_move() -> Scenario {
    let about = "the buffer of an update that was dropped while its key moves is used again";
    Scenario::new("swarm-kv/replace-dropped-update", about, 3, |cluster| {
        let Opened { stores, history } = open(cluster, options())?;
        let turn = Rc::new(Word::new(0));
        let turns = Rc::clone(&turn);
        client_unfailing(cluster, 0, &stores, &history, move |client| {
            client.insert(0, 1)?;
            client.keep_buffers(2);
            client.pass_turn(&turns, [1, 2])?;
            client.update_or_drop(0, 3)?;
            client.pass_turn(&turns, [3, 4])?;
            (4..8).try_for_each(|value| client.update(0, value))?;
            client.get(0)
        });
        client_unfailing(cluster, 1, &stores, &history, move |client| {
            client.wait_for(&turn, 1)?;
            client.replace_with_rests(
                0,
                [1, 2],
                |test, _| {
                    if test == 1 { client.pass_turn(&turn, [2, 3]) } else { Ok(()) }
                },
            )?;
            turn.store(4);
            Ok(())
        });
        Ok(())
    })
    .steps_max(1_000_000)
}

/// An update with a stale guess is dropped while its value is written at a second timestamp. Another update comes after
/// that, and its client updates the key once more.
fn late() -> Scenario {
    let about = "an update that is dropped in its slow path is written at two timestamps at most";
    Scenario::new("swarm-kv/dropped-late", about, 3, |cluster| {
        let Opened { stores, history } = open(cluster, options())?;
        let turn = Rc::new(Word::new(0));
        let turns = Rc::clone(&turn);
        client(cluster, 0, &stores, &history, move |client| {
            client.wait_for(&turns, 1)?;
            client.set_ahead(50);
            client.update(0, 2)?;
            client.pass_turn(&turns, [2, 3])?;
            client.set_ahead(200);
            client.update(0, 4)?;
            client.pass_turn(&turns, [4, 5])?;
            client.get(0)
        });
        client(cluster, 1, &stores, &history, move |client| {
            client.insert(0, 1)?;
            client.pass_turn(&turn, [1, 2])?;
            client.update_or_drop(0, 3)?;
            let second = client.second_of_dropped()?;
            client.pass_turn(&turn, [3, 4])?;
            // Its next guess is fresh, and takes no lock.
            client.set_ahead(1000);
            client.update(0, 5)?;
            second.map_or(Ok(()), |second| client.has_not_locked(second))?;
            turn.store(5);
            client.get(0)
        });
        Ok(())
    })
}
