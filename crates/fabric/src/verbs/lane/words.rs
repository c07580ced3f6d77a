//! The short way for operations on single words, which locks, barriers and registers are made of.
//!
//! - **Where results land.** A lane has a few places for them, in memory of its own that stays registered. So such an
//!   operation needs no buffer, no use count and no queue: its ticket is the number of its place.
//! - **The target.** The lane keeps the [`Route`] of the last operation: the next one to the same memory need not look
//!   it up. Anything unusual (an operation by the long way, a batch, a failure, a new connection) shuts the route, and
//!   opening it again repeats all checks.

use core::ptr::NonNull;
use std::sync::Arc;

use farfield_verbs_sys::{IBV_WC_SUCCESS, ibv_wc};

use super::{Code, Lane, Local, Status, Verb, VerbsLane, WorkRequest};
use crate::lane::{WordOrigin, WordTicket};
use crate::pool::Block;
use crate::ptr::{NodeId, RemotePtr};
use crate::verbs::peer::Ends;
use crate::verbs::post::{WordEnds, WordWork, WorkId, post_word};

/// The limit of pending operations; further ones take the long way.
const PLACES: usize = 1 << u8::BITS;

/// The way to the words of one chunk of a peer's memory.
#[derive(Clone, Copy)]
pub(super) struct Route {
    /// The packed pointer to the first word, and how many there are.
    first: u64,
    words: u64,
    /// The device's address of the first word.
    address: u64,
    ends: WordEnds,
    pair_at: usize,
    /// The operations that may be posted before their room must be checked again: never 0 while the route is open.
    credit: u32,
    puts: bool,
    atomics: bool,
}

/// The route leads elsewhere, or is shut.
struct NoRoute;

impl Route {
    /// It contains no word.
    pub(super) const SHUT: Route = Route {
        first: 0,
        words: 0,
        address: 0,
        ends: WordEnds { rkey: 0, lkey: 0, puts_inline: false },
        pair_at: 0,
        credit: 0,
        puts: false,
        atomics: false,
    };

    /// The distance of this word from the first one in bytes, if it is on the route.
    #[inline]
    fn find(&self, word: RemotePtr<u8>) -> Option<u64> {
        let bytes = word.packed().wrapping_sub(self.first);
        // A number that is not a multiple of 8 becomes a large one.
        (bytes.rotate_right(3) < self.words).then_some(bytes)
    }
}

impl VerbsLane {
    /// Posts an operation on one word, with the operands of a [`WorkRequest`] (of a put, the value), if it can be
    /// posted at once, in order after the posts before it.
    #[inline(always)]
    pub(crate) fn post_word(&mut self, verb: Verb, origin: WordOrigin, operands: [u64; 2]) -> Option<WordTicket> {
        match self.post_by_route(verb, origin, operands) {
            Ok(posted) => posted,
            Err(NoRoute) => self.post_by_new_route(verb, origin, operands),
        }
    }

    #[cold]
    #[inline(never)]
    fn post_by_new_route(&mut self, verb: Verb, origin: WordOrigin, operands: [u64; 2]) -> Option<WordTicket> {
        self.open_route(origin.remote)?;
        self.post_by_route(verb, origin, operands).ok()?
    }

    #[inline(always)]
    fn post_by_route(
        &mut self,
        verb: Verb,
        origin: WordOrigin,
        operands: [u64; 2],
    ) -> Result<Option<WordTicket>, NoRoute> {
        let route = &mut self.route;
        let within = route.find(origin.remote).ok_or(NoRoute)?;
        let pair = &mut self.pairs[route.pair_at];
        // Before the check: a thread that frees memory, or learns of it, is either seen here, or sees that an
        // operation is pending.
        self.port.begin(1);
        // Of the verdict of others the lane does not hear by itself, and another queue pair may be there by now.
        let Some(queue) = pair.queue.as_ref().filter(|queue| queue.is_untroubled()) else {
            self.port.end(1);
            return Err(NoRoute);
        };
        let can = match verb {
            Verb::Put => route.puts,
            Verb::Get => true,
            Verb::Cas | Verb::Faa => route.atomics,
            Verb::RemoteFence => false,
        };
        if !can {
            self.port.end(1);
            return Ok(None);
        }
        route.credit -= 1;
        if route.credit == 0 {
            route.words = 0; // shut
        }
        let (ticket, local) = self.words.take(origin);
        self.newest_word = WorkId::new(route.pair_at, pair.posted.next);
        pair.posted.push(Ends::Word(ticket));
        // For puts it is set already, or does not matter: they take this way only where they land in order.
        pair.has_open_put &= verb == Verb::Put;
        self.outstanding += 1;
        // SAFETY: the place's memory, which no other code uses until the operation has ended.
        unsafe { local.write(operands[0]) };
        let (id, ends) = (&self.newest_word, &route.ends);
        let work = WordWork { verb, id, local, address: route.address + within, ends, operands };
        // SAFETY: the place's memory stays as it is until the operation has ended: the block lives as long as the lane,
        // which drops its queue pairs first. The keys are those of that memory and of the word's.
        match unsafe { post_word(queue, work) } {
            0 => Ok(Some(ticket)),
            _ => Ok(self.was_refused(ticket)),
        }
    }

    /// Polls for an operation on a word that is probably the only one under way, and complete: then, the word that was
    /// got, or was there before, and the ticket is worth nothing any more.
    #[inline(always)]
    pub(crate) fn poll_only_word(&mut self, ticket: WordTicket) -> Option<(u64, WordOrigin)> {
        if self.outstanding != 1 || !self.words.is_under_way(ticket) {
            return None;
        }
        let count = self.completions.poll_raw(&mut *self.reaped);
        let ibv_wc { wr_id, status, .. } = self.reaped[0];
        if count != 1 || status != IBV_WC_SUCCESS || wr_id != self.newest_word.0 {
            self.take_others(count);
            return None;
        }
        self.pairs[self.newest_word.pair_at()].posted.pop();
        self.outstanding = 0;
        self.port.end(1);
        Some(self.words.take_result(ticket))
    }

    #[inline(never)]
    fn take_others(&mut self, count: i32) {
        self.take_reaped(usize::try_from(count).ok());
    }

    /// Makes progress, and looks how an operation on a word has ended. The ticket is worth nothing once it has.
    pub(crate) fn poll_word(&mut self, ticket: WordTicket) -> Option<(Result<u64, Code>, WordOrigin)> {
        if let Some((bits, origin)) = self.poll_only_word(ticket) {
            return Some((Ok(bits), origin));
        }
        if self.words.is_under_way(ticket) {
            self.poll();
        }
        self.words.result(ticket)
    }

    /// Makes progress, and looks whether it has ended.
    pub(crate) fn is_word_complete(&mut self, ticket: WordTicket) -> bool {
        if self.words.is_under_way(ticket) {
            self.poll();
        }
        !self.words.is_under_way(ticket)
    }

    /// The result of the operation is not awaited.
    pub(crate) fn drop_word(&mut self, ticket: WordTicket) {
        self.words.drop_ticket(ticket);
    }

    /// Whether a get of a word from a node, or an atomic on one, is under way that has no higher number than `up_to`.
    pub(crate) fn word_reads_under_way(&self, node: NodeId, up_to: u64) -> bool {
        self.outstanding > 0 && self.words.reads_under_way(node, up_to)
    }

    #[cfg(test)]
    pub(crate) fn places_in_use(&self) -> usize {
        PLACES - self.words.free_count()
    }

    /// Opens the route to a word, if operations on it may take the short way.
    fn open_route(&mut self, word: RemotePtr<u8>) -> Option<()> {
        self.poll();
        self.route = Route::SHUT;
        if let Some(pair_at) = self.peers.get(word.node().index()).and_then(|peer| peer.pair(word.key().class()))
            && let Some(queue) = &self.pairs[pair_at].queue
        {
            queue.looks(); // before the checks below, so that the next operation sees a later change
        }
        // The long way reports the error of other words.
        let request = WorkRequest { verb: Verb::Get, remote: word, len: 8, operands: [0; 2], local: Local::nothing() };
        let (pair_at, _, _) = self.place_to_post(&request).ok()?;
        let peer = &self.peers[word.node().index()];
        let pair = &self.pairs[pair_at];
        if peer.holds != 0 || pair.fence_next || !pair.is_signalled || !pair.waiting.is_empty() {
            return None;
        }
        let queue = pair.queue.as_ref()?;
        if queue.info.holds_back && pair.has_puts_under_way() {
            return None;
        }
        let room = (queue.info.depth - pair.posted.count()).min(self.completions.capacity - self.outstanding);
        let credit = room.min(self.words.free_count());
        if credit == 0 {
            return None;
        }
        let (first, chunk) = peer.memory.as_ref()?.around(word)?;
        let lkey = match self.words.key {
            Some(key) => key,
            None => {
                let key = self.register(&self.words.block).ok()?;
                *self.words.key.insert(key)
            }
        };
        let queue = self.pairs[pair_at].queue.as_ref()?;
        self.route = Route {
            first: first.packed(),
            words: chunk.bytes / 8,
            address: chunk.address,
            ends: WordEnds { rkey: chunk.rkey, lkey, puts_inline: queue.info.inline_bytes_max >= 8 },
            pair_at,
            credit: credit as u32,
            // Where the lane holds work back it has to know of puts.
            puts: queue.info.puts_in_order && !queue.info.holds_back,
            atomics: queue.has_atomics,
        };
        Some(())
    }

    /// The device has refused it: the long way handles that.
    #[cold]
    #[inline(never)]
    fn was_refused(&mut self, ticket: WordTicket) -> Option<WordTicket> {
        let pair = &mut self.pairs[self.newest_word.pair_at()];
        pair.posted.take_back();
        pair.has_open_put = true; // as far as is known
        self.outstanding -= 1;
        self.port.end(1);
        self.words.give_back(ticket);
        self.route = Route::SHUT;
        None
    }
}

/// The places for operations on words: by ticket.
pub(super) struct Words {
    block: Arc<Block>,
    /// The block's memory, a word for each place.
    memory: NonNull<u64>,
    /// The block's local key, once it is registered.
    key: Option<u32>,
    places: [Place; PLACES],
    origins: [WordOrigin; PLACES],
    /// The first free place, if there is one, and the next free one for each.
    free: u8,
    next: [u8; PLACES],
}

// SAFETY: the pointer is to the memory of the block, which moves with it, and is used by the owner only.
unsafe impl Send for Words {}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Free,
    UnderWay,
    /// Its result is not awaited.
    Dropped,
    Done,
    Failed(Code),
}

impl Words {
    /// The bytes of all places.
    pub(super) const BYTES: usize = 8 * PLACES;

    /// In a block of [`Words::BYTES`].
    pub(super) fn new(block: Arc<Block>) -> Words {
        assert!(block.bytes() >= Words::BYTES, "every place has its word");
        Words {
            memory: NonNull::new(block.as_ptr().cast()).expect("a block has memory"),
            block,
            key: None,
            places: [Place::Free; PLACES],
            origins: [WordOrigin { remote: RemotePtr::from_packed(0), flushes: 0 }; PLACES],
            free: 0,
            next: core::array::from_fn(|place| (place as u8).wrapping_add(1)),
        }
    }

    fn free_count(&self) -> usize {
        self.places.iter().filter(|place| **place == Place::Free).count()
    }

    #[inline]
    fn memory(&self, ticket: WordTicket) -> *mut u64 {
        // The place is one of those that the block has room for.
        self.memory.as_ptr().wrapping_add(usize::from(ticket.0))
    }

    #[inline]
    fn place(&mut self, ticket: WordTicket) -> &mut Place {
        &mut self.places[usize::from(ticket.0)]
    }

    /// A place, of which there is a free one, and its memory.
    #[inline]
    fn take(&mut self, origin: WordOrigin) -> (WordTicket, *mut u64) {
        let ticket = WordTicket(self.free);
        debug_assert!(*self.place(ticket) == Place::Free);
        *self.place(ticket) = Place::UnderWay;
        self.origins[usize::from(ticket.0)] = origin;
        self.free = self.next[usize::from(ticket.0)];
        (ticket, self.memory(ticket))
    }

    #[inline]
    fn give_back(&mut self, ticket: WordTicket) {
        *self.place(ticket) = Place::Free;
        self.next[usize::from(ticket.0)] = self.free;
        self.free = ticket.0;
    }

    /// The device has done with it.
    #[inline]
    pub(super) fn end(&mut self, ticket: WordTicket, status: Status) {
        let place = self.place(ticket);
        match (*place, status) {
            (Place::Dropped, _) => self.give_back(ticket),
            (_, Status::Failed(code)) => *place = Place::Failed(code),
            _ => *place = Place::Done,
        }
    }

    #[inline]
    fn is_under_way(&self, ticket: WordTicket) -> bool {
        self.places[usize::from(ticket.0)] == Place::UnderWay
    }

    fn reads_under_way(&self, node: NodeId, up_to: u64) -> bool {
        self.places.iter().zip(&self.origins).any(|(place, origin)| {
            let is_read = (1..=up_to).contains(&origin.flushes) && origin.remote.node() == node;
            is_read && matches!(place, Place::UnderWay | Place::Dropped)
        })
    }

    /// The result of one that the device has done; its place is free.
    #[inline]
    fn take_result(&mut self, ticket: WordTicket) -> (u64, WordOrigin) {
        // SAFETY: the memory is the place's, inside the block and aligned, and no operation is under way on it.
        let bits = unsafe { self.memory(ticket).read() };
        self.give_back(ticket);
        (bits, self.origins[usize::from(ticket.0)])
    }

    /// How it has ended, if it has; then its place is free.
    fn result(&mut self, ticket: WordTicket) -> Option<(Result<u64, Code>, WordOrigin)> {
        match *self.place(ticket) {
            Place::Done => {
                let (bits, origin) = self.take_result(ticket);
                Some((Ok(bits), origin))
            }
            Place::Failed(code) => {
                self.give_back(ticket);
                Some((Err(code), self.origins[usize::from(ticket.0)]))
            }
            Place::UnderWay | Place::Dropped | Place::Free => None,
        }
    }

    fn drop_ticket(&mut self, ticket: WordTicket) {
        match *self.place(ticket) {
            Place::UnderWay => *self.place(ticket) = Place::Dropped,
            Place::Done | Place::Failed(_) => self.give_back(ticket),
            Place::Dropped | Place::Free => {}
        }
    }
}
