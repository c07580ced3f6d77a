//! Reading a litmus test.

use super::expand::{Binding, Inside};
use super::implementation::Implementation;
use super::*;
use crate::model::{HOME, Parameter, WRITER, list};
use crate::text::{Error, Position, Reader, Token};

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
    /// What is being expanded, the innermost last.
    pub(super) inside: Vec<Inside>,
    /// Calls that were expanded.
    pub(super) expanded: usize,
    /// How many of the test's libraries are those of its first line.
    pub(super) own_libraries: usize,
}

/// An argument as it is written.
enum Written {
    Expression(Expression),
    /// A register, an object, or the name of operations.
    Name(String, Option<usize>),
    /// What it means for certain.
    Bound(Binding),
}

/// A call as it is written.
pub(super) struct Parsed {
    pub(super) position: Position,
    pub(super) library: usize,
    pub(super) method: String,
    pub(super) arguments: Vec<Argument>,
}

/// What a thread's statements are read into.
pub(super) struct Body {
    pub(super) thread: usize,
    pub(super) code: Vec<Instruction>,
    /// Where the loops around leave to: the jumps that are not filled in yet.
    pub(super) breaks: Vec<Vec<usize>>,
}

/// Reads a test. What there are implementations of is expanded.
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
    let mut libraries = Vec::new();
    loop {
        let position = reader.position();
        let name = reader.name("the name of a model")?;
        let unknown =
            || reader.error(position, format!("there is no model `{name}`; known are {}", list(models.names())));
        libraries.push(models.get(&name).ok_or_else(unknown)?);
        if !reader.takes(",") {
            break;
        }
    }
    let name = reader.name("the test's name")?;
    let reason = match reader.peek().clone() {
        Token::Text(text) => {
            reader.next();
            text
        }
        _ => String::new(),
    };
    let own_libraries = libraries.len();
    let mut implementations = Vec::new();
    for implementation in all {
        let position = implementation.position;
        let Some(of) = libraries.iter().position(|library: &Rc<Library>| library.name == implementation.of) else {
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
    for (_, implementation) in parser.implementations.clone() {
        for block in &implementation.globals {
            parser.expand(&implementation, block, Vec::new(), None, |parser| {
                parser.reader.expect("{")?;
                parser.declarations()
            })?;
        }
    }
    parser.reader.expect("{")?;
    parser.declarations()?;
    while !parser.is_at_question() {
        parser.thread()?;
    }
    if let Some((thread, position)) = parser.threads_used.iter().find(|used| used.0 >= parser.test.threads.len()) {
        return Err(parser.reader.error(*position, format!("there is no thread P{thread}")));
    }
    parser.question()?;
    if *parser.reader.peek() != Token::End {
        return Err(parser.reader.unexpected("the end"));
    }
    Ok(parser.test)
}

impl Parser {
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

    // ---- objects ----

    /// Up to the closing brace.
    pub(super) fn declarations(&mut self) -> Result<()> {
        while !self.reader.takes("}") {
            if !self.inside.is_empty() && self.reader.takes_word("for") {
                self.each(|parser| {
                    parser.reader.expect("{")?;
                    parser.declarations()
                })?;
                continue;
            }
            self.object()?;
            self.reader.expect(";")?;
        }
        Ok(())
    }

    fn object(&mut self) -> Result<()> {
        let position = self.reader.position();
        let first = self.reader.name("an object")?;
        let (kind, name) = match self.reader.peek() {
            Token::Name(_) => (Some(first), self.reader.name("an object")?),
            _ => (None, first),
        };
        let name = if self.inside.is_empty() { name } else { self.path(position, &name)? };
        let mut libraries = self.test.libraries.iter().enumerate();
        let found = match &kind {
            Some(kind) => {
                // Of those that have it, one that is not implemented, where an implementation declares it.
                let all = libraries.filter_map(|(at, library)| library.kind(kind).map(|kind| (at, kind.clone())));
                let mut all = all.filter(|(at, _)| self.is_usable(*at));
                all.next()
            }
            None => libraries.find_map(|(at, library)| library.kinds.first().map(|kind| (at, kind.clone()))),
        };
        let Some((library, kind)) = found else {
            return match kind {
                Some(kind) => self.fail(position, format!("there are no objects of the kind `{kind}`")),
                None => self.fail(position, "the libraries of this test have no objects"),
            };
        };
        if self.test.objects.iter().any(|other| other.name == name) {
            return self.fail(position, format!("there is a `{name}` already"));
        }
        let mut home = None;
        if kind.has_home() {
            if !self.reader.takes("@") {
                return Err(self.reader.unexpected(&format!("`@` and the node of `{name}`")));
            }
            home = Some(self.node_term()?);
        }
        let lists: Vec<_> = kind.attributes.iter().filter(|attribute| *attribute != HOME).cloned().collect();
        let mut threads = Vec::new();
        if !lists.is_empty() {
            self.reader.expect("(")?;
            let mut all = Vec::new();
            loop {
                let position = self.reader.position();
                let thread = self.thread_name()?;
                self.threads_used.push((thread, position));
                all.push(thread);
                if self.reader.takes(")") {
                    break;
                }
                self.reader.expect(",")?;
            }
            let mut all = all.into_iter();
            for attribute in lists {
                let count = if attribute == WRITER { 1 } else { THREADS_MAX };
                threads.push((attribute, all.by_ref().take(count).collect()));
            }
        }
        let mut starts = kind.starts.map(Value::number);
        let equals = self.reader.position();
        if self.reader.takes("=") {
            if starts.is_none() {
                return self.fail(equals, format!("a `{}` has no initial value", kind.name));
            }
            starts = Some(self.starting_value()?);
        }
        let of = self.implementations.iter().find(|(of, _)| *of == library).map(|(_, it)| Rc::clone(it));
        let kind = kind.name;
        let at = self.test.objects.len();
        self.test.objects.push(Object { name, library, kind: kind.clone(), home, threads, starts });
        if let Some(of) = of {
            let Some((_, variable, block)) = of.objects.iter().find(|object| object.0 == kind) else {
                return self
                    .fail(position, format!("the implementation `{}` has no objects of the kind `{kind}`", of.name));
            };
            let names = vec![(variable.clone(), Binding::Object(at))];
            self.expand(&of, block, names, None, |parser| {
                parser.reader.expect("{")?;
                parser.declarations()
            })?;
            // What it is made of has its memory.
            self.test.objects[at].starts = None;
        }
        Ok(())
    }

    pub(super) fn object_of(&self, name: &str) -> Option<usize> {
        self.test.objects.iter().position(|object| object.name == name)
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
            return Ok(());
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
            return self.reader.expect(";");
        }
        if !self.reader.takes_word("let") {
            let call = self.call(body.thread)?;
            self.emit(body, None, call)?;
            return self.reader.expect(";");
        }
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

    // ---- calls ----

    fn is_call(&self) -> bool {
        // NAME( or LIBRARY.NAME(
        let is =
            |ahead: usize, symbol: &str| matches!(self.reader.peek_at(ahead), Token::Symbol(next) if *next == symbol);
        let is_name = |ahead: usize| matches!(self.reader.peek_at(ahead), Token::Name(_));
        is_name(0) && (is(1, "(") || is(1, ".") && is_name(2) && is(3, "("))
    }

    fn call(&mut self, thread: usize) -> Result<Parsed> {
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
        // The names of operations that are new, now that it is clear that they are such. Each implementation has its own.
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
                let object = match written {
                    Written::Bound(Binding::Object(object)) => Some(*object),
                    Written::Name(name, _) => self.object_of(name),
                    _ => None,
                };
                let object = object.map(|at| (at, &self.test.objects[at]));
                let object = object.filter(|(_, object)| object.library == library && object.kind == *kind);
                let Some((at, object)) = object else { return Err(fail(&self.reader, &format!("a {kind}"))) };
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
}

fn signed(reader: &mut Reader) -> Result<i64> {
    let negate = reader.takes("-");
    let number = reader.number("a value")?;
    Ok(if negate { -number } else { number })
}
