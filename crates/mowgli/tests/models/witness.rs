//! Witnesses, cycles and their pictures: for every test of the suite they agree with the verdict, and their claims
//! hold.

use std::path::{Path, PathBuf};

use mowgli::draw;
use mowgli::enumerate::{Detail, consistent};
use mowgli::litmus::{Quantifier, Test};
use mowgli::model::Models;
use mowgli::random::{Size, program};
use mowgli::stamp::Stamp;
use mowgli::witness::{Answer, Cycle, Edge, Graph, find};

fn files() -> Vec<PathBuf> {
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("litmus");
    let mut files = Vec::new();
    for directory in std::fs::read_dir(suite).expect("the suite") {
        let directory = directory.expect("an entry").path();
        let entries = std::fs::read_dir(directory).expect("a part of the suite");
        files.extend(entries.map(|entry| entry.expect("an entry").path()));
    }
    files.retain(|file| file.extension().is_some_and(|kind| kind == "litmus"));
    files.sort();
    files
}

/// Every test of the suite, with its text and its answer.
fn suite() -> impl Iterator<Item = (Test, String, Answer)> {
    let models = Models::builtin();
    files().into_iter().map(move |file| {
        let text = std::fs::read_to_string(&file).expect("a test");
        let test = Test::parse(&file.display().to_string(), &text, &models).unwrap_or_else(|error| panic!("{error}"));
        let answer = find(&test).unwrap_or_else(|error| panic!("{}: {error}", test.name));
        (test, text, answer)
    })
}

fn test(text: &str, models: &Models) -> Test {
    Test::parse("test", text, models).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_witness_is_found_where_there_is_one() {
    let (mut witnesses, mut cycles) = (0, 0);
    for (test, _, answer) in suite() {
        let outcomes = consistent(&test, Detail::Executions).expect("it was enumerated");
        let wanted = if test.quantifier == Quantifier::Forall { outcomes.negative } else { outcomes.positive };
        match &answer {
            Answer::Witness(graph) => {
                assert!(wanted > 0, "{}: a witness of what does not happen", test.name);
                let seen: Vec<_> = graph.seen.iter().map(|seen| seen.1.clone()).collect();
                assert!(outcomes.states.contains_key(&seen), "{}: {seen:?} is not seen", test.name);
                witnesses += 1;
            }
            Answer::Forbidden(..) => {
                assert_eq!(wanted, 0, "{}: a cycle in what happens", test.name);
                cycles += 1;
            }
            Answer::Impossible => assert_eq!(wanted, 0, "{}: what happens is called impossible", test.name),
        }
    }
    assert!(witnesses > 40 && cycles > 50, "{witnesses} witnesses, {cycles} cycles");
}

/// Whether the label of an edge fits its ends, as far as they are known without the models.
fn is_plausible(graph: &Graph, edge: &Edge) -> bool {
    let (label, from, to) = match edge.label.strip_suffix("^-1") {
        Some(label) => (label, edge.to, edge.from),
        None => (edge.label.as_str(), edge.from, edge.to),
    };
    if !graph.relations.get(label).unwrap_or_else(|| panic!("{edge:?} is of no relation")).has(from, to) {
        return false;
    }
    let (a, b) = (&graph.subevents[from], &graph.subevents[to]);
    let (Some(here), Some(there)) = (a.call, b.call) else { return false };
    let is_later = graph.calls[here].thread == graph.calls[there].thread && here < there;
    let is_same_place = a.place.is_some() && a.place == b.place;
    match label {
        "po" | "ppo" | "ippo" => is_later,
        "iso" => here == there && from + 1 == to,
        "rf" | "rfe" => is_same_place && a.writes.is_some() && a.writes == b.reads,
        "rb" => is_same_place && a.reads.is_some() && b.writes.is_some(),
        "mo" => is_same_place && a.writes.is_some() && b.writes.is_some(),
        "nfo" => graph.calls[here].thread == graph.calls[there].thread && a.node == b.node,
        "ao" => is_same_place && a.stamp == Some(Stamp::Nar) && b.stamp == Some(Stamp::Nar),
        "pfg" => is_later && a.stamp == Some(Stamp::Nlw) && b.stamp == Some(Stamp::Wt),
        "pfp" => is_later && a.stamp == Some(Stamp::Nrw) && b.stamp == Some(Stamp::Wt),
        "fb" => is_same_place && a.stamp == Some(Stamp::Wt) && b.writes.is_some(),
        "bal.so" => a.stamp == Some(Stamp::Gf) && b.stamp == Some(Stamp::Cr),
        _ => false,
    }
}

/// It is closed, its edges are real, and it passes nothing twice.
fn check(test: &str, graph: &Graph, Cycle { law, at, edges }: &Cycle) {
    assert!(!edges.is_empty() && edges[0].from == *at, "{test}: {law}");
    for (index, edge) in edges.iter().enumerate() {
        assert_eq!(edge.to, edges[(index + 1) % edges.len()].from, "{test}: {edges:?}");
        assert!(is_plausible(graph, edge), "{test}: {edge:?} in {graph:?}");
    }
    let mut passed: Vec<usize> = edges.iter().map(|edge| edge.from).collect();
    passed.sort_unstable();
    passed.dedup();
    assert_eq!(passed.len(), edges.len(), "{test}: it could be shorter: {edges:?}");
}

#[test]
fn cycles_are_closed_and_made_of_their_stated_edges() {
    for (test, _, answer) in suite() {
        if let Answer::Forbidden(graph, cycle) = answer {
            check(&test.name, &graph, &cycle);
        }
    }
}

/// A cycle as text.
fn path(graph: &Graph, cycle: &Cycle) -> String {
    let edges = cycle.edges.iter().map(|edge| format!("{} -{}->", graph.subevents[edge.from], edge.label));
    edges.collect::<Vec<_>>().join(" ")
}

#[test]
fn known_cycles_are_the_known_ones() {
    let known = [
        ("SB_fences", "CW x=1 -ppo-> MF -ppo-> CR y=0 -rb-> CW y=1 -ppo-> MF -ppo-> CR x=0 -rb->"),
        ("MP", "CW x=1 -ppo-> CW y=1 -rfe-> CR y=1 -ppo-> CR x=0 -rb->"),
        ("CoRR", "CW x=1 -rfe-> CR x=1 -ppo-> CR x=0 -rb->"),
        ("W2_2", "CW x=1 -ppo-> CW y=2 -mo-> CW y=1 -ppo-> CW x=2 -mo->"),
        ("IRIW", "CW x=1 -rfe-> CR x=1 -ppo-> CR y=0 -rb-> CW y=1 -rfe-> CR y=1 -ppo-> CR x=0 -rb->"),
        ("r1", "CR x=0 -rb-> CW x=1 -po->"),
        ("fig_3d", "NLR₂ x=1 -iso-> NRW₂ z=1 -pfp-> WT -ppo-> CW x=1 -rfe->"),
        // The nfo between put and get agrees with ppo; reversing it would break more than the test is about.
        (
            "fig_4_bottom",
            "NRW₂ y=1 -ppo-> NLW₂ r=0 -pfg-> WT -ppo-> CR x=0 -rb-> \
             NRW₁ x=1 -ppo-> NLW₁ s=0 -pfg-> WT -ppo-> CR y=0 -rb->",
        ),
        ("fig_22", "NRW₂ z=1 -ppo-> GF₂ -bal.so-> CR -ppo-> NRR₂ z=0 -rb->"),
        ("fig_23", "NRW₂ x@2=1 -ppo-> GF₂ -bal.so-> CR -ppo-> WT x@2 -fb->"),
        ("n1", "RF₂ -ppo-> NLR₂ x=0 -nfo-> NLW₂ x=1 -ippo->"),
        ("rmw_loopback", "NAW₁ x=5 -iso^-1-> NAR₁ x=0 -ao-> NAR₁ x=0 -rb->"),
    ];
    let mut found = 0;
    for (test, _, answer) in suite() {
        let Some((_, expected)) = known.iter().find(|known| known.0 == test.name) else { continue };
        let Answer::Forbidden(graph, cycle) = answer else { panic!("{} is forbidden", test.name) };
        assert_eq!(path(&graph, &cycle), *expected, "{}", test.name);
        found += 1;
    }
    assert_eq!(found, known.len());
}

#[test]
fn a_law_about_single_subevents_has_no_cycle() {
    let mut models = Models::builtin();
    models.load("slow", "library slow extends x86tso\nempty MF as no_fences").expect("a model");
    let test = test("slow fenced \"It's <no> & use.\" { x@1; } P0@1 { Mfence(); Write(x, 1); } ~exists (x=1)", &models);
    let answer = find(&test).expect("it is small");
    let Answer::Forbidden(graph, cycle) = &answer else { panic!("it has a fence") };
    assert_eq!((cycle.law.as_str(), cycle.edges.len()), ("the law `no_fences` of slow", 0));
    assert_eq!(graph.subevents[cycle.at].stamp, Some(Stamp::Mf));
    let picture = Picture::of(&draw::svg(&test, &answer));
    assert!(picture.texts.contains(&"It's <no> & use.".to_owned()), "{:?}", picture.texts);
    assert!(picture.texts.iter().any(|text| text.contains("no_fences")), "{:?}", picture.texts);
}

#[test]
fn every_operator_is_explained() {
    let laws = [
        ("irreflexive [CR]; po^-1; (rf^-1)^?; po^* as odd", "CR y=0 -po^-1-> CR x=0 -po->"),
        ("irreflexive (po | po^-1)^+ & id as odd", "CR x=0 -po-> CR y=0 -po^-1->"),
        ("acyclic (po & (R * R)) | (([R]; (po^-1)^*; [R]) \\ id) as odd", "CR x=0 -po-> CR y=0 -po^-1->"),
        ("empty po & (R * R) as odd", "CR x=0 -po-> CR y=0 -odd.law^-1->"),
        ("empty (W * R) & loc \\ po^-1 as odd", "x=0 -odd.law-> CR x=0 -loc->"),
    ];
    for (law, expected) in laws {
        let mut models = Models::builtin();
        models.load("odd", &format!("library odd extends x86tso\n{law}")).unwrap_or_else(|error| panic!("{error}"));
        let text = "odd reads { x@1; y@1; } P0@1 { let a = Read(x); let b = Read(y); } ~exists (0:a=0)";
        let test = test(text, &models);
        let answer = find(&test).expect("it is small");
        let Answer::Forbidden(graph, cycle) = &answer else { panic!("{law} holds") };
        assert_eq!(path(graph, cycle), expected, "{law}");
        assert_eq!(Picture::of(&draw::svg(&test, &answer)).all("label").len(), cycle.edges.len(), "{law}");
    }
}

#[test]
fn a_value_that_cannot_be_read_is_impossible() {
    let models = Models::builtin();
    let test = test("x86tso air { x@1; } P0@1 { let a = Read(x); } ~exists (0:a=1)", &models);
    let answer = find(&test).expect("it is small");
    assert!(matches!(answer, Answer::Impossible), "{answer:?}");
    assert!(Picture::of(&draw::svg(&test, &answer)).texts.contains(&"air: never".to_owned()));
}

#[test]
fn a_call_is_written_with_the_register_of_the_way_that_was_taken() {
    let models = Models::builtin();
    let text = "x86tso ways { x@1; y@1; }
        P0@1 { let a = Read(x); if a == 1 { let b = Read(y); } else { let c = Read(x); } let t = a + 1; Write(x, t); }
        P1@1 { Write(x, 1); }
        exists (0:a=1)";
    let Answer::Witness(graph) = find(&test(text, &models)).expect("it is small") else { panic!("it can be read") };
    let texts: Vec<_> = graph.calls.iter().map(|call| call.text.as_str()).collect();
    assert_eq!(texts, ["let a = Read(x)", "let b = Read(y)", "Write(x, t)", "Write(x, 1)"]);
}

/// Of random programs: an end that some execution has, and one put together of two such that none has.
#[test]
fn ends_of_random_programs_are_witnessed_or_forbidden() {
    let models = Models::builtin();
    let size = Size { nodes: 3, threads: 4, calls: 7 };
    let (mut witnesses, mut cycles) = (0, 0);
    for (model, seed) in
        ["x86tso", "rdmawait", "rdmatso", "rdmarmw"].into_iter().flat_map(|it| (0..60).map(move |at| (it, at)))
    {
        let text = program(model, seed, size);
        let outcomes =
            consistent(&test(&text, &models), Detail::States).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let names: Vec<_> = outcomes.observables.iter().map(|seen| test(&text, &models).name_of(*seen)).collect();
        let half = names.len() / 2;
        let states: Vec<_> = outcomes.states.keys().take(12).collect();
        let pairs = states.iter().flat_map(|first| states.iter().map(move |second| (first, second)));
        let mut mixed = pairs.map(|(first, second)| first[..half].iter().chain(&second[half..]).cloned().collect());
        let unseen: Option<Vec<_>> = mixed.find(|state| !outcomes.states.contains_key(state));
        for state in states.last().copied().into_iter().chain(&unseen) {
            let is: Vec<_> = names.iter().zip(state).map(|(name, value)| format!("{name}={value}")).collect();
            let question = format!("~exists ({})", is.join(" /\\ "));
            let test = test(&text.replace("exists (true)", &question), &models);
            let answer = find(&test).unwrap_or_else(|error| panic!("{error}\n{text}"));
            assert_eq!(matches!(answer, Answer::Witness(_)), outcomes.states.contains_key(state), "{text}{question}");
            match &answer {
                Answer::Witness(_) => witnesses += 1,
                Answer::Forbidden(_, cycle) if cycle.edges.is_empty() => {}
                Answer::Forbidden(graph, cycle) => {
                    check(&text, graph, cycle);
                    cycles += 1;
                }
                Answer::Impossible => {}
            }
            let picture = Picture::of(&draw::svg(&test, &answer));
            let boxes = picture.all("call");
            for label in picture.all("label") {
                assert!(label.is_in(picture.width, picture.height), "{label:?} is outside: {text}{question}");
                assert!(boxes.iter().all(|other| !label.overlaps(other)), "{label:?} is on a box: {text}{question}");
            }
        }
    }
    assert!(witnesses > 200 && cycles > 20, "{witnesses} witnesses, {cycles} cycles");
}

#[derive(Clone, Copy, Debug)]
struct Rect {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
}

impl Rect {
    fn overlaps(&self, other: &Rect) -> bool {
        // Numbers are written to a tenth.
        let gap = 0.2;
        self.x + gap < other.x + other.width
            && other.x + gap < self.x + self.width
            && self.y + gap < other.y + other.height
            && other.y + gap < self.y + self.height
    }

    fn is_in(&self, width: f64, height: f64) -> bool {
        self.x >= 0.0 && self.y >= 0.0 && self.x + self.width <= width && self.y + self.height <= height
    }
}

/// The content of a picture.
struct Picture {
    width: f64,
    height: f64,
    texts: Vec<String>,
    rects: Vec<(String, Rect)>,
}

impl Picture {
    fn of(svg: &str) -> Picture {
        let document = roxmltree::Document::parse(svg).unwrap_or_else(|error| panic!("{error}: {svg}"));
        let number = |node: &roxmltree::Node<'_, '_>, name: &str| -> f64 {
            node.attribute(name).and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name} of {node:?}"))
        };
        let root = document.root_element();
        let mut picture = Picture {
            width: number(&root, "width"),
            height: number(&root, "height"),
            texts: Vec::new(),
            rects: Vec::new(),
        };
        for node in root.descendants().filter(roxmltree::Node::is_element) {
            match node.tag_name().name() {
                "text" => picture.texts.push(node.text().unwrap_or_default().trim().to_owned()),
                "rect" => {
                    let moved = node.ancestors().find_map(|group| group.attribute("transform"));
                    let moved = moved.map_or(vec![0.0, 0.0], |moved| {
                        let inner = moved.trim_start_matches("translate(").trim_end_matches(')');
                        inner.split(' ').map(|part| part.parse().expect("a number")).collect()
                    });
                    let rect = Rect {
                        x: number(&node, "x") + moved[0],
                        y: number(&node, "y") + moved[1],
                        width: number(&node, "width"),
                        height: number(&node, "height"),
                    };
                    picture.rects.push((node.attribute("class").unwrap_or_default().to_owned(), rect));
                }
                "script" | "image" | "foreignObject" => panic!("it is not by itself: {node:?}"),
                _ => {}
            }
        }
        picture
    }

    fn all(&self, class: &str) -> Vec<Rect> {
        self.rects.iter().filter(|rect| rect.0 == class).map(|rect| rect.1).collect()
    }
}

/// A call without blanks, and without the name of its library, which may be left out.
fn plain(call: &str) -> String {
    ["rdmawait.", "sv."].iter().fold(call.replace(' ', ""), |call, library| call.replace(library, ""))
}

/// The calls in a test's text, as [`plain`]; none if it is not clear which of them happen.
fn calls(text: &str) -> Option<Vec<String>> {
    let body = &text[text.find("P0@")?..];
    if body.contains("if ") || body.contains("loop ") {
        return None;
    }
    let mut calls = Vec::new();
    for line in body.lines().map(str::trim).filter(|line| line.ends_with(");")) {
        calls.extend(line.split_terminator(';').map(plain));
    }
    Some(calls)
}

#[test]
fn pictures_show_every_call_and_nothing_is_in_the_way_of_anything() {
    let mut compared = 0;
    for (test, text, answer) in suite() {
        let picture = Picture::of(&draw::svg(&test, &answer));
        let (Answer::Witness(graph) | Answer::Forbidden(graph, _)) = &answer else { continue };
        for call in &graph.calls {
            assert!(picture.texts.contains(&call.text), "{}: {} is not in it", test.name, call.text);
        }
        if let Some(calls) = calls(&text) {
            let shown: Vec<_> = graph.calls.iter().map(|call| plain(&call.text)).collect();
            assert_eq!(shown, calls, "{}", test.name);
            compared += 1;
        }
        let (boxes, initial, labels) = (picture.all("call"), picture.all("initial"), picture.all("label"));
        assert_eq!(boxes.len(), graph.calls.len(), "{}", test.name);
        let fixed: Vec<Rect> = boxes.iter().chain(&initial).copied().collect();
        for (at, rect) in fixed.iter().enumerate() {
            assert!(rect.is_in(picture.width, picture.height), "{}: {rect:?} is outside", test.name);
            assert!(fixed[..at].iter().all(|other| !rect.overlaps(other)), "{}: {rect:?} overlaps", test.name);
        }
        for (at, label) in labels.iter().enumerate() {
            assert!(label.is_in(picture.width, picture.height), "{}: {label:?} is outside", test.name);
            assert!(fixed.iter().all(|other| !label.overlaps(other)), "{}: {label:?} on a box", test.name);
            assert!(labels[..at].iter().all(|other| !label.overlaps(other)), "{}: {label:?} on one", test.name);
        }
        for part in picture.all("subevent") {
            assert!(boxes.iter().any(|call| part.overlaps(call)), "{}: {part:?} is in no call", test.name);
        }
    }
    assert!(compared > 90, "{compared}");
}

/// Unobservable orders are not tried one by one where the condition does not hold anyway.
#[test]
fn a_test_with_many_flushes_is_answered() {
    let count = 6;
    let all = |what: &dyn Fn(usize) -> String| (0..count).map(what).collect::<String>();
    let objects = all(&|at| format!("g{at}@1; p{at}@1; r{at}@2; q{at}@2; "));
    let calls = all(&|at| format!("Get(d, g{at}, r{at}); ")) + &all(&|at| format!("Put(d, q{at}, p{at}); "));
    let text = format!(
        "rdmawait t {{ x@1; {objects} }} P0@1 {{ Write(x, 1); {calls} }} P1@1 {{ Write(x, 2); }} ~exists (x=1 /\\ x=2)"
    );
    let test = Test::parse("t", &text, &Models::builtin()).unwrap_or_else(|error| panic!("{error}"));
    assert!(matches!(find(&test), Ok(Answer::Impossible | Answer::Forbidden(..))));
}
