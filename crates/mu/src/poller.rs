//! The service thread's part of a replica: it grants the right to write its log, and changes the leader.

mod lead;
mod returns;
mod trips;

use std::sync::Arc;
use std::time::Duration;

use farfield_core::MemberStatus;
use farfield_core::toolkit::{Hold, Poller, Progress};
use farfield_fabric::{Endpoint, ErrorKind, Instant, NodeId};
use smallvec::SmallVec;

use self::lead::Lead;
use self::returns::Returns;
pub(crate) use self::returns::{Arrivals, founders, peer_of, write_founders};
use crate::layout::{COMMIT, Stamp, closed_at, grant_at, request_at};
use crate::replica::{Core, FEW, Peer};

/// A stopped node in the middle of a write cannot be decided sooner than it runs: the service thread does not wait for
/// it.
const REVOKE_MAX: Duration = Duration::from_micros(20);

/// A step that did not work is tried again after such a pause, which doubles: the other node may be stopped, or gone
/// without this one's knowledge.
const RETRY_MIN: Duration = Duration::from_micros(100);
const RETRY_MAX: Duration = Duration::from_secs(1);

/// One replica on its node's service thread.
pub(crate) struct LogPoller {
    core: Arc<Core>,
    peers: SmallVec<[Peer; FEW]>,
    /// The nodes that may be able to write this node's log, by rank. All can at first.
    may_write: SmallVec<[bool; FEW]>,
    /// The highest request that was promised, as in the replica's state: it is read without the lock here, because a
    /// lock that is taken in every round disturbs the proposer.
    promised: Stamp,
    /// The promised request, while its grant is not given yet.
    granting: Option<Granting>,
    /// The last request of each replica that was answered with a higher promise.
    refused: SmallVec<[u64; FEW]>,
    /// Replicas that come back, this one among them.
    returns: Returns,
    lead: Lead,
    pause: Duration,
    retry_at: Option<Instant>,
    /// The entries that were decided at the last look.
    decided: u64,
    /// The ranks that know that this node has closed the log, as bits.
    told_closed: u64,
    _hold: Hold,
}

/// A request that was promised, and is granted step by step.
struct Granting {
    stamp: Stamp,
    /// The rights of all others are revoked, and the candidate is to get its own.
    has_begun: bool,
    /// The candidate could not be reached since, or had no room for a queue pair, or the answer could not be put: its
    /// next request begins anew.
    is_stuck: bool,
}

impl Granting {
    /// A further request. The candidate may ask again before it is answered, which does not begin this anew: it has not
    /// used the right of this ballot yet. (An answer ends this.)
    fn next(before: Option<Granting>, stamp: Stamp) -> Granting {
        let goes_on = |it: &Granting| it.has_begun && !it.is_stuck && it.stamp.ballot() == stamp.ballot();
        Granting { stamp, has_begun: before.as_ref().is_some_and(goes_on), is_stuck: false }
    }
}

impl LogPoller {
    pub(crate) fn new(core: Arc<Core>, arrivals: Arc<Arrivals>, hold: Hold) -> LogPoller {
        let (ranks, peers) = (core.ranks(), core.state.lock().peers.clone());
        LogPoller {
            may_write: peers.iter().enumerate().map(|(rank, peer)| rank != core.me && peer.is_some()).collect(),
            returns: Returns::new(&core, arrivals),
            peers,
            promised: Stamp::default(),
            granting: None,
            refused: (0..ranks).map(|_| 0).collect(),
            lead: Lead::new(),
            pause: RETRY_MIN,
            retry_at: None,
            decided: 0,
            told_closed: 0,
            _hold: hold,
            core,
        }
    }

    /// Takes the highest request, promises it, and grants it as far as that is possible now. Whether it has to try
    /// again.
    fn serve_requests(&mut self, endpoint: &Endpoint) -> bool {
        let core = Arc::clone(&self.core);
        let asks = |rank: usize| Stamp(core.control.word(request_at(rank)).load());
        let of_live = (0..core.ranks()).filter(|rank| *rank == core.me || !core.is_gone(*rank));
        // A word that its writer has not written is no request; neither is one of another's rank.
        let highest = of_live.map(|rank| (rank, asks(rank))).filter(|(rank, stamp)| stamp.rank() == *rank);
        if let Some((rank, stamp)) = highest.max_by_key(|(_, stamp)| *stamp)
            && stamp > self.promised
        {
            let mut state = core.state.lock();
            self.promised = stamp;
            // The proposer stores to this log under this lock, and not after it.
            if state.leading.as_ref().is_some_and(|leading| leading.ballot != stamp.ballot()) {
                core.ends_leading(&mut state);
            }
            drop(state);
            core.term.store(stamp.ballot());
            core.promised_to.store(rank as u64 + 1);
            core.changed();
            self.granting = Some(Granting::next(self.granting.take(), stamp));
        }
        let is_retried = self.refuse_lower(endpoint);
        self.grant(endpoint) || is_retried
    }

    /// Tells candidates with a lower ballot than the promised one of it, so that they choose a higher one.
    fn refuse_lower(&mut self, endpoint: &Endpoint) -> bool {
        let core = &*self.core;
        let promised = self.promised;
        let mut is_retried = false;
        for rank in (0..core.ranks()).filter(|rank| *rank != core.me && !core.is_gone(*rank)) {
            let asks = Stamp(core.control.word(request_at(rank)).load());
            if asks != Stamp::default() && asks.ballot() < promised.ballot() && self.refused[rank] != asks.0 {
                let at = self.peers[rank].control.byte_add(grant_at(core.ranks(), core.me) as u64);
                match endpoint.put_untracked(at, promised.0).detach() {
                    Ok(()) => self.refused[rank] = asks.0,
                    Err(_) => is_retried = true,
                }
            }
        }
        is_retried
    }

    /// Revokes the right of all others, and then gives it to the candidate. Whether it has to try again.
    fn grant(&mut self, endpoint: &Endpoint) -> bool {
        let core = Arc::clone(&self.core);
        let fabric = core.node.fabric();
        let Some(granting) = &mut self.granting else { return false };
        let (stamp, candidate) = (granting.stamp, granting.stamp.rank());
        let Some(node) = core.node_at(candidate) else { return false };
        if !granting.has_begun {
            // *One writer.* No put of an earlier leader lands after its right is revoked, and the candidate reads this
            // log only when it has the grant. The candidate's own right is revoked, too: puts of an earlier term of its
            // may be on their way, and those that it posts from now on go through queue pairs of their own.
            let mut is_undecided = false;
            for rank in (0..core.ranks()).filter(|rank| *rank != core.me) {
                let Some(node) = core.node_at(rank) else { continue };
                if self.may_write[rank] {
                    match fabric.revoke(node, core.group, REVOKE_MAX) {
                        Ok(()) => self.may_write[rank] = false,
                        Err(_) if core.node.status_of(node) == Some(MemberStatus::Evicted) => {
                            self.may_write[rank] = false;
                        }
                        Err(_) => is_undecided = true,
                    }
                }
            }
            if is_undecided {
                return true;
            }
            if candidate != core.me {
                match fabric.start_permit(node, core.group) {
                    Ok(()) => self.may_write[candidate] = true,
                    Err(_) => {
                        // It has died or left. Another one asks.
                        self.granting = None;
                        return false;
                    }
                }
            }
            granting.has_begun = true;
        }
        if candidate != core.me {
            match fabric.is_permitted(node, core.group) {
                Ok(true) => {}
                Ok(false) => return true,
                Err(error) => {
                    if matches!(error.kind(), ErrorKind::Unreachable { .. } | ErrorKind::NoQueuePair { .. }) {
                        granting.is_stuck = true;
                        return true;
                    }
                    self.granting = None;
                    return false;
                }
            }
        }
        let at = self.peers[candidate].control.byte_add(grant_at(core.ranks(), core.me) as u64);
        if candidate == core.me {
            core.control.word(grant_at(core.ranks(), core.me)).store(stamp.0);
        } else if endpoint.put_untracked(at, stamp.0).detach().is_err() {
            granting.is_stuck = true;
            return true;
        }
        tracing::debug!(node = core.node.id().0, object = core.path, candidate, stamp = stamp.0, "granted");
        self.granting = None;
        false
    }

    fn retry(&mut self, endpoint: &Endpoint) -> Progress {
        let now = endpoint.now();
        match self.retry_at {
            Some(at) if now < at => Progress::Until(at),
            _ => {
                let at = now + self.pause;
                (self.retry_at, self.pause) = (Some(at), RETRY_MAX.min(2 * self.pause));
                Progress::Until(at)
            }
        }
    }

    /// Tells the others that this node has closed the log. Whether all that can be told are.
    fn close(&mut self, endpoint: &Endpoint) -> bool {
        let core = Arc::clone(&self.core);
        let mut state = core.state.lock();
        core.ends_leading(&mut state);
        drop(state);
        let mut is_told = true;
        for rank in (0..core.ranks()).filter(|rank| *rank != core.me && !core.is_gone(*rank)) {
            // One that does not know yet that this node has come back would forget it.
            let knows = core.returned.load() >> rank & 1 == 0 || core.standing(rank).is_said();
            let at = self.peers[rank].control.byte_add(closed_at(core.ranks(), core.me) as u64);
            // Once each: the end of a put wakes this thread, so one in every round would let it never wait for the
            // rest.
            if self.told_closed >> rank & 1 == 0 && knows && endpoint.put_value(at, 1).detach().is_ok() {
                self.told_closed |= 1 << rank;
            }
            is_told &= self.told_closed >> rank & 1 != 0;
        }
        is_told
    }
}

impl Poller for LogPoller {
    fn poll(&mut self, endpoint: &Endpoint) -> Progress {
        let core = Arc::clone(&self.core);
        if core.is_closed.load() != 0 {
            return if self.close(endpoint) { Progress::Done } else { self.retry(endpoint) };
        }
        let decided = core.log.word(COMMIT).load();
        if decided != self.decided {
            self.decided = decided;
            // Application threads that wait for an entry: a put to this group wakes the service thread alone.
            core.node.fabric().wake_local();
        }
        // Before it grants: a leader that has brought this replica to all entries can still say so now, and not
        // afterwards.
        let is_retried = self.serve_returns(endpoint);
        let is_retried = is_retried | (self.returns.may_promise() && self.serve_requests(endpoint));
        let progress = if self.granting.is_some() {
            Progress::Idle
        } else {
            self.lead.step(&core, &self.peers, self.promised, endpoint)
        };
        match (is_retried, progress) {
            (false, _) => {
                (self.pause, self.retry_at) = (RETRY_MIN, None);
                progress
            }
            (true, Progress::Busy) => Progress::Busy,
            (true, Progress::Until(at)) => match self.retry(endpoint) {
                Progress::Until(again) => Progress::Until(again.min(at)),
                other => other,
            },
            (true, _) => self.retry(endpoint),
        }
    }

    fn status_changed(&mut self, _: NodeId, _: MemberStatus) {
        // The next poll looks at all of them; so does a proposer that waits for one.
        self.core.changed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a slow network the answer takes longer than the candidate waits before it asks again. Each of its requests
    /// began the grant anew, so that it had none before its pauses were long enough.
    #[test]
    fn a_request_that_is_repeated_does_not_begin_the_grant_anew() {
        let first = Stamp::first(1, 2);
        let again = first.again().expect("a second attempt");
        let granting = |stamp, has_begun, is_stuck| Some(Granting { stamp, has_begun, is_stuck });
        let cases = [
            (granting(first, true, false), true),
            (None, false),
            (granting(first, false, false), false),
            (granting(first, true, true), false),
            (granting(Stamp::first(1, 1), true, false), false), // of another candidate
        ];
        for (before, goes_on) in cases {
            let next = Granting::next(before, again);
            assert_eq!((next.stamp, next.has_begun, next.is_stuck), (again, goes_on, false));
        }
    }
}
