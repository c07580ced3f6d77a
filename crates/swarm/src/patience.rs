//! How long a client waits for the memory nodes that it has asked.
//!
//! Each client measures how long they take to answer: a mean and a mean deviation, as TCP does (RFC 6298). It waits at
//! least twice the mean and four times the deviation, so a fabric that is slow at the moment is not taken for one that
//! fails.

use core::cell::Cell;
use std::time::Duration;

/// How long a client waits at least for memory nodes without which it would have to begin again.
pub(crate) const ATTEMPT: Duration = Duration::from_millis(2);

/// How long a read waits at least until it writes a value back to other memory nodes than those that have answered.
pub(crate) const WRITE_BACK: Duration = Duration::from_millis(10);

/// Waits of which one is measured: it costs a look at the clock.
const MEASURED_OF: u32 = 8;

/// How long the memory nodes have taken to answer.
#[derive(Default)]
pub(crate) struct AnswerTimes {
    /// Zero until the first one.
    mean: Cell<Duration>,
    deviation: Cell<Duration>,
    waits: Cell<u32>,
}

impl AnswerTimes {
    /// Whether a wait that begins now is measured.
    pub(crate) fn is_measured(&self) -> bool {
        let waits = self.waits.get().wrapping_add(1);
        self.waits.set(waits);
        waits.is_multiple_of(MEASURED_OF) || self.mean.get() == Duration::ZERO
    }

    pub(crate) fn add(&self, taken: Duration) {
        let (mean, deviation) = (self.mean.get(), self.deviation.get());
        if mean == Duration::ZERO {
            self.mean.set(taken);
            self.deviation.set(taken / 2);
            return;
        }
        self.deviation.set(deviation - deviation / 4 + mean.abs_diff(taken) / 4);
        self.mean.set(mean - mean / 8 + taken / 8);
    }

    /// How long to wait at least. Zero before the first answer.
    pub(crate) fn patience(&self) -> Duration {
        2 * self.mean.get() + 4 * self.deviation.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that was used to a fast fabric learns of a slow one, and the other way round.
    #[test]
    fn patience_follows_the_answers() {
        let times = AnswerTimes::default();
        assert!(times.is_measured() && times.patience() == Duration::ZERO);
        for answer in [2, 4000, 2] {
            let answer = Duration::from_micros(answer);
            (0..64).for_each(|_| times.add(answer));
            let patience = times.patience();
            assert!(
                patience >= 2 * answer && patience < 3 * answer + Duration::from_micros(20),
                "{patience:?} of {answer:?}"
            );
        }
        let measured = (0..64).filter(|_| times.is_measured()).count();
        assert_eq!(measured, 8);
    }
}
