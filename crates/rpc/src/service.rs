//! Requests that the service thread handles.

use core::marker::PhantomData;
use std::sync::Arc;

use farfield_core::toolkit::{Poller, Progress};
use farfield_core::{Endpoint, Value};
use farfield_fabric::NodeId;

use crate::server::Core;

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
        let served = self.core.serve_all::<Req, Rep>(endpoint, &mut self.handler);
        if served.handled > 0 || served.has_answered {
            Progress::Busy
        } else if served.is_refused && !endpoint.fabric().is_fenced() {
            Progress::Retry
        } else {
            Progress::Idle
        }
    }
}
