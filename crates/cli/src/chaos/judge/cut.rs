//! The nodes on the losing side of a link that was cut: each of their calls ends with an error that names the reason.
//! (The director waits until such a node learns of its eviction.) The calls of such a node after the cut affect no
//! other node, so the other judges leave them out.

use super::errors::LIMITS_MAX;
use super::{Findings, Story};
use crate::chaos::log::Op;

pub(super) fn judge_and_leave_out(story: &mut Story, findings: &mut Findings) {
    let Some(cut_ns) = story.cut_ns else { return };
    for death in &story.deaths {
        let of_node = |call: &&super::Call| call.node == death.node;
        let ends = story.calls.iter().filter(of_node).filter_map(|call| call.end.as_ref().map(|end| end.0));
        // The node's last log entry. It was killed a moment later.
        let last_ns = ends.max().unwrap_or(cut_ns);
        let is_after = |call: &&super::Call| call.end.as_ref().is_none_or(|end| end.0 >= cut_ns);
        for call in story.calls.iter().filter(of_node).filter(is_after) {
            let at_ns = call.end.as_ref().map_or(last_ns, |end| end.0);
            let took_ns = at_ns.saturating_sub(call.begin_ns);
            findings.verify(
                "calls cut off within their time",
                took_ns <= LIMITS_MAX * call.limit_ns + story.detection_max_ns(),
                || format!("node {}, cut off: {:?} took {} ms", call.node, call.op, took_ns / 1_000_000),
            );
            let Some((_, failure)) = call.failure() else { continue };
            // From there no majority of the memory nodes may be within reach, nor one of all nodes.
            let is_replicated = matches!(
                call.op,
                Op::Swarm { .. } | Op::Ledger { .. } | Op::Grab { .. } | Op::GiveBack { .. } | Op::Propose { .. }
            );
            let is_right = ["Unreachable", "Timeout", "Fenced"].contains(&failure.variant.as_str())
                || failure.variant == "NoMajority" && is_replicated
                || failure.variant == "LogFull" && matches!(call.op, Op::Propose { .. });
            findings.verify("errors of those cut off", is_right, || {
                format!("node {}, cut off: {:?} failed with `{}`", call.node, call.op, failure.text)
            });
        }
    }
    for death in &story.deaths {
        story.calls.retain(|call| call.begin_ns < cut_ns || call.node != death.node);
        for call in story.calls.iter_mut().filter(|call| call.node == death.node) {
            // Treated like the call that a killed node was executing. A call that succeeded while the link was being
            // cut counts as done.
            call.end.take_if(|(at_ns, outcome)| *at_ns >= cut_ns || *at_ns >= death.at_ns && outcome.is_err());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{call, counts, death_of, failure, story};
    use super::*;
    use crate::chaos::log::{Answer, Call, Failure};

    fn judged(calls: Vec<Call>) -> (Vec<String>, Vec<Call>) {
        let (mut story, mut findings) = (Story { cut_ns: Some(1000), ..story(calls) }, Findings::default());
        judge_and_leave_out(&mut story, &mut findings);
        (findings.violations, story.calls)
    }

    fn failed(begin_ns: u64, end_ns: u64, variant: &str) -> Call {
        let failure = Failure { variant: variant.into(), ..death_of(0) };
        call(2, begin_ns, Op::Flush, Some((end_ns, Err(failure))))
    }

    #[test]
    fn calls_of_the_losing_side_are_left_out() {
        let done = |node, begin_ns| call(node, begin_ns, Op::Flush, Some((begin_ns + 50, Ok(Answer::Done))));
        let told = failed(1300, 1310, "Fenced");
        let (violations, calls) = judged(vec![done(2, 900), done(2, 980), done(2, 1100), done(1, 1100), told.clone()]);
        assert_eq!(violations, [""; 0]);
        let left: Vec<_> = calls.iter().map(|call| (call.node, call.begin_ns, call.end.is_some())).collect();
        assert_eq!(left, [(2, 900, true), (2, 980, false), (1, 1100, true)]);
        let stuck = call(2, 1100, Op::Flush, None);
        assert_eq!(judged(vec![stuck.clone(), told.clone()]).0, [""; 0], "it may have ended in time");
        assert_eq!(judged(vec![stuck, failed(4000, 4010, "Fenced")]).0.len(), 1, "it does not end");
        assert_eq!(judged(vec![failed(1100, 1110, "PeerDead"), told.clone()]).0.len(), 1, "the others are not dead");
        assert_eq!(judged(vec![failed(1100, 9000, "Timeout"), told]).0.len(), 1, "too late");
    }

    /// What is left of a call of node 2: whether it has an end, if there is anything. The node dies at 1000, while the
    /// link is being cut, which takes until 1050. And the findings, if the survivors evict it at 1500.
    fn left_of(begin_ns: u64, end_ns: u64, has_failed: bool) -> (Option<bool>, Findings) {
        let outcome = if has_failed { Err(failure("Timeout", &[])) } else { Ok(Answer::Done) };
        let calls = vec![call(2, begin_ns, Op::Flush, Some((end_ns, outcome)))];
        let (mut story, mut findings) = (Story { cut_ns: Some(1050), ..story(calls) }, Findings::default());
        story.deaths[0].told_ns = 1500;
        judge_and_leave_out(&mut story, &mut findings);
        (story.calls.first().map(|call| call.end.is_some()), findings)
    }

    #[test]
    fn a_call_during_the_cut_counts_if_it_succeeded() {
        let table = [
            ((900, 999, true), Some(true)),
            ((900, 1000, true), Some(false)),
            ((900, 1000, false), Some(true)),
            ((900, 1049, true), Some(false)),
            ((900, 1049, false), Some(true)),
            ((900, 1050, false), Some(false)),
            ((1049, 1060, false), Some(false)),
            ((1050, 1060, false), None),
        ];
        for ((begin_ns, end_ns, has_failed), left) in table {
            assert_eq!(
                left_of(begin_ns, end_ns, has_failed).0,
                left,
                "{begin_ns} to {end_ns} ns, failed: {has_failed}"
            );
        }
    }

    #[test]
    fn a_call_that_ends_after_the_cut_ends_in_time() {
        assert_eq!(counts(&left_of(1000, 1049, true).1), [("calls cut off within their time", 0); 0]);
        assert_eq!(counts(&left_of(1000, 1050, false).1), [("calls cut off within their time", 1)]);
        // Ten times its limit, and the time in which the survivors evict the node.
        let in_time = left_of(1000, 2500, true).1;
        assert_eq!(counts(&in_time), [("calls cut off within their time", 1), ("errors of those cut off", 1)]);
        assert_eq!(in_time.violations, [""; 0]);
        assert_eq!(left_of(1000, 2501, true).1.violations.len(), 1);
    }
}
