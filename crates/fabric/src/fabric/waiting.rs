//! The threads that a put wakes, and the state of a wait, with what it depends on.

use crate::local::Instant;
use crate::ptr::{GroupKey, NodeId, RemotePtr};

/// The threads that a put to a group's memory wakes.
///
/// ```
/// # use farfield_fabric::*;
/// fn inbox(node: &dyn Fabric) -> Result<GroupKey> { node.create_group(Bell::Waiters) } // a put wakes its readers
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bell {
    /// No thread but those that wait by operations for a word there.
    Silent,
    /// Threads that wait for a word.
    Waiters,
    /// The service thread.
    Service,
}

/// The state of one wait: it first spins, then yields, then sleeps.
///
/// The waiter announces its sleep in one step and sleeps in the next, and polls once more in between. That poll sees a
/// write from before the announcement; a later write wakes the waiter.
///
/// ```
/// # use farfield_fabric::{shm::*, *};
/// # let node = ShmFabric::join(&ShmOptions::new(format!("doc-waiting-{}", std::process::id()), 0, 1))?;
/// let ready = Word::new(0);
/// let mut waiting = Waiting::default();
/// std::thread::scope(|scope| {
///     scope.spawn(|| ready.store(1));
///     while ready.load() == 0 {
///         node.idle(&mut waiting);
///     }
///     node.idle_end(&mut waiting); // it may have announced a sleep
/// });
/// assert!(!waiting.is_asleep());
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct Waiting {
    pub(crate) round: u32,
    pub(crate) spins: u32,
    pub(crate) announced: Option<u32>,
    /// How often it has slept.
    pub(crate) sleeps: u32,
    pub(crate) watches: Watches,
    /// On whose bell it is announced, if it waits by operations; none: on its own node's.
    pub(crate) announced_at: Option<Watches>,
    /// How many rings in a row were for others.
    pub(crate) vain_rings: u32,
    /// The last step ended because operations of the thread itself were complete, and not because something else may
    /// have changed. (On fabrics where all steps end by themselves, none ends for this reason alone.)
    pub(crate) only_completions: bool,
    /// The service thread waits.
    pub(crate) service: bool,
    /// The earliest deadline of the wait, if it has one.
    pub(crate) deadline: Instant,
}

/// What a wait depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Watches {
    Nothing,
    /// Words of this node, read by its CPU.
    Here,
    /// Words that are read by operations, all of one node and with one bell.
    At(NodeId, Bell),
    /// Others, or both.
    Several,
}

impl Watches {
    pub(crate) fn and(self, other: Watches) -> Watches {
        match (self, other) {
            (Watches::Nothing, watches) | (watches, Watches::Nothing) => watches,
            (a, b) if a == b => a,
            _ => Watches::Several,
        }
    }

    /// A word that is read by operations.
    pub(crate) fn of(word: RemotePtr<u64>) -> Watches {
        match word.key() {
            GroupKey::SIGNAL => Watches::At(word.node(), Bell::Waiters),
            GroupKey::DATA => Watches::At(word.node(), Bell::Silent),
            _ => Watches::Several,
        }
    }

    /// Whether it depends on words that are read by operations.
    pub(crate) fn has_remote(self) -> bool {
        matches!(self, Watches::At(..) | Watches::Several)
    }
}

impl Default for Waiting {
    fn default() -> Waiting {
        Waiting {
            round: 0,
            spins: 0,
            announced: None,
            sleeps: 0,
            watches: Watches::Nothing,
            announced_at: None,
            vain_rings: 0,
            only_completions: false,
            service: false,
            deadline: Instant::NEVER,
        }
    }
}

impl Waiting {
    /// A wait of the node's service thread.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// /// Called on the service thread.
    /// fn wait_for(node: &dyn Transport, request: &Word) {
    ///     let mut waiting = Waiting::of_service();
    ///     while request.load() == 0 {
    ///         node.idle(&mut waiting);
    ///     }
    ///     node.idle_end(&mut waiting);
    /// }
    /// assert!(!Waiting::of_service().is_asleep());
    /// ```
    pub fn of_service() -> Waiting {
        Waiting { service: true, ..Waiting::default() }
    }

    /// Starts again with spinning, after an event.
    ///
    /// ```
    /// # use farfield_fabric::{shm::*, *};
    /// # let node = ShmFabric::join(&ShmOptions::new(format!("doc-reset-{}", std::process::id()), 0, 1))?;
    /// fn follow(node: &dyn Transport, counter: &Word, end: u64) -> u64 {
    ///     let (mut waiting, mut seen) = (Waiting::default(), 0);
    ///     while seen < end {
    ///         match counter.load() {
    ///             more if more > seen => { seen = more; waiting.reset() } // the next may follow soon
    ///             _ => node.idle(&mut waiting),
    ///         }
    ///     }
    ///     node.idle_end(&mut waiting);
    ///     seen
    /// }
    /// assert_eq!(follow(&*node, &Word::new(3), 2), 3);
    /// # Ok::<(), Error>(())
    /// ```
    #[inline]
    pub fn reset(&mut self) {
        (self.round, self.vain_rings) = (0, 0);
    }

    /// Sets the time at which the wait ends at the latest.
    ///
    /// ```
    /// # use farfield_fabric::{*, sim::*};
    /// # let outcome = sim::run(Settings::new(1), Box::new(First), |handle| {
    /// # let node = handle.join(NodeId(0));
    /// let deadline = node.now() + std::time::Duration::from_secs(60);
    /// let mut waiting = Waiting::default();
    /// waiting.until(deadline);
    /// while node.now() < deadline {
    ///     node.idle(&mut waiting); // a simulated minute passes at once
    /// }
    /// node.idle_end(&mut waiting);
    /// assert_eq!(node.now(), deadline);
    /// # });
    /// # assert_eq!(outcome.failure, None);
    /// ```
    pub fn until(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    /// Whether the wait spins: it neither yields nor sleeps between two looks.
    pub(crate) fn spins(&self) -> bool {
        self.announced.is_none() && (1..=self.spins).contains(&self.round)
    }

    /// Whether the wait has reached its sleeping phase.
    ///
    /// ```
    /// # use farfield_fabric::{*, sim::*};
    /// # let outcome = sim::run(Settings::new(1), Box::new(First), |handle| {
    /// # let node = handle.join(NodeId(0));
    /// let mut waiting = Waiting::default();
    /// waiting.until(node.now() + std::time::Duration::from_secs(1));
    /// node.idle(&mut waiting);
    /// assert!(waiting.is_asleep()); // a simulated node does not spin
    /// node.idle_end(&mut waiting);
    /// assert!(!waiting.is_asleep());
    /// # });
    /// # assert_eq!(outcome.failure, None);
    /// ```
    pub fn is_asleep(&self) -> bool {
        self.announced.is_some()
    }
}
