//! An execution by its choices, and the replay line for them.

use std::fmt;
use std::str::FromStr;

use farfield_core::fabric::sim::{Choice, Chooser, Outcome, View};

/// The choices of one execution: those that differ from the first candidate.
///
/// ```
/// let line = "barrier/visible#e:12=1,15=3";
/// let replay: farfield_check::Replay = line.parse().unwrap();
/// assert_eq!(replay.scenario(), "barrier/visible");
/// assert_eq!(replay.to_string(), line);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replay {
    scenario: String,
    pub(super) eager: bool,
    pub(super) early_timeouts: bool,
    /// Decision and choice, by decision.
    pub(super) choices: Vec<(usize, u16)>,
}

/// A line that is no replay, or a replay with choices that do not fit the execution.
///
/// ```
/// let error = "barrier/visible".parse::<farfield_check::Replay>().unwrap_err();
/// assert!(error.to_string().starts_with("`barrier/visible` is no replay line"));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplayError(Why);

#[derive(Clone, PartialEq, Eq, Debug)]
enum Why {
    NoLine(String),
    /// How many of how many choices could not be made, and the first of them.
    Misfit {
        unmade: usize,
        of: usize,
        first: String,
    },
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Why::NoLine(line) => write!(
                f,
                "`{line}` is no replay line: it reads `scenario#flags:decision=choice,…`, as a failed check prints it"
            ),
            Why::Misfit { unmade, of, first } => write!(
                f,
                "{unmade} of the line's {of} choices could not be made, the first because {first}: the line is of another \
                 build or program"
            ),
        }
    }
}

impl std::error::Error for ReplayError {}

impl Replay {
    pub(super) fn new(scenario: &str, eager: bool, early_timeouts: bool, choices: &[Choice]) -> Replay {
        let taken = choices.iter().enumerate().filter(|(_, choice)| choice.taken != 0);
        let choices = taken.map(|(decision, choice)| (decision, choice.taken)).collect();
        Replay { scenario: scenario.into(), eager, early_timeouts, choices }
    }

    pub(super) fn with(&self, choices: Vec<(usize, u16)>) -> Replay {
        Replay { choices, ..self.clone() }
    }

    /// The scenario's name.
    ///
    /// ```
    /// let replay: farfield_check::Replay = "barrier/visible#e:12=1,15=3".parse().unwrap();
    /// assert_eq!(replay.scenario(), "barrier/visible");
    /// ```
    pub fn scenario(&self) -> &str {
        &self.scenario
    }

    /// How many choices differ from the first candidate.
    ///
    /// ```
    /// let replay: farfield_check::Replay = "barrier/visible#e:12=1,15=3".parse().unwrap();
    /// assert_eq!(replay.len(), 2);
    /// ```
    pub fn len(&self) -> usize {
        self.choices.len()
    }

    /// Whether none does.
    ///
    /// ```
    /// let replay: farfield_check::Replay = "barrier/visible#e:".parse().unwrap();
    /// assert!(replay.is_empty()); // every choice is the first candidate
    /// ```
    pub fn is_empty(&self) -> bool {
        self.choices.is_empty()
    }

    /// Checks that an execution has made all choices of this line. An execution of another build may have other
    /// decisions; it then says nothing about the one that the line is of.
    ///
    /// ```
    /// # use farfield_check::{Replay, Scenario, choose, replay};
    /// let scenario = Scenario::new("doc/draws", "one choice of three", 1, |cluster| {
    ///     cluster.thread(0, "draws", |_| Ok(drop(choose(3))));
    ///     Ok(())
    /// });
    /// let again = |line: &str| {
    ///     let line: Replay = line.parse().unwrap();
    ///     line.fits(&replay(&scenario, &line))
    /// };
    /// assert!(again("doc/draws#e:0=2").is_ok());
    /// let error = again("doc/draws#e:0=2,5=1").unwrap_err().to_string();
    /// assert!(error.contains("1 of the line's 2 choices could not be made"), "{error}");
    /// ```
    ///
    /// # Errors
    /// Choices that the execution has not made, and why the first could not be made.
    pub fn fits(&self, outcome: &Outcome) -> Result<(), ReplayError> {
        let is_made = |(decision, choice): &&(usize, u16)| {
            outcome.choices.get(*decision).is_some_and(|made| made.taken == *choice)
        };
        let mut unmade = self.choices.iter().filter(|choice| !is_made(choice));
        let Some((decision, choice)) = unmade.next() else { return Ok(()) };
        let first = match outcome.choices.get(*decision) {
            Some(made) => format!("decision {decision} has {} candidates, numbered from 0, and no {choice}", made.of),
            None => format!("there are {} decisions, and no decision {decision}", outcome.choices.len()),
        };
        Err(ReplayError(Why::Misfit { unmade: 1 + unmade.count(), of: self.choices.len(), first }))
    }
}

impl fmt::Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#", self.scenario)?;
        f.write_str(if self.eager { "e" } else { "" })?;
        f.write_str(if self.early_timeouts { "t" } else { "" })?;
        f.write_str(":")?;
        for (index, (decision, choice)) in self.choices.iter().enumerate() {
            write!(f, "{}{decision}={choice}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl FromStr for Replay {
    type Err = ReplayError;

    fn from_str(line: &str) -> Result<Replay, ReplayError> {
        let parse = || {
            let (scenario, rest) = line.trim().split_once('#')?;
            let (flags, choices) = rest.split_once(':')?;
            if flags.chars().any(|flag| !"et".contains(flag)) {
                return None;
            }
            let choice = |text: &str| {
                let (decision, choice) = text.split_once('=')?;
                Some((decision.parse().ok()?, choice.parse().ok()?))
            };
            let choices = choices.split(',').filter(|text| !text.is_empty()).map(choice).collect::<Option<Vec<_>>>()?;
            // Each decision once, in their order.
            if !choices.is_sorted_by(|before: &(usize, u16), after| before.0 < after.0) {
                return None;
            }
            let (eager, early_timeouts) = (flags.contains('e'), flags.contains('t'));
            Some(Replay { scenario: scenario.into(), eager, early_timeouts, choices })
        };
        parse().ok_or_else(|| ReplayError(Why::NoLine(line.into())))
    }
}

/// Makes the choices of a replay.
pub(super) struct Script {
    replay: Replay,
    decision: usize,
    next: usize,
}

impl Script {
    pub(super) fn new(replay: &Replay) -> Script {
        Script { replay: replay.clone(), decision: 0, next: 0 }
    }

    fn taken(&mut self) -> usize {
        let decision = self.decision;
        self.decision += 1;
        match self.replay.choices.get(self.next) {
            Some((at, choice)) if *at == decision => {
                self.next += 1;
                usize::from(*choice)
            }
            _ => 0,
        }
    }
}

impl Chooser for Script {
    fn eager(&self) -> bool {
        self.replay.eager
    }

    fn early_timeouts(&self) -> bool {
        self.replay.early_timeouts
    }

    fn choose(&mut self, _view: &View<'_>) -> usize {
        self.taken()
    }

    fn value(&mut self, _options: usize) -> usize {
        self.taken()
    }
}
