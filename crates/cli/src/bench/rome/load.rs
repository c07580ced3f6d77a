//! What the threads of a run do: those of the owner, and those of other nodes, which scan.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::ValueEnum;
use farfield::Endpoint;
use farfield::rome::{SnapshotExpired, TreeReader};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::maps::{Body, Map};
use crate::bench::threads::ThreadResult;
use crate::bench::workload::{KeyChooser, scale};

/// What the threads of the owner do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Mix {
    /// YCSB's workload B: 95 % reads, 5 % updates
    B,
    /// YCSB's workload C: only reads
    C,
    /// YCSB's workload E: 95 % scans of up to 100 pairs, 5 % inserts
    E,
    /// Only updates
    U,
}

impl Mix {
    /// Of 100 calls, those that change a pair.
    fn writes(self) -> u64 {
        match self {
            Mix::B | Mix::E => 5,
            Mix::C => 0,
            Mix::U => 100,
        }
    }
}

/// The most pairs that a scan of workload E reads.
const SCAN_MAX: u64 = 100;

/// The key of a number. Odd keys are not there at first.
pub(super) fn key(number: u64) -> u64 {
    2 * number
}

/// What a thread has done.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Done {
    /// Of another node, and no thread of the owner.
    pub(super) is_other: bool,
    pub(super) result: ThreadResult,
    /// For how long a core worked for it.
    pub(super) core_seconds: f64,
    /// Pairs that scans have read.
    pub(super) pairs: u64,
    /// Scans that had to begin again.
    pub(super) retries: u64,
    /// Changes of all the owner's threads that had to wait for readers.
    pub(super) waits: u64,
}

impl Done {
    pub(super) fn new(is_other: bool) -> Done {
        Done { is_other, result: ThreadResult::new(), core_seconds: 0.0, pairs: 0, retries: 0, waits: 0 }
    }
}

/// For how long a core has worked for this thread.
fn core_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// One call in so many is timed: to read the clock takes as long as a call.
const TIMED: u64 = 16;

/// A thread of the owner.
pub(super) struct Worker<'a> {
    pub(super) endpoint: &'a Endpoint,
    pub(super) mix: Mix,
    pub(super) chooser: &'a KeyChooser,
    pub(super) keys: u64,
    pub(super) number: u64,
    pub(super) duration: Duration,
}

/// Unrelated draws for each number.
fn draws(number: u64) -> SmallRng {
    SmallRng::seed_from_u64(number)
}

impl Body for Worker<'_> {
    type Output = Done;

    fn run(&self, map: &mut impl Map) -> Result<Done> {
        let Worker { mix, chooser, keys, .. } = *self;
        let mut rng = draws(self.number);
        let mut done = Done::new(false);
        let (mut calls, mut content) = (0u64, self.number << 48);
        let mut call = |rng: &mut SmallRng, pairs: &mut u64| -> Result<()> {
            let drawn = chooser.draw(rng);
            if scale(rng.next_u64(), 100).0 < mix.writes() {
                content += 1;
                // YCSB's inserts are of new keys, which may lie anywhere. A key that was inserted before is replaced.
                let at = if mix == Mix::E { key(scale(rng.next_u64(), keys).0) + 1 } else { key(drawn) };
                return map.put(at, content);
            }
            if mix == Mix::E {
                let (count, sum) = map.scan(key(drawn), 1 + scale(rng.next_u64(), SCAN_MAX).0 as usize)?;
                ensure!(count > 0, "a key that was loaded is not there: {}", key(drawn));
                *pairs += count as u64;
                black_box(sum);
                return Ok(());
            }
            let value = map.get(key(drawn))?;
            ensure!(value.is_some(), "a key that was loaded is not there: {}", key(drawn));
            black_box(value);
            Ok(())
        };
        let (before, worked) = (self.endpoint.counts(), core_seconds());
        let start = Instant::now();
        let end = start + self.duration;
        loop {
            for _ in 1..TIMED {
                call(&mut rng, &mut done.pairs)?;
            }
            let issued = Instant::now();
            call(&mut rng, &mut done.pairs)?;
            let now = Instant::now();
            calls += TIMED;
            done.result.latencies.record((now - issued).as_nanos() as u64, TIMED);
            if now >= end {
                break;
            }
        }
        (done.result.operations, done.result.seconds) = (calls, start.elapsed().as_secs_f64());
        done.core_seconds = core_seconds() - worked;
        done.result.add_cost(self.endpoint.counts() - before);
        Ok(done)
    }
}

/// A thread of another node, which scans the tree.
pub(super) struct Scanner<'a> {
    pub(super) endpoint: &'a Endpoint,
    pub(super) chooser: &'a KeyChooser,
    pub(super) keys: u64,
    /// The fewest and the most pairs of a scan.
    pub(super) pairs: (u64, u64),
    pub(super) number: u64,
    pub(super) duration: Duration,
}

impl Scanner<'_> {
    pub(super) fn run(&self, mut reader: TreeReader<u64, u64>) -> Result<Done> {
        let Scanner { endpoint, chooser, keys, pairs: (fewest, most), .. } = *self;
        let mut rng = draws(!self.number);
        let mut done = Done::new(true);
        let worked = core_seconds();
        let start = Instant::now();
        let end = start + self.duration;
        let mut pairs = Vec::new();
        while Instant::now() < end {
            let count = (fewest + scale(rng.next_u64(), most - fewest + 1).0).min(keys);
            // The last ones have fewer behind them.
            let from = chooser.draw(&mut rng).min(keys - count);
            let range = key(from)..key(from + count);
            let (issued, before) = (Instant::now(), endpoint.counts());
            loop {
                pairs.clear();
                let scanned = endpoint.block_on(async {
                    let mut scan = reader.scan(endpoint, range.clone()).await?;
                    while scan.next(endpoint, &mut pairs).await? {}
                    Ok::<(), farfield::Error>(())
                });
                match scanned {
                    Err(error) if error.custom_ref::<SnapshotExpired>().is_some() => done.retries += 1,
                    scanned => break scanned?,
                }
            }
            ensure!(pairs.len() as u64 >= count, "of {count} keys that were loaded a scan found {}", pairs.len());
            ensure!(pairs.is_sorted_by(|one, next| one.0 < next.0), "the keys of a scan are in no order");
            done.pairs += pairs.len() as u64;
            done.result.add(issued.elapsed().as_nanos() as u64, endpoint.counts() - before);
        }
        done.result.seconds = start.elapsed().as_secs_f64();
        done.core_seconds = core_seconds() - worked;
        Ok(done)
    }
}
