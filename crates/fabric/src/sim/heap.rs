//! The memory of simulated nodes: given out, given back, and given out again.
//!
//! An operation under way when memory is given back lands there, or is refused: both are explored. The memory is given
//! out again when no operation is under way to it any more. The other fabrics do the same, but learn it in other ways.

use std::sync::{Arc, Weak};

use mowgli::machine::Thread as Cpu;

use super::arena::NODE_BYTES;
use super::wait_set::mix;
use super::world::Inner;
use crate::ptr::GroupKey;
use crate::space::{Allocation, GRANULE_BYTES, Offsets, Space, is_let_go};

const GRANULE_WORDS: u32 = (GRANULE_BYTES / 8) as u32;

fn offsets() -> Offsets {
    Offsets::new(NODE_BYTES as u64)
}

/// Address and generation of an offset.
pub(super) fn split(offset: u64) -> (u64, u8) {
    let mask = offsets().mask();
    (offset & mask, (offset >> mask.count_ones()) as u8)
}

pub(super) fn offset(address: u64, generation: u8) -> u64 {
    offsets().offset(address, generation)
}

/// The parts of a node's memory that were given back.
#[derive(Default)]
pub(super) struct Heap {
    /// By granules; those behind the last have 0.
    generations: Vec<u8>,
    space: Space,
    given_back: Vec<GivenBack>,
}

struct GivenBack {
    allocation: Weak<Allocation>,
    start: u64,
    bytes: u64,
    generation: u8,
}

impl Heap {
    /// The generation of the granule of a word.
    pub(super) fn generation(&self, word: u64) -> u8 {
        let granule = usize::try_from(word / u64::from(GRANULE_WORDS)).unwrap_or(usize::MAX);
        self.generations.get(granule).copied().unwrap_or(0)
    }

    /// Of the memory that was given back, and of the memory that was given out again.
    pub(super) fn digest(&self) -> u64 {
        self.generations.iter().fold(0, |digest, generation| mix(digest, u64::from(*generation)))
    }

    fn set_generation(&mut self, start: u64, bytes: u64, generation: u8) {
        let (first, end) = ((start / GRANULE_BYTES) as usize, ((start + bytes) / GRANULE_BYTES) as usize);
        if self.generations.len() < end {
            self.generations.resize(end, 0);
        }
        self.generations[first..end].fill(generation);
    }
}

impl Inner {
    /// Words for a region of a node, all of them zero, and their generation.
    pub(super) fn take_words(&mut self, node: u16, key: GroupKey, bytes: usize) -> Option<(u32, u8)> {
        let whole = bytes.checked_next_multiple_of(GRANULE_BYTES as usize)?;
        self.reclaim(node);
        let state = &mut self.nodes[usize::from(node)];
        let (first, generation) = match state.heap.space.take(whole as u64) {
            Some((start, generation)) => {
                state.heap.set_generation(start, whole as u64, generation);
                ((start / 8) as u32, generation)
            }
            None => {
                let first = state.words;
                let end = (whole / 8).checked_add(first as usize).filter(|end| *end <= NODE_BYTES / 8)?;
                state.words = end as u32;
                self.machine.grow(node, end as u32);
                (first, 0)
            }
        };
        let regions = &mut self.nodes[usize::from(node)].regions;
        let at = regions.partition_point(|(other, ..)| *other < first);
        regions.insert(at, (first, bytes.div_ceil(8) as u32, key));
        if generation > 0 {
            for word in first..first + (whole / 8) as u32 {
                self.machine.poke(mowgli::machine::Loc { node, word }, 0);
            }
        }
        Some((first, generation))
    }

    /// From now on nothing new gets to a node's memory by the pointers that there are.
    pub(super) fn give_back(&mut self, node: u16, key: GroupKey, allocation: &Arc<Allocation>) {
        let state = &mut self.nodes[usize::from(node)];
        let Allocation { start, bytes, generation, .. } = **allocation;
        let generation = offsets().next(generation);
        state.heap.set_generation(start, bytes, generation);
        let first = (start / 8) as u32;
        // An empty region begins where another does.
        if let Some(at) = state.regions.iter().position(|region| (region.0, region.2) == (first, key))
            && bytes > 0
        {
            state.regions.remove(at);
        }
        state.heap.given_back.push(GivenBack { allocation: Arc::downgrade(allocation), start, bytes, generation });
    }

    /// The operations under way to memory of a node: the nodes that have posted them, lanes and sequences.
    pub(super) fn under_way(&self, node: u16, to: &Allocation) -> Vec<(u16, Cpu, u32)> {
        let range = to.start / 8..(to.start + to.bytes) / 8;
        let of = |from: u16, lane: Cpu| {
            let all = self.machine.in_flight(lane, node).into_iter();
            let there = all.filter(|(_, loc)| range.contains(&u64::from(loc.word)));
            there.map(move |(sequence, _)| (from, lane, sequence)).collect::<Vec<_>>()
        };
        self.lanes.iter().flat_map(|lane| of(lane.node, lane.lane)).collect()
    }

    /// Takes note of memory that nothing gets to any more.
    fn reclaim(&mut self, node: u16) {
        if self.nodes[usize::from(node)].heap.given_back.is_empty() {
            return;
        }
        // A store to the memory may wait in a store buffer.
        let mut threads = self.threads.iter().filter(|thread| thread.node == node);
        if !threads.all(|thread| self.machine.is_drained(thread.cpu)) {
            return;
        }
        let to: Vec<u32> = self
            .lanes
            .iter()
            .flat_map(|lane| self.machine.in_flight(lane.lane, node))
            .map(|(_, loc)| loc.word)
            .collect();
        let heap = &mut self.nodes[usize::from(node)].heap;
        heap.given_back.retain(|given| {
            let range = given.start / 8..(given.start + given.bytes) / 8;
            if !is_let_go(&given.allocation) || to.iter().any(|word| range.contains(&u64::from(*word))) {
                return true;
            }
            heap.space.give(given.start, given.bytes, given.generation);
            false
        });
    }
}
