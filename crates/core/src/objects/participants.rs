//! The nodes that take part in an object, and their order.

use std::sync::Arc;

use farfield_fabric::NodeId;

use crate::error::{Result, not_a_participant};

/// The nodes of an object, in order of their numbers. The numbers have gaps where nodes have failed or left, and may
/// exceed the number of places after restarts. So an object numbers the parts of its memory by a node's *rank* here.
///
/// ```
/// use farfield::NodeId;
/// use farfield::toolkit::Participants;
/// let participants = Participants::new(&[6, 0, 3].map(NodeId));
/// assert_eq!((participants.at(1), participants.rank_of(NodeId(6))), (NodeId(3), Some(2)));
/// ```
#[derive(Clone, Debug)]
pub struct Participants(Arc<[NodeId]>);

impl Participants {
    /// These nodes, each once.
    ///
    /// ```
    /// use farfield::{NodeId, toolkit::Participants};
    /// let participants = Participants::new(&[6, 0, 3, 3].map(NodeId)); // in any order, and each once
    /// assert!(participants.iter().eq([0, 3, 6].map(NodeId)));
    /// ```
    pub fn new(nodes: &[NodeId]) -> Participants {
        let mut nodes = nodes.to_vec();
        nodes.sort_unstable();
        nodes.dedup();
        Participants(nodes.into())
    }

    /// How many there are.
    ///
    /// ```
    /// # use farfield::{NodeId, toolkit::Participants};
    /// # let participants = Participants::new(&[6, 0, 3].map(NodeId));
    /// assert_eq!(participants.count(), 3);
    /// ```
    #[inline]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The node of a rank.
    ///
    /// ```
    /// # use farfield::{NodeId, toolkit::Participants};
    /// # let participants = Participants::new(&[6, 0, 3].map(NodeId));
    /// assert_eq!(participants.at(2), NodeId(6));
    /// ```
    ///
    /// # Panics
    /// If there are fewer, as indexing a slice does.
    #[inline]
    pub fn at(&self, rank: usize) -> NodeId {
        self.0[rank]
    }

    /// The rank of a node that takes part.
    ///
    /// ```
    /// # use farfield::{NodeId, toolkit::Participants};
    /// # let participants = Participants::new(&[6, 0, 3].map(NodeId));
    /// assert_eq!(participants.rank_of(NodeId(3)), Some(1));
    /// assert_eq!(participants.rank_of(NodeId(1)), None);
    /// ```
    #[inline]
    pub fn rank_of(&self, node: NodeId) -> Option<usize> {
        // There are few, so nothing is faster.
        self.0.iter().position(|other| *other == node)
    }

    /// The rank of a node that opens the object.
    ///
    /// ```
    /// # use farfield::{ErrorKind, NodeId, toolkit::Participants};
    /// # let participants = Participants::new(&[6, 0, 3].map(NodeId));
    /// assert_eq!(participants.require(NodeId(3))?, 1);
    /// let error = participants.require(NodeId(1)).unwrap_err();
    /// assert!(matches!(error.kind(), ErrorKind::NotAParticipant { .. }));
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NotAParticipant`](crate::ErrorKind::NotAParticipant): the node does not take part.
    pub fn require(&self, node: NodeId) -> Result<usize> {
        self.rank_of(node).ok_or_else(|| not_a_participant(node))
    }

    /// All, in order of their ranks.
    ///
    /// ```
    /// # use farfield::{NodeId, toolkit::Participants};
    /// # let participants = Participants::new(&[6, 0, 3].map(NodeId));
    /// let parts: Vec<(usize, NodeId)> = participants.iter().enumerate().collect();
    /// assert_eq!(parts[1], (1, NodeId(3)));
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = NodeId> + Clone + '_ {
        self.0.iter().copied()
    }

    /// All but one.
    ///
    /// ```
    /// # use farfield::{NodeId, toolkit::Participants};
    /// # let participants = Participants::new(&[6, 0, 3].map(NodeId));
    /// assert!(participants.except(NodeId(3)).eq([NodeId(0), NodeId(6)]));
    /// ```
    pub fn except(&self, node: NodeId) -> impl Iterator<Item = NodeId> + Clone + '_ {
        self.iter().filter(move |other| *other != node)
    }

    /// All ranks from `first` on, in a ring.
    ///
    /// ```
    /// # use farfield::{NodeId, toolkit::Participants};
    /// # let participants = Participants::new(&[6, 0, 3].map(NodeId));
    /// assert!(participants.ring(1).eq([1, 2, 0])); // a search that starts at its own part
    /// ```
    pub fn ring(&self, first: usize) -> impl Iterator<Item = usize> {
        let count = self.count();
        (0..count).map(move |step| (first + step) % count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_have_no_gaps_where_numbers_have() {
        let participants = Participants::new(&[6, 0, 3, 1, 3].map(NodeId));
        let nodes: Vec<u16> = participants.iter().map(|node| node.0).collect();
        assert_eq!(nodes, [0, 1, 3, 6]);
        assert!((0..4).all(|rank| participants.rank_of(participants.at(rank)) == Some(rank)));
        assert_eq!(participants.rank_of(NodeId(2)), None);
        assert_eq!(participants.ring(2).collect::<Vec<_>>(), [2, 3, 0, 1]);
        assert_eq!(participants.except(NodeId(3)).count(), 3);
    }
}
