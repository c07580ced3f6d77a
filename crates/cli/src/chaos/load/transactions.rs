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

#[derive(Serialize, Deserialize, Clone, Copy, Debug)]
enum Call {
    /// Its result is [`Found`].
    Transfer { from: usize, to: usize, amount: u32 },
    /// Its result is the sum of all balances.
    Sum,
}

/// How often the cells had been changed before a transfer.
#[derive(Serialize, Deserialize, Clone, Copy, Debug)]
struct Found {
    from: u32,
    to: u32,
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
    let kind = LockKind::ALL[members.len() % LockKind::ALL.len()];
    let (cells, locks) = (CELLS_PER_NODE * members.len(), members.len());
    let options = TransactionOptions { cells, locks, lock: LockOptions::new(kind) };
    let cells = Transactions::open_among(node, path, members, options)?;
    let left = (0..cells.len()).map(|cell| Ok((cell, cells.home(cell)?))).collect::<Result<_>>()?;
    Ok(Box::new(Transfers { cells, left, rng: SmallRng::seed_from_u64(seed) }))
}

/// A cell with another balance, changed once more.
fn changed(cell: u64, balance: impl FnOnce(u32) -> u32) -> u64 {
    (cell >> 32).wrapping_add(1) << 32 | u64::from(balance(cell as u32))
}

impl Transfers {
    async fn transfer(&self, ep: &Endpoint, [from, to]: [usize; 2], amount: u32) -> Result<Found> {
        let mut transaction = self.cells.begin(ep, &[from, to]).await?;
        if transaction.is_poisoned() {
            // Each cell is whole by itself. After a death the sum of all is not looked at.
            transaction.clear_poison();
        }
        let cells = transaction.read_all(&[from, to]).await?;
        transaction.write(from, changed(cells[0], |balance| balance.wrapping_sub(amount)))?;
        transaction.write(to, changed(cells[1], |balance| balance.wrapping_add(amount)))?;
        transaction.commit().await?;
        Ok(Found { from: (cells[0] >> 32) as u32, to: (cells[1] >> 32) as u32 })
    }

    async fn sum(&self, ep: &Endpoint) -> Result<u32> {
        let named: Vec<usize> = self.left.iter().map(|(cell, _)| *cell).collect();
        let transaction = self.cells.begin(ep, &named).await?;
        let cells = transaction.read_all(&named).await?;
        transaction.abort().await?;
        Ok(cells.into_iter().fold(0, |sum, cell| sum.wrapping_add(cell as u32)))
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
        if let Err(failure) = log.call(Call::Sum, ep, self.sum(ep)) {
            self.forget(&failure);
        }
    }
}

/// No two transfers have changed a cell after the same change, a transfer has found those of all that had ended before
/// it, and without a death the sum of all balances stays.
fn judge(observed: &Observed<'_>) -> Vec<String> {
    let mut violations = Vec::new();
    // Of each cell, by the number of changes that was found: begin and end.
    let mut changes: BTreeMap<usize, BTreeMap<u32, (u64, u64)>> = BTreeMap::new();
    for call in observed.calls::<Call, Found>() {
        let (Call::Transfer { from, to, .. }, Some((end_ns, Ok(found)))) = (call.call, call.end) else { continue };
        for (cell, number) in [(from, found.from), (to, found.to)] {
            let before = changes.entry(cell).or_default().insert(number, (call.begin_ns, end_ns));
            if before.is_some() {
                violations.push(format!("two transfers have found cell {cell} after {number} changes"));
            }
        }
    }
    for (cell, changes) in &changes {
        // The first end of those that found more.
        let mut ended_ns = u64::MAX;
        for (number, (begin_ns, end_ns)) in changes.iter().rev() {
            if *begin_ns > ended_ns {
                violations.push(format!("a transfer has found cell {cell} after {number} changes, too late"));
            }
            ended_ns = ended_ns.min(*end_ns);
        }
    }
    if observed.deaths().next().is_none() {
        let sums = observed.calls::<Call, u32>().into_iter().filter_map(|call| call.end?.1.ok());
        violations.extend(sums.filter(|sum| *sum != 0).map(|sum| format!("the sum of all cells is {}", sum as i32)));
    }
    violations
}
