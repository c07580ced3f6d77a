//! The measurements of a benchmark of locks, and their order: the same on all nodes.

use std::time::Duration;

use anyhow::Result;
use farfield::{ALockOptions, LockKind, LockOptions};
use serde::{Deserialize, Serialize};

use crate::bench::memory::Need;
use crate::bench::options::Cores;

/// The measurements of a session: each kind for each number of locks and each locality.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) nodes: u16,
    /// Of each node.
    pub(super) threads: u16,
    pub(super) rounds: u16,
    /// How long one measurement takes in one round.
    pub(super) slice_seconds: f64,
    pub(super) variants: Vec<Variant>,
    pub(super) locks: Vec<u32>,
    /// In percent.
    pub(super) localities: Vec<u8>,
    pub(super) cores: Cores,
    /// No locks are taken, so that the check of exclusion has something to find.
    pub(super) unlocked: bool,
}

/// A kind of lock, with its options.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Variant {
    pub(super) kind: String,
    /// The budgets of ALock, if they are not the default.
    pub(super) budgets: Option<Budgets>,
}

/// How often in a row a cohort of ALock may take the lock while the other waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Budgets {
    pub(super) remote: u32,
    pub(super) local: u32,
}

/// One measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Case {
    /// Its number, and that of its locks among the tables.
    pub(super) number: usize,
    pub(super) table: usize,
    /// Its position in the plan's lists.
    pub(super) variant: usize,
    pub(super) locks: u32,
    pub(super) locality: u8,
}

impl Plan {
    /// The arrays of locks that are opened: their kind, and how many locks they have.
    pub(super) fn tables(&self) -> impl Iterator<Item = (&Variant, u32)> {
        self.variants.iter().flat_map(|variant| self.locks.iter().map(move |locks| (variant, *locks)))
    }

    /// All measurements; those that differ only in the kind follow each other.
    pub(super) fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for (locks_at, &locks) in self.locks.iter().enumerate() {
            for &locality in &self.localities {
                for variant in 0..self.variants.len() {
                    let table = variant * self.locks.len() + locks_at;
                    cases.push(Case { number: cases.len(), table, variant, locks, locality });
                }
            }
        }
        cases
    }

    /// The measurements of a round, in their order: each round begins with another kind.
    pub(super) fn round(&self, round: u16) -> Vec<Case> {
        let mut cases = self.cases();
        for compared in cases.chunks_mut(self.variants.len()) {
            compared.rotate_left(usize::from(round) % self.variants.len());
        }
        cases
    }

    pub(super) fn slice(&self) -> Duration {
        Duration::from_secs_f64(self.slice_seconds)
    }

    /// The memory of all arrays of locks: a lock and its counter, and on every node where they are, and whose.
    pub(super) fn need(&self) -> Need {
        let locks: u64 = self.tables().map(|(_, locks)| u64::from(locks)).sum();
        Need::of(self.nodes, self.threads).on_all(128 * locks).on_each(64 * locks)
    }

    /// How long all measurements take.
    pub(super) fn duration(&self) -> Duration {
        self.slice() * u32::from(self.rounds) * self.cases().len() as u32
    }
}

impl Variant {
    /// A kind with its default options.
    pub(super) fn of(kind: LockKind) -> Variant {
        Variant { kind: kind.name().into(), budgets: None }
    }

    /// As people and programs see it.
    pub(super) fn name(&self) -> String {
        match self.budgets {
            None => self.kind.clone(),
            Some(Budgets { remote, local }) => format!("{} {remote}/{local}", self.kind),
        }
    }

    pub(super) fn options(&self) -> Result<LockOptions> {
        let kind = self.kind.parse()?;
        Ok(match self.budgets {
            None => LockOptions::new(kind),
            Some(Budgets { remote, local }) => options(kind, remote, local),
        })
    }
}

/// The options of a kind of lock with these budgets, which only ALock has.
fn options(kind: LockKind, remote_budget: u32, local_budget: u32) -> LockOptions {
    LockOptions { kind, alock: ALockOptions { remote_budget, local_budget, ..ALockOptions::default() } }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            nodes: 2,
            threads: 1,
            rounds: 4,
            slice_seconds: 0.5,
            variants: LockKind::ALL.iter().copied().map(Variant::of).collect(),
            locks: vec![20, 100],
            localities: vec![90, 100],
            cores: Cores::default(),
            unlocked: false,
        }
    }

    #[test]
    fn kinds_are_measured_one_after_the_other_and_another_comes_first_in_each_round() {
        let plan = plan();
        let kinds = plan.variants.len();
        for round in 0..plan.rounds {
            let cases = plan.round(round);
            assert_eq!(cases.len(), 4 * kinds);
            for compared in cases.chunks(kinds) {
                assert_eq!(compared[0].variant, usize::from(round) % kinds);
                assert!(compared.iter().all(|case| case.locks == compared[0].locks));
                assert!(compared.iter().all(|case| case.locality == compared[0].locality));
            }
        }
        assert_eq!(plan.duration(), Duration::from_secs(8 * kinds as u64));
    }

    #[test]
    fn each_measurement_has_the_locks_that_it_is_about() {
        let plan = plan();
        let tables: Vec<_> = plan.tables().collect();
        for case in plan.cases() {
            assert_eq!(tables[case.table], (&plan.variants[case.variant], case.locks));
        }
    }

    #[test]
    fn a_plan_reaches_the_nodes_whole() {
        let budgets = Some(Budgets { remote: 10, local: 5 });
        let plan = Plan { variants: vec![Variant { kind: "spin".into(), budgets }], ..plan() };
        assert_eq!(serde_json::from_str::<Plan>(&serde_json::to_string(&plan).unwrap()).unwrap(), plan);
        assert_eq!(plan.variants[0].name(), "spin 10/5");
    }
}
