//! What nodes over UCX do beside what every fabric promises: long operations, idle nodes, evictions, processes that end
//! or stop.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfield_fabric::ucx::{JoinOptions, UcxFabric};
use farfield_fabric::{
    ControlEvent, Endpoint, EndpointOptions, ErrorKind, Fabric, GroupKey, NodeId, RemotePtr, Transport, Word,
};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::UCX;
use crate::freeing::{address, again};
use crate::harness::{Harness, Node, SOON, eventually, refused, ucx_secret};

/// Set in the other process.
const ROLE: &str = "FARFIELD_UCX_TEST_ROLE";
/// The start of the other process's lines for this one.
const MARK: &str = "line:";
/// The memory of the other process.
const OTHER_BYTES: usize = 512 << 10;
/// The patience of nodes whose peer stops.
const PATIENCE: Duration = Duration::from_millis(50);

/// Runs a case, if this machine has UCX.
fn run(case: &str, body: fn(&Harness)) {
    UCX.run("over_ucx", case, body);
}

/// More than a message holds, and more than may be under way.
#[test]
fn long_operations_arrive_whole_and_in_order() {
    run("long_operations_arrive_whole_and_in_order", |harness| {
        const WORDS: usize = (9 << 20) / 8 + 5;
        let nodes = harness.session(2);
        let (endpoint, region) = (nodes[0].endpoint(), nodes[1].region(8 * WORDS));
        let mut data = endpoint.buf::<u64>(WORDS).unwrap();
        for round in 1..4 {
            data.iter_mut().enumerate().for_each(|(at, word)| *word = (at as u64).wrapping_mul(0x9e37_79b9) + round);
            let put = endpoint.put(region.remote(0), &data);
            // Right behind it.
            let last = endpoint.get(region.remote::<u64>(8 * (WORDS - 1)));
            assert_eq!(last.wait().unwrap(), data[WORDS - 1]);
            put.wait().unwrap();
            assert!(region.words(0, WORDS).iter().map(Word::load).eq(data.iter().copied()), "round {round}");
            let got = endpoint.get_into(region.remote(0), endpoint.buf::<u64>(WORDS).unwrap()).wait().unwrap();
            assert!(*got == *data, "round {round}");
        }
    });
}

/// Threads that answer, and lanes, sleep while there is nothing to do.
#[test]
fn an_idle_node_takes_less_than_a_fiftieth_of_a_core() {
    run("an_idle_node_takes_less_than_a_fiftieth_of_a_core", |harness| {
        let nodes = harness.session(3);
        let region = nodes[0].region(64);
        let endpoints: Vec<_> = nodes.iter().map(Node::endpoint).collect();
        for endpoint in &endpoints {
            endpoint.faa(region.remote::<u64>(0), 1).wait().unwrap();
        }
        let used = || {
            let of_task = |task: std::fs::DirEntry| {
                let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
                text.split_whitespace().next()?.parse::<u64>().ok()
            };
            let tasks = std::fs::read_dir("/proc/self/task").unwrap();
            Duration::from_nanos(tasks.filter_map(|task| of_task(task.ok()?)).sum())
        };
        // A busy moment of the machine costs nothing here, but a thread that spins does.
        let best = (0..3).map(|_| {
            let (start, before) = (Instant::now(), used());
            std::thread::sleep(Duration::from_secs(1));
            (used() - before).as_secs_f64() / start.elapsed().as_secs_f64()
        });
        let best = best.fold(f64::MAX, f64::min);
        println!("3 idle nodes take {:.2} % of a core", best * 100.0);
        assert!(best < 3.0 * 0.02, "3 idle nodes take {:.1} % of a core", best * 100.0);
    });
}

/// A process that ends is found at once: the operations on it fail, and nothing hangs.
#[test]
fn operations_on_a_killed_process_fail() {
    run("operations_on_a_killed_process_fail", |_| {
        let (node, mut other) = with_other();
        let (endpoint, word) = (node.endpoint(), other.word);
        assert_eq!(endpoint.faa(word, 1).wait().unwrap(), 0);
        other.child.kill().unwrap();
        let killed = Instant::now();
        let error = eventually("it fails", || endpoint.faa(word, 1).wait().err());
        assert!(matches!(error.kind(), ErrorKind::Unreachable { node: NodeId(1) }), "{error}");
        println!("after {:?}", killed.elapsed());
        eventually("it is reported", || node.events().contains(&ControlEvent::Down(NodeId(1))).then_some(()));
        // A new lane has no way to it either.
        refused(node.endpoint().get(word).wait());
    });
}

/// A process that stops answers nothing. It is suspected soon, and given up for good after its time.
#[test]
fn a_process_that_stops_is_given_up() {
    run("a_process_that_stops_is_given_up", |_| {
        let (node, other) = with_other();
        let (endpoint, word) = (node.endpoint(), other.word);
        assert_eq!(endpoint.faa(word, 1).wait().unwrap(), 0);
        // For a moment only: it is trusted again, and all is done.
        other.stop();
        let early = endpoint.faa(word, 1);
        std::thread::sleep(4 * PATIENCE);
        other.resume();
        assert_eq!(early.wait().unwrap(), 1);
        other.stop();
        let stopped = Instant::now();
        let late: Vec<_> = (0..100).map(|_| endpoint.faa(word, 1)).collect();
        for op in late {
            let error = refused(op.wait());
            assert!(matches!(error.kind(), ErrorKind::Unreachable { node: NodeId(1) }), "{error}");
        }
        assert!(stopped.elapsed() >= 8 * PATIENCE, "{:?}", stopped.elapsed());
        let events = node.events();
        assert!(events.contains(&ControlEvent::Suspected(NodeId(1))), "{events:?}");
    });
}

/// A node that is evicted while it stands still: whatever is under way to it, operations end at once. The connection to
/// it is closed, soon if it was never made, so that nothing waits to be sent.
#[test]
fn a_lane_closes_its_connection_to_an_evicted_node() {
    run("a_lane_closes_its_connection_to_an_evicted_node", |_| {
        let session = new_session();
        let fabric = join(&session, 0);
        // Opened before there is a peer.
        let unconnected = Endpoint::open(Arc::clone(&fabric) as _, EndpointOptions::default()).unwrap();
        let (node, other) = meet(&session, fabric);
        let connected = node.endpoint();
        assert_eq!(connected.faa(other.word, 1).wait().unwrap(), 0);
        other.stop();
        let endpoints = [&connected, &unconnected];
        let bufs = endpoints.map(|endpoint| endpoint.buf::<u64>(OTHER_BYTES / 8).unwrap());
        let mut puts = Vec::new();
        for (endpoint, buf) in endpoints.into_iter().zip(&bufs) {
            // More than may be under way.
            puts.extend((0..16).map(|_| endpoint.put(other.word, buf)));
            assert!(endpoint.progress());
        }
        node.fabric.evict(NodeId(1), SOON).unwrap();
        let evicted = Instant::now();
        for put in puts {
            assert_eq!(refused(put.wait()).node(), Some(NodeId(1)));
        }
        println!("operations end after {:?}", evicted.elapsed());
        for endpoint in endpoints {
            eventually("nothing waits to be sent", || (!endpoint.progress()).then_some(()));
            println!("nothing is left after {:?}", evicted.elapsed());
            refused(endpoint.get(other.word).wait());
        }
    });
}

/// Nothing of an evicted node lands, whether it was under way or is posted later.
#[test]
fn nothing_of_an_evicted_node_lands() {
    run("nothing_of_an_evicted_node_lands", |harness| {
        let nodes = harness.session(2);
        let (region, endpoint) = (nodes[0].region(64), nodes[1].endpoint());
        let word = region.remote::<u64>(0);
        endpoint.faa(word, 1).wait().unwrap();
        let late: Vec<_> = (0..1000).map(|_| endpoint.faa(word, 1)).collect();
        nodes[0].fabric.evict(NodeId(1), SOON).unwrap();
        let landed = region.word(0).load();
        late.into_iter().for_each(|op| drop(op.wait()));
        let is_refused = || endpoint.faa(word, 1).wait().is_err();
        eventually("it is refused", || is_refused().then_some(()));
        assert_eq!(region.word(0).load(), landed);
    });
}

/// The service thread posts to a node that stands still, and is not connected to it yet. It does not wait for that.
#[test]
fn the_service_thread_waits_for_no_connection() {
    run("the_service_thread_waits_for_no_connection", |_| {
        let session = new_session();
        let fabric: Arc<UcxFabric> = join(&session, 0);
        // Opened before there is a peer.
        let open = |()| Endpoint::open(Arc::clone(&fabric) as _, EndpointOptions::default()).unwrap();
        let endpoints = [(); 3].map(open);
        let other = Other::start(&session, &fabric);
        let served = Arc::clone(&fabric);
        let body = move || {
            let mut is_up = false;
            while !is_up {
                let mut note = |event| is_up |= event == ControlEvent::Up(NodeId(1));
                served.serve(Duration::from_millis(50), &mut note);
            }
            other.stop();
            let (mut ops, mut took) = (Vec::new(), Vec::new());
            for endpoint in &endpoints {
                let start = Instant::now();
                ops.push(endpoint.faa(other.word, 1));
                took.push(start.elapsed());
            }
            other.resume();
            let mut seen: Vec<u64> = ops.into_iter().map(|op| op.wait().unwrap()).collect();
            seen.sort_unstable();
            assert_eq!(seen, [0, 1, 2]);
            // A busy machine may delay one.
            println!("posting takes {took:?}");
            assert!(took.iter().min() < Some(&Duration::from_millis(100)), "posting takes {took:?}");
            drop(endpoints);
            served.leave();
        };
        let ended = fabric.spawn_service("service".into(), Box::new(body)).unwrap().join();
        assert!(ended.is_ok(), "{ended:?}");
    });
}

/// Memory is given out again although a peer stands still and may have late operations: these are refused.
#[test]
fn memory_comes_back_while_a_peer_stands_still() {
    run("memory_comes_back_while_a_peer_stands_still", |_| {
        let (node, other) = with_other();
        let region = node.region(64);
        let lay = address(&region);
        other.stop();
        node.fabric.free(region).unwrap();
        again(&node, GroupKey::DATA, lay, 64);
    });
}

/// A node in another process, which is killed when this is dropped.
struct Other {
    child: Child,
    /// The process ends when it is closed.
    _stdin: ChildStdin,
    /// A word of it, the first of [`OTHER_BYTES`].
    word: RemotePtr<u64>,
}

impl Other {
    /// Starts it, for a node without peers.
    fn start(session: &str, fabric: &UcxFabric) -> Other {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "over_ucx::the_other_process", "--nocapture"]).env(ROLE, session);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut next_line = || {
            let line = lines.by_ref().find_map(|line| Some(line.unwrap().split_once(MARK)?.1.to_owned()));
            line.expect("the other process continues")
        };
        let addresses = [fabric.address(), next_line().parse().unwrap()];
        writeln!(stdin, "{}", addresses[0]).unwrap();
        fabric.meet(&addresses).unwrap();
        let word = RemotePtr::from_packed(next_line().parse().unwrap());
        Other { child, _stdin: stdin, word }
    }

    fn stop(&self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).unwrap();
        // Until all of its threads have stopped.
        waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
    }

    fn resume(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn join(session: &str, place: u16) -> Arc<UcxFabric> {
    let mut options = JoinOptions::new(session, place, 2, (Ipv4Addr::LOCALHOST, 0).into());
    options.secret = Some(ucx_secret());
    options.device.patience = PATIENCE;
    options.group_bytes_max = 4 << 20;
    UcxFabric::join(&options).expect("joining a new session")
}

fn new_session() -> String {
    static SESSIONS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let number = SESSIONS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    format!("over-ucx-{}-{number}", std::process::id())
}

/// A node, and another in another process, which have met.
fn with_other() -> (Node, Other) {
    let session = new_session();
    meet(&session, join(&session, 0))
}

/// The same, with a node that has joined.
fn meet(session: &str, fabric: Arc<UcxFabric>) -> (Node, Other) {
    let other = Other::start(session, &fabric);
    let node = Node::start(fabric);
    eventually("it is up", || node.events().contains(&ControlEvent::Up(NodeId(1))).then_some(()));
    (node, other)
}

/// Not a test but the other process: a node that does nothing.
#[test]
fn the_other_process() {
    let Ok(session) = std::env::var(ROLE) else { return };
    let fabric = join(&session, 1);
    println!("{MARK}{}", fabric.address());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let addresses: [SocketAddr; 2] = [line.trim().parse().unwrap(), fabric.address()];
    fabric.meet(&addresses).unwrap();
    let region = fabric.alloc(GroupKey::DATA, OTHER_BYTES).unwrap();
    println!("{MARK}{}", region.remote::<u64>(0).packed());
    let _node = Node::start(fabric);
    let (gone, is_gone) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        let _ = gone.send(());
    });
    let _ = is_gone.recv_timeout(4 * SOON);
}
