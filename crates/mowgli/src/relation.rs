//! Sets of subevents, and relations between them, as bits.

/// The most subevents that an execution may have.
///
/// ```
/// use mowgli::relation::{SUBEVENTS_MAX, Set};
/// let all = Set::first(SUBEVENTS_MAX);
/// assert!(all.has(SUBEVENTS_MAX - 1)); // they are numbered from 0
/// assert_eq!(all.iter().count(), 128);
/// ```
pub const SUBEVENTS_MAX: usize = 128;

/// A set of subevents, by number.
///
/// ```
/// use mowgli::relation::Set;
/// let mut set = Set::default();
/// set.insert(5);
/// set.insert(2);
/// assert!(set.has(2) && !set.has(3));
/// assert_eq!(set.iter().collect::<Vec<_>>(), [2, 5]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Set(pub u128);

impl Set {
    /// The first `count` of them.
    ///
    /// ```
    /// # use mowgli::relation::Set;
    /// assert_eq!(Set::first(3), Set(0b111));
    /// ```
    pub fn first(count: usize) -> Set {
        Set(if count >= SUBEVENTS_MAX { u128::MAX } else { (1 << count) - 1 })
    }

    /// Adds one.
    ///
    /// ```
    /// # use mowgli::relation::Set;
    /// let mut set = Set::default();
    /// set.insert(2);
    /// assert_eq!(set, Set(0b100));
    /// ```
    pub fn insert(&mut self, at: usize) {
        self.0 |= 1 << at;
    }

    /// Whether it is in it.
    ///
    /// ```
    /// # use mowgli::relation::Set;
    /// let set = Set(0b101);
    /// assert!(set.has(0) && !set.has(1));
    /// ```
    pub fn has(self, at: usize) -> bool {
        self.0 >> at & 1 == 1
    }

    /// Those in it, in order.
    ///
    /// ```
    /// # use mowgli::relation::Set;
    /// assert_eq!(Set(0b1101).iter().collect::<Vec<_>>(), [0, 2, 3]);
    /// ```
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut bits = self.0;
        std::iter::from_fn(move || {
            let next = bits.trailing_zeros() as usize;
            (bits != 0).then(|| {
                bits &= bits - 1;
                next
            })
        })
    }
}

/// A relation: for each subevent, those that it is related to.
///
/// ```
/// use mowgli::relation::Relation;
/// let mut before = Relation::empty(3);
/// before.insert(0, 1);
/// before.insert(1, 2);
/// assert!(before.is_acyclic() && before.closure().has(0, 2));
/// before.insert(2, 0);
/// assert!(!before.is_acyclic());
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Relation(Vec<u128>);

impl Relation {
    /// One without pairs, between so many subevents.
    ///
    /// ```
    /// # use mowgli::relation::Relation;
    /// let relation = Relation::empty(3);
    /// assert_eq!((relation.count(), relation.pairs().count()), (3, 0));
    /// ```
    pub fn empty(count: usize) -> Relation {
        assert!(count <= SUBEVENTS_MAX, "{count} subevents");
        Relation(vec![0; count])
    }

    /// The pairs for which this holds.
    ///
    /// ```
    /// # use mowgli::relation::Relation;
    /// let order = Relation::of(3, |from, to| from < to);
    /// assert_eq!(order.pairs().collect::<Vec<_>>(), [(0, 1), (0, 2), (1, 2)]);
    /// ```
    pub fn of(count: usize, holds: impl Fn(usize, usize) -> bool) -> Relation {
        let mut relation = Relation::empty(count);
        for from in 0..count {
            (0..count).filter(|to| holds(from, *to)).for_each(|to| relation.insert(from, to));
        }
        relation
    }

    /// Each of a set with itself.
    ///
    /// ```
    /// # use mowgli::relation::{Relation, Set};
    /// let identity = Relation::identity(3, Set(0b101));
    /// assert_eq!(identity.pairs().collect::<Vec<_>>(), [(0, 0), (2, 2)]);
    /// ```
    pub fn identity(count: usize, set: Set) -> Relation {
        let mut relation = Relation::empty(count);
        set.iter().for_each(|at| relation.insert(at, at));
        relation
    }

    /// Each of a set with each of another.
    ///
    /// ```
    /// # use mowgli::relation::{Relation, Set};
    /// let product = Relation::product(3, Set(0b001), Set(0b110));
    /// assert_eq!(product.pairs().collect::<Vec<_>>(), [(0, 1), (0, 2)]);
    /// ```
    pub fn product(count: usize, from: Set, to: Set) -> Relation {
        Relation((0..count).map(|at| if from.has(at) { to.0 } else { 0 }).collect())
    }

    /// Between how many subevents.
    ///
    /// ```
    /// # use mowgli::relation::Relation;
    /// assert_eq!(Relation::of(3, |from, to| from < to).count(), 3);
    /// ```
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Adds a pair.
    ///
    /// ```
    /// # use mowgli::relation::Relation;
    /// let mut relation = Relation::empty(3);
    /// relation.insert(0, 2);
    /// assert_eq!(relation.pairs().collect::<Vec<_>>(), [(0, 2)]);
    /// ```
    pub fn insert(&mut self, from: usize, to: usize) {
        self.0[from] |= 1 << to;
    }

    /// Takes a pair out.
    ///
    /// ```
    /// # let mut a = mowgli::relation::Relation::empty(3);
    /// # a.insert(0, 1);
    /// # a.insert(1, 2);
    /// a.remove(0, 1);
    /// assert_eq!(a.pairs().collect::<Vec<_>>(), [(1, 2)]);
    /// ```
    pub fn remove(&mut self, from: usize, to: usize) {
        self.0[from] &= !(1 << to);
    }

    /// Whether it has a pair.
    ///
    /// ```
    /// # let mut a = mowgli::relation::Relation::empty(3);
    /// # a.insert(0, 1);
    /// # a.insert(1, 2);
    /// assert!(a.has(0, 1) && !a.has(1, 0)); // `a` is 0 → 1 → 2
    /// ```
    pub fn has(&self, from: usize, to: usize) -> bool {
        self.0[from] >> to & 1 == 1
    }

    /// Whether it has none.
    ///
    /// ```
    /// # let mut a = mowgli::relation::Relation::empty(3);
    /// # a.insert(0, 1);
    /// # a.insert(1, 2);
    /// assert!(!a.is_empty() && a.minus(&a).is_empty()); // `a` is 0 → 1 → 2
    /// ```
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|row| *row == 0)
    }

    /// What one is related to.
    ///
    /// ```
    /// # let mut a = mowgli::relation::Relation::empty(3);
    /// # a.insert(0, 1);
    /// # a.insert(1, 2);
    /// a.insert(0, 2);
    /// assert_eq!(a.row(0).iter().collect::<Vec<_>>(), [1, 2]);
    /// ```
    pub fn row(&self, from: usize) -> Set {
        Set(self.0[from])
    }

    /// All pairs, in order.
    ///
    /// ```
    /// # let mut a = mowgli::relation::Relation::empty(3);
    /// # a.insert(0, 1);
    /// # a.insert(1, 2);
    /// a.insert(0, 2);
    /// assert_eq!(a.pairs().collect::<Vec<_>>(), [(0, 1), (0, 2), (1, 2)]);
    /// ```
    pub fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        self.0.iter().enumerate().flat_map(|(from, row)| Set(*row).iter().map(move |to| (from, to)))
    }

    fn rows(&self, other: &Relation, f: impl Fn(u128, u128) -> u128) -> Relation {
        Relation(self.0.iter().zip(&other.0).map(|(a, b)| f(*a, *b)).collect())
    }

    /// The pairs of either.
    ///
    /// ```
    /// # let mut a = mowgli::relation::Relation::empty(3);
    /// # a.insert(0, 1);
    /// # a.insert(1, 2);
    /// # let mut b = mowgli::relation::Relation::empty(3);
    /// # b.insert(1, 2);
    /// # b.insert(2, 0);
    /// // `a` is 0 → 1 → 2, and `b` is 1 → 2 → 0.
    /// assert_eq!(a.or(&b).pairs().collect::<Vec<_>>(), [(0, 1), (1, 2), (2, 0)]);
    /// ```
    pub fn or(&self, other: &Relation) -> Relation {
        self.rows(other, |a, b| a | b)
    }

    /// The pairs of both.
    ///
    /// ```
    /// # let mut a = mowgli::relation::Relation::empty(3);
    /// # a.insert(0, 1);
    /// # a.insert(1, 2);
    /// # let mut b = mowgli::relation::Relation::empty(3);
    /// # b.insert(1, 2);
    /// # b.insert(2, 0);
    /// // `a` is 0 → 1 → 2, and `b` is 1 → 2 → 0.
    /// assert_eq!(a.and(&b).pairs().collect::<Vec<_>>(), [(1, 2)]);
    /// ```
    pub fn and(&self, other: &Relation) -> Relation {
        self.rows(other, |a, b| a & b)
    }

    /// Its pairs without those of the other.
    ///
    /// ```
    /// # let mut a = mowgli::relation::Relation::empty(3);
    /// # a.insert(0, 1);
    /// # a.insert(1, 2);
    /// # let mut b = mowgli::relation::Relation::empty(3);
    /// # b.insert(1, 2);
    /// # b.insert(2, 0);
    /// // `a` is 0 → 1 → 2, and `b` is 1 → 2 → 0.
    /// assert_eq!(a.minus(&b).pairs().collect::<Vec<_>>(), [(0, 1)]);
    /// ```
    pub fn minus(&self, other: &Relation) -> Relation {
        self.rows(other, |a, b| a & !b)
    }

    /// One step of this, then one of the other.
    ///
    /// ```
    /// # let mut a = mowgli::relation::Relation::empty(3);
    /// # a.insert(0, 1);
    /// # a.insert(1, 2);
    /// # let mut b = mowgli::relation::Relation::empty(3);
    /// # b.insert(1, 2);
    /// # b.insert(2, 0);
    /// // `a` is 0 → 1 → 2, and `b` is 1 → 2 → 0.
    /// assert_eq!(a.then(&b).pairs().collect::<Vec<_>>(), [(0, 2), (1, 0)]);
    /// ```
    pub fn then(&self, other: &Relation) -> Relation {
        Relation(self.0.iter().map(|row| Set(*row).iter().fold(0, |to, at| to | other.0[at])).collect())
    }

    /// All pairs turned round.
    ///
    /// ```
    /// # let mut a = mowgli::relation::Relation::empty(3);
    /// # a.insert(0, 1);
    /// # a.insert(1, 2);
    /// assert_eq!(a.inverse().pairs().collect::<Vec<_>>(), [(1, 0), (2, 1)]); // `a` is 0 → 1 → 2
    /// ```
    pub fn inverse(&self) -> Relation {
        let mut inverse = Relation::empty(self.count());
        self.pairs().for_each(|(from, to)| inverse.insert(to, from));
        inverse
    }

    /// One step or more.
    ///
    /// ```
    /// # let mut a = mowgli::relation::Relation::empty(3);
    /// # a.insert(0, 1);
    /// # a.insert(1, 2);
    /// assert_eq!(a.closure().pairs().collect::<Vec<_>>(), [(0, 1), (0, 2), (1, 2)]); // `a` is 0 → 1 → 2
    /// ```
    pub fn closure(&self) -> Relation {
        let mut rows = self.0.clone();
        for by in 0..rows.len() {
            let further = rows[by];
            for row in &mut rows {
                if *row >> by & 1 == 1 {
                    *row |= further;
                }
            }
        }
        Relation(rows)
    }

    /// Those that are related to something.
    ///
    /// ```
    /// # let mut a = mowgli::relation::Relation::empty(3);
    /// # a.insert(0, 1);
    /// # a.insert(1, 2);
    /// assert_eq!(a.domain().iter().collect::<Vec<_>>(), [0, 1]); // `a` is 0 → 1 → 2
    /// ```
    pub fn domain(&self) -> Set {
        Set(self.0.iter().enumerate().fold(0, |set, (at, row)| set | u128::from(*row != 0) << at))
    }

    /// Those that something is related to.
    ///
    /// ```
    /// # let mut a = mowgli::relation::Relation::empty(3);
    /// # a.insert(0, 1);
    /// # a.insert(1, 2);
    /// assert_eq!(a.range().iter().collect::<Vec<_>>(), [1, 2]); // `a` is 0 → 1 → 2
    /// ```
    pub fn range(&self) -> Set {
        Set(self.0.iter().fold(0, |set, row| set | row))
    }

    /// Whether nothing is related to itself.
    ///
    /// ```
    /// # let mut a = mowgli::relation::Relation::empty(3);
    /// # a.insert(0, 1);
    /// # a.insert(1, 2);
    /// a.insert(2, 0); // a cycle, but no pair of one with itself
    /// assert!(a.is_irreflexive() && !a.closure().is_irreflexive());
    /// ```
    pub fn is_irreflexive(&self) -> bool {
        self.0.iter().enumerate().all(|(at, row)| row >> at & 1 == 0)
    }

    /// Whether no way leads back to where it began.
    ///
    /// ```
    /// # let mut a = mowgli::relation::Relation::empty(3);
    /// # a.insert(0, 1);
    /// # a.insert(1, 2);
    /// assert!(a.is_acyclic());
    /// a.insert(2, 0);
    /// assert!(!a.is_acyclic());
    /// ```
    pub fn is_acyclic(&self) -> bool {
        // An element without a successor among those that are left is no part of a cycle.
        let mut left = Set::first(self.count()).0;
        loop {
            let stays = Set(left).iter().filter(|at| self.0[*at] & left != 0).fold(0, |set, at| set | 1 << at);
            if stays == left {
                return left == 0;
            }
            left = stays;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relation(pairs: &[(usize, usize)]) -> Relation {
        let mut relation = Relation::empty(5);
        pairs.iter().for_each(|pair| relation.insert(pair.0, pair.1));
        relation
    }

    #[test]
    fn operations_are_those_of_relations() {
        let (a, b) = (relation(&[(0, 1), (1, 2)]), relation(&[(1, 2), (2, 0)]));
        assert_eq!(a.or(&b), relation(&[(0, 1), (1, 2), (2, 0)]));
        assert_eq!(a.and(&b), relation(&[(1, 2)]));
        assert_eq!(a.minus(&b), relation(&[(0, 1)]));
        assert_eq!(a.then(&b), relation(&[(0, 2), (1, 0)]));
        assert_eq!(a.inverse(), relation(&[(1, 0), (2, 1)]));
        assert_eq!(a.closure(), relation(&[(0, 1), (1, 2), (0, 2)]));
        assert_eq!((a.domain(), a.range()), (Set(0b11), Set(0b110)));
        assert_eq!(Relation::product(5, Set(1), Set(0b110)), relation(&[(0, 1), (0, 2)]));
        assert_eq!(Relation::identity(5, Set(0b101)), relation(&[(0, 0), (2, 2)]));
        assert_eq!(Relation::of(5, |from, to| from + to == 1), relation(&[(0, 1), (1, 0)]));
        assert_eq!(a.pairs().collect::<Vec<_>>(), [(0, 1), (1, 2)]);
    }

    #[test]
    fn cycles_are_found() {
        let cycle = relation(&[(0, 1), (1, 2), (2, 0), (3, 4)]);
        assert!(!cycle.is_acyclic() && !cycle.closure().is_irreflexive() && cycle.is_irreflexive());
        let none = relation(&[(0, 1), (0, 2), (1, 2), (3, 4)]);
        assert!(none.is_acyclic() && none.closure().is_irreflexive());
    }

    #[test]
    fn as_many_as_there_may_be() {
        let all = Set::first(SUBEVENTS_MAX);
        let line = Relation::of(SUBEVENTS_MAX, |from, to| to == from + 1);
        assert_eq!(line.closure().row(0), Set(all.0 & !1));
        assert!(line.is_acyclic());
    }
}
