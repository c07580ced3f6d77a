//! Tests of the simulator: the failures that it finds, its reports, and that it is deterministic.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farfield::fabric::{GroupKey, Instant, LocalMutex, Word, memory_fence};
use farfield_check::{Budget, Cluster, FailureKind, Replay, Scenario, check, choose, exhaust, replay};

/// What threads read, collected over all executions.
type Seen = Arc<Mutex<BTreeSet<Vec<u64>>>>;

/// All outcomes of a scenario that adds to `seen`.
fn outcomes(seen: &Seen, scenario: &Scenario) -> BTreeSet<Vec<u64>> {
    let report = exhaust(scenario, Budget::unlimited());
    assert!(report.is_complete, "{:?}", report.finding);
    std::mem::take(&mut seen.lock().unwrap())
}

/// The values that two threads read; added to `seen` at the end of each execution.
fn collected(cluster: &Cluster, seen: &Seen) -> Arc<Mutex<Vec<u64>>> {
    let read = Arc::new(Mutex::new(vec![0; 2]));
    let (seen, at_end) = (Arc::clone(seen), Arc::clone(&read));
    cluster.at_end(move || {
        seen.lock().unwrap().insert(at_end.lock().unwrap().clone());
        Ok(())
    });
    read
}

/// Two threads of one node store to a word each, and then read the other's.
fn store_buffering(fenced: bool, seen: &Seen) -> Scenario {
    let seen = Arc::clone(seen);
    Scenario::new("test/store-buffering", "x := 1; a := y beside y := 1; b := x", 1, move |cluster| {
        let words = cluster.node(0).alloc(GroupKey::SIGNAL, 16)?;
        let read = collected(cluster, &seen);
        for me in 0..2 {
            let (words, read) = (words.clone(), Arc::clone(&read));
            cluster.thread(0, "cpu", move |_| {
                words.word(me * 8).store(1);
                if fenced {
                    memory_fence();
                }
                read.lock().unwrap()[me] = words.word((1 - me) * 8).load();
                Ok(())
            });
        }
        Ok(())
    })
}

#[test]
fn store_buffers_are_explored_and_fences_empty_them() {
    let seen = Seen::default();
    let all = outcomes(&seen, &store_buffering(false, &seen));
    assert_eq!(all.into_iter().collect::<Vec<_>>(), [[0, 0], [0, 1], [1, 0], [1, 1]]);
    let fenced = outcomes(&seen, &store_buffering(true, &seen));
    assert_eq!(fenced.into_iter().collect::<Vec<_>>(), [[0, 1], [1, 0], [1, 1]]);
}

/// LOCO Fig. 4: each of two nodes puts to the other, waits, and reads its own word.
fn puts_and_looks(fenced: bool, seen: &Seen) -> Scenario {
    let seen = Arc::clone(seen);
    Scenario::new("test/fig-4", "put y := 1; wait; a := x beside put x := 1; wait; b := y", 2, move |cluster| {
        let regions: Vec<_> =
            cluster.nodes().iter().map(|node| node.alloc(GroupKey::SIGNAL, 8)).collect::<Result<_, _>>()?;
        let read = collected(cluster, &seen);
        for me in 0..2 {
            let (own, other, read) = (regions[me].clone(), regions[1 - me].remote::<u64>(0), Arc::clone(&read));
            cluster.thread(me, "puts", move |ep| {
                ep.put_value(other, 1).wait()?;
                if fenced {
                    ep.block_on(ep.global_fence([other.node()]))?;
                }
                read.lock().unwrap()[me] = own.word(0).load();
                Ok(())
            });
        }
        Ok(())
    })
}

#[test]
fn a_complete_put_need_not_be_visible_and_a_fenced_one_is() {
    let seen = Seen::default();
    let all = outcomes(&seen, &puts_and_looks(false, &seen));
    assert_eq!(all.into_iter().collect::<Vec<_>>(), [[0, 0], [0, 1], [1, 0], [1, 1]]);
    let fenced = outcomes(&seen, &puts_and_looks(true, &seen));
    assert_eq!(fenced.into_iter().collect::<Vec<_>>(), [[0, 1], [1, 0], [1, 1]]);
}

#[test]
fn locks_are_fences() {
    // Taking and releasing a local lock are locked instructions: earlier stores are in memory.
    let scenario = Scenario::new("test/locks-are-fences", "stores around a lock, and looks at them", 1, |cluster| {
        let words = cluster.node(0).alloc(GroupKey::SIGNAL, 32)?;
        let locks = Arc::new([LocalMutex::new(false), LocalMutex::new(false)]);
        for me in 0..2 {
            let (words, locks) = (words.clone(), Arc::clone(&locks));
            cluster.thread(0, "locker", move |_| {
                words.word(me * 8).store(1);
                let mut mine = locks[me].lock();
                *mine = true;
                words.word(16 + me * 8).store(1);
                drop(mine);
                // The other thread has released the lock after its stores: those under the lock are in memory.
                if *locks[1 - me].lock() {
                    let (before, under) = (words.word((1 - me) * 8).load(), words.word(16 + (1 - me) * 8).load());
                    assert_eq!((before, under), (1, 1), "a store from before a release is seen after it");
                }
                Ok(())
            });
        }
        Ok(())
    });
    let report = exhaust(&scenario, Budget::unlimited());
    assert!(report.is_complete, "{:?}", report.finding);
}

#[test]
fn deadlines_pass_in_no_time() {
    let scenario = Scenario::new("test/deadline", "a wait for nothing", 1, |cluster| {
        cluster.thread(0, "waiter", |ep| {
            let start = ep.now();
            let waited = ep.block_on(ep.wait_until(start + Duration::from_secs(3600), || None::<()>));
            assert!(waited.is_err_and(|error| error.is_timeout()));
            assert_eq!(ep.now() - start, Duration::from_secs(3600));
            Ok(())
        });
        Ok(())
    });
    let report = exhaust(&scenario, Budget::unlimited());
    assert!(report.is_complete && report.elapsed < Duration::from_secs(60), "{report:?}");
}

#[test]
fn a_pausing_thread_goes_on_early_or_late_beside_busy_threads() {
    let seen = Seen::default();
    let collected_in = Arc::clone(&seen);
    let scenario =
        Scenario::new("test/pause", "pauses, beside adding and beside waiting in slices", 1, move |cluster| {
            let words = cluster.node(0).alloc(GroupKey::SIGNAL, 16)?;
            let read = collected(cluster, &collected_in);
            let (word, over) = (words.remote::<u64>(0), words.clone());
            cluster.thread(0, "waits in slices", move |ep| {
                while over.word(8).load() == 0 {
                    let slice = ep.now() + Duration::from_millis(1);
                    let _ = ep.block_on(ep.wait_until(slice, || (over.word(8).load() == 1).then_some(())));
                }
                Ok(())
            });
            for me in 0..2 {
                let (words, read) = (words.clone(), Arc::clone(&read));
                cluster.thread(0, "pauses", move |ep| {
                    let add = || read.lock().unwrap()[me] = words.word(0).fetch_add(1);
                    if me == 1 {
                        add();
                        return Ok(());
                    }
                    // Beside an operation that blocks in the middle of the wait.
                    ep.run_window(
                        2,
                        [false, true].map(|pauses| {
                            let add = &add;
                            async move {
                                if pauses {
                                    ep.pause().await;
                                    ep.pause().await;
                                    add();
                                } else {
                                    ep.get(word).await.unwrap();
                                    ep.get(word).wait().unwrap();
                                }
                            }
                        }),
                        |()| (),
                    );
                    words.word(8).store(1);
                    Ok(())
                });
            }
            Ok(())
        });
    assert_eq!(outcomes(&seen, &scenario).into_iter().collect::<Vec<_>>(), [[0, 1], [1, 0]]);
}

#[test]
fn waits_that_look_by_operations_do_not_wake_each_other_for_ever() {
    let scenario = Scenario::new("test/looks", "three waits of one thread, the last in vain", 2, |cluster| {
        let words = cluster.node(0).alloc(GroupKey::SIGNAL, 24)?;
        let remote = words.remote::<u64>(0);
        for word in 0..2 {
            let words = words.clone();
            cluster.thread(0, "stores", move |_| {
                words.word(word * 8).store(1);
                Ok(())
            });
        }
        cluster.thread(1, "waits", move |ep| {
            let (start, mut ended) = (ep.now(), [None; 3]);
            let waits = (0..3).map(|word| async move {
                let hours = Duration::from_secs(3600) * (word as u32 + 1);
                (word, ep.wait_remote(remote.at(word), 0, start + hours).await)
            });
            ep.run_window(3, waits, |(word, waited)| ended[word] = Some((waited.ok(), ep.now() - start)));
            let hours = |count| Duration::from_secs(3600) * count;
            assert!(ended[..2].iter().all(|end| end.is_some_and(|(value, at)| value == Some(1) && at < hours(1))));
            assert_eq!(ended[2], Some((None, hours(3))));
            Ok(())
        });
        Ok(())
    });
    let report = exhaust(&scenario, Budget::unlimited());
    assert!(report.is_complete && report.finding.is_none(), "{report:?}");
}

/// Two threads take two locks in opposite orders.
fn opposite_locks() -> Scenario {
    Scenario::new("test/opposite-locks", "two locks taken in opposite orders", 1, |cluster| {
        let locks = Arc::new([LocalMutex::new(0), LocalMutex::new(0)]);
        for me in 0..2 {
            let locks = Arc::clone(&locks);
            cluster.thread(0, "locker", move |_| {
                let mut first = locks[me].lock();
                let mut second = locks[1 - me].lock();
                *first += 1;
                *second += 1;
                Ok(())
            });
        }
        Ok(())
    })
}

#[test]
fn a_deadlock_is_found_and_names_the_waiting_threads() {
    let finding = exhaust(&opposite_locks(), Budget::unlimited()).finding.expect("it is there");
    assert_eq!(finding.failure.kind, FailureKind::Deadlock);
    assert!(finding.failure.message.contains("locker on node 0 waits for a local lock"), "{}", finding.failure.message);
    assert!(check(&opposite_locks(), Budget::executions(1000), 1).finding.is_some());
}

#[test]
fn an_execution_that_does_not_end_is_a_failure() {
    let scenario = Scenario::new("test/spin", "a thread that spins instead of waiting", 1, |cluster| {
        cluster.thread(0, "spinner", |_| {
            let word = Word::new(0);
            while word.load() == 0 {}
            Ok(())
        });
        Ok(())
    })
    .steps_max(10_000);
    let finding = check(&scenario, Budget::executions(1), 1).finding.expect("it never ends");
    assert_eq!(finding.failure.kind, FailureKind::TooLong);
}

/// A look that takes a lock changes nothing that the other thread has seen, however many places both look at.
#[test]
fn two_threads_that_look_at_much_do_not_wake_each_other() {
    let scenario =
        Scenario::new("test/looks", "two waits that look at 40 words, and take a lock of their own", 2, |cluster| {
            for node in 0..2 {
                let words = cluster.node(node).alloc(GroupKey::SIGNAL, 40 * 8)?;
                cluster.thread(node, "waits", move |ep| {
                    let lock = LocalMutex::new(0u64);
                    let is_there = || {
                        *lock.lock() += 1;
                        (0..40).any(|at| words.word(8 * at).load() != 0).then_some(())
                    };
                    assert!(ep.block_on(ep.wait_until(ep.now() + Duration::from_secs(1), is_there)).is_err());
                    Ok(())
                });
            }
            Ok(())
        })
        .steps_max(10_000);
    let in_turns: Replay = "test/looks#:".parse().unwrap();
    let failure = replay(&scenario, &in_turns).failure;
    assert!(failure.is_none(), "{failure:?}");
}

#[test]
fn an_invariant_is_looked_at_whenever_memory_changes() {
    let scenario = Scenario::new("test/invariant", "two words that are to be equal, but for a moment", 1, |cluster| {
        let words = cluster.node(0).alloc(GroupKey::SIGNAL, 16)?;
        let looked = words.clone();
        cluster.invariant("at most one apart", move || {
            let (a, b) = (looked.word(0).load(), looked.word(8).load());
            if a.abs_diff(b) <= 1 { Ok(()) } else { Err(format!("{a} and {b}")) }
        });
        cluster.thread(0, "writer", move |_| {
            for value in [1, 2, 4] {
                words.word(0).store(value);
                words.word(8).store(value);
            }
            Ok(())
        });
        Ok(())
    });
    let finding = check(&scenario, Budget::executions(1), 1).finding.expect("4 comes after 2");
    assert_eq!(finding.failure.kind, FailureKind::Invariant);
    assert!(finding.failure.message.contains("4 and 2"), "{}", finding.failure.message);
}

/// One thread panics while another holds a lock and waits for an event that never happens.
fn panics_beside_a_holder() -> Scenario {
    Scenario::new("test/panic", "a panic beside a thread that holds a lock", 2, |cluster| {
        let lock = Arc::new(LocalMutex::new(0));
        let held = Arc::clone(&lock);
        cluster.thread(0, "holder", move |ep| {
            let _guard = held.lock();
            Ok(ep.block_on(ep.wait_until(ep.deadline(), || None))?)
        });
        cluster.thread(0, "panics", move |_| {
            /// Wants the lock while it is unwound.
            struct Wants(Arc<LocalMutex<u64>>);
            impl Drop for Wants {
                fn drop(&mut self) {
                    *self.0.lock() += 1;
                }
            }
            let _wants = Wants(Arc::clone(&lock));
            assert_eq!(choose(3), 0, "not the first choice");
            Ok(())
        });
        Ok(())
    })
}

#[test]
fn a_panic_is_reported_with_its_place_and_everything_is_unwound() {
    for seed in 0..50 {
        let finding = check(&panics_beside_a_holder(), Budget::executions(1000), seed).finding.expect("choices differ");
        let message = &finding.failure.message;
        // The panic, or the holder's wait, which never ends.
        match finding.failure.kind {
            FailureKind::Panic => {
                assert!(message.contains("not the first choice") && message.contains("simulator.rs:"), "{message}");
            }
            FailureKind::Error => assert!(message.contains("`holder` ended in an error: timed out after"), "{message}"),
            kind => panic!("{kind:?}: {message}"),
        }
    }
}

#[test]
fn touching_another_nodes_memory_without_an_operation_is_a_failure() {
    let scenario = Scenario::new("test/elsewhere", "a thread that stores to another node's memory", 2, |cluster| {
        let words = cluster.node(1).alloc(GroupKey::DATA, 8)?;
        cluster.thread(0, "stray", move |_| {
            words.word(0).store(1);
            Ok(())
        });
        Ok(())
    });
    let finding = check(&scenario, Budget::executions(1), 1).finding.expect("memory is reached by operations");
    let expected = "a thread of node 0 touches a word of node 1 without an operation";
    assert!(finding.failure.message.contains(expected), "{}", finding.failure.message);
}

#[test]
fn a_failure_is_replayed_by_its_line_and_shrinks() {
    let scenario = panics_beside_a_holder();
    let finding = check(&scenario, Budget::executions(1000), 3).finding.expect("choices differ");
    let line: Replay = finding.replay.to_string().parse().unwrap();
    assert_eq!(line, finding.replay);
    let again = replay(&scenario, &line).failure.expect("the same execution");
    assert_eq!(again, finding.failure);
    let shrunk = finding.shrunk(&scenario);
    assert!(shrunk.replay.len() <= finding.replay.len());
    let again = replay(&scenario, &shrunk.replay).failure.expect("the shrunk execution");
    assert_eq!(again, shrunk.failure);
    for wrong in ["", "x", "x#q:", "x#e:1", "x#e:2=1,1=1", "x#e:1=a"] {
        assert!(wrong.parse::<Replay>().is_err(), "{wrong}");
    }
}

#[test]
fn a_revoked_peer_writes_no_more() {
    let scenario = Scenario::new("test/revoke", "puts on their way while the right to them is taken", 2, |cluster| {
        let owner = cluster.node(0);
        let group = owner.fabric().create_group(farfield::fabric::Bell::Silent)?;
        let words = owner.alloc(group, 64)?;
        let (first, watched) = (words.remote::<u64>(0), words.clone());
        cluster.thread(1, "writer", move |ep| {
            let puts: Vec<_> = (0..3).map(|at| ep.put_value(first.at(at), 1)).collect();
            for put in puts {
                // Refused, or done.
                let _ = put.wait();
            }
            assert!(ep.put_value(first, 2).wait().is_ok() || ep.get(first).wait().is_err());
            Ok(())
        });
        cluster.thread(0, "owner", move |ep| {
            ep.fabric().revoke(farfield::NodeId(1), group, Duration::from_secs(1))?;
            let before: Vec<u64> = (0..3).map(|at| watched.word(at * 8).load()).collect();
            let after = || (0..3).map(|at| watched.word(at * 8).load()).collect::<Vec<_>>();
            let mut looks = 0;
            let looked = ep.block_on(ep.wait_until(ep.now() + Duration::from_millis(1), || {
                looks += 1;
                (after() != before).then_some(())
            }));
            assert!(looked.is_err(), "a write landed after its right was taken");
            Ok(())
        });
        Ok(())
    });
    let report = check(&scenario, Budget::executions(2000), 1);
    assert!(report.finding.is_none(), "{:?}", report.finding);
}

/// The choices of executions with a given seed, as one number. It is the same in every build, debug and release.
#[test]
fn the_same_seed_gives_the_same_executions() {
    let digest = || {
        let mut digest = 0u64;
        for name in ["barrier/visible", "mutex/queue", "kv/update"] {
            let mut all = farfield_scenarios::all().into_iter();
            let scenario = all.find(|scenario| scenario.name() == name).expect("a scenario");
            let report = check(&scenario, Budget::executions(200), 42);
            assert!(report.finding.is_none(), "{:?}", report.finding);
            digest = digest.wrapping_mul(31).wrapping_add(report.trace);
        }
        digest
    };
    let first = digest();
    assert_eq!(first, digest());
    assert_eq!(first, PINNED_TRACE, "update it when the objects, the machine or the walk change");
}

const PINNED_TRACE: u64 = 15_614_762_070_822_180_879;

/// A thread looks at a word that is replaced by another one, at the same address or elsewhere, while it waits.
fn replaces_a_word(in_place: bool) -> Scenario {
    Scenario::new("test/replaces", "a word is dropped while a thread waits that has looked at it", 1, move |cluster| {
        let places = Rc::new([RefCell::new(Some(Word::new(0))), RefCell::new(None)]);
        let (has_looked, end) = (Rc::new(Cell::new(false)), Rc::new(Word::new(0)));
        let (seen, looks, now) = (Rc::clone(&places), Rc::clone(&has_looked), Rc::clone(&end));
        cluster.thread(0, "waits", move |ep| {
            let is_over = || {
                if !looks.replace(true) {
                    seen[0].borrow().as_ref().map(Word::load);
                }
                (now.load() == 1).then_some(())
            };
            Ok(ep.block_on(ep.wait_until(Instant::NEVER, is_over))?)
        });
        cluster.thread(0, "replaces", move |_| {
            end.load();
            if has_looked.get() && places[0].try_borrow_mut().map(|mut word| *word = None).is_ok() {
                let other = &places[usize::from(!in_place)];
                *other.borrow_mut() = Some(Word::new(0));
                (1..4).for_each(|value| other.borrow().as_ref().expect("a word").store(value));
            }
            end.store(1);
            Ok(())
        });
        Ok(())
    })
}

/// Where memory is used again depends on the allocator of the process: executions do not.
#[test]
fn a_word_that_was_dropped_is_another_one_than_its_successor() {
    let facts = |in_place| {
        let report = exhaust(&replaces_a_word(in_place), Budget::unlimited());
        assert!(report.is_complete, "{:?}", report.finding);
        (report.executions, report.steps, report.states)
    };
    assert_eq!(facts(true), facts(false));
}

#[test]
fn a_scenario_that_does_not_repeat_itself_is_reported() {
    let executions = Arc::new(AtomicU64::new(0));
    let scenario = Scenario::new("test/unrepeatable", "threads that depend on how often they ran", 1, move |cluster| {
        let execution = executions.fetch_add(1, Ordering::Relaxed);
        let words = cluster.node(0).alloc(GroupKey::SIGNAL, 8)?;
        for _ in 0..2 + execution % 2 {
            let words = words.clone();
            cluster.thread(0, "adds", move |_| {
                for _ in 0..2 {
                    words.word(0).fetch_add(1);
                }
                Ok(())
            });
        }
        Ok(())
    });
    let report = exhaust(&scenario, Budget::unlimited());
    let finding = report.finding.expect("every second execution is another");
    assert_eq!(finding.failure.kind, FailureKind::Unrepeatable);
    assert!(finding.failure.message.contains("does not repeat itself"), "{}", finding.failure.message);
    assert!(!report.is_complete);
}
