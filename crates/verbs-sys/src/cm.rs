//! Connections by rdma_cm: identifiers, their events, and what is exchanged.

#![allow(missing_docs, reason = "fields and constants are those of the manual pages, and documented where it matters")]

use core::ffi::{c_int, c_uint, c_void};

use crate::declare::{c_constants, c_types};
use crate::{Skipped, be16, ibv_comp_channel, ibv_context, ibv_cq, ibv_gid, ibv_pd, ibv_qp, ibv_qp_type};

c_constants! {
    /// What happened to a connection.
    enum rdma_cm_event_type: c_uint {
        RDMA_CM_EVENT_ADDR_RESOLVED = 0,
        RDMA_CM_EVENT_ADDR_ERROR = 1,
        RDMA_CM_EVENT_ROUTE_RESOLVED = 2,
        RDMA_CM_EVENT_ROUTE_ERROR = 3,
        RDMA_CM_EVENT_CONNECT_REQUEST = 4,
        RDMA_CM_EVENT_CONNECT_RESPONSE = 5,
        RDMA_CM_EVENT_CONNECT_ERROR = 6,
        RDMA_CM_EVENT_UNREACHABLE = 7,
        RDMA_CM_EVENT_REJECTED = 8,
        RDMA_CM_EVENT_ESTABLISHED = 9,
        RDMA_CM_EVENT_DISCONNECTED = 10,
        RDMA_CM_EVENT_DEVICE_REMOVAL = 11,
        RDMA_CM_EVENT_MULTICAST_JOIN = 12,
        RDMA_CM_EVENT_MULTICAST_ERROR = 13,
        RDMA_CM_EVENT_ADDR_CHANGE = 14,
        RDMA_CM_EVENT_TIMEWAIT_EXIT = 15,
    }

    /// What kind of connection it is; others than reliable ones are left out.
    enum rdma_port_space: c_uint {
        RDMA_PS_TCP = 0x0106,
    }

    /// What an option belongs to.
    flags rdma_option_level: c_int {
        RDMA_OPTION_ID = 0,
        RDMA_OPTION_IB = 1,
    }

    /// Options of level [`RDMA_OPTION_ID`].
    flags rdma_option_id: c_int {
        /// `u8`.
        RDMA_OPTION_ID_TOS = 0,
        /// `c_int`.
        RDMA_OPTION_ID_REUSEADDR = 1,
        /// `c_int`: IPv6 only.
        RDMA_OPTION_ID_AFONLY = 2,
        /// `u8`: as [`timeout`](crate::ibv_qp_attr::timeout).
        RDMA_OPTION_ID_ACK_TIMEOUT = 3,
    }

    /// For [`rdma_conn_param`]: as many reads and atomics as the device allows.
    flags rdma_max_resources: u8 {
        RDMA_MAX_RESP_RES = 0xff,
        RDMA_MAX_INIT_DEPTH = 0xff,
    }
}

c_types! {
    /// The InfiniBand addresses of both ends.
    #[derive(Clone, Copy, Debug, Default)]
    fixed struct rdma_ib_addr {
        sgid: ibv_gid,
        dgid: ibv_gid,
        pkey: be16,
    }

    /// The addresses of both ends.
    #[derive(Clone, Copy)]
    fixed struct rdma_addr {
        src as "src_storage": libc::sockaddr_storage,
        dst as "dst_storage": libc::sockaddr_storage,
        ibaddr as "addr.ibaddr": rdma_ib_addr,
    }

    /// The way from one end to the other.
    #[derive(Clone, Copy)]
    fixed struct rdma_route {
        addr: rdma_addr,
        path_rec: Skipped<*mut c_void>,
        num_paths: c_int,
    }

    /// Where events arrive.
    fixed struct rdma_event_channel {
        /// Readable when there is an event; may be made non-blocking.
        fd: c_int,
    }

    /// One end of a connection.
    growing struct rdma_cm_id {
        /// The device, once the address is resolved or bound to one. The library's own: not to be closed.
        verbs: *mut ibv_context,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        qp: *mut ibv_qp,
        route: rdma_route,
        ps: rdma_port_space,
        port_num: u8,
        event: *mut rdma_cm_event,
        send_cq_channel: *mut ibv_comp_channel,
        send_cq: *mut ibv_cq,
        recv_cq_channel: *mut ibv_comp_channel,
        recv_cq: *mut ibv_cq,
        srq: Skipped<*mut c_void>,
        pd: *mut ibv_pd,
        qp_type: ibv_qp_type,
    }

    /// What the ends of a connection tell each other.
    #[derive(Clone, Copy, Debug, Default)]
    fixed struct rdma_conn_param {
        private_data: *const c_void,
        private_data_len: u8,
        responder_resources: u8,
        initiator_depth: u8,
        flow_control: u8,
        /// At most 6: some devices take 7 for no limit. Not used by who accepts.
        retry_count: u8,
        /// 7 is no limit.
        rnr_retry_count: u8,
        srq: u8,
        /// For queue pairs that the program makes and moves by itself; else 0.
        qp_num: u32,
    }

    /// Something that happened to an identifier; each is acknowledged once.
    growing struct rdma_cm_event {
        id: *mut rdma_cm_id,
        listen_id: *mut rdma_cm_id,
        event: rdma_cm_event_type,
        /// Minus an errno value; for [`RDMA_CM_EVENT_REJECTED`] the reason of the InfiniBand specification.
        status: c_int,
        conn as "param.conn": rdma_conn_param,
    }
}

/// The local address of an identifier that is bound or resolved.
///
/// # Safety
/// `id` is alive.
pub unsafe fn rdma_get_local_addr(id: *mut rdma_cm_id) -> *mut libc::sockaddr {
    // SAFETY: by the contract of this function.
    unsafe { (&raw mut (*id).route.addr.src).cast() }
}

/// The peer's address of an identifier that is resolved or connected.
///
/// # Safety
/// `id` is alive.
pub unsafe fn rdma_get_peer_addr(id: *mut rdma_cm_id) -> *mut libc::sockaddr {
    // SAFETY: by the contract of this function.
    unsafe { (&raw mut (*id).route.addr.dst).cast() }
}
