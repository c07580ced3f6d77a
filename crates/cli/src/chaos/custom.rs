//! Loads of other crates: their work, their logs, and their own judges.

use std::fmt::Debug;
use std::future::Future;

use farfield::{Endpoint, Node, NodeId};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::judge::{Findings, Story};
use super::load::{self, Place};
use super::log::{Answer, Op, Recorder};
use crate::parts;

pub use super::log::Failure;

/// A load for `chaos`: the work of one thread of each node on an object, and a judge of all calls. Farfield judges the
/// errors, the duration of each call and the pace after a death, as it does for its own objects.
///
/// ```
/// use farfield::{AtomicVar, Endpoint, Result};
/// use farfield_cli::{Load, Log, Observed, Setup, Work};
/// # struct Adds(AtomicVar);
/// # impl Work for Adds {
/// #     fn step(&mut self, ep: &Endpoint, log: &Log<'_>) { let _ = log.call("add", ep, self.0.fetch_add(ep, 1)); }
/// # }
///
/// fn open(setup: &Setup<'_>) -> Result<Box<dyn Work>> {
///     Ok(Box::new(Adds(AtomicVar::open(setup.node, setup.path, setup.members[0])?)))
/// }
///
/// /// No two additions found the same sum.
/// fn judge(observed: &Observed<'_>) -> Vec<String> {
///     let calls = observed.calls::<String, u64>();
///     let mut sums: Vec<u64> = calls.iter().filter_map(|call| call.end.as_ref()?.1.as_ref().ok().copied()).collect();
///     sums.sort_unstable();
///     sums.windows(2).filter(|two| two[0] == two[1]).map(|two| format!("{} was found twice", two[0])).collect()
/// }
///
/// const LOAD: Load = Load { name: "counter", open, judge };
/// # assert_eq!(LOAD.name, "counter");
/// ```
pub struct Load {
    /// Its name, in reports and as the last part of the object's path: lower-case letters, and not the name of one of
    /// Farfield's own (`transactions`).
    pub name: &'static str,
    /// Opens the object, on all nodes at once, and returns the work of this node's thread.
    pub open: fn(&Setup<'_>) -> farfield::Result<Box<dyn Work>>,
    /// Returns the violations in the calls of a generation.
    pub judge: fn(&Observed<'_>) -> Vec<String>,
}

/// The surroundings in which a load is opened. Each generation has a path of its own.
///
/// ```
/// use farfield::{Queue, QueueOptions, Result};
///
/// fn open(setup: &farfield_cli::Setup<'_>) -> Result<(Queue<u64>, bool)> {
///     let queue = Queue::open(setup.node, setup.path, QueueOptions::new(setup.members[0], 64))?;
///     Ok((queue, setup.seed.is_multiple_of(2))) // half of the threads enqueue, say
/// }
/// ```
pub struct Setup<'a> {
    /// This node.
    pub node: &'a Node,
    /// The object's path.
    pub path: &'a str,
    /// The nodes that take part, all alive.
    pub members: &'a [NodeId],
    /// A number for the choices of this node's thread.
    pub seed: u64,
}

/// The work of one thread on an object.
///
/// ```
/// use farfield::{AtomicVar, Endpoint};
/// use farfield_cli::{Log, Work};
///
/// struct Adds(AtomicVar);
///
/// impl Work for Adds {
///     fn step(&mut self, ep: &Endpoint, log: &Log<'_>) {
///         let _ = log.call("add", ep, self.0.fetch_add(ep, 1)); // errors are logged and judged
///     }
///
///     fn look(&mut self, ep: &Endpoint, log: &Log<'_>) {
///         let _ = log.call("total", ep, self.0.load(ep));
///     }
/// }
/// ```
pub trait Work: Send {
    /// One operation, or a few that belong together. Errors are logged by [`Log::call`] and judged: continue after one.
    fn step(&mut self, endpoint: &Endpoint, log: &Log<'_>);

    /// Makes its changes visible. No fault is injected from here on.
    fn settle(&mut self, endpoint: &Endpoint, log: &Log<'_>) {
        let _ = (endpoint, log);
    }

    /// Reads the final state, after all threads have settled.
    fn look(&mut self, endpoint: &Endpoint, log: &Log<'_>) {
        let _ = (endpoint, log);
    }
}

/// The log of one thread. It outlives the process if that is killed.
///
/// ```
/// use farfield::{Endpoint, Mutex};
/// use farfield_cli::Log;
///
/// /// Takes the lock and releases it: two calls in the log. An error ends the round.
/// fn round(lock: &Mutex, ep: &Endpoint, log: &Log<'_>) -> Result<(), farfield_cli::Failure> {
///     let mut guard = None;
///     log.call("lock", ep, async { Ok(drop(guard.insert(lock.lock(ep).await?))) })?;
///     guard.map_or(Ok(()), |guard| log.call("unlock", ep, guard.unlock()))
/// }
/// ```
pub struct Log<'a> {
    recorder: &'a Recorder,
    load: &'static str,
}

impl Log<'_> {
    /// Awaits a call, and logs its begin and its end: `call` describes it, and its result is logged whole.
    ///
    /// ```
    /// # use farfield::{AtomicVar, Endpoint};
    /// # use farfield_cli::{Failure, Log};
    /// #[derive(serde::Serialize)]
    /// enum Call {
    ///     Add { addend: u64 },
    /// }
    ///
    /// fn add(counter: &AtomicVar, ep: &Endpoint, log: &Log<'_>) -> Result<u64, Failure> {
    ///     log.call(Call::Add { addend: 2 }, ep, counter.fetch_add(ep, 2))
    /// }
    /// ```
    ///
    /// # Errors
    /// That of the call, as it is logged.
    pub fn call<T: Serialize>(
        &self,
        call: impl Serialize,
        endpoint: &Endpoint,
        future: impl Future<Output = farfield::Result<T>>,
    ) -> Result<T, Failure> {
        let call = serde_json::to_value(call).expect("calls are plain data");
        let answer = |result: &T| Answer::Custom(serde_json::to_value(result).expect("results are plain data"));
        self.recorder.call(Op::Custom { load: self.load.into(), call }, endpoint, future, answer)
    }
}

/// The calls of a load in one generation, from the logs of all nodes.
///
/// ```
/// use farfield_cli::Observed;
///
/// /// Every call that ended has found an even number.
/// fn judge(observed: &Observed<'_>) -> Vec<String> {
///     let mut violations = Vec::new();
///     for call in observed.calls::<String, u64>() {
///         if let Some((_, Ok(found))) = call.end && found % 2 == 1 {
///             violations.push(format!("{} of {} has found {found}", call.call, call.node));
///         }
///     }
///     violations
/// }
/// ```
pub struct Observed<'a> {
    story: &'a Story,
    load: &'static str,
}

/// A call that a thread has logged.
///
/// ```
/// use farfield_cli::ObservedCall;
///
/// /// How long the call took. `None`: its node was killed before it ended.
/// fn duration_ns(call: &ObservedCall<String, u64>) -> Option<u64> {
///     call.end.as_ref().map(|(end_ns, _)| end_ns - call.begin_ns)
/// }
/// # let call = ObservedCall { node: farfield::NodeId(0), call: "add".into(), begin_ns: 5, end: Some((9, Ok(1))) };
/// # assert_eq!(duration_ns(&call), Some(4));
/// ```
#[derive(Clone, Debug)]
pub struct ObservedCall<C, T> {
    /// Its node.
    pub node: NodeId,
    /// The call, as it was passed to [`Log::call`].
    pub call: C,
    /// When it began, in nanoseconds of a clock that all nodes share.
    pub begin_ns: u64,
    /// When it ended, and its result. `None`: the node was killed before.
    pub end: Option<(u64, Result<T, Failure>)>,
}

impl Observed<'_> {
    /// The calls of the types `C` with results of type `T`, in the order in which they began. Others are left out.
    ///
    /// ```
    /// # use farfield_cli::Observed;
    /// #[derive(serde::Deserialize, Debug)]
    /// enum Call {
    ///     Add { addend: u64 },
    /// }
    ///
    /// /// The sum of all additions that have returned.
    /// fn added(observed: &Observed<'_>) -> u64 {
    ///     let calls = observed.calls::<Call, u64>().into_iter();
    ///     let ended = calls.filter(|call| matches!(call.end, Some((_, Ok(_)))));
    ///     ended.map(|call| { let Call::Add { addend } = call.call; addend }).sum()
    /// }
    /// ```
    pub fn calls<C: DeserializeOwned + Debug, T: DeserializeOwned>(&self) -> Vec<ObservedCall<C, T>> {
        let calls = self.story.calls.iter().filter_map(|call| match &call.op {
            Op::Custom { load, call: what } if load == self.load => {
                let what = serde_json::from_value(what.clone()).ok()?;
                let end = match &call.end {
                    None => None,
                    Some((at_ns, Err(failure))) => Some((*at_ns, Err(failure.clone()))),
                    Some((at_ns, Ok(Answer::Custom(result)))) => {
                        Some((*at_ns, Ok(serde_json::from_value(result.clone()).ok()?)))
                    }
                    Some(_) => return None,
                };
                Some(ObservedCall { node: NodeId(call.node), call: what, begin_ns: call.begin_ns, end })
            }
            _ => None,
        });
        calls.collect()
    }

    /// The nodes that were killed, each with the time, in nanoseconds of the same clock.
    ///
    /// ```
    /// # use farfield_cli::Observed;
    /// /// Calls of nodes that had been killed before: a log that is impossible.
    /// fn after_death(observed: &Observed<'_>) -> Vec<String> {
    ///     let calls = observed.calls::<String, u64>();
    ///     let late = |(node, at_ns)| calls.iter().any(|call| call.node == node && call.begin_ns > at_ns);
    ///     observed.deaths().filter(|death| late(*death)).map(|(node, _)| format!("{node} goes on")).collect()
    /// }
    /// ```
    pub fn deaths(&self) -> impl Iterator<Item = (NodeId, u64)> + '_ {
        self.story.deaths.iter().map(|death| (NodeId(death.node), death.at_ns))
    }
}

/// The work of another crate, with its endpoint, as a load among the others.
struct Thread {
    work: Box<dyn Work>,
    endpoint: Endpoint,
    name: &'static str,
}

impl Thread {
    fn log<'a>(&self, recorder: &'a Recorder) -> Log<'a> {
        Log { recorder, load: self.name }
    }
}

impl load::Load for Thread {
    fn step(&mut self, log: &mut Recorder) {
        let log = self.log(log);
        self.work.step(&self.endpoint, &log);
    }

    fn settle(&mut self, log: &mut Recorder) {
        let log = self.log(log);
        self.work.settle(&self.endpoint, &log);
    }

    fn look(&mut self, log: &mut Recorder) {
        let log = self.log(log);
        self.work.look(&self.endpoint, &log);
    }
}

/// Opens a load.
pub(super) fn open(place: &mut Place<'_>, load: &Load) -> Result<load::Thread, Failure> {
    let (members, seed) = (place.members.clone(), place.seed_of(load.name));
    let work = place.open(load.name, |node, path| (load.open)(&Setup { node, path, members: &members, seed }))?;
    Ok(load::thread(Thread { work, endpoint: place.endpoint()?, name: load.name }))
}

/// Opens the loads of other crates.
pub(super) fn open_all(place: &mut Place<'_>, loads: &mut load::Loads) -> Result<(), Failure> {
    for load in parts::loads() {
        loads.push((load.name.into(), open(place, load)?));
    }
    Ok(())
}

/// Lets each load judge its calls.
pub(super) fn judge(story: &Story, findings: &mut Findings) {
    for load in [&load::transactions::LOAD].into_iter().chain(parts::loads()) {
        let observed = Observed { story, load: load.name };
        let is_its = |op: &Op| matches!(op, Op::Custom { load: of, .. } if of == load.name);
        let count = story.calls.iter().filter(|call| is_its(&call.op)).count();
        findings.count(&format!("calls of {}", load.name), count as u64);
        for violation in (load.judge)(&observed) {
            findings.violation(format!("{}: {violation}", load.name));
        }
    }
}
