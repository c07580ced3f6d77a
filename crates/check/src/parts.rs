//! Parts that scenarios have in common.

use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;

use farfield_core::fabric::{ErrorKind as FabricError, GroupKey, NodeId, Region, sim};
use farfield_core::{Error, ErrorKind, MemberStatus, Node, Result};

use crate::scenario::{Cluster, crashed};

/// Whether the only possible cause of an error is a node's death, a cut, or an eviction.
///
/// ```
/// # use std::time::Duration;
/// # use farfield::{ErrorKind, NodeId};
/// # use farfield_check::parts::comes_of_faults;
/// let late = ErrorKind::Timeout { what: "the lock".into(), waited: Duration::from_secs(1), missing: vec![NodeId(2)] };
/// assert!(comes_of_faults(&late.into())); // node 2 may have died
/// let wrong = ErrorKind::Config { why: "there is no lock 9".into() };
/// assert!(!comes_of_faults(&wrong.into()));
/// ```
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
/// ```
/// # use farfield::ErrorKind;
/// # use farfield_check::parts::unless_faults;
/// assert_eq!(unless_faults(Ok(7))?, Some(7));
/// let late = ErrorKind::Timeout { what: "the lock".into(), waited: Default::default(), missing: vec![] };
/// assert_eq!(unless_faults::<u64>(Err(late.into()))?, None);
/// # Ok::<(), farfield::Error>(())
/// ```
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

/// The moment at which a call begins, to judge whether it may time out.
///
/// Time passes only when nothing else can happen. So a call that times out although no fault occurs during it, and none
/// lasts, waits for something that never comes: it hangs. A death counts until all nodes know of it.
///
/// ```
/// # use farfield::{Mutex, NodeId};
/// # use farfield_check::{Budget, Scenario, check, parts::Excuse};
/// let scenario = Scenario::new("doc/excuse", "a lock that is never released", 2, |cluster| {
///     let locks = cluster.on_each(|node| Mutex::open(node, "lock", NodeId(0)))?;
///     let late = cluster.log();
///     let seen = late.clone();
///     cluster.at_end(move || Ok(assert_eq!(seen.take(), [false])));
///     for (me, lock) in locks.into_iter().enumerate() {
///         let late = late.clone();
///         cluster.thread(me, "locks", move |ep| {
///             let excuse = Excuse::now();
///             match ep.block_on(lock.lock(ep)) {
///                 Ok(guard) => Ok(core::mem::forget(guard)), // never released
///                 Err(error) if error.is_timeout() => Ok(drop(late.push(excuse.is_given()))),
///                 Err(error) => Err(error),
///             }
///         });
///     }
///     Ok(())
/// });
/// assert!(check(&scenario, Budget::executions(20), 1).finding.is_none());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Excuse(Option<u32>);

impl Excuse {
    /// A call begins now.
    pub fn now() -> Excuse {
        Excuse(sim::excuses())
    }

    /// Whether a fault has occurred since then, or has lasted all the time.
    pub fn is_given(self) -> bool {
        self.0.is_none() || sim::excuses() != self.0
    }
}

/// Retries after a timeout. Time may pass before any node detects a fault.
///
/// ```
/// # use farfield::{AtomicVar, NodeId};
/// # use farfield_check::{Budget, Faults, Scenario, check, parts::patiently};
/// let scenario = Scenario::new("doc/patient", "an addition beside a node that may die", 2, |cluster| {
///     let counter = cluster.on_each(|node| AtomicVar::open(node, "counter", NodeId(0)))?.remove(0);
///     cluster.thread(0, "adds", move |ep| patiently(|| ep.block_on(counter.fetch_add(ep, 1)).map(drop)));
///     Ok(())
/// })
/// .faults(Faults::new().crashes(1).of([1]));
/// assert!(check(&scenario, Budget::executions(50), 1).finding.is_none());
/// ```
///
/// # Errors
/// That of the attempt, unless it is a timeout that a fault explains ([`Excuse`]).
pub fn patiently<T>(mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        let excuse = Excuse::now();
        match attempt() {
            Err(error) if error.is_timeout() && excuse.is_given() => {}
            done => return done,
        }
    }
}

/// Whether a node has neither crashed nor been fenced.
///
/// ```
/// # use farfield_check::{Budget, Faults, Scenario, check, parts::goes_on};
/// let scenario = Scenario::new("doc/goes-on", "node 1 may die", 2, |cluster| {
///     let nodes = cluster.nodes();
///     cluster.at_end(move || {
///         assert!(goes_on(&nodes[0]));
///         Ok(())
///     });
///     Ok(())
/// })
/// .faults(Faults::new().crashes(1).of([1]));
/// assert!(check(&scenario, Budget::executions(50), 1).finding.is_none());
/// ```
pub fn goes_on(node: &Node) -> bool {
    !crashed(node.id().index()) && !node.fabric().is_fenced()
}

/// Whether a node knows the status of each other node, and of the dead that they are evicted; or is evicted itself.
///
/// ```
/// # use farfield::fabric::Instant;
/// # use farfield_check::{Budget, Faults, Scenario, check, parts::is_decided};
/// let scenario = Scenario::new("doc/decided", "two nodes wait for the fate of the third", 3, |cluster| {
///     for (at, node) in cluster.nodes().into_iter().take(2).enumerate() {
///         cluster.thread(at, "stays", move |ep| {
///             let decided = ep.wait_until(Instant::NEVER, || is_decided(&node).then_some(()));
///             Ok(ep.block_on(decided)?)
///         });
///     }
///     Ok(())
/// })
/// .faults(Faults::new().crashes(1).of([2]));
/// assert!(check(&scenario, Budget::executions(50), 1).finding.is_none());
/// ```
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
/// ```
/// # use farfield_check::{Budget, Scenario, exhaust, parts::word};
/// let scenario = Scenario::new("doc/word", "a put to a word of node 1", 2, |cluster| {
///     let sum = word(cluster, 1, "sum")?;
///     let there = sum.remote::<u64>(0);
///     cluster.thread(0, "puts", move |ep| Ok(ep.put_value(there, 7).wait()?));
///     cluster.at_end(move || Ok(assert_eq!(sum.word(0).load(), 7)));
///     Ok(())
/// });
/// assert!(exhaust(&scenario, Budget::unlimited()).is_complete);
/// ```
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
///
/// ```
/// # use farfield::{Mutex, NodeId};
/// # use farfield_check::{Budget, Scenario, check, choose, parts::cut};
/// let scenario = Scenario::new("doc/cut", "a dropped call leaves the lock free", 2, |cluster| {
///     let lock = cluster.on_each(|node| Mutex::open(node, "lock", NodeId(0)))?.remove(1);
///     cluster.thread(1, "drops", move |ep| {
///         ep.block_on(async {
///             if let Some(guard) = cut(choose(3), lock.lock(ep)).await {
///                 guard?.unlock().await?;
///             }
///             lock.lock(ep).await?.unlock().await
///         })
///     });
///     Ok(())
/// });
/// assert!(check(&scenario, Budget::executions(50), 1).finding.is_none());
/// ```
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
