//! What an array and a store have in common: opening.

use std::sync::Arc;

use farfield_core::toolkit::{ErrorContext, ObjectBuilder, Participants, Regions, region_bytes};
use farfield_core::{Error, ErrorKind, Node, Result};
use farfield_fabric::{Endpoint, GroupKey, LocalMutex, NodeId, RemotePtr};

use crate::census::{Asks, REQUEST_BYTES, Table, register};
use crate::client::{Index, IndexReplica, Place, Replica, Shared};
use crate::layout::IndexLayout;
use crate::options::SwarmOptions;
use crate::sections::{Answers, Sections};
use crate::shards::{Cores, Places, shards_of};

/// The kinds of objects, and their regions on a memory node.
pub(crate) const KINDS: [&str; 2] = [ARRAY, STORE];
pub(crate) const ARRAY: &str = "SwarmArray";
pub(crate) const STORE: &str = "SwarmStore";
pub(crate) const REGIONS: [&str; 6] = ["registers", "buffers", "locks", "clients", "index", "records"];

/// What is opened.
pub(crate) struct Shape<'s> {
    /// The kind of object, and its types and limits.
    pub(crate) kind: &'static str,
    pub(crate) described: String,
    pub(crate) options: &'s SwarmOptions,
    /// Registers of an array, or keys of a store, in all shards.
    pub(crate) size: usize,
    pub(crate) value_words: usize,
    pub(crate) is_store: bool,
    /// The most buffers that a client has in a shard; fewer in scenarios.
    pub(crate) buffers_max: usize,
    /// The names of its calls.
    pub(crate) calls: &'static [&'static str],
}

/// The participants if none are named: all places of the session, so that a node that comes later names the same ones.
pub(crate) fn default_participants(node: &Node, path: &str) -> Vec<NodeId> {
    match node.is_reopening(path) {
        true => node.members_for(path),
        false => (0..node.nodes() as u16).map(NodeId).collect(),
    }
}

/// The nodes that have to do with an object.
struct Members {
    memory: Vec<NodeId>,
    /// The nodes that may have clients, by their places; and this one's among them.
    client_nodes: Participants,
    rank: Option<usize>,
    /// The clients of all nodes.
    writers: usize,
}

impl Members {
    fn of(node: &Node, path: &str, participants: &[NodeId], options: &SwarmOptions) -> Result<Members> {
        // Nodes are named by their places, since a later incarnation may open it, too.
        let place = |of: NodeId| NodeId(node.rank_of(of) as u16);
        let places: Vec<NodeId> = participants.iter().copied().map(place).collect();
        let places = Participants::new(&places);
        places.require(place(node.id())).of(path)?;
        let memory = options.memory(participants, |named| places.rank_of(place(named)).is_some()).of(path)?;
        if options.memory.is_empty()
            && let Some(gone) = memory.iter().find(|home| node.has_gone(**home))
        {
            let why = format!(
                "{gone} is a memory node if none are named, and it has gone: name them in `memory`, the same on all nodes"
            );
            return Err(Error::from(ErrorKind::Config { why }).of(path));
        }
        let client_nodes = options.client_nodes(&places, place).of(path)?;
        let writers = options.writers(&client_nodes).of(path)?;
        let rank = client_nodes.rank_of(place(node.id()));
        Ok(Members { memory, client_nodes, rank, writers })
    }
}

/// An array or a store that is open on this node.
pub(crate) struct Opened {
    shards: Vec<Arc<Shared>>,
    places: Places,
    closes: Arc<Closes>,
}

/// Tells the service thread that it is closed on this node.
pub(crate) struct Closes(Arc<Sections>);

impl Drop for Closes {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Opened {
    pub(crate) fn open(node: &Node, path: &str, participants: &[NodeId], shape: &Shape<'_>) -> Result<Opened> {
        let Shape { kind, described, options, size, value_words, is_store, calls, .. } = shape;
        let members = Members::of(node, path, participants, options)?;
        let Members { memory, client_nodes, rank, writers } = &members;
        let writers = *writers;
        let (shards, size_of_each) = shards_of(shape, writers).of(path)?;
        let index = is_store.then(|| IndexLayout::new(size_of_each, writers));
        let registers = index.map_or(size_of_each, |index| index.registers());
        let layout = options.layout(registers, *value_words, writers, *is_store).of(path)?;
        let (clients, nodes) = (options.clients_per_node, client_nodes.count());
        let (answers_bytes, requests_bytes) = (clients * nodes * 8, layout.writers * REQUEST_BYTES);
        let table = Table { nodes, clients: layout.writers, memory_nodes: memory.len() };
        let (registers, buffers) = (layout.registers_bytes().of(path)?, layout.buffers_bytes().of(path)?);
        // Of one shard.
        let mut bytes = vec![registers, buffers, layout.locks_bytes().of(path)?, table.bytes()];
        if let Some(index) = &index {
            bytes.extend([index.cells_bytes().of(path)?, index.records_bytes(layout.writers).of(path)?]);
        }
        let of_each: Vec<(&str, usize)> = REGIONS.into_iter().zip(bytes).collect();
        let of_all = |(name, bytes): &(&'static str, usize)| {
            Ok((*name, region_bytes(shards, bytes / 8, "the registers, their size or the clients")?))
        };
        let lent = of_each.iter().map(of_all).collect::<Result<Vec<(&str, usize)>>>().of(path)?;

        let mut regions = Regions::new(node);
        if memory.contains(&node.id()) {
            for (name, bytes) in &lent {
                regions.alloc(name, GroupKey::DATA, *bytes).of(path)?;
            }
        }
        let mut questions = Vec::new();
        for _ in 0..if rank.is_some() { shards } else { 0 } {
            let requests = regions.alloc_own(GroupKey::SERVICE, requests_bytes).of(path)?;
            questions.push((requests, regions.alloc_own(GroupKey::SIGNAL, answers_bytes).of(path)?));
        }
        let described = format!(
            "{described}, memory={memory:?}, clients={:?} of {clients}, metadata_words={}, buffers={}, first_timestamp={}",
            client_nodes.iter().collect::<Vec<_>>(),
            layout.metadata_words,
            layout.buffers,
            options.first_timestamp
        );
        let expect = {
            let memory = memory.clone();
            move |peer: NodeId| {
                let all = lent.iter().map(|(name, bytes)| ((*name).into(), *bytes as u64));
                if memory.contains(&peer) { all.collect() } else { Vec::new() }
            }
        };
        let opening = ObjectBuilder::new(node, path, kind).layout(&described).homes(memory);
        let object = Arc::new(opening.regions(regions).require_regions(expect).calls(calls).open()?);
        // The part of a region that is a shard's. Operations to a memory node that had gone before this node came fail.
        let region = |home: NodeId, name: &str, shard: usize| match object.remote::<u64>(home, name) {
            Err(_) if node.has_gone(home) => Ok(RemotePtr::new(home, GroupKey::DATA, 0)),
            found => {
                let bytes = of_each.iter().find(|(other, _)| *other == name).map_or(0, |(_, bytes)| *bytes);
                found.map(|found| found.at(shard * bytes / 8))
            }
        };

        let mut parts = Vec::new();
        for shard in 0..shards {
            let replica = |node: &NodeId| {
                Ok(Replica {
                    node: *node,
                    registers: region(*node, "registers", shard)?,
                    buffers: region(*node, "buffers", shard)?,
                    locks: region(*node, "locks", shard)?,
                    clients: region(*node, "clients", shard)?,
                })
            };
            let replicas = memory.iter().map(replica).collect::<Result<Vec<Replica>>>()?;
            let cells = |node: &NodeId| {
                let (cells, records) = (region(*node, "index", shard)?, region(*node, "records", shard)?);
                Ok(IndexReplica { cells, records })
            };
            let index = match index {
                None => None,
                Some(layout) => Some(Index { replicas: memory.iter().map(cells).collect::<Result<_>>()?, layout }),
            };
            parts.push((shard, replicas, index));
        }
        let sections = Arc::new(Sections::new(clients));
        // If this fails in the middle, the service thread goes no further.
        let closes = Arc::new(Closes(Arc::clone(&sections)));
        let opened = node.now();
        let endpoint = if rank.is_some() { Some(node.endpoint()?) } else { None };
        let (mut all, mut entered, mut questions) = (Vec::new(), Vec::new(), questions.into_iter());
        for (shard, replicas, index) in parts {
            let mut asks = None;
            if let (Some(rank), Some(endpoint), Some((requests, answers))) = (*rank, &endpoint, questions.next()) {
                let own = rank * clients..(rank + 1) * clients;
                entered.push(register(node, endpoint, &replicas, table, rank, own, requests.remote(0)).of(path)?);
                let answering = Answers::new(Arc::clone(&sections), requests, rank, layout.writers, object.hold());
                node.add_poller(Box::new(answering));
                asks = Some(Asks { table, nodes: client_nodes.clone(), answers });
            }
            all.push(Arc::new(Shared {
                opened,
                object: Arc::clone(&object),
                shard,
                shards,
                size: *size,
                options: (*options).clone(),
                layout,
                replicas,
                index,
                asks,
                sections: Arc::clone(&sections),
            }));
        }
        let of_client = |client: usize| {
            let writer = rank.map_or(0, |rank| rank * clients + client);
            all.iter().map(|shared| Place::new(client, writer, shared)).collect()
        };
        let places = if rank.is_some() { (0..clients).rev().map(of_client).collect() } else { Vec::new() };
        let opened = Opened { shards: all, places: Arc::new(LocalMutex::new(places)), closes };
        if let Some(endpoint) = &endpoint {
            // All at a time: each has its place.
            let own = (0..clients).map(|_| opened.client(endpoint)).collect::<Result<Vec<_>>>()?;
            for (client, cores) in own.iter().enumerate() {
                for (shard, entered) in entered.iter().enumerate().filter(|(_, entered)| entered.succeeds) {
                    endpoint.block_on(cores[shard].succeed(entered.reserved[client]))?;
                }
            }
            own.into_iter().rev().for_each(drop);
        }
        Ok(opened)
    }

    pub(crate) fn client<'e>(&self, endpoint: &'e Endpoint) -> Result<Cores<'e>> {
        Cores::new(&self.shards, &self.places, &self.closes, endpoint)
    }
}
