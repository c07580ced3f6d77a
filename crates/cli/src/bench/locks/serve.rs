//! One node of a benchmark of locks.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use farfield::fabric::{GroupKey, Region, RemotePtr};
use farfield::mutants::{self, Mutant};
use farfield::toolkit::{Object, ObjectBuilder};
use farfield::{Barrier, BarrierThread, Endpoint, LockArray, LockGuard, LockTable, Node};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::draw::Locks;
use super::plan::{Case, Plan, Variant};
use super::report::{Pairs, Sum, Tally, ThreadResult};
use crate::bench::worker::{self, say};

/// Counters are a cache line apart, so that no thread waits for another lock's counter.
const COUNTER_BYTES: usize = 64;

/// Serves in a benchmark until all measurements are done.
pub(super) fn main(plan: &Plan, mutant: Option<Mutant>) -> Result<()> {
    let node = Node::from_environment()?;
    node.wait_for_all(Duration::from_secs(30))?;
    let tables = plan.tables().enumerate();
    let tables = tables.map(|(number, (variant, locks))| Table::open(&node, number, variant, locks as usize));
    let tables: Arc<Vec<Table>> = Arc::new(tables.collect::<Result<_>>()?);
    let barrier = Barrier::open(&node, "phases", usize::from(plan.threads))?;
    let mut threads = Vec::new();
    for thread in 0..plan.threads {
        let worker = Worker {
            plan: plan.clone(),
            node: node.clone(),
            tables: Arc::clone(&tables),
            thread,
            endpoint: node.endpoint()?,
            phase: barrier.thread()?,
        };
        // A seeded bug is enabled per thread.
        threads.push(move || {
            mutants::enable(mutant)?;
            worker.main()
        });
    }
    worker::run_threads(threads)
}

/// One thread.
struct Worker {
    plan: Plan,
    node: Node,
    tables: Arc<Vec<Table>>,
    thread: u16,
    endpoint: Endpoint,
    phase: BarrierThread,
}

impl Worker {
    fn main(mut self) -> Result<()> {
        let global = u64::from(self.node.id().0) * u64::from(self.plan.threads) + u64::from(self.thread);
        self.plan.cores.pin(global as usize)?;
        let mut rng = SmallRng::seed_from_u64(global);
        let mut sums = vec![0; self.tables.len()];
        if global == 0 {
            say("empty", &self.empty_turn_ns(&mut rng))?;
        }
        for round in 0..self.plan.rounds {
            for case in self.plan.round(round) {
                self.meet()?;
                if global == 0 && round == 0 && case == self.plan.round(0)[0] {
                    say("running", &())?;
                }
                let measured = self.endpoint.block_on(self.measure(case, round, &mut rng));
                let mut result = measured.with_context(|| self.describe(case))?;
                // From here on all puts are visible, and no thread adds until all have met once more.
                self.meet()?;
                result.thread = self.thread;
                say("thread", &result)?;
                if self.thread == 0 {
                    let sum = self.tables[case.table].sum();
                    let added = sum - std::mem::replace(&mut sums[case.table], sum);
                    say("sum", &Sum { case: case.number, round, added })?;
                }
            }
        }
        if self.thread == 0 {
            let (own, reached) = self.node.metrics().queue_pairs;
            say("pairs", &Pairs { own, reached })?;
        }
        // Each node stays until the others have finished reading its memory.
        self.meet()
    }

    fn meet(&mut self) -> Result<()> {
        worker::meet(&self.endpoint, &mut self.phase)
    }

    fn describe(&self, case: Case) -> String {
        let kind = self.plan.variants[case.variant].name();
        format!("{kind}, {} locks, locality {} %", case.locks, case.locality)
    }

    /// The median time of an iteration that takes no lock: the cost of measuring itself.
    fn empty_turn_ns(&self, rng: &mut SmallRng) -> u64 {
        let (table, endpoint) = (&self.tables[0], &self.endpoint);
        let mut tally = Tally::new();
        let (mut now, mut before) = (endpoint.now(), endpoint.counts());
        let end = now + Duration::from_millis(20);
        while now < end {
            black_box(table.drawn.draw(100, rng));
            let (locked, after) = (black_box(endpoint.counts()), black_box(endpoint.counts()));
            let ended = endpoint.now();
            tally.add((ended - now).as_nanos() as u64, (locked - before) + (after - locked));
            (now, before) = (ended, after);
        }
        tally.latencies.percentiles().p50
    }

    /// Takes and releases locks until the time is over.
    async fn measure(&self, case: Case, round: u16, rng: &mut SmallRng) -> Result<ThreadResult> {
        let (table, endpoint) = (&self.tables[case.table], &self.endpoint);
        let mut result = ThreadResult::new(case.number, round);
        // Otherwise the first release would fence the barrier's puts.
        endpoint.global_fence(self.node.members()).await?;
        let start = endpoint.now();
        let end = start + self.plan.slice();
        let (mut now, mut before) = (start, endpoint.counts());
        while now < end {
            let index = table.drawn.draw(case.locality, rng);
            let guard = if self.plan.unlocked {
                None
            } else {
                Some(table.locks.lock_deadline(endpoint, index, now + endpoint.timeout()).await?)
            };
            let locked = endpoint.counts();
            let is_own = table.add_one(endpoint, index).await?;
            let added = if is_own { locked } else { endpoint.counts() };
            if let Some(guard) = guard {
                guard.unlock().await?;
            }
            let after = endpoint.counts();
            // The clock is read once each time: an iteration is measured from the end of the previous one.
            let ended = endpoint.now();
            let side = if is_own { &mut result.own } else { &mut result.others };
            side.add((ended - now).as_nanos() as u64, (locked - before) + (after - added));
            (now, before) = (ended, after);
        }
        result.seconds = (now - start).as_secs_f64();
        Ok(result)
    }
}

/// The locks of one kind, and the counters that they protect.
struct Table {
    locks: LockTable,
    drawn: Locks,
    /// By lock.
    counters: Vec<Counter>,
    /// The counters of this node's locks.
    memory: Region,
    /// Lets the other nodes find the counters.
    _opened: Object,
}

/// The word that a lock protects, on the lock's home.
#[derive(Clone, Copy)]
struct Counter {
    word: RemotePtr<u64>,
    /// Its offset in its node's region.
    offset: usize,
}

impl Table {
    fn open(node: &Node, number: usize, variant: &Variant, count: usize) -> Result<Table> {
        let options = variant.options()?;
        let locks = LockTable::open(node, &format!("locks/{number}"), count, options)?;
        // Each node has room for as many counters as the one with most.
        let mut ranks = vec![0; node.nodes()];
        let offsets: Vec<usize> = (0..count)
            .map(|index| {
                let rank = &mut ranks[locks.home(index).index()];
                *rank += 1;
                (*rank - 1) * COUNTER_BYTES
            })
            .collect();
        let most = ranks.into_iter().max().unwrap_or(1).max(1);
        let memory = node.alloc(GroupKey::DATA, most * COUNTER_BYTES)?;
        let opening = ObjectBuilder::new(node, &format!("counters/{number}"), "BenchCounters");
        let opened = opening.region("counters", memory.clone()).announce()?;
        opened.wait(node.timeout())?;
        let counter = |(index, offset): (usize, usize)| -> Result<Counter> {
            let base: RemotePtr<u64> = opened.remote(locks.home(index), "counters")?;
            Ok(Counter { word: base.byte_add(offset as u64), offset })
        };
        let counters = offsets.into_iter().enumerate().map(counter).collect::<Result<_>>()?;
        Ok(Table { drawn: Locks::of(&locks, node.id()), locks, counters, memory, _opened: opened })
    }

    /// Adds one to the counter of a lock that this thread holds. Only the lock makes these accesses safe. Returns
    /// whether the lock is one of the own node.
    #[inline]
    async fn add_one(&self, endpoint: &Endpoint, index: usize) -> Result<bool> {
        let Counter { word, offset } = self.counters[index];
        if word.node() == endpoint.me() {
            let word = self.memory.word(offset);
            word.store(word.load() + 1);
            return Ok(true);
        }
        let count = endpoint.get(word).await?;
        // The put is not awaited: the lock's release follows it on its node, or the lock is broken.
        endpoint.put_value(word, count + 1).detach()?;
        Ok(false)
    }

    /// All counters of this node together.
    fn sum(&self) -> u64 {
        let offset = |index: &u32| self.counters[*index as usize].offset;
        self.drawn.own.iter().map(|index| self.memory.word(offset(index)).load()).sum()
    }
}
