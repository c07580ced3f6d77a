//! The barrier: no thread passes before all have arrived, and all earlier puts are visible to all threads after it.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use farfield_core::fabric::{Bell, DeathRule, GroupKey, memory_fence};
use farfield_core::{Barrier, BarrierThread, Endpoint, ErrorKind, NodeId, Result};

use super::keep;
use farfield_check::parts::{unless_faults, word};
use farfield_check::{Cluster, Faults, Log, Scenario};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        loopback(),
        detached_get(),
        exchange(),
        rounds(),
        visible("barrier/visible", [0, 1, 2], true).small().kills(&["barrier-no-fence", "barrier-fence-late"]),
        visible("barrier/visible-at-node-0", [1, 0, 2], true).small().kills(&["barrier-fence-from-one"]),
        visible("barrier/visible-to-late-home", [0, 1, 2], false),
        threads(),
        store_and_load(),
        meeting("barrier/meeting", 1, |thread, ep| ep.block_on(thread.wait(ep))).small(),
        meeting("barrier/meeting-unfenced", 1, |thread, ep| ep.block_on(thread.wait_unfenced(ep))).small(),
        meeting("barrier/meeting-after-timeout", 1, wait_twice).small(),
        meeting("barrier/meetings", 2, |thread, ep| ep.block_on(thread.wait(ep))),
        meeting_of_threads(),
        missing_of_threads(),
        arrived_and_left(),
        late_fence("barrier/late-fence", Duration::ZERO),
        late_fence("barrier/late-fence-and-node", Duration::from_millis(3)).kills(&["barrier-again-unarrived"]),
        groups_revoked(),
    ]
}

/// Opens a barrier with `threads_per_node` threads on each node. Returns the threads' handles, node by node.
fn barrier(cluster: &Cluster, threads_per_node: usize) -> Result<Vec<BarrierThread>> {
    let barriers = cluster.on_each(move |node| Barrier::open(node, "b", threads_per_node))?;
    let each = barriers.iter().flat_map(|barrier| std::iter::repeat_n(barrier, threads_per_node));
    let threads = each.map(Barrier::thread).collect();
    keep(cluster, barriers);
    threads
}

// ---- puts before the barrier are visible after it -----------------------------------------------------------------

/// The smallest case of Fig. 22: two threads of one node. The first puts through its NIC's loopback, and its CPU writes
/// its count: only the fence orders the two. For barrier-no-fence, barrier-fence-late, barrier-fence-from-one,
/// barrier-round-early.
fn loopback() -> Scenario {
    Scenario::new(
        "barrier/loopback",
        "a put and a store to one's own node are seen by another thread of it",
        1,
        |cluster| {
            let mut threads = barrier(cluster, 2)?;
            let memory = cluster.node(0).alloc(GroupKey::DATA, 16)?;
            let (mut first, mut second) = (threads.remove(0), threads.remove(0));
            let written = memory.clone();
            cluster.thread(0, "first", move |ep| {
                ep.put_value(written.remote(0), 1u64).detach()?;
                written.word(8).store(1);
                ep.block_on(first.wait(ep))
            });
            cluster.thread(0, "second", move |ep| {
                ep.block_on(second.wait(ep))?;
                assert_eq!(memory.word(8).load(), 1, "a store from before the barrier is not visible after it");
                assert_eq!(memory.word(0).load(), 1, "a put from before the barrier is not visible after it");
                Ok(())
            });
            Ok(())
        },
    )
    .small()
}

/// `NRR` and `NLW` of a get that nothing waits for, before the `GF` of the barrier: the value has been read and has
/// landed when the barrier lets pass, so a later store at its source is not seen. For barrier-no-fence.
fn detached_get() -> Scenario {
    Scenario::new(
        "barrier/detached-get",
        "what a get brings that was not waited for is there after the barrier",
        2,
        |cluster| {
            let mut threads = barrier(cluster, 1)?;
            let (cell, source) = (cluster.node(0).alloc(GroupKey::DATA, 8)?, cluster.node(1).alloc(GroupKey::DATA, 8)?);
            source.word(0).store(1);
            let (mut reader, mut owner) = (threads.remove(0), threads.remove(0));
            let from = source.remote::<u64>(0);
            cluster.thread(0, "reader", move |ep| {
                ep.get_span(from, cell.span(0, 8)).detach()?;
                ep.block_on(reader.wait(ep))?;
                assert_eq!(cell.word(0).load(), 1, "a get from before the barrier has not brought what was there");
                Ok(())
            });
            cluster.thread(1, "owner", move |ep| {
                ep.block_on(owner.wait(ep))?;
                source.word(0).store(2);
                Ok(())
            });
            Ok(())
        },
    )
    .small()
}

/// Fig. 6: each of two nodes puts to the other, and reads its own memory. Here the count follows the put (NRW →
/// NRW), whatever the fence does; it must be waited for. For barrier-last-row and barrier-round-early.
fn exchange() -> Scenario {
    put_to_each_other("barrier/exchange", "what each of two nodes puts to the other is there after the barrier", 1)
        .small()
        .kills(&["barrier-last-row", "barrier-round-early"])
}

/// The same twice: a round is not the one before. For barrier-round-early.
fn rounds() -> Scenario {
    put_to_each_other("barrier/rounds", "what is put in a round is there after it, round after round", 2).medium()
}

fn put_to_each_other(name: &str, about: &str, rounds: usize) -> Scenario {
    Scenario::new(name, about, 2, move |cluster| {
        let threads = barrier(cluster, 1)?;
        let memory =
            cluster.nodes().iter().map(|node| node.alloc(GroupKey::DATA, 8 * rounds)).collect::<Result<Vec<_>>>()?;
        for (me, mut thread) in threads.into_iter().enumerate() {
            let (mine, others) = (memory[me].clone(), memory[1 - me].clone());
            cluster.thread(me, "party", move |ep| {
                for word in 0..rounds {
                    ep.put_value(others.remote(8 * word), 1u64).detach()?;
                    ep.block_on(thread.wait(ep))?;
                    let seen = mine.word(8 * word).load();
                    assert_eq!(seen, 1, "what was put before the barrier is not there after it, in round {word}");
                }
                Ok(())
            });
        }
        Ok(())
    })
}

/// Fig. 22: `writer` puts to `home`, and `reader` gets from there. Operations to different nodes are ordered only by
/// the fence of *every* node before the count. With the home there from the start, there is less to search. For
/// barrier-no-fence, barrier-fence-late, barrier-round-early, and with node 0 as home barrier-fence-from-one.
fn visible(name: &str, [writer, home, reader]: [usize; 3], home_has_arrived: bool) -> Scenario {
    let about = "a put to one node before the barrier is seen by a get after it, from a third node";
    Scenario::new(name, about, 3, move |cluster| {
        let word = cluster.node(home).alloc(GroupKey::DATA, 8)?.remote::<u64>(0);
        for (me, mut thread) in barrier(cluster, 1)?.into_iter().enumerate() {
            if me == home && home_has_arrived {
                let ep = cluster.node(home).endpoint()?;
                let alone = ep.block_on(thread.wait_deadline(&ep, ep.now()));
                assert!(alone.is_err_and(|error| error.is_timeout()), "it passed alone");
                continue;
            }
            cluster.thread(me, "party", move |ep| {
                if me == writer {
                    ep.put_value(word, 1).detach()?;
                }
                ep.block_on(thread.wait(ep))?;
                if me == reader {
                    assert_eq!(ep.get(word).wait()?, 1, "a put from before the barrier is not visible after it");
                }
                Ok(())
            });
        }
        Ok(())
    })
}

/// Two threads on each node: the other thread of the putting node reads, by a queue pair that is not ordered with
/// that of the put. For barrier-no-fence, barrier-fence-late, barrier-fence-from-one.
fn threads() -> Scenario {
    Scenario::new("barrier/threads", "a thread sees what another of its node has put elsewhere", 2, |cluster| {
        let word = cluster.node(0).alloc(GroupKey::DATA, 8)?.remote::<u64>(0);
        for (party, mut thread) in barrier(cluster, 2)?.into_iter().enumerate() {
            cluster.thread(party / 2, "party", move |ep| {
                if party == 2 {
                    ep.put_value(word, 1).detach()?;
                }
                ep.block_on(thread.wait(ep))?;
                if party == 3 {
                    assert_eq!(ep.get(word).wait()?, 1, "a put from before the barrier is not visible after it");
                }
                Ok(())
            });
        }
        Ok(())
    })
}

/// `CW → GF → CR` where no put owes a fence: store buffering against a thread that takes no part.
fn store_and_load() -> Scenario {
    let about = "a load behind a barrier comes after the stores before it are visible";
    Scenario::new("barrier/store-and-load", about, 1, |cluster| {
        let mut thread = barrier(cluster, 1)?.remove(0);
        let (x, y) = (word(cluster, 0, "x")?, word(cluster, 0, "y")?);
        let (passing, beside) = (cluster.log(), cluster.log());
        let (seen, x_too, y_too) = ((passing.clone(), beside.clone()), x.clone(), y.clone());
        cluster.thread(0, "passes", move |ep| {
            x.word(0).store(1);
            ep.block_on(thread.wait(ep))?;
            passing.push(y.word(0).load());
            Ok(())
        });
        cluster.thread(0, "beside it", move |_| {
            y_too.word(0).store(1);
            memory_fence();
            beside.push(x_too.word(0).load());
            Ok(())
        });
        cluster.at_end(move || {
            let (behind, beside) = (seen.0.take(), seen.1.take());
            assert!(behind == [1] || beside == [1], "a load behind the barrier has passed a store from before it");
            Ok(())
        });
        Ok(())
    })
    .small()
    .kills(&["barrier-store-unfenced"])
}

// ---- none passes before all have arrived --------------------------------------------------------------------------

/// The arrivals at a round (`false`) and the passes (`true`), in order of time.
type Passing = Log<(u64, bool)>;

fn pass(passing: &Passing, rounds: u64, mut wait: impl FnMut() -> Result<()>) -> Result<()> {
    for round in 0..rounds {
        passing.push((round, false));
        wait()?;
        passing.push((round, true));
    }
    Ok(())
}

fn assert_met(passing: &Passing, parties: usize) {
    let passing = passing.take();
    for (at, (round, _)) in passing.iter().enumerate().filter(|(_, (_, passed))| *passed) {
        let arrived = passing[..at].iter().filter(|entry| **entry == (*round, false)).count();
        assert_eq!(arrived, parties, "somebody passed round {round} before all had arrived");
    }
}

/// Two nodes meet `rounds` times: the count of one round lets no thread pass the next. For barrier-last-row and
/// barrier-round-early.
fn meeting(name: &str, rounds: u64, wait: fn(&mut BarrierThread, &Endpoint) -> Result<()>) -> Scenario {
    Scenario::new(name, "nobody passes before all have arrived", 2, move |cluster| {
        let passing = cluster.log();
        for (me, mut thread) in barrier(cluster, 1)?.into_iter().enumerate() {
            let passing = passing.clone();
            cluster.thread(me, "party", move |ep| pass(&passing, rounds, || wait(&mut thread, ep)));
        }
        cluster.at_end(move || {
            assert_met(&passing, 2);
            Ok(())
        });
        Ok(())
    })
}

/// A wait that times out at once if a thread is missing, and then one for the same round.
fn wait_twice(thread: &mut BarrierThread, ep: &Endpoint) -> Result<()> {
    ep.block_on(async {
        match thread.wait_deadline(ep, ep.now()).await {
            Err(error) if error.is_timeout() => thread.retry_wait(ep, ep.deadline()).await,
            result => result,
        }
    })
}

/// Two threads on each of two nodes: some counts are stored, some are put. For barrier-last-row and
/// barrier-round-early.
fn meeting_of_threads() -> Scenario {
    Scenario::new("barrier/meeting-of-threads", "no thread passes before all of all nodes have arrived", 2, |cluster| {
        let passing = cluster.log();
        for (party, mut thread) in barrier(cluster, 2)?.into_iter().enumerate() {
            let passing = passing.clone();
            cluster.thread(party / 2, "party", move |ep| pass(&passing, 1, || ep.block_on(thread.wait(ep))));
        }
        cluster.at_end(move || {
            assert_met(&passing, 4);
            Ok(())
        });
        Ok(())
    })
}

/// Two threads on each of two nodes. Those of one node give up at once, and wait again.
fn missing_of_threads() -> Scenario {
    let about = "a timeout names each missing node once, however many of its threads are missing";
    Scenario::new("barrier/missing-of-threads", about, 2, |cluster| {
        for (party, mut thread) in barrier(cluster, 2)?.into_iter().enumerate() {
            cluster.thread(party / 2, "party", move |ep| {
                if party / 2 == 1 {
                    return ep.block_on(thread.wait(ep));
                }
                ep.block_on(async {
                    let Err(error) = thread.wait_deadline(ep, ep.now()).await else { return Ok(()) };
                    let ErrorKind::Timeout { missing, .. } = error.kind() else { return Err(error) };
                    assert!(missing.windows(2).all(|pair| pair[0] < pair[1]), "{error}");
                    thread.retry_wait(ep, ep.deadline()).await
                })
            });
        }
        Ok(())
    })
}

/// One node arrives, and leaves without waiting for the others. They pass.
fn arrived_and_left() -> Scenario {
    Scenario::new(
        "barrier/arrived-and-left",
        "a thread that has arrived, and left, keeps nobody waiting",
        3,
        |cluster| {
            for (me, mut thread) in barrier(cluster, 1)?.into_iter().enumerate() {
                let node = cluster.node(me);
                cluster.thread_that_drops(me, "party", move |ep| {
                    if me != 1 {
                        return ep.block_on(thread.wait(ep));
                    }
                    match ep.block_on(thread.wait_deadline(ep, ep.now())) {
                        Err(error) if !error.is_timeout() => return Err(error),
                        _ => {}
                    }
                    // Its arrival is visible.
                    ep.flush();
                    drop(thread);
                    node.leave();
                    Ok(())
                });
            }
            Ok(())
        },
    )
}

/// A fence that does not end before the deadline, because a node is cut off for a while: its thread has not arrived.
/// Node 2 comes `after` this time.
fn late_fence(name: &'static str, after: Duration) -> Scenario {
    let about = "a thread whose earlier puts are not visible has not arrived, whatever its deadline";
    Scenario::new(name, about, 3, move |cluster| {
        let home = cluster.node(2).alloc(GroupKey::DATA, 8)?.remote::<u64>(0);
        let begun = Rc::new(Cell::new(0));
        for (me, mut thread) in barrier(cluster, 1)?.into_iter().enumerate() {
            let begun = Rc::clone(&begun);
            cluster.thread(me, "party", move |ep| {
                if me == 1 && unless_faults(ep.put_value(home, 1).detach().map_err(Into::into))?.is_none() {
                    return Ok(());
                }
                if me == 2 && !after.is_zero() {
                    ep.block_on(ep.sleep_until(ep.now() + after));
                }
                begun.set(begun.get() + 1);
                let mut passed = ep.block_on(thread.wait_deadline(ep, ep.now() + Duration::from_millis(1)));
                for _ in 0..2 {
                    if passed.as_ref().is_err_and(|error| error.is_timeout()) {
                        passed = ep.block_on(thread.retry_wait(ep, ep.deadline()));
                    }
                }
                let has_passed = unless_faults(passed)?.is_some();
                if has_passed && me == 0 {
                    let seen = unless_faults(ep.get(home).wait().map_err(Into::into))?;
                    assert_ne!(seen, Some(0), "a put from before the barrier is not visible after it");
                }
                // The others are alive: it has not passed without them.
                assert!(!(has_passed && me == 1) || begun.get() == 3, "it passed before the others had come");
                Ok(())
            });
        }
        Ok(())
    })
    .rule(DeathRule::Majority)
    .faults(Faults::new().cuts(1).side([1]))
}

/// A node has put to two groups. Their owner takes the right away, before the put is visible or after.
fn groups_revoked() -> Scenario {
    let about = "puts to groups that their owner has closed to a node keep it from no barrier";
    Scenario::new("barrier/groups-revoked", about, 2, |cluster| {
        let owner = cluster.node(1);
        let groups = [(); 2].map(|()| owner.fabric().create_group(Bell::Silent));
        let groups = groups.into_iter().collect::<Result<Vec<_>, _>>()?;
        let words = groups.iter().map(|group| owner.alloc(*group, 8)).collect::<Result<Vec<_>>>()?;
        let mut threads = barrier(cluster, 1)?;
        let (mut revokes, mut puts) = (threads.remove(1), threads.remove(0));
        cluster.thread(1, "revokes", move |ep| {
            for group in &groups {
                ep.fabric().revoke(NodeId(0), *group, Duration::from_secs(1))?;
            }
            ep.block_on(revokes.wait(ep))
        });
        cluster.thread(0, "puts", move |ep| {
            for word in &words {
                let _ = ep.put_value(word.remote::<u64>(0), 1).detach(); // refused if its owner is quick
            }
            ep.block_on(puts.wait(ep))
        });
        Ok(())
    })
}
