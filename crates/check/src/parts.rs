//! Parts that scenarios have in common.

use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;

use farfield_core::fabric::{ErrorKind as FabricError, GroupKey, NodeId, Region};
use farfield_core::{Error, ErrorKind, MemberStatus, Node, Result};

use crate::scenario::{Cluster, crashed, was_paused};

/// Whether the only possible cause of an error is a node's death, a cut, or an eviction.
pub fn comes_of_faults(error: &Error) -> bool {
    let comes_of_faults = |error: &farfield_core::fabric::Error| {
        error.is_unreachable()
            || error.is_timeout()
            || matches!(error.kind(), FabricError::Fenced | FabricError::Revoked { .. })
    };
    match error.kind() {
        ErrorKind::Fabric(error) => comes_of_faults(error),
        ErrorKind::Missed { nodes } => nodes.iter().all(|(_, error)| comes_of_faults(error)),
        _ => error.is_timeout(),
    }
}

/// A thread's result, unless a possible fault prevented it.
///
/// # Errors
/// Any other error.
pub fn unless_faults<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if comes_of_faults(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Retries after a timeout. Time may pass before any node detects a fault.
///
/// # Errors
/// That of the attempt, unless it is a timeout that a fault or a leap of time explains.
pub fn patiently<T>(mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match attempt() {
            Err(error) if error.is_timeout() && (was_paused() || (0..3).any(crashed)) => {}
            done => return done,
        }
    }
}

/// Whether a node has neither crashed nor been fenced.
pub fn goes_on(node: &Node) -> bool {
    !crashed(node.id().index()) && !node.fabric().is_fenced()
}

/// Whether a node knows the standing of each other node, and of the dead that they are evicted; or is evicted itself.
pub fn is_decided(node: &Node) -> bool {
    let is_settled = |of: NodeId| match node.status_of(of) {
        MemberStatus::Member => !crashed(of.index()),
        MemberStatus::Departed | MemberStatus::Evicted => true,
        MemberStatus::Suspected | MemberStatus::Dead => false,
    };
    node.fabric().is_fenced() || node.members().all(is_settled)
}

/// A named word of a node, beside the object: a lock protects it, or threads count in it.
///
/// # Errors
/// No memory is left.
pub fn word(cluster: &Cluster, node: usize, name: &str) -> Result<Region> {
    let node = cluster.node(node);
    let region = node.alloc(GroupKey::DATA, 8)?;
    node.fabric().label(region.remote(0), 8, format_args!("{name}"));
    Ok(region)
}

/// Polls a future until it has been pending so often, and drops it then.
pub async fn cut<T>(pending_max: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut pending = 0;
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if pending == pending_max => Poll::Ready(None),
        Poll::Pending => {
            pending += 1;
            Poll::Pending
        }
    })
    .await
}
