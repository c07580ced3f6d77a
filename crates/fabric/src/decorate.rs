//! Decorators: a fabric with wrapped lanes, which may refuse control messages. Everything else is passed through.

use std::sync::Arc;
use std::time::Duration;

use crate::alarm::Alarm;
use crate::error::{Code, Error, Result};
use crate::fabric::{Bell, ControlEvent, DeathRule, Fabric, PeerState, Region, Transport, Waiting, Words};
use crate::lane::Lane;
use crate::local::{Instant, Thread};
use crate::ptr::{GroupKey, NodeId, RemotePtr};

/// Wraps each lane of a fabric.
type Wrap = Box<dyn Fn(Box<dyn Lane>) -> Box<dyn Lane> + Send + Sync>;

/// Is asked before each control message to a node.
pub(crate) type MaySend = Box<dyn Fn(NodeId) -> Result<()> + Send + Sync>;

/// A fabric with wrapped lanes.
struct Decorated {
    inner: Arc<dyn Transport>,
    label: &'static str,
    wrap: Wrap,
    may_send: MaySend,
}

/// `inner` with its lanes wrapped.
pub(crate) fn decorate(inner: Arc<dyn Transport>, label: &'static str, wrap: Wrap) -> Arc<dyn Transport> {
    decorate_control(inner, label, wrap, Box::new(|_| Ok(())))
}

/// [`decorate`], with control messages that may be refused.
pub(crate) fn decorate_control(
    inner: Arc<dyn Transport>,
    label: &'static str,
    wrap: Wrap,
    may_send: MaySend,
) -> Arc<dyn Transport> {
    Arc::new(Decorated { inner, label, wrap, may_send })
}

impl Fabric for Decorated {
    fn name(&self) -> String {
        format!("{}({})", self.label, self.inner.name())
    }
    fn me(&self) -> NodeId {
        self.inner.me()
    }
    fn places(&self) -> usize {
        self.inner.places()
    }
    fn nodes(&self) -> usize {
        self.inner.nodes()
    }
    fn create_group(&self, bell: Bell) -> Result<GroupKey> {
        self.inner.create_group(bell)
    }
    fn alloc(&self, group: GroupKey, bytes: usize) -> Result<Region> {
        self.inner.alloc(group, bytes)
    }
    fn alloc_words(&self, group: GroupKey, count: usize, pattern: &[u64]) -> Result<Words> {
        self.inner.alloc_words(group, count, pattern)
    }
    fn free(&self, region: Region) -> Result<()> {
        self.inner.free(region)
    }
    fn permit(&self, peer: NodeId, group: GroupKey) -> Result<()> {
        self.inner.permit(peer, group)
    }
    fn start_permit(&self, peer: NodeId, group: GroupKey) -> Result<()> {
        self.inner.start_permit(peer, group)
    }
    fn is_permitted(&self, peer: NodeId, group: GroupKey) -> Result<bool> {
        self.inner.is_permitted(peer, group)
    }
    fn revoke(&self, peer: NodeId, group: GroupKey, timeout: Duration) -> Result<()> {
        self.inner.revoke(peer, group, timeout)
    }
    fn death_rule(&self) -> DeathRule {
        self.inner.death_rule()
    }
    fn is_fenced(&self) -> bool {
        self.inner.is_fenced()
    }
    fn wake_service(&self) {
        self.inner.wake_service();
    }
    fn peer_state(&self, peer: NodeId) -> PeerState {
        self.inner.peer_state(peer)
    }
    fn now(&self) -> Instant {
        self.inner.now()
    }
    fn label(&self, remote: RemotePtr<u8>, bytes: usize, name: core::fmt::Arguments<'_>) {
        self.inner.label(remote, bytes, name);
    }
    fn queue_pairs(&self) -> (usize, usize) {
        self.inner.queue_pairs()
    }
    fn refusals(&self) -> Vec<String> {
        self.inner.refusals()
    }
    fn seed(&self) -> u64 {
        self.inner.seed()
    }
    fn wake_local(&self) {
        self.inner.wake_local();
    }
}

impl Transport for Decorated {
    fn open_lane(&self, background: bool) -> Result<Box<dyn Lane>> {
        Ok((self.wrap)(self.inner.open_lane(background)?))
    }
    fn spawn_service(self: Arc<Self>, name: String, body: Box<dyn FnOnce() + Send>) -> Result<Thread> {
        Arc::clone(&self.inner).spawn_service(name, body)
    }
    fn evict(&self, peer: NodeId, timeout: Duration) -> Result<()> {
        self.inner.evict(peer, timeout)
    }
    fn fence_self(&self) {
        self.inner.fence_self();
    }
    fn send_control(&self, to: NodeId, message: &[u8]) -> Result<()> {
        (self.may_send)(to)?;
        self.inner.send_control(to, message)
    }
    fn serve(&self, timeout: Duration, event: &mut dyn FnMut(ControlEvent)) {
        self.inner.serve(timeout, event);
    }
    fn serve_is_due(&self) -> bool {
        self.inner.serve_is_due()
    }
    fn leave(&self) {
        self.inner.leave();
    }
    fn leave_uncleanly(&self) {
        self.inner.leave_uncleanly();
    }
    fn explain(&self, code: Code, remote: RemotePtr<u8>, len: usize) -> Error {
        self.inner.explain(code, remote, len)
    }
    fn spawn(&self, name: String, body: Box<dyn FnOnce() + Send>) -> Result<Thread> {
        self.inner.spawn(name, body)
    }
    fn wait_begins(&self) {
        self.inner.wait_begins();
    }
    fn wait_ends(&self) {
        self.inner.wait_ends();
    }
    fn is_spin_worthwhile(&self) -> bool {
        self.inner.is_spin_worthwhile()
    }
    fn idle(&self, waiting: &mut Waiting) {
        self.inner.idle(waiting);
    }
    fn idle_end(&self, waiting: &mut Waiting) {
        self.inner.idle_end(waiting);
    }
    fn stay_awake(&self) {
        self.inner.stay_awake();
    }
    fn alarm(&self) -> Option<&Alarm> {
        self.inner.alarm()
    }
}
