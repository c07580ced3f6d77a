//! Registers that clients take, and give back.

use std::rc::Rc;

use farfield_check::Scenario;
use farfield_core::history::kv::KvInput;
use farfield_fabric::{NodeId, Word};

use super::store::options;
use super::store_parts::{Opened, client, open, open_small};
use crate::{SwarmOptions, SwarmStoreOptions};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![groups(), deletes_both(), free_is_clear()]
}

/// More inserts at a time than there are cells of groups.
fn groups() -> Scenario {
    let about = "a client whose calls take registers at the same time finds those that are left";
    Scenario::new("swarm-kv/groups", about, 3, |cluster| {
        let replicas = SwarmOptions { clients: vec![NodeId(0)], ..options().replicas };
        let Opened { stores, history } = open(cluster, SwarmStoreOptions { replicas, ..options() })?;
        client(cluster, 0, &stores, &history, |client| {
            let inserts = [0, 1, 2].map(|key| (key, KvInput::Insert(key + 1)));
            client.window(&inserts)?;
            assert!(client.may_take_groups(), "most groups are free");
            Ok(())
        });
        Ok(())
    })
    .kills(&["swarm-groups-passed"])
}

/// Two deletes of one key at a time, of clients that have not met it before.
fn deletes_both() -> Scenario {
    let about = "of several deletes one at least takes the key out of the index";
    Scenario::new("swarm-kv/deletes-both", about, 3, |cluster| {
        let Opened { stores, history } = open(cluster, options())?;
        let (turns, slow) = ([0; 3].map(|_| Rc::new(Word::new(0))), [0; 3].map(|_| cluster.draw(4)));
        for (node, slow) in slow.into_iter().enumerate() {
            let turns = turns.clone();
            client(cluster, node, &stores, &history, move |client| {
                if node == 0 {
                    client.insert(0, 1)?;
                    turns[0].store(1);
                    client.wait_for(&turns[1], 1)?;
                    client.wait_for(&turns[2], 1)?;
                    return client.has_none_deleted();
                }
                client.wait_for(&turns[0], 1)?;
                if slow < 3 {
                    client.set_slow(slow);
                }
                client.delete(0)?;
                client.leave_rest()?;
                turns[node].store(1);
                Ok(())
            });
        }
        Ok(())
    })
    .kills(&["swarm-deleted-by-none"])
}

/// A client stands still while it leaves a register to others. Another one, which has none, takes it if the index says
/// that it is free.
fn free_is_clear() -> Scenario {
    let about = "a register that the index says is free is clear, and stays so until it is used";
    Scenario::new("swarm-kv/free-clear", about, 3, |cluster| {
        let Opened { stores, history } = open_small(cluster, options(), 1)?;
        let turns = Rc::new(Word::new(0));
        let turn = Rc::clone(&turns);
        client(cluster, 0, &stores, &history, move |client| {
            client.insert(0, 1)?;
            client.leave_until_second(0)?;
            client.leave_with_a_rest(|| client.pass_turn(&turn, [1, 2]))?;
            client.get(1)
        });
        client(cluster, 1, &stores, &history, move |client| {
            client.insert(2, 2)?;
            client.wait_for(&turns, 1)?;
            client.insert_if_room(1, 3)?;
            client.get(1)?;
            turns.store(2);
            client.get(1)
        });
        Ok(())
    })
    .kills(&["swarm-index-first"])
}
