//! The layout of a group's memory, as its owner announces it: chunks in slots, and the generations of what was freed.
//!
//! A group's address space is reserved once, so no pointer ever moves. It is divided into slots that double, and a slot
//! becomes usable as a whole, or from its start on, when it is needed: one chunk, one key.
//!
//! ```text
//! offset 0        2 MiB      4 MiB                 8 MiB
//!        │ slot 0 │ slot 1   │ slot 2              │ slot 3 …
//! ```
//!
//! The highest bit of an offset determines its slot, so finding a chunk takes a shift, a count of zeros and one line of
//! a table. **No region crosses slots**: a region that does not fit gets a slot that is large enough, and the skipped
//! slots serve smaller regions later. So an operation that crosses chunks is outside of every region, and is refused as
//! out of bounds.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use crate::error::Code;
use crate::ptr::{GroupKey, RemotePtr};
use crate::space::{GRANULE_BYTES, set_generation};
use crate::sys::range::STEP_BYTES;

/// The number of slots for offsets of 44 bits.
pub(super) const SLOTS: usize = 24;
const STEP_SHIFT: u32 = STEP_BYTES.trailing_zeros();
/// The limit of a search for memory of the same generation.
const AROUND_MAX: usize = 256;

#[inline]
pub(super) const fn slot_of(offset: u64) -> usize {
    (u64::BITS - (offset >> STEP_SHIFT).leading_zeros()) as usize
}

#[inline]
pub(super) const fn slot_first(slot: usize) -> u64 {
    // Slot 0 begins at 0 and is as long as slot 1.
    ((STEP_BYTES as u64) << slot >> 1) & !(STEP_BYTES as u64 - 1)
}

pub(super) const fn slot_bytes(slot: usize) -> u64 {
    (STEP_BYTES as u64) << slot.saturating_sub(1)
}

/// A usable part of a group's memory, as its owner announces it to its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChunkInfo {
    /// Its offset in the group.
    pub first: u64,
    /// Its length.
    pub bytes: u64,
    /// The address of its first byte on the owner's device.
    pub address: u64,
    /// The key that an access needs.
    pub rkey: u32,
}

/// Memory of a group with a generation other than 0, as its owner announces it to its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GenerationInfo {
    /// The number of address bits in the group's offsets.
    pub address_bits: u8,
    /// The address of its first byte.
    pub first: u64,
    /// Its length, in whole granules.
    pub bytes: u64,
    /// Its current generation.
    pub generation: u8,
}

/// The chunks of one group. A chunk is added once and never changes.
#[derive(Default)]
pub(super) struct Table {
    pub(super) lines: [Line; SLOTS],
    /// The address bits of an offset. 0 until memory is freed: then all of it has generation 0.
    mask: AtomicU64,
}

#[derive(Default)]
pub(super) struct Line {
    /// 0 for none. This is written last.
    pub(super) bytes: AtomicU64,
    address: AtomicU64,
    key: AtomicU32,
    /// By granules, once memory of the chunk is freed.
    generations: OnceLock<Box<[AtomicU8]>>,
}

impl Line {
    /// All granules of a chunk, of generation 0. Their pages are taken as they are written.
    fn generations(&self) -> &[AtomicU8] {
        self.generations.get_or_init(|| {
            let count = self.bytes.load(Ordering::Acquire) / GRANULE_BYTES;
            let zeros = Box::into_raw(vec![0_u8; count as usize].into_boxed_slice());
            // SAFETY: the pointer is of a box taken apart just before; an atomic byte has the layout of a byte.
            unsafe { Box::from_raw(zeros as *mut [AtomicU8]) }
        })
    }
}

impl Table {
    pub(super) fn add(&self, chunk: ChunkInfo) -> bool {
        let slot = slot_of(chunk.first);
        let Some(line) = self.lines.get(slot) else { return false };
        if chunk.first != slot_first(slot) || chunk.bytes == 0 || chunk.bytes > slot_bytes(slot) {
            return false;
        }
        line.address.store(chunk.address, Ordering::Relaxed);
        line.key.store(chunk.rkey, Ordering::Relaxed);
        // Release: a thread that sees the length sees address and key.
        line.bytes.store(chunk.bytes, Ordering::Release);
        true
    }

    /// Address and generation of an offset.
    #[inline]
    fn split(&self, offset: u64) -> (u64, u8) {
        match self.mask.load(Ordering::Acquire) {
            0 => (offset, 0),
            mask => (offset & mask, (offset >> mask.count_ones()) as u8),
        }
    }

    /// Address and key of `len` bytes at `offset`.
    #[inline]
    pub(super) fn find(&self, offset: u64, len: usize) -> Result<(u64, u32), Code> {
        let (address, generation) = self.split(offset);
        let found = self.find_address(address, len)?;
        match self.generation(address).cmp(&generation) {
            core::cmp::Ordering::Equal => Ok(found),
            core::cmp::Ordering::Greater => Err(Code::Freed),
            // It was never given out.
            core::cmp::Ordering::Less => Err(Code::OutOfBounds),
        }
    }

    /// The generation of the granule at an address.
    pub(super) fn generation(&self, address: u64) -> u8 {
        let slot = slot_of(address);
        let generations = self.lines.get(slot).and_then(|line| line.generations.get());
        let granule = ((address - slot_first(slot)) / GRANULE_BYTES) as usize;
        generations.and_then(|all| all.get(granule)).map_or(0, |entry| entry.load(Ordering::Acquire))
    }

    /// Sets the generation of memory; false if there is no such memory.
    pub(super) fn set_generation(&self, info: GenerationInfo) -> bool {
        let GenerationInfo { address_bits, first, bytes, generation } = info;
        let slot = slot_of(first);
        let is_inside = bytes > 0 && self.find_address(first, bytes as usize).is_ok();
        let is_whole = first.is_multiple_of(GRANULE_BYTES) && bytes.is_multiple_of(GRANULE_BYTES);
        if !is_inside || !is_whole || !(36..=44).contains(&address_bits) {
            return false;
        }
        let at = ((first - slot_first(slot)) / GRANULE_BYTES) as usize;
        let entries = self.lines[slot].generations().get(at..at + (bytes / GRANULE_BYTES) as usize);
        let Some(entries) = entries else { return false };
        self.mask.store((1 << address_bits) - 1, Ordering::Release);
        set_generation(entries, generation);
        true
    }

    /// The memory around an address that has the same generation, as far as it matters.
    fn around(&self, address: u64) -> (u64, u64) {
        let slot = slot_of(address);
        let (first, bytes) = (slot_first(slot), self.lines[slot].bytes.load(Ordering::Acquire));
        let Some(all) = self.lines[slot].generations.get() else { return (first, bytes) };
        let at = ((address - first) / GRANULE_BYTES) as usize;
        let Some(generation) = all.get(at).map(|entry| entry.load(Ordering::Acquire)) else { return (address, 0) };
        let is_same = |entry: &&AtomicU8| entry.load(Ordering::Acquire) == generation;
        let behind = all[at..].iter().take(AROUND_MAX).take_while(is_same).count();
        let before = all[..at].iter().rev().take(AROUND_MAX).take_while(is_same).count();
        (first + ((at - before) as u64) * GRANULE_BYTES, ((before + behind) as u64) * GRANULE_BYTES)
    }

    /// The memory with a generation other than 0.
    pub(super) fn generations(&self) -> Vec<GenerationInfo> {
        let address_bits = self.mask.load(Ordering::Acquire).count_ones() as u8;
        let mut found: Vec<GenerationInfo> = Vec::new();
        for (slot, line) in self.lines.iter().enumerate() {
            let entries = line.generations.get().map_or(&[][..], |all| all);
            for (granule, entry) in entries.iter().enumerate() {
                let generation = entry.load(Ordering::Acquire);
                let first = slot_first(slot) + granule as u64 * GRANULE_BYTES;
                match found.last_mut() {
                    _ if generation == 0 => {}
                    Some(last) if last.first + last.bytes == first && last.generation == generation && granule > 0 => {
                        last.bytes += GRANULE_BYTES;
                    }
                    _ => found.push(GenerationInfo { address_bits, first, bytes: GRANULE_BYTES, generation }),
                }
            }
        }
        found
    }

    #[inline]
    fn find_address(&self, offset: u64, len: usize) -> Result<(u64, u32), Code> {
        let slot = slot_of(offset);
        let line = self.lines.get(slot).ok_or(Code::OutOfBounds)?;
        let within = offset - slot_first(slot);
        match line.bytes.load(Ordering::Acquire).checked_sub(within) {
            Some(room) if len as u64 <= room => {
                Ok((line.address.load(Ordering::Relaxed) + within, line.key.load(Ordering::Relaxed)))
            }
            _ => Err(Code::OutOfBounds),
        }
    }

    pub(super) fn chunks(&self) -> impl Iterator<Item = ChunkInfo> {
        self.lines.iter().enumerate().filter_map(|(slot, line)| {
            let bytes = line.bytes.load(Ordering::Acquire);
            let (address, rkey) = (line.address.load(Ordering::Relaxed), line.key.load(Ordering::Relaxed));
            (bytes > 0).then_some(ChunkInfo { first: slot_first(slot), bytes, address, rkey })
        })
    }
}

/// The location of a peer's memory.
pub(crate) struct PeerMemory {
    groups: [OnceLock<Box<Table>>; GroupKey::COUNT_MAX],
    /// A bit for each group to which this node has no right.
    revoked: [AtomicU64; GroupKey::COUNT_MAX / 64],
    is_unreachable: AtomicBool,
    /// How often memory was freed.
    changes: AtomicU64,
}

impl PeerMemory {
    /// The location of a peer that has announced no memory yet.
    #[must_use]
    pub(crate) fn new() -> Arc<PeerMemory> {
        Arc::new(PeerMemory {
            groups: [const { OnceLock::new() }; GroupKey::COUNT_MAX],
            revoked: [const { AtomicU64::new(0) }; GroupKey::COUNT_MAX / 64],
            is_unreachable: AtomicBool::new(false),
            changes: AtomicU64::new(0),
        })
    }

    /// The transport has given up on the peer.
    pub(crate) fn give_up(&self) {
        self.is_unreachable.store(true, Ordering::Release);
    }

    pub(crate) fn is_unreachable(&self) -> bool {
        self.is_unreachable.load(Ordering::Acquire)
    }

    /// The peer has revoked or given the right to a group.
    pub(crate) fn revoke(&self, key: GroupKey, is_revoked: bool) {
        let (word, bit) = (&self.revoked[usize::from(key.0) / 64], 1 << (key.0 % 64));
        if is_revoked {
            word.fetch_or(bit, Ordering::Release);
        } else {
            word.fetch_and(!bit, Ordering::Release);
        }
    }

    pub(crate) fn is_revoked(&self, key: GroupKey) -> bool {
        self.revoked[usize::from(key.0) / 64].load(Ordering::Acquire) >> (key.0 % 64) & 1 == 1
    }

    /// How many bytes of a group are known.
    pub(crate) fn bytes(&self, key: GroupKey) -> u64 {
        let table = self.groups[usize::from(key.0)].get();
        table.map_or(0, |table| table.chunks().map(|chunk| chunk.bytes).sum())
    }

    /// Adds a chunk that the peer has announced. False, without a change, if there can be no such chunk.
    pub(crate) fn add(&self, key: GroupKey, chunk: ChunkInfo) -> bool {
        self.groups[usize::from(key.0)].get_or_init(Box::default).add(chunk)
    }

    /// Sets the generation of memory that the peer has announced. False, without a change, if there is no such memory.
    pub(crate) fn set_generation(&self, key: GroupKey, info: GenerationInfo) -> bool {
        let is_set = self.groups[usize::from(key.0)].get().is_some_and(|table| table.set_generation(info));
        // Release: a thread that sees the change sees the generation.
        self.changes.fetch_add(1, Ordering::Release);
        is_set
    }

    /// A number that changes whenever memory is freed.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The memory around a place that is reached in the same way: its start for pointers and for the device, its
    /// length and its key.
    pub(crate) fn around(&self, remote: RemotePtr<u8>) -> Option<(RemotePtr<u8>, ChunkInfo)> {
        let table = self.groups[usize::from(remote.key().0)].get()?;
        let (address, _) = table.split(remote.offset());
        let (first, bytes) = table.around(address);
        let (at, rkey) = table.find_address(first, bytes as usize).ok()?;
        let before = address - first;
        let pointer = RemotePtr::new(remote.node(), remote.key(), remote.offset() - before);
        Some((pointer, ChunkInfo { first, bytes, address: at, rkey }))
    }

    /// Address and key of `len` bytes.
    ///
    /// # Errors
    /// No such group, or not inside one of its chunks.
    #[inline]
    pub(crate) fn find(&self, remote: RemotePtr<u8>, len: usize) -> Result<(u64, u32), Code> {
        match self.groups[usize::from(remote.key().0)].get() {
            Some(table) => table.find(remote.offset(), len),
            None => Err(Code::BadKey),
        }
    }
}

#[cfg(test)]
mod tests;
