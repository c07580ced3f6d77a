//! What the others see of a node's death, over time.

use std::io::{self, Write};

use super::measure::{Done, SLICE, Slices};
use super::{Plan, Ran, Victim};
use crate::bench::measurement::time;
use crate::bench::plot::Line;
use crate::output::grouped;

/// A run in which a node was killed.
pub(super) struct Death {
    name: String,
    victim: Victim,
    done: Vec<Done>,
    killed_ns: Option<u64>,
}

/// The counts of a node by slices.
type Field = fn(&Slices) -> &Vec<u64>;

impl Death {
    pub(super) fn of(plan: &Plan, victim: Victim, ran: Ran) -> Death {
        let name = format!("{} {}", plan.kind, plan.system);
        Death { name, victim, done: ran.done, killed_ns: ran.killed_ns }
    }

    fn slices(&self) -> usize {
        self.done.iter().map(|done| done.slices.count()).min().unwrap_or(0)
    }

    /// The slice of the runs in which it happened. They have begun at about the same time.
    fn slice(&self) -> Option<usize> {
        let start_ns = self.done.first()?.slices.start_ns;
        Some((self.killed_ns?.saturating_sub(start_ns) / SLICE.as_nanos() as u64) as usize)
    }

    fn sum(&self, field: Field, slice: usize) -> u64 {
        self.done.iter().filter_map(|done| field(&done.slices).get(slice)).sum()
    }

    /// Per second, of the nodes that live on.
    fn rate(&self, field: Field, from: usize, to: usize) -> f64 {
        let calls: u64 = (from..to).map(|slice| self.sum(field, slice)).sum();
        calls as f64 / ((to - from) as f64 * SLICE.as_secs_f64())
    }

    /// Updates and queries over time.
    pub(super) fn lines(&self) -> [Line; 2] {
        let line = |what: &str, field: Field| Line {
            name: format!("{} {what}", self.name),
            points: (0..self.slices())
                .map(|slice| (slice as f64 * SLICE.as_secs_f64(), self.rate(field, slice, slice + 1)))
                .collect(),
        };
        [line("queries", |slices| &slices.queries), line("updates", |slices| &slices.updates)]
    }

    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let (name, victim) = (&self.name, self.victim.name());
        let Some(at) = self.slice() else { return writeln!(out, "{name}: no node was killed") };
        let (slices, second) = (self.slices(), (1.0 / SLICE.as_secs_f64()) as usize);
        let (from, to) = (at.saturating_sub(second), slices.min(at + second));
        if from >= at || at >= to {
            return writeln!(out, "{name}: the run was too short to see the death");
        }
        let after = at as f64 * SLICE.as_secs_f64();
        writeln!(out, "{name}: a {victim} was killed after {after:.2} s. Calls per second of the other nodes:")?;
        let fields: [(&str, Field); 3] = [
            ("queries", |slices| &slices.queries),
            ("updates", |slices| &slices.updates),
            ("conflicting ones", |slices| &slices.ordered),
        ];
        for (what, field) in fields {
            let (before, after) = (self.rate(field, from, at), self.rate(field, at, to));
            if before == 0.0 && after == 0.0 {
                continue;
            }
            let stall = (at..slices).scan(0usize, |run, slice| {
                *run = if self.sum(field, slice) == 0 { *run + 1 } else { 0 };
                Some(*run)
            });
            let stall = stall.max().unwrap_or(0) as f64 * SLICE.as_secs_f64() * 1e3;
            writeln!(
                out,
                "  {what}: {} before, {} in the {:.2} s after ({:.0} %); none ended for {stall:.0} ms at most",
                grouped(before as u64),
                grouped(after as u64),
                (to - at) as f64 * SLICE.as_secs_f64(),
                100.0 * after / before.max(1.0),
            )?;
        }
        let slowest = |from: usize, to: usize| {
            let all = self.done.iter().flat_map(|done| done.slices.slowest_ns.get(from..to).unwrap_or_default());
            time(all.copied().max().unwrap_or(0))
        };
        writeln!(
            out,
            "  the slowest update took {} before, {} after; no call failed, the replicas are equal and keep the invariant",
            slowest(0, at),
            slowest(at, slices)
        )
    }
}
