//! Runs the program `z3` and asks it questions in SMT-LIB 2.
//!
//! One process answers all questions of an analysis; `(reset)` stands between two of them. Each question has a time
//! limit. z3 has it, too, and gives up in time for most; if it does not, the process is killed, and the next question
//! starts another.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::sexpr::Sexpr;

/// Ends each answer.
const END: &str = "farfield.end";
/// How long after the time limit z3 may still say that it gives up.
const GRACE: Duration = Duration::from_millis(500);
/// The longest wait for the values of a model, which z3 has already when it is asked.
const VALUES_TIMEOUT: Duration = Duration::from_secs(10);

/// Why the solver cannot be asked. A question that it cannot decide is no error.
///
/// ```
/// use std::time::Duration;
/// use farfield_hamband::analysis::{Options, SolverError, Specification, analyse};
///
/// let spec = Specification::parse("t.wrdt", "type T { state { n: int = 0 } update u() { n := 1 } }")?;
/// let options = Options { solver: "/no/such/z3".into(), ..Options::default() };
/// let error = analyse(&spec, &options).unwrap_err();
/// assert!(matches!(error, SolverError::Missing { .. }));
/// assert!(error.to_string().contains("apt-get install z3"));
/// # Ok::<(), farfield_hamband::analysis::SpecError>(())
/// ```
#[derive(Debug, thiserror::Error)]
pub enum SolverError {
    /// There is no such program.
    #[error(
        "the analysis needs the solver z3, and `{program}` is not there: install it (apt-get install z3), or name it with --solver"
    )]
    Missing {
        /// The program that was to be started.
        program: String,
    },
    /// It has ended.
    #[error("`{program}` has ended in the middle of a question: it is not z3, or was killed (for its memory, perhaps)")]
    Ended {
        /// The program.
        program: String,
    },
    /// It cannot be started, or its answers cannot be read.
    #[error("`{program}` does not run: {source}")]
    Io {
        /// The program.
        program: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// It has answered something that z3 does not.
    #[error("`{program}` is not z3, or one that is too old (4.8 works): it answered `{answer}`")]
    Answer {
        /// The program.
        program: String,
        /// Its answer.
        answer: String,
    },
}

/// What the solver says about the satisfiability of a question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    Satisfiable,
    Unsatisfiable,
    /// The reason.
    Unknown(String),
}

/// The solver, and how many questions it was asked.
pub(crate) struct Solver {
    program: PathBuf,
    timeout: Duration,
    process: Option<Process>,
    pub(crate) questions: usize,
    pub(crate) unknown: usize,
    /// Questions that need no solver.
    pub(crate) skipped: usize,
}

struct Process {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<std::io::Result<String>>,
}

impl Drop for Process {
    fn drop(&mut self) {
        // Nothing of it has to be kept.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Solver {
    pub(crate) fn new(program: PathBuf, timeout: Duration) -> Solver {
        Solver { program, timeout, process: None, questions: 0, unknown: 0, skipped: 0 }
    }

    /// Asks whether a script (declarations and assertions) is satisfiable. If it is, [`Solver::values`] has a model.
    pub(crate) fn ask(&mut self, script: &str) -> Result<Answer, SolverError> {
        self.questions += 1;
        let milliseconds = self.timeout.as_millis().clamp(1, u128::from(u32::MAX - 1));
        let options = format!("(reset)\n(set-option :produce-models true)\n(set-option :timeout {milliseconds})\n");
        let answer = self.check(&format!("{options}{script}\n(check-sat)"))?;
        self.unknown += usize::from(matches!(answer, Answer::Unknown(_)));
        Ok(answer)
    }

    /// Whether the last question, which was satisfiable, has a model in which this assumption holds. If not,
    /// [`Solver::values`] has one without it.
    pub(crate) fn prefer(&mut self, assumption: &str) -> Result<bool, SolverError> {
        if self.check(&format!("(check-sat-assuming ({assumption}))"))? == Answer::Satisfiable {
            return Ok(true);
        }
        self.check("(check-sat)")?;
        Ok(false)
    }

    fn check(&mut self, script: &str) -> Result<Answer, SolverError> {
        let lines = self.send(script, self.timeout.saturating_add(GRACE))?;
        let timeout = self.timeout;
        let over = || Answer::Unknown(format!("no answer in {timeout:?}"));
        let Some(lines) = lines else { return Ok(over()) };
        match lines.first().map(String::as_str) {
            Some("sat") => Ok(Answer::Satisfiable),
            Some("unsat") => Ok(Answer::Unsatisfiable),
            Some("unknown" | "timeout") => {
                let why = self.send("(get-info :reason-unknown)", GRACE)?.unwrap_or_default().join(" ");
                let why = why.trim_start_matches("(:reason-unknown").trim_matches(['(', ')', ' ', '"']).to_owned();
                Ok(if ["timeout", "canceled", ""].contains(&&*why) { over() } else { Answer::Unknown(why) })
            }
            // z3 answers some questions with an error if the time is over in the middle.
            Some(line) if line.contains("canceled") || line.contains("timeout") => Ok(over()),
            _ => Err(self.strange(&lines.join(" "))),
        }
    }

    /// The values of terms in the model of the last question; none if there is no model any more.
    pub(crate) fn values(&mut self, terms: &[impl AsRef<str>]) -> Result<Option<Vec<String>>, SolverError> {
        if terms.is_empty() {
            return Ok(Some(vec![]));
        }
        let list: Vec<&str> = terms.iter().map(AsRef::as_ref).collect();
        let Some(lines) = self.send(&format!("(get-value ({}))", list.join(" ")), VALUES_TIMEOUT)? else {
            return Ok(None);
        };
        let answer = lines.join(" ");
        if answer.starts_with("(error") && answer.contains("model") {
            return Ok(None);
        }
        // It tells no value of a term with quantifiers.
        if answer.starts_with("(error") && answer.contains("quantifier") {
            if terms.len() == 1 {
                return Ok(Some(vec!["?".to_owned()]));
            }
            let apart = terms.iter().map(|term| self.values(std::slice::from_ref(term)));
            let apart = apart.collect::<Result<Option<Vec<_>>, _>>()?;
            return Ok(apart.map(|values| values.concat()));
        }
        let values = Sexpr::parse(&answer).and_then(|answer| answer.values());
        match values.filter(|values| values.len() == terms.len()) {
            Some(values) => Ok(Some(values.iter().map(Sexpr::text).collect())),
            None => Err(self.strange(&answer)),
        }
    }

    /// Sends commands, and returns the lines of the answer; none if the time is over and the process was killed.
    fn send(&mut self, commands: &str, timeout: Duration) -> Result<Option<Vec<String>>, SolverError> {
        let io = |program: &PathBuf, source| SolverError::Io { program: program.display().to_string(), source };
        if self.process.is_none() {
            self.process = Some(self.start()?);
        }
        let process = self.process.as_mut().expect("it has just been started");
        let end = Instant::now().checked_add(timeout);
        // If it has ended, the other pipe tells.
        let _ = writeln!(process.stdin, "{commands}\n(echo \"{END}\")").and_then(|()| process.stdin.flush());
        let mut lines = Vec::new();
        loop {
            let wait = end.map_or(timeout, |end| end.saturating_duration_since(Instant::now()));
            match process.lines.recv_timeout(wait) {
                Ok(Ok(line)) if line == END => return Ok(Some(lines)),
                Ok(Ok(line)) => lines.push(line),
                Ok(Err(source)) => return Err(io(&self.program, source)),
                Err(RecvTimeoutError::Timeout) => {
                    self.process = None;
                    return Ok(None);
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.process = None;
                    return Err(SolverError::Ended { program: self.program.display().to_string() });
                }
            }
        }
    }

    fn start(&self) -> Result<Process, SolverError> {
        let program = || self.program.display().to_string();
        let mut command = Command::new(&self.program);
        command.args(["-in", "-smt2"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => SolverError::Missing { program: program() },
            _ => SolverError::Io { program: program(), source },
        })?;
        let stdin = child.stdin.take().expect("piped");
        let stdout = child.stdout.take().expect("piped");
        let (sender, lines) = channel();
        // It ends with the process, which closes the pipe.
        thread::spawn(move || BufReader::new(stdout).lines().try_for_each(|line| sender.send(line)));
        Ok(Process { child, stdin, lines })
    }

    fn strange(&self, answer: &str) -> SolverError {
        let answer = answer.chars().take(300).collect();
        SolverError::Answer { program: self.program.display().to_string(), answer }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn z3(timeout: Duration) -> Solver {
        Solver::new("z3".into(), timeout)
    }

    fn program(name: &str) -> PathBuf {
        [env!("CARGO_MANIFEST_DIR"), "tests/solvers", name].iter().collect()
    }

    fn asked(solver: &mut Solver, script: &str) -> Answer {
        solver.ask(script).expect("z3 runs: apt-get install z3")
    }

    /// Sums of three cubes: nothing decides it.
    const HARD: &str = "(declare-const a Int)(declare-const b Int)(declare-const c Int)
        (assert (= (+ (* a a a) (* b b b) (* c c c)) 114))";

    #[test]
    fn questions_are_answered_one_after_the_other() {
        let mut solver = z3(Duration::from_secs(10));
        let script =
            "(declare-const n Int)(assert (< n (- 3)))(declare-const small Bool)(assert (=> small (> n (- 5))))";
        assert_eq!(asked(&mut solver, script), Answer::Satisfiable);
        assert!(solver.prefer("small").expect("z3 runs"));
        assert_eq!(solver.values(&["n", "small"]).expect("z3 runs"), Some(vec!["-4".into(), "true".into()]));
        assert_eq!(asked(&mut solver, "(declare-const n Bool)(assert (and n (not n)))"), Answer::Unsatisfiable);
        assert_eq!((solver.questions, solver.unknown), (2, 0));
    }

    #[test]
    fn a_query_undecided_in_time_is_unknown_and_the_solver_goes_on() {
        let mut solver = z3(Duration::from_millis(1));
        let start = Instant::now();
        let Answer::Unknown(why) = asked(&mut solver, HARD) else { panic!("it was decided") };
        assert!(!why.is_empty() && start.elapsed() < Duration::from_secs(5), "{why}: {:?}", start.elapsed());
        let easy = asked(&mut solver, "(assert false)");
        assert!(matches!(easy, Answer::Unsatisfiable | Answer::Unknown(_)), "{easy:?}");
    }

    #[test]
    fn a_process_that_does_not_answer_is_killed() {
        let mut solver = Solver::new(program("silent"), Duration::from_millis(20));
        let start = Instant::now();
        let answer = solver.ask("(assert true)");
        assert_eq!(answer.expect("it runs"), Answer::Unknown("no answer in 20ms".into()));
        assert!(solver.process.is_none() && start.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn a_program_that_is_not_z3_is_an_error() {
        let error = |program: &str| {
            Solver::new(program.into(), Duration::from_secs(10)).ask("").expect_err("no z3").to_string()
        };
        assert!(error("/no/such/z3").contains("apt-get install z3"));
        assert!(error("/etc/passwd").contains("does not run"));
        assert!(error("true").contains("it is not z3, or was killed"));
        assert!(error(program("parrot").to_str().expect("a plain path")).contains("is not z3, or one that is too old"));
    }
}
