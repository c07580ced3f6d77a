//! `farfield bench kv`: YCSB workloads on a [`KvStore`] spread over several processes.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use farfield::{Barrier, ByteString, Endpoint, KvOptions, KvStore, Node, Value};

use super::report::{Report, Setup, ThreadResult, publish};
use super::worker::{self, Workers, say};
use super::workload::{Distribution, KeyChooser, Keyspace, Operation, Operations, Workload};
use crate::launch::FabricChoice;
use crate::output;

/// Serve YCSB workloads from a key-value store spread over several processes.
///
/// The store is loaded first (LOCO's 10 MB keyspace, filled to 80 %, unless --keys says otherwise), then every thread
/// issues operations for the given time, a window of them at once: the look-ups of a window are gathered into one read.
#[derive(Args, Clone)]
pub(crate) struct KvArgs {
    /// Processes, each a node of the session
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    nodes: u16,
    /// The fabric that connects the processes
    #[arg(long, value_enum, default_value_t)]
    fabric: FabricChoice,
    /// Threads of each process
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// The mix of operations
    #[arg(long, value_enum, default_value = "a")]
    workload: Workload,
    /// How keys are chosen
    #[arg(long, value_enum, default_value = "uniform")]
    distribution: Distribution,
    /// Operations outstanding for each thread
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    window: u16,
    /// Keys loaded before the run [default: 500000, LOCO's 10 MB keyspace filled to 80 %]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    keys: Option<u64>,
    /// Bytes of a value
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=65536))]
    value_size: u32,
    /// How long to measure
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Append the result as a line of JSON to this file, or `-` for standard output
    #[arg(long)]
    json: Option<PathBuf>,
}

pub(crate) fn main(args: &KvArgs) -> Result<()> {
    ensure!(args.seconds > 0.0 && args.seconds <= 86_400.0, "--seconds: between 0 and a day");
    if let Some(()) = worker::plan()? {
        return if args.value_size == 8 { serve::<u64>(args) } else { serve::<ByteString>(args) };
    }
    let keyspace = Keyspace::choose(args.keys);
    let handoff_ns = super::handoff::handoff_ns();
    let duration = Duration::from_secs_f64(args.seconds);
    let (loading, bar) = (output::counting("loading keys", keyspace.keys), output::progress("measuring", duration));
    let mut results: Vec<ThreadResult> = Vec::new();
    let mut loaded: HashMap<usize, u64> = HashMap::new();
    // The operations' own deadlines bound the loading; this limit is for unforeseen cases.
    let limit = duration + Duration::from_secs(120) + Duration::from_micros(50 * keyspace.keys);
    Workers::start(args.nodes, args.fabric, &())?.run(limit, &bar, |node, word, more| {
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
        fabric: args.fabric.name().into(),
        nodes: u32::from(args.nodes),
        threads: u32::from(args.threads),
        workload: args.workload,
        distribution: args.distribution,
        window: u32::from(args.window),
        keys: keyspace.keys,
        value_size: args.value_size,
    };
    let report = Report::merge(setup, &results, handoff_ns)?;
    publish(&[&report], args.json.as_deref(), |out| out.write_all(report.table().as_bytes()))
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
fn serve<V: Sample>(args: &KvArgs) -> Result<()> {
    let node = Node::from_environment()?;
    node.wait_for_all(Duration::from_secs(30))?;
    let keyspace = Keyspace::choose(args.keys);
    let share = keyspace.slots.div_ceil(node.nodes() as u64) as usize + 64;
    let options =
        KvOptions { slots_per_node: share, value_bytes_max: args.value_size as usize, ..KvOptions::default() };
    let kv = Arc::new(KvStore::<u64, V>::open(&node, "kv", options)?);
    let phases = Arc::new(Barrier::open(&node, "phases", usize::from(args.threads))?);
    let mut threads = Vec::new();
    let chooser = KeyChooser::new(args.distribution, keyspace.keys);
    for thread in 0..args.threads {
        let (args, kv, node) = (args.clone(), Arc::clone(&kv), node.clone());
        let (mut phase, chooser, endpoint) = (phases.thread()?, chooser.clone(), node.endpoint()?);
        threads.push(move || {
            let global = u64::from(node.id().0) * u64::from(args.threads) + u64::from(thread);
            load(&args, &kv, &endpoint, global, keyspace.keys)?;
            worker::meet(&endpoint, &mut phase)?;
            say("running", &())?;
            let operations = Operations::new(args.workload, chooser, 42, global);
            let result = measure(&args, &kv, &endpoint, operations, u32::from(node.id().0))?;
            say("result", &result)?;
            // Each node stays until the others have finished reading its memory.
            worker::meet(&endpoint, &mut phase)
        });
    }
    worker::run_threads(threads)
}

/// Inserts this thread's share of the keys.
fn load<V: Sample>(args: &KvArgs, kv: &KvStore<u64, V>, endpoint: &Endpoint, thread: u64, keys: u64) -> Result<()> {
    let threads = u64::from(args.nodes) * u64::from(args.threads);
    let mine = (0..keys).filter(|key| key % threads == thread);
    let mut failed = Ok(());
    let mut done = 0u64;
    let insert = |key: u64| async move { kv.insert(endpoint, &key, &V::sample(args.value_size, key)).await };
    endpoint.run_window(128, mine.map(insert), |inserted| {
        failed = std::mem::replace(&mut failed, Ok(())).and(inserted.map(|_| ()));
        done += 1;
        if done.is_multiple_of(10_000) && thread.is_multiple_of(u64::from(args.threads)) {
            let _ = say("loaded", &(done * u64::from(args.threads)));
        }
    });
    failed.context("loading the keys")
}

/// Issues operations, a window of them at a time, until the time is over.
fn measure<V: Sample>(
    args: &KvArgs,
    kv: &KvStore<u64, V>,
    endpoint: &Endpoint,
    mut operations: Operations,
    node: u32,
) -> Result<ThreadResult> {
    let mut result = ThreadResult::new(node);
    let window = usize::from(args.window);
    let (mut reads, mut writes) = (Vec::with_capacity(window), Vec::with_capacity(window));
    let mut values = Vec::with_capacity(window);
    let start = endpoint.now();
    let end = start + Duration::from_secs_f64(args.seconds);
    let mut now = start;
    let mut content = u64::from(node) << 48;
    while now < end {
        reads.clear();
        writes.clear();
        for _ in 0..window {
            match operations.draw() {
                Operation::Read(key) => reads.push(key),
                write => writes.push(write),
            }
        }
        let issued = now;
        // The window's reads are gathered into one; its writes run interleaved.
        if !reads.is_empty() {
            let (read, cost) = endpoint.block_on(endpoint.counted(kv.get_many(endpoint, &reads, &mut values)));
            read?;
            ensure!(values.iter().all(|value| matches!(value, Ok(Some(_)))), "a key that was loaded is not there");
            result.reads += reads.len() as u64;
            result.round_trips += cost.round_trips * reads.len() as u64;
            result.fabric_ops += cost.posted();
            result.bytes += cost.bytes;
            now = endpoint.now();
            let latency = (now - issued).as_nanos() as u64;
            result.latencies.record(latency, reads.len() as u64);
        }
        if !writes.is_empty() {
            content += 1;
            let write = |operation: &Operation| {
                let operation = *operation;
                async move {
                    let value = V::sample(args.value_size, content);
                    let (done, cost) = match operation {
                        Operation::Update(key) => endpoint.counted(kv.update(endpoint, &key, &value)).await,
                        Operation::ReadModifyWrite(key) | Operation::Read(key) => {
                            let modify = kv.modify(endpoint, &key, |old| old.map(|_| value));
                            let (old, cost) = endpoint.counted(modify).await;
                            (old.map(|old| old.is_some()), cost)
                        }
                    };
                    (operation, done, cost, endpoint.now())
                }
            };
            let mut failed = Ok(());
            endpoint.run_window(window, writes.iter().map(write), |(operation, done, cost, at)| {
                match done {
                    Ok(true) => {}
                    Ok(false) => failed = Err(anyhow::anyhow!("a key that was loaded is not there")),
                    Err(error) => failed = Err(error.into()),
                }
                match operation {
                    Operation::Update(_) => result.updates += 1,
                    _ => result.read_modify_writes += 1,
                }
                result.round_trips += cost.round_trips;
                result.fabric_ops += cost.posted();
                result.bytes += cost.bytes;
                result.latencies.record((at - issued).as_nanos() as u64, 1);
                now = at;
            });
            failed?;
        }
    }
    result.seconds = (now - start).as_secs_f64();
    Ok(result)
}
