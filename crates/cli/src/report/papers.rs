//! The figures of the papers that Farfield implements, made from the measurements.

use std::collections::BTreeSet;

use anyhow::Result;

use super::figures::{self, Figure};
use super::group::{Case, Results};
use super::panel::{self, Line, Measure, Point, Styles};
use super::{picture::Picture, words};

/// A figure of a paper.
pub(super) struct Paper {
    /// Of the anchor and of files.
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    /// The contents of the paper's figure, and where it was measured.
    pub(super) shows: &'static str,
    pub(super) bench: &'static str,
    is_of: fn(&Results, &Case) -> bool,
    kind: Kind,
    /// The arguments of `farfield bench` that measure it.
    options: &'static str,
}

enum Kind {
    /// Lines over each of these fields that varies.
    Lines(&'static [&'static str], Measure),
    Distribution,
    /// Throughput by remote budget, relative to the smallest.
    Budgets,
}

const LOCO: &str = "There: nodes with 16 cores each, Mellanox ConnectX-5, 25 Gbit/s RoCE.";
const ALOCK: &str = "There: up to 20 nodes with 8 cores each, Mellanox ConnectX-3.";

/// All of them.
pub(super) const PAPERS: [Paper; 10] = [
    Paper {
        name: "loco-16-barrier",
        title: "LOCO, Fig. 16: barrier",
        shows: "The paper compares its barrier, with and without a fence, with MPI_Barrier of Open MPI 5.0.5, by nodes and \
                by threads of each node.",
        bench: "barrier",
        is_of: |_, _| true,
        kind: Kind::Lines(&["nodes", "threads"], Measure::Latency),
        options: "barrier --nodes 2,3,4 --threads 1,2 --peer mpi",
    },
    Paper {
        name: "loco-16-broadcast",
        title: "LOCO, Fig. 16: broadcast",
        shows: "The paper compares its ring buffer with MPI_Ibcast of Open MPI 5.0.5: messages of 64 bytes from one node to \
                all others, by nodes and by messages in flight.",
        bench: "broadcast",
        is_of: |_, case| case.key.setup.get("size").is_none_or(|size| size == "64"),
        kind: Kind::Lines(&["window", "nodes"], Measure::Throughput),
        options: "broadcast --size 64 --window 1,16,128 --nodes 2,4,8 --peer mpi",
    },
    Paper {
        name: "loco-17",
        title: "LOCO, Fig. 17: key-value store",
        shows: "The paper compares read-only, mixed and write-only work, over uniform and Zipfian keys, with Sherman, Scythe \
                and Redis Cluster, by nodes and by threads of each node, with windows of 3 and 128. Points are geometric \
                means of 5 runs of 20 seconds.",
        bench: "kv",
        is_of: |_, case| case.key.case != "get_many",
        kind: Kind::Lines(&["nodes", "threads"], Measure::MeanThroughput),
        options: "kv --workload a,c --distribution uniform,zipfian --window 3,128 --nodes 2,3,4 --threads 1,2 \
                  --peer redis",
    },
    Paper {
        name: "loco-18",
        title: "LOCO, Fig. 18: what the barrier's program measures",
        shows: "The figure is the text of a program, which waits at a barrier again and again and measures its latency. This \
                is what such a program finds here.",
        bench: "barrier",
        is_of: |_, _| true,
        kind: Kind::Distribution,
        options: "barrier",
    },
    Paper {
        name: "loco-19-lock",
        title: "LOCO, Fig. 19: one contended lock",
        shows: "The paper measures read-modify-writes under a single lock, beside an RMA lock of Open MPI 5.0.5, by nodes with \
                a thread each. Points are geometric means of 5 runs of 20 seconds. Open MPI is faster there.",
        bench: "locks",
        is_of: |_, case| case.key.setup.get("locks").is_some_and(|locks| locks == "1"),
        kind: Kind::Lines(&["nodes"], Measure::MeanThroughput),
        options: "locks --locks 1 --nodes 2,3,4 --threads 1 --peer mpi",
    },
    Paper {
        name: "loco-19-transfers",
        title: "LOCO, Fig. 19: transfers",
        shows: "The paper moves amounts between two of 100 million accounts under two locks, beside 341 windows of Open MPI \
                5.0.5, by nodes and by threads of each node. Points are geometric means of 5 runs of 20 seconds.",
        bench: "transfers",
        is_of: |_, _| true,
        kind: Kind::Lines(&["nodes", "threads"], Measure::MeanThroughput),
        options: "transfers --nodes 2,3,4 --threads 1,2 --peer mpi",
    },
    Paper {
        name: "alock-1",
        title: "ALock, Fig. 1: 1,000 spinlocks on one node, through loopback",
        shows: "The paper shows how a spinlock that is taken through the NIC of its own node stops to scale after a few threads.",
        bench: "locks",
        is_of: |_, case| states(case, "nodes", "1") && states(case, "locks", "1000"),
        kind: Kind::Lines(&["threads"], Measure::Throughput),
        options: "locks --loopback --threads 8 --fabric verbs",
    },
    Paper {
        name: "alock-4",
        title: "ALock, Fig. 4: remote budgets",
        shows: "The paper shows the speed-up of remote budgets of 10 and 20 over one of 5, with a local budget of 5: means over \
                95, 90 and 85 % of local locks, on 20 nodes with 100 locks.",
        bench: "locks",
        is_of: |results, case| budget(case).is_some() && several_budgets(results),
        kind: Kind::Budgets,
        options: "locks --budgets",
    },
    Paper {
        name: "alock-5",
        title: "ALock, Fig. 5: throughput of locks",
        shows: "The paper compares ALock with a spinlock and an MCS lock, by threads of each node, on 5, 10 and 20 nodes, with \
                20, 100 and 1,000 locks, and with 85, 90, 95 and 100 % of local locks.",
        bench: "locks",
        is_of: |_, case| is_of_alock(case),
        kind: Kind::Lines(&["threads"], Measure::Throughput),
        options: "locks --locks 20,100,1000 --locality 85,90,95,100 --nodes 2 --threads 1,2,4",
    },
    Paper {
        name: "alock-6",
        title: "ALock, Fig. 6: latency of locks",
        shows: "The paper shows distributions of latencies on 10 nodes with 8 threads each (its text says 20 nodes), for 20, \
                100 and 1,000 locks, and for 85, 90, 95 and 100 % of local locks.",
        bench: "locks",
        is_of: |_, case| is_of_alock(case),
        kind: Kind::Distribution,
        options: "locks --locks 20,100,1000 --locality 85,90,95,100 --nodes 2 --threads 2",
    },
];

/// A figure as measured here.
pub(super) struct Made<'a> {
    pub(super) figures: Vec<Figure<'a>>,
    /// Where it was measured, and where the paper did.
    pub(super) here: String,
}

fn states(case: &Case, field: &str, value: &str) -> bool {
    case.key.setup.get(field).is_some_and(|stated| stated == value)
}

/// Several locks on several nodes.
fn is_of_alock(case: &Case) -> bool {
    let setup = &case.key.setup;
    setup.contains_key("local_percent") && !states(case, "locks", "1") && !states(case, "nodes", "1")
}

/// The remote budget of an ALock.
fn budget(case: &Case) -> Option<u64> {
    let is_budget = |name: &&String| name.contains("budget") && name.contains("remote");
    case.key.setup.keys().find(is_budget).and_then(|name| case.key.setup[name].parse().ok())
}

fn several_budgets(results: &Results) -> bool {
    results.of("locks").filter_map(budget).collect::<BTreeSet<_>>().len() > 1
}

impl Paper {
    /// The command that measures it.
    pub(super) fn command(&self) -> String {
        format!("farfield bench {} --repetitions 5 --json results.jsonl", self.options)
    }

    /// From the measurements, if there are any for it.
    pub(super) fn make<'a>(&self, results: &'a Results, styles: &Styles) -> Result<Option<Made<'a>>> {
        let cases: Vec<&Case> =
            results.cases.iter().filter(|c| c.key.bench == self.bench && (self.is_of)(results, c)).collect();
        if cases.is_empty() {
            return Ok(None);
        }
        let mut made = match &self.kind {
            Kind::Lines(fields, measure) => lines(results, &cases, styles, fields, *measure)?,
            Kind::Distribution => figures::distributions(results, &cases, styles)?,
            Kind::Budgets => budgets(results, &cases)?,
        };
        for (at, figure) in made.iter_mut().enumerate() {
            figure.picture.name = format!("{}-{}", self.name, at + 1);
        }
        let there = if self.name.starts_with("loco") { LOCO } else { ALOCK };
        let here = format!("{} {there}", here(results, &cases));
        Ok((!made.is_empty()).then_some(Made { figures: made, here }))
    }
}

/// Where these cases were measured.
fn here(results: &Results, cases: &[&Case]) -> String {
    let fabrics: BTreeSet<_> = cases.iter().filter_map(|case| case.key.setup.get("fabric")).collect();
    let fabrics = fabrics.into_iter().map(|fabric| match fabric.as_str() {
        "shm" => "shared memory of one host, without a NIC",
        "verbs" => "RDMA",
        "sim" => "simulated nodes",
        other => other,
    });
    let fabrics: Vec<_> = fabrics.collect();
    let cores: BTreeSet<_> = cases.iter().map(|case| results.machines[case.key.machine].cores).collect();
    let cores: Vec<_> =
        cores.into_iter().map(|cores| format!("{cores} core{}", if cores == 1 { "" } else { "s" })).collect();
    let fabrics = if fabrics.is_empty() { "no fabric stated".to_owned() } else { fabrics.join(" and ") };
    format!("Here: {fabrics}; {}.", cores.join(" and "))
}

fn lines<'a>(
    results: &'a Results,
    cases: &[&'a Case],
    styles: &Styles,
    fields: &[&'static str],
    measure: Measure,
) -> Result<Vec<Figure<'a>>> {
    let mut made = Vec::new();
    let differing = results.differing(cases.iter().copied());
    for field in fields.iter().filter(|field| differing.contains(**field)) {
        for panel in panel::panels(results, cases, styles, field, measure, 2) {
            made.push(figures::lines(&panel, measure)?);
        }
    }
    // Nothing varies that the paper's lines are drawn over.
    if made.is_empty() {
        let title = words::bench(&cases[0].key.bench);
        let axis_title = format!("{} per second", words::operation(&cases[0].key.bench));
        made = figures::bars(results, &title, &axis_title, cases, |case| Some(case.throughput))?;
    }
    Ok(made)
}

/// Speed-ups over the smallest remote budget: means over the percentages of local locks, a line for each contention.
fn budgets<'a>(results: &Results, cases: &[&'a Case]) -> Result<Vec<Figure<'a>>> {
    let is_other = |name: &str| name != "local_percent" && !name.contains("budget");
    let of = |case: &Case| words::setup(&case.key.setup, is_other);
    let least = cases.iter().filter_map(|case| budget(case)).min().unwrap_or(0);
    let all: BTreeSet<String> = cases.iter().map(|case| of(case)).collect();
    let differing = results.differing(cases.iter().copied());
    let mut lines = Vec::new();
    for (style, setup) in all.iter().enumerate() {
        let group: Vec<&Case> = cases.iter().copied().filter(|case| of(case) == *setup).collect();
        let told = words::setup(&group[0].key.setup, |name| is_other(name) && differing.contains(name));
        let mut points = Vec::new();
        for now in group.iter().filter_map(|case| budget(case)).collect::<BTreeSet<_>>() {
            let speed_ups = group.iter().filter(|case| budget(case) == Some(now)).filter_map(|case| {
                let local = case.key.setup.get("local_percent");
                let is_base =
                    |base: &&&Case| budget(base) == Some(least) && base.key.setup.get("local_percent") == local;
                let base = group.iter().find(is_base)?.throughput.median;
                (base > 0.0).then(|| case.throughput.median / base)
            });
            let speed_ups: Vec<f64> = speed_ups.collect();
            if !speed_ups.is_empty() {
                points.push(Point {
                    x: now as f64,
                    middle: speed_ups.iter().sum::<f64>() / speed_ups.len() as f64,
                    low: speed_ups.iter().copied().fold(f64::INFINITY, f64::min),
                    high: speed_ups.iter().copied().fold(0.0, f64::max),
                });
            }
        }
        lines.push(Line { label: if told.is_empty() { "ALock".into() } else { told }, style, points });
    }
    let y_title = format!("throughput relative to a budget of {least}");
    let picture: Picture = figures::chart(
        "Remote budgets of ALock",
        &lines,
        ("remote budget".into(), words::digits),
        (y_title, words::digits),
    )?;
    Ok(vec![Figure { picture, cases: cases.to_vec() }])
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    fn made(name: &str, results: &Results) -> usize {
        let paper = PAPERS.iter().find(|paper| paper.name == name).expect("a paper");
        let made = paper.make(results, &Styles::of(results.of(paper.bench))).expect("drawn");
        made.map_or(0, |made| made.figures.len())
    }

    #[test]
    fn figures_are_made_from_the_measurements_that_fit() {
        let mut rows = Vec::new();
        for threads in [1, 2] {
            for locks in [1, 100] {
                rows.push(samples::row("locks", "alock", "farfield", 1e6, |of| {
                    of.setup.threads = Some(threads);
                    of.setup.locks = Some(locks);
                    of.setup.local_percent = (locks > 1).then_some(90);
                }));
            }
        }
        let results = Results::new(rows).expect("results");
        assert_eq!(made("alock-5", &results), 1);
        assert_eq!(made("alock-6", &results), 2);
        assert_eq!(made("loco-19-lock", &results), 1, "bars, since the number of nodes is the same");
        assert_eq!(made("alock-1", &results) + made("alock-4", &results) + made("loco-17", &results), 0);
    }

    #[test]
    fn budgets_are_compared_with_the_least() {
        let mut rows = Vec::new();
        for (budget, throughput) in [(5, 1e6), (10, 1.5e6), (20, 2e6)] {
            let mut row = samples::row("locks", "alock", "farfield", throughput, |_| {});
            row.setup.insert("remote_budget".into(), budget.to_string());
            rows.push(row);
        }
        let results = Results::new(rows).expect("results");
        let cases: Vec<&Case> = results.of("locks").collect();
        let figures = budgets(&results, &cases).expect("drawn");
        assert!(figures[0].picture.in_page().contains("relative to a budget of 5"));
        assert_eq!(made("alock-4", &results), 1);
    }
}
