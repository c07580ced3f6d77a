//! What the parsers make of each word of a text: every word of texts that use the whole language is left out, doubled,
//! exchanged with the next, and replaced. The message with its position, or the meaning of the text, is pinned for all.
//! A test that fails prints its table; a change of the language that is intended changes it, too.

use std::rc::Rc;

use mowgli::litmus::{Implementation, Test};
use mowgli::model::Models;

/// A model with all that one may have.
const MODEL: &str = "library mail
object sheet(home)
object box(home) starts 0
object ring(home, writer, readers)
object sheet() starts 3
method Look(b: box) -> v { CR: read b v }
method Drop(b: box, v) { CW: write b v }
method Swap(b: box, old, v) -> found if found == old { CAS: touch b, read b found, write b v }
                            -> found if found != old { CAS: read b found }
method Send(d: id, b: remote box, n: node, v) { NLR[here] then NRW[n]: write b v + 1; RF[b.home] }
method All(s: sheet, to: nodes, v) { for n in to \\ here { NLR[n] then NRW[n]: write s@n v } }
method Tell(r: ring, s: sheet, v) { for n in nodes(r.readers) { NRW[n]: write s@n v + v } for n in nodes { WT[n] } }
pick rf in (W * R) & loc & val
orient mo in (W * W) & loc \\ id
let fr = (rf^-1; mo) \\ id
let so = iso | rf | mo | fr | ~(po^?) & 0 | [R]; po^+ ; [W] | domain(rf) * range(mo^*)
let far = nth(R, W, po) ; po
let none_met = unmet(R, readers)
acyclic rf as order
acyclic so | po as order
irreflexive fr; mo as fresh
empty rf & 0 as nothing
empty none_met as all_met";

/// A test of two models, with loops, conditions and values of several parts.
const TEST: &str = "mail, sv t \"why\" {
    box b@1; box c@2 = 7; sheet s; ring r@1(P0, P1);
}
P0@1 {
    Drop(b, 1);
    let a = Look(b);
    let z = a + 2 - 3;
    if a == 1 { Drop(b, a + 1); } else { Drop(b, -4); }
    loop 3 {
        let a = Look(b);
        if a >= 2 { break; }
        if 5 > a { Send(d, c, 3, a); }
        loop 2 { break; }
    }
    loop 2 { Drop(b, 2); }
    let pair = (a, 4, none);
    if pair.1 != (none) { All(s, {1, 2}, pair.0); }
    mail.Tell(r, s, (1, -2));
}
P1@2 {
    let q = Swap(c, 0, 5);
    if q <= 7 { let q = Look(c); }
}
exists (0:a=1 /\\ ~(1:q=2 \\/ b=0) /\\ s@2=3)";

/// An implementation with all that one may have, and a test that uses it.
const IMPLEMENTATION: &str = "implementation post of mail over rdmawait, sv
global { word idle@1; for n in {1, 2} { word spare[n]@n; } }
object box b {
    word b.first@b.home = b.starts;
    word b.second@b.home = 2 * b.starts + 1;
    for n in nodes { word b.copy[n]@n; }
    for i in 0..2 { word b.part[i]@b.home; }
}
object sheet s { shared s.all; }
object ring r { for t in r.readers { shared r.taken[t]; } shared r.head; }
Look(b) {
    let own.count = own.count + 1;
    let a = Read(b.first);
    for i in 0..2 { let p = Read(b.part[i]); if p == i { return a; } }
    if a == none { return Read(b.second); }
    return (a + own.count).0;
}
Drop(b, v) {
    Write(b.first, v);
    Write(b.copy[here], v.0);
    let own.seen[here] = v;
    let w = v;
    Write(b.second, w);
    Write(spare[here], w - 1);
}
Send(d, b, n, v) { Put(d, b.copy[n], b.copy[here]); Rfence(n); rdmawait.Wait(d); if v == 2 { return 0; } Rfence(b.home); }
All(s, to, v) { Write(s.all, v); Bcast(told, s.all, to \\ here); for n in to { Rfence(n); } }
Tell(r, s, v) {
    for t in r.readers { let m = Read(r.taken[t]); if m > 0 { return 0; } }
    Bcast(head, r.head, nodes(r.readers));
    let h = Read(r.taken[me]);
}
Swap(b, old, v) { return CAS(b.first, old, v); }";

const CLIENT: &str = "mail, sv t { box b@1; box c@2 = 7; sheet s; ring r@1(P0, P0, P1); }
P0@1 { Drop(b, 1); let a = Look(b); Send(d, b, 2, a); All(s, {1, 2}, (a, 2)); Tell(r, s, a); }
P1@2 { Drop(c, 2); let e = Look(c); let n = Look(c); }
exists (0:a=1)";

fn models() -> Models {
    let mut models = Models::builtin();
    models.load("mail", MODEL).unwrap_or_else(|error| panic!("{error}"));
    models
}

fn of_model(known: &Models, text: &str) -> Result<String, String> {
    let mut models = known.clone();
    models.load("m", text).map(|library| format!("{library:?}")).map_err(|error| error.to_string())
}

fn of_test(models: &Models, text: &str) -> Result<String, String> {
    Test::parse("t", text, models).map(|test| meaning(&test)).map_err(|error| error.to_string())
}

/// A test with this implementation.
fn of_implementation(models: &Models, text: &str) -> Result<String, String> {
    let implementation = Implementation::parse("i", text, &[]).map_err(|error| error.to_string())?;
    let test = Test::expand("t", CLIENT, models, &[Rc::new(implementation)]).map_err(|error| error.to_string())?;
    Ok(meaning(&test))
}

/// All but the libraries.
fn meaning(test: &Test) -> String {
    let Test { name, reason, objects, threads, nodes, shown, quantifier, question, .. } = test;
    format!("{name} {reason} {objects:?} {threads:?} {nodes:?} {shown:?} {quantifier:?} {question}")
}

fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for next in text.chars() {
        match words.last_mut() {
            Some(last) if next.is_alphanumeric() && last.ends_with(char::is_alphanumeric) => last.push(next),
            _ => words.push(next.to_string()),
        }
    }
    words
}

/// The text with each word changed in several ways.
fn changed(text: &str) -> Vec<String> {
    let words = words(text);
    let mut all = Vec::new();
    for at in (0..words.len()).filter(|at| !words[*at].trim().is_empty()) {
        let with = |instead: &[&str]| [words[..at].concat(), instead.concat(), words[at + 1..].concat()].concat();
        all.push(with(&[]));
        all.push(with(&[&words[at], " ", &words[at]]));
        for instead in ["none", "own", "b", "v", "for", "0", "2", "65", ".", "(", ";", "\\", "return"] {
            all.push(with(&[instead]));
        }
        if let Some(next) = (at + 1..words.len()).find(|next| !words[*next].trim().is_empty()) {
            let mut swapped = words.clone();
            swapped.swap(at, next);
            all.push(swapped.concat());
        }
        // The text ends here.
        all.push(words[..at].concat());
    }
    all
}

fn row(name: &str, text: &str, said: impl Fn(&str) -> Result<String, String>) -> String {
    said(text).unwrap_or_else(|error| panic!("{error}"));
    let (mut good, mut bad, mut digest) = (0, 0, 0u64);
    for text in changed(text) {
        let said = said(&text);
        *if said.is_ok() { &mut good } else { &mut bad } += 1;
        // FNV-1a.
        for byte in said.unwrap_or_else(|error| error).bytes() {
            digest = (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
        }
    }
    format!("{name:<15} {good:>5} good {bad:>5} bad {digest:016x}")
}

#[test]
fn each_word_has_its_meaning() {
    let (builtin, models) = (Models::builtin(), models());
    let rows = [
        row("model", MODEL, |text| of_model(&builtin, text)),
        row("test", TEST, |text| of_test(&models, text)),
        row("implementation", IMPLEMENTATION, |text| of_implementation(&models, text)),
    ];
    let expected = [
        "model             351 good  5972 bad d492bbaef038f188",
        "test              272 good  4147 bad 7b2fae643d97f755",
        "implementation    590 good  7705 bad 99d89c11bc84f48e",
    ];
    assert!(rows.iter().eq(&expected), "the table is now\n{}", rows.join("\n"));
}

/// The largest of each, and what is larger by one.
#[test]
fn bounds_are_exact() {
    let models = models();
    let threads = |count: usize| {
        let threads: String = (0..count).map(|thread| format!("P{thread}@1 {{ }} ")).collect();
        format!("mail t {{ box b@1; }} {threads} exists (true)")
    };
    let thread = |body: &str| format!("mail t {{ box b@1; }} P0@1 {{ {body} }} exists (true)");
    let calls = |count: usize| thread(&"Drop(b, 1); ".repeat(count));
    let sum = |count: usize| thread(&format!("let a = 1{};", " + 1".repeat(count)));
    let node = |node: u64| format!("mail t {{ box b@{node}; }} P0@1 {{ }} exists (true)");
    let to = |node: u64| thread(&format!("Send(d, b, {node}, 1);"));
    let rounds = |count: u64| thread(&format!("loop {count} {{ }}"));
    let nested = |depth: usize| thread(&format!("{}{}", "if 1 == 1 { ".repeat(depth), "} ".repeat(depth)));
    let brackets = |depth: usize| thread(&format!("let a = {}1{};", "(".repeat(depth), ")".repeat(depth)));
    let many = |count: usize| thread(&"let a = (1); ".repeat(count));
    let statements = |more: &str| thread(&format!("loop 63 {{ loop 64 {{ loop 2 {{ }} }} }} loop 64 {{ }} {more}"));
    let ring = |starts: &str| format!("mail t {{ ring r@1(P0){starts}; }} P0@1 {{ }} exists (true)");
    let of_two =
        |libraries: &str| format!("{libraries} t {{ word x@1; }} P0@1 {{ rdmawait.Write(x, 1); }} exists (true)");
    for (good, bad, problem) in [
        (threads(16), threads(17), "t:1:171: threads are named from P0 to P15"),
        (thread(""), threads(1).replace("P0", "P00"), "t:1:21: threads are named from P0 to P15"),
        (calls(1024), calls(1025), "a thread has at most 1024 steps, with all rounds of its loops"),
        (sum(63), sum(64), "more than 64 operands"),
        (node(1), node(0), "t:1:16: nodes have numbers from 1 to 64"),
        (node(64), node(65), "t:1:16: nodes have numbers from 1 to 64"),
        (to(1), to(0), "`n` is a node, from 1 to 64"),
        (to(64), to(65), "`n` is a node, from 1 to 64"),
        (rounds(1), rounds(0), "t:1:33: a loop runs between 1 and 64 times"),
        (rounds(64), rounds(65), "t:1:33: a loop runs between 1 and 64 times"),
        (nested(64), nested(65), "this nests deeper than 64 levels"),
        (brackets(64), brackets(65), "this nests deeper than 64 levels"),
        (many(100), many(1025), "a thread has at most 1024 steps"),
        // All rounds of all loops, and whichever statement is one too many.
        (statements("loop 63 { }"), statements("loop 64 { }"), "t:1:75: a thread has"),
        (statements("loop 1 { loop 61 { } }"), statements("loop 1 { loop 62 { } }"), "t:1:75: a thread has"),
        (statements("loop 1 { loop 61 { } }"), statements("loop 1 { loop 63 { } }"), "t:1:84: a thread has"),
        (thread("let a = (1, 2); let c = a.0;"), thread("let a = (1, 2); let c = a.0(1);"), "t:1:55: `;`"),
        (ring(""), ring(" = 1"), "a `ring` has no initial value"),
        (of_two("rdmawait, x86tso"), of_two("x86tso, rdmawait"), "`x` is a word"),
    ] {
        assert!(of_test(&models, &good).is_ok(), "{:?}: {good}", of_test(&models, &good));
        let said = of_test(&models, &bad).expect_err(problem);
        assert!(said.contains(problem), "{said}\n{bad}");
    }
    let said = of_test(&Models::default(), &thread("")).expect_err("there are no models");
    assert_eq!(said, "t:1:1: there is no model `mail`; known are none");
    let lets = |count: usize| {
        let lets: String = (1..count).map(|n| format!("let a{n} = rf ")).collect();
        format!("library m pick rf in po {lets} let so = rf")
    };
    let join = |symbol: &str, count: usize| format!("library m let so = po{}", format!("{symbol} po ").repeat(count));
    let behind = |count: usize| format!("library m let so = po{}", "^+".repeat(count));
    let sum = |count: usize| format!("{MODEL} method More(b: box) {{ CW: write b 1{} }}", " + 1".repeat(count));
    let without = |count: usize| {
        format!("{MODEL} method More(b: box) {{ for n in nodes{} {{ CW: write b 1 }} }}", " \\ here".repeat(count))
    };
    let takes = |what: &str| format!("{MODEL} method More(x: {what}) {{ WT }}");
    for (good, bad, problem) in [
        (takes("id"), takes("remote id"), "there are no objects of the kind `id`"),
        (takes("node"), takes("remote node"), "there are no objects of the kind `node`"),
        (takes("nodes"), takes("remote nodes"), "there are no objects of the kind `nodes`"),
        (lets(256), lets(257), "m:1:11: more than 256 definitions"),
        (join("|", 63), join("|", 64), "more than 64 operands: name a part of them by `let`"),
        (behind(63), behind(64), "more than 64 operators behind an operand"),
        (sum(63), sum(64), "more than 64 operands"),
        (without(63), without(64), "more than 64 operands"),
    ] {
        assert!(of_model(&models, &good).is_ok(), "{:?}: {good}", of_model(&models, &good));
        let said = of_model(&models, &bad).expect_err(problem);
        assert!(said.contains(problem), "{said}\n{bad}");
    }
}
