//! The memory of this node's permission groups: given out, given back, and given out again.
//!
//! **Giving back** changes the generation of each granule. Then all writers are fenced (see `fences`): one fence at a
//! time, for all that was given back before it began. When it is done, a pending write has its lane's mark odd, and a
//! later one sees the change. So once each odd mark has changed, nothing lands there any more. No call that gives back
//! waits for that: the memory stays in a list until an allocation finds that it is so, and that the region has no
//! holder here any more. An allocation waits only where it would need more memory than is good. A peer that is stopped
//! in the middle of a write keeps the memory in the list, until it continues or its process has ended. Reads check the
//! generation again after they have read, so no call waits for them.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::fences::Fence;
use super::node_header::{Mark, NodeHeader};

use super::ShmFabric;
use super::limits::{RESERVED_BYTES, lock, system};
use super::reach::Memory;
use crate::error::{ErrorKind, Result};
use crate::fabric::{Bell, Region};
use crate::local::Instant;
use crate::ptr::{GroupKey, NodeId, RemotePtr};
use crate::space::{Allocation, GRANULE_BYTES, Offsets, Space, clear, is_let_go, set_generation};
use crate::sys::generations::Generations;
use crate::sys::memory::Arena;
use crate::sys::pages::HugePages;

/// So many bytes, or half of the memory if that is more, may wait for fences before an allocation waits for them, too.
const OWED_BYTES_MAX: u64 = 16 << 20;

/// For how long it waits for a fence, and then for the writes that were under way.
const FENCE_MAX: Duration = Duration::from_millis(100);
const WRITE_MAX: Duration = Duration::from_millis(10);

/// After a wait in vain, none for so long, unless there is no other memory.
const VAIN_PAUSE: Duration = Duration::from_secs(1);

/// Service threads are woken for fences once in so long.
const URGE_EVERY: Duration = Duration::from_millis(1);

pub(super) struct OwnGroup {
    pub(super) arena: Arc<Arena>,
    pub(super) generations: Arc<Generations>,
    pub(super) bell: Bell,
    key: GroupKey,
    /// Bytes given out at least once.
    used: usize,
    space: Space,
    /// Memory that was given back, and may still be in use.
    given_back: GivenBack,
    /// When service threads were woken for its fences.
    urged: Instant,
    /// From when on an allocation may wait.
    waits_from: Instant,
}

#[derive(Default)]
struct GivenBack {
    /// The memory that was given back since the fence began.
    unfenced: Vec<Freed>,
    /// A fence of all writers, and the memory that was given back before it began.
    fence: Option<(Fence, Vec<Freed>)>,
    /// The memory behind a fence, with the writes that were under way when that was done.
    fenced: Vec<(Vec<Write>, Vec<Freed>)>,
}

struct Freed {
    allocation: Weak<Allocation>,
    start: u64,
    bytes: u64,
    /// With which it may be given out.
    generation: u8,
}

/// A write that was under way: its lane had this mark.
#[derive(Clone, PartialEq)]
struct Write {
    node: NodeId,
    lane: usize,
    mark: u64,
}

/// What memory that was given back waits for.
enum Waits {
    Fence(Fence),
    Writes,
    /// For nothing, or there is too little of it.
    No,
}

impl GivenBack {
    /// Begins the next fence, unless one is under way. If that fails, a later call tries it again.
    fn begin_fence(&mut self, fabric: &ShmFabric) {
        if self.fence.is_none()
            && !self.unfenced.is_empty()
            && let Ok(fence) = fabric.begin_fence(None)
        {
            self.fence = Some((fence, std::mem::take(&mut self.unfenced)));
        }
    }

    /// Passes on to `give` the memory that is in no use any more.
    fn reclaim(&mut self, fabric: &ShmFabric, mut give: impl FnMut(&Freed)) {
        if let Some((fence, freed)) = self.fence.take_if(|(fence, _)| fabric.is_done(fence)) {
            debug_assert!(fence.is_over());
            // Behind the fence: the mark of each write that may still land there is visible.
            let writes = fabric.memory.writes();
            match self.fenced.last_mut().filter(|last| last.0 == writes) {
                Some(last) => last.1.extend(freed),
                None => self.fenced.push((writes, freed)),
            }
        }
        self.begin_fence(fabric);
        self.fenced.retain_mut(|(writes, freed)| {
            writes.retain(|write| {
                let Some(card) = fabric.memory.card(write.node) else { return true };
                let is_pending = card.marks[write.lane].0.load(Ordering::Acquire) == write.mark;
                is_pending && !fabric.memory.has_ended(write.node)
            });
            if writes.is_empty() {
                freed.retain(|freed| {
                    let is_free = is_let_go(&freed.allocation);
                    if is_free {
                        give(freed);
                    }
                    !is_free
                });
            }
            !freed.is_empty()
        });
    }

    /// Bytes that wait for fences.
    fn owed(&self) -> u64 {
        let under_way = self.fence.iter().flat_map(|(_, freed)| freed);
        self.unfenced.iter().chain(under_way).map(|freed| freed.bytes).sum()
    }

    /// What has to be waited for, if so many bytes may come of it.
    fn waits(&self, bytes: u64) -> Waits {
        let all = self.fenced.iter().filter(|(writes, _)| !writes.is_empty()).flat_map(|(_, freed)| freed);
        let written: u64 = all.filter(|freed| is_let_go(&freed.allocation)).map(|freed| freed.bytes).sum();
        match &self.fence {
            _ if self.owed() + written < bytes => Waits::No,
            Some((fence, _)) => Waits::Fence(fence.clone()),
            None if written > 0 => Waits::Writes,
            None => Waits::No,
        }
    }
}

impl OwnGroup {
    pub(super) fn create(
        session: &str,
        me: NodeId,
        key: GroupKey,
        bell: Bell,
        bytes_max: usize,
        pages: HugePages,
    ) -> Result<OwnGroup> {
        let name = |what: &str| format!("farfield-{what}{session}-{}-{}", me.0, key.0);
        let arena = Arena::create(&name(""), bytes_max, bytes_max, pages.kinds());
        let arena = arena.map_err(|why| system("memory of a group")(&why))?;
        let generations = Generations::create(&name("generations-"), arena.reserve());
        let generations = generations.map_err(|why| system("generations of a group")(&why))?;
        let group = OwnGroup {
            arena: Arc::new(arena),
            generations: Arc::new(generations),
            bell,
            key,
            used: RESERVED_BYTES,
            space: Space::default(),
            given_back: GivenBack::default(),
            urged: Instant::default(),
            waits_from: Instant::default(),
        };
        group.grow(RESERVED_BYTES)?;
        Ok(group)
    }

    pub(super) fn offsets(&self) -> Offsets {
        Offsets::new(self.arena.reserve() as u64)
    }

    /// Makes at least so many bytes usable.
    fn grow(&self, to: usize) -> Result<()> {
        let asked_bytes = to.saturating_sub(self.arena.len());
        let grown = self.arena.grow_to(to).and_then(|()| self.generations.grow_to(self.arena.len()));
        grown.map_err(|why| ErrorKind::OutOfMemory { key: self.key, asked_bytes, why: why.to_string() }.into())
    }

    /// Takes memory that was given back, if there is any. Service threads are woken for what waits for their answers.
    fn reclaim_and_take(&mut self, fabric: &ShmFabric, bytes: u64) -> Option<u64> {
        let space = &mut self.space;
        self.given_back.reclaim(fabric, |freed| space.give(freed.start, freed.bytes, freed.generation));
        if let Some((start, generation)) = space.take(bytes) {
            set_generation(self.generations.of(start, bytes), generation);
            return Some(self.offsets().offset(start, generation));
        }
        let now = Instant::monotonic();
        if let Some((fence, _)) = &self.given_back.fence
            && now.since(self.urged) >= URGE_EVERY
        {
            fabric.urge(fence);
            self.urged = now;
        }
        None
    }

    /// Takes memory that was never given out: the offset of its beginning.
    fn extend(&mut self, bytes: u64, len_now: &AtomicU64) -> Result<u64> {
        let start = self.used;
        self.grow(start.saturating_add(bytes as usize))?;
        self.used = start + bytes as usize;
        len_now.store(self.arena.len() as u64, Ordering::Release);
        Ok(self.offsets().offset(start as u64, 0))
    }

    /// Whether so much memory waits for fences that an allocation has to wait, too.
    fn owes_much(&self) -> bool {
        let is_much = self.given_back.owed() > OWED_BYTES_MAX.max(self.used as u64 / 2);
        is_much && Instant::monotonic() >= self.waits_from
    }
}

impl Memory {
    /// The card of a node, if it is known.
    fn card(&self, node: NodeId) -> Option<&NodeHeader> {
        if node.index() == self.own.0.node() as usize {
            Some(self.own.card())
        } else {
            self.peer(node).map(NodeHeader::of)
        }
    }

    /// The pending writes, after a fence of all writers.
    fn writes(&self) -> Vec<Write> {
        let of = |(lane, mark): (usize, &Mark)| {
            let mark = mark.0.load(Ordering::Acquire);
            (mark % 2 == 1).then_some((lane, mark))
        };
        let nodes = (0..self.known_peers().len()).map(|node| NodeId(node as u16));
        let cards = nodes.filter_map(|node| self.card(node).map(|card| (node, card)));
        let writes = cards.flat_map(|(node, card)| {
            let odd = card.marks.iter().enumerate().filter_map(of);
            odd.map(move |(lane, mark)| Write { node, lane, mark })
        });
        writes.collect()
    }
}

impl ShmFabric {
    pub(super) fn alloc_in(&self, key: GroupKey, bytes: usize) -> Result<Region> {
        let Some(whole) = bytes.checked_next_multiple_of(GRANULE_BYTES as usize) else {
            let why = "no machine has that much".into();
            return Err(ErrorKind::OutOfMemory { key, asked_bytes: bytes, why }.into());
        };
        let mut has_waited = false;
        let (offset, arena, offsets) = loop {
            let mut groups = lock(&self.groups);
            let Some(group) = groups.get_mut(usize::from(key.0)) else {
                return Err(ErrorKind::UnknownGroup { node: self.me, key }.into());
            };
            let again = group.reclaim_and_take(self, whole as u64);
            let taken = match again {
                Some(offset) => Some(offset),
                None if !has_waited && group.owes_much() => None,
                None => match group.extend(whole as u64, &self.memory.own.card().group_bytes.0[usize::from(key.0)]) {
                    Ok(offset) => Some(offset),
                    Err(error) if has_waited => return Err(error),
                    Err(_) => None,
                },
            };
            if let Some(offset) = taken {
                break (offset, Arc::clone(&group.arena), group.offsets()); // zeroing much memory takes long
            }
            drop(groups);
            has_waited = true;
            self.wait_for_memory(key, whole as u64);
        };
        let (start, generation) = (offset & offsets.mask(), (offset >> offsets.mask().count_ones()) as u8);
        let base = NonNull::new(arena.base().wrapping_add(start as usize)).expect("a mapping is not at address zero");
        if generation > 0 {
            // SAFETY: the range is part of the arena, aligned to 64, and in no use: late reads are by atomics.
            unsafe { clear(base.as_ptr(), whole) };
        }
        let remote = RemotePtr::new(self.me, key, offset);
        let keep: Arc<dyn std::any::Any + Send + Sync> = Allocation::new(start, whole as u64, generation, arena);
        // SAFETY: no other code uses the range (it was never given out, or was given back and is unused, see the head
        // of this file); it is grown, aligned to 64 and mapped as long as the arena, which `keep` keeps; access is by
        // atomics and fabric operations only, here and in the peers.
        Ok(unsafe { Region::new(base, bytes, remote, keep) })
    }

    /// Waits until so many bytes may be there that were given back, if they may soon be.
    fn wait_for_memory(&self, key: GroupKey, bytes: u64) {
        let start = Instant::monotonic();
        let mut fenced = start;
        loop {
            let now = Instant::monotonic();
            let mut groups = lock(&self.groups);
            let group = &mut groups[usize::from(key.0)];
            let space = &mut group.space;
            group.given_back.reclaim(self, |freed| space.give(freed.start, freed.bytes, freed.generation));
            let mut fence = match group.given_back.waits(bytes) {
                Waits::Fence(fence) if now.since(start) < FENCE_MAX => fence,
                Waits::Writes if now.since(fenced) < WRITE_MAX => {
                    drop(groups);
                    self.answer_fences();
                    std::thread::yield_now();
                    continue;
                }
                Waits::No => return,
                Waits::Fence(_) | Waits::Writes => {
                    group.waits_from = now + VAIN_PAUSE;
                    return;
                }
            };
            drop(groups);
            self.urge(&fence);
            self.wait_for_fence(&mut fence, FENCE_MAX);
            fenced = Instant::monotonic();
        }
    }

    pub(super) fn give_back(&self, region: &Region) -> Result<()> {
        let (remote, mut groups) = (region.remote::<u8>(0), lock(&self.groups));
        let group = groups.get_mut(usize::from(remote.key().0)).filter(|_| remote.node() == self.me);
        let of =
            |group: &OwnGroup| region.keep().clone().downcast::<Allocation>().ok().filter(|a| a.is_of(&group.arena));
        let Some((group, allocation)) = group.and_then(|group| of(group).map(|allocation| (group, allocation))) else {
            return Err(system("giving memory back")(&format!("{region:?} is no memory of {}", self.me)));
        };
        if !allocation.give_back() {
            return Ok(());
        }
        let Allocation { start, bytes, generation, .. } = *allocation;
        let generation = group.offsets().next(generation);
        set_generation(group.generations.of(start, bytes), generation);
        let allocation = Arc::downgrade(&allocation);
        group.given_back.unfenced.push(Freed { allocation, start, bytes, generation });
        group.given_back.begin_fence(self);
        Ok(())
    }
}
