//! All nodes read the same entries of the replicated log, and those that were decided.

use std::collections::{BTreeMap, BTreeSet};

use super::{Findings, Story};
use crate::chaos::log::{Answer, Op};

pub(super) fn judge(story: &Story, findings: &mut Findings) {
    // By index, as the first node has read it.
    let mut entries: BTreeMap<u64, u64> = BTreeMap::new();
    let mut read: BTreeMap<u16, u64> = story.members.iter().map(|node| (*node, 0)).collect();
    let mut proposed: BTreeSet<u64> = BTreeSet::new();
    // Value, index, begin and end of those that were decided.
    let mut decided: Vec<(u64, u64, u64, u64)> = Vec::new();
    let mut unknown: BTreeMap<u64, u64> = BTreeMap::new();
    let mut refused: BTreeSet<u64> = BTreeSet::new();
    let mut is_used = false;
    for call in &story.calls {
        match (&call.op, call.success()) {
            (Op::Propose { value }, answer) => {
                is_used = true;
                proposed.insert(*value);
                match answer {
                    Some((end_ns, Answer::Value(index))) => decided.push((*value, *index, call.begin_ns, end_ns)),
                    Some((_, Answer::Unknown(index))) => drop(unknown.insert(*value, *index)),
                    Some((_, Answer::Changed(false))) => drop(refused.insert(*value)),
                    _ => {}
                }
            }
            (Op::ReadEntry, Some((_, Answer::Words([index, value])))) => {
                is_used = true;
                let node = call.node;
                let next = read.entry(node).or_default();
                findings.verify("entries read in order", *index == *next, || {
                    format!("entries: node {node} reads entry {index} after {next} entries")
                });
                *next = *index + 1;
                let first = *entries.entry(*index).or_insert(*value);
                findings.verify("entries that are the same", first == *value, || {
                    format!("entries: node {node} reads {value:x} at {index}, and another node {first:x}")
                });
            }
            _ => {}
        }
    }
    if !is_used {
        return;
    }
    findings.count("entries decided", decided.len() as u64);
    let mut values = BTreeSet::new();
    for (index, value) in &entries {
        let is_once = proposed.contains(value) && values.insert(*value) && !refused.contains(value);
        findings.verify("entries that were proposed", is_once, || {
            format!("entries: {value:x} at {index} was not proposed, was refused, or is there twice")
        });
        let may_be = unknown.get(value).is_none_or(|at| at == index);
        findings.verify("entries that were proposed", may_be, || {
            format!("entries: {value:x} is at {index}, and may be at {} only", unknown[value])
        });
    }
    // With most nodes, the knowledge of decided entries may die.
    let dead: Vec<u16> = story.deaths.iter().map(|death| death.node).collect();
    let is_whole = !story.are_too_many(&dead);
    for (value, index, ..) in decided.iter().filter(|_| is_whole) {
        findings.verify("entries that are not lost", entries.get(index) == Some(value), || {
            format!("entries: {value:x} is decided as entry {index}, which is {:x?}", entries.get(index))
        });
    }
    let end = entries.last_key_value().map_or(0, |(index, _)| index + 1);
    for (node, read) in read.iter().filter(|(node, _)| is_whole && story.survives(**node)) {
        findings.verify("entries that reach all", *read == end, || {
            format!("entries: node {node} has read {read} entries, and others {end}")
        });
    }
    decided.sort_unstable_by_key(|entry| entry.1);
    // The latest begin of all entries before.
    let mut latest_ns = 0;
    for (value, index, begin_ns, end_ns) in decided {
        findings.verify("entries in the order of their calls", end_ns >= latest_ns, || {
            format!("entries: {value:x} was decided as entry {index} before one that is earlier was proposed")
        });
        latest_ns = latest_ns.max(begin_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Death;
    use super::super::tests::{call, counts, found, judged, story};
    use super::*;
    use crate::chaos::log::Call;

    fn propose(node: u16, begin_ns: u64, value: u64, answer: Answer) -> Call {
        call(node, begin_ns, Op::Propose { value }, Some((begin_ns + 5, Ok(answer))))
    }

    fn read(node: u16, begin_ns: u64, index: u64, value: u64) -> Call {
        call(node, begin_ns, Op::ReadEntry, Some((begin_ns, Ok(Answer::Words([index, value])))))
    }

    fn all_read(begin_ns: u64, entries: &[u64]) -> Vec<Call> {
        let of = |node| (0..).zip(entries).map(move |(index, value)| read(node, begin_ns + index, index, *value));
        [0, 1].into_iter().flat_map(of).collect()
    }

    fn wrong(proposed: Vec<Call>, entries: &[u64]) -> usize {
        found(judge, [proposed, all_read(100, entries)].concat()).len()
    }

    #[test]
    fn entries_are_those_that_were_decided() {
        let decided = |value, index| propose(0, 10 * value, value, Answer::Value(index));
        assert_eq!(wrong(vec![decided(1, 0), decided(2, 1)], &[1, 2]), 0);
        assert_eq!(wrong(vec![decided(1, 0), decided(2, 1)], &[1]), 1, "one is lost");
        assert_eq!(wrong(vec![decided(1, 0)], &[1, 2]), 1, "one was not proposed");
        assert_eq!(wrong(vec![decided(1, 0)], &[1, 1]), 1, "it is there twice");
        assert_eq!(
            wrong(vec![decided(1, 1), decided(2, 0)], &[2, 1]),
            1,
            "the first was decided before the second began"
        );
        let unknown = |index| propose(0, 10, 1, Answer::Unknown(index));
        assert_eq!((wrong(vec![unknown(0)], &[1]), wrong(vec![unknown(0)], &[])), (0, 0));
        assert_eq!(wrong(vec![unknown(1)], &[1]), 1, "it may be at 1");
        assert_eq!(wrong(vec![propose(1, 10, 1, Answer::Changed(false))], &[1]), 1, "it was refused");
        let findings = judged(judge, &story([vec![decided(1, 0)], all_read(100, &[1])].concat()));
        assert!(counts(&findings).contains(&("entries decided", 1)), "{:?}", counts(&findings));
    }

    #[test]
    fn all_nodes_read_the_same() {
        let decided = vec![propose(0, 1, 1, Answer::Value(0)), propose(0, 10, 2, Answer::Value(1))];
        let with = |reads: Vec<Call>| [decided.clone(), reads].concat();
        let short = with(vec![read(0, 50, 0, 1), read(0, 51, 1, 2), read(1, 50, 0, 1)]);
        assert_eq!(found(judge, short.clone()).len(), 1, "node 1 has not read the second");
        let other = with(vec![read(0, 50, 0, 1), read(0, 51, 1, 2), read(1, 50, 0, 2), read(1, 51, 1, 1)]);
        assert_eq!(found(judge, other).len(), 2, "another order");
        let late = with(vec![read(0, 50, 0, 1), read(0, 51, 1, 2), read(1, 51, 1, 2)]);
        assert_eq!(found(judge, late).len(), 1, "one was left out");
        // Two of three have died.
        let mut lost = story(short);
        lost.deaths.push(Death { node: 1, at_ns: 1000, gone_ns: 1050, told_ns: 1000 });
        assert_eq!(judged(judge, &lost).violations, [""; 0]);
    }
}
