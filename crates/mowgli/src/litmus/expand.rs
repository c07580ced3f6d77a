//! Expanding a test: calls of libraries that have an implementation are replaced by its programs, read with the names
//! of the call.

use std::rc::Rc;

use super::implementation::Implementation;
use super::parse::{Body, LOOP_MAX, OPERANDS_MAX, Parsed, Parser, STATEMENTS_MAX};
use super::*;
use crate::text::{Position, Reader, Token};

/// A call, or a declaration, that is being expanded.
pub(super) struct Inside {
    pub(super) implementation: Rc<Implementation>,
    names: Vec<(String, Binding)>,
    /// The prefix of its registers' names.
    pub(super) scope: String,
    /// The target of its result, and the jumps to its end.
    pub(super) into: Option<usize>,
    pub(super) returns: Vec<usize>,
}

/// The meaning of a name during an expansion.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Binding {
    Value(Expression),
    Object(usize),
    Id(usize),
    Node(NodeNumber),
    Nodes(Vec<NodeNumber>),
    Thread(usize),
    Threads(Vec<usize>),
}

/// The maximum nesting of expansions.
const INSIDE_MAX: usize = 8;

impl Parser {
    /// An initial value: also `x.starts`, while the objects are declared that `x` is made of, sums, and multiples.
    pub(super) fn starting_value(&mut self) -> Result<Value> {
        let mut all = self.starting_operand()?;
        for _ in 0..OPERANDS_MAX {
            if self.inside.is_empty() || !self.reader.takes("+") {
                return Ok(all);
            }
            all = all.plus(&self.starting_operand()?);
        }
        self.fail(self.reader.position(), format!("more than {OPERANDS_MAX} operands"))
    }

    fn starting_operand(&mut self) -> Result<Value> {
        if matches!(self.reader.peek(), Token::Number(_)) && matches!(self.reader.peek_at(1), Token::Symbol("*")) {
            let times = self.reader.number("a factor")?;
            self.reader.expect("*")?;
            let value = self.starting_operand()?;
            return Ok(value.as_number().map_or(Value::None, |number| Value::number(number.wrapping_mul(times))));
        }
        if let Token::Name(name) = self.reader.peek().clone()
            && let Some(Binding::Object(object)) = self.bound(&name)
        {
            self.reader.next();
            self.reader.expect(".")?;
            self.reader.expect_word("starts")?;
            let starts = self.test.objects[object].starts.clone().unwrap_or(Value::number(0));
            if !self.reader.takes(".") {
                return Ok(starts);
            }
            let part = self.reader.number("a part of a tuple")?;
            return Ok(starts.part(usize::try_from(part).unwrap_or(usize::MAX)));
        }
        self.value()
    }

    /// Reads a block of an implementation, with its names. Returns the jumps that lead to its end.
    pub(super) fn expand(
        &mut self,
        implementation: &Rc<Implementation>,
        block: &Reader,
        names: Vec<(String, Binding)>,
        into: Option<usize>,
        read: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<Vec<usize>> {
        let position = self.reader.position();
        if self.inside.len() == INSIDE_MAX {
            return self.fail(position, format!("implementations use each other more than {INSIDE_MAX} levels deep"));
        }
        self.expanded += 1;
        let scope = format!("{}{}:", implementation.name, self.expanded);
        let outer = std::mem::replace(&mut self.reader, block.clone());
        let implementation = Rc::clone(implementation);
        self.inside.push(Inside { implementation, names, scope, into, returns: Vec::new() });
        let read = read(self);
        let inside = self.inside.pop().expect("it was pushed");
        self.reader = outer;
        read.map(|()| inside.returns)
    }

    pub(super) fn bound(&self, name: &str) -> Option<Binding> {
        let names = &self.inside.last()?.names;
        names.iter().rev().find(|bound| bound.0 == name).map(|bound| bound.1.clone())
    }

    /// Reads the block of a `for` once for each of a set.
    pub(super) fn each(&mut self, mut read: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        let name = self.reader.name("a variable")?;
        self.reader.expect_word("in")?;
        let all: Vec<Binding> = if let Token::Number(_) = self.reader.peek() {
            let position = self.reader.position();
            let from = self.reader.number("a number")?;
            self.reader.expect(".")?;
            self.reader.expect(".")?;
            let to = self.reader.number("a number")?;
            if !(0..=LOOP_MAX).contains(&(to - from)) {
                return self.fail(position, format!("at most {LOOP_MAX} numbers, from the lower to the higher"));
            }
            (from..to).map(|number| Binding::Value(Expression::Constant(Value::number(number)))).collect()
        } else {
            match self.set()? {
                Binding::Threads(threads) => threads.into_iter().map(Binding::Thread).collect(),
                Binding::Nodes(nodes) => nodes.into_iter().map(Binding::Node).collect(),
                _ => unreachable!("a set is of nodes or of threads"),
            }
        };
        let start = self.reader.mark();
        if all.is_empty() {
            self.reader.expect("{")?;
            return self.reader.skip_block();
        }
        for binding in all {
            self.reader.back_to(start);
            self.statements += 1;
            if self.statements > STATEMENTS_MAX {
                return self.fail(self.reader.position(), format!("more than {STATEMENTS_MAX} rounds of loops in all"));
            }
            let inside = self.inside.last_mut().expect("only implementations go over sets");
            inside.names.push((name.clone(), binding));
            let depth = inside.names.len() - 1;
            self.reader.enter()?;
            let done = read(self);
            self.reader.leave();
            done?;
            self.inside.last_mut().expect("as before").names.truncate(depth);
        }
        Ok(())
    }

    /// Some nodes, or some threads.
    pub(super) fn set(&mut self) -> Result<Binding> {
        let mut all = self.set_atom()?;
        for _ in 0..OPERANDS_MAX {
            let position = self.reader.position();
            if !self.reader.takes("\\") {
                return Ok(all);
            }
            let without = self.set_atom()?;
            all = match (all, without) {
                (Binding::Nodes(all), Binding::Nodes(without)) => {
                    Binding::Nodes(all.into_iter().filter(|node| !without.contains(node)).collect())
                }
                (Binding::Threads(all), Binding::Threads(without)) => {
                    Binding::Threads(all.into_iter().filter(|thread| !without.contains(thread)).collect())
                }
                _ => return self.fail(position, "one side is of nodes, and the other of threads"),
            };
        }
        self.fail(self.reader.position(), format!("more than {OPERANDS_MAX} operands"))
    }

    fn set_atom(&mut self) -> Result<Binding> {
        let position = self.reader.position();
        let known = self.known.clone().unwrap_or_default();
        if self.reader.takes("{") {
            let mut nodes = Vec::new();
            while !self.reader.takes("}") {
                nodes.push(self.node_term()?);
                self.reader.takes(",");
            }
            return Ok(Binding::Nodes(nodes));
        }
        if self.reader.takes_word("nodes") {
            if !self.reader.takes("(") {
                return Ok(Binding::Nodes(known.0));
            }
            let Binding::Threads(threads) = self.set()? else { return self.fail(position, "these are nodes already") };
            self.reader.expect(")")?;
            let mut nodes: Vec<_> = threads.into_iter().filter_map(|thread| known.1.get(thread).copied()).collect();
            nodes.sort_unstable();
            nodes.dedup();
            return Ok(Binding::Nodes(nodes));
        }
        let name = self.reader.name("a set of nodes or threads")?;
        match self.bound(&name) {
            Some(Binding::Node(node)) => Ok(Binding::Nodes(vec![node])),
            Some(Binding::Thread(thread)) => Ok(Binding::Threads(vec![thread])),
            Some(set @ (Binding::Nodes(_) | Binding::Threads(_))) => Ok(set),
            Some(Binding::Object(object)) => {
                self.reader.expect(".")?;
                let attribute = self.reader.name("an attribute")?;
                let list = self.test.objects[object].threads.iter().find(|list| list.0 == attribute);
                match list {
                    Some(list) => Ok(Binding::Threads(list.1.clone())),
                    None => self.fail(position, format!("`{name}` has no threads `{attribute}`")),
                }
            }
            _ => self.fail(position, format!("`{name}` is no set of nodes or threads")),
        }
    }

    /// A node: its number, or in an implementation, `here` or a variable.
    pub(super) fn node_term(&mut self) -> Result<NodeNumber> {
        let position = self.reader.position();
        let Token::Name(name) = self.reader.peek().clone() else { return self.node() };
        if let Some(home) = self.home()? {
            return Ok(home);
        }
        self.reader.next();
        match self.bound(&name) {
            Some(Binding::Node(node)) => Ok(node),
            _ => self.fail(position, format!("`{name}` is no node")),
        }
    }

    /// `x.home`, if that is next.
    pub(super) fn home(&mut self) -> Result<Option<NodeNumber>> {
        let mark = self.reader.mark();
        let Token::Name(name) = self.reader.next() else { unreachable!("a name was seen") };
        let object = match self.bound(&name) {
            Some(Binding::Object(object)) => Some(object),
            _ => None,
        };
        if let Some(object) = object
            && self.reader.takes(".")
            && self.reader.takes_word("home")
        {
            return Ok(self.test.objects[object].home);
        }
        self.reader.back_to(mark);
        Ok(None)
    }

    /// The name of an object that an implementation has made, of which the first word was read.
    pub(super) fn path(&mut self, position: Position, first: &str) -> Result<String> {
        let mut name = match self.bound(first) {
            Some(Binding::Object(object)) => self.test.objects[object].name.clone(),
            Some(_) => return self.fail(position, format!("`{first}` is no object")),
            None => {
                format!("{}.{first}", self.inside.last().expect("paths are an implementation's").implementation.name)
            }
        };
        if self.reader.takes(".") {
            name = format!("{name}.{}", self.reader.name("a part of the object")?);
        }
        Ok(name + &self.indexes()?)
    }

    /// A register that a thread keeps between calls, of which `own` was read.
    pub(super) fn own_register(&mut self, thread: usize) -> Result<usize> {
        self.reader.expect(".")?;
        let name = self.reader.name("a register")?;
        let implementation = &self.inside.last().expect("only implementations have such").implementation.name;
        let name = format!("{implementation}::{name}");
        let name = name + &self.indexes()?;
        let registers = &mut self.test.threads[thread].registers;
        Ok(registers.iter().position(|other| *other == name).unwrap_or_else(|| {
            registers.push(name);
            registers.len() - 1
        }))
    }

    /// The text in brackets after a name, if there is any.
    fn indexes(&mut self) -> Result<String> {
        let mut name = String::new();
        while self.reader.takes("[") {
            let position = self.reader.position();
            if let Token::Name(_) = self.reader.peek()
                && let Some(home) = self.home()?
            {
                self.reader.expect("]")?;
                name = format!("{name}[{home}]");
                continue;
            }
            let index = match self.reader.next() {
                Token::Number(number) => number.to_string(),
                Token::Name(index) => match self.bound(&index) {
                    Some(Binding::Node(node)) => node.to_string(),
                    Some(Binding::Id(id)) => self.test.ids[id].clone(),
                    Some(Binding::Thread(thread)) => format!("P{thread}"),
                    Some(Binding::Value(Expression::Constant(value))) => value.to_string(),
                    _ => {
                        return self
                            .fail(position, format!("`{index}` is no node, no thread and no number that is known"));
                    }
                },
                _ => return self.fail(position, "a node, a thread or a number is expected here"),
            };
            self.reader.expect("]")?;
            name = format!("{name}[{index}]");
        }
        Ok(name)
    }

    /// A call: as it is, or expanded.
    pub(super) fn emit(&mut self, body: &mut Body, into: Option<usize>, call: Parsed) -> Result<()> {
        let Parsed { position, library, method, arguments } = call;
        let of = self.implementations.iter().find(|(of, _)| *of == library).map(|(_, it)| Rc::clone(it));
        let Some(of) = of else {
            body.code.push(Instruction::Call(into, Call { library, method, arguments }));
            return Ok(());
        };
        let Some((_, parameters, block)) = of.methods.iter().find(|known| known.0 == method) else {
            return self.fail(position, format!("the implementation `{}` has no method `{method}`", of.name));
        };
        if parameters.len() != arguments.len() {
            let (takes, given) = (parameters.len(), arguments.len());
            let what = format!("`{method}` is called with {given} arguments, and the implementation's takes {takes}");
            return self.fail(position, what);
        }
        let bindings = arguments.into_iter().map(|argument| match argument {
            Argument::Value(value) => Binding::Value(value),
            Argument::Object(object) => Binding::Object(object),
            Argument::Id(id) => Binding::Id(id),
            Argument::Node(node) => Binding::Node(node),
            Argument::Nodes(nodes) => Binding::Nodes(nodes),
        });
        let mut names: Vec<_> = parameters.iter().cloned().zip(bindings).collect();
        names.push(("me".to_owned(), Binding::Thread(body.thread)));
        names.push(("here".to_owned(), Binding::Node(self.test.threads[body.thread].node)));
        let breaks = std::mem::take(&mut body.breaks);
        let returns = self.expand(&of, block, names, into, |parser| parser.block(body));
        body.breaks = breaks;
        // A block without a return returns none. (Not before: arguments may be read from the same register.)
        body.code.extend(into.map(|into| Instruction::Set(into, Expression::Constant(Value::None))));
        for at in returns? {
            body.code[at] = Instruction::Jump(body.code.len());
        }
        Ok(())
    }

    /// Whether a library's methods may be called here: a test's own libraries are those of its first line.
    pub(super) fn is_usable(&self, library: usize) -> bool {
        match self.inside.last() {
            Some(inside) => inside.implementation.over.contains(&self.test.libraries[library].name),
            None => library < self.own_libraries,
        }
    }

    /// Whether a set of nodes begins here.
    pub(super) fn is_set(&self) -> bool {
        let Token::Name(name) = self.reader.peek() else { return false };
        let is_taken_out_of = matches!(self.reader.peek_at(1), Token::Symbol("\\"));
        name == "nodes" || is_taken_out_of || matches!(self.bound(name), Some(Binding::Nodes(_)))
    }
}
