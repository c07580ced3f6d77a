//! Opening objects: join and connect (LOCO appendix A.2).
//!
//! Every participant opens an object under the same path. It allocates its regions first, then sends a *join* to each
//! other participant, with what it takes the object to be and where its regions are. A node that has not opened the path
//! ignores it; one that has checks it, remembers the regions, and answers with a *connect* of the same content. So
//! whoever opens last connects everybody. A difference is an error on both sides that says what differs.
//!
//! A path may be opened anew after all have dropped it, while messages of the opening before are still under way. So
//! openings are numbered: an answer counts only if it is to this opening's join, and a join only if it is of a later
//! opening than the one that an earlier object of this path was connected to. How an opening ends, and when its memory comes
//! back, is [`close`]'s matter.
//!
//! A node that returns is another node, and what the others have open was opened with the one that it replaces. It joins all
//! the same where nothing of the object lies on a node but its homes ([`Spec::takes_in`]) and these live: nobody needs memory
//! of it. Elsewhere it is told why not. It waits on: the others may be about to open the path anew, with it.

pub(super) mod close;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use farfield_fabric::{Endpoint, LocalMutex, NodeId, Region, RemotePtr, Word, Words};
use serde::{Deserialize, Serialize};

pub(super) mod reopen;

pub(super) use self::close::Memory;
pub(crate) use self::close::{Hold, Regions};
use super::{Node, Shared, membership};
use crate::error::{Error, ErrorKind, Of, Result};
use crate::mutants::{self, Mutant};

/// What a node takes an object to be, and where its part of it lies.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Announcement {
    /// `kv/locks/3`: `/` separates sub-objects.
    pub path: String,
    /// The type of object.
    pub kind: String,
    /// Sizes and options that all participants must agree on.
    pub layout: String,
    /// Who takes part.
    pub participants: Vec<u16>,
    /// The sender's regions: name, packed pointer, bytes.
    pub regions: Vec<(String, u64, u64)>,
    /// The regions, and their sizes, that the sender needs of the receiver.
    pub expected: Vec<(String, u64)>,
    /// Nodes that the sender knows to be gone.
    pub gone: Vec<u16>,
}

impl Announcement {
    /// Whether the participants differ by nodes only that one of the two knows to be gone, and others in their places: one
    /// of them does not know yet, and will open it anew.
    fn is_of_another_epoch(&self, theirs: &Announcement, gone: &[u16], places: u16) -> bool {
        let differs = |node: &&u16| self.participants.contains(node) != theirs.participants.contains(node);
        let differing: Vec<u16> =
            self.participants.iter().chain(&theirs.participants).filter(differs).copied().collect();
        let is_gone = |node: &u16| gone.contains(node) || theirs.gone.contains(node);
        let replaces = |node: u16| differing.iter().any(|it| *it < node && it % places == node % places && is_gone(it));
        !differing.is_empty() && differing.iter().all(|node| is_gone(node) || replaces(*node))
    }

    /// Whether the participants differ at most by nodes that are gone, and by those that have returned.
    fn differs_by_lives(&self, theirs: &Announcement, gone: &[u16], places: u16) -> bool {
        let is_common = |node: &u16| self.participants.contains(node) && theirs.participants.contains(node);
        let is_past = |node: &u16| *node >= places || gone.contains(node) || theirs.gone.contains(node);
        self.participants.iter().chain(&theirs.participants).all(|node| is_common(node) || is_past(node))
    }

    /// What differs from another node's, if anything.
    fn differs(&self, theirs: &Announcement) -> Option<Difference> {
        if self.kind != theirs.kind {
            return Difference::new("its type", &self.kind, &theirs.kind);
        }
        if self.layout != theirs.layout {
            return Difference::new("its layout", &self.layout, &theirs.layout);
        }
        if self.participants != theirs.participants {
            return Difference::new("the set of participants", &self.participants, &theirs.participants);
        }
        self.differs_in_regions(theirs)
    }

    /// What differs from another node's besides the participants, if anything.
    fn differs_otherwise(&self, theirs: &Announcement) -> Option<Difference> {
        let participants = self.participants.clone();
        self.differs(&Announcement { participants, ..theirs.clone() })
    }

    fn differs_in_regions(&self, theirs: &Announcement) -> Option<Difference> {
        let bytes_of = |name: &str| self.regions.iter().find(|region| region.0 == name).map(|region| region.2);
        let unfit = theirs.expected.iter().find(|(name, bytes)| bytes_of(name) != Some(*bytes));
        unfit.and_then(|(name, bytes)| {
            Difference::new(&format!("region `{name}` in bytes"), &bytes_of(name), &Some(bytes))
        })
    }
}

/// What two nodes open differently.
struct Difference {
    what: String,
    here: String,
    there: String,
}

impl Difference {
    fn new(what: &str, here: &dyn core::fmt::Debug, there: &dyn core::fmt::Debug) -> Option<Difference> {
        Some(Difference { what: what.into(), here: format!("{here:?}"), there: format!("{there:?}") })
    }

    /// As it looks from this node.
    fn seen_here(&self) -> String {
        format!("{} is {} here and {} there", self.what, self.here, self.there)
    }

    /// As it looks from the other node.
    fn seen_there(&self) -> String {
        format!("{} is {} here and {} there", self.what, self.there, self.here)
    }
}

/// A message between the service threads.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Message {
    /// A node has opened an object.
    Join { opening: u64, theirs: Announcement },
    /// The answer, to the join of that number.
    Connect { answers: u64, opening: u64, theirs: Announcement },
    /// The other answer: what differs, as it looks from there.
    Refuse { answers: u64, path: String, differs: String },
    /// To the join of that number, of a node that has returned: why it cannot join what is open here.
    Outside { answers: u64, path: String, why: String },
    /// Who belongs to the session.
    Membership(membership::Message),
    /// A node reopens a path.
    Reopen(reopen::Call),
    /// An opening ends.
    Close(close::Message),
}

/// Room for most messages.
const MESSAGE_BYTES: usize = 512;

impl Message {
    /// Whether it was sent.
    pub(super) fn send(&self, shared: &Shared, to: NodeId) -> bool {
        let sent = postcard::to_extend(self, Vec::with_capacity(MESSAGE_BYTES)).map_err(|why| why.to_string());
        let sent = sent.and_then(|bytes| shared.fabric.send_control(to, &bytes).map_err(|why| why.to_string()));
        if let Err(why) = &sent {
            // Not up yet: it is announced when it comes. Gone: its state says so to whoever waits.
            tracing::debug!("not sent to {to}: {why}");
        }
        sent.is_ok()
    }

    pub(super) fn handle(self, shared: &Arc<Shared>, from: NodeId) {
        let find = |path: &str| shared.service.objects.lock().get(path).cloned();
        match self {
            Message::Join { opening, theirs } => {
                let Some(object) = find(&theirs.path) else {
                    let has_returned = from.index() >= shared.fabric.places();
                    if has_returned && shared.service.reopenings.is_past(&theirs.path) {
                        leave_outside(shared, from, opening, theirs.path, REOPENED.into());
                    }
                    return;
                };
                let is_late = shared.service.openings.lock().is_late(&theirs.path, from, opening);
                if is_late || !object.check(shared, from, opening, &theirs) {
                    return;
                }
                {
                    // Before it is told: what it was told of is used until it says otherwise.
                    let mut openings = shared.service.openings.lock();
                    let untold = !object.is_of(from) && mutants::is_on(Mutant::JoinReturnedUntold);
                    if !openings.uses(object.opening, from, opening)
                        || !(untold || openings.tells(object.opening, from))
                    {
                        return;
                    }
                }
                if !mutants::is_on(Mutant::JoinNotAnswered) {
                    let own = object.announcement(shared, from);
                    Message::Connect { answers: opening, opening: object.opening, theirs: own }.send(shared, from);
                }
                object.connect(from, opening, theirs, true);
                object.take_in_those_that_wait(shared);
            }
            Message::Connect { answers, opening, theirs } => {
                let Some(object) = find(&theirs.path) else { return };
                let is_answer = answers == object.opening || mutants::is_on(Mutant::JoinLateAnswerTaken);
                if is_answer
                    && object.check(shared, from, opening, &theirs)
                    && shared.service.openings.lock().uses(object.opening, from, opening)
                {
                    object.connect(from, opening, theirs, false);
                    object.take_in_those_that_wait(shared);
                }
            }
            Message::Refuse { answers, path, differs } => {
                if let Some(object) = find(&path).filter(|object| object.opening == answers) {
                    object.refused(from, differs);
                }
            }
            Message::Outside { answers, path, why } => {
                if let Some(object) = find(&path).filter(|object| object.opening == answers) {
                    object.state.lock().outside.insert(from, why);
                }
            }
            Message::Reopen(call) => shared.service.reopenings.hear(from, call),
            Message::Membership(_) => unreachable!("the service thread keeps it for itself"),
            Message::Close(message) => message.handle(shared, from),
        }
    }
}

type Callback = Box<dyn Fn(NodeId, &Announcement) + Send + Sync>;
type Expect = Box<dyn Fn(NodeId) -> Vec<(String, u64)> + Send + Sync>;

/// What an object says of itself when it is opened.
pub(crate) struct Spec {
    pub(crate) path: String,
    pub(crate) kind: &'static str,
    pub(crate) layout: String,
    pub(crate) participants: Vec<NodeId>,
    pub(crate) regions: Regions,
    pub(crate) expect: Expect,
    /// Whether nodes that return may join it while it is open: nobody but its homes has memory of it.
    pub(crate) takes_in: bool,
}

/// An object that is open on this node, as the service thread sees it.
pub(super) struct OpenObject {
    own: Announcement,
    /// Its number among those of this node.
    opening: u64,
    expect: Expect,
    takes_in: bool,
    /// Grows with every change of `state`, so that waiters need not take the lock to look.
    changes: Word,
    state: LocalMutex<State>,
    callbacks: Callbacks,
    /// The generation that has taken its place, or 0.
    reopened: Word,
}

/// What to run when peers join and connect.
#[derive(Default)]
struct Callbacks {
    on_join: Vec<Callback>,
    on_connect: Vec<Callback>,
}

#[derive(Default)]
struct State {
    /// With whom it is connected: the number of the opening there, and what it said.
    connected: HashMap<NodeId, (u64, Announcement)>,
    /// The openings whose joins have come.
    joined: HashMap<NodeId, u64>,
    /// Who has it open without this node, which has returned, and why it does not join there.
    outside: BTreeMap<NodeId, String>,
    /// Joins of nodes that have returned, until the object is open.
    waiting: BTreeMap<NodeId, (u64, Announcement)>,
    mismatch: Option<(NodeId, String)>,
}

impl OpenObject {
    /// What is said to a peer.
    fn announcement(&self, shared: &Shared, to: NodeId) -> Announcement {
        Announcement { expected: (self.expect)(to), gone: shared.gone(), ..self.own.clone() }
    }

    /// Tells a node of it that has come.
    pub(super) fn announce(&self, shared: &Shared, to: NodeId) {
        if self.own.participants.contains(&to.0) && shared.service.openings.lock().tells(self.opening, to) {
            self.join(shared, to);
        }
    }

    fn join(&self, shared: &Shared, to: NodeId) {
        Message::Join { opening: self.opening, theirs: self.announcement(shared, to) }.send(shared, to);
    }

    fn check(&self, shared: &Shared, from: NodeId, opening: u64, theirs: &Announcement) -> bool {
        let (gone, places) = (shared.gone(), shared.fabric.places() as u16);
        // One of the two has come since the other has it open.
        let has_returned = !self.is_of(from) || !theirs.participants.contains(&shared.fabric.me().0);
        if has_returned && shared.service.reopenings.is_past(&self.own.path) {
            self.leave_outside(shared, from, opening, REOPENED.into());
            return false;
        }
        let differs = if has_returned && self.takes_in && self.own.differs_by_lives(theirs, &gone, places) {
            if let Some(differs) = self.own.differs_otherwise(theirs) {
                self.leave_outside(shared, from, opening, differs.seen_there());
                return false;
            }
            // An opening that may yet fail takes nobody in: it would be made anew, with the one that has returned.
            if !self.is_of(from) && !self.is_complete() {
                self.state.lock().waiting.insert(from, (opening, theirs.clone()));
                return false;
            }
            None
        } else if self.own.is_of_another_epoch(theirs, &gone, places) {
            if has_returned {
                let why = "an object of its kind has a part for each node that it was opened with";
                self.leave_outside(shared, from, opening, why.into());
                return false;
            }
            return mutants::is_on(Mutant::JoinEpochUnchecked);
        } else {
            self.own.differs(theirs)
        };
        match differs.or_else(|| self.moved(from, opening)) {
            None => true,
            Some(differs) => {
                let (path, differs_there) = (self.own.path.clone(), differs.seen_there());
                Message::Refuse { answers: opening, path, differs: differs_there }.send(shared, from);
                // Who does not take part here cannot keep those that do from it: it may have come after they opened it.
                if self.is_of(from) {
                    self.refused(from, differs.seen_here());
                }
                false
            }
        }
    }

    /// Whether a node is one of those that it was opened among.
    fn is_of(&self, node: NodeId) -> bool {
        self.own.participants.contains(&node.0)
    }

    /// Whether all that it was opened among are connected.
    fn is_complete(&self) -> bool {
        let state = self.state.lock();
        let connected = self.own.participants.iter().filter(|node| state.connected.contains_key(&NodeId(**node)));
        connected.count() + 1 >= self.own.participants.len()
    }

    /// Answers those that have returned while it was being opened.
    fn take_in_those_that_wait(&self, shared: &Arc<Shared>) {
        if self.takes_in && self.is_complete() {
            let waiting = core::mem::take(&mut self.state.lock().waiting);
            for (from, (opening, theirs)) in waiting {
                Message::Join { opening, theirs }.handle(shared, from);
            }
        }
    }

    fn leave_outside(&self, shared: &Shared, to: NodeId, answers: u64, why: String) {
        // Where it is the other way round, the other one is told.
        if !self.is_of(to) {
            leave_outside(shared, to, answers, self.own.path.clone(), why);
        }
    }

    /// Whether a peer opens anew what is still open here with its earlier memory. A message of an opening before that is
    /// late, and says nothing.
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

    fn connect(&self, from: NodeId, opening: u64, theirs: Announcement, joined: bool) {
        let (first, joined) = {
            let mut state = self.state.lock();
            // A join may come twice: when the peer comes up, and when this node opens the object at that moment.
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

    fn call(&self, callbacks: &[Callback], from: NodeId, theirs: &Announcement) {
        for callback in callbacks {
            callback(from, theirs);
        }
    }
}

/// Why a node that has returned finds nothing to join.
const REOPENED: &str = "it has been reopened since";

/// Tells a node that has returned why it cannot join.
fn leave_outside(shared: &Shared, to: NodeId, answers: u64, path: String, why: String) {
    Message::Outside { answers, path, why }.send(shared, to);
}

/// An object on this node: its regions, and those of the other participants.
pub(crate) struct Object {
    hold: Hold,
    open: Arc<OpenObject>,
    participants: Vec<NodeId>,
    /// Behind the hold: it may be the last handle of the node.
    node: Node,
}

impl Object {
    /// Opens an object and announces it; it does not wait for the others.
    pub(crate) fn announce(node: &Node, spec: Spec) -> Result<Object> {
        Object::announce_with(node, spec, Callbacks::default())
    }

    fn announce_with(node: &Node, spec: Spec, callbacks: Callbacks) -> Result<Object> {
        let Spec { path, kind, layout, participants, regions, expect, takes_in } = spec;
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
            return refuse(format!("{} is not one of its participants", node.id()));
        }
        let told = |(name, memory): (&str, &Memory)| {
            node.fabric().label(memory.remote(), memory.bytes(), format_args!("{path}.{name}"));
            (name.to_string(), memory.remote().packed(), memory.bytes() as u64)
        };
        let own = Announcement {
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
        let reopened = Word::new(0);
        let open = Arc::new(OpenObject { own, opening, expect, takes_in, changes, state, callbacks, reopened });
        // Who comes up meanwhile finds the object, or is found here.
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
        Ok(Object { hold: Hold::new(shared, opening), open, participants, node: node.clone() })
    }

    /// Opens an object and waits for all other participants.
    pub(crate) fn open(node: &Node, spec: Spec) -> Result<Object> {
        let object = Object::announce(node, spec)?;
        let endpoint = node.endpoint()?;
        object.connected(&endpoint, node.timeout())?;
        Ok(object)
    }

    /// Waits until all participants are connected.
    pub(crate) fn connected(&self, endpoint: &Endpoint, timeout: Duration) -> Result<()> {
        let missing = || {
            let state = self.open.state.lock();
            let others = self.participants.iter().filter(|node| **node != self.node.id());
            others.filter(|node| !state.connected.contains_key(node)).copied().collect::<Vec<_>>()
        };
        let start = endpoint.now();
        let (mut seen, mut gone_since, mut calls_seen) = (u64::MAX, None, 0);
        let reopenings = &self.node.shared().service.reopenings;
        let waited = endpoint.block_on(endpoint.wait_until(start + timeout, || {
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
            let (mut missing, mut forgone) = (missing(), false);
            if self.open.takes_in {
                // Nobody needs those that are gone, if nothing of the object lies on them.
                let is_needed =
                    |node: &NodeId| endpoint.check_alive(*node).is_ok() || !(self.open.expect)(*node).is_empty();
                forgone = !missing.iter().all(is_needed);
                missing.retain(is_needed);
            }
            if forgone && missing.is_empty() {
                return Some(Ok(()));
            }
            if let Some(error) = gone_of(missing) {
                return Some(Err(error.into()));
            }
            // One that was there is gone. Whoever is missing knows, or will before it comes, and then it opens the object
            // without that one, unless its join is on the way already.
            let error = gone_of(self.others().collect())?;
            let since = *gone_since.get_or_insert_with(|| endpoint.now());
            (endpoint.now() - since >= ON_THE_WAY_MAX).then(|| Err(error.into()))
        }));
        let waited = match waited {
            Ok(result) => result,
            Err(_) => {
                let mut what = String::from("all participants to open it");
                if let Some((node, why)) = self.open.state.lock().outside.first_key_value() {
                    what += &format!(
                        " ({node} opened it before {} joined, which cannot join the object: {why}. Call `Node::reopen` on all \
                         nodes)",
                        self.node.id()
                    );
                }
                Err(ErrorKind::Timeout { what, waited: endpoint.now() - start, missing: missing() }.into())
            }
        };
        waited.of(self.path())
    }

    /// The other participants.
    pub(crate) fn others(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.participants.iter().copied().filter(|node| *node != self.node.id())
    }

    pub(crate) fn path(&self) -> &str {
        &self.open.own.path
    }

    pub(crate) fn node(&self) -> &Node {
        &self.node
    }

    /// Keeps the object open on this node when its handles are dropped.
    pub(crate) fn hold(&self) -> Hold {
        self.hold.clone()
    }

    /// Where a region of a connected participant lies (this node's own included).
    pub(crate) fn remote<T>(&self, node: NodeId, region: &str) -> Result<RemotePtr<T>> {
        let find = |announcement: &Announcement| {
            let found = announcement.regions.iter().find(|found| found.0 == region);
            found.map(|found| RemotePtr::from_packed(found.1))
        };
        let found = if node == self.node.id() {
            find(&self.open.own)
        } else {
            self.open.state.lock().connected.get(&node).and_then(|(_, announcement)| find(announcement))
        };
        found.ok_or_else(|| {
            let why = match self.node.shared().is_gone(node) {
                true => {
                    format!("{node} is gone, and its `{region}` with it: reopen it on all nodes, with `Node::reopen`")
                }
                false => format!("{node} has no region `{region}` in it, or is not connected"),
            };
            Error::from(ErrorKind::NotAParticipant { why }).of(self.path())
        })
    }
}

/// How long a join may be on its way, when its sender has known for as long that somebody is gone.
const ON_THE_WAY_MAX: Duration = Duration::from_millis(100);

impl Drop for Object {
    fn drop(&mut self) {
        let shared = self.node.shared();
        // Before the path is free: whoever opens it next is to know.
        shared.drops(self.open.opening);
        shared.service.objects.lock().remove(self.path());
    }
}

/// An object of one's own that is being opened: its regions, and callbacks for the peers that come.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// use farfield::fabric::GroupKey;
/// let nodes = farfield::local_session(2)?;
/// let open = |node: &farfield::Node| {
///     let cells = node.alloc(GroupKey::SIGNAL, 64)?;
///     farfield::Opening::new(node, "app/cells", "Cells").layout("one line").region("cells", cells).announce()
/// };
/// let (a, b) = (open(&nodes[0])?, open(&nodes[1])?);
/// a.wait(nodes[0].timeout())?;
/// b.wait(nodes[1].timeout())?;
/// let word = a.remote::<u64>(nodes[1].id(), "cells")?;
/// nodes[0].endpoint()?.put_value(word, 7).wait()?;
/// # Ok(()) }
/// ```
#[must_use = "nothing is opened before `announce`"]
pub struct Opening {
    node: Node,
    spec: Spec,
    callbacks: Callbacks,
}

/// A custom object that is open. Dropping it closes it on this node; the others work on with the memory of all until they
/// close it, too. What was told of this node's regions ends then in [`Freed`](farfield_fabric::ErrorKind::Freed).
pub struct CustomObject(Object);

impl Opening {
    /// An object of type `kind` at `path`, in which all nodes take part that belong to the session, or to the generation
    /// of the path ([`Node::reopen`]).
    pub fn new(node: &Node, path: &str, kind: &'static str) -> Opening {
        let spec = Spec {
            path: path.into(),
            kind,
            layout: String::new(),
            participants: node.members_for(path),
            regions: Regions::new(node),
            expect: Box::new(|_| Vec::new()),
            takes_in: false,
        };
        Opening { node: node.clone(), spec, callbacks: Callbacks::default() }
    }

    /// Sizes and options that all participants must agree on.
    pub fn layout(mut self, layout: &str) -> Opening {
        self.spec.layout = layout.into();
        self
    }

    /// Who takes part.
    pub fn participants(mut self, nodes: impl IntoIterator<Item = NodeId>) -> Opening {
        self.spec.participants = nodes.into_iter().collect();
        self
    }

    /// A region of this node that peers may ask for by name. It belongs to the object from now on, and to no other: it is
    /// given back when all who were told of it have closed the object, and at once if this opening is never announced.
    pub fn region(mut self, name: &'static str, region: Region) -> Opening {
        self.spec.regions.add(name, region);
        self
    }

    /// Words of this node that peers may ask for by name, as [`Opening::region`] does with memory ([`Node::alloc_words`]).
    pub fn words(mut self, name: &'static str, words: Words) -> Opening {
        self.spec.regions.add_words(name, words);
        self
    }

    /// Which regions, of how many bytes, this node needs of a peer.
    pub fn expect(mut self, of: impl Fn(NodeId) -> Vec<(String, u64)> + Send + Sync + 'static) -> Opening {
        self.spec.expect = Box::new(of);
        self
    }

    /// Nodes that return may join the object while it is open, among the others or in the place of one that has gone: its
    /// memory lies on nodes that live, and nobody needs any of those that come. Without this such a node waits until the
    /// object is reopened ([`Node::reopen`]). Who it is, [`Opening::on_join`] says.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// use farfield::fabric::GroupKey;
    /// let node = farfield::Node::builder().session("doc-takes-in").start()?;
    /// let home = node.id();
    /// let count = node.alloc_words(GroupKey::DATA, 1, &[])?; // on the home only
    /// let expect = move |peer| if peer == home { vec![("count".to_string(), 8)] } else { vec![] };
    /// let opening = farfield::Opening::new(&node, "app/count", "Count").words("count", count).expect(expect);
    /// let object = opening.takes_in_returned().announce()?;
    /// # drop(object); Ok(()) }
    /// ```
    pub fn takes_in_returned(mut self) -> Opening {
        self.spec.takes_in = true;
        self
    }

    /// Runs on the service thread when a peer's join has been accepted: once, unless it opens the object anew. Of two
    /// participants, at least the one that opened first sees the other's join.
    pub fn on_join(mut self, callback: impl Fn(NodeId, &Announcement) + Send + Sync + 'static) -> Opening {
        self.callbacks.on_join.push(Box::new(callback));
        self
    }

    /// Runs on the service thread once for each peer, when its regions are known.
    pub fn on_connect(mut self, callback: impl Fn(NodeId, &Announcement) + Send + Sync + 'static) -> Opening {
        self.callbacks.on_connect.push(Box::new(callback));
        self
    }

    /// Opens the object without waiting for the others.
    ///
    /// # Errors
    /// The path is open already, or the participants make no sense.
    pub fn announce(self) -> Result<CustomObject> {
        let object = Object::announce_with(&self.node, self.spec, self.callbacks)?;
        Ok(CustomObject(object))
    }
}

impl CustomObject {
    /// Its path.
    pub fn path(&self) -> &str {
        self.0.path()
    }

    /// Its node.
    pub fn node(&self) -> &Node {
        self.0.node()
    }

    /// Waits until all participants have opened it.
    ///
    /// # Errors
    /// A timeout that names who is missing, a participant that is gone, or one that opens it differently.
    pub fn wait(&self, timeout: Duration) -> Result<()> {
        self.0.connected(&self.0.node().endpoint()?, timeout)
    }

    /// Where a region of a connected participant lies.
    ///
    /// # Errors
    /// It has no such region, or is not connected.
    pub fn remote<T>(&self, node: NodeId, region: &str) -> Result<RemotePtr<T>> {
        self.0.remote(node, region)
    }
}
