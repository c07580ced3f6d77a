//! Chains of read-modify-writes, each of which writes a value made of the one that it has read: few of the many
//! combinations of values are consistent.

use std::collections::BTreeSet;

use mowgli::enumerate::{Detail, consistent};
use mowgli::litmus::{Test, Value};
use mowgli::model::Models;

fn states(text: &str) -> BTreeSet<Vec<Value>> {
    let mut models = Models::builtin();
    let adds = "library adds extends x86tso method Add(x: word, n) -> v { CAS: read x v, write x v + n }";
    models.load("adds", adds).expect("a model");
    let test = Test::parse("chain", text, &models).expect("a test");
    consistent(&test, Detail::Shown).expect("not too many").states.into_keys().collect()
}

/// The reads of sequentially consistent threads, by all their interleavings.
fn interleaved(adds: [usize; 2]) -> BTreeSet<Vec<Value>> {
    let mut all = BTreeSet::new();
    let steps = [adds[0] + 1, adds[1] + 1]; // the last one reads
    for order in 0u32..1 << (steps[0] + steps[1]) {
        if order.count_ones() as usize != steps[1] {
            continue;
        }
        let (mut x, mut done, mut read) = (0, [0, 0], [Vec::new(), Vec::new()]);
        for at in 0..steps[0] + steps[1] {
            let thread = (order >> at & 1) as usize;
            read[thread].push(Value::number(x));
            done[thread] += 1;
            x += i64::from(done[thread] <= adds[thread]);
        }
        all.insert(read.concat());
    }
    all
}

#[test]
fn three_additions_and_a_read_of_each_of_two_threads() {
    let of = |thread: &str| {
        let adds = (0..3).map(|at| format!("let {thread}{at} = Add(x, 1);")).collect::<String>();
        format!("{adds} let {thread}3 = Read(x);")
    };
    let names = ["a", "b"].map(|thread| (0..4).map(move |at| format!("{thread}{at}")));
    let is = |thread: usize, name: String| format!("{thread}:{name}=0");
    let [a, b] = names;
    let shown: Vec<String> = a.map(|name| is(0, name)).chain(b.map(|name| is(1, name))).collect();
    let (one, two) = (of("a"), of("b"));
    let text = format!("adds t {{ x@1; }} P0@1 {{ {one} }} P1@1 {{ {two} }} exists ({})", shown.join(" /\\ "));
    assert_eq!(states(&text), interleaved([3, 3]));
}

/// Here the processor is atomic with nothing, and the last value is the sum of the additions.
#[test]
fn three_remote_additions_and_a_read_of_each_of_two_threads() {
    let of = |z: char| {
        let add = |at| format!("RFaa(d{at}, {z}, x, 1); Wait(d{at});");
        format!("{} let r = Read({z});", [0, 1, 2].map(add).concat())
    };
    let (one, two) = (of('z'), of('w'));
    let text =
        format!("rdmarmw t {{ x@3; z@1; w@2; }} P0@1 {{ {one} }} P1@2 {{ {two} }} exists (0:r=0 /\\ 1:r=0 /\\ x=0)");
    let states = states(&text);
    // The last of all additions finds 5; the other thread's third one finds 2 to 4.
    let numbers = [2, 3, 4].map(|other| [(5, other), (other, 5)]).concat();
    let expected = numbers.iter().map(|(a, b)| [*a, *b, 6].map(Value::number).to_vec()).collect();
    assert_eq!(states, expected);
}
