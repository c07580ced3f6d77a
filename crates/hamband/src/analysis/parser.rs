//! Reads a specification: declarations here, expressions in [`expression`].
//!
//! ```text
//! specification = { "sort" name } "type" name "{" { part } "}"
//! part          = "state" "{" { name ":" type "=" expression } "}"
//!               | "invariant" [ text ":" ] expression
//!               | "update" name parameters "{" { requirement } { name ":=" expression } "}"
//!               | "query" name parameters "->" type "=" expression
//!               | "summary" call "," call "=" result
//! parameters    = "(" [ [ "unique" ] name ":" type { "," … } ] ")"
//! requirement   = "requires" ( expression | "invariant" ) "else" text
//! result        = call | "if" expression "then" result "else" result
//! type          = "int" | "nat" | "bool" | name | "(" type "," type … ")" | "option" "<" type ">"
//!               | "set" "<" type ">" | "rel" "<" type "," type … ">" | "map" "<" type "," type ">"
//! ```

mod expression;

use super::lexer::{Token, tokens};
use super::syntax::{
    Name, Written, WrittenCall, WrittenInvariant, WrittenParameter, WrittenQuery, WrittenRequirement, WrittenResult,
    WrittenSummary, WrittenType, WrittenUpdate, WrittenVariable,
};
use super::text::{Mistake, Parsed, Position};
use super::types::Type;

/// Words that no declaration can have for a name: with them an expression or a clause continues.
const RESERVED: &[&str] = &[
    "and",
    "bool",
    "else",
    "exists",
    "false",
    "forall",
    "if",
    "iff",
    "implies",
    "in",
    "int",
    "intersect",
    "invariant",
    "minus",
    "nat",
    "none",
    "not",
    "or",
    "query",
    "requires",
    "subset",
    "summary",
    "then",
    "true",
    "union",
    "update",
    "without",
];

/// How deep expressions and types may be nested.
const DEPTH_MAX: usize = 100;

const PARTS: &str = "a part begins with `state`, `invariant`, `update`, `query` or `summary`";

/// Reads a text.
pub(crate) fn parse(text: &str) -> Parsed<Written> {
    Parser { lines: text.lines().collect(), tokens: tokens(text)?, at: 0, depth: 0 }.specification()
}

struct Parser<'a> {
    lines: Vec<&'a str>,
    tokens: Vec<(Token, Position)>,
    at: usize,
    depth: usize,
}

impl Parser<'_> {
    fn specification(&mut self) -> Parsed<Written> {
        let mut sorts = Vec::new();
        while self.takes_word("sort") {
            sorts.push(self.name("the name of the sort")?);
            while self.takes(",") {
                sorts.push(self.name("the name of the sort")?);
            }
        }
        if !self.takes_word("type") {
            return Err(self.expected("`type`", "a specification is `type Name { … }`, after the sorts (`sort Name`)"));
        }
        let name = self.name("the name of the type")?.text;
        self.symbol("{", "open the type's parts")?;
        let mut written = Written {
            name,
            sorts,
            state: vec![],
            invariants: vec![],
            updates: vec![],
            queries: vec![],
            summaries: vec![],
        };
        while !self.takes("}") {
            self.part(&mut written)?;
        }
        if *self.token() != Token::End {
            return Err(self.expected("the end of the file", "a file has one type; remove what follows it"));
        }
        Ok(written)
    }

    fn part(&mut self, written: &mut Written) -> Parsed<()> {
        if self.takes_word("state") {
            self.symbol("{", "open the list of state variables")?;
            while !self.takes("}") {
                written.state.push(self.variable()?);
            }
        } else if self.takes_word("invariant") {
            written.invariants.push(self.invariant()?);
        } else if self.takes_word("update") {
            written.updates.push(self.update()?);
        } else if self.takes_word("query") {
            let (name, parameters) = (self.name("the name of the query")?, self.parameters()?);
            self.symbol("->", "write the type of the result: `query name() -> int = …`")?;
            let result = self.ty()?;
            self.symbol("=", "write the result: `query name() -> int = …`")?;
            written.queries.push(WrittenQuery { name, parameters, result, value: self.expression()? });
        } else if self.takes_word("summary") {
            written.summaries.push(self.summary()?);
        } else {
            return Err(self.expected("a part of the type or `}`", PARTS));
        }
        Ok(())
    }

    fn variable(&mut self) -> Parsed<WrittenVariable> {
        let name = self.name("a state variable or `}`")?;
        self.symbol(":", "write the variable's type: `name: type = initial value`")?;
        let ty = self.ty()?;
        self.symbol("=", "write the initial value: `name: type = initial value`")?;
        Ok(WrittenVariable { name, ty, initial: self.expression()? })
    }

    fn invariant(&mut self) -> Parsed<WrittenInvariant> {
        let mut name = None;
        if let Token::Text(text) = self.token().clone() {
            self.at += 1;
            self.symbol(":", "write the condition after the name: `invariant \"name\": condition`")?;
            name = Some(text);
        }
        let start = self.position();
        let condition = self.expression()?;
        let text = self.written(start);
        let name = name.map_or(text.clone(), |name| format!("{name}: {text}"));
        Ok(WrittenInvariant { name, condition })
    }

    fn update(&mut self) -> Parsed<WrittenUpdate> {
        let (name, parameters) = (self.name("the name of the update")?, self.parameters()?);
        self.symbol("{", "open the body of the update")?;
        let (mut requirements, mut effects) = (Vec::new(), Vec::new());
        while !self.takes("}") {
            let at = self.position();
            if self.takes_word("requires") {
                if !effects.is_empty() {
                    return Err(Mistake::new(
                        at,
                        "`requires` stands after an effect",
                        "move it to the head of the body",
                    ));
                }
                requirements.push(self.requirement()?);
                continue;
            }
            let variable = self.name("`requires`, an effect (`variable := value`) or `}`")?;
            self.symbol(":=", "an effect is `variable := value`")?;
            effects.push((variable, self.expression()?));
        }
        Ok(WrittenUpdate { name, parameters, requirements, effects })
    }

    fn requirement(&mut self) -> Parsed<WrittenRequirement> {
        let condition = if self.takes_word("invariant") { None } else { Some(self.expression()?) };
        if !self.takes_word("else") {
            return Err(self.expected("`else`", "write why a call is refused: `requires condition else \"reason\"`"));
        }
        let Token::Text(reason) = self.token().clone() else {
            return Err(self.expected("a text in quotes", "write why a call is refused: `else \"reason\"`"));
        };
        self.at += 1;
        Ok(WrittenRequirement { condition, reason })
    }

    fn parameters(&mut self) -> Parsed<Vec<WrittenParameter>> {
        self.symbol("(", "write the parameters, `()` if there are none")?;
        let mut parameters = Vec::new();
        while !self.takes(")") {
            if !parameters.is_empty() {
                self.symbol(",", "parameters have commas between them, and `)` follows the last")?;
            }
            let is_unique = matches!(self.token(), Token::Name(word) if word == "unique")
                && matches!(self.tokens.get(self.at + 1), Some((Token::Name(_), _)));
            self.at += usize::from(is_unique);
            let name = self.name("the name of a parameter or `)`")?;
            self.symbol(":", "write the parameter's type: `name: type`")?;
            parameters.push(WrittenParameter { name, ty: self.ty()?, is_unique });
        }
        Ok(parameters)
    }

    fn summary(&mut self) -> Parsed<WrittenSummary> {
        const FORM: &str = "a summary is `summary u(a), w(b) = …`: the call that u(a) and then w(b) amount to";
        let start = self.position();
        let first = self.call(|parser| parser.name("a name for this argument"), FORM)?;
        self.symbol(",", FORM)?;
        let second = self.call(|parser| parser.name("a name for this argument"), FORM)?;
        self.symbol("=", FORM)?;
        let result = self.result()?;
        Ok(WrittenSummary { calls: [first, second], result, text: self.written(start) })
    }

    fn result(&mut self) -> Parsed<WrittenResult> {
        const FORM: &str = "the result is a call `u(…)`, or `if condition then call else call`";
        if !self.takes_word("if") {
            return Ok(WrittenResult::Call(self.call(Self::expression, FORM)?));
        }
        self.deeper(|parser| {
            let condition = parser.expression()?;
            parser.word("then", FORM)?;
            let then = parser.result()?;
            parser.word("else", FORM)?;
            Ok(WrittenResult::If(condition, Box::new(then), Box::new(parser.result()?)))
        })
    }

    fn call<A>(&mut self, argument: impl Fn(&mut Self) -> Parsed<A>, form: &str) -> Parsed<WrittenCall<A>> {
        let method = self.name("the name of an update")?;
        self.symbol("(", form)?;
        let mut arguments = Vec::new();
        while !self.takes(")") {
            if !arguments.is_empty() {
                self.symbol(",", "arguments have commas between them, and `)` follows the last")?;
            }
            arguments.push(argument(self)?);
        }
        Ok(WrittenCall { method, arguments })
    }

    fn ty(&mut self) -> Parsed<WrittenType> {
        let at = self.position();
        let mut sorts = Vec::new();
        if self.takes_word("nat") {
            return Ok(WrittenType { ty: Type::Int, is_natural: true, sorts, at });
        }
        let ty = self.plain_type(&mut sorts)?;
        Ok(WrittenType { ty, is_natural: false, sorts, at })
    }

    fn plain_type(&mut self, sorts: &mut Vec<Name>) -> Parsed<Type> {
        const TYPES: &str = "types are int, bool, a declared sort, (A, B), set<A>, rel<A, B>, map<K, V> and option<A>";
        self.deeper(|parser| {
            let at = parser.position();
            if parser.takes("(") {
                let parts = parser.types(sorts, ")")?;
                return Parser::tuple(parts, at, "a tuple");
            }
            let Token::Name(word) = parser.token().clone() else { return Err(parser.expected("a type", TYPES)) };
            let is_generic = matches!(parser.tokens.get(parser.at + 1), Some((Token::Symbol("<"), _)));
            match &*word {
                "nat" => {
                    let help = "write `int`, and an invariant if the values have to be 0 or more";
                    return Err(Mistake::new(
                        at,
                        "`nat` is the whole type of a parameter, and no part of another",
                        help,
                    ));
                }
                "int" | "bool" => {
                    parser.at += 1;
                    return Ok(if word == "int" { Type::Int } else { Type::Bool });
                }
                "set" | "rel" | "map" | "option" if is_generic => {}
                "set" | "rel" | "map" | "option" => {
                    return Err(Mistake::new(at, format!("`{word}` lacks the types of what is in it"), TYPES));
                }
                _ => {
                    let name = parser.name("a type")?;
                    sorts.push(name);
                    return Ok(Type::Id(word));
                }
            }
            parser.at += 2;
            let mut parts = parser.types(sorts, ">")?;
            let counts = if word == "map" { 2 } else { 1 };
            if word == "rel" {
                return Ok(Type::Set(Box::new(Parser::tuple(parts, at, "`rel`")?)));
            }
            if parts.len() != counts {
                let what = format!("`{word}` has {counts} type{} in it, not {}", &"s"[counts % 2..], parts.len());
                return Err(Mistake::new(at, what, TYPES));
            }
            let last = Box::new(parts.pop().expect("one at least"));
            Ok(match &*word {
                "set" => Type::Set(last),
                "option" => Type::Option(last),
                _ => Type::Map(Box::new(parts.remove(0)), last),
            })
        })
    }

    fn tuple(parts: Vec<Type>, at: Position, what: &str) -> Parsed<Type> {
        if parts.len() < 2 {
            return Err(Mistake::new(at, format!("{what} has two types or more"), "write `(A, B)` or `rel<A, B>`"));
        }
        Ok(Type::Tuple(parts))
    }

    fn types(&mut self, sorts: &mut Vec<Name>, end: &'static str) -> Parsed<Vec<Type>> {
        let mut parts = vec![self.plain_type(sorts)?];
        while self.takes(",") {
            parts.push(self.plain_type(sorts)?);
        }
        self.symbol(end, "close the list of types")?;
        Ok(parts)
    }

    fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth >= DEPTH_MAX {
            let what = format!("this is nested more than {DEPTH_MAX} deep");
            return Err(Mistake::new(self.position(), what, "split it into several clauses"));
        }
        self.depth += 1;
        let outcome = read(self);
        self.depth -= 1;
        outcome
    }

    fn token(&self) -> &Token {
        &self.tokens[self.at].0
    }

    fn position(&self) -> Position {
        self.tokens[self.at].1
    }

    fn takes(&mut self, symbol: &str) -> bool {
        let is_it = matches!(self.token(), Token::Symbol(found) if *found == symbol);
        self.at += usize::from(is_it);
        is_it
    }

    fn takes_word(&mut self, word: &str) -> bool {
        let is_it = matches!(self.token(), Token::Name(found) if found == word);
        self.at += usize::from(is_it);
        is_it
    }

    fn symbol(&mut self, symbol: &str, help: &str) -> Parsed<()> {
        if self.takes(symbol) { Ok(()) } else { Err(self.expected(&format!("`{symbol}`"), help)) }
    }

    fn word(&mut self, word: &str, help: &str) -> Parsed<()> {
        if self.takes_word(word) { Ok(()) } else { Err(self.expected(&format!("`{word}`"), help)) }
    }

    fn name(&mut self, what: &str) -> Parsed<Name> {
        let at = self.position();
        match self.token().clone() {
            Token::Name(text) if RESERVED.contains(&&*text) => {
                Err(self.expected(what, &format!("`{text}` is a word of the language; choose another name")))
            }
            Token::Name(text) => {
                self.at += 1;
                Ok(Name { text, at })
            }
            _ => Err(self.expected(what, "a name has letters, digits and `_`, and begins with a letter")),
        }
    }

    fn expected(&self, what: &str, help: &str) -> Mistake {
        Mistake::new(self.position(), format!("expected {what}, found {}", self.token()), help)
    }

    /// The text from there to the current word, on one line and without comments.
    fn written(&self, start: Position) -> String {
        let (from, to) = (start.line as usize - 1, self.position());
        let mut words = Vec::new();
        for (number, line) in self.lines.iter().enumerate().skip(from).take(to.line as usize - from) {
            let skipped = if number == from { start.column as usize - 1 } else { 0 };
            let end = if number + 1 == to.line as usize { to.column as usize - 1 } else { usize::MAX };
            let part: String = line.chars().take(end).skip(skipped).collect();
            words.extend(part.split("//").next().unwrap_or("").split_whitespace().map(str::to_owned));
        }
        words.join(" ")
    }
}

#[cfg(test)]
mod tests;
