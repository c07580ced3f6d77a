//! Operations on single words: where their results land, and how they have ended.
//!
//! A lane has a few places for them, in memory of its own that stays registered. So such an operation needs no buffer, no
//! count of who uses it and no queue: its ticket is the number of its place.

use std::sync::Arc;

use crate::buf::Block;
use crate::error::Code;
use crate::lane::{Status, WordTicket};

/// How many may be under way; with more, the others go the long way.
const PLACES: u32 = 64;

pub(super) struct Words {
    block: Arc<Block>,
    /// The block's local key, once it is registered.
    pub(super) key: Option<u32>,
    free: Vec<u32>,
    places: [Place; PLACES as usize],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Free,
    UnderWay,
    /// Nobody will ask for the result.
    Dropped,
    Done,
    Failed(Code),
}

impl Words {
    pub(super) fn new() -> Words {
        Words {
            block: Block::new(8 * PLACES as usize),
            key: None,
            free: (0..PLACES).collect(),
            places: [Place::Free; PLACES as usize],
        }
    }

    pub(super) fn block(&self) -> &Arc<Block> {
        &self.block
    }

    /// A place for one more, and its memory.
    #[inline]
    pub(super) fn take(&mut self) -> Option<(u32, *mut u64)> {
        let place = self.free.pop()?;
        self.places[place as usize] = Place::UnderWay;
        Some((place, self.memory(place)))
    }

    #[inline]
    fn memory(&self, place: u32) -> *mut u64 {
        // The place is one of those that the block has room for.
        self.block.as_ptr().cast::<u64>().wrapping_add(place as usize)
    }

    /// It was not posted, or is not asked for any more.
    #[inline]
    fn give_back(&mut self, place: u32) {
        self.places[place as usize] = Place::Free;
        self.free.push(place);
    }

    #[cold]
    pub(super) fn not_posted(&mut self, place: u32) {
        self.give_back(place);
    }

    /// The device has done with it.
    #[inline]
    pub(super) fn end(&mut self, place: u32, status: Status) {
        let state = &mut self.places[place as usize];
        match (*state, status) {
            (Place::Dropped, _) => self.give_back(place),
            (_, Status::Failed(code)) => *state = Place::Failed(code),
            _ => *state = Place::Done,
        }
    }

    #[inline]
    pub(super) fn is_under_way(&self, ticket: WordTicket) -> bool {
        self.places[ticket.0 as usize] == Place::UnderWay
    }

    /// How it has ended, if it has; then its place is free.
    #[inline]
    pub(super) fn result(&mut self, ticket: WordTicket) -> Option<Result<u64, Code>> {
        let result = match self.places[ticket.0 as usize] {
            // SAFETY: the memory is the place's, inside the block and aligned, and no operation is under way on it.
            Place::Done => Ok(unsafe { self.memory(ticket.0).read() }),
            Place::Failed(code) => Err(code),
            Place::UnderWay | Place::Dropped | Place::Free => return None,
        };
        self.give_back(ticket.0);
        Some(result)
    }

    pub(super) fn drop_ticket(&mut self, ticket: WordTicket) {
        match self.places[ticket.0 as usize] {
            Place::UnderWay => self.places[ticket.0 as usize] = Place::Dropped,
            Place::Done | Place::Failed(_) => self.give_back(ticket.0),
            Place::Dropped | Place::Free => {}
        }
    }
}
