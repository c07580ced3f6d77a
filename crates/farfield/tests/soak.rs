//! Memory stays as it is to one in a hundred, however long calls go on. It takes two seconds, or `FARFIELD_SOAK_SECONDS`: half of them, at
//! most a minute, to get going.

use std::alloc::System;
use std::time::{Duration, Instant};

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

use farfield::{ByteString, Node, SwarmStore, SwarmStoreOptions, local_session, on_each};

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
    let seconds = std::env::var("FARFIELD_SOAK_SECONDS").ok().map(|text| text.parse().expect("a number of seconds"));
    let whole = Duration::from_secs_f64(seconds.unwrap_or(2.0));
    let warm = (whole / 2).min(Duration::from_secs(60));
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
