//! `farfield litmus --run`: litmus tests on Farfield's fabrics, and how often each outcome is seen.
//!
//! [`fabrics`] runs a test on real memory, [`simulated`] on the simulator; the calls of both are in [`calls`], and the
//! objects that they are made on in [`objects`].

mod calls;
mod fabrics;
mod objects;
mod simulated;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::ValueEnum;
use farfield::fabric::verbs::VerbsOptions;
use farfield::mutants::Mutant;
use farfield_check::cli::exit::OrUsage;
use indicatif::ProgressBar;
use mowgli::enumerate::{Detail, consistent};
use mowgli::litmus::Value;
use mowgli::model::Models;
use mowgli::report::{Answer, seen};
use mowgli::run::{NotRunnable, Prepared, prepare, prepare_on_objects};
use serde_json::json;

use crate::output;

/// The fabric that a test runs on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum On {
    /// Shared memory of this host
    Shm,
    /// Shared memory, as late and as reordered as the model allows
    Weak,
    /// RDMA, by this host's devices
    Verbs,
    /// UCX, over TCP
    Ucx,
    /// Simulated nodes: random executions
    Sim,
}

impl On {
    pub(super) fn name(self) -> &'static str {
        match self {
            On::Shm => "shm",
            On::Weak => "weak",
            On::Verbs => "verbs",
            On::Ucx => "ucx",
            On::Sim => "sim",
        }
    }

    /// Some seconds' worth, for a test of two threads.
    fn iterations(self) -> u64 {
        match self {
            On::Shm => 200_000,
            On::Weak | On::Sim | On::Ucx => 10_000,
            On::Verbs => 100_000,
        }
    }
}

/// The targets of calls of the libraries above words.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Over {
    /// The objects that Farfield ships
    Shipped,
    /// The implementations of Mowgli, which are texts
    Text,
    /// Each, one after the other
    Both,
}

/// How tests are run.
pub(super) struct Ask {
    pub(super) on: Vec<On>,
    pub(super) over: Over,
    /// A seeded bug.
    pub(super) mutant: Option<Mutant>,
    pub(super) iterations: Option<u64>,
    pub(super) seed: u64,
    /// Of RDMA; several names have commas between them.
    pub(super) device: VerbsOptions,
}

impl Ask {
    fn iterations(&self, on: On) -> u64 {
        self.iterations.unwrap_or(on.iterations())
    }

    /// How a test is run: on words, which is the only way if it has nothing else, over the text implementations, and
    /// over the objects that ship. An error is a mistake in the text.
    pub(super) fn ways(&self, file: &str, text: &str, models: &Models) -> Result<Vec<Way>> {
        let (on_words, on_objects) = (prepare(file, text, models), prepare_on_objects(file, text, models));
        let is_plain = on_words.as_ref().is_ok_and(|prepared| prepared.over.is_empty());
        // What neither can run is said once.
        let is_odd = on_words.is_err() && matches!(on_objects, Err(NotRunnable::Method(_)));
        let mut ways = Vec::new();
        if is_plain || is_odd || self.over != Over::Shipped {
            ways.push(Way { is_shipped: false, prepared: on_words });
        }
        if !is_plain && !is_odd && self.over != Over::Text {
            ways.push(Way { is_shipped: true, prepared: on_objects });
        }
        for way in &ways {
            if let Err(NotRunnable::Text(error)) = &way.prepared {
                return Err(error.clone()).or_usage();
            }
        }
        Ok(ways)
    }
}

/// A way in which a test is run, or why it is not.
pub(super) struct Way {
    pub(super) is_shipped: bool,
    pub(super) prepared: Result<Prepared, NotRunnable>,
}

/// The outcomes that were seen.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) iterations: u64,
    states: BTreeMap<Vec<Value>, u64>,
    not_finished: u64,
}

impl Counts {
    fn add(&mut self, state: Vec<Value>) {
        *self.states.entry(state).or_default() += 1;
    }
}

/// A run of a test.
pub(super) struct Ran<'a> {
    on: On,
    prepared: &'a Prepared,
    pub(super) counts: Counts,
    /// The outcomes that the models allow.
    allowed: BTreeSet<Vec<Value>>,
    /// The events of an execution with an outcome that they do not, if it was simulated.
    listed: Option<String>,
    took_s: f64,
}

/// Runs tests and prints the outcomes. Returns whether all of them were allowed.
pub(super) fn main(
    files: &[(String, String)],
    models: &Models,
    ask: &Ask,
    json: Option<&Path>,
    out: &mut impl Write,
) -> Result<bool> {
    let is_json = output::is_stdout(json);
    let mut forbidden = Vec::new();
    for (file, text) in files {
        for (way, on) in ask.ways(file, text, models)?.iter().flat_map(|way| ask.on.iter().map(move |on| (way, on))) {
            let prepared = match &way.prepared {
                Ok(prepared) => prepared,
                Err(why) if *on == ask.on[0] => {
                    let over = if way.is_shipped { " over shipped objects" } else { "" };
                    if !is_json {
                        writeln!(out, "{file} is not run{over}: {why}\n")?;
                    }
                    let not_run = json!({ "file": file, "shipped": way.is_shipped, "not_run": why.to_string() });
                    output::json(json, out, &not_run)?;
                    continue;
                }
                Err(_) => continue,
            };
            let bar = output::counting(&format!("{} on {}", prepared.test.name, on.name()), ask.iterations(*on));
            let ran = Ran::of(prepared, *on, ask, &bar).with_context(|| format!("{file} on {}", on.name()))?;
            bar.finish_and_clear();
            if ran.forbidden().next().is_some() {
                let over = if way.is_shipped { " over shipped objects" } else { "" };
                forbidden.push(format!("{file} on {}{over}", on.name()));
            }
            if !is_json {
                writeln!(out, "{ran}")?;
                out.flush()?;
            }
            output::json(json, out, &ran.json())?;
        }
    }
    if !forbidden.is_empty() {
        out.flush()?;
        let _ = writeln!(std::io::stderr(), "farfield litmus: forbidden but seen: {}", forbidden.join(", "));
    }
    Ok(forbidden.is_empty())
}

impl<'a> Ran<'a> {
    /// Runs a test.
    pub(super) fn of(prepared: &'a Prepared, on: On, ask: &Ask, bar: &ProgressBar) -> Result<Ran<'a>> {
        let Prepared { test, plan, .. } = prepared;
        let allowed: BTreeSet<_> = consistent(test, Detail::Shown)?.states.into_keys().collect();
        let (start, iterations) = (Instant::now(), ask.iterations(on));
        let (counts, listed) = match on {
            On::Sim => simulated::run(&test.name, plan, iterations, ask, &allowed, bar)?,
            On::Shm | On::Weak | On::Verbs | On::Ucx => (fabrics::run(plan, on, iterations, ask, bar)?, None),
        };
        Ok(Ran { on, prepared, counts, allowed, listed, took_s: start.elapsed().as_secs_f64() })
    }

    /// The outcomes that were seen although the models forbid them.
    pub(super) fn forbidden(&self) -> impl Iterator<Item = &Vec<Value>> {
        self.counts.states.keys().filter(|state| !self.allowed.contains(*state))
    }

    /// The outcomes that the models allow, and that were not seen.
    fn never_seen(&self) -> impl Iterator<Item = &Vec<Value>> {
        self.allowed.iter().filter(|state| !self.counts.states.contains_key(*state))
    }

    /// How often the condition held, and did not; nothing if a run does not say it.
    pub(super) fn answers(&self) -> Option<(u64, u64)> {
        let (mut positive, mut negative) = (0, 0);
        for (state, count) in &self.counts.states {
            if self.prepared.holds(state)? {
                positive += count;
            } else {
                negative += count;
            }
        }
        Some((positive, negative))
    }

    /// Whether the condition holds of something that is allowed.
    pub(super) fn may_hold(&self) -> bool {
        self.allowed.iter().any(|state| self.prepared.holds(state) == Some(true))
    }

    fn told(&self, state: &[Value]) -> String {
        seen(&self.prepared.test, &self.prepared.test.shown, state)
    }

    pub(super) fn json(&self) -> serde_json::Value {
        let test = &self.prepared.test;
        let by_name = |state: &Vec<Value>| -> serde_json::Value {
            let seen = test.shown.iter().zip(state);
            seen.map(|(seen, value)| (test.name_of(*seen), json!(value.to_string()))).collect()
        };
        let states = self.counts.states.iter().map(|(state, count)| {
            let holds = self.prepared.holds(state);
            json!({ "seen": by_name(state), "count": count, "allowed": self.allowed.contains(state), "holds": holds })
        });
        let answers = self.answers();
        json!({
            "test": test.name,
            "fabric": self.on.name(),
            "over": self.prepared.over,
            "shipped": self.prepared.is_on_objects(),
            "iterations": self.counts.iterations,
            "condition": format!("{} {}", test.quantifier, test.question),
            "ok": answers.map(|(positive, negative)| test.quantifier.is_met(positive, negative)),
            "positive": answers.map(|answers| answers.0),
            "negative": answers.map(|answers| answers.1),
            "states": states.collect::<Vec<_>>(),
            "forbidden_but_seen": self.forbidden().count(),
            "never_seen": self.never_seen().map(by_name).collect::<Vec<_>>(),
            "not_finished": self.counts.not_finished,
            "seconds": self.took_s,
        })
    }
}

/// As litmus7 prints it.
impl fmt::Display for Ran<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (test, counts) = (&self.prepared.test, &self.counts);
        let over = match self.prepared.over.as_slice() {
            [] => String::new(),
            over if self.prepared.is_on_objects() => format!(", over shipped {}", over.join(", ")),
            over => format!(", over {}", over.join(", ")),
        };
        writeln!(f, "Test {} {}", test.name, test.quantifier.kind())?;
        writeln!(f, "Run on {}, {} times{over}", self.on.name(), counts.iterations)?;
        writeln!(f, "Histogram ({} states)", counts.states.len())?;
        for (state, count) in &counts.states {
            let star = if self.prepared.holds(state) == Some(true) { '*' } else { ':' };
            let mark = if self.allowed.contains(state) { "" } else { "  <-- forbidden but seen" };
            writeln!(f, "{count:<8}{star}>{}{mark}", self.told(state))?;
        }
        match self.answers() {
            Some((positive, negative)) => write!(f, "{}", Answer { test, positive, negative })?,
            None => writeln!(f, "Condition {} {} is about memory that is not there", test.quantifier, test.question)?,
        }
        if counts.not_finished > 0 {
            writeln!(f, "Not finished {}", counts.not_finished)?;
        }
        writeln!(f, "Time {} {:.2}", test.name, self.took_s)?;
        if self.never_seen().next().is_some() {
            writeln!(f, "Allowed, never seen:")?;
            self.never_seen().try_for_each(|state| writeln!(f, "  {}", self.told(state)))?;
        }
        match &self.listed {
            Some(listed) => write!(f, "{listed}"),
            None => Ok(()),
        }
    }
}
