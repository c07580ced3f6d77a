//! Futures in executors other than the endpoints' own: tokio (current-thread and `LocalSet`), smol's and
//! `futures::executor`. They are woken at once, an idle wait costs next to nothing, and timeouts expire. The blocking
//! forms are tested as well.

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farfield::{
    ALock, AtomicVar, Barrier, Endpoint, KvOptions, KvStore, LockGuard, Mutex as Lock, Node, NodeId, OwnedVar, Queue,
    QueueOptions, Result, RingBuffer, RingOptions, RingReceiver, RingSender, SharedVar, fabric, local_session_with,
    on_each,
};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use rustix::time::{ClockId, clock_gettime};
use tokio::task::{LocalSet, spawn_local};

/// Runs one test at a time, since the tests measure the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static CORES: Mutex<()> = Mutex::new(());
    CORES.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Clone, Copy, Debug)]
enum Over {
    Shm,
    Weak,
}

fn session(over: Over) -> Vec<Node> {
    let decorate = |builder: farfield::Builder| match over {
        Over::Shm => builder,
        Over::Weak => builder.decorate(|inner| fabric::weak::weaken(inner, 5)),
    };
    local_session_with(2, decorate).expect("nodes start")
}

fn tokio() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime")
}

#[derive(Clone, Copy, Debug)]
enum Executor {
    Tokio,
    LocalSet,
    Smol,
    Futures,
}

impl Executor {
    const ALL: [Executor; 4] = [Executor::Tokio, Executor::LocalSet, Executor::Smol, Executor::Futures];

    fn run<F: Future>(self, future: F) -> F::Output {
        match self {
            Executor::Tokio => tokio().block_on(future),
            Executor::LocalSet => LocalSet::new().block_on(&tokio(), future),
            Executor::Smol => {
                let executor = async_executor::LocalExecutor::new();
                futures::executor::block_on(executor.run(future))
            }
            Executor::Futures => futures::executor::block_on(future),
        }
    }
}

/// Opens a ring from each of two nodes to the other.
fn rings(node: &Node, name: &str) -> Result<(RingSender, RingReceiver)> {
    let (me, other) = (node.id(), NodeId(1 - node.id().0));
    let ring = |from: NodeId, to: NodeId| {
        RingBuffer::open(node, &format!("{name}/{}", from.0), RingOptions::new(from, [(to, 1)], 4096))
    };
    // All nodes open in the same order.
    let (first, second) = (ring(NodeId(0), NodeId(1))?, ring(NodeId(1), NodeId(0))?);
    let (mine, others) = if me < other { (first, second) } else { (second, first) };
    Ok((mine.sender()?, others.receiver()?))
}

/// Both nodes call each operation of every object that may wait, and wait for each other in it.
fn every_object(node: &Node, executor: Executor) -> Result<()> {
    let name = |object: &str| format!("{executor:?}/{object}");
    let (me, other) = (node.id(), NodeId(1 - node.id().0));
    let ep = node.endpoint()?;
    let mut everyone = Barrier::open(node, &name("barrier"), 1)?.thread()?;
    let (mut sender, mut receiver) = rings(node, &name("ring"))?;
    let lock = Lock::open(node, &name("mutex"), NodeId(0))?;
    let alock = ALock::open(node, &name("alock"), NodeId(0))?;
    let kv = KvStore::<u64, u64>::open(node, &name("kv"), KvOptions { slots_per_node: 8, ..KvOptions::default() })?;
    let queue = Queue::<u64>::open(node, &name("queue"), QueueOptions::new(NodeId(0), 16))?;
    let word = AtomicVar::open(node, &name("atomic"), NodeId(0))?;
    let shared = SharedVar::<u64>::open(node, &name("shared"))?;
    let owned = [0, 1].map(|owner| OwnedVar::<[u64; 5]>::open(node, &name(&format!("owned/{owner}")), NodeId(owner)));
    let [first, second] = owned;
    let (mut mine, others) = match me.0 {
        0 => (first?.writer()?, second?),
        _ => (second?.writer()?, first?),
    };
    executor.run(async {
        for round in 0..5u64 {
            everyone.wait(&ep).await?;
            let (key, message) = (u64::from(me.0), round.to_le_bytes());
            sender.send(&ep, &message).await?;
            let mut received = Vec::new();
            receiver.recv(&ep, &mut received).await?;
            assert_eq!(received, message);
            sender.wait_acknowledged(&ep, sender.position(), ep.deadline()).await?;

            let guard = lock.lock(&ep).await?;
            word.fetch_add(&ep, 1).await?;
            guard.unlock().await?;
            let guard = alock.lock(&ep).await?;
            guard.unlock().await?;
            let mut counted = word.load(&ep).await?;
            while counted < 2 * (round + 1) {
                counted = word.wait_change(&ep, counted, ep.deadline()).await?;
            }

            assert!(kv.insert(&ep, &key, &round).await?);
            everyone.wait(&ep).await?;
            assert_eq!(kv.get(&ep, &u64::from(other.0)).await?, Some(round));
            everyone.wait(&ep).await?;
            assert!(kv.update(&ep, &key, &(round + 1)).await?);
            everyone.wait(&ep).await?;
            assert_eq!(kv.get(&ep, &u64::from(other.0)).await?, Some(round + 1));
            everyone.wait(&ep).await?;
            assert!(kv.delete(&ep, &key).await?);

            if me.0 == 0 {
                queue.enqueue(&ep, &round).await?;
            } else {
                assert_eq!(queue.dequeue(&ep).await?, round);
            }

            shared.store(round);
            shared.push_all(&ep).await?;
            shared.fence(&ep, [other]).await?;
            everyone.wait(&ep).await?;
            assert_eq!(shared.pull(&ep, other).await?, round);
            mine.store([round; 5]);
            mine.push(&ep).await?;
            everyone.wait(&ep).await?;
            assert_eq!(others.pull(&ep).await?, [round; 5]);
            assert_eq!(others.load(&ep).await?, [round; 5]);
        }
        // A wait without a message times out, and not long after its deadline.
        let mut none = Vec::new();
        let start = Instant::now();
        let nothing = receiver.recv_deadline(&ep, &mut none, ep.now() + Duration::from_millis(20)).await;
        assert!(nothing.expect_err("nothing was sent").is_timeout(), "{executor:?}");
        let counted = word.load(&ep).await?;
        let none = word.wait_change(&ep, counted, ep.now() + Duration::from_millis(20)).await;
        assert!(
            counted == 10 && none.as_ref().is_err_and(farfield::Error::is_timeout),
            "{executor:?}: {counted}, {none:?}"
        );
        assert!(start.elapsed() >= Duration::from_millis(20) && start.elapsed() < Duration::from_secs(5));
        everyone.wait(&ep).await
    })
}

#[test]
fn every_object_is_awaited_in_any_executor() {
    let _alone = alone();
    for over in [Over::Shm, Over::Weak] {
        let nodes = session(over);
        for executor in Executor::ALL {
            let start = Instant::now();
            on_each(&nodes, |node| every_object(node, executor))
                .unwrap_or_else(|why| panic!("{over:?} {executor:?}: {why}"));
            println!("{over:?} {executor:?}: {:?}", start.elapsed());
        }
    }
}

/// Passes a message to the other node and back, `times` times.
async fn play(first: bool, ep: &Endpoint, rings: &mut (RingSender, RingReceiver), times: usize) -> Result<()> {
    let mut message = Vec::new();
    for _ in 0..times {
        if first {
            rings.0.send(ep, b"ball").await?;
        }
        rings.1.recv(ep, &mut message).await?;
        if !first {
            rings.0.send(ep, b"ball").await?;
        }
    }
    Ok(())
}

#[test]
fn a_put_of_another_node_wakes_at_once() {
    const BATCHES: usize = 30;
    const TIMES: usize = 20;
    let _alone = alone();
    for executor in Executor::ALL {
        let nodes = session(Over::Shm);
        let best = on_each(&nodes, |node| {
            let (ep, mut rings) = (node.endpoint()?, rings(node, "ball")?);
            executor.run(async {
                let mut best = Duration::MAX;
                for _ in 0..BATCHES {
                    let start = Instant::now();
                    play(node.id().0 == 0, &ep, &mut rings, TIMES).await?;
                    best = best.min(start.elapsed());
                }
                Ok(best / TIMES as u32)
            })
        });
        let best = best.expect("they play")[0];
        println!("{executor:?}: a round trip between two tasks takes {best:?}");
        // Without a wake-up, a waiter polls again only after 500 µs, and each round trip has two such waits.
        assert!(best < Duration::from_micros(600), "{executor:?}: {best:?} for a round trip: nobody was woken at once");
    }
}

#[test]
fn two_nodes_play_as_tasks_of_one_thread() {
    let _alone = alone();
    let nodes = session(Over::Shm);
    let opened = on_each(&nodes, |node| Ok((node.endpoint()?, rings(node, "ball")?))).expect("they open it");
    LocalSet::new().block_on(&tokio(), async {
        let players = opened
            .into_iter()
            .enumerate()
            .map(|(player, (ep, mut rings))| spawn_local(async move { play(player == 0, &ep, &mut rings, 300).await }));
        for player in players.collect::<Vec<_>>() {
            player.await.expect("no panic").expect("they play");
        }
    });
}

#[test]
fn tasks_share_an_endpoint_and_drop_waiting_calls() {
    let _alone = alone();
    let nodes = session(Over::Shm);
    let opened: Vec<_> =
        (0..4).map(|game| on_each(&nodes, |node| rings(node, &format!("game/{game}"))).expect("rings")).collect();
    let endpoints: Vec<_> = nodes.iter().map(|node| Rc::new(node.endpoint().expect("an endpoint"))).collect();
    LocalSet::new().block_on(&tokio(), async {
        let mut players = Vec::new();
        for game in opened {
            for (player, mut rings) in game.into_iter().enumerate() {
                let ep = Rc::clone(&endpoints[player]);
                players.push(spawn_local(async move {
                    let mut message = Vec::new();
                    for _ in 0..50 {
                        // No message arrives before the first player sends one.
                        if player == 0 {
                            let waits = rings.1.recv(&ep, &mut message);
                            tokio::time::timeout(Duration::from_micros(300), waits).await.expect_err("it is cut short");
                        }
                        play(player == 0, &ep, &mut rings, 1).await?;
                    }
                    Ok::<_, farfield::Error>(())
                }));
            }
        }
        for player in players {
            player.await.expect("no panic").expect("they play");
        }
    });
}

#[test]
fn executors_within_each_other() {
    let _alone = alone();
    for over in [Over::Shm, Over::Weak] {
        let nodes = session(over);
        on_each(&nodes, |node| {
            let ep = node.endpoint()?;
            let words = (0..20).map(|word| AtomicVar::open(node, &format!("word/{word}"), NodeId(word % 2)));
            let words = words.collect::<Result<Vec<_>>>()?;
            let (mut sender, mut receiver) = rings(node, "ring")?;
            let first = node.id().0 == 0;
            // Another executor's combinators within `block_on`.
            ep.block_on(async {
                let mut adds: FuturesUnordered<_> = words.iter().map(|word| word.fetch_add(&ep, 1)).collect();
                while let Some(added) = adds.next().await {
                    added?;
                }
                for round in 0..20 {
                    let mut message = Vec::new();
                    if first || round > 0 {
                        sender.send(&ep, b"ball").await?;
                    }
                    let mut waits = FuturesUnordered::new();
                    waits.push(receiver.recv(&ep, &mut message));
                    waits.next().await.expect("there is one")?;
                    if !first && round == 0 {
                        sender.send(&ep, b"ball").await?;
                    }
                }
                Ok::<_, farfield::Error>(())
            })?;
            // Farfield's executor within another's, and a future that moves from one to another.
            tokio().block_on(async {
                let mut seen = 0;
                ep.each_in_window(8, words.iter().map(|word| word.load(&ep)), |value| seen += value.unwrap_or(0)).await;
                assert!((20..=40).contains(&seen), "{seen}");
                let (one, other) = futures::join!(words[0].load(&ep), words[1].load(&ep));
                assert!(one? + other? >= 2);
                let both = async { futures::try_join!(words[0].load(&ep), words[1].load(&ep)) };
                let (both, counts) = ep.counted(both).await;
                both?;
                assert_eq!(counts.gets, 2);
                Ok::<_, farfield::Error>(())
            })?;
            let mut message = Vec::new();
            let mut everyone = Barrier::open(node, "everyone", 1)?.thread()?;
            let mut waits = pin!(async {
                receiver.recv(&ep, &mut message).await?;
                receiver.recv(&ep, &mut message).await
            });
            let pauses = Duration::from_millis(5);
            let early = tokio().block_on(async { tokio::time::timeout(pauses, &mut waits).await.is_ok() });
            assert!(!early, "messages have come that nobody has sent");
            everyone.wait_blocking(&ep)?;
            ep.block_on(sender.send(&ep, b"one"))?;
            ep.block_on(sender.send(&ep, b"two"))?;
            if first { futures::executor::block_on(waits) } else { ep.block_on(waits) }
        })
        .unwrap_or_else(|why| panic!("{over:?}: {why}"));
    }
}

#[test]
fn a_task_learns_that_a_node_has_left() {
    let _alone = alone();
    let mut nodes = session(Over::Shm);
    let mut opened = on_each(&nodes, |node| Ok((node.endpoint()?, rings(node, "ring")?))).expect("they open it");
    let (leaver, node) = (nodes.pop().expect("the second"), nodes.pop().expect("the first"));
    let _ = opened.pop();
    let (ep, (_sender, mut receiver)) = opened.pop().expect("the first one's");
    let leaves = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        leaver.leave();
    });
    // This node's handle is dropped, too, while its task waits.
    drop(node);
    let start = Instant::now();
    let ended = tokio().block_on(receiver.recv(&ep, &mut Vec::new()));
    assert!(ended.is_err() && start.elapsed() < Duration::from_secs(5), "{ended:?} after {:?}", start.elapsed());
    leaves.join().expect("it leaves");
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn an_idle_wait_costs_less_than_a_fiftieth_of_a_core() {
    const WAIT: Duration = Duration::from_millis(500);
    let _alone = alone();
    let nodes = session(Over::Shm);
    let mut opened = on_each(&nodes, |node| Ok((node.endpoint()?, rings(node, "ring")?))).expect("they open it");
    let (ep, (_sender, mut receiver)) = opened.remove(0);
    tokio().block_on(async {
        // What else the machine does can only add to a measurement: one below the bound is enough.
        let mut measured = Vec::new();
        for _ in 0..16 {
            // The CPU time of the nodes' own threads is not part of the wait's cost.
            let before = cpu_time();
            tokio::time::sleep(WAIT).await;
            let nodes_cost = cpu_time() - before;
            let (start, before) = (Instant::now(), cpu_time());
            let ended = receiver.recv_deadline(&ep, &mut Vec::new(), ep.now() + WAIT).await;
            let (waited, cost) = (start.elapsed(), cpu_time() - before);
            assert!(ended.is_err() && waited >= WAIT, "{ended:?} after {waited:?}");
            measured.push(format!("{cost:?} of {waited:?}, {nodes_cost:?} of it for the nodes' own threads"));
            if cost.saturating_sub(nodes_cost) < waited / 50 {
                println!("idle waits cost {measured:?}");
                return;
            }
        }
        panic!("idle waits cost {measured:?}");
    });
}

#[test]
fn blocking_forms_need_no_async() {
    let _alone = alone();
    let nodes = session(Over::Shm);
    on_each(&nodes, |node| {
        let (ep, first) = (node.endpoint()?, node.id().0 == 0);
        let mut everyone = Barrier::open(node, "barrier", 1)?.thread()?;
        let (mut sender, mut receiver) = rings(node, "ring")?;
        let lock = Lock::open(node, "mutex", NodeId(0))?;
        let kv = KvStore::<u64, u64>::open(node, "kv", KvOptions::default())?;
        let queue = Queue::<u64>::open(node, "queue", QueueOptions::new(NodeId(0), 16))?;
        let word = AtomicVar::open(node, "atomic", NodeId(0))?;
        let mut message = Vec::new();
        sender.send_blocking(&ep, b"hello")?;
        receiver.recv_blocking(&ep, &mut message)?;
        assert_eq!(message, b"hello");
        drop(lock.lock_blocking(&ep)?);
        word.fetch_add_blocking(&ep, 1)?;
        if first {
            assert!(kv.insert_blocking(&ep, &1, &2)?);
            queue.enqueue_blocking(&ep, &3)?;
        }
        everyone.wait_blocking(&ep)?;
        assert_eq!((word.load_blocking(&ep)?, kv.get_blocking(&ep, &1)?), (2, Some(2)));
        if !first {
            assert_eq!(queue.dequeue_blocking(&ep)?, 3);
        }
        everyone.wait_blocking(&ep)
    })
    .expect("they work");
}
