//! Completions: operations that ended, and those that the device never completes.

use std::time::{Duration, Instant};

use farfield_verbs_sys::*;

use super::super::peer::Ends;
use super::super::post::WorkId;
use super::super::queue::QueuePair;
use super::super::status::code_of;
use super::words::Route;
use super::{BYTES_PER_MS_MIN, FLUSH_TIME, PATIENCES_MAX, POLLS_PER_LOOK, REAPED_MAX, VerbsLane};
use crate::error::{Code, Result};
use crate::lane::Status;
use crate::ptr::GroupKey;

impl VerbsLane {
    /// Does the due work besides completions.
    pub(super) fn look_around(&mut self) {
        self.take_arrivals();
        if !self.backlog.is_empty() {
            self.start_backlog(false);
        }
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(POLLS_PER_LOOK) {
            self.reap_stalled_pairs();
        }
    }

    /// Takes completions out of the queue.
    pub(super) fn reap(&mut self) {
        loop {
            let count = self.completions.poll(&mut *self.reaped);
            self.take_reaped(count);
            if count != Some(REAPED_MAX) {
                return;
            }
        }
    }

    /// Sees to those that a poll took out.
    #[inline]
    pub(super) fn take_reaped(&mut self, count: Option<usize>) {
        let Some(count) = count else { return self.lose_completions() };
        for at in 0..count {
            let ibv_wc { wr_id, status, .. } = self.reaped[at];
            self.complete(WorkId(wr_id), status);
        }
    }

    #[inline]
    pub(super) fn complete(&mut self, id: WorkId, status: ibv_wc_status) {
        let Some(pair) = self.pairs.get_mut(id.pair_at()) else { return };
        let before = id.positions_after(pair.posted.first);
        if before == 0
            && status == IBV_WC_SUCCESS
            && pair.posted.count() > 0
            && let Ends::Word(ticket) = pair.posted.oldest()
        {
            pair.posted.pop();
            self.outstanding -= 1;
            self.port.end(1);
            return self.words.end(ticket, Status::Done);
        }
        if before < pair.posted.count() as u64 {
            self.complete_up_to(id.pair_at(), before, status);
        }
        // Otherwise it is of a queue pair that was destroyed since.
    }

    /// A queue pair has done, or failed to do, the work request behind `before` others, and so these.
    fn complete_up_to(&mut self, pair_at: usize, before: u64, status: ibv_wc_status) {
        let pair = &mut self.pairs[pair_at];
        let had_failed = pair.failed.is_some();
        let failed = (status != IBV_WC_SUCCESS).then(|| {
            let cause = code_of(status);
            let verdict = pair.queue.as_ref().and_then(QueuePair::verdict);
            *pair.failed.get_or_insert(verdict.or(cause).unwrap_or(Code::Unreachable))
        });
        // Requests posted before the first failure were done, or they would have failed themselves.
        let earlier = if had_failed { failed } else { None };
        for _ in 0..before {
            self.end_oldest(pair_at, earlier.map_or(Status::Done, Status::Failed));
        }
        self.end_oldest(pair_at, failed.map_or(Status::Done, Status::Failed));
        if let Some(code) = failed {
            self.route = Route::SHUT;
            if code == Code::Unreachable {
                self.give_up(pair_at);
            }
            self.end_waiting(pair_at, code);
        }
    }

    /// The oldest work request under way on a queue pair has ended.
    fn end_oldest(&mut self, pair_at: usize, status: Status) {
        let pair = &mut self.pairs[pair_at];
        let peer = &mut self.peers[pair.peer.index()];
        self.outstanding -= 1;
        self.port.end(1);
        match pair.posted.pop() {
            Ends::Nothing => {}
            Ends::Word(ticket) => self.words.end(ticket, status),
            Ends::Operation(sequence) => peer.end(sequence, status),
            Ends::CutShort(sequence, code) => peer.end(sequence, Status::Failed(code)),
        }
    }

    /// The requests that wait on a queue pair fail.
    pub(super) fn end_waiting(&mut self, pair_at: usize, code: Code) {
        let pair = &mut self.pairs[pair_at];
        while let Some(work) = pair.waiting.pop_front() {
            match (work.sequence, pair.posted.newest()) {
                (0, _) => {}
                // Other parts of the operation may be under way: it keeps its memory until they have ended.
                (sequence, Some(last @ Ends::Nothing)) => *last = Ends::CutShort(sequence, code),
                (sequence, _) => self.peers[pair.peer.index()].end(sequence, Status::Failed(code)),
            }
        }
    }

    /// Ends what waits on a queue pair and is late, if the peer has given memory back since this was looked at last;
    /// whether it has.
    pub(super) fn drop_late(&mut self, pair_at: usize) -> bool {
        let pair = &mut self.pairs[pair_at];
        let peer = &mut self.peers[pair.peer.index()];
        let Some(memory) = peer.memory.clone() else { return false };
        let changes = memory.changes();
        if core::mem::replace(&mut pair.changes_seen, changes) == changes {
            return false;
        }
        let (mut late, mut parts, mut has_fence, mut is_first) = (Vec::new(), Vec::new(), false, true);
        for work in core::mem::take(&mut pair.waiting) {
            parts.push(work);
            if work.sequence == 0 && work.len > 0 {
                continue; // more parts of the operation follow
            }
            let found =
                parts.iter().filter(|part| part.len > 0).map(|part| memory.find(part.remote, part.len as usize));
            match found.filter_map(Result::err).next() {
                Some(code) => {
                    has_fence |= parts.iter().any(|part| part.fence);
                    late.push((work.sequence, code, is_first));
                    parts.clear();
                }
                None => {
                    parts[0].fence |= core::mem::take(&mut has_fence);
                    pair.waiting.extend(parts.drain(..));
                }
            }
            is_first &= work.sequence == 0; // behind a put of nothing it still is
        }
        pair.fence_next |= has_fence;
        for (sequence, code, is_first) in late {
            match pair.posted.newest() {
                // Other parts of the operation may be under way: it keeps its memory until they have ended.
                Some(last @ Ends::Nothing) if is_first => *last = Ends::CutShort(sequence, code),
                _ => peer.end(sequence, Status::Failed(code)),
            }
        }
        true
    }

    /// Destroys a queue pair, which ends every access by it, and so its operations.
    pub(super) fn destroy(&mut self, pair_at: usize) {
        self.route = Route::SHUT;
        self.newest_word = WorkId::NONE; // its completion may still be in the queue
        let pair = &mut self.pairs[pair_at];
        let code = pair.check().err().unwrap_or(Code::Device);
        pair.fail(code);
        pair.queue = None;
        for _ in 0..pair.posted.count() {
            self.end_oldest(pair_at, Status::Failed(code));
        }
        self.end_waiting(pair_at, code);
    }

    /// Looks for queue pairs with work that does not end, although they have ended, or for far too long. Destroying
    /// them ends it.
    #[cold]
    pub(super) fn reap_stalled_pairs(&mut self) {
        let now = Instant::now();
        // After a long pause nothing is known of the time between.
        let has_looked = now - core::mem::replace(&mut self.looked, now) < FLUSH_TIME;
        for pair_at in 0..self.pairs.len() {
            let pair = &mut self.pairs[pair_at];
            let has_ended = pair.check().is_err() || !pair.is_signalled;
            let oldest = (pair.posted.count() > 0).then_some((pair.posted.first, has_ended));
            let (seen, since) = pair.oldest_seen;
            if oldest.is_none() || seen != oldest || !has_looked {
                pair.oldest_seen = (oldest, now);
                continue;
            }
            let moving = Duration::from_millis(pair.bytes / BYTES_PER_MS_MIN);
            let silence_max = PATIENCES_MAX * self.port.device.options.patience + FLUSH_TIME + moving;
            if now - since > if has_ended { FLUSH_TIME } else { silence_max } {
                if !has_ended {
                    pair.fail(Code::Unreachable);
                    self.give_up(pair_at);
                }
                self.destroy(pair_at);
            }
        }
    }

    /// A queue pair has failed to reach its peer.
    fn give_up(&self, pair_at: usize) {
        let pair = &self.pairs[pair_at];
        // Of a further group the peer may have taken the right, and its word of it be on its way.
        if pair.class == GroupKey::SIGNAL
            && let Some(memory) = &self.peers[pair.peer.index()].memory
        {
            memory.give_up();
        }
    }

    /// The completion queue is broken: the results of requests under way stay unknown.
    #[cold]
    fn lose_completions(&mut self) {
        for pair_at in 0..self.pairs.len() {
            self.pairs[pair_at].fail(Code::Device);
            self.destroy(pair_at);
        }
    }
}
