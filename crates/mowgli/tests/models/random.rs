//! Random programs: the declarative models and the machine have the same outcomes, and a model with a mistake in it has
//! not.
//!
//! `FARFIELD_PROGRAMS` changes how many; so does `FARFIELD_CALLS` how large they are.

use std::collections::BTreeSet;

use mowgli::enumerate::{Detail, consistent};
use mowgli::explore::{NotThere, outcomes};
use mowgli::litmus::{Test, Value};
use mowgli::model::Models;
use mowgli::random::{Size, cycle, program};

fn number(variable: &str, or: u64) -> u64 {
    std::env::var(variable).map_or(or, |text| text.parse().expect("a number"))
}

/// How the outcomes of a program differ, if they do.
fn difference(models: &Models, text: &str) -> Option<String> {
    difference_from(models, text, outcomes)
}

type Machine = fn(&Test) -> Result<BTreeSet<Vec<Value>>, NotThere>;

fn difference_from(models: &Models, text: &str, outcomes: Machine) -> Option<String> {
    let test = Test::parse("random", text, models).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let declared: BTreeSet<_> = match consistent(&test, Detail::States) {
        Ok(declared) => declared.states.into_keys().collect(),
        Err(error) => panic!("{error}\n{text}"),
    };
    let machine = outcomes(&test).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let names: Vec<_> = test.observables().into_iter().map(|observable| test.name_of(observable)).collect();
    (declared != machine).then(|| {
        let by_models: Vec<_> = declared.difference(&machine).collect();
        let by_machine: Vec<_> = machine.difference(&declared).collect();
        format!(
            "{text}\n{names:?}\nby the models: {declared:?}\non the machine: {machine:?}\n\
             only by the models: {by_models:?}\nonly on the machine: {by_machine:?}"
        )
    })
}

#[test]
fn the_models_and_the_machine_have_the_same_outcomes() {
    let models = Models::builtin();
    let size = Size { nodes: 3, threads: 4, calls: number("FARFIELD_CALLS", 5) as usize };
    let each = number("FARFIELD_PROGRAMS", 500).div_ceil(8);
    for model in ["x86tso", "rdmawait", "rdmatso", "rdmarmw"] {
        for seed in 0..each {
            for text in [program(model, seed, size), cycle(model, seed, size)] {
                if let Some(difference) = difference(&models, &text) {
                    panic!("{difference}");
                }
            }
        }
    }
}

/// Programs of the CPU alone, on a machine that has nothing else.
#[test]
fn the_model_of_the_cpu_is_the_tso_machine() {
    let models = Models::builtin();
    let size = Size { nodes: 1, threads: 4, calls: number("FARFIELD_CALLS", 8) as usize };
    for seed in 0..number("FARFIELD_PROGRAMS", 500).div_ceil(2) {
        for text in [program("x86tso", seed, size), cycle("x86tso", seed, size)] {
            if let Some(difference) = difference_from(&models, &text, mowgli::tso::outcomes) {
                panic!("{difference}");
            }
        }
    }
}

/// One ingredient of a model is left out or turned round: a random program shows it, the one with this seed. After a
/// change of the programs, the test searches for others and names them.
#[test]
fn every_ingredient_of_the_models_shows() {
    let mutants: &[(u64, &str, &str, &str, &str)] = &[
        (25, "x86tso", "x86tso", "empty rb & ([CR]; po^-1; [CW]) as own", "let own = rb"),
        (353, "rdma", "rdmawait", "let ib = (ippo | iso |", "let ib = (ppo | iso |"),
        (273, "rdma", "rdmawait", "let ib = (ippo | iso | rf", "let ib = (ippo | rf"),
        (273, "rdma", "rdmawait", "| [~(CW | NLW | NRW)]; ib", ""),
        (32, "x86tso", "rdmawait", "empty rb & ([CR]; po^-1; [CW]) as own", "let own = rb"),
        (353, "rdma", "rdmawait", "pfg | nfo | rb | mo", "pfg | rb | mo"),
        (69, "rdma", "rdmawait", "rfe | pfg | nfo", "rfe | pfg | pfp | nfo"),
        (25, "rdma", "rdmawait", "so = iso | rfe | pfg", "so = iso | pfg"),
        (273, "rdmawait", "rdmawait", "let pfp = [NRW]; po & tag; [WT]", ""),
        (145, "rdmawait", "rdmawait", "[NLW]; po & tag; [WT]", "[NLW]; po; [WT]"),
        (663, "rdmarmw", "rdmarmw", "let more = ao | [NAW]; iso^-1; [NAR]; ao", ""),
        (1507, "rdmatso", "rdmatso", "nth(NRW | NLW, WT, int & sn) & po", "(((NRW | NLW) * WT) & int & sn & po)"),
    ];
    for (seed, changed, model, from, to) in mutants {
        let mut models = Models::builtin();
        // What extends the changed one is read again.
        for name in ["x86tso", "rdma", "rdmawait", "rdmatso", "rdmarmw"] {
            let file = format!("{}/models/{name}", env!("CARGO_MANIFEST_DIR"));
            let mut text = std::fs::read_to_string(&file).expect("a model");
            if name == *changed {
                assert!(text.contains(from), "{name} has no `{from}`");
                text = text.replace(from, to);
            }
            models.load(&file, &text).unwrap_or_else(|error| panic!("{error}"));
        }
        let size = Size { nodes: 2, threads: 3, calls: 6 };
        let shows = |seed: &u64| difference(&models, &program(model, *seed, size)).is_some();
        if !shows(seed) {
            panic!("{changed}: program {seed} does not show `{from}` any more; {:?} does", (0..3000).find(shows));
        }
        // It is the change that shows.
        assert_eq!(difference(&Models::builtin(), &program(model, *seed, size)), None);
    }
}
