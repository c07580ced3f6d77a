use core::time::Duration;
use std::collections::BTreeMap;
use std::ops::Bound;

use farfield_core::{ErrorKind, local_session_with};
use proptest::prelude::*;

use super::*;

fn options(pairs: usize, records: usize, blocks: usize) -> TreeOptions {
    TreeOptions { pairs, records, blocks, ..TreeOptions::default() }
}

fn open<K: TreeKey, V: Field>(nodes: &[Node], options: TreeOptions) -> Vec<RomeTree<K, V>> {
    let owner = nodes[0].id();
    on_each(nodes, |node| RomeTree::open(node, "tree", owner, options)).expect("all open it")
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Insert(u64, u64),
    Update(u64, u64),
    Put(u64, u64),
    Delete(u64),
    Range(u64, u64),
    Last,
}

fn call() -> impl Strategy<Value = Call> {
    let key = 0..60u64;
    prop_oneof![
        2 => (key.clone(), any::<u64>()).prop_map(|(key, value)| Call::Insert(key, value)),
        2 => (key.clone(), any::<u64>()).prop_map(|(key, value)| Call::Update(key, value)),
        2 => (key.clone(), any::<u64>()).prop_map(|(key, value)| Call::Put(key, value)),
        4 => key.clone().prop_map(Call::Delete),
        1 => (key.clone(), key).prop_map(|(start, end)| Call::Range(start.min(end), start.max(end))),
        1 => Just(Call::Last),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// One tree for the calls of all: it is emptied at the end, so that nodes are merged, too.
    #[test]
    fn a_tree_is_a_sorted_map(calls in prop::collection::vec(call(), 1..400)) {
        let (nodes, eps) = session(2);
        let trees = open::<u64, u64>(&nodes, options(4, 2, 400));
        let (mut partition, mut reader) = (trees[0].partition().unwrap(), trees[1].reader().unwrap());
        let mut map = BTreeMap::new();
        for call in calls {
            match call {
                Call::Insert(key, value) => {
                    let is_new = !map.contains_key(&key);
                    map.entry(key).or_insert(value);
                    prop_assert_eq!(partition.insert(&eps[0], key, value).unwrap(), is_new);
                }
                Call::Update(key, value) => {
                    let before = map.get_mut(&key).map(|now| *now = value);
                    prop_assert_eq!(partition.update(&eps[0], key, value).unwrap(), before.is_some());
                }
                Call::Put(key, value) => {
                    prop_assert_eq!(partition.put(&eps[0], key, value).unwrap(), map.insert(key, value));
                }
                Call::Delete(key) => {
                    prop_assert_eq!(partition.delete(&eps[0], &key).unwrap(), map.remove(&key));
                }
                Call::Range(start, end) => {
                    for range in [
                        (Bound::Included(start), Bound::Excluded(end)),
                        (Bound::Excluded(start), Bound::Included(end)),
                        (Bound::Unbounded, Bound::Included(start)),
                        (Bound::Included(end), Bound::Unbounded),
                    ] {
                        let is_empty = start == end;
                        let expected: Vec<_> = match range {
                            (Bound::Excluded(_), _) | (Bound::Included(_), Bound::Excluded(_)) if is_empty => Vec::new(),
                            range => map.range(range).map(|(key, value)| (*key, *value)).collect(),
                        };
                        prop_assert_eq!(&partition.range(&eps[0], range, usize::MAX).unwrap(), &expected);
                        prop_assert_eq!(&eps[1].block_on(reader.range(&eps[1], range, 1000)).unwrap(), &expected);
                        let back: Vec<_> = expected.into_iter().rev().collect();
                        prop_assert_eq!(&partition.range_back(&eps[0], range, usize::MAX).unwrap(), &back);
                        prop_assert_eq!(&eps[1].block_on(reader.range_back(&eps[1], range, 1000)).unwrap(), &back);
                    }
                    let keys: Vec<u64> = (start..end).collect();
                    let expected: Vec<_> = keys.iter().map(|key| map.get(key).copied()).collect();
                    prop_assert_eq!(&partition.multi_get(&keys), &expected);
                    prop_assert_eq!(&eps[1].block_on(reader.multi_get(&eps[1], &keys)).unwrap(), &expected);
                    for (key, value) in keys.iter().zip(expected) {
                        prop_assert_eq!(partition.get(key), value);
                        prop_assert_eq!(eps[1].block_on(reader.get(&eps[1], key)).unwrap(), value);
                    }
                }
                Call::Last => {
                    let (first, last) = (map.first_key_value(), map.last_key_value());
                    let pair = |pair: Option<(&u64, &u64)>| pair.map(|(key, value)| (*key, *value));
                    prop_assert_eq!(partition.first(&eps[0]).unwrap(), pair(first));
                    prop_assert_eq!(eps[1].block_on(reader.first(&eps[1])).unwrap(), pair(first));
                    prop_assert_eq!(eps[1].block_on(reader.last(&eps[1])).unwrap(), pair(last));
                }
            }
        }
        while let Some((key, value)) = map.pop_last() {
            prop_assert_eq!(partition.delete(&eps[0], &key).unwrap(), Some(value));
        }
        prop_assert_eq!(eps[1].block_on(reader.range(&eps[1], .., 10)).unwrap(), []);
    }
}

#[test]
fn memory_is_used_again_and_nodes_are_merged() {
    let (nodes, eps) = session(2);
    let tree = open::<u64, u64>(&nodes, options(4, 2, 200)).remove(0);
    let mut partition = tree.partition().expect("a seat");
    for round in 0..20 {
        // Other keys each time, so that the leaves of the round before get none.
        let first = round * 100;
        for key in 0..100 {
            assert!(partition.insert(&eps[0], first + key * 7 % 100, round).expect("there is room"), "round {round}");
        }
        for key in 0..100 {
            assert_eq!(partition.delete(&eps[0], &(first + key)).expect("there is room"), Some(round));
        }
        let in_use = in_use(&tree);
        assert!(in_use <= 10, "{in_use} blocks of an empty tree after round {round}");
    }
}

/// Blocks of the nodes of a tree, and of those that its writers keep at hand.
fn in_use<K: TreeKey, V: Field>(tree: &RomeTree<K, V>) -> usize {
    let Memory { blocks, free, waiting, .. } = tree.memory().expect("it is the owner");
    blocks - free - waiting
}

/// When keys only rise, or only fall, a leaf with deleted keys gets no more of them: it has to be merged all the same.
/// Such leaves stayed for ever once, one for each fifty inserts.
#[test]
fn a_window_that_slides_keeps_its_memory() {
    const WINDOW: u64 = 1000;
    for is_falling in [false, true] {
        let (nodes, eps) = session(2);
        let trees = open::<u64, u64>(&nodes, options(64, 24, 300));
        let (mut partition, mut reader) = (trees[0].partition().expect("a seat"), trees[1].reader().expect("a seat"));
        let name = |key: u64| if is_falling { u64::MAX - key } else { key };
        for key in 0..60_000 {
            assert!(partition.insert(&eps[0], name(key), key).expect("there is room"));
            if let Some(old) = key.checked_sub(WINDOW) {
                assert_eq!(partition.delete(&eps[0], &name(old)).expect("there is room"), Some(old));
            }
            if key % 500 == 499 {
                let in_use = in_use(&trees[0]);
                assert!(in_use <= 60, "{in_use} blocks for {WINDOW} pairs after {key} inserts");
                let (first, counts) = eps[1].block_on(eps[1].counted(reader.range(&eps[1], .., 3)));
                let mut expected: Vec<u64> = (key.saturating_sub(WINDOW - 1)..=key).map(name).collect();
                expected.sort_unstable();
                let first: Vec<u64> = first.expect("the owner lives").into_iter().map(|pair| pair.0).collect();
                assert_eq!(first, expected[..3], "after {key} inserts");
                assert!(counts.gets < 40, "{counts:?} for the first 3 pairs");
            }
        }
    }
}

/// One key of each leaf stays: neighbours that have few pairs become one, though neither is empty.
#[test]
fn leaves_with_few_pairs_are_merged() {
    let (nodes, eps) = session(1);
    let tree = open::<u64, u64>(&nodes, options(64, 24, 4000)).remove(0);
    let mut partition = tree.partition().expect("a seat");
    partition.load(&eps[0], (0..48_000).map(|key| (key, key))).expect("it is empty");
    assert!(in_use(&tree) > 1000);
    for key in (0..48_000).filter(|key| key % 48 != 0) {
        partition.delete(&eps[0], &key).expect("there is room");
    }
    // 1000 pairs: an eighth of a node's 64 at least.
    let in_use = in_use(&tree);
    assert!(in_use <= 1000 / 8 + 10, "{in_use} blocks");
    assert_eq!(partition.range(&eps[0], .., usize::MAX).expect("no stop").len(), 1000);
}

/// The tombstones of its leaves are given up, too, by a tree that does not grow again.
#[test]
fn a_tree_that_shrinks_gives_its_memory_back() {
    let (nodes, eps) = session(2);
    let trees = open::<u64, u64>(&nodes, options(4, 2, 400));
    let (mut partition, mut reader) = (trees[0].partition().expect("a seat"), trees[1].reader().expect("a seat"));
    for key in 0..600 {
        partition.insert(&eps[0], key, key).expect("there is room");
    }
    assert_eq!(eps[1].block_on(reader.range(&eps[1], .., 1000)).expect("the owner lives").len(), 600);
    for key in 1..600 {
        partition.delete(&eps[0], &key).expect("there is room");
    }
    // Memory is looked for twice at least.
    for round in 0..3000 {
        partition.put(&eps[0], 0, round).expect("there is room");
    }
    let in_use = in_use(&trees[0]);
    assert!(in_use <= 10, "{in_use} blocks for a pair");
    // A scan keeps more states of the one leaf than there would be room for beside the tombstones.
    eps[0].set_timeout(Duration::from_secs(1));
    let mut scan = eps[1].block_on(reader.scan(&eps[1], ..)).expect("the owner lives");
    for round in 0..900 {
        partition.put(&eps[0], 0, round).expect("there is room");
    }
    let mut pairs = Vec::new();
    while eps[1].block_on(scan.next(&eps[1], &mut pairs)).expect("it is in time") {}
    assert_eq!(pairs, [(0, 2999)]);
}

#[test]
fn strings_are_keys_and_values() {
    let (nodes, eps) = session(2);
    let trees = open::<Bytes<2>, Bytes<1>>(&nodes, options(5, 3, 500));
    let mut partition = trees[0].partition().expect("a seat");
    let text = |text: &str| Bytes::<1>::new(text.as_bytes()).expect("it is short");
    let name = |at: u64| Bytes::<2>::new(format!("user:{at}").as_bytes()).expect("it is short");
    for at in 0..300 {
        partition.put(&eps[0], name(at), text(&at.to_string())).expect("there is room");
    }
    let mut reader = trees[1].reader().expect("a seat");
    assert_eq!(eps[1].block_on(reader.get(&eps[1], &name(77))).expect("it lives"), Some(text("77")));
    let some = eps[1].block_on(reader.range(&eps[1], name(10)..name(11), 1000)).expect("it lives");
    let expected = ["10", "100", "101", "102", "103", "104", "105", "106", "107", "108", "109"];
    assert!(some.iter().map(|pair| pair.1).eq(expected.map(text)), "{some:?}");
}

#[test]
fn threads_change_a_tree_at_the_same_time() {
    let (nodes, eps) = session(2);
    let trees = open::<u64, u64>(&nodes, options(6, 3, 3000));
    let threads: Vec<_> = (0..3u64)
        .map(|me| {
            let mut partition = trees[0].partition().expect("a seat");
            let change = move |ep: Endpoint| {
                let mut own = BTreeMap::new();
                for round in 0..6000u64 {
                    let key = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 55;
                    let key = key * 3 + me;
                    if round % 3 == 2 {
                        assert_eq!(partition.delete(&ep, &key).expect("there is room"), own.remove(&key));
                    } else {
                        assert_eq!(partition.put(&ep, key, round).expect("there is room"), own.insert(key, round));
                    }
                    assert_eq!(partition.get(&key), own.get(&key).copied());
                }
                let all = partition.range(&ep, .., usize::MAX).expect("no stop");
                let mine = all.into_iter().filter(|pair| pair.0 % 3 == me);
                assert!(mine.eq(own));
            };
            nodes[0].spawn("changes", change).expect("a thread")
        })
        .collect();
    let mut reader = trees[1].reader().expect("a seat");
    for _ in 0..300 {
        let all = eps[1].block_on(reader.range(&eps[1], .., usize::MAX)).expect("the owner lives");
        assert!(all.is_sorted_by(|one, next| one.0 < next.0));
        let mut back = eps[1].block_on(reader.range_back(&eps[1], 300.., usize::MAX)).expect("the owner lives");
        back.reverse();
        assert!(back.is_sorted_by(|one, next| one.0 < next.0));
    }
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

#[test]
fn a_scan_is_of_one_moment() {
    let (nodes, eps) = session(2);
    let trees = open::<u64, u64>(&nodes, options(8, 4, 4000));
    let (mut partition, mut reader) = (trees[0].partition().expect("a seat"), trees[1].reader().expect("a seat"));
    partition.load(&eps[0], (0..500).map(|key| (key * 2, 0))).expect("it is empty");
    eps[1].block_on(async {
        let (mut pairs, mut first) = (Vec::new(), true);
        let mut scan = reader.scan(&eps[1], ..).await.expect("the owner lives");
        while first || scan.next(&eps[1], &mut pairs).await.expect("it is in time") {
            first = false;
            for key in 0..1000 {
                partition.put(&eps[0], key, 1).expect("there is room");
            }
        }
        assert!(pairs.into_iter().eq((0..500).map(|key| (key * 2, 0))));
    });
    assert_eq!(partition.range(&eps[0], .., usize::MAX).expect("no stop").len(), 1000);
}

#[test]
fn round_trips_are_counted() {
    let (nodes, eps) = session(2);
    let trees = open::<u64, u64>(&nodes, options(64, 24, 4000));
    let (mut partition, mut reader) = (trees[0].partition().expect("a seat"), trees[1].reader().expect("a seat"));
    partition.load(&eps[0], (0..100_000).map(|key| (key, key))).expect("it is empty");
    let before = eps[0].counts();
    assert_eq!(partition.get(&77), Some(77));
    partition.put(&eps[0], 77, 78).expect("there is room");
    assert_eq!((eps[0].counts() - before).posted(), 0, "the owner uses no operation");
    assert_eq!(eps[1].block_on(reader.get(&eps[1], &700)).expect("it lives"), Some(700));
    let (value, counts) = eps[1].block_on(eps[1].counted(reader.get(&eps[1], &701)));
    assert_eq!((value.expect("it lives"), counts.gets, counts.round_trips), (Some(701), 3, 2));
    let keys: Vec<u64> = (0..20).map(|at| 690 + at).collect();
    let (values, counts) = eps[1].block_on(eps[1].counted(reader.multi_get(&eps[1], &keys)));
    assert_eq!((values.expect("it lives")[3], counts.round_trips), (Some(693), 3));
    let (all, counts) = eps[1].block_on(eps[1].counted(reader.range(&eps[1], .., 100_000)));
    assert_eq!(all.expect("it lives").len(), 100_000);
    // Two gets for each leaf of 48 pairs, and the inner nodes once.
    assert!(counts.gets < 2 * 100_000 / 48 + 200, "{counts:?}");
    assert!(counts.round_trips < 150, "{} round trips for 100,000 pairs", counts.round_trips);
}

/// All leaves were read at once, and their buffers were more than the pool of an endpoint has.
#[test]
fn many_keys_are_read_with_few_buffers() {
    let nodes = local_session_with(2, |builder| builder.pool_bytes_max(1 << 16)).expect("a session");
    let eps: Vec<Endpoint> = nodes.iter().map(|node| node.endpoint().expect("an endpoint")).collect();
    let trees = open::<u64, u64>(&nodes, options(64, 24, 1000));
    let (mut partition, mut reader) = (trees[0].partition().expect("a seat"), trees[1].reader().expect("a seat"));
    partition.load(&eps[0], (0..20_000).map(|key| (key, key))).expect("it is empty");
    let keys: Vec<u64> = (0..20_000).step_by(10).collect();
    // The inner nodes are known the second time.
    for _ in 0..2 {
        let values = eps[1].block_on(reader.multi_get(&eps[1], &keys)).expect("they fit");
        assert!(values.into_iter().eq(keys.iter().copied().map(Some)));
    }
    let all = eps[1].block_on(reader.range(&eps[1], .., usize::MAX)).expect("they fit");
    assert!(all.into_iter().eq((0..20_000).map(|key| (key, key))));
    let mut back = eps[1].block_on(reader.range_back(&eps[1], .., usize::MAX)).expect("they fit");
    back.reverse();
    assert_eq!(back.len(), 20_000);
}

#[test]
fn options_that_cannot_be_are_refused() {
    let node = Node::builder().start().expect("a node");
    let good = TreeOptions::default();
    for bad in [
        TreeOptions { lease: Duration::MAX, ..good },
        TreeOptions { lease: Duration::ZERO, ..good },
        TreeOptions { seats: usize::MAX, ..good },
        TreeOptions { seats: 0, ..good },
        TreeOptions { pairs: usize::MAX, records: usize::MAX - 1, ..good },
        TreeOptions { pairs: 2, records: 1, ..good },
        TreeOptions { blocks: usize::MAX, ..good },
        TreeOptions { blocks: 7, ..good },
    ] {
        let error = RomeTree::<u64, u64>::open(&node, "tree", node.id(), bad).map(drop).expect_err("it cannot be");
        assert!(matches!(error.kind(), ErrorKind::Config { .. }), "{bad:?}: {error}");
    }
    let good = ObjectOptions::default();
    for bad in [
        ObjectOptions { lease: Duration::MAX, ..good },
        ObjectOptions { seats: usize::MAX, ..good },
        ObjectOptions { bytes: usize::MAX, log_bytes: usize::MAX, ..good },
        ObjectOptions { bytes: 0, ..good },
        ObjectOptions { blocks: 1, ..good },
    ] {
        let error = RomeObject::open(&node, "object", node.id(), bad).map(drop).expect_err("it cannot be");
        assert!(matches!(error.kind(), ErrorKind::Config { .. }), "{bad:?}: {error}");
    }
}

#[test]
fn pairs_out_of_order_are_not_loaded() {
    let (nodes, eps) = session(1);
    let tree = open::<u64, u64>(&nodes, options(4, 2, 100)).remove(0);
    let mut partition = tree.partition().expect("a seat");
    let before = tree.memory().expect("it is the owner");
    assert!(partition.load(&eps[0], (0..50).chain([49]).map(|key| (key, 0))).is_err());
    assert!(partition.load(&eps[0], (0..1000).map(|key| (key, 0))).is_err(), "there is no room");
    assert_eq!(tree.memory().expect("it is the owner"), before);
    for _ in 0..2 {
        for key in 0..100 {
            partition.put(&eps[0], key, key).expect("there is room");
        }
        assert_eq!(partition.range(&eps[0], .., 1000).expect("no stop").len(), 100);
        for key in 0..100 {
            partition.delete(&eps[0], &key).expect("there is room");
        }
    }
}

/// The slots of nodes that a reader remembers are those of other nodes again and again.
#[test]
fn a_reader_with_old_nodes_reads_current_values() {
    let (nodes, eps) = session(2);
    let trees = open::<u64, u64>(&nodes, options(4, 2, 120));
    let mut partition = trees[0].partition().expect("a seat");
    let mut readers: Vec<_> = (0..4).map(|_| trees[1].reader().expect("a seat")).collect();
    let (mut map, mut random) = (BTreeMap::new(), 7u64);
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    for round in 0..400 {
        // Much is deleted, and some other part grows.
        let (low, len) = (next(180), 20 + next(60));
        for key in 0..240 {
            let is_in = (low..low + len).contains(&key);
            if is_in && map.insert(key, round).is_none() {
                partition.put(&eps[0], key, round).expect("there is room");
            } else if is_in {
                assert!(partition.update(&eps[0], key, round).expect("there is room"));
            } else if next(8) != 0 && map.remove(&key).is_some() {
                partition.delete(&eps[0], &key).expect("there is room");
            }
        }
        // One reader often reads, and another one seldom.
        for (at, reader) in readers.iter_mut().enumerate().filter(|(at, _)| round % [1, 2, 5, 11][*at] == 0) {
            let key = next(240);
            let pairs = |pairs: Vec<(u64, u64)>| pairs;
            let expected = pairs(map.range(..=key).rev().map(|(key, value)| (*key, *value)).take(9).collect());
            let back = eps[1].block_on(reader.range_back(&eps[1], ..=key, 9)).expect("the owner lives");
            assert_eq!(back, expected, "round {round}, reader {at}, back from {key}");
            let expected = pairs(map.range(key..).map(|(key, value)| (*key, *value)).take(9).collect());
            let ahead = eps[1].block_on(reader.range(&eps[1], key.., 9)).expect("the owner lives");
            assert_eq!(ahead, expected, "round {round}, reader {at}, from {key}");
            let key = next(240);
            assert_eq!(eps[1].block_on(reader.get(&eps[1], &key)).expect("the owner lives"), map.get(&key).copied());
            let last = eps[1].block_on(reader.last(&eps[1])).expect("the owner lives");
            assert_eq!(last, map.last_key_value().map(|(key, value)| (*key, *value)));
        }
    }
}

#[test]
fn a_reader_with_old_nodes_takes_few_steps() {
    let (nodes, eps) = session(2);
    let trees = open::<u64, u64>(&nodes, options(16, 4, 4000));
    let (mut partition, mut reader) = (trees[0].partition().expect("a seat"), trees[1].reader().expect("a seat"));
    for end in [40, 20_000] {
        let start = if end == 40 { 0 } else { 40 };
        for key in start..end {
            assert!(partition.insert(&eps[0], key, key).expect("there is room"));
        }
        let (last, counts) = eps[1].block_on(eps[1].counted(reader.last(&eps[1])));
        assert_eq!(last.expect("the owner lives"), Some((end - 1, end - 1)));
        assert!(counts.round_trips < 40, "{} round trips for the last of {end} pairs", counts.round_trips);
    }
    // Its root names one leaf for most of them.
    let mut reader = trees[1].reader().expect("a seat");
    for key in 0..19_960 {
        partition.delete(&eps[0], &key).expect("there is room");
    }
    assert_eq!(eps[1].block_on(reader.range(&eps[1], .., 1000)).expect("the owner lives").len(), 40);
    for key in 0..19_960 {
        partition.put(&eps[0], key, key).expect("there is room");
    }
    let (all, counts) = eps[1].block_on(eps[1].counted(reader.range(&eps[1], .., 20_000)));
    assert_eq!(all.expect("the owner lives").len(), 20_000);
    assert!(counts.round_trips < 400, "{} round trips for 20,000 pairs", counts.round_trips);
}

#[test]
fn a_local_scan_that_has_ended_needs_no_memory() {
    let (nodes, eps) = session(1);
    let tree = open::<u64, u64>(&nodes, options(4, 2, 100)).remove(0);
    let mut partition = tree.partition().expect("a seat");
    let is_announced = || tree.opened.seats.each().any(|seat| seat.version().is_some());
    let scan = partition.scan(&eps[0], ..);
    assert!(is_announced());
    drop(scan);
    assert!(!is_announced(), "the owner waits for no reader");
}
