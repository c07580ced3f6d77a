//! `farfield bench rome`: a sorted map that other nodes scan, beside local maps; and ways to read an object of another
//! node whole.

mod load;
mod maps;
mod objects;
mod ratios;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use farfield::{Barrier, Node, TreeOptions};
use farfield_check::cli::exit::usage;
use serde::{Deserialize, Serialize};

use self::load::{Done, Mix, Scanner, Worker, key};
use self::maps::{Kind, System};
use self::objects::{Shared, Timed, Way, Writes};
use self::ratios::Sample;
use super::journal::Journal;
use super::kv::name;
use super::measurement::{Measurement, Setup};
use super::memory::{self, Need};
use super::options::{Common, Cores, once_each};
use super::plot::{self, Steps};
use super::threads::{ThreadResult, ratio};
use super::worker::{self, Workers, say};
use super::workload::{Distribution, KeyChooser};
use crate::output;

const HELP: &str = "\
The map is in the memory of one process, the owner, whose threads (workers) call it. Scanners, each a process with one thread, read
ranges of it by gets alone. The keys are numbers, as the values are, drawn from YCSB's Zipf distribution; scans begin at such
keys. Half of the keys that could be there are loaded.

  rome      Farfield's tree
  btreemap  a BTreeMap in an RwLock
  redb      the embedded store redb, in memory, with a transaction for each call that is not made durable

The others have no scanners. Where threads share cores, `per core second` says how many calls a core has made for the workers
while it worked for them: what scanners take from the workers beside the cores. `again` counts scans that had to begin again, `waits` the
changes of the workers that had to wait for a scanner, and `ops per 1000` the gets by which the owner finds out what scanners need.

With --control each run with scanners is repeated with scanners of another map in the owner's memory, of the same size, which no worker calls. What the
workers lose there, too, is the machine's: its cores, caches and memory are shared. The rest is what scans cost the calls.

With --object an object of the owner is read by other nodes, instead: each read has to find it as it was at one moment.

  rome       Farfield's objects: two gets, whatever the writer does
  locking    a lock around each read and each write; the owner takes it by its NIC, too
  versions   a version, the object, and the version again, which is odd while the object changes
  checksums  the object with a hash, which is read again until it fits

Examples:
  farfield bench rome --system rome,btreemap,redb --workers 2
  farfield bench rome --workload c,b,u --workers 1,2 --scanners 0,1,2,4 --control --keys 5000000 --svg local.svg --svg-scans scans.svg
  farfield bench rome --workload e --system rome,btreemap,redb
  farfield bench rome --object rome,locking,versions,checksums --writes never,some,always --size 64,4096,65536";

/// A sorted map that other nodes scan, beside local maps
#[derive(Args, Clone)]
#[command(after_long_help = HELP, mut_arg("peer", |arg| arg.hide(true)))]
pub(crate) struct RomeArgs {
    /// The maps to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "rome")]
    system: Vec<Kind>,
    /// What the workers do
    #[arg(long, value_enum, value_delimiter = ',', default_value = "b")]
    workload: Vec<Mix>,
    /// How likely each key is
    #[arg(long, value_enum, default_value = "zipfian")]
    distribution: Distribution,
    /// Pairs in the map at first
    #[arg(long, value_name = "COUNT", default_value = "1000000", value_parser = clap::value_parser!(u32).range(100..=100_000_000))]
    keys: u32,
    /// Threads of the owner
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u16).range(1..=60))]
    workers: Vec<u16>,
    /// Processes that scan the map meanwhile
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_value = "0", value_parser = clap::value_parser!(u16).range(0..=32))]
    scanners: Vec<u16>,
    /// Repeat each run with scanners of another map, which the workers do not call
    #[arg(long)]
    control: bool,
    /// The fewest and the most pairs of a scan
    #[arg(long, value_name = "MIN-MAX", default_value = "5000-10000", value_parser = pairs)]
    pairs: (u64, u64),
    /// Measure ways to read an object of another node, instead of maps
    #[arg(long, value_enum, value_name = "WAY", value_delimiter = ',', conflicts_with_all = ["system", "workload", "workers", "scanners", "control", "svg", "svg_scans"])]
    object: Vec<Way>,
    /// With --object: how often the owner changes it
    #[arg(long, value_enum, value_delimiter = ',', default_value = "some", requires = "object")]
    writes: Vec<Writes>,
    /// With --object: processes that read it, each with one thread
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u16).range(1..=32), requires = "object")]
    readers: Vec<u16>,
    /// With --object: its bytes, a multiple of 8
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "4096", value_parser = size, requires = "object")]
    size: Vec<u32>,
    /// Draw the workers' throughput against the number of scanners into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Draw the pairs that scanners read against their number into this file
    #[arg(long, value_name = "FILE")]
    svg_scans: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

fn pairs(text: &str) -> Result<(u64, u64), String> {
    let (fewest, most) = text.split_once('-').unwrap_or((text, text));
    match (fewest.parse(), most.parse()) {
        (Ok(fewest), Ok(most)) if 1 <= fewest && fewest <= most && most <= 1_000_000 => Ok((fewest, most)),
        _ => Err("two numbers with a `-` between them, up to 1000000".into()),
    }
}

fn size(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(bytes @ 16..=1_048_576) if bytes % 8 == 0 => Ok(bytes),
        _ => Err("a multiple of 8 from 16 to 1048576".into()),
    }
}

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Plan {
    what: What,
    /// Processes beside the owner.
    others: u16,
    seconds: f64,
    cores: Cores,
}

/// What is measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum What {
    Map {
        system: Kind,
        mix: Mix,
        distribution: Distribution,
        keys: u32,
        workers: u16,
        pairs: (u64, u64),
        /// Scanners read another map.
        control: bool,
    },
    Object {
        way: Way,
        writes: Writes,
        bytes: u32,
    },
}

pub(crate) fn main(args: &RomeArgs) -> Result<()> {
    if let Some(plan) = worker::plan::<Plan>()? {
        return serve(&plan);
    }
    if !args.common.peer.is_empty() {
        return Err(usage("--peer: name other systems with --system"));
    }
    let plans = args.plans()?;
    if plans.is_empty() {
        return Err(usage("--scanners: of these maps only rome has any, so ask for runs without scanners, too"));
    }
    memory::ensure_fit(plans.iter().map(Plan::need), "--keys, --scanners or --size")?;
    let mut journal = Journal::new(&args.common);
    let mut samples = Vec::new();
    journal.turns(&plans, |plan| {
        let done = run(plan, &args.common)?;
        let measurements = plan.measurements(&done, &args.common)?;
        samples.extend(Sample::of(plan, &measurements));
        Ok(measurements)
    })?;
    journal.table(|out| ratios::write(&samples, out))?;
    let draw = |file: &Option<PathBuf>, title: &str, of: fn(&Sample) -> f64| {
        let Some(file) = file else { return Ok(()) };
        let picture = plot::svg(title, "scanners", Steps::Even, &ratios::lines(&samples, of));
        std::fs::write(file, picture).with_context(|| format!("writing {}", file.display()))
    };
    draw(&args.svg, "Calls of the owner's threads per second", Sample::calls)?;
    draw(&args.svg_scans, "Pairs that scanners read per second", Sample::pairs)
}

impl RomeArgs {
    /// Each combination of the given values.
    fn plans(&self) -> Result<Vec<Plan>> {
        let mut plans = Vec::new();
        let mut add = |what: What, others: u16, threads: u16| -> Result<()> {
            let cores = self.common.pin.cores((threads + others).into())?;
            plans.push(Plan { what, others, seconds: self.common.seconds, cores });
            Ok(())
        };
        for bytes in once_each(self.size.iter().copied()) {
            for writes in once_each(self.writes.iter().copied()) {
                for readers in once_each(self.readers.iter().copied()) {
                    for way in once_each(self.object.iter().copied()) {
                        add(What::Object { way, writes, bytes }, readers, 1)?;
                    }
                }
            }
        }
        if !self.object.is_empty() {
            return Ok(plans);
        }
        for mix in once_each(self.workload.iter().copied()) {
            for workers in once_each(self.workers.iter().copied()) {
                for scanners in once_each(self.scanners.iter().copied()) {
                    for system in once_each(self.system.iter().copied()) {
                        if system != Kind::Rome && scanners > 0 {
                            continue;
                        }
                        let (distribution, keys, pairs) = (self.distribution, self.keys, self.pairs);
                        for control in [false, true] {
                            if !control || self.control && scanners > 0 {
                                let map = What::Map { system, mix, distribution, keys, workers, pairs, control };
                                add(map, scanners, workers)?;
                            }
                        }
                    }
                }
            }
        }
        Ok(plans)
    }
}

/// The options of a tree with so many pairs, and as many again if they are inserted.
fn options(keys: u32, mix: Mix) -> TreeOptions {
    let default = TreeOptions::default();
    let pairs = keys as usize * if mix == Mix::E { 2 } else { 1 };
    TreeOptions { blocks: default.blocks + 2 * pairs / default.pairs, ..default }
}

impl Plan {
    fn need(&self) -> Need {
        match &self.what {
            // A block of the tree has 200 words, and takes two of the index; redb needs more than that.
            What::Map { keys, mix, system, workers, control, .. } => {
                let blocks = options(*keys, *mix).blocks as u64;
                let bytes = if *system == Kind::Redb { u64::from(*keys) * 100 } else { blocks * 1_700 };
                let bytes = if *control { 2 * bytes } else { bytes };
                Need::of(1 + self.others, *workers).on_all(bytes)
            }
            What::Object { bytes, .. } => Need::of(1 + self.others, 1).on_all(16 * u64::from(*bytes)),
        }
    }

    /// Those of the owner's threads, and those of the other processes.
    fn measurements(&self, done: &[Done], common: &Common) -> Result<Vec<Measurement>> {
        let fabric = Some(common.fabric.name().into());
        let (case, owner, others, threads, setup) = match &self.what {
            What::Map { system, mix, distribution, keys, workers, control, .. } => {
                let (keys, distribution) = (Some(u64::from(*keys)), Some(name(*distribution)));
                let setup = Setup { threads: Some((*workers).into()), keys, distribution, ..Setup::default() };
                let scans = if *control { "scans of another map" } else { "scans" };
                (format!("{} {system}", name(*mix)), "workers", scans, *workers, setup)
            }
            What::Object { way, writes, bytes } => {
                let setup = Setup { size: Some(u64::from(*bytes)), ..Setup::default() };
                (format!("{way}, {writes}"), "writes", "reads", 1, setup)
            }
        };
        let setup = Setup { fabric, clients: Some(self.others.into()), ..setup };
        let mut all = Vec::new();
        for (name, is_other, threads) in [(owner, false, threads), (others, true, self.others)] {
            let of: Vec<&Done> = done.iter().filter(|done| done.is_other == is_other).collect();
            let results: Vec<ThreadResult> = of.iter().map(|done| done.result.clone()).collect();
            ensure!(of.len() == usize::from(threads), "{} of {threads} threads have reported", of.len());
            if results.iter().all(|result| result.operations == 0) && !is_other || threads == 0 {
                continue;
            }
            let mut measurement = Measurement::new("rome", &format!("{case} {name}"), setup.clone());
            measurement.take(&results, threads.into())?;
            measurement.pinned = Some(self.cores.is_pinned());
            let total = |field: fn(&Done) -> f64| of.iter().map(|done| field(done)).sum::<f64>();
            let operations = measurement.operations as f64;
            if !is_other && matches!(self.what, What::Map { .. }) {
                // Its calls take none.
                measurement.round_trips_per_op = None;
                measurement.bytes_per_op = None;
                let per_core_second = ratio(operations, total(|done| done.core_seconds));
                measurement.figures.insert("per_core_second".into(), per_core_second);
                let posted = results.iter().map(|result| result.fabric_ops).sum::<u64>() as f64;
                measurement.figures.insert("ops_per_1000".into(), ratio(1000.0 * posted, operations));
                measurement.figures.insert("waits".into(), total(|done| done.waits as f64));
            }
            let pairs = total(|done| done.pairs as f64);
            if pairs > 0.0 {
                measurement.figures.insert("pairs_per_s".into(), ratio(pairs, measurement.seconds));
            }
            if is_other && pairs > 0.0 {
                let trips = results.iter().map(|result| result.round_trips).sum::<u64>() as f64;
                measurement.figures.insert("trips_per_1000_pairs".into(), ratio(1000.0 * trips, pairs));
            }
            if is_other {
                measurement.figures.insert("again".into(), total(|done| done.retries as f64));
            }
            all.push(measurement);
        }
        Ok(all)
    }
}

/// Starts the nodes, and collects their results.
fn run(plan: &Plan, common: &Common) -> Result<Vec<Done>> {
    let duration = common.duration();
    let (what, keys) = match &plan.what {
        What::Map { system, keys, .. } => (system.to_string(), *keys),
        What::Object { way, .. } => (way.to_string(), 0),
    };
    let bar = output::progress(&format!("measuring {what}"), duration);
    let limit = duration * 2 + Duration::from_secs(180) + Duration::from_micros(100) * keys;
    let mut all = Vec::new();
    Workers::start(1 + plan.others, common.fabric, plan)?.run(limit, &bar, |_, word, more| {
        match word {
            "running" => {}
            "result" => all.push(serde_json::from_str(more)?),
            _ => bail!("`{word}` is none of the benchmark's words"),
        }
        Ok(())
    })?;
    Ok(all)
}

/// One node of the benchmark: the first one is the owner.
fn serve(plan: &Plan) -> Result<()> {
    let node = Node::from_environment()?;
    node.wait_for_all(Duration::from_secs(60))?;
    let barrier = Barrier::open(&node, "phases", 1)?;
    let (endpoint, mut phases) = (node.endpoint()?, barrier.thread()?);
    let duration = Duration::from_secs_f64(plan.seconds);
    let number = usize::from(node.id().0);
    match plan.what {
        What::Object { way, writes, bytes } => {
            let bytes = bytes as usize;
            let shared = Shared::open(way, &node, bytes)?;
            plan.cores.pin(number)?;
            worker::meet(&endpoint, &mut phases)?;
            say("running", &())?;
            say("result", &shared.run(&endpoint, Timed { endpoint: &endpoint, writes, bytes, duration })?)?;
        }
        What::Map { system, mix, distribution, keys, workers, pairs, control } => {
            let (options, keys) = (options(keys, mix), u64::from(keys));
            let chooser = KeyChooser::new(distribution, keys);
            if number > 0 {
                let reader = maps::tree(&node, if control { maps::CONTROL } else { maps::TREE }, options)?.reader()?;
                plan.cores.pin(usize::from(workers) + number - 1)?;
                worker::meet(&endpoint, &mut phases)?;
                let number = number as u64;
                let scanner = Scanner { endpoint: &endpoint, chooser: &chooser, keys, pairs, number, duration };
                say("result", &scanner.run(reader)?)?;
            } else {
                let loaded = || (0..keys).map(|number| (key(number), number));
                let map = System::open(system, &node, options, loaded())?;
                let other = control.then(|| maps::tree(&node, maps::CONTROL, options)).transpose()?;
                if let Some(other) = &other {
                    other.partition()?.load(&node.endpoint()?, loaded())?;
                }
                worker::meet(&endpoint, &mut phases)?;
                say("running", &())?;
                let work = |thread: u16| -> Result<Done> {
                    plan.cores.pin(thread.into())?;
                    let endpoint = node.endpoint()?;
                    let number = thread.into();
                    let worker = Worker { endpoint: &endpoint, mix, chooser: &chooser, keys, number, duration };
                    map.with_thread(&endpoint, &worker)
                };
                let waits = map.waits()?;
                let mut done = std::thread::scope(|scope| {
                    let threads: Vec<_> = (0..workers).map(|thread| scope.spawn(move || work(thread))).collect();
                    let joined = threads.into_iter().map(|thread| thread.join());
                    joined
                        .map(|done| done.unwrap_or_else(|_| bail!("a worker has panicked")))
                        .collect::<Result<Vec<_>>>()
                })?;
                done[0].waits = map.waits()? - waits;
                done.iter().try_for_each(|done| say("result", done))?;
                // The owner stays until the others have read.
                return worker::meet(&endpoint, &mut phases);
            }
        }
    }
    worker::meet(&endpoint, &mut phases)
}
