//! A specification that has been checked: names are resolved, and every operator knows the type that it works on.

use super::types::Type;

/// The number of a parameter or a bound name, unique within a specification.
pub(crate) type Local = usize;

#[derive(Clone, Debug)]
pub(crate) enum Core {
    Bool(bool),
    Int(i64),
    /// A state variable, by its number.
    State(usize),
    Local(Local),
    Tuple(Vec<Core>),
    /// The empty set or map of this type.
    Empty(Type),
    SetOf(Vec<Core>),
    /// The elements of a flat type, cut into these names, that satisfy the condition.
    Where(Vec<Local>, Type, Box<Core>),
    None(Type),
    Some(Box<Core>),
    /// The content of an option.
    Value(Box<Core>),
    Keys(Box<Core>),
    Not(Box<Core>),
    Negate(Box<Core>),
    Binary(Binary, Box<Core>, Box<Core>),
    Equal(Type, Box<Core>, Box<Core>),
    /// Of sets with elements of this type.
    Subset(Type, Box<Core>, Box<Core>),
    If(Box<Core>, Box<Core>, Box<Core>),
    ForAll(Vec<(Local, Type)>, Box<Core>),
    Exists(Vec<(Local, Type)>, Box<Core>),
    At(Box<Core>, Box<Core>),
    /// A map, a key, and the value there.
    Put(Box<Core>, Box<Core>, Box<Core>),
    Without(Box<Core>, Box<Core>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Binary {
    Iff,
    Implies,
    Or,
    And,
    Less,
    LessOrEqual,
    /// An element in a set, or a key in a map.
    In,
    Add,
    Subtract,
    Multiply,
    Union,
    Minus,
    Intersect,
    Max,
    Min,
}

impl Core {
    pub(crate) fn binary(binary: Binary, left: Core, right: Core) -> Core {
        Core::Binary(binary, Box::new(left), Box::new(right))
    }

    /// Whether a state variable satisfies `is` in it.
    pub(crate) fn reads(&self, is: &impl Fn(usize) -> bool) -> bool {
        match self {
            Core::State(variable) => is(*variable),
            Core::Bool(_) | Core::Int(_) | Core::Local(_) | Core::Empty(_) | Core::None(_) => false,
            Core::Tuple(parts) | Core::SetOf(parts) => parts.iter().any(|part| part.reads(is)),
            Core::Where(_, _, of) | Core::Some(of) | Core::Value(of) | Core::Keys(of) | Core::Not(of) => of.reads(is),
            Core::Negate(of) | Core::ForAll(_, of) | Core::Exists(_, of) => of.reads(is),
            Core::Binary(_, a, b) | Core::Equal(_, a, b) | Core::Subset(_, a, b) => a.reads(is) || b.reads(is),
            Core::At(a, b) | Core::Without(a, b) => a.reads(is) || b.reads(is),
            Core::If(a, b, c) | Core::Put(a, b, c) => a.reads(is) || b.reads(is) || c.reads(is),
        }
    }
}

/// A state variable.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) ty: Type,
    pub(crate) initial: Core,
}

/// A clause of the invariant.
#[derive(Clone, Debug)]
pub(crate) struct Invariant {
    pub(crate) name: String,
    pub(crate) condition: Core,
}

#[derive(Clone, Debug)]
pub(crate) struct Parameter {
    pub(crate) name: String,
    pub(crate) ty: Type,
    pub(crate) is_natural: bool,
    pub(crate) is_unique: bool,
    pub(crate) local: Local,
}

#[derive(Clone, Debug)]
pub(crate) struct Requirement {
    pub(crate) condition: Core,
    pub(crate) reason: String,
}

/// An update method.
#[derive(Clone, Debug)]
pub(crate) struct Update {
    pub(crate) name: String,
    pub(crate) parameters: Vec<Parameter>,
    /// Requirements of the arguments alone: a call that does not satisfy them is never made.
    pub(crate) of_arguments: Vec<Requirement>,
    /// Requirements of the state.
    pub(crate) requirements: Vec<Requirement>,
    /// `requires invariant`: the reason by which a call is refused that would break the invariant.
    pub(crate) checks_invariant: Option<String>,
    /// New values of state variables, all computed in the pre-state.
    pub(crate) effects: Vec<(usize, Core)>,
}

/// A query.
#[derive(Clone, Debug)]
pub(crate) struct Query {
    pub(crate) name: String,
}

/// What two calls, one after the other, amount to.
#[derive(Clone, Debug)]
pub(crate) struct Summary {
    /// Their methods.
    pub(crate) methods: [usize; 2],
    /// The names of their arguments.
    pub(crate) arguments: [Vec<Local>; 2],
    pub(crate) result: Summarised,
    pub(crate) text: String,
}

/// A call with arguments that depend on those of two calls.
#[derive(Clone, Debug)]
pub(crate) enum Summarised {
    Call(usize, Vec<Core>),
    If(Core, Box<Summarised>, Box<Summarised>),
}

impl Summarised {
    /// The methods of the calls that it may be.
    pub(crate) fn methods(&self) -> Vec<usize> {
        match self {
            Summarised::Call(method, _) => vec![*method],
            Summarised::If(_, then, otherwise) => [then.methods(), otherwise.methods()].concat(),
        }
    }
}
