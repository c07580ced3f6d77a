//! `farfield chaos`: all objects at work in real processes, while nodes are killed, stopped, continued and started
//! again.
//!
//! [`plan`] draws what is done to whom, [`run`] does it, [`processes`] holds the nodes' processes, [`link`] what is between
//! them on RDMA, and [`worker`] is one of them. [`load`] is what their threads do to the objects, each call of which they
//! [`log`]; [`judge`] says what must be true of the logs, and [`report`] tells.

mod judge;
mod link;
mod load;
mod log;
mod plan;
mod processes;
mod report;
mod run;
mod worker;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use farfield::LockKind;
use farfield::mutants::{self, Mutant};

use self::judge::Findings;
use self::link::Link;
use self::plan::{Fault, Terms};
use self::processes::Processes;
use self::report::Report;
use self::run::Director;
pub(crate) use self::worker::{WorkerArgs, main as worker_main};
use crate::place::{FabricChoice, SILENCE};
use crate::run::parse_seconds;
use crate::tell;

const HELP: &str = "\
Each node is a process. Its threads work on a key-value store, queues, locks (of another kind in each generation), rings, barriers and variables, all
shared by all nodes, and log each call. On locks and on the store some have several calls under way at once. A seed is a
plan: who is killed, stopped or started again, and when. The processes' own interleaving is the machine's, so the same
plan may end differently.

A plan has generations of some seconds. The nodes that are there open new objects, work on them while some are harmed,
and come to rest. Who is killed may be started again at once: the newcomer joins the session while the others work, and
all of them open a queue and use it; in the other objects it takes part from the next generation on. (Where the plan is
late, the next harm waits until that queue is open.) Then the logs are judged:

  histories    those of each key and of each queue are linearizable. A key is lost only with the node on which its value
               lay (the inserter's, or, in every other generation, the one that its hash says), which the error names. A
               change that fails may have happened. While a lost key is inserted or deleted, some may still find it lost
               when others do not find it
  invariants   locks exclude; what they protect is as the last holder left it, and the next holder after a death, and
               nobody else, is told of it. Messages come whole, once and in order, all of them, or, of a dead writer, up
               to its last whole one. Nobody passes a barrier alone. Variables are never torn, never go back, and have
               come everywhere in the end. Each addition counts once
  errors       name the object, and a node that was killed before. A timeout has a reason: somebody was stopped or had
               died, at most a second before. It comes after its time, and no call takes longer than ten times that;
               the time in which the caller was stopped itself does not count
  pace         in the second that begins a second after a death, the threads of the survivors do at least half of what
               they did in the second before it, and those of each load a quarter. If another node is stopped when one
               dies, the clock starts when it goes on, and what was before is what was before the stop. Newcomers do
               not count, and are no excuse
  hangs        every step, and every call of a thread that is not stopped, is over within 30 seconds

On RDMA no system says who is dead. The nodes find out, in --detection: until then calls may fail because a node that was
harmed does not answer, and what lay on it seems to be there; the second that is judged comes after it. Stops are short
enough that nobody is taken for dead. A cut divides the nodes of one device from those of the other. Those on the side
with fewer nodes are to be shut out, and to be told so; the others are judged as after a death.

Exit status:
  0    nothing was wrong
  1    a violation, which is printed with the command line for the same plan again, or a mistake in the arguments";

/// What `farfield chaos` takes.
#[derive(clap::Args)]
#[command(after_long_help = HELP, after_help = "What is verified: --help")]
pub(crate) struct ChaosArgs {
    /// Nodes, each a process. Two at least are left alive
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=16))]
    nodes: u16,
    /// How long the nodes work; judging them comes on top
    #[arg(long, value_name = "S", default_value = "60", value_parser = parse_seconds)]
    seconds: Duration,
    /// What the nodes are connected by
    #[arg(long, value_enum, default_value_t)]
    fabric: FabricChoice,
    /// The plan [default: a random one, which is printed]
    #[arg(long, value_name = "K")]
    seed: Option<u64>,
    /// What may be done to nodes
    #[arg(long, value_enum, value_delimiter = ',', default_value = "kill,stop,restart")]
    faults: Vec<Fault>,
    /// Locks of this kind only: alock, spin, mcs or mutex [default: another kind in each generation]
    #[arg(long, value_name = "KIND")]
    locks: Option<LockKind>,
    /// On RDMA: in how long the survivors are to know that a node is dead; longer on emulated machines [default: for how long
    /// a node may be silent, FARFIELD_SILENCE_MS]
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    detection: Option<Duration>,
    /// On RDMA: the two network interfaces of FARFIELD_DEVICE's devices, between which the link can be cut, or lose packets, by
    /// `tc` (as root; after an interrupted run: `tc qdisc del dev IF root`)
    #[arg(long, value_name = "IF,IF", value_delimiter = ',', num_args = 1)]
    link: Vec<String>,
    /// Of a hundred packets on the link, so many are lost all the time. Whoever lost one waits for his device to send it again,
    /// and those that judge the pace know nothing of that: 0.2 is much
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, requires = "link")]
    loss: f64,
    /// Append the report as a line of JSON to this file, or `-` for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Seed a bug, to see that it is found
    #[arg(long, hide = true, value_name = "NAME")]
    mutant: Option<Mutant>,
}

pub(crate) fn main(args: &ChaosArgs) -> Result<ExitCode> {
    mutants::enable(args.mutant)?;
    let seed = args.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let nodes = usize::from(args.nodes);
    let silence = args.fabric.silence()?;
    let detection = args.detection()?;
    let link = args.link()?;
    let plan = plan::draw(seed, args.seconds, &Terms { nodes, faults: &args.faults, silence, detection });
    let again = args.line(seed);
    let mut out = io::stderr().lock();
    // Whoever does not listen to that may still want the report.
    let _ = writeln!(out, "{again}");
    for (number, generation) in plan.iter().enumerate() {
        let _ = writeln!(out, "  generation {number}: {generation}");
    }
    drop(out);
    let folder =
        std::env::temp_dir().join(format!("farfield-chaos-{}-{:08x}", std::process::id(), rand::random::<u32>()));
    std::fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let seconds = args.seconds.as_secs_f64();
    let (findings, injected, recoveries) = (Findings::default(), Vec::new(), Vec::new());
    let mut report =
        Report { seed, nodes, seconds, plan, again, generations: 0, injected, operations: 0, findings, recoveries };
    let bar = tell::progress("chaos", args.seconds);
    let plan = report.plan.clone();
    let hosts = link.as_ref().map_or(Ok(Vec::new()), |link| link.hosts(nodes))?;
    let processes = Processes::new(nodes, args.fabric, silence, &hosts, &folder, args.mutant);
    let mut director = Director::new(seed, detection, args.locks, link, processes, &folder, &bar);
    let ended = director.conduct(nodes, &plan, &mut report);
    bar.finish_and_clear();
    if let Err(error) = ended {
        report.findings.violations.push(format!("{error:#}"));
    }
    report.publish(args.json.as_deref())?;
    if report.is_right() {
        remove(&folder);
        return Ok(ExitCode::SUCCESS);
    }
    let _ = writeln!(io::stderr(), "The logs of the last generation are in {}", folder.display());
    Ok(ExitCode::FAILURE)
}

/// What cannot be removed harms nobody.
fn remove(folder: &Path) {
    let _ = std::fs::remove_dir_all(folder);
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

    fn link(&self) -> Result<Option<Link>> {
        ensure!(self.link.is_empty() || self.fabric == FabricChoice::Verbs, "--link: it takes --fabric verbs");
        ensure!(!self.link.is_empty() || !self.faults.contains(&Fault::Cut), "to cut a link, say which: --link");
        if self.link.is_empty() { Ok(None) } else { Link::new(&self.link, self.loss).map(Some) }
    }

    /// The command line for the same plan.
    fn line(&self, seed: u64) -> String {
        let name =
            |fault: &Fault| clap::ValueEnum::to_possible_value(fault).map_or(String::new(), |it| it.get_name().into());
        let faults: Vec<String> = self.faults.iter().map(name).collect();
        let seconds = self.seconds.as_secs_f64();
        let (nodes, fabric, faults) = (self.nodes, self.fabric.name(), faults.join(","));
        let told = |name: &str| std::env::var(name).ok().map(|value| format!("{name}={value} "));
        let told: String = match self.fabric {
            FabricChoice::Shm => String::new(),
            FabricChoice::Verbs => [SILENCE, "FARFIELD_DEVICE"].into_iter().filter_map(told).collect(),
        };
        let mut line = format!(
            "{told}farfield chaos --nodes {nodes} --seconds {seconds} --fabric {fabric} --seed {seed} --faults {faults}"
        );
        if let Some(detection) = self.detection {
            line += &format!(" --detection {}", detection.as_secs_f64());
        }
        if let Some(locks) = self.locks {
            line += &format!(" --locks {locks}");
        }
        if !self.link.is_empty() {
            line += &format!(" --link {} --loss {}", self.link.join(","), self.loss);
        }
        line
    }
}
