//! Sessions of several nodes inside this process, over every fabric and with more threads than cores.

use std::future::Future;
use std::io::Write;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, Once, PoisonError, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use farfield::fabric::ucx::Secret;
use farfield::fabric::verbs::VerbsOptions;
use farfield::fabric::weak::weaken;
use farfield::{Builder, Endpoint, Error, Node, NodeId, Result, local_session_with, loopback_hosts, on_each};

/// The timeout for everything that must happen.
pub(crate) const SOON: Duration = Duration::from_secs(30);
/// The timeout for a wait that is meant to fail.
pub(crate) const SHORT: Duration = Duration::from_millis(60);
/// The longest run time of a scenario, on a busy machine too.
const SCENARIO_MAX: Duration = Duration::from_secs(120);

/// The fabric of the nodes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Over {
    /// Shared memory.
    Shm,
    /// As late and as reordered as the model allows; a seed makes the choices.
    Weak(u64),
    /// This machine's RDMA devices, those of `FARFIELD_DEVICE` in turn.
    Verbs,
    /// TCP, by UCX.
    Ucx,
}

/// The fabric between hosts on which alone the scenarios run: `FARFIELD_TEST_FABRIC=verbs` or `ucx`.
pub(crate) fn between_hosts() -> Option<Over> {
    match std::env::var("FARFIELD_TEST_FABRIC").ok()?.as_str() {
        "verbs" => Some(Over::Verbs),
        "ucx" => Some(Over::Ucx),
        _ => None,
    }
}

/// The turn of a long run, `FARFIELD_TEST_LONG=N`: which of the further fabrics, seeds and numbers of threads it adds.
/// CI takes other ones for each commit.
fn turn() -> Option<usize> {
    let turn = std::env::var("FARFIELD_TEST_LONG").ok()?;
    Some(turn.parse().expect("FARFIELD_TEST_LONG is a number"))
}

/// A session, and its load.
pub(crate) struct Scene {
    pub(crate) nodes: Vec<Node>,
    pub(crate) over: Over,
    /// The number of threads on each node.
    pub(crate) threads: usize,
}

/// How many scenarios run on the cores, or none but one that has all of them.
enum Busy {
    Shared(usize),
    Whole,
}

/// Most scenarios wait more than they work, and run beside each other, also before one that waits for all cores. What
/// looks at times runs alone.
static CORES: Mutex<Busy> = Mutex::new(Busy::Shared(0));
static FREED: Condvar = Condvar::new();

/// A scenario's share of the cores.
struct Cores;

impl Cores {
    fn whole() -> Cores {
        let busy = CORES.lock().unwrap_or_else(PoisonError::into_inner);
        let free = FREED.wait_while(busy, |busy| !matches!(busy, Busy::Shared(0)));
        *free.unwrap_or_else(PoisonError::into_inner) = Busy::Whole;
        Cores
    }

    fn shared() -> Cores {
        let busy = CORES.lock().unwrap_or_else(PoisonError::into_inner);
        let free = FREED.wait_while(busy, |busy| matches!(busy, Busy::Whole));
        if let Busy::Shared(count) = &mut *free.unwrap_or_else(PoisonError::into_inner) {
            *count += 1;
        }
        Cores
    }
}

impl Drop for Cores {
    fn drop(&mut self) {
        let mut busy = CORES.lock().unwrap_or_else(PoisonError::into_inner);
        *busy = match *busy {
            Busy::Shared(count) => Busy::Shared(count - 1),
            Busy::Whole => Busy::Shared(0),
        };
        if matches!(*busy, Busy::Shared(0)) {
            // They are of scenarios that have ended.
            PANICS.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
        FREED.notify_all();
    }
}

/// The panics of the scenario's threads. Other threads may wait for a panicked one, and the test runner holds back its
/// message until the test has ended.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn note_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.lock().unwrap_or_else(PoisonError::into_inner).push(panic.to_string());
            usual(panic);
        }));
    });
}

/// Sets a flag at the end of a scope, also after a panic, so that threads that poll the flag stop.
pub(crate) struct SetsAtEnd<'a>(pub(crate) &'a AtomicBool);

impl Drop for SetsAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A scenario that runs: its share of the cores, and a watchdog that aborts the process if it hangs.
pub(crate) struct Running {
    _cores: Cores,
    done: Option<mpsc::Sender<()>>,
    watchdog: Option<std::thread::JoinHandle<()>>,
}

/// Waits for its turn on the machine, and starts a watchdog that aborts the process if the scenario hangs.
pub(crate) fn alone(label: &str) -> Running {
    watched(label, Cores::whole())
}

/// As [`alone`], beside other scenarios, but between hosts.
pub(crate) fn beside(label: &str) -> Running {
    if between_hosts().is_some() { alone(label) } else { watched(label, Cores::shared()) }
}

fn watched(label: &str, cores: Cores) -> Running {
    note_panics();
    let (done, watch) = mpsc::channel::<()>();
    let label = label.to_string();
    let watchdog = std::thread::spawn(move || {
        if watch.recv_timeout(SCENARIO_MAX) == Err(mpsc::RecvTimeoutError::Timeout) {
            // Not by a macro: the test runner would capture the output.
            let panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = writeln!(std::io::stderr(), "{label} has not ended within {SCENARIO_MAX:?}; panics: {panics:#?}");
            std::process::abort();
        }
    });
    Running { _cores: cores, done: Some(done), watchdog: Some(watchdog) }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.done.take();
        if let Some(watchdog) = self.watchdog.take() {
            let _ = watchdog.join();
        }
    }
}

/// Runs a scenario over shared memory, and over the weak fabric with several seeds. Each runs with one thread on each
/// node, with two, and with four threads for each core in total: three of these, and another one in a long run.
pub(crate) fn everywhere(label: &str, nodes: usize, body: fn(&Scene)) {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let many = (4 * cores).div_ceil(nodes).clamp(2, 16);
    if let Some(over) = between_hosts() {
        let threads = [1, 2].into_iter().filter(|threads| turn().is_none_or(|turn| threads % 2 == turn % 2));
        return threads.for_each(|threads| on(label, nodes, over, threads, body));
    }
    let short = [(Over::Shm, 2), (Over::Weak(1), 1), (Over::Weak(3), many)];
    let long = [(Over::Shm, 1), (Over::Shm, many), (Over::Weak(2), 2)];
    let all = short.into_iter().chain(turn().map(|turn| long[turn % long.len()]));
    all.for_each(|(over, threads)| on(label, nodes, over, threads, body));
}

/// Runs a scenario of one thread on each node over shared memory and over the weak fabric with several seeds.
pub(crate) fn on_each_fabric(label: &str, nodes: usize, body: fn(&Scene)) {
    for over in fabrics(&[4, 5]) {
        on(label, nodes, over, 1, body);
    }
}

/// Shared memory and the weak fabric with the first of these seeds, in a long run with another one, too; or the fabric
/// between hosts.
pub(crate) fn fabrics(weak: &[u64]) -> Vec<Over> {
    if let Some(over) = between_hosts() {
        return vec![over];
    }
    let Some((first, more)) = weak.split_first() else { return vec![Over::Shm] };
    let another = turn().filter(|_| !more.is_empty()).map(|turn| more[turn % more.len()]);
    [Over::Shm, Over::Weak(*first)].into_iter().chain(another.map(Over::Weak)).collect()
}

/// Rounds with their fabrics: each `nth` on the weak fabric with its number as the seed, the others on shared memory.
/// Between hosts there are fewer.
pub(crate) fn rounds(count: u64, nth: u64) -> impl Iterator<Item = (u64, Over)> {
    let hosts = between_hosts();
    let count = if hosts.is_some() { count.div_ceil(10) } else { count };
    (0..count).map(move |round| match (hosts, round % nth) {
        (Some(over), _) => (round, over),
        (None, 0) => (round, Over::Weak(round)),
        (None, _) => (round, Over::Shm),
    })
}

fn on(label: &str, nodes: usize, over: Over, threads: usize, body: fn(&Scene)) {
    let label = format!("{label} over {over:?}, {nodes} nodes of {threads} threads");
    let _cores = beside(&label);
    let start = Instant::now();
    body(&Scene { nodes: session(nodes, over), over, threads });
    println!("{:>8.0?} {label}", start.elapsed());
}

/// Sets the fabric of a scenario's node.
pub(crate) fn over(over: Over, nodes: usize) -> impl Fn(Builder) -> Builder {
    let hosts = loopback_hosts(nodes as u16);
    move |builder| {
        let builder = builder.timeout(SOON);
        match over {
            Over::Shm => builder,
            Over::Weak(seed) => builder.decorate(move |inner| {
                let node = u64::from(inner.me().0);
                weaken(inner, seed << 8 | node)
            }),
            Over::Verbs => {
                let device = VerbsOptions { device: std::env::var("FARFIELD_DEVICE").ok(), ..VerbsOptions::default() };
                // No node dies in these tests, and a guest that emulates its processors stops for half a second at
                // times.
                builder.hosts(hosts.clone()).device(device).suspect_timeout(Duration::from_secs(3))
            }
            Over::Ucx => {
                let secret = Secret::new(b"known to the nodes of a test").expect("it is long enough");
                builder.hosts(hosts.clone()).over_ucx().secret(secret).suspect_timeout(Duration::from_secs(3))
            }
        }
    }
}

/// Starts connected nodes.
pub(crate) fn session(nodes: usize, fabric: Over) -> Vec<Node> {
    local_session_with(nodes, over(fabric, nodes)).expect("a session")
}

impl Scene {
    /// Runs something on all nodes at once, such as opening an object.
    pub(crate) fn open<T: Send>(&self, body: impl Fn(&Node) -> Result<T> + Sync) -> Vec<T> {
        on_each(&self.nodes, body).expect("opening on each node")
    }

    /// The number of rounds on this fabric, where the weak fabric runs `weak`.
    pub(crate) fn rounds(&self, weak: usize, shm: usize) -> usize {
        match self.over {
            Over::Shm => shm,
            Over::Weak(_) => weak,
            // Fewer, as an emulated machine is slower by about this factor.
            Over::Verbs | Over::Ucx => weak.div_ceil(30),
        }
    }

    /// Runs `body` on all threads of all nodes, with the node's number, the thread's number among all, and an endpoint.
    /// Returns the results in the order of the threads.
    pub(crate) fn run<T: Send>(&self, body: impl Fn(usize, usize, &Endpoint) -> T + Sync) -> Vec<T> {
        let body = &body;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.nodes.len() * self.threads)
                .map(|thread| {
                    let node = thread % self.nodes.len();
                    let endpoint = self.nodes[node].endpoint().expect("an endpoint");
                    scope.spawn(move || body(node, thread, &endpoint))
                })
                .collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            let joined: Vec<_> = joined.collect();
            joined.into_iter().map(|end| end.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        })
    }

    pub(crate) fn endpoint(&self, node: usize) -> Endpoint {
        self.nodes[node].endpoint().expect("an endpoint")
    }

    /// The number of threads on all nodes together.
    pub(crate) fn all_threads(&self) -> usize {
        self.nodes.len() * self.threads
    }

    pub(crate) fn id(&self, node: usize) -> NodeId {
        self.nodes[node].id()
    }
}

/// Waits until `ready` returns a value.
pub(crate) fn eventually<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(start.elapsed() < SOON, "not within {SOON:?}: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Returns the error of a result that must be one.
#[track_caller]
pub(crate) fn refused<T>(result: Result<T>) -> Error {
    match result {
        Ok(_) => panic!("it should have been refused"),
        Err(error) => error,
    }
}

/// Polls a future at most `times`. Returns its output if it completed.
pub(crate) fn poll_times<F: Future + ?Sized>(mut future: Pin<&mut F>, times: usize) -> Option<F::Output> {
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..times {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
    }
    None
}

/// A small random number generator for the tests' own choices.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// Makes every bit depend on every bit (splitmix64).
pub(crate) fn mix(bits: u64) -> u64 {
    let bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

/// A value of `N` words that all follow from a number.
pub(crate) fn related<const N: usize>(number: u64) -> [u64; N] {
    std::array::from_fn(|word| match (number, word) {
        (0, _) => 0,
        (_, 0) => number,
        _ => mix(number).wrapping_mul(word as u64),
    })
}
