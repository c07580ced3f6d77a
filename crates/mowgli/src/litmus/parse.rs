//! Reading a litmus test.

mod call;
mod object;

use super::expand::{Binding, Inside};
use super::implementation::Implementation;
use super::*;
use crate::model::list;
use crate::text::{Position, Reader, Token};

/// Loops are unrolled: so often at most, and so many steps of a thread.
pub(super) const LOOP_MAX: i64 = 64;
const CODE_MAX: usize = 1024;
const THREADS_MAX: usize = 16;
/// All threads together.
pub(super) const STATEMENTS_MAX: usize = CODE_MAX * THREADS_MAX;
pub(super) const OPERANDS_MAX: usize = 64;

pub(super) struct Parser {
    pub(super) reader: Reader,
    pub(super) test: Test,
    /// Statements that were read, those of loops as often as they run.
    pub(super) statements: usize,
    /// The names that threads are declared by, which objects may use before.
    threads_used: Vec<(usize, Position)>,
    /// Those of the test's libraries.
    pub(super) implementations: Vec<(usize, Rc<Implementation>)>,
    /// All nodes, and where the threads are: known from a first reading where a test is expanded.
    pub(super) known: Option<(Vec<NodeNumber>, Vec<NodeNumber>)>,
    /// The expansions under way, the innermost last.
    pub(super) inside: Vec<Inside>,
    /// Calls that were expanded.
    pub(super) expanded: usize,
    /// How many of the test's libraries are those of its first line.
    pub(super) own_libraries: usize,
}

/// A call as it is written.
pub(super) struct Parsed {
    pub(super) position: Position,
    pub(super) library: usize,
    pub(super) method: String,
    pub(super) arguments: Vec<Argument>,
}

/// The code of a thread, as its statements are read.
pub(super) struct Body {
    pub(super) thread: usize,
    pub(super) code: Vec<Instruction>,
    /// Where the loops around leave to: the jumps that are not filled in yet.
    pub(super) breaks: Vec<Vec<usize>>,
}

/// Reads a test. Libraries that have an implementation are expanded.
pub(super) fn test(file: &str, text: &str, models: &Models, all: &[Rc<Implementation>]) -> Result<Test> {
    let reader = Reader::new(file, text)?;
    let first = read(reader.clone(), models, &[], None)?;
    if all.is_empty() {
        return Ok(first);
    }
    let threads = first.threads.iter().map(|thread| thread.node).collect();
    read(reader, models, all, Some((first.nodes, threads)))
}

fn read(
    mut reader: Reader,
    models: &Models,
    all: &[Rc<Implementation>],
    known: Option<(Vec<NodeNumber>, Vec<NodeNumber>)>,
) -> Result<Test> {
    let mut libraries = named_libraries(&mut reader, models)?;
    let name = reader.name("the test's name")?;
    let reason = match reader.peek().clone() {
        Token::Text(text) => {
            reader.next();
            text
        }
        _ => String::new(),
    };
    let own_libraries = libraries.len();
    let implementations = implementations_of(&mut libraries, models, all)?;
    let test = Test {
        name,
        reason,
        libraries,
        objects: Vec::new(),
        threads: Vec::new(),
        nodes: Vec::new(),
        shown: Vec::new(),
        quantifier: Quantifier::Exists,
        condition: Condition::True,
        question: String::new(),
        ids: Vec::new(),
    };
    let mut parser = Parser {
        reader,
        test,
        statements: 0,
        threads_used: Vec::new(),
        implementations,
        known,
        inside: Vec::new(),
        expanded: 0,
        own_libraries,
    };
    parser.globals()?;
    parser.body()?;
    Ok(parser.test)
}

/// The libraries that the first line names.
fn named_libraries(reader: &mut Reader, models: &Models) -> Result<Vec<Rc<Library>>> {
    let mut libraries = Vec::new();
    loop {
        let position = reader.position();
        let name = reader.name("the name of a model")?;
        let unknown =
            || reader.error(position, format!("there is no model `{name}`; known are {}", list(models.names())));
        libraries.push(models.get(&name).ok_or_else(unknown)?);
        if !reader.takes(",") {
            return Ok(libraries);
        }
    }
}

/// The implementations of the libraries, with their places. Adds the libraries that they use.
fn implementations_of(
    libraries: &mut Vec<Rc<Library>>,
    models: &Models,
    all: &[Rc<Implementation>],
) -> Result<Vec<(usize, Rc<Implementation>)>> {
    let mut implementations = Vec::new();
    for implementation in all {
        let position = implementation.position;
        let Some(of) = libraries.iter().position(|library| library.name == implementation.of) else {
            continue;
        };
        implementations.push((of, Rc::clone(implementation)));
        for name in &implementation.over {
            let unknown = || implementation.reader.error(position, format!("there is no model `{name}`"));
            let library = models.get(name).ok_or_else(unknown)?;
            if !libraries.iter().any(|other| other.name == *name) {
                libraries.push(library);
            }
        }
    }
    Ok(implementations)
}

impl Parser {
    /// Declares the objects that implementations have once in a test.
    fn globals(&mut self) -> Result<()> {
        for (_, implementation) in self.implementations.clone() {
            for block in &implementation.globals {
                self.expand(&implementation, block, Vec::new(), None, |parser| {
                    parser.reader.expect("{")?;
                    parser.declarations()
                })?;
            }
        }
        Ok(())
    }

    /// All that follows the first line: objects, threads and the question.
    fn body(&mut self) -> Result<()> {
        self.reader.expect("{")?;
        self.declarations()?;
        while !self.is_at_question() {
            self.thread()?;
        }
        if let Some((thread, position)) = self.threads_used.iter().find(|used| used.0 >= self.test.threads.len()) {
            return self.fail(*position, format!("there is no thread P{thread}"));
        }
        self.question()?;
        if *self.reader.peek() != Token::End {
            return Err(self.reader.unexpected("the end"));
        }
        Ok(())
    }

    pub(super) fn fail<T>(&self, position: Position, what: impl Into<String>) -> Result<T> {
        Err(self.reader.error(position, what))
    }

    pub(super) fn node(&mut self) -> Result<NodeNumber> {
        let position = self.reader.position();
        let number = self.reader.number("the number of a node")?;
        let Some(node) = NodeNumber::try_from(number).ok().filter(|node| (1..=64).contains(node)) else {
            return self.fail(position, "nodes have numbers from 1 to 64");
        };
        if let Err(at) = self.test.nodes.binary_search(&node) {
            self.test.nodes.insert(at, node);
        }
        Ok(node)
    }

    /// The number of a thread's name, as P0.
    fn thread_name(&mut self) -> Result<usize> {
        let position = self.reader.position();
        let name = self.reader.name("a thread, as P0")?;
        let number = name.strip_prefix('P').and_then(|number| number.parse().ok());
        match number {
            Some(number) if number < THREADS_MAX && name == format!("P{number}") => Ok(number),
            _ => self.fail(position, format!("threads are named from P0 to P{}", THREADS_MAX - 1)),
        }
    }

    pub(super) fn value(&mut self) -> Result<Value> {
        if self.reader.takes_word("none") {
            return Ok(Value::None);
        }
        if self.reader.takes("(") {
            let numbers = self.reader.list(",", ")", signed)?;
            return Ok(Value::Numbers(numbers.into_iter().collect()));
        }
        signed(&mut self.reader).map(Value::number)
    }

    // ---- threads ----

    fn thread(&mut self) -> Result<()> {
        let position = self.reader.position();
        let number = self.thread_name()?;
        if number != self.test.threads.len() {
            return self.fail(position, format!("P{} is expected here", self.test.threads.len()));
        }
        self.reader.expect("@")?;
        let node = self.node()?;
        self.test.threads.push(TestThread { node, registers: Vec::new(), code: Vec::new() });
        let mut body = Body { thread: number, code: Vec::new(), breaks: Vec::new() };
        self.block(&mut body)?;
        self.test.threads[number].code = body.code;
        Ok(())
    }

    pub(super) fn block(&mut self, body: &mut Body) -> Result<()> {
        self.reader.expect("{")?;
        while !self.reader.takes("}") {
            let position = self.reader.position();
            self.statement(body)?;
            self.statements += 1;
            if body.code.len() > CODE_MAX || self.statements > STATEMENTS_MAX {
                return self
                    .fail(position, format!("a thread has at most {CODE_MAX} steps, with all rounds of its loops"));
            }
        }
        Ok(())
    }

    fn statement(&mut self, body: &mut Body) -> Result<()> {
        let position = self.reader.position();
        if self.reader.takes_word("if") {
            return self.conditional(body);
        }
        if self.reader.takes_word("loop") {
            return self.repeat(body);
        }
        if self.reader.takes_word("break") {
            let at = body.code.len();
            let Some(breaks) = body.breaks.last_mut() else { return self.fail(position, "there is no loop to leave") };
            breaks.push(at);
            body.code.push(Instruction::Stop(None));
            return self.reader.expect(";");
        }
        if !self.inside.is_empty() && self.reader.takes_word("for") {
            return self.each(|parser| parser.block(body));
        }
        if !self.inside.is_empty() && self.reader.takes_word("return") {
            return self.returned(body);
        }
        if self.reader.takes_word("let") {
            return self.assignment(body);
        }
        let call = self.call(body.thread)?;
        self.emit(body, None, call)?;
        self.reader.expect(";")
    }

    /// A conditional statement, after its `if`.
    fn conditional(&mut self, body: &mut Body) -> Result<()> {
        let (left, comparison, right) = self.comparison(body.thread)?;
        let unless = body.code.len();
        body.code.push(Instruction::Stop(None));
        self.inner_block(body)?;
        if self.reader.takes_word("else") {
            let jump = body.code.len();
            body.code.push(Instruction::Stop(None));
            body.code[unless] = Instruction::Unless(left, comparison, right, body.code.len());
            self.inner_block(body)?;
            body.code[jump] = Instruction::Jump(body.code.len());
        } else {
            body.code[unless] = Instruction::Unless(left, comparison, right, body.code.len());
        }
        Ok(())
    }

    /// The result of a method that is expanded, after the `return`, and the jump to the method's end.
    fn returned(&mut self, body: &mut Body) -> Result<()> {
        let into = self.inside.last().and_then(|inside| inside.into);
        if self.is_call() {
            let call = self.call(body.thread)?;
            self.emit(body, into, call)?;
        } else {
            let value = self.expression(body.thread)?;
            body.code.extend(into.map(|into| Instruction::Set(into, value)));
        }
        self.inside.last_mut().expect("it is inside").returns.push(body.code.len());
        body.code.push(Instruction::Stop(None));
        self.reader.expect(";")
    }

    /// A register and its value, after the `let`.
    fn assignment(&mut self, body: &mut Body) -> Result<()> {
        let position = self.reader.position();
        let name = self.reader.name("a register")?;
        if name == "own" && !self.inside.is_empty() {
            let register = self.own_register(body.thread)?;
            self.reader.expect("=")?;
            let value = self.expression(body.thread)?;
            body.code.push(Instruction::Set(register, value));
            return self.reader.expect(";");
        }
        if self.object_of(&name).is_some() {
            return self.fail(position, format!("`{name}` is an object"));
        }
        self.reader.expect("=")?;
        // Its value is found out before it has the name.
        if self.is_call() {
            let call = self.call(body.thread)?;
            let register = self.new_register(body.thread, name);
            self.emit(body, Some(register), call)?;
        } else {
            let value = self.expression(body.thread)?;
            let register = self.new_register(body.thread, name);
            body.code.push(Instruction::Set(register, value));
        }
        self.reader.expect(";")
    }

    fn inner_block(&mut self, body: &mut Body) -> Result<()> {
        self.reader.enter()?;
        let read = self.block(body);
        self.reader.leave();
        read
    }

    fn repeat(&mut self, body: &mut Body) -> Result<()> {
        let position = self.reader.position();
        let count = self.reader.number("how often, at most")?;
        if !(1..=LOOP_MAX).contains(&count) {
            return self.fail(position, format!("a loop runs between 1 and {LOOP_MAX} times"));
        }
        body.breaks.push(Vec::new());
        let start = self.reader.mark();
        let mut last_round = 0;
        for _ in 0..count {
            last_round = body.code.len();
            self.reader.back_to(start);
            self.statements += 1;
            self.inner_block(body)?;
        }
        let breaks = body.breaks.pop().expect("it was pushed");
        if !breaks.is_empty() {
            body.code.push(Instruction::Stop(Some(last_round)));
        }
        for at in breaks {
            body.code[at] = Instruction::Jump(body.code.len());
        }
        Ok(())
    }

    pub(super) fn register(&self, thread: usize, name: &str) -> Option<usize> {
        let scope = self.inside.last().map_or("", |inside| &inside.scope);
        self.test.threads[thread].registers.iter().position(|other| other.strip_prefix(scope) == Some(name))
    }

    fn new_register(&mut self, thread: usize, name: String) -> usize {
        self.register(thread, &name).unwrap_or_else(|| {
            let scope = self.inside.last().map_or("", |inside| &inside.scope);
            let name = format!("{scope}{name}");
            let registers = &mut self.test.threads[thread].registers;
            registers.push(name);
            registers.len() - 1
        })
    }

    fn expression(&mut self, thread: usize) -> Result<Expression> {
        let mut all = self.operand(thread)?;
        for _ in 0..OPERANDS_MAX {
            let negate = match (self.reader.takes("+"), self.reader.takes("-")) {
                (true, _) => false,
                (_, true) => true,
                _ => return Ok(all),
            };
            let mut right = self.operand(thread)?;
            if negate {
                let position = self.reader.position();
                let Expression::Constant(value) = &right else {
                    return self.fail(position, "only a number can be subtracted");
                };
                right = Expression::Constant(Value::number(value.as_number().unwrap_or(0).wrapping_neg()));
            }
            all = Expression::Sum(Box::new(all), Box::new(right));
        }
        self.fail(self.reader.position(), format!("more than {OPERANDS_MAX} operands"))
    }

    fn operand(&mut self, thread: usize) -> Result<Expression> {
        let mut operand = self.simple_operand(thread)?;
        while matches!(self.reader.peek(), Token::Symbol(".")) && matches!(self.reader.peek_at(1), Token::Number(_)) {
            self.reader.expect(".")?;
            let part = self.reader.number("a part of a tuple")?;
            operand = Expression::Part(Box::new(operand), usize::try_from(part).unwrap_or(usize::MAX));
        }
        Ok(operand)
    }

    fn simple_operand(&mut self, thread: usize) -> Result<Expression> {
        let position = self.reader.position();
        if self.reader.takes("(") {
            self.reader.enter()?;
            let mut parts = Vec::new();
            loop {
                parts.push(self.expression(thread)?);
                if self.reader.takes(")") {
                    break;
                }
                if !self.reader.takes(",") {
                    return Err(self.reader.unexpected("`,` or `)`"));
                }
            }
            self.reader.leave();
            let constants = parts.iter().map(|part| match part {
                Expression::Constant(value) => value.as_number(),
                _ => None,
            });
            let constants: Option<_> = constants.collect();
            return Ok(match (constants, parts.len()) {
                (_, 1) => parts.remove(0),
                (Some(numbers), _) => Expression::Constant(Value::Numbers(numbers)),
                (None, _) => Expression::Tuple(parts),
            });
        }
        if let Token::Name(name) = self.reader.peek().clone()
            && name != "none"
        {
            self.reader.next();
            if name == "own" && !self.inside.is_empty() {
                return self.own_register(thread).map(Expression::Register);
            }
            if let Some(Binding::Value(value)) = self.bound(&name) {
                return Ok(value);
            }
            return match self.register(thread, &name) {
                Some(register) => Ok(Expression::Register(register)),
                None => self.fail(position, format!("P{thread} has no register `{name}` here")),
            };
        }
        self.value().map(Expression::Constant)
    }

    fn comparison(&mut self, thread: usize) -> Result<(Expression, Comparison, Expression)> {
        let left = self.expression(thread)?;
        const SYMBOLS: [(&str, Comparison, bool); 6] = [
            ("==", Comparison::Equal, false),
            ("!=", Comparison::NotEqual, false),
            ("<", Comparison::Less, false),
            ("<=", Comparison::LessOrEqual, false),
            (">", Comparison::Less, true),
            (">=", Comparison::LessOrEqual, true),
        ];
        let Some((_, comparison, is_turned)) = SYMBOLS.iter().find(|(symbol, ..)| self.reader.takes(symbol)) else {
            return Err(self.reader.unexpected("`==`, `!=`, `<`, `<=`, `>` or `>=`"));
        };
        let right = self.expression(thread)?;
        Ok(if *is_turned { (right, *comparison, left) } else { (left, *comparison, right) })
    }
}

fn signed(reader: &mut Reader) -> Result<i64> {
    let negate = reader.takes("-");
    let number = reader.number("a value")?;
    Ok(if negate { -number } else { number })
}
