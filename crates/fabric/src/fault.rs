//! A decorator that makes operations and control messages fail on command, for tests of what objects do then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::decorate::decorate_control;
use crate::error::{Code, ErrorKind};
use crate::fabric::Transport;
use crate::lane::{Lane, Status, WorkRequest};
use crate::pool::BufferMemory;
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
    /// The injected failures: how many are in a row, in the upper half, after how many operations, in the lower.
    plan: AtomicU64,
    /// How many control messages are refused from now on.
    messages: AtomicU32,
}

/// No failure is injected.
const NONE: u64 = u64::MAX;
/// The lower half of a plan.
const AFTER_MAX: u64 = u32::MAX as u64;

impl Default for State {
    fn default() -> State {
        State { cut: [const { AtomicBool::new(false) }; 64], plan: AtomicU64::new(NONE), messages: AtomicU32::new(0) }
    }
}

impl Faults {
    /// Makes operations to a node (of the first 64) fail from now on, or work again. They have no effect there.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(ep: &Endpoint, faults: &fault::Faults, word: RemotePtr<u64>) {
    /// faults.cut(word.node(), true);
    /// assert!(ep.get(word).wait().is_err());
    /// faults.cut(word.node(), false);
    /// # }
    /// ```
    pub fn cut(&self, node: NodeId, cut: bool) {
        if let Some(flag) = self.0.cut.get(node.index()) {
            flag.store(cut, Ordering::SeqCst);
        }
    }

    /// Makes one operation fail after `operations` more have been posted by any endpoint; none for `u64::MAX`.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(ep: &Endpoint, faults: &fault::Faults, word: RemotePtr<u64>) {
    /// faults.fail_after(1);
    /// assert!(ep.put_value(word, 1).wait().is_ok());
    /// assert!(ep.put_value(word, 2).wait().is_err());
    /// # }
    /// ```
    pub fn fail_after(&self, operations: u64) {
        self.fail_some(operations, 1);
    }

    /// Makes `count` operations in a row fail after `operations` more have been posted by any endpoint.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(ep: &Endpoint, faults: &fault::Faults, word: RemotePtr<u64>) {
    /// faults.fail_some(0, 2);
    /// let refused = (0..3).filter(|_| ep.put_value(word, 1).wait().is_err());
    /// assert_eq!(refused.count(), 2);
    /// # }
    /// ```
    pub fn fail_some(&self, operations: u64, count: u32) {
        let operations = operations.min(AFTER_MAX);
        let plan = if operations == AFTER_MAX || count == 0 { NONE } else { u64::from(count) << 32 | operations };
        self.0.plan.store(plan, Ordering::SeqCst);
    }

    /// Makes the next `count` control messages of the node fail, as if the queue of the other node were full.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(fabric: &dyn Transport, faults: &fault::Faults, to: NodeId) {
    /// faults.refuse_messages(1);
    /// assert!(fabric.send_control(to, b"first").is_err());
    /// assert!(fabric.send_control(to, b"second").is_ok());
    /// # }
    /// ```
    pub fn refuse_messages(&self, count: u32) {
        self.0.messages.store(count, Ordering::SeqCst);
    }

    fn refuses_message(&self) -> bool {
        let less = |count: u32| count.checked_sub(1);
        self.0.messages.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok()
    }

    fn strikes(&self, peer: NodeId) -> bool {
        let due = |plan: u64| match (plan >> 32, plan & AFTER_MAX) {
            _ if plan == NONE => None,
            (1, 0) => Some(NONE),
            (count, 0) => Some((count - 1) << 32),
            _ => Some(plan - 1),
        };
        let before = self.0.plan.fetch_update(Ordering::SeqCst, Ordering::SeqCst, due);
        before.is_ok_and(|plan| plan & AFTER_MAX == 0) || self.is_cut(peer)
    }

    fn is_cut(&self, peer: NodeId) -> bool {
        self.0.cut.get(peer.index()).is_some_and(|flag| flag.load(Ordering::SeqCst))
    }
}

/// A fabric that fails operations and control messages as `faults` says. Operations are refused at posting, as [`Lane`]
/// describes. It is the outermost decorator: the others count each accepted operation as posted.
///
/// ```
/// # use farfield_fabric::{shm::*, *, fault::{Faults, inject}};
/// # use std::sync::{Arc, mpsc};
/// # fn main() -> Result<()> {
/// # let node = ShmFabric::join(&ShmOptions::new(format!("doc-inject-{}", std::process::id()), 0, 1))?;
/// # let (end, ends) = mpsc::channel::<()>();
/// # let serving = Arc::clone(&node);
/// # let serve = move || {
/// #     while ends.try_recv() == Err(mpsc::TryRecvError::Empty) {
/// #         serving.serve(std::time::Duration::from_millis(1), &mut |_| {});
/// #     }
/// #     serving.leave();
/// # };
/// # let service = Arc::clone(&node).spawn_service("service".into(), Box::new(serve))?;
/// let word = node.alloc(GroupKey::DATA, 8)?.remote::<u64>(0);
/// let faults = Faults::default();
/// let ep = Endpoint::open(inject(node, faults.clone()), EndpointOptions::default())?;
/// faults.fail_after(0);
/// assert!(ep.put_value(word, 42).wait().is_err_and(|error| error.is_refused()));
/// assert_eq!(ep.get(word).wait()?, 0); // the put has had no effect
/// # drop((ep, end));
/// # service.join().expect("the service thread does not panic");
/// # Ok(()) }
/// ```
pub fn inject(inner: Arc<dyn Transport>, faults: Faults) -> Arc<dyn Transport> {
    let of_lanes = faults.clone();
    let wrap = move |inner| {
        let (faults, peers) = (of_lanes.clone(), Vec::new());
        Box::new(FaultLane { inner, faults, peers }) as Box<dyn Lane>
    };
    let may_send = move |node| {
        if !faults.refuses_message() {
            return Ok(());
        }
        Err(ErrorKind::Control { node, why: "it takes no messages (injected)".into() }.into())
    };
    decorate_control(inner, "fault", Box::new(wrap), Box::new(may_send))
}

struct FaultLane {
    inner: Box<dyn Lane>,
    faults: Faults,
    /// By number of node.
    peers: Vec<Peer>,
}

#[derive(Default)]
struct Peer {
    posted: u64,
    /// The numbers of those that were made to fail, in order.
    injected: Vec<u64>,
}

impl Peer {
    /// The number that the inner lane has given to one; none if it was made to fail.
    fn inner(&self, sequence: u64) -> Option<u64> {
        let before = self.injected.binary_search(&sequence).err()?;
        Some(sequence - before as u64)
    }
}

impl crate::lane::sealed::Sealed for FaultLane {}

impl Lane for FaultLane {
    fn check(&mut self, request: &WorkRequest) -> Result<(), Code> {
        if self.faults.is_cut(request.peer()) {
            return Err(Code::Injected);
        }
        self.inner.check(request)
    }

    fn store(&self) -> Option<Arc<dyn BufferMemory>> {
        self.inner.store()
    }

    fn post(&mut self, request: WorkRequest) -> u64 {
        let node = request.peer();
        let fails = self.faults.strikes(node);
        if self.peers.len() <= node.index() {
            self.peers.resize_with(node.index() + 1, Peer::default);
        }
        let peer = &mut self.peers[node.index()];
        peer.posted += 1;
        if fails {
            peer.injected.push(peer.posted);
        } else {
            self.inner.post(request);
        }
        peer.posted
    }

    fn hold(&mut self, peer: NodeId) {
        self.inner.hold(peer);
    }

    fn doorbell(&mut self, peer: NodeId) {
        self.inner.doorbell(peer);
    }

    fn hold_all(&mut self) -> bool {
        self.inner.hold_all()
    }

    fn release_all(&mut self) {
        self.inner.release_all();
    }

    fn ring(&mut self) {
        self.inner.ring();
    }

    fn has_backlog(&self) -> bool {
        self.inner.has_backlog()
    }

    fn poll(&mut self) {
        self.inner.poll();
    }

    fn taken(&mut self, peer: NodeId, sequence: u64, others_wait: bool) {
        if let Some(inner) = self.peers.get(peer.index()).and_then(|peer| peer.inner(sequence)) {
            self.inner.taken(peer, inner, others_wait);
        }
    }

    fn status(&self, peer: NodeId, sequence: u64) -> Status {
        match self.peers.get(peer.index()) {
            Some(own) => {
                own.inner(sequence).map_or(Status::Failed(Code::Injected), |inner| self.inner.status(peer, inner))
            }
            None => Status::Pending,
        }
    }
}
