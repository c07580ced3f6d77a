//! Windows, batches, fences, and their costs.

use std::cell::Cell;

use farfield_fabric::{Counts, Endpoint, ErrorKind, NodeId, RemotePtr};

use crate::harness::{Harness, SOON, alone, guarded, refused, threads};

/// At most `n` tasks are in progress at a time. All end, each with its own result, in any order.
pub(crate) fn a_window_bounds_completes_and_answers(harness: &Harness) {
    let nodes = harness.session(2);
    let region = nodes[1].region(8 * 256);
    for (at, word) in region.words(0, 256).iter().enumerate() {
        word.store(1000 + at as u64);
    }
    alone(&nodes[0], |endpoint| {
        for window in [0, 1, 2, 8, 300] {
            let (open, most) = (Cell::new(0usize), Cell::new(0usize));
            let mut outputs = Vec::new();
            let task = |at: usize| {
                let (open, most, endpoint) = (&open, &most, endpoint);
                let word = region.remote::<u64>(8 * at);
                async move {
                    open.set(open.get() + 1);
                    most.set(most.get().max(open.get()));
                    for _ in 0..at % 4 {
                        endpoint.pause().await;
                    }
                    let value = endpoint.get(word).await.unwrap();
                    open.set(open.get() - 1);
                    (at as u64, value)
                }
            };
            endpoint.run_window(window, (0..256).map(task), |output| outputs.push(output));
            assert!(most.get() <= window.max(1), "{} of {window} at a time", most.get());
            if window > 1 {
                assert!(most.get() > 1, "they are interleaved");
            }
            outputs.sort_unstable();
            assert!(outputs.into_iter().eq((0..256).map(|at| (at, 1000 + at))));
        }
        let mut ended = 0;
        endpoint.run_window(4, std::iter::empty::<std::future::Ready<()>>(), |()| ended += 1);
        assert_eq!(ended, 0);
    });
}

/// Tasks are interleaved: a task that waits for another of the same endpoint gets its result.
pub(crate) fn tasks_of_a_window_wait_for_each_other(harness: &Harness) {
    let nodes = harness.session(2);
    let region = nodes[0].signals(8 * 16);
    alone(&nodes[0], |endpoint| {
        // Task 15 waits for no other, task 14 for 15, …, task 0 for 1.
        let task = |at: usize| {
            let (endpoint, region) = (endpoint, &region);
            async move {
                if at < 15 {
                    let there = || (region.word(8 * (at + 1)).load() == 1).then_some(());
                    endpoint.wait_until(endpoint.deadline(), there).await.unwrap();
                }
                endpoint.put_value(region.remote(8 * at), 1u64).await.unwrap();
                at
            }
        };
        let mut ended = Vec::new();
        endpoint.run_window(16, (0..16).map(task), |at| ended.push(at));
        ended.sort_unstable();
        assert!(ended.into_iter().eq(0..16));
    });
}

/// The puts of a batch land in the order in which they were added.
pub(crate) fn batches_land_in_order(harness: &Harness) {
    let nodes = harness.session(2);
    let batches = harness.rounds(500) as u64;
    let (region, source) = (nodes[1].region(24 * 8), nodes[0].region(8));
    let write = || {
        let endpoint = nodes[0].endpoint();
        let mut buf = endpoint.buf::<u64>(8).unwrap();
        for value in 1..=batches {
            buf.fill(value);
            source.word(0).store(value);
            let batch = endpoint
                .batch(NodeId(1))
                .put(region.remote(0), &buf)
                .put_from_region(region.remote::<u64>(64), source.span(0, 8))
                .put_value(region.remote(128), value);
            endpoint.block_on(batch.post()).unwrap();
        }
        endpoint.block_on(endpoint.global_fence([NodeId(1)])).unwrap();
    };
    let read = || loop {
        let third = region.word(128).load();
        let second = region.word(64).load();
        assert!(second >= third, "{second} {third}");
        for word in region.words(0, 8) {
            let first = word.load();
            assert!(first >= second, "{first} {second}");
        }
        if third == batches {
            break;
        }
    };
    threads([(&nodes[0], &write), (&nodes[1], &read)]);
}

/// The puts of a batch land before the atomic at its end, which is not executed if one of them was refused.
pub(crate) fn batches_end_in_an_atomic(harness: &Harness) {
    let nodes = harness.session(3);
    let batches = harness.rounds(500) as u64;
    let region = nodes[1].region(16 * 8);
    let (data, version) = (region.remote::<u64>(0), region.remote::<u64>(64));
    let write = || {
        let endpoint = nodes[0].endpoint();
        for value in 1..=batches {
            let batch = endpoint.batch(NodeId(1)).put_value(data, value).put_value(data.at(1), value);
            let before = match value % 2 {
                0 => endpoint.block_on(batch.cas(version, value - 1, value)),
                _ => endpoint.block_on(batch.faa(version, 1)),
            };
            assert_eq!(before, Ok(value - 1));
        }
        // Not exchanged: a wrong expectation, a put that is refused, and another node.
        let batch = || endpoint.batch(NodeId(1)).put_value(data, batches);
        assert_eq!(endpoint.block_on(batch().cas(version, batches + 7, 0)), Ok(batches));
        refused(endpoint.block_on(batch().put_value(data.byte_add(1 << 40), 1).cas(version, batches, 0)));
        refused(endpoint.block_on(endpoint.batch(NodeId(2)).faa(version, 1)));
        assert_eq!(endpoint.get(version).wait(), Ok(batches));
    };
    let read = || loop {
        let seen = region.word(64).load();
        assert!([0, 8].iter().all(|at| region.word(*at).load() >= seen), "{seen} is published");
        if seen == batches {
            break;
        }
    };
    threads([(&nodes[0], &write), (&nodes[1], &read)]);
}

/// A quorum ends when enough operations have succeeded, or too many have failed.
pub(crate) fn a_quorum_is_awaited(harness: &Harness) {
    let nodes = harness.session(4);
    let endpoint = nodes[0].endpoint();
    let regions: Vec<_> = nodes[1..].iter().map(|node| node.region(16)).collect();
    let good: Vec<_> = regions.iter().map(|region| region.remote::<u64>(0)).collect();
    let bad = good[2].byte_add(1 << 40);
    let put = |copies: [RemotePtr<u64>; 3], needed| {
        let puts = copies.map(|copy| endpoint.put_value(copy, 7));
        endpoint.block_on(endpoint.quorum(puts, needed))
    };
    let all = put([good[0], good[1], good[2]], 3);
    let mut indexes: Vec<usize> = all.ended().iter().map(|(index, _)| *index).collect();
    indexes.sort_unstable();
    assert_eq!((all.succeeded(), indexes), (3, vec![0, 1, 2]));
    assert!(put([good[0], bad, good[1]], 2).succeeded() == 2 && put([good[0], good[1], bad], 0).succeeded() <= 2);
    let failed = put([good[0], bad, good[1]], 3);
    assert!(failed.succeeded() < 3 && failed.ended().iter().any(|(index, result)| *index == 1 && result.is_err()));
    for (_, put) in failed.into_pending() {
        put.wait().unwrap();
    }
    // Batches are posted at once, and a quorum of them is awaited as of other operations.
    let publish = |copies: [RemotePtr<u64>; 3], version: u64, needed| {
        let batches = copies.map(|copy| {
            let value = regions[copy.node().index() - 1].remote::<u64>(8);
            endpoint.batch(copy.node()).put_value(value, 10 + version).cas(copy, version, version + 1)
        });
        endpoint.block_on(endpoint.quorum_where(batches, needed, |found| *found == version))
    };
    let of = |version, results: &[(usize, farfield_fabric::Result<u64>)]| {
        results.iter().filter(|(_, found)| *found == Ok(version)).count()
    };
    let published = publish([good[0], good[1], good[2]], 7, 3);
    assert_eq!((published.succeeded(), of(7, published.ended())), (3, 3));
    let published = publish([good[0], bad, good[1]], 8, 2);
    assert_eq!((published.succeeded(), of(8, published.ended())), (2, 2));
    // One copy has another version: its answer does not count.
    let behind = publish([good[2], good[0], good[1]], 9, 3);
    assert!(behind.succeeded() < 3 && of(8, behind.ended()) == 1);
    let published = publish([good[2], good[0], good[1]], 10, 2);
    assert_eq!(published.succeeded(), 2);
    for copy in [good[0], good[1]] {
        let value = regions[copy.node().index() - 1].remote::<u64>(8);
        assert_eq!((endpoint.get(copy).wait(), endpoint.get(value).wait()), (Ok(11), Ok(20)));
    }
}

/// A pointer to another node is the batch's error; so is an operation that fails, at any position.
pub(crate) fn batches_report_their_errors(harness: &Harness) {
    let nodes = harness.session(3);
    let endpoint = nodes[0].endpoint();
    let regions: Vec<_> = nodes.iter().map(|node| node.region(64)).collect();
    let (good, other) = (regions[1].remote::<u64>(0), regions[2].remote::<u64>(0));
    let bad = good.byte_add(1 << 40);
    for wrong in 0..3 {
        let place = |at, bad| if at == wrong { bad } else { good };
        let batch = |bad| {
            let batch = endpoint.batch(NodeId(1));
            batch.put_value(place(0, bad), 1).put_value(place(1, bad), 2).put_value(place(2, bad), 3).post()
        };
        assert!(refused(endpoint.block_on(batch(other))).to_string().contains("node 2"), "wrong node at {wrong}");
        let error = refused(endpoint.block_on(batch(bad)));
        assert!(matches!(error.kind(), ErrorKind::OutOfBounds { node: NodeId(1), .. }), "at {wrong}: {error}");
    }
    assert_eq!(regions[2].word(0).load(), 0, "nothing went to the other node");
    endpoint.block_on(endpoint.batch(NodeId(1)).post()).unwrap();
    endpoint.block_on(endpoint.batch(NodeId(1)).put_value(good, 4).post()).unwrap();
    assert_eq!(endpoint.get(good).wait().unwrap(), 4);
}

/// A global fence makes the puts to all its nodes visible, including its own node and nodes without puts, and also
/// beyond the first eight nodes.
pub(crate) fn global_fences_cover_all_nodes(harness: &Harness) {
    let nodes = harness.session(10);
    let regions: Vec<_> = nodes.iter().map(|node| node.region(8)).collect();
    let endpoint = nodes[0].endpoint();
    for value in 1..=harness.rounds(50).min(500) as u64 {
        for (at, region) in regions.iter().enumerate() {
            if value % 2 == 0 || at % 3 != 1 {
                drop(endpoint.put_value(region.remote::<u64>(0), value));
            }
        }
        endpoint.block_on(endpoint.global_fence((0..10).map(NodeId))).unwrap();
        for (at, region) in regions.iter().enumerate() {
            if value % 2 == 0 || at % 3 != 1 {
                assert_eq!(region.word(0).load(), value, "node {at}");
            }
        }
    }
    endpoint.block_on(endpoint.global_fence([])).unwrap();
}

/// A global fence waits for the results of gets, and for atomics, even if the caller does not (NLW and NAW before GF).
pub(crate) fn global_fences_cover_gets_and_atomics(harness: &Harness) {
    let nodes = harness.session(3);
    let regions: Vec<_> = nodes.iter().map(|node| node.region(64)).collect();
    let endpoint = &nodes[0].endpoint();
    for value in 1..=harness.rounds(100).min(1000) as u64 {
        for region in &regions[1..] {
            endpoint.put_value(region.remote::<u64>(0), value).wait().unwrap();
            endpoint.get(region.remote::<u64>(0)).wait().unwrap();
        }
        for (at, region) in regions.iter().enumerate().skip(1) {
            endpoint.get_span(region.remote::<u64>(0), regions[0].span(8 * at, 8)).detach().unwrap();
            endpoint.faa(region.remote::<u64>(8), 1).detach().unwrap();
            drop(endpoint.get(region.remote::<u64>(0)));
        }
        assert!(!endpoint.has_unflushed(NodeId(0)));
        let ((), cost) = endpoint.block_on(endpoint.counted(async {
            endpoint.global_fence([NodeId(0), NodeId(1), NodeId(2)]).await.unwrap();
        }));
        assert_eq!(cost.posted(), 0, "what is under way is waited for, and nothing is posted for it");
        for (at, region) in regions.iter().enumerate().skip(1) {
            assert_eq!(regions[0].word(8 * at).load(), value, "what came from node {at}");
            assert_eq!(region.word(8).load(), value, "what was added at node {at}");
            assert!(!endpoint.has_unflushed(NodeId(at as u16)));
        }
    }
}

/// A further group may have its own queue pair. A read from another group of its node flushes nothing there. A global
/// fence covers it nevertheless.
pub(crate) fn global_fences_cover_further_groups(harness: &Harness) {
    let nodes = harness.session(2);
    let (shared, (_, own)) = (nodes[1].region(64), guarded(&nodes, 1, 64));
    let endpoint = &nodes[0].endpoint();
    let (word, further) = (shared.remote::<u64>(0), own.remote::<u64>(0));
    for value in 1..=harness.rounds(100).min(1000) as u64 {
        drop(endpoint.put_value(further, value));
        if value % 3 != 0 {
            drop(endpoint.put_value(word, value));
        }
        if value % 2 == 0 {
            endpoint.faa(shared.remote(8), 1).wait().unwrap();
        }
        assert!(endpoint.is_ordered_before(further) || value % 3 != 0);
        endpoint.block_on(endpoint.global_fence([NodeId(1)])).unwrap();
        assert_eq!(own.word(0).load(), value);
        assert!(value % 3 == 0 || shared.word(0).load() == value);
        assert!(endpoint.is_ordered_before(word) && endpoint.is_ordered_before(further));
    }
    assert!(!endpoint.has_unflushed(NodeId(1)));
}

/// A fence reports once that the right to a further group was revoked. Earlier puts to the group have then landed or
/// never will.
pub(crate) fn global_fences_outlive_a_revoked_group(harness: &Harness) {
    let nodes = harness.session(2);
    let (key, own) = guarded(&nodes, 1, 64);
    let endpoint = nodes[0].endpoint();
    endpoint.put_value(own.remote::<u64>(0), 1).wait().unwrap();
    nodes[1].fabric.revoke(NodeId(0), key, SOON).unwrap();
    let fence = || endpoint.block_on(endpoint.global_fence([NodeId(1)]));
    if let Err(error) = fence() {
        assert!(matches!(error.kind(), ErrorKind::Revoked { node: NodeId(1), .. }), "{error}");
    }
    fence().unwrap();
    assert!(!endpoint.has_unflushed(NodeId(1)));
}

/// An endpoint knows the nodes that it has put to and not read from since, and fences only those.
pub(crate) fn unflushed_puts_are_known(harness: &Harness) {
    let nodes = harness.session(2);
    let words: Vec<_> = nodes.iter().map(|node| node.region(8)).collect();
    alone(&nodes[0], |endpoint| {
        let unflushed = || [0, 1].map(|node| endpoint.has_unflushed(NodeId(node)));
        let word = |node: usize| words[node].remote::<u64>(0);
        assert_eq!(unflushed(), [false, false]);
        endpoint.put_value(word(1), 1).wait().unwrap();
        assert_eq!(unflushed(), [false, true]);
        endpoint.get(word(0)).wait().unwrap();
        assert_eq!(unflushed(), [false, true], "a read from another node flushes nothing");
        endpoint.get(word(1)).wait().unwrap();
        assert_eq!(unflushed(), [false, false]);
        endpoint.put_value(word(0), 1).wait().unwrap();
        endpoint.put_owned(word(1), endpoint.buf(1).unwrap()).wait().unwrap();
        assert_eq!(unflushed(), [true, true]);
        endpoint.faa(word(1), 1).wait().unwrap();
        assert_eq!(unflushed(), [true, false], "an atomic flushes");
        let ((), cost) = endpoint.block_on(endpoint.counted(async {
            endpoint.global_fence([NodeId(0), NodeId(1)]).await.unwrap();
        }));
        assert_eq!((unflushed(), cost.gets), ([false, false], 1));
        let ((), cost) = endpoint.block_on(endpoint.counted(async {
            endpoint.global_fence([NodeId(0), NodeId(1)]).await.unwrap();
        }));
        assert_eq!(cost, Counts::default(), "nothing to fence costs nothing");
        assert!(!endpoint.has_unflushed(NodeId(7)), "there is no such node");
        // These answer at once only where operations end at once.
        let at_once = endpoint.ends_at_once();
        assert_eq!(endpoint.owes_no_fence_but(NodeId(0)), at_once);
        endpoint.put_value(word(1), 1).wait().unwrap();
        assert_eq!([0, 1].map(|node| endpoint.owes_no_fence_but(NodeId(node))), [false, at_once]);
        assert_eq!((endpoint.fence_all_at_once(Some(NodeId(1))), unflushed()), (at_once, [false, true]));
        endpoint.put_value(word(0), 1).wait().unwrap();
        assert_eq!([0, 1].map(|node| endpoint.owes_no_fence_but(NodeId(node))), [false, false]);
        assert_eq!((endpoint.fence_all_at_once(Some(NodeId(0))), unflushed()), (at_once, [true, !at_once]));
        assert_eq!((endpoint.fence_all_at_once(None), unflushed()), (at_once, [!at_once; 2]));
    });
}

/// The cost of a future: posted operations, bytes, and round trips.
fn cost<F: Future<Output = ()>>(endpoint: &Endpoint, future: F) -> Counts {
    endpoint.block_on(endpoint.counted(future)).1
}

/// Every operation and byte is counted once.
pub(crate) fn counts_are_exact(harness: &Harness) {
    let nodes = harness.session(2);
    let region = nodes[1].region(1024);
    alone(&nodes[0], |endpoint| {
        let word = region.remote::<u64>(0);
        let before = endpoint.counts();
        let counts = cost(endpoint, async {
            endpoint.put_value(word, 1).await.unwrap();
            endpoint.put_value(word.cast::<[u64; 3]>(), [1; 3]).await.unwrap();
            let buf = endpoint.put_owned(word, endpoint.buf(16).unwrap()).await.unwrap();
            endpoint.get_into(word, buf).await.unwrap();
            endpoint.get(word).await.unwrap();
            let _ = endpoint.get_torn(word.cast::<[u64; 2]>()).await.unwrap();
            endpoint.cas(word, 0, 1).await.unwrap();
            endpoint.faa(word, 1).await.unwrap();
            endpoint.remote_fence(NodeId(1)).await.unwrap();
        });
        let bytes = 8 + 24 + 128 + 128 + 8 + 16 + 16;
        let expected = Counts { puts: 3, gets: 3, atomics: 2, fences: 1, bytes, loopback: 0, round_trips: 9 };
        assert_eq!(counts, expected);
        assert_eq!(counts.posted(), 9);
        assert_eq!(endpoint.counts() - before, expected);
        assert_eq!(endpoint.counts_reader().read(), endpoint.counts(), "the reader agrees after a measured operation");
        assert_eq!(cost(endpoint, async {}), Counts::default());
    });
    let own = nodes[0].region(1024);
    alone(&nodes[0], |endpoint| {
        let counts = cost(endpoint, async {
            endpoint.put_value(own.remote(0), 1u64).await.unwrap();
            endpoint.put_value(own.remote(0), [1u64; 3]).await.unwrap();
            endpoint.get(own.remote::<u64>(0)).await.unwrap();
            endpoint.faa(own.remote(0), 1).await.unwrap();
            endpoint.cas(region.remote(0), 0, 1).await.unwrap();
        });
        let expected =
            Counts { puts: 2, gets: 1, atomics: 2, bytes: 8 + 24 + 8 + 8 + 8, loopback: 4, round_trips: 1, fences: 0 };
        assert_eq!(counts, expected, "operations to the own node are counted apart");
    });
}

/// Round trips are the longest chain: parallel operations count once, and those on the endpoint's own node do not
/// count.
pub(crate) fn round_trips_are_the_longest_chain(harness: &Harness) {
    let nodes = harness.session(3);
    let regions: Vec<_> = nodes.iter().map(|node| node.region(64)).collect();
    alone(&nodes[0], |endpoint| {
        let word = |node: usize| regions[node].remote::<u64>(0);
        let trips = |counts: Counts| counts.round_trips;
        // One after the other.
        assert_eq!(
            trips(cost(endpoint, async {
                endpoint.get(word(1)).await.unwrap();
                endpoint.get(word(2)).await.unwrap();
                endpoint.put_value(word(1), 1).await.unwrap();
            })),
            3
        );
        // Together.
        assert_eq!(
            trips(cost(endpoint, async {
                let ops = [endpoint.get(word(1)), endpoint.get(word(2)), endpoint.faa(word(1), 1)];
                for op in ops {
                    op.await.unwrap();
                }
            })),
            1
        );
        // On the endpoint's own node only.
        assert_eq!(
            trips(cost(endpoint, async {
                endpoint.faa(word(0), 1).await.unwrap();
                endpoint.get(word(0)).await.unwrap();
            })),
            0
        );
        // A remote one, then two together, one of them on the own node, then one that is never seen to complete.
        assert_eq!(
            trips(cost(endpoint, async {
                endpoint.get(word(1)).await.unwrap();
                let (own, remote) = (endpoint.get(word(0)), endpoint.get(word(2)));
                own.await.unwrap();
                remote.await.unwrap();
                drop(endpoint.put_value(word(1), 1));
            })),
            2
        );
        // A window of parallel tasks, each a chain of one to three.
        assert_eq!(
            trips(cost(endpoint, async {
                let task = |at: usize| {
                    let (endpoint, word) = (endpoint, word(1 + at % 2));
                    async move {
                        for _ in 0..at % 3 {
                            endpoint.get(word).await.unwrap();
                            endpoint.pause().await; // the others run
                        }
                        endpoint.put_value(word, 1).await.unwrap();
                    }
                };
                endpoint.each_in_window(8, (0..20).map(task), |()| ()).await;
            })),
            3
        );
        // A batch and a fence: all puts of a batch are one trip.
        assert_eq!(
            trips(cost(endpoint, async {
                endpoint.batch(NodeId(1)).put_value(word(1), 1).put_value(word(1), 2).post().await.unwrap();
                drop(endpoint.put_value(word(2), 1));
                endpoint.global_fence([NodeId(1), NodeId(2)]).await.unwrap();
            })),
            2
        );
    });
}

/// Tasks measured while they are interleaved do not count each other's operations or trips.
pub(crate) fn interleaved_tasks_do_not_mix_their_counts(harness: &Harness) {
    let nodes = harness.session(2);
    let region = nodes[1].region(64);
    alone(&nodes[0], |endpoint| {
        let word = region.remote::<u64>(0);
        let task = |at: u64| {
            endpoint.counted(async move {
                for _ in 0..at {
                    endpoint.get(word).await.unwrap();
                    endpoint.pause().await;
                }
                endpoint.put_value(word, 1).await.unwrap();
                at
            })
        };
        let mut ended = 0;
        endpoint.run_window(8, (0..32).map(task), |(at, counts)| {
            let bytes = 8 * (at + 1);
            assert_eq!(counts, Counts { puts: 1, gets: at, bytes, round_trips: at + 1, ..Counts::default() });
            ended += 1;
        });
        assert_eq!(ended, 32);
    });
}

/// Many independent gets at once: each result in its position, one round trip, and the first failure reported.
pub(crate) fn many_gets_at_once(harness: &Harness) {
    let nodes = harness.session(3);
    let regions: Vec<_> = nodes.iter().map(|node| node.region(8 * 64)).collect();
    for (node, region) in regions.iter().enumerate() {
        for (at, word) in region.words(0, 64).iter().enumerate() {
            word.store(100 * node as u64 + at as u64);
        }
    }
    alone(&nodes[0], |endpoint| {
        let sources: Vec<RemotePtr<u64>> = (0..60).map(|at| regions[at % 3].remote(8 * at)).collect();
        for each in [1, 3] {
            let mut into = endpoint.buf::<u64>(60 * each).unwrap();
            let (result, counts) = endpoint.block_on(endpoint.counted(endpoint.get_each(&sources, each, &mut into)));
            result.unwrap();
            assert_eq!((counts.gets, counts.round_trips, counts.bytes), (60, 1, 480 * each as u64));
            for at in 0..60 {
                for word in 0..each {
                    assert_eq!(into[at * each + word], (100 * (at % 3) + at + word) as u64);
                }
            }
        }
        let mut wrong = sources.clone();
        wrong[30] = wrong[30].byte_add(1 << 40);
        let mut into = endpoint.buf::<u64>(60).unwrap();
        into.fill(u64::MAX);
        let error = refused(endpoint.block_on(endpoint.get_each(&wrong, 1, &mut into)));
        assert!(matches!(error.kind(), ErrorKind::OutOfBounds { node: NodeId(0), .. }), "{error}");
        for at in 0..60 {
            let expected = if at == 30 { 0 } else { 100 * (at % 3) + at };
            assert_eq!(into[at], expected as u64, "the others have come, the failed one reads as zero");
        }
        assert!(endpoint.block_on(endpoint.get_each(&sources, 2, &mut into)).is_err(), "no room for 120 words");
    });
}
