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
    use super::super::tests::{call, counts, failure, found, judged, story};
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

    /// An operation on a lock, in a turn.
    type OnLock = fn(u16, u64) -> Op;

    /// A call of the lock that is cut short.
    fn cut(node: u16, begin_ns: u64, op: OnLock) -> Call {
        call(node, begin_ns, op(0, begin_ns), None)
    }

    fn lock(lock: u16, turn: u64) -> Op {
        Op::Lock { lock, turn }
    }

    fn unlock(lock: u16, turn: u64) -> Op {
        Op::Unlock { lock, turn }
    }

    fn look(lock: u16, turn: u64) -> Op {
        Op::Look { lock, turn }
    }

    /// A holding that does not look at the words.
    fn blind(node: u16, from_ns: u64, is_poisoned: bool) -> Vec<Call> {
        let all = holding(node, from_ns, is_poisoned, [0; 2], [0; 2]);
        vec![all[0].clone(), all[3].clone()]
    }

    fn death(node: u16, at_ns: u64) -> Death {
        Death { node, at_ns, gone_ns: at_ns + 50, told_ns: at_ns }
    }

    /// The violations under locks of a kind, with these deaths.
    fn found_among(locks: LockKind, deaths: &[Death], calls: Vec<Call>) -> usize {
        judged(judge, &Story { locks, deaths: deaths.to_vec(), ..story(calls) }).violations.len()
    }

    #[test]
    fn holders_and_waiters_are_counted() {
        // Node 2 dies as it waits twice, node 0 in a release, and node 1 as it looks.
        let ends = vec![cut(2, 970, lock), cut(2, 971, lock), cut(0, 980, unlock), cut(1, 990, look)];
        let calls = [blind(0, 10, false), blind(1, 30, false), ends].concat();
        let deaths = vec![death(2, 1000), death(1, 1001), death(0, 1002)];
        let findings = judged(judge, &Story { deaths, ..story(calls) });
        let expected =
            [("deaths of waiters", 2), ("handovers of locks", 1), ("locks taken", 2), ("tickets of the dead", 2)];
        assert_eq!((counts(&findings), findings.violations.len()), (expected.to_vec(), 0));
    }

    #[test]
    fn a_lock_is_handed_over_when_its_holder_is_about_to_release_it() {
        // The release begins at 19.
        assert_eq!(found(judge, [blind(0, 10, false), blind(1, 19, false)].concat()), [""; 0]);
        assert_eq!(found(judge, [blind(0, 10, false), blind(1, 18, false)].concat()).len(), 1);
    }

    #[test]
    fn both_words_are_as_the_last_holder_left_them() {
        for (seen, violations) in [([1, 2], 0), ([0, 2], 1), ([1, 0], 1)] {
            let calls = [holding(0, 10, false, [0; 2], [1, 2]), holding(1, 30, false, seen, [3; 2])].concat();
            assert_eq!(found(judge, calls).len(), violations, "{seen:?}");
        }
        // One that died may have written. It is not in the log as a holder.
        let calls = [vec![cut(2, 990, lock)], holding(1, 1100, true, [5, 6], [7; 2])].concat();
        assert_eq!(found(judge, calls), [""; 0]);
    }

    #[test]
    fn words_that_may_be_lost_are_not_judged_any_more() {
        let after = |op: OnLock, variant: &str, begin_ns| {
            let failed = call(1, begin_ns, op(0, 999), Some((begin_ns + 1, Err(failure(variant, &[2])))));
            let calls = [holding(0, 10, false, [0; 2], [1; 2]), vec![failed], holding(1, 600, false, [9; 2], [8; 2])];
            found(judge, calls.concat()).len()
        };
        let change: OnLock = |lock, turn| Op::Change { lock, turn, from: [0; 2], to: [1; 2] };
        let table: [(OnLock, _, _); 8] = [
            (lock, "PeerDead", 0),
            (look, "PeerDead", 0),
            (look, "Unreachable", 0),
            (change, "Unreachable", 0),
            (lock, "Unreachable", 1),
            (unlock, "Unreachable", 1),
            (look, "Timeout", 1),
            (lock, "Timeout", 1),
        ];
        for (op, variant, violations) in table {
            assert_eq!(after(op, variant, 500), violations, "{:?}: {variant}", op(0, 0));
        }
        assert_eq!((after(lock, "PeerDead", 600), after(lock, "PeerDead", 601)), (0, 1), "from its begin on");
    }

    #[test]
    fn a_death_is_told_only_after_it() {
        for kind in [LockKind::Mutex, LockKind::Mcs] {
            let told =
                |at_ns| found_among(kind, &[death(2, 1000)], [vec![cut(2, 990, lock)], blind(1, at_ns, true)].concat());
            assert_eq!((told(999), told(1000)), (1, 0), "{kind}");
        }
    }

    #[test]
    fn a_release_is_left_to_the_service_thread_until_a_death_is_decided() {
        // Node 2 dies at 1000. Node 1 releases the lock, and dies later.
        let told = |told_ns, released_ns| {
            let deaths = [Death { told_ns, ..death(2, 1000) }, death(1, 10 * DECIDED_NS)];
            let calls = [blind(1, released_ns - 9, false), blind(0, 11 * DECIDED_NS, true)].concat();
            found_among(LockKind::Mutex, &deaths, calls)
        };
        for (told_ns, until_ns) in [(1000, 1050 + DECIDED_NS), (5 * DECIDED_NS, 6 * DECIDED_NS)] {
            let told = [999, 1000, until_ns - 1, until_ns].map(|released_ns| told(told_ns, released_ns));
            assert_eq!(told, [1, 0, 0, 1], "reported at {told_ns} ns");
        }
    }

    #[test]
    fn each_operation_of_the_dead_in_a_queue_may_be_told() {
        let waiters = [cut(2, 970, lock), cut(2, 971, unlock)];
        let told = |times: u64| (0..times).flat_map(|at| blind(1, 1100 + 20 * at, true)).collect::<Vec<_>>();
        let table = [
            (LockKind::Mcs, 2, 0),
            (LockKind::ALock, 2, 0),
            (LockKind::Mcs, 3, 1),
            (LockKind::Mutex, 2, 1),
            (LockKind::Spin, 2, 1),
        ];
        for (kind, times, violations) in table {
            let calls = [&waiters[..], &told(times)].concat();
            assert_eq!(found_among(kind, &[death(2, 1000)], calls), violations, "{kind}, {times} times");
        }
    }

    #[test]
    fn an_operation_that_was_released_shortly_before_its_death_may_be_in_the_queue() {
        // The release ends at 910.
        let told = |kind, node, death_ns, told_ns: &[u64]| {
            let after = told_ns.iter().flat_map(|at_ns| blind(1, *at_ns, true));
            found_among(kind, &[death(2, death_ns)], blind(node, 900, false).into_iter().chain(after).collect())
        };
        let late = 910 + LEAVING_NS;
        assert_eq!((told(LockKind::Mcs, 2, 1000, &[1000]), told(LockKind::Mcs, 2, 1000, &[999])), (0, 1));
        assert_eq!((told(LockKind::Mcs, 2, late - 1, &[late]), told(LockKind::Mcs, 2, late, &[late])), (0, 1));
        assert_eq!(told(LockKind::Mutex, 2, 1000, &[1000]), 1, "no other lock has a queue of the dead");
        assert_eq!(told(LockKind::Mcs, 0, 1000, &[1000]), 1, "that node lives");
        assert_eq!(told(LockKind::Mcs, 2, 1000, &[1000, 1020]), 1, "it was one operation");
    }
}
