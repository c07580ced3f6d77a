//! Scenarios for the model checker.

use std::rc::Rc;

use farfield_check::Scenario;
use farfield_locks::{ALockOptions, LockKind, LockOptions};

use crate::{TransactionOptions, Transactions};

const LOCKS: ALockOptions = ALockOptions { remote_budget: 2, local_budget: 2, operations_max: 32 };

/// All of them.
///
/// ```
/// let scenarios = farfield_transactions::scenarios::all();
/// assert!(scenarios.iter().any(|scenario| scenario.name() == "transactions/transfers"));
/// ```
pub fn all() -> Vec<Scenario> {
    vec![transfers()]
}

/// Each node transfers an amount from its own account to the other's. It names its own account first, which is
/// second for the other node.
fn transfers() -> Scenario {
    const AMOUNT: u64 = 100;
    let about = "transfers under two locks keep the sum, and nobody waits in a circle";
    Scenario::new("transactions/transfers", about, 2, |cluster| {
        let lock = LockOptions { kind: LockKind::ALock, alock: LOCKS };
        let options = TransactionOptions { cells: 2, locks: 2, lock };
        let all = cluster.on_each(move |node| Transactions::open(node, "accounts", options).map(Rc::new))?;
        for accounts in &all {
            accounts.own_cells().for_each(|(_, word)| word.store(AMOUNT));
        }
        for (node, amount) in [(0, 30), (1, 7)] {
            let accounts = Rc::clone(&all[node]);
            cluster.thread(node, "transfer", move |ep| {
                ep.block_on(async {
                    let cells = [node, 1 - node];
                    let mut transaction = accounts.begin(ep, &cells).await?;
                    let held = transaction.read_all(&cells).await?;
                    assert_eq!(held[0] + held[1], 2 * AMOUNT, "half of a transfer was seen: {held:?}");
                    transaction.write(cells[0], held[0] - amount)?;
                    transaction.write(cells[1], held[1] + amount)?;
                    transaction.commit().await
                })
            });
        }
        cluster.at_end(move || {
            let held: Vec<u64> = all.iter().flat_map(|of| of.own_cells()).map(|(_, word)| word.load()).collect();
            assert_eq!(held, [AMOUNT - 23, AMOUNT + 23], "both transfers were done");
            Ok(())
        });
        Ok(())
    })
    .kills(&["transactions-unordered"])
}
