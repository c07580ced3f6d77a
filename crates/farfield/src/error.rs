//! What can go wrong with a node or an object, and what to do about it.

use core::fmt;
use std::time::Duration;

use farfield_fabric as fabric;
use farfield_fabric::NodeId;

/// The result of a call of a node or an object.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// An error of a node or an object; it names the object, if it is one's.
///
/// ```
/// use farfield::{Error, ErrorKind};
/// let e = Error::from(ErrorKind::TooLarge { bytes: 100, max_bytes: 64 }).of("queue/ring");
/// assert_eq!(e.to_string(), "queue/ring: 100 bytes do not fit into 64");
/// ```
#[derive(Clone, PartialEq)]
pub struct Error(Box<Inner>);

#[derive(Clone, PartialEq)]
struct Inner {
    object: Option<String>,
    kind: ErrorKind,
}

/// The kinds of error.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An operation of the fabric failed.
    #[error(transparent)]
    Fabric(#[from] fabric::Error),
    /// Nodes that did not get what was sent to all, each with why. All others got it.
    #[error("all but {} got it: send it again, it does no harm to the others ({})", names(.nodes.iter().map(|missed| missed.0)), causes(.nodes))]
    Missed {
        /// In the order of sending.
        nodes: Vec<(NodeId, fabric::Error)>,
    },
    /// Something did not happen in time.
    #[error("{what} not within {waited:?}{}", nodes_missing(.missing))]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        waited: Duration,
        /// The nodes that it was waited for, as far as it is known.
        missing: Vec<NodeId>,
    },
    /// Two nodes open the same name as different things.
    #[error("{node} opens it differently: {differs}")]
    Mismatch {
        /// The other node.
        node: NodeId,
        /// What differs, here and there.
        differs: String,
    },
    /// The name is open on this node already.
    #[error("this node has opened that name already: open it once, and share the handle")]
    AlreadyOpen,
    /// The configuration makes no sense.
    #[error("{why}")]
    Config {
        /// What is wrong and what to do.
        why: String,
    },
    /// A message, key or value is too long.
    #[error("{bytes} bytes do not fit into {max_bytes}")]
    TooLarge {
        /// Its length.
        bytes: usize,
        /// The most there may be.
        max_bytes: usize,
    },
    /// A store has no room for another entry.
    #[error("all {slots} slots of {node} are in use: delete entries, or open it with more `slots_per_node`")]
    Full {
        /// Whose slots.
        node: NodeId,
        /// How many it has.
        slots: usize,
    },
    /// As many operations as it has room for are under way.
    #[error("all {max} {what} of this node are in use: wait for some of its operations, or open it with more")]
    InUse {
        /// What there is not enough of.
        what: &'static str,
        /// How many there are.
        max: usize,
    },
    /// More of something than there may be.
    #[error("{asked} {what} are more than the {max} that there may be")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many were asked for.
        asked: usize,
        /// The most.
        max: usize,
    },
    /// There is no cell of that number.
    #[error("there is no cell {cell}: there are {cells}, from 0 on")]
    NoSuchCell {
        /// The number.
        cell: usize,
        /// How many there are.
        cells: usize,
    },
    /// A transaction does not hold the lock of a cell.
    #[error("cell {cell} is not one of this transaction's: name it when the transaction begins")]
    NotInTransaction {
        /// The cell.
        cell: usize,
    },
    /// The value of a key lay on a node that is gone.
    #[error("the value lay on {node}, which is gone: insert it again")]
    Lost {
        /// That node.
        node: NodeId,
    },
    /// The object was made anew by [`Node::reopen`](crate::Node::reopen): this handle is the old one.
    #[error("it was reopened, as generation {generation}: use the handle that `reopen` has returned")]
    Reopened {
        /// The generation that has taken its place.
        generation: u64,
    },
    /// Another node has called [`Node::reopen`](crate::Node::reopen) and waits for this one.
    #[error("{node} reopens it: call `reopen` as well, and go on with the handle that it returns")]
    Reopens {
        /// That node.
        node: NodeId,
    },
    /// This node or thread does not take part in the object in that role.
    #[error("{why}")]
    NotAParticipant {
        /// What is missing.
        why: String,
    },
}

fn nodes_missing(missing: &[NodeId]) -> String {
    match missing {
        [] => String::new(),
        nodes => {
            format!(", missing: {}: are they running, and have they opened it?", names(nodes.iter().copied()))
        }
    }
}

fn names(nodes: impl Iterator<Item = NodeId>) -> String {
    nodes.map(|node| node.to_string()).collect::<Vec<_>>().join(", ")
}

fn causes(missed: &[(NodeId, fabric::Error)]) -> String {
    missed.iter().map(|(_, error)| error.to_string()).collect::<Vec<_>>().join("; ")
}

/// Who did not get what is sent to several nodes, as it turns out.
#[derive(Default)]
pub(crate) struct Missed(Vec<(NodeId, fabric::Error)>);

impl Missed {
    /// Notes how it went with one.
    #[inline]
    pub(crate) fn note(&mut self, node: NodeId, sent: fabric::Result<()>) {
        if let Err(error) = sent {
            self.add(node, error);
        }
    }

    #[cold]
    fn add(&mut self, node: NodeId, error: fabric::Error) {
        self.0.push((node, error));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// An error that names all who did not get it.
    pub(crate) fn end(self) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(ErrorKind::Missed { nodes: self.0 }.into()) }
    }
}

impl Error {
    /// Which kind it is.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// The object that it is about.
    pub fn object(&self) -> Option<&str> {
        self.0.object.as_deref()
    }

    /// The node that it is about.
    pub fn node(&self) -> Option<NodeId> {
        match &self.0.kind {
            ErrorKind::Fabric(error) => error.node(),
            ErrorKind::Mismatch { node, .. } | ErrorKind::Full { node, .. } => Some(*node),
            ErrorKind::Lost { node } | ErrorKind::Reopens { node } => Some(*node),
            ErrorKind::Timeout { missing, .. } => missing.first().copied(),
            ErrorKind::Missed { nodes } => nodes.first().map(|missed| missed.0),
            _ => None,
        }
    }

    /// Whether a deadline passed.
    pub fn is_timeout(&self) -> bool {
        match &self.0.kind {
            ErrorKind::Timeout { .. } => true,
            ErrorKind::Fabric(error) => error.is_timeout(),
            _ => false,
        }
    }

    /// Whether a node that was needed is dead or has left; of several, all.
    pub fn is_gone(&self) -> bool {
        match &self.0.kind {
            ErrorKind::Missed { nodes } => nodes.iter().all(|(_, error)| error.is_gone()),
            ErrorKind::Lost { .. } => true,
            ErrorKind::Fabric(error) => error.is_gone(),
            _ => false,
        }
    }

    /// Whether a node that was needed (of several, all) is gone, or does not answer any more: see
    /// [`fabric::Error::is_out_of_reach`](farfield_fabric::Error::is_out_of_reach).
    pub fn is_out_of_reach(&self) -> bool {
        match &self.0.kind {
            ErrorKind::Missed { nodes } => nodes.iter().all(|(_, error)| error.is_out_of_reach()),
            ErrorKind::Fabric(error) => error.is_out_of_reach(),
            _ => false,
        }
    }

    /// Whether an operation was refused, and so has had no effect: see
    /// [`fabric::Error::is_refused`](farfield_fabric::Error::is_refused).
    pub fn is_refused(&self) -> bool {
        matches!(&self.0.kind, ErrorKind::Fabric(error) if error.is_refused())
    }

    /// The same error, about an object. An object named already stays.
    #[must_use]
    pub fn of(mut self, object: &str) -> Error {
        self.0.object.get_or_insert_with(|| object.into());
        self
    }
}

impl From<ErrorKind> for Error {
    #[cold]
    fn from(kind: ErrorKind) -> Error {
        Error(Box::new(Inner { object: None, kind }))
    }
}

impl From<fabric::Error> for Error {
    #[cold]
    fn from(error: fabric::Error) -> Error {
        ErrorKind::Fabric(error).into()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.object {
            Some(object) => write!(f, "{object}: {}", self.0.kind),
            None => self.0.kind.fmt(f),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl std::error::Error for Error {}

/// Names the object, and what was waited for, in the error of a result.
pub(crate) trait Of<T> {
    fn of(self, object: &str) -> Result<T>;
    /// Says what did not happen in time, if that is the error.
    fn waiting_for(self, what: &str) -> Result<T>;
    /// And for whom.
    fn waiting_for_nodes(self, what: &str, nodes: &[NodeId]) -> Result<T>;
}

impl<T, E: Into<Error>> Of<T> for core::result::Result<T, E> {
    #[inline]
    fn of(self, object: &str) -> Result<T> {
        self.map_err(
            #[cold]
            |error| error.into().of(object),
        )
    }

    #[inline]
    fn waiting_for(self, what: &str) -> Result<T> {
        self.waiting_for_nodes(what, &[])
    }

    #[inline]
    fn waiting_for_nodes(self, what: &str, nodes: &[NodeId]) -> Result<T> {
        self.map_err(
            #[cold]
            |error| {
                let error = error.into();
                match error.kind() {
                    ErrorKind::Fabric(fabric) => match *fabric.kind() {
                        fabric::ErrorKind::Timeout { waited } => {
                            ErrorKind::Timeout { what: what.into(), waited, missing: nodes.into() }.into()
                        }
                        _ => error,
                    },
                    _ => error,
                }
            },
        )
    }
}
