//! A memory node that takes the place of one that has died, while calls go on.
//!
//! 1. *It comes.* When the earlier one has been evicted, it writes its seat to the tables of the others, and enters
//!    itself among those that are asked (`census`): what it reads is not used again meanwhile.
//! 2. *It joins.* It asks all nodes with clients, and tells them its seat. They answer when the calls that were under
//!    way have ended. So no call counts any more on what the earlier one has answered, and none of them counts on this
//!    one yet.
//! 3. *It gets a copy* of all registers and cells, some at a time, each from a majority of the others.
//! 4. *It counts.* It changes its seat, and asks all nodes once more. Each counts on it from then on, sooner or later
//!    than others.
//!
//! *Nothing that has ended is missed.* What a call has done before step 2 is at a majority, of which the earlier memory
//! node was one, perhaps. Of the others in it, at least one is among those of which step 3 takes the highest state.
//! What a call does after step 2 without this memory node is at a majority of the others; and a call that counts on it
//! asks so many of those that it meets one of them.
//!
//! *Half of it is taken for less.* What was at a minority may be at a majority with this copy: a version, a frozen
//! register. That is as if it had been written there late. Two things would not be: of a timestamp lock whose sides
//! both have it somewhere, the copy has neither, but a later timestamp; and of a cell it gets the record that was
//! chosen, and makes the others choose one before, since the earlier memory node may have promised to accept no record
//! that is only accepted somewhere.
//!
//! *What is done on all memory nodes*, so that registers and records can be used again, is done on this one when it has
//! its copy, and not before. Where it makes the copy just now, such work waits: its word of progress says where
//! (`Core::holders_of`). It changes that word before it asks, and copies when all have answered.

use std::rc::Rc;
use std::sync::Arc;

use farfield_core::toolkit::{ErrorContext, Object, ObjectBuilder, Regions};
use farfield_core::{Error, ErrorKind, Node, Result};
use farfield_fabric::{self as fabric, Endpoint, GroupKey, LocalMutex, NodeId, RemotePtr};

use crate::cell::{CELL_WORDS, CellWord, RECORD_WORDS};
use crate::census::{Asks, REQUEST_BYTES, agreed_seats, is_out, on_each_home};
use crate::client::{Common, Core, Place, Shared};
use crate::errors::FirstMemoryGone;
use crate::layout::IndexLayout;
use crate::lender::Lent;
use crate::moving::latest_limit;
use crate::open::Closes;
use crate::options::SwarmOptions;
use crate::plan::Plan;
use crate::raise::Raise;
use crate::replicas::Order;
use crate::sections::{Answers, Section, Sections};
use crate::timestamp_lock::dominating;
use crate::together::together;
use crate::version::Location;
use crate::view::{Progress, Replica, Seat, Standing, View};

/// Registers or cells that are copied at a time: so many may wait to be used again.
const UNITS_AT_A_TIME: usize = 1024;

/// Of these, so many are under way. Each needs a section.
const COPIES_AT_A_TIME: usize = 32;

/// A memory node that replaces another one.
pub(crate) struct Replacement {
    node: Node,
    shards: Vec<Arc<Shared>>,
    /// The state of its client of each shard, from one attempt to the next: the numbers of its questions rise.
    places: LocalMutex<Vec<Place>>,
    /// Where requests to this node go, of each shard.
    requests: Vec<RemotePtr<u64>>,
    /// The place that it takes.
    replica: usize,
    plan: Plan,
    // After the rest.
    _closes: Closes,
}

impl Replacement {
    /// Lends memory for an object, in place of the memory node `of`, which has gone.
    pub(crate) fn open(
        node: &Node,
        endpoint: &Endpoint,
        kind: &'static str,
        path: &str,
        described: &str,
        of: NodeId,
    ) -> Result<Replacement> {
        let config = |why: &str| Error::from(ErrorKind::Config { why: why.into() }).of(path);
        let plan = Plan::of(described).ok_or_else(|| config("it was opened by another version of the library"))?;
        let replica = plan.memory.iter().position(|home| *home == of);
        let replica = replica.ok_or_else(|| config("the node to replace is none of its memory nodes"))?;
        let (me, table) = (node.id(), plan.table);
        if plan.memory.iter().all(|home| *home == of || node.has_gone(*home)) {
            return Err(Error::custom(FirstMemoryGone { memory: plan.memory }).of(path));
        }
        let mut regions = Regions::new(node);
        for (name, bytes) in plan.parts.all().of(path)? {
            regions.alloc(name, GroupKey::DATA, bytes).of(path)?;
        }
        let mut questions = Vec::new();
        for _ in 0..plan.parts.shards {
            let requests = regions.alloc_own(GroupKey::SERVICE, table.askers() * REQUEST_BYTES).of(path)?;
            questions.push((requests, regions.alloc_own(GroupKey::SIGNAL, table.asked() * 8).of(path)?));
        }
        // Those of them that have gone are not waited for.
        let others = plan.memory.iter().copied().filter(|home| *home != of && *home != me);
        let homes: Vec<NodeId> = [me].into_iter().chain(others).collect();
        let expect = {
            let (all, memory) = (plan.parts.all().of(path)?, plan.memory.clone());
            move |peer: NodeId| {
                let all = all.iter().map(|(name, bytes)| ((*name).into(), *bytes as u64));
                if memory.contains(&peer) { all.collect() } else { Vec::new() }
            }
        };
        let opening = ObjectBuilder::new(node, path, kind).layout(described).homes(&homes).regions(regions);
        let object = Arc::new(opening.require_regions(expect).open()?);

        let view = View::new(plan.seats(node, &object, Some(of)).of(path)?, plan.parts.words_of_each());
        agreed_seats(node, endpoint, &view, table).of(path)?;
        let earlier = view.seats()[replica].node();
        let is_over = || (earlier == me || is_out(node, earlier) || node.has_gone(earlier)).then_some(());
        let waited = endpoint.block_on(node.wait_for_members(endpoint, endpoint.deadline(), is_over));
        let what = "the memory node whose place this node takes to be evicted";
        waited.waiting_for_nodes(what, &[earlier]).of(path)?;
        let own = Seat { standing: Standing::Joins, regions: plan.regions_of(&object, me).of(path)? };
        view.set(replica, own);

        let sections = Arc::new(Sections::new(1));
        let closes = Closes::of(&sections);
        let (opened, rank) = (node.now(), table.nodes + replica);
        let (mut shards, mut all_requests) = (Vec::new(), Vec::new());
        for (shard, (requests, answers)) in questions.into_iter().enumerate() {
            all_requests.push(requests.remote(0));
            let (own_sections, own_view) = (Arc::clone(&sections), Arc::clone(&view));
            node.add_poller(Box::new(Answers::new(own_sections, own_view, requests, rank, table, object.hold())));
            shards.push(Arc::new(Shared {
                opened,
                object: Arc::clone(&object),
                shard,
                shards: plan.parts.shards,
                size: plan.layout.registers,
                options: SwarmOptions::default(),
                layout: plan.layout,
                memory_nodes: plan.memory.len(),
                view: Arc::clone(&view),
                index: plan.index,
                asks: Some(Asks { table, answers, seat: LocalMutex::default() }),
                sections: Arc::clone(&sections),
            }));
        }
        let place = |shared: &Arc<Shared>| {
            let mut place = Place::new(0, plan.layout.writers + replica, shared);
            if let Some(store) = &mut place.store {
                store.records = (1..IndexLayout::SPARE_RECORDS as u16).collect();
            }
            place
        };
        let places = LocalMutex::new(shards.iter().map(place).collect());
        Ok(Replacement { node: node.clone(), shards, places, requests: all_requests, replica, plan, _closes: closes })
    }

    pub(crate) fn lent(&self) -> Lent {
        let bytes = self.plan.parts.all().map_or(0, |all| all.iter().map(|(_, bytes)| *bytes as u64).sum());
        Lent { path: self.object().path().into(), bytes, replaces: Some(self.plan.memory[self.replica]) }
    }

    pub(crate) fn object(&self) -> &Object {
        &self.shards[0].object
    }

    /// Makes the copy. It may be done again if it fails.
    pub(crate) fn run(&self, endpoint: &Endpoint) -> Result<()> {
        self.copy_all(endpoint).of(self.object().path())
    }

    fn copy_all(&self, endpoint: &Endpoint) -> Result<()> {
        let (table, replica, view) = (self.plan.table, self.replica, &self.shards[0].view);
        let own = Seat { standing: Standing::Joins, ..view.seats()[replica] };
        self.take_seat(endpoint, own)?;
        for (shard, requests) in self.requests.iter().enumerate() {
            let (entry, at) = ([0, requests.packed()], table.node(table.nodes + replica));
            on_each_home(&self.node, endpoint, &self.others(shard), self.majority(), |home| {
                Raise::new(endpoint, home.clients.at(at), entry, |found, entry| found == entry)
            })?;
        }
        // An earlier attempt may have come so far that it counts here.
        view.set(replica, own);
        let (common, places) = (Rc::<Common<'_>>::default(), core::mem::take(&mut *self.places.lock()));
        let core = |(shared, place): (&Arc<Shared>, Place)| Core::new(shared, endpoint, place, Rc::clone(&common));
        let cores: Vec<Core<'_>> = self.shards.iter().zip(places).map(core).collect();
        let copied = endpoint.block_on(async {
            for core in &cores {
                core.set_progress(replica, Progress { from: 0, to: 0 }).await?;
            }
            cores[0].ask_all_with(own).await?;
            for core in &cores {
                core.find_own_records().await?;
                core.copy_table(replica).await?;
                self.copy_shard(core, &cores[0], own).await?;
            }
            Ok(())
        });
        let counts = Seat { standing: Standing::Replaces, ..own };
        let counted = copied.and_then(|()| {
            let first = view.replicas(0)[replica];
            endpoint.block_on(set_seat(endpoint, &first, table.seat(replica), counts)).map_err(Error::from)?;
            let set = |home| Box::pin(set_seat(endpoint, home, table.seat(replica), counts));
            on_each_home(&self.node, endpoint, &self.others(0), self.majority(), set)?;
            endpoint.block_on(cores[0].ask_all_with(counts))
        });
        // Its puts and requests have ended before its sections do.
        cores[0].wait_for_all_replicas();
        cores[0].leave_all();
        *self.places.lock() = cores.into_iter().map(Core::into_place).collect();
        counted
    }

    async fn copy_shard(&self, core: &Core<'_>, first: &Core<'_>, own: Seat) -> Result<()> {
        let registers = self.plan.layout.registers;
        let units = registers + self.plan.index.map_or(0, |index| index.cells());
        let mut from = 0;
        while from < units {
            let to = units.min(from + UNITS_AT_A_TIME);
            core.set_progress(self.replica, Progress { from, to }).await?;
            first.ask_all_with(own).await?;
            let copy = async |unit: usize| match unit.checked_sub(registers) {
                None => core.copy_register(self.replica, unit).await,
                Some(cell) => core.copy_cell(self.replica, cell).await,
            };
            together(COPIES_AT_A_TIME, (from..to).map(copy)).await?;
            from = to;
        }
        core.set_progress(self.replica, Progress { from: units, to: units }).await
    }

    /// Writes the seat to the tables of the others: from now on nodes that come find it.
    fn take_seat(&self, endpoint: &Endpoint, own: Seat) -> Result<()> {
        let at = self.plan.table.seat(self.replica);
        let comes = Seat { standing: Standing::Comes, ..own };
        let take = async |home: &Replica| -> fabric::Result<Option<NodeId>> {
            let (word, mut found) = (home.clients.at(at), endpoint.get(home.clients.at(at)).await?);
            loop {
                let other = Seat::from_words([found; _]).node();
                if found != 0 && other != self.node.id() && !self.node.has_gone(other) {
                    return Ok(Some(other));
                }
                let before = endpoint.cas(word, found, comes.words()[0]).await?;
                if before == found {
                    break;
                }
                found = before;
            }
            set_seat(endpoint, home, at, own).await?;
            Ok(None)
        };
        let homes = self.others(0);
        let others = on_each_home(&self.node, endpoint, &homes, self.majority(), |home| Box::pin(take(home)))?;
        match others.into_iter().flatten().next() {
            None => Ok(()),
            Some(other) => {
                let why = format!("{other} is a memory node in this place, and lives");
                Err(Error::from(ErrorKind::Config { why }).about(other))
            }
        }
    }

    /// The other memory nodes that count.
    fn others(&self, shard: usize) -> Vec<Replica> {
        let mut replicas = self.shards[0].view.replicas(shard);
        replicas[self.replica].counts = false;
        replicas
    }

    fn majority(&self) -> usize {
        self.plan.memory.len() / 2 + 1
    }
}

/// Changes the standing of a seat in a table.
async fn set_seat(endpoint: &Endpoint, home: &Replica, at: usize, seat: Seat) -> fabric::Result<()> {
    let word = home.clients.at(at);
    for (part, value) in seat.words().into_iter().enumerate().skip(1) {
        endpoint.put_value(word.at(part), value).await?;
    }
    // A get flushes the puts before it (`NRW` before `NRR`): its regions are there first.
    let found = endpoint.get(word).await?;
    Raise::new(endpoint, word, [found, seat.words()[0]], |found, new| found == new).await.map(|_| ())
}

impl<'e> Core<'e> {
    /// Waits until all nodes have heard of a seat, and all calls that were under way then have ended.
    async fn ask_all_with(&self, seat: Seat) -> Result<()> {
        *self.asks().seat.lock() = Some(seat);
        self.wait_for_reads().await
    }

    /// Says what is copied just now, after the copies before that have landed.
    async fn set_progress(&self, replica: usize, progress: Progress) -> Result<()> {
        let word = self.replica(replica).clients.at(self.asks().table.progress());
        self.endpoint.get(word).await?;
        self.endpoint.put_value(word, progress.word()).await?;
        self.endpoint.get(word).await?;
        Ok(())
    }

    /// Cells that a memory node which has come to this place before has settled point to its records: these are not
    /// free.
    async fn find_own_records(&self) -> Result<()> {
        let cells = self.shared.index.map_or(0, |index| index.cells());
        let find = async |cell: usize| -> Result<()> {
            let get = |other: usize| Ok(self.endpoint.get(self.cell_at(other, cell)));
            let words = self.ask_all(cell, get).await?.into_iter().map(|(_, word)| CellWord(word));
            for word in words.filter(|word| word.writer() == self.writer && word.record() != 0) {
                self.with_store(|store| {
                    if let Some(at) = store.records.iter().position(|record| *record == word.record()) {
                        store.records.swap_remove(at);
                        store.records_of.entry(cell).or_default().push(word.record());
                    }
                });
            }
            Ok(())
        };
        together(COPIES_AT_A_TIME, (0..cells).map(find)).await.map(drop)
    }

    /// The table: nodes with clients, reserved timestamps, and seats.
    async fn copy_table(&self, replica: usize) -> Result<()> {
        let table = self.asks().table;
        let (words, seats) = (table.seat(0), self.shared.view.seats());
        let get = |other: usize| {
            let buf = self.endpoint.buf(words)?;
            Ok(self.endpoint.get_into(self.replica(other).clients, buf))
        };
        let found = self.gather(self.order(0), self.majority(), get).await?.answers;
        let clients = self.replica(replica).clients;
        let copy = async |word: usize| -> Result<()> {
            // Any incarnation of a node that is there: a call that needs another one finds that in another table. Of
            // timestamps the last.
            let new = found.iter().map(|(_, table)| table[word]).max().unwrap_or(0);
            // A node that comes just now enters itself here as well (`enter_where_one_joins`), and that entry is the
            // later one.
            let is_enough = if word < table.asked() { |found, _| found != 0 } else { |found, new| found >= new };
            if new != 0 {
                Raise::new(self.endpoint, clients.at(word), [0, new], is_enough).await?;
            }
            Ok(())
        };
        together(COPIES_AT_A_TIME, (0..words).map(copy)).await?;
        let mut own = self.endpoint.buf(table.seat(table.memory_nodes) - words)?;
        // A seat of which nothing is known is empty, and a buffer has what its earlier user has left.
        own.fill(0);
        let at = |number: usize| table.seat(number) - words..table.seat(number + 1) - words;
        for (number, seat) in
            seats.iter().enumerate().filter(|(number, seat)| *number != replica && !seat.has_gone_before())
        {
            own[at(number)].copy_from_slice(&seat.words());
        }
        own[at(replica)].copy_from_slice(&seats[replica].words());
        self.endpoint.put(clients.at(words), &own).await?;
        Ok(())
    }

    async fn copy_register(&self, replica: usize, register: usize) -> Result<()> {
        let section = self.enter()?;
        let copied = self.copy_register_in(replica, register).await;
        section.end();
        copied
    }

    /// In a section: the buffers of the versions that it finds are not used again.
    async fn copy_register_in(&self, replica: usize, register: usize) -> Result<()> {
        let layout = &self.shared.layout;
        let (head, at_locks) = (layout.head_words(), layout.lock(register, 0));
        // The locks first, and the words of the same memory nodes after them: one that shows the writer's side of a
        // lock shows a later version than the one that was locked, or most of them do (`stale`).
        let get = |other: usize| {
            let buf = self.endpoint.buf(layout.lock_words)?;
            Ok(self.endpoint.get_into(self.replica(other).locks.at(at_locks), buf))
        };
        let locks = self.gather(self.order(register), self.majority(), get).await?.answers;
        let order: Order = locks.iter().map(|(other, _)| *other).collect();
        let get = |other: usize| {
            let buf = self.endpoint.buf(head)?;
            Ok(self.endpoint.get_into(self.register_at(other, register), buf))
        };
        let found = self.gather(order, self.majority(), get).await?.answers;
        let instance = found.iter().map(|(_, words)| Location::instance_of(words[0])).max().unwrap_or(0);
        let at = Location { register, instance };
        let mut own = self.endpoint.buf(layout.register_words())?;
        own.fill(0);
        // A majority with the earlier memory node may have been frozen.
        own[0] = if found.iter().any(|(_, words)| words[0] == at.moving()) { at.moving() } else { instance };
        for word in 1..head {
            let versions = found.iter().map(|(other, words)| (*other, layout.format.version(words[word])));
            let (_, highest) =
                versions.clone().max_by_key(|(_, version)| (version.rank(), version.0)).expect("a majority");
            own[word] = highest.0;
            if highest.is_initial() || highest.is_sealed() {
                continue;
            }
            let holders = versions.filter(|(_, version)| version.write() == highest.write());
            let holders = holders.map(|(other, _)| other).collect();
            let fetch = |other: usize| {
                let buf = self.endpoint.buf(layout.image_words())?;
                Ok(self.endpoint.get_into(self.buffer_at(other, highest), buf))
            };
            let image = self.gather(holders, 1, fetch).await?.answers.pop().expect("one has answered").1;
            self.endpoint.put(self.buffer_at(replica, highest), &image).await?;
            // That of the last version: readers tell by its hash.
            if highest.rank() >= layout.format.newest(&own[1..word]).rank() {
                own[head..].copy_from_slice(&image);
            }
        }
        // The words come after the buffers to which they point, when this memory node counts: all has landed by then.
        self.endpoint.put(self.register_at(replica, register), &own).await?;

        let mut own = self.endpoint.buf(layout.lock_words)?;
        for (word, own) in own.iter_mut().enumerate() {
            let words = locks.iter().map(|(_, words)| words[word]);
            *own = match word {
                lock if lock < layout.writers => dominating(words),
                limit if limit == layout.writers => latest_limit(at, words),
                // The owner: a later one is higher.
                _ => words.max().unwrap_or(0),
            };
        }
        self.endpoint.put(self.replica(replica).locks.at(at_locks), &own).await?;
        Ok(())
    }

    async fn copy_cell(&self, replica: usize, cell: usize) -> Result<()> {
        let start = self.endpoint.now();
        loop {
            // If a change of it was begun, it ends here.
            self.settled(cell).await?;
            let section = self.enter()?;
            let is_copied = self.copy_cell_in(&section, replica, cell).await;
            section.end();
            if is_copied? {
                return Ok(());
            }
            if self.endpoint.now() >= start + self.endpoint.timeout() {
                return Err(self.timed_out(format!("an agreement on cell {cell} of the index"), start, Vec::new()));
            }
        }
    }

    /// False if it is changed just now.
    async fn copy_cell_in(&self, section: &Section<'_, 'e>, replica: usize, cell: usize) -> Result<bool> {
        let get = |other: usize| self.get_cell(other, cell);
        let seen = self.gather(self.order(cell), self.majority(), get).await?.answers;
        let Some((record, word)) = self.chosen(&seen) else { return Ok(false) };
        let promise = seen.iter().map(|(_, seen)| seen.word.promise()).max().unwrap_or(0);
        let mut own = self.endpoint.buf(CELL_WORDS)?;
        own.fill(0);
        // Proposals with a lower ballot, of which one may still be on its way, were given up.
        own[0] = word.promising(promise).0;
        if record.ballot > 0 {
            if !word.is_decided() {
                // With D, those that build on it do not look for its limit and its owner (`moving`).
                self.keep_limit_of(section, &record).await?;
            }
            let mut image = self.endpoint.buf(RECORD_WORDS)?;
            record.encode(cell, word.place(), &mut image);
            self.endpoint.put(self.record_at(replica, word), &image).await?;
            own[1..].copy_from_slice(&image);
            own[0] = word.decided().promising(promise).0;
        }
        self.endpoint.put(self.cell_at(replica, cell), &own).await?;
        Ok(true)
    }
}
