//! Checks of the logs of a generation. Each module judges one kind of object. [`errors`] judges the errors of calls,
//! and [`pace`] how soon the survivors of a death resumed their work.

mod barrier;
mod cut;
mod errors;
mod kv;
mod locks;
pub(super) mod pace;
mod queue;
mod ring;
mod vars;

use std::collections::BTreeMap;

use farfield::LockKind;
use serde::Serialize;

pub(super) use self::errors::LIMITS_MAX;
use super::custom;
use super::log::Call;

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
    let of_objects = [kv::judge, queue::judge, locks::judge, ring::judge, barrier::judge, vars::judge];
    for judge in of_objects.into_iter().chain([errors::judge, custom::judge]) {
        judge(story, &mut findings);
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::log::{Answer, Failure, Op};
    use super::*;

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
        Failure { variant: "PeerDead".into(), nodes: vec![node], object, text: "it is dead".into() }
    }

    /// The violations that one judge finds.
    pub(super) fn found(judge: fn(&Story, &mut Findings), calls: Vec<Call>) -> Vec<String> {
        let mut findings = Findings::default();
        judge(&story(calls), &mut findings);
        findings.violations
    }
}
