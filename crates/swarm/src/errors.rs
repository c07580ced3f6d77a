//! The errors that only replicated memory has.

use core::fmt;
use std::error::Error as StdError;

use farfield_fabric::{Error, NodeId};

/// Too few memory nodes answered a call ([`Error::custom_ref`](farfield_core::Error::custom_ref)). A read may be
/// repeated. A write may have happened or not, and the writer's next write of that register ends it first: a write that
/// is repeated happens twice then.
///
/// ```
/// # use farfield::swarm::{NoMajority, SwarmOptions, SwarmRegister};
/// # let nodes = farfield::local_session(3)?;
/// # let registers = farfield::on_each(&nodes, |node| SwarmRegister::<u64>::open(node, "r", SwarmOptions::default()))?;
/// # let ep = nodes[0].endpoint()?;
/// # let register = registers[0].client(&ep)?;
/// match register.read_blocking() {
///     Ok(value) => println!("{value}"),
///     Err(error) => match error.custom_ref::<NoMajority>() {
///         Some(missing) => eprintln!("{} of {} memory nodes do not answer", missing.failed.len(), missing.of),
///         None => return Err(error),
///     },
/// }
/// # Ok::<(), farfield::Error>(())
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct NoMajority {
    /// The memory nodes of the array.
    pub of: usize,
    /// How many have to answer.
    pub needed: usize,
    /// Those that did not, each with the reason.
    pub failed: Vec<(NodeId, Error)>,
}

impl fmt::Display for NoMajority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NoMajority { of, needed, failed } = self;
        let causes: Vec<String> = failed.iter().map(|(_, error)| error.to_string()).collect();
        let causes = causes.join("; ");
        write!(
            f,
            "{} of {of} memory nodes do not answer, and {needed} have to: {causes}; repeat the call when they are back",
            failed.len()
        )
    }
}

/// The first one: the error is a gone node's, a fenced one's or a timeout as that is.
impl StdError for NoMajority {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.failed.first().map(|(_, error)| error as _)
    }
}

/// A memory node has other memory than it had ([`Error::custom_ref`](farfield_core::Error::custom_ref)): the values
/// there are lost. The other memory nodes go on with the clients that have come before.
///
/// ```
/// use farfield::{Error, NodeId, swarm::MemoryLost};
/// /// The memory node to keep out.
/// fn lost(error: &Error) -> Option<NodeId> {
///     error.custom_ref::<MemoryLost>().map(|lost| lost.node)
/// }
/// let error = Error::custom(MemoryLost { node: NodeId(2) }).of("limits");
/// assert_eq!(lost(&error), Some(NodeId(2)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{node} has lost its memory of it, and lends other memory now: keep it out until all clients have closed it everywhere"
)]
pub struct MemoryLost {
    /// The memory node.
    pub node: NodeId,
}

/// None of the memory nodes that an array or a store was opened with lives any more: each has died or left, and has
/// been replaced or not ([`Error::custom_ref`](farfield_core::Error::custom_ref)). Clients that have it open go on
/// while a majority of its present memory nodes lives, but it cannot be opened, and no memory node of it replaced.
///
/// ```
/// # use farfield::swarm::{FirstMemoryGone, SwarmArray, SwarmOptions};
/// # let mut nodes = farfield::local_session(2)?;
/// let mut options = SwarmOptions::default();
/// options.memory = vec![nodes[0].id()];
/// let open = |node: &farfield::Node| SwarmArray::<u64>::open(node, "limits", 8, options.clone());
/// # drop(farfield::on_each(&nodes, open)?);
/// let (first, ep) = (nodes.remove(0), nodes[0].endpoint()?);
/// let gone = first.id();
/// first.leave();
/// # ep.block_on(ep.wait_until(ep.deadline(), || nodes[0].has_gone(gone).then_some(())))?;
/// let error = open(&nodes[0]).err().unwrap();
/// assert_eq!(error.custom_ref(), Some(&FirstMemoryGone { memory: vec![gone] }));
/// # Ok::<(), farfield::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "none of its first memory nodes lives any more ({memory:?}), and others are found by these only: copy the values to another array or \
     store with a client that has it open"
)]
pub struct FirstMemoryGone {
    /// These memory nodes.
    pub memory: Vec<NodeId>,
}

/// The clock of a writer has reached the end of the timestamps
/// ([`Error::custom_ref`](farfield_core::Error::custom_ref)): four and a half years after an array or a store was
/// opened, and sooner for an array of more registers than have room beside such long timestamps. Nothing was written.
///
/// ```
/// use farfield::{Error, swarm::TimestampsUsedUp};
/// /// Whether it is time to copy the values to another array.
/// fn is_used_up(error: &Error) -> bool {
///     error.custom_ref() == Some(&TimestampsUsedUp)
/// }
/// assert!(is_used_up(&Error::custom(TimestampsUsedUp).of("limits")));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the timestamps are used up: open another array or store, and copy the values to it")]
pub struct TimestampsUsedUp;

/// All registers of a store are in use ([`Error::custom_ref`](farfield_core::Error::custom_ref)). Nothing was inserted.
///
/// ```
/// # use farfield::swarm::{StoreFull, SwarmStore, SwarmStoreOptions};
/// # let nodes = farfield::local_session(3)?;
/// let mut options = SwarmStoreOptions::default();
/// options.keys = 40;
/// let open = |node: &farfield::Node| SwarmStore::<u64, u64>::open(node, "stock", options.clone());
/// let stores = farfield::on_each(&nodes, open)?;
/// # let ep = nodes[0].endpoint()?;
/// let client = stores[0].client(&ep)?;
/// let error = (0..).find_map(|key| client.insert_blocking(&key, &1).err()).unwrap();
/// assert_eq!(error.custom_ref(), Some(&StoreFull { keys: 40 }));
/// # drop(client);
/// # Ok::<(), farfield::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the store has room for {keys} keys, and all of it is used: delete keys, or open it with more `keys`")]
pub struct StoreFull {
    /// The keys for which the store has room.
    pub keys: usize,
}
