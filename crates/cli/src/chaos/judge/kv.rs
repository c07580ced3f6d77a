//! Each key's history is linearizable. A value is lost only if it was stored on a killed node, which the error names:
//! the inserter's node, or the node that the key's hash selects.

use std::collections::BTreeMap;

use farfield::history::{Effect, Event, Model, check};

use super::{Findings, Story};
use crate::chaos::log::{Answer, Call, KvOp, Op};

/// One key of a store with nodes that may die.
struct MortalKey {
    /// The nodes for a value, chosen by the key's hash: the first of them that is alive stores it. Empty if the
    /// inserter's node stores the value.
    ring: Vec<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    /// The ranks in the ring that have died: one bit each.
    gone: u64,
    pair: Pair,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Pair {
    Absent {
        /// The home of the value, if its delete was cut short. A node that has seen the key absent has seen it there,
        /// and the other nodes still have it in their indexes.
        lay: Option<u16>,
    },
    There {
        value: u64,
        home: u16,
        /// A call was answered that the key is present. Otherwise its insert was cut short: until the survivors have
        /// resolved it, they may differ in whether the key is lost or was never present.
        is_sure: bool,
    },
    Lost {
        /// The home of the value.
        home: u16,
        /// All nodes find it lost. Otherwise some may find it absent.
        is_sure: bool,
    },
}

#[derive(Clone, Copy, Debug)]
enum Input {
    Call {
        op: KvOp,
        node: u16,
        /// Whether its node knows of all deaths. Where no system reports deaths, the node learns of one later. Until
        /// then it may find lost values present, and may put new values to the dead node.
        is_told: bool,
    },
    /// The death of a node.
    Loss(u16),
    /// While a lost key is inserted or deleted, the other nodes learn of it one after the other.
    Forget,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Output {
    Found(Option<u64>),
    Changed(bool),
    Done,
    /// With the node that the error named.
    Lost(u16),
}

impl MortalKey {
    /// The node that stores a new value.
    fn home(&self, gone: u64, inserter: u16) -> u16 {
        let mut left = self.ring.iter().enumerate().filter(|(place, _)| gone >> place & 1 == 0);
        left.next().map_or(inserter, |(_, node)| *node)
    }

    /// Whether a node of the ring has died.
    fn is_gone(&self, gone: u64, home: u16) -> bool {
        self.ring.iter().position(|node| *node == home).is_some_and(|place| gone >> place & 1 == 1)
    }

    /// The state after a death.
    fn without(&self, dead: u16, state: &State) -> State {
        let pair = match state.pair {
            Pair::There { home, is_sure, .. } if home == dead => Pair::Lost { home, is_sure },
            Pair::Absent { lay: Some(home) } if home == dead => Pair::Lost { home, is_sure: false },
            pair => pair,
        };
        let place = self.ring.iter().position(|node| *node == dead);
        State { gone: state.gone | place.map_or(0, |place| 1 << place), pair }
    }
}

impl Model for MortalKey {
    type Input = Input;
    type Output = Output;
    type State = State;

    fn initial(&self) -> State {
        State { gone: 0, pair: Pair::Absent { lay: None } }
    }

    fn step(&self, state: &State, input: &Input, output: Option<&Output>) -> Option<State> {
        let (op, node, is_told) = match (*input, state.pair) {
            (Input::Call { op, node, is_told }, _) => (op, node, is_told),
            (Input::Loss(dead), _) => return Some(self.without(dead, state)),
            (Input::Forget, Pair::Lost { home, .. }) => {
                return Some(State { pair: Pair::Lost { home, is_sure: false }, ..*state });
            }
            (Input::Forget, _) => return Some(state.clone()),
        };
        let is_sure = output.is_some();
        let (is_there, may_seem_absent, may_seem_there) = match state.pair {
            Pair::Absent { .. } => (false, true, false),
            Pair::There { .. } => (true, false, true),
            Pair::Lost { is_sure, .. } => (false, !is_sure, !is_told),
        };
        // No operation with a dead node succeeds.
        let avoids_dead = is_told || output.is_some();
        let placed = |value| match self.home(if avoids_dead { state.gone } else { 0 }, node) {
            home if self.is_gone(state.gone, home) => Pair::Lost { home, is_sure: false },
            home => Pair::There { value, home, is_sure },
        };
        let changed = |value| match state.pair {
            Pair::There { home, .. } => Pair::There { value, home, is_sure: true },
            _ => placed(value),
        };
        let same = state.pair;
        let pair = match (op, output) {
            (KvOp::Get, Some(Output::Found(Some(found)))) => {
                matches!(same, Pair::There { value, .. } if value == *found).then_some(same)
            }
            (KvOp::Get, Some(Output::Found(None))) => may_seem_absent.then_some(same),
            (KvOp::Get, Some(Output::Lost(named))) => {
                matches!(same, Pair::Lost { home, .. } if home == *named).then_some(same)
            }
            (KvOp::Insert(_), Some(Output::Changed(false))) => may_seem_there.then_some(same),
            (KvOp::Insert(value), None | Some(Output::Changed(true))) => (!is_there).then(|| placed(value)),
            (KvOp::Update(_) | KvOp::Delete, Some(Output::Changed(false))) => may_seem_absent.then_some(same),
            (KvOp::Update(value), None | Some(Output::Changed(true))) => is_there.then(|| changed(value)),
            (KvOp::Upsert(value), None | Some(Output::Done)) => Some(changed(value)),
            (KvOp::Delete, Some(Output::Changed(true))) => {
                (!matches!(same, Pair::Absent { .. })).then_some(Pair::Absent { lay: None })
            }
            (KvOp::Delete, None) => match same {
                Pair::There { home, .. } => Some(Pair::Absent { lay: Some(home) }),
                Pair::Lost { .. } => Some(Pair::Absent { lay: None }),
                Pair::Absent { .. } => None,
            },
            _ => None,
        };
        pair.map(|pair| State { pair, ..*state })
    }

    fn effect(&self, input: &Input, output: Option<&Output>) -> Effect<State> {
        match (input, output) {
            (Input::Call { .. }, Some(Output::Found(_) | Output::Lost(_) | Output::Changed(false))) => {
                Effect::Read { only_in: None }
            }
            _ => Effect::Unknown,
        }
    }
}

/// The events of a call on a key.
fn events_of(call: &Call, op: KvOp, is_told: bool) -> Vec<Event<Input, Output>> {
    let event = |op, output| Event {
        client: u32::from(call.node),
        call_ns: call.begin_ns,
        return_ns: call.end.as_ref().map(|end| end.0),
        input: Input::Call { op, node: call.node, is_told },
        output,
    };
    let mut events = Vec::new();
    let output = match &call.end {
        Some((_, Ok(Answer::Found(found)))) => Some(Output::Found(*found)),
        Some((_, Ok(Answer::Changed(changed)))) => Some(Output::Changed(*changed)),
        Some((_, Ok(_))) => Some(Output::Done),
        Some((_, Err(failure))) if failure.variant == "ValueLost" => {
            // Whatever the operation was, it has found the key lost.
            let named = failure.nodes.first().copied().unwrap_or(u16::MAX);
            events.push(event(KvOp::Get, Some(Output::Lost(named))));
            None
        }
        _ => None,
    };
    // A failed change may have happened or not. A failed get has no effect.
    if output.is_some() || op != KvOp::Get {
        events.push(event(op, output));
    }
    events
}

/// The first step of an insert or delete of a lost key, as far as other nodes can see it.
fn forgetting(event: &Event<Input, Output>) -> Option<Event<Input, Output>> {
    let changes = matches!(event.input, Input::Call { op: KvOp::Insert(_) | KvOp::Upsert(_) | KvOp::Delete, .. });
    let forgets = changes && event.output != Some(Output::Changed(false));
    let output = event.output.map(|_| Output::Done);
    forgets.then_some(Event { input: Input::Forget, output, ..*event })
}

/// The first node for each key's value by the key's hash. All nodes must report the same.
fn homes(story: &Story, findings: &mut Findings) -> BTreeMap<u64, u16> {
    let mut homes: BTreeMap<u64, u16> = BTreeMap::new();
    for call in &story.calls {
        if let (Op::Home { key }, Some((_, Answer::Value(home)))) = (&call.op, call.success()) {
            let known = *homes.entry(*key).or_insert(*home as u16);
            findings.verify("homes of keys", u64::from(known) == *home, || {
                format!("key {key} goes to node {known} for some, to node {home} for node {}", call.node)
            });
        }
    }
    homes
}

pub(super) fn judge(story: &Story, findings: &mut Findings) {
    let homes = homes(story, findings);
    let first_death_ns = story.deaths.iter().map(|death| death.at_ns).min().unwrap_or(u64::MAX);
    let mut keys: BTreeMap<u64, Vec<Event<Input, Output>>> = BTreeMap::new();
    for call in &story.calls {
        if let Op::Kv { key, op } = call.op {
            let events = keys.entry(key).or_default();
            for event in events_of(call, op, story.is_told(call)) {
                // Before the first death, no value was lost. This only saves the checker work.
                if event.answered_ns().is_none_or(|at_ns| at_ns >= first_death_ns) {
                    events.extend(forgetting(&event));
                }
                events.push(event);
            }
        }
    }
    for (key, mut events) in keys {
        let calls = events.iter().filter(|event| matches!(event.input, Input::Call { .. }));
        findings.count("operations on keys", calls.count() as u64);
        let lost = events.iter().filter(|event| matches!(event.output, Some(Output::Lost(_))));
        findings.count("lost values seen", lost.count() as u64);
        for death in &story.deaths {
            let (input, output) = (Input::Loss(death.node), Output::Done);
            // It is not optional: otherwise a value that is placed there later could be lost without a death.
            events.push(Event::returned(u32::from(death.node), death.at_ns, death.gone_ns, input, output));
        }
        // In the order of their numbers, from the key's home on.
        let first = homes.get(&key).and_then(|home| story.members.iter().position(|member| member == home));
        let from_home = |first| story.members.iter().cycle().skip(first).take(story.members.len()).copied().collect();
        let model = MortalKey { ring: first.map_or_else(Vec::new, from_home) };
        findings.verify("keys placed by hash", model.ring.is_empty() != story.is_placed_by_hash, || {
            format!("key {key} is not placed as it was asked for: its home is {:?}", homes.get(&key))
        });
        let verdict = check(&model, &events, Default::default());
        findings.verify("histories of keys", verdict.is_linearizable(), || {
            format!("the history of key {key} is wrong, or cannot be judged: {verdict}")
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{call, counts, death_of, failure, found, judged, story};
    use super::*;
    use crate::chaos::judge::Death;
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
        on_key(0, begin_ns, KvOp::Get, Err(Failure { variant: "ValueLost".into(), ..death_of(2) }))
    }

    #[test]
    fn values_on_a_dead_node_are_lost_until_inserted_again() {
        let again = on_key(1, 1200, KvOp::Insert(8), Ok(Answer::Changed(true)));
        let good = [inserted_by(2), got(20, Some(7)), lost(1100), again.clone(), got(1300, Some(8))];
        assert_eq!(found(judge, good.to_vec()), [""; 0]);
        assert_eq!(found(judge, vec![inserted_by(2), lost(20)]).len(), 1, "before the death");
        assert_eq!(found(judge, vec![inserted_by(2), got(1100, None)]).len(), 1, "lost, and nothing else");
        assert_eq!(found(judge, vec![inserted_by(2), lost(1100), again, lost(1300)]).len(), 1, "it is there again");
        let slowly = call(1, 1200, Op::Kv { key: 1, op: KvOp::Insert(8) }, Some((1400, Ok(Answer::Changed(true)))));
        let meanwhile = [inserted_by(2), lost(1100), slowly, got(1300, None)];
        assert_eq!(found(judge, meanwhile.to_vec()), [""; 0], "absent while it is inserted again");
        let others_not_yet = [&meanwhile[..], &[lost(1350)]].concat();
        assert_eq!(found(judge, others_not_yet), [""; 0], "others do not know of that yet");
        let update = on_key(0, 1100, KvOp::Update(8), Err(Failure { variant: "ValueLost".into(), ..death_of(2) }));
        assert_eq!(found(judge, vec![inserted_by(2), update.clone()]), [""; 0]);
        assert_eq!(found(judge, vec![inserted_by(1), update]).len(), 1, "it says that what is there is lost");
    }

    /// The violations in a history of a key with home `home` by its hash, where node 2 has died.
    fn found_by_hash(home: u16, calls: Vec<Call>) -> Vec<String> {
        let said = call(0, 1, Op::Home { key: 1 }, Some((2, Ok(Answer::Value(u64::from(home))))));
        let story = Story { is_placed_by_hash: true, ..story([vec![said], calls].concat()) };
        let mut findings = Findings::default();
        judge(&story, &mut findings);
        findings.violations
    }

    #[test]
    fn a_value_placed_by_hash_is_lost_with_its_home_only() {
        for inserter in [1, 2] {
            assert_eq!(found_by_hash(2, vec![inserted_by(inserter), lost(1100)]), [""; 0]);
            assert_eq!(found_by_hash(0, vec![inserted_by(inserter), lost(1100)]).len(), 1, "it lay on a survivor");
            assert_eq!(found_by_hash(1, vec![inserted_by(inserter), got(1100, Some(7))]), [""; 0]);
        }
        // When its home has died, the next node stores it: it cannot be lost there.
        let later = on_key(1, 1200, KvOp::Insert(8), Ok(Answer::Changed(true)));
        assert_eq!(found_by_hash(2, vec![later.clone(), got(1300, Some(8))]), [""; 0]);
        assert_eq!(found_by_hash(2, vec![later, lost(1300)]).len(), 1, "it lies on a survivor");
        assert_eq!(found_by_hash(9, vec![inserted_by(1)]).len(), 1, "nobody knows its home");
    }

    #[test]
    fn a_lost_value_may_seem_present_until_the_death_is_detected() {
        let found_after = |detection_ns, calls: Vec<Call>| {
            let mut findings = Findings::default();
            judge(&Story { detection_ns, ..story(calls) }, &mut findings);
            findings.violations
        };
        let second = 1_000_000_000;
        let again = |at_ns, answer| on_key(1, at_ns, KvOp::Insert(8), Ok(Answer::Changed(answer)));
        let calls = vec![inserted_by(2), lost(1100), again(1200, false), again(1300, true), got(1400, Some(8))];
        assert_eq!(found_after(second, calls.clone()), [""; 0]);
        assert_eq!(found_after(0, calls).len(), 1, "the system has told it");
        let late = again(3 * second, false);
        assert_eq!(found_after(second, vec![inserted_by(2), lost(1100), late]).len(), 1, "it has had the time");
    }

    #[test]
    fn values_on_a_survivor_stay() {
        assert_eq!(found(judge, vec![inserted_by(1), got(1100, Some(7))]), [""; 0]);
        assert_eq!(found(judge, vec![inserted_by(1), lost(1100)]).len(), 1);
        assert_eq!(found(judge, vec![inserted_by(1), got(1100, None)]).len(), 1);
    }

    #[test]
    fn a_call_cut_short_by_death_has_taken_effect_or_not() {
        let cut = call(2, 990, Op::Kv { key: 1, op: KvOp::Insert(7) }, None);
        for seen in [vec![lost(1100)], vec![got(1100, None)], vec![lost(1100), got(1200, None)]] {
            assert_eq!(found(judge, [vec![cut.clone()], seen].concat()), [""; 0]);
        }
        assert_eq!(found(judge, vec![cut, got(1100, Some(9))]).len(), 1);
    }

    #[test]
    fn a_key_that_a_dead_node_was_deleting_may_be_seen_absent() {
        let cut = call(2, 900, Op::Kv { key: 1, op: KvOp::Delete }, None);
        assert_eq!(found(judge, vec![inserted_by(2), cut, got(950, None), lost(1100)]), [""; 0]);
        let done = on_key(2, 900, KvOp::Delete, Ok(Answer::Changed(true)));
        assert_eq!(found(judge, vec![inserted_by(2), done, got(950, None), lost(1100)]).len(), 1, "it was told so");
        // The value lay on a survivor. Only the deleting node has died.
        let cut = call(2, 900, Op::Kv { key: 1, op: KvOp::Delete }, None);
        let lost_on_1 = on_key(0, 1100, KvOp::Get, Err(failure("ValueLost", &[1])));
        assert_eq!(found(judge, vec![inserted_by(1), cut, lost_on_1]).len(), 1);
    }

    #[test]
    fn calls_and_lost_values_are_counted() {
        let timed_out = |op| on_key(0, 1200, op, Err(failure("Timeout", &[2])));
        let update = on_key(0, 1150, KvOp::Update(8), Err(Failure { variant: "ValueLost".into(), ..death_of(2) }));
        // A failed get has no effect. A failed update that has found a value lost counts as a get, too.
        let calls = vec![inserted_by(2), lost(1100), update, timed_out(KvOp::Get), timed_out(KvOp::Update(9))];
        let findings = judged(judge, &story(calls));
        let expected =
            [("histories of keys", 1), ("keys placed by hash", 1), ("lost values seen", 2), ("operations on keys", 5)];
        assert_eq!((counts(&findings), findings.violations.len()), (expected.to_vec(), 0));
    }

    #[test]
    fn a_timeout_does_not_say_that_a_value_is_lost() {
        let timed_out = on_key(0, 1100, KvOp::Update(8), Err(failure("Timeout", &[2])));
        for value in [7, 8] {
            assert_eq!(found(judge, vec![inserted_by(1), timed_out.clone(), got(1200, Some(value))]), [""; 0]);
        }
    }

    #[test]
    fn an_insert_that_failed_to_find_the_key_absent_forgets_nothing() {
        let found = |answer| {
            let again = on_key(1, 1200, KvOp::Insert(8), Ok(Answer::Changed(answer)));
            let calls = vec![inserted_by(2), lost(1100), again, got(1203, None)];
            judged(judge, &Story { detection_ns: 1_000_000_000, ..story(calls) }).violations.len()
        };
        assert_eq!((found(true), found(false)), (0, 1));
    }

    #[test]
    fn a_call_that_ends_at_the_death_may_come_after_it() {
        let slow = |node, op, answer| call(node, 990, Op::Kv { key: 1, op }, Some((1000, Ok(answer))));
        let again = slow(1, KvOp::Insert(8), Answer::Changed(true));
        let absent = slow(0, KvOp::Get, Answer::Found(None));
        assert_eq!(found(judge, vec![inserted_by(2), again, absent]), [""; 0], "the death may have come first");
    }

    #[test]
    fn all_nodes_report_the_same_home() {
        let said = |node, home| call(node, 1, Op::Home { key: 1 }, Some((2, Ok(Answer::Value(home)))));
        let of = |homes: [u64; 2]| judged(judge, &story(vec![said(0, homes[0]), said(1, homes[1])]));
        assert_eq!((counts(&of([2, 2])), of([2, 2]).violations), (vec![("homes of keys", 2)], vec![]));
        assert_eq!(of([2, 0]).violations, ["key 1 goes to node 2 for some, to node 0 for node 1"]);
    }

    #[test]
    fn a_new_value_goes_to_the_next_node_of_the_ring_that_lives() {
        let later = on_key(1, 1200, KvOp::Insert(8), Ok(Answer::Changed(true)));
        let lost_on_0 = on_key(1, 2100, KvOp::Get, Err(failure("ValueLost", &[0])));
        // The ring is 2, 0, 1. Node 2 dies at 1000, and node 0 at 2000.
        let found = |last: Call| {
            let said = call(0, 1, Op::Home { key: 1 }, Some((2, Ok(Answer::Value(2)))));
            let mut story = Story { is_placed_by_hash: true, ..story(vec![said, later.clone(), last]) };
            story.deaths.push(Death { node: 0, at_ns: 2000, gone_ns: 2050, told_ns: 2000 });
            judged(judge, &story).violations.len()
        };
        assert_eq!(found(lost_on_0), 0);
        assert_eq!(found(on_key(1, 2100, KvOp::Get, Ok(Answer::Found(Some(8))))), 1, "it lay on node 0");
    }

    #[test]
    fn only_a_failed_call_of_a_node_that_does_not_know_of_a_death_may_put_a_value_there() {
        let second = 1_000_000_000;
        // An insert after the death of the key's home, and what is seen then.
        let found = |begin_ns: u64, answer: Outcome, seen: Call| {
            let said = call(0, 1, Op::Home { key: 1 }, Some((2, Ok(Answer::Value(2)))));
            let insert = on_key(1, begin_ns, KvOp::Insert(8), answer);
            let story = Story { is_placed_by_hash: true, ..story(vec![said, insert, seen]) };
            judged(judge, &Story { detection_ns: second, ..story }).violations.len()
        };
        let (early, late) = (1100, 3 * second);
        let (done, failed) = (|| Ok(Answer::Changed(true)), || Err(failure("Timeout", &[])));
        for begin_ns in [early, late] {
            let seen_ns = begin_ns + 100;
            assert_eq!(found(begin_ns, done(), got(seen_ns, Some(8))), 0, "at {begin_ns} ns");
            assert_eq!(found(begin_ns, done(), lost(seen_ns)), 1, "at {begin_ns} ns");
            assert_eq!(found(begin_ns, failed(), got(seen_ns, None)), 0, "at {begin_ns} ns");
        }
        assert_eq!(found(early, failed(), lost(early + 100)), 0, "it may have put the value to node 2");
        assert_eq!(found(late, failed(), lost(late + 100)), 1, "it knew that node 2 is dead");
        assert_eq!(found(late, failed(), got(late + 100, Some(8))), 0, "another node stores it");
    }
}
