//! Fences that continue past dead and departed nodes, and the errors of nodes whose operations no longer land.

use core::time::Duration;

use farfield_fabric::{self as fabric, Endpoint, GroupKey, Instant, NodeId};

use super::{MemberStatus, Node};
use crate::error::{ErrorKind, Result};

#[inline(never)]
fn fences_at_once(endpoint: &Endpoint, nodes: impl Iterator<Item = NodeId> + Clone) -> bool {
    !nodes.clone().any(|node| endpoint.has_unflushed(node)) || endpoint.fence_at_once(nodes)
}

impl Node {
    /// Whether a node has left or has died, before this one started or since: no operation on it succeeds any more.
    ///
    /// ```
    /// # let nodes = farfield::local_session(2)?; let node = &nodes[0];
    /// assert!(!node.has_gone(nodes[1].id()));
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn has_gone(&self, node: NodeId) -> bool {
        let shared = self.shared();
        shared.is_gone(node) || shared.service.is_removed(node)
    }

    /// The error of a dead or departed node, once none of its operations can land any more. `None` before that.
    ///
    /// ```
    /// # let nodes = farfield::local_session(2)?;
    /// assert!(nodes[0].fenced_error(&nodes[0].endpoint()?, nodes[1].id()).is_none()); // it is alive
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn fenced_error(&self, endpoint: &Endpoint, node: NodeId) -> Option<fabric::Error> {
        let gone = endpoint.check_alive(node).err().filter(fabric::Error::is_gone)?;
        let may_land = matches!(gone.kind(), fabric::ErrorKind::PeerDead { .. })
            && self.status_of(node) != Some(MemberStatus::Evicted);
        (!may_land).then_some(gone)
    }

    /// A global fence that continues past dead and departed nodes. It returns the nodes where this endpoint's puts may
    /// be missed by a reader. Such a node does not answer, has evicted this node, or is dead but not yet evicted by all
    /// members. This state ends: the members decide about a node that does not answer, and [`Node::fenced_error`] then
    /// has an error for it, or this node is removed itself. A refused get is posted again until the endpoint's timeout.
    /// A right to a further group that its owner has revoked is no error: puts to it have landed, or never will.
    ///
    /// ```
    /// # let nodes = farfield::local_session(2)?; let (node, ep) = (&nodes[0], nodes[0].endpoint()?);
    /// let lost = ep.block_on(node.fence_live_nodes(&ep, node.members()))?;
    /// assert!(lost.is_empty()); // all puts are visible
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A node refuses the fence for another reason than its death, its departure or its silence.
    pub async fn fence_live_nodes(
        &self,
        endpoint: &Endpoint,
        nodes: impl Iterator<Item = NodeId> + Clone,
    ) -> Result<Vec<NodeId>> {
        if self.is_fenced_at_once(endpoint, || nodes.clone()) {
            return Ok(Vec::new());
        }
        // A wait has memory of its own, so that the future of a call that need not wait is small.
        endpoint.boxed(self.fence_and_wait(endpoint, nodes)).await
    }

    /// [`Node::fence_live_nodes`] where it needs no wait: nothing is to be fenced, or it is shared memory. Returns
    /// whether it is done. The nodes are asked for only if something may have to be fenced.
    #[inline(always)]
    pub(crate) fn is_fenced_at_once<N: Iterator<Item = NodeId> + Clone>(
        &self,
        endpoint: &Endpoint,
        nodes: impl FnOnce() -> N,
    ) -> bool {
        endpoint.owes_no_fence() || fences_at_once(endpoint, nodes())
    }

    /// [`Node::fence_live_nodes`] until no node is left where puts may be missed: the members decide about those that
    /// do not answer.
    ///
    /// ```
    /// # let nodes = farfield::local_session(2)?; let (node, ep) = (&nodes[0], nodes[0].endpoint()?);
    /// ep.block_on(node.fence_all_live_nodes(&ep, node.members()))?; // all puts are visible
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Node::fence_live_nodes`]; a timeout of the endpoint names the nodes that do not answer.
    pub async fn fence_all_live_nodes(
        &self,
        endpoint: &Endpoint,
        nodes: impl Iterator<Item = NodeId> + Clone,
    ) -> Result<()> {
        let (start, deadline, mut pause) = (endpoint.now(), endpoint.deadline(), RefusedPause::default());
        loop {
            let missing = self.fence_live_nodes(endpoint, nodes.clone()).await?;
            if missing.is_empty() {
                return Ok(());
            }
            let now = endpoint.now();
            if now >= deadline {
                return Err(
                    ErrorKind::Timeout { what: "puts to be visible".into(), waited: now - start, missing }.into()
                );
            }
            pause.wait(endpoint, deadline).await;
        }
    }

    /// [`Endpoint::wait_until`] for something that the members decide, or that a member does. It also ends when they
    /// evict this node, which learns of nothing more.
    ///
    /// ```
    /// # let nodes = farfield::local_session(2)?; let (node, ep) = (&nodes[0], nodes[0].endpoint()?);
    /// # let other = nodes[1].id();
    /// let is_known = || node.status_of(other).map(drop);
    /// ep.block_on(node.wait_for_members(&ep, ep.deadline(), is_known))?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A timeout; [`Fenced`](fabric::ErrorKind::Fenced) once this node is evicted.
    pub async fn wait_for_members<T>(
        &self,
        endpoint: &Endpoint,
        deadline: Instant,
        mut condition: impl FnMut() -> Option<T>,
    ) -> fabric::Result<T> {
        let is_evicted = || self.fabric().is_fenced().then(|| Err(fabric::ErrorKind::Fenced.into()));
        endpoint.wait_until_or(deadline, || condition().map(Ok), is_evicted).await?
    }

    async fn fence_and_wait(
        &self,
        endpoint: &Endpoint,
        nodes: impl Iterator<Item = NodeId> + Clone,
    ) -> Result<Vec<NodeId>> {
        // A node that has revoked this node's rights to the first three groups has decided that this node is dead. This
        // node and the others may not have learned of it yet. A further group is left out of the next fence.
        let may_be_missed =
            |error: &fabric::Error| error.is_unreachable() || matches!(error.kind(), fabric::ErrorKind::Revoked { .. });
        let deadline = endpoint.deadline();
        match fence(endpoint, nodes.clone(), deadline).await {
            Ok(()) => return Ok(Vec::new()),
            Err(error) if !may_be_missed(&error) => return Err(error.into()),
            Err(_) => {}
        }
        let mut lost = Vec::new();
        for node in nodes {
            match fence(endpoint, [node].into_iter(), deadline).await {
                Err(error) if !may_be_missed(&error) => return Err(error.into()),
                Err(_) if self.fenced_error(endpoint, node).is_none() => lost.push(node),
                Err(_) => endpoint.clear_flush_state(node),
                Ok(()) => {}
            }
        }
        Ok(lost)
    }
}

/// The pauses between attempts at an operation that is refused. Memory or a queue pair may become free without a change
/// that would wake the task, so each pause ends by itself: the first after a millisecond, each later one after twice
/// the time of the one before, up to 100 ms.
///
/// ```
/// # use farfield::{Endpoint, fabric::RemotePtr, toolkit::RefusedPause};
/// async fn put(ep: &Endpoint, word: RemotePtr<u64>) -> farfield::fabric::Result<()> {
///     let (deadline, mut pause) = (ep.deadline(), RefusedPause::default());
///     loop {
///         match ep.put_value(word, 7).await {
///             Err(error) if error.is_refused() && ep.now() < deadline => pause.wait(ep, deadline).await,
///             done => return done,
///         }
///     }
/// }
/// ```
pub struct RefusedPause(Duration);

impl Default for RefusedPause {
    fn default() -> RefusedPause {
        RefusedPause(Duration::from_millis(1))
    }
}

impl RefusedPause {
    const MAX: Duration = Duration::from_millis(100);

    /// Waits for the next pause, or until the deadline, or until something changes.
    ///
    /// ```
    /// # use farfield::{Endpoint, fabric::RemotePtr, toolkit::RefusedPause};
    /// async fn add(ep: &Endpoint, count: RemotePtr<u64>) -> farfield::fabric::Result<u64> {
    ///     let (deadline, mut pause) = (ep.deadline(), RefusedPause::default());
    ///     loop {
    ///         match ep.faa(count, 1).await {
    ///             Err(error) if error.is_refused() && ep.now() < deadline => pause.wait(ep, deadline).await,
    ///             done => return done,
    ///         }
    ///     }
    /// }
    /// # let node = farfield::Node::builder().start()?;
    /// # let (ep, words) = (node.endpoint()?, node.alloc_words(farfield::fabric::GroupKey::DATA, 1, &[])?);
    /// assert_eq!(ep.block_on(add(&ep, words.remote(0)))?, 0); // not refused: there is no pause
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub async fn wait(&mut self, endpoint: &Endpoint, deadline: Instant) {
        endpoint.wait_for_change(deadline.min(endpoint.now() + self.0)).await;
        self.0 = RefusedPause::MAX.min(2 * self.0);
    }

    /// Makes an attempt after each pause, until one is not refused, or the deadline has passed.
    ///
    /// ```
    /// # use farfield::{Endpoint, fabric::{Op, RemotePtr}, toolkit::RefusedPause};
    /// async fn posted(ep: &Endpoint, word: RemotePtr<u64>) -> farfield::fabric::Result<Op<'_, ()>> {
    ///     match ep.put_value(word, 7).accepted() {
    ///         Err(error) if error.is_refused() => {}
    ///         posted => return posted, // as a rule
    ///     }
    ///     RefusedPause::default().attempts(ep, ep.deadline(), || ep.put_value(word, 7).accepted()).await
    /// }
    /// ```
    ///
    /// # Errors
    /// That of the last attempt.
    pub async fn attempts<T>(
        mut self,
        endpoint: &Endpoint,
        deadline: Instant,
        mut post: impl FnMut() -> fabric::Result<T>,
    ) -> fabric::Result<T> {
        loop {
            self.wait(endpoint, deadline).await;
            match post() {
                Err(error) if error.is_refused() && endpoint.now() < deadline => {}
                done => return done,
            }
        }
    }
}

/// A global fence, repeated until `deadline` while it is refused: a release depends on it.
async fn fence(
    endpoint: &Endpoint,
    nodes: impl Iterator<Item = NodeId> + Clone,
    deadline: Instant,
) -> fabric::Result<()> {
    let mut pause = RefusedPause::default();
    loop {
        match endpoint.global_fence(nodes.clone()).await {
            Err(error) if error.is_refused() && endpoint.now() < deadline => pause.wait(endpoint, deadline).await,
            // The right to a further group is the application's. Without it nothing lands there, and the next fence
            // leaves the group out.
            Err(error) if lacks_further_right(&error) => {}
            fenced => return fenced,
        }
    }
}

fn lacks_further_right(error: &fabric::Error) -> bool {
    matches!(error.kind(), fabric::ErrorKind::Revoked { key, .. } if key.class() != GroupKey::SIGNAL)
}
