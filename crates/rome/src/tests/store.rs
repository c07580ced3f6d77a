use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::*;

type Kv = RomeKv<u64, u64>;

fn options(boundaries: impl Into<Vec<u64>>, pairs: usize, records: usize, blocks: usize) -> RomeKvOptions<u64> {
    let mut options = RomeKvOptions::new(boundaries);
    options.tree = TreeOptions { pairs, records, blocks, seats: 8, ..TreeOptions::default() };
    options
}

fn open(nodes: &[Node], options: &RomeKvOptions<u64>) -> Vec<Kv> {
    let options = options.clone();
    on_each(nodes, move |node| Kv::open(node, "store", options.clone())).expect("all open it")
}

#[derive(Clone, Copy, Debug)]
enum Call {
    One(RomeKvUpdate<u64, u64>),
    Batch(u64, u64),
    Range(u64, u64),
    Ends,
    /// Moves a partition to the calling node.
    Take(usize),
}

fn call() -> impl Strategy<Value = (usize, Call)> {
    let key = 0..60u64;
    let one = |update: fn(u64, u64) -> RomeKvUpdate<u64, u64>| {
        (0..60u64, any::<u64>()).prop_map(move |(key, value)| Call::One(update(key, value)))
    };
    let call = prop_oneof![
        2 => one(RomeKvUpdate::Insert),
        2 => one(RomeKvUpdate::Update),
        2 => one(RomeKvUpdate::Put),
        4 => one(|key, _| RomeKvUpdate::Delete(key)),
        1 => (key.clone(), any::<u64>()).prop_map(|(key, value)| Call::Batch(key, value)),
        2 => (key.clone(), key).prop_map(|(start, end)| Call::Range(start.min(end), start.max(end))),
        1 => Just(Call::Ends),
        1 => (0..5usize).prop_map(Call::Take),
    ];
    (0..3usize, call)
}

/// What an update does to a map, and the value before.
fn on_map(map: &mut BTreeMap<u64, u64>, update: RomeKvUpdate<u64, u64>) -> Option<u64> {
    let before = map.get(update.key()).copied();
    match (update, before) {
        (RomeKvUpdate::Put(key, value), _)
        | (RomeKvUpdate::Insert(key, value), None)
        | (RomeKvUpdate::Update(key, value), Some(_)) => drop(map.insert(key, value)),
        (RomeKvUpdate::Delete(key), _) => drop(map.remove(&key)),
        _ => {}
    }
    before
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Nodes with two partitions, and one; each makes some of the calls.
    #[test]
    fn a_store_is_a_sorted_map(calls in prop::collection::vec(call(), 1..200)) {
        let (nodes, eps) = session(3);
        let stores = open(&nodes, &options([7, 20, 21, 45], 4, 2, 200));
        let mut threads: Vec<_> = stores.iter().map(|store| store.thread().unwrap()).collect();
        let mut map = BTreeMap::new();
        for (node, call) in calls {
            let (ep, thread) = (&eps[node], &mut threads[node]);
            match call {
                Call::One(update) => {
                    let before = on_map(&mut map, update);
                    match update {
                        RomeKvUpdate::Insert(key, value) => {
                            prop_assert_eq!(ep.block_on(thread.insert(ep, key, value)).unwrap(), before.is_none());
                        }
                        RomeKvUpdate::Update(key, value) => {
                            prop_assert_eq!(ep.block_on(thread.update(ep, key, value)).unwrap(), before.is_some());
                        }
                        RomeKvUpdate::Put(key, value) => {
                            prop_assert_eq!(ep.block_on(thread.put(ep, key, value)).unwrap(), before);
                        }
                        RomeKvUpdate::Delete(key) => {
                            prop_assert_eq!(ep.block_on(thread.delete(ep, &key)).unwrap(), before);
                        }
                    }
                }
                Call::Batch(key, value) => {
                    let updates: Vec<_> = (key..60).step_by(3).map(|key| match key % 4 {
                        0 => RomeKvUpdate::Delete(key),
                        1 => RomeKvUpdate::Insert(key, value),
                        _ => RomeKvUpdate::Put(key, value),
                    }).collect();
                    let expected: Vec<_> = updates.iter().map(|update| on_map(&mut map, *update)).collect();
                    let done: Vec<_> =
                        ep.block_on(thread.apply(ep, &updates)).into_iter().map(|before| before.unwrap()).collect();
                    prop_assert_eq!(done, expected);
                }
                Call::Range(start, end) => {
                    for range in [
                        (Bound::Included(start), Bound::Excluded(end)),
                        (Bound::Excluded(start), Bound::Included(end)),
                        (Bound::Unbounded, Bound::Included(start)),
                        (Bound::Included(end), Bound::Unbounded),
                    ] {
                        let expected: Vec<_> = match range {
                            (Bound::Excluded(_), _) | (Bound::Included(_), Bound::Excluded(_)) if start == end => Vec::new(),
                            range => map.range(range).map(|(key, value)| (*key, *value)).collect(),
                        };
                        let mut back = expected.clone();
                        back.reverse();
                        prop_assert_eq!(&ep.block_on(thread.range(ep, range, 1000)).unwrap(), &expected);
                        prop_assert_eq!(&ep.block_on(thread.range_back(ep, range, 1000)).unwrap(), &back);
                        let at_once = ep.block_on(async {
                            thread.scan_at_one_instant(ep, range).await?.collect(ep, 1000).await
                        });
                        prop_assert_eq!(&at_once.unwrap(), &expected);
                        let at_once = ep.block_on(async {
                            thread.scan_back_at_one_instant(ep, range).await?.collect(ep, 1000).await
                        });
                        prop_assert_eq!(&at_once.unwrap(), &back);
                    }
                    let keys: Vec<u64> = (start..end).rev().chain([start]).collect();
                    let expected: Vec<_> = keys.iter().map(|key| map.get(key).copied()).collect();
                    prop_assert_eq!(&ep.block_on(thread.multi_get(ep, &keys)).unwrap(), &expected);
                    for (key, value) in keys.iter().zip(expected) {
                        prop_assert_eq!(ep.block_on(thread.get(ep, key)).unwrap(), value);
                    }
                }
                Call::Take(partition) => {
                    ep.block_on(thread.take_partition(ep, partition)).unwrap();
                    prop_assert_eq!(stores[node].owner_of(partition), nodes[node].id());
                }
                Call::Ends => {
                    let pair = |pair: Option<(&u64, &u64)>| pair.map(|(key, value)| (*key, *value));
                    prop_assert_eq!(ep.block_on(thread.first(ep)).unwrap(), pair(map.first_key_value()));
                    prop_assert_eq!(ep.block_on(thread.last(ep)).unwrap(), pair(map.last_key_value()));
                }
            }
        }
    }
}

#[test]
fn ranges_have_their_partitions() {
    let (nodes, _) = session(2);
    let store = open(&nodes, &options([10, 20], 4, 2, 100)).remove(0);
    assert_eq!((0..3).map(|at| store.owner_of(at)).collect::<Vec<_>>(), [0, 1, 0].map(|at: usize| nodes[at].id()));
    assert_eq!([0, 9, 10, 19, 20, u64::MAX].map(|key| store.partition_of(&key)), [0, 0, 1, 1, 2, 2]);
    assert_eq!((0..3).map(|at| store.range_of(at)).collect::<Vec<_>>(), [(0, Some(10)), (10, Some(20)), (20, None)]);
    for boundaries in [vec![0], vec![5, 5], vec![6, 5]] {
        let opened = Kv::open(&nodes[0], "other", options(boundaries, 4, 2, 100));
        assert!(matches!(opened.expect_err("no order").kind(), farfield_core::ErrorKind::Config { .. }));
    }
}

/// Two counters on two nodes, of which the second one is never ahead of the first.
#[test]
fn scans_at_one_instant_see_one_state_of_the_store() {
    let (nodes, eps) = session(3);
    let stores = open(&nodes, &options([100], 8, 4, 2000));
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let (mut thread, stop) = (stores[0].thread().expect("a seat"), Arc::clone(&stop));
        let write = move |ep: Endpoint| {
            for count in 1.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                ep.block_on(thread.put(&ep, 7, count)).expect("here");
                ep.block_on(thread.put(&ep, 107, count)).expect("there");
            }
        };
        nodes[0].spawn("writes", write).expect("a thread")
    };
    let mut thread = stores[2].thread().expect("a seat");
    let mut last = 0;
    for round in 0..2000 {
        let is_back = round % 2 == 1;
        let pairs = eps[2].block_on(async {
            let scan = if is_back {
                thread.scan_back_at_one_instant(&eps[2], ..).await?
            } else {
                thread.scan_at_one_instant(&eps[2], ..).await?
            };
            scan.collect(&eps[2], 10).await
        });
        let pairs: BTreeMap<u64, u64> = pairs.expect("all live").into_iter().collect();
        let count = |key| pairs.get(&key).copied().unwrap_or(0);
        assert!(count(7) == count(107) || count(7) == count(107) + 1, "{pairs:?}");
        assert!(count(7) >= last);
        last = count(7);
    }
    stop.store(true, Ordering::Relaxed);
    writer.join().expect("no panic");
    assert!(last > 0);
}

/// Each node takes both partitions in turn, while one thread of each counts its own key of each up.
#[test]
fn no_change_is_lost_while_partitions_move() {
    const COUNTS: u64 = 300;
    let (nodes, eps) = session(3);
    let stores = open(&nodes, &options([1000], 8, 4, 400));
    let writers: Vec<_> = (0..3)
        .map(|node| {
            let mut thread = stores[node].thread().expect("a seat");
            let write = move |ep: Endpoint| {
                for count in 1..=COUNTS {
                    for key in [node as u64, 1000 + node as u64] {
                        let before = ep.block_on(thread.put(&ep, key, count)).expect("all live");
                        assert_eq!(before.unwrap_or(0), count - 1);
                        assert_eq!(ep.block_on(thread.get(&ep, &key)).expect("all live"), Some(count));
                    }
                }
            };
            nodes[node].spawn("counts", write).expect("a thread")
        })
        .collect();
    let mut threads: Vec<_> = stores.iter().map(|store| store.thread().expect("a seat")).collect();
    for round in 0..12 {
        let (node, ep) = (round % 3, &eps[round % 3]);
        ep.block_on(threads[node].take_partition(ep, round / 3 % 2)).expect("all live");
        let pairs = ep.block_on(async {
            threads[node].scan_at_one_instant(ep, ..).await.expect("all live").collect(ep, 100).await
        });
        let pairs: BTreeMap<u64, u64> = pairs.expect("all live").into_iter().collect();
        for key in 0..3 {
            let count = |key| pairs.get(&key).copied().unwrap_or(0);
            assert!(count(key) == count(1000 + key) || count(key) == count(1000 + key) + 1, "{pairs:?}");
        }
    }
    for writer in writers {
        writer.join().expect("no panic");
    }
    let all = eps[1].block_on(threads[1].range(&eps[1], .., 100)).expect("all live");
    assert_eq!(all, [0, 1, 2, 1000, 1001, 1002].map(|key| (key, COUNTS)));
}

#[test]
fn a_scan_outlives_the_move_of_its_partition() {
    let (nodes, eps) = session(3);
    let stores = open(&nodes, &options([10_000], 4, 2, 2000));
    let mut threads: Vec<_> = stores.iter().map(|store| store.thread().expect("a seat")).collect();
    let [_, reads, takes] = &mut threads[..] else { unreachable!("three") };
    let before: Vec<_> = (0..1000).map(|key| (key, key)).collect();
    eps[0].block_on(stores[0].thread().expect("a seat").load(&eps[0], before.clone())).expect("it is empty");
    let (mut pairs, mut scan) =
        (Vec::new(), eps[1].block_on(reads.scan_at_one_instant(&eps[1], ..)).expect("they live"));
    assert!(eps[1].block_on(scan.next(&eps[1], &mut pairs)).expect("they live"));
    eps[2].block_on(takes.take_partition(&eps[2], 0)).expect("they live");
    eps[2].block_on(takes.put(&eps[2], 999, 0)).expect("it is here");
    while eps[1].block_on(scan.next(&eps[1], &mut pairs)).expect("they live") {}
    assert_eq!(pairs, before, "as of its version");
    drop(scan);
    assert_eq!(eps[1].block_on(reads.get(&eps[1], &999)).expect("they live"), Some(0));
    assert_eq!(stores[1].owner_of(0), nodes[2].id());
    // The old owner asks, too.
    assert_eq!(eps[0].block_on(threads[0].get(&eps[0], &999)).expect("they live"), Some(0));
    let error = eps[0].block_on(threads[0].take_partition(&eps[0], 2)).expect_err("there is none");
    assert!(error.to_string().contains("no partition 2"), "{error}");
}

/// A thread that has not heard of the move finds the new place, and no owner there.
#[test]
fn a_partition_is_lost_with_the_node_that_has_taken_it() {
    let (mut nodes, eps) = session(3);
    let mut options = options([100], 4, 2, 50);
    // The others are not asked again for so long.
    options.tree.lease = std::time::Duration::from_secs(60);
    let mut stores = open(&nodes, &options);
    let mut threads: Vec<_> = stores.iter().map(|store| store.thread().expect("a seat")).collect();
    eps[2].block_on(threads[2].take_partition(&eps[2], 0)).expect("they live");
    let gone = nodes[2].id();
    threads.truncate(2);
    drop((stores.remove(2), nodes.remove(2)));
    for (thread, ep) in threads.iter_mut().zip(&eps) {
        for error in [
            ep.block_on(thread.get(ep, &7)).expect_err("it was lost"),
            ep.block_on(thread.put(ep, 7, 1)).expect_err("it was lost"),
        ] {
            let lost = error.custom_ref::<RangeUnavailable>().expect("which keys");
            assert_eq!((lost.partition, lost.owner, lost.may_have_happened), (0, gone, false), "{error}");
            assert!(error.is_gone(), "{error}");
        }
        ep.block_on(thread.put(ep, 107, 1)).expect("its owner lives");
    }
    // The others have said so, and are not asked each time.
    let (thread, ep) = (&mut threads[0], &eps[0]);
    let before = ep.counts();
    assert!(ep.block_on(thread.get(ep, &7)).is_err_and(|error| error.custom_ref::<RangeUnavailable>().is_some()));
    assert_eq!((ep.counts() - before).gets, 0);
}

/// Its node has not heard that another one has taken it meanwhile.
#[test]
fn a_partition_is_taken_back_by_a_thread_that_thinks_that_it_is_here() {
    let (nodes, eps) = session(2);
    let stores = open(&nodes, &options([100], 4, 2, 50));
    let mut threads: Vec<_> = stores.iter().map(|store| store.thread().expect("a seat")).collect();
    eps[1].block_on(threads[1].take_partition(&eps[1], 0)).expect("they live");
    eps[0].block_on(threads[0].take_partition(&eps[0], 0)).expect("they live");
    assert_eq!(eps[1].block_on(threads[1].put(&eps[1], 7, 70)).expect("it follows"), None);
    assert_eq!((stores[0].owner_of(0), stores[1].owner_of(0)), (nodes[0].id(), nodes[0].id()));
    assert_eq!(eps[0].block_on(threads[0].get(&eps[0], &7)).expect("it is here"), Some(70));
}

/// A thread of the old owner that has not heard of the move works on the old place first.
#[test]
fn a_load_into_a_partition_that_was_moved_goes_to_its_new_place() {
    let (nodes, eps) = session(2);
    let stores = open(&nodes, &options([1000], 8, 4, 400));
    let mut threads: Vec<_> = stores.iter().map(|store| store.thread().expect("a seat")).collect();
    eps[1].block_on(threads[1].take_partition(&eps[1], 0)).expect("they live");
    let all: Vec<_> = (0..500).map(|key| (key, key)).collect();
    eps[0].block_on(threads[0].load(&eps[0], all.clone())).expect("it follows");
    assert_eq!(stores[0].owner_of(0), nodes[1].id());
    assert_eq!(eps[1].block_on(threads[1].range(&eps[1], .., 1000)).expect("it is here"), all);
}

#[test]
fn a_load_goes_on_where_its_partition_is_moved_to_meanwhile() {
    let (nodes, eps) = session(2);
    let stores = open(&nodes, &options([1000], 8, 4, 400));
    let [mut loads, mut takes] = [0, 1].map(|node| stores[node].thread().expect("a seat"));
    let all: Vec<_> = (0..500).chain(1000..1100).map(|key| (key, key)).collect();
    let (asked, asks) = std::sync::mpsc::channel();
    let (taken, takes_it) = std::sync::mpsc::channel();
    let taker = nodes[1].spawn("takes", move |ep| {
        asks.recv().expect("the load goes on");
        ep.block_on(takes.take_partition(&ep, 0)).expect("they live");
        taken.send(()).expect("the load waits");
    });
    let pairs = all.iter().copied().inspect(|pair| {
        if pair.0 == 300 {
            asked.send(()).expect("the taker waits");
            takes_it.recv().expect("it takes it");
        }
    });
    eps[0].block_on(loads.load(&eps[0], pairs)).expect("it follows");
    taker.expect("a thread").join().expect("no panic");
    assert_eq!(stores[0].owner_of(0), nodes[1].id());
    assert_eq!(eps[0].block_on(loads.range(&eps[0], .., 1000)).expect("they live"), all);
}

/// Its old owner is no longer needed.
#[test]
fn a_partition_outlives_the_node_from_which_it_came() {
    let (mut nodes, eps) = session(3);
    let mut stores = open(&nodes, &options([100], 4, 2, 50));
    let mut threads: Vec<_> = stores.iter().map(|store| store.thread().expect("a seat")).collect();
    eps[0].block_on(threads[0].put(&eps[0], 7, 70)).expect("it is here");
    eps[2].block_on(threads[2].take_partition(&eps[2], 0)).expect("they live");
    threads.remove(0);
    drop((stores.remove(0), nodes.remove(0)));
    // Node 1 has not heard of the move.
    assert_eq!(eps[1].block_on(threads[0].get(&eps[1], &7)).expect("it was moved"), Some(70));
    assert_eq!(eps[1].block_on(threads[0].put(&eps[1], 7, 71)).expect("it was moved"), Some(70));
}

#[test]
fn costs_are_counted() {
    let (nodes, eps) = session(3);
    let stores = open(&nodes, &options([1000, 2000], 64, 24, 400));
    let (mut thread, ep) = (stores[1].thread().expect("a seat"), &eps[1]);
    ep.block_on(thread.load(ep, (0..3000).map(|key| (key, key)))).expect("they are empty");
    ep.block_on(async {
        for key in [1, 1500, 2900] {
            assert_eq!(thread.get(ep, &key).await.expect("it lives"), Some(key));
        }
        // Of the own node, by its processor.
        let (value, counts) = ep
            .counted(async {
                thread.put(ep, 1501, 7).await.expect("here");
                thread.get(ep, &1501).await
            })
            .await;
        assert_eq!((value.expect("here"), counts.posted()), (Some(7), 0));
        let (value, counts) = ep.counted(thread.get(ep, &2)).await;
        assert_eq!((value.expect("it lives"), counts.gets, counts.round_trips), (Some(2), 3, 2));
        let (before, counts) = ep.counted(thread.put(ep, 2, 3)).await;
        assert_eq!((before.expect("it lives"), counts.puts, counts.gets), (Some(2), 1, 0), "a call is one put");
        // Keys of three partitions at the same time.
        let (values, counts) = ep.counted(thread.multi_get(ep, &[2, 1501, 2900])).await;
        assert_eq!(values.expect("they live"), [Some(3), Some(7), Some(2900)]);
        assert_eq!((counts.gets, counts.round_trips), (2 * 3, 3));
        let updates: Vec<_> = (0..32).map(|key| RomeKvUpdate::Put(key, key)).collect();
        let (results, counts) = ep.counted(thread.apply(ep, &updates)).await;
        assert!(results.iter().all(Result::is_ok));
        assert_eq!(counts.puts, 2, "16 updates in a put");
        // Two looks at `stable` of the two other nodes.
        let (scan, counts) = ep.counted(thread.scan_at_one_instant(ep, ..)).await;
        assert_eq!((counts.gets, counts.puts, counts.round_trips), (4, 0, 2));
        drop(scan.expect("they live"));
        let (scan, counts) = ep.counted(thread.scan_at_one_instant(ep, ..1000)).await;
        assert_eq!((counts.gets, counts.puts, counts.round_trips), (1, 0, 1));
        drop(scan.expect("it lives"));
        // One leaf for one pair: `stable`, the leaf's active word, and the leaf with the active word of the next one.
        let (pair, counts) = ep.counted(thread.first(ep)).await;
        assert_eq!((pair.expect("it lives"), counts.gets, counts.round_trips), (Some((0, 0)), 4, 3));
        let (pair, counts) = ep.counted(thread.last(ep)).await;
        assert!(counts.gets <= 5 && counts.round_trips <= 4, "{counts:?}");
        assert_eq!(pair.expect("it lives"), Some((2999, 2999)));
    });
}

/// A partition that was read to its end is what `skip` leaves out, and not the one after it.
#[test]
fn skip_leaves_out_the_current_partition_and_not_the_next() {
    let (nodes, eps) = session(2);
    let stores = open(&nodes, &options([5], 4, 2, 100));
    let (mut thread, ep) = (stores[0].thread().expect("a seat"), &eps[0]);
    ep.block_on(async {
        thread.load(ep, (0..10).map(|key| (key, key))).await.expect("it is empty");
        let (mut scan, mut pairs) = (thread.scan(..), Vec::new());
        assert!(scan.next(ep, &mut pairs).await.expect("it lives"));
        assert_eq!(pairs.len(), 5);
        assert_eq!(scan.skip(), Some(0));
        while scan.next(ep, &mut pairs).await.expect("it lives") {}
        assert_eq!(pairs, (0..10).map(|key| (key, key)).collect::<Vec<_>>());
        assert_eq!(scan.skip(), None);
        drop(scan);
        let mut scan = thread.scan(..);
        assert!(scan.next(ep, &mut pairs).await.expect("it lives"));
        assert_eq!([scan.skip(), scan.skip(), scan.skip()], [Some(0), Some(1), None]);
    });
}

#[test]
fn the_wait_for_a_read_is_bounded() {
    let (nodes, _) = session(1);
    for hold in [std::time::Duration::ZERO, std::time::Duration::from_secs(10)] {
        let opened = Kv::open(&nodes[0], "store", RomeKvOptions { hold, ..options([5], 4, 2, 100) });
        let error = opened.expect_err("it is out of bounds");
        assert!(error.to_string().contains("`hold`"), "{error}");
    }
}

#[test]
fn a_full_partition_says_so_and_the_rest_goes_on() {
    let (nodes, eps) = session(2);
    let stores = open(&nodes, &options([1 << 32], 4, 2, 12));
    let (mut thread, ep) = (stores[1].thread().expect("a seat"), &eps[1]);
    // A quarter of it is for the last answer, also where other processes have the cores.
    ep.set_timeout(std::time::Duration::from_millis(1000));
    ep.block_on(async {
        let mut count = 0;
        let error = loop {
            match thread.insert(ep, count, count).await {
                Ok(is_new) => assert!(is_new),
                Err(error) => break error,
            }
            count += 1;
        };
        let full = error.custom_ref::<MemoryFull>().expect("it is full");
        assert_eq!(full.blocks, 12);
        assert!(count > 10, "{count}");
        assert_eq!(thread.range(ep, .., 1000).await.expect("it lives").len(), count as usize);
        assert!(thread.insert(ep, 1 << 32, 1).await.expect("it is here"));
    });
}

#[test]
fn a_store_that_was_closed_refuses_updates() {
    let (nodes, eps) = session(2);
    let mut stores = open(&nodes, &options([100], 4, 2, 50));
    let mut thread = stores[1].thread().expect("a seat");
    assert!(eps[1].block_on(thread.insert(&eps[1], 1, 1)).expect("it is open"));
    drop(stores.remove(0));
    // A call may be on its way before this node learns that, and ends when it does. The next one is refused.
    let mut errors = (2..4).map(|key| eps[1].block_on(thread.insert(&eps[1], key, 1)).expect_err("it is closed"));
    let error = errors.nth(1).expect("two");
    let lost = error.custom_ref::<RangeUnavailable>().expect("which keys");
    assert_eq!((lost.partition, lost.owner, lost.range.as_str()), (0, nodes[0].id(), "from 0 to before 100"));
    assert!(!lost.may_have_happened, "{error}");
    assert!(eps[1].block_on(thread.insert(&eps[1], 200, 1)).expect("it is here"));
}

#[test]
fn an_owner_that_has_left_takes_its_keys_along() {
    let (mut nodes, eps) = session(3);
    let mut stores = open(&nodes, &options([100, 200], 4, 2, 50));
    let (mut thread, ep) = (stores[0].thread().expect("a seat"), &eps[0]);
    ep.block_on(thread.load(ep, (0..300).step_by(10).map(|key| (key, key)))).expect("they are empty");
    drop(stores.remove(1));
    drop(nodes.remove(1));
    let of_it = eps.len();
    assert_eq!(of_it, 3);
    ep.block_on(async {
        let results =
            thread.apply(ep, &[RomeKvUpdate::Put(5, 5), RomeKvUpdate::Put(105, 5), RomeKvUpdate::Put(205, 5)]).await;
        assert!(results[0].is_ok() && results[2].is_ok());
        let error = results[1].clone().expect_err("its owner has left");
        assert_eq!(error.custom_ref::<RangeUnavailable>().expect("which keys").partition, 1);
        // Others were asked whether it was moved. They are not asked each time.
        let (again, counts) = ep.counted(thread.put(ep, 105, 5)).await;
        assert_eq!(
            again.expect_err("its owner has left").custom_ref::<RangeUnavailable>().expect("which keys").partition,
            1
        );
        assert_eq!(counts.gets, 0);
        let mut pairs = Vec::new();
        let mut scan = thread.scan(90..);
        let error = loop {
            match scan.next(ep, &mut pairs).await {
                Ok(is_more) => assert!(is_more),
                Err(error) => break error,
            }
        };
        assert_eq!(pairs, [(90, 90)]);
        assert_eq!(error.custom_ref::<RangeUnavailable>().expect("which keys").range, "from 100 to before 200");
        assert_eq!(scan.skip(), Some(1));
        while scan.next(ep, &mut pairs).await.expect("the others live") {}
        assert_eq!(pairs[..3], [(90, 90), (200, 200), (205, 5)]);
        drop(scan);
        let error = thread.scan_at_one_instant(ep, ..).await.map(drop).expect_err("its owner has left");
        assert_eq!(error.custom_ref::<RangeUnavailable>().expect("which keys").partition, 1);
    });
}
