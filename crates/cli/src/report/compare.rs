//! Farfield beside its peers: the same bench, case and setup on the same machine.

use std::collections::{BTreeMap, BTreeSet};

use super::group::{Case, Results};
use super::{FARFIELD, words};
use crate::spread::Spread;

/// Farfield's throughput by a peer's.
pub(super) struct Ratio<'a> {
    pub(super) own: &'a Case,
    pub(super) peer: &'a Case,
    /// The median of the turns' ratios, or that of the medians if the repetitions do not pair: above 1 Farfield is
    /// faster.
    pub(super) ratio: f64,
    /// The extremes over the repetitions.
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Ratio<'_> {
    /// Whether Farfield loses.
    pub(super) fn is_loss(&self) -> bool {
        self.ratio < 1.0
    }

    /// The label: `mutex, 2 nodes / MPI`.
    pub(super) fn label(&self, differing: &BTreeSet<String>) -> String {
        let (own, peer) = (&self.own.key, &self.peer.key);
        let setup = words::setup(&own.setup, |name| differing.contains(name));
        let what = if setup.is_empty() { own.case.clone() } else { format!("{}, {setup}", own.case) };
        let other = if own.case == peer.case { String::new() } else { format!(" {}", peer.case) };
        format!("{what} / {}{other}", words::system(&peer.system))
    }
}

/// All comparisons in a bench.
pub(super) fn ratios<'a>(results: &'a Results, bench: &'a str) -> Vec<Ratio<'a>> {
    let own: Vec<&Case> = results.of(bench).filter(|case| case.key.system == FARFIELD).collect();
    let own_cases: BTreeSet<&str> = own.iter().map(|case| case.key.case.as_str()).collect();
    // A peer that has none of our cases does the work in a way of its own, which is compared with all of ours.
    let mut shared: BTreeMap<&str, bool> = BTreeMap::new();
    for peer in results.of(bench).filter(|case| case.key.system != FARFIELD) {
        *shared.entry(peer.key.system.as_str()).or_default() |= own_cases.contains(peer.key.case.as_str());
    }
    let mut ratios = Vec::new();
    for own in own {
        for peer in results.of(bench).filter(|case| case.key.system != FARFIELD) {
            let is_same_case = own.key.case == peer.key.case || !shared[peer.key.system.as_str()];
            let is_timed = own.throughput.median > 0.0 && peer.throughput.median > 0.0;
            if is_same_case && is_timed && results.is_same_work(&own.key, &peer.key, "") {
                ratios.push(compare(own, peer));
            }
        }
    }
    ratios
}

fn compare<'a>(own: &'a Case, peer: &'a Case) -> Ratio<'a> {
    // Repetitions of one turn stand beside each other: a disturbance of the machine then affects both.
    let mut beside: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for (repetition, throughput) in &peer.repetitions {
        beside.entry(*repetition).or_default().push(*throughput);
    }
    let mut turns = Vec::new();
    for (repetition, throughput) in &own.repetitions {
        let peers = beside.get_mut(repetition).filter(|peers| !peers.is_empty()).map(|peers| peers.remove(0));
        turns.extend(peers.filter(|peer| *peer > 0.0).map(|peer| throughput / peer));
    }
    let is_paired = turns.len() == own.repetitions.len() && turns.len() == peer.repetitions.len();
    let (ratio, min, max) = match Spread::of(turns).filter(|_| is_paired) {
        Some(of) => (of.median, of.min, of.max),
        None => {
            let least = if peer.throughput.min > 0.0 { peer.throughput.min } else { peer.throughput.median };
            let ratio = own.throughput.median / peer.throughput.median;
            (ratio, own.throughput.min / peer.throughput.max, own.throughput.max / least)
        }
    };
    Ratio { own, peer, ratio, min, max }
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    fn results(own: &[f64], peer: &[f64], case: &str) -> Results {
        let rows = |case: &'static str, system: &'static str, all: &[f64]| {
            let numbered: Vec<_> = all.iter().copied().enumerate().collect();
            numbered
                .into_iter()
                .map(move |(at, throughput)| {
                    samples::row("locks", case, system, throughput, |of| of.repetition = at as u32)
                })
                .collect::<Vec<_>>()
        };
        let case: &'static str = if case == "mutex" { "mutex" } else { "rma" };
        Results::new([rows("mutex", "farfield", own), rows(case, "mpi", peer)].concat()).expect("results")
    }

    #[test]
    fn ratios_are_of_medians_and_their_spread_of_turns() {
        let results = results(&[2.0, 4.0, 6.0], &[1.0, 4.0, 2.0], "mutex");
        let ratios = ratios(&results, "locks");
        let [of] = &ratios[..] else { panic!("one comparison") };
        assert_eq!((of.ratio, of.min, of.max), (2.0, 1.0, 3.0));
        assert!(!of.is_loss());
        assert_eq!(of.label(&BTreeSet::new()), "mutex / MPI");
    }

    #[test]
    fn repetitions_that_do_not_pair_are_compared_by_their_extremes() {
        let results = results(&[1.0, 4.0], &[8.0], "mutex");
        let ratios = ratios(&results, "locks");
        assert_eq!((ratios[0].ratio, ratios[0].min, ratios[0].max), (2.5 / 8.0, 0.125, 0.5));
        assert!(ratios[0].is_loss());
    }

    #[test]
    fn a_peer_without_such_cases_is_compared_with_all() {
        let results = results(&[2.0], &[4.0], "rma");
        assert_eq!(ratios(&results, "locks")[0].label(&BTreeSet::new()), "mutex / MPI rma");
    }
}
