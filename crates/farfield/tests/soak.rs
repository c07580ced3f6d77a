//! Memory stays as it is to one in a hundred, however long calls go on. Each test takes two seconds, or
//! `FARFIELD_SOAK_SECONDS`: half of them, at most a minute, to get going. One runs at a time, as all memory of the
//! process is counted.

use std::alloc::System;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

use farfield::{
    ByteString, Node, RomeKv, RomeKvOptions, RomeKvThread, SwarmStore, SwarmStoreOptions, fabric::Endpoint,
    local_session, on_each,
};

/// Keys, of which about half are there at a time.
const KEYS: u64 = 48;
const VALUE_BYTES: std::ops::RangeInclusive<usize> = 64..=8192;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Bytes that this process has allocated and not freed, and those that its nodes lend.
fn in_use(nodes: &[Node]) -> u64 {
    let stats = ALLOCATOR.stats();
    let objects = nodes.iter().flat_map(|node| node.metrics().objects);
    (stats.bytes_allocated - stats.bytes_deallocated) as u64 + objects.map(|object| object.memory_bytes).sum::<u64>()
}

/// How long a test runs, and how long it takes to get going.
fn times() -> (Duration, Duration) {
    let seconds = std::env::var("FARFIELD_SOAK_SECONDS").ok().map(|text| text.parse().expect("a number of seconds"));
    let whole = Duration::from_secs_f64(seconds.unwrap_or(2.0));
    (whole, (whole / 2).min(Duration::from_secs(60)))
}

/// Until it is dropped no other test runs.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Numbers that look random (xorshift).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

/// Updates, deletes and inserts: buffers, records and registers are used again and again.
#[test]
fn a_replicated_store_keeps_its_memory() {
    let (_alone, (whole, warm)) = (alone(), times());
    let nodes = local_session(3).expect("a session");
    let mut options = SwarmStoreOptions::default();
    (options.keys, options.value_bytes_max, options.cached_keys) = (KEYS as usize, *VALUE_BYTES.end(), 16);
    let open = |node: &Node| SwarmStore::<u64, ByteString>::open(node, "store", options.clone());
    let (nodes, stores) = (&nodes[..], on_each(&nodes, open).expect("it opens"));
    let start = Instant::now();
    let calls: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = nodes
            .iter()
            .zip(&stores)
            .enumerate()
            .map(|(number, (node, store))| {
                scope.spawn(move || {
                    let endpoint = node.endpoint().expect("an endpoint");
                    let client = store.client(&endpoint).expect("a client");
                    let mut numbers = Numbers(7 + number as u64);
                    let (mut calls, mut after_warming) = (0, 0);
                    while start.elapsed() < whole {
                        let key = numbers.next(KEYS);
                        let bytes = *VALUE_BYTES.start()
                            + numbers.next((VALUE_BYTES.end() - VALUE_BYTES.start()) as u64) as usize;
                        match numbers.next(10) {
                            0 => client.delete_blocking(&key).expect("no call fails"),
                            1..3 => drop(client.get_blocking(&key).expect("no call fails")),
                            _ => client.upsert_blocking(&key, &vec![calls as u8; bytes].into()).expect("no call fails"),
                        }
                        calls += 1;
                        if after_warming == 0 && start.elapsed() >= warm {
                            after_warming = in_use(nodes);
                        }
                    }
                    let now = in_use(nodes);
                    assert!(
                        now <= after_warming + after_warming / 100,
                        "{after_warming} bytes after {warm:?}, and {now} after {whole:?} and {calls} calls"
                    );
                    calls
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).sum()
    });
    assert!(calls > 100, "{calls} calls");
}

/// Bits of a key below its partition.
const PARTITION_SHIFT: u32 = 40;
/// Keys of a thread in a partition.
const WINDOW: usize = 300;

/// Values: so large that the memory of the trees is most of all, and there are few enough blocks to be used again from
/// the beginning on.
const WORDS: usize = 32;
type Row = [u64; WORDS];

/// The keys of one thread in one partition, which rise: the least of them are deleted.
#[derive(Default)]
struct Window {
    next: u64,
    keys: VecDeque<u64>,
}

/// One thread of a store, and what it has put there.
struct Client {
    number: u64,
    thread: RomeKvThread<u64, Row>,
    windows: [Window; 3],
    numbers: Numbers,
    calls: u64,
}

impl Client {
    /// A change of a partition, of this node's or not, and now and then a scan of all at one instant.
    async fn call(&mut self, ep: &Endpoint) -> farfield::Result<()> {
        self.calls += 1;
        let partition = match self.numbers.next(4) {
            0 => self.numbers.next(3),
            _ => self.number,
        };
        let Window { next, keys } = &mut self.windows[partition as usize];
        match self.numbers.next(20) {
            0 => return self.scan(ep).await,
            1..4 => {
                if let Some(key) = keys.get(self.numbers.next(WINDOW as u64) as usize) {
                    assert_eq!(self.thread.get(ep, key).await?, Some([*key; WORDS]));
                }
            }
            4..8 => {
                if let Some(key) = keys.get(self.numbers.next(WINDOW as u64) as usize) {
                    assert_eq!(self.thread.put(ep, *key, [*key; WORDS]).await?, Some([*key; WORDS]));
                }
            }
            _ => {
                let key = partition << PARTITION_SHIFT | *next << 2 | self.number;
                *next += 1 + self.numbers.next(3);
                keys.push_back(key);
                assert_eq!(self.thread.put(ep, key, [key; WORDS]).await?, None);
                if keys.len() > WINDOW {
                    let key = keys.pop_front().expect("there are some");
                    assert_eq!(self.thread.delete(ep, &key).await?, Some([key; WORDS]));
                }
            }
        }
        Ok(())
    }

    async fn scan(&mut self, ep: &Endpoint) -> farfield::Result<()> {
        let Client { number, thread, windows, .. } = self;
        let mut scan = thread.scan_at_one_instant(ep, ..).await?;
        let (mut pairs, mut own) = (Vec::new(), Vec::new());
        let mut is_more = true;
        while is_more {
            is_more = scan.next(ep, &mut pairs).await?;
            own.extend(pairs.drain(..).map(|pair| pair.0).filter(|key| key & 3 == *number));
        }
        assert!(own.iter().eq(windows.iter().flat_map(|window| &window.keys)), "the keys of thread {number}");
        Ok(())
    }
}

/// Windows of keys that slide: leaves are split and emptied, and blocks are used again beside scans of all nodes.
#[test]
fn a_sorted_map_keeps_its_memory() {
    let (_alone, (whole, warm)) = (alone(), times());
    let nodes = local_session(3).expect("a session");
    let mut options = RomeKvOptions::new([1 << PARTITION_SHIFT, 2 << PARTITION_SHIFT]);
    (options.tree.pairs, options.tree.records, options.tree.blocks) = (16, 6, 500);
    // A busy machine may not run a thread for seconds, and a scan would expire.
    options.tree.lease = Duration::from_secs(60);
    let open = |node: &Node| RomeKv::<u64, Row>::open(node, "store", options.clone());
    let (nodes, stores) = (&nodes[..], on_each(&nodes, open).expect("it opens"));
    let (start, all, mut in_use_at) = (Instant::now(), &Barrier::new(nodes.len() + 1), [0; 2]);
    let calls: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = nodes
            .iter()
            .zip(&stores)
            .zip(0..)
            .map(|((node, store), number)| {
                scope.spawn(move || {
                    let endpoint = node.endpoint().expect("an endpoint");
                    let thread = store.thread().expect("a part");
                    let (windows, numbers) = (Default::default(), Numbers(7 + number));
                    let mut client = Client { number, thread, windows, numbers, calls: 0 };
                    let mut failed = None;
                    for until in [warm, whole] {
                        let play = || {
                            while start.elapsed() < until {
                                endpoint.block_on(client.call(&endpoint)).expect("no call fails");
                            }
                        };
                        if failed.is_none() {
                            failed = catch_unwind(AssertUnwindSafe(play)).err();
                        }
                        // No thread runs while the memory is counted.
                        all.wait();
                        all.wait();
                    }
                    failed.map_or(client.calls, |panic| resume_unwind(panic))
                })
            })
            .collect();
        for in_use_now in &mut in_use_at {
            all.wait();
            *in_use_now = in_use(nodes);
            all.wait();
        }
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).sum()
    });
    let [before, after] = in_use_at;
    // In a short run on a busy machine the windows are hardly full when the first count is taken.
    assert!(
        after <= before + before / 20,
        "{before} bytes after {warm:?}, and {after} after {whole:?} and {calls} calls"
    );
    assert!(calls > 100, "{calls} calls");
}
