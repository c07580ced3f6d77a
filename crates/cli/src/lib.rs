//! The command line of Farfield: starts the nodes of a session on this host (`run`), measures (`bench`), makes a page
//! of what was measured (`report`), searches for failing executions (`check`), enumerates the outcomes of litmus tests
//! and runs them (`litmus`), analyses replicated data types (`wrdt`), kills nodes at work (`chaos`), lends memory to
//! replicated registers and stores (`memory`), reports what this machine supports and lacks (`doctor`), and describes
//! itself to shells (`completions`) and to `man`.
//!
//! The program `farfield` is [`main`] with no [`Parts`]. A crate with an object of its own builds a program with its
//! scenarios, mutants and chaos loads in it:
//!
//! ```no_run
//! # mod baton {
//! #     pub fn scenarios() -> Vec<farfield_check::Scenario> { Vec::new() }
//! #     pub mod mutants { pub const ALL: &[farfield::mutants::Mutant] = &[]; }
//! # }
//! fn main() -> std::process::ExitCode {
//!     farfield_cli::main(farfield_cli::Parts {
//!         scenarios: baton::scenarios(),
//!         mutants: baton::mutants::ALL.to_vec(),
//!         loads: vec![],
//!     })
//! }
//! ```

#![forbid(unsafe_code)]

mod bench;
mod caretaker;
mod chaos;
mod doctor;
mod launch;
mod litmus;
mod memory;
mod output;
mod parts;
mod report;
mod run;
mod shell;
mod spread;
mod wrdt;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use farfield_check::cli::{CheckArgs, exit};

pub use chaos::custom::{Failure, Load, Log, Observed, ObservedCall, Setup, Work};
pub use parts::Parts;

/// Objects for network memory: start nodes, measure, and check this machine.
#[derive(Parser)]
#[command(name = "farfield", version, propagate_version = true, arg_required_else_help = true)]
#[command(after_help = exit::HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start the nodes of a session as processes on this host
    Run(run::RunArgs),
    /// Measure objects and fabrics
    Bench(bench::BenchArgs),
    /// Make a page with pictures and tables of measurements by `bench --json`
    Report(report::ReportArgs),
    /// Model-check the objects: search simulated executions for a failure, or replay one
    Check(CheckArgs),
    /// Kill, stop and restart nodes under load, and verify everything that they observed
    Chaos(chaos::ChaosArgs),
    /// Enumerate the outcomes of litmus tests under the memory models, or run the tests and count
    Litmus(litmus::LitmusArgs),
    /// Analyse replicated data types: which of their methods need coordination, and why
    Wrdt(wrdt::WrdtArgs),
    /// Lend memory to replicated registers and stores of other processes
    Memory(memory::MemoryArgs),
    /// Report what this machine supports, what it lacks, and how to fix it
    Doctor(doctor::DoctorArgs),
    /// Print the script by which a shell completes this command line
    Completions(shell::CompletionsArgs),
    /// Write a manual page for each command
    Man(shell::ManArgs),
    /// What `run` starts for each node: ties its life to the launcher's, then becomes the program
    #[command(name = "__child", hide = true)]
    Child(run::ChildArgs),
    /// What `run --hosts` starts on each host for each node
    #[command(name = "__remote", hide = true)]
    Remote,
    /// What `chaos` starts for each node
    #[command(name = "__chaos", hide = true)]
    ChaosWorker(chaos::WorkerArgs),
    /// What commands start that leave something behind when they are killed
    #[command(name = "__caretaker", hide = true)]
    Caretaker,
}

/// Runs the command line with the parts of other crates.
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     farfield_cli::main(farfield_cli::Parts::default()) // the program `farfield`
/// }
/// ```
pub fn main(parts: Parts) -> ExitCode {
    parts::set(parts);
    let outcome = match Cli::parse().command {
        Command::Run(args) => run::main(args),
        Command::Bench(args) => {
            output::unless_unread(output::log().and_then(|()| bench::main(args)).map(|()| ExitCode::SUCCESS))
        }
        Command::Report(args) => output::unless_unread(report::main(&args)),
        Command::Check(args) => {
            output::unless_unread(parts::checked().run(args, &format!("{} check", parts::program())))
        }
        Command::Litmus(args) => output::unless_unread(litmus::main(&args)),
        Command::Wrdt(args) => output::unless_unread(wrdt::main(&args)),
        Command::Memory(args) => output::unless_unread(output::log().and_then(|()| memory::main(&args))),
        Command::Doctor(args) => output::unless_unread(doctor::main(&args)),
        Command::Chaos(args) => output::unless_unread(chaos::main(&args)),
        Command::Completions(args) => output::unless_unread(shell::completions_main(&args, Cli::command())),
        Command::Man(args) => shell::man_main(&args, Cli::command()),
        Command::ChaosWorker(args) => {
            output::log().and_then(|()| chaos::worker_main(&args)).map(|()| ExitCode::SUCCESS)
        }
        Command::Child(args) => Ok(run::child_main(&args)),
        Command::Remote => run::remote_main(),
        Command::Caretaker => {
            caretaker::main();
            Ok(ExitCode::SUCCESS)
        }
    };
    caretaker::finish();
    exit::end("farfield", outcome)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        super::Cli::command().debug_assert();
    }
}
