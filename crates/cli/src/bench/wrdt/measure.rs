//! The calls of one node, and the time that they took.

use std::hint::black_box;
use std::time::Duration;

use anyhow::{Result, ensure};
use farfield::hamband::Method as _;
use farfield::{Barrier, BarrierThread, Endpoint, Node, NodeId};
use serde::{Deserialize, Serialize};

use super::Plan;
use super::load::{Draws, Load, MethodOf};
use super::system::Client;
use crate::bench::slices;
use crate::bench::threads::ThreadResult;
use crate::bench::worker::{self, say};

/// One query in so many is timed: to read the clock twice takes about as long as a query.
const TIMED: u64 = 16;
/// The operations of so many calls of each method are counted, before the run.
const COUNTED: u64 = 32;
/// How long nodes wait for leaders, and for what is left of a dead node.
const PATIENCE: Duration = Duration::from_secs(30);

/// The work of one node.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Done {
    pub(super) rank: usize,
    /// By method, in the order of [`Load::methods`].
    pub(super) methods: Vec<ThreadResult>,
    pub(super) queries: ThreadResult,
    pub(super) refused: u64,
    /// From the common start until all updates were applied at all nodes.
    pub(super) seconds: f64,
    /// Operations that the whole node posted meanwhile, and their bytes.
    pub(super) posted: u64,
    pub(super) bytes: u64,
    /// By method: the cost of a call, if this node has counted it.
    pub(super) costs: Vec<Option<Cost>>,
    /// A hash of the state at the end.
    pub(super) state: u64,
    pub(super) keeps_invariant: bool,
    pub(super) slices: Slices,
}

/// The cost of a call, on the average of some.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Cost {
    pub(super) operations: f64,
    pub(super) puts: f64,
    pub(super) bytes: f64,
    pub(super) round_trips: f64,
}

/// A run in slices of time, on the clock of the host.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(super) struct Slices {
    pub(super) start_ns: u64,
    pub(super) queries: Vec<u64>,
    pub(super) updates: Vec<u64>,
    /// Of the updates, those of conflicting methods.
    pub(super) ordered: Vec<u64>,
    /// By method: the times of its calls that ended in each slice.
    pub(super) methods: Vec<Vec<Times>>,
}

/// The times of some calls.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Times {
    pub(super) calls: u64,
    pub(super) sum_ns: u64,
    pub(super) slowest_ns: u64,
}

impl Times {
    /// None, if there are none.
    pub(super) fn mean_ns(&self) -> Option<f64> {
        (self.calls > 0).then(|| self.sum_ns as f64 / self.calls as f64)
    }

    pub(super) fn add(&mut self, other: Times) {
        self.calls += other.calls;
        self.sum_ns += other.sum_ns;
        self.slowest_ns = self.slowest_ns.max(other.slowest_ns);
    }
}

impl Slices {
    fn new(duration: Duration, start_ns: u64, methods: usize) -> Slices {
        let slices = slices::count(duration);
        let none = vec![0; slices];
        let methods = vec![vec![Times::default(); slices]; methods];
        Slices { start_ns, queries: none.clone(), updates: none.clone(), ordered: none, methods }
    }

    /// The number of slices that are over.
    pub(super) fn count(&self) -> usize {
        self.updates.len().saturating_sub(1)
    }

    fn add(counts: &mut [u64], after: Duration) {
        if let Some(count) = counts.get_mut(slices::of(after)) {
            *count += 1;
        }
    }
}

/// The calls that a node has still to make.
struct Calls {
    /// By method, and at the end the queries.
    left: Vec<u64>,
    /// Whether they come to an end.
    are_counted: bool,
}

/// A number of calls, as evenly as possible among so many: the share of one.
pub(super) fn share(all: u64, among: usize, of: usize) -> u64 {
    let (among, of) = (among as u64, of as u64);
    all / among + u64::from(of < all % among)
}

impl Calls {
    /// Of each method an equal number. Conflicting calls are made at their leaders; all others and the queries at all
    /// nodes alike.
    fn of(plan: &Plan, me: usize, leaders: &[Option<usize>]) -> Calls {
        let nodes = usize::from(plan.nodes);
        if plan.calls == 0 {
            let methods = leaders.len() as u64;
            let updates = vec![u64::from(plan.updates); leaders.len()];
            let queries = (100 - u64::from(plan.updates)) * methods;
            return Calls { left: [updates, vec![queries]].concat(), are_counted: false };
        }
        let updates = plan.calls * u64::from(plan.updates) / 100;
        let of_method = |(at, leader): (usize, &Option<usize>)| {
            let calls = share(updates, leaders.len(), at);
            match leader {
                Some(leader) => {
                    if *leader == me {
                        calls
                    } else {
                        0
                    }
                }
                None => share(calls, nodes, me),
            }
        };
        let mut left: Vec<u64> = leaders.iter().enumerate().map(of_method).collect();
        left.push(share(plan.calls - updates, nodes, me));
        Calls { left, are_counted: true }
    }

    /// The number of a method, or that of the methods for a query.
    fn draw(&mut self, draws: &mut Draws) -> Option<usize> {
        let all: u64 = self.left.iter().sum();
        if all == 0 {
            return None;
        }
        let mut drawn = draws.below(all);
        for (at, left) in self.left.iter_mut().enumerate() {
            if drawn < *left {
                *left -= u64::from(self.are_counted);
                return Some(at);
            }
            drawn -= *left;
        }
        None
    }
}

/// A node's part of a run.
pub(super) struct Part<'n> {
    pub(super) plan: &'n Plan,
    pub(super) node: &'n Node,
    pub(super) endpoint: &'n Endpoint,
    /// Where all nodes meet.
    pub(super) phases: BarrierThread,
}

impl Part<'_> {
    pub(super) fn run<T: Load>(mut self, mut client: impl Client<T>) -> Result<Done> {
        let Part { plan, node, endpoint, .. } = self;
        let (me, nodes) = (usize::from(node.id().0), usize::from(plan.nodes));
        let survivors: Vec<NodeId> =
            (0..nodes).filter(|rank| plan.victim() != Some(*rank)).map(|rank| NodeId(rank as u16)).collect();
        let is_survivor = survivors.contains(&node.id());
        // The nodes that are not killed meet apart.
        let ends = is_survivor.then(|| Barrier::open_among(node, "ends", 1, &survivors)?.thread()).transpose()?;
        let methods = T::methods();
        let leaders = self.leaders::<T>(&client, &methods)?;
        let (mut draws, plain) = (Draws::new(me), T::initial());
        worker::meet(endpoint, &mut self.phases)?;
        let mut costs = vec![None; methods.len()];
        for (at, (method, leader)) in methods.iter().zip(&leaders).enumerate() {
            // Of a method that does not conflict, the last node makes them.
            if leader.unwrap_or(nodes - 1) == me {
                costs[at] = Some(self.cost(&mut client, *method, &plain, &mut draws)?);
            }
            worker::meet(endpoint, &mut self.phases)?;
        }
        say("running", &())?;
        let before = client.counts();
        let mut done = self.calls(&mut client, &plain, &mut draws, Calls::of(plan, me, &leaders), &leaders)?;
        // All calls are over before any node asks whether they are applied: that of a leader finds those of the others,
        // too.
        let mut ends = if plan.kill.is_some() { ends } else { None };
        let phases = ends.as_mut().unwrap_or(&mut self.phases);
        worker::meet(endpoint, phases)?;
        client.stable(endpoint)?;
        let now = endpoint.now();
        done.seconds = Duration::from_nanos(now.ns - done.slices.start_ns).as_secs_f64();
        if plan.kill.is_none() {
            done.slices = Slices::default();
        }
        let posted = client.counts() - before;
        (done.rank, done.posted, done.bytes, done.costs) = (me, posted.posted(), posted.bytes, costs);
        worker::meet(endpoint, phases)?;
        if let Some(victim) = plan.victim() {
            let is_settled = || client.is_settled(NodeId(victim as u16));
            patiently(endpoint, "the updates of the dead node to be copied", is_settled)?;
            worker::meet(endpoint, phases)?;
        }
        (done.state, done.keeps_invariant) = client.query(|state| {
            let bytes = postcard::to_allocvec(state).unwrap_or_default();
            (xxhash_rust::xxh3::xxh3_64(&bytes), state.invariant())
        })?;
        // Each stays until the others have looked.
        worker::meet(endpoint, phases)?;
        Ok(done)
    }

    /// Waits for the leaders of all methods: a group has the node of its number.
    fn leaders<T: Load>(&self, client: &impl Client<T>, methods: &[MethodOf<T>]) -> Result<Vec<Option<usize>>> {
        let leader = |method: &MethodOf<T>| {
            let Some(group) = self.plan.system.group_of::<T>(*method) else { return Ok(None) };
            let expected = group % usize::from(self.plan.nodes);
            let name = MethodOf::<T>::NAMES[method.number()];
            patiently(self.endpoint, &format!("a leader for {name}"), || client.leader_of(*method) == Some(expected))?;
            Ok(Some(expected))
        };
        methods.iter().map(leader).collect()
    }

    /// The cost of calls of a method, made by this node alone.
    fn cost<T: Load>(
        &self,
        client: &mut impl Client<T>,
        method: MethodOf<T>,
        plain: &T,
        draws: &mut Draws,
    ) -> Result<Cost> {
        // The first call may have to learn what a majority has.
        let mut before = client.counts();
        for at in 0..=COUNTED {
            if at == 1 {
                before = client.counts();
            }
            let call = make(client, method, plain, draws)?;
            ensure!(client.update(self.endpoint, &call)?, "{call:?} is refused");
        }
        let counts = client.counts() - before;
        let each = |count: u64| count as f64 / COUNTED as f64;
        // A leader sees by their content that its entries are at a majority, which the count of chains misses: a round
        // trip of it is a get from each of the others.
        let led = each(counts.gets) / f64::from(self.plan.nodes - 1);
        let is_led = self.plan.system.group_of::<T>(method).is_some();
        Ok(Cost {
            operations: each(counts.posted()),
            puts: each(counts.puts),
            bytes: each(counts.bytes),
            round_trips: if is_led { led } else { each(counts.round_trips) },
        })
    }

    fn calls<T: Load>(
        &self,
        client: &mut impl Client<T>,
        plain: &T,
        draws: &mut Draws,
        mut calls: Calls,
        leaders: &[Option<usize>],
    ) -> Result<Done> {
        let Part { plan, endpoint, .. } = *self;
        let methods = T::methods();
        let duration = Duration::from_secs_f64(plan.seconds);
        let timed = if plan.kill.is_some() { 1 } else { TIMED };
        let start = endpoint.now();
        let mut done = Done {
            rank: 0,
            methods: methods.iter().map(|_| ThreadResult::new()).collect(),
            queries: ThreadResult::new(),
            refused: 0,
            seconds: 0.0,
            posted: 0,
            bytes: 0,
            costs: Vec::new(),
            state: 0,
            keeps_invariant: false,
            slices: Slices::new(if plan.kill.is_some() { duration } else { Duration::ZERO }, start.ns, methods.len()),
        };
        let end = (plan.calls == 0).then(|| start + duration);
        while let Some(at) = calls.draw(draws) {
            let Some(method) = methods.get(at) else {
                done.queries.operations += 1;
                if !done.queries.operations.is_multiple_of(timed) {
                    black_box(client.query(|state| state.look(draws))?);
                    continue;
                }
                let issued = endpoint.now();
                black_box(client.query(|state| state.look(draws))?);
                let now = endpoint.now();
                done.queries.latencies.record((now - issued).as_nanos() as u64, timed);
                Slices::add(&mut done.slices.queries, now - start);
                if end.is_some_and(|end| now >= end) {
                    break;
                }
                continue;
            };
            let call = make(client, *method, plain, draws)?;
            let issued = endpoint.now();
            done.refused += u64::from(!client.update(endpoint, &call)?);
            let now = endpoint.now();
            let took_ns = (now - issued).as_nanos() as u64;
            done.methods[at].operations += 1;
            done.methods[at].latencies.record(took_ns, 1);
            Slices::add(&mut done.slices.updates, now - start);
            if leaders[at].is_some() {
                Slices::add(&mut done.slices.ordered, now - start);
            }
            let slice = slices::of(now - start);
            if let Some(times) = done.slices.methods[at].get_mut(slice) {
                times.add(Times { calls: 1, sum_ns: took_ns, slowest_ns: took_ns });
            }
            if end.is_some_and(|end| now >= end) {
                break;
            }
        }
        Ok(done)
    }
}

/// A call of a method: from the replica's state if it needs it.
fn make<T: Load>(client: &impl Client<T>, method: MethodOf<T>, plain: &T, draws: &mut Draws) -> Result<T::Update> {
    if T::READS_STATE { client.query(|state| state.call(method, draws)) } else { Ok(plain.call(method, draws)) }
}

fn patiently(endpoint: &Endpoint, what: &str, is_so: impl Fn() -> bool) -> Result<()> {
    let deadline = endpoint.now() + PATIENCE;
    // The condition may hold without a word that has changed.
    while !is_so() {
        ensure!(endpoint.now() < deadline, "it has waited {PATIENCE:?} for {what}");
        let looks_again = deadline.min(endpoint.now() + Duration::from_millis(1));
        let _ = endpoint.block_on(endpoint.wait_until(looks_again, || is_so().then_some(())));
    }
    Ok(())
}
