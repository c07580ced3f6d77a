//! Calls of the libraries above words that stay calls: each is made on an object of the test's runner.
//!
//! Shared variables, barriers and ring buffers are objects as the test declares them. The places of `msw` are copies of
//! an object with one writer: the writer writes its own place, a place that is put to is the copy on that node, and one
//! that is got into is the pair that the thread has fetched. Tests that use them otherwise are refused, with the
//! reason.

use std::collections::BTreeSet;

use super::*;
use crate::litmus::TestThread;

/// An object that calls are made on.
///
/// ```
/// # use mowgli::{model::Models, run::{ObjectKind, prepare_on_objects}};
/// let text = "bal t { barrier b(P0, P1); } P0@1 { BAR(b); } P1@2 { BAR(b); } exists (true)";
/// let plan = prepare_on_objects("t.litmus", text, &Models::builtin())?.plan;
/// assert_eq!((plan.objects[0].name.as_str(), &plan.objects[0].kind), ("b", &ObjectKind::Barrier(vec![0, 1])));
/// # Ok::<(), mowgli::run::NotRunnable>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedObject {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: ObjectKind,
}

/// The description of an object. Threads and nodes are numbered as in the [`Plan`].
///
/// ```
/// # use mowgli::{model::Models, run::{ObjectKind, prepare_on_objects}};
/// let text = "rbl t { ring r(P0, P1); } P0@1 { let a = Submit(r, 7); } P1@2 { let b = Receive(r); } exists (true)";
/// let plan = prepare_on_objects("t.litmus", text, &Models::builtin())?.plan;
/// assert_eq!(plan.objects[0].kind, ObjectKind::Ring { writer: 0, readers: vec![1] });
/// # Ok::<(), mowgli::run::NotRunnable>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ObjectKind {
    /// A word with a copy on every node (`sv`), and the initial value of each copy.
    Shared(i64),
    /// A barrier (`bal`) of these threads.
    Barrier(Vec<usize>),
    /// A ring buffer (`rbl`).
    Ring {
        /// The thread that sends.
        writer: usize,
        /// The threads that receive.
        readers: Vec<usize>,
    },
    /// A pair of words that one thread writes and pushes (`msw`).
    Owned {
        /// The node that it belongs to.
        owner: usize,
        /// The thread that writes it, if one does.
        writer: Option<usize>,
    },
    /// The pair that a thread has fetched of an object.
    Fetched,
}

/// A call that is made on an object: its number among [`Plan::objects`].
///
/// ```
/// # use mowgli::{litmus::Value, run::ObjectCall};
/// /// The value of a shared variable with a single copy, after some calls on it that write this value.
/// fn after(calls: &[ObjectCall], value: Value) -> Value {
///     let writes = calls.iter().any(|call| matches!(call, ObjectCall::Write(_)));
///     if writes { value } else { Value::number(0) }
/// }
/// assert_eq!(after(&[ObjectCall::Read(0)], Value::number(7)), Value::number(0));
/// assert_eq!(after(&[ObjectCall::Write(0), ObjectCall::Read(0)], Value::number(7)), Value::number(7));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ObjectCall {
    /// Writes this node's copy of a shared variable.
    Write(usize),
    /// Reads this node's copy of a shared variable.
    Read(usize),
    /// Begins to push this node's copy of a shared variable.
    Broadcast {
        /// The number of its name.
        id: usize,
        /// The variable.
        object: usize,
        /// To these nodes.
        nodes: Vec<usize>,
    },
    /// Fences these nodes globally, by a shared variable if there is one.
    GlobalFence(Option<usize>, Vec<usize>),
    /// Waits at a barrier.
    Arrive(usize),
    /// Sends a message if there is room: 1, or 0.
    Submit(usize),
    /// Receives a message if there is one.
    Receive(usize),
    /// Writes the owner's copy of a pair.
    WritePair(usize),
    /// Reads this node's copy of a pair, if it is whole.
    TryReadPair(usize),
    /// Pushes a pair to the other nodes.
    PushPair(usize),
    /// Fetches a pair from its owner, and waits for it.
    FetchPair {
        /// The pair.
        object: usize,
        /// The target of the fetched value.
        into: usize,
    },
    /// Reads the last fetched value.
    ReadFetched(usize),
}

/// The objects of a test, and which is which.
pub(super) struct Objects {
    pub(super) planned: Vec<PlannedObject>,
    /// By the number of the test's object.
    of: Vec<Option<usize>>,
    are_used: bool,
}

impl Objects {
    /// None: all calls are on words.
    pub(super) fn none(test: &Test) -> Objects {
        Objects { planned: Vec::new(), of: vec![None; test.objects.len()], are_used: false }
    }

    pub(super) fn of(test: &Test) -> Result<Objects, NotRunnable> {
        let pairs = Pairs::of(test)?;
        let mut objects = Objects { are_used: true, ..Objects::none(test) };
        for (at, object) in test.objects.iter().enumerate() {
            let threads = |attribute: &str| -> Vec<usize> {
                let found = object.threads.iter().find(|(name, _)| name == attribute);
                found.map_or(Vec::new(), |(_, threads)| threads.clone())
            };
            let kind = match object.kind.as_str() {
                "shared" => {
                    let starts = object.starts.clone().unwrap_or(Value::number(0));
                    let number = starts.as_number().ok_or_else(|| NotRunnable::Starts(object.name.clone(), starts))?;
                    ObjectKind::Shared(number)
                }
                "barrier" => ObjectKind::Barrier(meets(test, at, threads("members"))?),
                "ring" => ring(test, at, threads("writer"), threads("readers"))?,
                "wide" if pairs.gets.iter().any(|moved| moved.to == at) => ObjectKind::Fetched,
                "wide" if pairs.puts.iter().any(|moved| moved.to == at) => continue,
                "wide" => {
                    let home = object.home.expect("it has a home");
                    let owner = node_of(test, home);
                    ObjectKind::Owned { owner, writer: pairs.writer(at) }
                }
                _ => continue,
            };
            objects.of[at] = Some(objects.planned.len());
            objects.planned.push(PlannedObject { name: object.name.clone(), kind });
        }
        // The target of a put is the copy, on its node, of the source.
        for moved in &pairs.puts {
            objects.of[moved.to] = objects.of[moved.from];
        }
        Ok(objects)
    }

    /// The operation of a call, if it is one on objects, and the value that it is passed.
    pub(super) fn operation(&self, test: &Test, call: &Call) -> Option<Operation> {
        let (mut id, mut value, mut nodes, mut named) = (NAMELESS, None, Vec::new(), Vec::new());
        for argument in &call.arguments {
            match argument {
                Argument::Id(name) => id = *name,
                Argument::Value(expression) => value = Some(expression.clone()),
                Argument::Object(object) => named.push((test.objects[*object].kind.as_str(), self.of[*object])),
                Argument::Nodes(all) => nodes.extend(all.iter().map(|node| node_of(test, *node))),
                Argument::Node(_) => {}
            }
        }
        let made = match (call.method.as_str(), named.as_slice()) {
            ("GF", []) if self.are_used => {
                let is_shared = |object: &PlannedObject| matches!(object.kind, ObjectKind::Shared(_));
                ObjectCall::GlobalFence(self.planned.iter().position(is_shared), nodes)
            }
            ("Write", [("shared", Some(object))]) => ObjectCall::Write(*object),
            ("Read", [("shared", Some(object))]) => ObjectCall::Read(*object),
            ("Bcast", [("shared", Some(object))]) => ObjectCall::Broadcast { id, object: *object, nodes },
            ("BAR", [("barrier", Some(object))]) => ObjectCall::Arrive(*object),
            ("Submit", [("ring", Some(object))]) => ObjectCall::Submit(*object),
            ("Receive", [("ring", Some(object))]) => ObjectCall::Receive(*object),
            ("Write", [("wide", Some(object))]) => ObjectCall::WritePair(*object),
            ("TryRead", [("wide", Some(object))]) => match self.planned[*object].kind {
                ObjectKind::Fetched => ObjectCall::ReadFetched(*object),
                _ => ObjectCall::TryReadPair(*object),
            },
            ("Put", [("wide", _), ("wide", Some(object))]) => ObjectCall::PushPair(*object),
            ("Get", [("wide", Some(into)), ("wide", Some(object))]) => {
                ObjectCall::FetchPair { object: *object, into: *into }
            }
            _ => return None,
        };
        Some(Operation::Object(made, value))
    }
}

fn node_of(test: &Test, number: crate::litmus::NodeNumber) -> usize {
    test.nodes.binary_search(&number).expect("a test knows its nodes")
}

fn misfit<T>(test: &Test, object: usize, why: &str) -> Result<T, NotRunnable> {
    Err(NotRunnable::Misfit(test.objects[object].name.clone(), why.to_owned()))
}

fn thread_calls(thread: &TestThread) -> impl Iterator<Item = &Call> {
    thread.code.iter().filter_map(|instruction| match instruction {
        Instruction::Call(_, call) => Some(call),
        _ => None,
    })
}

fn names(call: &Call, object: usize) -> bool {
    call.arguments.iter().any(|argument| *argument == Argument::Object(object))
}

/// The members of a barrier. A wait for an absent member would never end.
fn meets(test: &Test, barrier: usize, members: Vec<usize>) -> Result<Vec<usize>, NotRunnable> {
    let on = |node| members.iter().filter(|member| test.threads[**member].node == node).count();
    let mut counts = test.nodes.iter().map(|node| on(*node)).filter(|count| *count > 0);
    let first = counts.next();
    if counts.any(|count| Some(count) != first) {
        return misfit(test, barrier, "a Barrier has as many threads on each of its nodes");
    }
    let rounds = |member: &usize| thread_calls(&test.threads[*member]).filter(|call| names(call, barrier)).count();
    if members.iter().any(|member| rounds(member) != rounds(&members[0])) {
        return misfit(test, barrier, "its members call it equally often");
    }
    for (at, thread) in test.threads.iter().enumerate() {
        if !thread_calls(thread).any(|call| names(call, barrier)) {
            continue;
        }
        if !members.contains(&at) {
            return misfit(test, barrier, "a thread that is no member calls it");
        }
        let is_straight = |step: &Instruction| matches!(step, Instruction::Call(..) | Instruction::Set(..));
        if !thread.code.iter().all(is_straight) {
            let why = "a thread that calls it has an `if` or a `loop`, so the others may wait for it for ever";
            return misfit(test, barrier, why);
        }
    }
    Ok(members)
}

fn ring(test: &Test, ring: usize, writer: Vec<usize>, readers: Vec<usize>) -> Result<ObjectKind, NotRunnable> {
    let Some(writer) = writer.first().copied().filter(|_| !readers.is_empty()) else {
        return misfit(test, ring, "a RingBuffer has a writer and a reader");
    };
    for (at, thread) in test.threads.iter().enumerate() {
        for call in thread_calls(thread).filter(|call| names(call, ring)) {
            let may = if call.method == "Submit" { at == writer } else { readers.contains(&at) };
            if !may {
                return misfit(test, ring, "a RingBuffer is for its one writer and its readers");
            }
        }
    }
    Ok(ObjectKind::Ring { writer, readers })
}

/// How the pairs of a test move.
struct Pairs {
    puts: Vec<Moved>,
    gets: Vec<Moved>,
    /// The threads that write or put each.
    writers: Vec<(usize, usize)>,
}

struct Moved {
    thread: usize,
    to: usize,
    from: usize,
}

impl Pairs {
    fn of(test: &Test) -> Result<Pairs, NotRunnable> {
        let mut pairs = Pairs { puts: Vec::new(), gets: Vec::new(), writers: Vec::new() };
        let is_wide = |object: usize| test.objects[object].kind == "wide";
        let mut written = BTreeSet::new();
        for (thread, TestThread { code, .. }) in test.threads.iter().enumerate() {
            for (at, instruction) in code.iter().enumerate() {
                let Instruction::Call(_, call) = instruction else { continue };
                let named = call.arguments.iter().filter_map(|argument| match argument {
                    Argument::Object(object) => Some(*object).filter(|object| is_wide(*object)),
                    _ => None,
                });
                match (call.method.as_str(), named.collect::<Vec<_>>().as_slice()) {
                    ("Write", [object]) => {
                        written.insert(*object);
                        pairs.writers.push((thread, *object));
                    }
                    ("Put", [to, from]) => {
                        pairs.writers.push((thread, *from));
                        pairs.puts.push(Moved { thread, to: *to, from: *from });
                    }
                    ("Get", [to, from]) => {
                        // A call that continues beside others would read later than the test describes.
                        let waits = |next: &Call| next.method == "Wait" && next.arguments[..] == call.arguments[..1];
                        if !matches!(code.get(at + 1), Some(Instruction::Call(_, next)) if waits(next)) {
                            return misfit(test, *to, "a pull of an OwnedVar is waited for: `Wait` follows the `Get`");
                        }
                        pairs.gets.push(Moved { thread, to: *to, from: *from });
                    }
                    _ => {}
                }
            }
        }
        pairs.fit(test, &written)?;
        Ok(pairs)
    }

    fn writer(&self, object: usize) -> Option<usize> {
        self.writers.iter().find(|(_, written)| *written == object).map(|(thread, _)| *thread)
    }

    /// Whether each is a variable with one writer, or a copy of one.
    fn fit(&self, test: &Test, written: &BTreeSet<usize>) -> Result<(), NotRunnable> {
        let zeros = Value::Numbers([0, 0].into_iter().collect());
        for (at, object) in test.objects.iter().enumerate().filter(|(_, object)| object.kind == "wide") {
            if object.starts.as_ref() != Some(&zeros) {
                return misfit(test, at, "an OwnedVar is run as a pair of words, which are 0 at first");
            }
            let threads: BTreeSet<usize> =
                self.writers.iter().filter(|(_, it)| *it == at).map(|(thread, _)| *thread).collect();
            if threads.len() > 1 || threads.iter().any(|thread| Some(test.threads[*thread].node) != object.home) {
                return misfit(test, at, "an OwnedVar has one writer, on its owner's node");
            }
            let puts = || self.puts.iter().filter(move |moved| moved.from == at);
            if puts().any(|put| puts().any(|other| other.to != put.to)) {
                return misfit(test, at, "a push of an OwnedVar goes to all nodes, and this is put to several places");
            }
            if puts().any(|put| test.objects[put.to].home == object.home) {
                return misfit(test, at, "a push of an OwnedVar goes to other nodes");
            }
            let sources: BTreeSet<(bool, usize)> = (self.puts.iter().map(|put| (true, put)))
                .chain(self.gets.iter().map(|get| (false, get)))
                .filter(|(_, moved)| moved.to == at)
                .map(|(is_put, moved)| (is_put, moved.from))
                .collect();
            let is_source = self.puts.iter().chain(&self.gets).any(|moved| moved.from == at);
            if sources.len() > 1 || !sources.is_empty() && (is_source || written.contains(&at)) {
                return misfit(test, at, "an OwnedVar has one writer, and this is written in several ways");
            }
            if let Some(get) = self.gets.iter().find(|get| get.to == at) {
                let others = test.threads.iter().enumerate().filter(|(thread, _)| *thread != get.thread);
                if others.into_iter().any(|(_, other)| thread_calls(other).any(|call| names(call, at))) {
                    return misfit(test, at, "what an OwnedVar's pull brings goes to the thread that pulls");
                }
            }
        }
        Ok(())
    }
}
