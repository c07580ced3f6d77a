//! The word of a slot: its lap, its cell, and which of the cell's values are left.
//!
//! The mark of a closed queue is a lap that is 2³¹ off. So the word of a marked slot is of no lap that a call expects
//! there, and calls recognize it where they look at slots of other laps anyway: the others do nothing more for it.

/// The most cells that a slot's word can tell apart.
pub(super) const CELLS_MAX: usize = 1 << CELL_BITS;
/// The most values of a batch.
pub(super) const BATCH_MAX: usize = (1 << COUNT_BITS) - 1;

const COUNT_BITS: u32 = 6;
const CELL_BITS: u32 = 20;
const NEXT_SHIFT: u32 = COUNT_BITS;
const CELL_SHIFT: u32 = NEXT_SHIFT + COUNT_BITS;
const LAP_SHIFT: u32 = CELL_SHIFT + CELL_BITS;

/// The bit that the mark changes in a slot's word.
const MARK: u64 = 1 << 63;
/// Laps that differ by this or more, either way, differ by the mark: no call is so late.
const BEHIND: i32 = -AHEAD;
const AHEAD: i32 = 1 << 30;

/// A slot's word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct State(pub(super) u64);

impl State {
    fn new(lap: u32, cell: u64, next: u64, count: u64) -> State {
        State(u64::from(lap) << LAP_SHIFT | cell << CELL_SHIFT | next << NEXT_SHIFT | count)
    }

    pub(super) fn vacant(lap: u32, cell: u64) -> State {
        State::new(lap, cell, 0, 0)
    }

    pub(super) fn lap(self) -> u32 {
        (self.0 >> LAP_SHIFT) as u32
    }

    pub(super) fn cell(self) -> u64 {
        self.0 >> CELL_SHIFT & (CELLS_MAX as u64 - 1)
    }

    pub(super) fn next(self) -> u64 {
        self.0 >> NEXT_SHIFT & BATCH_MAX as u64
    }

    pub(super) fn count(self) -> u64 {
        self.0 & BATCH_MAX as u64
    }

    /// The state after it is filled with the values of a cell.
    pub(super) fn filled(self, cell: u64, count: usize) -> State {
        State::new(self.lap(), cell, 0, count as u64)
    }

    /// The state after its next value is taken.
    pub(super) fn taken(self) -> State {
        let next = self.next() + 1;
        if next < self.count() {
            return State::new(self.lap(), self.cell(), next, self.count());
        }
        State::vacant(self.lap().wrapping_add(1), self.cell())
    }

    /// What it says of a position that uses the slot in `lap`.
    pub(super) fn of_lap(self, lap: u32) -> Position {
        // The expected lap is compared first: it is that of all calls that nothing delays.
        match (self.lap().wrapping_sub(lap) as i32, self.count()) {
            (0, 0) => Position::Vacant,
            (0, _) => Position::Filled,
            (..=BEHIND | AHEAD.., _) => Position::Closed,
            (..0, _) => Position::Early,
            (1.., _) => Position::Taken,
        }
    }

    /// The same, in a slot with a next position that is never filled. Values that are left are taken nevertheless; the
    /// mark stays.
    pub(super) fn marked(self) -> State {
        State(self.0 ^ MARK)
    }

    /// The state without a mark, for a position that uses the slot in about `lap`.
    pub(super) fn unmarked(self, lap: u32) -> State {
        match self.of_lap(lap) {
            Position::Closed => State(self.0 ^ MARK),
            _ => self,
        }
    }
}

/// The state of a position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Position {
    /// Its slot still holds an earlier one.
    Early,
    /// It is to be filled.
    Vacant,
    /// It has values that nobody has taken.
    Filled,
    /// All its values have been taken.
    Taken,
    /// The queue is closed, and this is known from the position's slot. Without the mark the slot has one of the other
    /// states.
    Closed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_goes_from_lap_to_lap() {
        let vacant = State::vacant(u32::MAX, 5);
        let filled = vacant.filled(9, 2);
        assert_eq!((filled.lap(), filled.cell(), filled.next(), filled.count()), (u32::MAX, 9, 0, 2));
        let once = filled.taken();
        assert_eq!((once.lap(), once.cell(), once.next(), once.count()), (u32::MAX, 9, 1, 2));
        assert_eq!(once.taken(), State::vacant(0, 9));

        let of = |lap: u32| [vacant, filled, once, once.taken()].map(|state| state.of_lap(lap));
        use Position::{Early, Filled, Taken, Vacant};
        assert_eq!(of(u32::MAX), [Vacant, Filled, Filled, Taken]);
        assert_eq!(of(0), [Early, Early, Early, Vacant]);
        assert_eq!(of(u32::MAX - 1), [Taken; 4]);
    }

    #[test]
    fn a_mark_stays_and_is_of_no_lap_nearby() {
        for lap in [0, 5, u32::MAX / 2, u32::MAX / 2 + 1, u32::MAX] {
            let vacant = State::vacant(lap, 5);
            let filled = vacant.filled(9, 2);
            for state in [vacant, filled, filled.taken(), filled.taken().taken()] {
                let marked = state.marked();
                assert_eq!((marked.cell(), marked.next(), marked.count()), (state.cell(), state.next(), state.count()));
                for distance in [0, 1, 2, 1000] {
                    for lap in [lap.wrapping_sub(distance), lap.wrapping_add(distance)] {
                        assert_eq!(marked.of_lap(lap), Position::Closed);
                        assert_eq!((marked.unmarked(lap), state.unmarked(lap)), (state, state));
                    }
                }
            }
            let marked = filled.marked();
            assert_eq!(
                (marked.taken(), marked.taken().taken()),
                (filled.taken().marked(), filled.taken().taken().marked())
            );
        }
    }

    #[test]
    fn fields_have_room_for_their_largest_values() {
        let state = State::new(7, CELLS_MAX as u64 - 1, BATCH_MAX as u64 - 1, BATCH_MAX as u64);
        assert_eq!((state.lap(), state.cell()), (7, CELLS_MAX as u64 - 1));
        assert_eq!((state.next(), state.count()), (BATCH_MAX as u64 - 1, BATCH_MAX as u64));
        assert_eq!(state.taken(), State::vacant(8, CELLS_MAX as u64 - 1));
    }
}
