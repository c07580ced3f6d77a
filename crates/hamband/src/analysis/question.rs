//! A question for the solver: states, calls, and what is asserted about them. And the answer to it, for a person to
//! read.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::rc::Rc;

use super::core::{Binary, Core, Parameter};
use super::counterexample::{Counterexample, Shown, render};
use super::relations::Verdict;
use super::solver::{Answer, Solver, SolverError};
use super::specification::Specification;
use super::translate::{Environment, same};
use super::types::Type;
use super::value::{Fresh, Function, Term, Value, and, apply, not, or, sort, term};

/// Integers of a counterexample are at most this far from 0 if there is one like that.
const SMALL: i64 = 5;

/// A state: the value of each variable.
#[derive(Clone)]
pub(crate) struct State(Rc<Vec<Value>>);

/// A call: a method and its arguments.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) method: usize,
    pub(crate) arguments: Vec<Value>,
}

pub(crate) struct Question<'a> {
    spec: &'a Specification,
    script: String,
    fresh: Fresh,
    /// The terms of each leaf type that may be elements of sets and keys of maps in a counterexample.
    pool: BTreeMap<String, Vec<Term>>,
    calls: Vec<Call>,
    shown: Vec<(Shown, State)>,
    /// Conditions, one of which holds in every counterexample, and what they mean.
    causes: Vec<(Term, String)>,
    /// Whether `false` was asserted.
    is_trivial: bool,
    /// Whether values that were given a name have quantifiers.
    is_quantified: bool,
}

impl<'a> Question<'a> {
    pub(crate) fn new(spec: &'a Specification) -> Question<'a> {
        let mut script = String::new();
        for sort in &spec.sorts {
            let _ = writeln!(script, "(declare-sort Id.{sort} 0)\n(declare-const any.{sort} Id.{sort})");
        }
        let pool = BTreeMap::from([("Bool".to_owned(), vec![term("true"), term("false")])]);
        Question {
            spec,
            script,
            fresh: Fresh::default(),
            pool,
            calls: vec![],
            shown: vec![],
            causes: vec![],
            is_trivial: false,
            is_quantified: false,
        }
    }

    pub(crate) fn assert(&mut self, condition: &Term) {
        self.is_trivial |= &**condition == "false";
        if &**condition != "true" {
            let _ = writeln!(self.script, "(assert {condition})");
        }
    }

    /// Any state.
    pub(crate) fn state(&mut self, name: &str) -> State {
        let spec = self.spec;
        let declared = spec.variables.iter();
        let declared = declared.map(|variable| self.declare(&format!("{name}.{}", variable.name), &variable.ty));
        State(Rc::new(declared.collect()))
    }

    /// The initial state.
    pub(crate) fn initial(&mut self) -> State {
        let nowhere = self.environment(&State(Rc::new(vec![])), None);
        let values: Vec<Value> = self.spec.variables.iter().map(|variable| nowhere.value(&variable.initial)).collect();
        self.defined("initial", values)
    }

    /// Any call of a method: its arguments have their types, and satisfy its requirements of arguments.
    pub(crate) fn call(&mut self, method: usize) -> Call {
        let number = self.calls.len();
        let parameters = &self.spec.updates[method].parameters;
        let arguments = parameters.iter().map(|of| self.declare(&format!("call{number}.{}", of.name), &of.ty));
        let call = Call { method, arguments: arguments.collect() };
        self.assert(&self.is_made(&call));
        self.calls.push(call.clone());
        call
    }

    /// A call with these arguments. It is not shown.
    pub(crate) fn call_with(&self, method: usize, arguments: Vec<Value>) -> Call {
        Call { method, arguments }
    }

    /// Two different calls have different values for parameters that are `unique`, where their types are the same.
    pub(crate) fn assert_unique(&mut self, first: &Call, second: &Call) {
        let unique = |call: &Call| -> Vec<(Type, Value)> {
            let parameters = self.spec.updates[call.method].parameters.iter().zip(&call.arguments);
            let unique = parameters.filter(|(parameter, _)| parameter.is_unique);
            unique.map(|(parameter, value)| (parameter.ty.clone(), value.clone())).collect()
        };
        for (ty, value) in unique(first) {
            for (other, another) in unique(second) {
                if ty == other {
                    self.assert(&not(&same(&value.leaves(), &another.leaves())));
                }
            }
        }
    }

    /// That a call's arguments have their types, and satisfy the method's requirements of arguments.
    pub(crate) fn is_made(&self, call: &Call) -> Term {
        let update = &self.spec.updates[call.method];
        let natural = |(parameter, value): (&Parameter, &Value)| {
            parameter.is_natural.then(|| apply("<=", &[term("0"), value.leaf()]))
        };
        let mut parts: Vec<Term> = update.parameters.iter().zip(&call.arguments).filter_map(natural).collect();
        let inside = self.environment(&State(Rc::new(vec![])), Some(call));
        parts.extend(update.of_arguments.iter().map(|requirement| inside.term(&requirement.condition)));
        and(&parts)
    }

    /// The state after a call.
    pub(crate) fn after(&mut self, state: &State, call: &Call, name: &str) -> State {
        let inside = self.environment(state, Some(call));
        let mut values: Vec<Value> = (*state.0).clone();
        for (variable, value) in &self.spec.updates[call.method].effects {
            let (spec, value) = (self.spec, inside.value(value));
            let spec = &spec.variables[*variable];
            values[*variable] = self.define(&format!("{name}.{}", spec.name), &spec.ty, &[], value);
        }
        State(Rc::new(values))
    }

    /// The invariant.
    pub(crate) fn integrity(&self, state: &State) -> Term {
        let inside = self.environment(state, None);
        and(&self.spec.invariants.iter().map(|clause| inside.term(&clause.condition)).collect::<Vec<_>>())
    }

    /// That the call's requirements hold.
    pub(crate) fn requirements(&self, state: &State, call: &Call) -> Term {
        let inside = self.environment(state, Some(call));
        let requirements = &self.spec.updates[call.method].requirements;
        and(&requirements.iter().map(|requirement| inside.term(&requirement.condition)).collect::<Vec<_>>())
    }

    /// 𝒫(σ, c): the call's requirements hold in σ, and the invariant in c(σ), which is `after`.
    pub(crate) fn permissible(&self, state: &State, call: &Call, after: &State) -> Term {
        and(&[self.requirements(state, call), self.integrity(after)])
    }

    /// ¬𝒫(σ, c), with the reasons as causes.
    pub(crate) fn refused(&mut self, state: &State, call: &Call, after: &State) -> Term {
        let inside = self.environment(state, Some(call));
        let spec = self.spec;
        let update = &spec.updates[call.method];
        let mut causes = Vec::new();
        for requirement in &update.requirements {
            let condition = self.refute(&requirement.condition, &inside);
            causes.push(self.cause(&condition, format!("{} is refused: {}", update.name, requirement.reason)));
        }
        causes.push(self.broken(after));
        or(&causes)
    }

    /// That a state does not satisfy the invariant, with the clauses as causes.
    pub(crate) fn broken(&mut self, state: &State) -> Term {
        let inside = self.environment(state, None);
        let mut causes = Vec::new();
        for clause in &self.spec.invariants {
            let condition = self.refute(&clause.condition, &inside);
            causes.push(self.cause(&condition, format!("breaks the invariant: {}", clause.name)));
        }
        or(&causes)
    }

    /// That two states differ, with the variables as causes.
    pub(crate) fn different(&mut self, a: &State, b: &State) -> Term {
        let mut causes = Vec::new();
        for (variable, (a, b)) in self.spec.variables.iter().zip(a.0.iter().zip(b.0.iter())) {
            let condition = self.differ(&variable.ty, a, b);
            causes.push(self.cause(&condition, format!("the results differ in {}", variable.name)));
        }
        or(&causes)
    }

    /// Gives a condition a name, under which a counterexample shows what it means. The name may only be asserted, not
    /// its negation: it implies a condition with quantifiers, and the solver gives no values for those.
    pub(crate) fn cause(&mut self, condition: &Term, meaning: String) -> Term {
        if &**condition == "false" {
            return condition.clone();
        }
        let name = self.fresh.name("cause");
        let _ = if self.is_quantified || has_quantifier(condition) {
            writeln!(self.script, "(declare-const {name} Bool)\n(assert (=> {name} {condition}))")
        } else {
            writeln!(self.script, "(define-fun {name} () Bool {condition})")
        };
        self.causes.push((term(&name), meaning));
        term(name)
    }

    /// Shows a state in a counterexample.
    pub(crate) fn show(&mut self, what: Shown, state: &State) {
        self.shown.push((what, state.clone()));
    }

    /// What an expression is in a state and, if there is one, a call.
    pub(crate) fn environment(&self, state: &State, call: Option<&Call>) -> Environment {
        let longest = self.spec.updates.iter().map(|update| update.parameters.len()).max().unwrap_or(0);
        let mut locals = vec![None; self.spec.locals + 2 * longest];
        if let Some(call) = call {
            for (parameter, value) in self.spec.updates[call.method].parameters.iter().zip(&call.arguments) {
                locals[parameter.local] = Some(value.clone());
            }
        }
        Environment { state: state.0.clone(), locals, fresh: self.fresh.clone() }
    }

    /// An environment without a state, in which these names are the arguments of calls.
    pub(crate) fn arguments(&self, named: [(&[usize], &Call); 2]) -> Environment {
        let mut inside = self.environment(&State(Rc::new(vec![])), None);
        for (names, call) in named {
            for (name, value) in names.iter().zip(&call.arguments) {
                inside.locals[*name] = Some(value.clone());
            }
        }
        inside
    }

    /// Asks it: whether no counterexample exists.
    pub(crate) fn ask(mut self, solver: &mut Solver) -> Result<Verdict, SolverError> {
        if self.is_trivial {
            solver.skipped += 1;
            return Ok(Verdict::Holds);
        }
        let numbers = self.pool.get("Int").map_or(&[][..], Vec::as_slice);
        let near = numbers.iter().map(|number| term(format!("(<= (- {SMALL}) {number} {SMALL})")));
        let near = and(&near.collect::<Vec<_>>());
        let _ = writeln!(self.script, "(declare-const small Bool)\n(assert (=> small {near}))");
        match solver.ask(&self.script)? {
            Answer::Unsatisfiable => return Ok(Verdict::Holds),
            Answer::Unknown(why) => return Ok(Verdict::Undecided(why)),
            Answer::Satisfiable => {}
        }
        solver.prefer("small")?;
        match self.counterexample(solver)? {
            Some(counterexample) => Ok(Verdict::Fails(Box::new(counterexample))),
            None => {
                solver.unknown += 1;
                Ok(Verdict::Undecided("there is a counterexample, but the solver does not show it".to_owned()))
            }
        }
    }

    fn counterexample(&self, solver: &mut Solver) -> Result<Option<Counterexample>, SolverError> {
        // Equal terms are one element.
        let mut pool = BTreeMap::new();
        for (sort, terms) in &self.pool {
            let Some(values) = solver.values(terms)? else { return Ok(None) };
            let by_value: BTreeMap<String, Term> = values.into_iter().zip(terms.iter().cloned()).rev().collect();
            pool.insert(sort.clone(), by_value.into_iter().collect());
        }
        let causes: Vec<&Term> = self.causes.iter().map(|(cause, _)| cause).collect();
        let Some(holds) = solver.values(&causes)? else { return Ok(None) };
        let causes = self.causes.iter().zip(holds).filter(|(_, holds)| holds == "true");
        let causes = causes.map(|((_, meaning), _)| meaning.clone()).collect();
        let shown: Vec<(Shown, &[Value])> =
            self.shown.iter().map(|(what, state)| (what.clone(), &state.0[..])).collect();
        render(self.spec, &pool, &self.calls, &shown, causes, solver)
    }

    /// The negation of a condition, with a name for each value that shows it.
    fn refute(&mut self, core: &Core, inside: &Environment) -> Term {
        match core {
            Core::ForAll(names, body) => {
                let mut deeper = inside.clone();
                for (local, ty) in names {
                    let name = self.fresh.name("witness");
                    deeper.locals[*local] = Some(self.declare(&name, ty));
                }
                self.refute(body, &deeper)
            }
            Core::Binary(Binary::Implies, a, b) => {
                let a = inside.term(a);
                and(&[a, self.refute(b, inside)])
            }
            Core::Binary(Binary::And, a, b) => {
                let a = self.refute(a, inside);
                or(&[a, self.refute(b, inside)])
            }
            other => not(&inside.term(other)),
        }
    }

    /// That two values differ, with a name for an element that shows it.
    fn differ(&mut self, ty: &Type, a: &Value, b: &Value) -> Term {
        match (ty, a, b) {
            (Type::Tuple(types), Value::Tuple(a), Value::Tuple(b)) => {
                let parts = types.iter().zip(a.iter().zip(b)).map(|(ty, (a, b))| self.differ(ty, a, b));
                or(&parts.collect::<Vec<_>>())
            }
            (Type::Option(of), Value::Option(has, a), Value::Option(other, b)) => {
                let content = self.differ(of, a, b);
                or(&[different(has, other), and(&[has.clone(), content])])
            }
            (Type::Set(of), a, b) => {
                let name = self.fresh.name("witness");
                let at = self.declare(&name, of).leaves();
                different(&a.predicate()(&at), &b.predicate()(&at))
            }
            (Type::Map(key, value), a, b) => {
                let name = self.fresh.name("witness");
                let at = self.declare(&name, key).leaves();
                let (has, other) = (a.predicate()(&at), b.predicate()(&at));
                let values = self.differ(value, &a.function()(&at), &b.function()(&at));
                or(&[different(&has, &other), and(&[has, values])])
            }
            (_, a, b) => different(&a.leaf(), &b.leaf()),
        }
    }

    /// Any value of a type.
    fn declare(&mut self, name: &str, ty: &Type) -> Value {
        self.declare_below(name, ty, &[])(&[])
    }

    /// A function from leaves of these sorts to values of a type.
    fn declare_below(&mut self, name: &str, ty: &Type, below: &[String]) -> Function {
        let with = |of: &Type| -> Vec<String> { below.iter().cloned().chain(of.leaves().iter().map(sort)).collect() };
        match ty {
            Type::Bool | Type::Int | Type::Id(_) => {
                let _ = writeln!(self.script, "(declare-fun {name} ({}) {})", below.join(" "), sort(ty));
                if below.is_empty() && *ty != Type::Bool {
                    self.pool.entry(sort(ty)).or_default().push(term(name));
                }
                let name = name.to_owned();
                Rc::new(move |at| Value::Leaf(apply(&name, at)))
            }
            Type::Tuple(types) => {
                let parts = types.iter().zip(0..).map(|(ty, n)| self.declare_below(&format!("{name}.{n}"), ty, below));
                let parts: Vec<Function> = parts.collect();
                Rc::new(move |at| Value::Tuple(parts.iter().map(|part| part(at)).collect()))
            }
            Type::Option(of) => {
                let has = self.declare_below(&format!("{name}.some"), &Type::Bool, below);
                let content = self.declare_below(&format!("{name}.of"), of, below);
                Rc::new(move |at| Value::Option(has(at).leaf(), Box::new(content(at))))
            }
            Type::Set(of) => {
                let has = self.declare_below(name, &Type::Bool, &with(of));
                Rc::new(move |at| Value::Set(beyond(has.clone(), at)))
            }
            Type::Map(key, value) => {
                let has = self.declare_below(&format!("{name}.has"), &Type::Bool, &with(key));
                let get = self.declare_below(&format!("{name}.at"), value, &with(key));
                Rc::new(move |at| {
                    let (get, before) = (get.clone(), at.to_vec());
                    Value::Map(beyond(has.clone(), at), Rc::new(move |key| get(&[&before, key].concat())))
                })
            }
        }
    }

    fn defined(&mut self, name: &str, values: Vec<Value>) -> State {
        let spec = self.spec;
        let values = spec.variables.iter().zip(values);
        let values = values.map(|(of, value)| self.define(&format!("{name}.{}", of.name), &of.ty, &[], value));
        State(Rc::new(values.collect()))
    }

    /// Gives the terms of a value names, so that terms made of them stay short. The value depends on these bound
    /// variables.
    fn define(&mut self, name: &str, ty: &Type, below: &[(Term, String)], value: Value) -> Value {
        let here = |names: &[(Term, String)]| names.iter().map(|(name, _)| name.clone()).collect::<Vec<Term>>();
        match (ty, value) {
            (Type::Tuple(types), Value::Tuple(parts)) => {
                let parts = types.iter().zip(parts).enumerate();
                Value::Tuple(
                    parts.map(|(n, (ty, part))| self.define(&format!("{name}.{n}"), ty, below, part)).collect(),
                )
            }
            (Type::Option(of), Value::Option(has, content)) => {
                let has = self.define(&format!("{name}.some"), &Type::Bool, below, Value::Leaf(has)).leaf();
                Value::Option(has, Box::new(self.define(&format!("{name}.of"), of, below, *content)))
            }
            (Type::Set(of), Value::Set(predicate)) => {
                let inner = self.bound(below, of);
                let has = predicate(&here(&inner[below.len()..]));
                self.define(name, &Type::Bool, &inner, Value::Leaf(has));
                Value::Set(applied(name.to_owned(), here(below)))
            }
            (Type::Map(key, ty), Value::Map(predicate, function)) => {
                let inner = self.bound(below, key);
                let at = here(&inner[below.len()..]);
                self.define(&format!("{name}.has"), &Type::Bool, &inner, Value::Leaf(predicate(&at)));
                let (get, ty, before) = (function(&at), (**ty).clone(), here(below));
                let get = self.define(&format!("{name}.at"), &ty, &inner, get);
                let names = here(&inner[below.len()..]);
                let of = replaced(get, names);
                Value::Map(applied(format!("{name}.has"), before), of)
            }
            (ty, value) => {
                let list: Vec<String> = below.iter().map(|(name, sort)| format!("({name} {sort})")).collect();
                let term = value.leaf();
                self.is_quantified |= has_quantifier(&term);
                let _ = writeln!(self.script, "(define-fun {name} ({}) {} {term})", list.join(" "), sort(ty));
                Value::Leaf(apply(name, &here(below)))
            }
        }
    }

    /// These bound variables, and more for the leaves of a flat type.
    fn bound(&self, below: &[(Term, String)], ty: &Type) -> Vec<(Term, String)> {
        let more = ty.leaves();
        let more = more.iter().map(|leaf| (term(self.fresh.name("k")), sort(leaf)));
        below.iter().cloned().chain(more).collect()
    }
}

/// A function, of which the first arguments are known.
fn beyond(function: Function, before: &[Term]) -> super::value::Predicate {
    let before = before.to_vec();
    Rc::new(move |at| function(&[&before, at].concat()).leaf())
}

fn applied(name: String, before: Vec<Term>) -> super::value::Predicate {
    Rc::new(move |at| apply(&name, &[&before, at].concat()))
}

/// A function of bound variables, from the value that it has for them: the values of other arguments are made by `let`.
fn replaced(value: Value, names: Vec<Term>) -> Function {
    Rc::new(move |at| substitute(&value, &names, at))
}

fn substitute(value: &Value, names: &[Term], at: &[Term]) -> Value {
    let list: Vec<String> = names.iter().zip(at).map(|(name, to)| format!("({name} {to})")).collect();
    let list = list.join(" ");
    let put = |of: &Term| if names.is_empty() { of.clone() } else { term(format!("(let ({list}) {of})")) };
    match value {
        Value::Leaf(of) => Value::Leaf(put(of)),
        Value::Tuple(parts) => Value::Tuple(parts.iter().map(|part| substitute(part, names, at)).collect()),
        Value::Option(has, of) => Value::Option(put(has), Box::new(substitute(of, names, at))),
        Value::Set(has) => {
            let (has, list) = (has.clone(), list.clone());
            Value::Set(Rc::new(move |inner| term(format!("(let ({list}) {})", has(inner)))))
        }
        Value::Map(has, get) => {
            let (has, get, list, names, at) = (has.clone(), get.clone(), list.clone(), names.to_vec(), at.to_vec());
            Value::Map(
                Rc::new(move |inner| term(format!("(let ({list}) {})", has(inner)))),
                Rc::new(move |inner| substitute(&get(inner), &names, &at)),
            )
        }
    }
}

fn different(a: &Term, b: &Term) -> Term {
    if a == b { term("false") } else { apply("distinct", &[a.clone(), b.clone()]) }
}

fn has_quantifier(of: &Term) -> bool {
    of.contains("(forall") || of.contains("(exists")
}
