//! Collectives, calls and measured operations allocate no memory, once the endpoint's buffers are there.

use std::alloc::System;

use farfield::{
    Builder, Collectives, CollectivesOptions, KvOptions, KvStore, Mutex, NodeId, Queue, QueueOptions, Result,
    RpcClient, RpcOptions, RpcServer, local_session, local_session_with, on_each,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// In one test: what runs beside it would be counted.
#[test]
fn no_call_allocates() -> Result<()> {
    collectives()?;
    calls()?;
    measured()
}

/// A server on the service thread, and a client. Requests and replies are short ones, of 300 bytes.
fn calls() -> Result<()> {
    let (nodes, options) = (local_session(2)?, RpcOptions::default());
    let _server = RpcServer::<[u64; 40], [u64; 40]>::open_on_service(&nodes[0], "rpc", options, |_, request| request)?;
    let client = RpcClient::<[u64; 40], [u64; 40]>::open(&nodes[1], "rpc", nodes[0].id(), options)?;
    let ep = nodes[1].endpoint()?;
    let mut least = usize::MAX;
    for number in 0..300 {
        let region = Region::new(ALLOCATOR);
        let replies = ep.block_on(async {
            let (mut one, mut two) = (client.begin(&ep, &[number; 40]).await?, client.begin(&ep, &[7; 40]).await?);
            Ok::<_, farfield::Error>((client.call(&ep, &[8; 40]).await?, one.wait().await?, two.wait().await?))
        })?;
        assert_eq!(replies, ([8; 40], [number; 40], [7; 40]));
        least = least.min(region.change().allocations);
    }
    assert_eq!(least, 0);
    Ok(())
}

fn collectives() -> Result<()> {
    // All threads of the process are counted, and what the fabric does when a thread sleeps. So the least of many tries
    // is taken: in it neither member has allocated.
    let nodes = local_session(2)?;
    let allocated = on_each(&nodes, |node| {
        let ep = node.endpoint()?;
        let mut all = Collectives::open(node, "all", CollectivesOptions::default())?;
        let (mut data, mut into) = (vec![1u64; 10_000], vec![0; 20_000]);
        let mut least = usize::MAX;
        ep.block_on(async {
            for _ in 0..300 {
                let region = Region::new(ALLOCATOR);
                all.broadcast(&ep, nodes[0].id(), &mut data).await?;
                all.all_reduce(&ep, &mut data, u64::wrapping_add).await?;
                all.all_gather(&ep, &data, &mut into).await?;
                all.all_to_all(&ep, &data, &mut into[..10_000]).await?;
                all.reduce(&ep, nodes[1].id(), &mut data, u64::wrapping_add).await?;
                all.all_reduce(&ep, &mut data[..1], u64::wrapping_add).await?;
                least = least.min(region.change().allocations);
            }
            Ok(least)
        })
    })?;
    assert_eq!(allocated.iter().min(), Some(&0), "{allocated:?}");
    Ok(())
}

/// Calls of several objects, without and with a measurement of their times.
fn measured() -> Result<()> {
    for latencies in [false, true] {
        let nodes = local_session_with(2, |builder: Builder| builder.latencies(latencies).memory_bytes_max(64 << 20))?;
        let ep = nodes[0].endpoint()?;
        let kvs = on_each(&nodes, |node| KvStore::<u64, u64>::open(node, "kv", KvOptions::default()))?;
        let mutexes = on_each(&nodes, |node| Mutex::open(node, "mutex", NodeId(1)))?;
        let queues = on_each(&nodes, |node| Queue::<u64>::open(node, "queue", QueueOptions::new(NodeId(1), 8)))?;
        ep.block_on(kvs[0].insert(&ep, &1, &1))?;
        let mut least = usize::MAX;
        for _ in 0..300 {
            let region = Region::new(ALLOCATOR);
            ep.block_on(async {
                mutexes[0].lock(&ep).await?.unlock().await?;
                kvs[0].get(&ep, &1).await?;
                kvs[0].update(&ep, &1, &2).await?;
                queues[0].enqueue(&ep, &1).await?;
                queues[0].dequeue(&ep).await
            })?;
            least = least.min(region.change().allocations);
        }
        assert_eq!(least, 0, "latencies are measured: {latencies}");
    }
    Ok(())
}
