//! ALock: a lock for asymmetric memory. Threads on the lock's own node never use the NIC.
//!
//! A CPU's read-modify-writes and a NIC's are not atomic with each other, so with an ordinary lock every thread uses
//! the NIC, even on the lock's own node. ALock has two queues instead, one for each *cohort*. Operations of other nodes
//! use remote atomics on one tail, and those of the lock's node use CPU atomics on the other. The heads of the two
//! queues compete by Peterson's algorithm. It needs reads and writes only, which CPU and NIC may mix. The tails are its
//! flags.
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
//! The entries (`descriptor.rs`, `local.rs`) belong to operations, not to threads: a thread may hold and await several
//! locks. Each cohort has its own free list of entries.
//!
//! # Acquire
//!
//! *Remote.* An operation enqueues (`queue.rs`). If it finds the queue empty, it competes: it puts the cohort into
//! `victim`, then gets `tail_local` and `victim` until `tail_local` is empty or `victim` names the other cohort.
//! - The compare-and-swap completes before the put is issued (`NLW → WT → NLR`): the flag is up before the victim is
//!   named.
//! - The get follows the put (`NRW → NRR`, to one node): the two are posted together.
//! - The two words may be read in any order, since each alone suffices.
//! - The holder's later reads follow the get.
//!
//! *Local* (`local.rs`). An operation exchanges `tail_local` (by a compare-and-swap, repeated until it succeeds),
//! stores `victim`, issues a memory fence, and reads `tail_remote` and `victim`.
//! - The exchange precedes the store (`CAS → CW`).
//! - The fence orders the store before the reads (`CW → MF → CR`; without it `CW → CR` is not ordered).
//!
//! Exclusion is Peterson's: the head that writes `victim` last finds the other's flag up and itself the victim. This
//! requires that a named victim is in memory before its operation gives up the head. A put that landed later would
//! admit a local thread beside a remote one. So an operation that is dropped between put and get waits for the get.
//!
//! # Release
//!
//! The holder's puts must be visible before another operation can acquire the lock. A put's completion does not ensure
//! this, so the release waits for a get from every node that the holder's endpoint has put to (a global fence).
//!
//! One node is exempt. If the operation behind is known, its node is exempt, since the grant is put to the same node
//! (`NRW → NRW`). On the own node the grant is a store, and no node is exempt. If no operation behind is known, the
//! lock's node is exempt: the compare-and-swap that empties the tail follows earlier puts to its node (`NRW → NAR`),
//! and has flushed them if it fails. CPU writes precede any operation that is issued later, and any later CPU write.
//!
//! The *budget* limits how often in a row a cohort may pass the lock on to its own operations. Each grant carries the
//! remaining budget. An operation that is granted 0 competes again, so that the other cohort's waiting head gets the
//! lock. Then the budget is reset.
//!
//! # Costs
//!
//! | call | round trips | operations |
//! |---|---|---|
//! | `lock`, remote, free | 2 | 1 cas; 1 put and 1 get, posted together |
//! | `lock`, remote, behind another | 1 for each attempt, then a local wait | 1 cas each, 1 put (0 to its own node) |
//! | the same, granted 0 | plus 1 for each poll | 1 put, a get for each poll |
//! | `unlock`, remote, d nodes put to, without the exempt one | 1 (d = 0) or 2 | at most d gets, 1 cas |
//! | `unlock`, remote, another behind | the same; 0 if known | at most d gets and 1 cas, 1 put (0 to its own node) |
//! | `lock`, local | 0 | none |
//! | `unlock`, local, d nodes put to | 0 or 1 | at most d gets |
//!
//! No thread needs a queue pair to its own node. Threads on the lock's node use the CPU. Threads of another node that
//! wait behind each other use stores, since no word of a descriptor is updated by remote atomics.
//!
//! # When a node dies
//!
//! *If it had a remote holder or waiter*, the remote queue is recovered as described in `queue.rs`. If that queue holds
//! no living operation, the local head detects this, and treats its tail as empty. It cannot be known whether the dead
//! operation held the lock. So the next holder is warned that something may be half-written
//! ([`LockGuard::is_poisoned`](crate::LockGuard::is_poisoned)), and so are later holders, until one of them calls
//! [`LockGuard::clear_poison`](crate::LockGuard::clear_poison). Each operation that the dead node had in the queue may
//! cause such a warning.
//!
//! *If it was the lock's home*, the lock is lost, and every call returns an error that names the node.
//!
//! Source: Baran, Nelson-Slivon, Tseng, Palmieri, "ALock: Asymmetric Lock Primitive for RDMA Systems" (SPAA 2024),
//! section 5. The paper's algorithm handles neither deadlines nor deaths; those parts are ours. `specs/alock` has the
//! algorithm in TLA+.

mod guard;
pub(crate) mod layout;
mod options;
mod single;

use core::borrow::BorrowMut;
use core::mem;
use std::sync::Arc;

use farfield_fabric::{self as fabric, Begun, Endpoint, GroupKey, Kept, NodeId, Op, RemotePtr};

pub use self::guard::ALockGuard;
use self::guard::Held;
use self::layout::{BURIED, CLAIMS, REMOTE, REPAIRED, TAIL_LOCAL, TAIL_REMOTE, VICTIM, WORDS};
pub use self::options::ALockOptions;
pub use self::single::ALock;
use super::descriptor::{self, Descriptors, Id};
use super::entry::{Entry, Moving};
use super::grant::{Grant, LOCK, Wait};
use super::local::{Local, LocalEntry, LocalHead};
use super::queue::{Head, Queue, Words, deaths_told};
use super::{Layout, LockArray, Spread, WaitLimit, in_order};
use farfield_core::toolkit::{Either, ErrorContext, Holding, Regions, Rest};
use farfield_core::{Node, Result};

/// An array of ALocks, spread over the nodes that open it, in order: lock `i` is on the node at position `i mod nodes`.
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

impl ALockArray {
    /// Opens `count` locks and waits for all nodes to do so.
    ///
    /// ```
    /// # use farfield::{ALockArray, ALockOptions, LockArray};
    /// # let node = farfield::Node::builder().start()?;
    /// let locks = ALockArray::open(&node, "locks", 100, ALockOptions::default())?;
    /// assert_eq!(locks.len(), 100);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A node is missing, unreachable, or opens them differently; memory is exhausted; or the options are invalid.
    pub fn open(node: &Node, path: &str, count: usize, options: ALockOptions) -> Result<ALockArray> {
        ALockArray::open_among(node, path, &node.members_for(path), count, options)
    }

    /// Opens the locks among these nodes, which must name the same, and waits for them to do so. Lock `i` is on the one
    /// at `i mod nodes` of them, in the order of their numbers.
    ///
    /// ```
    /// # use farfield::{LockArray, ALockArray, ALockOptions};
    /// # let nodes = farfield::local_session(3)?; let pair = [nodes[0].id(), nodes[1].id()];
    /// let open = |node: &farfield::Node| ALockArray::open_among(node, "stripes", &pair, 64, ALockOptions::default());
    /// let locks = farfield::on_each(&nodes[..2], open)?; // the third node does not open them
    /// assert_eq!(locks[1].home(3), pair[1]);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `open`, or this node is not among them.
    pub fn open_among(
        node: &Node,
        path: &str,
        participants: &[NodeId],
        count: usize,
        options: ALockOptions,
    ) -> Result<ALockArray> {
        let participants = in_order(participants);
        ALockArray::open_on(node, path, count, participants.clone(), participants, options)
    }

    fn open_on(
        node: &Node,
        path: &str,
        count: usize,
        homes: Vec<NodeId>,
        participants: Vec<NodeId>,
        options: ALockOptions,
    ) -> Result<ALockArray> {
        options.check(count).of(path)?;
        let ALockOptions { remote_budget, local_budget, operations_max } = options;
        let mut more = Regions::new(node);
        let own = more.alloc("descriptors", GroupKey::SIGNAL, operations_max * descriptor::BYTES).of(path)?;
        let own_local = if homes.contains(&node.id()) {
            Some(more.alloc_own(GroupKey::SIGNAL, Local::bytes(operations_max)).of(path)?)
        } else {
            None
        };
        let layout = Layout {
            path,
            kind: "ALockArray",
            count,
            words_each: WORDS,
            homes,
            participants,
            group: GroupKey::SIGNAL,
            options: format!(", budgets={remote_budget}/{local_budget}"),
            is_local: true,
            more,
            expected: vec![("descriptors".into(), own.bytes() as u64)],
            after_death: (REPAIRED, u64::MAX), // equals no count of deaths, so none counts as repaired
        };
        let spread = Spread::open(node, layout)?;
        let descriptors = Descriptors::new(node.id(), own, spread.regions("descriptors")?);
        const { assert!(TAIL_REMOTE == 0) }
        let words = Words { claims: CLAIMS, buried: Some(BURIED) };
        let queue = Queue::new(&spread.object, descriptors, words, Id::NOBODY);
        let local = spread.own.clone().zip(own_local);
        let local =
            local.map(|((locks, first), descriptors)| Local::new(locks, first, descriptors, Arc::clone(&queue)));
        Ok(ALockArray { spread, options, queue, local })
    }

    /// How many operations of this node have an entry.
    #[cfg(all(feature = "scenarios", not(test)))]
    pub(crate) fn entries(&self) -> usize {
        self.queue.descriptors.in_use() + self.local.as_ref().map_or(0, |local| local.in_use())
    }

    /// The local side of a lock, if its home is this node.
    #[inline]
    fn local(&self, record: RemotePtr<u64>) -> Option<&Arc<Local>> {
        if record.node() == self.spread.me { self.local.as_ref() } else { None }
    }

    #[inline]
    fn guard<'a>(&'a self, endpoint: &'a Endpoint, held: Held, budget: u32, is_poisoned: bool) -> ALockGuard<'a> {
        ALockGuard { locks: self, endpoint, held, budget, holding: Holding::new(is_poisoned) }
    }

    async fn go_on<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        index: usize,
        taking: Taking<'a>,
        mut limit: impl BorrowMut<WaitLimit>,
    ) -> Result<Option<ALockGuard<'a>>> {
        let wait = Wait::new(limit.borrow_mut());
        match taking {
            Taking::Local(local, head) => self.lock_local(local, endpoint, index, head, wait).await,
            Taking::Remote(entering) => self.lock_remote(endpoint, entering, wait).await,
        }
    }

    async fn lock_remote<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        entering: Entering<'a>,
        mut wait: Wait<'_>,
    ) -> Result<Option<ALockGuard<'a>>> {
        let (mut granted, mut looked) = (None, None);
        let mut entry = match entering {
            Entering::Enters(moving) => {
                let (mut entry, asked) = moving.into_inner().into_parts();
                let Some(found) = entry.enqueue(&mut wait, asked).await? else { return Ok(None) };
                if found.node().is_some() {
                    match endpoint.boxed(entry.granted(&mut wait)).await {
                        Ok(grant) => granted = Some(grant),
                        Err(error) if wait.is_forbidden() && error.is_timeout() => return Ok(None),
                        Err(error) => return Err(error),
                    }
                }
                entry
            }
            Entering::Competes(mut competing) => {
                let (entry, look) = competing.0.take().expect("it is taken apart once");
                looked = Some(look);
                entry
            }
        };
        let (budget, is_poisoned) = match granted {
            Some(grant) if grant.budget() > 0 => (grant.budget(), grant.is_poisoned()),
            _ => {
                let won = compete(&mut entry, &mut wait, looked).await.of(self.spread.path())?;
                let Some(is_poisoned) = won else {
                    entry.back_out().await?;
                    return Ok(None);
                };
                (self.options.remote_budget, is_poisoned)
            }
        };
        Ok(Some(self.guard(endpoint, Held::remote(entry.into_head()), budget, is_poisoned)))
    }

    /// The lock of an operation that has just won against the head of the remote queue.
    #[inline]
    fn won_local<'a>(&'a self, endpoint: &'a Endpoint, local: &Local, head: LocalHead) -> ALockGuard<'a> {
        // Read after the lock is taken. Deaths that are reported later cannot be those of a holder.
        let (deaths, repaired) = local.deaths(head);
        self.guard(endpoint, Held::local(head), self.options.local_budget, deaths != repaired)
    }

    /// Waits for a lock of this node, as the operation at the head of the local queue, or as one that is not in it yet.
    async fn lock_local<'a>(
        &'a self,
        local: &'a Arc<Local>,
        endpoint: &'a Endpoint,
        index: usize,
        head: Option<LocalEntry<'a>>,
        mut wait: Wait<'_>,
    ) -> Result<Option<ALockGuard<'a>>> {
        let (path, is_head) = (self.spread.path(), head.is_some());
        let mut entry = match head {
            Some(entry) => entry,
            None => local.entry(endpoint, index, local.offset(self.spread.record(index))).of(path)?,
        };
        let mut granted = None;
        if !is_head && !entry.enqueue(wait.is_forbidden()) {
            if wait.is_forbidden() {
                return Ok(None);
            }
            granted = Some(entry.granted(&mut wait).await.of(path)?);
        }
        if let Some(grant) = granted.filter(|grant| grant.budget() > 0) {
            let held = Held::local(entry.into_head());
            return Ok(Some(self.guard(endpoint, held, grant.budget(), grant.is_poisoned())));
        }
        // A head that was passed in has competed, and not won yet.
        let has_won = !is_head && entry.competes();
        if !has_won && !entry.wins(&mut wait).await.of(path)? {
            entry.back_out();
            return Ok(None);
        }
        Ok(Some(self.won_local(endpoint, local, entry.into_head())))
    }
}

impl ALockArray {
    /// [`LockArray::begin`] on locks that are current.
    #[inline(always)]
    fn takes<'a, L: BorrowMut<WaitLimit>>(
        &'a self,
        endpoint: &'a Endpoint,
        index: usize,
        limit: L,
    ) -> Result<Begun<ALockGuard<'a>, impl Rest<Option<ALockGuard<'a>>> + use<'a, L>>> {
        let record = self.spread.record(index);
        let taking = match self.local(record) {
            Some(local) => match local.enters_at_once(endpoint, index, local.offset(record)) {
                Some(head) if local.competes(endpoint, head) => return Ok(Ok(self.won_local(endpoint, local, head))),
                head => Taking::Local(local, head.map(|head| local.at_head(endpoint, head, Grant::new(0, false)))),
            },
            None => Taking::Remote(match self.queue.enters(endpoint, record, index)? {
                Ok(head) => {
                    let look = endpoint.put_and_get_at_once(record, (VICTIM, REMOTE), TAIL_LOCAL).map(Look);
                    if look.is_some_and(|look| look.has_won() && look.is_repaired()) {
                        let budget = self.options.remote_budget;
                        return Ok(Ok(self.guard(endpoint, Held::remote(head), budget, false)));
                    }
                    self.competing(endpoint, head, look)?
                }
                Err(moving) => Entering::Enters(moving),
            }),
        };
        Ok(Err(self.begin_rest(endpoint, index, taking, limit)))
    }

    // Inlined, or what it is given would have to be in memory when it is not called.
    #[inline(always)]
    fn competing<'a>(&'a self, endpoint: &'a Endpoint, head: Head, look: Option<Look>) -> Result<Entering<'a>> {
        let look = look.map_or_else(|| names_victim(endpoint, head.record), |look| Ok(Ok(look)));
        let entry = self.queue.at_head(endpoint, head, Grant::new(0, false));
        // If the put was refused, no victim is named. If it was done, this side is the victim, and only yields. In
        // either case the entry may leave the head.
        let look = look.of(self.spread.path())?;
        Ok(Entering::Competes(Competing(Some((entry, look)))))
    }

    #[cold]
    #[inline(never)]
    fn begin_rest<'a, L: BorrowMut<WaitLimit>>(
        &'a self,
        endpoint: &'a Endpoint,
        index: usize,
        taking: Taking<'a>,
        limit: L,
    ) -> impl Rest<Option<ALockGuard<'a>>> + use<'a, L> {
        endpoint.boxed(self.go_on(endpoint, index, taking, limit))
    }
}

impl LockArray for ALockArray {
    type Guard<'a> = ALockGuard<'a>;

    fn len(&self) -> usize {
        self.spread.count()
    }

    #[inline]
    fn home(&self, index: usize) -> NodeId {
        self.spread.record(index).node()
    }

    #[inline(always)]
    fn begin<'a, L: BorrowMut<WaitLimit>>(
        &'a self,
        endpoint: &'a Endpoint,
        index: usize,
        limit: L,
    ) -> Result<Begun<ALockGuard<'a>, impl Rest<Option<ALockGuard<'a>>>>> {
        if self.spread.object.is_plain() {
            return Ok(self.takes(endpoint, index, limit)?.map_err(Either::Plain));
        }
        let until = *limit.borrow();
        let takes = async move {
            match self.takes(endpoint, index, limit)? {
                Ok(guard) => Ok(Some(guard)),
                Err(rest) => rest.await,
            }
        };
        Ok(Err(Either::Measured(self.spread.measure(endpoint, until, takes)?)))
    }
}

/// An operation that has not got its lock without a wait.
enum Taking<'a> {
    Remote(Entering<'a>),
    /// On the lock's own node: at the head of the queue, or not in it yet.
    Local(&'a Arc<Local>, Option<LocalEntry<'a>>),
}

/// How far an operation of another node has come.
enum Entering<'a> {
    /// It is in front of the remote queue, or behind others.
    Enters(Kept<'a, Moving<'a>>),
    /// It is at the head, and has named the victim.
    Competes(Competing<'a>),
}

/// An operation at the head of the remote queue that has named the victim. If it is dropped, that is in memory before
/// it gives up the head.
struct Competing<'a>(Option<(Entry<'a>, Looking<'a>)>);

impl Drop for Competing<'_> {
    fn drop(&mut self) {
        if let Some((mut entry, _)) = self.0.take() {
            drop(Named { entry: &mut entry, is_in_memory: false });
        }
    }
}

/// What the head of the remote queue has seen of the record. The words may be read in any order: each of the first two
/// suffices by itself. The others have not changed since the last holder changed them. Only `repaired` may be older
/// than the value that this holder left.
#[derive(Clone, Copy)]
struct Look([u64; 5]);

/// A look that may not have ended yet.
type Looking<'a> = core::result::Result<Look, Op<'a, [u64; 5]>>;

impl Look {
    #[inline(always)]
    fn begin(endpoint: &Endpoint, record: RemotePtr<u64>) -> Looking<'_> {
        endpoint.get_words(record.at(TAIL_LOCAL)).into_value().map(Look)
    }

    fn has_won(&self) -> bool {
        let Look([tail_local, victim, ..]) = *self;
        tail_local == 0 || victim != REMOTE
    }

    fn deaths(&self) -> u64 {
        deaths_told(self.0[2]) + self.0[3]
    }

    fn is_repaired(&self) -> bool {
        self.0[4] == self.deaths()
    }
}

/// Lets the head of the local queue pass, unless it does the same, and looks whether it has.
#[inline(never)]
fn names_victim(endpoint: &Endpoint, record: RemotePtr<u64>) -> fabric::Result<Looking<'_>> {
    // Posted together with the get that follows, and lands before it (`NRW → NRR`).
    endpoint.put_value(record.at(VICTIM), REMOTE).detach()?;
    Ok(Look::begin(endpoint, record))
}

/// Competes, as the head of the remote queue, with the head of the local one; `looked` if it has named the victim
/// already. Returns whether a holder has died and its damage is not repaired; none if it may not wait and the first
/// attempt fails.
async fn compete<'a>(entry: &mut Entry<'a>, wait: &mut Wait<'_>, looked: Option<Looking<'a>>) -> Result<Option<bool>> {
    let (endpoint, record) = (entry.endpoint(), entry.record());
    let mut named = Named { entry, is_in_memory: false };
    let mut looking = match looked {
        Some(looking) => looking,
        None => names_victim(endpoint, record)?,
    };
    let mut has_spun = false;
    loop {
        let look = match looking {
            Ok(look) => look,
            Err(looking) => Look(looking.await?),
        };
        named.is_in_memory = true; // the get has completed, after the victim's put
        if look.has_won() {
            let is_repaired = look.is_repaired() || endpoint.get(record.at(REPAIRED)).await? == look.deaths();
            return Ok(Some(!is_repaired));
        }
        if wait.is_forbidden() {
            return Ok(None);
        }
        if let Some(late) = wait.is_late(endpoint, LOCK, None) {
            return Err(late);
        }
        let looks = || Look::begin(endpoint, record).ok().filter(Look::has_won);
        let seen = if mem::replace(&mut has_spun, true) { None } else { endpoint.spin_until(looks) };
        looking = match seen {
            Some(look) => Ok(look),
            None => {
                endpoint.wait_for_change_on(record, wait.slice(endpoint)).await;
                Look::begin(endpoint, record)
            }
        };
    }
}

/// A named victim. It must be in memory before its operation gives up the head. If it landed later, the local head
/// could take it for the next operation's, and enter beside that one.
struct Named<'a, 'e> {
    entry: &'a mut Entry<'e>,
    is_in_memory: bool,
}

impl Drop for Named<'_, '_> {
    fn drop(&mut self) {
        if !self.is_in_memory {
            // It takes one round trip at most.
            let (endpoint, home) = (self.entry.endpoint(), self.entry.record().node());
            if endpoint.block_on(endpoint.global_fence([home])).is_err() {
                self.entry.leak(); // either its home is unreachable, or the entry never leaves the head
            }
        }
    }
}
