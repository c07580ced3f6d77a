//! One word on one node that all nodes update by remote atomics.
//!
//! All accesses, those of the home node included, go through the NIC: remote atomics are atomic only among themselves.
//!
//! ```text
//! region `value` on the home node:   0 ┌───────┐
//!                                      │ value │ 8 bytes, zero at first
//!                                      └───────┘
//! ```
//!
//! Over RDMA the word is in the memory of the device, where it has some.
//!
//! | call | round trips | operations |
//! |---|---|---|
//! | `load` | 1 | 1 get |
//! | `fetch_add`, `compare_exchange` | 1 | 1 atomic |
//! | `swap`, `store` | 2, one more for each interference | 1 get, 1 cas each |
//!
//! *When the home dies*, the value is lost, and every call returns an error that names the home. The survivors reopen
//! it ([`Node::reopen`]), and it is zero. A restarted node may open it while the others have it open, and finds its
//! value.
//!
//! Linearizable. Source: LOCO, `atomic_var`.

use core::time::Duration;

use farfield_fabric::{Endpoint, GroupKey, Instant, NodeId, RemotePtr};

use crate::error::{ErrorContext, ErrorKind, Result};
use crate::node::{Node, Object, ObjectBuilder, Regions, current, measured};

/// How often a wait checks whether the variable is being reopened.
const REOPENED_CHECK_EVERY: Duration = Duration::from_millis(20);

/// A word with a home, shared by all nodes.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// let node = farfield::Node::builder().session("doc-atomic").start()?;
/// let hits = farfield::AtomicVar::open(&node, "hits", node.id())?;
/// let ep = node.endpoint()?;
/// ep.block_on(hits.fetch_add(&ep, 2))?;
/// assert_eq!(ep.block_on(hits.load(&ep))?, 2);
/// # Ok(()) }
/// ```
pub struct AtomicVar {
    object: Object,
    word: RemotePtr<u64>,
}

/// Its calls, as they are measured.
const CALLS: [&str; 6] = ["load", "fetch_add", "compare_exchange", "swap", "store", "wait_change"];
const LOAD: usize = 0;
const FETCH_ADD: usize = 1;
const COMPARE_EXCHANGE: usize = 2;
const SWAP: usize = 3;
const STORE: usize = 4;
const WAIT_CHANGE: usize = 5;

impl AtomicVar {
    /// Opens the variable, with its word on `home`, and waits for all nodes to do so.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// let home = nodes[0].id();
    /// let hits = farfield::on_each(&nodes, |node| farfield::AtomicVar::open(node, "hits", home))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A node that is missing, dead or departed, or opens it differently; no memory.
    pub fn open(node: &Node, path: &str, home: NodeId) -> Result<AtomicVar> {
        let mut regions = Regions::new(node);
        if node.id() == home {
            regions.alloc_words("value", GroupKey::DATA, 1, &[]).of(path)?;
        }
        let expect = move |peer| if peer == home { vec![("value".into(), 8)] } else { vec![] };
        let opening = ObjectBuilder::new(node, path, "AtomicVar").layout(&format!("home={}", home.0)).regions(regions);
        let object = opening.calls(&CALLS).require_regions(expect).takes_in_returned().open()?;
        let word = object.remote(home, "value")?;
        Ok(AtomicVar { object, word })
    }

    /// The value.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let (ep, hits) = (node.endpoint()?, farfield::AtomicVar::open(&node, "hits", node.id())?);
    /// assert_eq!(ep.block_on(hits.load(&ep))?, 0); // before the first write
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The home node is dead or has left.
    pub async fn load(&self, endpoint: &Endpoint) -> Result<u64> {
        current!(self.object, endpoint, LOAD, self.load(endpoint));
        endpoint.get(self.word).await.of(self.object.path())
    }

    /// Adds, wrapping; the old value.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let (ep, hits) = (node.endpoint()?, farfield::AtomicVar::open(&node, "hits", node.id())?);
    /// assert_eq!(ep.block_on(hits.fetch_add(&ep, 2))?, 0);
    /// assert_eq!(ep.block_on(hits.fetch_add(&ep, 3))?, 2);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The home node is dead or has left.
    pub async fn fetch_add(&self, endpoint: &Endpoint, addend: u64) -> Result<u64> {
        current!(self.object, endpoint, FETCH_ADD, self.fetch_add(endpoint, addend));
        endpoint.faa(self.word, addend).await.of(self.object.path())
    }

    /// Writes `new` if the value is `expected`; the value found, as `Ok` if it was.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let (ep, hits) = (node.endpoint()?, farfield::AtomicVar::open(&node, "hits", node.id())?);
    /// assert_eq!(ep.block_on(hits.compare_exchange(&ep, 0, 7))?, Ok(0));
    /// assert_eq!(ep.block_on(hits.compare_exchange(&ep, 0, 8))?, Err(7)); // the value stays 7
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The home node is dead or has left.
    pub async fn compare_exchange(
        &self,
        endpoint: &Endpoint,
        expected: u64,
        new: u64,
    ) -> Result<core::result::Result<u64, u64>> {
        current!(self.object, endpoint, COMPARE_EXCHANGE, self.compare_exchange(endpoint, expected, new));
        let found = endpoint.cas(self.word, expected, new).await.of(self.object.path())?;
        Ok(if found == expected { Ok(found) } else { Err(found) })
    }

    /// Writes a value; the old one. A put would be cheaper, but is not atomic with the others' atomics.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let (ep, hits) = (node.endpoint()?, farfield::AtomicVar::open(&node, "hits", node.id())?);
    /// ep.block_on(hits.store(&ep, 5))?;
    /// assert_eq!(ep.block_on(hits.swap(&ep, 0))?, 5);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The home node is dead or has left.
    pub async fn swap(&self, endpoint: &Endpoint, new: u64) -> Result<u64> {
        let meter = self.object.meter();
        measured!(meter, endpoint, SWAP, self.swap(endpoint, new));
        meter.skip(endpoint, LOAD);
        let mut seen = self.load(endpoint).await?;
        loop {
            meter.skip(endpoint, COMPARE_EXCHANGE);
            match self.compare_exchange(endpoint, seen, new).await? {
                Ok(old) => return Ok(old),
                Err(found) => seen = found,
            }
        }
    }

    /// Writes a value.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let (ep, hits) = (node.endpoint()?, farfield::AtomicVar::open(&node, "hits", node.id())?);
    /// ep.block_on(hits.store(&ep, 5))?;
    /// assert_eq!(ep.block_on(hits.load(&ep))?, 5);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The home node is dead or has left.
    pub async fn store(&self, endpoint: &Endpoint, new: u64) -> Result<()> {
        measured!(self.object.meter(), endpoint, STORE, self.store(endpoint, new));
        self.object.meter().skip(endpoint, SWAP);
        self.swap(endpoint, new).await.map(|_| ())
    }

    /// Waits until the value is another than `seen`; it.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let (ep, hits) = (node.endpoint()?, farfield::AtomicVar::open(&node, "hits", node.id())?);
    /// let seen = ep.block_on(hits.load(&ep))?;
    /// # ep.block_on(hits.fetch_add(&ep, 1))?;
    /// // … another node adds 1 …
    /// assert_eq!(ep.block_on(hits.wait_change(&ep, seen, ep.deadline()))?, seen + 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A timeout, the home node is dead or has left, or the variable is reopened.
    pub async fn wait_change(&self, endpoint: &Endpoint, seen: u64, deadline: Instant) -> Result<u64> {
        measured!(self.object.meter(), endpoint, WAIT_CHANGE, self.wait_change(endpoint, seen, deadline));
        let start = endpoint.now();
        loop {
            self.object.check_unasked()?;
            // The wait is in slices, since the variable may be reopened meanwhile.
            let slice = deadline.min(endpoint.now() + REOPENED_CHECK_EVERY);
            match endpoint.wait_remote(self.word, seen, slice).await {
                Err(error) if error.is_timeout() && endpoint.now() < deadline => {}
                Err(error) if error.is_timeout() => {
                    let (what, waited) = ("the value to change".into(), endpoint.now() - start);
                    return Err(ErrorKind::Timeout { what, waited, missing: Vec::new() }).of(self.object.path());
                }
                changed => return changed.of(self.object.path()),
            }
        }
    }
}
