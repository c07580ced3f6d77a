//! Closing objects: when the memory of an opening comes back.
//!
//! A node *tells* others where the regions of an opening of its lie: by a join, or by a connect. From then on they may use
//! them, so they stay until each of those nodes has *released* the opening, or is gone and nothing of it can land any more.
//!
//! | message | says |
//! |---|---|
//! | `Closed` | the sender has closed this opening of its, and sends nothing more of it. Sent to all that were told of it |
//! | `Released` | the sender does not use this opening of the receiver's, and never will |
//!
//! A node closes an opening when nothing on it needs the object any more: no handle, no operation of another thread, and
//! nothing that its service thread still does for one that was dropped ([`Hold`]). It then releases all openings that its
//! own was connected to. Who hears `Closed` of an opening that it uses releases it when it closes its own; who does not use
//! it, since it never opened the object or has closed it before, releases it at once. So a node that keeps an object open
//! keeps the memory of all, and works on undisturbed; and an opening that came to nothing waits for one answer of each node.
//!
//! *Why nothing is given back too early.* Messages between two nodes come in order, and the service thread sends `Closed`
//! after everything else of the opening. Who answers it has handled every join and connect of the opening: it uses what
//! these told it of, and releases that later, or has refused it, and is told nothing more. A node that comes later is not
//! told at all.
//!
//! *What is late is harmless.* Openings are numbered, and each message names one: one that comes twice, or after the object
//! was opened anew, finds nothing. A join that is late would be taken for that of a new opening: so what a closed object was
//! connected to is remembered until the other node says `Closed` of it, or is gone.
//!
//! Operations that are under way towards memory that is given back are the fabric's matter:
//! [`Fabric::free`](farfield_fabric::Fabric::free).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use farfield_fabric::{Endpoint, GroupKey, NodeId, PeerState, Region, RemotePtr, Words};
use serde::{Deserialize, Serialize};

use super::super::service::{Poller, Progress, Standing};
use super::super::{Node, Shared};
use crate::error::Result;
use crate::mutants::{self, Mutant};

/// What nodes tell each other of openings that end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(in crate::node) enum Message {
    /// Of the sender's opening.
    Closed { opening: u64 },
    /// Of the receiver's opening.
    Released { opening: u64 },
}

/// The openings of a node, and those of other nodes that they use, as plain data. `R` is a region.
pub(in crate::node) struct Openings<R> {
    /// From the announcement until the memory is given back.
    own: BTreeMap<u64, Own<R>>,
    /// The openings of others that are used here, and by which of this node's.
    used: BTreeMap<(NodeId, u64), u64>,
    /// What objects that are closed here were connected to, with their paths, until the other node has closed it, too.
    earlier: BTreeMap<(NodeId, u64), String>,
}

struct Own<R> {
    path: String,
    regions: Vec<R>,
    /// Who was told of it, and whether it has released it.
    told: BTreeMap<NodeId, bool>,
    /// What it uses.
    uses: BTreeMap<NodeId, u64>,
    /// Who of these has closed that.
    closed_there: BTreeSet<NodeId>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Open,
    /// It has no handle any more, and its path is free.
    Dropped,
    Closed,
}

impl<R> Default for Openings<R> {
    fn default() -> Openings<R> {
        Openings { own: BTreeMap::new(), used: BTreeMap::new(), earlier: BTreeMap::new() }
    }
}

impl<R> Openings<R> {
    /// An object is opened with these regions, and these nodes are told of it.
    pub(super) fn opens(&mut self, opening: u64, path: &str, regions: Vec<R>, told: &[NodeId]) {
        let told = told.iter().map(|node| (*node, false)).collect();
        let (uses, closed_there) = Default::default();
        self.own.insert(opening, Own { path: path.into(), regions, told, uses, closed_there, stage: Stage::Open });
    }

    fn open(&mut self, opening: u64) -> Option<&mut Own<R>> {
        self.own.get_mut(&opening).filter(|own| own.stage == Stage::Open)
    }

    /// Another node is told of an opening; not if it is open no more.
    pub(super) fn tells(&mut self, opening: u64, peer: NodeId) -> bool {
        self.open(opening).map(|own| own.told.insert(peer, false)).is_some()
    }

    /// An opening is connected to another node's, and uses it from now on; not if it is open no more, or uses another one.
    pub(super) fn uses(&mut self, opening: u64, peer: NodeId, theirs: u64) -> bool {
        let Some(own) = self.open(opening) else { return false };
        let is_used = *own.uses.entry(peer).or_insert(theirs) == theirs;
        if is_used {
            self.used.insert((peer, theirs), opening);
        }
        is_used
    }

    /// Whether an object of this path that was dropped here was connected to this opening of another node's, or to a later one.
    pub(super) fn is_late(&self, path: &str, peer: NodeId, theirs: u64) -> bool {
        self.earlier.range((peer, theirs)..=(peer, u64::MAX)).any(|(_, earlier)| earlier == path)
    }

    /// The last handle of an object was dropped: its path is free.
    pub(super) fn drops(&mut self, opening: u64, is_gone: impl Fn(NodeId) -> bool) {
        let Some(own) = self.own.get_mut(&opening) else { return };
        own.stage = Stage::Dropped;
        let may_be_late = |peer: NodeId| !own.closed_there.contains(&peer) && !is_gone(peer);
        let used = own.uses.iter().filter(|(peer, _)| may_be_late(**peer));
        self.earlier.extend(used.map(|(peer, theirs)| ((*peer, *theirs), own.path.clone())));
    }

    /// Nothing on this node needs an opening any more. What is to be said, and the regions that can be given back at once.
    pub(super) fn closes(
        &mut self,
        opening: u64,
        is_gone: impl Fn(NodeId) -> bool,
    ) -> (Vec<(NodeId, Message)>, Vec<R>) {
        let Some(own) = self.own.get_mut(&opening) else { return Default::default() };
        own.stage = Stage::Closed;
        let mut said = Vec::new();
        for (peer, theirs) in core::mem::take(&mut own.uses) {
            self.used.remove(&(peer, theirs));
            said.push((peer, Message::Released { opening: theirs }));
        }
        said.extend(own.told.keys().map(|peer| (*peer, Message::Closed { opening })));
        said.retain(|(peer, _)| !is_gone(*peer));
        (said, self.give_back(opening, is_gone))
    }

    /// Another node has closed an opening of its; what to answer.
    pub(super) fn is_closed_there(&mut self, peer: NodeId, theirs: u64) -> Option<Message> {
        self.earlier.remove(&(peer, theirs));
        match self.used.get(&(peer, theirs)).and_then(|opening| self.own.get_mut(opening)) {
            Some(own) => {
                own.closed_there.insert(peer);
                None
            }
            None => Some(Message::Released { opening: theirs }),
        }
    }

    /// Another node has released an opening of this one; the regions that can be given back.
    pub(super) fn is_released(&mut self, peer: NodeId, opening: u64, is_gone: impl Fn(NodeId) -> bool) -> Vec<R> {
        let opening = match self.own.last_key_value() {
            Some((last, _)) if mutants::is_on(Mutant::ClosingLateTaken) && !self.own.contains_key(&opening) => *last,
            _ => opening,
        };
        if let Some(released) = self.own.get_mut(&opening).and_then(|own| own.told.get_mut(&peer)) {
            *released = true;
        }
        self.give_back(opening, is_gone)
    }

    /// Nodes have gone; the regions that can be given back.
    pub(in crate::node) fn forget(&mut self, is_gone: impl Fn(NodeId) -> bool) -> Vec<R> {
        self.earlier.retain(|(peer, _), _| !is_gone(*peer));
        let closed: Vec<u64> = self.own.iter().filter(|it| it.1.stage == Stage::Closed).map(|it| *it.0).collect();
        closed.into_iter().flat_map(|opening| self.give_back(opening, &is_gone)).collect()
    }

    /// The regions of an opening, if it is closed and nobody uses them any more.
    fn give_back(&mut self, opening: u64, is_gone: impl Fn(NodeId) -> bool) -> Vec<R> {
        let is_over = self.own.get(&opening).is_some_and(|own| {
            let is_released = own.told.iter().all(|(peer, released)| *released || is_gone(*peer));
            own.stage == Stage::Closed && (is_released || mutants::is_on(Mutant::ClosingFreedEarly))
        });
        let own = if is_over { self.own.remove(&opening) } else { None };
        own.map_or(Vec::new(), |own| own.regions)
    }
}

impl Shared {
    /// Whether a node is gone, and nothing of it can land any more.
    fn is_silent(&self, node: NodeId) -> bool {
        // One that came and left at once may have been no member here at all.
        if self.fabric.peer_state(node) == PeerState::Left {
            return true;
        }
        match self.service.standing_of(node) {
            Some(Standing::Departed | Standing::ShutOut) => true,
            Some(Standing::Suspected | Standing::Dead) => mutants::is_on(Mutant::ClosingSuspectNotAwaited),
            _ => false,
        }
    }

    /// Gives memory back, and counts it.
    pub(in crate::node) fn free(&self, memory: Memory) -> Result<()> {
        let bytes = memory.bytes() as u64;
        match memory {
            Memory::Region(region) => self.fabric.free(region),
            Memory::Words(words) => self.fabric.free_words(words),
        }?;
        self.memory_bytes.fetch_add(bytes.wrapping_neg());
        Ok(())
    }

    fn free_all(&self, all: Vec<Memory>) {
        for memory in all {
            if let Err(why) = self.free(memory) {
                tracing::error!("memory of a closed object is not given back: {why}");
            }
        }
    }

    /// Called by the service thread when it has learnt that nodes are gone.
    pub(in crate::node) fn forget_the_gone(&self) {
        let regions = self.service.openings.lock().forget(|node| self.is_silent(node));
        self.free_all(regions);
    }

    /// The last handle of an object is dropped.
    pub(super) fn drops(&self, opening: u64) {
        self.service.openings.lock().drops(opening, |node| self.is_silent(node));
    }
}

impl Message {
    pub(super) fn handle(self, shared: &Arc<Shared>, from: NodeId) {
        match self {
            Message::Closed { opening } => {
                let answer = shared.service.openings.lock().is_closed_there(from, opening);
                if let Some(answer) = answer {
                    say(shared, vec![(from, answer)]);
                }
            }
            Message::Released { opening } => {
                let is_gone = |node| shared.is_silent(node);
                let regions = shared.service.openings.lock().is_released(from, opening, is_gone);
                shared.free_all(regions);
            }
        }
    }
}

/// Says something to others, now or when they take messages again. Called by the service thread.
fn say(shared: &Arc<Shared>, messages: Vec<(NodeId, Message)>) {
    let mut saying = Saying { shared: Arc::downgrade(shared), closes: None, messages };
    if !saying.is_done(shared) {
        shared.add_poller(Box::new(saying));
    }
}

/// Keeps an object open on this node: the others are told that it is closed when the last is dropped. Handles have one, and so
/// has what the service thread does for an operation that was dropped.
#[derive(Clone)]
pub(crate) struct Hold(#[allow(dead_code, reason = "kept for its drop")] Arc<Held>);

struct Held {
    shared: Arc<Shared>,
    opening: u64,
}

impl Hold {
    pub(super) fn new(shared: &Arc<Shared>, opening: u64) -> Hold {
        Hold(Arc::new(Held { shared: Arc::clone(shared), opening }))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // By the service thread, so that it comes after everything else that is said of this opening.
        let (shared, closes) = (Arc::downgrade(&self.shared), Some(self.opening));
        self.shared.add_poller(Box::new(Saying { shared, closes, messages: Vec::new() }));
    }
}

/// What the service thread has to do for an opening that ends, until it is said.
struct Saying {
    /// A node that goes says nothing more, and the pollers that it has left do not keep it.
    shared: Weak<Shared>,
    closes: Option<u64>,
    messages: Vec<(NodeId, Message)>,
}

impl Saying {
    fn is_done(&mut self, shared: &Arc<Shared>) -> bool {
        let is_gone = |node| shared.is_silent(node);
        if let Some(opening) = self.closes.take() {
            let (messages, regions) = shared.service.openings.lock().closes(opening, is_gone);
            self.messages = messages;
            shared.free_all(regions);
        }
        // The rest in order, when there is room for it. Nobody who is gone has to hear of it.
        self.messages.retain(|(to, message)| {
            let has_gone = matches!(shared.fabric.peer_state(*to), PeerState::Left | PeerState::Dead { .. });
            let is_over = has_gone || shared.fabric.is_fenced();
            !is_over && !super::Message::Close(message.clone()).send(shared, *to)
        });
        self.messages.is_empty()
    }
}

impl Poller for Saying {
    fn poll(&mut self, _: &Endpoint) -> Progress {
        match self.shared.upgrade() {
            Some(shared) if !self.is_done(&shared) => Progress::Idle,
            _ => Progress::Done,
        }
    }
}

/// Memory of an object: cells of this node, or words that operations alone reach.
#[derive(Clone)]
pub(in crate::node) enum Memory {
    Region(Region),
    Words(Words),
}

impl Memory {
    /// Where it lies.
    pub(super) fn remote(&self) -> RemotePtr<u8> {
        match self {
            Memory::Region(region) => region.remote(0),
            Memory::Words(words) => words.start(),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match self {
            Memory::Region(region) => region.bytes(),
            Memory::Words(words) => words.bytes(),
        }
    }
}

/// The regions of an object that is being opened. Those of one that is never announced are given back at once.
pub(crate) struct Regions {
    node: Node,
    all: Vec<(Option<&'static str>, Memory)>,
}

impl Regions {
    pub(crate) fn new(node: &Node) -> Regions {
        Regions { node: node.for_service(), all: Vec::new() }
    }

    /// A region that the others are told of.
    pub(crate) fn alloc(&mut self, name: &'static str, group: GroupKey, bytes: usize) -> Result<Region> {
        let region = self.node.alloc(group, bytes)?;
        self.add(name, region.clone());
        Ok(region)
    }

    /// Words that the others are told of, and that are reached by operations alone.
    pub(crate) fn alloc_words(
        &mut self,
        name: &'static str,
        group: GroupKey,
        count: usize,
        pattern: &[u64],
    ) -> Result<()> {
        let words = self.node.alloc_words(group, count, pattern)?;
        self.add_words(name, words);
        Ok(())
    }

    /// A region that only this node knows.
    pub(crate) fn alloc_own(&mut self, group: GroupKey, bytes: usize) -> Result<Region> {
        let region = self.node.alloc(group, bytes)?;
        self.all.push((None, Memory::Region(region.clone())));
        Ok(region)
    }

    /// One that was allocated before.
    pub(super) fn add(&mut self, name: &'static str, region: Region) {
        self.all.push((Some(name), Memory::Region(region)));
    }

    /// Words that were allocated before.
    pub(super) fn add_words(&mut self, name: &'static str, words: Words) {
        self.all.push((Some(name), Memory::Words(words)));
    }

    /// Those that the others are told of.
    pub(super) fn named(&self) -> impl Iterator<Item = (&'static str, &Memory)> {
        self.all.iter().filter_map(|(name, memory)| Some(((*name)?, memory)))
    }

    /// They belong to an opening from now on.
    pub(super) fn take(mut self) -> Vec<Memory> {
        core::mem::take(&mut self.all).into_iter().map(|it| it.1).collect()
    }
}

impl Drop for Regions {
    fn drop(&mut self) {
        let regions = core::mem::take(&mut self.all).into_iter().map(|it| it.1).collect();
        self.node.shared().free_all(regions);
    }
}

#[cfg(test)]
mod tests;
