//! What a node says of itself: the calls of its objects, counted and timed if it is told to.

#![allow(clippy::disallowed_methods, reason = "a test measures from outside the fabric")]

use std::time::Duration;

use farfield::toolkit::ObjectBuilder;
use farfield::{
    ALockArray, ALockOptions, AtomicVar, Barrier, CallCounts, Endpoint, ErrorKind, KvOptions, KvStore, LockArray,
    LockGuard, LockKind, LockOptions, McsLockArray, Metrics, Mutex, MutexArray, Node, NodeId, OwnedVar, Queue,
    QueueOptions, Result, RingBuffer, RingOptions, SharedVar, SpinLockArray, SwarmArray, SwarmOptions, SwarmStore,
    SwarmStoreOptions, TransactionOptions, Transactions, local_session, local_session_with, on_each,
};

fn measured(nodes: usize) -> Vec<Node> {
    local_session_with(nodes, |builder| builder.latencies(true).memory_bytes_max(64 << 20)).unwrap()
}

/// The calls of an object, each as `name: times, errors, timeouts`.
fn calls(metrics: &Metrics, path: &str) -> String {
    let of_path = metrics.objects.iter().filter(|object| object.path == path).flat_map(|object| &object.calls);
    let text = |(name, counts): &(&str, CallCounts)| {
        format!("{name}: {}, {}, {}", counts.latencies.count(), counts.errors, counts.timeouts)
    };
    of_path.map(text).collect::<Vec<_>>().join("; ")
}

#[test]
fn calls_are_counted_by_object_and_name() {
    let nodes = measured(2);
    let [near, far] = [&nodes[0], &nodes[1]];
    let (ep, other) = (near.endpoint().unwrap(), far.endpoint().unwrap());
    let kvs = on_each(&nodes, |node| KvStore::<u64, u64>::open(node, "kv", KvOptions::default())).unwrap();
    let kv = &kvs[0];
    ep.block_on(async {
        for key in 0..3 {
            assert!(kv.insert(&ep, &key, &1).await?);
        }
        kv.upsert(&ep, &0, &2).await?;
        kv.modify(&ep, &0, |value| value.map(|value| value + 1)).await?;
        for _ in 0..5 {
            assert_eq!(kv.get(&ep, &0).await?, Some(3));
        }
        kv.get_many(&ep, &[0, 1, 9], &mut Vec::new()).await?;
        kv.update(&ep, &1, &5).await?;
        kv.update(&ep, &7, &5).await?;
        kv.delete(&ep, &1).await?;
        Result::<()>::Ok(())
    })
    .unwrap();
    assert_eq!(other.block_on(kvs[1].get(&other, &0)).unwrap(), Some(3));
    let seen = near.metrics();
    let expected = "get: 5, 0, 0; get_many: 1, 0, 0; insert: 3, 0, 0; update: 2, 0, 0; upsert: 1, 0, 0; modify: 1, 0, 0; delete: 1, 0, 0";
    assert_eq!(calls(&seen, "kv"), expected);
    assert_eq!(calls(&far.metrics(), "kv"), "get: 1, 0, 0", "each node counts its own");
    assert_eq!(calls(&seen, "kv/locks"), "lock: 8, 0, 0", "a part of another object is an object");
    assert_eq!(calls(&seen, "kv/tracker/0"), "", "what the service threads send each other is no call");
    let open: Vec<(&str, &str)> = seen.objects.iter().map(|object| (&*object.path, object.kind)).collect();
    assert_eq!(open[..2], [("kv", "KvStore"), ("kv/locks", "MutexArray")]);
    assert_eq!(seen.objects.iter().map(|object| object.memory_bytes).sum::<u64>(), seen.memory_bytes);

    let vars = on_each(&nodes, |node| AtomicVar::open(node, "atomic", NodeId(1))).unwrap();
    ep.block_on(async {
        vars[0].load(&ep).await?;
        vars[0].fetch_add(&ep, 1).await?;
        let _ = vars[0].compare_exchange(&ep, 1, 2).await?;
        vars[0].swap(&ep, 3).await?;
        vars[0].store(&ep, 4).await?;
        vars[0].wait_change(&ep, 3, ep.deadline()).await
    })
    .unwrap();
    let names = ["load", "fetch_add", "compare_exchange", "swap", "store", "wait_change"];
    assert_eq!(calls(&near.metrics(), "atomic"), names.map(|name| format!("{name}: 1, 0, 0")).join("; "));

    let shared = on_each(&nodes, |node| SharedVar::<u64>::open(node, "shared")).unwrap();
    let owned = on_each(&nodes, |node| OwnedVar::<[u64; 4]>::open(node, "owned", NodeId(0))).unwrap();
    ep.block_on(async {
        shared[0].push(&ep, [NodeId(1)]).await?;
        shared[0].push_all(&ep).await?;
        shared[0].fence(&ep, [NodeId(1)]).await?;
        shared[0].pull(&ep, NodeId(1)).await?;
        owned[0].writer()?.push(&ep).await
    })
    .unwrap();
    other.block_on(owned[1].pull(&other)).unwrap();
    assert_eq!(calls(&near.metrics(), "shared"), "push: 2, 0, 0; pull: 1, 0, 0; fence: 1, 0, 0");
    assert_eq!(calls(&near.metrics(), "owned"), "push: 1, 0, 0");
    assert_eq!(calls(&far.metrics(), "owned"), "pull: 1, 0, 0");
}

#[test]
fn waits_are_measured_with_their_errors() {
    let nodes = measured(2);
    let (ep, other) = (nodes[0].endpoint().unwrap(), nodes[1].endpoint().unwrap());
    let soon = || ep.now() + Duration::from_millis(20);

    let queues = on_each(&nodes, |node| Queue::<u64>::open(node, "queue", QueueOptions::new(NodeId(0), 1))).unwrap();
    let queue = &queues[0];
    ep.block_on(async {
        queue.enqueue(&ep, &1).await?;
        assert!(!queue.try_enqueue(&ep, &1).await?);
        assert!(queue.enqueue_deadline(&ep, &1, soon()).await.is_err_and(|error| error.is_timeout()));
        assert!(queue.enqueue_batch(&ep, &[1; 100]).await.is_err());
        queue.dequeue(&ep).await?;
        assert_eq!(queue.try_dequeue(&ep).await?, None);
        Result::<()>::Ok(())
    })
    .unwrap();
    let seen = nodes[0].metrics();
    let expected = "enqueue: 3, 1, 1; try_enqueue: 1, 0, 0; dequeue: 1, 0, 0; try_dequeue: 1, 0, 0";
    assert_eq!(calls(&seen, "queue"), expected);
    let enqueue = &seen.call("queue", "enqueue").unwrap().latencies;
    assert!(enqueue.quantile(1.0) >= Duration::from_millis(20) && enqueue.quantile(0.5) < Duration::from_millis(20));
    assert!(
        enqueue.sum() >= Duration::from_millis(20) && enqueue.sum() < Duration::from_secs(5),
        "{:?}",
        enqueue.sum()
    );

    let locks = on_each(&nodes, |node| MutexArray::open(node, "locks", 4)).unwrap();
    let held = other.block_on(locks[1].lock(&other, 2)).unwrap();
    ep.block_on(async {
        assert!(locks[0].try_lock(&ep, 2).await?.is_none());
        assert!(locks[0].lock_deadline(&ep, 2, soon()).await.is_err_and(|error| error.is_timeout()));
        locks[0].lock(&ep, 1).await?.unlock().await
    })
    .unwrap();
    drop(held);
    assert_eq!(calls(&nodes[0].metrics(), "locks"), "lock: 2, 0, 1; try_lock: 1, 0, 0");

    let options = RingOptions::new(NodeId(0), [(NodeId(1), 1)], 256);
    let rings = on_each(&nodes, |node| RingBuffer::open(node, "ring", options.clone())).unwrap();
    let (mut sender, mut receiver, mut message) =
        (rings[0].sender().unwrap(), rings[1].receiver().unwrap(), Vec::new());
    assert!(!receiver.try_recv(&other, &mut message).unwrap());
    ep.block_on(sender.send(&ep, b"one")).unwrap();
    assert!(sender.try_send(&ep, b"two").unwrap());
    assert!(ep.block_on(sender.send(&ep, &[0; 1000])).is_err(), "it is too long");
    other.block_on(receiver.recv(&other, &mut message)).unwrap();
    assert!(receiver.try_recv(&other, &mut message).unwrap());
    assert_eq!(calls(&nodes[0].metrics(), "ring"), "send: 2, 1, 0; try_send: 1, 0, 0");
    assert_eq!(calls(&nodes[1].metrics(), "ring"), "recv: 1, 0, 0; try_recv: 1, 0, 0", "a look in vain is no call");

    let barriers = on_each(&nodes, |node| Barrier::open(node, "barrier", 1)).unwrap();
    let meet = |barrier: &Barrier, ep: &Endpoint, pause: u64| {
        let mut thread = barrier.thread().unwrap();
        std::thread::sleep(Duration::from_millis(pause));
        ep.block_on(async {
            thread.wait(ep).await?;
            thread.wait_unfenced(ep).await
        })
        .unwrap();
    };
    std::thread::scope(|scope| {
        let (late, barrier) = (other, &barriers[1]);
        scope.spawn(move || meet(barrier, &late, 30));
        meet(&barriers[0], &ep, 0);
    });
    let seen = nodes[0].metrics();
    assert_eq!(calls(&seen, "barrier"), "wait: 1, 0, 0; wait_unfenced: 1, 0, 0");
    let never = on_each(&nodes, |node| Barrier::open(node, "never", 1)).unwrap();
    assert!(ep.block_on(never[0].thread().unwrap().wait_deadline(&ep, soon())).is_err());
    assert_eq!(calls(&nodes[0].metrics(), "never"), "wait: 1, 0, 1");
    let wait = &seen.call("barrier", "wait").unwrap().latencies;
    assert!(
        wait.quantile(1.0) >= Duration::from_millis(25),
        "it waited for the other thread: {:?}",
        wait.quantile(1.0)
    );
}

#[test]
fn locks_of_all_kinds_and_transactions_are_measured() {
    let nodes = measured(2);
    let (ep, other) = (nodes[0].endpoint().unwrap(), nodes[1].endpoint().unwrap());
    fn each<L: LockArray>(kind: &str, locks: [&L; 2], nodes: &[Node], ep: &Endpoint, other: &Endpoint) {
        for index in [0, 1] {
            let held = other.block_on(locks[1].lock(other, index)).unwrap();
            assert!(ep.block_on(locks[0].try_lock(ep, index)).unwrap().is_none(), "{kind}");
            let soon = ep.now() + Duration::from_millis(5);
            assert!(ep.block_on(locks[0].lock_deadline(ep, index, soon)).is_err(), "{kind}");
            other.block_on(held.unlock()).unwrap();
            ep.block_on(async { locks[0].lock(ep, index).await?.unlock().await }).unwrap();
        }
        assert_eq!(calls(&nodes[0].metrics(), kind), "lock: 4, 0, 2; try_lock: 2, 0, 0", "{kind}");
    }
    let spins = on_each(&nodes, |node| SpinLockArray::open(node, "spin", 2)).unwrap();
    each("spin", [&spins[0], &spins[1]], &nodes, &ep, &other);
    let alocks = on_each(&nodes, |node| ALockArray::open(node, "alock", 2, ALockOptions::default())).unwrap();
    each("alock", [&alocks[0], &alocks[1]], &nodes, &ep, &other);
    let both = [NodeId(0), NodeId(1)];
    let queues = on_each(&nodes, |node| McsLockArray::open_among(node, "mcs", &both, 2, 64)).unwrap();
    each("mcs", [&queues[0], &queues[1]], &nodes, &ep, &other);

    let options = TransactionOptions { cells: 4, locks: 4, lock: LockOptions::new(LockKind::ALock) };
    let cells = on_each(&nodes, |node| Transactions::open(node, "cells", options)).unwrap();
    ep.block_on(async {
        let mut transfer = cells[0].begin(&ep, &[0, 1]).await?;
        transfer.write(0, 7)?;
        transfer.commit().await?;
        cells[0].begin(&ep, &[2]).await?.abort().await?;
        assert!(cells[0].begin(&ep, &[9]).await.is_err());
        Result::<()>::Ok(())
    })
    .unwrap();
    assert_eq!(calls(&nodes[0].metrics(), "cells"), "begin: 3, 1, 0; commit: 1, 0, 0");
}

#[test]
fn replicated_calls_are_measured() {
    let nodes = measured(3);
    let ep = nodes[0].endpoint().unwrap();
    let mut options = SwarmStoreOptions::default();
    options.keys = 100;
    let stores = on_each(&nodes, |node| SwarmStore::<u64, u64>::open(node, "store", options.clone())).unwrap();
    let client = stores[0].client(&ep).unwrap();
    assert!(client.insert_blocking(&1, &7).unwrap());
    client.upsert_blocking(&2, &7).unwrap();
    client.update_blocking(&2, &8).unwrap();
    assert_eq!(client.get_many_blocking(&[1, 2, 3]).unwrap(), [Some(7), Some(8), None]);
    assert_eq!(client.get_blocking(&3).unwrap(), None);
    client.delete_blocking(&1).unwrap();
    assert_eq!(ep.block_on(client.scan(0)).unwrap().0.len() + ep.block_on(client.scan(64)).unwrap().0.len(), 1);
    let expected = ["get", "get_many", "insert", "update", "upsert", "delete"].map(|name| format!("{name}: 1, 0, 0"));
    assert_eq!(calls(&nodes[0].metrics(), "store"), expected.join("; ") + "; scan: 2, 0, 0");

    let arrays = on_each(&nodes, |node| SwarmArray::<u64>::open(node, "array", 2, SwarmOptions::default())).unwrap();
    let client = arrays[0].client(&ep).unwrap();
    client.write_blocking(1, 7).unwrap();
    assert_eq!(client.read_blocking(1).unwrap(), 7);
    assert!(client.read_blocking(2).is_err());
    assert_eq!(calls(&nodes[0].metrics(), "array"), "read: 2, 1, 0; write: 1, 0, 0");
}

/// As by default: nothing is counted, and no room for it is there.
#[test]
fn a_node_that_is_not_told_to_measures_nothing() {
    let node = Node::builder().start().unwrap();
    let (ep, mutex) = (node.endpoint().unwrap(), Mutex::open(&node, "account", node.id()).unwrap());
    ep.block_on(async { mutex.lock(&ep).await?.unlock().await }).unwrap();
    let seen = node.metrics();
    assert_eq!(seen.open_paths(), ["account"]);
    assert!(seen.objects[0].calls.is_empty() && seen.call("account", "lock").is_none());
    assert!(ep.calls_reader().is_none());
}

/// The counts of a thread stay when its endpoint is closed, and those of an object when that is closed and opened
/// again.
#[test]
fn counts_outlive_endpoints_and_objects() {
    let node = Node::builder().latencies(true).start().unwrap();
    for round in 1..=3u64 {
        let mutex = Mutex::open(&node, "account", node.id()).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let (ep, mutex) = (node.endpoint().unwrap(), &mutex);
                scope.spawn(move || {
                    for _ in 0..100 {
                        ep.block_on(async { mutex.lock(&ep).await?.unlock().await }).unwrap();
                    }
                });
            }
        });
        drop(mutex);
        let seen = node.metrics();
        assert_eq!(seen.call("account", "lock").unwrap().latencies.count(), 400 * round);
        assert!(seen.open_paths().is_empty() && !seen.objects[0].is_open);
    }
}

/// A call has not ended if its future is dropped.
#[test]
fn dropped_calls_are_not_counted() {
    let node = Node::builder().latencies(true).start().unwrap();
    let (ep, queue) =
        (node.endpoint().unwrap(), Queue::<u64>::open(&node, "jobs", QueueOptions::new(node.id(), 4)).unwrap());
    ep.block_on(async {
        let mut waits = std::pin::pin!(queue.dequeue(&ep));
        let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(waits.as_mut().poll(cx).is_pending())).await;
        assert!(polled);
    });
    assert!(node.metrics().call("jobs", "dequeue").is_none());
}

/// Measured calls are refused on stale handles as others are.
#[test]
fn a_reopened_object_is_stale_if_it_is_measured_too() {
    let node = Node::builder().latencies(true).start().unwrap();
    let ep = node.endpoint().unwrap();
    let old = AtomicVar::open(&node, "hits", node.id()).unwrap();
    let new = node.reopen("hits", |again| AtomicVar::open(&node, again.path(), node.id())).unwrap();
    let error = ep.block_on(old.fetch_add(&ep, 1)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Reopened { .. }), "{error}");
    ep.block_on(new.fetch_add(&ep, 1)).unwrap();
    let again =
        node.metrics().open_paths().into_iter().find(|path| path.starts_with("hits@")).map(String::from).unwrap();
    assert_eq!(calls(&node.metrics(), &again), "fetch_add: 1, 0, 0");
    assert_eq!(calls(&node.metrics(), "hits"), "fetch_add: 1, 1, 0");
    let lock = Mutex::open(&node, "lock", node.id()).unwrap();
    let _new = node.reopen("lock", |again| Mutex::open(&node, again.path(), node.id())).unwrap();
    assert!(ep.block_on(lock.lock(&ep)).is_err());
    assert_eq!(calls(&node.metrics(), "lock"), "lock: 1, 1, 0");
    // A number beyond the object's calls was that of another object's.
    let [meter, other] = ["a", "b"].map(|path| node.meter(path, "Own", &["x"]));
    meter.measure_now(&ep, 1, || Ok(())).unwrap();
    assert_eq!((calls(&node.metrics(), "b"), calls(&node.metrics(), "")), (String::new(), "call: 1, 0, 0".into()));
    other.measure_now(&ep, 0, || Ok(())).unwrap();
    assert_eq!(calls(&node.metrics(), "b"), "x: 1, 0, 0");
}

/// An object of another crate is measured as Farfield's own are.
#[test]
fn an_own_object_is_measured() {
    let nodes = measured(1);
    let (node, ep) = (&nodes[0], nodes[0].endpoint().unwrap());
    let object = ObjectBuilder::new(node, "app/mail", "Mail").calls(&["post", "read"]).open().unwrap();
    assert!(!object.is_plain() && object.check_current().is_ok());
    let read =
        object.meter().measure_now(&ep, 1, || Err::<(), _>(ErrorKind::Full { node: node.id(), slots: 1 }.into()));
    assert!(read.is_err());
    assert_eq!(calls(&node.metrics(), "app/mail"), "read: 1, 1, 0");
    let plain = local_session(1).unwrap();
    let object = ObjectBuilder::new(&plain[0], "app/mail", "Mail").calls(&["post", "read"]).open().unwrap();
    assert!(object.is_plain() && !object.meter().is_on());
}
