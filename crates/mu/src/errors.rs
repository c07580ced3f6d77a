//! The errors that only a replicated log has.

use farfield_core::Error;
use farfield_fabric::NodeId;

/// This node does not lead the log ([`Error::custom_ref`]), or has lost the lead in between. The entry is not decided,
/// and never will be: propose it on the leader.
///
/// ```
/// # use farfield_mu::{LogOptions, NotLeader, ReplicatedLog};
/// # let nodes = farfield::local_session(3)?;
/// # let logs = farfield::on_each(&nodes, |node| ReplicatedLog::open(node, "log", LogOptions::default()))?;
/// # let ep = nodes[2].endpoint()?;
/// # ep.block_on(ep.wait_until(ep.deadline(), || logs[2].leader().map(|_| ())))?;
/// let mut proposer = logs[2].proposer()?;
/// let error = ep.block_on(proposer.propose(&ep, b"entry")).unwrap_err();
/// assert_eq!(error.custom_ref::<NotLeader>().unwrap().leader, Some(nodes[0].id()));
/// # Ok::<(), farfield::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("this node does not lead the log{}", leads(*.leader))]
pub struct NotLeader {
    /// The node that leads it, as far as this one knows.
    pub leader: Option<NodeId>,
}

fn leads(leader: Option<NodeId>) -> String {
    leader.map_or(", and no leader is known: propose again when there is one".into(), |leader| {
        format!(": propose on {leader}, which does")
    })
}

/// It is not known whether the entry is or will be decided ([`Error::custom_ref`]). The readers find out: it is decided
/// at this index or not at all. A node that leads may also propose the same entry at this index again
/// ([`Proposer::propose_at`](crate::Proposer::propose_at)): it is decided there once, or the error is [`NotNext`].
///
/// ```
/// # use farfield_mu::OutcomeUnknown;
/// fn index_of(error: &farfield::Error) -> Option<u64> {
///     error.custom_ref::<OutcomeUnknown>().map(|unknown| unknown.index) // read up to it, and then propose again
/// }
/// ```
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[error(
    "it is not known whether entry {index} is decided: {because}; read the log up to it before you propose it again"
)]
pub struct OutcomeUnknown {
    /// Where it is decided, if it is.
    pub index: u64,
    /// Why the call has ended.
    #[source]
    pub because: Error,
}

/// Too few replicas can be reached to decide an entry ([`Error::custom_ref`]). The log continues when a majority is
/// back; if it is dead, reopen the log on the live members.
///
/// ```
/// # use farfield_mu::NoMajority;
/// fn explain(error: &farfield::Error) {
///     if let Some(missing) = error.custom_ref::<NoMajority>() {
///         eprintln!("{} of {} replicas take part, {} have to", missing.present, missing.of, missing.needed);
///     }
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{present} of {of} replicas of the log take part, and {needed} have to")]
pub struct NoMajority {
    /// All replicas.
    pub of: usize,
    /// How many have to take part.
    pub needed: usize,
    /// How many do, this node included.
    pub present: usize,
}

/// All slots of the log hold entries that a live replica has not acknowledged ([`Error::custom_ref`]). Nothing was
/// proposed. If `behind` is this node, read and acknowledge, and propose again: the call waits 200 ms for a reader of
/// its own node that does not get on, since the thread that proposes may be the one that reads. A node that has just
/// begun to lead may have to read first.
///
/// ```
/// # use farfield_mu::LogFull;
/// fn slowest(error: &farfield::Error) -> Option<farfield::NodeId> {
///     error.custom_ref::<LogFull>().map(|full| full.behind) // its application does not read
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the log is full: {behind} has acknowledged the entries before {acknowledged} only")]
pub struct LogFull {
    /// The slowest live replica.
    pub behind: NodeId,
    /// The entries before this one it has acknowledged.
    pub acknowledged: u64,
}

/// Nothing was proposed: the next entry does not have this index
/// ([`Proposer::propose_at`](crate::Proposer::propose_at)).
///
/// ```
/// assert_eq!(farfield_mu::NotNext { next: 3 }.to_string(), "the next entry of the log is entry 3");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the next entry of the log is entry {next}")]
pub struct NotNext {
    /// The index that the next entry has.
    pub next: u64,
}

/// This node has come back to the log, and the entries before `next` are not here any more ([`Error::custom_ref`]): the
/// others have applied them and recycled their slots. Take the state of another node's application that has applied
/// them, and then read on.
///
/// ```
/// use farfield_mu::EntriesMissing;
/// fn state_is_needed(error: &farfield::Error) -> Option<u64> {
///     error.custom_ref::<EntriesMissing>().map(|missing| missing.next) // of a node that has applied as many entries
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "this node has come back, and the entries before entry {next} of the log are recycled: take the state from another node"
)]
pub struct EntriesMissing {
    /// The first entry that is here.
    pub next: u64,
}
