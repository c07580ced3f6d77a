//! Seeded bugs of transactions.

farfield_core::mutants! {
    /// *Missing:* an order of all locks: each of two transactions waits for the other's. Needs no reordering.
    ///
    /// *Scenario:* `transactions/transfers`.
    TRANSACTIONS_UNORDERED = "transactions-unordered" in "Transactions":
        "Locks are taken in the order in which the cells are named.";
}
