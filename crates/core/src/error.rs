//! Errors of nodes and objects, and what to do about them.

mod custom;

use core::fmt;
use std::time::Duration;

use farfield_fabric as fabric;
use farfield_fabric::NodeId;

pub use self::custom::CustomError;

/// The result of a call of a node or an object.
///
/// ```
/// use farfield::{AtomicVar, Node, Result};
/// fn next_number(node: &Node) -> Result<u64> {
///     let numbers = AtomicVar::open(node, "numbers", node.id())?;
///     let ep = node.endpoint()?;
///     ep.block_on(numbers.fetch_add(&ep, 1))
/// }
/// # let node = Node::builder().start()?;
/// assert_eq!(next_number(&node)?, 0);
/// # Ok::<(), farfield::Error>(())
/// ```
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// An error of a node or an object. An error of an object names it.
///
/// ```
/// use farfield::{Error, ErrorKind};
/// let e = Error::from(ErrorKind::TooLarge { bytes: 100, max_bytes: 64 }).of("queue/ring");
/// assert_eq!(e.to_string(), "queue/ring: 100 bytes exceed the limit of 64");
/// ```
#[derive(Clone, PartialEq)]
pub struct Error(Box<Inner>);

#[derive(Clone, PartialEq)]
struct Inner {
    object: Option<String>,
    kind: ErrorKind,
}

/// The kinds of error.
///
/// ```
/// use farfield::{Error, ErrorKind, NodeId};
/// let error = Error::from(ErrorKind::Full { node: NodeId(1), slots: 64 });
/// match error.kind() {
///     ErrorKind::Full { node, .. } => println!("{node} needs more slots"),
///     kind => panic!("{kind}"),
/// }
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An operation of the fabric failed.
    #[error(transparent)]
    Fabric(#[from] fabric::Error),
    /// A write to several nodes did not reach some of them. It has reached all others.
    #[error(
        "not delivered to {}: repeat the call, the other nodes have it and are not harmed by it ({})",
        names(.nodes.iter().map(|missed| missed.0)),
        causes(.nodes)
    )]
    Missed {
        /// The nodes that it did not reach, in the order of sending, each with the reason.
        nodes: Vec<(NodeId, fabric::Error)>,
    },
    /// The deadline passed.
    #[error("timed out after {waited:?} waiting for {what}{}", blocking(.missing))]
    Timeout {
        /// The awaited condition.
        what: String,
        /// How long the call waited.
        waited: Duration,
        /// The nodes that the call waited for, as far as it knows.
        missing: Vec<NodeId>,
    },
    /// Two nodes have opened the same path with different types or options.
    #[error("{node} has opened it differently: {differs}")]
    Mismatch {
        /// The other node.
        node: NodeId,
        /// What differs: the value here and the value there.
        differs: String,
    },
    /// The path is already open on this node.
    #[error("already open on this node: share the handle that you have")]
    AlreadyOpen,
    /// The configuration or an option is invalid.
    #[error("{why}")]
    Config {
        /// The mistake, and the remedy.
        why: String,
    },
    /// The configuration asks for a part of Farfield that this program was built without.
    #[error(
        "this program was built without {what}: enable the feature `{feature}` of the crate `farfield`, or {instead}"
    )]
    NotBuilt {
        /// The part.
        what: &'static str,
        /// The feature that contains it.
        feature: &'static str,
        /// What to do instead.
        instead: &'static str,
    },
    /// The node cannot listen there ([`Node::serve_metrics`](crate::Node), with the feature `prometheus`).
    #[error("cannot listen at {address}: {why}; use another address of this host, or port 0 for any free port")]
    Listen {
        /// The address as it was given.
        address: String,
        /// The reason, such as [`AddrInUse`](std::io::ErrorKind::AddrInUse).
        why: std::io::ErrorKind,
    },
    /// Memory of the object contains a value that the object cannot have written.
    #[error("{what}: its memory is corrupt, something else has written to it")]
    Corrupt {
        /// The value that was read.
        what: String,
    },
    /// A value cannot be encoded by serde, or bytes are no encoded value of the expected type (`Encoded`).
    #[error("{why}")]
    Encoding {
        /// The type, what is wrong, and the remedy.
        why: String,
    },
    /// A message, key or value is too long.
    #[error("{bytes} bytes exceed the limit of {max_bytes}")]
    TooLarge {
        /// Its length.
        bytes: usize,
        /// The limit.
        max_bytes: usize,
    },
    /// A store has no free slot. A slot that another node's delete has freed is free here a moment later.
    #[error("all {slots} slots of {node} are in use: delete entries, or open the store with more `slots_per_node`")]
    Full {
        /// The owner of the slots.
        node: NodeId,
        /// How many slots there are.
        slots: usize,
    },
    /// Too many operations of this node are in flight.
    #[error("all {max} {what} of this node are in use: await some operations, or open the object with more")]
    InUse {
        /// The exhausted resource.
        what: &'static str,
        /// How much of it there is.
        max: usize,
    },
    /// A limit is exceeded.
    #[error("{asked} {what} exceed the limit of {max}")]
    TooMany {
        /// The limited resource.
        what: &'static str,
        /// The requested number.
        asked: usize,
        /// The limit.
        max: usize,
    },
    /// The value of a key was stored on a node that is dead or has left.
    #[error("the value was lost with {node}: insert it again")]
    ValueLost {
        /// That node.
        node: NodeId,
    },
    /// [`Node::reopen`](crate::Node::reopen) has replaced the object: this handle is stale.
    #[error("the object was reopened as generation {generation}: use the handle that `reopen` has returned")]
    Reopened {
        /// The generation that has replaced it.
        generation: u64,
    },
    /// [`Queue::close`](crate::Queue::close) has closed the queue.
    #[error(
        "the queue is closed: enqueues are refused, and dequeues end when its values are taken; `Node::reopen` \
         replaces it by a new one"
    )]
    Closed,
    /// Another node has called [`Node::reopen`](crate::Node::reopen) and waits for this one.
    #[error("{node} is reopening the object: call `reopen` here too, and use the handle that it returns")]
    Reopens {
        /// That node.
        node: NodeId,
    },
    /// This node or thread does not have that role in the object.
    #[error("{why}")]
    NotAParticipant {
        /// The missing role, and why.
        why: String,
    },
    /// An error that another crate's object has defined: see [`Error::custom`].
    #[error("{0}")]
    Custom(CustomError),
}

fn blocking(missing: &[NodeId]) -> String {
    match missing {
        [] => String::new(),
        [node] => format!(", blocked by {node}: check that it runs and has opened the object"),
        nodes => {
            format!(", blocked by {}: check that they run and have opened the object", names(nodes.iter().copied()))
        }
    }
}

fn names(nodes: impl Iterator<Item = NodeId>) -> String {
    nodes.map(|node| node.to_string()).collect::<Vec<_>>().join(", ")
}

fn causes(missed: &[(NodeId, fabric::Error)]) -> String {
    missed.iter().map(|(_, error)| error.to_string()).collect::<Vec<_>>().join("; ")
}

/// Collects the nodes that a write to several nodes does not reach.
///
/// ```
/// use farfield::NodeId;
/// use farfield::toolkit::Missed;
/// let mut missed = Missed::default();
/// missed.note(NodeId(1), Ok(()));
/// assert!(missed.end().is_ok());
/// ```
#[derive(Default)]
pub struct Missed(Vec<(NodeId, fabric::Error)>);

impl Missed {
    /// Records the result for one node.
    ///
    /// ```
    /// use farfield::{NodeId, fabric, toolkit::Missed};
    /// let mut missed = Missed::default();
    /// missed.note(NodeId(1), Err(fabric::ErrorKind::PeerLeft { node: NodeId(1) }.into()));
    /// missed.note(NodeId(2), Ok(())); // the others are sent to nevertheless
    /// assert_eq!(missed.end().unwrap_err().node(), Some(NodeId(1)));
    /// ```
    #[inline]
    pub fn note(&mut self, node: NodeId, sent: fabric::Result<()>) {
        if let Err(error) = sent {
            self.add(node, error);
        }
    }

    #[cold]
    fn add(&mut self, node: NodeId, error: fabric::Error) {
        self.0.push((node, error));
    }

    /// Whether all nodes were reached.
    ///
    /// ```
    /// use farfield::{NodeId, toolkit::Missed};
    /// let mut missed = Missed::default();
    /// missed.note(NodeId(2), Ok(()));
    /// assert!(missed.is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Ends the collection.
    ///
    /// ```
    /// use farfield::{ErrorKind, NodeId, fabric, toolkit::Missed};
    /// let mut missed = Missed::default();
    /// missed.note(NodeId(1), Err(fabric::ErrorKind::Unreachable { node: NodeId(1) }.into()));
    /// let error = missed.end().unwrap_err();
    /// assert!(matches!(error.kind(), ErrorKind::Missed { nodes } if nodes[0].0 == NodeId(1)));
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Missed`], which names all nodes that were not reached.
    pub fn end(self) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(ErrorKind::Missed { nodes: self.0 }.into()) }
    }
}

impl Error {
    /// The kind of the error.
    ///
    /// ```
    /// # use farfield::{Error, ErrorKind};
    /// let error = Error::from(ErrorKind::AlreadyOpen).of("queue");
    /// assert_eq!(error.kind(), &ErrorKind::AlreadyOpen);
    /// ```
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// The path of the object, if the error is about one.
    ///
    /// ```
    /// # use farfield::{Error, ErrorKind};
    /// let error = Error::from(ErrorKind::AlreadyOpen).of("queue");
    /// assert_eq!(error.object(), Some("queue"));
    /// ```
    pub fn object(&self) -> Option<&str> {
        self.0.object.as_deref()
    }

    /// The node, if the error is about one.
    ///
    /// ```
    /// # use farfield::{Error, ErrorKind, NodeId};
    /// let error = Error::from(ErrorKind::ValueLost { node: NodeId(2) });
    /// assert_eq!(error.node(), Some(NodeId(2)));
    /// ```
    pub fn node(&self) -> Option<NodeId> {
        match &self.0.kind {
            ErrorKind::Fabric(error) => error.node(),
            ErrorKind::Mismatch { node, .. } | ErrorKind::Full { node, .. } => Some(*node),
            ErrorKind::ValueLost { node } | ErrorKind::Reopens { node } => Some(*node),
            ErrorKind::Timeout { missing, .. } => missing.first().copied(),
            ErrorKind::Missed { nodes } => nodes.first().map(|missed| missed.0),
            ErrorKind::Custom(custom) => custom.node(),
            _ => None,
        }
    }

    /// Whether a deadline passed.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let (ep, mutex) = (node.endpoint()?, farfield::Mutex::open(&node, "account", node.id())?);
    /// let held = ep.block_on(mutex.lock(&ep))?;
    /// match ep.block_on(mutex.lock_deadline(&ep, ep.now())) {
    ///     Err(error) if error.is_timeout() => println!("try again later: {error}"),
    ///     locked => drop(locked?),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn is_timeout(&self) -> bool {
        match &self.0.kind {
            ErrorKind::Timeout { .. } => true,
            ErrorKind::Fabric(error) => error.is_timeout(),
            ErrorKind::Custom(custom) => custom.comes_from(Error::is_timeout),
            _ => false,
        }
    }

    /// Whether the node that the call needed (of several, all of them) is dead or has departed.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let mut nodes = farfield::local_session(2)?;
    /// # let (ep, home) = (nodes[0].endpoint()?, nodes[1].id());
    /// # let mut vars = farfield::on_each(&nodes, |node| farfield::AtomicVar::open(node, "count", home))?;
    /// # vars.pop();
    /// # nodes.pop();
    /// // The variable's home has left the session.
    /// let error = ep.block_on(vars[0].load(&ep)).unwrap_err();
    /// assert!(error.is_gone() && error.node() == Some(home));
    /// # Ok(()) }
    /// ```
    pub fn is_gone(&self) -> bool {
        match &self.0.kind {
            ErrorKind::Missed { nodes } => nodes.iter().all(|(_, error)| error.is_gone()),
            ErrorKind::ValueLost { .. } => true,
            ErrorKind::Fabric(error) => error.is_gone(),
            ErrorKind::Custom(custom) => custom.comes_from(Error::is_gone),
            _ => false,
        }
    }

    /// Whether the node that the call needed (of several, all of them) is dead, has departed or does not answer: see
    /// [`fabric::Error::is_unreachable`](farfield_fabric::Error::is_unreachable).
    ///
    /// ```
    /// use farfield::{Error, NodeId, fabric};
    /// let silent = Error::from(fabric::Error::from(fabric::ErrorKind::Unreachable { node: NodeId(1) }));
    /// assert!(silent.is_unreachable() && !silent.is_gone()); // it may answer again
    /// ```
    pub fn is_unreachable(&self) -> bool {
        match &self.0.kind {
            ErrorKind::Missed { nodes } => nodes.iter().all(|(_, error)| error.is_unreachable()),
            ErrorKind::Fabric(error) => error.is_unreachable(),
            ErrorKind::Custom(custom) => custom.comes_from(Error::is_unreachable),
            _ => false,
        }
    }

    /// Whether the queue was closed, by a node that has called [`Queue::close`](crate::Queue::close).
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?; let ep = node.endpoint()?;
    /// # let jobs = farfield::Queue::<u64>::open(&node, "jobs", farfield::QueueOptions::new(node.id(), 4))?;
    /// ep.block_on(jobs.close(&ep))?;
    /// match ep.block_on(jobs.dequeue(&ep)) {
    ///     Err(error) if error.is_closed() => println!("all jobs are done"),
    ///     job => drop(job?),
    /// }
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn is_closed(&self) -> bool {
        match &self.0.kind {
            ErrorKind::Closed => true,
            ErrorKind::Custom(custom) => custom.comes_from(Error::is_closed),
            _ => false,
        }
    }

    /// Whether an operation was refused, and so has no effect: see
    /// [`fabric::Error::is_refused`](farfield_fabric::Error::is_refused).
    ///
    /// ```
    /// use farfield::{Error, fabric};
    /// let full = fabric::ErrorKind::PoolExhausted { asked_bytes: 4096, limit_bytes: 1024 };
    /// let full = Error::from(fabric::Error::from(full));
    /// assert!(full.is_refused()); // a later attempt may succeed
    /// ```
    pub fn is_refused(&self) -> bool {
        matches!(&self.0.kind, ErrorKind::Fabric(error) if error.is_refused())
    }

    /// The same error with the path of an object, unless it has one.
    ///
    /// ```
    /// # use farfield::{Error, ErrorKind};
    /// let error = Error::from(ErrorKind::AlreadyOpen).of("kv/locks").of("kv");
    /// assert_eq!(error.object(), Some("kv/locks")); // the innermost object
    /// ```
    #[must_use]
    pub fn of(mut self, object: &str) -> Error {
        self.0.object.get_or_insert_with(|| object.into());
        self
    }
}

/// The error of a node that opens an object among others.
pub(crate) fn not_a_participant(node: NodeId) -> Error {
    let why =
        format!("{node} is not one of its participants: name it on all of them, or do not open the object on {node}");
    ErrorKind::NotAParticipant { why }.into()
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

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0.kind {
            ErrorKind::Custom(custom) => custom.source(),
            _ => None,
        }
    }
}

/// Adds the object, and the awaited condition, to the error of a result.
///
/// ```
/// use farfield::toolkit::ErrorContext;
/// use farfield::{ErrorKind, Result};
/// let full: Result<()> = Err(ErrorKind::TooLarge { bytes: 9, max_bytes: 8 }.into());
/// assert_eq!(full.of("mail").unwrap_err().to_string(), "mail: 9 bytes exceed the limit of 8");
/// ```
pub trait ErrorContext<T> {
    /// Adds the path of the object.
    ///
    /// ```
    /// # use farfield::{ErrorKind, NodeId, fabric, toolkit::ErrorContext};
    /// let got: fabric::Result<u64> = Err(fabric::ErrorKind::PeerLeft { node: NodeId(1) }.into());
    /// assert_eq!(got.of("mail").unwrap_err().object(), Some("mail")); // now an error of the object
    /// ```
    ///
    /// # Errors
    /// That of the result.
    fn of(self, object: &str) -> Result<T>;

    /// Adds the awaited condition, if the error is a timeout.
    ///
    /// ```
    /// # use farfield::{fabric, toolkit::ErrorContext};
    /// # let waited = std::time::Duration::from_secs(2);
    /// let waited: fabric::Result<()> = Err(fabric::ErrorKind::Timeout { waited }.into());
    /// let error = waited.waiting_for("a letter").of("mail").unwrap_err();
    /// assert_eq!(error.to_string(), "mail: timed out after 2s waiting for a letter");
    /// ```
    ///
    /// # Errors
    /// That of the result.
    fn waiting_for(self, what: &str) -> Result<T>;

    /// Adds the awaited nodes, too.
    ///
    /// ```
    /// # use farfield::{NodeId, fabric, toolkit::ErrorContext};
    /// # let waited = std::time::Duration::from_secs(2);
    /// let waited: fabric::Result<()> = Err(fabric::ErrorKind::Timeout { waited }.into());
    /// let error = waited.waiting_for_nodes("a letter", &[NodeId(3)]).of("mail").unwrap_err();
    /// assert_eq!(error.node(), Some(NodeId(3)));
    /// ```
    ///
    /// # Errors
    /// That of the result.
    fn waiting_for_nodes(self, what: &str, nodes: &[NodeId]) -> Result<T>;
}

impl<T, E: Into<Error>> ErrorContext<T> for core::result::Result<T, E> {
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
