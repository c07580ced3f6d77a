//! Memory that is given back, and used again.
//!
//! The owner cannot take back requests that a lane of another node has posted. So it announces to all peers that the
//! memory has another generation, and uses it again when each has answered that none of its lanes has an operation by
//! the old one pending:
//!
//! - A lane counts a work request as posted (`LanePort::begin`) before it checks for the last time whether its memory
//!   still exists: by the verdict of the queue pair on the short way, by the count of the peer's changes on the long
//!   one. Requests that wait in the lane are checked again then. A node that receives the change makes it visible, and
//!   then forces a full fence on every core: each lane either sees the change, or its count is seen.
//! - A count that was seen is awaited: until the lane has ended as many. The peer's device has executed a completed
//!   work request, or never will, and its bytes are in memory some microseconds later: [`PLACED`] is far longer.
//! - A lane that is not polled keeps the memory out of use until it is polled or closed, and so does a node that is
//!   suspected and does not answer. A departed or evicted node has lost its targets here: nothing of it lands any
//!   more. Where targets look at the generation themselves (UCX), nothing late lands from any node: an answer only
//!   says that the node knows the new generation, and one that is suspected is not waited for.
//! - The node's own lanes use the device, too: they are counted in the same way.
//!
//! A later node gets all generations before it can reach any memory.

use std::collections::BTreeSet;
use std::sync::{Arc, MutexGuard, Weak};
use std::time::{Duration, Instant};

use super::{ANSWER_MAX, Board, Connections};
use crate::error::{ErrorKind, Result};
use crate::fabric::Region;
use crate::hosts::carrier::{Carrier, LanePort, Switch};
use crate::hosts::layout::GenerationInfo;
use crate::hosts::memory::GroupMemory;
use crate::hosts::message::Message;
use crate::ptr::{GroupKey, NodeId};
use crate::space::{Allocation, is_let_go};
use crate::sys::fence::fence_own_threads;

/// After the completion of a work request its bytes are in memory within this time.
const PLACED: Duration = Duration::from_millis(10);
/// The interval of the checks in a wait for memory.
const LOOK: Duration = Duration::from_millis(2);

/// Memory of this node that was given back, and may still be in use.
pub(super) struct GivenBack {
    id: u64,
    allocation: Weak<Allocation>,
    info: GenerationInfo,
    /// Peers that have not answered.
    peers: BTreeSet<NodeId>,
    /// Lanes of this node, and what each may have had under way.
    lanes: Vec<(u32, u64)>,
    /// From when on it may be used again.
    ready: Option<Instant>,
}

/// A peer waits to hear that nothing is under way.
pub(super) struct Passing {
    node: NodeId,
    id: u64,
    lanes: Vec<(u32, u64)>,
}

impl<C: Carrier> Board<C> {
    /// The requests that lanes may have under way by their knowledge before a heavy fence.
    fn under_way(&self) -> Vec<(u32, u64)> {
        self.lanes.iter().filter_map(|(lane, open)| open.port.under_way().map(|posted| (*lane, posted))).collect()
    }

    fn is_under_way(&self, (lane, posted): (u32, u64)) -> bool {
        // Closing a lane waits for its pending operations.
        self.lanes.get(&lane).is_some_and(|open| !open.port.has_ended(posted))
    }

    /// The lanes look before they post to a class of a node's groups.
    fn warn_lanes(&self, node: NodeId, key: GroupKey) {
        let pairs = self.lanes.values().filter_map(|lane| lane.pairs.get(&(node, key.class().0)));
        pairs.for_each(|pair| pair.warn());
    }

    /// Gives out again the memory that is ready for it.
    fn reclaim(&mut self, key: GroupKey) {
        let mut given_back = core::mem::take(&mut self.groups[usize::from(key.0)].given_back);
        let now = Instant::now();
        given_back.retain_mut(|given| {
            given.peers.retain(|node| self.peers.get(node).is_some_and(|peer| !C::TARGETS_LOOK || peer.answers()));
            given.lanes.retain(|lane| self.is_under_way(*lane));
            if !given.peers.is_empty() || !given.lanes.is_empty() {
                return true;
            }
            let is_ready = *given.ready.get_or_insert(now + PLACED) <= now && is_let_go(&given.allocation);
            if is_ready {
                self.groups[usize::from(key.0)].memory.give_out_again(given.info);
            }
            !is_ready
        });
        self.groups[usize::from(key.0)].given_back = given_back;
    }
}

impl<C: Carrier> Connections<C> {
    /// Gives memory of this node back.
    pub(in crate::hosts) fn free(&self, region: &Region) -> Result<()> {
        let (remote, mut board) = (region.remote::<u8>(0), self.lock());
        let key = remote.key();
        let memory = board.groups.get(usize::from(key.0)).filter(|_| remote.node() == self.me);
        let memory = memory.map(|group| Arc::clone(&group.memory));
        let allocation = Arc::clone(region.keep()).downcast::<Allocation>().ok();
        let (Some(memory), Some(allocation)) = (memory, allocation) else { return Err(self.not_mine(region)) };
        if !allocation.is_of(&memory) {
            return Err(self.not_mine(region));
        }
        if !allocation.give_back() || allocation.bytes == 0 {
            return Ok(());
        }
        let info = memory.give_back(&allocation);
        self.own(&mut board).memory.set_generation(key, info);
        self.carrier.settle();
        board.warn_lanes(self.me, key);
        board.last_free += 1;
        let id = board.last_free;
        self.tell_all(&mut board, &Message::Generation { id, key: key.0, info });
        fence_own_threads().map_err(|why| ErrorKind::System { what: "membarrier", why: why.to_string() })?;
        let peers = board.peers.keys().copied().filter(|node| *node != self.me).collect();
        let (allocation, lanes) = (Arc::downgrade(&allocation), board.under_way());
        let given = GivenBack { id, allocation, info, peers, lanes, ready: None };
        board.groups[usize::from(key.0)].given_back.push(given);
        board.reclaim(key);
        Ok(())
    }

    fn not_mine(&self, region: &Region) -> crate::Error {
        let why = format!("{region:?} is no memory of {}", self.me);
        ErrorKind::System { what: "giving memory back", why }.into()
    }

    /// A region of memory that was given back; the board again if there is none.
    pub(super) fn alloc_again<'b>(
        &'b self,
        mut board: MutexGuard<'b, Board<C>>,
        key: GroupKey,
        memory: &Arc<GroupMemory<C::Keeper>>,
        bytes: usize,
    ) -> Result<Result<Region, MutexGuard<'b, Board<C>>>> {
        board.reclaim(key);
        let Some((region, news)) = memory.alloc_again(self.me, bytes) else { return Ok(Err(board)) };
        if let Some(info) = news {
            self.tell_generation(&mut board, key, info);
            self.wait_until_reached(board, key.class().0)?;
        }
        Ok(Ok(region))
    }

    /// Words in the device's own memory, as a region without bytes; none where it has none left.
    pub(in crate::hosts) fn alloc_words(&self, key: GroupKey, count: usize, pattern: &[u64]) -> Result<Option<Region>> {
        let mut board = self.lock();
        let Some(group) = board.groups.get(usize::from(key.0)) else {
            return Err(ErrorKind::UnknownGroup { node: self.me, key }.into());
        };
        let memory = Arc::clone(&group.memory);
        board.reclaim(key);
        let Some((region, news)) = memory.alloc_words(self.me, count, pattern) else { return Ok(None) };
        self.tell_chunks(&mut board, key);
        if let Some(info) = news {
            self.tell_generation(&mut board, key, info);
        }
        self.wait_until_reached(board, key.class().0)?;
        Ok(Some(region))
    }

    /// Memory is given out again with a generation that it did not have as a whole.
    fn tell_generation(&self, board: &mut Board<C>, key: GroupKey, info: GenerationInfo) {
        self.own(board).memory.set_generation(key, info);
        self.tell_all(board, &Message::Generation { id: 0, key: key.0, info });
        self.await_reached(board, key);
    }

    /// No new memory is left: waits for freed memory, if there is any.
    pub(super) fn alloc_later(
        &self,
        key: GroupKey,
        memory: &Arc<GroupMemory<C::Keeper>>,
        bytes: usize,
    ) -> Option<Result<Region>> {
        let until = Instant::now() + ANSWER_MAX;
        while !self.is_service() && Instant::now() < until {
            let board = self.lock();
            if board.groups[usize::from(key.0)].given_back.is_empty() {
                return None;
            }
            match self.alloc_again(board, key, memory, bytes) {
                Ok(Err(board)) => drop(self.changed.wait_timeout(board, LOOK)),
                Ok(Ok(region)) => return Some(Ok(region)),
                Err(error) => return Some(Err(error)),
            }
        }
        None
    }

    /// A peer has given memory back: it gets an answer once no request is under way by the lanes' old knowledge.
    pub(super) fn hear_free(&self, board: &mut Board<C>, node: NodeId, key: GroupKey, id: u64) {
        board.warn_lanes(node, key);
        // Without the fence there is no proof: the peer does not use the memory again.
        if id != 0 && fence_own_threads().is_ok() {
            let lanes = board.under_way();
            board.passing.push(Passing { node, id, lanes });
            self.pass(board);
        }
    }

    /// Answers the requests that have waited long enough.
    pub(super) fn pass(&self, board: &mut Board<C>) {
        let mut passing = core::mem::take(&mut board.passing);
        passing.retain_mut(|waits| {
            waits.lanes.retain(|lane| board.is_under_way(*lane));
            if waits.lanes.is_empty() {
                self.tell(board, waits.node, &Message::Passed { id: waits.id });
            }
            !waits.lanes.is_empty()
        });
        board.passing = passing;
    }

    /// A peer has nothing under way to memory that was given back.
    pub(super) fn passed(&self, board: &mut Board<C>, node: NodeId, id: u64) {
        let all = board.groups.iter_mut().flat_map(|group| &mut group.given_back);
        all.filter(|given| given.id == id).for_each(|given| {
            given.peers.remove(&node);
        });
    }
}
