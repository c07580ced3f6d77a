//! `farfield wrdt`: well-coordinated replicated data types (Hamband).

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Subcommand, ValueEnum};
use farfield_check::cli::exit::{OrUsage, usage};
use farfield_hamband::analysis::{Analysis, Options, Pair, Specification, States, Verdict, analyse, svg};
use serde_json::{Value, json};

use crate::output;

const HELP: &str = "\
A specification is a sequential data type: its state, an invariant, and update methods. The analysis asks an SMT solver (z3) which
methods of replicas have to be coordinated for the replicas to converge and to keep the invariant. It prints the category of
each method (reducible, irreducible conflict-free, conflicting), the synchronisation groups, the dependencies and the
summaries; and for each relation that does not hold a counterexample: a state, two calls, and what becomes of it.

  farfield wrdt analyse account.wrdt                        the report
  farfield wrdt analyse account.wrdt --picture account.svg  and the graphs of conflicts and dependencies
  farfield wrdt analyse crates/hamband/types/*.wrdt --json types.jsonl
  farfield wrdt analyse hard.wrdt --timeout 60              more time for each question

What the solver does not decide in time counts as a conflict or a dependency, and the report says so. The solver is the program z3 of
the distribution (apt-get install z3). docs/hamband.md describes the language.

Exit status:
  0  the specification is right as a sequential type, whatever its methods need
  1  it is wrong, or that was not decided: the initial state does not satisfy the invariant, a method breaks it where its
     requirements hold, or a summary is none; or the solver does not run
  2  wrong usage, or a specification that cannot be read or understood";

/// What `farfield wrdt` takes.
#[derive(Args)]
pub(crate) struct WrdtArgs {
    #[command(subcommand)]
    command: WrdtCommand,
}

#[derive(Subcommand)]
enum WrdtCommand {
    /// Find out which methods of a specification need coordination, with a counterexample for each that does
    Analyse(AnalyseArgs),
}

#[derive(Args)]
#[command(after_long_help = HELP, after_help = "Examples: --help")]
struct AnalyseArgs {
    /// Specifications (`*.wrdt`)
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Draw the graphs of conflicts and dependencies into this file
    #[arg(long, value_name = "FILE.svg")]
    picture: Option<PathBuf>,
    /// The longest time for one question to the solver
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds)]
    timeout: f64,
    /// The states that the relations are about: those of executions, or all, as the paper's definitions say literally
    #[arg(long, value_enum, default_value_t = Of::Permissible)]
    states: Of,
    /// The solver: the program z3, by its name or its path
    #[arg(long, value_name = "PROGRAM", default_value = "z3")]
    solver: PathBuf,
    /// Append a line of JSON for each specification to this file, or `-` for standard output in place of the text
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Of {
    /// They satisfy the invariant, and calls are permissible before they are moved
    Permissible,
    /// Every state
    All,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "it is no number of seconds".to_owned())?;
    if (0.001..=86_400.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("it is not between 0.001 and 86400".to_owned())
    }
}

/// Carries out the command; an error is a mistake in it.
pub(crate) fn main(args: &WrdtArgs) -> Result<ExitCode> {
    let WrdtCommand::Analyse(args) = &args.command;
    if args.picture.is_some() && args.files.len() > 1 {
        return Err(usage("--picture draws one specification: name one FILE"));
    }
    let states = if matches!(args.states, Of::All) { States::All } else { States::Permissible };
    let options = Options { solver: args.solver.clone(), timeout: Duration::from_secs_f64(args.timeout), states };
    // A mistake in a later file is told before the first one takes its time.
    let read = |file: &PathBuf| -> Result<Specification> {
        let text = std::fs::read_to_string(file).with_context(|| file.display().to_string()).or_usage()?;
        Specification::parse(&file.display().to_string(), &text).or_usage()
    };
    let specifications = args.files.iter().map(read).collect::<Result<Vec<_>>>()?;
    let mut out = std::io::stdout().lock();
    let is_json = output::is_stdout(args.json.as_deref());
    let mut wrong = Vec::new();
    for (file, specification) in args.files.iter().zip(&specifications) {
        let analysis = analyse(specification, &options).with_context(|| file.display().to_string())?;
        if !analysis.is_right() {
            wrong.push(file.display().to_string());
        }
        if !is_json {
            let between = if std::ptr::eq(specification, &specifications[0]) { "" } else { "\n" };
            write!(out, "{between}{analysis}")?;
        }
        if let Some(picture) = &args.picture {
            std::fs::write(picture, svg(&analysis)).with_context(|| format!("writing {}", picture.display()))?;
        }
        output::json(args.json.as_deref(), &mut out, &report(file, &analysis))?;
    }
    if wrong.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    out.flush()?;
    let _ = writeln!(std::io::stderr(), "farfield wrdt analyse: not right as a sequential type: {}", wrong.join(", "));
    Ok(ExitCode::FAILURE)
}

fn report(file: &Path, analysis: &Analysis) -> Value {
    let methods = analysis.methods.iter().map(|method| {
        json!({
            "name": method.name,
            "category": method.category.to_string(),
            "depends_on": analysis.dependencies_of(&method.name),
            "guarded": verdict(&method.is_guarded),
            "invariant_sufficient": verdict(&method.is_invariant_sufficient),
        })
    });
    let groups = |groups: &[Vec<usize>]| groups.iter().map(|group| json!(analysis.names(group))).collect::<Vec<_>>();
    let pairs = |pairs: &[Pair]| {
        let pair = |pair: &Pair| json!({ "methods": analysis.names(&[pair.first, pair.second]), "verdict": verdict(&pair.verdict) });
        pairs.iter().map(pair).collect::<Vec<_>>()
    };
    let summaries = analysis.summaries.iter().map(|summary| {
        json!({ "text": summary.text, "declared": summary.is_declared, "verdict": verdict(&summary.verdict) })
    });
    let conflicts = analysis.conflicts.iter().map(|(first, second)| analysis.names(&[*first, *second]));
    json!({
        "file": file.display().to_string(),
        "type": analysis.name,
        "right": analysis.is_right(),
        "states": if analysis.states == States::All { "all" } else { "permissible" },
        "initial": verdict(&analysis.initial),
        "methods": methods.collect::<Vec<_>>(),
        "conflicts": conflicts.collect::<Vec<_>>(),
        "synchronisation_groups": groups(&analysis.synchronisation_groups),
        "summarisation_groups": groups(&analysis.summarisation_groups),
        "s_commute": pairs(&analysis.state_commutes),
        "p_r_commute": pairs(&analysis.right_commutes),
        "p_l_commute": pairs(&analysis.left_commutes),
        "summaries": summaries.collect::<Vec<_>>(),
        "questions": analysis.questions,
        "skipped": analysis.skipped,
        "undecided": analysis.undecided,
        "seconds": analysis.took.as_secs_f64(),
    })
}

fn verdict(verdict: &Verdict) -> Value {
    match verdict {
        Verdict::Holds => json!("holds"),
        Verdict::Undecided(why) => json!({ "undecided": why }),
        Verdict::Fails(example) => {
            let states = example.states.iter().map(|state| {
                let variables = state.variables.iter().map(|(name, value)| (name.clone(), json!(value)));
                json!({ "label": state.label, "variables": Value::Object(variables.collect()) })
            });
            let states = states.collect::<Vec<_>>();
            json!({ "fails": { "calls": example.calls, "states": states, "causes": example.causes } })
        }
    }
}
