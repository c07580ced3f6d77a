//! The faults of a program, and the errors that they explain.

use farfield_core::fabric::{ErrorKind as FabricError, fault};
use farfield_core::{Error, ErrorKind, Node, Result};

use super::VICTIM;
use farfield_check::crashed;
use farfield_check::parts::{Excuse, comes_of_faults, goes_on};

/// What may happen in a program.
#[derive(Clone)]
pub(super) enum Peril {
    Nothing,
    /// Node [`VICTIM`] may die.
    Death,
    /// Operations of node 0 may be refused, by these.
    Refusals(fault::Faults),
    /// Nodes may be cut off, or suspected, and a majority decides which of them are evicted.
    Suspicion,
}

pub(super) fn is_refused(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::Missed { nodes } => nodes.iter().all(|(_, error)| error.is_refused()),
        _ => error.is_refused(),
    }
}

fn is_evicted(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Fabric(error) if matches!(error.kind(), FabricError::Fenced))
}

impl Peril {
    /// The result of a call, unless a fault prevented it.
    pub(super) fn unless_faults<T>(&self, since: Excuse, done: Result<T>) -> Result<Option<T>> {
        let error = match done {
            Ok(value) => return Ok(Some(value)),
            Err(error) => error,
        };
        let is_explained = match self {
            Peril::Nothing => false,
            Peril::Death if error.is_timeout() => since.is_given(),
            Peril::Death => crashed(VICTIM.index()) && error.is_gone() && error.node() == Some(VICTIM),
            Peril::Refusals(_) => is_refused(&error),
            Peril::Suspicion => comes_of_faults(&error) || is_evicted(&error),
        };
        if is_explained { Ok(None) } else { Err(error) }
    }

    /// Whether a node takes part until the end, and its memory and calls count.
    pub(super) fn goes_on(&self, node: &Node) -> bool {
        match self {
            Peril::Nothing | Peril::Refusals(_) => true,
            Peril::Death | Peril::Suspicion => goes_on(node),
        }
    }
}
