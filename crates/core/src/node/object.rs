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

use farfield_fabric::{LocalMutex, NodeId, RemotePtr, Word};

mod announcement;
mod call;
mod message;
mod opening;
mod regions;
pub(super) mod reopen;
mod waiting;

use self::announcement::Difference;
pub use self::announcement::ObjectDescriptor;
pub use self::call::Call;
pub use self::close::Hold;
pub(super) use self::message::Message;
pub use self::opening::ObjectBuilder;
pub(super) use self::regions::Memory;
pub use self::regions::Regions;
use super::{Meter, Node, Shared};
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
    /// Whether it is on some nodes, and any others may use it. Then the participants are these, and this node.
    has_homes: bool,
    is_home: bool,
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
        let is_for = self.own.participants.contains(&to.0) || self.has_homes && self.may_replace(shared, to);
        if is_for && shared.service.openings.lock().tells(self.opening, to) {
            self.join(shared, to);
        }
    }

    /// Whether a node was started at the place of a home: it may lend memory in its stead.
    fn may_replace(&self, shared: &Shared, node: NodeId) -> bool {
        let places = shared.fabric.places() as u16;
        let is_earlier = |home: &u16| *home < node.0 && *home % places == node.0 % places;
        node != shared.fabric.me() && self.own.participants.iter().any(is_earlier)
    }

    /// Enters this node's map of objects. Returns the nodes that are up: a peer that comes up from now on finds the
    /// object in the map.
    fn enter(self: &Arc<Self>, node: &Node, participants: &[NodeId], regions: Regions) -> Result<Vec<NodeId>> {
        let (shared, path, opening) = (node.shared(), &self.own.path, self.opening);
        let already_open = || Err(Error::from(ErrorKind::AlreadyOpen).of(path));
        let mut objects = shared.service.objects.lock();
        if objects.contains_key(path) {
            return already_open();
        }
        let is_up = |peer: &NodeId| *peer != node.id() && shared.service.is_up(*peer);
        let mut up: Vec<NodeId> = participants.iter().copied().filter(is_up).collect();
        if self.has_homes {
            let started = shared.service.known().filter(|node| is_up(node) && self.may_replace(shared, *node));
            up.extend(started);
        }
        let mut openings = shared.service.openings.lock();
        if self.is_home && !openings.users_before(path, |user| shared.is_silent(user)).is_empty() {
            // They would go on with the memory of before.
            return already_open();
        }
        if self.is_home {
            // Nodes that are no homes have called already, and are waiting.
            let callers: Vec<NodeId> = openings.callers(path).filter(is_up).collect();
            up.extend(callers.into_iter().filter(|caller| !participants.contains(caller)));
        }
        openings.opens(opening, path, regions.take(), &up);
        drop(openings);
        objects.insert(path.clone(), Arc::clone(self));
        Ok(up)
    }

    fn join(&self, shared: &Shared, to: NodeId) {
        Message::Join { opening: self.opening, theirs: self.announcement(shared, to) }.send(shared, to);
    }

    fn check(&self, shared: &Shared, from: NodeId, opening: u64, theirs: &ObjectDescriptor) -> bool {
        // Neither needs the other: one of them may have been started at the place of a home.
        if self.has_homes && !self.is_home && !self.is_of(from) {
            return false;
        }
        let (gone, places) = (shared.gone(), shared.fabric.places() as u16);
        // One of the two was started after the other had opened it.
        let has_returned = !self.is_of(from) || !theirs.participants.contains(&shared.fabric.me().0);
        if has_returned && shared.service.reopenings.is_past(&self.own.path) {
            self.leave_outside(shared, from, opening, REOPENED.into());
            return false;
        }
        // One that is no home of this object may be at the place of one, and lends nothing.
        let expected = if self.has_homes && !self.is_of(from) { Vec::new() } else { (self.expect)(from) };
        let differs = if self.has_homes && !self.is_home {
            // It may be at the place of a home that has gone, and lends nothing in its stead.
            self.own.differs_otherwise(&ObjectDescriptor { expected: Vec::new(), ..theirs.clone() }, &expected)
        } else if self.has_homes {
            self.own.differs_otherwise(theirs, &expected)
        } else if has_returned && self.own.differs_by_lives(theirs, &gone, places) {
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
        if differs.is_none() {
            self.replaces(shared, from, opening);
        }
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

    /// Forgets the opening of a node that is no home, since it is closed there. False if this object is not connected
    /// to that opening.
    fn forgets(&self, from: NodeId, theirs: u64) -> bool {
        if !self.has_homes || self.is_of(from) {
            return false;
        }
        let mut state = self.state.lock();
        let is_it = state.connected.get(&from).is_some_and(|(opening, _)| *opening == theirs);
        if is_it {
            state.connected.remove(&from);
            state.joined.remove(&from);
        }
        is_it
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

    /// A node that is no home may have closed the object and opened it again; that it has closed it may be known later.
    fn replaces(&self, shared: &Shared, from: NodeId, opening: u64) {
        let earlier = self.state.lock().connected.get(&from).map(|earlier| earlier.0);
        if let Some(earlier) = earlier.filter(|earlier| *earlier < opening && self.forgets(from, *earlier)) {
            shared.service.openings.lock().lets_go(from, earlier);
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

/// The numbers of an object's participants, in order, if an object may have them.
fn numbers_of(node: &Node, path: &str, participants: &[NodeId], has_homes: bool) -> Result<Vec<u16>> {
    let refuse = |why: String| Err(ErrorKind::Config { why }.into());
    if path.is_empty() || path.len() > 512 {
        return refuse("a path has to have 1 to 512 bytes".into());
    }
    let mut numbers: Vec<u16> = participants.iter().map(|node| node.0).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let was_member = |number: &&u16| {
        // Before this node came, a home may have gone that it has never heard of.
        has_homes && **number < node.nodes() as u16 || node.members().any(|member| member.0 == **number)
    };
    if let Some(stranger) = numbers.iter().find(|number| !was_member(number)) {
        return refuse(format!("node {stranger}, a participant, was never a member of this session"));
    }
    if !numbers.contains(&node.id().0) {
        return Err(not_a_participant(node.id()));
    }
    Ok(numbers)
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
            has_homes,
            is_home,
        } = opening;
        let participants = participants.unwrap_or_else(|| node.members_for(&path));
        let numbers = numbers_of(&node, &path, &participants, has_homes).of(&path)?;
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
        let open = Arc::new(OpenObject {
            own,
            kind,
            memory_bytes,
            opening,
            expect,
            takes_in,
            has_homes,
            is_home,
            changes,
            state,
            callbacks,
            reopened,
        });
        let up = open.enter(&node, &participants, regions)?;
        up.into_iter().for_each(|peer| open.join(shared, peer));
        tracing::debug!(bytes = memory_bytes, "announced");
        Ok(Object { hold: Hold::new(shared, opening), open, meter, participants, node })
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

    /// What all participants have agreed on: [`ObjectBuilder::layout`].
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// let object = farfield::toolkit::ObjectBuilder::new(&node, "app/mail", "Mail").layout("one line").open()?;
    /// assert_eq!(object.layout(), "one line");
    /// # Ok(()) }
    /// ```
    pub fn layout(&self) -> &str {
        &self.open.own.layout
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

impl Drop for Object {
    fn drop(&mut self) {
        let shared = self.node.shared();
        tracing::info!(node = self.node.id().0, object = self.path(), kind = self.open.kind, "closed");
        // This precedes the release of the path: the next opening of the path must see it.
        shared.drops(self.open.opening);
        shared.service.objects.lock().remove(self.path());
    }
}
