//! The counters of a node.

use farfield_fabric::{Counts, NodeId, PeerState};

use super::Node;

/// Counters of a node's operations and resources, and its view of its peers.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// let node = farfield::Node::builder().session("doc-metrics").start()?;
/// let sum = farfield::AtomicVar::open(&node, "sum", node.id())?;
/// let ep = node.endpoint()?;
/// ep.block_on(sum.fetch_add(&ep, 1))?;
/// let metrics = node.metrics();
/// assert_eq!((metrics.counts.atomics, metrics.objects), (1, vec!["sum".to_string()]));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Operations of all endpoints that the node has opened, including the service thread's.
    pub counts: Counts,
    /// Endpoints opened so far.
    pub endpoints: usize,
    /// Queue pairs of an RDMA device: those of this node's endpoints, one of the service thread's included, and those
    /// by which endpoints reach it. An endpoint has one to each other node. It has one to its own node if it has used
    /// it by operations.
    pub queue_pairs: (usize, usize),
    /// The paths of the open objects.
    pub objects: Vec<String>,
    /// Bytes of this node's memory in use: by objects, including closed ones that other nodes still have open, and by
    /// [`Node::alloc`] until they are freed.
    pub memory_bytes: u64,
    /// The state of each node of the session, as this one sees it.
    pub peers: Vec<(NodeId, PeerState)>,
}

impl Node {
    /// Returns the node's counters and its view of its peers.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let node = &nodes[0];
    /// assert!(node.metrics().objects.is_empty()); // nothing is open
    /// # Ok(()) }
    /// ```
    pub fn metrics(&self) -> Metrics {
        let shared = self.shared();
        let endpoints = shared.endpoints.lock();
        Metrics {
            counts: endpoints.open.iter().fold(endpoints.closed, |sum, reader| sum + reader.read()),
            endpoints: endpoints.opened,
            queue_pairs: shared.fabric.queue_pairs(),
            objects: shared.service.object_paths(),
            memory_bytes: shared.memory_bytes.load(),
            peers: self.members().map(|node| (node, self.state_of(node))).collect(),
        }
    }
}
