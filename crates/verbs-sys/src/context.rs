//! Opened devices: the operations that a context has, and the asynchronous events that it reports.
//!
//! A context is where libibverbs, a provider or a test puts the functions that posting and polling call.

#![allow(missing_docs, reason = "fields and constants are those of the manual pages, and documented where it matters")]

use core::ffi::{c_int, c_uint, c_void};
use core::mem::offset_of;

use farfield_c_decl::{c_constants, c_types};

use crate::{
    Skipped, SkippedFn, ibv_alloc_dm_attr, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_device, ibv_device_attr_ex,
    ibv_dm, ibv_mr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_init_attr_ex, ibv_query_device_ex_input, ibv_recv_wr,
    ibv_send_wr, ibv_wc,
};

c_constants! {
    /// What happened to a device, a port, a completion queue or a queue pair.
    enum ibv_event_type: c_uint {
        IBV_EVENT_CQ_ERR = 0,
        IBV_EVENT_QP_FATAL = 1,
        IBV_EVENT_QP_REQ_ERR = 2,
        IBV_EVENT_QP_ACCESS_ERR = 3,
        IBV_EVENT_COMM_EST = 4,
        IBV_EVENT_SQ_DRAINED = 5,
        IBV_EVENT_PATH_MIG = 6,
        IBV_EVENT_PATH_MIG_ERR = 7,
        IBV_EVENT_DEVICE_FATAL = 8,
        IBV_EVENT_PORT_ACTIVE = 9,
        IBV_EVENT_PORT_ERR = 10,
        IBV_EVENT_LID_CHANGE = 11,
        IBV_EVENT_PKEY_CHANGE = 12,
        IBV_EVENT_SM_CHANGE = 13,
        IBV_EVENT_SRQ_ERR = 14,
        IBV_EVENT_SRQ_LIMIT_REACHED = 15,
        IBV_EVENT_QP_LAST_WQE_REACHED = 16,
        IBV_EVENT_CLIENT_REREGISTER = 17,
        IBV_EVENT_GID_CHANGE = 18,
        IBV_EVENT_WQ_FATAL = 19,
    }
}

c_types! {
    /// The operations of a context that every provider has.
    #[derive(Default)]
    fixed struct ibv_context_ops {
        _compat_query_device: SkippedFn,
        _compat_query_port: SkippedFn,
        _compat_alloc_pd: SkippedFn,
        _compat_dealloc_pd: SkippedFn,
        _compat_reg_mr: SkippedFn,
        _compat_rereg_mr: SkippedFn,
        _compat_dereg_mr: SkippedFn,
        alloc_mw: SkippedFn,
        bind_mw: SkippedFn,
        dealloc_mw: SkippedFn,
        _compat_create_cq: SkippedFn,
        poll_cq: Option<unsafe extern "C" fn(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int>,
        req_notify_cq: SkippedFn,
        _compat_cq_event: SkippedFn,
        _compat_resize_cq: SkippedFn,
        _compat_destroy_cq: SkippedFn,
        _compat_create_srq: SkippedFn,
        _compat_modify_srq: SkippedFn,
        _compat_query_srq: SkippedFn,
        _compat_destroy_srq: SkippedFn,
        post_srq_recv: SkippedFn,
        _compat_create_qp: SkippedFn,
        _compat_query_qp: SkippedFn,
        _compat_modify_qp: SkippedFn,
        _compat_destroy_qp: SkippedFn,
        post_send: Option<
            unsafe extern "C" fn(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int
        >,
        post_recv: Option<
            unsafe extern "C" fn(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int
        >,
        _compat_create_ah: SkippedFn,
        _compat_destroy_ah: SkippedFn,
        _compat_attach_mcast: SkippedFn,
        _compat_detach_mcast: SkippedFn,
        _compat_async_event: SkippedFn,
    }

    /// An opened device.
    fixed struct ibv_context {
        device: *mut ibv_device,
        ops: ibv_context_ops,
        cmd_fd: c_int,
        /// Readable when there is an asynchronous event; may be made non-blocking.
        async_fd: c_int,
        num_comp_vectors: c_int,
        mutex: libc::pthread_mutex_t,
        /// [`VERBS_ABI_IS_EXTENDED`] if the context is the end of a [`verbs_context`].
        abi_compat: *mut c_void,
    }

    /// What stands before a context in memory: operations that not every provider or version has.
    ///
    /// New operations are added at the front; [`sz`](verbs_context::sz) says how many bytes there are.
    upward struct verbs_context {
        query_port: Option<
            unsafe extern "C" fn(
                context: *mut ibv_context,
                port_num: u8,
                port_attr: *mut ibv_port_attr,
                port_attr_len: usize
            ) -> c_int
        >,
        advise_mr: SkippedFn,
        alloc_null_mr: SkippedFn,
        read_counters: SkippedFn,
        attach_counters_point_flow: SkippedFn,
        create_counters: SkippedFn,
        destroy_counters: SkippedFn,
        reg_dm_mr: Option<
            unsafe extern "C" fn(
                pd: *mut ibv_pd,
                dm: *mut ibv_dm,
                dm_offset: u64,
                length: usize,
                access: c_uint
            ) -> *mut ibv_mr
        >,
        alloc_dm: Option<
            unsafe extern "C" fn(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm
        >,
        free_dm: Option<unsafe extern "C" fn(dm: *mut ibv_dm) -> c_int>,
        modify_flow_action_esp: SkippedFn,
        destroy_flow_action: SkippedFn,
        create_flow_action_esp: SkippedFn,
        modify_qp_rate_limit: SkippedFn,
        alloc_parent_domain: SkippedFn,
        dealloc_td: SkippedFn,
        alloc_td: SkippedFn,
        modify_cq: SkippedFn,
        post_srq_ops: SkippedFn,
        destroy_rwq_ind_table: SkippedFn,
        create_rwq_ind_table: SkippedFn,
        destroy_wq: SkippedFn,
        modify_wq: SkippedFn,
        create_wq: SkippedFn,
        query_rt_values: SkippedFn,
        create_cq_ex: Option<
            unsafe extern "C" fn(context: *mut ibv_context, init_attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex
        >,
        _priv as "priv": Skipped<*mut c_void>,
        query_device_ex: Option<
            unsafe extern "C" fn(
                context: *mut ibv_context,
                input: *const ibv_query_device_ex_input,
                attr: *mut ibv_device_attr_ex,
                attr_size: usize
            ) -> c_int
        >,
        ibv_destroy_flow: SkippedFn,
        _placeholder2 as "ABI_placeholder2": SkippedFn,
        ibv_create_flow: SkippedFn,
        _placeholder1 as "ABI_placeholder1": SkippedFn,
        open_qp: SkippedFn,
        create_qp_ex: Option<
            unsafe extern "C" fn(context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp
        >,
        get_srq_num: SkippedFn,
        create_srq_ex: SkippedFn,
        open_xrcd: SkippedFn,
        close_xrcd: SkippedFn,
        _placeholder3 as "_ABI_placeholder3": u64,
        /// Bytes of this structure, the context included.
        sz: usize,
        context: ibv_context,
    }

    /// What an asynchronous event is about.
    #[derive(Clone, Copy)]
    fixed union ibv_async_element as "__typeof__(((struct ibv_async_event *)0)->element)" {
        cq: *mut ibv_cq,
        qp: *mut ibv_qp,
        port_num: c_int,
    }

    /// Something that happened; each is acknowledged once.
    #[derive(Clone, Copy)]
    fixed struct ibv_async_event {
        /// `cq` for [`IBV_EVENT_CQ_ERR`], `qp` for events named `QP` and for [`IBV_EVENT_COMM_EST`] and
        /// [`IBV_EVENT_SQ_DRAINED`]; else the port, or nothing for [`IBV_EVENT_DEVICE_FATAL`].
        element: ibv_async_element,
        event_type: ibv_event_type,
    }
}

/// The value of [`ibv_context::abi_compat`] where the context is the end of a [`verbs_context`].
pub const VERBS_ABI_IS_EXTENDED: *mut c_void = core::ptr::without_provenance_mut(usize::MAX);

/// The extended context around `context`, or null if it has none.
///
/// # Safety
/// `context` is an open context, and was obtained as a pointer to the whole allocation of the library (as those that
/// the library returns are).
#[inline]
pub unsafe fn verbs_get_ctx(context: *mut ibv_context) -> *mut verbs_context {
    // SAFETY: the context is open. If it says that it is extended, it is the last field of a `verbs_context`, so going
    // back by the field's offset stays inside: the library is of version 32 or later (the loader asks for a symbol of
    // that version), whose structure is as long as ours or longer.
    unsafe {
        if (*context).abi_compat != VERBS_ABI_IS_EXTENDED {
            return core::ptr::null_mut();
        }
        context.byte_sub(offset_of!(verbs_context, context)).cast()
    }
}

/// An operation of the extended context of `$context`; `None` if the library or the provider does not have it. To be
/// used under the contract of [`verbs_get_ctx`].
macro_rules! extended_op {
    ($context:expr, $operation:ident) => {{
        let extended = verbs_get_ctx($context);
        let needed = size_of::<verbs_context>() - core::mem::offset_of!(verbs_context, $operation);
        if extended.is_null() || (*extended).sz < needed { None } else { (*extended).$operation }
    }};
}

pub(crate) use extended_op;

/// Sets `errno`, for functions that return null on failure.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the location of this thread's errno is valid to write for as long as the thread lives.
    unsafe { *libc::__errno_location() = errno };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ibv_create_cq_ex, ibv_poll_cq, ibv_post_send, ibv_wc_status};
    use std::io;

    /// A context that a test made, with these operations.
    fn stub(ops: ibv_context_ops) -> Box<verbs_context> {
        // SAFETY: integers, raw pointers, optional functions and a mutex, for all of which zero is valid.
        let mut stub: Box<verbs_context> = unsafe { Box::new(core::mem::zeroed()) };
        stub.sz = size_of::<verbs_context>();
        stub.context.abi_compat = VERBS_ABI_IS_EXTENDED;
        stub.context.ops = ops;
        stub
    }

    fn context_of(stub: &mut verbs_context) -> *mut ibv_context {
        // By way of the whole, so that the pointer is good for all of it.
        (&raw mut *stub).wrapping_byte_add(offset_of!(verbs_context, context)).cast()
    }

    unsafe extern "C" fn query_port(
        _: *mut ibv_context,
        port_num: u8,
        attr: *mut ibv_port_attr,
        attr_len: usize,
    ) -> c_int {
        assert_eq!(attr_len, size_of::<ibv_port_attr>());
        // SAFETY: the caller's attributes are valid to write.
        unsafe { (*attr).lid = port_num.into() };
        0
    }

    #[test]
    fn operations_are_found_if_they_are_there() {
        let mut stub = stub(ibv_context_ops::default());
        stub.query_port = Some(query_port);
        let context = context_of(&mut stub);
        let (mut attr, mut input) = (ibv_port_attr::default(), ibv_cq_init_attr_ex::default());
        // SAFETY: the stub is alive and whole.
        unsafe {
            assert_eq!(extended_op!(context, query_port).unwrap()(context, 7, &mut attr, size_of_val(&attr)), 0);
            assert!(ibv_create_cq_ex(context, &mut input).is_null());
        }
        assert_eq!(attr.lid, 7);
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EOPNOTSUPP));
        // An older library's structure ends before the newest operation.
        stub.sz -= 1;
        let context = context_of(&mut stub);
        // SAFETY: as above.
        assert!(unsafe { extended_op!(context, query_port) }.is_none());
        stub.context.abi_compat = core::ptr::null_mut();
        let context = context_of(&mut stub);
        // SAFETY: as above.
        assert!(unsafe { verbs_get_ctx(context) }.is_null());
    }

    unsafe extern "C" fn post_send(_: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int {
        // SAFETY: the caller's request is valid to read, and there is room for a pointer.
        unsafe {
            assert_eq!((*wr).wr_id, 11);
            *bad_wr = wr;
        }
        libc::ENOMEM
    }

    unsafe extern "C" fn poll_cq(_: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
        assert_eq!(num_entries, 1);
        // SAFETY: the caller has room for one completion.
        unsafe { (*wc).status = crate::IBV_WC_RETRY_EXC_ERR };
        1
    }

    #[test]
    fn posting_and_polling_call_the_context() {
        let ops = ibv_context_ops { post_send: Some(post_send), poll_cq: Some(poll_cq), ..Default::default() };
        let mut stub = stub(ops);
        let context = context_of(&mut stub);
        let (mut request, mut bad) = (ibv_send_wr { wr_id: 11, ..Default::default() }, core::ptr::null_mut());
        let mut completion = ibv_wc::default();
        // SAFETY: zero is valid for both, as for the context; all are alive for the calls.
        let status: ibv_wc_status = unsafe {
            let (mut qp, mut cq): (ibv_qp, ibv_cq) = core::mem::zeroed();
            (qp.context, cq.context) = (context, context);
            assert_eq!(ibv_post_send(&mut qp, &mut request, &mut bad), libc::ENOMEM);
            assert_eq!(ibv_poll_cq(&mut cq, 1, &mut completion), 1);
            completion.status
        };
        assert_eq!(bad, &raw mut request);
        assert_eq!(status, crate::IBV_WC_RETRY_EXC_ERR);
    }
}
