//! A client: one thread's access to all registers of an array.

use core::cell::{Cell, RefCell};
use core::future::{Future, poll_fn};
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};
use std::sync::Arc;

use farfield_core::toolkit::{Object, Participants, RefusedPause};
use farfield_core::{Error, ErrorKind, MemberStatus, Result};
use farfield_fabric::{
    self as fabric, Batch, Buf, Endpoint, Instant, LocalMutex, NodeId, Op, Posted, Region, RemotePtr,
};
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64_with_seed;
use zerocopy::IntoBytes;

use crate::layout::Layout;
use crate::majority::Replicas;
use crate::options::SwarmOptions;
use crate::raise::Raise;
use crate::sections::{SECTIONS, Sections};
use crate::version::Version;

/// The state that all clients of a node share.
pub(crate) struct Shared {
    pub(crate) object: Object,
    pub(crate) options: SwarmOptions,
    pub(crate) layout: Layout,
    pub(crate) replicas: Vec<Replica>,
    pub(crate) participants: Participants,
    /// For each participant, the words for the requests of its clients.
    pub(crate) requests: Vec<RemotePtr<u64>>,
    /// Of each of this node's clients, the answers of all participants.
    pub(crate) answers: Region,
    pub(crate) sections: Arc<Sections>,
    /// When the array was opened, on this node's clock: all nodes open it at about the same time.
    pub(crate) opened: Instant,
    /// The clients that are not in use.
    pub(crate) places: LocalMutex<Vec<Place>>,
}

/// The memory of an array on one memory node.
pub(crate) struct Replica {
    pub(crate) node: NodeId,
    pub(crate) registers: RemotePtr<u64>,
    pub(crate) buffers: RemotePtr<u64>,
    pub(crate) locks: RemotePtr<u64>,
}

/// The state of a writer, which the next client in its place takes over.
pub(crate) struct Place {
    /// The number of the client on its node, and among all.
    client: usize,
    pub(crate) writer: usize,
    /// For each register and memory node, the last value of this writer's metadata word that it knows.
    known: Vec<u64>,
    /// For each register, the buffer of this writer's last write, plus one.
    held: Vec<u32>,
    pool: Pool,
    /// The timestamp of its last write.
    last: u64,
    /// Writes whose callers have dropped them, or which found no majority.
    pub(crate) unfinished: Vec<Unfinished>,
}

/// A write that may have happened, in part. It is ended before the writer's next one of the register. So a register has one
/// buffer of the writer that is needed, and one more at most.
pub(crate) struct Unfinished {
    pub(crate) register: usize,
    pub(crate) version: Version,
    pub(crate) value: Vec<u64>,
}

/// The buffers of a writer.
struct Pool {
    free: Vec<u16>,
    /// Their values were replaced since the last request.
    retired: Vec<u16>,
    /// Their values were replaced before the last request.
    asked_for: Vec<u16>,
    /// The number of the last request, and the participants that have been sent it.
    request: u64,
    told: Vec<bool>,
}

impl Pool {
    /// Whether there is nothing to take, and nothing to ask for.
    fn is_used_up(&self) -> bool {
        self.free.is_empty() && self.retired.is_empty() && self.asked_for.is_empty()
    }
}

impl Place {
    pub(crate) fn new(client: usize, writer: usize, layout: &Layout, replicas: usize, participants: usize) -> Place {
        let buffers = layout.buffers;
        Place {
            client,
            writer,
            known: vec![0; layout.registers * replicas],
            held: vec![0; layout.registers],
            pool: Pool {
                free: (0..buffers).rev().map(|buffer| buffer as u16).collect(),
                retired: Vec::with_capacity(buffers),
                asked_for: Vec::with_capacity(buffers),
                request: 0,
                told: vec![true; participants],
            },
            last: 0,
            unfinished: Vec::new(),
        }
    }
}

/// A client's handle, for registers of words.
pub(crate) struct Core<'e> {
    pub(crate) endpoint: &'e Endpoint,
    pub(crate) shared: Arc<Shared>,
    client: usize,
    /// None when it is dropped.
    place: RefCell<Option<Place>>,
    /// How far its clock is set forward, in microseconds.
    pub(crate) ahead: Cell<u64>,
    /// Calls so far, and memory nodes that were slow.
    pub(crate) asked: Cell<u32>,
    pub(crate) slow: Cell<Replicas>,
    /// The sections in use, one bit each.
    sections: Cell<u64>,
    /// Sections of reads that have ended, and memory nodes to which they have put something, each with a get that flushes it.
    late: RefCell<Vec<(usize, usize, Op<'e, u64>)>>,
    /// Registers that this client is writing.
    writing: RefCell<SmallVec<[usize; 8]>>,
}

impl<'e> Core<'e> {
    pub(crate) fn new(shared: &Arc<Shared>, endpoint: &'e Endpoint) -> Result<Core<'e>> {
        shared.object.check_current()?;
        let place = shared.places.lock().pop().ok_or_else(|| {
            let in_use = ErrorKind::InUse { what: "clients of the array", max: shared.options.clients_per_node };
            Error::from(in_use).of(shared.object.path())
        })?;
        Ok(Core {
            endpoint,
            shared: Arc::clone(shared),
            client: place.client,
            place: RefCell::new(Some(place)),
            ahead: Cell::new(0),
            asked: Cell::new(0),
            slow: Cell::default(),
            sections: Cell::new(0),
            late: RefCell::new(Vec::new()),
            writing: RefCell::new(SmallVec::new()),
        })
    }

    /// What this writer's metadata word of a register holds, as far as it knows.
    pub(crate) fn known(&self, register: usize, replica: usize) -> Version {
        let at = register * self.shared.replicas.len() + replica;
        self.with_place(|place| Version(place.known[at]))
    }

    pub(crate) fn set_known(&self, register: usize, replica: usize, version: Version) {
        let at = register * self.shared.replicas.len() + replica;
        self.with_place(|place| place.known[at] = version.0);
    }

    /// This writer's write of a register that has not ended.
    pub(crate) fn take_unfinished(&self, register: usize) -> Option<Unfinished> {
        self.with_place(|place| {
            let at = place.unfinished.iter().position(|write| write.register == register)?;
            Some(place.unfinished.swap_remove(at))
        })
    }

    /// A register with a write that has not ended, and that nobody is ending.
    pub(crate) fn unfinished_register(&self) -> Option<usize> {
        let writing = self.writing.borrow();
        self.with_place(|place| {
            place.unfinished.iter().map(|write| write.register).find(|register| !writing.contains(register))
        })
    }

    pub(crate) fn with_place<T>(&self, body: impl FnOnce(&mut Place) -> T) -> T {
        body(self.place.borrow_mut().as_mut().expect("only a drop takes it"))
    }

    pub(crate) fn majority(&self) -> usize {
        self.shared.replicas.len() / 2 + 1
    }

    /// Checks a register's number.
    pub(crate) fn check(&self, register: usize) -> Result<()> {
        self.shared.object.check_current()?;
        let registers = self.shared.layout.registers;
        if register < registers {
            return Ok(());
        }
        let why = format!("there is no register {register}: there are {registers}, from 0");
        Err(Error::from(ErrorKind::Config { why }).of(self.shared.object.path()))
    }

    pub(crate) fn metadata(&self, replica: usize, register: usize) -> RemotePtr<u64> {
        self.shared.replicas[replica].registers.at(self.shared.layout.register(register))
    }

    pub(crate) fn buffer_at(&self, replica: usize, version: Version) -> RemotePtr<u64> {
        let at = self.shared.layout.buffer(version.writer(), version.buffer());
        self.shared.replicas[replica].buffers.at(at)
    }

    /// Puts an image into the buffer of a version, and then raises the metadata word of its writer to that version, in one
    /// round trip (Algorithm 5). The word changes after the buffer has landed (`NRW` before `NAR`).
    pub(crate) fn store<'b>(
        &'b self,
        replica: usize,
        register: usize,
        [known, new]: [Version; 2],
        image: &'b Buf<'_, u64>,
    ) -> Raise<'b> {
        let word = self.metadata(replica, register).at(self.shared.layout.metadata_word(new.writer()));
        // The word may hold another writer's later version. It never falls: then nothing is exchanged.
        let known = if is_as_new(known.0, new.0) { Version(0) } else { known };
        let batch: Batch<'b> = self.endpoint.batch(self.shared.replicas[replica].node);
        let batch = batch.put(self.buffer_at(replica, new), image);
        let first: Posted<'b, u64> = batch.cas(word, known.0, new.0);
        Raise::after(self.endpoint, word, [known.0, new.0], is_as_new, first)
    }

    /// Writes a hash and a value where reads find them in one round trip, on one memory node. If another write is there at
    /// the same time, the hash fits neither, and readers follow the version instead.
    pub(crate) fn store_in_place(&self, replica: usize, register: usize, image: &Buf<'_, u64>) {
        let at = self.metadata(replica, register).at(self.shared.layout.metadata_words);
        // If this is refused, readers take a round trip more.
        let _ = self.endpoint.put(at, image).detach();
    }

    /// Fills an image with the words of a value, and its hash.
    pub(crate) fn image(&self, version: Version, value: &[u64]) -> fabric::Result<Buf<'e, u64>> {
        let mut image = self.endpoint.buf(self.shared.layout.image_words())?;
        image[0] = hash(version, value);
        image[1..].copy_from_slice(value);
        Ok(image)
    }
}

/// Whether a metadata word is of the same write as another, or of a later one.
pub(crate) fn is_as_new(found: u64, new: u64) -> bool {
    Version(found).write() >= Version(new).write()
}

/// The hash of a value in place. It covers the write that the value is of, but not the flag, which is set later.
pub(crate) fn hash(version: Version, value: &[u64]) -> u64 {
    xxh3_64_with_seed(value.as_bytes(), version.write())
}

/// Timestamps.
impl Core<'_> {
    /// This client's clock, in microseconds, before it was set forward.
    fn clock(&self) -> u64 {
        let since = self.endpoint.now() - self.shared.opened;
        since.as_micros() as u64 + self.shared.options.first_timestamp
    }

    /// A timestamp that is probably higher than those of all writes that have ended, and certainly than this writer's own.
    pub(crate) fn guess(&self, buffer: u16) -> Result<Version> {
        let clock = self.clock() + self.ahead.get();
        self.with_place(|place| {
            let timestamp = clock.max(place.last + 1);
            let version = Version::guessed(timestamp, place.writer, buffer);
            let version = version.map_err(|error| Error::custom(error).of(self.shared.object.path()))?;
            place.last = timestamp;
            Ok(version)
        })
    }

    /// The version of a write whose guess may have been stale: later than what was found. If the clock is behind that, it
    /// is set forward.
    pub(crate) fn later_than(&self, found: Version, stale: Version) -> Version {
        let later = stale.at(found.timestamp() + 1).verified();
        self.ahead.set(self.ahead.get().max(later.timestamp().saturating_sub(self.clock())));
        self.with_place(|place| place.last = place.last.max(later.timestamp()));
        later
    }
}

/// Buffers, and when they may be used again.
impl Core<'_> {
    /// A buffer that no read and no register needs.
    pub(crate) async fn take_buffer(&self) -> Result<u16> {
        let take = || self.with_place(|place| place.pool.free.pop());
        self.end_late(None);
        self.recycle();
        if let Some(buffer) = take() {
            return Ok(buffer);
        }
        let (start, mut pause) = (self.endpoint.now(), RefusedPause::default());
        let deadline = start + self.endpoint.timeout();
        loop {
            self.recycle();
            if let Some(buffer) = take() {
                return Ok(buffer);
            }
            let (request, is_asked, is_told) = self.with_place(|place| {
                let pool = &place.pool;
                (pool.request, !pool.asked_for.is_empty(), !pool.told.contains(&false))
            });
            if !is_asked && self.finish_any().await? {
                continue;
            }
            if is_told {
                let goes_on = || match is_asked {
                    true => self.unanswered(request).next().is_none().then_some(()),
                    // All buffers are those of registers, and of this client's writes that are under way.
                    false => self.with_place(|place| !place.pool.is_used_up()).then_some(()),
                };
                let mut wait = pin!(self.endpoint.wait_until(deadline, goes_on));
                // Two clients may wait for each other's late sections.
                let wait = poll_fn(|cx| {
                    self.end_late(Some(cx));
                    wait.as_mut().poll(cx)
                });
                let _ = wait.await;
            } else {
                pause.wait(self.endpoint, deadline).await;
            }
            if self.endpoint.now() >= deadline {
                let (what, missing) = match is_asked {
                    true => ("a free buffer: reads that may use the old ones", self.unanswered(request).collect()),
                    false => ("a free buffer: this client's other writes", Vec::new()),
                };
                let timeout = ErrorKind::Timeout { what: what.into(), waited: self.endpoint.now() - start, missing };
                return Err(Error::from(timeout).of(self.shared.object.path()));
            }
        }
    }

    /// A buffer into which nothing was written.
    pub(crate) fn give_back(&self, buffer: u16) {
        self.with_place(|place| place.pool.free.push(buffer));
    }

    /// A write has ended: the buffer of the client's last write of the register is not needed any more.
    pub(crate) fn hold(&self, register: usize, buffer: usize) {
        self.with_place(|place| {
            let before = core::mem::replace(&mut place.held[register], buffer as u32 + 1);
            if before != 0 && before != buffer as u32 + 1 {
                place.pool.retired.push((before - 1) as u16);
            }
        });
    }

    /// The nodes whose answer to a request is missing.
    fn unanswered(&self, request: u64) -> impl Iterator<Item = NodeId> + '_ {
        let nodes = self.shared.participants.iter().enumerate();
        nodes.filter(move |(rank, node)| !self.has_answered(*rank, *node, request)).map(|(_, node)| node)
    }

    fn has_answered(&self, rank: usize, node: NodeId, request: u64) -> bool {
        let word = self.client * self.shared.participants.count() + rank;
        self.shared.answers.word(word * 8).load() >= request
            // Nothing that it has begun can land or be read any more.
            || matches!(self.shared.object.node().status_of(node), MemberStatus::Evicted | MemberStatus::Departed)
    }

    /// Takes the answers to the last request, and sends the next one if half of the spare buffers are used up.
    fn recycle(&self) {
        self.with_place(|place| {
            let pool = &mut place.pool;
            if pool.asked_for.is_empty() {
                let spare = self.shared.options.spare_buffers;
                if pool.retired.is_empty() || pool.retired.len() < spare / 2 && !pool.free.is_empty() {
                    return;
                }
                core::mem::swap(&mut pool.retired, &mut pool.asked_for);
                pool.request += 1;
                pool.told.fill(false);
            }
            let mut is_answered = true;
            for (rank, node) in self.shared.participants.iter().enumerate() {
                if self.has_answered(rank, node, pool.request) {
                    pool.told[rank] = true;
                    continue;
                }
                is_answered = false;
                if !pool.told[rank] {
                    let word =
                        self.shared.requests[rank].byte_add((place.writer * crate::sections::REQUEST_BYTES) as u64);
                    // A refused one is sent again; the members decide about a node that is not reached.
                    pool.told[rank] = self.endpoint.put_untracked(word, pool.request).detach().is_ok();
                }
            }
            if is_answered {
                pool.free.append(&mut pool.asked_for);
            }
        });
    }
}

/// A read that is under way.
pub(crate) struct Section<'c, 'e> {
    core: &'c Core<'e>,
    number: usize,
    /// Memory nodes to which it has put something that may not have landed.
    pub(crate) has_put: Cell<Replicas>,
    /// Whether it ends when these puts have landed.
    is_late: Cell<bool>,
}

impl<'e> Core<'e> {
    /// Begins a read.
    pub(crate) fn enter<'c>(&'c self) -> Result<Section<'c, 'e>> {
        self.end_late(None);
        let number = self.sections.get().trailing_ones() as usize;
        if number >= SECTIONS {
            let in_use = ErrorKind::InUse {
                what: "reads of a client (those count whose copies a memory node has not taken yet)",
                max: SECTIONS,
            };
            return Err(Error::from(in_use).of(self.shared.object.path()));
        }
        self.sections.set(self.sections.get() | 1 << number);
        self.shared.sections.enter(self.client, number);
        Ok(Section { core: self, number, has_put: Cell::default(), is_late: Cell::new(false) })
    }

    fn leave(&self, number: usize) {
        self.shared.sections.leave(self.client, number);
        self.sections.set(self.sections.get() & !(1 << number));
    }

    /// A get flushes the puts before it (`NRW → NRR`).
    fn flush(&self, replica: usize) -> Op<'e, u64> {
        self.endpoint.get(self.shared.replicas[replica].buffers)
    }

    /// Waits until the puts to a memory node have landed, or its connection is lost, and they with it.
    fn wait_for_flush(&self, replica: usize) {
        while self.flush(replica).wait().is_err_and(|error| error.is_refused()) {
            self.endpoint.progress();
        }
    }

    /// Ends the sections whose puts have landed. With a context, its task is woken when others may have.
    fn end_late(&self, mut cx: Option<&mut Context<'_>>) {
        if self.late.borrow().is_empty() {
            return;
        }
        let mut late = self.late.borrow_mut();
        let mut at = 0;
        while at < late.len() {
            let (number, replica, flush) = &mut late[at];
            let ended = match &mut cx {
                Some(cx) => Pin::new(&mut *flush).poll(cx),
                None if flush.is_complete() => Pin::new(&mut *flush).poll(&mut Context::from_waker(Waker::noop())),
                None => Poll::Pending,
            };
            match ended {
                Poll::Pending => at += 1,
                Poll::Ready(Err(error)) if error.is_refused() => {
                    *flush = self.flush(*replica);
                    at += 1;
                }
                Poll::Ready(_) => {
                    let number = *number;
                    drop(late.swap_remove(at));
                    if late.iter().all(|(other, ..)| *other != number) {
                        self.leave(number);
                    }
                }
            }
        }
    }
}

impl Section<'_, '_> {
    /// The read has ended, and does not wait for what it has put to memory nodes that do not answer.
    pub(crate) fn end(self) {
        let has_put = self.has_put.take();
        if has_put != Replicas::default() {
            self.is_late.set(true);
            let flushes = has_put.iter().map(|replica| (self.number, replica, self.core.flush(replica)));
            self.core.late.borrow_mut().extend(flushes);
            // Those of nodes that have failed have ended.
            self.core.end_late(None);
        }
    }
}

/// A read that is dropped in the middle waits until its puts have landed: its client may not call again for long, and
/// others need the buffers.
impl Drop for Section<'_, '_> {
    fn drop(&mut self) {
        for replica in self.has_put.get().iter() {
            self.core.wait_for_flush(replica);
        }
        if !self.is_late.get() {
            self.core.leave(self.number);
        }
    }
}

/// A register that a client is writing. It writes it once at a time.
pub(crate) struct Writing<'c, 'e> {
    core: &'c Core<'e>,
    register: usize,
}

impl<'e> Core<'e> {
    /// Waits until no other write of this client to the register is under way.
    pub(crate) async fn begin_write<'c>(&'c self, register: usize) -> Result<Writing<'c, 'e>> {
        let begin = || {
            let mut writing = self.writing.borrow_mut();
            (!writing.contains(&register)).then(|| writing.push(register))
        };
        if begin().is_none() {
            let start = self.endpoint.now();
            self.endpoint.wait_until(start + self.endpoint.timeout(), begin).await.map_err(|_| {
                let what = format!("this client's write of register {register} before this one");
                let waited = self.endpoint.now() - start;
                Error::from(ErrorKind::Timeout { what, waited, missing: Vec::new() }).of(self.shared.object.path())
            })?;
        }
        Ok(Writing { core: self, register })
    }
}

impl Drop for Writing<'_, '_> {
    fn drop(&mut self) {
        self.core.writing.borrow_mut().retain(|register| *register != self.register);
    }
}

impl Drop for Core<'_> {
    fn drop(&mut self) {
        // The next client in this place has another endpoint, and must not be overtaken by what this one has put. Nor must a
        // section end before that.
        for replica in 0..self.shared.replicas.len() {
            self.wait_for_flush(replica);
        }
        self.late.get_mut().clear();
        let mut sections = self.sections.get();
        while sections != 0 {
            self.leave(sections.trailing_zeros() as usize);
            sections &= sections - 1;
        }
        if let Some(place) = self.place.get_mut().take() {
            self.shared.places.lock().push(place);
        }
    }
}
