//! The memory for requests and answers.
//!
//! ```text
//! region `requests`, for each rank a slot: a command that it wants this one to order
//!   +0  ┌───┬─────────────────────────────────┐
//!       │ R │ bytes (63)                      │   R: it was asked for in an earlier term, too
//!   +8  ├───┴─────────────────────────────────┤
//!       │ term, in which this node leads      │
//!   +16 ├─────────────────────────────────────┤
//!       │ number among the node's commands    │
//!   +24 ├─────────────────────────────────────┤
//!       │ hash of all other words             │   XXH3
//!   +32 ├─────────────────────────────────────┤
//!       │ command                             │
//!       └─────────────────────────────────────┘
//! region `answers`, for each rank a slot of the same form: its answer as the leader
//! ```

use std::sync::Arc;

use farfield_fabric::{self as fabric, Endpoint, Region, RemotePtr, read_words};
use xxhash_rust::xxh3::Xxh3;

use super::CommandOptions;
use crate::replica::{Core, Peer};

/// Words of a slot before the command.
const HEADER: usize = 4;
const TERM: usize = 1;
const NUMBER: usize = 2;
const CHECK: usize = 3;

/// In the first word: it was asked for before.
const REPEATED: u64 = 1 << 63;

/// Bytes of a slot for a command or answer of this length.
pub(crate) fn slot_bytes(bytes_max: usize) -> usize {
    (HEADER * 8 + bytes_max).next_multiple_of(64)
}

/// `requests`, and perhaps `answers`.
pub(crate) type OwnRegions = Vec<Region>;

/// The content of a slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Slip {
    pub(crate) is_repeated: bool,
    pub(crate) term: u64,
    pub(crate) number: u64,
    pub(crate) bytes: Vec<u8>,
}

/// One of the two regions: here, and at the other nodes.
struct Side {
    core: Arc<Core>,
    own: Region,
    /// A node that returns has another one.
    at: fn(&Peer) -> RemotePtr<u64>,
    slot_bytes: usize,
}

pub(crate) struct Slots {
    /// Ranks are those of the log.
    pub(super) me: usize,
    requests: Side,
    answers: Option<Side>,
}

impl Slots {
    pub(crate) fn new(core: &Arc<Core>, regions: OwnRegions, options: &CommandOptions) -> Slots {
        let side = |own: Region, at: fn(&Peer) -> RemotePtr<u64>, bytes_max: usize| Side {
            core: Arc::clone(core),
            own,
            at,
            slot_bytes: slot_bytes(bytes_max),
        };
        let mut regions = regions.into_iter();
        let requests = regions.next().expect("the opening has allocated it");
        let requests = side(requests, |peer| peer.requests, options.command_bytes_max);
        let answers = regions.next().map(|own| side(own, |peer| peer.answers, options.answer_bytes_max));
        Slots { me: core.me, requests, answers }
    }

    pub(crate) fn ranks(&self) -> usize {
        self.requests.core.ranks()
    }

    pub(crate) fn request(&self, endpoint: &Endpoint, leader: usize, slip: &Slip) -> fabric::Result<()> {
        self.requests.put(endpoint, leader, self.me, slip)
    }

    pub(crate) fn answer(&self, endpoint: &Endpoint, origin: usize, slip: &Slip) -> fabric::Result<()> {
        self.answers.as_ref().map_or(Ok(()), |answers| answers.put(endpoint, origin, self.me, slip))
    }

    /// A request of another node, if all of it is there, and it is not the one of this term and number.
    pub(crate) fn requested(&self, origin: usize, but: (u64, u64)) -> Option<Slip> {
        let is_other = |(term, number)| number != 0 && (term, number) != but;
        if origin == self.me || !is_other(self.requests.term_and_number(origin)) {
            return None;
        }
        self.requests.read(origin).filter(|slip| is_other((slip.term, slip.number)))
    }

    /// The answer of a node, if all of it is there.
    pub(crate) fn answered(&self, leader: usize) -> Option<Slip> {
        let answers = self.answers.as_ref()?;
        // A look at one word, as a rule.
        if answers.term_and_number(leader).1 == 0 { None } else { answers.read(leader) }
    }
}

impl Side {
    fn put(&self, endpoint: &Endpoint, to: usize, me: usize, slip: &Slip) -> fabric::Result<()> {
        let words = HEADER + slip.bytes.len().div_ceil(8);
        debug_assert!(words * 8 <= self.slot_bytes, "the callers look");
        let theirs = (self.at)(&self.core.state.lock().peers[to]);
        if theirs.packed() == 0 {
            return Ok(()); // it was gone when this node came back
        }
        let mut image = endpoint.buf::<u64>(words)?;
        image[0] = if slip.is_repeated { REPEATED } else { 0 } | slip.bytes.len() as u64;
        image[TERM] = slip.term;
        image[NUMBER] = slip.number;
        for (word, bytes) in image[HEADER..].iter_mut().zip(slip.bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(whole);
        }
        image[CHECK] = check_of(&image);
        endpoint.put(theirs.byte_add((me * self.slot_bytes) as u64), &image).detach()
    }

    fn term_and_number(&self, rank: usize) -> (u64, u64) {
        let words = self.own.words(rank * self.slot_bytes, HEADER);
        (words[TERM].load(), words[NUMBER].load())
    }

    fn read(&self, rank: usize) -> Option<Slip> {
        let mut words = vec![0; self.slot_bytes / 8];
        read_words(self.own.words(rank * self.slot_bytes, words.len()), &mut words);
        let len = (words[0] & !REPEATED) as usize;
        let used = words.get(..HEADER + len.div_ceil(8))?;
        let is_whole = used[NUMBER] != 0 && used[CHECK] == check_of(used);
        is_whole.then(|| {
            let mut bytes: Vec<u8> = used[HEADER..].iter().flat_map(|word| word.to_le_bytes()).collect();
            bytes.truncate(len);
            Slip { is_repeated: used[0] & REPEATED != 0, term: used[TERM], number: used[NUMBER], bytes }
        })
    }
}

/// Of all words but the check itself.
fn check_of(words: &[u64]) -> u64 {
    let mut hash = Xxh3::new();
    for word in words[..CHECK].iter().chain(&words[HEADER..]) {
        hash.update(&word.to_le_bytes());
    }
    hash.digest()
}
