//! A mutual exclusion lock that outlives any minority of its nodes.

use std::sync::Arc;

use farfield_core::{Endpoint, Node, Result};
use farfield_fabric::NodeId;

use crate::turns::{Held, Turns};

/// A mutual exclusion lock with its state in a replicated log: no node is its home, and it works while a majority of
/// its nodes lives.
///
/// The service threads order the calls in a [`ReplicatedLog`](crate::ReplicatedLog): each lock and each unlock is an
/// entry. A call on another node than the log's leader is put there. Waiting calls hold in the order of their entries.
///
/// *The holder's death.* Once none of the holder's operations can land any more, the leader proposes the release of all
/// that it holds or waits for. The data under the lock may be in the middle of a change: a holder checks it if its
/// token is not the last one + 1.
///
/// *A node that comes back* at the place of one that has gone opens the lock again, by `open`, while the others go on.
/// It gets the state of the lock from the log, and counts for majorities from then on.
///
/// *Costs.* Uncontended, `lock` takes one round trip of the log's leader, and a put to it elsewhere. `unlock` the same.
///
/// ```
/// use farfield_mu::ReplicatedMutex;
/// let nodes = farfield::local_session(3)?;
/// let locks = farfield::on_each(&nodes, |node| ReplicatedMutex::open(node, "lock"))?;
/// let ep = nodes[2].endpoint()?;
/// let guard = ep.block_on(locks[2].lock(&ep))?;
/// println!("holder number {}", guard.token());
/// ep.block_on(guard.unlock(&ep))?;
/// # Ok::<(), farfield::Error>(())
/// ```
#[derive(Clone)]
pub struct ReplicatedMutex(pub(crate) Arc<Turns>);

impl ReplicatedMutex {
    /// Opens the lock on all live members of the session, and waits for them to do so.
    ///
    /// ```
    /// # use farfield_mu::ReplicatedMutex;
    /// let node = farfield::Node::builder().start()?;
    /// let lock = ReplicatedMutex::open(&node, "lock")?; // of one node
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A node that is missing, dead or departed, or that opens it differently; no memory.
    pub fn open(node: &Node, path: &str) -> Result<ReplicatedMutex> {
        ReplicatedMutex::open_among(node, path, &node.members_for(path))
    }

    /// [`ReplicatedMutex::open`] on these nodes. Only they open it. Of 2f + 1 nodes f may die.
    ///
    /// ```
    /// # use farfield_mu::ReplicatedMutex;
    /// let node = farfield::Node::builder().start()?;
    /// let lock = ReplicatedMutex::open_among(&node, "lock", &[node.id()])?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for `open`; this node is no participant.
    pub fn open_among(node: &Node, path: &str, participants: &[NodeId]) -> Result<ReplicatedMutex> {
        Turns::open(node, path, participants, "ReplicatedMutex", None).map(|turns| ReplicatedMutex(Arc::new(turns)))
    }

    /// Waits until this call holds the lock. A call that is dropped, or fails, gives back its claim.
    ///
    /// It may return late on a node that was evicted meanwhile, when another one holds already: the token is then lower
    /// than that one's, and no put of this node lands in the session any more.
    ///
    /// ```
    /// # use farfield_mu::ReplicatedMutex;
    /// # let node = farfield::Node::builder().start()?;
    /// # let lock = ReplicatedMutex::open(&node, "lock")?;
    /// # let ep = node.endpoint()?;
    /// let first = ep.block_on(lock.lock(&ep))?;
    /// let token = first.token();
    /// drop(first); // the service thread gives it back
    /// assert!(ep.block_on(lock.lock(&ep))?.token() > token);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A timeout names the holder. [`NoMajority`](crate::NoMajority): too few nodes live. This node is evicted, or the
    /// lock was reopened.
    pub async fn lock(&self, endpoint: &Endpoint) -> Result<ReplicatedGuard> {
        self.0.claim(endpoint, "the replicated lock").await.map(ReplicatedGuard)
    }

    /// The node that holds the lock, as far as this one knows.
    ///
    /// ```
    /// # use farfield_mu::ReplicatedMutex;
    /// # let node = farfield::Node::builder().start()?;
    /// # let lock = ReplicatedMutex::open(&node, "lock")?;
    /// assert_eq!(lock.holder(), None);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn holder(&self) -> Option<NodeId> {
        self.0.holder().map(|(node, _)| node)
    }
}

/// Holds a [`ReplicatedMutex`]. When it is dropped, the service thread gives the lock back.
///
/// ```
/// # use farfield_mu::ReplicatedMutex;
/// # let node = farfield::Node::builder().start()?;
/// # let lock = ReplicatedMutex::open(&node, "lock")?;
/// # let ep = node.endpoint()?;
/// let guard = ep.block_on(lock.lock(&ep))?;
/// ep.block_on(guard.unlock(&ep))?;
/// # Ok::<(), farfield::Error>(())
/// ```
#[must_use = "the lock is given back when the guard is dropped"]
pub struct ReplicatedGuard(Held);

impl ReplicatedGuard {
    /// The fencing token: it is one higher with each holder. A store that refuses a lower token than the last is safe
    /// from a holder that was taken for dead.
    ///
    /// ```
    /// # use farfield_mu::ReplicatedMutex;
    /// # let node = farfield::Node::builder().start()?;
    /// # let lock = ReplicatedMutex::open(&node, "lock")?;
    /// # let ep = node.endpoint()?;
    /// assert_eq!(ep.block_on(lock.lock(&ep))?.token(), 1);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn token(&self) -> u64 {
        self.0.token
    }

    /// Gives the lock back, and waits until that is decided. The puts of this endpoint are visible to the next holder:
    /// it fences all live members first. A guard that is dropped does not.
    ///
    /// ```
    /// # use farfield_mu::ReplicatedMutex;
    /// # let node = farfield::Node::builder().start()?;
    /// # let lock = ReplicatedMutex::open(&node, "lock")?;
    /// # let ep = node.endpoint()?;
    /// let guard = ep.block_on(lock.lock(&ep))?;
    /// ep.block_on(guard.unlock(&ep))?;
    /// assert_eq!(lock.holder(), None);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`ReplicatedMutex::lock`], and those of the fence. The service thread still gives the lock back if that
    /// is possible. After an error of the fence, puts of this endpoint may be visible to the next holder late, as after
    /// a drop.
    pub async fn unlock(self, endpoint: &Endpoint) -> Result<()> {
        let node = self.0.turns.object.node();
        node.fence_all_live_nodes(endpoint, node.members()).await?;
        self.0.release(endpoint, "the release of the replicated lock").await
    }
}
