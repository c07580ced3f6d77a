//! The queue of a lock that operations of many nodes wait in, after Mellor-Crummey and Scott's: the entries are linked,
//! each waits on its own node, and who leaves hands the lock to the one behind.
//!
//! The lock's record has the tail: the name of the last entry. RDMA has no exchange, so an operation enqueues by a
//! compare-and-swap, and again from what it found if it failed. It then tells the one before it (a put), and waits until
//! that puts a grant into its descriptor. Who leaves knows the one behind, and puts; or takes itself from the tail by a
//! compare-and-swap; or, if that fails, waits for the one behind to tell.
//!
//! *Why nothing is lost.* A descriptor is written by the CPU before the compare-and-swap that makes it known (`CW → NAR`),
//! so what others put into it lands afterwards. It is used again only when nobody will write to it: the one before has
//! granted, and the one behind has told, or there is none.
//!
//! # When nodes die
//!
//! A dead node's entries cannot be read, so nobody knows who was before or behind them. But each living entry knows the
//! one that it found before it. Living entries so form chains, each of which begins with one that found nobody, or one of
//! a dead node. If the latter is [`Standing::ShutOut`] and has granted nothing, that beginning can be granted nothing any
//! more: it is *stuck*. It looks at all living entries of the lock ([`Queue::survey`]), and if each is in a chain with a
//! stuck beginning, then nobody holds the head, and this stays so: it claims the head, by a compare-and-swap of a count of
//! claims in the lock's record. If the count is another one than before it looked, somebody else has claimed.
//!
//! That a look is enough, though the entries are not looked at in one moment: suppose that somebody living is at the head
//! when the look has ended. It had enqueued before the stuck one did, so it was there to be looked at during all of the
//! look; it was seen waiting, in a chain with a stuck beginning; and it has come to the head since. Grants come along the
//! chain, so the beginning was granted something since: by a claim, which changes the count. And whoever enqueues
//! later is behind the stuck one. An entry that is seen between its compare-and-swap and the answer may be at the head: then
//! it is looked again.
//!
//! Nobody can tell whether the dead held the lock or waited for it, so the next holder is told of a death in either case.
//! A node that has left in good order has left nothing in a queue but a guard that was forgotten; it keeps the lock.

use core::time::Duration;

use std::sync::Arc;

use farfield_fabric::{self as fabric, Endpoint, Instant, NodeId, RemotePtr};

use super::descriptor::{self, About, Descriptors, Id, State};
use crate::error::{Error, ErrorKind, Of, Result};
use crate::mutants::{self, Mutant};
use crate::node::{Node, Poller, Progress, Standing};
use crate::objects::settle::Settle;

/// How often who waits looks whether nodes that it depends on still live.
pub(super) const CHECK_EVERY: Duration = Duration::from_millis(20);
/// Descriptors that are read at once, from another node.
const AT_ONCE: usize = 64;

/// What is waited for.
pub(super) const FREE: &str = "the lock was free";

/// How long an operation waits.
#[derive(Clone, Copy)]
pub(super) struct Wait {
    start: Instant,
    deadline: Instant,
}

impl Wait {
    pub(super) fn begin(endpoint: &Endpoint, deadline: Instant) -> Wait {
        Wait { start: endpoint.now(), deadline }
    }

    /// Until when it waits before it looks whether others still live.
    pub(super) fn slice(&self, endpoint: &Endpoint) -> Instant {
        self.deadline.min(endpoint.now() + CHECK_EVERY)
    }

    /// The error of having waited too long, if so.
    pub(super) fn is_late(&self, endpoint: &Endpoint, what: &str, missing: Option<NodeId>) -> Option<Error> {
        let now = endpoint.now();
        let (what, missing) = (what.into(), missing.into_iter().collect());
        (now >= self.deadline).then(|| ErrorKind::Timeout { what, waited: now - self.start, missing }.into())
    }
}

/// What one who leaves hands to the one behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Grant(u64);

const GRANTED: u64 = 1 << 63;
const DIED: u64 = 1 << 62;

impl Grant {
    pub(super) fn new(budget: u32, is_after_death: bool) -> Grant {
        Grant(GRANTED | if is_after_death { DIED } else { 0 } | u64::from(budget))
    }

    /// How often the lock may be handed on before the other cohort has a turn; 0: it has to be competed for.
    pub(super) fn budget(self) -> u32 {
        self.0 as u32
    }

    pub(super) fn is_after_death(self) -> bool {
        self.0 & DIED != 0
    }

    pub(super) fn word(self) -> u64 {
        self.0
    }

    pub(super) fn of(word: u64) -> Option<Grant> {
        (word & GRANTED != 0).then_some(Grant(word))
    }
}

/// Where the queue of a lock lies: in the lock's record.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) lock: usize,
    pub(super) tail: RemotePtr<u64>,
    /// How often the head was claimed from the dead; in the upper half, how many of those claims tell of a death.
    pub(super) claims: RemotePtr<u64>,
    /// The tail of a queue of the dead whose death somebody else has told of.
    pub(super) buried: Option<RemotePtr<u64>>,
}

/// Added to the claims by one that tells of a death.
const TELLS: u64 = 1 << 32;

/// How many deaths a lock's claims tell of.
pub(super) fn deaths_told(claims: u64) -> u64 {
    claims / TELLS
}

/// The queues of an array's locks.
pub(super) struct Queue {
    node: Node,
    path: String,
    pub(super) descriptors: Descriptors,
    /// What the tail is when a holder leaves that was told of a death and has not repaired what it left. Otherwise that is
    /// known from elsewhere.
    free_after_death: Id,
}

/// An operation in a queue, or about to be. Dropped at any moment it goes to the service thread, which does for it what
/// others wait for.
pub(super) struct Entry<'a> {
    queue: &'a Arc<Queue>,
    endpoint: &'a Endpoint,
    /// None once somebody else cares for it, or nobody need.
    operation: Option<Operation>,
}

/// All of an operation but whose.
#[derive(Clone, Copy)]
struct Operation {
    place: Place,
    id: Id,
    stage: Stage,
    /// What is handed to the one behind, if it has to leave.
    hands: Grant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It is not in the queue.
    Outside,
    /// It is behind another, and has told that one, or not.
    Behind { pred: Id, has_told: bool },
    /// It is at the head.
    Head,
    /// It has left the head, but there is somebody behind it.
    Leaving,
}

/// What a holder need not make visible before it leaves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Spared {
    Nothing,
    /// What it has put to the lock's node.
    Home(NodeId),
    /// What it has put to the node of the operation behind it.
    Behind(NodeId),
}

impl Spared {
    pub(super) fn is(self, node: NodeId) -> bool {
        self == Spared::Home(node) || self == Spared::Behind(node)
    }
}

/// One living entry of a lock, as it was seen.
struct Seen {
    id: Id,
    state: State,
    pred: Id,
    is_granted: bool,
}

impl Queue {
    pub(super) fn new(node: &Node, path: &str, descriptors: Descriptors, free_after_death: Id) -> Arc<Queue> {
        Arc::new(Queue { node: node.for_service(), path: path.into(), descriptors, free_after_death })
    }

    /// An operation that is in no queue yet.
    ///
    /// # Errors
    /// All descriptors are in use.
    pub(super) fn entry<'a>(self: &'a Arc<Self>, endpoint: &'a Endpoint, place: Place) -> Result<Entry<'a>> {
        let slot = self.descriptors.take(endpoint).of(&self.path)?;
        let id = self.descriptors.begin(slot, place.lock);
        let operation = Operation { place, id, stage: Stage::Outside, hands: Grant::new(0, false) };
        Ok(Entry { queue: self, endpoint, operation: Some(operation) })
    }

    /// Whether the others go on without this node.
    pub(super) fn is_fenced(&self) -> bool {
        self.node.fabric().is_fenced()
    }

    /// Gives something to the service thread.
    pub(super) fn leave_to_service(&self, left: impl Poller + 'static) {
        self.node.add_poller(Box::new(left));
    }

    /// Whether nothing that this entry's node has put, or would put, can land any more.
    pub(super) fn is_shut_out(&self, id: Id) -> bool {
        id.node().is_some_and(|node| self.node.standing_of(node) == Standing::ShutOut)
    }

    /// The living entries of a lock.
    async fn survey(&self, endpoint: &Endpoint, lock: usize) -> fabric::Result<Vec<Seen>> {
        // Who is in a queue, of this lock.
        let mut found = Vec::new();
        let mut look = |node: NodeId, table: RemotePtr<u64>, first: usize, words: &mut dyn Iterator<Item = u64>| {
            for (at, about) in words.enumerate() {
                let (slot, about) = (first + at, About(about));
                if about.lock() == lock && about.state().is_some_and(|state| state != State::Free) {
                    found.push((Descriptors::name(node, slot, about), table.at(slot * descriptor::BYTES / 8)));
                }
            }
        };
        let me = self.node.id();
        let each = descriptor::BYTES / 8;
        for (node, table) in self.descriptors.tables() {
            if matches!(self.node.standing_of(node), Standing::ShutOut | Standing::Departed) {
                continue;
            }
            if node == me {
                look(node, table, 0, &mut self.descriptors.own_words().iter().step_by(each).map(|word| word.load()));
                continue;
            }
            let words = self.descriptors.table_words();
            for first in (0..words).step_by(AT_ONCE * each) {
                let buf = endpoint.buf::<u64>((AT_ONCE * each).min(words - first))?;
                let read = endpoint.get_into(table.at(first), buf).await?;
                look(node, table, first / each, &mut read.iter().step_by(each).copied());
            }
        }
        // What each is doing. The words of one descriptor come in any order; but the second look comes after the first,
        // and who was in the queue then had written before whom it found there.
        let mut seen = Vec::new();
        for (id, at) in found {
            let words: [u64; 4] = match id.node() == Some(me) {
                true => {
                    let own = self.descriptors.of(id);
                    [own.about().load(), own.pred().load(), own.next().load(), own.grant().load()]
                }
                false => endpoint.get_torn(at.cast()).await?.whole_if(|_| true).expect("each word by itself"),
            };
            let [about, pred, _, grant] = words;
            let (about, pred) = (About(about), Id(pred));
            let state = about.state().unwrap_or(State::Enqueueing);
            // One that has begun since then is behind whoever asks, and so is one whose predecessor it was.
            let is_same = Descriptors::name(id.node().expect("a name"), descriptor::slot_of(id), about) == id;
            if is_same && state != State::Free {
                seen.push(Seen { id, state, pred, is_granted: Grant::of(grant).is_some() });
            }
        }
        Ok(seen)
    }

    /// Whether no living entry of a lock is in its queue; the caller has seen a tail of the dead before it asks. False if
    /// that cannot be told now.
    pub(super) async fn is_deserted(&self, endpoint: &Endpoint, lock: usize) -> bool {
        match self.survey(endpoint, lock).await {
            Ok(seen) => seen.iter().all(|seen| seen.state == State::Leaving),
            Err(_) => false,
        }
    }

    /// Whether nobody but the stuck can be at the head, see above; `me` is one of the stuck.
    fn all_are_stuck(&self, seen: &[Seen], me: Id) -> bool {
        let waits = |id: Id| {
            id == me || seen.iter().any(|seen| seen.id == id && seen.state == State::Queued && !seen.is_granted)
        };
        seen.iter().filter(|seen| seen.id != me).all(|seen| match seen.state {
            State::Free | State::Leaving => true,
            State::Enqueueing | State::Claiming => false,
            State::Queued => {
                !seen.is_granted && seen.pred.node().is_some() && (self.is_shut_out(seen.pred) || waits(seen.pred))
            }
        })
    }

    /// Claims the head for a stuck entry; whether that has worked.
    async fn claim(&self, endpoint: &Endpoint, operation: &mut Operation) -> fabric::Result<bool> {
        let Operation { place, id, stage, .. } = *operation;
        let Stage::Behind { pred, .. } = stage else { return Ok(false) };
        let claims = endpoint.get(place.claims).await?;
        let buried = match place.buried {
            Some(buried) => endpoint.get(buried).await?,
            None => Id::NOBODY.0,
        };
        let claimed = claims + 1 + if buried == pred.0 { 0 } else { TELLS };
        let Ok(seen) = self.survey(endpoint, place.lock).await else { return Ok(false) };
        // What the dead has put before it was shut out has landed by now.
        if Grant::of(self.descriptors.of(id).grant().load()).is_some() {
            return Ok(false);
        }
        if !self.all_are_stuck(&seen, id) && !mutants::is_on(Mutant::QueueClaimsBlindly) {
            return Ok(false);
        }
        // Said before the compare-and-swap is issued (`CW → NAR`): whoever sees the new count sees this, or the grant.
        self.descriptors.tell(id, place.lock, State::Claiming);
        let settle = |found: u64| {
            if found == claims {
                self.descriptors.of(id).grant().store(Grant::new(0, true).0);
            }
            self.descriptors.tell(id, place.lock, State::Queued);
        };
        let found = Settle::new(endpoint, endpoint.cas(place.claims, claims, claimed), settle).await?;
        settle(found);
        Ok(found == claims)
    }

    /// Tells the one before that somebody is behind it.
    fn tell(&self, endpoint: &Endpoint, pred: Id, id: Id) {
        if let Some(next) = self.descriptors.next_of(pred)
            && !mutants::is_on(Mutant::QueueNotTold)
        {
            // An error is a node that is gone: it will hand over nothing.
            let _ = endpoint.put_unfenced(next, id.0).detach();
        }
    }

    /// Hands the lock to the one behind, if it has said who he is: whether it has.
    fn hand_over(&self, endpoint: &Endpoint, operation: &Operation) -> bool {
        let next = Id(self.descriptors.of(operation.id).next().load());
        if next == Id::NOBODY {
            return false;
        }
        if let Some(grant) = self.descriptors.grant_of(next) {
            // An error is a node that is gone, and the lock with it: who is behind will claim it.
            let _ = endpoint.put_unfenced(grant, operation.hands.0).detach();
        }
        self.over(operation);
        true
    }

    /// Nobody writes to the descriptor any more.
    fn over(&self, operation: &Operation) {
        self.descriptors.tell(operation.id, operation.place.lock, State::Free);
        self.descriptors.give_back(descriptor::slot_of(operation.id));
    }

    /// What the tail becomes when an operation leaves it empty.
    fn free(&self, operation: &Operation) -> Id {
        if operation.hands.is_after_death() { self.free_after_death } else { Id::NOBODY }
    }

    /// Found as the tail when it was to be left empty.
    fn has_left(&self, operation: &mut Operation, found: u64) -> bool {
        if found == operation.id.0 {
            self.over(operation);
            return true;
        }
        operation.stage = Stage::Leaving;
        self.descriptors.tell(operation.id, operation.place.lock, State::Leaving);
        false
    }
}

impl<'a> Entry<'a> {
    fn operation(&self) -> &Operation {
        self.operation.as_ref().expect("it has not left")
    }

    fn operation_mut(&mut self) -> &mut Operation {
        self.operation.as_mut().expect("it has not left")
    }

    pub(super) fn place(&self) -> Place {
        self.operation().place
    }

    /// What is handed to the one behind, whenever this one leaves.
    pub(super) fn hands(&mut self, grant: Grant) {
        self.operation_mut().hands = grant;
    }

    /// The node whose memory what leaves the head orders by itself after what was put there: that of who is behind, if it
    /// has said so, since it is handed the lock by a put; else the lock's.
    pub(super) fn spared(&self) -> Spared {
        match Id(self.queue.descriptors.of(self.operation().id).next().load()).node() {
            Some(behind) => Spared::Behind(behind),
            None => Spared::Home(self.place().tail.node()),
        }
    }

    /// Enters the queue, and tells whoever is before it; what it found as the tail. With `only_if_free` it enters an empty
    /// queue only, or one whose tail is of the dead; none if it did not.
    ///
    /// # Errors
    /// The deadline has passed after an attempt that failed. The home is gone.
    pub(super) async fn enqueue(&mut self, wait: Wait, only_if_free: bool) -> Result<Option<Id>> {
        let (queue, endpoint) = (self.queue, self.endpoint);
        let mut expected = Id::NOBODY;
        loop {
            let Operation { place, id, .. } = *self.operation();
            let enqueue = endpoint.cas(place.tail, expected.0, id.0);
            let found = Settle::new(endpoint, enqueue, |found| self.settle(found, expected)).await;
            let found = found.inspect_err(|_| self.keep()).of(&queue.path)?;
            self.settle(found, expected);
            if found == expected.0 {
                if let Stage::Behind { pred, .. } = self.operation().stage {
                    queue.tell(endpoint, pred, id);
                    self.operation_mut().stage = Stage::Behind { pred, has_told: true };
                }
                return Ok(Some(Id(found)));
            }
            let found = Id(found);
            if only_if_free && found.node().is_some() && !queue.is_shut_out(found) {
                return Ok(None);
            }
            if let Some(late) = wait.is_late(endpoint, "it was in the lock's queue", found.node()) {
                return Err(late).of(&queue.path);
            }
            expected = found;
        }
    }

    /// The compare-and-swap that enqueues has found this.
    fn settle(&mut self, found: u64, expected: Id) {
        let descriptors = &self.queue.descriptors;
        let operation = self.operation_mut();
        if found != expected.0 {
            return;
        }
        operation.stage = match expected.node() {
            None => Stage::Head,
            Some(_) => Stage::Behind { pred: expected, has_told: false },
        };
        operation.hands = Grant::new(0, expected == Id::NOBODY_AFTER_DEATH);
        let Operation { place, id, .. } = *operation;
        // In this order, for those who look.
        descriptors.of(id).pred().store(expected.0);
        descriptors.tell(id, place.lock, State::Queued);
    }

    /// Waits until it is at the head; what it was handed.
    ///
    /// # Errors
    /// The deadline has passed. The home is gone.
    pub(super) async fn granted(&mut self, wait: Wait) -> Result<Grant> {
        let (queue, endpoint) = (self.queue, self.endpoint);
        let Operation { place, id, stage, .. } = *self.operation();
        let Stage::Behind { pred, .. } = stage else { unreachable!("it waits behind somebody") };
        let descriptor = queue.descriptors.of(id);
        loop {
            let slice = wait.slice(endpoint);
            if let Ok(grant) = endpoint.wait_until(slice, || Grant::of(descriptor.grant().load())).await {
                let operation = self.operation_mut();
                operation.stage = Stage::Head;
                operation.hands = grant;
                return Ok(grant);
            }
            endpoint.check_alive(place.tail.node()).inspect_err(|_| self.keep()).of(&queue.path)?;
            if queue.is_shut_out(pred) {
                let claimed = queue.claim(endpoint, self.operation_mut()).await;
                if claimed.inspect_err(|_| self.keep()).of(&queue.path)? {
                    continue;
                }
            }
            if let Some(late) = wait.is_late(endpoint, FREE, pred.node()) {
                let left = pred.node().and_then(|before| endpoint.check_alive(before).err());
                let left = left.filter(|error| matches!(error.kind(), fabric::ErrorKind::PeerLeft { .. }));
                // It has taken the lock along, or was just slow.
                return left.map_or(Err(late), |error| Err(error.into())).of(&queue.path);
            }
        }
    }

    /// Leaves the head: to the one behind, or to nobody. The caller has made visible what it has written, but what it spared.
    ///
    /// # Errors
    /// The home is gone.
    pub(super) async fn leave(mut self, spared: Spared) -> Result<()> {
        let (queue, endpoint) = (self.queue, self.endpoint);
        if let Spared::Behind(_) = spared {
            // The put comes after what was put to that node before it (`NRW → NRW`).
            let is_over = queue.hand_over(endpoint, self.operation());
            assert!(is_over, "who is behind has said so");
            self.operation = None;
            return Ok(());
        }
        let operation = *self.operation();
        // After what was put to the lock's node (`NRW → NAR`). If it fails it has flushed that.
        let swap = endpoint.cas(operation.place.tail, operation.id.0, queue.free(&operation).0);
        let found = Settle::new(endpoint, swap, |found| self.settle_left(found)).await;
        let found = found.inspect_err(|_| self.keep()).of(&queue.path)?;
        self.settle_left(found);
        let Some(operation) = self.operation else { return Ok(()) };
        // Who has come will say so soon; unless it is dead, or slow: then the service thread waits for it.
        let next = queue.descriptors.of(operation.id);
        let told = || (next.next().load() != Id::NOBODY.0).then_some(());
        if endpoint.wait_until(endpoint.now() + CHECK_EVERY, told).await.is_ok() {
            queue.hand_over(endpoint, &operation);
            self.operation = None;
        }
        Ok(())
    }

    fn settle_left(&mut self, found: u64) {
        if self.queue.has_left(self.operation_mut(), found) {
            self.operation = None;
        }
    }

    /// Nobody can say what has become of the queue, or somebody may write into the descriptor for ever: it is not used
    /// again.
    pub(super) fn keep(&mut self) {
        self.operation = None;
    }

    /// What leaves the head later, from another endpoint: the caller has made visible what was written.
    pub(super) fn leave_later(mut self) -> impl FnMut(&Endpoint) -> Progress + Send + 'static {
        let operation = self.operation.take().expect("it has not left");
        let mut left = Left { queue: Arc::clone(self.queue), operation, looks_at: None };
        move |endpoint| left.poll(endpoint)
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        let Some(operation) = self.operation.take() else { return };
        match operation.stage {
            Stage::Outside => self.queue.over(&operation),
            _ if mutants::is_on(Mutant::QueueDroppedKept) => {}
            _ => {
                let left = Left { queue: Arc::clone(self.queue), operation, looks_at: None };
                self.queue.leave_to_service(left);
            }
        }
    }
}

/// An operation that nobody waits for any more, in the care of the service thread.
struct Left {
    queue: Arc<Queue>,
    operation: Operation,
    /// When it looks next what the dead have left.
    looks_at: Option<Instant>,
}

impl Left {
    /// Whether it is time to look what the dead have left.
    fn is_time(&mut self, endpoint: &Endpoint) -> bool {
        let now = endpoint.now();
        let is_time = self.looks_at.is_some_and(|at| now >= at);
        if is_time || self.looks_at.is_none() {
            self.looks_at = Some(now + CHECK_EVERY);
        }
        is_time
    }
}

impl Poller for Left {
    fn is_owed(&self) -> bool {
        true
    }

    fn poll(&mut self, endpoint: &Endpoint) -> Progress {
        let (queue, operation) = (&self.queue, &mut self.operation);
        if queue.is_fenced() || endpoint.check_alive(operation.place.tail.node()).is_err() {
            return Progress::Done; // the lock is gone, or is taken from this node
        }
        let id = operation.id;
        match operation.stage {
            Stage::Outside => unreachable!("it is in the queue"),
            Stage::Behind { pred, has_told: false } => {
                queue.tell(endpoint, pred, id);
                operation.stage = Stage::Behind { pred, has_told: true };
                Progress::Busy
            }
            Stage::Behind { pred, has_told: true } => {
                if let Some(grant) = Grant::of(queue.descriptors.of(id).grant().load()) {
                    operation.stage = Stage::Head;
                    operation.hands = grant;
                    return Progress::Busy;
                }
                if queue.is_shut_out(pred) && self.is_time(endpoint) {
                    let claim = self.queue.claim(endpoint, &mut self.operation);
                    return if endpoint.block_on(claim).is_err() { Progress::Done } else { Progress::Idle };
                }
                Progress::Idle
            }
            Stage::Head => {
                if queue.hand_over(endpoint, operation) {
                    return Progress::Done;
                }
                let free = queue.free(operation);
                match endpoint.cas(operation.place.tail, id.0, free.0).wait() {
                    Ok(found) if !queue.has_left(operation, found) => Progress::Busy,
                    _ => Progress::Done,
                }
            }
            Stage::Leaving => {
                if queue.hand_over(endpoint, operation) {
                    return Progress::Done;
                }
                let lock = operation.place.lock;
                let may_be_dead = queue
                    .descriptors
                    .tables()
                    .any(|(node, _)| matches!(queue.node.standing_of(node), Standing::ShutOut | Standing::Departed));
                if may_be_dead && self.is_time(endpoint) {
                    // Whoever has come is dead, if no living entry may be behind this one.
                    let (queue, operation) = (&self.queue, &self.operation);
                    let is_behind = |seen: &Seen| seen.state == State::Enqueueing || seen.pred == id;
                    let is_awaited = match endpoint.block_on(queue.survey(endpoint, lock)) {
                        Ok(seen) => seen.iter().any(is_behind),
                        Err(_) => true,
                    };
                    if !is_awaited {
                        if !queue.hand_over(endpoint, operation) {
                            queue.over(operation);
                        }
                        return Progress::Done;
                    }
                }
                Progress::Idle
            }
        }
    }
}
