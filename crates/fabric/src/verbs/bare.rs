//! A queue pair by itself, to compare with: one operation at a time, as a program does it that is written to
//! libibverbs.

use std::sync::Arc;

use farfield_verbs_sys::*;

use super::lane::VerbsLane;
use super::queue::CompletionQueue;
use super::status::code_of;
use crate::error::Code;
use crate::lane::Verb;
use crate::pool::Block;
use crate::ptr::RemotePtr;

/// A word of a node, worked on by posting a work request and polling for its completion, with nothing in between: no
/// handle, no bound, no count, no order with anything else. [`VerbsFabric::bare`](super::VerbsFabric::bare) makes one.
///
/// ```
/// # use farfield_fabric::{verbs::*, *};
/// # fn f(node: &VerbsFabric, word: RemotePtr<u64>) -> Result<()> {
/// let mut bare: Bare = node.bare(word)?;
/// assert!(bare.run(Verb::Put, [7, 0]).is_ok());
/// # Ok(()) }
/// ```
pub struct Bare {
    /// Owns the queue pair, and posts nothing itself.
    _lane: VerbsLane,
    completions: Arc<CompletionQueue>,
    qp: *mut ibv_qp,
    /// Null without the extended calls.
    qp_ex: *mut ibv_qp_ex,
    local: Arc<Block>,
    lkey: u32,
    can_inline: bool,
    address: u64,
    rkey: u32,
    /// The requests under way are not known any more.
    is_broken: bool,
}

// SAFETY: libibverbs may be called from any thread, and the pointers are used by the owner only.
unsafe impl Send for Bare {}

impl Bare {
    /// # Errors
    /// The lane does not reach the word.
    pub(super) fn new(mut lane: VerbsLane, word: RemotePtr<u64>) -> Result<Bare, Code> {
        let local = lane.new_block()?;
        let lkey = lane.register(&local)?;
        let (pair, address, rkey) = lane.path_to(word)?;
        let (qp, qp_ex, can_inline) = (pair.raw, pair.raw_ex, pair.info.inline_bytes_max >= 8);
        let completions = lane.port().completions();
        Ok(Bare { _lane: lane, completions, qp, qp_ex, local, lkey, can_inline, address, rkey, is_broken: false })
    }

    /// Puts `operands[0]`, gets, compares with the first and swaps in the second, or adds the first. Returns the word
    /// that was got, or that was there before an atomic.
    ///
    /// ```
    /// # use farfield_fabric::{verbs::Bare, *};
    /// # fn f(bare: &mut Bare) -> Result<(), Code> {
    /// bare.run(Verb::Put, [40, 0])?;
    /// assert_eq!(bare.run(Verb::Faa, [2, 0])?, 40);
    /// assert_eq!(bare.run(Verb::Get, [0, 0])?, 42);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// How the device says that it failed; then so does every later one.
    #[inline]
    pub fn run(&mut self, verb: Verb, operands: [u64; 2]) -> Result<u64, Code> {
        if self.is_broken {
            return Err(Code::Device);
        }
        let local = self.local.as_ptr().cast::<u64>();
        let is_inline = verb == Verb::Put && self.can_inline;
        // SAFETY: the block is this one's, has room for a word, and no operation is under way.
        unsafe { local.write(operands[0]) };
        let flags = IBV_SEND_SIGNALED | if is_inline { IBV_SEND_INLINE } else { 0 };
        // SAFETY: the lane keeps the queue pair, and this is its only user; the block is registered and waits for the
        // end.
        let errno = unsafe {
            if self.qp_ex.is_null() {
                let mut segment = ibv_sge { addr: local as u64, length: 8, lkey: self.lkey };
                let (remote_addr, rkey) = (self.address, self.rkey);
                let (opcode, [compare_add, swap]) = match verb {
                    Verb::Put => (IBV_WR_RDMA_WRITE, [0; 2]),
                    Verb::Get | Verb::RemoteFence => (IBV_WR_RDMA_READ, [0; 2]),
                    Verb::Cas => (IBV_WR_ATOMIC_CMP_AND_SWP, operands),
                    Verb::Faa => (IBV_WR_ATOMIC_FETCH_AND_ADD, operands),
                };
                let wr = match verb {
                    Verb::Cas | Verb::Faa => {
                        ibv_wr_remote { atomic: ibv_wr_atomic { remote_addr, compare_add, swap, rkey } }
                    }
                    _ => ibv_wr_remote { rdma: ibv_wr_rdma { remote_addr, rkey } },
                };
                let sg_list = &raw mut segment;
                let mut request =
                    ibv_send_wr { wr_id: 1, sg_list, num_sge: 1, opcode, send_flags: flags, wr, ..Default::default() };
                let mut bad = core::ptr::null_mut();
                ibv_post_send(self.qp, &mut request, &mut bad)
            } else {
                let qp = self.qp_ex;
                ibv_wr_start(qp);
                ((*qp).wr_id, (*qp).wr_flags) = (1, flags);
                match verb {
                    Verb::Put => ibv_wr_rdma_write(qp, self.rkey, self.address),
                    Verb::Get | Verb::RemoteFence => ibv_wr_rdma_read(qp, self.rkey, self.address),
                    Verb::Cas => ibv_wr_atomic_cmp_swp(qp, self.rkey, self.address, operands[0], operands[1]),
                    Verb::Faa => ibv_wr_atomic_fetch_add(qp, self.rkey, self.address, operands[0]),
                }
                if is_inline {
                    ibv_wr_set_inline_data(qp, local.cast(), 8);
                } else {
                    ibv_wr_set_sge(qp, self.lkey, local as u64, 8);
                }
                ibv_wr_complete(qp)
            }
        };
        if errno != 0 {
            return Err(Code::Device);
        }
        let mut completion = [ibv_wc::default()];
        loop {
            match self.completions.poll(&mut completion) {
                Some(0) => core::hint::spin_loop(),
                Some(_) if completion[0].status == IBV_WC_SUCCESS => break,
                Some(_) => return Err(code_of(completion[0].status).unwrap_or(Code::Unreachable)),
                None => {
                    self.is_broken = true;
                    return Err(Code::Device);
                }
            }
        }
        // SAFETY: as above; the operation has ended.
        Ok(unsafe { local.read() })
    }
}
