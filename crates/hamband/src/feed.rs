//! The buffers F (§4): for each process, the stream of its irreducible conflict-free calls to all others.
//!
//! Every replica has a copy of every feed, and the source one of its own, from which the NIC sends. That copy is
//! written first, as the paper's backup slot. After the source's death the survivors use theirs instead (`repair`).
//!
//! ```text
//! region `feeds`, for each process `capacity` bytes, used in turn; an entry:
//!   +0  ┌──────────────────┬──────────────────┐
//!       │ number + 1 (32)  │ bytes (32)       │   its number among the entries of this feed, from 0
//!   +8  ├──────────────────┴──────────────────┤
//!       │ hash of the number and of all bytes │   XXH3
//!   +16 ├─────────────────────────────────────┤
//!       │ a message, padded to 16             │
//!       └─────────────────────────────────────┘
//! region `taken` of a process, for each reader: the position up to which it has applied this process's feed
//! ```
//!
//! An entry does not wrap around: one that does not fit in the rest begins at the start. So it is sent by one put to
//! each process, and a reader looks at two places at most. The words of a put may land in any order. The hash says when
//! all of them are there: it takes the place of the paper's canary bit, and cannot be satisfied by an earlier entry at
//! the same place, because it covers the number.
//!
//! *Order.* Entries are numbered, and a reader takes them in this order, whatever the order is in which they land. So
//! any endpoint of the source may send a missing one: its threads and its service thread need no fence between them.
//!
//! *Room.* The source reuses the place of an entry when all live replicas have applied it. A replica reads the entry
//! before it puts its position (`CR → NRW`), and the source reads the position before it rewrites its own copy. So no
//! put of the old entry is still to land anywhere, nor is one still to be read from the source's copy. Each entry is
//! put once to each process, so none lands twice.

use core::cell::RefCell;

use farfield_core::Result;
use farfield_core::toolkit::Object;
use farfield_fabric::{self as fabric, Endpoint, NodeId, Region, RemotePtr, read_words, write_words};
use xxhash_rust::xxh3::xxh3_64_with_seed;
use zerocopy::IntoBytes;

use crate::errors::is_passing;
use crate::watch::Watch;

/// Words of an entry before its message.
const HEADER: usize = 2;
/// Entries begin at multiples of this many bytes.
const ALIGN: usize = 16;

/// The position that a replica reports when it reads no more.
pub(crate) const READS_NO_MORE: u64 = u64::MAX;

/// Bytes of an entry.
pub(crate) fn framed_bytes(message_bytes: usize) -> usize {
    (HEADER * 8 + message_bytes).next_multiple_of(ALIGN)
}

/// The hash of the entry of this number, of which `first` and `message` are all but the hash.
fn hash(number: u64, first: u64, message: &[u64]) -> u64 {
    // Multiplied: `first` contains the number, too, and the two would cancel each other out.
    xxh3_64_with_seed(message.as_bytes(), number.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ first)
}

/// The feed of this process.
pub(crate) struct Outgoing {
    region: Region,
    /// Of this feed in the region, and in those of the others.
    base: usize,
    capacity: usize,
    /// The positions of all readers, by rank.
    taken: Region,
    /// The end of the last entry.
    head: u64,
    entries: u64,
    /// No live reader is before this position.
    lowest: u64,
    readers: Vec<Reader>,
    scratch: Vec<u64>,
}

struct Reader {
    rank: usize,
    node: NodeId,
    feed: RemotePtr<u64>,
    /// The end of the entries that were put there.
    sent: u64,
}

impl Outgoing {
    pub(crate) fn new(
        object: &Object,
        processes: &[NodeId],
        me: usize,
        feeds: &Region,
        taken: &Region,
        capacity: usize,
    ) -> Result<Outgoing> {
        let base = me * capacity;
        let others = processes.iter().enumerate().filter(|(rank, _)| *rank != me);
        let reader = |(rank, node): (usize, &NodeId)| {
            let feed = object.remote::<u64>(*node, "feeds")?.byte_add(base as u64);
            Ok(Reader { rank, node: *node, feed, sent: 0 })
        };
        let readers = others.map(reader).collect::<Result<_>>()?;
        let (region, taken) = (feeds.clone(), taken.clone());
        Ok(Outgoing { region, base, capacity, taken, head: 0, entries: 0, lowest: 0, readers, scratch: Vec::new() })
    }

    /// The number of entries so far.
    pub(crate) fn entries(&self) -> u64 {
        self.entries
    }

    /// Where the next entry begins, if it has this many bytes.
    fn begin(&self, framed: usize) -> u64 {
        let rest = self.capacity - (self.head % self.capacity as u64) as usize;
        if rest < framed { self.head + rest as u64 } else { self.head }
    }

    /// Whether there is room for a message. Dead and departed replicas need no room.
    pub(crate) fn has_room(&mut self, endpoint: &Endpoint, message_bytes: usize) -> bool {
        let framed = framed_bytes(message_bytes);
        let end = self.begin(framed) + framed as u64;
        if end - self.lowest <= self.capacity as u64 {
            return true;
        }
        let live = self.readers.iter().filter(|reader| endpoint.check_alive(reader.node).is_ok());
        let positions = live.map(|reader| self.taken.word(reader.rank * 8).load());
        self.lowest = positions.min().unwrap_or(self.head).min(self.head);
        end - self.lowest <= self.capacity as u64
    }

    /// Watches the words that change when there is more room.
    pub(crate) fn watch_room(&self, watch: &mut Watch) {
        for offset in self.readers.iter().map(|reader| reader.rank * 8) {
            watch.add(&self.taken, offset, self.taken.word(offset).load());
        }
    }

    /// The live replicas that have not applied enough for another message.
    pub(crate) fn slow(&self, endpoint: &Endpoint) -> Vec<NodeId> {
        let is_slow = |reader: &&Reader| {
            let position = self.taken.word(reader.rank * 8).load();
            position < self.head && endpoint.check_alive(reader.node).is_ok()
        };
        self.readers.iter().filter(is_slow).map(|reader| reader.node).collect()
    }

    /// Appends a message to the own copy. There has to be room.
    pub(crate) fn append(&mut self, message: &[u8]) {
        let framed = framed_bytes(message.len());
        let begin = self.begin(framed);
        let words = &mut self.scratch;
        words.clear();
        words.resize(framed / 8, 0);
        words[0] = (self.entries + 1) << 32 | message.len() as u64;
        words[HEADER..].as_mut_bytes()[..message.len()].copy_from_slice(message);
        words[1] = hash(self.entries, words[0], &words[HEADER..]);
        let at = self.base + (begin % self.capacity as u64) as usize;
        write_words(self.region.words(at, words.len()), words);
        self.head = begin + framed as u64;
        self.entries += 1;
    }

    /// Puts to each live replica the entries that it lacks. False if a put was refused, and has to be repeated.
    pub(crate) fn send(&mut self, endpoint: &Endpoint) -> fabric::Result<bool> {
        let mut is_all = true;
        for at in 0..self.readers.len() {
            match self.send_to(endpoint, at) {
                Ok(()) => {}
                Err(error) if error.is_gone() => self.readers[at].sent = self.head,
                // A node that does not answer now is decided about by the members.
                Err(error) if is_passing(&error) => is_all = false,
                Err(error) => return Err(error),
            }
        }
        Ok(is_all)
    }

    fn send_to(&mut self, endpoint: &Endpoint, at: usize) -> fabric::Result<()> {
        let Reader { feed, sent, .. } = &mut self.readers[at];
        while *sent < self.head {
            // Up to the end of the buffer, and the rest from its start. No part is put twice.
            let begin = (*sent % self.capacity as u64) as usize;
            let bytes = (self.head - *sent).min((self.capacity - begin) as u64) as usize;
            let span = self.region.span(self.base + begin, bytes);
            endpoint.put_from_region(feed.byte_add(begin as u64), span).detach()?;
            *sent += bytes as u64;
        }
        Ok(())
    }

    /// Whether a live replica lacks a put.
    pub(crate) fn is_behind(&self) -> bool {
        self.readers.iter().any(|reader| reader.sent < self.head)
    }
}

/// Where the copy of a feed is on this process.
#[derive(Clone)]
pub(crate) struct Place {
    region: Region,
    base: usize,
    capacity: usize,
}

/// The copy of another process's feed.
pub(crate) struct Incoming {
    pub(crate) place: Place,
    /// Of the source, for this replica.
    taken: RemotePtr<u64>,
    /// Before the next entry.
    position: u64,
    /// Where that is in the feed: what a division would say at each look.
    offset: usize,
    /// The number of the next entry.
    next: u64,
    /// The position that the source knows.
    told: u64,
    scratch: RefCell<Vec<u64>>,
}

impl Place {
    fn offset(&self, position: u64) -> usize {
        (position % self.capacity as u64) as usize
    }

    /// Where the entry after one that ends at `position`, which is at this offset, may begin: there, or at the start of
    /// the next round. As positions, with their offsets.
    fn starts(&self, position: u64, offset: usize) -> [(u64, usize); 2] {
        let rest = if offset == 0 { 0 } else { self.capacity - offset };
        [(position, offset), (position + rest as u64, 0)]
    }

    /// Copies the next entry from another replica, after the source's death. `after` is the end and the number of the
    /// one before. Returns whether there was one.
    pub(crate) fn copy_from(
        &self,
        endpoint: &Endpoint,
        theirs: RemotePtr<u64>,
        after: &mut (u64, u64),
    ) -> Result<bool> {
        let (position, number) = *after;
        for (begin, offset) in self.starts(position, self.offset(position)) {
            let room = self.capacity - offset;
            let header = endpoint.get_words::<HEADER>(theirs.byte_add(offset as u64)).wait()?;
            let framed = framed_bytes(header[0] as u32 as usize);
            if header[0] >> 32 != (number + 1) & u64::from(u32::MAX) || framed > room {
                continue;
            }
            let into = endpoint.buf::<u64>(framed / 8)?;
            let words = endpoint.get_into(theirs.byte_add(offset as u64), into).wait()?;
            if entry(&words, number).is_some() {
                // The first word last: it says that the entry is there.
                let own = self.region.words(self.base + offset, framed / 8);
                write_words(&own[1..], &words[1..]);
                own[0].store(words[0]);
                *after = (begin + framed as u64, number + 1);
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Incoming {
    pub(crate) fn new(
        object: &Object,
        source: (usize, NodeId),
        me: usize,
        feeds: &Region,
        capacity: usize,
    ) -> Result<Incoming> {
        let taken = object.remote::<u64>(source.1, "taken")?.at(me);
        Ok(Incoming {
            place: Place { region: feeds.clone(), base: source.0 * capacity, capacity },
            taken,
            position: 0,
            offset: 0,
            next: 0,
            told: 0,
            scratch: RefCell::default(),
        })
    }

    /// The number of entries that were taken.
    pub(crate) fn entries(&self) -> u64 {
        self.next
    }

    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    fn starts(&self) -> [(u64, usize); 2] {
        self.place.starts(self.position, self.offset)
    }

    /// Watches the words that change when the next message lands.
    pub(crate) fn watch(&self, watch: &mut Watch) {
        for (_, offset) in self.starts() {
            let at = self.place.base + offset;
            let first = self.place.region.word(at).load();
            if first >> 32 != (self.next + 1) & u64::from(u32::MAX) {
                watch.add(&self.place.region, at, first);
                continue;
            }
            let framed = framed_bytes(first as u32 as usize).min(self.place.capacity - offset);
            let mut words = vec![0; framed / 8];
            read_words(self.place.region.words(at, words.len()), &mut words);
            watch.add_slot(&self.place.region, at, &words, 0, false);
        }
    }

    /// Whether the next message may have landed: a look at two words.
    pub(crate) fn may_have(&self) -> bool {
        self.starts().into_iter().any(|(_, offset)| self.may_be_at(offset))
    }

    /// The next message, if it has landed, with its end.
    pub(crate) fn look<R>(&self, read: impl FnOnce(&[u8]) -> R) -> Option<(R, u64)> {
        let (begin, offset) = self.starts().into_iter().find(|(_, offset)| self.may_be_at(*offset))?;
        let at = self.place.base + offset;
        let room = self.place.capacity - offset;
        let first = self.place.region.word(at).load();
        let framed = framed_bytes(first as u32 as usize);
        if framed > room {
            return None;
        }
        let mut words = self.scratch.borrow_mut();
        words.resize(framed / 8, 0);
        read_words(self.place.region.words(at, framed / 8), &mut words);
        entry(&words, self.next).map(|message| (read(message), begin + framed as u64))
    }

    /// A look at one word.
    fn may_be_at(&self, offset: usize) -> bool {
        self.place.region.word(self.place.base + offset).load() >> 32 == (self.next + 1) & u64::from(u32::MAX)
    }

    /// The message that `look` has found is applied.
    pub(crate) fn take(&mut self, end: u64) {
        (self.position, self.offset) = (end, self.place.offset(end));
        self.next += 1;
    }

    /// Reports to the source how much was applied, if it is much. The service thread does so, and no other: reports of
    /// two endpoints could arrive in the other order, and the source would wait for room that it has.
    pub(crate) fn acknowledge(&mut self, endpoint: &Endpoint) -> bool {
        if self.told == READS_NO_MORE || self.position - self.told < self.place.capacity as u64 / 4 {
            return true;
        }
        self.tell(endpoint, self.position)
    }

    /// Reports that this replica reads no more, once; false if that was refused.
    pub(crate) fn quit(&mut self, endpoint: &Endpoint) -> bool {
        self.told == READS_NO_MORE || self.tell(endpoint, READS_NO_MORE)
    }

    /// Reports a position; false if that was refused.
    fn tell(&mut self, endpoint: &Endpoint, position: u64) -> bool {
        match endpoint.put_value(self.taken, position).detach() {
            Err(error) if error.is_refused() => false,
            // One that is out of reach is decided about by the members, and reuses nothing until it is back.
            Err(error) if error.is_unreachable() && !error.is_gone() => false,
            _ => {
                self.told = position;
                true
            }
        }
    }
}

/// The message of an entry, if all of it is there and it has this number.
fn entry(words: &[u64], number: u64) -> Option<&[u8]> {
    let (header, message) = words.split_at_checked(HEADER)?;
    let bytes = message.as_bytes().get(..header[0] as u32 as usize)?;
    let is_it = header[0] >> 32 == (number + 1) & u64::from(u32::MAX) && header[1] == hash(number, header[0], message);
    is_it.then_some(bytes)
}

#[cfg(test)]
mod tests {
    use farfield_core::local_session;
    use farfield_fabric::fault::{Faults, inject};
    use farfield_fabric::{EndpointOptions, GroupKey};

    use super::*;

    /// The source would wait for a replica that has closed the object.
    #[test]
    fn a_report_that_is_refused_is_repeated() {
        let nodes = local_session(2).expect("a session");
        let [region, taken] = [0, 1].map(|node: usize| nodes[node].alloc(GroupKey::DATA, 64).expect("memory"));
        let mut incoming = Incoming {
            place: Place { region, base: 0, capacity: 64 },
            taken: taken.remote(0),
            position: 0,
            offset: 0,
            next: 0,
            told: 0,
            scratch: RefCell::default(),
        };
        let faults = Faults::default();
        let refusing = inject(nodes[0].transport().clone(), faults.clone());
        let ep = Endpoint::open(refusing, EndpointOptions::default()).expect("an endpoint");
        faults.fail_after(0);
        assert!(!incoming.quit(&ep), "the source does not know it");
        assert!(incoming.quit(&ep));
        ep.flush();
        assert_eq!(taken.word(0).load(), READS_NO_MORE);
    }

    /// A feed of equal entries has the same message at the same place one round later, and only the number tells them
    /// apart.
    #[test]
    fn an_entry_is_not_whole_with_the_rest_of_an_earlier_one() {
        let image = |number: u64| {
            let (first, message) = ((number + 1) << 32 | 16, [7, 8]);
            [first, hash(number, first, &message), message[0], message[1]]
        };
        for (earlier, later) in [(0, 2), (5, 5 + 1024), (1023, 2047), (3, 3 + (1 << 20))] {
            let (old, new) = (image(earlier), image(later));
            assert!(entry(&new, later).is_some() && entry(&old, later).is_none());
            // Its first word has landed, and the others have not.
            let torn = [new[0], old[1], old[2], old[3]];
            assert!(entry(&torn, later).is_none(), "entry {later} with the words of entry {earlier}");
        }
    }
}
