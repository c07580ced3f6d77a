//! `farfield bench fabric`: the time of one waited-for operation to another process.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use farfield::fabric::verbs::VerbsFabric;
use farfield::fabric::{GroupKey, RemotePtr, Verb};
use farfield::toolkit::ObjectBuilder;
use farfield::{Barrier, Endpoint, Node};
use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};

use super::worker::{self, Workers};
use crate::launch::FabricChoice;
use crate::output;

/// Time waited-for 8-byte put, get, cas and faa to another process, one after the other.
#[derive(Args)]
pub(crate) struct FabricArgs {
    /// The fabric that connects the processes
    #[arg(long, value_enum, default_value_t)]
    fabric: FabricChoice,
    /// Operations of each kind in a batch
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(1..))]
    iterations: u32,
    /// Batches; the medians over them are printed
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    batches: u32,
    /// Append the result as a line of JSON to this file, or `-` for standard output
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Medians in nanoseconds.
#[derive(Serialize, Deserialize)]
struct Times {
    fabric: String,
    put_ns: f64,
    get_ns: f64,
    cas_ns: f64,
    faa_ns: f64,
    handoff_ns: Option<f64>,
    /// The same by bare posting and polling, on RDMA: put, get, cas, faa.
    bare_ns: Option<[f64; 4]>,
}

pub(crate) fn main(args: &FabricArgs) -> Result<()> {
    if let Some(()) = worker::plan()? {
        return serve(args);
    }
    let handoff_ns = super::handoff::handoff_ns();
    let mut times: Option<Times> = None;
    Workers::start(2, args.fabric, &())?.run(Duration::from_secs(120), &ProgressBar::hidden(), |_, _, more| {
        times = Some(serde_json::from_str(more)?);
        Ok(())
    })?;
    let times = Times { handoff_ns, ..times.context("no result came")? };
    output::json(args.json.as_deref(), &mut io::stdout().lock(), &times)?;
    eprintln!("waited-for operations of 8 bytes to another process on {}, ns", times.fabric);
    let all = [("put", times.put_ns), ("get", times.get_ns), ("cas", times.cas_ns), ("faa", times.faa_ns)];
    for (at, (name, ns)) in all.into_iter().enumerate() {
        match times.bare_ns {
            Some(bare) => {
                eprintln!("  {name}  {ns:8.1}  bare post and poll {:8.1}  ratio {:.2}", bare[at], ns / bare[at])
            }
            None => eprintln!("  {name}  {ns:6.1}"),
        }
    }
    if let Some(handoff) = times.handoff_ns {
        eprintln!("  (a cache line's way to the other core: {handoff:.0})");
    }
    Ok(())
}

fn serve(args: &FabricArgs) -> Result<()> {
    let node = Node::from_environment()?;
    node.wait_for_all(Duration::from_secs(30))?;
    let memory = node.alloc(GroupKey::DATA, 64)?;
    let cell = ObjectBuilder::new(&node, "bench/cell", "BenchCell").region("cell", memory).announce()?;
    cell.wait(node.timeout())?;
    let barrier = Barrier::open(&node, "bench/end", 1)?;
    let (mut end, endpoint) = (barrier.thread()?, node.endpoint()?);
    if node.id().0 == 0 {
        let peer = node.others().next().context("two nodes")?;
        let word: RemotePtr<u64> = cell.remote(peer, "cell")?;
        let bare_ns = bare(args, &node, word)?;
        let measure = |operation: fn(&Endpoint, RemotePtr<u64>, u32) -> Result<()>| {
            median(args, || operation(&endpoint, word, args.iterations))
        };
        let times = Times {
            fabric: node.fabric().name(),
            put_ns: measure(put)?,
            get_ns: measure(get)?,
            cas_ns: measure(cas)?,
            faa_ns: measure(faa)?,
            handoff_ns: None,
            bare_ns,
        };
        worker::say("times", &times)?;
    }
    worker::meet(&endpoint, &mut end)
}

/// Median over batches of the time of one of a batch's operations.
fn median(args: &FabricArgs, mut batch: impl FnMut() -> Result<()>) -> Result<f64> {
    batch()?; // warm
    let mut times = Vec::new();
    for _ in 0..args.batches {
        let start = Instant::now();
        batch()?;
        times.push(start.elapsed().as_nanos() as f64 / f64::from(args.iterations));
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// The same without the fabric, where there are queue pairs.
fn bare(args: &FabricArgs, node: &Node, word: RemotePtr<u64>) -> Result<Option<[f64; 4]>> {
    let fabric: &dyn std::any::Any = &**node.transport();
    let Some(fabric) = fabric.downcast_ref::<VerbsFabric>() else { return Ok(None) };
    let mut bare = fabric.bare(word)?;
    let mut times = [0.0; 4];
    for (time, verb) in times.iter_mut().zip([Verb::Put, Verb::Get, Verb::Cas, Verb::Faa]) {
        *time = median(args, || {
            for value in 0..u64::from(args.iterations) {
                let done = bare.run(verb, [value, value + 1]);
                std::hint::black_box(done.map_err(|code| anyhow::anyhow!("a bare {verb:?} has failed: {code:?}"))?);
            }
            Ok(())
        })?;
    }
    Ok(Some(times))
}

fn put(endpoint: &Endpoint, word: RemotePtr<u64>, iterations: u32) -> Result<()> {
    for value in 0..iterations {
        endpoint.put_value(word, u64::from(value)).wait()?;
    }
    Ok(())
}

fn get(endpoint: &Endpoint, word: RemotePtr<u64>, iterations: u32) -> Result<()> {
    for _ in 0..iterations {
        std::hint::black_box(endpoint.get(word).wait()?);
    }
    Ok(())
}

fn cas(endpoint: &Endpoint, word: RemotePtr<u64>, iterations: u32) -> Result<()> {
    let first = endpoint.get(word).wait()?;
    for seen in first..first + u64::from(iterations) {
        endpoint.cas(word, seen, seen + 1).wait()?;
    }
    Ok(())
}

fn faa(endpoint: &Endpoint, word: RemotePtr<u64>, iterations: u32) -> Result<()> {
    for _ in 0..iterations {
        std::hint::black_box(endpoint.faa(word, 1).wait()?);
    }
    Ok(())
}
