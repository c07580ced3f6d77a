//! Tests that the reductions of the exhaustive search lose nothing: the outcomes of random small programs, with and
//! without.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use farfield_core::fabric::sim::{Chooser, Handle, SimFabric};
use farfield_core::fabric::{
    ControlEvent, DeathRule, Endpoint, EndpointOptions, ErrorKind, Fabric, GroupKey, Instant, LocalMutex, NodeId,
    PeerState, Region, RemotePtr, Result, Transport, Word,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::exhaustive::Exhaustive;
use super::*;

/// A step of a thread; words and nodes by number.
#[derive(Clone, Copy, Debug)]
enum Step {
    Store(usize, u64),
    Load(usize),
    CpuAdd(usize),
    Put(usize, u64),
    PutLive(usize, usize),
    PutUnawaited(usize, u64),
    Get(usize),
    Faa(usize),
    Fence,
    GlobalFence,
    /// A word outside of regions; shared if the threads share their node.
    OwnStore(u64),
    OwnLoad,
    /// A number under a local lock is doubled, and this added.
    Locked(u64),
    Pause,
    /// Until an own word is this large, or another's is not zero; each of two, in the order in which they end.
    WaitUntil(usize, u64),
    WaitRemote(usize),
    WaitBoth,
    // Steps for faults.
    Tell(u64),
    Serve,
    ServeNow,
    PeerState,
    Evicted,
    BeFenced,
    IsFenced,
}

/// The steps of two threads, the nodes that they run on, and the faults that may occur.
#[derive(Clone, Debug)]
struct Program {
    threads: [Vec<Step>; 2],
    nodes: [usize; 2],
    faults: Option<(DeathRule, Faults)>,
}

/// The state that threads share beside registered memory.
#[derive(Default)]
struct Own {
    word: Word,
    locked: LocalMutex<u64>,
}

type Outcomes = Arc<Mutex<BTreeSet<Vec<u64>>>>;

const WORDS: usize = 2;

impl Program {
    fn random(rng: &mut SmallRng, steps_max: usize) -> Program {
        let threads = std::array::from_fn(|_| (0..rng.random_range(1..=steps_max)).map(|_| step(rng)).collect());
        Program { threads, nodes: if rng.random_range(0..3) == 0 { [0, 0] } else { [0, 1] }, faults: None }
    }

    /// A program of one step for each thread. Faults may occur before and after the steps.
    fn with_faults(rng: &mut SmallRng, rule: DeathRule, faults: Faults) -> Program {
        let threads =
            std::array::from_fn(|_| vec![if rng.random() { step(rng) } else { step_about_faults(rng, rule) }]);
        Program { threads, nodes: [0, 1], faults: Some((rule, faults)) }
    }
}

fn step(rng: &mut SmallRng) -> Step {
    let word = rng.random_range(0..WORDS);
    let value = rng.random_range(1..4);
    match rng.random_range(0..19) {
        0 | 1 => Step::Store(word, value),
        2 | 3 => Step::Load(word),
        4 => Step::CpuAdd(word),
        5 => Step::Put(word, value),
        6 => Step::PutLive(word, 1 - word),
        7 => Step::PutUnawaited(word, value),
        8 | 9 => Step::Get(word),
        10 => Step::Faa(word),
        11 => Step::OwnStore(value),
        12 => Step::OwnLoad,
        13 => Step::Locked(value),
        14 => Step::Pause,
        15 => Step::WaitUntil(word, value),
        16 => Step::WaitRemote(word),
        17 => Step::WaitBoth,
        _ if value == 1 => Step::Fence,
        _ => Step::GlobalFence,
    }
}

fn step_about_faults(rng: &mut SmallRng, rule: DeathRule) -> Step {
    match rng.random_range(0..7) {
        0 => Step::Tell(rng.random_range(1..4)),
        1 => Step::Serve,
        2 => Step::ServeNow,
        3 => Step::PeerState,
        // Where the system decides deaths, no node does.
        _ if rule == DeathRule::System => Step::Serve,
        4 => Step::Evicted,
        5 => Step::BeFenced,
        _ => Step::IsFenced,
    }
}

/// The objects that a thread works with.
struct Place {
    fabric: Arc<SimFabric>,
    own: Region,
    other: RemotePtr<u64>,
    beside: Arc<Own>,
}

/// Runs a thread's steps. Adds the values that it reads to `read`.
fn perform(steps: &[Step], ep: &Endpoint, place: &Place, read: &mut Vec<u64>) -> Result<()> {
    let Place { fabric, own, other, beside } = place;
    let peer = other.node();
    let mut unawaited = Vec::new();
    for step in steps {
        match *step {
            Step::Store(word, value) => own.word(word * 8).store(value),
            Step::Load(word) => read.push(own.word(word * 8).load()),
            Step::CpuAdd(word) => read.push(own.word(word * 8).fetch_add(16)),
            Step::Put(word, value) => ep.put_value(other.at(word), value).wait()?,
            Step::PutLive(from, to) => ep.put_from_region(other.at(to), own.span(from * 8, 8)).wait()?,
            Step::PutUnawaited(word, value) => unawaited.push(ep.put_value(other.at(word), value)),
            Step::Get(word) => read.push(ep.get(other.at(word)).wait()?),
            Step::Faa(word) => read.push(ep.faa(other.at(word), 32).wait()?),
            Step::Fence => ep.remote_fence(peer).wait()?,
            Step::GlobalFence => ep.block_on(ep.global_fence([peer]))?,
            Step::OwnStore(value) => beside.word.store(value),
            Step::OwnLoad => read.push(beside.word.load()),
            Step::Locked(value) => {
                let mut locked = beside.locked.lock();
                *locked = *locked * 2 + value;
                read.push(*locked);
            }
            Step::Pause => ep.block_on(ep.pause()),
            Step::WaitUntil(word, value) => {
                let enough = || Some(own.word(word * 8).load()).filter(|found| *found >= value);
                read.push(ep.block_on(ep.wait_until(soon(ep), enough)).unwrap_or(TIMED_OUT));
            }
            Step::WaitRemote(word) => {
                let waited = ep.block_on(ep.wait_remote(other.at(word), 0, soon(ep)));
                read.push(in_time(waited)?);
            }
            Step::WaitBoth => {
                let mut results = Vec::new();
                let waits = (0..2).map(|word| ep.wait_remote(other.at(word), 0, soon(ep)));
                ep.run_window(2, waits, |waited| results.push(waited));
                for waited in results {
                    read.push(in_time(waited)?);
                }
            }
            Step::Tell(value) => fabric.send_control(peer, &[value as u8])?,
            Step::Serve => fabric.serve(Duration::from_millis(1), &mut |event| read.push(number_of(&event))),
            Step::ServeNow => fabric.serve(Duration::ZERO, &mut |event| read.push(number_of(&event))),
            Step::PeerState => read.push(match fabric.peer_state(peer) {
                PeerState::Up { .. } => 1,
                PeerState::Dead { .. } => 2,
                other => panic!("{other:?}"),
            }),
            Step::Evicted => fabric.evict(peer, Duration::ZERO)?,
            Step::BeFenced => fabric.fence_self(),
            Step::IsFenced => read.push(u64::from(fabric.is_fenced())),
        }
    }
    for put in unawaited {
        put.wait()?;
    }
    Ok(())
}

/// The result of a wait that times out before any change.
const TIMED_OUT: u64 = 99;

fn soon(ep: &Endpoint) -> Instant {
    ep.now() + Duration::from_millis(1)
}

fn in_time(waited: Result<u64>) -> Result<u64> {
    match waited {
        Err(error) if error.is_timeout() => Ok(TIMED_OUT),
        waited => waited,
    }
}

fn number_of(event: &ControlEvent) -> u64 {
    match event {
        ControlEvent::Message(_, bytes) => u64::from(bytes[0]),
        ControlEvent::Up(_) => 10,
        ControlEvent::Down(_) => 11,
        ControlEvent::Suspected(_) => 12,
        ControlEvent::Trusted(_) => 13,
        other => panic!("{other:?}"),
    }
}

fn number_of_error(error: &ErrorKind) -> u64 {
    match error {
        ErrorKind::PeerDead { .. } => 21,
        ErrorKind::Unreachable { .. } => 22,
        ErrorKind::Revoked { .. } => 23,
        ErrorKind::Fenced => 24,
        other => panic!("{other:?}"),
    }
}

/// Runs a program, and collects its outcome. Its nodes are the fabric's: they have no service threads, because the
/// steps of those would be most of the executions.
fn execute(program: &Program, outcomes: &Outcomes, chooser: Box<dyn Chooser>) -> Outcome {
    let (rule, faults) = program.faults.clone().unzip();
    let death_rule = rule.unwrap_or(DeathRule::System);
    let settings = Settings { steps_max: 10_000, death_rule, faults, ..Settings::new(2) };
    let (program, outcomes) = (program.clone(), Arc::clone(outcomes));
    sim::run(settings, chooser, move |handle: Handle| {
        let fabrics = [0, 1].map(|node| handle.join(NodeId(node)));
        // Each node that has steps learns of the other.
        for (_, node) in program.threads.iter().zip(program.nodes).filter(|(steps, _)| !steps.is_empty()) {
            fabrics[node].serve(Duration::ZERO, &mut |_| ());
        }
        let regions = [0, 1].map(|node: usize| fabrics[node].alloc(GroupKey::DATA, WORDS * 8).unwrap());
        let beside = [0, 1].map(|_| Arc::<Own>::default());
        let read = Arc::new(Mutex::new(vec![Vec::new(); 2]));
        let mut endpoints = Vec::new();
        for (me, steps) in program.threads.into_iter().enumerate() {
            let (node, other) = (program.nodes[me], program.nodes[1 - me]);
            let fabric = Arc::clone(&fabrics[node]);
            // An endpoint outlives its thread: its end is not part of the program.
            let ep = Rc::new(Endpoint::open(Arc::clone(&fabric) as _, EndpointOptions::default()).unwrap());
            endpoints.push(Rc::clone(&ep));
            let (own, other) = (regions[node].clone(), regions[other].remote(0));
            let place = Place { fabric, own, other, beside: Arc::clone(&beside[node]) };
            let (read, may_fail) = (Arc::clone(&read), program.faults.is_some());
            let body = move || {
                let mut found = Vec::new();
                if let Err(error) = perform(&steps, &ep, &place, &mut found) {
                    assert!(may_fail, "{error}");
                    found.push(number_of_error(error.kind()));
                }
                read.lock().unwrap()[me] = found;
            };
            handle.spawn(NodeId(node as u16), "program", true, Box::new(body)).unwrap();
        }
        handle.explore();
        drop(endpoints);
        let mut outcome: Vec<u64> = read.lock().unwrap().concat();
        for (node, fabric) in fabrics.iter().enumerate() {
            // The memory of a dead node is not part of the outcome.
            if crate::crashed(node) {
                outcome.push(u64::MAX);
                continue;
            }
            outcome.extend([beside[node].word.load(), *beside[node].locked.lock()]);
            outcome.extend([regions[node].word(0).load(), regions[node].word(8).load()]);
            outcome.push(u64::from(fabric.is_fenced()));
            fabric.serve(Duration::ZERO, &mut |event| outcome.push(number_of(&event)));
        }
        outcomes.lock().unwrap().insert(outcome);
    })
}

/// How many programs a test compares: `FARFIELD_TEST_LONG` has `many`, and CI sets it.
fn programs(many: usize) -> usize {
    if std::env::var_os("FARFIELD_TEST_LONG").is_some() { many } else { many.div_ceil(4) }
}

/// The outcomes of a program, if `executions` executions suffice for all of them.
fn all_outcomes(program: &Program, is_reduced: bool, executions: u64) -> Option<(BTreeSet<Vec<u64>>, u64)> {
    let outcomes = Outcomes::default();
    let search = Exhaustive::with_reduction(is_reduced);
    for count in 1..=executions {
        let outcome = execute(program, &outcomes, search.chooser());
        assert_eq!(outcome.failure, None, "{program:?}");
        if !search.advance() {
            return Some((std::mem::take(&mut outcomes.lock().unwrap()), count));
        }
    }
    None
}

#[test]
fn the_reductions_lose_no_outcome() {
    let mut rng = SmallRng::seed_from_u64(5);
    let (mut compared, mut plain_executions, mut reduced_executions) = (0, 0, 0);
    let mut compare = |program: &Program, executions_max: u64| {
        let Some((plain, plain_count)) = all_outcomes(program, false, executions_max) else { return false };
        let (reduced, reduced_count) = all_outcomes(program, true, executions_max).expect("a reduction reduces");
        assert_eq!(reduced, plain, "{program:?}");
        assert!(reduced_count <= plain_count, "{program:?}");
        plain_executions += plain_count;
        reduced_executions += reduced_count;
        true
    };
    // A value that no thread reads any more is part of the state, too: its first step's order shows at the end only, in
    // combination with each outcome of the race that follows.
    let two_races =
        |first, second| [vec![first, Step::Load(0), Step::Load(1)], vec![second, Step::CpuAdd(0), Step::CpuAdd(1)]];
    let last_words = [two_races(Step::OwnStore(1), Step::OwnStore(2)), two_races(Step::Locked(1), Step::Locked(2))];
    // So is the result of an operation.
    let brought = [two_races(Step::Get(0), Step::CpuAdd(0)), two_races(Step::Faa(0), Step::CpuAdd(0))];
    // So is a thread's progress, even if it stores a value again that leaves memory unchanged, or only lets others run.
    let again = || [Step::Store(0, 1), Step::Fence].into_iter().cycle().take(4).collect::<Vec<_>>();
    let same_again = [again(), vec![Step::CpuAdd(0), Step::Store(1, 2), Step::Load(0)]];
    let paused = [vec![Step::Pause, Step::Pause, Step::CpuAdd(0)], vec![Step::Load(0), Step::CpuAdd(0), Step::Load(0)]];
    for threads in last_words.into_iter().chain(brought).chain([same_again, paused]) {
        let program = Program { threads, nodes: [0, 0], faults: None };
        assert!(compare(&program, 300_000), "{program:?}");
    }
    while compared < programs(60) {
        compared += usize::from(compare(&Program::random(&mut rng, 3), 3000));
    }
    assert!(reduced_executions * 3 < plain_executions, "{reduced_executions} of {plain_executions}");
}

#[test]
fn the_reductions_lose_no_outcome_of_a_fault() {
    let mut rng = SmallRng::seed_from_u64(11);
    let (system, majority, faults) = (DeathRule::System, DeathRule::Majority, || Faults::new().of([1]));
    let both_act = [
        (system, faults().crashes(1)),
        (majority, faults().crashes(1)),
        (system, faults().stalls(1)),
        (majority, faults().stalls(1)),
        (system, faults().pauses(1)),
        (majority, faults().false_suspicions(1)),
    ];
    // Each side of a cut suspects the other and trusts it again: if both have steps, there are too many executions.
    let one_acts = [(majority, faults().cuts(1))];
    for (at, (rule, faults)) in both_act.iter().chain(&one_acts).enumerate() {
        let (mut compared, mut tried) = (0, 0);
        while compared < programs(10) && tried < 30 {
            tried += 1;
            let mut program = Program::with_faults(&mut rng, *rule, faults.clone());
            if at >= both_act.len() {
                program.threads[rng.random_range(0..2)].clear();
            }
            let Some((plain, _)) = all_outcomes(&program, false, 20_000) else { continue };
            let (reduced, _) = all_outcomes(&program, true, 20_000).expect("a reduction reduces");
            assert_eq!(reduced, plain, "{program:?}");
            compared += 1;
        }
        assert_eq!(compared, programs(10), "programs with {faults:?} that are small enough");
    }
}

#[test]
fn random_executions_show_nothing_that_the_exhaustive_search_does_not() {
    let mut rng = SmallRng::seed_from_u64(7);
    for seed in 0..40 {
        let program = Program::random(&mut rng, 4);
        let Some((reduced, _)) = all_outcomes(&program, true, 20_000) else { continue };
        let outcomes = Outcomes::default();
        for execution in 1..=300 {
            let chooser = Random::new(RandomExecution { seed, execution, decisions: 64 }, false, 0);
            let outcome = execute(&program, &outcomes, Box::new(chooser));
            assert_eq!(outcome.failure, None, "{program:?}");
        }
        let random = outcomes.lock().unwrap();
        assert!(random.is_subset(&reduced), "{program:?}: {:?}", random.difference(&reduced).next());
        // And nearly everything that there is shows.
        assert!(random.len() * 2 >= reduced.len(), "{program:?}: {} of {}", random.len(), reduced.len());
    }
}
