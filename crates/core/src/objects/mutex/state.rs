//! The word of a lock, and how long it has been seen in a state.

use core::time::Duration;

use farfield_fabric::{Instant, NodeId};

use crate::node::LONG;

/// How often in a row newcomers may overtake waiting operations.
///
/// ```
/// use farfield::objects::mutex::BYPASS_MAX;
/// let before = 3; // operations that wait already
/// let sections = (before + 1) * (BYPASS_MAX + 1); // the most critical sections until a new one is served
/// assert_eq!(sections, 68);
/// ```
pub const BYPASS_MAX: u64 = 16;
/// If a free lock is not taken for this time and some node is dead or departed, the queue's head counts as an
/// operation of that node.
///
/// ```
/// # let node = farfield::Node::builder().start()?; let ep = node.endpoint()?;
/// use farfield::objects::mutex::STUCK_LONG;
/// ep.set_timeout(10 * STUCK_LONG); // a wait for a lock is longer than the turn of a dead node's operation
/// assert_eq!(ep.timeout().as_secs(), 2);
/// # Ok::<(), farfield::Error>(())
/// ```
pub const STUCK_LONG: Duration = Duration::from_millis(200);
/// The same, of the last of many in a row.
///
/// ```
/// use farfield::objects::mutex::{STUCK_LONG, STUCK_SHORT};
/// // Each turn that is skipped halves the time of the next one, down to this.
/// let time = |skipped: u32| (STUCK_LONG / 2u32.pow(skipped)).max(STUCK_SHORT);
/// assert_eq!((time(0), time(1), time(6)), (STUCK_LONG, STUCK_LONG / 2, STUCK_SHORT));
/// ```
pub const STUCK_SHORT: Duration = Duration::from_millis(4);

/// The state of a lock, as in its word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct State(pub(super) u64);

const HOLDER_BITS: u32 = 12;
const BYPASS_BITS: u32 = 7;
const TICKET_BITS: u32 = 22;
const BYPASS_SHIFT: u32 = HOLDER_BITS;
const DIED_SHIFT: u32 = BYPASS_SHIFT + BYPASS_BITS;
const SERVING_SHIFT: u32 = DIED_SHIFT + 1;
const NEXT_SHIFT: u32 = SERVING_SHIFT + TICKET_BITS;
const TICKET_MASK: u64 = (1 << TICKET_BITS) - 1;
/// Added to the word to draw a ticket; `next` is at the top, so it wraps around by itself.
pub(super) const DRAW: u64 = 1 << NEXT_SHIFT;
pub(super) const DIED: u64 = 1 << DIED_SHIFT;

impl State {
    pub(super) fn new(next: u64, serving: u64, bypass: u64, holder: u64) -> State {
        let (next, serving) = (next & TICKET_MASK, serving & TICKET_MASK);
        State(next << NEXT_SHIFT | serving << SERVING_SHIFT | bypass << BYPASS_SHIFT | holder)
    }

    pub(super) fn next(self) -> u64 {
        self.0 >> NEXT_SHIFT
    }

    pub(super) fn serving(self) -> u64 {
        self.0 >> SERVING_SHIFT & TICKET_MASK
    }

    pub(super) fn bypass(self) -> u64 {
        self.0 >> BYPASS_SHIFT & ((1 << BYPASS_BITS) - 1)
    }

    pub(super) fn holder(self) -> Option<NodeId> {
        let holder = self.0 & ((1 << HOLDER_BITS) - 1);
        holder.checked_sub(1).map(|node| NodeId(node as u16))
    }

    pub(super) fn has_died(self) -> bool {
        self.0 & DIED != 0
    }

    pub(super) fn has_no_waiters(self) -> bool {
        self.next() == self.serving()
    }

    /// The state after a newcomer takes the lock, if it may.
    pub(super) fn taken_by_newcomer(self, me: u64) -> Option<State> {
        let passes = if self.has_no_waiters() { 0 } else { self.bypass() + 1 };
        (self.holder().is_none() && passes <= BYPASS_MAX).then(|| self.taken(self.serving(), passes, me))
    }

    /// The state after the owner of `ticket` takes it, if it is its turn.
    pub(super) fn taken_by_ticket(self, ticket: u64, me: u64) -> Option<State> {
        (self.holder().is_none() && self.serving() == ticket).then(|| self.taken(self.serving() + 1, 0, me))
    }

    fn taken(self, serving: u64, bypass: u64, me: u64) -> State {
        State(State::new(self.next(), serving, bypass, me).0 | self.0 & DIED)
    }

    /// The state after an operation skips a turn that is not taken.
    pub(super) fn passed_over(self) -> State {
        self.taken(self.serving() + 1, 0, 0)
    }

    /// The state after an operation frees the lock from a dead holder.
    pub(super) fn freed_from_the_dead(self) -> State {
        State(self.freed().0 | DIED)
    }

    /// Whether a ticket's turn has been skipped. (Tickets wrap around; never are half of them in use.)
    pub(super) fn is_past(self, ticket: u64) -> bool {
        let past = self.serving().wrapping_sub(ticket) & TICKET_MASK;
        (1..=TICKET_MASK / 2).contains(&past)
    }

    /// Whether the lock has the same holder, or the same turn, as in another state: only tickets were drawn since.
    pub(super) fn is_still(self, other: State) -> bool {
        (self.0 ^ other.0) & (DRAW - 1) == 0
    }

    /// The same without a holder, as a guess at the word of a lock that was held when last seen.
    pub(super) fn freed(self) -> State {
        State(self.0 & !((1 << HOLDER_BITS) - 1))
    }
}

/// How long a free lock may stay untaken before the turn is skipped, after so many turns that were skipped.
pub(super) fn patience(passed: u32) -> Duration {
    (STUCK_LONG / 2u32.saturating_pow(passed)).max(STUCK_SHORT)
}

/// How long a lock has been in a state, as far as this operation has seen.
#[derive(Clone, Copy)]
pub(super) struct Watch {
    state: State,
    /// The time since which the lock was neither taken nor released. New waiters do not count.
    since: Instant,
    /// The time since which it has been the same turn. Newcomers that overtake waiting operations do not make it
    /// younger.
    turn_since: Instant,
    /// The wait was reported, since it lasts.
    is_told: bool,
}

impl Watch {
    pub(super) fn begin(state: State, now: Instant) -> Watch {
        Watch { state, since: now, turn_since: now, is_told: false }
    }

    pub(super) fn sees(&mut self, state: State, now: Instant) {
        if !state.is_still(self.state) {
            self.since = now;
        }
        if state.serving() != self.state.serving() {
            self.turn_since = now;
        }
        self.state = state;
    }

    /// Whether the wait has become so long, for the first time, that it is reported.
    pub(super) fn becomes_long(&mut self, waited: Duration) -> bool {
        let becomes = waited >= LONG && !self.is_told;
        self.is_told |= becomes;
        becomes
    }

    /// Whether the turn seems abandoned: it is old, and was not taken though the lock was free.
    pub(super) fn is_stuck(&self, now: Instant, patience: Duration) -> bool {
        now - self.turn_since >= patience && now - self.since >= STUCK_SHORT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newcomers_pass_at_most_so_often() {
        let mut state = State::new(5, 3, 0, 0);
        for pass in 1..=BYPASS_MAX {
            let taken = state.taken_by_newcomer(2).unwrap();
            assert_eq!((taken.bypass(), taken.holder()), (pass, Some(NodeId(1))));
            state = taken.freed();
        }
        assert_eq!(state.taken_by_newcomer(2), None);
        assert_eq!(state.taken_by_ticket(4, 2), None);
        let served = state.taken_by_ticket(3, 9).unwrap();
        assert_eq!((served.serving(), served.bypass(), served.next()), (4, 0, 5));
    }

    #[test]
    fn tickets_wrap_around_without_touching_other_fields() {
        let last = State::new(TICKET_MASK, TICKET_MASK, 3, 7);
        let drawn = State(last.0.wrapping_add(DRAW));
        assert_eq!(
            (drawn.next(), drawn.serving(), drawn.bypass(), drawn.holder()),
            (0, TICKET_MASK, 3, Some(NodeId(6)))
        );
        let served = drawn.freed().taken_by_ticket(TICKET_MASK, 1).unwrap();
        assert_eq!((served.serving(), served.next(), served.has_no_waiters()), (0, 0, true));
    }

    #[test]
    fn the_mark_of_a_death_goes_with_the_lock_until_it_is_taken_away() {
        let dead = State::new(7, 5, 3, 4);
        let freed = dead.freed_from_the_dead();
        assert_eq!((freed.next(), freed.serving(), freed.bypass(), freed.holder()), (7, 5, 3, None));
        let by_ticket = freed.taken_by_ticket(5, 2).unwrap();
        let by_newcomer = freed.taken_by_newcomer(2).unwrap();
        assert!(freed.has_died() && by_ticket.has_died() && by_newcomer.has_died() && !dead.has_died());
        assert!(!State(by_ticket.0 - 2 - DIED).has_died());
        assert!(freed.passed_over().has_died());
    }

    #[test]
    fn patience_ends_but_never_at_once() {
        assert_eq!((patience(0), patience(1)), (STUCK_LONG, STUCK_LONG / 2));
        assert_eq!((patience(6), patience(40)), (STUCK_SHORT, STUCK_SHORT));
    }

    #[test]
    fn a_turn_is_stuck_when_it_is_old_and_the_lock_was_left_alone() {
        let at = |millis: u64| Instant { ns: millis * 1_000_000 };
        let turn = State::new(5, 3, 0, 0);
        let mut watch = Watch::begin(turn, at(0));
        assert!(!watch.is_stuck(at(3), STUCK_SHORT) && watch.is_stuck(at(4), STUCK_SHORT));
        assert!(!watch.is_stuck(at(199), STUCK_LONG) && watch.is_stuck(at(200), STUCK_LONG));
        // Another waiter changes nothing; a newcomer that has passed does, for a moment.
        watch.sees(State(turn.0.wrapping_add(DRAW)), at(200));
        assert!(watch.is_stuck(at(200), STUCK_LONG));
        let passed = turn.taken_by_newcomer(2).unwrap();
        watch.sees(passed, at(201));
        assert!(!watch.is_stuck(at(204), STUCK_LONG) && watch.is_stuck(at(205), STUCK_LONG));
        watch.sees(passed, at(206));
        assert!(watch.is_stuck(at(206), STUCK_LONG));
        // The next turn is young.
        watch.sees(turn.passed_over(), at(210));
        assert!(!watch.is_stuck(at(213), STUCK_SHORT) && watch.is_stuck(at(214), STUCK_SHORT));
        assert!(!watch.is_stuck(at(409), STUCK_LONG) && watch.is_stuck(at(410), STUCK_LONG));
    }

    #[test]
    fn a_waiter_notices_that_it_was_passed_over_across_wraparound() {
        let state = State::new(2, TICKET_MASK, 0, 0);
        let passed = state.passed_over();
        assert_eq!((passed.serving(), passed.next()), (0, 2));
        assert!(passed.is_past(TICKET_MASK) && !passed.is_past(0) && !passed.is_past(1) && !state.is_past(TICKET_MASK));
    }
}
