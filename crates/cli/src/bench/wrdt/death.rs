//! What the others see of a node's death, over time.

use std::io::{self, Write};
use std::ops::Range;

use super::measure::{Done, Slices, Times};
use super::{Names, Plan, Ran, Victim};
use crate::bench::measurement::{Measurement, time};
use crate::bench::plot::Line;
use crate::bench::slices::{self, seconds};
use crate::output::grouped;

/// A run in which a node was killed, or a run like it without a death.
pub(super) struct Death {
    name: String,
    /// The methods, with their categories.
    methods: Vec<(&'static str, &'static str)>,
    victim: Victim,
    done: Vec<Done>,
    killed_ns: Option<u64>,
}

/// The counts of a node by slices.
type Field = fn(&Slices) -> &Vec<u64>;

impl Death {
    pub(super) fn of(plan: &Plan, victim: Victim, ran: Ran) -> Death {
        let (name, methods) = (format!("{} {}", plan.kind, plan.system), plan.kind.with(Names(plan.system)));
        Death { name, methods, victim, done: ran.done, killed_ns: ran.killed_ns }
    }

    fn slices(&self) -> usize {
        self.done.iter().map(|done| done.slices.count()).min().unwrap_or(0)
    }

    /// The slice of the runs in which it happened, or the one in the middle without a death. They have begun at about
    /// the same time.
    fn slice(&self) -> Option<usize> {
        let start_ns = self.done.first()?.slices.start_ns;
        if self.victim == Victim::None {
            return Some(self.slices() / 2);
        }
        Some(slices::at(start_ns, self.killed_ns?))
    }

    fn sum(&self, field: Field, slice: usize) -> u64 {
        self.done.iter().filter_map(|done| field(&done.slices).get(slice)).sum()
    }

    /// Per second, of the nodes that live on.
    fn rate(&self, field: Field, part: &Range<usize>) -> f64 {
        let calls: u64 = part.clone().map(|slice| self.sum(field, slice)).sum();
        calls as f64 / seconds(part.len())
    }

    /// The times of a method's calls on the nodes that live on.
    fn times(&self, method: usize, slices: Range<usize>) -> Times {
        let mut all = Times::default();
        for done in &self.done {
            let of_node = done.slices.methods.get(method).and_then(|times| times.get(slices.clone()));
            of_node.unwrap_or_default().iter().for_each(|times| all.add(*times));
        }
        all
    }

    /// The times of a method's calls before this slice, and from it on.
    fn parts(&self, method: usize, at: usize) -> [Times; 2] {
        [0..at, at..self.slices()].map(|part| self.times(method, part))
    }

    /// Adds the mean times before and after to the measurements of the methods, which are the last ones of the run.
    pub(super) fn add_means(&self, all: &mut [Measurement]) {
        let Some(at) = self.slice() else { return };
        let first = all.len().saturating_sub(self.methods.len());
        for (number, one) in all[first..].iter_mut().enumerate() {
            for (name, part) in ["mean_before_ns", "mean_after_ns"].into_iter().zip(self.parts(number, at)) {
                one.figures.extend(part.mean_ns().map(|mean_ns| (name.to_owned(), mean_ns)));
            }
        }
    }

    /// Updates and queries over time.
    pub(super) fn lines(&self) -> [Line; 2] {
        let line = |what: &str, field: Field| Line {
            name: format!("{} {what}, {} killed", self.name, self.victim.name()),
            points: (0..self.slices()).map(|slice| (seconds(slice), self.rate(field, &(slice..slice + 1)))).collect(),
        };
        [line("queries", |slices| &slices.queries), line("updates", |slices| &slices.updates)]
    }

    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let name = &self.name;
        let Some(at) = self.slice() else { return writeln!(out, "{name}: no node was killed") };
        let slices = self.slices();
        let Some([before, after]) = slices::around(at, slices) else {
            return writeln!(out, "{name}: the run was too short to see the death");
        };
        let (what, of) = match self.victim {
            Victim::None => ("no node was killed; the middle is".to_owned(), "all nodes"),
            victim => (format!("a {} was killed", victim.name()), "the other nodes"),
        };
        writeln!(out, "{name}: {what} after {:.2} s. Calls per second of {of}:", seconds(at))?;
        let fields: [(&str, Field); 3] = [
            ("queries", |slices| &slices.queries),
            ("updates", |slices| &slices.updates),
            ("conflicting ones", |slices| &slices.ordered),
        ];
        for (what, field) in fields {
            let rates = [&before, &after].map(|part| self.rate(field, part));
            if rates == [0.0; 2] {
                continue;
            }
            let stall = (at..slices).scan(0usize, |run, slice| {
                *run = if self.sum(field, slice) == 0 { *run + 1 } else { 0 };
                Some(*run)
            });
            let stall = seconds(stall.max().unwrap_or(0)) * 1e3;
            writeln!(
                out,
                "  {what}: {} before, {} in the {:.2} s after ({:.0} %); none ended for {stall:.0} ms at most",
                grouped(rates[0] as u64),
                grouped(rates[1] as u64),
                seconds(after.len()),
                100.0 * rates[1] / rates[0].max(1.0),
            )?;
        }
        let mut slowest = [0; 2];
        for (number, (method, category)) in self.methods.iter().enumerate() {
            let parts = self.parts(number, at);
            slowest = [0, 1].map(|part| parts[part].slowest_ns.max(slowest[part]));
            let [before, after] = parts.map(|of| time(of.mean_ns().unwrap_or(0.0) as u64));
            writeln!(out, "  {method}, {category}: {before} before, {after} after, on the average")?;
        }
        let [before, after] = slowest.map(time);
        writeln!(
            out,
            "  the slowest update took {before} before, {after} after; no call failed, the replicas are equal and keep \
             the invariant"
        )
    }
}
