//! Writes whose guesses were stale (Algorithm 10, WRITE).
//!
//! Round trips: the guess; the value of the later version, beside the words of the lock; that version to a majority; the lock; the value once
//! more. When the later version is at a majority already, the second and the third are not needed, but a lock that was taken before takes two.

use farfield_core::Result;
use farfield_fabric::{Buf, Op};

use crate::client::Core;
use crate::max_register::Found;
use crate::replicas::{PerReplica, Replicas};
use crate::sections::Section;
use crate::timestamp_lock::{Mode, answered};
use crate::version::{Location, Version};

/// A version that is later than a guess.
pub(crate) struct Stale<'e> {
    pub(crate) later: Version,
    /// None if a majority has it. It is rare, and all writes move it.
    pub(crate) behind: Option<Box<Behind<'e>>>,
    /// The memory nodes to which the guess was posted.
    pub(crate) posted: Replicas,
}

/// A version that a majority may not have.
pub(crate) struct Behind<'e> {
    found: Found<'e>,
    /// The words of its writer that memory nodes without it have.
    words: PerReplica<u64>,
    /// Gets of this client's timestamp lock.
    locks: PerReplica<Op<'e, u64>>,
}

impl<'e> Core<'e> {
    /// A version that was found beside a guess, with its value unless a majority has it. None if the value is gone.
    pub(crate) async fn stale(
        &self,
        at: Location,
        later: Version,
        posted: Replicas,
        answers: &[(usize, (u64, Buf<'_, u64>))],
    ) -> Result<Option<Stale<'e>>> {
        let layout = &self.shared.layout;
        let word = layout.metadata_word(later.writer());
        let mut found = Found { version: later, holders: Replicas::default(), image: None };
        let mut words = PerReplica::new();
        for (replica, (stored, head)) in answers {
            let is_own = word == layout.metadata_word(self.writer);
            let there = if is_own { *stored } else { head[word] };
            match Version(there).write() == later.write() {
                true => found.holders.add(*replica),
                false => words.push((*replica, there)),
            }
        }
        if found.holders.count() >= self.majority() {
            return Ok(Some(Stale { later, behind: None, posted }));
        }
        // Both in one round trip.
        let locks = self.get_locks(at.register);
        let is_there = self.fetch(at.register, &mut found).await?;
        Ok(is_there.then_some(Stale { later, behind: Some(Box::new(Behind { found, words, locks })), posted }))
    }

    /// Takes the timestamp lock of a stale guess. Readers that do not get it go on to a later version (lemma C.4): before that, there has to
    /// be one at a majority. False if a reader may have found that the guess was fresh.
    pub(crate) async fn lock_stale(
        &self,
        at: Location,
        version: Version,
        stale: Stale<'e>,
        section: &Section<'_, 'e>,
    ) -> Result<bool> {
        let mut known = PerReplica::new();
        if let Some(behind) = stale.behind {
            let Behind { mut found, words, locks } = *behind;
            self.write_back(at, &mut found, &words, section).await?;
            known = answered(locks);
        }
        self.try_lock_from(at, version, Mode::Write, &known).await
    }
}
