//! A bounded first-in first-out queue: any thread of any node enqueues and dequeues, by one-sided operations only.
//!
//! The whole queue is on the home node. A slot records whether it is filled, and which cell has its values:
//!
//! ```text
//! region `slots`   0        64       128      136
//!                  ┌──────┬─┬──────┬─┬────────┬────────┬─       head, tail: hints, never beyond the truth
//!                  │ head │ │ tail │ │ slot 0 │ slot 1 │ …
//!                  └──────┴─┴──────┴─┴────────┴────────┴─
//!     a slot       63          32 31        12 11      6 5         0
//!                  ┌─────────────┬────────────┬─────────┬──────────┐
//!                  │ lap (32)    │ cell (20)  │ next(6) │ count(6) │    count: values in the cell, 0 if it is vacant
//!                  └─────────────┴────────────┴─────────┴──────────┘    next: the first that is not taken yet
//!                                                                       lap: 2³¹ off in the slot of a closed queue's end
//! region `cells`   ┌────────┬────────┬─
//!                  │ cell 0 │ cell 1 │ …   `batch_max` values each: one for each slot, some spare for each node, by rank
//!                  └────────┴────────┴─
//! ```
//!
//! Calls that enqueue have positions 0, 1, 2 …; position p uses slot p mod capacity, in lap p div capacity. The slot's
//! word changes from *vacant in lap l* to *filled in lap l* … to *vacant in lap l + 1*, each time by one remote
//! compare-and-swap of the whole word. Laps make every word unique, so a compare-and-swap succeeds only if the word
//! has not changed since it was read (until 2³¹ laps later).
//!
//! - **enqueue** writes the values into a spare cell of its node, finds the first position that was never filled, and
//!   swaps *filled, with that cell* for *vacant, with another cell*. The other cell is then the node's spare one.
//! - **dequeue** finds the first position that is not taken, reads the next value from its cell, and swaps the word for
//!   one without that value. The last value's taker leaves the slot vacant for the next lap.
//!
//! *A call in flight owns nothing*: there is no ticket and no claim, so no call waits for another, and none has to be
//! recovered. A producer that dies has filled its slot, with whole values, or has left no trace but the loss of a
//! spare cell of its own node, to which only that node wrote. A consumer that dies has taken its value, or has not:
//! the compare-and-swap decides. Operations of a dead node in flight may land at any moment, and are an ordinary
//! enqueue or dequeue then. Values are on the home node: they outlive their producer, but not the home.
//!
//! *First in, first out.* A call fills a position only if it knows that the position before is filled. It takes a
//! position only if it knows that the position before is taken. It has seen that in the earlier slot, or the hint (or
//! this node's own copy of it) records it. A call that has seen that all positions before p are filled (taken) raises
//! the hint to p by a compare-and-swap. So a hint may lag, by as many positions as calls were cut short, but is never
//! too high; the next call that sees it lag raises it. Therefore
//!
//! - an *enqueue* takes effect with its compare-and-swap, at the end of the queue;
//! - a *dequeue* takes effect with its compare-and-swap, at the head of the queue;
//! - *empty*: position p is vacant in its lap, so nothing is filled from p on; and all before p is taken. The queue is
//!   empty at the moment at which the slot's word is read;
//! - *full*: all before p is filled, and p's slot is still in an earlier lap, so position p − capacity is not taken.
//!   The queue is full at the moment at which the slot's word is read.
//!
//! *Close.* A call that closes the queue finds the first position p that is not filled, as an enqueue does, and marks
//! its slot by a compare-and-swap: of a word that is vacant, or in a full queue still has values of position p −
//! capacity. A marked slot is never filled again. Values that it has are taken, and the mark stays.
//!
//! - The queue is *closed* with that compare-and-swap. All positions before p are filled then, so all accepted values
//!   are taken. Position p is not, and never will be; so no later one is filled either, since each call that fills a
//!   position knows that the one before it is filled. An enqueue of position p expects another word, and fails.
//! - An *enqueue* that meets the mark is refused. It meets it: it moves from filled position to filled position, up to
//!   p.
//! - A *dequeue* moves from taken position to taken position. It ends at p: all before is taken, and p's slot is marked
//!   and vacant.
//! - Calls *that wait* do so at this slot. One that waits for room waits until p's slot is vacant, and one that waits
//!   for a value until p is filled. The mark changes the word.
//! - A *node that dies* while it closes the queue has closed it or not: there is no other trace. Its compare-and-swap
//!   may still land, and is an ordinary close then.
//!
//! All these calls read that word anyway. The lap of a marked word is 2³¹ off, so it is never the lap that a call
//! expects. A call looks for the mark only where it finds another lap; an enqueue or dequeue that finds its own takes
//! no step more. (A call that is overtaken by 2³⁰ laps would mistake an open queue for a closed one.)
//!
//! *Order of operations.* (1) The values' put precedes the compare-and-swap that publishes them, to the same node: a
//! remote atomic flushes, so they have landed when the slot is seen filled. The put is not waited for. (2) The get of a
//! value precedes the compare-and-swap that frees its cell: a later atomic may overtake a get, so there is a remote
//! fence in between; neither is waited for either. (3) If the compare-and-swap succeeds the word has not changed since
//! it was read, so the cell was not rewritten in between, and the get has read a whole value. If it fails the value is
//! thrown away.
//!
//! | call | round trips | operations |
//! |---|---|---|
//! | enqueue, one value or a batch | 2 | 2 gets, 1 put, 2 cas |
//! | dequeue, one value | 2 | 3 gets, 1 remote fence, 2 cas (1 for all but the last of a batch) |
//! | `try_dequeue`, empty; `try_enqueue`, full | 1 | 2 gets |
//! | each look at a position that others have used meanwhile | 1 more | 2 gets |
//! | each attempt than which another was faster: enqueue | 1 more, and a look | 1 cas |
//! | each attempt than which another was faster: dequeue | 1 more, and a look | 1 get, 1 remote fence, 1 cas |
//! | waiting for a value, or for room | a get for each look at one slot's word | |
//! | enqueue, dequeue, closed | 1 | 2 gets |
//! | `is_empty`, `is_closed` | 1 | 2 gets |
//! | `len` | 2; 1 if it is empty; 1 more for each further 4,096 calls | 4 gets, 5 from the last slot on to the first; 3 |
//! | `close` | 2 | 2 gets, 1 cas |
//!
//! The second compare-and-swap raises the hint, and is not waited for. The hint lets a call skip used positions in one
//! step. Some call always succeeds when others fail; a single call may be overtaken without bound.
//!
//! A batch takes one slot, and its values are taken one after the other, with nothing between them. So `capacity`
//! counts calls that enqueue, not values.
//!
//! *Calls that are dropped.* An enqueue that is dropped before its end may have taken effect or not. A dequeue that is
//! dropped during its compare-and-swap may have taken a value: [`Queue::salvage`] returns those to the node. Both wait
//! in the drop for the end of their posted operations, a round trip. A close that is dropped does not wait: its
//! compare-and-swap may land later. While a call waits for a value or for room it
//! holds nothing. Deadlines are only checked there, so a call that times out has done nothing. After any other error
//! (a dead home, an evicted node) it is open whether the compare-and-swap was done. An enqueue that is forgotten
//! (`mem::forget`) in the middle keeps its cell from the others of its node.
//!
//! *A restarted node* cannot take part in a queue that the others still have open: the cells that were its spare ones
//! at first are in slots by now. All reopen the queue ([`Node::reopen`]), as they do when its home is dead or
//! departed; it is empty then.
//!
//! Linearizable, lock-free. Source: Vyukov's bounded queue, with sequence numbers in its slots; the cell that is
//! exchanged with the slot, so that nothing is claimed before it is complete, and batches in one slot are ours.

mod calls;
mod ends;
mod layout;
mod state;
mod steps;

use farfield_fabric::{Endpoint, GroupKey, Instant, LocalMutex, NodeId, Posts, RemotePtr, Word, memory_fence};

pub use self::layout::QueueOptions;
use self::state::{BATCH_MAX, CELLS_MAX, State};
use self::steps::Spares;
use crate::error::{Error, ErrorContext, ErrorKind, Result};
use crate::node::{Node, Object, ObjectBuilder, Regions};
use crate::objects::codec::Value;
use crate::objects::options::{at_least_one, region_bytes};
use crate::objects::participants::Participants;
use crate::objects::wait_limit::WaitLimit;

/// A linearizable queue for many producers and many consumers.
///
/// Values are plain data, or [`ByteString`](crate::ByteString)s up to a configured length, as in a
/// [`KvStore`](crate::KvStore). The handle is shared by the threads of its node; each passes its own endpoint. Any
/// number of operations of one thread may be under way at once.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// use farfield::{Queue, QueueOptions};
/// let nodes = farfield::local_session(2)?;
/// let home = nodes[0].id();
/// let queues = farfield::on_each(&nodes, |n| Queue::<u64>::open(n, "jobs", QueueOptions::new(home, 64)))?;
/// let (near, far) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
/// far.block_on(async {
///     queues[1].enqueue(&far, &1).await?;
///     queues[1].enqueue_batch(&far, &[2, 3]).await
/// })?;
/// near.block_on(async {
///     for job in 1..=3 {
///         assert_eq!(queues[0].dequeue(&near).await?, job);
///     }
///     assert_eq!(queues[0].try_dequeue(&near).await?, None);
///     Ok(())
/// })
/// # }
/// ```
pub struct Queue<V: Value> {
    object: Object,
    options: QueueOptions,
    head: Hint,
    tail: Hint,
    slots: RemotePtr<u64>,
    cells: RemotePtr<u64>,
    spares: Spares,
    /// The values of dequeues that were dropped after they took them.
    salvaged: LocalMutex<Vec<V>>,
}

/// Its calls, as they are measured: those for a batch with those for one value.
const CALLS: [&str; 4] = ["enqueue", "try_enqueue", "dequeue", "try_dequeue"];
const ENQUEUE: usize = 0;
const TRY_ENQUEUE: usize = 1;
const DEQUEUE: usize = 2;
const TRY_DEQUEUE: usize = 3;

/// Why a call that waits has a value at its end.
const WAITS: &str = "a call that waits ends with a value or an error";

const HEAD: usize = 0;
const TAIL: usize = 64;
const SLOTS: usize = 128;

/// The first position that is not filled, or not taken, as far as known. All earlier ones certainly are.
struct Hint {
    /// On the home node. It only grows, by compare-and-swaps.
    word: RemotePtr<u64>,
    /// This node's copy.
    seen: Word,
}

impl Hint {
    /// Records, here and on the home node, that all positions before `position` are filled (taken); `read` is the
    /// word's old value, a lower one.
    #[inline(always)]
    fn raise<'e>(&self, posts: &impl Posts<'e>, read: u64, position: u64) {
        // Another thread may have stored a higher position meanwhile; a lower one is just as true.
        self.seen.store(position);
        // No call depends on it, so it is not waited for.
        let _ = posts.post_cas(self.word, read, position);
    }
}

impl<V: Value> Queue<V> {
    /// Opens the queue among the members of the session ([`Node::live_members`]), and waits for them to do so.
    ///
    /// ```
    /// # let nodes = farfield::local_session(2)?; let home = nodes[0].id();
    /// use farfield::{Queue, QueueOptions};
    /// farfield::on_each(&nodes, |node| Queue::<u64>::open(node, "jobs", QueueOptions::new(home, 64)))?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A node that is missing, dead or departed, or that opens it differently; no memory; invalid options.
    pub fn open(node: &Node, path: &str, options: QueueOptions) -> Result<Queue<V>> {
        Queue::open_among(node, path, &node.members_for(path), options)
    }

    /// Opens the queue among these nodes, which must name the same, and waits for them to do so. Its home is one of
    /// them.
    ///
    /// ```
    /// # let nodes = farfield::local_session(3)?; let pair = [nodes[0].id(), nodes[1].id()];
    /// use farfield::{Node, Queue, QueueOptions};
    /// let open = |node: &Node| Queue::<u64>::open_among(node, "jobs", &pair, QueueOptions::new(pair[0], 64));
    /// farfield::on_each(&nodes[..2], open)?; // the third node does not open it
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `open`, or this node or the home is not among them.
    pub fn open_among(node: &Node, path: &str, participants: &[NodeId], options: QueueOptions) -> Result<Queue<V>> {
        let participants = Participants::new(participants);
        let refuse = |why: &str| Err(Error::from(ErrorKind::Config { why: why.into() }).of(path));
        let QueueOptions { home, capacity, batch_max, value_bytes_max, enqueues_per_node } = options;
        at_least_one(&[("capacity", capacity), ("enqueues_per_node", enqueues_per_node), ("batch_max", batch_max)])
            .of(path)?;
        if batch_max > BATCH_MAX {
            return refuse("`batch_max` has to be at most 63");
        }
        let rank = participants.require(node.id()).of(path)?;
        if participants.rank_of(home).is_none() {
            return refuse("its home has to be one of its participants");
        }
        let cells = participants.count().saturating_mul(enqueues_per_node).saturating_add(capacity);
        if cells > CELLS_MAX {
            return refuse("`capacity` and `enqueues_per_node` of all nodes have to be at most 2^20 together");
        }
        let slots_bytes = SLOTS + capacity * 8;
        let options_here = "`capacity`, `batch_max` or `value_bytes_max`";
        let cells_bytes = region_bytes(cells * batch_max, V::words(value_bytes_max).max(1), options_here).of(path)?;
        let mut regions = Regions::new(node);
        if node.id() == home {
            let slots = regions.alloc("slots", GroupKey::DATA, slots_bytes).of(path)?;
            for slot in 0..capacity {
                slots.word(SLOTS + slot * 8).store(State::vacant(0, slot as u64).0);
            }
            // This is done before their addresses are announced: from then on only remote atomics access them.
            memory_fence();
            regions.alloc("cells", GroupKey::DATA, cells_bytes).of(path)?;
        }
        let expect = move |peer| {
            if peer == home {
                vec![("slots".into(), slots_bytes as u64), ("cells".into(), cells_bytes as u64)]
            } else {
                vec![]
            }
        };
        let layout = format!("{options:?}, values of {} words", V::words(value_bytes_max));
        let opening = ObjectBuilder::new(node, path, "Queue").layout(&layout).participants(participants.iter());
        let object = opening.calls(&CALLS).regions(regions).require_regions(expect).open()?;
        let region = object.remote::<u64>(home, "slots")?;
        let hint = |offset| Hint { word: region.byte_add(offset as u64), seen: Word::new(0) };
        let first_spare = (capacity + rank * enqueues_per_node) as u64;
        Ok(Queue {
            head: hint(HEAD),
            tail: hint(TAIL),
            slots: region.byte_add(SLOTS as u64),
            cells: object.remote(home, "cells")?,
            spares: Spares((first_spare..).take(enqueues_per_node).map(|cell| Word::new(cell + 1)).collect()),
            salvaged: LocalMutex::default(),
            options,
            object,
        })
    }

    /// The queue's capacity in calls.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?; let ep = node.endpoint()?;
    /// # let jobs = farfield::Queue::<u64>::open(&node, "jobs", farfield::QueueOptions::new(node.id(), 4))?;
    /// assert!(jobs.capacity() >= 4);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn capacity(&self) -> usize {
        self.options.capacity
    }

    /// Enqueues a value, waiting for room as long as the endpoint's timeout.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?; let ep = node.endpoint()?;
    /// # let jobs = farfield::Queue::<u64>::open(&node, "jobs", farfield::QueueOptions::new(node.id(), 4))?;
    /// ep.block_on(jobs.enqueue(&ep, &1))?;
    /// assert_eq!(ep.block_on(jobs.dequeue(&ep))?, 1);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A timeout: the queue stayed full, and nothing was enqueued; it names dead and departed nodes. The queue is
    /// closed ([`ErrorKind::Closed`]), and nothing was enqueued. A byte string that is too long. The home node is dead
    /// or departed.
    pub async fn enqueue(&self, endpoint: &Endpoint, value: &V) -> Result<()> {
        self.fill(endpoint, core::slice::from_ref(value), WaitLimit::Timeout).await.map(drop)
    }

    /// [`Queue::enqueue`] with a deadline.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?; let ep = node.endpoint()?;
    /// # let jobs = farfield::Queue::<u64>::open(&node, "jobs", farfield::QueueOptions::new(node.id(), 4))?;
    /// let deadline = ep.now() + std::time::Duration::from_millis(100);
    /// ep.block_on(jobs.enqueue_deadline(&ep, &1, deadline))?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `enqueue`.
    pub async fn enqueue_deadline(&self, endpoint: &Endpoint, value: &V, deadline: Instant) -> Result<()> {
        self.fill(endpoint, core::slice::from_ref(value), WaitLimit::Deadline(deadline)).await.map(drop)
    }

    /// Enqueues a value if there is room. Returns whether there was.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?; let ep = node.endpoint()?;
    /// # let jobs = farfield::Queue::<u64>::open(&node, "jobs", farfield::QueueOptions::new(node.id(), 4))?;
    /// let mut sent = 0;
    /// while ep.block_on(jobs.try_enqueue(&ep, &sent))? {
    ///     sent += 1;
    /// }
    /// assert_eq!(sent, jobs.capacity() as u64); // it is full
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The queue is closed. A byte string that is too long. The home node is dead or departed. A timeout, if
    /// [`QueueOptions::enqueues_per_node`] others are in progress and none of them ends. An operation was refused: the
    /// error is returned when nothing of the call lands any more.
    pub async fn try_enqueue(&self, endpoint: &Endpoint, value: &V) -> Result<bool> {
        self.fill(endpoint, core::slice::from_ref(value), WaitLimit::Now).await
    }

    /// Enqueues several values at once, with nothing between them, waiting for room as long as the endpoint's timeout.
    /// They take one slot together, and as many operations as a single value.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?; let ep = node.endpoint()?;
    /// # let jobs = farfield::Queue::<u64>::open(&node, "jobs", farfield::QueueOptions::new(node.id(), 4))?;
    /// ep.block_on(jobs.enqueue_batch(&ep, &[1, 2, 3]))?;
    /// assert_eq!(ep.block_on(jobs.dequeue(&ep))?, 1);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Queue::enqueue`], or there are more than [`QueueOptions::batch_max`] of them.
    pub async fn enqueue_batch(&self, endpoint: &Endpoint, values: &[V]) -> Result<()> {
        self.fill(endpoint, values, WaitLimit::Timeout).await.map(drop)
    }

    /// [`Queue::enqueue_batch`] with a deadline.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?; let ep = node.endpoint()?;
    /// # let jobs = farfield::Queue::<u64>::open(&node, "jobs", farfield::QueueOptions::new(node.id(), 1))?;
    /// ep.block_on(jobs.enqueue(&ep, &1))?; // it is full now
    /// let deadline = ep.now() + std::time::Duration::from_millis(10);
    /// assert!(ep.block_on(jobs.enqueue_batch_deadline(&ep, &[2, 3], deadline)).is_err());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `enqueue_batch`.
    pub async fn enqueue_batch_deadline(&self, endpoint: &Endpoint, values: &[V], deadline: Instant) -> Result<()> {
        self.fill(endpoint, values, WaitLimit::Deadline(deadline)).await.map(drop)
    }

    /// Enqueues several values at once if there is room for them. Returns whether there was.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?; let ep = node.endpoint()?;
    /// # let jobs = farfield::Queue::<u64>::open(&node, "jobs", farfield::QueueOptions::new(node.id(), 4))?;
    /// assert!(ep.block_on(jobs.try_enqueue_batch(&ep, &[1, 2, 3]))?); // there was room
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Queue::try_enqueue`], or there are more than [`QueueOptions::batch_max`] of them.
    pub async fn try_enqueue_batch(&self, endpoint: &Endpoint, values: &[V]) -> Result<bool> {
        self.fill(endpoint, values, WaitLimit::Now).await
    }

    /// Dequeues a value, waiting for one as long as the endpoint's timeout.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?; let ep = node.endpoint()?;
    /// # let jobs = farfield::Queue::<u64>::open(&node, "jobs", farfield::QueueOptions::new(node.id(), 4))?;
    /// ep.block_on(jobs.enqueue(&ep, &1))?;
    /// assert_eq!(ep.block_on(jobs.dequeue(&ep))?, 1);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A timeout: the queue stayed empty; it names dead and departed nodes. The queue is closed, and all its values are
    /// taken ([`ErrorKind::Closed`]). The home node is dead or departed.
    pub async fn dequeue(&self, endpoint: &Endpoint) -> Result<V> {
        Ok(self.take(endpoint, WaitLimit::Timeout).await?.expect(WAITS))
    }

    /// [`Queue::dequeue`] with a deadline.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?; let ep = node.endpoint()?;
    /// # let jobs = farfield::Queue::<u64>::open(&node, "jobs", farfield::QueueOptions::new(node.id(), 4))?;
    /// let deadline = ep.now() + std::time::Duration::from_millis(10);
    /// let error = ep.block_on(jobs.dequeue_deadline(&ep, deadline)).unwrap_err(); // nothing comes
    /// assert!(error.is_timeout());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `dequeue`.
    pub async fn dequeue_deadline(&self, endpoint: &Endpoint, deadline: Instant) -> Result<V> {
        Ok(self.take(endpoint, WaitLimit::Deadline(deadline)).await?.expect(WAITS))
    }

    /// Dequeues a value if there is one.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?; let ep = node.endpoint()?;
    /// # let jobs = farfield::Queue::<u64>::open(&node, "jobs", farfield::QueueOptions::new(node.id(), 4))?;
    /// assert_eq!(ep.block_on(jobs.try_dequeue(&ep))?, None);
    /// ep.block_on(jobs.enqueue(&ep, &1))?;
    /// assert_eq!(ep.block_on(jobs.try_dequeue(&ep))?, Some(1));
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The queue is closed, and all its values are taken. The home node is dead or departed.
    pub async fn try_dequeue(&self, endpoint: &Endpoint) -> Result<Option<V>> {
        self.take(endpoint, WaitLimit::Now).await
    }

    /// Returns the values that dequeues of this node had taken when they were dropped. They are no longer in the
    /// queue, and no other call has them.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?; let ep = node.endpoint()?;
    /// # let jobs = farfield::Queue::<u64>::open(&node, "jobs", farfield::QueueOptions::new(node.id(), 4))?;
    /// assert!(jobs.salvage().is_empty()); // no dequeue was dropped
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn salvage(&self) -> Vec<V> {
        core::mem::take(&mut *self.salvaged.lock())
    }
}
