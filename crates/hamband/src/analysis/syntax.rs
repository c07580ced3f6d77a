//! A specification as it is written: what the parser makes, and the checker reads.

use super::text::Position;
use super::types::Type;

/// A name and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Name {
    pub(crate) text: String,
    pub(crate) at: Position,
}

/// A whole text.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub(crate) name: String,
    pub(crate) sorts: Vec<Name>,
    pub(crate) state: Vec<WrittenVariable>,
    pub(crate) invariants: Vec<WrittenInvariant>,
    pub(crate) updates: Vec<WrittenUpdate>,
    pub(crate) queries: Vec<WrittenQuery>,
    pub(crate) summaries: Vec<WrittenSummary>,
}

#[derive(Clone, Debug)]
pub(crate) struct WrittenVariable {
    pub(crate) name: Name,
    pub(crate) ty: WrittenType,
    pub(crate) initial: Expr,
}

/// A type and where it stands. `nat` is an `int` with a flag.
#[derive(Clone, Debug)]
pub(crate) struct WrittenType {
    pub(crate) ty: Type,
    pub(crate) is_natural: bool,
    /// The sorts that it names.
    pub(crate) sorts: Vec<Name>,
    pub(crate) at: Position,
}

#[derive(Clone, Debug)]
pub(crate) struct WrittenInvariant {
    /// The name in quotes, or the text of the condition.
    pub(crate) name: String,
    pub(crate) condition: Expr,
}

#[derive(Clone, Debug)]
pub(crate) struct WrittenParameter {
    pub(crate) name: Name,
    pub(crate) ty: WrittenType,
    pub(crate) is_unique: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct WrittenUpdate {
    pub(crate) name: Name,
    pub(crate) parameters: Vec<WrittenParameter>,
    pub(crate) requirements: Vec<WrittenRequirement>,
    pub(crate) effects: Vec<(Name, Expr)>,
}

#[derive(Clone, Debug)]
pub(crate) struct WrittenRequirement {
    /// None: `requires invariant`, the post-state has to satisfy the invariant.
    pub(crate) condition: Option<Expr>,
    pub(crate) reason: String,
}

#[derive(Clone, Debug)]
pub(crate) struct WrittenQuery {
    pub(crate) name: Name,
    pub(crate) parameters: Vec<WrittenParameter>,
    pub(crate) result: WrittenType,
    pub(crate) value: Expr,
}

/// `summary u(a), w(b) = …`
#[derive(Clone, Debug)]
pub(crate) struct WrittenSummary {
    pub(crate) calls: [WrittenCall<Name>; 2],
    pub(crate) result: WrittenResult,
    /// As it is written, for reports.
    pub(crate) text: String,
}

#[derive(Clone, Debug)]
pub(crate) struct WrittenCall<A> {
    pub(crate) method: Name,
    pub(crate) arguments: Vec<A>,
}

#[derive(Clone, Debug)]
pub(crate) enum WrittenResult {
    Call(WrittenCall<Expr>),
    If(Expr, Box<WrittenResult>, Box<WrittenResult>),
}

#[derive(Clone, Debug)]
pub(crate) struct Expr {
    pub(crate) at: Position,
    pub(crate) kind: Kind,
}

/// What a quantifier or a set ranges over.
#[derive(Clone, Debug)]
pub(crate) enum Range {
    /// `x: Type`
    All(WrittenType),
    /// `x in set`
    In(Box<Expr>),
}

#[derive(Clone, Debug)]
pub(crate) struct Binder {
    /// One name, or those of a tuple.
    pub(crate) names: Vec<Name>,
    pub(crate) range: Range,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operator {
    Iff,
    Implies,
    Or,
    And,
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    NotIn,
    Subset,
    Add,
    Subtract,
    Union,
    Minus,
    Intersect,
    Multiply,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Bool(bool),
    Int(i64),
    Name(String),
    Tuple(Vec<Expr>),
    /// `{a, b}`; `{}` is the empty set or map.
    Braces(Vec<Expr>),
    /// `{ x in set | condition }`
    Where(Box<Binder>, Box<Expr>),
    None,
    Some(Box<Expr>),
    /// `value(option)`, `keys(map)`, `max(a, b)`, `min(a, b)`
    Function(&'static str, Vec<Expr>),
    Not(Box<Expr>),
    Negate(Box<Expr>),
    Binary(Operator, Box<Expr>, Box<Expr>),
    If(Box<Expr>, Box<Expr>, Box<Expr>),
    ForAll(Vec<Binder>, Box<Expr>),
    Exists(Vec<Binder>, Box<Expr>),
    /// `map[key]`
    At(Box<Expr>, Box<Expr>),
    /// `map[key := value]`
    Put(Box<Expr>, Box<Expr>, Box<Expr>),
    /// `map without key`
    Without(Box<Expr>, Box<Expr>),
}
