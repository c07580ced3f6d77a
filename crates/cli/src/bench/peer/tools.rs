//! The tools of the peers, and their programs, which are compiled with them.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::program::{self, Line};
use super::work::Work;
use super::{Peer, Said};

/// The source of a peer's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) name: &'static str,
    source: &'static str,
}

macro_rules! program {
    ($name:literal) => {
        Program { name: $name, source: include_str!(concat!("../../../peers/", $name, ".c")) }
    };
}

/// The header of all programs.
const HEADER: &str = include_str!("../../../peers/peer.h");

impl Program {
    pub(super) const MPI_RMA: Program = program!("mpi_rma");
    pub(super) const MPI_BARRIER: Program = program!("mpi_barrier");
    pub(super) const MPI_BROADCAST: Program = program!("mpi_broadcast");
    pub(super) const MPI_COLLECTIVES: Program = program!("mpi_collectives");
    pub(super) const MPI_LOCK: Program = program!("mpi_lock");
    pub(super) const MPI_TRANSFERS: Program = program!("mpi_transfers");
    pub(super) const UCX_RMA: Program = program!("ucx_rma");
    pub(super) const REDIS_KV: Program = program!("redis_kv");
}

/// How long a program may take beside its measurement and its preparations. It ends itself before that.
const SPARE: Duration = Duration::from_secs(75);

/// The tools of a peer.
pub(super) struct Tools {
    peer: Peer,
    compiler: PathBuf,
    /// For the compiler, behind the source.
    flags: Vec<String>,
    /// The program that starts the processes, or the server.
    starter: Option<PathBuf>,
    /// Those that are compiled.
    built: Vec<(Program, PathBuf)>,
}

impl Tools {
    /// The tools, or which is missing and how to install it.
    pub(super) fn find(peer: Peer) -> Result<Tools> {
        let packages = match peer {
            Peer::Mpi => "gcc libc6-dev openmpi-bin libopenmpi-dev",
            Peer::Redis => "gcc libc6-dev pkg-config redis-server libhiredis-dev",
            Peer::Ucx => "gcc libc6-dev pkg-config libucx-dev",
        };
        let find = || {
            let (compiler, flags, starter) = match peer {
                Peer::Mpi => {
                    let starter = in_path("mpirun")?;
                    let version = output(Command::new(&starter).arg("--version"))?;
                    if !version.contains("Open MPI") && !version.contains("OpenRTE") && !version.contains("PRRTE") {
                        bail!("{} is not Open MPI's", starter.display());
                    }
                    (in_path("mpicc")?, vec![], Some(starter))
                }
                Peer::Redis => {
                    let mut flags = library("hiredis")?;
                    flags.push("-lm".into());
                    (in_path("gcc")?, flags, Some(in_path("redis-server")?))
                }
                Peer::Ucx => (in_path("gcc")?, library("ucx")?, None),
            };
            Ok(Tools { peer, compiler, flags, starter, built: Vec::new() })
        };
        find().map_err(|missing: anyhow::Error| {
            anyhow::anyhow!(
                "{missing:#}; on Debian and Ubuntu install it with: apt-get install --no-install-recommends {packages}"
            )
        })
    }

    /// The program, compiled into a directory; the same one if it was compiled before.
    fn build(&mut self, program: Program, directory: &Path) -> Result<PathBuf> {
        if let Some((_, built)) = self.built.iter().find(|(other, _)| *other == program) {
            return Ok(built.clone());
        }
        let source = directory.join(format!("{}.c", program.name));
        let built = directory.join(program.name);
        fs::write(directory.join("peer.h"), HEADER)
            .and_then(|()| fs::write(&source, program.source))
            .with_context(|| format!("writing {}", source.display()))?;
        let mut command = Command::new(&self.compiler);
        command.arg("-O2").arg("-o").arg(&built).arg(&source).args(&self.flags).stdin(Stdio::null());
        let compiled = command.output().with_context(|| format!("starting {}", self.compiler.display()))?;
        if !compiled.status.success() {
            bail!("compiling {}: {}", program.name, String::from_utf8_lossy(&compiled.stderr).trim_end());
        }
        self.built.push((program, built.clone()));
        Ok(built)
    }

    /// Runs the program of a work.
    pub(super) fn run(&mut self, work: &Work, directory: &Path, interrupted: &AtomicBool) -> Result<Said> {
        let built = self.build(work.program, directory)?;
        let (program, arguments) = self.command(work, built, directory);
        let mut command = Command::new(&program);
        command.args(&arguments).stdin(Stdio::null());
        let whole = Duration::try_from_secs_f64(work.seconds + work.preparation_s).context("--seconds")?;
        let lines: Vec<Line> = program::run(&mut command, whole * 2 + SPARE, interrupted)
            .with_context(|| format!("{} with {} processes", work.program.name, work.processes))?;
        // Paths say nothing to a reader on another machine.
        let name = |path: &OsString| {
            let path = Path::new(path);
            let name = if path.is_absolute() { path.file_name().unwrap_or(path.as_os_str()) } else { path.as_os_str() };
            name.to_string_lossy().into_owned()
        };
        let words: Vec<String> =
            std::iter::once(program.into_os_string()).chain(arguments).map(|it| name(&it)).collect();
        Ok((lines, words.join(" ")))
    }

    /// The command line of a work.
    fn command(&self, work: &Work, built: PathBuf, directory: &Path) -> (PathBuf, Vec<OsString>) {
        let own = work.arguments.iter().map(OsString::from);
        match (self.peer, &self.starter) {
            (Peer::Mpi, Some(mpirun)) => {
                let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
                // `osc sm` is the fastest way between processes of one host. Open MPI 4.1's own choice, `osc rdma`,
                // can crash in its first compare-and-swap.
                let mut arguments: Vec<OsString> =
                    ["--allow-run-as-root", "--oversubscribe", "--mca", "osc", "sm"].map(Into::into).into();
                // With more processes than cores, one that waits has to make room for the others.
                if work.processes > cores {
                    arguments.extend(["--mca", "mpi_yield_when_idle", "1"].map(Into::into));
                }
                let binding = if work.is_pinned { "core:overload-allowed" } else { "none" };
                arguments.extend(["--bind-to", binding, "-n", &work.processes.to_string()].map(Into::into));
                arguments.push(built.into());
                (mpirun.clone(), arguments.into_iter().chain(own).collect())
            }
            (Peer::Redis, Some(server)) => {
                let more = ["--server".into(), server.into(), "--directory".into(), directory.into()];
                (built, own.chain(more).collect())
            }
            _ => (built, own.collect()),
        }
    }
}

/// A program's path.
fn in_path(program: &str) -> Result<PathBuf> {
    let search = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let can_execute = |path: &PathBuf| path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
    let found = std::env::split_paths(&search).map(|folder| folder.join(program)).find(can_execute);
    found.with_context(|| format!("{program} is not in PATH"))
}

/// The compiler's flags for a library.
fn library(name: &str) -> Result<Vec<String>> {
    let flags = output(Command::new(in_path("pkg-config")?).args(["--cflags", "--libs", name]))?;
    Ok(flags.split_whitespace().map(str::to_owned).collect())
}

/// A command's output, if it succeeds.
fn output(command: &mut Command) -> Result<String> {
    let name = PathBuf::from(command.get_program());
    let done = command.stdin(Stdio::null()).output().with_context(|| format!("starting {}", name.display()))?;
    if !done.status.success() {
        bail!("{}", String::from_utf8_lossy(&done.stderr).lines().next().unwrap_or("it failed"));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}
