//! Values as the solver sees them. It knows truth values, integers and ids; everything else is made of these:
//!
//! | a value of | is |
//! |---|---|
//! | a tuple | a term for each part |
//! | an option | whether it is one, and the content |
//! | a set | a predicate on its elements: a function from terms to a term |
//! | a map | a predicate on its keys, and a function from keys to values |
//!
//! So sets are never values of the solver. The union of two is the disjunction of two predicates, and two are equal if
//! a quantified formula says so. Without arithmetic, questions about sets and relations are then formulas that z3's
//! quantifier instantiation decides (effectively propositional ones), where its theory of arrays often gives up.

use std::cell::Cell;
use std::rc::Rc;

use super::types::Type;

/// A term of SMT-LIB.
pub(crate) type Term = Rc<str>;
/// A predicate on the leaves of a flat type.
pub(crate) type Predicate = Rc<dyn Fn(&[Term]) -> Term>;
/// A function from the leaves of a flat type.
pub(crate) type Function = Rc<dyn Fn(&[Term]) -> Value>;

#[derive(Clone)]
pub(crate) enum Value {
    Leaf(Term),
    Tuple(Vec<Value>),
    /// Whether there is one; the content.
    Option(Term, Box<Value>),
    Set(Predicate),
    Map(Predicate, Function),
}

/// Names for bound variables.
#[derive(Clone, Default)]
pub(crate) struct Fresh(Rc<Cell<usize>>);

impl Fresh {
    pub(crate) fn name(&self, of: &str) -> String {
        self.0.set(self.0.get() + 1);
        format!("{of}!{}", self.0.get())
    }

    /// Bound variables for the leaves of a flat type: the list that a quantifier takes, and the terms.
    pub(crate) fn bound(&self, ty: &Type) -> (String, Vec<Term>) {
        let leaves = ty.leaves();
        let names: Vec<String> = leaves.iter().map(|_| self.name("x")).collect();
        let list = names.iter().zip(&leaves).map(|(name, leaf)| format!("({name} {})", sort(leaf)));
        (list.collect::<Vec<_>>().join(" "), names.iter().map(term).collect())
    }
}

pub(crate) fn term(text: impl AsRef<str>) -> Term {
    Rc::from(text.as_ref())
}

/// The name of a leaf type for the solver.
pub(crate) fn sort(leaf: &Type) -> String {
    match leaf {
        Type::Bool => "Bool".to_owned(),
        Type::Int => "Int".to_owned(),
        Type::Id(name) => format!("Id.{name}"),
        other => unreachable!("{other} is no leaf"),
    }
}

/// `(f a b)`, or `f` without arguments.
pub(crate) fn apply(function: &str, arguments: &[Term]) -> Term {
    match arguments.len() {
        0 => term(function),
        _ => term(format!("({function} {})", arguments.join(" "))),
    }
}

pub(crate) fn not(of: &Term) -> Term {
    match &**of {
        "true" => term("false"),
        "false" => term("true"),
        _ => apply("not", std::slice::from_ref(of)),
    }
}

pub(crate) fn and(parts: &[Term]) -> Term {
    junction("and", "true", "false", parts)
}

pub(crate) fn or(parts: &[Term]) -> Term {
    junction("or", "false", "true", parts)
}

fn junction(name: &str, neutral: &str, absorbing: &str, parts: &[Term]) -> Term {
    let parts: Vec<Term> = parts.iter().filter(|part| &***part != neutral).cloned().collect();
    match parts.as_slice() {
        [] => term(neutral),
        [one] => one.clone(),
        parts if parts.iter().any(|part| &**part == absorbing) => term(absorbing),
        parts => apply(name, parts),
    }
}

/// `(ite c a b)`, or one of both if the condition is known or they are the same.
pub(crate) fn choice(condition: &Term, then: &Term, otherwise: &Term) -> Term {
    match &**condition {
        "true" => then.clone(),
        "false" => otherwise.clone(),
        _ if then == otherwise => then.clone(),
        _ => apply("ite", &[condition.clone(), then.clone(), otherwise.clone()]),
    }
}

impl Value {
    /// The values in a tuple.
    fn parts_of_tuple(&self) -> &[Value] {
        match self {
            Value::Tuple(parts) => parts,
            _ => unreachable!("the checker has found a tuple here"),
        }
    }

    /// The term of a truth value, an integer or an id.
    pub(crate) fn leaf(&self) -> Term {
        match self {
            Value::Leaf(term) => term.clone(),
            _ => unreachable!("the checker has found a truth value, an integer or an id here"),
        }
    }

    /// The terms of a flat value.
    pub(crate) fn leaves(&self) -> Vec<Term> {
        match self {
            Value::Tuple(parts) => parts.iter().flat_map(Value::leaves).collect(),
            leaf => vec![leaf.leaf()],
        }
    }

    /// The flat value that these terms make; it takes as many of them as it needs.
    pub(crate) fn flat(ty: &Type, terms: &mut impl Iterator<Item = Term>) -> Value {
        match ty {
            Type::Tuple(parts) => Value::Tuple(parts.iter().map(|part| Value::flat(part, terms)).collect()),
            _ => Value::Leaf(terms.next().expect("a term for each leaf")),
        }
    }

    /// Any value of a type: what is behind `none`, and what an empty map has.
    pub(crate) fn any(ty: &Type) -> Value {
        match ty {
            Type::Bool => Value::Leaf(term("false")),
            Type::Int => Value::Leaf(term("0")),
            Type::Id(name) => Value::Leaf(term(format!("any.{name}"))),
            Type::Tuple(parts) => Value::Tuple(parts.iter().map(Value::any).collect()),
            Type::Option(of) => Value::Option(term("false"), Box::new(Value::any(of))),
            Type::Set(_) => Value::Set(Rc::new(|_| term("false"))),
            Type::Map(_, value) => {
                let value = Value::any(value);
                Value::Map(Rc::new(|_| term("false")), Rc::new(move |_| value.clone()))
            }
        }
    }

    pub(crate) fn predicate(&self) -> &Predicate {
        match self {
            Value::Set(predicate) | Value::Map(predicate, _) => predicate,
            _ => unreachable!("the checker has found a set or a map here"),
        }
    }

    pub(crate) fn function(&self) -> &Function {
        match self {
            Value::Map(_, function) => function,
            _ => unreachable!("the checker has found a map here"),
        }
    }

    /// One of two values, by a condition.
    pub(crate) fn choose(condition: &Term, then: &Value, otherwise: &Value) -> Value {
        let condition = condition.clone();
        match (then, otherwise) {
            (Value::Leaf(a), Value::Leaf(b)) => Value::Leaf(choice(&condition, a, b)),
            (Value::Tuple(a), Value::Tuple(b)) => {
                Value::Tuple(a.iter().zip(b).map(|(a, b)| Value::choose(&condition, a, b)).collect())
            }
            (Value::Option(has, a), Value::Option(other, b)) => {
                let content = Value::choose(&condition, a, b);
                Value::Option(choice(&condition, has, other), Box::new(content))
            }
            (Value::Set(a), Value::Set(b)) => {
                let (a, b) = (a.clone(), b.clone());
                Value::Set(Rc::new(move |at| choice(&condition, &a(at), &b(at))))
            }
            (Value::Map(a, f), Value::Map(b, g)) => {
                let (a, b, f, g, same) = (a.clone(), b.clone(), f.clone(), g.clone(), condition.clone());
                Value::Map(
                    Rc::new(move |at| choice(&same, &a(at), &b(at))),
                    Rc::new(move |at| Value::choose(&condition, &f(at), &g(at))),
                )
            }
            _ => unreachable!("the checker has found two values of one type"),
        }
    }

    /// That two values of a type are equal.
    pub(crate) fn equal(ty: &Type, a: &Value, b: &Value, fresh: &Fresh) -> Term {
        match ty {
            Type::Bool | Type::Int | Type::Id(_) => match (a.leaf(), b.leaf()) {
                (a, b) if a == b => term("true"),
                (a, b) => apply("=", &[a, b]),
            },
            Type::Tuple(types) => {
                let parts = a.parts_of_tuple().iter().zip(b.parts_of_tuple()).zip(types);
                and(&parts.map(|((a, b), ty)| Value::equal(ty, a, b, fresh)).collect::<Vec<_>>())
            }
            Type::Option(of) => {
                let (Value::Option(has, a), Value::Option(other, b)) = (a, b) else { unreachable!("two options") };
                let content = or(&[not(has), Value::equal(of, a, b, fresh)]);
                and(&[apply("=", &[has.clone(), other.clone()]), content])
            }
            Type::Set(of) => {
                let (list, at) = fresh.bound(of);
                for_all(&list, &apply("=", &[a.predicate()(&at), b.predicate()(&at)]))
            }
            Type::Map(key, value) => {
                let (list, at) = fresh.bound(key);
                let (has, other) = (a.predicate()(&at), b.predicate()(&at));
                let values = Value::equal(value, &a.function()(&at), &b.function()(&at), fresh);
                for_all(&list, &and(&[apply("=", &[has.clone(), other]), or(&[not(&has), values])]))
            }
        }
    }
}

pub(crate) fn for_all(list: &str, body: &Term) -> Term {
    match &**body {
        "true" => body.clone(),
        _ => term(format!("(forall ({list}) {body})")),
    }
}

pub(crate) fn exists(list: &str, body: &Term) -> Term {
    match &**body {
        "false" => body.clone(),
        _ => term(format!("(exists ({list}) {body})")),
    }
}
