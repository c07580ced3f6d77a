//! The traces of a thread if every read may return any value that some write produces: the plain executions of the
//! LOCO paper, section 3.1. Consistency prunes them.

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;

use crate::litmus::{Argument, Call, Comparison, Expression, Instruction, NodeNumber, Place, Test, TestThread, Value};
use crate::model::{Action, Case, Group, NodeTerm, NodesTerm, Part, PlaceTerm, ValueTerm};
use crate::relation::SUBEVENTS_MAX;
use crate::stamp::Stamp;
use crate::too_large::{TRACES_MAX, TooLarge};

/// A subevent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Subevent {
    pub(crate) stamp: Stamp,
    pub(crate) node: Option<NodeNumber>,
    pub(crate) reads: Option<(Place, Value)>,
    pub(crate) writes: Option<(Place, Value)>,
    /// The place that it is at, if it neither reads nor writes.
    pub(crate) touches: Option<Place>,
    /// The subevent before it in its event is ordered before it.
    pub(crate) follows: bool,
}

/// A call that has returned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Event {
    pub(crate) call: Call,
    /// The register that gets its result.
    pub(crate) into: Option<usize>,
    pub(crate) subevents: Vec<Subevent>,
}

impl Event {
    /// The first object among its arguments.
    pub(crate) fn object(&self) -> Option<usize> {
        self.call.arguments.iter().find_map(|argument| match argument {
            Argument::Object(object) => Some(*object),
            _ => None,
        })
    }

    /// The name that it has among its thread's operations.
    pub(crate) fn tag(&self) -> Option<usize> {
        self.call.arguments.iter().find_map(|argument| match argument {
            Argument::Id(id) => Some(*id),
            _ => None,
        })
    }
}

/// The events of a thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Trace {
    pub(crate) events: Vec<Event>,
    pub(crate) registers: Vec<Value>,
}

impl Trace {
    pub(crate) fn reads(&self) -> impl Iterator<Item = &(Place, Value)> {
        self.events.iter().flat_map(|event| &event.subevents).filter_map(|subevent| subevent.reads.as_ref())
    }

    pub(crate) fn writes(&self) -> impl Iterator<Item = &(Place, Value)> {
        self.events.iter().flat_map(|event| &event.subevents).filter_map(|subevent| subevent.writes.as_ref())
    }
}

/// The possible writers of a value: threads by their bits, and the initial state.
type Writers = u32;
const INITIAL: Writers = 1 << 31;

/// Some reads of a test, each of which happens at most once: by the number of the call, and that of the value in it. In
/// order.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Reads(SmallVec<[(usize, usize); 2]>);

impl Reads {
    fn has(&self, read: (usize, usize)) -> bool {
        self.0.binary_search(&read).is_ok()
    }

    fn insert(&mut self, read: (usize, usize)) {
        if let Err(at) = self.0.binary_search(&read) {
            self.0.insert(at, read);
        }
    }

    fn add(&mut self, others: &Reads) {
        others.0.iter().for_each(|read| self.insert(*read));
    }

    fn keep(&mut self, others: &Reads) {
        self.0.retain(|read| others.has(*read));
    }
}

/// A value that may be found at a place.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Found {
    writers: Writers,
    /// The reads that have a part in it, however it is made: none of them finds it, as no value is made of itself.
    made_of: Reads,
}

/// The values that may be found at each place.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Domains(BTreeMap<Place, BTreeMap<Value, Found>>);

impl Domains {
    /// The initial values.
    pub(crate) fn initial(test: &Test) -> Domains {
        let mut domains = Domains::default();
        for place in test.places() {
            let starts = test.objects[place.0].starts.clone().expect("places have an initial value");
            domains.add(&(place, starts), INITIAL, &Reads::default());
        }
        domains
    }

    fn add(&mut self, (place, value): &(Place, Value), writers: Writers, made_of: &Reads) {
        let values = self.0.entry(*place).or_default();
        match values.get_mut(value) {
            Some(found) => {
                found.writers |= writers;
                found.made_of.keep(made_of);
            }
            None => drop(values.insert(value.clone(), Found { writers, made_of: made_of.clone() })),
        }
    }

    /// Adds the writes of a thread.
    pub(crate) fn add_writes(&mut self, thread: usize, trace: &Trace) {
        trace.writes().for_each(|write| self.add(write, 1 << thread, &Reads::default()));
    }

    /// Whether everything that a trace reads may have been written: by others, to begin with, or by itself.
    pub(crate) fn allow(&self, thread: usize, trace: &Trace) -> bool {
        trace.reads().all(|read| {
            let found = self.0.get(&read.0).and_then(|values| values.get(&read.1));
            found.map_or(0, |found| found.writers) & !(1 << thread) != 0 || trace.writes().any(|write| write == read)
        })
    }
}

/// All traces of each thread.
///
/// # Errors
/// They are too many.
pub(crate) fn all(test: &Test) -> Result<Vec<Vec<Trace>>, TooLarge> {
    let initial = Domains::initial(test);
    // A value is made of one that was read, and so on: no longer than there are reads.
    let mut rounds = 1;
    for call in test.calls() {
        let cases = &test.libraries[call.library].methods[&call.method].cases;
        rounds += cases.iter().map(|case| reads(test, &case.groups)).max().unwrap_or(0);
    }
    let mut domains = initial.clone();
    let mut all = loop {
        let mut grown = initial.clone();
        let mut all = Vec::new();
        for thread in 0..test.threads.len() {
            all.push(of_thread(test, thread, &domains, &mut grown)?);
        }
        rounds -= 1;
        if grown == domains || rounds == 0 {
            break all;
        }
        domains = grown;
    };
    // A trace whose reads no trace of another thread satisfies is impossible; and so are those that it would have
    // satisfied, and so on.
    loop {
        let mut domains = initial.clone();
        let count = all.iter().map(Vec::len).sum::<usize>();
        for (thread, traces) in all.iter().enumerate() {
            traces.iter().for_each(|trace| domains.add_writes(thread, trace));
        }
        for (thread, traces) in all.iter_mut().enumerate() {
            traces.retain(|trace| domains.allow(thread, trace));
        }
        if all.iter().map(Vec::len).sum::<usize>() == count {
            return Ok(all);
        }
    }
}

/// How often a call reads at most.
fn reads(test: &Test, groups: &[Group]) -> usize {
    let of = |group: &Group| match group {
        Group::Chain(parts) => {
            parts.iter().flat_map(|part| &part.actions).filter(|action| matches!(action, Action::Read(..))).count()
        }
        Group::For(_, _, inner) => reads(test, inner).saturating_mul(test.nodes.len()),
    };
    groups.iter().map(of).fold(0, usize::saturating_add)
}

/// A thread in the middle of its code.
#[derive(Clone)]
struct Going {
    at: usize,
    trace: Trace,
    /// The reads that have a part in each register, and in each write.
    registers: Vec<Reads>,
    writes: Vec<Reads>,
}

impl Going {
    /// Adds the written values.
    fn grow(&self, thread: usize, grown: &mut Domains) {
        let writes = self.trace.writes().zip(&self.writes);
        writes.for_each(|(write, made_of)| grown.add(write, 1 << thread, made_of));
    }

    /// The reads that have a part in an expression.
    fn made_of(&self, expression: &Expression) -> Reads {
        match expression {
            Expression::Constant(_) => Reads::default(),
            Expression::Register(register) => self.registers[*register].clone(),
            Expression::Sum(left, right) => {
                let mut all = self.made_of(left);
                all.add(&self.made_of(right));
                all
            }
            Expression::Tuple(parts) => parts.iter().fold(Reads::default(), |mut all, part| {
                all.add(&self.made_of(part));
                all
            }),
            Expression::Part(tuple, _) => self.made_of(tuple),
        }
    }
}

/// The traces of a thread. The values that it writes in them are added to `grown`, also by those that stop in a loop,
/// since others may let it continue.
fn of_thread(test: &Test, thread: usize, domains: &Domains, grown: &mut Domains) -> Result<Vec<Trace>, TooLarge> {
    let TestThread { registers, code, .. } = &test.threads[thread];
    // The number of its first call among those of all threads.
    let first = test.threads[..thread].iter().map(|thread| thread.code.len()).sum::<usize>();
    let trace = Trace { events: Vec::new(), registers: vec![Value::number(0); registers.len()] };
    let mut open = vec![Going { at: 0, trace, registers: vec![Reads::default(); registers.len()], writes: Vec::new() }];
    let mut ended = Vec::new();
    while let Some(mut going) = open.pop() {
        let instruction = code.get(going.at);
        if matches!(instruction, None | Some(Instruction::Stop(_))) {
            if domains.allow(thread, &going.trace) {
                going.grow(thread, grown);
                ended.extend(instruction.is_none().then_some(going.trace));
            }
            continue;
        }
        if ended.len() + open.len() > TRACES_MAX {
            return Err(TooLarge::Traces(thread));
        }
        let subevents = going.trace.events.iter().map(|event| event.subevents.len()).sum();
        if subevents > SUBEVENTS_MAX {
            return Err(TooLarge::Subevents(subevents));
        }
        let number = first + going.at;
        going.at += 1;
        match instruction.expect("the end was seen to") {
            Instruction::Stop(_) => {}
            Instruction::Jump(to) => open.push(Going { at: *to, ..going }),
            Instruction::Set(register, value) => {
                going.registers[*register] = going.made_of(value);
                going.trace.registers[*register] = evaluate(&going.trace.registers, value);
                open.push(going);
            }
            Instruction::Unless(left, comparison, right, to) => {
                let registers = &going.trace.registers;
                if !compare(&evaluate(registers, left), *comparison, &evaluate(registers, right)) {
                    going.at = *to;
                }
                open.push(going);
            }
            Instruction::Call(into, call) => {
                let ways = ways(test, thread, call, number, &going, domains);
                if ways.is_empty() && domains.allow(thread, &going.trace) {
                    // It waits for a value that is not written yet; the loop may also wait for its own writes.
                    going.grow(thread, grown);
                }
                for way in ways {
                    let mut next = going.clone();
                    next.trace.events.push(Event { into: *into, ..way.event });
                    next.writes.extend(way.writes);
                    if let Some(register) = into {
                        (next.trace.registers[*register], next.registers[*register]) = way.result;
                    }
                    open.push(next);
                }
            }
        }
    }
    Ok(ended)
}

/// The value of an expression.
pub(crate) fn evaluate(registers: &[Value], expression: &Expression) -> Value {
    match expression {
        Expression::Constant(value) => value.clone(),
        Expression::Register(register) => registers[*register].clone(),
        Expression::Sum(left, right) => evaluate(registers, left).plus(&evaluate(registers, right)),
        Expression::Part(tuple, at) => evaluate(registers, tuple).part(*at),
        Expression::Tuple(parts) => {
            let numbers = parts.iter().map(|part| evaluate(registers, part).as_number());
            numbers.collect::<Option<_>>().map_or(Value::None, Value::Numbers)
        }
    }
}

/// Whether a comparison holds; of values that are not numbers, only comparisons for equality do.
pub(crate) fn compare(left: &Value, comparison: Comparison, right: &Value) -> bool {
    let numbers = left.as_number().zip(right.as_number());
    match comparison {
        Comparison::Equal => left == right,
        Comparison::NotEqual => left != right,
        Comparison::Less => numbers.is_some_and(|(left, right)| left < right),
        Comparison::LessOrEqual => numbers.is_some_and(|(left, right)| left <= right),
    }
}

/// A variable of a call's values, by number; or its known value, with the reads that contributed to it.
#[derive(Clone)]
enum Flat {
    Known(Value, Reads),
    Variable(usize),
    Sum(Box<Flat>, Box<Flat>),
}

enum FlatAction {
    Read(Place, usize),
    Write(Place, Flat),
    Touch(Place),
}

struct FlatPart {
    stamp: Stamp,
    node: Option<NodeNumber>,
    follows: bool,
    actions: Vec<FlatAction>,
}

/// One possible course of a call.
struct Way {
    event: Event,
    /// The reads that have a part in each of its writes.
    writes: Vec<Reads>,
    result: (Value, Reads),
}

/// A case of a method, as it is for one call: without loops and names.
struct Flattener<'a> {
    test: &'a Test,
    /// The call's number among all.
    number: usize,
    here: NodeNumber,
    parameters: Vec<(&'a str, &'a Argument)>,
    going: &'a Going,
    nodes: Vec<(&'a str, NodeNumber)>,
    /// Values that were read: the innermost last.
    values: Vec<(&'a str, usize)>,
    variables: usize,
    parts: Vec<FlatPart>,
}

/// All possible courses of a call, which has this number among all calls.
fn ways(test: &Test, thread: usize, call: &Call, number: usize, going: &Going, domains: &Domains) -> Vec<Way> {
    let method = &test.libraries[call.library].methods[&call.method];
    let mut all = Vec::new();
    for case in &method.cases {
        let mut flattener = Flattener {
            test,
            number,
            here: test.threads[thread].node,
            parameters: method.parameters.iter().map(|parameter| parameter.0.as_str()).zip(&call.arguments).collect(),
            going,
            nodes: Vec::new(),
            values: Vec::new(),
            variables: 0,
            parts: Vec::new(),
        };
        flattener.groups(&case.groups);
        let mut values = vec![None; flattener.variables];
        flattener.assign(case, call, domains, (0, 0), &mut values, &mut all);
    }
    all
}

impl<'a> Flattener<'a> {
    fn groups(&mut self, groups: &'a [Group]) {
        for group in groups {
            match group {
                Group::Chain(parts) => {
                    parts.iter().enumerate().for_each(|(at, part)| self.part(part, at > 0));
                }
                Group::For(variable, nodes, inner) => {
                    for node in self.nodes_of(nodes) {
                        let known = self.values.len();
                        self.nodes.push((variable, node));
                        self.groups(inner);
                        self.nodes.pop();
                        self.values.truncate(known);
                    }
                }
            }
        }
    }

    fn part(&mut self, part: &'a Part, follows: bool) {
        let node = part.node.as_ref().map(|node| self.node(node));
        let mut actions = Vec::new();
        for action in &part.actions {
            actions.push(match action {
                Action::Read(place, name) => FlatAction::Read(self.place(place), self.variable(name)),
                Action::Write(place, value) => FlatAction::Write(self.place(place), self.value(value)),
                Action::Touch(place) => FlatAction::Touch(self.place(place)),
            });
        }
        self.parts.push(FlatPart { stamp: part.stamp, node, follows, actions });
    }

    fn variable(&mut self, name: &'a str) -> usize {
        if let Some(known) = self.values.iter().rev().find(|value| value.0 == name) {
            return known.1;
        }
        self.values.push((name, self.variables));
        self.variables += 1;
        self.variables - 1
    }

    fn argument(&self, name: &str) -> Option<&'a Argument> {
        self.parameters.iter().find(|parameter| parameter.0 == name).map(|parameter| parameter.1)
    }

    fn object(&self, name: &str) -> usize {
        match self.argument(name) {
            Some(Argument::Object(object)) => *object,
            _ => unreachable!("the model was checked, and the call"),
        }
    }

    fn node(&self, term: &NodeTerm) -> NodeNumber {
        match term {
            NodeTerm::Here => self.here,
            NodeTerm::HomeOf(object) => self.test.objects[self.object(object)].home.expect("its kind has a home"),
            NodeTerm::Name(name) => match (self.nodes.iter().rev().find(|node| node.0 == name), self.argument(name)) {
                (Some(node), _) => node.1,
                (None, Some(Argument::Node(node))) => *node,
                _ => unreachable!("the model was checked, and the call"),
            },
        }
    }

    fn nodes_of(&self, term: &NodesTerm) -> Vec<NodeNumber> {
        match term {
            NodesTerm::All => self.test.nodes.clone(),
            NodesTerm::One(node) => vec![self.node(node)],
            NodesTerm::Name(name) => match self.argument(name) {
                Some(Argument::Nodes(nodes)) => nodes.iter().copied().collect::<BTreeSet<_>>().into_iter().collect(),
                _ => unreachable!("the model was checked, and the call"),
            },
            NodesTerm::Of(object, attribute) => {
                let threads = self.test.objects[self.object(object)].threads.iter().filter(|list| list.0 == *attribute);
                let nodes = threads.flat_map(|list| &list.1).map(|thread| self.test.threads[*thread].node);
                nodes.collect::<BTreeSet<_>>().into_iter().collect()
            }
            NodesTerm::Without(all, without) => {
                let without = self.nodes_of(without);
                self.nodes_of(all).into_iter().filter(|node| !without.contains(node)).collect()
            }
        }
    }

    fn place(&self, term: &PlaceTerm) -> Place {
        let object = self.object(&term.object);
        let at = term.at.as_ref().map(|at| self.node(at));
        (object, self.test.objects[object].home.or(at).unwrap_or(self.here))
    }

    fn value(&self, term: &ValueTerm) -> Flat {
        match term {
            ValueTerm::Number(number) => Flat::Known(Value::number(*number), Reads::default()),
            ValueTerm::None => Flat::Known(Value::None, Reads::default()),
            ValueTerm::Sum(left, right) => Flat::Sum(Box::new(self.value(left)), Box::new(self.value(right))),
            ValueTerm::Name(name) => {
                match (self.values.iter().rev().find(|value| value.0 == name), self.argument(name)) {
                    (Some(variable), _) => Flat::Variable(variable.1),
                    (None, Some(Argument::Value(value))) => {
                        Flat::Known(evaluate(&self.going.trace.registers, value), self.going.made_of(value))
                    }
                    // One that is read in a loop over no nodes.
                    _ => Flat::Known(Value::None, Reads::default()),
                }
            }
        }
    }

    /// Gives a value to everything that is read, from a part and an action in it on.
    fn assign(
        &self,
        case: &Case,
        call: &Call,
        domains: &Domains,
        (part, action): (usize, usize),
        values: &mut Vec<Option<(Value, Reads)>>,
        all: &mut Vec<Way>,
    ) {
        let Some(current) = self.parts.get(part) else { return self.end(case, call, values, all) };
        match current.actions.get(action) {
            None => self.assign(case, call, domains, (part + 1, 0), values, all),
            Some(FlatAction::Read(place, variable)) if values[*variable].is_none() => {
                let found = domains.0.get(place).into_iter().flatten();
                let read = (self.number, *variable);
                for (value, found) in found.filter(|(_, found)| !found.made_of.has(read)) {
                    let mut made_of = found.made_of.clone();
                    made_of.insert(read);
                    values[*variable] = Some((value.clone(), made_of));
                    self.assign(case, call, domains, (part, action + 1), values, all);
                }
                values[*variable] = None;
            }
            Some(_) => self.assign(case, call, domains, (part, action + 1), values, all),
        }
    }

    fn end(&self, case: &Case, call: &Call, values: &[Option<(Value, Reads)>], all: &mut Vec<Way>) {
        let known = |flat: &Flat| known(flat, values);
        if let Some((left, right, equal)) = &case.condition
            && (known(&self.value(left)).0 == known(&self.value(right)).0) != *equal
        {
            return;
        }
        let (mut subevents, mut writes) = (Vec::new(), Vec::new());
        for part in &self.parts {
            let mut made = None;
            let FlatPart { stamp, node, follows, .. } = *part;
            let mut subevent = Subevent { stamp, node, reads: None, writes: None, touches: None, follows };
            for action in &part.actions {
                match action {
                    FlatAction::Read(place, variable) => {
                        let (value, _) = values[*variable].clone().expect("it has a value by now");
                        subevent.reads = Some((*place, value));
                    }
                    FlatAction::Write(place, value) => {
                        let (value, made_of) = known(value);
                        subevent.writes = Some((*place, value));
                        made = Some(made_of);
                    }
                    FlatAction::Touch(place) => subevent.touches = Some(*place),
                }
            }
            subevents.push(subevent);
            writes.extend(made);
        }
        let result = case.result.as_ref().map_or_else(Default::default, |result| known(&self.value(result)));
        all.push(Way { event: Event { call: call.clone(), into: None, subevents }, writes, result });
    }
}

fn known(flat: &Flat, values: &[Option<(Value, Reads)>]) -> (Value, Reads) {
    match flat {
        Flat::Known(value, made_of) => (value.clone(), made_of.clone()),
        Flat::Variable(variable) => values[*variable].clone().unwrap_or_default(),
        Flat::Sum(left, right) => {
            let ((left, mut made_of), (right, others)) = (known(left, values), known(right, values));
            made_of.add(&others);
            (left.plus(&right), made_of)
        }
    }
}
