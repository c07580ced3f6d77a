//! The service thread: the control plane, and the pollers that objects register. An application that computes never
//! blocks its peers, because this thread does not wait for it.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use farfield_fabric::{ControlEvent, DeathRule, Endpoint, Instant, LocalMutex, NodeId, PeerState, Waiting, Word};

use super::Shared;
use super::membership::{Action, Membership};
use super::object::close::Openings;
use super::object::reopen::Reopenings;
use super::object::{Memory, Message, OpenObject};
use crate::error::{Error, ErrorKind};
use crate::mutants;

/// Work that the service thread does for an object, a little at a time. It must not wait for another node, except for
/// one round trip of its own at most. If it panics, so does the service thread, and the node is dead: to the others,
/// and to its own threads, whose operations fail with [`Fenced`](farfield_fabric::ErrorKind::Fenced).
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
    ///         if endpoint.faa(self.0, 1).wait().is_ok() { Progress::Done } else { Progress::Idle }
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
    /// Nothing to do.
    Idle,
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
    up: LocalMutex<HashSet<NodeId>>,
    refused: LocalMutex<Vec<(NodeId, Error)>>,
    /// The number of nodes that the session has at a time.
    places: usize,
    /// The published membership: the epoch, one more than the highest number of any member ever, the [`MemberStatus`]
    /// of each, and whether this node is a member.
    epoch: Word,
    known: Word,
    statuses: Vec<Word>,
    is_let_in: Word,
}

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
/// assert_eq!(nodes[0].status_of(other), MemberStatus::Member);
/// nodes.pop(); // it leaves
/// let has_left = || (nodes[0].status_of(other) == MemberStatus::Departed).then_some(());
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

    pub(super) fn add_poller(&self, poller: Box<dyn Poller>) {
        self.new_pollers.lock().push(poller);
    }

    /// The number of an opening, from 1.
    pub(super) fn next_opening(&self) -> u64 {
        self.opened.fetch_add(1) + 1
    }

    pub(super) fn is_up(&self, node: NodeId) -> bool {
        self.up.lock().contains(&node)
    }

    pub(super) fn refusal_of(&self, nodes: &[NodeId]) -> Option<Error> {
        self.refused.lock().iter().find(|(node, _)| nodes.contains(node)).map(|(_, error)| error.clone())
    }

    pub(super) fn object_paths(&self) -> Vec<String> {
        self.objects.lock().keys().cloned().collect()
    }
}

/// The delay before it polls operations again that have not started.
const HELD_TICK: Duration = Duration::from_micros(100);
/// It polls the control sockets at least this often while pollers keep the thread awake.
const SERVE_EVERY: u32 = 32;
/// It also serves after so many pollers that had work, in the middle of a round. So messages of members, and beats of
/// this one, do not wait until all objects have had their turn.
const SERVE_EVERY_BUSY: u32 = 4;
/// A node that is stopped in the middle of a write cannot be evicted before it runs again: the time for one attempt,
/// and the pause between two.
const EVICT_MAX: Duration = Duration::from_millis(1);
const EVICT_EVERY: Duration = Duration::from_millis(1);
/// A leaving node polls its unfinished work again after such a pause, which grows while nothing happens.
const LEAVE_TICK_MIN: Duration = Duration::from_micros(100);
const LEAVE_TICK_MAX: Duration = Duration::from_millis(10);
/// The stream of the node's random number generator.
const MEMBERSHIP_STREAM: u64 = u64::MAX;

pub(super) fn run(shared: &Arc<Shared>, endpoint: &Endpoint) {
    let service = &shared.service;
    let fabric = &shared.fabric;
    let mut pollers: Vec<Box<dyn Poller>> = Vec::new();
    let mut waiting = Waiting::of_service();
    fabric.wait_begins(); // what blocks below lies in the middle of it
    let mut round = 0u32;
    let (places, rng) = (fabric.places() as u16, shared.rng(MEMBERSHIP_STREAM));
    let mut membership = Membership::new(fabric.me(), places, fabric.death_rule(), rng);
    if fabric.nodes() > fabric.places() {
        let all = (0..fabric.nodes() as u16).map(NodeId);
        let is_up = |node: &NodeId| matches!(fabric.peer_state(*node), PeerState::Up { .. });
        membership.finds(&shared.gone(), &all.filter(is_up).collect::<Vec<_>>());
    }
    while service.stop.load() == 0 {
        pollers.append(&mut service.new_pollers.lock());
        let mut busy = 0;
        pollers.retain_mut(|poller| {
            let progress = poller.poll(endpoint);
            if progress == Progress::Busy {
                busy += 1;
                if busy % SERVE_EVERY_BUSY == 0 {
                    fabric.serve(Duration::ZERO, &mut |event| handle(shared, &mut membership, event));
                    lead(shared, &mut membership);
                }
            }
            progress != Progress::Done
        });
        let busy = busy > 0;
        // Operations that they have left to it must start.
        let is_held = endpoint.progress();
        round = round.wrapping_add(1);
        let tick = lead(shared, &mut membership);
        report(&mut membership, &mut pollers);
        if pollers.is_empty() && !is_held {
            fabric.serve(tick.unwrap_or(Duration::MAX), &mut |event| handle(shared, &mut membership, event));
            continue;
        }
        if busy {
            waiting.reset();
        }
        if round.is_multiple_of(SERVE_EVERY) || waiting.is_asleep() {
            let mut heard = false;
            fabric.serve(Duration::ZERO, &mut |event| {
                heard = true;
                handle(shared, &mut membership, event);
            });
            // The thread must not sleep on an event: it may ask for a decision, or a poller may wait for it.
            if heard {
                waiting.reset();
                continue;
            }
        }
        if !busy {
            let tick = if is_held { Some(tick.map_or(HELD_TICK, |tick| tick.min(HELD_TICK))) } else { tick };
            waiting.until(tick.map_or(Instant::NEVER, |tick| fabric.now() + tick));
            fabric.idle(&mut waiting);
        }
    }
    fabric.idle_end(&mut waiting);
    fabric.wait_ends();
    // Work that others wait for is finished first, as far as possible.
    pollers.append(&mut service.new_pollers.lock());
    let parting = endpoint.now() + LEAVE_TIMEOUT;
    let mut pause = LEAVE_TICK_MIN;
    // Nothing that a fenced node does has an effect: its peers recover the work that it leaves.
    while pollers.iter().any(|poller| poller.must_finish_before_leave())
        && endpoint.now() < parting
        && !fabric.is_fenced()
    {
        pollers.retain_mut(|poller| {
            let progress = poller.poll(endpoint);
            if progress != Progress::Idle {
                pause = LEAVE_TICK_MIN;
            }
            progress != Progress::Done
        });
        let tick = lead(shared, &mut membership); // some wait until others are decided to be dead
        report(&mut membership, &mut pollers);
        let mut heard = false;
        fabric.serve(tick.map_or(pause, |tick| tick.min(pause)), &mut |event| {
            heard = true;
            handle(shared, &mut membership, event);
        });
        pause = if heard { LEAVE_TICK_MIN } else { (2 * pause).min(LEAVE_TICK_MAX) };
    }
    let owes = pollers.iter().any(|poller| poller.must_finish_before_leave());
    // The others agree on its departure before it leaves: a departed node has no vote.
    if fabric.death_rule() == DeathRule::Majority && !owes {
        membership.depart(endpoint.now());
        while membership.is_member() && !membership.is_fenced() && endpoint.now() < parting {
            let tick = lead(shared, &mut membership).unwrap_or(LEAVE_TIMEOUT);
            fabric.serve(tick, &mut |event| handle(shared, &mut membership, event));
        }
        // It may be the only node that knows the decision.
        if !mutants::MEMBERSHIP_GOES_IN_SILENCE.is_on() {
            speak(shared, &mut membership);
        }
    }
    // The pollers' puts are visible before the goodbye.
    endpoint.flush();
    if owes {
        if !fabric.is_fenced() {
            tracing::warn!(
                "{} leaves work unfinished after {LEAVE_TIMEOUT:?}: the others treat it as dead",
                fabric.me()
            );
        }
        fabric.leave_uncleanly();
    } else {
        fabric.leave();
    }
    // Objects and pollers may own handles, so they are dropped.
    drop(pollers);
    service.new_pollers.lock().clear();
    service.objects.lock().clear();
}

/// Carries out the membership's actions. Returns the time until there is more to do, if there is.
fn lead(shared: &Arc<Shared>, membership: &mut Membership) -> Option<Duration> {
    if membership.is_calm() {
        return None;
    }
    let fabric = &shared.fabric;
    let now = fabric.now();
    membership.tick(now);
    // The decision is announced before any node is evicted: evicted nodes learn it, too.
    speak(shared, membership);
    for node in membership.to_evict() {
        match fabric.evict(node, EVICT_MAX) {
            Ok(()) => membership.has_evicted(node),
            Err(why) => tracing::debug!("{node} is not evicted yet: {why}"),
        }
    }
    speak(shared, membership);
    if membership.has_changed() {
        shared.service.publish(membership);
        shared.forget_the_gone();
        tracing::info!("epoch {}: {:?}", membership.epoch(), membership.members().collect::<Vec<_>>());
    }
    if membership.to_evict().is_empty() { membership.next_tick().map(|at| at - now) } else { Some(EVICT_EVERY) }
}

/// Reports the changed statuses to the pollers.
fn report(membership: &mut Membership, pollers: &mut [Box<dyn Poller>]) {
    for (node, status) in std::mem::take(&mut membership.changed) {
        pollers.iter_mut().for_each(|poller| poller.status_changed(node, status));
    }
}

fn speak(shared: &Arc<Shared>, membership: &mut Membership) {
    for action in membership.take_actions() {
        match action {
            Action::Send(to, message) => _ = Message::Membership(message).send(shared, to),
            Action::Fence => {
                tracing::error!("this node, {}, was evicted from the session", shared.fabric.me());
                shared.fabric.fence_self();
            }
        }
    }
}

fn handle(shared: &Arc<Shared>, membership: &mut Membership, event: ControlEvent) {
    let service = &shared.service;
    match event {
        ControlEvent::Up(node) => {
            service.up.lock().insert(node);
            service.refused.lock().retain(|(refused, _)| *refused != node);
            // If it is dead or departed by now, that was reported before, and is not repeated.
            let returns = node.index() >= shared.fabric.places();
            if !returns || matches!(shared.fabric.peer_state(node), PeerState::Up { .. }) {
                membership.came(node);
            }
            // Objects that were opened before it joined are announced now.
            let objects: Vec<_> = service.objects.lock().values().cloned().collect();
            for object in objects {
                if !mutants::JOIN_LATE_NOT_ANNOUNCED.is_on() {
                    object.announce(shared, node);
                }
            }
            service.reopenings.announce(shared, node);
        }
        ControlEvent::Down(node) => match shared.fabric.peer_state(node) {
            PeerState::Left => {
                membership.left(node);
                shared.forget_the_gone();
            }
            PeerState::Dead { .. } => membership.died(node),
            // Its connection has broken, which does not prove its death.
            PeerState::Up { .. } | PeerState::NotJoined => membership.suspect(node),
        },
        ControlEvent::Suspected(node) => membership.suspect(node),
        ControlEvent::Trusted(node) => membership.trust(node),
        ControlEvent::Refused(node, error) => {
            tracing::warn!("{node} was refused: {error}");
            service.refused.lock().push((node, ErrorKind::Fabric(error).into()));
        }
        ControlEvent::Message(from, bytes) => match postcard::from_bytes::<Message>(&bytes) {
            Ok(Message::Membership(message)) => membership.receive(from, message),
            Ok(message) => message.handle(shared, from),
            Err(why) => tracing::warn!("{from} sent a message that cannot be read: {why}"),
        },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "a test watches from outside the fabric")]

    use std::sync::Weak;

    use super::*;
    use crate::Node;

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
