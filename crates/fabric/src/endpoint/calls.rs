//! How often the calls of objects were made on an endpoint, how they ended and how long they took: a histogram for each
//! call, in memory that the endpoint has from the start. Only its thread writes there, so a record takes neither a lock
//! nor an atomic operation, and any thread may read it.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::sync::Arc;

use zerocopy::FromZeros;

use super::Endpoint;

/// The buckets of a histogram: four for each power of two up to 2^40 ns, which is 18 minutes.
const BUCKETS: usize = 156;
const ERRORS: usize = 0;
const TIMEOUTS: usize = 1;
const SUM: usize = 2;
const FIRST_BUCKET: usize = 3;
/// The words of one call, in whole cache lines.
const WORDS: usize = 160;

/// How a call has ended.
///
/// ```
/// use farfield_fabric::CallEnd;
/// let end = |result: Result<u64, &str>| if result.is_ok() { CallEnd::Done } else { CallEnd::Failed };
/// assert_eq!(end(Err("no room")), CallEnd::Failed);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallEnd {
    /// With a value.
    Done,
    /// With an error that is no timeout.
    Failed,
    /// Its deadline passed.
    TimedOut,
}

/// What was recorded of one call of an object: [`Endpoint::record_call`].
///
/// ```
/// use farfield_fabric::CallCounts;
/// let never = CallCounts::default();
/// assert_eq!((never.latencies.count(), never.errors, never.timeouts), (0, 0, 0));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CallCounts {
    /// Of the calls, those that ended with an error other than a timeout.
    pub errors: u64,
    /// Of the calls, those that passed their deadline.
    pub timeouts: u64,
    /// How long all calls took, failed ones included.
    pub latencies: Latencies,
}

impl core::ops::AddAssign<&CallCounts> for CallCounts {
    fn add_assign(&mut self, other: &CallCounts) {
        self.errors += other.errors;
        self.timeouts += other.timeouts;
        self.latencies += &other.latencies;
    }
}

/// A distribution of durations, with an error of at most a quarter.
///
/// ```
/// use std::time::Duration;
/// use farfield_fabric::Latencies;
/// let mut latencies = Latencies::default();
/// for us in 1..=100 {
///     latencies.add(Duration::from_micros(us));
/// }
/// assert_eq!((latencies.count(), latencies.mean()), (100, Duration::from_nanos(50_500)));
/// let median = latencies.quantile(0.5);
/// assert!(median >= Duration::from_micros(50) && median <= Duration::from_micros(63));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Latencies {
    /// Empty as long as there is no duration.
    buckets: Vec<u64>,
    sum_ns: u64,
}

impl Latencies {
    /// Adds one duration.
    ///
    /// ```
    /// # use farfield_fabric::Latencies;
    /// let mut latencies = Latencies::default();
    /// latencies.add(std::time::Duration::from_millis(2));
    /// assert_eq!(latencies.count(), 1);
    /// ```
    pub fn add(&mut self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.buckets.resize(BUCKETS, 0);
        self.buckets[bucket_of(ns)] += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    /// How many there are.
    ///
    /// ```
    /// assert_eq!(farfield_fabric::Latencies::default().count(), 0);
    /// ```
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// All of them together.
    ///
    /// ```
    /// assert!(farfield_fabric::Latencies::default().sum().is_zero());
    /// ```
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns)
    }

    /// The arithmetic mean; zero if there is none.
    ///
    /// ```
    /// assert!(farfield_fabric::Latencies::default().mean().is_zero());
    /// ```
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.sum_ns.checked_div(self.count()).unwrap_or(0))
    }

    /// A duration that this part of them does not exceed, from 0 to 1: `quantile(0.99)` is the 99th percentile, rounded
    /// up by a quarter at most. Zero if there is none.
    ///
    /// ```
    /// # use farfield_fabric::Latencies;
    /// let mut latencies = Latencies::default();
    /// latencies.add(std::time::Duration::from_micros(8));
    /// assert!(latencies.quantile(1.0) >= std::time::Duration::from_micros(8));
    /// ```
    pub fn quantile(&self, part: f64) -> Duration {
        let wanted = ((self.count() as f64 * part.clamp(0.0, 1.0)).ceil() as u64).max(1);
        let mut seen = 0;
        let found = self.buckets.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        Duration::from_nanos(found.map_or(0, |bucket| lowest_of(bucket + 1) - 1))
    }

    /// How many are below each power of two of nanoseconds, as a histogram with cumulative counts has it: the powers
    /// from 128 ns to 2^35 ns, which is 34 s.
    ///
    /// ```
    /// # use farfield_fabric::Latencies;
    /// let mut latencies = Latencies::default();
    /// latencies.add(std::time::Duration::from_nanos(200));
    /// let below: Vec<_> = latencies.cumulative().take(3).map(|(limit, count)| (limit.as_nanos(), count)).collect();
    /// assert_eq!(below, [(128, 0), (256, 1), (512, 1)]);
    /// ```
    pub fn cumulative(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        (7..=35).map(|power| {
            let ns = 1u64 << power;
            (Duration::from_nanos(ns), self.buckets.iter().take(bucket_of(ns)).sum())
        })
    }
}

impl core::ops::AddAssign<&Latencies> for Latencies {
    fn add_assign(&mut self, other: &Latencies) {
        if !other.buckets.is_empty() {
            self.buckets.resize(BUCKETS, 0);
        }
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(sum, count)| *sum += count);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }
}

/// The bucket of a duration.
fn bucket_of(ns: u64) -> usize {
    if ns < 4 {
        return ns as usize;
    }
    let power = ns.ilog2() as usize;
    let quarter = (ns >> (power - 2)) as usize & 3;
    ((power - 1) * 4 + quarter).min(BUCKETS - 1)
}

/// The shortest duration of a bucket.
fn lowest_of(bucket: usize) -> u64 {
    match bucket {
        0..4 => bucket as u64,
        _ => (4 + bucket as u64 % 4) << (bucket / 4 - 1),
    }
}

/// The records of an endpoint, one of [`WORDS`] words for each call.
pub(super) struct Calls {
    words: Box<[AtomicU64]>,
    closed: AtomicBool,
    /// The call that is about to be made again, to be measured.
    again: AtomicU64,
}

/// In place of the number of a call.
const NONE: u64 = u64::MAX;

impl Calls {
    /// Room for this many calls; none if it is 0, or if there is no memory for it. Pages of it that no call writes to
    /// are not in memory.
    pub(super) fn new(calls: usize) -> Option<Arc<Calls>> {
        let words = <[AtomicU64]>::new_box_zeroed_with_elems(calls * WORDS).ok().filter(|words| !words.is_empty())?;
        Some(Arc::new(Calls { words, closed: AtomicBool::new(false), again: AtomicU64::new(NONE) }))
    }

    /// A plain load and store each: the endpoint's thread is the only writer.
    fn record(&self, call: usize, ns: u64, end: CallEnd) {
        let Some(words) = self.words.get(call * WORDS..(call + 1) * WORDS) else { return };
        let add = |word: usize, more: u64| {
            words[word].store(words[word].load(Ordering::Relaxed).saturating_add(more), Ordering::Relaxed);
        };
        add(FIRST_BUCKET + bucket_of(ns), 1);
        add(SUM, ns);
        match end {
            CallEnd::Done => {}
            CallEnd::Failed => add(ERRORS, 1),
            CallEnd::TimedOut => add(TIMEOUTS, 1),
        }
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }
}

/// Reads from another thread what an endpoint has recorded of calls: [`Endpoint::calls_reader`].
///
/// ```
/// # fn f(endpoint: &farfield_fabric::Endpoint) {
/// if let Some(reader) = endpoint.calls_reader() {
///     std::thread::spawn(move || println!("{:?}", reader.read(0).latencies.mean()));
/// }
/// # }
/// ```
#[derive(Clone)]
pub struct CallsReader(Arc<Calls>);

impl CallsReader {
    /// Whether the endpoint is closed, so that the records are final.
    ///
    /// ```
    /// # use farfield_fabric::CallsReader;
    /// fn is_over(readers: &[CallsReader]) -> bool {
    ///     readers.iter().all(CallsReader::is_final)
    /// }
    /// ```
    pub fn is_final(&self) -> bool {
        self.0.closed.load(Ordering::Acquire)
    }

    /// What was recorded of the call with this number.
    ///
    /// ```
    /// # use farfield_fabric::CallsReader;
    /// fn failed(readers: &[CallsReader], call: usize) -> u64 {
    ///     readers.iter().map(|reader| reader.read(call).errors).sum()
    /// }
    /// ```
    pub fn read(&self, call: usize) -> CallCounts {
        let Some(words) = self.0.words.get(call * WORDS..(call + 1) * WORDS) else { return CallCounts::default() };
        let word = |at: usize| words[at].load(Ordering::Relaxed);
        let mut buckets: Vec<u64> = (FIRST_BUCKET..FIRST_BUCKET + BUCKETS).map(word).collect();
        if buckets.iter().all(|count| *count == 0) {
            buckets.clear();
        }
        let latencies = Latencies { buckets, sum_ns: word(SUM) };
        CallCounts { errors: word(ERRORS), timeouts: word(TIMEOUTS), latencies }
    }
}

impl Endpoint {
    /// Records a call of an object, by a number below [`EndpointOptions::calls`](super::EndpointOptions::calls). Others
    /// are ignored. It takes no lock and allocates nothing.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(ep: &Endpoint, word: RemotePtr<u64>) {
    /// let start = ep.now();
    /// let end = if ep.get(word).wait().is_ok() { CallEnd::Done } else { CallEnd::Failed };
    /// ep.record_call(0, ep.now() - start, end);
    /// # }
    /// ```
    #[cold]
    pub fn record_call(&self, call: usize, took: Duration, end: CallEnd) {
        if let Some(calls) = &self.calls {
            calls.record(call, u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), end);
        }
    }

    /// Whether a call that has just begun is to be measured. A call that is measures itself by being made again, behind
    /// [`Endpoint::calls_again`]; that one is not, and continues.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// fn get(ep: &Endpoint, word: RemotePtr<u64>) -> Result<u64> {
    ///     if ep.measures_call(7) {
    ///         let start = ep.now();
    ///         ep.calls_again(7);
    ///         let got = get(ep, word);
    ///         ep.record_call(7, ep.now() - start, if got.is_ok() { CallEnd::Done } else { CallEnd::Failed });
    ///         return got;
    ///     }
    ///     ep.get(word).wait()
    /// }
    /// ```
    #[cold]
    pub fn measures_call(&self, call: usize) -> bool {
        let Some(calls) = &self.calls else { return false };
        if calls.again.load(Ordering::Relaxed) != call as u64 {
            return true;
        }
        calls.again.store(NONE, Ordering::Relaxed);
        false
    }

    /// The next beginning of this call is not to be measured: see [`Endpoint::measures_call`].
    ///
    /// ```
    /// # fn f(ep: &farfield_fabric::Endpoint) {
    /// ep.calls_again(7);
    /// assert!(!ep.measures_call(7));
    /// # }
    /// ```
    #[cold]
    pub fn calls_again(&self, call: usize) {
        if let Some(calls) = &self.calls {
            calls.again.store(call as u64, Ordering::Relaxed);
        }
    }

    /// A reader of the recorded calls for other threads. None if the endpoint was opened without room for any.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(fabric: std::sync::Arc<dyn Transport>) -> Result<()> {
    /// let ep = Endpoint::open(fabric, EndpointOptions { calls: 1, ..EndpointOptions::default() })?;
    /// assert!(ep.calls_reader().is_some());
    /// # Ok(()) }
    /// ```
    pub fn calls_reader(&self) -> Option<CallsReader> {
        self.calls.clone().map(CallsReader)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Each duration is in the bucket that begins at or before it, and ends after it; a bucket is a quarter of its
        /// beginning at most.
        #[test]
        fn a_bucket_holds_its_durations(ns in 0u64..1 << 40) {
            let bucket = bucket_of(ns);
            let (begin, end) = (lowest_of(bucket), lowest_of(bucket + 1));
            prop_assert!(begin <= ns && ns < end, "{ns} in {begin}..{end}");
            prop_assert!(end - begin <= (begin / 4).max(1));
        }

        /// A quantile is that of the sorted durations, and at most a quarter above it.
        #[test]
        fn quantiles_are_those_of_the_durations(mut all in proptest::collection::vec(0u64..1 << 36, 1..200), part in 0.0..=1.0f64) {
            let mut latencies = Latencies::default();
            all.iter().for_each(|ns| latencies.add(Duration::from_nanos(*ns)));
            all.sort_unstable();
            let at = ((all.len() as f64 * part).ceil() as usize).max(1) - 1;
            let (exact, found) = (all[at], latencies.quantile(part).as_nanos() as u64);
            prop_assert!(exact <= found && found <= exact + exact / 4 + 1, "{found} for {exact}");
            prop_assert_eq!(latencies.sum(), Duration::from_nanos(all.iter().sum()));
            for (limit, count) in latencies.cumulative() {
                let below = all.iter().filter(|ns| u128::from(**ns) < limit.as_nanos()).count();
                prop_assert_eq!(count, below as u64);
            }
        }
    }

    #[test]
    fn records_are_read_by_number_and_add_up() {
        let calls = Calls::new(2).expect("room for two");
        for (ns, end) in [(100, CallEnd::Done), (300, CallEnd::Failed), (u64::MAX, CallEnd::TimedOut)] {
            calls.record(1, ns, end);
        }
        calls.record(2, 1, CallEnd::Done); // there is no such call
        let reader = CallsReader(calls);
        assert_eq!(reader.read(0), CallCounts::default());
        assert_eq!(reader.read(7), CallCounts::default());
        let mut sum = reader.read(1);
        assert_eq!((sum.latencies.count(), sum.errors, sum.timeouts), (3, 1, 1));
        assert_eq!(sum.latencies.sum(), Duration::from_nanos(u64::MAX));
        sum += &reader.read(1);
        assert_eq!((sum.latencies.count(), sum.errors, sum.timeouts), (6, 2, 2));
        assert!(Calls::new(0).is_none());
    }
}
