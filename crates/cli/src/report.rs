//! `farfield report`: a page with pictures and tables of measurements by `farfield bench --json`.

mod compare;
mod figures;
mod group;
mod page;
mod panel;
mod papers;
mod picture;
mod read;
#[cfg(test)]
mod samples;
mod tables;
mod words;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use farfield_check::cli::exit::OrUsage;

use self::group::Results;
use crate::output::grouped;

/// The system that all others are peers of.
const FARFIELD: &str = "farfield";

const HELP: &str = "\
The page is one file that needs nothing else: no network, no fonts, no scripts. It shows

  - Farfield beside its peers: ratios of the medians, with the spread over the repetitions; losses are named,
  - throughput by nodes, threads, window and size: medians, with the least and the greatest repetition,
  - distributions of latencies, and how evenly threads got on,
  - the figures of the LOCO and ALock papers, as far as there are measurements for them, and the commands that are missing,
  - a table of all measurements, and the machine, the versions and the command behind each picture.

Measurements are grouped by bench, case, system, version, machine and setup. Several files are one body of measurements;
repetitions of the same case are put together, from whichever file.

Examples:
  farfield bench locks --peer mpi --json results.jsonl
  farfield bench kv --peer redis --json results.jsonl
  farfield report results.jsonl -o report.html
  farfield report monday.jsonl tuesday.jsonl -o report.html --svg pictures";

/// Make a page with pictures and tables of measurements by `bench --json`.
#[derive(Args)]
#[command(after_long_help = HELP)]
pub(crate) struct ReportArgs {
    /// Files that `farfield bench … --json FILE` has written
    #[arg(required = true, value_name = "RESULTS")]
    results: Vec<PathBuf>,
    /// The page
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
    /// Write each picture into this directory, too
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Write the ratios to the peers into this file as tables of Markdown, too
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

pub(crate) fn main(args: &ReportArgs) -> Result<ExitCode> {
    let rows = read::files(&args.results).or_usage()?;
    let measurements = rows.len();
    let results = Results::new(rows).or_usage()?;
    let page = page::Page::of(&results, measurements)?;
    std::fs::write(&args.output, page.html()).with_context(|| format!("writing {}", args.output.display()))?;
    if let Some(directory) = &args.svg {
        std::fs::create_dir_all(directory).with_context(|| format!("--svg {}", directory.display()))?;
        for picture in page.pictures() {
            let file = directory.join(format!("{}.svg", picture.name));
            std::fs::write(&file, picture.alone()).with_context(|| format!("writing {}", file.display()))?;
        }
    }
    if let Some(file) = &args.markdown {
        std::fs::write(file, page.markdown()).with_context(|| format!("writing {}", file.display()))?;
    }
    writeln!(
        std::io::stdout(),
        "{}: {} measurements of {} cases, {} pictures",
        args.output.display(),
        grouped(measurements as u64),
        results.cases.len(),
        page.pictures().count()
    )?;
    Ok(ExitCode::SUCCESS)
}
