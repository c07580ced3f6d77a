//! The calls of one client, and their costs.

use core::cell::RefCell;
use std::time::Duration;

use anyhow::Result;
use farfield::Endpoint;
use serde::{Deserialize, Serialize};

use super::system::Client;
use super::trips::{TRIPS_MAX, Trips};
use crate::bench::slices;
use crate::bench::threads::ThreadResult;
use crate::bench::workload::{Latest, LatestStep, Operation, Operations};

/// The kinds of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Get,
    Update,
    Insert,
    Delete,
}

impl Call {
    pub(super) const ALL: [Call; 4] = [Call::Get, Call::Update, Call::Insert, Call::Delete];

    pub(super) fn name(self) -> &'static str {
        ["get", "update", "insert", "delete"][self as usize]
    }
}

/// The calls of a client, one after the other.
pub(super) enum Draws {
    /// Of keys that are all there.
    Mixed(Operations),
    /// Of keys that come and go. Where they have fixed places, a new one takes that of an earlier one.
    Latest { latest: Latest, places: Option<usize> },
}

impl Draws {
    /// The next call and its key.
    fn draw(&mut self) -> (Call, usize) {
        match self {
            Draws::Mixed(operations) => match operations.draw() {
                Operation::Read(key) => (Call::Get, key as usize),
                Operation::Update(key) | Operation::ReadModifyWrite(key) => (Call::Update, key as usize),
            },
            Draws::Latest { latest, places } => {
                let (call, key) = match latest.draw() {
                    LatestStep::Read(key) => (Call::Get, key as usize),
                    LatestStep::Insert(key) => (Call::Insert, key as usize),
                    LatestStep::Delete(key) => (Call::Delete, key as usize),
                };
                (call, places.map_or(key, |places| key % places))
            }
        }
    }
}

/// Calls of one kind.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Calls {
    pub(super) result: ThreadResult,
    pub(super) trips: Trips,
}

/// What a client has done.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Done {
    /// By their kinds.
    pub(super) calls: [Calls; Call::ALL.len()],
    /// Gets of keys that were not there: another client was behind, or further on.
    pub(super) not_there: u64,
    /// The memory of this process that is its own, for its handle and what that remembers.
    pub(super) memory_bytes: u64,
    /// Calls that have ended in each [`slices::SLICE`] of the run.
    pub(super) slices: Vec<u64>,
    /// The slowest call of each slice, in nanoseconds.
    pub(super) slowest: Vec<u64>,
    /// When the run began, on the clock of the host.
    pub(super) start_ns: u64,
}

impl Done {
    /// Nothing yet.
    pub(super) fn new(duration: Duration) -> Done {
        let slices = slices::count(duration);
        let calls = Call::ALL.map(|_| Calls::new());
        let (slowest, slices) = (vec![0; slices], vec![0; slices]);
        Done { calls, not_there: 0, memory_bytes: 0, slices, slowest, start_ns: 0 }
    }
}

/// A client's part of a run.
pub(super) struct Measurer<'e> {
    pub(super) endpoint: &'e Endpoint,
    pub(super) draws: Draws,
    /// Calls at a time. With several, round trips are not counted: those of one could not be told from another's.
    pub(super) window: usize,
    /// Words of a value.
    pub(super) words: usize,
    pub(super) duration: Duration,
    /// Different for each client.
    pub(super) first_content: u64,
}

impl Calls {
    fn new() -> Calls {
        Calls { result: ThreadResult::new(), trips: [0; TRIPS_MAX + 1] }
    }
}

impl Measurer<'_> {
    pub(super) fn run(self, client: &impl Client) -> Result<Done> {
        let Measurer { endpoint, mut draws, window, words, duration, first_content } = self;
        let start = endpoint.now();
        let done = Done { start_ns: start.ns, ..Done::new(duration) };
        let (done, mut content) = (RefCell::new(done), first_content);
        let end = start + duration;
        let may_be_missing = matches!(draws, Draws::Latest { .. });
        let calls = core::iter::from_fn(|| (endpoint.now() < end).then(|| draws.draw()));
        let mut failed = Ok(());
        let calls = calls.map(|(call, key)| {
            content += 1;
            let (content, done) = (content, &done);
            async move {
                let (issued, counted) = (endpoint.now(), endpoint.counts());
                match call {
                    Call::Get if !client.get(key, &mut vec![0; words]).await? => {
                        anyhow::ensure!(may_be_missing, "a key that was loaded is not there: {key}");
                        done.borrow_mut().not_there += 1;
                    }
                    Call::Get => {}
                    Call::Update => client.put(key, &vec![content; words]).await?,
                    Call::Insert => client.insert(key, &vec![content; words]).await?,
                    Call::Delete if !client.delete(key).await? => return Ok(()),
                    Call::Delete => {}
                }
                let now = endpoint.now();
                let took_ns = (now - issued).as_nanos() as u64;
                let done = &mut *done.borrow_mut();
                let slice = slices::of(now - start);
                if let (Some(calls), Some(slowest)) = (done.slices.get_mut(slice), done.slowest.get_mut(slice)) {
                    *calls += 1;
                    *slowest = took_ns.max(*slowest);
                }
                let calls = &mut done.calls[call as usize];
                calls.result.operations += 1;
                calls.result.latencies.record(took_ns, 1);
                if window == 1 {
                    let cost = endpoint.counts() - counted;
                    calls.result.add_cost(cost);
                    calls.result.round_trips += cost.round_trips;
                    calls.result.counted += 1;
                    calls.trips[(cost.round_trips as usize).min(TRIPS_MAX)] += 1;
                }
                Ok(())
            }
        });
        let mut ended = |ended| failed = std::mem::replace(&mut failed, Ok(())).and(ended);
        if window == 1 {
            // In a window each call's chain of operations begins anew, and what one has left behind counts as the next
            // one's round trip.
            calls.for_each(|call| ended(endpoint.block_on(call)));
        } else {
            endpoint.run_window(window, calls, ended);
        }
        failed?;
        let mut done = done.into_inner();
        let seconds = (endpoint.now() - start).as_secs_f64();
        done.calls.iter_mut().for_each(|calls| calls.result.seconds = seconds);
        Ok(done)
    }
}

/// Keys that a client loads at a time.
const LOADED_AT_ONCE: usize = 16;

/// Gives keys their first values.
pub(super) fn load(
    endpoint: &Endpoint,
    client: &impl Client,
    keys: impl Iterator<Item = usize>,
    words: usize,
) -> Result<()> {
    let mut loaded = Ok(());
    let load = |key: usize| async move { client.put(key, &vec![key as u64; words]).await };
    endpoint.run_window(LOADED_AT_ONCE, keys.map(load), |ended| {
        loaded = std::mem::replace(&mut loaded, Ok(())).and(ended);
    });
    Ok(loaded?)
}

/// Reads each key once, so that a client knows its place.
pub(super) fn warm(endpoint: &Endpoint, client: &impl Client, keys: usize, words: usize) -> Result<()> {
    let mut read = Ok(());
    let get = |key: usize| async move { client.get(key, &mut vec![0; words]).await };
    endpoint.run_window(LOADED_AT_ONCE, (0..keys).map(get), |ended| {
        read = std::mem::replace(&mut read, Ok(())).and(ended.map(drop));
    });
    Ok(read?)
}
