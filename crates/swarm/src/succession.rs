//! A client that takes over the number of an earlier one, which has died, or has closed the object.
//!
//! Its own memory is new, so it reads the state of the earlier one from the memory nodes. Nothing of that one can land
//! any more: it was evicted (`census`). All memory nodes that are not evicted have to answer; and in a store, where
//! clients share metadata words, and when a memory node has gone, all reads that are under way have to end.
//!
//! - *A write that is not everywhere* may not have ended. Readers rely on it that a writer has ended its write of a
//!   register before it begins another one (lemma C.4). So it is the client's own now, and ended as one that was
//!   dropped; but if there is a later one, it is not written again. It may have ended before that, and if not, no call
//!   waits for it.
//! - *Buffers and records* to which no word of a memory node points are free, when no read uses them any more: they are
//!   asked for as if they had been replaced now. Of two writes of a register that are found, both buffers are needed:
//!   the first one is at a majority, perhaps. But a memory node that is behind may point to a buffer that another
//!   register has had since.
//! - *Timestamps* are later than those that the earlier one has reserved.
//! - *Registers* that are this client's by the index, because their keys were deleted, are made free again. So are
//!   those that the index does not name and that the earlier one had (`owners`): it kept them for later keys, was
//!   inserting with them, or had moved keys from them. Those to which nothing was written in their instance are free at
//!   once.

use core::future::Future;

use farfield_core::Result;
use farfield_core::toolkit::RefusedPause;
use farfield_fabric::{self as fabric, Buf};

use crate::agreement::Deciding;
use crate::buffers::{Held, Used};
use crate::cell::{CellWord, ENTRIES, Entry};
use crate::chores::Chore;
use crate::client::{Core, Home, Place, Unfinished};
use crate::max_register::Found;
use crate::owners::Owner;
use crate::registers::Ended;
use crate::replicas::{PerReplica, Replicas};
use crate::version::{Location, Version};

impl Core<'_> {
    /// Takes over the buffers, records, registers and unfinished writes of the earlier client. Its timestamps are at
    /// most `reserved`.
    pub(crate) async fn succeed(&self, reserved: u64) -> Result<()> {
        loop {
            let view = self.wait_while_one_joins().await?;
            let live = self.live_set();
            let mut place = Place::new(self.client, self.writer, &self.shared);
            (place.last, place.reserved) = (reserved, reserved);
            self.with_place(|earlier| {
                place.pool.request = earlier.pool.request;
                *earlier = place;
            });
            let looked = self.look_at_all(live).await;
            // Sections of this client may hold up another one of this node.
            self.wait_for_all_replicas();
            self.end_late(None);
            looked?;
            if self.live_set() == live && self.shared.view.changes() == view {
                return Ok(());
            }
            // A memory node has been replaced meanwhile, and may have got what this has not found there. Or one has
            // died. A read may have found something there alone before this has, and brought it to others after.
        }
    }

    /// A memory node that gets a copy just now may get registers that the others do not have any more when this looks.
    /// So this waits for as long as the copy makes progress. The result is the view.
    async fn wait_while_one_joins(&self) -> Result<u64> {
        let (mut start, mut seen) = (self.endpoint.now(), None);
        loop {
            self.look_at_view();
            let joining = self.joining.get().iter().find(|replica| self.is_live(replica));
            let Some(joining) = joining else { return Ok(self.seen_view.get()) };
            let progress = self.progress_of(joining).await;
            if seen != progress {
                (start, seen) = (self.endpoint.now(), progress);
            }
            if self.endpoint.now() >= start + self.endpoint.timeout() {
                let joining = self.replica(joining).node;
                let what = format!("{joining}, which replaces a memory node, to get its copy");
                return Err(self.timed_out(what, start, vec![joining]));
            }
            self.pause(self.endpoint.now() + self.shared.options.patience).await;
        }
    }

    /// The place of the copy to a memory node that joins, in each shard: they are copied one after the other. None if
    /// it does not answer.
    async fn progress_of(&self, joining: usize) -> Option<Vec<u64>> {
        let at = self.asks().table.progress();
        let mut words = vec![joining as u64];
        for shard in 0..self.shared.shards {
            let clients = self.shared.view.replicas(shard)[joining].clients;
            words.push(self.endpoint.get(clients.at(at)).await.ok()?);
        }
        Some(words)
    }

    fn live_set(&self) -> Replicas {
        let mut live = Replicas::default();
        self.live(0).iter().for_each(|replica| live.add(replica));
        live
    }

    async fn look_at_all(&self, live: Replicas) -> Result<()> {
        // Nothing is read any more from a memory node that has gone. But a read that began before may still bring
        // something from there to others.
        if live.count() < self.shared.memory_nodes {
            self.wait_for_reads().await?;
        }
        let buffers = self.with_place(|place| core::mem::take(&mut place.pool.free));
        let index = if self.shared.index.is_some() { Some(self.succeed_in_index().await?) } else { None };
        let layout = &self.shared.layout;
        let mut earlier = Earlier { last_in: vec![None; layout.buffers], moving: Vec::new() };
        // A version of another client that shares its word, or its own seal, may have replaced a version of the earlier
        // client on one memory node, while a read that has found it there brings it to the others. So may another
        // client that had copied it (`stale`), when the memory node has gone that had it first. When all reads that are
        // under way have ended, all such versions are seen.
        let has_one_gone = live.count() < self.shared.memory_nodes;
        let may_be_replaced = layout.metadata_words < layout.writers || index.is_some() || has_one_gone;
        let mut seen_unfinished = Vec::new();
        for is_last in if may_be_replaced { &[false, true][..] } else { &[true] } {
            self.with_place(|place| {
                place.held.fill(Held::default());
                seen_unfinished = core::mem::take(&mut place.unfinished);
            });
            earlier.moving.clear();
            for register in 0..layout.registers {
                self.succeed_in_register(register, index.as_ref(), &mut earlier, *is_last).await?;
            }
            if !is_last {
                self.wait_for_reads().await?;
            }
        }
        self.assign(&earlier, seen_unfinished);
        self.retire(
            buffers.into_iter().filter(|buffer| earlier.last_in[usize::from(*buffer)].is_none()).map(Used::Buffer),
        );
        Ok(())
    }

    /// Each buffer that a word names gets an owner: a register that it is held for, an unfinished write, or one to a
    /// key that moves.
    fn assign(&self, earlier: &Earlier, mut seen_unfinished: Vec<Unfinished>) {
        self.with_place(|place| {
            for (register, held) in place.held.iter_mut().enumerate() {
                held.retain(|instance, version| earlier.is_last(Location { register, instance }, version));
            }
            // Such a write is not at a majority of words that clients share, or its register was sealed.
            place.unfinished.retain(|write| earlier.is_last(write.home.at, write.version));
        });
        for (home, version) in earlier.moving.iter().filter(|(home, version)| earlier.is_last(home.at, *version)) {
            self.add_chore(Chore::Leave { cell: home.cell, entry: home.entry, buffer: version.buffer() });
        }
        // Those that were seen at first, and not any more: a read that is under way may bring them back until this
        // client writes the register.
        for (home, version) in earlier.last_in.iter().flatten().copied() {
            let is_same = |write: &Unfinished| write.home.at == home.at && write.version.write() == version.write();
            let is_known = self.with_place(|place| {
                place.held[home.at.register].is_of(version) || place.unfinished.iter().any(is_same)
            });
            if is_known || earlier.moving.contains(&(home, version)) {
                continue;
            }
            let is_before = |write: &Unfinished| write.home.at == home.at && write.version.write() < version.write();
            let at = self.with_place(|place| place.unfinished.iter().position(is_before));
            match (at, seen_unfinished.iter().position(is_same)) {
                // It was begun after the one that is seen, which has ended then.
                (Some(at), Some(seen)) => {
                    let last = seen_unfinished.swap_remove(seen);
                    let ended = self.with_place(|place| core::mem::replace(&mut place.unfinished[at], last));
                    self.hold(ended.home.at, ended.version);
                }
                _ => self.hold(home.at, version),
            }
        }
    }

    /// Waits until all reads that are under way anywhere have ended.
    pub(crate) async fn wait_for_reads(&self) -> Result<()> {
        let (start, mut pause) = (self.endpoint.now(), RefusedPause::default());
        let deadline = start + self.endpoint.timeout();
        self.with_place(|place| (place.pool.asked, place.pool.asked_again) = (None, 0));
        *self.count.borrow_mut() = None;
        while !self.is_answered() {
            self.wait_for_answers(deadline, &mut pause).await?;
            if self.endpoint.now() >= deadline {
                let what = "reads that may use what an earlier client had";
                return Err(self.timed_out(what, start, self.unanswered()));
            }
        }
        Ok(())
    }

    /// The answers of all memory nodes that are not evicted.
    pub(crate) async fn ask_all<T, F>(
        &self,
        at: usize,
        post: impl Fn(usize) -> fabric::Result<F>,
    ) -> Result<PerReplica<T>>
    where
        F: Future<Output = fabric::Result<T>> + Unpin,
    {
        let start = self.endpoint.now();
        loop {
            // A minority may not know the writes that have ended.
            self.check_majority()?;
            let live = self.live(at);
            let answers = self.gather_all(live, &post).await;
            if answers.len() == live.len() {
                return Ok(answers);
            }
            if self.endpoint.now() >= start + self.endpoint.timeout() {
                let is_missing = |replica: &usize| answers.iter().all(|(answered, _)| answered != replica);
                let missing = live.iter().filter(is_missing).map(|replica| self.replica(replica).node);
                let what = "all memory nodes that are not evicted, to take over what an earlier client had";
                return Err(self.timed_out(what, start, missing.collect()));
            }
            self.pause(self.endpoint.now() + self.shared.options.patience).await;
        }
    }

    /// One register: finds the writes of the earlier client there, and holds or finishes them.
    async fn succeed_in_register(
        &self,
        register: usize,
        index: Option<&Registers>,
        earlier: &mut Earlier,
        is_last: bool,
    ) -> Result<()> {
        let start = self.endpoint.now();
        while !self.succeed_in_register_once(register, index, earlier, is_last).await? {
            if self.endpoint.now() >= start + self.endpoint.timeout() {
                return Err(self.unsettled(register));
            }
            self.pause(self.endpoint.now() + self.shared.options.patience).await;
        }
        Ok(())
    }

    /// False if a memory node with the last value did not answer just now.
    async fn succeed_in_register_once(
        &self,
        register: usize,
        index: Option<&Registers>,
        earlier: &mut Earlier,
        is_last: bool,
    ) -> Result<bool> {
        let head = self.shared.layout.head_words();
        let get = |replica: usize| {
            let words = self.endpoint.buf(head)?;
            Ok(self.endpoint.get_into(self.register_at(replica, register), words))
        };
        let heads = self.ask_all(register, get).await?;
        let instance = heads.iter().map(|(_, head)| Location::instance_of(head[0])).max().unwrap_or(0);
        let at = Location { register, instance };
        let is_moving = heads.iter().any(|(_, head)| head[0] == at.moving());
        // The writes of the earlier client, the latest first.
        let mut writes: Vec<(Version, Replicas)> = Vec::new();
        for (replica, head) in &heads {
            if !at.is_in(head[0]) {
                continue;
            }
            self.set_known(at, *replica, self.version(head[self.shared.layout.metadata_word(self.writer)]));
            // Others may have copied one to their own words (`stale`).
            for word in head[1..].iter().map(|word| self.version(*word)) {
                if word.is_initial() || word.is_sealed() || word.writer() != self.writer {
                    continue;
                }
                match writes.iter_mut().find(|(version, _)| version.write() == word.write()) {
                    Some((version, holders)) => {
                        *version = if word.is_verified() { word } else { *version };
                        holders.add(*replica);
                    }
                    None => {
                        let mut holders = Replicas::default();
                        holders.add(*replica);
                        writes.push((word, holders));
                    }
                }
            }
        }
        writes.sort_unstable_by_key(|(version, _)| core::cmp::Reverse(version.rank()));
        let home = match index {
            None => Home::array(at),
            Some(index) => match index.homes[register].filter(|home| home.at == at) {
                Some(home) => home,
                None => {
                    if is_last && !index.has_entry[register] {
                        self.succeed_in_unnamed(at, &heads, index).await?;
                    }
                    return Ok(true);
                }
            },
        };
        if is_last && heads.iter().any(|(_, head)| at.is_in(head[0]) && self.newest(&head[1..]).is_sealed()) {
            self.find_deleted(home.cell, home.entry).await?;
        }
        let Some((last, holders)) = writes.first().copied() else { return Ok(true) };
        // A stale guess and its second version have one buffer.
        writes.dedup_by_key(|(version, _)| version.buffer());
        let is_everywhere = holders.count() == heads.len() && !is_moving;
        // The last but one is at a majority, perhaps. If the key moves, it may be an earlier one: a client begins its
        // next write when it has found out that the last one does not count.
        let needed = if is_everywhere {
            1
        } else if is_moving {
            writes.len()
        } else {
            2
        };
        for (version, _) in writes.iter().take(needed) {
            earlier.saw(home, *version);
        }
        if is_moving {
            earlier.moving.extend(writes.iter().map(|(version, _)| (home, *version)));
            return Ok(true);
        }
        if is_everywhere {
            self.with_place(|place| place.held[register] = Held::of(at, last));
            return Ok(true);
        }
        if let Some((before, _)) = writes.get(1) {
            self.with_place(|place| place.held[register] = Held::of(at, *before));
        }
        let mut value = vec![0; self.shared.layout.value_words];
        let mut found = Found { version: last, holders, image: None };
        if self.value(at, &mut found, &mut value).await? {
            self.with_place(|place| {
                place.unfinished.push(Unfinished { home, version: last, value, is_earlier: true, is_second: false })
            });
            return Ok(true);
        }
        // Those that have it did not answer just now, or have died.
        Ok(false)
    }

    /// A register that the index did not name when all of it was read: is it one that the earlier client had?
    ///
    /// The owners are read after the index. If a key has left the register since the earlier client had it, the index
    /// shows that, or did so until a later owner was at a majority, or a later instance on all memory nodes.
    async fn succeed_in_unnamed(
        &self,
        at: Location,
        heads: &PerReplica<Buf<'_, u64>>,
        index: &Registers,
    ) -> Result<()> {
        let empty = Version::empty(at.instance).0;
        let is_clear =
            heads.iter().all(|(_, head)| head[0] == at.instance && head[1..].iter().all(|word| *word == empty));
        let is_unused = is_clear && at.instance == 0;
        let mut owner = index.owners[at.register];
        if !is_unused {
            let word = self.shared.layout.owner(at.register);
            let get = |replica: usize| Ok(self.endpoint.get(self.replica(replica).locks.at(word)));
            let words = self.ask_all(at.register, get).await?;
            owner = words.iter().map(|(_, word)| Owner(*word)).fold(owner, Ord::max);
        }
        // At first a register is the client's that has its group.
        let is_of_group = index.groups.contains(&(at.register / self.index().group));
        if is_of_group {
            owner = owner.max(Owner::new(Location { instance: 0, ..at }, self.writer));
        }
        // A key that has moved was in this instance: the register is with the client that has moved it.
        let has_moved = heads.iter().any(|(_, head)| head[0] == at.moving());
        let since = Location { instance: at.instance + u64::from(has_moved), ..at };
        let is_free = is_clear && owner == Owner::new(at, self.writer);
        if is_free {
            self.give_back_register(at);
        } else if owner.has(since, self.writer) {
            // It may have been given a value in vain, or its next instance on some memory nodes.
            self.retire([Used::Register(Ended::new(at, None, true))]);
        }
        Ok(())
    }

    /// The index: records of the earlier client to which words point, registers that are this client's, and where all
    /// registers are.
    async fn succeed_in_index(&self) -> Result<Registers> {
        let layout = *self.index();
        let free = self.with_store(|store| core::mem::take(&mut store.records));
        let mut pointed_to = Vec::new();
        let mut promised = vec![0; layout.cells()];
        for (cell, promised) in promised.iter_mut().enumerate() {
            let get = |replica: usize| Ok(self.endpoint.get(self.cell_at(replica, cell)));
            let words = self.ask_all(cell, get).await?.into_iter().map(|(_, word)| CellWord(word));
            let words: Vec<CellWord> = words.collect();
            *promised = words.iter().map(|word| word.promise()).max().unwrap_or(0);
            for record in words.into_iter().filter(|word| word.writer() == self.writer).map(CellWord::record) {
                if record != 0 && !pointed_to.contains(&record) {
                    pointed_to.push(record);
                    self.with_store(|store| store.records_of.entry(cell).or_default().push(record));
                }
            }
        }
        self.retire(free.into_iter().filter(|record| !pointed_to.contains(record)).map(Used::Record));
        let registers = layout.registers();
        let mut found = Registers {
            homes: vec![None; registers],
            has_entry: vec![false; registers],
            owners: vec![Owner::default(); registers],
            groups: Vec::new(),
        };
        for (cell, promised) in promised.into_iter().enumerate() {
            let mut record = self.settled(cell).await?;
            if record.ballot < promised {
                // A proposal of the earlier client may be accepted somewhere, and could be chosen later.
                let mut deciding = Deciding { proposed: promised, ..Deciding::new(cell) };
                record = self.change(&mut deciding, None, &mut |_| None).await?;
            }
            if let Some(owner) = Owner::after_move(&record.change) {
                let from = record.change.from.at();
                found.owners[from.register] = found.owners[from.register].max(owner);
                if owner.has(from, self.writer) {
                    // The earlier client may not have kept the limit, before the register is used again.
                    let section = self.enter()?;
                    let kept = self.keep_limit_of(&section, &record).await;
                    section.end();
                    kept?;
                }
            }
            let entries: [Entry; ENTRIES] = record.state();
            for entry in entries.into_iter().filter(|entry| *entry != Entry::NONE) {
                let at = entry.at();
                if cell >= layout.buckets {
                    if entry == Entry::held(at, self.writer) {
                        found.groups.push(at.register);
                    }
                    continue;
                }
                found.has_entry[at.register] = true;
                if entry.is_mapped() {
                    found.homes[at.register] = Some(Home::store(cell, entry));
                    continue;
                }
                let limit = record.change.limit;
                if entry == Entry::held(at, self.writer) && record.change.to == entry && !limit.is_initial() {
                    // The earlier client may not have kept it.
                    self.keep_limit_in_section(at, limit, None).await?;
                }
                let is_taken = entry == Entry::taken(at, self.writer);
                if (is_taken || entry == Entry::held(at, self.writer)) && self.comes(entry) {
                    if is_taken {
                        self.with_store(|store| store.ended.push(Ended::taken(at, cell)))
                    } else {
                        self.retire([Used::Register(Ended::new(at, Some(cell), true))])
                    }
                }
            }
        }
        self.with_store(|store| store.groups.extend(&found.groups));
        Ok(found)
    }
}

/// What the earlier client has written.
struct Earlier {
    /// For each buffer, the last write that a metadata word names it for.
    last_in: Vec<Option<(Home, Version)>>,
    /// Writes to registers of keys that move.
    moving: Vec<(Home, Version)>,
}

impl Earlier {
    /// Whether the buffer of a version has not had another value since.
    fn is_last(&self, at: Location, version: Version) -> bool {
        self.last_in[version.buffer()].is_some_and(|(home, last)| home.at == at && last.write() == version.write())
    }

    fn saw(&mut self, home: Home, version: Version) {
        let last = &mut self.last_in[version.buffer()];
        let time = |home: Home, version| home.at.time(version);
        *last = last.filter(|(other, last)| time(*other, *last) > time(home, version)).or(Some((home, version)));
    }
}

/// Where the registers of a store are.
struct Registers {
    /// Of those that a key has.
    homes: Vec<Option<Home>>,
    /// Whether the index names it.
    has_entry: Vec<bool>,
    /// The owners of those that keys have left by the last changes of cells: they may not be kept yet.
    owners: Vec<Owner>,
    /// The groups of this client.
    groups: Vec<usize>,
}
