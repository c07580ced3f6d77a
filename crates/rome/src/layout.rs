//! Where things lie in the owner's memory, and the words that name them.

use farfield_core::Result;
use farfield_core::toolkit::region_bytes;

/// The line with the word `stable`.
pub(crate) const CONTROL_BYTES: usize = 64;
/// The supplemental words of a slot, which only the owner reads.
pub(crate) const SIDE_WORDS: usize = 2;
pub(crate) const LOCK: usize = 0;
pub(crate) const LAST_VERSION: usize = 1;

/// An active word: the block in which an object is, and how many of its words count.
///
/// ```text
/// 63                          32 31                           0
/// ┌─────────────────────────────┬─────────────────────────────┐
/// │ block + 1, 0 for none       │ end of base and log (words) │
/// └─────────────────────────────┴─────────────────────────────┘
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Active {
    pub(crate) block: u32,
    pub(crate) end: u32,
}

impl Active {
    #[inline]
    pub(crate) fn of(word: u64) -> Option<Active> {
        let block = (word >> 32) as u32;
        (block != 0).then(|| Active { block: block - 1, end: word as u32 })
    }

    #[inline]
    pub(crate) fn word(self) -> u64 {
        (u64::from(self.block) + 1) << 32 | u64::from(self.end)
    }
}

/// How many slots and blocks a region has.
///
/// ```text
/// +0   ┌────────┬─────────┬──────────────────┬──────────────────────┬──────────────────────────────┬───────────────────────────┐
///      │ stable │ unused  │ `ranks` pointers │ `slots` active words │ `slots` times lock, version  │ `blocks` of `block_words` │
///      │        │         │ to seats         │                      │ of the last change           │                           │
///      └────────┴─────────┴──────────────────┴──────────────────────┴──────────────────────────────┴───────────────────────────┘
///               +8        +64
/// ```
///
/// The other nodes put the pointers there when they open the object. All else is written by the owner alone.
///
/// Active words lie close together: those of a hundred thousand nodes are a megabyte, which stays in the caches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    /// Places of nodes in the session.
    pub(crate) ranks: usize,
    pub(crate) slots: usize,
    pub(crate) blocks: usize,
    pub(crate) block_words: usize,
}

impl Shape {
    pub(crate) fn bytes(&self, options: &str) -> Result<usize> {
        region_bytes(self.slots, 1 + SIDE_WORDS, options)?;
        Ok(self.block_at(0) + region_bytes(self.blocks, self.block_words, options)?)
    }

    /// The offset of the pointer to the seats of a node of this rank.
    pub(crate) fn seats_at(&self, rank: usize) -> usize {
        CONTROL_BYTES + rank * 8
    }

    #[inline]
    fn slots_at(&self) -> usize {
        CONTROL_BYTES + (self.ranks * 8).next_multiple_of(64)
    }

    /// The offset of a slot's active word.
    #[inline]
    pub(crate) fn slot_at(&self, slot: u32) -> usize {
        self.slots_at() + slot as usize * 8
    }

    /// The offset of its supplemental words.
    #[inline]
    pub(crate) fn side_at(&self, slot: u32) -> usize {
        self.slots_at() + (self.slots * 8).next_multiple_of(64) + slot as usize * SIDE_WORDS * 8
    }

    #[inline]
    pub(crate) fn block_at(&self, block: u32) -> usize {
        let sides = (self.slots * SIDE_WORDS * 8).next_multiple_of(64);
        self.slots_at() + (self.slots * 8).next_multiple_of(64) + sides + block as usize * self.block_words * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_active_word_is_its_block_and_end() {
        assert_eq!(Active::of(0), None);
        for active in [Active { block: 0, end: 0 }, Active { block: u32::MAX - 1, end: u32::MAX }] {
            assert_eq!(Active::of(active.word()), Some(active));
        }
    }

    #[test]
    fn blocks_follow_the_slots() {
        let shape = Shape { ranks: 2, slots: 3, blocks: 2, block_words: 10 };
        assert_eq!((shape.slot_at(1), shape.side_at(1), shape.block_at(0), shape.block_at(1)), (136, 208, 256, 336));
        assert_eq!(shape.bytes("`slots`").expect("it is small"), 416);
    }
}
