//! The nodes' memory, with a digest that is kept up to date word by word.

use super::{Loc, Node};

/// Stirs a value into a seed. For a fixed seed no two values give the same result.
pub(super) fn mix(seed: u64, value: u64) -> u64 {
    let x = (seed.rotate_left(23) ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    x ^ (x >> 32)
}

/// Stirs two values into one, with one multiplication of full width.
pub(super) fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ 0x9E37_79B9_7F4A_7C15) * u128::from(b ^ 0xD6E8_FEB8_6659_FD93);
    product as u64 ^ (product >> 64) as u64
}

/// A word's share of the digest: nothing if it is 0, so that memory which was never touched costs nothing.
fn share(loc: Loc, value: u64) -> u64 {
    if value == 0 {
        0
    } else {
        mix((u64::from(loc.node) << 32 | u64::from(loc.word)).wrapping_mul(0xA24B_AED4_963E_E407), value)
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Memory {
    nodes: Vec<Vec<u64>>,
    /// The xor of all words' shares.
    digest: u64,
}

impl Memory {
    pub(super) fn new(nodes: usize) -> Memory {
        Memory { nodes: vec![Vec::new(); nodes], digest: 0 }
    }

    pub(super) fn nodes(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn digest(&self) -> u64 {
        self.digest
    }

    pub(super) fn grow(&mut self, node: Node, words: u32) {
        let memory = &mut self.nodes[usize::from(node)];
        if memory.len() < words as usize {
            memory.resize(words as usize, 0);
        }
    }

    /// Whether a node has these words.
    pub(super) fn has(&self, loc: Loc, count: u32) -> bool {
        let words = self.nodes.get(usize::from(loc.node)).map_or(0, Vec::len);
        u64::from(loc.word) + u64::from(count) <= words as u64
    }

    pub(super) fn words(&self, loc: Loc, count: u32) -> &[u64] {
        assert!(self.has(loc, count), "node {} has no words {}..+{count}", loc.node, loc.word);
        &self.nodes[usize::from(loc.node)][loc.word as usize..][..count as usize]
    }

    pub(super) fn get(&self, loc: Loc) -> u64 {
        self.words(loc, 1)[0]
    }

    /// Whether the word has another value now.
    pub(super) fn set(&mut self, loc: Loc, value: u64) -> bool {
        assert!(self.has(loc, 1), "node {} has no word {}", loc.node, loc.word);
        let word = &mut self.nodes[usize::from(loc.node)][loc.word as usize];
        let old = std::mem::replace(word, value);
        if old == value {
            return false;
        }
        self.digest ^= share(loc, old) ^ share(loc, value);
        true
    }
}
