//! Types for the scenarios: one with conflict-free methods, and one with a conflicting method that depends on both
//! other categories.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{Coordination, DataType, methods};

/// Accounts, and a till beside them. No method conflicts.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Till {
    /// The sum of all that was added.
    pub(super) cash: u64,
    pub(super) marks: BTreeSet<u8>,
    /// By account.
    pub(super) accounts: BTreeMap<u8, u64>,
    /// Marks that were used.
    pub(super) used: BTreeSet<u8>,
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
        /// Depends on `Mark`, the calls of which come in summaries.
        Use(u8),
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
            TillUpdate::Use(mark) if !self.marks.contains(mark) => return Err("there is no such mark".into()),
            TillUpdate::Use(mark) => drop(self.used.insert(*mark)),
        }
        Ok(())
    }

    fn coordination() -> Coordination<TillMethod> {
        use TillMethod::{Add, Deposit, Mark, Open, Use};
        let depends = Coordination::none().depends(Deposit, Open).depends(Use, Mark);
        depends.summarised([Add]).summarised([Mark])
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

/// Money that all add to, and named people take.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Purse {
    /// The sum of all that was added, less all that was taken.
    pub(super) cash: u64,
    pub(super) names: BTreeSet<u8>,
    /// Names, with the amounts that they have taken, in order.
    pub(super) taken: Vec<(u8, u64)>,
}

methods! {
    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    pub(super) enum PurseUpdate: PurseMethod {
        /// Reducible.
        Add(u64),
        /// Irreducible conflict-free.
        Name(u8),
        /// Conflicts with itself, and depends on both others.
        Take(u8, u64),
    }
}

impl DataType for Purse {
    type Update = PurseUpdate;
    type Refusal = String;

    fn apply(&mut self, update: &PurseUpdate) -> Result<(), String> {
        match update {
            PurseUpdate::Add(more) => self.cash += more,
            PurseUpdate::Name(name) => drop(self.names.insert(*name)),
            PurseUpdate::Take(name, _) if !self.names.contains(name) => return Err("there is no such name".into()),
            PurseUpdate::Take(name, amount) => {
                self.cash = self.cash.checked_sub(*amount).ok_or("there is too little")?;
                self.taken.push((*name, *amount));
            }
        }
        Ok(())
    }

    fn coordination() -> Coordination<PurseMethod> {
        use PurseMethod::{Add, Name, Take};
        Coordination::none().conflict(Take, Take).depends(Take, Add).depends(Take, Name).summarised([Add])
    }

    fn summarise(first: &PurseUpdate, then: &PurseUpdate) -> Option<PurseUpdate> {
        match (first, then) {
            (PurseUpdate::Add(a), PurseUpdate::Add(b)) => Some(PurseUpdate::Add(a + b)),
            _ => None,
        }
    }

    fn remainder(earlier: &PurseUpdate, later: &PurseUpdate) -> Option<PurseUpdate> {
        match (earlier, later) {
            (PurseUpdate::Add(a), PurseUpdate::Add(b)) => Some(PurseUpdate::Add(b.checked_sub(*a)?)),
            _ => None,
        }
    }
}

/// Two ledgers, each of which has one order.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Ledgers {
    pub(super) left: Vec<u8>,
    pub(super) right: Vec<u8>,
}

methods! {
    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    pub(super) enum LedgersUpdate: LedgersMethod {
        /// Of the first group.
        Left(u8),
        /// Of the second one.
        Right(u8),
    }
}

impl DataType for Ledgers {
    type Update = LedgersUpdate;
    type Refusal = String;

    fn apply(&mut self, update: &LedgersUpdate) -> Result<(), String> {
        let (ledger, value) = match update {
            LedgersUpdate::Left(value) => (&mut self.left, *value),
            LedgersUpdate::Right(value) => (&mut self.right, *value),
        };
        if ledger.contains(&value) {
            return Err("it is there".into());
        }
        ledger.push(value);
        Ok(())
    }

    fn coordination() -> Coordination<LedgersMethod> {
        use LedgersMethod::{Left, Right};
        Coordination::none().conflict(Left, Left).conflict(Right, Right)
    }
}
