//! Agreement when the source of a broadcast dies in the middle (§4, reliable broadcast): a call that some live replica
//! has applied reaches all live replicas.
//!
//! The paper's survivors read a backup slot in the memory of the source. A process that was killed has no memory any
//! more, so here they read each other's: whatever a live replica has applied is in its copy of the feed, or in its copy
//! of the summary. The source reuses no entry that a live replica has not applied.
//!
//! Once a process is dead and none of its puts can land any more, each survivor
//!
//! 1. copies from every other survivor the calls of dead processes that it lacks; it then writes down the set of dead
//!    processes for which it has done so (`repaired`, a bit for each rank);
//! 2. when another survivor has written down at least the same set, copies from that one once more.
//!
//! *Why twice.* Let A have a call of dead D, and let B copy it from A, and A die before C has copied it. Then A belongs
//! to the dead, and B and C begin again. C finds the call at B in step 2: B writes down {A, D} only when all its copies
//! from A have ended. And a survivor that dies while C waits for it adds itself to the set.
//!
//! A copy is one of words that no process writes any more, apart from survivors that copy the same bytes to the same
//! place.

use farfield_core::{Node, Result};
use farfield_fabric::{Endpoint, NodeId, Region, RemotePtr};

use crate::feed::Place;
use crate::summaries::Slots;

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

/// The copies that are left to do.
pub(crate) struct Repair {
    node: Node,
    peers: Vec<Peer>,
    /// By rank: the copies of the feeds here; none of this process's own.
    feeds: Vec<Option<Place>>,
    summaries: Slots,
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
    pub(crate) fn new(
        node: Node,
        peers: Vec<Peer>,
        feeds: Vec<Option<Place>>,
        summaries: Slots,
        repaired: Region,
        feed_bytes: usize,
    ) -> Repair {
        let (dead, step, left, at) = (0, Step::Done, Vec::new(), None);
        Repair { node, peers, feeds, summaries, repaired, feed_bytes, dead, step, left, at }
    }

    /// This replica copies no more, and the others wait for no step of it.
    pub(crate) fn close(&self) {
        self.repaired.word(0).store(u64::MAX);
    }

    /// Takes a step, of a few round trips at most. `applied` returns the end and the number of the entries of a feed
    /// that are applied; the lock of the process is held for that only.
    pub(crate) fn step(
        &mut self,
        endpoint: &Endpoint,
        applied: impl Fn(usize) -> Option<(u64, u64)>,
    ) -> Result<Repaired> {
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
        let copied = match self.step {
            Step::Second if self.at.is_none() => match endpoint.get(peer.repaired).wait() {
                Ok(there) if there & self.dead == self.dead => self.copy(endpoint, applied).map(|()| Repaired::Some),
                Ok(_) => Ok(Repaired::Waits),
                Err(error) => Err(error.into()),
            },
            _ => self.copy(endpoint, applied).map(|()| Repaired::Some),
        };
        if !matches!(copied, Ok(Repaired::Some)) {
            // Others come first, and this one from the beginning.
            self.left.rotate_right(1);
            self.at = None;
        }
        copied
    }

    fn begin(&mut self, step: Step) {
        self.step = step;
        self.at = None;
        let lives = |at: &usize| self.dead & 1 << self.peers[*at].rank == 0;
        self.left = (0..self.peers.len()).filter(lives).collect();
    }

    /// Copies something of a dead process from the last of the peers that are left.
    fn copy(&mut self, endpoint: &Endpoint, applied: impl Fn(usize) -> Option<(u64, u64)>) -> Result<()> {
        let Some(peer) = self.left.last().map(|at| &self.peers[*at]) else { return Ok(()) };
        let first = self.at.map_or(0, |(process, _)| process);
        let Some(process) = (first..self.feeds.len()).find(|process| self.dead & 1 << process != 0) else {
            self.left.pop();
            self.at = None;
            return Ok(());
        };
        let (Some(feed), Some(begin)) = (&self.feeds[process], applied(process)) else {
            self.at = Some((process + 1, (0, 0)));
            return Ok(());
        };
        let mut after = self.at.filter(|(at, _)| *at == process).map_or(begin, |(_, after)| after.max(begin));
        let theirs = peer.feeds.byte_add((process * self.feed_bytes) as u64);
        for _ in 0..ENTRIES_AT_A_TIME {
            if !feed.copy_from(endpoint, theirs, &mut after)? {
                for group in 0..self.summaries.groups {
                    self.summaries.copy_from(endpoint, peer.summaries, process, group)?;
                }
                self.at = Some((process + 1, (0, 0)));
                return Ok(());
            }
        }
        self.at = Some((process, after));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use farfield_core::local_session;
    use farfield_core::toolkit::ObjectBuilder;
    use farfield_fabric::GroupKey;

    use super::{Peer, Repair, Repaired};
    use crate::summaries::Summaries;

    /// Survivors of a source, of which some have its call. They copy in any order, and may die.
    #[derive(Clone, PartialEq, Eq, Hash)]
    struct Survivors {
        has: [bool; 3],
        lives: [bool; 3],
        /// The deaths that each one knows.
        dead: [u8; 3],
        repaired: [u8; 3],
        /// 0: done; 1 and 2: the steps.
        step: [u8; 3],
        left: [u8; 3],
        /// A copy that was read, and is not written yet: of which survivor, and whether it has the call.
        read: [Option<(usize, bool)>; 3],
    }

    const SOURCE: u8 = 1 << 3;

    /// Whether all live survivors that are done agree, in every execution in which they take these steps. The source
    /// has died when its call had reached these.
    fn agree(steps: u8, has: [bool; 3]) -> bool {
        let begin = |dead: u8, me: usize| 0b111 & !dead & !(1 << me);
        let start = Survivors {
            has,
            lives: [true; 3],
            dead: [SOURCE; 3],
            repaired: [0; 3],
            step: [1; 3],
            left: [0, 1, 2].map(|me| begin(SOURCE, me)),
            read: [None; 3],
        };
        let (mut seen, mut todo, mut ends) = (HashSet::new(), vec![start], 0);
        while let Some(now) = todo.pop() {
            if !seen.insert(now.clone()) {
                continue;
            }
            let live: Vec<usize> = (0..3).filter(|me| now.lives[*me]).collect();
            let all_dead = (0..3).filter(|me| !now.lives[*me]).fold(SOURCE, |dead, me| dead | 1 << me);
            if live.iter().all(|me| now.step[*me] == 0 && now.dead[*me] == all_dead) {
                ends += 1;
                if live.iter().any(|me| now.has[*me] != now.has[live[0]]) {
                    return false;
                }
            }
            for me in live.iter().copied() {
                if live.len() > 1 {
                    let mut after = now.clone();
                    after.lives[me] = false;
                    todo.push(after);
                }
                if let Some((from, has)) = now.read[me] {
                    let mut after = now.clone();
                    after.has[me] |= has;
                    after.left[me] &= !(1 << from);
                    after.read[me] = None;
                    todo.push(after);
                    continue; // the service thread does nothing else meanwhile
                }
                if now.dead[me] != all_dead {
                    let mut after = now.clone();
                    (after.dead[me], after.step[me], after.left[me]) = (all_dead, 1, begin(all_dead, me));
                    todo.push(after);
                }
                if now.step[me] > 0 && now.left[me] == 0 {
                    let mut after = now.clone();
                    after.step[me] = (now.step[me] + 1) % (steps + 1);
                    if now.step[me] == 1 {
                        (after.repaired[me], after.left[me]) = (now.dead[me], begin(now.dead[me], me));
                    }
                    if after.step[me] == 0 {
                        after.left[me] = 0;
                    }
                    todo.push(after);
                }
                for from in (0..3).filter(|from| now.left[me] & 1 << from != 0 && now.lives[*from]) {
                    if now.step[me] == 1 || now.repaired[from] & now.dead[me] == now.dead[me] {
                        let mut after = now.clone();
                        after.read[me] = Some((from, now.has[from]));
                        todo.push(after);
                    }
                }
            }
        }
        assert!(ends > 10, "{ends} executions end");
        true
    }

    #[test]
    fn survivors_agree_because_they_copy_twice() {
        let mut reached = (0..8).map(|of: u8| [0, 1, 2].map(|survivor| of & 1 << survivor != 0));
        assert!(reached.clone().all(|has| agree(2, has)));
        assert!(!reached.all(|has| agree(1, has)), "one step would be enough");
    }

    /// Node 2 is gone. Node 0 copies from node 1 twice: the second time when that one has copied all from others.
    #[test]
    fn the_second_copies_wait_for_the_first_ones_of_the_other() {
        let mut nodes = local_session(3).expect("a session");
        let all: Vec<_> = nodes.iter().map(|node| node.id()).collect();
        let ep = nodes[0].endpoint().expect("an endpoint");
        nodes.pop().expect("node 2").leave();
        let has_gone = || nodes[0].fenced_error(&ep, all[2]).map(drop);
        ep.block_on(ep.wait_until(ep.deadline(), has_gone)).expect("it has left");
        let [own, theirs] = [0, 1].map(|node: usize| nodes[node].alloc(GroupKey::DATA, 64).expect("memory"));
        // No feed and no summary is copied, so none is there.
        let object = ObjectBuilder::new(&nodes[0], "repair", "Repair").participants([all[0]]).open();
        let object = object.expect("there is no other participant");
        let summaries = Summaries::new(&object, &all[..1], 0, &own, 0, 64).expect("there is no other process");
        let there = theirs.remote::<u64>(0);
        let peer = |rank: usize| Peer { rank, node: all[rank], feeds: there, summaries: there, repaired: there };
        let (peers, node) = (vec![peer(1), peer(2)], nodes[0].for_service());
        let mut repair = Repair::new(node, peers, vec![None, None, None], summaries.slots, own.clone(), 0);
        let mut goes_on = || loop {
            match repair.step(&ep, |_| None).expect("node 1 answers") {
                Repaired::Some => {}
                end => return end,
            }
        };
        assert!(matches!(goes_on(), Repaired::Waits), "node 1 has copied nothing");
        assert_eq!(own.word(0).load(), 1 << 2);
        theirs.word(0).store(1 << 2);
        assert!(matches!(goes_on(), Repaired::Nothing(dead) if dead == 1 << 2));
    }
}
