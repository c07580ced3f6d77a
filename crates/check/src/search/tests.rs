//! Whether the reductions of the exhaustive search lose anything: the outcomes of random small programs, with and without.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use farfield::fabric::{DeathRule, GroupKey, LocalMutex, Region, RemotePtr, Word};
use farfield::{Endpoint, Result};
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
}

/// The steps of two threads, and the nodes that they run on.
#[derive(Clone, Debug)]
struct Program {
    threads: [Vec<Step>; 2],
    nodes: [usize; 2],
    faults: Option<(DeathRule, Faults)>,
}

/// What threads share beside registered memory.
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
}

fn step(rng: &mut SmallRng) -> Step {
    let word = rng.random_range(0..WORDS);
    let value = rng.random_range(1..4);
    match rng.random_range(0..15) {
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
        _ if value == 1 => Step::Fence,
        _ => Step::GlobalFence,
    }
}

/// Runs a thread's steps; what it reads.
fn perform(
    steps: &[Step],
    ep: &Endpoint,
    own: &Region,
    other: RemotePtr<u64>,
    beside: &Own,
    read: &mut Vec<u64>,
) -> Result<()> {
    let mut unawaited = Vec::new();
    for step in steps {
        match *step {
            Step::Store(word, value) => own.word(word * 8).store(value),
            Step::Load(word) => read.push(own.word(word * 8).load()),
            Step::CpuAdd(word) => read.push(own.word(word * 8).fetch_add(16)),
            Step::Put(word, value) => ep.put_value(other.at(word), value).wait()?,
            Step::PutLive(from, to) => ep.put_live(other.at(to), own.span(from * 8, 8)).wait()?,
            Step::PutUnawaited(word, value) => unawaited.push(ep.put_value(other.at(word), value)),
            Step::Get(word) => read.push(ep.get(other.at(word)).wait()?),
            Step::Faa(word) => read.push(ep.faa(other.at(word), 32).wait()?),
            Step::Fence => ep.remote_fence(other.node()).wait()?,
            Step::GlobalFence => ep.block_on(ep.global_fence([other.node()]))?,
            Step::OwnStore(value) => beside.word.store(value),
            Step::OwnLoad => read.push(beside.word.load()),
            Step::Locked(value) => {
                let mut locked = beside.locked.lock();
                *locked = *locked * 2 + value;
                read.push(*locked);
            }
        }
    }
    for put in unawaited {
        put.wait()?;
    }
    Ok(())
}

/// A scenario of a program, whose outcomes are collected.
fn scenario(program: &Program, outcomes: &Outcomes) -> Scenario {
    let (program, outcomes) = (program.clone(), Arc::clone(outcomes));
    let may_fail = program.faults.is_some();
    let (rule, faults) = program.faults.clone().unwrap_or((DeathRule::System, Faults::new()));
    let scenario = Scenario::new("test/program", "a random program", 2, move |stage| {
        let regions: Vec<Region> =
            stage.nodes().iter().map(|node| node.alloc(GroupKey::DATA, WORDS * 8)).collect::<Result<_>>()?;
        let read = Arc::new(Mutex::new(vec![Vec::new(); 2]));
        let beside = Arc::new([Own::default(), Own::default()]);
        for (me, steps) in program.threads.iter().enumerate() {
            let (node, other) = (program.nodes[me], program.nodes[1 - me]);
            let (steps, own, read, beside) =
                (steps.clone(), regions[node].clone(), Arc::clone(&read), Arc::clone(&beside));
            let other = regions[other].remote(0);
            stage.thread(node, "program", move |ep| {
                let mut found = Vec::new();
                let ended = perform(&steps, ep, &own, other, &beside[node], &mut found);
                if ended.is_err() {
                    found.push(u64::MAX);
                }
                read.lock().unwrap()[me] = found;
                if may_fail { Ok(()) } else { ended }
            });
        }
        let outcomes = Arc::clone(&outcomes);
        stage.finally(move || {
            let mut outcome: Vec<u64> = read.lock().unwrap().concat();
            for (node, (own, region)) in beside.iter().zip(&regions).enumerate() {
                // What was in the memory of a dead node is nobody's business.
                match crate::crashed(node) {
                    true => outcome.push(u64::MAX),
                    false => {
                        outcome.extend([own.word.load(), *own.locked.lock()]);
                        outcome.extend([region.word(0).load(), region.word(8).load()]);
                    }
                }
            }
            outcomes.lock().unwrap().insert(outcome);
            Ok(())
        });
        Ok(())
    });
    if may_fail { scenario.rule(rule).faults(faults) } else { scenario }
}

/// The outcomes of a program, if they were all seen within so many executions.
fn all_outcomes(program: &Program, is_reduced: bool, executions: u64) -> Option<(BTreeSet<Vec<u64>>, u64)> {
    let outcomes = Outcomes::default();
    let scenario = scenario(program, &outcomes);
    let search = Exhaustive::with_reduction(is_reduced);
    for count in 1..=executions {
        let outcome = run(&scenario, search.chooser(), false);
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
    // What nobody reads any more is part of the state, too: its first step's order shows at the end only, and goes with
    // each outcome of the race that follows.
    let two_races =
        |first, second| [vec![first, Step::Load(0), Step::Load(1)], vec![second, Step::CpuAdd(0), Step::CpuAdd(1)]];
    let last_words = [two_races(Step::OwnStore(1), Step::OwnStore(2)), two_races(Step::Locked(1), Step::Locked(2))];
    // And so is what an operation brought.
    let brought = [
        [vec![Step::Get(0), Step::Load(0), Step::Load(1)], vec![Step::CpuAdd(0), Step::Put(0, 3), Step::Put(1, 3)]],
        [vec![Step::Faa(0), Step::Load(0), Step::Load(1)], vec![Step::CpuAdd(0), Step::Put(0, 3), Step::Put(1, 3)]],
    ];
    // And how far a thread has come, though what it stores again leaves memory as it was.
    let again = || [Step::Store(0, 1), Step::Fence].into_iter().cycle().take(4).collect::<Vec<_>>();
    let same_again = [again(), vec![Step::CpuAdd(0), Step::Store(1, 2), Step::Load(0)]];
    let directed =
        last_words.into_iter().chain([same_again]).map(|threads| Program { threads, nodes: [0, 0], faults: None });
    let mut directed = directed.chain(brought.map(|threads| Program { threads, nodes: [0, 1], faults: None }));
    while compared < 60 {
        let program = directed.next().unwrap_or_else(|| Program::random(&mut rng, 3));
        let executions_max = if compared < 5 { 300_000 } else { 3000 };
        let Some((plain, plain_count)) = all_outcomes(&program, false, executions_max) else { continue };
        let (reduced, reduced_count) = all_outcomes(&program, true, executions_max).expect("a reduction reduces");
        assert_eq!(reduced, plain, "{program:?}");
        assert!(reduced_count <= plain_count, "{program:?}");
        compared += 1;
        plain_executions += plain_count;
        reduced_executions += reduced_count;
    }
    assert!(reduced_executions * 3 < plain_executions, "{reduced_executions} of {plain_executions}");
}

#[test]
fn the_reductions_lose_no_outcome_of_a_fault() {
    let mut rng = SmallRng::seed_from_u64(11);
    // With a cut even the smallest program has too many executions to look at all of them.
    let all = [
        (DeathRule::System, Faults::new().crashes(1).of([1])),
        (DeathRule::Majority, Faults::new().crashes(1).of([1])),
        (DeathRule::Majority, Faults::new().stalls(1).of([1])),
    ];
    for faults in all {
        let (mut compared, mut tried) = (0, 0);
        while compared < 8 && tried < 60 {
            tried += 1;
            let program = Program { nodes: [0, 1], faults: Some(faults.clone()), ..Program::random(&mut rng, 1) };
            let Some((plain, _)) = all_outcomes(&program, false, 20_000) else { continue };
            let (reduced, _) = all_outcomes(&program, true, 20_000).expect("a reduction reduces");
            assert_eq!(reduced, plain, "{program:?}");
            compared += 1;
        }
        assert!(compared >= 3, "{compared} programs with {faults:?} are small enough");
    }
}

#[test]
fn random_executions_show_nothing_that_the_exhaustive_search_does_not() {
    let mut rng = SmallRng::seed_from_u64(7);
    for seed in 0..40 {
        let program = Program::random(&mut rng, 4);
        let Some((reduced, _)) = all_outcomes(&program, true, 20_000) else { continue };
        let outcomes = Outcomes::default();
        let report = check(&scenario(&program, &outcomes), Budget::executions(300), seed);
        assert!(report.finding.is_none(), "{program:?}: {:?}", report.finding);
        let random = outcomes.lock().unwrap();
        assert!(random.is_subset(&reduced), "{program:?}: {:?}", random.difference(&reduced).next());
        // And nearly everything that there is shows.
        assert!(random.len() * 2 >= reduced.len(), "{program:?}: {} of {}", random.len(), reduced.len());
    }
}
