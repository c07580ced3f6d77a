//! Opening a replicated object: all that does not depend on its type.

use farfield_core::toolkit::{ErrorContext, Object, ObjectBuilder, Regions, region_bytes};
use farfield_core::{Error, ErrorKind, Node, Result};
use farfield_fabric::{GroupKey, NodeId, Region, RemotePtr};
use farfield_mu::{AnnouncedCommands, CommandOptions, Commands, LogOptions};

use crate::conflicting::Order;
use crate::feed::{Incoming, Outgoing};
use crate::options::{MESSAGE_OVERHEAD, ReplicatedOptions};
use crate::repair::{Peer, Repair};
use crate::replica::Tables;
use crate::summaries::{Summaries, slot_bytes};

/// The calls, as they are measured.
const CALLS: [&str; 2] = ["update", "stable"];
pub(crate) const UPDATE: usize = 0;
pub(crate) const STABLE: usize = 1;

/// Entries of a log that some replica has not applied yet.
const LOG_ENTRIES: usize = 256;

/// A set of dead processes is a word.
const PROCESSES_MAX: usize = 64;

/// The memory, feeds, summaries and logs of an object.
pub(crate) struct Opened {
    pub(crate) object: Object,
    pub(crate) outgoing: Outgoing,
    /// By process: none of this one.
    pub(crate) incoming: Vec<Option<Incoming>>,
    pub(crate) summaries: Summaries,
    pub(crate) applied: Region,
    pub(crate) repair: Repair,
    /// The counts of applied entries of all feeds, of each process.
    pub(crate) counts: Vec<(usize, NodeId, RemotePtr<u64>)>,
    /// By synchronisation group.
    pub(crate) orders: Vec<Order>,
}

/// Opens the object on these processes, and waits for them to do so. `me` is the rank of this one.
pub(crate) fn open(
    node: &Node,
    path: &str,
    processes: &[NodeId],
    me: usize,
    tables: &Tables,
    layout: &str,
    options: &ReplicatedOptions,
) -> Result<Opened> {
    if processes.len() > PROCESSES_MAX {
        let why = format!("{} nodes: a replicated object has {PROCESSES_MAX} at most", processes.len());
        return Err(Error::from(ErrorKind::Config { why }).of(path));
    }
    options.check(MESSAGE_OVERHEAD + tables.dependencies_bytes_max(processes.len())).of(path)?;
    let &ReplicatedOptions { call_bytes_max, refusal_bytes_max, summary_bytes_max, feed_bytes, .. } = options;
    // A number of calls for each method is in front of the call.
    let slot_bytes = slot_bytes(summary_bytes_max + 10 * tables.methods);
    let summaries_bytes = Summaries::region_bytes(processes.len(), tables.summaries.max(1), slot_bytes);
    let feeds_bytes = region_bytes(feed_bytes / 8, processes.len(), "the feeds of all nodes").of(path)?;
    let words_bytes = processes.len() * 8;
    let applied_bytes = words_bytes + tables.groups.len() * 8;

    let mut regions = Regions::new(node);
    // A put to a feed wakes the service thread, which applies it. A summary wakes threads that wait for a state.
    let feeds = regions.alloc("feeds", GroupKey::SERVICE, feeds_bytes).of(path)?;
    let summaries = regions.alloc("summaries", GroupKey::SIGNAL, summaries_bytes).of(path)?;
    let taken = regions.alloc("taken", GroupKey::SIGNAL, words_bytes).of(path)?;
    let applied = regions.alloc("applied", GroupKey::DATA, applied_bytes).of(path)?;
    let repaired = regions.alloc("repaired", GroupKey::DATA, 8).of(path)?;
    // Each group has a log, and a leader of its own. All are announced before any is waited for.
    let log_options = LogOptions {
        entry_bytes_max: call_bytes_max.max(refusal_bytes_max)
            + tables.entry_bytes_beside(processes.len(), summary_bytes_max),
        entries: LOG_ENTRIES,
    };
    // A refusal has a byte more, which says whether it is there.
    let command_options =
        CommandOptions { log: log_options, command_bytes_max: call_bytes_max, answer_bytes_max: refusal_bytes_max + 1 };
    let announce =
        |group| Commands::announce(&node.for_service(), &format!("{path}/order{group}"), processes, command_options);
    let announced = (0..tables.groups.len()).map(announce).collect::<Result<Vec<_>>>()?;
    let opening = ObjectBuilder::new(node, path, "Replicated").layout(layout).regions(regions).calls(&CALLS);
    let needs = [
        ("feeds", feeds_bytes),
        ("summaries", summaries_bytes),
        ("taken", words_bytes),
        ("applied", applied_bytes),
        ("repaired", 8),
    ];
    let needs = needs.map(|(region, bytes)| (region.to_string(), bytes as u64)).to_vec();
    let object = opening.participants(processes.iter().copied()).require_regions(move |_| needs.clone()).open()?;

    let outgoing = Outgoing::new(&object, processes, me, &feeds, &taken, feed_bytes)?;
    let ranked = || processes.iter().copied().enumerate();
    let incoming = ranked().map(|source| {
        let feed = (source.0 != me).then(|| Incoming::new(&object, source, me, &feeds, feed_bytes));
        feed.transpose()
    });
    let incoming = incoming.collect::<Result<Vec<_>>>()?;
    let summaries = Summaries::new(&object, processes, me, &summaries, tables.summaries, slot_bytes)?;
    let peers = ranked().filter(|(rank, _)| *rank != me).map(|(rank, node)| {
        let (feeds, summaries) = (object.remote(node, "feeds")?, object.remote(node, "summaries")?);
        Ok(Peer { rank, node, feeds, summaries, repaired: object.remote(node, "repaired")? })
    });
    let copies = incoming.iter().map(|incoming| incoming.as_ref().map(|feed| feed.place.clone())).collect();
    let slots = summaries.slots.clone();
    let repair = Repair::new(node.for_service(), peers.collect::<Result<_>>()?, copies, slots, repaired, feed_bytes);
    let counts = ranked().map(|(rank, node)| Ok((rank, node, object.remote::<u64>(node, "applied")?)));
    let counts = counts.collect::<Result<_>>()?;
    let orders = announced.into_iter().map(AnnouncedCommands::wait).collect::<Result<Vec<Commands>>>()?;
    // Each group has another leader, as far as there are nodes. Of the first group it is the first node in any case.
    let others = orders.iter().enumerate().skip(1);
    others.filter(|(at, _)| at % processes.len() == me).for_each(|(_, order)| order.log().ask_to_lead());
    let orders = orders.into_iter().map(|commands| Order::new(commands, processes.len())).collect();
    Ok(Opened { object, outgoing, incoming, summaries, applied, repair, counts, orders })
}
