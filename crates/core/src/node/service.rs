//! The service thread: the control plane, and the pollers that objects register. An application that computes never
//! blocks its peers, because this thread does not wait for it.

mod thread;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use farfield_fabric::{Endpoint, Instant, LocalMutex, NodeId, Word};

pub(super) use self::thread::run;
use super::membership::Membership;
use super::object::close::Openings;
use super::object::reopen::Reopenings;
use super::object::{Call, Memory, OpenObject};
use crate::error::Error;

/// Work that the service thread does for an object, a little at a time. It must not wait for another node, except for
/// one round trip of its own at most. If it panics, so does the service thread, and the node is dead: to the others,
/// and to its own threads. Their operations fail with [`Fenced`](farfield_fabric::ErrorKind::Fenced).
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// use farfield::toolkit::{Poller, Progress};
/// use farfield::{Endpoint, NodeId, MemberStatus};
///
/// struct Watch;
/// impl Poller for Watch {
///     fn poll(&mut self, _: &Endpoint) -> Progress {
///         Progress::Idle // nothing to do but to watch
///     }
///     fn status_changed(&mut self, node: NodeId, status: MemberStatus) {
///         println!("{node} is {status:?}");
///     }
/// }
/// let node = farfield::Node::builder().session("doc-poller").start()?;
/// node.add_poller(Box::new(Watch));
/// # Ok(()) }
/// ```
pub trait Poller: Send {
    /// Does the work that is possible now.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let (ep, words) = (node.endpoint()?, node.alloc_words(farfield::fabric::GroupKey::DATA, 1, &[])?);
    /// # let count = words.remote(0);
    /// use farfield::{Endpoint, fabric::RemotePtr, toolkit::{Poller, Progress}};
    /// struct CountOnce(RemotePtr<u64>);
    /// impl Poller for CountOnce {
    ///     fn poll(&mut self, endpoint: &Endpoint) -> Progress {
    ///         if endpoint.faa(self.0, 1).wait().is_ok() { Progress::Done } else { Progress::Retry }
    ///     }
    /// }
    /// node.add_poller(Box::new(CountOnce(count)));
    /// assert_eq!(ep.block_on(ep.wait_remote(count, 0, ep.deadline()))?, 1);
    /// # Ok(()) }
    /// ```
    fn poll(&mut self, endpoint: &Endpoint) -> Progress;

    /// The membership status of a node has changed ([`Node::status_of`](crate::Node::status_of)): runs on the service
    /// thread, before the next [`Poller::poll`]. The statuses at registration are not repeated.
    ///
    /// ```
    /// # use farfield::{Endpoint, MemberStatus, NodeId, toolkit::{Poller, Progress}};
    /// struct Recovery(Vec<NodeId>); // the nodes to recover from
    /// impl Poller for Recovery {
    ///     fn poll(&mut self, _: &Endpoint) -> Progress {
    ///         if self.0.pop().is_some() { Progress::Busy } else { Progress::Idle }
    ///     }
    ///     fn status_changed(&mut self, node: NodeId, status: MemberStatus) {
    ///         self.0.extend((status == MemberStatus::Evicted).then_some(node));
    ///     }
    /// }
    /// ```
    fn status_changed(&mut self, node: NodeId, status: MemberStatus) {
        let _ = (node, status);
    }

    /// Whether others depend on its completion: then the node leaves only after it is done. If that takes longer than
    /// [`LEAVE_TIMEOUT`], the node exits as if it had died, and the others recover its state.
    ///
    /// ```
    /// # use farfield::{Endpoint, HeldLock, toolkit::{Poller, Progress}};
    /// struct Release(HeldLock);
    /// impl Poller for Release {
    ///     fn poll(&mut self, endpoint: &Endpoint) -> Progress {
    ///         self.0.release(endpoint)
    ///     }
    ///     fn must_finish_before_leave(&self) -> bool {
    ///         true // others wait for the lock
    ///     }
    /// }
    /// ```
    fn must_finish_before_leave(&self) -> bool {
        false
    }
}

/// The longest time that a leaving node takes for its pending work.
///
/// ```
/// use std::time::Duration;
/// // For a supervisor: how long a process may take to end after it was told to leave.
/// let patience = farfield::LEAVE_TIMEOUT + Duration::from_secs(1);
/// assert_eq!(patience, Duration::from_secs(3));
/// ```
pub const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// The result of a poller.
///
/// ```
/// # use farfield::{Endpoint, toolkit::{Poller, Progress}};
/// struct Steps(u32);
/// impl Poller for Steps {
///     fn poll(&mut self, _: &Endpoint) -> Progress {
///         self.0 -= 1;
///         if self.0 > 0 { Progress::Busy } else { Progress::Done } // it is polled again at once, or dropped
///     }
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Nothing to do, until an event arrives or a word changes on this node.
    Idle,
    /// Something is left to do, and nothing may wake the thread for it: an operation was refused, or it is for the time
    /// to pass. It is polled again within a fraction of a millisecond, and after longer and longer pauses, of 10 ms at
    /// most, as long as no poller gets on.
    Retry,
    /// Nothing to do before that moment, or until something happens as in `Idle`.
    Until(Instant),
    /// It did some work, and there may be more.
    Busy,
    /// It will never have work again.
    Done,
}

/// The state that the service thread shares with other threads.
#[derive(Default)]
pub(super) struct Service {
    stop: Word,
    /// Pollers that the service thread has not taken yet.
    new_pollers: LocalMutex<Vec<Box<dyn Poller>>>,
    /// In order of their paths, so that a joining node gets all announcements in the same order each time.
    pub(super) objects: LocalMutex<BTreeMap<String, Arc<OpenObject>>>,
    /// The number of openings of objects so far.
    opened: Word,
    /// The openings that have not ended.
    pub(super) openings: LocalMutex<Openings<Memory>>,
    pub(super) reopenings: Reopenings,
    on_call: LocalMutex<Option<OnCall>>,
    up: LocalMutex<HashSet<NodeId>>,
    /// Why a node was refused the last time, if it was.
    refused: LocalMutex<HashMap<NodeId, Error>>,
    /// The number of nodes that the session has at a time.
    places: usize,
    /// The published membership: the epoch, one more than the highest number of any member ever, the [`MemberStatus`]
    /// of each, and whether this node is a member.
    epoch: Word,
    known: Word,
    statuses: Vec<Word>,
    is_let_in: Word,
}

/// Runs when another node opens an object that is not open here: see [`Node::on_call`](super::Node::on_call).
type OnCall = Arc<dyn Fn(Call) + Send + Sync>;

/// In place of a status: there never was such a member.
const NO_MEMBER: u64 = u64::MAX;

/// The status of a node in its session, see [`Node::status_of`](super::Node::status_of).
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// # let mut nodes = farfield::local_session(2)?;
/// # let ep = nodes[0].endpoint()?;
/// use farfield::MemberStatus;
/// let other = nodes[1].id();
/// assert_eq!(nodes[0].status_of(other), Some(MemberStatus::Member));
/// nodes.pop(); // it leaves
/// let has_left = || (nodes[0].status_of(other) == Some(MemberStatus::Departed)).then_some(());
/// ep.block_on(ep.wait_until(ep.deadline(), has_left))?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum MemberStatus {
    /// It is a member, whether it has joined yet or not.
    Member,
    /// It is a member, but has been silent for long. This is advice: it may be slow.
    Suspected,
    /// It has left gracefully.
    Departed,
    /// It was decided to be dead: operations on it fail. Its earlier puts may still land somewhere.
    Dead,
    /// It is dead, and none of its operations can land any more: its state may be recovered.
    Evicted,
}

impl MemberStatus {
    const ALL: [MemberStatus; 5] = [
        MemberStatus::Member,
        MemberStatus::Suspected,
        MemberStatus::Departed,
        MemberStatus::Dead,
        MemberStatus::Evicted,
    ];
}

impl Service {
    pub(super) fn new(places: usize, nodes: usize) -> Service {
        let status = |node| Word::new(if node < places { MemberStatus::Member as u64 } else { NO_MEMBER });
        let (known, statuses) = (Word::new(places as u64), (0..nodes).map(status).collect());
        Service { places, known, statuses, ..Service::default() }
    }

    pub(super) fn is_let_in(&self) -> bool {
        self.is_let_in.load() == 1
    }

    /// The nodes that are or were members, whether they have joined yet or not.
    pub(super) fn known(&self) -> impl Iterator<Item = NodeId> + Clone + '_ {
        // Without restarted nodes, there is nothing to check.
        let known = if self.statuses.len() == self.places { self.places } else { self.known.load() as usize };
        let is_known = |node: &usize| *node < self.places || self.statuses[*node].load() != NO_MEMBER;
        (0..known).filter(is_known).map(|node| NodeId(node as u16))
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load()
    }

    pub(super) fn status_of(&self, node: NodeId) -> Option<MemberStatus> {
        let status = self.statuses.get(node.index())?.load();
        MemberStatus::ALL.into_iter().find(|it| *it as u64 == status)
    }

    /// Whether a node was a member and is none any more.
    pub(super) fn is_removed(&self, node: NodeId) -> bool {
        matches!(self.status_of(node), Some(MemberStatus::Departed | MemberStatus::Dead | MemberStatus::Evicted))
    }

    /// Publishes a change of the membership. Called by the service thread.
    fn publish(&self, membership: &mut Membership) {
        // The epoch is first: a thread that sees a status sees the epoch that decided it, or a later one.
        self.epoch.store(membership.epoch());
        for (index, word) in self.statuses.iter().enumerate() {
            let Some(status) = membership.status_of(NodeId(index as u16)) else { continue };
            if word.load() != status as u64 {
                word.store(status as u64);
                membership.changed.push((NodeId(index as u16), status));
            }
            if index >= self.places && self.known.load() <= index as u64 {
                self.known.store(index as u64 + 1);
            }
        }
        // Nodes that were removed before this one was admitted are evicted before it announces any memory.
        if self.statuses.len() > self.places && membership.is_member() && membership.to_evict().is_empty() {
            self.is_let_in.store(1);
        }
    }

    pub(super) fn stop(&self) {
        self.stop.store(1);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load() != 0
    }

    pub(super) fn add_poller(&self, poller: Box<dyn Poller>) {
        self.new_pollers.lock().push(poller);
    }

    /// The number of an opening, from 1.
    pub(super) fn next_opening(&self) -> u64 {
        self.opened.fetch_add(1) + 1
    }

    pub(super) fn set_on_call(&self, on_call: Option<OnCall>) {
        *self.on_call.lock() = on_call;
    }

    /// Called by the service thread. Whether there is a callback for calls.
    pub(super) fn is_called(&self, call: impl FnOnce() -> Call) -> bool {
        let on_call = self.on_call.lock().clone();
        on_call.map(|on_call| on_call(call())).is_some()
    }

    pub(super) fn is_up(&self, node: NodeId) -> bool {
        self.up.lock().contains(&node)
    }

    pub(super) fn refusal_of(&self, nodes: &[NodeId]) -> Option<Error> {
        let refused = self.refused.lock();
        nodes.iter().find_map(|node| refused.get(node).cloned())
    }

    /// The path, the kind and the bytes here of each open object.
    pub(super) fn open_objects(&self) -> Vec<(String, &'static str, u64)> {
        let objects = self.objects.lock();
        objects.iter().map(|(path, object)| (path.clone(), object.kind, object.memory_bytes)).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "a test watches from outside the fabric")]

    use std::sync::Weak;

    use super::*;
    use crate::Node;
    use crate::node::Shared;

    const NODES: u16 = 6;
    const POLLERS: usize = 64;

    /// One of many pollers that always have something to do. For each node the place in the round at which it was first
    /// known to have come.
    struct Busy {
        place: usize,
        shared: Weak<Shared>,
        known_at: Arc<LocalMutex<BTreeMap<u16, usize>>>,
    }

    impl Poller for Busy {
        fn poll(&mut self, _: &Endpoint) -> Progress {
            let Some(shared) = self.shared.upgrade() else { return Progress::Done };
            std::thread::sleep(Duration::from_millis(1));
            for node in (1..NODES).filter(|node| shared.service.is_up(NodeId(*node))) {
                self.known_at.lock().entry(node).or_insert(self.place);
            }
            Progress::Busy
        }
    }

    #[test]
    fn messages_do_not_wait_for_a_round_of_all_pollers() {
        let session = format!("busy-pollers-{}", std::process::id());
        let start =
            |place| Node::builder().session(&session).node(place).nodes(NODES).start().expect("the node starts");
        let node = start(0);
        let known_at: Arc<LocalMutex<BTreeMap<u16, usize>>> = Arc::default();
        for place in 0..POLLERS {
            let (shared, known_at) = (Arc::downgrade(node.shared()), Arc::clone(&known_at));
            node.add_poller(Box::new(Busy { place, shared, known_at }));
        }
        let others: Vec<Node> = (1..NODES).map(start).collect();
        let are_known = || known_at.lock().len() == others.len();
        let mut looks = 0..30_000;
        while !are_known() {
            looks.next().expect("all are known in half a minute");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(known_at.lock().values().any(|place| *place > 0), "known between rounds only");
    }

    /// The changed statuses, as they were reported.
    struct Watch(Arc<LocalMutex<Vec<(NodeId, MemberStatus)>>>);

    impl Poller for Watch {
        fn poll(&mut self, _: &Endpoint) -> Progress {
            Progress::Idle
        }

        fn status_changed(&mut self, node: NodeId, status: MemberStatus) {
            self.0.lock().push((node, status));
        }
    }

    #[test]
    fn pollers_learn_once_of_a_departure() {
        let session = format!("watched-{}", std::process::id());
        let start = |place| Node::builder().session(&session).node(place).nodes(3).start().expect("the node starts");
        let mut nodes: Vec<Node> = (0..3).map(start).collect();
        nodes[0].wait_for_all(Duration::from_secs(30)).expect("all start");
        let seen: Arc<LocalMutex<Vec<(NodeId, MemberStatus)>>> = Arc::default();
        nodes[0].add_poller(Box::new(Watch(Arc::clone(&seen))));
        for leaving in [2, 1] {
            nodes.pop().expect("a node").leave();
            let mut looks = 0..30_000;
            while seen.lock().last() != Some(&(NodeId(leaving), MemberStatus::Departed)) {
                looks.next().expect("it is reported in half a minute");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        assert_eq!(*seen.lock(), [(NodeId(2), MemberStatus::Departed), (NodeId(1), MemberStatus::Departed)]);
    }
}
