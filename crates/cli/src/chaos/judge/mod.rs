//! What must be true of the logs of a generation. Each module judges one kind of object, [`errors`] what calls failed
//! with, and [`pace`] how soon the survivors of a death went on.

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
use super::log::Call;

/// Within so long after a death is found out, it is decided for all.
const DECIDED_NS: u64 = 1_000_000_000;

/// What was done in a generation, by whom and to whom.
pub(super) struct Story {
    /// The path of its objects, with a slash.
    pub(super) path: String,
    pub(super) is_placed_by_hash: bool,
    pub(super) locks: LockKind,
    /// How long the session takes to find out that a node is dead, where no system says so. Zero where one does.
    pub(super) detection_ns: u64,
    /// From when to when the load ran.
    pub(super) load_ns: (u64, u64),
    pub(super) members: Vec<u16>,
    /// Those that have come while the load ran.
    pub(super) newcomers: Vec<u16>,
    /// Those on which objects lie that lie on one.
    pub(super) homes: Vec<u16>,
    /// Who was killed.
    pub(super) deaths: Vec<Death>,
    /// Who was stopped, from when to when.
    pub(super) stops: Vec<(u16, u64, u64)>,
    /// From when on the link was cut, if it was: then those that died were on the losing side.
    pub(super) cut_ns: Option<u64>,
    /// In the order in which they began.
    pub(super) calls: Vec<Call>,
}

/// That a node was killed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Death {
    pub(super) node: u16,
    pub(super) at_ns: u64,
    /// From when on nobody can have taken it for alive: between the two it died.
    pub(super) gone_ns: u64,
    /// When all survivors had said that it is shut out, where they find out themselves: on a busy machine they may take longer
    /// than they were told. When it died, where the system tells them.
    pub(super) told_ns: u64,
}

impl Story {
    /// When a node was killed, if it was.
    fn death_of(&self, node: u16) -> Option<u64> {
        self.deaths.iter().find(|death| death.node == node).map(|death| death.at_ns)
    }

    fn survives(&self, node: u16) -> bool {
        self.death_of(node).is_none()
    }

    /// By when the survivors have found out about a death, shut out the dead, and been told so.
    pub(super) fn found_out_ns(&self, death: &Death) -> u64 {
        (death.at_ns + self.detection_ns).max(death.told_ns)
    }

    /// The longest that it took them, or may take them.
    fn detection_max_ns(&self) -> u64 {
        let took_ns = self.deaths.iter().map(|death| self.found_out_ns(death) - death.at_ns);
        took_ns.max().unwrap_or(self.detection_ns)
    }

    /// Whether a call's node knew of all deaths before.
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

/// What was found.
#[derive(Default, Serialize)]
pub(super) struct Findings {
    /// What was verified, and how often.
    pub(super) verified: BTreeMap<String, u64>,
    /// Errors of each kind, all as they may be unless a violation says otherwise.
    pub(super) errors: BTreeMap<String, u64>,
    pub(super) violations: Vec<String>,
}

impl Findings {
    fn count(&mut self, what: &str, number: u64) {
        *self.verified.entry(what.into()).or_default() += number;
    }

    fn violation(&mut self, what: impl Into<String>) {
        self.violations.push(what.into());
    }

    /// Counts `what`, which must be true; else there is the violation that `why` tells.
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
    findings.count("nodes come under load", story.newcomers.len() as u64);
    findings.count("deaths found out", story.deaths.len() as u64);
    for judge in [kv::judge, queue::judge, locks::judge, ring::judge, barrier::judge, vars::judge, errors::judge] {
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
