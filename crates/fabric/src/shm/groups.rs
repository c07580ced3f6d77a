//! The memory of this node's permission groups: given out, given back, and given out again.
//!
//! **Giving back** changes the generation of each granule, and begins to fence all writers (see `fences`). When that is done, a
//! pending write has its lane's mark odd, and a later one sees the change. So once each odd mark has changed, nothing lands there
//! any more. The call waits for none of that: the memory stays in a list until an allocation finds that it is so, and that the
//! region has no holder here any more. An allocation waits only where it would need more memory than is good. A peer that is stopped in the
//! middle of a write keeps the memory in the list; one whose process has ended does not. Reads check the generation again after
//! they have read, so no call waits for them.

use core::ptr::NonNull;
use core::sync::atomic::Ordering;
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

/// For how long it waits for them, and then for the writes that were under way.
const FENCE_MAX: Duration = Duration::from_millis(100);
const WRITE_MAX: Duration = Duration::from_millis(10);

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
    given_back: Vec<GivenBack>,
    /// When service threads were woken for its fences.
    urged: Instant,
}

/// Memory that was given back, and may still be in use.
struct GivenBack {
    allocation: Weak<Allocation>,
    start: u64,
    bytes: u64,
    /// With which it may be given out.
    generation: u8,
    /// The fence of all writers, until it is done; then the pending writes.
    fence: Option<Fence>,
    writes: Vec<Write>,
}

/// A write that was under way: its lane had this mark.
#[derive(Clone)]
struct Write {
    node: NodeId,
    lane: usize,
    mark: u64,
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
            given_back: Vec::new(),
            urged: Instant::default(),
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

    /// Takes unused memory out of the list.
    fn reclaim(&mut self, fabric: &ShmFabric) {
        let space = &mut self.space;
        let mut writes = None;
        self.given_back.retain_mut(|given| {
            if let Some(fence) = &mut given.fence {
                if !fabric.is_done(fence) {
                    return true;
                }
                given.fence = None;
                given.writes.clone_from(writes.get_or_insert_with(|| fabric.memory.writes()));
            }
            given.writes.retain(|write| {
                let Some(card) = fabric.memory.card(write.node) else { return true };
                let is_pending = card.marks[write.lane].0.load(Ordering::Acquire) == write.mark;
                is_pending && !fabric.memory.has_ended(write.node)
            });
            if !given.writes.is_empty() || !is_let_go(&given.allocation) {
                return true;
            }
            space.give(given.start, given.bytes, given.generation);
            false
        });
    }
}

impl OwnGroup {
    /// Takes memory that was given back, if there is any. Service threads are woken for what waits for their answers.
    fn reclaim_and_take(&mut self, fabric: &ShmFabric, bytes: usize) -> Option<(u64, u8)> {
        self.reclaim(fabric);
        let taken = self.space.take(bytes as u64);
        let now = Instant::monotonic();
        if let Some(fence) = self.last_fence()
            && taken.is_none()
            && now.since(self.urged) >= URGE_EVERY
        {
            fabric.urge(fence);
            self.urged = now;
        }
        taken
    }

    /// The last fence that is not done, which was asked for after all others.
    fn last_fence(&self) -> Option<&Fence> {
        self.given_back.iter().rev().find_map(|given| given.fence.as_ref())
    }

    /// Whether so much memory waits for fences that an allocation has to wait, too.
    fn owes_much(&self) -> bool {
        let owed = self.given_back.iter().filter(|given| given.fence.is_some()).map(|given| given.bytes).sum::<u64>();
        owed > OWED_BYTES_MAX.max(self.used as u64 / 2)
    }

    /// Whether so many bytes more are beyond the limit.
    fn is_full(&self, bytes: usize) -> bool {
        self.used.saturating_add(bytes) > self.arena.limit()
    }

    /// Whether memory waits only for writes that were under way.
    fn awaits_writes(&self) -> bool {
        self.given_back.iter().any(|given| !given.writes.is_empty() && is_let_go(&given.allocation))
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
        let unknown = || ErrorKind::UnknownGroup { node: self.me, key };
        let Some(whole) = bytes.checked_next_multiple_of(GRANULE_BYTES as usize) else {
            let why = "no machine has that much".into();
            return Err(ErrorKind::OutOfMemory { key, asked_bytes: bytes, why }.into());
        };
        let mut groups = lock(&self.groups);
        let group = groups.get_mut(usize::from(key.0)).ok_or_else(unknown)?;
        let mut again = group.reclaim_and_take(self, whole);
        if again.is_none() && (group.owes_much() || group.is_full(whole)) {
            let (fence, is_full) = (group.last_fence().cloned(), group.is_full(whole));
            drop(groups);
            if let Some(mut fence) = fence {
                self.urge(&fence);
                self.wait_for_fence(&mut fence, FENCE_MAX);
            }
            let fenced = Instant::monotonic();
            groups = lock(&self.groups);
            again = groups[usize::from(key.0)].reclaim_and_take(self, whole);
            // Writes that were under way soon end, and so do processes that were killed.
            while again.is_none()
                && is_full
                && groups[usize::from(key.0)].awaits_writes()
                && Instant::monotonic().since(fenced) < WRITE_MAX
            {
                drop(groups);
                std::thread::yield_now();
                groups = lock(&self.groups);
                again = groups[usize::from(key.0)].reclaim_and_take(self, whole);
            }
        }
        let group = &mut groups[usize::from(key.0)];
        let (start, generation) = match again {
            Some((start, generation)) => {
                set_generation(group.generations.of(start, whole as u64), generation);
                (start, generation)
            }
            None => {
                let start = group.used;
                let Some(end) = start.checked_add(whole) else {
                    let why = "no machine has that much".into();
                    return Err(ErrorKind::OutOfMemory { key, asked_bytes: bytes, why }.into());
                };
                group.grow(end)?;
                group.used = end;
                let len_now = &self.memory.own.card().group_bytes.0[usize::from(key.0)];
                len_now.store(group.arena.len() as u64, Ordering::Release);
                (start as u64, 0)
            }
        };
        let offset = group.offsets().offset(start, generation);
        let arena = Arc::clone(&group.arena);
        drop(groups); // zeroing much memory takes long
        let base = NonNull::new(arena.base().wrapping_add(start as usize)).expect("a mapping is not at address zero");
        if again.is_some() {
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
        let key = group.key;
        drop(groups);
        let fence = Some(self.begin_fence(None)?);
        let mut groups = lock(&self.groups);
        let group = &mut groups[usize::from(key.0)];
        let allocation = Arc::downgrade(&allocation);
        group.given_back.push(GivenBack { allocation, start, bytes, generation, fence, writes: Vec::new() });
        Ok(())
    }
}
