//! Each call of a server counts once, in an order that fits the times, also those that were asked for several times. A
//! call does not count if its error says that it has no effect.

use super::vars::judge_counter;
use super::{Findings, Story};
use crate::chaos::log::{Call, Op};

pub(super) fn judge(story: &Story, findings: &mut Findings) {
    let servers = story.by(|call| match call.op {
        Op::Call { server } | Op::Count { server } => Some(server),
        _ => None,
    });
    for (server, calls) in servers {
        let (mut adds, counts): (Vec<&Call>, Vec<&Call>) =
            calls.into_iter().partition(|call| matches!(call.op, Op::Call { .. }));
        adds.retain(|call| !matches!(&call.end, Some((_, Err(failure))) if failure.has_no_effect));
        judge_counter(&format!("rpc/{server}"), ["calls of servers", "counts of servers"], &adds, &counts, findings);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{call, counts, death_of, found, judged, story};
    use super::*;
    use crate::chaos::log::{Answer, Failure};

    fn called(node: u16, from_ns: u64, before: u64) -> Call {
        call(node, from_ns, Op::Call { server: 0 }, Some((from_ns + 5, Ok(Answer::Value(before)))))
    }

    fn counted(total: u64) -> Call {
        call(1, 90, Op::Count { server: 0 }, Some((95, Ok(Answer::Value(total)))))
    }

    #[test]
    fn a_call_counts_once() {
        let right = || vec![called(1, 10, 0), called(2, 20, 1), counted(2)];
        assert_eq!(counts(&judged(judge, &story(right()))), [("calls of servers", 2), ("counts of servers", 1)]);
        assert_eq!(found(judge, vec![called(1, 10, 0), called(2, 20, 0)]).len(), 2, "twice the same");
        assert_eq!(found(judge, vec![called(1, 10, 0), called(2, 20, 1), counted(3)]).len(), 1, "one counted twice");
        assert_eq!(found(judge, vec![called(1, 10, 1), called(2, 20, 0)]).len(), 1, "in another order");
    }

    /// A call may have counted if its caller has no reply.
    #[test]
    fn a_call_without_a_reply_counts_once_at_most() {
        let cut_short = || call(2, 20, Op::Call { server: 0 }, None);
        for (total, violations) in [(1, 0), (2, 0), (3, 1)] {
            let calls = vec![called(1, 10, 0), cut_short(), counted(total)];
            assert_eq!(found(judge, calls).len(), violations, "{total}");
        }
    }

    /// A call may have counted if it was given up, or if its error does not know. It has not if the error says that
    /// nothing has happened.
    #[test]
    fn errors_say_truly_whether_a_call_counts() {
        let ended = |outcome| call(2, 20, Op::Call { server: 0 }, Some((25, outcome)));
        let failed = |has_no_effect| ended(Err(Failure { has_no_effect, ..death_of(0) }));
        for (end, total, violations) in [
            (ended(Ok(Answer::Done)), 1, 0),
            (ended(Ok(Answer::Done)), 2, 0),
            (ended(Ok(Answer::Done)), 3, 1),
            (failed(false), 1, 0),
            (failed(false), 2, 0),
            (failed(true), 1, 0),
            (failed(true), 2, 1),
        ] {
            let calls = vec![called(1, 10, 0), end, counted(total)];
            assert_eq!(found(judge, calls).len(), violations, "{total}");
        }
    }
}
