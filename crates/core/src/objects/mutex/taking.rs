//! How an operation takes a lock: at once if it is free, or in its turn.

use core::borrow::BorrowMut;
use core::future::Future;
use core::time::Duration;

use farfield_fabric::{self as fabric, Attempt, Begun, Endpoint, Instant, Op, RemotePtr};

use super::abandoned::Ticket;
use super::state::{DRAW, State, Watch, patience};
use super::{Guard, LOCK, Lock, MutexArray, TRY_LOCK};
use crate::error::{ErrorContext, ErrorKind, Result};
use crate::node::{Either, MemberStatus, Node, Timed};
use crate::objects::cancel_guard::CancelGuard;
use crate::objects::holding::Holding;
use crate::objects::release;
use crate::objects::wait_limit::{Rest, WaitLimit, Waits};

/// The attempts of `try_lock`. Other operations may take and release the lock in between; after a few it counts as
/// taken.
const TRIES: u32 = 4;

/// How often a waiter checks whether the holder's node is alive.
const HOLDER_CHECK_EVERY: Duration = Duration::from_millis(20);

/// The next step of a waiting operation.
enum Next {
    /// It takes the lock, or the turn, from a dead node, and leaves it in this state.
    Take(State),
    /// It fails, if the lock is still in the same state.
    Fail(fabric::Error),
    /// It waits for a change, until then at most.
    Wait(Instant),
}

impl MutexArray {
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
        Attempt::new(move || Ok(self.begin(endpoint, index, WaitLimit::Timeout)?.map_err(Waits)))
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
        Attempt::new(move || Ok(self.begin(endpoint, index, WaitLimit::Deadline(deadline))?.map_err(Waits)))
    }

    /// Begins to take lock `index`: takes it if it is free and the fabric completes operations at once. Otherwise it
    /// returns the rest of the call, which waits until the limit; with nothing, if it must not wait. If the rest is
    /// dropped, the lock is not taken.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let (ep, locks) = (node.endpoint()?, farfield::MutexArray::open(&node, "stripes", 64)?);
    /// use farfield::WaitLimit;
    /// let mut limit = WaitLimit::Timeout; // both waits together last as long as the endpoint's timeout
    /// let mut held = Vec::new();
    /// for index in [3, 8] {
    ///     held.extend(match locks.begin(&ep, index, &mut limit)? {
    ///         Ok(guard) => Some(guard), // without a future
    ///         Err(rest) => ep.block_on(rest)?,
    ///     });
    /// }
    /// assert_eq!(held.len(), 2);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As `lock`.
    ///
    /// # Panics
    /// If there is no such lock, as indexing a slice does.
    #[inline(always)]
    pub fn begin<'a, L: BorrowMut<WaitLimit>>(
        &'a self,
        endpoint: &'a Endpoint,
        index: usize,
        limit: L,
    ) -> Result<Begun<Guard<'a>, impl Rest<Option<Guard<'a>>> + use<'a, L>>> {
        if self.object.is_plain() {
            return Ok(self.begins(endpoint, index, limit)?.map_err(Either::Plain));
        }
        Ok(Err(Either::Measured(self.begin_measured(endpoint, index, limit)?)))
    }

    /// A measured call takes the path of one that has to wait, from its first attempt on.
    #[cold]
    fn begin_measured<'a, L: BorrowMut<WaitLimit>>(
        &'a self,
        endpoint: &'a Endpoint,
        index: usize,
        limit: L,
    ) -> Result<Timed<'a, impl Future<Output = Result<Option<Guard<'a>>>> + use<'a, L>>> {
        let call = if *limit.borrow() == WaitLimit::Now { TRY_LOCK } else { LOCK };
        let timing = self.object.meter().start(endpoint, call);
        self.object.check_current().inspect_err(|error| timing.fail(endpoint, error))?;
        let lock = self.lock_at(index);
        let guess = State(lock.seen.load()).freed();
        let take = |taken: State| endpoint.cas(lock.word, guess.0, taken.0);
        let taken = guess.taken_by_newcomer(self.me);
        let asked = taken.map(|taken| Err(self.settle_take(endpoint, lock.word, guess, take(taken))));
        Ok(timing.rest(endpoint, self.go_on(endpoint, index, asked, guess, limit)))
    }

    /// [`MutexArray::begin`] of locks that are current.
    #[inline(always)]
    fn begins<'a, L: BorrowMut<WaitLimit>>(
        &'a self,
        endpoint: &'a Endpoint,
        index: usize,
        limit: L,
    ) -> Result<Begun<Guard<'a>, impl Rest<Option<Guard<'a>>> + use<'a, L>>> {
        let lock = self.lock_at(index);
        let guess = State(lock.seen.load()).freed();
        let asked = match guess.taken_by_newcomer(self.me) {
            Some(taken) => match endpoint.cas(lock.word, guess.0, taken.0).into_value() {
                Ok(found) if found == guess.0 => return Ok(Ok(self.guard(endpoint, lock, taken))),
                Ok(found) => Some(Ok(found)),
                Err(take) => Some(Err(self.settle_take(endpoint, lock.word, guess, take))),
            },
            None => None,
        };
        Ok(Err(endpoint.boxed(self.go_on(endpoint, index, asked, guess, limit))))
    }

    /// The rest of [`MutexArray::begin`] after its attempt, if the guess was worth one: a compare-and-swap. It corrects
    /// a wrong guess, so that another one may succeed.
    async fn go_on<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        index: usize,
        asked: Option<core::result::Result<u64, impl Future<Output = fabric::Result<u64>>>>,
        guess: State,
        mut limit: impl BorrowMut<WaitLimit>,
    ) -> Result<Option<Guard<'a>>> {
        let path = self.object.path();
        if let Some(asked) = asked {
            let lock = self.lock_at(index);
            let found = State(match asked {
                Ok(found) => found,
                Err(take) => take.await.of(path)?,
            });
            if found == guess
                && let Some(taken) = guess.taken_by_newcomer(self.me)
            {
                return Ok(Some(self.guard(endpoint, lock, taken)));
            }
            if *limit.borrow_mut() == WaitLimit::Now {
                return self.attempts_now(endpoint, index, found, TRIES - 1).await;
            }
            if let Some(taken) = found.taken_by_newcomer(self.me) {
                let again = match endpoint.cas(lock.word, found.0, taken.0).into_value() {
                    Ok(again) => again,
                    Err(take) => self.settle_take(endpoint, lock.word, found, take).await.of(path)?,
                };
                if again == found.0 {
                    return Ok(Some(self.guard(endpoint, lock, taken)));
                }
            }
        }
        let Some(deadline) = limit.borrow_mut().begin(endpoint) else {
            // The guess may be old: others have waited then.
            let found = State(endpoint.get(self.word(index)).await.of(path)?);
            return self.attempts_now(endpoint, index, found, TRIES).await;
        };
        self.lock_in_turn(endpoint, index, deadline).await.map(Some)
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
    pub fn try_lock<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        index: usize,
    ) -> impl Future<Output = Result<Option<Guard<'a>>>> {
        Attempt::new(move || Ok(self.begin(endpoint, index, WaitLimit::Now)?.map(Some)))
    }

    /// More attempts, without waiting.
    async fn attempts_now<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        index: usize,
        mut state: State,
        attempts: u32,
    ) -> Result<Option<Guard<'a>>> {
        let (lock, me) = (self.lock_at(index), self.me);
        for _ in 0..attempts {
            let found = match state.taken_by_newcomer(me) {
                Some(taken) => {
                    let take = endpoint.cas(lock.word, state.0, taken.0);
                    let found = State(self.settle_take(endpoint, lock.word, state, take).await.of(self.object.path())?);
                    if found == state {
                        return Ok(Some(self.guard(endpoint, lock, taken)));
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
    #[expect(clippy::manual_async_fn, reason = "it would hold its arguments twice, in the future of the rest")]
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
                        return Ok(self.guard(endpoint, self.lock_at(index), taken));
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

    /// The next step of an operation before its turn, with the lock in this state.
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
        if watch.becomes_long(now - start) {
            let (object, holder, waited) = (self.object.path(), state.holder(), now - start);
            tracing::info!(object, lock = index, ?holder, ?waited, "still waits for a lock");
        }
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
        if drawn.has_no_waiters() && self.object.node().epoch() > 0 {
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
        tracing::info!(object = self.object.path(), lock = index, holder = ?state.holder(), "freed from a dead node");
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
    fn guard<'a>(&'a self, endpoint: &'a Endpoint, lock: &'a Lock, taken: State) -> Guard<'a> {
        lock.seen.store(taken.0);
        Guard { locks: self, endpoint, lock, holding: Holding::new(taken.has_died()) }
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
pub(super) fn left_by_the_dead(node: &Node, state: State, looks_lost: bool) -> Option<State> {
    if !looks_lost {
        return None;
    }
    match state.holder() {
        // Only now can neither its puts nor its release land any more.
        Some(holder) => (node.status_of(holder) == Some(MemberStatus::Evicted)).then(|| state.freed_from_the_dead()),
        None => {
            let is_gone =
                |member| matches!(node.status_of(member), Some(MemberStatus::Evicted | MemberStatus::Departed));
            // This covers all members ever: a restarted node may wait behind its own predecessor, too.
            let is_lost = node.members().any(is_gone);
            (!state.has_no_waiters() && is_lost).then(|| state.passed_over())
        }
    }
}
