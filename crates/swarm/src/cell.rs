//! A cell of the index: a word on each memory node, which points to a record. The memory nodes agree on one record
//! after the other (`agreement`).
//!
//! ```text
//! the word of a cell
//! 63  62                       23 22         16 15           0
//! ┌───┬──────────────────────────┬────────────┬──────────────┐
//! │ D │ promise (40)             │ writer (7) │ record (16)  │   record 0: the cell was never changed
//! └───┴──────────────────────────┴────────────┴──────────────┘
//! a record (17 words), in a buffer of its writer and, when it is decided, beside the word
//!   ┌──────┬────────┬────────────────┬──────────────┬─────────┬───────┬───────────────────────┐
//!   │ hash │ ballot │ ballot of base │ from, to (2) │ version │ limit │ entries of the base … │
//!   └──────┴────────┴────────────────┴──────────────┴─────────┴───────┴───────────────────────┘
//! an entry
//! 63                          25 24             9 8        0
//! ┌─────────────────────────────┬────────────────┬──────────┐   kind: 0 none, 1 to 252 of a key (by its hash), 253 free,
//! │ instance (39)               │ register (16)  │ kind (9) │         from 256 held and from 384 taken, by a client
//! └─────────────────────────────┴────────────────┴──────────┘
//! ```
//!
//! A record is a state of the cell, the *base*, with one change to it: the entry `from` becomes `to`. D is set when it
//! is known that the record was chosen. If the change maps a key to a register, `version` is the value that was written
//! with it. If `from` was that of a key, `limit` is the last version of its register that counts, or the seal
//! (`moving`).

use crate::version::{Format, INSTANCE_BITS, Location, Version, hash_of};

/// Entries of a cell. A cell has one key on average; more than these have one in thirty million.
pub(crate) const ENTRIES: usize = 10;
pub(crate) const RECORD_WORDS: usize = 7 + ENTRIES;
/// The word, and the record in place.
pub(crate) const CELL_WORDS: usize = 1 + RECORD_WORDS;

const DECIDED: u64 = 1 << 63;
const PROMISE_SHIFT: u32 = 23;
/// The last ballot that fits.
pub(crate) const BALLOT_MAX: u64 = (1 << 40) - 1;
/// Proposers that a ballot can tell apart. The first one is that of fast ballots, which all clients use.
const CLASSES: u64 = 128;

/// The word of a cell on one memory node.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct CellWord(pub(crate) u64);

impl CellWord {
    /// The word of a record that was just accepted.
    pub(crate) fn accepted(ballot: u64, writer: usize, record: u16) -> CellWord {
        CellWord(ballot << PROMISE_SHIFT | (writer as u64) << 16 | u64::from(record))
    }

    /// The same record, with the promise to accept no lower ballot.
    pub(crate) fn promising(self, ballot: u64) -> CellWord {
        CellWord(self.0 & (DECIDED | ((1 << PROMISE_SHIFT) - 1)) | ballot << PROMISE_SHIFT)
    }

    pub(crate) fn decided(self) -> CellWord {
        CellWord(self.0 | DECIDED)
    }

    pub(crate) fn is_decided(self) -> bool {
        self.0 & DECIDED != 0
    }

    /// The lowest ballot that this memory node accepts.
    pub(crate) fn promise(self) -> u64 {
        (self.0 & !DECIDED) >> PROMISE_SHIFT
    }

    pub(crate) fn writer(self) -> usize {
        (self.0 >> 16) as usize % 128
    }

    pub(crate) fn record(self) -> u16 {
        self.0 as u16
    }

    /// Where its record is: the same for two words of one record. 0 if there is none.
    pub(crate) fn place(self) -> u64 {
        self.0 & ((1 << PROMISE_SHIFT) - 1)
    }
}

/// The next ballot of a writer after another one, or the next fast one.
pub(crate) fn ballot_after(ballot: u64, writer: Option<usize>) -> u64 {
    (ballot / CLASSES + 1) * CLASSES + writer.map_or(0, |writer| writer as u64 + 1)
}

/// Whether any client may have proposed with this ballot, and not only one.
pub(crate) fn is_fast(ballot: u64) -> bool {
    ballot.is_multiple_of(CLASSES)
}

/// An entry of a cell.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Entry(pub(crate) u64);

/// Registers of a store.
pub(crate) const REGISTERS_MAX: usize = 1 << 16;

const KIND_BITS: u32 = 9;
const INSTANCE_SHIFT: u32 = KIND_BITS + 16;
/// Kinds of entries.
const KINDS: u64 = 1 << KIND_BITS;
/// The kinds of keys are from 1 to this one.
const TAGS: u64 = 252;
const FREE: u64 = TAGS + 1;
const HELD: u64 = 256;
const TAKEN: u64 = 384;

impl Entry {
    pub(crate) const NONE: Entry = Entry(0);

    fn new(at: Location, kind: u64) -> Entry {
        debug_assert!(at.instance >> INSTANCE_BITS == 0 && at.register < REGISTERS_MAX);
        Entry(at.instance << INSTANCE_SHIFT | (at.register as u64) << KIND_BITS | kind)
    }

    fn kind(self) -> u64 {
        self.0 % KINDS
    }

    /// A key with this hash has this register.
    pub(crate) fn mapped(at: Location, hash: u64) -> Entry {
        Entry::new(at, tag(hash))
    }

    /// The same key has another register.
    pub(crate) fn moved_to(self, at: Location) -> Entry {
        Entry::new(at, self.kind())
    }

    /// Any client may take this register.
    pub(crate) fn free(at: Location) -> Entry {
        Entry::new(at, FREE)
    }

    /// This client has the register, after its key was deleted; or the group of registers.
    pub(crate) fn held(at: Location, owner: usize) -> Entry {
        Entry::new(at, HELD + owner as u64)
    }

    /// This client has the register, which was free.
    pub(crate) fn taken(at: Location, owner: usize) -> Entry {
        Entry::new(at, TAKEN + owner as u64)
    }

    pub(crate) fn at(self) -> Location {
        Location { register: (self.0 >> KIND_BITS) as usize % REGISTERS_MAX, instance: self.0 >> INSTANCE_SHIFT }
    }

    pub(crate) fn is_free(self) -> bool {
        self.kind() == FREE
    }

    pub(crate) fn is_mapped(self) -> bool {
        (1..=TAGS).contains(&self.kind())
    }

    /// How often its register has come to the client that has it before, if it came to no other: first as a free one,
    /// then as one of a deleted key, in each instance.
    pub(crate) fn coming(self) -> u64 {
        self.at().instance << 1 | u64::from(self.is_held())
    }

    pub(crate) fn is_held(self) -> bool {
        (HELD..TAKEN).contains(&self.kind())
    }

    /// Whether it may be that of a key with this hash.
    pub(crate) fn may_be(self, hash: u64) -> bool {
        self.kind() == tag(hash)
    }
}

/// From 1 to 252.
fn tag(hash: u64) -> u64 {
    (hash >> 56) % TAGS + 1
}

/// All entries of a cell.
pub(crate) type Entries = [Entry; ENTRIES];

/// The entry `from` becomes `to`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Change {
    pub(crate) from: Entry,
    pub(crate) to: Entry,
    /// The value that was written to the register of `to`, or 0.
    pub(crate) version: Version,
    /// The last version of the register of `from` that counts, or its seal. 0 if that had no key.
    pub(crate) limit: Version,
}

impl Change {
    pub(crate) const NONE: Change =
        Change { from: Entry::NONE, to: Entry::NONE, version: Version::NONE, limit: Version::NONE };

    /// Without a value.
    pub(crate) fn new(from: Entry, to: Entry) -> Change {
        Change { from, to, ..Change::NONE }
    }
}

/// A state of a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    pub(crate) ballot: u64,
    /// The ballot of the base.
    pub(crate) base: u64,
    pub(crate) change: Change,
    /// Before the change.
    pub(crate) entries: Entries,
}

impl Record {
    /// That of a cell that was never used.
    pub(crate) const VIRGIN: Record =
        Record { ballot: 0, base: 0, change: Change::NONE, entries: [Entry::NONE; ENTRIES] };

    /// The entries after the change.
    pub(crate) fn state(&self) -> Entries {
        let mut entries = self.entries;
        let Change { from, to, .. } = self.change;
        if let Some(entry) = entries.iter_mut().find(|entry| **entry == from)
            && from != to
        {
            *entry = to;
        }
        entries
    }

    /// The state that this one was made of.
    pub(crate) fn base(&self) -> Record {
        Record { ballot: self.base, base: self.base, change: Change::NONE, entries: self.entries }
    }

    /// The words of a record of a cell, for its place among the records.
    pub(crate) fn encode(&self, cell: usize, place: u64, words: &mut [u64]) {
        let Change { from, to, version, limit } = self.change;
        words[1..7].copy_from_slice(&[self.ballot, self.base, from.0, to.0, version.0, limit.0]);
        for (word, entry) in words[7..].iter_mut().zip(self.entries) {
            *word = entry.0;
        }
        words[0] = hash(cell, place, &words[1..]);
    }

    /// None if the words are not those of a record at this place.
    pub(crate) fn decode(cell: usize, place: u64, words: &[u64]) -> Option<Record> {
        if hash(cell, place, &words[1..]) != words[0] {
            return None;
        }
        let mut entries = [Entry::NONE; ENTRIES];
        for (entry, word) in entries.iter_mut().zip(&words[7..]) {
            *entry = Entry(*word);
        }
        let (from, to) = (Entry(words[3]), Entry(words[4]));
        let change =
            Change { from, to, version: Format::STORE.version(words[5]), limit: Format::STORE.version(words[6]) };
        Some(Record { ballot: words[1], base: words[2], change, entries })
    }
}

fn hash(cell: usize, place: u64, words: &[u64]) -> u64 {
    hash_of((cell as u64) << PROMISE_SHIFT | place, words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_keeps_its_record_under_any_promise() {
        let word = CellWord::accepted(BALLOT_MAX, 126, 65_535);
        assert_eq!((word.promise(), word.writer(), word.record(), word.is_decided()), (BALLOT_MAX, 126, 65_535, false));
        let later = CellWord::accepted(256, 3, 9).decided().promising(BALLOT_MAX);
        assert_eq!((later.promise(), later.writer(), later.record(), later.is_decided()), (BALLOT_MAX, 3, 9, true));
        assert_eq!(later.place(), CellWord::accepted(7, 3, 9).place());
    }

    #[test]
    fn ballots_rise_and_are_those_of_one_writer() {
        let fast = ballot_after(0, None);
        let own = ballot_after(fast, Some(0));
        assert!(is_fast(fast) && !is_fast(own) && fast < own && own < ballot_after(own, None));
        assert_ne!(own, ballot_after(fast, Some(126)));
    }

    #[test]
    fn entries_are_of_one_kind() {
        let at = Location { register: 65_535, instance: (1 << INSTANCE_BITS) - 1 };
        let mapped = (0..=255).map(|tag| Entry::mapped(at, tag << 56));
        for entry in [Entry::free(at), Entry::held(at, 126), Entry::taken(at, 126)].into_iter().chain(mapped) {
            assert_eq!(entry.at(), at);
            let kinds = [entry.is_free(), entry.is_held(), entry == Entry::taken(at, 126), entry.is_mapped()];
            assert_eq!(kinds.iter().filter(|is| **is).count(), 1);
        }
        assert!(Entry::mapped(at, 77).may_be(77) && !Entry::free(at).may_be(0));
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_only_at_its_place() {
        let at = |register| Location { register, instance: 3 };
        let mut record = Record { ballot: 128, base: 5, ..Record::VIRGIN };
        record.entries[1] = Entry::mapped(at(4), 9);
        record.change = Change {
            from: record.entries[1],
            to: Entry::held(at(4), 2),
            version: Format::STORE.version(77),
            limit: Format::STORE.version(78),
        };
        let mut words = [0; RECORD_WORDS];
        record.encode(6, 8, &mut words);
        assert_eq!(Record::decode(6, 8, &words), Some(record));
        assert_eq!(Record::decode(6, 9, &words), None);
        assert_eq!(Record::decode(7, 8, &words), None);
        assert_eq!(record.state()[1], Entry::held(at(4), 2));
        // Without `from`, the first free place is taken.
        let added = Record { change: Change::new(Entry::NONE, Entry::free(at(1))), ..record };
        assert_eq!((added.state()[0], added.state()[1]), (Entry::free(at(1)), record.entries[1]));
        assert_eq!(Record { change: Change::NONE, ..record }.state(), record.entries);
    }
}
