//! The memory nodes of an object, as a node sees them: one that has died may be replaced by another one
//! (`replacement`).

use std::sync::Arc;

use farfield_fabric::{GroupKey, LocalMutex, NodeId, RemotePtr, Word};

use crate::client::Core;
use crate::layout::REGION_COUNT;
use crate::replicas::{Order, Replicas};

/// What a memory node is for the calls of clients.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Standing {
    /// It has been a memory node from the beginning.
    First,
    /// It takes the place of one that has died, and is not written yet: as one that has died itself.
    Comes,
    /// It gets a copy of everything. No call counts on it; what has to be done on all memory nodes is done there, too.
    Joins,
    /// It has replaced another one.
    Replaces,
}

impl Standing {
    const ALL: [Standing; 4] = [Standing::First, Standing::Comes, Standing::Joins, Standing::Replaces];

    fn counts(self) -> bool {
        matches!(self, Standing::First | Standing::Replaces)
    }
}

/// The place of a memory node, and where its regions begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seat {
    pub(crate) standing: Standing,
    pub(crate) regions: [RemotePtr<u64>; REGION_COUNT],
}

/// Of a pointer to a table: the standing is in its place.
const STANDINGS: u64 = 3;

impl Seat {
    pub(crate) fn node(&self) -> NodeId {
        self.regions[0].node()
    }

    /// Whether it is that of a memory node that had gone before this node came: operations to it fail.
    pub(crate) fn has_gone_before(&self) -> bool {
        self.regions[0].offset() == 0
    }

    pub(crate) fn gone(node: NodeId) -> Seat {
        Seat { standing: Standing::First, regions: [RemotePtr::new(node, GroupKey::DATA, 0); REGION_COUNT] }
    }

    /// The words in a table: first the address of its own one, with its standing.
    pub(crate) fn words(&self) -> [u64; REGION_COUNT] {
        let mut words = self.regions.map(RemotePtr::packed);
        debug_assert!(words[0] & STANDINGS == 0, "regions are aligned");
        words[0] |= self.standing as u64;
        words
    }

    pub(crate) fn from_words(mut words: [u64; REGION_COUNT]) -> Seat {
        let standing = Standing::ALL[(words[0] & STANDINGS) as usize];
        words[0] &= !STANDINGS;
        Seat { standing, regions: words.map(RemotePtr::from_packed) }
    }
}

/// The seats of all memory nodes. The service thread changes them.
pub(crate) struct View {
    changes: Word,
    seats: LocalMutex<Vec<Seat>>,
    /// The words of each region that a shard has.
    words_of_each: [usize; REGION_COUNT],
}

impl View {
    pub(crate) fn new(seats: Vec<Seat>, words_of_each: [usize; REGION_COUNT]) -> Arc<View> {
        Arc::new(View { changes: Word::new(1), seats: LocalMutex::new(seats), words_of_each })
    }

    pub(crate) fn changes(&self) -> u64 {
        self.changes.load()
    }

    pub(crate) fn seats(&self) -> Vec<Seat> {
        self.seats.lock().clone()
    }

    pub(crate) fn set(&self, replica: usize, seat: Seat) {
        let mut seats = self.seats.lock();
        if seats[replica] != seat {
            seats[replica] = seat;
            self.changes.fetch_add(1);
        }
    }

    /// The memory nodes, for a shard.
    pub(crate) fn replicas(&self, shard: usize) -> Vec<Replica> {
        self.seats.lock().iter().map(|seat| self.replica(seat, shard)).collect()
    }

    pub(crate) fn replica(&self, seat: &Seat, shard: usize) -> Replica {
        let mut parts = seat.regions;
        for (part, words) in parts.iter_mut().zip(self.words_of_each) {
            *part = part.at(shard * words);
        }
        let [clients, registers, buffers, locks, cells, records] = parts;
        let (node, counts, joins) = (seat.node(), seat.standing.counts(), seat.standing == Standing::Joins);
        Replica { node, counts, joins, clients, registers, buffers, locks, cells, records }
    }
}

/// The memory of a shard on one memory node.
#[derive(Clone, Copy)]
pub(crate) struct Replica {
    pub(crate) node: NodeId,
    pub(crate) counts: bool,
    pub(crate) joins: bool,
    /// The table of nodes with clients (`census`).
    pub(crate) clients: RemotePtr<u64>,
    pub(crate) registers: RemotePtr<u64>,
    pub(crate) buffers: RemotePtr<u64>,
    pub(crate) locks: RemotePtr<u64>,
    /// Only a store has these.
    pub(crate) cells: RemotePtr<u64>,
    pub(crate) records: RemotePtr<u64>,
}

/// The registers or cells that a memory node which joins gets just now, in the word of its table that says so. It has
/// those before them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Progress {
    pub(crate) from: usize,
    pub(crate) to: usize,
}

impl Progress {
    pub(crate) fn word(self) -> u64 {
        (self.from as u64) << 32 | self.to as u64
    }

    pub(crate) fn from_word(word: u64) -> Progress {
        Progress { from: (word >> 32) as usize, to: word as u32 as usize }
    }
}

impl Core<'_> {
    /// Before memory nodes are asked.
    #[inline]
    pub(crate) fn keep_view(&self) {
        if self.shared.view.changes() != self.seen_view.get() {
            self.look_at_view();
        }
    }

    /// Takes over the view of this node.
    #[cold]
    pub(crate) fn look_at_view(&self) {
        let view = &self.shared.view;
        self.seen_view.set(view.changes());
        let replicas = view.replicas(self.shared.shard);
        let (mut joining, mut out) = (Replicas::default(), Replicas::default());
        for (number, replica) in replicas.iter().enumerate() {
            if replica.joins {
                joining.add(number);
            }
            if !replica.counts {
                out.add(number);
            }
        }
        self.joining.set(joining);
        self.out.set(out);
        *self.replicas.borrow_mut() = replicas;
    }

    /// All memory nodes that have a register. None if one of those that join gets it just now, or does not answer: then
    /// nothing may be done that has to be done on all of them. In a section, which ends after that.
    pub(crate) async fn holders_of(&self, register: usize) -> Option<Order> {
        self.holders(register, register).await
    }

    /// The same for a cell.
    pub(crate) async fn holders_of_cell(&self, cell: usize) -> Option<Order> {
        self.holders(self.shared.layout.registers + cell, cell).await
    }

    async fn holders(&self, unit: usize, at: usize) -> Option<Order> {
        let live = self.live(at);
        if self.joining.get() == Replicas::default() {
            return Some(live);
        }
        let mut holders: Vec<usize> = live.iter().collect();
        for replica in self.joining.get().iter().filter(|replica| self.is_live(replica)) {
            let progress = self.replica(replica).clients.at(self.asks().table.progress());
            let Progress { from, to } = Progress::from_word(self.endpoint.get(progress).await.ok()?);
            match unit {
                unit if unit < from => holders.push(replica),
                unit if unit < to => return None,
                _ => {}
            }
        }
        Some(holders.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_is_read_as_it_was_written() {
        for standing in Standing::ALL {
            let regions = [8, 64, 72, 0, 128, 1 << 30].map(|at| RemotePtr::new(NodeId(9), GroupKey::DATA, at));
            let seat = Seat { standing, regions };
            assert_eq!(Seat::from_words(seat.words()), seat);
            assert_eq!(seat.node(), NodeId(9));
        }
        let progress = Progress { from: 7, to: 1 << 20 };
        assert_eq!(Progress::from_word(progress.word()), progress);
    }
}
