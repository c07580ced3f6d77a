//! The types of the language.

use std::fmt;

/// A type of a state variable, a parameter or an expression.
///
/// ```
/// use farfield_hamband::analysis::Type;
///
/// let pairs = Type::Tuple(vec![Type::Id("Student".into()), Type::Id("Course".into())]);
/// assert_eq!(Type::Set(Box::new(pairs)).to_string(), "rel<Student, Course>");
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Type {
    /// `bool`
    Bool,
    /// `int`: an integer without bounds.
    Int,
    /// An id of a declared sort, which can only be compared for equality.
    Id(String),
    /// `(A, B)`
    Tuple(Vec<Type>),
    /// `set<A>`; `rel<A, B>` is a set of tuples.
    Set(Box<Type>),
    /// `map<K, V>`: a partial map.
    Map(Box<Type>, Box<Type>),
    /// `option<A>`
    Option(Box<Type>),
}

impl Type {
    /// Whether values can be elements of sets and keys of maps: truth values, integers, ids and tuples of these.
    pub(crate) fn is_flat(&self) -> bool {
        match self {
            Type::Bool | Type::Int | Type::Id(_) => true,
            Type::Tuple(parts) => parts.iter().all(Type::is_flat),
            Type::Set(_) | Type::Map(..) | Type::Option(_) => false,
        }
    }

    /// The types of the parts of a flat one, from left to right.
    pub(crate) fn leaves(&self) -> Vec<Type> {
        match self {
            Type::Tuple(parts) => parts.iter().flat_map(Type::leaves).collect(),
            leaf => vec![leaf.clone()],
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |parts: &[Type]| parts.iter().map(Type::to_string).collect::<Vec<_>>().join(", ");
        match self {
            Type::Bool => f.write_str("bool"),
            Type::Int => f.write_str("int"),
            Type::Id(sort) => f.write_str(sort),
            Type::Tuple(parts) => write!(f, "({})", list(parts)),
            Type::Set(of) => match &**of {
                Type::Tuple(parts) => write!(f, "rel<{}>", list(parts)),
                of => write!(f, "set<{of}>"),
            },
            Type::Map(key, value) => write!(f, "map<{key}, {value}>"),
            Type::Option(of) => write!(f, "option<{of}>"),
        }
    }
}
