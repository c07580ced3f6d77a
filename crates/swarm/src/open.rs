//! What an array and a store have in common: opening.

use std::sync::Arc;

use farfield_core::toolkit::{ErrorContext, ObjectBuilder, Participants, Regions};
use farfield_core::{Error, ErrorKind, Node, Result};
use farfield_fabric::{GroupKey, LocalMutex, NodeId, RemotePtr};

use crate::census::{Asks, REQUEST_BYTES, Table, register};
use crate::client::{Core, Index, IndexReplica, Place, Replica, Shared};
use crate::layout::IndexLayout;
use crate::options::SwarmOptions;
use crate::sections::{Answers, Sections};

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
pub(crate) struct Members {
    memory: Vec<NodeId>,
    /// The nodes that may have clients, by their places.
    client_nodes: Participants,
    /// The clients of all nodes.
    pub(crate) writers: usize,
}

/// Nodes are named by their places, since a later incarnation may open the object, too.
fn place(node: &Node, of: NodeId) -> NodeId {
    NodeId(node.rank_of(of) as u16)
}

impl Members {
    pub(crate) fn of(node: &Node, path: &str, participants: &[NodeId], options: &SwarmOptions) -> Result<Members> {
        let place = |of: NodeId| place(node, of);
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
        Ok(Members { memory, client_nodes, writers })
    }
}

/// An array or a store that is open on this node, or a shard of it.
pub(crate) struct Opened {
    pub(crate) shared: Arc<Shared>,
    pub(crate) closes: Arc<Closes>,
}

/// Tells the service thread that it is closed on this node.
pub(crate) struct Closes(Arc<Sections>);

impl Drop for Closes {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Opened {
    /// Of this many registers, or keys.
    pub(crate) fn open(node: &Node, path: &str, members: &Members, shape: &Shape<'_>, size: usize) -> Result<Opened> {
        let Shape { kind, described, options, value_words, is_store, calls, .. } = shape;
        let Members { memory, client_nodes, writers } = members;
        let index = is_store.then(|| IndexLayout::new(size, *writers));
        let registers = index.map_or(size, |index| index.registers());
        let layout = options.layout(registers, *value_words, *writers, *is_store).of(path)?;
        let (clients, nodes) = (options.clients_per_node, client_nodes.count());
        let (answers_bytes, requests_bytes) = (clients * nodes * 8, layout.writers * REQUEST_BYTES);
        let table = Table { nodes, clients: layout.writers, memory_nodes: memory.len() };
        let (registers, buffers) = (layout.registers_bytes().of(path)?, layout.buffers_bytes().of(path)?);
        let mut bytes = vec![registers, buffers, layout.locks_bytes().of(path)?, table.bytes()];
        if let Some(index) = &index {
            bytes.extend([index.cells_bytes().of(path)?, index.records_bytes(layout.writers).of(path)?]);
        }
        let lent: Vec<(&str, usize)> = REGIONS.into_iter().zip(bytes).collect();

        let mut regions = Regions::new(node);
        if memory.contains(&node.id()) {
            for (name, bytes) in &lent {
                regions.alloc(name, GroupKey::DATA, *bytes).of(path)?;
            }
        }
        let rank = client_nodes.rank_of(place(node, node.id()));
        let questions = match rank {
            None => None,
            Some(rank) => {
                let requests = regions.alloc_own(GroupKey::SERVICE, requests_bytes).of(path)?;
                Some((rank, requests, regions.alloc_own(GroupKey::SIGNAL, answers_bytes).of(path)?))
            }
        };
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
        let object = opening.regions(regions).require_regions(expect).calls(calls).open()?;
        // Operations to a memory node that had gone before this node came fail.
        let region = |home: NodeId, name: &str| match object.remote(home, name) {
            Err(_) if node.has_gone(home) => Ok(RemotePtr::new(home, GroupKey::DATA, 0)),
            found => found,
        };

        let replica = |node: &NodeId| {
            Ok(Replica {
                node: *node,
                registers: region(*node, "registers")?,
                buffers: region(*node, "buffers")?,
                locks: region(*node, "locks")?,
                clients: region(*node, "clients")?,
            })
        };
        let replicas = memory.iter().map(replica).collect::<Result<Vec<Replica>>>()?;
        let index = match index {
            None => None,
            Some(layout) => {
                let replica = |node: &NodeId| {
                    Ok(IndexReplica { cells: region(*node, "index")?, records: region(*node, "records")? })
                };
                Some(Index { replicas: memory.iter().map(replica).collect::<Result<_>>()?, layout })
            }
        };
        let sections = Arc::new(Sections::new(clients));
        let (mut asks, mut entered) = (None, None);
        if let Some((rank, requests, answers)) = questions {
            let (endpoint, own) = (node.endpoint()?, rank * clients..(rank + 1) * clients);
            let found = register(node, &endpoint, &replicas, table, rank, own, requests.remote(0)).of(path)?;
            entered = Some((found, endpoint));
            let answering = Answers::new(Arc::clone(&sections), requests, rank, layout.writers, object.hold());
            node.add_poller(Box::new(answering));
            asks = Some(Asks { table, nodes: client_nodes.clone(), answers });
        }
        let closes = Arc::new(Closes(Arc::clone(&sections)));
        let mut shared = Shared {
            opened: node.now(),
            object,
            options: (*options).clone(),
            layout,
            replicas,
            index,
            asks,
            sections,
            places: LocalMutex::new(Vec::new()),
        };
        if let Some(rank) = rank {
            let places =
                (0..clients).rev().map(|client| Place::new(client, rank * clients + client, &shared)).collect();
            shared.places = LocalMutex::new(places);
        }
        let opened = Opened { shared: Arc::new(shared), closes };
        if let Some((entered, endpoint)) = entered {
            // All at a time: each has its place.
            let cores = (0..clients).map(|_| Core::new(&opened.shared, &endpoint)).collect::<Result<Vec<_>>>()?;
            for (core, reserved) in cores.iter().zip(entered.reserved) {
                if entered.succeeds {
                    endpoint.block_on(core.succeed(reserved))?;
                }
            }
            cores.into_iter().rev().for_each(drop);
        }
        Ok(opened)
    }
}
