//! `farfield bench wrdt`: replicated data types, with as much coordination as each method needs, beside state machine
//! replication and message passing; and what a death does to them.

mod death;
mod load;
mod measure;
mod message;
mod ratios;
mod system;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use farfield::ReplicatedOptions;
use farfield::hamband::Method as _;
use farfield::{Barrier, Node};
use farfield_check::cli::exit::usage;
use serde::{Deserialize, Serialize};

use self::death::Death;
use self::load::{Load, MethodOf, Type, WithType};
use self::measure::{Cost, Done, Part};
use self::message::{BATCH, Messages};
use self::system::{Fabric, Kind};
use super::journal::Journal;
use super::measurement::{Measurement, Setup};
use super::memory::{self, Need};
use super::options::{Common, Cores, once_each};
use super::plot::{self, Steps};
use super::threads::{ThreadResult, ratio};
use super::worker::{self, Workers, say};
use crate::output;

const HELP: &str = "\
Each node is a process with a replica and one thread that calls it. A share of the calls are updates, of all methods equally
often, and the rest are queries, which read the replica of their own node. Conflicting calls are made at the leader of their
synchronisation group; all others are divided equally between the nodes. The throughput is that of the paper: calls divided
by the time until all updates are applied at all nodes. Updates, queries and each method have rows of their own.

  hamband    as much coordination as each method needs
  smr        all updates through one Mu log: state machine replication. Queries read the own replica
  msg        written for this comparison: each update is sent to all others over TCP on this host's loopback, at once (TCP_NODELAY),
             and applied by a thread that receives as much as there is. A conflicting call ends when its leader has sent it:
             nothing is acknowledged, so it guarantees less than the others
  msg-batch  as msg, but a sender collects 1400 bytes, or a millisecond

At the end all replicas have to be equal, and to keep the invariant. Operations, puts and round trips of a call are counted before
the run, on 32 calls of each method that one node makes alone: at the leader if it conflicts. Those of updates in the run are of
all threads of all nodes.

With --kill a node is killed in the middle of the run: the leader of the first synchronisation group (node 0), or a follower (the last node).
Each node then makes its own calls, and conflicting ones are forwarded to the leader. It prints what the others see, in slices of
10 ms, with the mean time of each method before and after the death (it is in the method's row, too), and with --svg draws it.
`--kill none` is the same run without a death, to compare with: its parts are those before and after its middle.

Without --kill, and with several --nodes, --svg draws the throughput over the number of nodes, updates and queries apart.

Examples:
  farfield bench wrdt --system hamband,smr,msg --type counter --nodes 4 --updates 25 --repetitions 3
  farfield bench wrdt --system hamband,smr,msg,msg-batch --type all --nodes 4 --updates 5,15,25
  farfield bench wrdt --system hamband,smr,msg --type counter --nodes 2,3,4,5,6,7 --updates 25 --svg nodes.svg
  farfield bench wrdt --type courseware --nodes 4 --kill none,leader,follower --seconds 4 --svg death.svg";

/// Replicated data types beside state machine replication and message passing
#[derive(Args, Clone)]
#[command(after_long_help = HELP, mut_arg("peer", |arg| arg.hide(true)))]
pub(crate) struct WrdtArgs {
    /// The systems to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "hamband")]
    system: Vec<Kind>,
    /// The types to measure
    #[arg(long = "type", value_name = "TYPE", value_enum, value_delimiter = ',', default_value = "counter")]
    kind: Vec<Type>,
    /// Processes, each with a replica
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_value = "4", value_parser = clap::value_parser!(u16).range(2..=16))]
    nodes: Vec<u16>,
    /// Updates among the calls, in percent
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_value = "25", value_parser = clap::value_parser!(u16).range(1..=100))]
    updates: Vec<u16>,
    /// Calls of all nodes together. By default so many as take the time of --seconds, which short runs find out
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(100..=1_000_000_000))]
    calls: Option<u64>,
    /// Kill a node in the middle of the run: a run with each
    #[arg(long, value_enum, value_name = "NODE", value_delimiter = ',', conflicts_with = "calls")]
    kill: Vec<Victim>,
    /// Draw the throughput into this file: with --kill over time, or else over several numbers of --nodes
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// The node that is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Victim {
    /// No node: the same run without a death
    None,
    /// The leader of the first synchronisation group
    Leader,
    /// The last node
    Follower,
}

impl Victim {
    fn name(self) -> &'static str {
        match self {
            Victim::None => "none",
            Victim::Leader => "leader",
            Victim::Follower => "follower",
        }
    }
}

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Plan {
    system: Kind,
    kind: Type,
    nodes: u16,
    updates: u16,
    /// Of all nodes together; 0: as many as there is time for.
    calls: u64,
    seconds: f64,
    /// If it is a run that a death may divide.
    kill: Option<Victim>,
    cores: Cores,
}

/// What a run has shown.
struct Ran {
    done: Vec<Done>,
    /// When a node was killed, on the clock of the host.
    killed_ns: Option<u64>,
}

pub(crate) fn main(args: &WrdtArgs) -> Result<()> {
    if let Some(plan) = worker::plan::<Plan>()? {
        return serve(&plan);
    }
    if !args.common.peer.is_empty() {
        return Err(usage("--peer: name other systems with --system"));
    }
    if !args.kill.is_empty() && args.system.iter().any(|system| system.is_message()) {
        return Err(usage("--kill: only hamband and smr go on after a death"));
    }
    if args.kill.iter().any(|victim| *victim != Victim::None) && args.nodes.contains(&2) {
        return Err(usage("--kill: of two nodes, one alone is no majority: take three and more"));
    }
    if args.svg.is_some() && args.kill.is_empty() && once_each(args.nodes.iter().copied()).len() < 2 {
        return Err(usage("--svg: draws a run with --kill, or several numbers of --nodes"));
    }
    let mut plans = args.plans()?;
    memory::ensure_fit(plans.iter().map(|plan| Need::of(plan.nodes, 2).on_each(8 << 20)), "--nodes")?;
    if args.kill.is_empty() && args.calls.is_none() {
        plans.iter_mut().try_for_each(|plan| plan.calibrate(&args.common))?;
    }
    let mut journal = Journal::new(&args.common);
    let (mut all, mut deaths) = (Vec::new(), Vec::new());
    journal.turns(&plans, |plan| {
        let ran = run(plan, &args.common)?;
        let mut measurements = plan.measurements(&ran, &args.common)?;
        if let Some(victim) = plan.kill {
            let death = Death::of(plan, victim, ran);
            death.add_means(&mut measurements);
            deaths.push(death);
        } else if let Some(first) = measurements.first() {
            all.push(ratios::Sample::of(plan, first.throughput_ops_per_s, &measurements));
        }
        Ok(measurements)
    })?;
    journal.table(|out| {
        ratios::write(&all, out)?;
        deaths.iter().try_for_each(|death| death.write(out))
    })?;
    let Some(file) = &args.svg else { return Ok(()) };
    let picture = if args.kill.is_empty() {
        plot::svg("Calls per second", "nodes", Steps::Each, &ratios::lines(&all))
    } else {
        let lines: Vec<_> = deaths.iter().flat_map(Death::lines).collect();
        plot::svg("Calls per second, before and after the middle", "seconds", Steps::Even, &lines)
    };
    std::fs::write(file, picture).with_context(|| format!("--svg {}", file.display()))
}

impl WrdtArgs {
    /// Each combination of the given values.
    fn plans(&self) -> Result<Vec<Plan>> {
        let mut plans = Vec::new();
        let mut kills: Vec<Option<Victim>> = once_each(self.kill.iter().copied()).into_iter().map(Some).collect();
        if kills.is_empty() {
            kills.push(None);
        }
        for kind in Type::each(&self.kind) {
            for nodes in once_each(self.nodes.iter().copied()) {
                for updates in once_each(self.updates.iter().copied()) {
                    for system in once_each(self.system.iter().copied()) {
                        for &kill in &kills {
                            plans.push(Plan {
                                system,
                                kind,
                                nodes,
                                updates,
                                calls: self.calls.unwrap_or(0),
                                seconds: self.common.seconds,
                                kill,
                                cores: self.common.pin.cores(nodes.into())?,
                            });
                        }
                    }
                }
            }
        }
        Ok(plans)
    }
}

/// The calls of the first run that finds out how many there is time for.
const CALIBRATION: u64 = 4_000;

impl Plan {
    /// The rank of the node that is killed.
    fn victim(&self) -> Option<usize> {
        match self.kill? {
            Victim::None => None,
            Victim::Leader => Some(0),
            Victim::Follower => Some(usize::from(self.nodes) - 1),
        }
    }

    /// Finds out how many calls take the time of the run.
    fn calibrate(&mut self, common: &Common) -> Result<()> {
        self.calls = CALIBRATION;
        loop {
            let ran = run(self, common)?;
            let seconds = ran.done.iter().map(|done| done.seconds).fold(f64::MIN_POSITIVE, f64::max);
            let rate = self.calls as f64 / seconds;
            let is_long = seconds > 0.1 * self.seconds;
            // A short run may be much slower than a long one, and says little.
            let calls = rate * self.seconds;
            self.calls = if is_long { calls } else { calls.min(16.0 * self.calls as f64) }.max(100.0) as u64;
            if is_long {
                return Ok(());
            }
        }
    }

    fn setup(&self, common: &Common) -> Setup {
        Setup {
            fabric: Some(if self.system.is_message() { "tcp".into() } else { common.fabric.name().into() }),
            nodes: Some(self.nodes.into()),
            update_percent: Some(self.updates.into()),
            ..Setup::default()
        }
    }

    /// All calls, updates, queries, and the calls of each method.
    fn measurements(&self, ran: &Ran, common: &Common) -> Result<Vec<Measurement>> {
        let first = ran.done.first().context("no node has reported")?;
        for done in &ran.done {
            ensure!(done.keeps_invariant, "{}, {}: node {} breaks the invariant", self.kind, self.system, done.rank);
            let others = (first.rank, done.rank);
            ensure!(done.state == first.state, "{}, {}: the replicas of {others:?} differ", self.kind, self.system);
        }
        let seconds = ran.done.iter().map(|done| done.seconds).fold(0.0, f64::max);
        let death = self.kill.map_or(String::new(), |victim| format!(", {} killed", victim.name()));
        let of = |what: &str, results: Vec<ThreadResult>| -> Result<Measurement> {
            let case = format!("{} {} {what}{death}", self.kind, self.system);
            let mut measurement = Measurement::new("wrdt", &case, self.setup(common));
            let timed = |result: ThreadResult| ThreadResult { seconds, ..result };
            measurement.take(&results.into_iter().map(timed).collect::<Vec<_>>(), ran.done.len())?;
            (measurement.fairness, measurement.pinned) = (None, Some(self.cores.is_pinned()));
            (measurement.round_trips_per_op, measurement.fabric_ops_per_op, measurement.bytes_per_op) =
                (None, None, None);
            let mean = measurement.latency_histogram.as_ref().map_or(0.0, |all| all.histogram().mean());
            measurement.figures.insert("mean_ns".into(), mean);
            Ok(measurement)
        };
        let joined = |results: Vec<&ThreadResult>| -> Result<ThreadResult> {
            let mut all = ThreadResult::new();
            for result in results {
                all.operations += result.operations;
                all.latencies.merge(&result.latencies)?;
            }
            Ok(all)
        };
        let updates = ran.done.iter().map(|done| joined(done.methods.iter().collect()));
        let updates = updates.collect::<Result<Vec<_>>>()?;
        let queries: Vec<ThreadResult> = ran.done.iter().map(|done| done.queries.clone()).collect();
        let calls = updates.iter().zip(&queries).map(|(one, other)| joined(vec![one, other]));
        let mut all = vec![of("calls", calls.collect::<Result<Vec<_>>>()?)?];
        let mut of_updates = of("updates", updates)?;
        let made = of_updates.operations as f64;
        let total = |field: fn(&Done) -> u64| ran.done.iter().map(field).sum::<u64>() as f64;
        of_updates.fabric_ops_per_op = Some(ratio(total(|done| done.posted), made));
        of_updates.bytes_per_op = Some(ratio(total(|done| done.bytes), made));
        let refused = total(|done| done.refused);
        of_updates.figures.insert("refused_%".into(), 100.0 * ratio(refused, made));
        all.push(of_updates);
        if self.updates < 100 {
            all.push(of("queries", queries)?);
        }
        for (at, (name, category)) in self.kind.with(Names(self.system)).into_iter().enumerate() {
            let results = ran.done.iter().map(|done| done.methods[at].clone()).collect();
            let mut of_method = of(&format!("{name}, {category}"), results)?;
            if let Some(cost) = ran.done.iter().find_map(|done| done.costs[at]) {
                let Cost { operations, puts, bytes, round_trips } = cost;
                (of_method.fabric_ops_per_op, of_method.bytes_per_op) = (Some(operations), Some(bytes));
                // Messages have no round trips: nothing is acknowledged.
                of_method.round_trips_per_op = (!self.system.is_message()).then_some(round_trips);
                of_method.figures.insert("puts".into(), puts);
            }
            all.push(of_method);
        }
        Ok(all)
    }
}

/// The methods that are called, with their categories.
struct Names(Kind);

impl WithType for Names {
    type Output = Vec<(&'static str, &'static str)>;

    fn with<T: Load>(self) -> Self::Output {
        let of = |method: MethodOf<T>| (MethodOf::<T>::NAMES[method.number()], self.0.category::<T>(method));
        T::methods().into_iter().map(of).collect()
    }
}

/// Starts the nodes, and collects their results.
fn run(plan: &Plan, common: &Common) -> Result<Ran> {
    let duration = common.duration();
    let bar = output::progress(&format!("measuring {} {}", plan.kind, plan.system), duration);
    let mut ran = Ran { done: Vec::new(), killed_ns: None };
    let mut workers = Workers::start(plan.nodes, common.fabric, plan)?;
    if let Some(victim) = plan.victim() {
        workers.kill(vec![victim], duration / 2);
    }
    // A millisecond for a call is long.
    let limit = duration * 20 + Duration::from_secs(300) + Duration::from_millis(plan.calls);
    workers.run(limit, &bar, |_, word, more| {
        match word {
            "running" => {}
            "killed" => ran.killed_ns = Some(serde_json::from_str(more)?),
            "result" => ran.done.push(serde_json::from_str(more)?),
            _ => bail!("`{word}` is none of the benchmark's words"),
        }
        Ok(())
    })?;
    ran.done.sort_by_key(|done| done.rank);
    Ok(ran)
}

/// One node of the benchmark.
fn serve(plan: &Plan) -> Result<()> {
    let node = Node::from_environment()?;
    node.wait_for_all(Duration::from_secs(60))?;
    let done = plan.kind.with(Serve { plan, node: &node })?;
    say("result", &done)
}

struct Serve<'n> {
    plan: &'n Plan,
    node: &'n Node,
}

impl WithType for Serve<'_> {
    type Output = Result<Done>;

    fn with<T: Load>(self) -> Result<Done> {
        let Serve { plan, node } = self;
        let mut phases = Barrier::open(node, "phases", 1)?.thread()?;
        plan.cores.pin(node.id().0.into())?;
        let endpoint = node.endpoint()?;
        let (nodes, options) = (plan.nodes.into(), T::options());
        let mut messages = |batch| Messages::<T>::open(node, &endpoint, &mut phases, nodes, batch);
        match plan.system {
            Kind::Hamband | Kind::Smr => {
                let options = ReplicatedOptions { serialised: plan.system == Kind::Smr, ..options };
                let client = Fabric::open(node, T::initial(), options)?;
                Part { plan, node, endpoint: &endpoint, phases }.run::<T>(client)
            }
            Kind::Msg | Kind::MsgBatch => {
                let client = messages(if plan.system == Kind::Msg { 0 } else { BATCH })?;
                Part { plan, node, endpoint: &endpoint, phases }.run::<T>(client)
            }
        }
    }
}
