//! One node at a time holds the replicated lock, or leads, and tokens only grow. They say in which order the nodes had
//! their turns.

use std::collections::BTreeMap;

use super::{Findings, Story};
use crate::chaos::log::{Answer, Call, Op, Turns};

impl Story {
    /// Whether without these nodes most members are missing: the calls that a log orders stand still.
    pub(super) fn are_too_many(&self, nodes: &[u16]) -> bool {
        let left = self.members.iter().filter(|node| !nodes.contains(node)).count();
        2 * left <= self.members.len()
    }
}

/// A turn, by its token.
struct Turn {
    node: u16,
    token: u64,
    from_ns: u64,
    /// Until then it certainly had the turn.
    to_ns: u64,
    /// Where it has stored its token, or may have; and the one that it has found, if it is certain that it has.
    found: Option<(u16, Option<u64>)>,
}

fn turns_of(story: &Story, of: Turns, calls: &[&Call]) -> Vec<Turn> {
    let mut turns: BTreeMap<(u64, u16), Turn> = BTreeMap::new();
    // Calls of one thread are in order, and a turn is of one thread.
    for call in calls {
        let node = call.node;
        match (&call.op, call.success()) {
            (Op::Grab { .. }, Some((from_ns, Answer::Value(token)))) => {
                // A holder has the lock until it begins to release it, or dies. A leader leads as long as it finds that
                // it does.
                let to_ns = match of {
                    Turns::Mutex => story.death_of(node).unwrap_or(u64::MAX),
                    Turns::Election => from_ns,
                };
                turns.insert((*token, node), Turn { node, token: *token, from_ns, to_ns, found: None });
            }
            (Op::Mark { home, token }, answer) => {
                if let Some(turn) = turns.get_mut(&(*token, node)) {
                    let found = answer.and_then(|(_, answer)| match answer {
                        Answer::Value(found) => Some(*found),
                        _ => None,
                    });
                    turn.found = Some((*home, found));
                }
            }
            // It led when the call had begun.
            (Op::Leads { term }, Some((_, Answer::Changed(true)))) => {
                if let Some(turn) = turns.get_mut(&(*term, node)) {
                    turn.to_ns = turn.to_ns.max(call.begin_ns);
                }
            }
            (Op::GiveBack { of: Turns::Mutex, token }, _) => {
                if let Some(turn) = turns.get_mut(&(*token, node)) {
                    turn.to_ns = call.begin_ns;
                }
            }
            _ => {}
        }
    }
    turns.into_values().collect()
}

pub(super) fn judge(story: &Story, findings: &mut Findings) {
    let objects = story.by(|call| match call.op {
        Op::Grab { of } | Op::GiveBack { of, .. } => Some(of),
        Op::Mark { .. } => Some(Turns::Mutex),
        Op::Leads { .. } => Some(Turns::Election),
        _ => None,
    });
    for (of, calls) in objects {
        let turns = turns_of(story, of, &calls);
        let what = match of {
            Turns::Mutex => "turns at the replicated lock",
            Turns::Election => "elected leaders",
        };
        findings.count(what, turns.len() as u64);
        for two in turns.windows(2) {
            let [before, after] = two else { continue };
            findings.verify("tokens", before.token < after.token, || {
                let (one, other) = (before.node, after.node);
                format!("{of:?}: nodes {one} and {other} have the token {}", after.token)
            });
            findings.verify("turns one after the other", before.to_ns <= after.from_ns, || {
                format!(
                    "{of:?}: node {} has the turn {} until {} ns, and node {} the turn {} from {} ns",
                    before.node, before.token, before.to_ns, after.node, after.token, after.from_ns
                )
            });
        }
        // One that has ended without success may have had a turn.
        let failed = calls.iter().filter(|call| matches!(call.op, Op::Grab { .. }) && call.success().is_none());
        let (failed, last) = (failed.count() as u64, turns.last().map_or(0, |turn| turn.token));
        // A leader that has lost its lease before the call returned calls again.
        let is_whole = of == Turns::Election || last <= turns.len() as u64 + failed;
        findings.verify("tokens", is_whole, || {
            format!("{of:?}: token {last} is the last of {} turns, and {failed} calls have failed", turns.len())
        });
        judge_marks(&turns, findings);
    }
}

/// Each holder finds the token of the last one before it that has stored its own at the same place.
fn judge_marks(turns: &[Turn], findings: &mut Findings) {
    // By place: the token that is stored for certain, and those that may be.
    let mut places: BTreeMap<u16, (u64, Vec<u64>)> = BTreeMap::new();
    for turn in turns {
        let Some((home, found)) = turn.found else { continue };
        let (stored, perhaps) = places.entry(home).or_default();
        let Some(found) = found else {
            perhaps.push(turn.token);
            continue;
        };
        let is_right = found == *stored || perhaps.contains(&found);
        findings.verify("tokens found under the lock", is_right, || {
            let (node, token) = (turn.node, turn.token);
            format!("Mutex: node {node} with token {token} found {found} on node {home}, after {stored}")
        });
        (*stored, *perhaps) = (turn.token, Vec::new());
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{call, failure, found, story};
    use super::*;

    fn grab(node: u16, of: Turns, from_ns: u64, token: u64) -> Call {
        call(node, from_ns - 5, Op::Grab { of }, Some((from_ns, Ok(Answer::Value(token)))))
    }

    fn done(node: u16, begin_ns: u64, op: Op, answer: Answer) -> Call {
        call(node, begin_ns, op, Some((begin_ns + 1, Ok(answer))))
    }

    /// A turn of ten nanoseconds, which finds a token.
    fn turn(node: u16, from_ns: u64, token: u64, found: u64) -> Vec<Call> {
        vec![
            grab(node, Turns::Mutex, from_ns, token),
            done(node, from_ns + 1, Op::Mark { home: 1, token }, Answer::Value(found)),
            done(node, from_ns + 10, Op::GiveBack { of: Turns::Mutex, token }, Answer::Done),
        ]
    }

    fn wrong(turns: &[Vec<Call>]) -> usize {
        found(judge, turns.concat()).len()
    }

    #[test]
    fn the_lock_excludes_and_tokens_grow() {
        assert_eq!(wrong(&[turn(0, 10, 1, 0), turn(1, 20, 2, 1)]), 0);
        assert_eq!(wrong(&[turn(0, 10, 1, 0), turn(1, 19, 2, 1)]), 1, "at once");
        assert_eq!(wrong(&[turn(0, 10, 2, 0), turn(1, 30, 1, 0)]), 2, "a token goes back, and so does the one found");
        assert_eq!(wrong(&[turn(0, 10, 1, 0), turn(1, 30, 1, 0)]), 2, "a token twice");
        assert_eq!(wrong(&[turn(0, 10, 1, 0), turn(1, 30, 3, 1)]), 1, "one that nobody has had");
        let failed = call(2, 15, Op::Grab { of: Turns::Mutex }, Some((25, Err(failure("Timeout", &[])))));
        assert_eq!(wrong(&[turn(0, 10, 1, 0), vec![failed], turn(1, 30, 3, 1)]), 0, "one that has given up");
    }

    #[test]
    fn a_holder_that_dies_holds_until_then() {
        let mut cut = turn(2, 900, 1, 0);
        cut.truncate(2);
        assert_eq!(wrong(&[cut.clone(), turn(0, 1000, 2, 1)]), 0);
        assert_eq!(wrong(&[cut.clone(), turn(0, 999, 2, 1)]), 1);
        // It may have stored its token.
        cut[1].end = None;
        assert_eq!((wrong(&[cut.clone(), turn(0, 1000, 2, 1)]), wrong(&[cut.clone(), turn(0, 1000, 2, 0)])), (0, 0));
        assert_eq!(wrong(&[cut, turn(0, 1000, 2, 5)]), 1);
    }

    #[test]
    fn one_leads_at_a_time() {
        let leads = |node, term, at_ns, leads| done(node, at_ns, Op::Leads { term }, Answer::Changed(leads));
        let first = |looks: &[Call]| [&[grab(0, Turns::Election, 10, 1)], looks].concat();
        let then = vec![grab(1, Turns::Election, 50, 2)];
        assert_eq!(wrong(&[first(&[leads(0, 1, 49, true)]), then.clone()]), 0);
        assert_eq!(wrong(&[first(&[leads(0, 1, 60, false)]), then.clone()]), 0, "it knows");
        assert_eq!(wrong(&[first(&[leads(0, 1, 51, true)]), then]), 1, "two lead");
        // Leases that have ended before the call returned.
        assert_eq!(wrong(&[first(&[]), vec![grab(1, Turns::Election, 50, 7)]]), 0);
    }

    #[test]
    fn most_nodes_are_more_than_half() {
        let story = story(Vec::new());
        assert_eq!([vec![], vec![2], vec![1, 2]].map(|dead| story.are_too_many(&dead)), [false, false, true]);
        let four = Story { members: vec![0, 1, 2, 3], ..story };
        assert_eq!([vec![3], vec![2, 3]].map(|dead| four.are_too_many(&dead)), [false, true]);
    }
}
