//! The service thread: the control plane, and the pollers that objects register. An application that computes never
//! blocks its peers, because this thread does not wait for it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use farfield_fabric::{ControlEvent, Endpoint, LocalMutex, NodeId, Waiting, Word};

use super::Shared;
use super::object::{Message, OpenObject};
use crate::error::{Error, ErrorKind};
use crate::mutants::{self, Mutant};

/// Work that the service thread does for an object, a little at a time. It must not wait for anybody; a round trip of its
/// own is the most that it may take.
pub trait Poller: Send {
    /// Does what there is to do now.
    fn poll(&mut self, endpoint: &Endpoint) -> Progress;

    /// Whether others depend on its end: the node then leaves only when it is done, or after [`PARTING_MAX`].
    fn is_owed(&self) -> bool {
        false
    }
}

/// The longest that a node stays for what it owes to others.
pub const PARTING_MAX: Duration = Duration::from_secs(2);

/// What a poller found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Nothing to do.
    Idle,
    /// It did something, and there may be more.
    Busy,
    /// It will never have anything to do again.
    Done,
}

/// What the service thread shares with the others.
#[derive(Default)]
pub(super) struct Service {
    stop: Word,
    /// Pollers that the service thread has not taken yet.
    new_pollers: LocalMutex<Vec<Box<dyn Poller>>>,
    /// In order of their paths, so that what is announced when a node comes is announced in the same order each time.
    pub(super) objects: LocalMutex<BTreeMap<String, Arc<OpenObject>>>,
    /// Openings of objects so far.
    openings: Word,
    /// Of the paths that were closed, the openings on other nodes that they were connected to.
    closed: LocalMutex<HashMap<String, HashMap<NodeId, u64>>>,
    up: LocalMutex<HashSet<NodeId>>,
    refused: LocalMutex<Vec<(NodeId, Error)>>,
}

impl Service {
    pub(super) fn stop(&self) {
        self.stop.store(1);
    }

    pub(super) fn add_poller(&self, poller: Box<dyn Poller>) {
        self.new_pollers.lock().push(poller);
    }

    /// The number of an opening, from 1.
    pub(super) fn next_opening(&self) -> u64 {
        self.openings.fetch_add(1) + 1
    }

    /// Remembers what an object was connected to.
    pub(super) fn closed(&self, path: &str, connected: HashMap<NodeId, u64>) {
        if !connected.is_empty() {
            self.closed.lock().entry(path.into()).or_default().extend(connected);
        }
    }

    /// Whether an object of this path that is closed was connected to that opening of a node's, or to a later one.
    pub(super) fn was_connected_to(&self, path: &str, node: NodeId, opening: u64) -> bool {
        let closed = self.closed.lock();
        closed.get(path).and_then(|connected| connected.get(&node)).is_some_and(|last| opening <= *last)
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

/// Looks at the control sockets at least this often while pollers keep the thread awake.
const SERVE_EVERY: u32 = 32;
/// The longest wait without pollers; a new poller or a message ends it.
const QUIET: Duration = Duration::from_millis(5);

pub(super) fn run(shared: &Arc<Shared>, endpoint: &Endpoint) {
    let service = &shared.service;
    let fabric = &shared.fabric;
    let mut pollers: Vec<Box<dyn Poller>> = Vec::new();
    let mut waiting = Waiting::of_service();
    let mut round = 0u32;
    while service.stop.load() == 0 {
        pollers.append(&mut service.new_pollers.lock());
        let mut busy = false;
        pollers.retain_mut(|poller| match poller.poll(endpoint) {
            Progress::Idle => true,
            Progress::Busy => {
                busy = true;
                true
            }
            Progress::Done => false,
        });
        round = round.wrapping_add(1);
        if pollers.is_empty() {
            fabric.serve(QUIET, &mut |event| handle(shared, event));
            continue;
        }
        if busy {
            waiting.reset();
        }
        if round.is_multiple_of(SERVE_EVERY) || waiting.is_asleep() {
            fabric.serve(Duration::ZERO, &mut |event| handle(shared, event));
        }
        if !busy {
            fabric.idle(&mut waiting);
        }
    }
    fabric.idle_end(&mut waiting);
    // What others wait for is finished first, as far as it can be.
    pollers.append(&mut service.new_pollers.lock());
    let parting = endpoint.now() + PARTING_MAX;
    while pollers.iter().any(|poller| poller.is_owed()) && endpoint.now() < parting {
        pollers.retain_mut(|poller| poller.poll(endpoint) != Progress::Done);
        fabric.serve(Duration::from_micros(100), &mut |event| handle(shared, event));
    }
    // What pollers have put is visible before the goodbye is.
    let members = (0..fabric.nodes()).map(|index| NodeId(index as u16));
    if let Err(error) = endpoint.block_on(endpoint.global_fence(members)) {
        tracing::debug!("leaving: {error}");
    }
    // Objects and pollers may own handles: let go.
    fabric.leave();
    drop(pollers);
    service.new_pollers.lock().clear();
    service.objects.lock().clear();
}

fn handle(shared: &Arc<Shared>, event: ControlEvent) {
    let service = &shared.service;
    match event {
        ControlEvent::Up(node) => {
            service.up.lock().insert(node);
            service.refused.lock().retain(|(refused, _)| *refused != node);
            // What was opened before it came is announced now.
            let objects: Vec<_> = service.objects.lock().values().cloned().collect();
            for object in objects {
                if !mutants::is_on(Mutant::JoinLateNotAnnounced) {
                    object.announce(shared, node);
                }
            }
        }
        ControlEvent::Down(node) => tracing::info!("{node} is gone: {:?}", shared.fabric.peer_state(node)),
        // Advice: nothing is decided by it where the system says who is dead.
        ControlEvent::Suspected(node) => tracing::info!("{node} has not been heard of for long"),
        ControlEvent::Trusted(node) => tracing::info!("{node} is heard of again"),
        ControlEvent::Refused(node, error) => {
            tracing::warn!("{node} was refused: {error}");
            service.refused.lock().push((node, ErrorKind::Fabric(error).into()));
        }
        ControlEvent::Message(from, bytes) => match postcard::from_bytes::<Message>(&bytes) {
            Ok(message) => message.handle(shared, from),
            Err(why) => tracing::warn!("{from} sent a message that cannot be read: {why}"),
        },
    }
}
