//! Memory of the device itself (`ibv_alloc_dm`), for words that operations alone work on.
//!
//! An atomic there does not cross the bus to the machine's memory. The order stays as it was: the device's earlier
//! writes to the machine's memory are on their way over the bus, and its later reads and writes, the completion or the
//! answer of the atomic included, follow them (memory is registered without relaxed ordering). The processor has no
//! address for it: initial values are copied in before the addresses of the words are announced, and from then on only
//! the device reads and writes them. A region of it is registered with addresses that begin at 0.

use std::io;
use std::sync::Arc;

use farfield_verbs_sys::*;

use super::device::Device;
use super::error::VerbsError;
use super::registration::MemoryRegion;

/// On a line of its own, as regions are.
const ALIGN_SHIFT: u32 = 6;

/// Registered memory of a device.
pub(crate) struct DeviceMemory {
    region: MemoryRegion,
    bytes: usize,
    /// Dropped after its registration.
    memory: Allocated,
}

struct Allocated {
    device: Arc<Device>,
    raw: *mut ibv_dm,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Allocated {}
// SAFETY: as above.
unsafe impl Sync for Allocated {}

impl Drop for Allocated {
    fn drop(&mut self) {
        // SAFETY: allocated once, freed once, and registered no more.
        unsafe { ibv_free_dm(self.raw) };
    }
}

impl DeviceMemory {
    /// Allocates at least `least` and at most `most` bytes, and registers them.
    ///
    /// # Errors
    /// The device has none, or not that much left.
    pub(super) fn take(
        device: &Arc<Device>,
        least: usize,
        most: usize,
        access: ibv_access_flags,
    ) -> Result<DeviceMemory, VerbsError> {
        let mut bytes = most;
        let memory = loop {
            let mut attr = ibv_alloc_dm_attr { length: bytes, log_align_req: ALIGN_SHIFT, comp_mask: 0 };
            // SAFETY: the device's context is open, and was handed out by the library; the attributes are valid.
            let raw = unsafe { ibv_alloc_dm(device.context, &mut attr) };
            if !raw.is_null() {
                break Allocated { device: Arc::clone(device), raw };
            }
            if bytes == least {
                return Err(device.call("ibv_alloc_dm", last_errno()));
            }
            bytes = (bytes / 2).next_multiple_of(1 << ALIGN_SHIFT).max(least);
        };
        let access = access | IBV_ACCESS_ZERO_BASED;
        // SAFETY: the memory is of the domain's context; its registration ends before it.
        let raw = unsafe { ibv_reg_dm_mr(device.pd, memory.raw, 0, bytes, access) };
        if raw.is_null() {
            return Err(device.call("ibv_reg_dm_mr", last_errno()));
        }
        // SAFETY: it was registered a moment ago, and nothing else ends that.
        let region = unsafe { MemoryRegion::of_raw(device, raw) };
        Ok(DeviceMemory { region, bytes, memory })
    }

    /// How large it is.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The key by which operations name it.
    pub(super) fn remote_key(&self) -> u32 {
        self.region.remote_key()
    }

    /// Writes words at an offset, before their addresses are announced.
    ///
    /// # Errors
    /// The device's error.
    pub(super) fn write(&self, offset: u64, words: &[u64]) -> Result<(), VerbsError> {
        let (raw, bytes) = (self.memory.raw, size_of_val(words));
        assert!(offset as usize + bytes <= self.bytes, "it lies inside");
        let mut last = 0_u64;
        let last_at = offset + bytes.saturating_sub(8) as u64;
        // SAFETY: the memory is allocated, the words are valid to read, and the last one's copy to write.
        let errno = unsafe {
            match ((*raw).memcpy_to_dm, (*raw).memcpy_from_dm) {
                (Some(write), Some(read)) => match write(raw, offset, words.as_ptr().cast(), bytes) {
                    // A read from a device flushes the writes to it: they are visible to all when this returns.
                    0 => read((&raw mut last).cast(), raw, last_at, 8),
                    errno => errno,
                },
                _ => libc::EOPNOTSUPP,
            }
        };
        match errno {
            0 if words.last().is_none_or(|word| *word == last) => Ok(()),
            0 => Err(self.memory.device.call("ibv_memcpy_to_dm (what was written is not there)", libc::EIO)),
            errno => Err(self.memory.device.call("ibv_memcpy_to_dm", errno)),
        }
    }
}

fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
