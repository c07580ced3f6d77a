//! Posting the work that waits.

use super::super::peer::Ends;
use super::super::post::{BATCH_MAX, Work, WorkId};
use super::super::status::{Refusal, refusal_of};
use super::VerbsLane;
use super::words::Route;
use crate::error::Code;
use crate::lane::{Status, Verb};

impl VerbsLane {
    /// Posts the waiting work for a peer, as far as there is room. The operation `new`, if it is not 0, is being
    /// posted.
    pub(super) fn start(&mut self, at: usize, new: u64) {
        self.route = Route::SHUT;
        for of_peer in 0..self.peers[at].pairs.len() {
            self.start_pair(self.peers[at].pairs[of_peer].1, new);
        }
        let peer = &mut self.peers[at];
        let has_work = peer.pairs.iter().any(|pair| !self.pairs[pair.1].waiting.is_empty());
        if has_work && !peer.is_in_backlog {
            self.backlog.push(at);
        }
        peer.is_in_backlog |= has_work;
    }

    /// Posts the waiting work of a queue pair, as far as there is room.
    fn start_pair(&mut self, pair_at: usize, new: u64) {
        let capacity = self.completions.capacity;
        let mut at_most = BATCH_MAX;
        loop {
            let pair = &mut self.pairs[pair_at];
            if let Err(code) = pair.check() {
                return self.end_waiting(pair_at, code);
            }
            let Some(queue) = &pair.queue else { return };
            if pair.posted.count() == 0 {
                pair.bytes = 0;
            }
            let holds_back = queue.info.holds_back;
            if !pair.is_signalled && (pair.waiting.is_empty() || holds_back && pair.count_unheld(1) == 0) {
                // The last request posted ends with the completion of an empty put.
                pair.waiting.push_front(Work::nothing());
            }
            let room = (queue.info.depth - pair.posted.count()).min(capacity - self.outstanding);
            let mut count = pair.waiting.len().min(room).min(at_most);
            if holds_back {
                count = pair.count_unheld(count);
            }
            if count == 0 {
                return;
            }
            self.port.begin(count);
            if self.drop_late(pair_at) {
                self.port.end(count);
                continue;
            }
            let pair = &mut self.pairs[pair_at];
            let Some(queue) = &pair.queue else { return self.port.end(count) };
            if holds_back {
                // All earlier ones have ended.
                pair.waiting[0].fence = false;
            }
            let first = WorkId::new(pair_at, pair.posted.next);
            // SAFETY: the operations of the peer keep the memory until they are complete.
            let (posted, errno) = unsafe { self.poster.post(queue, first, &pair.waiting, count) };
            for work in pair.waiting.drain(..posted) {
                pair.bytes += u64::from(work.len);
                pair.posted.push(if work.sequence == 0 { Ends::Nothing } else { Ends::Operation(work.sequence) });
                if work.verb == Verb::Put {
                    pair.puts_end = pair.posted.next;
                }
            }
            self.outstanding += posted;
            self.port.end(count - posted);
            pair.is_signalled = if posted > 0 { errno == 0 } else { pair.is_signalled };
            if errno == 0 {
                continue;
            }
            if count > 1 {
                // Posts one at a time, to identify the refused one.
                at_most = 1;
                continue;
            }
            match refusal_of(errno, pair.waiting[0].verb) {
                Refusal::Full if pair.posted.count() > 0 => return,
                refusal => self.refuse_first(pair_at, refusal, new),
            }
        }
    }

    /// The device refuses the first waiting request by itself.
    #[cold]
    fn refuse_first(&mut self, pair_at: usize, refusal: Refusal, new: u64) {
        let pair = &mut self.pairs[pair_at];
        let Some(queue) = &pair.queue else { return };
        let refused = pair.waiting[0];
        match refusal {
            Refusal::Never(code) if refused.sequence == new && refused.is_whole => {
                pair.waiting.pop_front();
                // Its effect, on which later requests depend, is missing.
                pair.fence_next |= refused.fence;
                pair.has_open_put = true; // as far as is known
                self.peers[pair.peer.index()].end(refused.sequence, Status::Failed(code));
            }
            // Not even one fits. Or an accepted request is refused, and other parts of it may be in flight.
            Refusal::Full | Refusal::Never(_) => {
                queue.switch().end(Code::Unreachable);
                pair.fail(Code::Device);
            }
        }
    }

    /// Starts waiting work, for peers with complete batches, or for all.
    pub(super) fn start_backlog(&mut self, all: bool) {
        for at in core::mem::take(&mut self.backlog) {
            self.peers[at].is_in_backlog = false;
            if all || self.peers[at].holds == 0 {
                self.start(at, 0);
            } else {
                self.peers[at].is_in_backlog = true;
                self.backlog.push(at);
            }
        }
    }
}
