//! Scenarios for the model checker. As for the mutex, most scenarios add one to a word under the lock. Two simultaneous
//! holders lose an increment, and so does a holder that does not see the last holder's write.

mod deaths;
mod entries;
mod poison;
mod random;
mod refused;

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use farfield_check::parts::{cut, word};
use farfield_check::{Cluster, Log, Scenario, choose, crashed, with_at_once, with_slow};
use farfield_core::{Endpoint, MutexArray, Result};
use farfield_fabric::{Instant, Region, Word};

use self::deaths::{
    holder_dies, home_is_cut_off, last_remote_dies, mcs_user_dies, spin_holder_dies, stuck_twice, used_again,
    users_die, waiter_dies,
};
use crate::{ALockArray, ALockOptions, LockArray, LockGuard, McsLockArray, SpinLockArray};

/// All of them, in the order in which they are searched.
///
/// ```
/// let scenarios = farfield_locks::scenarios::all();
/// assert!(scenarios.iter().any(|scenario| scenario.name() == "alock/cohorts"));
/// ```
pub fn all() -> Vec<Scenario> {
    let all = [
        release(),
        spin_release(),
        mcs_release(),
        neighbours(),
        cohorts("alock/one-of-each", &[0, 1]).medium(),
        cohorts("alock/cohorts", &[0, 0, 1]).medium().kills(&["alock-victim-unfenced", "alock-wrong-cohort"]),
        cohorts("alock/remote-queue", &[1, 2]).medium().kills(&["mcs-not-told"]),
        cohorts("alock/both-queues", &[0, 0, 1, 2]),
        turns(),
        budget(),
        local_budget(),
        passed_on(),
        window(),
        trying(),
        deadline(),
        timeout(),
        dropped(),
        late_victim(),
        spin_holder_dies(),
        mcs_user_dies(),
        mcs_dropped(),
        dropped_behind(),
        spin_dropped(),
        stuck_twice(),
        used_again(),
        home_is_cut_off(),
        last_remote_dies(),
        holder_dies(),
        waiter_dies(),
        users_die(),
    ]
    .into_iter()
    .chain(deaths::scenarios())
    .chain(entries::scenarios())
    .chain(poison::scenarios())
    .chain(random::scenarios())
    .chain(refused::scenarios());
    with_at_once(with_slow(all), AT_ONCE)
}

/// Those that are also searched with operations that complete at once.
#[rustfmt::skip]
const AT_ONCE: &[&str] = &[
    "alock/release", "spin/release", "mcs/release", "mcs/neighbours", "alock/both-queues", "alock/turns",
    "alock/window", "alock/trying", "alock/timeout", "alock/late-victim", "mcs/dropped", "mcs/user-dies",
    "mcs/seen-whole", "mcs/home-cut", "alock/holder-dies", "alock/users-die", "alock/told-once", "mcs/told-once",
    "spin/holder-dies", "locks/random", "locks/random-dies", "mcs/refused", "alock/refused", "alock/holder-cut",
    "mcs/holder-cut",
];

const OPTIONS: ALockOptions = ALockOptions { remote_budget: 2, local_budget: 2, operations_max: 32 };

type Open<L> = fn(&Cluster) -> Result<Vec<Rc<L>>>;

fn open(cluster: &Cluster) -> Result<Vec<Rc<ALockArray>>> {
    open_with(cluster, OPTIONS)
}

/// One lock, on node 0.
fn open_with(cluster: &Cluster, options: ALockOptions) -> Result<Vec<Rc<ALockArray>>> {
    cluster.on_each(move |node| ALockArray::open(node, "locks", 1, options).map(Rc::new))
}

/// A kind of lock with a limited number of entries for its operations.
trait Entries: LockArray + 'static {
    /// How many are in use on this node.
    fn entries(&self) -> usize;
}

impl Entries for ALockArray {
    fn entries(&self) -> usize {
        self.entries()
    }
}

impl Entries for McsLockArray {
    fn entries(&self) -> usize {
        self.entries()
    }
}

impl Entries for SpinLockArray {
    fn entries(&self) -> usize {
        0
    }
}

impl Entries for MutexArray {
    fn entries(&self) -> usize {
        0
    }
}

/// At the end each node has all its entries again, also those of operations that were dropped or given up.
fn gives_back<L: Entries>(cluster: &Cluster, locks: &[Rc<L>]) {
    let (nodes, locks) = (cluster.nodes(), locks.to_vec());
    cluster.at_end(move || {
        for (node, locks) in nodes.iter().zip(locks).filter(|(node, _)| !crashed(node.id().index())) {
            let (ep, free) = (node.endpoint()?, || (locks.entries() == 0).then_some(()));
            // After each pause the service threads look once more.
            let waits = |_| ep.block_on(ep.wait_until(ep.now() + Duration::from_millis(100), free)).is_ok();
            assert!((0..20).any(waits), "{} entries of {} were not given back", locks.entries(), node.id());
        }
        Ok(())
    });
}

/// A word that is read and written under a lock: by the CPU of its node, and by the NICs of other nodes.
#[derive(Clone)]
struct Counter {
    home: usize,
    region: Region,
}

impl Counter {
    fn new(cluster: &Cluster, home: usize) -> Result<Counter> {
        Ok(Counter { home, region: word(cluster, home, "x")? })
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
    fn counts<L: Entries>(self, cluster: &Cluster, all: &[Rc<L>], sections: impl FnOnce() -> u64 + 'static) {
        gives_back(cluster, all);
        let (nodes, locks) = (cluster.node(0), Rc::clone(&all[0]));
        cluster.at_end(move || {
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
fn releases<L: Entries>(cluster: &Cluster, locks: Vec<Rc<L>>) -> Result<()> {
    let x = Counter::new(cluster, 1)?;
    for (node, locks) in locks.iter().cloned().enumerate() {
        let x = x.clone();
        cluster.thread(node, "adder", move |ep| ep.block_on(section(&*locks, ep, &x)));
    }
    x.counts(cluster, &locks, || 2);
    Ok(())
}

fn release() -> Scenario {
    let about = "what a holder puts on another node than the lock's is seen by the next, of either cohort";
    Scenario::new("alock/release", about, 2, |cluster| releases(cluster, open(cluster)?))
        .medium()
        .kills(&["alock-no-fence"])
}

fn spin_release() -> Scenario {
    let about = "what a holder puts on another node than the lock's is seen by the next";
    Scenario::new("spin/release", about, 2, |cluster| releases(cluster, open_spin(cluster)?))
        .small()
        .kills(&["spin-no-fence"])
}

fn open_spin(cluster: &Cluster) -> Result<Vec<Rc<SpinLockArray>>> {
    cluster.on_each(|node| SpinLockArray::open(node, "locks", 1).map(Rc::new))
}

fn open_mcs(cluster: &Cluster) -> Result<Vec<Rc<McsLockArray>>> {
    open_mcs_for(cluster, 32)
}

fn open_mcs_for(cluster: &Cluster, operations_max: usize) -> Result<Vec<Rc<McsLockArray>>> {
    cluster.on_each(move |node| McsLockArray::open(node, "locks", 1, operations_max).map(Rc::new))
}

fn mcs_release() -> Scenario {
    let about = "what a holder puts on another node than the lock's is seen by the next";
    Scenario::new("mcs/release", about, 2, |cluster| releases(cluster, open_mcs(cluster)?))
        .small()
        .kills(&["mcs-no-fence"])
}

/// The lock is on another node, and one thread passes it to another thread of its node by a store. A put of the first
/// to a word of that node lands through the NIC, and the model does not order it before a store. So the release has to
/// fence its own node, too.
fn neighbours() -> Scenario {
    let about =
        "what a holder puts on its own node is seen by the next one of that node, which is handed the lock by a store";
    Scenario::new("mcs/neighbours", about, 2, |cluster| {
        let (locks, x) = (open_mcs(cluster)?, Counter::new(cluster, 1)?);
        for _ in 0..2 {
            let (locks, x) = (Rc::clone(&locks[1]), x.clone());
            cluster.thread(1, "adder", move |ep| {
                ep.block_on(async {
                    let guard = locks.lock(ep, 0).await?;
                    ep.put_value(x.region.remote(0), x.region.word(0).load() + 1).detach()?;
                    guard.unlock().await
                })
            });
        }
        x.counts(cluster, &locks, || 2);
        Ok(())
    })
    .small()
    .kills(&["mcs-spares-own-node"])
}

/// Operations of both cohorts, or of one: Peterson's algorithm, and a queue in one of them or both. The operations only
/// record that they are inside. Other scenarios check what a holder sees; that keeps these smaller.
fn cohorts(name: &str, threads: &'static [usize]) -> Scenario {
    let nodes = threads.iter().max().expect("some") + 1;
    Scenario::new(name, "threads of the cohorts are never inside at once", nodes, move |cluster| {
        let (locks, inside) = (open(cluster)?, cluster.log());
        for (number, node) in threads.iter().enumerate() {
            let (locks, inside) = (Rc::clone(&locks[*node]), inside.clone());
            cluster.thread(*node, "enters", move |ep| {
                ep.block_on(async {
                    let guard = locks.lock(ep, 0).await?;
                    inside.push(number);
                    inside.push(number);
                    guard.unlock().await
                })
            });
        }
        cluster.at_end(move || {
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
    Scenario::new("alock/turns", "two threads of each cohort take turns", 3, |cluster| {
        let (locks, x) = (open(cluster)?, Counter::new(cluster, 0)?);
        for node in [0, 0, 1, 2] {
            let (locks, x) = (Rc::clone(&locks[node]), x.clone());
            cluster.thread(node, "adder", move |ep| {
                ep.block_on(async {
                    section(&*locks, ep, &x).await?;
                    section(&*locks, ep, &x).await
                })
            });
        }
        x.counts(cluster, &locks, || 8);
        Ok(())
    })
}

/// One operation waits as the head of its cohort. Two of the other cohort would hand the lock to each other for ever:
/// they overtake it as often as the budget allows. Its wait can be observed from outside: a local one when its future
/// is pending, a remote one when it reads the lock for the second time.
fn overtaking(name: &'static str, waiter: usize, others: [usize; 2]) -> Scenario {
    const BUDGET: u32 = 1;
    let options = ALockOptions { remote_budget: BUDGET, local_budget: BUDGET, operations_max: 32 };
    Scenario::new(name, "a cohort overtakes the other as often as its budget says", 3, move |cluster| {
        let locks = open_with(cluster, options)?;
        let order: Log<usize> = cluster.log();
        const WAITS: usize = usize::MAX;
        for node in others {
            let (locks, order) = (Rc::clone(&locks[node]), order.clone());
            cluster.thread(node, "overtakes", move |ep| {
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
        cluster.thread(waiter, "waits", move |ep| {
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
        cluster.at_end(move || {
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

/// An operation is behind the holder in its cohort, and one of the other cohort waits as the head of its own. The
/// holder has budget left, so the one behind it is next.
fn passed_on() -> Scenario {
    let about = "a holder with budget left passes the lock on within its cohort";
    Scenario::new("alock/passed-on", about, 2, move |cluster| {
        let locks = open_with(cluster, ALockOptions { remote_budget: 2, local_budget: 2, operations_max: 32 })?;
        let (order, step) = (cluster.log(), Rc::new(Word::new(0)));
        let (of_home, log, steps) = (Rc::clone(&locks[0]), order.clone(), Rc::clone(&step));
        cluster.thread(0, "passes on", move |ep| {
            ep.block_on(async {
                let guard = of_home.lock(ep, 0).await?;
                steps.store(1);
                let mut behind = pin!(of_home.lock(ep, 0));
                let first = poll_fn(|cx| Poll::Ready(behind.as_mut().poll(cx).is_pending())).await;
                assert!(first, "the lock is held");
                ep.wait_until(Instant::NEVER, || (steps.load() == 2).then_some(())).await?;
                guard.unlock().await?;
                let guard = behind.await?;
                log.push(0);
                guard.unlock().await
            })
        });
        let (remote, log) = (Rc::clone(&locks[1]), order.clone());
        cluster.thread(1, "waits", move |ep| {
            ep.block_on(async {
                ep.wait_until(Instant::NEVER, || (step.load() == 1).then_some(())).await?;
                let looks = ep.counts().gets;
                let mut lock = pin!(remote.lock(ep, 0));
                poll_fn(|cx| match lock.as_mut().poll(cx) {
                    Poll::Ready(_) => panic!("the lock is held"),
                    Poll::Pending if ep.counts().gets > looks + 1 => Poll::Ready(()),
                    Poll::Pending => Poll::Pending,
                })
                .await;
                step.store(2);
                let guard = lock.await?;
                log.push(1);
                guard.unlock().await
            })
        });
        cluster.at_end(move || {
            assert_eq!(order.take(), [0, 1], "the order of those that waited");
            Ok(())
        });
        Ok(())
    })
}

fn local_budget() -> Scenario {
    overtaking("alock/local-budget", 1, [0, 0])
}

/// Operations of one thread share its endpoint and nothing else: each is an entry of its own.
fn window() -> Scenario {
    Scenario::new("alock/window", "several operations of one thread exclude each other", 2, |cluster| {
        let (locks, x) = (open(cluster)?, Counter::new(cluster, 0)?);
        for node in 0..2 {
            let (locks, x) = (Rc::clone(&locks[node]), x.clone());
            cluster.thread(node, "adder", move |ep| {
                let mut ended = Ok(());
                let add = || section(&*locks, ep, &x);
                ep.run_window(2, [add(), add()], |result| ended = ended.clone().and(result));
                ended
            });
        }
        x.counts(cluster, &locks, || 4);
        Ok(())
    })
}

/// `try_lock` in both cohorts: it never waits, and leaves no obstacle.
fn trying() -> Scenario {
    Scenario::new("alock/trying", "who tries is excluded like who waits, and never waits", 2, |cluster| {
        let (locks, x) = (open(cluster)?, Counter::new(cluster, 0)?);
        let sections = Rc::new(Cell::new(0));
        for node in [0, 0, 1] {
            let (locks, x, sections) = (Rc::clone(&locks[node]), x.clone(), Rc::clone(&sections));
            cluster.thread(node, "tries", move |ep| {
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
        x.counts(cluster, &locks, move || sections.get());
        Ok(())
    })
}

/// Waits that may end at any moment: an operation that is queued by then passes the lock on.
fn ends_early<L: Entries>(
    name: &str,
    about: &str,
    open: fn(&Cluster) -> Result<Vec<Rc<L>>>,
    (threads, attempt): (&'static [usize], Attempt),
) -> Scenario {
    let nodes = threads.iter().max().expect("some") + 1;
    Scenario::new(name, about, nodes, move |cluster| {
        let (locks, x) = (open(cluster)?, Counter::new(cluster, 1)?);
        let sections = Rc::new(Cell::new(threads.len() as u64));
        for node in threads {
            let (locks, x, sections) = (Rc::clone(&locks[*node]), x.clone(), Rc::clone(&sections));
            cluster.thread(*node, "adder", move |ep| {
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
        x.counts(cluster, &locks, move || sections.get());
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
    ends_early("alock/deadline", "who gives up waiting keeps nobody from the lock", open, (&[0, 1], Attempt::Deadline))
        .kills(&["mcs-dropped-kept"])
}

fn timeout() -> Scenario {
    ends_early(
        "alock/timeout",
        "waits that end at any moment lose no turn and no increment",
        open,
        (&[0, 1], Attempt::Timeout),
    )
    .early_timeouts()
}

const DROPPED: &str = "an operation that is dropped at any moment holds nothing and has no turn";

fn dropped() -> Scenario {
    ends_early("alock/dropped", DROPPED, open, (&[0, 1], Attempt::Dropped))
}

/// Dropped while another of its cohort has the lock: the service thread is handed it instead, and passes it on.
fn dropped_behind() -> Scenario {
    ends_early("alock/dropped-behind", DROPPED, open, (&[0, 0, 1, 2], Attempt::Dropped))
}

fn spin_dropped() -> Scenario {
    ends_early("spin/dropped", DROPPED, open_spin, (&[0, 1], Attempt::Dropped))
}

fn mcs_dropped() -> Scenario {
    ends_early("mcs/dropped", DROPPED, open_mcs, (&[0, 1], Attempt::Dropped))
}

/// A put of a dropped operation does not land much later: it would name a victim while others compete.
fn late_victim() -> Scenario {
    Scenario::new("alock/late-victim", "an operation that is dropped names no victim afterwards", 3, |cluster| {
        let (locks, x) = (open(cluster)?, Counter::new(cluster, 0)?);
        let dropping = Rc::clone(&locks[1]);
        cluster.thread(1, "drops", move |ep| {
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
            cluster.thread(node, "adder", move |ep| {
                ep.block_on(async {
                    let guard = locks.lock(ep, 0).await?;
                    assert!(!inside.replace(true), "node {node} is inside beside another");
                    x.add(ep).await?;
                    // Long enough for a late put.
                    ep.sleep_until(ep.now() + Duration::from_millis(1)).await;
                    inside.set(false);
                    guard.unlock().await
                })
            });
        }
        x.counts(cluster, &locks, || 2);
        Ok(())
    })
    .kills(&["alock-victim-late"])
}
