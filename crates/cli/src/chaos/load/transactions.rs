//! Transfers between cells on all nodes. A cell is a balance, and the number of its changes above that.

use std::collections::BTreeMap;

use farfield::{Endpoint, LockKind, LockOptions, NodeId, Result, TransactionOptions, Transactions};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::chaos::custom::{Failure, Load, Log, Observed, Setup, Work};

/// The load, as a crate of its own would have it.
pub(in crate::chaos) const LOAD: Load = Load { name: "transactions", open, judge };

/// On each node: few, so that transfers meet.
const CELLS_PER_NODE: usize = 2;

#[derive(Serialize, Deserialize, Clone, Debug)]
enum Call {
    /// Its result is the two cells as it has found them.
    Transfer { from: usize, to: usize, amount: u32 },
    /// Reads cells after all transfers. Its result is all of them.
    Look { cells: Vec<usize> },
}

/// A cell with another balance, changed once more.
fn changed(cell: u64, balance: impl FnOnce(u32) -> u32) -> u64 {
    u64::from(number_of(cell).wrapping_add(1)) << 32 | u64::from(balance(cell as u32))
}

fn number_of(cell: u64) -> u32 {
    (cell >> 32) as u32
}

/// One node's thread.
struct Transfers {
    cells: Transactions,
    /// Those with living homes, as far as is known.
    left: Vec<(usize, NodeId)>,
    rng: SmallRng,
}

fn open(setup: &Setup<'_>) -> Result<Box<dyn Work>> {
    let Setup { node, path, members, seed } = *setup;
    // Another kind in each generation.
    let kind = LockKind::ALL[path.bytes().map(usize::from).sum::<usize>() % LockKind::ALL.len()];
    let (cells, locks) = (CELLS_PER_NODE * members.len(), members.len());
    let options = TransactionOptions { cells, locks, lock: LockOptions::new(kind) };
    let cells = Transactions::open_among(node, path, members, options)?;
    let left = (0..cells.len()).map(|cell| Ok((cell, cells.home(cell)?))).collect::<Result<_>>()?;
    Ok(Box::new(Transfers { cells, left, rng: SmallRng::seed_from_u64(seed) }))
}

impl Transfers {
    async fn transfer(&self, ep: &Endpoint, [from, to]: [usize; 2], amount: u32) -> Result<[u64; 2]> {
        let mut transaction = self.cells.begin(ep, &[from, to]).await?;
        // Each cell is whole by itself, and the judge follows each from change to change.
        transaction.clear_poison();
        let [found_from, found_to] = transaction.read_all(&[from, to]).await?[..] else { unreachable!("two cells") };
        transaction.write(from, changed(found_from, |balance| balance.wrapping_sub(amount)))?;
        transaction.write(to, changed(found_to, |balance| balance.wrapping_add(amount)))?;
        transaction.commit().await?;
        Ok([found_from, found_to])
    }

    async fn read(&self, ep: &Endpoint, cells: &[usize]) -> Result<Vec<u64>> {
        let transaction = self.cells.begin(ep, cells).await?;
        let found = transaction.read_all(cells).await?;
        transaction.abort().await?;
        Ok(found)
    }

    fn forget(&mut self, failure: &Failure) {
        if failure.is_death() {
            self.left.retain(|(_, home)| !failure.nodes.contains(&home.0));
        }
    }
}

impl Work for Transfers {
    fn step(&mut self, ep: &Endpoint, log: &Log<'_>) {
        let count = self.left.len();
        if count < 2 {
            return;
        }
        let first = self.rng.random_range(0..count);
        let second = (first + self.rng.random_range(1..count)) % count;
        let [from, to] = [first, second].map(|at| self.left[at].0);
        let amount = self.rng.random_range(1..100);
        let transfer = self.transfer(ep, [from, to], amount);
        if let Err(failure) = log.call(Call::Transfer { from, to, amount }, ep, transfer) {
            self.forget(&failure);
        }
    }

    fn look(&mut self, ep: &Endpoint, log: &Log<'_>) {
        let cells: Vec<usize> = self.left.iter().map(|(cell, _)| *cell).collect();
        let _ = log.call(Call::Look { cells: cells.clone() }, ep, self.read(ep, &cells));
    }
}

/// A transfer, as one of its cells sees it.
struct Change {
    /// The number of the transfer.
    transfer: usize,
    begin_ns: u64,
    end_ns: u64,
    /// The cell after it.
    after: u64,
}

/// No two transfers have found a cell after the same change; the next one has found what the one before has left, also
/// beside deaths; a transfer has found the changes of all that had ended before it; and there is one order of all
/// transfers that agrees with each cell.
fn judge(observed: &Observed<'_>) -> Vec<String> {
    let mut violations = Vec::new();
    // Of each cell, by the number of changes that was found.
    let mut cells: BTreeMap<usize, BTreeMap<u32, (u64, Change)>> = BTreeMap::new();
    let calls = observed.calls::<Call, Vec<u64>>();
    for (transfer, call) in calls.iter().enumerate() {
        let (Call::Transfer { from, to, amount }, Some((end_ns, Ok(found)))) = (&call.call, &call.end) else {
            continue;
        };
        let [found_from, found_to] = found[..] else { continue };
        let paid = changed(found_from, |balance| balance.wrapping_sub(*amount));
        let received = changed(found_to, |balance| balance.wrapping_add(*amount));
        for (cell, found, after) in [(*from, found_from, paid), (*to, found_to, received)] {
            let change = Change { transfer, begin_ns: call.begin_ns, end_ns: *end_ns, after };
            let number = number_of(found);
            if cells.entry(cell).or_default().insert(number, (found, change)).is_some() {
                violations.push(format!("two transfers have found cell {cell} after {number} changes"));
            }
        }
    }
    // Of each transfer, those that have found a cell of it later.
    let mut later: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (cell, changes) in &cells {
        for ((number, (_, first)), (next, (found, second))) in changes.iter().zip(changes.iter().skip(1)) {
            later.entry(first.transfer).or_default().push(second.transfer);
            if *next == number + 1 && *found != first.after {
                let (left, found) = (first.after as i32, *found as i32);
                violations.push(format!("change {next} of cell {cell} has left {left}, and {found} was found"));
            }
        }
        // The first end of those that found more.
        let mut ended_ns = u64::MAX;
        for (number, (_, change)) in changes.iter().rev() {
            if change.begin_ns > ended_ns {
                violations.push(format!("a transfer has found cell {cell} after {number} changes, too late"));
            }
            ended_ns = ended_ns.min(change.end_ns);
        }
    }
    if has_cycle(&later) {
        violations.push("no order of the transfers agrees with all cells".into());
    }
    for call in &calls {
        let (Call::Look { cells: named }, Some((_, Ok(found)))) = (&call.call, &call.end) else { continue };
        for (cell, found) in named.iter().zip(found) {
            let Some((last, (_, change))) = cells.get(cell).and_then(BTreeMap::last_key_value) else { continue };
            let number = number_of(*found);
            if number <= *last || number == last + 1 && *found != change.after {
                violations.push(format!("in the end cell {cell} is {} after {number} changes", *found as i32));
            }
        }
    }
    violations
}

/// Whether a number leads to itself.
fn has_cycle(edges: &BTreeMap<usize, Vec<usize>>) -> bool {
    let mut before: BTreeMap<usize, usize> = edges.keys().map(|from| (*from, 0)).collect();
    edges.values().flatten().for_each(|to| *before.entry(*to).or_default() += 1);
    let (all, mut ordered) = (before.len(), 0);
    let mut first: Vec<usize> = before.iter().filter(|(_, count)| **count == 0).map(|(at, _)| *at).collect();
    while let Some(at) = first.pop() {
        ordered += 1;
        for to in edges.get(&at).into_iter().flatten() {
            let left = before.entry(*to).and_modify(|left| *left -= 1).or_default();
            if *left == 0 {
                first.push(*to);
            }
        }
    }
    ordered < all
}
