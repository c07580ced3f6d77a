//! Histories of replicas, and whether they refine the abstract semantics of well-coordinated data types (§3.2, figure
//! 5).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::coordination::Coordination;
use crate::data_type::{DataType, Update};

/// A type with its history in its state: which calls a replica has applied, and in which order, one by one even where
/// they arrive as a summary. Its replicas are coordinated as those of `T`. It is for tests: histories and summaries
/// only grow.
///
/// ```
/// use farfield_hamband::recorded::{Calls, Recorded, well_coordinated};
/// use farfield_hamband::DataType;
/// use farfield_hamband::types::Account;
///
/// let mut replicas = [(); 2].map(|()| Recorded::new(Account::default()));
/// let deposit = Calls::one(0, 0, Account::deposit_of(5));
/// let withdrawal = Calls::one(0, 1, Account::withdrawal_of(5));
/// replicas[0].apply(&deposit)?;
/// replicas[0].apply(&withdrawal)?;
/// assert!(replicas[1].apply(&withdrawal).is_err(), "it depends on the deposit");
/// replicas[1].apply(&deposit)?;
/// well_coordinated(&Account::default(), &replicas.map(Some)).unwrap();
/// # Ok::<(), farfield_hamband::types::BalanceTooLow>(())
/// ```
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Recorded<T: DataType> {
    state: T,
    history: Vec<Call<T::Update>>,
}

/// A call, with the process that has made it and its number there.
///
/// ```
/// # use farfield_hamband::{DataType, recorded::{Calls, Recorded}, types::Account};
/// let mut replicas = [(); 2].map(|()| Recorded::new(Account::default()));
/// for (source, replica) in (0..).zip(&mut replicas) {
///     replica.apply(&Calls::one(source, 0, Account::deposit_of(5)))?; // of another process each
/// }
/// assert_ne!(replicas[0].history()[0], replicas[1].history()[0]);
/// # Ok::<(), farfield_hamband::types::BalanceTooLow>(())
/// ```
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(bound = "U: Update")]
pub struct Call<U> {
    source: u16,
    number: u32,
    update: U,
}

/// A call of a recorded type, or several that were summarised, in their order.
///
/// ```
/// # use farfield_hamband::{DataType, recorded::{Calls, Recorded}, types::Account};
/// let [first, second] = [0, 1].map(|number| Calls::one(0, number, Account::deposit_of(5)));
/// let both = Recorded::<Account>::summarise(&first, &second).unwrap();
/// let mut replica = Recorded::new(Account::default());
/// replica.apply(&both)?;
/// assert_eq!(replica.history().len(), 2); // a summary is applied at once, and recorded one by one
/// # Ok::<(), farfield_hamband::types::BalanceTooLow>(())
/// ```
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(bound = "U: Update")]
pub struct Calls<U>(Vec<Call<U>>);

/// Replicas that have not been coordinated as their type needs it: the calls that show it.
///
/// ```
/// # use farfield_hamband::{DataType, recorded::{Calls, Recorded, Uncoordinated, well_coordinated}, types::Account};
/// let mut replica = Recorded::new(Account::default());
/// let deposit = Calls::one(0, 0, Account::deposit_of(5));
/// replica.apply(&deposit)?;
/// replica.apply(&deposit)?; // the same call again
/// let error: Uncoordinated = well_coordinated(&Account::default(), &[Some(replica)]).unwrap_err();
/// assert!(error.to_string().contains("twice"));
/// # Ok::<(), farfield_hamband::types::BalanceTooLow>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Uncoordinated(String);

impl<T: DataType> Recorded<T> {
    /// A replica in its initial state.
    ///
    /// ```
    /// # use farfield_hamband::{recorded::Recorded, types::Account};
    /// assert!(Recorded::new(Account::default()).history().is_empty());
    /// ```
    pub fn new(initial: T) -> Recorded<T> {
        Recorded { state: initial, history: Vec::new() }
    }

    /// The state.
    ///
    /// ```
    /// # use farfield_hamband::{recorded::Recorded, types::Account};
    /// assert_eq!(*Recorded::new(Account::default()).state(), Account::default());
    /// ```
    pub fn state(&self) -> &T {
        &self.state
    }

    /// The calls that the replica has applied, in their order.
    ///
    /// ```
    /// # use farfield_hamband::{DataType, recorded::{Calls, Recorded}, types::Account};
    /// let mut replica = Recorded::new(Account::default());
    /// replica.apply(&Calls::one(0, 0, Account::deposit_of(5)))?;
    /// assert_eq!(replica.history().len(), 1);
    /// # Ok::<(), farfield_hamband::types::BalanceTooLow>(())
    /// ```
    pub fn history(&self) -> &[Call<T::Update>] {
        &self.history
    }
}

impl<U> Calls<U> {
    /// A call. No other one of this process has this number.
    ///
    /// ```
    /// # use farfield_hamband::{recorded::Calls, types::Account};
    /// let call = Calls::one(0, 0, Account::deposit_of(5));
    /// ```
    pub fn one(source: u16, number: u32, update: U) -> Calls<U> {
        Calls(vec![Call { source, number, update }])
    }
}

impl<U: Update> Update for Calls<U> {
    type Method = U::Method;

    fn method(&self) -> U::Method {
        self.0[0].update.method()
    }
}

impl<T: DataType> DataType for Recorded<T> {
    type Update = Calls<T::Update>;
    type Refusal = T::Refusal;

    fn apply(&mut self, calls: &Calls<T::Update>) -> Result<(), T::Refusal> {
        let mut state = self.state.clone();
        calls.0.iter().try_for_each(|call| state.apply(&call.update))?;
        self.state = state;
        self.history.extend_from_slice(&calls.0);
        Ok(())
    }

    fn invariant(&self) -> bool {
        self.state.invariant()
    }

    fn coordination() -> Coordination<<T::Update as Update>::Method> {
        T::coordination()
    }

    fn summarise(first: &Calls<T::Update>, then: &Calls<T::Update>) -> Option<Calls<T::Update>> {
        T::summarise(&first.0.last()?.update, &then.0.first()?.update)?;
        Some(Calls([&first.0[..], &then.0[..]].concat()))
    }

    fn remainder(earlier: &Calls<T::Update>, later: &Calls<T::Update>) -> Option<Calls<T::Update>> {
        later.0.strip_prefix(&earlier.0[..]).map(|more| Calls(more.to_vec()))
    }
}

/// The identity of a call: its process, and its number there.
type Name = (u16, u32);

/// Where the calls stand in one history.
struct Places(BTreeMap<Name, usize>);

impl Places {
    fn of(&self, name: Name) -> Option<usize> {
        self.0.get(&name).copied()
    }
}

/// Whether replicas, by process, have histories that the abstract semantics of figure 5 has too:
///
/// - each replica has applied each call once at most, and each was permissible there, and has kept the invariant (lemma
///   1);
/// - conflicting calls have one order: if one of two is applied before the other somewhere, it is so everywhere;
/// - what a conflict-free call depends on, and was applied before it at its source, is applied before it everywhere;
/// - a conflicting call is permissible after what is applied before it everywhere. Its leader has executed it when it
///   was ordered, and applies it when it is decided: calls that arrive in between are before it there, and need not be
///   elsewhere;
/// - replicas with the same calls have the same state (lemma 2).
///
/// A replica that was lost with its process is `None`: nothing is known of what its own calls depend on.
///
/// ```
/// use farfield_hamband::DataType;
/// use farfield_hamband::recorded::{Calls, Recorded, well_coordinated};
/// use farfield_hamband::types::Account;
/// let mut five = Account::default();
/// five.apply(&Account::deposit_of(5))?;
/// let mut replicas = [(); 2].map(|()| Recorded::new(five.clone()));
/// for (replica, order) in replicas.iter_mut().zip([[1, 2], [2, 1]]) {
///     for amount in order {
///         replica.apply(&Calls::one(amount as u16, 0, Account::withdrawal_of(amount)))?;
///     }
/// }
/// let error = well_coordinated(&five, &replicas.map(Some)).unwrap_err();
/// assert!(error.to_string().contains("conflict"), "{error}");
/// # Ok::<(), farfield_hamband::types::BalanceTooLow>(())
/// ```
///
/// # Errors
/// They have not, with the calls that show it.
pub fn well_coordinated<T: DataType>(initial: &T, replicas: &[Option<Recorded<T>>]) -> Result<(), Uncoordinated> {
    let known: Vec<(usize, &Recorded<T>)> =
        replicas.iter().enumerate().filter_map(|(process, replica)| Some((process, replica.as_ref()?))).collect();
    let mut places = Vec::new();
    for (process, replica) in &known {
        places.push(replayed(initial, *process, replica)?);
    }
    let mut calls: BTreeMap<Name, &Call<T::Update>> = BTreeMap::new();
    for (process, replica) in &known {
        for call in &replica.history {
            let first = *calls.entry(call.name()).or_insert(call);
            if first != call {
                return Err(Uncoordinated(format!("process {process} has applied {call:?}, another one {first:?}")));
            }
        }
    }
    let coordination = T::coordination();
    let fault = |what: &str, earlier: &Call<T::Update>, call: &Call<T::Update>, here: usize, there: usize| {
        let (here, there) = (known[here].0, known[there].0);
        Uncoordinated(format!("{earlier:?} and {call:?}, in this order at process {here}, {what} at process {there}"))
    };
    for (name, call) in &calls {
        let method = call.update.method();
        let before = |at: usize, other: Name| {
            let place = places[at].of(*name)?;
            Some(places[at].of(other).is_some_and(|earlier| earlier < place))
        };
        // Conflicting calls that are before it somewhere.
        for (other, earlier) in &calls {
            if !coordination.conflicts(method, earlier.update.method()) {
                continue;
            }
            let at = |is_before| (0..known.len()).find(|at| before(*at, *other) == Some(is_before));
            if let (Some(here), Some(there)) = (at(true), at(false)) {
                return Err(fault("conflict, and are in another order", earlier, call, here, there));
            }
        }
        // Its dependencies.
        let dependencies = coordination.dependencies(method);
        if coordination.group_of(method).is_some() {
            ordered(initial, &known, call, |at, other| before(at, other) != Some(false))?;
            continue;
        }
        let Some(source) = known.iter().position(|(process, _)| *process == usize::from(call.source)) else { continue };
        for (other, earlier) in &calls {
            let is_first = dependencies.contains(&earlier.update.method()) && before(source, *other) == Some(true);
            let missing = (0..known.len()).find(|at| is_first && before(*at, *other) == Some(false));
            if let Some(at) = missing {
                return Err(fault("depend, and the first is missing", earlier, call, source, at));
            }
        }
    }
    converged(&known)
}

/// Whether an ordered call is permissible after the calls that all processes which have it have before it. (They
/// contain all that these depend on.)
fn ordered<T: DataType>(
    initial: &T,
    known: &[(usize, &Recorded<T>)],
    call: &Call<T::Update>,
    is_before: impl Fn(usize, Name) -> bool,
) -> Result<(), Uncoordinated> {
    let Some((_, replica)) = known.iter().find(|(_, replica)| replica.history.contains(call)) else { return Ok(()) };
    let earlier = replica.history.iter().take_while(|other| *other != call);
    let mut state = initial.clone();
    let common: Vec<_> = earlier.filter(|other| (0..known.len()).all(|at| is_before(at, other.name()))).collect();
    let done = common.iter().chain([&call]).try_for_each(|call| state.apply(&call.update));
    done.map_err(|refusal| {
        Uncoordinated(format!(
            "{call:?} is not permissible after what comes before it everywhere, {common:?}: {refusal}"
        ))
    })
}

/// Where the calls stand in a history, each of which is permissible there and keeps the invariant.
fn replayed<T: DataType>(initial: &T, process: usize, replica: &Recorded<T>) -> Result<Places, Uncoordinated> {
    let (mut state, mut places) = (initial.clone(), BTreeMap::new());
    for (place, call) in replica.history.iter().enumerate() {
        if places.insert(call.name(), place).is_some() {
            return Err(Uncoordinated(format!("process {process} has applied {call:?} twice")));
        }
        state.apply(&call.update).map_err(|refusal| {
            Uncoordinated(format!("{call:?} was not permissible at process {process}, after {place} calls: {refusal}"))
        })?;
        if !state.invariant() {
            return Err(Uncoordinated(format!("process {process} has lost the invariant by {call:?}: {state:?}")));
        }
    }
    if state != replica.state {
        let has = &replica.state;
        return Err(Uncoordinated(format!("process {process} has {has:?}, and by its history {state:?}")));
    }
    Ok(Places(places))
}

/// Replicas with the same calls have the same state.
fn converged<T: DataType>(known: &[(usize, &Recorded<T>)]) -> Result<(), Uncoordinated> {
    let mut states: BTreeMap<Vec<Name>, (usize, &T)> = BTreeMap::new();
    for (process, replica) in known {
        let mut names: Vec<Name> = replica.history.iter().map(Call::name).collect();
        names.sort_unstable();
        let (other, state) = states.entry(names).or_insert((*process, &replica.state));
        if **state != replica.state {
            let has = &replica.state;
            let text = format!("processes {other} and {process} have the same calls, and {state:?} and {has:?}");
            return Err(Uncoordinated(text));
        }
    }
    Ok(())
}

impl<U> Call<U> {
    fn name(&self) -> Name {
        (self.source, self.number)
    }
}
