//! Remote atomics: atomic among themselves, from any node and thread.

use farfield_fabric::{Endpoint, GroupKey, RemotePtr};

use crate::harness::{Harness, guarded, threads};

/// Every addition counts once, from threads of several nodes and several threads of one; each old value is seen once.
pub(crate) fn fetch_and_adds_add_up(harness: &Harness) {
    let nodes = harness.session(2);
    let each = harness.rounds(1_000) as u64;
    for home in &nodes {
        let counter = home.region(8);
        let word = counter.remote::<u64>(0);
        let add = |node: usize| {
            let endpoint = nodes[node].endpoint();
            (0..each).map(|_| endpoint.faa(word, 1).wait().unwrap()).collect::<Vec<_>>()
        };
        let mut seen = threads([(&nodes[0], &|| add(0)), (&nodes[0], &|| add(0)), (&nodes[1], &|| add(1))]).concat();
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..3 * each), "each old value comes once");
        assert_eq!(counter.word(0).load(), 3 * each);
    }
}

/// A lock made of compare-and-swap: the word that it guards (read by get, written by put) loses no change. The release
/// is a fetch-and-add behind the put, which it flushes.
pub(crate) fn compare_and_swap_locks_exclude(harness: &Harness) {
    let nodes = harness.session(2);
    let each = harness.rounds(500) as u64;
    let (lock, data) = (nodes[0].region(8), nodes[0].region(8));
    let increment = |node: usize| {
        let (endpoint, lock, data) = (nodes[node].endpoint(), lock.remote::<u64>(0), data.remote::<u64>(0));
        for _ in 0..each {
            while endpoint.cas(lock, 0, 1).wait().unwrap() != 0 {
                std::thread::yield_now();
            }
            let value = endpoint.get(data).wait().unwrap();
            drop(endpoint.put_value(data, value + 1));
            assert_eq!(endpoint.faa(lock, u64::MAX).wait().unwrap(), 1, "the lock was held by one");
        }
    };
    threads([(&nodes[0], &|| increment(0)), (&nodes[1], &|| increment(1))]);
    assert_eq!((lock.word(0).load(), data.word(0).load()), (0, 2 * each));
}

/// The found value is returned; a compare that fails writes nothing, to the word and beside it.
pub(crate) fn compare_and_swap_tells_and_fails_without_writing(harness: &Harness) {
    let nodes = harness.session(2);
    let region = nodes[1].region(24);
    let check = |endpoint: &Endpoint, word: RemotePtr<u64>| {
        for (at, word) in region.words(0, 3).iter().enumerate() {
            word.store(10 + at as u64);
        }
        assert_eq!(endpoint.cas(word, 11, 50).wait().unwrap(), 11);
        assert_eq!(endpoint.cas(word, 11, 60).wait().unwrap(), 50);
        assert_eq!(endpoint.cas(word, u64::MAX, 60).wait().unwrap(), 50);
        assert_eq!(endpoint.cas(word, 50, 50).wait().unwrap(), 50);
        assert_eq!([0, 8, 16].map(|at| region.word(at).load()), [10, 50, 12]);
    };
    check(&nodes[0].endpoint(), region.remote(8));
    check(&nodes[1].endpoint(), region.remote(8));
}

/// Additions wrap, and touch one word only.
pub(crate) fn fetch_and_add_wraps(harness: &Harness) {
    let nodes = harness.session(2);
    let region = nodes[1].region(24);
    region.word(8).store(u64::MAX - 1);
    let endpoint = nodes[0].endpoint();
    let word = region.remote::<u64>(8);
    assert_eq!(endpoint.faa(word, 3).wait().unwrap(), u64::MAX - 1);
    assert_eq!(endpoint.faa(word, u64::MAX).wait().unwrap(), 1);
    assert_eq!(endpoint.faa(word, 0).wait().unwrap(), 0);
    assert_eq!([0, 8, 16].map(|at| region.word(at).load()), [0, 0, 0]);
}

/// The two kinds are atomic with each other: increments by either are all counted.
pub(crate) fn fetch_and_add_and_compare_and_swap_exclude_each_other(harness: &Harness) {
    let nodes = harness.session(2);
    let each = harness.rounds(500) as u64;
    let counter = nodes[1].region(8);
    let word = counter.remote::<u64>(0);
    let add = || {
        let endpoint = nodes[0].endpoint();
        for _ in 0..each {
            endpoint.faa(word, 1).wait().unwrap();
        }
    };
    let swap = || {
        let endpoint = nodes[1].endpoint();
        for _ in 0..each {
            let mut found = endpoint.get(word).wait().unwrap();
            loop {
                let now = endpoint.cas(word, found, found + 1).wait().unwrap();
                if now == found {
                    break;
                }
                found = now;
            }
        }
    };
    threads([(&nodes[0], &add), (&nodes[1], &swap)]);
    assert_eq!(counter.word(0).load(), 2 * each);
}

/// Words that operations alone work on, of several groups: each node does, the own one included, and each operation.
pub(crate) fn words_begin_with_a_pattern_and_are_worked_on_by_all(harness: &Harness) {
    let nodes = harness.session(2);
    let (own_group, _) = guarded(&nodes, 0, 8);
    for group in [GroupKey::DATA, own_group] {
        let words = nodes[0].fabric.alloc_words(group, 20, &[5, 0, u64::MAX]).unwrap();
        assert_eq!((words.count(), words.bytes()), (20, 160));
        let zeros = nodes[0].fabric.alloc_words(group, 1, &[]).unwrap();
        assert_eq!(nodes[1].endpoint().get(zeros.remote(0)).wait().unwrap(), 0);
        for node in &nodes {
            let endpoint = node.endpoint();
            let all: Vec<u64> = (0..20).map(|at| endpoint.get(words.remote(at)).wait().unwrap()).collect();
            let pattern = [5, 0, u64::MAX].into_iter().cycle().take(20).collect::<Vec<_>>();
            assert_eq!(all, pattern);
            assert_eq!(endpoint.faa(words.remote(2), 2).wait().unwrap(), u64::MAX);
            assert_eq!(endpoint.cas(words.remote(2), 1, 7).wait().unwrap(), 1);
            endpoint.put_value(words.remote(3).cast(), [6_u64, 1]).wait().unwrap();
            assert_eq!([2, 3, 4].map(|at| endpoint.get(words.remote(at)).wait().unwrap()), [7, 6, 1]);
            endpoint.put_value(words.remote(2).cast(), [u64::MAX, 5, 0]).wait().unwrap();
        }
    }
}
