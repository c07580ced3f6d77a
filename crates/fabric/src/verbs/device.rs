//! Devices: which one is used, and opening it. What there is, `info` describes; what to take of it, `choose` says.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Once};

use farfield_verbs_sys::*;

use super::choose::choose;
use super::error::{VerbsError, call};
use super::info::{Address, Atomics, DeviceInfo, PortInfo, describe, text};
use super::options::VerbsOptions;

/// The most bytes of memory that this process may lock, `None` if there is no limit.
///
/// ```
/// use farfield_fabric::verbs::locked_memory_limit;
/// if locked_memory_limit().is_some_and(|limit| limit < 1 << 30) {
///     println!("not a gigabyte can be registered: `ulimit -l unlimited` raises the limit");
/// }
/// ```
#[must_use]
pub fn locked_memory_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Memlock).current
}

/// An opened device: one port and one address of it, and a protection domain.
///
/// ```no_run
/// use farfield_fabric::{Result, verbs::{Device, VerbsOptions}};
/// # fn main() -> Result<()> {
/// let device = Device::open(&VerbsOptions::default())?;
/// println!("port {} of {}", device.port().number, device.info().name);
/// # Ok(()) }
/// ```
pub struct Device {
    pub(super) verbs: &'static Verbs,
    pub(super) context: *mut ibv_context,
    pub(super) pd: *mut ibv_pd,
    pub(super) info: DeviceInfo,
    pub(super) port: PortInfo,
    pub(super) address: Option<Address>,
    pub(super) options: VerbsOptions,
    pub(super) asks_for_events: bool,
}

// SAFETY: libibverbs may be called from any thread (its manual: "the library is thread-safe"); the fields do not
// change.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Describes all devices of this machine.
    ///
    /// ```no_run
    /// # use farfield_fabric::verbs::{Device, VerbsError};
    /// # fn main() -> Result<(), VerbsError> {
    /// for device in Device::list()? {
    ///     println!("{} has {} ports", device.name, device.ports.len());
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The library is not there, or a device cannot be opened.
    pub fn list() -> Result<Vec<DeviceInfo>, VerbsError> {
        let opened = open_all(Verbs::get()?)?;
        Ok(opened.into_iter().map(|device| device.info.clone()).collect())
    }

    /// Opens a device.
    ///
    /// ```no_run
    /// # use farfield_fabric::verbs::{Device, VerbsError, VerbsOptions};
    /// # fn main() -> Result<(), VerbsError> {
    /// let options = VerbsOptions { device: Some("mlx5_0".into()), ..VerbsOptions::default() };
    /// let device = Device::open(&options)?;
    /// assert_eq!(device.info().name, "mlx5_0");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// There is none that fits.
    pub fn open(options: &VerbsOptions) -> Result<Arc<Device>, VerbsError> {
        let verbs = Verbs::get()?;
        let mut opened = open_all(verbs)?;
        let infos: Vec<_> = opened.iter().map(|device| device.info.clone()).collect();
        let choice = choose(&infos, options)?;
        let context = opened[choice.device].context;
        // SAFETY: the context is open.
        let pd = unsafe { (verbs.ibv_alloc_pd)(context) };
        if pd.is_null() {
            return Err(call("ibv_alloc_pd", &infos[choice.device].name, io::Error::last_os_error()));
        }
        opened[choice.device].context = core::ptr::null_mut();
        let info = infos[choice.device].clone();
        let port = info.ports[choice.port].clone();
        let options = options.clone();
        // So that asking for events does not wait. A refusal shows in nothing but that they are not asked for.
        // SAFETY: the context is open, and its descriptor with it.
        let events = unsafe { BorrowedFd::borrow_raw((*context).async_fd) };
        let asks_for_events = rustix::fs::fcntl_setfl(events, rustix::fs::OFlags::NONBLOCK).is_ok();
        Ok(Arc::new(Device { verbs, context, pd, info, port, address: choice.address, options, asks_for_events }))
    }

    /// The device.
    ///
    /// ```
    /// # fn f(device: &farfield_fabric::verbs::Device) {
    /// let info = device.info();
    /// println!("{} with firmware {}", info.name, info.firmware);
    /// # }
    /// ```
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// The port that is used.
    ///
    /// ```
    /// # fn f(device: &farfield_fabric::verbs::Device) {
    /// assert!(device.port().is_active); // as it was opened
    /// # }
    /// ```
    #[must_use]
    pub fn port(&self) -> &PortInfo {
        &self.port
    }

    /// The address that is used: on InfiniBand where the LID is not enough.
    ///
    /// ```
    /// # fn f(device: &farfield_fabric::verbs::Device) {
    /// match device.address() {
    ///     Some(address) => println!("line {} of the GID table", address.index),
    ///     None => println!("LID {}", device.port().lid),
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn address(&self) -> Option<Address> {
        self.address
    }

    /// Logs the events of the device. Returns whether it has failed for good.
    pub(super) fn has_failed(&self) -> bool {
        let name = &self.info.name;
        let mut has_failed = false;
        while let Some((kind, port)) = self.next_event() {
            match kind {
                IBV_EVENT_DEVICE_FATAL => {
                    tracing::error!("the RDMA device {name} has failed: see the kernel's log");
                    has_failed = true;
                }
                IBV_EVENT_PORT_ERR => {
                    tracing::warn!("port {port} of {name} is down: is the cable in, and the switch on?")
                }
                IBV_EVENT_PORT_ACTIVE => tracing::info!("port {port} of {name} is up"),
                IBV_EVENT_LID_CHANGE | IBV_EVENT_GID_CHANGE | IBV_EVENT_PKEY_CHANGE => {
                    tracing::warn!("port {port} of {name} has another address: connections may be lost");
                }
                // A queue pair or completion queue that has failed: its lane finds it.
                _ => tracing::debug!("{name} reports event {kind}"),
            }
        }
        has_failed
    }

    /// An event: its kind, and its port if it is about one.
    fn next_event(&self) -> Option<(ibv_event_type, i32)> {
        if !self.asks_for_events {
            return None;
        }
        // SAFETY: zero is valid for it: integers and a pointer.
        let mut event: ibv_async_event = unsafe { core::mem::zeroed() };
        // SAFETY: the context is open, and the event is valid to write; its descriptor does not block. It is
        // acknowledged at once, or destroying its object would wait. The number of a port is valid to read
        // whatever the union holds.
        unsafe {
            if (self.verbs.ibv_get_async_event)(self.context, &mut event) != 0 {
                return None;
            }
            (self.verbs.ibv_ack_async_event)(&mut event);
            Some((event.event_type, event.element.port_num))
        }
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
        // SAFETY: whatever belongs to the domain or to the context keeps the device, so nothing does any more. A
        // refusal has no consequences.
        unsafe {
            (self.verbs.ibv_dealloc_pd)(self.pd);
            (self.verbs.ibv_close_device)(self.context);
        }
    }
}

/// A context that is closed when dropped, unless it was taken (and is null).
struct Opened {
    verbs: &'static Verbs,
    context: *mut ibv_context,
    info: DeviceInfo,
}

impl Drop for Opened {
    fn drop(&mut self) {
        if !self.context.is_null() {
            // SAFETY: the context is open, and nothing was made of it.
            unsafe { (self.verbs.ibv_close_device)(self.context) };
        }
    }
}

fn open_all(verbs: &'static Verbs) -> Result<Vec<Opened>, VerbsError> {
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
            Ok(info) => opened.push(Opened { verbs, context, info }),
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
