//! `farfield bench kv`: YCSB workloads on a [`KvStore`] spread over several processes.

mod measure;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use farfield::{Barrier, ByteString, Endpoint, KvOptions, KvStore, Node, Value};
use serde::{Deserialize, Serialize};

use super::journal::Journal;
use super::measurement::{Measurement, Setup};
use super::memory::{self, Need};
use super::options::{Common, Cores, Sizes, once_each};
use super::threads::ThreadResult;
use super::worker::{self, Workers, say};
use super::workload::{Distribution, KeyChooser, Keyspace, Operations, Workload};
use crate::output;

const HELP: &str = "\
The store is loaded first (LOCO's 10 MB keyspace, filled to 80 %, unless --keys says otherwise). Then every thread keeps
a window of calls in flight for the given time: when a call ends, of whatever kind it is, the next one begins. A window
is not a batch. Each repetition loads a store of its own.

One call in 16 is timed, from its issue to its own completion, and has its round trips counted: to read the clock twice
for each call would slow down gets from shared memory. The largest time is that of the timed calls. Operations and bytes
are those of all calls.

With --batch each thread makes one call of get_many after the other, each for a window of keys. An operation is then a
key, and its time is that of its batch; all batches are timed.

Examples:
  farfield bench kv --workload a,b,c,f --window 1,32,128 --repetitions 5
  farfield bench kv --batch --nodes 2,3,4 --json results.jsonl";

/// Serve YCSB workloads from a key-value store spread over several processes.
#[derive(Args, Clone)]
#[command(
    after_long_help = HELP,
    mut_arg("nodes", |arg| arg.default_value("3")),
    mut_arg("seconds", |arg| arg.default_value("5")),
)]
pub(crate) struct KvArgs {
    #[command(flatten)]
    sizes: Sizes,
    /// The mix of operations, or several for a run with each
    #[arg(long, value_enum, value_delimiter = ',', default_value = "a", conflicts_with = "batch")]
    workload: Vec<Workload>,
    /// Measure get_many, each for a window of keys, instead of a workload
    #[arg(long)]
    batch: bool,
    /// How keys are chosen, or several ways for a run with each
    #[arg(long, value_enum, value_delimiter = ',', default_value = "uniform")]
    distribution: Vec<Distribution>,
    /// Calls that each thread keeps in flight, or several numbers for a run with each
    #[arg(
        long,
        value_name = "CALLS",
        value_delimiter = ',',
        default_value = "32",
        value_parser = clap::value_parser!(u16).range(1..=1024),
    )]
    window: Vec<u16>,
    /// Keys loaded before the run [default: 500000, LOCO's 10 MB keyspace filled to 80 %]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    keys: Option<u64>,
    /// Bytes of a value, or several numbers for a run with each
    #[arg(
        long,
        value_name = "BYTES",
        alias = "value-size",
        value_delimiter = ',',
        default_value = "8",
        value_parser = clap::value_parser!(u32).range(1..=65536),
    )]
    size: Vec<u32>,
    #[command(flatten)]
    common: Common,
}

/// One run: the task of a session's nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Plan {
    nodes: u16,
    /// Of each node.
    threads: u16,
    /// None: get_many, for a window of keys.
    workload: Option<Workload>,
    distribution: Distribution,
    window: u16,
    /// Of a value, in bytes.
    size: u32,
    keys: Option<u64>,
    seconds: f64,
    cores: Cores,
}

pub(crate) fn main(args: &KvArgs) -> Result<()> {
    if let Some(plan) = worker::plan::<Plan>()? {
        return if plan.size == 8 { serve::<u64>(&plan) } else { serve::<ByteString>(&plan) };
    }
    let plans = args.plans()?;
    memory::ensure_fit(plans.iter().map(Plan::need), "--keys, --size or --nodes")?;
    let mut journal = Journal::new(&args.common);
    journal.turns(&plans, |plan| Ok(vec![run(plan, &args.common)?]))?;
    journal.table(|_| Ok(()))
}

impl KvArgs {
    /// Each combination of the given values.
    fn plans(&self) -> Result<Vec<Plan>> {
        let workloads = if self.batch { vec![None] } else { self.workload.iter().copied().map(Some).collect() };
        let mut plans = Vec::new();
        for workload in once_each(workloads) {
            for distribution in once_each(self.distribution.iter().copied()) {
                for size in once_each(self.size.iter().copied()) {
                    for (nodes, threads) in self.sizes.pairs() {
                        for window in once_each(self.window.iter().copied()) {
                            let cores = self.common.pin.cores(usize::from(nodes) * usize::from(threads))?;
                            let (keys, seconds) = (self.keys, self.common.seconds);
                            let plan =
                                Plan { nodes, threads, workload, distribution, window, size, keys, seconds, cores };
                            plans.push(plan);
                        }
                    }
                }
            }
        }
        Ok(plans)
    }
}

/// A key in a node's index: its entry, and its part of a table that has just been doubled.
const INDEXED_BYTES: u64 = 80;
/// A slot in its node's list of free ones, and its count of uses.
const SLOT_MORE_BYTES: u64 = 16;

impl Plan {
    fn options(&self) -> KvOptions {
        let share = Keyspace::choose(self.keys).slots.div_ceil(self.nodes.into()) as usize + 64;
        KvOptions { slots_per_node: share, value_bytes_max: self.size as usize, ..KvOptions::default() }
    }

    /// The memory of the store, as [`KvStore`] lays it out, and of the calls in flight.
    fn need(&self) -> Need {
        let (options, nodes) = (self.options(), u64::from(self.nodes));
        let value_words = if self.size == 8 { u64::words(8) } else { ByteString::words(options.value_bytes_max) };
        let slot_bytes = 8 * (2 + value_words as u64);
        let slots = (options.slots_per_node as u64).saturating_mul(slot_bytes + SLOT_MORE_BYTES);
        let locks = options.locks as u64 * (slot_bytes + 8 + 64);
        let trackers = nodes * options.tracker_bytes as u64;
        let index = Keyspace::choose(self.keys).keys.saturating_mul(INDEXED_BYTES);
        let in_flight = u64::from(self.threads) * u64::from(self.window.max(LOADED_AT_ONCE)) * 2 * slot_bytes;
        let all = [slots, locks, trackers, index, in_flight].into_iter().fold(0, u64::saturating_add);
        Need::of(self.nodes, self.threads).on_each(all)
    }
}

/// Starts the nodes, and collects their results.
fn run(plan: &Plan, common: &Common) -> Result<Measurement> {
    let keyspace = Keyspace::choose(plan.keys);
    let duration = common.duration();
    let (loading, bar) = (output::counting("loading keys", keyspace.keys), output::progress("measuring", duration));
    let mut results: Vec<ThreadResult> = Vec::new();
    let mut loaded: HashMap<usize, u64> = HashMap::new();
    // The operations' own deadlines bound the loading; this limit is for unforeseen cases.
    let limit = duration + Duration::from_secs(120) + Duration::from_micros(50 * keyspace.keys);
    Workers::start(plan.nodes, common.fabric, plan)?.run(limit, &bar, |node, word, more| {
        match word {
            "loaded" => {
                loaded.insert(node, serde_json::from_str(more)?);
                loading.set_position(loaded.values().sum());
            }
            "running" => loading.finish_and_clear(),
            "result" => results.push(serde_json::from_str(more)?),
            _ => bail!("`{word}` is none of the benchmark's words"),
        }
        Ok(())
    })?;
    let setup = Setup {
        window: Some(plan.window.into()),
        size: Some(plan.size.into()),
        keys: Some(keyspace.keys),
        distribution: Some(name(plan.distribution)),
        ..common.setup(plan.nodes, plan.threads)
    };
    let case = plan.workload.map_or("get_many".into(), name);
    let mut measurement = Measurement::new("kv", &case, setup);
    measurement.take(&results, usize::from(plan.nodes) * usize::from(plan.threads))?;
    measurement.pinned = Some(plan.cores.is_pinned());
    Ok(measurement)
}

/// A choice as it is spelled on the command line.
pub(super) fn name(choice: impl ValueEnum) -> String {
    choice.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// A value that a benchmark can generate.
trait Sample: Value {
    fn sample(bytes: u32, content: u64) -> Self;
}

impl Sample for u64 {
    fn sample(_: u32, content: u64) -> u64 {
        content
    }
}

impl Sample for ByteString {
    fn sample(bytes: u32, content: u64) -> ByteString {
        content.to_le_bytes().into_iter().cycle().take(bytes as usize).collect::<Vec<u8>>().into()
    }
}

/// One node of the benchmark.
fn serve<V: Sample>(plan: &Plan) -> Result<()> {
    let node = Node::from_environment()?;
    node.wait_for_all(Duration::from_secs(30))?;
    let keyspace = Keyspace::choose(plan.keys);
    let kv = Arc::new(KvStore::<u64, V>::open(&node, "kv", plan.options())?);
    let phases = Arc::new(Barrier::open(&node, "phases", usize::from(plan.threads))?);
    let mut threads = Vec::new();
    let chooser = KeyChooser::new(plan.distribution, keyspace.keys);
    for thread in 0..plan.threads {
        let (plan, kv, node) = (plan.clone(), Arc::clone(&kv), node.clone());
        let (mut phase, chooser, endpoint) = (phases.thread()?, chooser.clone(), node.endpoint()?);
        threads.push(move || {
            let global = u64::from(node.id().0) * u64::from(plan.threads) + u64::from(thread);
            plan.cores.pin(global as usize)?;
            load(&plan, &kv, &endpoint, global, keyspace.keys)?;
            worker::meet(&endpoint, &mut phase)?;
            say("running", &())?;
            let operations = Operations::new(plan.workload.unwrap_or(Workload::C), chooser, 42, global);
            let measurer = measure::Measurer {
                kv: &kv,
                endpoint: &endpoint,
                node: &node,
                window: plan.window.into(),
                size: plan.size,
                duration: Duration::from_secs_f64(plan.seconds),
                first_content: global << 48,
            };
            let result = match plan.workload {
                None => measurer.get_many(operations)?,
                Some(Workload::C) => measurer.reads(operations)?,
                Some(_) => measurer.mix(operations)?,
            };
            say("result", &result)?;
            // Each node stays until the others have finished reading its memory.
            worker::meet(&endpoint, &mut phase)
        });
    }
    worker::run_threads(threads)
}

/// Inserts that each thread keeps in flight.
const LOADED_AT_ONCE: u16 = 128;

/// Inserts this thread's share of the keys.
fn load<V: Sample>(plan: &Plan, kv: &KvStore<u64, V>, endpoint: &Endpoint, thread: u64, keys: u64) -> Result<()> {
    let threads = u64::from(plan.nodes) * u64::from(plan.threads);
    let mine = (0..keys).filter(|key| key % threads == thread);
    let mut failed = Ok(());
    let mut done = 0u64;
    let insert = |key: u64| async move { kv.insert(endpoint, &key, &V::sample(plan.size, key)).await };
    endpoint.run_window(LOADED_AT_ONCE.into(), mine.map(insert), |inserted| {
        failed = std::mem::replace(&mut failed, Ok(())).and(inserted.map(|_| ()));
        done += 1;
        if done.is_multiple_of(10_000) && thread.is_multiple_of(u64::from(plan.threads)) {
            let _ = say("loaded", &(done * u64::from(plan.threads)));
        }
    });
    failed.context("loading the keys")
}
