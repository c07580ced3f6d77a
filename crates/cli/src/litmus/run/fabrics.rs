//! Runs of litmus tests on the fabrics of this machine: as litmus7 does, all threads begin an iteration together, each
//! on a fresh instance of the words, and memory is looked at when a batch of instances has been run and all of it has
//! landed.
//!
//! All nodes are in this process, and each thread has an endpoint of its own.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use farfield::fabric::ucx::Secret;
use farfield::fabric::verbs::VerbsOptions;
use farfield::fabric::weak::weaken;
use farfield::fabric::{GroupKey, memory_fence};
use farfield::mutants;
use farfield::{Node, NodeId, local_session_with, loopback_hosts, on_each};
use indicatif::ProgressBar;
use mowgli::litmus::Value;
use mowgli::run::{Plan, Stopped};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::calls::{Calls, Elsewhere, GIVEN_UP_MAX, Layout, Pace};
use super::objects::{Objects, Parts};
use super::{Ask, Counts, On};
use crate::launch::{FabricChoice, SILENCE};

/// Instances of a batch.
const BATCH: usize = 256;
/// The same of a test with objects, each of which has to be opened.
const BATCH_OF_OBJECTS: usize = 16;
/// How long threads wait for each other.
const MEETING_MAX: Duration = Duration::from_secs(60);
/// All nodes live as long as this process, so none has to be suspected soon.
const SILENCE_DEFAULT: Duration = Duration::from_secs(5);

/// The nodes of a test.
fn session(on: On, nodes: usize, ask: &Ask) -> Result<Vec<Node>> {
    let hosts = loopback_hosts(nodes as u16);
    let silence = match std::env::var_os(SILENCE) {
        Some(_) => FabricChoice::Verbs.silence()?.unwrap_or(SILENCE_DEFAULT),
        None => SILENCE_DEFAULT,
    };
    let secret = Secret::new(&rand::random::<[u8; 32]>())?;
    let nodes = local_session_with(nodes, |builder| match on {
        On::Shm | On::Sim => builder.seed(ask.seed),
        On::Weak => {
            let seed = ask.seed;
            builder.decorate(move |inner| {
                let node = u64::from(inner.me().0);
                weaken(inner, seed << 8 | node)
            })
        }
        On::Verbs => {
            let device = VerbsOptions { patience: silence, ..ask.device.clone() };
            builder.hosts(hosts.clone()).device(device).suspect_timeout(silence)
        }
        On::Ucx => builder.hosts(hosts.clone()).over_ucx().secret(secret.clone()).suspect_timeout(silence),
    });
    nodes.context("starting the nodes")
}

/// The state that the threads of a run share.
struct Shared<'p> {
    plan: &'p Plan,
    layout: Layout,
    /// Of each node.
    objects: Vec<Objects>,
    iterations: u64,
    batch: usize,
    /// The number of arrivals at meetings.
    arrived: AtomicUsize,
    /// Operations are complete when they have been posted.
    at_once: bool,
    /// One has failed.
    stop: AtomicBool,
    /// How often a loop was given up.
    given_up: AtomicU32,
    /// How often one looks for the others before it lets them run.
    spins: u32,
    /// What each thread's registers held at the end of each iteration of a batch.
    registers: Vec<Mutex<Vec<Vec<Value>>>>,
    /// By instance.
    not_finished: Vec<AtomicBool>,
    counts: Mutex<Counts>,
    /// There is no further batch.
    is_over: AtomicBool,
    bar: &'p ProgressBar,
}

/// Runs a plan.
pub(super) fn run(plan: &Plan, on: On, iterations: u64, ask: &Ask, bar: &ProgressBar) -> Result<Counts> {
    let nodes = session(on, plan.nodes, ask)?;
    let batch = if plan.objects.is_empty() { BATCH } else { BATCH_OF_OBJECTS };
    let instances = batch.min(usize::try_from(iterations).unwrap_or(batch));
    let layout = Layout::new(plan, instances, |(node, bytes)| nodes[node].alloc(GroupKey::DATA, bytes));
    let objects = on_each(&nodes, |node| Objects::open(plan, instances, node)).context("opening the objects")?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let registers = |count| Mutex::new(vec![vec![Value::None; count]; instances]);
    let shared = Shared {
        plan,
        layout: layout.context("memory for the test")?,
        objects,
        iterations,
        batch,
        arrived: AtomicUsize::new(0),
        at_once: on == On::Shm,
        stop: AtomicBool::new(false),
        given_up: AtomicU32::new(0),
        // Waiting for a thread without a core is useless; and other programs may want the cores.
        spins: if plan.threads.len() <= cores { 128 } else { 16 },
        registers: plan.threads.iter().map(|program| registers(program.registers)).collect(),
        not_finished: (0..instances).map(|_| AtomicBool::new(false)).collect(),
        counts: Mutex::default(),
        is_over: AtomicBool::new(false),
        bar,
    };
    let ended: Vec<Result<()>> = std::thread::scope(|scope| {
        let spawn = |me: usize| {
            let (shared, nodes) = (&shared, &nodes);
            scope.spawn(move || {
                let ended = mutants::enable(ask.mutant).map_err(Into::into);
                let ended = ended.and_then(|()| shared.thread(me, nodes, ask.seed));
                if ended.is_err() {
                    shared.stop.store(true, Ordering::Relaxed);
                }
                ended.with_context(|| format!("P{me}"))
            })
        };
        let threads: Vec<_> = (0..plan.threads.len()).map(spawn).collect();
        let joined = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow!("it panicked"))));
        joined.collect()
    });
    // A thread that ended because another did reports nothing.
    let mut errors: Vec<anyhow::Error> = ended.into_iter().filter_map(Result::err).collect();
    errors.sort_by_key(|error| error.is::<Elsewhere>());
    match errors.into_iter().next() {
        Some(error) => Err(error),
        None => Ok(std::mem::take(&mut *lock(&shared.counts))),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared<'_> {
    fn thread(&self, me: usize, nodes: &[Node], seed: u64) -> Result<()> {
        let program = &self.plan.threads[me];
        let endpoint = nodes[program.node].endpoint()?;
        let Shared { spins, at_once, stop, given_up, .. } = self;
        let pace = Pace::Spinning { spins: *spins, at_once: *at_once, stop, given_up };
        let objects = &self.objects[program.node];
        let parts = Parts::take(self.plan, me, objects)?;
        let mut calls = Calls::new(&endpoint, &self.layout, objects, parts, pace);
        let mut rng = SmallRng::seed_from_u64(seed ^ (me as u64) << 32);
        let mut meetings = 0;
        let mut left = self.iterations;
        while left > 0 && !self.is_over.load(Ordering::Relaxed) {
            let batch = self.batch.min(usize::try_from(left).unwrap_or(self.batch));
            left -= batch as u64;
            self.reset(me, batch);
            if !self.plan.objects.is_empty() {
                calls.reset(self.plan, batch)?;
                endpoint.block_on(endpoint.global_fence(self.nodes()))?;
            }
            {
                let mut registers = lock(&self.registers[me]);
                for (instance, registers) in registers.iter_mut().take(batch).enumerate() {
                    calls.begin(instance);
                    // The order of the threads, and their distances, vary.
                    let delay = rng.random::<u32>() & ((1 << rng.random_range(0..10)) - 1);
                    self.meet(&mut meetings)?;
                    for step in 0..delay {
                        std::hint::black_box(step);
                    }
                    match program.run(registers, &mut calls) {
                        Ok(()) => {}
                        Err(Stopped::NotFinished) => self.not_finished[instance].store(true, Ordering::Relaxed),
                        Err(Stopped::Memory(error)) => return Err(error),
                        Err(Stopped::Value(value)) => bail!("a word holds a number, not {value}"),
                        Err(stopped) => bail!("it has stopped: {stopped:?}"),
                    }
                    calls.finish()?;
                }
            }
            // All that it has put is in memory, and all that it has stored.
            endpoint.block_on(endpoint.global_fence(self.nodes()))?;
            memory_fence();
            self.meet(&mut meetings)?;
            if me == 0 {
                self.count(batch);
            }
            self.meet(&mut meetings)?;
        }
        Ok(())
    }

    fn nodes(&self) -> impl Iterator<Item = NodeId> {
        (0..self.plan.nodes).map(|node| NodeId(node as u16))
    }

    /// Sets this thread's share of the words to their initial values: the last thread to store a word has it in its
    /// cache, and that should not always be the same thread.
    fn reset(&self, me: usize, batch: usize) {
        for instance in 0..batch {
            for (at, word) in self.plan.words.iter().enumerate() {
                if (instance + at) % self.plan.threads.len() == me {
                    self.layout.word(at, instance).store(word.starts.cast_unsigned());
                }
            }
        }
    }

    /// Waits until all threads are here. Their earlier actions are visible afterwards.
    fn meet(&self, meetings: &mut usize) -> Result<()> {
        *meetings += self.plan.threads.len();
        self.arrived.fetch_add(1, Ordering::AcqRel);
        let (mut spins, mut since) = (0u32, None);
        while self.arrived.load(Ordering::Acquire) < *meetings {
            spins += 1;
            if !spins.is_multiple_of(self.spins) {
                std::hint::spin_loop();
                continue;
            }
            ensure!(!self.stop.load(Ordering::Relaxed), Elsewhere);
            std::thread::yield_now();
            if spins.is_multiple_of(self.spins * 256) {
                let since = *since.get_or_insert_with(Instant::now);
                ensure!(since.elapsed() < MEETING_MAX, "the other threads have not come within {MEETING_MAX:?}");
            }
        }
        Ok(())
    }

    /// Counts the outcomes of a batch, while the others wait.
    fn count(&self, batch: usize) {
        let registers: Vec<_> = self.registers.iter().map(lock).collect();
        let mut counts = lock(&self.counts);
        for (instance, not_finished) in self.not_finished.iter().enumerate().take(batch) {
            counts.iterations += 1;
            if not_finished.swap(false, Ordering::Relaxed) {
                counts.not_finished += 1;
                continue;
            }
            let register = |thread: usize, at: usize| registers[thread][instance][at].clone();
            let word = |at| self.layout.word(at, instance).load().cast_signed();
            counts.add(self.plan.outcome(register, word));
        }
        self.bar.set_position(counts.iterations);
        self.is_over.store(self.given_up.load(Ordering::Relaxed) >= GIVEN_UP_MAX, Ordering::Relaxed);
    }
}
