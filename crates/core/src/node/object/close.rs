//! Closing objects, and freeing the memory of an opening.
//!
//! A node *announces* the regions of its opening to other nodes: by a join, or by a connect. From then on these nodes
//! may use the regions. So the regions stay until each of the nodes has *released* the opening, or is dead or departed
//! and none of its operations can land any more.
//!
//! | message | meaning |
//! |---|---|
//! | `Closed` | the sender has closed this opening of its own, and sends nothing more about it; to all that know it |
//! | `Released` | the sender does not use this opening of the receiver's, and never will, with the opening of its own that it names |
//!
//! A node closes an opening when nothing on it needs the object any more: no handle, no operation of another thread,
//! and no work of its service thread for a dropped one ([`Hold`]). It then releases all openings to which its own was
//! connected. A node that receives `Closed` of an opening that it uses releases it when it closes its own; at once, if
//! the object is on homes ([`ObjectBuilder::homes`](super::ObjectBuilder::homes)) and the other node is none. A node
//! that does not use it, since it never opened the object or has closed it before, releases it at once. So a node that
//! keeps an object open keeps the memory of all, and continues undisturbed. An opening that was never connected waits
//! for one answer of each node.
//!
//! *Why no memory is freed too early.* Messages between two nodes arrive in order, and the service thread sends
//! `Closed` after all other messages of the opening. A node that answers it has handled every join and connect of the
//! opening. Either it uses the announced regions, and releases them later; or it has refused them, and gets no further
//! announcement. A node that joins later gets none at all.
//!
//! *Late messages are harmless.* Openings are numbered, and each message names one: a message that arrives twice, or
//! after the object was opened anew, has no effect. A late join could be mistaken for that of a new opening. So a node
//! remembers the connections of a closed object until the other node sends `Closed` for it, or is dead or departed.
//!
//! The fabric handles operations in flight to freed memory: [`Fabric::free`](farfield_fabric::Fabric::free).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use farfield_fabric::{Endpoint, NodeId, PeerState};
use serde::{Deserialize, Serialize};

use super::super::Shared;
use super::super::service::{MemberStatus, Poller, Progress};
use super::{Memory, ObjectDescriptor};
use crate::error::Result;

/// Messages about openings that end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(in crate::node) enum Message {
    /// The sender's opening.
    Closed { opening: u64 },
    /// The receiver's opening, by this one of the sender's; or by none, which has the highest number.
    Released { opening: u64, by: u64 },
}

/// The openings of a node, and those of other nodes that they use, as plain data. `R` is a region.
pub(in crate::node) struct Openings<R> {
    /// From the announcement until the memory is freed.
    own: BTreeMap<u64, Own<R>>,
    /// The openings of others in use here, and this node's openings that use them.
    used: BTreeMap<(NodeId, u64), u64>,
    /// The connections of objects that are closed here, with their paths, until the other node has closed its opening,
    /// too.
    earlier: BTreeMap<(NodeId, u64), String>,
    /// The openings of others that have called for this node and are not open here: their paths and types.
    calling: BTreeMap<(NodeId, u64), ObjectDescriptor>,
}

struct Own<R> {
    path: String,
    regions: Vec<R>,
    /// The nodes that received its announcement, and whether each has released it.
    told: BTreeMap<NodeId, bool>,
    /// The openings that it uses.
    uses: BTreeMap<NodeId, u64>,
    /// The nodes of these that have closed theirs.
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
        let (own, used, earlier, calling) = Default::default();
        Openings { own, used, earlier, calling }
    }
}

impl<R> Openings<R> {
    /// Records that an object is opened with these regions, and announced to these nodes.
    pub(super) fn opens(&mut self, opening: u64, path: &str, regions: Vec<R>, told: &[NodeId]) {
        let told = told.iter().map(|node| (*node, false)).collect();
        let (uses, closed_there) = Default::default();
        self.own.insert(opening, Own { path: path.into(), regions, told, uses, closed_there, stage: Stage::Open });
    }

    fn open(&mut self, opening: u64) -> Option<&mut Own<R>> {
        self.own.get_mut(&opening).filter(|own| own.stage == Stage::Open)
    }

    /// Records that an opening is announced to another node. False if it is no longer open.
    pub(super) fn tells(&mut self, opening: u64, peer: NodeId) -> bool {
        self.open(opening).map(|own| own.told.insert(peer, false)).is_some()
    }

    /// Records that an opening is connected to another node's, and uses it from now on. False if it is no longer open,
    /// or uses another one.
    pub(super) fn uses(&mut self, opening: u64, peer: NodeId, theirs: u64) -> bool {
        let Some(own) = self.open(opening) else { return false };
        let is_used = *own.uses.entry(peer).or_insert(theirs) == theirs;
        if is_used {
            self.calling.remove(&(peer, theirs));
            self.used.insert((peer, theirs), opening);
        }
        is_used
    }

    /// Records that another node has opened a path of which this node is a participant, and that is not open here.
    pub(super) fn calls(&mut self, peer: NodeId, opening: u64, theirs: ObjectDescriptor) {
        self.calling.insert((peer, opening), theirs);
    }

    /// The objects that other nodes have opened and this one has not: the node, the number of the opening there, and
    /// its description.
    pub(super) fn all_calls(&self) -> Vec<(NodeId, u64, ObjectDescriptor)> {
        self.calling.iter().map(|((peer, opening), theirs)| (*peer, *opening, theirs.clone())).collect()
    }

    /// Whether another node still waits for this one to open that object, too.
    pub(super) fn is_calling(&self, peer: NodeId, opening: u64) -> bool {
        self.calling.contains_key(&(peer, opening))
    }

    /// The nodes that still use memory of an earlier opening of a path.
    pub(super) fn users_before(&self, path: &str, is_gone: impl Fn(NodeId) -> bool) -> Vec<NodeId> {
        let earlier = self.own.values().filter(|own| own.path == path && own.stage != Stage::Open);
        let told = earlier.flat_map(|own| own.told.iter().filter(|(_, released)| !**released));
        told.map(|(peer, _)| *peer).filter(|peer| !is_gone(*peer)).collect()
    }

    /// The nodes that have opened a path, and called for this node in vain.
    pub(super) fn callers(&self, path: &str) -> impl Iterator<Item = NodeId> {
        self.calling.iter().filter(move |(_, it)| it.path == path).map(|((peer, _), _)| *peer)
    }

    /// The paths that another node has opened and this one has not, with their types; the latest first.
    pub(super) fn open_there(&self, peer: NodeId) -> impl Iterator<Item = &ObjectDescriptor> {
        let is_open = |path: &String| self.own.values().any(|own| own.stage == Stage::Open && own.path == *path);
        let calling = self.calling.range((peer, 0)..=(peer, u64::MAX)).rev().map(|(_, it)| it);
        calling.filter(move |it| !is_open(&it.path))
    }

    /// Whether a dropped object of this path was connected to this opening of another node, or to a later one.
    pub(super) fn is_late(&self, path: &str, peer: NodeId, theirs: u64) -> bool {
        self.earlier.range((peer, theirs)..=(peer, u64::MAX)).any(|(_, earlier)| earlier == path)
    }

    /// Records that the last handle of an object was dropped: its path is free.
    pub(super) fn drops(&mut self, opening: u64, is_gone: impl Fn(NodeId) -> bool) {
        let Some(own) = self.own.get_mut(&opening) else { return };
        own.stage = Stage::Dropped;
        let may_be_late = |peer: NodeId| !own.closed_there.contains(&peer) && !is_gone(peer);
        let used = own.uses.iter().filter(|(peer, _)| may_be_late(**peer));
        self.earlier.extend(used.map(|(peer, theirs)| ((*peer, *theirs), own.path.clone())));
    }

    /// Closes an opening that nothing on this node needs any more. Returns the messages to send, and the regions to
    /// free at once.
    pub(super) fn closes(
        &mut self,
        opening: u64,
        is_gone: impl Fn(NodeId) -> bool,
    ) -> (Vec<(NodeId, Message)>, Vec<R>) {
        let Some(own) = self.own.get_mut(&opening) else { return Default::default() };
        own.stage = Stage::Closed;
        let mut said = Vec::new();
        for (peer, theirs) in core::mem::take(&mut own.uses) {
            // A later opening of the path may use it, too.
            if self.used.get(&(peer, theirs)) == Some(&opening) {
                self.used.remove(&(peer, theirs));
            }
            said.push((peer, Message::Released { opening: theirs, by: opening }));
        }
        said.extend(own.told.keys().map(|peer| (*peer, Message::Closed { opening })));
        said.retain(|(peer, _)| !is_gone(*peer));
        (said, self.give_back(opening, is_gone))
    }

    /// Ends the use of another node's opening at once, although the own one is still open: the other one has closed it,
    /// and may open the path again. Returns the answer.
    pub(super) fn lets_go(&mut self, peer: NodeId, theirs: u64) -> Message {
        self.calling.remove(&(peer, theirs));
        if let Some(own) = self.used.remove(&(peer, theirs)).and_then(|opening| self.own.get_mut(&opening)) {
            own.uses.remove(&peer);
        }
        Message::Released { opening: theirs, by: u64::MAX }
    }

    /// Handles `Closed` of another node. Returns the answer.
    pub(super) fn is_closed_there(&mut self, peer: NodeId, theirs: u64) -> Option<Message> {
        self.earlier.remove(&(peer, theirs));
        self.calling.remove(&(peer, theirs));
        match self.used.get(&(peer, theirs)).and_then(|opening| self.own.get_mut(opening)) {
            Some(own) => {
                own.closed_there.insert(peer);
                None
            }
            None => Some(Message::Released { opening: theirs, by: u64::MAX }),
        }
    }

    /// Handles `Released` of another node. Returns the regions to free.
    pub(super) fn is_released(
        &mut self,
        peer: NodeId,
        opening: u64,
        by: u64,
        is_gone: impl Fn(NodeId) -> bool,
    ) -> Vec<R> {
        if let Some(own) = self.own.get_mut(&opening) {
            // The other node may have opened the path again, and this is of its earlier opening.
            let is_late = own.uses.get(&peer).is_some_and(|theirs| by < *theirs);
            if !is_late && let Some(released) = own.told.get_mut(&peer) {
                *released = true;
            }
        }
        self.give_back(opening, is_gone)
    }

    /// Handles deaths and departures of nodes. Returns the regions to free.
    pub(in crate::node) fn forget(&mut self, is_gone: impl Fn(NodeId) -> bool) -> Vec<R> {
        self.earlier.retain(|(peer, _), _| !is_gone(*peer));
        self.calling.retain(|(peer, _), _| !is_gone(*peer));
        let closed: Vec<u64> = self.own.iter().filter(|it| it.1.stage == Stage::Closed).map(|it| *it.0).collect();
        closed.into_iter().flat_map(|opening| self.give_back(opening, &is_gone)).collect()
    }

    /// The regions of an opening, if it is closed and has no user any more.
    fn give_back(&mut self, opening: u64, is_gone: impl Fn(NodeId) -> bool) -> Vec<R> {
        let is_over = self.own.get(&opening).is_some_and(|own| {
            let is_released = own.told.iter().all(|(peer, released)| *released || is_gone(*peer));
            own.stage == Stage::Closed && is_released
        });
        let own = if is_over { self.own.remove(&opening) } else { None };
        own.map_or(Vec::new(), |own| own.regions)
    }
}

impl Shared {
    /// Whether a node is dead or departed, and none of its operations can land any more.
    pub(super) fn is_silent(&self, node: NodeId) -> bool {
        // A node that joined and left at once may never have been a member here.
        if self.fabric.peer_state(node) == PeerState::Left {
            return true;
        }
        matches!(self.service.status_of(node), Some(MemberStatus::Departed | MemberStatus::Evicted))
    }

    /// Frees memory, and counts it.
    pub(in crate::node) fn free(&self, memory: Memory) -> Result<()> {
        let bytes = memory.bytes() as u64;
        match memory {
            Memory::Region(region) => self.fabric.free(region),
            Memory::Words(words) => self.fabric.free_words(words),
            Memory::Group(bell, group) => {
                self.spare_groups.lock().push((bell, group));
                Ok(())
            }
        }?;
        self.memory_bytes.fetch_add(bytes.wrapping_neg());
        Ok(())
    }

    pub(super) fn free_all(&self, all: Vec<Memory>) {
        for memory in all {
            if let Err(why) = self.free(memory) {
                tracing::error!("memory of a closed object is not given back: {why}");
            }
        }
    }

    /// Called by the service thread when it has learned of deaths or departures.
    pub(in crate::node) fn forget_the_gone(&self) {
        let regions = self.service.openings.lock().forget(|node| self.is_silent(node));
        self.free_all(regions);
    }

    /// If an object on other nodes was connected to an opening of another node that is no home, and was closed there:
    /// the answer.
    fn lets_go(&self, from: NodeId, theirs: u64) -> Option<Message> {
        let objects = self.service.objects.lock();
        let object = objects.values().find(|object| object.forgets(from, theirs))?;
        debug_assert!(object.has_homes);
        Some(self.service.openings.lock().lets_go(from, theirs))
    }

    /// Handles the drop of an object's last handle.
    pub(super) fn drops(&self, opening: u64) {
        self.service.openings.lock().drops(opening, |node| self.is_silent(node));
    }
}

impl Message {
    pub(super) fn handle(self, shared: &Arc<Shared>, from: NodeId) {
        match self {
            Message::Closed { opening } => {
                let let_go = shared.lets_go(from, opening);
                let answer = let_go.or_else(|| shared.service.openings.lock().is_closed_there(from, opening));
                if let Some(answer) = answer {
                    say(shared, vec![(from, answer)]);
                }
            }
            Message::Released { opening, by } => {
                let is_gone = |node| shared.is_silent(node);
                let regions = shared.service.openings.lock().is_released(from, opening, by, is_gone);
                shared.free_all(regions);
            }
        }
    }
}

/// Sends messages to others, now or when they accept messages again. Called by the service thread.
fn say(shared: &Arc<Shared>, messages: Vec<(NodeId, Message)>) {
    let mut saying = Saying { shared: Arc::downgrade(shared), closes: None, messages };
    if !saying.is_done(shared) {
        shared.add_poller(Box::new(saying));
    }
}

/// Keeps an object open on this node: the others learn that it is closed when the last one is dropped. Each handle has
/// one ([`Object::hold`](super::Object::hold)), and so has the service thread's work for a dropped operation.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// # let node = farfield::Node::builder().start()?;
/// # let object = farfield::toolkit::ObjectBuilder::new(&node, "app/mail", "Mail").open()?;
/// use farfield::{Endpoint, toolkit::{Hold, Poller, Progress}};
/// struct LastWork(Hold);
/// impl Poller for LastWork {
///     fn poll(&mut self, _: &Endpoint) -> Progress {
///         Progress::Done // dropped now, and the object is closed
///     }
/// }
/// node.add_poller(Box::new(LastWork(object.hold())));
/// drop(object);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Hold(#[allow(dead_code, reason = "kept for its drop")] Arc<Held>);

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
        // The service thread sends it, so that it follows all other messages about this opening.
        let (shared, closes) = (Arc::downgrade(&self.shared), Some(self.opening));
        self.shared.add_poller(Box::new(Saying { shared, closes, messages: Vec::new() }));
    }
}

/// The messages that the service thread must send for an opening that ends.
struct Saying {
    /// A leaving node sends nothing more, and these pollers do not delay it.
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
        // The rest in order, when there is room for it. Dead and departed nodes need no message.
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
            Some(shared) if !self.is_done(&shared) => Progress::Retry,
            _ => Progress::Done,
        }
    }
}

#[cfg(test)]
mod tests;
