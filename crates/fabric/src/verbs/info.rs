//! The devices and their capabilities, as plain data.

use core::ffi::{CStr, c_char};
use std::io;

use farfield_verbs_sys::*;

use super::error::{VerbsError, call};

/// A device, as far as it can be described without using it.
///
/// ```
/// use farfield_fabric::verbs::{Atomics, DeviceInfo};
/// fn suits(device: &DeviceInfo) -> bool { !device.is_iwarp && device.atomics != Atomics::None }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceInfo {
    /// The kernel's name.
    pub name: String,
    /// The kernel does its work, and no hardware.
    pub is_software: bool,
    /// It is software on a processor for which the kernel copies byte by byte: words may be seen half written. For
    /// tests such a machine will mostly do; to be sure, start its kernel with `clearcpuid=erms,fsrm`.
    pub words_may_tear: bool,
    /// It speaks iWARP, which the connections here do not.
    pub is_iwarp: bool,
    /// Version of the firmware, empty if there is none.
    pub firmware: String,
    /// What its remote atomics are atomic with.
    pub atomics: Atomics,
    /// The most queue pairs.
    pub queue_pairs_max: usize,
    /// The most work requests on one queue.
    pub work_requests_max: usize,
    /// The most completions on one queue.
    pub completions_max: usize,
    /// The most registered pieces of memory.
    pub regions_max: usize,
    /// The largest registered piece of memory.
    pub region_bytes_max: u64,
    /// Reads and atomics that one queue pair has open, as their origin.
    pub reads_out_max: u8,
    /// Reads and atomics that one queue pair has open, as their target.
    pub reads_in_max: u8,
    /// Bytes of memory on the device.
    pub device_memory_bytes: u64,
    /// Its ports.
    pub ports: Vec<PortInfo>,
}

/// What remote atomics of 8 bytes are atomic with. The operands and the result are in this machine's byte order: a
/// device that answers in another one says `None`, as the interface has no name for it.
///
/// ```
/// use farfield_fabric::verbs::Atomics;
/// fn with_processors(atomics: Atomics) -> bool { atomics == Atomics::All }
/// assert!(!with_processors(Atomics::SameDevice));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomics {
    /// There are none.
    None,
    /// With remote atomics through the same device.
    SameDevice,
    /// With everything, CPUs included.
    All,
}

/// A port of a device.
///
/// ```
/// use farfield_fabric::verbs::{Link, PortInfo};
/// /// RoCE needs an address.
/// fn can_be_used(port: &PortInfo) -> bool {
///     port.is_active && (port.link == Link::InfiniBand || !port.addresses.is_empty())
/// }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct PortInfo {
    /// From 1 on.
    pub number: u8,
    /// It carries data.
    pub is_active: bool,
    /// The network behind it.
    pub link: Link,
    /// Its address in an InfiniBand subnet.
    pub lid: u16,
    /// Packets need a global header, on InfiniBand too.
    pub needs_gid: bool,
    /// Bytes in a packet.
    pub mtu_bytes: usize,
    /// Bytes in a message.
    pub message_bytes_max: u64,
    /// Its addresses.
    pub addresses: Vec<Address>,
}

/// The network behind a port.
///
/// ```
/// use farfield_fabric::verbs::Link;
/// let text = |link| match link {
///     Link::InfiniBand => "InfiniBand",
///     Link::Ethernet => "RoCE",
///     Link::Other => "another network",
/// };
/// assert_eq!(text(Link::Ethernet), "RoCE");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// An InfiniBand subnet.
    InfiniBand,
    /// An Ethernet: RoCE.
    Ethernet,
    /// Something else.
    Other,
}

/// An address of a port: a line of its GID table.
///
/// ```
/// use {farfield_fabric::verbs::{Address, AddressKind}, std::net::{Ipv4Addr, Ipv6Addr}};
/// let gid = Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped().octets();
/// let address = Address { index: 3, gid, kind: AddressKind::RoceV2 };
/// assert_eq!(Ipv6Addr::from(address.gid).to_string(), "::ffff:10.0.0.1");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The line.
    pub index: u8,
    /// The address. For RoCE v2 an IPv6 address, or an IPv4 address as `::ffff:a.b.c.d`.
    pub gid: [u8; 16],
    /// Its kind.
    pub kind: AddressKind,
}

/// The kind of an address.
///
/// ```
/// use farfield_fabric::verbs::AddressKind;
/// let best = [AddressKind::RoceV2, AddressKind::RoceV1].into_iter().max();
/// assert_eq!(best, Some(AddressKind::RoceV2)); // it crosses routers
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressKind {
    /// RoCE v1: reaches the same Ethernet only.
    RoceV1,
    /// An InfiniBand address.
    InfiniBand,
    /// RoCE v2: an IP address.
    RoceV2,
}

pub(super) fn text(chars: &[c_char]) -> String {
    // SAFETY: bytes of the same size; the library ends its names with a zero byte.
    let bytes = unsafe { core::slice::from_raw_parts(chars.as_ptr().cast::<u8>(), chars.len()) };
    CStr::from_bytes_until_nul(bytes).map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
}

/// # Safety
/// The context is open, as the library opened it.
pub(super) unsafe fn describe(verbs: &'static Verbs, context: *mut ibv_context) -> Result<DeviceInfo, VerbsError> {
    // SAFETY: by the contract of this function; the context's device lives as long; zero is valid for the attributes,
    // which are integers, and they are valid to write.
    unsafe {
        let device = &*(*context).device;
        let name = text(&device.name);
        let mut attr: ibv_device_attr_ex = core::mem::zeroed();
        let errno = ibv_query_device_ex(verbs, context, &mut attr);
        if errno != 0 {
            return Err(call("ibv_query_device", &name, io::Error::from_raw_os_error(errno)));
        }
        let base = attr.orig_attr;
        let positive = |number: i32| usize::try_from(number).unwrap_or(0);
        let small = |number: i32| u8::try_from(number.max(0)).unwrap_or(u8::MAX);
        let ports = (1..=base.phys_port_cnt).filter_map(|number| describe_port(verbs, context, number)).collect();
        // Hardware hangs on a bus.
        let is_software = !std::path::Path::new(&text(&device.ibdev_path)).join("device").exists();
        Ok(DeviceInfo {
            is_software,
            words_may_tear: is_software && kernel_moves_bytes(),
            is_iwarp: device.transport_type == IBV_TRANSPORT_IWARP,
            firmware: text(&base.fw_ver),
            atomics: match base.atomic_cap {
                IBV_ATOMIC_HCA => Atomics::SameDevice,
                IBV_ATOMIC_GLOB => Atomics::All,
                _ => Atomics::None,
            },
            queue_pairs_max: positive(base.max_qp),
            work_requests_max: positive(base.max_qp_wr),
            completions_max: positive(base.max_cqe),
            regions_max: positive(base.max_mr),
            region_bytes_max: base.max_mr_size,
            reads_out_max: small(base.max_qp_init_rd_atom),
            reads_in_max: small(base.max_qp_rd_atom),
            device_memory_bytes: attr.max_dm_size,
            ports,
            name,
        })
    }
}

/// Whether the kernel may copy by `rep movsb`: it does so for processors with these flags.
fn kernel_moves_bytes() -> bool {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = info.lines().find(|line| line.starts_with("flags")).unwrap_or("erms");
    flags.split_whitespace().any(|flag| flag == "erms" || flag == "fsrm")
}

/// A port, unless it cannot be queried.
///
/// # Safety
/// As [`describe`].
unsafe fn describe_port(verbs: &'static Verbs, context: *mut ibv_context, number: u8) -> Option<PortInfo> {
    let mut port = ibv_port_attr::default();
    // SAFETY: by the contract of this function; the attributes are valid to write.
    if unsafe { ibv_query_port(verbs, context, number, &mut port) } != 0 {
        return None;
    }
    let addresses = (0..u32::try_from(port.gid_tbl_len).unwrap_or(0).min(256)).filter_map(|index| {
        let mut entry = ibv_gid_entry::default();
        // SAFETY: as above.
        let errno = unsafe { ibv_query_gid_ex(verbs, context, number.into(), index, &mut entry) };
        let kind = match entry.gid_type {
            IBV_GID_TYPE_ROCE_V2 => AddressKind::RoceV2,
            IBV_GID_TYPE_ROCE_V1 => AddressKind::RoceV1,
            _ => AddressKind::InfiniBand,
        };
        (errno == 0).then_some(Address { index: index as u8, gid: entry.gid.raw, kind })
    });
    Some(PortInfo {
        number,
        is_active: port.state == IBV_PORT_ACTIVE,
        link: match port.link_layer {
            IBV_LINK_LAYER_ETHERNET => Link::Ethernet,
            IBV_LINK_LAYER_INFINIBAND | IBV_LINK_LAYER_UNSPECIFIED => Link::InfiniBand,
            _ => Link::Other,
        },
        lid: port.lid,
        needs_gid: port.flags & IBV_QPF_GRH_REQUIRED != 0,
        mtu_bytes: 128 << port.active_mtu.clamp(IBV_MTU_256, IBV_MTU_4096),
        message_bytes_max: port.max_msg_sz.into(),
        addresses: addresses.collect(),
    })
}
