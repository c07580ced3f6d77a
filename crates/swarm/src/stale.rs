//! Writes with stale guesses (Algorithm 10, WRITE).
//!
//! Round trips, four at most unless a memory node fails: the guess; the value of the later version, beside the words of
//! the lock; that version to a majority, and the lock; the value once more. When the later version is at a majority
//! already, the second is not needed, but a lock that was taken before takes two.
//!
//! *The lock behind the later version.* A reader that is refused the lock of a guess moves on to a later version (lemma
//! C.4), so there has to be one. The paper brings it to a majority before the lock is asked for. Here both go to a
//! memory node one behind the other (`NAR` before `NAR`), so that this holds: *if a memory node shows the writer's side
//! of the lock of a guess, it shows a version above the guess, or a majority has one*. A reader that is refused gets
//! the words of that memory node after the lock's, and its next look is at that one and at a majority. So it finds a
//! later version, and brings it to a majority before it continues. It does not find the guess once more, unless the
//! memory node has died meanwhile. When a majority has the lock, a majority has a later version, as in the paper.
//!
//! *Where the later version goes.* Nothing is known for certain about the word of its writer, so a compare-and-swap of
//! that one may fail, and the lock's behind it does not wait for another attempt. But the word of this writer holds the
//! guess on each memory node that has answered, or what others have made of it, which is above: the same one when a
//! reader has verified it, or a later one of a client that shares the word. So the later version is copied to *that*
//! word. If this fails, there is a version above the guess already. The next version of this writer replaces the copy.
//! A word does not fall by it, and versions are compared as before, whichever words they are in.
//!
//! *Buffers.* While the copy is the highest version that a majority shows, its writer does not use the buffer again
//! (`sections`): it does so when it has replaced the version by one above, at a majority. A client that takes over from
//! that writer looks for its versions in all words. One that takes over from this one has to find the guess: so the
//! copy replaces it only if another memory node that has answered still has it. If that one has died meanwhile, the
//! client waits for all reads that may have found the guess (`succession`).
//!
//! On a memory node that has not answered, this writer's word is not known. There the later version is written to the
//! word of its own writer, and the lock is asked for when it is there.

use core::future::Future;
use core::pin::Pin;

use farfield_core::Result;
use farfield_fabric::{self as fabric, Buf, Op};

use crate::client::Core;
use crate::max_register::Found;
use crate::patience;
use crate::replicas::{PerReplica, Replicas};
use crate::sections::Section;
use crate::timestamp_lock::{Mode, answered, is_taken};
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
    /// Memory nodes without it that have answered, and this client's words there: the guess, or a version above.
    own: PerReplica<Version>,
    /// Gets of this client's timestamp lock.
    locks: PerReplica<Op<'e, u64>>,
}

/// A lock of one memory node.
type Lock<'b> = Pin<Box<dyn Future<Output = fabric::Result<u64>> + 'b>>;

impl<'e> Core<'e> {
    /// A version that was found beside a guess, with its value unless a majority has it. None if the value is gone.
    pub(crate) async fn stale(
        &self,
        at: Location,
        [guess, later]: [Version; 2],
        posted: Replicas,
        answers: &[(usize, (u64, Buf<'_, u64>))],
    ) -> Result<Option<Stale<'e>>> {
        let mut found = Found { version: later, holders: Replicas::default(), image: None };
        let mut own = PerReplica::new();
        let mut has_guess = false;
        for (replica, (stored, head)) in answers {
            let stored = self.version(*stored);
            if stored.write() == later.write() || self.newest(&head[1..]).write() == later.write() {
                found.holders.add(*replica);
                has_guess |= stored.write() == guess.write();
            } else {
                own.push((*replica, stored))
            }
        }
        if found.holders.count() >= self.majority() {
            return Ok(Some(Stale { later, behind: None, posted }));
        }
        if !has_guess {
            own.clear();
        }
        // Both in one round trip.
        let locks = self.get_locks(at.register);
        let is_there = self.fetch(at.register, &mut found).await?;
        Ok(is_there.then_some(Stale { later, behind: Some(Box::new(Behind { found, own, locks })), posted }))
    }

    /// Takes the timestamp lock of a stale guess, on memory nodes that have a version above it. False if a reader may
    /// have found that the guess was fresh.
    pub(crate) async fn lock_stale(
        &self,
        at: Location,
        guess: Version,
        stale: Stale<'e>,
        section: &Section<'_, 'e>,
    ) -> Result<bool> {
        let Some(behind) = stale.behind else { return self.try_lock(at, guess, Mode::Write).await };
        let Behind { found, own, locks } = *behind;
        let (known, later) = (answered(locks), found.version);
        let image = found.image.as_ref().expect("it was fetched");
        let lock = |replica: usize| {
            let known = known.iter().find(|(other, _)| *other == replica).map_or(0, |(_, word)| *word);
            self.lock(replica, at, guess, Mode::Write, known)
        };
        let post = |replica: usize| -> fabric::Result<Lock<'_>> {
            if found.holders.contains(replica) {
                return Ok(Box::pin(lock(replica)));
            }
            section.puts_to(replica);
            if let Some((_, word)) = own.iter().copied().find(|(answered, _)| *answered == replica) {
                let own = self.word_at(replica, at.register, self.writer);
                let stored = self.store_once(replica, own, [word, later], image)?;
                self.set_known(at, replica, later);
                let lock = lock(replica);
                return Ok(Box::pin(async move {
                    let there = stored.await?;
                    if there != word.0 {
                        self.set_known(at, replica, self.version(there));
                    }
                    lock.await
                }));
            }
            let store = self.store(replica, at, [Version::empty(at.instance), later], Some(image));
            Ok(Box::pin(async move {
                store.await?;
                self.check_counts(replica)?;
                lock(replica).await
            }))
        };
        // Those that have answered a moment ago are waited for, as in a write-back.
        let at_least = self.shared.options.patience.max(patience::WRITE_BACK);
        let gathered = self.gather_within(at_least, false, self.order(at.register), self.majority(), post).await?;
        for (replica, _) in &gathered.answers {
            section.has_landed(*replica);
        }
        Ok(gathered.answers.iter().all(|(_, found)| is_taken(*found, at, guess, Mode::Write)))
    }
}
