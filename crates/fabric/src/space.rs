//! Memory that was given back: which of it may be given out again, and under which offsets.
//!
//! A group's memory is known by its *address* in the group. The spare bits of a pointer's offset, above the address,
//! are the *generation* of the memory there. Memory that is given out again gets another generation, so another
//! offset. A table with a byte for each granule of 64 bytes has the current one, and an operation compares it with its
//! pointer's. So a pointer to earlier memory is an error for ever. Once a granule's generations are used up, it is not
//! given out again.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// Regions begin on cache lines, and each line has a generation.
pub(crate) const GRANULE_BYTES: u64 = 64;
/// The generation of a granule that is not given out again. No pointer has it.
pub(crate) const RETIRED: u8 = u8::MAX;
const OFFSET_BITS: u32 = 44;
/// So that a generation fits a byte.
const ADDRESS_BITS_MIN: u32 = OFFSET_BITS - u8::BITS;

/// How the offsets of a group are divided: the upper bits are the generation, the others the address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Offsets {
    address_bits: u32,
}

impl Offsets {
    /// Of a group that has room for so many bytes.
    pub(crate) fn new(reserve_bytes: u64) -> Offsets {
        let bits = u64::BITS - reserve_bytes.saturating_sub(1).leading_zeros();
        Offsets { address_bits: bits.clamp(ADDRESS_BITS_MIN, OFFSET_BITS) }
    }

    /// The bits of the address.
    pub(crate) fn mask(self) -> u64 {
        (1 << self.address_bits) - 1
    }

    /// The offset of the memory at an address.
    pub(crate) fn offset(self, address: u64, generation: u8) -> u64 {
        debug_assert!(address <= self.mask() && generation <= self.last());
        address | u64::from(generation) << self.address_bits
    }

    /// The last generation that memory is given out with.
    pub(crate) fn last(self) -> u8 {
        ((1u64 << (OFFSET_BITS - self.address_bits)) - 1).min(u64::from(RETIRED) - 1) as u8
    }

    /// The generation behind one, for memory that is given back.
    pub(crate) fn next(self, generation: u8) -> u8 {
        if generation >= self.last() { RETIRED } else { generation + 1 }
    }
}

/// Memory that was given out: kept by the region, by its clones, and by operations under way that have it as their
/// local memory.
pub(crate) struct Allocation {
    /// Its address and its length, in whole granules.
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) generation: u8,
    is_freed: AtomicBool,
    /// The memory that it is a part of.
    pub(crate) memory: Arc<dyn Any + Send + Sync>,
}

impl Allocation {
    pub(crate) fn new(start: u64, bytes: u64, generation: u8, memory: Arc<dyn Any + Send + Sync>) -> Arc<Allocation> {
        Arc::new(Allocation { start, bytes, generation, is_freed: AtomicBool::new(false), memory })
    }

    /// Whether it is a part of this memory.
    pub(crate) fn is_of<M>(&self, memory: &Arc<M>) -> bool {
        core::ptr::addr_eq(Arc::as_ptr(&self.memory), Arc::as_ptr(memory))
    }

    /// It is given back: false if it was before.
    pub(crate) fn give_back(&self) -> bool {
        !self.is_freed.swap(true, Ordering::Relaxed)
    }
}

/// Whether the memory has no holder here any more.
pub(crate) fn is_let_go(allocation: &Weak<Allocation>) -> bool {
    let is_gone = allocation.strong_count() == 0;
    fence(Ordering::Acquire); // with the last holder's decrement, so that its accesses come before the caller's
    is_gone
}

/// The entries of the granules of a piece of memory.
pub(crate) fn set_generation(entries: &[AtomicU8], generation: u8) {
    for entry in entries {
        entry.store(generation, Ordering::Release);
    }
}

/// What of a stretch of memory may be given out again: pieces, by their addresses.
#[derive(Default)]
pub(crate) struct Space {
    pieces: BTreeMap<u64, Piece>,
}

#[derive(Clone, Copy)]
struct Piece {
    bytes: u64,
    /// With which it may be given out.
    generation: u8,
}

impl Space {
    /// A piece of so many bytes, the first that is large enough, or the first few side by side that are; and the
    /// generation with which all of it may be given out.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<(u64, u8)> {
        if bytes == 0 {
            return None;
        }
        let whole = self.pieces.iter().find(|(_, piece)| piece.bytes >= bytes).map(|(start, _)| *start);
        let start = whole.or_else(|| self.run(bytes))?;
        let (end, mut generation, mut at) = (start + bytes, 0, start);
        while at < end {
            let piece = self.pieces.remove(&at).expect("it was found");
            generation = generation.max(piece.generation);
            let taken = piece.bytes.min(end - at);
            at += taken;
            if taken < piece.bytes {
                self.pieces.insert(at, Piece { bytes: piece.bytes - taken, ..piece });
            }
        }
        Some((start, generation))
    }

    /// The start of free pieces of so many bytes side by side.
    fn run(&self, bytes: u64) -> Option<u64> {
        let (mut start, mut end) = (0, 0);
        for (at, piece) in &self.pieces {
            if *at != end {
                start = *at;
            }
            end = at + piece.bytes;
            if end - start >= bytes {
                return Some(start);
            }
        }
        None
    }

    /// A piece that may be given out with this generation from now on.
    pub(crate) fn give(&mut self, start: u64, bytes: u64, generation: u8) {
        if bytes == 0 || generation == RETIRED {
            return;
        }
        let (mut start, mut bytes) = (start, bytes);
        if let Some((&before, piece)) = self.pieces.range(..start).next_back()
            && before + piece.bytes == start
            && piece.generation == generation
        {
            bytes += piece.bytes;
            start = before;
        }
        if let Some(behind) = self.pieces.get(&(start + bytes)).copied()
            && behind.generation == generation
        {
            self.pieces.remove(&(start + bytes));
            bytes += behind.bytes;
        }
        self.pieces.insert(start, Piece { bytes, generation });
    }
}

/// Makes memory zero that was given back.
///
/// # Safety
/// `at` is aligned to 8 and valid for `len` bytes, a multiple of 8, that are accessed by atomics only.
pub(crate) unsafe fn clear(at: *mut u8, len: usize) {
    for word in 0..len / 8 {
        // SAFETY: within `len`, aligned by contract.
        unsafe { AtomicU64::from_ptr(at.cast::<u64>().add(word)) }.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_have_room_for_generations_below_the_limit() {
        let of = |bytes: u64| Offsets::new(bytes);
        assert_eq!((of(1).mask(), of(1).last()), ((1 << 36) - 1, 254));
        assert_eq!((of(64 << 30), of(64 << 30).last()), (of(1), 254));
        assert_eq!((of((64 << 30) + 1).mask(), of((64 << 30) + 1).last()), ((1 << 37) - 1, 127));
        assert_eq!((of(1 << 44).last(), of(1 << 44).next(0), of(u64::MAX)), (0, RETIRED, of(1 << 44)));
        assert_eq!((of(1).next(0), of(1).next(253), of(1).next(254)), (1, 254, RETIRED));
        assert_eq!(of(1).offset(192, 3), 3 << 36 | 192);
    }

    #[test]
    fn freed_space_is_found_again_alone_or_with_its_neighbours() {
        let mut space = Space::default();
        assert_eq!((space.take(64), space.take(0)), (None, None));
        space.give(128, 64, 3);
        space.give(256, 64, 1);
        space.give(192, 64, 1);
        // 128: one of generation 3; 192: two of generation 1, as one.
        assert_eq!(space.take(192), Some((128, 3)), "side by side");
        assert_eq!(space.take(64), None);
        space.give(128, 192, 4);
        assert_eq!((space.take(64), space.take(128), space.take(64)), (Some((128, 4)), Some((192, 4)), None));
        space.give(128, 64, RETIRED);
        assert_eq!(space.take(64), None, "its generations are used up");
    }

    #[test]
    fn pieces_of_a_run_that_are_not_needed_keep_their_generation() {
        let mut space = Space::default();
        space.give(0, 64, 9);
        space.give(64, 192, 2);
        assert_eq!(space.take(256), Some((0, 9)));
        space.give(0, 64, 9);
        space.give(64, 128, 2);
        space.give(256, 512, 5);
        assert_eq!(space.take(320), Some((256, 5)), "a single piece first");
        assert_eq!((space.take(128), space.take(64)), (Some((64, 2)), Some((0, 9))));
        assert_eq!(space.take(192), Some((576, 5)));
    }

    #[test]
    fn any_order_of_taking_and_giving_keeps_pieces_apart_and_comes_back() {
        use rand::{RngExt, SeedableRng};
        let mut rng = rand::rngs::SmallRng::seed_from_u64(7);
        let mut space = Space::default();
        const WHOLE: u64 = 64 * 1000;
        space.give(0, WHOLE, 0);
        let mut given: Vec<(u64, u64, u8)> = Vec::new();
        for _ in 0..10_000 {
            if rng.random_range(0..2) == 0 && !given.is_empty() {
                let (start, bytes, generation) = given.swap_remove(rng.random_range(0..given.len()));
                space.give(start, bytes, generation.min(200) + 1);
            } else {
                let bytes = 64 * rng.random_range(1..60);
                let Some((start, generation)) = space.take(bytes) else { continue };
                assert!(start + bytes <= WHOLE);
                let is_apart = |(other, len, _): &(u64, u64, u8)| start + bytes <= *other || other + len <= start;
                assert!(given.iter().all(is_apart));
                given.push((start, bytes, generation));
            }
        }
        given.drain(..).for_each(|(start, bytes, generation)| space.give(start, bytes, generation));
        assert!(space.take(WHOLE).is_some_and(|(start, _)| start == 0), "all of it, as one");
    }
}
