//! The service thread's loop: it serves the control plane, drives the membership, and polls the pollers.

use std::sync::Arc;
use std::time::Duration;

use farfield_fabric::{ControlEvent, DeathRule, Endpoint, Instant, NodeId, PeerState, Waiting};

use super::{LEAVE_TIMEOUT, Poller, Progress};
use crate::error::ErrorKind;
use crate::node::Shared;
use crate::node::membership::{Action, Membership};
use crate::node::object::Message;

/// The pause before it polls again, where operations have not started, or a poller wants to try again. If pollers keep
/// trying in vain, as long as the members do not decide about a node, the pause grows.
const RETRY_TICK: Duration = Duration::from_micros(100);
const RETRY_TICK_MAX: Duration = Duration::from_millis(10);
/// It polls the control sockets after so many rounds at most while pollers keep the thread awake, and whenever the
/// fabric says that it is time.
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

/// Serves until the node is stopped, and then leaves the session.
pub(in crate::node) fn run(shared: &Arc<Shared>, endpoint: &Endpoint) {
    let (service, fabric) = (&shared.service, &shared.fabric);
    let mut pollers: Vec<Box<dyn Poller>> = Vec::new();
    fabric.wait_begins(); // what blocks below is in the middle of it
    let mut membership = first_membership(shared);
    serve(shared, endpoint, &mut membership, &mut pollers);
    fabric.wait_ends();
    pollers.append(&mut service.new_pollers.lock());
    let deadline = endpoint.now() + LEAVE_TIMEOUT;
    finish_work(shared, endpoint, &mut membership, &mut pollers, deadline);
    let owes = pollers.iter().any(|poller| poller.must_finish_before_leave());
    if fabric.death_rule() == DeathRule::Majority && !owes {
        depart(shared, endpoint, &mut membership, deadline);
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
    // Objects and pollers may own handles, so they are dropped; not under these locks, which a handle's drop takes.
    loop {
        let objects = std::mem::take(&mut *service.objects.lock());
        if pollers.is_empty() && objects.is_empty() {
            return;
        }
        drop((std::mem::take(&mut pollers), objects));
        pollers.append(&mut service.new_pollers.lock());
    }
}

/// The membership as this node finds it when it starts.
fn first_membership(shared: &Shared) -> Membership {
    let fabric = &shared.fabric;
    let (places, rng) = (fabric.places() as u16, shared.rng(MEMBERSHIP_STREAM));
    let mut membership = Membership::new(fabric.me(), places, fabric.death_rule(), rng);
    if fabric.nodes() > fabric.places() {
        let all = (0..fabric.nodes() as u16).map(NodeId);
        let is_up = |node: &NodeId| matches!(fabric.peer_state(*node), PeerState::Up { .. });
        membership.finds(&shared.gone(), &all.filter(is_up).collect::<Vec<_>>());
    }
    membership
}

/// Serves the control plane and the pollers until the node is stopped.
fn serve(shared: &Arc<Shared>, endpoint: &Endpoint, membership: &mut Membership, pollers: &mut Vec<Box<dyn Poller>>) {
    let (service, fabric) = (&shared.service, &shared.fabric);
    let mut waiting = Waiting::of_service();
    let (mut round, mut again) = (0u32, Retries::NONE);
    while !service.is_stopped() {
        pollers.append(&mut service.new_pollers.lock());
        let Polled { is_busy, retries, until } = poll_all(shared, endpoint, membership, pollers);
        // Operations that they have left to it must start.
        let is_held = endpoint.progress();
        round = round.wrapping_add(1);
        let tick = lead(shared, membership);
        report(membership, pollers);
        if pollers.is_empty() && !is_held {
            fabric.serve(tick.unwrap_or(Duration::MAX), &mut |event| handle(shared, membership, event));
            continue;
        }
        if is_busy {
            waiting.reset();
        }
        if retries && !is_busy {
            again.failed(fabric.now());
        } else {
            again = Retries::NONE;
        }
        let is_due = round.is_multiple_of(SERVE_EVERY) || waiting.is_asleep() || fabric.serve_is_due();
        if is_due && hear(shared, membership, Duration::ZERO) {
            // The thread must not sleep on an event: it may ask for a decision, or a poller may wait for it.
            waiting.reset();
            continue;
        }
        if !is_busy {
            let tick = tick.into_iter().chain(is_held.then_some(RETRY_TICK)).min();
            let next = tick.map(|tick| fabric.now() + tick);
            waiting.until(next.into_iter().chain(again.due).chain(until).min().unwrap_or(Instant::NEVER));
            fabric.idle(&mut waiting);
        }
    }
    fabric.idle_end(&mut waiting);
}

/// The pauses of pollers that try again.
struct Retries {
    pause: Duration,
    /// When they try again, if they do.
    due: Option<Instant>,
}

impl Retries {
    const NONE: Retries = Retries { pause: RETRY_TICK, due: None };

    /// After a round at `now`, in which some poller could not do its work.
    fn failed(&mut self, now: Instant) {
        match self.due {
            Some(due) if now < due => {}
            Some(_) => {
                self.pause = RETRY_TICK_MAX.min(2 * self.pause);
                self.due = Some(now + self.pause);
            }
            None => self.due = Some(now + self.pause),
        }
    }
}

/// The outcome of a round of all pollers.
struct Polled {
    /// One of them had work.
    is_busy: bool,
    /// One of them tries again soon.
    retries: bool,
    /// When one of them has work.
    until: Option<Instant>,
}

/// Polls all pollers once, and drops those that are done.
fn poll_all(
    shared: &Arc<Shared>,
    endpoint: &Endpoint,
    membership: &mut Membership,
    pollers: &mut Vec<Box<dyn Poller>>,
) -> Polled {
    let (mut busy, mut retries, mut until) = (0, false, None::<Instant>);
    pollers.retain_mut(|poller| {
        let progress = poller.poll(endpoint);
        if progress == Progress::Busy {
            busy += 1;
            if busy % SERVE_EVERY_BUSY == 0 || shared.fabric.serve_is_due() {
                shared.fabric.serve(Duration::ZERO, &mut |event| handle(shared, membership, event));
                lead(shared, membership);
            }
        }
        retries |= progress == Progress::Retry;
        if let Progress::Until(next) = progress {
            until = until.into_iter().chain([next]).min();
        }
        progress != Progress::Done
    });
    Polled { is_busy: busy > 0, retries, until }
}

/// Serves the control plane for a time at most. Returns whether there was an event.
fn hear(shared: &Arc<Shared>, membership: &mut Membership, at_most: Duration) -> bool {
    let mut heard = false;
    shared.fabric.serve(at_most, &mut |event| {
        heard = true;
        handle(shared, membership, event);
    });
    heard
}

/// Finishes the work that others wait for, as far as possible until the deadline.
fn finish_work(
    shared: &Arc<Shared>,
    endpoint: &Endpoint,
    membership: &mut Membership,
    pollers: &mut Vec<Box<dyn Poller>>,
    deadline: Instant,
) {
    let mut pause = LEAVE_TICK_MIN;
    // Nothing that a fenced node does has an effect: its peers recover the work that it leaves.
    while pollers.iter().any(|poller| poller.must_finish_before_leave())
        && endpoint.now() < deadline
        && !shared.fabric.is_fenced()
    {
        pollers.retain_mut(|poller| {
            let progress = poller.poll(endpoint);
            if matches!(progress, Progress::Busy | Progress::Done) {
                pause = LEAVE_TICK_MIN;
            }
            progress != Progress::Done
        });
        let tick = lead(shared, membership); // some wait until others are decided to be dead
        report(membership, pollers);
        let heard = hear(shared, membership, tick.map_or(pause, |tick| tick.min(pause)));
        pause = if heard { LEAVE_TICK_MIN } else { (2 * pause).min(LEAVE_TICK_MAX) };
    }
}

/// Lets the others agree on its departure before it leaves, since a departed node has no vote.
fn depart(shared: &Arc<Shared>, endpoint: &Endpoint, membership: &mut Membership, deadline: Instant) {
    membership.depart(endpoint.now());
    while membership.is_member() && !membership.is_fenced() && endpoint.now() < deadline {
        let tick = lead(shared, membership).unwrap_or(LEAVE_TIMEOUT);
        shared.fabric.serve(tick, &mut |event| handle(shared, membership, event));
    }
    // It may be the only node that knows the decision.
    speak(shared, membership);
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
            Ok(()) => {
                tracing::info!("{node}, which is dead, is evicted: none of its operations can land any more");
                membership.has_evicted(node);
            }
            Err(why) => tracing::debug!("{node} is not evicted yet: {why}"),
        }
    }
    speak(shared, membership);
    if membership.has_changed() {
        shared.service.publish(membership);
        fabric.wake_local(); // a thread may wait for one of them
        shared.service.reopenings.members_change();
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
            tracing::info!("{node} has joined");
            service.up.lock().insert(node);
            membership.came(node);
            // Objects that were opened before it joined are announced now.
            let objects: Vec<_> = service.objects.lock().values().cloned().collect();
            for object in objects {
                object.announce(shared, node);
            }
            service.reopenings.announce(shared, node);
        }
        ControlEvent::Down(node) => match shared.fabric.peer_state(node) {
            PeerState::Left => {
                tracing::info!("{node} has left");
                membership.left(node);
                shared.forget_the_gone();
            }
            PeerState::Dead { .. } => {
                tracing::warn!("{node} is dead");
                membership.died(node);
            }
            // Its connection has broken, which does not prove its death.
            PeerState::Up { .. } | PeerState::NotJoined => membership.suspect(node),
        },
        ControlEvent::Suspected(node) => {
            tracing::info!("{node} is silent: it is suspected to be dead");
            membership.suspect(node);
        }
        ControlEvent::Trusted(node) => membership.trust(node),
        ControlEvent::Refused(node, error) => {
            tracing::warn!("{node} was refused: {error}");
            service.refused.lock().insert(node, ErrorKind::Fabric(error).into());
        }
        ControlEvent::Message(from, bytes) => match postcard::from_bytes::<Message>(&bytes) {
            Ok(Message::Membership(message)) => membership.receive(from, message),
            Ok(message) => message.handle(shared, from),
            Err(why) => tracing::warn!("{from} sent a message that cannot be read: {why}"),
        },
    }
}
