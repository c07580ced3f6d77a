//! Memory nodes and clients that die or are cut off.

use std::rc::Rc;

use farfield_check::{Cluster, Faults, Scenario};
use farfield_core::Result;
use farfield_fabric::{DeathRule, NodeId, Word};

use super::parts::{Opened, Recorded, faulty, must_miss, open, register, register_unfailing, run, unless_cut};
use crate::SwarmOptions;

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        client_dies(),
        memory_dies(),
        memory_is_cut_off(),
        client_is_cut_off(),
        two_of_five(),
        majority_back(),
        two_writers_die(),
        dies_with_lock(),
        others_stopped(),
    ]
}

/// Of four nodes, the last has no memory.
fn options() -> SwarmOptions {
    SwarmOptions { spare_buffers: 2, ..SwarmOptions::default() }
}

/// The writer dies in the middle, and the readers agree on the value that it has written.
fn client_dies() -> Scenario {
    Scenario::new("swarm/client-dies", "readers settle what a dead client has left", 4, |cluster| {
        let Opened { clients, history } = open(cluster, 1, options())?;
        register(cluster, 3, &clients, &history, |client| {
            client.write(1)?;
            client.write(2)
        });
        for node in 0..2 {
            register(cluster, node, &clients, &history, |client| {
                client.read()?;
                client.read()
            });
        }
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([3]))
}

/// A memory node dies, and no call fails.
fn memory_dies() -> Scenario {
    Scenario::new("swarm/memory-dies", "no call fails when a memory node dies", 4, |cluster| {
        calls(cluster, &[0, 3], &[])
    })
    .faults(Faults::new().crashes(1).of([2]))
    .kills(&["swarm-minority"])
}

/// A memory node is cut off, and may come back or be evicted. (It may also have others evicted, so calls may fail.)
fn memory_is_cut_off() -> Scenario {
    let about = "a memory node that is cut off is done without";
    Scenario::new("swarm/memory-cut", about, 4, |cluster| calls(cluster, &[], &[0, 3]))
        .rule(DeathRule::Majority)
        .faults(Faults::new().cuts(1).side([2]))
}

/// A client is cut off: nothing of it lands after its eviction, and its buffers' readers are not waited for.
fn client_is_cut_off() -> Scenario {
    let about = "a client that is cut off holds up nobody";
    Scenario::new("swarm/client-cut", about, 4, |cluster| calls(cluster, &[], &[0, 1, 3]))
        .rule(DeathRule::Majority)
        .faults(Faults::new().cuts(1).side([3]))
}

/// Two of five memory nodes die.
fn two_of_five() -> Scenario {
    Scenario::new("swarm/two-of-five", "no call fails when two of five memory nodes die", 5, |cluster| {
        let mut options = options();
        options.memory = (0..5).map(NodeId).collect();
        let Opened { clients, history } = open(cluster, 1, options)?;
        register_unfailing(cluster, 0, &clients, &history, |client| {
            client.write(1)?;
            client.write(2)
        });
        register_unfailing(cluster, 1, &clients, &history, |client| {
            client.read()?;
            client.write(3)?;
            client.read()
        });
        Ok(())
    })
    .faults(Faults::new().crashes(2).of([3, 4]))
}

/// Two of three memory nodes are out of the reach of a client from some moment of a write on, and come back. Its calls
/// find no majority meanwhile, and all work again then. Those of another client never fail.
fn majority_back() -> Scenario {
    let about = "calls work again when most memory nodes are back, and no value is lost";
    Scenario::new("swarm/majority-back", about, 3, |cluster| {
        let Opened { clients, history } = open(cluster, 1, options())?;
        for (node, array) in clients.iter().enumerate().take(2) {
            let (array, history, stays) = (Rc::clone(array), history.clone(), cluster.draw(3));
            cluster.thread(node, "client", move |ep| {
                let (ep, cut) = faulty(ep, stays)?;
                run(&array, &ep, node, &history, &|client| {
                    let value = 10 * node as u64;
                    client.write(value + 1)?;
                    let written = client.write_with_a_rest(value + 2, || {
                        cut(true);
                        Ok(())
                    });
                    unless_cut(written)?;
                    must_miss(client.read());
                    must_miss(client.write(value + 3));
                    cut(false);
                    client.read()?;
                    client.write(value + 4)?;
                    client.read()
                })
            });
        }
        register_unfailing(cluster, 2, &clients, &history, |client| {
            client.read()?;
            client.read()
        });
        Ok(())
    })
}

/// A writer dies after its value has reached one memory node, and another one with a guess that was stale because of
/// that. Readers that ask the other memory nodes settle both.
fn two_writers_die() -> Scenario {
    Scenario::new("swarm/writers-die", "readers settle what two dead writers have left", 5, |cluster| {
        let Opened { clients, history } = open(cluster, 1, options())?;
        let slow = [0; 4].map(|_| cluster.draw(3));
        register(cluster, 3, &clients, &history, move |client| {
            client.set_ahead(50);
            client.set_slow(slow[0]);
            client.write(1)
        });
        register(cluster, 4, &clients, &history, move |client| {
            client.set_slow(slow[1]);
            client.write(2)
        });
        for node in 0..2 {
            register_unfailing(cluster, node, &clients, &history, move |client| {
                client.set_slow(slow[2 + node]);
                client.read()?;
                client.read()
            });
        }
        Ok(())
    })
    .faults(Faults::new().crashes(2).of([3, 4]))
}

/// A version is on memory node 0 alone. Because of it a guess is stale, and its writer dies while it takes the lock. A
/// reader that prefers the other memory nodes finds a later version, though it is refused.
fn dies_with_lock() -> Scenario {
    let about = "readers go on from a guess that a dead writer has locked";
    Scenario::new("swarm/dies-with-lock", about, 4, |cluster| {
        let Opened { clients, history } = open(cluster, 1, options())?;
        let turn = Rc::new(Word::new(0));
        let now = Rc::clone(&turn);
        register_unfailing(cluster, 0, &clients, &history, move |client| {
            client.set_ahead(50);
            client.write_to_one(0, 1)?;
            now.store(1);
            Ok(())
        });
        let now = Rc::clone(&turn);
        register(cluster, 3, &clients, &history, move |client| {
            client.wait_for(&now, 1)?;
            client.write(2)
        });
        register_unfailing(cluster, 1, &clients, &history, move |client| {
            client.wait_for(&turn, 1)?;
            client.set_slow(0);
            client.read()?;
            client.read()
        });
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([3]))
    .kills(&["swarm-lock-first", "swarm-refusal-unread"])
}

/// Two clients stop in the middle of their calls, in sections, and with locks or without. The calls of a third one end
/// all the same, after few round trips.
fn others_stopped() -> Scenario {
    Scenario::new("swarm/others-stopped", "a call waits for no other client", 3, |cluster| {
        let Opened { clients, history } = open(cluster, 1, SwarmOptions::default())?;
        let slow = [0; 3].map(|_| cluster.draw(3));
        let (stopped, goes_on) = (Rc::new(Word::new(0)), Rc::new(Word::new(0)));
        let first_stopped = cluster.draw(3) as u64;
        for (node, reads) in [(0, false), (1, cluster.draw(2) == 1)] {
            let (stopped, goes_on, slow) = (Rc::clone(&stopped), Rc::clone(&goes_on), slow[node]);
            register_unfailing(cluster, node, &clients, &history, move |client| {
                client.set_ahead(50 * node as u64);
                client.set_slow(slow);
                let stops = || {
                    stopped.fetch_add(1);
                    client.wait_for(&goes_on, 1)
                };
                if reads { client.read_with_a_rest(0, stops) } else { client.write_with_a_rest(node as u64 + 1, stops) }
            });
        }
        register_unfailing(cluster, 2, &clients, &history, move |client| {
            client.set_slow(slow[2]);
            client.wait_until(|| stopped.load() >= first_stopped)?;
            for _ in 0..2 {
                let read = client.trips_of(|| client.read())?;
                let write = client.trips_of(|| client.write(3))?;
                assert!(read.max(write) <= TRIPS_MAX, "a read takes {read}, a write {write}");
            }
            goes_on.store(1);
            Ok(())
        });
        Ok(())
    })
    .kills(&["swarm-awaits-writer"])
}

/// A call of one of three writers looks seven times at most (lemma C.4), and a look takes three round trips: with a
/// write-back, a value that is elsewhere, and a lock.
const TRIPS_MAX: u64 = 3 * 7;

/// These nodes write and read a register that begins with memory node 2, often enough that buffers are used again. The
/// calls of the first ones all end well.
fn calls(cluster: &Cluster, unfailing: &[usize], others: &[usize]) -> Result<()> {
    let Opened { clients, history } = open(cluster, 3, options())?;
    for node in unfailing.iter().chain(others).copied() {
        let body = move |client: &Recorded<'_, '_>| {
            let value = 10 * node as u64;
            client.write_at(2, value + 1)?;
            client.read_at(2)?;
            (2..=6).try_for_each(|more| client.write_at(2, value + more))?;
            client.read_at(2)
        };
        if others.contains(&node) {
            register(cluster, node, &clients, &history, body);
        } else {
            register_unfailing(cluster, node, &clients, &history, body);
        }
    }
    Ok(())
}
