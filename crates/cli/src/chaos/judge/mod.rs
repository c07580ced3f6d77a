//! Checks of the logs of a generation. Each module judges one kind of object. [`errors`] judges the errors of calls,
//! and [`pace`] how soon the survivors of a death resumed their work.

mod barrier;
mod cut;
mod entries;
mod errors;
mod kv;
mod locks;
pub(super) mod pace;
mod queue;
mod ring;
mod rome;
mod rpc;
mod swarm;
mod turns;
mod vars;
mod wrdt;

use std::collections::BTreeMap;

use farfield::LockKind;
use serde::Serialize;

pub(super) use self::errors::LIMITS_MAX;
use super::custom;
use super::log::Call;

/// The most nodes of a run: the judge of stores keeps a set of the dead ones in a word.
pub(super) const NODES_MAX: usize = 64;

/// All nodes have decided a death at most this long after its detection.
const DECIDED_NS: u64 = 1_000_000_000;

/// The calls of a generation, with its nodes and the faults that were injected.
pub(super) struct Story {
    /// The path of its objects, with a slash.
    pub(super) path: String,
    pub(super) is_placed_by_hash: bool,
    pub(super) locks: LockKind,
    /// The time that the session takes to detect a death, where no system reports it. Zero where one does.
    pub(super) detection_ns: u64,
    /// The begin and the end of the load.
    pub(super) load_ns: (u64, u64),
    pub(super) members: Vec<u16>,
    /// The nodes that joined while the load ran.
    pub(super) newcomers: Vec<u16>,
    /// The nodes that store the objects with a single home.
    pub(super) homes: Vec<u16>,
    /// The nodes that were killed.
    pub(super) deaths: Vec<Death>,
    /// The nodes that were stopped, each with begin and end.
    pub(super) stops: Vec<(u16, u64, u64)>,
    /// The time at which the link was cut, if it was. The nodes that died were then on the losing side.
    pub(super) cut_ns: Option<u64>,
    /// In the order in which they began.
    pub(super) calls: Vec<Call>,
}

/// The death of a killed node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Death {
    pub(super) node: u16,
    pub(super) at_ns: u64,
    /// From this time on, no node can have taken it for alive. It died between the two times.
    pub(super) gone_ns: u64,
    /// The time at which all survivors had reported its eviction, where they detect deaths themselves: on a busy
    /// machine this may exceed the configured time. The time of its death, where the system reports it.
    pub(super) told_ns: u64,
}

impl Story {
    /// The time at which a node was killed, if it was.
    fn death_of(&self, node: u16) -> Option<u64> {
        self.deaths.iter().find(|death| death.node == node).map(|death| death.at_ns)
    }

    fn survives(&self, node: u16) -> bool {
        self.death_of(node).is_none()
    }

    /// The time by which the survivors have detected a death, evicted the dead node, and learned of its eviction.
    pub(super) fn found_out_ns(&self, death: &Death) -> u64 {
        (death.at_ns + self.detection_ns).max(death.told_ns)
    }

    /// The longest time that the survivors took for this, or may take.
    fn detection_max_ns(&self) -> u64 {
        let took_ns = self.deaths.iter().map(|death| self.found_out_ns(death) - death.at_ns);
        took_ns.max().unwrap_or(self.detection_ns)
    }

    /// Whether a call's node knew of all earlier deaths.
    fn is_told(&self, call: &Call) -> bool {
        let is_told = |death: &Death| {
            let gone_ns = death.gone_ns.saturating_add(self.detection_ns).max(death.told_ns);
            call.begin_ns < death.at_ns || call.begin_ns >= gone_ns.saturating_add(DECIDED_NS)
        };
        self.detection_ns == 0 || self.deaths.iter().all(is_told)
    }

    /// The calls on each object: those that `of` gives a name for.
    fn by<K: Ord>(&self, of: impl Fn(&Call) -> Option<K>) -> BTreeMap<K, Vec<&Call>> {
        let mut groups: BTreeMap<K, Vec<&Call>> = BTreeMap::new();
        for call in &self.calls {
            if let Some(key) = of(call) {
                groups.entry(key).or_default().push(call);
            }
        }
        groups
    }
}

/// The result of the judges.
#[derive(Default, Serialize)]
pub(super) struct Findings {
    /// The properties that were verified, and how often.
    pub(super) verified: BTreeMap<String, u64>,
    /// The number of errors of each kind. All are allowed unless a violation reports otherwise.
    pub(super) errors: BTreeMap<String, u64>,
    pub(super) violations: Vec<String>,
}

impl Findings {
    pub(super) fn count(&mut self, what: &str, number: u64) {
        *self.verified.entry(what.into()).or_default() += number;
    }

    pub(super) fn violation(&mut self, what: impl Into<String>) {
        self.violations.push(what.into());
    }

    /// Counts `what`. If it is not true, adds the violation that `why` returns.
    fn verify(&mut self, what: &str, is_true: bool, why: impl FnOnce() -> String) {
        self.count(what, 1);
        if !is_true {
            self.violation(why());
        }
    }

    pub(super) fn merge(&mut self, other: Findings) {
        for (what, number) in other.verified {
            *self.verified.entry(what).or_default() += number;
        }
        for (what, number) in other.errors {
            *self.errors.entry(what).or_default() += number;
        }
        self.violations.extend(other.violations);
    }
}

/// Judges all but the pace.
pub(super) fn judge(story: &mut Story) -> Findings {
    let mut findings = Findings::default();
    cut::judge_and_leave_out(story, &mut findings);
    for (what, nodes) in [("nodes come under load", story.newcomers.len()), ("deaths found out", story.deaths.len())] {
        findings.count(what, nodes as u64);
    }
    let of_objects =
        [kv::judge, queue::judge, locks::judge, ring::judge, barrier::judge, vars::judge, rpc::judge, swarm::judge];
    let of_replicas = [wrdt::judge, turns::judge, entries::judge, rome::judge];
    for judge in of_objects.into_iter().chain(of_replicas).chain([errors::judge, custom::judge]) {
        judge(story, &mut findings);
    }
    findings
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::log::{Answer, Failure, KvOp, LedgerOp, Op, Turns};
    use super::*;
    use crate::{Load, Parts, parts};

    /// A story of three nodes, the last of which is killed at 1000.
    pub(super) fn story(calls: Vec<Call>) -> Story {
        Story {
            path: "chaos/0/".into(),
            is_placed_by_hash: false,
            locks: LockKind::Mutex,
            detection_ns: 0,
            load_ns: (0, 10_000),
            members: vec![0, 1, 2],
            newcomers: Vec::new(),
            homes: vec![0, 1, 2],
            deaths: vec![Death { node: 2, at_ns: 1000, gone_ns: 1050, told_ns: 1000 }],
            stops: Vec::new(),
            cut_ns: None,
            calls,
        }
    }

    pub(super) fn call(node: u16, begin_ns: u64, op: Op, end: Option<(u64, Result<Answer, Failure>)>) -> Call {
        Call { node, thread: "t".into(), op, limit_ns: 100, begin_ns, end }
    }

    pub(super) fn death_of(node: u16) -> Failure {
        let object = Some("chaos/0/it".into());
        let text = "it is dead".into();
        Failure { variant: "PeerDead".into(), nodes: vec![node], object, text, has_no_effect: false, partition: None }
    }

    /// A failure that names the object `it` of the story.
    pub(super) fn failure(variant: &str, nodes: &[u16]) -> Failure {
        Failure { variant: variant.into(), nodes: nodes.into(), ..death_of(0) }
    }

    /// The findings of one judge.
    pub(super) fn judged(judge: fn(&Story, &mut Findings), story: &Story) -> Findings {
        let mut findings = Findings::default();
        judge(story, &mut findings);
        findings
    }

    /// The violations that one judge finds.
    pub(super) fn found(judge: fn(&Story, &mut Findings), calls: Vec<Call>) -> Vec<String> {
        judged(judge, &story(calls)).violations
    }

    /// The properties that were verified, and how often, in alphabetic order.
    pub(super) fn counts(findings: &Findings) -> Vec<(&str, u64)> {
        findings.verified.iter().map(|(what, number)| (what.as_str(), *number)).collect()
    }

    #[test]
    fn every_judge_judges_a_generation() {
        let load = Load {
            name: "guest",
            open: |_| unreachable!("it is not run"),
            judge: |observed| observed.calls::<Value, Value>().iter().map(|call| call.call.to_string()).collect(),
        };
        parts::set(Parts { loads: vec![load], ..Parts::default() });
        let of_guest = |begin_ns| {
            let op = Op::Custom { load: "guest".into(), call: Value::from(begin_ns) };
            call(0, begin_ns, op, Some((begin_ns + 5, Ok(Answer::Custom(Value::Null)))))
        };
        let done = |node, op, answer| call(node, 10, op, Some((20, Ok(answer))));
        let calls = vec![
            done(0, Op::Kv { key: 1, op: KvOp::Get }, Answer::Found(None)),
            done(0, Op::Dequeue { queue: 0 }, Answer::Found(None)),
            done(0, Op::Lock { lock: 0, turn: 0 }, Answer::Held { is_poisoned: false }),
            done(0, Op::Send { ring: 0, number: 0 }, Answer::Changed(false)),
            done(0, Op::Meet { path: "chaos/0/barrier-0".into(), round: 1, again: false }, Answer::Done),
            done(0, Op::Add { counter: 0 }, Answer::Value(0)),
            done(0, Op::Call { server: 0 }, Answer::Value(0)),
            done(0, Op::Swarm { key: 1, op: KvOp::Get }, Answer::Found(None)),
            done(0, Op::Rome { key: 1, op: KvOp::Get }, Answer::Found(None)),
            done(0, Op::Ledger { op: LedgerOp::Deposit(1) }, Answer::Changed(true)),
            done(0, Op::Grab { of: Turns::Mutex }, Answer::Value(1)),
            done(0, Op::Propose { value: 1 }, Answer::Changed(false)),
            of_guest(30),
            // On the losing side of the cut: judged as such, and by nobody else.
            call(2, 1100, Op::Flush, Some((1110, Err(failure("PeerDead", &[0]))))),
        ];
        let findings = judge(&mut Story { cut_ns: Some(1000), newcomers: vec![3, 4], ..story(calls) });
        let expected = [
            ("additions", 1),
            ("calls cut off within their time", 1),
            ("calls of guest", 1),
            ("calls of replicated types", 1),
            ("calls of servers", 1),
            ("calls of transactions", 0),
            ("calls within their time", 13),
            ("deaths found out", 1),
            ("deaths of waiters", 0),
            ("entries decided", 0),
            ("entries that reach all", 2),
            ("errors of those cut off", 1),
            ("histories of keys", 1),
            ("histories of ordered keys", 1),
            ("histories of queues", 1),
            ("histories of replicated keys", 1),
            ("keys placed by hash", 1),
            ("locks taken", 1),
            ("lost values seen", 0),
            ("meetings at barriers", 1),
            ("messages sent", 0),
            ("nodes come under load", 2),
            ("operations on keys", 1),
            ("operations on ordered keys", 1),
            ("operations on queues", 1),
            ("operations on replicated keys", 1),
            ("queues opened with newcomers", 0),
            ("streams of messages", 1),
            ("tickets of the dead", 0),
            ("tokens", 1),
            ("turns at the replicated lock", 1),
            ("values dequeued", 0),
        ];
        assert_eq!(counts(&findings), expected);
        assert_eq!(findings.violations, ["node 2, cut off: Flush failed with `it is dead`", "guest: 30"]);
    }

    /// A lost change, a change that is found as another one, one that is found too late, and no order for all cells.
    #[test]
    fn transactions_are_judged_by_the_cells_that_they_find() {
        let cell = |number: u64, balance: i32| number << 32 | u64::from(balance as u32);
        let logged = |begin_ns, end_ns, call_of: Value, found: &[u64]| {
            let op = Op::Custom { load: "transactions".into(), call: call_of };
            call(0, begin_ns, op, Some((end_ns, Ok(Answer::Custom(json!(found))))))
        };
        let transfer = |begin_ns, end_ns, cells: [usize; 2], found: [u64; 2]| {
            let call_of = json!({ "Transfer": { "from": cells[0], "to": cells[1], "amount": 5 } });
            logged(begin_ns, end_ns, call_of, &found)
        };
        let look = |found: u64| logged(9000, 9001, json!({ "Look": { "cells": [0] } }), &[found]);
        let found = |calls: &[Call]| judged(custom::judge, &story(calls.to_vec())).violations;
        let zero = cell(0, 0);
        let first = transfer(0, 10, [0, 1], [zero, zero]);
        let second = transfer(5, 20, [1, 0], [cell(1, 5), cell(1, -5)]);
        assert!(found(&[first.clone(), second.clone(), look(cell(2, 0)), look(cell(3, 7))]).is_empty());
        let same = transfer(5, 20, [0, 2], [zero, zero]);
        assert_eq!(found(&[first.clone(), same]), ["transactions: two transfers have found cell 0 after 0 changes"]);
        let torn = transfer(5, 20, [0, 2], [cell(1, 0), zero]);
        let expected = ["transactions: change 1 of cell 0 has left -5, and 0 was found"];
        assert_eq!(found(&[first.clone(), torn]), expected);
        let late = [transfer(0, 10, [0, 1], [cell(1, 0), zero]), transfer(11, 20, [0, 2], [zero, zero])];
        let expected = "transactions: a transfer has found cell 0 after 0 changes, too late";
        assert!(found(&late).contains(&expected.to_string()));
        let crossed = transfer(5, 20, [0, 1], [cell(1, -5), zero]);
        let other = transfer(0, 10, [0, 1], [zero, cell(1, 5)]);
        assert_eq!(found(&[crossed, other]), ["transactions: no order of the transfers agrees with all cells"]);
        for end in [cell(2, 1), cell(1, 0)] {
            assert_eq!(found(&[first.clone(), second.clone(), look(end)]).len(), 1);
        }
    }

    #[test]
    fn the_findings_of_generations_are_added_up() {
        let findings = |number, variant: &str| {
            let mut findings = Findings::default();
            findings.count("both", number);
            findings.verify(variant, false, || format!("no {variant}"));
            findings.errors.insert(variant.into(), number);
            findings
        };
        let mut all = findings(2, "first");
        all.merge(findings(3, "second"));
        assert_eq!(counts(&all), [("both", 5), ("first", 1), ("second", 1)]);
        assert_eq!(all.errors, BTreeMap::from([("first".to_string(), 2), ("second".to_string(), 3)]));
        assert_eq!(all.violations, ["no first", "no second"]);
        all.merge(findings(4, "first"));
        assert_eq!((all.verified["both"], all.verified["first"], all.errors["first"]), (9, 2, 6));
    }

    #[test]
    fn a_node_knows_of_a_death_soon_after_its_detection() {
        let is_told = |detection_ns, told_ns, begin_ns| {
            let mut story = Story { detection_ns, ..story(Vec::new()) };
            story.deaths[0].told_ns = told_ns;
            story.is_told(&call(0, begin_ns, Op::Flush, None))
        };
        for (told_ns, by_ns) in [(1000, 1060 + DECIDED_NS), (5000, 5000 + DECIDED_NS)] {
            let knows = [999, 1000, by_ns - 1, by_ns].map(|begin_ns| is_told(10, told_ns, begin_ns));
            assert_eq!(knows, [true, false, false, true], "reported at {told_ns} ns");
            assert!(is_told(0, told_ns, 1000), "the system tells it at once");
        }
    }
}
