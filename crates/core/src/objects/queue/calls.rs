//! What the calls do: fill a position, take one, and wait for a slot to change; the numbers are those of `queue.rs`.

use core::time::Duration;

use farfield_fabric::{self as fabric, Endpoint, Instant, NodeId};

use super::state::{Position, State};
use super::steps::{Begun, Filling, Taking, decide};
use super::{DEQUEUE, ENQUEUE, Hint, Queue, QueueOptions, TRY_DEQUEUE, TRY_ENQUEUE};
use crate::error::{Error, ErrorContext, ErrorKind, Result};
use crate::node::{LongWait, current};
use crate::objects::codec::Value;
use crate::objects::wait_limit::WaitLimit;

/// How often a waiting call checks whether the queue is being reopened.
const REOPENED_CHECK_EVERY: Duration = Duration::from_millis(20);

impl<V: Value> Queue<V> {
    /// Fills the first position that is not filled. Returns whether there was room, if the call does not wait for it.
    pub(super) async fn fill(&self, endpoint: &Endpoint, values: &[V], mut limit: WaitLimit) -> Result<bool> {
        let call = if limit == WaitLimit::Now { TRY_ENQUEUE } else { ENQUEUE };
        current!(self.object, endpoint, call, self.fill(endpoint, values, limit));
        self.check(values)?;
        if values.is_empty() {
            return Ok(true);
        }
        let path = self.object.path();
        let mut spare = None;
        let mut position = self.tail.seen.load();
        loop {
            let (hint, mut state) = self.look(endpoint, &self.tail, position).await.of(path)?;
            if hint > position {
                position = hint;
                continue;
            }
            loop {
                match state.of_lap(self.lap(position)) {
                    Position::Filled | Position::Taken => {
                        position = self.after_filled(position, state);
                        break;
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
                        let claimed = match &mut spare {
                            Some(spare) => spare,
                            none => {
                                let (node, home) = (self.object.node(), self.options.home);
                                none.insert(match self.spares.claim_at_once(node, endpoint, home) {
                                    Some(spare) => spare,
                                    None => {
                                        // Even a call that must not wait for room: the others end soon.
                                        let deadline = limit.begin(endpoint).unwrap_or_else(|| endpoint.deadline());
                                        let claim = self.spares.claim(node, endpoint, home, deadline);
                                        endpoint.boxed(claim).await.of(path)?
                                    }
                                })
                            }
                        };
                        // (1) The put of the values is posted before the operation that publishes them. Once is
                        // enough: the cell belongs to this call until it is published.
                        let cell = claimed.cell;
                        if !claimed.is_written {
                            self.write(endpoint, cell, values).of(path)?;
                            (claimed.is_written, claimed.may_land) = (true, true);
                        }
                        let filled = state.filled(cell, values.len());
                        let op = endpoint.cas(self.slot(position), state.0, filled.0);
                        let found = match op.into_value().map(State) {
                            Ok(found) => {
                                claimed.settle(state, found);
                                Ok(found)
                            }
                            Err(op) => Filling { endpoint, op: Some(op), from: state, spare: claimed }.await,
                        };
                        let found = match found {
                            Err(error) if error.is_refused() => {
                                if let Some(spare) = spare.take() {
                                    spare.give_back().await;
                                }
                                return Err(error).of(path);
                            }
                            found => found.of(path)?,
                        };
                        if found == state {
                            self.tail.raise(endpoint, hint, position + 1);
                            return Ok(true);
                        }
                        state = found;
                    }
                }
            }
        }
    }

    /// Takes the first value that is not taken; `None` only if it is not waited for.
    pub(super) async fn take(&self, endpoint: &Endpoint, mut limit: WaitLimit) -> Result<Option<V>> {
        let call = if limit == WaitLimit::Now { TRY_DEQUEUE } else { DEQUEUE };
        current!(self.object, endpoint, call, self.take(endpoint, limit));
        let path = self.object.path();
        let mut position = self.head.seen.load();
        loop {
            let (hint, mut state) = self.look(endpoint, &self.head, position).await.of(path)?;
            if hint > position {
                position = hint;
                continue;
            }
            loop {
                match state.of_lap(self.lap(position)) {
                    Position::Taken => {
                        position = self.after_taken(position, state);
                        break;
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
                            break;
                        }
                        let taken = state.taken();
                        let into = endpoint.buf(self.value_words()).of(path)?;
                        // The compare-and-swap that frees the cell is posted only after an accepted get and an
                        // accepted fence.
                        let value = endpoint.get_into(self.value(state), into).accepted().of(path)?;
                        // (2) The value is read before its cell is free.
                        endpoint.remote_fence(self.options.home).detach().of(path)?;
                        let op = endpoint.cas(self.slot(position), state.0, taken.0);
                        let (found, value) = match (op.into_value(), value.into_value()) {
                            (Ok(found), Ok(value)) => decide(state, State(found), || Ok(value)),
                            (op, value) => {
                                let (op, value) = (Begun::of(op), Begun::of(value));
                                Taking { queue: self, endpoint, from: state, op, value }.await
                            }
                        }
                        .of(path)?;
                        let Some(value) = value else {
                            state = found;
                            continue;
                        };
                        if taken.count() == 0 {
                            self.head.raise(endpoint, hint, position + 1);
                        }
                        return Ok(Some(value));
                    }
                }
            }
        }
    }

    /// What a dequeue does at the slot where the queue was closed: it takes a value there (`None`), goes on to the next
    /// position that may have one, or ends.
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
        let (hint, state) = (endpoint.get(hint.word), endpoint.get(self.slot(position)));
        let hint = match hint.into_value() {
            Ok(hint) => hint,
            Err(hint) => hint.await?,
        };
        let state = match state.into_value() {
            Ok(state) => state,
            Err(state) => state.await?,
        };
        Ok((hint, State(state)))
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
    fn write(&self, endpoint: &Endpoint, cell: u64, values: &[V]) -> fabric::Result<()> {
        let words = self.value_words();
        if let ([value], 1) = (values, words) {
            let mut word = [0];
            value.encode(&mut word);
            return endpoint.put_value(self.cell(cell), word[0]).detach();
        }
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
    fn check(&self, values: &[V]) -> Result<()> {
        let QueueOptions { batch_max, value_bytes_max: max_bytes, .. } = self.options;
        let path = self.object.path();
        if values.len() > batch_max {
            let (what, asked) = ("values of a batch (`batch_max`)", values.len());
            return Err(ErrorKind::TooMany { what, asked, max: batch_max }).of(path);
        }
        match values.iter().map(V::bytes).find(|bytes| !V::FIXED && *bytes > max_bytes) {
            Some(bytes) => Err(ErrorKind::TooLarge { bytes, max_bytes }).of(path),
            None => Ok(()),
        }
    }
}
