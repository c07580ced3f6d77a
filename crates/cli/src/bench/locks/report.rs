//! The results of a benchmark of locks: results of threads, merged into one [`Report`] for each measurement.

use std::collections::BTreeMap;
use std::io::{self, Write};

use anyhow::{Result, ensure};
use farfield::fabric::Counts;
use serde::{Deserialize, Serialize};

use super::plan::{Budgets, Case, Plan};
use crate::bench::measurement::{Latencies, Measurement, Percentiles, Setup};
use crate::bench::options::Common;
use crate::bench::threads::{fairness, ratio};
use crate::launch::FabricChoice;
use crate::output::grouped;
use crate::spread::median;

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
    pub(super) bytes: u64,
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

/// One case, all rounds together: rows of the tables.
#[derive(Clone, Debug)]
pub(super) struct Report {
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
    /// The median over the rounds, and all of them.
    pub(super) throughput_per_s: f64,
    pub(super) throughput_of_rounds: Vec<f64>,
    own_locks: Option<Side>,
    other_locks: Option<Side>,
    fairness: f64,
    /// Queue pairs of all nodes together, those of all kinds in this run.
    queue_pairs: Pairs,
    /// This throughput by that of each other kind of the run: the median over the rounds.
    against: BTreeMap<String, f64>,
    /// The cost of measuring: the median time of an iteration without a lock.
    empty_turn_ns: Option<u64>,
}

/// Acquisitions of one sort, on average.
#[derive(Clone, Copy, Debug)]
struct Side {
    latency_ns: Percentiles,
    remote_ops: f64,
    loopback_ops: f64,
    round_trips: f64,
}

impl Tally {
    /// None yet.
    pub(super) fn new() -> Tally {
        Tally { acquisitions: 0, remote_ops: 0, loopback_ops: 0, round_trips: 0, bytes: 0, latencies: Latencies::new() }
    }

    /// Adds an acquisition with its latency and cost.
    #[inline]
    pub(super) fn add(&mut self, latency_ns: u64, cost: Counts) {
        self.acquisitions += 1;
        self.remote_ops += cost.posted() - cost.loopback;
        self.loopback_ops += cost.loopback;
        self.round_trips += cost.round_trips;
        self.bytes += cost.bytes;
        self.latencies.record(latency_ns, 1);
    }

    /// Those of several threads and rounds together.
    fn sum<'a>(all: impl Iterator<Item = &'a Tally>) -> Result<Tally> {
        let mut sum = Tally::new();
        for tally in all {
            sum.acquisitions += tally.acquisitions;
            sum.remote_ops += tally.remote_ops;
            sum.loopback_ops += tally.loopback_ops;
            sum.round_trips += tally.round_trips;
            sum.bytes += tally.bytes;
            sum.latencies.merge(&tally.latencies)?;
        }
        Ok(sum)
    }

    /// Averages of several threads and rounds together; none, if there are none.
    fn merge<'a>(all: impl Iterator<Item = &'a Tally>) -> Result<Option<Side>> {
        let sum = Tally::sum(all)?;
        let each = |count: u64| ratio(count as f64, sum.acquisitions as f64);
        Ok((sum.acquisitions > 0).then(|| Side {
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

    /// A report of each case, if the run is whole and exclusion has held in all of it.
    pub(super) fn reports(&self, plan: &Plan, fabric: FabricChoice) -> Result<Vec<Report>> {
        let mut reports =
            plan.cases().iter().map(|case| self.report(plan, *case, fabric)).collect::<Result<Vec<_>>>()?;
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

    /// One round of a case. [`Results::reports`] has checked that it is there.
    pub(super) fn measurement(&self, plan: &Plan, case: Case, round: u16, common: &Common) -> Result<Measurement> {
        let variant = &plan.variants[case.variant];
        let is_apart = case.locks < u32::from(plan.nodes);
        let setup = Setup {
            locks: Some(case.locks.into()),
            local_percent: (!is_apart).then(|| locality(plan, case).into()),
            remote_budget: variant.budgets.map(|budgets| budgets.remote),
            local_budget: variant.budgets.map(|budgets| budgets.local),
            ..common.setup(plan.nodes, plan.threads)
        };
        let mut one = Measurement::new("locks", &variant.kind, setup);
        let results = || self.of(case).map(|(_, result)| result).filter(|result| result.round == round);
        let own = Tally::sum(results().map(|result| &result.own))?;
        let others = Tally::sum(results().map(|result| &result.others))?;
        let all = Tally::sum([&own, &others].into_iter())?;
        let each = |count: u64| ratio(count as f64, all.acquisitions as f64);
        one.operations = all.acquisitions;
        one.seconds = results().map(|result| result.seconds).fold(0.0, f64::max);
        one.throughput_ops_per_s = ratio(all.acquisitions as f64, one.seconds);
        one.round_trips_per_op = Some(each(all.round_trips));
        one.fabric_ops_per_op = Some(each(all.remote_ops + all.loopback_ops));
        one.bytes_per_op = Some(each(all.bytes));
        one.fairness = Some(fairness(results().map(ThreadResult::acquisitions)));
        one.pinned = Some(plan.cores.is_pinned());
        one.set_latencies(all.latencies);
        for (side, tally) in [("own", &own), ("others", &others)] {
            if tally.acquisitions > 0 {
                let each = |count: u64| ratio(count as f64, tally.acquisitions as f64);
                let mut figure = |name: &str, value| one.figures.insert(format!("{side}_{name}"), value);
                figure("acquisitions", tally.acquisitions as f64);
                figure("remote_ops", each(tally.remote_ops));
                figure("loopback_ops", each(tally.loopback_ops));
                figure("round_trips", each(tally.round_trips));
                figure("p50_ns", tally.latencies.percentiles().p50 as f64);
            }
        }
        if let Some(empty_ns) = self.empty_turn_ns {
            one.figures.insert("empty_turn_ns".into(), empty_ns as f64);
        }
        Ok(one)
    }

    /// The results of a case, with their nodes.
    fn of(&self, case: Case) -> impl Iterator<Item = &(usize, ThreadResult)> {
        self.threads.iter().filter(move |(_, result)| result.case == case.number)
    }

    fn report(&self, plan: &Plan, case: Case, fabric: FabricChoice) -> Result<Report> {
        let variant = &plan.variants[case.variant];
        let threads: Vec<_> = self.of(case).collect();
        let per_round = usize::from(plan.nodes) * usize::from(plan.threads);
        let (mut seconds, mut throughputs) = (0.0, Vec::new());
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
        }
        let mut of_threads = BTreeMap::new();
        for (node, result) in &threads {
            *of_threads.entry((node, result.thread)).or_insert(0) += result.acquisitions();
        }
        Ok(Report {
            fabric: fabric.name(),
            nodes: plan.nodes,
            threads: plan.threads,
            kind: variant.kind.clone(),
            budgets: variant.budgets,
            locks: case.locks,
            locality_percent: locality(plan, case),
            rounds: plan.rounds,
            seconds,
            throughput_per_s: median(throughputs.iter().copied()),
            throughput_of_rounds: throughputs,
            own_locks: Tally::merge(threads.iter().map(|(_, result)| &result.own))?,
            other_locks: Tally::merge(threads.iter().map(|(_, result)| &result.others))?,
            fairness: fairness(of_threads.values().copied()),
            queue_pairs: self.pairs,
            against: BTreeMap::new(),
            empty_turn_ns: self.empty_turn_ns,
        })
    }
}

/// The share of acquisitions of the own node's locks, in percent. A single node has all of them.
fn locality(plan: &Plan, case: Case) -> u8 {
    if plan.nodes == 1 { 100 } else { case.locality }
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
    let Pairs { own, reached } = first.queue_pairs;
    if own + reached > 0 {
        writeln!(out, "queue pairs of all nodes: {own} of their own threads, {reached} by which they are reached")?;
    }
    Ok(())
}

fn write_table(compared: &[Report], out: &mut dyn Write) -> io::Result<()> {
    let Report { fabric, nodes, threads, locks, locality_percent, rounds, .. } = &compared[0];
    match locks {
        1 => write!(out, "a single lock, on node 0")?,
        locks if *locks < u32::from(*nodes) => write!(out, "{locks} locks, which are not on all nodes")?,
        locks => {
            let locks = grouped(u64::from(*locks));
            write!(out, "{locks} locks, {locality_percent} % of the acquisitions on the own node")?;
        }
    }
    let seconds = compared[0].seconds / f64::from(*rounds);
    writeln!(out, "; {fabric}, {nodes} nodes x {threads} threads, {rounds} rounds of {seconds:.2} s")?;
    let width = compared.iter().map(|report| report.name().len()).max().unwrap_or(0).max(8);
    writeln!(out, "  {:width$}  {:>12}  {:>24}  {:>21}", "", "taken/s", "between rounds", "threads: fewest/most")?;
    for report in compared {
        let rates = || report.throughput_of_rounds.iter().copied();
        let (least, most) = (rates().fold(f64::INFINITY, f64::min), rates().fold(0.0, f64::max));
        let range = format!("{} - {}", grouped(least as u64), grouped(most as u64));
        let rate = grouped(report.throughput_per_s as u64);
        writeln!(out, "  {:width$}  {rate:>12}  {range:>24}  {:>21.2}", report.name(), report.fairness)?;
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
            Percentiles::TITLES.map(|title| format!("{title:>9}")).join(" "),
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
                side.latency_ns.columns().map(|time| format!("{time:>9}")).join(" "),
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
    use crate::bench::options::Cores;

    fn plan() -> Plan {
        Plan {
            nodes: 2,
            threads: 1,
            rounds: 2,
            slice_seconds: 1.0,
            variants: [LockKind::Spin, LockKind::Mutex].map(Variant::of).into(),
            locks: vec![20],
            localities: vec![90],
            cores: Cores::default(),
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
        let reports = results().reports(&plan(), FabricChoice::Shm).unwrap();
        let [spin, mutex] = &reports[..] else { panic!("a report for each kind") };
        assert_eq!((spin.throughput_per_s, mutex.throughput_per_s), (200.0, 75.0));
        let (own, others) = (spin.own_locks.unwrap(), spin.other_locks.unwrap());
        assert_eq!((own.remote_ops, own.loopback_ops, own.round_trips), (0.0, 2.0, 0.0));
        assert_eq!((others.remote_ops, others.loopback_ops, others.round_trips), (3.0, 0.0, 2.0));
        assert_eq!((own.latency_ns.p50, others.latency_ns.p50), (100, 1000));
        assert!(mutex.other_locks.is_none());
        assert_eq!((spin.against["mutex"], mutex.against["spin"]), (3.0, 0.375));
        assert_eq!(spin.fairness, 1.0);
        let common = crate::bench::options::tests::common();
        let cases = plan().cases();
        let one = results().measurement(&plan(), cases[0], 1, &common).unwrap();
        assert_eq!((one.case.as_str(), one.operations, one.throughput_ops_per_s), ("spin", 200, 200.0));
        assert_eq!((one.fabric_ops_per_op, one.fairness), (Some(2.2), Some(1.0)));
        assert_eq!((one.figures["own_loopback_ops"], one.figures["others_remote_ops"]), (2.0, 3.0));
        assert_eq!((one.setup.locks, one.setup.local_percent), (Some(20), Some(90)));
        let mut table = Vec::new();
        write_tables(&plan(), &reports, &mut table).unwrap();
        assert!(String::from_utf8(table).unwrap().contains("3.00 x mutex"));
    }

    #[test]
    fn a_lost_addition_fails_the_run() {
        let mut results = results();
        results.sums[4].added -= 1;
        let error = results.reports(&plan(), FabricChoice::Shm).unwrap_err().to_string();
        assert!(error.starts_with("exclusion is broken: the 20 locks of kind mutex were taken 100 times"), "{error}");
    }

    #[test]
    fn a_run_that_is_not_whole_is_none() {
        let mut results = results();
        results.threads.pop();
        let error = results.reports(&plan(), FabricChoice::Shm).unwrap_err().to_string();
        assert!(error.contains("incomplete"), "{error}");
    }
}
