//! How many round trips the calls of each case take, beside the numbers in SWARM's paper.

use std::io::{self, Write};

use super::measure::Call;
use super::system::Kind;

/// Round trips from here on are counted as so many.
pub(super) const TRIPS_MAX: usize = 15;

/// How many calls have taken so many round trips.
pub(super) type Trips = [u64; TRIPS_MAX + 1];

/// Adds those of other calls.
pub(super) fn merge(into: &mut Trips, more: &Trips) {
    into.iter_mut().zip(more).for_each(|(sum, calls)| *sum += calls);
}

/// Their share, in percent, of all calls.
fn percent(calls: u64, trips: &Trips) -> f64 {
    100.0 * calls as f64 / trips.iter().sum::<u64>().max(1) as f64
}

/// The distribution of round trips, as figures of a measurement: `trips_2` calls have taken two.
pub(super) fn figures(trips: &Trips) -> impl Iterator<Item = (String, f64)> {
    let all: u64 = trips.iter().sum();
    let percentile = |percent: u64| {
        let mut left = (all * percent).div_ceil(100);
        let at = trips.iter().position(|calls| {
            left = left.saturating_sub(*calls);
            left == 0
        });
        at.unwrap_or(0) as f64
    };
    let most = trips.iter().rposition(|calls| *calls > 0).unwrap_or(0) as f64;
    let summary = [
        ("trips_p50".into(), percentile(50)),
        ("trips_p99".into(), percentile(99)),
        ("trips_max".into(), most),
        ("one_trip_%".into(), percent(trips[..=1].iter().sum(), trips)),
    ];
    summary.into_iter().chain(taken(trips).map(|(count, calls)| (format!("trips_{count}"), calls as f64)))
}

/// The numbers of round trips that any call has taken, each with its calls.
fn taken(trips: &Trips) -> impl Iterator<Item = (usize, u64)> {
    trips.iter().copied().enumerate().filter(|(_, calls)| *calls > 0)
}

/// The numbers in the paper's Table 2, which has gets and updates: the common case, and the 99th percentile where that
/// is another one. Section 5 has those of SWARM-KV's inserts and deletes.
pub(super) fn paper(system: Kind, call: Call) -> Option<&'static str> {
    match (system, call) {
        (Kind::Swarm, _) | (Kind::Raw, Call::Get | Call::Update) => Some("1"),
        (Kind::DmAbd, Call::Get | Call::Update) => Some("2"),
        (Kind::Fusee, Call::Get) => Some("1-2, 99th percentile 2"),
        (Kind::Fusee, Call::Update) => Some("4, 99th percentile 5"),
        (Kind::DmAbd | Kind::Fusee | Kind::Raw, Call::Insert | Call::Delete) => None,
    }
}

/// The round trips of a case's calls, in all repetitions.
struct Histogram {
    title: String,
    paper: Option<&'static str>,
    trips: Trips,
}

/// Those of all cases, in their order.
#[derive(Default)]
pub(super) struct Histograms(Vec<Histogram>);

impl Histograms {
    /// Adds the calls of a repetition. There may be none: those of several at a time are not counted.
    pub(super) fn add(&mut self, title: String, paper: Option<&'static str>, trips: Trips) {
        match self.0.iter_mut().find(|one| one.title == title) {
            Some(one) => merge(&mut one.trips, &trips),
            None if taken(&trips).next().is_none() => {}
            None => self.0.push(Histogram { title, paper, trips }),
        }
    }

    /// Writes a line for each case.
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        if !self.0.is_empty() {
            writeln!(out, "round trips, each number with its share of the calls:")?;
        }
        for Histogram { title, paper, trips } in &self.0 {
            let share = |(count, calls)| {
                let more = if count == TRIPS_MAX { " and more" } else { "" };
                format!("{count}{more}: {:.2} %", percent(calls, trips))
            };
            let shares = taken(trips).map(share).collect::<Vec<_>>().join(", ");
            let paper = paper.map_or(String::new(), |count| format!("; paper {count}"));
            writeln!(out, "  {title}: {shares}{paper}")?;
        }
        Ok(())
    }
}
