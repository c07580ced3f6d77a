//! Which client has a register that the index does not name.
//!
//! A client keeps registers that have no key, inserts with one, or has moved a key from one (`moving`). So that the
//! next client in its place finds them when it has died or has closed the store (`succession`), each register has a
//! word beside its limit, which names its last *owner*:
//!
//! ```text
//! 63   46 45                      7 6          0
//! ┌──────┬─────────────────────────┬────────────┐
//! │ 0    │ from this instance (39) │ writer (7) │   the writer's number and one; 0: the client that has its group
//! └──────┴─────────────────────────┴────────────┘
//! ```
//!
//! *It is written before the index stops naming the register.* A client that keeps a register whose key was deleted
//! puts the word to all memory nodes before it gives them the next instance (step 4 in `registers`), and once more
//! before it clears the words there (step 6). One that takes a free register puts it to a majority before the entry of
//! the register ends. When a key moves, its record names the register that it has left, and the client that has moved
//! it (by the first version of the new register). The word is on a majority before another record is built on that one,
//! as the limit is.
//!
//! *So the latest word names the owner.* It counts unless all memory nodes have begun a later instance than it names.
//! Suppose that a client had a register from instance i on, and that the index does not name the register. Either no
//! key ever had it in this instance: then the client has it still. Or a key has left it. If that was deleted, the entry
//! of the client that has deleted it stood there until all memory nodes had a later instance. If it has moved, the
//! other client's word is from instance i + 1, or the record of the move is the last one of its cell.
//!
//! *Words do not fall.* A client puts a word only while the register is its own, or for another client in a section
//! that began before the register can be used again. Until the put has landed, the register is not used again.

use farfield_core::Result;
use farfield_fabric as fabric;

use crate::cell::Change;
use crate::client::Core;
use crate::sections::Section;
use crate::version::{Location, WRITERS_MAX};

const WRITER_BITS: u32 = 7;

/// The owner of a register. A later one is higher.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) struct Owner(pub(crate) u64);

impl Owner {
    /// A client that has a register from this instance on.
    pub(crate) fn new(at: Location, writer: usize) -> Owner {
        debug_assert!(writer < WRITERS_MAX);
        Owner(at.instance << WRITER_BITS | (writer as u64 + 1))
    }

    /// The client that has moved a key, if this change is a move: it has the register that the key has left.
    pub(crate) fn after_move(change: &Change) -> Option<Owner> {
        let Change { from, to, version, .. } = *change;
        (from.is_mapped() && to.is_mapped()).then(|| Owner::after(from.at(), version.writer()))
    }

    /// A client that has moved a key from a register.
    pub(crate) fn after(from: Location, writer: usize) -> Owner {
        Owner::new(Location { instance: from.instance + 1, ..from }, writer)
    }

    /// Whether this client has the register in this instance.
    pub(crate) fn has(self, at: Location, writer: usize) -> bool {
        self.0 >> WRITER_BITS >= at.instance && self.0 % (1 << WRITER_BITS) == writer as u64 + 1
    }
}

impl<'e> Core<'e> {
    /// Names this client as the owner of a register, on one memory node. What it posts there next finds this landed
    /// (`NRW` before `NAR` and `NRR`).
    pub(crate) fn put_owner(&self, replica: usize, at: Location) -> fabric::Result<()> {
        let word = self.replica(replica).locks.at(self.shared.layout.owner(at.register));
        self.endpoint.put_value(word, Owner::new(at, self.writer).0).detach()
    }

    /// Names this client as the owner of a register, on a majority.
    pub(crate) async fn name_owner(&self, at: Location) -> Result<()> {
        let section = self.enter()?;
        let words = [(self.shared.layout.owner(at.register), Owner::new(at, self.writer).0)];
        let named = self.put_beside_locks(&section, at.register, &words).await;
        section.end();
        named
    }

    /// Puts words beside the locks of a register, on a majority.
    pub(crate) async fn put_beside_locks(
        &self,
        section: &Section<'_, 'e>,
        register: usize,
        words: &[(usize, u64)],
    ) -> Result<()> {
        let post = |replica: usize| {
            // Until they have landed, the register must not be used again.
            section.puts_to(replica);
            let locks = self.replica(replica).locks;
            for (at, word) in words {
                self.endpoint.put_value(locks.at(*at), *word).detach()?;
            }
            // A get flushes the puts before it (`NRW` before `NRR`).
            Ok(self.endpoint.get(locks.at(words[0].0)))
        };
        let gathered = self.gather(self.order(register), self.majority(), post).await?;
        gathered.answers.iter().for_each(|(replica, _)| section.has_landed(*replica));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::Entry;
    use crate::version::{Format, INSTANCE_BITS};

    #[test]
    fn an_owner_has_a_register_from_its_instance_on_and_until_another_has() {
        let at = |instance| Location { register: 3, instance };
        for writer in [0, 7, WRITERS_MAX - 1] {
            for instance in [0, 1, (1 << INSTANCE_BITS) - 1] {
                let owner = Owner::new(at(instance), writer);
                assert!(owner > Owner::default() && owner.has(at(instance), writer) && owner.has(at(0), writer));
                assert!(!owner.has(at(instance + 1), writer) && !owner.has(at(instance), writer + 1));
                assert!(Owner::after(at(instance), 0) > owner);
                assert!(!Owner::default().has(at(instance), writer));
            }
        }
    }

    #[test]
    fn the_client_that_moves_a_key_owns_the_register_that_the_key_has_left() {
        let (from, to) = (Location { register: 3, instance: 5 }, Location { register: 4, instance: 2 });
        let version = Format::STORE.guessed(77, 6, 9).expect("a timestamp");
        let mapped = Entry::mapped(from, 9);
        let moved = Change { version, ..Change::new(mapped, mapped.moved_to(to)) };
        assert_eq!(Owner::after_move(&moved), Some(Owner::after(from, 6)));
        for other in [Change::new(mapped, Entry::held(from, 2)), Change::new(Entry::NONE, mapped), Change::NONE] {
            assert_eq!(Owner::after_move(&other), None);
        }
    }
}
