//! The memory of this node's permission groups: given out, given back, and given out again.
//!
//! **Giving back** changes the generation of each granule, and then fences all writers (see `fences`). A pending write
//! then has its lane's mark odd; a later one sees the change. So once each odd mark has changed, nothing lands there
//! any more. No call waits for that: the memory stays in a list until an allocation finds that it is so, and that the
//! region has no holder here any more. A peer that is stopped in the middle of a write keeps it in the list; a dead
//! one does not, after one more fence: a killed process runs no more code then. Reads check the generation again after
//! they have read, so no call waits for them.

use core::iter;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::node_header::{Mark, NodeHeader};

use super::ShmFabric;
use super::limits::{RESERVED_BYTES, lock, system};
use super::reach::Memory;
use crate::error::{ErrorKind, Result};
use crate::fabric::{Bell, Region};
use crate::ptr::{GroupKey, NodeId, RemotePtr};
use crate::space::{Allocation, GRANULE_BYTES, Offsets, Space, clear, is_let_go, set_generation};
use crate::sys::generations::Generations;
use crate::sys::memory::Arena;
use crate::sys::pages::HugePages;

/// How long the fence of all writers may take when memory is given back.
const FENCE_MAX: Duration = Duration::from_secs(10);

pub(super) struct OwnGroup {
    pub(super) arena: Arc<Arena>,
    pub(super) generations: Arc<Generations>,
    pub(super) bell: Bell,
    key: GroupKey,
    /// Bytes given out at least once.
    used: usize,
    space: Space,
    given_back: Vec<GivenBack>,
}

/// Memory that was given back, and may still be in use.
struct GivenBack {
    allocation: Weak<Allocation>,
    start: u64,
    bytes: u64,
    /// With which it may be given out.
    generation: u8,
    writes: Vec<Write>,
}

/// A write that was under way: its lane had this mark.
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
        self.given_back.retain_mut(|given| {
            given.writes.retain(|write| {
                let Some(card) = fabric.memory.card(write.node) else { return true };
                if card.marks[write.lane].0.load(Ordering::Acquire) != write.mark {
                    return false;
                }
                !(card.is_dead() && fabric.fence_writers(iter::once(write.node), FENCE_MAX).is_ok())
            });
            if !given.writes.is_empty() || !is_let_go(&given.allocation) {
                return true;
            }
            space.give(given.start, given.bytes, given.generation);
            false
        });
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

    /// The pending writes, as far as is known, after a fence of all writers.
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
        let mut groups = lock(&self.groups);
        let Some(group) = groups.get_mut(usize::from(key.0)) else {
            return Err(ErrorKind::UnknownGroup { node: self.me, key }.into());
        };
        let Some(whole) = bytes.checked_next_multiple_of(GRANULE_BYTES as usize) else {
            let why = "no machine has that much".into();
            return Err(ErrorKind::OutOfMemory { key, asked_bytes: bytes, why }.into());
        };
        group.reclaim(self);
        let again = group.space.take(whole as u64);
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
        // A write that begins after this sees the change; one that has begun before it is seen.
        let key = group.key;
        drop(groups);
        self.fence_writers((0..self.memory.known_peers().len()).map(|node| NodeId(node as u16)), FENCE_MAX)?;
        let writes = self.memory.writes();
        let mut groups = lock(&self.groups);
        let group = &mut groups[usize::from(key.0)];
        let allocation = Arc::downgrade(&allocation);
        group.given_back.push(GivenBack { allocation, start, bytes, generation, writes });
        Ok(())
    }
}
