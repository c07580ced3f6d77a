//! At most one thread holds a lock at a time. The protected words are as the last holder left them. The next holder
//! after one that died learns of the death, and no other holder does.

use farfield::LockKind;

use super::{DECIDED_NS, Death, Findings, Story};
use crate::chaos::log::{Answer, Call, Failure, Op};

/// From the moment at which a thread had the lock to that at which it was about to release it.
struct Holding {
    node: u16,
    turn: u64,
    from_ns: u64,
    /// None if its node was killed first.
    to_ns: Option<u64>,
    is_poisoned: bool,
    seen: Option<[u64; 2]>,
    /// The words that it was about to write.
    written: Option<[u64; 2]>,
}

/// The holdings of a lock in order, by the calls on it; and the time from which the protected words may be lost,
/// because a call has failed.
fn holdings_of(calls: &[&Call]) -> (Vec<Holding>, u64) {
    let mut holdings: Vec<Holding> = Vec::new();
    let mut gone_ns = u64::MAX;
    for call in calls {
        // A holder that cannot reach the words to repair leaves the repair to the next holder, which learns of the
        // death, too.
        let is_unreachable = |failure: &Failure| {
            failure.variant == "Unreachable" && matches!(call.op, Op::Look { .. } | Op::Change { .. })
        };
        if call.failure().is_some_and(|it| it.1.is_death() || is_unreachable(it.1)) {
            gone_ns = gone_ns.min(call.begin_ns);
        }
        let (Op::Lock { turn, .. } | Op::Look { turn, .. } | Op::Change { turn, .. } | Op::Unlock { turn, .. }) =
            call.op
        else {
            continue;
        };
        // One thread of each node uses the lock.
        let node = call.node;
        let mut this = holdings.iter_mut().rev().find(|it| (it.node, it.turn) == (node, turn));
        match (&call.op, call.success(), &mut this) {
            (Op::Lock { .. }, Some((from_ns, Answer::Held { is_poisoned })), _) => {
                let is_poisoned = *is_poisoned;
                holdings.push(Holding { node, turn, from_ns, to_ns: None, is_poisoned, seen: None, written: None });
            }
            (Op::Look { .. }, Some((_, Answer::Words(words))), Some(this)) => this.seen = Some(*words),
            (Op::Change { to, .. }, _, Some(this)) => this.written = Some(*to),
            (Op::Unlock { .. }, _, Some(this)) => this.to_ns = Some(call.begin_ns),
            _ => {}
        }
    }
    holdings.sort_by_key(|it| it.from_ns);
    (holdings, gone_ns)
}

/// An operation that was released this shortly before its node died may still be in the queue.
const LEAVING_NS: u64 = 100_000_000;

/// Whether the call's node was killed while it took or released the lock.
fn is_cut_short(call: &Call) -> bool {
    matches!(call.op, Op::Lock { .. } | Op::Unlock { .. }) && call.end.is_none()
}

pub(super) fn judge(story: &Story, findings: &mut Findings) {
    let locks = story.by(|call| match call.op {
        Op::Lock { lock, .. } | Op::Look { lock, .. } | Op::Change { lock, .. } | Op::Unlock { lock, .. } => Some(lock),
        _ => None,
    });
    for (lock, calls) in locks {
        let (holdings, gone_ns) = holdings_of(&calls);
        let kind = story.locks;
        findings.count("locks taken", holdings.len() as u64);
        let waits = |node: u16| calls.iter().any(|call| is_cut_short(call) && call.node == node);
        findings.count("deaths of waiters", story.deaths.iter().filter(|death| waits(death.node)).count() as u64);
        let queued = |call: &&&Call| is_cut_short(call) && matches!(call.op, Op::Lock { .. });
        findings.count("tickets of the dead", calls.iter().filter(queued).count() as u64);
        let (mut words, mut told_of_others) = ([0; 2], 0);
        let mut died_holding = false;
        for (index, now) in holdings.iter().enumerate() {
            let before = index.checked_sub(1).map(|before| &holdings[before]);
            if let Some(before) = before {
                let free_ns = before.to_ns.or(story.death_of(before.node)).unwrap_or(u64::MAX);
                findings.verify("handovers of locks", free_ns <= now.from_ns, || {
                    format!(
                        "{kind}/{lock}: node {} has it at {} ns, while node {} has it from {} to {free_ns} ns",
                        now.node, now.from_ns, before.node, before.from_ns
                    )
                });
            }
            if now.from_ns >= gone_ns {
                continue;
            }
            if died_holding {
                findings.verify("deaths of holders told", now.is_poisoned, || {
                    format!("{kind}/{lock}: its holder died, and node {} was not told", now.node)
                });
            } else if now.is_poisoned {
                // A death during the acquisition or the release: the lock was held, or not. Each death is reported
                // once: the holder that learns of it repairs the protected words.
                told_of_others += 1;
                // A release after another node's death is left to the service thread, until no other node can access
                // the words that the holder had put there.
                let leaves_release = |node: u16| {
                    let others = || story.deaths.iter().filter(|other| other.node != node);
                    let released = before.filter(|before| before.node == node).and_then(|before| before.to_ns);
                    released.is_some_and(|to_ns| {
                        // A release waits for that no longer.
                        let until_ns = |other: &Death| {
                            let told_ns = other.gone_ns.saturating_add(story.detection_ns).max(other.told_ns);
                            told_ns.saturating_add(DECIDED_NS)
                        };
                        others().any(|other| (other.at_ns..until_ns(other)).contains(&to_ns))
                    })
                };
                let may_have_held =
                    |death: &&Death| death.at_ns <= now.from_ns && (waits(death.node) || leaves_release(death.node));
                let deaths = story.deaths.iter().filter(may_have_held).count();
                // It is unknown which of a queue's operations has held the lock: each of the dead ones may be reported.
                let may_have_queued = |call: &&&Call| {
                    let died = story.deaths.iter().find(|it| it.node == call.node && it.at_ns <= now.from_ns);
                    died.is_some_and(|death| match call.success() {
                        Some((end_ns, _)) => matches!(call.op, Op::Unlock { .. }) && end_ns + LEAVING_NS > death.at_ns,
                        None => matches!(call.op, Op::Lock { .. } | Op::Unlock { .. }),
                    })
                };
                let may_be_told = match kind {
                    LockKind::ALock | LockKind::Mcs => deaths.max(calls.iter().filter(may_have_queued).count()),
                    LockKind::Mutex | LockKind::Spin => deaths,
                };
                if told_of_others > may_be_told {
                    findings.violation(format!("{kind}/{lock}: node {} was told of a death, of none", now.node));
                }
            }
            if let Some(seen) = now.seen {
                let is_right = |at: usize| match (died_holding, before.and_then(|before| before.written)) {
                    (true, Some(begun)) => [words[at], begun[at]].contains(&seen[at]),
                    // The words of a holder that is not in the log are unknown.
                    _ => seen[at] == words[at] || now.is_poisoned,
                };
                findings.verify("states under locks", is_right(0) && is_right(1), || {
                    format!("{kind}/{lock}: node {} found {seen:?}, after {words:?}", now.node)
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
    use super::super::tests::{call, found, story};
    use super::*;

    /// A whole holding.
    fn holding(node: u16, from_ns: u64, is_poisoned: bool, from: [u64; 2], to: [u64; 2]) -> Vec<Call> {
        let (lock, turn) = (0, from_ns);
        let done = |at_ns| Some((at_ns, Ok(Answer::Done)));
        vec![
            call(node, from_ns - 5, Op::Lock { lock, turn }, Some((from_ns, Ok(Answer::Held { is_poisoned })))),
            call(node, from_ns, Op::Look { lock, turn }, Some((from_ns + 1, Ok(Answer::Words(from))))),
            call(node, from_ns + 1, Op::Change { lock, turn, from, to }, done(from_ns + 2)),
            call(node, from_ns + 9, Op::Unlock { lock, turn }, done(from_ns + 10)),
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

    #[test]
    fn the_death_of_a_waiter_is_told_once_at_most() {
        let waiter = |turn| call(2, 990, Op::Lock { lock: 0, turn }, None);
        let told = |from_ns, from| holding(1, from_ns, true, [from; 2], [from + 1; 2]);
        let waiters = [waiter(1), waiter(2)];
        assert_eq!(found(judge, [&waiters[..], &told(1100, 0)].concat()), [""; 0], "it may have had it by then");
        let twice = [&waiters[..], &told(1100, 0), &told(1200, 1)].concat();
        assert_eq!(found(judge, twice).len(), 1, "one node holds it once at a time");
    }

    #[test]
    fn a_release_after_a_death_may_be_cut_short_by_another() {
        let told = |released_from| {
            let calls =
                [holding(1, released_from, false, [0; 2], [1; 2]), holding(0, 1400, true, [1; 2], [2; 2])].concat();
            let mut story = story(calls);
            story.deaths.push(Death { node: 1, at_ns: 1300, gone_ns: 1350, told_ns: 1300 });
            let mut findings = Findings::default();
            judge(&story, &mut findings);
            findings.violations.len()
        };
        assert_eq!((told(1100), told(900)), (0, 1), "only one that was released after node 2 had died");
    }

    #[test]
    fn a_thread_may_want_a_lock_twice_at_once() {
        let (first, mut second) = (holding(0, 10, false, [0; 2], [1; 2]), holding(0, 30, false, [1; 2], [2; 2]));
        // It was begun before the other, and had the lock after it.
        second[0].begin_ns = 1;
        let mut both = [first, second].concat();
        both.sort_by_key(|call| call.begin_ns);
        assert_eq!(found(judge, both), [""; 0]);
    }
}
