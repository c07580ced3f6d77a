//! Scenarios: small programs over several nodes, with the properties that must hold.

mod cluster;

use std::sync::Arc;

use farfield_core::Result;
use farfield_core::fabric::DeathRule;
use farfield_core::fabric::sim::{Faults, Handle};

use self::cluster::Body;
pub use self::cluster::{Cluster, Starter, choose, crashed, note, was_paused};

/// A program over a few nodes, and the properties that must hold in every order of events.
///
/// The body prepares the execution, once for each: it opens objects on the nodes, adds threads, and states the
/// properties. It runs without choices but those that it asks for ([`Cluster::draw`]). Then the threads run, and the
/// search chooses the order of events. These are failures: a thread that panics (an `assert!`) or returns an error, an
/// invariant that does not hold, a deadlock, and an execution that does not end.
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
    pub(crate) completes_at_once: bool,
    pub(crate) measures: bool,
}

impl Scenario {
    /// A scenario over `nodes` nodes. By convention, names are `object/property`.
    ///
    /// ```
    /// # use farfield_check::{Budget, Scenario, check};
    /// let scenario = Scenario::new("doc/starts", "two nodes are there", 2, |cluster| {
    ///     let nodes = cluster.nodes();
    ///     cluster.thread(0, "looks", move |ep| Ok(ep.check_alive(nodes[1].id())?));
    ///     Ok(())
    /// });
    /// assert!(check(&scenario, Budget::executions(10), 1).finding.is_none());
    /// ```
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
            completes_at_once: false,
            measures: false,
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
    ///
    /// ```
    /// # use farfield_check::{Budget, Scenario, check};
    /// let scenario = Scenario::new("doc/again", "node 2 is started in place of node 0", 3, |cluster| {
    ///     assert_eq!(cluster.nodes().len(), 2);
    ///     Ok(())
    /// });
    /// assert!(check(&scenario.places(2), Budget::executions(10), 1).finding.is_none());
    /// ```
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

    /// Its nodes measure their calls ([`Builder::latencies`](farfield_core::Builder::latencies)), which take other ways
    /// then.
    ///
    /// ```
    /// # use farfield::{AtomicVar, NodeId};
    /// # use farfield_check::{Budget, Scenario, check};
    /// let scenario = Scenario::new("doc/measured", "an addition is counted", 1, |cluster| {
    ///     let node = cluster.node(0);
    ///     let sum = AtomicVar::open(&node, "sum", NodeId(0))?;
    ///     cluster.thread(0, "adds", move |ep| ep.block_on(sum.fetch_add(ep, 1)).map(drop));
    ///     cluster.at_end(move || {
    ///         assert_eq!(node.metrics().call("sum", "fetch_add").unwrap().latencies.count(), 1);
    ///         Ok(())
    ///     });
    ///     Ok(())
    /// });
    /// assert!(check(&scenario.measured(), Budget::executions(10), 1).finding.is_none());
    /// ```
    #[must_use]
    pub fn measured(mut self) -> Scenario {
        self.measures = true;
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
    ///
    /// ```
    /// # let scenario = farfield_check::Scenario::new("doc/empty", "nothing happens", 2, |_| Ok(()));
    /// assert!(scenario.medium().is_medium());
    /// ```
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
    ///
    /// ```
    /// # let scenario = farfield_check::Scenario::new("doc/empty", "nothing happens", 2, |_| Ok(()));
    /// assert!(scenario.mutants().is_empty());
    /// ```
    pub fn mutants(&self) -> &[&'static str] {
        &self.kills
    }

    /// The same with operations that are complete as soon as their value is asked for
    /// ([`Op::into_value`](farfield_core::fabric::Op::into_value)), as on shared memory.
    pub(crate) fn at_once(mut self) -> Scenario {
        self.name += "-at-once";
        self.about += "; operations complete at once";
        self.completes_at_once = true;
        (self.is_small, self.is_medium) = (false, false);
        self.kills.clear();
        self
    }

    /// The same as a separate scenario, in which NICs and threads of the failing nodes may also stall.
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
    ///
    /// ```
    /// # let scenario = farfield_check::Scenario::new("doc/empty", "nothing happens", 2, |_| Ok(()));
    /// assert_eq!(scenario.name(), "doc/empty");
    /// ```
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its subject, in a line.
    ///
    /// ```
    /// # let scenario = farfield_check::Scenario::new("doc/empty", "nothing happens", 2, |_| Ok(()));
    /// assert_eq!(scenario.about(), "nothing happens");
    /// ```
    pub fn about(&self) -> &str {
        &self.about
    }

    /// How many nodes it has.
    ///
    /// ```
    /// # let scenario = farfield_check::Scenario::new("doc/empty", "nothing happens", 2, |_| Ok(()));
    /// assert_eq!(scenario.nodes(), 2);
    /// ```
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Whether it is small enough to run all of its executions.
    ///
    /// ```
    /// # let scenario = farfield_check::Scenario::new("doc/empty", "nothing happens", 2, |_| Ok(()));
    /// assert!(!scenario.is_small());
    /// ```
    pub fn is_small(&self) -> bool {
        self.is_small
    }

    /// Whether all of its executions can be run in minutes.
    ///
    /// ```
    /// # let scenario = farfield_check::Scenario::new("doc/empty", "nothing happens", 2, |_| Ok(()));
    /// assert!(!scenario.is_medium());
    /// ```
    pub fn is_medium(&self) -> bool {
        self.is_medium
    }

    /// Runs one execution; called on the simulation's main thread.
    pub(crate) fn play(&self, handle: Handle) {
        let started = if self.late_nodes { 0 } else { self.places };
        Cluster::play(&self.body, started, self.measures, handle);
    }
}

/// Adds to scenarios with faults, but for small and medium ones, the same again with NICs and threads that stall.
///
/// ```
/// # use farfield_check::{Faults, Scenario, with_slow};
/// # let scenario = Scenario::new("doc/dies", "a node may die", 2, |_| Ok(())).faults(Faults::new().crashes(1));
/// let names: Vec<String> = with_slow([scenario]).iter().map(|scenario| scenario.name().into()).collect();
/// assert_eq!(names, ["doc/dies", "doc/dies-slow"]);
/// ```
pub fn with_slow(scenarios: impl IntoIterator<Item = Scenario>) -> Vec<Scenario> {
    let mut all = Vec::new();
    for scenario in scenarios {
        let is_searched_whole = scenario.is_small() || scenario.is_medium();
        let slow = (scenario.injected().is_some() && !is_searched_whole).then(|| scenario.clone().slow());
        all.push(scenario);
        all.extend(slow);
    }
    all
}

/// Adds to the named scenarios the same again with operations that are complete as soon as their value is asked for
/// ([`Op::into_value`](farfield_core::fabric::Op::into_value)), as on shared memory: so the ways that objects go there
/// are searched, too.
///
/// ```
/// # use farfield_check::{Scenario, with_at_once};
/// # let scenario = Scenario::new("doc/lock", "two never hold it", 2, |_| Ok(()));
/// let names: Vec<String> =
///     with_at_once(vec![scenario], &["doc/lock"]).iter().map(|scenario| scenario.name().into()).collect();
/// assert_eq!(names, ["doc/lock", "doc/lock-at-once"]);
/// ```
///
/// # Panics
/// If there is no scenario of such a name.
pub fn with_at_once(mut scenarios: Vec<Scenario>, names: &[&str]) -> Vec<Scenario> {
    for name in names {
        let scenario = scenarios.iter().find(|scenario| scenario.name() == *name);
        let scenario = scenario.unwrap_or_else(|| panic!("no scenario is called {name}"));
        scenarios.push(scenario.clone().at_once());
    }
    scenarios
}
