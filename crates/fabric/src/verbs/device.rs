//! Devices: what there is, which one is used, and what it can do.
//!
//! Without options, the first device with an active port is taken, hardware before software, and on it the best address:
//! RoCE v2 before v1, IPv4 before IPv6, addresses of a link last. InfiniBand ports are addressed by LID, and by GID too
//! where the port demands it. The MTU is the port's active one, cut to the peer's on connecting.

use core::ffi::{CStr, c_char};
use std::io;
use std::sync::{Arc, Once};
use std::time::Duration;

use farfield_verbs_sys::*;

use super::queue::{CompletionQueue, QueueInfo, QueuePair};

/// How a node uses its devices. The default chooses everything by itself.
#[derive(Clone, Debug)]
pub struct VerbsOptions {
    /// The device's name, as `mlx5_0`.
    pub device: Option<String>,
    /// Its port, from 1 on.
    pub port: Option<u8>,
    /// The line of the port's GID table.
    pub gid_index: Option<u8>,
    /// Whether the device places puts in order. By default it is asked, and one that does not say is not trusted: see
    /// the module's documentation.
    pub in_order: Option<bool>,
    /// For how long the transport tries to reach a peer before it gives up on it, roughly.
    pub patience: Duration,
}

impl Default for VerbsOptions {
    fn default() -> VerbsOptions {
        VerbsOptions { device: None, port: None, gid_index: None, in_order: None, patience: Duration::from_millis(500) }
    }
}

/// Why a device cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// There are no libraries.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// No device at all.
    #[error(
        "this machine has no RDMA device: load the driver of the network card, or add a software device \
         (`rdma link add rxe0 type rxe netdev eth0`); see `farfield doctor`"
    )]
    NoDevice,
    /// No device of that name.
    #[error("there is no RDMA device `{name}`, only: {there}")]
    NoSuchDevice {
        /// The name asked for.
        name: String,
        /// The names that there are.
        there: String,
    },
    /// No port fits.
    #[error("no port of {devices} can be used: {why}")]
    NoPort {
        /// Names of the devices.
        devices: String,
        /// What is wrong with each port.
        why: String,
    },
    /// Not enough memory may be locked.
    #[error(
        "cannot register {bytes} bytes with {device}: this process may lock {limit} bytes of memory: raise the limit \
         (`ulimit -l unlimited`, or `memlock` in /etc/security/limits.conf), or open smaller objects"
    )]
    LockedMemory {
        /// The device.
        device: String,
        /// How much was to be registered.
        bytes: usize,
        /// The limit.
        limit: u64,
    },
    /// A call failed.
    #[error("{what} on {device}: {source}")]
    Call {
        /// The call, and what to do if that is known.
        what: &'static str,
        /// The device.
        device: String,
        /// What the system says.
        source: io::Error,
    },
}

impl From<VerbsError> for crate::Error {
    fn from(error: VerbsError) -> crate::Error {
        crate::ErrorKind::System { what: "RDMA", why: error.to_string() }.into()
    }
}

/// A device, as far as it can be described without using it.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceInfo {
    /// The kernel's name.
    pub name: String,
    /// The kernel does its work, and no hardware.
    pub is_software: bool,
    /// It is software on a processor for which the kernel copies byte by byte: words may be seen half written. For tests
    /// such a machine will mostly do; to be sure, start its kernel with `clearcpuid=erms,fsrm`.
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

/// What remote atomics of 8 bytes are atomic with. The operands and the result are in this machine's byte order: a device
/// that answers in another one says `None`, as the interface has no name for it.
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
#[derive(Clone, Debug, PartialEq)]
pub struct PortInfo {
    /// From 1 on.
    pub number: u8,
    /// It carries data.
    pub is_active: bool,
    /// What it is attached to.
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

/// What a port is attached to.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The line.
    pub index: u8,
    /// The address. For RoCE v2 an IPv6 address, or an IPv4 address as `::ffff:a.b.c.d`.
    pub gid: [u8; 16],
    /// What it stands for.
    pub kind: AddressKind,
}

/// What an address stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressKind {
    /// RoCE v1: reaches the same Ethernet only.
    RoceV1,
    /// An InfiniBand address.
    InfiniBand,
    /// RoCE v2: an IP address.
    RoceV2,
}

impl Address {
    /// How much it is to be preferred.
    fn rank(&self) -> (AddressKind, bool, bool) {
        let is_of_link = self.gid[0] == 0xfe && self.gid[1] & 0xc0 == 0x80;
        let is_ipv4 = self.gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
        (self.kind, !is_of_link, is_ipv4)
    }
}

/// The most bytes of memory that this process may lock, `None` if there is no limit.
#[must_use]
pub fn locked_memory_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Memlock).current
}

/// A device, a port and an address, as indices.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Choice {
    device: usize,
    port: usize,
    address: Option<Address>,
}

/// Chooses what to use.
fn choose(devices: &[DeviceInfo], options: &VerbsOptions) -> Result<Choice, VerbsError> {
    let names = || devices.iter().map(|device| device.name.as_str()).collect::<Vec<_>>().join(", ");
    if devices.is_empty() {
        return Err(VerbsError::NoDevice);
    }
    if let Some(name) = &options.device
        && !devices.iter().any(|device| device.name == *name)
    {
        return Err(VerbsError::NoSuchDevice { name: name.clone(), there: names() });
    }
    let mut best: Option<(Choice, _)> = None;
    let mut why = Vec::new();
    for (device_at, device) in devices.iter().enumerate() {
        if options.device.as_ref().is_some_and(|name| device.name != *name) {
            continue;
        }
        for (port_at, port) in device.ports.iter().enumerate() {
            if options.port.is_some_and(|number| port.number != number) {
                continue;
            }
            match fit(device, port, options) {
                Err(reason) => why.push(format!("port {} of {} {reason}", port.number, device.name)),
                Ok(address) => {
                    let choice = Choice { device: device_at, port: port_at, address };
                    let rank = (!device.is_software, address.map(|address| address.rank()));
                    if best.as_ref().is_none_or(|(_, other)| rank > *other) {
                        best = Some((choice, rank));
                    }
                }
            }
        }
    }
    if why.is_empty() {
        why.push(format!("there is no port {}", options.port.unwrap_or(1)));
    }
    let devices = options.device.clone().unwrap_or_else(names);
    best.map(|(choice, _)| choice).ok_or(VerbsError::NoPort { devices, why: why.join("; ") })
}

/// The address to use on a port, `None` if its LID will do; or why the port cannot be used.
fn fit(device: &DeviceInfo, port: &PortInfo, options: &VerbsOptions) -> Result<Option<Address>, String> {
    if device.is_iwarp {
        return Err("speaks iWARP, which is not supported".into());
    }
    if !port.is_active {
        return Err("is not active: connect its cable, or bring its network interface up".into());
    }
    if let Some(index) = options.gid_index {
        let address = port.addresses.iter().find(|address| address.index == index);
        return address.map(|address| Some(*address)).ok_or(format!("has no GID {index}"));
    }
    if port.link == Link::InfiniBand && !port.needs_gid {
        return Ok(None);
    }
    // Of equals the first.
    let best = port.addresses.iter().rev().max_by_key(|address| address.rank());
    best.map(|address| Some(*address)).ok_or_else(|| "has no address: give its network interface one".into())
}

/// An opened device: one port and one address of it, and a protection domain.
pub struct Device {
    pub(super) verbs: &'static Verbs,
    pub(super) context: *mut ibv_context,
    pub(super) pd: *mut ibv_pd,
    pub(super) info: DeviceInfo,
    pub(super) port: PortInfo,
    pub(super) address: Option<Address>,
    pub(super) options: VerbsOptions,
}

// SAFETY: libibverbs may be called from any thread (its manual: "the library is thread-safe"); the fields do not change.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Describes all devices of this machine.
    ///
    /// # Errors
    /// The library is not there, or a device cannot be opened.
    pub fn list() -> Result<Vec<DeviceInfo>, VerbsError> {
        let opened = open_all(Verbs::get()?)?;
        Ok(opened.into_iter().map(|device| device.info.clone()).collect())
    }

    /// Opens a device.
    ///
    /// # Errors
    /// There is none that fits.
    pub fn open(options: &VerbsOptions) -> Result<Arc<Device>, VerbsError> {
        let verbs = Verbs::get()?;
        let mut opened = open_all(verbs)?;
        let infos: Vec<_> = opened.iter().map(|device| device.info.clone()).collect();
        let choice = choose(&infos, options)?;
        let Opened { context, .. } = *opened[choice.device];
        // SAFETY: the context is open.
        let pd = unsafe { (verbs.ibv_alloc_pd)(context) };
        if pd.is_null() {
            return Err(call("ibv_alloc_pd", &infos[choice.device].name, io::Error::last_os_error()));
        }
        opened.swap_remove(choice.device).keep();
        let info = infos[choice.device].clone();
        let port = info.ports[choice.port].clone();
        let options = options.clone();
        Ok(Arc::new(Device { verbs, context, pd, info, port, address: choice.address, options }))
    }

    /// The device.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// The port that is used.
    #[must_use]
    pub fn port(&self) -> &PortInfo {
        &self.port
    }

    /// The address that is used, if the LID is not enough.
    #[must_use]
    pub fn address(&self) -> Option<Address> {
        self.address
    }

    /// What its queue pairs can do, as a new one says.
    ///
    /// # Errors
    /// None can be made.
    pub fn survey(self: &Arc<Device>) -> Result<QueueInfo, VerbsError> {
        let completions = Arc::new(CompletionQueue::new(self, 1)?);
        Ok(QueuePair::new(self, &completions)?.info())
    }

    pub(super) fn has_atomics(&self) -> bool {
        self.info.atomics != Atomics::None
    }

    pub(super) fn call(&self, what: &'static str, errno: i32) -> VerbsError {
        call(what, &self.info.name, io::Error::from_raw_os_error(errno))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: whatever belongs to the domain or to the context keeps the device, so nothing does any more. A refusal
        // has no consequences.
        unsafe {
            (self.verbs.ibv_dealloc_pd)(self.pd);
            (self.verbs.ibv_close_device)(self.context);
        }
    }
}

fn call(what: &'static str, device: &str, source: io::Error) -> VerbsError {
    VerbsError::Call { what, device: device.to_owned(), source }
}

/// A context that is closed when dropped.
struct Opened {
    verbs: &'static Verbs,
    context: *mut ibv_context,
    info: DeviceInfo,
}

impl Opened {
    fn keep(self: Box<Opened>) {
        core::mem::forget(*self);
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: the context is open, and nothing was made of it.
        unsafe { (self.verbs.ibv_close_device)(self.context) };
    }
}

fn open_all(verbs: &'static Verbs) -> Result<Vec<Box<Opened>>, VerbsError> {
    // Once, before the first device is opened. On kernels that need it, it keeps registered memory out of children.
    static FORK: Once = Once::new();
    // SAFETY: the call has no preconditions. It fails where the kernel knows nothing of it, and then children must not
    // use this memory, which they do not.
    FORK.call_once(|| _ = unsafe { (verbs.ibv_fork_init)() });
    let mut count = 0;
    // SAFETY: the count is valid to write.
    let list = unsafe { (verbs.ibv_get_device_list)(&mut count) };
    if list.is_null() {
        return Err(match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENOSYS) => VerbsError::NoDevice,
            error => call("ibv_get_device_list", "this machine", error),
        });
    }
    let mut opened = Vec::new();
    let mut failed = None;
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` devices and is not freed yet.
        let device = unsafe { *list.add(at) };
        // SAFETY: the device is of the list.
        let context = unsafe { (verbs.ibv_open_device)(device) };
        if context.is_null() {
            let error = io::Error::last_os_error();
            // SAFETY: the device is of the list, and its name lives as long.
            let name = text(unsafe { core::slice::from_raw_parts((*device).name.as_ptr(), 64) });
            failed = Some(call("ibv_open_device (may you read and write /dev/infiniband?)", &name, error));
            continue;
        }
        // SAFETY: the context was just opened.
        match unsafe { describe(verbs, context) } {
            Ok(info) => opened.push(Box::new(Opened { verbs, context, info })),
            Err(error) => failed = Some(error),
        }
    }
    // SAFETY: the list is freed once; opened devices stay.
    unsafe { (verbs.ibv_free_device_list)(list) };
    match failed {
        Some(error) if opened.is_empty() => Err(error),
        _ => Ok(opened),
    }
}

fn text(chars: &[c_char]) -> String {
    // SAFETY: bytes of the same size; the library ends its names with a zero byte.
    let bytes = unsafe { core::slice::from_raw_parts(chars.as_ptr().cast::<u8>(), chars.len()) };
    CStr::from_bytes_until_nul(bytes).map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
}

/// # Safety
/// The context is open, as the library opened it.
unsafe fn describe(verbs: &'static Verbs, context: *mut ibv_context) -> Result<DeviceInfo, VerbsError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn address(index: u8, kind: AddressKind, start: &[u8]) -> Address {
        let mut gid = [0; 16];
        gid[..start.len()].copy_from_slice(start);
        Address { index, gid, kind }
    }

    fn port(link: Link, addresses: Vec<Address>) -> PortInfo {
        PortInfo {
            number: 1,
            is_active: true,
            link,
            lid: 5,
            needs_gid: false,
            mtu_bytes: 1024,
            message_bytes_max: 1 << 30,
            addresses,
        }
    }

    fn device(name: &str, is_software: bool, ports: Vec<PortInfo>) -> DeviceInfo {
        DeviceInfo {
            name: name.into(),
            is_software,
            words_may_tear: false,
            is_iwarp: false,
            firmware: String::new(),
            atomics: Atomics::SameDevice,
            queue_pairs_max: 1,
            work_requests_max: 1,
            completions_max: 1,
            regions_max: 1,
            region_bytes_max: 1,
            reads_out_max: 1,
            reads_in_max: 1,
            device_memory_bytes: 0,
            ports,
        }
    }

    #[test]
    fn the_best_address_of_the_best_device_is_chosen() {
        let ipv4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];
        let roce = vec![
            address(0, AddressKind::RoceV1, &[0xfe, 0x80]),
            address(1, AddressKind::RoceV2, &[0xfe, 0x80]),
            address(2, AddressKind::RoceV1, &ipv4),
            address(3, AddressKind::RoceV2, &[0xfd]),
            address(4, AddressKind::RoceV2, &ipv4),
            address(5, AddressKind::RoceV2, &ipv4),
        ];
        let down = PortInfo { is_active: false, ..port(Link::Ethernet, roce.clone()) };
        let soft = device("rxe0", true, vec![port(Link::Ethernet, roce.clone())]);
        let hard = device("mlx5_0", false, vec![down.clone(), PortInfo { number: 2, ..port(Link::Ethernet, roce) }]);
        let devices = [soft, hard];
        let options = VerbsOptions::default();
        let Choice { device, port, address } = choose(&devices, &options).unwrap();
        assert_eq!((device, port, address.unwrap().index), (1, 1, 4));
        let options = VerbsOptions { device: Some("rxe0".into()), gid_index: Some(3), ..options };
        let Choice { device, port, address } = choose(&devices, &options).unwrap();
        assert_eq!((device, port, address.unwrap().index), (0, 0, 3));
        let refused = |options: VerbsOptions| choose(&devices, &options).unwrap_err().to_string();
        let text = refused(VerbsOptions { device: Some("x".into()), ..VerbsOptions::default() });
        assert_eq!(text, "there is no RDMA device `x`, only: rxe0, mlx5_0");
        let text = refused(VerbsOptions { device: Some("mlx5_0".into()), port: Some(1), ..VerbsOptions::default() });
        assert!(text.contains("port 1 of mlx5_0 is not active"), "{text}");
        let text = refused(VerbsOptions { port: Some(7), ..VerbsOptions::default() });
        assert!(text.contains("there is no port 7"), "{text}");
        assert!(matches!(choose(&[], &VerbsOptions::default()), Err(VerbsError::NoDevice)));
    }

    #[test]
    fn infiniband_needs_no_gid_unless_the_port_says_so() {
        let gid = address(0, AddressKind::InfiniBand, &[0xfe, 0x80]);
        let mut ports = vec![port(Link::InfiniBand, vec![gid])];
        let chosen = choose(&[device("ib", false, ports.clone())], &VerbsOptions::default()).unwrap();
        assert_eq!(chosen.address, None);
        ports[0].needs_gid = true;
        let chosen = choose(&[device("ib", false, ports)], &VerbsOptions::default()).unwrap();
        assert_eq!(chosen.address, Some(gid));
    }
}
