//! Replicas of a data type converge, keep the invariant, and lose no call that has returned. What one node has called,
//! it sees, and after `stable` all see it.

use std::collections::{BTreeMap, BTreeSet};

use super::{Findings, Story};
use crate::chaos::load::{Ledger, numbers_of};
use crate::chaos::log::{Answer, Call, LedgerOp, Op};

/// The calls of a kind: those that have certainly been made, and those that may have been, each with the node and its
/// begin and end.
#[derive(Default)]
struct Made {
    certain: Vec<(u16, u64, u64, u64)>,
    unknown: Vec<(u16, u64, u64)>,
}

impl Made {
    fn of(calls: &[(LedgerOp, &Call)], argument: impl Fn(LedgerOp) -> Option<u64>) -> Made {
        let mut made = Made::default();
        for (op, call) in calls {
            let Some(argument) = argument(*op) else { continue };
            match call.success() {
                Some((end_ns, Answer::Changed(true))) => {
                    made.certain.push((call.node, argument, call.begin_ns, end_ns));
                }
                // It was refused.
                Some(_) => {}
                // A call that failed may have been made, or may still be.
                None => made.unknown.push((call.node, argument, call.begin_ns)),
            }
        }
        made
    }

    fn certain_of(&self) -> BTreeSet<u64> {
        self.certain.iter().map(|made| made.1).collect()
    }

    fn possible(&self) -> BTreeSet<u64> {
        self.certain.iter().map(|made| made.1).chain(self.unknown.iter().map(|made| made.1)).collect()
    }

    fn total(&self) -> u64 {
        self.certain.iter().map(|made| made.1).sum()
    }
}

pub(super) fn judge(story: &Story, findings: &mut Findings) {
    let calls: Vec<(LedgerOp, &Call)> = story
        .calls
        .iter()
        .filter_map(|call| if let Op::Ledger { op } = call.op { Some((op, call)) } else { None })
        .collect();
    if calls.is_empty() {
        return;
    }
    findings.count("calls of replicated types", calls.len() as u64);
    let of = |kind: fn(LedgerOp) -> Option<u64>| Made::of(&calls, kind);
    let deposits = of(|op| if let LedgerOp::Deposit(amount) = op { Some(amount) } else { None });
    let withdrawals = of(|op| if let LedgerOp::Withdraw(amount) = op { Some(amount) } else { None });
    let bookings = of(|op| if let LedgerOp::Book(number) = op { Some(number) } else { None });
    let strikes = of(|op| if let LedgerOp::Strike(number) = op { Some(number) } else { None });
    judge_strikes(&calls, &strikes, findings);
    judge_looks(story, &calls, &deposits, &bookings, findings);
    let ends = calls.iter().filter(|(op, call)| *op == LedgerOp::Final && story.survives(call.node));
    let ends: Vec<(u16, Ledger)> = ends.filter_map(|(_, call)| Some((call.node, state_of(call)?))).collect();
    let Some((first, end)) = ends.first() else { return };
    // With most nodes, the knowledge of ordered calls may die. All other calls stay.
    let dead: Vec<u16> = story.deaths.iter().map(|death| death.node).collect();
    let is_whole = !story.are_too_many(&dead);
    for (node, other) in &ends {
        let is_same = if is_whole { other == end } else { other.booked == end.booked };
        findings.verify("replicas that converge", is_same, || {
            let differs = difference(end, other);
            format!("ledger: nodes {first} and {node} differ: {differs}")
        });
    }
    for (what, set, made) in [("booked", &end.booked, &bookings), ("struck", &end.struck, &strikes)] {
        let (certain, possible) = (made.certain_of(), made.possible());
        findings.verify("updates that are not lost", certain.is_subset(set) || !is_whole && what == "struck", || {
            format!("ledger: {:?} were {what}, and are not there", numbers(&certain - set))
        });
        findings.verify("updates that were made", set.is_subset(&possible), || {
            format!("ledger: {:?} are {what}, by no call", numbers(set - &possible))
        });
    }
    findings.verify("invariants of replicas", end.struck.is_subset(&end.booked), || {
        format!("ledger: {:?} are struck, and were not booked", numbers(&end.struck - &end.booked))
    });
    if !is_whole {
        return;
    }
    let is_possible = sums(&deposits, &withdrawals).contains(&(end.balance as i64));
    findings.verify("balances", is_possible, || {
        format!(
            "ledger: the balance is {}, after deposits of {} and withdrawals of {}, and perhaps {:?} and {:?}",
            end.balance,
            deposits.total(),
            withdrawals.total(),
            deposits.unknown,
            withdrawals.unknown
        )
    });
}

fn state_of(call: &Call) -> Option<Ledger> {
    let (_, Answer::Custom(state)) = call.success()? else { return None };
    serde_json::from_value(state.clone()).ok()
}

/// The balances that the calls may have led to.
fn sums(deposits: &Made, withdrawals: &Made) -> BTreeSet<i64> {
    let mut sums = BTreeSet::from([deposits.total() as i64 - withdrawals.total() as i64]);
    let unknown = deposits.unknown.iter().map(|made| made.1 as i64);
    for amount in unknown.chain(withdrawals.unknown.iter().map(|made| -(made.1 as i64))) {
        sums.extend(sums.iter().map(|sum| sum + amount).collect::<Vec<_>>());
    }
    sums
}

/// A few of them.
fn numbers(set: BTreeSet<u64>) -> Vec<String> {
    set.iter().take(5).map(|number| format!("{:x}", number)).collect()
}

fn difference(one: &Ledger, other: &Ledger) -> String {
    format!(
        "balances {} and {}; booked {:?}, struck {:?}",
        one.balance,
        other.balance,
        numbers(&one.booked ^ &other.booked),
        numbers(&one.struck ^ &other.struck)
    )
}

/// A number is struck once. One that may not be struck was, by a call that began before.
fn judge_strikes(calls: &[(LedgerOp, &Call)], strikes: &Made, findings: &mut Findings) {
    let mut struck = BTreeSet::new();
    for (node, number, ..) in &strikes.certain {
        findings.verify("conflicting calls", struck.insert(*number), || {
            format!("ledger: {number:x} was struck twice, the second time by node {node}")
        });
    }
    let begun: BTreeMap<u64, u64> = strikes.certain.iter().map(|made| (made.1, made.2)).collect();
    for (op, call) in calls {
        let (LedgerOp::Strike(number), Some((end_ns, Answer::Changed(false)))) = (*op, call.success()) else {
            continue;
        };
        let by_other = begun.get(&number).is_some_and(|begin_ns| *begin_ns <= end_ns);
        let may_be = strikes.unknown.iter().any(|made| made.1 == number && made.2 <= end_ns);
        findings.verify("refusals", by_other || may_be, || {
            format!("ledger: node {} was refused to strike {number:x}, which no other call did", call.node)
        });
    }
}

/// Queries see all calls of their own node, and those of others as soon as they are stable. The calls that they have
/// seen stay.
fn judge_looks(story: &Story, calls: &[(LedgerOp, &Call)], deposits: &Made, bookings: &Made, findings: &mut Findings) {
    let booked_by = |node: u16, before_ns: u64| {
        bookings.certain.iter().filter(|made| made.0 == node && made.3 <= before_ns).count() as u64
    };
    // By node: when its calls were stable, and how many numbers it had booked by then.
    let mut stable: BTreeMap<u16, Vec<(u64, u64)>> = BTreeMap::new();
    for (op, call) in calls {
        if let (LedgerOp::Stable, Some((end_ns, _))) = (op, call.success()) {
            stable.entry(call.node).or_default().push((end_ns, booked_by(call.node, call.begin_ns)));
        }
    }
    let mut seen: BTreeMap<u16, Vec<u64>> = BTreeMap::new();
    for (op, call) in calls {
        let (LedgerOp::Look, Some((end_ns, Answer::Numbers(numbers)))) = (op, call.success()) else { continue };
        let node = call.node;
        let [balance, struck, booked @ ..] = numbers.as_slice() else { continue };
        let of_begun = |made: &Made| -> u64 {
            let certain = made.certain.iter().filter(|made| made.2 <= end_ns).map(|made| made.1);
            certain.chain(made.unknown.iter().filter(|made| made.2 <= end_ns).map(|made| made.1)).sum()
        };
        findings.verify("invariants of replicas", *balance <= of_begun(deposits), || {
            format!("ledger: node {node} finds {balance}, and less was deposited")
        });
        for (of, count) in story.members.iter().zip(booked) {
            let own = if *of == node { booked_by(node, call.begin_ns) } else { 0 };
            let of_stable = stable.get(of).into_iter().flatten().filter(|stable| stable.0 <= call.begin_ns);
            let least = of_stable.map(|stable| stable.1).max().unwrap_or(0).max(own);
            findings.verify("calls that are visible", *count >= least, || {
                format!("ledger: node {node} sees {count} numbers of node {of}, and {least} were booked before")
            });
            let most = bookings.certain.iter().map(|made| (made.0, made.2));
            let most = most.chain(bookings.unknown.iter().map(|made| (made.0, made.2)));
            let most = most.filter(|(by, begin_ns)| by == of && *begin_ns <= end_ns).count() as u64;
            findings.verify("calls that are visible", *count <= most, || {
                format!("ledger: node {node} sees {count} numbers of node {of}, and {most} were booked at all")
            });
        }
        let now: Vec<u64> = [*struck].into_iter().chain(booked.iter().copied()).collect();
        if let Some(before) = seen.insert(node, now.clone()) {
            let stays = before.iter().zip(&now).all(|(before, now)| before <= now);
            findings.verify("states that only grow", stays, || {
                format!("ledger: node {node} has first seen {before:?} numbers, and then {now:?}")
            });
        }
    }
    for (_, number, ..) in &bookings.certain {
        debug_assert!(story.members.iter().any(|member| numbers_of(*member).contains(number)));
    }
}

#[cfg(test)]
mod tests {
    use farfield::hamband::DataType;
    use serde_json::json;

    use super::super::Death;
    use super::super::tests::{call, failure, found, judged, story};
    use super::*;
    use crate::chaos::load::LedgerUpdate;

    fn made(node: u16, begin_ns: u64, op: LedgerOp) -> Call {
        call(node, begin_ns, Op::Ledger { op }, Some((begin_ns + 5, Ok(Answer::Changed(true)))))
    }

    fn refused(node: u16, begin_ns: u64, op: LedgerOp) -> Call {
        call(node, begin_ns, Op::Ledger { op }, Some((begin_ns + 5, Ok(Answer::Changed(false)))))
    }

    fn failed(node: u16, begin_ns: u64, op: LedgerOp) -> Call {
        call(node, begin_ns, Op::Ledger { op }, Some((begin_ns + 5, Err(failure("Timeout", &[])))))
    }

    fn look(node: u16, begin_ns: u64, numbers: [u64; 5]) -> Call {
        let found = Answer::Numbers(numbers.to_vec());
        call(node, begin_ns, Op::Ledger { op: LedgerOp::Look }, Some((begin_ns + 5, Ok(found))))
    }

    fn end(node: u16, balance: u64, booked: &[u64], struck: &[u64]) -> Call {
        let state = json!({ "balance": balance, "booked": booked, "struck": struck });
        call(node, 5000, Op::Ledger { op: LedgerOp::Final }, Some((5001, Ok(Answer::Custom(state)))))
    }

    fn wrong(calls: &[Call], balance: u64, booked: &[u64], struck: &[u64]) -> usize {
        let ends = [end(0, balance, booked, struck), end(1, balance, booked, struck)];
        found(judge, [calls, &ends].concat()).len()
    }

    /// The first number of node 1.
    const N: u64 = (1 << 32) + 1;

    #[test]
    fn the_balance_is_that_of_all_calls() {
        let calls = [made(0, 10, LedgerOp::Deposit(5)), made(1, 20, LedgerOp::Withdraw(2))];
        assert_eq!((wrong(&calls, 3, &[], &[]), wrong(&calls, 5, &[], &[]), wrong(&calls, 1, &[], &[])), (0, 1, 1));
        let refused = [made(0, 10, LedgerOp::Deposit(5)), refused(1, 20, LedgerOp::Withdraw(20))];
        assert_eq!(wrong(&refused, 5, &[], &[]), 0);
        let unknown = [calls[0].clone(), failed(1, 20, LedgerOp::Withdraw(2)), failed(0, 30, LedgerOp::Deposit(7))];
        assert_eq!([3, 5, 10, 12].map(|balance| wrong(&unknown, balance, &[], &[])), [0; 4]);
        assert_eq!([4, 8].map(|balance| wrong(&unknown, balance, &[], &[])), [1; 2]);
    }

    #[test]
    fn updates_are_there_and_no_others() {
        let calls = [made(1, 10, LedgerOp::Book(N)), made(0, 20, LedgerOp::Strike(N))];
        assert_eq!((wrong(&calls, 0, &[N], &[N]), wrong(&calls, 0, &[N], &[])), (0, 1));
        assert_eq!(wrong(&calls[..1], 0, &[], &[]), 1, "it is lost");
        assert_eq!(wrong(&calls[..1], 0, &[N, N + 1], &[]), 1, "of no call");
        assert_eq!(wrong(&calls[1..], 0, &[], &[N]), 1, "it was not booked");
        let unknown = [failed(1, 10, LedgerOp::Book(N))];
        assert_eq!((wrong(&unknown, 0, &[N], &[]), wrong(&unknown, 0, &[], &[])), (0, 0));
        let twice = [&calls[..], &[made(1, 30, LedgerOp::Strike(N))]].concat();
        assert_eq!(wrong(&twice, 0, &[N], &[N]), 1, "it was struck twice");
    }

    #[test]
    fn a_refusal_has_a_reason() {
        let with = |strike: Call| [made(1, 10, LedgerOp::Book(N)), strike, refused(0, 50, LedgerOp::Strike(N))];
        assert_eq!(wrong(&with(made(1, 20, LedgerOp::Strike(N))), 0, &[N], &[N]), 0);
        assert_eq!(wrong(&with(failed(1, 20, LedgerOp::Strike(N))), 0, &[N], &[]), 0);
        assert_eq!(wrong(&with(made(1, 56, LedgerOp::Strike(N))), 0, &[N], &[N]), 1, "it came later");
    }

    #[test]
    fn all_replicas_are_alike() {
        let calls = vec![made(1, 10, LedgerOp::Book(N)), end(0, 0, &[N], &[]), end(1, 0, &[], &[])];
        assert_eq!(found(judge, calls).len(), 1);
        // Without most nodes, one node alone may know the ordered calls.
        let ordered = vec![
            made(1, 10, LedgerOp::Book(N)),
            made(1, 20, LedgerOp::Strike(N)),
            end(0, 0, &[N], &[N]),
            end(1, 0, &[N], &[]),
        ];
        let mut lost = Story { members: vec![0, 1, 2, 3], ..story(ordered) };
        assert_eq!(judged(judge, &lost).violations.len(), 1);
        lost.deaths.push(Death { node: 3, at_ns: 1000, gone_ns: 1050, told_ns: 1000 });
        assert_eq!(judged(judge, &lost).violations, [""; 0]);
    }

    #[test]
    fn queries_see_own_calls_and_stable_ones() {
        let booked = made(1, 10, LedgerOp::Book(N));
        let stable = call(1, 20, Op::Ledger { op: LedgerOp::Stable }, Some((25, Ok(Answer::Done))));
        let see = |calls: &[Call]| found(judge, [std::slice::from_ref(&booked), calls].concat()).len();
        let (none, one) = ([0; 5], [0, 0, 0, 1, 0]);
        assert_eq!((see(&[look(1, 16, one)]), see(&[look(1, 16, none)])), (0, 1), "its own");
        assert_eq!((see(&[look(0, 16, none)]), see(&[look(0, 16, one)])), (0, 0), "that of another");
        assert_eq!(see(&[stable.clone(), look(0, 26, none)]), 1, "all have it");
        assert_eq!(see(&[stable, look(0, 24, none)]), 0, "perhaps not all yet");
        assert_eq!(see(&[look(0, 16, one), look(0, 30, none)]), 1, "it was there before");
        assert_eq!(see(&[look(0, 16, [0, 0, 0, 2, 0])]), 1, "there is one only");
        assert_eq!(see(&[look(0, 16, [1, 0, 0, 1, 0])]), 1, "nothing was deposited");
    }

    #[test]
    fn a_ledger_does_as_it_says() {
        let mut ledger = Ledger::default();
        assert!(ledger.apply(&LedgerUpdate::Strike(N)).is_err() && ledger.apply(&LedgerUpdate::Withdraw(1)).is_err());
        for update in [LedgerUpdate::Book(N), LedgerUpdate::Deposit(3), LedgerUpdate::Strike(N)] {
            ledger.apply(&update).expect("it is permissible");
        }
        assert!(ledger.apply(&LedgerUpdate::Strike(N)).is_err(), "once");
        ledger.apply(&LedgerUpdate::Withdraw(3)).expect("it is there");
        let (booked, struck) = ([N].into(), [N].into());
        assert_eq!(ledger, Ledger { balance: 0, booked, struck });
    }
}
