//! The lock has one holder at a time, the next holder sees its writes, and every waiter gets the lock.
//!
//! Most scenarios add one to a word by a get and a put, under the lock: two holders at once, and a holder that does not
//! see the last one's put, both lose an increment.

mod lost;

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use farfield_core::fabric::{Instant, Region, RemotePtr};
use farfield_core::objects::mutex::BYPASS_MAX;
use farfield_core::{Endpoint, Guard, Mutex, MutexArray, NodeId, Result};

use super::keep;
use farfield_check::parts::{cut, word};
use farfield_check::{Cluster, Scenario, choose};

pub(super) fn scenarios() -> Vec<Scenario> {
    let scenarios = vec![
        release(),
        third_node(),
        detached_get(),
        queue(),
        window(),
        array(),
        trying(),
        bypass(),
        deadline(),
        timeout(),
        dropped(),
        holder_leaves(),
        kept_turn(),
    ];
    [scenarios, lost::scenarios()].concat()
}

/// Opens the lock on all nodes, with its word on node 0.
fn open(cluster: &Cluster) -> Result<Vec<Rc<Mutex>>> {
    cluster.on_each(|node| Mutex::open(node, "lock", NodeId(0)).map(Rc::new))
}

/// A critical section. It does not wait for the put: the release has to make it visible.
async fn add_one(ep: &Endpoint, guard: Guard<'_>, word: RemotePtr<u64>) -> Result<()> {
    let seen = ep.get(word).await?;
    ep.put_value(word, seen + 1).detach()?;
    guard.unlock().await
}

/// At the end the word counts the critical sections, and the lock is free, with no ticket left over. Otherwise
/// newcomers could pass it for [`BYPASS_MAX`] times only.
fn counts(cluster: &Cluster, mutex: &Rc<Mutex>, word: Region, sections: impl FnOnce() -> u64 + 'static) {
    let (node, mutex) = (cluster.node(0), Rc::clone(mutex));
    cluster.at_end(move || {
        assert_eq!(word.word(0).load(), sections(), "the sum of the increments under the lock");
        let ep = node.endpoint()?;
        for round in 0..BYPASS_MAX + 2 {
            let guard = ep.block_on(mutex.try_lock(&ep))?;
            let guard = guard.unwrap_or_else(|| panic!("nobody wants the lock, but it is not free (round {round})"));
            ep.block_on(guard.unlock())?;
        }
        Ok(())
    });
}

/// `NRW` of a put under the lock against the `NAW` of the release, on two queue pairs: nothing but the release's fence
/// orders them. Node 1 puts to itself, node 0 to the other. For `mutex-no-fence`, `mutex-fence-spares-self`.
fn release() -> Scenario {
    Scenario::new(
        "mutex/release",
        "what a holder puts on another node than the lock's is seen by the next",
        2,
        |cluster| {
            let (mutexes, x) = (open(cluster)?, word(cluster, 1, "x")?);
            for (node, mutex) in mutexes.iter().cloned().enumerate() {
                let x = x.remote::<u64>(0);
                cluster.thread(node, "adder", move |ep| {
                    ep.block_on(async { add_one(ep, mutex.lock(ep).await?, x).await })
                });
            }
            counts(cluster, &mutexes[0], x, || 2);
            Ok(())
        },
    )
    .small()
    .kills(&["mutex-no-fence", "mutex-fence-spares-self"])
}

/// `NRR` of a get under the lock against the `NAR` of the release, on one queue pair: a read may be overtaken, so the
/// release waits for it. For `mutex-read-overtaken`.
fn detached_get() -> Scenario {
    Scenario::new(
        "mutex/detached-get",
        "what a holder gets without waiting is from before the next holder's writes",
        2,
        |cluster| {
            let (mutexes, x) = (open(cluster)?, word(cluster, 0, "x")?);
            let cell = word(cluster, 1, "cell")?;
            let (reader, writer) = (Rc::clone(&mutexes[1]), Rc::clone(&mutexes[0]));
            let from = x.remote::<u64>(0);
            cluster.thread(1, "reader", move |ep| {
                let seen = ep.block_on(async {
                    let guard = reader.lock(ep).await?;
                    let seen = ep.get(from).await?;
                    ep.get_span(from, cell.span(0, 8)).detach()?;
                    guard.unlock().await.map(|()| seen)
                })?;
                assert_eq!(cell.word(0).load(), seen, "a get under the lock has read what the next holder wrote");
                Ok(())
            });
            cluster.thread(0, "writer", move |ep| {
                ep.block_on(async {
                    let guard = writer.lock(ep).await?;
                    ep.put_value(from, 1).detach()?;
                    guard.unlock().await
                })
            });
            Ok(())
        },
    )
    .small()
    .kills(&["mutex-read-overtaken"])
}

/// All ways to write and to read: the CPU's for the holder's own word, puts and gets for the others', one of them on
/// the lock's node, which the release's fence leaves out. For `mutex-no-fence`.
fn third_node() -> Scenario {
    Scenario::new(
        "mutex/third-node",
        "writes to three nodes, by CPU and NIC, are seen by the next holder",
        3,
        |cluster| {
            let mutexes = open(cluster)?;
            let words = (0..3).map(|node| word(cluster, node, "word")).collect::<Result<Vec<_>>>()?;
            for node in [1, 2] {
                let (mutex, words) = (Rc::clone(&mutexes[node]), words.clone());
                cluster.thread(node, "writer", move |ep| {
                    ep.block_on(async {
                        let guard = mutex.lock(ep).await?;
                        let mut seen = [0; 3];
                        for (home, word) in words.iter().enumerate() {
                            let own = home == node;
                            seen[home] = if own { word.word(0).load() } else { ep.get(word.remote::<u64>(0)).await? };
                        }
                        assert_eq!(seen, [seen[0]; 3], "not all of what the last holder wrote is visible");
                        for (home, word) in words.iter().enumerate() {
                            if home == node {
                                word.word(0).store(seen[0] + 1);
                            } else {
                                ep.put_value(word.remote::<u64>(0), seen[0] + 1).detach()?;
                            }
                        }
                        guard.unlock().await
                    })
                });
            }
            counts(cluster, &mutexes[0], words[0].clone(), || 2);
            Ok(())
        },
    )
    .small()
}

/// A waiter's compare-and-swap against a newcomer's, and its ticket's fetch-and-add against releases: node 0 takes the
/// lock again and again while node 1 queues for it. For `mutex-turn-unchecked`, `mutex-released-by-put`.
fn queue() -> Scenario {
    Scenario::new("mutex/queue", "one who waits and newcomers who pass it are never inside at once", 2, |cluster| {
        let (mutexes, x) = (open(cluster)?, word(cluster, 0, "x")?);
        for (node, mutex) in mutexes.iter().cloned().enumerate() {
            let x = x.remote::<u64>(0);
            cluster.thread(node, "adder", move |ep| {
                ep.block_on(async {
                    if node == 0 {
                        mutex.lock(ep).await?.unlock().await?;
                    }
                    add_one(ep, mutex.lock(ep).await?, x).await
                })
            });
        }
        counts(cluster, &mutexes[0], x, || 2);
        Ok(())
    })
    .small()
    .kills(&["mutex-turn-unchecked", "mutex-released-by-put"])
}

/// Operations of one thread share its endpoint, its node's guess at the lock's word, and nothing else: each has a
/// ticket of its own. Guards are dropped as well as unlocked, which waits for the release in the middle of the other
/// operation.
fn window() -> Scenario {
    Scenario::new("mutex/window", "several operations of one thread exclude each other", 2, |cluster| {
        let (mutexes, x) = (open(cluster)?, word(cluster, 0, "x")?);
        let (mutex, at) = (Rc::clone(&mutexes[1]), x.remote::<u64>(0));
        cluster.thread(1, "adder", move |ep| {
            let add = async |drops: bool| -> Result<()> {
                let guard = mutex.lock(ep).await?;
                let seen = ep.get(at).await?;
                ep.put_value(at, seen + 1).detach()?;
                if drops {
                    drop(guard);
                } else {
                    guard.unlock().await?;
                }
                Ok(())
            };
            let mut ended = Ok(());
            ep.run_window(2, [add(true), add(false), add(true)], |result| ended = ended.clone().and(result));
            ended
        });
        counts(cluster, &mutexes[0], x, || 3);
        Ok(())
    })
    .small()
}

/// Locks 0 and 2 have their words side by side on node 0. Node 0 keeps one until node 1 has been inside the other, and
/// both use lock 1, on node 1.
fn array() -> Scenario {
    Scenario::new(
        "mutex/array",
        "the locks of an array exclude by themselves, and do not stand in each other's way",
        2,
        |cluster| {
            let locks = cluster.on_each(|node| MutexArray::open(node, "locks", 3))?;
            let (x, inside) = (word(cluster, 0, "x")?, word(cluster, 0, "inside")?);
            for (node, locks) in locks.into_iter().enumerate() {
                let (x_at, inside) = (x.remote::<u64>(0), inside.clone());
                cluster.thread(node, "adder", move |ep| {
                    ep.block_on(async {
                        if node == 0 {
                            let guard = locks.lock(ep, 0).await?;
                            ep.wait_until(Instant::NEVER, || (inside.word(0).load() == 1).then_some(())).await?;
                            guard.unlock().await?;
                        } else {
                            let guard = locks.lock(ep, 2).await?;
                            ep.put_value(inside.remote::<u64>(0), 1).detach()?;
                            guard.unlock().await?;
                        }
                        add_one(ep, locks.lock(ep, 1).await?, x_at).await
                    })
                });
            }
            cluster.at_end(move || {
                assert_eq!(x.word(0).load(), 2, "the sum of the increments under the lock");
                Ok(())
            });
            Ok(())
        },
    )
    .small()
}

/// Trying against a holder and against a queue: it never waits, and takes a free lock only.
fn trying() -> Scenario {
    Scenario::new("mutex/trying", "who tries is excluded like who waits, and never waits", 2, |cluster| {
        let (mutexes, x) = (open(cluster)?, word(cluster, 1, "x")?);
        let sections = Rc::new(Cell::new(1));
        let (waits, tries) = (Rc::clone(&mutexes[0]), Rc::clone(&mutexes[1]));
        let (at, tried) = (x.remote::<u64>(0), Rc::clone(&sections));
        cluster.thread(0, "waits", move |ep| ep.block_on(async { add_one(ep, waits.lock(ep).await?, at).await }));
        cluster.thread(1, "tries", move |ep| {
            ep.block_on(async {
                for _ in 0..2 {
                    if let Some(guard) = tries.try_lock(ep).await? {
                        add_one(ep, guard, at).await?;
                        tried.set(tried.get() + 1);
                    }
                }
                Ok(())
            })
        });
        counts(cluster, &mutexes[0], x, move || sections.get());
        Ok(())
    })
    .small()
}

/// A waiter that has a ticket and does not run is passed at most [`BYPASS_MAX`] times: without a bound it could starve.
/// For `mutex-unbounded-bypass`.
fn bypass() -> Scenario {
    Scenario::new("mutex/bypass", "newcomers pass one who waits a bounded number of times", 2, |cluster| {
        let mutexes = open(cluster)?;
        let (held, drawn, tried) = (word(cluster, 1, "held")?, word(cluster, 0, "drawn")?, word(cluster, 1, "tried")?);
        let (passes, waits) = (Rc::clone(&mutexes[0]), Rc::clone(&mutexes[1]));
        let (tell_held, tell_drawn, tell_tried) =
            (held.remote::<u64>(0), drawn.remote::<u64>(0), tried.remote::<u64>(0));
        cluster.thread(0, "passes", move |ep| {
            ep.block_on(async {
                let guard = passes.lock(ep).await?;
                ep.put_value(tell_held, 1).detach()?;
                ep.wait_until(Instant::NEVER, || (drawn.word(0).load() == 1).then_some(())).await?;
                guard.unlock().await?;
                let mut passed = 0;
                for _ in 0..=BYPASS_MAX {
                    if let Some(guard) = passes.try_lock(ep).await? {
                        passed += 1;
                        guard.unlock().await?;
                    }
                }
                assert!(passed <= BYPASS_MAX, "newcomers have passed one who waits {passed} times");
                ep.put_value(tell_tried, 1).await.map_err(Into::into)
            })
        });
        cluster.thread(1, "waits", move |ep| {
            ep.block_on(async {
                ep.wait_until(Instant::NEVER, || (held.word(0).load() == 1).then_some(())).await?;
                let mut lock = pin!(waits.lock(ep));
                let looks = ep.counts().gets;
                // It reads the word when it has its ticket.
                poll_fn(|cx| match lock.as_mut().poll(cx) {
                    Poll::Ready(_) => panic!("it has taken a lock that is held"),
                    Poll::Pending if ep.counts().gets > looks => Poll::Ready(()),
                    Poll::Pending => Poll::Pending,
                })
                .await;
                ep.put_value(tell_drawn, 1).detach()?;
                ep.wait_until(Instant::NEVER, || (tried.word(0).load() == 1).then_some(())).await?;
                lock.await?.unlock().await
            })
        });
        Ok(())
    })
    .kills(&["mutex-unbounded-bypass"])
}

/// A wait that times out at once leaves a ticket. When it is that ticket's turn, another thread has to pass it on: the
/// next ticket follows it. For `mutex-ticket-lost`.
fn deadline() -> Scenario {
    Scenario::new("mutex/deadline", "who gives up waiting keeps nobody from the lock, itself included", 2, |cluster| {
        let (mutexes, x) = (open(cluster)?, word(cluster, 1, "x")?);
        let sections = Rc::new(Cell::new(2));
        for (node, mutex) in mutexes.iter().cloned().enumerate() {
            let (x, sections) = (x.remote::<u64>(0), Rc::clone(&sections));
            cluster.thread(node, "adder", move |ep| {
                ep.block_on(async {
                    if node == 1 {
                        match mutex.lock_deadline(ep, ep.now()).await {
                            Ok(guard) => {
                                add_one(ep, guard, x).await?;
                                sections.set(sections.get() + 1);
                            }
                            Err(error) => assert!(error.is_timeout(), "{error}"),
                        }
                    }
                    add_one(ep, mutex.lock(ep).await?, x).await
                })
            });
        }
        counts(cluster, &mutexes[0], x, move || sections.get());
        Ok(())
    })
    .kills(&["mutex-ticket-lost"])
}

/// Waits that time out at any moment, even early: a turn that arrives meanwhile is passed on. For `mutex-ticket-lost`,
/// `mutex-turn-unchecked`.
fn timeout() -> Scenario {
    Scenario::new("mutex/timeout", "waits that end at any moment lose no turn and no increment", 2, |cluster| {
        let (mutexes, x) = (open(cluster)?, word(cluster, 1, "x")?);
        let sections = Rc::new(Cell::new(0));
        for (node, mutex) in mutexes.iter().cloned().enumerate() {
            let (x, sections) = (x.remote::<u64>(0), Rc::clone(&sections));
            cluster.thread(node, "adder", move |ep| {
                ep.set_timeout(Duration::from_millis(50));
                ep.block_on(async {
                    for _ in 0..2 {
                        match mutex.lock(ep).await {
                            Ok(guard) => {
                                add_one(ep, guard, x).await?;
                                sections.set(sections.get() + 1);
                            }
                            Err(error) => assert!(error.is_timeout(), "{error}"),
                        }
                    }
                    Ok(())
                })
            });
        }
        counts(cluster, &mutexes[0], x, move || sections.get());
        Ok(())
    })
    .early_timeouts()
}

/// A future that is dropped between any two of its polls: before or after its compare-and-swap, its ticket, its turn.
/// Effects that it has had by then, or has later, are undone. For `mutex-dropped-not-undone`, `mutex-ticket-lost`.
fn dropped() -> Scenario {
    Scenario::new(
        "mutex/dropped",
        "an operation that is dropped at any moment holds nothing and has no turn",
        2,
        |cluster| {
            let (mutexes, x) = (open(cluster)?, word(cluster, 1, "x")?);
            let sections = Rc::new(Cell::new(2));
            for (node, mutex) in mutexes.iter().cloned().enumerate() {
                let (x, sections) = (x.remote::<u64>(0), Rc::clone(&sections));
                cluster.thread(node, "adder", move |ep| {
                    ep.block_on(async {
                        if node == 1
                            && let Some(guard) = cut(choose(6), mutex.lock(ep)).await
                        {
                            add_one(ep, guard?, x).await?;
                            sections.set(sections.get() + 1);
                        }
                        add_one(ep, mutex.lock(ep).await?, x).await
                    })
                });
            }
            counts(cluster, &mutexes[0], x, move || sections.get());
            Ok(())
        },
    )
    .kills(&["mutex-dropped-not-undone"])
}

/// A holder releases the lock and leaves, or leaves with it. A waiter gets the lock, or learns at once which node has
/// left with it.
fn holder_leaves() -> Scenario {
    Scenario::new("mutex/holder-leaves", "who waits for one that leaves gets the lock, or is told", 2, |cluster| {
        let mutexes = open(cluster)?;
        let (waits, holds, node) = (Rc::clone(&mutexes[0]), Rc::clone(&mutexes[1]), cluster.node(1));
        let kept = Rc::new(Cell::new(false));
        let is_kept = Rc::clone(&kept);
        cluster.thread_that_drops(1, "holds", move |ep| {
            let guard = ep.block_on(holds.lock(ep))?;
            if choose(2) == 0 {
                ep.block_on(guard.unlock())?;
            } else {
                kept.set(true);
                core::mem::forget(guard);
            }
            drop(holds);
            node.leave();
            Ok(())
        });
        cluster.thread(0, "waits", move |ep| {
            let began = ep.now();
            match ep.block_on(waits.lock(ep)) {
                Ok(guard) => ep.block_on(guard.unlock()),
                Err(left) => {
                    assert!(is_kept.get() && left.is_gone() && left.node() == Some(NodeId(1)), "{left}");
                    assert!(ep.now() - began < Duration::from_secs(10), "it has waited for one who never returns");
                    Ok(())
                }
            }
        });
        keep(cluster, mutexes);
        Ok(())
    })
}

/// A waiter that does not run keeps its turn as long as all nodes live: the next one waits behind it.
fn kept_turn() -> Scenario {
    Scenario::new("mutex/kept-turn", "while all nodes live nobody is passed over, however slow", 1, |cluster| {
        let mutex = open(cluster)?.remove(0);
        cluster.thread(0, "waits", move |ep| {
            ep.block_on(async {
                let held = mutex.lock(ep).await?;
                let lock = |patience: u64| mutex.lock_deadline(ep, ep.now() + Duration::from_secs(patience));
                let (mut first, mut second) = (pin!(lock(30)), pin!(lock(1)));
                for waiting in [first.as_mut(), second.as_mut()] {
                    let mut waiting = waiting;
                    let looks = ep.counts().gets;
                    // It reads the word when it has its ticket.
                    poll_fn(|cx| match waiting.as_mut().poll(cx) {
                        Poll::Ready(_) => panic!("it has taken a lock that is held"),
                        Poll::Pending if ep.counts().gets > looks => Poll::Ready(()),
                        Poll::Pending => Poll::Pending,
                    })
                    .await;
                }
                held.unlock().await?;
                let overtaken = second.await;
                assert!(overtaken.is_err_and(|error| error.is_timeout()), "one who waits has been passed over");
                first.await?.unlock().await
            })
        });
        Ok(())
    })
}
