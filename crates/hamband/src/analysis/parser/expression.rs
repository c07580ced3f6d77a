//! Expressions, from the operator that binds least to the one that binds most:
//!
//! ```text
//! forall, exists, if · iff · implies · or · and · not · = != < <= > >= in, not in, subset
//! + - union minus · * intersect · - (of one number) · map[key], map[key := value], map without key
//! ```

use super::super::lexer::Token;
use super::super::syntax::{Binder, Expr, Kind, Operator, Range};
use super::super::text::{Mistake, Parsed};
use super::Parser;

const EXPRESSION: &str = "an expression begins with a name, a number, `(`, `{`, `not`, `if`, `forall` or `exists`";
const FUNCTIONS: [(&str, usize); 4] = [("value", 1), ("keys", 1), ("max", 2), ("min", 2)];

/// The operators that stand between two expressions, by level; all of a level are read from left to right.
const ADDITIONS: &[(&str, Operator)] =
    &[("+", Operator::Add), ("-", Operator::Subtract), ("union", Operator::Union), ("minus", Operator::Minus)];
const PRODUCTS: &[(&str, Operator)] = &[("*", Operator::Multiply), ("intersect", Operator::Intersect)];
const COMPARISONS: &[(&str, Operator)] = &[
    ("=", Operator::Equal),
    ("!=", Operator::Unequal),
    ("<", Operator::Less),
    ("<=", Operator::LessOrEqual),
    (">", Operator::Greater),
    (">=", Operator::GreaterOrEqual),
    ("in", Operator::In),
    ("subset", Operator::Subset),
];

impl Parser<'_> {
    pub(super) fn expression(&mut self) -> Parsed<Expr> {
        self.deeper(|parser| {
            let at = parser.position();
            if parser.takes_word("forall") {
                return parser.quantified(at, Kind::ForAll);
            }
            if parser.takes_word("exists") {
                return parser.quantified(at, Kind::Exists);
            }
            if parser.takes_word("if") {
                const FORM: &str = "a choice is `if condition then value else value`";
                let condition = parser.expression()?;
                parser.word("then", FORM)?;
                let then = parser.expression()?;
                parser.word("else", FORM)?;
                let kind = Kind::If(condition.into(), then.into(), parser.expression()?.into());
                return Ok(Expr { at, kind });
            }
            let left = parser.implication()?;
            if !parser.takes_word("iff") {
                return Ok(left);
            }
            let right = parser.implication()?;
            Ok(Expr { at, kind: Kind::Binary(Operator::Iff, left.into(), right.into()) })
        })
    }

    fn quantified(&mut self, at: super::Position, kind: impl FnOnce(Vec<Binder>, Box<Expr>) -> Kind) -> Parsed<Expr> {
        let mut binders = vec![self.binder()?];
        while self.takes(",") {
            binders.push(self.binder()?);
        }
        self.symbol(
            ".",
            "write `.` between what the quantifier binds and its condition: `forall x in set . condition`",
        )?;
        Ok(Expr { at, kind: kind(binders, self.expression()?.into()) })
    }

    fn binder(&mut self) -> Parsed<Binder> {
        const FORM: &str = "a quantifier binds `x: Type`, `x in set` or `(x, y) in relation`";
        let mut names = Vec::new();
        if self.takes("(") {
            names.push(self.name("a name")?);
            while self.takes(",") {
                names.push(self.name("a name")?);
            }
            self.symbol(")", FORM)?;
        } else {
            names.push(self.name("a name or `(`")?);
        }
        if names.len() == 1 && self.takes(":") {
            return Ok(Binder { names, range: Range::All(self.ty()?) });
        }
        self.word("in", FORM)?;
        Ok(Binder { names, range: Range::In(self.sum()?.into()) })
    }

    /// To the right: `a implies b implies c` is `a implies (b implies c)`.
    fn implication(&mut self) -> Parsed<Expr> {
        self.deeper(|parser| {
            let at = parser.position();
            let left = parser.disjunction()?;
            if !parser.takes_word("implies") {
                return Ok(left);
            }
            let right = if parser.begins_wide() { parser.expression()? } else { parser.implication()? };
            Ok(Expr { at, kind: Kind::Binary(Operator::Implies, left.into(), right.into()) })
        })
    }

    /// Whether a quantifier or a choice begins here, which extends as far to the right as it can.
    fn begins_wide(&self) -> bool {
        matches!(self.token(), Token::Name(word) if ["forall", "exists", "if"].contains(&&**word))
    }

    fn disjunction(&mut self) -> Parsed<Expr> {
        self.chain(&[("or", Operator::Or)], |parser| parser.chain(&[("and", Operator::And)], Self::negation))
    }

    fn negation(&mut self) -> Parsed<Expr> {
        let at = self.position();
        if self.begins_wide() {
            return self.expression();
        }
        if self.takes_word("not") {
            let of = self.deeper(Self::negation)?;
            return Ok(Expr { at, kind: Kind::Not(of.into()) });
        }
        self.comparison()
    }

    fn comparison(&mut self) -> Parsed<Expr> {
        let at = self.position();
        let left = self.sum()?;
        let Some(operator) = self.compares() else { return Ok(left) };
        let right = self.sum()?;
        let (second, here) = (self.compares(), self.position());
        if second.is_some() {
            let help = "write `and` between two comparisons";
            return Err(Mistake::new(here, "a comparison follows another", help));
        }
        Ok(Expr { at, kind: Kind::Binary(operator, left.into(), right.into()) })
    }

    fn compares(&mut self) -> Option<Operator> {
        let is_next_in = matches!(self.tokens.get(self.at + 1), Some((Token::Name(word), _)) if word == "in");
        if is_next_in && self.takes_word("not") {
            self.at += 1;
            return Some(Operator::NotIn);
        }
        self.operator(COMPARISONS)
    }

    fn operator(&mut self, of: &[(&str, Operator)]) -> Option<Operator> {
        let text = match self.token() {
            Token::Name(word) => word.as_str(),
            Token::Symbol(symbol) => symbol,
            _ => return None,
        };
        let found = of.iter().find(|(name, _)| *name == text).map(|(_, operator)| *operator);
        self.at += usize::from(found.is_some());
        found
    }

    fn chain(&mut self, of: &[(&str, Operator)], operand: impl Fn(&mut Self) -> Parsed<Expr>) -> Parsed<Expr> {
        let (at, depth) = (self.position(), self.depth);
        let mut left = operand(self)?;
        while let Some(operator) = self.operator(of) {
            // Each operator puts those before it one level deeper.
            self.depth += 1;
            if self.depth > super::DEPTH_MAX {
                let what = format!("more than {} operators follow each other", super::DEPTH_MAX);
                return Err(Mistake::new(self.position(), what, "split it into several clauses"));
            }
            left = Expr { at, kind: Kind::Binary(operator, left.into(), operand(self)?.into()) };
        }
        self.depth = depth;
        Ok(left)
    }

    /// What may stand beside a comparison.
    fn sum(&mut self) -> Parsed<Expr> {
        self.chain(ADDITIONS, |parser| parser.chain(PRODUCTS, Self::factor))
    }

    fn factor(&mut self) -> Parsed<Expr> {
        let at = self.position();
        if self.takes("-") {
            let of = self.deeper(Self::factor)?;
            return Ok(Expr { at, kind: Kind::Negate(of.into()) });
        }
        let mut left = self.atom()?;
        loop {
            if self.takes("[") {
                let key = self.expression()?;
                let kind = if self.takes(":=") {
                    Kind::Put(left.into(), key.into(), self.expression()?.into())
                } else {
                    Kind::At(left.into(), key.into())
                };
                self.symbol("]", "a map is read as `map[key]` and changed as `map[key := value]`")?;
                left = Expr { at, kind };
            } else if self.takes_word("without") {
                left = Expr { at, kind: Kind::Without(left.into(), self.atom()?.into()) };
            } else {
                return Ok(left);
            }
        }
    }

    fn atom(&mut self) -> Parsed<Expr> {
        let at = self.position();
        let kind = match self.token().clone() {
            Token::Number(number) => {
                self.at += 1;
                Kind::Int(number)
            }
            Token::Symbol("(") => {
                self.at += 1;
                let mut parts = vec![self.expression()?];
                while self.takes(",") {
                    parts.push(self.expression()?);
                }
                self.symbol(")", "close the parenthesis")?;
                return Ok(match parts.len() {
                    1 => parts.remove(0),
                    _ => Expr { at, kind: Kind::Tuple(parts) },
                });
            }
            Token::Symbol("{") => self.braces()?,
            Token::Name(word) => self.word_of_expression(&word)?,
            _ => return Err(self.expected("an expression", EXPRESSION)),
        };
        Ok(Expr { at, kind })
    }

    fn braces(&mut self) -> Parsed<Kind> {
        self.at += 1;
        if self.takes("}") {
            return Ok(Kind::Braces(vec![]));
        }
        if self.begins_binder() {
            const FORM: &str = "a set is `{ x in set | condition }` or `{a, b}`";
            let binder = self.binder()?;
            self.symbol("|", FORM)?;
            let condition = self.expression()?;
            self.symbol("}", FORM)?;
            return Ok(Kind::Where(binder.into(), condition.into()));
        }
        let mut elements = vec![self.expression()?];
        while self.takes(",") {
            elements.push(self.expression()?);
        }
        self.symbol("}", "a set is `{a, b}` or `{ x in set | condition }`")?;
        Ok(Kind::Braces(elements))
    }

    /// Whether `x in` or `(x, y) in` follows.
    fn begins_binder(&self) -> bool {
        let mut rest = self.tokens[self.at..].iter().map(|(token, _)| token);
        match rest.next() {
            Some(Token::Name(_)) => {}
            Some(Token::Symbol("(")) => loop {
                match (rest.next(), rest.next()) {
                    (Some(Token::Name(_)), Some(Token::Symbol(","))) => {}
                    (Some(Token::Name(_)), Some(Token::Symbol(")"))) => break,
                    _ => return false,
                }
            },
            _ => return false,
        }
        matches!(rest.next(), Some(Token::Name(word)) if word == "in")
    }

    fn word_of_expression(&mut self, word: &str) -> Parsed<Kind> {
        let is_called = matches!(self.tokens.get(self.at + 1), Some((Token::Symbol("("), _)));
        match word {
            "true" | "false" | "none" => {
                self.at += 1;
                return Ok(if word == "none" { Kind::None } else { Kind::Bool(word == "true") });
            }
            _ if !is_called => return Ok(Kind::Name(self.name("an expression")?.text)),
            _ => {}
        }
        let at = self.position();
        self.name("an expression")?;
        self.at += 1;
        let mut arguments = vec![self.expression()?];
        while self.takes(",") {
            arguments.push(self.expression()?);
        }
        self.symbol(")", "close the list of arguments")?;
        if word == "some" && arguments.len() == 1 {
            return Ok(Kind::Some(arguments.remove(0).into()));
        }
        match FUNCTIONS.iter().find(|(name, count)| *name == word && *count == arguments.len()) {
            Some((name, _)) => Ok(Kind::Function(name, arguments)),
            None => {
                let help = "functions are value(option), keys(map), some(value), max(a, b) and min(a, b)";
                Err(Mistake::new(at, format!("there is no function `{word}` of {} arguments", arguments.len()), help))
            }
        }
    }
}
