//! `farfield bench collectives`: calls that several processes make together, again and again.

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use farfield::{Barrier, BarrierThread, Collectives, CollectivesOptions, Endpoint, Node, NodeId};
use farfield_check::cli::exit::usage;
use serde::{Deserialize, Serialize};

use super::journal::Journal;
use super::measurement::{Measurement, Setup};
use super::memory::{self, Need};
use super::options::{Common, Cores, once_each};
use super::threads::{self, ThreadResult, ratio};
use super::worker::{self, say};
use crate::launch::parse_nodes;

const HELP: &str = "\
An operation is one call of all processes, each with one thread. Bytes are those that one of them sends to another: of its
whole data, or of its part for each (all_to_all). Node 0 is the root. Reductions add words of 64 bits in place. The first
and the last word of each process's data follow from the number of the call, and each result is checked in these words.

Calls follow each other in batches, with nothing between them, so a root need not wait for the others. One call in 16 is
timed, by all processes: from its begin until it ends there. Fabric operations and bytes are those of one process.

Examples:
  farfield bench collectives --nodes 2,4 --size 8,1024,65536 --peer mpi --repetitions 5
  farfield bench collectives --call all_reduce --nodes 2,3,4,6,8";

/// Broadcast, reduce, gather and exchange data among several processes
#[derive(Args, Clone)]
#[command(after_long_help = HELP)]
pub(crate) struct CollectivesArgs {
    /// The call, or several with commas between them for a run with each
    #[arg(
        long,
        value_enum,
        value_name = "CALL",
        value_delimiter = ',',
        default_values = ["broadcast", "reduce", "all_reduce", "gather", "all_gather", "all_to_all"],
    )]
    call: Vec<Call>,
    /// Bytes that one process sends to another, a multiple of 8, or several numbers for a run with each
    #[arg(
        long,
        value_name = "BYTES",
        value_delimiter = ',',
        default_values = ["8", "1024", "65536"],
        value_parser = clap::value_parser!(u32).range(8..=16 << 20),
    )]
    size: Vec<u32>,
    /// Processes, each a node of the session with one thread: one number, or several with commas between them, for a
    /// run with each
    #[arg(
        long,
        value_name = "COUNT",
        value_delimiter = ',',
        default_value = "2",
        value_parser = parse_nodes,
    )]
    nodes: Vec<u16>,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[value(rename_all = "snake_case")]
enum Call {
    /// From node 0 to all
    Broadcast,
    /// Sums of all, on node 0
    Reduce,
    /// Sums of all, on all
    AllReduce,
    /// From all to node 0
    Gather,
    /// From all to all
    AllGather,
    /// From all to all, another part for each
    AllToAll,
}

impl Call {
    fn name(self) -> &'static str {
        match self {
            Call::Broadcast => "broadcast",
            Call::Reduce => "reduce",
            Call::AllReduce => "all_reduce",
            Call::Gather => "gather",
            Call::AllGather => "all_gather",
            Call::AllToAll => "all_to_all",
        }
    }
}

/// One run: the task of a session's nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Plan {
    nodes: u16,
    call: Call,
    size: u32,
    seconds: f64,
    cores: Cores,
}

pub(crate) fn main(args: &CollectivesArgs) -> Result<()> {
    if let Some(plan) = worker::plan::<Plan>()? {
        return serve(&plan);
    }
    if let Some(size) = args.size.iter().find(|size| !size.is_multiple_of(8)) {
        return Err(usage(format!("--size {size}: words of 8 bytes are sent")));
    }
    let common = &args.common;
    let mut plans = Vec::new();
    for call in once_each(args.call.iter().copied()) {
        for nodes in once_each(args.nodes.iter().copied()) {
            for size in once_each(args.size.iter().copied()) {
                let cores = common.pin.cores(nodes.into())?;
                plans.push(Plan { nodes, call, size, seconds: common.seconds, cores });
            }
        }
    }
    if args.nodes.contains(&1) {
        return Err(usage("--nodes 1: a node alone has nobody to send to"));
    }
    let need = |plan: &Plan| {
        // What is sent and what arrives, for all members; and the links, with their buffers.
        let links = 3 * CollectivesOptions::default().chunk_bytes as u64 * CollectivesOptions::default().slots as u64;
        let nodes = u64::from(plan.nodes);
        Need::of(plan.nodes, 1).on_each(nodes * (2 * u64::from(plan.size) + links))
    };
    memory::ensure_fit(plans.iter().map(need), "--size or --nodes")?;
    let mut journal = Journal::new(common);
    journal.turns(&plans, |plan| Ok(vec![run(plan, common)?]))?;
    journal.table(|_| Ok(()))
}

fn run(plan: &Plan, common: &Common) -> Result<Measurement> {
    let results = threads::run(plan.nodes, common, plan)?;
    let setup = Setup { size: Some(plan.size.into()), ..common.setup(plan.nodes, 1) };
    let mut measurement = Measurement::new("collectives", plan.call.name(), setup);
    measurement.take(&results, plan.nodes.into())?;
    let calls = results[0].operations;
    ensure!(
        results.iter().all(|result| result.operations == calls),
        "the processes have made different numbers of calls: {:?}",
        results.iter().map(|result| result.operations).collect::<Vec<_>>()
    );
    measurement.operations = calls;
    measurement.throughput_ops_per_s = ratio(calls as f64, measurement.seconds);
    measurement.fairness = None;
    measurement.pinned = Some(plan.cores.is_pinned());
    Ok(measurement)
}

/// One node of the benchmark.
fn serve(plan: &Plan) -> Result<()> {
    let node = Node::from_environment()?;
    node.wait_for_all(Duration::from_secs(30))?;
    let mut phase = Barrier::open(&node, "phases", 1)?.thread()?;
    let all = Collectives::open(&node, "all", CollectivesOptions::default())?;
    let words = plan.size as usize / 8;
    let parts = vec![0; words * usize::from(plan.nodes)];
    let mut worker = Worker { plan: plan.clone(), me: all.rank(), all, words, data: parts.clone(), into: parts };
    let endpoint = node.endpoint()?;
    worker::run_threads(vec![move || worker.main(&endpoint, &mut phase)])
}

/// The thread of a node.
struct Worker {
    plan: Plan,
    all: Collectives,
    me: usize,
    /// That one node sends to another.
    words: usize,
    /// Room for a part for each node; most calls use the first one alone.
    data: Vec<u64>,
    into: Vec<u64>,
}

/// A node sends this in the first and the last word of a call.
fn stamp(number: u64, from: usize, to: usize) -> u64 {
    number * 1_000_003 + from as u64 * 1009 + to as u64
}

impl Worker {
    /// After so many calls the root says whether there are more.
    const BATCH: u64 = 256;
    /// One call in so many is timed.
    const TIMED: u64 = 16;
    const ROOT: NodeId = NodeId(0);

    fn main(&mut self, endpoint: &Endpoint, phase: &mut BarrierThread) -> Result<()> {
        self.plan.cores.pin(self.me)?;
        worker::meet(endpoint, phase)?;
        if self.me == 0 {
            say("running", &())?;
        }
        let result = endpoint.block_on(self.measure(endpoint))?;
        say("result", &result)?;
        worker::meet(endpoint, phase)
    }

    async fn measure(&mut self, endpoint: &Endpoint) -> Result<ThreadResult> {
        let mut result = ThreadResult::new();
        let before = endpoint.counts();
        let start = endpoint.now();
        let end = start + Duration::from_secs_f64(self.plan.seconds);
        let mut more = [1u64];
        while more[0] > 0 {
            for call in 0..Self::BATCH {
                let begun = call.is_multiple_of(Self::TIMED).then(|| endpoint.now());
                self.make(endpoint, result.operations + call).await?;
                if let Some(begun) = begun {
                    result.latencies.record((endpoint.now() - begun).as_nanos() as u64, 1);
                }
            }
            result.operations += Self::BATCH;
            more[0] = u64::from(endpoint.now() < end);
            self.all.broadcast(endpoint, Self::ROOT, &mut more).await?;
        }
        result.seconds = (endpoint.now() - start).as_secs_f64();
        let cost = endpoint.counts() - before;
        result.add_cost(cost);
        result.round_trips = cost.round_trips;
        result.counted = result.operations;
        Ok(result)
    }

    async fn make(&mut self, endpoint: &Endpoint, number: u64) -> Result<()> {
        let Worker { plan, all, me, words, data, into } = self;
        let (me, words, nodes) = (*me, *words, usize::from(plan.nodes));
        let sum = || (0..nodes).map(|from| stamp(number, from, 0)).sum::<u64>();
        if plan.call != Call::AllToAll {
            data.truncate(words);
        }
        for (to, part) in data.chunks_exact_mut(words).enumerate() {
            part[0] = stamp(number, me, to);
            part[words - 1] = stamp(number, me, to);
        }
        match plan.call {
            Call::Broadcast => {
                all.broadcast(endpoint, Self::ROOT, data).await?;
                check(data, number, |_| stamp(number, 0, 0), words)
            }
            Call::Reduce => {
                all.reduce(endpoint, Self::ROOT, data, u64::wrapping_add).await?;
                if me == 0 { check(data, number, |_| sum(), words) } else { Ok(()) }
            }
            Call::AllReduce => {
                all.all_reduce(endpoint, data, u64::wrapping_add).await?;
                check(data, number, |_| sum(), words)
            }
            Call::Gather => {
                let into = if me == 0 { &mut into[..] } else { &mut [] };
                all.gather(endpoint, Self::ROOT, data, into).await?;
                check(into, number, |from| stamp(number, from, 0), words)
            }
            Call::AllGather => {
                all.all_gather(endpoint, data, into).await?;
                check(into, number, |from| stamp(number, from, 0), words)
            }
            Call::AllToAll => {
                all.all_to_all(endpoint, data, into).await?;
                check(into, number, |from| stamp(number, from, me), words)
            }
        }
    }
}

/// Checks the first and the last word of each part.
fn check(parts: &[u64], number: u64, expected: impl Fn(usize) -> u64, words: usize) -> Result<()> {
    for (from, part) in parts.chunks_exact(words).enumerate() {
        let (first, last, expected) = (part[0], part[words - 1], expected(from));
        ensure!(
            first == expected && last == expected,
            "call {number} has brought {first} and {last} from node {from}, instead of {expected}"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_word_is_found() {
        assert!(check(&[5, 0, 5, 6, 0, 6], 1, |from| 5 + from as u64, 3).is_ok());
        let error = check(&[5, 0, 4], 1, |_| 5, 3).unwrap_err().to_string();
        assert_eq!(error, "call 1 has brought 5 and 4 from node 0, instead of 5");
        assert!(check(&[7], 1, |_| 7, 1).is_ok());
    }
}
