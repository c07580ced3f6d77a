//! A type with methods of all categories, for the scenarios.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{Coordination, DataType, methods};

/// Accounts, and a till beside them.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Till {
    /// The sum of all that was added, less what was taken.
    pub(super) cash: u64,
    pub(super) marks: BTreeSet<u8>,
    /// By account.
    pub(super) accounts: BTreeMap<u8, u64>,
}

methods! {
    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    pub(super) enum TillUpdate: TillMethod {
        /// Reducible.
        Add(u64),
        /// Reducible; its summary grows.
        Mark(BTreeSet<u8>),
        /// Irreducible conflict-free.
        Open(u8),
        /// Depends on `Open`.
        Deposit(u8, u64),
        /// Conflicts with itself, and depends on `Add`.
        Take(u64),
    }
}

impl DataType for Till {
    type Update = TillUpdate;
    type Refusal = String;

    fn apply(&mut self, update: &TillUpdate) -> Result<(), String> {
        match update {
            TillUpdate::Add(more) => self.cash += more,
            TillUpdate::Mark(more) => self.marks.extend(more),
            TillUpdate::Open(account) => drop(self.accounts.entry(*account).or_default()),
            TillUpdate::Deposit(account, more) => {
                *self.accounts.get_mut(account).ok_or("there is no such account")? += more;
            }
            TillUpdate::Take(amount) => self.cash = self.cash.checked_sub(*amount).ok_or("there is too little")?,
        }
        Ok(())
    }

    fn coordination() -> Coordination<TillMethod> {
        use TillMethod::{Add, Deposit, Mark, Open, Take};
        let till = Coordination::none().conflict(Take, Take).depends(Take, Add).depends(Deposit, Open);
        till.summarised([Add]).summarised([Mark])
    }

    fn summarise(first: &TillUpdate, then: &TillUpdate) -> Option<TillUpdate> {
        match (first, then) {
            (TillUpdate::Add(a), TillUpdate::Add(b)) => Some(TillUpdate::Add(a + b)),
            (TillUpdate::Mark(a), TillUpdate::Mark(b)) => Some(TillUpdate::Mark(a | b)),
            _ => None,
        }
    }

    fn remainder(earlier: &TillUpdate, later: &TillUpdate) -> Option<TillUpdate> {
        match (earlier, later) {
            (TillUpdate::Add(a), TillUpdate::Add(b)) => Some(TillUpdate::Add(b.checked_sub(*a)?)),
            (TillUpdate::Mark(a), TillUpdate::Mark(b)) => Some(TillUpdate::Mark(b - a)),
            _ => None,
        }
    }
}
