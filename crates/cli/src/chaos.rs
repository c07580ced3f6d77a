//! `farfield chaos`: nearly all objects at work in real processes, while nodes are killed, stopped, continued and
//! started again.
//!
//! [`plan`] draws the faults and their targets, and [`run`] injects them. [`processes`] manages the nodes' processes,
//! [`link`] the network between them, and [`worker`] is one node. [`load`] contains the work of their threads
//! on the objects, with each call [logged](log); [`custom`] has the loads of other crates. [`judge`] checks the logs,
//! and [`report`] prints the result.

pub(crate) mod custom;
mod judge;
mod kind;
mod link;
mod load;
mod log;
mod plan;
mod processes;
mod report;
mod run;
mod worker;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use farfield::LockKind;
use farfield::mutants::{self, Mutant};
use farfield_check::cli::exit::{self, OrUsage, usage};
use farfield_check::cli::output::parse_seconds;

use self::judge::Findings;
use self::kind::Kind;
use self::link::Link;
use self::plan::{Fault, Terms};
use self::processes::Processes;
use self::report::Report;
use self::run::Director;
pub(crate) use self::worker::{WorkerArgs, main as worker_main};
use crate::bench::memory::{self, Need};
use crate::caretaker::{self, Left};
use crate::launch::{FabricChoice, SILENCE, parse_nodes};
use crate::output;
use crate::parts;

const HELP: &str = "\
Each node is a process. Its threads use key-value stores, one of them replicated and one ordered, queues, locks (of
another kind in each generation), rings, barriers, variables, transactions, servers of calls, a replicated data type, and
a replicated log, lock or election (another one in each generation), which all nodes share, and log every call. Some
threads have several calls in flight. The seed determines the plan: which nodes are killed, stopped and restarted, and
when. The interleaving of the processes is up to the machine, so the same plan may end differently.

A plan consists of generations of a few seconds. In each one the live nodes open new objects and use them while the
plan's faults are injected. A killed node may be restarted at once: it joins the session as a new member, and all nodes
open a queue with it while they work. It uses the other objects from the next generation on. At the end of a generation
the logs are judged:

  histories    The history of each key and each queue is linearizable. A key is lost only with the node that stored its
               value, and the error names that node. A change that fails may or may not have happened. While a lost key
               is inserted or deleted, some threads may still find it lost when others do not find it. A scan of the ordered
               store finds each key as a read would, and one at one instant all keys as of that.
  invariants   Locks exclude. Data under a lock is as the last holder left it, and exactly one holder after a death is
               told of the death. Messages arrive whole, once and in order; a dead writer's messages arrive up to its
               last whole one. No thread passes a barrier alone. Variables are never torn and never go back, and all
               nodes have the last value in the end. Every addition counts once. A transfer finds its cells as the one before
               has left them, and one order of all transfers agrees with each cell.
  replicas     Replicas of a data type converge, and have all calls that returned and no others. A query finds all calls of
               its node, and the stable ones of others. All nodes read the same log, with each entry that was decided. One
               node has the replicated lock, one is elected, and tokens grow. None of it needs more than most nodes.
  errors       An error names the object, and a node that was killed before. A timeout has a cause: a node was stopped,
               or died at most a second before. It does not come early, and no call takes more than ten times its limit,
               not counting the time in which its own node was stopped. Over RDMA, a change of the ordered store may also
               time out because its partition was moved.
  pace         In the second that begins one second after a death, the survivors' threads do at least half as much as in
               the second before the death, and the threads of each object a quarter. If another node is stopped at that
               time, the clock starts when it continues. Joining nodes do not count.
  hangs        Every step ends within 120 seconds, and so does every call of a thread that is not stopped.

With --fabric verbs or ucx no operating system reports a death: the nodes detect it themselves, within --detection.
Until then calls may fail because a dead or stopped node does not answer, and values on it still seem to exist. If
detection takes longer, because the machine is busy, the plan waits, up to ten times --detection, and the pace is
judged from the detection on. Stops are too short for a node to be taken for dead. A cut separates the nodes of one
device, or of the last host, from all others: the nodes on the smaller side have to be evicted and notified, and the
others are judged as after a death. Replicated logs, and the locks, elections and data types on them, are at work there
if --objects names them: with variables only (vars,wrdt,log) if the machine is emulated, and without lost packets, each
of which may cost a leader its turn. A queue with each restarted node, and the loads of other crates, are always at
work.

A thread that waited for a CPU rests eight times as long, so that a slow or busy machine keeps time for the nodes'
service threads.

Exit status:
  0    no violation
  1    a violation, printed with the command line that repeats the plan
  2    wrong usage";

/// The memory of a node's objects, about.
const OBJECTS_BYTES: u64 = 16 << 20;

/// What `farfield chaos` takes.
#[derive(clap::Args)]
#[command(after_long_help = HELP, after_help = "--help lists what is verified")]
pub(crate) struct ChaosArgs {
    /// Number of nodes, each a process. At least two stay alive
    #[arg(long, default_value_t = 4, value_parser = parse_nodes)]
    nodes: u16,
    /// Seconds of load, without the time for judging
    #[arg(long, value_name = "S", default_value = "60", value_parser = parse_seconds)]
    seconds: Duration,
    /// The fabric that connects the nodes
    #[arg(long, value_enum, default_value_t)]
    fabric: FabricChoice,
    /// The seed of the plan [default: random, and printed]
    #[arg(long, value_name = "K")]
    seed: Option<u64>,
    /// The faults to inject
    #[arg(long, value_enum, value_delimiter = ',', default_value = "kill,stop,restart")]
    faults: Vec<Fault>,
    /// The objects at work [default: all on shared memory; with verbs or ucx all but wrdt and log, which take most of
    /// an emulated machine]
    #[arg(long, value_enum, value_name = "KIND", value_delimiter = ',')]
    objects: Vec<Kind>,
    /// The locks are of this kind: alock, spin, mcs or mutex [default: another kind in each generation]
    #[arg(long, value_name = "KIND")]
    locks: Option<LockKind>,
    /// With verbs or ucx: seconds in which the survivors have to detect a death; raise it on emulated machines
    /// [default: FARFIELD_SILENCE_MS, the time after which a silent node is suspected]
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    detection: Option<Duration>,
    /// With verbs: the two network interfaces of the devices in FARFIELD_DEVICE. `tc` cuts the link between them or
    /// drops packets, as root. With ucx: NAMESPACE/IF of each host, which is a network namespace. The nodes run there
    /// in turn, and a cut takes the interface of the last one down, with the routes over it
    #[arg(long, value_name = "IF,IF", value_delimiter = ',', num_args = 1)]
    link: Vec<String>,
    /// Percentage of packets that the link drops all the time. A dropped packet delays its sender until the device
    /// retransmits it, which the pace does not account for: 0.2 is a lot
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, requires = "link")]
    loss: f64,
    /// Append the report as a line of JSON to this file, or `-` for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Seed a bug, to see that it is found
    #[arg(long, hide = true, value_name = "NAME", value_parser = parts::mutant)]
    mutant: Option<Mutant>,
}

pub(crate) fn main(args: &ChaosArgs) -> Result<ExitCode> {
    mutants::enable(args.mutant).or_usage()?;
    let seed = args.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let nodes = usize::from(args.nodes);
    if nodes < 2 {
        return Err(usage("--nodes 1: two nodes at least stay alive"));
    }
    if nodes > judge::NODES_MAX {
        return Err(usage(format!("--nodes {nodes}: the judges of a run know at most {} nodes", judge::NODES_MAX)));
    }
    // Their logs are files: a longer run takes no more.
    let need = Need::of(args.nodes, 1).on_each(OBJECTS_BYTES);
    memory::ensure_fit([need], "--nodes")?;
    let silence = args.fabric.silence().or_usage()?;
    let detection = args.detection().or_usage()?;
    let link = args.link().or_usage()?;
    let ends = link.as_ref().map_or(2, Link::ends);
    if nodes < ends {
        return Err(usage(format!("--nodes {nodes}: --link has {ends} ends, and at least one node is at each")));
    }
    let plan = plan::draw(seed, args.seconds, &Terms { nodes, ends, faults: &args.faults, silence, detection });
    let again = args.line(seed);
    let mut out = io::stderr().lock();
    // The report may still be wanted if this output fails.
    let _ = writeln!(out, "{again}");
    for (number, generation) in plan.iter().enumerate() {
        let _ = writeln!(out, "  generation {number}: {generation}");
    }
    drop(out);
    let seconds = args.seconds.as_secs_f64();
    let (findings, injected, recoveries) = (Findings::default(), Vec::new(), Vec::new());
    let mut report =
        Report { seed, nodes, seconds, plan, again, generations: 0, injected, operations: 0, findings, recoveries };
    let bar = output::progress("chaos", args.seconds);
    let plan = report.plan.clone();
    // Removed only when all was right.
    let mut logs = caretaker::folder("farfield-chaos-").context("creating a directory for the logs")?;
    logs.disable_cleanup(true);
    let processes = Processes::new(nodes, args.fabric, silence, link.as_ref(), logs.path(), args.mutant)?;
    let objects = (args.kinds(), args.locks);
    let mut director = Director::new(seed, detection, objects, link, processes, logs.path(), &bar);
    let ended = director.conduct(nodes, &plan, &mut report);
    bar.finish_and_clear();
    if let Err(error) = ended {
        report.findings.violations.push(format!("{error:#}"));
    }
    if !report.is_right() {
        caretaker::settled(Left::Folder(logs.path().into()));
    }
    let published = report.publish(args.json.as_deref());
    if report.is_right() {
        logs.disable_cleanup(false);
        return published.map(|()| ExitCode::SUCCESS);
    }
    let _ = writeln!(io::stderr(), "The logs of the last generation are in {}", logs.path().display());
    match published {
        // A failure was found, whether it is read or not.
        Err(error) if !exit::is_unread(&error) => Err(error),
        _ => Ok(ExitCode::FAILURE),
    }
}

impl ChaosArgs {
    fn detection(&self) -> Result<Duration> {
        let silence = self.fabric.silence()?;
        let detection = self.detection.or(silence).unwrap_or_default();
        ensure!(
            silence.is_some() || detection.is_zero(),
            "--detection: on shared memory the system says at once who is dead"
        );
        ensure!(detection >= silence.unwrap_or_default(), "--detection: nobody is suspected before {silence:?}");
        Ok(detection)
    }

    /// In the order in which they are opened.
    fn kinds(&self) -> Vec<Kind> {
        let stands_on_logs = |kind: &Kind| matches!(kind, Kind::Wrdt | Kind::Log);
        let is_used = |kind: &Kind| match self.objects[..] {
            [] => self.fabric == FabricChoice::Shm || !stands_on_logs(kind),
            _ => self.objects.contains(kind),
        };
        Kind::value_variants().iter().copied().filter(is_used).collect()
    }

    fn link(&self) -> Result<Option<Link>> {
        ensure!(!self.link.is_empty() || !self.faults.contains(&Fault::Cut), "to cut a link, say which: --link");
        if self.link.is_empty() { Ok(None) } else { Link::new(&self.link, self.loss, self.fabric).map(Some) }
    }

    /// The command line for the same plan.
    fn line(&self, seed: u64) -> String {
        fn names<T: ValueEnum>(of: &[T]) -> String {
            let name = |it: &T| it.to_possible_value().map_or(String::new(), |it| it.get_name().into());
            of.iter().map(name).collect::<Vec<_>>().join(",")
        }
        let seconds = self.seconds.as_secs_f64();
        let (nodes, fabric, faults) = (self.nodes, self.fabric.name(), names(&self.faults));
        let told = |name: &str| std::env::var(name).ok().map(|value| format!("{name}={value} "));
        let told: String = match self.fabric {
            FabricChoice::Shm => String::new(),
            FabricChoice::Verbs => [SILENCE, "FARFIELD_DEVICE"].into_iter().filter_map(told).collect(),
            FabricChoice::Ucx => [SILENCE, "UCX_NET_DEVICES"].into_iter().filter_map(told).collect(),
        };
        let program = parts::program();
        let mut line = format!(
            "{told}{program} chaos --nodes {nodes} --seconds {seconds} --fabric {fabric} --seed {seed} \
             --faults {faults}"
        );
        if let Some(detection) = self.detection {
            line += &format!(" --detection {}", detection.as_secs_f64());
        }
        if !self.objects.is_empty() {
            line += &format!(" --objects {}", names(&self.objects));
        }
        if let Some(locks) = self.locks {
            line += &format!(" --locks {locks}");
        }
        if !self.link.is_empty() {
            line += &format!(" --link {} --loss {}", self.link.join(","), self.loss);
        }
        if let Some(mutant) = self.mutant {
            line += &format!(" --mutant {}", mutant.name());
        }
        line
    }
}
