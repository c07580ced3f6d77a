//! Each wait for a stopped process ends in a timeout that names it, never early and not much late. Nothing is lost by
//! it, once the process continues.

use std::process::Command;
use std::time::{Duration, Instant};

use farfield::fabric::NodeId;
use farfield::{
    AtomicVar, Barrier, BarrierThread, Endpoint, ErrorKind, KvOptions, KvStore, LockArray, LockGuard, LockKind,
    LockOptions, LockTable, MemberStatus, Mutex, Node, OwnedVar, Queue, QueueOptions, Result, RingBuffer, RingOptions,
};

use crate::session::{STEP_MAX, Session, alone};

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
    crate::session::play(OPENING, |_, node, endpoint| stopped(node, endpoint));
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

fn signal(pid: u64, signal: &str) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().expect("kill").success());
}

fn is_stopped(pid: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
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
