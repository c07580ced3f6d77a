//! A mistake in a text is reported with its position; and no text, whatever it is, causes a panic or
//! a hang.
//!
//! `FARFIELD_FUZZ_CASES` changes how many texts are tried, `FARFIELD_FUZZ_SEED` which.

mod words;

use std::path::Path;
use std::rc::Rc;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use mowgli::compose::decomposable;
use mowgli::draw::svg;
use mowgli::enumerate::{Detail, consistent};
use mowgli::explore::outcomes;
use mowgli::litmus::{Implementation, Test};
use mowgli::model::Models;
use mowgli::random::{CLIENTS, client};
use mowgli::witness::find;

fn said_of_test(text: &str) -> String {
    Test::parse("t", text, &Models::builtin()).map(|test| test.name).unwrap_or_else(|error| error.to_string())
}

fn said_of_model(text: &str) -> String {
    Models::builtin().load("m", text).map(|library| library.name.clone()).unwrap_or_else(|error| error.to_string())
}

#[test]
fn mistakes_in_tests_are_told_with_their_place() {
    let threads = |body: &str| format!("rdmawait t {{ x@1; z@2; }}\nP0@1 {{ {body} }}\nexists (x=1)");
    for (text, said) in [
        ("rdma_wait t { }", "t:1:1: there is no model `rdma_wait`; known are `bal`, `balp`, "),
        ("rdmawait t { x; }", "t:1:15: `@` and the node of `x` is expected here, and this is `;`"),
        ("rdmawait t { x@0; }", "t:1:16: nodes have numbers from 1 to 64"),
        ("rdmawait t { x@1; x@1; }", "t:1:19: there is a `x` already"),
        ("rdmawait t { ring x(P0); }", "t:1:14: there are no objects of the kind `ring`"),
        ("rbl t { ring x(P0, P1); } P0@1 { } exists (true)", "t:1:20: there is no thread P1"),
        ("rdmawait t { x@1; } P1@1 { }", "t:1:21: P0 is expected here"),
        ("rdmawait t { x@1; } P0@1 { } exists (y=1)", "t:1:38: no memory is called `y`"),
        ("rdmawait t { x@1; } P0@1 { } exists (0:a=1)", "t:1:40: P0 has no register `a`"),
        ("sv t { shared x; } P0@1 { } exists (x=1)", "t:1:37: `x` has a copy on every node: say which, as x@1"),
        (
            "rdmawait t { x@1; } P0@1 { }",
            "t:1:29: `exists`, `~exists` or `forall` is expected here, and this is the end",
        ),
        (&threads("Put(d, z);"), "t:2:8: `Put` takes 3 arguments, and here are 2"),
        (&threads("Put(d, z, z);"), "t:2:18: `y` is local, and `z` is not on node 1, where P0 runs"),
        (&threads("Put(x, z, x);"), "t:2:12: `d` is a name for operations"),
        (&threads("Write(x, a);"), "t:2:17: `v` is a value, and P0 has no register `a` here"),
        (&threads("Rfence(x);"), "t:2:15: `n` is the number of a node"),
        (&threads("Nothing();"), "t:2:8: there is no method `Nothing`; there are `CAS`, `Get`, "),
        (&threads("let x = Read(x);"), "t:2:12: `x` is an object"),
        (&threads("break;"), "t:2:8: there is no loop to leave"),
        (&threads("loop 100 { }"), "t:2:13: a loop runs between 1 and 64 times"),
        (&threads("loop 64 { loop 64 { loop 64 { loop 64 { } } } }"), "a thread has at most 1024 steps"),
        (&threads("if 1 { }"), "t:2:13: `==`, `!=`, `<`, `<=`, `>` or `>=` is expected here"),
        (
            "sv, rdmawait t { word x@1; } P0@1 { Wait(d); } exists (true)",
            "t:1:37: `Wait` of which library? `sv`, `rdmawait` have it",
        ),
    ] {
        assert!(said_of_test(text).contains(said), "{text}\n{}", said_of_test(text));
    }
}

#[test]
fn mistakes_in_models_are_told_with_their_place() {
    for (text, said) in [
        ("library m", "m:1:10: the library `m` does not define `so`"),
        ("library m extends n", "m:1:19: there is no library `n`; known are `bal`, "),
        ("library m let so = rf", "m:1:20: `rf` is no set and no relation"),
        ("library m let so = a let a = so", "m:1:20: `a` is defined by itself"),
        ("library m let so = R", "m:1:20: `so` is a relation"),
        ("library m let so = po | R", "m:1:23: one side is a set, and the other a relation"),
        ("library m let so = po ; R", "m:1:25: this is a set, where a relation is wanted"),
        ("library m let so = [po]", "m:1:21: this is a relation, where a set is wanted"),
        ("library m let so = po acyclic R as a", "m:1:31: this is a set, where a relation is wanted"),
        ("library m let so = po acyclic po", "m:1:33: `as` is expected here, and this is the end"),
        (
            "library m pick rf in po let so = rf orient mo in rf",
            "m:1:50: what `mo` is chosen from depends on what is chosen itself",
        ),
        ("library m method M(x: word) { CW } let so = po", "m:1:23: there are no objects of the kind `word`"),
        ("library m method M() { XX } let so = po", "m:1:24: `XX` is no stamp: `CR`, `CW`, "),
        ("library m method M() { } let so = po", "m:1:22: a call has at least one subevent"),
        ("library m object o(home) method M(x: o, v) { CW: write x w } let so = po", "m:1:58: `w` is no value"),
        ("library m object o() method M(x: o) { NRW[x.home] } let so = po", "m:1:43: `x` has no home"),
        (
            "library m object o(home) method M(x: o) { CW: write x@here 1 } let so = po",
            "m:1:53: `x` has a home, and no copies",
        ),
        ("library m let so = unmet(R, list) ; po", "m:1:20: no kind of objects has `list`"),
        ("library m let here = po", "m:1:15: `here` has a meaning of its own"),
        ("library m let so = so2(po)", "m:1:20: there is no function `so2`"),
    ] {
        assert!(said_of_model(text).contains(said), "{text}\n{}", said_of_model(text));
    }
    let deep = format!("library m let so = {}po{}", "(".repeat(100), ")".repeat(100));
    assert!(said_of_model(&deep).contains("nests deeper than 64 levels"));
    let wide = format!("library m let so = po{}", "|po".repeat(1000));
    assert!(said_of_model(&wide).contains("more than 64 operands"));
}

/// A model of one's own, with kinds, methods and stamps that no other has.
#[test]
fn a_model_of_ones_own_needs_no_rust() {
    let mut models = Models::builtin();
    let text = "library mail
        object box(reader) starts 0
        method Drop(b: box, v)  { for n in nodes(b.reader) { NLR[n] then NRW[n]: write b@n v } }
        method Look(b: box)     -> v { CR: read b v }
        pick rf in (W * R) & loc & val
        orient mo in (W * W) & loc \\ id
        let so = iso | rf | mo | (rf^-1; mo) \\ id";
    models.load("mail", text).unwrap();
    let test = |question: &str| {
        let text = format!(
            "mail t {{ box b(P1); }} P0@1 {{ Drop(b, 1); Drop(b, 2); }} P1@2 {{ let a = Look(b); let c = Look(b); }} \
             {question}"
        );
        let test = Test::parse("t", &text, &models).unwrap_or_else(|error| panic!("{error}"));
        consistent(&test, Detail::Executions).unwrap().is_ok(test.quantifier)
    };
    assert!(test("exists (1:a=1 /\\ 1:c=2)") && test("~exists (1:a=2 /\\ 1:c=1)"));
}

fn texts(below: &str, kind: &str) -> Vec<String> {
    let mut open = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(below)];
    let mut texts = Vec::new();
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().map_or(kind.is_empty(), |extension| extension == kind) {
                texts.push(std::fs::read_to_string(path).expect("a text"));
            }
        }
    }
    texts.retain(|text| !text.starts_with('#'));
    texts.sort();
    texts
}

const SB: &str = "x86tso t { x@1; y@1; } P0@1 { Write(x, 1); let a = Read(y); } P1@1 { Write(y, 1); let b = Read(x); }
    exists (0:a=0 /\\ 1:b=0)";
const BOXES: &str = "rdmawait t { x@1; z@2; } P0@1 { Put(d, z, x); Wait(d); Write(x, 1); } ~exists (z=1)";

/// Models that make no sense, and replace those that are built in, are asked about tests, run on the machines, and
/// drawn.
#[test]
fn odd_models_make_nothing_panic() {
    let word = "object word(home) starts 0";
    for (text, test) in [
        (
            "library x86tso object word(home) starts 0 method Write(x: word) { CW: write x 1 } let so = 0".to_owned(),
            "x86tso t { x@1; } P0@1 { Write(x); } exists (x=1)",
        ),
        (
            "library x86tso object word() starts 0 method Write(x: word, v) { CW: write x v } let so = 0".to_owned(),
            "x86tso t { word x; } P0@1 { Write(x, 1); } exists (x@1=1)",
        ),
        (
            "library odd extends x86tso let so = (W * W) \\ id".to_owned(),
            "odd t { x@1; y@1; } P0@1 { let a = Read(x); } exists (0:a=0)",
        ),
        (
            "library odd extends x86tso irreflexive loc as odd".to_owned(),
            "odd t { x@1; } P0@1 { let a = Read(x); } exists (0:a=0)",
        ),
        (
            format!("library odd {word} method Read(x: word) -> v {{ CR: read x v }} let so = 0"),
            "odd t { x@1; } P0@1 { let a = Read(x); } exists (0:a=1)",
        ),
    ] {
        let mut models = Models::builtin();
        models.load("m", &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let test = Test::parse("t", test, &models).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let answer = find(&test).unwrap();
        assert!(svg(&test, &answer).contains("</svg>"), "{text}");
        let _ = (outcomes(&test), mowgli::tso::outcomes(&test), decomposable(&test, 1).unwrap());
    }
    let many = format!("x86tso t {{ x@1; }} P0@1 {{ {} Write(x, 1); }} exists (true)", "Mfence();".repeat(90));
    let test = Test::parse("t", &many, &Models::builtin()).unwrap();
    assert!(decomposable(&test, 1).unwrap().broken.is_none());
    let more = format!(
        "x86tso t {{ x@1; }} P0@1 {{ {} }} P1@1 {{ Write(x, 1); }} exists (true)",
        "Mfence(); let a = Read(x);".repeat(300)
    );
    let test = Test::parse("t", &more, &Models::builtin()).unwrap();
    assert!(consistent(&test, Detail::States).unwrap_err().to_string().contains("subevents or more"));
}

/// Threads that wait for each other's messages have written their own before; a value may go through one call
/// repeatedly.
#[test]
fn values_are_found_along_all_ways() {
    let channel = "library chan object box(home) method Send(x: remote box, v) { CW: write x v }
        method Recv(x: remote box) -> v { CR: read x v } pick rf in (W * R) & loc & val let so = rf";
    let hop = "library hop extends x86tso method Hop(a: word, b: word, c: word, d: word, e: word) { \
        CR: read a v then CW: write b v;
        CR: read b w then CW: write c w; CR: read c y then CW: write d y; CR: read d z then CW: write e z }";
    for (model, test) in [
        (
            channel,
            "chan t { c@1; d@1; } P0@1 { Send(c, 1); let a = Recv(d); } P1@1 { let b = Recv(c); Send(d, 2); } \
             exists (0:a=2 /\\ 1:b=1)",
        ),
        (hop, "hop t { a@1; b@1; c@1; d@1; e@1; } P0@1 { Write(a, 1); Hop(a, b, c, d, e); } exists (e=1)"),
    ] {
        let mut models = Models::builtin();
        models.load("m", model).unwrap_or_else(|error| panic!("{error}"));
        let test = Test::parse("t", test, &models).unwrap_or_else(|error| panic!("{error}"));
        assert!(consistent(&test, Detail::Executions).unwrap().is_ok(test.quantifier), "{model}");
    }
}

/// Texts of which some words were taken out, doubled, exchanged, or replaced by those of others.
#[test]
fn fuzz_no_text_makes_it_panic() {
    let number = |name, default| std::env::var(name).map_or(default, |text| text.parse::<u64>().expect("a number"));
    let (cases, seed) = (number("FARFIELD_FUZZ_CASES", 10_000), number("FARFIELD_FUZZ_SEED", 1));
    let builtin = Models::builtin();
    let known = Implementation::builtin();
    let kinds = [texts("litmus", "litmus"), texts("models", ""), texts("implementations", "")];
    assert!(kinds[0].len() > 40 && kinds[1].len() > 5 && kinds[2].len() > 5);
    let words = |text: &str| -> Vec<String> {
        let mut words = Vec::new();
        for next in text.chars() {
            let joins = |last: &String| next.is_alphanumeric() && last.ends_with(char::is_alphanumeric);
            match words.last_mut() {
                Some(last) if joins(last) => last.push(next),
                _ => words.push(next.to_string()),
            }
        }
        words
    };
    let kinds = kinds.map(|texts| texts.iter().map(|text| words(text)).collect::<Vec<_>>());
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut below = |end: usize| rng.random_range(0..end);
    let (mut good, mut bad) = (0, 0);
    for case in 0..cases {
        let of = &kinds[case as usize % 3];
        let mut text = of[below(of.len())].clone();
        for _ in 0..1 + below(4) {
            let at = below(text.len());
            match below(5) {
                0 => drop(text.remove(at)),
                1 => text.insert(at, text[at].clone()),
                2 => {
                    let other = below(text.len());
                    text.swap(at, other);
                }
                3 => {
                    let from = &of[below(of.len())];
                    text[at] = from[below(from.len())].clone();
                }
                _ => {
                    text[at] =
                        ["", "0", "99999999999999999999", "é", "(", "{", "\"", "(*", "none", "64"][below(10)].into()
                }
            }
            if text.is_empty() {
                break;
            }
        }
        let text = text.concat();
        let is_good = match case % 3 {
            // A text that is still a test is small enough to be run.
            0 => {
                let test = Test::parse("t", &text, &builtin);
                test.is_ok_and(|test| consistent(&test, Detail::Executions).is_ok())
            }
            1 => {
                let mut models = builtin.clone();
                let is_good = models.load("m", &text).is_ok();
                // A text that is still a model is asked about a test, and drawn.
                let tests = [SB, BOXES];
                if let (true, Ok(test)) = (is_good, Test::parse("t", tests[below(2)], &models)) {
                    let _ = (outcomes(&test), mowgli::tso::outcomes(&test), decomposable(&test, 1));
                    let _ = find(&test).map(|answer| svg(&test, &answer));
                }
                is_good
            }
            _ => match Implementation::parse("i", &text, &known) {
                Ok(implementation) if CLIENTS.iter().any(|known| known.0 == implementation.of) => {
                    let client = client(&implementation.of, case);
                    Test::expand("t", &client, &builtin, &[Rc::new(implementation)]).is_ok()
                }
                _ => false,
            },
        };
        *if is_good { &mut good } else { &mut bad } += 1;
    }
    assert!(good * 20 > cases && bad * 20 > cases, "{good} good, {bad} bad");
}
