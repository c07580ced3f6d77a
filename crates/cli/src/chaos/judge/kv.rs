//! Each key's history is linearizable, and a value is lost only if it lay on a node that was killed.

use std::collections::BTreeMap;

use farfield::history::{Effect, Event, Model, Verdict, check};

use super::{Findings, Story};
use crate::chaos::log::{Answer, Call, KvOp, Op};

/// One key of a store whose nodes may die.
struct MortalKey {
    /// Where a value lies is not known.
    is_placed_by_hash: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    Absent {
        /// Where the value lay, if its delete was cut short: who has seen that it is absent has seen it there, and the
        /// others know of it still.
        lay: Option<u16>,
    },
    There {
        value: u64,
        home: u16,
        /// Somebody was told that it is there. Otherwise its insert was cut short: the survivors may then differ, until
        /// they have settled it, in whether the key is lost or was never there.
        is_sure: bool,
    },
    Lost {
        is_sure: bool,
    },
}

#[derive(Clone, Copy, Debug)]
enum Input {
    Call {
        op: KvOp,
        node: u16,
    },
    /// The death of a node.
    Loss(u16),
    /// A lost key is absent for a moment while it is inserted again.
    Forget,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Output {
    Found(Option<u64>),
    Changed(bool),
    Done,
    Lost,
}

impl Model for MortalKey {
    type Input = Input;
    type Output = Output;
    type State = State;

    fn initial(&self) -> State {
        State::Absent { lay: None }
    }

    fn step(&self, state: &State, input: &Input, output: Option<&Output>) -> Option<State> {
        let (op, node) = match *input {
            Input::Call { op, node } => (op, node),
            Input::Loss(dead) => {
                return match *state {
                    State::There { home, is_sure, .. } if home == dead || self.is_placed_by_hash => {
                        Some(State::Lost { is_sure })
                    }
                    State::Absent { lay: Some(home) } if home == dead || self.is_placed_by_hash => {
                        Some(State::Lost { is_sure: false })
                    }
                    _ => None,
                };
            }
            Input::Forget => {
                let is_lost = matches!(state, State::Lost { .. });
                return Some(if is_lost { State::Absent { lay: None } } else { state.clone() });
            }
        };
        let is_sure = output.is_some();
        let (is_there, may_seem_absent) = match *state {
            State::Absent { .. } => (false, true),
            State::There { .. } => (true, false),
            State::Lost { is_sure } => (false, !is_sure),
        };
        let placed = |value| State::There { value, home: node, is_sure };
        let changed = |value| match *state {
            State::There { home, .. } => State::There { value, home, is_sure: true },
            _ => placed(value),
        };
        match (op, output) {
            (KvOp::Get, Some(Output::Found(Some(found)))) => {
                matches!(state, State::There { value, .. } if value == found).then(|| state.clone())
            }
            (KvOp::Get, Some(Output::Found(None))) => may_seem_absent.then(|| state.clone()),
            (KvOp::Get, Some(Output::Lost)) => matches!(state, State::Lost { .. }).then(|| state.clone()),
            (KvOp::Insert(_), Some(Output::Changed(false))) => is_there.then(|| state.clone()),
            (KvOp::Insert(value), None | Some(Output::Changed(true))) => (!is_there).then(|| placed(value)),
            (KvOp::Update(_) | KvOp::Delete, Some(Output::Changed(false))) => may_seem_absent.then(|| state.clone()),
            (KvOp::Update(value), None | Some(Output::Changed(true))) => is_there.then(|| changed(value)),
            (KvOp::Upsert(value), None | Some(Output::Done)) => Some(changed(value)),
            (KvOp::Delete, Some(Output::Changed(true))) => {
                (!matches!(state, State::Absent { .. })).then_some(State::Absent { lay: None })
            }
            (KvOp::Delete, None) => match *state {
                State::There { home, .. } => Some(State::Absent { lay: Some(home) }),
                State::Lost { .. } => Some(State::Absent { lay: None }),
                State::Absent { .. } => None,
            },
            _ => None,
        }
    }

    fn effect(&self, input: &Input, output: Option<&Output>) -> Effect<State> {
        match (input, output) {
            (Input::Call { .. }, Some(Output::Found(_) | Output::Lost | Output::Changed(false))) => {
                Effect::Read { only_in: None }
            }
            _ => Effect::Unknown,
        }
    }
}

/// The event of a call; none if it can have had no effect.
fn event_of(call: &Call, op: KvOp) -> Option<Event<Input, Output>> {
    let output = match &call.end {
        Some((_, Ok(Answer::Found(found)))) => Some(Output::Found(*found)),
        Some((_, Ok(Answer::Changed(changed)))) => Some(Output::Changed(*changed)),
        Some((_, Ok(_))) => Some(Output::Done),
        Some((_, Err(failure))) if op == KvOp::Get && failure.variant == "Lost" => Some(Output::Lost),
        // Whether a change that failed has happened is not known.
        _ if op == KvOp::Get => return None,
        _ => None,
    };
    let return_ns = call.end.as_ref().map(|end| end.0);
    let input = Input::Call { op, node: call.node };
    Some(Event { client: u32::from(call.node), call_ns: call.begin_ns, return_ns, input, output })
}

/// What an insert does first if the key is lost, as far as others can see it.
fn forgetting(event: &Event<Input, Output>) -> Option<Event<Input, Output>> {
    let inserts = matches!(event.input, Input::Call { op: KvOp::Insert(_) | KvOp::Upsert(_), .. });
    let forgets = inserts && event.output != Some(Output::Changed(false));
    let output = event.output.map(|_| Output::Done);
    forgets.then_some(Event { input: Input::Forget, output, ..*event })
}

pub(super) fn judge(story: &Story, findings: &mut Findings) {
    let first_death_ns = story.deaths.iter().map(|death| death.1).min().unwrap_or(u64::MAX);
    let mut keys: BTreeMap<u64, Vec<Event<Input, Output>>> = BTreeMap::new();
    for call in &story.calls {
        if let Op::Kv { key, op } = call.op
            && let Some(event) = event_of(call, op)
        {
            let events = keys.entry(key).or_default();
            // Before that nothing was lost.
            if event.answered_ns().is_none_or(|at_ns| at_ns > first_death_ns) {
                events.extend(forgetting(&event));
            }
            events.push(event);
        }
    }
    let model = MortalKey { is_placed_by_hash: story.is_placed_by_hash };
    for (key, mut events) in keys {
        let calls = events.iter().filter(|event| matches!(event.input, Input::Call { .. }));
        findings.count("operations on keys", calls.count() as u64);
        findings.count("lost values seen", events.iter().filter(|it| it.output == Some(Output::Lost)).count() as u64);
        for (node, at_ns) in &story.deaths {
            events.push(Event::pending(u32::from(*node), *at_ns, Input::Loss(*node)));
        }
        let verdict = check(&model, &events, Default::default());
        findings.verify("histories of keys", verdict.is_linearizable(), || {
            let what = if matches!(verdict, Verdict::Undecided { .. }) { "cannot be judged" } else { "is wrong" };
            format!("the history of key {key} {what}: {verdict}")
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{call, death_of, found};
    use super::*;
    use crate::chaos::log::{Failure, Outcome};

    fn on_key(node: u16, begin_ns: u64, op: KvOp, outcome: Outcome) -> Call {
        call(node, begin_ns, Op::Kv { key: 1, op }, Some((begin_ns + 5, outcome)))
    }

    fn inserted_by(node: u16) -> Call {
        on_key(node, 10, KvOp::Insert(7), Ok(Answer::Changed(true)))
    }

    fn got(begin_ns: u64, found: Option<u64>) -> Call {
        on_key(0, begin_ns, KvOp::Get, Ok(Answer::Found(found)))
    }

    fn lost(begin_ns: u64) -> Call {
        on_key(0, begin_ns, KvOp::Get, Err(Failure { variant: "Lost".into(), ..death_of(2) }))
    }

    #[test]
    fn what_lay_on_the_dead_is_lost_until_inserted_again() {
        let again = on_key(1, 1200, KvOp::Insert(8), Ok(Answer::Changed(true)));
        let good = [inserted_by(2), got(20, Some(7)), lost(1100), again.clone(), got(1300, Some(8))];
        assert_eq!(found(judge, good.to_vec()), [""; 0]);
        assert_eq!(found(judge, vec![inserted_by(2), lost(20)]).len(), 1, "before the death");
        assert_eq!(found(judge, vec![inserted_by(2), got(1100, None)]).len(), 1, "lost, and nothing else");
        assert_eq!(found(judge, vec![inserted_by(2), lost(1100), again, lost(1300)]).len(), 1, "it is there again");
        let slowly = call(1, 1200, Op::Kv { key: 1, op: KvOp::Insert(8) }, Some((1400, Ok(Answer::Changed(true)))));
        let meanwhile = [inserted_by(2), lost(1100), slowly, got(1300, None)];
        assert_eq!(found(judge, meanwhile.to_vec()), [""; 0], "absent while it is inserted again");
    }

    #[test]
    fn what_lay_on_a_survivor_stays() {
        assert_eq!(found(judge, vec![inserted_by(1), got(1100, Some(7))]), [""; 0]);
        assert_eq!(found(judge, vec![inserted_by(1), lost(1100)]).len(), 1);
        assert_eq!(found(judge, vec![inserted_by(1), got(1100, None)]).len(), 1);
    }

    #[test]
    fn what_the_dead_had_begun_has_happened_or_not() {
        let cut = call(2, 990, Op::Kv { key: 1, op: KvOp::Insert(7) }, None);
        for seen in [vec![lost(1100)], vec![got(1100, None)], vec![lost(1100), got(1200, None)]] {
            assert_eq!(found(judge, [vec![cut.clone()], seen].concat()), [""; 0]);
        }
        assert_eq!(found(judge, vec![cut, got(1100, Some(9))]).len(), 1);
    }

    #[test]
    fn what_the_dead_had_begun_to_delete_may_have_been_seen_to_be_absent() {
        let cut = call(2, 900, Op::Kv { key: 1, op: KvOp::Delete }, None);
        assert_eq!(found(judge, vec![inserted_by(2), cut, got(950, None), lost(1100)]), [""; 0]);
        let done = on_key(2, 900, KvOp::Delete, Ok(Answer::Changed(true)));
        assert_eq!(found(judge, vec![inserted_by(2), done, got(950, None), lost(1100)]).len(), 1, "it was told so");
    }
}
