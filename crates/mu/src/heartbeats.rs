//! Heartbeats and a pull-score: the papers' failure detector, beside the membership of the session.

use core::time::Duration;
use std::sync::Arc;

use farfield_core::toolkit::{ErrorContext, Hold, Object, ObjectBuilder, Participants, Poller, Progress, Regions};
use farfield_core::{Error, ErrorKind, Node, Result};
use farfield_fabric::{Endpoint, GroupKey, Instant, NodeId, Region, RemotePtr, Word};

use crate::replica::Core;
use crate::{Election, ReplicatedLog, ReplicatedMutex};

/// A score has these values. A node that answers for long has the highest.
const SCORE_MAX: u64 = 15;
/// A node is suspected when its score falls below this …
const FAILS_BELOW: u64 = 2;
/// … until it rises above this. The distance between the two keeps a slow node from being suspected again and again.
const RECOVERS_ABOVE: u64 = 6;

/// A failure detector of its own: each node counts in its own memory, and all others read that count. With each look, a
/// node loses a point of its score if its count stands still, and gets one if the count has changed. So a slow network
/// delays both, the reads and the verdict, and no timeout has to be chosen for it.
///
/// A suspicion evicts no node. It says that a node does not work now: its process has died, has been stopped, or is out
/// of reach. [`Heartbeats::lead`] uses it: the first node that is not suspected asks to lead a log if the leader is
/// suspected. The log stays as safe as it is, whichever node leads. Objects on logs have leaders in the same way: a
/// [`ReplicatedMutex`], an [`Election`], replicas of a data type.
///
/// The session's membership knows a dead process at once on one machine, and there a stopped one stays a member.
/// Between machines it evicts a silent node after a time of its own (half a second and more). Heartbeats find all of
/// these after 14 periods, and cost each node one get to each other one in each period, and its service thread's time.
///
/// # Memory
///
/// ```text
/// beats   a word: counts the periods. Written by this node only
/// ```
///
/// # Ordering
///
/// None is needed: a count that is read late is a look that has found nothing new.
///
/// | call, n nodes | round trips | operations |
/// |---|---|---|
/// | a period | 0 (not waited for) | n − 1 gets |
/// | [`Heartbeats::is_suspected`] | 0 | none |
///
/// ```
/// use std::time::Duration;
/// use farfield_mu::Heartbeats;
/// # let nodes = farfield::local_session(2)?;
/// let beats = farfield::on_each(&nodes, |node| Heartbeats::open(node, "beats", Duration::from_millis(1)))?;
/// assert!(!beats[0].is_suspected(nodes[1].id()));
/// # Ok::<(), farfield::Error>(())
/// ```
///
/// Source: Aguilera et al., *Microsecond Consensus for Microsecond Applications*, OSDI 2020, §5.1; Hamband, §4.
#[derive(Clone)]
pub struct Heartbeats(Arc<Handle>);

struct Handle {
    object: Object,
    shared: Arc<Shared>,
}

struct Shared {
    participants: Participants,
    me: usize,
    /// A bit for each node that is suspected.
    suspected: Word,
    is_closed: Word,
}

impl core::fmt::Debug for Heartbeats {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Heartbeats").field("suspected", &self.0.shared.suspected.load()).finish_non_exhaustive()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.is_closed.store(1);
        self.object.node().fabric().wake_service();
    }
}

impl Heartbeats {
    /// Opens it on all live members of the session, and waits for them to do so. All of them count from then on, once
    /// in each period.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let node = farfield::Node::builder().start()?;
    /// let beats = farfield_mu::Heartbeats::open(&node, "beats", Duration::from_millis(1))?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A node that is missing, dead or departed, or that opens it differently; more than 64 nodes; a period of zero.
    pub fn open(node: &Node, path: &str, period: Duration) -> Result<Heartbeats> {
        let participants = Participants::new(&node.members_for(path));
        let me = participants.require(node.id()).of(path)?;
        if participants.count() > u64::BITS as usize || period.is_zero() {
            let why = format!(
                "heartbeats have a period above zero and at most 64 nodes, not {period:?} and {}: open them on fewer",
                participants.count()
            );
            return Err(Error::from(ErrorKind::Config { why }).of(path));
        }
        let mut regions = Regions::new(node);
        let beats = regions.alloc("beats", GroupKey::DATA, 8)?;
        let seen = regions.alloc_own(GroupKey::DATA, 8 * participants.count())?;
        let object = ObjectBuilder::new(node, path, "Heartbeats")
            .layout(&format!("{period:?}"))
            .participants(participants.iter())
            .regions(regions)
            .open()?;
        let others = participants.iter().map(|of| object.remote::<u64>(of, "beats")).collect::<Result<Vec<_>>>()?;
        let shared = Arc::new(Shared { participants, me, suspected: Word::new(0), is_closed: Word::new(0) });
        let looks = vec![Look { last: 0, score: SCORE_MAX }; others.len()];
        let next = node.now();
        let (hold, shared_with) = (object.hold(), Arc::clone(&shared));
        node.add_poller(Box::new(Beat { shared: shared_with, period, beats, seen, others, looks, next, _open: hold }));
        Ok(Heartbeats(Arc::new(Handle { object, shared })))
    }

    /// Whether a node seems to be dead, or stopped. It may count again later.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let node = farfield::Node::builder().start()?;
    /// # let beats = farfield_mu::Heartbeats::open(&node, "beats", Duration::from_millis(1))?;
    /// assert!(!beats.is_suspected(node.id())); // never the own one
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn is_suspected(&self, node: NodeId) -> bool {
        let shared = &self.0.shared;
        shared.participants.rank_of(node).is_some_and(|rank| shared.is_suspected(rank))
    }

    /// From now on, this node asks to lead a log, or each log of an object, whenever its leader is suspected, and all
    /// nodes before this one are.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use farfield_mu::{Heartbeats, LogOptions, ReplicatedLog};
    /// # let node = farfield::Node::builder().start()?;
    /// # let log = ReplicatedLog::open(&node, "log", LogOptions::default())?;
    /// # let beats = Heartbeats::open(&node, "beats", Duration::from_millis(1))?;
    /// beats.lead(&log);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn lead(&self, object: &impl Led) {
        for log in object.logs() {
            let (shared, node) = (Arc::clone(&self.0.shared), self.0.object.node());
            node.add_poller(Box::new(Lead { shared, core: Arc::clone(&log.0.core), asked: None }));
        }
    }
}

/// An object with calls that leaders order: it is a replicated log, or stands on some.
///
/// ```
/// # use farfield_mu::{Led, ReplicatedMutex};
/// # let node = farfield::Node::builder().start()?;
/// let lock = ReplicatedMutex::open(&node, "lock")?;
/// assert_eq!(lock.logs().len(), 1);
/// # Ok::<(), farfield::Error>(())
/// ```
pub trait Led {
    /// Its logs. Their proposers belong to the object.
    ///
    /// ```
    /// # use farfield_mu::{Led, LogOptions, ReplicatedLog};
    /// # let node = farfield::Node::builder().start()?;
    /// let log = ReplicatedLog::open(&node, "log", LogOptions::default())?;
    /// assert_eq!(log.logs()[0].leader(), log.leader());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    fn logs(&self) -> Vec<&ReplicatedLog>;
}

impl Led for ReplicatedLog {
    fn logs(&self) -> Vec<&ReplicatedLog> {
        vec![self]
    }
}

impl Led for ReplicatedMutex {
    fn logs(&self) -> Vec<&ReplicatedLog> {
        vec![self.0.log()]
    }
}

impl Led for Election {
    fn logs(&self) -> Vec<&ReplicatedLog> {
        vec![self.0.log()]
    }
}

impl Shared {
    fn is_suspected(&self, rank: usize) -> bool {
        self.suspected.load() >> rank & 1 != 0
    }
}

/// The last look at a node.
#[derive(Clone, Copy)]
struct Look {
    last: u64,
    score: u64,
}

/// Counts, and looks at the counts of the others.
struct Beat {
    shared: Arc<Shared>,
    period: Duration,
    beats: Region,
    /// By rank: the count that was read last.
    seen: Region,
    others: Vec<RemotePtr<u64>>,
    looks: Vec<Look>,
    next: Instant,
    /// Until it is closed here.
    _open: Hold,
}

impl Poller for Beat {
    fn poll(&mut self, endpoint: &Endpoint) -> Progress {
        let Beat { shared, .. } = self;
        if shared.is_closed.load() != 0 || endpoint.fabric().is_fenced() {
            return Progress::Done;
        }
        let now = endpoint.now();
        if now < self.next {
            return Progress::Until(self.next);
        }
        self.next = now + self.period;
        // No other thread writes it.
        let beats = self.beats.word(0);
        beats.store(beats.load() + 1);
        let mut suspected = shared.suspected.load();
        for (rank, (look, at)) in self.looks.iter_mut().zip(&self.others).enumerate() {
            if rank == shared.me {
                continue;
            }
            let count = self.seen.word(8 * rank).load();
            look.score = if count == look.last { look.score.saturating_sub(1) } else { SCORE_MAX.min(look.score + 1) };
            look.last = count;
            if look.score < FAILS_BELOW {
                suspected |= 1 << rank;
            } else if look.score > RECOVERS_ABOVE {
                suspected &= !(1 << rank);
            }
            // The next look finds the count that has landed by then. Of a dead node, or if the get is refused, it finds
            // nothing new.
            if endpoint.check_alive(shared.participants.at(rank)).is_ok() {
                let _refused = endpoint.get_span(*at, self.seen.span(8 * rank, 8)).detach();
            }
        }
        if suspected != shared.suspected.load() {
            shared.suspected.store(suspected);
            endpoint.fabric().wake_local();
        }
        Progress::Until(self.next)
    }
}

/// Asks to lead a log.
struct Lead {
    shared: Arc<Shared>,
    core: Arc<Core>,
    /// The term of the leader that is suspected, and when this was asked last.
    asked: Option<(u64, Instant)>,
}

/// A candidate asks again after this time, if nothing has come of it.
const ASKS_AGAIN: Duration = Duration::from_millis(10);

impl Poller for Lead {
    fn poll(&mut self, endpoint: &Endpoint) -> Progress {
        let Lead { shared, core, asked } = self;
        if shared.is_closed.load() != 0 || core.is_closed.load() != 0 || endpoint.fabric().is_fenced() {
            return Progress::Done;
        }
        let leader = core.leader().and_then(|node| shared.participants.rank_of(node));
        let is_first = || (0..shared.me).all(|rank| shared.is_suspected(rank));
        if !leader.is_some_and(|rank| shared.is_suspected(rank)) || !is_first() {
            *asked = None;
            return Progress::Idle;
        }
        let (term, now) = (core.term.load(), endpoint.now());
        match *asked {
            Some((of, at)) if of == term && now < at + ASKS_AGAIN => Progress::Until(at + ASKS_AGAIN),
            _ => {
                core.ask_to_lead();
                *asked = Some((term, now));
                Progress::Until(now + ASKS_AGAIN)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use farfield_core::local_session;

    use super::*;

    /// Its own count would stand still if a get of it was late.
    #[test]
    fn a_node_does_not_look_at_itself() {
        let node = local_session(1).expect("a session").remove(0);
        let period = Duration::from_secs(3600);
        let opened = Heartbeats::open(&node, "beats", period).expect("there is no other node");
        let shared = Arc::new(Shared {
            participants: Participants::new(&[node.id()]),
            me: 0,
            suspected: Word::new(0),
            is_closed: Word::new(0),
        });
        let [beats, seen] = [(); 2].map(|()| node.alloc(GroupKey::DATA, 8).expect("memory"));
        let others = vec![beats.remote(0)];
        // Suspected at the next look that finds nothing new.
        let looks = vec![Look { last: seen.word(0).load(), score: FAILS_BELOW }];
        let (next, hold) = (node.now(), opened.0.object.hold());
        let mut beat = Beat { shared: Arc::clone(&shared), period, beats, seen, others, looks, next, _open: hold };
        let ep = node.endpoint().expect("an endpoint");
        assert!(matches!(beat.poll(&ep), Progress::Until(_)));
        assert!(!shared.is_suspected(0));
    }
}
