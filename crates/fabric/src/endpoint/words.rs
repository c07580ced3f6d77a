//! Operations on single words over RDMA, by the short way of its lane: posted without a buffer, and polled for without
//! a task. Each kind has a function of its own, out of the way of shared memory: operations there are inlined.

use core::cell::RefMut;

use super::any_lane::{OtherLane, VerbsLane};
use super::op::Op;
use super::{DynState, Endpoint, Inner};
use crate::error::{Code, Result};
use crate::lane::{Local, Verb, WordOrigin, WordTicket, WorkRequest};
use crate::ptr::RemotePtr;

/// Polls of a wait before it becomes an ordinary one: about as many as a round trip of hardware takes.
const POLLS: u32 = 100;

impl Endpoint {
    /// Waits for an operation on a word: the word that was got, or was there before; of a put, any. A round trip is
    /// short: it is polled for a while before the thread waits as for anything else.
    #[cold]
    #[inline(never)]
    pub(crate) fn wait_for_word(&self, depth: u64, ticket: WordTicket) -> Result<u64> {
        let Inner::Dyn(state) = &self.inner else { return self.wait_on_for_word(depth, ticket) };
        let done = match &mut *state.lane.borrow_mut() {
            OtherLane::Verbs(lane) => lane.poll_only_word(ticket),
            OtherLane::Dyn(_) => None,
        };
        let Some((bits, origin)) = done else { return self.wait_on_for_word(depth, ticket) };
        state.saw_word(origin);
        self.saw_completion(depth);
        Ok(bits)
    }

    #[inline(never)]
    fn wait_on_for_word(&self, depth: u64, ticket: WordTicket) -> Result<u64> {
        for _ in 0..POLLS {
            if let Some(result) = self.poll_word(depth, ticket) {
                return result;
            }
            core::hint::spin_loop();
        }
        self.block_on(Op::of_word(self, depth, ticket))
    }

    /// Makes progress, and looks how an operation on a word has ended.
    pub(crate) fn poll_word(&self, depth: u64, ticket: WordTicket) -> Option<Result<u64>> {
        let Inner::Dyn(state) = &self.inner else { return None };
        let (result, origin) = match &mut *state.lane.borrow_mut() {
            OtherLane::Verbs(lane) => lane.poll_word(ticket)?,
            OtherLane::Dyn(_) => return None,
        };
        self.saw_completion(depth);
        if result.is_ok() {
            state.saw_word(origin);
        }
        Some(result.map_err(|code| self.explain(code, origin.remote, 8)))
    }

    pub(crate) fn is_word_complete(&self, ticket: WordTicket) -> bool {
        self.words().is_some_and(|mut lane| lane.is_word_complete(ticket))
    }

    /// No caller will look at its result.
    #[cold]
    pub(crate) fn drop_word(&self, ticket: WordTicket) {
        if let Some(mut lane) = self.words() {
            lane.drop_word(ticket);
        }
    }

    fn words(&self) -> Option<RefMut<'_, VerbsLane>> {
        let Inner::Dyn(state) = &self.inner else { return None };
        let lane = RefMut::filter_map(state.lane.borrow_mut(), |lane| match lane {
            OtherLane::Verbs(lane) => Some(&mut **lane),
            OtherLane::Dyn(_) => None,
        });
        lane.ok()
    }
}

impl DynState {
    #[cold]
    #[inline(never)]
    pub(super) fn put_word(&self, dst: RemotePtr<u8>, value: u64) -> Option<WordTicket> {
        self.post_word(Verb::Put, dst, [value, 0])
    }

    #[cold]
    #[inline(never)]
    pub(super) fn get_word(&self, src: RemotePtr<u8>) -> Option<WordTicket> {
        self.post_word(Verb::Get, src, [0; 2])
    }

    #[cold]
    #[inline(never)]
    pub(super) fn cas_word(&self, dst: RemotePtr<u8>, expected: u64, new: u64) -> Option<WordTicket> {
        self.post_word(Verb::Cas, dst, [expected, new])
    }

    #[cold]
    #[inline(never)]
    pub(super) fn faa_word(&self, dst: RemotePtr<u8>, addend: u64) -> Option<WordTicket> {
        self.post_word(Verb::Faa, dst, [addend, 0])
    }

    /// Posts an operation on a word by the short way, if the fabric is RDMA and it can be posted at once.
    #[inline(always)]
    fn post_word(&self, verb: Verb, remote: RemotePtr<u8>, operands: [u64; 2]) -> Option<WordTicket> {
        match &mut *self.lane.borrow_mut() {
            OtherLane::Verbs(lane) => {
                // A number that is not used in the end does no harm, nor does a put that is counted twice.
                let origin = WordOrigin { remote, flushes: self.issue(verb, remote) };
                lane.post_word(verb, origin, operands)
            }
            OtherLane::Dyn(_) => None,
        }
    }

    /// Whether an operation on a word would be posted.
    pub(super) fn check_word(&self, word: RemotePtr<u64>) -> Result<(), Code> {
        let (remote, local) = (word.cast(), Local::nothing());
        let request = WorkRequest { verb: Verb::Cas, remote, len: 8, operands: [0; 2], local };
        self.lane.borrow_mut().check(&request)
    }

    /// An operation on a word was done.
    #[inline]
    fn saw_word(&self, origin: WordOrigin) {
        if origin.flushes > 0 {
            self.marks.flush(origin.remote, origin.flushes);
        }
    }
}
