//! The baselines are what they say: registers, in so many round trips.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use farfield::history::Event;
use farfield::history::kv::{KvHistory, KvInput, KvOutput};
use farfield::{Endpoint, Node, NodeId};

use super::measure::load;
use super::system::{Body, Client, Kind, Scale, System};
use super::*;

const KEYS: usize = 3;
const CLIENTS: usize = 2;

fn scale() -> Scale {
    Scale { memory: (0..3).map(NodeId).collect(), clients: CLIENTS, keys: KEYS, size: 32, metadata_words: 0 }
}

/// Three memory nodes and two clients, of which each does its part.
fn with_clients(kind: Kind, part: impl Fn(usize, &Endpoint, &System) + Sync) {
    let nodes = farfield::local_session(3 + CLIENTS).expect("a session");
    let open = |node: &Node| {
        let client = usize::from(node.id().0).checked_sub(3);
        System::open(kind, node, &scale(), client)
            .map_err(|error| farfield::Error::from(farfield::ErrorKind::Config { why: error.to_string() }))
    };
    let systems = farfield::on_each(&nodes, open).expect("it opens on all");
    std::thread::scope(|scope| {
        for (client, (node, system)) in nodes.iter().zip(&systems).skip(3).enumerate() {
            let part = &part;
            scope.spawn(move || part(client, &node.endpoint().expect("an endpoint"), system));
        }
    });
}

/// Gets and updates of a client, each with its time.
struct Calls<'c> {
    endpoint: &'c Endpoint,
    client: usize,
    clock: &'c AtomicU64,
    history: &'c Mutex<KvHistory>,
}

impl Body for Calls<'_> {
    type Output = ();

    fn run(self, client: &impl Client) -> Result<()> {
        let mut seen = KvHistory::new();
        for call in 1..=400u64 {
            let (key, written) = (call as usize % KEYS, (self.client as u64 + 1) << 32 | call);
            let called = self.clock.fetch_add(1, Ordering::SeqCst);
            let (input, output) = if (call + self.client as u64).is_multiple_of(2) {
                self.endpoint.block_on(client.put(key, &[written; 4]))?;
                (KvInput::Upsert(written), KvOutput::Stored)
            } else {
                let mut value = [0; 4];
                let is_there = self.endpoint.block_on(client.get(key, &mut value))?;
                assert_eq!(value, [value[0]; 4], "it is whole");
                (KvInput::Get, KvOutput::Found(is_there.then_some(value[0])))
            };
            let returned = self.clock.fetch_add(1, Ordering::SeqCst);
            seen.record(key as u64, Event::returned(self.client as u32, called, returned, input, output));
        }
        self.history.lock().expect("no thread panics with it").merge(seen);
        Ok(())
    }
}

#[test]
fn all_but_raw_are_linearizable() {
    for kind in [Kind::Swarm, Kind::DmAbd, Kind::Fusee] {
        let (clock, history) = (AtomicU64::new(1), Mutex::new(KvHistory::new()));
        with_clients(kind, |client, endpoint, system| {
            let calls = Calls { endpoint, client, clock: &clock, history: &history };
            system.with_client(endpoint, calls).expect("no call fails");
        });
        let checked = history.into_inner().expect("no thread panics with it").check_each_key(Default::default());
        checked.unwrap_or_else(|failure| panic!("{kind}: {failure}"));
    }
}

/// The round trips of each call of a client that is alone.
struct Trips<'c>(&'c Endpoint);

impl Body for Trips<'_> {
    type Output = [u64; 3];

    fn run(self, client: &impl Client) -> Result<[u64; 3]> {
        let endpoint = self.0;
        load(endpoint, client, 0..KEYS, 4)?;
        let mut value = [0; 4];
        let trips = |call: &mut dyn FnMut() -> farfield::Result<()>| {
            let before = endpoint.counts().round_trips;
            call().expect("it does not fail");
            endpoint.counts().round_trips - before
        };
        let first = trips(&mut || endpoint.block_on(client.get(1, &mut value)).map(drop));
        assert_eq!(value, [1; 4]);
        let update = trips(&mut || endpoint.block_on(client.put(1, &[7; 4])));
        let get = trips(&mut || endpoint.block_on(client.get(1, &mut value)).map(drop));
        assert_eq!(value, [7; 4]);
        Ok([first, update, get])
    }
}

#[test]
fn each_takes_as_many_round_trips_as_it_says() {
    for (kind, expected) in
        [(Kind::Swarm, [1, 1, 1]), (Kind::DmAbd, [2, 2, 2]), (Kind::Fusee, [1, 4, 1]), (Kind::Raw, [1, 1, 1])]
    {
        with_clients(kind, |client, endpoint, system| {
            if client == 0 {
                let trips = system.with_client(endpoint, Trips(endpoint)).expect("no call fails");
                assert_eq!(trips, expected, "{kind}: the first get, an update, another get");
            }
        });
    }
}

#[test]
fn round_trips_have_a_median_and_a_99th_percentile() {
    let mut trips = [0; TRIPS_MAX + 1];
    (trips[1], trips[2], trips[5]) = (980, 15, 5);
    let figures: BTreeMap<String, f64> = trips::figures(&trips).collect();
    let of = |name: &str| figures[name];
    assert_eq!((of("trips_p50"), of("trips_p99"), of("trips_max"), of("one_trip_%")), (1.0, 2.0, 5.0, 98.0));
    assert_eq!((of("trips_1"), of("trips_2"), of("trips_5"), figures.len()), (980.0, 15.0, 5.0, 7));
}

#[test]
fn a_histogram_has_the_calls_of_all_repetitions() {
    let mut histograms = Histograms::default();
    let (mut first, mut second) = ([0; TRIPS_MAX + 1], [0; TRIPS_MAX + 1]);
    (first[4], second[4], second[5]) = (500, 499, 1);
    for trips in [first, second] {
        histograms.add("a fusee update".into(), trips::paper(Kind::Fusee, Call::Update), trips);
    }
    histograms.add("d raw insert".into(), trips::paper(Kind::Raw, Call::Insert), [7; TRIPS_MAX + 1]);
    histograms.add("none were counted".into(), None, [0; TRIPS_MAX + 1]);
    let mut out = Vec::new();
    histograms.write(&mut out).expect("a vector takes it");
    let text = String::from_utf8(out).expect("text");
    let lines: Vec<&str> = text.lines().skip(1).collect();
    assert_eq!(lines[0], "  a fusee update: 4: 99.90 %, 5: 0.10 %; paper 4, 99th percentile 5");
    assert!(lines[1].starts_with("  d raw insert: 0: 6.25 %, 1: 6.25 %,"), "{text}");
    assert!(lines[1].ends_with(", 15 and more: 6.25 %") && lines.len() == 2, "{text}");
}

/// A plan with so many memory nodes.
fn plan(replicas: u16) -> Plan {
    Plan {
        system: Kind::Swarm,
        workload: Mix::A,
        distribution: Distribution::Zipfian,
        replicas,
        clients: 2,
        window: 1,
        keys: 50,
        size: 64,
        metadata_words: 0,
        seconds: 1.0,
        kills: true,
        cores: Cores::default(),
    }
}

#[test]
fn a_minority_of_the_memory_nodes_is_killed() {
    let victims = [3, 5, 7].map(|replicas| plan(replicas).victims());
    assert_eq!(victims, [vec![2], vec![3, 4], vec![4, 5, 6]]);
}

#[test]
fn a_death_is_reported_with_the_rates_before_and_after() {
    let mut done: Done = Done::new(Duration::from_secs(2));
    done.slices.fill(100);
    done.slices[100..110].fill(0);
    done.slowest[104] = 40_000_000;
    let killed_ns = vec![done.start_ns + 1_000_000_000];
    let mut death = Death { name: "workload a".into(), killed_ns, done: vec![done] };
    let text = |death: &Death| {
        let mut out = Vec::new();
        death.write(&mut out).expect("a vector takes it");
        String::from_utf8(out).expect("text")
    };
    let one = text(&death);
    let expected = "workload a: a memory node was killed after 1.00 s; 10,000 calls per second before, 9,000 in the 1.00 s after (90 %)";
    assert!(one.starts_with(expected) && one.contains("0 ns before, 40.0 ms after"), "{one}");
    let effect = Effect::of(&death.done, &death.killed_ns).expect("the run is long enough");
    let figures: BTreeMap<String, f64> = effect.figures().into();
    let of = |name: &str| figures[name];
    let all = [of("calls_per_s_before"), of("calls_per_s_after"), of("slowest_after_ns")];
    assert_eq!(all, [10_000.0, 9_000.0, 40_000_000.0]);
    death.killed_ns.push(death.killed_ns[0]);
    let two = text(&death);
    assert!(two.starts_with("workload a: 2 memory nodes were killed after 1.00 s;"), "{two}");
}
