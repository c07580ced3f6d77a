//! The common part of [`ReplicatedMutex`](crate::ReplicatedMutex) and [`Election`](crate::Election): a queue of claims
//! as a state machine on the log, and the commands that change it ([`Commands`]).
//!
//! ```text
//! entry, and command
//!   +0   ┌─────────────┬───────────┐
//!        │ kind (32)   │ rank (32) │  the rank of the node that the command comes from, or is about
//!   +8   ├─────────────┴───────────┤
//!        │ number                  │  among the commands of that node; 0: of the log's leader
//!   +16  ├─────────────────────────┤
//!        │ two arguments           │
//!        └─────────────────────────┘
//! ```
//!
//! All is done by the service threads. A node has one command under way, the first of those that its threads have
//! queued. Its service thread proposes it, or puts it to the leader, and again to the next leader, until it is in the
//! log. A replica applies a command only if its number follows the last one of the same node, so it takes effect once.
//!
//! The leader reads all decided entries before it chooses the next one, and proposes that for this index only. So an
//! entry about a state, such as the end of a lease, is in the log next to the state that it is about.
//!
//! # A node that comes back
//!
//! It takes the state from the log. The leader orders the state in pieces (`STATE`), and then that the node is back
//! (`BACK`). All replicas keep the state as it was before the first piece, so the others are pieces of the same,
//! whatever is ordered in between, and a later leader continues where the one before has ended. The new node applies
//! what has come in between to the state when that is whole. So claims and renewals do not wait for the pieces. The
//! others take from `BACK` that claims of that rank are those of another node now. The leader does this once it has the
//! new node as a follower, which has no vote yet, and again if the node still has none later: it may have missed
//! pieces. A node that stops does not keep others that come back from their state. The node has a vote when it has the
//! state. So no node leads the log that cannot order anything.
//!
//! The claims of the node before it end first, as for any node that has gone: by `GONE`, and not before the lease of a
//! holder has ended. Commands of different nodes at one rank have different numbers: those of the later node are
//! higher.

mod back;
mod queue;

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use farfield_core::toolkit::{ErrorContext, Hold, Object, ObjectBuilder, Poller, Progress};
use farfield_core::{Error, ErrorKind, MemberStatus, Node, Result};
use farfield_fabric::{self as fabric, DeathRule, Endpoint, Instant, LocalMutex, NodeId, Word};

use self::back::Coming;
#[cfg(test)]
pub(crate) use self::back::{Due, first_due};
use self::queue::{BACK, CLAIM, Command, ENTRY_WORDS, EXPIRE, GONE, Queue, RELEASE, RENEW, STATE, numbers_of};
use crate::commands::{CommandNumbers, CommandOptions, CommandProposer, Commands, Decision, Forward, Ordered, Served};
use crate::replica::{Core, rank_in};
use crate::{EntriesMissing, LogOptions, LogReader, ReplicatedLog, last_of_each_place};

/// Entries that the log has room for.
const ENTRIES: usize = 256;

/// How long the service thread waits for one entry. It has other work, too.
const PROPOSE_AT_MOST: Duration = Duration::from_millis(1);

/// The part of a node.
struct Local {
    reader: LogReader,
    queue: Queue,
    /// On a node that has come back, until it has the state.
    coming: Option<Coming>,
    /// As the leader, by rank: the node + 1 that has got the state, and when.
    brought: Vec<Option<(u64, Instant)>>,
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
    /// Ranks are those of the log.
    me: usize,
    commands: Commands,
    local: LocalMutex<Local>,
    /// Of an election.
    lease: Option<Duration>,
    /// The ticket with which a thread of this node holds, or 0.
    held: Word,
    /// The number of the last command of this node that is applied here.
    applied: Word,
    /// The present holder's rank + 1, and its token.
    holder: Word,
    /// Of this node as the holder: the token, and until when no other can hold. Words, for a thread that waits for
    /// them.
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
        let participants = last_of_each_place(node, participants);
        participants.require(node.id()).of(path)?;
        let nodes: Vec<NodeId> = participants.iter().collect();
        let service = node.for_service();
        let log = LogOptions { entry_bytes_max: 8 * ENTRY_WORDS, entries: ENTRIES };
        let options = CommandOptions { log, command_bytes_max: 8 * ENTRY_WORDS, answer_bytes_max: 0 };
        let commands = Commands::announce_with(&service, &format!("{path}/log"), &nodes, options, true)?;
        let object = ObjectBuilder::new(node, path, kind)
            .layout(&format!("lease={lease:?}"))
            .participants(nodes.iter().copied())
            .takes_in_returned()
            .open()?;
        let commands = commands.begin()?;
        let core = &commands.log().0.core;
        let (ranks, places, me) = (core.ranks(), node.nodes() as u64, core.me);
        let mut seated = vec![0; ranks];
        nodes.iter().for_each(|of| seated[rank_in(node, &participants, *of)] = u64::from(of.0) + 1);
        let numbered = numbers_of(seated[me], places);
        let queue = Queue {
            claims: VecDeque::new(),
            token: 0,
            renewals: 0,
            gone: vec![false; ranks],
            nodes: seated,
            numbers: CommandNumbers::new(ranks),
            state: Vec::new(),
            pieces: 0,
            places,
        };
        let local = Local {
            reader: commands.log().reader()?,
            queue,
            coming: (core.has_state.load() == 0).then(Coming::default),
            brought: vec![None; ranks],
            waiting: VecDeque::new(),
            numbered,
            seen: node.now(),
            renewing: None,
            renewed: None,
        };
        let shared = Arc::new(Shared {
            node: service,
            me,
            commands,
            local: LocalMutex::new(local),
            lease,
            held: Word::new(0),
            applied: Word::new(0),
            holder: Word::new(0),
            lease_of: Word::new(0),
            lease_until: Word::new(0),
            is_closed: Word::new(0),
        });
        let chores =
            Chores { shared: Arc::clone(&shared), served: Served::default(), forward: None, open: Some(object.hold()) };
        node.add_poller(Box::new(chores));
        let turns = Turns { object, shared };
        // On a node that has come back: for the state, before which the lease of the one before it ends.
        turns.shared.commands.log().wait_longer(lease.unwrap_or_default())?;
        Ok(turns)
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
                let missing: Vec<NodeId> = self.holder().map(|(holder, _)| holder).into_iter().collect();
                Err(error).waiting_for_nodes(what, &missing).of(path)?;
            }
        }
        held.token = shared.local.lock().queue.token;
        Ok(held)
    }

    /// Why nothing more follows.
    pub(crate) fn ends(&self) -> Option<Error> {
        let (node, object) = (&self.shared.node, &self.object);
        if node.fabric().is_fenced() {
            return Some(fabric::Error::from(fabric::ErrorKind::Fenced).into());
        }
        let error = object.check_unasked().err();
        error.or_else(|| self.shared.check_majority().err())
    }

    /// The holder, and its token.
    pub(crate) fn holder(&self) -> Option<(NodeId, u64)> {
        let local = self.shared.local.lock();
        let (rank, _) = local.queue.holder()?;
        Some((NodeId((local.queue.nodes[rank] - 1) as u16), local.queue.token))
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

impl Turns {
    pub(crate) fn log(&self) -> &ReplicatedLog {
        self.shared.commands.log()
    }
}

impl Shared {
    pub(crate) fn core(&self) -> &Core {
        &self.commands.log().0.core
    }

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
        loop {
            match local.reader.try_next(&mut entry) {
                Ok(None) => break,
                Ok(Some(_)) => some = true,
                // The state has what they have done. Once that is here none is missing: the others keep all that this
                // node has not read.
                Err(error) if error.custom_ref::<EntriesMissing>().is_some() && local.coming.is_some() => {
                    (some, local.coming) = (true, Some(Coming::default()));
                    continue;
                }
                Err(error) => return Err(error),
            }
            let Some(command) = Command::from_bytes(&entry, self.core().ranks()) else {
                return Err(ErrorKind::Corrupt { what: "an entry of the log that is no command".into() }.into());
            };
            let now = endpoint.now();
            if local.coming.is_some() && !local.comes(&command, self.me, now) {
                continue;
            }
            let before = (local.queue.token, local.queue.renewals, local.queue.holder());
            local.queue.apply(&command);
            let after = (local.queue.token, local.queue.renewals, local.queue.holder());
            if before != after {
                local.seen = now;
            }
            if (before.0, before.2) != (after.0, after.2) {
                self.lease_of.store(0);
                (local.renewing, local.renewed) = (None, None);
            }
            if let Some((_, begun)) = local.renewing.filter(|(number, _)| local.queue.numbers.has(self.me, *number)) {
                local.renewing = None;
                // *Lease.* The clock was read before the renewal was queued, so no replica has learnt of it before
                // that.
                let length = self.lease.unwrap_or_default();
                self.lease_until.store((begun + (length - length / MARGIN)).ns);
                // Not of a holder that resigns.
                let is_held = local.queue.holder().is_some_and(|(_, ticket)| !local.resigns(ticket));
                self.lease_of.store(if is_held { local.queue.token } else { 0 });
            }
            while local.waiting.front().is_some_and(|first| local.queue.numbers.has(self.me, first.number)) {
                local.waiting.pop_front();
            }
        }
        if some {
            local.reader.acknowledge();
            if local.coming.is_none() && self.core().has_state.load() == 0 {
                self.core().has_state.store(1);
                self.node.fabric().wake_service();
            }
            let holder = local.queue.holder();
            self.holder.store(holder.map_or(0, |(rank, _)| rank as u64 + 1));
            self.applied.store(local.queue.numbers.last(self.me));
            self.held.store(holder.filter(|(rank, _)| *rank == self.me).map_or(0, |(_, ticket)| ticket));
            endpoint.wake_local();
        }
        Ok(some)
    }

    /// The command that the leader proposes of its own accord, or for its own threads, and when it has to look again.
    fn next_command(&self, endpoint: &Endpoint) -> (Option<Command>, Option<Instant>) {
        let local = self.local.lock();
        let queue = &local.queue;
        let of_leader = |kind, rank, args| Command { kind, rank, number: 0, args };
        let holder = queue.holder().map(|(rank, _)| rank);
        let mut again = None;
        for rank in
            (0..queue.gone.len()).filter(|rank| *rank != self.me && queue.nodes[*rank] != 0 && !queue.gone[*rank])
        {
            if self.is_released(endpoint, queue.nodes[rank], rank, holder == Some(rank)) {
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
        (local.waiting.front().copied().filter(|command| queue.wants(command)), again)
    }

    /// Proposes a command if it is still to be done. The log is the answer.
    fn propose(&self, proposer: &mut CommandProposer<'_>, command: &Command) -> Result<Ordered<Option<Vec<u8>>>> {
        let ordered = proposer.order(PROPOSE_AT_MOST, async |next| {
            self.drain(next.endpoint)?;
            let mut local = self.local.lock();
            if local.reader.position() != next.index {
                return Ok(Decision::End(Ordered::NotLeader));
            }
            let mut command = *command;
            if [STATE, BACK].contains(&command.kind) {
                // Of the state at this index.
                let (piece, _) = self.next_piece(&local, next.endpoint.now());
                let Some(piece) = piece else { return Ok(Decision::End(Ordered::Done(None))) };
                command = piece;
            }
            if command.kind == BACK {
                local.brought[command.rank] = Some((command.args[0], next.endpoint.now()));
            }
            let entry = || Decision::Propose(command.bytes().to_vec(), Ordered::Done(None));
            Ok(if local.queue.wants(&command) { entry() } else { Decision::End(Ordered::Done(None)) })
        })?;
        Ok(match ordered {
            Ordered::Done(done) => done,
            Ordered::NotLeader => Ordered::NotLeader,
            Ordered::Unknown => Ordered::Unknown,
        })
    }

    fn check_majority(&self) -> Result<()> {
        self.commands.log().0.core.check_majority().map_err(Error::custom)
    }

    /// Whether a node's claims end: none of its operations can land any more. A lease ends by itself, unless the node's
    /// process is known to run no more.
    ///
    /// Not one that this node has never known, since it was gone before: the leader that has brought this node its
    /// state has ended that one's claims first, but a lease, which ends by itself here, too. One that is unknown may as
    /// well be newer, and hold.
    fn is_released(&self, endpoint: &Endpoint, node: u64, rank: usize, holds: bool) -> bool {
        let node = NodeId((node - 1) as u16);
        // Another one is at its rank only when nothing of it can land any more.
        let is_taken_over = self.core().node_at(rank).is_some_and(|seated| seated > node);
        let is_over = is_taken_over || self.node.fenced_error(endpoint, node).is_some();
        let is_certain = self.node.fabric().death_rule() == DeathRule::System
            && self.node.status_of(node) == Some(MemberStatus::Evicted);
        is_over && (self.lease.is_none() || !holds || is_certain)
    }
}

/// The holder counts its lease as shorter by this part: so much may one clock run faster than another.
const MARGIN: u32 = 8;

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
    served: Served,
    /// The first command of this node, on its way to the leader.
    forward: Option<Forward>,
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

    /// As the leader: orders a command of its own, the first of each other node, and a piece of the state for a node
    /// that has come back. None of them waits for the others. Whether something has changed; when it has to look again.
    fn lead(&mut self, endpoint: &Endpoint) -> (Progress, Option<Instant>) {
        let shared = Arc::clone(&self.shared);
        let (command, again) = shared.next_command(endpoint);
        let (mut has_worked, mut is_retried) = self.order(command);
        let nodes = shared.core().ranks();
        let served = shared.commands.serve(endpoint, &mut self.served, |proposer, asked| {
            let command = Command::from_bytes(&asked.bytes, nodes);
            // No other node has such a command.
            let is_its = |it: &Command| {
                (it.rank, it.number) == (asked.origin, asked.number) && (CLAIM..=RENEW).contains(&it.kind)
            };
            let Some(command) = command.filter(is_its) else { return Ok(Ordered::Done(None)) };
            shared.propose(proposer, &command)
        });
        // Ended claims first: a node that comes back may not know of one that was gone before, and could not end its
        // claims.
        let is_first = command.is_some_and(|command| command.kind == GONE);
        let (piece, later) =
            if is_first { (None, None) } else { shared.next_piece(&shared.local.lock(), endpoint.now()) };
        let ordered = self.order(piece);
        has_worked |= served.has_worked | ordered.0;
        is_retried |= served.is_retried | ordered.1;
        let progress = match (has_worked, is_retried) {
            (true, _) => Progress::Busy,
            (false, true) => Progress::Retry,
            (false, false) => Progress::Idle,
        };
        (progress, again.into_iter().chain(later).min())
    }

    /// Orders a command, if there is one. Whether it has; whether it has to try again.
    fn order(&self, command: Option<Command>) -> (bool, bool) {
        let Some(command) = command else { return (false, false) };
        let Some(mut proposer) = self.shared.commands.proposer() else { return (false, true) };
        let is_done = matches!(self.shared.propose(&mut proposer, &command), Ok(Ordered::Done(_)));
        (is_done, !is_done)
    }

    /// Puts this node's first command to the leader. The result is when it has to look again.
    fn forward(&mut self, endpoint: &Endpoint) -> Option<Instant> {
        let shared = &*self.shared;
        let first = shared.local.lock().waiting.front().copied()?;
        let view = shared.commands.view();
        let is_it = |forward: &Forward| forward.number() == first.number;
        let forward = self.forward.take().filter(is_it).unwrap_or_else(|| Forward::new(first.number));
        let forward = self.forward.insert(forward);
        // An error that does not pass is that of the node, which its calls report.
        forward.step(&shared.commands, endpoint, &view, &first.bytes()).ok().flatten()
    }
}

impl Poller for Chores {
    fn poll(&mut self, endpoint: &Endpoint) -> Progress {
        let is_fenced = endpoint.fabric().is_fenced();
        if self.shared.is_closed.load() != 0 {
            let is_lost = is_fenced || self.shared.check_majority().is_err();
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
        if self.shared.commands.log().is_leader() {
            let (progress, later) = self.lead(endpoint);
            match progress {
                Progress::Idle => {}
                Progress::Retry if is_fenced => return Progress::Idle,
                progress => return progress,
            }
            again = [again, later].into_iter().flatten().min();
        } else {
            let later = self.forward(endpoint);
            again = [again, later].into_iter().flatten().min();
        }
        again.filter(|_| !is_fenced).map_or(Progress::Idle, Progress::Until)
    }

    /// Locks that were released are released for the others, too.
    fn must_finish_before_leave(&self) -> bool {
        !self.shared.local.lock().waiting.is_empty()
    }
}

#[cfg(test)]
mod tests;
