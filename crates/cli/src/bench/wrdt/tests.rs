//! The loads are permissible, the baseline by messages converges, and the output says what was measured.

use farfield::hamband::types::{Account, OrSet, ProjectManagement};
use farfield::hamband::{DataType, Method as _};
use farfield::{Barrier, Node};

use super::death::Death;
use super::load::{Draws, Load, MethodOf, Type, WithType};
use super::measure::{Done, Slices, Times, share};
use super::message::{BATCH, Messages};
use super::ratios::Sample;
use super::system::{Client, Kind};
use super::*;

/// Calls in a row.
struct InARow(Type);

impl WithType for InARow {
    type Output = ();

    fn with<T: Load>(self) {
        let (mut state, mut draws, plain) = (T::initial(), Draws::new(1), T::initial());
        assert!(state.invariant(), "{}", self.0);
        for at in 0..2_000 {
            let methods = T::methods();
            let method = methods[at % methods.len()];
            let from = if T::READS_STATE { &state } else { &plain };
            let call = from.call(method, &mut draws);
            assert_eq!(farfield::hamband::Update::method(&call), method, "{}", self.0);
            state.apply(&call).unwrap_or_else(|why| panic!("{}: {call:?}: {why}", self.0));
            state.look(&mut draws);
        }
        assert!(state.invariant() && state != plain, "{}: {state:?}", self.0);
        let bytes = postcard::to_allocvec(&state).expect("it has an encoding");
        assert_eq!(postcard::from_bytes::<T>(&bytes).expect("it was just written"), state);
    }
}

#[test]
fn no_call_of_a_load_is_refused() {
    let all = Type::each(&[Type::Counter, Type::All]);
    assert_eq!(all.len(), 14);
    all.into_iter().for_each(|kind| kind.with(InARow(kind)));
}

#[test]
fn shares_are_even_and_add_up() {
    assert_eq!((0..4).map(|of| share(10, 4, of)).collect::<Vec<_>>(), [3, 3, 2, 2]);
    assert_eq!((0..3).map(|of| share(2, 3, of)).sum::<u64>(), 2);
}

const NODES: usize = 3;
const CALLS: usize = 400;

/// Calls of all nodes, of all methods; those of conflicting ones go to their leaders. The replicas at the end.
fn converge<T: Load + Sync>(batch: usize) -> Vec<(T, usize)> {
    let nodes = farfield::local_session(NODES).expect("a session");
    let run = |node: &Node| -> Result<(T, usize)> {
        let endpoint = node.endpoint()?;
        let mut phases = Barrier::open(node, "phases", 1)?.thread()?;
        let mut client = Messages::<T>::open(node, &endpoint, &mut phases, NODES, batch)?;
        let (mut draws, methods) = (Draws::new(node.id().0.into()), T::methods());
        let mut refused = 0;
        for at in 0..CALLS {
            let call = client.query(|state| state.call(methods[at % methods.len()], &mut draws))?;
            refused += usize::from(!client.update(&endpoint, &call)?);
        }
        worker::meet(&endpoint, &mut phases)?;
        client.stable(&endpoint)?;
        worker::meet(&endpoint, &mut phases)?;
        let state = client.query(T::clone)?;
        worker::meet(&endpoint, &mut phases)?;
        Ok((state, refused))
    };
    let failed =
        |error: anyhow::Error| farfield::Error::from(farfield::ErrorKind::Config { why: format!("{error:#}") });
    farfield::on_each(&nodes, |node| run(node).map_err(failed)).expect("no node fails")
}

fn are_equal<T: DataType>(ends: &[(T, usize)]) {
    assert!(ends.iter().all(|(state, refused)| *state == ends[0].0 && *refused == 0), "{ends:?}");
    assert!(ends[0].0.invariant());
}

#[test]
fn replicas_that_pass_messages_become_equal() {
    for batch in [0, BATCH] {
        are_equal(&converge::<OrSet<u32>>(batch));
        are_equal(&converge::<ProjectManagement<u32, u32>>(batch));
    }
}

#[test]
fn a_leader_refuses_impermissible_updates() {
    let nodes = farfield::local_session(2).expect("a session");
    let run = |node: &Node| -> Result<bool> {
        let endpoint = node.endpoint()?;
        let mut phases = Barrier::open(node, "phases", 1)?.thread()?;
        let mut client = Messages::<Account>::open(node, &endpoint, &mut phases, 2, 0)?;
        // Half of all that is there, and a little more, by both.
        let is_permitted = client.update(&endpoint, &Account::withdrawal_of((1 << 59) + 1))?;
        worker::meet(&endpoint, &mut phases)?;
        Ok(is_permitted)
    };
    let failed =
        |error: anyhow::Error| farfield::Error::from(farfield::ErrorKind::Config { why: format!("{error:#}") });
    let ends = farfield::on_each(&nodes, |node| run(node).map_err(failed)).expect("no node fails");
    assert_eq!(ends.into_iter().filter(|is_permitted| *is_permitted).count(), 1);
}

#[test]
fn methods_have_the_categories_of_their_system() {
    assert_eq!(Type::Counter.with(Names(Kind::Hamband)), [("Add", "reducible")]);
    assert_eq!(Type::Counter.with(Names(Kind::Smr)), [("Add", "conflicting")]);
    assert_eq!(Type::Counter.with(Names(Kind::Msg)), [("Add", "conflict-free")]);
    assert_eq!(Type::Account.with(Names(Kind::Msg))[1], ("Withdraw", "conflicting"));
    // The end of an auction is not measured.
    assert_eq!(Type::Auction.with(Names(Kind::Hamband)), [("Register", "reducible"), ("Bid", "conflicting")]);
    assert_eq!(MethodOf::<Account>::NAMES, ["Deposit", "Withdraw"]);
}

fn plan(system: Kind, kill: Option<Victim>) -> Plan {
    let cores = Cores::default();
    Plan { system, kind: Type::Counter, nodes: 4, updates: 25, calls: 0, seconds: 1.0, kill, cores }
}

#[test]
fn missed_goals_are_reported() {
    let sample = |system: Kind, calls_per_s: f64| Sample::of(&plan(system, None), calls_per_s, &[]);
    let mut out = Vec::new();
    let all = [sample(Kind::Hamband, 2e6), sample(Kind::Msg, 1e5), sample(Kind::Smr, 1e6), sample(Kind::MsgBatch, 4e6)];
    ratios::write(&all, &mut out).expect("a vector takes it");
    let text = String::from_utf8(out).expect("text");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("counter, 4 nodes, 25 % updates: hamband 2,000,000 calls/s; 20.0 x msg"), "{text}");
    let missed = [
        "NOT REACHED: counter, 4 nodes, 25 %: behind msg-batch, 0.50 times its throughput",
        "NOT REACHED: counter, 4 nodes, 25 %: 2.0 times smr, less than the paper's 3.7",
    ];
    assert_eq!(lines[1..], missed, "{text}");
}

#[test]
fn updates_and_queries_are_drawn_apart_over_the_nodes() {
    let sample = |nodes: u16, calls_per_s: f64| {
        let one = Plan { nodes, ..plan(Kind::Smr, None) };
        let of = |share: f64| {
            let throughput_ops_per_s = share * calls_per_s;
            Measurement { throughput_ops_per_s, ..Measurement::new("wrdt", "a case", Setup::default()) }
        };
        Sample::of(&one, calls_per_s, &[1.0, 0.25, 0.75].map(of))
    };
    let lines = ratios::lines(&[sample(3, 400.0), sample(2, 100.0), sample(2, 300.0)]);
    let drawn: Vec<_> = lines.iter().map(|line| (line.name.as_str(), line.points.as_slice())).collect();
    let queries = ("counter smr queries, 25 %", &[(2.0, 150.0), (3.0, 300.0)][..]);
    assert_eq!(drawn, [queries, ("counter smr updates, 25 %", &[(2.0, 50.0), (3.0, 100.0)][..])]);
}

#[test]
fn a_death_is_reported_with_the_rates_before_and_after() {
    let mut slices = Slices { start_ns: 5_000_000_000, ..Slices::default() };
    for counts in [&mut slices.queries, &mut slices.updates, &mut slices.ordered] {
        *counts = vec![100; 201];
    }
    slices.ordered[100..104].fill(0);
    slices.methods = vec![vec![Times { calls: 100, sum_ns: 10_000, slowest_ns: 100 }; 201]];
    slices.methods[0][104] = Times { calls: 1, sum_ns: 40_000_000, slowest_ns: 40_000_000 };
    let done = Done {
        rank: 1,
        methods: Vec::new(),
        queries: ThreadResult::new(),
        refused: 0,
        seconds: 2.0,
        posted: 0,
        bytes: 0,
        costs: Vec::new(),
        state: 0,
        keeps_invariant: true,
        slices,
    };
    let written = |victim: Victim| {
        let ran = Ran { done: vec![done.clone()], killed_ns: (victim != Victim::None).then_some(6_000_000_000) };
        let death = Death::of(&plan(Kind::Hamband, Some(victim)), victim, ran);
        let mut out = Vec::new();
        death.write(&mut out).expect("a vector takes it");
        (death, String::from_utf8(out).expect("text"))
    };
    let (death, text) = written(Victim::Leader);
    assert!(text.starts_with("counter hamband: a leader was killed after 1.00 s."), "{text}");
    assert!(text.contains("updates: 10,000 before, 10,000 in the 1.00 s after (100 %)"), "{text}");
    assert!(
        text.contains("conflicting ones: 10,000 before, 9,600 in the 1.00 s after (96 %); none ended for 40 ms"),
        "{text}"
    );
    assert!(text.contains("took 100 ns before, 40.0 ms after"), "{text}");
    // 40 ms, and 100 ns of each of the 9,900 others.
    assert!(text.contains("  Add, reducible: 100 ns before, 4.1 us after, on the average\n"), "{text}");
    // Calls, updates, queries, and the one method.
    let mut rows = [(); 4].map(|()| Measurement::new("wrdt", "a case", Setup::default()));
    death.add_means(&mut rows);
    let means = |row: &Measurement| row.figures.iter().map(|(name, ns)| (name.clone(), *ns as u64)).collect::<Vec<_>>();
    assert_eq!(means(&rows[3]), [("mean_after_ns".to_owned(), 4_139), ("mean_before_ns".to_owned(), 100)]);
    assert!(rows[..3].iter().all(|row| row.figures.is_empty()), "they are of methods");
    let updates = &death.lines()[1];
    assert_eq!((updates.points.len(), updates.name.as_str()), (200, "counter hamband updates, leader killed"));
    let (_, text) = written(Victim::None);
    assert!(text.starts_with("counter hamband: no node was killed; the middle is after 1.00 s."), "{text}");
    assert!(text.contains("per second of all nodes:"), "{text}");
}
