//! The options of replicated memory.

use std::time::Duration;

use farfield_core::toolkit::{Participants, at_least_one};
use farfield_core::{Error, ErrorKind, Result};
use farfield_fabric::NodeId;

use crate::layout::{Layout, REPLICAS_MAX};
use crate::version::WRITERS_MAX;

/// Memory nodes that replace others propose records, too (`replacement`): those have numbers of writers.
const CLIENTS_MAX: usize = WRITERS_MAX - REPLICAS_MAX;

/// How an array of replicated registers is laid out. The same on all nodes, but for `patience`.
///
/// ```
/// # use farfield::swarm::SwarmOptions;
/// let mut options = SwarmOptions::default();
/// options.clients_per_node = 4;
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SwarmOptions {
    /// The memory nodes, each with a copy of every register: an odd number of participants, at most 7. Default (none):
    /// the first three, or the first one if there are fewer. A node that was started again is another one: name the
    /// same nodes wherever it is opened, also those that have died since.
    pub memory: Vec<NodeId>,
    /// The participants that may have clients, by their places: a node that is started again has those of the one
    /// before it. The others take no part in any call, also not when buffers are used again: a memory node among them
    /// only lends memory. Each client takes room in every register. Default (none): all participants.
    pub clients: Vec<NodeId>,
    /// Clients that such a node may have ([`SwarmArray::client`](crate::SwarmArray::client)). There are at most 120 in
    /// all. Default: 1.
    pub clients_per_node: usize,
    /// Metadata words of each register (§4.4): each serves every so-many-th client. With fewer than there are clients,
    /// a read is shorter, and a write repeats its compare-and-swap more often. Default: 0, one for each client.
    pub metadata_words: usize,
    /// Spare buffers of each client on each memory node, beside one for each register: values that were replaced, and
    /// that slow readers may still read. More of them are given back less often. A store of more than 65,000 buffers
    /// for each client has so many spare ones in each of its shards, and so has an array of more than 8,000 with seven
    /// clients. Default: 32.
    pub spare_buffers: usize,
    /// How long a call waits at least for the majority that it has asked before it asks the other memory nodes, too.
    /// Each client also measures how long they take to answer, and waits longer where they are slow. Default: 100 µs.
    pub patience: Duration,
    /// Where the clocks start, in microseconds. It is for tests: they need not wait until the clocks end. Default: 1.
    pub first_timestamp: u64,
}

/// How a store of replicated values is laid out. The same on all nodes, but for `cached_keys` and
/// [`SwarmOptions::patience`].
///
/// ```
/// # use farfield::swarm::SwarmStoreOptions;
/// let mut options = SwarmStoreOptions::default();
/// options.keys = 100_000;
/// options.replicas.clients_per_node = 4;
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SwarmStoreOptions {
    /// Keys that the store has room for. Of more than about 60,000 (fewer with many clients) it consists of several
    /// *shards*, at most 64, of which each has room for its share of them. Default: 4,096.
    pub keys: usize,
    /// The longest key, in bytes, for keys that are byte strings. Default: 64.
    pub key_bytes_max: usize,
    /// The longest value, in bytes, for values that are byte strings. Default: 64.
    pub value_bytes_max: usize,
    /// A client remembers the places of so many keys. A call on another key takes one round trip more (an update or a
    /// delete two). Default: 65,536.
    pub cached_keys: usize,
    /// The memory nodes, the clients and their buffers.
    pub replicas: SwarmOptions,
}

impl Default for SwarmStoreOptions {
    fn default() -> SwarmStoreOptions {
        SwarmStoreOptions {
            keys: 4096,
            key_bytes_max: 64,
            value_bytes_max: 64,
            cached_keys: 1 << 16,
            replicas: SwarmOptions::default(),
        }
    }
}

impl SwarmStoreOptions {
    pub(crate) fn check(&self) -> Result<()> {
        at_least_one(&[("keys", self.keys), ("cached_keys", self.cached_keys)])
    }
}

impl Default for SwarmOptions {
    fn default() -> SwarmOptions {
        SwarmOptions {
            memory: Vec::new(),
            clients: Vec::new(),
            clients_per_node: 1,
            metadata_words: 0,
            spare_buffers: 32,
            patience: Duration::from_micros(100),
            first_timestamp: 1,
        }
    }
}

impl SwarmOptions {
    /// The fewest spare buffers: one to write while another is given back.
    const SPARE_BUFFERS_MIN: usize = 2;

    /// The memory nodes.
    pub(crate) fn memory(&self, participants: &[NodeId], takes_part: impl Fn(NodeId) -> bool) -> Result<Vec<NodeId>> {
        let memory = match &self.memory[..] {
            [] => participants.iter().copied().take(if participants.len() < 3 { 1 } else { 3 }).collect(),
            chosen => chosen.to_vec(),
        };
        if memory.len() % 2 == 0 || memory.len() > REPLICAS_MAX {
            return config(format!(
                "`memory` names {} nodes: it has to be an odd number, at most {REPLICAS_MAX}",
                memory.len()
            ));
        }
        each_once("memory", &memory, takes_part)?;
        Ok(memory)
    }

    /// The nodes that may have clients, by their places.
    pub(crate) fn client_nodes(
        &self,
        participants: &Participants,
        place: impl Fn(NodeId) -> NodeId,
    ) -> Result<Participants> {
        let places: Vec<NodeId> = self.clients.iter().copied().map(place).collect();
        each_once("clients", &places, |place| participants.rank_of(place).is_some())?;
        Ok(if places.is_empty() { participants.clone() } else { Participants::new(&places) })
    }

    /// The clients of all nodes.
    pub(crate) fn writers(&self, client_nodes: &Participants) -> Result<usize> {
        at_least_one(&[("clients_per_node", self.clients_per_node)])?;
        let writers = client_nodes.count().saturating_mul(self.clients_per_node);
        if writers <= CLIENTS_MAX {
            return Ok(writers);
        }
        config(format!(
            "{} nodes with {} clients each are more than {CLIENTS_MAX}: reduce `clients_per_node`, or name the nodes in `clients`",
            client_nodes.count(),
            self.clients_per_node
        ))
    }

    /// Where everything is in the memory of a memory node.
    pub(crate) fn layout(
        &self,
        registers: usize,
        value_words: usize,
        writers: usize,
        has_limits: bool,
    ) -> Result<Layout> {
        at_least_one(&[("registers", registers), ("first_timestamp", self.first_timestamp as usize)])?;
        let metadata_words = if self.metadata_words == 0 { writers } else { self.metadata_words };
        if metadata_words > writers {
            return config(format!("`metadata_words` is {metadata_words}, and there are only {writers} clients"));
        }
        let spare = self.spare_buffers;
        if spare < Self::SPARE_BUFFERS_MIN {
            return config(format!("`spare_buffers` is {spare}: it has to be at least {}", Self::SPARE_BUFFERS_MIN));
        }
        let layout = Layout::new(registers, value_words, writers, metadata_words, registers + spare, has_limits)?;
        let max = layout.format.timestamp_max();
        if self.first_timestamp > max {
            return config(format!("`first_timestamp` is {}, and timestamps end at {max}", self.first_timestamp));
        }
        Ok(layout)
    }
}

/// Each of these takes part, and is named once.
fn each_once(option: &str, nodes: &[NodeId], takes_part: impl Fn(NodeId) -> bool) -> Result<()> {
    for (at, node) in nodes.iter().enumerate() {
        if !takes_part(*node) {
            return config(format!("`{option}` names {node}, which does not take part"));
        }
        if nodes[..at].contains(node) {
            return config(format!("`{option}` names {node} twice"));
        }
    }
    Ok(())
}

fn config<T>(why: String) -> Result<T> {
    Err(Error::from(ErrorKind::Config { why }))
}
