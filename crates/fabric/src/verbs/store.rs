//! The memory of all buffers of a node: a few large chunks, each registered once, that all its lanes share.
//!
//! The pool of an endpoint takes its slabs here, and returns them when the endpoint closes. So the number of
//! registrations (MRs) grows neither with threads nor with their turnover. A device keeps its most recent
//! registrations in a cache; with few, none drops out of it.
//!
//! The first chunk has 2 MiB. Each further one has as much as all before it together, up to 1 GiB, and from then on
//! each has 1 GiB: one page, where the kernel has such pages and they are wanted (`pages`). If the limit for
//! registered memory is lower (`ulimit -l`), a chunk is smaller, down to the requested size. Pieces are powers of two,
//! and a freed piece is merged with its other half (a buddy allocator). A chunk stays registered until the node
//! leaves.
//!
//! The lock is taken when a pool takes or gives back a slab, and never by an operation.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use farfield_verbs_sys::IBV_ACCESS_LOCAL_WRITE;

use super::device::Device;
use super::registration::MemoryRegion;
use crate::error::{ErrorKind, Result};
use crate::hosts::pages::{AddressRange, GIB};
use crate::pool::{BufferMemory, Piece, Registration};

const PAGE_BYTES: usize = 4096;
const CHUNK_BYTES_MIN: usize = 2 << 20;
const CHUNK_BYTES_MAX: usize = GIB;

/// Registered memory of a node's buffers, which its lanes and endpoints share.
pub(crate) struct BufferStore {
    device: Arc<Device>,
    chunks: Mutex<Vec<Chunk>>,
}

/// Registered memory. Pages of it are numbered from 0 on.
struct Chunk {
    pages: usize,
    /// The first pages of the free pieces, by the binary logarithm of how many pages they have.
    free: Vec<BTreeSet<usize>>,
    region: MemoryRegion,
    /// Dropped after its registration.
    range: AddressRange,
}

impl Chunk {
    fn register(device: &Arc<Device>, bytes: usize) -> Result<Chunk, String> {
        let range = AddressRange::reserve(bytes)?;
        // SAFETY: the range is new, and the registration is dropped before it. The memory is used by operations under
        // the rules of `buf`.
        let region = unsafe { MemoryRegion::of_range(device, &range, 0, bytes, IBV_ACCESS_LOCAL_WRITE) }?;
        let pages = bytes / PAGE_BYTES;
        let mut free = vec![BTreeSet::new(); pages.ilog2() as usize + 1];
        free.last_mut().expect("at least one").insert(0);
        Ok(Chunk { pages, free, region, range })
    }

    /// The first page of a free piece.
    fn take(&mut self, order: usize) -> Option<usize> {
        let from = (order..self.free.len()).find(|order| !self.free[*order].is_empty())?;
        let page = self.free[from].pop_first()?;
        (order..from).for_each(|half| _ = self.free[half].insert(page + (1 << half)));
        Some(page)
    }

    fn give_back(&mut self, mut page: usize, mut order: usize) {
        while order + 1 < self.free.len() && self.free[order].remove(&(page ^ (1 << order))) {
            page &= !(1 << order);
            order += 1;
        }
        let is_new = self.free[order].insert(page);
        debug_assert!(is_new, "a piece is given back once");
    }
}

impl BufferStore {
    /// A store that has registered nothing yet.
    #[must_use]
    pub(crate) fn new(device: &Arc<Device>) -> Arc<BufferStore> {
        Arc::new(BufferStore { device: Arc::clone(device), chunks: Mutex::default() })
    }

    /// The device that knows the memory.
    #[must_use]
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// A chunk of at least so many pages.
    fn grow(&self, chunks: &[Chunk], pages: usize) -> Result<Chunk, String> {
        let total: usize = chunks.iter().map(|chunk| chunk.pages * PAGE_BYTES).sum();
        let device_max = usize::try_from(self.device.info().region_bytes_max).unwrap_or(usize::MAX).max(PAGE_BYTES);
        let most = CHUNK_BYTES_MAX.min(1 << device_max.ilog2());
        let least = pages.checked_mul(PAGE_BYTES).ok_or("no machine has that much")?;
        let mut bytes = total.next_power_of_two().max(CHUNK_BYTES_MIN).min(most).max(least);
        loop {
            match Chunk::register(&self.device, bytes) {
                Err(_) if bytes > least => bytes /= 2,
                result => return result,
            }
        }
    }
}

impl BufferMemory for BufferStore {
    fn take(self: Arc<Self>, bytes: usize) -> Result<Piece> {
        let exhausted = |why: String| ErrorKind::NoBufferMemory { asked_bytes: bytes, why };
        let Some(pages) = bytes.div_ceil(PAGE_BYTES).max(1).checked_next_power_of_two() else {
            return Err(exhausted("no machine has that much".into()).into());
        };
        let order = pages.ilog2() as usize;
        let mut chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        let found = chunks.iter_mut().enumerate().find_map(|(at, chunk)| Some((at, chunk.take(order)?)));
        let (chunk, page) = match found {
            Some(found) => found,
            None => {
                let mut chunk = self.grow(&chunks, pages).map_err(exhausted)?;
                let page = chunk.take(order).expect("the chunk is large enough");
                chunks.push(chunk);
                (chunks.len() - 1, page)
            }
        };
        let Chunk { range, region, .. } = &chunks[chunk];
        // SAFETY: the page is in the chunk, which is in the range.
        let start = unsafe { range.base().add(page * PAGE_BYTES) };
        let key = region.local_key();
        drop(chunks);
        let taken = Taken { store: self, chunk, page, order };
        let registration = Registration { key, keep: Box::new(taken) };
        // SAFETY: the pages are in a chunk that stays mapped and registered, no other piece has them, and they come
        // back when `taken` is dropped with the registration.
        Ok(unsafe { Piece::new(start, PAGE_BYTES << order, registration) })
    }
}

/// Memory that was taken from a store, which gets it back when this is dropped.
struct Taken {
    store: Arc<BufferStore>,
    chunk: usize,
    page: usize,
    order: usize,
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut chunks = self.store.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        chunks[self.chunk].give_back(self.page, self.order);
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::verbs::stub::Stub;

    #[test]
    fn pieces_do_not_overlap_and_halves_come_together_again() {
        let stub = Stub::new(true, |_, _| ());
        let store = BufferStore::new(&stub.device);
        let mut rng = SmallRng::seed_from_u64(1);
        let mut pieces: Vec<Piece> = Vec::new();
        for _ in 0..2000 {
            if pieces.is_empty() || pieces.len() < 60 && rng.random_bool(0.6) {
                let bytes = PAGE_BYTES << rng.random_range(0..7);
                let piece = Arc::clone(&store).take(bytes).unwrap();
                let (start, taken, _) = piece.parts();
                assert!(taken == bytes && start.as_ptr().align_offset(PAGE_BYTES) == 0);
                pieces.push(piece);
            } else {
                pieces.swap_remove(rng.random_range(0..pieces.len()));
            }
            let mut ranges: Vec<_> =
                pieces.iter().map(Piece::parts).map(|(start, bytes, _)| (start.as_ptr() as usize, bytes)).collect();
            ranges.sort_unstable();
            assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "two overlap");
        }
        let registered = stub.state().registered.clone();
        pieces.clear();
        // All of the first chunk is one piece again, so its whole length needs no other.
        let whole = Arc::clone(&store).take(CHUNK_BYTES_MIN).unwrap();
        assert_eq!((whole.parts().2, &stub.state().registered), (1, &registered));
    }

    #[test]
    fn chunks_double_up_to_the_limit_of_the_device() {
        let stub = Stub::new(true, |info, _| info.region_bytes_max = 12 << 20);
        let store = BufferStore::new(&stub.device);
        let pieces: Vec<_> = (0..12).map(|_| Arc::clone(&store).take(2 << 20).unwrap()).collect();
        assert_eq!(stub.state().registered, [2 << 20, 2 << 20, 4 << 20, 8 << 20, 8 << 20]);
        // A larger request has a chunk of its own, or the device refuses.
        drop(pieces);
        let _large = Arc::clone(&store).take(16 << 20).unwrap();
        assert_eq!(stub.state().registered.last(), Some(&(16 << 20)));
    }

    #[test]
    fn where_less_can_be_registered_less_is_and_nothing_is_an_error() {
        let stub = Stub::new(true, |_, _| ());
        let store = BufferStore::new(&stub.device);
        stub.state().registered_bytes_max = Some(100 << 10);
        let pieces: Vec<_> = (0..3).map(|_| Arc::clone(&store).take(32 << 10).unwrap()).collect();
        assert_eq!(stub.state().registered, [64 << 10, 32 << 10]);
        let error = Arc::clone(&store).take(32 << 10).map(|_| ()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::NoBufferMemory { asked_bytes: 32_768, .. }) && error.is_refused());
        // Freed memory is used again, and so is a raised limit.
        drop(pieces);
        let _again = Arc::clone(&store).take(64 << 10).unwrap();
        stub.state().registered_bytes_max = None;
        assert_eq!(Arc::clone(&store).take(1 << 20).unwrap().parts().1, 1 << 20);
    }
}
