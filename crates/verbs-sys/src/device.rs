//! Devices, their ports and addresses, opened contexts, and asynchronous events.

#![allow(missing_docs, reason = "fields and constants are those of the manual pages, and documented where it matters")]

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::mem::offset_of;

use crate::declare::{c_constants, c_types};
use crate::{
    Skipped, SkippedFn, Verbs, be64, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_mw, ibv_mw_type, ibv_pd, ibv_qp,
    ibv_qp_init_attr_ex, ibv_recv_wr, ibv_send_wr, ibv_wc,
};

c_constants! {
    /// What kind of device it is.
    enum ibv_node_type: c_int {
        IBV_NODE_UNKNOWN = -1,
        IBV_NODE_CA = 1,
        IBV_NODE_SWITCH = 2,
        IBV_NODE_ROUTER = 3,
        IBV_NODE_RNIC = 4,
        IBV_NODE_USNIC = 5,
        IBV_NODE_USNIC_UDP = 6,
        IBV_NODE_UNSPECIFIED = 7,
    }

    /// What a device speaks.
    enum ibv_transport_type: c_int {
        IBV_TRANSPORT_UNKNOWN = -1,
        IBV_TRANSPORT_IB = 0,
        IBV_TRANSPORT_IWARP = 1,
        IBV_TRANSPORT_USNIC = 2,
        IBV_TRANSPORT_USNIC_UDP = 3,
        IBV_TRANSPORT_UNSPECIFIED = 4,
    }

    /// Bits of [`ibv_device_attr::device_cap_flags`], those that matter here.
    flags ibv_device_cap_flags: c_uint {
        IBV_DEVICE_RC_RNR_NAK_GEN = 1 << 12,
        IBV_DEVICE_MEM_WINDOW = 1 << 17,
        IBV_DEVICE_MEM_MGT_EXTENSIONS = 1 << 21,
        IBV_DEVICE_MEM_WINDOW_TYPE_2A = 1 << 23,
        IBV_DEVICE_MEM_WINDOW_TYPE_2B = 1 << 24,
    }

    /// What remote atomics are atomic with: nothing, other remote atomics through the same device, or everything.
    enum ibv_atomic_cap: c_uint {
        IBV_ATOMIC_NONE = 0,
        IBV_ATOMIC_HCA = 1,
        IBV_ATOMIC_GLOB = 2,
    }

    /// Bits of the fields of [`ibv_pci_atomic_caps`].
    flags ibv_pci_atomic_op_size: u16 {
        IBV_PCI_ATOMIC_OPERATION_4_BYTE_SIZE_SUP = 1 << 0,
        IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP = 1 << 1,
        IBV_PCI_ATOMIC_OPERATION_16_BYTE_SIZE_SUP = 1 << 2,
    }

    /// The size of packets: 128 bytes times two to this power.
    enum ibv_mtu: c_uint {
        IBV_MTU_256 = 1,
        IBV_MTU_512 = 2,
        IBV_MTU_1024 = 3,
        IBV_MTU_2048 = 4,
        IBV_MTU_4096 = 5,
    }

    /// Where a port is; only an active one carries data.
    enum ibv_port_state: c_uint {
        IBV_PORT_NOP = 0,
        IBV_PORT_DOWN = 1,
        IBV_PORT_INIT = 2,
        IBV_PORT_ARMED = 3,
        IBV_PORT_ACTIVE = 4,
        IBV_PORT_ACTIVE_DEFER = 5,
    }

    /// Values of [`ibv_port_attr::link_layer`].
    flags ibv_link_layer: u8 {
        IBV_LINK_LAYER_UNSPECIFIED = 0,
        IBV_LINK_LAYER_INFINIBAND = 1,
        IBV_LINK_LAYER_ETHERNET = 2,
    }

    /// Bits of [`ibv_port_attr::flags`].
    flags ibv_qpf_flags: u8 {
        /// Packets of this port need a global route header, on InfiniBand too.
        IBV_QPF_GRH_REQUIRED = 1 << 0,
    }

    /// What a GID stands for: an InfiniBand address, or one of either version of RoCE.
    enum ibv_gid_type: c_uint {
        IBV_GID_TYPE_IB = 0,
        IBV_GID_TYPE_ROCE_V1 = 1,
        IBV_GID_TYPE_ROCE_V2 = 2,
    }

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

    /// Whether `fork` is prepared for.
    enum ibv_fork_status: c_uint {
        IBV_FORK_DISABLED = 0,
        IBV_FORK_ENABLED = 1,
        IBV_FORK_UNNEEDED = 2,
    }
}

c_types! {
    /// A port's address in the network; an IPv4 address is there as `::ffff:a.b.c.d`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[repr(align(8))]
    fixed struct ibv_gid as "union ibv_gid" {
        raw: [u8; 16],
    }

    /// A line of a GID table.
    #[derive(Clone, Copy, Debug, Default)]
    growing struct ibv_gid_entry {
        gid: ibv_gid,
        gid_index: u32,
        port_num: u32,
        /// One of [`ibv_gid_type`].
        gid_type: u32,
        /// The network interface that it belongs to, 0 for none.
        ndev_ifindex: u32,
    }

    /// A device that can be opened. The list that it came from owns it until then.
    growing struct ibv_device {
        _ops: Skipped<[*const c_void; 2]>,
        node_type: ibv_node_type,
        transport_type: ibv_transport_type,
        /// The kernel's name, as `mlx5_0`.
        name: [c_char; 64],
        dev_name: [c_char; 64],
        dev_path: [c_char; 256],
        ibdev_path: [c_char; 256],
    }

    /// What a device can do.
    #[derive(Clone, Copy, Debug)]
    fixed struct ibv_device_attr {
        fw_ver: [c_char; 64],
        node_guid: be64,
        sys_image_guid: be64,
        max_mr_size: u64,
        page_size_cap: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        hw_ver: u32,
        max_qp: c_int,
        max_qp_wr: c_int,
        device_cap_flags: ibv_device_cap_flags,
        max_sge: c_int,
        max_sge_rd: c_int,
        max_cq: c_int,
        max_cqe: c_int,
        max_mr: c_int,
        max_pd: c_int,
        /// Reads and atomics that a queue pair has open as a target.
        max_qp_rd_atom: c_int,
        max_ee_rd_atom: c_int,
        max_res_rd_atom: c_int,
        /// Reads and atomics that a queue pair has open as their origin.
        max_qp_init_rd_atom: c_int,
        max_ee_init_rd_atom: c_int,
        atomic_cap: ibv_atomic_cap,
        max_ee: c_int,
        max_rdd: c_int,
        max_mw: c_int,
        max_raw_ipv6_qp: c_int,
        max_raw_ethy_qp: c_int,
        max_mcast_grp: c_int,
        max_mcast_qp_attach: c_int,
        max_total_mcast_qp_attach: c_int,
        max_ah: c_int,
        max_fmr: c_int,
        max_map_per_fmr: c_int,
        max_srq: c_int,
        max_srq_wr: c_int,
        max_srq_sge: c_int,
        max_pkeys: u16,
        local_ca_ack_delay: u8,
        phys_port_cnt: u8,
    }

    /// What an extended query asks for: nothing but everything, so far.
    #[derive(Clone, Copy, Debug, Default)]
    fixed struct ibv_query_device_ex_input {
        comp_mask: u32,
    }

    /// Sizes of the atomics that the device does on the PCI bus, as bits; 0 where it does none there.
    #[derive(Clone, Copy, Debug, Default)]
    fixed struct ibv_pci_atomic_caps {
        fetch_add: ibv_pci_atomic_op_size,
        swap: ibv_pci_atomic_op_size,
        compare_swap: ibv_pci_atomic_op_size,
    }

    /// What a device can do, with what was added later.
    #[derive(Clone, Copy, Debug)]
    growing struct ibv_device_attr_ex {
        orig_attr: ibv_device_attr,
        comp_mask: u32,
        odp_caps: Skipped<[u64; 3]>,
        completion_timestamp_mask: u64,
        hca_core_clock: u64,
        device_cap_flags_ex: u64,
        tso_caps: Skipped<[u32; 2]>,
        rss_caps: Skipped<[u64; 4]>,
        max_wq_type_rq: u32,
        packet_pacing_caps: Skipped<[u32; 3]>,
        raw_packet_caps: u32,
        tm_caps: Skipped<[u32; 5]>,
        cq_mod_caps: Skipped<[u16; 2]>,
        /// Bytes of memory on the device that can be allocated.
        max_dm_size: u64,
        pci_atomic_caps: ibv_pci_atomic_caps,
        xrc_odp_caps: u32,
        phys_port_cnt_ex: u32,
    }

    /// What a port can do and how it is.
    #[derive(Clone, Copy, Debug, Default)]
    growing struct ibv_port_attr {
        state: ibv_port_state,
        max_mtu: ibv_mtu,
        active_mtu: ibv_mtu,
        gid_tbl_len: c_int,
        port_cap_flags: u32,
        max_msg_sz: u32,
        bad_pkey_cntr: u32,
        qkey_viol_cntr: u32,
        pkey_tbl_len: u16,
        /// The address in an InfiniBand subnet; 0 on Ethernet.
        lid: u16,
        sm_lid: u16,
        lmc: u8,
        max_vl_num: u8,
        sm_sl: u8,
        subnet_timeout: u8,
        init_type_reply: u8,
        active_width: u8,
        active_speed: u8,
        phys_state: u8,
        link_layer: ibv_link_layer,
        flags: ibv_qpf_flags,
        port_cap_flags2: u16,
    }

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
        alloc_mw: Option<unsafe extern "C" fn(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw>,
        bind_mw: SkippedFn,
        dealloc_mw: Option<unsafe extern "C" fn(mw: *mut ibv_mw) -> c_int>,
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
        reg_dm_mr: SkippedFn,
        alloc_dm: SkippedFn,
        free_dm: SkippedFn,
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
        /// `cq` for [`IBV_EVENT_CQ_ERR`], `qp` for what is named `QP` and for [`IBV_EVENT_COMM_EST`] and
        /// [`IBV_EVENT_SQ_DRAINED`]; else the port, or nothing for [`IBV_EVENT_DEVICE_FATAL`].
        element: ibv_async_element,
        event_type: ibv_event_type,
    }
}

/// The first version of [`ibv_port_attr`], which the symbol `ibv_query_port` fills in.
#[repr(C)]
pub struct _compat_ibv_port_attr {
    _opaque: [u8; 0],
}

/// What [`ibv_context::abi_compat`] holds where the context is the end of a [`verbs_context`].
pub const VERBS_ABI_IS_EXTENDED: *mut c_void = core::ptr::without_provenance_mut(usize::MAX);

/// The extended context around `context`, or null if it has none.
///
/// # Safety
/// `context` is an open context, and was obtained as a pointer to all of what the library allocated (as those that the
/// library returns are).
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

/// An operation of the extended context of `$context`; `None` if the library or the provider does not have it.
macro_rules! extended_op {
    ($context:expr, $operation:ident) => {{
        let extended = verbs_get_ctx($context);
        let needed = size_of::<verbs_context>() - offset_of!(verbs_context, $operation);
        if extended.is_null() || (*extended).sz < needed { None } else { (*extended).$operation }
    }};
}

/// Sets `errno`, for functions that return null on failure.
fn set_errno(errno: c_int) {
    // SAFETY: the location of this thread's errno is valid to write for as long as the thread lives.
    unsafe { *libc::__errno_location() = errno };
}

/// Queries a port. Errno value.
///
/// # Safety
/// `context` is open as for [`verbs_get_ctx`], and `attr` is valid to write.
pub unsafe fn ibv_query_port(
    verbs: &Verbs,
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: by the contract of this function. The old query writes a part of the structure: the rest is zero.
    unsafe {
        match extended_op!(context, query_port) {
            Some(query_port) => query_port(context, port_num, attr, size_of::<ibv_port_attr>()),
            None => {
                attr.write(ibv_port_attr::default());
                (verbs.ibv_query_port)(context, port_num, attr.cast())
            }
        }
    }
}

/// Queries a device; where there is no extended query, what it adds is zero. Errno value.
///
/// # Safety
/// `context` is open as for [`verbs_get_ctx`], and `attr` is valid to write.
pub unsafe fn ibv_query_device_ex(verbs: &Verbs, context: *mut ibv_context, attr: *mut ibv_device_attr_ex) -> c_int {
    // SAFETY: by the contract of this function. The attributes are integers, for which zero is valid.
    unsafe {
        attr.write_bytes(0, 1);
        if let Some(query_device_ex) = extended_op!(context, query_device_ex) {
            let answer = query_device_ex(context, core::ptr::null(), attr, size_of::<ibv_device_attr_ex>());
            if answer != libc::EOPNOTSUPP && answer != libc::ENOSYS {
                return answer;
            }
        }
        attr.write_bytes(0, 1);
        (verbs.ibv_query_device)(context, &raw mut (*attr).orig_attr)
    }
}

/// Reads an entry of a port's GID table, with its type. Errno value: `ENODATA` for an empty entry.
///
/// # Safety
/// `context` is open, and `entry` is valid to write.
pub unsafe fn ibv_query_gid_ex(
    verbs: &Verbs,
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    entry: *mut ibv_gid_entry,
) -> c_int {
    // SAFETY: by the contract of this function; the size is the entry's.
    unsafe { (verbs._ibv_query_gid_ex)(context, port_num, gid_index, entry, 0, size_of::<ibv_gid_entry>()) }
}

/// Reads all valid entries of all GID tables; how many there were, or minus an errno value.
///
/// # Safety
/// `context` is open, and `entries` is valid to write `max_entries` entries.
pub unsafe fn ibv_query_gid_table(
    verbs: &Verbs,
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
) -> isize {
    // SAFETY: by the contract of this function; the size is that of one entry.
    unsafe { (verbs._ibv_query_gid_table)(context, entries, max_entries, 0, size_of::<ibv_gid_entry>()) }
}

/// Creates an extended completion queue. Null and errno: `EOPNOTSUPP` where there are none.
///
/// # Safety
/// `context` is open as for [`verbs_get_ctx`], and `attr` is what the manual page asks for.
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

/// Creates a queue pair with more attributes, as extended send operations. Null and errno: `EOPNOTSUPP` where there are
/// none.
///
/// # Safety
/// `context` is open as for [`verbs_get_ctx`], and `attr` is what the manual page asks for.
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

/// Allocates a memory window. Null and errno: `EOPNOTSUPP` where there are none.
///
/// # Safety
/// `pd` is a protection domain of an open context.
pub unsafe fn ibv_alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: by the contract of this function.
    unsafe {
        match (*(*pd).context).ops.alloc_mw {
            Some(alloc_mw) => alloc_mw(pd, kind),
            None => {
                set_errno(libc::EOPNOTSUPP);
                core::ptr::null_mut()
            }
        }
    }
}

/// Frees a memory window. Errno value.
///
/// # Safety
/// `mw` came from [`ibv_alloc_mw`] and is not used afterwards.
pub unsafe fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: by the contract of this function; a provider that allocates windows frees them.
    unsafe { (*(*mw).context).ops.dealloc_mw.map_or(libc::EOPNOTSUPP, |dealloc_mw| dealloc_mw(mw)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ibv_poll_cq, ibv_post_send, ibv_wc_status};
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
