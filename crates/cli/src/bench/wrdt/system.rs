//! The systems: replicas of a type on all nodes, and the calls of one node on them.

use std::fmt;

use anyhow::{Context, Result};
use clap::ValueEnum;
use farfield::fabric::Counts;
use farfield::hamband::analysis::Category;
use farfield::hamband::{Coordination, Writer};
use farfield::{Endpoint, Node, NodeId, Replicated, ReplicatedOptions};
use serde::{Deserialize, Serialize};

use super::load::{Load, MethodOf};

/// A way to replicate a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    /// As much coordination as each method needs
    Hamband,
    /// All updates through one Mu log
    Smr,
    /// Updates as messages over TCP on this host's loopback, each sent at once
    Msg,
    /// As msg, but several updates make one segment
    MsgBatch,
}

impl Kind {
    /// Whether it passes messages, and uses no fabric.
    pub(super) fn is_message(self) -> bool {
        matches!(self, Kind::Msg | Kind::MsgBatch)
    }

    fn coordination<T: Load>(self) -> Coordination<MethodOf<T>> {
        if self == Kind::Smr { Coordination::all() } else { T::coordination() }
    }

    /// The synchronisation group of a method, if it conflicts.
    pub(super) fn group_of<T: Load>(self, method: MethodOf<T>) -> Option<usize> {
        self.coordination::<T>().group_of(method)
    }

    /// The category of a method, as this system has it.
    pub(super) fn category<T: Load>(self, method: MethodOf<T>) -> &'static str {
        match self.coordination::<T>().category(method) {
            Category::Conflicting => "conflicting",
            Category::Reducible if !self.is_message() => "reducible",
            _ => "conflict-free",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Hamband => "hamband",
            Kind::Smr => "smr",
            Kind::Msg => "msg",
            Kind::MsgBatch => "msg-batch",
        })
    }
}

/// One node's access to a replicated object.
pub(super) trait Client<T: Load> {
    /// Makes an update. False if it is refused.
    fn update(&mut self, endpoint: &Endpoint, update: &T::Update) -> Result<bool>;

    /// Reads this node's replica.
    fn query<V>(&self, query: impl FnOnce(&T) -> V) -> Result<V>;

    /// Waits until all replicas have applied all updates of this node.
    fn stable(&mut self, endpoint: &Endpoint) -> Result<()>;

    /// The rank of the node that orders the calls of a method, if it conflicts: none while there is no leader.
    fn leader_of(&self, method: MethodOf<T>) -> Option<usize>;

    /// Whether a node is dead, and this replica has all its updates that any live one has.
    fn is_settled(&self, node: NodeId) -> bool;

    /// The operations or messages of this node so far, also of threads in the background.
    fn counts(&self) -> Counts;
}

/// An object that [`Replicated`] keeps.
pub(super) struct Fabric<'n, T: Load> {
    node: &'n Node,
    object: Replicated<T>,
    writer: Writer<T>,
}

impl<'n, T: Load> Fabric<'n, T> {
    pub(super) fn open(node: &'n Node, initial: T, options: ReplicatedOptions) -> Result<Fabric<'n, T>> {
        let object = Replicated::open(node, "object", initial, options).context("opening the object")?;
        Ok(Fabric { node, writer: object.writer()?, object })
    }

    fn rank_of(&self, node: NodeId) -> Option<usize> {
        self.object.nodes().iter().position(|other| *other == node)
    }
}

impl<T: Load> Client<T> for Fabric<'_, T> {
    fn update(&mut self, endpoint: &Endpoint, update: &T::Update) -> Result<bool> {
        Ok(endpoint.block_on(self.writer.update(endpoint, update))?.is_ok())
    }

    fn query<V>(&self, query: impl FnOnce(&T) -> V) -> Result<V> {
        Ok(self.object.query(query)?)
    }

    fn stable(&mut self, endpoint: &Endpoint) -> Result<()> {
        Ok(endpoint.block_on(self.writer.stable(endpoint))?)
    }

    fn leader_of(&self, method: MethodOf<T>) -> Option<usize> {
        self.rank_of(self.object.leader_of(method)?)
    }

    fn is_settled(&self, node: NodeId) -> bool {
        self.object.is_settled(node)
    }

    fn counts(&self) -> Counts {
        self.node.metrics().counts
    }
}
