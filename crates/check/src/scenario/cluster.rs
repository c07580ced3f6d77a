//! One execution of a scenario: its nodes, threads and checks.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use farfield_core::fabric::sim::{self, Handle};
use farfield_core::fabric::{NodeId, Thread, Transport, fault};
use farfield_core::{Endpoint, Node, Result};

use crate::log::Log;

pub(super) type Body = Arc<dyn Fn(&Cluster) -> Result<()> + Send + Sync>;
type Finally = Box<dyn FnOnce() -> Result<()>>;
type ThreadStart = Box<dyn FnOnce(&Endpoint) -> Result<()>>;
type ThreadBody = Rc<RefCell<dyn FnMut(&Endpoint) -> Result<()>>>;

/// The nodes of one execution, before its threads run.
///
/// ```
/// # use farfield::{AtomicVar, NodeId};
/// # use farfield_check::{Budget, Scenario, check};
/// let scenario = Scenario::new("doc/cluster", "each node adds one", 2, |cluster| {
///     for (at, sum) in cluster.on_each(|node| AtomicVar::open(node, "sum", NodeId(0)))?.into_iter().enumerate() {
///         cluster.thread(at, "adds", move |ep| ep.block_on(sum.fetch_add(ep, 1)).map(drop));
///     }
///     Ok(())
/// });
/// assert!(check(&scenario, Budget::executions(20), 1).finding.is_none());
/// ```
pub struct Cluster {
    handle: Rc<Handle>,
    /// Its nodes measure their calls.
    measures: bool,
    nodes: RefCell<Vec<Option<Node>>>,
    endpoints: RefCell<Vec<Rc<Endpoint>>>,
    finally: RefCell<VecDeque<Finally>>,
    /// The bodies of threads, with the objects that they use. They are dropped after all checks.
    bodies: RefCell<Vec<ThreadBody>>,
}

impl Cluster {
    /// Runs one execution, of which the first nodes are started before its body; called on the simulation's main
    /// thread.
    pub(super) fn play(body: &Body, started: usize, measures: bool, handle: Handle) {
        let cluster = Cluster {
            nodes: RefCell::new(vec![None; handle.nodes()]),
            handle: Rc::new(handle),
            measures,
            endpoints: RefCell::default(),
            finally: RefCell::default(),
            bodies: RefCell::default(),
        };
        let run = || -> Result<()> {
            for node in 0..started {
                cluster.start(node)?;
            }
            for node in cluster.nodes() {
                node.wait_for_all(node.timeout())?;
            }
            body(&cluster)?;
            cluster.handle.explore();
            // All puts of the threads are in memory before the checks run.
            cluster.endpoints.take();
            while let Some(check) = cluster.finally.borrow_mut().pop_front() {
                check()?;
            }
            Ok(())
        };
        if let Err(error) = run() {
            sim::fail(error.to_string());
        }
        for node in cluster.nodes.take().into_iter().flatten() {
            node.leave();
        }
    }

    /// Starts a node of a scenario with late nodes.
    ///
    /// ```
    /// # use farfield_check::{Budget, Scenario, check};
    /// let scenario = Scenario::new("doc/start", "the body starts the node", 1, |cluster| {
    ///     assert!(cluster.nodes().is_empty());
    ///     let node = cluster.start(0)?;
    ///     assert_eq!(cluster.node(0).id(), node.id());
    ///     cluster.thread(0, "ends", |_| Ok(()));
    ///     Ok(())
    /// });
    /// assert!(check(&scenario.late_nodes(), Budget::executions(10), 1).finding.is_none());
    /// ```
    ///
    /// # Errors
    /// No memory.
    ///
    /// # Panics
    /// If it runs already, or the scenario has no such node.
    pub fn start(&self, node: usize) -> Result<Node> {
        self.start_on(self.handle.join(NodeId(node as u16)))
    }

    /// Starts a node, of which all operations can be refused on command: its service thread's, too. For scenarios with
    /// [`Scenario::late_nodes`](crate::Scenario::late_nodes).
    ///
    /// ```
    /// use farfield::fabric::fault::Faults;
    /// # use farfield_check::{Budget, Scenario, check};
    /// let scenario = Scenario::new("doc/refused", "a refused put is an error", 1, |cluster| {
    ///     let refusals = Faults::default();
    ///     let node = cluster.start_refusing(0, refusals.clone())?;
    ///     let word = node.alloc(farfield::fabric::GroupKey::DATA, 8)?.remote::<u64>(0);
    ///     cluster.thread(0, "puts", move |ep| {
    ///         refusals.fail_after(0);
    ///         assert!(ep.put_value(word, 1).wait().is_err_and(|error| error.is_refused()));
    ///         Ok(())
    ///     });
    ///     Ok(())
    /// });
    /// let report = check(&scenario.late_nodes(), Budget::executions(10), 1);
    /// assert!(report.finding.is_none(), "{:?}", report.finding);
    /// ```
    ///
    /// # Panics
    /// If it runs already, or the scenario has no such node.
    pub fn start_refusing(&self, node: usize, refusals: fault::Faults) -> Result<Node> {
        self.start_on(fault::inject(self.handle.join(NodeId(node as u16)), refusals))
    }

    fn start_on(&self, fabric: Arc<dyn Transport>) -> Result<Node> {
        let node = Node::builder().fabric(fabric).latencies(self.measures).start()?;
        self.nodes.borrow_mut()[node.id().index()] = Some(node.clone());
        Ok(node)
    }

    /// A handle that starts nodes in threads of the scenario.
    ///
    /// ```
    /// # use farfield_check::{Budget, Scenario, check};
    /// let scenario = Scenario::new("doc/part", "a thread starts node 1", 2, |cluster| {
    ///     let (first, starter, joined) = (cluster.start(0)?, cluster.starter(), cluster.log());
    ///     let kept = joined.clone();
    ///     cluster.thread_without_endpoint(0, "waits", move || first.wait_for_all(first.timeout()));
    ///     cluster.thread_without_endpoint(1, "joins", move || Ok(drop(joined.push(starter.start(1)?))));
    ///     cluster.at_end(move || Ok(drop(kept.take())));
    ///     Ok(())
    /// })
    /// .late_nodes();
    /// assert!(check(&scenario, Budget::executions(20), 1).finding.is_none());
    /// ```
    pub fn starter(&self) -> Starter {
        Starter(Rc::clone(&self.handle), self.measures)
    }

    /// The nodes that run.
    ///
    /// ```
    /// # use farfield_check::{Budget, Scenario, check};
    /// let scenario = Scenario::new("doc/part", "both nodes are there", 2, |cluster| {
    ///     assert_eq!(cluster.nodes().len(), 2);
    ///     Ok(())
    /// });
    /// assert!(check(&scenario, Budget::executions(20), 1).finding.is_none());
    /// ```
    pub fn nodes(&self) -> Vec<Node> {
        self.nodes.borrow().iter().flatten().cloned().collect()
    }

    /// A node that runs.
    ///
    /// ```
    /// # use farfield_check::{Budget, Scenario, check};
    /// let scenario = Scenario::new("doc/part", "a node has its number", 2, |cluster| {
    ///     assert_eq!(cluster.node(1).id(), farfield::NodeId(1));
    ///     Ok(())
    /// });
    /// assert!(check(&scenario, Budget::executions(20), 1).finding.is_none());
    /// ```
    ///
    /// # Panics
    /// If it does not.
    pub fn node(&self, node: usize) -> Node {
        self.nodes.borrow()[node].clone().expect("a node that has been started")
    }

    /// A number below `options` that the search draws for each execution, as [`choose`] in a thread: which objects
    /// there are, on which nodes, and the calls of each thread.
    ///
    /// ```
    /// # use farfield::{AtomicVar, NodeId};
    /// # use farfield_check::{Budget, Scenario, exhaust};
    /// let scenario = Scenario::new("doc/draw", "a counter on one node or the other", 2, |cluster| {
    ///     let home = NodeId(cluster.draw(2) as u16);
    ///     let counter = cluster.on_each(move |node| AtomicVar::open(node, "counter", home))?.remove(0);
    ///     cluster.thread(0, "adds", move |ep| ep.block_on(counter.fetch_add(ep, 1)).map(drop));
    ///     Ok(())
    /// });
    /// let report = exhaust(&scenario, Budget::unlimited());
    /// assert!(report.is_complete && report.executions > 1);
    /// ```
    pub fn draw(&self, options: usize) -> usize {
        self.handle.draw(options)
    }

    /// Runs `body` on all nodes at once, as opening an object requires. Returns the results, in order.
    ///
    /// ```
    /// # use farfield::SharedVar;
    /// # use farfield_check::{Budget, Scenario, check};
    /// let scenario = Scenario::new("doc/part", "an object on each node", 2, |cluster| {
    ///     let flags = cluster.on_each(|node| SharedVar::<u64>::open(node, "flag"))?;
    ///     assert_eq!(flags.len(), 2);
    ///     Ok(())
    /// });
    /// assert!(check(&scenario, Budget::executions(20), 1).finding.is_none());
    /// ```
    ///
    /// # Errors
    /// The first error.
    ///
    /// # Panics
    /// If a body does.
    pub fn on_each<T: 'static>(&self, body: impl Fn(&Node) -> Result<T> + 'static) -> Result<Vec<T>> {
        let results: Rc<RefCell<Vec<Option<Result<T>>>>> = Rc::default();
        results.borrow_mut().resize_with(self.handle.nodes(), || None);
        let kept = Rc::clone(&results);
        self.set_up(Rc::new(move |node: &Node| {
            let result = body(node);
            kept.borrow_mut()[node.id().index()] = Some(result);
        }))?;
        let mut all = Vec::new();
        for result in results.take().into_iter().flatten() {
            all.push(result?);
        }
        Ok(all)
    }

    /// Runs `body` on all nodes at once.
    fn set_up(&self, body: Rc<dyn Fn(&Node)>) -> Result<()> {
        let mut threads: Vec<Thread> = Vec::new();
        for node in self.nodes() {
            let (id, body) = (node.id(), Rc::clone(&body));
            threads.push(self.handle.spawn(id, "setup", false, Box::new(move || body(&node)))?);
        }
        for thread in threads {
            // A panic is the execution's failure already.
            let _ = thread.join();
        }
        Ok(())
    }

    /// Adds a thread of a node, with its own endpoint. It begins after the body has returned. The objects that it uses
    /// are kept after it has ended: closing them would add steps to the search.
    ///
    /// ```
    /// # use farfield_check::{Budget, Scenario, check};
    /// let scenario = Scenario::new("doc/part", "a thread puts a word", 2, |cluster| {
    ///     let word = farfield_check::parts::word(cluster, 1, "word")?;
    ///     let there = word.remote::<u64>(0);
    ///     cluster.thread(0, "puts", move |ep| Ok(ep.put_value(there, 7).wait()?));
    ///     Ok(())
    /// });
    /// assert!(check(&scenario, Budget::executions(20), 1).finding.is_none());
    /// ```
    ///
    /// # Panics
    /// If there is no such node, or no memory.
    pub fn thread(&self, node: usize, name: &str, body: impl FnMut(&Endpoint) -> Result<()> + 'static) {
        let body: ThreadBody = Rc::new(RefCell::new(body));
        self.bodies.borrow_mut().push(Rc::clone(&body));
        self.add_thread(node, name, Box::new(move |endpoint| (body.borrow_mut())(endpoint)));
    }

    /// Adds a thread of a node like [`thread`](Cluster::thread). It drops the objects that it uses when it ends.
    ///
    /// ```
    /// # use farfield::{AtomicVar, NodeId};
    /// # use farfield_check::{Budget, Scenario, check};
    /// let scenario = Scenario::new("doc/part", "a variable is closed", 1, |cluster| {
    ///     let hits = AtomicVar::open(&cluster.node(0), "hits", NodeId(0))?;
    ///     cluster.thread_that_drops(0, "adds", move |ep| ep.block_on(hits.fetch_add(ep, 1)).map(drop));
    ///     Ok(())
    /// });
    /// assert!(check(&scenario, Budget::executions(20), 1).finding.is_none());
    /// ```
    ///
    /// # Panics
    /// If there is no such node, or no memory.
    pub fn thread_that_drops(&self, node: usize, name: &str, body: impl FnOnce(&Endpoint) -> Result<()> + 'static) {
        self.add_thread(node, name, Box::new(body));
    }

    fn add_thread(&self, node: usize, name: &str, body: ThreadStart) {
        let node = self.node(node);
        let endpoint = Rc::new(node.endpoint().expect("a simulated node has endpoints enough"));
        self.endpoints.borrow_mut().push(Rc::clone(&endpoint));
        self.add_thread_of(node.id(), name, Box::new(move || body(&endpoint)));
    }

    /// Adds a thread of a node that may not run yet.
    ///
    /// ```
    /// # use farfield_check::{Budget, Scenario, check};
    /// let scenario = Scenario::new("doc/part", "a thread waits for a node", 2, |cluster| {
    ///     let node = cluster.node(0);
    ///     cluster.thread_without_endpoint(0, "waits", move || node.wait_for_all(node.timeout()));
    ///     Ok(())
    /// });
    /// assert!(check(&scenario, Budget::executions(20), 1).finding.is_none());
    /// ```
    ///
    /// # Panics
    /// If there is no memory.
    pub fn thread_without_endpoint(&self, node: usize, name: &str, body: impl FnOnce() -> Result<()> + 'static) {
        self.add_thread_of(NodeId(node as u16), name, Box::new(body));
    }

    // Scenarios have hundreds of threads: the part that is the same for all of them is compiled once.
    fn add_thread_of(&self, node: NodeId, name: &str, body: Finally) {
        let label = name.to_string();
        let body = Box::new(move || {
            if let Err(error) = body() {
                sim::fail(format!("`{label}` ended in an error: {error}"));
            }
        });
        self.handle.spawn(node, name, true, body).expect("memory for a simulated thread");
    }

    /// Adds a property that must hold after every change of memory. It must only read.
    ///
    /// ```
    /// # use farfield_check::{Budget, FailureKind, Scenario, exhaust, parts::word};
    /// let scenario = Scenario::new("doc/invariant", "a word that must not exceed 1", 1, |cluster| {
    ///     let level = word(cluster, 0, "level")?;
    ///     let seen = level.clone();
    ///     cluster.invariant("at most 1", move || match seen.word(0).load() {
    ///         0 | 1 => Ok(()),
    ///         more => Err(format!("the level is {more}")),
    ///     });
    ///     cluster.thread(0, "raises", move |_| Ok((1..3).for_each(|value| level.word(0).store(value))));
    ///     Ok(())
    /// });
    /// let finding = exhaust(&scenario, Budget::unlimited()).finding.unwrap();
    /// assert_eq!(finding.failure.kind, FailureKind::Invariant);
    /// ```
    pub fn invariant(&self, name: &str, holds: impl Fn() -> std::result::Result<(), String> + 'static) {
        self.handle.invariant(name, holds);
    }

    /// Adds a check that runs when all threads have ended, and all their puts are visible.
    ///
    /// ```
    /// # use farfield_check::{Budget, Scenario, check};
    /// let scenario = Scenario::new("doc/part", "a word is there in the end", 2, |cluster| {
    ///     let word = farfield_check::parts::word(cluster, 1, "word")?;
    ///     let there = word.remote::<u64>(0);
    ///     cluster.thread(0, "puts", move |ep| Ok(ep.put_value(there, 7).wait()?));
    ///     cluster.at_end(move || Ok(assert_eq!(word.word(0).load(), 7)));
    ///     Ok(())
    /// });
    /// assert!(check(&scenario, Budget::executions(20), 1).finding.is_none());
    /// ```
    pub fn at_end(&self, check: impl FnOnce() -> Result<()> + 'static) {
        self.finally.borrow_mut().push_back(Box::new(check));
    }

    /// Whether a node has crashed in this execution. [`crashed`] is the same without a cluster, for threads and checks.
    ///
    /// ```
    /// # use farfield_check::{Budget, Scenario, check};
    /// let scenario = Scenario::new("doc/part", "no node may crash", 2, |cluster| {
    ///     assert!(!cluster.crashed(1));
    ///     Ok(())
    /// });
    /// assert!(check(&scenario, Budget::executions(20), 1).finding.is_none());
    /// ```
    pub fn crashed(&self, node: usize) -> bool {
        crashed(node)
    }

    /// Returns a list to which all threads add; its order is that of the additions.
    ///
    /// ```
    /// # use farfield_check::{Budget, Scenario, check};
    /// let scenario = Scenario::new("doc/part", "two threads add to a list", 2, |cluster| {
    ///     let log = cluster.log();
    ///     for node in 0..2 {
    ///         let log = log.clone();
    ///         cluster.thread(node, "adds", move |_| Ok(drop(log.push(node))));
    ///     }
    ///     cluster.at_end(move || Ok(assert_eq!(log.take().len(), 2)));
    ///     Ok(())
    /// });
    /// assert!(check(&scenario, Budget::executions(20), 1).finding.is_none());
    /// ```
    pub fn log<T: 'static>(&self) -> Log<T> {
        Log::default()
    }
}

/// Starts nodes in the threads of a scenario ([`Cluster::starter`]).
///
/// ```
/// # use farfield_check::{Budget, Scenario, check};
/// let scenario = Scenario::new("doc/late", "a node joins later", 2, |cluster| {
///     let (first, starter) = (cluster.start(0)?, cluster.starter());
///     cluster.thread_without_endpoint(1, "joins", move || {
///         let joined = starter.start(1)?;
///         joined.wait_for_all(joined.timeout())
///     });
///     cluster.at_end(move || Ok(drop(first)));
///     Ok(())
/// })
/// .late_nodes();
/// assert!(check(&scenario, Budget::executions(20), 1).finding.is_none());
/// ```
#[derive(Clone)]
pub struct Starter(Rc<Handle>, bool);

impl Starter {
    /// Starts a node.
    ///
    /// ```
    /// # use farfield_check::{Budget, Scenario, check};
    /// let scenario = Scenario::new("doc/starter", "a thread starts node 1", 2, |cluster| {
    ///     let (first, starter) = (cluster.start(0)?, cluster.starter());
    ///     cluster.thread_without_endpoint(1, "joins", move || {
    ///         let joined = starter.start(1)?;
    ///         assert_eq!(joined.id(), farfield::NodeId(1));
    ///         joined.wait_for_all(joined.timeout())
    ///     });
    ///     cluster.at_end(move || Ok(drop(first)));
    ///     Ok(())
    /// });
    /// assert!(check(&scenario.late_nodes(), Budget::executions(20), 1).finding.is_none());
    /// ```
    ///
    /// # Errors
    /// No memory.
    ///
    /// # Panics
    /// If it runs already, or the scenario has no such node.
    pub fn start(&self, node: usize) -> Result<Node> {
        Node::builder().fabric(self.0.join(NodeId(node as u16))).latencies(self.1).start()
    }
}

/// A number below `options` that the search chooses, for a decision that a scenario leaves open.
///
/// ```
/// # use farfield_check::{Budget, Scenario, choose, exhaust};
/// let scenario = Scenario::new("doc/choose", "one choice of three is wrong", 1, |cluster| {
///     cluster.thread(0, "chooses", |_| Ok(assert_ne!(choose(3), 2, "the wrong choice")));
///     Ok(())
/// });
/// assert!(exhaust(&scenario, Budget::unlimited()).finding.is_some());
/// ```
pub fn choose(options: usize) -> usize {
    sim::choose(options)
}

/// Whether a node has crashed in this execution. For checks: a thread that uses it knows more than a node can.
///
/// ```
/// # use farfield_check::{Budget, Scenario, crashed, exhaust};
/// let scenario = Scenario::new("doc/crashed", "without faults no node dies", 1, |cluster| {
///     cluster.thread(0, "ends", |_| Ok(()));
///     cluster.at_end(|| Ok(assert!(!crashed(0))));
///     Ok(())
/// });
/// assert!(exhaust(&scenario, Budget::unlimited()).finding.is_none());
/// ```
pub fn crashed(node: usize) -> bool {
    sim::crashed(NodeId(node as u16))
}

/// Whether a NIC has stalled or a thread was paused in this execution. Its operations may have been too late for
/// others.
///
/// ```
/// # use farfield_check::{Budget, Scenario, exhaust, was_paused};
/// let scenario = Scenario::new("doc/paused", "without faults no thread is paused", 1, |cluster| {
///     cluster.thread(0, "ends", |_| Ok(()));
///     cluster.at_end(|| Ok(assert!(!was_paused())));
///     Ok(())
/// });
/// assert!(exhaust(&scenario, Budget::unlimited()).finding.is_none());
/// ```
pub fn was_paused() -> bool {
    sim::was_paused()
}

/// Adds a remark to the timeline.
///
/// ```
/// # use farfield_check::{Budget, Scenario, choose, exhaust, note};
/// let scenario = Scenario::new("doc/note", "the timeline of a failure has the remark", 1, |cluster| {
///     cluster.thread(0, "chooses", |_| {
///         let chosen = choose(2);
///         note(|| format!("it has chosen {chosen}"));
///         Ok(())
///     });
///     Ok(())
/// });
/// assert!(exhaust(&scenario, Budget::unlimited()).finding.is_none());
/// ```
pub fn note(text: impl FnOnce() -> String) {
    sim::note(text);
}
