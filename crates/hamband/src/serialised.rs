//! Any type as state machine replication has it.

use serde::{Deserialize, Serialize};

use crate::coordination::Coordination;
use crate::data_type::{DataType, Update};

/// A type of which all calls go through one log, in one order: state machine replication. It has the updates and queries of the type in it,
/// and [`Coordination::all`]. It is a baseline, and a way to replicate a type whose relations are not known.
///
/// ```
/// use farfield_hamband::types::{Counter, CounterMethod, CounterUpdate};
/// use farfield_hamband::{DataType, Replicated, ReplicatedOptions, Serialised, analysis::Category};
/// let node = farfield::Node::builder().start()?;
/// let ep = node.endpoint()?;
/// let options = ReplicatedOptions::default();
/// let visits = Replicated::open(&node, "visits", Serialised(Counter::default()), options)?;
/// let mut writer = visits.writer()?;
/// ep.block_on(writer.update(&ep, &CounterUpdate::Add(5)))?.expect("an addition is always permissible");
/// assert_eq!(visits.query(|Serialised(counter)| counter.value())?, 5);
/// assert_eq!(Serialised::<Counter>::coordination().category(CounterMethod::Add), Category::Conflicting);
/// # Ok::<(), farfield::Error>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(bound = "T: DataType")]
pub struct Serialised<T>(pub T);

impl<T: DataType> DataType for Serialised<T> {
    type Update = T::Update;
    type Refusal = T::Refusal;

    fn apply(&mut self, update: &T::Update) -> Result<(), T::Refusal> {
        self.0.apply(update)
    }

    fn check(&self, update: &T::Update) -> Result<(), T::Refusal> {
        self.0.check(update)
    }

    fn invariant(&self) -> bool {
        self.0.invariant()
    }

    fn coordination() -> Coordination<<T::Update as Update>::Method> {
        Coordination::all()
    }
}
