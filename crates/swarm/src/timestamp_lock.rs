//! Timestamp locks (§3.3, Algorithm 9): readers and the writer of a guessed timestamp agree whether it counts.
//!
//! ```text
//! 63                                         1   0
//! ┌────────────────────────────────────────────┬───┐
//! │ timestamp                                  │ M │   M: 0 taken by readers, 1 by the writer
//! └────────────────────────────────────────────┴───┘
//! ```
//!
//! There is one lock for each register and writer, with a word on each memory node. It is never released, only taken again
//! at higher timestamps. No word changes its mode at the same timestamp, so a majority cannot have both.

use farfield_core::Result;

use crate::client::Core;
use crate::raise::Raise;
use crate::version::Version;

/// The side that takes the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// A reader: the timestamp counts from now on.
    Read,
    /// The writer: no reader will take it any more.
    Write,
}

fn word(version: Version, mode: Mode) -> u64 {
    version.timestamp() << 1 | u64::from(mode == Mode::Write)
}

fn timestamp(word: u64) -> u64 {
    word >> 1
}

impl Core<'_> {
    /// Takes the lock of a version's writer at its timestamp. False if the other side may have taken it, or somebody a
    /// higher one.
    pub(crate) async fn try_lock(&self, register: usize, version: Version, mode: Mode) -> Result<bool> {
        let at = self.shared.layout.lock(register, version.writer());
        let wanted = word(version, mode);
        let post = |replica: usize| {
            let lock = self.shared.replicas[replica].locks.at(at);
            Ok(Raise::new(self.endpoint, lock, [0, wanted], |found, new| timestamp(found) >= timestamp(new)))
        };
        let gathered = self.gather(self.order(register), self.majority(), post).await?;
        Ok(gathered.answers.iter().all(|(_, found)| *found == wanted))
    }
}
