//! Each reader receives each message once, in order: all of them, or, from a dead writer, all up to its last whole one.

use super::{Findings, Story};
use crate::chaos::log::{Answer, Op};

pub(super) fn judge(story: &Story, findings: &mut Findings) {
    let rings = story.by(|call| match call.op {
        Op::Send { ring, .. } | Op::Receive { ring } => Some(ring),
        _ => None,
    });
    for (ring, calls) in rings {
        let sends = || calls.iter().filter(|call| matches!(call.op, Op::Send { .. }));
        let sent =
            sends().filter(|call| call.success().is_some_and(|it| *it.1 == Answer::Changed(true))).count() as u64;
        let cut_short = sends().filter(|call| call.success().is_none()).count() as u64;
        findings.count("messages sent", sent);
        for reader in story.members.iter().filter(|reader| **reader != ring) {
            let (mut next, mut has_ended) = (0, false);
            // Only the writer sends, so all calls of a reader receive.
            for call in calls.iter().filter(|call| call.node == *reader) {
                match call.success() {
                    Some((_, Answer::Value(number))) => {
                        findings.verify("messages received", *number == next && !has_ended, || {
                            format!("ring/{ring}: node {reader} got message {number} where {next} was to come")
                        });
                        next = number + 1;
                    }
                    _ => has_ended |= call.failure().is_some(),
                }
            }
            if !story.survives(*reader) {
                continue;
            }
            let is_alive = story.survives(ring);
            // On shared memory all sent messages have landed, even if the sender dies. On RDMA some may not have left
            // its NIC.
            let landed = if story.detection_ns == 0 { sent } else { 0 };
            let whole = if is_alive { sent..=sent } else { landed..=sent + cut_short };
            findings.verify("streams of messages", whole.contains(&next) && has_ended != is_alive, || {
                let end = if has_ended { "the stream has ended" } else { "it has not ended" };
                format!("ring/{ring}: {sent} sent, {cut_short} cut short, node {reader} got {next}, {end}")
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{call, counts, death_of, found, judged, story};
    use super::*;
    use crate::chaos::log::Call;

    fn sent(ring: u16, number: u64) -> Call {
        call(ring, number, Op::Send { ring, number }, Some((number + 1, Ok(Answer::Changed(true)))))
    }

    fn got(reader: u16, ring: u16, number: u64) -> Call {
        call(reader, 50 + number, Op::Receive { ring }, Some((51 + number, Ok(Answer::Value(number)))))
    }

    #[test]
    fn a_stream_is_whole() {
        let both = [sent(0, 0), sent(0, 1), got(1, 0, 0)];
        assert_eq!(found(judge, [&both[..], &[got(1, 0, 1)]].concat()), [""; 0]);
        assert_eq!(found(judge, both.to_vec()).len(), 1, "one has not come");
        let twice = [&both[..], &[got(1, 0, 0), got(1, 0, 1)]].concat();
        assert!(!found(judge, twice).is_empty());
    }

    #[test]
    fn the_stream_of_the_dead_ends() {
        let end = |reader| call(reader, 2000, Op::Receive { ring: 2 }, Some((2001, Err(death_of(2)))));
        let both = [sent(2, 0), got(0, 2, 0), got(1, 2, 0), end(0)];
        assert_eq!(found(judge, [&both[..], &[end(1)]].concat()), [""; 0]);
        assert_eq!(found(judge, both.to_vec()).len(), 1, "it has not ended for one");
    }

    fn ended(reader: u16, ring: u16, at_ns: u64) -> Call {
        call(reader, at_ns, Op::Receive { ring }, Some((at_ns + 1, Err(death_of(2)))))
    }

    /// The violations in the stream to node 0, the only reader, of a ring to which two messages were sent, and a third
    /// message if its send was cut short.
    fn of_stream(ring: u16, detection_ns: u64, received: u64, has_ended: bool) -> Vec<String> {
        let full = call(ring, 3, Op::Send { ring, number: 2 }, Some((4, Ok(Answer::Changed(false)))));
        let mut calls = vec![sent(ring, 0), sent(ring, 1), full, call(ring, 5, Op::Send { ring, number: 2 }, None)];
        calls.extend((0..received).map(|number| got(0, ring, number)));
        calls.extend(has_ended.then(|| ended(0, ring, 2000)));
        let story = Story { detection_ns, members: vec![0, ring], ..story(calls) };
        let findings = judged(judge, &story);
        // Of the writer nothing is expected.
        let all = [("messages received", received), ("messages sent", 2), ("streams of messages", 1)];
        assert_eq!(counts(&findings), all[usize::from(received == 0)..]);
        findings.violations
    }

    #[test]
    fn a_stream_has_as_many_messages_as_its_writer_and_the_fabric_let_through() {
        // The number of the ring, the time to detect deaths, and the numbers of messages that may arrive.
        let table = [(1, 0, 2..=2), (1, 10, 2..=2), (2, 0, 2..=3), (2, 10, 0..=3)];
        for (ring, detection_ns, allowed) in table {
            let is_alive = ring == 1;
            let end = if is_alive { "it has not ended" } else { "the stream has ended" };
            for received in 0..=4 {
                let violations = of_stream(ring, detection_ns, received, !is_alive);
                if allowed.contains(&received) {
                    assert_eq!(violations, [""; 0], "{received} of ring {ring}, {detection_ns} ns");
                } else {
                    let text = format!("ring/{ring}: 2 sent, 1 cut short, node 0 got {received}, {end}");
                    assert_eq!(violations, [text], "{detection_ns} ns");
                }
            }
        }
    }

    #[test]
    fn a_stream_ends_if_its_writer_has_died() {
        assert_eq!(of_stream(1, 0, 2, true), ["ring/1: 2 sent, 1 cut short, node 0 got 2, the stream has ended"]);
        assert_eq!(of_stream(2, 0, 2, false), ["ring/2: 2 sent, 1 cut short, node 0 got 2, it has not ended"]);
    }

    #[test]
    fn no_message_comes_after_the_end_or_out_of_order() {
        let of = |received: [Call; 3]| {
            let calls = [vec![sent(2, 0), sent(2, 1)], received.to_vec()].concat();
            judged(judge, &Story { members: vec![0, 2], ..story(calls) }).violations
        };
        let after_end = call(0, 3000, Op::Receive { ring: 2 }, Some((3001, Ok(Answer::Value(1)))));
        assert_eq!(
            of([got(0, 2, 0), ended(0, 2, 2000), after_end]),
            ["ring/2: node 0 got message 1 where 1 was to come"]
        );
        let skipped = of([got(0, 2, 1), got(0, 2, 1), ended(0, 2, 2000)]);
        let texts =
            ["ring/2: node 0 got message 1 where 0 was to come", "ring/2: node 0 got message 1 where 2 was to come"];
        assert_eq!(skipped, texts);
    }
}
