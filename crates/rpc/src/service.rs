//! Requests that the service thread handles, and the word that a server is closed.

use core::marker::PhantomData;
use std::sync::Arc;

use farfield_core::toolkit::{Poller, Progress};
use farfield_core::{Endpoint, Value};
use farfield_fabric::{NodeId, RemotePtr};

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

/// Puts the word that the server is closed to its clients, whose calls then end with an error that says so. Without it they would time out.
///
/// It is registered when the object is closed. A client that was connected before is known then: that is the service thread's work, too.
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
        left.retain(|opening| {
            let client = RemotePtr::<u64>::from_packed(*opening);
            let refused = endpoint.put_value(client, 1).detach().err();
            // The members decide about a client that does not answer. A dead one needs no word.
            refused.is_some_and(|error| error.is_refused() || error.is_unreachable() && !error.is_gone())
        });
        if left.is_empty() { Progress::Done } else { Progress::Retry }
    }
}
