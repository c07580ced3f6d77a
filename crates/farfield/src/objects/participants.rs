//! Who takes part in an object, and in which order.

use std::sync::Arc;

use farfield_fabric::NodeId;

/// The nodes of an object, in order of their numbers. These have gaps where nodes are gone, and may be larger than the
/// session has nodes where some have come back; so what an object lays out by node goes by their *rank* here.
#[derive(Clone, Debug)]
pub(crate) struct Participants(Arc<[NodeId]>);

impl Participants {
    pub(crate) fn new(nodes: &[NodeId]) -> Participants {
        let mut nodes = nodes.to_vec();
        nodes.sort_unstable();
        nodes.dedup();
        Participants(nodes.into())
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The node of a rank.
    #[inline]
    pub(crate) fn at(&self, rank: usize) -> NodeId {
        self.0[rank]
    }

    /// The rank of a node that takes part.
    #[inline]
    pub(crate) fn rank_of(&self, node: NodeId) -> Option<usize> {
        // Few: nothing is faster.
        self.0.iter().position(|other| *other == node)
    }

    /// All, in order of their ranks.
    pub(crate) fn iter(&self) -> impl Iterator<Item = NodeId> + Clone + '_ {
        self.0.iter().copied()
    }

    /// All but one.
    pub(crate) fn but(&self, node: NodeId) -> impl Iterator<Item = NodeId> + Clone + '_ {
        self.iter().filter(move |other| *other != node)
    }

    /// All ranks from `first` on, in a ring.
    pub(crate) fn ring(&self, first: usize) -> impl Iterator<Item = usize> {
        let count = self.len();
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
        assert_eq!(participants.but(NodeId(3)).count(), 3);
    }
}
