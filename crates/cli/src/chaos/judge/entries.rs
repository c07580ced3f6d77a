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
    // With most nodes, the knowledge of what is decided may die.
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
