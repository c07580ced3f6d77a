//! Moving a key to another register: how a value is replaced on a condition.
//!
//! A write that takes one round trip cannot depend on the value that it replaces. So a conditional update does not
//! write to the register. It takes a fresh one, and lets the memory nodes agree (`agreement`) that the key has that one
//! from now on:
//!
//! 1. The register is *frozen*: a bit is set in its instance word, by a compare-and-swap, on a majority. A call that
//!    finds the bit turns to the index.
//! 2. The metadata words are read, from a majority. The highest version is the *limit*: the last one that counts.
//! 3. The index changes: the key has the new register, with the new value, or with the same one if the condition is not
//!    met any more. The record contains the limit. Of several clients that try, one succeeds, perhaps for another one
//!    that has died.
//!
//! *No write is lost.* A write to a register of a store reads the instance word after it has exchanged its metadata
//! word, by a compare-and-swap of its own (`NAR` before `NAR`). The client that moves the key reads the words of each
//! memory node after it has frozen that one. Both do so at a majority, so at one memory node both do. If the write
//! finds no bit there, its version was there before the words were read: the limit is that version, or a later one. If
//! it finds the bit anywhere, its writer asks for the limit (`Core::counts`): a write that is the limit has happened,
//! one above it has not, and one below has if a reader has locked it. No timestamp lock is needed for the limit: a
//! writer gives up a version only when a majority has a later one, and then the limit is another, unless that later one
//! came after the freeze. So the writer compares both its versions.
//!
//! *No read is lost.* A reader takes a version that is verified, so its write has ended; or one that it has found
//! twice: then a majority had it at the first look, and the register was not yet frozen when the second one began; or
//! one after which its writer has begun another call there, so this one has ended. For that, a write is verified only
//! when it has ended, also the second one of a stale guess: that one is a guess, too, and readers tell by its buffer
//! that it is of the same call. And a client begins no other write of a register before it knows whether its last one
//! counts.
//!
//! *A delete or a move.* A delete looks for the bit as a write does, and a move looks for seals after the freeze: one
//! of both finds the other. A move that finds a seal takes the key out of the index instead; a delete that finds the
//! bit waits for the index. A reader that finds a seal looks for the bit once more when a majority has the seal.
//!
//! *Each end has one owner.* An entry leaves the index with its limit, however it leaves: for a deleted key, the limit
//! is the seal that has ended it. Several deletes may have sealed one register, and each finds a later entry of the key
//! then. The one with the limit as its seal has done its work; the others go on.
//!
//! *The limit is kept.* A client that builds on a record with a limit first puts that beside the register's locks, on a
//! majority, unless the register was used again since. The client that makes the register free does the same before.
//! If the key has moved, the register's next owner is put beside it (`owners`). There the limit stays until the
//! register loses its key once more, with the last bits of the instance:
//!
//! ```text
//! 63            48 47  46                  0
//! ┌───────────────┬───┬─────────────────────┐
//! │ instance (16) │ S │ write (47)          │   S: a seal; 0: none
//! └───────────────┴───┴─────────────────────┘
//! ```

use farfield_core::Result;

use crate::agreement::Deciding;
use crate::buffers::Used;
use crate::cell::{Change, Entries, Entry, Record};
use crate::chores::Chore;
use crate::client::Core;
use crate::max_register::Look;
use crate::owners::Owner;
use crate::registers::Ended;
use crate::safe_guess::Again;
use crate::sections::Section;
use crate::store::Words;
use crate::timestamp_lock::Mode;
use crate::version::{Location, Version};

/// How often a write looks for the end of a move in its own section. Then it continues without, since others wait for
/// the section.
const LOOKS_IN_SECTION: usize = 4;

/// The result of an attempt to move a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Moved {
    /// With the new value, to this register.
    Replaced(Location),
    /// With the value that it had.
    Kept(Location),
    /// Others have moved or deleted it.
    Lost,
}

/// A register that no write of that instance changes any more.
enum Frozen {
    /// Its last version; the value of that was read.
    At(Version),
    /// Its key was deleted, by this seal.
    Sealed(Version),
    /// Its key is not there any more, or the index changes.
    Left,
}

/// A limit, as it is beside the locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Limit(u64);

const WRITE_BITS: u32 = 47;
const SEAL: u64 = 1 << WRITE_BITS;
const INSTANCES: u64 = 1 << (63 - WRITE_BITS);

impl Limit {
    fn new(at: Location, version: Version) -> Limit {
        let seal = if version.is_sealed() { SEAL } else { 0 };
        Limit((at.instance % INSTANCES) << (WRITE_BITS + 1) | seal | version.write())
    }

    fn is_seal(self) -> bool {
        self.0 & SEAL != 0
    }

    fn write(self) -> u64 {
        self.0 % SEAL
    }

    /// Whether it is that of this instance.
    fn is_of(self, at: Location) -> bool {
        self.0 != 0 && self.0 >> (WRITE_BITS + 1) == at.instance % INSTANCES
    }
}

/// Of the limits that memory nodes have of a register with this instance, the last one.
pub(crate) fn latest_limit(at: Location, words: impl Iterator<Item = u64>) -> u64 {
    let age = |word: &u64| at.instance.wrapping_sub(word >> (WRITE_BITS + 1)) % INSTANCES;
    words.filter(|word| *word != 0).min_by_key(age).unwrap_or(0)
}

/// A write to a register that was frozen. Its buffer may be that of the limit, until its key has left.
struct Undecided<'c, 'e> {
    core: &'c Core<'e>,
    chore: Chore,
    buffer: usize,
    is_decided: bool,
}

impl Drop for Undecided<'_, '_> {
    fn drop(&mut self) {
        if self.is_decided {
            self.core.retire_buffer(self.buffer);
        } else {
            self.core.add_chore(self.chore);
        }
    }
}

impl<'e> Core<'e> {
    /// Moves a key of a cell to another register. `replace` gives its new value, if it is to have one; `found` is the
    /// old one then.
    pub(crate) async fn move_key(
        &self,
        cell: usize,
        entry: Entry,
        found: &mut [u64],
        replace: &mut dyn FnMut(&[u64]) -> Result<Option<Words>>,
    ) -> Result<Moved> {
        let room = self.take_room().await?;
        let section = self.enter()?;
        let frozen = self.freeze(&section, cell, entry, found).await;
        section.end();
        let limit = match frozen? {
            Frozen::At(limit) => limit,
            Frozen::Sealed(seal) => {
                drop(room);
                return Box::pin(self.do_this(Chore::Unmap { cell, entry, seal })).await.map(|_| Moved::Lost);
            }
            Frozen::Left => return Ok(Moved::Lost),
        };
        let new = replace(found)?;
        let words = new.as_deref().unwrap_or(found);
        let moved = Some((entry.at(), limit));
        let mut mapping = room.fill(words, Deciding::new(cell), |at| entry.moved_to(at), moved)?;
        let to = mapping.doubt.mapping;
        let (doubt, payload) = mapping.parts();
        let change = Change { version: payload.version, limit, ..Change::new(entry, to) };
        let mut next = |entries: &Entries| {
            let is_open = !entries.contains(&to) && entries.contains(&entry);
            is_open.then_some(change)
        };
        let record = self.change(&mut doubt.deciding, Some(payload), &mut next).await?;
        let moved = if new.is_some() { Moved::Replaced } else { Moved::Kept };
        Ok(if mapping.end(record.state().contains(&to)).await? { moved(to.at()) } else { Moved::Lost })
    }

    /// Steps 1 and 2, if the cell has the entry. (The register is not made free before the section ends.)
    async fn freeze(&self, _section: &Section<'_, 'e>, cell: usize, entry: Entry, found: &mut [u64]) -> Result<Frozen> {
        let at = entry.at();
        if !self.entries(cell).await?.is_some_and(|entries| entries.contains(&entry)) {
            return Ok(Frozen::Left);
        }
        for _ in 0..=self.shared.memory_nodes {
            let Look::Found(mut last) = self.freeze_and_look(at).await? else { return Ok(Frozen::Left) };
            if last.version.is_sealed() {
                return Ok(Frozen::Sealed(last.version));
            }
            if self.value(at, &mut last, found).await? {
                return Ok(Frozen::At(last.version));
            }
        }
        Err(self.unsettled(at.register))
    }

    /// After a mapping of this client that has replaced another one: the register of that is used again.
    pub(crate) async fn leave_replaced(&self, from: Location, limit: Version, is_kept: bool) -> Result<()> {
        if !is_kept {
            self.keep_limit_in_section(from, limit, Some(Owner::after(from, self.writer))).await?;
        }
        self.retire([Used::Register(Ended::new(from, None, true))]);
        Ok(())
    }

    /// Keeps a limit, and the owner from then on if a key has moved.
    pub(crate) async fn keep_limit_in_section(&self, at: Location, limit: Version, owner: Option<Owner>) -> Result<()> {
        let section = self.enter()?;
        let kept = self.keep_limit(&section, at, limit, owner).await;
        section.end();
        kept
    }

    /// Keeps the limit of this client's own record, which was chosen just now. False if that fails: then readers are
    /// not told that it was.
    pub(crate) async fn has_kept(&self, section: &Section<'_, 'e>, record: &Record) -> bool {
        let Change { from, limit, .. } = record.change;
        let owner = Owner::after_move(&record.change);
        limit.is_initial() || self.keep_limit(section, from.at(), limit, owner).await.is_ok()
    }

    /// Keeps the limit of a record that was chosen, before another one is built on it.
    pub(crate) async fn keep_limit_of(&self, section: &Section<'_, 'e>, record: &Record) -> Result<()> {
        let Change { from, limit, .. } = record.change;
        if limit.is_initial() {
            return Ok(());
        }
        let at = from.at();
        let post = |replica: usize| Ok(self.endpoint.get(self.register_at(replica, at.register)));
        let answers = self.gather(self.order(at.register), self.majority(), post).await?.answers;
        // If the register was used again, its limit was kept before. If not, it is not before this section ends.
        if answers.iter().any(|(_, word)| !at.is_in(*word)) {
            return Ok(());
        }
        self.keep_limit(section, at, limit, Owner::after_move(&record.change)).await
    }

    async fn keep_limit(
        &self,
        section: &Section<'_, 'e>,
        at: Location,
        limit: Version,
        owner: Option<Owner>,
    ) -> Result<()> {
        let layout = &self.shared.layout;
        let limit = (layout.limit(at.register), Limit::new(at, limit).0);
        match owner {
            None => self.put_beside_locks(section, at.register, &[limit]).await,
            Some(owner) => {
                let owner = (layout.owner(at.register), owner.0);
                self.put_beside_locks(section, at.register, &[limit, owner]).await
            }
        }
    }

    /// Waits until a key has left a register, and takes it to another one if that takes long.
    pub(crate) async fn left(&self, cell: usize, entry: Entry) -> Result<Record> {
        let (mut is_first, start) = (true, self.endpoint.now());
        loop {
            let record = self.settled(cell).await?;
            if !record.state().contains(&entry) {
                return Ok(record);
            }
            if is_first {
                // The client that has begun is about to end it.
                is_first = false;
                self.pause(self.endpoint.now() + self.patience(self.shared.options.patience)).await;
                continue;
            }
            if self.endpoint.now() >= start + self.endpoint.timeout() {
                return Err(self.timed_out(
                    format!("the move of a key from register {}", self.shared.number_of(entry.at().register)),
                    start,
                    Vec::new(),
                ));
            }
            let mut found = vec![0; self.shared.layout.value_words];
            Box::pin(self.move_key(cell, entry, &mut found, &mut |_| Ok(None))).await?;
        }
    }

    /// [`Core::limit`], if the key leaves its register soon. In the section of a write to the register, so that it is
    /// not used again meanwhile: only looks, which wait for no other client.
    async fn limit_now(&self, cell: usize, entry: Entry) -> Result<Option<Limit>> {
        for _ in 0..LOOKS_IN_SECTION {
            match self.look(cell).await? {
                Some((record, _)) if !record.state().contains(&entry) => {
                    return self.limit_after(&record, entry).await;
                }
                _ => self.pause(self.endpoint.now() + self.patience(self.shared.options.patience)).await,
            }
        }
        Ok(None)
    }

    /// The last version of a register that counts, or the seal, after its key has left it.
    async fn limit(&self, cell: usize, entry: Entry) -> Result<Limit> {
        let start = self.endpoint.now();
        let record = self.left(cell, entry).await?;
        let register = self.shared.number_of(entry.at().register);
        self.limit_after(&record, entry).await?.ok_or_else(|| {
            self.timed_out(
                format!("the end of a call on register {register}, which was used again several times"),
                start,
                Vec::new(),
            )
        })
    }

    /// The limit of a register that its key has left, as this record says, unless the register was used again several
    /// times.
    async fn limit_after(&self, record: &Record, entry: Entry) -> Result<Option<Limit>> {
        let at = entry.at();
        if record.change.from == entry && !record.change.limit.is_initial() {
            return Ok(Some(Limit::new(at, record.change.limit)));
        }
        let word = self.shared.layout.limit(at.register);
        let post = |replica: usize| Ok(self.endpoint.get(self.replica(replica).locks.at(word)));
        let answers = self.gather(self.order(at.register), self.majority(), post).await?.answers;
        Ok(answers.iter().map(|(_, word)| Limit(*word)).find(|limit| limit.is_of(at)))
    }

    /// Whether this call's seal has ended a register that has lost its key since.
    pub(crate) async fn has_ended_it(&self, cell: usize, entry: Entry, seal: Version) -> Result<bool> {
        Ok(self.limit(cell, entry).await? == Limit::new(entry.at(), seal))
    }

    /// Whether a write to a register that is frozen counts. If not, it has to be made again, where the key is now.
    pub(crate) async fn counts(
        &self,
        section: Section<'_, '_>,
        cell: usize,
        entry: Entry,
        again: Again,
    ) -> Result<bool> {
        let Again { guess, last } = again;
        let (at, buffer) = (entry.at(), guess.buffer());
        let chore = Chore::Leave { cell, entry, buffer };
        let mut undecided = Undecided { core: self, chore, buffer, is_decided: false };
        let limit = self.limit_now(cell, entry).await;
        section.end();
        let limit = match limit? {
            Some(limit) => limit,
            None => self.limit(cell, entry).await?,
        };
        undecided.is_decided = true;
        match limit {
            limit if limit == Limit::new(at, guess) || limit == Limit::new(at, last) => Ok(true),
            limit if !limit.is_seal() && last.write() > limit.write() => Ok(false),
            // Its second timestamp is fresh, and a later write has replaced it.
            _ if last.write() != guess.write() => Ok(true),
            // A reader may have taken the guess.
            _ => Ok(!self.try_lock(at, guess, Mode::Write).await?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::version::Format;

    #[test]
    fn a_limit_is_that_of_its_instance() {
        let version = Format::STORE.guessed(1 << 38, 126, 7).expect("a timestamp");
        for instance in [1, INSTANCES - 1, INSTANCES, 3 * INSTANCES + 5] {
            let at = |instance| Location { register: 3, instance };
            let limit = Limit::new(at(instance), version);
            assert!(limit.is_of(at(instance)) && !limit.is_of(at(instance - 1)) && !limit.is_of(at(instance + 1)));
            assert_eq!((limit.write(), limit.is_seal()), (version.write(), false));
            assert!(Limit::new(at(instance), Format::STORE.seal(7, 1).expect("a timestamp")).is_seal());
        }
        assert!(!Limit(0).is_of(Location { register: 3, instance: 0 }));
    }
}
