//! What carries operations between hosts: an RDMA device with its queue pairs, or workers of UCX with theirs.
//!
//! A lane has a *pair* for each node and class of groups ([`GroupKey::class`]), and the other node a *target* for it. A
//! pair does its operations in order, and ends with the first that fails. Dropping a target ends every access by it: so
//! rights are taken.

use core::fmt::{Debug, Display};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::connections::OwnNode;
use super::keeper::Keeper;
use super::layout::PeerMemory;
use super::sleepers::Sleepers;
use crate::error::{Code, Error, Result};
use crate::lane::Lane;
use crate::ptr::{GroupKey, NodeId};

/// The part of a carrier that users of a node choose.
pub trait Configured {
    /// Its options.
    type Options: Clone + Debug + Default;
}

/// Carries the operations of a node's lanes to other nodes, and those of others to its memory.
pub(crate) trait Carrier: Configured + Sized + Send + Sync + 'static {
    /// The name of the fabric.
    const NAME: &'static str;
    /// The name of the technique, in errors.
    const TECHNIQUE: &'static str;
    /// Whether a put of another node wakes threads of this one that sleep until a word changes.
    const PUTS_WAKE: bool;
    /// How often a waiting thread looks before it sleeps where threads outnumber cores, with a turn of the others after
    /// each: they may have to move its operation.
    const YIELDS_CROWDED: u32;
    /// Whether a target looks at the generation of memory before each operation. Then a late operation of a peer does
    /// no harm, also where the peer does not answer.
    const TARGETS_LOOK: bool;
    /// Whether a node must prove that it knows the session's secret before its addresses are read.
    const NEEDS_SECRET: bool;

    type Error: Display + Into<Error>;
    type Keeper: Keeper;
    type Lane: CarriedLane<Self>;
    type Port: LanePort<Self>;
    type Pair: Pair<Self>;
    type Switch: Switch;
    type Target: Target;
    /// The end of a pair or of a target, as the other side must know it.
    type Address: Clone + Debug + PartialEq + Serialize + DeserializeOwned + Send;

    /// Opens it.
    ///
    /// # Errors
    /// It is not there, or not as the options demand.
    fn open(options: &Self::Options) -> Result<Self, Self::Error>;

    /// The layout that all processes of a session must share. It changes with any change to messages, or to the meaning
    /// of a pointer.
    fn layout(&self) -> String;

    /// What makes memory of groups usable.
    fn keeper(&self) -> &Arc<Self::Keeper>;

    /// The memory of this node, and its threads that sleep: called once, before there is a target.
    ///
    /// # Errors
    /// An error of the system.
    fn serve(&self, me: NodeId, memory: &Arc<PeerMemory>, sleepers: &Arc<Sleepers>) -> Result<()>;

    /// Memory of this node has another generation. When this returns, no operation is under way at a target that has
    /// not seen it, if targets look.
    fn settle(&self);

    /// Whether it has failed for good.
    fn has_failed(&self) -> bool;

    /// The peers that have broken the carrier's rules since the last call, and how.
    fn refused(&self) -> Vec<(NodeId, &'static str)> {
        Vec::new()
    }

    /// Opens a lane without pairs.
    ///
    /// # Errors
    /// Its resources are used up.
    fn open_lane(&self) -> Result<Self::Lane>;

    /// A target for the pair at an address, and its own address.
    ///
    /// # Errors
    /// Its resources are used up, or nothing reaches the address.
    fn target(
        &self,
        class: GroupKey,
        from: NodeId,
        address: &Self::Address,
    ) -> Result<(Self::Target, Self::Address), Self::Error>;

    /// A connected pair of a lane to this node itself, and its target.
    ///
    /// # Errors
    /// As [`Carrier::target`].
    fn own_pair(&self, port: &Self::Port, class: GroupKey) -> Result<(Self::Pair, Self::Target), Self::Error>;
}

/// A lane of a carrier.
pub(crate) trait CarriedLane<C: Carrier>: Lane {
    /// Its side for other threads.
    fn port(&self) -> Arc<C::Port>;

    /// It has the pairs that it was opened for.
    fn opened(&mut self) {}

    /// What opens the way to the own node, and closes the lane.
    fn set_own_node(&mut self, own: OwnNode<C>);

    /// Keeps this until the lane is closed.
    fn keep(&mut self, kept: Box<dyn Send>);
}

/// The side of a lane for other threads.
pub(crate) trait LanePort<C: Carrier>: Send + Sync {
    /// A pair of the lane, to be connected.
    ///
    /// # Errors
    /// There are no more.
    fn new_pair(&self) -> Result<C::Pair, C::Error>;

    /// Passes a connected pair to the lane, by which it reaches `memory` of the peer: the group `key`, or if it is one
    /// of the first three, all three of them. While one for the same groups works, another is dropped.
    fn add(&self, peer: NodeId, key: GroupKey, pair: C::Pair, memory: Arc<PeerMemory>);

    /// Called after a heavy fence: the requests that the lane may have in flight by its earlier knowledge, as a number
    /// for [`LanePort::has_ended`].
    fn under_way(&self) -> Option<u64>;

    /// Whether as many have ended.
    fn has_ended(&self, posted: u64) -> bool;
}

/// A pair of a lane. Dropping it ends every access by it.
pub(crate) trait Pair<C: Carrier>: Send {
    /// What the target must know.
    fn address(&self) -> C::Address;

    /// Connects it to a target.
    ///
    /// # Errors
    /// Nothing reaches the address.
    fn connect(&mut self, target: &C::Address) -> Result<(), C::Error>;

    /// What ends it from elsewhere.
    fn switch(&self) -> C::Switch;
}

/// Ends a pair that another thread owns.
pub(crate) trait Switch: Send {
    /// Ends the pair for good: pending and later requests end in `why`, which is one of unreachable, revoked and
    /// fenced. The first reason stays.
    fn end(&self, why: Code);

    /// Memory was given back: the lane is to look for changes before its next post.
    fn warn(&self);
}

/// What a pair reaches. Dropping it ends every access by it: after that, nothing that was sent through it can land.
pub(crate) trait Target: Send {
    /// Refuses requests from now on, if that is sooner done than dropping it. One may still be under way.
    fn refuse(&self);
}
