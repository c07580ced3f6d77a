//! Memory that is registered with a device, and access to it.

use std::sync::Arc;

use farfield_verbs_sys::*;

use super::device::{Device, locked_memory_limit};
use super::device_memory::DeviceMemory;
use super::error::VerbsError;
use crate::hosts::keeper::{Keeper, Opened, WordMemory};
use crate::hosts::pages::AddressRange;
use crate::pool::Registration;

/// A registered piece of memory.
pub(crate) struct MemoryRegion {
    device: Arc<Device>,
    raw: *mut ibv_mr,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for MemoryRegion {}

// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

/// The rights of a device to the memory of a group, for this node and for its peers. No relaxed ordering: with it, the
/// buses could let a put pass the one before, and objects rely on "puts to one node land in order".
pub(super) const SHARED: ibv_access_flags =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

impl MemoryRegion {
    /// # Safety
    /// The memory stays mapped while the region lives, and bears it that the device reads and writes it, within what
    /// `access` allows.
    pub(super) unsafe fn register(
        device: &Arc<Device>,
        start: *mut u8,
        bytes: usize,
        access: ibv_access_flags,
    ) -> Result<MemoryRegion, VerbsError> {
        // Devices without remote atomics may refuse to grant them.
        let access = if device.has_atomics() { access } else { access & !IBV_ACCESS_REMOTE_ATOMIC };
        // SAFETY: the domain is alive, and the memory is mapped, by the contract of this function.
        let raw = unsafe { (device.verbs.ibv_reg_mr)(device.pd, start.cast(), bytes, access as i32) };
        if !raw.is_null() {
            return Ok(MemoryRegion { device: Arc::clone(device), raw });
        }
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
        Err(match locked_memory_limit() {
            Some(limit) if errno == libc::ENOMEM => {
                VerbsError::LockedMemory { device: device.info.name.clone(), bytes, limit }
            }
            _ => device.call("ibv_reg_mr (is there memory left?)", errno),
        })
    }

    /// Makes a part of a range usable, as zeroed memory that the device may access as `access` allows.
    ///
    /// # Safety
    /// That part is not in use yet, the registration ends before the range does, and the memory tolerates that the
    /// device reads and writes it within the limits of `access`.
    ///
    /// # Errors
    /// No memory, or it cannot be registered; the text has the reason. Then the part is as it was.
    pub(super) unsafe fn of_range(
        device: &Arc<Device>,
        range: &AddressRange,
        offset: usize,
        bytes: usize,
        access: ibv_access_flags,
    ) -> Result<MemoryRegion, String> {
        // SAFETY: by the contract of this function; what is registered was just mapped.
        unsafe {
            range.map(device.options.huge_pages.kinds(), offset, bytes, |start| {
                MemoryRegion::register(device, start, bytes, access).map_err(|error| error.to_string())
            })
        }
    }

    /// The key by which this node's operations name it.
    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: the region is alive.
        unsafe { (*self.raw).lkey }
    }

    /// One that was registered otherwise.
    ///
    /// # Safety
    /// It is of the device, and nothing else ends it.
    pub(super) unsafe fn of_raw(device: &Arc<Device>, raw: *mut ibv_mr) -> MemoryRegion {
        MemoryRegion { device: Arc::clone(device), raw }
    }

    /// The key by which those of peers name it.
    pub(super) fn remote_key(&self) -> u32 {
        // SAFETY: the region is alive.
        unsafe { (*self.raw).rkey }
    }

    /// Registers a slab that is of no store: memory that only this node's operations use.
    ///
    /// # Safety
    /// The memory stays allocated while the registration lives, and is used by operations under the rules of `buf`.
    pub(super) unsafe fn of_slab(
        device: &Arc<Device>,
        start: *mut u8,
        bytes: usize,
    ) -> Result<Registration, VerbsError> {
        // SAFETY: by the contract of this function.
        let region = unsafe { Self::register(device, start, bytes, IBV_ACCESS_LOCAL_WRITE) }?;
        Ok(Registration { key: region.local_key(), keep: Box::new(region) })
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: registered once, deregistered once.
        unsafe { (self.device.verbs.ibv_dereg_mr)(self.raw) };
    }
}

impl Keeper for Device {
    type Part = MemoryRegion;
    type Words = DeviceMemory;

    unsafe fn open(
        self: &Arc<Device>,
        range: &AddressRange,
        first: usize,
        bytes: usize,
    ) -> Result<Opened<MemoryRegion>, String> {
        // SAFETY: by the contract of this function.
        let part = unsafe { MemoryRegion::of_range(self, range, first, bytes, SHARED) }?;
        let (local_key, remote_key) = (part.local_key(), part.remote_key());
        Ok(Opened { part, local_key, remote_key })
    }

    fn words_bytes_max(&self) -> usize {
        if !self.has_atomics() {
            return 0;
        }
        let there = usize::try_from(self.info.device_memory_bytes).unwrap_or(usize::MAX);
        there.min(self.options.device_memory_bytes)
    }

    fn take_words(self: &Arc<Device>, least: usize, most: usize) -> Result<DeviceMemory, String> {
        DeviceMemory::take(self, least, most, SHARED).map_err(|error| error.to_string())
    }
}

impl WordMemory for DeviceMemory {
    fn bytes(&self) -> usize {
        DeviceMemory::bytes(self)
    }

    fn remote_key(&self) -> u32 {
        DeviceMemory::remote_key(self)
    }

    fn write(&self, offset: u64, words: &[u64]) -> Result<(), String> {
        DeviceMemory::write(self, offset, words).map_err(|error| error.to_string())
    }
}
