//! The addresses of simulated memory.
//!
//! The machine's memory is reached through `Word`s, so every word needs an address. The arena reserves addresses and
//! never touches them: an access under a simulation is recognised by its address, and the machine executes it instead.

use core::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Most memory of one simulated node, in bytes.
pub(crate) const NODE_BYTES: usize = 1 << 26;

/// Addresses for the memories of some nodes. They stay valid, and read as zero, as long as the arena is kept.
pub(crate) struct Arena {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the arena is a range of addresses; the memory behind them is accessed through atomics only (`Word`).
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    pub(crate) fn new(nodes: usize) -> Result<Arc<Arena>, rustix::io::Errno> {
        let bytes = nodes * NODE_BYTES;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe { mmap_anonymous(core::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        let base = NonNull::new(base.cast()).expect("a mapping is not at address zero");
        Ok(Arc::new(Arena { base, bytes }))
    }

    pub(crate) fn nodes(&self) -> usize {
        self.bytes / NODE_BYTES
    }

    /// The address of a word.
    pub(crate) fn address(&self, node: u16, word: u32) -> NonNull<u8> {
        let offset = usize::from(node) * NODE_BYTES + word as usize * 8;
        assert!(offset < self.bytes, "a word of the arena");
        // SAFETY: inside the mapping by the assertion, and not zero since the mapping is not.
        unsafe { NonNull::new_unchecked(self.base.as_ptr().add(offset)) }
    }

    /// The word at an address.
    #[inline]
    pub(crate) fn place(&self, address: usize) -> Option<(u16, u32)> {
        let offset = address.wrapping_sub(self.base.as_ptr() as usize);
        (offset < self.bytes).then_some(((offset / NODE_BYTES) as u16, (offset % NODE_BYTES / 8) as u32))
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping is this arena's own, and regions and requests that point into it keep the arena.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
