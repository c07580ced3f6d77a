//! Random programs of transactions: the kind and the number of the locks, the cells and the threads' transactions are
//! drawn for each execution.
//!
//! A transaction holds the locks of its cells, so their values are certain: those of the last commit. Only what a dead
//! node was committing is not, and then the lock is poisoned, unless that node has released it.

use std::cell::Cell;
use std::rc::Rc;

use farfield_check::parts::{Excuse, cut};
use farfield_check::{Cluster, Faults, Scenario, crashed};
use farfield_core::{Error, Node, Result};
use farfield_fabric::{Endpoint, NodeId};
use farfield_locks::{ALockOptions, LockArray, LockKind, LockOptions};

use crate::{Transaction, TransactionOptions, Transactions};

const NODES: usize = 3;
/// The node that may die.
const VICTIM: usize = 1;

/// What a cell contains.
#[derive(Clone, Copy, Default)]
struct Value {
    committed: u64,
    /// Of a commit that has not returned.
    pending: Option<u64>,
}

/// The cells, as they must be.
struct Cells {
    values: Vec<Cell<Value>>,
    /// The lock of each.
    locks: Vec<usize>,
}

impl Cells {
    /// Under the cell's lock. The value found is certain from then on.
    fn found(&self, cell: usize, value: u64, is_poisoned: bool) {
        let Value { committed, pending } = self.values[cell].get();
        let is_right = match pending {
            Some(pending) => value == pending || (is_poisoned && value == committed),
            None => value == committed,
        };
        assert!(is_right, "cell {cell} is {value}, not {committed}, and {pending:?} was being committed");
        self.values[cell].set(Value { committed: value, pending: None });
    }

    /// Whether these are all cells of their locks.
    fn are_all(&self, cells: &[usize]) -> bool {
        let is_covered = |cell: &usize| cells.iter().any(|named| self.locks[*named] == self.locks[*cell]);
        (0..self.values.len()).filter(is_covered).all(|cell| cells.contains(&cell))
    }
}

#[derive(Clone, Copy)]
enum Begin {
    Waits,
    /// Gives up at once.
    GivesUp,
    /// Its future is dropped when it was pending so often.
    Drops(usize),
}

#[derive(Clone, Copy)]
enum End {
    Commits,
    /// Its future is dropped when it was pending so often. All is written nevertheless.
    CommitsDropped(usize),
    Aborts,
    Drops,
}

/// One transaction: it moves an amount from one of its cells to another, if it has two.
struct Step {
    cells: Vec<usize>,
    amount: u64,
    begin: Begin,
    end: End,
}

fn draw_step(cluster: &Cluster, cells: usize) -> Step {
    let first = cluster.draw(cells);
    let mut named = vec![first];
    // Any order, and some cells twice.
    (0..cluster.draw(3)).for_each(|_| named.push(cluster.draw(cells)));
    let begin = match cluster.draw(6) {
        0 => Begin::GivesUp,
        1 => Begin::Drops(cluster.draw(8)),
        _ => Begin::Waits,
    };
    let end = match cluster.draw(8) {
        0 => End::Aborts,
        1 => End::Drops,
        2 => End::CommitsDropped(cluster.draw(4)),
        _ => End::Commits,
    };
    Step { cells: named, amount: 1 + cluster.draw(9) as u64, begin, end }
}

/// Whether a fault explains an error.
fn is_explained(error: &Error, since: Excuse) -> bool {
    let names = error.node() == Some(NodeId(VICTIM as u16));
    if error.is_timeout() { since.is_given() } else { crashed(VICTIM) && error.is_gone() && names }
}

async fn begin<'a>(ep: &'a Endpoint, all: &'a Transactions, step: &Step) -> Result<Option<Transaction<'a>>> {
    match step.begin {
        Begin::Waits => all.begin(ep, &step.cells).await.map(Some),
        Begin::GivesUp => match all.begin_deadline(ep, &step.cells, ep.now()).await {
            Err(error) if error.is_timeout() => Ok(None),
            begun => begun.map(Some),
        },
        Begin::Drops(pending) => cut(pending, all.begin(ep, &step.cells)).await.transpose(),
    }
}

async fn play(ep: &Endpoint, all: &Transactions, step: &Step, cells: &Cells) -> Result<()> {
    let Some(mut transaction) = begin(ep, all, step).await? else { return Ok(()) };
    let is_poisoned = transaction.is_poisoned();
    assert!(!is_poisoned || crashed(VICTIM), "it is poisoned, but no node has died");
    let read = transaction.read_all(&step.cells).await?;
    for (cell, value) in step.cells.iter().zip(&read) {
        cells.found(*cell, *value, is_poisoned);
    }
    if is_poisoned && cells.are_all(&step.cells) {
        transaction.clear_poison();
    }
    let (from, to) = (step.cells[0], step.cells[step.cells.len() - 1]);
    if from != to {
        for (cell, change) in [(from, step.amount.wrapping_neg()), (to, step.amount)] {
            let before = transaction.read(cell).await?;
            let after = before.wrapping_add(change);
            transaction.write(cell, after)?;
            assert_eq!(transaction.read(cell).await?, after, "a transaction does not see its own write");
        }
    }
    if from != to && matches!(step.end, End::Commits | End::CommitsDropped(_)) {
        for cell in [from, to] {
            let pending = Some(transaction.read(cell).await?);
            cells.values[cell].set(Value { pending, ..cells.values[cell].get() });
        }
    }
    match step.end {
        End::Commits => transaction.commit().await,
        End::CommitsDropped(pending) => cut(pending, transaction.commit()).await.unwrap_or(Ok(())),
        End::Aborts => transaction.abort().await,
        End::Drops => {
            drop(transaction);
            Ok(())
        }
    }
}

/// In the end every lock is free, and every cell has its value: on the nodes that live.
fn judge(nodes: &[Node], all: &[Rc<Transactions>], cells: &Cells) -> Result<()> {
    let lives = |node: NodeId| !crashed(node.index());
    for (node, transactions) in nodes.iter().zip(all).filter(|(node, _)| lives(node.id())) {
        let ep = node.endpoint()?;
        let is_left = |cell: &usize| {
            let (home, lock) = (transactions.home(*cell), transactions.lock_of(*cell));
            let lock_home = lock.map(|lock| transactions.locks().home(lock));
            home.is_ok_and(lives) && lock_home.is_ok_and(lives)
        };
        let left: Vec<usize> = (0..cells.values.len()).filter(is_left).collect();
        ep.block_on(async {
            let transaction = transactions.begin(&ep, &left).await?;
            for cell in left {
                cells.found(cell, transaction.read(cell).await?, transaction.is_poisoned());
            }
            transaction.abort().await
        })?;
    }
    if (0..nodes.len()).all(|node| !crashed(node)) {
        let sum = cells.values.iter().fold(0u64, |sum, value| sum.wrapping_add(value.get().committed));
        assert_eq!(sum, 0, "the transfers have changed the sum");
    }
    Ok(())
}

fn program(cluster: &Cluster) -> Result<()> {
    let kind = LockKind::ALL[cluster.draw(LockKind::ALL.len())];
    let budget = || 1 + cluster.draw(2) as u32;
    let alock = ALockOptions { remote_budget: budget(), local_budget: budget(), operations_max: 16 };
    let (count, locks) = (1 + cluster.draw(5), 1 + cluster.draw(4));
    let options = TransactionOptions { cells: count, locks, lock: LockOptions { kind, alock } };
    let all = cluster.on_each(move |node| Transactions::open(node, "cells", options).map(Rc::new))?;
    let locks = (0..count).map(|cell| all[0].lock_of(cell)).collect::<Result<_>>()?;
    let cells = Rc::new(Cells { values: vec![Cell::default(); count], locks });
    for _ in 0..2 + cluster.draw(2) {
        let node = cluster.draw(NODES);
        let steps: Vec<Step> = (0..1 + cluster.draw(2)).map(|_| draw_step(cluster, count)).collect();
        let (transactions, cells) = (Rc::clone(&all[node]), Rc::clone(&cells));
        cluster.thread(node, "plays", move |ep| {
            for step in &steps {
                let since = Excuse::now();
                match ep.block_on(play(ep, &transactions, step, &cells)) {
                    Err(error) if !is_explained(&error, since) => return Err(error),
                    _ => {}
                }
            }
            Ok(())
        });
    }
    let nodes = cluster.nodes();
    cluster.at_end(move || judge(&nodes, &all, &cells));
    Ok(())
}

/// All kinds of locks, on healthy nodes and beside one that dies.
pub(super) fn scenarios() -> [Scenario; 2] {
    let about = "random programs: a transaction finds what the last commit left, and every lock is free in the end";
    let scenario = |name| Scenario::new(name, about, NODES, program);
    let dies = scenario("transactions/random-dies").faults(Faults::new().crashes(1).of([VICTIM]));
    [scenario("transactions/random"), dies]
}
