//! `farfield bench swarm`: the replicated store beside other ways to keep values on memory nodes, and what a death does
//! to it.

mod abd;
mod area;
mod death;
mod fusee;
mod measure;
mod raw;
mod system;
#[cfg(test)]
mod tests;
mod trips;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use farfield::{Barrier, BarrierThread, Endpoint, MemberStatus, Node, NodeId};
use farfield_check::cli::exit::usage;
use serde::{Deserialize, Serialize};

use self::death::{Death, Effect};
use self::measure::{Call, Calls, Done, Draws, Measurer, load, warm};
use self::system::{Body, Client, Kind, Scale, System};
use self::trips::{Histograms, TRIPS_MAX, Trips};
use super::journal::{self, Journal};
use super::kv::name;
use super::measurement::{Measurement, Setup};
use super::memory::{self, Need};
use super::options::{Common, Cores, once_each};
use super::plot::{self, Line, Steps};
use super::slices;
use super::worker::{self, Workers, say};
use super::workload::{Distribution, KeyChooser, Latest, Operations, Workload};
use crate::output;

const HELP: &str = "\
Memory nodes lend memory, and do nothing else; clients, each a process with one thread, call them. All keys are there at
the beginning (with workload d, half of them), and every client has read each of them once. Gets, updates, inserts and
deletes are shown apart, each with its round trips: the median, the 99th percentile, and the share of calls that took one.
Below the table there is a histogram of them, beside the numbers of SWARM's paper.

The systems are Farfield's own store (swarm) and three baselines, written for this comparison on the same fabric. Theirs are keys
whose place is known, without an index: numbers from 0 on. An insert of theirs takes the place of an earlier key.

  swarm    replicated on a majority of the memory nodes
  dm-abd   replicated on a majority; two round trips for each call
  fusee    replicated on f + 1 of 2f + 1 memory nodes, synchronously; a get takes one or two round trips. An update takes
           four and more, and three and more if another update of its key wins: it waits for that one. A death would
           stop it
  raw      one copy, no order among writers, torn values: as fast as one gets

With --kill a whole minority of the memory nodes is killed at once in the middle of the run: one of three, two of five, three of
seven. It prints what the clients see, in slices of 10 ms, and with --svg draws it. Of these systems only swarm is written to go on.

Examples:
  farfield bench swarm --system swarm,dm-abd,fusee,raw --workload a,b
  farfield bench swarm --clients 16 --keys 1 --workload a
  farfield bench swarm --kill --seconds 4 --svg death.svg";

/// The replicated store beside other ways to keep values on memory nodes
#[derive(Args, Clone)]
#[command(after_long_help = HELP, mut_arg("peer", |arg| arg.hide(true)))]
pub(crate) struct SwarmArgs {
    /// The systems to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "swarm")]
    system: Vec<Kind>,
    /// The mixes of operations
    #[arg(long, value_enum, value_delimiter = ',', default_value = "a,b")]
    workload: Vec<Mix>,
    /// How keys are chosen
    #[arg(long, value_enum, value_delimiter = ',', default_value = "zipfian")]
    distribution: Vec<Distribution>,
    /// Memory nodes: an odd number, of which any minority may die
    #[arg(long, value_delimiter = ',', default_value = "3", value_parser = replicas)]
    replicas: Vec<u16>,
    /// Processes that call the store, each with one thread
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_value = "4", value_parser = clap::value_parser!(u16).range(1..=120))]
    clients: Vec<u16>,
    /// Calls that each client keeps in flight. Round trips are counted with 1 only; dm-abd and fusee take no other
    #[arg(long, value_name = "CALLS", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u16).range(1..=32))]
    window: Vec<u16>,
    /// Keys that there is room for
    #[arg(long, default_value = "10000", value_parser = clap::value_parser!(u32).range(1..=2_000_000))]
    keys: u32,
    /// Bytes of a value
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "64", value_parser = clap::value_parser!(u32).range(8..=65536))]
    size: Vec<u32>,
    /// Metadata words of each of swarm's registers; 0: one for each client
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_value = "0")]
    metadata_words: Vec<u16>,
    /// Kill a minority of the memory nodes in the middle of the run: one of three, two of five, three of seven
    #[arg(long)]
    kill: bool,
    /// With --kill: draw the throughput over time into this file
    #[arg(long, value_name = "FILE", requires = "kill")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// A mix of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mix {
    /// Update heavy: 50 % gets, 50 % updates
    A,
    /// Read mostly: 95 % gets, 5 % updates
    B,
    /// Read only
    C,
    /// Read latest: 95 % gets, mostly of new keys, and 5 % inserts, each after a delete of the oldest key
    D,
}

impl Mix {
    /// None: read latest.
    fn workload(self) -> Option<Workload> {
        match self {
            Mix::A => Some(Workload::A),
            Mix::B => Some(Workload::B),
            Mix::C => Some(Workload::C),
            Mix::D => None,
        }
    }
}

fn replicas(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(count @ (1 | 3 | 5 | 7)) => Ok(count),
        _ => Err("1, 3, 5 or 7".into()),
    }
}

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Plan {
    system: Kind,
    workload: Mix,
    distribution: Distribution,
    replicas: u16,
    clients: u16,
    window: u16,
    keys: u32,
    size: u32,
    metadata_words: u16,
    seconds: f64,
    kills: bool,
    cores: Cores,
}

/// What a run has shown.
struct Ran {
    done: Vec<Done>,
    /// The memory that the memory nodes lend, all together.
    memory_bytes: u64,
    /// When those that were killed were, on the clock of the host.
    killed_ns: Vec<u64>,
}

impl Ran {
    /// The round trips of all clients' calls of a kind.
    fn trips(&self, call: Call) -> Trips {
        let mut trips = [0; TRIPS_MAX + 1];
        self.done.iter().for_each(|done| trips::merge(&mut trips, &done.calls[call as usize].trips));
        trips
    }
}

pub(crate) fn main(args: &SwarmArgs) -> Result<()> {
    if let Some(plan) = worker::plan::<Plan>()? {
        return serve(&plan);
    }
    if !args.common.peer.is_empty() {
        return Err(usage("--peer: name other systems with --system"));
    }
    if args.kill && (args.system != [Kind::Swarm] || args.replicas.contains(&1)) {
        return Err(usage("--kill: only swarm, on three memory nodes and more, is written to go on after a death"));
    }
    let has = |kind: Kind| args.system.contains(&kind);
    if (has(Kind::DmAbd) || has(Kind::Fusee)) && args.window != [1] {
        return Err(usage("--window: clients of dm-abd and fusee make one call at a time"));
    }
    if has(Kind::Fusee) && args.replicas.contains(&1) {
        return Err(usage("--replicas 1: fusee has two copies at least"));
    }
    if args.workload.contains(&Mix::D) && args.clients.iter().any(|clients| args.keys < 2 * u32::from(*clients)) {
        return Err(usage("--keys: workload d needs two for each client, one that is there and room for one more"));
    }
    let plans = args.plans()?;
    memory::ensure_fit(plans.iter().map(Plan::need), "--keys, --size or --clients")?;
    let mut journal = Journal::new(&args.common);
    let (mut histograms, mut deaths) = (Histograms::default(), Vec::new());
    journal.turns(&plans, |plan| {
        let ran = run(plan, &args.common)?;
        let measurements = plan.measurements(&ran, &args.common)?;
        let alike = plans.iter().filter(|other| (other.system, other.workload) == (plan.system, plan.workload));
        let varied = journal::varied(&plan.setup(&args.common), alike.map(|other| other.setup(&args.common)));
        for call in Call::ALL {
            let title = format!("{}{varied}", plan.case(call));
            histograms.add(title, trips::paper(plan.system, call), ran.trips(call));
        }
        if plan.kills {
            let name = format!("workload {}{varied}", name(plan.workload));
            deaths.push(Death { name, done: ran.done, killed_ns: ran.killed_ns });
        }
        Ok(measurements)
    })?;
    journal.table(|out| {
        histograms.write(out)?;
        deaths.iter().try_for_each(|death| death.write(out))
    })?;
    let Some(file) = &args.svg else { return Ok(()) };
    let line = |death: &Death| Line { name: death.name.clone(), points: over_time(&death.done) };
    let lines: Vec<Line> = deaths.iter().map(line).collect();
    let title = "Calls per second; a minority of the memory nodes is killed in the middle";
    let picture = plot::svg(title, "seconds", Steps::Even, &lines);
    std::fs::write(file, picture).with_context(|| format!("--svg {}", file.display()))
}

impl SwarmArgs {
    /// Each combination of the given values.
    fn plans(&self) -> Result<Vec<Plan>> {
        let mut plans = Vec::new();
        let cores = |threads: u16| self.common.pin.cores(threads.into());
        for workload in once_each(self.workload.iter().copied()) {
            // Which keys are read is a part of workload d.
            let distributions = once_each(self.distribution.iter().copied());
            let distributions = if workload == Mix::D { vec![Distribution::Zipfian] } else { distributions };
            for distribution in distributions {
                for replicas in once_each(self.replicas.iter().copied()) {
                    for clients in once_each(self.clients.iter().copied()) {
                        for size in once_each(self.size.iter().copied()) {
                            for window in once_each(self.window.iter().copied()) {
                                for system in once_each(self.system.iter().copied()) {
                                    let is_swarm = system == Kind::Swarm;
                                    let words = once_each(self.metadata_words.iter().copied());
                                    for metadata_words in if is_swarm { words } else { vec![0] } {
                                        plans.push(Plan {
                                            system,
                                            workload,
                                            distribution,
                                            replicas,
                                            clients,
                                            window,
                                            keys: self.keys,
                                            size,
                                            metadata_words,
                                            seconds: self.common.seconds,
                                            kills: self.kill,
                                            cores: cores(clients)?,
                                        });
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
        Ok(plans)
    }
}

impl Plan {
    fn scale(&self) -> Scale {
        Scale {
            memory: (0..self.replicas).map(NodeId).collect(),
            clients: self.clients.into(),
            keys: self.keys as usize,
            size: self.size as usize,
            metadata_words: self.metadata_words.into(),
        }
    }

    /// About the memory that the memory nodes lend: that of `swarm`, which needs most.
    fn need(&self) -> Need {
        let writers = u64::from(self.clients);
        let value = u64::from(self.size) + 32;
        let for_each_key = 16 * writers + value + 150 + writers * (value + 128);
        let bytes = u64::from(self.replicas) * u64::from(self.keys) * 2 * for_each_key;
        Need::of(self.replicas + self.clients, 1).on_all(bytes)
    }

    /// Keys that are there at the beginning.
    fn loaded(&self) -> usize {
        let (keys, clients) = (self.keys as usize, usize::from(self.clients));
        match self.workload {
            Mix::D => (keys / 2 / clients).max(1) * clients,
            Mix::A | Mix::B | Mix::C => keys,
        }
    }

    /// The memory nodes that are killed, the last ones: as many as a majority can do without.
    fn victims(&self) -> Vec<usize> {
        let replicas = usize::from(self.replicas);
        (replicas - (replicas - 1) / 2..replicas).collect()
    }

    /// The name of the calls of a kind.
    fn case(&self, call: Call) -> String {
        format!("{} {} {}", name(self.workload), self.system, call.name())
    }

    fn setup(&self, common: &Common) -> Setup {
        Setup {
            fabric: Some(common.fabric.name().into()),
            window: Some(self.window.into()),
            size: Some(self.size.into()),
            keys: Some(self.keys.into()),
            distribution: (self.workload != Mix::D).then(|| name(self.distribution)),
            replicas: Some(self.replicas.into()),
            clients: Some(self.clients.into()),
            metadata_words: Some(self.metadata_words.into()).filter(|words| *words > 0),
            ..Setup::default()
        }
    }

    /// The calls of each kind, as a measurement.
    fn measurements(&self, ran: &Ran, common: &Common) -> Result<Vec<Measurement>> {
        let mut all = Vec::new();
        for call in Call::ALL {
            let calls: Vec<&Calls> = ran.done.iter().map(|done| &done.calls[call as usize]).collect();
            if calls.iter().all(|calls| calls.result.operations == 0) {
                continue;
            }
            let mut measurement = Measurement::new("swarm", &self.case(call), self.setup(common));
            let results: Vec<_> = calls.iter().map(|calls| calls.result.clone()).collect();
            measurement.take(&results, self.clients.into())?;
            measurement.pinned = Some(self.cores.is_pinned());
            measurement.fairness = None;
            let per_key = ran.memory_bytes as f64 / f64::from(self.keys);
            measurement.figures.insert("memory_per_key".into(), per_key);
            let of_clients = ran.done.iter().map(|done| done.memory_bytes).sum::<u64>() as f64;
            let per_client = of_clients / f64::from(self.clients) / self.loaded() as f64;
            measurement.figures.insert("client_memory_per_key".into(), per_client);
            // The places of the others are never empty.
            if call == Call::Get && self.workload == Mix::D && self.system == Kind::Swarm {
                let not_there = ran.done.iter().map(|done| done.not_there).sum::<u64>() as f64;
                let gets = calls.iter().map(|calls| calls.result.operations).sum::<u64>() as f64;
                measurement.figures.insert("not_there_%".into(), 100.0 * not_there / gets);
            }
            // Of the calls of all kinds together.
            if let Some(effect) = Effect::of(&ran.done, &ran.killed_ns) {
                measurement.figures.extend(effect.figures());
            }
            if self.window == 1 {
                measurement.figures.extend(trips::figures(&ran.trips(call)));
            } else {
                (measurement.round_trips_per_op, measurement.fabric_ops_per_op, measurement.bytes_per_op) =
                    (None, None, None);
            }
            all.push(measurement);
        }
        Ok(all)
    }
}

/// Starts the nodes, and collects their results.
fn run(plan: &Plan, common: &Common) -> Result<Ran> {
    let duration = common.duration();
    let bar = output::progress(&format!("measuring {}", plan.system), duration);
    let mut ran = Ran { done: Vec::new(), memory_bytes: 0, killed_ns: Vec::new() };
    let limit = duration * 2 + Duration::from_secs(180) + Duration::from_millis(plan.keys.into());
    let mut workers = Workers::start(plan.replicas + plan.clients, common.fabric, plan)?;
    if plan.kills {
        workers.kill(plan.victims(), duration / 2);
    }
    workers.run(limit, &bar, |_, word, more| {
        match word {
            "running" => {}
            "killed" => ran.killed_ns.push(serde_json::from_str(more)?),
            "lent" => ran.memory_bytes += serde_json::from_str::<u64>(more)?,
            "result" => ran.done.push(serde_json::from_str(more)?),
            _ => bail!("`{word}` is none of the benchmark's words"),
        }
        Ok(())
    })?;
    Ok(ran)
}

/// One node of the benchmark.
fn serve(plan: &Plan) -> Result<()> {
    let node = Node::from_environment()?;
    node.wait_for_all(Duration::from_secs(60))?;
    let (scale, memory_before) = (plan.scale(), own_memory()?);
    let clients = scale.client_nodes();
    let client = clients.iter().position(|client| *client == node.id());
    let system = System::open(plan.system, &node, &scale, client)?;
    let Some(client) = client else { return lend(&node, &clients) };
    let phases = Barrier::open_among(&node, "clients", 1, &clients)?;
    plan.cores.pin(client)?;
    let endpoint = node.endpoint()?;
    let part = Part { plan, endpoint: &endpoint, phases: phases.thread()?, client, scale: &scale, memory_before };
    let done = system.with_client(&endpoint, part)?;
    say("result", &done)
}

/// The memory of this process that it shares with no other, in bytes.
fn own_memory() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let anonymous = status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.strip_suffix("kB"));
    Ok(1024 * anonymous.context("/proc/self/status has no RssAnon")?.trim().parse::<u64>()?)
}

/// A memory node: it lends memory until all clients have left.
fn lend(node: &Node, clients: &[NodeId]) -> Result<()> {
    let lent: u64 = node.metrics().objects.iter().map(|object| object.memory_bytes).sum();
    say("lent", &lent)?;
    while clients.iter().any(|client| node.status_of(*client) == Some(MemberStatus::Member)) {
        std::thread::sleep(slices::SLICE);
    }
    Ok(())
}

/// A client's part of the benchmark.
struct Part<'e> {
    plan: &'e Plan,
    endpoint: &'e Endpoint,
    phases: BarrierThread,
    client: usize,
    scale: &'e Scale,
    /// The process's own memory before the system was opened, in bytes.
    memory_before: u64,
}

impl Body for Part<'_> {
    type Output = Done;

    fn run(mut self, client: &impl Client) -> Result<Done> {
        let Part { plan, endpoint, scale, .. } = self;
        let keys = plan.loaded();
        let own = (self.client..keys).step_by(scale.clients);
        load(endpoint, client, own, scale.words())?;
        worker::meet(endpoint, &mut self.phases)?;
        warm(endpoint, client, keys, scale.words())?;
        let memory_bytes = own_memory()?.saturating_sub(self.memory_before);
        worker::meet(endpoint, &mut self.phases)?;
        say("running", &())?;
        let number = self.client as u64;
        let draws = match plan.workload.workload() {
            None => {
                let latest = Latest::new(keys as u64, number, scale.clients as u64, 42);
                Draws::Latest { latest, places: (plan.system != Kind::Swarm).then_some(keys) }
            }
            Some(workload) => {
                let chooser = KeyChooser::new(plan.distribution, keys as u64);
                Draws::Mixed(Operations::new(workload, chooser, 42, number))
            }
        };
        let measurer = Measurer {
            endpoint,
            draws,
            window: plan.window.into(),
            words: scale.words(),
            duration: Duration::from_secs_f64(plan.seconds),
            first_content: (number + 1) << 48,
        };
        let done = Done { memory_bytes, ..measurer.run(client)? };
        // Each stays until the others have finished.
        worker::meet(endpoint, &mut self.phases)?;
        Ok(done)
    }
}

/// The calls per second of all clients, by the time since the beginning in seconds.
fn over_time(done: &[Done]) -> Vec<(f64, f64)> {
    let slices = done.iter().map(|done| done.slices.len()).min().unwrap_or(0).saturating_sub(1);
    let at = |slice: usize| {
        let calls: u64 = done.iter().map(|done| done.slices[slice]).sum();
        (slices::seconds(slice), calls as f64 / slices::seconds(1))
    };
    (0..slices).map(at).collect()
}
