//! A queue between processes, some of which are killed in the middle of their calls: no process waits for them, and
//! each enqueued value is dequeued once.
//!
//! Every node is a process of its own: this test binary run again, with a role in its environment. Each thread logs
//! its calls to a file; the test, which is no node, checks the files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use farfield::fabric::weak::weaken;
use farfield::{Endpoint, Node, NodeId, Queue, QueueOptions};

const ROLE: &str = "FARFIELD_TEST_ROLE";
const PLACE: &str = "FARFIELD_TEST_PLACE";
/// The seed of a weak fabric, or 0 for shared memory as it is.
const WEAK: &str = "FARFIELD_TEST_WEAK";
const NODES: u16 = 4;
const HOME: NodeId = NodeId(0);
/// However busy the machine is, nothing takes longer.
const PROCESS_MAX: Duration = Duration::from_secs(120);
/// The limit for steps that must be fast.
const SOON: Duration = Duration::from_secs(20);

// ---- the parent's part -----------------------------------------------------------------------------------------

struct Session {
    place: PathBuf,
    nodes: Vec<Child>,
}

impl Session {
    fn start(role: &str, weak: u64) -> Session {
        let name = format!("queue-{role}-{weak}-{}", std::process::id());
        let place = std::env::temp_dir().join(format!("farfield-{name}"));
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir_all(&place).expect("a temporary folder");
        let start = |node: u16| {
            Command::new(std::env::current_exe().expect("this binary"))
                .args(["node_process", "--exact", "--nocapture", "--test-threads=1"])
                .env(ROLE, role)
                .env(PLACE, &place)
                .env(WEAK, weak.to_string())
                .env("FARFIELD_NODE", node.to_string())
                .env("FARFIELD_NODES", NODES.to_string())
                .env("FARFIELD_SESSION", &name)
                .stdout(File::create(place.join(format!("{node}.out"))).expect("a file for its output"))
                .stderr(File::create(place.join(format!("{node}.err"))).expect("a file for its errors"))
                .spawn()
                .expect("a process")
        };
        Session { nodes: (0..NODES).map(start).collect(), place }
    }

    fn said(&self, node: usize) -> String {
        let read = |kind: &str| std::fs::read_to_string(self.place.join(format!("{node}.{kind}"))).unwrap_or_default();
        format!("node {node} said: {}{}", read("out"), read("err"))
    }

    /// Waits until every node has taken so many values more.
    fn wait_for_values(&self, nodes: &[usize], values: usize) {
        let taken = |node: usize| numbers(&self.place.join(format!("{node}.taken"))).len();
        let before: Vec<usize> = nodes.iter().map(|node| taken(*node)).collect();
        let start = Instant::now();
        for (node, before) in nodes.iter().zip(before) {
            while taken(*node) < before + values {
                assert!(start.elapsed() < SOON, "it goes on no more. {}", self.said(*node));
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    fn kill(&mut self, node: usize) {
        self.nodes[node].kill().expect("kill -9");
        self.nodes[node].wait().expect("its end");
    }

    /// Waits for the end of some nodes, which must be a good one.
    fn end(&mut self, nodes: &[usize]) {
        let start = Instant::now();
        for node in nodes {
            let status = loop {
                if let Some(status) = self.nodes[*node].try_wait().expect("its status") {
                    break status;
                }
                assert!(start.elapsed() < PROCESS_MAX, "it hangs. {}", self.said(*node));
                std::thread::sleep(Duration::from_millis(5));
            };
            assert!(status.success(), "{}", self.said(*node));
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            let _ = node.kill();
            let _ = node.wait();
        }
        let _ = std::fs::remove_dir_all(&self.place);
    }
}

/// The numbers in a log; one that was cut off at its end is none.
fn numbers(log: &Path) -> Vec<u64> {
    let bytes = std::fs::read(log).unwrap_or_default();
    bytes.chunks_exact(8).map(|number| u64::from_le_bytes(number.try_into().expect("eight bytes"))).collect()
}

/// Producers and consumers are killed in the middle of their calls, over shared memory and over a fabric with many
/// pending operations. The others continue undisturbed. No acknowledged value is lost, except the one that a dead
/// consumer may have taken, and none is dequeued twice.
#[test]
fn the_dead_are_in_nobodys_way() {
    for round in 0..8u64 {
        let weak = if round % 2 == 0 { 0 } else { round };
        let mut session = Session::start("traffic", weak);
        session.wait_for_values(&[0, 1, 2, 3], 20);
        std::thread::sleep(Duration::from_micros(700 * round));
        session.kill(1);
        session.wait_for_values(&[0, 2, 3], 50);
        session.kill(3);
        session.wait_for_values(&[0, 2], 50);
        std::fs::write(session.place.join("stop"), "").expect("the news");
        session.end(&[0, 2]);

        let of = |kind: &str| -> Vec<Vec<u64>> {
            (0..NODES).map(|node| numbers(&session.place.join(format!("{node}.{kind}")))).collect()
        };
        let (begun, acknowledged, taken) = (of("begun").concat(), of("acknowledged").concat(), of("taken"));
        let begun: BTreeSet<u64> = begun.into_iter().collect();
        let all: Vec<u64> = taken.concat();
        let once: BTreeSet<u64> = all.iter().copied().collect();
        assert_eq!(once.len(), all.len(), "a value came twice");
        assert!(once.is_subset(&begun), "a value came that nobody enqueued");
        let lost: Vec<_> = acknowledged.iter().filter(|value| !once.contains(value)).collect();
        assert!(lost.len() <= 2, "two consumers died, but {} values are lost: {lost:x?}", lost.len());
        for taken in &taken {
            let mut last = BTreeMap::new();
            for value in taken {
                let before = last.insert(value >> 32, *value);
                assert!(before.is_none_or(|before| before < *value), "{before:x?} before {value:x}");
            }
        }
        println!("round {round}: {} acknowledged, {} taken, {} lost", acknowledged.len(), all.len(), lost.len());
    }
}

/// The values die with the home node: waiting calls soon fail with its name.
#[test]
fn the_death_of_the_home_is_an_error_that_names_it() {
    for weak in [0, 9] {
        let mut session = Session::start("orphan", weak);
        session.wait_for_values(&[1, 2, 3], 20);
        session.kill(0);
        session.end(&[1, 2, 3]);
    }
}

// ---- a node's part ---------------------------------------------------------------------------------------------

/// Not a test: the work of a child process.
#[test]
fn node_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let place = PathBuf::from(std::env::var(PLACE).expect("a place"));
    let weak: u64 = std::env::var(WEAK).expect("a seed").parse().expect("a number");
    // Whatever happens to the parent, it ends.
    std::thread::spawn(|| {
        std::thread::sleep(PROCESS_MAX);
        eprintln!("not ended within {PROCESS_MAX:?}");
        std::process::abort();
    });
    let builder = Node::builder().timeout(SOON).environment().expect("a role in a session");
    let node = match weak {
        0 => builder.start(),
        seed => builder.decorate(move |inner| weaken(inner, seed)).start(),
    };
    let node = node.expect("a node");
    let queue = Queue::<[u64; 3]>::open(&node, "q", QueueOptions::new(HOME, 8)).expect("a queue");
    let has_stopped = || place.join("stop").exists();
    let orphan = role == "orphan";
    let names_home = |error: farfield::Error| {
        assert!(orphan && error.is_gone() && error.node() == Some(HOME) && error.object() == Some("q"), "{error:?}");
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if let Err(error) = produce(&node.endpoint().expect("an endpoint"), &node, &queue, &place, &has_stopped) {
                names_home(error);
            }
        });
        scope.spawn(|| {
            if let Err(error) = consume(&node.endpoint().expect("an endpoint"), &node, &queue, &place) {
                names_home(error);
            }
        });
    });
    // No node leaves while others still use the memory of the home.
    std::fs::write(place.join(format!("{}.done", node.id().0)), "").expect("a sign");
    while node.id() == HOME && !place.join("2.done").exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

type Jobs = Queue<[u64; 3]>;

fn log(place: &Path, node: &Node, kind: &str) -> impl FnMut(u64) + use<> {
    let mut file = File::create(place.join(format!("{}.{kind}", node.id().0))).expect("a log");
    // A system call for each: the log survives when the process dies.
    move |number| file.write_all(&number.to_le_bytes()).expect("logging")
}

fn produce(
    endpoint: &Endpoint,
    node: &Node,
    queue: &Jobs,
    place: &Path,
    has_stopped: &dyn Fn() -> bool,
) -> farfield::Result<()> {
    let (mut begin, mut acknowledge) = (log(place, node, "begun"), log(place, node, "acknowledged"));
    let mut next = u64::from(node.id().0) << 32;
    while !has_stopped() {
        let numbers: Vec<u64> = (0..1 + next % 3).map(|more| next + more).collect();
        let values: Vec<[u64; 3]> = numbers.iter().map(|number| [*number, !number, number * 3]).collect();
        numbers.iter().for_each(|number| begin(*number));
        endpoint.block_on(queue.enqueue_batch(endpoint, &values))?;
        numbers.iter().for_each(|number| acknowledge(*number));
        next += numbers.len() as u64;
    }
    std::fs::write(place.join(format!("{}.produced", node.id().0)), "").expect("a sign");
    Ok(())
}

fn consume(endpoint: &Endpoint, node: &Node, queue: &Jobs, place: &Path) -> farfield::Result<()> {
    let mut taken = log(place, node, "taken");
    loop {
        // Read before the queue is found empty: nothing is enqueued after it.
        let is_last = [0, 2].iter().all(|node| place.join(format!("{node}.produced")).exists());
        match endpoint.block_on(queue.dequeue_deadline(endpoint, endpoint.now() + Duration::from_millis(20))) {
            Ok(value) => {
                assert_eq!(value, [value[0], !value[0], value[0] * 3], "a value is torn");
                taken(value[0]);
            }
            Err(error) if error.is_timeout() && is_last => return Ok(()),
            Err(error) if error.is_timeout() => {}
            Err(error) => return Err(error),
        }
    }
}
