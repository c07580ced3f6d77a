//! Counterexamples, for a person to read.

use std::collections::BTreeMap;
use std::fmt;

use super::question::Call;
use super::sexpr::Ids;
use super::solver::{Solver, SolverError};
use super::specification::Specification;
use super::types::Type;
use super::value::{Term, Value};

/// How many elements of a set, or keys of a map, are looked at.
const ELEMENTS_MAX: usize = 400;

/// Why a relation does not hold: a state, calls, the states after them, and what is wrong with these.
///
/// Sets and maps show the elements and keys that occur in the example. (The solver's model may have others, which do
/// not matter.)
///
/// ```
/// use farfield_hamband::analysis::{Options, Specification, Verdict, analyse};
///
/// let spec = Specification::parse(
///     "t.wrdt",
///     "type Last { state { last: int = 0 } update set(to: int) { last := to } }",
/// )?;
/// let analysis = analyse(&spec, &Options::default())?;
/// let Verdict::Fails(counterexample) = &analysis.state_commutes[0].verdict else { panic!("it does not commute") };
/// assert_eq!(counterexample.causes, ["the results differ in last"]);
/// assert_eq!(counterexample.states.len(), 5); // before, after each call, and after both in both orders
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counterexample {
    /// The calls, as `withdraw(2)`.
    pub calls: Vec<String>,
    /// The states, in the order in which to read them.
    pub states: Vec<ShownState>,
    /// What is wrong.
    pub causes: Vec<String>,
}

/// A state of a counterexample.
///
/// ```
/// use farfield_hamband::analysis::{Options, Specification, Verdict, analyse};
///
/// let text = "type Last { state { last: int = 0 } update set(to: int) { last := to } }";
/// let analysis = analyse(&Specification::parse("last.wrdt", text)?, &Options::default())?;
/// let Verdict::Fails(counterexample) = &analysis.state_commutes[0].verdict else { panic!("it does not commute") };
/// let before = &counterexample.states[0];
/// assert_eq!((before.label.as_str(), before.variables[0].0.as_str()), ("before", "last"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShownState {
    /// Which one: `before`, or the calls that lead to it from there.
    pub label: String,
    /// The state variables and their values: all of them, or those that the calls assign.
    pub variables: Vec<(String, String)>,
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.states.iter().map(|state| state.label.chars().count()).max().unwrap_or(0);
        for ShownState { label, variables } in &self.states {
            let variables: Vec<String> = variables.iter().map(|(name, value)| format!("{name} = {value}")).collect();
            let variables = if variables.is_empty() { "no change".to_owned() } else { variables.join(", ") };
            writeln!(f, "{label:width$}  {variables}")?;
        }
        write!(f, "=> {}", self.causes.join("; "))
    }
}

/// Which state is shown.
#[derive(Clone, Debug)]
pub(crate) enum Shown {
    /// All variables of it, under this name.
    Whole(&'static str),
    /// The state to which these calls lead, by their numbers.
    After(Vec<usize>),
}

/// The elements that sets may have: by leaf type, each value and a term that has it.
type Pool = BTreeMap<String, Vec<(String, Term)>>;

/// A value, with numbers of terms as its parts.
enum Plan {
    Leaf(usize),
    Tuple(Vec<Plan>),
    Option(usize, Box<Plan>),
    /// Elements, and whether they are in it.
    Set(Vec<(Plan, usize)>),
    Map(Vec<(Plan, usize, Plan)>),
}

/// Reads a counterexample out of the solver's model. None: there is no model any more.
pub(crate) fn render(
    spec: &Specification,
    pool: &Pool,
    calls: &[Call],
    shown: &[(Shown, &[Value])],
    causes: Vec<String>,
    solver: &mut Solver,
) -> Result<Option<Counterexample>, SolverError> {
    let mut terms = Vec::new();
    let mut call_plans = Vec::new();
    for call in calls {
        let parameters = spec.updates[call.method].parameters.iter().zip(&call.arguments);
        call_plans.push(parameters.map(|(of, value)| plan(&of.ty, value, pool, &mut terms)).collect::<Vec<_>>());
    }
    let mut states = Vec::new();
    for (what, values) in shown {
        let mut plans = Vec::new();
        for (number, (variable, value)) in spec.variables.iter().zip(*values).enumerate() {
            let assigns = |call: &usize| {
                spec.updates[calls[*call].method].effects.iter().any(|(variable, _)| *variable == number)
            };
            if !matches!(what, Shown::After(calls) if !calls.iter().any(assigns)) {
                plans.push((variable.name.clone(), plan(&variable.ty, value, pool, &mut terms)));
            }
        }
        states.push((what, plans));
    }
    let Some(values) = solver.values(&terms)? else { return Ok(None) };
    let mut ids = Ids::default();
    let calls: Vec<String> = calls
        .iter()
        .zip(call_plans)
        .map(|(call, plans)| {
            let arguments: Vec<String> = plans.iter().map(|plan| text(plan, &values, &mut ids)).collect();
            format!("{}({})", spec.updates[call.method].name, arguments.join(", "))
        })
        .collect();
    let calls = match calls.as_slice() {
        [first, second] if first == second => vec![format!("the first {first}"), format!("the second {first}")],
        _ => calls,
    };
    let states = states.into_iter().map(|(what, plans)| ShownState {
        label: match what {
            Shown::Whole(name) => (*name).to_owned(),
            Shown::After(numbers) => numbers.iter().map(|call| &*calls[*call]).collect::<Vec<_>>().join(", then "),
        },
        variables: plans.into_iter().map(|(name, plan)| (name, text(&plan, &values, &mut ids))).collect(),
    });
    let states = states.collect();
    Ok(Some(Counterexample { calls, states, causes }))
}

fn plan(ty: &Type, value: &Value, pool: &Pool, terms: &mut Vec<Term>) -> Plan {
    let mut ask = |of: Term| {
        terms.push(of);
        terms.len() - 1
    };
    match (ty, value) {
        (Type::Tuple(types), Value::Tuple(parts)) => {
            Plan::Tuple(types.iter().zip(parts).map(|(ty, part)| plan(ty, part, pool, terms)).collect())
        }
        (Type::Option(of), Value::Option(has, content)) => {
            Plan::Option(ask(has.clone()), Box::new(plan(of, content, pool, terms)))
        }
        (Type::Set(of), Value::Set(has)) => {
            let elements = elements(of, pool).into_iter().map(|at| {
                terms.push(has(&at));
                let is_in = terms.len() - 1;
                (plan(of, &Value::flat(of, &mut at.into_iter()), pool, terms), is_in)
            });
            Plan::Set(elements.collect())
        }
        (Type::Map(key, of), Value::Map(has, get)) => {
            let keys = elements(key, pool).into_iter().map(|at| {
                terms.push(has(&at));
                let is_in = terms.len() - 1;
                let value = plan(of, &get(&at), pool, terms);
                (plan(key, &Value::flat(key, &mut at.into_iter()), pool, terms), is_in, value)
            });
            Plan::Map(keys.collect())
        }
        (_, value) => Plan::Leaf(ask(value.leaf())),
    }
}

/// All elements of a flat type that are made of the pool's values.
fn elements(ty: &Type, pool: &Pool) -> Vec<Vec<Term>> {
    let mut all = vec![vec![]];
    for leaf in ty.leaves() {
        let values = pool.get(&super::value::sort(&leaf)).map_or(&[][..], Vec::as_slice);
        let longer = |before: &Vec<Term>| -> Vec<Vec<Term>> {
            values.iter().map(|(_, term)| [&before[..], std::slice::from_ref(term)].concat()).collect()
        };
        all = all.iter().flat_map(longer).take(ELEMENTS_MAX).collect();
    }
    all
}

fn text(plan: &Plan, values: &[String], ids: &mut Ids) -> String {
    let is_in = |at: &usize| values[*at] == "true";
    match plan {
        Plan::Leaf(at) => ids.name(&values[*at]),
        Plan::Tuple(parts) => {
            format!("({})", parts.iter().map(|part| text(part, values, ids)).collect::<Vec<_>>().join(", "))
        }
        Plan::Option(has, content) if is_in(has) => format!("some({})", text(content, values, ids)),
        Plan::Option(..) => "none".to_owned(),
        Plan::Set(elements) => {
            let elements = elements.iter().filter(|(_, at)| is_in(at)).map(|(element, _)| text(element, values, ids));
            format!("{{{}}}", elements.collect::<Vec<_>>().join(", "))
        }
        Plan::Map(keys) => {
            let keys = keys.iter().filter(|(_, at, _)| is_in(at));
            let keys = keys.map(|(key, _, value)| format!("{}: {}", text(key, values, ids), text(value, values, ids)));
            format!("{{{}}}", keys.collect::<Vec<_>>().join(", "))
        }
    }
}
