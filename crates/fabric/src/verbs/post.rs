//! Posting: a list of work requests behind one doorbell, by the extended calls or by a chain of classic requests.

use core::ffi::c_int;
use std::collections::VecDeque;

use farfield_verbs_sys::*;

use super::queue::{INLINE_BYTES_MAX, QueuePair};
use crate::lane::{Verb, copy_words};
use crate::ptr::RemotePtr;

/// The most work requests behind one doorbell.
pub(super) const BATCH_MAX: usize = 32;

/// The number of a work request: at which position of which of the lane's queue pairs it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct WorkId(pub(super) u64);

impl WorkId {
    const PAIR_BITS: u32 = 20;
    /// Queue pairs that a lane may have.
    pub(super) const PAIRS_MAX: usize = (1 << Self::PAIR_BITS) - 1;
    /// The number of none.
    pub(super) const NONE: WorkId = WorkId(u64::MAX);

    #[inline]
    pub(super) fn new(pair_at: usize, position: u64) -> WorkId {
        WorkId(position << Self::PAIR_BITS | pair_at as u64)
    }

    /// Of the queue pair's work request `count` positions later.
    #[inline]
    fn after(self, count: usize) -> WorkId {
        WorkId(self.0.wrapping_add((count as u64) << Self::PAIR_BITS))
    }

    #[inline]
    pub(super) fn pair_at(self) -> usize {
        self.0 as usize % (1 << Self::PAIR_BITS)
    }

    /// How many positions it is behind `first`; positions are counted modulo the bits that there are for them.
    #[inline]
    pub(super) fn positions_after(self, first: u64) -> u64 {
        (self.0 >> Self::PAIR_BITS).wrapping_sub(first) << Self::PAIR_BITS >> Self::PAIR_BITS
    }
}

/// One work request that is to be posted.
#[derive(Clone, Copy)]
pub(super) struct Work {
    /// Of the operation that is complete with it; 0 if none is.
    pub(super) sequence: u64,
    /// It is all of its operation.
    pub(super) is_whole: bool,
    /// Not a remote fence, which is no work request.
    pub(super) verb: Verb,
    /// It waits for the earlier reads and atomics.
    pub(super) fence: bool,
    pub(super) local: *mut u8,
    pub(super) len: u32,
    pub(super) key: LocalKey,
    pub(super) address: u64,
    pub(super) rkey: u32,
    pub(super) operands: [u64; 2],
    /// What `address` and `rkey` were found for.
    pub(super) remote: RemotePtr<u8>,
}

// SAFETY: the pointer is used only by the thread that posts the request, and the operation keeps its memory.
unsafe impl Send for Work {}

impl Work {
    /// A put of no bytes, which completes after all earlier posts, and touches nothing.
    pub(super) fn nothing() -> Work {
        Work {
            sequence: 0,
            is_whole: false,
            verb: Verb::Put,
            fence: false,
            local: core::ptr::null_mut(),
            len: 0,
            key: LocalKey::Empty,
            address: 0,
            rkey: 0,
            operands: [0; 2],
            remote: RemotePtr::from_packed(0),
        }
    }
}

/// How a work request names its local memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LocalKey {
    /// Nothing to move.
    Empty,
    /// Copied while posting; it does not change meanwhile.
    Inline,
    /// Copied while posting, word by word, as others may write to it meanwhile.
    InlineShared,
    /// Registered.
    Registered(u32),
}

/// What posting needs room for.
pub(super) struct Poster {
    requests: Vec<ibv_send_wr>,
    segments: Vec<ibv_sge>,
    copies: Box<[[u64; INLINE_BYTES_MAX / 8]]>,
}

// SAFETY: pointers of the lists are used during a call of `post` only.
unsafe impl Send for Poster {}

impl Poster {
    pub(super) fn new() -> Poster {
        Poster {
            requests: vec![ibv_send_wr::default(); BATCH_MAX],
            segments: vec![ibv_sge::default(); BATCH_MAX],
            copies: vec![[0; INLINE_BYTES_MAX / 8]; BATCH_MAX].into(),
        }
    }

    /// Posts the first `count` of the list, at most [`BATCH_MAX`]. Their numbers begin with `first`, and the last of
    /// them is signalled. How many were posted, and the errno value if it was not all.
    ///
    /// # Safety
    /// The description of its local memory in each request is true until it is complete.
    pub(super) unsafe fn post(
        &mut self,
        pair: &QueuePair,
        first: WorkId,
        list: &VecDeque<Work>,
        count: usize,
    ) -> (usize, c_int) {
        debug_assert!(count > 0 && count <= BATCH_MAX && count <= list.len());
        for (at, work) in list.iter().take(count).enumerate() {
            if work.key == LocalKey::InlineShared {
                // SAFETY: region memory is aligned to 8 and accessed by atomics; the copy is this poster's, and has
                // room for the longest inline put.
                unsafe { copy_words(work.local, self.copies[at].as_mut_ptr().cast(), work.len as usize) };
            }
        }
        // SAFETY: by the contract of this function.
        unsafe {
            if pair.raw_ex.is_null() {
                self.post_classic(pair, first, list, count)
            } else {
                self.post_extended(pair, first, list, count)
            }
        }
    }

    /// Where an inline request's bytes are.
    fn source(&self, at: usize, work: &Work) -> *mut u8 {
        if work.key == LocalKey::InlineShared { self.copies[at].as_ptr().cast_mut().cast() } else { work.local }
    }

    /// # Safety
    /// As [`Poster::post`].
    unsafe fn post_extended(
        &mut self,
        pair: &QueuePair,
        first: WorkId,
        list: &VecDeque<Work>,
        count: usize,
    ) -> (usize, c_int) {
        let qp = pair.raw_ex;
        // SAFETY: the queue pair is alive, was created with these operations, and is posted to by its owner alone; the
        // batch is opened first and completed last.
        unsafe {
            ibv_wr_start(qp);
            for (at, work) in list.iter().take(count).enumerate() {
                self.append(qp, at, work, first.after(at), at + 1 == count);
            }
            match ibv_wr_complete(qp) {
                0 => (count, 0),
                errno => (0, errno),
            }
        }
    }

    /// Adds a request to the batch that is open.
    ///
    /// # Safety
    /// As [`Poster::post`]; a batch of the queue pair is open.
    #[inline]
    unsafe fn append(&self, qp: *mut ibv_qp_ex, at: usize, work: &Work, id: WorkId, is_last: bool) {
        let [a, b] = work.operands;
        // SAFETY: by the contract of this function.
        unsafe {
            (*qp).wr_id = id.0;
            (*qp).wr_flags = flags(work, is_last);
            match work.verb {
                Verb::Put => ibv_wr_rdma_write(qp, work.rkey, work.address),
                Verb::Cas => ibv_wr_atomic_cmp_swp(qp, work.rkey, work.address, a, b),
                Verb::Faa => ibv_wr_atomic_fetch_add(qp, work.rkey, work.address, a),
                Verb::Get | Verb::RemoteFence => ibv_wr_rdma_read(qp, work.rkey, work.address),
            }
            match work.key {
                LocalKey::Empty => ibv_wr_set_sge_list(qp, 0, core::ptr::null()),
                LocalKey::Registered(key) => ibv_wr_set_sge(qp, key, work.local as u64, work.len),
                LocalKey::Inline | LocalKey::InlineShared => {
                    ibv_wr_set_inline_data(qp, self.source(at, work).cast(), work.len as usize);
                }
            }
        }
    }

    fn segment(&self, at: usize, work: &Work) -> ibv_sge {
        let lkey = if let LocalKey::Registered(key) = work.key { key } else { 0 };
        ibv_sge { addr: self.source(at, work) as u64, length: work.len, lkey }
    }

    /// # Safety
    /// As [`Poster::post`].
    unsafe fn post_classic(
        &mut self,
        pair: &QueuePair,
        first: WorkId,
        list: &VecDeque<Work>,
        count: usize,
    ) -> (usize, c_int) {
        for (at, work) in list.iter().take(count).enumerate() {
            self.segments[at] = self.segment(at, work);
            let segment = &raw mut self.segments[at];
            self.requests[at] = request(work, first.after(at), segment, at + 1 == count);
        }
        let chain = self.requests.as_mut_ptr();
        for at in 1..count {
            // SAFETY: both are inside the list.
            unsafe { (*chain.add(at - 1)).next = chain.add(at) };
        }
        let mut bad = core::ptr::null_mut();
        // SAFETY: the list is linked to its end and outlives the call; local memory is as the caller promises.
        match unsafe { ibv_post_send(pair.raw, chain, &mut bad) } {
            0 => (count, 0),
            errno => {
                let posted = (bad as usize).wrapping_sub(chain as usize) / size_of::<ibv_send_wr>();
                (if bad.is_null() { 0 } else { posted.min(count) }, errno)
            }
        }
    }
}

/// One operation on a word. (Values that must survive the calls are borrowed: they are loaded again when they are
/// needed.)
pub(super) struct WordWork<'a> {
    pub(super) verb: Verb,
    pub(super) id: &'a WorkId,
    pub(super) local: *mut u64,
    pub(super) address: u64,
    pub(super) ends: &'a WordEnds,
    pub(super) operands: [u64; 2],
}

/// How both ends of operations on words are named.
#[derive(Clone, Copy)]
pub(super) struct WordEnds {
    pub(super) rkey: u32,
    pub(super) lkey: u32,
    /// Puts are copied while posting.
    pub(super) puts_inline: bool,
}

/// Posts one operation on a word, signalled; the errno value if it was refused.
///
/// # Safety
/// No other code uses the local word, which stays until the work request is complete, and the local key is its
/// memory's.
#[inline(always)]
pub(super) unsafe fn post_word(pair: &QueuePair, word: WordWork<'_>) -> c_int {
    let WordWork { verb, id, local, address, ends, operands: [a, b] } = word;
    let is_inline = || verb == Verb::Put && ends.puts_inline;
    let qp = pair.raw_ex;
    if qp.is_null() {
        let key = if is_inline() { LocalKey::Inline } else { LocalKey::Registered(ends.lkey) };
        let (rkey, operands) = (ends.rkey, [a, b]);
        let (local, len, remote) = (local.cast(), 8, RemotePtr::from_packed(0));
        let work =
            Work { sequence: 0, is_whole: true, verb, fence: false, local, len, key, address, rkey, operands, remote };
        // SAFETY: by the contract of this function.
        return unsafe { post_one_classic(pair, *id, &work) };
    }
    // SAFETY: the queue pair is alive, was created with these operations, and is posted to by its owner alone.
    unsafe {
        ibv_wr_start(qp);
        (*qp).wr_id = id.0;
        (*qp).wr_flags = if is_inline() { IBV_SEND_SIGNALED | IBV_SEND_INLINE } else { IBV_SEND_SIGNALED };
        match verb {
            Verb::Put => ibv_wr_rdma_write(qp, ends.rkey, address),
            Verb::Cas => ibv_wr_atomic_cmp_swp(qp, ends.rkey, address, a, b),
            Verb::Faa => ibv_wr_atomic_fetch_add(qp, ends.rkey, address, a),
            Verb::Get | Verb::RemoteFence => ibv_wr_rdma_read(qp, ends.rkey, address),
        }
        if is_inline() {
            ibv_wr_set_inline_data(qp, local.cast(), 8);
        } else {
            ibv_wr_set_sge(qp, ends.lkey, local as u64, 8);
        }
        ibv_wr_complete(qp)
    }
}

/// # Safety
/// As [`Poster::post`].
#[inline(always)]
unsafe fn post_one_classic(pair: &QueuePair, id: WorkId, work: &Work) -> c_int {
    let lkey = if let LocalKey::Registered(key) = work.key { key } else { 0 };
    let mut segment = ibv_sge { addr: work.local as u64, length: work.len, lkey };
    let mut request = request(work, id, &raw mut segment, true);
    let mut bad = core::ptr::null_mut();
    // SAFETY: the list has one request, which outlives the call; local memory is as the caller promises.
    unsafe { ibv_post_send(pair.raw, &mut request, &mut bad) }
}

/// A classic work request.
#[inline(always)]
fn request(work: &Work, id: WorkId, segment: *mut ibv_sge, is_last: bool) -> ibv_send_wr {
    let [a, b] = work.operands;
    let (remote_addr, rkey) = (work.address, work.rkey);
    let (opcode, wr) = match work.verb {
        Verb::Put => (IBV_WR_RDMA_WRITE, None),
        Verb::Get | Verb::RemoteFence => (IBV_WR_RDMA_READ, None),
        Verb::Cas => (IBV_WR_ATOMIC_CMP_AND_SWP, Some((a, b))),
        Verb::Faa => (IBV_WR_ATOMIC_FETCH_AND_ADD, Some((a, 0))),
    };
    let wr = match wr {
        None => ibv_wr_remote { rdma: ibv_wr_rdma { remote_addr, rkey } },
        Some((compare_add, swap)) => ibv_wr_remote { atomic: ibv_wr_atomic { remote_addr, compare_add, swap, rkey } },
    };
    ibv_send_wr {
        wr_id: id.0,
        sg_list: segment,
        num_sge: (work.key != LocalKey::Empty).into(),
        opcode,
        send_flags: flags(work, is_last),
        wr,
        ..Default::default()
    }
}

#[inline]
fn flags(work: &Work, is_last: bool) -> ibv_send_flags {
    let inline = matches!(work.key, LocalKey::Inline | LocalKey::InlineShared);
    let flag = |set: bool, flag| if set { flag } else { 0 };
    flag(work.fence, IBV_SEND_FENCE) | flag(is_last, IBV_SEND_SIGNALED) | flag(inline, IBV_SEND_INLINE)
}
