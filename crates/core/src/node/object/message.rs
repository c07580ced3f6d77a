//! The messages of openings, and what a node does when one arrives.

use std::sync::Arc;

use farfield_fabric::NodeId;
use serde::{Deserialize, Serialize};

use super::super::{Shared, membership};
use super::{Call, ObjectDescriptor, OpenObject, REOPENED, close, leave_outside, reopen};

/// A message between the service threads.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::node) enum Message {
    /// A node has opened an object.
    Join { opening: u64, theirs: ObjectDescriptor },
    /// The positive answer to the join with that number.
    Connect { answers: u64, opening: u64, theirs: ObjectDescriptor },
    /// The negative answer: the difference, as described for the receiver.
    Refuse { answers: u64, path: String, differs: String },
    /// The answer to the join with that number from a restarted node: why it cannot join the open object.
    Outside { answers: u64, path: String, why: String },
    /// A message of the membership protocol.
    Membership(membership::Message),
    /// A node reopens a path.
    Reopen(reopen::Call),
    /// An opening ends.
    Close(close::Message),
}

/// Room for most messages.
const MESSAGE_BYTES: usize = 512;

impl Message {
    /// Sends the message. Returns whether it was sent.
    pub(in crate::node) fn send(&self, shared: &Shared, to: NodeId) -> bool {
        let sent = postcard::to_extend(self, Vec::with_capacity(MESSAGE_BYTES)).map_err(|why| why.to_string());
        let sent = sent.and_then(|bytes| shared.fabric.send_control(to, &bytes).map_err(|why| why.to_string()));
        if let Err(why) = &sent {
            // A peer that is not up yet gets the announcement when it connects. A dead or departed peer is reported to
            // waiters by its state.
            tracing::debug!("not sent to {to}: {why}");
        }
        sent.is_ok()
    }

    pub(in crate::node) fn handle(self, shared: &Arc<Shared>, from: NodeId) {
        let find = |path: &str| shared.service.objects.lock().get(path).cloned();
        match self {
            Message::Join { opening, theirs } => {
                let Some(object) = shared.find_or_note(from, opening, &theirs).or_else(|| {
                    let is_called = shared.service.is_called(|| Call::new(shared, from, opening, theirs.clone()));
                    is_called.then(|| find(&theirs.path)).flatten()
                }) else {
                    return;
                };
                let is_late = shared.service.openings.lock().is_late(&theirs.path, from, opening);
                if is_late || !object.check(shared, from, opening, &theirs) {
                    return;
                }
                {
                    // Record this first: the peer uses the memory announced to it until it reports the contrary.
                    let mut openings = shared.service.openings.lock();
                    if !openings.uses(object.opening, from, opening) || !openings.tells(object.opening, from) {
                        return;
                    }
                }
                let own = object.announcement(shared, from);
                Message::Connect { answers: opening, opening: object.opening, theirs: own }.send(shared, from);
                object.connect(from, opening, theirs, true);
                object.take_in_those_that_wait(shared);
            }
            Message::Connect { answers, opening, theirs } => {
                let Some(object) = find(&theirs.path) else { return };
                if answers == object.opening
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

impl Shared {
    /// The open object that a join is for. If there is none, the join is noted: at the same time as that is seen, since
    /// a thread that opens the object then has to find it.
    fn find_or_note(&self, from: NodeId, opening: u64, theirs: &ObjectDescriptor) -> Option<Arc<OpenObject>> {
        let objects = self.service.objects.lock();
        let found = objects.get(&theirs.path).cloned();
        if found.is_none() {
            let has_returned = from.index() >= self.fabric.places();
            if has_returned && self.service.reopenings.is_past(&theirs.path) {
                drop(objects);
                leave_outside(self, from, opening, theirs.path.clone(), REOPENED.into());
            } else {
                self.service.openings.lock().calls(from, opening, theirs.clone());
            }
        }
        found
    }
}
