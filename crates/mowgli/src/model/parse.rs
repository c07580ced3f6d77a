//! Reading a model.

use std::collections::BTreeMap;

use super::*;
use crate::text::{Reader, Token};

/// How many operands an operator may join: more are a mistake, and would only exhaust the stack.
const OPERANDS_MAX: usize = 64;
/// How many definitions a model may have.
const LETS_MAX: usize = 256;
/// Words that no object, method or relation may be named by.
const RESERVED: &[&str] = &["here", "home", "nodes", "none", "then", "if", "for", "in", "as", "remote"];

pub(super) fn library(file: &str, text: &str, models: &Models) -> Result<Library> {
    let mut reader = Reader::new(file, text)?;
    reader.expect_word("library")?;
    let name = reader.name("the library's name")?;
    let mut library = Library {
        name,
        file: file.to_owned(),
        kinds: Vec::new(),
        methods: BTreeMap::new(),
        choices: Vec::new(),
        lets: BTreeMap::new(),
        laws: Vec::new(),
    };
    let position = reader.position();
    if reader.takes_word("extends") {
        let position = reader.position();
        let base = reader.name("the name of a library")?;
        let known =
            || reader.error(position, format!("there is no library `{base}`; known are {}", list(models.names())));
        let base = models.get(&base).ok_or_else(known)?;
        library = Library { name: library.name, file: library.file, ..(*base).clone() };
    }
    while *reader.peek() != Token::End {
        item(&mut reader, &mut library)?;
    }
    if library.lets.len() > LETS_MAX {
        return Err(reader.error(position, format!("more than {LETS_MAX} definitions")));
    }
    if !library.lets.contains_key("so") {
        return Err(reader.error(position, format!("the library `{}` does not define `so`", library.name)));
    }
    Ok(library)
}

/// Some names, for a message.
pub(crate) fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.map(|name| format!("`{name}`")).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn item(reader: &mut Reader, library: &mut Library) -> Result<()> {
    let position = reader.position();
    let word = reader.name("`object`, `method`, `pick`, `orient`, `let`, `acyclic`, `irreflexive` or `empty`")?;
    match word.as_str() {
        "object" => {
            let kind = kind(reader)?;
            library.kinds.retain(|other| other.name != kind.name);
            library.kinds.push(kind);
        }
        "method" => {
            let method = method(reader, library)?;
            library.methods.insert(method.name.clone(), method);
        }
        "pick" | "orient" => {
            let name = new_name(reader, "a name for the relation")?;
            reader.expect_word("in")?;
            let choice = if word == "pick" { Choice::Pick } else { Choice::Orient };
            let term = term(reader)?;
            match library.choices.iter_mut().find(|other| other.0 == name) {
                Some(other) => *other = (name, choice, term),
                None => library.choices.push((name, choice, term)),
            }
        }
        "let" => {
            let name = new_name(reader, "a name")?;
            reader.expect("=")?;
            let term = term(reader)?;
            library.lets.insert(name, term);
        }
        "acyclic" | "irreflexive" | "empty" => {
            let law = match word.as_str() {
                "acyclic" => Law::Acyclic,
                "irreflexive" => Law::Irreflexive,
                _ => Law::Empty,
            };
            let term = term(reader)?;
            reader.expect_word("as")?;
            let name = reader.name("a name for what must hold")?;
            library.laws.retain(|other| other.0 != name);
            library.laws.push((name, law, term));
        }
        _ => return Err(reader.error(position, format!("`{word}` begins nothing that a model is made of"))),
    }
    Ok(())
}

fn new_name(reader: &mut Reader, what: &str) -> Result<String> {
    let position = reader.position();
    let name = reader.name(what)?;
    if RESERVED.contains(&name.as_str()) {
        return Err(reader.error(position, format!("`{name}` has a meaning of its own")));
    }
    Ok(name)
}

fn kind(reader: &mut Reader) -> Result<Kind> {
    let name = new_name(reader, "a name for the kind of objects")?;
    reader.expect("(")?;
    let attributes = reader.list(",", ")", |reader| reader.name("an attribute"))?;
    let starts = if reader.takes_word("starts") { Some(reader.number("a number")?) } else { None };
    Ok(Kind { name, attributes, starts })
}

// ---- methods ---------------------------------------------------------------------------------------------------

/// The names that a method's cases may use.
struct Names<'a> {
    library: &'a Library,
    parameters: &'a [(String, Parameter)],
    /// Variables of `for`.
    nodes: Vec<String>,
    /// Values that were read.
    values: Vec<String>,
}

impl Names<'_> {
    fn parameter(&self, name: &str) -> Option<&Parameter> {
        self.parameters.iter().find(|parameter| parameter.0 == name).map(|parameter| &parameter.1)
    }

    /// The kind of an object among the parameters.
    fn object(&self, reader: &Reader, position: Position, name: &str) -> Result<&Kind> {
        match self.parameter(name) {
            Some(Parameter::Local(kind) | Parameter::Remote(kind)) => {
                Ok(self.library.kind(kind).expect("a parameter's kind was looked up"))
            }
            _ => Err(reader.error(position, format!("no parameter `{name}` is an object"))),
        }
    }
}

fn method(reader: &mut Reader, library: &Library) -> Result<Method> {
    let name = new_name(reader, "a name for the method")?;
    reader.expect("(")?;
    let parameters = reader.list(",", ")", |reader| {
        let name = new_name(reader, "a parameter")?;
        if !reader.takes(":") {
            return Ok((name, Parameter::Value));
        }
        let is_remote = reader.takes_word("remote");
        let position = reader.position();
        let kind = reader.name("what the parameter takes")?;
        Ok((
            name,
            match kind.as_str() {
                "id" if !is_remote => Parameter::Id,
                "node" if !is_remote => Parameter::Node,
                "nodes" if !is_remote => Parameter::Nodes,
                _ if library.kind(&kind).is_none() => {
                    return Err(reader.error(position, format!("there are no objects of the kind `{kind}`")));
                }
                _ if is_remote => Parameter::Remote(kind),
                _ => Parameter::Local(kind),
            },
        ))
    })?;
    let mut cases = Vec::new();
    loop {
        let has_more = matches!(reader.peek(), Token::Symbol("->" | "{")) || reader.is_word("if");
        if !has_more && !cases.is_empty() {
            return Ok(Method { name, parameters, cases });
        }
        let mut names = Names { library, parameters: &parameters, nodes: Vec::new(), values: Vec::new() };
        cases.push(case(reader, &mut names)?);
    }
}

fn case(reader: &mut Reader, names: &mut Names<'_>) -> Result<Case> {
    // The result and the condition name values that the block behind them reads.
    let position = reader.position();
    let result = if reader.takes("->") { Some(value(reader)?) } else { None };
    let condition = if reader.takes_word("if") {
        let left = value(reader)?;
        let equal = match (reader.takes("=="), reader.takes("!=")) {
            (true, _) => true,
            (_, true) => false,
            _ => return Err(reader.unexpected("`==` or `!=`")),
        };
        Some((left, value(reader)?, equal))
    } else {
        None
    };
    reader.expect("{")?;
    let groups = groups(reader, names)?;
    let conditions = condition.iter().flat_map(|(left, right, _)| [left, right]);
    for term in result.iter().chain(conditions) {
        check_value(reader, position, names, term)?;
    }
    if groups.is_empty() {
        return Err(reader.error(position, "a call has at least one subevent"));
    }
    Ok(Case { result, condition, groups })
}

fn groups(reader: &mut Reader, names: &mut Names<'_>) -> Result<Vec<Group>> {
    let mut all = Vec::new();
    while !reader.takes("}") {
        if reader.takes(";") {
            continue;
        }
        if !reader.takes_word("for") {
            let mut chain = vec![part(reader, names)?];
            while reader.takes_word("then") {
                chain.push(part(reader, names)?);
            }
            all.push(Group::Chain(chain));
            continue;
        }
        let variable = new_name(reader, "a variable")?;
        reader.expect_word("in")?;
        let nodes = nodes(reader, names)?;
        reader.expect("{")?;
        names.nodes.push(variable.clone());
        let inner = reader.nested(|reader| groups(reader, names));
        names.nodes.pop();
        all.push(Group::For(variable, nodes, inner?));
    }
    Ok(all)
}

fn part(reader: &mut Reader, names: &mut Names<'_>) -> Result<Part> {
    let position = reader.position();
    let name = reader.name("a stamp")?;
    let unknown =
        || reader.error(position, format!("`{name}` is no stamp: {}", list(Stamp::ALL.iter().map(|it| it.name()))));
    let stamp = Stamp::of(&name).ok_or_else(unknown)?;
    let node = if reader.takes("[") {
        let node = node(reader, names)?;
        reader.expect("]")?;
        Some(node)
    } else {
        None
    };
    let mut actions = Vec::new();
    if reader.takes(":") {
        loop {
            actions.push(action(reader, names)?);
            if !reader.takes(",") {
                break;
            }
        }
    }
    Ok(Part { stamp, node, actions })
}

fn action(reader: &mut Reader, names: &mut Names<'_>) -> Result<Action> {
    if reader.takes_word("read") {
        let place = place(reader, names)?;
        let value = new_name(reader, "a name for the value")?;
        if !names.values.contains(&value) {
            names.values.push(value.clone());
        }
        return Ok(Action::Read(place, value));
    }
    if reader.takes_word("touch") {
        return Ok(Action::Touch(place(reader, names)?));
    }
    if !reader.takes_word("write") {
        return Err(reader.unexpected("`read`, `write` or `touch`"));
    }
    let place = place(reader, names)?;
    let position = reader.position();
    let value = value(reader)?;
    check_value(reader, position, names, &value)?;
    Ok(Action::Write(place, value))
}

fn place(reader: &mut Reader, names: &Names<'_>) -> Result<PlaceTerm> {
    let position = reader.position();
    let object = reader.name("an object")?;
    let has_home = names.object(reader, position, &object)?.has_home();
    let at = if reader.takes("@") { Some(node(reader, names)?) } else { None };
    if has_home && at.is_some() {
        return Err(reader.error(position, format!("`{object}` has a home, and no copies on other nodes")));
    }
    Ok(PlaceTerm { object, at })
}

fn node(reader: &mut Reader, names: &Names<'_>) -> Result<NodeTerm> {
    let position = reader.position();
    let name = reader.name("a node")?;
    if name == "here" {
        return Ok(NodeTerm::Here);
    }
    if reader.takes(".") {
        reader.expect_word(HOME)?;
        if !names.object(reader, position, &name)?.has_home() {
            return Err(reader.error(position, format!("`{name}` has no home")));
        }
        return Ok(NodeTerm::HomeOf(name));
    }
    if names.nodes.contains(&name) || names.parameter(&name) == Some(&Parameter::Node) {
        return Ok(NodeTerm::Name(name));
    }
    Err(reader.error(position, format!("`{name}` is no node")))
}

fn nodes(reader: &mut Reader, names: &Names<'_>) -> Result<NodesTerm> {
    let mut all = nodes_atom(reader, names)?;
    for _ in 0..OPERANDS_MAX {
        if !reader.takes("\\") {
            return Ok(all);
        }
        all = NodesTerm::Without(Box::new(all), Box::new(nodes_atom(reader, names)?));
    }
    Err(reader.error(reader.position(), format!("more than {OPERANDS_MAX} operands")))
}

fn nodes_atom(reader: &mut Reader, names: &Names<'_>) -> Result<NodesTerm> {
    if reader.takes_word("nodes") {
        if !reader.takes("(") {
            return Ok(NodesTerm::All);
        }
        let position = reader.position();
        let object = reader.name("an object")?;
        reader.expect(".")?;
        let attribute = reader.name("an attribute")?;
        let kind = names.object(reader, position, &object)?;
        if attribute == HOME || !kind.attributes.contains(&attribute) {
            return Err(reader.error(position, format!("`{object}` has no threads `{attribute}`")));
        }
        reader.expect(")")?;
        return Ok(NodesTerm::Of(object, attribute));
    }
    if let Token::Name(name) = reader.peek().clone()
        && names.parameter(&name) == Some(&Parameter::Nodes)
    {
        reader.next();
        return Ok(NodesTerm::Name(name));
    }
    node(reader, names).map(NodesTerm::One)
}

fn value(reader: &mut Reader) -> Result<ValueTerm> {
    let mut all = value_atom(reader)?;
    for _ in 0..OPERANDS_MAX {
        if !reader.takes("+") {
            return Ok(all);
        }
        all = ValueTerm::Sum(Box::new(all), Box::new(value_atom(reader)?));
    }
    Err(reader.error(reader.position(), format!("more than {OPERANDS_MAX} operands")))
}

fn value_atom(reader: &mut Reader) -> Result<ValueTerm> {
    match reader.peek().clone() {
        Token::Number(number) => {
            reader.next();
            Ok(ValueTerm::Number(number))
        }
        Token::Name(name) => {
            reader.next();
            Ok(if name == "none" { ValueTerm::None } else { ValueTerm::Name(name) })
        }
        _ => Err(reader.unexpected("a value")),
    }
}

fn check_value(reader: &Reader, position: Position, names: &Names<'_>, term: &ValueTerm) -> Result<()> {
    match term {
        ValueTerm::Number(_) | ValueTerm::None => Ok(()),
        ValueTerm::Sum(left, right) => {
            check_value(reader, position, names, left)?;
            check_value(reader, position, names, right)
        }
        ValueTerm::Name(name) => {
            match names.parameter(name) {
                Some(Parameter::Value) => Ok(()),
                None if names.values.contains(name) => Ok(()),
                _ => Err(reader
                    .error(position, format!("`{name}` is no value: no parameter, and nothing that was read before"))),
            }
        }
    }
}

// ---- expressions -----------------------------------------------------------------------------------------------

pub(super) fn term(reader: &mut Reader) -> Result<Term> {
    reader.nested(|reader| binary(reader, 0))
}

/// The binary operators, from the loosest on.
type Join = fn(Box<Term>, Box<Term>) -> Form;
const JOINS: [(&str, Join); 5] =
    [("|", Form::Or), (";", Form::Then), ("\\", Form::Minus), ("&", Form::And), ("*", Form::Product)];

fn binary(reader: &mut Reader, level: usize) -> Result<Term> {
    let Some((symbol, join)) = JOINS.get(level) else { return unary(reader) };
    let mut left = binary(reader, level + 1)?;
    for _ in 0..OPERANDS_MAX {
        let position = reader.position();
        if !reader.takes(symbol) {
            return Ok(left);
        }
        let right = binary(reader, level + 1)?;
        left = Term { position, form: join(Box::new(left), Box::new(right)) };
    }
    Err(reader.error(reader.position(), format!("more than {OPERANDS_MAX} operands: name a part of them by `let`")))
}

fn unary(reader: &mut Reader) -> Result<Term> {
    let position = reader.position();
    if reader.takes("~") {
        let inner = reader.nested(unary)?;
        return Ok(Term { position, form: Form::Not(Box::new(inner)) });
    }
    let mut term = atom(reader)?;
    type Wrap = fn(Box<Term>) -> Form;
    const BEHIND: [(&str, Wrap); 4] =
        [("^-1", Form::Inverse), ("^+", Form::Plus), ("^*", Form::Star), ("^?", Form::Maybe)];
    for _ in 0..OPERANDS_MAX {
        let position = reader.position();
        let Some((_, form)) = BEHIND.iter().find(|(symbol, _)| reader.takes(symbol)) else { return Ok(term) };
        term = Term { position, form: form(Box::new(term)) };
    }
    Err(reader.error(reader.position(), format!("more than {OPERANDS_MAX} operators behind an operand")))
}

fn atom(reader: &mut Reader) -> Result<Term> {
    let position = reader.position();
    if reader.takes("(") {
        let inner = term(reader)?;
        reader.expect(")")?;
        return Ok(inner);
    }
    let form = if reader.takes("[") {
        let inner = term(reader)?;
        reader.expect("]")?;
        Form::Identity(Box::new(inner))
    } else if *reader.peek() == Token::Number(0) {
        reader.next();
        Form::Zero
    } else {
        let name = reader.name("a set or a relation")?;
        if reader.takes("(") { call(reader, position, &name)? } else { Form::Name(name) }
    };
    Ok(Term { position, form })
}

fn call(reader: &mut Reader, position: Position, name: &str) -> Result<Form> {
    let form = match name {
        "domain" => Form::Domain(Box::new(term(reader)?)),
        "range" => Form::Range(Box::new(term(reader)?)),
        "nth" => {
            let from = Box::new(term(reader)?);
            reader.expect(",")?;
            let to = Box::new(term(reader)?);
            reader.expect(",")?;
            Form::Nth(from, to, Box::new(term(reader)?))
        }
        "unmet" => {
            let set = Box::new(term(reader)?);
            reader.expect(",")?;
            Form::Unmet(set, reader.name("an attribute")?)
        }
        _ => return Err(reader.error(position, format!("there is no function `{name}`"))),
    };
    reader.expect(")")?;
    Ok(form)
}
