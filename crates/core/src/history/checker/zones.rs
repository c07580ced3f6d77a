//! Contradictions that need no search.

use super::{Model, NEVER, Reason, Search};

/// An interval of the list during which the state must be `state`. The reason is two operations: `first`, which returns
/// at its start, and `last`, which is called at its end. `first` is [`NEVER`] for the interval in which the initial
/// state lasts.
struct Zone {
    start: u32,
    end: u32,
    state: u32,
    first: u32,
    last: u32,
}

impl<'a, M: Model> Search<'a, M> {
    /// Finds two or three operations that contradict each other whatever the others did, if such are easily found.
    ///
    /// Let `s` be a state other than the initial one that only one operation leaves. It lasts from that operation to
    /// the last that needs it. If one of these returned before another was called, the state is `s` from that return to
    /// that call: a zone. Zones of different states must not overlap, and an operation within a zone must be a read
    /// that is possible there.
    pub(super) fn contradiction(&mut self) -> Option<(Reason, Vec<usize>)> {
        if !self.tracked {
            return None;
        }
        let initial = self.state;
        let mut zones: Vec<Zone> = Vec::new();
        for (state, entry) in (0..).zip(&self.traffic) {
            let last = entry.reader_called_last;
            if last == NEVER {
                continue;
            }
            let zone = match entry.writers_total {
                0 if state != initial => return Some((Reason::NeverWritten, vec![last as usize])),
                0 => Zone { start: 0, end: entry.reader_call_max, state, first: NEVER, last },
                1 if state != initial => {
                    let (first, writer) = (entry.returned_first, entry.writer);
                    if entry.return_min < self.ops[writer as usize].call_at {
                        return Some((Reason::ReadBeforeWritten, vec![first as usize, writer as usize]));
                    }
                    Zone { start: entry.return_min, end: entry.reader_call_max, state, first, last }
                }
                _ => continue,
            };
            if zone.start < zone.end {
                zones.push(zone);
            }
        }
        zones.sort_unstable_by_key(|zone| zone.start);
        let culprits = |ops: &[u32]| {
            let mut culprits: Vec<usize> = ops.iter().filter(|&&op| op != NEVER).map(|&op| op as usize).collect();
            culprits.sort_unstable();
            Some((Reason::Contradiction, culprits))
        };
        for pair in zones.windows(2) {
            if pair[1].start < pair[0].end {
                let (a, b) = (&pair[0], &pair[1]);
                return culprits(&[a.first, a.last, b.first, b.last]);
            }
        }
        for id in 0..self.ops.len() as u32 {
            let op = self.ops[id as usize];
            let after = zones.partition_point(|zone| zone.start < op.call_at);
            let Some(zone) = after.checked_sub(1).map(|at| &zones[at]) else { continue };
            if op.return_at < zone.end && !self.is_read_possible_in(zone.state, id) {
                return culprits(&[zone.first, id, zone.last]);
            }
        }
        None
    }
}
