//! A client: one thread's access to all registers of an array.

use core::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use crate::buffers::{Held, Pool, Used};
use crate::cell::Entry;
use crate::census::{Asks, Count, SLACK};
use crate::chores::Chore;
use crate::errors::TimestampsUsedUp;
use crate::layout::{IndexLayout, Layout};
use crate::options::SwarmOptions;
use crate::patience::AnswerTimes;
use crate::raise::Raise;
use crate::registers::Ended;
use crate::replicas::Replicas;
use crate::sections::Sections;
use crate::version::hash_of;
use crate::version::{Format, Location, Version};
use crate::view::{Replica, View};
use farfield_core::toolkit::Object;
use farfield_core::{Error, Result};
use farfield_fabric::{self as fabric, Batch, Buf, Endpoint, Instant, Op, Posted, RemotePtr};
use smallvec::SmallVec;

/// The state of a shard that all clients of a node share.
pub(crate) struct Shared {
    pub(crate) object: Arc<Object>,
    /// This shard, of so many, which have so many registers or keys together.
    pub(crate) shard: usize,
    pub(crate) shards: usize,
    pub(crate) size: usize,
    pub(crate) options: SwarmOptions,
    pub(crate) layout: Layout,
    pub(crate) memory_nodes: usize,
    pub(crate) view: Arc<View>,
    /// Only a store has one.
    pub(crate) index: Option<IndexLayout>,
    /// None on a node without clients.
    pub(crate) asks: Option<Asks>,
    pub(crate) sections: Arc<Sections>,
    /// When the array was opened, on this node's clock. One that opens it later has a clock that is behind, and is set
    /// right.
    pub(crate) opened: Instant,
}

impl Shared {
    /// A register's number among those of all shards.
    pub(crate) fn number_of(&self, register: usize) -> usize {
        register * self.shards + self.shard
    }
}

/// The state of a writer, which the next client in its place takes over.
pub(crate) struct Place {
    /// The number of the client on its node, and among all.
    client: usize,
    pub(crate) writer: usize,
    /// For each register, its instance, and for each memory node the last value of this writer's metadata word in it
    /// that it knows.
    instances: Vec<u64>,
    known: Vec<u64>,
    /// For each register, this writer's last write, with its buffer.
    pub(crate) held: Vec<Held>,
    pub(crate) pool: Pool,
    /// The timestamp of its last write, and the last one that is reserved (`census`).
    pub(crate) last: u64,
    pub(crate) reserved: u64,
    /// How many it has reserved the last time.
    pub(crate) reserves: u64,
    /// Writes that their callers have dropped, or that found no majority.
    pub(crate) unfinished: Vec<Unfinished>,
    /// What only a client of a store has.
    pub(crate) store: Option<StorePlace>,
}

/// What a client of a store has, beside its buffers.
#[derive(Default)]
pub(crate) struct StorePlace {
    /// Records to which no word points.
    pub(crate) records: Vec<u16>,
    /// For each cell, the records of this client to which its words may point.
    pub(crate) records_of: HashMap<usize, SmallVec<[u16; 2]>>,
    /// Registers that no key has.
    pub(crate) registers: Vec<Location>,
    /// With so many, it leaves further ones to all clients.
    pub(crate) kept_max: usize,
    /// Registers that have ended, and that no read uses any more: their words can be cleared.
    pub(crate) ended: Vec<Ended>,
    /// For each register that came to this client, how often that has happened: twice for each instance, when it is
    /// taken free and when its key was deleted. An entry that says so once more is old.
    pub(crate) came: HashMap<usize, u64>,
    /// For each cell one bit: whether this client has seen that it was used.
    pub(crate) used_cells: Vec<u64>,
    pub(crate) chores: VecDeque<Chore>,
    /// Of these and of `ended`, those that a call is doing.
    pub(crate) under_way: usize,
    /// Whether all groups of registers are taken.
    pub(crate) are_groups_taken: bool,
    /// The groups of registers that this client has taken.
    pub(crate) groups: HashSet<usize>,
    /// Where the search for a free group, and for free registers, continues.
    pub(crate) next_group_cell: usize,
    pub(crate) next_cell: usize,
    /// Until when there is none, as far as this client knows.
    pub(crate) none_free_until: Instant,
}

/// A write that may have happened, in part. It is ended before the writer's next one of the register. So a register has
/// one buffer of the writer that is needed, and one more at most.
pub(crate) struct Unfinished {
    pub(crate) home: Home,
    pub(crate) version: Version,
    pub(crate) value: Vec<u64>,
    /// Whether it is that of an earlier client in this place, which has died or has closed the object (`succession`).
    pub(crate) is_earlier: bool,
    /// Whether its guess was stale before, and this is its second version.
    pub(crate) is_second: bool,
}

/// A register that is written, and where the index has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Home {
    pub(crate) at: Location,
    pub(crate) cell: usize,
    pub(crate) entry: Entry,
}

impl Home {
    /// Of an array, which has no index.
    pub(crate) fn array(at: Location) -> Home {
        Home { at, cell: 0, entry: Entry::NONE }
    }

    pub(crate) fn store(cell: usize, entry: Entry) -> Home {
        Home { at: entry.at(), cell, entry }
    }
}

impl Place {
    pub(crate) fn new(client: usize, writer: usize, shared: &Shared) -> Place {
        let Shared { layout, memory_nodes, .. } = shared;
        let buffers = layout.buffers;
        let store = shared.index.as_ref().map(|index| StorePlace {
            records: (1..index.records).rev().map(|record| record as u16).collect(),
            used_cells: vec![0; index.cells().div_ceil(64)],
            kept_max: index.group + 1,
            // They begin at different places.
            next_group_cell: writer * index.group_cells() / layout.writers,
            next_cell: writer * index.buckets / layout.writers,
            ..StorePlace::default()
        });
        Place {
            client,
            writer,
            instances: vec![0; layout.registers],
            known: vec![0; layout.registers * memory_nodes],
            held: vec![Held::default(); layout.registers],
            pool: Pool {
                free: (0..buffers).rev().map(|buffer| buffer as u16).collect(),
                retired: Vec::with_capacity(buffers),
                asked_for: Vec::with_capacity(buffers),
                request: 0,
                asked: None,
                asked_again: 0,
            },
            last: 0,
            reserved: 0,
            reserves: 0,
            unfinished: Vec::new(),
            store,
        }
    }
}

impl Place {
    /// Registers that have ended, and that cannot be used again yet: for each whether this client keeps it, if that is
    /// known.
    pub(crate) fn registers_on_the_way(&self) -> impl Iterator<Item = Option<bool>> {
        let used = self.pool.retired.iter().chain(&self.pool.asked_for).filter_map(|used| match used {
            Used::Register(ended) => Some(Some(ended.is_kept)),
            _ => None,
        });
        let of_store = self.store.iter().flat_map(|store| {
            let chores = store.chores.iter().filter_map(|chore| match chore {
                Chore::Leave { .. } => None,
                Chore::End(ended) => Some(Some(ended.is_kept)),
                _ => Some(None),
            });
            let ended = store.ended.iter().map(|ended| Some(ended.is_kept));
            chores.chain(ended).chain((0..store.under_way).map(|_| None))
        });
        used.chain(of_store)
    }
}

/// What a thread's clients of all shards share.
#[derive(Default)]
pub(crate) struct Common<'e> {
    /// Calls so far, and memory nodes that were slow.
    pub(crate) asked: Cell<u32>,
    pub(crate) slow: Cell<Replicas>,
    pub(crate) answer_times: AnswerTimes,
    /// The sections in use, one bit each.
    pub(crate) sections: Cell<u64>,
    /// Sections of reads that have ended, and memory nodes to which they have put something, each with a get that
    /// flushes it.
    pub(crate) late: RefCell<Vec<(usize, usize, Op<'e, u64>)>>,
    /// Chores that calls are doing, and calls that search for free registers: both need sections.
    pub(crate) chores: Cell<usize>,
    pub(crate) scans: Cell<usize>,
}

/// A client's handle of a shard, for registers of words.
pub(crate) struct Core<'e> {
    pub(crate) endpoint: &'e Endpoint,
    pub(crate) shared: Arc<Shared>,
    pub(crate) client: usize,
    pub(crate) writer: usize,
    /// The memory nodes as of the last look at the view; those that join, and those that do not count.
    pub(crate) replicas: RefCell<Vec<Replica>>,
    pub(crate) seen_view: Cell<u64>,
    pub(crate) joining: Cell<Replicas>,
    pub(crate) out: Cell<Replicas>,
    place: RefCell<Place>,
    pub(crate) common: Rc<Common<'e>>,
    /// How far its clock is set forward, in microseconds.
    pub(crate) ahead: Cell<u64>,
    /// A look at the tables of nodes with clients that is under way.
    pub(crate) count: RefCell<Option<Count<'e>>>,
    /// Registers that this client is writing.
    writing: RefCell<SmallVec<[usize; 8]>>,
}

impl<'e> Core<'e> {
    pub(crate) fn new(shared: &Arc<Shared>, endpoint: &'e Endpoint, place: Place, common: Rc<Common<'e>>) -> Core<'e> {
        let core = Core {
            endpoint,
            shared: Arc::clone(shared),
            client: place.client,
            writer: place.writer,
            replicas: RefCell::default(),
            seen_view: Cell::new(0),
            joining: Cell::default(),
            out: Cell::default(),
            place: RefCell::new(place),
            common,
            ahead: Cell::new(0),
            count: RefCell::new(None),
            writing: RefCell::new(SmallVec::new()),
        };
        core.look_at_view();
        core
    }

    /// A memory node.
    #[inline]
    pub(crate) fn replica(&self, replica: usize) -> Replica {
        self.replicas.borrow()[replica]
    }

    /// The state that the next client in its place takes over.
    pub(crate) fn into_place(self) -> Place {
        self.place.into_inner()
    }

    /// What this writer's metadata word of a register holds, as far as it knows.
    pub(crate) fn known(&self, at: Location, replica: usize) -> Version {
        let word = at.register * self.shared.memory_nodes + replica;
        self.with_place(|place| {
            if place.instances[at.register] == at.instance {
                self.version(place.known[word])
            } else {
                Version::empty(at.instance)
            }
        })
    }

    pub(crate) fn set_known(&self, at: Location, replica: usize, version: Version) {
        let replicas = self.shared.memory_nodes;
        let words = at.register * replicas..(at.register + 1) * replicas;
        self.with_place(|place| {
            let instance = &mut place.instances[at.register];
            if *instance < at.instance {
                *instance = at.instance;
                place.known[words.clone()].fill(Version::empty(at.instance).0);
            }
            if *instance == at.instance {
                place.known[words.start + replica] = version.0;
            }
        });
    }

    /// This writer's write of a register that has not ended.
    pub(crate) fn take_unfinished(&self, register: usize) -> Option<Unfinished> {
        self.with_place(|place| {
            let at = place.unfinished.iter().position(|write| write.home.at.register == register)?;
            Some(place.unfinished.swap_remove(at))
        })
    }

    /// A register with a write that has not ended, and that nobody is ending.
    pub(crate) fn unfinished_register(&self) -> Option<Location> {
        let writing = self.writing.borrow();
        self.with_place(|place| {
            place.unfinished.iter().map(|write| write.home.at).find(|at| !writing.contains(&at.register))
        })
    }

    pub(crate) fn with_place<T>(&self, body: impl FnOnce(&mut Place) -> T) -> T {
        body(&mut self.place.borrow_mut())
    }

    /// What only a client of a store has.
    pub(crate) fn with_store<T>(&self, body: impl FnOnce(&mut StorePlace) -> T) -> T {
        self.with_place(|place| body(place.store.as_mut().expect("it is a store's client")))
    }

    pub(crate) fn asks(&self) -> &Asks {
        self.shared.asks.as_ref().expect("a client is on a node that may have some")
    }

    pub(crate) fn index(&self) -> &IndexLayout {
        self.shared.index.as_ref().expect("it is a store's client")
    }

    pub(crate) fn majority(&self) -> usize {
        self.shared.memory_nodes / 2 + 1
    }

    /// A register of an array, by its number.
    pub(crate) fn register(&self, register: usize) -> Result<Location> {
        self.shared.object.check_current()?;
        debug_assert!(register < self.shared.layout.registers);
        Ok(Location { register, instance: 0 })
    }

    /// A register: its instance, its metadata words, and its value in place.
    pub(crate) fn register_at(&self, replica: usize, register: usize) -> RemotePtr<u64> {
        self.replica(replica).registers.at(self.shared.layout.register(register))
    }

    /// The version of a metadata word.
    pub(crate) fn version(&self, word: u64) -> Version {
        self.shared.layout.format.version(word)
    }

    /// The highest of some metadata words.
    pub(crate) fn newest(&self, words: &[u64]) -> Version {
        self.shared.layout.format.newest(words)
    }

    /// The metadata word of a writer.
    pub(crate) fn word_at(&self, replica: usize, register: usize, writer: usize) -> RemotePtr<u64> {
        self.register_at(replica, register).at(self.shared.layout.metadata_word(writer))
    }

    pub(crate) fn buffer_at(&self, replica: usize, version: Version) -> RemotePtr<u64> {
        let at = self.shared.layout.buffer(version.writer(), version.buffer());
        self.replica(replica).buffers.at(at)
    }

    /// Puts an image into the buffer of a version, and then raises the metadata word of its writer to that version, in
    /// one round trip (Algorithm 5). The word changes after the buffer has landed (`NRW` before `NAR`). A seal has no
    /// image.
    pub(crate) fn store<'b>(
        &'b self,
        replica: usize,
        at: Location,
        [known, new]: [Version; 2],
        image: Option<&'b Buf<'_, u64>>,
    ) -> Raise<'b> {
        let word = self.word_at(replica, at.register, new.writer());
        // The word may hold another writer's later version. It never falls: then nothing is exchanged.
        let known = if known.is_as_new(new) { Version::empty(at.instance) } else { known };
        let first: Option<Posted<'b, u64>> = image.map(|image| {
            let batch: Batch<'b> = self.endpoint.batch(self.replica(replica).node);
            let batch = batch.put(self.buffer_at(replica, new), image);
            batch.cas(word, known.0, new.0)
        });
        let raise = Raise::to_version(self.endpoint, word, [known, new], first);
        // It may have been verified since, and that costs no round trip more.
        if known.is_initial() || known.is_verified() { raise } else { raise.or_from(known.verified().0) }
    }

    /// The same with one attempt: the word may hold something else than what is expected. Two operations, the second of
    /// which finds the first landed (`NRW` before `NAR`).
    pub(crate) fn store_once<'b>(
        &'b self,
        replica: usize,
        word: RemotePtr<u64>,
        [expected, new]: [Version; 2],
        image: &Buf<'_, u64>,
    ) -> fabric::Result<Op<'b, u64>> {
        self.endpoint.put(self.buffer_at(replica, new), image).detach()?;
        let stored = self.endpoint.cas(word, expected.0, new.0);
        if stored.has_failed() {
            return Err(stored.wait().expect_err("it has failed"));
        }
        Ok(stored)
    }

    /// Writes a hash and a value where reads find them in one round trip, on one memory node. If another write is there
    /// at the same time, the hash fits neither, and readers follow the version instead.
    pub(crate) fn store_in_place(&self, replica: usize, register: usize, image: &Buf<'_, u64>) {
        let at = self.register_at(replica, register).at(self.shared.layout.head_words());
        // If this is refused, readers take a round trip more.
        let _ = self.endpoint.put(at, image).detach();
    }

    /// Fills an image with the words of a value, and its hash.
    pub(crate) fn image(&self, at: Location, version: Version, value: &[u64]) -> fabric::Result<Buf<'e, u64>> {
        let mut image = self.endpoint.buf(self.shared.layout.image_words())?;
        image[0] = hash(at, version, value);
        image[1..].copy_from_slice(value);
        Ok(image)
    }
}

/// The hash of a value in place. It covers the write that the value is of, but not the flag, which is set later.
pub(crate) fn hash(at: Location, version: Version, value: &[u64]) -> u64 {
    hash_of(version.write_at(at), value)
}

/// Timestamps.
impl Core<'_> {
    /// This client's clock, in microseconds.
    pub(crate) fn clock(&self) -> u64 {
        let since = self.endpoint.now() - self.shared.opened;
        since.as_micros() as u64 + self.shared.options.first_timestamp + self.ahead.get()
    }

    /// A timestamp that is probably higher than those of all writes that have ended, and certainly than this writer's
    /// own.
    pub(crate) fn guess(&self, at: Location, clock: u64, buffer: u16) -> Result<Version, TimestampsUsedUp> {
        self.guess_of(at, clock, |format, timestamp, writer| format.guessed(timestamp, writer, buffer))
    }

    /// A seal of this client.
    pub(crate) fn guess_seal(&self, at: Location, clock: u64) -> Result<Version, TimestampsUsedUp> {
        self.guess_of(at, clock, Format::seal)
    }

    fn guess_of(
        &self,
        at: Location,
        clock: u64,
        version: impl FnOnce(Format, u64, usize) -> Result<Version, TimestampsUsedUp>,
    ) -> Result<Version, TimestampsUsedUp> {
        self.with_place(|place| {
            // A guess that is too low is stale, at worst. More are reserved before the next one.
            let time = clock.min(place.reserved.saturating_sub(SLACK / 2)).max(place.last + 1).max(at.base() + 1);
            debug_assert!(time <= place.reserved, "{time} of {}", place.reserved);
            let version = version(self.shared.layout.format, time - at.base(), place.writer)?;
            place.last = time;
            Ok(version)
        })
    }

    /// Whether this register has no timestamp left for this client.
    pub(crate) fn is_used_up(&self, at: Location) -> bool {
        self.with_place(|place| place.last).max(self.clock()) >= at.base() + self.shared.layout.format.timestamp_max()
    }

    #[cold]
    pub(crate) fn used_up(&self) -> Error {
        Error::custom(TimestampsUsedUp).of(self.shared.object.path())
    }

    /// The version of a write, if its guess may have been stale: later than the one found. If the clock is behind that,
    /// it is set forward.
    pub(crate) async fn later_than(&self, at: Location, found: Version, stale: Version) -> Result<Version> {
        let later = stale.at(found.timestamp() + 1).verified();
        let time = at.time(later);
        self.reserve(time).await?;
        self.set_clock_to(time);
        self.with_place(|place| place.last = place.last.max(time));
        Ok(later)
    }

    /// Sets the clock forward, if it is behind.
    pub(crate) fn set_clock_to(&self, time: u64) {
        self.ahead.set(self.ahead.get() + time.saturating_sub(self.clock()));
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
                let number = self.shared.number_of(register);
                let what = format!("this client's write of register {number} before this one");
                self.timed_out(what, start, Vec::new())
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
