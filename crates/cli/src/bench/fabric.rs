//! `farfield bench fabric`: the time of one waited-for operation to another process.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use farfield::fabric::verbs::VerbsFabric;
use farfield::fabric::{GroupKey, RemotePtr, Verb};
use farfield::toolkit::ObjectBuilder;
use farfield::{Barrier, Endpoint, Node};
use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};

use super::journal::Journal;
use super::measurement::{Measurement, Setup};
use super::memory::{self, Need};
use super::options::{Common, Cores};
use super::threads::ratio;
use super::worker::{self, Workers};
use crate::spread::median;

/// Time waited-for 8-byte put, get, cas and faa to another process, one after the other.
///
/// The operations run in batches: to read the clock for each would take longer than an operation on shared memory. The
/// throughput is that of the median batch.
#[derive(Args)]
pub(crate) struct FabricArgs {
    /// Operations in a batch
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    iterations: u32,
    #[command(flatten)]
    common: Common,
}

/// One run: the task of a session's nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Plan {
    iterations: u32,
    /// Of all kinds of operation together.
    seconds: f64,
    cores: Cores,
}

/// The batches of one kind of operation.
#[derive(Serialize, Deserialize)]
struct Times {
    case: String,
    seconds: f64,
    operations: u64,
    /// The median of the batches, for one operation.
    median_ns: f64,
    /// The same by bare posting and polling, on RDMA.
    bare_ns: Option<f64>,
}

pub(crate) fn main(args: &FabricArgs) -> Result<()> {
    if let Some(plan) = worker::plan()? {
        return serve(&plan);
    }
    let common = &args.common;
    let plan = Plan { iterations: args.iterations, seconds: common.seconds, cores: common.pin.cores(2)? };
    memory::ensure_fit([Need::of(2, 1)], "the use of memory by other programs")?;
    let mut journal = Journal::new(common);
    journal.turns(&[plan], |plan| run(plan, common))?;
    journal.table(|_| Ok(()))
}

fn run(plan: &Plan, common: &Common) -> Result<Vec<Measurement>> {
    let mut measurements = Vec::new();
    let limit = common.duration() * 2 + Duration::from_secs(120);
    Workers::start(2, common.fabric, plan)?.run(limit, &ProgressBar::hidden(), |_, _, more| {
        let times: Times = serde_json::from_str(more)?;
        let setup = Setup { size: Some(8), window: Some(1), ..common.setup(2, 1) };
        let mut one = Measurement::new("fabric", &times.case, setup);
        one.seconds = times.seconds;
        one.operations = times.operations;
        one.throughput_ops_per_s = ratio(1e9, times.median_ns);
        one.pinned = Some(plan.cores.is_pinned());
        one.figures.insert("ns_per_op".into(), times.median_ns);
        if let Some(bare_ns) = times.bare_ns {
            one.figures.insert("bare_ns_per_op".into(), bare_ns);
        }
        measurements.push(one);
        Ok(())
    })?;
    Ok(measurements)
}

fn serve(plan: &Plan) -> Result<()> {
    let node = Node::from_environment()?;
    node.wait_for_all(Duration::from_secs(30))?;
    plan.cores.pin(node.id().index())?;
    let memory = node.alloc(GroupKey::DATA, 64)?;
    let cell = ObjectBuilder::new(&node, "bench/cell", "BenchCell").region("cell", memory).announce()?;
    cell.wait(node.timeout())?;
    let barrier = Barrier::open(&node, "bench/end", 1)?;
    let (mut end, endpoint) = (barrier.thread()?, node.endpoint()?);
    if node.id().0 == 0 {
        let peer = node.others().next().context("two nodes")?;
        let word: RemotePtr<u64> = cell.remote(peer, "cell")?;
        // The same without the fabric, where there are queue pairs.
        let fabric: &dyn std::any::Any = &**node.transport();
        let mut bare = fabric.downcast_ref::<VerbsFabric>().map(|fabric| fabric.bare(word)).transpose()?;
        let share = Duration::from_secs_f64(plan.seconds / OPERATIONS.len() as f64);
        for (case, verb, operation) in OPERATIONS {
            let each_ns = |batches: &[f64]| median(batches.iter().copied()) * 1e9 / f64::from(plan.iterations);
            let mut bare_ns = None;
            if let Some(bare) = &mut bare {
                let batches = run_batches(share, || {
                    for value in 0..u64::from(plan.iterations) {
                        let done = bare.run(verb, [value, value + 1]);
                        black_box(done.map_err(|code| anyhow::anyhow!("a bare {verb:?} has failed: {code:?}"))?);
                    }
                    Ok(())
                })?;
                bare_ns = Some(each_ns(&batches));
            }
            let batches = run_batches(share, || operation(&endpoint, word, plan.iterations))?;
            let operations = batches.len() as u64 * u64::from(plan.iterations);
            let median_ns = each_ns(&batches);
            let seconds = batches.into_iter().sum();
            worker::say("times", &Times { case: case.into(), seconds, operations, median_ns, bare_ns })?;
        }
    }
    worker::meet(&endpoint, &mut end)
}

/// Waits for so many operations, one after the other.
type Batch = fn(&Endpoint, RemotePtr<u64>, u32) -> Result<()>;

const OPERATIONS: [(&str, Verb, Batch); 4] =
    [("put", Verb::Put, put), ("get", Verb::Get, get), ("cas", Verb::Cas, cas), ("faa", Verb::Faa, faa)];

/// The seconds of each batch, until the time is over; of one at least.
fn run_batches(share: Duration, mut batch: impl FnMut() -> Result<()>) -> Result<Vec<f64>> {
    batch()?; // warm
    let begin = Instant::now();
    let mut times = Vec::new();
    while times.is_empty() || begin.elapsed() < share {
        let start = Instant::now();
        batch()?;
        times.push(start.elapsed().as_secs_f64());
    }
    Ok(times)
}

fn put(endpoint: &Endpoint, word: RemotePtr<u64>, iterations: u32) -> Result<()> {
    for value in 0..iterations {
        endpoint.put_value(word, u64::from(value)).wait()?;
    }
    Ok(())
}

fn get(endpoint: &Endpoint, word: RemotePtr<u64>, iterations: u32) -> Result<()> {
    for _ in 0..iterations {
        black_box(endpoint.get(word).wait()?);
    }
    Ok(())
}

fn cas(endpoint: &Endpoint, word: RemotePtr<u64>, iterations: u32) -> Result<()> {
    let first = endpoint.get(word).wait()?;
    for seen in first..first + u64::from(iterations) {
        endpoint.cas(word, seen, seen + 1).wait()?;
    }
    Ok(())
}

fn faa(endpoint: &Endpoint, word: RemotePtr<u64>, iterations: u32) -> Result<()> {
    for _ in 0..iterations {
        black_box(endpoint.faa(word, 1).wait()?);
    }
    Ok(())
}
