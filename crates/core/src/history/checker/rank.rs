//! The order in which the search tries candidates.

use std::cmp::Reverse;

use super::{CLASS, Kind, Model, NEVER, Op, Search};

/// The priority of a candidate: the least first.
///
/// The order affects only the time of the search, but that greatly: with a good order it hardly ever backtracks. First
/// are candidates that others would make impossible, while they are possible. An insert is before an upsert while the
/// key is absent (the upsert is possible later, the insert only after another delete), and an update before a delete.
/// Next are candidates after which the frontier's operation can be placed. Then the deadline decides.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    hindrances: Reverse<u32>,
    unwanted: bool,
    deadline: u32,
    id: u32,
}

/// A class of writes that are possible now.
pub(super) struct Class {
    class: u32,
    /// One of them, and the state it leaves.
    id: u32,
    leaves: u32,
    /// How many of the other classes make it impossible.
    hindrances: u32,
}

impl<'a, M: Model> Search<'a, M> {
    /// Gathers the open operations of a configuration after its reads are placed.
    pub(super) fn gather_open(&mut self) {
        self.open.clear();
        let mut at = self.next[0];
        while at != 0 {
            let id = self.op_at[at as usize];
            if self.ops[id as usize].return_at == at {
                return;
            }
            self.open.push(id);
            at = self.next[at as usize];
        }
    }

    /// Makes the cache key of the present configuration from `open`.
    pub(super) fn make_key(&mut self) {
        self.key.clear();
        self.key.extend_from_slice(&self.open);
        let needed = self.traffic.get(self.state as usize).is_none_or(|entry| entry.readers > 0);
        let state = if self.tracked && self.class < CLASS && !needed { CLASS | self.class } else { self.state };
        self.key.push(state);
    }

    /// Puts the candidates of the present configuration into the pool, the most urgent first.
    pub(super) fn rank_candidates(&mut self, frontier: u32) {
        self.sort_classes();
        // The frontier's operation must be placed before time advances. If it cannot be placed now, the search first
        // tries operations that make it possible.
        let wanting = self.tracked && self.step(self.state, frontier).is_none();
        let frontier_at = self.ops[frontier as usize].return_at;
        self.ranked.clear();
        for at in 0..self.open.len() {
            let id = self.open[at];
            let rank = match self.ops[id as usize] {
                // A possible read would be placed already.
                Op { kind: Kind::Read { .. }, .. } => continue,
                Op { kind: Kind::Write { leaves, class }, .. } if self.tracked => {
                    let Some(seen) = self.classes.iter().find(|seen| seen.class == class) else { continue };
                    let hindrances = seen.hindrances;
                    let unwanted = wanting && self.step(leaves, frontier).is_none();
                    Rank {
                        hindrances: Reverse(hindrances),
                        unwanted,
                        deadline: self.deadline(id, leaves, frontier_at).0,
                        id,
                    }
                }
                op => Rank { hindrances: Reverse(0), unwanted: false, deadline: op.return_at, id },
            };
            self.ranked.push(rank);
        }
        self.ranked.sort_unstable();
        self.kept.clear();
        for at in 0..self.ranked.len() {
            let id = self.ranked[at].id;
            if let (true, Kind::Write { leaves, class }) = (self.tracked, self.ops[id as usize].kind) {
                let closed = self.deadline(id, leaves, frontier_at).1;
                let same = (class, if closed { NEVER } else { leaves });
                if self.kept.contains(&same) {
                    continue;
                }
                self.kept.push(same);
            }
            self.pool.push(id);
        }
    }

    /// Finds the classes of open writes that are possible now, from one write of each, and for each class how many of
    /// the others make it impossible.
    fn sort_classes(&mut self) {
        self.classes.clear();
        if !self.tracked {
            return;
        }
        self.impossible.clear();
        for at in 0..self.open.len() {
            let id = self.open[at];
            let Kind::Write { leaves, class } = self.ops[id as usize].kind else { continue };
            if self.impossible.contains(&class) || self.classes.iter().any(|seen| seen.class == class) {
                continue;
            }
            if self.step(self.state, id).is_some() {
                self.classes.push(Class { class, id, leaves, hindrances: 0 });
            } else {
                self.impossible.push(class);
            }
        }
        for at in 0..self.classes.len() {
            for other in 0..self.classes.len() {
                let hinders = at != other && self.step(self.classes[other].leaves, self.classes[at].id).is_none();
                self.classes[at].hindrances += u32::from(hinders);
            }
        }
    }

    /// The latest position at which an open write must be placed, and whether it is closed.
    pub(super) fn deadline(&self, id: u32, leaves: u32, frontier_at: u32) -> (u32, bool) {
        let entry = &self.traffic[leaves as usize];
        let return_at = self.ops[id as usize].return_at;
        // State 0 is the initial one.
        if entry.readers == 0 {
            (return_at, true)
        } else if entry.writers_total == 1 && leaves != 0 {
            (entry.return_min, entry.reader_call_max < frontier_at)
        } else {
            (return_at, false)
        }
    }
}
