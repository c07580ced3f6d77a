//! Completion queues: their reports, and polling them by the classic call or by the extended ones.

#![allow(missing_docs, reason = "fields and constants are those of the manual pages, and documented where it matters")]

use core::ffi::{c_int, c_uint, c_void};

use farfield_c_decl::{c_constants, c_types};

use crate::context::{extended_op, set_errno};
use crate::{Skipped, SkippedFn, be32, ibv_context, ibv_pd, verbs_context, verbs_get_ctx};

c_constants! {
    /// How a work request ended.
    enum ibv_wc_status: c_uint {
        IBV_WC_SUCCESS = 0,
        IBV_WC_LOC_LEN_ERR = 1,
        IBV_WC_LOC_QP_OP_ERR = 2,
        IBV_WC_LOC_EEC_OP_ERR = 3,
        IBV_WC_LOC_PROT_ERR = 4,
        IBV_WC_WR_FLUSH_ERR = 5,
        IBV_WC_MW_BIND_ERR = 6,
        IBV_WC_BAD_RESP_ERR = 7,
        IBV_WC_LOC_ACCESS_ERR = 8,
        IBV_WC_REM_INV_REQ_ERR = 9,
        IBV_WC_REM_ACCESS_ERR = 10,
        IBV_WC_REM_OP_ERR = 11,
        IBV_WC_RETRY_EXC_ERR = 12,
        IBV_WC_RNR_RETRY_EXC_ERR = 13,
        IBV_WC_LOC_RDD_VIOL_ERR = 14,
        IBV_WC_REM_INV_RD_REQ_ERR = 15,
        IBV_WC_REM_ABORT_ERR = 16,
        IBV_WC_INV_EECN_ERR = 17,
        IBV_WC_INV_EEC_STATE_ERR = 18,
        IBV_WC_FATAL_ERR = 19,
        IBV_WC_RESP_TIMEOUT_ERR = 20,
        IBV_WC_GENERAL_ERR = 21,
        IBV_WC_TM_ERR = 22,
        IBV_WC_TM_RNDV_INCOMPLETE = 23,
    }

    /// The kind of the completed request. Undefined if the status is not success.
    enum ibv_wc_opcode: c_uint {
        IBV_WC_SEND = 0,
        IBV_WC_RDMA_WRITE = 1,
        IBV_WC_RDMA_READ = 2,
        IBV_WC_COMP_SWAP = 3,
        IBV_WC_FETCH_ADD = 4,
        IBV_WC_BIND_MW = 5,
        IBV_WC_LOCAL_INV = 6,
        IBV_WC_RECV = 1 << 7,
        IBV_WC_RECV_RDMA_WITH_IMM = (1 << 7) + 1,
    }

    /// What more a completion carries.
    flags ibv_wc_flags: c_uint {
        IBV_WC_GRH = 1 << 0,
        IBV_WC_WITH_IMM = 1 << 1,
        IBV_WC_WITH_INV = 1 << 3,
    }

    /// Bits of [`ibv_cq_init_attr_ex::wc_flags`]: the fields that can be read of a completion besides status and
    /// identifier.
    flags ibv_create_cq_wc_flags: u64 {
        IBV_WC_EX_WITH_BYTE_LEN = 1 << 0,
        IBV_WC_EX_WITH_IMM = 1 << 1,
        IBV_WC_EX_WITH_QP_NUM = 1 << 2,
        IBV_WC_EX_WITH_SRC_QP = 1 << 3,
    }

    /// Bits of [`ibv_cq_init_attr_ex::comp_mask`].
    flags ibv_cq_init_attr_mask: u32 {
        IBV_CQ_INIT_ATTR_MASK_FLAGS = 1 << 0,
        IBV_CQ_INIT_ATTR_MASK_PD = 1 << 1,
    }

    /// Bits of [`ibv_cq_init_attr_ex::flags`].
    flags ibv_create_cq_attr_flags: u32 {
        /// One thread polls, so the provider takes no lock.
        IBV_CREATE_CQ_ATTR_SINGLE_THREADED = 1 << 0,
        IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN = 1 << 1,
    }
}

c_types! {
    /// A completion queue.
    fixed struct ibv_cq {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        /// How many completions it holds.
        cqe: c_int,
        mutex: libc::pthread_mutex_t,
        cond: libc::pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
    }

    /// A completion.
    #[derive(Clone, Copy, Debug, Default)]
    fixed struct ibv_wc {
        wr_id: u64,
        status: ibv_wc_status,
        opcode: ibv_wc_opcode,
        vendor_err: u32,
        byte_len: u32,
        /// With [`IBV_WC_WITH_INV`] the key that was invalidated, in this machine's byte order.
        imm_data: be32,
        qp_num: u32,
        src_qp: u32,
        wc_flags: ibv_wc_flags,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }

    /// How to poll: there is no choice, so far.
    #[derive(Clone, Copy, Debug, Default)]
    fixed struct ibv_poll_cq_attr {
        comp_mask: u32,
    }

    /// An extended completion queue. It begins as an [`ibv_cq`], and a pointer to it may be used as one.
    growing struct ibv_cq_ex {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: libc::pthread_mutex_t,
        cond: libc::pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
        comp_mask: u32,
        /// Of the completion at which the poll stands.
        status: ibv_wc_status,
        /// Of the completion at which the poll stands.
        wr_id: u64,
        start_poll: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int>,
        next_poll: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> c_int>,
        end_poll: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex)>,
        read_opcode: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> ibv_wc_opcode>,
        read_vendor_err: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        read_byte_len: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        read_imm_data: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> be32>,
        read_qp_num: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        read_src_qp: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        read_wc_flags: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> ibv_wc_flags>,
        read_slid: SkippedFn,
        read_sl: SkippedFn,
        read_dlid_path_bits: SkippedFn,
        read_completion_ts: SkippedFn,
        read_cvlan: SkippedFn,
        read_flow_tag: SkippedFn,
        read_tm_info: SkippedFn,
        read_completion_wallclock_ns: SkippedFn,
    }

    /// What an extended completion queue is to be.
    #[derive(Clone, Copy, Debug, Default)]
    growing struct ibv_cq_init_attr_ex {
        cqe: u32,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: u32,
        wc_flags: ibv_create_cq_wc_flags,
        comp_mask: ibv_cq_init_attr_mask,
        flags: ibv_create_cq_attr_flags,
        parent_domain: *mut ibv_pd,
    }
}

/// A completion channel. This crate makes none: where one is asked for, it is null.
#[repr(C)]
pub struct ibv_comp_channel {
    _opaque: Skipped<[u8; 0]>,
}

/// Creates an extended completion queue. Null and errno: `EOPNOTSUPP` where there are none.
///
/// # Safety
/// `context` is open as for [`verbs_get_ctx`], and `attr` is as the manual page asks for.
pub unsafe fn ibv_create_cq_ex(context: *mut ibv_context, attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex {
    // SAFETY: by the contract of this function.
    unsafe {
        match extended_op!(context, create_cq_ex) {
            Some(create_cq_ex) => create_cq_ex(context, attr),
            None => {
                set_errno(libc::EOPNOTSUPP);
                core::ptr::null_mut()
            }
        }
    }
}

/// The classic view of an extended completion queue.
#[inline]
#[must_use]
pub const fn ibv_cq_ex_to_cq(cq: *mut ibv_cq_ex) -> *mut ibv_cq {
    cq.cast()
}

/// Takes up to `num_entries` completions out of the queue; how many there were, negative for a failure.
///
/// # Safety
/// `cq` is a completion queue that is not destroyed meanwhile, and `wc` is valid to write `num_entries` completions.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: by the contract of this function; every provider can poll.
    unsafe { (*(*cq).context).ops.poll_cq.unwrap_unchecked()(cq, num_entries, wc) }
}

/// Begins to read the next completion: 0, or `ENOENT` if there is none, or another errno value.
///
/// After 0 the caller reads it and then calls [`ibv_next_poll`] or [`ibv_end_poll`]; after a failure it calls neither.
///
/// # Safety
/// `cq` is a completion queue that is not destroyed meanwhile, no poll of it is open, and `attr` is valid to read.
#[inline]
pub unsafe fn ibv_start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: by the contract of this function; every extended completion queue can be polled.
    unsafe { (*cq).start_poll.unwrap_unchecked()(cq, attr) }
}

/// Advances to the next completion: 0, or `ENOENT` if there is none, or another errno value. [`ibv_end_poll`] is still
/// due.
///
/// Soft-RoCE breaks the queue at the end of such a batch: after `ENOENT`, [`ibv_end_poll`] takes one completion more
/// than there was (rdma-core's pull request 1512). A loop of [`ibv_start_poll`] and [`ibv_end_poll`], one completion
/// each, is right with every provider.
///
/// # Safety
/// This thread has opened a poll of `cq` by [`ibv_start_poll`].
#[inline]
pub unsafe fn ibv_next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: by the contract of this function; every extended completion queue can be polled.
    unsafe { (*cq).next_poll.unwrap_unchecked()(cq) }
}

/// Ends a poll: the queue may overwrite the completions that were read.
///
/// # Safety
/// This thread has opened a poll of `cq` by [`ibv_start_poll`].
#[inline]
pub unsafe fn ibv_end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: by the contract of this function; every extended completion queue can be polled.
    unsafe { (*cq).end_poll.unwrap_unchecked()(cq) }
}

macro_rules! readers {
    ($($(#[$attribute:meta])* $name:ident: $field:ident -> $type:ty,)*) => {
        $(
            $(#[$attribute])*
            ///
            /// # Safety
            /// A poll of `cq` stands at a completion, and `cq` was created with the flag, if one is named above.
            #[inline]
            pub unsafe fn $name(cq: *mut ibv_cq_ex) -> $type {
                // SAFETY: by the contract of this function: a queue has the readers that it was created with.
                unsafe { (*cq).$field.unwrap_unchecked()(cq) }
            }
        )*
    };
}

readers! {
    /// The kind of the completed request; undefined if the status is not success.
    ibv_wc_read_opcode: read_opcode -> ibv_wc_opcode,
    /// The vendor's code for a failure.
    ibv_wc_read_vendor_err: read_vendor_err -> u32,
    /// How many bytes were moved ([`IBV_WC_EX_WITH_BYTE_LEN`]).
    ibv_wc_read_byte_len: read_byte_len -> u32,
    /// The immediate data ([`IBV_WC_EX_WITH_IMM`]).
    ibv_wc_read_imm_data: read_imm_data -> be32,
    /// The queue pair ([`IBV_WC_EX_WITH_QP_NUM`]).
    ibv_wc_read_qp_num: read_qp_num -> u32,
    /// The peer's queue pair ([`IBV_WC_EX_WITH_SRC_QP`]).
    ibv_wc_read_src_qp: read_src_qp -> u32,
    /// The flags.
    ibv_wc_read_wc_flags: read_wc_flags -> ibv_wc_flags,
}
