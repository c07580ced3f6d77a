//! Registered memory: of this node's permission groups, and the location of the peers' memory.
//!
//! A group's address space is reserved once, so no pointer ever moves. It is divided into slots that double, and a slot
//! becomes usable as a whole, or from its start on, when it is needed: one chunk, one registration (MR), one key.
//!
//! ```text
//! offset 0        2 MiB      4 MiB                 8 MiB
//!        │ slot 0 │ slot 1   │ slot 2              │ slot 3 …
//! ```
//!
//! Behind the last slot, one more is for words in the device's own memory, if it has some (`device_memory`): they have
//! no address in this process.
//!
//! The highest bit of an offset determines its slot, so finding a peer's key takes a shift, a count of zeros and one
//! line of a table. **No region crosses slots**: a region that does not fit gets a slot that is large enough, and the
//! skipped slots serve smaller regions later. So an operation that crosses chunks is outside of every region, and is
//! refused as out of bounds.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde::{Deserialize, Serialize};

use super::device::Device;
use super::device_memory::DeviceMemory;
use super::pages::AddressRange;
use super::registration::{MemoryRegion, SHARED};
use crate::error::{Code, Error, ErrorKind, Result};
use crate::fabric::Region;
use crate::ptr::{GroupKey, NodeId, RemotePtr};
use crate::space::clear;
use crate::space::{Allocation, GRANULE_BYTES, Offsets, Space, set_generation};
use crate::sys::range::STEP_BYTES;

/// The number of slots for offsets of 44 bits.
const SLOTS: usize = 24;
const STEP_SHIFT: u32 = STEP_BYTES.trailing_zeros();
const PAGE_BYTES: usize = 4096;
/// Bytes at the start of each group that belong to no region. Global fences read the first word.
const RESERVED_BYTES: u64 = 64;
/// The limit of a search for memory of the same generation.
const AROUND_MAX: usize = 256;

#[inline]
const fn slot_of(offset: u64) -> usize {
    (u64::BITS - (offset >> STEP_SHIFT).leading_zeros()) as usize
}

#[inline]
const fn slot_first(slot: usize) -> u64 {
    // Slot 0 begins at 0 and is as long as slot 1.
    ((STEP_BYTES as u64) << slot >> 1) & !(STEP_BYTES as u64 - 1)
}

const fn slot_bytes(slot: usize) -> u64 {
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
struct Table {
    lines: [Line; SLOTS],
    /// The address bits of an offset. 0 until memory is freed: then all of it has generation 0.
    mask: AtomicU64,
}

#[derive(Default)]
struct Line {
    /// 0 for none. This is written last.
    bytes: AtomicU64,
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
    fn add(&self, chunk: ChunkInfo) -> bool {
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
    fn find(&self, offset: u64, len: usize) -> Result<(u64, u32), Code> {
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
    fn generation(&self, address: u64) -> u8 {
        let slot = slot_of(address);
        let generations = self.lines.get(slot).and_then(|line| line.generations.get());
        let granule = ((address - slot_first(slot)) / GRANULE_BYTES) as usize;
        generations.and_then(|all| all.get(granule)).map_or(0, |entry| entry.load(Ordering::Acquire))
    }

    /// Sets the generation of memory; false if there is no such memory.
    fn set_generation(&self, info: GenerationInfo) -> bool {
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
    fn generations(&self) -> Vec<GenerationInfo> {
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

    fn chunks(&self) -> impl Iterator<Item = ChunkInfo> {
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
    pub(super) fn give_up(&self) {
        self.is_unreachable.store(true, Ordering::Release);
    }

    pub(super) fn is_unreachable(&self) -> bool {
        self.is_unreachable.load(Ordering::Acquire)
    }

    /// The peer has revoked or given the right to a group.
    pub(super) fn revoke(&self, key: GroupKey, is_revoked: bool) {
        let (word, bit) = (&self.revoked[usize::from(key.0) / 64], 1 << (key.0 % 64));
        if is_revoked {
            word.fetch_or(bit, Ordering::Release);
        } else {
            word.fetch_and(!bit, Ordering::Release);
        }
    }

    pub(super) fn is_revoked(&self, key: GroupKey) -> bool {
        self.revoked[usize::from(key.0) / 64].load(Ordering::Acquire) >> (key.0 % 64) & 1 == 1
    }

    /// How many bytes of a group are known.
    pub(super) fn bytes(&self, key: GroupKey) -> u64 {
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
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The memory around a place that is reached in the same way: its start for pointers and for the device, its
    /// length and its key.
    pub(super) fn around(&self, remote: RemotePtr<u8>) -> Option<(RemotePtr<u8>, ChunkInfo)> {
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
    pub(super) fn find(&self, remote: RemotePtr<u8>, len: usize) -> Result<(u64, u32), Code> {
        match self.groups[usize::from(remote.key().0)].get() {
            Some(table) => table.find(remote.offset(), len),
            None => Err(Code::BadKey),
        }
    }
}

/// The registered memory of one permission group of this node.
pub(super) struct GroupMemory {
    key: GroupKey,
    device: Arc<Device>,
    limit_bytes: usize,
    /// The slot of the device's own memory, and the most bytes of it.
    on_device: Option<(usize, usize)>,
    offsets: Offsets,
    /// By local keys, and by those that peers need.
    own: Table,
    remote: Table,
    grown: Mutex<Grown>,
    /// Dropped after the registrations in it. Regions keep this memory, so no address in it is left.
    range: AddressRange,
}

struct Grown {
    registered: [Option<MemoryRegion>; SLOTS],
    on_device: Option<DeviceMemory>,
    /// Bytes given out of each slot at least once, and those of them that may be reused.
    used: [u64; SLOTS],
    spaces: [Space; SLOTS],
}

impl GroupMemory {
    /// Creates memory whose regions may have `limit_bytes` together.
    ///
    /// # Errors
    /// No address space, or not even the first chunk.
    pub(super) fn create(device: &Arc<Device>, key: GroupKey, limit_bytes: usize) -> Result<Arc<GroupMemory>> {
        let out_of_memory = |why: String| ErrorKind::OutOfMemory { key, asked_bytes: limit_bytes, why };
        // So a region of any size up to the limit finds a slot.
        let last = (0..SLOTS).find(|slot| slot_bytes(*slot) >= limit_bytes as u64).unwrap_or(SLOTS - 1);
        let reserve_bytes = (slot_first(last) + slot_bytes(last)) as usize;
        let range = AddressRange::reserve(reserve_bytes).map_err(out_of_memory)?;
        let mut used = [0; SLOTS];
        used[0] = RESERVED_BYTES;
        let device_bytes = usize::try_from(device.info.device_memory_bytes).unwrap_or(usize::MAX);
        let device_bytes = device_bytes.min(device.options.device_memory_bytes) / GRANULE_BYTES as usize;
        let on_device = (device.has_atomics() && device_bytes > 0 && last + 1 < SLOTS)
            .then_some((last + 1, device_bytes * GRANULE_BYTES as usize));
        let space_bytes = if on_device.is_some() { 2 * reserve_bytes } else { reserve_bytes };
        let memory = GroupMemory {
            key,
            device: Arc::clone(device),
            limit_bytes,
            on_device,
            offsets: Offsets::new(space_bytes as u64),
            own: Table::default(),
            remote: Table::default(),
            grown: Mutex::new(Grown {
                registered: [const { None }; SLOTS],
                on_device: None,
                used,
                spaces: Default::default(),
            }),
            range,
        };
        memory.grow(&mut memory.grown.lock().unwrap_or_else(PoisonError::into_inner), 0, RESERVED_BYTES)?;
        Ok(Arc::new(memory))
    }

    /// Allocates a region for this node, `me`: zeroed memory of a chunk that may be new. Peers must learn of a new
    /// chunk before they get a pointer to it.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`].
    pub(super) fn alloc(self: &Arc<Self>, me: NodeId, bytes: usize) -> Result<Region> {
        let Some(asked) = (bytes as u64).checked_next_multiple_of(GRANULE_BYTES) else {
            return Err(self.exhausted(bytes as u64, "no machine has that much".into()));
        };
        let mut grown = self.grown.lock().unwrap_or_else(PoisonError::into_inner);
        // The limit counts regions, and not the rest of chunks: the last chunks may exceed it.
        if grown.used.iter().sum::<u64>().saturating_add(asked) > self.limit_bytes as u64 {
            return Err(self.exhausted(asked, format!("this node may use {} bytes for it", self.limit_bytes)));
        }
        let room = |grown: &Grown, slot: usize| {
            self.own.lines[slot].bytes.load(Ordering::Relaxed).saturating_sub(grown.used[slot]) >= asked
        };
        let slot = match (0..SLOTS).find(|slot| room(&grown, *slot)) {
            Some(slot) => slot,
            None => {
                let fits = |slot: &usize| {
                    grown.registered[*slot].is_none()
                        && slot_bytes(*slot) >= asked
                        && slot_first(*slot) + slot_bytes(*slot) <= self.range.bytes() as u64
                };
                let Some(slot) = (0..SLOTS).find(fits) else {
                    return Err(self.exhausted(asked, "its address space is used up".into()));
                };
                self.grow(&mut grown, slot, asked)?;
                slot
            }
        };
        let start = slot_first(slot) + grown.used[slot];
        grown.used[slot] += asked;
        Ok(self.region(me, start, bytes, 0))
    }

    /// Allocates a region of freed memory, if there is some. The second result must be announced to the peers before
    /// they get a pointer to the region.
    pub(super) fn alloc_again(self: &Arc<Self>, me: NodeId, bytes: usize) -> Option<(Region, Option<GenerationInfo>)> {
        let asked = (bytes as u64).checked_next_multiple_of(GRANULE_BYTES)?;
        let mut grown = self.grown.lock().unwrap_or_else(PoisonError::into_inner);
        let here = self.on_device.map_or(SLOTS, |(slot, _)| slot);
        let (start, generation) = grown.spaces[..here].iter_mut().find_map(|space| space.take(asked))?;
        let news = self.renew(start, asked, generation);
        drop(grown); // zeroing much memory takes long
        // SAFETY: the range is in a chunk, is aligned to 64, and has no other user: see `Connections::free`.
        unsafe { clear(self.range.base().as_ptr().add(start as usize), asked as usize) };
        Some((self.region(me, start, bytes, generation), news))
    }

    /// Allocates words in the device's own memory, with a pattern of values, as a region without bytes: it has no
    /// address here. None if the device has no memory, or none left. The second result must be announced to the peers,
    /// as new chunks are.
    pub(super) fn alloc_words(
        self: &Arc<Self>,
        me: NodeId,
        count: usize,
        pattern: &[u64],
    ) -> Option<(Region, Option<GenerationInfo>)> {
        let (slot, most) = self.on_device?;
        let asked = (count as u64).checked_mul(8)?.max(1).checked_next_multiple_of(GRANULE_BYTES)?;
        let least = usize::try_from(asked).ok().filter(|asked| *asked <= most)?;
        let mut grown = self.grown.lock().unwrap_or_else(PoisonError::into_inner);
        let again = grown.spaces[slot].take(asked);
        if again.is_none() && grown.on_device.is_none() {
            let taken = DeviceMemory::take(&self.device, least, most, SHARED);
            let memory = taken.map_err(|why| tracing::debug!("words lie in the machine's memory: {why}")).ok()?;
            let (bytes, rkey) = (memory.bytes() as u64, memory.remote_key());
            self.remote.add(ChunkInfo { first: slot_first(slot), bytes, address: 0, rkey });
            grown.on_device = Some(memory);
        }
        let Grown { on_device, used, spaces, .. } = &mut *grown;
        let memory = on_device.as_ref()?;
        let (start, generation) = match again {
            Some(again) => again,
            None if memory.bytes() as u64 - used[slot] < asked => return None,
            None => {
                used[slot] += asked;
                (slot_first(slot) + used[slot] - asked, 0)
            }
        };
        let pattern = if pattern.is_empty() { &[0] } else { pattern };
        let values: Vec<u64> = pattern.iter().copied().cycle().take(least / 8).collect();
        if let Err(why) = memory.write(start - slot_first(slot), &values) {
            tracing::warn!("words lie in the machine's memory: {why}");
            spaces[slot].give(start, asked, generation);
            return None;
        }
        let news = self.renew(start, asked, generation);
        let remote = RemotePtr::new(me, self.key, self.offsets.offset(start, generation));
        let keep = Allocation::new(start, asked, generation, Arc::clone(self) as _);
        // SAFETY: a region without bytes reaches no memory.
        let region = unsafe { Region::new(NonNull::<u64>::dangling().cast(), 0, remote, keep) };
        Some((region, news))
    }

    /// Gives out memory with a generation. Returns the announcement for the peers, if it had another generation.
    fn renew(&self, first: u64, bytes: u64, generation: u8) -> Option<GenerationInfo> {
        let is_other = |address| self.remote.generation(address) != generation;
        let is_news = (first..first + bytes).step_by(GRANULE_BYTES as usize).any(is_other);
        let news = GenerationInfo { address_bits: self.address_bits(), first, bytes, generation };
        is_news.then(|| {
            self.remote.set_generation(news);
            news
        })
    }

    /// Takes memory back. Returns its next generation, for an announcement to the peers.
    pub(super) fn give_back(&self, allocation: &Allocation) -> GenerationInfo {
        let Allocation { start, bytes, generation, .. } = *allocation;
        let generation = self.offsets.next(generation);
        let news = GenerationInfo { address_bits: self.address_bits(), first: start, bytes, generation };
        self.remote.set_generation(news);
        news
    }

    /// Makes memory available again, once no operation can reach its former use.
    pub(super) fn give_out_again(&self, info: GenerationInfo) {
        let mut grown = self.grown.lock().unwrap_or_else(PoisonError::into_inner);
        grown.spaces[slot_of(info.first)].give(info.first, info.bytes, info.generation);
    }

    /// The memory with a generation other than 0, for peers.
    #[must_use]
    pub(super) fn generations(&self) -> Vec<GenerationInfo> {
        self.remote.generations()
    }

    fn address_bits(&self) -> u8 {
        self.offsets.mask().count_ones() as u8
    }

    fn region(self: &Arc<Self>, me: NodeId, offset: u64, bytes: usize, generation: u8) -> Region {
        let whole = (bytes as u64).next_multiple_of(GRANULE_BYTES);
        // SAFETY: the offset is inside the reserved range.
        let base = unsafe { self.range.base().add(offset as usize) };
        let remote = RemotePtr::new(me, self.key, self.offsets.offset(offset, generation));
        let keep = Allocation::new(offset, whole, generation, Arc::clone(self) as _);
        // SAFETY: the range has no other user. It is in a chunk that is mapped as long as this memory, which the
        // region keeps, and is aligned to 64; access is by atomics and by operations only.
        unsafe { Region::new(base, bytes, remote, keep) }
    }

    /// The number of chunks.
    pub(super) fn count(&self) -> usize {
        self.remote.chunks().count()
    }

    /// All chunks, for peers.
    #[must_use]
    pub(super) fn chunks(&self) -> Vec<ChunkInfo> {
        self.remote.chunks().collect()
    }

    /// The local key of `len` bytes at `at`.
    pub(super) fn local_key(&self, at: *const u8, len: usize) -> Result<u32, Code> {
        let offset = (at as usize).wrapping_sub(self.range.base().as_ptr() as usize);
        self.own.find(offset as u64, len).map(|(_, key)| key)
    }

    /// Makes a slot usable: as a whole, or if that is too much its first `asked` bytes.
    fn grow(&self, grown: &mut Grown, slot: usize, asked: u64) -> Result<()> {
        let limit = self.limit_bytes as u64;
        let registered: u64 = self.own.chunks().map(|chunk| chunk.bytes).sum();
        let (whole, least) = (slot_bytes(slot) as usize, (asked as usize).next_multiple_of(PAGE_BYTES));
        if whole > least && whole as u64 <= limit.saturating_sub(registered) && self.grow_by(grown, slot, whole).is_ok()
        {
            return Ok(());
        }
        self.grow_by(grown, slot, least).map_err(|why| self.exhausted(asked, why))
    }

    fn grow_by(&self, grown: &mut Grown, slot: usize, bytes: usize) -> Result<(), String> {
        let first = slot_first(slot);
        // SAFETY: the slot is not usable yet, so it has no user. Registrations are dropped before the range; the
        // memory is shared by nature, and all access to it is atomic or an operation's.
        let region = unsafe { self.range.register(&self.device, first as usize, bytes, SHARED) }?;
        let (lkey, rkey) = (region.local_key(), region.remote_key());
        let start = self.range.base().as_ptr() as u64 + first;
        grown.registered[slot] = Some(region);
        let chunk = ChunkInfo { first, bytes: bytes as u64, address: start, rkey };
        self.own.add(ChunkInfo { rkey: lkey, ..chunk });
        self.remote.add(chunk);
        Ok(())
    }

    #[cold]
    fn exhausted(&self, asked: u64, why: String) -> Error {
        ErrorKind::OutOfMemory { key: self.key, asked_bytes: asked as usize, why }.into()
    }
}

#[cfg(test)]
mod tests;
