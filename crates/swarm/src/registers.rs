//! The registers of a store: which client has which, and when one may be used again for another key.
//!
//! A client takes registers in groups; the owners of these are in the last cells of the index. It gives each to a key
//! that it inserts. When a key was deleted, or has moved (`moving`), a register returns in these steps:
//!
//! 1. Its metadata words are sealed, or its instance word is marked, on a majority. No read and no write of it succeeds
//!    any more.
//! 2. Its mapping leaves the index: in its place the entry says which client has the register now, or has the key's
//!    next register.
//! 3. All nodes are asked whether calls are under way that have begun before (`sections`), and all have answered. So a
//!    call that finds the next step has begun after the mapping had left: what it has done to the register has had no
//!    effect.
//! 4. All memory nodes get the number of its next instance. A call that begins from now on finds it, and returns to the
//!    index, however old its location is.
//! 5. All nodes are asked once more.
//! 6. All metadata words are exchanged for empty ones of the new instance. A compare-and-swap that is still on its way
//!    finds another word than it expects.
//!
//! It is then free for the next key, of this client or of another one: then the entry in the index says that it is
//! free. A memory node that does not answer holds up steps 4 and 6 until the members evict it.
//!
//! A register that its client keeps has no entry in the index. The memory nodes name its owner (`owners`).

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::time::Duration;

use farfield_core::{Error, Result};
use farfield_fabric as fabric;

use crate::agreement::Deciding;
use crate::buffers::Used;
use crate::cell::{Change, ENTRIES, Entry};
use crate::chores::Chore;
use crate::client::Core;
use crate::errors::StoreFull;
use crate::raise::Raise;
use crate::sections::Section;
use crate::together::together;
use crate::version::{Location, Version};

/// Cells of which a client looks for free registers at a time. Each needs a section, so only one of its calls looks at
/// so many.
const CELLS_AT_A_TIME: usize = 8;

/// With more groups of registers on the way back, a client takes no new one. Otherwise those that follow each other in
/// one place would take all in the end. (There are eight for each client beside those for all keys, see `layout`.)
const COMING_MAX: usize = 4;

/// For how long a client that has found no free register does not look again.
const NONE_FREE_MAX: Duration = Duration::from_millis(5);

/// A mapping that may have happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Doubt {
    pub(crate) deciding: Deciding,
    pub(crate) mapping: Entry,
    pub(crate) version: Version,
    /// The register of the entry that the mapping replaces, with its limit (`moving`).
    pub(crate) moved: Option<(Location, Version)>,
}

/// A register after its key was deleted or has moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ended {
    /// The instance that has ended.
    pub(crate) at: Location,
    /// The cell with an entry that says that this client has it.
    pub(crate) cell: Option<usize>,
    /// Whether it was free already, and only the entry is left.
    pub(crate) is_clear: bool,
    /// The next instance, when all memory nodes have it.
    pub(crate) next: Option<Location>,
    /// Whether its words were cleared: that must not happen twice, since it may have another owner then.
    pub(crate) are_words_clear: bool,
    /// Whether this client keeps it, or leaves it in the index for all. It does not change its mind: an attempt that
    /// was given up may have happened.
    pub(crate) is_kept: bool,
}

impl Ended {
    /// A register that no key has any more. Its calls have not ended.
    pub(crate) fn new(at: Location, cell: Option<usize>, is_kept: bool) -> Ended {
        Ended { at, cell, is_clear: false, next: None, are_words_clear: false, is_kept }
    }

    /// A register that was free, with an entry that says that this client has it.
    pub(crate) fn taken(at: Location, cell: usize) -> Ended {
        Ended { at, cell: Some(cell), is_clear: true, next: Some(at), are_words_clear: true, is_kept: true }
    }
}

/// Exchanges all metadata words of a register on one memory node.
struct Clear<'e>(Vec<Raise<'e>>);

impl Future for Clear<'_> {
    type Output = fabric::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<fabric::Result<()>> {
        let words = &mut self.0;
        let mut at = 0;
        while at < words.len() {
            match Pin::new(&mut words[at]).poll(cx) {
                Poll::Pending => at += 1,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(_)) => drop(words.swap_remove(at)),
            }
        }
        if words.is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }
}

impl<'e> Core<'e> {
    /// [`Core::take_register`], until it is used.
    pub(crate) async fn take_unused_register<'c>(&'c self) -> Result<UnusedRegister<'c, 'e>> {
        Ok(UnusedRegister { core: self, at: self.take_register().await? })
    }

    /// A register that no key has.
    async fn take_register(&self) -> Result<Location> {
        loop {
            if self.has_many_chores() || self.with_store(|store| store.registers.is_empty()) && self.in_hand() > 0 {
                self.tend().await;
            }
            if let Some(at) = self.with_store(|store| store.registers.pop()) {
                return Ok(at);
            }
            let is_one_there = || self.with_store(|store| !store.registers.is_empty());
            // In later epochs a new group is no use before its next instances have begun, as those that are on their
            // way.
            let is_new_used_up = self.is_used_up(Location { register: 0, instance: 0 });
            let are_many_coming = self.are_many_coming();
            let waits = is_new_used_up && self.is_one_coming() || are_many_coming && self.do_all_answer();
            if !waits && self.take_group().await? {
                continue;
            }
            // Without a memory node that is not evicted, none returns.
            let waited = if self.do_all_answer() { self.wait_for_ended().await } else { Ok(false) };
            if matches!(waited, Ok(true)) || are_many_coming && self.take_group().await? || self.take_free().await? {
                continue;
            }
            // Others may have them until it has been waited for so long.
            waited?;
            if self.wait_for_ended().await? || is_one_there() {
                continue;
            }
            return Err(Error::custom(StoreFull { keys: self.shared.size }).of(self.shared.object.path()));
        }
    }

    /// A register into which nothing was written.
    pub(crate) fn give_back_register(&self, at: Location) {
        self.with_store(|store| store.registers.push(at));
    }

    /// A register into which something was written, and which no key has.
    pub(crate) fn end_register(&self, at: Location) {
        self.add_chore(Chore::End(Ended::new(at, None, true)));
    }

    /// Whether a register may be on its way to this client.
    fn is_one_coming(&self) -> bool {
        self.with_place(|place| place.registers_on_the_way().any(|kept| kept != Some(false)))
    }

    /// Whether so many registers come to this client that it waits for them, as those do that an earlier client had.
    fn are_many_coming(&self) -> bool {
        let coming = self.with_place(|place| place.registers_on_the_way().filter(|kept| *kept == Some(true)).count());
        coming > COMING_MAX * self.index().group
    }

    /// How many registers are on their way back.
    pub(crate) fn in_hand(&self) -> usize {
        self.with_place(|place| place.registers_on_the_way().count())
    }

    /// Takes a group of registers that no client has. False if there is none.
    pub(crate) async fn take_group(&self) -> Result<bool> {
        let (layout, writer) = (*self.index(), self.writer);
        if self.with_store(|store| store.are_groups_taken) {
            return Ok(false);
        }
        let cells = layout.group_cells();
        let first = self.with_store(|store| store.next_group_cell);
        for cell in (first..cells).chain(0..first) {
            self.with_store(|store| store.next_group_cell = cell);
            let groups = cell * ENTRIES..layout.groups.min((cell + 1) * ENTRIES);
            let entry = |group| Entry::held(Location { register: group, instance: 0 }, writer);
            let is_new = |group: usize| self.with_store(|store| !store.groups.contains(&group));
            let own =
                |entries: &[Entry]| groups.clone().find(|group| entries.contains(&entry(*group)) && is_new(*group));
            let is_taken = |entries: &[Entry], group: usize| {
                entries.iter().any(|entry| entry.is_held() && entry.at().register == group)
            };
            let mut take = |entries: &_| {
                let entries: &[Entry; ENTRIES] = entries;
                let free = groups.clone().find(|group| !is_taken(entries, *group));
                free.filter(|_| own(entries).is_none()).map(|group| Change::new(Entry::NONE, entry(group)))
            };
            loop {
                let deciding = &mut Deciding::new(layout.buckets + cell);
                let entries = self.change(deciding, None, &mut take).await?.state();
                // A call of this client beside this one may have taken it first.
                if let Some(group) = own(&entries) {
                    let registers = group * layout.group..(group + 1) * layout.group;
                    self.with_store(|store| {
                        store.groups.insert(group);
                        store.registers.extend(registers.rev().map(|register| Location { register, instance: 0 }));
                    });
                    return Ok(true);
                }
                if groups.clone().all(|group| is_taken(&entries, group)) {
                    break;
                }
                if self.with_store(|store| !store.registers.is_empty()) {
                    return Ok(true);
                }
            }
        }
        self.with_store(|store| store.are_groups_taken = true);
        Ok(false)
    }

    /// Waits until a register has come back. False if none is on its way to this client.
    pub(crate) async fn wait_for_ended(&self) -> Result<bool> {
        self.tend_until(|| !self.is_one_coming() || self.with_store(|store| !store.registers.is_empty())).await?;
        Ok(self.with_store(|store| !store.registers.is_empty()))
    }

    /// Whether a register comes to this client by an entry of the index, which is not an old one.
    pub(crate) fn comes(&self, entry: Entry) -> bool {
        self.with_store(|store| {
            let came = store.came.entry(entry.at().register).or_default();
            let is_new = entry.coming() >= *came;
            *came = (*came).max(entry.coming() + 1);
            is_new
        })
    }

    /// Takes registers that other clients have left in the index. False if there are none.
    async fn take_free(&self) -> Result<bool> {
        let (start, buckets) = (self.endpoint.now(), self.index().buckets);
        if self.with_store(|store| start < store.none_free_until) {
            return Ok(false);
        }
        let scan = Scan::begin(self);
        let first = self.with_store(|store| store.next_cell);
        let cells: Vec<usize> = (first..buckets).chain(0..first).collect();
        for cells in cells.chunks(scan.cells_at_a_time) {
            self.with_store(|store| store.next_cell = cells[0]);
            let may_have = together(cells.len(), cells.iter().map(|cell| self.may_have_free(*cell))).await?;
            for (cell, _) in cells.iter().zip(may_have).filter(|(_, may_have)| *may_have) {
                if self.take_free_of(*cell).await? {
                    return Ok(true);
                }
            }
            if self.endpoint.now() >= start + self.endpoint.timeout() {
                return Err(self.timed_out("a free register: a look at all of the index", start, Vec::new()));
            }
        }
        // Not again at once: the next calls say sooner that the store is full.
        let now = self.endpoint.now();
        self.with_store(|store| store.none_free_until = now + (now - start).min(NONE_FREE_MAX));
        Ok(false)
    }

    /// Whether a cell may have a register that is free.
    async fn may_have_free(&self, cell: usize) -> Result<bool> {
        let section = self.enter()?;
        let entries = self.entries(cell).await;
        section.end();
        Ok(entries?.is_none_or(|entries| entries.iter().any(|entry| entry.is_free() || self.has_taken(*entry))))
    }

    /// Whether an entry says that this client has a register that was free, and it does not know that yet.
    fn has_taken(&self, entry: Entry) -> bool {
        let came = self.with_store(|store| store.came.get(&entry.at().register).copied().unwrap_or_default());
        entry == Entry::taken(entry.at(), self.writer) && entry.coming() >= came
    }

    /// Takes a free register of a cell. False if it has none.
    pub(crate) async fn take_free_of(&self, cell: usize) -> Result<bool> {
        let writer = self.writer;
        let mut take = |entries: &_| {
            let entries: &[Entry; ENTRIES] = entries;
            if entries.iter().any(|entry| self.has_taken(*entry)) {
                return None;
            }
            let free = entries.iter().find(|entry| entry.is_free())?;
            Some(Change::new(*free, Entry::taken(free.at(), writer)))
        };
        let entries = self.change(&mut Deciding::new(cell), None, &mut take).await?.state();
        let Some(taken) = entries.into_iter().find(|entry| self.has_taken(*entry)) else { return Ok(false) };
        if self.comes(taken) {
            let at = taken.at();
            self.with_store(|store| store.ended.push(Ended::taken(at, cell)));
        }
        self.tend().await;
        Ok(true)
    }

    /// Step 2.
    pub(crate) async fn unmap(&self, cell: usize, entry: Entry, seal: Version) -> Result<bool> {
        let (at, held) = (entry.at(), Entry::held(entry.at(), self.writer));
        let mut unmap = |entries: &_| {
            let entries: &[Entry; ENTRIES] = entries;
            entries.contains(&entry).then(|| Change { limit: seal, ..Change::new(entry, held) })
        };
        let mut deciding = Deciding::new(cell);
        let record = self.change(&mut deciding, None, &mut unmap).await?;
        let is_there = record.state().contains(&held);
        if is_there && !deciding.has_kept && record.change.to == held {
            self.keep_limit_in_section(at, record.change.limit, None).await?;
        }
        if is_there && self.comes(held) {
            // Those count that come back to it for certain: it would run out of registers if it left the others.
            let is_kept = self.with_place(|place| {
                let coming = place.registers_on_the_way().filter(|kept| *kept == Some(true)).count();
                let store = place.store.as_ref().expect("it is a store's client");
                store.registers.len() + coming < store.kept_max
            });
            self.retire([Used::Register(Ended::new(at, Some(cell), is_kept))]);
        }
        Ok(true)
    }

    /// Finds out whether a key was mapped, which it will not be later. True if this client has no register from it.
    pub(crate) async fn settle_mapping(&self, mut doubt: Doubt) -> Result<bool> {
        let entries = self.change(&mut doubt.deciding, None, &mut |_| None).await?.state();
        self.end_mapping(&doubt, entries.contains(&doubt.mapping)).await?;
        Ok(true)
    }

    /// An insert or a move has ended: its key has the register, or had it and has left it since, or never had it. False
    /// if it never had it.
    pub(crate) async fn end_mapping(&self, doubt: &Doubt, is_there: bool) -> Result<bool> {
        let (at, version) = (doubt.mapping.at(), doubt.version);
        let had_it = is_there
            || doubt.deciding.proposed > 0 && {
                let section = self.enter()?;
                let has_ended = self.has_ended(&section, at).await;
                section.end();
                has_ended?
            };
        if had_it && let Some((from, limit)) = doubt.moved {
            self.leave_replaced(from, limit, doubt.deciding.has_kept).await?;
        }
        if is_there {
            self.hold(at, version);
            return Ok(true);
        }
        // If its key had it, another client has the register now.
        if !had_it {
            self.end_register(at);
        }
        self.retire_buffer(version.buffer());
        Ok(had_it)
    }

    /// Step 4. False if a memory node does not answer.
    pub(crate) async fn begin_next_instance(&self, ended: Ended) -> Result<bool> {
        let section = self.enter()?;
        let has_begun = self.begin_next_in(&section, ended).await;
        section.end();
        Ok(has_begun)
    }

    async fn begin_next_in(&self, _section: &Section<'_, 'e>, ended: Ended) -> bool {
        let register = ended.at.register;
        let Some(mut next) = ended.at.next(self.clock()) else {
            self.has_no_instance(register);
            return true;
        };
        loop {
            let Some(live) = self.holders_of(register).await else { return false };
            let post = |replica: usize| {
                if ended.is_kept {
                    // It is there before the next instance is, and so before the entry leaves the index (`owners`).
                    self.put_owner(replica, next)?;
                }
                let word = self.register_at(replica, register);
                // A client that freezes the register, for the index of a moment ago, does so by a compare-and-swap, too
                // (`moving`).
                let is_enough = |found: u64, new: u64| Location::instance_of(found) >= new;
                Ok(Raise::new(self.endpoint, word, [ended.at.instance, next.instance], is_enough))
            };
            let answers = self.gather_holders(live, post).await;
            if answers.len() < live.len() {
                return false;
            }
            let found = answers.iter().map(|(_, word)| Location::instance_of(*word));
            let highest = found.clone().max().unwrap_or(next.instance);
            next.instance = highest;
            // If not, an earlier attempt, perhaps of an earlier client in this place, was made in another epoch.
            if found.min() == Some(highest) {
                self.retire([Used::Register(Ended { next: Some(next), ..ended })]);
                return true;
            }
        }
    }

    /// A register that has had 2³¹ instances in the six days of an epoch: one every 256 µs, each of which took an
    /// insert, a delete and two questions to all nodes. The next one could not be told apart from an earlier one. The
    /// next client in this place begins one in the next epoch.
    #[cold]
    fn has_no_instance(&self, register: usize) {
        let object = &self.shared.object;
        tracing::warn!(
            node = object.node().id().0,
            object = object.path(),
            "register {} is not used again in these six days: it has had 2^31 keys",
            self.shared.number_of(register)
        );
    }

    /// Ends the entry that says which client has a register. The register's words are clear.
    pub(crate) async fn leave_entry(&self, ended: Ended) -> Result<()> {
        let next = ended.next.expect("its words were cleared");
        let Some(cell) = ended.cell else {
            self.give_back_register(next);
            return Ok(());
        };
        let held =
            if ended.is_clear { Entry::taken(ended.at, self.writer) } else { Entry::held(ended.at, self.writer) };
        if ended.is_clear {
            // The owner of any other one that is kept is on all memory nodes (steps 4 and 6).
            self.name_owner(next).await?;
        }
        let to = if ended.is_kept { Entry::NONE } else { Entry::free(next) };
        let mut leave = |entries: &_| {
            let entries: &[Entry; ENTRIES] = entries;
            entries.contains(&held).then(|| Change::new(held, to))
        };
        self.change(&mut Deciding::new(cell), None, &mut leave).await?;
        if ended.is_kept {
            self.give_back_register(next);
        }
        Ok(())
    }

    /// Step 6. False if a memory node does not answer.
    pub(crate) async fn clear_words(&self, next: Location, is_kept: bool) -> Result<bool> {
        let section = self.enter()?;
        let are_clear = self.clear_words_in(&section, next, is_kept).await;
        section.end();
        Ok(are_clear)
    }

    async fn clear_words_in(&self, _section: &Section<'_, 'e>, next: Location, is_kept: bool) -> bool {
        let head = self.shared.layout.head_words();
        let Some(live) = self.holders_of(next.register).await else { return false };
        let get = |replica: usize| {
            if is_kept {
                // A client that has kept the owner of an earlier instance may have overwritten this one. It has ended.
                self.put_owner(replica, next)?;
            }
            let head = self.endpoint.buf(head)?;
            Ok(self.endpoint.get_into(self.register_at(replica, next.register), head))
        };
        let found = self.gather_holders(live, get).await;
        if found.len() < live.len() {
            return false;
        }
        let empty = Version::empty(next.instance).0;
        let clear = |replica: usize| {
            let at = self.register_at(replica, next.register);
            let found = &found.iter().find(|(other, _)| *other == replica).expect("all have answered").1;
            let words = (1..head).filter(|word| found[*word] != empty);
            let raise = |word| Raise::new(self.endpoint, at.at(word), [found[word], empty], |found, new| found == new);
            Ok(Clear(words.map(raise).collect()))
        };
        self.gather_holders(live, clear).await.len() == live.len()
    }
}

/// A look at all cells, for free registers.
struct Scan<'c, 'e> {
    core: &'c Core<'e>,
    cells_at_a_time: usize,
}

impl<'c, 'e> Scan<'c, 'e> {
    fn begin(core: &'c Core<'e>) -> Scan<'c, 'e> {
        let others = core.common.scans.replace(core.common.scans.get() + 1);
        Scan { core, cells_at_a_time: if others == 0 { CELLS_AT_A_TIME } else { 1 } }
    }
}

impl Drop for Scan<'_, '_> {
    fn drop(&mut self) {
        self.core.common.scans.set(self.core.common.scans.get() - 1);
    }
}

/// A register into which nothing was written.
pub(crate) struct UnusedRegister<'c, 'e> {
    core: &'c Core<'e>,
    pub(crate) at: Location,
}

impl UnusedRegister<'_, '_> {
    /// From now on a key may have it.
    pub(crate) fn keep(self) {
        core::mem::forget(self);
    }

    /// It has no timestamp left: it returns with its next instance.
    pub(crate) fn renew(self) {
        self.core.end_register(self.at);
        self.keep();
    }
}

impl Drop for UnusedRegister<'_, '_> {
    fn drop(&mut self) {
        self.core.give_back_register(self.at);
    }
}
