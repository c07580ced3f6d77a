//! A thread passes a barrier only after all other members have arrived at it.

use std::collections::BTreeMap;

use super::{Findings, Story};
use crate::chaos::log::Op;

/// The nodes among which a barrier was opened. Their numbers are part of its name.
fn members_of(path: &str) -> impl Iterator<Item = u16> {
    path.rsplit('/').next().unwrap_or_default().split('-').filter_map(|number| number.parse().ok())
}

pub(super) fn judge(story: &Story, findings: &mut Findings) {
    let rounds = story.by(|call| match &call.op {
        Op::Meet { path, round, .. } => Some((path.clone(), *round)),
        _ => None,
    });
    for ((path, round), calls) in rounds {
        let mut arrived_ns: BTreeMap<u16, u64> = BTreeMap::new();
        // The first call of each node, in the order in which they began.
        for call in &calls {
            arrived_ns.entry(call.node).or_insert(call.begin_ns);
        }
        for call in &calls {
            let Some((passed_ns, _)) = call.success() else { continue };
            let late = members_of(&path).find(|node| arrived_ns.get(node).is_none_or(|at_ns| *at_ns > passed_ns));
            findings.verify("meetings at barriers", late.is_none(), || {
                format!("{path}: node {} has passed round {round} without node {}", call.node, late.unwrap_or_default())
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{call, counts, failure, found, judged, story};
    use super::*;
    use crate::chaos::log::{Answer, Call};

    fn met(node: u16, from_ns: u64, to_ns: u64) -> Call {
        let path = "chaos/0/barrier-0-1".into();
        call(node, from_ns, Op::Meet { path, round: 1, again: false }, Some((to_ns, Ok(Answer::Done))))
    }

    #[test]
    fn no_node_passes_alone() {
        assert_eq!(found(judge, vec![met(0, 10, 30), met(1, 20, 25)]), [""; 0]);
        assert_eq!(found(judge, vec![met(0, 10, 19), met(1, 20, 25)]).len(), 1);
        assert_eq!(found(judge, vec![met(0, 10, 19)]).len(), 1);
        let at_the_same_time = judged(judge, &story(vec![met(0, 10, 20), met(1, 20, 25)]));
        assert_eq!(at_the_same_time.violations, [""; 0]);
        assert_eq!(counts(&at_the_same_time), [("meetings at barriers", 2)]);
    }

    #[test]
    fn a_node_that_gave_up_has_arrived() {
        let gave_up = Call { end: Some((18, Err(failure("Timeout", &[])))), ..met(1, 10, 18) };
        let findings = judged(judge, &story(vec![gave_up, met(0, 15, 19), met(1, 20, 25)]));
        assert_eq!((findings.violations.len(), counts(&findings)), (0, vec![("meetings at barriers", 2)]));
    }
}
