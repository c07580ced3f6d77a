//! Nobody holds a lock while another does; what it protects is as the last holder left it; and whoever follows a holder
//! that died is told so, and nobody else.

use super::{Findings, Story};
use crate::chaos::log::{Answer, Call, Op};

/// From the moment at which a thread had the lock to that at which it was about to release it.
struct Holding {
    node: u16,
    from_ns: u64,
    /// None if its node was killed before.
    to_ns: Option<u64>,
    is_after_death: bool,
    seen: Option<[u64; 2]>,
    /// What it was about to write.
    written: Option<[u64; 2]>,
}

/// The holdings of a lock in order, by the calls on it; and from when on what it protects may be gone: a call has
/// failed.
fn holdings_of(calls: &[&Call]) -> (Vec<Holding>, u64) {
    let mut holdings: Vec<Holding> = Vec::new();
    let mut gone_ns = u64::MAX;
    for call in calls {
        if call.failure().is_some_and(|it| it.1.is_death()) {
            gone_ns = gone_ns.min(call.begin_ns);
        }
        // One thread of each node uses the lock: what it does belongs to its latest holding.
        let mut latest = holdings.iter_mut().rev().find(|it| it.node == call.node);
        match (&call.op, call.success(), &mut latest) {
            (Op::Lock { .. }, Some((from_ns, Answer::Held { is_after_death })), _) => {
                let (node, is_after_death) = (call.node, *is_after_death);
                holdings.push(Holding { node, from_ns, to_ns: None, is_after_death, seen: None, written: None });
            }
            (Op::Look { .. }, Some((_, Answer::Words(words))), Some(latest)) => latest.seen = Some(*words),
            (Op::Change { to, .. }, _, Some(latest)) => latest.written = Some(*to),
            (Op::Unlock { .. }, _, Some(latest)) => latest.to_ns = Some(call.begin_ns),
            _ => {}
        }
    }
    holdings.sort_by_key(|it| it.from_ns);
    (holdings, gone_ns)
}

pub(super) fn judge(story: &Story, findings: &mut Findings) {
    let locks = story.by(|call| match call.op {
        Op::Lock { lock } | Op::Look { lock } | Op::Change { lock, .. } | Op::Unlock { lock } => Some(lock),
        _ => None,
    });
    for (lock, calls) in locks {
        let (holdings, gone_ns) = holdings_of(&calls);
        findings.count("locks taken", holdings.len() as u64);
        // A death in the middle of taking or releasing it: it may have been held, or not.
        let may_have_held = calls.iter().any(|call| {
            matches!(call.op, Op::Lock { .. } | Op::Unlock { .. }) && call.end.is_none() && !story.survives(call.node)
        });
        let mut words = [0; 2];
        let mut died_holding = false;
        for (index, now) in holdings.iter().enumerate() {
            let before = index.checked_sub(1).map(|before| &holdings[before]);
            if let Some(before) = before {
                let free_ns = before.to_ns.or(story.death_of(before.node)).unwrap_or(u64::MAX);
                findings.verify("handovers of locks", free_ns <= now.from_ns, || {
                    format!(
                        "mutex/{lock}: node {} has it at {} ns, while node {} has it from {} to {free_ns} ns",
                        now.node, now.from_ns, before.node, before.from_ns
                    )
                });
            }
            if now.from_ns >= gone_ns {
                continue;
            }
            if died_holding {
                findings.verify("deaths of holders told", now.is_after_death, || {
                    format!("mutex/{lock}: its holder died, and node {} was not told", now.node)
                });
            } else if now.is_after_death && !may_have_held {
                findings.violation(format!("mutex/{lock}: node {} was told of a death, of none", now.node));
            }
            if let Some(seen) = now.seen {
                let is_right = |at: usize| match (died_holding, before.and_then(|before| before.written)) {
                    (true, Some(begun)) => [words[at], begun[at]].contains(&seen[at]),
                    // What a holder that is not in the log has written is not known.
                    _ => seen[at] == words[at] || now.is_after_death,
                };
                findings.verify("states under locks", is_right(0) && is_right(1), || {
                    format!("mutex/{lock}: node {} found {seen:?}, after {words:?}", now.node)
                });
            }
            died_holding = now.to_ns.is_none();
            if !died_holding && let Some(written) = now.written {
                words = written;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{call, found};
    use super::*;

    /// A whole holding.
    fn holding(node: u16, from_ns: u64, is_after_death: bool, from: [u64; 2], to: [u64; 2]) -> Vec<Call> {
        let lock = 0;
        let done = |at_ns| Some((at_ns, Ok(Answer::Done)));
        vec![
            call(node, from_ns - 5, Op::Lock { lock }, Some((from_ns, Ok(Answer::Held { is_after_death })))),
            call(node, from_ns, Op::Look { lock }, Some((from_ns + 1, Ok(Answer::Words(from))))),
            call(node, from_ns + 1, Op::Change { lock, from, to }, done(from_ns + 2)),
            call(node, from_ns + 9, Op::Unlock { lock }, done(from_ns + 10)),
        ]
    }

    #[test]
    fn two_do_not_hold_it_at_once_and_no_change_is_lost() {
        let (first, second) = (holding(0, 10, false, [0; 2], [1; 2]), holding(1, 30, false, [1; 2], [2; 2]));
        assert_eq!(found(judge, [first.clone(), second].concat()), [""; 0]);
        assert_eq!(found(judge, [first.clone(), holding(1, 15, false, [1; 2], [2; 2])].concat()).len(), 1);
        assert_eq!(found(judge, [first.clone(), holding(1, 30, false, [0; 2], [1; 2])].concat()).len(), 1);
        assert_eq!(found(judge, [first, holding(1, 30, true, [1; 2], [2; 2])].concat()).len(), 1);
    }

    #[test]
    fn the_next_holder_is_told_of_a_death() {
        let mut cut = holding(2, 900, false, [0; 2], [1; 2]);
        cut.truncate(3);
        cut[2].end = None;
        let next = |told, from| holding(1, 1100, told, from, [2; 2]);
        assert_eq!(found(judge, [cut.clone(), next(true, [1, 0])].concat()), [""; 0]);
        assert_eq!(found(judge, [cut.clone(), next(false, [1, 0])].concat()).len(), 1);
        assert_eq!(found(judge, [cut.clone(), next(true, [5, 0])].concat()).len(), 1);
        assert_eq!(found(judge, [cut, holding(1, 950, true, [1, 0], [2; 2])].concat()).len(), 1, "before the death");
    }
}
