//! Turns of callers that gave up waiting: the service thread passes them on.

use super::state::State;
use farfield_fabric::{Endpoint, RemotePtr};

use super::MutexArray;
use crate::node::{Hold, Poller, Progress};

/// A place in the queue. If it is dropped, the service thread takes it over and passes the turn on.
pub(super) struct Ticket<'a> {
    pub(super) locks: &'a MutexArray,
    pub(super) word: RemotePtr<u64>,
    pub(super) number: Option<u64>,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let object = &self.locks.object;
            object.node().add_poller(Box::new(Abandoned { word: self.word, number, _open: object.hold() }));
        }
    }
}

/// The ticket of an operation that was dropped.
struct Abandoned {
    word: RemotePtr<u64>,
    number: u64,
    _open: Hold,
}

impl Poller for Abandoned {
    fn must_finish_before_leave(&self) -> bool {
        true
    }

    fn poll(&mut self, endpoint: &Endpoint) -> Progress {
        // A round trip each: this is short, and ends with an error at the latest when the home node dies.
        let found = match endpoint.get(self.word).wait() {
            Ok(found) => found,
            Err(error) if error.is_refused() => return Progress::Retry,
            Err(_) => return Progress::Done,
        };
        if State(found).is_past(self.number) {
            return Progress::Done; // passed over already
        }
        // It is not its turn yet, and the word is perhaps on another node.
        let Some(taken) = State(found).taken_by_ticket(self.number, 1) else { return Progress::Retry };
        match endpoint.cas(self.word, found, taken.freed().0).wait() {
            Ok(old) if old != found => Progress::Busy,
            Err(error) if error.is_refused() => Progress::Retry,
            _ => Progress::Done,
        }
    }
}
