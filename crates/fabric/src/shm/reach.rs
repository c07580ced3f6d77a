//! The mappings that the lanes of a node reach: its card, the cards of its peers, the windows to their memory.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock};

use super::gone::Gone;
use super::limits::{lock, system};
use super::node_header::{DoorBell, NodeHeader};
use super::window::Windows;
use crate::error::Result;
use crate::ptr::{GroupKey, NUMBERS_MAX, NodeId};
use crate::sys::card_file::CardMapping;
use crate::sys::generations::Generations;
use crate::sys::liveness::LifeCell;
use crate::sys::memory::Arena;
use crate::sys::process::Process;
use crate::sys::session::Claim;

/// Everything that is mapped. Lanes and regions keep it, so it outlives every pointer into it.
pub(super) struct Memory {
    /// Dropped before the mappings that it points into.
    pub(super) windows: Arc<Windows>,
    pub(super) own: Arc<OwnCard>,
    /// By their numbers. None for one that ended before it could be seen.
    pub(super) peers: Vec<OnceLock<Option<CardMapping>>>,
    /// One more than the highest number of a node that has been heard of.
    pub(super) known: AtomicUsize,
    /// Dead and departed nodes; their memory must be given back.
    pub(super) gone: Mutex<Vec<Gone>>,
    /// The processes of other nodes, as far as they can be seen.
    pub(super) processes: Mutex<BTreeMap<NodeId, Process>>,
    /// Nodes that are gone, and of which no thread runs any more.
    pub(super) ended: Mutex<BTreeSet<NodeId>>,
    /// When the last slow fence began that has been done: see `fences`.
    pub(super) all_fenced_ns: AtomicU64,
    /// The peers that have a page for their rights on this node's card.
    pub(super) admitted: Mutex<BTreeSet<NodeId>>,
    /// Arenas of this node, only ever added to.
    pub(super) arenas: Mutex<Vec<(Arc<Arena>, Arc<Generations>)>>,
}

/// This node's card, and its place in the session directory.
pub(super) struct OwnCard(pub(super) Claim);

impl AsRef<LifeCell> for OwnCard {
    fn as_ref(&self) -> &LifeCell {
        &self.card().life
    }
}

impl OwnCard {
    fn mapping(&self) -> &CardMapping {
        self.0.card()
    }

    pub(super) fn card(&self) -> &NodeHeader {
        NodeHeader::of(self.mapping())
    }
}

/// A lane's place on its node's card.
pub(crate) struct LanePlace {
    pub(super) memory: Arc<Memory>,
    pub(super) index: usize,
    /// 1 if it counts among the threads that share the cores.
    pub(super) threads: u32,
    pub(super) free: Arc<Mutex<Vec<usize>>>,
}

impl LanePlace {
    pub(super) fn mark(&self) -> &AtomicU64 {
        &self.memory.own.card().marks[self.index].0
    }

    /// The bell of the node's threads that wait.
    pub(super) fn waiters(&self) -> &DoorBell {
        &self.memory.own.card().waiters
    }
}

impl Drop for LanePlace {
    fn drop(&mut self) {
        let card = self.memory.own.card();
        card.lanes.fetch_sub(self.threads, Ordering::Relaxed);
        card.open_lanes.fetch_sub(1, Ordering::Release); // behind its writes
        lock(&self.free).push(self.index);
    }
}

impl Memory {
    /// The memory of a node that has none yet but its card, in a session of so many places.
    ///
    /// # Errors
    /// No memory for the windows.
    pub(super) fn new(own: Arc<OwnCard>, places: usize) -> Result<Memory> {
        Ok(Memory {
            windows: Arc::new(Windows::new(NUMBERS_MAX).map_err(|why| system("windows on peers")(&why))?),
            own,
            peers: std::iter::repeat_with(OnceLock::new).take(NUMBERS_MAX).collect(),
            known: AtomicUsize::new(places),
            arenas: Mutex::default(),
            gone: Mutex::default(),
            processes: Mutex::default(),
            ended: Mutex::default(),
            all_fenced_ns: AtomicU64::new(0),
            admitted: Mutex::default(),
        })
    }

    /// Takes in the nodes that this one finds when it enters: those that are here, those that are gone, and the cards
    /// of the living.
    pub(super) fn learn(&self, here: &[u32], gone: Vec<u32>, living: Vec<(u32, CardMapping)>) {
        for node in here.iter().chain(&gone) {
            self.know(NodeId(*node as u16));
        }
        for node in gone {
            let _ = self.peers[node as usize].set(None);
        }
        for (node, card) in living {
            let _ = self.peers[node as usize].set(Some(card));
        }
    }

    pub(super) fn own_right(&self, key: GroupKey, peer: NodeId) -> &core::sync::atomic::AtomicU8 {
        NodeHeader::right(self.own.mapping(), key, peer)
    }

    /// Makes sure that the rights of a peer are there, before it reads them, or this node does.
    ///
    /// # Errors
    /// The file system of the session is full.
    pub(super) fn admit(&self, peer: NodeId) -> Result<()> {
        let mut admitted = lock(&self.admitted);
        if !admitted.contains(&peer) {
            self.own.0.reserve(NodeHeader::rights_of(peer)).map_err(|why| system("the rights of a peer")(&why))?;
            admitted.insert(peer);
        }
        Ok(())
    }

    pub(super) fn close_windows(&self) {
        self.windows.close(self.known_peers().len());
    }

    /// The card of a peer, if it is known.
    pub(super) fn peer(&self, node: NodeId) -> Option<&CardMapping> {
        self.peers.get(node.index())?.get()?.as_ref()
    }

    /// There is, or was, a node of this number.
    pub(super) fn know(&self, node: NodeId) {
        self.known.fetch_max(node.index() + 1, Ordering::Relaxed);
    }

    pub(super) fn known_peers(&self) -> &[OnceLock<Option<CardMapping>>] {
        &self.peers[..self.known.load(Ordering::Relaxed)]
    }
}
