//! Nodes that measure: their calls go other ways, on which they do the same.

use std::rc::Rc;

use farfield_core::{AtomicVar, CallCounts, Metrics, Mutex, Queue, QueueOptions, Result};

use super::keep;
use farfield_check::{Cluster, Scenario};

const N0: farfield_core::NodeId = farfield_core::NodeId(0);

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![adds(), objects(), stale()]
}

/// Calls, errors, timeouts.
fn counts(metrics: &Metrics, path: &str, call: &str) -> [u64; 3] {
    let of = |counts: &CallCounts| [counts.latencies.count(), counts.errors, counts.timeouts];
    metrics.call(path, call).map_or([0; 3], of)
}

/// Checks at the end how often each node has made a call.
fn counted(cluster: &Cluster, expected: Vec<(&'static str, &'static str, u64)>) {
    let nodes = cluster.nodes();
    cluster.at_end(move || {
        for metrics in nodes.iter().map(|node| node.metrics()) {
            for (path, call, times) in &expected {
                assert_eq!(counts(&metrics, path, call), [*times, 0, 0], "{call} of {path} on {}", metrics.node);
            }
        }
        Ok(())
    });
}

/// The smallest: one call on each node.
fn adds() -> Scenario {
    Scenario::new("measured/adds", "a measured call has its effect once, and is counted once", 2, |cluster| {
        let sums = keep(cluster, cluster.on_each(|node| AtomicVar::open(node, "sum", N0))?);
        let found = cluster.log();
        for me in 0..2 {
            let (sums, found) = (Rc::clone(&sums), found.clone());
            cluster.thread(me, "adds", move |ep| {
                found.push(ep.block_on(sums[me].fetch_add(ep, 1))?);
                Ok(())
            });
        }
        cluster.at_end(move || {
            let mut found = found.take();
            found.sort_unstable();
            assert_eq!(found, [0, 1]);
            Ok(())
        });
        counted(cluster, vec![("sum", "fetch_add", 1)]);
        Ok(())
    })
    .measured()
    .small()
}

/// Calls that wait, for a lock and for a value, and calls that are made of others.
fn objects() -> Scenario {
    let about = "measured locks exclude, a measured queue keeps its order, and all calls are counted";
    Scenario::new("measured/objects", about, 2, |cluster| {
        let open = |node: &farfield_core::Node| -> Result<_> {
            Ok((Mutex::open(node, "lock", N0)?, Queue::<u64>::open(node, "queue", QueueOptions::new(N0, 2))?))
        };
        let all = keep(cluster, cluster.on_each(open)?);
        let inside = Rc::new(std::cell::Cell::new(0));
        for me in 0..2 {
            let (all, inside) = (Rc::clone(&all), Rc::clone(&inside));
            cluster.thread(me, "works", move |ep| {
                let (lock, queue) = &all[me];
                ep.block_on(async {
                    let held = lock.lock(ep).await?;
                    assert_eq!(inside.replace(inside.get() + 1), 0, "two hold the lock");
                    queue.enqueue(ep, &(me as u64)).await?;
                    inside.set(inside.get() - 1);
                    held.unlock().await?;
                    queue.dequeue(ep).await?;
                    // Once more than the other call of the lock: neither is counted for the other.
                    lock.try_lock(ep).await.map(drop)?;
                    lock.try_lock(ep).await.map(drop)
                })
            });
        }
        counted(
            cluster,
            vec![("lock", "lock", 1), ("lock", "try_lock", 2), ("queue", "enqueue", 1), ("queue", "dequeue", 1)],
        );
        Ok(())
    })
    .measured()
}

/// A handle becomes stale before, between and in calls. Each call is counted, the failed ones as failed.
fn stale() -> Scenario {
    Scenario::new("measured/stale", "calls on a stale handle are counted, each once, as failed", 1, |cluster| {
        let node = cluster.node(0);
        let old = AtomicVar::open(&node, "sum", N0)?;
        let failed = cluster.log();
        let (all_failed, reopened) = (failed.clone(), cluster.log());
        let kept = reopened.clone();
        cluster.thread(0, "adds", move |ep| {
            for _ in 0..3 {
                if let Err(error) = ep.block_on(old.fetch_add(ep, 1)) {
                    assert!(matches!(error.kind(), farfield_core::ErrorKind::Reopened { .. }), "{error}");
                    failed.push(());
                }
            }
            Ok(())
        });
        let reopens = node.clone();
        cluster.thread_without_endpoint(0, "reopens", move || {
            reopened.push(reopens.reopen("sum", |again| AtomicVar::open(&reopens, again.path(), N0))?);
            Ok(())
        });
        cluster.at_end(move || {
            drop(kept.take());
            assert_eq!(counts(&node.metrics(), "sum", "fetch_add"), [3, all_failed.take().len() as u64, 0]);
            Ok(())
        });
        Ok(())
    })
    .measured()
    .kills(&["metrics-stale-uncounted"])
}
