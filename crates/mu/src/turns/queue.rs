//! The queue of claims, the commands that change it, and its pieces for a returning node.

use std::collections::VecDeque;

use crate::commands::CommandNumbers;

pub(super) const ENTRY_WORDS: usize = 4;

pub(super) const CLAIM: u64 = 1;
pub(super) const RELEASE: u64 = 2;
pub(super) const RENEW: u64 = 3;
pub(super) const GONE: u64 = 4;
pub(super) const EXPIRE: u64 = 5;
pub(super) const STATE: u64 = 6;
pub(super) const BACK: u64 = 7;

/// Numbers of commands that a node has for itself, beside those of nodes before and after it at the same rank.
pub(super) const NUMBERS: u64 = 1 << 40;

/// A command of a node, or of the leader about a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Command {
    pub(super) kind: u64,
    pub(super) rank: usize,
    pub(super) number: u64,
    pub(super) args: [u64; 2],
}

impl Command {
    pub(super) fn bytes(self) -> [u8; 8 * ENTRY_WORDS] {
        let mut bytes = [0; 8 * ENTRY_WORDS];
        let words = [self.kind << 32 | self.rank as u64, self.number, self.args[0], self.args[1]];
        bytes.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        bytes
    }

    /// Of one of so many nodes.
    pub(super) fn from_bytes(bytes: &[u8], nodes: usize) -> Option<Command> {
        let words: &[u8; 8 * ENTRY_WORDS] = bytes.try_into().ok()?;
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|byte| words[8 * at + byte]));
        let (kind, rank) = (word(0) >> 32, word(0) as u32 as usize);
        (rank < nodes).then_some(Command { kind, rank, number: word(1), args: [word(2), word(3)] })
    }
}

/// The queue of claims. It is the same on all replicas after the same entries.
pub(super) struct Queue {
    /// Rank and ticket of each claim. The first one holds.
    pub(super) claims: VecDeque<(usize, u64)>,
    /// Counts the holders: the fencing token of the present one.
    pub(super) token: u64,
    /// How often the present holder has renewed its lease.
    pub(super) renewals: u64,
    /// By rank: it is dead, and claims no more.
    pub(super) gone: Vec<bool>,
    /// By rank: the node + 1 that the claims and numbers are of.
    pub(super) nodes: Vec<u64>,
    pub(super) numbers: CommandNumbers,
    /// The state as it was before its first piece was ordered, until all pieces and `BACK` are, and how many pieces
    /// are.
    pub(super) state: Vec<[u64; 2]>,
    pub(super) pieces: u64,
    /// The number of places, by which the numbers of nodes at one rank are apart.
    pub(super) places: u64,
}

impl Queue {
    pub(super) fn holder(&self) -> Option<(usize, u64)> {
        self.claims.front().copied()
    }

    /// Whether a command is still to be done.
    pub(super) fn wants(&self, command: &Command) -> bool {
        let Command { kind, rank, number, args } = *command;
        match kind {
            GONE => !self.gone[rank],
            EXPIRE => self.holder().is_some_and(|(holder, _)| holder == rank) && args == [self.token, self.renewals],
            STATE => number == 0 || number == self.pieces && number < self.state.len() as u64,
            BACK => number > 0 && number == self.pieces && number == self.state.len() as u64,
            _ => !self.numbers.has(rank, number) && !self.gone[rank],
        }
    }

    pub(super) fn apply(&mut self, command: &Command) {
        if !self.wants(command) {
            return;
        }
        let Command { kind, rank, number, args } = *command;
        if kind == STATE {
            if number == 0 {
                self.state = self.to_pieces();
            }
            self.pieces = number + 1;
            return;
        }
        if kind == BACK {
            (self.state, self.pieces) = (Vec::new(), 0);
            // Not if it was brought the state once more.
            if self.nodes[rank] < args[0] {
                self.claims.retain(|(of, _)| *of != rank);
                (self.gone[rank], self.nodes[rank]) = (false, args[0]);
                self.numbers.applied(rank, numbers_of(args[0], self.places));
            }
            return;
        }
        let before = self.holder();
        match kind {
            CLAIM => self.claims.push_back((rank, number)),
            RELEASE => self.claims.retain(|claim| *claim != (rank, args[0])),
            RENEW if args[0] == self.token && before.is_some_and(|(holder, _)| holder == rank) => self.renewals += 1,
            GONE => {
                self.gone[rank] = true;
                self.claims.retain(|(of, _)| *of != rank);
            }
            EXPIRE => drop(self.claims.pop_front()),
            _ => {}
        }
        if number > 0 {
            self.numbers.applied(rank, number);
        }
        if self.holder() != before && self.holder().is_some() {
            (self.token, self.renewals) = (self.token + 1, 0);
        }
    }

    // ---- the state in pieces
    // ------------------------------------------------------------------------------------------

    fn to_pieces(&self) -> Vec<[u64; 2]> {
        let of_rank = |rank: usize| [self.numbers.last(rank), self.nodes[rank] << 1 | u64::from(self.gone[rank])];
        let of_ranks = (0..self.gone.len()).map(of_rank);
        let claims = self.claims.iter().map(|(of, ticket)| [*of as u64, *ticket]);
        [[self.token, self.renewals]].into_iter().chain(of_ranks).chain(claims).collect()
    }

    /// The next entry that brings the state to a node + 1 at a rank.
    pub(super) fn next_piece(&self, rank: usize, node: u64) -> Command {
        let number = self.pieces;
        let piece = |args| Command { kind: STATE, rank, number, args };
        match self.state.get(number as usize) {
            _ if number == 0 => piece([self.token, self.renewals]),
            Some(args) => piece(*args),
            None => Command { kind: BACK, rank, number, args: [node, 0] },
        }
    }

    /// Of all pieces, in their order: as before the first of them, but that all are ordered. None if it is no state of
    /// so many ranks.
    pub(super) fn of_pieces(pieces: &[[u64; 2]], ranks: usize, places: u64) -> Option<Queue> {
        let (of_all, rest) = pieces.split_first()?;
        let (of_ranks, claims) = rest.split_at_checked(ranks)?;
        let mut numbers = CommandNumbers::new(ranks);
        of_ranks.iter().enumerate().for_each(|(rank, of)| numbers.applied(rank, of[0]));
        Some(Queue {
            claims: claims.iter().map(|claim| (claim[0] as usize, claim[1])).collect(),
            token: of_all[0],
            renewals: of_all[1],
            gone: of_ranks.iter().map(|of| of[1] & 1 != 0).collect(),
            nodes: of_ranks.iter().map(|of| of[1] >> 1).collect(),
            numbers,
            state: pieces.to_vec(),
            pieces: pieces.len() as u64,
            places,
        })
    }
}

/// The number before the first of a node + 1.
pub(super) fn numbers_of(node: u64, places: u64) -> u64 {
    node.saturating_sub(1) / places * NUMBERS
}
