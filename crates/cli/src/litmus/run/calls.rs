//! The calls of a litmus test's thread, on words of registered memory.
//!
//! The CPU's accesses are plain: `Word::load` and `Word::store` compile to `mov`, since acquire and release need no
//! more on x86. So a store stays in the store buffer while later loads execute, and the compiler keeps them in order.
//! The NIC reads and writes the words in place: `put_from_region` sends the contents at the time of its read,
//! `get_span` lands in the word.
//!
//! A remote read-modify-write brings its old value to the endpoint, not to a word. The thread stores it when the
//! operation has ended. If other threads read that word, a fence follows, and later operations to the same node wait
//! for it. That is stronger than the model. If no thread reads it, as in most tests, there is no difference.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use farfield::fabric::{self, Op, Plain, Region, RemotePtr, Span, Word, memory_fence};
use farfield::{Endpoint, NodeId};
use mowgli::litmus::Value;
use mowgli::run::{Change, Memory, NAMELESS, ObjectCall, Plan, Rmw};

use super::objects::{Objects, Parts, of_message, to_message, value_of, words};

/// Each word has a line of the cache of its own.
const LINE_BYTES: usize = 64;
/// How long a thread waits in a loop for its condition. After each loop that was given up, threads wait a quarter as
/// long; after [`GIVEN_UP_MAX`] of them, [`LOOP_MAX_LATER`].
const LOOP_MAX: Duration = Duration::from_secs(2);
const LOOP_MAX_LATER: Duration = Duration::from_millis(1);
pub(super) const GIVEN_UP_MAX: u32 = 4;
/// How long an operation may take.
const OPERATION_MAX: Duration = Duration::from_secs(20);

/// The layout of the words of a plan: a region on each node, with as many instances of each word as runs between two
/// reads of the memory.
pub(super) struct Layout {
    regions: Vec<Region>,
    /// The node of each word, the offset of its first instance, and the distance between instances.
    words: Vec<(usize, usize, usize)>,
}

impl Layout {
    /// With memory that `alloc` makes on each node.
    pub(super) fn new(
        plan: &Plan,
        instances: usize,
        alloc: impl FnMut((usize, usize)) -> farfield::Result<Region>,
    ) -> farfield::Result<Layout> {
        let mut on_node = vec![0; plan.nodes];
        let firsts = plan.words.iter().map(|word| {
            on_node[word.node] += 1;
            (word.node, (on_node[word.node] - 1) * LINE_BYTES)
        });
        let firsts: Vec<_> = firsts.collect();
        let words = firsts.into_iter().map(|(node, first)| (node, first, on_node[node] * LINE_BYTES)).collect();
        let bytes = on_node.iter().map(|count| count.max(&1) * LINE_BYTES * instances).enumerate();
        Ok(Layout { regions: bytes.map(alloc).collect::<farfield::Result<_>>()?, words })
    }

    fn at(&self, word: usize, instance: usize) -> (&Region, usize) {
        let (node, first, stride) = self.words[word];
        (&self.regions[node], first + instance * stride)
    }

    pub(super) fn word(&self, word: usize, instance: usize) -> &Word {
        let (region, offset) = self.at(word, instance);
        region.word(offset)
    }

    fn remote(&self, word: usize, instance: usize) -> RemotePtr<u64> {
        let (region, offset) = self.at(word, instance);
        region.remote(offset)
    }

    fn span(&self, word: usize, instance: usize) -> Span<'_> {
        let (region, offset) = self.at(word, instance);
        region.span(offset, size_of::<u64>())
    }
}

/// How a thread waits.
#[derive(Clone, Copy)]
pub(super) enum Pace<'s> {
    /// It looks so often before it lets others run; it ends when another thread of the test has failed, and it counts
    /// loops that it has given up. Where operations are complete `at_once`, nothing is kept of those that have a name:
    /// the less the thread does between its calls, the more can be seen.
    Spinning { spins: u32, at_once: bool, stop: &'s AtomicBool, given_up: &'s AtomicU32 },
    /// As the simulator wants it.
    Simulated,
}

/// Another thread of the test has failed, with this error.
#[derive(Debug)]
pub(super) struct Elsewhere;

impl std::fmt::Display for Elsewhere {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("another thread of the test has failed")
    }
}

impl std::error::Error for Elsewhere {}

/// The targets of a thread's calls: its endpoint, and one instance of the words.
pub(super) struct Calls<'s> {
    endpoint: &'s Endpoint,
    layout: &'s Layout,
    objects: &'s Objects,
    parts: Parts,
    pace: Pace<'s>,
    instance: usize,
    /// In the order in which they were posted.
    under_way: Vec<UnderWay<'s>>,
    /// Pushes of shared variables that were not awaited yet, by their names.
    pushes: Vec<(usize, Push<'s>)>,
    message: Vec<u8>,
    spins: u32,
    /// The moment at which this iteration began to wait for long.
    waits_since: Option<Instant>,
    /// In a simulation, the moment at which it ends to.
    waits_until: fabric::Instant,
}

type Push<'s> = Pin<Box<dyn Future<Output = farfield::Result<()>> + 's>>;

struct UnderWay<'s> {
    id: usize,
    node: usize,
    operation: Operation<'s>,
}

enum Operation<'s> {
    Move(Op<'s, ()>),
    Fence(Op<'s, ()>),
    Rmw(Op<'s, u64>, Rmw),
}

impl<'s> Calls<'s> {
    pub(super) fn new(
        endpoint: &'s Endpoint,
        layout: &'s Layout,
        objects: &'s Objects,
        parts: Parts,
        pace: Pace<'s>,
    ) -> Calls<'s> {
        let (under_way, pushes, message) = (Vec::with_capacity(64), Vec::new(), Vec::new());
        let (spins, waits_since, waits_until) = (0, None, fabric::Instant::NEVER);
        Calls {
            endpoint,
            layout,
            objects,
            parts,
            pace,
            instance: 0,
            under_way,
            pushes,
            message,
            spins,
            waits_since,
            waits_until,
        }
    }

    /// Brings the thread's parts of the objects back to where they began.
    pub(super) fn reset(&mut self, plan: &Plan, instances: usize) -> Result<()> {
        self.parts.reset(plan, self.objects, self.endpoint, instances)
    }

    /// Later calls work on this instance of the words.
    pub(super) fn begin(&mut self, instance: usize) {
        (self.instance, self.spins, self.waits_since) = (instance, 0, None);
        if let Pace::Simulated = self.pace {
            self.waits_until = self.endpoint.now() + LOOP_MAX;
        }
    }

    /// Waits for all that is under way.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.complete(|_| true)?;
        self.pushed(|_| true)
    }

    /// Waits for the pushes of these names.
    fn pushed(&mut self, is_meant: impl Fn(usize) -> bool) -> Result<()> {
        let mut at = 0;
        while let Some((id, _)) = self.pushes.get(at) {
            if is_meant(*id) {
                let (_, push) = self.pushes.remove(at);
                self.endpoint.block_on(push)?;
            } else {
                at += 1;
            }
        }
        Ok(())
    }

    /// A step of waiting; whether there is time left.
    fn rest(&mut self, time_max: Duration) -> Result<bool> {
        let Pace::Spinning { spins, stop, .. } = self.pace else {
            let is_late = self.endpoint.now() >= self.waits_until;
            self.endpoint.block_on(self.endpoint.wait_for_change(self.waits_until));
            return Ok(!is_late);
        };
        self.spins += 1;
        if !self.spins.is_multiple_of(spins) {
            std::hint::spin_loop();
            return Ok(true);
        }
        ensure!(!stop.load(Ordering::Relaxed), Elsewhere);
        self.endpoint.progress();
        std::thread::yield_now();
        Ok(self.waits_since.get_or_insert_with(Instant::now).elapsed() < time_max)
    }

    /// Waits for those operations of which it is asked.
    fn complete(&mut self, is_meant: impl Fn(&UnderWay<'s>) -> bool) -> Result<()> {
        let mut at = 0;
        while let Some(operation) = self.under_way.get(at) {
            if is_meant(operation) {
                self.complete_one(at)?;
            } else {
                at += 1;
            }
        }
        Ok(())
    }

    fn complete_one(&mut self, at: usize) -> Result<()> {
        let UnderWay { node, operation, .. } = self.under_way.remove(at);
        self.ended(node, operation)
    }

    fn ended(&mut self, node: usize, operation: Operation<'s>) -> Result<()> {
        match operation {
            Operation::Move(op) | Operation::Fence(op) => self.end(node, op),
            Operation::Rmw(op, rmw) => {
                let old = self.end(node, op)?;
                self.word(rmw.into).store(old);
                if !rmw.is_private {
                    // It is in memory before the thread continues: a wait promises that.
                    memory_fence();
                }
                Ok(())
            }
        }
    }

    fn end<T: Plain>(&mut self, node: usize, op: Op<'s, T>) -> Result<T> {
        if let Pace::Spinning { .. } = self.pace {
            while !op.is_complete() {
                let (in_time, limit) = (self.rest(OPERATION_MAX)?, OPERATION_MAX.as_secs());
                ensure!(in_time, "an operation towards node {} has not ended within {limit} s", node + 1);
            }
        }
        Ok(op.wait()?)
    }

    fn word(&self, word: usize) -> &'s Word {
        self.layout.word(word, self.instance)
    }

    fn node_of(&self, word: usize) -> usize {
        self.layout.words[word].0
    }

    /// An old value that others read, and that has not arrived yet, precedes the operation that is posted to the same
    /// node now.
    fn brings_first(&mut self, node: usize) -> Result<()> {
        self.complete(|other| {
            other.node == node && matches!(&other.operation, Operation::Rmw(_, rmw) if !rmw.is_private)
        })
    }

    fn posted(&mut self, id: usize, node: usize, operation: Operation<'s>) -> Result<()> {
        if id != NAMELESS && matches!(self.pace, Pace::Spinning { at_once: true, .. }) {
            return self.ended(node, operation);
        }
        self.under_way.push(UnderWay { id, node, operation });
        Ok(())
    }
}

impl Memory for Calls<'_> {
    type Error = anyhow::Error;

    #[inline]
    fn write(&mut self, at: usize, value: i64) -> Result<()> {
        self.word(at).store(value.cast_unsigned());
        Ok(())
    }

    #[inline]
    fn read(&mut self, at: usize) -> Result<i64> {
        Ok(self.word(at).load().cast_signed())
    }

    fn cas(&mut self, at: usize, old: i64, new: i64) -> Result<i64> {
        let found = self.word(at).compare_exchange(old.cast_unsigned(), new.cast_unsigned());
        Ok(found.unwrap_or_else(|found| found).cast_signed())
    }

    fn mfence(&mut self) -> Result<()> {
        memory_fence();
        Ok(())
    }

    fn put(&mut self, id: usize, to: usize, from: usize) -> Result<()> {
        let node = self.node_of(to);
        self.brings_first(node)?;
        let (layout, instance) = (self.layout, self.instance);
        let op = self.endpoint.put_from_region(layout.remote(to, instance), layout.span(from, instance));
        self.posted(id, node, Operation::Move(op))
    }

    fn get(&mut self, id: usize, to: usize, from: usize) -> Result<()> {
        let node = self.node_of(from);
        self.brings_first(node)?;
        let (layout, instance) = (self.layout, self.instance);
        let op = self.endpoint.get_span(layout.remote(from, instance), layout.span(to, instance));
        self.posted(id, node, Operation::Move(op))
    }

    fn rfence(&mut self, node: usize) -> Result<()> {
        let op = self.endpoint.remote_fence(NodeId(node as u16));
        self.posted(NAMELESS, node, Operation::Fence(op))
    }

    fn wait(&mut self, id: usize) -> Result<()> {
        self.complete(|other| other.id == id)?;
        self.pushed(|other| other == id)
    }

    fn poll(&mut self, node: usize) -> Result<bool> {
        let is_meant = |other: &UnderWay<'_>| other.node == node && !matches!(other.operation, Operation::Fence(_));
        let Some(oldest) = self.under_way.iter().position(is_meant) else { return Ok(false) };
        self.complete_one(oldest).map(|()| true)
    }

    fn rmw(&mut self, rmw: Rmw) -> Result<()> {
        let (node, at) = (self.node_of(rmw.at), self.layout.remote(rmw.at, self.instance));
        self.brings_first(node)?;
        let op = match rmw.change {
            Change::CompareAndSwap(old, new) => self.endpoint.cas(at, old.cast_unsigned(), new.cast_unsigned()),
            Change::Add(addend) => self.endpoint.faa(at, addend.cast_unsigned()),
        };
        self.posted(rmw.id, node, Operation::Rmw(op, rmw))
    }

    fn on_object(&mut self, call: &ObjectCall, value: Value) -> Result<Value> {
        let (objects, endpoint, instance) = (self.objects, self.endpoint, self.instance);
        let nodes = |all: &[usize]| all.iter().map(|node| NodeId(*node as u16)).collect::<Vec<_>>();
        match call {
            ObjectCall::Write(object) => {
                let [word] = words(&value)?;
                objects.shared(instance, *object)?.store(word);
            }
            ObjectCall::Read(object) => {
                return Ok(Value::number(objects.shared(instance, *object)?.load().cast_signed()));
            }
            ObjectCall::Broadcast { id, object, nodes: to } => {
                // The first poll posts the puts. The call `Wait` awaits it, or the end of the iteration.
                let mut push: Push<'_> = Box::pin(objects.shared(instance, *object)?.push(endpoint, nodes(to)));
                match endpoint.block_on(poll_fn(|context| Poll::Ready(push.as_mut().poll(context)))) {
                    Poll::Ready(pushed) => pushed?,
                    Poll::Pending => self.pushes.push((*id, push)),
                }
            }
            ObjectCall::GlobalFence(Some(object), over) => {
                endpoint.block_on(objects.shared(instance, *object)?.fence(endpoint, nodes(over)))?;
            }
            ObjectCall::GlobalFence(None, over) => endpoint.block_on(endpoint.global_fence(nodes(over)))?,
            ObjectCall::Arrive(object) => endpoint.block_on(self.parts.barrier(*object)?.wait(endpoint))?,
            ObjectCall::Submit(object) => {
                let message = to_message(&value)?;
                let is_sent = self.parts.sender(instance, *object)?.try_send(endpoint, &message)?;
                return Ok(Value::number(i64::from(is_sent)));
            }
            ObjectCall::Receive(object) => {
                let receiver = self.parts.receiver(instance, *object)?;
                if receiver.try_recv(endpoint, &mut self.message)? {
                    return Ok(of_message(&self.message));
                }
            }
            ObjectCall::WritePair(object) => self.parts.writer(instance, *object)?.store(words(&value)?),
            ObjectCall::TryReadPair(object) => {
                return Ok(objects.pair(instance, *object)?.try_load().map_or(Value::None, value_of));
            }
            // (It sends a copy and waits for nothing.)
            ObjectCall::PushPair(object) => {
                endpoint.block_on(self.parts.writer(instance, *object)?.push(endpoint))?;
            }
            ObjectCall::FetchPair { object, into } => {
                let pulled = endpoint.block_on(objects.pair(instance, *object)?.pull(endpoint))?;
                *self.parts.fetched(instance, *into) = pulled;
            }
            ObjectCall::ReadFetched(object) => return Ok(value_of(*self.parts.fetched(instance, *object))),
        }
        Ok(Value::None)
    }

    fn again(&mut self) -> Result<bool> {
        let Pace::Spinning { given_up, .. } = self.pace else { return self.rest(LOOP_MAX) };
        let times = given_up.load(Ordering::Relaxed);
        let wait = if times < GIVEN_UP_MAX { LOOP_MAX / 4u32.pow(times) } else { LOOP_MAX_LATER };
        let is_in_time = self.rest(wait)?;
        if !is_in_time {
            given_up.fetch_add(1, Ordering::Relaxed);
        }
        Ok(is_in_time)
    }
}
