//! Each map is the same map, and each way to read an object finds the written value.

use std::sync::atomic::{AtomicBool, Ordering};

use farfield::{Endpoint, local_session, on_each};

use super::load::Worker;
use super::maps::{Body, Map};
use super::objects::{Part, Reader, Writer};
use super::*;

/// The calls whose results are compared.
struct Calls;

impl Body for Calls {
    type Output = Vec<Option<u64>>;

    fn run(&self, map: &mut impl Map) -> Result<Self::Output> {
        let mut seen = Vec::new();
        for number in 0..500 {
            seen.push(map.get(number * 7 % 400)?);
            map.put(number * 13 % 400, number)?;
            let (count, sum) = map.scan(number * 11 % 400, 20)?;
            seen.extend([Some(count as u64), Some(sum)]);
        }
        Ok(seen)
    }
}

#[test]
fn all_maps_give_the_same_results() -> Result<()> {
    let node = Node::builder().start()?;
    let endpoint = node.endpoint()?;
    let seen = |system| {
        let pairs = (0..100).map(|number| (key(number), number));
        System::open(system, &node, TreeOptions::default(), pairs)?.with_thread(&endpoint, &Calls)
    };
    let expected = seen(Kind::BTreeMap)?;
    assert_eq!(seen(Kind::Rome)?, expected);
    assert_eq!(seen(Kind::Redb)?, expected);
    Ok(())
}

#[test]
fn every_workload_runs_on_every_map() -> Result<()> {
    for mix in [Mix::B, Mix::C, Mix::E, Mix::U] {
        for system in [Kind::Rome, Kind::BTreeMap, Kind::Redb] {
            let node = Node::builder().start()?;
            let endpoint = node.endpoint()?;
            let (keys, chooser) = (200, KeyChooser::new(Distribution::Zipfian, 200));
            let map = System::open(system, &node, options(200, mix), (0..keys).map(|number| (key(number), 0)))?;
            let duration = Duration::from_millis(20);
            let worker = Worker { endpoint: &endpoint, mix, chooser: &chooser, keys, number: 0, duration };
            let done = map.with_thread(&endpoint, &worker)?;
            assert!(done.result.operations > 0 && done.core_seconds > 0.0, "{system} {mix:?}");
            assert_eq!((done.pairs > 0, done.result.fabric_ops), (mix == Mix::E, 0), "{system} {mix:?}");
        }
    }
    Ok(())
}

/// A writer that writes until the reader has seen a hundred changes.
struct Changes<'a>(&'a AtomicBool, &'a Endpoint);

impl Part for Changes<'_> {
    fn write(self, writer: &mut impl Writer) -> Result<Done> {
        let mut content = 0;
        while !self.0.load(Ordering::Relaxed) {
            content += 1;
            writer.write(content)?;
            if content.is_multiple_of(4) {
                std::thread::yield_now(); // a reader that never has the core finds no whole object
            }
        }
        Ok(Done::new(false))
    }

    fn read(self, reader: &mut impl Reader) -> Result<Done> {
        let (mut object, mut latest, mut changes) = (Vec::new(), 0, 0);
        while changes < 100 {
            if !self.1.block_on(reader.attempt(&mut object))? {
                continue;
            }
            let word = |at: usize| object[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
            assert_eq!(word(0), word(object.len() - 8));
            assert!(word(0) >= latest);
            changes += u64::from(word(0) > latest);
            latest = word(0);
        }
        self.0.store(true, Ordering::Relaxed);
        Ok(Done::new(true))
    }
}

#[test]
fn every_way_finds_whole_objects() -> Result<()> {
    for way in [Way::Rome, Way::Locking, Way::Versions, Way::Checksums] {
        let nodes = local_session(2)?;
        let open = |node: &Node| {
            Shared::open(way, node, 512)
                .map_err(|error| farfield::Error::from(farfield::ErrorKind::Config { why: error.to_string() }))
        };
        let shared = on_each(&nodes, open)?;
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for (node, shared) in nodes.iter().zip(&shared) {
                let is_over = &is_over;
                scope.spawn(move || {
                    let endpoint = node.endpoint().expect("an endpoint");
                    let done = shared.run(&endpoint, Changes(is_over, &endpoint));
                    assert!(done.is_ok(), "{way}: {done:?}");
                });
            }
        });
    }
    Ok(())
}

#[test]
fn missed_goals_are_reported() {
    let sample = |system: &str, scanners: u16, calls: f64| {
        let what = What::Map {
            system: clap::ValueEnum::from_str(system, false).expect("a system"),
            mix: Mix::B,
            distribution: Distribution::Zipfian,
            keys: 100,
            workers: 2,
            pairs: (1, 2),
            control: false,
        };
        let plan = Plan { what, others: scanners, seconds: 1.0, cores: Cores::default() };
        let mut measurement = Measurement::new("rome", "b", Setup::default());
        measurement.throughput_ops_per_s = calls;
        measurement.figures.insert("per_core_second".into(), calls);
        Sample::of(&plan, &[measurement]).expect("it is of a map")
    };
    let said = |all: &[Sample]| {
        let mut out = Vec::new();
        ratios::write(all, &mut out).expect("a vector takes everything");
        String::from_utf8(out).expect("text")
    };
    let good =
        [sample("rome", 0, 400.0), sample("btreemap", 0, 300.0), sample("redb", 0, 100.0), sample("rome", 2, 380.0)];
    let text = said(&good);
    assert!(text.contains("1.3 x btreemap; 4.0 x redb") && text.contains("2 scanners: 0.95"), "{text}");
    assert!(!text.contains("NOT REACHED"), "{text}");
    let bad =
        [sample("rome", 0, 200.0), sample("btreemap", 0, 300.0), sample("redb", 0, 100.0), sample("rome", 2, 100.0)];
    let missed: Vec<String> =
        said(&bad).lines().filter(|line| line.starts_with("NOT REACHED")).map(str::to_owned).collect();
    assert_eq!(missed.len(), 3, "{missed:?}");
    assert_eq!(ratios::lines(&good, Sample::calls)[0].points, [(0.0, 400.0), (2.0, 380.0)]);
}

/// The loss beside scanners of another map is the machine's.
#[test]
fn scanners_are_compared_with_those_of_another_map() {
    let sample = |scanners: u16, control: bool, calls: f64, waits: f64| {
        let (system, mix, distribution) = (Kind::Rome, Mix::U, Distribution::Zipfian);
        let what = What::Map { system, mix, distribution, keys: 100, workers: 1, pairs: (1, 2), control };
        let plan = Plan { what, others: scanners, seconds: 1.0, cores: Cores::default() };
        let mut measurement = Measurement::new("rome", "u", Setup::default());
        measurement.figures = [("per_core_second".into(), calls), ("waits".into(), waits)].into();
        Sample::of(&plan, &[measurement]).expect("it is of a map")
    };
    let said = |with: f64, waits: f64| {
        let mut out = Vec::new();
        let all = [sample(0, false, 100.0, 0.0), sample(2, false, with, waits), sample(2, true, 80.0, 0.0)];
        ratios::write(&all, &mut out).expect("a vector takes everything");
        String::from_utf8(out).expect("text")
    };
    let good = said(75.0, 0.0);
    assert!(good.contains("0.75 of") && good.contains("0.80 beside scanners of another map; 0 changes"), "{good}");
    assert!(!good.contains("NOT REACHED"), "{good}");
    assert!(said(70.0, 0.0).contains("NOT REACHED") && said(80.0, 3.0).contains("NOT REACHED"));
}

#[test]
fn sizes_are_as_the_help_says() {
    assert_eq!((pairs("5-10"), pairs("7")), (Ok((5, 10)), Ok((7, 7))));
    assert!(["0", "9-3", "x", "1-2-3", "1-2000000"].iter().all(|text| pairs(text).is_err()));
    assert_eq!(size("64"), Ok(64));
    assert!(["8", "20", "x", "99999992"].iter().all(|text| size(text).is_err()));
}
