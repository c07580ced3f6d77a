//! The agreement of survivors when a node dies or leaves: its locks are no longer in use, and its announcements are
//! complete.
//!
//! ```text
//! region `reports` (every node), a row for each reporter, a word for each dead or departed node, both by rank:
//!   0 ┌────────────────────────────────┬─────────────┐
//!     │ bytes of its tracker + 1 (63)  │ settled (1) │   0: nothing is said yet
//!     └────────────────────────────────┴─────────────┘
//! ```
//!
//! Call the dead node D. Each survivor, on its service thread,
//!
//! 1. *closes* the locks on D to operations of its own, and waits until those in progress have ended (they are
//!    counted);
//! 2. waits until no operation of D can land any more, applies the rest of D's tracker, and *reports* how much it has
//!    received;
//! 3. when all survivors have reported: reads the missing part from the memory of a survivor that has it (every node
//!    has a copy of the tracker, and D, which no longer writes, has rewritten nothing that some survivor has not read),
//!    applies it, and reports that it has *settled*, and where;
//! 4. when all survivors have settled at the same place, treats D as settled.
//!
//! (Here nodes are the participants of the store.) If a survivor dies meanwhile, the others no longer wait for it once
//! none of its operations can land; it is settled itself.
//!
//! *Settled positions never advance.* A node advances only if another live node has reported more. Suppose that all
//! were settled at one place and then some advanced: the first of them would have needed an earlier one.
//!
//! *Two nodes never work on one key at once.* A key belongs to a stripe. Its lock is that of the first node, counted
//! in a ring from the stripe's home, that is not closed here, and all skipped nodes must be settled here. Let A and B
//! hold different locks for one key, and let A's be first in the ring. Then B has skipped the home of A's lock, which
//! is settled at B. So A has reported that it closed that lock and that its operations there had ended: A holds it no
//! longer.
//!
//! *A report makes its facts visible.* An operation ends its use of a lock after the fence of its release, and with
//! the acknowledgements of its announcements: both before the report is put.

use std::collections::HashSet;
use std::sync::Arc;

use farfield_fabric::{Endpoint, Instant, LocalMutex, NodeId, Region, RemotePtr, Word};

use crate::error::{Error, ErrorKind, Result};
use crate::node::Node;
use crate::objects::participants::Participants;
use crate::objects::ring_buffer::RingReceiver;

/// This node's knowledge of dead and departed nodes. A lock's home is identified by its rank among the participants.
pub(super) struct Deaths {
    /// The service thread holds this: it must not keep the node in its session.
    node: Node,
    participants: Participants,
    reports: Region,
    /// The address of each node's reports, in order of their ranks, like the other fields.
    peers: Vec<RemotePtr<u64>>,
    /// For each node: the number of this node's operations in progress under its locks, and whether it is closed.
    homes: Vec<Word>,
    /// For each node: 1 if it is settled.
    settled: Vec<Word>,
    /// Moved stripes that this node has checked, with their locks.
    repaired: LocalMutex<HashSet<(usize, usize)>>,
}

/// Added to the count of a home when it is closed.
const CLOSED: u64 = 1 << 63;

/// A survivor's report about a dead or departed node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Report {
    /// How much of the tracker it has received.
    position: u64,
    settled: bool,
}

impl Report {
    fn packed(self) -> u64 {
        (self.position + 1) << 1 | u64::from(self.settled)
    }

    fn from_packed(packed: u64) -> Option<Report> {
        Some(Report { position: (packed >> 1).checked_sub(1)?, settled: packed & 1 == 1 })
    }
}

/// The next step for a dead or departed node.
enum Step {
    /// It waits for another node.
    Wait,
    Report(Report),
    /// Another survivor has received more.
    Complete(NodeId, u64),
    Settled,
}

/// The next step of a survivor with the report `own`, if the other live nodes report `others`.
fn next_step(
    position: u64,
    own: Option<Report>,
    others: impl Iterator<Item = (NodeId, Option<Report>)> + Clone,
) -> Step {
    let Some(own) = own else { return Step::Report(Report { position, settled: false }) };
    if others.clone().any(|(_, report)| report.is_none()) {
        return Step::Wait;
    }
    let reports = others.filter_map(|(node, report)| Some((node, report?)));
    match reports.clone().max_by_key(|(_, report)| report.position) {
        Some((node, furthest)) if furthest.position > position => return Step::Complete(node, furthest.position),
        _ => {}
    }
    let settled = Report { position, settled: true };
    if own != settled {
        Step::Report(settled)
    } else if reports.clone().all(|(_, report)| report == settled) {
        Step::Settled
    } else {
        Step::Wait
    }
}

impl Deaths {
    pub(super) fn new(node: &Node, participants: Participants, reports: Region, peers: Vec<RemotePtr<u64>>) -> Deaths {
        let words = || std::iter::repeat_with(Word::default).take(peers.len()).collect();
        let (homes, settled) = (words(), words());
        let node = node.for_service();
        Deaths { node, participants, reports, peers, homes, settled, repaired: LocalMutex::default() }
    }

    // ---- operations -------------------------------------------------------------------------------------------------

    /// Counts an operation that works under a lock of `home`, unless these locks are closed.
    #[inline]
    pub(super) fn enter<'a>(self: &'a Arc<Self>, home: usize) -> Option<Entered<'a>> {
        // One atomic: either the service thread sees the operation in the count after it closes, or the operation sees
        // the close.
        let before = self.homes[home].fetch_add(1);
        let entered = Entered { deaths: self, home };
        (before & CLOSED == 0).then_some(entered)
    }

    fn leave(&self, home: usize) {
        let before = self.homes[home].fetch_add(1u64.wrapping_neg());
        if before == CLOSED + 1 {
            self.node.fabric().wake_service();
        }
    }

    fn is_closed(&self, home: usize) -> bool {
        self.homes[home].load() & CLOSED != 0
    }

    /// The node of a stripe's lock with the home `home`: that node, or the first one after it that is not closed.
    pub(super) fn place(&self, home: usize) -> usize {
        // This node's own locks are never closed.
        self.participants.ring(home).find(|home| !self.is_closed(*home)).unwrap_or(home)
    }

    /// Waits until all dead and departed nodes are settled. Returns whether they are. It does not wait once the locks
    /// of `home` are closed: the caller works under one of them, so the nodes would wait for it.
    pub(super) async fn wait_settled(
        &self,
        endpoint: &Endpoint,
        home: Option<usize>,
        deadline: Instant,
    ) -> Result<bool> {
        let start = endpoint.now();
        let waited = endpoint
            .wait_until(deadline, || {
                if self.unsettled(endpoint).next().is_none() {
                    return Some(true);
                }
                home.is_some_and(|home| self.is_closed(home)).then_some(false)
            })
            .await;
        waited.map_err(|_| self.unsettled_in_time(endpoint, start))
    }

    /// Whether all dead and departed nodes are settled.
    pub(super) fn are_settled(&self, endpoint: &Endpoint) -> bool {
        self.unsettled(endpoint).next().is_none()
    }

    /// Waits until the locks of a dead or departed node are closed.
    pub(super) async fn wait_closed(&self, endpoint: &Endpoint, home: usize, deadline: Instant) -> Result<()> {
        let start = endpoint.now();
        let waited = endpoint.wait_until(deadline, || self.is_closed(home).then_some(())).await;
        waited.map_err(|_| self.unsettled_in_time(endpoint, start))
    }

    /// Dead and departed nodes that are not settled, with their ranks.
    fn unsettled(&self, endpoint: &Endpoint) -> impl Iterator<Item = (usize, NodeId)> {
        let ranked = self.participants.iter().enumerate();
        ranked.filter(|(rank, node)| endpoint.check_alive(*node).is_err() && !self.is_settled(*rank))
    }

    #[cold]
    fn unsettled_in_time(&self, endpoint: &Endpoint, start: Instant) -> Error {
        let what = "the live members to agree on the last changes of a dead node".into();
        // The survivors that have not reported that they are done with it.
        let has_settled = |rank, gone| self.report(rank, gone).is_some_and(|report| report.settled);
        let is_missing = |(rank, node): &(usize, NodeId)| {
            endpoint.check_alive(*node).is_ok() && self.unsettled(endpoint).any(|(gone, _)| !has_settled(*rank, gone))
        };
        let missing = self.participants.iter().enumerate().filter(is_missing).map(|found| found.1).collect();
        ErrorKind::Timeout { what, waited: endpoint.now() - start, missing }.into()
    }

    /// Whether this node has checked a moved stripe under its new lock, and found or made it whole.
    pub(super) fn is_repaired(&self, stripe: usize, lock: usize) -> bool {
        self.repaired.lock().contains(&(stripe, lock))
    }

    pub(super) fn has_repaired(&self, stripe: usize, lock: usize) {
        self.repaired.lock().insert((stripe, lock));
    }

    // ---- the service thread -----------------------------------------------------------------------------------------

    /// Whether a node is dead or departed, and none of its operations can land any more.
    fn is_silent(&self, endpoint: &Endpoint, node: NodeId) -> bool {
        self.node.fenced_error(endpoint, node).is_some()
    }

    pub(super) fn is_settled(&self, node: usize) -> bool {
        self.settled[node].load() != 0
    }

    /// The place in `reports` of a node's report about another.
    fn report_at(&self, reporter: usize, gone: usize) -> usize {
        (reporter * self.participants.count() + gone) * 8
    }

    fn report(&self, reporter: usize, gone: usize) -> Option<Report> {
        Report::from_packed(self.reports.word(self.report_at(reporter, gone)).load())
    }

    /// Takes all possible steps for a dead or departed node (its rank). Its tracker `receiver` has nothing more now.
    /// Returns whether there was one.
    pub(super) fn settle(&self, endpoint: &Endpoint, gone: usize, receiver: &mut RingReceiver) -> Result<bool> {
        if self.is_settled(gone) {
            return Ok(false);
        }
        let (me, name) = (self.node.id(), self.participants.at(gone));
        if !self.is_closed(gone) {
            self.homes[gone].fetch_add(CLOSED);
            tracing::info!("node {}: the locks of {name} are closed", me.0);
        }
        let drained = self.homes[gone].load() == CLOSED;
        if !drained || !self.is_silent(endpoint, name) {
            return Ok(false);
        }
        // Read after its last operation has landed.
        if receiver.has_landed() > receiver.position() {
            return Ok(true);
        }
        let Some(own) = self.participants.rank_of(me) else { return Ok(false) };
        let is_other = |(rank, node): &(usize, NodeId)| ![own, gone].contains(rank) && !self.is_silent(endpoint, *node);
        let others: Vec<(usize, NodeId)> = self.participants.iter().enumerate().filter(is_other).collect();
        let said = others.iter().map(|(rank, node)| (*node, self.report(*rank, gone)));
        match next_step(receiver.position(), self.report(own, gone), said) {
            Step::Wait => return Ok(false),
            Step::Report(report) => {
                let at = self.report_at(own, gone);
                for (rank, _) in others {
                    // The members decide about a node that does not answer: it need not be told any more, or this
                    // node. To wait for that would mean to put the report again and again to all others.
                    match endpoint.put_value(self.peers[rank].byte_add(at as u64), report.packed()).detach() {
                        Err(error) if !error.is_unreachable() => return Err(error.into()),
                        _ => {}
                    }
                }
                // Only now: a refused report is repeated, to all, since they wait for it.
                self.reports.word(at).store(report.packed());
            }
            Step::Complete(node, until) => receiver.complete_from(endpoint, node, until)?,
            Step::Settled => {
                self.settled[gone].store(1);
                endpoint.wake_local();
                tracing::info!("node {}: {name} is settled at {}", me.0, receiver.position());
            }
        }
        Ok(true)
    }
}

/// An operation under a lock.
pub(super) struct Entered<'a> {
    deaths: &'a Arc<Deaths>,
    home: usize,
}

impl Entered<'_> {
    pub(super) fn home(&self) -> usize {
        self.home
    }

    /// For an operation that the service thread completes.
    pub(super) fn hand_over(self) -> Staying {
        let staying = Staying { deaths: Arc::clone(self.deaths), home: self.home };
        core::mem::forget(self);
        staying
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.deaths.leave(self.home);
    }
}

/// An operation that was passed on, still under its lock.
pub(super) struct Staying {
    deaths: Arc<Deaths>,
    home: usize,
}

impl Drop for Staying {
    fn drop(&mut self) {
        self.deaths.leave(self.home);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Survivors that take steps in any order, and may die, agree on one position: the highest that a node that
    /// survives to the end has learned of.
    #[test]
    fn survivors_agree_on_one_position_despite_more_deaths() {
        #[derive(Clone, PartialEq, Eq, Hash)]
        struct State {
            position: [u64; 3],
            /// The reports that node `.1` has received from `.0`.
            told: [[u64; 3]; 3],
            /// Reports in flight: in order between two nodes, and late.
            lives: [bool; 3],
            done: [Option<u64>; 3],
        }
        let start = State { position: [0, 16, 8], told: [[0; 3]; 3], lives: [true; 3], done: [None; 3] };
        let (mut seen, mut todo) = (HashSet::new(), vec![start]);
        let mut ends = 0;
        while let Some(state) = todo.pop() {
            if !seen.insert(state.clone()) {
                continue;
            }
            let ids = [0usize, 1, 2];
            let mut next = Vec::new();
            for me in ids.into_iter().filter(|me| state.lives[*me]) {
                if state.lives.iter().filter(|lives| **lives).count() > 1 {
                    let mut after = state.clone();
                    after.lives[me] = false;
                    next.push(after);
                }
                if state.done[me].is_some() {
                    continue;
                }
                let others = ids.into_iter().filter(|node| *node != me && state.lives[*node]);
                let said = others.map(|node| (NodeId(node as u16), Report::from_packed(state.told[node][me])));
                let said: Vec<_> = said.collect();
                let own = Report::from_packed(state.told[me][me]);
                match next_step(state.position[me], own, said.iter().copied()) {
                    Step::Wait => {}
                    // To some of the others: a node that dies while it reports reaches the first, or the second, or
                    // both.
                    Step::Report(report) => {
                        let mut after = state.clone();
                        for to in ids {
                            after.told[me][to] = report.packed();
                        }
                        next.push(after.clone());
                        for missed in ids.into_iter().filter(|to| *to != me) {
                            let mut partly = after.clone();
                            partly.told[me][missed] = state.told[me][missed];
                            partly.lives[me] = false;
                            next.push(partly);
                        }
                    }
                    Step::Complete(node, until) => {
                        assert!(state.position[node.index()] >= until);
                        let mut after = state.clone();
                        after.position[me] = until;
                        next.push(after);
                    }
                    Step::Settled => {
                        let mut after = state.clone();
                        after.done[me] = Some(state.position[me]);
                        next.push(after);
                    }
                }
            }
            // All live nodes that are done have settled at the same place, for good.
            for (a, b) in [(0, 1), (0, 2), (1, 2)] {
                if let (true, true, Some(a), Some(b)) = (state.lives[a], state.lives[b], state.done[a], state.done[b]) {
                    assert_eq!(a, b);
                }
            }
            for me in ids {
                assert!(state.done[me].is_none_or(|at| at == state.position[me]));
            }
            let stuck = next.iter().all(|after| after.lives != state.lives);
            if stuck {
                ends += 1;
                let all_done = ids.into_iter().all(|me| !state.lives[me] || state.done[me].is_some());
                assert!(all_done, "{:?} {:?} {:?}", state.position, state.lives, state.told);
            }
            todo.extend(next);
        }
        assert!(ends > 10 && seen.len() > 100, "{ends} {}", seen.len());
    }

    #[test]
    fn reports_survive_the_wire() {
        for report in [Report { position: 0, settled: false }, Report { position: 1 << 40, settled: true }] {
            assert_eq!(Report::from_packed(report.packed()), Some(report));
        }
        assert_eq!(Report::from_packed(0), None);
    }
}
