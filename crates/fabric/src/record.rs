//! A decorator that records the posted operations, for tests and for counting.

use std::sync::Arc;

use crate::decorate::decorate;
use crate::error::Code;
use crate::fabric::Transport;
use crate::lane::{Lane, Status, Verb, WorkRequest};
use crate::local::LocalMutex;
use crate::pool::BufferMemory;
use crate::ptr::{NodeId, RemotePtr};

/// One posted operation.
///
/// ```
/// use farfield_fabric::{Verb, record::Posted};
/// fn bytes_put(posts: &[Posted]) -> usize {
///     posts.iter().filter(|post| post.verb == Verb::Put).map(|post| post.len).sum()
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Posted {
    /// What.
    pub verb: Verb,
    /// Where.
    pub remote: RemotePtr<u8>,
    /// How many bytes.
    pub len: usize,
}

/// The operations that the endpoints of a recording fabric have posted, in the order of their posts.
///
/// ```
/// # use farfield_fabric::{*, record::{Record, record}};
/// /// A thread's endpoint, and what it posts.
/// fn open(fabric: std::sync::Arc<dyn Transport>) -> Result<(Endpoint, Record)> {
///     let posted = Record::default();
///     Ok((Endpoint::open(record(fabric, posted.clone()), EndpointOptions::default())?, posted))
/// }
/// ```
#[derive(Clone, Default)]
pub struct Record(Arc<LocalMutex<Vec<Posted>>>);

impl Record {
    /// Takes the record so far.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(ep: &Endpoint, posted: &record::Record, word: RemotePtr<u64>) -> Result<()> {
    /// posted.take(); // forgets what was posted before
    /// ep.get(word).wait()?;
    /// assert_eq!(posted.take().len(), 1);
    /// # Ok(()) }
    /// ```
    pub fn take(&self) -> Vec<Posted> {
        std::mem::take(&mut self.0.lock())
    }
}

/// A fabric that records into `record` what its endpoints post.
///
/// ```
/// # use farfield_fabric::{shm::*, *, record::{Record, record}};
/// # use std::sync::{Arc, mpsc};
/// # fn main() -> Result<()> {
/// # let node = ShmFabric::join(&ShmOptions::new(format!("doc-record-{}", std::process::id()), 0, 1))?;
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
/// let posted = Record::default();
/// let ep = Endpoint::open(record(node, posted.clone()), EndpointOptions::default())?;
/// ep.put_value(word, 42).wait()?;
/// assert_eq!(posted.take()[0].verb, Verb::Put);
/// # drop((ep, end));
/// # service.join().expect("the service thread does not panic");
/// # Ok(()) }
/// ```
pub fn record(inner: Arc<dyn Transport>, record: Record) -> Arc<dyn Transport> {
    let wrap = move |inner| Box::new(RecordLane { inner, record: record.clone() }) as Box<dyn Lane>;
    decorate(inner, "record", Box::new(wrap))
}

struct RecordLane {
    inner: Box<dyn Lane>,
    record: Record,
}

impl crate::lane::sealed::Sealed for RecordLane {}

impl Lane for RecordLane {
    fn check(&mut self, request: &WorkRequest) -> Result<(), Code> {
        self.inner.check(request)
    }

    fn store(&self) -> Option<Arc<dyn BufferMemory>> {
        self.inner.store()
    }

    fn post(&mut self, request: WorkRequest) -> u64 {
        let WorkRequest { verb, remote, len, .. } = request;
        self.record.0.lock().push(Posted { verb, remote, len });
        self.inner.post(request)
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
        self.inner.taken(peer, sequence, others_wait);
    }

    fn status(&self, peer: NodeId, sequence: u64) -> Status {
        self.inner.status(peer, sequence)
    }
}
