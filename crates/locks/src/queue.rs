//! The queue of a lock that operations of many nodes wait in, after Mellor-Crummey and Scott's. The entries are linked,
//! each operation waits on its own node, and a leaving one hands the lock to the one behind.
//!
//! The lock's record has the tail: the name of the last entry. RDMA has no exchange, so an operation enqueues by a
//! compare-and-swap. If that fails, it tries again with the value found. It then links itself to its predecessor (a
//! put), and waits until that one puts a grant into its descriptor. Within one node these two puts are stores. Only the
//! record's words are updated by remote atomics, so nothing in a descriptor needs the NIC. A leaving operation that
//! knows its successor puts the grant. Otherwise it removes itself from the tail by a compare-and-swap. If that fails,
//! it waits for its successor to link itself.
//!
//! *Why nothing is lost.* The CPU writes a descriptor before the compare-and-swap that publishes it (`CW → NAR`), so
//! other nodes' puts land afterwards. A descriptor is reused only when no further write to it can come: its predecessor
//! has granted, and its successor has linked itself, or there is none. If the lock's node is unreachable, the outcome
//! of the compare-and-swap may be unknown. Then the descriptor is never reused. This costs one descriptor for each
//! attempt that was in flight, and no more: later operations to that node are refused, and so not done
//! ([`Endpoint::check_word`]).
//!
//! # When nodes die
//!
//! A dead node's entries cannot be read, so their predecessors and successors are unknown. But each living entry knows
//! the predecessor that it found. So living entries form *chains*. A chain begins with an entry that found the queue
//! empty, or found an entry of a dead node. If that dead node is [`MemberStatus::Evicted`] and has granted nothing, the
//! beginning can never be granted anything: it is *stuck*. A stuck beginning reads all living entries of the lock
//! ([`Queue::survey`]). If each of them is in a chain with a stuck beginning, no operation is at the head. Then one
//! stuck beginning may claim the head, by a compare-and-swap of a count of claims in the lock's record. If the count
//! has changed since before the survey, another operation has claimed. The chain that holds the tail is the last: it
//! claims only if there is no other. So the tail is not emptied while others are stuck. The end of any other chain has
//! a dead successor, and stops there for the next claim.
//!
//! One survey is enough, though it does not read all entries at one moment. Suppose that a living operation is at the
//! head when the survey has ended, and no claim has happened in between. It has not found the queue empty, since the
//! tail was never empty while others were stuck. So it was granted the head along its chain. That chain's beginning is
//! not stuck, or was granted something, either by the dead node before its eviction, or by a claim. Both happened
//! before the survey began. Later grants move along the chain, from an entry that has finished or is seen with its
//! grant. In both cases the next entry is not seen as stuck. (Evictions are read before the survey. Otherwise a grant
//! could land in the middle of it, and its giver die.) An entry that is seen before the result of its compare-and-swap
//! is known may be at the head: then the survey decides nothing. If such an operation is never polled again, or is
//! forgotten, it blocks claims for as long.
//!
//! It cannot be known whether the dead operation held the lock or waited for it, so the next holder is warned of a
//! death in either case. A node that has left gracefully leaves nothing in a queue but a guard that was forgotten. An
//! operation behind that guard gets an error that names the node. `specs/claims` has the claims in TLA+.

use std::sync::Arc;

use farfield_core::toolkit::{CancelGuard, Hold, Object, Poller};
use farfield_core::{MemberStatus, Node};
use farfield_fabric::{self as fabric, Endpoint, NodeId, RemotePtr};

use super::descriptor::{Descriptors, Id, State};
use super::grant::Grant;

/// The number of descriptors read by one get.
pub(super) const AT_ONCE: usize = 64;

/// The words of a lock's record that its queue uses, counted from the first. That one has the tail.
#[derive(Clone, Copy)]
pub(super) struct Words {
    /// How often the head was claimed after a death. The upper half counts the claims that report a death.
    pub(super) claims: usize,
    /// The tail of a queue of dead operations, after their deaths have been counted elsewhere.
    pub(super) buried: Option<usize>,
}

/// Added to the claims by a claim that reports a death.
const TELLS: u64 = 1 << 32;

/// How many deaths a lock's claims report.
pub(super) fn deaths_told(claims: u64) -> u64 {
    claims / TELLS
}

/// The queues of an array's locks.
pub(super) struct Queue {
    pub(super) node: Node,
    pub(super) path: String,
    pub(super) descriptors: Descriptors,
    pub(super) words: Words,
    /// The tail that a holder leaves if it was warned of a death and did not repair. Kinds of lock that record a death
    /// elsewhere use the ordinary empty tail.
    free_after_death: Id,
    /// Keeps the locks open while operations are left to the service thread.
    _open: Hold,
}

/// An operation at the head, as a guard holds it: see [`Queue::at_head`].
#[derive(Clone, Copy)]
pub(super) struct Head {
    pub(super) record: RemotePtr<u64>,
    pub(super) lock: u32,
    pub(super) id: Id,
}

/// An operation without its owner.
#[derive(Clone, Copy)]
pub(super) struct Operation {
    /// The lock's record.
    pub(super) record: RemotePtr<u64>,
    pub(super) lock: usize,
    pub(super) id: Id,
    pub(super) stage: Stage,
    /// The grant for the operation behind, if this one has to leave.
    pub(super) next_grant: Grant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// It is not in the queue.
    Outside,
    /// It may be in the queue: its compare-and-swap is in flight, or has ended in an error.
    Asking,
    /// It is behind another, and may have linked itself to that one.
    Behind { pred: Id, has_told: bool },
    /// It is at the head.
    Head,
    /// It has left the head, but another operation is behind it.
    Leaving,
}

/// The puts that a holder need not make visible before it leaves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Spared {
    Nothing,
    /// No puts: the operation behind runs on this node and is granted the lock by a store, which is not ordered after
    /// earlier puts.
    Here,
    /// Its puts to the lock's node.
    Home(NodeId),
    /// Its puts to the node of the operation behind it.
    Behind(NodeId),
}

impl Spared {
    /// The node, if any.
    #[inline]
    pub(super) fn node(self) -> Option<NodeId> {
        match self {
            Spared::Home(node) | Spared::Behind(node) => Some(node),
            Spared::Nothing | Spared::Here => None,
        }
    }

    pub(super) fn is(self, node: NodeId) -> bool {
        self == Spared::Home(node) || self == Spared::Behind(node)
    }
}

impl Queue {
    pub(super) fn new(object: &Object, descriptors: Descriptors, words: Words, free_after_death: Id) -> Arc<Queue> {
        let (node, path, _open) = (object.node().for_service(), object.path().into(), object.hold());
        Arc::new(Queue { node, path, descriptors, words, free_after_death, _open })
    }

    /// The node to which a holder's earlier puts need no fence, since the operation that leaves the head is ordered
    /// after them. If the operation behind is known, this is its node, since it gets the lock by a put, unless it is on
    /// this node. Otherwise it is the lock's node.
    #[inline]
    pub(super) fn spared(&self, head: &Head) -> Spared {
        match Id(self.descriptors.of(head.id).next().load()).node() {
            Some(me) if me == self.node.id() => Spared::Here,
            Some(behind) => Spared::Behind(behind),
            None => Spared::Home(head.record.node()),
        }
    }

    /// Whether the other nodes have evicted this one.
    pub(super) fn is_fenced(&self) -> bool {
        self.node.fabric().is_fenced()
    }

    /// Adds a task to the service thread.
    pub(super) fn leave_to_service(&self, left: impl Poller + 'static) {
        self.node.add_poller(Box::new(left));
    }

    /// Whether no put of this entry's node, earlier or later, can land any more.
    pub(super) fn is_evicted(&self, id: Id) -> bool {
        id.node().is_some_and(|node| self.node.status_of(node) == Some(MemberStatus::Evicted))
    }

    /// Claims the head for a stuck entry. Returns whether the claim succeeded.
    pub(super) async fn claim(&self, endpoint: &Endpoint, operation: &mut Operation) -> fabric::Result<bool> {
        let Operation { record, lock, id, stage, .. } = *operation;
        let Stage::Behind { pred, .. } = stage else { return Ok(false) };
        let claims_at = record.at(self.words.claims);
        let claims = endpoint.get(claims_at).await?;
        let buried = match self.words.buried {
            Some(buried) => endpoint.get(record.at(buried)).await?,
            None => Id::NOBODY.0,
        };
        let claimed = claims + 1 + if buried == pred.0 { 0 } else { TELLS };
        let tail = Id(endpoint.get(record).await?);
        let Some(survey) = self.survey(endpoint, lock).await? else { return Ok(false) };
        // By now, puts of the dead node from before its eviction have landed.
        if Grant::of(self.descriptors.of(id).grant().load()).is_some() {
            return Ok(false);
        }
        if !survey.lets_claim(id, tail) {
            return Ok(false);
        }
        // Published before the compare-and-swap is issued (`CW → NAR`): a reader that sees the new count sees this
        // state, or the grant.
        self.descriptors.tell(id, lock, State::Claiming);
        let settle = |found: u64| {
            if found == claims {
                self.descriptors.of(id).grant().store(Grant::new(0, true).0);
            }
            self.descriptors.tell(id, lock, State::Queued);
        };
        let found = CancelGuard::new(endpoint, endpoint.cas(claims_at, claims, claimed), settle).await;
        if found.as_ref().is_err_and(fabric::Error::is_refused) {
            self.descriptors.tell(id, lock, State::Queued);
        }
        let found = found?;
        settle(found);
        Ok(found == claims)
    }

    /// Links an operation to its predecessor. Returns whether the link is posted or unnecessary: an unreachable
    /// predecessor will hand over nothing.
    pub(super) fn tell(&self, endpoint: &Endpoint, pred: Id, id: Id) -> bool {
        if pred.node() == Some(self.node.id()) {
            // The predecessor cleared the word before it issued its compare-and-swap (`CW → NAR`), and so before it was
            // found.
            self.descriptors.of(pred).next().store(id.0);
            endpoint.wake_local();
            return true;
        }
        match self.descriptors.next_of(pred) {
            Some(next) => is_over(endpoint.put_untracked(next, id.0).detach()),
            None => true,
        }
    }

    /// Grants the lock to the operation behind, if it has linked itself. Returns whether the grant is posted or
    /// unnecessary: if that operation is unreachable, a later one will claim the lock.
    pub(super) fn hand_over(&self, endpoint: &Endpoint, operation: &Operation) -> bool {
        let next = Id(self.descriptors.of(operation.id).next().load());
        if next == Id::NOBODY {
            return false;
        }
        if next.node() == Some(self.node.id()) {
            // The holder's puts are visible, the spared ones too; its stores come before this one (`CW → CW`).
            self.descriptors.of(next).grant().store(operation.next_grant.0);
            endpoint.wake_local();
            self.over(operation);
            return true;
        }
        let grant = self.descriptors.grant_of(next);
        let is_over = grant.is_none_or(|grant| is_over(endpoint.put_untracked(grant, operation.next_grant.0).detach()));
        if is_over {
            self.over(operation);
        }
        is_over
    }

    /// Frees the descriptor, which no other operation writes to any more.
    pub(super) fn over(&self, operation: &Operation) {
        self.descriptors.ends(operation.id, operation.lock);
    }

    /// The tail that an operation leaves behind when it empties the queue.
    pub(super) fn free(&self, next_grant: Grant) -> Id {
        if next_grant.is_poisoned() { self.free_after_death } else { Id::NOBODY }
    }

    /// Handles the tail that was found by an attempt to empty the queue. Returns whether it was emptied.
    pub(super) fn has_left(&self, operation: &mut Operation, found: u64) -> bool {
        if found == operation.id.0 {
            self.over(operation);
            return true;
        }
        operation.stage = Stage::Leaving;
        self.descriptors.tell(operation.id, operation.lock, State::Leaving);
        false
    }
}

/// Whether a put is posted, or no operation waits for it any more. Otherwise it was refused for lack of a resource, and
/// must be posted later.
fn is_over(put: fabric::Result<()>) -> bool {
    use fabric::ErrorKind::{Fenced, Revoked};
    let is_for_nobody =
        |error: fabric::Error| error.is_unreachable() || matches!(error.kind(), Fenced | Revoked { .. });
    put.map_or_else(is_for_nobody, |()| true)
}
