//! Objects of many registers. A metadata word has 16 bits for a buffer, so one of more registers than that consists of several *shards*,
//! each an object of its own, and each register or key belongs to one of them. They share nothing but the thread that makes a call.

use core::ops::Index;
use std::sync::Arc;

use farfield_core::toolkit::ErrorContext;
use farfield_core::{Error, ErrorKind, Node, Result};
use farfield_fabric::{Endpoint, NodeId};

use crate::client::Core;
use crate::layout::IndexLayout;
use crate::open::{Closes, Members, Opened, Shape};
use crate::version::BUFFERS_MAX;

/// The most shards of an object.
const SHARDS_MAX: usize = 64;

/// The shards of an array or a store that is open on this node.
pub(crate) struct Shards(Vec<Opened>);

impl Shards {
    /// The first shard has the path of the object, and the others have their number behind it.
    pub(crate) fn open(node: &Node, path: &str, participants: &[NodeId], shape: &Shape<'_>) -> Result<Shards> {
        let members = Members::of(node, path, participants, shape.options)?;
        let spare = shape.options.spare_buffers;
        let fits = |shards: &usize| match size_of_each(shape, *shards) {
            size if size > BUFFERS_MAX => false,
            size => {
                let registers = match shape.is_store {
                    true => IndexLayout::new(size, members.writers).registers(),
                    false => size,
                };
                registers.saturating_add(spare) <= BUFFERS_MAX
            }
        };
        let Some(shards) = (1..=SHARDS_MAX).find(fits) else {
            let why = format!(
                "{} {}, with {} clients and `spare_buffers` of {spare}: there are at most {SHARDS_MAX} times {BUFFERS_MAX} buffers of a \
                 client; open several",
                shape.size,
                if shape.is_store { "keys" } else { "registers" },
                members.writers,
            );
            return Err(Error::from(ErrorKind::Config { why })).of(path);
        };
        let open = |shard: usize| {
            let size = size_of_each(shape, shards);
            match shard {
                0 => Opened::open(node, path, &members, shape, size),
                _ => Opened::open(node, &format!("{path}/{shard}"), &members, shape, size),
            }
        };
        (0..shards).map(open).collect::<Result<_>>().map(Shards)
    }

    /// A client of each shard.
    pub(crate) fn client<'e>(&self, endpoint: &'e Endpoint) -> Result<Cores<'e>> {
        // The last one first: it is given back last, so that a thread that has got it gets the others.
        let cores = self.0.iter().rev().map(|opened| Core::new(&opened.shared, endpoint));
        let mut cores = cores.collect::<Result<Vec<_>>>()?;
        cores.reverse();
        Ok(Cores { cores, _closes: self.0.iter().map(|opened| Arc::clone(&opened.closes)).collect() })
    }
}

/// Registers, or keys, of each of so many shards.
fn size_of_each(shape: &Shape<'_>, shards: usize) -> usize {
    let share = shape.size.div_ceil(shards);
    // Keys fall to shards by their hashes, of which one share may be larger: by six standard deviations, once in a thousand million times.
    let more = if shape.is_store && shards > 1 { 6 * share.isqrt() } else { 0 };
    share.saturating_add(more)
}

/// The clients of all shards that a thread has.
pub(crate) struct Cores<'e> {
    cores: Vec<Core<'e>>,
    // After the clients.
    _closes: Vec<Arc<Closes>>,
}

impl<'e> Cores<'e> {
    /// That of the first shard, which stands for all where a shard does not matter.
    pub(crate) fn first(&self) -> &Core<'e> {
        &self.cores[0]
    }

    pub(crate) fn len(&self) -> usize {
        self.cores.len()
    }

    /// The shard of a key with this hash. Its cell comes of the low bits, and its tag of the highest ones.
    pub(crate) fn of_hash(&self, hash: u64) -> &Core<'e> {
        let bits = (hash >> 24) & u64::from(u32::MAX);
        &self.cores[((bits * self.cores.len() as u64) >> 32) as usize]
    }
}

impl<'e> Index<usize> for Cores<'e> {
    type Output = Core<'e>;
    fn index(&self, shard: usize) -> &Core<'e> {
        &self.cores[shard]
    }
}
