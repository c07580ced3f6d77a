//! The memory of this node's permission groups: see [`layout`](super::layout). The [`Keeper`] makes the pages of a slot
//! usable for operations.
//!
//! Behind the last slot, one more is for words in the keeper's own memory, if it has some (the memory of an RDMA
//! device): they have no address in this process.

use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use super::keeper::{Keeper, Opened, WordMemory};
use super::layout::{ChunkInfo, GenerationInfo, SLOTS, Table, slot_bytes, slot_first, slot_of};
use super::pages::AddressRange;
use crate::error::{Code, Error, ErrorKind, Result};
use crate::fabric::Region;
use crate::ptr::{GroupKey, NodeId, RemotePtr};
use crate::space::{Allocation, GRANULE_BYTES, Offsets, Space, clear};

const PAGE_BYTES: usize = 4096;
/// Bytes at the start of each group that belong to no region. Global fences read the first word.
const RESERVED_BYTES: u64 = 64;

/// The memory of one permission group of this node.
pub(crate) struct GroupMemory<K: Keeper> {
    key: GroupKey,
    keeper: Arc<K>,
    limit_bytes: usize,
    /// The slot of the keeper's own memory, and the most bytes of it.
    on_device: Option<(usize, usize)>,
    offsets: Offsets,
    /// By local keys, and by those that peers need.
    own: Table,
    remote: Table,
    grown: Mutex<Grown<K>>,
    /// Dropped after the parts of it. Regions keep this memory, so no address in it is left.
    range: AddressRange,
}

struct Grown<K: Keeper> {
    parts: [Option<K::Part>; SLOTS],
    on_device: Option<K::Words>,
    /// Bytes given out of each slot at least once, and those of them that may be reused.
    used: [u64; SLOTS],
    spaces: [Space; SLOTS],
}

impl<K: Keeper> GroupMemory<K> {
    /// Creates memory whose regions may have `limit_bytes` together.
    ///
    /// # Errors
    /// No address space, or not even the first chunk.
    pub(crate) fn create(keeper: &Arc<K>, key: GroupKey, limit_bytes: usize) -> Result<Arc<GroupMemory<K>>> {
        let out_of_memory = |why: String| ErrorKind::OutOfMemory { key, asked_bytes: limit_bytes, why };
        // So a region of any size up to the limit finds a slot.
        let last = (0..SLOTS).find(|slot| slot_bytes(*slot) >= limit_bytes as u64).unwrap_or(SLOTS - 1);
        let reserve_bytes = (slot_first(last) + slot_bytes(last)) as usize;
        let range = AddressRange::reserve(reserve_bytes).map_err(out_of_memory)?;
        let mut used = [0; SLOTS];
        used[0] = RESERVED_BYTES;
        let granules = keeper.words_bytes_max() / GRANULE_BYTES as usize;
        let on_device = (granules > 0 && last + 1 < SLOTS).then_some((last + 1, granules * GRANULE_BYTES as usize));
        let space_bytes = if on_device.is_some() { 2 * reserve_bytes } else { reserve_bytes };
        let memory = GroupMemory {
            key,
            keeper: Arc::clone(keeper),
            limit_bytes,
            on_device,
            offsets: Offsets::new(space_bytes as u64),
            own: Table::default(),
            remote: Table::default(),
            grown: Mutex::new(Grown {
                parts: [const { None }; SLOTS],
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
    pub(crate) fn alloc(self: &Arc<Self>, me: NodeId, bytes: usize) -> Result<Region> {
        let Some(asked) = (bytes as u64).checked_next_multiple_of(GRANULE_BYTES) else {
            return Err(self.exhausted(bytes as u64, "no machine has that much".into()));
        };
        let mut grown = self.grown.lock().unwrap_or_else(PoisonError::into_inner);
        // The limit counts regions, and not the rest of chunks: the last chunks may exceed it.
        if grown.used.iter().sum::<u64>().saturating_add(asked) > self.limit_bytes as u64 {
            return Err(self.exhausted(asked, format!("this node may use {} bytes for it", self.limit_bytes)));
        }
        let room = |grown: &Grown<K>, slot: usize| {
            self.own.lines[slot].bytes.load(Ordering::Relaxed).saturating_sub(grown.used[slot]) >= asked
        };
        let slot = match (0..SLOTS).find(|slot| room(&grown, *slot)) {
            Some(slot) => slot,
            None => {
                let fits = |slot: &usize| {
                    grown.parts[*slot].is_none()
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
    pub(crate) fn alloc_again(self: &Arc<Self>, me: NodeId, bytes: usize) -> Option<(Region, Option<GenerationInfo>)> {
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

    /// Allocates words in the keeper's own memory, with a pattern of values, as a region without bytes: it has no
    /// address here. None if it has no memory, or none left. The second result must be announced to the peers,
    /// as new chunks are.
    pub(crate) fn alloc_words(
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
            let taken = self.keeper.take_words(least, most);
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
    pub(crate) fn give_back(&self, allocation: &Allocation) -> GenerationInfo {
        let Allocation { start, bytes, generation, .. } = *allocation;
        let generation = self.offsets.next(generation);
        let news = GenerationInfo { address_bits: self.address_bits(), first: start, bytes, generation };
        self.remote.set_generation(news);
        news
    }

    /// Makes memory available again, once no operation can reach its former use.
    pub(crate) fn give_out_again(&self, info: GenerationInfo) {
        let mut grown = self.grown.lock().unwrap_or_else(PoisonError::into_inner);
        grown.spaces[slot_of(info.first)].give(info.first, info.bytes, info.generation);
    }

    /// The memory with a generation other than 0, for peers.
    #[must_use]
    pub(crate) fn generations(&self) -> Vec<GenerationInfo> {
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
    pub(crate) fn count(&self) -> usize {
        self.remote.chunks().count()
    }

    /// All chunks, for peers.
    #[must_use]
    pub(crate) fn chunks(&self) -> Vec<ChunkInfo> {
        self.remote.chunks().collect()
    }

    /// The local key of `len` bytes at `at`.
    pub(crate) fn local_key(&self, at: *const u8, len: usize) -> Result<u32, Code> {
        let offset = (at as usize).wrapping_sub(self.range.base().as_ptr() as usize);
        self.own.find(offset as u64, len).map(|(_, key)| key)
    }

    /// Makes a slot usable: as a whole, or if that is too much its first `asked` bytes.
    fn grow(&self, grown: &mut Grown<K>, slot: usize, asked: u64) -> Result<()> {
        let limit = self.limit_bytes as u64;
        let registered: u64 = self.own.chunks().map(|chunk| chunk.bytes).sum();
        let (whole, least) = (slot_bytes(slot) as usize, (asked as usize).next_multiple_of(PAGE_BYTES));
        if whole > least && whole as u64 <= limit.saturating_sub(registered) && self.grow_by(grown, slot, whole).is_ok()
        {
            return Ok(());
        }
        self.grow_by(grown, slot, least).map_err(|why| self.exhausted(asked, why))
    }

    fn grow_by(&self, grown: &mut Grown<K>, slot: usize, bytes: usize) -> Result<(), String> {
        let first = slot_first(slot);
        // SAFETY: the slot is not usable yet, so it has no user. Its part is dropped before the range; the memory is
        // shared by nature, and all access to it is atomic or an operation's.
        let opened = unsafe { self.keeper.open(&self.range, first as usize, bytes) }?;
        let Opened { part, local_key: lkey, remote_key: rkey } = opened;
        let start = self.range.base().as_ptr() as u64 + first;
        grown.parts[slot] = Some(part);
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
