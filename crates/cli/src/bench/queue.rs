//! `farfield bench queue`: threads of several processes that enqueue and dequeue.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::Args;
use farfield::{Barrier, Endpoint, Node, NodeId, Queue, QueueOptions};
use serde::{Deserialize, Serialize};

use super::journal::Journal;
use super::measurement::Measurement;
use super::memory::{self, Need};
use super::options::{Common, Cores, Sizes};
use super::threads::ThreadResult;
use super::worker::{self, Workers, say};
use crate::output;

const HELP: &str = "\
Each thread enqueues a value and then dequeues one, again and again. The queue is on node 0, and holds words. An
operation is such a pair; its time is from the end of the pair before.

Each run checks that all values come out once, and that each thread gets those of another in the order in which they
were enqueued.

Examples:
  farfield bench queue --nodes 2,3,4 --repetitions 5";

/// Enqueue and dequeue words, with all threads of several processes.
#[derive(Args, Clone)]
#[command(after_long_help = HELP)]
pub(crate) struct QueueArgs {
    /// Words for which the queue has room
    #[arg(long, value_name = "WORDS", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    capacity: u32,
    #[command(flatten)]
    sizes: Sizes,
    #[command(flatten)]
    common: Common,
}

/// One run: the task of a session's nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Plan {
    nodes: u16,
    /// Of each node.
    threads: u16,
    capacity: u32,
    seconds: f64,
    cores: Cores,
}

/// The results of one thread.
#[derive(Debug, Serialize, Deserialize)]
struct Outcome {
    done: ThreadResult,
    /// The sum of the values that it has enqueued, and of those that it has dequeued.
    enqueued: u64,
    dequeued: u64,
}

pub(crate) fn main(args: &QueueArgs) -> Result<()> {
    if let Some(plan) = worker::plan::<Plan>()? {
        return serve(&plan);
    }
    let common = &args.common;
    let mut plans = Vec::new();
    for (nodes, threads) in args.sizes.pairs() {
        let cores = common.pin.cores(usize::from(nodes) * usize::from(threads))?;
        plans.push(Plan { nodes, threads, capacity: args.capacity, seconds: common.seconds, cores });
    }
    // Values and their marks, on node 0.
    let need = |plan: &Plan| Need::of(plan.nodes, plan.threads).on_all(64 * u64::from(plan.capacity));
    memory::ensure_fit(plans.iter().map(need), "--nodes, --threads or --capacity")?;
    let mut journal = Journal::new(common);
    journal.turns(&plans, |plan| Ok(vec![run(plan, common)?]))?;
    journal.table(|out| writeln!(out, "all values came out once, and in order"))
}

fn run(plan: &Plan, common: &Common) -> Result<Measurement> {
    let mut results: Vec<Outcome> = Vec::new();
    let bar = output::progress("queue", common.duration());
    let limit = common.duration() * 2 + Duration::from_secs(120);
    Workers::start(plan.nodes, common.fabric, plan)?.run(limit, &bar, |_, word, more| {
        match word {
            "running" => {}
            "result" => results.push(serde_json::from_str(more)?),
            _ => bail!("`{word}` is none of the benchmark's words"),
        }
        Ok(())
    })?;
    let mut measurement = Measurement::new("queue", "pair", common.setup(plan.nodes, plan.threads));
    let done: Vec<_> = results.iter().map(|result| result.done.clone()).collect();
    measurement.take(&done, usize::from(plan.nodes) * usize::from(plan.threads))?;
    let sum = |of: fn(&Outcome) -> u64| results.iter().map(of).fold(0, u64::wrapping_add);
    ensure!(
        sum(|thread| thread.enqueued) == sum(|thread| thread.dequeued),
        "the queue is broken: after {} pairs the values that came out are others than those that were enqueued",
        measurement.operations
    );
    measurement.pinned = Some(plan.cores.is_pinned());
    Ok(measurement)
}

/// One node of the benchmark.
fn serve(plan: &Plan) -> Result<()> {
    let node = Node::from_environment()?;
    node.wait_for_all(Duration::from_secs(30))?;
    let options = QueueOptions {
        enqueues_per_node: usize::from(plan.threads),
        batch_max: 1,
        ..QueueOptions::new(NodeId(0), plan.capacity as usize)
    };
    let queue = Arc::new(Queue::<u64>::open(&node, "queue", options)?);
    let phases = Barrier::open(&node, "phases", usize::from(plan.threads))?;
    let mut threads = Vec::new();
    for thread in 0..plan.threads {
        let number = node.id().index() * usize::from(plan.threads) + usize::from(thread);
        let (plan, queue, endpoint) = (plan.clone(), Arc::clone(&queue), node.endpoint()?);
        let mut phase = phases.thread()?;
        threads.push(move || {
            plan.cores.pin(number)?;
            worker::meet(&endpoint, &mut phase)?;
            if number == 0 {
                say("running", &())?;
            }
            let result = endpoint.block_on(measure(&plan, number as u64, &queue, &endpoint))?;
            say("result", &result)?;
            worker::meet(&endpoint, &mut phase)
        });
    }
    worker::run_threads(threads)
}

/// A value names the thread that enqueued it, and its number among the values of that thread.
const NUMBER_BITS: u32 = 48;

/// Enqueues a value and dequeues one, until the time is over. There is always one for it: each thread has enqueued at
/// least as many as it has dequeued.
async fn measure(plan: &Plan, thread: u64, queue: &Queue<u64>, endpoint: &Endpoint) -> Result<Outcome> {
    let mut result = Outcome { done: ThreadResult::new(), enqueued: 0, dequeued: 0 };
    // Of each thread, its value that came last.
    let mut last: HashMap<u64, u64, foldhash::fast::FixedState> = HashMap::default();
    let start = endpoint.now();
    let end = start + Duration::from_secs_f64(plan.seconds);
    let (mut now, mut before, mut number) = (start, endpoint.counts(), 0);
    while now < end {
        number += 1;
        let value = thread << NUMBER_BITS | number;
        queue.enqueue(endpoint, &value).await?;
        let got = queue.dequeue(endpoint).await?;
        let (ended, after) = (endpoint.now(), endpoint.counts());
        result.done.add((ended - now).as_nanos() as u64, after - before);
        result.enqueued = result.enqueued.wrapping_add(value);
        result.dequeued = result.dequeued.wrapping_add(got);
        let (from, number) = (got >> NUMBER_BITS, got & ((1 << NUMBER_BITS) - 1));
        let earlier = last.insert(from, number).unwrap_or(0);
        ensure!(
            number > earlier,
            "the queue is broken: value {number} of thread {from} came after its value {earlier}"
        );
        (now, before) = (ended, after);
    }
    result.done.seconds = (now - start).as_secs_f64();
    Ok(result)
}
