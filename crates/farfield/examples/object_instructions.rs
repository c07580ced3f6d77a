//! Loops of uncontended calls of each object, for counting their instructions under callgrind, with
//! `--collect-atstart=no --toggle-collect='*object_instructions::loop_*'`. It prints how often each loop allocates
//! memory. Two nodes are in this process, and one thread makes the calls of both.

use std::alloc::System;
use std::future::{Future, poll_fn};
use std::hint::black_box;
use std::pin::pin;
use std::task::Poll;

use farfield::swarm::SwarmStoreClient;
use farfield::{
    ALockArray, ALockOptions, Barrier, BarrierThread, Endpoint, KvOptions, KvStore, LockArray, LockGuard, LockKind,
    LockOptions, McsLockArray, MutexArray, NodeId, Queue, QueueOptions, Result, RingBuffer, RingOptions, RingReceiver,
    RingSender, RpcClient, RpcOptions, RpcServer, SpinLockArray, SwarmStore, SwarmStoreOptions, TransactionOptions,
    Transactions, local_session_with, on_each,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Calls of each loop.
const LOOPS: u64 = 1000;
/// The keys of the store.
const KEYS: u64 = 100;
/// Those of one `get_many`.
const MANY: usize = 10;

#[inline(never)]
fn loop_mutex(endpoint: &Endpoint, locks: &MutexArray) -> Result<()> {
    endpoint.block_on(async {
        for _ in 0..LOOPS {
            locks.lock(endpoint, black_box(0)).await?.unlock().await?;
        }
        Ok(())
    })
}

#[inline(never)]
fn loop_alock_own(endpoint: &Endpoint, locks: &ALockArray) -> Result<()> {
    lock_and_unlock(endpoint, locks, 0)
}

#[inline(never)]
fn loop_alock_other(endpoint: &Endpoint, locks: &ALockArray) -> Result<()> {
    lock_and_unlock(endpoint, locks, 1)
}

#[inline(never)]
fn loop_spin(endpoint: &Endpoint, locks: &SpinLockArray) -> Result<()> {
    lock_and_unlock(endpoint, locks, 0)
}

#[inline(never)]
fn loop_mcs(endpoint: &Endpoint, locks: &McsLockArray) -> Result<()> {
    lock_and_unlock(endpoint, locks, 0)
}

#[inline(always)]
fn lock_and_unlock(endpoint: &Endpoint, locks: &impl LockArray, index: usize) -> Result<()> {
    endpoint.block_on(async {
        for _ in 0..LOOPS {
            locks.lock(endpoint, black_box(index)).await?.unlock().await?;
        }
        Ok(())
    })
}

#[inline(never)]
fn loop_kv_get(endpoint: &Endpoint, store: &KvStore<u64, u64>) -> Result<u64> {
    endpoint.block_on(async {
        let mut sum = 0;
        for key in 0..LOOPS {
            sum += store.get(endpoint, black_box(&(key % KEYS))).await?.unwrap_or(0);
        }
        Ok(sum)
    })
}

#[inline(never)]
fn loop_kv_get_many(endpoint: &Endpoint, store: &KvStore<u64, u64>) -> Result<u64> {
    let keys: [u64; MANY] = std::array::from_fn(|key| key as u64);
    let mut values = Vec::with_capacity(MANY);
    endpoint.block_on(async {
        let mut sum = 0;
        for _ in 0..LOOPS / MANY as u64 {
            store.get_many(endpoint, black_box(&keys), &mut values).await?;
            sum += values.iter().flatten().flatten().sum::<u64>();
        }
        Ok(sum)
    })
}

#[inline(never)]
fn loop_kv_update(endpoint: &Endpoint, store: &KvStore<u64, u64>) -> Result<()> {
    endpoint.block_on(async {
        for key in 0..LOOPS {
            assert!(store.update(endpoint, black_box(&(key % KEYS)), &key).await?);
        }
        Ok(())
    })
}

#[inline(never)]
fn loop_transfer(endpoint: &Endpoint, cells: &Transactions) -> Result<()> {
    endpoint.block_on(async {
        for _ in 0..LOOPS {
            let named = black_box([1, 3]);
            let mut transfer = cells.begin(endpoint, &named).await?;
            let from = transfer.read(named[0]).await?;
            let to = transfer.read(named[1]).await?;
            transfer.write(named[0], from.wrapping_sub(1))?;
            transfer.write(named[1], to.wrapping_add(1))?;
            transfer.commit().await?;
        }
        Ok(())
    })
}

#[inline(never)]
fn loop_ring(endpoints: [&Endpoint; 2], sender: &mut RingSender, receiver: &mut RingReceiver) -> Result<()> {
    let (message, mut received) = ([7; 64], Vec::with_capacity(64));
    for _ in 0..LOOPS {
        assert!(sender.try_send(endpoints[0], black_box(&message))?);
        assert!(receiver.try_recv(endpoints[1], &mut received)?);
    }
    Ok(())
}

#[inline(never)]
fn loop_queue(endpoint: &Endpoint, queue: &Queue<u64>) -> Result<()> {
    endpoint.block_on(async {
        for value in 0..LOOPS {
            queue.enqueue(endpoint, black_box(&value)).await?;
            assert_eq!(queue.dequeue(endpoint).await?, value);
        }
        Ok(())
    })
}

/// A call of node 0, and what the server does for it on node 1.
#[inline(never)]
fn loop_rpc(endpoints: [&Endpoint; 2], client: &RpcClient<u64, u64>, server: &RpcServer<u64, u64>) -> Result<()> {
    endpoints[0].block_on(async {
        for number in 0..LOOPS {
            let mut call = client.begin(endpoints[0], black_box(&number)).await?;
            assert_eq!(server.try_serve(endpoints[1], |_, request| request + 1)?, 1);
            assert_eq!(call.wait().await?, number + 1);
        }
        Ok(())
    })
}

/// A wait on each node. That of node 0 finds the other missing, and is polled once more when that has arrived.
#[inline(never)]
fn loop_barrier(endpoints: [&Endpoint; 2], threads: &mut [BarrierThread; 2]) -> Result<()> {
    let [first, second] = threads;
    endpoints[0].block_on(async {
        for _ in 0..LOOPS / 2 {
            let mut early = pin!(first.wait(endpoints[0]));
            assert!(poll_fn(|cx| Poll::Ready(early.as_mut().poll(cx).is_pending())).await, "it has passed alone");
            endpoints[1].block_on(second.wait(endpoints[1]))?;
            early.await?;
        }
        Ok(())
    })
}

type Wide = [u64; 8];

#[inline(never)]
fn loop_swarm_get(endpoint: &Endpoint, client: &SwarmStoreClient<'_, u64, Wide>) -> Result<u64> {
    endpoint.block_on(async {
        let mut sum = 0;
        for key in 0..LOOPS {
            sum += client.get(black_box(&(key % KEYS))).await?.unwrap_or_default()[7];
        }
        Ok(sum)
    })
}

#[inline(never)]
fn loop_swarm_update(endpoint: &Endpoint, client: &SwarmStoreClient<'_, u64, Wide>) -> Result<()> {
    endpoint.block_on(async {
        for key in 0..LOOPS {
            assert!(client.update(black_box(&(key % KEYS)), &[key; 8]).await?);
        }
        Ok(())
    })
}

/// Runs the loop of a row, and prints how much it has allocated, and how many puts, gets and atomics these endpoints
/// have posted.
fn row<T>(name: &str, endpoints: &[&Endpoint], run: impl FnOnce() -> Result<T>) -> Result<()> {
    let counts = || endpoints.iter().map(|endpoint| endpoint.counts());
    let before: Vec<_> = counts().collect();
    let region = Region::new(ALLOCATOR);
    black_box(run()?);
    let allocations = region.change().allocations;
    let [mut puts, mut gets, mut atomics] = [0; 3];
    for posted in counts().zip(before).map(|(now, before)| now - before) {
        puts += posted.puts;
        gets += posted.gets;
        atomics += posted.atomics;
    }
    println!("{name} {allocations} {puts} {gets} {atomics}");
    Ok(())
}

fn main() -> Result<()> {
    let nodes = local_session_with(2, |builder| builder.memory_bytes_max(64 << 20))?;
    let endpoints = [nodes[0].endpoint()?, nodes[1].endpoint()?];
    // The calls are made on node 0. Their objects are on node 1, but for the ALock of the own node.
    let (ep, other) = (&endpoints[0], [NodeId(1), NodeId(0)]);
    let both = [ep, &endpoints[1]];
    // With more threads than cores nothing spins: looks are not counted as work of a call.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let _crowd: Vec<Endpoint> = (0..cores).map(|_| nodes[0].endpoint()).collect::<Result<_>>()?;

    let mutexes = on_each(&nodes, |node| MutexArray::open_among(node, "mutex", &other, 1))?;
    row("mutex", &[ep], || loop_mutex(ep, &mutexes[0]))?;
    let alocks = on_each(&nodes, |node| ALockArray::open(node, "alock", 2, ALockOptions::default()))?;
    row("alock_own", &[ep], || loop_alock_own(ep, &alocks[0]))?;
    row("alock_other", &[ep], || loop_alock_other(ep, &alocks[0]))?;
    let spins = on_each(&nodes, |node| SpinLockArray::open_among(node, "spin", &other, 1))?;
    row("spin", &[ep], || loop_spin(ep, &spins[0]))?;
    let queues = on_each(&nodes, |node| McsLockArray::open_among(node, "mcs", &other, 1, 64))?;
    row("mcs", &[ep], || loop_mcs(ep, &queues[0]))?;

    let options = KvOptions { slots_per_node: 200, ..KvOptions::default() };
    let stores = on_each(&nodes, |node| KvStore::<u64, u64>::open(node, "kv", options.clone()))?;
    for key in 0..KEYS {
        endpoints[1].block_on(stores[1].insert(&endpoints[1], &key, &key))?;
    }
    row("kv_get", &[ep], || loop_kv_get(ep, &stores[0]))?;
    row("kv_get_many", &[ep], || loop_kv_get_many(ep, &stores[0]))?;
    row("kv_update", &[ep], || loop_kv_update(ep, &stores[0]))?;

    let options = TransactionOptions { cells: 4, locks: 4, lock: LockOptions::new(LockKind::ALock) };
    let cells = on_each(&nodes, |node| Transactions::open(node, "cells", options))?;
    row("transfer", &[ep], || loop_transfer(ep, &cells[0]))?;

    let options = RingOptions::broadcast(&nodes[0], NodeId(0), 1 << 16);
    let rings = on_each(&nodes, |node| RingBuffer::open(node, "ring", options.clone()))?;
    let (mut sender, mut receiver) = (rings[0].sender()?, rings[1].receiver()?);
    row("ring", &both, || loop_ring(both, &mut sender, &mut receiver))?;
    let queues = on_each(&nodes, |node| Queue::<u64>::open(node, "queue", QueueOptions::new(NodeId(1), 64)))?;
    row("queue", &[ep], || loop_queue(ep, &queues[0]))?;

    let server = RpcServer::open(&nodes[1], "rpc", RpcOptions::default())?;
    let client = RpcClient::open(&nodes[0], "rpc", NodeId(1), RpcOptions::default())?;
    let mut first = ep.block_on(client.begin(ep, &0))?;
    // The server may learn of its client a moment later.
    endpoints[1].block_on(server.serve_next(&endpoints[1], |_, request| request))?;
    ep.block_on(first.wait())?;
    drop(first);
    row("rpc", &both, || loop_rpc(both, &client, &server))?;

    let barriers = on_each(&nodes, |node| Barrier::open(node, "barrier", 1))?;
    let mut threads = [barriers[0].thread()?, barriers[1].thread()?];
    row("barrier", &both, || loop_barrier(both, &mut threads))?;

    // Three memory nodes, and a client on a fourth node.
    let nodes = local_session_with(4, |builder| builder.memory_bytes_max(64 << 20))?;
    let ep = nodes[3].endpoint()?;
    let options = SwarmStoreOptions::default();
    let stores = on_each(&nodes, |node| SwarmStore::<u64, Wide>::open(node, "swarm", options.clone()))?;
    let client = stores[3].client(&ep)?;
    for key in 0..KEYS {
        client.insert_blocking(&key, &[key; 8])?;
    }
    row("swarm_get", &[&ep], || loop_swarm_get(&ep, &client))?;
    row("swarm_update", &[&ep], || loop_swarm_update(&ep, &client))
}
