//! The work of a peer that is compared with a measurement of Farfield.

use super::super::measurement::Measurement;
use super::Peer;
use super::tools::Program;

/// The most windows that LOCO's authors could open with Open MPI.
const WINDOWS_MAX: u64 = 341;

/// One run of a peer's program.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Work {
    pub(super) program: Program,
    /// How many processes do the work; a server is not counted.
    pub(super) processes: u32,
    pub(super) arguments: Vec<String>,
    /// How long it measures.
    pub(super) seconds: f64,
    /// How long its preparations may take in addition.
    pub(super) preparation_s: f64,
    /// Whether each process is kept on one core.
    pub(super) is_pinned: bool,
}

impl Work {
    /// The work of a peer that is comparable to a measurement of Farfield, if there is any.
    pub(super) fn of(peer: Peer, ours: &Measurement, seconds: f64) -> Option<Work> {
        let setup = &ours.setup;
        // The peers work on shared memory, and some over TCP. MPI is not asked to: its windows need another transport.
        let is_over_tcp = match setup.fabric.as_deref() {
            None | Some("shm") => false,
            Some("ucx") if peer != Peer::Mpi => true,
            Some(_) => return None,
        };
        let nodes = setup.nodes.unwrap_or(2);
        let threads = setup.threads.unwrap_or(1);
        let all = nodes * threads;
        let mut work = Work {
            program: Program::MPI_RMA,
            processes: all,
            arguments: Vec::new(),
            seconds,
            preparation_s: 0.0,
            is_pinned: ours.pinned == Some(true),
        };
        match (peer, ours.bench.as_str(), ours.case.as_str()) {
            (Peer::Mpi, "fabric", "put" | "get" | "cas" | "faa") if all == 2 => {}
            (Peer::Ucx, "fabric", "put" | "get" | "cas" | "faa") if all == 2 => {
                work.program = Program::UCX_RMA;
                if is_over_tcp {
                    work.argument("--tls", "tcp");
                }
            }
            // A client that waits for each reply, and the server.
            (Peer::Redis, "fabric", "put" | "get") if all == 2 && is_over_tcp => {
                work.program = Program::REDIS_KV;
                work.processes = 1;
                let read_percent = if ours.case == "get" { "100" } else { "0" };
                let words = ["--bench", "fabric", "--network", "tcp", "--clients", "1", "--window", "1", "--keys", "1"];
                work.arguments.extend(words.iter().chain(&["--read-percent", read_percent]).map(ToString::to_string));
            }
            // MPI_Barrier moves no data. With puts before it the two would do different work.
            (Peer::Mpi, "barrier", _) if all >= 2 && setup.puts.is_none() => work.program = Program::MPI_BARRIER,
            (Peer::Mpi, "broadcast", "ring") if nodes >= 2 => {
                let size = setup.size.unwrap_or(64);
                if !size.is_multiple_of(8) {
                    return None;
                }
                work.program = Program::MPI_BROADCAST;
                // One thread sends, and those of all other nodes receive.
                work.processes = 1 + (nodes - 1) * threads;
                work.argument("--size", size);
                work.argument("--window", setup.window.unwrap_or(1));
            }
            (Peer::Mpi, "collectives", call) if nodes >= 2 => {
                work.program = Program::MPI_COLLECTIVES;
                work.argument("--call", call);
                work.argument("--size", setup.size.unwrap_or(8));
            }
            (Peer::Mpi, "locks", _) if setup.locks == Some(1) => {
                work.program = Program::MPI_LOCK;
                work.argument("--work-ns", setup.work_ns.unwrap_or(0));
            }
            (Peer::Mpi, "transfers", _) => {
                let accounts = setup.accounts?;
                // A window has a lock on each process.
                let windows = setup.locks.map_or(WINDOWS_MAX, |locks| locks.div_ceil(u64::from(all)));
                work.program = Program::MPI_TRANSFERS;
                work.preparation_s = accounts as f64 / 1e6;
                work.argument("--accounts", accounts);
                work.argument("--windows", windows.clamp(1, WINDOWS_MAX));
            }
            (Peer::Redis, "kv", case) => {
                let read_percent = match case {
                    "a" => 50,
                    "b" => 95,
                    "c" | "get_many" => 100,
                    // A read-modify-write is two requests there, or a script in the server.
                    _ => return None,
                };
                let keys = setup.keys?;
                work.program = Program::REDIS_KV;
                work.preparation_s = keys as f64 / 1e5;
                work.argument("--clients", all);
                work.argument("--window", setup.window.unwrap_or(1));
                work.argument("--keys", keys);
                work.argument("--value-size", setup.size.unwrap_or(8));
                work.argument("--read-percent", read_percent);
                work.argument("--distribution", setup.distribution.as_deref().unwrap_or("uniform"));
                if is_over_tcp {
                    work.argument("--network", "tcp");
                }
            }
            _ => return None,
        }
        work.argument("--seconds", seconds);
        Some(work)
    }

    fn argument(&mut self, name: &str, value: impl ToString) {
        self.arguments.extend([name.to_owned(), value.to_string()]);
    }
}
