//! `farfield litmus`: the outcomes of litmus tests that the declarative models of Mowgli allow; and those seen, see
//! [`run`].

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use farfield::fabric::verbs::VerbsOptions;
use farfield::mutants::Mutant;
use farfield_check::cli::exit::{OrUsage, usage};
use mowgli::enumerate::{Detail, Outcomes, consistent};
use mowgli::explore;
use mowgli::litmus::{Implementation, Observable, Quantifier, Test};
use mowgli::model::Models;
use mowgli::refine::Why;
use mowgli::report::Herd;
use mowgli::witness::Answer;
use mowgli::{draw, witness};
use serde_json::{Value, json};

use crate::output;

mod run;
mod table;

const HELP: &str = "\
A litmus test is a small program that calls methods of some libraries, and a question about its outcomes. A model
defines which executions of a library are consistent. The models of the LOCO paper are built in, and others can be
loaded. The output has herd's format: every outcome, and the answer to the question.

  farfield litmus fig_3d.litmus            one test
  farfield litmus crates/mowgli/litmus     all tests in a directory, and below
  farfield litmus --model my.model my.litmus
  farfield litmus --machine fig_3d.litmus  on the RDMA^TSO machine too: are the outcomes the same?
  farfield litmus --refine bal_sv fig_22.litmus
                                           with an implementation in place of the barrier: does it show an outcome that
                                           the specification forbids? If so, why is it forbidden, and how does it happen?
  farfield litmus --svg out fig_3d.litmus  and a picture, out/fig_3d.svg: an execution in which the condition holds, or
                                           the cycle that forbids it
  farfield litmus SB.litmus --run shm,sim  on Farfield itself: how often is each outcome seen, and is one that the
                                           models forbid?
  farfield litmus TESTS --run verbs --device mlx5_0
                                           on your own RDMA device: does it keep the model?
  farfield litmus --table TESTS --run shm  a line for each test: what each model says of it, what each fabric shows
  farfield litmus --models                 which models there are, and their methods

With --run all nodes of a test are in this process. Each thread of the test is a thread with its own endpoint, and the
output has litmus7's format. The threads start each iteration together, on fresh words. The fabrics are `shm`, shared
memory, nearly as strong as the processor; `weak`, the same with every delay and reordering that the model allows;
`sim`, simulated nodes with random choices from a seed; `verbs`, RDMA; and `ucx`, TCP by UCX. (If two connected RDMA
devices are given, traffic between them crosses the wire.) A loop that does not reach its `break` within seconds is
counted as not finished.

Tests of the libraries above words (sv, bal, balp, rbl, msw) run twice, unless --over selects one: with the objects that
ship (SharedVar, Barrier, RingBuffer, OwnedVar, and global_fence), and with the text implementations of LOCO's paper.
Both are compared with the libraries' own models; text implementations by their registers only. A test that an object
does not support, such as two writers of an OwnedVar, is skipped with the reason.

A forbidden outcome is a bug of the device or of Farfield, or the model is too strong. To see none proves nothing.
Allowed outcomes that were never seen are listed; they are no failure.

Exit status:
  0  every question has the answer yes, every refinement is sound, and --run saw no forbidden outcome
  1  otherwise; or the machine differs
  2  wrong usage, or a test, a model or an implementation that cannot be read or understood";

/// What `farfield litmus` takes.
#[derive(clap::Args)]
#[command(after_long_help = HELP, after_help = "Examples: --help")]
pub(crate) struct LitmusArgs {
    /// Tests, or directories of `*.litmus` files
    #[arg(value_name = "TEST", required_unless_present = "models")]
    tests: Vec<PathBuf>,
    /// A model to load besides those that are built in; may be repeated
    #[arg(long, value_name = "FILE")]
    model: Vec<PathBuf>,
    /// Run each test on the RDMA^TSO machine too, and compare the outcomes
    #[arg(long)]
    machine: bool,
    /// Draw each test into NAME.svg in this directory: an execution in which its condition holds (for `forall`, one in
    /// which it does not), or the cycle that forbids it
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Replace the calls of libraries by these implementations, of those that are built in or from a file; may be
    /// repeated
    #[arg(long, value_name = "NAME|FILE", value_delimiter = ',', conflicts_with_all = ["json", "machine", "svg"])]
    refine: Vec<String>,
    /// List the models and their methods, and the implementations
    #[arg(long, conflicts_with_all = ["tests", "json", "machine", "refine", "svg"])]
    models: bool,
    /// Run each test on these fabrics, with commas between them, and count the outcomes
    #[arg(
        long,
        value_name = "FABRIC",
        value_enum,
        value_delimiter = ',',
        conflicts_with_all = ["machine", "refine", "models", "svg"],
    )]
    run: Vec<run::On>,
    /// What calls of the libraries above words (sv, bal, balp, rbl, msw) are made on
    #[arg(long, value_enum, requires = "run", default_value_t = run::Over::Both)]
    over: run::Over,
    /// Seed a bug into the objects, to see that it is found
    #[arg(long, hide = true, requires = "run", value_name = "NAME", value_parser = crate::parts::mutant)]
    mutant: Option<Mutant>,
    /// How often each test is run [default: 200000 on shm, 100000 on verbs, 10000 on weak, sim and ucx]
    #[arg(long, value_name = "N", requires = "run", value_parser = clap::value_parser!(u64).range(1..))]
    iterations: Option<u64>,
    /// Other random choices of weak and sim
    #[arg(long, value_name = "K", requires = "run", default_value_t = 1)]
    seed: u64,
    /// The RDMA device, or several with commas between them, which the nodes take in turns [default: FARFIELD_DEVICE,
    /// or the first that fits]
    #[arg(long, value_name = "NAME", requires = "run")]
    device: Option<String>,
    /// Print one table of all tests: what each model says, and what was seen on each fabric
    #[arg(long, conflicts_with_all = ["machine", "refine", "models", "svg"])]
    table: bool,
    /// Append a line of JSON for each test to this file, or `-` for standard output in place of the text
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Carries out the command; an error is a mistake in it.
pub(crate) fn main(args: &LitmusArgs) -> Result<ExitCode> {
    let mut models = Models::builtin();
    for file in &args.model {
        models.load(&file.display().to_string(), &read(file)?).or_usage()?;
    }
    let mut out = std::io::stdout().lock();
    if args.models {
        for library in models.names().filter_map(|name| models.get(name)) {
            writeln!(out, "{:12} {}", library.name, library.methods().collect::<Vec<_>>().join(", "))?;
        }
        writeln!(out)?;
        for implementation in Implementation::builtin() {
            let Implementation { name, of, over, .. } = &*implementation;
            writeln!(out, "{name:12} {of} over {}", over.join(", "))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if !args.refine.is_empty() {
        return refine(args, &models, &mut out);
    }
    if args.table || !args.run.is_empty() {
        let with_text = |file: &PathBuf| Ok((file.display().to_string(), read(file)?));
        let tests = files(&args.tests)?.iter().map(with_text).collect::<Result<Vec<_>>>()?;
        let device = device(args)?;
        let (on, over, iterations) = (args.run.clone(), args.over, args.iterations);
        let ask = run::Ask { on, over, mutant: args.mutant, iterations, seed: args.seed, device };
        let main = if args.table { table::main } else { run::main };
        let is_right = main(&tests, &models, &ask, args.json.as_deref(), &mut out)?;
        return Ok(if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let is_json = output::is_stdout(args.json.as_deref());
    let (mut wrong, mut drawn) = (Vec::new(), BTreeSet::new());
    for file in files(&args.tests)? {
        let name = file.display().to_string();
        let test = Test::parse(&name, &read(&file)?, &models).or_usage()?;
        let start = Instant::now();
        let outcomes = consistent(&test, Detail::Executions).with_context(|| name.clone())?;
        let took = start.elapsed().as_secs_f64();
        if !outcomes.is_ok(test.quantifier) {
            wrong.push(name.clone());
        }
        let machine = args.machine.then(|| on_machine(&test));
        if let Some(Ok(difference)) = &machine
            && !difference.is_empty()
        {
            wrong.push(format!("{name} (on the machine)"));
        }
        if !is_json {
            writeln!(out, "{}Time {} {took:.2}", Herd { test: &test, outcomes: &outcomes }, test.name)?;
            match &machine {
                Some(Ok(difference)) => difference.iter().try_for_each(|line| writeln!(out, "{line}"))?,
                Some(Err(error)) => writeln!(out, "Not on the machine: {error:#}")?,
                None => {}
            }
        }
        if let Some(directory) = &args.svg {
            ensure!(
                drawn.insert(test.name.clone()),
                "{name}: another test is called {}, too: draw them apart",
                test.name
            );
            let picture = picture(&test, directory).with_context(|| name.clone())?;
            if !is_json {
                writeln!(out, "{}", picture.display())?;
            }
        }
        if !is_json {
            writeln!(out)?;
        }
        let differs = machine.and_then(Result::ok).map(|difference| !difference.is_empty());
        output::json(args.json.as_deref(), &mut out, &report(&test, &outcomes, took, differs))?;
    }
    if wrong.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    out.flush()?;
    let _ = writeln!(std::io::stderr(), "farfield litmus: not as the test says: {}", wrong.join(", "));
    Ok(ExitCode::FAILURE)
}

/// Draws a test into a directory; the picture's file.
fn picture(test: &Test, directory: &Path) -> Result<PathBuf> {
    let file = directory.join(format!("{}.svg", test.name));
    std::fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    std::fs::write(&file, draw::svg(test, &witness::find(test)?)).with_context(|| file.display().to_string())?;
    Ok(file)
}

/// Compares each test's outcomes with those over implementations.
fn refine(args: &LitmusArgs, models: &Models, out: &mut impl Write) -> Result<ExitCode> {
    let mut known = Implementation::builtin();
    let mut implementations = Vec::new();
    for name in &args.refine {
        implementations.push(match known.iter().find(|implementation| implementation.name == *name) {
            Some(implementation) => Rc::clone(implementation),
            None => {
                let built_in = "no implementation that is built in (see --models)";
                let text = read(Path::new(name)).context(built_in).or_usage()?;
                // It may extend one that was named before.
                let implementation = Rc::new(Implementation::parse(name, &text, &known).or_usage()?);
                known.push(Rc::clone(&implementation));
                implementation
            }
        });
    }
    let mut is_sound = true;
    for file in files(&args.tests)? {
        let name = file.display().to_string();
        let text = read(&file)?;
        let refinement = mowgli::refine::refine(&name, &text, models, &implementations);
        let refinement = refinement.with_context(|| name.clone()).or_usage()?;
        let (shown, specified) = (refinement.shown.len(), refinement.specified.len());
        writeln!(out, "{name}: {shown} outcomes over {}, {specified} specified", args.refine.join(", "))?;
        for (at, state) in refinement.unsound().enumerate() {
            is_sound = false;
            let seen: Vec<_> =
                refinement.names.iter().zip(state).map(|(name, value)| format!("{name}={value};")).collect();
            writeln!(out, "Unsound: {}", seen.join(" "))?;
            // One explanation a test: the others are often about the same mistake.
            if at == 0 {
                let why = mowgli::refine::why(&name, &text, models, &implementations, state);
                tell_why(&why.with_context(|| name.clone())?, &args.refine.join(", "), out)?;
            }
        }
    }
    Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Why the specification forbids an outcome, and an execution over the implementations that has it.
fn tell_why(why: &Why, over: &str, out: &mut impl Write) -> Result<()> {
    let reason = why.specified.reason(Quantifier::Exists).replace('\u{a0}', " ");
    writeln!(out, "  Why the specification forbids it: {reason}")?;
    if let Answer::Witness(graph) = &why.shown {
        writeln!(out, "  How it happens over {over}; in brackets, where a value that is read comes from:")?;
        graph.told().iter().try_for_each(|line| writeln!(out, "    {line}"))?;
    }
    Ok(())
}

/// The RDMA device that was named, as nodes that are started elsewhere are told it.
fn device(args: &LitmusArgs) -> Result<VerbsOptions> {
    let device = args.device.clone().or_else(|| std::env::var("FARFIELD_DEVICE").ok());
    let gid_index = match std::env::var("FARFIELD_GID_INDEX") {
        Ok(text) => Some(text.parse().with_context(|| format!("FARFIELD_GID_INDEX: `{text}` is no index")).or_usage()?),
        Err(_) => None,
    };
    Ok(VerbsOptions { device, gid_index, ..VerbsOptions::default() })
}

fn read(file: &Path) -> Result<String> {
    std::fs::read_to_string(file).with_context(|| file.display().to_string()).or_usage()
}

/// The tests that were named, and those in directories, by name.
fn files(named: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in named {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let before = files.len();
        let mut directories = vec![path.clone()];
        while let Some(directory) = directories.pop() {
            for entry in std::fs::read_dir(&directory).with_context(|| directory.display().to_string()).or_usage()? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    directories.push(entry.path());
                } else if entry.path().extension().is_some_and(|kind| kind == "litmus") {
                    files.push(entry.path());
                }
            }
        }
        files[before..].sort();
        if files.len() == before {
            return Err(usage(format!("{}: no `*.litmus` file is in it", path.display())));
        }
    }
    Ok(files)
}

/// How the outcomes on the machine differ from those of the models.
fn on_machine(test: &Test) -> Result<Vec<String>> {
    let declared = consistent(test, Detail::States)?;
    let machine = explore::outcomes(test)?;
    let names: Vec<_> = declared.observables.iter().map(|observable| test.name_of(*observable)).collect();
    let line = |who: &str, state: &Vec<mowgli::litmus::Value>| {
        let seen: Vec<_> = names.iter().zip(state).map(|(name, value)| format!("{name}={value};")).collect();
        format!("{who}: {}", seen.join(" "))
    };
    let only_declared = declared.states.keys().filter(|state| !machine.contains(*state));
    let only_machine = machine.iter().filter(|state| !declared.states.contains_key(*state));
    let differences = only_declared.map(|state| line("Only by the models", state));
    Ok(differences.chain(only_machine.map(|state| line("Only on the machine", state))).collect())
}

fn report(test: &Test, outcomes: &Outcomes, took: f64, machine_differs: Option<bool>) -> Value {
    let name = |observable: &Observable| test.name_of(*observable);
    let states = outcomes.states.iter().map(|(state, executions)| {
        let seen = outcomes.observables.iter().zip(state).map(|(seen, value)| (name(seen), json!(value.to_string())));
        json!({ "seen": Value::Object(seen.collect()), "executions": executions })
    });
    json!({
        "test": test.name,
        "reason": test.reason,
        "condition": format!("{} {}", test.quantifier, test.question),
        "ok": outcomes.is_ok(test.quantifier),
        "positive": outcomes.positive,
        "negative": outcomes.negative,
        "states": states.collect::<Vec<_>>(),
        "machine_differs": machine_differs,
        "seconds": took,
    })
}
