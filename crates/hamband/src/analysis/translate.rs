//! Translates checked expressions to values of the solver.

use std::rc::Rc;

use super::core::{Binary, Core, Local};
use super::types::Type;
use super::value::{Fresh, Term, Value, and, apply, exists, for_all, not, or, term};

/// The values of state variables, parameters and bound names.
#[derive(Clone)]
pub(crate) struct Environment {
    pub(crate) state: Rc<Vec<Value>>,
    pub(crate) locals: Vec<Option<Value>>,
    pub(crate) fresh: Fresh,
}

impl Environment {
    /// With values for these names, of a flat type that is cut into them.
    fn bind(&self, names: &[Local], ty: &Type, at: &[Term]) -> Environment {
        let value = Value::flat(ty, &mut at.iter().cloned());
        let mut inner = self.clone();
        match (names, value) {
            ([name], value) => inner.locals[*name] = Some(value),
            (names, Value::Tuple(parts)) => {
                for (name, part) in names.iter().zip(parts) {
                    inner.locals[*name] = Some(part);
                }
            }
            _ => unreachable!("the checker binds several names to tuples only"),
        }
        inner
    }

    /// With bound variables for these names: the list that a quantifier takes, and the environment inside.
    fn quantify(&self, names: &[(Local, Type)]) -> (String, Environment) {
        let mut inner = self.clone();
        let mut lists = Vec::new();
        for (name, ty) in names {
            let (list, at) = self.fresh.bound(ty);
            lists.push(list);
            inner.locals[*name] = Some(Value::flat(ty, &mut at.into_iter()));
        }
        (lists.join(" "), inner)
    }

    /// The term of a condition or a number.
    pub(crate) fn term(&self, core: &Core) -> Term {
        self.value(core).leaf()
    }

    /// The value of an expression.
    pub(crate) fn value(&self, core: &Core) -> Value {
        let leaf = Value::Leaf;
        match core {
            Core::Bool(value) => leaf(term(value.to_string())),
            Core::Int(value) => leaf(number(*value)),
            Core::State(variable) => self.state[*variable].clone(),
            Core::Local(local) => self.locals[*local].clone().expect("the checker has found it in scope"),
            Core::Tuple(parts) => Value::Tuple(parts.iter().map(|part| self.value(part)).collect()),
            Core::Empty(ty) => Value::any(ty),
            Core::SetOf(elements) => {
                let elements: Vec<Vec<Term>> = elements.iter().map(|element| self.value(element).leaves()).collect();
                Value::Set(Rc::new(move |at| or(&elements.iter().map(|element| same(element, at)).collect::<Vec<_>>())))
            }
            Core::Where(names, ty, condition) => {
                let (outer, names, ty, condition) = (self.clone(), names.clone(), ty.clone(), (**condition).clone());
                Value::Set(Rc::new(move |at| outer.bind(&names, &ty, at).term(&condition)))
            }
            Core::None(of) => Value::Option(term("false"), Box::new(Value::any(of))),
            Core::Some(of) => Value::Option(term("true"), Box::new(self.value(of))),
            Core::Value(of) => match self.value(of) {
                Value::Option(_, content) => *content,
                _ => unreachable!("the checker has found an option here"),
            },
            Core::Keys(of) => Value::Set(self.value(of).predicate().clone()),
            Core::Not(of) => leaf(not(&self.term(of))),
            Core::Negate(of) => leaf(apply("-", &[self.term(of)])),
            Core::Binary(binary, a, b) => self.binary(*binary, a, b),
            Core::Equal(ty, a, b) => leaf(Value::equal(ty, &self.value(a), &self.value(b), &self.fresh)),
            Core::Subset(of, a, b) => {
                let (list, at) = self.fresh.bound(of);
                let (a, b) = (self.value(a), self.value(b));
                leaf(for_all(&list, &or(&[not(&a.predicate()(&at)), b.predicate()(&at)])))
            }
            Core::If(condition, then, otherwise) => {
                Value::choose(&self.term(condition), &self.value(then), &self.value(otherwise))
            }
            Core::ForAll(names, body) => {
                let (list, inner) = self.quantify(names);
                leaf(for_all(&list, &inner.term(body)))
            }
            Core::Exists(names, body) => {
                let (list, inner) = self.quantify(names);
                leaf(exists(&list, &inner.term(body)))
            }
            Core::At(map, key) => self.value(map).function()(&self.value(key).leaves()),
            Core::Put(map, key, value) => {
                let (map, key, value) = (self.value(map), self.value(key).leaves(), self.value(value));
                let (has, get, same_key) = (map.predicate().clone(), map.function().clone(), key.clone());
                Value::Map(
                    Rc::new(move |at| or(&[same(&same_key, at), has(at)])),
                    Rc::new(move |at| Value::choose(&same(&key, at), &value, &get(at))),
                )
            }
            Core::Without(map, key) => {
                let (map, key) = (self.value(map), self.value(key).leaves());
                let has = map.predicate().clone();
                Value::Map(Rc::new(move |at| and(&[not(&same(&key, at)), has(at)])), map.function().clone())
            }
        }
    }

    fn binary(&self, binary: Binary, a: &Core, b: &Core) -> Value {
        let (a, b) = (self.value(a), self.value(b));
        let both = |name| Value::Leaf(apply(name, &[a.leaf(), b.leaf()]));
        let sets = |join: fn(&Term, &Term) -> Term| {
            let (a, b) = (a.predicate().clone(), b.predicate().clone());
            Value::Set(Rc::new(move |at| join(&a(at), &b(at))))
        };
        match binary {
            Binary::Iff => both("="),
            Binary::Implies => Value::Leaf(or(&[not(&a.leaf()), b.leaf()])),
            Binary::Or => Value::Leaf(or(&[a.leaf(), b.leaf()])),
            Binary::And => Value::Leaf(and(&[a.leaf(), b.leaf()])),
            Binary::Less => both("<"),
            Binary::LessOrEqual => both("<="),
            Binary::In => Value::Leaf(b.predicate()(&a.leaves())),
            Binary::Add => both("+"),
            Binary::Subtract => both("-"),
            Binary::Multiply => both("*"),
            Binary::Union => sets(|a, b| or(&[a.clone(), b.clone()])),
            Binary::Minus => sets(|a, b| and(&[a.clone(), not(b)])),
            Binary::Intersect => sets(|a, b| and(&[a.clone(), b.clone()])),
            Binary::Max | Binary::Min => {
                // Names for both, or nested ones would double the term each.
                let (x, y) = (self.fresh.name("m"), self.fresh.name("m"));
                let (then, otherwise) = if binary == Binary::Max { (&y, &x) } else { (&x, &y) };
                let (a, b) = (a.leaf(), b.leaf());
                Value::Leaf(term(format!("(let (({x} {a}) ({y} {b})) (ite (< {x} {y}) {then} {otherwise}))")))
            }
        }
    }
}

fn number(value: i64) -> Term {
    match value {
        0.. => term(value.to_string()),
        _ => term(format!("(- {})", value.unsigned_abs())),
    }
}

/// That two flat values are equal.
pub(crate) fn same(a: &[Term], b: &[Term]) -> Term {
    let equal = |(a, b): (&Term, &Term)| if a == b { term("true") } else { apply("=", &[a.clone(), b.clone()]) };
    and(&a.iter().zip(b).map(equal).collect::<Vec<_>>())
}
