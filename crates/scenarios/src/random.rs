//! Random programs over several objects at once: each execution draws the objects, their homes and sizes, the threads,
//! and the calls of each thread.
//!
//! Every object judges its own calls: the histories of keys, queues and words have to be linearizable, a lock has one
//! holder, a reader gets each message once and in order, all threads of a round meet. Together they pass on what
//! [`knowledge`] follows: a thread that has synchronised with another sees what that one has written before.

mod barrier;
mod knowledge;
mod lock;
mod peril;
mod queue;
mod ring;
mod store;
mod variables;
mod words;

use farfield_core::fabric::{DeathRule, Instant};
use farfield_core::{Endpoint, Node, NodeId, Result};

use self::knowledge::{Board, Party};
use self::peril::Peril;
use super::kv;
use super::refused::anywhere;
use farfield_check::parts::{goes_on, is_decided, word};
use farfield_check::{Cluster, Faults, Scenario};

/// The node that may die.
const VICTIM: NodeId = kv::VICTIM;

/// One call of a thread, with the judgement of its answer.
type Step = Box<dyn Fn(&Endpoint, &mut Party) -> Result<()>>;

/// An object of a program.
trait Object {
    /// Draws a call of a thread, if the thread has one to make.
    fn step(&self, program: &Program<'_>, thread: usize) -> Option<Step>;

    /// The calls that a thread has to make in any case, after all others.
    fn rest(&self, _: &Program<'_>, _: usize) -> Vec<Step> {
        Vec::new()
    }
}

/// A kind of object: opens one, and adds its judgement at the end.
type Kind = fn(&Program<'_>) -> Result<Box<dyn Object>>;

const KINDS: [Kind; 8] = [
    store::open,
    queue::open,
    ring::open,
    variables::open_atomic,
    variables::open_shared,
    variables::open_owned,
    lock::open,
    barrier::open,
];

/// What the objects of a program have in common.
struct Program<'a> {
    cluster: &'a Cluster,
    peril: Peril,
    /// The node of each thread.
    threads: Vec<usize>,
    board: Board,
}

impl Program<'_> {
    fn nodes(&self) -> usize {
        self.cluster.nodes().len()
    }

    fn draw(&self, options: usize) -> usize {
        self.cluster.draw(options)
    }

    fn draw_node(&self) -> usize {
        self.draw(self.nodes())
    }

    /// A node that does not die. It may be cut off.
    fn draw_safe_node(&self) -> usize {
        match self.peril {
            Peril::Death => (VICTIM.index() + 1 + self.draw(self.nodes() - 1)) % self.nodes(),
            _ => self.draw_node(),
        }
    }

    fn draw_thread(&self) -> usize {
        self.draw(self.threads.len())
    }

    fn node_of(&self, thread: usize) -> usize {
        self.threads[thread]
    }

    /// Whether a thread is the first of its node.
    fn is_first(&self, thread: usize) -> bool {
        self.threads[..thread].iter().all(|node| *node != self.threads[thread])
    }
}

/// The most calls of a thread.
const STEPS_MAX: usize = 4;

fn run(cluster: &Cluster, peril: Peril, kinds: &[Kind]) -> Result<()> {
    let nodes = cluster.nodes().len();
    // Two threads at least, on any nodes.
    let threads = (0..2 + cluster.draw(nodes)).map(|_| cluster.draw(nodes)).collect();
    let program = Program { cluster, peril, threads, board: Board::default() };
    match &program.peril {
        Peril::Nothing | Peril::Death => {}
        Peril::Suspicion => decide(cluster)?,
        Peril::Refusals(refusals) => {
            let refuses = refusals.clone();
            cluster.thread(0, "refuses", move |ep| anywhere::refuse(ep, &refuses, 3));
            anywhere::at_end(cluster, refusals);
        }
    }
    let words = words::open(&program)?;
    // One object, or two.
    let (first, second) = (cluster.draw(kinds.len()), cluster.draw(2 * kinds.len()));
    let mut objects = vec![kinds[first](&program)?];
    if let Some(kind) = kinds.get(second).filter(|_| second != first) {
        objects.push(kind(&program)?);
    }
    objects.push(words);
    let scripts: Vec<Vec<Step>> = (0..program.threads.len())
        .map(|thread| {
            let draw = |_| objects[cluster.draw(objects.len())].step(&program, thread);
            let drawn: Vec<Step> = (0..1 + cluster.draw(STEPS_MAX)).filter_map(draw).collect();
            drawn.into_iter().chain(objects.iter().flat_map(|object| object.rest(&program, thread))).collect()
        })
        .collect();
    let is_refusing = matches!(program.peril, Peril::Refusals(_));
    for (thread, (node, script)) in program.threads.iter().copied().zip(scripts).enumerate() {
        let board = program.board.clone();
        cluster.thread(node, "plays", move |ep| {
            if is_refusing && node != 0 {
                ep.set_timeout(anywhere::PATIENCE);
            }
            let mut party = Party::new(thread, node, &board);
            script.iter().try_for_each(|step| step(ep, &mut party))
        });
    }
    Ok(())
}

/// Waits until the nodes that are left agree on which of them are, and reach each other. Precedes the judgements at the
/// end.
fn decide(cluster: &Cluster) -> Result<()> {
    let nodes = cluster.nodes();
    let words = (0..nodes.len()).map(|node| word(cluster, node, "reached")).collect::<Result<Vec<_>>>()?;
    let reaches = move |node: &Node| -> Result<bool> {
        let ep = node.endpoint()?;
        ep.block_on(ep.wait_until(Instant::NEVER, || is_decided(node).then_some(())))?;
        let of_members = words.iter().filter(|word| node.live_members().contains(&word.remote::<u64>(0).node()));
        Ok(of_members.map(|word| ep.get(word.remote::<u64>(0)).wait()).all(|got| got.is_ok()))
    };
    cluster.at_end(move || {
        loop {
            let left = || nodes.iter().filter(|node| goes_on(node));
            let before: Vec<NodeId> = left().map(Node::id).collect();
            let mut all = true;
            for node in left() {
                all &= reaches(node)?;
            }
            if all && left().map(Node::id).eq(before) {
                return Ok(());
            }
        }
    });
    Ok(())
}

pub(super) fn scenarios() -> Vec<Scenario> {
    let scenario = |name: &str, about: &str, nodes: usize, peril: fn() -> Peril| {
        Scenario::new(name, about, nodes, move |cluster| run(cluster, peril(), &KINDS))
    };
    let healthy = |name: &str, nodes| scenario(name, "random programs over several objects", nodes, || Peril::Nothing);
    let dies = scenario("random/dies", "random programs beside a node that dies", 3, || Peril::Death);
    let suspected = |name: &str, nodes| {
        let about = "random programs while nodes are cut off or suspected";
        let faults = Faults::new().cuts(1).false_suspicions(1);
        scenario(name, about, nodes, || Peril::Suspicion).rule(DeathRule::Majority).faults(faults)
    };
    let about = "random programs of which an operation is refused";
    let refused = Scenario::new("random/refused", about, 3, |cluster| {
        let refusals = anywhere::start(cluster, 3)?;
        run(cluster, Peril::Refusals(refusals), &KINDS)
    });
    vec![
        healthy("random/two", 2),
        healthy("random/three", 3),
        healthy("random/four", 4),
        dies.faults(Faults::new().crashes(1).of([VICTIM.index()])),
        suspected("random/suspected", 3),
        suspected("random/suspected-of-five", 5),
        refused.late_nodes(),
    ]
}
