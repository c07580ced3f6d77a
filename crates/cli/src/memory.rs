//! `farfield memory`: a memory node, which lends memory to replicated registers and stores (SWARM).

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytesize::ByteSize;
use clap::Args;
use farfield::Node;
use farfield::fabric::verbs::VerbsOptions;
use farfield::swarm::MemoryNode;
use farfield_check::cli::exit::{OrUsage, usage};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::launch::{self, FabricChoice};
use crate::run;

/// How soon a signal ends it.
const TICK: Duration = Duration::from_millis(200);

const HELP: &str = "\
One process is one memory node of a session. It lends memory to whichever `SwarmArray`, `SwarmRegister` or `SwarmStore` is
opened with it among the memory nodes, and computes nothing for their calls. What it has lent stays when the clients
have gone, and ends with this process. Three memory nodes survive the death of one, five that of two. One that is started with
--replace at the place of a dead one gets a copy from the others, while clients go on, and takes its place.

The node's place comes from the options, or from the variables that `farfield run`, mpirun and srun set. A session has as
many places as all its memory nodes and all clients that may be there at a time.

Examples:
  farfield memory --size 1GiB --session shop --node 0 --nodes 8        three of these, with --node 0, 1 and 2
  farfield memory --size 1GiB --session shop --node 0 --nodes 8 --replace   when that one has died
  FARFIELD_SESSION=shop FARFIELD_NODE=3 FARFIELD_NODES=8 ./my-client   a client, at any time
  FARFIELD_SECRET_FILE=~/shop.secret farfield memory --size 64GiB --hosts hosts --node 0   between hosts

Ends with status 0 after SIGINT, SIGTERM or SIGHUP, and with 1 if the others have evicted it.";

/// The arguments of `farfield memory`.
#[derive(Args)]
#[command(after_long_help = HELP, after_help = "With examples: --help")]
pub(crate) struct MemoryArgs {
    /// The most memory to lend, as 512MiB or 4GiB
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    size: ByteSize,
    /// The session's name
    #[arg(long, value_name = "NAME", value_parser = run::parse_session)]
    session: Option<String>,
    /// The place of this node in the session, from 0
    #[arg(long, value_name = "N")]
    node: Option<u16>,
    /// How many places the session has
    #[arg(long, value_name = "NODES", value_parser = launch::parse_nodes, conflicts_with = "hosts")]
    nodes: Option<u16>,
    /// Take the place of the memory node that was at this node's place, and has died: for all that is open or is opened
    /// later
    #[arg(long)]
    replace: bool,
    /// Connect the session by RDMA or UCX: a file with all its places, as of `run --hosts`
    ///
    /// A host in each line, with its settings: `HOST [address=IP] [nodes=N] [port=P] [device=NAME,…]`. The secret of
    /// the session is in FARFIELD_SECRET or in the file FARFIELD_SECRET_FILE
    #[arg(long, value_name = "FILE", requires = "node")]
    hosts: Option<PathBuf>,
    /// The fabric that connects the hosts [default: verbs if this one has a device for it, or ucx]
    #[arg(long, value_enum, requires = "hosts")]
    fabric: Option<FabricChoice>,
}

pub(crate) fn main(args: &MemoryArgs) -> Result<ExitCode> {
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ended)).context("cannot handle signals")?;
    }
    let node = start(args)?;
    let memory = MemoryNode::new(&node, args.size.as_u64());
    let memory = if args.replace { memory.replacing() } else { memory };
    let endpoint = node.endpoint()?;
    say(format_args!("{} of {} lends up to {}; Ctrl-C ends it", node.id(), node.nodes(), args.size.display().iec()))?;
    while !ended.load(Ordering::Relaxed) {
        if let Some(lent) = memory.serve(&endpoint, endpoint.now() + TICK)? {
            let size = ByteSize(lent.bytes).display().iec();
            match lent.replaces {
                None => say(format_args!("lends {size} to `{}`", lent.path))?,
                Some(earlier) => say(format_args!("lends {size} to `{}`, in place of {earlier}", lent.path))?,
            }
        }
    }
    drop((memory, endpoint));
    node.leave();
    Ok(ExitCode::SUCCESS)
}

fn start(args: &MemoryArgs) -> Result<Node> {
    let mut builder = Node::builder();
    builder = match (&args.hosts, args.node) {
        (Some(hosts), Some(node)) => {
            let seats = run::seats(hosts).or_usage()?;
            let count = seats.len();
            ensure!(usize::from(node) < count, "--node {node}: {} has {count} places, from 0", hosts.display());
            if let Some(device) = seats[usize::from(node)].1.clone() {
                builder = builder.device(VerbsOptions { device: Some(device), ..VerbsOptions::default() });
            }
            let addresses: Vec<SocketAddr> = seats.into_iter().map(|(address, _)| address).collect();
            // The environment has the secret, and perhaps the fabric. The places are those of the file.
            builder.hosts(addresses.clone()).over_rdma_or_ucx().environment()?.hosts(addresses)
        }
        _ => builder.environment()?,
    };
    match args.fabric {
        None => {}
        Some(FabricChoice::Verbs) => builder = builder.over_rdma(),
        Some(FabricChoice::Ucx) => builder = builder.over_ucx(),
        Some(FabricChoice::Shm) => return Err(usage("--fabric shm: it connects the nodes of one host")),
    }
    if let Some(session) = &args.session {
        builder = builder.session(session);
    }
    if let Some(nodes) = args.nodes {
        builder = builder.nodes(nodes);
    }
    if let Some(node) = args.node {
        builder = builder.node(node);
    }
    Ok(builder.start()?)
}

/// One line, which a program that reads it gets at once.
fn say(what: std::fmt::Arguments<'_>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{what}")?;
    out.flush()
}
