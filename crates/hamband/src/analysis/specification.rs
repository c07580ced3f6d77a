//! A sequential data type ⟨Σ, I, updates, queries⟩ (§3.1), read from a text and checked.

use super::core::{Invariant, Parameter, Query, Requirement, Summarised, Summary, Update, Variable};
use super::parser;
use super::syntax::{
    Name, Written, WrittenInvariant, WrittenParameter, WrittenResult, WrittenSummary, WrittenType, WrittenUpdate,
};
use super::text::{Mistake, Parsed, SpecError};
use super::types::Type;

mod expression;

/// A data type to analyse.
///
/// ```
/// use farfield_hamband::analysis::Specification;
///
/// let counter = Specification::parse(
///     "counter.wrdt",
///     "type Counter { state { value: int = 0 } update add(n: int) { value := value + n } query get() -> int = value }",
/// )?;
/// assert_eq!(counter.name(), "Counter");
/// assert_eq!(counter.updates().collect::<Vec<_>>(), ["add"]);
/// assert_eq!(counter.queries().collect::<Vec<_>>(), ["get"]);
/// # Ok::<(), farfield_hamband::analysis::SpecError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Specification {
    pub(crate) name: String,
    pub(crate) sorts: Vec<String>,
    pub(crate) variables: Vec<Variable>,
    pub(crate) invariants: Vec<Invariant>,
    pub(crate) updates: Vec<Update>,
    pub(crate) queries: Vec<Query>,
    pub(crate) summaries: Vec<Summary>,
    /// How many parameters and bound names there are.
    pub(crate) locals: usize,
}

impl Specification {
    /// Reads a specification. `file` is the name that errors have.
    ///
    /// ```
    /// use farfield_hamband::analysis::Specification;
    ///
    /// let text = "type Last { state { last: int = 0 } update set(to: int) { last := to } }";
    /// assert_eq!(Specification::parse("last.wrdt", text)?.name(), "Last");
    /// let error = Specification::parse("last.wrdt", &text.replace("last := ", "lost := ")).unwrap_err();
    /// assert!(error.to_string().starts_with("last.wrdt:1:"), "{error}"); // line 1
    /// # Ok::<(), farfield_hamband::analysis::SpecError>(())
    /// ```
    ///
    /// # Errors
    /// A mistake in the text.
    pub fn parse(file: &str, text: &str) -> Result<Specification, SpecError> {
        parser::parse(text).and_then(|written| check(&written)).map_err(|mistake| mistake.within(file, text))
    }

    /// The type's name.
    ///
    /// ```
    /// # use farfield_hamband::analysis::Specification;
    /// let text = "type Last { state { last: int = 0 } update set(to: int) { last := to } query get() -> int = last }";
    /// let last = Specification::parse("last.wrdt", text)?;
    /// assert_eq!(last.name(), "Last");
    /// # Ok::<(), farfield_hamband::analysis::SpecError>(())
    /// ```
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The names of the update methods, in the order of the text.
    ///
    /// ```
    /// # use farfield_hamband::analysis::Specification;
    /// let text = "type Last { state { last: int = 0 } update set(to: int) { last := to } query get() -> int = last }";
    /// let last = Specification::parse("last.wrdt", text)?;
    /// assert_eq!(last.updates().collect::<Vec<_>>(), ["set"]);
    /// # Ok::<(), farfield_hamband::analysis::SpecError>(())
    /// ```
    pub fn updates(&self) -> impl Iterator<Item = &str> {
        self.updates.iter().map(|update| &*update.name)
    }

    /// The names of the queries.
    ///
    /// ```
    /// # use farfield_hamband::analysis::Specification;
    /// let text = "type Last { state { last: int = 0 } update set(to: int) { last := to } query get() -> int = last }";
    /// let last = Specification::parse("last.wrdt", text)?;
    /// assert_eq!(last.queries().collect::<Vec<_>>(), ["get"]);
    /// # Ok::<(), farfield_hamband::analysis::SpecError>(())
    /// ```
    pub fn queries(&self) -> impl Iterator<Item = &str> {
        self.queries.iter().map(|query| &*query.name)
    }
}

/// What names mean while a text is checked.
struct Checker<'a> {
    sorts: &'a [Name],
    variables: Vec<(String, Type)>,
    updates: Vec<(String, Vec<Type>)>,
    /// Parameters and bound names, the innermost last.
    scope: Vec<(String, usize, Type)>,
    locals: usize,
    /// Where state variables may not be used, and why.
    without_state: Option<&'static str>,
}

fn check(written: &Written) -> Parsed<Specification> {
    unique(&written.sorts, "a sort")?;
    unique(written.state.iter().map(|variable| &variable.name), "a state variable")?;
    let methods = written.updates.iter().map(|update| &update.name);
    unique(methods.chain(written.queries.iter().map(|query| &query.name)), "a method")?;
    let mut checker = Checker {
        sorts: &written.sorts,
        variables: vec![],
        updates: vec![],
        scope: vec![],
        locals: 0,
        without_state: Some("an initial value is the same on all replicas: write a constant"),
    };
    let mut variables = Vec::new();
    for variable in &written.state {
        checker.ty(&variable.ty, false)?;
        let (name, ty) = (variable.name.text.clone(), variable.ty.ty.clone());
        variables.push(Variable { initial: checker.check(&variable.initial, &ty)?, name, ty });
    }
    checker.variables = variables.iter().map(|variable| (variable.name.clone(), variable.ty.clone())).collect();
    checker.without_state = None;
    let invariants = written.invariants.iter().map(|invariant| checker.invariant(invariant)).collect::<Parsed<_>>()?;
    let updates: Vec<Update> = written.updates.iter().map(|update| checker.update(update)).collect::<Parsed<_>>()?;
    let types = |update: &Update| update.parameters.iter().map(|parameter| parameter.ty.clone()).collect();
    checker.updates = updates.iter().map(|update| (update.name.clone(), types(update))).collect();
    let mut queries = Vec::new();
    for query in &written.queries {
        checker.ty(&query.result, true)?;
        let parameters = checker.parameters(&query.parameters)?;
        if let Some(parameter) = query.parameters.iter().find(|parameter| parameter.is_unique) {
            let help = "leave `unique` out: queries change nothing, and are not compared";
            return Err(Mistake::new(parameter.name.at, "a parameter of a query is `unique`", help));
        }
        checker.check(&query.value, &query.result.ty)?;
        checker.scope.truncate(checker.scope.len() - parameters.len());
        queries.push(Query { name: query.name.text.clone() });
    }
    checker.without_state =
        Some("a summary is made of the two calls alone, at whichever state they are: use their arguments");
    let summaries = written.summaries.iter().map(|summary| checker.summary(summary)).collect::<Parsed<_>>()?;
    let sorts = written.sorts.iter().map(|sort| sort.text.clone()).collect();
    let (name, locals) = (written.name.clone(), checker.locals);
    Ok(Specification { name, sorts, variables, invariants, updates, queries, summaries, locals })
}

fn unique<'a>(names: impl IntoIterator<Item = &'a Name>, what: &str) -> Parsed<()> {
    let mut seen: Vec<&Name> = Vec::new();
    for name in names {
        if let Some(first) = seen.iter().find(|other| other.text == name.text) {
            let what = format!("`{}` is the name of {what} already", name.text);
            let help = format!("the first one is in line {}: choose another name", first.at.line);
            return Err(Mistake::new(name.at, what, help));
        }
        seen.push(name);
    }
    Ok(())
}

impl Checker<'_> {
    fn ty(&self, written: &WrittenType, may_be_natural: bool) -> Parsed<()> {
        if written.is_natural && !may_be_natural {
            let help = "write `int`, and `invariant name >= 0` if its values have to be 0 or more";
            return Err(Mistake::new(written.at, "`nat` is a type of parameters and results only", help));
        }
        for name in &written.sorts {
            if !self.sorts.iter().any(|sort| sort.text == name.text) {
                let help = format!("declare it before the type: `sort {}`", name.text);
                return Err(Mistake::new(name.at, format!("`{}` is no type", name.text), help));
            }
        }
        Self::elements(&written.ty).map_err(|inner| {
            let help =
                "elements of sets and keys of maps are int, bool, ids, and tuples of these; use a relation or a map";
            Mistake::new(written.at, format!("{inner} cannot be compared as an element or a key"), help)
        })
    }

    /// The type that may not be an element, a key, or the content of an option.
    fn elements(ty: &Type) -> Result<(), &Type> {
        let flat = |of: &'_ Type| of.is_flat();
        match ty {
            Type::Bool | Type::Int | Type::Id(_) => Ok(()),
            Type::Tuple(parts) => parts.iter().try_for_each(Self::elements),
            Type::Set(of) => {
                if flat(of) {
                    Ok(())
                } else {
                    Err(of)
                }
            }
            Type::Map(key, value) => {
                if flat(key) {
                    Self::elements(value)
                } else {
                    Err(key)
                }
            }
            Type::Option(of) => Self::elements(of),
        }
    }

    fn invariant(&mut self, written: &WrittenInvariant) -> Parsed<Invariant> {
        Ok(Invariant { name: written.name.clone(), condition: self.check(&written.condition, &Type::Bool)? })
    }

    /// Declares them; the caller takes them out of the scope.
    fn parameters(&mut self, written: &[WrittenParameter]) -> Parsed<Vec<Parameter>> {
        unique(written.iter().map(|parameter| &parameter.name), "a parameter")?;
        let mut parameters = Vec::new();
        for WrittenParameter { name, ty, is_unique } in written {
            self.ty(ty, true)?;
            if *is_unique && !ty.ty.is_flat() {
                let help = "make an int or an id unique: calls with other values of it are told apart by that";
                return Err(Mistake::new(ty.at, format!("a {} cannot be unique", ty.ty), help));
            }
            let local = self.declare(name, ty.ty.clone())?;
            parameters.push(Parameter {
                name: name.text.clone(),
                ty: ty.ty.clone(),
                is_natural: ty.is_natural,
                is_unique: *is_unique,
                local,
            });
        }
        Ok(parameters)
    }

    /// Brings a name into scope.
    fn declare(&mut self, name: &Name, ty: Type) -> Parsed<usize> {
        let is_variable = self.variables.iter().any(|(variable, _)| *variable == name.text);
        if is_variable || self.scope.iter().any(|(other, ..)| *other == name.text) {
            let what = if is_variable { "a state variable" } else { "something else here" };
            return Err(Mistake::new(
                name.at,
                format!("`{}` is the name of {what} already", name.text),
                "choose another name",
            ));
        }
        self.locals += 1;
        self.scope.push((name.text.clone(), self.locals - 1, ty));
        Ok(self.locals - 1)
    }

    fn update(&mut self, written: &WrittenUpdate) -> Parsed<Update> {
        let parameters = self.parameters(&written.parameters)?;
        let (mut of_arguments, mut requirements, mut checks_invariant) = (Vec::new(), Vec::new(), None);
        for requirement in &written.requirements {
            let reason = requirement.reason.clone();
            let Some(condition) = &requirement.condition else {
                checks_invariant = Some(reason);
                continue;
            };
            let condition = self.check(condition, &Type::Bool)?;
            let of = if condition.reads(&|_| true) { &mut requirements } else { &mut of_arguments };
            of.push(Requirement { condition, reason });
        }
        unique(written.effects.iter().map(|(name, _)| name), "a variable that this update assigns")?;
        let mut effects = Vec::new();
        for (name, value) in &written.effects {
            let Some(variable) = self.variables.iter().position(|(variable, _)| *variable == name.text) else {
                let names: Vec<_> = self.variables.iter().map(|(name, _)| format!("`{name}`")).collect();
                let help = match names.len() {
                    0 => "declare it: `state { name: type = initial value }`".to_owned(),
                    _ => format!("assign one of {}", names.join(", ")),
                };
                return Err(Mistake::new(name.at, format!("`{}` is no state variable", name.text), help));
            };
            let ty = self.variables[variable].1.clone();
            effects.push((variable, self.check(value, &ty)?));
        }
        self.scope.truncate(self.scope.len() - parameters.len());
        Ok(Update {
            name: written.name.text.clone(),
            parameters,
            of_arguments,
            requirements,
            checks_invariant,
            effects,
        })
    }

    fn method(&self, name: &Name, arguments: usize) -> Parsed<usize> {
        let Some(method) = self.updates.iter().position(|(update, _)| *update == name.text) else {
            let names: Vec<_> = self.updates.iter().map(|(name, _)| format!("`{name}`")).collect();
            let help = format!("the updates are {}", names.join(", "));
            return Err(Mistake::new(name.at, format!("`{}` is no update", name.text), help));
        };
        let count = self.updates[method].1.len();
        if count != arguments {
            let what = format!("`{}` has {count} parameters, not {arguments}", name.text);
            return Err(Mistake::new(name.at, what, "write one argument for each parameter"));
        }
        Ok(method)
    }

    fn summary(&mut self, written: &WrittenSummary) -> Parsed<Summary> {
        let before = self.scope.len();
        let mut parts = Vec::new();
        for call in &written.calls {
            let method = self.method(&call.method, call.arguments.len())?;
            let types = self.updates[method].1.clone();
            let declared = call.arguments.iter().zip(types).map(|(name, ty)| self.declare(name, ty));
            parts.push((method, declared.collect::<Parsed<Vec<_>>>()?));
        }
        let result = self.result(&written.result)?;
        self.scope.truncate(before);
        let (second, first) = (parts.pop().expect("two calls"), parts.pop().expect("two calls"));
        let text = written.text.clone();
        Ok(Summary { methods: [first.0, second.0], arguments: [first.1, second.1], result, text })
    }

    fn result(&mut self, written: &WrittenResult) -> Parsed<Summarised> {
        match written {
            WrittenResult::Call(call) => {
                let method = self.method(&call.method, call.arguments.len())?;
                let types = self.updates[method].1.clone();
                let arguments = call.arguments.iter().zip(&types).map(|(argument, ty)| self.check(argument, ty));
                Ok(Summarised::Call(method, arguments.collect::<Parsed<_>>()?))
            }
            WrittenResult::If(condition, then, otherwise) => {
                let condition = self.check(condition, &Type::Bool)?;
                let then = Box::new(self.result(then)?);
                Ok(Summarised::If(condition, then, Box::new(self.result(otherwise)?)))
            }
        }
    }
}

#[cfg(test)]
mod tests;
