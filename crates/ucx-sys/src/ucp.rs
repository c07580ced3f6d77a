//! Types of UCP: parameters of contexts, workers, endpoints, active messages and operations.
//!
//! Most have a mask of the fields that are set, so that newer versions of UCX can add fields behind.

#![allow(missing_docs, reason = "fields and constants are those of the header, and documented where it matters")]

use core::ffi::{c_char, c_int, c_uint, c_void};

use farfield_c_decl::{c_constants, c_opaque, c_types};

use crate::{Skipped, SkippedFn, ucs_memory_type_t, ucs_status_t, ucs_thread_mode_t};

c_constants! {
    /// Bits of [`ucp_params_t::field_mask`].
    flags ucp_params_field: u64 {
        UCP_PARAM_FIELD_FEATURES = 1 << 0,
        UCP_PARAM_FIELD_MT_WORKERS_SHARED = 1 << 5,
        UCP_PARAM_FIELD_ESTIMATED_NUM_EPS = 1 << 6,
        UCP_PARAM_FIELD_NAME = 1 << 8,
    }

    /// Bits of [`ucp_params_t::features`]: the uses of a context.
    flags ucp_feature: u64 {
        UCP_FEATURE_TAG = 1 << 0,
        UCP_FEATURE_RMA = 1 << 1,
        UCP_FEATURE_AMO32 = 1 << 2,
        UCP_FEATURE_AMO64 = 1 << 3,
        UCP_FEATURE_WAKEUP = 1 << 4,
        UCP_FEATURE_STREAM = 1 << 5,
        UCP_FEATURE_AM = 1 << 6,
    }

    /// Bits of [`ucp_context_attr_t::field_mask`].
    flags ucp_context_attr_field: u64 {
        UCP_ATTR_FIELD_REQUEST_SIZE = 1 << 0,
        UCP_ATTR_FIELD_THREAD_MODE = 1 << 1,
        UCP_ATTR_FIELD_MEMORY_TYPES = 1 << 2,
        UCP_ATTR_FIELD_NAME = 1 << 3,
    }

    /// Bits of [`ucp_worker_params_t::field_mask`].
    flags ucp_worker_params_field: u64 {
        UCP_WORKER_PARAM_FIELD_THREAD_MODE = 1 << 0,
        UCP_WORKER_PARAM_FIELD_EVENTS = 1 << 2,
        UCP_WORKER_PARAM_FIELD_USER_DATA = 1 << 3,
        UCP_WORKER_PARAM_FIELD_EVENT_FD = 1 << 4,
        UCP_WORKER_PARAM_FIELD_FLAGS = 1 << 5,
        UCP_WORKER_PARAM_FIELD_NAME = 1 << 6,
        UCP_WORKER_PARAM_FIELD_AM_ALIGNMENT = 1 << 7,
    }

    /// Bits of [`ucp_worker_params_t::flags`].
    flags ucp_worker_flags_t: u64 {
        /// Warns of no request that is not freed when the worker is destroyed.
        UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK = 1 << 0,
    }

    /// Bits of [`ucp_worker_attr_t::field_mask`].
    flags ucp_worker_attr_field: u64 {
        UCP_WORKER_ATTR_FIELD_THREAD_MODE = 1 << 0,
        UCP_WORKER_ATTR_FIELD_ADDRESS = 1 << 1,
        UCP_WORKER_ATTR_FIELD_ADDRESS_FLAGS = 1 << 2,
        UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER = 1 << 3,
        UCP_WORKER_ATTR_FIELD_NAME = 1 << 4,
    }

    /// Bits of [`ucp_worker_params_t::events`]: the events that make the event descriptor readable.
    flags ucp_wakeup_event_t: c_uint {
        UCP_WAKEUP_RMA = 1 << 0,
        UCP_WAKEUP_AMO = 1 << 1,
        UCP_WAKEUP_TAG_SEND = 1 << 2,
        UCP_WAKEUP_TAG_RECV = 1 << 3,
        UCP_WAKEUP_TX = 1 << 10,
        UCP_WAKEUP_RX = 1 << 11,
        UCP_WAKEUP_EDGE = 1 << 16,
    }

    /// Bits of [`ucp_ep_params_t::field_mask`].
    flags ucp_ep_params_field: u64 {
        UCP_EP_PARAM_FIELD_REMOTE_ADDRESS = 1 << 0,
        UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE = 1 << 1,
        UCP_EP_PARAM_FIELD_ERR_HANDLER = 1 << 2,
        UCP_EP_PARAM_FIELD_USER_DATA = 1 << 3,
        UCP_EP_PARAM_FIELD_FLAGS = 1 << 5,
        UCP_EP_PARAM_FIELD_NAME = 1 << 7,
    }

    /// Whether an endpoint reports the failure of its peer.
    enum ucp_err_handling_mode_t: c_uint {
        UCP_ERR_HANDLING_MODE_NONE = 0,
        UCP_ERR_HANDLING_MODE_PEER = 1,
    }

    /// Bits of [`ucp_request_param_t::flags`] when an endpoint is closed.
    flags ucp_ep_close_flags_t: u32 {
        /// Waits for nothing of the peer. Operations in flight end with `UCS_ERR_CANCELED`.
        UCP_EP_CLOSE_FLAG_FORCE = 1 << 0,
    }

    /// Bits of [`ucp_request_param_t::op_attr_mask`]: the fields that are set, and properties of the operation.
    flags ucp_op_attr_t: u32 {
        UCP_OP_ATTR_FIELD_REQUEST = 1 << 0,
        UCP_OP_ATTR_FIELD_CALLBACK = 1 << 1,
        UCP_OP_ATTR_FIELD_USER_DATA = 1 << 2,
        UCP_OP_ATTR_FIELD_DATATYPE = 1 << 3,
        UCP_OP_ATTR_FIELD_FLAGS = 1 << 4,
        UCP_OP_ATTR_FIELD_MEMORY_TYPE = 1 << 6,
        UCP_OP_ATTR_FIELD_RECV_INFO = 1 << 7,
        UCP_OP_ATTR_FIELD_MEMH = 1 << 8,
        UCP_OP_ATTR_FLAG_NO_IMM_CMPL = 1 << 16,
        UCP_OP_ATTR_FLAG_FAST_CMPL = 1 << 17,
        UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL = 1 << 18,
        UCP_OP_ATTR_FLAG_MULTI_SEND = 1 << 19,
    }

    /// Bits of [`ucp_request_param_t::flags`] when an active message is sent.
    flags ucp_send_am_flags: u32 {
        UCP_AM_SEND_FLAG_REPLY = 1 << 0,
        UCP_AM_SEND_FLAG_EAGER = 1 << 1,
        UCP_AM_SEND_FLAG_RNDV = 1 << 2,
    }

    /// Bits of [`ucp_am_handler_param_t::flags`].
    flags ucp_am_cb_flags: u32 {
        /// One call for a whole message.
        UCP_AM_FLAG_WHOLE_MSG = 1 << 0,
        /// The data can always be kept after the call.
        UCP_AM_FLAG_PERSISTENT_DATA = 1 << 1,
    }

    /// Bits of [`ucp_am_handler_param_t::field_mask`].
    flags ucp_am_handler_param_field: u64 {
        UCP_AM_HANDLER_PARAM_FIELD_ID = 1 << 0,
        UCP_AM_HANDLER_PARAM_FIELD_FLAGS = 1 << 1,
        UCP_AM_HANDLER_PARAM_FIELD_CB = 1 << 2,
        UCP_AM_HANDLER_PARAM_FIELD_ARG = 1 << 3,
    }

    /// Bits of [`ucp_am_recv_param_t::recv_attr`].
    flags ucp_am_recv_attr_t: u64 {
        UCP_AM_RECV_ATTR_FIELD_REPLY_EP = 1 << 0,
        /// The data may be kept: the handler returns `UCS_INPROGRESS`, and releases it later.
        UCP_AM_RECV_ATTR_FLAG_DATA = 1 << 16,
        /// The data is a descriptor, to be received by `ucp_am_recv_data_nbx`.
        UCP_AM_RECV_ATTR_FLAG_RNDV = 1 << 17,
    }
}

c_opaque! {
    /// A context: the transports and devices in use.
    ucp_context,
    /// The configuration of a context.
    ucp_config,
    /// A worker: connections, and the progress of their operations.
    ucp_worker,
    /// A connection from a worker to another one.
    ucp_ep,
    /// The address of a worker.
    ucp_address,
    /// Registered memory. This crate makes none.
    ucp_mem,
    /// A request for a connection. This crate makes none.
    ucp_conn_request,
}

c_types! {
    /// The parameters of a new context.
    #[derive(Clone, Copy, Debug, Default)]
    growing struct ucp_params_t {
        field_mask: u64,
        features: u64,
        request_size: usize,
        request_init: SkippedFn,
        request_cleanup: SkippedFn,
        tag_sender_mask: u64,
        /// Whether several threads use workers of it at a time.
        mt_workers_shared: c_int,
        estimated_num_eps: usize,
        estimated_num_ppn: usize,
        name: *const c_char,
    }

    /// The attributes of a context.
    #[derive(Clone, Copy, Debug, Default)]
    growing struct ucp_context_attr_t {
        field_mask: u64,
        request_size: usize,
        thread_mode: ucs_thread_mode_t,
        memory_types: u64,
        name: [c_char; 32],
    }

    /// The parameters of a new worker.
    #[derive(Clone, Copy, Debug, Default)]
    growing struct ucp_worker_params_t {
        field_mask: u64,
        thread_mode: ucs_thread_mode_t,
        cpu_mask: Skipped<[u64; 16]>,
        events: c_uint,
        user_data: *mut c_void,
        event_fd: c_int,
        flags: u64,
        name: *const c_char,
        am_alignment: usize,
        client_id: u64,
    }

    /// The attributes of a worker.
    #[derive(Clone, Copy, Debug, Default)]
    growing struct ucp_worker_attr_t {
        field_mask: u64,
        thread_mode: ucs_thread_mode_t,
        address_flags: u32,
        address: *mut ucp_address,
        address_length: usize,
        /// The longest header of an active message, in bytes.
        max_am_header: usize,
        name: [c_char; 32],
        max_debug_string: usize,
    }

    /// The function that is told when an endpoint fails, and its argument.
    #[derive(Clone, Copy, Debug, Default)]
    fixed struct ucp_err_handler_t {
        cb: Option<unsafe extern "C" fn(arg: *mut c_void, ep: *mut ucp_ep, status: ucs_status_t)>,
        arg: *mut c_void,
    }

    /// The parameters of a new endpoint.
    #[derive(Clone, Copy, Debug, Default)]
    growing struct ucp_ep_params_t {
        field_mask: u64,
        address: *const ucp_address,
        err_mode: ucp_err_handling_mode_t,
        err_handler: ucp_err_handler_t,
        user_data: *mut c_void,
        flags: c_uint,
        sockaddr: Skipped<[usize; 2]>,
        conn_request: *mut ucp_conn_request,
        name: *const c_char,
        local_sockaddr: Skipped<[usize; 2]>,
    }

    /// A handler of active messages.
    #[derive(Clone, Copy, Debug, Default)]
    growing struct ucp_am_handler_param_t {
        field_mask: u64,
        id: c_uint,
        flags: u32,
        /// Null takes the handler away.
        cb: Option<
            unsafe extern "C" fn(
                arg: *mut c_void,
                header: *const c_void,
                header_length: usize,
                data: *mut c_void,
                length: usize,
                param: *const ucp_am_recv_param_t
            ) -> ucs_status_t
        >,
        arg: *mut c_void,
    }

    /// The attributes of a message, for its handler.
    #[derive(Clone, Copy, Debug, Default)]
    growing struct ucp_am_recv_param_t {
        recv_attr: u64,
        reply_ep: *mut ucp_ep,
    }

    /// The function that is called when an operation is complete.
    #[derive(Clone, Copy)]
    fixed union ucp_request_callback as "__typeof__(((ucp_request_param_t *)0)->cb)" {
        send: Option<unsafe extern "C" fn(request: *mut c_void, status: ucs_status_t, user_data: *mut c_void)>,
        recv_am: Option<
            unsafe extern "C" fn(request: *mut c_void, status: ucs_status_t, length: usize, user_data: *mut c_void)
        >,
    }

    /// How an operation is to be done.
    #[derive(Clone, Copy, Default)]
    growing struct ucp_request_param_t {
        op_attr_mask: ucp_op_attr_t,
        flags: u32,
        request: *mut c_void,
        cb: ucp_request_callback,
        /// Bytes if it is not set.
        datatype: u64,
        user_data: *mut c_void,
        reply_buffer: Skipped<*mut c_void>,
        memory_type: ucs_memory_type_t,
        recv_info as "recv_info.length": *mut usize,
        memh: *mut ucp_mem,
    }
}

impl Default for ucp_request_callback {
    fn default() -> Self {
        ucp_request_callback { send: None }
    }
}
