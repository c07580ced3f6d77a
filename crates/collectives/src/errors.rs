//! The errors that only collectives have.

use core::fmt;

use farfield_core::Error;
use farfield_fabric::NodeId;

/// The error of a call that has failed, and of all later calls ([`Error::custom_ref`]). It answers
/// [`Error::node`], [`Error::is_gone`] and [`Error::is_timeout`] as its cause does.
///
/// ```
/// # use farfield::{Collectives, CollectivesOptions, collectives::CallFailed};
/// # let nodes = farfield::local_session(2)?;
/// # let open = |node: &farfield::Node| Collectives::open(node, "sums", CollectivesOptions::default());
/// # let mut all = farfield::on_each(&nodes, open)?;
/// # let ep = nodes[0].endpoint()?;
/// ep.set_timeout(std::time::Duration::from_millis(10));
/// let error = all[0].all_reduce_blocking(&ep, &mut [1u64], u64::wrapping_add).unwrap_err(); // the other does not call
/// assert!(error.is_timeout() && error.node() == Some(nodes[1].id()));
/// assert!(error.custom_ref::<CallFailed>().is_some());
/// # Ok::<(), farfield::Error>(())
/// ```
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[error("{because}. Later calls fail, too: reopen the object on all live members (`Node::reopen`)")]
pub struct CallFailed {
    /// Why the first call failed.
    #[source]
    pub because: Error,
}

/// The cause of a [`CallFailed`]: the call has failed on another member.
///
/// ```
/// # use farfield::{Collectives, CollectivesOptions, collectives::{CallFailed, FailedElsewhere}};
/// # let nodes = farfield::local_session(2)?; let root = nodes[0].id();
/// # let open = |node: &farfield::Node| Collectives::open(node, "sums", CollectivesOptions::default());
/// # let mut all = farfield::on_each(&nodes, open)?;
/// # let (ep, far) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
/// all[0].broadcast_blocking(&ep, root, &mut [7u64])?;
/// all[1].all_reduce_blocking(&far, &mut [7u64], u64::wrapping_add).unwrap_err(); // it makes another call
/// let error = all[0].broadcast_blocking(&ep, root, &mut [8u64]).unwrap_err();
/// let because = &error.custom_ref::<CallFailed>().unwrap().because;
/// assert_eq!(because.custom_ref::<FailedElsewhere>().unwrap().node, nodes[1].id());
/// # Ok::<(), farfield::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the call has failed on {node}{}", about(*.because_of))]
pub struct FailedElsewhere {
    /// The member.
    pub node: NodeId,
    /// The node that the error there is about, if any.
    pub because_of: Option<NodeId>,
}

fn about(node: Option<NodeId>) -> String {
    node.map_or(String::new(), |node| format!(", because of {node}"))
}

/// The cause of a [`CallFailed`]: two members do not make the same call.
///
/// ```
/// # use farfield::{Collectives, CollectivesOptions, collectives::{CallFailed, CallKind, DifferentCalls}};
/// # let nodes = farfield::local_session(2)?; let root = nodes[0].id();
/// # let open = |node: &farfield::Node| Collectives::open(node, "sums", CollectivesOptions::default());
/// # let mut all = farfield::on_each(&nodes, open)?;
/// # let (ep, far) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
/// all[0].broadcast_blocking(&ep, root, &mut [7u64])?;
/// let error = all[1].all_reduce_blocking(&far, &mut [7u64], u64::wrapping_add).unwrap_err();
/// let because = &error.custom_ref::<CallFailed>().unwrap().because;
/// let different = because.custom_ref::<DifferentCalls>().unwrap();
/// assert_eq!((different.there.kind, different.here.kind), (CallKind::Broadcast, CallKind::AllReduce));
/// # Ok::<(), farfield::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{node} makes {there}, and this node {here}: all members make the same calls in the same order")]
pub struct DifferentCalls {
    /// The other member.
    pub node: NodeId,
    /// Its call.
    pub there: CallShape,
    /// The call of this node.
    pub here: CallShape,
}

/// The cause of a [`CallFailed`]: the future of an earlier call was dropped before it ended.
///
/// ```
/// # use farfield::{Collectives, CollectivesOptions, collectives::{CallDropped, CallFailed}};
/// # let nodes = farfield::local_session(2)?;
/// # let open = |node: &farfield::Node| Collectives::open(node, "sums", CollectivesOptions::default());
/// # let mut all = farfield::on_each(&nodes, open)?;
/// # let ep = nodes[0].endpoint()?;
/// use std::{future::Future, pin::pin, task::{Context, Waker}};
/// let mut sums = [1u64];
/// let call = all[0].all_reduce(&ep, &mut sums, u64::wrapping_add);
/// assert!(pin!(call).poll(&mut Context::from_waker(Waker::noop())).is_pending()); // and is dropped
/// let error = all[0].all_reduce_blocking(&ep, &mut [1u64], u64::wrapping_add).unwrap_err();
/// let because = &error.custom_ref::<CallFailed>().unwrap().because;
/// assert!(because.custom_ref::<CallDropped>().is_some());
/// # Ok::<(), farfield::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("an earlier call was dropped before it ended")]
pub struct CallDropped;

/// The error of a call with a slice that does not fit the others. Nothing was sent: repeat the call.
///
/// ```
/// # use farfield::{Collectives, CollectivesOptions, collectives::WrongLength};
/// # let node = farfield::Node::builder().session("doc-coll-length").start()?;
/// # let ep = node.endpoint()?;
/// let mut sums = Collectives::open(&node, "sums", CollectivesOptions::default())?;
/// let error = sums.all_gather_blocking(&ep, &[1u64, 2], &mut [0; 3]).unwrap_err();
/// assert_eq!(error.custom_ref::<WrongLength>().unwrap().expected, 2); // this node is alone
/// # Ok::<(), farfield::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{what}` has {elements} elements, and {expected} are needed")]
pub struct WrongLength {
    /// The argument.
    pub what: &'static str,
    /// Its length.
    pub elements: usize,
    /// The length that it has to have.
    pub expected: usize,
}

/// A kind of call.
///
/// ```
/// use farfield::{NodeId, collectives::{CallKind, CallShape, DifferentCalls}};
/// let shape = |kind| CallShape { kind, root: 0, element_bytes: 8, bytes: 8, number: 0 };
/// let error = DifferentCalls { node: NodeId(1), there: shape(CallKind::Reduce), here: shape(CallKind::Gather) };
/// assert!(error.to_string().starts_with("node 1 makes a reduce"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum CallKind {
    /// [`Collectives::broadcast`](crate::Collectives::broadcast)
    Broadcast = 1,
    /// [`Collectives::reduce`](crate::Collectives::reduce)
    Reduce,
    /// [`Collectives::all_reduce`](crate::Collectives::all_reduce)
    AllReduce,
    /// [`Collectives::gather`](crate::Collectives::gather)
    Gather,
    /// [`Collectives::all_gather`](crate::Collectives::all_gather)
    AllGather,
    /// [`Collectives::all_to_all`](crate::Collectives::all_to_all)
    AllToAll,
    /// None that this version knows.
    Unknown,
}

/// What all members of a call have to agree on.
///
/// ```
/// use farfield::collectives::{CallKind, CallShape};
/// let shape = CallShape { kind: CallKind::Gather, root: 2, element_bytes: 8, bytes: 800, number: 3 };
/// assert_eq!(shape.to_string(), "a gather (call 3) of 800 bytes in elements of 8 with the root at rank 2");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallShape {
    /// The kind.
    pub kind: CallKind,
    /// The root's rank; 0 where there is no root.
    pub root: u16,
    /// Bytes of an element.
    pub element_bytes: u32,
    /// Bytes that one member sends to another.
    pub bytes: u64,
    /// Calls of the object before this one.
    pub number: u64,
}

impl CallShape {
    /// The words that go with each chunk.
    pub(crate) const WORDS: usize = 3;

    pub(crate) fn words(self) -> [u64; CallShape::WORDS] {
        [self.kind as u64 | u64::from(self.root) << 8 | u64::from(self.element_bytes) << 32, self.bytes, self.number]
    }

    pub(crate) fn of_words([first, bytes, number]: [u64; CallShape::WORDS]) -> CallShape {
        let kind = match first as u8 {
            1 => CallKind::Broadcast,
            2 => CallKind::Reduce,
            3 => CallKind::AllReduce,
            4 => CallKind::Gather,
            5 => CallKind::AllGather,
            6 => CallKind::AllToAll,
            _ => CallKind::Unknown,
        };
        CallShape { kind, root: (first >> 8) as u16, element_bytes: (first >> 32) as u32, bytes, number }
    }
}

impl fmt::Display for CallShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CallShape { kind, root, element_bytes, bytes, number } = self;
        let name = match kind {
            CallKind::Broadcast => "a broadcast",
            CallKind::Reduce => "a reduce",
            CallKind::AllReduce => "an all-reduce",
            CallKind::Gather => "a gather",
            CallKind::AllGather => "an all-gather",
            CallKind::AllToAll => "an all-to-all",
            CallKind::Unknown => "a call of another kind",
        };
        write!(f, "{name} (call {number}) of {bytes} bytes in elements of {element_bytes}")?;
        match kind {
            CallKind::Broadcast | CallKind::Reduce | CallKind::Gather => write!(f, " with the root at rank {root}"),
            _ => Ok(()),
        }
    }
}
