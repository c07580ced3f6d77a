//! What objects and trees open alike: memory of the owner, and seats of all.

use core::time::Duration;
use std::sync::Arc;

use farfield_core::toolkit::{ErrorContext, Object, ObjectBuilder, Regions, buf_bytes_max};
use farfield_core::{Error, ErrorKind, Node, Result};
use farfield_fabric::{GroupKey, NodeId, RemotePtr, Word};

use crate::arena::Arena;
use crate::gate::Gate;
use crate::layout::{Active, Shape};
use crate::seats::{Seat, Seats};

/// The most blocks that a thread reads at a time: it is done with them within a small part of the lease.
const READS_MAX: usize = 64;

pub(crate) struct Opened {
    pub(crate) object: Object,
    pub(crate) owner: NodeId,
    pub(crate) shape: Shape,
    pub(crate) seats: Arc<Seats>,
    /// Blocks that a thread reads at a time: their buffers are in the pool of its endpoint together.
    pub(crate) reads_max: usize,
    /// On the owner.
    arena: Option<Arena>,
    memory: RemotePtr<u64>,
}

/// Where an object is, and what it has.
pub(crate) struct Plan {
    pub(crate) owner: NodeId,
    pub(crate) shape: Shape,
    /// Readers and writers of each node.
    pub(crate) seats: usize,
    pub(crate) lease: Duration,
    /// How long a node waits until the owner has opened it. None for the node's timeout.
    pub(crate) patience: Option<Duration>,
}

/// Opens an object of the owner, on that node; others open it whenever they like. `first` writes the state of its first
/// slot into a block, and returns its words.
pub(crate) fn open(
    node: &Node,
    path: &str,
    kind: &'static str,
    plan: Plan,
    layout: &str,
    first: impl FnOnce(&[Word]) -> usize,
) -> Result<Opened> {
    let Plan { owner, shape, seats, lease, patience } = plan;
    let memory_bytes = shape.bytes("`blocks`").of(path)?;
    let mut regions = Regions::new(node);
    let own = Seats::alloc(&mut regions, seats, lease).of(path)?;
    let memory = (node.id() == owner).then(|| regions.alloc("memory", GroupKey::DATA, memory_bytes)).transpose();
    let memory = memory.of(path)?;
    if let Some(memory) = &memory {
        // Before any other node knows of it.
        let end = first(memory.words(shape.block_at(0), shape.block_words));
        memory.word(shape.slot_at(0)).store(Active { block: 0, end: end as u32 }.word());
    }
    let needs = move |peer| {
        let memory = (peer == owner).then(|| ("memory".to_string(), memory_bytes as u64));
        memory.into_iter().collect()
    };
    let builder = ObjectBuilder::new(node, path, kind)
        .layout(&format!("owner={owner}, {layout}"))
        .homes(&[owner])
        .regions(regions)
        .require_regions(needs);
    let object = match patience {
        None => builder.open()?,
        Some(patience) => {
            let object = builder.announce()?;
            object.wait(patience)?;
            object
        }
    };
    let arena = memory.map(|memory| Arena::new(node, memory, shape, &own));
    let memory: RemotePtr<u64> = object.remote(owner, "memory")?;
    if arena.is_none() {
        // The owner knows where to look before anything is announced there: the get returns when the put has landed
        // (`NRW → NRR`).
        let (ep, rank) = (node.endpoint()?, node.rank_of(node.id()));
        let (at, seats) = (memory.byte_add(shape.seats_at(rank) as u64), own.pointer().packed());
        let told = async {
            ep.put_value(at, seats).await?;
            ep.get(at).await
        };
        ep.block_on(told).map_err(Error::from).of(path)?;
    }
    let buffer_bytes = (shape.block_words * 8).next_power_of_two();
    let reads_max = (buf_bytes_max(node) / buffer_bytes).clamp(1, READS_MAX);
    Ok(Opened { object, owner, shape, seats: own, reads_max, arena, memory })
}

impl Opened {
    pub(crate) fn seat(&self) -> Result<Seat> {
        let seats = self.seats.count();
        let refuse = || {
            let why = format!("all {seats} readers and writers of this node are in use: open it with more `seats`");
            Error::from(ErrorKind::Config { why }).of(self.object.path())
        };
        self.seats.take().ok_or_else(refuse)
    }

    /// Changes of the owner, which this node is, wait at this gate.
    pub(crate) fn set_gate(&mut self, gate: Gate) {
        if let Some(arena) = &mut self.arena {
            arena.set_gate(gate);
        }
    }

    /// The memory of the owner, which this node is.
    pub(crate) fn arena(&self) -> Result<&Arena> {
        self.arena.as_ref().ok_or_else(|| {
            let why = format!("{} owns it, and this node does not: read it with a reader", self.owner);
            Error::from(ErrorKind::Config { why }).of(self.object.path())
        })
    }

    /// Where the word `stable` is.
    #[inline]
    pub(crate) fn stable_at(&self) -> RemotePtr<u64> {
        self.memory
    }

    #[inline]
    pub(crate) fn slot_at(&self, slot: u32) -> RemotePtr<u64> {
        self.memory.byte_add(self.shape.slot_at(slot) as u64)
    }

    #[inline]
    pub(crate) fn block_at(&self, block: u32) -> RemotePtr<u64> {
        self.memory.byte_add(self.shape.block_at(block) as u64)
    }
}
