//! Searches for an execution that fails: in all of them, or in many.

mod exhaustive;
mod random;
mod script;
mod shrink;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use farfield_core::fabric::sim::{self, Chooser, Failure, FailureKind, Faults, Outcome, Settings};

pub use self::random::RandomExecution;
pub use self::script::{Replay, ReplayError};
use self::{exhaustive::Exhaustive, random::Random, script::Script};
use crate::scenario::Scenario;

/// The budget of a search.
///
/// ```
/// # use farfield_check::{Budget, Scenario, check, choose};
/// # let right = Scenario::new("doc/right", "any choice is right", 1, |cluster| {
/// #     cluster.thread(0, "draws", |_| Ok(assert!(choose(3) < 3)));
/// #     Ok(())
/// # });
/// let report = check(&right, Budget::executions(20), 1);
/// assert_eq!((report.executions, report.is_complete), (20, false));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Budget {
    executions: Option<u64>,
    time: Option<Duration>,
}

impl Budget {
    /// A budget of this many executions.
    ///
    /// ```
    /// # use farfield_check::{Budget, Scenario, check, choose};
    /// # let right = Scenario::new("doc/right", "any choice is right", 1, |cluster| {
    /// #     cluster.thread(0, "draws", |_| Ok(assert!(choose(3) < 3)));
    /// #     Ok(())
    /// # });
    /// assert_eq!(check(&right, Budget::executions(20), 1).executions, 20);
    /// ```
    pub fn executions(executions: u64) -> Budget {
        Budget { executions: Some(executions), time: None }
    }

    /// A budget of this much time.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use farfield_check::{Budget, Scenario, check, choose};
    /// # let right = Scenario::new("doc/right", "any choice is right", 1, |cluster| {
    /// #     cluster.thread(0, "draws", |_| Ok(assert!(choose(3) < 3)));
    /// #     Ok(())
    /// # });
    /// let report = check(&right, Budget::time(Duration::from_millis(20)), 1);
    /// assert!(report.executions > 1 && report.elapsed >= Duration::from_millis(20));
    /// ```
    pub fn time(time: Duration) -> Budget {
        Budget { executions: None, time: Some(time) }
    }

    /// No limit: the search ends when all executions have been run.
    ///
    /// ```
    /// # use farfield_check::{Budget, Scenario, choose, exhaust};
    /// # let right = Scenario::new("doc/right", "any choice is right", 1, |cluster| {
    /// #     cluster.thread(0, "draws", |_| Ok(assert!(choose(3) < 3)));
    /// #     Ok(())
    /// # });
    /// let report = exhaust(&right, Budget::unlimited());
    /// assert_eq!((report.executions, report.is_complete), (3, true)); // one for each choice
    /// ```
    pub fn unlimited() -> Budget {
        Budget::default()
    }

    /// Also limits the time.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use farfield_check::{Budget, Scenario, check, choose};
    /// # let right = Scenario::new("doc/right", "any choice is right", 1, |cluster| {
    /// #     cluster.thread(0, "draws", |_| Ok(assert!(choose(3) < 3)));
    /// #     Ok(())
    /// # });
    /// // Whichever ends first: the executions or the time.
    /// let report = check(&right, Budget::executions(20).within(Duration::from_secs(60)), 1);
    /// assert_eq!(report.executions, 20);
    /// ```
    #[must_use]
    pub fn within(mut self, time: Duration) -> Budget {
        self.time = Some(time);
        self
    }

    fn allows(&self, executions: u64, start: Instant) -> bool {
        // Executions take microseconds, and reading the clock does not take much less.
        let in_time = !executions.is_multiple_of(16) || self.time.is_none_or(|time| start.elapsed() < time);
        in_time && self.executions.is_none_or(|max| executions < max)
    }
}

/// The result of a search.
///
/// ```
/// # use farfield::fabric::GroupKey;
/// # use farfield_check::{Budget, Scenario, exhaust};
/// # let adds = |atomic: bool| {
/// #     Scenario::new("doc/adds", "two threads add one to a word", 1, move |cluster| {
/// #         let words = cluster.node(0).alloc(GroupKey::SIGNAL, 8)?;
/// #         for _ in 0..2 {
/// #             let words = words.clone();
/// #             cluster.thread(0, "adds", move |_| {
/// #                 let word = words.word(0);
/// #                 if atomic { word.fetch_add(1); } else { word.store(word.load() + 1); }
/// #                 Ok(())
/// #             });
/// #         }
/// #         cluster.at_end(move || {
/// #             assert_eq!(words.word(0).load(), 2, "an addition is lost");
/// #             Ok(())
/// #         });
/// #         Ok(())
/// #     })
/// # };
/// let report = exhaust(&adds(true), Budget::unlimited());
/// assert!(report.is_complete && report.finding.is_none());
/// assert!(report.executions > 1 && report.steps > report.executions);
/// ```
#[derive(Clone, Debug)]
pub struct Report {
    /// The scenario.
    pub scenario: String,
    /// Executions.
    pub executions: u64,
    /// Steps of threads and of the machine, in all executions.
    pub steps: u64,
    /// A digest of all choices that were made: the same for the same seed, in every build.
    pub trace: u64,
    /// Different states at which there was a choice; of an exhaustive search.
    pub states: u64,
    /// Executions in which the threads have not seen the same, in the same order, as in an earlier one. About
    /// 65,536 are remembered.
    pub novel: u64,
    /// Whether all executions have been run, up to the reduction. Never true for scenarios with choices that the search
    /// leaves out: time passes early, or rights or membership change and there are neither faults nor a rule.
    pub is_complete: bool,
    /// How long it took.
    pub elapsed: Duration,
    /// The failure, if there was one. The search ends with it.
    pub finding: Option<Finding>,
}

/// A failure, and how to see it again.
///
/// ```
/// # use farfield::fabric::GroupKey;
/// # use farfield_check::{Budget, FailureKind, Scenario, check};
/// # let adds = |atomic: bool| {
/// #     Scenario::new("doc/adds", "two threads add one to a word", 1, move |cluster| {
/// #         let words = cluster.node(0).alloc(GroupKey::SIGNAL, 8)?;
/// #         for _ in 0..2 {
/// #             let words = words.clone();
/// #             cluster.thread(0, "adds", move |_| {
/// #                 let word = words.word(0);
/// #                 if atomic { word.fetch_add(1); } else { word.store(word.load() + 1); }
/// #                 Ok(())
/// #             });
/// #         }
/// #         cluster.at_end(move || {
/// #             assert_eq!(words.word(0).load(), 2, "an addition is lost");
/// #             Ok(())
/// #         });
/// #         Ok(())
/// #     })
/// # };
/// let finding = check(&adds(false), Budget::executions(1000), 1).finding.unwrap();
/// assert_eq!(finding.failure.kind, FailureKind::Panic);
/// assert!(finding.failure.message.contains("an addition is lost"));
/// println!("again: {}", finding.replay);
/// ```
#[derive(Clone, Debug)]
pub struct Finding {
    /// The failure.
    pub failure: Failure,
    /// The execution in which it was found, from 1.
    pub execution: u64,
    /// The same, for [`check_one`]; of a random search.
    pub random: Option<RandomExecution>,
    /// The faults that were drawn for it, before it began; of a random execution that may have some.
    pub drawn: Option<String>,
    /// The choices that lead to it.
    pub replay: Replay,
}

impl Finding {
    /// Fewer choices that lead to a failure of the same kind, and that failure.
    ///
    /// ```
    /// # use farfield::fabric::GroupKey;
    /// # use farfield_check::{Budget, Scenario, check};
    /// # let adds = |atomic: bool| {
    /// #     Scenario::new("doc/adds", "two threads add one to a word", 1, move |cluster| {
    /// #         let words = cluster.node(0).alloc(GroupKey::SIGNAL, 8)?;
    /// #         for _ in 0..2 {
    /// #             let words = words.clone();
    /// #             cluster.thread(0, "adds", move |_| {
    /// #                 let word = words.word(0);
    /// #                 if atomic { word.fetch_add(1); } else { word.store(word.load() + 1); }
    /// #                 Ok(())
    /// #             });
    /// #         }
    /// #         cluster.at_end(move || {
    /// #             assert_eq!(words.word(0).load(), 2, "an addition is lost");
    /// #             Ok(())
    /// #         });
    /// #         Ok(())
    /// #     })
    /// # };
    /// let finding = check(&adds(false), Budget::executions(1000), 1).finding.unwrap();
    /// let shrunk = finding.shrunk(&adds(false));
    /// assert!(shrunk.replay.len() <= finding.replay.len());
    /// assert_eq!(shrunk.failure.kind, finding.failure.kind);
    /// ```
    #[must_use]
    pub fn shrunk(&self, scenario: &Scenario) -> Finding {
        shrink::shrink(scenario, self)
    }
}

fn run(scenario: &Scenario, chooser: Box<dyn Chooser>, record: bool) -> Outcome {
    let Scenario { nodes, places, steps_max, rule: death_rule, faults, completes_at_once, .. } = scenario.clone();
    let settings = Settings { nodes, places, steps_max, record, seed: 1, completes_at_once, death_rule, faults };
    let played = scenario.clone();
    sim::run(settings, chooser, move |handle| played.play(handle))
}

/// Runs random executions: biased walks and walks by priorities (PCT) alternate.
///
/// ```
/// # use farfield::fabric::GroupKey;
/// # use farfield_check::{Budget, Scenario, check};
/// # let adds = |atomic: bool| {
/// #     Scenario::new("doc/adds", "two threads add one to a word", 1, move |cluster| {
/// #         let words = cluster.node(0).alloc(GroupKey::SIGNAL, 8)?;
/// #         for _ in 0..2 {
/// #             let words = words.clone();
/// #             cluster.thread(0, "adds", move |_| {
/// #                 let word = words.word(0);
/// #                 if atomic { word.fetch_add(1); } else { word.store(word.load() + 1); }
/// #                 Ok(())
/// #             });
/// #         }
/// #         cluster.at_end(move || {
/// #             assert_eq!(words.word(0).load(), 2, "an addition is lost");
/// #             Ok(())
/// #         });
/// #         Ok(())
/// #     })
/// # };
/// let broken = check(&adds(false), Budget::executions(1000), 1);
/// assert!(broken.finding.is_some());
/// let atomic = check(&adds(true), Budget::executions(1000), 1);
/// assert!(atomic.finding.is_none() && atomic.executions == 1000);
/// ```
pub fn check(scenario: &Scenario, budget: Budget, seed: u64) -> Report {
    check_with(scenario, budget, seed, |_| {})
}

/// [`check`] with progress reports now and then.
///
/// ```
/// # use farfield_check::{Budget, Scenario, check_with, choose};
/// # let right = Scenario::new("doc/right", "any choice is right", 1, |cluster| {
/// #     cluster.thread(0, "draws", |_| Ok(assert!(choose(3) < 3)));
/// #     Ok(())
/// # });
/// let mut reports = 0;
/// check_with(&right, Budget::executions(200), 1, |so_far| {
///     reports += 1;
///     assert!(so_far.executions <= 200);
/// });
/// assert!(reports > 0);
/// ```
pub fn check_with(scenario: &Scenario, budget: Budget, seed: u64, progress: impl FnMut(&Report)) -> Report {
    let mut decisions = 64;
    let execute = |report: &mut Report| {
        let random = RandomExecution { seed, execution: report.executions + 1, decisions };
        let execution = run_random(scenario, random);
        decisions = decisions.max(execution.outcome.choices.len());
        execution
    };
    search(scenario, budget, execute, progress)
}

/// One execution of [`check`], without those before it.
///
/// ```
/// # use farfield_check::{Budget, Scenario, check, check_one, choose};
/// # let luck = Scenario::new("doc/luck", "one choice of fifty is wrong", 1, |cluster| {
/// #     cluster.thread(0, "draws", |_| Ok(assert_ne!(choose(50), 7, "the wrong choice")));
/// #     Ok(())
/// # });
/// let finding = check(&luck, Budget::executions(10_000), 1).finding.unwrap();
/// let again = check_one(&luck, finding.random.unwrap());
/// assert_eq!(again.executions, 1);
/// assert_eq!(again.finding.unwrap().failure, finding.failure);
/// ```
pub fn check_one(scenario: &Scenario, random: RandomExecution) -> Report {
    let mut report = search(scenario, Budget::executions(1), |_| run_random(scenario, random), |_| {});
    if let Some(finding) = &mut report.finding {
        finding.execution = random.execution;
    }
    report
}

fn run_random(scenario: &Scenario, random: RandomExecution) -> Execution {
    let faults = scenario.faults.as_ref().map_or(0, Faults::count);
    let chooser = Random::new(random, scenario.early_timeouts, faults);
    let (eager, early_timeouts, drawn) = (chooser.eager(), chooser.early_timeouts(), chooser.faults());
    let outcome = run(scenario, Box::new(chooser), false);
    Execution { outcome, random: Some(random), eager, early_timeouts, drawn, is_last: false }
}

/// Runs all executions, up to the order of steps that commute.
///
/// ```
/// # use farfield::fabric::GroupKey;
/// # use farfield_check::{Budget, Scenario, exhaust};
/// # let adds = |atomic: bool| {
/// #     Scenario::new("doc/adds", "two threads add one to a word", 1, move |cluster| {
/// #         let words = cluster.node(0).alloc(GroupKey::SIGNAL, 8)?;
/// #         for _ in 0..2 {
/// #             let words = words.clone();
/// #             cluster.thread(0, "adds", move |_| {
/// #                 let word = words.word(0);
/// #                 if atomic { word.fetch_add(1); } else { word.store(word.load() + 1); }
/// #                 Ok(())
/// #             });
/// #         }
/// #         cluster.at_end(move || {
/// #             assert_eq!(words.word(0).load(), 2, "an addition is lost");
/// #             Ok(())
/// #         });
/// #         Ok(())
/// #     })
/// # };
/// let atomic = exhaust(&adds(true), Budget::unlimited());
/// assert!(atomic.is_complete && atomic.finding.is_none()); // it holds in every execution
/// assert!(exhaust(&adds(false), Budget::unlimited()).finding.is_some());
/// ```
pub fn exhaust(scenario: &Scenario, budget: Budget) -> Report {
    exhaust_with(scenario, budget, |_| {})
}

/// [`exhaust`] with progress reports now and then.
///
/// ```
/// # use farfield_check::{Budget, Scenario, choose, exhaust_with};
/// # let right = Scenario::new("doc/right", "any choices are right", 1, |cluster| {
/// #     cluster.thread(0, "draws", |_| Ok((0..5).for_each(|_| assert!(choose(3) < 3))));
/// #     Ok(())
/// # });
/// let mut seen = 0;
/// let report = exhaust_with(&right, Budget::unlimited(), |so_far| seen = so_far.executions);
/// assert!(seen > 0 && seen < report.executions);
/// ```
pub fn exhaust_with(scenario: &Scenario, budget: Budget, progress: impl FnMut(&Report)) -> Report {
    let (exhaustive, mut changes_rights) = (Exhaustive::new(), false);
    let execute = |report: &mut Report| {
        let mut outcome = run(scenario, exhaustive.chooser(), false);
        if exhaustive.has_diverged() && outcome.failure.is_none() {
            outcome.failure = Some(unrepeatable(&outcome));
        }
        report.states = exhaustive.states();
        changes_rights |= outcome.changes_rights;
        let is_last = !exhaustive.advance();
        Execution { outcome, random: None, eager: true, early_timeouts: false, drawn: None, is_last }
    };
    let mut report = search(scenario, budget, execute, progress);
    // Time that passes early is not among the choices here.
    report.is_complete &= !scenario.early_timeouts && !changes_rights;
    report
}

fn unrepeatable(outcome: &Outcome) -> Failure {
    let message =
        "the scenario does not repeat itself: the same choices led elsewhere than before. Does it read a clock, \
                   draw random numbers, iterate over a `HashMap`, or keep something from one execution to the next? \
                   `farfield_check::choose` makes a choice part of the search"
            .into();
    Failure { kind: FailureKind::Unrepeatable, message, thread: None, step: outcome.steps }
}

/// An execution of a search.
struct Execution {
    outcome: Outcome,
    random: Option<RandomExecution>,
    eager: bool,
    early_timeouts: bool,
    drawn: Option<String>,
    /// There is none after it.
    is_last: bool,
}

/// How many ends of executions are remembered.
const ENDS: usize = 1 << 16;

/// Executes until the budget is spent, there is nothing left, or one fails.
fn search(
    scenario: &Scenario,
    budget: Budget,
    mut execute: impl FnMut(&mut Report) -> Execution,
    mut progress: impl FnMut(&Report),
) -> Report {
    let start = Instant::now();
    let mut report = Report::new(scenario);
    let mut ends = vec![0; ENDS];
    while budget.allows(report.executions, start) {
        let Execution { outcome, random, eager, early_timeouts, drawn, is_last } = execute(&mut report);
        report.add(&outcome, &mut ends);
        if let Some(failure) = outcome.failure {
            let replay = Replay::new(&scenario.name, eager, early_timeouts, &outcome.choices);
            report.finding = Some(Finding { failure, execution: report.executions, random, drawn, replay });
            break;
        }
        if is_last {
            report.is_complete = true;
            break;
        }
        if report.executions.is_multiple_of(64) {
            report.elapsed = start.elapsed();
            progress(&report);
        }
    }
    report.elapsed = start.elapsed();
    report
}

/// Runs one execution again, and records what happens.
///
/// ```
/// # use farfield_check::{Budget, Scenario, check, choose, replay};
/// # let luck = Scenario::new("doc/luck", "one choice of three is wrong", 1, |cluster| {
/// #     cluster.thread(0, "draws", |_| Ok(assert_ne!(choose(3), 2, "the wrong choice")));
/// #     Ok(())
/// # });
/// let finding = check(&luck, Budget::executions(100), 1).finding.unwrap();
/// let line = finding.replay.to_string(); // as the report prints it
/// let again = replay(&luck, &line.parse().unwrap());
/// assert_eq!(again.failure.unwrap().kind, finding.failure.kind);
/// ```
pub fn replay(scenario: &Scenario, replay: &Replay) -> Outcome {
    run(scenario, Box::new(Script::new(replay)), true)
}

impl Report {
    fn new(scenario: &Scenario) -> Report {
        Report {
            scenario: scenario.name.clone(),
            executions: 0,
            steps: 0,
            trace: 0,
            states: 0,
            novel: 0,
            is_complete: false,
            elapsed: Duration::ZERO,
            finding: None,
        }
    }

    fn add(&mut self, outcome: &Outcome, ends: &mut [u64]) {
        self.executions += 1;
        let end = &mut ends[outcome.end as usize % ENDS];
        self.novel += u64::from(std::mem::replace(end, outcome.end) != outcome.end);
        self.steps += outcome.steps;
        let choices = outcome.choices.iter().map(|choice| u64::from(choice.taken) << 16 | u64::from(choice.of));
        self.trace = choices
            .chain([outcome.steps])
            .fold(self.trace, |trace, choice| (trace ^ choice).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23));
    }
}
