//! Programs over a memory in which everything happens at once.

use std::collections::BTreeSet;

use super::*;
use crate::enumerate::{Detail, consistent};

/// Sequential memory: whatever begins is done.
struct Sequential<'a> {
    words: &'a mut [i64],
    /// The nodes of operations that were not polled.
    unpolled: Vec<usize>,
    nodes: Vec<usize>,
    rounds_left: usize,
    said: Vec<String>,
}

impl Memory for Sequential<'_> {
    type Error = String;

    fn write(&mut self, at: usize, value: i64) -> Result<(), String> {
        self.words[at] = value;
        Ok(())
    }
    fn read(&mut self, at: usize) -> Result<i64, String> {
        Ok(self.words[at])
    }
    fn cas(&mut self, at: usize, old: i64, new: i64) -> Result<i64, String> {
        let found = self.words[at];
        self.words[at] = if found == old { new } else { found };
        Ok(found)
    }
    fn mfence(&mut self) -> Result<(), String> {
        Ok(())
    }
    fn put(&mut self, _: usize, to: usize, from: usize) -> Result<(), String> {
        self.unpolled.push(self.nodes[to]);
        self.words[to] = self.words[from];
        Ok(())
    }
    fn get(&mut self, _: usize, to: usize, from: usize) -> Result<(), String> {
        self.unpolled.push(self.nodes[from]);
        self.words[to] = self.words[from];
        Ok(())
    }
    fn rfence(&mut self, node: usize) -> Result<(), String> {
        self.said.push(format!("rfence {node}"));
        Ok(())
    }
    fn wait(&mut self, id: usize) -> Result<(), String> {
        self.said.push(format!("wait {id}"));
        Ok(())
    }
    fn poll(&mut self, node: usize) -> Result<bool, String> {
        let oldest = self.unpolled.iter().position(|other| *other == node);
        Ok(oldest.map(|oldest| self.unpolled.remove(oldest)).is_some())
    }
    fn rmw(&mut self, rmw: Rmw) -> Result<(), String> {
        let found = self.words[rmw.at];
        self.words[rmw.into] = found;
        self.words[rmw.at] = match rmw.change {
            Change::CompareAndSwap(old, new) if found == old => new,
            Change::CompareAndSwap(..) => found,
            Change::Add(addend) => found + addend,
        };
        Ok(())
    }
    fn on_object(&mut self, call: &ObjectCall, value: Value) -> Result<Value, String> {
        self.said.push(format!("{call:?} {value}"));
        Ok(Value::None)
    }
    fn again(&mut self) -> Result<bool, String> {
        self.rounds_left = self.rounds_left.checked_sub(1).ok_or("it goes round and round")?;
        Ok(self.rounds_left > 0)
    }
}

fn prepared(text: &str) -> Prepared {
    prepare("t.litmus", text, &Models::builtin()).unwrap_or_else(|error| panic!("{error}"))
}

/// Runs the threads one after the other: the observed values, or the error of one; and its output.
fn in_turn(prepared: &Prepared, rounds_max: usize) -> (Result<Vec<Value>, Stopped<String>>, Vec<String>) {
    let plan = &prepared.plan;
    let mut words: Vec<i64> = plan.words.iter().map(|word| word.starts).collect();
    let nodes: Vec<usize> = plan.words.iter().map(|word| word.node).collect();
    let mut registers: Vec<Vec<Value>> = Vec::new();
    let mut said = Vec::new();
    for program in &plan.threads {
        let mut own = vec![Value::None; program.registers];
        let nodes = nodes.clone();
        let mut memory =
            Sequential { words: &mut words, unpolled: Vec::new(), nodes, rounds_left: rounds_max, said: Vec::new() };
        let ran = program.run(&mut own, &mut memory);
        said.append(&mut memory.said);
        if let Err(stopped) = ran {
            return (Err(stopped), said);
        }
        registers.push(own);
    }
    (Ok(plan.outcome(|thread, register| registers[thread][register].clone(), |word| words[word])), said)
}

fn numbers(prepared: &Prepared) -> Vec<i64> {
    let (outcome, _) = in_turn(prepared, 1);
    outcome.expect("it runs to its end").iter().map(|value| value.as_number().expect("a number")).collect()
}

#[test]
fn calls_reach_the_memory() {
    let x86 = prepared(
        "x86tso t { x@1 = 3; y@1; } P0@1 { let a = CAS(x, 3, 5); Mfence(); let b = Read(x); Write(y, b + 1); }
         exists (0:a=3 /\\ 0:b=5 /\\ y=6)",
    );
    assert_eq!(numbers(&x86), [3, 5, 6]);
    assert_eq!(x86.holds(&[3, 5, 6].map(Value::number)), Some(true));
    assert_eq!(x86.holds(&[3, 5, 7].map(Value::number)), Some(false));

    let rdma = prepared(
        "rdmarmw t { x@1 = 1; y@2; z@1; o@1; } P0@1 { Put(d, y, x); Rfence(2); Get(e, z, y); Wait(e); RFaa(f, o, y, 4);
         RCas(f, z, y, 5, 7); } exists (y=7 /\\ z=5 /\\ o=1)",
    );
    assert_eq!(numbers(&rdma), [7, 5, 1]);
    assert_eq!(in_turn(&rdma, 1).1, ["rfence 1", "wait 1"]);
}

#[test]
fn an_rmw_is_private_if_no_thread_reads_its_result() {
    let plan = prepared(
        "rdmarmw t { x@1; o@2; p@2; } P0@2 { RFaa(d, o, x, 1); RFaa(d, p, x, 1); let a = Read(p); } exists (0:a=1)",
    );
    let rmws = plan.plan.threads[0].steps.iter().filter_map(|step| match step {
        Step::Call(_, Operation::RFaa(rmw, _)) => Some(rmw.is_private),
        _ => None,
    });
    assert_eq!(rmws.collect::<Vec<_>>(), [true, false]);
}

#[test]
fn a_poll_is_for_the_oldest_operation_and_has_to_find_one() {
    let text = |polls: &str| format!("rdmatso t {{ x@1 = 1; y@2; }} P0@1 {{ Put(y, x); {polls} }} exists (y=1)");
    assert_eq!(numbers(&prepared(&text("Poll(2);"))), [1]);
    assert_eq!(in_turn(&prepared(&text("Poll(2); Poll(2);")), 1).0, Err(Stopped::NotFinished));
}

/// The enumeration explores two rounds; a run continues until it is stopped.
#[test]
fn a_loop_goes_on_in_its_last_round() {
    let text = "x86tso t { x@1; y@1; } P0@1 { let a = 0; loop 2 { let a = a + 1; if a == 5 { break; } } Write(y, a); }
                exists (0:a=5 /\\ y=5)";
    let prepared = prepared(text);
    assert_eq!(in_turn(&prepared, 2).0, Err(Stopped::NotFinished));
    let outcome = in_turn(&prepared, 9).0.expect("it finds what it loops for");
    assert_eq!(outcome, [5, 5].map(Value::number));
    assert_eq!(in_turn(&prepared, 0).0, Err(Stopped::Memory("it goes round and round".to_owned())));
}

#[test]
fn a_test_that_cannot_run_says_why() {
    let refused = |text: &str| match prepare("t.litmus", text, &Models::builtin()) {
        Ok(prepared) => in_turn(&prepared, 1).0.expect_err("it is refused").to_string(),
        Err(error) => error.to_string(),
    };
    assert_eq!(refused("x86tso t {"), "t.litmus:1:11: an object is expected here, and this is the end");
    let pair = "x86tso t { x@1 = (1, 2); } P0@1 { Write(x, 1); } exists (x=1)";
    assert_eq!(refused(pair), "a word holds a number, and `x` is (1,2) at first");
    let none = "x86tso t { x@1; } P0@1 { let a = none; Write(x, a); } exists (x=1)";
    assert_eq!(refused(none), "a word holds a number, not none");
    let mut models = Models::builtin();
    models
        .load("m", "library m object cell(home) starts 0 method Peek(x: cell) -> v { CR: read x v } let so = 0")
        .expect("it is one");
    let error =
        prepare("t", "m t { cell x@1; } P0@1 { let a = Peek(x); } exists (0:a=0)", &models).expect_err("no words");
    assert_eq!(error.to_string(), "`m.Peek` works on no words, and no implementation of it is built in");
}

/// One thread at a time is an execution like any other: every test of the suite that reaches its end then shows an
/// allowed outcome.
#[test]
fn one_thread_after_the_other_is_allowed_everywhere() {
    let suite = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("litmus");
    let (mut ended, mut expanded) = (0, 0);
    for directory in std::fs::read_dir(suite).expect("the suite") {
        for file in std::fs::read_dir(directory.expect("an entry").path()).expect("a part of the suite") {
            let file = file.expect("an entry").path();
            if file.extension().is_none_or(|kind| kind != "litmus") {
                continue;
            }
            let prepared = prepared(&std::fs::read_to_string(&file).expect("a test"));
            expanded += usize::from(!prepared.over.is_empty());
            // A wait for a later thread never ends.
            let Ok(outcome) = in_turn(&prepared, 3).0 else { continue };
            let allowed = consistent(&prepared.test, Detail::Shown).expect("it is small");
            let allowed: BTreeSet<Vec<Value>> = allowed.states.into_keys().collect();
            assert!(allowed.contains(&outcome), "{}: {outcome:?}", file.display());
            assert!(!prepared.is_open, "{}", file.display());
            ended += 1;
        }
    }
    assert!(ended > 100 && expanded > 10, "{ended} {expanded}");
}

#[test]
fn calls_on_objects_stay_calls() {
    let on_objects = |text: &str| prepare_on_objects("t", text, &Models::builtin());
    let text = "rdmawait, sv, rbl t { x@1; y@2 = 1; shared s; ring r(P0, P0); }
        P0@1 { Get(d, x, y); sv.Write(s, 3); Bcast(e, s, {2}); GF({2}); let a = sv.Read(s); let b = Submit(r, (1, 2)); }
        exists (x=1 /\\ s@1=0)";
    let prepared = on_objects(text).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((&prepared.over[..], prepared.is_open), (&["SharedVar".to_owned(), "RingBuffer".to_owned()][..], true));
    assert!(prepared.is_on_objects());
    let (outcome, said) = in_turn(&prepared, 1);
    let wanted = [
        "Write(0) 3",
        "Broadcast { id: 1, object: 0, nodes: [1] } none",
        "GlobalFence(Some(0), [1]) none",
        "Read(0) none",
        "Submit(1) (1,2)",
    ];
    assert_eq!((outcome, said), (Ok(vec![Value::number(1)]), wanted.map(str::to_owned).to_vec()));

    for (text, why) in [
        (
            "bal t { barrier b(P0, P1, P2); } P0@1 { BAR(b); } P1@1 { BAR(b); } P2@2 { BAR(b); } exists (true)",
            "`b` does not fit an object that ships: a Barrier has as many threads on each of its nodes",
        ),
        (
            "bal t { barrier b(P0, P1); } P0@1 { BAR(b); } P1@2 { let a = 1; if a == 1 { BAR(b); } } exists (true)",
            "has an `if` or a `loop`",
        ),
        ("msw t { wide x@1 = (1, 1); } P0@1 { Write(x, (2, 2)); } exists (true)", "which are 0 at first"),
        (
            "msw t { wide x@1 = (0, 0); wide y@2 = (0, 0); } P0@1 { Get(d, x, y); let a = TryRead(x); } exists (true)",
            "`Wait` follows the `Get`",
        ),
        (
            "msw t { wide x@1 = (0, 0); wide y@2 = (0, 0); wide z@3 = (0, 0); } P0@1 { Put(d, y, x); Put(d, z, x); }
             exists (true)",
            "put to several places",
        ),
    ] {
        let error = on_objects(text).expect_err(why).to_string();
        assert!(error.contains(why), "{error}");
    }
}
