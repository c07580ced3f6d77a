//! The relations of §3.2 and §3.3 in one state, for a few calls.

use core::fmt::Debug;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::refuted::{Example, Refuted, Relation};
use crate::coordination::Coordination;
use crate::data_type::{DataType, Method, Update};

pub(super) type MethodOf<T> = <<T as DataType>::Update as Update>::Method;

/// The name of a method.
pub(super) fn name<M: Method>(method: M) -> &'static str {
    M::NAMES[method.number()]
}

/// The name of the method of a call.
pub(super) fn name_of<U: Update>(call: &U) -> &'static str {
    name(call.method())
}

/// A state, and calls that lead to it.
#[derive(Clone)]
pub(super) struct Place<T: DataType> {
    pub(super) state: T,
    pub(super) history: Vec<T::Update>,
}

/// A call in a state: the state after it, or the refusal.
type After<T> = Result<T, String>;

/// Whether two calls are never both made.
pub(super) type NeverBoth<U> = Box<dyn Fn(&U, &U) -> bool>;

/// The laws that are to hold of a type.
pub(super) struct Laws<T: DataType> {
    pub(super) initial: T,
    pub(super) coordination: Coordination<MethodOf<T>>,
    /// The summarisation group of each method.
    pub(super) summarised: Vec<Option<usize>>,
    pub(super) never_both: NeverBoth<T::Update>,
}

/// The findings in samples: relations that are needed, by numbers of methods, and methods of which a call was
/// permissible.
#[derive(Default, Clone)]
pub(super) struct Seen {
    pub(super) conflicts: BTreeSet<(usize, usize)>,
    pub(super) dependencies: BTreeSet<(usize, usize)>,
    pub(super) permissible: BTreeSet<usize>,
    pub(super) states: usize,
    pub(super) pairs: usize,
}

impl<T: DataType> Laws<T> {
    pub(super) fn new(initial: T, coordination: Coordination<MethodOf<T>>) -> Laws<T> {
        let groups = coordination.summary_groups();
        let group_of = |method| groups.iter().position(|group| group.contains(method));
        let summarised = MethodOf::<T>::ALL.iter().map(group_of).collect();
        Laws { initial, coordination, summarised, never_both: Box::new(|_, _| false) }
    }

    /// The initial state, in which the invariant holds.
    pub(super) fn start(&self) -> Result<Place<T>, Refuted> {
        let place = Place { state: self.initial.clone(), history: Vec::new() };
        if !place.state.invariant() {
            return Err(place.refuted(Relation::Initial, []));
        }
        Ok(place)
    }

    /// Whether a call can be made after this history.
    pub(super) fn can_follow(&self, place: &Place<T>, call: &T::Update) -> bool {
        !place.history.iter().any(|other| (self.never_both)(other, call))
    }

    /// The state that these calls lead to; those that are refused are left out.
    pub(super) fn reach(&self, calls: &[T::Update]) -> Result<Place<T>, Refuted> {
        let mut place = self.start()?;
        for call in calls {
            if self.can_follow(&place, call)
                && let Ok(state) = self.step(&place, call)?
            {
                place.state = state;
                place.history.push(call.clone());
            }
        }
        Ok(place)
    }

    /// Applies a call, with all that has to hold of `apply`, `check` and the codecs.
    fn step(&self, place: &Place<T>, call: &T::Update) -> Result<After<T>, Refuted> {
        let method = name_of(call);
        let label = format!("{call:?}");
        let (mut state, mut again) = (place.state.clone(), place.state.clone());
        let outcome =
            match catch_unwind(AssertUnwindSafe(|| (state.apply(call), again.apply(call), place.state.check(call)))) {
                Ok(outcome) => outcome,
                Err(panic) => {
                    let text = panic.downcast_ref::<String>().map(|text| &**text);
                    let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("it panics");
                    return Err(place.refuted(Relation::Panics { method }, [(label, text.to_owned())]));
                }
            };
        let (applied, applied_again, checked) = outcome;
        let shown = |state: &T, outcome: &Result<(), T::Refusal>| match outcome {
            Ok(()) => format!("{state:?}"),
            Err(refusal) => format!("refused: {refusal}"),
        };
        if applied.is_ok() != applied_again.is_ok() || state != again {
            let lines = [(label.clone(), shown(&state, &applied)), (label, shown(&again, &applied_again))];
            return Err(place.refuted(Relation::NotDeterministic { method }, lines));
        }
        if checked.is_ok() != applied.is_ok() {
            let checked = checked.map_or_else(|refusal| format!("refused: {refusal}"), |()| "permissible".to_owned());
            let lines = [(label.clone(), shown(&state, &applied)), (format!("check of {label}"), checked)];
            return Err(place.refuted(Relation::CheckDiffers { method }, lines));
        }
        if let Err(refusal) = applied {
            if state != place.state {
                let text = format!("{state:?}, and refused: {refusal}");
                return Err(place.refuted(Relation::RefusalChangesState { method }, [(label, text)]));
            }
            return Ok(Err(refusal.to_string()));
        }
        if !state.invariant() {
            return Err(place.refuted(Relation::Invariant { method }, [(label, format!("{state:?}"))]));
        }
        for (what, decoded) in [("the state".to_owned(), reencoded(&state)), (format!("`{method}`"), reencoded(call))] {
            if let Some(decoded) = decoded {
                let lines = [(label, format!("{state:?}")), ("decoded".to_owned(), decoded)];
                return Err(place.refuted(Relation::Codec { what }, lines));
            }
        }
        Ok(Ok(state))
    }

    /// Applies a call after another one. The laws of `apply` are tested where it is the first.
    pub(super) fn then(&self, state: &T, call: &T::Update) -> After<T> {
        let mut state = state.clone();
        match catch_unwind(AssertUnwindSafe(|| state.apply(call))) {
            Ok(Ok(())) if state.invariant() => Ok(state),
            Ok(Ok(())) => Err("it breaks the invariant".to_owned()),
            Ok(Err(refusal)) => Err(refusal.to_string()),
            Err(_) => Err("it panics".to_owned()),
        }
    }

    /// Tests every relation of these calls in a state. Returns the states after those that are permissible.
    pub(super) fn judge(
        &self,
        place: &Place<T>,
        calls: &[T::Update],
        seen: &mut Seen,
    ) -> Result<Vec<Place<T>>, Refuted> {
        let calls: Vec<&T::Update> = calls.iter().filter(|call| self.can_follow(place, call)).collect();
        let after = calls.iter().map(|call| self.step(place, call)).collect::<Result<Vec<_>, _>>()?;
        seen.states += 1;
        for (one, first) in calls.iter().enumerate() {
            let Ok(state) = &after[one] else { continue };
            seen.permissible.insert(first.method().number());
            for (other, second) in calls.iter().enumerate() {
                if (self.never_both)(first, second) {
                    continue;
                }
                seen.pairs += 1;
                let both = self.then(state, second);
                if both.is_err() {
                    // It is a refusal, and not a fault of the code.
                    drop(self.step(&place.then(first, state.clone()), second)?);
                }
                let pair = Pair { place, calls: [first, second], after: [&after[one], &after[other]], both: &both };
                self.concur(&pair, one <= other, seen)?;
                self.is_independent(&pair, seen)?;
                self.is_summarised(&pair)?;
            }
        }
        let states = calls.iter().zip(after).filter_map(|(call, state)| Some((*call, state.ok()?)));
        Ok(states.map(|(call, state)| place.then(call, state)).collect())
    }

    /// *Concur* (§3.2): both calls are permissible, and in both orders, to the same state.
    fn concur(&self, pair: &Pair<'_, T>, asks_commute: bool, seen: &mut Seen) -> Result<(), Refuted> {
        let ([first, second], [Ok(_), Ok(alone)]) = (pair.calls, pair.after) else { return Ok(()) };
        let (one, other) = (first.method(), second.method());
        let names = [name(one), name(other)];
        let relation = match pair.both {
            // c₂ is not invariant-sufficient, since c₁(σ) has the invariant.
            Err(_) => Relation::PermissibleConflict { method: names[1], with: names[0] },
            Ok(both) if asks_commute => match self.then(alone, first) {
                Ok(turned) if turned != *both => Relation::StateConflict { methods: names },
                _ => return Ok(()),
            },
            Ok(_) => return Ok(()),
        };
        if self.coordination.conflicts(one, other) {
            seen.conflicts.insert((one.number().min(other.number()), one.number().max(other.number())));
            return Ok(());
        }
        let turned = match &relation {
            Relation::StateConflict { .. } => Some((vec![second, first], self.then(alone, first))),
            _ => None,
        };
        Err(pair.refuted(relation, turned))
    }

    /// *Independent* (§3.2): c₂ is permissible before c₁ if it is after it. Calls that conflict have the same order
    /// everywhere, so they need not be declared dependent.
    fn is_independent(&self, pair: &Pair<'_, T>, seen: &mut Seen) -> Result<(), Refuted> {
        let [on, method] = pair.calls.map(Update::method);
        // c₂ is not invariant-sufficient, since σ has the invariant.
        if pair.both.is_err() || pair.after[1].is_ok() {
            return Ok(());
        }
        if self.coordination.dependencies(method).contains(&on) {
            seen.dependencies.insert((method.number(), on.number()));
            return Ok(());
        }
        if self.coordination.conflicts(method, on) {
            return Ok(());
        }
        Err(pair.refuted(Relation::Dependency { method: name(method), on: name(on) }, None))
    }

    /// *Summarize* (§3.3), and the remainder that a replica applies instead of the second summary.
    fn is_summarised(&self, pair: &Pair<'_, T>) -> Result<(), Refuted> {
        let ([first, second], Ok(both)) = (pair.calls, pair.both) else { return Ok(()) };
        let Ok(state) = pair.after[0] else { return Ok(()) };
        let group = |call: &T::Update| self.summarised[call.method().number()];
        if group(first).is_none() || group(first) != group(second) {
            return Ok(());
        }
        let methods = [name_of(first), name_of(second)];
        let summarised = |one: &T::Update, other: &T::Update, state: &T, wanted: &T| match T::summarise(one, other)
            .filter(|summary| group(summary) == group(one))
        {
            None => Err(pair.refuted(Relation::NoSummary { methods }, None)),
            Some(summary) => match self.then(state, &summary) {
                Ok(state) if state == *wanted => Ok(summary),
                outcome => Err(pair.with_call(Relation::WrongSummary { methods }, "the summary", &summary, outcome)),
            },
        };
        let remains = |earlier: &T::Update, later: &T::Update, state: &T, wanted: &T| {
            let relation = Relation::WrongRemainder { methods: [name_of(earlier), name_of(later)] };
            match T::remainder(earlier, later) {
                None => Err(pair.refuted(relation, None)),
                Some(remainder) => match self.then(state, &remainder) {
                    Ok(state) if state == *wanted => Ok(()),
                    outcome => {
                        Err(pair.with_call(relation, "after the first call, the remainder", &remainder, outcome))
                    }
                },
            }
        };
        let summary = summarised(first, second, &pair.place.state, both)?;
        remains(first, &summary, state, both)?;
        // A summary of summaries, and its remainders after its first part, and after both.
        if !(self.never_both)(first, first)
            && let Ok(third) = self.then(both, first)
        {
            let longer = summarised(&summary, first, &pair.place.state, &third)?;
            remains(&summary, &longer, both, &third)?;
            remains(first, &longer, state, &third)?;
        }
        Ok(())
    }
}

/// Two calls in a state.
struct Pair<'a, T: DataType> {
    place: &'a Place<T>,
    calls: [&'a T::Update; 2],
    /// After one of them.
    after: [&'a After<T>; 2],
    /// After the first and then the second.
    both: &'a After<T>,
}

impl<T: DataType> Pair<'_, T> {
    fn lines(&self) -> Vec<(String, String)> {
        let [first, second] = self.calls;
        let mut lines = vec![(label(&[first]), shown(self.after[0])), (label(&[first, second]), shown(self.both))];
        if first != second {
            lines.push((label(&[second]), shown(self.after[1])));
        }
        lines
    }

    fn refuted(&self, relation: Relation, more: Option<(Vec<&T::Update>, After<T>)>) -> Refuted {
        let more = more.map(|(calls, outcome)| (label(&calls), shown(&outcome)));
        self.place.refuted(relation, self.lines().into_iter().chain(more))
    }

    fn with_call(&self, relation: Relation, what: &str, call: &T::Update, outcome: After<T>) -> Refuted {
        let more = (format!("{what} {call:?}"), shown(&outcome));
        self.place.refuted(relation, self.lines().into_iter().chain([more]))
    }
}

fn label<U: Debug>(calls: &[&U]) -> String {
    calls.iter().map(|call| format!("{call:?}")).collect::<Vec<_>>().join(", then ")
}

pub(super) fn shown<T: Debug>(outcome: &After<T>) -> String {
    match outcome {
        Ok(state) => format!("{state:?}"),
        Err(refusal) => format!("refused: {refusal}"),
    }
}

impl<T: DataType> Place<T> {
    fn then(&self, call: &T::Update, state: T) -> Place<T> {
        Place { state, history: self.history.iter().chain([call]).cloned().collect() }
    }

    /// An example that starts in this state.
    fn refuted(&self, relation: Relation, lines: impl IntoIterator<Item = (String, String)>) -> Refuted {
        let before = [("before".to_owned(), format!("{:?}", self.state))];
        let reached_by = self.history.iter().map(|call| format!("{call:?}")).collect();
        Refuted { relation, example: Example { reached_by, lines: before.into_iter().chain(lines).collect() } }
    }
}

/// The decoded form of a value that was encoded, if it differs.
fn reencoded<V: Serialize + DeserializeOwned + PartialEq + Debug>(value: &V) -> Option<String> {
    let decoded = postcard::to_allocvec(value).and_then(|bytes| postcard::from_bytes::<V>(&bytes));
    match decoded {
        Ok(decoded) if decoded == *value => None,
        Ok(decoded) => Some(format!("{decoded:?}")),
        Err(error) => Some(error.to_string()),
    }
}
