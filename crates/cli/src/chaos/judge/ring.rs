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
    use super::super::tests::{call, death_of, found};
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
}
