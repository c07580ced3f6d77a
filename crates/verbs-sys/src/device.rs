//! Devices, their ports and addresses, and the capabilities of all.

#![allow(missing_docs, reason = "fields and constants are those of the manual pages, and documented where it matters")]

use core::ffi::{c_char, c_int, c_uint, c_void};

use farfield_c_decl::{c_constants, c_types};

use crate::context::extended_op;
use crate::{Skipped, Verbs, be64, ibv_context, verbs_context, verbs_get_ctx};

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

    /// The transport of a device.
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

    /// The kind of a GID: an InfiniBand address, or one of either version of RoCE.
    enum ibv_gid_type: c_uint {
        IBV_GID_TYPE_IB = 0,
        IBV_GID_TYPE_ROCE_V1 = 1,
        IBV_GID_TYPE_ROCE_V2 = 2,
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

    /// A device that can be opened. Its list owns it until then.
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

    /// The capabilities of a device.
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

    /// The capabilities of a device, with later additions.
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

    /// The capabilities and the state of a port.
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

}

/// The first version of [`ibv_port_attr`], which the symbol `ibv_query_port` fills in.
#[repr(C)]
pub struct _compat_ibv_port_attr {
    _opaque: [u8; 0],
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

/// Queries a device; where there is no extended query, its additions are zero. Errno value.
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
