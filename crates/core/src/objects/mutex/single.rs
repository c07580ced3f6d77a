//! A single mutex: an array of one, with a chosen home.

use core::future::Future;

use farfield_fabric::{Endpoint, Instant, NodeId};

use super::{Guard, MutexArray};
use crate::error::Result;
use crate::node::Node;

/// One lock, shared by all nodes.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// let node = farfield::Node::builder().session("doc-mutex").start()?;
/// let mutex = farfield::Mutex::open(&node, "bank/lock", node.id())?;
/// let ep = node.endpoint()?;
/// ep.block_on(async {
///     let guard = mutex.lock(&ep).await?;
///     // … work on what it protects …
///     guard.unlock().await
/// })?;
/// # Ok(()) }
/// ```
pub struct Mutex(MutexArray);

impl Mutex {
    /// Opens the lock, with its word on `home`, and waits for all nodes to do so.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// let home = nodes[0].id();
    /// let mutexes = farfield::on_each(&nodes, |node| farfield::Mutex::open(node, "account", home))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A node that is missing, dead or departed, or that opens it differently; no memory.
    pub fn open(node: &Node, path: &str, home: NodeId) -> Result<Mutex> {
        MutexArray::open_on(node, path, 1, 1, vec![home], node.members_for(path), node.is_reopening(path)).map(Mutex)
    }

    /// Takes the lock, waiting as long as the endpoint's timeout.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().session("doc-objects-mutex-17").start()?;
    /// # let ep = node.endpoint()?;
    /// # let mutex = farfield::Mutex::open(&node, "account", node.id())?;
    /// let guard = ep.block_on(mutex.lock(&ep))?;
    /// // … work on what it protects …
    /// ep.block_on(guard.unlock())?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A timeout, or the home node is dead or departed. An error names a holder that is dead and not evicted in time,
    /// or that has left.
    pub fn lock<'a>(&'a self, endpoint: &'a Endpoint) -> impl Future<Output = Result<Guard<'a>>> {
        self.0.lock(endpoint, 0)
    }

    /// [`Mutex::lock`] with a deadline.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().session("doc-objects-mutex-18").start()?;
    /// # let ep = node.endpoint()?;
    /// # let mutex = farfield::Mutex::open(&node, "account", node.id())?;
    /// let held = ep.block_on(mutex.lock(&ep))?;
    /// let deadline = ep.now() + std::time::Duration::from_millis(10);
    /// let error = ep.block_on(mutex.lock_deadline(&ep, deadline)).map(|_| ()).unwrap_err();
    /// assert!(error.is_timeout()); // and the mutex can be taken by others as before
    /// ep.block_on(held.unlock())?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As `lock`.
    pub fn lock_deadline<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        deadline: Instant,
    ) -> impl Future<Output = Result<Guard<'a>>> {
        self.0.lock_deadline(endpoint, 0, deadline)
    }

    /// Takes the lock if it is available without waiting.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().session("doc-objects-mutex-19").start()?;
    /// # let ep = node.endpoint()?;
    /// # let mutex = farfield::Mutex::open(&node, "account", node.id())?;
    /// let held = ep.block_on(mutex.lock(&ep))?;
    /// assert!(ep.block_on(mutex.try_lock(&ep))?.is_none());
    /// ep.block_on(held.unlock())?;
    /// assert!(ep.block_on(mutex.try_lock(&ep))?.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The home node is dead or departed.
    pub async fn try_lock<'a>(&'a self, endpoint: &'a Endpoint) -> Result<Option<Guard<'a>>> {
        self.0.try_lock(endpoint, 0).await
    }
}
