//! `farfield doctor`: what this machine offers and lacks for Farfield, and what to do about it.
//!
//! Every check is a function that returns a [`Check`]; nothing is changed on the machine, and files created for a test
//! (a memfd, one empty file in the rendezvous directory) are gone when the check returns. Only a check marked vital,
//! that is one without which the shared-memory fabric cannot work at all, makes the exit status 1.

mod machine;
mod memory;
mod rdma;
mod rendezvous;
mod ucx;

pub(crate) use memory::free_memory;
pub(crate) use rendezvous::free_directory;

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const GIB: u64 = 1024 * MIB;

/// What `farfield doctor` takes.
#[derive(clap::Args)]
pub(crate) struct DoctorArgs {
    /// Print one JSON document instead of the table
    #[arg(long)]
    json: bool,
}

/// Examines the machine, prints the findings, and fails only if shared memory is unusable.
pub(crate) fn main(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let groups = examine();
    let usable = !groups.iter().flat_map(|(_, checks)| checks).any(|check| check.vital && check.mark == Mark::Lack);
    let mut text = Vec::new();
    if args.json {
        serde_json::to_writer_pretty(&mut text, &document(&groups, usable))?;
        text.push(b'\n');
    } else {
        let coloured = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        table(&groups, usable, coloured, &mut text)?;
    }
    match io::stdout().lock().write_all(&text) {
        Err(error) if usable || error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(if usable { ExitCode::SUCCESS } else { ExitCode::FAILURE }),
    }
}

/// The result of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mark {
    /// Nothing to do.
    Ok,
    /// Works, and could be better.
    Note,
    /// Something does not work.
    Lack,
}

impl Mark {
    fn word(self) -> &'static str {
        match self {
            Mark::Ok => "ok",
            Mark::Note => "note",
            Mark::Lack => "lack",
        }
    }

    fn colour(self) -> &'static str {
        match self {
            Mark::Ok => "\x1b[32m",
            Mark::Note => "\x1b[33m",
            Mark::Lack => "\x1b[31m",
        }
    }
}

/// One finding.
#[derive(Debug)]
struct Check {
    name: &'static str,
    mark: Mark,
    /// Without it the shared-memory fabric cannot work.
    vital: bool,
    /// The finding in words.
    value: String,
    /// What to do; there for everything that is not ok.
    advice: Option<String>,
    /// The finding for programs.
    data: Value,
}

impl Check {
    fn ok(name: &'static str, value: impl Into<String>) -> Self {
        Self { name, mark: Mark::Ok, vital: false, value: value.into(), advice: None, data: Value::Null }
    }

    fn note(name: &'static str, value: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { mark: Mark::Note, advice: Some(advice.into()), ..Self::ok(name, value) }
    }

    fn lack(name: &'static str, value: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { mark: Mark::Lack, advice: Some(advice.into()), ..Self::ok(name, value) }
    }

    fn vital(self) -> Self {
        Self { vital: true, ..self }
    }

    fn data(self, data: Value) -> Self {
        Self { data, ..self }
    }
}

type Groups = Vec<(&'static str, Vec<Check>)>;

fn examine() -> Groups {
    let (base, rdma, ucx) = (rendezvous::base(), rdma::devices(), ucx::checks());
    let between_hosts = between_hosts(&rdma, &ucx);
    vec![
        ("machine", vec![machine::kernel(), machine::processor(), machine::ordering(), machine::cores()]),
        (
            "memory",
            vec![
                memory::memory(),
                memory::memory_limit(),
                memory::sealed_memory(),
                memory::huge_pages(),
                memory::shared_huge_pages(),
            ],
        ),
        ("kernel features", vec![machine::membarrier(), machine::robust_futex(), machine::pidfd()]),
        ("rendezvous", vec![rendezvous::directory(&base), rendezvous::leftovers(&base)]),
        ("limits", vec![machine::address_space(), machine::open_files(), machine::locked_memory()]),
        ("rdma", rdma),
        ("ucx", ucx),
        ("several hosts", vec![between_hosts]),
    ]
}

/// What connects this host with others if nothing is demanded, as with `FARFIELD_FABRIC=auto`.
fn between_hosts(rdma: &[Check], ucx: &[Check]) -> Check {
    let is_usable = |checks: &[Check]| checks.iter().any(|check| check.data["usable"] == true);
    if is_usable(rdma) {
        Check::ok("auto", "RDMA").data(json!("verbs"))
    } else if is_usable(ucx) {
        Check::ok("auto", "UCX, over TCP: there is no usable RDMA device").data(json!("ucx"))
    } else {
        Check::note(
            "auto",
            "neither RDMA nor UCX",
            "to connect this host with others over TCP: apt-get install libucx0",
        )
    }
}

fn table(groups: &Groups, usable: bool, coloured: bool, out: &mut impl Write) -> io::Result<()> {
    let width = groups.iter().flat_map(|(_, checks)| checks).map(|check| check.name.len()).max().unwrap_or(0);
    let (bold, plain) = if coloured { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
    for (group, checks) in groups {
        writeln!(out, "{bold}{group}{plain}")?;
        for check in checks {
            let colour = if coloured { check.mark.colour() } else { "" };
            writeln!(out, "  {colour}{:<4}{plain}  {:<width$}  {}", check.mark.word(), check.name, check.value)?;
            if let Some(advice) = &check.advice {
                writeln!(out, "        {:<width$}  -> {advice}", "")?;
            }
        }
    }
    let verdict = if usable {
        "Shared memory is usable: Farfield runs on this machine."
    } else {
        "Shared memory is not usable: Farfield cannot run here until the lacks above are seen to."
    };
    writeln!(out, "\n{verdict}")
}

fn document(groups: &Groups, usable: bool) -> Value {
    let checks: Vec<Value> = groups
        .iter()
        .flat_map(|(group, checks)| checks.iter().map(move |check| (group, check)))
        .map(|(group, check)| {
            json!({
                "group": group,
                "name": check.name,
                "mark": check.mark.word(),
                "vital": check.vital,
                "value": check.value,
                "advice": check.advice,
                "data": check.data,
            })
        })
        .collect();
    json!({ "farfield": env!("CARGO_PKG_VERSION"), "shared_memory_usable": usable, "checks": checks })
}

/// A number of bytes for people.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(GIB * KIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")];
    match UNITS.into_iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) if bytes.is_multiple_of(unit) => format!("{} {name}", bytes / unit),
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / unit as f64),
        None => format!("{bytes} B"),
    }
}

/// A small file's text without the white space around it; none if it cannot be read.
fn read(path: impl AsRef<Path>) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    Some(String::from_utf8_lossy(&bytes).trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_readable() {
        assert_eq!([size(0), size(1536), size(2 * GIB)], ["0 B", "1.5 KiB", "2 GiB"]);
    }

    #[test]
    fn rdma_comes_before_ucx() {
        let usable = |is_usable: bool| json!({ "usable": is_usable });
        // A device that could be better, as one with RoCE v1 only.
        let device = [Check::note("device", "mlx5_0", "better").data(usable(true)), Check::note("  order", "", "")];
        let none = [Check::note("device", "mlx5_0", "broken").data(usable(false))];
        let library = [Check::ok("library", "UCX 1.13").data(usable(true))];
        assert_eq!(between_hosts(&device, &library).data, json!("verbs"));
        assert_eq!(between_hosts(&none, &library).data, json!("ucx"));
        assert_eq!(between_hosts(&[], &none).mark, Mark::Note);
    }

    #[test]
    fn every_shortfall_comes_with_advice() {
        for (_, checks) in examine() {
            for check in checks {
                assert_eq!(check.mark == Mark::Ok, check.advice.is_none(), "{check:?}");
                assert!(!check.value.contains('\n') && !check.advice.is_some_and(|advice| advice.contains('\n')));
            }
        }
    }
}
