//! Sets of subevents, and relations between them, as bits.

/// The most subevents that an execution may have.
pub const SUBEVENTS_MAX: usize = 128;

/// A set of subevents, by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Set(pub u128);

impl Set {
    /// The first `count` of them.
    pub fn first(count: usize) -> Set {
        Set(if count >= SUBEVENTS_MAX { u128::MAX } else { (1 << count) - 1 })
    }

    /// Adds one.
    pub fn insert(&mut self, at: usize) {
        self.0 |= 1 << at;
    }

    /// Whether it is in it.
    pub fn has(self, at: usize) -> bool {
        self.0 >> at & 1 == 1
    }

    /// Those in it, in order.
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
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Relation(Vec<u128>);

impl Relation {
    /// One without pairs, between so many subevents.
    pub fn empty(count: usize) -> Relation {
        assert!(count <= SUBEVENTS_MAX, "{count} subevents");
        Relation(vec![0; count])
    }

    /// The pairs for which this holds.
    pub fn of(count: usize, holds: impl Fn(usize, usize) -> bool) -> Relation {
        let mut relation = Relation::empty(count);
        for from in 0..count {
            (0..count).filter(|to| holds(from, *to)).for_each(|to| relation.insert(from, to));
        }
        relation
    }

    /// Each of a set with itself.
    pub fn identity(count: usize, set: Set) -> Relation {
        let mut relation = Relation::empty(count);
        set.iter().for_each(|at| relation.insert(at, at));
        relation
    }

    /// Each of a set with each of another.
    pub fn product(count: usize, from: Set, to: Set) -> Relation {
        Relation((0..count).map(|at| if from.has(at) { to.0 } else { 0 }).collect())
    }

    /// Between how many subevents.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Adds a pair.
    pub fn insert(&mut self, from: usize, to: usize) {
        self.0[from] |= 1 << to;
    }

    /// Takes a pair out.
    pub fn remove(&mut self, from: usize, to: usize) {
        self.0[from] &= !(1 << to);
    }

    /// Whether it has a pair.
    pub fn has(&self, from: usize, to: usize) -> bool {
        self.0[from] >> to & 1 == 1
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|row| *row == 0)
    }

    /// What one is related to.
    pub fn row(&self, from: usize) -> Set {
        Set(self.0[from])
    }

    /// All pairs, in order.
    pub fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        self.0.iter().enumerate().flat_map(|(from, row)| Set(*row).iter().map(move |to| (from, to)))
    }

    fn rows(&self, other: &Relation, f: impl Fn(u128, u128) -> u128) -> Relation {
        Relation(self.0.iter().zip(&other.0).map(|(a, b)| f(*a, *b)).collect())
    }

    /// The pairs of either.
    pub fn or(&self, other: &Relation) -> Relation {
        self.rows(other, |a, b| a | b)
    }

    /// The pairs of both.
    pub fn and(&self, other: &Relation) -> Relation {
        self.rows(other, |a, b| a & b)
    }

    /// Its pairs without those of the other.
    pub fn minus(&self, other: &Relation) -> Relation {
        self.rows(other, |a, b| a & !b)
    }

    /// One step of this, then one of the other.
    pub fn then(&self, other: &Relation) -> Relation {
        Relation(self.0.iter().map(|row| Set(*row).iter().fold(0, |to, at| to | other.0[at])).collect())
    }

    /// All pairs turned round.
    pub fn inverse(&self) -> Relation {
        let mut inverse = Relation::empty(self.count());
        self.pairs().for_each(|(from, to)| inverse.insert(to, from));
        inverse
    }

    /// One step or more.
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
    pub fn domain(&self) -> Set {
        Set(self.0.iter().enumerate().fold(0, |set, (at, row)| set | u128::from(*row != 0) << at))
    }

    /// Those that something is related to.
    pub fn range(&self) -> Set {
        Set(self.0.iter().fold(0, |set, row| set | row))
    }

    /// Whether nothing is related to itself.
    pub fn is_irreflexive(&self) -> bool {
        self.0.iter().enumerate().all(|(at, row)| row >> at & 1 == 0)
    }

    /// Whether no way leads back to where it began.
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
