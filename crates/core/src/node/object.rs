//! Opening objects: join and connect (LOCO appendix A.2).
//!
//! Every participant opens an object under the same path. It first allocates its regions. Then it sends a *join* to
//! each other participant, with its description of the object and the addresses of its regions. A node that has not
//! opened the path ignores the join. A node that has opened it checks the join, stores the regions, and answers with a
//! *connect* of the same content. So the last node to open an object connects all participants. A difference is an
//! error on both sides, which names the difference.
//!
//! A path may be opened anew after all nodes have dropped it, while messages of the previous opening are still in
//! flight. So openings are numbered. A node accepts an answer only to the join of its current opening. It accepts a
//! join only if its opening is later than the one that an earlier object of this path was connected to. [`close`]
//! describes how an opening ends, and when its memory is freed.
//!
//! A restarted node is a new node, and the others have opened their objects with its predecessor. It can still join an
//! object that stores nothing on nodes other than its homes ([`ObjectBuilder::takes_in_returned`]), if the homes are
//! alive: the others need none of its memory. For any other object it receives the reason why it cannot join. It keeps
//! waiting, because the others may be about to open the path anew, with it.

pub(super) mod close;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use farfield_fabric::{Endpoint, LocalMutex, NodeId, RemotePtr, Word};

mod announcement;
mod message;
mod opening;
mod regions;
pub(super) mod reopen;

use self::announcement::Difference;
pub use self::announcement::ObjectDescriptor;
pub use self::close::Hold;
pub(super) use self::message::Message;
pub use self::opening::ObjectBuilder;
pub(super) use self::regions::Memory;
pub use self::regions::Regions;
use super::{LongWait, Meter, Node, Shared};
use crate::error::{Error, ErrorContext, ErrorKind, Result, not_a_participant};

type Callback = Box<dyn Fn(NodeId, &ObjectDescriptor) + Send + Sync>;
type Expect = Box<dyn Fn(NodeId) -> Vec<(String, u64)> + Send + Sync>;

/// An object that is open on this node, as the service thread sees it.
pub(super) struct OpenObject {
    own: ObjectDescriptor,
    pub(super) kind: &'static str,
    /// Of this node.
    pub(super) memory_bytes: u64,
    /// Its number among those of this node.
    opening: u64,
    expect: Expect,
    takes_in: bool,
    /// Incremented with every change of `state`, so that waiters can poll it without the lock.
    changes: Word,
    state: LocalMutex<State>,
    callbacks: Callbacks,
    /// The generation that has replaced it, or 0. If its calls are measured, [`MEASURED`] takes the place of the 0.
    pub(super) reopened: Word,
}

/// What to run when peers join and connect.
#[derive(Default)]
struct Callbacks {
    on_join: Vec<Callback>,
    on_connect: Vec<Callback>,
}

#[derive(Default)]
struct State {
    /// The connected nodes: the number of the opening there, and its announcement.
    connected: HashMap<NodeId, (u64, ObjectDescriptor)>,
    /// The peers that have sent a join, with the number of the opening there.
    joined: HashMap<NodeId, u64>,
    /// The nodes that have it open without this restarted node, and why it cannot join there.
    outside: BTreeMap<NodeId, String>,
    /// Joins of restarted nodes, kept until the object is open.
    waiting: BTreeMap<NodeId, (u64, ObjectDescriptor)>,
    mismatch: Option<(NodeId, String)>,
}

impl OpenObject {
    /// The announcement for a peer.
    fn announcement(&self, shared: &Shared, to: NodeId) -> ObjectDescriptor {
        ObjectDescriptor { expected: (self.expect)(to), gone: shared.gone(), ..self.own.clone() }
    }

    /// Announces the object to a node that has just come up.
    pub(super) fn announce(&self, shared: &Shared, to: NodeId) {
        if self.own.participants.contains(&to.0) && shared.service.openings.lock().tells(self.opening, to) {
            self.join(shared, to);
        }
    }

    fn join(&self, shared: &Shared, to: NodeId) {
        Message::Join { opening: self.opening, theirs: self.announcement(shared, to) }.send(shared, to);
    }

    fn check(&self, shared: &Shared, from: NodeId, opening: u64, theirs: &ObjectDescriptor) -> bool {
        let (gone, places) = (shared.gone(), shared.fabric.places() as u16);
        // One of the two was started after the other had opened it.
        let has_returned = !self.is_of(from) || !theirs.participants.contains(&shared.fabric.me().0);
        if has_returned && shared.service.reopenings.is_past(&self.own.path) {
            self.leave_outside(shared, from, opening, REOPENED.into());
            return false;
        }
        let expected = (self.expect)(from);
        let differs = if has_returned && self.own.differs_by_lives(theirs, &gone, places) {
            if !self.takes_in {
                let why = "an object of its kind has a part for each node that it was opened with";
                self.leave_outside(shared, from, opening, why.into());
                return false;
            }
            if let Some(differs) = self.own.differs_otherwise(theirs, &expected) {
                self.leave_outside(shared, from, opening, differs.seen_there());
                return false;
            }
            // An opening that may still fail admits no node: it would be repeated with the restarted one as a
            // participant.
            if !self.is_of(from) && !self.is_complete() {
                self.state.lock().waiting.insert(from, (opening, theirs.clone()));
                return false;
            }
            None
        } else if self.own.is_of_another_epoch(theirs, &gone, places) {
            return false;
        } else {
            self.own.differs(theirs, &expected)
        };
        match differs.or_else(|| self.moved(from, opening)) {
            None => true,
            Some(differs) => {
                let (path, differs_there) = (self.own.path.clone(), differs.seen_there());
                Message::Refuse { answers: opening, path, differs: differs_there }.send(shared, from);
                // Only a participant can make the opening fail. Another node may have been started after the
                // participants opened the object.
                if self.is_of(from) {
                    self.refused(from, differs.seen_here());
                }
                false
            }
        }
    }

    /// Whether a node is one of the participants of this opening.
    fn is_of(&self, node: NodeId) -> bool {
        self.own.participants.contains(&node.0)
    }

    /// Whether all participants of this opening are connected.
    fn is_complete(&self) -> bool {
        let state = self.state.lock();
        let connected = self.own.participants.iter().filter(|node| state.connected.contains_key(&NodeId(**node)));
        connected.count() + 1 >= self.own.participants.len()
    }

    /// Answers the restarted nodes that sent joins while the object was being opened.
    fn take_in_those_that_wait(&self, shared: &Arc<Shared>) {
        if self.takes_in && self.is_complete() {
            let waiting = core::mem::take(&mut self.state.lock().waiting);
            for (from, (opening, theirs)) in waiting {
                Message::Join { opening, theirs }.handle(shared, from);
            }
        }
    }

    fn leave_outside(&self, shared: &Shared, to: NodeId, answers: u64, why: String) {
        // In the opposite case, where this node is the restarted one, the peer sends the message.
        if !self.is_of(to) {
            leave_outside(shared, to, answers, self.own.path.clone(), why);
        }
    }

    /// The difference if a peer opens the object anew while it is still open here with the peer's earlier memory. A
    /// message of an earlier opening is late, and is ignored.
    fn moved(&self, from: NodeId, opening: u64) -> Option<Difference> {
        let earlier = self.state.lock().connected.get(&from)?.0;
        (opening > earlier).then(|| Difference {
            what: "the opening that it belongs to (drop it on all nodes before it is opened anew)".into(),
            here: "an earlier one".into(),
            there: "a later one".into(),
        })
    }

    fn refused(&self, from: NodeId, differs: String) {
        self.state.lock().mismatch.get_or_insert((from, differs));
        self.changes.fetch_add(1);
    }

    fn connect(&self, from: NodeId, opening: u64, theirs: ObjectDescriptor, joined: bool) {
        let (first, joined) = {
            let mut state = self.state.lock();
            // A join may arrive twice: when the peer comes up, and when this node opens the object at that moment.
            let joined = joined && state.joined.insert(from, opening) != Some(opening);
            (state.connected.insert(from, (opening, theirs.clone())).is_none(), joined)
        };
        if joined {
            self.call(&self.callbacks.on_join, from, &theirs);
        }
        if first {
            self.call(&self.callbacks.on_connect, from, &theirs);
        }
        self.changes.fetch_add(1);
    }

    fn call(&self, callbacks: &[Callback], from: NodeId, theirs: &ObjectDescriptor) {
        for callback in callbacks {
            callback(from, theirs);
        }
    }
}

/// In place of the generation that has replaced an object: none has, and its calls are measured.
const MEASURED: u64 = u64::MAX;

/// Why a restarted node has no object to join.
const REOPENED: &str = "it has been reopened since";

/// Notifies a restarted node of the reason why it cannot join.
fn leave_outside(shared: &Shared, to: NodeId, answers: u64, path: String, why: String) {
    Message::Outside { answers, path, why }.send(shared, to);
}

/// An object that is open on this node: its regions, and those of the other participants. [`ObjectBuilder`] opens it.
///
/// Dropping it closes it on this node. The others keep working with the memory of all nodes until they close it, too.
/// Then pointers to this node's regions fail with [`Freed`](farfield_fabric::ErrorKind::Freed).
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// # let nodes = farfield::local_session(2)?;
/// use farfield::{fabric::GroupKey, toolkit::{ObjectBuilder, Regions}};
/// let open = |node: &farfield::Node| {
///     let mut regions = Regions::new(node);
///     regions.alloc("inbox", GroupKey::SIGNAL, 64)?;
///     ObjectBuilder::new(node, "app/mail", "Mail").regions(regions).open()
/// };
/// let mail = farfield::on_each(&nodes, open)?;
/// let inbox = mail[0].remote::<u64>(nodes[1].id(), "inbox")?;
/// nodes[0].endpoint()?.put_value(inbox, 7).wait()?;
/// # Ok(()) }
/// ```
pub struct Object {
    hold: Hold,
    pub(super) open: Arc<OpenObject>,
    pub(super) meter: Meter,
    participants: Vec<NodeId>,
    /// Declared after the hold, so dropped after it: it may be the last handle of the node.
    node: Node,
}

impl Object {
    /// Opens an object and announces it. It does not wait for the others.
    fn announce(opening: ObjectBuilder) -> Result<Object> {
        let _span = open_span(&opening.node, &opening.path, opening.kind).entered();
        let ObjectBuilder {
            node,
            path,
            kind,
            layout,
            participants,
            regions,
            expect,
            takes_in,
            callbacks,
            calls,
            meter,
        } = opening;
        let participants = participants.unwrap_or_else(|| node.members_for(&path));
        let mut numbers: Vec<u16> = participants.iter().map(|node| node.0).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let refuse = |why: String| Err(Error::from(ErrorKind::Config { why }).of(&path));
        if path.is_empty() || path.len() > 512 {
            return refuse("a path has to have 1 to 512 bytes".into());
        }
        if let Some(stranger) = numbers.iter().find(|number| !node.members().any(|member| member.0 == **number)) {
            return refuse(format!("node {stranger}, a participant, was never a member of this session"));
        }
        if !numbers.contains(&node.id().0) {
            return Err(not_a_participant(node.id())).of(&path);
        }
        let told = |(name, memory): (&str, &Memory)| {
            node.fabric().label(memory.remote(), memory.bytes(), format_args!("{path}.{name}"));
            (name.to_string(), memory.remote().packed(), memory.bytes() as u64)
        };
        let own = ObjectDescriptor {
            path: path.clone(),
            kind: kind.into(),
            layout,
            participants: numbers,
            regions: regions.named().map(told).collect(),
            expected: Vec::new(),
            gone: Vec::new(),
        };
        let shared = node.shared();
        let opening = shared.service.next_opening();
        let (changes, state) = (Word::new(0), LocalMutex::default());
        let meter = meter.unwrap_or_else(|| node.meter(&path, kind, calls));
        let reopened = Word::new(if meter.is_on() { MEASURED } else { 0 });
        let memory_bytes = regions.bytes();
        let open =
            OpenObject { own, kind, memory_bytes, opening, expect, takes_in, changes, state, callbacks, reopened };
        let open = Arc::new(open);
        // A peer that comes up meanwhile finds the object in the map, or is found by this code.
        let up = {
            let mut objects = shared.service.objects.lock();
            if objects.contains_key(&path) {
                return Err(Error::from(ErrorKind::AlreadyOpen).of(&path));
            }
            let is_up = |peer: &NodeId| *peer != node.id() && shared.service.is_up(*peer);
            let up: Vec<NodeId> = participants.iter().copied().filter(is_up).collect();
            shared.service.openings.lock().opens(opening, &path, regions.take(), &up);
            objects.insert(path, Arc::clone(&open));
            up
        };
        up.into_iter().for_each(|peer| open.join(shared, peer));
        tracing::debug!(bytes = memory_bytes, "announced");
        Ok(Object { hold: Hold::new(shared, opening), open, meter, participants, node })
    }

    /// Waits until all participants have opened the object.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// let open = |node| farfield::toolkit::ObjectBuilder::new(node, "app/mail", "Mail").announce();
    /// let (here, there) = (open(&nodes[0])?, open(&nodes[1])?);
    /// here.wait(nodes[0].timeout())?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A timeout that names the missing nodes, a participant that is dead or departed, or one that opens the object
    /// differently.
    pub fn wait(&self, timeout: Duration) -> Result<()> {
        self.wait_with(&self.node.endpoint()?, timeout)
    }

    /// [`Object::wait`] on an endpoint that the caller has: a composed object announces all its parts and then waits
    /// for each, on one endpoint.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # use farfield::toolkit::ObjectBuilder;
    /// # let nodes = farfield::local_session(2)?;
    /// let open = |node: &farfield::Node| {
    ///     let part = |path| ObjectBuilder::new(node, path, "Mail").announce();
    ///     let parts = [part("app/mail/in")?, part("app/mail/out")?]; // one exchange with the others, not two
    ///     let endpoint = node.endpoint()?;
    ///     parts.iter().try_for_each(|part| part.wait_with(&endpoint, node.timeout()))?;
    ///     Ok(parts)
    /// };
    /// let mail = farfield::on_each(&nodes, open)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Object::wait`].
    pub fn wait_with(&self, endpoint: &Endpoint, timeout: Duration) -> Result<()> {
        let _span = open_span(&self.node, self.path(), self.open.kind).entered();
        let long = LongWait::default();
        let missing = || {
            let state = self.open.state.lock();
            let others = self.participants.iter().filter(|node| **node != self.node.id());
            others.filter(|node| !state.connected.contains_key(node)).copied().collect::<Vec<_>>()
        };
        let start = endpoint.now();
        let (mut seen, mut gone_since, mut calls_seen) = (u64::MAX, None, 0);
        let reopenings = &self.node.shared().service.reopenings;
        let mut look = || {
            if let Some(waited) = long.becomes_long(endpoint, || tracing::enabled!(tracing::Level::INFO)) {
                let missing = missing();
                let there = self.open_instead(&missing);
                tracing::info!(?waited, ?missing, "still waits for all participants to open it{there}");
            }
            if std::mem::replace(&mut seen, self.open.changes.load()) != seen {
                if let Some((node, differs)) = self.open.state.lock().mismatch.clone() {
                    return Some(Err(Error::from(ErrorKind::Mismatch { node, differs })));
                }
                if missing().is_empty() {
                    return Some(Ok(()));
                }
            }
            if std::mem::replace(&mut calls_seen, reopenings.changes()) != calls_seen
                && let Err(overtaken) = reopenings.check_overtaken(self.path())
            {
                return Some(Err(overtaken));
            }
            let gone_of = |nodes: Vec<NodeId>| nodes.into_iter().find_map(|node| endpoint.check_alive(node).err());
            let mut missing = missing();
            if self.open.takes_in {
                // A dead or departed node that stores no part of the object is not needed.
                let is_needed =
                    |node: &NodeId| endpoint.check_alive(*node).is_ok() || !(self.open.expect)(*node).is_empty();
                missing.retain(is_needed);
            }
            if missing.is_empty() {
                return Some(Ok(()));
            }
            if let Some(error) = gone_of(missing) {
                return Some(Err(error.into()));
            }
            // A connected participant is dead or departed. The missing ones know it, or learn it before they come up.
            // Then they open the object without that node, unless their joins are in flight already.
            let error = gone_of(self.others().collect())?;
            let since = *gone_since.get_or_insert_with(|| endpoint.now());
            (endpoint.now() - since >= ON_THE_WAY_MAX).then(|| Err(error.into()))
        };
        let waited = match endpoint.block_on(endpoint.wait_until(start + timeout, &mut look)) {
            Ok(result) => result,
            Err(_) => {
                let missing = missing();
                // The last one has come since the last look.
                if missing.is_empty()
                    && let Some(result) = look()
                {
                    return result.of(self.path());
                }
                let mut what = String::from("all participants to open it");
                what += &self.open_instead(&missing);
                if let Some((node, why)) = self.open.state.lock().outside.first_key_value() {
                    what += &format!(
                        " ({node} opened it before {} joined, which cannot join the object: {why}. Call `Node::reopen` \
                         on all nodes)",
                        self.node.id()
                    );
                }
                Err(ErrorKind::Timeout { what, waited: endpoint.now() - start, missing }.into())
            }
        };
        match &waited {
            Ok(()) => tracing::info!("open"),
            Err(error) => tracing::info!(%error, "not opened"),
        }
        waited.of(self.path())
    }

    /// For messages: what missing nodes have open and this one has not. A path may be misspelt, here or there.
    fn open_instead(&self, missing: &[NodeId]) -> String {
        const SHOWN_MAX: usize = 3;
        let openings = self.node.shared().service.openings.lock();
        let of_node = |node: &NodeId| {
            let mut there = openings.open_there(*node);
            let shown: Vec<String> =
                there.by_ref().take(SHOWN_MAX).map(|(path, kind)| format!("`{path}` ({kind})")).collect();
            let more = match there.count() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            (!shown.is_empty())
                .then(|| format!("; {node} has opened {}{more}, and this node has not", shown.join(", ")))
        };
        missing.iter().filter_map(of_node).collect()
    }

    /// All participants, this node included, in the order in which they were named.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let object = farfield::toolkit::ObjectBuilder::new(&node, "app/mail", "Mail").open()?;
    /// assert_eq!(object.participants(), [node.id()]);
    /// # Ok(()) }
    /// ```
    pub fn participants(&self) -> &[NodeId] {
        &self.participants
    }

    /// The other participants.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let object = farfield::toolkit::ObjectBuilder::new(&node, "app/mail", "Mail").open()?;
    /// assert_eq!(object.others().count(), 0); // this node is the only participant
    /// # Ok(()) }
    /// ```
    pub fn others(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.participants.iter().copied().filter(|node| *node != self.node.id())
    }

    /// Its path.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let object = farfield::toolkit::ObjectBuilder::new(&node, "app/mail", "Mail").open()?;
    /// assert_eq!(object.path(), "app/mail");
    /// # Ok(()) }
    /// ```
    pub fn path(&self) -> &str {
        &self.open.own.path
    }

    /// Its node.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let object = farfield::toolkit::ObjectBuilder::new(&node, "app/mail", "Mail").open()?;
    /// assert_eq!(object.node().id(), node.id());
    /// # Ok(()) }
    /// ```
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Keeps the object open on this node when its handles are dropped, for work that the service thread still has to
    /// do on its memory.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let object = farfield::toolkit::ObjectBuilder::new(&node, "app/mail", "Mail").open()?;
    /// let hold = object.hold(); // for a poller that still uses its memory
    /// drop(object); // the path is free
    /// drop(hold); // now the others learn that it is closed here
    /// # Ok(()) }
    /// ```
    pub fn hold(&self) -> Hold {
        self.hold.clone()
    }

    /// The address of a region of a connected participant (this node's own included).
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let object = farfield::toolkit::ObjectBuilder::new(&node, "app/mail", "Mail").open()?;
    /// let error = object.remote::<u64>(node.id(), "inbox").unwrap_err();
    /// assert_eq!(error.object(), Some("app/mail")); // it was opened without regions
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The node has no such region, or is not connected.
    pub fn remote<T>(&self, node: NodeId, region: &str) -> Result<RemotePtr<T>> {
        let find = |announcement: &ObjectDescriptor| {
            let found = announcement.regions.iter().find(|found| found.0 == region);
            found.map(|found| RemotePtr::from_packed(found.1))
        };
        let found = if node == self.node.id() {
            find(&self.open.own)
        } else {
            self.open.state.lock().connected.get(&node).and_then(|(_, announcement)| find(announcement))
        };
        found.ok_or_else(|| {
            let why = if self.node.shared().is_gone(node) {
                format!("{node} is gone, and its `{region}` with it: reopen it on all nodes, with `Node::reopen`")
            } else {
                format!("{node} has no region `{region}` in it, or is not connected")
            };
            Error::from(ErrorKind::NotAParticipant { why }).of(self.path())
        })
    }
}

/// The span in which an object is opened on a node.
fn open_span(node: &Node, path: &str, kind: &str) -> tracing::Span {
    tracing::info_span!("open", node = node.id().0, object = path, kind)
}

/// How long a join may be in flight when its sender has known for as long that a participant is dead or departed.
const ON_THE_WAY_MAX: Duration = Duration::from_millis(100);

impl Drop for Object {
    fn drop(&mut self) {
        let shared = self.node.shared();
        tracing::info!(node = self.node.id().0, object = self.path(), kind = self.open.kind, "closed");
        // This comes before the path is free: the next opening of the path must see it.
        shared.drops(self.open.opening);
        shared.service.objects.lock().remove(self.path());
    }
}
