//! The common part of [`ReplicatedMutex`](crate::ReplicatedMutex) and [`Election`](crate::Election): a queue of claims as a state
//! machine on the log, and the commands that change it.
//!
//! ```text
//! entry, and region `requests`, in which each node has a slot: a command that it wants this one to propose
//!   +0   ┌─────────────┬───────────┐
//!        │ kind (32)   │ rank (32) │  the rank of the node that the command comes from, or is about
//!   +8   ├─────────────┴───────────┤
//!        │ number                  │  among the commands of that node; 0: of the log's leader
//!   +16  ├─────────────────────────┤
//!        │ two arguments           │
//!   +32  ├─────────────────────────┤
//!        │ checksum                │  in a request only
//!        └─────────────────────────┘
//! ```
//!
//! All is done by the service threads. A node has one command under way, the first of those that its threads have queued. Its
//! service thread proposes it, or puts it to the leader, and again to the next leader, until it is in the log. A replica applies
//! only the command whose number follows the last one of the same node, so it takes effect once.
//!
//! The leader reads all decided entries before it chooses the next one, and proposes that for this index only. So an entry
//! about a state, such as the end of a lease, is in the log next to the state that it is about.

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use farfield_core::toolkit::{ErrorContext, Hold, Object, ObjectBuilder, Participants, Poller, Progress, Regions};
use farfield_core::{Error, ErrorKind, MemberStatus, Node, Result};
use farfield_fabric::{
    self as fabric, DeathRule, Endpoint, GroupKey, Instant, LocalMutex, NodeId, Region, RemotePtr, Word, read_words,
};
use xxhash_rust::xxh3::xxh3_64;

use crate::errors::{NotLeader, NotNext};
use crate::{LogOptions, LogReader, Proposer, ReplicatedLog};

/// Entries that the log has room for.
const ENTRIES: usize = 256;
const ENTRY_WORDS: usize = 4;
const SLOT_WORDS: usize = 8;

/// How long the service thread waits for one entry. It has other work, too.
const PROPOSE_AT_MOST: Duration = Duration::from_millis(1);

/// A command that does not come into the log is put to its leader again after such a pause, which doubles.
const AGAIN: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(100)];

const CLAIM: u64 = 1;
const RELEASE: u64 = 2;
const RENEW: u64 = 3;
const GONE: u64 = 4;
const EXPIRE: u64 = 5;

/// A command of a node, or of the leader about a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Command {
    kind: u64,
    rank: usize,
    number: u64,
    args: [u64; 2],
}

impl Command {
    fn words(self) -> [u64; ENTRY_WORDS] {
        [self.kind << 32 | self.rank as u64, self.number, self.args[0], self.args[1]]
    }

    fn from_words(words: &[u64]) -> Command {
        let (kind, rank) = (words[0] >> 32, words[0] as u32 as usize);
        Command { kind, rank, number: words[1], args: [words[2], words[3]] }
    }
}

/// The queue of claims. It is the same on all replicas after the same entries.
struct Queue {
    /// Rank and ticket of each claim. The first one holds.
    claims: VecDeque<(usize, u64)>,
    /// Counts the holders: the fencing token of the present one.
    token: u64,
    /// How often the present holder has renewed its lease.
    renewals: u64,
    /// By rank: it is dead, and claims no more.
    gone: Vec<bool>,
    /// By rank: the number of its last command.
    last: Vec<u64>,
}

impl Queue {
    fn holder(&self) -> Option<(usize, u64)> {
        self.claims.front().copied()
    }

    /// Whether a command is still to be done.
    fn wants(&self, command: &Command) -> bool {
        let Command { kind, rank, number, args } = *command;
        let is_next = number == self.last[rank] + 1 && !self.gone[rank];
        match kind {
            GONE => !self.gone[rank],
            EXPIRE => self.holder().is_some_and(|(holder, _)| holder == rank) && args == [self.token, self.renewals],
            _ => is_next,
        }
    }

    fn apply(&mut self, command: &Command) {
        if !self.wants(command) {
            return;
        }
        let Command { kind, rank, number, args } = *command;
        let before = self.holder();
        match kind {
            CLAIM => self.claims.push_back((rank, number)),
            RELEASE => self.claims.retain(|claim| *claim != (rank, args[0])),
            RENEW if args[0] == self.token && before.is_some_and(|(holder, _)| holder == rank) => self.renewals += 1,
            GONE => {
                self.gone[rank] = true;
                self.claims.retain(|(of, _)| *of != rank);
            }
            EXPIRE => drop(self.claims.pop_front()),
            _ => {}
        }
        if number > 0 {
            self.last[rank] = number;
        }
        if self.holder() != before && self.holder().is_some() {
            (self.token, self.renewals) = (self.token + 1, 0);
        }
    }
}

/// The part of a node.
struct Local {
    reader: LogReader,
    queue: Queue,
    /// Commands of this node that are not in the log yet.
    waiting: VecDeque<Command>,
    /// The number of the last command that was queued here.
    numbered: u64,
    /// When this node has learnt of the present holder, or of its last renewal.
    seen: Instant,
    /// The renewal under way: its number, and the time before it was queued.
    renewing: Option<(u64, Instant)>,
    /// The last renewal was queued then.
    renewed: Option<Instant>,
}

pub(crate) struct Shared {
    node: Node,
    me: usize,
    pub(crate) participants: Participants,
    pub(crate) log: ReplicatedLog,
    local: LocalMutex<Local>,
    requests: Region,
    peers: Vec<RemotePtr<u64>>,
    /// Of an election.
    lease: Option<Duration>,
    /// The ticket with which a thread of this node holds, or 0.
    held: Word,
    /// The number of the last command of this node that is applied here.
    applied: Word,
    /// The present holder's rank + 1, and its token.
    holder: Word,
    /// Of this node as the holder: the token, and until when no other can hold. Words, for a thread that waits for them.
    lease_of: Word,
    lease_until: Word,
    is_closed: Word,
}

/// The handles of a node.
pub(crate) struct Turns {
    pub(crate) object: Object,
    pub(crate) shared: Arc<Shared>,
}

impl Drop for Turns {
    fn drop(&mut self) {
        self.shared.is_closed.store(1);
        self.shared.node.fabric().wake_service();
    }
}

impl Turns {
    pub(crate) fn open(
        node: &Node,
        path: &str,
        participants: &[NodeId],
        kind: &'static str,
        lease: Option<Duration>,
    ) -> Result<Turns> {
        let participants = Participants::new(participants);
        let me = participants.require(node.id()).of(path)?;
        let nodes: Vec<NodeId> = participants.iter().collect();
        let service = node.for_service();
        let options = LogOptions { entry_bytes_max: 8 * ENTRY_WORDS, entries: ENTRIES };
        let log = ReplicatedLog::announce(&service, &format!("{path}/log"), &nodes, options)?;
        let mut regions = Regions::new(node);
        let bytes = nodes.len() * SLOT_WORDS * 8;
        let requests = regions.alloc("requests", GroupKey::SERVICE, bytes).of(path)?;
        let object = ObjectBuilder::new(node, path, kind)
            .layout(&format!("lease={lease:?}"))
            .participants(nodes.iter().copied())
            .regions(regions)
            .require_regions(move |_| vec![("requests".into(), bytes as u64)])
            .open()?;
        log.wait()?;
        let peers = nodes.iter().map(|node| object.remote(*node, "requests")).collect::<Result<Vec<_>>>()?;
        let (gone, last) = (vec![false; nodes.len()], vec![0; nodes.len()]);
        let queue = Queue { claims: VecDeque::new(), token: 0, renewals: 0, gone, last };
        let local = Local {
            reader: log.reader()?,
            queue,
            waiting: VecDeque::new(),
            numbered: 0,
            seen: node.now(),
            renewing: None,
            renewed: None,
        };
        let (proposer, endpoint) = (log.proposer()?, service.background_endpoint()?);
        endpoint.set_timeout(PROPOSE_AT_MOST);
        let shared = Arc::new(Shared {
            node: service,
            me,
            participants,
            log,
            local: LocalMutex::new(local),
            requests,
            peers,
            lease,
            held: Word::new(0),
            applied: Word::new(0),
            holder: Word::new(0),
            lease_of: Word::new(0),
            lease_until: Word::new(0),
            is_closed: Word::new(0),
        });
        let chores = Chores {
            shared: Arc::clone(&shared),
            proposer,
            endpoint,
            sent: None,
            pause: AGAIN[0],
            open: Some(object.hold()),
        };
        node.add_poller(Box::new(chores));
        Ok(Turns { object, shared })
    }

    /// Queues a claim, and waits until it holds. The result is its token. If the call is dropped or fails, the claim is
    /// given back.
    pub(crate) async fn claim(self: &Arc<Turns>, endpoint: &Endpoint, what: &str) -> Result<Held> {
        let Turns { object, shared } = &**self;
        let path = object.path();
        object.check_current()?;
        let deadline = endpoint.deadline();
        let mut held = Held { turns: Arc::clone(self), ticket: shared.queue(CLAIM, 0), token: 0, is_released: false };
        let holds = || (shared.held.load() == held.ticket).then_some(Ok(()));
        let fails = || self.ends().map(Err);
        match endpoint.wait_until_or(deadline, holds, fails).await {
            Ok(ended) => ended.of(path)?,
            Err(error) => {
                let holder = (shared.holder.load() as usize).checked_sub(1);
                let missing: Vec<NodeId> = holder.map(|rank| shared.participants.at(rank)).into_iter().collect();
                Err(error).waiting_for_nodes(what, &missing).of(path)?;
            }
        }
        held.token = shared.local.lock().queue.token;
        Ok(held)
    }

    /// Why nothing more comes.
    pub(crate) fn ends(&self) -> Option<Error> {
        let (node, object) = (&self.shared.node, &self.object);
        if node.fabric().is_fenced() {
            return Some(fabric::Error::from(fabric::ErrorKind::Fenced).into());
        }
        let error = object.check_unasked().err();
        error.or_else(|| self.shared.log.0.core.check_majority().err().map(Error::custom))
    }

    /// The holder, and its token.
    pub(crate) fn holder(&self) -> Option<(NodeId, u64)> {
        let local = self.shared.local.lock();
        let (rank, _) = local.queue.holder()?;
        Some((self.shared.participants.at(rank), local.queue.token))
    }

    /// A word that has another value with another holder.
    pub(crate) fn holder_word(&self) -> &Word {
        &self.shared.holder
    }
}

/// A claim of this node.
pub(crate) struct Held {
    pub(crate) turns: Arc<Turns>,
    ticket: u64,
    pub(crate) token: u64,
    is_released: bool,
}

impl Held {
    /// Gives the claim back, and waits until that is decided.
    pub(crate) async fn release(mut self, endpoint: &Endpoint, what: &str) -> Result<()> {
        self.is_released = true;
        let Turns { object, shared } = &*self.turns;
        let number = shared.queue(RELEASE, self.ticket);
        let is_done = || (shared.applied.load() >= number).then_some(Ok(()));
        let fails = || self.turns.ends().map(Err);
        let waited = endpoint.wait_until_or(endpoint.deadline(), is_done, fails).await;
        waited.waiting_for(what).of(object.path())?.of(object.path())
    }

    /// Until when no other node can hold, if this one does.
    pub(crate) fn lease(&self) -> Option<Instant> {
        let shared = &*self.turns.shared;
        let holds = || {
            let is_of_this = shared.lease_of.load() == self.token && shared.held.load() == self.ticket;
            is_of_this && !shared.node.fabric().is_fenced()
        };
        // Both before and after: the time is that of this token.
        let until = holds().then(|| Instant { ns: shared.lease_until.load() })?;
        holds().then_some(until)
    }

    pub(crate) fn is_first(&self) -> bool {
        self.turns.shared.held.load() == self.ticket
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.is_released {
            self.turns.shared.queue(RELEASE, self.ticket);
        }
    }
}

impl Shared {
    /// Queues a command of this node for the service thread. The result is its number.
    fn queue(&self, kind: u64, argument: u64) -> u64 {
        let mut local = self.local.lock();
        let number = local.queue_next(self.me, kind, argument);
        if kind == RELEASE {
            // From now on it does not lead, whether that is decided or not.
            if self.held.load() == argument {
                self.lease_of.store(0);
            }
        }
        drop(local);
        self.node.fabric().wake_service();
        number
    }

    /// Applies the entries that are decided. Whether there were any.
    fn drain(&self, endpoint: &Endpoint) -> Result<bool> {
        let (mut local, mut entry, mut some) = (self.local.lock(), Vec::new(), false);
        let local = &mut *local;
        while local.reader.try_next(&mut entry)?.is_some() {
            some = true;
            let words: Vec<u64> =
                entry.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default())).collect();
            if words.len() != ENTRY_WORDS || Command::from_words(&words).rank >= self.peers.len() {
                return Err(ErrorKind::Corrupt { what: "an entry of the log that is no command".into() }.into());
            }
            let command = Command::from_words(&words);
            let before = (local.queue.token, local.queue.renewals, local.queue.holder());
            local.queue.apply(&command);
            let now = endpoint.now();
            let after = (local.queue.token, local.queue.renewals, local.queue.holder());
            if before != after {
                local.seen = now;
            }
            if (before.0, before.2) != (after.0, after.2) {
                self.lease_of.store(0);
                (local.renewing, local.renewed) = (None, None);
            }
            if let Some((_, begun)) = local.renewing.filter(|(number, _)| local.queue.last[self.me] >= *number) {
                local.renewing = None;
                // *Lease.* The clock was read before the renewal was queued, so no replica has learnt of it before that.
                let length = self.lease.unwrap_or_default();
                self.lease_until.store((begun + (length - length / MARGIN)).ns);
                // Not of a holder that resigns.
                let is_held = local.queue.holder().is_some_and(|(_, ticket)| !local.resigns(ticket));
                self.lease_of.store(if is_held { local.queue.token } else { 0 });
            }
            while local.waiting.front().is_some_and(|first| first.number <= local.queue.last[self.me]) {
                local.waiting.pop_front();
            }
        }
        if some {
            local.reader.acknowledge();
            let holder = local.queue.holder();
            self.holder.store(holder.map_or(0, |(rank, _)| rank as u64 + 1));
            self.applied.store(local.queue.last[self.me]);
            self.held.store(holder.filter(|(rank, _)| *rank == self.me).map_or(0, |(_, ticket)| ticket));
            endpoint.wake_local();
        }
        Ok(some)
    }

    /// The request of a node, if all of it is there.
    fn requested(&self, rank: usize) -> Option<Command> {
        let mut words = [0; ENTRY_WORDS + 1];
        read_words(self.requests.words(rank * SLOT_WORDS * 8, words.len()), &mut words);
        let command = Command::from_words(&words);
        let is_whole = words[1] != 0 && words[ENTRY_WORDS] == check_of(&words[..ENTRY_WORDS]);
        (is_whole && command.rank == rank && (CLAIM..=RENEW).contains(&command.kind)).then_some(command)
    }

    /// The command that the leader proposes next, and when it has to look again.
    fn next_command(&self, endpoint: &Endpoint) -> (Option<Command>, Option<Instant>) {
        let local = self.local.lock();
        let queue = &local.queue;
        let of_leader = |kind, rank, args| Command { kind, rank, number: 0, args };
        let holder = queue.holder().map(|(rank, _)| rank);
        let mut again = None;
        for rank in (0..self.peers.len()).filter(|rank| *rank != self.me && !queue.gone[*rank]) {
            if self.is_released(endpoint, rank, holder == Some(rank)) {
                return (Some(of_leader(GONE, rank, [0; 2])), None);
            }
        }
        if let (Some(lease), Some(rank)) = (self.lease, holder) {
            let ends = local.seen + lease;
            if endpoint.now() >= ends {
                return (Some(of_leader(EXPIRE, rank, [queue.token, queue.renewals])), None);
            }
            again = Some(ends);
        }
        let own = local.waiting.front().copied();
        let others = (0..self.peers.len()).filter(|rank| *rank != self.me).filter_map(|rank| self.requested(rank));
        (own.into_iter().chain(others).find(|command| queue.wants(command)), again)
    }

    /// Whether a node's claims end: none of its operations can land any more. A lease ends by itself, unless the node's process
    /// is known to run no more.
    fn is_released(&self, endpoint: &Endpoint, rank: usize, holds: bool) -> bool {
        let node = self.participants.at(rank);
        let is_over = self.node.fenced_error(endpoint, node).is_some();
        let is_certain =
            self.node.fabric().death_rule() == DeathRule::System && self.node.status_of(node) == MemberStatus::Evicted;
        is_over && (self.lease.is_none() || !holds || is_certain)
    }
}

/// The holder counts its lease as shorter by this part: so much may one clock run faster than another.
const MARGIN: u32 = 8;

fn check_of(words: &[u64]) -> u64 {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    xxh3_64(&bytes)
}

impl Local {
    /// Whether the release of this node's claim is under way.
    fn resigns(&self, ticket: u64) -> bool {
        self.waiting.iter().any(|command| command.kind == RELEASE && command.args[0] == ticket)
    }

    fn queue_next(&mut self, rank: usize, kind: u64, argument: u64) -> u64 {
        self.numbered += 1;
        self.waiting.push_back(Command { kind, rank, number: self.numbered, args: [argument, 0] });
        self.numbered
    }
}

/// The work of the service thread.
struct Chores {
    shared: Arc<Shared>,
    proposer: Proposer,
    /// For the proposer alone: the puts of two endpoints have no order.
    endpoint: Endpoint,
    /// The command that was put to the leader: its number, the leader, the term, and when it is put again.
    sent: Option<(u64, NodeId, u64, Instant)>,
    pause: Duration,
    open: Option<Hold>,
}

impl Chores {
    /// Queues a renewal when it is time. The result is when it is next.
    fn renew(&self, now: Instant) -> Option<Instant> {
        let shared = &*self.shared;
        let lease = shared.lease?;
        let mut local = shared.local.lock();
        let holds = local.queue.holder().is_some_and(|(rank, _)| rank == shared.me);
        if !holds || local.renewing.is_some() || shared.is_closed.load() != 0 {
            return None;
        }
        let due = local.renewed.map(|at| at + lease / 4);
        if let Some(due) = due.filter(|due| *due > now) {
            return Some(due);
        }
        let token = local.queue.token;
        let number = local.queue_next(shared.me, RENEW, token);
        (local.renewing, local.renewed) = (Some((number, now)), Some(now));
        None
    }

    /// Proposes a command. Whether an entry was decided.
    fn propose(&mut self, command: &Command) -> Result<bool> {
        let (shared, endpoint) = (&*self.shared, &self.endpoint);
        let index = match endpoint.block_on(self.proposer.ready(endpoint)) {
            Err(error) if error.custom_ref::<NotLeader>().is_some() => return Ok(false),
            index => index?,
        };
        shared.drain(endpoint)?;
        let is_up_to_date = |local: &Local| local.reader.position() == index && local.queue.wants(command);
        if !is_up_to_date(&shared.local.lock()) {
            return Ok(false);
        }
        let entry: Vec<u8> = command.words().iter().flat_map(|word| word.to_le_bytes()).collect();
        match endpoint.block_on(self.proposer.propose_at(endpoint, index, &entry)) {
            Ok(_) => shared.drain(endpoint),
            Err(error) if error.custom_ref::<NotLeader>().is_some() || error.custom_ref::<NotNext>().is_some() => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Puts this node's first command to the leader. The result is when it has to look again.
    fn forward(&mut self, endpoint: &Endpoint, now: Instant) -> Option<Instant> {
        let shared = &*self.shared;
        let first = shared.local.lock().waiting.front().copied()?;
        let (term, leader) = (shared.log.term(), shared.log.leader()?);
        let rank = shared.participants.iter().position(|node| node == leader).filter(|rank| *rank != shared.me)?;
        match self.sent {
            Some((number, to, of, again)) if (number, to, of) == (first.number, leader, term) => {
                if again > now {
                    return Some(again);
                }
                self.pause = AGAIN[1].min(2 * self.pause);
            }
            _ => self.pause = AGAIN[0],
        }
        let again = now + self.pause;
        let mut slot = [0; ENTRY_WORDS + 1];
        slot[..ENTRY_WORDS].copy_from_slice(&first.words());
        slot[ENTRY_WORDS] = check_of(&slot[..ENTRY_WORDS]);
        if let Ok(mut buf) = endpoint.buf::<u64>(slot.len()) {
            buf.copy_from_slice(&slot);
            // A refused put is repeated as one that is lost.
            let _ = endpoint.put(shared.peers[rank].byte_add((shared.me * SLOT_WORDS * 8) as u64), &buf).detach();
        }
        self.sent = Some((first.number, leader, term, again));
        Some(again)
    }
}

impl Poller for Chores {
    fn poll(&mut self, endpoint: &Endpoint) -> Progress {
        let is_fenced = endpoint.fabric().is_fenced();
        if self.shared.is_closed.load() != 0 {
            let is_lost = is_fenced || self.shared.log.0.core.check_majority().is_err();
            if is_lost || self.shared.local.lock().waiting.is_empty() {
                self.open = None;
                return Progress::Done;
            }
        }
        let some = match self.shared.drain(endpoint) {
            Ok(some) => some,
            Err(_) => return Progress::Retry,
        };
        if some {
            return Progress::Busy;
        }
        let now = endpoint.now();
        let mut again = self.renew(now);
        if self.shared.log.is_leader() {
            let (command, later) = self.shared.next_command(endpoint);
            if let Some(command) = command {
                return match self.propose(&command) {
                    Ok(true) => Progress::Busy,
                    _ if is_fenced => Progress::Idle,
                    _ => Progress::Retry,
                };
            }
            again = [again, later].into_iter().flatten().min();
        } else {
            let later = self.forward(endpoint, now);
            again = [again, later].into_iter().flatten().min();
        }
        again.filter(|_| !is_fenced).map_or(Progress::Idle, Progress::Until)
    }

    /// Locks that were released are released for the others, too.
    fn must_finish_before_leave(&self) -> bool {
        !self.shared.local.lock().waiting.is_empty()
    }
}
