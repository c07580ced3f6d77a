//! Random programs over an array of locks: its kind, where the protected data is, and the threads' steps are drawn
//! for each execution.

use std::cell::Cell;
use std::rc::Rc;

use farfield_check::parts::{cut, patiently, word};
use farfield_check::{Cluster, Faults, Log, Scenario, crashed};
use farfield_core::{Endpoint, Result};
use farfield_fabric::Region;

use crate::{LockArray, LockGuard, LockKind, LockOptions, LockTable, TableGuard};

const NODES: usize = 4;
/// Fewer locks than nodes, so this node is no lock's home, and has no data. It is the one that dies.
const LOCKS_MAX: usize = 3;
const VICTIM: usize = 3;

/// The data of a lock: two words that are equal whenever it is free. A critical section adds one to both.
struct Pair {
    words: [Region; 2],
    /// The node inside, if there is one.
    inside: Cell<Option<usize>>,
}

/// How an operation takes a lock.
#[derive(Clone, Copy)]
enum How {
    Waits,
    Tries,
    /// Its future is dropped when it was pending so often.
    Drops(usize),
}

/// One step of a thread: the locks that it holds at the same time, in ascending order, and how it takes the last.
type Step = (Vec<usize>, How);

fn draw_step(cluster: &Cluster, locks: usize) -> Step {
    let first = cluster.draw(locks);
    // Two at once in a third of the steps.
    let second = (first + 1..locks).filter(|_| cluster.draw(3) == 0);
    let how = match cluster.draw(4) {
        0 | 1 => How::Waits,
        2 => How::Tries,
        _ => How::Drops(cluster.draw(4)),
    };
    (std::iter::once(first).chain(second.take(1)).collect(), how)
}

/// Adds one to both words, and does not wait for the puts: the release has to make them visible.
async fn section(ep: &Endpoint, pair: &Pair, guard: &mut TableGuard<'_>) -> Result<()> {
    let me = ep.me().index();
    let before = pair.inside.replace(Some(me));
    let is_left = |node: usize| crashed(node) && guard.is_poisoned();
    assert!(before.is_none_or(is_left), "node {before:?} is inside, too");
    let [a, b] = pair.words.each_ref().map(|region| region.remote::<u64>(0));
    let (seen_a, seen_b) = (ep.get(a).await?, ep.get(b).await?);
    assert!(!guard.is_poisoned() || crashed(VICTIM), "it is poisoned, but nobody has died");
    assert!(seen_a == seen_b || guard.is_poisoned(), "{seen_a} and {seen_b}: half-written, and nobody says so");
    guard.clear_poison();
    let next = seen_a.max(seen_b) + 1;
    ep.put_value(a, next).detach()?;
    ep.put_value(b, next).detach()?;
    pair.inside.set(None);
    Ok(())
}

async fn take<'a>(ep: &'a Endpoint, locks: &'a LockTable, at: usize, how: How) -> Result<Option<TableGuard<'a>>> {
    match how {
        How::Waits => locks.lock(ep, at).await.map(Some),
        How::Tries => locks.try_lock(ep, at).await,
        How::Drops(pending) => cut(pending, locks.lock(ep, at)).await.transpose(),
    }
}

/// The sections that have ended: the lock and the node.
type Done = Log<(usize, usize)>;

/// Takes the locks of a step, and works under each that it gets.
fn play(ep: &Endpoint, locks: &LockTable, pairs: &[Pair], (wanted, how): &Step, done: &Done) -> Result<()> {
    let mut held = Vec::new();
    for (at, lock) in wanted.iter().enumerate() {
        let how = if at + 1 == wanted.len() { *how } else { How::Waits };
        held.extend(patiently(|| ep.block_on(take(ep, locks, *lock, how)))?.map(|guard| (*lock, guard)));
    }
    ep.block_on(async {
        for (lock, mut guard) in held {
            section(ep, &pairs[lock], &mut guard).await?;
            guard.unlock().await?;
            done.push((lock, ep.me().index()));
        }
        Ok(())
    })
}

fn program(cluster: &Cluster) -> Result<()> {
    let kind = LockKind::ALL[cluster.draw(LockKind::ALL.len())];
    let count = 1 + cluster.draw(LOCKS_MAX);
    let mut options = LockOptions::new(kind);
    options.alock.remote_budget = 1 + cluster.draw(2) as u32;
    options.alock.local_budget = 1 + cluster.draw(2) as u32;
    options.alock.operations_max = 8;
    let tables = cluster.on_each(move |node| LockTable::open(node, "locks", count, options).map(Rc::new))?;
    let pair = |lock: usize| {
        let data = |name: &str| word(cluster, cluster.draw(VICTIM), &format!("{name}{lock}"));
        Ok(Pair { words: [data("x")?, data("y")?], inside: Cell::new(None) })
    };
    let pairs: Rc<[Pair]> = (0..count).map(pair).collect::<Result<_>>()?;
    let (started, done) = (Rc::new(Cell::new(0)), cluster.log());
    for _ in 0..2 + cluster.draw(3) {
        let node = cluster.draw(NODES);
        let steps: Vec<Step> = (0..1 + cluster.draw(2)).map(|_| draw_step(cluster, count)).collect();
        let (locks, pairs) = (Rc::clone(&tables[node]), Rc::clone(&pairs));
        let (started, done) = (Rc::clone(&started), done.clone());
        cluster.thread(node, "plays", move |ep| {
            for step in &steps {
                started.set(started.get() + u64::from(node == VICTIM) * step.0.len() as u64);
                play(ep, &locks, &pairs, step, &done)?;
            }
            Ok(())
        });
    }
    let (node, locks) = (cluster.node(0), Rc::clone(&tables[0]));
    cluster.at_end(move || {
        let (ep, done) = (node.endpoint()?, done.take());
        for (lock, pair) in pairs.iter().enumerate() {
            // The dead node may have worked under it without returning from the release. Or the release, with the puts
            // to the node that it goes to, was lost with the node.
            let counts = |node: usize| node != VICTIM || !crashed(VICTIM);
            let sections = done.iter().filter(|(of, node)| *of == lock && counts(*node)).count() as u64;
            let unknown = if crashed(VICTIM) { started.get() } else { 0 };
            // Taking it from the dead node means waiting.
            let how = if crashed(VICTIM) { How::Waits } else { How::Tries };
            let guard = ep.block_on(take(&ep, &locks, lock, how))?.expect("nobody wants the lock, but it is not free");
            let words = pair.words.each_ref().map(|region| region.word(0).load());
            assert!(guard.is_poisoned() || words[0] == words[1], "{words:?} differ at the end");
            let most = words[0].max(words[1]);
            assert!((sections..=sections + unknown).contains(&most), "{sections} sections under {lock}, {words:?}");
            ep.block_on(guard.unlock())?;
        }
        Ok(())
    });
    Ok(())
}

/// All kinds, on healthy nodes and beside one that dies.
pub(super) fn scenarios() -> [Scenario; 2] {
    let about = "random programs: exclusion, visibility, poison, and every lock is free in the end";
    let scenario = |name| Scenario::new(name, about, NODES, program);
    [scenario("locks/random"), scenario("locks/random-dies").faults(Faults::new().crashes(1).of([VICTIM]))]
}
