//! Two studies of ALock's paper: which budgets are good, and what threads lose that reach their own node through the
//! NIC.

use std::io::{self, Write};

use anyhow::{Context, Result};
use farfield::LockKind;
use farfield_check::cli::exit::OrUsage;

use super::plan::{Budgets, Plan, Variant};
use super::report::{self, Report};
use super::{LocksArgs, run};
use crate::bench::journal::Journal;
use crate::bench::memory;
use crate::bench::options::once_each;
use crate::bench::plot::{self, Steps};
use crate::output::grouped;

/// The kind with budgets.
const ALOCK: &str = "alock";
const REMOTE_BUDGETS: [u32; 3] = [5, 10, 20];
const LOCAL_BUDGET: u32 = 5;

/// ALock with several remote budgets (Fig. 4).
pub(super) fn budgets(args: &LocksArgs) -> Result<()> {
    ALOCK.parse::<LockKind>().context("--budgets: no other kind has budgets").or_usage()?;
    let variant = |remote| Variant { kind: ALOCK.into(), budgets: Some(Budgets { remote, local: LOCAL_BUDGET }) };
    let mut journal = Journal::new(&args.common);
    for plan in args.plans(REMOTE_BUDGETS.into_iter().map(variant), &[85, 90, 95])? {
        let reports = run(&plan, &args.common, &mut journal)?;
        journal.text(|out| {
            report::write_tables(&plan, &reports, out)?;
            write_budgets(&reports, out)
        })?;
    }
    journal.text(|out| journal.write_machine(out))
}

/// How much faster each remote budget is than the first, for each number of locks.
fn write_budgets(reports: &[Report], out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\nthroughput relative to a remote budget of {} (local budget {LOCAL_BUDGET})", REMOTE_BUDGETS[0])?;
    let mut localities: Vec<u8> = reports.iter().map(|report| report.locality_percent).collect();
    localities.sort_unstable();
    localities.dedup();
    write!(out, "  {:>9} {:>13}", "locks", "remote budget")?;
    for locality in &localities {
        write!(out, " {:>8}", format!("{locality} %"))?;
    }
    writeln!(out, " {:>8}", "mean")?;
    let counts = once_each(reports.iter().map(|report| report.locks));
    for (locks, at) in counts.iter().flat_map(|locks| (0..REMOTE_BUDGETS.len()).map(move |at| (*locks, at))) {
        let compared = reports.chunks(REMOTE_BUDGETS.len()).filter(|compared| compared[0].locks == locks);
        let speed_ups: Vec<f64> =
            compared.map(|compared| compared[at].speed_up(&compared[0].throughput_of_rounds)).collect();
        write!(out, "  {:>9} {:>13}", grouped(u64::from(locks)), REMOTE_BUDGETS[at])?;
        speed_ups.iter().try_for_each(|speed_up| write!(out, " {speed_up:>8.2}"))?;
        writeln!(out, " {:>8.2}", speed_ups.iter().sum::<f64>() / speed_ups.len() as f64)?;
    }
    Ok(())
}

/// The spinlock through loopback, and ALock beside it, by more and more threads (Fig. 1).
pub(super) fn loopback(args: &LocksArgs) -> Result<()> {
    let kinds = match &args.kind[..] {
        [] => LockKind::ALL.iter().copied().filter(|kind| ["spin", ALOCK].contains(&kind.name())).collect(),
        given => given.to_vec(),
    };
    let mut journal = Journal::new(&args.common);
    let (mut points, mut plans) = (Vec::new(), Vec::new());
    let steps = match &args.sizes.threads[..] {
        [last] => doubling(*last),
        given => once_each(given.iter().copied()),
    };
    for threads in steps {
        let locks = if args.locks.is_empty() { vec![1000] } else { args.locks.clone() };
        let point = LocksArgs { locks, locality: vec![100], ..args.clone() };
        let plan = point.plan(1, threads, kinds.iter().copied().map(Variant::of), &[100])?;
        plans.push(plan);
    }
    memory::ensure_fit(plans.iter().map(Plan::need), "--locks or --kind")?;
    for plan in plans {
        points.push((plan.threads, run(&plan, &args.common, &mut journal)?));
    }
    journal.text(|out| {
        write_loopback(args, &points, out)?;
        journal.write_machine(out)
    })?;
    let Some(file) = &args.svg else { return Ok(()) };
    let lines = points[0].1.iter().enumerate().map(|(at, first)| plot::Line {
        name: label(first, &points[0].1),
        points: points.iter().map(|(threads, of)| (f64::from(*threads), of[at].throughput_per_s)).collect(),
    });
    let title = format!("locks of the own node on {}: acquisitions in a second", args.common.fabric.name());
    let picture = plot::svg(&title, "threads", Steps::Doubling, &lines.collect::<Vec<_>>());
    std::fs::write(file, picture).with_context(|| format!("--svg {}", file.display()))
}

/// 1, 2, 4, … and the last.
fn doubling(last: u16) -> Vec<u16> {
    let mut all: Vec<u16> =
        std::iter::successors(Some(1u16), |count| count.checked_mul(2)).take_while(|count| *count < last).collect();
    all.push(last);
    all
}

/// The kind, and how many locks there are if that differs.
fn label(report: &Report, among: &[Report]) -> String {
    if among.iter().all(|other| other.locks == report.locks) {
        report.name()
    } else {
        format!("{}, {} locks", report.name(), report.locks)
    }
}

fn write_loopback(args: &LocksArgs, points: &[(u16, Vec<Report>)], out: &mut dyn Write) -> io::Result<()> {
    let first = &points[0].1;
    let names: Vec<String> = first.iter().map(|report| label(report, first)).collect();
    let width = names.iter().map(String::len).max().unwrap_or(0).max(14);
    writeln!(
        out,
        "one node on {}, all locks its own: taken/s, and by how much more than by one thread",
        args.common.fabric.name()
    )?;
    write!(out, "  threads")?;
    names.iter().try_for_each(|name| write!(out, "  {name:>width$}       "))?;
    writeln!(out)?;
    for (threads, reports) in points {
        write!(out, "  {threads:>7}")?;
        for (report, one) in reports.iter().zip(first) {
            let rate = grouped(report.throughput_per_s as u64);
            let more = report.throughput_per_s / one.throughput_per_s.max(1.0);
            write!(out, "  {rate:>width$} {:>6}", format!("{more:.2}x"))?;
        }
        writeln!(out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_double_up_to_the_last() {
        assert_eq!(doubling(1), [1]);
        assert_eq!(doubling(8), [1, 2, 4, 8]);
        assert_eq!(doubling(6), [1, 2, 4, 6]);
    }
}
