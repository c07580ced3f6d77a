//! Libraries are monotone and decomposable, on the executions of the suite and of random programs; the language of
//! polls is not.
//!
//! `FARFIELD_PROGRAMS` changes how many programs.

use std::path::Path;

use mowgli::compose::{Looked, decomposable, monotone};
use mowgli::litmus::Test;
use mowgli::model::Models;
use mowgli::random::{Size, client, cycle, program};

fn programs() -> u64 {
    std::env::var("FARFIELD_PROGRAMS").map_or(30, |text| text.parse().expect("a number"))
}

/// Small programs in the methods of a library.
fn texts(library: &str) -> Vec<String> {
    let size = Size { nodes: 2, threads: 3, calls: 5 };
    let seeds = 0..programs();
    match library {
        // Their broadcasts can land in many orders: 10,000 executions for each.
        "sv" => (0..programs() / 15).map(|seed| client(library, seed)).collect(),
        "bal" | "rbl" | "msw" => seeds.map(|seed| client(library, seed)).collect(),
        _ => seeds.flat_map(|seed| [program(library, seed, size), cycle(library, seed, size)]).collect(),
    }
}

fn each(library: &str, check: impl Fn(&Test) -> Looked) -> Looked {
    let models = Models::builtin();
    let mut all = Looked::default();
    for text in texts(library) {
        let test = Test::parse("t", &text, &models).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let looked = check(&test);
        all.executions += looked.executions;
        all.cases += looked.cases;
        if looked.broken.is_some() {
            println!("{text}{:?}", looked.broken);
            return Looked { broken: looked.broken, ..all };
        }
    }
    println!("{library}: {} executions, {} cases", all.executions, all.cases);
    all
}

const LIBRARIES: [&str; 7] = ["x86tso", "rdmawait", "rdmarmw", "sv", "bal", "rbl", "msw"];

/// Checks the programs of all libraries, on all cores.
fn hold(libraries: &[&str], check: impl Fn(&Test) -> Looked + Sync) {
    std::thread::scope(|scope| {
        for library in libraries {
            let check = &check;
            scope.spawn(move || {
                let looked = each(library, check);
                assert!(looked.broken.is_none() && looked.cases > looked.executions, "{library}: {looked:?}");
            });
        }
    });
}

#[test]
fn libraries_are_decomposable() {
    hold(&LIBRARIES, |test| decomposable(test, 1).expect("it is small"));
}

/// LOCO paper, Fig. 3: which operation a poll takes depends on all others.
#[test]
fn the_language_of_polls_is_not_decomposable() {
    let looked = each("rdmatso", |test| decomposable(test, 1).expect("it is small"));
    assert!(looked.broken.is_some(), "{looked:?}");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("litmus/paper/fig_3b.litmus");
    let text = std::fs::read_to_string(file).expect("a test of the suite");
    let test = Test::parse("fig_3b", &text, &Models::builtin()).unwrap();
    let broken = decomposable(&test, 1).unwrap().broken.expect("a part that is not consistent");
    assert_eq!(broken, ["P0: Put(z, x)", "P0: Poll(2)", "P0: Write(x, 1)"]);
}

#[test]
fn libraries_are_monotone() {
    hold(&[&LIBRARIES[..], &["rdmatso"]].concat(), |test| monotone(test, 1).expect("it is small"));
}

/// What counts the calls of the whole program depends on all of them.
#[test]
fn a_library_that_counts_is_not_decomposable() {
    let mut models = Models::builtin();
    let text = "library pairs object cell(home) starts 0
        method Write(x: cell, v) { CW: write x v }
        let so = 0
        empty CW \\ domain((CW * CW) \\ id) as not_alone";
    models.load("pairs", text).unwrap_or_else(|error| panic!("{error}"));
    let text = "pairs t { x@1; y@1; } P0@1 { Write(x, 1); Write(y, 1); } exists (true)";
    let test = Test::parse("t", text, &models).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(decomposable(&test, 1).unwrap().broken.unwrap(), ["P0: Write(x, 1)"]);
}
