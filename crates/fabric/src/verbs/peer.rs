//! A lane's knowledge of its peers: their operations, and the queue pairs that do them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::post::Work;
use super::queue::{DEPTH, QueuePair};
use crate::error::Code;
use crate::hosts::layout::PeerMemory;
use crate::lane::{Failures, Keep, Status, Verb, WordTicket};
use crate::ptr::{GroupKey, NodeId};

#[derive(Default)]
pub(super) struct Peer {
    /// Those that have not ended, and those behind them. The first has the number `ended + 1`.
    pub(super) operations: VecDeque<Operation>,
    pub(super) ended: u64,
    pub(super) failures: Failures,
    pub(super) memory: Option<Arc<PeerMemory>>,
    /// Its queue pairs, by class and place among those of the lane.
    pub(super) pairs: Vec<(GroupKey, usize)>,
    /// Batches that are open.
    pub(super) holds: u32,
    pub(super) is_in_backlog: bool,
}

pub(super) struct Operation {
    pub(super) status: Status,
    pub(super) keep: Keep,
}

/// A queue pair and its work.
pub(super) struct Pair {
    pub(super) peer: NodeId,
    /// Which groups it reaches: [`GroupKey::class`].
    pub(super) class: GroupKey,
    /// None once it had to be destroyed.
    pub(super) queue: Option<QueuePair>,
    pub(super) waiting: VecDeque<Work>,
    /// The operations that its work requests under way end.
    pub(super) posted: Posted,
    /// The last of them is signalled.
    pub(super) is_signalled: bool,
    pub(super) failed: Option<Code>,
    /// The next operation begins with the fence flag.
    pub(super) fence_next: bool,
    /// A put was posted, and no read or atomic since.
    pub(super) has_open_put: bool,
    /// The position behind the last put that was posted, where the lane holds work back.
    pub(super) puts_end: u64,
    /// The position of the oldest work request under way, if there was one, and whether the queue pair had ended, when
    /// it was last looked; and since when that is so.
    pub(super) oldest_seen: (Option<(u64, bool)>, Instant),
    /// So many bytes are under way at most, words apart.
    pub(super) bytes: u64,
    /// How often the peer had given memory back when the waiting requests were last looked at.
    pub(super) changes_seen: u64,
}

impl Pair {
    /// Positions of its work requests begin at `first`.
    pub(super) fn new(peer: NodeId, class: GroupKey, queue: QueuePair, first: u64) -> Pair {
        Pair {
            peer,
            class,
            queue: Some(queue),
            waiting: VecDeque::new(),
            posted: Posted::new(first),
            is_signalled: true,
            failed: None,
            fence_next: false,
            has_open_put: false,
            puts_end: first,
            oldest_seen: (None, Instant::now()),
            bytes: 0,
            changes_seen: 0,
        }
    }

    /// Whether it takes work.
    #[inline]
    pub(super) fn check(&self) -> Result<(), Code> {
        match (self.failed, &self.queue) {
            (None, Some(queue)) => queue.verdict().map_or(Ok(()), Err),
            (failed, _) => Err(failed.unwrap_or(Code::Unreachable)),
        }
    }

    /// A put is under way, where the lane holds work back.
    pub(super) fn has_puts_under_way(&self) -> bool {
        self.puts_end > self.posted.first
    }

    /// How many of the first `count` that wait may start where the lane holds work back: a fenced request once all
    /// before it have ended, and one that brings an answer once all puts before it have.
    pub(super) fn count_unheld(&self, count: usize) -> usize {
        let mut is_behind_puts = self.has_puts_under_way();
        let held = self.waiting.iter().take(count).enumerate().position(|(at, work)| {
            let is_alone = at == 0 && self.posted.count() == 0;
            let is_put = work.verb == Verb::Put;
            let is_held = work.fence && !is_alone || !is_put && is_behind_puts;
            is_behind_puts |= is_put;
            is_held
        });
        held.unwrap_or(count)
    }

    pub(super) fn fail(&mut self, code: Code) {
        self.failed.get_or_insert(code);
    }
}

/// The operations that the work requests of a queue pair under way end, in the order of posting.
pub(super) struct Posted {
    entries: Box<[Ends; DEPTH]>,
    /// The position of the oldest, and of the next one.
    pub(super) first: u64,
    pub(super) next: u64,
}

/// The operation that ends with a work request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ends {
    /// Nothing: it is a part of an operation, or of none.
    Nothing,
    /// An operation on a word.
    Word(WordTicket),
    /// An operation, by its number.
    Operation(u64),
    /// One whose last part was not posted, and why: it fails however this part of it ends.
    CutShort(u64, Code),
}

impl Posted {
    fn new(first: u64) -> Posted {
        Posted { entries: Box::new([Ends::Nothing; DEPTH]), first, next: first }
    }

    /// How many work requests are under way, at most [`DEPTH`].
    #[inline]
    pub(super) fn count(&self) -> usize {
        self.next.wrapping_sub(self.first) as usize
    }

    #[inline]
    pub(super) fn push(&mut self, ends: Ends) {
        debug_assert!(self.count() < DEPTH);
        self.entries[self.next as usize % DEPTH] = ends;
        self.next = self.next.wrapping_add(1);
    }

    /// The oldest, which there is.
    #[inline]
    pub(super) fn oldest(&self) -> Ends {
        self.entries[self.first as usize % DEPTH]
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Ends {
        debug_assert!(self.count() > 0);
        let oldest = self.oldest();
        self.first = self.first.wrapping_add(1);
        oldest
    }

    /// The newest was not posted after all.
    pub(super) fn take_back(&mut self) {
        self.next = self.next.wrapping_sub(1);
    }

    /// The newest, if there is one.
    pub(super) fn newest(&mut self) -> Option<&mut Ends> {
        (self.count() > 0).then(|| &mut self.entries[self.next.wrapping_sub(1) as usize % DEPTH])
    }
}

impl Peer {
    /// The place of the queue pair for groups of a class.
    #[inline]
    pub(super) fn pair(&self, class: GroupKey) -> Option<usize> {
        self.pairs.iter().find(|pair| pair.0 == class).map(|pair| pair.1)
    }

    /// An operation has ended.
    pub(super) fn end(&mut self, sequence: u64, status: Status) {
        let Some(at) = sequence.checked_sub(self.ended + 1) else { return };
        let operation = &mut self.operations[at as usize];
        operation.status = status;
        operation.keep = Keep::Nothing;
        self.settle();
    }

    /// Forgets operations that have ended, but for their failures.
    pub(super) fn settle(&mut self) {
        while let Some(first) = self.operations.front()
            && first.status != Status::Pending
        {
            self.ended += 1;
            if let Status::Failed(code) = first.status {
                self.failures.note(self.ended, code);
            }
            self.operations.pop_front();
        }
    }
}
