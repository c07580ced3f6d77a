//! Agreement when the source of a broadcast dies in the middle (§4, reliable broadcast): a call that some live replica has applied reaches all
//! live replicas.
//!
//! The paper's survivors read a backup slot in the memory of the source. A process that was killed has no memory any more, so here
//! they read each other's: whatever a live replica has applied is in its copy of the feed, or in its copy of the summary. The source reuses no entry that
//! a live replica has not applied.
//!
//! Once a process is dead and none of its puts can land any more, each survivor
//!
//! 1. copies from every other survivor what that one has of the dead processes and it has not; it then writes down the set of dead
//!    processes for which it has done so (`repaired`, a bit for each rank);
//! 2. when another survivor has written down at least the same set, copies from that one once more.
//!
//! *Why twice.* Let A have a call of dead D, and let B copy it from A, and A die before C has copied it. Then A belongs to the dead, and B and C
//! begin again. C finds the call at B in step 2: B writes down {A, D} only when all its copies from A have ended. And
//! a survivor that dies while C waits for it adds itself to the set.
//!
//! A copy is one of words that nobody writes any more, apart from survivors that copy the same bytes to the same place.

use farfield_core::{Node, Result};
use farfield_fabric::{Endpoint, NodeId, Region, RemotePtr};

use crate::data_type::DataType;
use crate::local::Local;

/// How many entries are copied before other work of the service thread is looked at.
const ENTRIES_AT_A_TIME: usize = 16;

/// Another replica's memory.
pub(crate) struct Peer {
    pub(crate) rank: usize,
    pub(crate) node: NodeId,
    pub(crate) feeds: RemotePtr<u64>,
    pub(crate) summaries: RemotePtr<u64>,
    pub(crate) repaired: RemotePtr<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// No process is dead, or all is copied.
    Done,
    First,
    Second,
}

/// What is left to copy.
pub(crate) struct Repair {
    node: Node,
    peers: Vec<Peer>,
    /// The set of dead processes, for the others to read.
    repaired: Region,
    feed_bytes: usize,
    /// The dead processes that `step` is about: a bit for each rank.
    dead: u64,
    step: Step,
    /// The peers that this step has still to copy from.
    left: Vec<usize>,
    /// The dead process that is being copied, and how far: position and number of an entry.
    at: Option<(usize, (u64, u64))>,
}

/// The result of a step.
pub(crate) enum Repaired {
    /// Nothing is left to copy of these dead processes.
    Nothing(u64),
    Some,
    /// It waits for another replica.
    Waits,
}

impl Repair {
    pub(crate) fn new(node: Node, peers: Vec<Peer>, repaired: Region, feed_bytes: usize) -> Repair {
        Repair { node, peers, repaired, feed_bytes, dead: 0, step: Step::Done, left: Vec::new(), at: None }
    }

    /// Takes a step, of a few round trips at most.
    pub(crate) fn step<T: DataType>(&mut self, endpoint: &Endpoint, local: &Local<T>) -> Result<Repaired> {
        let is_dead = |peer: &&Peer| self.node.fenced_error(endpoint, peer.node).is_some();
        let dead = self.peers.iter().filter(is_dead).fold(0, |dead, peer| dead | 1 << peer.rank);
        if dead != self.dead {
            self.dead = dead;
            self.begin(Step::First);
        }
        let Some(peer) = self.left.last().map(|at| &self.peers[*at]) else {
            match self.step {
                Step::Done => return Ok(Repaired::Nothing(self.dead)),
                Step::First => {
                    // After all copies.
                    self.repaired.word(0).store(self.dead);
                    self.begin(Step::Second);
                }
                Step::Second => {
                    self.step = Step::Done;
                    tracing::info!("node {}: all calls of the dead are copied", self.node.id().0);
                }
            }
            return Ok(Repaired::Some);
        };
        if self.step == Step::Second && self.at.is_none() {
            let there = endpoint.get(peer.repaired).wait()?;
            if there & self.dead != self.dead {
                self.left.rotate_right(1);
                return Ok(Repaired::Waits);
            }
        }
        self.copy(endpoint, local)?;
        Ok(Repaired::Some)
    }

    fn begin(&mut self, step: Step) {
        self.step = step;
        self.at = None;
        let lives = |at: &usize| self.dead & 1 << self.peers[*at].rank == 0;
        self.left = (0..self.peers.len()).filter(lives).collect();
    }

    /// Copies something of a dead process from the last of the peers that are left.
    fn copy<T: DataType>(&mut self, endpoint: &Endpoint, local: &Local<T>) -> Result<()> {
        let Some(peer) = self.left.last().map(|at| &self.peers[*at]) else { return Ok(()) };
        let first = self.at.map_or(0, |(process, _)| process);
        let Some(process) = (first..local.processes.len()).find(|process| self.dead & 1 << process != 0) else {
            self.left.pop();
            self.at = None;
            return Ok(());
        };
        let Some(incoming) = &local.incoming[process] else {
            self.at = Some((process + 1, (0, 0)));
            return Ok(());
        };
        let begin = (incoming.position(), incoming.entries());
        let mut after = self.at.filter(|(at, _)| *at == process).map_or(begin, |(_, after)| after.max(begin));
        let theirs = peer.feeds.byte_add((process * self.feed_bytes) as u64);
        for _ in 0..ENTRIES_AT_A_TIME {
            if !incoming.copy_from(endpoint, theirs, &mut after)? {
                for group in 0..local.replica.tables.summaries {
                    local.summaries.copy_from(endpoint, peer.summaries, process, group)?;
                }
                self.at = Some((process + 1, (0, 0)));
                return Ok(());
            }
        }
        self.at = Some((process, after));
        Ok(())
    }
}
