//! The state for a returning node, in pieces.

use core::time::Duration;

use farfield_fabric::Instant;

use super::queue::{BACK, Command, Queue, STATE};
use super::{Local, Shared};

/// The leader orders the state for a node again if that has no vote so long after the last piece.
const STATE_AGAIN: Duration = Duration::from_millis(100);

/// The part of the state that a node has which has come back.
#[derive(Default)]
pub(super) struct Coming {
    pieces: Vec<[u64; 2]>,
    /// The commands that were ordered after the first piece.
    since: Vec<Command>,
}

/// The node that gets the next piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Due {
    None,
    /// All have got the state. One of them gets it again then.
    At(Instant),
    /// The rank, and the node + 1.
    Now(usize, u64),
}

/// Of those that lack the state, the rank and the node + 1 of each, the one that gets the next piece: first those that
/// have not got it at all, and then the one that has waited longest. By rank: the node + 1 that has got it, and when.
pub(crate) fn first_due(
    lacking: impl Iterator<Item = (usize, u64)>,
    brought: &[Option<(u64, Instant)>],
    now: Instant,
) -> Due {
    let again = |(rank, node): &(usize, u64)| {
        let (_, at) = brought[*rank].filter(|(of, _)| of == node)?;
        Some(at + STATE_AGAIN)
    };
    let first = lacking.min_by_key(|lacks| again(lacks).map(|at| at.ns));
    match first.map(|lacks| (lacks, again(&lacks))) {
        None => Due::None,
        Some((_, Some(at))) if now < at => Due::At(at),
        Some(((rank, node), _)) => Due::Now(rank, node),
    }
}

impl Shared {
    /// As the leader: the next piece of the state for a node that has come back and lacks it, and when to look again.
    pub(super) fn next_piece(&self, local: &Local, now: Instant) -> (Option<Command>, Option<Instant>) {
        match first_due(self.lack_state(&local.queue), &local.brought, now) {
            Due::None => (None, None),
            Due::At(again) => (None, Some(again)),
            Due::Now(rank, node) => (Some(local.queue.next_piece(rank, node)), None),
        }
    }

    /// Nodes that have come back, are followers of this leader, and have no vote, since they lack the state: the rank,
    /// and the node + 1.
    fn lack_state(&self, queue: &Queue) -> impl Iterator<Item = (usize, u64)> {
        let core = self.core();
        let (confirmed, returned) = (core.confirmed.load(), core.returned.load());
        let lacks = move |rank: &usize| {
            let is_follower = *rank != self.me && confirmed >> rank & returned >> rank & 1 != 0;
            is_follower && !core.is_gone(*rank) && !core.has_vote(*rank)
        };
        let seated = |rank: usize| Some((rank, u64::from(core.node_at(rank)?.0) + 1));
        let lacking = (0..core.ranks()).filter(lacks).filter_map(seated);
        // The claims of the node before it end first.
        lacking.filter(|(rank, node)| queue.nodes[*rank] == *node || queue.gone[*rank] || queue.nodes[*rank] == 0)
    }
}

impl Local {
    /// On a node that has come back: takes a piece of the state, or a command between them. Whether it has all now, and
    /// this entry is the one behind them.
    pub(super) fn comes(&mut self, command: &Command, me: usize, now: Instant) -> bool {
        let Some(Coming { pieces, since }) = &mut self.coming else { return true };
        match command.kind {
            STATE if command.number == 0 => (*pieces, *since) = (vec![command.args], Vec::new()),
            STATE if command.number == pieces.len() as u64 => pieces.push(command.args),
            BACK if !pieces.is_empty()
                && command.number == pieces.len() as u64
                && (command.rank, command.args[0]) == (me, self.queue.nodes[me]) =>
            {
                if let Some(mut queue) = Queue::of_pieces(pieces, self.queue.gone.len(), self.queue.places) {
                    since.iter().for_each(|command| queue.apply(command));
                    (self.queue, self.coming, self.seen) = (queue, None, now);
                    return true;
                }
            }
            // It has missed the first, or they are another node's.
            STATE | BACK => self.coming = Some(Coming::default()),
            _ if pieces.is_empty() => {}
            _ => since.push(*command),
        }
        false
    }
}
