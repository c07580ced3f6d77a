//! A single ALock: an array of one, with a chosen home.

use farfield_fabric::{Endpoint, Instant, NodeId};

use super::{ALockArray, ALockGuard, ALockOptions};
use crate::LockArray;
use farfield_core::{Node, Result};

/// One ALock, shared by all nodes.
///
/// ```
/// use farfield::{ALock, LockGuard};
/// # fn main() -> farfield::Result<()> {
/// let node = farfield::Node::builder().session("doc-alock").start()?;
/// let lock = ALock::open(&node, "bank/lock", node.id())?;
/// let ep = node.endpoint()?;
/// ep.block_on(async {
///     let guard = lock.lock(&ep).await?;
///     // … work on what it protects …
///     guard.unlock().await
/// })?;
/// # Ok(()) }
/// ```
pub struct ALock(ALockArray);

impl ALock {
    /// Opens the lock with the home `home`, and waits for all nodes to do so.
    ///
    /// ```
    /// # use farfield::ALock;
    /// # let node = farfield::Node::builder().start()?;
    /// let lock = ALock::open(&node, "lock", node.id())?; // its words are on this node
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A node is missing, unreachable, or opens it differently; or memory is exhausted.
    pub fn open(node: &Node, path: &str, home: NodeId) -> Result<ALock> {
        ALock::open_with(node, path, home, ALockOptions::default())
    }

    /// [`ALock::open`] with options.
    ///
    /// ```
    /// # use farfield::{ALock, ALockOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// let lock = ALock::open_with(&node, "lock", node.id(), ALockOptions::default())?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `open`; or the options are invalid.
    pub fn open_with(node: &Node, path: &str, home: NodeId, options: ALockOptions) -> Result<ALock> {
        ALockArray::open_on(node, path, 1, vec![home], node.members_for(path), options).map(ALock)
    }

    /// Takes the lock, waiting as long as the endpoint's timeout.
    ///
    /// ```
    /// # use farfield::ALock;
    /// # let node = farfield::Node::builder().start()?;
    /// # let lock = ALock::open(&node, "lock", node.id())?;
    /// # let ep = node.endpoint()?;
    /// ep.block_on(async {
    ///     let guard = lock.lock(&ep).await?;
    ///     guard.unlock().await
    /// })?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A timeout, or the home node is unreachable.
    pub async fn lock<'a>(&'a self, endpoint: &'a Endpoint) -> Result<ALockGuard<'a>> {
        self.0.lock(endpoint, 0).await
    }

    /// [`ALock::lock`], which it waits for on this thread.
    ///
    /// ```
    /// # use farfield::ALock;
    /// # let node = farfield::Node::builder().start()?;
    /// # let lock = ALock::open(&node, "lock", node.id())?;
    /// # let ep = node.endpoint()?;
    /// let guard = lock.lock_blocking(&ep)?;
    /// drop(guard); // releases it
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `lock`.
    pub fn lock_blocking<'a>(&'a self, endpoint: &'a Endpoint) -> Result<ALockGuard<'a>> {
        endpoint.block_on(self.lock(endpoint))
    }

    /// [`ALock::lock`] with a deadline.
    ///
    /// ```
    /// # use farfield::ALock;
    /// # let node = farfield::Node::builder().start()?;
    /// # let lock = ALock::open(&node, "lock", node.id())?;
    /// # let ep = node.endpoint()?;
    /// let soon = ep.now() + std::time::Duration::from_millis(5);
    /// let holds = lock.lock_blocking(&ep)?;
    /// assert!(ep.block_on(lock.lock_deadline(&ep, soon)).err().unwrap().is_timeout());
    /// # drop(holds); Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `lock`.
    pub async fn lock_deadline<'a>(&'a self, endpoint: &'a Endpoint, deadline: Instant) -> Result<ALockGuard<'a>> {
        self.0.lock_deadline(endpoint, 0, deadline).await
    }

    /// Takes the lock if that is possible without waiting for another operation.
    ///
    /// ```
    /// # let node = farfield::Node::builder().session("doc-alock-try").start()?;
    /// # let (lock, ep) = (farfield::ALock::open(&node, "lock", node.id())?, node.endpoint()?);
    /// let held = lock.lock_blocking(&ep)?;
    /// assert_eq!(held.budget(), 5); // on the lock's home: the local budget
    /// assert!(ep.block_on(lock.try_lock(&ep))?.is_none()); // another operation has the lock
    /// # drop(held);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The home node is unreachable.
    pub async fn try_lock<'a>(&'a self, endpoint: &'a Endpoint) -> Result<Option<ALockGuard<'a>>> {
        self.0.try_lock(endpoint, 0).await
    }
}
