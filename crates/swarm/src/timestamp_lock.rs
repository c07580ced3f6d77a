//! Timestamp locks (§3.3, Algorithm 9): readers and the writer of a guessed timestamp agree whether it counts.
//!
//! ```text
//! 63                                         1   0
//! ┌────────────────────────────────────────────┬───┐
//! │ timestamp                                  │ M │   M: 0 taken by readers, 1 by the writer
//! └────────────────────────────────────────────┴───┘
//! ```
//!
//! There is one lock for each register and writer, with a word on each memory node. It is never released, only taken
//! again at higher timestamps: those of the clock, which go on when the register has another key. No word changes its
//! mode at the same timestamp, so a majority cannot have both.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

use farfield_core::Result;
use farfield_fabric::{Buf, Op, RemotePtr};

use crate::client::Core;
use crate::raise::Raise;
use crate::replicas::PerReplica;
use crate::version::{Location, Version};

/// The side that takes the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// A reader: the timestamp counts from now on.
    Read,
    /// The writer: no reader will take it any more.
    Write,
}

fn word(at: Location, version: Version, mode: Mode) -> u64 {
    at.time(version) << 1 | u64::from(mode == Mode::Write)
}

fn timestamp(word: u64) -> u64 {
    word >> 1
}

/// A word for a memory node that replaces another one, which may have had any of both sides' words beside these: as
/// late as the latest one, and later if both sides have that somewhere. So a side that had a majority with the earlier
/// memory node keeps it, and no other side gets one.
pub(crate) fn dominating(words: impl Iterator<Item = u64> + Clone) -> u64 {
    let latest = words.clone().max().unwrap_or(0);
    let is_disputed = words.clone().any(|word| word != latest && timestamp(word) == timestamp(latest));
    if is_disputed { (timestamp(latest) + 1) << 1 } else { latest }
}

/// Whether a word of the lock is this side's.
pub(crate) fn is_taken(found: u64, at: Location, version: Version, mode: Mode) -> bool {
    found == word(at, version, mode)
}

impl<'e> Core<'e> {
    /// Takes the lock of a version's writer at its timestamp. False if the other side may have taken it, or somebody a
    /// higher one.
    pub(crate) async fn try_lock(&self, at: Location, version: Version, mode: Mode) -> Result<bool> {
        let post = |replica: usize| Ok(self.lock(replica, at, version, mode, 0));
        let gathered = self.gather(self.order(at.register), self.majority(), post).await?;
        Ok(gathered.answers.iter().all(|(_, found)| is_taken(*found, at, version, mode)))
    }

    /// Takes the lock for a reader. If that is refused, what memory nodes have shown that have refused it: a version
    /// after this one, if their words had the writer's mode (`stale`).
    pub(crate) async fn lock_or_look(&self, at: Location, version: Version) -> Result<Vec<(usize, Buf<'e, u64>)>> {
        let post = |replica: usize| {
            let lock = self.lock(replica, at, version, Mode::Read, 0);
            Ok(Box::pin(async move {
                if is_taken(lock.await?, at, version, Mode::Read) {
                    Ok(None)
                } else {
                    self.get_words(replica, at, false)?.await.map(Some)
                }
            }))
        };
        let gathered = self.gather(self.order(at.register), self.majority(), post).await?;
        Ok(gathered.answers.into_iter().filter_map(|(replica, words)| Some((replica, words?))).collect())
    }

    /// Raises a word of the lock to a side's, from what it is known to hold. If that is right, this saves a round trip.
    pub(crate) fn lock(&self, replica: usize, at: Location, version: Version, mode: Mode, known: u64) -> Raise<'_> {
        let (lock, wanted) = (self.lock_at(replica, at.register, version.writer()), word(at, version, mode));
        // It never falls: then nothing is exchanged.
        let known = if timestamp(known) < timestamp(wanted) { known } else { 0 };
        Raise::new(self.endpoint, lock, [known, wanted], |found, new| timestamp(found) >= timestamp(new))
    }

    /// Gets of the words of this client's own lock.
    pub(crate) fn get_locks(&self, register: usize) -> PerReplica<Op<'e, u64>> {
        let get = |replica: usize| (replica, self.endpoint.get(self.lock_at(replica, register, self.writer)));
        self.order(register).iter().take(self.majority()).map(get).collect()
    }

    fn lock_at(&self, replica: usize, register: usize, writer: usize) -> RemotePtr<u64> {
        self.replica(replica).locks.at(self.shared.layout.lock(register, writer))
    }
}

/// The results of those gets that have ended.
pub(crate) fn answered(gets: PerReplica<Op<'_, u64>>) -> PerReplica<u64> {
    let result = |(replica, mut get): (usize, Op<'_, u64>)| match Pin::new(&mut get)
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(Ok(word)) => Some((replica, word)),
        _ => None,
    };
    gets.into_iter().filter_map(result).collect()
}
