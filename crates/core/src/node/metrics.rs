//! The counters of a node.

#[cfg(feature = "prometheus")]
mod http;
#[cfg(feature = "prometheus")]
mod prometheus;

use std::collections::BTreeMap;

use farfield_fabric::{CallCounts, Counts, NodeId, PeerState};

#[cfg(feature = "prometheus")]
pub use self::http::MetricsServer;
#[cfg(feature = "prometheus")]
pub(super) use self::http::Servers;
use super::Node;

/// Counters of a node's operations and resources, and its view of its peers.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// let node = farfield::Node::builder().session("doc-metrics").latencies(true).start()?;
/// let sum = farfield::AtomicVar::open(&node, "sum", node.id())?;
/// let ep = node.endpoint()?;
/// ep.block_on(sum.fetch_add(&ep, 1))?;
/// let metrics = node.metrics();
/// assert_eq!(metrics.counts.atomics, 1);
/// assert_eq!((metrics.objects[0].path.as_str(), metrics.objects[0].kind), ("sum", "AtomicVar"));
/// let add = metrics.call("sum", "fetch_add").unwrap(); // since the node measures its calls
/// println!("{} calls, half of them within {:?}", add.latencies.count(), add.latencies.quantile(0.5));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Metrics {
    /// The node.
    pub node: NodeId,
    /// Operations of all endpoints that the node has opened, including the service thread's.
    pub counts: Counts,
    /// Endpoints opened so far.
    pub endpoints: usize,
    /// Queue pairs of an RDMA device: those of this node's endpoints, one of the service thread's included, and those
    /// by which endpoints reach it. An endpoint has one to each other node. It has one to its own node if it has used
    /// it by operations.
    pub queue_pairs: (usize, usize),
    /// The open objects, and those with measured calls, in the order of their paths.
    pub objects: Vec<ObjectMetrics>,
    /// Bytes of this node's memory in use: by objects, including closed ones that other nodes still have open, and by
    /// [`Node::alloc`] until they are freed.
    pub memory_bytes: u64,
    /// The state of each node of the session, as this one sees it.
    pub peers: Vec<(NodeId, PeerState)>,
}

/// An object in [`Metrics`].
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// # let node = farfield::Node::builder().start()?;
/// let locks = farfield::MutexArray::open(&node, "stripes", 64)?;
/// let metrics = node.metrics();
/// let stripes = &metrics.objects[0];
/// assert!(stripes.is_open && stripes.memory_bytes == 64 * 64); // a cache line for each lock
/// assert!(stripes.calls.is_empty()); // the node does not measure calls
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ObjectMetrics {
    /// Its path.
    pub path: String,
    /// Its kind, such as `KvStore`.
    pub kind: &'static str,
    /// Whether it is open on this node.
    pub is_open: bool,
    /// Bytes of this node's memory that it uses.
    pub memory_bytes: u64,
    /// The calls that were made on this node, each with its name, if the node measures them
    /// ([`Builder::latencies`](crate::Builder::latencies)). Calls with dropped futures are not among them.
    pub calls: Vec<(&'static str, CallCounts)>,
}

impl Metrics {
    /// The measurements of a call of the object at a path. None if it was never made, or the node does not measure
    /// calls.
    ///
    /// ```
    /// # let node = farfield::Node::builder().latencies(true).start()?; let ep = node.endpoint()?;
    /// let mutex = farfield::Mutex::open(&node, "account", node.id())?;
    /// drop(ep.block_on(mutex.lock(&ep))?);
    /// let metrics = node.metrics();
    /// assert_eq!(metrics.call("account", "lock").unwrap().latencies.count(), 1);
    /// assert!(metrics.call("account", "try_lock").is_none());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn call(&self, path: &str, name: &str) -> Option<&CallCounts> {
        let of_path = self.objects.iter().filter(|object| object.path == path);
        of_path.flat_map(|object| &object.calls).find(|call| call.0 == name).map(|call| &call.1)
    }

    /// The paths of the open objects, in order.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?;
    /// let mutex = farfield::Mutex::open(&node, "account", node.id())?;
    /// assert_eq!(node.metrics().open_paths(), ["account"]);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn open_paths(&self) -> Vec<&str> {
        self.objects.iter().filter(|object| object.is_open).map(|object| object.path.as_str()).collect()
    }
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
        let mut objects: BTreeMap<(String, &'static str), ObjectMetrics> = BTreeMap::new();
        for (path, kind, memory_bytes) in shared.service.open_objects() {
            let object = ObjectMetrics { path: path.clone(), kind, is_open: true, memory_bytes, calls: Vec::new() };
            objects.insert((path, kind), object);
        }
        if shared.config.latencies {
            for (path, kind, calls) in shared.numbers.lock().read() {
                let object = objects.entry((path.into(), kind)).or_insert_with(|| ObjectMetrics {
                    path: path.into(),
                    kind,
                    is_open: false,
                    memory_bytes: 0,
                    calls: Vec::new(),
                });
                object.calls = calls;
            }
        }
        let endpoints = shared.endpoints.lock();
        Metrics {
            node: self.id(),
            counts: endpoints.open.iter().fold(endpoints.closed, |sum, reader| sum + reader.read()),
            endpoints: endpoints.opened,
            queue_pairs: shared.fabric.queue_pairs(),
            objects: objects.into_values().collect(),
            memory_bytes: shared.memory_bytes.load(),
            peers: self.members().map(|node| (node, self.state_of(node))).collect(),
        }
    }
}
