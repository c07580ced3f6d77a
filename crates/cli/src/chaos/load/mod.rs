//! The work of a node's threads on the objects. Each load makes calls, and logs their results; `judge` checks the logs.
//! A load itself checks only properties that it sees at once, and cannot log.

mod barrier;
mod entries;
mod kv;
mod locks;
mod queue;
mod ring;
pub(super) mod rome;
mod rpc;
mod swarm;
pub(super) mod transactions;
mod turns;
mod vars;
mod wrdt;

use std::time::Duration;

use farfield::{Endpoint, LockKind, Node, NodeId};
use rand::SeedableRng;
use rand::rngs::SmallRng;

pub(super) use self::queue::CAPACITY as QUEUE_CAPACITY;
pub(super) use self::swarm::memory_of;
#[cfg(test)]
pub(super) use self::wrdt::LedgerUpdate;
pub(super) use self::wrdt::{Ledger, numbers_of};
use super::custom;
use super::kind::Kind;
use super::log::{Answer, Failure, Op, Recorder};
use super::processes::{Opening, Said};

/// The timeout of operations. Shorter than the longest stop, so that some end in it.
const OPERATION_MAX: Duration = Duration::from_millis(1500);
/// Threads on the key-value store.
const KV_THREADS: usize = 2;
/// The number of nodes that store an object of each kind with a single home. Fewer where nodes are many, since all
/// nodes open each object.
const HOMES_MAX: usize = 5;
const HOMES_MIN: usize = 2;
const OPENINGS: usize = 32;

/// The nodes that store the objects with a single home: others in each generation, unless these are all nodes.
pub(super) fn homes_of(generation: u64, members: &[u16]) -> impl Iterator<Item = u16> {
    let first = generation as usize % members.len();
    let count = (OPENINGS / members.len()).clamp(HOMES_MIN, HOMES_MAX).min(members.len());
    members.iter().cycle().skip(first).take(count).copied()
}

/// One thread's work on the objects of a generation.
pub(super) trait Load {
    /// One operation, or a few that belong together.
    fn step(&mut self, log: &mut Recorder);
    /// Makes its changes visible. No fault is injected from here on.
    fn settle(&mut self, _: &mut Recorder) {}
    /// Checks the final state, after all loads have settled.
    fn look(&mut self, _: &mut Recorder) {}
    /// Whether a thread that has waited for a core rests afterwards, and leaves it to others.
    fn rests(&self) -> bool {
        true
    }
}

/// Makes an endpoint's puts to the other nodes visible, where those are alive.
fn flush(endpoint: &Endpoint, others: &[NodeId], log: &mut Recorder) {
    let living = others.iter().copied().filter(|node| endpoint.check_alive(*node).is_ok());
    let flush = async { endpoint.global_fence(living).await.map_err(Into::into) };
    let _ = log.call(Op::Flush, endpoint, flush, |()| Answer::Done);
}

/// The context in which loads are opened.
pub(super) struct Place<'a> {
    pub(super) node: &'a Node,
    pub(super) log: Recorder,
    /// The generation's path, with a slash.
    pub(super) path: String,
    pub(super) members: Vec<NodeId>,
    /// The nodes that store the objects with a single home.
    pub(super) homes: Vec<NodeId>,
    kinds: Vec<Kind>,
    seed: u64,
    is_placed_by_hash: bool,
    locks: LockKind,
}

impl Place<'_> {
    pub(super) fn new<'a>(node: &'a Node, opening: &Opening, log: Recorder) -> Place<'a> {
        let members: Vec<NodeId> = opening.members.iter().copied().map(NodeId).collect();
        let homes = opening.homes.iter().copied().map(NodeId).collect();
        Place {
            node,
            log,
            path: format!("chaos/{}/", opening.generation),
            members,
            homes,
            kinds: opening.kinds.clone(),
            seed: opening.seed,
            is_placed_by_hash: opening.is_placed_by_hash,
            locks: opening.locks,
        }
    }

    /// The others that take part.
    fn others(&self) -> Vec<NodeId> {
        self.members.iter().copied().filter(|member| *member != self.node.id()).collect()
    }

    /// An endpoint for a thread.
    pub(super) fn endpoint(&mut self) -> Result<Endpoint, Failure> {
        let endpoint = self.log.open(self.node, "an endpoint", |_| self.node.endpoint())?;
        endpoint.set_timeout(OPERATION_MAX);
        Ok(endpoint)
    }

    /// Opens an object of the generation.
    pub(super) fn open<T>(
        &mut self,
        name: &str,
        open: impl FnOnce(&Node, &str) -> farfield::Result<T>,
    ) -> Result<T, Failure> {
        let path = format!("{}{name}", self.path);
        self.log.open(self.node, &path, |path| open(self.node, path))
    }

    /// A number for the choices of a thread.
    pub(super) fn seed_of(&self, thread: &str) -> u64 {
        let mut seed = self.seed ^ u64::from(self.node.id().0) << 32;
        for byte in thread.bytes() {
            seed = seed.rotate_left(8) ^ u64::from(byte);
        }
        seed
    }

    /// Choices of a thread's own.
    fn rng(&self, thread: &str) -> SmallRng {
        SmallRng::seed_from_u64(self.seed_of(thread))
    }
}

/// Runs on a thread of its own, and hands it the load. The objects that the load borrows are made there.
pub(super) type Thread = Box<dyn FnOnce(&mut dyn FnMut(&mut dyn Load)) + Send>;

/// A load that borrows nothing.
pub(super) fn thread(mut load: impl Load + Send + 'static) -> Thread {
    Box::new(move |work| work(&mut load))
}

/// Loads with the names of their threads.
pub(super) type Loads = Vec<(String, Thread)>;

/// Opens the objects, all nodes in the same order.
pub(super) fn open_all(place: &mut Place<'_>) -> Result<Loads, Failure> {
    let mut loads = Loads::new();
    for kind in place.kinds.clone() {
        let (name, load) = match kind {
            Kind::Kv => {
                for (number, load) in kv::KvLoad::open(place, KV_THREADS)?.into_iter().enumerate() {
                    loads.push((format!("kv-{number}"), thread(load)));
                }
                continue;
            }
            Kind::Queue => ("queue", thread(queue::QueueLoad::open(place)?)),
            Kind::Locks => ("locks", thread(locks::LocksLoad::open(place)?)),
            Kind::Ring => ("ring", thread(ring::RingLoad::open(place)?)),
            Kind::Barrier => ("barrier", thread(barrier::BarrierLoad::open(place)?)),
            Kind::Vars => ("vars", thread(vars::VarsLoad::open(place)?)),
            Kind::Transactions => (transactions::LOAD.name, custom::open(place, &transactions::LOAD)?),
            Kind::Rpc => ("rpc", thread(rpc::RpcLoad::open(place)?)),
            Kind::Rome => ("rome", thread(rome::RomeLoad::open(place)?)),
            Kind::Swarm => ("swarm", swarm::open(place)?),
            Kind::Wrdt => ("wrdt", thread(wrdt::WrdtLoad::open(place)?)),
            Kind::Log => match place.seed % 3 {
                0 => ("entries", thread(entries::EntriesLoad::open(place)?)),
                1 => ("mutex", thread(turns::MutexLoad::open(place)?)),
                _ => ("election", thread(turns::ElectionLoad::open(place)?)),
            },
        };
        loads.push((name.into(), load));
    }
    custom::open_all(place, &mut loads)?;
    Ok(loads)
}

/// The prefix of the names of the threads that work on objects opened with a newcomer.
pub(super) const GUESTS: &str = "guests";

/// Opens a queue on a newcomer, with all current members.
pub(super) fn open_with_newcomer(place: &mut Place<'_>) -> Result<Loads, Failure> {
    let homes: Vec<String> = place.homes.iter().map(|home| home.0.to_string()).collect();
    Ok(vec![(format!("{GUESTS}-{}", homes.join("-")), thread(queue::QueueLoad::open(place)?))])
}

/// Reports a violation.
fn violation(what: String) {
    Said::Violation(what).say();
}
