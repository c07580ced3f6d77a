//! Measurements by case: the repetitions of the same work on the same machine, with their median and spread.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

use super::read::{Row, Setup};
use crate::bench::measurement::{Machine, Percentiles};
use crate::spread::Spread;

/// The common facts of repetitions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) bench: String,
    pub(super) setup: Setup,
    pub(super) case: String,
    pub(super) system: String,
    pub(super) version: String,
    /// Its place among [`Results::machines`].
    pub(super) machine: usize,
}

/// All repetitions of a case.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) key: Key,
    /// Throughput of each repetition, with its number.
    pub(super) repetitions: Vec<(u32, f64)>,
    /// Operations in a second.
    pub(super) throughput: Spread,
    /// Median latency in nanoseconds.
    pub(super) latency: Option<Spread>,
    /// Percentiles of all samples; where a repetition has no samples, medians of the percentiles.
    pub(super) percentiles: Option<Percentiles>,
    pub(super) samples: Option<Histogram<u64>>,
    pub(super) fairness: Option<Spread>,
    pub(super) round_trips: Option<f64>,
    pub(super) fabric_ops: Option<f64>,
    pub(super) bytes: Option<f64>,
    pub(super) handoff_ns: Option<f64>,
    /// Medians of figures that only some benches have.
    pub(super) figures: BTreeMap<String, f64>,
    pub(super) commands: BTreeSet<String>,
}

/// Fields of a setup that tell how work was done, and tell no cases apart.
pub(super) const HOW: [&str; 1] = ["pinned"];

/// All cases.
#[derive(Debug)]
pub(super) struct Results {
    /// By bench, setup, case and system.
    pub(super) cases: Vec<Case>,
    pub(super) machines: Vec<Machine>,
    /// The times of the first and the last measurement.
    pub(super) from: String,
    pub(super) to: String,
    /// The fields of a setup that each system states in a bench.
    stated: BTreeMap<(String, String), BTreeSet<String>>,
}

impl Results {
    /// Groups measurements.
    pub(super) fn new(rows: Vec<Row>) -> Result<Results> {
        let mut machines: Vec<Machine> = Vec::new();
        let mut groups: BTreeMap<Key, Vec<Row>> = BTreeMap::new();
        let mut stated: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
        let mut times = BTreeSet::new();
        for mut row in rows {
            // The kind of lock that transfers use tells cases apart, like the kind of a lock.
            if let Some(kind) = row.setup.remove("kind") {
                row.measurement.case = format!("{} {kind}", row.measurement.case);
            }
            let of = &row.measurement;
            let machine = machines.iter().position(|machine| *machine == of.machine).unwrap_or_else(|| {
                machines.push(of.machine.clone());
                machines.len() - 1
            });
            times.insert(of.at.clone());
            stated.entry((of.bench.clone(), of.system.clone())).or_default().extend(row.setup.keys().cloned());
            let key = Key {
                bench: of.bench.clone(),
                setup: row.setup.clone(),
                case: of.case.clone(),
                system: of.system.clone(),
                version: of.system_version.clone(),
                machine,
            };
            groups.entry(key).or_default().push(row);
        }
        let mut cases = groups.into_iter().map(|(key, rows)| Case::new(key, &rows)).collect::<Result<Vec<_>>>()?;
        cases.sort_by_key(|case| order(&case.key));
        let (from, to) = (times.first().cloned().unwrap_or_default(), times.last().cloned().unwrap_or_default());
        Ok(Results { cases, machines, from, to, stated })
    }

    /// The benches, each once.
    pub(super) fn benches(&self) -> BTreeSet<&str> {
        self.cases.iter().map(|case| case.key.bench.as_str()).collect()
    }

    /// The cases of a bench.
    pub(super) fn of<'a>(&'a self, bench: &'a str) -> impl Iterator<Item = &'a Case> + Clone {
        self.cases.iter().filter(move |case| case.key.bench == bench)
    }

    /// The fields of setups in which these cases differ.
    pub(super) fn differing<'a>(&self, cases: impl Iterator<Item = &'a Case> + Clone) -> BTreeSet<String> {
        let names: BTreeSet<&String> = cases.clone().flat_map(|case| case.key.setup.keys()).collect();
        let values = |name: &String| cases.clone().filter_map(|case| case.key.setup.get(name)).collect::<BTreeSet<_>>();
        names.into_iter().filter(|name| values(name).len() > 1).cloned().collect()
    }

    /// Whether two cases did the same work on the same machine, but for the field `except`. [`HOW`] tells none apart. A
    /// field that one of the two systems never states in this bench does not apply to that system.
    pub(super) fn is_same_work(&self, a: &Key, b: &Key, except: &str) -> bool {
        let states = |key: &Key, name: &str| {
            self.stated.get(&(key.bench.clone(), key.system.clone())).is_some_and(|names| names.contains(name))
        };
        a.bench == b.bench
            && a.machine == b.machine
            && a.setup.keys().chain(b.setup.keys()).all(|name| {
                name == except
                    || HOW.contains(&name.as_str())
                    || a.setup.get(name) == b.setup.get(name)
                    || !states(a, name)
                    || !states(b, name)
            })
    }
}

/// The order in which cases are shown: numbers by their size, and Farfield before its peers.
fn order(key: &Key) -> impl Ord + use<> {
    let number = |text: &String| text.parse::<u64>().unwrap_or(u64::MAX);
    let setup: Vec<_> = key.setup.iter().map(|(name, text)| (name.clone(), number(text), text.clone())).collect();
    let peer = key.system != super::FARFIELD;
    (key.bench.clone(), key.machine, setup, key.case.clone(), peer, key.system.clone(), key.version.clone())
}

impl Case {
    fn new(key: Key, rows: &[Row]) -> Result<Case> {
        let all = || rows.iter().map(|row| &row.measurement);
        let spread = |of: fn(&crate::bench::measurement::Measurement) -> Option<f64>| Spread::of(all().filter_map(of));
        let middle = |of| spread(of).map(|spread: Spread| spread.median);
        let samples = samples(rows).with_context(|| format!("merging latencies of {} {}", key.bench, key.case))?;
        let percentiles = match &samples {
            Some(samples) => Some(Percentiles {
                p50: samples.value_at_quantile(0.5),
                p90: samples.value_at_quantile(0.9),
                p99: samples.value_at_quantile(0.99),
                p99_9: samples.value_at_quantile(0.999),
                max: samples.max(),
            }),
            None => percentiles(rows),
        };
        let repetitions: Vec<_> = all().map(|of| (of.repetition, of.throughput_ops_per_s)).collect();
        let throughput = Spread::of(repetitions.iter().map(|(_, throughput)| *throughput));
        Ok(Case {
            throughput: throughput.context("a case without repetitions")?,
            repetitions,
            latency: spread(|of| of.latency_ns.map(|latency| latency.p50 as f64)),
            percentiles,
            samples,
            fairness: spread(|of| of.fairness),
            round_trips: middle(|of| of.round_trips_per_op),
            fabric_ops: middle(|of| of.fabric_ops_per_op),
            bytes: middle(|of| of.bytes_per_op),
            handoff_ns: middle(|of| of.handoff_ns),
            figures: figures(rows),
            commands: all().map(|of| of.command.clone()).collect(),
            key,
        })
    }
}

/// Medians.
fn figures(rows: &[Row]) -> BTreeMap<String, f64> {
    let names: BTreeSet<&String> = rows.iter().flat_map(|row| row.figures.keys()).collect();
    let middle = |name: &String| Spread::of(rows.iter().filter_map(|row| row.figures.get(name).copied()));
    names.into_iter().filter_map(|name| Some((name.clone(), middle(name)?.median))).collect()
}

/// The samples of all repetitions together, if all have some.
fn samples(rows: &[Row]) -> Result<Option<Histogram<u64>>> {
    let mut sum: Histogram<u64> = Histogram::new(3)?;
    for row in rows {
        let Some(samples) = &row.samples else { return Ok(None) };
        sum.add(samples)?;
    }
    Ok((!sum.is_empty()).then_some(sum))
}

/// Medians of percentiles.
fn percentiles(rows: &[Row]) -> Option<Percentiles> {
    let all = || rows.iter().filter_map(|row| row.measurement.latency_ns);
    let middle = |of: fn(&Percentiles) -> u64| Spread::of(all().map(|p| of(&p) as f64)).map(|s| s.median as u64);
    Some(Percentiles {
        p50: middle(|p| p.p50)?,
        p90: middle(|p| p.p90)?,
        p99: middle(|p| p.p99)?,
        p99_9: middle(|p| p.p99_9)?,
        max: all().map(|p| p.max).max()?,
    })
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    #[test]
    fn repetitions_are_grouped_and_all_else_is_kept_apart() {
        let mut rows = Vec::new();
        for (repetition, throughput) in [1e6, 3e6, 2e6].into_iter().enumerate() {
            rows.push(samples::row("locks", "mutex", "farfield", throughput, |of| of.repetition = repetition as u32));
        }
        rows.push(samples::row("locks", "mutex", "mpi", 5e5, |_| {}));
        rows.push(samples::row("locks", "mutex", "farfield", 5e5, |of| of.setup.nodes = Some(4)));
        rows.push(samples::row("locks", "mutex", "farfield", 5e5, |of| of.machine.cores = 64));
        rows.push(samples::row("locks", "mutex", "farfield", 5e5, |of| of.system_version = "0.2.0".into()));
        let results = Results::new(rows).expect("results");
        assert_eq!((results.cases.len(), results.machines.len()), (5, 2));
        let case = results.cases.iter().find(|case| case.repetitions.len() == 3).expect("the three");
        assert_eq!((case.throughput.median, case.throughput.min, case.throughput.max), (2e6, 1e6, 3e6));
        // The samples of one repetition are the same as those of another here.
        let samples = case.samples.as_ref().expect("samples");
        assert_eq!(samples.len(), 3 * results.cases[1].samples.as_ref().expect("samples").len());
        assert_eq!(case.percentiles.expect("latencies").p50, samples.value_at_quantile(0.5));
    }

    #[test]
    fn a_field_that_a_system_never_states_does_not_tell_its_work_apart() {
        let rows = vec![
            samples::row("kv", "c", "farfield", 1e6, |of| of.setup.window = Some(1)),
            samples::row("kv", "c", "farfield", 1e6, |of| of.setup.window = Some(128)),
            samples::row("kv", "c", "redis", 1e6, |of| {
                of.setup.fabric = None;
                of.setup.threads = None;
                of.setup.window = Some(128);
            }),
        ];
        let results = Results::new(rows).expect("results");
        let of = |system: &str, window: &str| {
            let is = |case: &&Case| case.key.system == system && case.key.setup["window"] == window;
            &results.cases.iter().find(is).expect("the case").key
        };
        assert!(results.is_same_work(of("farfield", "128"), of("redis", "128"), ""));
        assert!(!results.is_same_work(of("farfield", "1"), of("redis", "128"), ""));
        assert!(results.is_same_work(of("farfield", "1"), of("redis", "128"), "window"));
    }
}
