//! The results of a benchmark of locks: results of threads, merged into one [`Report`] for each measurement.

use std::collections::BTreeMap;
use std::io::{self, Write};

use anyhow::{Result, ensure};
use farfield::fabric::Counts;
use serde::{Deserialize, Serialize};

use super::plan::{Budgets, Case, Plan};
use crate::bench::report::{Fairness, Latencies, Percentiles, ratio};
use crate::launch::FabricChoice;
use crate::output::grouped;

/// The results of one thread in one round of a measurement.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ThreadResult {
    pub(super) case: usize,
    pub(super) round: u16,
    /// Among those of its node.
    pub(super) thread: u16,
    pub(super) seconds: f64,
    /// With locks of the own node.
    pub(super) own: Tally,
    /// With all others.
    pub(super) others: Tally,
}

/// Acquisitions, and their costs.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Tally {
    pub(super) acquisitions: u64,
    /// Operations of lock and unlock towards other nodes, and towards the own.
    pub(super) remote_ops: u64,
    pub(super) loopback_ops: u64,
    pub(super) round_trips: u64,
    pub(super) latencies: Latencies,
}

/// The increase of a node's counters under its locks in one round of a measurement.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Sum {
    pub(super) case: usize,
    pub(super) round: u16,
    pub(super) added: u64,
}

/// Queue pairs of a node: of its own lanes, and those by which other lanes reach it.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Pairs {
    pub(super) own: usize,
    pub(super) reached: usize,
}

/// All that the nodes of a session have measured.
#[derive(Default)]
pub(super) struct Results {
    /// With their nodes.
    threads: Vec<(usize, ThreadResult)>,
    sums: Vec<Sum>,
    pairs: Pairs,
    empty_turn_ns: Option<u64>,
}

/// One measurement: a line of JSON.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    bench: &'static str,
    fabric: &'static str,
    nodes: u16,
    /// Of each node.
    threads: u16,
    pub(super) kind: String,
    /// Of ALock, if they differ from the defaults.
    pub(super) budgets: Option<Budgets>,
    pub(super) locks: u32,
    pub(super) locality_percent: u8,
    rounds: u16,
    /// Of all rounds together: the longest of a thread in each.
    seconds: f64,
    acquisitions: u64,
    /// The sum of the counters that the locks protect. It must be the same as `acquisitions`, or there is no report.
    counted: u64,
    /// The median over the rounds, and all of them.
    pub(super) throughput_per_s: f64,
    pub(super) throughput_of_rounds: Vec<f64>,
    own_locks: Option<Side>,
    other_locks: Option<Side>,
    fairness: Fairness,
    /// Threads that have posted operations to their own node, each through a queue pair of its own where there are any.
    threads_in_loopback: usize,
    /// Queue pairs of all nodes together, those of all kinds in this run.
    queue_pairs: Pairs,
    /// This throughput by that of each other kind of the run: the median over the rounds.
    against: BTreeMap<String, f64>,
    /// The cost of measuring: the median time of an iteration without a lock.
    empty_turn_ns: Option<u64>,
    /// The time in which this machine passes a cache line from one core to another.
    handoff_ns: Option<f64>,
}

/// Acquisitions of one sort, on average.
#[derive(Clone, Copy, Debug, Serialize)]
struct Side {
    acquisitions: u64,
    latency_ns: Percentiles,
    remote_ops: f64,
    loopback_ops: f64,
    round_trips: f64,
}

impl Tally {
    /// None yet.
    pub(super) fn new() -> Tally {
        Tally { acquisitions: 0, remote_ops: 0, loopback_ops: 0, round_trips: 0, latencies: Latencies::new() }
    }

    /// Adds an acquisition with its latency and cost.
    #[inline]
    pub(super) fn add(&mut self, latency_ns: u64, cost: Counts) {
        self.acquisitions += 1;
        self.remote_ops += cost.posted() - cost.loopback;
        self.loopback_ops += cost.loopback;
        self.round_trips += cost.round_trips;
        self.latencies.record(latency_ns, 1);
    }

    /// Those of several threads and rounds together; none, if there are none.
    fn merge<'a>(all: impl Iterator<Item = &'a Tally>) -> Result<Option<Side>> {
        let mut sum = Tally::new();
        for tally in all {
            sum.acquisitions += tally.acquisitions;
            sum.remote_ops += tally.remote_ops;
            sum.loopback_ops += tally.loopback_ops;
            sum.round_trips += tally.round_trips;
            sum.latencies.merge(&tally.latencies)?;
        }
        let each = |count: u64| ratio(count as f64, sum.acquisitions as f64);
        Ok((sum.acquisitions > 0).then(|| Side {
            acquisitions: sum.acquisitions,
            latency_ns: sum.latencies.percentiles(),
            remote_ops: each(sum.remote_ops),
            loopback_ops: each(sum.loopback_ops),
            round_trips: each(sum.round_trips),
        }))
    }
}

impl ThreadResult {
    /// Nothing yet.
    pub(super) fn new(case: usize, round: u16) -> ThreadResult {
        ThreadResult { case, round, thread: 0, seconds: 0.0, own: Tally::new(), others: Tally::new() }
    }

    fn acquisitions(&self) -> u64 {
        self.own.acquisitions + self.others.acquisitions
    }
}

impl Results {
    /// Adds a line from a node.
    pub(super) fn take(&mut self, node: usize, what: &str, json: &str) -> Result<()> {
        match what {
            "running" => {}
            "thread" => self.threads.push((node, serde_json::from_str(json)?)),
            "sum" => self.sums.push(serde_json::from_str(json)?),
            "empty" => self.empty_turn_ns = Some(serde_json::from_str(json)?),
            "pairs" => {
                let Pairs { own, reached } = serde_json::from_str(json)?;
                self.pairs = Pairs { own: self.pairs.own + own, reached: self.pairs.reached + reached };
            }
            _ => anyhow::bail!("`{what}` is none of the benchmark's words"),
        }
        Ok(())
    }

    /// A report of each measurement, if the run is whole and exclusion has held in all of it.
    pub(super) fn reports(&self, plan: &Plan, fabric: FabricChoice, handoff_ns: Option<f64>) -> Result<Vec<Report>> {
        let cases = plan.cases();
        let mut reports =
            cases.iter().map(|case| self.report(plan, *case, fabric, handoff_ns)).collect::<Result<Vec<_>>>()?;
        for compared in reports.chunks_mut(plan.variants.len()) {
            let rounds: Vec<(String, Vec<f64>)> =
                compared.iter().map(|report| (report.name(), report.throughput_of_rounds.clone())).collect();
            for report in compared {
                let rivals = rounds.iter().filter(|(name, _)| *name != report.name());
                report.against = rivals.map(|(name, of)| (name.clone(), report.speed_up(of))).collect();
            }
        }
        Ok(reports)
    }

    fn report(&self, plan: &Plan, case: Case, fabric: FabricChoice, handoff_ns: Option<f64>) -> Result<Report> {
        let variant = &plan.variants[case.variant];
        let threads: Vec<_> = self.threads.iter().filter(|(_, result)| result.case == case.number).collect();
        let per_round = usize::from(plan.nodes) * usize::from(plan.threads);
        let (mut seconds, mut counted, mut throughputs) = (0.0, 0, Vec::new());
        for round in 0..plan.rounds {
            let results = || threads.iter().map(|(_, result)| result).filter(|result| result.round == round);
            let sums = || self.sums.iter().filter(|sum| (sum.case, sum.round) == (case.number, round));
            ensure!(
                results().count() == per_round && sums().count() == usize::from(plan.nodes),
                "{} of {per_round} threads and {} of {} nodes reported: the run is incomplete",
                results().count(),
                sums().count(),
                plan.nodes
            );
            let acquisitions: u64 = results().map(ThreadResult::acquisitions).sum();
            let sum: u64 = sums().map(|sum| sum.added).sum();
            ensure!(
                acquisitions == sum,
                "exclusion is broken: the {} locks of kind {} were taken {} times in a round at locality {} %, but the \
                 counters that they protect have grown by {}",
                case.locks,
                variant.name(),
                grouped(acquisitions),
                case.locality,
                grouped(sum)
            );
            let longest = results().map(|result| result.seconds).fold(0.0, f64::max);
            throughputs.push(ratio(acquisitions as f64, longest));
            seconds += longest;
            counted += sum;
        }
        let mut of_threads = BTreeMap::new();
        for (node, result) in &threads {
            let (acquisitions, loopback) = of_threads.entry((node, result.thread)).or_insert((0, 0));
            *acquisitions += result.acquisitions();
            *loopback += result.own.loopback_ops + result.others.loopback_ops;
        }
        let acquisitions = || of_threads.values().map(|(acquisitions, _)| *acquisitions);
        Ok(Report {
            bench: "locks",
            fabric: fabric.name(),
            nodes: plan.nodes,
            threads: plan.threads,
            kind: variant.kind.clone(),
            budgets: variant.budgets,
            locks: case.locks,
            locality_percent: if plan.nodes == 1 { 100 } else { case.locality },
            rounds: plan.rounds,
            seconds,
            acquisitions: acquisitions().sum(),
            counted,
            throughput_per_s: median(throughputs.iter().copied()),
            throughput_of_rounds: throughputs,
            own_locks: Tally::merge(threads.iter().map(|(_, result)| &result.own))?,
            other_locks: Tally::merge(threads.iter().map(|(_, result)| &result.others))?,
            fairness: Fairness::of(acquisitions()),
            threads_in_loopback: of_threads.values().filter(|(_, loopback)| *loopback > 0).count(),
            queue_pairs: self.pairs,
            against: BTreeMap::new(),
            empty_turn_ns: self.empty_turn_ns,
            handoff_ns,
        })
    }
}

impl Report {
    /// The kind, with its budgets if they are given.
    pub(super) fn name(&self) -> String {
        super::plan::Variant { kind: self.kind.clone(), budgets: self.budgets }.name()
    }

    /// The speed-up over another lock with these throughputs in the same rounds.
    pub(super) fn speed_up(&self, rounds: &[f64]) -> f64 {
        median(self.throughput_of_rounds.iter().zip(rounds).map(|(own, other)| ratio(*own, *other)))
    }
}

/// The median of some numbers: the middle one, or the mean of the two in the middle.
pub(super) fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    match numbers.len() {
        0 => 0.0,
        count => (numbers[(count - 1) / 2] + numbers[count / 2]) / 2.0,
    }
}

/// The tables for people: one for each number of locks and each locality.
pub(super) fn write_tables(plan: &Plan, reports: &[Report], out: &mut dyn Write) -> io::Result<()> {
    for compared in reports.chunks(plan.variants.len()) {
        write_table(compared, out)?;
    }
    let Some(first) = reports.first() else { return Ok(()) };
    writeln!(out, "exclusion held: the counters that the locks protect say how often they were taken")?;
    if let Some(empty_ns) = first.empty_turn_ns {
        writeln!(
            out,
            "a turn without a lock takes {empty_ns} ns: so much of the times is drawing, counting and the clock"
        )?;
    }
    if let Some(handoff_ns) = first.handoff_ns {
        writeln!(out, "cache line hand-off {handoff_ns:.0} ns")?;
    }
    let Pairs { own, reached } = first.queue_pairs;
    if own + reached > 0 {
        writeln!(out, "queue pairs of all nodes: {own} of their own threads, {reached} by which they are reached")?;
    }
    Ok(())
}

fn write_table(compared: &[Report], out: &mut dyn Write) -> io::Result<()> {
    let Report { fabric, nodes, threads, locks, locality_percent, rounds, .. } = &compared[0];
    writeln!(
        out,
        "{} locks, {locality_percent} % of the acquisitions on the own node; {fabric}, {nodes} nodes x {threads} \
         threads, {rounds} rounds of {:.2} s",
        grouped(u64::from(*locks)),
        compared[0].seconds / f64::from(*rounds)
    )?;
    let width = compared.iter().map(|report| report.name().len()).max().unwrap_or(0).max(8);
    writeln!(out, "  {:width$}  {:>12}  {:>24}  {:>21}", "", "taken/s", "between rounds", "threads: fewest/most")?;
    for report in compared {
        let rates = || report.throughput_of_rounds.iter().copied();
        let (least, most) = (rates().fold(f64::INFINITY, f64::min), rates().fold(0.0, f64::max));
        let range = format!("{} - {}", grouped(least as u64), grouped(most as u64));
        let Fairness { ratio, .. } = report.fairness;
        let rate = grouped(report.throughput_per_s as u64);
        writeln!(out, "  {:width$}  {rate:>12}  {range:>24}  {ratio:>21.2}", report.name())?;
    }
    for (title, side) in
        [("own node's", (|r: &Report| r.own_locks) as fn(&Report) -> Option<Side>), ("others'", |r| r.other_locks)]
    {
        if compared.iter().all(|report| side(report).is_none()) {
            continue;
        }
        writeln!(
            out,
            "  {title:width$} {}   {:>10} {:>8} {:>11}",
            Percentiles::TITLES,
            "remote ops",
            "loopback",
            "round trips"
        )?;
        for report in compared {
            let Some(side) = side(report) else { continue };
            writeln!(
                out,
                "  {:width$} {}   {:>10.2} {:>8.2} {:>11.2}",
                report.name(),
                side.latency_ns.columns(),
                side.remote_ops,
                side.loopback_ops,
                side.round_trips
            )?;
        }
    }
    for report in compared.iter().filter(|report| !report.against.is_empty()) {
        let ratios: Vec<String> = report.against.iter().map(|(rival, ratio)| format!("{ratio:.2} x {rival}")).collect();
        writeln!(out, "  {:width$}  {}", report.name(), ratios.join(", "))?;
    }
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use farfield::LockKind;

    use super::super::plan::Variant;
    use super::*;

    fn plan() -> Plan {
        Plan {
            nodes: 2,
            threads: 1,
            rounds: 2,
            slice_seconds: 1.0,
            variants: [LockKind::Spin, LockKind::Mutex].map(Variant::of).into(),
            locks: vec![20],
            localities: vec![90],
            unlocked: false,
        }
    }

    fn thread(case: usize, round: u16, own: u64, others: u64) -> ThreadResult {
        let mut result = ThreadResult { seconds: 1.0, ..ThreadResult::new(case, round) };
        let loopback = Counts { atomics: 2, loopback: 2, ..Counts::default() };
        let remote = Counts { atomics: 3, round_trips: 2, ..Counts::default() };
        (0..own).for_each(|_| result.own.add(100, loopback));
        (0..others).for_each(|_| result.others.add(1000, remote));
        result
    }

    /// Two kinds, of which the second is half as fast in the first round, and a quarter as fast in the second.
    fn results() -> Results {
        let mut results = Results::default();
        for (case, round, own, others) in [(0, 0, 80, 20), (0, 1, 80, 20), (1, 0, 50, 0), (1, 1, 25, 0)] {
            for node in 0..2 {
                results.threads.push((node, thread(case, round, own, others)));
                results.sums.push(Sum { case, round, added: if node == 0 { own * 2 } else { others * 2 } });
            }
        }
        results
    }

    #[test]
    fn threads_and_rounds_are_put_together() {
        let reports = results().reports(&plan(), FabricChoice::Shm, None).unwrap();
        let [spin, mutex] = &reports[..] else { panic!("a report for each kind") };
        assert_eq!((spin.acquisitions, spin.counted, spin.throughput_per_s), (400, 400, 200.0));
        assert_eq!((mutex.acquisitions, mutex.throughput_per_s), (150, 75.0));
        let (own, others) = (spin.own_locks.unwrap(), spin.other_locks.unwrap());
        assert_eq!((own.remote_ops, own.loopback_ops, own.round_trips), (0.0, 2.0, 0.0));
        assert_eq!((others.remote_ops, others.loopback_ops, others.round_trips), (3.0, 0.0, 2.0));
        assert_eq!((own.latency_ns.p50, others.latency_ns.p50), (100, 1000));
        assert!(mutex.other_locks.is_none());
        assert_eq!((spin.against["mutex"], mutex.against["spin"]), (3.0, 0.375));
        assert_eq!((spin.fairness.fewest, spin.fairness.ratio, spin.threads_in_loopback), (200, 1.0, 2));
        let mut table = Vec::new();
        write_tables(&plan(), &reports, &mut table).unwrap();
        assert!(String::from_utf8(table).unwrap().contains("3.00 x mutex"));
    }

    #[test]
    fn a_lost_addition_fails_the_run() {
        let mut results = results();
        results.sums[4].added -= 1;
        let error = results.reports(&plan(), FabricChoice::Shm, None).unwrap_err().to_string();
        assert!(error.starts_with("exclusion is broken: the 20 locks of kind mutex were taken 100 times"), "{error}");
    }

    #[test]
    fn a_run_that_is_not_whole_is_none() {
        let mut results = results();
        results.threads.pop();
        let error = results.reports(&plan(), FabricChoice::Shm, None).unwrap_err().to_string();
        assert!(error.contains("incomplete"), "{error}");
    }

    #[test]
    fn medians_lie_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0].into_iter()), 2.5);
        assert_eq!(median(std::iter::empty()), 0.0);
    }
}
