//! Sessions of several nodes inside this process, and what the cases share.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use farfield_fabric::shm::{ShmFabric, ShmOptions};
use farfield_fabric::{
    ControlEvent, Endpoint, EndpointOptions, Error, Fabric, GroupKey, NodeId, Region, RemotePtr, Thread,
};

/// A case that a fabric does not run, and why.
pub(crate) type Excluded = (&'static str, &'static str);

/// A fabric under test.
pub(crate) struct Harness {
    pub(crate) name: &'static str,
    /// Puts the fabric under test on a node's shared memory, with a seed.
    pub(crate) wrap: fn(Arc<dyn Fabric>, u64) -> Arc<dyn Fabric>,
    /// How many rounds it can do in the time that `weak(shm)` needs for one.
    pub(crate) effort: usize,
    pub(crate) excluded: &'static [Excluded],
}

/// No case takes longer, however busy the machine is.
const CASE_MAX: Duration = Duration::from_secs(120);
/// How long anything that must happen is waited for.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// Cases use both cores: they run one at a time.
static CORES: Mutex<()> = Mutex::new(());

impl Harness {
    /// Runs a case, unless this fabric is excluded from it.
    pub(crate) fn run(&self, case: &str, body: fn(&Harness)) {
        if let Some((_, why)) = self.excluded.iter().find(|(excluded, _)| *excluded == case) {
            println!("not run on {}: {why}", self.name);
            return;
        }
        let _alone = CORES.lock().unwrap_or_else(PoisonError::into_inner);
        let (done, watch) = mpsc::channel::<()>();
        let label = format!("{case} on {}", self.name);
        let watchdog = std::thread::spawn(move || {
            if watch.recv_timeout(CASE_MAX) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("{label} has not ended within {CASE_MAX:?}");
                std::process::abort();
            }
        });
        body(self);
        drop(done);
        watchdog.join().unwrap();
    }

    /// A session of `nodes` nodes, all connected.
    pub(crate) fn session(&self, nodes: usize) -> Vec<Node> {
        self.session_with(nodes, 1 << 30)
    }

    /// A session whose groups hold at most `group_bytes_max`.
    pub(crate) fn session_with(&self, nodes: usize, group_bytes_max: usize) -> Vec<Node> {
        static SESSIONS: AtomicUsize = AtomicUsize::new(0);
        let name = format!("conf-{}-{}", std::process::id(), SESSIONS.fetch_add(1, Ordering::Relaxed));
        let node = |index: usize| {
            let mut options = ShmOptions::new(name.as_str(), NodeId(index as u16), nodes);
            options.group_bytes_max = group_bytes_max;
            options.seed = Some(index as u64);
            let shm: Arc<dyn Fabric> = ShmFabric::join(&options).expect("joining a new session");
            Node::start((self.wrap)(shm, 0xfab + index as u64))
        };
        let session: Vec<Node> = (0..nodes).map(node).collect();
        for node in &session {
            let all_up =
                || node.events().iter().filter(|event| matches!(event, ControlEvent::Up(_))).count() + 1 == nodes;
            eventually("all peers are up", || all_up().then_some(()));
        }
        session
    }

    /// Rounds of a case that takes about a microsecond a round on `weak(shm)`.
    pub(crate) fn rounds(&self, weak: usize) -> usize {
        weak * self.effort
    }
}

/// One node, with its service thread.
pub(crate) struct Node {
    pub(crate) fabric: Arc<dyn Fabric>,
    stop: Arc<AtomicBool>,
    service: Option<Thread>,
    events: Arc<Mutex<Vec<ControlEvent>>>,
}

impl Node {
    pub(crate) fn start(fabric: Arc<dyn Fabric>) -> Node {
        let (stop, events) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let body = {
            let (fabric, stop, events) = (Arc::clone(&fabric), Arc::clone(&stop), Arc::clone(&events));
            move || {
                while !stop.load(Ordering::Acquire) {
                    fabric.serve(Duration::from_millis(50), &mut |event| events.lock().unwrap().push(event));
                }
                fabric.leave();
            }
        };
        let name = format!("service-{}", fabric.me().0);
        let service = Arc::clone(&fabric).spawn_service(name, Box::new(body)).expect("a service thread");
        Node { fabric, stop, service: Some(service), events }
    }

    pub(crate) fn id(&self) -> NodeId {
        self.fabric.me()
    }

    /// What the service thread has reported so far.
    pub(crate) fn events(&self) -> Vec<ControlEvent> {
        self.events.lock().unwrap().clone()
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        let options = EndpointOptions { timeout: SOON, ..EndpointOptions::default() };
        Endpoint::open(Arc::clone(&self.fabric), options).unwrap()
    }

    pub(crate) fn endpoint_with_pool(&self, pool_bytes_max: usize) -> Endpoint {
        Endpoint::open(Arc::clone(&self.fabric), EndpointOptions { pool_bytes_max, timeout: SOON, background: false })
            .unwrap()
    }

    /// Memory that nobody sleeps on.
    pub(crate) fn region(&self, bytes: usize) -> Region {
        self.fabric.alloc(GroupKey::DATA, bytes).unwrap()
    }

    /// Memory whose waiters are woken.
    pub(crate) fn signals(&self, bytes: usize) -> Region {
        self.fabric.alloc(GroupKey::SIGNAL, bytes).unwrap()
    }

    /// Leaves the session in good order.
    pub(crate) fn leave(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.fabric.wake_service();
        if let Some(service) = self.service.take() {
            let ended = service.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the service thread: {ended:?}");
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Waits until `ready` gives a value.
pub(crate) fn eventually<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = ready() {
            return value;
        }
        let waited = start.elapsed();
        assert!(waited < SOON, "not within {SOON:?}: {what}");
        if waited > Duration::from_millis(1) {
            std::thread::sleep(Duration::from_micros(200));
        } else {
            std::thread::yield_now();
        }
    }
}

/// The words of a litmus test: one cache line of each location for each round, so that no round needs resetting.
pub(crate) struct Lines(pub(crate) Region);

impl Lines {
    pub(crate) fn at(node: &Node, rounds: usize) -> Lines {
        Lines(node.region(64 * rounds))
    }

    pub(crate) fn load(&self, round: usize) -> u64 {
        self.0.word(64 * round).load()
    }

    pub(crate) fn store(&self, round: usize, value: u64) {
        self.0.word(64 * round).store(value);
    }

    pub(crate) fn remote(&self, round: usize) -> RemotePtr<u64> {
        self.0.remote(64 * round)
    }
}

/// One thread of a litmus test: its node, and what it does in a round; the value is what it observed.
pub(crate) type Body<'a> = (&'a Node, &'a (dyn Fn(&Endpoint, usize) -> u64 + Sync));

/// How often each outcome was seen.
pub(crate) type Outcomes<const N: usize> = BTreeMap<[u64; N], usize>;

/// Runs a litmus test of `N` threads, which start each round together.
pub(crate) fn litmus<const N: usize>(rounds: usize, bodies: [Body<'_>; N]) -> Outcomes<N> {
    let (arrived, broken) = (AtomicUsize::new(0), AtomicBool::new(false));
    let seen: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let threads = bodies.map(|(node, body)| {
            let (arrived, broken) = (&arrived, &broken);
            scope.spawn(move || {
                let _flag = OnPanic(broken);
                let endpoint = node.endpoint();
                let mut seen = Vec::with_capacity(rounds);
                for round in 0..rounds {
                    arrived.fetch_add(1, Ordering::SeqCst);
                    let mut spins = 0u32;
                    while arrived.load(Ordering::SeqCst) < (round + 1) * N {
                        assert!(!broken.load(Ordering::Relaxed), "another thread of the test has failed");
                        spins += 1;
                        if spins.is_multiple_of(256) {
                            std::thread::yield_now();
                        } else {
                            std::hint::spin_loop();
                        }
                    }
                    seen.push(body(&endpoint, round));
                }
                seen
            })
        });
        threads.into_iter().map(|thread| thread.join().expect("a litmus thread")).collect()
    });
    let mut outcomes = Outcomes::new();
    let outcome = |round: usize| std::array::from_fn(|thread| seen[thread][round]);
    (0..rounds).for_each(|round| *outcomes.entry(outcome(round)).or_default() += 1);
    outcomes
}

/// Asserts that an outcome never happened.
pub(crate) fn never<const N: usize>(outcomes: &Outcomes<N>, forbidden: [u64; N]) {
    assert!(!outcomes.contains_key(&forbidden), "the forbidden outcome {forbidden:?} was seen: {outcomes:?}");
}

/// Repeats a litmus test until an outcome has been seen.
pub(crate) fn reachable<const N: usize>(wanted: [u64; N], mut round: impl FnMut() -> Outcomes<N>) {
    let start = Instant::now();
    let mut all = Outcomes::new();
    while start.elapsed() < SOON {
        for (outcome, times) in round() {
            *all.entry(outcome).or_default() += times;
        }
        if all.contains_key(&wanted) {
            return;
        }
    }
    panic!("the outcome {wanted:?}, which the model allows, was not seen: {all:?}");
}

struct OnPanic<'a>(&'a AtomicBool);

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// Polls a future at most `times`; its output if it ended.
pub(crate) fn poll_times<F: Future + ?Sized>(mut future: Pin<&mut F>, times: usize) -> Option<F::Output> {
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..times {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
    }
    None
}

/// The error of a result that must be one.
#[track_caller]
pub(crate) fn refused<T>(result: Result<T, Error>) -> Error {
    match result {
        Ok(_) => panic!("it should have been refused"),
        Err(error) => error,
    }
}
