//! Stamps: what kinds of subevents there are, and which of them stay in program order.

use std::fmt;
use std::sync::LazyLock;

/// The kind of a subevent. `Nlr` and all that follow, except `Gf` of the own node, are actions of a NIC; there is one
/// of each for every remote node. LOCO paper, section 3.1 and Fig. 10.
///
/// ```
/// # use mowgli::stamp::Stamp;
/// assert_eq!((Stamp::Nrw.name(), Stamp::of("NRW")), ("NRW", Some(Stamp::Nrw)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Stamp {
    /// CPU read.
    Cr,
    /// CPU write.
    Cw,
    /// Successful CPU read-modify-write.
    Cas,
    /// Memory fence of the CPU.
    Mf,
    /// Wait.
    Wt,
    /// NIC local read: the reading half of a put.
    Nlr,
    /// NIC remote write: the writing half of a put.
    Nrw,
    /// NIC remote read: the reading half of a get.
    Nrr,
    /// NIC local write: the writing half of a get.
    Nlw,
    /// Remote fence of the NIC.
    Rf,
    /// Global fence.
    Gf,
    /// NIC atomic read: the reading half of a remote read-modify-write.
    Nar,
    /// NIC atomic write: the writing half of a remote read-modify-write.
    Naw,
}

impl Stamp {
    /// All of them, in the order of the table.
    ///
    /// ```
    /// # use mowgli::stamp::Stamp;
    /// assert_eq!((Stamp::ALL[0], Stamp::ALL.len()), (Stamp::Cr, 13));
    /// assert!(Stamp::ALL.into_iter().all(|stamp| Stamp::of(stamp.name()) == Some(stamp)));
    /// ```
    pub const ALL: [Stamp; 13] = {
        use Stamp::*;
        [Cr, Cw, Cas, Mf, Wt, Nlr, Nrw, Nrr, Nlw, Rf, Gf, Nar, Naw]
    };

    /// The name in models.
    ///
    /// ```
    /// # use mowgli::stamp::Stamp;
    /// assert_eq!((Stamp::Cr.name(), Stamp::Nlr.name()), ("CR", "NLR"));
    /// ```
    pub fn name(self) -> &'static str {
        ["CR", "CW", "CAS", "MF", "WT", "NLR", "NRW", "NRR", "NLW", "RF", "GF", "NAR", "NAW"][self as usize]
    }

    /// The stamp of a name.
    ///
    /// ```
    /// # use mowgli::stamp::Stamp;
    /// assert_eq!((Stamp::of("NRW"), Stamp::of("nrw")), (Some(Stamp::Nrw), None));
    /// ```
    pub fn of(name: &str) -> Option<Stamp> {
        Stamp::ALL.into_iter().find(|stamp| stamp.name() == name)
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The stamp order of two subevents of a thread, the first of which is of an earlier event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cell {
    Ordered,
    Not,
    SameNode,
    Starts,
    StartsSameNode,
}

/// The table, which is a file.
const TABLE: &str = include_str!("../models/stamps");

static CELLS: LazyLock<[[Cell; 13]; 13]> = LazyLock::new(|| {
    let mut lines = TABLE.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let names: Vec<&str> = lines.next().expect("a line of columns").split_whitespace().collect();
    assert!(names.iter().eq(Stamp::ALL.map(Stamp::name).iter()), "the columns are the stamps");
    Stamp::ALL.map(|row| {
        let mut words = lines.next().expect("a row for each stamp").split_whitespace();
        assert_eq!(words.next(), Some(row.name()), "the rows are the stamps");
        Stamp::ALL.map(|column| match words.next() {
            Some("+") => Cell::Ordered,
            Some(".") => Cell::Not,
            Some("=") => Cell::SameNode,
            Some("(+)") => Cell::Starts,
            Some("(=)") => Cell::StartsSameNode,
            other => panic!("{row} and {column}: {other:?}?"),
        })
    })
});

/// A stamp, and the node of its family.
///
/// ```
/// # use mowgli::stamp::{NodeStamp, Stamp::*, keeps_order};
/// let put: NodeStamp = (Nrw, Some(2));
/// let gets: [NodeStamp; 2] = [2, 3].map(|node| (Nrr, Some(node)));
/// assert_eq!(gets.map(|get| keeps_order(put, get)), [true, false]); // to the same node, and to another one
/// ```
pub type NodeStamp = (Stamp, Option<u16>);

/// Whether two subevents in program order finish in this order (`ppo`).
///
/// ```
/// # use mowgli::stamp::{Stamp::*, keeps_order};
/// assert!(keeps_order((Nrw, Some(2)), (Nrr, Some(2)))); // a get follows the puts to its node,
/// assert!(!keeps_order((Nrw, Some(2)), (Nrr, Some(3)))); // and overtakes those to other nodes
/// assert!(!keeps_order((Cw, None), (Cr, None))); // a read may overtake a write in the store buffer
/// ```
pub fn keeps_order(first: NodeStamp, second: NodeStamp) -> bool {
    match CELLS[first.0 as usize][second.0 as usize] {
        Cell::Ordered => true,
        Cell::SameNode => first.1 == second.1,
        _ => false,
    }
}

/// Whether they start in this order (`ippo`).
///
/// ```
/// # use mowgli::stamp::{Stamp::*, starts_in_order};
/// assert!(starts_in_order((Cw, None), (Cr, None))); // the write enters the store buffer first
/// ```
pub fn starts_in_order(first: NodeStamp, second: NodeStamp) -> bool {
    match CELLS[first.0 as usize][second.0 as usize] {
        Cell::Ordered | Cell::Starts => true,
        Cell::SameNode | Cell::StartsSameNode => first.1 == second.1,
        Cell::Not => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Stamp::*;

    #[test]
    fn the_table_matches_the_meaning_of_its_rows() {
        let (one, two) = (Some(1), Some(2));
        assert!(keeps_order((Nrw, one), (Nrr, one)) && !keeps_order((Nrw, one), (Nrr, two)), "a read flushes");
        assert!(!keeps_order((Nrr, one), (Nrw, one)), "a write may overtake a read");
        assert!(!keeps_order((Cw, None), (Cr, None)) && starts_in_order((Cw, None), (Cr, None)));
        assert!(!keeps_order((Nlw, one), (Rf, one)) && starts_in_order((Nlw, one), (Rf, one)));
        assert!(!starts_in_order((Nlw, one), (Rf, two)));
        // Subevents that finish in order have started in order.
        for (first, second) in Stamp::ALL.into_iter().flat_map(|first| Stamp::ALL.map(|second| (first, second))) {
            assert!(!keeps_order((first, one), (second, one)) || starts_in_order((first, one), (second, one)));
            assert_eq!(Stamp::of(first.name()), Some(first));
        }
        // Four cells are about starts only.
        let only_starts =
            |first, second| starts_in_order((first, one), (second, one)) && !keeps_order((first, one), (second, one));
        let all = Stamp::ALL.into_iter().flat_map(|first| Stamp::ALL.map(|second| (first, second)));
        let starts: Vec<_> = all.filter(|(first, second)| only_starts(*first, *second)).collect();
        assert_eq!(starts, [(Cw, Cr), (Cw, Wt), (Nrw, Rf), (Nlw, Rf)]);
    }
}
