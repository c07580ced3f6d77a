//! `farfield bench broadcast`: messages of one process to all others, through a ring buffer.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use farfield::fabric::Instant;
use farfield::{Barrier, BarrierThread, Endpoint, Node, NodeId, RingBuffer, RingOptions, RingReceiver, RingSender};
use farfield_check::cli::exit::usage;
use serde::{Deserialize, Serialize};

use super::journal::Journal;
use super::measurement::{Measurement, Setup};
use super::memory::{self, Need};
use super::options::{Common, Cores, Sizes, once_each};
use super::threads::{ThreadResult, ratio};
use super::worker::{self, Workers, say};
use crate::output;

const HELP: &str = "\
Node 0 sends from one thread; --threads threads of each other node receive every message. A message is sent when fewer
than --window earlier ones are not yet acknowledged by all readers. A message carries its number in a word of each 64
bytes: readers check all of these words in each message, and each byte of one message in 16.

An operation is a message, sent and acknowledged by all. Its time is from the sending until the sender sees that all
have read it; where the window is larger than 1 it looks only when the window is full. One message in 16 is timed.
Fabric operations and bytes are those of the sender and of all readers together.

Examples:
  farfield bench broadcast --nodes 2,3,4,6,8 --repetitions 5
  farfield bench broadcast --size 8,64,512,4096,65536 --window 16";

/// Send messages from one process to all others, with a window of messages that are not yet acknowledged.
#[derive(Args, Clone)]
#[command(after_long_help = HELP)]
pub(crate) struct BroadcastArgs {
    /// Bytes of a message, or several numbers for a run with each
    #[arg(
        long,
        value_name = "BYTES",
        value_delimiter = ',',
        default_value = "64",
        value_parser = clap::value_parser!(u32).range(8..=1 << 20),
    )]
    size: Vec<u32>,
    /// Messages that are not yet acknowledged by all readers, at most, or several numbers for a run with each
    #[arg(
        long,
        value_name = "MESSAGES",
        value_delimiter = ',',
        default_values = ["1", "16", "128"],
        value_parser = clap::value_parser!(u16).range(1..=1024),
    )]
    window: Vec<u16>,
    #[command(flatten)]
    sizes: Sizes,
    #[command(flatten)]
    common: Common,
}

/// One run: the task of a session's nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Plan {
    nodes: u16,
    /// Of each node that reads.
    threads: u16,
    window: u16,
    /// Of a message, in bytes.
    size: u32,
    seconds: f64,
    cores: Cores,
}

impl Plan {
    fn readers(&self) -> usize {
        usize::from(self.nodes - 1) * usize::from(self.threads)
    }
}

pub(crate) fn main(args: &BroadcastArgs) -> Result<()> {
    if let Some(plan) = worker::plan::<Plan>()? {
        return serve(&plan);
    }
    if args.sizes.nodes.contains(&1) {
        return Err(usage("--nodes 1: one node sends, and at least one reads"));
    }
    let common = &args.common;
    let mut plans = Vec::new();
    for size in once_each(args.size.iter().copied()) {
        for (nodes, threads) in args.sizes.pairs() {
            for window in once_each(args.window.iter().copied()) {
                let mut plan = Plan { nodes, threads, window, size, seconds: common.seconds, cores: Cores::default() };
                plan.cores = common.pin.cores(1 + plan.readers())?;
                plans.push(plan);
            }
        }
    }
    // A ring on each node, and two messages of each thread.
    let need = |plan: &Plan| {
        let messages = 2 * u64::from(plan.threads);
        Need::of(plan.nodes, plan.threads).on_each(capacity_bytes(plan) as u64 + messages * u64::from(plan.size))
    };
    memory::ensure_fit(plans.iter().map(need), "--size, --window or --nodes")?;
    let mut journal = Journal::new(common);
    journal.turns(&plans, |plan| Ok(vec![run(plan, common)?]))?;
    journal.table(|_| Ok(()))
}

fn run(plan: &Plan, common: &Common) -> Result<Measurement> {
    let (mut sent, mut received): (Option<ThreadResult>, Vec<ThreadResult>) = (None, Vec::new());
    let bar = output::progress("broadcast", common.duration());
    let limit = common.duration() * 2 + Duration::from_secs(120);
    Workers::start(plan.nodes, common.fabric, plan)?.run(limit, &bar, |_, word, more| {
        match word {
            "running" => {}
            "sent" => sent = Some(serde_json::from_str(more)?),
            "received" => received.push(serde_json::from_str(more)?),
            _ => bail!("`{word}` is none of the benchmark's words"),
        }
        Ok(())
    })?;
    let sent = sent.context("node 0 has not said what it has sent: the run is incomplete")?;
    ensure!(
        received.len() == plan.readers() && received.iter().all(|reader| reader.operations == sent.operations),
        "messages were lost: {} were sent, and the {} readers have received {:?}",
        sent.operations,
        plan.readers(),
        received.iter().map(|reader| reader.operations).collect::<Vec<_>>()
    );
    let setup = Setup {
        window: Some(plan.window.into()),
        size: Some(plan.size.into()),
        ..common.setup(plan.nodes, plan.threads)
    };
    let mut measurement = Measurement::new("broadcast", "ring", setup);
    measurement.take(std::slice::from_ref(&sent), 1)?;
    let total = |of: fn(&ThreadResult) -> u64| of(&sent) + received.iter().map(of).sum::<u64>();
    let each = |total: u64| Some(ratio(total as f64, sent.operations as f64));
    measurement.fabric_ops_per_op = each(total(|thread| thread.fabric_ops));
    measurement.bytes_per_op = each(total(|thread| thread.bytes));
    measurement.round_trips_per_op = None;
    measurement.fairness = None;
    measurement.pinned = Some(plan.cores.is_pinned());
    let bytes_per_s = measurement.throughput_ops_per_s * f64::from(plan.size);
    measurement.figures.insert("bytes_per_s".into(), bytes_per_s);
    Ok(measurement)
}

/// One node of the benchmark.
fn serve(plan: &Plan) -> Result<()> {
    let node = Node::from_environment()?;
    node.wait_for_all(Duration::from_secs(30))?;
    let writer = NodeId(0);
    let readers = node.others().chain([node.id()]).filter(|peer| *peer != writer);
    let readers: std::collections::BTreeMap<NodeId, usize> =
        readers.map(|reader| (reader, usize::from(plan.threads))).collect();
    let options = RingOptions::new(writer, readers, capacity_bytes(plan));
    let ring = RingBuffer::open(&node, "ring", options)?;
    let phases = Barrier::open(&node, "phases", usize::from(plan.threads))?;
    let mut threads: Vec<Box<dyn FnOnce() -> Result<()> + Send>> = Vec::new();
    for thread in 0..plan.threads {
        let (plan, endpoint, mut phase) = (plan.clone(), node.endpoint()?, phases.thread()?);
        if node.id() != writer {
            let number = (node.id().index() - 1) * usize::from(plan.threads) + usize::from(thread);
            let mut receiver = ring.receiver()?;
            threads.push(Box::new(move || {
                plan.cores.pin(1 + number)?;
                measured(&endpoint, &mut phase, "received", async || receive(&plan, &endpoint, &mut receiver).await)
            }));
        } else if thread == 0 {
            let mut sender = ring.sender()?;
            threads.push(Box::new(move || {
                plan.cores.pin(0)?;
                measured(&endpoint, &mut phase, "sent", async || send(&plan, &endpoint, &mut sender).await)
            }));
        } else {
            threads.push(Box::new(move || {
                worker::meet(&endpoint, &mut phase)?;
                worker::meet(&endpoint, &mut phase)
            }));
        }
    }
    worker::run_threads(threads)
}

/// Measures between two meetings of all threads, and reports the result.
fn measured(
    endpoint: &Endpoint,
    phase: &mut BarrierThread,
    word: &str,
    measure: impl AsyncFnOnce() -> Result<ThreadResult>,
) -> Result<()> {
    worker::meet(endpoint, phase)?;
    if word == "sent" {
        say("running", &())?;
    }
    let before = endpoint.counts();
    let mut result = endpoint.block_on(measure())?;
    result.add_cost(endpoint.counts() - before);
    say(word, &result)?;
    worker::meet(endpoint, phase)
}

/// Room for twice the window: the window limits the messages in flight, never the ring.
fn capacity_bytes(plan: &Plan) -> usize {
    let framed = plan.size.next_multiple_of(8) as usize + 8;
    (2 * usize::from(plan.window) * framed).max(4096)
}

/// One message in so many is timed, or has all of its bytes checked.
const SELECTED: u64 = 16;
/// The number of the message that ends the run.
const END: u64 = u64::MAX;
/// In each of so many bytes a message has its number.
const STAMPED: usize = 64;

/// The contents of messages.
struct Contents(Vec<u8>);

impl Contents {
    fn new(size: u32) -> Contents {
        Contents((0..size).map(|at| (at % 251) as u8).collect())
    }

    /// The message with this number.
    fn stamped(&mut self, number: u64) -> &[u8] {
        for line in self.0.chunks_mut(STAMPED) {
            if let Some(word) = line.first_chunk_mut() {
                *word = number.to_le_bytes();
            }
        }
        &self.0
    }
}

/// The number that a message has in all of its lines.
fn number(message: &[u8]) -> Result<u64> {
    let mut words = message.chunks(STAMPED).filter_map(|line| line.first_chunk()).map(|word| u64::from_le_bytes(*word));
    let first = words.next().context("a message without a number")?;
    match words.find(|word| *word != first) {
        None => Ok(first),
        Some(other) => bail!("a message is torn: it has the numbers {first} and {other}"),
    }
}

/// Sends messages until the time is over, then the one that ends the run, and waits until all are acknowledged.
async fn send(plan: &Plan, endpoint: &Endpoint, sender: &mut RingSender) -> Result<ThreadResult> {
    let mut result = ThreadResult::new();
    let mut contents = Contents::new(plan.size);
    let window = usize::from(plan.window);
    let acknowledgements = sender.acknowledgements();
    // The positions of the messages in flight, and when they were sent.
    let mut in_flight: VecDeque<(u64, Option<Instant>)> = VecDeque::with_capacity(window);
    let mut lowest = 0;
    let start = endpoint.now();
    let end = start + Duration::from_secs_f64(plan.seconds);
    let mut is_over = false;
    while !is_over || !in_flight.is_empty() {
        // The oldest message has to be acknowledged before another is sent; at the end, all of them.
        while in_flight.len() >= window || is_over && !in_flight.is_empty() {
            let Some((position, sent)) = in_flight.pop_front() else { break };
            if lowest < position {
                lowest = acknowledgements.lowest(endpoint);
            }
            if lowest < position {
                sender.wait_acknowledged(endpoint, position, endpoint.deadline()).await?;
                lowest = acknowledgements.lowest(endpoint).max(position);
            }
            if let Some(sent) = sent {
                let now = endpoint.now();
                result.latencies.record((now - sent).as_nanos() as u64, 1);
                is_over = is_over || now >= end;
            }
        }
        if !is_over {
            let sent = result.operations.is_multiple_of(SELECTED).then(|| endpoint.now());
            let message = contents.stamped(result.operations);
            if !sender.try_send(endpoint, message)? {
                sender.send(endpoint, message).await?;
            }
            result.operations += 1;
            in_flight.push_back((sender.position(), sent));
        }
    }
    result.seconds = (endpoint.now() - start).as_secs_f64();
    sender.send(endpoint, contents.stamped(END)).await?;
    sender.wait_acknowledged(endpoint, sender.position(), endpoint.deadline()).await?;
    Ok(result)
}

/// Receives messages until the one that ends the run, and checks them.
async fn receive(plan: &Plan, endpoint: &Endpoint, receiver: &mut RingReceiver) -> Result<ThreadResult> {
    let mut result = ThreadResult::new();
    let mut expected = Contents::new(plan.size);
    let mut message = Vec::with_capacity(plan.size as usize);
    let start = endpoint.now();
    loop {
        // The clock is read only if there is none yet.
        if !receiver.try_recv(endpoint, &mut message)? {
            receiver.recv(endpoint, &mut message).await?;
        }
        let number = number(&message)?;
        if number == END {
            break;
        }
        let due = result.operations;
        ensure!(number == due, "message {due} was expected, and message {number} has come");
        ensure!(message.len() == plan.size as usize, "message {due} has {} bytes of {}", message.len(), plan.size);
        if due.is_multiple_of(SELECTED) {
            ensure!(message == expected.stamped(due), "message {due} has another content than it was sent with");
        }
        result.operations += 1;
    }
    result.seconds = (endpoint.now() - start).as_secs_f64();
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_its_number_in_every_line() {
        for size in [8, 12, 64, 100, 4096] {
            let mut contents = Contents::new(size);
            assert_eq!(contents.stamped(7).len(), size as usize);
            assert_eq!(number(contents.stamped(9)).unwrap(), 9);
        }
        let mut torn = Contents::new(128).stamped(9).to_vec();
        torn[64] = 8;
        assert_eq!(number(&torn).unwrap_err().to_string(), "a message is torn: it has the numbers 9 and 8");
        assert!(number(&[]).is_err());
    }

    #[test]
    fn the_ring_has_room_for_more_than_the_window() {
        let plan = |window, size| Plan { nodes: 2, threads: 1, window, size, seconds: 1.0, cores: Cores::default() };
        assert_eq!(capacity_bytes(&plan(1, 8)), 4096);
        assert_eq!(capacity_bytes(&plan(128, 65_536)), 2 * 128 * (65_536 + 8));
        assert!(capacity_bytes(&plan(128, 13)).is_multiple_of(8));
    }
}
