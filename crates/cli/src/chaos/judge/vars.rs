//! Each addition counts once, in an order that fits the times. Pushed values never move backwards, and all arrive in
//! the end.

use std::collections::{BTreeMap, BTreeSet};

use super::{Findings, Story};
use crate::chaos::log::{Answer, Call, Op};

pub(super) fn judge(story: &Story, findings: &mut Findings) {
    let counters = story.by(|call| match call.op {
        Op::Add { counter } | Op::Total { counter } => Some(counter),
        _ => None,
    });
    for (counter, calls) in counters {
        let (adds, totals): (Vec<&Call>, Vec<&Call>) =
            calls.into_iter().partition(|call| matches!(call.op, Op::Add { .. }));
        let kinds = ["additions", "totals of counters"];
        judge_counter(&format!("counter/{counter}"), kinds, &adds, &totals, findings);
    }
    let pushed = story.by(|call| match call.op {
        Op::Push { .. } => Some(call.node),
        Op::Pull { of } | Op::Copy { of } => Some(of),
        _ => None,
    });
    for (owner, calls) in pushed {
        judge_pushed(story, owner, &calls, findings);
    }
}

/// The value that a call answered.
fn value_of(call: &Call) -> Option<(u64, u64)> {
    match call.success() {
        Some((at_ns, Answer::Value(value))) => Some((at_ns, *value)),
        _ => None,
    }
}

/// A counter to which all add, one at a time: the additions, and what it was found to be in the end.
pub(super) fn judge_counter(
    name: &str,
    [additions, in_the_end]: [&str; 2],
    adds: &[&Call],
    totals: &[&Call],
    findings: &mut Findings,
) {
    let mut ended: Vec<(u64, u64)> = adds.iter().filter_map(|call| value_of(call)).collect();
    ended.sort_unstable();
    let distinct: BTreeSet<u64> = ended.iter().map(|it| it.1).collect();
    findings.count(additions, ended.len() as u64);
    if distinct.len() < ended.len() {
        findings.violation(format!("{name}: two additions found the same value"));
    }
    // An addition that begins after another has ended finds a larger value.
    let (mut ended_before, mut least) = (ended.iter().peekable(), None);
    for call in adds {
        while let Some((_, old)) = ended_before.next_if(|it| it.0 < call.begin_ns) {
            least = least.max(Some(*old));
        }
        if let Some((_, old)) = value_of(call)
            && least.is_some_and(|least| old <= least)
        {
            findings.violation(format!("{name}: an addition found {old} after one that found {least:?}"));
        }
    }
    let cut_short = adds.len() - ended.len();
    for call in totals {
        let Some((_, total)) = value_of(call) else { continue };
        let possible = ended.len()..=ended.len() + cut_short;
        let is_right = possible.contains(&(total as usize)) && distinct.last().is_none_or(|last| *last < total);
        findings.verify(in_the_end, is_right, || {
            format!("{name}: node {} found {total} in the end, after {possible:?} additions", call.node)
        });
    }
}

fn judge_pushed(story: &Story, owner: u16, calls: &[&Call], findings: &mut Findings) {
    // The pushed values count the pushes: the last value is the number of pushes that have begun.
    let pushes = calls.iter().filter(|call| matches!(call.op, Op::Push { .. }));
    let pushed_ns: Vec<u64> = pushes.map(|call| call.begin_ns).collect();
    let pushes = pushed_ns.len() as u64;
    let mut pulled: BTreeMap<u16, u64> = BTreeMap::new();
    for call in calls {
        match (&call.op, call.success()) {
            (Op::Pull { .. }, Some((at_ns, Answer::Value(value)))) => {
                let last = pulled.insert(call.node, *value).unwrap_or(0);
                // A push that begins while a value is pulled may be in it.
                let begun = pushed_ns.partition_point(|begin_ns| *begin_ns <= at_ns) as u64;
                findings.verify("values pulled", (last..=begun).contains(value), || {
                    format!("wide/{owner}: node {} pulled {value} after {last}, with {begun} pushed", call.node)
                });
            }
            (Op::Copy { .. }, Some((_, Answer::Words(copies)))) => {
                // The last push of the dead owner may have reached some nodes and not others. On RDMA several pushes
                // may not have left its NIC.
                let landed = if story.detection_ns == 0 { pushes.saturating_sub(1) } else { 0 };
                let is_right = if story.survives(owner) {
                    *copies == [pushes; 2]
                } else {
                    copies.iter().all(|copy| (landed..=pushes).contains(copy))
                };
                findings.verify("copies in the end", is_right, || {
                    format!("word and wide/{owner}: node {} has {copies:?} in the end, of {pushes}", call.node)
                });
            }
            _ => {}
        }
    }
    findings.count("values pushed", pushes);
}

#[cfg(test)]
mod tests {
    use super::super::tests::{call, counts, found, judged, story};
    use super::*;

    fn added(node: u16, from_ns: u64, old: u64) -> Call {
        call(node, from_ns, Op::Add { counter: 0 }, Some((from_ns + 5, Ok(Answer::Value(old)))))
    }

    fn total(value: u64) -> Call {
        call(0, 5000, Op::Total { counter: 0 }, Some((5001, Ok(Answer::Value(value)))))
    }

    #[test]
    fn each_addition_counts_once() {
        let both = [added(0, 10, 0), added(1, 20, 1)];
        assert_eq!(found(judge, [&both[..], &[total(2)]].concat()), [""; 0]);
        assert_eq!(found(judge, [&both[..], &[total(1)]].concat()).len(), 1);
        assert_eq!(found(judge, [&both[..], &[total(3)]].concat()).len(), 1);
        assert_eq!(found(judge, vec![added(0, 10, 1), added(1, 20, 0)]).len(), 1, "the order");
        assert_eq!(found(judge, vec![added(0, 10, 0), added(1, 12, 0)]).len(), 1, "twice the same");
        let cut = call(2, 30, Op::Add { counter: 0 }, None);
        assert_eq!(found(judge, [&both[..], &[cut, total(3)]].concat()), [""; 0], "the dead's may count");
    }

    #[test]
    fn pushed_values_arrive_and_never_go_back() {
        let push = |value| call(1, value * 10, Op::Push { value }, Some((value * 10 + 1, Ok(Answer::Done))));
        let pull = |at, value| call(0, at, Op::Pull { of: 1 }, Some((at + 1, Ok(Answer::Value(value)))));
        let copy = |value| call(0, 3000, Op::Copy { of: 1 }, Some((3001, Ok(Answer::Words([value; 2])))));
        assert_eq!(found(judge, vec![push(1), pull(15, 1), push(2), copy(2)]), [""; 0]);
        assert_eq!(found(judge, vec![push(1), push(2), copy(1)]).len(), 1);
        assert_eq!(found(judge, vec![push(1), push(2), pull(25, 2), pull(35, 1)]).len(), 1);
        assert_eq!(found(judge, vec![push(1), pull(15, 3)]).len(), 1);
    }

    #[test]
    fn an_addition_finds_more_than_all_that_ended_before_it_began() {
        // Each addition takes five nanoseconds.
        assert_eq!(found(judge, vec![added(0, 10, 1), added(1, 15, 0)]), [""; 0], "they overlap");
        let text = "counter/0: an addition found 0 after one that found Some(1)";
        assert_eq!(found(judge, vec![added(0, 10, 1), added(1, 16, 0)]), [text]);
        let twice = [
            "counter/0: two additions found the same value",
            "counter/0: an addition found 1 after one that found Some(1)",
        ];
        assert_eq!(found(judge, vec![added(0, 10, 1), added(1, 16, 1)]), twice);
        // The first one that begins is the last one that ends.
        let long = call(0, 0, Op::Add { counter: 0 }, Some((100, Ok(Answer::Value(2)))));
        let calls = vec![long.clone(), added(1, 10, 1), added(1, 20, 0)];
        assert_eq!(found(judge, calls), [text]);
        assert_eq!(found(judge, vec![long, added(1, 10, 0), added(1, 20, 1), added(1, 200, 3)]), [""; 0]);
    }

    #[test]
    fn a_total_exceeds_every_value_that_an_addition_found() {
        let cut = call(2, 30, Op::Add { counter: 0 }, None);
        for (value, violations) in [(1, 0), (2, 1)] {
            let findings = judged(judge, &story(vec![added(0, 10, value), cut.clone(), total(2)]));
            assert_eq!(findings.violations.len(), violations, "after one that found {value}");
            assert_eq!(counts(&findings), [("additions", 1), ("totals of counters", 1)]);
        }
    }

    fn push(value: u64, begin_ns: u64) -> Call {
        call(2, begin_ns, Op::Push { value }, Some((begin_ns + 1, Ok(Answer::Done))))
    }

    #[test]
    fn a_value_that_is_pushed_during_a_pull_may_be_in_it() {
        let pull = |end_ns, value| call(0, 20, Op::Pull { of: 2 }, Some((end_ns, Ok(Answer::Value(value)))));
        for (end_ns, value, violations) in [(30, 1, 0), (30, 2, 0), (29, 2, 1), (30, 3, 1), (29, 0, 0)] {
            let findings = judged(judge, &story(vec![push(1, 10), pull(end_ns, value), push(2, 30)]));
            assert_eq!(findings.violations.len(), violations, "{value} at {end_ns} ns");
            assert_eq!(counts(&findings), [("values pulled", 1), ("values pushed", 2)]);
        }
    }

    #[test]
    fn in_the_end_all_nodes_have_the_values_that_were_pushed() {
        // Whether the owner lives, the time to detect deaths, the copies of both values, and whether they are right.
        let table = [
            (true, 0, [3, 3], true),
            (true, 0, [2, 3], false),
            (true, 10, [3, 2], false),
            (false, 0, [3, 2], true),
            (false, 0, [1, 3], false),
            (false, 0, [3, 1], false),
            (false, 0, [3, 4], false),
            (false, 10, [0, 3], true),
            (false, 10, [4, 0], false),
        ];
        for (is_alive, detection_ns, copies, is_right) in table {
            let copy = call(0, 5000, Op::Copy { of: 2 }, Some((5001, Ok(Answer::Words(copies)))));
            let mut story = Story { detection_ns, ..story(vec![push(1, 10), push(2, 20), push(3, 30), copy]) };
            story.deaths.retain(|_| !is_alive);
            let findings = judged(judge, &story);
            assert_eq!(findings.violations.is_empty(), is_right, "{copies:?}, {detection_ns} ns, alive: {is_alive}");
            assert_eq!(counts(&findings), [("copies in the end", 1), ("values pushed", 3)]);
        }
    }
}
