//! Which blocks and slots no reader can need any more.

use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::task::Poll;
use core::time::Duration;

use farfield_core::{Endpoint, MemberStatus, Result};
use farfield_fabric::{self as fabric, BufOp, Instant, NodeId, RemotePtr, memory_fence};

use super::{Arena, Replaced, Watched, WatchedNode};
use crate::seats::{Announced, SEAT_WORDS};

/// How long a caller with a shorter timeout waits for the seats of other nodes: a service thread has other work to do,
/// such as to say that its node lives. If one has not answered, it does not ask again for a while.
const PATIENCE: Duration = Duration::from_millis(1);

/// The seats of a node that are being read: what is known of them, where they lie, and the get, or why there is none.
type Asked<'w, 'e> = (&'w mut WatchedNode, RemotePtr<u64>, fabric::Result<BufOp<'e, u64>>);

/// What has come of these by then.
fn answers_of(ep: &Endpoint, gets: &mut [Asked<'_, '_>], until: Instant) -> Vec<Option<fabric::Result<Vec<u64>>>> {
    let mut answers: Vec<_> = gets.iter().map(|_| None).collect();
    let all = poll_fn(|cx| {
        let mut is_done = true;
        for ((.., get), answer) in gets.iter_mut().zip(&mut answers).filter(|asked| asked.1.is_none()) {
            *answer = match get {
                Ok(get) => match Pin::new(get).poll(cx) {
                    Poll::Ready(words) => Some(words.map(|words| words.to_vec())),
                    Poll::Pending => None,
                },
                Err(error) => Some(Err(error.clone())),
            };
            is_done &= answer.is_some();
        }
        if is_done { Poll::Ready(()) } else { Poll::Pending }
    });
    let _ = ep.block_on(ep.within(until, all));
    answers
}

impl Arena {
    /// Frees what no reader can need any more. It takes as long as the nodes with readers need to answer, or to be
    /// evicted; where the endpoint's timeout is shorter than [`PATIENCE`], that at most.
    pub(super) fn collect(&self, ep: &Endpoint) -> Result<()> {
        if ep.timeout() < PATIENCE && ep.now().ns < self.no_answer_until.load() {
            return Ok(());
        }
        if self.collects.compare_exchange(0, 1).is_err() {
            let is_over = || (self.collects.load() == 0).then_some(());
            let _ = ep.block_on(ep.wait_until(ep.deadline(), is_over));
            return Ok(());
        }
        let _collecting = Collecting(self);
        let until = self.needed_from(ep)?;
        let mut pool = self.pool.lock();
        let pool = &mut *pool;
        let mut tombstones = Vec::new();
        // In the order of the tickets, but for neighbours.
        while let Some((version, what)) = pool.replaced.front().copied()
            && version <= until
        {
            pool.replaced.pop_front();
            match what {
                Replaced::Block(block) => pool.blocks.push(block),
                Replaced::Slot(slot) => {
                    tombstones.extend(self.active(slot).map(|tombstone| Replaced::Block(tombstone.block)));
                    self.unuse_slot(slot);
                    pool.slots.push(slot);
                }
            }
        }
        if !tombstones.is_empty() {
            // Readers that remember such a slot may still come to its tombstone, but not those that have read a
            // `stable` of the next ticket or a later one: the thread that takes that ticket does it when the slots name
            // nothing (`CW → MF → CR`, and `CAS` after that).
            memory_fence();
            pool.buried = self.tickets.load() + 1;
            pool.replaced.extend(tombstones.into_iter().map(|tombstone| (pool.buried, tombstone)));
        }
        Ok(())
    }

    /// Whether no read of a node can be under way any more.
    fn is_gone(&self, node: NodeId) -> bool {
        matches!(self.node.status_of(node), Some(MemberStatus::Departed | MemberStatus::Evicted))
    }

    /// Reads the seats of a node by an endpoint of its own: that of the caller may have lost its connection for good.
    fn seats_again(&self, spare: &mut Option<Endpoint>, at: RemotePtr<u64>, words: usize) -> Option<Vec<u64>> {
        if spare.is_none() {
            *spare = self.node.background_endpoint().ok();
        }
        let ep = spare.as_ref()?;
        let read = ep.buf::<u64>(words).and_then(|into| ep.get_into(at, into).wait()).map(|words| words.to_vec());
        match read {
            Ok(words) => Some(words),
            Err(_) => {
                *spare = None;
                None
            }
        }
    }

    /// The version from which on readers need the replaced blocks.
    fn needed_from(&self, ep: &Endpoint) -> Result<u64> {
        let mut watching = Watching::begin(self);
        // It is in memory, since atomics change it. What is read next is read after it (`CR → CR`, `CR → NRR`): a
        // reader that has not announced itself by then finds it, or a later one.
        let stable = self.stable_now().current()?;
        let mut from = stable;
        let (seats, lease) = (self.own.count(), self.own.lease());
        let mut see = |of: &mut Option<Watched>, announced: Announced, asked: Instant, answered: Instant| {
            let Some(version) = announced.version() else {
                *of = None;
                return;
            };
            match *of {
                Some((same, since)) if same == announced && !announced.is_firm() => {
                    if asked.since(since) >= lease {
                        return; // it has stopped, and will notice that
                    }
                }
                _ => *of = Some((announced, answered)),
            }
            from = from.min(version);
        };
        let asked = ep.now();
        let mut gets = Vec::new();
        for (rank, of) in watching.nodes.iter_mut().enumerate() {
            let pointer = if rank == self.shape.ranks {
                self.own.pointer().packed()
            } else {
                self.region.word(self.shape.seats_at(rank)).load()
            };
            if of.pointer != pointer {
                *of = WatchedNode { pointer, seats: vec![None; seats] };
            }
            let at = RemotePtr::<u64>::from_packed(pointer);
            if rank == self.shape.ranks {
                self.own.each().zip(&mut of.seats).for_each(|(announced, of)| see(of, announced, asked, ep.now()));
            } else if pointer != 0 && !self.is_gone(at.node()) {
                let get = ep.buf::<u64>(seats * SEAT_WORDS).map(|into| ep.get_into(at, into));
                gets.push((of, at, get));
            }
        }
        let is_patient = ep.timeout() >= PATIENCE;
        let answers = answers_of(ep, &mut gets, if is_patient { Instant::NEVER } else { asked + PATIENCE });
        let (mut is_known, mut spare) = (true, self.spare.lock().take());
        for ((of, at, _), answer) in gets.into_iter().zip(answers) {
            let words = match answer {
                Some(Ok(words)) => Some(words),
                None => None,
                Some(Err(error)) if matches!(error.kind(), fabric::ErrorKind::Fenced) => return Err(error.into()),
                // It has closed the object, or has left.
                Some(Err(error))
                    if matches!(error.kind(), fabric::ErrorKind::Freed { .. } | fabric::ErrorKind::PeerLeft { .. }) =>
                {
                    continue;
                }
                Some(Err(_)) if self.is_gone(at.node()) => continue,
                Some(Err(_)) if is_patient => self.seats_again(&mut spare, at, seats * SEAT_WORDS),
                Some(Err(_)) => None,
            };
            match words {
                Some(words) => {
                    let each = words.chunks(SEAT_WORDS).map(Announced::of).zip(&mut of.seats);
                    each.for_each(|(announced, of)| see(of, announced, asked, ep.now()));
                }
                // It may have died, or only this node does not reach it. What it announces is not known, and no lease
                // ends: the members decide about it.
                None => is_known = false,
            }
        }
        *self.spare.lock() = spare;
        if !is_known && !is_patient {
            self.no_answer_until.store((asked + PATIENCE * 16).ns);
        }
        Ok(if is_known { from } else { 0 })
    }
}

/// The end of a collection.
struct Collecting<'a>(&'a Arena);

impl Drop for Collecting<'_> {
    fn drop(&mut self) {
        self.0.collects.store(0);
    }
}

/// What a collection remembers, which the next one finds again however this one ends, also by a panic.
struct Watching<'a> {
    arena: &'a Arena,
    nodes: Vec<WatchedNode>,
}

impl Watching<'_> {
    fn begin(arena: &Arena) -> Watching<'_> {
        Watching { arena, nodes: core::mem::take(&mut *arena.watched.lock()) }
    }
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        *self.arena.watched.lock() = core::mem::take(&mut self.nodes);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use farfield_core::Node;

    use super::*;
    use crate::{ObjectOptions, RomeObject};

    fn with_arena(test: impl FnOnce(&Arena)) {
        let node = Node::builder().start().expect("a node");
        let options = ObjectOptions::default();
        let object = RomeObject::open(&node, "object", node.id(), options).expect("it is the owner");
        test(object.opened.arena().expect("it is the owner"));
    }

    #[test]
    fn a_panic_in_a_collection_forgets_no_reader() {
        with_arena(|arena| {
            let before = arena.watched.lock().len();
            let collect = || {
                let watching = Watching::begin(arena);
                assert_eq!(watching.nodes.len(), 0, "seats are of a rank at least");
            };
            assert!(catch_unwind(AssertUnwindSafe(collect)).is_err());
            assert_eq!((arena.watched.lock().len(), before), (2, 2));
        });
    }
}
