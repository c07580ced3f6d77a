//! Reading the question of a test.

use super::parse::{OPERANDS_MAX, Parser};
use super::*;
use crate::text::Token;

impl Parser {
    pub(super) fn is_at_question(&self) -> bool {
        ["locations", "exists", "forall"].iter().any(|word| self.reader.is_word(word))
            || matches!(self.reader.peek(), Token::Symbol("~") | Token::End)
    }

    pub(super) fn question(&mut self) -> Result<()> {
        if self.reader.takes_word("locations") {
            self.reader.expect("[")?;
            while !self.reader.takes("]") {
                let observable = self.observable()?;
                self.show(observable);
                self.reader.expect(";")?;
            }
        }
        self.test.quantifier = if self.reader.takes("~") {
            self.reader.expect_word("exists")?;
            Quantifier::NotExists
        } else if self.reader.takes_word("forall") {
            Quantifier::Forall
        } else if self.reader.takes_word("exists") {
            Quantifier::Exists
        } else {
            return Err(self.reader.unexpected("`exists`, `~exists` or `forall`"));
        };
        self.reader.expect("(")?;
        let condition = self.either()?;
        self.reader.expect(")")?;
        self.test.question = format!("({})", self.written_as(&condition, 0));
        self.test.condition = condition;
        Ok(())
    }

    fn show(&mut self, observable: Observable) {
        if !self.test.shown.contains(&observable) {
            self.test.shown.push(observable);
        }
    }

    fn either(&mut self) -> Result<Condition> {
        let mut all = self.both()?;
        for _ in 0..OPERANDS_MAX {
            if !self.reader.takes("\\/") {
                return Ok(all);
            }
            all = Condition::Or(Box::new(all), Box::new(self.both()?));
        }
        self.fail(self.reader.position(), format!("more than {OPERANDS_MAX} operands"))
    }

    fn both(&mut self) -> Result<Condition> {
        let mut all = self.simple()?;
        for _ in 0..OPERANDS_MAX {
            if !self.reader.takes("/\\") {
                return Ok(all);
            }
            all = Condition::And(Box::new(all), Box::new(self.simple()?));
        }
        self.fail(self.reader.position(), format!("more than {OPERANDS_MAX} operands"))
    }

    fn simple(&mut self) -> Result<Condition> {
        if self.reader.takes_word("true") {
            return Ok(Condition::True);
        }
        if !self.reader.takes("~") {
            if !self.reader.takes("(") {
                let observable = self.observable()?;
                self.reader.expect("=")?;
                let value = self.value()?;
                self.show(observable);
                return Ok(Condition::Is(observable, value));
            }
            self.reader.enter()?;
            let inner = self.either();
            self.reader.leave();
            let inner = inner?;
            self.reader.expect(")")?;
            return Ok(inner);
        }
        self.reader.enter()?;
        let inner = self.simple();
        self.reader.leave();
        Ok(Condition::Not(Box::new(inner?)))
    }

    fn observable(&mut self) -> Result<Observable> {
        let position = self.reader.position();
        if let Token::Number(thread) = *self.reader.peek() {
            self.reader.next();
            self.reader.expect(":")?;
            let at = self.reader.position();
            let name = self.reader.name("a register")?;
            let thread = usize::try_from(thread).ok().filter(|thread| *thread < self.test.threads.len());
            let Some(thread) = thread else { return self.fail(position, "there is no such thread") };
            return match self.register(thread, &name) {
                Some(register) => Ok(Observable::Register(thread, register)),
                None => self.fail(at, format!("P{thread} has no register `{name}`")),
            };
        }
        let is_bracketed = self.reader.takes("[");
        let name = self.reader.name("a register, as 0:a, or an object")?;
        // (Implementations have their memory elsewhere: comparisons use registers only.)
        let has_memory = |object: &Object| {
            object.starts.is_some() || self.implementations.iter().any(|(of, _)| *of == object.library)
        };
        let Some(object) = self.object_of(&name).filter(|at| has_memory(&self.test.objects[*at])) else {
            return self.fail(position, format!("no memory is called `{name}`"));
        };
        let node = match self.test.objects[object].home {
            Some(home) => home,
            None => {
                if !self.reader.takes("@") {
                    return self.fail(position, format!("`{name}` has a copy on every node: say which, as {name}@1"));
                }
                self.node()?
            }
        };
        if is_bracketed {
            self.reader.expect("]")?;
        }
        Ok(Observable::Place((object, node)))
    }

    /// A condition, as herd writes it.
    fn written_as(&self, condition: &Condition, level: u8) -> String {
        let (own, text) = match condition {
            Condition::True => (3, "true".to_owned()),
            Condition::Is(observable @ Observable::Place(_), value) => {
                (3, format!("[{}]={value}", self.test.name_of(*observable)))
            }
            Condition::Is(observable, value) => (3, format!("{}={value}", self.test.name_of(*observable))),
            Condition::Not(inner) => (3, format!("~{}", self.written_as(inner, 3))),
            Condition::And(left, right) => {
                (1, format!("{} /\\ {}", self.written_as(left, 1), self.written_as(right, 2)))
            }
            Condition::Or(left, right) => {
                (0, format!("{} \\/ {}", self.written_as(left, 0), self.written_as(right, 1)))
            }
        };
        if own < level { format!("({text})") } else { text }
    }
}
