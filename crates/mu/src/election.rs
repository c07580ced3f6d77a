//! The election of a leader with a term and a lease.

use std::sync::Arc;
use std::time::Duration;

use farfield_core::toolkit::ErrorContext;
use farfield_core::{Endpoint, Error, ErrorKind, Node, Result};
use farfield_fabric::NodeId;

use crate::turns::{Held, Turns};

/// Elects one leader among the nodes that campaign, with a term as a fencing token, and a lease.
///
/// The candidates are a queue in a [`ReplicatedLog`](crate::ReplicatedLog), as the waiting calls of a
/// [`ReplicatedMutex`](crate::ReplicatedMutex). The first leads. Its service thread renews the lease by entries of the
/// log.
///
/// *The lease.* The leader counts it from before a renewal was sent, and 1/8 shorter. The log's leader ends it when it
/// has learnt of no renewal for as long as the lease is, and only at the index behind the last one. So no other node
/// leads before the lease has ended, if the clocks of the nodes run equally fast, but for 1/8. They need not show the
/// same time. Where the system reports deaths ([`DeathRule::System`](farfield_fabric::DeathRule)), the death of the
/// leader's process ends the lease at once.
///
/// *A node that comes back* opens the election again, by `open`, as a [`ReplicatedMutex`](crate::ReplicatedMutex).
///
/// ```
/// use farfield_mu::Election;
/// use std::time::Duration;
/// let nodes = farfield::local_session(3)?;
/// let open = |node: &farfield::Node| Election::open(node, "leader", Duration::from_millis(500));
/// let elections = farfield::on_each(&nodes, open)?;
/// let ep = nodes[1].endpoint()?;
/// let leadership = ep.block_on(elections[1].campaign(&ep))?;
/// assert!(leadership.is_leader());
/// assert_eq!(ep.block_on(elections[1].wait_until_leader(&ep))?, (nodes[1].id(), leadership.term()));
/// ep.block_on(leadership.resign(&ep))?;
/// # Ok::<(), farfield::Error>(())
/// ```
#[derive(Clone)]
pub struct Election(pub(crate) Arc<Turns>);

impl Election {
    /// Opens the election on all live members of the session, and waits for them to do so. The lease must be the same
    /// on all.
    ///
    /// ```
    /// # use farfield_mu::Election;
    /// let node = farfield::Node::builder().start()?;
    /// let election = Election::open(&node, "leader", std::time::Duration::from_millis(100))?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A node that is missing, dead or departed, or that opens it differently; no memory; a lease shorter than 1 ms.
    pub fn open(node: &Node, path: &str, lease: Duration) -> Result<Election> {
        Election::open_among(node, path, &node.members_for(path), lease)
    }

    /// [`Election::open`] on these nodes. Only they open it. Of 2f + 1 nodes f may die.
    ///
    /// ```
    /// # use farfield_mu::Election;
    /// let node = farfield::Node::builder().start()?;
    /// let lease = std::time::Duration::from_millis(100);
    /// let election = Election::open_among(&node, "leader", &[node.id()], lease)?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for `open`; this node is no participant.
    pub fn open_among(node: &Node, path: &str, participants: &[NodeId], lease: Duration) -> Result<Election> {
        if lease < Duration::from_millis(1) {
            let why = format!("the lease is {lease:?}: it has to be 1 ms or longer");
            return Err(Error::from(ErrorKind::Config { why }).of(path));
        }
        Turns::open(node, path, participants, "Election", Some(lease)).map(|turns| Election(Arc::new(turns)))
    }

    /// Waits until this call is elected, and its lease has begun. A call that is dropped, or fails, is no candidate.
    ///
    /// ```
    /// # use farfield_mu::Election;
    /// # let node = farfield::Node::builder().start()?;
    /// # let election = Election::open(&node, "leader", std::time::Duration::from_millis(500))?;
    /// # let ep = node.endpoint()?;
    /// let leadership = ep.block_on(election.campaign(&ep))?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A timeout names the leader. [`NoMajority`](crate::NoMajority): too few nodes live. This node is evicted, or the
    /// election was reopened.
    pub async fn campaign(&self, endpoint: &Endpoint) -> Result<Leadership> {
        let what = "the election of this node";
        let deadline = endpoint.deadline();
        loop {
            let held = self.0.claim(endpoint, what).await?;
            let has_ended = || held.lease().is_some() || !held.is_first();
            let begins = || has_ended().then_some(Ok(()));
            let fails = || self.0.ends().map(Err);
            let path = self.0.object.path();
            endpoint.wait_until_or(deadline, begins, fails).await.waiting_for(what).of(path)?.of(path)?;
            let leadership = Leadership(held);
            // A lease that has ended in between is of no use.
            if leadership.is_leader() {
                return Ok(leadership);
            }
            if endpoint.now() >= deadline {
                let (what, waited, missing) = (what.into(), endpoint.timeout(), Vec::new());
                return Err(Error::from(ErrorKind::Timeout { what, waited, missing }).of(path));
            }
        }
    }

    /// The leader and its term, as far as this node knows. Another one may have been elected already.
    ///
    /// ```
    /// # use farfield_mu::Election;
    /// # let node = farfield::Node::builder().start()?;
    /// # let election = Election::open(&node, "leader", std::time::Duration::from_millis(500))?;
    /// assert_eq!(election.leader(), None);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn leader(&self) -> Option<(NodeId, u64)> {
        self.0.holder()
    }

    /// Waits until this node knows of a leader. The result is the leader, and its term.
    ///
    /// ```
    /// # use farfield_mu::Election;
    /// # let node = farfield::Node::builder().start()?;
    /// # let election = Election::open(&node, "leader", std::time::Duration::from_millis(500))?;
    /// # let ep = node.endpoint()?;
    /// let leadership = ep.block_on(election.campaign(&ep))?;
    /// assert_eq!(ep.block_on(election.wait_until_leader(&ep))?.1, leadership.term());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A timeout, or an error of [`Election::campaign`].
    pub async fn wait_until_leader(&self, endpoint: &Endpoint) -> Result<(NodeId, u64)> {
        let (deadline, path) = (endpoint.deadline(), self.0.object.path());
        loop {
            if let Some(leader) = self.leader() {
                return Ok(leader);
            }
            let is_there = || (self.0.holder_word().load() != 0).then_some(Ok(()));
            let fails = || self.0.ends().map(Err);
            endpoint.wait_until_or(deadline, is_there, fails).await.waiting_for("a leader").of(path)?.of(path)?;
        }
    }
}

/// This node's leadership. When it is dropped, the service thread resigns.
///
/// ```
/// # use farfield_mu::Election;
/// # let node = farfield::Node::builder().start()?;
/// # let election = Election::open(&node, "leader", std::time::Duration::from_millis(500))?;
/// # let ep = node.endpoint()?;
/// let leadership = ep.block_on(election.campaign(&ep))?;
/// while leadership.is_leader() {
///     // … the leader's work …
/// #   break;
/// }
/// # Ok::<(), farfield::Error>(())
/// ```
#[must_use = "the node resigns when its leadership is dropped"]
pub struct Leadership(Held);

impl Leadership {
    /// The term, a fencing token: each leader has a higher one than all before it.
    ///
    /// ```
    /// # use farfield_mu::Election;
    /// # let node = farfield::Node::builder().start()?;
    /// # let election = Election::open(&node, "leader", std::time::Duration::from_millis(500))?;
    /// # let ep = node.endpoint()?;
    /// assert_eq!(ep.block_on(election.campaign(&ep))?.term(), 1);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn term(&self) -> u64 {
        self.0.token
    }

    /// Whether no other node can lead now. It is false as soon as the lease may have ended, and stays so unless a
    /// renewal was only late.
    ///
    /// ```
    /// # use farfield_mu::Election;
    /// # let node = farfield::Node::builder().start()?;
    /// # let election = Election::open(&node, "leader", std::time::Duration::from_millis(500))?;
    /// # let ep = node.endpoint()?;
    /// assert!(ep.block_on(election.campaign(&ep))?.is_leader());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn is_leader(&self) -> bool {
        !self.lease_left().is_zero()
    }

    /// For how long no other node can lead, if the lease is not renewed. Read it after the work that is to be safe by
    /// it.
    ///
    /// ```
    /// # use farfield_mu::Election;
    /// # let node = farfield::Node::builder().start()?;
    /// # let election = Election::open(&node, "leader", std::time::Duration::from_millis(500))?;
    /// # let ep = node.endpoint()?;
    /// assert!(ep.block_on(election.campaign(&ep))?.lease_left().as_millis() < 500);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn lease_left(&self) -> Duration {
        let until = self.0.lease();
        let now = self.0.turns.object.node().now();
        until.filter(|until| *until > now).map_or(Duration::ZERO, |until| until.since(now))
    }

    /// Ends the leadership, and waits until that is decided. From the call on `is_leader` would be false.
    ///
    /// ```
    /// # use farfield_mu::Election;
    /// # let node = farfield::Node::builder().start()?;
    /// # let election = Election::open(&node, "leader", std::time::Duration::from_millis(500))?;
    /// # let ep = node.endpoint()?;
    /// let leadership = ep.block_on(election.campaign(&ep))?;
    /// ep.block_on(leadership.resign(&ep))?;
    /// assert_eq!(election.leader(), None);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Election::campaign`]. The service thread still resigns if that is possible.
    pub async fn resign(self, endpoint: &Endpoint) -> Result<()> {
        self.0.release(endpoint, "the resignation").await
    }
}
