//! Which lock a thread takes next.

use farfield::{LockArray, NodeId};
use rand::Rng;

use crate::bench::workload::scale;

/// Draws locks of the own node and of others.
#[derive(Clone, Debug)]
pub(super) struct Locks {
    /// The locks on the own node.
    pub(super) own: Vec<u32>,
    /// All others.
    pub(super) others: Vec<u32>,
}

impl Locks {
    /// The locks of an array, as a node sees them.
    pub(super) fn of(locks: &impl LockArray, node: NodeId) -> Locks {
        let (own, others) = (0..locks.len() as u32).partition(|index| locks.home(*index as usize) == node);
        Locks { own, others }
    }

    /// A lock: with a probability of `locality` percent one of the own node, each of them alike, else any other. Where
    /// there is one sort only, one of that.
    #[inline]
    pub(super) fn draw(&self, locality: u8, rng: &mut impl Rng) -> usize {
        let is_own = scale(rng.next_u64(), 100).0 < u64::from(locality);
        let from = match (is_own, &self.own[..], &self.others[..]) {
            (true, [], others) => others,
            (false, own, []) => own,
            (true, own, _) => own,
            (false, _, others) => others,
        };
        from[scale(rng.next_u64(), from.len() as u64).0 as usize] as usize
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;

    const DRAWS: u64 = 200_000;

    /// How often each of 12 locks is drawn, of which every third is the own node's.
    fn drawn(locality: u8) -> Vec<u64> {
        let (own, others) = (0..12).partition(|index| index % 3 == 0);
        let (locks, mut rng, mut counts) = (Locks { own, others }, SmallRng::seed_from_u64(7), vec![0; 12]);
        (0..DRAWS).for_each(|_| counts[locks.draw(locality, &mut rng)] += 1);
        counts
    }

    #[test]
    fn locality_says_how_many_are_own_and_all_of_a_sort_are_alike() {
        for locality in [0, 50, 85, 90, 95, 100] {
            for (index, count) in drawn(locality).into_iter().enumerate() {
                let percent = if index % 3 == 0 { f64::from(locality) / 4.0 } else { f64::from(100 - locality) / 8.0 };
                let expected = DRAWS as f64 * percent / 100.0;
                // Five standard deviations.
                let near = 5.0 * expected.sqrt();
                assert!((count as f64 - expected).abs() <= near, "lock {index} at {locality} %: {count}, {expected}");
            }
        }
    }

    #[test]
    fn all_or_none_is_exactly_that() {
        assert_eq!(drawn(100).iter().enumerate().filter(|(at, count)| at % 3 != 0 && **count > 0).count(), 0);
        assert_eq!(drawn(0).iter().step_by(3).sum::<u64>(), 0);
    }

    #[test]
    fn a_single_node_has_all_locks_at_any_locality() {
        let locks = Locks { own: vec![0, 1, 2], others: Vec::new() };
        let mut rng = SmallRng::seed_from_u64(7);
        assert!((0..100).all(|at| locks.draw(at, &mut rng) < 3));
    }
}
