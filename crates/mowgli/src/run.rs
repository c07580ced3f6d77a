//! Running a litmus test on something that has memory: each thread's program, its calls made one after the other.
//!
//! The calls work on a [`Memory`]; `farfield litmus --run` has those of Farfield's fabrics. The programs are those of
//! tests over words, with the methods of `x86tso`, `rdmawait`, `rdmatso` and `rdmarmw`, or a model of one's own with
//! such methods. Tests of the libraries above run over the built-in implementations ([`prepare`]), or their calls are
//! made on objects ([`prepare_on_objects`]).
//!
//! A loop that ends by `break` continues in its last round for as long as the memory lets it. That is right for a
//! wait; a loop that counts may run longer than the enumeration explores.

use std::rc::Rc;

use crate::litmus::{
    Argument, Call, Comparison, Expression, Implementation, Instruction, Observable, Place, Test, Value,
};
use crate::model::{Models, Parameter};
use crate::trace::{compare, evaluate};

mod memory;
mod objects;

pub use memory::{Change, Memory, NAMELESS, Rmw, Stopped};
use objects::Objects;
pub use objects::{ObjectCall, ObjectKind, PlannedObject};

/// Why a test cannot be run.
///
/// ```
/// # use mowgli::{model::Models, run::{NotRunnable, prepare}};
/// let text = "x86tso t { x@1 = (1, 2); } P0@1 { Write(x, 1); } exists (x=1)";
/// let error = prepare("t.litmus", text, &Models::builtin()).unwrap_err();
/// assert!(matches!(error, NotRunnable::Starts(name, _) if name == "x"));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotRunnable {
    /// A mistake in its text.
    #[error(transparent)]
    Text(#[from] crate::text::Error),
    /// A method that nothing does.
    #[error("`{0}` works on no words, and no implementation of it is built in")]
    Method(String),
    /// Words hold numbers.
    #[error("a word holds a number, and `{0}` is {1} at first")]
    Starts(String, Value),
    /// An object that is not used as Farfield's is meant to be.
    #[error("`{0}` does not fit an object that ships: {1}")]
    Misfit(String, String),
}

/// A test, and how it is run.
///
/// ```
/// # use mowgli::{model::Models, run::prepare};
/// let text = "sv t { shared x; } P0@1 { Write(x, 1); let a = Read(x); } exists (0:a=1)";
/// let prepared = prepare("t.litmus", text, &Models::builtin())?;
/// assert_eq!(prepared.over, ["sv_rdma"]); // a shared variable is words there
/// assert!(!prepared.is_open && prepared.plan.objects.is_empty());
/// # Ok::<(), mowgli::run::NotRunnable>(())
/// ```
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The test. It shows only values that can be compared with a run.
    pub test: Test,
    /// Its programs.
    pub plan: Plan,
    /// The implementations over which it runs; or the kinds of objects that its calls are made on.
    pub over: Vec<String>,
    /// Its condition is about memory that the implementations do not have, so a run does not answer it.
    pub is_open: bool,
}

/// The programs of a test, and the words that they access.
///
/// ```
/// # use mowgli::{model::Models, run::prepare};
/// let text = "rdmawait t { x@1; z@3 = 5; } P0@1 { Put(d, z, x); Wait(d); } exists (z=0)";
/// let plan = prepare("t.litmus", text, &Models::builtin())?.plan;
/// assert_eq!((plan.threads.len(), plan.nodes, plan.words.len()), (1, 2, 2));
/// assert_eq!(plan.words[1].node, 1); // node 3 of the test is the second one
/// # Ok::<(), mowgli::run::NotRunnable>(())
/// ```
#[derive(Clone, Debug)]
pub struct Plan {
    /// The program of each thread.
    pub threads: Vec<Program>,
    /// How many nodes there are. Here they are numbered from 0.
    pub nodes: usize,
    /// The words.
    pub words: Vec<PlannedWord>,
    /// The objects that calls are made on.
    pub objects: Vec<PlannedObject>,
    seen: Vec<Seen>,
}

/// A word that programs work on.
///
/// ```
/// # use mowgli::{model::Models, run::prepare};
/// # let text = "rdmawait t { x@1; z@2 = 5; } P0@1 { Put(d, z, x); Wait(d); } exists (z=0)";
/// let plan = prepare("t.litmus", text, &Models::builtin())?.plan;
/// let z = &plan.words[1];
/// assert_eq!((z.name.as_str(), z.node, z.starts, z.mentions), ("z", 1, 5, 1));
/// # Ok::<(), mowgli::run::NotRunnable>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedWord {
    /// Its name.
    pub name: String,
    /// The node that it is on.
    pub node: usize,
    /// Its initial value.
    pub starts: i64,
    /// How many times calls name it.
    pub mentions: usize,
}

/// Where something that is seen at the end is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Seen {
    Register(usize, usize),
    Word(usize),
}

/// The program of a thread.
///
/// ```
/// # use mowgli::{model::Models, run::prepare};
/// let text = "x86tso t { x@1; y@1; } P0@1 { let a = Read(x); let b = Read(y); } exists (0:a=0)";
/// let program = prepare("t.litmus", text, &Models::builtin())?.plan.threads.remove(0);
/// assert_eq!((program.node, program.registers), (0, 2));
/// # Ok::<(), mowgli::run::NotRunnable>(())
/// ```
#[derive(Clone, Debug)]
pub struct Program {
    /// The node that it runs on.
    pub node: usize,
    /// How many registers it has.
    pub registers: usize,
    pub(crate) steps: Vec<Step>,
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Call(Option<usize>, Operation),
    Own(Own),
    /// The end of a loop's last round, which begins there.
    Again(usize),
}

impl Step {
    /// What ships that it is a call of.
    fn made_on(&self) -> Option<&'static str> {
        let Step::Call(_, Operation::Object(call, _)) = self else { return None };
        Some(match call {
            ObjectCall::Write(_) | ObjectCall::Read(_) | ObjectCall::Broadcast { .. } => "SharedVar",
            ObjectCall::GlobalFence(Some(_), _) => "SharedVar",
            ObjectCall::GlobalFence(None, _) => "global_fence",
            ObjectCall::Arrive(_) => "Barrier",
            ObjectCall::Submit(_) | ObjectCall::Receive(_) => "RingBuffer",
            ObjectCall::WritePair(_) | ObjectCall::TryReadPair(_) | ObjectCall::PushPair(_) => "OwnedVar",
            ObjectCall::FetchPair { .. } | ObjectCall::ReadFetched(_) => "OwnedVar",
        })
    }
}

/// A step that affects only its own thread.
#[derive(Clone, Debug)]
pub(crate) enum Own {
    Set(usize, Expression),
    Unless(Expression, Comparison, Expression, usize),
    Jump(usize),
}

#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Write(usize, Number),
    Read(usize),
    Cas(usize, Number, Number),
    Mfence,
    Put { id: usize, to: usize, from: usize },
    Get { id: usize, to: usize, from: usize },
    Rfence(usize),
    Wait(usize),
    Poll(usize),
    RCas(Rmw, Number, Number),
    RFaa(Rmw, Number),
    Object(ObjectCall, Option<Expression>),
}

/// A number that is passed: most are known before.
#[derive(Clone, Debug)]
pub(crate) enum Number {
    Known(i64),
    Of(Expression),
}

impl Number {
    /// Its value; the error is a value that is not a number.
    #[inline]
    pub(crate) fn of(&self, registers: &[Value]) -> Result<i64, Value> {
        match self {
            Number::Known(number) => Ok(*number),
            Number::Of(expression) => {
                let value = evaluate(registers, expression);
                value.as_number().ok_or(value)
            }
        }
    }
}

impl Program {
    /// Runs to the end. Then the registers hold the final values.
    ///
    /// ```
    /// # use mowgli::{litmus::Value, run::{Memory, Program, Stopped}};
    /// /// The final value of a thread's first register.
    /// fn first_of<M: Memory>(program: &Program, memory: &mut M) -> Result<Value, Stopped<M::Error>> {
    ///     let mut registers = vec![Value::None; program.registers];
    ///     program.run(&mut registers, memory)?;
    ///     Ok(registers.swap_remove(0))
    /// }
    /// ```
    ///
    /// # Errors
    /// The memory's, or it has not finished.
    ///
    /// # Panics
    /// If there are fewer registers than it has, as indexing a slice does.
    pub fn run<M: Memory>(&self, registers: &mut [Value], memory: &mut M) -> Result<(), Stopped<M::Error>> {
        registers.fill(Value::number(0));
        let mut at = 0;
        while let Some(step) = self.steps.get(at) {
            at += 1;
            match step {
                Step::Own(own) => own.take(&mut at, registers),
                Step::Again(to) if memory.again()? => at = *to,
                Step::Again(_) => return Err(Stopped::NotFinished),
                Step::Call(into, Operation::Object(call, value)) => {
                    let value = value.as_ref().map_or(Value::None, |value| evaluate(registers, value));
                    let found = memory.on_object(call, value)?;
                    if let Some(register) = into {
                        registers[*register] = found;
                    }
                }
                Step::Call(into, operation) => {
                    let found = call(operation, registers, memory)?;
                    if let Some(register) = into {
                        registers[*register] = found.map_or(Value::None, Value::number);
                    }
                }
            }
        }
        Ok(())
    }
}

impl Own {
    /// Takes the step; `at` is the next one, unless the step jumps.
    #[inline]
    pub(crate) fn take(&self, at: &mut usize, registers: &mut [Value]) {
        match self {
            Own::Set(register, value) => registers[*register] = evaluate(registers, value),
            Own::Unless(left, comparison, right, to) => {
                let (left, right) = (evaluate(registers, left), evaluate(registers, right));
                if !compare(&left, *comparison, &right) {
                    *at = *to;
                }
            }
            Own::Jump(to) => *at = *to,
        }
    }
}

#[inline]
fn call<M: Memory>(
    operation: &Operation,
    registers: &[Value],
    memory: &mut M,
) -> Result<Option<i64>, Stopped<M::Error>> {
    let number = |number: &Number| number.of(registers).map_err(Stopped::Value);
    match operation {
        Operation::Write(at, value) => memory.write(*at, number(value)?)?,
        Operation::Read(at) => return Ok(Some(memory.read(*at)?)),
        Operation::Cas(at, old, new) => {
            return Ok(Some(memory.cas(*at, number(old)?, number(new)?)?));
        }
        Operation::Mfence => memory.mfence()?,
        Operation::Put { id, to, from } => memory.put(*id, *to, *from)?,
        Operation::Get { id, to, from } => memory.get(*id, *to, *from)?,
        Operation::Rfence(node) => memory.rfence(*node)?,
        Operation::Wait(id) => memory.wait(*id)?,
        Operation::Poll(node) if memory.poll(*node)? => {}
        Operation::Poll(_) => return Err(Stopped::NotFinished),
        Operation::RCas(rmw, old, new) => {
            let change = Change::CompareAndSwap(number(old)?, number(new)?);
            memory.rmw(Rmw { change, ..*rmw })?;
        }
        Operation::RFaa(rmw, addend) => memory.rmw(Rmw { change: Change::Add(number(addend)?), ..*rmw })?,
        Operation::Object(..) => unreachable!("a call on an object returns a value, and is made by whoever runs"),
    }
    Ok(None)
}

impl Plan {
    /// The observed final values, in the order of [`Test::shown`]: `register` reads one of a thread, `word` one of
    /// [`Plan::words`].
    ///
    /// ```
    /// # use mowgli::{litmus::Value, model::Models, run::prepare};
    /// let text = "x86tso t { x@1 = 5; } P0@1 { let a = Read(x); } exists (0:a=5 /\\ x=5)";
    /// let plan = prepare("t.litmus", text, &Models::builtin())?.plan;
    /// let outcome = plan.outcome(|_thread, _register| Value::number(7), |word| plan.words[word].starts);
    /// assert_eq!(outcome, [7, 5].map(Value::number));
    /// # Ok::<(), mowgli::run::NotRunnable>(())
    /// ```
    pub fn outcome(&self, register: impl Fn(usize, usize) -> Value, word: impl Fn(usize) -> i64) -> Vec<Value> {
        let seen = self.seen.iter().map(|seen| match seen {
            Seen::Register(thread, at) => register(*thread, *at),
            Seen::Word(at) => Value::number(word(*at)),
        });
        seen.collect()
    }

    /// The plan of a test; what `shown` shows of it has the same names there.
    pub(crate) fn of(test: &Test, shown: &Test) -> Result<Plan, NotRunnable> {
        Plan::with(test, shown, Objects::none(test), test.places())
    }

    fn with(test: &Test, shown: &Test, objects: Objects, places: Vec<Place>) -> Result<Plan, NotRunnable> {
        let node = |number| test.nodes.binary_search(&number).expect("a test knows its nodes");
        let mentions = mentions(test);
        let threads = test.threads.iter().map(|thread| {
            let steps = thread.code.iter().map(|instruction| {
                Ok(match instruction {
                    Instruction::Call(into, call) => {
                        let on_object = objects.operation(test, call).map(Ok);
                        Step::Call(*into, on_object.unwrap_or_else(|| operation(test, &places, &mentions, call))?)
                    }
                    Instruction::Set(register, value) => Step::Own(Own::Set(*register, value.clone())),
                    Instruction::Unless(left, comparison, right, to) => {
                        Step::Own(Own::Unless(left.clone(), *comparison, right.clone(), *to))
                    }
                    Instruction::Jump(to) => Step::Own(Own::Jump(*to)),
                    Instruction::Stop(last_round) => Step::Again(last_round.expect("every jump was filled in")),
                })
            });
            let steps = steps.collect::<Result<_, NotRunnable>>()?;
            Ok(Program { node: node(thread.node), registers: thread.registers.len(), steps })
        });
        let threads = threads.collect::<Result<_, NotRunnable>>()?;
        let words = places.iter().map(|place| {
            let name = test.name_of(Observable::Place(*place));
            let starts = test.objects[place.0].starts.clone().expect("places have an initial value");
            let Some(number) = starts.as_number() else { return Err(NotRunnable::Starts(name, starts)) };
            Ok(PlannedWord { name, node: node(place.1), starts: number, mentions: mentions[place.0] })
        });
        let words = words.collect::<Result<_, _>>()?;
        let all = test.observables();
        let seen = shown.shown.iter().map(|observable| {
            let name = shown.name_of(*observable);
            let found = all.iter().find(|other| test.name_of(**other) == name).expect("a test has what it shows");
            match found {
                Observable::Register(thread, register) => Seen::Register(*thread, *register),
                Observable::Place(place) => Seen::Word(number_of(&places, *place).expect("it is one of its places")),
            }
        });
        Ok(Plan { threads, nodes: test.nodes.len(), words, objects: objects.planned, seen: seen.collect() })
    }
}

fn number_of(places: &[Place], place: Place) -> Option<usize> {
    places.iter().position(|other| *other == place)
}

/// The operation of a call on words. It is known by its method's name and parameters, whatever model has it.
fn operation(test: &Test, places: &[Place], mentions: &[usize], call: &Call) -> Result<Operation, NotRunnable> {
    let library = &test.libraries[call.library];
    let nothing_does = || NotRunnable::Method(format!("{}.{}", library.name, call.method));
    let shape = library.methods[&call.method].parameters.iter().map(|(_, takes)| match takes {
        Parameter::Id => 'd',
        Parameter::Local(kind) if kind == WORD => 'x',
        Parameter::Remote(kind) if kind == WORD => 'y',
        Parameter::Value => 'v',
        Parameter::Node => 'n',
        _ => '?',
    });
    let shape: String = shape.collect();
    let (mut id, mut words, mut numbers, mut at_node) = (NAMELESS, Vec::new(), Vec::new(), 0);
    for argument in &call.arguments {
        match argument {
            Argument::Id(name) => id = *name,
            Argument::Object(object) => {
                let home = test.objects[*object].home;
                let word = home.and_then(|home| number_of(places, (*object, home)));
                words.push(word.ok_or_else(nothing_does)?);
            }
            Argument::Value(Expression::Constant(value)) if value.as_number().is_some() => {
                numbers.extend(value.as_number().map(Number::Known));
            }
            Argument::Value(value) => numbers.push(Number::Of(value.clone())),
            Argument::Node(node) => at_node = test.nodes.binary_search(node).expect("a test knows its nodes"),
            Argument::Nodes(_) => return Err(nothing_does()),
        }
    }
    let mut numbers = numbers.into_iter();
    let mut number = || numbers.next().expect("as many as its shape says");
    let rmw = |words: &[usize]| {
        let is_private = mentions[places[words[0]].0] == 1;
        Rmw { id, into: words[0], is_private, at: words[1], change: Change::Add(0) }
    };
    Ok(match (call.method.as_str(), shape.as_str()) {
        ("Write", "xv") => Operation::Write(words[0], number()),
        ("Read", "x") => Operation::Read(words[0]),
        ("CAS", "xvv") => Operation::Cas(words[0], number(), number()),
        ("Mfence", "") => Operation::Mfence,
        ("Put", "dyx" | "yx") => Operation::Put { id, to: words[0], from: words[1] },
        ("Get", "dxy" | "xy") => Operation::Get { id, to: words[0], from: words[1] },
        ("Rfence", "n") => Operation::Rfence(at_node),
        ("Wait", "d") => Operation::Wait(id),
        ("Poll", "n") => Operation::Poll(at_node),
        ("RCas", "dxyvv") => Operation::RCas(rmw(&words), number(), number()),
        ("RFaa", "dxyv") => Operation::RFaa(rmw(&words), number()),
        _ => return Err(nothing_does()),
    })
}

/// The kind of objects that memory has.
const WORD: &str = "word";

/// How many times the calls of a test name each object.
fn mentions(test: &Test) -> Vec<usize> {
    let mut mentions = vec![0; test.objects.len()];
    for argument in test.calls().flat_map(|call| &call.arguments) {
        if let Argument::Object(object) = argument {
            mentions[*object] += 1;
        }
    }
    mentions
}

/// The built-in implementations of the libraries above RDMA, each before those that it uses.
const STACK: [&str; 4] = ["msw_hash", "rbl_sv", "bal_sv", "sv_rdma"];

/// Reads a test, and plans its run: over the built-in implementations, if it has calls that words do not have. Then
/// only its threads' registers can be compared with the models.
///
/// ```
/// # use mowgli::{model::Models, run::prepare};
/// let text = "bal t { barrier b(P0, P1); } P0@1 { BAR(b); } P1@2 { BAR(b); } exists (true)";
/// let prepared = prepare("t.litmus", text, &Models::builtin())?;
/// assert_eq!((prepared.plan.nodes, prepared.over), (2, vec!["bal_sv".to_string(), "sv_rdma".to_string()]));
/// # Ok::<(), mowgli::run::NotRunnable>(())
/// ```
///
/// # Errors
/// A mistake in the text, or something that no fabric does.
pub fn prepare(file: &str, text: &str, models: &Models) -> Result<Prepared, NotRunnable> {
    let mut test = Test::parse(file, text, models)?;
    let refusal = match Plan::of(&test, &test) {
        Ok(plan) => return Ok(Prepared { test, plan, over: Vec::new(), is_open: false }),
        Err(refusal) => refusal,
    };
    let builtin = Implementation::builtin();
    let mut stack: Vec<Rc<Implementation>> = Vec::new();
    for name in STACK {
        let found = builtin.iter().find(|implementation| implementation.name == name).expect("it is built in");
        stack.push(Rc::clone(found));
        if name == "bal_sv" {
            // What fences all nodes fences those of the members.
            stack.push(Rc::new(Implementation { of: "balp".to_owned(), ..(**found).clone() }));
        }
    }
    let own = |of: &str, used: &[Rc<Implementation>]| {
        test.libraries.iter().any(|library| library.name == of)
            || used.iter().any(|user| user.over.iter().any(|over| over == of))
    };
    let mut used: Vec<Rc<Implementation>> = Vec::new();
    for implementation in stack {
        if own(&implementation.of, &used) {
            used.push(implementation);
        }
    }
    if used.is_empty() {
        return Err(refusal);
    }
    let expanded = Test::expand(file, text, models, &used)?;
    let count = test.shown.len();
    test.shown.retain(|shown| matches!(shown, Observable::Register(..)));
    let is_open = test.shown.len() < count;
    if test.shown.is_empty() {
        test.shown = test.observables();
        test.shown.retain(|shown| matches!(shown, Observable::Register(..)));
    }
    let plan = Plan::of(&expanded, &test)?;
    let over = used.iter().map(|implementation| implementation.name.clone()).collect();
    Ok(Prepared { test, plan, over, is_open })
}

/// Reads a test, and plans its run on objects: its calls of the libraries above words remain calls. The contents of
/// words and registers can be compared with the models.
///
/// ```
/// # use mowgli::{model::Models, run::prepare_on_objects};
/// let text = "bal t { barrier b(P0, P1); } P0@1 { BAR(b); } P1@2 { BAR(b); } exists (true)";
/// let prepared = prepare_on_objects("t.litmus", text, &Models::builtin())?;
/// assert_eq!((prepared.plan.objects.len(), prepared.over), (1, vec!["Barrier".to_string()]));
/// # Ok::<(), mowgli::run::NotRunnable>(())
/// ```
///
/// # Errors
/// A mistake in the text, a call that is on none of the objects, or one that is not used as the object that ships wants
/// it.
pub fn prepare_on_objects(file: &str, text: &str, models: &Models) -> Result<Prepared, NotRunnable> {
    let mut test = Test::parse(file, text, models)?;
    let objects = Objects::of(&test)?;
    let is_word = |place: &Place| test.objects[place.0].kind == WORD;
    let places: Vec<Place> = test.places().into_iter().filter(is_word).collect();
    let count = test.shown.len();
    let mut shown = test.shown.clone();
    let can_be_seen = |shown: &Observable| match shown {
        Observable::Register(..) => true,
        Observable::Place(place) => is_word(place),
    };
    shown.retain(can_be_seen);
    let is_open = shown.len() < count;
    if shown.is_empty() {
        shown = test.observables();
        shown.retain(can_be_seen);
    }
    test.shown = shown;
    let plan = Plan::with(&test, &test, objects, places)?;
    let mut over: Vec<String> = Vec::new();
    for kind in plan.threads.iter().flat_map(|thread| &thread.steps).filter_map(Step::made_on) {
        if !over.iter().any(|known| known == kind) {
            over.push(kind.to_owned());
        }
    }
    Ok(Prepared { test, plan, over, is_open })
}

impl Prepared {
    /// Whether calls are made on objects ([`prepare_on_objects`]).
    ///
    /// ```
    /// # use mowgli::{model::Models, run::{prepare, prepare_on_objects}};
    /// let text = "bal t { barrier b(P0, P1); } P0@1 { BAR(b); } P1@2 { BAR(b); } exists (true)";
    /// assert!(prepare_on_objects("t.litmus", text, &Models::builtin())?.is_on_objects());
    /// assert!(!prepare("t.litmus", text, &Models::builtin())?.is_on_objects()); // over words
    /// # Ok::<(), mowgli::run::NotRunnable>(())
    /// ```
    pub fn is_on_objects(&self) -> bool {
        self.plan.threads.iter().flat_map(|thread| &thread.steps).any(|step| step.made_on().is_some())
    }

    /// Whether the test's condition holds of an outcome; none if a run cannot decide it.
    ///
    /// ```
    /// # use mowgli::{litmus::Value, model::Models, run::prepare};
    /// # let text = "x86tso t { x@1; } P0@1 { Write(x, 1); } exists (x=1)";
    /// let prepared = prepare("t.litmus", text, &Models::builtin())?;
    /// assert_eq!(prepared.holds(&[Value::number(1)]), Some(true));
    /// # Ok::<(), mowgli::run::NotRunnable>(())
    /// ```
    ///
    /// # Panics
    /// If the outcome is that of another test.
    pub fn holds(&self, outcome: &[Value]) -> Option<bool> {
        let of = |observable| {
            let at = self.test.shown.iter().position(|shown| *shown == observable);
            outcome[at.expect("what a condition is about is shown")].clone()
        };
        (!self.is_open).then(|| self.test.condition.holds(&of))
    }
}

#[cfg(test)]
mod tests;
