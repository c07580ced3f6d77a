//! `farfield bench barrier`: threads of several processes that meet again and again.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use farfield::fabric::{GroupKey, RemotePtr};
use farfield::toolkit::ObjectBuilder;
use farfield::{Barrier, BarrierThread, Endpoint, Node, SharedVar};
use serde::{Deserialize, Serialize};

use super::journal::Journal;
use super::measurement::{Measurement, Setup};
use super::memory::{self, Need};
use super::options::{Common, Cores, Sizes, once_each};
use super::threads::{self, ThreadResult, ratio};
use super::worker::{self, say};

const HELP: &str = "\
An operation is one meeting of all threads. Its time is that of one thread, from its arrival until it goes on; its round
trips, fabric operations and bytes are those of one thread, too. One meeting in 16 is timed, the same by all threads.

A fenced wait first makes the thread's earlier puts visible on all nodes (case `fenced`); an unfenced one does not (case
`unfenced`). With no puts since the last meeting there is nothing to fence, and both are alike: --puts gives the fence
something to do.

Examples:
  farfield bench barrier --nodes 2,4 --repetitions 5
  farfield bench barrier --fence all,none --puts 1 --nodes 3";

/// Meet at a barrier, with all threads of several processes.
#[derive(Args, Clone)]
#[command(after_long_help = HELP)]
pub(crate) struct BarrierArgs {
    /// Whether a wait first makes earlier puts visible, or both for a run with each
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["all", "none"])]
    fence: Vec<Fence>,
    /// Puts of 8 bytes from each thread to each other node before each meeting
    #[arg(long, value_name = "COUNT", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1000))]
    puts: u32,
    #[command(flatten)]
    sizes: Sizes,
    #[command(flatten)]
    common: Common,
}

/// The scope of a wait's fence.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
enum Fence {
    /// The puts to all nodes
    All,
    /// Nothing
    None,
}

/// One run: the task of a session's nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Plan {
    nodes: u16,
    /// Of each node.
    threads: u16,
    fence: Fence,
    puts: u32,
    seconds: f64,
    cores: Cores,
}

pub(crate) fn main(args: &BarrierArgs) -> Result<()> {
    if let Some(plan) = worker::plan::<Plan>()? {
        return serve(&plan);
    }
    let common = &args.common;
    let mut plans = Vec::new();
    for fence in once_each(args.fence.iter().copied()) {
        for (nodes, threads) in args.sizes.pairs() {
            let cores = common.pin.cores(usize::from(nodes) * usize::from(threads))?;
            plans.push(Plan { nodes, threads, fence, puts: args.puts, seconds: common.seconds, cores });
        }
    }
    memory::ensure_fit(plans.iter().map(|plan| Need::of(plan.nodes, plan.threads)), "--nodes or --threads")?;
    let mut journal = Journal::new(common);
    journal.turns(&plans, |plan| Ok(vec![run(plan, common)?]))?;
    journal.table(|_| Ok(()))
}

fn run(plan: &Plan, common: &Common) -> Result<Measurement> {
    let all = usize::from(plan.nodes) * usize::from(plan.threads);
    let results = threads::run(plan.nodes, common, plan)?;
    let setup = Setup { puts: (plan.puts > 0).then_some(plan.puts), ..common.setup(plan.nodes, plan.threads) };
    let case = if plan.fence == Fence::All { "fenced" } else { "unfenced" };
    let mut measurement = Measurement::new("barrier", case, setup);
    measurement.take(&results, all)?;
    let meetings = results[0].operations;
    ensure!(
        results.iter().all(|result| result.operations == meetings),
        "the barrier is broken: its threads have met {:?} times",
        results.iter().map(|result| result.operations).collect::<Vec<_>>()
    );
    measurement.operations = meetings;
    measurement.throughput_ops_per_s = ratio(meetings as f64, measurement.seconds);
    measurement.fairness = None;
    measurement.pinned = Some(plan.cores.is_pinned());
    Ok(measurement)
}

/// One node of the benchmark.
fn serve(plan: &Plan) -> Result<()> {
    let node = Node::from_environment()?;
    node.wait_for_all(Duration::from_secs(30))?;
    let threads = usize::from(plan.threads);
    let phases = Barrier::open(&node, "phases", threads)?;
    let measured = Barrier::open(&node, "measured", threads)?;
    let last = Arc::new(SharedVar::<u64>::open(&node, "last")?);
    let cells = ObjectBuilder::new(&node, "cells", "BenchCells");
    let cells = cells.region("cells", node.alloc(GroupKey::DATA, usize::from(plan.nodes) * threads * 8)?).announce()?;
    cells.wait(node.timeout())?;
    let mut all = Vec::new();
    for thread in 0..threads {
        let number = node.id().index() * threads + thread;
        let targets = node.others().map(|peer| Ok(cells.remote::<u64>(peer, "cells")?.byte_add(number as u64 * 8)));
        let worker = Worker {
            plan: plan.clone(),
            number,
            node: node.clone(),
            barrier: measured.thread()?,
            last: Arc::clone(&last),
            targets: targets.collect::<Result<_>>()?,
        };
        let (endpoint, mut phase) = (node.endpoint()?, phases.thread()?);
        all.push(move || worker.main(&endpoint, &mut phase));
    }
    worker::run_threads(all)
}

/// One thread.
struct Worker {
    plan: Plan,
    /// Among those of all nodes. The first one decides when to stop.
    number: usize,
    node: Node,
    barrier: BarrierThread,
    /// The number of the last batch of meetings, as soon as it is known.
    last: Arc<SharedVar<u64>>,
    /// A word of this thread on each other node.
    targets: Vec<RemotePtr<u64>>,
}

impl Worker {
    /// After so many meetings a thread asks whether it was the last.
    const BATCH: u64 = 256;
    /// One meeting in so many is timed.
    const TIMED: u64 = 16;

    fn main(mut self, endpoint: &Endpoint, phase: &mut BarrierThread) -> Result<()> {
        self.plan.cores.pin(self.number)?;
        worker::meet(endpoint, phase)?;
        if self.number == 0 {
            say("running", &())?;
        }
        let result = endpoint.block_on(self.measure(endpoint))?;
        say("result", &result)?;
        worker::meet(endpoint, phase)
    }

    /// Meets the others until the first thread has said which batch is the last. It says so before it arrives in that
    /// batch, so all know when the batch is over.
    async fn measure(&mut self, endpoint: &Endpoint) -> Result<ThreadResult> {
        let mut result = ThreadResult::new();
        let before = endpoint.counts();
        let start = endpoint.now();
        let end = start + Duration::from_secs_f64(self.plan.seconds);
        for batch in 1.. {
            if self.number == 0 && endpoint.now() >= end {
                self.last.store(batch);
                self.last.push_all(endpoint).await?;
                self.last.fence(endpoint, self.node.others()).await?;
            }
            for meeting in 0..Self::BATCH {
                for value in 0..self.plan.puts {
                    for target in &self.targets {
                        endpoint.put_value(*target, u64::from(value)).detach()?;
                    }
                }
                let arrived = meeting.is_multiple_of(Self::TIMED).then(|| endpoint.now());
                match self.plan.fence {
                    Fence::All => self.barrier.wait(endpoint).await?,
                    Fence::None => self.barrier.wait_unfenced(endpoint).await?,
                }
                if let Some(arrived) = arrived {
                    result.latencies.record((endpoint.now() - arrived).as_nanos() as u64, 1);
                }
            }
            result.operations += Self::BATCH;
            if self.last.load() == batch {
                break;
            }
        }
        result.seconds = (endpoint.now() - start).as_secs_f64();
        let cost = endpoint.counts() - before;
        result.add_cost(cost);
        result.round_trips = cost.round_trips;
        result.counted = result.operations;
        Ok(result)
    }
}
