//! Scenarios: small programs over several nodes, with the properties that must hold.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use farfield_core::fabric::sim::{self, Faults, Handle};
use farfield_core::fabric::{DeathRule, NodeId, Thread, Transport, fault};
use farfield_core::{Endpoint, Node, Result};

pub(crate) use crate::log::Log;

type Body = Arc<dyn Fn(&Cluster) -> Result<()> + Send + Sync>;
type Finally = Box<dyn FnOnce() -> Result<()>>;
type ThreadStart = Box<dyn FnOnce(&Endpoint) -> Result<()>>;
type ThreadBody = Rc<RefCell<dyn FnMut(&Endpoint) -> Result<()>>>;

/// A program over a few nodes, and the properties that must hold in every order of events.
///
/// The body prepares the execution, once for each: it opens objects on the nodes, adds threads, and states the
/// properties. It runs without choices but those that it asks for ([`Cluster::draw`]). Then the threads run, and the search chooses the order of events. These are
/// failures: a thread that panics (an `assert!`) or returns an error, an invariant that does not hold, a deadlock, and
/// an execution that does not end.
///
/// ```
/// use farfield::{NodeId, SharedVar};
/// use farfield_check::{Budget, Scenario, check};
///
/// // Two nodes push a one to each other, and look: with a fence in between, one of them at least sees the other's.
/// let dekker = |fenced: bool| {
///     Scenario::new("doc/dekker", "two pushes and two looks", 2, move |cluster| {
///         let flags = cluster.on_each(|node| Ok([SharedVar::<u64>::open(node, "a")?, SharedVar::open(node, "b")?]))?;
///         let seen = cluster.log();
///         for (me, flags) in flags.into_iter().enumerate() {
///             let seen = seen.clone();
///             cluster.thread(me, "dekker", move |ep| {
///                 let (mine, other) = (&flags[me], &flags[1 - me]);
///                 mine.store(1);
///                 ep.block_on(async {
///                     mine.push_all(ep).await?;
///                     if fenced {
///                         mine.fence(ep, [NodeId(1 - me as u16)]).await?;
///                     }
///                     seen.push(other.load());
///                     Ok(())
///                 })
///             });
///         }
///         cluster.at_end(move || {
///             assert_ne!(seen.take(), [0, 0], "neither saw the other");
///             Ok(())
///         });
///         Ok(())
///     })
/// };
/// let found = check(&dekker(false), Budget::executions(10_000), 1);
/// assert!(found.finding.is_some());
/// let exhaustive = farfield_check::exhaust(&dekker(true), Budget::unlimited());
/// assert!(exhaustive.is_complete && exhaustive.finding.is_none());
/// ```
#[derive(Clone)]
pub struct Scenario {
    pub(crate) name: String,
    pub(crate) about: String,
    pub(crate) nodes: usize,
    pub(crate) places: usize,
    pub(crate) body: Body,
    pub(crate) steps_max: u64,
    pub(crate) late_nodes: bool,
    pub(crate) early_timeouts: bool,
    pub(crate) is_small: bool,
    pub(crate) is_medium: bool,
    pub(crate) kills: Vec<&'static str>,
    pub(crate) rule: DeathRule,
    pub(crate) faults: Option<Faults>,
}

impl Scenario {
    /// A scenario over `nodes` nodes. By convention, names are `object/property`.
    pub fn new(
        name: &str,
        about: &str,
        nodes: usize,
        body: impl Fn(&Cluster) -> Result<()> + Send + Sync + 'static,
    ) -> Scenario {
        Scenario {
            name: name.into(),
            about: about.into(),
            nodes,
            places: nodes,
            body: Arc::new(body),
            steps_max: 200_000,
            late_nodes: false,
            early_timeouts: false,
            is_small: false,
            is_medium: false,
            kills: Vec::new(),
            rule: DeathRule::System,
            faults: None,
        }
    }

    /// The maximum of steps. An execution with more is a failure: it loops. 200,000 unless set.
    ///
    /// ```
    /// # use farfield::fabric::Word;
    /// # use farfield_check::{Budget, FailureKind, Scenario, check};
    /// let spins = Scenario::new("doc/spins", "a thread that spins instead of waiting", 1, |cluster| {
    ///     cluster.thread(0, "spins", |_| loop { Word::new(0).load(); });
    ///     Ok(())
    /// });
    /// let finding = check(&spins.steps_max(1000), Budget::executions(1), 1).finding.unwrap();
    /// assert_eq!(finding.failure.kind, FailureKind::TooLong);
    /// ```
    #[must_use]
    pub fn steps_max(mut self, steps: u64) -> Scenario {
        self.steps_max = steps;
        self
    }

    /// Only this many of the nodes belong to the session at a time. The others are later incarnations of these, in
    /// order, and join late: with three nodes at two ranks, node 2 is the second incarnation of node 0.
    #[must_use]
    pub fn places(mut self, places: usize) -> Scenario {
        self.places = places;
        self
    }

    /// Nodes are not started before the body runs: [`Cluster::start`] starts them, in a thread if they are to join
    /// late.
    ///
    /// ```
    /// # use farfield_check::{Budget, Scenario, check};
    /// let scenario = Scenario::new("doc/late", "node 1 joins while node 0 waits for it", 2, |cluster| {
    ///     let (first, starter, joined) = (cluster.start(0)?, cluster.starter(), cluster.log());
    ///     let kept = joined.clone();
    ///     cluster.thread_without_endpoint(0, "waits", move || first.wait_for_all(first.timeout()));
    ///     cluster.thread_without_endpoint(1, "joins", move || Ok(drop(joined.push(starter.start(1)?))));
    ///     cluster.at_end(move || Ok(drop(kept.take())));
    ///     Ok(())
    /// })
    /// .late_nodes();
    /// assert!(check(&scenario, Budget::executions(50), 1).finding.is_none());
    /// ```
    #[must_use]
    pub fn late_nodes(mut self) -> Scenario {
        self.late_nodes = true;
        self
    }

    /// Lets deadlines pass while other threads could still make progress, so that timeouts occur in every state.
    ///
    /// ```
    /// # use farfield_check::{Budget, Scenario, check};
    /// let scenario = Scenario::new("doc/early", "a wait that may time out", 2, |cluster| {
    ///     let flag = farfield_check::parts::word(cluster, 1, "flag")?;
    ///     let there = flag.remote::<u64>(0);
    ///     cluster.thread(0, "puts", move |ep| Ok(ep.put_value(there, 1).wait()?));
    ///     cluster.thread(1, "waits", move |ep| {
    ///         Ok(ep.block_on(ep.wait_until(ep.deadline(), || (flag.word(0).load() == 1).then_some(())))?)
    ///     });
    ///     Ok(())
    /// });
    /// assert!(check(&scenario, Budget::executions(200), 1).finding.is_none());
    /// assert!(check(&scenario.early_timeouts(), Budget::executions(200), 1).finding.is_some()); // a timeout
    /// ```
    #[must_use]
    pub fn early_timeouts(mut self) -> Scenario {
        self.early_timeouts = true;
        self
    }

    /// The faults that may occur: crashes of nodes, cuts, stalls. The search chooses when, like everything else.
    ///
    /// Threads of a crashed node count as ended, without a result; [`crashed`] reports such nodes. An execution is a
    /// failure if the other threads do not finish: cuts heal and stalls end before.
    ///
    /// ```
    /// use farfield::NodeId;
    /// use farfield::fabric::{ErrorKind, GroupKey};
    /// use farfield_check::{Budget, Faults, Scenario, exhaust};
    ///
    /// // Node 1 may die at any moment. What is put to it then fails, with an error that names it.
    /// let scenario = Scenario::new("doc/crash", "a put to a node that may die", 2, |cluster| {
    ///     let word = cluster.node(1).alloc(GroupKey::DATA, 8)?;
    ///     let (target, looked_at) = (word.remote::<u64>(0), word.clone());
    ///     cluster.thread(0, "puts", move |ep| {
    ///         if let Err(error) = ep.put_value(target, 7).wait() {
    ///             assert!(farfield_check::crashed(1) && error.node() == Some(NodeId(1)), "{error}");
    ///         }
    ///         Ok(())
    ///     });
    ///     cluster.at_end(move || {
    ///         assert!(farfield_check::crashed(1) || looked_at.word(0).load() == 7);
    ///         Ok(())
    ///     });
    ///     Ok(())
    /// })
    /// .faults(Faults::new().crashes(1).of([1]));
    /// let report = exhaust(&scenario, Budget::unlimited());
    /// assert!(report.is_complete && report.finding.is_none());
    /// ```
    #[must_use]
    pub fn faults(mut self, faults: Faults) -> Scenario {
        self.faults = Some(faults);
        self
    }

    /// How a death is decided: by the system, unless this sets the rule that a majority of the nodes decides.
    ///
    /// With a majority, operations are cut short even without faults (a node may evict others, or be fenced). A search
    /// of all executions takes care of that, see [`exhaust`](crate::exhaust).
    ///
    /// ```
    /// # use farfield::fabric::DeathRule;
    /// # use farfield_check::{Faults, Scenario};
    /// # let scenario = Scenario::new("doc/cut", "node 2 may be cut off", 3, |_| Ok(()));
    /// let scenario = scenario.rule(DeathRule::Majority).faults(Faults::new().cuts(1).side([2]));
    /// assert_eq!(scenario.injected().unwrap().count(), 1);
    /// ```
    #[must_use]
    pub fn rule(mut self, rule: DeathRule) -> Scenario {
        self.rule = rule;
        self.faults.get_or_insert_default();
        self
    }

    /// Marks it as small enough to run all of its executions ([`exhaust`](crate::exhaust)).
    ///
    /// ```
    /// # let scenario = farfield_check::Scenario::new("doc/empty", "nothing happens", 2, |_| Ok(()));
    /// assert!(scenario.small().is_small());
    /// ```
    #[must_use]
    pub fn small(mut self) -> Scenario {
        self.is_small = true;
        self
    }

    /// Marks it as small enough to run all of its executions in minutes: an optional test does so.
    #[must_use]
    pub fn medium(mut self) -> Scenario {
        self.is_medium = true;
        self
    }

    /// The seeded bugs that it is there to find, by name.
    ///
    /// ```
    /// # let scenario = farfield_check::Scenario::new("doc/empty", "nothing happens", 2, |_| Ok(()));
    /// assert_eq!(scenario.kills(&["queue-no-fence"]).mutants(), ["queue-no-fence"]);
    /// ```
    #[must_use]
    pub fn kills(mut self, mutants: &[&'static str]) -> Scenario {
        self.kills.extend(mutants);
        self
    }

    /// The seeded bugs that it is there to find, by name.
    pub fn mutants(&self) -> &[&'static str] {
        &self.kills
    }

    /// The same as a separate scenario, in which NICs and threads of the failing nodes may also stall.
    #[cfg(not(test))]
    pub(crate) fn slow(mut self) -> Scenario {
        self.name += "-slow";
        self.about += "; NICs and threads stand still";
        self.faults = Some(self.faults.unwrap_or_default().stalls(1).pauses(1));
        self.kills.clear();
        self
    }

    /// The faults that may occur in it, if any.
    ///
    /// ```
    /// # use farfield_check::{Faults, Scenario};
    /// # let scenario = Scenario::new("doc/empty", "nothing happens", 2, |_| Ok(()));
    /// assert!(scenario.injected().is_none());
    /// assert_eq!(scenario.faults(Faults::new().crashes(2)).injected().unwrap().count(), 2);
    /// ```
    pub fn injected(&self) -> Option<&Faults> {
        self.faults.as_ref().filter(|faults| faults.count() > 0)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its subject, in a line.
    pub fn about(&self) -> &str {
        &self.about
    }

    /// How many nodes it has.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Whether it is small enough to run all of its executions.
    pub fn is_small(&self) -> bool {
        self.is_small
    }

    /// Whether all of its executions can be run in minutes.
    pub fn is_medium(&self) -> bool {
        self.is_medium
    }
}

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
    nodes: RefCell<Vec<Option<Node>>>,
    endpoints: RefCell<Vec<Rc<Endpoint>>>,
    finally: RefCell<VecDeque<Finally>>,
    /// The bodies of threads, with the objects that they use. They are dropped after all checks.
    bodies: RefCell<Vec<ThreadBody>>,
}

impl Cluster {
    /// Runs one execution of a scenario; called on the simulation's main thread.
    pub(crate) fn play(scenario: &Scenario, handle: Handle) {
        let cluster = Cluster {
            nodes: RefCell::new(vec![None; handle.nodes()]),
            handle: Rc::new(handle),
            endpoints: RefCell::default(),
            finally: RefCell::default(),
            bodies: RefCell::default(),
        };
        let run = || -> Result<()> {
            if !scenario.late_nodes {
                for node in 0..scenario.places {
                    cluster.start(node)?;
                }
                for node in cluster.nodes() {
                    node.wait_for_all(node.timeout())?;
                }
            }
            (scenario.body)(&cluster)?;
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
    /// # Errors
    /// No memory.
    ///
    /// # Panics
    /// If it runs already, or the scenario has no such node.
    pub fn start(&self, node: usize) -> Result<Node> {
        self.start_on(self.handle.join(NodeId(node as u16)))
    }

    /// Starts a node, of which all operations can be refused on command: its service thread's, too. For scenarios with
    /// [`Scenario::late_nodes`].
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
        let node = Node::builder().fabric(fabric).start()?;
        self.nodes.borrow_mut()[node.id().index()] = Some(node.clone());
        Ok(node)
    }

    /// A handle that starts nodes in threads of the scenario.
    pub fn starter(&self) -> Starter {
        Starter(Rc::clone(&self.handle))
    }

    /// The nodes that run.
    pub fn nodes(&self) -> Vec<Node> {
        self.nodes.borrow().iter().flatten().cloned().collect()
    }

    /// A node that runs.
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
    /// # Panics
    /// If there is no such node, or no memory.
    pub fn thread(&self, node: usize, name: &str, body: impl FnMut(&Endpoint) -> Result<()> + 'static) {
        let body: ThreadBody = Rc::new(RefCell::new(body));
        self.bodies.borrow_mut().push(Rc::clone(&body));
        self.add_thread(node, name, Box::new(move |endpoint| (body.borrow_mut())(endpoint)));
    }

    /// Adds a thread of a node like [`thread`](Cluster::thread). It drops the objects that it uses when it ends.
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
    pub fn at_end(&self, check: impl FnOnce() -> Result<()> + 'static) {
        self.finally.borrow_mut().push_back(Box::new(check));
    }

    /// Whether a node has crashed in this execution. [`crashed`] is the same without a cluster, for threads and checks.
    pub fn crashed(&self, node: usize) -> bool {
        crashed(node)
    }

    /// Returns a list to which all threads add; its order is that of the additions.
    pub fn log<T: 'static>(&self) -> Log<T> {
        Log::default()
    }
}

/// Starts nodes in the threads of a scenario.
#[derive(Clone)]
pub struct Starter(Rc<Handle>);

impl Starter {
    /// Starts a node.
    ///
    /// # Errors
    /// No memory.
    ///
    /// # Panics
    /// If it runs already, or the scenario has no such node.
    pub fn start(&self, node: usize) -> Result<Node> {
        Node::builder().fabric(self.0.join(NodeId(node as u16))).start()
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
pub fn crashed(node: usize) -> bool {
    sim::crashed(NodeId(node as u16))
}

/// Whether a NIC has stalled or a thread was paused in this execution. Its operations may have been too late for
/// others.
pub fn was_paused() -> bool {
    sim::was_paused()
}

/// Adds a remark to the timeline.
pub fn note(text: impl FnOnce() -> String) {
    sim::note(text);
}
