//! Queue pairs: making and moving them, and posting work by the classic call or by the extended ones.

#![allow(missing_docs, reason = "fields and constants are those of the manual pages, and documented where it matters")]

use core::ffi::{c_int, c_uint, c_void};

use farfield_c_decl::{c_constants, c_types};

use crate::context::{extended_op, set_errno};
use crate::{
    Skipped, SkippedFn, be32, ibv_access_flags, ibv_context, ibv_cq, ibv_gid, ibv_mtu, ibv_pd, verbs_context,
    verbs_get_ctx,
};

c_constants! {
    /// How a queue pair is connected; others than reliable ones are left out.
    enum ibv_qp_type: c_uint {
        IBV_QPT_RC = 2,
    }

    /// Where a queue pair is.
    enum ibv_qp_state: c_uint {
        IBV_QPS_RESET = 0,
        IBV_QPS_INIT = 1,
        IBV_QPS_RTR = 2,
        IBV_QPS_RTS = 3,
        IBV_QPS_SQD = 4,
        IBV_QPS_SQE = 5,
        IBV_QPS_ERR = 6,
        IBV_QPS_UNKNOWN = 7,
    }

    /// Where a queue pair is on its way to another path.
    enum ibv_mig_state: c_uint {
        IBV_MIG_MIGRATED = 0,
        IBV_MIG_REARM = 1,
        IBV_MIG_ARMED = 2,
    }

    /// Which attributes a modification sets, or a query asks for.
    flags ibv_qp_attr_mask: c_int {
        IBV_QP_STATE = 1 << 0,
        IBV_QP_CUR_STATE = 1 << 1,
        IBV_QP_EN_SQD_ASYNC_NOTIFY = 1 << 2,
        IBV_QP_ACCESS_FLAGS = 1 << 3,
        IBV_QP_PKEY_INDEX = 1 << 4,
        IBV_QP_PORT = 1 << 5,
        IBV_QP_AV = 1 << 7,
        IBV_QP_PATH_MTU = 1 << 8,
        IBV_QP_TIMEOUT = 1 << 9,
        IBV_QP_RETRY_CNT = 1 << 10,
        IBV_QP_RNR_RETRY = 1 << 11,
        IBV_QP_RQ_PSN = 1 << 12,
        IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13,
        IBV_QP_MIN_RNR_TIMER = 1 << 15,
        IBV_QP_SQ_PSN = 1 << 16,
        IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
        IBV_QP_PATH_MIG_STATE = 1 << 18,
        IBV_QP_CAP = 1 << 19,
        IBV_QP_DEST_QPN = 1 << 20,
    }

    /// Bits of [`ibv_qp_init_attr_ex::comp_mask`].
    flags ibv_qp_init_attr_mask: u32 {
        IBV_QP_INIT_ATTR_PD = 1 << 0,
        IBV_QP_INIT_ATTR_CREATE_FLAGS = 1 << 2,
        IBV_QP_INIT_ATTR_SEND_OPS_FLAGS = 1 << 6,
    }

    /// Bits of [`ibv_qp_init_attr_ex::send_ops_flags`]: the extended operations that the queue pair is to have.
    flags ibv_qp_create_send_ops_flags: u64 {
        IBV_QP_EX_WITH_RDMA_WRITE = 1 << 0,
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM = 1 << 1,
        IBV_QP_EX_WITH_RDMA_READ = 1 << 4,
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP = 1 << 5,
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD = 1 << 6,
    }

    /// The operation of a work request.
    enum ibv_wr_opcode: c_uint {
        IBV_WR_RDMA_WRITE = 0,
        IBV_WR_RDMA_WRITE_WITH_IMM = 1,
        IBV_WR_SEND = 2,
        IBV_WR_SEND_WITH_IMM = 3,
        IBV_WR_RDMA_READ = 4,
        IBV_WR_ATOMIC_CMP_AND_SWP = 5,
        IBV_WR_ATOMIC_FETCH_AND_ADD = 6,
    }

    /// How a work request is done.
    flags ibv_send_flags: c_uint {
        /// Starts only when the earlier reads and atomics of this queue pair are complete.
        IBV_SEND_FENCE = 1 << 0,
        IBV_SEND_SIGNALED = 1 << 1,
        IBV_SEND_SOLICITED = 1 << 2,
        /// The bytes are copied while posting: their memory may be reused at once, and needs no local key.
        IBV_SEND_INLINE = 1 << 3,
    }

    /// What `ibv_query_qp_data_in_order` is to return: by default 1 or 0, with this flag [capabilities][caps].
    ///
    /// [caps]: ibv_query_qp_data_in_order_caps
    newer ibv_query_qp_data_in_order_flags: u32 {
        IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS = 1 << 0,
    }

    /// What `ibv_query_qp_data_in_order` returns if asked so.
    newer ibv_query_qp_data_in_order_caps: c_int {
        /// The bytes of a message are placed in order.
        IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG = 1 << 0,
        /// Blocks of 128 aligned bytes are placed in order among each other.
        IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES = 1 << 1,
    }
}

c_types! {
    /// The way to a peer beyond the local subnet, and always on Ethernet.
    #[derive(Clone, Copy, Debug, Default)]
    fixed struct ibv_global_route {
        dgid: ibv_gid,
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
    }

    /// The way to a peer.
    #[derive(Clone, Copy, Debug, Default)]
    fixed struct ibv_ah_attr {
        grh: ibv_global_route,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        /// Not 0 where `grh` is to be used: always on Ethernet.
        is_global: u8,
        port_num: u8,
    }

    /// How much a queue pair holds.
    #[derive(Clone, Copy, Debug, Default)]
    fixed struct ibv_qp_cap {
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
    }

    /// The attributes of a new queue pair.
    #[derive(Clone, Copy, Debug, Default)]
    fixed struct ibv_qp_init_attr {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: Skipped<*mut c_void>,
        cap: ibv_qp_cap,
        qp_type: ibv_qp_type,
        sq_sig_all: c_int,
    }

    /// The description of a new queue pair, with later additions.
    #[derive(Clone, Copy, Debug, Default)]
    growing struct ibv_qp_init_attr_ex {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: Skipped<*mut c_void>,
        cap: ibv_qp_cap,
        qp_type: ibv_qp_type,
        sq_sig_all: c_int,
        comp_mask: ibv_qp_init_attr_mask,
        pd: *mut ibv_pd,
        xrcd: Skipped<*mut c_void>,
        create_flags: u32,
        max_tso_header: u16,
        rwq_ind_tbl: Skipped<*mut c_void>,
        rx_hash_conf: Skipped<[u64; 3]>,
        source_qpn: u32,
        send_ops_flags: ibv_qp_create_send_ops_flags,
    }

    /// The attributes of a queue pair; a mask selects the valid ones.
    #[derive(Clone, Copy, Debug, Default)]
    fixed struct ibv_qp_attr {
        qp_state: ibv_qp_state,
        cur_qp_state: ibv_qp_state,
        path_mtu: ibv_mtu,
        path_mig_state: ibv_mig_state,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: ibv_access_flags,
        cap: ibv_qp_cap,
        ah_attr: ibv_ah_attr,
        alt_ah_attr: ibv_ah_attr,
        pkey_index: u16,
        alt_pkey_index: u16,
        en_sqd_async_notify: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        /// 4.096 µs times two to this power; 0 waits for ever.
        timeout: u8,
        /// At most 6: some devices take 7 for no limit.
        retry_cnt: u8,
        /// 7 is no limit.
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        rate_limit: u32,
    }

    /// A queue pair.
    fixed struct ibv_qp {
        context: *mut ibv_context,
        qp_context: *mut c_void,
        pd: *mut ibv_pd,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: Skipped<*mut c_void>,
        handle: u32,
        qp_num: u32,
        state: ibv_qp_state,
        qp_type: ibv_qp_type,
        mutex: libc::pthread_mutex_t,
        cond: libc::pthread_cond_t,
        events_completed: u32,
    }

    /// The extended view of a queue pair, from `ibv_qp_to_qp_ex`.
    growing struct ibv_qp_ex {
        qp_base: ibv_qp,
        comp_mask: u64,
        /// Taken by the next operation; to be set before its call.
        wr_id: u64,
        /// Taken by the next operation; to be set before its call.
        wr_flags: ibv_send_flags,
        wr_atomic_cmp_swp: Option<
            unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, compare: u64, swap: u64)
        >,
        wr_atomic_fetch_add: Option<
            unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, add: u64)
        >,
        wr_bind_mw: SkippedFn,
        wr_local_inv: SkippedFn,
        wr_rdma_read: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64)>,
        wr_rdma_write: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64)>,
        wr_rdma_write_imm: Option<
            unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, imm_data: be32)
        >,
        wr_send: SkippedFn,
        wr_send_imm: SkippedFn,
        wr_send_inv: SkippedFn,
        wr_send_tso: SkippedFn,
        wr_set_ud_addr: SkippedFn,
        wr_set_xrc_srqn: SkippedFn,
        wr_set_inline_data: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize)>,
        wr_set_inline_data_list: SkippedFn,
        wr_set_sge: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32)>,
        wr_set_sge_list: Option<
            unsafe extern "C" fn(qp: *mut ibv_qp_ex, num_sge: usize, sg_list: *const ibv_sge)
        >,
        wr_start: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex)>,
        wr_complete: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex) -> c_int>,
        wr_abort: Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex)>,
    }

    /// A piece of local memory.
    #[derive(Clone, Copy, Debug, Default)]
    fixed struct ibv_sge {
        addr: u64,
        length: u32,
        lkey: u32,
    }

    /// The remote side of a read or write.
    #[derive(Clone, Copy, Debug, Default)]
    fixed struct ibv_wr_rdma as "__typeof__(((struct ibv_send_wr *)0)->wr.rdma)" {
        remote_addr: u64,
        rkey: u32,
    }

    /// The remote side of an atomic.
    #[derive(Clone, Copy, Debug, Default)]
    fixed struct ibv_wr_atomic as "__typeof__(((struct ibv_send_wr *)0)->wr.atomic)" {
        remote_addr: u64,
        /// Expected value of a compare-and-swap, or addend.
        compare_add: u64,
        swap: u64,
        rkey: u32,
    }

    /// The remote side of a work request, by its opcode.
    #[derive(Clone, Copy)]
    fixed union ibv_wr_remote as "__typeof__(((struct ibv_send_wr *)0)->wr)" {
        rdma: ibv_wr_rdma,
        atomic: ibv_wr_atomic,
    }

    /// A work request.
    #[derive(Clone, Copy)]
    fixed struct ibv_send_wr {
        wr_id: u64,
        next: *mut ibv_send_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        opcode: ibv_wr_opcode,
        send_flags: ibv_send_flags,
        imm_data: be32,
        wr: ibv_wr_remote,
        qp_type: Skipped<u32>,
        bind_mw: Skipped<[u64; 6]>,
    }

    /// A receive.
    #[derive(Clone, Copy, Debug, Default)]
    fixed struct ibv_recv_wr {
        wr_id: u64,
        next: *mut ibv_recv_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
    }
}

impl Default for ibv_wr_remote {
    #[inline]
    fn default() -> Self {
        // The larger variant, so that no byte of the union is left unwritten but padding.
        ibv_wr_remote { atomic: ibv_wr_atomic::default() }
    }
}

impl Default for ibv_send_wr {
    #[inline]
    fn default() -> Self {
        ibv_send_wr {
            wr_id: 0,
            next: core::ptr::null_mut(),
            sg_list: core::ptr::null_mut(),
            num_sge: 0,
            opcode: IBV_WR_RDMA_WRITE,
            send_flags: 0,
            imm_data: 0,
            wr: ibv_wr_remote::default(),
            qp_type: Skipped(0),
            bind_mw: Skipped::default(),
        }
    }
}

/// Creates a queue pair with more attributes, as extended send operations. Null and errno: `EOPNOTSUPP` where there are
/// none.
///
/// # Safety
/// `context` is open as for [`verbs_get_ctx`], and `attr` is as the manual page asks for.
pub unsafe fn ibv_create_qp_ex(context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    // SAFETY: by the contract of this function.
    unsafe {
        match extended_op!(context, create_qp_ex) {
            Some(create_qp_ex) => create_qp_ex(context, attr),
            None => {
                set_errno(libc::EOPNOTSUPP);
                core::ptr::null_mut()
            }
        }
    }
}

/// Posts a list of work requests. Errno value; after a failure `*bad_wr` is the first that was not posted, and those
/// before it are under way.
///
/// # Safety
/// `qp` is a queue pair that is not destroyed meanwhile, `wr` is a list that ends, and `bad_wr` is valid to write.
/// Local memory of a request stays valid, and is not touched against the request, until it has completed.
#[inline]
pub unsafe fn ibv_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: by the contract of this function; every provider can post.
    unsafe { (*(*qp).context).ops.post_send.unwrap_unchecked()(qp, wr, bad_wr) }
}

macro_rules! work_requests {
    ($($(#[$attribute:meta])* fn $name:ident: $field:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        $(
            $(#[$attribute])*
            ///
            /// # Safety
            /// `qp` is the extended view of a queue pair that is not destroyed meanwhile and that was created with the
            /// flag for this operation. A batch is open, by this thread, except for [`ibv_wr_start`], which opens it.
            /// Memory that an operation names stays valid, and is not touched against it, until it has completed.
            #[inline]
            pub unsafe fn $name(qp: *mut ibv_qp_ex, $($argument: $type),*) $(-> $result)? {
                // SAFETY: by the contract of this function: a queue pair has the operations that it was created with.
                unsafe { (*qp).$field.unwrap_unchecked()(qp, $($argument),*) }
            }
        )*
    };
}

// In a batch, each operation takes `wr_id` and `wr_flags` of the queue pair, and the setter of its local memory
// follows it. Errors are reported when the batch is completed.
work_requests! {
    /// Opens a batch. Providers lock the queue pair here, until the batch is completed or aborted.
    fn ibv_wr_start: wr_start();
    /// Rings the doorbell for the batch. Errno value; after a failure nothing of the batch is posted.
    fn ibv_wr_complete: wr_complete() -> c_int;
    /// Drops the batch.
    fn ibv_wr_abort: wr_abort();
    /// Writes the local memory that is set next to remote memory.
    fn ibv_wr_rdma_write: wr_rdma_write(rkey: u32, remote_addr: u64);
    /// Reads remote memory to the local memory that is set next.
    fn ibv_wr_rdma_read: wr_rdma_read(rkey: u32, remote_addr: u64);
    /// Compares and swaps 8 bytes; the old value is written to the local memory that is set next.
    fn ibv_wr_atomic_cmp_swp: wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64);
    /// Adds to 8 bytes; the old value is written to the local memory that is set next.
    fn ibv_wr_atomic_fetch_add: wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64);
    /// Local memory of the last operation: one segment.
    fn ibv_wr_set_sge: wr_set_sge(lkey: u32, addr: u64, length: u32);
    /// Local memory of the last operation: a list of segments, which is copied.
    fn ibv_wr_set_sge_list: wr_set_sge_list(num_sge: usize, sg_list: *const ibv_sge);
    /// Local memory of the last operation: bytes, which are copied now.
    fn ibv_wr_set_inline_data: wr_set_inline_data(addr: *mut c_void, length: usize);
}
