//! Clients of a store whose calls are recorded.

use core::cell::RefCell;
use core::future::{Future, poll_fn};
use core::pin::pin;
use std::rc::Rc;

use farfield_check::parts::Excuse;
use farfield_check::{Cluster, choose, was_paused};
use farfield_core::history::kv::{KvInput, KvOutput};
use farfield_core::{Endpoint, Node, Result};
use farfield_fabric::Word;

use super::parts::{Call, History, poll_or_drop, poll_until, take_client, thread, trips_of, wait_until};
use crate::agreement::Deciding;
use crate::cell::{CellWord, Change, Entries, Entry, RECORD_WORDS, Record, ballot_after};
use crate::chores::Chore;
use crate::replicas::Replicas;
use crate::timestamp_lock::{Mode, is_taken};
use crate::version::{Location, TIMESTAMP_MAX, Version};
use crate::{StoreFull, SwarmStore, SwarmStoreClient, SwarmStoreOptions};

/// Two equal words, so that a torn value shows.
type Value = [u64; 2];

pub(super) type Store = Rc<SwarmStore<u64, Value>>;

pub(super) struct Opened {
    pub(super) stores: Vec<Store>,
    pub(super) history: History,
}

/// The entries that a cell has for good.
pub(super) type Agreed = Rc<RefCell<Vec<Entry>>>;

/// Keys of the scenarios.
const KEYS: usize = 16;

/// Looks at the copy of a memory node that joins.
const COPY_LOOKS: usize = 3000;

/// Opens a store on all nodes, and checks the calls of its clients at the end.
pub(super) fn open(cluster: &Cluster, options: SwarmStoreOptions) -> Result<Opened> {
    let open = move |node: &_| Ok(Rc::new(SwarmStore::open(node, "store", options.clone())?));
    let stores = cluster.on_each(open)?;
    Ok(opened(cluster, stores))
}

/// The same, where a client has so many registers at first, and no others are free.
pub(super) fn open_small(cluster: &Cluster, options: SwarmStoreOptions, registers: usize) -> Result<Opened> {
    let open = move |node: &_| Ok(Rc::new(SwarmStore::open(node, "store", options.clone())?));
    let stores = cluster.on_each(open)?;
    for takes in [registers, usize::MAX] {
        let all = stores.clone();
        cluster.on_each(move |node| {
            let ep = node.endpoint()?;
            let client = all[node.id().index()].client(&ep)?;
            let core = client.cores.first();
            ep.block_on(async {
                for _ in 0..takes {
                    if !core.take_group().await? {
                        break;
                    }
                }
                core.with_store(|store| store.registers.truncate(registers));
                Ok(())
            })
        })?;
    }
    Ok(opened(cluster, stores))
}

/// Opens it on one node.
pub(super) fn open_here(node: &Node, options: SwarmStoreOptions) -> Result<Store> {
    Ok(Rc::new(SwarmStore::open(node, "store", options)?))
}

pub(super) fn opened(cluster: &Cluster, stores: Vec<Store>) -> Opened {
    let history = History::new(KEYS);
    let (kept, seen) = (stores.clone(), history.clone());
    cluster.at_end(move || {
        drop(kept);
        seen.check();
        Ok(())
    });
    Opened { stores, history }
}

/// A thread with a client, which faults may prevent from ending its calls.
pub(super) fn client(
    cluster: &Cluster,
    node: usize,
    stores: &[Store],
    history: &History,
    body: impl Fn(&Recorded<'_, '_>) -> Result<()> + 'static,
) {
    spawn(cluster, node, stores, history, || true, body);
}

/// A thread with a client. All its calls end well, whatever happens to others.
pub(super) fn client_unfailing(
    cluster: &Cluster,
    node: usize,
    stores: &[Store],
    history: &History,
    body: impl Fn(&Recorded<'_, '_>) -> Result<()> + 'static,
) {
    spawn(cluster, node, stores, history, was_paused, body);
}

fn spawn(
    cluster: &Cluster,
    node: usize,
    stores: &[Store],
    history: &History,
    may_fail: fn() -> bool,
    body: impl Fn(&Recorded<'_, '_>) -> Result<()> + 'static,
) {
    let (store, history) = (Rc::clone(&stores[node]), history.clone());
    thread(cluster, node, may_fail, move |ep| run(&store, ep, node, &history, &body));
}

pub(super) fn run(
    store: &Store,
    ep: &Endpoint,
    node: usize,
    history: &History,
    body: &impl Fn(&Recorded<'_, '_>) -> Result<()>,
) -> Result<()> {
    let client = take_client(ep, || store.client(ep))?;
    body(&Recorded { client: &client, ep, node, history: history.clone() })
}

/// A client whose calls are recorded.
pub(super) struct Recorded<'c, 'e> {
    pub(super) client: &'c SwarmStoreClient<'e, u64, Value>,
    pub(super) ep: &'e Endpoint,
    node: usize,
    history: History,
}

impl Recorded<'_, '_> {
    /// Sets its clock forward, in microseconds.
    pub(super) fn set_ahead(&self, ahead: u64) {
        self.client.cores.first().ahead.set(ahead);
    }

    /// Asks this memory node last, as if it had been slow before.
    pub(super) fn set_slow(&self, replica: usize) {
        let mut slow = Replicas::default();
        slow.add(replica);
        self.client.cores.first().common.slow.set(slow);
    }

    /// Deletes a key whose register this client does not keep.
    fn delete_unkept(&self, key: u64) -> Result<()> {
        self.client.cores.first().with_store(|store| store.kept_max = 0);
        self.delete(key)
    }

    /// Deletes a key, and leaves its register to all clients.
    pub(super) fn leave(&self, key: u64) -> Result<()> {
        let core = self.client.cores.first();
        self.delete_unkept(key)?;
        self.ep.block_on(core.tend_until(|| core.in_hand() == 0))
    }

    /// The same, which may be dropped at some moment.
    pub(super) fn leave_or_drop(&self, key: u64) -> Result<()> {
        let core = self.client.cores.first();
        self.delete_unkept(key)?;
        self.or_drop(core.tend_until(|| core.in_hand() == 0)).unwrap_or(Ok(()))
    }

    /// Brings a register of a deleted key as far as the calls that were under way at that time have ended.
    pub(super) fn leave_first(&self) -> Result<()> {
        let core = self.client.cores.first();
        let has_ended = |chore: &Chore| matches!(chore, Chore::End(_));
        let is_first = || core.in_hand() == 0 || core.with_store(|store| store.chores.iter().any(has_ended));
        self.ep.block_on(core.tend_until(is_first))
    }

    /// Brings a register of a deleted key as far as its words can be cleared.
    pub(super) fn leave_second(&self) -> Result<()> {
        let core = self.client.cores.first();
        let can_be_cleared = || core.in_hand() == 0 || core.with_store(|store| !store.ended.is_empty());
        self.ep.block_on(core.tend_until(can_be_cleared))
    }

    /// Deletes a key, and brings its register as far as its words can be cleared.
    pub(super) fn leave_until_second(&self, key: u64) -> Result<()> {
        self.delete_unkept(key)?;
        self.leave_second()
    }

    /// Ends what was begun, and rests at some moment.
    pub(super) fn leave_with_a_rest(&self, rest: impl FnOnce() -> Result<()>) -> Result<()> {
        let core = self.client.cores.first();
        let mut leave = pin!(core.tend_until(|| core.in_hand() == 0));
        let early = poll_until(self.ep, leave.as_mut(), choose(12), || true);
        rest()?;
        match early {
            Some(left) => left,
            None => self.ep.block_on(leave),
        }
    }

    /// Has no more than so many registers at hand.
    pub(super) fn keep_registers(&self, count: usize) {
        self.client.cores.first().with_store(|store| {
            store.registers.truncate(count);
            store.are_groups_taken = true;
        });
    }

    /// Has no more than so many free buffers.
    pub(super) fn keep_buffers(&self, count: usize) {
        self.client.cores.first().with_place(|place| place.pool.free.truncate(count));
    }

    /// Waits until all that this client has replaced can be used again.
    pub(super) fn wait_for_used(&self) -> Result<()> {
        let core = self.client.cores.first();
        let is_free = || core.with_place(|place| place.pool.retired.is_empty() && place.pool.asked_for.is_empty());
        self.ep.block_on(core.tend_until(is_free))
    }

    /// Takes a group of registers.
    pub(super) fn take_group(&self) -> Result<()> {
        self.ep.block_on(self.client.cores.first().take_group()).map(drop)
    }

    pub(super) fn wait_until(&self, is_it: impl Fn() -> bool) -> Result<()> {
        wait_until(self.ep, is_it)
    }

    /// Waits until another memory node is in a place and has the first cell: as one that joins, or already as one that
    /// counts. (It looks a bounded number of times, since time does not pass meanwhile.)
    pub(super) fn wait_for_copy(&self, replica: usize) -> Result<()> {
        let core = self.client.cores.first();
        self.wait_until(|| core.shared.view.changes() != core.seen_view.get())?;
        self.ep.block_on(async {
            for _ in 0..COPY_LOOKS {
                let section = core.enter()?;
                let holders = core.holders_of_cell(0).await;
                section.end();
                if holders.is_some_and(|holders| holders.contains(replica)) {
                    break;
                }
            }
            Ok(())
        })
    }

    /// Makes one memory node promise a ballot of this client for the first cell, and proposes nothing. The word that
    /// says so.
    pub(super) fn promise_on(&self, replica: usize) -> Result<CellWord> {
        let core = self.client.cores.first();
        let at = core.cell_at(replica, 0);
        // It follows this client's compare-and-swaps before it.
        let found = CellWord(core.endpoint.cas(at, 0, 0).wait()?);
        let promised = found.promising(ballot_after(found.promise(), Some(core.writer)));
        let before = core.endpoint.cas(at, found.0, promised.0).wait()?;
        assert_eq!(before, found.0, "nothing else changes it meanwhile");
        Ok(promised)
    }

    /// Proposes an entry for the first cell, which was never changed, to one memory node, with the ballot that it has
    /// promised.
    pub(super) fn accept_on(&self, replica: usize, promised: CellWord, number: usize) -> Result<()> {
        let core = self.client.cores.first();
        let record = self.ep.block_on(core.take_record())?;
        let accepted = CellWord::accepted(promised.promise(), core.writer, record.number);
        let change = Change::new(Entry::NONE, Entry::free(Location { register: number, instance: 0 }));
        let new = Record { ballot: promised.promise(), change, ..Record::VIRGIN };
        let mut image = core.endpoint.buf::<u64>(RECORD_WORDS)?;
        new.encode(0, accepted.place(), &mut image);
        record.keep(0);
        core.endpoint.put(core.record_at(replica, accepted), &image).wait()?;
        core.endpoint.cas(core.cell_at(replica, 0), promised.0, accepted.0).wait()?;
        Ok(())
    }

    /// Gives one memory node an instance of the next epoch, for a register that was left first.
    pub(super) fn begin_next_epoch_on(&self, replica: usize) -> Result<()> {
        let core = self.client.cores.first();
        let ended = core.with_store(|store| match store.chores.front() {
            Some(Chore::End(ended)) => ended.at,
            other => panic!("{other:?}"),
        });
        let next = ended.next(TIMESTAMP_MAX).expect("it had few");
        core.endpoint.cas(core.register_at(replica, ended.register), ended.instance, next.instance).wait()?;
        Ok(())
    }

    /// Ends what was begun, or dropped.
    pub(super) fn leave_rest(&self) -> Result<()> {
        let core = self.client.cores.first();
        self.ep.block_on(core.tend_until(|| core.in_hand() == 0))
    }

    /// Whether this client would still find groups of registers that no client has.
    pub(super) fn may_take_groups(&self) -> bool {
        !self.client.cores.first().with_store(|store| store.are_groups_taken)
    }

    /// Fails if the first cell has a key that was deleted.
    pub(super) fn has_none_deleted(&self) -> Result<()> {
        let core = self.client.cores.first();
        self.ep.block_on(async {
            let entries = core.settled_entries(0).await?;
            for entry in entries.into_iter().filter(|entry| entry.is_mapped()) {
                let section = core.enter()?;
                let has_ended = core.has_ended(&section, entry.at()).await;
                section.end();
                assert!(!has_ended?, "{entry:?} was deleted, and is in the index");
            }
            Ok(())
        })
    }

    /// Finds out the outcome of inserts that were dropped.
    pub(super) fn settle(&self) -> Result<()> {
        self.ep.block_on(self.client.cores.first().settle_one()).map(|_| ())
    }

    /// Makes some calls at the same time.
    pub(super) fn window(&self, calls: &[(u64, KvInput)]) -> Result<()> {
        let client = self.client;
        let calls = calls.iter().map(async |(key, input)| {
            let call = self.history.begin(self.node, *key as usize, *input);
            let output = match *input {
                KvInput::Get => KvOutput::Found(client.get(key).await?.map(|found| found[0])),
                KvInput::Insert(value) => KvOutput::Succeeded(client.insert(key, &[value; 2]).await?),
                KvInput::Update(value) => KvOutput::Succeeded(client.update(key, &[value; 2]).await?),
                KvInput::Upsert(value) => client.upsert(key, &[value; 2]).await.map(|()| KvOutput::Stored)?,
                KvInput::Delete => client.delete(key).await.map(|()| KvOutput::Stored)?,
            };
            self.history.end(call, output);
            Ok(())
        });
        let mut ended = Ok(());
        self.ep.run_window(4, calls, |made: Result<()>| ended = ended.clone().and(made));
        ended
    }

    pub(super) fn get(&self, key: u64) -> Result<()> {
        self.call(key, KvInput::Get, |client| {
            let found = client.get_blocking(&key)?;
            assert!(found.is_none_or(|found| found[0] == found[1]), "a torn value");
            Ok(KvOutput::Found(found.map(|found| found[0])))
        })
    }

    /// A get that asks other memory nodes at each step.
    pub(super) fn get_among_others(&self, key: u64) -> Result<()> {
        let call = self.history.begin(self.node, key as usize, KvInput::Get);
        let mut get = pin!(self.client.get(&key));
        let found = self.ep.block_on(poll_fn(|cx| {
            self.set_slow(choose(4));
            get.as_mut().poll(cx)
        }))?;
        self.history.end(call, KvOutput::Found(found.map(|found| found[0])));
        Ok(())
    }

    pub(super) fn insert(&self, key: u64, value: u64) -> Result<()> {
        self.call(key, KvInput::Insert(value), |client| {
            client.insert_blocking(&key, &[value; 2]).map(KvOutput::Succeeded)
        })
    }

    /// An insert for which there may be no register.
    pub(super) fn insert_if_room(&self, key: u64, value: u64) -> Result<()> {
        unless_full(self.insert(key, value))
    }

    pub(super) fn update(&self, key: u64, value: u64) -> Result<()> {
        self.call(key, KvInput::Update(value), |client| {
            client.update_blocking(&key, &[value; 2]).map(KvOutput::Succeeded)
        })
    }

    /// An update of a key that may have to move, for which there may be no register.
    pub(super) fn update_if_room(&self, key: u64, value: u64) -> Result<()> {
        unless_full(self.update(key, value))
    }

    /// A delete of a key that may have to move, for which there may be no register.
    pub(super) fn delete_if_room(&self, key: u64) -> Result<()> {
        unless_full(self.delete(key))
    }

    /// A conditional update.
    pub(super) fn replace(&self, key: u64, [from, to]: [u64; 2]) -> Result<()> {
        self.call(key, Call::Replace(from, to), |client| {
            client.update_if_blocking(&key, |found| found[0] == from, &[to; 2]).map(KvOutput::Succeeded)
        })
    }

    /// The same, for which there may be no register.
    pub(super) fn replace_if_room(&self, key: u64, values: [u64; 2]) -> Result<()> {
        unless_full(self.replace(key, values))
    }

    /// The same, which may be dropped at some moment.
    pub(super) fn replace_or_drop(&self, key: u64, [from, to]: [u64; 2]) -> Result<()> {
        let call = self.history.begin(self.node, key as usize, Call::Replace(from, to));
        let value = [to; 2];
        let replaced = self.or_drop(self.client.update_if(&key, |found| found[0] == from, &value));
        if let Some(replaced) = replaced.transpose()? {
            self.history.end(call, KvOutput::Succeeded(replaced));
        }
        Ok(())
    }

    /// A conditional update that rests at each test, which is told its number and the value: at the first one it has
    /// found the key, and at the second one it has frozen the key's register and read it.
    pub(super) fn replace_with_rests(
        &self,
        key: u64,
        [from, to]: [u64; 2],
        rest: impl Fn(usize, u64) -> Result<()>,
    ) -> Result<()> {
        let call = self.history.begin(self.node, key as usize, Call::Replace(from, to));
        let (mut test, mut rested) = (0, Ok(()));
        let passes = |found: &Value| {
            assert_eq!(found[0], found[1], "a torn value");
            if rested.is_ok() {
                rested = rest(test, found[0]);
            }
            test += 1;
            found[0] == from
        };
        let replaced = self.client.update_if_blocking(&key, passes, &[to; 2])?;
        rested?;
        self.history.end(call, KvOutput::Succeeded(replaced));
        Ok(())
    }

    pub(super) fn upsert(&self, key: u64, value: u64) -> Result<()> {
        self.call(key, KvInput::Upsert(value), |client| {
            client.upsert_blocking(&key, &[value; 2]).map(|()| KvOutput::Stored)
        })
    }

    /// An update that rests when it is on its way.
    pub(super) fn update_with_a_rest(&self, key: u64, value: u64, rest: impl FnOnce() -> Result<()>) -> Result<()> {
        let call = self.history.begin(self.node, key as usize, KvInput::Update(value));
        let (before, value) = (self.ep.counts(), [value; 2]);
        let is_posted = || (self.ep.counts() - before).atomics > 0;
        let mut update = pin!(self.client.update(&key, &value));
        let early = poll_until(self.ep, update.as_mut(), choose(6), is_posted);
        rest()?;
        let is_there = match early {
            Some(is_there) => is_there?,
            None => self.ep.block_on(update)?,
        };
        self.history.end(call, KvOutput::Succeeded(is_there));
        Ok(())
    }

    /// The round trips of some calls.
    pub(super) fn trips_of(&self, calls: impl FnOnce() -> Result<()>) -> Result<u64> {
        trips_of(self.ep, calls)
    }

    /// The same, with nothing under way when they begin: without the background work of those before them.
    pub(super) fn trips_alone(&self, calls: impl FnOnce() -> Result<()>) -> Result<u64> {
        self.client.cores.first().wait_for_all_replicas();
        self.trips_of(calls)
    }

    /// Forgets where all keys are.
    pub(super) fn forget_all(&self) {
        self.client.cache.borrow_mut().clear();
    }

    /// So many keys, each in a cell of its own.
    pub(super) fn keys_apart<const COUNT: usize>(&self) -> [u64; COUNT] {
        let (mut keys, mut cells) = (Vec::new(), Vec::new());
        for key in 0..KEYS as u64 {
            let cell = self.client.name(&key).expect("the store is open").cell;
            if !cells.contains(&cell) && keys.len() < COUNT {
                keys.push(key);
                cells.push(cell);
            }
        }
        keys.try_into().expect("the store has many cells")
    }

    pub(super) fn delete(&self, key: u64) -> Result<()> {
        self.call(key, KvInput::Delete, |client| client.delete_blocking(&key).map(|()| KvOutput::Stored))
    }

    fn call(
        &self,
        key: u64,
        input: impl Into<Call>,
        call: impl Fn(&SwarmStoreClient<'_, u64, Value>) -> Result<KvOutput>,
    ) -> Result<()> {
        // A timeout is one of waiting for buffers, before anything is done: until a node is evicted, say.
        let (mut tries, input) = (0..4, input.into());
        loop {
            let (begun, excuse) = (self.history.begin(self.node, key as usize, input), Excuse::now());
            match call(self.client) {
                Err(error) if error.is_timeout() && excuse.is_given() && tries.next().is_some() => {}
                output => {
                    self.history.end(begun, output?);
                    return Ok(());
                }
            }
        }
    }

    /// Adds an entry to the first cell. It has all those that were there before this began.
    pub(super) fn agree(&self, agreed: &Agreed, number: usize, may_drop: bool) -> Result<()> {
        let core = self.client.cores.first();
        let entry = Entry::free(Location { register: number, instance: 0 });
        let before = agreed.borrow().clone();
        let mut deciding = Deciding::new(0);
        let mut add = |entries: &Entries| (!entries.contains(&entry)).then(|| Change::new(Entry::NONE, entry));
        let change = core.change(&mut deciding, None, &mut add);
        let record = if may_drop { self.or_drop(change) } else { Some(self.ep.block_on(change)) };
        let Some(entries) = record.transpose()?.map(|record| record.state()) else { return Ok(()) };
        assert!(
            entries.contains(&entry) && before.iter().all(|entry| entries.contains(entry)),
            "{entries:?} after {before:?}"
        );
        agreed.borrow_mut().push(entry);
        Ok(())
    }

    /// Waits until another thread has stored this.
    pub(super) fn wait_for(&self, word: &Word, value: u64) -> Result<()> {
        self.wait_until(|| word.load() == value)
    }

    /// Says that it is one turn, and waits for another one.
    pub(super) fn pass_turn(&self, turn: &Word, [now, next]: [u64; 2]) -> Result<()> {
        turn.store(now);
        self.wait_for(turn, next)
    }

    /// An update that may be dropped at some moment.
    pub(super) fn update_or_drop(&self, key: u64, value: u64) -> Result<()> {
        let call = self.history.begin(self.node, key as usize, KvInput::Update(value));
        if let Some(is_there) = self.or_drop(self.client.update(&key, &[value; 2])).transpose()? {
            self.history.end(call, KvOutput::Succeeded(is_there));
        }
        Ok(())
    }

    /// The second version of this client's update that was dropped, if it has got one: its guess was stale, and it has
    /// locked that one.
    pub(super) fn second_of_dropped(&self) -> Result<Option<(Location, Version)>> {
        let core = self.client.cores.first();
        let dropped = core.with_place(|place| place.unfinished.first().map(|write| (write.home.at, write.version)));
        let Some((at, version)) = dropped else { return Ok(None) };
        let is_locked = |word: &u64| *word != 0 && !is_taken(*word, at, version, Mode::Write);
        Ok(self.own_locks(at)?.iter().any(is_locked).then_some((at, version)))
    }

    /// Fails if this client has locked a version of its own: it does so before it writes the value at a later time.
    pub(super) fn has_not_locked(&self, (at, version): (Location, Version)) -> Result<()> {
        let locks = self.own_locks(at)?;
        let is_locked = locks.iter().any(|word| is_taken(*word, at, version, Mode::Write));
        assert!(!is_locked, "{version:?} is locked: its value is written at a third timestamp");
        Ok(())
    }

    /// The words of this client's timestamp lock of a register.
    fn own_locks(&self, at: Location) -> Result<Vec<u64>> {
        let core = self.client.cores.first();
        let word = core.shared.layout.lock(at.register, core.writer);
        let get = |replica: usize| Ok(core.endpoint.get(core.replica(replica).locks.at(word)).wait()?);
        (0..core.shared.memory_nodes).map(get).collect()
    }

    /// An insert that may be dropped at some moment.
    pub(super) fn insert_or_drop(&self, key: u64, value: u64) -> Result<()> {
        let call = self.history.begin(self.node, key as usize, KvInput::Insert(value));
        if let Some(inserted) = self.or_drop(self.client.insert(&key, &[value; 2])).transpose()? {
            self.history.end(call, KvOutput::Succeeded(inserted));
        }
        Ok(())
    }

    fn or_drop<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        poll_or_drop(self.ep, future)
    }
}

/// A call that has failed since the store was full has had no effect.
fn unless_full(called: Result<()>) -> Result<()> {
    match called {
        Err(error) if error.custom_ref::<StoreFull>().is_some() => Ok(()),
        called => called,
    }
}
