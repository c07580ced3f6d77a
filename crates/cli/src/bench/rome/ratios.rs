//! The maps beside each other, and what scanners cost the workers: medians of all repetitions.

use std::io::{self, Write};

use super::load::Mix;
use super::maps::Kind;
use super::{Measurement, Plan, What, once_each};
use crate::bench::kv::name;
use crate::bench::plot::Line;
use crate::output::grouped;
use crate::spread::median;

/// How many times the throughput of redb the tree is to have with workload B. It is to be ahead of the `BTreeMap` with
/// several workers.
const TIMES_REDB: f64 = 3.0;
/// What scanners may leave of the calls for each second of a core.
const WITH_SCANNERS: f64 = 0.9;

/// One repetition of a plan.
#[derive(Clone, Copy)]
pub(super) struct Sample {
    system: Kind,
    mix: Mix,
    workers: u16,
    scanners: u16,
    /// The scanners read another map.
    control: bool,
    /// Changes of the workers that waited, and scans that began again.
    held_up: [f64; 2],
    calls_per_s: f64,
    per_core_second: f64,
    pairs_per_s: f64,
}

impl Sample {
    /// None of objects.
    pub(super) fn of(plan: &Plan, all: &[Measurement]) -> Option<Sample> {
        let What::Map { system, mix, workers, control, .. } = plan.what else { return None };
        let figure = |of: &Measurement, name: &str| of.figures.get(name).copied().unwrap_or(0.0);
        let first = all.first()?;
        Some(Sample {
            system,
            mix,
            workers,
            scanners: plan.others,
            control,
            held_up: [figure(first, "waits"), all.get(1).map_or(0.0, |scans| figure(scans, "again"))],
            calls_per_s: first.throughput_ops_per_s,
            per_core_second: figure(first, "per_core_second"),
            pairs_per_s: all.get(1).map_or(0.0, |scans| figure(scans, "pairs_per_s")),
        })
    }

    /// Those of the workers, per second.
    pub(super) fn calls(&self) -> f64 {
        self.calls_per_s
    }

    /// Those that scanners have read, per second.
    pub(super) fn pairs(&self) -> f64 {
        self.pairs_per_s
    }
}

/// The median of those of a system with so many scanners, if there are any.
fn median_of(all: &[Sample], system: Kind, scanners: u16, of: fn(&Sample) -> f64) -> Option<f64> {
    median_beside(all, system, (scanners, false), of)
}

/// The same; or of those with scanners of another map.
fn median_beside(
    all: &[Sample],
    system: Kind,
    (scanners, control): (u16, bool),
    of: fn(&Sample) -> f64,
) -> Option<f64> {
    let is_it = move |one: &&Sample| one.system == system && (one.scanners, one.control) == (scanners, control);
    let values = || all.iter().filter(is_it).map(of);
    values().next().is_some().then(|| median(values()))
}

/// Of each workload and number of workers: how many times the tree is ahead of the others, what scanners leave, and
/// what is not reached.
pub(super) fn write(all: &[Sample], out: &mut dyn Write) -> io::Result<()> {
    let mut missed = Vec::new();
    for (mix, workers) in once_each(all.iter().map(|one| (one.mix, one.workers))) {
        let here: Vec<Sample> = all.iter().filter(|one| (one.mix, one.workers) == (mix, workers)).copied().collect();
        let title = format!("{}, {workers} workers", name(mix));
        if let Some(ours) = median_of(&here, Kind::Rome, 0, Sample::calls) {
            let mut line = format!("{title}: rome {} calls/s", grouped(ours as u64));
            let of_several = if workers > 1 { 1.0 } else { 0.0 };
            let of_redb = if mix == Mix::B { TIMES_REDB } else { 0.0 };
            for (other, wanted) in [(Kind::BTreeMap, of_several), (Kind::Redb, of_redb)] {
                let Some(theirs) = median_of(&here, other, 0, Sample::calls) else { continue };
                let times = ours / theirs;
                line += &format!("; {times:.1} x {other}");
                if times < wanted {
                    missed.push(format!("{title}: {times:.2} times {other}"));
                }
            }
            if line.contains(';') {
                writeln!(out, "{line}")?;
            }
        }
        let Some(alone) = median_of(&here, Kind::Rome, 0, |one| one.per_core_second) else { continue };
        for scanners in once_each(here.iter().map(|one| one.scanners).filter(|scanners| *scanners > 0)) {
            let Some(with) = median_of(&here, Kind::Rome, scanners, |one| one.per_core_second) else { continue };
            let sum = |of: fn(&Sample) -> f64| {
                here.iter().filter(|one| one.scanners == scanners && !one.control).map(of).sum::<f64>()
            };
            let [waits, again] = [sum(|one| one.held_up[0]), sum(|one| one.held_up[1])];
            let left = with / alone;
            let mut line = format!("{title}, {scanners} scanners: {left:.2} of the calls for each second of a core");
            let beside = median_beside(&here, Kind::Rome, (scanners, true), |one| one.per_core_second);
            // The machine's share is the same for any map that the scanners read.
            let mut wanted = WITH_SCANNERS;
            if let Some(beside) = beside {
                line += &format!(", {:.2} beside scanners of another map", beside / alone);
                wanted *= (beside / alone).min(1.0);
            }
            writeln!(out, "{line}; {waits} changes waited for a scan, {again} scans began again")?;
            if left < wanted {
                missed.push(line);
            }
            if waits + again > 0.0 {
                missed.push(format!("{title}, {scanners} scanners: {waits} waits, {again} scans that began again"));
            }
        }
    }
    missed.iter().try_for_each(|line| writeln!(out, "NOT REACHED: {line}"))
}

/// A line for each workload and number of workers, against the number of scanners.
pub(super) fn lines(all: &[Sample], of: fn(&Sample) -> f64) -> Vec<Line> {
    let ours: Vec<Sample> = all.iter().filter(|one| one.system == Kind::Rome && !one.control).copied().collect();
    let points = |(mix, workers): (Mix, u16)| {
        let here: Vec<Sample> = ours.iter().filter(|one| (one.mix, one.workers) == (mix, workers)).copied().collect();
        let scanners = once_each(here.iter().map(|one| one.scanners));
        let median = |scanners: u16| Some((scanners.into(), median_of(&here, Kind::Rome, scanners, of)?));
        Line {
            name: format!("{}, {workers} workers", name(mix)),
            points: scanners.into_iter().filter_map(median).collect(),
        }
    };
    once_each(ours.iter().map(|one| (one.mix, one.workers))).into_iter().map(points).collect()
}
