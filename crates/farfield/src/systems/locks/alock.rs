//! ALock: a lock for asymmetric memory, whose threads on the lock's own node never go through the NIC.
//!
//! A CPU's read-modify-writes and a NIC's are not atomic with each other, so an ordinary lock makes everybody use the NIC,
//! the lock's own node included. ALock has two queues instead, one for each *cohort*: operations of other nodes use remote
//! atomics on one tail, those of the lock's node use CPU atomics on another. The heads of the two queues agree by Peterson's
//! algorithm, which needs reads and writes only: those of CPU and NIC go together. The tails are its flags.
//!
//! ```text
//! +0   ┌──────────────┐
//!      │ tail_remote  │  the last entry of the remote queue, 0: empty        remote atomics only
//! +8   ├──────────────┤
//!      │ tail_local   │  the last entry of the local queue, 0: empty         CPU atomics only
//! +16  ├──────────────┤
//!      │ victim       │  the cohort that came last, and lets the other one   put by the remote head, stored by the local
//! +24  ├──────────────┤
//!      │ claims       │  heads of the remote queue claimed from the dead     remote atomics only
//! +32  ├──────────────┤
//!      │ burials      │  queues that were found to hold none but the dead    stored by the local head
//! +40  ├──────────────┤
//!      │ repaired     │  how many of both somebody has repaired              put or stored by the holder
//! +48  ├──────────────┤
//!      │ buried       │  the tail of the last such queue                     stored by the local head
//! +56  ├──────────────┤
//!      │ 0            │
//! +64  └──────────────┘
//! ```
//!
//! The entries (`descriptor.rs`, `local.rs`) are of operations, not of threads: a thread may hold and await several locks.
//! Those of the two cohorts come from two supplies.
//!
//! # Acquire
//!
//! *Remote.* Enqueue (`queue.rs`). Who finds the queue empty competes: it puts the cohort into `victim`, and gets
//! `tail_local` and `victim`, until the former is empty or the latter names the others.
//! - The compare-and-swap was waited for before the put is issued (`NLW → WT → NLR`): the flag is up before the victim is named.
//! - The get comes after the put (`NRW → NRR`, to one node): the two are posted together.
//! - The two words may be read in any order, since each alone suffices.
//! - What the holder reads afterwards comes after the get.
//!
//! *Local* (`local.rs`). Exchange `tail_local` (by a compare-and-swap, again until it succeeds), store `victim`, a memory fence, read `tail_remote` and `victim`.
//! - The exchange comes before the store (`CAS → CW`).
//! - The fence is what keeps the store before the reads (`CW → MF → CR`; without it `CW → CR` is not ordered).
//!
//! Exclusion is Peterson's: of two heads the one whose victim is overwritten last finds the other's flag up and itself the
//! victim. For that a named victim has to be in memory before its operation gives the head up: a put that landed later would
//! let in a local thread beside a remote one. So an operation that is dropped between put and get waits for the get.
//!
//! # Release
//!
//! What the holder has put has to be visible before the lock can be had: a put's completion does not say so, so the release
//! waits for a get from every node that the holder's endpoint has put to (a global fence). One node is left out: that of the
//! operation behind, if that is known, since the grant is put to the same node (`NRW → NRW`; on the own node it is a store, and
//! none is left out); else the lock's, since the
//! compare-and-swap that empties the tail comes after earlier puts to its node (`NRW → NAR`), and has flushed them when it
//! fails. CPU writes come before any operation that is issued later, and before any later CPU write.
//!
//! A holder hands the lock to its own cohort as often as the *budget* says: the grant is what is left of it. Who is granted
//! 0 competes again, so that the other cohort's head, if it waits, has its turn; then the budget is whole again.
//!
//! # Costs
//!
//! | call | round trips | operations |
//! |---|---|---|
//! | `lock`, remote, free | 2 | 1 cas; 1 put and 1 get, posted together |
//! | `lock`, remote, behind another | 1 for each attempt, then it waits on its own node | a cas for each attempt, 1 put; none behind one of its node |
//! | the same, granted 0 | and 1 for each look | 1 put, a get for each look |
//! | `unlock`, remote, d nodes put to, that one left out | 1 (d = 0) or 2 | at most d gets, 1 cas |
//! | `unlock`, remote, somebody behind | the same; 0 if that was known | at most d gets, at most 1 cas, 1 put; none before one of its node |
//! | `lock`, local | 0 | none |
//! | `unlock`, local, d nodes put to | 0 or 1 | at most d gets |
//!
//! No thread needs a queue pair to its own node: not those on the lock's node, which use the CPU, nor those of another node that
//! wait behind each other, since their descriptors have no words that are updated by atomics.
//!
//! # When a node dies
//!
//! *A remote holder's or waiter's*: `queue.rs` says how the remote queue goes on. If no living operation is in
//! it, the local head finds that out, and takes that tail for an empty one. Nobody can tell whether the dead held the lock:
//! the next holder is told that something may be half-written ([`LockGuard::is_after_death`]), and so are those after it,
//! until one says [`LockGuard::repaired`]. Each operation that the dead had in the queue may be told of.
//!
//! *The lock's own*: the lock is gone, and every call says so, naming the node.
//!
//! Source: Baran, Nelson-Slivon, Tseng, Palmieri, "ALock: Asymmetric Lock Primitive for RDMA Systems" (SPAA 2024), section 5.
//! The paper's algorithm has no deadlines and no deaths; those are ours. `specs/alock` has the algorithm in TLA+.

use std::sync::Arc;

use farfield_fabric::{self as fabric, Endpoint, GroupKey, Instant, NodeId, RemotePtr};

use super::descriptor::{self, Descriptors, Id};
use super::local::{Local, LocalEntry};
use super::queue::{Entry, Grant, LOCK, Place, Queue, Spared, Wait, deaths_told, whole_words};
use super::{Layout, LockArray, LockGuard, Spread};
use crate::error::{ErrorKind, Of, Result};
use crate::mutants::{self, Mutant};
use crate::node::{Node, Regions};
use crate::objects::owed::{fence_holder, release_later};

pub(super) const TAIL_REMOTE: usize = 0;
pub(super) const TAIL_LOCAL: usize = 1;
pub(super) const VICTIM: usize = 2;
pub(super) const CLAIMS: usize = 3;
pub(super) const BURIALS: usize = 4;
pub(super) const REPAIRED: usize = 5;
pub(super) const BURIED: usize = 6;
pub(super) const WORDS: usize = 8;

/// The victims. A new lock has none, which is as good as either while both queues are empty.
const REMOTE: u64 = 1;
pub(super) const LOCAL: u64 = 2;

/// How ALocks are opened. All nodes say the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ALockOptions {
    /// How many remote operations in a row may have the lock while a local one waits: 20, unless set (section 6.1).
    pub remote_budget: u32,
    /// And the other way round: 5, unless set.
    pub local_budget: u32,
    /// How many operations of a node may hold or await one of the locks of other nodes at a time, and as many one of its own (of
    /// queue locks: one of any node): 1024, unless set. Each has 64 bytes of network memory.
    pub operations_max: usize,
}

impl Default for ALockOptions {
    fn default() -> ALockOptions {
        ALockOptions { remote_budget: 20, local_budget: 5, operations_max: 1024 }
    }
}

impl ALockOptions {
    /// Checks that they can be.
    pub(super) fn check(&self, count: usize) -> Result<()> {
        let why = if self.remote_budget == 0 || self.local_budget == 0 {
            "`remote_budget` and `local_budget` have to be at least 1".into()
        } else if self.operations_max == 0 || self.operations_max > descriptor::COUNT_MAX {
            format!("`operations_max` is {}, and has to be 1 to {}", self.operations_max, descriptor::COUNT_MAX)
        } else if count > descriptor::LOCKS_MAX {
            format!("{count} locks exceed the limit of {} of one array", descriptor::LOCKS_MAX)
        } else {
            return Ok(());
        };
        Err(ErrorKind::Config { why }.into())
    }
}

/// A number of ALocks, spread over the nodes that open them, in order: lock `i` lies on the one at `i mod nodes`.
///
/// ```
/// use farfield::{ALockArray, ALockOptions, LockArray, LockGuard};
/// # fn main() -> farfield::Result<()> {
/// let node = farfield::Node::builder().session("doc-alocks").start()?;
/// let locks = ALockArray::open(&node, "stripes", 64, ALockOptions::default())?;
/// let ep = node.endpoint()?;
/// let guard = ep.block_on(locks.lock(&ep, 7))?;
/// assert!(ep.block_on(locks.try_lock(&ep, 7))?.is_none());
/// ep.block_on(guard.unlock())?;
/// assert_eq!(ep.counts().posted(), 0); // this is its own node: nothing has gone through a NIC
/// # Ok(()) }
/// ```
pub struct ALockArray {
    spread: Spread,
    options: ALockOptions,
    queue: Arc<Queue>,
    local: Option<Arc<Local>>,
}

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

/// An ALock is held as long as this lives.
///
/// Unlock with [`LockGuard::unlock`]. Dropping it does the same, but waits for the release fence in the drop, and an error
/// is only logged.
#[must_use = "the lock is released when the guard is dropped"]
pub struct ALockGuard<'a> {
    locks: &'a ALockArray,
    endpoint: &'a Endpoint,
    /// None once it is released, or left to the service thread.
    held: Option<Held<'a>>,
    budget: u32,
    is_after_death: bool,
    is_repaired: bool,
}

enum Held<'a> {
    Remote(Entry<'a>),
    Local(LocalEntry<'a>),
}

impl ALock {
    /// Opens the lock, which lies on `home`, and waits for all nodes to do so.
    ///
    /// # Errors
    /// A node that is missing, gone, or opens it differently; no memory.
    pub fn open(node: &Node, path: &str, home: NodeId) -> Result<ALock> {
        ALock::open_with(node, path, home, ALockOptions::default())
    }

    /// [`ALock::open`], not with the usual options.
    ///
    /// # Errors
    /// As `open`; options that cannot be.
    pub fn open_with(node: &Node, path: &str, home: NodeId, options: ALockOptions) -> Result<ALock> {
        ALockArray::open_on(node, path, 1, vec![home], options).map(ALock)
    }

    /// Takes the lock, waiting as long as the endpoint's timeout.
    ///
    /// # Errors
    /// A timeout, or the home node is gone.
    pub async fn lock<'a>(&'a self, endpoint: &'a Endpoint) -> Result<ALockGuard<'a>> {
        self.0.lock(endpoint, 0).await
    }

    /// [`ALock::lock`] with a deadline.
    ///
    /// # Errors
    /// As `lock`.
    pub async fn lock_deadline<'a>(&'a self, endpoint: &'a Endpoint, deadline: Instant) -> Result<ALockGuard<'a>> {
        self.0.lock_deadline(endpoint, 0, deadline).await
    }

    /// Takes the lock if that can be done without waiting for anybody.
    ///
    /// # Errors
    /// The home node is gone.
    pub async fn try_lock<'a>(&'a self, endpoint: &'a Endpoint) -> Result<Option<ALockGuard<'a>>> {
        self.0.try_lock(endpoint, 0).await
    }
}

impl ALockArray {
    /// Opens `count` locks and waits for all nodes to do so.
    ///
    /// # Errors
    /// A node that is missing, gone, or opens them differently; no memory; options that cannot be.
    pub fn open(node: &Node, path: &str, count: usize, options: ALockOptions) -> Result<ALockArray> {
        ALockArray::open_on(node, path, count, node.members_for(path), options)
    }

    fn open_on(node: &Node, path: &str, count: usize, homes: Vec<NodeId>, options: ALockOptions) -> Result<ALockArray> {
        options.check(count).of(path)?;
        let ALockOptions { remote_budget, local_budget, operations_max } = options;
        let mut more = Regions::new(node);
        let own = more.alloc("descriptors", GroupKey::SIGNAL, operations_max * descriptor::BYTES).of(path)?;
        let own_local = match homes.contains(&node.id()) {
            true => Some(more.alloc_own(GroupKey::SIGNAL, Local::bytes(operations_max)).of(path)?),
            false => None,
        };
        let layout = Layout {
            path,
            kind: "ALockArray",
            count,
            words_each: WORDS,
            homes,
            group: GroupKey::SIGNAL,
            options: format!(", budgets={remote_budget}/{local_budget}"),
            is_local: true,
            more,
            expected: vec![("descriptors".into(), own.bytes() as u64)],
            after_death: (REPAIRED, u64::MAX), // not what has been told so far
        };
        let spread = Spread::open(node, layout)?;
        let descriptors = Descriptors::new(node.id(), own, spread.regions("descriptors")?);
        let queue = Queue::new(&spread.object, descriptors, Id::NOBODY);
        let local = spread.own.clone().zip(own_local);
        let local = local.map(|(locks, descriptors)| Local::new(locks, descriptors, Arc::clone(&queue)));
        Ok(ALockArray { spread, options, queue, local })
    }

    /// The local side of a lock, if it lies on this node.
    fn local(&self, record: RemotePtr<u64>) -> Option<&Arc<Local>> {
        self.local.as_ref().filter(|_| record.node() == self.spread.node().id())
    }

    async fn take<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        index: usize,
        wait: Wait,
        tries: bool,
    ) -> Result<Option<ALockGuard<'a>>> {
        self.spread.check_current()?;
        let record = self.spread.record(index);
        match self.local(record) {
            Some(local) => self.lock_local(local, endpoint, index, wait, tries).await,
            None => self.lock_remote(endpoint, index, record, wait, tries).await,
        }
    }

    async fn lock_remote<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        index: usize,
        record: RemotePtr<u64>,
        mut wait: Wait,
        tries: bool,
    ) -> Result<Option<ALockGuard<'a>>> {
        let place = Place {
            lock: index,
            tail: record.at(TAIL_REMOTE),
            claims: record.at(CLAIMS),
            buried: Some(record.at(BURIED)),
        };
        let mut entry = self.queue.entry(endpoint, place)?;
        let Some(found) = entry.enqueue(&mut wait, tries).await? else { return Ok(None) };
        let mut granted = None;
        if found.node().is_some() {
            match entry.granted(&mut wait).await {
                Ok(grant) => granted = Some(grant),
                Err(error) if tries && error.is_timeout() => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        let (budget, is_after_death) = match granted {
            Some(grant) if grant.budget() > 0 => (grant.budget(), grant.is_after_death()),
            again => {
                let names_victim = again.is_none() || !mutants::is_on(Mutant::AlockVictimNotSet);
                let won = compete(&mut entry, &mut wait, names_victim, tries).await.of(self.spread.path())?;
                let Some(is_after_death) = won else {
                    entry.back_out().await?;
                    return Ok(None);
                };
                (self.reset(again, self.options.remote_budget), is_after_death)
            }
        };
        let held = Some(Held::Remote(entry));
        Ok(Some(ALockGuard { locks: self, endpoint, held, budget, is_after_death, is_repaired: false }))
    }

    async fn lock_local<'a>(
        &'a self,
        local: &'a Arc<Local>,
        endpoint: &'a Endpoint,
        index: usize,
        mut wait: Wait,
        tries: bool,
    ) -> Result<Option<ALockGuard<'a>>> {
        let path = self.spread.path();
        let mut entry = local.entry(endpoint, index, self.spread.offset(index)).of(path)?;
        let mut granted = None;
        if !entry.enqueue(tries) {
            if tries {
                return Ok(None);
            }
            granted = Some(entry.granted(&mut wait).await.of(path)?);
        }
        let (budget, is_after_death) = match granted {
            Some(grant) if grant.budget() > 0 => (grant.budget(), grant.is_after_death()),
            again => {
                let names_victim = again.is_none() || !mutants::is_on(Mutant::AlockVictimNotSet);
                if !entry.wins(&mut wait, names_victim, tries).await.of(path)? {
                    entry.back_out();
                    return Ok(None);
                }
                // Read after the lock is taken. Of the deaths that are told of later, none can have been a holder's.
                let (deaths, repaired) = entry.deaths();
                (self.reset(again, self.options.local_budget), deaths != repaired)
            }
        };
        let held = Some(Held::Local(entry));
        Ok(Some(ALockGuard { locks: self, endpoint, held, budget, is_after_death, is_repaired: false }))
    }

    /// The budget of one who has won.
    fn reset(&self, granted: Option<Grant>, whole: u32) -> u32 {
        match granted {
            Some(grant) if mutants::is_on(Mutant::AlockBudgetNotReset) => grant.budget(),
            _ => whole,
        }
    }
}

impl LockArray for ALockArray {
    type Guard<'a> = ALockGuard<'a>;

    fn len(&self) -> usize {
        self.spread.count
    }

    fn home(&self, index: usize) -> NodeId {
        self.spread.record(index).node()
    }

    async fn lock<'a>(&'a self, endpoint: &'a Endpoint, index: usize) -> Result<ALockGuard<'a>> {
        let guard = self.take(endpoint, index, Wait::USUAL, false).await?;
        Ok(guard.expect("who does not only try gets the lock, or an error"))
    }

    async fn lock_deadline<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        index: usize,
        deadline: Instant,
    ) -> Result<ALockGuard<'a>> {
        let guard = self.take(endpoint, index, Wait::until(deadline), false).await?;
        Ok(guard.expect("who does not only try gets the lock, or an error"))
    }

    async fn try_lock<'a>(&'a self, endpoint: &'a Endpoint, index: usize) -> Result<Option<ALockGuard<'a>>> {
        self.take(endpoint, index, Wait::NONE, true).await
    }
}

/// The head of the remote queue competes with that of the local one. Whether a holder has died, and nobody has repaired what
/// it left; none if it only tries, and has not won at once.
async fn compete(entry: &mut Entry<'_>, wait: &mut Wait, names_victim: bool, tries: bool) -> Result<Option<bool>> {
    let (endpoint, record) = (entry.endpoint(), entry.place().tail);
    let mut named = Named { entry, is_in_memory: false };
    if names_victim {
        // Posted together with the get behind it, which it lands before (`NRW → NRR`).
        endpoint.put_value(record.at(VICTIM), REMOTE).detach()?;
    }
    loop {
        // In any order: each of the first two is enough by itself. The others have not changed since a holder changed them,
        // but for `repaired`, which may be older than that the holder has left.
        let [tail_local, victim, claims, burials, repaired] = whole_words(endpoint, record.at(TAIL_LOCAL)).await?;
        named.is_in_memory = true; // the get has come back, after the victim's put
        if tail_local == 0 || victim != REMOTE {
            let deaths = deaths_told(claims) + burials;
            let is_repaired = deaths == repaired || endpoint.get(record.at(REPAIRED)).await? == deaths;
            return Ok(Some(!is_repaired));
        }
        if tries {
            return Ok(None);
        }
        if let Some(late) = wait.is_late(endpoint, LOCK, None) {
            return Err(late);
        }
        endpoint.look_again(wait.slice(endpoint)).await;
    }
}

/// A victim that was named. It is in memory before its operation gives up the head: if it landed afterwards, the local head
/// could take it for the next one's, and enter beside it.
struct Named<'a, 'e> {
    entry: &'a mut Entry<'e>,
    is_in_memory: bool,
}

impl Drop for Named<'_, '_> {
    fn drop(&mut self) {
        if !self.is_in_memory && !mutants::is_on(Mutant::AlockVictimLate) {
            // A round trip at most.
            let (endpoint, home) = (self.entry.endpoint(), self.entry.place().tail.node());
            if endpoint.block_on(endpoint.global_fence([home])).is_err() {
                self.entry.keep(); // its home is gone, or it never leaves the head
            }
        }
    }
}

impl ALockGuard<'_> {
    /// How many operations of its cohort may have the lock after this one before the other cohort has its turn.
    pub fn budget(&self) -> u32 {
        self.budget
    }

    /// Says in the lock's record that what the dead have left is repaired. The release makes it visible.
    async fn tell_repaired(&self) -> fabric::Result<()> {
        match self.held.as_ref() {
            Some(Held::Remote(entry)) => {
                let record = entry.place().tail;
                let [claims, burials] = whole_words(self.endpoint, record.at(CLAIMS)).await?;
                self.endpoint.put_value(record.at(REPAIRED), deaths_told(claims) + burials).detach()
            }
            Some(Held::Local(entry)) => {
                entry.tell_repaired();
                Ok(())
            }
            None => Ok(()),
        }
    }

    async fn release(&mut self) -> Result<()> {
        let (path, node, endpoint) = (self.locks.spread.path(), self.locks.spread.node(), self.endpoint);
        if self.is_repaired && self.tell_repaired().await.is_ok() {
            self.is_after_death = false;
        }
        let hands = Grant::new(self.budget.wrapping_sub(1), self.is_after_death);
        let spared = match self.held.as_mut().expect("it is held") {
            Held::Remote(entry) => {
                entry.hands(hands);
                entry.spared()
            }
            Held::Local(entry) => {
                entry.hands(hands);
                Spared::Nothing
            }
        };
        let is_spared = |node| spared.is(node) || mutants::is_on(Mutant::AlockNoFence);
        let lost = fence_holder(node, endpoint, is_spared).await.of(path)?;
        if !lost.is_empty() {
            return match self.held.take().expect("it is held") {
                Held::Remote(entry) => release_later(node, endpoint, lost, entry.leave_later()),
                Held::Local(entry) => release_later(node, endpoint, lost, entry.leave_later()),
            }
            .of(path);
        }
        match self.held.take().expect("it is held") {
            Held::Remote(entry) => entry.leave(spared).await,
            Held::Local(entry) => {
                entry.leave().await;
                Ok(())
            }
        }
    }

    /// Something went wrong before it was known that all is visible: the lock stays taken.
    fn keep(&mut self) {
        match self.held.take() {
            Some(Held::Remote(mut entry)) => entry.keep(),
            Some(Held::Local(mut entry)) => entry.keep(),
            None => {}
        }
    }
}

impl LockGuard for ALockGuard<'_> {
    async fn unlock(mut self) -> Result<()> {
        let released = self.release().await;
        self.keep();
        released
    }

    fn is_after_death(&self) -> bool {
        self.is_after_death
    }

    fn repaired(&mut self) {
        self.is_repaired = self.is_after_death;
    }
}

impl Drop for ALockGuard<'_> {
    fn drop(&mut self) {
        if self.held.is_some() {
            if let Err(error) = self.endpoint.block_on(self.release()) {
                tracing::error!("releasing a lock in a drop: {error}");
            }
            self.keep();
        }
    }
}
