//! A CPU thread: its store buffer, its queue pairs.

use std::collections::VecDeque;

use smallvec::SmallVec;

use super::memory::mix;
use super::pair::{Digest, InFlight, Pair};
use super::{Node, Thread};

/// An entry of a store buffer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Entry {
    Write {
        word: u32,
        value: u64,
    },
    /// `lane` is the thread whose queue pair it enters, mostly the same.
    Operation {
        lane: Thread,
        peer: Node,
        operation: InFlight,
    },
}

/// A CPU thread and what hangs on it.
#[derive(Clone, Debug)]
pub(super) struct Cpu {
    pub(super) node: Node,
    pub(super) store_buffer: VecDeque<Entry>,
    /// How many entries of the store buffer are writes.
    pub(super) writes: usize,
    /// By peer.
    pub(super) pairs: Vec<Pair>,
    /// Cached: the peers whose pair has operations in flight, in order.
    pub(super) active: SmallVec<[Node; 8]>,
    /// Cached: how many of the machine's listed steps are its own.
    pub(super) listed: usize,
    /// Of the store buffer.
    pub(super) digest: Digest,
}

impl PartialEq for Cpu {
    fn eq(&self, other: &Cpu) -> bool {
        self.node == other.node && self.store_buffer == other.store_buffer && self.pairs == other.pairs
    }
}

impl Eq for Cpu {}

impl Cpu {
    /// A thread of a machine with so many nodes.
    pub(super) fn new(thread: Thread, node: Node, nodes: usize) -> Cpu {
        Cpu {
            node,
            store_buffer: VecDeque::new(),
            writes: 0,
            pairs: (0..nodes).map(|peer| Pair::new(thread, peer as Node)).collect(),
            active: SmallVec::new(),
            listed: 0,
            digest: Digest::default(),
        }
    }

    /// The newest buffered write of a word.
    pub(super) fn newest_write(&self, word: u32) -> Option<u64> {
        if self.writes == 0 {
            return None;
        }
        self.store_buffer.iter().rev().find_map(|entry| match entry {
            Entry::Write { word: other, value } if *other == word => Some(*value),
            _ => None,
        })
    }

    pub(super) fn pair(&self, peer: Node) -> &Pair {
        &self.pairs[usize::from(peer)]
    }

    /// Where in the store buffer an operation is.
    pub(super) fn buffered(&self, lane: Thread, peer: Node, sequence: u32) -> Option<usize> {
        if self.store_buffer.len() == self.writes {
            return None;
        }
        let sought = (lane, peer, sequence);
        self.store_buffer.iter().position(|entry| {
            matches!(entry, Entry::Operation { lane, peer, operation } if (*lane, *peer, operation.sequence) == sought)
        })
    }

    /// An operation enters its queue pair.
    pub(super) fn enter(&mut self, peer: Node, operation: InFlight) {
        let pair = &mut self.pairs[usize::from(peer)];
        if pair.is_empty()
            && let Err(at) = self.active.binary_search(&peer)
        {
            self.active.insert(at, peer);
        }
        pair.enter(operation);
    }

    /// An operation leaves its queue pair: it is finished, or never will be.
    pub(super) fn leave(&mut self, peer: Node, at: usize) -> InFlight {
        let pair = &mut self.pairs[usize::from(peer)];
        let operation = pair.leave(at);
        if pair.is_empty() {
            self.active.retain(|other| *other != peer);
        }
        operation
    }

    pub(super) fn digest(&self) -> u64 {
        if self.store_buffer.is_empty() {
            return 0;
        }
        self.digest.get(|| {
            self.store_buffer.iter().fold(1, |digest, entry| match entry {
                Entry::Write { word, value } => mix(mix(digest, u64::from(*word)), *value),
                Entry::Operation { lane, peer, operation } => {
                    operation.digest(mix(digest, !(u64::from(lane.0) << 16 | u64::from(*peer))))
                }
            })
        })
    }
}
