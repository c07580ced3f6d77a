//! A mutation sweep: puts systematic mistakes into a copy of the sources, each behind a switch, builds the model
//! checker with all of them, and looks which are found.
//!
//! ```text
//! cargo run --release -p farfield-sweep -- run                 all mistakes; continues where it was interrupted
//! cargo run --release -p farfield-sweep -- run --sample 40     some of them
//! cargo run --release -p farfield-sweep -- report              the table, and the survivors
//! cargo run --release -p farfield-sweep -- again --sample 40   some that were found before, by the scenario that found them
//! cargo run --release -p farfield-sweep -- coverage            the lines that no scenario reaches, and under which faults none does
//! ```
//!
//! `found.txt` names the mistakes that were found, each with its scenario. A mistake that no scenario can find, because
//! the code with it does the same, has a line in `equivalent.txt` with the reason. Sources with mistakes lie in
//! `target/sweep/tree`, and the fate of each mistake in `target/sweep/log.jsonl`.

#![forbid(unsafe_code)]

mod drive;
mod mutate;
mod report;
mod tree;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};

/// Puts mistakes into the sources, and looks which of them the model checker finds.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Lists the mistakes, one a line.
    List(Which),
    /// Builds the checker with the mistakes, and runs it with one after the other.
    Run(RunArgs),
    /// Prints what became of them.
    Report {
        /// Writes `found.txt`, too
        #[arg(long)]
        write: bool,
    },
    /// Runs some of those in `found.txt` with the scenario that has found them: it has to find them again.
    Again(Which),
    /// Prints the lines with places for mistakes that no scenario reaches, at all or under a kind of fault.
    Coverage(Which),
}

/// Which mistakes.
#[derive(Args)]
struct Which {
    /// Only those in files with this in their paths, or one of several
    #[arg(long, value_name = "PART")]
    file: Vec<String>,
    /// About this many, drawn by their names: the same ones after a change elsewhere
    #[arg(long, value_name = "COUNT")]
    sample: Option<usize>,
    /// Which sample: another number gives others, until all had their turn
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    turn: usize,
}

#[derive(Args)]
struct RunArgs {
    #[command(flatten)]
    which: Which,
    /// The most executions for each mistake
    #[arg(long, value_name = "COUNT", default_value_t = 20_000)]
    executions: u64,
    /// The most seconds for each mistake
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    seconds: u64,
    /// Processes at a time; all cores unless set
    #[arg(long, value_name = "COUNT")]
    jobs: Option<usize>,
    /// Begins anew, instead of continuing
    #[arg(long)]
    anew: bool,
    /// Only those that have survived before
    #[arg(long)]
    survivors: bool,
    /// Runs those as well that `equivalent.txt` argues to change nothing
    #[arg(long)]
    all: bool,
    /// Ends in an error if a mistake survives that is not known to be equivalent
    #[arg(long)]
    strict: bool,
}

fn main() -> Result<()> {
    let root = root()?;
    match Cli::parse().command {
        Action::List(which) => {
            for site in which.choose(tree::sites(&root)?) {
                println!(
                    "{}:{}: {}: {} → {}",
                    site.file, site.mistake.line, site.mistake.kind, site.mistake.was, site.mistake.becomes
                );
            }
            Ok(())
        }
        Action::Run(args) => drive::run(&root, numbered(&root)?, &args),
        Action::Coverage(which) => drive::coverage(&root, numbered(&root)?, &which),
        Action::Again(which) => drive::again(&root, numbered(&root)?, &which),
        Action::Report { write } => {
            if write {
                report::write_found(&root)?;
            }
            report::print(&root)
        }
    }
}

fn numbered(root: &Path) -> Result<BTreeMap<u32, tree::Site>> {
    Ok((0..).zip(tree::sites(root)?).collect())
}

impl Which {
    fn is_of(&self, site: &tree::Site) -> bool {
        self.file.is_empty() || self.file.iter().any(|part| site.file.contains(part.as_str()))
    }

    fn choose(&self, sites: Vec<tree::Site>) -> Vec<tree::Site> {
        let sites: Vec<tree::Site> = sites.into_iter().filter(|site| self.is_of(site)).collect();
        let Some(count) = self.sample.filter(|count| *count < sites.len()) else { return sites };
        let samples = (sites.len() / count.max(1)).max(1) as u64;
        let is_drawn = |site: &tree::Site| {
            let mut hasher = DefaultHasher::new();
            site.name.hash(&mut hasher);
            hasher.finish() % samples == self.turn as u64 % samples
        };
        sites.into_iter().filter(is_drawn).collect()
    }
}

/// The folder of the workspace.
fn root() -> Result<PathBuf> {
    let here = std::env::current_dir()?;
    let is_root = |folder: &&std::path::Path| folder.join("crates/sweep/Cargo.toml").exists();
    here.ancestors().find(is_root).map(Into::into).context("run it inside a checkout of Farfield")
}
