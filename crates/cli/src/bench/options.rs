//! The options that all benchmarks have.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

use super::measurement::Setup;
use super::peer::Peer;
use crate::launch::{FabricChoice, parse_nodes};

/// The options of a measurement.
#[derive(Args, Clone, Debug)]
pub(crate) struct Common {
    /// The fabric that connects the processes
    #[arg(long, value_enum, default_value_t)]
    pub(crate) fabric: FabricChoice,
    /// How long each repetition measures
    #[arg(long, default_value = "1", allow_negative_numbers = true, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// How often everything is measured, in turns: with more than one, medians are printed, geometric means, and the
    /// spread, which is the distance from the least to the most as a share of the median
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) repetitions: u16,
    /// Keep each thread on one core
    #[arg(long, value_enum, value_name = "WHEN", default_value_t, num_args = 0..=1, default_missing_value = "always")]
    pub(crate) pin: Pin,
    /// Let another system do the same work, in turns with Farfield, and print the ratios: one, or several with commas
    /// between them
    #[arg(long, value_enum, value_name = "SYSTEM", value_delimiter = ',')]
    pub(crate) peer: Vec<Peer>,
    /// Append each repetition of each case as a line of JSON to this file, or `-` for standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// How many processes and threads take part.
#[derive(Args, Clone, Debug)]
pub(crate) struct Sizes {
    /// Processes, each a node of the session: one number, or several with commas between them, for a run with each
    #[arg(
        long,
        value_name = "COUNT",
        value_delimiter = ',',
        default_value = "2",
        value_parser = parse_nodes,
    )]
    pub(crate) nodes: Vec<u16>,
    /// Threads of each process: one number, or several with commas between them, for a run with each
    #[arg(
        long,
        value_name = "COUNT",
        value_delimiter = ',',
        default_value = "1",
        value_parser = clap::value_parser!(u16).range(1..=64),
    )]
    pub(crate) threads: Vec<u16>,
}

/// When threads are kept on cores.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum Pin {
    /// If each thread has a core of its own
    #[default]
    Auto,
    /// Always: threads share cores in turns if there are more of them
    Always,
    /// Never: the system moves threads
    Never,
}

/// The cores on which the threads of a run are kept: thread `i` of all nodes on core `i mod len`. Empty: on none.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Cores(Vec<usize>);

impl Common {
    pub(crate) fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// A setup with the fields of all benchmarks.
    pub(crate) fn setup(&self, nodes: u16, threads: u16) -> Setup {
        Setup {
            fabric: Some(self.fabric.name().into()),
            nodes: Some(nodes.into()),
            threads: Some(threads.into()),
            ..Setup::default()
        }
    }
}

impl Sizes {
    /// Each number of nodes with each number of threads.
    pub(crate) fn pairs(&self) -> Vec<(u16, u16)> {
        let threads = once_each(self.threads.iter().copied());
        let nodes = once_each(self.nodes.iter().copied());
        nodes.into_iter().flat_map(|nodes| threads.iter().map(move |threads| (nodes, *threads))).collect()
    }
}

impl Pin {
    /// The cores for a run of so many threads.
    pub(crate) fn cores(self, threads: usize) -> Result<Cores> {
        if self == Pin::Never {
            return Ok(Cores::default());
        }
        let allowed = sched_getaffinity(None).context("reading which cores this process may use")?;
        let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
        Ok(if self == Pin::Always || threads <= cores.len() { Cores(cores) } else { Cores::default() })
    }
}

impl Cores {
    /// Whether threads are kept on cores.
    pub(crate) fn is_pinned(&self) -> bool {
        !self.0.is_empty()
    }

    /// Keeps this thread, numbered over all nodes, on its core.
    pub(crate) fn pin(&self, thread: usize) -> Result<()> {
        let Some(core) = self.0.get(thread.checked_rem(self.0.len()).unwrap_or(0)) else { return Ok(()) };
        let mut set = CpuSet::new();
        set.set(*core);
        sched_setaffinity(None, &set)
            .with_context(|| format!("keeping thread {thread} on core {core}: run it with --pin never"))
    }
}

/// Seconds, as they are given on the command line.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "it is no number".to_owned())?;
    if seconds > 0.0 && seconds <= 86_400.0 { Ok(seconds) } else { Err("between 0 and a day".into()) }
}

/// Each of these once, in their order.
pub(crate) fn once_each<T: PartialEq>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut once = Vec::new();
    for one in all {
        if !once.contains(&one) {
            once.push(one);
        }
    }
    once
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The defaults.
    pub(in crate::bench) fn common() -> Common {
        Common { fabric: FabricChoice::Shm, seconds: 1.0, repetitions: 1, pin: Pin::Auto, peer: Vec::new(), json: None }
    }

    #[test]
    fn a_sweep_has_each_combination_once() {
        let sizes = Sizes { nodes: vec![2, 3, 2], threads: vec![1, 4] };
        assert_eq!(sizes.pairs(), [(2, 1), (2, 4), (3, 1), (3, 4)]);
        assert_eq!(once_each([3, 1, 3, 2, 1]), [3, 1, 2]);
    }

    #[test]
    fn threads_are_pinned_if_each_has_a_core() {
        let all = Pin::Auto.cores(1).expect("Linux says which cores there are");
        assert!(all.is_pinned());
        assert!(!Pin::Auto.cores(all.0.len() + 1).expect("as before").is_pinned());
        assert_eq!(Pin::Always.cores(all.0.len() + 1).expect("as before"), all);
        assert!(!Pin::Never.cores(1).expect("as before").is_pinned());
    }

    #[test]
    fn a_pinned_thread_stays_on_its_core() {
        let all = Pin::Always.cores(1).expect("Linux says which cores there are");
        let on = |thread: usize| {
            all.pin(thread).expect("the core is allowed");
            let set = sched_getaffinity(None).expect("as before");
            (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect::<Vec<_>>()
        };
        let count = all.0.len();
        let last = all.0[count - 1];
        std::thread::scope(|scope| {
            assert_eq!(scope.spawn(|| on(count - 1)).join().expect("it ends"), [last]);
            assert_eq!(scope.spawn(|| on(2 * count - 1)).join().expect("it ends"), [last]);
        });
        Cores::default().pin(7).expect("nothing is done");
    }

    #[test]
    fn seconds_are_a_time() {
        assert_eq!(seconds("0.5"), Ok(0.5));
        assert!(["0", "-1", "inf", "NaN", "x"].iter().all(|text| seconds(text).is_err()));
    }
}
