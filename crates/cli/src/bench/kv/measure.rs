//! The calls of one thread, and their times.

use core::cell::Cell;
use core::future::Future;
use std::time::Duration;

use anyhow::{Error, Result, anyhow};
use farfield::fabric::Instant;
use farfield::{Endpoint, KvStore, MemberStatus, Node};

use super::Sample;
use crate::bench::threads::ThreadResult;
use crate::bench::workload::{Operation, Operations};

/// One call in so many is timed, and has its round trips counted. To read the clock twice for each call would slow down
/// gets from shared memory.
const TIMED: u32 = 16;

/// One thread that calls a store.
pub(super) struct Measurer<'a, V: Sample> {
    pub(super) kv: &'a KvStore<u64, V>,
    pub(super) endpoint: &'a Endpoint,
    pub(super) node: &'a Node,
    /// Calls in flight.
    pub(super) window: usize,
    /// Of a value, in bytes.
    pub(super) size: u32,
    pub(super) duration: Duration,
    /// The content of the first written value; each further one contains one more.
    pub(super) first_content: u64,
}

/// A call that has ended.
struct Ended {
    key: u64,
    /// Whether the key was there.
    found: farfield::Result<bool>,
    /// When it was issued, and the round trips that it has taken, if it is one of those that are timed.
    timed: Option<(Instant, u64)>,
}

impl<V: Sample> Measurer<'_, V> {
    /// Gets: those of workload c. Their futures are small, and those of other calls are not.
    pub(super) fn reads(&self, mut operations: Operations) -> Result<ThreadResult> {
        let Self { kv, endpoint, .. } = *self;
        self.slide(|is_timed| {
            let (Operation::Read(key) | Operation::Update(key) | Operation::ReadModifyWrite(key)) = operations.draw();
            async move {
                let before = is_timed.then(|| (endpoint.now(), endpoint.counts().round_trips));
                let found = kv.get(endpoint, &key).await.map(|value| value.is_some());
                Ended {
                    key,
                    found,
                    timed: before.map(|(issued, trips)| (issued, endpoint.counts().round_trips - trips)),
                }
            }
        })
    }

    /// Gets, updates and read-modify-writes, as they are drawn.
    pub(super) fn mix(&self, mut operations: Operations) -> Result<ThreadResult> {
        let Self { kv, endpoint, size, mut first_content, .. } = *self;
        self.slide(|is_timed| {
            let operation = operations.draw();
            let (Operation::Read(key) | Operation::Update(key) | Operation::ReadModifyWrite(key)) = operation;
            first_content += 1;
            let content = first_content;
            async move {
                let before = is_timed.then(|| (endpoint.now(), endpoint.counts().round_trips));
                let found = match operation {
                    Operation::Read(_) => kv.get(endpoint, &key).await.map(|value| value.is_some()),
                    Operation::Update(_) => kv.update(endpoint, &key, &V::sample(size, content)).await,
                    Operation::ReadModifyWrite(_) => {
                        let modify = kv.modify(endpoint, &key, |old| old.map(|_| V::sample(size, content)));
                        modify.await.map(|old| old.is_some())
                    }
                };
                Ended {
                    key,
                    found,
                    timed: before.map(|(issued, trips)| (issued, endpoint.counts().round_trips - trips)),
                }
            }
        })
    }

    /// Keeps a window of calls in flight until the time is over: each begins when another has ended. A call is told
    /// whether it is timed, from when it is first polled. Only timed calls read the clock. So a few more calls begin
    /// after the time is over, until a timed one ends. All that have begun are waited for and counted, and the run
    /// lasts until they have ended.
    fn slide<F: Future<Output = Ended>>(&self, mut call: impl FnMut(bool) -> F) -> Result<ThreadResult> {
        let endpoint = self.endpoint;
        let mut result = ThreadResult::new();
        let mut failed = Ok(());
        let (is_over, mut number) = (Cell::new(false), 0u32);
        let before = endpoint.counts();
        let start = endpoint.now();
        let end = start + self.duration;
        // An iterator is asked for the next call when it is issued; the first ones, when the window is filled.
        let calls = core::iter::from_fn(|| {
            if is_over.get() {
                return None;
            }
            number = number.wrapping_add(1);
            Some(call(number.is_multiple_of(TIMED)))
        });
        endpoint.run_window(self.window, calls, |ended| {
            result.operations += 1;
            if let Some((issued, round_trips)) = ended.timed {
                let now = endpoint.now();
                result.latencies.record((now - issued).as_nanos() as u64, 1);
                result.round_trips += round_trips;
                result.counted += 1;
                is_over.set(is_over.get() || now >= end);
            }
            if !matches!(ended.found, Ok(true)) && failed.is_ok() {
                failed = Err(ended);
                is_over.set(true);
            }
        });
        result.seconds = (endpoint.now() - start).as_secs_f64();
        result.add_cost(endpoint.counts() - before);
        match failed {
            Ok(()) => Ok(result),
            Err(Ended { key, found, .. }) => Err(found.map_or_else(Error::from, |_| self.missing(key))),
        }
    }

    /// The error that a key which was loaded is not there, with the nodes that are dead: it may have been lost with
    /// one.
    fn missing(&self, key: u64) -> Error {
        let is_gone = |node: &_| self.node.status_of(*node) != Some(MemberStatus::Member);
        let gone: Vec<String> = self.node.others().filter(is_gone).map(|node| node.to_string()).collect();
        match &gone[..] {
            [] => anyhow!("key {key} was loaded, and is not there: the store is broken"),
            gone => anyhow!("key {key} was loaded, and is not there any more: not running are {}", gone.join(", ")),
        }
    }

    /// One call of get_many after the other, each for a window of keys.
    pub(super) fn get_many(&self, mut operations: Operations) -> Result<ThreadResult> {
        let Self { kv, endpoint, window, .. } = *self;
        let (mut keys, mut values) = (Vec::with_capacity(window), Vec::with_capacity(window));
        let mut result = ThreadResult::new();
        let start = endpoint.now();
        let (end, mut now) = (start + self.duration, start);
        while now < end {
            keys.clear();
            keys.extend((0..window).map(|_| {
                let (Operation::Read(key) | Operation::Update(key) | Operation::ReadModifyWrite(key)) =
                    operations.draw();
                key
            }));
            let issued = now;
            let (read, cost) = endpoint.block_on(endpoint.counted(kv.get_many(endpoint, &keys, &mut values)));
            read?;
            for (key, value) in keys.iter().zip(values.drain(..)) {
                value?.ok_or_else(|| self.missing(*key))?;
            }
            now = endpoint.now();
            result.operations += window as u64;
            result.add_cost(cost);
            result.round_trips += cost.round_trips * window as u64;
            result.counted += window as u64;
            result.latencies.record((now - issued).as_nanos() as u64, window as u64);
        }
        result.seconds = (now - start).as_secs_f64();
        Ok(result)
    }
}
