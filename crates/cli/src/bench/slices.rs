//! The parts of a run in which a death is looked at.

use std::ops::Range;
use std::time::Duration;

pub(super) const SLICE: Duration = Duration::from_millis(10);

/// How many a run has: one more than are over when it ends.
pub(super) fn count(run: Duration) -> usize {
    run.as_nanos().div_ceil(SLICE.as_nanos()) as usize + 1
}

/// The slice of a moment, by the time since the run began.
pub(super) fn of(since: Duration) -> usize {
    (since.as_nanos() / SLICE.as_nanos()) as usize
}

/// The same, by the clock of the host.
pub(super) fn at(start_ns: u64, at_ns: u64) -> usize {
    of(Duration::from_nanos(at_ns.saturating_sub(start_ns)))
}

/// How long so many are.
pub(super) fn seconds(slices: usize) -> f64 {
    slices as f64 * SLICE.as_secs_f64()
}

/// The slices of the second before this one, and of the second from it on, as far as a run with so many has them. None
/// if it has none of the ones or the others.
pub(super) fn around(at: usize, slices: usize) -> Option<[Range<usize>; 2]> {
    let second = of(Duration::from_secs(1));
    let (before, after) = (at.saturating_sub(second)..at, at..slices.min(at + second));
    (!before.is_empty() && !after.is_empty()).then_some([before, after])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_is_looked_at_on_both_sides_as_far_as_there_is_one() {
        let run = Duration::from_secs(3);
        assert_eq!((count(run), of(run), seconds(of(run))), (301, 300, 3.0));
        assert_eq!((at(5, 5), at(5, 10_000_004), at(5, 10_000_005), at(5, 0)), (0, 0, 1, 0));
        assert_eq!(around(150, 300), Some([50..150, 150..250]));
        assert_eq!(around(20, 60), Some([0..20, 20..60]));
        assert_eq!(around(0, 60), None);
        assert_eq!(around(60, 60), None);
    }
}
