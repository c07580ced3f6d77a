//! Random programs over an array of locks: its kind, where the protected data is, and the threads' steps are drawn
//! for each execution.

use std::cell::Cell;
use std::rc::Rc;

use farfield_check::parts::{Protected, cut, patiently};
use farfield_check::{Cluster, Faults, Log, Scenario, crashed};
use farfield_core::{Endpoint, Result};

use crate::{LockArray, LockGuard, LockKind, LockOptions, LockTable, TableGuard};

const NODES: usize = 4;
/// Fewer locks than nodes, so this node is no lock's home, and has no data. It is the one that dies.
const LOCKS_MAX: usize = 3;
const VICTIM: usize = 3;

/// How an operation takes a lock.
#[derive(Clone, Copy)]
enum How {
    Waits,
    Tries,
    /// Its future is dropped when it was pending so often.
    Drops(usize),
}

/// One step of a thread.
struct Step {
    /// The locks that it holds at the same time, in ascending order.
    locks: Vec<usize>,
    /// How it takes the last of them.
    how: How,
    /// It reads and writes the words of its own node by the CPU.
    by_cpu: bool,
}

fn draw_step(cluster: &Cluster, locks: usize) -> Step {
    let first = cluster.draw(locks);
    // Two at once in a third of the steps.
    let second = (first + 1..locks).filter(|_| cluster.draw(3) == 0);
    let how = match cluster.draw(4) {
        0 | 1 => How::Waits,
        2 => How::Tries,
        _ => How::Drops(cluster.draw(4)),
    };
    Step { locks: std::iter::once(first).chain(second.take(1)).collect(), how, by_cpu: cluster.draw(2) == 0 }
}

/// Adds one to the data, and does not wait for the puts: the release has to make them visible.
async fn section(ep: &Endpoint, data: &Protected, guard: &mut TableGuard<'_>, by_cpu: bool) -> Result<()> {
    assert!(!guard.is_poisoned() || crashed(VICTIM), "it is poisoned, but no node has died");
    data.add_one(ep, by_cpu, guard.is_poisoned(), crashed).await?;
    guard.clear_poison();
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
fn play(ep: &Endpoint, locks: &LockTable, data: &[Protected], step: &Step, done: &Done) -> Result<()> {
    let mut held = Vec::new();
    for (at, lock) in step.locks.iter().enumerate() {
        let how = if at + 1 == step.locks.len() { step.how } else { How::Waits };
        held.extend(patiently(|| ep.block_on(take(ep, locks, *lock, how)))?.map(|guard| (*lock, guard)));
    }
    ep.block_on(async {
        for (lock, mut guard) in held {
            section(ep, &data[lock], &mut guard, step.by_cpu).await?;
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
    let homes = || [cluster.draw(VICTIM), cluster.draw(VICTIM)];
    let data = (0..count).map(|lock| Protected::new(cluster, homes(), &format!("{lock}")));
    let data: Rc<[Protected]> = data.collect::<Result<_>>()?;
    let (started, done) = (Rc::new(Cell::new(0)), cluster.log());
    for _ in 0..2 + cluster.draw(3) {
        let node = cluster.draw(NODES);
        let steps: Vec<Step> = (0..1 + cluster.draw(2)).map(|_| draw_step(cluster, count)).collect();
        let (locks, data) = (Rc::clone(&tables[node]), Rc::clone(&data));
        let (started, done) = (Rc::clone(&started), done.clone());
        cluster.thread(node, "plays", move |ep| {
            for step in &steps {
                started.set(started.get() + u64::from(node == VICTIM) * step.locks.len() as u64);
                play(ep, &locks, &data, step, &done)?;
            }
            Ok(())
        });
    }
    let (node, locks) = (cluster.node(0), Rc::clone(&tables[0]));
    cluster.at_end(move || {
        let (ep, done) = (node.endpoint()?, done.take());
        for (lock, data) in data.iter().enumerate() {
            // The dead node may have worked under it without returning from the release. Or the release was lost with
            // the node, and the puts before it to the same destination.
            let counts = |node: usize| node != VICTIM || !crashed(VICTIM);
            let sections = done.iter().filter(|(of, node)| *of == lock && counts(*node)).count() as u64;
            let unknown = if crashed(VICTIM) { started.get() } else { 0 };
            // Taking it from the dead node means waiting.
            let how = if crashed(VICTIM) { How::Waits } else { How::Tries };
            let guard = ep.block_on(take(&ep, &locks, lock, how))?.expect("nobody wants the lock, but it is not free");
            data.assert_sections(guard.is_poisoned(), sections..=sections + unknown);
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
