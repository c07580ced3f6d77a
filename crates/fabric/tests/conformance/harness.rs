//! Sessions of several nodes inside this process, and the helpers that the cases share.
//!
//! A case's body may touch the memory of all nodes. Concurrent parts are bodies of [`threads`] (or [`litmus`]): each
//! belongs to one node, and reaches the others' memory by operations only. Such threads communicate by [`Word`]s,
//! which a simulation sees.

use std::collections::BTreeMap;
use std::future::Future;
use std::io::Write;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use farfield_fabric::shm::{ShmFabric, ShmOptions};
use farfield_fabric::ucx::{self, UcxFabric};
use farfield_fabric::verbs::{self, Device, VerbsFabric};
use farfield_fabric::{
    Bell, ControlEvent, Endpoint, EndpointOptions, Error, GroupKey, NodeId, Region, RemotePtr, Thread, Transport, Word,
    memory_fence,
};

use crate::simulated;

/// A case that a fabric does not run, and why.
pub(crate) type Excluded = (&'static str, &'static str);

/// A fabric under test.
pub(crate) struct Harness {
    pub(crate) name: &'static str,
    pub(crate) nodes: Nodes,
    /// How many rounds it can do in the time that `weak(shm)` needs for a hundred.
    pub(crate) effort_percent: usize,
    pub(crate) excluded: &'static [Excluded],
}

/// How nodes are made.
pub(crate) enum Nodes {
    /// On shared memory: this puts the fabric under test on a node's, with a seed.
    OnShm(fn(Arc<dyn Transport>, u64) -> Arc<dyn Transport>),
    /// In a simulated world, see [`simulated`].
    Simulated,
    /// On the RDMA devices of this machine, each on the next.
    OnVerbs,
    /// Over these transports of UCX.
    OnUcx(&'static str),
}

/// The names of the devices that can be used; none where there are none, unless `FARFIELD_NEED_DEVICE=1`.
fn devices() -> &'static [String] {
    static DEVICES: OnceLock<Vec<String>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        let is_needed = std::env::var("FARFIELD_NEED_DEVICE").is_ok_and(|value| value == "1");
        let found = Device::list().map(|infos| {
            let active =
                infos.into_iter().filter(|info| info.ports.iter().any(|port| port.is_active) && !info.is_iwarp);
            active.map(|info| info.name).collect::<Vec<_>>()
        });
        match found {
            Ok(names) if !names.is_empty() || !is_needed => names,
            Ok(_) => panic!("no device has an active port"),
            Err(error) if is_needed => panic!("{error}"),
            Err(_) => Vec::new(),
        }
    })
}

/// Whether UCX is on this machine, as it must be if `FARFIELD_NEED_UCX=1`.
fn has_ucx() -> bool {
    match ucx::check_library() {
        Err(error) if std::env::var("FARFIELD_NEED_UCX").is_ok_and(|value| value == "1") => panic!("{error}"),
        checked => checked.is_ok(),
    }
}

/// No case takes longer, however busy the machine is.
const CASE_MAX: Duration = Duration::from_secs(120);
/// Rounds in which threads wait for each other do not go on longer.
const TURNS_MAX: Duration = Duration::from_secs(20);
/// How long anything that must happen is waited for.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// Cases with threads that meet in each of many rounds use both cores, and run one at a time, as all do between hosts.
/// The others, which wait more than they work, run beside each other.
static CORES: RwLock<()> = RwLock::new(());
/// The modules of those that run one at a time.
const ALONE: &[&str] = &["order", "weakness", "tearing", "rights"];

impl Harness {
    /// Runs a case of a module, unless this fabric is excluded from it.
    pub(crate) fn run(&'static self, module: &str, case: &str, body: fn(&Harness)) {
        if let Some((_, why)) = self.excluded.iter().find(|(excluded, _)| *excluded == case) {
            println!("not run on {}: {why}", self.name);
            return;
        }
        if matches!(self.nodes, Nodes::OnVerbs) && devices().is_empty() {
            println!("not run on {}: this machine has no RDMA device", self.name);
            return;
        }
        if matches!(self.nodes, Nodes::OnUcx(_)) && !has_ucx() {
            println!("not run on {}: this machine has no UCX", self.name);
            return;
        }
        let is_alone = match self.nodes {
            Nodes::OnShm(_) => ALONE.contains(&module),
            Nodes::Simulated => false,
            Nodes::OnVerbs | Nodes::OnUcx(_) => true,
        };
        let _beside = (!is_alone).then(|| CORES.read().unwrap_or_else(PoisonError::into_inner));
        let _alone = is_alone.then(|| CORES.write().unwrap_or_else(PoisonError::into_inner));
        let (done, watch) = mpsc::channel::<()>();
        let label = format!("{case} on {}", self.name);
        let watchdog = std::thread::spawn(move || {
            if watch.recv_timeout(CASE_MAX) == Err(mpsc::RecvTimeoutError::Timeout) {
                // Not by `eprintln!`, which the test harness keeps for the end that does not come.
                let _ = writeln!(std::io::stderr(), "{label} has not ended within {CASE_MAX:?}");
                std::process::abort();
            }
        });
        match self.nodes {
            Nodes::OnShm(_) | Nodes::OnVerbs | Nodes::OnUcx(_) => body(self),
            Nodes::Simulated => simulated::run(move || body(self)),
        }
        drop(done);
        watchdog.join().unwrap();
    }

    /// A session of `nodes` nodes, all connected.
    pub(crate) fn session(&self, nodes: usize) -> Vec<Node> {
        self.session_with(nodes, 1 << 30)
    }

    /// A session with small groups, and their size in bytes.
    pub(crate) fn session_with_small_groups(&self, nodes: usize) -> (Vec<Node>, usize) {
        let bytes = if self.is_simulated() { simulated::NODE_BYTES } else { 8 << 20 };
        (self.session_with(nodes, bytes), bytes)
    }

    fn session_with(&self, nodes: usize, group_bytes_max: usize) -> Vec<Node> {
        static SESSIONS: AtomicUsize = AtomicUsize::new(0);
        let name = format!("conf-{}-{}", std::process::id(), SESSIONS.fetch_add(1, Ordering::Relaxed));
        let join = |index: usize| -> Arc<dyn Transport> {
            let id = NodeId(index as u16);
            match self.nodes {
                Nodes::OnShm(wrap) => {
                    let mut options = ShmOptions::new(name.as_str(), id.0, nodes);
                    options.group_bytes_max = group_bytes_max;
                    options.seed = Some(index as u64);
                    wrap(ShmFabric::join(&options).expect("joining a new session"), 0xfab + index as u64)
                }
                Nodes::Simulated => simulated::join(id, nodes),
                Nodes::OnVerbs | Nodes::OnUcx(_) => unreachable!("they are joined together"),
            }
        };
        let session: Vec<Node> = match self.nodes {
            Nodes::OnVerbs => verbs_session(&name, nodes, group_bytes_max).into_iter().map(Node::start).collect(),
            Nodes::OnUcx(transports) => {
                ucx_session(&name, nodes, group_bytes_max, transports).into_iter().map(Node::start).collect()
            }
            _ => (0..nodes).map(|index| Node::start(join(index))).collect(),
        };
        for node in &session {
            let all_up =
                || node.events().iter().filter(|event| matches!(event, ControlEvent::Up(_))).count() + 1 == nodes;
            eventually("all peers are up", || all_up().then_some(()));
        }
        session
    }

    /// Rounds of a case that takes about a microsecond a round on `weak(shm)`.
    pub(crate) fn rounds(&self, weak: usize) -> usize {
        (weak * self.effort_percent / 100).max(weak.min(10))
    }

    /// Such rounds of a case in which the threads wait for each other each time. On a busy machine that takes
    /// milliseconds: a tenth of the rounds is enough if the others would take too long.
    pub(crate) fn rounds_in_turns(&self, weak: usize) -> impl Iterator<Item = usize> {
        let (rounds, start) = (self.rounds(weak), Instant::now());
        let is_real = !self.is_simulated();
        (0..rounds).take_while(move |round| *round <= rounds / 10 || !is_real || start.elapsed() < TURNS_MAX)
    }

    /// Whether no real time passes, and no hardware is under it.
    pub(crate) fn is_simulated(&self) -> bool {
        matches!(self.nodes, Nodes::Simulated)
    }
}

/// Nodes on this machine's devices, which have met.
fn verbs_session(name: &str, nodes: usize, group_bytes_max: usize) -> Vec<Arc<dyn Transport>> {
    let join = |index: usize| {
        let anywhere = (Ipv4Addr::LOCALHOST, 0).into();
        let mut options = verbs::JoinOptions::new(name, index as u16, nodes as u16, anywhere);
        options.device.device = Some(devices()[index % devices().len()].clone());
        options.group_bytes_max = group_bytes_max;
        options.seed = Some(index as u64);
        VerbsFabric::join(&options).expect("joining a new session")
    };
    let fabrics: Vec<_> = (0..nodes).map(join).collect();
    let addresses: Vec<_> = fabrics.iter().map(|fabric| fabric.address()).collect();
    fabrics.iter().for_each(|fabric| fabric.meet(&addresses).unwrap());
    fabrics.into_iter().map(|fabric| fabric as Arc<dyn Transport>).collect()
}

/// The secret of nodes over UCX.
pub(crate) fn ucx_secret() -> ucx::Secret {
    ucx::Secret::new(b"known to the nodes of a test").unwrap()
}

/// Nodes over transports of UCX, which have met.
fn ucx_session(name: &str, nodes: usize, group_bytes_max: usize, transports: &str) -> Vec<Arc<dyn Transport>> {
    let join = |index: usize| {
        let anywhere = (Ipv4Addr::LOCALHOST, 0).into();
        let mut options = ucx::JoinOptions::new(name, index as u16, nodes as u16, anywhere);
        options.secret = Some(ucx_secret());
        options.device.transports = transports.into();
        options.group_bytes_max = group_bytes_max;
        options.seed = Some(index as u64);
        UcxFabric::join(&options).expect("joining a new session")
    };
    let fabrics: Vec<_> = (0..nodes).map(join).collect();
    let addresses: Vec<_> = fabrics.iter().map(|fabric| fabric.address()).collect();
    fabrics.iter().for_each(|fabric| fabric.meet(&addresses).unwrap());
    fabrics.into_iter().map(|fabric| fabric as Arc<dyn Transport>).collect()
}

/// One node, with its service thread.
pub(crate) struct Node {
    pub(crate) fabric: Arc<dyn Transport>,
    stop: Arc<AtomicBool>,
    /// It ends without a goodbye.
    dies: Arc<AtomicBool>,
    service: Option<Thread>,
    events: Arc<Mutex<Vec<ControlEvent>>>,
}

impl Node {
    pub(crate) fn start(fabric: Arc<dyn Transport>) -> Node {
        let (stop, dies) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let events = Arc::<Mutex<Vec<ControlEvent>>>::default();
        let body = {
            let (fabric, events) = (Arc::clone(&fabric), Arc::clone(&events));
            let (stop, dies) = (Arc::clone(&stop), Arc::clone(&dies));
            move || {
                while !stop.load(Ordering::Acquire) {
                    fabric.serve(Duration::from_millis(50), &mut |event| events.lock().unwrap().push(event));
                }
                if dies.load(Ordering::Acquire) { fabric.leave_uncleanly() } else { fabric.leave() }
            }
        };
        let name = format!("service-{}", fabric.me().0);
        let service = Arc::clone(&fabric).spawn_service(name, Box::new(body)).expect("a service thread");
        Node { fabric, stop, dies, service: Some(service), events }
    }

    pub(crate) fn id(&self) -> NodeId {
        self.fabric.me()
    }

    /// The events that the service thread has reported so far.
    pub(crate) fn events(&self) -> Vec<ControlEvent> {
        self.events.lock().unwrap().clone()
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        let options = EndpointOptions { timeout: SOON, ..EndpointOptions::default() };
        Endpoint::open(Arc::clone(&self.fabric), options).unwrap()
    }

    pub(crate) fn endpoint_with_pool(&self, pool_bytes_max: usize) -> Endpoint {
        Endpoint::open(
            Arc::clone(&self.fabric),
            EndpointOptions { pool_bytes_max, timeout: SOON, ..EndpointOptions::default() },
        )
        .unwrap()
    }

    /// Memory on which no thread sleeps.
    pub(crate) fn region(&self, bytes: usize) -> Region {
        self.fabric.alloc(GroupKey::DATA, bytes).unwrap()
    }

    /// Memory in which writes wake waiters.
    pub(crate) fn signals(&self, bytes: usize) -> Region {
        self.fabric.alloc(GroupKey::SIGNAL, bytes).unwrap()
    }

    /// Ends without a goodbye: the others take it for dead.
    pub(crate) fn die(&mut self) {
        self.dies.store(true, Ordering::Release);
        self.leave();
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

/// Memory of a node in a group of its own, with rights that can be revoked, once all nodes reach it.
pub(crate) fn guarded(nodes: &[Node], owner: usize, bytes: usize) -> (GroupKey, Region) {
    let key = nodes[owner].fabric.create_group(Bell::Silent).unwrap();
    let region = nodes[owner].fabric.alloc(key, bytes).unwrap();
    for node in nodes {
        let endpoint = node.endpoint();
        eventually("the group is announced", || endpoint.get(region.remote::<u64>(0)).wait().ok());
    }
    (key, region)
}

/// Waits until `ready` gives a value. Not for the bodies of [`threads`], which have [`soon`].
pub(crate) fn eventually<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    if simulated::is_here() {
        return simulated::eventually(what, ready);
    }
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

/// Waits on a case's thread until words have values for which `ready` holds.
pub(crate) fn soon(endpoint: &Endpoint, what: &str, ready: impl Fn() -> bool) {
    let waited = endpoint.block_on(endpoint.wait_until(endpoint.deadline(), || ready().then_some(())));
    waited.unwrap_or_else(|error| panic!("{what}: {error}"));
}

/// Gives others time to fall asleep. In a simulation they may take it wherever this thread can be interrupted.
pub(crate) fn rest(duration: Duration) {
    if simulated::is_here() {
        memory_fence();
    } else {
        std::thread::sleep(duration);
    }
}

/// A thread of a case: its node, whose memory only it touches, and its body.
pub(crate) type Job<'a, T> = (&'a Node, &'a (dyn Fn() -> T + Sync));

/// Runs threads concurrently to their ends, and returns their results. A simulation explores them at random.
pub(crate) fn threads<T: Send, const N: usize>(jobs: [Job<'_, T>; N]) -> [T; N] {
    if simulated::is_here() {
        return simulated::threads(jobs);
    }
    std::thread::scope(|scope| {
        let threads = jobs.map(|(_, body)| scope.spawn(|| reporting_panics(body)));
        threads.map(|thread| thread.join().expect("a thread of the case"))
    })
}

/// Runs a thread's body. The others may wait for it until the watchdog ends the case, so a panic is reported at once.
fn reporting_panics<T>(body: &(dyn Fn() -> T + Sync)) -> T {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
        let _ = writeln!(std::io::stderr(), "a thread of a case panicked: {text}");
        std::panic::resume_unwind(panic)
    })
}

/// Runs one thread, with an endpoint.
pub(crate) fn alone(node: &Node, body: impl Fn(&Endpoint) + Sync) {
    threads([(node, &|| body(&node.endpoint()))]);
}

/// Runs one thread, with an endpoint that has a pool of this size.
pub(crate) fn alone_with_pool(node: &Node, pool_bytes_max: usize, body: impl Fn(&Endpoint) + Sync) {
    threads([(node, &|| body(&node.endpoint_with_pool(pool_bytes_max)))]);
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

/// One thread of a litmus test: its node, and its part of a round; the value is its observation.
pub(crate) type Body<'a> = (&'a Node, &'a (dyn Fn(&Endpoint, usize) -> u64 + Sync));

/// How often each outcome was seen.
pub(crate) type Outcomes<const N: usize> = BTreeMap<[u64; N], usize>;

/// Runs a litmus test of `N` threads, which start each round together.
pub(crate) fn litmus<const N: usize>(rounds: usize, bodies: [Body<'_>; N]) -> Outcomes<N> {
    let (arrived, broken) = (Word::new(0), AtomicBool::new(false));
    let jobs = bodies.map(|(node, body)| {
        let (arrived, broken) = (&arrived, &broken);
        let job = move || {
            let _flag = OnPanic(broken);
            let endpoint = node.endpoint();
            let round = |round| {
                arrived.fetch_add(1);
                all_arrived(&endpoint, arrived, ((round + 1) * N) as u64, broken);
                body(&endpoint, round)
            };
            (0..rounds).map(round).collect::<Vec<u64>>()
        };
        (node, job)
    });
    let seen = threads(jobs.each_ref().map(|(node, job)| -> Job<'_, Vec<u64>> { (node, job) }));
    let mut outcomes = Outcomes::new();
    let outcome = |round: usize| std::array::from_fn(|thread| seen[thread][round]);
    (0..rounds).for_each(|round| *outcomes.entry(outcome(round)).or_default() += 1);
    outcomes
}

fn all_arrived(endpoint: &Endpoint, arrived: &Word, all: u64, broken: &AtomicBool) {
    if simulated::is_here() {
        soon(endpoint, "all threads arrive", || arrived.load() >= all);
        return;
    }
    // Spins, since a sleeping thread starts late.
    let mut spins = 0u32;
    while arrived.load() < all {
        assert!(!broken.load(Ordering::Relaxed), "another thread of the test has failed");
        spins += 1;
        if spins.is_multiple_of(256) {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
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
