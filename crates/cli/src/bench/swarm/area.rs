//! Memory of the baselines on the memory nodes, and the buffers of their clients in it.
//!
//! ```text
//! a buffer:   ┌──────┬───────┐   the hash is of the number and the value
//!             │ hash │ value │
//!             └──────┴───────┘
//! a number:   ┌────────┬───────┬───────┐
//!             │ client │ count │ which │
//!             └────────┴───────┴───────┘
//!              7 bits   16      1
//! ```
//!
//! A client has two buffers for each key on each memory node, and writes the one that it has not written last. A late
//! reader finds a hash that does not fit.

use std::cell::RefCell;

use farfield::fabric::{Buf, GroupKey, RemotePtr};
use farfield::toolkit::{Object, ObjectBuilder, Regions};
use farfield::{Endpoint, ErrorKind, Node, NodeId, Result};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};
use zerocopy::IntoBytes;

use super::system::Scale;

/// A buffer and its contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Number(pub(super) u64);

impl Number {
    pub(super) const BITS: u32 = 24;

    /// The number in the low bits of a word.
    pub(super) fn of(word: u64) -> Number {
        Number(word & ((1 << Number::BITS) - 1))
    }

    fn new(client: usize, count: u16, which: bool) -> Number {
        Number((client as u64) << 17 | u64::from(count) << 1 | u64::from(which))
    }

    fn client(self) -> usize {
        (self.0 >> 17) as usize
    }

    fn which(self) -> usize {
        (self.0 & 1) as usize
    }
}

/// Words for each key, and buffers of each client, on some memory nodes.
pub(super) struct Area {
    _object: Object,
    pub(super) nodes: Vec<NodeId>,
    words: Vec<RemotePtr<u64>>,
    buffers: Vec<RemotePtr<u64>>,
    logs: Vec<RemotePtr<u64>>,
    scale: Scale,
}

impl Area {
    pub(super) fn open(node: &Node, kind: &'static str, scale: &Scale, nodes: &[NodeId]) -> Result<Area> {
        let buffers = scale.clients * scale.keys * 2 * (1 + scale.words());
        let regions = vec![("words", scale.keys * 8), ("buffers", buffers * 8), ("logs", scale.clients * 8)];
        let object = open(node, kind, nodes, regions)?;
        let at = |name: &str| nodes.iter().map(|node| object.remote(*node, name)).collect::<Result<Vec<_>>>();
        let (words, buffers, logs) = (at("words")?, at("buffers")?, at("logs")?);
        Ok(Area { _object: object, nodes: nodes.to_vec(), words, buffers, logs, scale: scale.clone() })
    }

    /// A key's word on a memory node.
    pub(super) fn word(&self, replica: usize, key: usize) -> RemotePtr<u64> {
        self.words[replica].at(key)
    }

    pub(super) fn buffer(&self, replica: usize, key: usize, number: Number) -> RemotePtr<u64> {
        let buffer = (number.client() * self.scale.keys + key) * 2 + number.which();
        self.buffers[replica].at(buffer * (1 + self.scale.words()))
    }

    /// A word of a client's.
    pub(super) fn log(&self, replica: usize, client: usize) -> RemotePtr<u64> {
        self.logs[replica].at(client)
    }

    pub(super) fn buffer_words(&self) -> usize {
        1 + self.scale.words()
    }
}

/// Opens an object with regions on some nodes.
pub(super) fn open(
    node: &Node,
    kind: &'static str,
    nodes: &[NodeId],
    regions: Vec<(&'static str, usize)>,
) -> Result<Object> {
    let mut own = Regions::new(node);
    if nodes.contains(&node.id()) {
        for (name, bytes) in &regions {
            own.alloc(name, GroupKey::DATA, *bytes)?;
        }
    }
    let nodes = nodes.to_vec();
    let expected = move |peer: NodeId| {
        let lends = nodes.contains(&peer);
        regions.iter().filter(|_| lends).map(|(name, bytes)| ((*name).to_owned(), *bytes as u64)).collect()
    };
    ObjectBuilder::new(node, kind, kind).regions(own).require_regions(expected).open()
}

/// A value as it is in the buffer with that number.
pub(super) fn image<'e>(endpoint: &'e Endpoint, number: Number, value: &[u64]) -> Result<Buf<'e, u64>> {
    let mut image = endpoint.buf(1 + value.len())?;
    image[0] = hash(number, value);
    image[1..].copy_from_slice(value);
    Ok(image)
}

/// Copies a value out of a buffer, if it is the one with that number, and whole.
pub(super) fn take(image: &[u64], number: Number, into: &mut [u64]) -> bool {
    into.copy_from_slice(&image[1..]);
    hash(number, into) == image[0]
}

fn hash(number: Number, value: &[u64]) -> u64 {
    // The number is hashed, since XXH3 combines a seed with short inputs by exclusive or.
    xxh3_64_with_seed(value.as_bytes(), xxh3_64(number.0.as_bytes()))
}

/// How often a read of a baseline looks for a value that fits.
const ATTEMPTS_MAX: usize = 1_000_000;

/// # Errors
/// After so many attempts no writer is in the way any more.
pub(super) fn check_attempts(attempt: usize, key: usize) -> Result<()> {
    if attempt < ATTEMPTS_MAX {
        return Ok(());
    }
    Err(ErrorKind::Corrupt { what: format!("the value of key {key}") }.into())
}

/// The last writes of a client: for each key, how often it has tried, and in which buffer the last value is.
pub(super) struct Uses {
    client: usize,
    uses: RefCell<Vec<(u16, bool)>>,
}

impl Uses {
    pub(super) fn new(client: usize, keys: usize) -> Uses {
        Uses { client, uses: RefCell::new(vec![(0, false); keys]) }
    }

    /// A number for the next value of a key.
    pub(super) fn next(&self, key: usize) -> Number {
        let (count, written) = &mut self.uses.borrow_mut()[key];
        *count = count.wrapping_add(1);
        Number::new(self.client, *count, !*written)
    }

    /// A word may point to that value now.
    pub(super) fn is_written(&self, key: usize, number: Number) {
        self.uses.borrow_mut()[key].1 = number.which() == 1;
    }
}
