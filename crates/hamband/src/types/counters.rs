//! Counters.

use serde::{Deserialize, Serialize};

use super::Never;
use crate::{Coordination, DataType, methods};

/// A counter: additions of any sign (Shapiro et al., 2011, specification 5; figure 8 of the paper). It counts modulo
/// 2⁶⁴, so it is exact as long as the sum fits. `Add` is reducible.
///
/// ```
/// use farfield_hamband::DataType;
/// use farfield_hamband::types::{Counter, CounterUpdate};
/// let mut visits = Counter::default();
/// visits.apply(&CounterUpdate::Add(5))?;
/// visits.apply(&CounterUpdate::Add(-2))?;
/// assert_eq!(visits.value(), 3);
/// # Ok::<(), farfield_hamband::types::Never>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Counter {
    value: i64,
}

methods! {
    /// The updates of a [`Counter`].
    ///
    /// ```
    /// use farfield_hamband::{DataType, types::{Counter, CounterUpdate::Add}};
    /// assert_eq!(Counter::summarise(&Add(3), &Add(4)), Some(Add(7)));
    /// ```
    #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
    pub enum CounterUpdate: CounterMethod {
        /// Adds.
        Add(i64),
    }
}

impl Counter {
    /// The sum of all additions.
    ///
    /// ```
    /// assert_eq!(farfield_hamband::types::Counter::default().value(), 0);
    /// ```
    pub fn value(&self) -> i64 {
        self.value
    }
}

impl DataType for Counter {
    type Update = CounterUpdate;
    type Refusal = Never;

    fn apply(&mut self, CounterUpdate::Add(amount): &CounterUpdate) -> Result<(), Never> {
        self.value = self.value.wrapping_add(*amount);
        Ok(())
    }

    fn coordination() -> Coordination<CounterMethod> {
        Coordination::none().summarised([CounterMethod::Add])
    }

    fn summarise(
        CounterUpdate::Add(a): &CounterUpdate,
        CounterUpdate::Add(b): &CounterUpdate,
    ) -> Option<CounterUpdate> {
        Some(CounterUpdate::Add(a.wrapping_add(*b)))
    }

    fn remainder(
        CounterUpdate::Add(a): &CounterUpdate,
        CounterUpdate::Add(b): &CounterUpdate,
    ) -> Option<CounterUpdate> {
        Some(CounterUpdate::Add(b.wrapping_sub(*a)))
    }
}

/// A counter that keeps additions and subtractions apart, each modulo 2⁶⁴ (Shapiro et al., 2011, specification 7).
/// `Increment` and `Decrement` are reducible, each with a summary of its own.
///
/// ```
/// use farfield_hamband::DataType;
/// use farfield_hamband::types::{PnCounter, PnCounterUpdate};
/// let mut counter = PnCounter::default();
/// counter.apply(&PnCounterUpdate::Increment(2))?;
/// counter.apply(&PnCounterUpdate::Decrement(5))?;
/// assert_eq!((counter.value(), counter.added(), counter.taken()), (-3, 2, 5));
/// # Ok::<(), farfield_hamband::types::Never>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PnCounter {
    added: u64,
    taken: u64,
}

methods! {
    /// The updates of a [`PnCounter`].
    ///
    /// ```
    /// use farfield_hamband::{DataType, types::{PnCounter, PnCounterUpdate::*}};
    /// assert_eq!(PnCounter::summarise(&Increment(3), &Decrement(4)), None); // two groups
    /// ```
    #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
    pub enum PnCounterUpdate: PnCounterMethod {
        /// Adds.
        Increment(u64),
        /// Subtracts.
        Decrement(u64),
    }
}

impl PnCounter {
    /// Additions less subtractions.
    ///
    /// ```
    /// assert_eq!(farfield_hamband::types::PnCounter::default().value(), 0);
    /// ```
    pub fn value(&self) -> i64 {
        self.added.wrapping_sub(self.taken).cast_signed()
    }

    /// The sum of all increments.
    ///
    /// ```
    /// assert_eq!(farfield_hamband::types::PnCounter::default().added(), 0);
    /// ```
    pub fn added(&self) -> u64 {
        self.added
    }

    /// The sum of all decrements.
    ///
    /// ```
    /// assert_eq!(farfield_hamband::types::PnCounter::default().taken(), 0);
    /// ```
    pub fn taken(&self) -> u64 {
        self.taken
    }
}

impl DataType for PnCounter {
    type Update = PnCounterUpdate;
    type Refusal = Never;

    fn apply(&mut self, update: &PnCounterUpdate) -> Result<(), Never> {
        match update {
            PnCounterUpdate::Increment(amount) => self.added = self.added.wrapping_add(*amount),
            PnCounterUpdate::Decrement(amount) => self.taken = self.taken.wrapping_add(*amount),
        }
        Ok(())
    }

    fn coordination() -> Coordination<PnCounterMethod> {
        Coordination::none().summarised([PnCounterMethod::Increment]).summarised([PnCounterMethod::Decrement])
    }

    fn summarise(first: &PnCounterUpdate, then: &PnCounterUpdate) -> Option<PnCounterUpdate> {
        use PnCounterUpdate::{Decrement, Increment};
        match (first, then) {
            (Increment(a), Increment(b)) => Some(Increment(a.wrapping_add(*b))),
            (Decrement(a), Decrement(b)) => Some(Decrement(a.wrapping_add(*b))),
            _ => None,
        }
    }

    fn remainder(earlier: &PnCounterUpdate, later: &PnCounterUpdate) -> Option<PnCounterUpdate> {
        use PnCounterUpdate::{Decrement, Increment};
        match (earlier, later) {
            (Increment(a), Increment(b)) => Some(Increment(b.wrapping_sub(*a))),
            (Decrement(a), Decrement(b)) => Some(Decrement(b.wrapping_sub(*a))),
            _ => None,
        }
    }
}
