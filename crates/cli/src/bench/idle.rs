//! `farfield bench idle`: what a long wait costs, and how soon it ends.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use farfield::{
    ALockArray, ALockOptions, Barrier, BarrierThread, Endpoint, Heartbeats, LockArray, LockGuard, MutexArray, Node,
    NodeId, OwnedVar, Queue, QueueOptions, RingBuffer, RingOptions,
};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::journal::Journal;
use super::measurement::{Measurement, Setup};
use super::memory::{self, Need};
use super::options::{Common, once_each};
use super::threads::ThreadResult;
use super::worker::{self, Workers, say};
use crate::output;

const HELP: &str = "\
One process waits for an object, and another ends the wait after a pause, again and again. Printed are the share of a
core that the waiting thread takes, and that of its process with the service thread, and the time from just before the
other process acts to the end of the wait.

Examples:
  farfield bench idle --pause 5,20
  farfield bench idle --case queue --heartbeats 2          what heartbeats cost, and whether they suspect in vain
  farfield bench idle --case queue --seconds 5";

/// Wait for long for an object of another process
#[derive(Args, Clone)]
#[command(after_long_help = HELP)]
pub(crate) struct IdleArgs {
    /// What is waited for, or several with commas between them
    #[arg(long, value_enum, value_delimiter = ',', num_args = 1..,
          default_values = ["queue", "ring", "variable", "barrier", "mutex", "alock"])]
    case: Vec<Case>,
    /// The length of each wait in milliseconds, or several with commas between them
    #[arg(long, value_name = "MS", default_value = "10", value_delimiter = ',', num_args = 1..,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pause: Vec<u32>,
    /// Both nodes have heartbeats with this period in milliseconds; then the waits are counted after which the other
    /// node is suspected
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..=1000))]
    heartbeats: Option<u32>,
    #[command(flatten)]
    common: Common,
}

/// What is waited for. All of it is on the node that ends the wait, but for copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Case {
    /// A value in an empty queue
    Queue,
    /// A message in an empty ring
    Ring,
    /// Another value of a variable
    Variable,
    /// The other thread of a barrier
    Barrier,
    /// A mutex that is held
    Mutex,
    /// An ALock that is held
    Alock,
}

/// One run: the task of a session's nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Plan {
    case: Case,
    pause_ms: u32,
    rounds: u32,
    heartbeats_ms: Option<u32>,
}

/// What the waiting node has measured.
#[derive(Debug, Serialize, Deserialize)]
struct Outcome {
    done: ThreadResult,
    /// What the waiting thread has run, and all threads of its process.
    cpu_seconds: [f64; 2],
    /// After how many waits its heartbeats suspected the other node.
    suspected: Option<u32>,
}

/// The node that ends the waits, and that of most of the objects.
const ACTING: NodeId = NodeId(0);

pub(crate) fn main(args: &IdleArgs) -> Result<()> {
    if let Some(plan) = worker::plan::<Plan>()? {
        return serve(&plan);
    }
    let common = &args.common;
    let mut plans = Vec::new();
    for case in once_each(args.case.iter().copied()) {
        for pause_ms in once_each(args.pause.iter().copied()) {
            let rounds = (common.seconds * 1e3 / f64::from(pause_ms)).ceil().max(1.0) as u32;
            plans.push(Plan { case, pause_ms, rounds, heartbeats_ms: args.heartbeats });
        }
    }
    memory::ensure_fit([Need::of(2, 1)], "the use of memory by other programs")?;
    let mut journal = Journal::new(common);
    journal.turns(&plans, |plan| Ok(vec![run(plan, common)?]))?;
    journal.table(|_| Ok(()))
}

fn run(plan: &Plan, common: &Common) -> Result<Measurement> {
    let mut outcome: Option<Outcome> = None;
    let bar = output::progress("idle", common.duration());
    let limit = common.duration() * 2 + Duration::from_secs(120);
    Workers::start(2, common.fabric, plan)?.run(limit, &bar, |_, word, more| {
        match word {
            "running" => {}
            "result" => outcome = Some(serde_json::from_str(more)?),
            _ => bail!("`{word}` is none of the benchmark's words"),
        }
        Ok(())
    })?;
    let outcome = outcome.context("node 1 has not said how long it has waited: the run is incomplete")?;
    let case = plan.case.to_possible_value().context("every case has a name")?;
    let setup = Setup { pause_ms: Some(plan.pause_ms), heartbeats_ms: plan.heartbeats_ms, ..common.setup(2, 1) };
    let mut measurement = Measurement::new("idle", case.get_name(), setup);
    measurement.take(std::slice::from_ref(&outcome.done), 1)?;
    let percent = outcome.cpu_seconds.map(|seconds| 100.0 * seconds / outcome.done.seconds);
    measurement.figures.insert("core_percent".into(), percent[0]);
    measurement.figures.insert("process_percent".into(), percent[1]);
    measurement.figures.extend(outcome.suspected.map(|waits| ("suspected".into(), waits.into())));
    measurement.fairness = None;
    Ok(measurement)
}

/// One node of the benchmark.
fn serve(plan: &Plan) -> Result<()> {
    let node = Node::from_environment()?;
    node.wait_for_all(Duration::from_secs(30))?;
    let objects = Objects {
        stamp: OwnedVar::open(&node, "stamp", ACTING)?,
        queue: Queue::open(&node, "queue", QueueOptions::new(ACTING, 16))?,
        ring: RingBuffer::open(&node, "ring", RingOptions::broadcast(&node, ACTING, 4096))?,
        mutexes: MutexArray::open_among(&node, "mutex", &[ACTING, NodeId(1)], 1)?,
        alocks: ALockArray::open(&node, "alock", 1, ALockOptions::default())?,
    };
    let beats = plan.heartbeats_ms.map(|ms| Heartbeats::open(&node, "beats", Duration::from_millis(ms.into())));
    let phase = Barrier::open(&node, "phases", 1)?.thread()?;
    let meeting = Barrier::open(&node, "barrier", 1)?.thread()?;
    let endpoint = node.endpoint()?;
    let mut waits = Waits { plan, objects: &objects, endpoint: &endpoint, phase, beats: beats.transpose()? };
    if node.id() == ACTING { waits.end_all(meeting) } else { waits.wait_for_all(meeting) }
}

struct Objects {
    /// When the acting node has acted last.
    stamp: OwnedVar<u64>,
    queue: Queue<u64>,
    ring: RingBuffer,
    mutexes: MutexArray,
    alocks: ALockArray,
}

struct Waits<'a> {
    plan: &'a Plan,
    objects: &'a Objects,
    endpoint: &'a Endpoint,
    phase: BarrierThread,
    beats: Option<Heartbeats>,
}

impl Waits<'_> {
    /// Both nodes begin a round.
    fn begin(&mut self) -> Result<()> {
        worker::meet(self.endpoint, &mut self.phase)
    }

    /// Ends each wait of the other node. Only then does that learn when this has begun: a put before might wake it.
    fn end_all(&mut self, mut meeting: BarrierThread) -> Result<()> {
        let (objects, ep) = (self.objects, self.endpoint);
        let (mut stamp, mut sender) = (objects.stamp.writer()?, objects.ring.sender()?);
        say("running", &())?;
        let case = self.plan.case;
        for round in 0..self.plan.rounds {
            let mutex = (case == Case::Mutex).then(|| ep.block_on(objects.mutexes.lock(ep, 0))).transpose()?;
            let alock = (case == Case::Alock).then(|| ep.block_on(objects.alocks.lock(ep, 0))).transpose()?;
            self.begin()?;
            std::thread::sleep(Duration::from_millis(self.plan.pause_ms.into())); // the other node waits
            let acted = ep.now().ns;
            match case {
                Case::Queue => ep.block_on(objects.queue.enqueue(ep, &round.into()))?,
                Case::Ring => ep.block_on(sender.send(ep, &round.to_le_bytes()))?,
                Case::Variable => {} // the stamp itself
                Case::Barrier => ep.block_on(meeting.wait(ep))?,
                Case::Mutex | Case::Alock => {
                    mutex.map(|held| ep.block_on(held.unlock())).transpose()?;
                    alock.map(|held| ep.block_on(held.unlock())).transpose()?;
                }
            }
            stamp.store(acted);
            ep.block_on(stamp.push(ep))?;
            self.begin()?; // the other node has what it waited for, and has released it
        }
        self.begin()
    }

    /// Waits once in each round.
    fn wait_for_all(&mut self, mut meeting: BarrierThread) -> Result<()> {
        let (objects, ep) = (self.objects, self.endpoint);
        let mut receiver = objects.ring.receiver()?;
        let (mut message, mut seen) = (Vec::new(), 0);
        let (start, cpu, before) = (ep.now(), cpu_seconds(), ep.counts());
        let mut done = ThreadResult::new();
        let mut suspected = self.beats.as_ref().map(|_| 0);
        for round in 0..self.plan.rounds {
            self.begin()?;
            let (mut mutex, mut alock) = (None, None);
            match self.plan.case {
                Case::Queue => {
                    let value = ep.block_on(objects.queue.dequeue(ep))?;
                    ensure!(value == u64::from(round), "value {round} was expected, and {value} has come");
                }
                Case::Ring => {
                    ep.block_on(receiver.recv(ep, &mut message))?;
                    ensure!(message == round.to_le_bytes(), "message {round} was expected, and another has come");
                }
                Case::Variable => {
                    let changed = || objects.stamp.try_load().filter(|now| *now != seen);
                    seen = ep.block_on(ep.wait_until(ep.deadline(), changed))?;
                }
                Case::Barrier => ep.block_on(meeting.wait(ep))?,
                Case::Mutex => mutex = Some(ep.block_on(objects.mutexes.lock(ep, 0))?),
                Case::Alock => alock = Some(ep.block_on(objects.alocks.lock(ep, 0))?),
            }
            let ended = ep.now();
            mutex.map(|held| ep.block_on(held.unlock())).transpose()?;
            alock.map(|held| ep.block_on(held.unlock())).transpose()?;
            self.begin()?;
            let acted = ep.block_on(objects.stamp.load(ep))?;
            done.latencies.record(ended.ns.saturating_sub(acted), 1);
            done.operations += 1;
            if self.beats.as_ref().is_some_and(|beats| beats.is_suspected(ACTING)) {
                suspected = suspected.map(|waits| waits + 1);
            }
        }
        done.seconds = (ep.now() - start).as_secs_f64();
        done.add_cost(ep.counts() - before);
        let after = cpu_seconds();
        say("result", &Outcome { done, cpu_seconds: [after[0] - cpu[0], after[1] - cpu[1]], suspected })?;
        self.begin()
    }
}

/// What this thread has run so far, and all threads of its process.
fn cpu_seconds() -> [f64; 2] {
    [ClockId::ThreadCPUTime, ClockId::ProcessCPUTime].map(|clock| {
        let time = clock_gettime(clock);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    })
}
