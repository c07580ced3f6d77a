//! The plan of a search, and its progress.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::report::Tally;
use crate::{Finding, Report};

/// What to search, and how long.
pub(super) struct Plan {
    pub(super) executions: Option<u64>,
    pub(super) time: Option<Duration>,
    pub(super) steps: Option<u64>,
    /// All executions of scenarios that are small or of medium size, and no random ones.
    pub(super) exhaustive: bool,
    pub(super) checkpoint: Option<PathBuf>,
    pub(super) seed: u64,
    pub(super) jobs: usize,
    /// Where the first failure is to be drawn.
    pub(super) timeline: Option<PathBuf>,
    /// Standard output is for JSON alone.
    pub(super) quiet_stdout: bool,
    /// A file keeps the results, whether standard output is read or not.
    pub(super) is_kept: bool,
    /// The command line to which `--replay` can be added.
    pub(super) again: String,
}

/// How far a scenario is.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Course {
    /// The exhaustive search is over, or there is none; before that, it is still to be begun.
    pub(super) is_random: bool,
    /// Time handed out for random executions, more of it if they were no news; and how long the next turn is.
    pub(super) spent: Duration,
    pub(super) turn: Duration,
    /// The share of the last random executions in which the threads have seen something new.
    pub(super) novelty: f64,
    /// The next batch to start, and the next one to take; results that arrived early.
    pub(super) next: u64,
    #[serde(skip)]
    pub(super) taken: u64,
    #[serde(skip)]
    pub(super) early: BTreeMap<u64, Report>,
    /// A failure that is still to be shrunk.
    #[serde(skip)]
    pub(super) to_shrink: Option<Finding>,
    pub(super) tally: Tally,
}

impl Course {
    /// The next result, if it has arrived and is wanted.
    pub(super) fn next_in_order(&mut self) -> Option<Report> {
        let report = self.early.remove(&self.taken)?;
        self.taken += 1;
        self.tally.failing.is_none().then_some(report)
    }
}
