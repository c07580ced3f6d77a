//! What a lane knows of a peer: its operations, and the queue pairs that do them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::memory::PeerMemory;
use super::post::Work;
use super::queue::QueuePair;
use super::words::Words;
use crate::error::Code;
use crate::lane::{Failures, Keep, Status};
use crate::ptr::GroupKey;

/// Marks the number of an operation whose last part was not posted.
const CUT_SHORT: u64 = 1 << 63;
/// Marks the place of an operation on a word.
pub(super) const WORD: u64 = 1 << 62;

#[derive(Default)]
pub(super) struct Peer {
    /// Those that have not ended, and those behind them. The first has the number `ended + 1`.
    pub(super) operations: VecDeque<Operation>,
    pub(super) ended: u64,
    pub(super) failures: Failures,
    pub(super) memory: Option<Arc<PeerMemory>>,
    pub(super) pairs: Vec<Pair>,
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
    /// Which groups it reaches: [`class_of`].
    pub(super) class: GroupKey,
    /// None once it had to be destroyed.
    pub(super) queue: Option<QueuePair>,
    pub(super) waiting: VecDeque<Work>,
    /// The operations that are complete with the work requests under way, 0 for those that end none. With
    /// [`CUT_SHORT`], the operation fails however its last work request ends.
    pub(super) posted: VecDeque<u64>,
    /// The position of the first of them.
    pub(super) first: u64,
    /// The last of them is signalled.
    pub(super) is_signalled: bool,
    pub(super) failed: Option<Code>,
    /// The next operation begins with the fence flag.
    pub(super) fence_next: bool,
    /// A put was posted, and no read or atomic since.
    pub(super) has_open_put: bool,
    /// Since when completions are missing.
    pub(super) ailing_since: Option<Instant>,
}

impl Pair {
    /// Positions of its work requests begin at `first`.
    pub(super) fn new(class: GroupKey, queue: QueuePair, first: u64) -> Pair {
        Pair {
            class,
            queue: Some(queue),
            waiting: VecDeque::new(),
            posted: VecDeque::new(),
            first,
            is_signalled: true,
            failed: None,
            fence_next: false,
            has_open_put: false,
            ailing_since: None,
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

    pub(super) fn fail(&mut self, code: Code) {
        self.failed.get_or_insert(code);
    }
}

impl Peer {
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

    #[inline]
    pub(super) fn end_first_posted(&mut self, pair_at: usize, status: Status, words: &mut Words) {
        let pair = &mut self.pairs[pair_at];
        pair.first = pair.first.wrapping_add(1);
        match pair.posted.pop_front() {
            None | Some(0) => {}
            Some(place) if place & WORD != 0 && place & CUT_SHORT == 0 => words.end(place as u32, status),
            Some(sequence) if sequence & CUT_SHORT != 0 => {
                let code = pair.check().err().unwrap_or(Code::Unreachable);
                self.end(sequence & !CUT_SHORT, Status::Failed(code));
            }
            Some(sequence) => self.end(sequence, status),
        }
    }

    /// What waits on a queue pair fails.
    pub(super) fn end_waiting(&mut self, pair_at: usize, code: Code) {
        while let Some(work) = self.pairs[pair_at].waiting.pop_front() {
            match (work.sequence, self.pairs[pair_at].posted.back_mut()) {
                (0, _) => {}
                // Other parts of the operation may be under way: it keeps its memory until they have ended.
                (sequence, Some(last @ 0)) => *last = sequence | CUT_SHORT,
                (sequence, _) => self.end(sequence, Status::Failed(code)),
            }
        }
    }

    /// Destroys a queue pair, which ends every access by it, and so its operations; how many work requests that were.
    pub(super) fn destroy(&mut self, pair_at: usize, words: &mut Words) -> usize {
        let pair = &mut self.pairs[pair_at];
        let code = pair.check().err().unwrap_or(Code::Device);
        pair.fail(code);
        pair.queue = None;
        let count = pair.posted.len();
        for _ in 0..count {
            self.end_first_posted(pair_at, Status::Failed(code), words);
        }
        self.end_waiting(pair_at, code);
        count
    }
}
