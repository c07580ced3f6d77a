//! Memory nodes by their places: things of each, their order, and sets.

use smallvec::SmallVec;

use crate::layout::REPLICAS_MAX;

/// One thing for each memory node, at most. Of more than a majority of seven they lie elsewhere: these are moved often.
pub(crate) type PerReplica<T> = SmallVec<[(usize, T); REPLICAS_MAX / 2 + 1]>;

/// The memory nodes in the order in which they are asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Order {
    count: u8,
    at: [u8; REPLICAS_MAX],
}

impl Order {
    pub(crate) fn len(self) -> usize {
        self.count.into()
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> + Clone {
        self.at.into_iter().take(self.len()).map(usize::from)
    }

    pub(crate) fn first(self) -> usize {
        self.at[0].into()
    }

    pub(crate) fn contains(self, replica: usize) -> bool {
        self.iter().any(|other| other == replica)
    }

    /// Those last for which this is true.
    pub(crate) fn put_last(&mut self, is_last: impl Fn(usize) -> bool) {
        let count = self.len();
        self.at[..count].sort_by_key(|replica| is_last((*replica).into()));
    }
}

impl FromIterator<usize> for Order {
    fn from_iter<I: IntoIterator<Item = usize>>(replicas: I) -> Order {
        let mut order = Order::default();
        for replica in replicas {
            order.at[order.len()] = replica as u8;
            order.count += 1;
        }
        order
    }
}

/// A set of memory nodes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Replicas(u8);

impl Replicas {
    pub(crate) fn add(&mut self, replica: usize) {
        self.0 |= 1 << replica;
    }

    pub(crate) fn remove(&mut self, replica: usize) {
        self.0 &= !(1 << replica);
    }

    pub(crate) fn contains(self, replica: usize) -> bool {
        self.0 & 1 << replica != 0
    }

    pub(crate) fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..REPLICAS_MAX).filter(move |replica| self.contains(*replica))
    }
}
