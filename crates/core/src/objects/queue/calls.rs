//! What the calls do: fill a position, take one, and wait for a slot to change; the numbers are those of `queue.rs`.

use core::future::Future;
use core::time::Duration;

use farfield_fabric::{self as fabric, Attempt, Endpoint, Instant, NodeId, Op, Posts, RemotePtr};

use super::state::{Position, State};
use super::steps::{Begun, Fetch, Fetched, Filling, Spare, Taking, decide};
use super::{DEQUEUE, ENQUEUE, Hint, Queue, QueueOptions, TRY_DEQUEUE, TRY_ENQUEUE};
use crate::error::{Error, ErrorContext, ErrorKind, Result};
use crate::node::{Either, LongWait, Timed};
use crate::objects::codec::Value;
use crate::objects::wait_limit::WaitLimit;

/// How often a waiting call checks whether the queue is being reopened.
const REOPENED_CHECK_EVERY: Duration = Duration::from_millis(20);

/// How far the attempt of an enqueue has come.
enum FillBegun<'a> {
    Nothing,
    /// It reads the hint, and the slot of this position.
    Looking(u64, Looking<'a>),
    /// It has read them.
    Looked(u64, u64, State),
    /// It fills the slot. Its state is that which it expects there.
    Filling(u64, u64, State, Filling<'a>),
    /// Another was faster: the slot has this state.
    Overtaken(u64, u64, State, Spare<'a>),
}

/// The same of a dequeue.
enum TakeBegun<'a, V: Value> {
    Nothing,
    Looking(u64, Looking<'a>),
    Looked(u64, u64, State),
    Taking(u64, u64, State, Taking<'a, V>),
}

/// The gets of a hint and of a slot's word.
pub(super) struct Looking<'a>(fabric::Begun<u64, Op<'a, u64>>, fabric::Begun<u64, Op<'a, u64>>);

impl Looking<'_> {
    async fn end(self) -> fabric::Result<(u64, State)> {
        let hint = match self.0 {
            Ok(hint) => hint,
            Err(hint) => hint.await?,
        };
        let state = match self.1 {
            Ok(state) => state,
            Err(state) => state.await?,
        };
        Ok((hint, State(state)))
    }
}

impl<V: Value> Queue<V> {
    /// Fills the first position that is not filled. Returns whether there was room, if the call does not wait for it.
    ///
    /// The first attempt needs no future. It succeeds if the fabric completes operations at once, no other call is
    /// faster, and this node knows where the queue ends.
    #[inline(always)]
    pub(super) fn fill<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        values: &'a [V],
        limit: WaitLimit,
    ) -> impl Future<Output = Result<bool>> + use<'a, V> {
        Attempt::new(move || {
            if !self.object.is_plain() {
                return Ok(Err(Either::Measured(self.fill_measured(endpoint, values, limit)?)));
            }
            self.check(values)?;
            if values.is_empty() {
                return Ok(Ok(true));
            }
            let begun = match endpoint.near(self.slots) {
                Some(near) => near.run(|near| self.fill_at_once(near, values))?,
                None => self.fill_at_once(&endpoint, values)?,
            };
            let Some(begun) = begun else { return Ok(Ok(true)) };
            Ok(Err(Either::Plain(endpoint.boxed(self.fill_on(endpoint, values, limit, begun)))))
        })
    }

    /// Nothing, if the values are enqueued.
    #[inline(always)]
    fn fill_at_once<'a>(&'a self, posts: &impl Posts<'a>, values: &[V]) -> Result<Option<FillBegun<'a>>> {
        let (path, endpoint) = (self.object.path(), posts.endpoint());
        let position = self.tail.seen.load();
        let (slot, lap) = self.slot_and_lap(position);
        let (hint, state) = match self.looks(posts, &self.tail, slot) {
            Ok(seen) => seen,
            Err(looking) => return Ok(Some(FillBegun::Looking(position, looking))),
        };
        if hint > position || state.of_lap(lap) != Position::Vacant {
            return Ok(Some(FillBegun::Looked(position, hint, state)));
        }
        let (node, home) = (self.object.node(), self.options.home);
        let Some(mut spare) = self.spares.claim_at_once(node, endpoint, home) else {
            return Ok(Some(FillBegun::Looked(position, hint, state)));
        };
        let filled = self.prepare(posts, values, state, &mut spare).of(path)?;
        let found = match posts.try_cas(slot, state.0, filled.0) {
            Some(found) => found,
            None => match posts.cas(slot, state.0, filled.0).into_value() {
                Ok(found) => found,
                Err(op) => {
                    let filling = Filling::new(endpoint, op, state, spare);
                    return Ok(Some(FillBegun::Filling(position, hint, state, filling)));
                }
            },
        };
        let found = State(found);
        spare.settle(state, found);
        if found != state {
            return Ok(Some(FillBegun::Overtaken(position, hint, found, spare)));
        }
        self.tail.raise(posts, hint, position + 1);
        Ok(None)
    }

    /// A measured call takes the path of one that has to wait, from its beginning on.
    #[cold]
    fn fill_measured<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        values: &'a [V],
        limit: WaitLimit,
    ) -> Result<Timed<'a, impl Future<Output = Result<bool>> + use<'a, V>>> {
        let call = if limit == WaitLimit::Now { TRY_ENQUEUE } else { ENQUEUE };
        let timing = self.object.meter().start(endpoint, call);
        self.object.check_current().inspect_err(|error| timing.fail(endpoint, error))?;
        Ok(timing.rest(endpoint, self.fill_on(endpoint, values, limit, FillBegun::Nothing)))
    }

    /// The rest of [`Queue::fill`] after its attempt.
    async fn fill_on<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        values: &'a [V],
        mut limit: WaitLimit,
        begun: FillBegun<'a>,
    ) -> Result<bool> {
        let path = self.object.path();
        let (mut spare, mut filling) = (None, None);
        let (mut position, mut hint, mut state);
        match begun {
            FillBegun::Nothing => {
                self.check(values)?;
                if values.is_empty() {
                    return Ok(true);
                }
                position = self.tail.seen.load();
                (hint, state) = self.look(endpoint, &self.tail, position).await.of(path)?;
            }
            FillBegun::Looking(at, looking) => {
                position = at;
                (hint, state) = looking.end().await.of(path)?;
            }
            FillBegun::Looked(at, read, found) => (position, hint, state) = (at, read, found),
            FillBegun::Filling(at, read, from, op) => {
                (position, hint, state, filling) = (at, read, from, Some(op));
            }
            FillBegun::Overtaken(at, read, found, claimed) => {
                (position, hint, state, spare) = (at, read, found, Some(claimed));
            }
        }
        loop {
            if hint > position {
                position = hint;
                (hint, state) = self.look(endpoint, &self.tail, position).await.of(path)?;
                continue;
            }
            match state.of_lap(self.lap(position)) {
                Position::Filled | Position::Taken => {
                    position = self.after_filled(position, state);
                    (hint, state) = self.look(endpoint, &self.tail, position).await.of(path)?;
                }
                Position::Closed => return Err(ErrorKind::Closed).of(path),
                Position::Early => {
                    // A call that waits for room keeps no spare cell from others.
                    spare = None;
                    let Some(deadline) = limit.begin(endpoint) else { return Ok(false) };
                    let changed = self.changed(endpoint, position, state, deadline, "room in the queue");
                    state = endpoint.boxed(changed).await?;
                }
                Position::Vacant => {
                    let (found, claimed) = match filling.take() {
                        Some(filling) => filling.await,
                        None => {
                            let mut claimed = match spare.take() {
                                Some(claimed) => claimed,
                                None => self.claim(endpoint, &mut limit).await.of(path)?,
                            };
                            let slot = self.slot(position);
                            let filled = self.prepare(&endpoint, values, state, &mut claimed).of(path)?;
                            let op = endpoint.cas(slot, state.0, filled.0);
                            Filling::new(endpoint, op, state, claimed).await
                        }
                    };
                    let found = match found {
                        Err(error) if error.is_refused() => {
                            claimed.give_back().await;
                            return Err(error).of(path);
                        }
                        found => found.of(path)?,
                    };
                    if found == state {
                        self.tail.raise(&endpoint, hint, position + 1);
                        return Ok(true);
                    }
                    (state, spare) = (found, Some(claimed));
                }
            }
        }
    }

    /// Claims a spare cell. Even a call that must not wait for room waits for one: the others end soon.
    async fn claim<'a>(&'a self, endpoint: &'a Endpoint, limit: &mut WaitLimit) -> Result<Spare<'a>> {
        let (node, home) = (self.object.node(), self.options.home);
        if let Some(spare) = self.spares.claim_at_once(node, endpoint, home) {
            return Ok(spare);
        }
        let deadline = limit.begin(endpoint).unwrap_or_else(|| endpoint.deadline());
        endpoint.boxed(self.spares.claim(node, endpoint, home, deadline)).await
    }

    /// Writes the values into the cell. Returns the word that publishes them.
    #[inline(always)]
    fn prepare<'a>(
        &self,
        posts: &impl Posts<'a>,
        values: &[V],
        state: State,
        spare: &mut Spare<'_>,
    ) -> fabric::Result<State> {
        // (1) The put of the values is posted before the operation that publishes them. Once is enough: the cell
        // belongs to this call until it is published.
        let cell = spare.cell;
        if !spare.is_written {
            self.write(posts, cell, values)?;
            (spare.is_written, spare.may_land) = (true, true);
        }
        Ok(state.filled(cell, values.len()))
    }

    /// Takes the first value that is not taken; `None` only if it is not waited for. The first attempt needs no future:
    /// see [`Queue::fill`].
    #[inline(always)]
    pub(super) fn take<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        limit: WaitLimit,
    ) -> impl Future<Output = Result<Option<V>>> + use<'a, V> {
        Attempt::new(move || {
            if !self.object.is_plain() {
                return Ok(Err(Either::Measured(self.take_measured(endpoint, limit)?)));
            }
            let begun = match endpoint.near(self.slots) {
                Some(near) => near.run(|near| self.take_at_once(near))?,
                None => self.take_at_once(&endpoint)?,
            };
            let begun = match begun {
                Ok(value) => return Ok(Ok(Some(value))),
                Err(begun) => begun,
            };
            Ok(Err(Either::Plain(endpoint.boxed(self.take_on(endpoint, limit, begun)))))
        })
    }

    /// The value, if there is one and no other call is faster.
    #[inline(always)]
    fn take_at_once<'a>(&'a self, posts: &impl Posts<'a>) -> Result<fabric::Begun<V, TakeBegun<'a, V>>> {
        let path = self.object.path();
        let position = self.head.seen.load();
        let (slot, lap) = self.slot_and_lap(position);
        let (hint, state) = match self.looks(posts, &self.head, slot) {
            Ok(seen) => seen,
            Err(looking) => return Ok(Err(TakeBegun::Looking(position, looking))),
        };
        if hint > position || state.of_lap(lap) != Position::Filled {
            return Ok(Err(TakeBegun::Looked(position, hint, state)));
        }
        let taken = state.taken();
        let ended = match self.take_word(posts, slot, state, taken).of(path)? {
            Some((found, word)) => decide(state, State(found), || Ok(Fetched::Word(word))),
            None => match self.begin_to_take(posts, slot, state, taken).of(path)? {
                Ok((found, value)) => decide(state, State(found), || Ok(value)),
                Err(taking) => return Ok(Err(TakeBegun::Taking(position, hint, state, taking))),
            },
        };
        let (found, value) = ended.of(path)?;
        let Some(value) = value else { return Ok(Err(TakeBegun::Looked(position, hint, found))) };
        if taken.count() == 0 {
            self.head.raise(posts, hint, position + 1);
        }
        Ok(Ok(value))
    }

    #[cold]
    fn take_measured<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        limit: WaitLimit,
    ) -> Result<Timed<'a, impl Future<Output = Result<Option<V>>> + use<'a, V>>> {
        let call = if limit == WaitLimit::Now { TRY_DEQUEUE } else { DEQUEUE };
        let timing = self.object.meter().start(endpoint, call);
        self.object.check_current().inspect_err(|error| timing.fail(endpoint, error))?;
        Ok(timing.rest(endpoint, self.take_on(endpoint, limit, TakeBegun::Nothing)))
    }

    /// The rest of [`Queue::take`] after its attempt.
    async fn take_on<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        mut limit: WaitLimit,
        begun: TakeBegun<'a, V>,
    ) -> Result<Option<V>> {
        let path = self.object.path();
        let mut taking = None;
        let (mut position, mut hint, mut state);
        match begun {
            TakeBegun::Nothing => {
                position = self.head.seen.load();
                (hint, state) = self.look(endpoint, &self.head, position).await.of(path)?;
            }
            TakeBegun::Looking(at, looking) => {
                position = at;
                (hint, state) = looking.end().await.of(path)?;
            }
            TakeBegun::Looked(at, read, found) => (position, hint, state) = (at, read, found),
            TakeBegun::Taking(at, read, from, ops) => {
                (position, hint, state, taking) = (at, read, from, Some(ops));
            }
        }
        loop {
            if hint > position {
                position = hint;
                (hint, state) = self.look(endpoint, &self.head, position).await.of(path)?;
                continue;
            }
            match state.of_lap(self.lap(position)) {
                Position::Taken => {
                    position = self.after_taken(position, state);
                    (hint, state) = self.look(endpoint, &self.head, position).await.of(path)?;
                }
                // All before it is taken, so its slot is never early.
                Position::Vacant | Position::Early => {
                    let Some(deadline) = limit.begin(endpoint) else { return Ok(None) };
                    let changed = self.changed(endpoint, position, state, deadline, "a value in the queue");
                    state = endpoint.boxed(changed).await?;
                }
                seen @ (Position::Filled | Position::Closed) => {
                    if seen == Position::Closed
                        && let Some(next) = self.at_mark(position, state)?
                    {
                        position = next;
                        (hint, state) = self.look(endpoint, &self.head, position).await.of(path)?;
                        continue;
                    }
                    let taken = state.taken();
                    let begun = match taking.take() {
                        Some(ops) => Err(ops),
                        None => self.begin_to_take(&endpoint, self.slot(position), state, taken).of(path)?,
                    };
                    let (found, value) = match begun {
                        Ok((found, value)) => decide(state, State(found), || Ok(value)),
                        Err(taking) => taking.await,
                    }
                    .of(path)?;
                    let Some(value) = value else {
                        state = found;
                        continue;
                    };
                    if taken.count() == 0 {
                        self.head.raise(&endpoint, hint, position + 1);
                    }
                    return Ok(Some(value));
                }
            }
        }
    }

    /// [`Queue::begin_to_take`] of a value of one word, where all ends at once: what the compare-and-swap has found,
    /// and the word. `None` if it is not taken.
    #[inline(always)]
    fn take_word<'a>(
        &self,
        posts: &impl Posts<'a>,
        slot: RemotePtr<u64>,
        state: State,
        taken: State,
    ) -> fabric::Result<Option<(u64, u64)>> {
        if self.value_words() != 1 {
            return Ok(None);
        }
        let Some(word) = posts.try_get(self.value(state)) else { return Ok(None) };
        posts.remote_fence(self.options.home)?; // (2)
        Ok(posts.try_cas(slot, state.0, taken.0).map(|found| (found, word)))
    }

    /// Begins the get of a slot's next value and the compare-and-swap that takes it: what both have found, or both, if
    /// they are not complete.
    #[inline(always)]
    fn begin_to_take<'a>(
        &'a self,
        posts: &impl Posts<'a>,
        slot: RemotePtr<u64>,
        state: State,
        taken: State,
    ) -> fabric::Result<fabric::Begun<(u64, Fetched<'a>), Taking<'a, V>>> {
        // The compare-and-swap that frees the cell is posted only after an accepted get and an accepted fence.
        let value = Fetch::begin(posts, self.value(state), self.value_words())?;
        // (2) The value is read before its cell is free.
        posts.remote_fence(self.options.home)?;
        let op = posts.cas(slot, state.0, taken.0);
        Ok(match (op.into_value(), value.into_value()) {
            (Ok(found), Ok(value)) => Ok((found, value)),
            (op, value) => {
                let (op, value) = (Begun::of(op), Begun::of(value));
                Err(Taking { queue: self, endpoint: posts.endpoint(), from: state, op, value })
            }
        })
    }

    /// What a dequeue does at the slot where the queue was closed: it takes a value there (`None`), continues at the
    /// next position that may have one, or ends.
    #[cold]
    fn at_mark(&self, position: u64, state: State) -> Result<Option<u64>> {
        let state = state.unmarked(self.lap(position));
        match state.of_lap(self.lap(position)) {
            Position::Filled => Ok(None),
            Position::Taken => Ok(Some(self.after_taken(position, state))),
            // It is not taken, so its slot is not early. All before it is taken, and it is never filled.
            Position::Vacant | Position::Early | Position::Closed => Err(ErrorKind::Closed).of(self.object.path()),
        }
    }

    /// Reads the hint and the slot of a position. The slot had this state during the call.
    pub(super) async fn look(&self, endpoint: &Endpoint, hint: &Hint, position: u64) -> fabric::Result<(u64, State)> {
        match self.looks(&endpoint, hint, self.slot(position)) {
            Ok(seen) => Ok(seen),
            Err(looking) => looking.end().await,
        }
    }

    #[inline(always)]
    fn looks<'a>(
        &self,
        posts: &impl Posts<'a>,
        hint: &Hint,
        slot: RemotePtr<u64>,
    ) -> fabric::Begun<(u64, State), Looking<'a>> {
        if let (Some(hint), Some(state)) = (posts.try_get(hint.word), posts.try_get(slot)) {
            posts.next_trip();
            return Ok((hint, State(state)));
        }
        let (hint, state) = (posts.get(hint.word), posts.get(slot));
        match (hint.into_value(), state.into_value()) {
            (Ok(hint), Ok(state)) => Ok((hint, State(state))),
            (hint, state) => Err(Looking(hint, state)),
        }
    }

    /// Waits until a position's slot has left a state.
    async fn changed(
        &self,
        endpoint: &Endpoint,
        position: u64,
        state: State,
        deadline: Instant,
        what: &str,
    ) -> Result<State> {
        let (start, long) = (endpoint.now(), LongWait::default());
        // It ends with an error when the home node dies. The wait is in slices, since the queue may be reopened
        // meanwhile.
        let changed = loop {
            let slice = deadline.min(endpoint.now() + REOPENED_CHECK_EVERY);
            match endpoint.wait_remote(self.slot(position), state.0, slice).await {
                Err(error) if error.is_timeout() && endpoint.now() < deadline => {
                    if let Some(waited) = long.becomes_long(endpoint, || tracing::enabled!(tracing::Level::INFO)) {
                        tracing::info!(object = self.object.path(), ?waited, "still waits for {what}");
                    }
                    self.object.check_unasked()?;
                }
                changed => break changed,
            }
        };
        let changed = match changed {
            Err(error) if error.is_timeout() => {
                // The wait is for no particular node; a dead or departed one may be the reason for it.
                let is_gone = |node: &NodeId| endpoint.check_alive(*node).is_err();
                let missing = self.object.others().filter(is_gone).collect();
                Err(ErrorKind::Timeout { what: what.into(), waited: endpoint.now() - start, missing }.into())
            }
            changed => changed.map(State).map_err(Error::from),
        };
        changed.of(self.object.path())
    }

    /// Puts values into a spare cell.
    #[inline(always)]
    fn write<'a>(&self, posts: &impl Posts<'a>, cell: u64, values: &[V]) -> fabric::Result<()> {
        let words = self.value_words();
        if let ([value], 1) = (values, words) {
            let mut word = [0];
            value.encode(&mut word);
            return posts.put(self.cell(cell), word[0]);
        }
        self.write_all(posts.endpoint(), cell, values)
    }

    #[inline(never)]
    fn write_all(&self, endpoint: &Endpoint, cell: u64, values: &[V]) -> fabric::Result<()> {
        let words = self.value_words();
        let last = values.last().map_or(0, |last| V::words(last.bytes()));
        let mut buf = endpoint.buf((values.len() - 1) * words + last)?;
        buf.fill(0);
        for (value, into) in values.iter().zip(buf.chunks_mut(words)) {
            value.encode(into);
        }
        // An accepted put is enough: if it fails, so does the later compare-and-swap on the same node.
        endpoint.put_owned(self.cell(cell), buf).detach()
    }

    /// Checks whether values may be enqueued together.
    #[inline(always)]
    fn check(&self, values: &[V]) -> Result<()> {
        let QueueOptions { batch_max, value_bytes_max: max_bytes, .. } = self.options;
        let path = self.object.path();
        if values.len() > batch_max {
            let (what, asked) = ("values of a batch (`batch_max`)", values.len());
            return Err(ErrorKind::TooMany { what, asked, max: batch_max }).of(path);
        }
        if V::FIXED {
            return Ok(());
        }
        match values.iter().map(V::bytes).find(|bytes| *bytes > max_bytes) {
            Some(bytes) => Err(ErrorKind::TooLarge { bytes, max_bytes }).of(path),
            None => Ok(()),
        }
    }
}
