//! Replicas of a data type converge, keep the invariant, and lose no call that has returned. What one node has called, it sees, and after
//! `stable` all see it.

use std::collections::{BTreeMap, BTreeSet};

use super::{Findings, Story};
use crate::chaos::load::{Ledger, numbers_of};
use crate::chaos::log::{Answer, Call, LedgerOp, Op};

/// The calls of a kind: those that have certainly been made, and those that may have been, each with the node and its begin and end.
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
    // With most nodes, the knowledge of what was ordered may die. All other calls stay.
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

/// Queries see all calls of their own node, and those of others as soon as they are stable; and what they have seen stays.
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
