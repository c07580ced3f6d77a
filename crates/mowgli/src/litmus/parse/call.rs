//! Calls of methods, and their arguments.

use super::super::expand::Binding;
use super::super::*;
use super::{Parsed, Parser};
use crate::model::{Parameter, list};
use crate::text::{Error, Position, Reader, Token};

/// An argument as it is written.
enum Written {
    Expression(Expression),
    /// A register, an object, or the name of operations.
    Name(String, Option<usize>),
    /// A meaning that is certain.
    Bound(Binding),
}

impl Parser {
    pub(super) fn is_call(&self) -> bool {
        // NAME( or LIBRARY.NAME(
        let is =
            |ahead: usize, symbol: &str| matches!(self.reader.peek_at(ahead), Token::Symbol(next) if *next == symbol);
        let is_name = |ahead: usize| matches!(self.reader.peek_at(ahead), Token::Name(_));
        is_name(0) && (is(1, "(") || is(1, ".") && is_name(2) && is(3, "("))
    }

    pub(super) fn call(&mut self, thread: usize) -> Result<Parsed> {
        let position = self.reader.position();
        let mut name = self.reader.name("a statement")?;
        let mut of = None;
        if self.reader.takes(".") {
            let known = self.test.libraries.iter().position(|library| library.name == name);
            let Some(library) = known else { return self.fail(position, format!("the test has no library `{name}`")) };
            of = Some(library);
            name = self.reader.name("a method")?;
        }
        let has = |library: &usize| self.test.libraries[*library].methods.contains_key(&name);
        let among = (0..self.test.libraries.len()).filter(|it| of.is_none_or(|of| of == *it)).filter(has);
        let among: Vec<usize> = among.filter(|it| self.is_usable(*it)).collect();
        if among.is_empty() {
            let methods = self.test.libraries.iter().flat_map(|library| library.methods());
            return self.fail(position, format!("there is no method `{name}`; there are {}", list(methods)));
        }
        self.reader.expect("(")?;
        let mut written = Vec::new();
        if !self.reader.takes(")") {
            loop {
                written.push((self.reader.position(), self.written(thread)?));
                if self.reader.takes(")") {
                    break;
                }
                if !self.reader.takes(",") {
                    return Err(self.reader.unexpected("`,` or `)`"));
                }
            }
        }
        let mut fits = Vec::new();
        let mut wrong = None;
        for library in among {
            match self.arguments(thread, position, library, &name, &written) {
                Ok(arguments) => fits.push((library, arguments)),
                Err(error) => wrong = Some(error),
            }
        }
        if fits.len() > 1 {
            let libraries = fits.iter().map(|fit| self.test.libraries[fit.0].name.as_str());
            return self.fail(position, format!("`{name}` of which library? {} have it", list(libraries)));
        }
        let Some((library, arguments)) = fits.pop() else { return Err(wrong.expect("none fits, so one was wrong")) };
        // The names of operations that are new, now that it is clear that they are such. Each implementation has its
        // own.
        let implemented = self.implementations.iter().find(|(of, _)| *of == library);
        let own = self.inside.last().map(|inside| &inside.implementation).or(implemented.map(|(_, it)| it));
        let own = own.map_or(String::new(), |implementation| format!("{}:", implementation.name));
        let arguments =
            arguments.into_iter().map(|argument| argument.unwrap_or_else(|id| self.id(format!("{own}{id}")))).collect();
        Ok(Parsed { position, library, method: name, arguments })
    }

    fn id(&mut self, name: String) -> Argument {
        let ids = &mut self.test.ids;
        Argument::Id(ids.iter().position(|id| *id == name).unwrap_or_else(|| {
            ids.push(name);
            ids.len() - 1
        }))
    }

    fn written(&mut self, thread: usize) -> Result<Written> {
        let position = self.reader.position();
        if matches!(self.reader.peek(), Token::Symbol("{")) || !self.inside.is_empty() && self.is_set() {
            return Ok(Written::Bound(self.set()?));
        }
        if let Token::Name(name) = self.reader.peek().clone()
            && !self.inside.is_empty()
        {
            let is_value =
                matches!(self.bound(&name), Some(Binding::Value(_))) || self.register(thread, &name).is_some();
            let is_path = matches!(self.reader.peek_at(1), Token::Symbol("." | "["));
            if is_path && !is_value || matches!(self.bound(&name), Some(Binding::Object(_))) {
                if let Some(home) = self.home()? {
                    return Ok(Written::Bound(Binding::Node(home)));
                }
                self.reader.next();
                let path = self.path(position, &name)?;
                let object = self.object_of(&path);
                let unknown = || self.reader.error(position, format!("there is no `{path}`"));
                return Ok(Written::Bound(Binding::Object(object.ok_or_else(unknown)?)));
            }
            let is_alone = matches!(self.reader.peek_at(1), Token::Symbol("," | ")"));
            if let (true, Some(Binding::Value(value))) = (is_alone, self.bound(&name)) {
                self.reader.next();
                return Ok(Written::Expression(value));
            }
            if let Some(bound @ (Binding::Id(_) | Binding::Node(_) | Binding::Thread(_))) = self.bound(&name) {
                self.reader.next();
                return Ok(Written::Bound(bound));
            }
        }
        if let (Token::Name(name), Token::Symbol("," | ")")) = (self.reader.peek().clone(), self.reader.peek_at(1))
            && name != "none"
        {
            self.reader.next();
            let register = self.register(thread, &name);
            return Ok(Written::Name(name, register));
        }
        self.expression(thread).map(Written::Expression)
    }

    /// The arguments of a method of a library; names of operations as such.
    fn arguments(
        &mut self,
        thread: usize,
        position: Position,
        library: usize,
        name: &str,
        written: &[(Position, Written)],
    ) -> Result<Vec<std::result::Result<Argument, String>>> {
        let method = self.test.libraries[library].methods[name].clone();
        if method.parameters.len() != written.len() {
            let what = format!("`{name}` takes {} arguments, and here are {}", method.parameters.len(), written.len());
            return self.fail(position, what);
        }
        let pairs = method.parameters.iter().zip(written);
        pairs
            .map(|((parameter, takes), (at, written))| self.argument(thread, *at, library, parameter, takes, written))
            .collect()
    }

    fn argument(
        &mut self,
        thread: usize,
        position: Position,
        library: usize,
        parameter: &str,
        takes: &Parameter,
        written: &Written,
    ) -> Result<std::result::Result<Argument, String>> {
        let fail =
            |reader: &Reader, wants: &str| -> Error { reader.error(position, format!("`{parameter}` is {wants}")) };
        Ok(Ok(match (takes, written) {
            (Parameter::Value, Written::Expression(expression)) => Argument::Value(expression.clone()),
            (Parameter::Value, Written::Name(_, Some(register))) => Argument::Value(Expression::Register(*register)),
            (Parameter::Value, Written::Name(name, None)) => {
                return Err(fail(&self.reader, &format!("a value, and P{thread} has no register `{name}` here")));
            }
            (Parameter::Id, Written::Name(name, None)) if self.object_of(name).is_none() => {
                return Ok(Err(name.clone()));
            }
            (Parameter::Node, Written::Expression(Expression::Constant(value))) => {
                let number = value.as_number().and_then(|number| NodeNumber::try_from(number).ok());
                let Some(node) = number.filter(|node| (1..=64).contains(node)) else {
                    return Err(fail(&self.reader, "a node, from 1 to 64"));
                };
                if let Err(at) = self.test.nodes.binary_search(&node) {
                    self.test.nodes.insert(at, node);
                }
                Argument::Node(node)
            }
            (Parameter::Nodes, Written::Bound(Binding::Nodes(nodes))) => Argument::Nodes(nodes.clone()),
            (Parameter::Node, Written::Bound(Binding::Node(node))) => Argument::Node(*node),
            (Parameter::Id, Written::Bound(Binding::Id(id))) => Argument::Id(*id),
            (
                Parameter::Local(kind) | Parameter::Remote(kind),
                Written::Name(..) | Written::Bound(Binding::Object(_)),
            ) => {
                let at = self.object_argument(library, kind, written);
                let Some(at) = at else { return Err(fail(&self.reader, &format!("a {kind}"))) };
                let object = &self.test.objects[at];
                let here = self.test.threads[thread].node;
                if matches!(takes, Parameter::Local(_)) && object.home.is_some_and(|home| home != here) {
                    let name = &object.name;
                    let what =
                        format!("`{parameter}` is local, and `{name}` is not on node {here}, where P{thread} runs");
                    return self.fail(position, what);
                }
                Argument::Object(at)
            }
            (Parameter::Id, _) => return Err(fail(&self.reader, "a name for operations")),
            (Parameter::Node, _) => return Err(fail(&self.reader, "the number of a node")),
            (Parameter::Nodes, _) => return Err(fail(&self.reader, "a set of nodes, as {1, 2}")),
            (Parameter::Local(kind) | Parameter::Remote(kind), _) => {
                return Err(fail(&self.reader, &format!("a {kind}")));
            }
            (Parameter::Value, Written::Bound(_)) => return Err(fail(&self.reader, "a value")),
        }))
    }

    /// The object of a library's kind that an argument names.
    fn object_argument(&self, library: usize, kind: &str, written: &Written) -> Option<usize> {
        let at = match written {
            Written::Bound(Binding::Object(object)) => Some(*object),
            Written::Name(name, _) => self.object_of(name),
            _ => None,
        };
        at.filter(|at| {
            let object = &self.test.objects[*at];
            object.library == library && object.kind == kind
        })
    }
}
