//! Locks for asymmetric memory. As for the mutex, most scenarios add one to a word under the lock. Two simultaneous
//! holders lose an increment, and so does a holder that does not see the last holder's write.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use farfield::fabric::{DeathRule, Instant, NodeId, Region, Word};
use farfield::{
    ALockArray, ALockOptions, Endpoint, LockArray, LockGuard, LockKind, LockOptions, McsGuard, McsLockArray, Node,
    Result, SpinLockArray, Standing, TransactionOptions, Transactions,
};

use super::death::{comes_of_faults, patiently};
use super::mutex::{cut, word};
use crate::Faults;
use crate::scenario::{Log, Scenario, Stage, choose, crashed};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        release(),
        spin_release(),
        mcs_release(),
        neighbours(),
        cohorts("alock/cohorts", &[0, 0, 1]).medium().kills(&["alock-victim-unfenced", "alock-wrong-cohort"]),
        cohorts("alock/remote-queue", &[1, 2]).small().kills(&["mcs-not-told"]),
        cohorts("alock/both-queues", &[0, 0, 1, 2]),
        turns(),
        budget(),
        local_budget(),
        window(),
        trying(),
        deadline(),
        timeout(),
        dropped(),
        late_victim(),
        spin_holder_dies(),
        mcs_user_dies(),
        mcs_dropped(),
        stuck_twice(),
        used_again(),
        home_is_cut_off(),
        last_remote_dies(),
        holder_dies(),
        waiter_dies(),
        users_die(),
        transfers(),
    ]
}

const OPTIONS: ALockOptions = ALockOptions { remote_budget: 2, local_budget: 2, operations_max: 32 };

fn open(stage: &Stage) -> Result<Vec<Rc<ALockArray>>> {
    open_with(stage, OPTIONS)
}

/// One lock, on node 0.
fn open_with(stage: &Stage, options: ALockOptions) -> Result<Vec<Rc<ALockArray>>> {
    stage.on_each(move |node| ALockArray::open(node, "locks", 1, options).map(Rc::new))
}

/// A word that is read and written under a lock: by the CPU of its node, and by the NICs of other nodes.
#[derive(Clone)]
struct Counter {
    home: usize,
    region: Region,
}

impl Counter {
    fn new(stage: &Stage, home: usize) -> Result<Counter> {
        Ok(Counter { home, region: word(stage, home, "x")? })
    }

    /// Adds one. It does not wait for the put: the release has to make it visible.
    async fn add(&self, ep: &Endpoint) -> Result<()> {
        if ep.me().index() == self.home {
            let word = self.region.word(0);
            word.store(word.load() + 1);
        } else {
            let word = self.region.remote::<u64>(0);
            let seen = ep.get(word).await?;
            ep.put_value(word, seen + 1).detach()?;
        }
        Ok(())
    }

    /// At the end it counts the critical sections, and the lock is free.
    fn counts<L: LockArray + 'static>(self, stage: &Stage, locks: &Rc<L>, sections: impl FnOnce() -> u64 + 'static) {
        let (nodes, locks) = (stage.node(0), Rc::clone(locks));
        stage.finally(move || {
            assert_eq!(self.region.word(0).load(), sections(), "the sum of the increments under the lock");
            let ep = nodes.endpoint()?;
            let guard = ep.block_on(locks.try_lock(&ep, 0))?.expect("nobody wants the lock, but it is not free");
            ep.block_on(guard.unlock())
        });
    }
}

async fn section<L: LockArray>(locks: &L, ep: &Endpoint, x: &Counter) -> Result<()> {
    let guard = locks.lock(ep, 0).await?;
    x.add(ep).await?;
    guard.unlock().await
}

/// `NRW` of a put under the lock against the release, on another queue pair or by the CPU.
fn releases<L: LockArray + 'static>(stage: &Stage, locks: Vec<Rc<L>>) -> Result<()> {
    let x = Counter::new(stage, 1)?;
    for (node, locks) in locks.iter().cloned().enumerate() {
        let x = x.clone();
        stage.thread(node, "adder", move |ep| ep.block_on(section(&*locks, ep, &x)));
    }
    x.counts(stage, &locks[0], || 2);
    Ok(())
}

fn release() -> Scenario {
    let about = "what a holder puts on another node than the lock's is seen by the next, of either cohort";
    Scenario::new("alock/release", about, 2, |stage| releases(stage, open(stage)?)).small().kills(&["alock-no-fence"])
}

fn spin_release() -> Scenario {
    let about = "what a holder puts on another node than the lock's is seen by the next";
    Scenario::new("spin/release", about, 2, |stage| {
        releases(stage, stage.on_each(|node| SpinLockArray::open(node, "locks", 1).map(Rc::new))?)
    })
    .small()
    .kills(&["spin-no-fence"])
}

fn open_mcs(stage: &Stage) -> Result<Vec<Rc<McsLockArray>>> {
    open_mcs_for(stage, 32)
}

fn open_mcs_for(stage: &Stage, operations_max: usize) -> Result<Vec<Rc<McsLockArray>>> {
    stage.on_each(move |node| McsLockArray::open(node, "locks", 1, operations_max).map(Rc::new))
}

fn mcs_release() -> Scenario {
    let about = "what a holder puts on another node than the lock's is seen by the next";
    Scenario::new("mcs/release", about, 2, |stage| releases(stage, open_mcs(stage)?)).small().kills(&["mcs-no-fence"])
}

/// The lock is on another node, and one thread passes it to another thread of its node by a store. A put of the first
/// to a word of that node lands through the NIC, and the model does not order it before a store. So the release has to
/// fence its own node, too.
fn neighbours() -> Scenario {
    let about =
        "what a holder puts on its own node is seen by the next one of that node, which is handed the lock by a store";
    Scenario::new("mcs/neighbours", about, 2, |stage| {
        let (locks, x) = (open_mcs(stage)?, Counter::new(stage, 1)?);
        for _ in 0..2 {
            let (locks, x) = (Rc::clone(&locks[1]), x.clone());
            stage.thread(1, "adder", move |ep| {
                ep.block_on(async {
                    let guard = locks.lock(ep, 0).await?;
                    ep.put_value(x.region.remote(0), x.region.word(0).load() + 1).detach()?;
                    guard.unlock().await
                })
            });
        }
        x.counts(stage, &locks[0], || 2);
        Ok(())
    })
    .small()
    .kills(&["mcs-spares-own-node"])
}

/// Operations of both cohorts, or of one: Peterson's algorithm, and a queue in one of them or both. The operations only
/// record that they are inside. Other scenarios check what a holder sees; that keeps these smaller.
fn cohorts(name: &str, threads: &'static [usize]) -> Scenario {
    let nodes = threads.iter().max().expect("some") + 1;
    Scenario::new(name, "threads of the cohorts are never inside at once", nodes, move |stage| {
        let (locks, inside) = (open(stage)?, stage.log());
        for (number, node) in threads.iter().enumerate() {
            let (locks, inside) = (Rc::clone(&locks[*node]), inside.clone());
            stage.thread(*node, "enters", move |ep| {
                ep.block_on(async {
                    let guard = locks.lock(ep, 0).await?;
                    inside.push(number);
                    inside.push(number);
                    guard.unlock().await
                })
            });
        }
        stage.finally(move || {
            let order = inside.take();
            assert!(order.chunks(2).all(|pair| pair[0] == pair[1]), "two were inside: {order:?}");
            assert_eq!(order.len(), 2 * threads.len(), "all have had their turn");
            Ok(())
        });
        Ok(())
    })
}

/// Several acquisitions by each thread.
fn turns() -> Scenario {
    Scenario::new("alock/turns", "two threads of each cohort take turns", 3, |stage| {
        let (locks, x) = (open(stage)?, Counter::new(stage, 0)?);
        for node in [0, 0, 1, 2] {
            let (locks, x) = (Rc::clone(&locks[node]), x.clone());
            stage.thread(node, "adder", move |ep| {
                ep.block_on(async {
                    section(&*locks, ep, &x).await?;
                    section(&*locks, ep, &x).await
                })
            });
        }
        x.counts(stage, &locks[0], || 8);
        Ok(())
    })
}

/// One operation waits as the head of its cohort. Two of the other cohort would hand the lock to each other for ever:
/// they overtake it as often as the budget allows. Its wait can be observed from outside: a local one when its future
/// is pending, a remote one when it reads the lock for the second time.
fn overtaking(name: &'static str, waiter: usize, others: [usize; 2]) -> Scenario {
    const BUDGET: u32 = 1;
    let options = ALockOptions { remote_budget: BUDGET, local_budget: BUDGET, operations_max: 32 };
    Scenario::new(name, "a cohort overtakes the other as often as its budget says", 3, move |stage| {
        let locks = open_with(stage, options)?;
        let order: Log<usize> = stage.log();
        const WAITS: usize = usize::MAX;
        for node in others {
            let (locks, order) = (Rc::clone(&locks[node]), order.clone());
            stage.thread(node, "overtakes", move |ep| {
                ep.block_on(async {
                    for _ in 0..3 {
                        let guard = locks.lock(ep, 0).await?;
                        order.push(node);
                        guard.unlock().await?;
                    }
                    Ok(())
                })
            });
        }
        let (locks, waits) = (Rc::clone(&locks[waiter]), order.clone());
        stage.thread(waiter, "waits", move |ep| {
            ep.block_on(async {
                let looks = ep.counts().gets;
                let mut lock = pin!(locks.lock(ep, 0));
                let at_once = poll_fn(|cx| match lock.as_mut().poll(cx) {
                    Poll::Ready(guard) => Poll::Ready(Some(guard)),
                    Poll::Pending if waiter == 0 || ep.counts().gets > looks + 1 => Poll::Ready(None),
                    Poll::Pending => Poll::Pending,
                })
                .await;
                let guard = match at_once {
                    Some(guard) => guard?,
                    None => {
                        waits.push(WAITS);
                        let guard = lock.await?;
                        waits.push(waiter);
                        guard
                    }
                };
                guard.unlock().await
            })
        });
        stage.finally(move || {
            let order = order.take();
            let Some(since) = order.iter().position(|it| *it == WAITS) else { return Ok(()) };
            let until = order[since..].iter().position(|it| *it == waiter).expect("it has had its turn");
            assert!(until <= BUDGET as usize + 1, "overtaken {} times: {order:?}", until - 1);
            Ok(())
        });
        Ok(())
    })
}

fn budget() -> Scenario {
    overtaking("alock/remote-budget", 0, [1, 2]).kills(&["alock-budget-not-reset", "alock-victim-not-set"])
}

fn local_budget() -> Scenario {
    overtaking("alock/local-budget", 1, [0, 0])
}

/// Operations of one thread share its endpoint and nothing else: each is an entry of its own.
fn window() -> Scenario {
    Scenario::new("alock/window", "several operations of one thread exclude each other", 2, |stage| {
        let (locks, x) = (open(stage)?, Counter::new(stage, 0)?);
        for node in 0..2 {
            let (locks, x) = (Rc::clone(&locks[node]), x.clone());
            stage.thread(node, "adder", move |ep| {
                let mut ended = Ok(());
                let add = || section(&*locks, ep, &x);
                ep.run_window(2, [add(), add()], |result| ended = ended.clone().and(result));
                ended
            });
        }
        x.counts(stage, &locks[0], || 4);
        Ok(())
    })
}

/// `try_lock` in both cohorts: it never waits, and leaves no obstacle.
fn trying() -> Scenario {
    Scenario::new("alock/trying", "who tries is excluded like who waits, and never waits", 2, |stage| {
        let (locks, x) = (open(stage)?, Counter::new(stage, 0)?);
        let sections = Rc::new(Cell::new(0));
        for node in [0, 0, 1] {
            let (locks, x, sections) = (Rc::clone(&locks[node]), x.clone(), Rc::clone(&sections));
            stage.thread(node, "tries", move |ep| {
                ep.block_on(async {
                    for _ in 0..2 {
                        if let Some(guard) = locks.try_lock(ep, 0).await? {
                            x.add(ep).await?;
                            guard.unlock().await?;
                            sections.set(sections.get() + 1);
                        }
                    }
                    Ok(())
                })
            });
        }
        x.counts(stage, &locks[0], move || sections.get());
        Ok(())
    })
}

/// Waits that may end at any moment: an operation that is queued by then passes the lock on.
fn ends_early<L: LockArray + 'static>(
    name: &str,
    about: &str,
    open: fn(&Stage) -> Result<Vec<Rc<L>>>,
    attempt: Attempt,
) -> Scenario {
    Scenario::new(name, about, 2, move |stage| {
        let (locks, x) = (open(stage)?, Counter::new(stage, 1)?);
        let sections = Rc::new(Cell::new(2));
        for node in [0, 1] {
            let (locks, x, sections) = (Rc::clone(&locks[node]), x.clone(), Rc::clone(&sections));
            stage.thread(node, "adder", move |ep| {
                ep.block_on(async {
                    let guard = match attempt {
                        Attempt::Deadline => Some(locks.lock_deadline(ep, 0, ep.now()).await),
                        Attempt::Timeout => {
                            ep.set_timeout(Duration::from_millis(50));
                            Some(locks.lock(ep, 0).await)
                        }
                        Attempt::Dropped => cut(choose(6), locks.lock(ep, 0)).await,
                    };
                    match guard {
                        Some(Ok(guard)) => {
                            x.add(ep).await?;
                            guard.unlock().await?;
                            sections.set(sections.get() + 1);
                        }
                        Some(Err(error)) => assert!(error.is_timeout(), "{error}"),
                        None => {}
                    }
                    ep.set_timeout(Duration::from_secs(3600));
                    section(&*locks, ep, &x).await
                })
            });
        }
        x.counts(stage, &locks[0], move || sections.get());
        Ok(())
    })
}

/// How a wait ends.
#[derive(Clone, Copy)]
enum Attempt {
    Deadline,
    Timeout,
    Dropped,
}

fn deadline() -> Scenario {
    ends_early("alock/deadline", "who gives up waiting keeps nobody from the lock", open, Attempt::Deadline)
        .kills(&["mcs-dropped-kept"])
}

fn timeout() -> Scenario {
    ends_early("alock/timeout", "waits that end at any moment lose no turn and no increment", open, Attempt::Timeout)
        .early_timeouts()
}

const DROPPED: &str = "an operation that is dropped at any moment holds nothing and has no turn";

fn dropped() -> Scenario {
    ends_early("alock/dropped", DROPPED, open, Attempt::Dropped)
}

fn mcs_dropped() -> Scenario {
    ends_early("mcs/dropped", DROPPED, open_mcs, Attempt::Dropped)
}

/// A put of a dropped operation does not land much later: it would name a victim while others compete.
fn late_victim() -> Scenario {
    Scenario::new("alock/late-victim", "an operation that is dropped names no victim afterwards", 3, |stage| {
        let (locks, x) = (open(stage)?, Counter::new(stage, 0)?);
        let dropping = Rc::clone(&locks[1]);
        stage.thread(1, "drops", move |ep| {
            ep.block_on(async {
                let puts = ep.counts().puts;
                let mut lock = pin!(dropping.lock(ep, 0));
                // It has just put the victim, or its predecessor.
                let guard = poll_fn(|cx| match lock.as_mut().poll(cx) {
                    Poll::Ready(guard) => Poll::Ready(Some(guard)),
                    Poll::Pending if ep.counts().puts > puts => Poll::Ready(None),
                    Poll::Pending => Poll::Pending,
                })
                .await;
                match guard {
                    Some(guard) => guard?.unlock().await,
                    None => Ok(()),
                }
            })
        });
        let inside = Rc::new(Cell::new(false));
        for node in [0, 2] {
            let (locks, x, inside) = (Rc::clone(&locks[node]), x.clone(), Rc::clone(&inside));
            stage.thread(node, "adder", move |ep| {
                ep.block_on(async {
                    let guard = locks.lock(ep, 0).await?;
                    assert!(!inside.replace(true), "node {node} is inside beside another");
                    x.add(ep).await?;
                    // Long enough for a late put.
                    let _ = ep.wait_until(ep.now() + Duration::from_millis(1), || None::<()>).await;
                    inside.set(false);
                    guard.unlock().await
                })
            });
        }
        x.counts(stage, &locks[0], || 2);
        Ok(())
    })
    .kills(&["alock-victim-late"])
}

/// Each thread locks and unlocks twice, even if another dies. The live ones complete in the end. Each stays inside for
/// a while.
fn users<L: LockArray + 'static>(
    stage: &Stage,
    locks: Vec<Rc<L>>,
    threads: &'static [usize],
    stays: Duration,
) -> Result<()> {
    let x = Counter::new(stage, 0)?;
    let (done, inside) = (stage.log(), Rc::new(Cell::new(None::<usize>)));
    let told = Rc::new(Cell::new(0));
    for node in threads {
        let (locks, x, done) = (Rc::clone(&locks[*node]), x.clone(), done.clone());
        let (inside, told) = (Rc::clone(&inside), Rc::clone(&told));
        stage.thread(*node, "locks", move |ep| {
            for _ in 0..2 {
                let mut guard = patiently(|| ep.block_on(locks.lock(ep, 0)))?;
                // A dead holder stays inside, and the next holder learns of its death.
                let left = inside.replace(Some(*node));
                assert!(left.is_none_or(|left| crashed(left) && guard.is_after_death()), "{left:?} is inside, too");
                assert!(!guard.is_after_death() || (1..3).any(crashed), "nobody has died");
                told.set(told.get() + u32::from(guard.is_after_death()));
                // Long enough for others to notice a death.
                let _ = ep.block_on(ep.wait_until(ep.now() + stays, || None::<()>));
                ep.block_on(x.add(ep))?;
                guard.repaired();
                inside.set(None);
                ep.block_on(guard.unlock())?;
            }
            done.push(*node);
            Ok(())
        });
    }
    stage.finally(move || {
        let done = done.take();
        for node in threads {
            assert!(crashed(*node) || done.contains(node), "node {node} has had its turns");
        }
        // Each holder repairs the deaths that are reported to it. Each dead node had one operation in the queue at a
        // time, and one that had just left and had lost its grant.
        let dead = threads.iter().filter(|node| crashed(**node)).count() as u32;
        assert!(told.get() <= 2 * dead, "{} were told of the death of {dead}", told.get());
        Ok(())
    });
    Ok(())
}

fn spin_holder_dies() -> Scenario {
    Scenario::new("spin/holder-dies", "a lock is taken from the dead", 3, |stage| {
        users(
            stage,
            stage.on_each(|node| SpinLockArray::open(node, "locks", 1).map(Rc::new))?,
            &[0, 1, 2],
            Duration::ZERO,
        )
    })
    .faults(Faults::new().crashes(1).of([1]))
    .kills(&["spin-holder-kept"])
}

fn mcs_user_dies() -> Scenario {
    Scenario::new("mcs/user-dies", "the queue goes on without the dead", 3, |stage| {
        users(stage, open_mcs(stage)?, &[0, 1, 2], Duration::ZERO)
    })
    .faults(Faults::new().crashes(1).of([1]))
}

/// Node 1 has two operations in the queue when it dies, and others are between them and behind them.
fn stuck_twice() -> Scenario {
    Scenario::new("mcs/stuck-twice", "of several that are behind the dead, one at a time goes on", 3, |stage| {
        users(stage, open_mcs(stage)?, &[1, 0, 1, 2], Duration::from_millis(100))
    })
    .faults(Faults::new().crashes(1).of([1]))
    .kills(&["mcs-tail-first"])
}

/// A waiter behind the dead one reads the other waiters' descriptors. Meanwhile one of them, at the head, leaves and
/// takes the lock again with the same descriptor: then it is behind the waiter that reads.
fn used_again() -> Scenario {
    let about = "what is read of the others is read of one use of their descriptors";
    Scenario::new("mcs/used-again", about, 4, |stage| {
        let locks = open_mcs(stage)?;
        let nodes: Vec<Node> = stage.nodes().to_vec();
        // How many have entered the queue, and how many gets the last one has posted.
        let (came, looks) = (Rc::new(Word::new(0)), Rc::new(Word::new(0)));
        let inside = Rc::new(Cell::new(None::<usize>));
        let enter = move |ep: &Endpoint, guard: &mut McsGuard<'_>| {
            let left = inside.replace(Some(ep.me().index()));
            assert!(left.is_none_or(|left| left == 1 && crashed(1)), "{left:?} is inside, too");
            let _ = ep.block_on(ep.wait_until(ep.now() + Duration::from_millis(1), || None::<()>));
            guard.repaired();
            inside.set(None);
        };
        for (turn, node) in [0, 2, 1, 3].into_iter().enumerate() {
            let (locks, node) = (Rc::clone(&locks[node]), nodes[node].clone());
            let (came, looks, enter) = (Rc::clone(&came), Rc::clone(&looks), enter.clone());
            stage.thread(node.id().index(), ["leads", "follows", "dies", "looks"][turn], move |ep| {
                let waits_for = |come: &Word, count: usize| {
                    let is_dead = || node.standing_of(NodeId(1)) != Standing::Member;
                    let come = || (come.load() >= count as u64 || is_dead()).then_some(());
                    ep.block_on(ep.wait_until(Instant::NEVER, come))
                };
                waits_for(&came, turn)?;
                let counts = ep.counts();
                let mut lock = pin!(locks.lock(ep, 0));
                let mut guard = ep.block_on(poll_fn(|cx| {
                    let polled = lock.as_mut().poll(cx);
                    let spent = ep.counts() - counts;
                    // It is in the queue: it has notified its predecessor.
                    if came.load() == turn as u64 && (polled.is_ready() || spent.puts > 0) {
                        came.store(turn as u64 + 1);
                    }
                    if turn == 3 {
                        looks.store(spent.gets);
                    }
                    polled
                }))?;
                if turn == 0 {
                    waits_for(&came, 4)?;
                    // With its sixth get, the last one reads this one's state for the second time.
                    let may_go = || (looks.load() >= 6).then_some(());
                    let _ = ep.block_on(ep.wait_until(ep.now() + Duration::from_secs(1), may_go));
                    ep.block_on(guard.unlock())?;
                    guard = ep.block_on(locks.lock(ep, 0))?;
                }
                enter(ep, &mut guard);
                ep.block_on(guard.unlock())
            });
        }
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([1]))
    .kills(&["mcs-survey-torn"])
}

/// It is unknown whether an attempt that a cut has ended has entered the queue, so its descriptor is not used again.
/// However many attempts there are, they use up only one descriptor.
fn home_is_cut_off() -> Scenario {
    let about = "attempts to lock what is out of reach use up no more than one operation";
    Scenario::new("mcs/home-cut", about, 3, |stage| {
        let locks = Rc::clone(&open_mcs_for(stage, 2)?[1]);
        stage.thread(1, "locks", move |ep| {
            for _ in 0..4 {
                match ep.block_on(async { locks.lock(ep, 0).await?.unlock().await }) {
                    Err(error) if !comes_of_faults(&error) => return Err(error),
                    _ => {}
                }
            }
            Ok(())
        });
        Ok(())
    })
    .rule(DeathRule::Majority)
    .faults(Faults::new().cuts(1).side([0]))
    .kills(&["mcs-asks-again"])
}

fn alock_users(name: &str, about: &str, nodes: usize, threads: &'static [usize], stays: Duration) -> Scenario {
    Scenario::new(name, about, nodes, move |stage| users(stage, open(stage)?, threads, stays))
}

/// The remote queue has only the dead one: the local head detects that.
fn last_remote_dies() -> Scenario {
    alock_users("alock/last-remote-dies", "a local head does not wait for the dead", 2, &[0, 1], Duration::ZERO)
        .faults(Faults::new().crashes(1).of([1]))
}

/// Node 1 dies: as the holder, in front of node 2, or behind it.
fn holder_dies() -> Scenario {
    alock_users("alock/holder-dies", "the remote queue goes on without a dead holder", 3, &[1, 2], Duration::ZERO)
        .faults(Faults::new().crashes(1).of([1]))
}

/// Node 2 dies between two others: the waiter behind it does not take the lock from a living holder.
fn waiter_dies() -> Scenario {
    alock_users(
        "alock/waiter-dies",
        "the remote queue goes on without a dead waiter",
        4,
        &[1, 2, 3],
        Duration::from_millis(100),
    )
    .faults(Faults::new().crashes(1).of([2]))
    .kills(&["mcs-claims-blindly"])
}

/// The same in both cohorts, with one more waiter behind.
fn users_die() -> Scenario {
    const THREADS: &[usize] = &[0, 1, 2, 3, 4];
    alock_users("alock/users-die", "both cohorts go on without the dead", 5, THREADS, Duration::from_millis(100))
        .faults(Faults::new().crashes(2).of([1, 2]))
}

/// Each node transfers an amount from its own account to the other's. It names its own account first, which is
/// second for the other node.
fn transfers() -> Scenario {
    const AMOUNT: u64 = 100;
    let about = "transfers under two locks keep the sum, and nobody waits in a circle";
    Scenario::new("transactions/transfers", about, 2, |stage| {
        let lock = LockOptions { kind: LockKind::ALock, alock: OPTIONS };
        let options = TransactionOptions { cells: 2, locks: 2, lock };
        let all = stage.on_each(move |node| Transactions::open(node, "accounts", options).map(Rc::new))?;
        for accounts in &all {
            accounts.own_cells().for_each(|(_, word)| word.store(AMOUNT));
        }
        for (node, amount) in [(0, 30), (1, 7)] {
            let accounts = Rc::clone(&all[node]);
            stage.thread(node, "transfer", move |ep| {
                ep.block_on(async {
                    let cells = [node, 1 - node];
                    let mut transaction = accounts.begin(ep, &cells).await?;
                    let held = transaction.read_all(&cells).await?;
                    assert_eq!(held[0] + held[1], 2 * AMOUNT, "half of a transfer was seen: {held:?}");
                    transaction.write(cells[0], held[0] - amount)?;
                    transaction.write(cells[1], held[1] + amount)?;
                    transaction.commit().await
                })
            });
        }
        stage.finally(move || {
            let held: Vec<u64> = all.iter().flat_map(|of| of.own_cells()).map(|(_, word)| word.load()).collect();
            assert_eq!(held, [AMOUNT - 23, AMOUNT + 23], "both transfers were done");
            Ok(())
        });
        Ok(())
    })
    .kills(&["transactions-unordered"])
}
