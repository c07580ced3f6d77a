//! Turns of callers that gave up waiting: the service thread passes them on.

use farfield_fabric::{Endpoint, ErrorKind, RemotePtr};

use super::MutexArray;
use super::state::{STUCK_LONG, State, Watch};
use super::taking::left_by_the_dead;
use crate::node::{Hold, Node, Poller, Progress};

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
            let (node, word) = (object.node().for_service(), self.word);
            let abandoned = Abandoned { node, word, number, watch: None, _open: object.hold() };
            object.node().add_poller(Box::new(abandoned));
        }
    }
}

/// The ticket of an operation that was dropped.
struct Abandoned {
    node: Node,
    word: RemotePtr<u64>,
    number: u64,
    /// Begins with the first look.
    watch: Option<Watch>,
    _open: Hold,
}

impl Poller for Abandoned {
    fn must_finish_before_leave(&self) -> bool {
        true
    }

    fn poll(&mut self, endpoint: &Endpoint) -> Progress {
        // A round trip each: this is short, and ends with an error at the latest when the home node dies.
        let found = match endpoint.get(self.word).wait() {
            Ok(found) => State(found),
            Err(error) if error.is_refused() => return Progress::Retry,
            Err(_) => return Progress::Done,
        };
        if found.is_past(self.number) {
            return Progress::Done; // passed over already
        }
        let (is_ours, next) = match found.taken_by_ticket(self.number, 1) {
            Some(taken) => (true, taken.freed()),
            // It is not its turn yet. If those before it are dead, perhaps no other caller waits that would notice.
            None => match self.after_the_dead(endpoint, found) {
                Before::Lost(next) => (false, next),
                Before::Waits => return Progress::Retry,
                Before::Stays => return Progress::Done,
            },
        };
        match endpoint.cas(self.word, found.0, next.0).wait() {
            Ok(old) if old != found.0 || !is_ours => Progress::Busy,
            Err(error) if error.is_refused() => Progress::Retry,
            _ => Progress::Done,
        }
    }
}

/// What is known of the holder, or the turn, before a ticket.
enum Before {
    /// It may release the lock.
    Waits,
    /// It is dead: the state after it.
    Lost(State),
    /// It has left, and never releases the lock.
    Stays,
}

impl Abandoned {
    /// Whether the holder, or the owner of the turn, is dead or has left, with the lock in this state.
    fn after_the_dead(&mut self, endpoint: &Endpoint, state: State) -> Before {
        let now = endpoint.now();
        let watch = self.watch.get_or_insert_with(|| Watch::begin(state, now));
        watch.sees(state, now);
        let gone = state.holder().and_then(|holder| endpoint.check_alive(holder).err());
        if let Some(left) = left_by_the_dead(&self.node, state, gone.is_some() || watch.is_stuck(now, STUCK_LONG)) {
            return Before::Lost(left);
        }
        let has_left = gone.is_some_and(|error| matches!(error.kind(), ErrorKind::PeerLeft { .. }));
        // It may have released the lock before it left: once more, after its departure is known.
        if has_left && endpoint.get(self.word).wait().is_ok_and(|again| again == state.0) {
            return Before::Stays;
        }
        Before::Waits
    }
}
