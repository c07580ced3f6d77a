//! Each wait for a stopped process ends in a timeout that names it, never early and not much late. Nothing is lost by
//! it, once the process continues.

use std::time::{Duration, Instant};

use farfield::fabric::NodeId;
use farfield::swarm::SwarmStoreClient;
use farfield::{
    AtomicVar, Barrier, BarrierThread, Endpoint, ErrorKind, KvOptions, KvStore, LockArray, LockGuard, LockKind,
    LockOptions, LockTable, MemberStatus, Mutex, Node, OwnedVar, Queue, QueueOptions, Result, RingBuffer, RingOptions,
    SwarmStore, SwarmStoreOptions,
};

use crate::session::{STEP_MAX, Session, alone, is_stopped, signal};

/// What calls wait for, and what opening an object does.
const TIMEOUT: Duration = Duration::from_millis(200);
const OPENING: Duration = Duration::from_secs(2);
/// The one that is stopped.
const STOPPED: NodeId = NodeId(1);

#[test]
fn a_call_that_waits_for_a_stopped_process_fails_in_time() {
    let _cores = alone();
    Session::start_alone(module_path!(), "stopped", 3).end(0..3);
}

/// Two of three memory nodes are stopped, and both have clients. Only a change that needs their answers waits.
#[test]
fn replicated_memory_waits_for_stopped_clients_only() {
    let _cores = alone();
    Session::start_alone(module_path!(), "memory", 3).end(0..3);
}

/// Only one of two reopens: its error names the other, and its open object stays as it was.
#[test]
fn a_node_that_does_not_reopen_is_named_and_nothing_changes() -> Result<()> {
    let _cores = alone();
    let nodes = farfield::local_session_with(2, |builder| builder.timeout(TIMEOUT))?;
    let locks = farfield::on_each(&nodes, |node| Mutex::open(node, "lock", NodeId(1)))?;
    let reopen = |node: &Node| node.reopen("lock", |again| Mutex::open(node, again.path(), again.home(NodeId(1))));
    times_out(TIMEOUT, &[NodeId(1)], || reopen(&nodes[0]));
    let endpoint = nodes[0].endpoint()?;
    let guard = endpoint.block_on(locks[0].lock(&endpoint))?;
    assert!(!guard.is_poisoned());
    endpoint.block_on(guard.unlock())?;

    // Neither the failed attempt nor the open object is an obstacle.
    let new = farfield::on_each(&nodes, reopen)?;
    assert!(endpoint.block_on(new[0].lock(&endpoint))?.is_poisoned());
    let told = endpoint.block_on(locks[0].lock(&endpoint)).map(drop).expect_err("an old handle");
    assert!(matches!(told.kind(), ErrorKind::Reopened { .. }), "{told}");
    Ok(())
}

/// Every kind of lock is free when it was reopened, and warns holders until one has repaired the data that it
/// protects.
#[test]
fn reopened_locks_of_every_kind_are_marked() -> Result<()> {
    let nodes = farfield::local_session(2)?;
    for kind in [LockKind::ALock, LockKind::Spin, LockKind::Mcs, LockKind::Mutex] {
        let options = || LockOptions::new(kind);
        let path = format!("locks/{kind}");
        let locks = farfield::on_each(&nodes, |node| {
            node.reopen(&path, |again| LockTable::open(node, again.path(), 3, options()))
        })?;
        let endpoint = nodes[0].endpoint()?;
        endpoint.block_on(async {
            for index in 0..3 {
                let mut guard = locks[0].lock(&endpoint, index).await?;
                assert!(guard.is_poisoned(), "lock {index} of kind {kind}");
                guard.clear_poison();
                guard.unlock().await?;
                let guard = locks[0].lock(&endpoint, index).await?;
                assert!(!guard.is_poisoned(), "lock {index} of kind {kind}, repaired");
                guard.unlock().await?;
            }
            Ok::<_, farfield::Error>(())
        })?;
    }
    Ok(())
}

/// Not a test: the work of a child process.
#[test]
fn node_process() {
    crate::session::play(OPENING, |role, node, endpoint| match role {
        "stopped" => stopped(node, endpoint),
        "memory" => memory(node, endpoint),
        role => panic!("no role {role}"),
    });
}

/// Makes a call that cannot be done while the other is stopped.
#[track_caller]
fn times_out<T>(timeout: Duration, missing: &[NodeId], call: impl FnOnce() -> Result<T>) {
    let start = Instant::now();
    let Err(error) = call() else { panic!("it has waited for nobody") };
    let elapsed = start.elapsed();
    let ErrorKind::Timeout { missing: named, waited, .. } = error.kind() else { panic!("{error:?}") };
    assert_eq!(named, missing, "{error}");
    assert!(error.object().is_some(), "it names the object: {error}");
    assert!((timeout..timeout * 10).contains(&elapsed), "{error}: after {elapsed:?}");
    // The reported time is counted from the first look.
    assert!((timeout.mul_f64(0.9)..=elapsed).contains(waited), "{error}: after {elapsed:?}");
}

const MESSAGES: u64 = 50;
/// The longest time until it continues.
const GOING_ON: Duration = Duration::from_secs(20);

struct Objects {
    lock: Mutex,
    /// From node 0 to the one that is stopped, and back. The third has no part in them.
    rings: Option<[RingBuffer; 2]>,
    queue: Queue<u64>,
    store: KvStore<u64, u64>,
    /// Of the one that is stopped.
    pid: AtomicVar,
    owned: OwnedVar<[u64; 4]>,
}

impl Objects {
    fn open(node: &Node) -> Result<Objects> {
        let ring = |path, writer, reader| RingBuffer::open(node, path, RingOptions::new(writer, [(reader, 1)], 256));
        let rings = || -> Result<_> { Ok([ring("down", NodeId(0), STOPPED)?, ring("up", STOPPED, NodeId(0))?]) };
        Ok(Objects {
            lock: Mutex::open(node, "lock", NodeId(2))?,
            rings: (node.id() != NodeId(2)).then(rings).transpose()?,
            queue: Queue::open(node, "queue", QueueOptions::new(NodeId(0), 4))?,
            store: KvStore::open(node, "store", KvOptions { locks: 64, ..KvOptions::default() })?,
            pid: AtomicVar::open(node, "pid", NodeId(2))?,
            owned: OwnedVar::open(node, "owned", STOPPED)?,
        })
    }
}

fn stopped(node: &Node, endpoint: &Endpoint) -> Result<()> {
    let barrier = Barrier::open(node, "barrier", 1)?;
    let objects = Objects::open(node)?;
    let mut part = barrier.thread()?;
    match node.id() {
        NodeId(0) => {
            endpoint.block_on(objects.store.insert(endpoint, &7, &1))?;
            endpoint.block_on(part.wait(endpoint))?;
            waits(node, endpoint, &objects, &mut part)?;
        }
        STOPPED => {
            let mut writer = objects.owned.writer()?;
            writer.store([9; 4]);
            endpoint.block_on(writer.push(endpoint))?;
            endpoint.block_on(part.wait(endpoint))?;
            is_stopped_meanwhile(endpoint, &objects)?;
            endpoint.block_on(part.wait(endpoint))?;
        }
        _ => {
            endpoint.block_on(part.wait(endpoint))?;
            endpoint.set_timeout(GOING_ON);
            endpoint.block_on(part.wait(endpoint))?;
        }
    }
    // Node 0 had arrived in the round before when it gave up waiting.
    endpoint.block_on(part.wait(endpoint))?;
    assert_eq!(endpoint.block_on(objects.store.get(endpoint, &8))?, Some(4));
    endpoint.block_on(part.wait(endpoint))
}

fn is_stopped_meanwhile(endpoint: &Endpoint, objects: &Objects) -> Result<()> {
    let guard = endpoint.block_on(objects.lock.lock(endpoint))?;
    // In the middle of a change of the store.
    let change = |value: Option<&u64>| {
        let me = u64::from(std::process::id());
        endpoint.block_on(objects.pid.store(endpoint, me)).expect("its home lives");
        signal(me, "-STOP");
        // Until another of its threads has taken the signal, this one would continue.
        endpoint.block_on(objects.pid.wait_change(endpoint, me, endpoint.now() + STEP_MAX)).expect("it goes on");
        value.map(|value| value + 1)
    };
    assert_eq!(endpoint.block_on(objects.store.modify(endpoint, &7, change))?, Some(1));
    endpoint.block_on(guard.unlock())?;
    endpoint.set_timeout(GOING_ON);
    let [down, up] = objects.rings.as_ref().expect("it has a part in them");
    let (mut receiver, mut bytes) = (down.receiver()?, Vec::new());
    for number in 0..MESSAGES {
        endpoint.block_on(receiver.recv(endpoint, &mut bytes))?;
        assert_eq!(bytes, number.to_le_bytes());
    }
    endpoint.block_on(up.sender()?.send(endpoint, b"on"))
}

fn waits(node: &Node, endpoint: &Endpoint, objects: &Objects, part: &mut BarrierThread) -> Result<()> {
    let Objects { lock, rings, queue, store, pid, owned } = objects;
    let stopped = endpoint.block_on(pid.wait_change(endpoint, 0, endpoint.now() + STEP_MAX))?;
    while !is_stopped(stopped) {
        std::thread::yield_now();
    }
    let between_us = RingOptions::new(NodeId(0), [(STOPPED, 1)], 256);
    times_out(OPENING, &[STOPPED], || RingBuffer::open(node, "late", between_us));
    endpoint.set_timeout(TIMEOUT);
    times_out(TIMEOUT, &[STOPPED], || endpoint.block_on(lock.lock(endpoint)));
    assert!(endpoint.block_on(lock.try_lock(endpoint))?.is_none());
    for value in 0..4 {
        endpoint.block_on(queue.enqueue(endpoint, &value))?;
    }
    // Any node may make room in it, and none does.
    times_out(TIMEOUT, &[], || endpoint.block_on(queue.enqueue(endpoint, &4)));
    for value in 0..4 {
        assert_eq!(endpoint.block_on(queue.dequeue(endpoint))?, value);
    }
    times_out(TIMEOUT, &[], || endpoint.block_on(queue.dequeue(endpoint)));
    // It holds the key's lock; and it takes no note of new keys.
    assert_eq!(endpoint.block_on(store.get(endpoint, &7))?, Some(1));
    times_out(TIMEOUT, &[STOPPED], || endpoint.block_on(store.update(endpoint, &7, &5)));
    times_out(TIMEOUT, &[STOPPED], || endpoint.block_on(store.insert(endpoint, &8, &4)));
    times_out(TIMEOUT, &[], || endpoint.block_on(pid.wait_change(endpoint, stopped, endpoint.deadline())));
    // One-sided reads need no other node.
    assert_eq!(endpoint.block_on(owned.pull(endpoint))?, [9; 4]);
    let [down, up] = rings.as_ref().expect("it has a part in them");
    let (mut receiver, mut bytes) = (up.receiver()?, Vec::new());
    times_out(TIMEOUT, &[STOPPED], || endpoint.block_on(receiver.recv(endpoint, &mut bytes)));
    let (mut sender, mut sent) = (down.sender()?, 0u64);
    while sender.try_send(endpoint, &sent.to_le_bytes())? {
        sent += 1;
    }
    times_out(TIMEOUT, &[STOPPED], || endpoint.block_on(sender.send(endpoint, &sent.to_le_bytes())));
    times_out(TIMEOUT, &[STOPPED], || endpoint.block_on(part.wait(endpoint)));
    assert_eq!(node.status_of(STOPPED), Some(MemberStatus::Member), "stopped is not dead");

    // Nothing is lost.
    endpoint.block_on(pid.store(endpoint, 0))?;
    signal(stopped, "-CONT");
    endpoint.set_timeout(GOING_ON);
    for number in sent..MESSAGES {
        endpoint.block_on(sender.send(endpoint, &number.to_le_bytes()))?;
    }
    endpoint.block_on(receiver.recv(endpoint, &mut bytes))?;
    assert_eq!(bytes, b"on");
    let guard = endpoint.block_on(lock.lock(endpoint))?;
    assert!(!guard.is_poisoned());
    endpoint.block_on(guard.unlock())?;
    assert_eq!(endpoint.block_on(store.get(endpoint, &7))?, Some(2));
    assert!(endpoint.block_on(store.update(endpoint, &7, &3))?);
    // The insert that was cut short is undone by the service thread; then it can be done.
    assert!(endpoint.block_on(store.insert(endpoint, &8, &4))?);
    endpoint.block_on(part.retry_wait(endpoint, endpoint.deadline()))
}

/// Spare buffers of a client of replicated memory.
const SPARE: u64 = 8;
/// The updates when the stopped processes continue. They use all buffers several times.
const UPDATES: u64 = 100;

fn memory(node: &Node, endpoint: &Endpoint) -> Result<()> {
    let open = |path: &str, clients: Vec<NodeId>| {
        let mut options = SwarmStoreOptions::default();
        options.keys = 8;
        (options.replicas.spare_buffers, options.replicas.clients) = (SPARE as usize, clients);
        SwarmStore::<u64, u64>::open(node, path, options)
    };
    // Of the second one, the other nodes only lend the memory.
    let (store, lent) = (open("store", Vec::new())?, open("lent", vec![NodeId(0)])?);
    let pid = |other: u16| AtomicVar::open(node, &format!("pid/{other}"), NodeId(0));
    let pids = [pid(1)?, pid(2)?];
    let mut part = Barrier::open(node, "barrier", 1)?.thread()?;
    let (client, me) = (store.client(endpoint)?, u64::from(node.id().0));
    assert!(client.insert_blocking(&me, &me)?);
    endpoint.block_on(part.wait(endpoint))?;
    endpoint.set_timeout(GOING_ON);
    match node.id() {
        NodeId(0) => {
            let lender = lent.client(endpoint)?;
            most_are_stopped(endpoint, &client, &lender, &pids)?;
        }
        // It is stopped from here on.
        NodeId(other) => {
            let pid = u64::from(std::process::id());
            endpoint.block_on(pids[usize::from(other) - 1].store(endpoint, pid))?;
        }
    }
    endpoint.block_on(part.wait(endpoint))?;
    for (key, value) in [(0, UPDATES), (1, 1), (2, 2)] {
        assert_eq!(client.get_blocking(&key)?, Some(value), "key {key}");
    }
    endpoint.block_on(part.wait(endpoint))
}

/// The calls of node 0: on a store with clients on all nodes, and on one with memory there and no clients.
fn most_are_stopped(
    endpoint: &Endpoint,
    client: &SwarmStoreClient<'_, u64, u64>,
    lender: &SwarmStoreClient<'_, u64, u64>,
    pids: &[AtomicVar; 2],
) -> Result<()> {
    let mut stopped = Vec::new();
    for pid in pids {
        stopped.push(endpoint.block_on(pid.wait_change(endpoint, 0, endpoint.now() + STEP_MAX))?);
    }
    for pid in &stopped {
        signal(*pid, "-STOP");
        while !is_stopped(*pid) {
            std::thread::yield_now();
        }
    }
    endpoint.set_timeout(TIMEOUT);
    // Their memory is there, and they are asked for nothing.
    for value in 0..10 * SPARE {
        lender.upsert_blocking(&7, &value)?;
        assert_eq!(lender.get_blocking(&7)?, Some(value));
    }
    // A change needs a buffer. Those that were replaced come back when all nodes with clients have answered.
    let mut last = 0;
    let error = loop {
        match client.update_blocking(&0, &(last + 1)) {
            Ok(is_there) => assert!(is_there),
            Err(error) => break error,
        }
        last += 1;
    };
    assert!(error.is_timeout() && last >= SPARE, "after {last} updates: {error}");
    times_out(TIMEOUT, &[NodeId(1), NodeId(2)], || client.update_blocking(&0, &(last + 1)));
    // A get needs none.
    for (key, value) in [(0, last), (1, 1), (2, 2)] {
        assert_eq!(client.get_blocking(&key)?, Some(value), "key {key}");
    }
    for pid in stopped {
        signal(pid, "-CONT");
    }
    endpoint.set_timeout(GOING_ON);
    for value in 1..=UPDATES {
        assert!(client.update_blocking(&0, &value)?);
    }
    Ok(())
}
