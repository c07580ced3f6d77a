//! The generations of a group's memory: a byte for each granule, in a sealed memfd of its own that peers map with the
//! memory. Its pages are taken as the memory grows.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, memfd_create};
use rustix::io::Errno;

use super::pages::check_room;
use super::range::{MemoryError, Range, STEP_BYTES, check_file_size, system};
use crate::space::{GRANULE_BYTES, RETIRED};

/// It grows in steps of so many bytes, for 4 MiB of memory each.
const STEP: usize = 64 << 10;

/// The generations of own memory.
pub(crate) struct Generations {
    range: Range,
    fd: OwnedFd,
    /// Granules that have one. Changes under the owner's lock only.
    count: AtomicUsize,
}

/// A file of entries of memory without an owner, of which tables of any length are made.
#[derive(Default)]
pub(crate) struct Retired {
    file: Option<(OwnedFd, usize)>,
}

impl Retired {
    /// How many parts a large table has at most: each is a mapping, and a process may have some ten thousand.
    const PARTS_MAX: usize = 16;

    /// The file for a table of so many entries, and how many it has.
    pub(crate) fn file(&mut self, entries: usize) -> Result<(BorrowedFd<'_>, usize), MemoryError> {
        let wanted = (entries / Self::PARTS_MAX).next_multiple_of(STEP_BYTES).max(STEP_BYTES);
        if self.file.as_ref().is_none_or(|(_, bytes)| *bytes < wanted) {
            check_room(wanted)?;
            check_file_size(0, wanted)?;
            let file = memfd_create("farfield-retired", MemfdFlags::CLOEXEC).map_err(system("memfd_create"))?;
            let mut file = std::fs::File::from(file);
            for _ in 0..wanted / STEP {
                let written = file.write_all(&[RETIRED; STEP]);
                written.map_err(|source| MemoryError::System { what: "filling a table", source })?;
            }
            self.file = Some((file.into(), wanted));
        }
        let (file, bytes) = self.file.as_ref().expect("there is one now");
        Ok((file.as_fd(), *bytes))
    }
}

/// The address space of the generations of so many bytes.
pub(crate) fn reserve_for(reserve_bytes: usize) -> usize {
    // One more than there are granules: an operation of no bytes may begin where the memory ends.
    (reserve_bytes / GRANULE_BYTES as usize + 1).next_multiple_of(STEP_BYTES)
}

impl Generations {
    /// For memory that may grow up to `reserve_bytes`. All begin with 0.
    pub(crate) fn create(name: &str, reserve_bytes: usize) -> Result<Generations, MemoryError> {
        let name: String = name.chars().filter(|c| *c != '\0').take(60).collect();
        let fd = memfd_create(name.as_str(), MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(system("memfd_create"))?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::SEAL).map_err(system("sealing a memfd"))?;
        let range = Range::map(fd.as_fd(), reserve_for(reserve_bytes))?;
        Ok(Generations { range, fd, count: AtomicUsize::new(0) })
    }

    /// Makes room for those of the first `bytes` bytes of memory. Not to be called by two at once.
    pub(crate) fn grow_to(&self, bytes: usize) -> Result<(), MemoryError> {
        let count = self.count.load(Ordering::Relaxed);
        let needed = bytes / GRANULE_BYTES as usize + 1;
        if needed <= count {
            return Ok(());
        }
        let more = needed.next_multiple_of(STEP) - count;
        check_room(more)?;
        loop {
            match fallocate(&self.fd, FallocateFlags::empty(), count as u64, more as u64) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(system("fallocate on a memfd")(errno)),
            }
        }
        self.count.store(count + more, Ordering::Release);
        Ok(())
    }

    /// Those of `bytes` bytes from an address on.
    ///
    /// # Panics
    /// If there is no such memory.
    pub(crate) fn of(&self, address: u64, bytes: u64) -> &[AtomicU8] {
        let (first, count) = ((address / GRANULE_BYTES) as usize, bytes.div_ceil(GRANULE_BYTES) as usize);
        assert!(first + count <= self.count.load(Ordering::Acquire), "generations of memory that is there");
        // SAFETY: inside the mapping, and backed by pages, by the assertion; atomics of a byte need no alignment, and
        // all access is by them; the mapping lives as long as `self`.
        unsafe { core::slice::from_raw_parts(self.base().add(first).cast(), count) }
    }

    /// Where they are mapped here; fixed for their life.
    pub(crate) fn base(&self) -> *mut u8 {
        self.range.base()
    }

    /// The file to send to peers.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::memory::Mapping;

    #[test]
    fn they_grow_with_the_memory_and_peers_see_them() {
        let own = Generations::create("test", 1 << 30).unwrap();
        own.grow_to(2 << 20).unwrap();
        own.grow_to(1 << 20).unwrap();
        let peer = Mapping::attach(vec![own.fd().try_clone_to_owned().unwrap()], reserve_for(1 << 30)).unwrap();
        assert_eq!(peer.len(), STEP);
        own.grow_to(8 << 20).unwrap();
        let last = own.of((8 << 20) - 64, 64);
        assert_eq!((last.len(), last[0].load(Ordering::Relaxed)), (1, 0));
        last[0].store(7, Ordering::Relaxed);
        // SAFETY: the entry of the last granule, which the owner has made room for; read and written by atomics.
        let seen = unsafe { &*peer.base().add((8 << 20) / 64 - 1).cast::<AtomicU8>() };
        assert_eq!(seen.load(Ordering::Relaxed), 7);
    }
}
