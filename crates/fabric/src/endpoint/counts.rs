//! What an endpoint has posted, and how long its chains of round trips are.

use core::future::{Future, poll_fn};
use core::pin::pin;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

use super::Endpoint;
use crate::lane::Verb;
use crate::ptr::NodeId;

/// What an endpoint has posted.
///
/// ```
/// use farfield_fabric::Counts;
/// let (before, after) = (Counts { gets: 2, ..Counts::default() }, Counts { gets: 5, ..Counts::default() });
/// assert_eq!((after - before).gets, 3);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Puts.
    pub puts: u64,
    /// Gets, those of fences included.
    pub gets: u64,
    /// Remote compare-and-swaps and fetch-and-adds.
    pub atomics: u64,
    /// Remote fences.
    pub fences: u64,
    /// Bytes moved by puts, gets and atomics.
    pub bytes: u64,
    /// Of the operations, those to the own node.
    pub loopback: u64,
    /// Round trips: the longest chain of operations to other nodes, each issued after the one before was seen complete.
    pub round_trips: u64,
}

impl Counts {
    /// All operations posted.
    ///
    /// ```
    /// # use farfield_fabric::Counts;
    /// assert_eq!(Counts { puts: 2, gets: 1, bytes: 24, ..Counts::default() }.posted(), 3);
    /// ```
    pub fn posted(&self) -> u64 {
        self.puts + self.gets + self.atomics + self.fences
    }

    fn combine(self, other: Counts, f: impl Fn(u64, u64) -> u64) -> Counts {
        Counts {
            puts: f(self.puts, other.puts),
            gets: f(self.gets, other.gets),
            atomics: f(self.atomics, other.atomics),
            fences: f(self.fences, other.fences),
            bytes: f(self.bytes, other.bytes),
            loopback: f(self.loopback, other.loopback),
            round_trips: f(self.round_trips, other.round_trips),
        }
    }
}

impl core::ops::Add for Counts {
    type Output = Counts;
    fn add(self, other: Counts) -> Counts {
        self.combine(other, |a, b| a + b)
    }
}

impl core::ops::Sub for Counts {
    type Output = Counts;
    fn sub(self, other: Counts) -> Counts {
        self.combine(other, |a, b| a.saturating_sub(b))
    }
}

/// Counters that one thread writes and any may read: operations to the own node, and to others.
#[derive(Default)]
pub(crate) struct Counters {
    puts: [AtomicU64; 2],
    gets: [AtomicU64; 2],
    atomics: [AtomicU64; 2],
    fences: [AtomicU64; 2],
    bytes: AtomicU64,
    pub(super) round_trips: AtomicU64,
    pub(super) closed: AtomicBool,
}

impl Counters {
    /// One more operation. A plain load and store: the endpoint's thread is the only writer.
    #[inline(always)]
    fn count(&self, verb: Verb, bytes: usize, is_remote: bool) {
        let counters = match verb {
            Verb::Put => &self.puts,
            Verb::Get => &self.gets,
            Verb::Cas | Verb::Faa => &self.atomics,
            Verb::RemoteFence => &self.fences,
        };
        let counter = &counters[usize::from(is_remote)];
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.bytes.store(self.bytes.load(Ordering::Relaxed) + bytes as u64, Ordering::Relaxed);
    }

    /// So many operations on `bytes` bytes together.
    #[inline(always)]
    fn count_all(&self, [puts, gets, atomics]: [u64; 3], bytes: usize, is_remote: bool) {
        let add = |counter: &AtomicU64, more: u64| {
            if more > 0 {
                counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
            }
        };
        let at = usize::from(is_remote);
        add(&self.puts[at], puts);
        add(&self.gets[at], gets);
        add(&self.atomics[at], atomics);
        add(&self.bytes, bytes as u64);
    }

    /// So many gets of `bytes` bytes each.
    #[inline]
    fn count_gets(&self, gets: u64, remote: u64, bytes: usize) {
        let add = |counter: &AtomicU64, more| counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        add(&self.gets[0], gets - remote);
        add(&self.gets[1], remote);
        add(&self.bytes, gets * bytes as u64);
    }

    pub(super) fn read(&self) -> Counts {
        let of = |counters: &[AtomicU64; 2]| (counters[0].load(Ordering::Relaxed), counters[1].load(Ordering::Relaxed));
        let (puts, gets, atomics, fences) = (of(&self.puts), of(&self.gets), of(&self.atomics), of(&self.fences));
        Counts {
            puts: puts.0 + puts.1,
            gets: gets.0 + gets.1,
            atomics: atomics.0 + atomics.1,
            fences: fences.0 + fences.1,
            bytes: self.bytes.load(Ordering::Relaxed),
            loopback: puts.0 + gets.0 + atomics.0 + fences.0,
            round_trips: self.round_trips.load(Ordering::Relaxed),
        }
    }
}

/// Reads an endpoint's counters from another thread.
///
/// ```
/// use farfield_fabric::CountsReader;
/// /// What the threads of a node have posted so far.
/// fn total(readers: &[CountsReader]) -> u64 {
///     readers.iter().map(|reader| reader.read().posted()).sum()
/// }
/// ```
#[derive(Clone)]
pub struct CountsReader(pub(super) Arc<Counters>);

impl CountsReader {
    /// Whether the endpoint is closed, so that the counts are final.
    ///
    /// ```
    /// # use farfield_fabric::CountsReader;
    /// fn running(readers: &[CountsReader]) -> usize {
    ///     readers.iter().filter(|reader| !reader.is_final()).count()
    /// }
    /// ```
    pub fn is_final(&self) -> bool {
        self.0.closed.load(Ordering::Acquire)
    }

    /// The counts so far; `round_trips` as of the end of the endpoint's last `block_on`, window or measured operation.
    ///
    /// ```
    /// # fn f(reader: &farfield_fabric::CountsReader) {
    /// let before = reader.read();
    /// std::thread::sleep(std::time::Duration::from_secs(1));
    /// println!("{} bytes a second", (reader.read() - before).bytes);
    /// # }
    /// ```
    pub fn read(&self) -> Counts {
        self.0.read()
    }
}

impl Endpoint {
    /// Counts one more operation to a node; its depth.
    #[inline(always)]
    pub(super) fn count(&self, verb: Verb, peer: NodeId, bytes: usize) -> u64 {
        let is_remote = peer != self.me;
        self.counters.count(verb, bytes, is_remote);
        self.depth.get() + u64::from(is_remote)
    }

    /// Counts puts to a node, gets from it and atomics there, on `bytes` bytes together; the depth of each.
    #[inline(always)]
    pub(super) fn count_all(&self, operations: [u64; 3], peer: NodeId, bytes: usize) -> u64 {
        let is_remote = peer != self.me;
        self.counters.count_all(operations, bytes, is_remote);
        self.depth.get() + u64::from(is_remote)
    }

    /// Counts remote fences.
    #[inline(always)]
    pub(super) fn count_fences(&self, fences: u64, peer: NodeId) {
        if fences > 0 {
            let counter = &self.counters.fences[usize::from(peer != self.me)];
            counter.store(counter.load(Ordering::Relaxed) + fences, Ordering::Relaxed);
        }
    }

    /// Counts gets of `bytes` bytes each, `remote` of them from other nodes.
    #[inline]
    pub(super) fn count_gets(&self, gets: u64, remote: u64, bytes: usize) {
        self.counters.count_gets(gets, remote, bytes);
    }

    /// This thread has waited for so many round trips of another endpoint, on which its own operations depend: they
    /// count here, too.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(ep: &Endpoint, helper: &Endpoint, word: RemotePtr<u64>) -> Result<()> {
    /// let (before, helped) = (ep.counts(), helper.counts());
    /// helper.get(word).wait()?; // of another node
    /// ep.waited_for((helper.counts() - helped).round_trips);
    /// assert_eq!((ep.counts() - before).round_trips, 1);
    /// # Ok(()) }
    /// ```
    pub fn waited_for(&self, round_trips: u64) {
        self.depth.set(self.depth.get() + round_trips);
    }

    #[inline(always)]
    pub(crate) fn saw_completion(&self, depth: u64) {
        self.depth.set(self.depth.get().max(depth));
    }

    /// Lets other threads see the chain of this one.
    #[inline(always)]
    pub(crate) fn publish_depth(&self) {
        self.counters.round_trips.store(self.depth.get(), Ordering::Relaxed);
    }

    /// Runs a future and counts its cost: operations and bytes posted during its polls, and its round trips.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, word: RemotePtr<u64>) -> Result<()> {
    /// let (value, cost) = ep.counted(ep.get(word)).await;
    /// assert_eq!((cost.gets, cost.bytes), (1, 8));
    /// # value.map(|_| ()) }
    /// ```
    pub async fn counted<F: Future>(&self, future: F) -> (F::Output, Counts) {
        let mut future = pin!(future);
        let mut cost = Counts::default();
        let start = self.depth.get();
        let mut own = start;
        let output = poll_fn(|cx| {
            let outside = self.depth.replace(own);
            let before = self.counters.read();
            let poll = future.as_mut().poll(cx);
            cost = cost + (self.counters.read() - before);
            own = self.depth.replace(outside);
            poll
        })
        .await;
        self.depth.set(self.depth.get().max(own));
        self.publish_depth();
        cost.round_trips = own - start;
        (output, cost)
    }
}
