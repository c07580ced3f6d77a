//! What an array and a store have in common: opening.

use std::sync::Arc;

use farfield_core::toolkit::{ErrorContext, ObjectBuilder, Participants, Regions};
use farfield_core::{Error, ErrorKind, Node, Result};
use farfield_fabric::{Endpoint, GroupKey, LocalMutex, NodeId, RemotePtr};

use crate::census::{Asks, Entered, REQUEST_BYTES, Table, agreed_seats, enter_where_one_joins, register};
use crate::client::{Place, Shared};
use crate::errors::{FirstMemoryGone, NoMajority};
use crate::layout::IndexLayout;
use crate::options::SwarmOptions;
use crate::plan::{Parts, Plan};
use crate::sections::{Answers, Sections};
use crate::shards::{Cores, Places, shards_of};
use crate::version::LASTING_BITS;
use crate::view::{Standing, View};

/// The kinds of objects, and their regions on a memory node.
pub(crate) const KINDS: [&str; 2] = [ARRAY, STORE];
pub(crate) const ARRAY: &str = "SwarmArray";
pub(crate) const STORE: &str = "SwarmStore";

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

/// The participants if none are named: all places of the session, so that a later node names the same ones.
pub(crate) fn default_participants(node: &Node, path: &str) -> Vec<NodeId> {
    if node.is_reopening(path) { node.members_for(path) } else { (0..node.nodes() as u16).map(NodeId).collect() }
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

/// Does something at a majority of the memory nodes, and once more if one of them was replaced meanwhile and too few of
/// the others live since.
fn with_present_seats<T>(
    node: &Node,
    endpoint: &Endpoint,
    view: &View,
    table: Table,
    attempt: impl Fn() -> Result<T>,
) -> Result<T> {
    loop {
        let seen = view.changes();
        match attempt() {
            Err(error) if error.custom_ref::<NoMajority>().is_some() => {
                agreed_seats(node, endpoint, view, table)?;
                if view.changes() == seen {
                    return Err(error);
                }
            }
            ended => return ended,
        }
    }
}

/// An array or a store that is open on this node.
pub(crate) struct Opened {
    pub(crate) shards: Vec<Arc<Shared>>,
    places: Places,
    closes: Arc<Closes>,
}

/// Tells the service thread that it is closed on this node.
pub(crate) struct Closes(Arc<Sections>);

impl Closes {
    pub(crate) fn of(sections: &Arc<Sections>) -> Closes {
        Closes(Arc::clone(sections))
    }
}

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
        if memory.iter().all(|home| node.has_gone(*home)) {
            return Err(Error::custom(FirstMemoryGone { memory: memory.clone() }).of(path));
        }
        let (shards, size_of_each) = shards_of(shape, writers).of(path)?;
        let index = is_store.then(|| IndexLayout::new(size_of_each, writers));
        let registers = index.map_or(size_of_each, |index| index.registers());
        let layout = options.layout(registers, *value_words, writers, *is_store).of(path)?;
        if !is_store {
            warn_of_short_timestamps(node, path, layout.format.timestamp_bits());
        }
        let (clients, nodes) = (options.clients_per_node, client_nodes.count());
        let table = Table { nodes, clients: layout.writers, memory_nodes: memory.len() };
        let (answers_bytes, requests_bytes) = (clients * table.asked() * 8, table.askers() * REQUEST_BYTES);
        let parts = Parts::new(shards, &layout, index.as_ref(), table).of(path)?;
        let lent = parts.all().of(path)?;

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
        let plan = Plan { parts, layout, index, table, memory: memory.clone() };
        let described = format!(
            "{described}, memory={memory:?}, clients={:?} of {clients}, metadata_words={}, buffers={}, first_timestamp={}, {}",
            client_nodes.iter().collect::<Vec<_>>(),
            layout.metadata_words,
            layout.buffers,
            options.first_timestamp,
            plan.described(),
        );
        let expect = {
            let (memory, places) = (memory.clone(), node.nodes());
            let is_place = move |peer: NodeId| memory.iter().any(|home| home.index() % places == peer.index() % places);
            move |peer: NodeId| {
                let all = lent.iter().map(|(name, bytes)| ((*name).into(), *bytes as u64));
                if is_place(peer) { all.collect() } else { Vec::new() }
            }
        };
        let opening = ObjectBuilder::new(node, path, kind).layout(&described).homes(memory);
        let object = Arc::new(opening.regions(regions).require_regions(expect).calls(calls).open()?);
        let view = View::new(plan.seats(node, &object, None)?, plan.parts.words_of_each());
        let sections = Arc::new(Sections::new(clients));
        // If this fails in the middle, the service thread does no more for the object.
        let closes = Arc::new(Closes::of(&sections));
        let opened = node.now();
        let mut arrival = match *rank {
            Some(rank) => Some(Arrival::new(node, path, Arc::clone(&view), table, rank)?),
            None => None,
        };
        let (mut all, mut questions) = (Vec::new(), questions.into_iter());
        for shard in 0..shards {
            let mut asks = None;
            if let (Some(arrival), Some((requests, answers))) = (&mut arrival, questions.next()) {
                arrival.enter(shard, clients, requests.remote(0))?;
                let (sections, view) = (Arc::clone(&sections), Arc::clone(&view));
                let hold = object.hold();
                node.add_poller(Box::new(Answers::new(sections, view, requests, arrival.rank, table, hold)));
                asks = Some(Asks { table, answers, seat: LocalMutex::default() });
            }
            all.push(Arc::new(Shared {
                opened,
                object: Arc::clone(&object),
                shard,
                shards,
                size: *size,
                options: (*options).clone(),
                layout,
                memory_nodes: memory.len(),
                view: Arc::clone(&view),
                index,
                asks,
                sections: Arc::clone(&sections),
            }));
        }
        if let Some(arrival) = &arrival {
            arrival.enter_where_others_have_joined()?;
        }
        let of_client = |client: usize| {
            let writer = rank.map_or(0, |rank| rank * clients + client);
            all.iter().map(|shared| Place::new(client, writer, shared)).collect()
        };
        let places = if rank.is_some() { (0..clients).rev().map(of_client).collect() } else { Vec::new() };
        let opened = Opened { shards: all, places: Arc::new(LocalMutex::new(places)), closes };
        if let Some(arrival) = &arrival {
            arrival.succeed(&opened, clients)?;
        }
        Ok(opened)
    }

    pub(crate) fn client<'e>(&self, endpoint: &'e Endpoint) -> Result<Cores<'e>> {
        Cores::new(&self.shards, &self.places, &self.closes, endpoint)
    }
}

/// A node with clients that enters the tables of the memory nodes.
struct Arrival<'n> {
    node: &'n Node,
    path: &'n str,
    endpoint: Endpoint,
    view: Arc<View>,
    table: Table,
    rank: usize,
    /// Of each shard, what the tables had of it before, and where its requests lie.
    entered: Vec<Entered>,
    requests: Vec<RemotePtr<u64>>,
}

impl<'n> Arrival<'n> {
    fn new(node: &'n Node, path: &'n str, view: Arc<View>, table: Table, rank: usize) -> Result<Arrival<'n>> {
        let endpoint = node.endpoint()?;
        agreed_seats(node, &endpoint, &view, table).of(path)?;
        Ok(Arrival { node, path, endpoint, view, table, rank, entered: Vec::new(), requests: Vec::new() })
    }

    /// Enters the tables of the next shard.
    fn enter(&mut self, shard: usize, clients: usize, requests: RemotePtr<u64>) -> Result<()> {
        let Arrival { node, endpoint, view, table, rank, .. } = self;
        let own = *rank * clients..(*rank + 1) * clients;
        let register = || register(node, endpoint, &view.replicas(shard), *table, *rank, own.clone(), requests);
        self.entered.push(with_present_seats(node, endpoint, view, *table, register).of(self.path)?);
        self.requests.push(requests);
        Ok(())
    }

    /// A memory node that replaces another from now on asks this node, too. One that did so meanwhile has not: the
    /// service thread may have heard that it counts.
    fn enter_where_others_have_joined(&self) -> Result<()> {
        let Arrival { node, endpoint, view, table, .. } = self;
        agreed_seats(node, endpoint, view, *table).of(self.path)?;
        if view.seats().iter().all(|seat| seat.standing == Standing::First) {
            return Ok(());
        }
        let at = table.node(self.rank);
        for (shard, requests) in self.requests.iter().enumerate() {
            let enter = || enter_where_one_joins(node, endpoint, view.replicas(shard), at, *requests);
            with_present_seats(node, endpoint, view, *table, enter).of(self.path)?;
        }
        Ok(())
    }

    /// Its clients take over from those of the same numbers that were there before, all at a time: each has its place.
    fn succeed(&self, opened: &Opened, clients: usize) -> Result<()> {
        let own = (0..clients).map(|_| opened.client(&self.endpoint)).collect::<Result<Vec<_>>>()?;
        for (client, cores) in own.iter().enumerate() {
            for (shard, entered) in self.entered.iter().enumerate().filter(|(_, entered)| entered.succeeds) {
                self.endpoint.block_on(cores[shard].succeed(entered.reserved[client]))?;
            }
        }
        own.into_iter().rev().for_each(drop);
        Ok(())
    }
}

fn warn_of_short_timestamps(node: &Node, path: &str, bits: u32) {
    if bits < LASTING_BITS {
        let days = (1u64 << bits) / (24 * 3600 * 1_000_000);
        tracing::warn!(
            node = node.id().0,
            object = path,
            "it has so many registers that its timestamps end after {days} days"
        );
    }
}
