//! A lock between operations of all nodes: first come, first served, with bounded bypass.
//!
//! One word on the home node, worked on by remote atomics only:
//!
//! ```text
//! 63           42 41            20 19       18         12 11            0
//! ┌──────────────┬────────────────┬──────────┬────────────┬───────────────┐   holder: 0, or the holder's node plus one
//! │ next (22)    │ serving (22)   │ died (1) │ bypass (7) │ holder (12)   │   died: a holder died, and nobody has
//! └──────────────┴────────────────┴──────────┴────────────┴───────────────┘         repaired what it left
//! ```
//!
//! A free lock is taken by one compare-and-swap. An operation that finds it held draws a ticket (fetch-and-add on
//! `next`), watches the word, and takes the lock by a compare-and-swap when it is free and `serving` is its ticket. A
//! newcomer may take a free lock ahead of waiting operations, at most [`BYPASS_MAX`] times in a row. The head of the
//! queue may be a thread that does not run, and strict order would make all others wait for it. So a ticket with k
//! others before it is served after at most (k + 1)·([`BYPASS_MAX`] + 1) critical sections. Release is one
//! fetch-and-add of −holder.
//!
//! *Acquire.* The holder has waited for the compare-and-swap, so its later reads follow it. *Release.* The holder's
//! puts to any node must be visible before the lock is seen free. A put's completion does not guarantee that. So the
//! release first waits for a get from every node that received a put of the holder's endpoint since it last read from
//! it (a global fence). The home node is left out: the release is a remote atomic on the same queue pair, and executes
//! after earlier puts to that node. The home is fenced, too, after puts to memory of a further group there
//! ([`GroupKey::class`]). The release waits for pending gets, which it could overtake. CPU writes precede any later
//! operation.
//!
//! The ticket belongs to the operation: several operations of one thread may want the same lock. An operation that is
//! dropped while it waits gives its ticket to the service thread, which passes the turn on. An operation that is
//! *forgotten* (`mem::forget`) keeps it, as a forgotten guard keeps the lock: others then time out.
//!
//! | call | round trips | operations |
//! |---|---|---|
//! | `lock`, free, nobody has queued since this node last had it | 1 | 1 cas |
//! | `lock`, free | 2 | 2 cas |
//! | `lock`, contended | 3 and more | cas, faa, a get for each look, cas |
//! | `unlock`, d nodes put to, the home left out | 1 (d = 0) or 2 | at most d gets, 1 faa |
//!
//! On the home node there are as many operations, and no round trips but for the fence.
//!
//! # When a node dies
//!
//! *The holder's.* An operation that finds the lock held by a node that is [`MemberStatus::Evicted`] frees it, by a
//! compare-and-swap that also sets `died`. It does not do so earlier: until then, puts of the dead node may still
//! land, and so may its release. The mark stays until a holder calls [`Guard::clear_poison`]. Until then
//! [`Guard::is_poisoned`] warns each holder that the protected data may be half-written. A holder that left
//! gracefully still holds the lock: an error names its node.
//!
//! *A waiter's.* Its turn is never taken. If a free lock has not been taken for [`STUCK_LONG`] and some node is dead
//! or departed, the waiting operations skip the turn. Each further turn is skipped after half the time, down to
//! [`STUCK_SHORT`], until none waits, since many operations of one node may have waited. An operation that was only
//! slow finds `serving` beyond its ticket and draws another: it has lost the turn, but the lock is not lost.
//!
//! *The home's.* The lock is lost with it; every call reports this and names the node. The survivors reopen it
//! ([`Node::reopen`]): then it is free, and marked as after a death. The mark is written before the address of the
//! word is announced.
//!
//! *A restarted node* may open a [`Mutex`] while the others have it open, if its home is alive.
//!
//! Source: LOCO's mutex; the bound on bypass, and all of this section, are ours.

mod abandoned;
mod guard;
mod single;
mod state;

use core::future::Future;
use core::time::Duration;
use std::collections::HashMap;

use farfield_fabric::{self as fabric, Endpoint, GroupKey, Instant, LocalMutex, NodeId, Op, RemotePtr, Word};

use self::abandoned::Ticket;
pub use self::guard::{Guard, HeldLock};
pub use self::single::Mutex;
pub use self::state::{BYPASS_MAX, STUCK_LONG, STUCK_SHORT};
use self::state::{DIED, DRAW, State, Watch, patience};
use crate::error::{ErrorContext, ErrorKind, Result};
use crate::node::{MemberStatus, Node, Object, ObjectBuilder, Regions};
use crate::objects::participants::Participants;
use crate::objects::release;
use crate::objects::settle::CancelGuard;

/// How often a waiter checks whether the holder's node is alive.
const HOLDER_CHECK_EVERY: Duration = Duration::from_millis(20);

/// A number of locks, spread over the nodes that open them, in order: the word of lock `i` is on node `i mod nodes`.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// let node = farfield::Node::builder().session("doc-locks").start()?;
/// let locks = farfield::MutexArray::open(&node, "stripes", 64)?;
/// let ep = node.endpoint()?;
/// let guard = ep.block_on(locks.lock(&ep, 7))?;
/// assert!(ep.block_on(locks.try_lock(&ep, 7))?.is_none());
/// ep.block_on(guard.unlock())?;
/// # Ok(()) }
/// ```
pub struct MutexArray {
    object: Object,
    /// What this node adds to a word while it holds the lock.
    me: u64,
    /// The word of lock `i` is at `bases[i mod nodes]` plus `i / nodes` records.
    bases: Vec<RemotePtr<u64>>,
    /// The distance from one record to the next: each has a cache line of its own, or they are packed.
    words_each: usize,
    /// The word of each lock when this node last saw it: the guess for the first compare-and-swap.
    seen: Box<[Word]>,
    /// Free locks that were not available without waiting.
    refused: LocalMutex<HashMap<usize, Watch>>,
    /// How many turns this node has skipped since the queue was last empty.
    passed_over: LocalMutex<HashMap<usize, u32>>,
}

/// The next step of a waiting operation.
enum Next {
    /// It takes the lock, or the turn, from a dead node, and leaves it in this state.
    Take(State),
    /// It fails, if the lock is still in the same state.
    Fail(fabric::Error),
    /// It waits for a change, until then at most.
    Wait(Instant),
}

/// The words of a cache line.
const WORDS_OF_LINE: usize = 8;

impl MutexArray {
    /// Opens `count` locks, each on a cache line of its own, and waits for all nodes to do so.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// let locks = farfield::on_each(&nodes, |node| farfield::MutexArray::open(node, "stripes", 64))?;
    /// assert_eq!((locks[0].home(0), locks[0].home(1)), (nodes[0].id(), nodes[1].id()));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A node that is missing, dead or departed, or that opens them differently; no memory.
    pub fn open(node: &Node, path: &str, count: usize) -> Result<MutexArray> {
        MutexArray::open_among(node, path, &node.members_for(path), count)
    }

    /// Opens the locks among these nodes, which must name the same, and waits for them to do so. The word of lock `i`
    /// is on the one at `i mod nodes` of them, in the order of their numbers.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(3)?;
    /// use farfield::{MutexArray, Node};
    /// let pair = [nodes[0].id(), nodes[2].id()];
    /// let open = |node: &Node| MutexArray::open_among(node, "stripes", &pair, 64);
    /// let locks = farfield::on_each(&[nodes[0].clone(), nodes[2].clone()], open)?; // the other does not open them
    /// assert_eq!((locks[0].home(0), locks[0].home(1)), (pair[0], pair[1]));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As `open`, or this node is not among them.
    pub fn open_among(node: &Node, path: &str, participants: &[NodeId], count: usize) -> Result<MutexArray> {
        let members: Vec<NodeId> = Participants::new(participants).iter().collect();
        let is_poisoned = node.is_reopening(path);
        MutexArray::open_on(node, path, count, WORDS_OF_LINE, members.clone(), members, is_poisoned)
    }

    /// [`MutexArray::open_among`] for an object that starts anew when it is reopened ([`Node::reopen`]): no lock is
    /// poisoned then, as there is nothing that a dead holder may have left half-written. The locks take a word each: an
    /// object may have many thousands of them.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().session("doc-unmarked").start()?;
    /// # let ep = node.endpoint()?;
    /// use farfield::MutexArray;
    /// let locks = node.reopen("cache", |again| {
    ///     let path = format!("{}/locks", again.path());
    ///     MutexArray::open_unmarked(&node, &path, again.members(), 64)
    /// })?;
    /// assert!(!ep.block_on(locks.lock(&ep, 7))?.is_poisoned());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As `open_among`.
    pub fn open_unmarked(node: &Node, path: &str, participants: &[NodeId], count: usize) -> Result<MutexArray> {
        let members: Vec<NodeId> = Participants::new(participants).iter().collect();
        MutexArray::open_on(node, path, count, 1, members.clone(), members, false)
    }

    fn open_on(
        node: &Node,
        path: &str,
        count: usize,
        words_each: usize,
        homes: Vec<NodeId>,
        participants: Vec<NodeId>,
        is_poisoned: bool,
    ) -> Result<MutexArray> {
        let words = count.div_ceil(homes.len().max(1)).max(1) * words_each;
        let bytes = words * 8;
        let mut regions = Regions::new(node);
        if homes.contains(&node.id()) {
            let mut record = vec![0; words_each];
            record[0] = if is_poisoned { DIED } else { 0 };
            regions.alloc_words("tickets", GroupKey::DATA, words, &record).of(path)?;
        }
        let homes_too = homes.clone();
        let expect =
            move |peer| if homes_too.contains(&peer) { vec![("tickets".into(), bytes as u64)] } else { vec![] };
        let opening = ObjectBuilder::new(node, path, "MutexArray").layout(&format!("count={count}, homes={homes:?}"));
        let opening = opening.participants(participants).regions(regions);
        let object = opening.require_regions(expect).takes_in_returned().open()?;
        let bases = homes.into_iter().map(|home| object.remote(home, "tickets")).collect::<Result<_>>()?;
        let seen = std::iter::repeat_with(Word::default).take(count).collect();
        let (me, refused, passed_over) = (u64::from(node.id().0) + 1, LocalMutex::default(), LocalMutex::default());
        Ok(MutexArray { object, me, bases, words_each, seen, refused, passed_over })
    }

    /// The number of locks.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let (ep, locks) = (node.endpoint()?, farfield::MutexArray::open(&node, "stripes", 64)?);
    /// let stripe = 0xfee1_dead % locks.len(); // the lock of some key
    /// let guard = ep.block_on(locks.lock(&ep, stripe))?;
    /// # Ok(()) }
    /// ```
    pub fn len(&self) -> usize {
        self.seen.len()
    }

    /// Whether there are no locks.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let (ep, locks) = (node.endpoint()?, farfield::MutexArray::open(&node, "stripes", 64)?);
    /// assert!(!locks.is_empty());
    /// # Ok(()) }
    /// ```
    pub fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }

    /// The home node of lock `index`.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let (ep, locks) = (node.endpoint()?, farfield::MutexArray::open(&node, "stripes", 64)?);
    /// assert_eq!(locks.home(7), node.id()); // there is no other node
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    /// If there is no such lock, as indexing a slice does.
    pub fn home(&self, index: usize) -> NodeId {
        self.word(index).node()
    }

    #[inline]
    fn word(&self, index: usize) -> RemotePtr<u64> {
        assert!(index < self.seen.len(), "lock {index} of {}", self.seen.len());
        self.bases[index % self.bases.len()].at(index / self.bases.len() * self.words_each)
    }

    /// Takes lock `index`, waiting as long as the endpoint's timeout.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let (ep, locks) = (node.endpoint()?, farfield::MutexArray::open(&node, "stripes", 64)?);
    /// let (a, b) = (ep.block_on(locks.lock(&ep, 3))?, ep.block_on(locks.lock(&ep, 8))?); // in ascending order
    /// ep.block_on(b.unlock())?;
    /// ep.block_on(a.unlock())?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A timeout, or the home node is dead or departed. An error names a holder that is dead and not evicted in time,
    /// or that has left.
    ///
    /// # Panics
    /// If there is no such lock, as indexing a slice does.
    pub fn lock<'a>(&'a self, endpoint: &'a Endpoint, index: usize) -> impl Future<Output = Result<Guard<'a>>> {
        self.lock_until(endpoint, index, || endpoint.deadline())
    }

    /// [`MutexArray::lock`] with a deadline.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let (ep, locks) = (node.endpoint()?, farfield::MutexArray::open(&node, "stripes", 64)?);
    /// let held = ep.block_on(locks.lock(&ep, 3))?;
    /// let deadline = ep.now() + std::time::Duration::from_millis(10);
    /// assert!(ep.block_on(locks.lock_deadline(&ep, 3, deadline)).is_err_and(|error| error.is_timeout()));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As `lock`.
    pub fn lock_deadline<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        index: usize,
        deadline: Instant,
    ) -> impl Future<Output = Result<Guard<'a>>> {
        self.lock_until(endpoint, index, move || deadline)
    }

    /// [`MutexArray::lock`] with a deadline that is asked for when the wait begins: where it does not wait, nothing has to
    /// read the clock.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let (ep, locks) = (node.endpoint()?, farfield::MutexArray::open(&node, "stripes", 64)?);
    /// let mut until = None; // both waits together last as long as the endpoint's timeout
    /// let a = ep.block_on(locks.lock_until(&ep, 3, || *until.get_or_insert_with(|| ep.deadline())))?;
    /// let b = ep.block_on(locks.lock_until(&ep, 8, || *until.get_or_insert_with(|| ep.deadline())))?;
    /// # drop((a, b));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As `lock`.
    ///
    /// # Panics
    /// If there is no such lock, as indexing a slice does.
    pub async fn lock_until<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        index: usize,
        deadline: impl FnOnce() -> Instant,
    ) -> Result<Guard<'a>> {
        self.object.check_current()?;
        // A free lock: at most two attempts, since a wrong guess is corrected by the first. The block keeps their
        // variables out of the future of the wait.
        {
            let (word, me) = (self.word(index), self.me);
            let mut state = State(self.seen[index].load()).freed();
            for _ in 0..2 {
                let Some(taken) = state.taken_by_newcomer(me) else { break };
                let found = match endpoint.cas(word, state.0, taken.0).into_value() {
                    Ok(found) => State(found),
                    Err(take) => State(self.settle_take(endpoint, word, state, take).await.of(self.object.path())?),
                };
                if found == state {
                    return Ok(self.guard(endpoint, word, index, taken));
                }
                state = found;
            }
        }
        // A wait has memory of its own, so that the future of an uncontended call is small.
        endpoint.boxed(self.lock_in_turn(endpoint, index, deadline())).await
    }

    /// Takes lock `index` if it is available without waiting.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let (ep, locks) = (node.endpoint()?, farfield::MutexArray::open(&node, "stripes", 64)?);
    /// let held = ep.block_on(locks.lock(&ep, 3))?;
    /// assert!(ep.block_on(locks.try_lock(&ep, 3))?.is_none());
    /// assert!(ep.block_on(locks.try_lock(&ep, 4))?.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The home node is dead or departed.
    pub async fn try_lock<'a>(&'a self, endpoint: &'a Endpoint, index: usize) -> Result<Option<Guard<'a>>> {
        self.object.check_current()?;
        let (word, me) = (self.word(index), self.me);
        let mut state = State(self.seen[index].load()).freed();
        // Other operations may take and release it between the attempts; after a few it counts as taken.
        for _ in 0..4 {
            let found = match state.taken_by_newcomer(me) {
                Some(taken) => {
                    let take = endpoint.cas(word, state.0, taken.0);
                    let found = State(self.settle_take(endpoint, word, state, take).await.of(self.object.path())?);
                    if found == state {
                        return Ok(Some(self.guard(endpoint, word, index, taken)));
                    }
                    found
                }
                None => {
                    let looks_lost = match state.holder() {
                        Some(holder) => endpoint.check_alive(holder).is_err(),
                        // A restarted node has seen no death: the turn may be its predecessor's.
                        None => self.is_stuck(endpoint, index, state),
                    };
                    let Some(left) = left_by_the_dead(self.object.node(), state, looks_lost) else { break };
                    self.take_from_the_dead(endpoint, index, state, left).await.of(self.object.path())?
                }
            };
            state = found;
        }
        Ok(None)
    }

    /// Takes a held lock: draws a ticket and waits for its turn. If this is dropped or fails, the turn is passed on.
    #[expect(clippy::manual_async_fn, reason = "it would hold its arguments twice, in each future of `lock`")]
    fn lock_in_turn<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        index: usize,
        deadline: Instant,
    ) -> impl Future<Output = Result<Guard<'a>>> {
        async move {
            let (mut number, mut state) = self.draw(endpoint, index).await.of(self.object.path())?;
            let mut ticket = Ticket { locks: self, word: self.word(index), number: Some(number) };
            let start = endpoint.now();
            let mut watch = Watch::begin(state, start);
            loop {
                if state.is_past(number) {
                    // It was freed from a dead holder.
                    ticket.number = None;
                    (number, state) = self.draw(endpoint, index).await.of(self.object.path())?;
                    ticket.number = Some(number);
                    continue;
                }
                if let Some(taken) = state.taken_by_ticket(number, self.me) {
                    let found = self.settle_turn(endpoint, &mut ticket, state, taken).await;
                    let found = State(found.of(self.object.path())?);
                    if found == state {
                        ticket.number = None;
                        return Ok(self.guard(endpoint, ticket.word, index, taken));
                    }
                    state = found;
                    continue;
                }
                let next = self.next_step(endpoint, index, state, &mut watch, start, deadline)?;
                let found = match next {
                    Next::Take(left) => self.take_from_the_dead(endpoint, index, state, left).await,
                    // Read once more: the holder may have released the lock before it left.
                    Next::Fail(error) => match endpoint.get(ticket.word).await {
                        Ok(now) if now == state.0 => Err(error),
                        found => found.map(State),
                    },
                    Next::Wait(slice) => match endpoint.wait_remote(ticket.word, state.0, slice).await {
                        Err(error) if error.is_timeout() => Ok(state),
                        found => found.map(State),
                    },
                };
                state = found.of(self.object.path())?;
            }
        }
    }

    /// The next step of an operation whose turn has not come, with the lock in this state.
    ///
    /// # Errors
    /// A timeout, or the lock is being reopened.
    fn next_step(
        &self,
        endpoint: &Endpoint,
        index: usize,
        state: State,
        watch: &mut Watch,
        start: Instant,
        deadline: Instant,
    ) -> Result<Next> {
        let now = endpoint.now();
        let patience = self.patience(index);
        watch.sees(state, now);
        let (late, stuck) = (now >= deadline, watch.is_stuck(now, patience));
        let gone = state.holder().and_then(|holder| endpoint.check_alive(holder).err());
        if let Some(left) = left_by_the_dead(self.object.node(), state, gone.is_some() || stuck) {
            return Ok(Next::Take(left));
        }
        // A dead holder will be fenced; a departed one never returns to release the lock.
        let gone = gone.filter(|error| late || matches!(error.kind(), fabric::ErrorKind::PeerLeft { .. }));
        if let Some(error) = gone {
            return Ok(Next::Fail(error));
        }
        if late {
            let waited = now - start;
            // The holder, or the node that has the turn, if it is known.
            let missing = state.holder().into_iter().collect();
            return Err(ErrorKind::Timeout { what: "the lock".into(), waited, missing }).of(self.object.path());
        }
        self.object.check_unasked()?;
        // The wait is in slices, to notice the death of the holder's node.
        Ok(Next::Wait(deadline.min(endpoint.now() + HOLDER_CHECK_EVERY.min(patience))))
    }

    /// Draws a ticket. Returns its number, and the state with it.
    async fn draw(&self, endpoint: &Endpoint, index: usize) -> fabric::Result<(u64, State)> {
        let word = self.word(index);
        let drawn = CancelGuard::new(endpoint, endpoint.faa(word, DRAW), |drawn| {
            drop(Ticket { locks: self, word, number: Some(State(drawn).next()) });
        });
        let drawn = State(drawn.await?);
        if drawn.nobody_waits() && self.object.node().epoch() > 0 {
            self.passed_over.lock().remove(&index);
        }
        Ok((drawn.next(), State(drawn.0.wrapping_add(DRAW))))
    }

    /// Frees the lock or the turn of a dead node, if the lock is still in this state. Returns the state after that.
    async fn take_from_the_dead(
        &self,
        endpoint: &Endpoint,
        index: usize,
        state: State,
        left: State,
    ) -> fabric::Result<State> {
        let found = State(endpoint.cas(self.word(index), state.0, left.0).await?);
        if found != state {
            return Ok(found);
        }
        if state.holder().is_none() {
            *self.passed_over.lock().entry(index).or_default() += 1;
        }
        Ok(left)
    }

    /// How long a free lock may stay untaken before the turn is skipped.
    fn patience(&self, index: usize) -> Duration {
        // While all nodes are alive, no turn is lost.
        let passed = match self.object.node().epoch() {
            0 => 0,
            _ => self.passed_over.lock().get(&index).copied().unwrap_or(0),
        };
        patience(passed)
    }

    /// Whether a lock that is not available at once has been in this state for long: another operation has seen it
    /// before.
    fn is_stuck(&self, endpoint: &Endpoint, index: usize, state: State) -> bool {
        let now = endpoint.now();
        let mut refused = self.refused.lock();
        let watch = refused.entry(index).or_insert_with(|| Watch::begin(state, now));
        watch.sees(state, now);
        watch.is_stuck(now, self.patience(index))
    }

    #[inline]
    fn guard<'a>(&'a self, endpoint: &'a Endpoint, word: RemotePtr<u64>, index: usize, taken: State) -> Guard<'a> {
        self.seen[index].store(taken.0);
        let is_poisoned = taken.has_died();
        Guard { locks: self, endpoint, word, index, held: true, is_poisoned, is_repaired: false }
    }

    /// Waits for a compare-and-swap that takes the lock. If it succeeds after its future was dropped, it is undone.
    fn settle_take<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        word: RemotePtr<u64>,
        from: State,
        take: Op<'a, u64>,
    ) -> impl Future<Output = fabric::Result<u64>> + 'a {
        let me = self.me;
        CancelGuard::new(endpoint, take, move |found| {
            if found == from.0 {
                release::add(&self.object, endpoint, word, me.wrapping_neg());
            }
        })
    }

    /// A compare-and-swap that takes the lock in a ticket's turn. If it succeeds after its future was dropped, the lock
    /// is released.
    fn settle_turn<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        ticket: &'a mut Ticket<'_>,
        from: State,
        taken: State,
    ) -> impl Future<Output = fabric::Result<u64>> {
        let (word, me) = (ticket.word, self.me);
        CancelGuard::new(endpoint, endpoint.cas(word, from.0, taken.0), move |found| {
            if found == from.0 {
                // The turn is used up with it: nothing is left to pass on.
                ticket.number = None;
                release::add(&self.object, endpoint, word, me.wrapping_neg());
            }
        })
    }
}

/// If a dead node seems to hold the lock, or a turn that has not been taken for long: the state after it is freed
/// or skipped.
fn left_by_the_dead(node: &Node, state: State, looks_lost: bool) -> Option<State> {
    if !looks_lost {
        return None;
    }
    match state.holder() {
        // Only now can neither its puts nor its release land any more.
        Some(holder) => (node.status_of(holder) == MemberStatus::Evicted).then(|| state.freed_from_the_dead()),
        None => {
            let is_gone = |member| matches!(node.status_of(member), MemberStatus::Evicted | MemberStatus::Departed);
            // This covers all members ever: a restarted node may wait behind its own predecessor, too.
            let is_lost = node.members().any(is_gone);
            (!state.nobody_waits() && is_lost).then(|| state.passed_over())
        }
    }
}
