//! Requests that the service thread handles, and its words to clients: that the server knows them, and that it is
//! closed.

use core::marker::PhantomData;
use std::sync::Arc;

use farfield_core::toolkit::{Poller, Progress};
use farfield_core::{Endpoint, Value};
use farfield_fabric::{self as fabric, NodeId, RemotePtr};

use crate::layout::{CLOSED, KNOWN};
use crate::requests::{Core, Openings};

pub(crate) struct Service<Req, Rep, H> {
    core: Arc<Core>,
    handler: H,
    types: PhantomData<fn(Req) -> Rep>,
}

impl<Req: Value, Rep: Value, H: FnMut(NodeId, Req) -> Rep> Service<Req, Rep, H> {
    pub(crate) fn new(core: Arc<Core>, handler: H) -> Service<Req, Rep, H> {
        Service { core, handler, types: PhantomData }
    }
}

impl<Req: Value, Rep: Value, H: FnMut(NodeId, Req) -> Rep + Send> Poller for Service<Req, Rep, H> {
    fn poll(&mut self, endpoint: &Endpoint) -> Progress {
        if self.core.is_closed() {
            return Progress::Done;
        }
        // The others have evicted this node, and may have another server.
        if endpoint.fabric().is_fenced() {
            return Progress::Idle;
        }
        let served = self.core.serve_all::<Req, Rep>(endpoint, &mut self.handler);
        if served.handled > 0 || served.has_answered {
            Progress::Busy
        } else if served.is_refused {
            Progress::Retry
        } else {
            Progress::Idle
        }
    }
}

/// Puts the word that the server is closed to its clients. Their calls then end with an error that says so. Without it
/// they would time out.
///
/// It is registered when the object is closed. A client that was connected before is known then: that is the service
/// thread's work, too.
pub(crate) struct Closing {
    openings: Arc<Openings>,
    /// None before the first poll.
    left: Option<Vec<u64>>,
}

impl Closing {
    pub(crate) fn new(openings: Arc<Openings>) -> Closing {
        Closing { openings, left: None }
    }
}

impl Poller for Closing {
    fn poll(&mut self, endpoint: &Endpoint) -> Progress {
        let openings = &self.openings;
        let left = self.left.get_or_insert_with(|| openings.all().collect());
        left.retain(|opening| !is_put(endpoint, *opening, CLOSED));
        if left.is_empty() { Progress::Done } else { Progress::Retry }
    }
}

/// Puts the word that the server knows a client, which waits for it when it is opened. So the server reads its requests
/// from the first one on, and closes it.
pub(crate) struct Welcome(pub(crate) u64);

impl Poller for Welcome {
    fn poll(&mut self, endpoint: &Endpoint) -> Progress {
        if is_put(endpoint, self.0, KNOWN) { Progress::Done } else { Progress::Retry }
    }
}

/// Puts a word to a client. False if it has to be put again.
fn is_put(endpoint: &Endpoint, opening: u64, at: usize) -> bool {
    let word = RemotePtr::<u64>::from_packed(opening).byte_add(at as u64);
    // The members decide about a client that does not answer. A dead one needs no word.
    let is_later = |error: fabric::Error| error.is_refused() || error.is_unreachable() && !error.is_gone();
    !endpoint.put_value(word, 1).detach().is_err_and(is_later)
}
