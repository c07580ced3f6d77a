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
#[derive(Clone, Default)]
pub struct Record(Arc<LocalMutex<Vec<Posted>>>);

impl Record {
    /// Takes the record so far.
    pub fn take(&self) -> Vec<Posted> {
        std::mem::take(&mut self.0.lock())
    }
}

/// A fabric that records into `record` what its endpoints post.
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

    fn ring(&mut self) {
        self.inner.ring();
    }

    fn has_backlog(&self) -> bool {
        self.inner.has_backlog()
    }

    fn poll(&mut self) {
        self.inner.poll();
    }

    fn taken(&mut self, peer: NodeId, sequence: u64) {
        self.inner.taken(peer, sequence);
    }

    fn status(&self, peer: NodeId, sequence: u64) -> Status {
        self.inner.status(peer, sequence)
    }
}
