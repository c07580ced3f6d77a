//! A decorator that makes operations fail on command, for tests of what objects do then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::decorate::decorate;
use crate::error::Code;
use crate::fabric::Fabric;
use crate::lane::{Completions, DynLane, Status, WorkRequest};
use crate::ptr::NodeId;

/// Which operations of a faulty fabric fail.
///
/// ```
/// let faults = farfield_fabric::fault::Faults::default();
/// faults.cut(farfield_fabric::NodeId(1), true); // operations to node 1 fail …
/// faults.cut(farfield_fabric::NodeId(1), false); // … until now
/// faults.fail_after(10); // the eleventh operation from now fails, once
/// ```
#[derive(Clone, Default)]
pub struct Faults(Arc<State>);

struct State {
    cut: [AtomicBool; 64],
    /// Operations until the next injected failure; `u64::MAX` for none.
    countdown: AtomicU64,
}

impl Default for State {
    fn default() -> State {
        State { cut: [const { AtomicBool::new(false) }; 64], countdown: AtomicU64::new(u64::MAX) }
    }
}

impl Faults {
    /// Makes operations to a node (of the first 64) fail from now on, or work again. They have no effect there.
    pub fn cut(&self, node: NodeId, cut: bool) {
        if let Some(flag) = self.0.cut.get(node.index()) {
            flag.store(cut, Ordering::SeqCst);
        }
    }

    /// Makes one operation fail after `operations` more have been posted by any endpoint.
    pub fn fail_after(&self, operations: u64) {
        self.0.countdown.store(operations, Ordering::SeqCst);
    }

    fn strikes(&self, peer: NodeId) -> bool {
        let due = |count: u64| match count {
            u64::MAX => None,
            0 => Some(u64::MAX),
            count => Some(count - 1),
        };
        let before = self.0.countdown.fetch_update(Ordering::SeqCst, Ordering::SeqCst, due);
        before == Ok(0) || self.is_cut(peer)
    }

    fn is_cut(&self, peer: NodeId) -> bool {
        self.0.cut.get(peer.index()).is_some_and(|flag| flag.load(Ordering::SeqCst))
    }
}

/// A fabric whose operations fail as `faults` says.
pub fn inject(inner: Arc<dyn Fabric>, faults: Faults) -> Arc<dyn Fabric> {
    let wrap = move |inner| {
        let (faults, waiting, completions) = (faults.clone(), Vec::new(), Completions::default());
        Box::new(FaultLane { inner, faults, waiting, completions }) as Box<dyn DynLane>
    };
    decorate(inner, "fault", Box::new(wrap))
}

struct FaultLane {
    inner: Box<dyn DynLane>,
    faults: Faults,
    /// Operations not complete yet, oldest first: peer, our number, and the inner number or the injected failure.
    waiting: Vec<(NodeId, u64, Option<u64>)>,
    completions: Completions,
}

impl crate::lane::sealed::Sealed for FaultLane {}

impl DynLane for FaultLane {
    fn check(&mut self, request: &WorkRequest) -> Result<(), Code> {
        if self.faults.is_cut(request.peer()) {
            return Err(Code::Injected);
        }
        self.inner.check(request)
    }

    fn post(&mut self, request: WorkRequest) -> u64 {
        let peer = request.peer();
        let sequence = self.completions.post(peer);
        let inner = if self.faults.strikes(peer) { None } else { Some(self.inner.post(request)) };
        self.waiting.push((peer, sequence, inner));
        sequence
    }

    fn hold(&mut self, peer: NodeId) {
        self.inner.hold(peer);
    }

    fn doorbell(&mut self, peer: NodeId) {
        self.inner.doorbell(peer);
    }

    fn ring(&mut self) {
        self.inner.ring();
    }

    fn has_backlog(&self) -> bool {
        self.inner.has_backlog()
    }

    fn poll(&mut self) {
        self.inner.poll();
        let mut blocked = Vec::new();
        self.waiting.retain(|&(peer, sequence, inner)| {
            let result = match inner.map(|inner| self.inner.status(peer, inner)) {
                Some(Status::Pending) => None,
                Some(Status::Done) => Some(Ok(())),
                Some(Status::Failed(code)) => Some(Err(code)),
                None => Some(Err(Code::Injected)),
            };
            match result {
                // Completions stay in order for each peer.
                Some(result) if !blocked.contains(&peer) => {
                    self.completions.complete(peer, sequence, result);
                    false
                }
                _ => {
                    blocked.push(peer);
                    true
                }
            }
        });
    }

    fn taken(&mut self, peer: NodeId, sequence: u64) {
        self.inner.taken(peer, sequence);
    }

    fn status(&self, peer: NodeId, sequence: u64) -> Status {
        self.completions.status(peer, sequence)
    }
}
