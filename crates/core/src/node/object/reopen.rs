//! Reopening objects: all nodes that will use an object agree on a new *generation* of it.
//!
//! A generation of a path has a number and a set of members. Its objects have paths of their own: generation 2 of
//! `lock` is opened as `lock@2`. So a message about an earlier generation never concerns a later one.
//!
//! Each node that calls [`Node::reopen`] sends a [`Call`] to the members that it sees, and sends a new one whenever
//! the call changes. Only the latest call of a node counts.
//!
//! 1. *Agree.* A call names a generation and its members. A node takes the members from its own view of the session. It
//!    takes the highest generation that any call names, and at least one more than the last that it has begun itself,
//!    or has called for with other members. The generation is agreed when the latest call of every member names it,
//!    with the same members.
//! 2. *Open.* The node opens the objects of the generation, among these members. If that fails because a member is dead
//!    or departed, or calls for a higher generation without having opened this one, it returns to step 1.
//! 3. *Commit.* The node announces that it has opened them, and waits until every other member has announced the
//!    same, or is dead or departed. If a member calls for a higher generation instead, the node drops its objects and
//!    follows.
//!
//! *The guarantee.* A member that has opened its objects does not return to step 1 by itself. So when one node
//! returns, each other member has opened the same generation or is dead or departed, and none of them needs another
//! one. Without step 3 a node could return while a member that learned of a death in time calls for the next
//! generation, and waits for it in vain.
//!
//! *The limit.* If two members die in the same attempt, a node may return a generation that the others have left: one
//! of the dead nodes had made some of the survivors leave it, but not this node. The others wait for it at the next
//! generation, and it gets an error ([`ErrorKind::Reopens`]).
//!
//! *Time.* Each step has the node's timeout. An attempt is repeated only if a member was lost in it, or has joined.

mod caller;

use std::collections::HashMap;
use std::sync::Arc;

use farfield_fabric::{LocalMutex, NodeId, Word};
use serde::{Deserialize, Serialize};

use self::caller::Caller;
use super::super::{Node, Shared};
use super::{MEASURED, Message};
use crate::error::{Error, ErrorContext, ErrorKind, Result, not_a_participant};

/// The messages of a node that reopens a path.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(in crate::node) struct Call {
    path: String,
    generation: u64,
    /// In ascending order.
    members: Vec<u16>,
    step: Step,
    /// The last generation that it has opened, or 0.
    opened: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Step {
    /// It calls for this generation, among these members.
    Calls,
    /// It has opened its objects.
    Opened,
    /// Its `reopen` has failed.
    GivesUp,
}

impl Call {
    fn is_of(&self, generation: u64, members: &[u16]) -> bool {
        self.generation == generation && self.members == members
    }

    /// Whether its sender skips a generation without having opened it. A sender that has opened it may call again at
    /// once.
    fn overtakes(&self, generation: u64) -> bool {
        self.generation > generation && self.opened != generation
    }
}

/// A node's knowledge of reopened paths, and of those that are being reopened.
#[derive(Default)]
pub(in crate::node) struct Reopenings {
    paths: LocalMutex<HashMap<String, Known>>,
    /// Incremented with every change, also of the session's members, so that waiters need not take the lock to poll.
    changes: Word,
    /// How many nodes call for another generation and wait for this one.
    asked: Word,
}

/// The state of one path.
#[derive(Default)]
struct Known {
    /// The last generation that this node has begun to open, and its members.
    last: u64,
    members: Vec<u16>,
    /// The last generation that it has opened.
    opened: u64,
    /// The last message of this node, and whether its call is still in progress.
    own: Option<Call>,
    is_calling: bool,
    /// The last message of each other node, unless it has given up.
    said: HashMap<NodeId, Call>,
}

impl Known {
    /// The nodes that wait for this one to reopen the path.
    fn asking(&self) -> impl Iterator<Item = NodeId> + '_ {
        let calls = self.said.iter().filter(|(_, call)| call.step == Step::Calls);
        calls.filter(|_| !self.is_calling).map(|(node, _)| *node)
    }

    /// A member that skips the last generation without having opened it.
    fn overtaking(&self) -> Option<NodeId> {
        let members = self.members.iter().map(|node| NodeId(*node));
        let said = members.filter_map(|node| Some((node, self.said.get(&node)?)));
        said.filter(|(_, call)| call.overtakes(self.last)).map(|(node, _)| node).next()
    }
}

impl Reopenings {
    /// Handles another node's call.
    pub(super) fn hear(&self, from: NodeId, call: Call) {
        let mut paths = self.paths.lock();
        let known = paths.entry(call.path.clone()).or_default();
        match call.step {
            Step::GivesUp => _ = known.said.remove(&from),
            _ => _ = known.said.insert(from, call),
        }
        self.has_changed(&paths);
    }

    fn has_changed(&self, paths: &HashMap<String, Known>) {
        self.asked.store(paths.values().map(|known| known.asking().count() as u64).sum());
        self.changes.fetch_add(1);
    }

    /// The members of the session have changed, and all of the change is published: calls look at them again.
    pub(in crate::node) fn members_change(&self) {
        self.changes.fetch_add(1);
    }

    /// Repeats this node's messages to a node that has joined.
    pub(in crate::node) fn announce(&self, shared: &Shared, to: NodeId) {
        // It sends under the lock, as the caller does: the last call to arrive is the latest.
        let paths = self.paths.lock();
        let calls = paths.values().filter_map(|known| known.own.as_ref());
        for call in calls.filter(|call| call.members.contains(&to.0)) {
            Message::Reopen(call.clone()).send(shared, to);
        }
    }

    /// The state of the generation that a path belongs to, if it is the last one.
    fn of_generation<T>(&self, path: &str, with: impl FnOnce(&Known) -> T) -> Option<T> {
        if !path.contains('@') {
            return None;
        }
        let paths = self.paths.lock();
        let known = path.rmatch_indices('@').find_map(|(at, _)| {
            let known = paths.get(&path[..at]).filter(|known| known.last > 0)?;
            (generation_of(path, &path[..at]) == Some(known.last)).then_some(known)
        });
        known.map(with)
    }

    /// The members of the generation that a path belongs to.
    fn members_of(&self, path: &str) -> Option<Vec<NodeId>> {
        self.of_generation(path, |known| known.members.iter().copied().map(NodeId).collect())
    }

    /// Incremented with every call of another node, and every change of the members.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load()
    }

    /// The error of an object that is being opened in a generation that a member has skipped.
    pub(super) fn check_overtaken(&self, path: &str) -> Result<()> {
        let overtaking = self.of_generation(path, |known| known.overtaking().filter(|_| known.is_calling));
        match overtaking.flatten() {
            Some(node) => Err(ErrorKind::Reopens { node }.into()),
            None => Ok(()),
        }
    }

    /// Whether this node has reopened the object of a path, so that the path is of an earlier generation.
    pub(super) fn is_past(&self, path: &str) -> bool {
        let paths = self.paths.lock();
        paths.iter().any(|(base, known)| generation_of(path, base).is_some_and(|it| it < known.last))
    }

    /// A node that calls for another generation of a path's object.
    fn asking_for(&self, shared: &Shared, path: &str) -> Option<NodeId> {
        if self.asked.load() == 0 {
            return None;
        }
        let paths = self.paths.lock();
        let affected = paths.iter().filter(|(base, known)| generation_of(path, base) == Some(known.last));
        let asking = affected.flat_map(|(_, known)| known.asking()).filter(|node| !shared.is_gone(*node));
        asking.min()
    }
}

/// The generation of `base` that a path belongs to; 0 before the first. None if it does not belong to `base` at all.
fn generation_of(path: &str, base: &str) -> Option<u64> {
    let rest = path.strip_prefix(base)?;
    match rest.strip_prefix('@') {
        Some(rest) => rest.split('/').next()?.parse().ok(),
        None => (rest.is_empty() || rest.starts_with('/')).then_some(0),
    }
}

/// A generation of objects that all its members have agreed on; see [`Node::reopen`].
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// # let node = farfield::Node::builder().start()?;
/// node.reopen("hits", |again| {
///     assert!(again.path() == format!("hits@{}", again.generation()) && again.members() == [node.id()]);
///     farfield::AtomicVar::open(&node, again.path(), again.home(node.id()))
/// })?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Reopening {
    path: String,
    generation: u64,
    members: Vec<NodeId>,
    places: usize,
}

impl Reopening {
    /// The path of the generation: open the object under it, or several objects under paths that continue it with `/`.
    ///
    /// ```
    /// # use farfield::{AtomicVar, Reopening};
    /// # let node = farfield::Node::builder().start()?;
    /// # let open = |again: &Reopening| AtomicVar::open(&node, again.path(), again.home(node.id()));
    /// let hits = node.reopen("hits", open)?;
    /// node.reopen("hits", |again| {
    ///     assert!(again.path().starts_with("hits@"));
    ///     open(again)
    /// })?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The number of the generation. Objects opened by `open` have 0; numbers grow, and may have gaps.
    ///
    /// ```
    /// # use farfield::{AtomicVar, Reopening};
    /// # let node = farfield::Node::builder().start()?;
    /// # let open = |again: &Reopening| AtomicVar::open(&node, again.path(), again.home(node.id()));
    /// node.reopen("hits", |again| {
    ///     assert!(again.generation() > 0);
    ///     open(again)
    /// })?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The participating nodes, the same on each of them, in order.
    ///
    /// ```
    /// # use farfield::{AtomicVar, Reopening};
    /// # let node = farfield::Node::builder().start()?;
    /// # let open = |again: &Reopening| AtomicVar::open(&node, again.path(), again.home(node.id()));
    /// node.reopen("hits", |again| {
    ///     assert_eq!(again.members(), [node.id()]);
    ///     open(again)
    /// })?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn members(&self) -> &[NodeId] {
        &self.members
    }

    /// A home for an object that had, or should have, its home on `wanted`: that node if it takes part, else the node
    /// that is now at its place, else that of the next place. All members get the same answer.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?;
    /// node.reopen("hits", |again| {
    ///     let home = again.home(farfield::NodeId(0)); // of the first place, or of the next that has a live node
    ///     farfield::AtomicVar::open(&node, again.path(), home)
    /// })?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn home(&self, wanted: NodeId) -> NodeId {
        let distance = |node: &&NodeId| {
            let (place, wanted) = (node.index() % self.places, wanted.index() % self.places);
            (place + self.places - wanted) % self.places
        };
        *self.members.iter().min_by_key(distance).expect("this node is a member")
    }
}

impl Node {
    /// Makes objects anew among the members of the session, and waits for all of them to call it.
    ///
    /// Call it when an object cannot continue, because its home or its writer is dead or one of a fixed set of nodes
    /// is, or when it has no room for joining nodes. Every node of the session calls it with the same path, restarted
    /// ones included, at any moment and with any knowledge of deaths. `open` then runs on each node, for the same
    /// members ([`Reopening::members`]), and opens the object under [`Reopening::path`]. When `reopen` returns, all
    /// live members have opened the same generation. If a member dies before it has opened its part, `open` runs again
    /// without it. If it dies later, it may count as one that has died just after the call.
    ///
    /// Any object can be reopened, and several at once: every object that `open` opens under the path is opened among
    /// the members. The state afterwards:
    ///
    /// | object | after it was reopened |
    /// |---|---|
    /// | `Mutex`, `MutexArray`, all other locks | free; `is_poisoned` warns the first holder of each that the protected data may be half-written |
    /// | `Queue` | empty |
    /// | `RingBuffer` | starts anew: receivers drain the old one first |
    /// | `AtomicVar`, `SharedVar`, `OwnedVar`, `Sst`, `Transactions` | zero |
    /// | `Barrier` | no thread has arrived |
    /// | `KvStore` | empty, or with all pairs that are not lost: [`KvStore::open_with_pairs_of`](crate::KvStore::open_with_pairs_of) |
    ///
    /// No other thread of the node may use the old handles from the call on. After it has returned, they are useless:
    /// calls that wait, take a lock or change something fail with [`ErrorKind::Reopened`]. If other nodes have called
    /// it and this one has not, waits on the old handles fail with [`ErrorKind::Reopens`]. If the call fails, the old
    /// handles stay as they were.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// use farfield::Mutex;
    /// let mut nodes = farfield::local_session(3)?;
    /// let home = nodes[2].id();
    /// let locks = farfield::on_each(&nodes, |node| Mutex::open(node, "lock", home))?;
    /// drop(locks);
    /// nodes.pop(); // the lock's home leaves
    ///
    /// let reopen = |node: &farfield::Node| {
    ///     node.reopen("lock", |again| Mutex::open(node, again.path(), again.home(home)))
    /// };
    /// let locks = farfield::on_each(&nodes, reopen)?;
    /// let ep = nodes[0].endpoint()?;
    /// let mut guard = ep.block_on(locks[0].lock(&ep))?;
    /// assert!(guard.is_poisoned());
    /// guard.clear_poison();
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A timeout that names the members that have not called it, or do not continue. Each of agreeing, opening and
    /// committing takes at most [`Node::timeout`], and is repeated only if a member is lost or joins meanwhile. An
    /// error of `open`, except that of a dead or departed node. Another thread of this node is reopening the path.
    /// This node has been removed from the session.
    pub fn reopen<T>(&self, path: &str, open: impl FnMut(&Reopening) -> Result<T>) -> Result<T> {
        self.reopen_with(path, None, open)
    }

    /// [`Node::reopen`] among the members of the session in `candidates`, this node included. All of them call it, and
    /// name the same candidates.
    ///
    /// ```
    /// # let nodes = farfield::local_session(3)?; let pair = [nodes[0].id(), nodes[1].id()];
    /// let reopen = |node: &farfield::Node| {
    ///     node.reopen_among("start", &pair, |again| farfield::Barrier::open(node, again.path(), 1))
    /// };
    /// let barriers = farfield::on_each(&nodes[..2], reopen)?;
    /// assert_eq!(barriers[0].members(), pair);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Node::reopen`], or this node is not among them.
    pub fn reopen_among<T>(
        &self,
        path: &str,
        candidates: &[NodeId],
        open: impl FnMut(&Reopening) -> Result<T>,
    ) -> Result<T> {
        self.reopen_with(path, Some(candidates), open)
    }

    fn reopen_with<T>(
        &self,
        path: &str,
        candidates: Option<&[NodeId]>,
        open: impl FnMut(&Reopening) -> Result<T>,
    ) -> Result<T> {
        if path.is_empty() {
            let why = "the path of what is reopened must not be empty".into();
            return Err(Error::from(ErrorKind::Config { why }));
        }
        if candidates.is_some_and(|nodes| !nodes.contains(&self.id())) {
            return Err(not_a_participant(self.id())).of(path);
        }
        let _span = tracing::info_span!("reopen", node = self.id().0, object = path).entered();
        let endpoint = self.endpoint()?;
        let caller = Caller::begin(self, path, candidates, &endpoint)?;
        let reopened = caller.run(open);
        caller.end(reopened.is_ok());
        reopened.of(path)
    }

    /// The default participants of an object of that path: the members of the generation that is being opened, or all
    /// members of the session.
    ///
    /// ```
    /// # let nodes = farfield::local_session(2)?;
    /// assert_eq!(nodes[0].members_for("app/mail"), nodes[0].live_members()); // it was never reopened
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn members_for(&self, path: &str) -> Vec<NodeId> {
        self.shared().service.reopenings.members_of(path).unwrap_or_else(|| self.live_members())
    }

    /// Whether the object at that path is being reopened, so that the data which it protects may be half-written.
    ///
    /// ```
    /// # use farfield::{AtomicVar, Reopening};
    /// # let node = farfield::Node::builder().start()?;
    /// # let open = |again: &Reopening| AtomicVar::open(&node, again.path(), again.home(node.id()));
    /// assert!(!node.is_reopening("hits"));
    /// node.reopen("hits", |again| {
    ///     assert!(node.is_reopening(again.path())); // so a lock is opened as poisoned
    ///     open(again)
    /// })?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn is_reopening(&self, path: &str) -> bool {
        self.shared().service.reopenings.members_of(path).is_some()
    }
}

impl super::Object {
    /// Fails if this handle is stale. Call it before an operation takes effect.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?;
    /// # let object = farfield::toolkit::ObjectBuilder::new(&node, "app/mail", "Mail").open()?;
    /// object.check_current()?; // it was not reopened: the call may go on
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Reopened`]: the object was reopened.
    #[inline]
    pub fn check_current(&self) -> Result<()> {
        // A call that has just begun may as well have begun before: it continues with the old object, as others do.
        match self.open.reopened.glance() {
            0 => Ok(()),
            other => self.check_measured(other),
        }
    }

    #[cold]
    fn check_measured(&self, reopened: u64) -> Result<()> {
        match reopened {
            MEASURED => Ok(()),
            generation => Err(Error::from(ErrorKind::Reopened { generation }).of(self.path())),
        }
    }

    /// [`Object::check_current`](super::Object::check_current), for calls that wait: they also end when another node
    /// waits for this one to reopen the object.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?;
    /// # let object = farfield::toolkit::ObjectBuilder::new(&node, "app/mail", "Mail").open()?;
    /// object.check_unasked()?; // no node has reopened it, or asks this one to
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Reopened`], or [`ErrorKind::Reopens`].
    pub fn check_unasked(&self) -> Result<()> {
        self.check_current()?;
        let shared: &Arc<Shared> = self.node.shared();
        match shared.service.reopenings.asking_for(shared, self.path()) {
            None => Ok(()),
            Some(node) => Err(Error::from(ErrorKind::Reopens { node }).of(self.path())),
        }
    }
}

#[cfg(test)]
mod tests;
