//! The systems beside each other: medians of one run.

use std::io::{self, Write};

use super::load::Type;
use super::system::Kind;
use super::{Measurement, Plan};
use crate::bench::plot::Line;
use crate::output::grouped;
use crate::spread::median;

/// How far the paper is ahead of a system, where no method conflicts (§5).
fn papers(system: Kind) -> f64 {
    if system == Kind::Smr { 3.7 } else { 17.7 }
}

/// One repetition of a plan.
pub(super) struct Sample {
    kind: Type,
    nodes: u16,
    updates: u16,
    system: Kind,
    calls_per_s: f64,
    updates_per_s: f64,
    queries_per_s: f64,
    /// An update's mean time.
    update_ns: f64,
}

impl Sample {
    pub(super) fn of(plan: &Plan, calls_per_s: f64, all: &[Measurement]) -> Sample {
        let Plan { kind, nodes, updates, system, .. } = *plan;
        let update_ns = all.get(1).and_then(|updates| updates.figures.get("mean_ns")).copied().unwrap_or(0.0);
        let rate = |at: usize| all.get(at).map_or(0.0, |one| one.throughput_ops_per_s);
        // Where all calls are updates, the third one is of a method.
        let (updates_per_s, queries_per_s) = (rate(1), if updates < 100 { rate(2) } else { 0.0 });
        Sample { kind, nodes, updates, system, calls_per_s, updates_per_s, queries_per_s, update_ns }
    }
}

/// Of each type, number of nodes and share of updates: how many times hamband is ahead of the others, and where it is
/// not.
pub(super) fn write(all: &[Sample], out: &mut dyn Write) -> io::Result<()> {
    let points = super::once_each(all.iter().map(|one| (one.kind, one.nodes, one.updates)));
    let mut behind = Vec::new();
    for point in points {
        let of = |system: Kind| {
            let ours =
                || all.iter().filter(move |one| (one.kind, one.nodes, one.updates) == point && one.system == system);
            let is_there = ours().next().is_some();
            is_there.then(|| (median(ours().map(|one| one.calls_per_s)), median(ours().map(|one| one.update_ns))))
        };
        let others = [Kind::Msg, Kind::MsgBatch, Kind::Smr].map(|system| (system, of(system)));
        let Some((calls, update_ns)) = of(Kind::Hamband).filter(|_| others.iter().any(|(_, of)| of.is_some())) else {
            continue;
        };
        let (kind, nodes, updates) = point;
        let per_s = grouped(calls as u64);
        write!(out, "{kind}, {nodes} nodes, {updates} % updates: hamband {per_s} calls/s")?;
        for (system, of) in others {
            let Some((of_other, other_ns)) = of else { continue };
            let (times, faster) = (calls / of_other, other_ns / update_ns);
            write!(out, "; {times:.1} x {system} (updates {faster:.1} x as fast)")?;
            let name = format!("{kind}, {nodes} nodes, {updates} %");
            let paper = papers(system);
            if times < 1.0 {
                behind.push(format!("{name}: behind {system}, {times:.2} times its throughput"));
            } else if times < paper && kind == Type::Counter {
                behind.push(format!("{name}: {times:.1} times {system}, less than the paper's {paper}"));
            }
        }
        writeln!(out)?;
    }
    behind.iter().try_for_each(|line| writeln!(out, "NOT REACHED: {line}"))
}

/// Updates and queries per second over the number of nodes: two lines for each type, share of updates and system.
pub(super) fn lines(all: &[Sample]) -> Vec<Line> {
    let mut lines = Vec::new();
    for (kind, updates, system) in super::once_each(all.iter().map(|one| (one.kind, one.updates, one.system))) {
        let ours = || all.iter().filter(move |one| (one.kind, one.updates, one.system) == (kind, updates, system));
        let mut counts = super::once_each(ours().map(|one| one.nodes));
        counts.sort_unstable();
        let mut add = |what: &str, of: fn(&Sample) -> f64| {
            let median_of = |nodes: u16| median(ours().filter(|one| one.nodes == nodes).map(of));
            let points = counts.iter().map(|nodes| (f64::from(*nodes), median_of(*nodes))).collect();
            lines.push(Line { name: format!("{kind} {system} {what}, {updates} %"), points });
        };
        if updates < 100 {
            add("queries", |one| one.queries_per_s);
        }
        add("updates", |one| one.updates_per_s);
    }
    lines
}
