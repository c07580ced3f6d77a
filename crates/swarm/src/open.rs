//! What an array and a store have in common: opening.

use std::sync::Arc;

use farfield_core::toolkit::{ErrorContext, ObjectBuilder, Participants, Regions};
use farfield_core::{Error, ErrorKind, Node, Result};
use farfield_fabric::{Endpoint, GroupKey, LocalMutex, NodeId};

use crate::census::{Asks, REQUEST_BYTES, Table, agreed_seats, enter_where_one_joins, register};
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
        let timestamp_bits = layout.format.timestamp_bits();
        if !is_store && timestamp_bits < LASTING_BITS {
            let days = (1u64 << timestamp_bits) / (24 * 3600 * 1_000_000);
            tracing::warn!(
                node = node.id().0,
                object = path,
                "it has so many registers that its timestamps end after {days} days"
            );
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
        // If this fails in the middle, the service thread stops there.
        let closes = Arc::new(Closes::of(&sections));
        let opened = node.now();
        let endpoint = if rank.is_some() { Some(node.endpoint()?) } else { None };
        let (mut all, mut entered, mut questions) = (Vec::new(), Vec::new(), questions.into_iter());
        let mut own_requests = Vec::new();
        if let Some(endpoint) = &endpoint {
            agreed_seats(node, endpoint, &view, table).of(path)?;
        }
        for shard in 0..shards {
            let mut asks = None;
            if let (Some(rank), Some(endpoint), Some((requests, answers))) = (*rank, &endpoint, questions.next()) {
                let (own, at) = (rank * clients..(rank + 1) * clients, requests.remote(0));
                own_requests.push((table.node(rank), at));
                let register = || register(node, endpoint, &view.replicas(shard), table, rank, own.clone(), at);
                entered.push(with_present_seats(node, endpoint, &view, table, register).of(path)?);
                let (sections, view) = (Arc::clone(&sections), Arc::clone(&view));
                node.add_poller(Box::new(Answers::new(sections, view, requests, rank, table, object.hold())));
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
        if let Some(endpoint) = &endpoint {
            // One that replaces another from now on asks this node, too.
            agreed_seats(node, endpoint, &view, table).of(path)?;
            // The service thread may have heard meanwhile that one counts that joined before.
            if view.seats().iter().any(|seat| seat.standing != Standing::First) {
                for (shard, (at, requests)) in own_requests.into_iter().enumerate() {
                    let enter = || enter_where_one_joins(node, endpoint, view.replicas(shard), at, requests);
                    with_present_seats(node, endpoint, &view, table, enter).of(path)?;
                }
            }
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
