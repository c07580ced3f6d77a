//! The memory of a replica: the log, which only the leader writes, and the words for the change of leaders.

use farfield_fabric::{Region, RemotePtr, Word, read_words, write_words};
use xxhash_rust::xxh3::Xxh3;

/// More than anyone needs; sets of replicas are words.
pub(crate) const REPLICAS_MAX: usize = 63;

/// Words of a slot before the entry.
pub(crate) const HEADER: usize = 6;
/// Those of them that prove that a follower has the slot: all but `RAISED`.
pub(crate) const PROOF: usize = 5;
/// In a log: how many entries are decided, as far as this replica was told.
pub(crate) const COMMIT: usize = 0;
/// In a log: the entries before this one are not there, since the others have recycled them before this replica has
/// come.
pub(crate) const BASE: usize = 8;
/// In a log of a replica that has come back: the ballot of a leader that has brought it to all of its entries. A
/// majority knows before it that the replica reads from now on ([`Slots::reads_at`]).
pub(crate) const BROUGHT: usize = 16;
/// In a log: where the slots begin.
pub(crate) const SLOTS_AT: usize = 64;

const INDEX: usize = 0;
const BALLOT: usize = 1;
const ORIGIN: usize = 2;
const LEN: usize = 3;
pub(crate) const CHECK: usize = 4;
pub(crate) const RAISED: usize = 5;

/// Headers that a leader has got back from a follower, of as many entries: a follower that is further behind is left
/// behind.
pub(crate) const ECHOES: usize = 16;

pub(crate) fn echo_bytes(ranks: usize) -> usize {
    ranks * ECHOES * PROOF * 8
}

pub(crate) fn echo_at(rank: usize, index: u64) -> usize {
    (rank * ECHOES + (index % ECHOES as u64) as usize) * PROOF * 8
}

/// The words of a replica for the change of leaders, in memory that all may write: the requests, the grants, the marks
/// of those that have closed the log, the standings and the promises, one for each rank; the position that its own
/// reader has acknowledged; and the nodes with which the log was opened, one for each rank, behind their count.
pub(crate) fn control_bytes(ranks: usize) -> usize {
    (6 * ranks + 2) * 8
}

/// In `control`: the stamp with which the replica of this rank asks to lead.
pub(crate) fn request_at(rank: usize) -> usize {
    rank * 8
}

/// In `control`: the answer of the replica of this rank: the stamp that this one asked with, or a higher one that it
/// has promised.
pub(crate) fn grant_at(ranks: usize, rank: usize) -> usize {
    (ranks + rank) * 8
}

/// In `control`: 1 if the replica of this rank has closed the log.
pub(crate) fn closed_at(ranks: usize, rank: usize) -> usize {
    (2 * ranks + rank) * 8
}

/// In `control`: what the replica of this rank says of itself and of the others ([`Standing`]).
pub(crate) fn standing_at(ranks: usize, rank: usize) -> usize {
    (3 * ranks + rank) * 8
}

/// In `control`: the stamp that the replica of this rank had promised when it put its standing.
pub(crate) fn promise_at(ranks: usize, rank: usize) -> usize {
    (4 * ranks + rank) * 8
}

/// In `control`: the entries before this one may be overwritten here.
pub(crate) fn applied_at(ranks: usize) -> usize {
    5 * ranks * 8
}

/// In `control`: how many nodes the log was opened with, and then, for each rank, its first node + 1.
pub(crate) fn founders_at(ranks: usize) -> usize {
    (5 * ranks + 1) * 8
}

/// What a replica says about itself and the others, once a replica has come back.
///
/// ```text
/// 63 62             0
/// ┌─┬───────────────┐  63: it has said something
/// │1│ by rank       │  by rank: the replica is gone for it. Its own bit: it has no vote yet.
/// └─┴───────────────┘
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Standing(pub(crate) u64);

impl Standing {
    const SAID: u64 = 1 << 63;

    /// Of the replica of rank `me`, for which those in `gone` are gone.
    pub(crate) fn new(me: usize, votes: bool, gone: u64) -> Standing {
        Standing(Standing::SAID | gone | u64::from(!votes) << me)
    }

    pub(crate) fn is_said(self) -> bool {
        self.0 & Standing::SAID != 0
    }

    /// Whether it is that of a replica of this rank with a vote.
    pub(crate) fn votes(self, rank: usize) -> bool {
        self.is_said() && self.0 >> rank & 1 == 0
    }

    /// Whether all these are gone for it.
    pub(crate) fn knows(self, gone: u64) -> bool {
        self.is_said() && self.0 & gone == gone
    }
}

/// A request to lead: a ballot, and how often the candidate has asked this replica with it.
///
/// ```text
/// 63                              16 15     8 7        0
/// ┌─────────────────────────────────┬────────┬──────────┐
/// │ round                           │ rank   │ attempt  │
/// └─────────────────────────────────┴────────┴──────────┘
///   the first two are the ballot, which is the term
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) struct Stamp(pub(crate) u64);

impl Stamp {
    const ATTEMPT_MAX: u64 = 255;

    pub(crate) fn first(round: u64, rank: usize) -> Stamp {
        Stamp(round << 16 | (rank as u64) << 8)
    }

    pub(crate) fn ballot(self) -> u64 {
        self.0 >> 8
    }

    pub(crate) fn round(self) -> u64 {
        self.0 >> 16
    }

    pub(crate) fn attempt(self) -> u64 {
        self.0 & Stamp::ATTEMPT_MAX
    }

    pub(crate) fn rank(self) -> usize {
        (self.0 >> 8 & 0xff) as usize
    }

    /// The last one that a replica may promise that grants no lower ballot than this one's.
    pub(crate) fn below(self) -> Stamp {
        Stamp((self.0 & !Stamp::ATTEMPT_MAX).saturating_sub(1))
    }

    /// The next attempt with the same ballot, if there is one.
    pub(crate) fn again(self) -> Option<Stamp> {
        (self.attempt() < Stamp::ATTEMPT_MAX).then(|| Stamp(self.0 + 1))
    }
}

/// Where the slots of a log are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slots {
    pub(crate) count: u64,
    pub(crate) words: usize,
}

impl Slots {
    /// The place of an entry in any replica's log.
    pub(crate) fn at(&self, index: u64) -> usize {
        SLOTS_AT + (index % self.count) as usize * self.words * 8
    }

    pub(crate) fn remote(&self, log: RemotePtr<u64>, index: u64) -> RemotePtr<u64> {
        log.byte_add(self.at(index) as u64)
    }

    pub(crate) fn words_of<'r>(&self, log: &'r Region, index: u64, count: usize) -> &'r [Word] {
        log.words(self.at(index), count)
    }

    pub(crate) fn bytes_max(&self) -> usize {
        (self.words - HEADER) * 8
    }

    /// Behind the slots, for each rank: the node + 1 that has come back there and reads, so that no slot is used again
    /// before it has. It only grows. Each leader has it from those before it, as the entries.
    pub(crate) fn reads_at(&self, rank: usize) -> usize {
        SLOTS_AT + self.count as usize * self.words * 8 + 8 * rank
    }
}

/// The words that a slot with an entry has.
pub(crate) fn used_words(len: usize) -> usize {
    HEADER + len.div_ceil(8)
}

/// A slot that is copied out of a log: it may mix several writes.
pub(crate) struct Image<'w>(pub(crate) &'w mut [u64]);

impl Image<'_> {
    /// Fills it with an entry; the number of words that are used.
    pub(crate) fn fill(&mut self, index: u64, ballot: u64, origin: u64, entry: &[u8]) -> usize {
        let used = used_words(entry.len());
        let (whole, rest) = entry.as_chunks::<8>();
        for (to, from) in self.0[HEADER..].iter_mut().zip(whole) {
            *to = u64::from_le_bytes(*from);
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.0[used - 1] = u64::from_le_bytes(last);
        }
        self.0[INDEX] = index + 1;
        self.0[BALLOT] = ballot;
        self.0[ORIGIN] = origin;
        self.0[LEN] = entry.len() as u64;
        self.0[CHECK] = check_of(&self.0[..used]);
        self.0[RAISED] = ballot;
        used
    }

    /// Whether it is an entry of this index, and whole. The checksum says so: a leader that died in the middle of a put
    /// may have left a part of it. Such a put was never complete, so no leader has counted it.
    pub(crate) fn is_whole(&self, index: u64) -> bool {
        let len = self.0[LEN];
        self.0[INDEX] == index + 1
            && len <= (self.0.len() - HEADER) as u64 * 8
            && self.0[CHECK] == check_of(&self.0[..used_words(len as usize)])
    }

    pub(crate) fn used(&self) -> usize {
        used_words(self.0[LEN] as usize)
    }

    /// The highest ballot with which the replica has accepted it. `RAISED` alone is left from an earlier entry if a put
    /// was not complete; it is lower then.
    pub(crate) fn ballot(&self) -> u64 {
        self.0[BALLOT].max(self.0[RAISED])
    }

    pub(crate) fn origin(&self) -> u64 {
        self.0[ORIGIN]
    }

    /// Accepted with a higher ballot: one word, so that the entry stays whole meanwhile.
    pub(crate) fn raise(&mut self, ballot: u64) {
        self.0[RAISED] = ballot;
    }

    pub(crate) fn store(&self, words: &[Word]) {
        let used = self.used();
        write_words(&words[..used], &self.0[..used]);
    }

    pub(crate) fn load(&mut self, words: &[Word]) {
        read_words(&words[..self.0.len()], self.0);
    }
}

/// Of all words that are used but `CHECK` and `RAISED`, which changes alone.
fn check_of(words: &[u64]) -> u64 {
    let mut hash = Xxh3::new();
    for word in words[..CHECK].iter().chain(&words[HEADER..]) {
        hash.update(&word.to_le_bytes());
    }
    hash.digest()
}

/// The index of the entry in a slot of this node's own log, if there is one, and its origin and length.
pub(crate) fn header_of(slot: &[Word]) -> (Option<u64>, u64, usize) {
    let index = slot[INDEX].load().checked_sub(1);
    (index, slot[ORIGIN].load(), slot[LEN].load() as usize)
}

/// The bytes of the entry in a slot of this node's own log.
pub(crate) fn read_entry(slot: &[Word], len: usize, into: &mut Vec<u8>) {
    into.clear();
    into.reserve(len.next_multiple_of(8));
    for word in &slot[HEADER..used_words(len)] {
        into.extend_from_slice(&word.load().to_le_bytes());
    }
    into.truncate(len);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_its_ballot_whatever_was_in_the_buffer() {
        let mut words = [u64::MAX; HEADER + 2];
        let mut image = Image(&mut words);
        assert_eq!(image.fill(3, 7, 1, &[5; 9]), HEADER + 2);
        assert!(image.is_whole(3));
        assert_eq!((image.ballot(), image.origin()), (7, 1));
    }
}
