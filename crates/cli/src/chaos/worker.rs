//! A node of a run: it opens the objects of each generation, and lets a thread for each load work on them, as ordered.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufRead;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use farfield::mutants::{self, Mutant};
use farfield::{MemberStatus, Node, NodeId};
use rustix::process::{Signal, set_parent_process_death_signal};

use super::load::{self, Load, Place};
use super::log::{Recorder, log_name};
use super::processes::{Opening, Order, Said, Step};

/// How long opening an object may take, on a busy machine, too: nothing is done to nodes meanwhile.
const OPEN_MAX: Duration = Duration::from_secs(80);
const BEAT: Duration = Duration::from_millis(250);
/// How often the members are looked at until they are those that are to be there.
const LOOK: Duration = Duration::from_millis(2);

/// A thread rests so many times as long as it has waited for a core in a step, up to a limit. Where all threads
/// together want more than the machine has, each then works less, and the nodes' service threads, which do not rest,
/// find a core: a death is found out, and its traces are repaired, as soon on a slow or busy machine as on a fast one.
const REST: u32 = 8;
const REST_MAX: Duration = Duration::from_millis(500);

/// The arguments of the hidden `farfield __chaos`.
#[derive(clap::Args)]
pub(crate) struct WorkerArgs {
    /// Where to log
    folder: PathBuf,
    /// A seeded bug
    #[arg(long, value_parser = crate::parts::mutant)]
    mutant: Option<Mutant>,
}

/// The phases of a generation's threads, in this order.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    #[default]
    Waiting,
    Running,
    Settling,
    Looking,
    Closing,
}

/// Where a generation is.
#[derive(Default)]
struct Stage {
    phase: Phase,
    /// The members, living and dead.
    members: Vec<NodeId>,
    /// How many threads have settled, and have looked.
    settled: usize,
    looked: usize,
}

/// The state that the threads of a generation share with the main one.
#[derive(Default)]
struct Shared {
    stage: Mutex<Stage>,
    changed: Condvar,
    /// How many operations each thread has begun.
    begun: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
}

impl Shared {
    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner) // it is as it should be between any two changes
    }

    fn change(&self, change: impl FnOnce(&mut Stage)) {
        change(&mut self.stage());
        self.changed.notify_all();
    }

    fn wait_until(&self, condition: impl Fn(&Stage) -> bool) {
        let waited = self.changed.wait_while(self.stage(), |stage| !condition(stage));
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits for a phase for at most `time`. Returns whether it has begun.
    fn wait_for_up_to(&self, phase: Phase, time: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(self.stage(), time, |stage| stage.phase < phase);
        waited.unwrap_or_else(PoisonError::into_inner).0.phase >= phase
    }

    fn begun(&self) -> MutexGuard<'_, BTreeMap<String, Arc<AtomicU64>>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner) // no thread panics while it has it
    }

    fn wait_for(&self, phase: Phase) {
        self.wait_until(|stage| stage.phase >= phase);
    }
}

/// A generation's threads.
struct Crew {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// To be called first in a process of a run.
pub(crate) fn main(args: &WorkerArgs) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("tying this process's life to its parent's")?;
    let node = Node::builder().environment()?.timeout(OPEN_MAX).start()?;
    Said::Here(node.id().0).say();
    let mut crew: Option<Crew> = None;
    for line in std::io::stdin().lock().lines() {
        let order: Order = serde_json::from_str(&line?).context("an order")?;
        match (order, &mut crew) {
            (Order::Open(opening), crew @ None) => {
                crew.insert(Crew::new(&node)).open(&node, &opening, args)?;
                Said::Did(Step::Opened).say();
            }
            (Order::Join(opening), crew) => {
                // A newcomer has done nothing yet in this generation.
                crew.get_or_insert_with(|| Crew::new(&node)).join(&node, &opening, args)?;
                Said::Did(Step::Joined).say();
            }
            (Order::Run, Some(crew)) => crew.go_on(Phase::Running, Step::Running),
            (Order::Settle, Some(crew)) => crew.go_on(Phase::Settling, Step::Settled),
            (Order::Look, Some(crew)) => crew.go_on(Phase::Looking, Step::Looked),
            (Order::Close, crew @ Some(_)) => {
                crew.take().context("a crew")?.close()?;
                Said::Did(Step::Closed).say();
            }
            (order, _) => bail!("it makes no sense now to {order:?}"),
        }
    }
    Ok(())
}

impl Crew {
    fn new(node: &Node) -> Crew {
        let shared = Arc::new(Shared::default());
        let (beating, node, mut is_fenced) = (Arc::clone(&shared), node.clone(), false);
        let beat = std::thread::spawn(move || {
            let count = |(name, count): (&String, &Arc<AtomicU64>)| (name.clone(), count.load(Ordering::Relaxed));
            loop {
                let begun = beating.begun().iter().map(count).collect();
                let members = beating.stage().members.clone();
                let evict = members.iter().filter(|member| node.status_of(**member) == Some(MemberStatus::Evicted));
                let evict = evict.map(|member| member.0).collect();
                Said::Beat { begun, evict }.say();
                if node.fabric().is_fenced() && !std::mem::replace(&mut is_fenced, true) {
                    Said::Fenced.say();
                }
                if beating.wait_for_up_to(Phase::Closing, BEAT) {
                    return;
                }
            }
        });
        Crew { shared, threads: vec![beat] }
    }

    /// Opens the objects of a generation. Its members are all present nodes.
    fn open(&mut self, node: &Node, opening: &Opening, args: &WorkerArgs) -> Result<()> {
        wait_for_members(node, opening, |present| present == opening.members)?;
        self.shared.change(|stage| stage.members = opening.members.iter().copied().map(NodeId).collect());
        let name = log_name(opening.generation, node.id().0, "open");
        let mut place = Place::new(node, opening, Recorder::create(&args.folder, &name)?);
        let loads = load::open_all(&mut place).map_err(|failure| anyhow::anyhow!("{}", failure.text))?;
        self.begin(loads, node, opening, args)
    }

    /// Opens an object with a newcomer, and works on it at once.
    fn join(&mut self, node: &Node, opening: &Opening, args: &WorkerArgs) -> Result<()> {
        wait_for_members(node, opening, |present| opening.members.iter().all(|member| present.contains(member)))?;
        let newcomer = opening.homes.first().context("a newcomer")?;
        let name = log_name(opening.generation, node.id().0, &format!("open-{newcomer}"));
        let mut place = Place::new(node, opening, Recorder::create(&args.folder, &name)?);
        let loads = load::open_with_newcomer(&mut place).map_err(|failure| anyhow::anyhow!("{}", failure.text))?;
        self.begin(loads, node, opening, args)?;
        self.shared.change(|stage| stage.phase = stage.phase.max(Phase::Running));
        Ok(())
    }

    /// Starts a thread for each load. It waits until all are to run.
    fn begin(&mut self, loads: load::Loads, node: &Node, opening: &Opening, args: &WorkerArgs) -> Result<()> {
        for (name, load) in loads {
            let begun = Arc::new(AtomicU64::new(0));
            self.shared.begun().insert(name.clone(), Arc::clone(&begun));
            let mut log = Recorder::create(&args.folder, &log_name(opening.generation, node.id().0, &name))?;
            let (shared, pace, mutant) = (Arc::clone(&self.shared), opening.pace, args.mutant);
            let body = move || {
                // A mutant is on for the calling thread.
                mutants::enable(mutant).expect("the parent has done so, too");
                load(&mut |load| work(load, &mut log, &shared, &begun, pace));
            };
            self.threads.push(std::thread::Builder::new().name(name).spawn(body).context("starting a thread")?);
        }
        Ok(())
    }

    /// Lets the threads enter the next phase, and reports when all have ended the one before.
    fn go_on(&self, phase: Phase, step: Step) {
        self.shared.change(|stage| stage.phase = phase);
        let all = self.shared.begun().len();
        // The parent watches over how long it takes.
        self.shared.wait_until(|stage| match phase {
            Phase::Settling => stage.settled == all,
            Phase::Looking => stage.looked == all,
            _ => true,
        });
        Said::Did(step).say();
    }

    fn close(self) -> Result<()> {
        self.shared.change(|stage| stage.phase = Phase::Closing);
        for thread in self.threads {
            thread.join().map_err(|_| anyhow::anyhow!("a thread panicked: see above"))?;
        }
        Ok(())
    }
}

/// Waits until the right members are present: a node that has just joined learns of the others' deaths, and the others
/// of its arrival, only a moment later.
fn wait_for_members(node: &Node, opening: &Opening, is_right: impl Fn(&[u16]) -> bool) -> Result<()> {
    let start = Instant::now();
    loop {
        let present: Vec<u16> = node.live_members().iter().map(|node| node.0).collect();
        if is_right(&present) {
            return Ok(());
        }
        ensure!(start.elapsed() < OPEN_MAX, "nodes {present:?} are there, not {:?}", opening.members);
        std::thread::sleep(LOOK);
    }
}

/// How long the thread that has opened it has waited for a core since it began, as the kernel counts.
struct RunQueue(Option<File>);

impl RunQueue {
    fn open() -> RunQueue {
        RunQueue(File::open("/proc/thread-self/schedstat").ok())
    }

    /// Nothing on a kernel that does not count.
    fn waited(&self) -> Duration {
        let mut text = [0; 64];
        let read = self.0.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
        // Nanoseconds that it ran, nanoseconds that it waited, and how often it ran.
        let waited_ns = str::from_utf8(&text[..read]).ok().and_then(|text| text.split(' ').nth(1)?.parse().ok());
        Duration::from_nanos(waited_ns.unwrap_or(0))
    }
}

/// One thread's generation.
fn work(load: &mut dyn Load, log: &mut Recorder, shared: &Shared, begun: &AtomicU64, pace: Duration) {
    shared.wait_for(Phase::Running);
    let queue = RunQueue::open();
    loop {
        let (start, waited) = (Instant::now(), queue.waited());
        begun.fetch_add(1, Ordering::Relaxed);
        load.step(log);
        let rest = (REST * queue.waited().saturating_sub(waited)).min(REST_MAX);
        let rest = if load.rests() { rest } else { Duration::ZERO };
        if shared.wait_for_up_to(Phase::Settling, pace.saturating_sub(start.elapsed()).max(rest)) {
            break;
        }
    }
    load.settle(log);
    shared.change(|stage| stage.settled += 1);
    shared.wait_for(Phase::Looking);
    load.look(log);
    shared.change(|stage| stage.looked += 1);
    // A thread that drops an object is missed by those that still use it.
    shared.wait_for(Phase::Closing);
}
