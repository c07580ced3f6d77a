//! Loops of waited-for 8-byte operations on shared memory, for counting their instructions: run under callgrind by
//! `bench/instructions`, which compares with the committed table.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use farfield_fabric::shm::{ShmFabric, ShmOptions};
use farfield_fabric::{Endpoint, EndpointOptions, Fabric, GroupKey, RemotePtr, Result, Transport};

/// Operations of each loop.
const LOOPS: u64 = 1000;

#[inline(never)]
fn loop_put(endpoint: &Endpoint, word: RemotePtr<u64>) -> Result<()> {
    for value in 0..LOOPS {
        endpoint.put_value(black_box(word), value).wait()?;
    }
    Ok(())
}

#[inline(never)]
fn loop_get(endpoint: &Endpoint, word: RemotePtr<u64>) -> Result<u64> {
    let mut sum = 0u64;
    for _ in 0..LOOPS {
        sum = sum.wrapping_add(endpoint.get(black_box(word)).wait()?);
    }
    Ok(sum)
}

#[inline(never)]
fn loop_cas(endpoint: &Endpoint, word: RemotePtr<u64>) -> Result<()> {
    for value in 0..LOOPS {
        endpoint.cas(black_box(word), value, value + 1).wait()?;
    }
    Ok(())
}

#[inline(never)]
fn loop_faa(endpoint: &Endpoint, word: RemotePtr<u64>) -> Result<()> {
    for _ in 0..LOOPS {
        black_box(endpoint.faa(black_box(word), 1).wait()?);
    }
    Ok(())
}

fn main() -> Result<()> {
    let session = format!("instructions-{}", std::process::id());
    let stop = Arc::new(AtomicBool::new(false));
    let mut nodes = Vec::new();
    for node in 0..2 {
        let mut options = ShmOptions::new(session.clone(), node, 2);
        options.group_bytes_max = 4 << 20;
        let fabric = ShmFabric::join(&options)?;
        let (served, stop) = (Arc::clone(&fabric), Arc::clone(&stop));
        let serve = move || {
            while !stop.load(Ordering::Relaxed) {
                served.serve(Duration::from_millis(1), &mut |_| {});
            }
            served.leave();
        };
        let thread = Transport::spawn_service(Arc::clone(&fabric) as _, "service".into(), Box::new(serve));
        nodes.push((fabric, thread?));
    }
    let region = nodes[1].0.alloc(GroupKey::DATA, 64)?;
    let endpoint = Endpoint::open(Arc::clone(&nodes[0].0) as _, EndpointOptions::default())?;
    let deadline = endpoint.now() + Duration::from_secs(60);
    let connected = || endpoint.get(region.remote::<u64>(0)).wait().is_ok().then_some(());
    endpoint.block_on(endpoint.wait_until(deadline, connected))?;

    loop_put(&endpoint, region.remote(0))?;
    black_box(loop_get(&endpoint, region.remote(8))?);
    loop_cas(&endpoint, region.remote(16))?;
    loop_faa(&endpoint, region.remote(24))?;

    drop(endpoint);
    stop.store(true, Ordering::Relaxed);
    for (_, thread) in nodes {
        thread.join().expect("a service thread ends in good order");
    }
    Ok(())
}
