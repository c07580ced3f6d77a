//! The work that is left when a client's call has ended. It is done in parts, beside later calls, or by one that needs
//! its result.

use farfield_core::toolkit::RefusedPause;
use farfield_core::{Error, Result};

use crate::cell::Entry;
use crate::client::{Core, StorePlace};
use crate::max_register::{Found, Look};
use crate::registers::{Doubt, Ended};
use crate::together::together;
use crate::version::Version;

/// Each needs a section, and the client's other calls have some.
const CHORES_AT_A_TIME: usize = 8;

/// Groups of registers of deleted keys that a client may have at most.
const IN_HAND_MAX: usize = 2;

/// A piece of work that is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Chore {
    /// Step 2, for this entry of a cell, by this seal.
    Unmap { cell: usize, entry: Entry, seal: Version },
    /// A delete that was dropped, or that found no majority: the register of this entry may have its seal.
    Find { cell: usize, entry: Entry },
    /// Step 4.
    End(Ended),
    /// An insert or a move that was dropped, or that found no majority.
    Settle(Doubt),
    /// A write that was dropped, to a register of a key that moves: the write's buffer is needed until that has ended.
    Leave { cell: usize, entry: Entry, buffer: usize },
}

impl<'e> Core<'e> {
    pub(crate) fn add_chore(&self, chore: Chore) {
        self.with_store(|store| {
            if !store.chores.contains(&chore) {
                store.chores.push_back(chore);
            }
        });
    }

    /// The key of an entry was deleted, and the client that has deleted it may have died since.
    pub(crate) fn found_deleted(&self, cell: usize, entry: Entry, seal: Version) {
        if self.in_hand() < self.index().group {
            self.add_chore(Chore::Unmap { cell, entry, seal });
        }
    }

    /// Looks for a seal of a client that has died, or has dropped its delete: the key is still in the index.
    pub(crate) async fn find_deleted(&self, cell: usize, entry: Entry) -> Result<()> {
        let section = self.enter()?;
        let look = self.max_read(entry.at(), &section).await;
        section.end();
        if let Look::Found(Found { version: seal, .. }) = look?
            && seal.is_sealed()
        {
            self.add_chore(Chore::Unmap { cell, entry, seal });
        }
        Ok(())
    }

    /// After a delete, or an insert that has used a register in vain. The index is changed for several keys at a time,
    /// and a client holds up few registers. Its call has succeeded already: a later one does again everything that
    /// fails here.
    pub(crate) async fn tend_if_many(&self) {
        let group = self.index().group;
        if self.has_many_chores() {
            self.tend().await;
        }
        if self.in_hand() > IN_HAND_MAX * group {
            let _ = self.tend_until(|| self.in_hand() <= IN_HAND_MAX * group).await;
        }
    }

    /// Whether there is enough to do at a time.
    pub(crate) fn has_many_chores(&self) -> bool {
        self.with_store(|store| store.chores.len() + store.ended.len()) >= self.index().group
    }

    pub(crate) async fn tend_until(&self, is_enough: impl Fn() -> bool) -> Result<()> {
        let start = self.endpoint.now();
        let (deadline, mut pause) = (start + self.endpoint.timeout(), RefusedPause::default());
        while !is_enough() {
            let failed = self.tend().await;
            if is_enough() {
                break;
            }
            self.recycle(true);
            self.wait_for_answers(deadline, &mut pause).await?;
            self.recycle(true);
            if self.endpoint.now() >= deadline {
                let what = "registers that can be used again: reads that may use them";
                return Err(failed.unwrap_or_else(|| self.timed_out(what, start, Vec::new())));
            }
            // Other calls of this client may be doing it, or a memory node does not answer.
            let until = self.endpoint.now() + self.shared.options.patience;
            match failed {
                Some(_) => self.pause(until).await,
                None => self.endpoint.wait_for_change(until).await,
            }
        }
        Ok(())
    }

    /// Does what can be done without waiting for other nodes' answers. What fails is done again later; the result is
    /// the first failure.
    pub(crate) async fn tend(&self) -> Option<Error> {
        let chores = self.with_store(|store| store.chores.len());
        let done = together(CHORES_AT_A_TIME, (0..chores).map(|_| self.do_chore())).await;
        self.recycle(false);
        let ended = self.with_store(|store| store.ended.len());
        let cleared = together(CHORES_AT_A_TIME, (0..ended).map(|_| self.clear_one())).await;
        done.err().or(cleared.err())
    }

    /// Settles a call that was dropped, for its buffer. False if there is none.
    pub(crate) async fn settle_one(&self) -> Result<bool> {
        let is_doubt = |chore: &Chore| matches!(chore, Chore::Settle(_) | Chore::Leave { .. });
        let doubt = self.with_place(|place| {
            let chores = &mut place.store.as_mut()?.chores;
            chores.iter().position(is_doubt).and_then(|at| chores.remove(at))
        });
        match doubt {
            Some(doubt) => Box::pin(self.do_this(doubt)).await,
            None => Ok(false),
        }
    }

    /// Something to do, unless this client does enough in all shards.
    fn next_todo<T>(&self, pop: impl FnOnce(&mut StorePlace) -> Option<T>) -> Option<T> {
        if self.common.chores.get() >= CHORES_AT_A_TIME {
            return None;
        }
        self.with_store(pop)
    }

    async fn do_chore(&self) -> Result<()> {
        match self.next_todo(|store| store.chores.pop_front()) {
            Some(chore) => self.do_this(chore).await.map(|_| ()),
            None => Ok(()),
        }
    }

    /// Does it now, or, if it fails or is dropped, later. True if it is done.
    pub(crate) async fn do_this(&self, chore: Chore) -> Result<bool> {
        let mut doing = Doing::new(self, Todo::Chore(chore));
        let is_done = match chore {
            Chore::Unmap { cell, entry, seal } => self.unmap(cell, entry, seal).await?,
            Chore::Find { cell, entry } => self.find_deleted(cell, entry).await.map(|()| true)?,
            Chore::End(ended) => self.begin_next_instance(ended).await?,
            Chore::Settle(doubt) => self.settle_mapping(doubt).await?,
            Chore::Leave { cell, entry, buffer } => {
                // A client that needs the key ends the move.
                let has_left = !self.settled_entries(cell).await?.contains(&entry);
                if has_left {
                    self.retire_buffer(buffer);
                }
                has_left
            }
        };
        if is_done {
            doing.todo = None;
        }
        Ok(is_done)
    }

    async fn clear_one(&self) -> Result<()> {
        let Some(mut ended) = self.next_todo(|store| store.ended.pop()) else { return Ok(()) };
        let mut doing = Doing::new(self, Todo::Clear(ended));
        if !ended.are_words_clear {
            if !self.clear_words(ended.next.expect("all memory nodes have it"), ended.is_kept).await? {
                return Ok(());
            }
            ended.are_words_clear = true;
            doing.todo = Some(Todo::Clear(ended));
        }
        self.leave_entry(ended).await?;
        doing.todo = None;
        Ok(())
    }
}

/// A thing to do that is under way. It is done again later, unless it has ended when this is dropped.
struct Doing<'c, 'e> {
    core: &'c Core<'e>,
    todo: Option<Todo>,
}

enum Todo {
    Chore(Chore),
    Clear(Ended),
}

impl<'c, 'e> Doing<'c, 'e> {
    fn new(core: &'c Core<'e>, todo: Todo) -> Doing<'c, 'e> {
        core.with_store(|store| store.under_way += 1);
        core.common.chores.set(core.common.chores.get() + 1);
        Doing { core, todo: Some(todo) }
    }
}

impl Drop for Doing<'_, '_> {
    fn drop(&mut self) {
        self.core.with_store(|store| store.under_way -= 1);
        self.core.common.chores.set(self.core.common.chores.get() - 1);
        match self.todo {
            Some(Todo::Chore(chore)) => self.core.with_store(|store| store.chores.push_back(chore)),
            Some(Todo::Clear(ended)) => self.core.with_store(|store| store.ended.push(ended)),
            None => {}
        }
    }
}
