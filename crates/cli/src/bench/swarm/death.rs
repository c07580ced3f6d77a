//! What the clients see of the deaths of memory nodes, over time.

use std::io::{self, Write};
use std::ops::Range;

use super::measure::Done;
use crate::bench::measurement::time;
use crate::bench::slices::{self, seconds};
use crate::output;

/// A run in which memory nodes were killed.
pub(super) struct Death {
    pub(super) name: String,
    pub(super) done: Vec<Done>,
    /// One time for each.
    pub(super) killed_ns: Vec<u64>,
}

/// The calls before the deaths and after them.
pub(super) struct Effect {
    /// The slice of the runs in which the first one happened.
    at: usize,
    /// Slices after it in which calls are counted.
    after: usize,
    /// Calls per second in the second before, and in those slices.
    rates: [f64; 2],
    /// The slowest call before and after, in nanoseconds.
    slowest_ns: [u64; 2],
}

/// The slice of the clients' runs in which it happened. They have begun at about the same time.
fn slice(done: &[Done], killed_ns: &[u64]) -> Option<usize> {
    Some(slices::at(done.first()?.start_ns, *killed_ns.first()?))
}

impl Effect {
    /// None if no memory node was killed, or the runs were too short.
    pub(super) fn of(done: &[Done], killed_ns: &[u64]) -> Option<Effect> {
        let at = slice(done, killed_ns)?;
        let slices = done.iter().map(|done| done.slices.len()).min().unwrap_or(0).saturating_sub(1);
        let around = slices::around(at, slices)?;
        let rate = |part: &Range<usize>| {
            let calls = done.iter().flat_map(|done| done.slices.get(part.clone()).unwrap_or_default());
            calls.sum::<u64>() as f64 / seconds(part.len())
        };
        let slowest = |part: Range<usize>| {
            let all = done.iter().flat_map(|done| done.slowest.get(part.clone()).unwrap_or_default());
            all.copied().max().unwrap_or(0)
        };
        let (rates, slowest_ns) = (around.each_ref().map(rate), [0..at, at..slices].map(slowest));
        Some(Effect { at, after: around[1].len(), rates, slowest_ns })
    }

    /// As figures of a measurement.
    pub(super) fn figures(&self) -> [(String, f64); 3] {
        let ([before, after], [_, slowest]) = (self.rates, self.slowest_ns);
        [
            ("calls_per_s_before".into(), before),
            ("calls_per_s_after".into(), after),
            ("slowest_after_ns".into(), slowest as f64),
        ]
    }
}

impl Death {
    /// Writes how the clients have seen the deaths: calls per second before and after them, and the slowest call.
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let name = &self.name;
        if slice(&self.done, &self.killed_ns).is_none() {
            return writeln!(out, "{name}: no memory node was killed");
        }
        let Some(effect) = Effect::of(&self.done, &self.killed_ns) else {
            return writeln!(out, "{name}: the run was too short to see the death");
        };
        let ([before, after], [slowest_before, slowest_after]) = (effect.rates, effect.slowest_ns);
        let killed = match self.killed_ns.len() {
            1 => "a memory node was killed".into(),
            count => format!("{count} memory nodes were killed"),
        };
        writeln!(
            out,
            "{name}: {killed} after {:.2} s; {} calls per second before, {} in the {:.2} s after ({:.0} %); the \
             slowest call took {} before, {} after; none failed",
            seconds(effect.at),
            output::grouped(before as u64),
            output::grouped(after as u64),
            seconds(effect.after),
            100.0 * after / before.max(1.0),
            time(slowest_before),
            time(slowest_after)
        )
    }
}
