//! The slots in network memory, and which of them are free.
//!
//! Each node's slots are divided among the nodes that may allocate them: with placement on the inserter, all of a
//! node's own; by hash, an equal share on every node. Only the allocator hands a slot out and takes it back, and it
//! keeps the count of the slot's uses.

use core::ops::Range;

#[cfg(test)]
use farfield_fabric::GroupKey;
use farfield_fabric::{LocalMutex, NodeId, RemotePtr};
use xxhash_rust::xxh3::xxh3_64_with_seed;
use zerocopy::IntoBytes;

use super::Placement;
use super::index::Entry;
use crate::error::Result;
use crate::objects::options::region_bytes;
use crate::objects::participants::Participants;

/// The shape of the slots of all nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Words of one slot.
    pub(super) words: usize,
    /// Slots of one node.
    pub(super) per_node: usize,
}

impl Layout {
    pub(super) fn bytes(&self) -> Result<usize> {
        region_bytes(self.per_node, self.words, "`slots_per_node` or `value_bytes_max`")
    }

    /// Words of a value that can be redone: the slot's, and two more in the place of its meta word.
    pub(super) fn redo_words(&self) -> usize {
        self.words + 1
    }
}

/// The first word of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Meta {
    pub(super) counter: u64,
    pub(super) valid: bool,
}

impl Meta {
    #[inline]
    pub(super) fn packed(self) -> u64 {
        self.counter << 1 | u64::from(self.valid)
    }

    #[inline]
    pub(super) fn from_packed(packed: u64) -> Meta {
        Meta { counter: packed >> 1, valid: packed & 1 == 1 }
    }
}

/// The version of the memory in which a store's nodes read each other's slots, and values to be redone. It is part of
/// the store's layout, so that a node of a build with another one does not open the store: it would take each value for
/// one that is being written. 1 had XXH3 for checksums of all lengths; 2 has another hash for one and for two words.
pub(super) const FORMAT: u32 = 2;

/// The checksum of a value in its `counter`-th use of a slot: one of another use does not pass for it.
#[inline]
pub(super) fn checksum(value: &[u64], counter: u64) -> u64 {
    hash(value, counter)
}

/// The checksum of a value to be redone, with its own checksum: for one use of one slot.
#[inline]
pub(super) fn redo_checksum(value: &[u64], entry: Entry) -> u64 {
    hash(value, entry.slot.packed() ^ entry.counter.rotate_left(32))
}

/// XXH3, but of one or two words, which are most values, a hash that costs a quarter. No two words have the same one.
#[inline]
fn hash(words: &[u64], seed: u64) -> u64 {
    match *words {
        [word] => mixed(word, seed),
        [first, second] => mixed(second, mixed(first, seed)),
        _ => xxh3_64_with_seed(words.as_bytes(), seed),
    }
}

/// A number for each word, by Stafford's finalizer (his 13th mix, as in SplitMix64). A seed makes it another one.
#[inline]
fn mixed(word: u64, seed: u64) -> u64 {
    const INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15; // SplitMix64's, so that even the first seeds differ in many bits
    let mut mixed = word ^ seed.wrapping_mul(INCREMENT).wrapping_add(INCREMENT);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// The slots that this node allocates.
pub(super) struct Slots {
    layout: Layout,
    participants: Participants,
    me: NodeId,
    /// Where each node's slots begin, in order of their ranks, like the others.
    bases: Vec<RemotePtr<u64>>,
    /// The part of each node's slots that is ours.
    shares: Vec<Range<usize>>,
    homes: Vec<LocalMutex<Home>>,
}

/// Our slots on one node.
struct Home {
    /// A stack.
    free: Vec<usize>,
    /// How often each has been used.
    uses: Vec<u64>,
}

impl Slots {
    pub(super) fn new(
        layout: Layout,
        participants: Participants,
        me: NodeId,
        placement: Placement,
        bases: Vec<RemotePtr<u64>>,
    ) -> Slots {
        let share = |home: NodeId| match (placement, participants.rank_of(me)) {
            (Placement::Inserter, _) if home == me => 0..layout.per_node,
            (Placement::Hash, Some(rank)) => {
                let at = |rank: usize| layout.per_node * rank / bases.len();
                at(rank)..at(rank + 1)
            }
            _ => 0..0,
        };
        let shares: Vec<Range<usize>> = participants.iter().map(share).collect();
        let home = |share: &Range<usize>| {
            LocalMutex::new(Home { free: share.clone().rev().collect(), uses: vec![0; share.len()] })
        };
        let homes = shares.iter().map(home).collect();
        Slots { layout, participants, me, bases, shares, homes }
    }

    /// A free slot on a node, and which use of it this is.
    pub(super) fn take(&self, home: NodeId) -> Option<(RemotePtr<u64>, u64)> {
        let rank = self.participants.rank_of(home)?;
        let mut place = self.homes[rank].lock();
        let number = place.free.pop()?;
        let uses = &mut place.uses[number - self.shares[rank].start];
        *uses += 1;
        Some((self.bases[rank].at(number * self.layout.words), *uses))
    }

    /// Whether this node hands out that slot.
    pub(super) fn is_ours(&self, slot: RemotePtr<u64>) -> bool {
        self.rank_of(slot).is_some_and(|(rank, number)| self.shares[rank].contains(&number))
    }

    /// Takes back a slot of ours. The caller knows that no index leads to it any more.
    pub(super) fn free(&self, slot: RemotePtr<u64>) {
        debug_assert!(self.is_ours(slot));
        if let Some((rank, number)) = self.rank_of(slot) {
            self.homes[rank].lock().free.push(number);
        }
    }

    /// How many slots this node may allocate on a node.
    pub(super) fn share_on(&self, home: NodeId) -> usize {
        self.participants.rank_of(home).map_or(0, |rank| self.shares[rank].len())
    }

    /// The rank of a slot's node, and the slot's number there.
    fn rank_of(&self, slot: RemotePtr<u64>) -> Option<(usize, usize)> {
        let rank = self.participants.rank_of(slot.node())?;
        let offset = slot.offset().saturating_sub(self.bases[rank].offset());
        Some((rank, offset as usize / (self.layout.words * 8)))
    }

    pub(super) fn me(&self) -> NodeId {
        self.me
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_is_that_of_its_words_its_use_and_its_slot() {
        let values: [&[u64]; 6] = [&[0], &[1], &[0, 0], &[0, 1], &[1, 0], &[0, 0, 0]];
        let mut seen = std::collections::HashSet::new();
        for value in values {
            for counter in [0, 1, 2, 1 << 40] {
                assert!(seen.insert(checksum(value, counter)), "{value:?} in use {counter}");
                for slot in [0, 24].map(|offset| RemotePtr::new(NodeId(1), GroupKey::DATA, offset)) {
                    let redone = redo_checksum(value, Entry { slot, counter });
                    assert!(seen.insert(redone), "{value:?} to be redone in use {counter} of {slot:?}");
                }
            }
        }
        // Words that differ in one bit have checksums that differ in about half of theirs.
        for bit in 0..64 {
            let differ = (checksum(&[7], 3) ^ checksum(&[7 ^ 1 << bit], 3)).count_ones();
            assert!((12..=52).contains(&differ), "{differ} bits for bit {bit}");
        }
    }

    /// Nodes of two builds read each other's checksums. If these numbers change, the format needs another one, too.
    #[test]
    fn a_format_has_its_checksums() {
        let checksums = [checksum(&[7], 3), checksum(&[7, 8], 3), checksum(&[7, 8, 9], 3)];
        assert_eq!((FORMAT, checksums), (2, [0x6d1d_b36c_cba9_82d2, 0xf26d_e982_c4b9_1ea0, 0xdc6f_87db_bab9_a1b6]));
    }

    #[test]
    fn with_its_inserter_a_node_has_all_slots_of_its_own_and_no_others() {
        let layout = Layout { words: 3, per_node: 4 };
        let participants = Participants::new(&[0, 1].map(NodeId));
        let bases: Vec<_> = participants.iter().map(|node| RemotePtr::new(node, GroupKey::DATA, 64)).collect();
        let [first, second] =
            [0, 1].map(|me| Slots::new(layout, participants.clone(), NodeId(me), Placement::Inserter, bases.clone()));
        assert_eq!((first.share_on(NodeId(0)), first.share_on(NodeId(1)), first.take(NodeId(1))), (4, 0, None));
        let (slot, _) = first.take(NodeId(0)).unwrap();
        assert!(first.is_ours(slot) && !second.is_ours(slot));
    }

    #[test]
    fn shares_cover_every_slot_once_and_uses_are_counted() {
        let layout = Layout { words: 3, per_node: 10 };
        let participants = Participants::new(&[0, 1, 5].map(NodeId));
        let bases: Vec<_> = participants.iter().map(|node| RemotePtr::new(node, GroupKey::DATA, 64)).collect();
        let slots_of = |me| Slots::new(layout, participants.clone(), me, Placement::Hash, bases.clone());
        let all: Vec<Slots> = participants.iter().map(slots_of).collect();
        let mut seen = std::collections::HashSet::new();
        for slots in &all {
            while let Some((slot, uses)) = slots.take(NodeId(1)) {
                assert!(seen.insert(slot.offset()) && uses == 1 && slots.is_ours(slot));
            }
        }
        assert_eq!(seen.len(), 10);
        let (slot, _) = all[2].take(NodeId(0)).unwrap();
        assert!(!all[0].is_ours(slot));
        all[2].free(slot);
        assert_eq!(all[2].take(NodeId(0)), Some((slot, 2)));
    }
}
