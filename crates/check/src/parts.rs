//! Parts that scenarios have in common.

use core::cell::Cell;
use core::future::{Future, poll_fn};
use core::ops::RangeInclusive;
use core::pin::pin;
use core::task::Poll;

use farfield_core::fabric::{self, Endpoint, ErrorKind as FabricError, GroupKey, NodeId, Region, RemotePtr, sim};
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
/// lasts, waits for something that never happens: it hangs. A death counts until all nodes know of it.
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
    ///
    /// ```
    /// # use farfield_check::{Budget, Scenario, exhaust, parts::{Excuse, word}};
    /// let scenario = Scenario::new("doc/excuse-now", "a call without a fault", 1, |cluster| {
    ///     let there = word(cluster, 0, "x")?.remote::<u64>(0);
    ///     cluster.thread(0, "calls", move |ep| {
    ///         let excuse = Excuse::now();
    ///         ep.put_value(there, 1).wait()?; // a call that must not time out
    ///         Ok(assert!(!excuse.is_given()))
    ///     });
    ///     Ok(())
    /// });
    /// assert!(exhaust(&scenario, Budget::unlimited()).finding.is_none());
    /// ```
    pub fn now() -> Excuse {
        Excuse(sim::excuses())
    }

    /// Whether a fault has occurred since then, or has lasted all the time.
    ///
    /// ```
    /// # use farfield_check::{Budget, Faults, Scenario, check, crashed, parts::Excuse};
    /// let scenario = Scenario::new("doc/excuse-given", "node 1 may die", 2, |cluster| {
    ///     let excuse = Excuse::now();
    ///     cluster.at_end(move || Ok(assert_eq!(excuse.is_given(), crashed(1))));
    ///     Ok(())
    /// })
    /// .faults(Faults::new().crashes(1).of([1]));
    /// assert!(check(&scenario, Budget::executions(50), 1).finding.is_none());
    /// ```
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
        Some(MemberStatus::Member) => !crashed(of.index()),
        Some(MemberStatus::Departed | MemberStatus::Evicted) => true,
        Some(MemberStatus::Suspected | MemberStatus::Dead) | None => false,
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

/// Posts an operation again until it is not refused. Refusals end.
///
/// ```
/// # use farfield_check::{Budget, Scenario, exhaust, parts::{accepted, word}};
/// let scenario = Scenario::new("doc/accepted", "a put that was not refused", 1, |cluster| {
///     let word = word(cluster, 0, "x")?;
///     cluster.thread(0, "puts", move |ep| Ok(accepted(|| ep.put_value(word.remote(0), 1u64).detach())?));
///     Ok(())
/// });
/// assert!(exhaust(&scenario, Budget::unlimited()).finding.is_none());
/// ```
///
/// # Errors
/// Any other error of the operation.
pub fn accepted<T>(mut post: impl FnMut() -> fabric::Result<T>) -> fabric::Result<T> {
    loop {
        match post() {
            Err(error) if error.is_refused() => {}
            posted => return posted,
        }
    }
}

/// Two words that a lock protects: they are equal whenever it is free. A critical section adds one to both.
///
/// ```
/// # use farfield::{Mutex, NodeId};
/// # use farfield_check::{Budget, Scenario, check, parts::Protected};
/// let scenario = Scenario::new("doc/protected", "two holders, one after the other", 2, |cluster| {
///     let locks = cluster.on_each(|node| Mutex::open(node, "lock", NodeId(0)))?;
///     let data = std::rc::Rc::new(Protected::new(cluster, [1, 0], "")?);
///     for (node, lock) in locks.into_iter().enumerate() {
///         let data = data.clone();
///         cluster.thread(node, "adds", move |ep| {
///             ep.block_on(async {
///                 let guard = lock.lock(ep).await?;
///                 data.add_one(ep, true, guard.is_poisoned(), |_| false).await?;
///                 guard.unlock().await
///             })
///         });
///     }
///     cluster.at_end(move || Ok(data.assert_sections(false, 2..=2)));
///     Ok(())
/// });
/// assert!(check(&scenario, Budget::executions(50), 1).finding.is_none());
/// ```
pub struct Protected {
    words: [Region; 2],
    /// The node inside, if there is one.
    inside: Cell<Option<usize>>,
}

impl Protected {
    /// The words, each on a node.
    ///
    /// ```
    /// # use farfield_check::{Budget, Scenario, exhaust, parts::Protected};
    /// let scenario = Scenario::new("doc/protected-new", "two words that are 0", 2, |cluster| {
    ///     let data = Protected::new(cluster, [1, 0], "")?; // the words `x` of node 1 and `y` of node 0
    ///     cluster.at_end(move || Ok(data.assert_sections(false, 0..=0)));
    ///     Ok(())
    /// });
    /// assert!(exhaust(&scenario, Budget::unlimited()).finding.is_none());
    /// ```
    ///
    /// # Errors
    /// No memory is left.
    pub fn new(cluster: &Cluster, homes: [usize; 2], name: &str) -> Result<Protected> {
        let [x, y] = homes;
        let words = [word(cluster, x, &format!("x{name}"))?, word(cluster, y, &format!("y{name}"))?];
        Ok(Protected { words, inside: Cell::new(None) })
    }

    /// One of the words, 0 or 1.
    ///
    /// ```
    /// # use farfield_check::{Budget, Scenario, exhaust, parts::Protected};
    /// let scenario = Scenario::new("doc/protected-remote", "the words are on their nodes", 2, |cluster| {
    ///     let data = Protected::new(cluster, [1, 0], "")?;
    ///     assert_eq!([0, 1].map(|word| data.remote(word).node().index()), [1, 0]);
    ///     Ok(())
    /// });
    /// assert!(exhaust(&scenario, Budget::unlimited()).finding.is_none());
    /// ```
    pub fn remote(&self, word: usize) -> RemotePtr<u64> {
        self.words[word].remote(0)
    }

    /// A critical section: adds one to both words, and does not wait for the puts. The release has to make them
    /// visible. Returns the old value. `by_cpu`: words of the own node are read and written by the CPU. Another node
    /// may be inside only if the lock is poisoned, and that node `may_be_gone`.
    ///
    /// ```
    /// # use farfield_check::{Budget, Scenario, exhaust, parts::Protected};
    /// let scenario = Scenario::new("doc/protected-add", "one thread needs no lock", 1, |cluster| {
    ///     let data = Protected::new(cluster, [0, 0], "")?;
    ///     cluster.thread(0, "adds", move |ep| {
    ///         assert_eq!(ep.block_on(data.add_one(ep, true, false, |_| false))?, 0);
    ///         assert_eq!(ep.block_on(data.add_one(ep, true, false, |_| false))?, 1);
    ///         Ok(data.assert_sections(false, 2..=2))
    ///     });
    ///     Ok(())
    /// });
    /// let report = exhaust(&scenario, Budget::unlimited());
    /// assert!(report.finding.is_none(), "{:?}", report.finding);
    /// ```
    ///
    /// # Errors
    /// A node of a word is unreachable.
    ///
    /// # Panics
    /// Another node is inside, or the words differ and the lock is not poisoned.
    pub async fn add_one(
        &self,
        ep: &Endpoint,
        by_cpu: bool,
        is_poisoned: bool,
        may_be_gone: impl Fn(usize) -> bool,
    ) -> Result<u64> {
        let me = Some(ep.me().index());
        let before = self.inside.replace(me);
        let is_left = |node: usize| is_poisoned && may_be_gone(node);
        assert!(before.is_none_or(is_left), "node {before:?} is inside, too");
        let added = self.add(ep, by_cpu, is_poisoned).await;
        if self.inside.get() == me {
            self.inside.set(None);
        }
        added
    }

    async fn add(&self, ep: &Endpoint, by_cpu: bool, is_poisoned: bool) -> Result<u64> {
        let remotes = [self.remote(0), self.remote(1)];
        let is_own = |word: usize| by_cpu && remotes[word].node() == ep.me();
        let mut seen = [0; 2];
        for (at, seen) in seen.iter_mut().enumerate() {
            *seen = if is_own(at) {
                self.words[at].word(0).load()
            } else {
                loop {
                    match ep.get(remotes[at]).await {
                        Err(error) if error.is_refused() => {}
                        got => break got?,
                    }
                }
            };
        }
        assert!(seen[0] == seen[1] || is_poisoned, "{seen:?}: half-written, and the lock is not poisoned");
        let value = seen[0].max(seen[1]);
        for (at, remote) in remotes.into_iter().enumerate() {
            if is_own(at) {
                self.words[at].word(0).store(value + 1);
            } else {
                accepted(|| ep.put_value(remote, value + 1).detach())?;
            }
        }
        Ok(value)
    }

    /// At the end, under the lock: both words count the sections.
    ///
    /// ```
    /// # use farfield_check::{Budget, Scenario, exhaust, parts::Protected};
    /// let scenario = Scenario::new("doc/protected-sections", "a section that never was", 1, |cluster| {
    ///     let data = Protected::new(cluster, [0, 0], "")?;
    ///     cluster.at_end(move || Ok(data.assert_sections(false, 1..=1)));
    ///     Ok(())
    /// });
    /// assert!(exhaust(&scenario, Budget::unlimited()).finding.is_some()); // the words are 0
    /// ```
    ///
    /// # Panics
    /// They do not.
    pub fn assert_sections(&self, is_poisoned: bool, sections: RangeInclusive<u64>) {
        let words = self.words.each_ref().map(|region| region.word(0).load());
        assert!(is_poisoned || words[0] == words[1], "{words:?} differ at the end");
        assert!(sections.contains(&words[0].max(words[1])), "{sections:?} sections, but the words are {words:?}");
    }
}
