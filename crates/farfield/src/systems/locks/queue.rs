//! The queue of a lock that operations of many nodes wait in, after Mellor-Crummey and Scott's: the entries are linked,
//! each waits on its own node, and who leaves hands the lock to the one behind.
//!
//! The lock's record has the tail: the name of the last entry. RDMA has no exchange, so an operation enqueues by a
//! compare-and-swap, and again from what it found if it failed. It then tells the one before it (a put), and waits until
//! that puts a grant into its descriptor. On one node these two are stores: only the record's words are updated by atomics, so
//! nothing of a descriptor needs the NIC. Who leaves knows the one behind, and puts; or takes itself from the tail by a
//! compare-and-swap; or, if that fails, waits for the one behind to tell.
//!
//! *Why nothing is lost.* A descriptor is written by the CPU before the compare-and-swap that makes it known (`CW → NAR`),
//! so what others put into it lands afterwards. It is used again only when nobody will write to it: the one before has
//! granted, and the one behind has told, or there is none. If nobody can say whether the compare-and-swap was done, since the
//! lock's node is out of reach, the descriptor is kept for good: one for each attempt that was under way then, and no more, since
//! what is posted to that node afterwards is refused, and so not done ([`Endpoint::check_word`]).
//!
//! # When nodes die
//!
//! A dead node's entries cannot be read, so nobody knows who was before or behind them. But each living entry knows the
//! one that it found before it. Living entries so form *chains*, each of which begins with one that found nobody, or one of
//! a dead node. If the latter is [`Standing::ShutOut`] and has granted nothing, that beginning can be granted nothing any
//! more: it is *stuck*. It looks at all living entries of the lock ([`Queue::survey`]). If each is in a chain with a stuck
//! beginning, then nobody has the head, and one of these may claim it, by a compare-and-swap of a count of claims in the
//! lock's record. If the count is another one than before it looked, somebody else has claimed. The chain that holds the
//! tail comes last: it claims only if there is no other. So the tail is not emptied while others are stuck; and an end of
//! another chain has somebody behind it, dead, and stops there for the next claim.
//!
//! That a look is enough, though the entries are not looked at in one moment. Suppose that somebody living is at the head
//! when the look has ended, and no claim has come between. It has not found the queue empty, since the tail was never empty
//! while others were stuck. So it was granted the head along its chain, whose beginning is not stuck, or was granted
//! something: by the dead, before it was shut out, or by a claim, and both were before the look began. The grants that follow
//! go along the chain, from one that is gone or is seen with its grant: and then the next one is not seen as stuck. (Who is
//! shut out is asked before the look; otherwise a grant could land in the middle of it, and its giver die.) An entry that is
//! seen between its compare-and-swap and the answer may be at the head: then nothing can be told. One that is never polled
//! again at that moment, or forgotten, keeps others from claiming for as long.
//!
//! Nobody can tell whether the dead held the lock or waited for it, so the next holder is told of a death in either case.
//! A node that has left in good order has left nothing in a queue but a guard that was forgotten; who is behind it gets an
//! error that names it. `specs/claims` has the claims in TLA+.

use core::time::Duration;

use std::sync::Arc;

use farfield_fabric::{self as fabric, Endpoint, Instant, NodeId, RemotePtr};

use super::descriptor::{self, About, Descriptors, Id, State};
use crate::error::{Error, ErrorKind, Of, Result};
use crate::mutants::{self, Mutant};
use crate::node::{Hold, Node, Object, Poller, Progress, Standing};
use crate::objects::settle::Settle;

/// How often who waits looks whether nodes that it depends on still live.
pub(super) const CHECK_EVERY: Duration = Duration::from_millis(20);
/// Somebody else may take and leave it between the attempts of who only tries; a few are enough to call it taken.
const TRIES_MAX: u32 = 4;
/// Descriptors that are read by one get.
const AT_ONCE: usize = 64;

/// What is waited for.
pub(super) const LOCK: &str = "the lock";

/// How long an operation waits. One that need not wait does not look at the clock.
#[derive(Clone, Copy)]
pub(super) struct Wait {
    /// When it began to wait.
    start: Option<Instant>,
    /// None before that, if it is to be as long as the endpoint's timeout.
    deadline: Option<Instant>,
}

impl Wait {
    /// As long as the endpoint's timeout.
    pub(super) const USUAL: Wait = Wait { start: None, deadline: None };

    /// Not at all.
    pub(super) const NONE: Wait = Wait { start: None, deadline: Some(Instant { ns: 0 }) };

    pub(super) fn until(deadline: Instant) -> Wait {
        Wait { start: None, deadline: Some(deadline) }
    }

    /// Until when it waits before it looks whether others still live.
    pub(super) fn slice(&mut self, endpoint: &Endpoint) -> Instant {
        let now = endpoint.now();
        self.start.get_or_insert(now);
        (*self.deadline.get_or_insert_with(|| now + endpoint.timeout())).min(now + CHECK_EVERY)
    }

    /// The error of having waited too long, if so.
    pub(super) fn is_late(&mut self, endpoint: &Endpoint, what: &str, missing: Option<NodeId>) -> Option<Error> {
        self.slice(endpoint);
        let (now, start) = (endpoint.now(), self.start?);
        let (what, missing) = (what.into(), missing.into_iter().collect());
        (now >= self.deadline?).then(|| ErrorKind::Timeout { what, waited: now - start, missing }.into())
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
    /// Operations that are left to the service thread keep the locks open.
    _open: Hold,
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
    /// It may be: its compare-and-swap is under way, or has ended in an error.
    Asking,
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
    /// Nothing: the operation behind it runs on its own node, and is handed the lock by a store, which no put comes before.
    Here,
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

/// The living entries of a lock, and whose entries were shut out before they were looked at.
struct Survey {
    seen: Vec<Seen>,
    shut_out: Vec<NodeId>,
}

impl Survey {
    fn find(&self, id: Id) -> Option<&Seen> {
        self.seen.iter().find(|seen| seen.id == id)
    }

    /// The stuck beginning of the chain that an entry is in; none if it is in none, or something has been granted there.
    fn beginning(&self, id: Id) -> Option<Id> {
        let mut at = self.find(id)?;
        // Each is behind the one that it found: the chain ends.
        loop {
            if at.state != State::Queued || at.is_granted {
                return None;
            }
            if self.shut_out.contains(&at.pred.node()?) {
                return Some(at.id);
            }
            at = self.find(at.pred)?;
        }
    }

    /// Whether a stuck entry may claim the head; this was the tail before the look.
    fn lets_claim(&self, me: Id, tail: Id) -> bool {
        let mut others = self.seen.iter().filter(|seen| !matches!(seen.state, State::Free | State::Leaving));
        let Some(beginnings) = others.try_fold(Vec::new(), |mut all, seen| {
            all.push(self.beginning(seen.id)?);
            Some(all)
        }) else {
            return false;
        };
        let is_shut_out = |node| self.shut_out.contains(&node);
        // While the tail is one of the dead, no living one can empty it.
        if tail.node().is_some_and(is_shut_out) || mutants::is_on(Mutant::McsTailFirst) {
            return beginnings.contains(&me);
        }
        match self.beginning(tail) {
            Some(last) => last != me || beginnings.iter().all(|beginning| *beginning == me),
            None => false,
        }
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
    pub(super) fn new(object: &Object, descriptors: Descriptors, free_after_death: Id) -> Arc<Queue> {
        let (node, path, _open) = (object.node().for_service(), object.path().into(), object.hold());
        Arc::new(Queue { node, path, descriptors, free_after_death, _open })
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

    /// The living entries of a lock; none if that cannot be told now.
    ///
    /// # Errors
    /// There are no buffers for it.
    async fn survey(&self, endpoint: &Endpoint, lock: usize) -> fabric::Result<Option<Survey>> {
        use Standing::{Dead, Member, ShutOut, Suspected};
        // Before anything is read: what the dead have put has landed then.
        let standing = |(node, table)| (node, table, self.node.standing_of(node));
        let tables: Vec<_> = self.descriptors.tables().map(standing).collect();
        if tables.iter().any(|(.., standing)| matches!(standing, Suspected | Dead)) {
            return Ok(None); // it may not answer
        }
        let shut_out = tables.iter().filter(|it| it.2 == ShutOut).map(|it| it.0).collect();
        // Who is in a queue, of this lock.
        let mut found = Vec::new();
        let mut look = |node: NodeId, table: RemotePtr<u64>, first: usize, words: &mut dyn Iterator<Item = u64>| {
            for (at, about) in words.enumerate() {
                let (slot, about) = (first + at, About(about));
                if about.lock() == lock && about.state().is_some_and(|state| state != State::Free) {
                    found.push((Descriptors::name(node, slot, about), about, table.at(slot * descriptor::BYTES / 8)));
                }
            }
        };
        let (me, each, words) = (self.node.id(), descriptor::BYTES / 8, self.descriptors.table_words());
        let mut reads = Vec::new();
        for (node, table, _) in tables.iter().copied().filter(|it| it.2 == Member) {
            if node == me {
                look(node, table, 0, &mut self.descriptors.own_words().iter().step_by(each).map(|word| word.load()));
                continue;
            }
            for first in (0..words).step_by(AT_ONCE * each) {
                let buf = endpoint.buf::<u64>((AT_ONCE * each).min(words - first))?;
                reads.push((node, table, first, endpoint.get_into(table.at(first), buf)));
            }
        }
        for (node, table, first, read) in reads {
            let Ok(words) = read.await else { return Ok(None) };
            look(node, table, first / each, &mut words.iter().step_by(each).copied());
        }
        // What each is doing. The words of a descriptor come in any order, and it may be used again meanwhile: so how it stands
        // is read once more when they are there. Only of one that is in the queue by both looks they are known to be its own.
        // (One that has claimed in between looks as before: then the count is another one than before the look.)
        let mut seen = Vec::new();
        for (id, before, at) in found {
            let own = (id.node() == Some(me)).then(|| self.descriptors.of(id));
            let state = async || match &own {
                Some(own) => Ok(own.about().load()),
                None => endpoint.get(at).await,
            };
            let early = if mutants::is_on(Mutant::McsSurveyTorn) { state().await.ok() } else { None };
            let rest = match &own {
                Some(own) => Ok([0, own.pred().load(), 0, own.grant().load()]),
                None => whole_words::<4>(endpoint, at).await,
            };
            let Ok([_, pred, _, grant]) = rest else { return Ok(None) };
            let state = match early {
                Some(early) => Ok(early),
                None => state().await,
            };
            let Ok(about) = state.map(About) else { return Ok(None) };
            // One that is over is in nobody's way; and who uses its descriptor now is behind whoever asks.
            if about.generation() == before.generation() && about.state() != Some(State::Free) {
                let state = before.state().filter(|_| about == before).unwrap_or(State::Enqueueing);
                seen.push(Seen { id, state, pred: Id(pred), is_granted: Grant::of(grant).is_some() });
            }
        }
        Ok(Some(Survey { seen, shut_out }))
    }

    /// Whether no living entry of a lock is in its queue; the caller has seen a tail of the dead before it asks. False if
    /// that cannot be told now.
    pub(super) async fn is_deserted(&self, endpoint: &Endpoint, lock: usize) -> bool {
        let survey = self.survey(endpoint, lock).await;
        survey.ok().flatten().is_some_and(|survey| survey.seen.iter().all(|seen| seen.state == State::Leaving))
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
        let tail = Id(endpoint.get(place.tail).await?);
        let Some(survey) = self.survey(endpoint, place.lock).await? else { return Ok(false) };
        // What the dead has put before it was shut out has landed by now.
        if Grant::of(self.descriptors.of(id).grant().load()).is_some() {
            return Ok(false);
        }
        if !survey.lets_claim(id, tail) && !mutants::is_on(Mutant::McsClaimsBlindly) {
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
        let found = Settle::new(endpoint, endpoint.cas(place.claims, claims, claimed), settle).await;
        if found.as_ref().is_err_and(fabric::Error::is_refused) {
            self.descriptors.tell(id, place.lock, State::Queued);
        }
        let found = found?;
        settle(found);
        Ok(found == claims)
    }

    /// Tells the one before that somebody is behind it. Whether it has, or need not: that one is gone, and will hand over
    /// nothing.
    fn tell(&self, endpoint: &Endpoint, pred: Id, id: Id) -> bool {
        if pred.node() == Some(self.node.id()) && !mutants::is_on(Mutant::McsNotTold) {
            // It cleared the word before its compare-and-swap was issued (`CW → NAR`), and so before this one has found it.
            self.descriptors.of(pred).next().store(id.0);
            endpoint.wake_local();
            return true;
        }
        match self.descriptors.next_of(pred) {
            Some(next) if !mutants::is_on(Mutant::McsNotTold) => is_over(endpoint.put_unfenced(next, id.0).detach()),
            _ => true,
        }
    }

    /// Hands the lock to the one behind, if it has said who he is: whether it has, or need not, since that one is gone, and who
    /// is behind it will claim the lock.
    fn hand_over(&self, endpoint: &Endpoint, operation: &Operation) -> bool {
        let next = Id(self.descriptors.of(operation.id).next().load());
        if next == Id::NOBODY {
            return false;
        }
        if next.node() == Some(self.node.id()) {
            // What the holder has put is visible, what was spared too; what it has stored comes before (`CW → CW`).
            self.descriptors.of(next).grant().store(operation.hands.0);
            endpoint.wake_local();
            self.over(operation);
            return true;
        }
        let grant = self.descriptors.grant_of(next);
        let is_over = grant.is_none_or(|grant| is_over(endpoint.put_unfenced(grant, operation.hands.0).detach()));
        if is_over {
            self.over(operation);
        }
        is_over
    }

    /// Nobody writes to the descriptor any more.
    fn over(&self, operation: &Operation) {
        self.descriptors.tell(operation.id, operation.place.lock, State::Free);
        self.descriptors.give_back(operation.id);
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

/// Whether a put that somebody waits for was posted, or nobody waits for it any more. Otherwise it was refused for want of
/// something, and has to be posted later.
fn is_over(put: fabric::Result<()>) -> bool {
    use fabric::ErrorKind::{Fenced, Revoked};
    let is_for_nobody =
        |error: fabric::Error| error.is_out_of_reach() || matches!(error.kind(), Fenced | Revoked { .. });
    put.map_or_else(is_for_nobody, |()| true)
}

/// Words, each whole.
pub(super) async fn whole_words<const N: usize>(endpoint: &Endpoint, first: RemotePtr<u64>) -> fabric::Result<[u64; N]>
where
    [u64; N]: fabric::Plain,
{
    Ok(endpoint.get_torn(first.cast::<[u64; N]>()).await?.whole_if(|_| true).expect("each word by itself"))
}

/// Whether a compare-and-swap that has ended so leaves its operation outside of the queue: it was not posted; or the others have
/// shut this node out, and write into its descriptors no more.
fn is_outside(error: &fabric::Error) -> bool {
    error.is_refused() || matches!(error.kind(), fabric::ErrorKind::Fenced)
}

impl<'a> Entry<'a> {
    fn operation(&self) -> &Operation {
        self.operation.as_ref().expect("it has not left")
    }

    fn operation_mut(&mut self) -> &mut Operation {
        self.operation.as_mut().expect("it has not left")
    }

    pub(super) fn endpoint(&self) -> &'a Endpoint {
        self.endpoint
    }

    pub(super) fn place(&self) -> Place {
        self.operation().place
    }

    /// What is handed to the one behind, whenever this one leaves.
    pub(super) fn hands(&mut self, grant: Grant) {
        self.operation_mut().hands = grant;
    }

    /// The node whose memory what leaves the head orders by itself after what was put there: that of who is behind, if it
    /// has said so, since it is handed the lock by a put, unless it is this node; else the lock's.
    pub(super) fn spared(&self) -> Spared {
        match Id(self.queue.descriptors.of(self.operation().id).next().load()).node() {
            Some(me) if me == self.queue.node.id() && !mutants::is_on(Mutant::McsSparesOwnNode) => Spared::Here,
            Some(behind) => Spared::Behind(behind),
            None => Spared::Home(self.place().tail.node()),
        }
    }

    /// Enters the queue, and tells whoever is before it; what it found as the tail. With `only_if_free` it enters an empty
    /// queue only, or one whose tail is of the dead; none if it did not.
    ///
    /// # Errors
    /// The deadline has passed after an attempt that failed. The home is gone.
    pub(super) async fn enqueue(&mut self, wait: &mut Wait, only_if_free: bool) -> Result<Option<Id>> {
        let (queue, endpoint) = (self.queue, self.endpoint);
        let (mut expected, mut attempts) = (Id::NOBODY, 0);
        loop {
            let Operation { place, id, .. } = *self.operation();
            // What is refused has not been done, and the descriptor can be used again. After an error that is not known of it.
            if !mutants::is_on(Mutant::McsAsksAgain) {
                endpoint.check_word(place.tail).of(&queue.path)?;
            }
            self.operation_mut().stage = Stage::Asking;
            let enqueue = endpoint.cas(place.tail, expected.0, id.0);
            let found = Settle::new(endpoint, enqueue, |found| self.settle(found, expected)).await;
            if found.as_ref().is_err_and(is_outside) {
                self.operation_mut().stage = Stage::Outside;
            }
            let found = found.of(&queue.path)?;
            self.settle(found, expected);
            if found == expected.0 {
                if let Stage::Behind { pred, .. } = self.operation().stage {
                    let has_told = queue.tell(endpoint, pred, id);
                    self.operation_mut().stage = Stage::Behind { pred, has_told };
                }
                return Ok(Some(Id(found)));
            }
            let found = Id(found);
            if only_if_free {
                attempts += 1;
                let is_held = found.node().is_some() && !queue.is_shut_out(found);
                if is_held || attempts == TRIES_MAX {
                    return Ok(None);
                }
            } else if let Some(late) = wait.is_late(endpoint, "it was in the lock's queue", found.node()) {
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
            operation.stage = Stage::Outside;
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
    pub(super) async fn granted(&mut self, wait: &mut Wait) -> Result<Grant> {
        let (queue, endpoint) = (self.queue, self.endpoint);
        let Operation { place, id, .. } = *self.operation();
        let descriptor = queue.descriptors.of(id);
        loop {
            let Stage::Behind { pred, has_told } = self.operation().stage else {
                unreachable!("it waits behind somebody")
            };
            if !has_told {
                let has_told = queue.tell(endpoint, pred, id);
                self.operation_mut().stage = Stage::Behind { pred, has_told };
            }
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
                // What this endpoint is refused the service thread's own may do.
                let claimed = claimed.inspect_err(|error| {
                    if !error.is_refused() {
                        self.keep()
                    }
                });
                if claimed.of(&queue.path)? {
                    continue;
                }
            }
            if let Some(late) = wait.is_late(endpoint, LOCK, pred.node()) {
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
    /// The home is gone. Or the last step was refused for want of memory, and it cannot be made sure that what was spared is
    /// visible: the lock stays taken.
    pub(super) async fn leave(mut self, spared: Spared) -> Result<()> {
        let (queue, endpoint) = (self.queue, self.endpoint);
        if let Spared::Behind(_) | Spared::Here = spared {
            // A put comes after what was put to that node before it (`NRW → NRW`).
            if queue.hand_over(endpoint, self.operation()) {
                self.operation = None;
                return Ok(());
            }
            return match spared {
                Spared::Behind(behind) => self.is_refused(behind),
                _ => Ok(()),
            };
        }
        let operation = *self.operation();
        // After what was put to the lock's node (`NRW → NAR`). If it fails it has flushed that.
        self.empty(&operation).await?;
        let Some(operation) = self.operation.filter(|operation| operation.stage == Stage::Leaving) else {
            return Ok(());
        };
        // Who has come will say so soon; unless it is dead, or slow: then the service thread waits for it.
        let next = queue.descriptors.of(operation.id);
        let told = || (next.next().load() != Id::NOBODY.0).then_some(());
        if endpoint.wait_until(endpoint.now() + CHECK_EVERY, told).await.is_ok()
            && queue.hand_over(endpoint, &operation)
        {
            self.operation = None;
        }
        Ok(())
    }

    /// Leaves the head without having had the lock, and waits for nobody.
    pub(super) async fn back_out(mut self) -> Result<()> {
        let (queue, endpoint) = (self.queue, self.endpoint);
        let operation = *self.operation();
        if queue.hand_over(endpoint, &operation) {
            self.operation = None;
            return Ok(());
        }
        self.empty(&operation).await // if somebody is behind, the service thread goes on
    }

    /// Leaves the queue empty, if nobody is behind.
    async fn empty(&mut self, operation: &Operation) -> Result<()> {
        let (queue, endpoint) = (self.queue, self.endpoint);
        let swap = endpoint.cas(operation.place.tail, operation.id.0, queue.free(operation).0);
        let found = Settle::new(endpoint, swap, |found| self.settle_left(found)).await;
        if found.as_ref().is_err_and(fabric::Error::is_refused) {
            return self.is_refused(operation.place.tail.node());
        }
        let found = found.inspect_err(|_| self.keep()).of(&queue.path)?;
        self.settle_left(found);
        Ok(())
    }

    /// The service thread has to go on, whose operations come from another endpoint: so what was put to the spared node has to be
    /// made visible, before anybody can drop this. It takes a round trip at most.
    fn is_refused(&mut self, spared: NodeId) -> Result<()> {
        match self.endpoint.block_on(self.endpoint.global_fence([spared])) {
            Err(error) if !error.is_gone() => {
                self.keep();
                Err(error).of(&self.queue.path)
            }
            _ => Ok(()),
        }
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
            // Somebody may write to the descriptor for ever: it is not used again.
            Stage::Asking => {}
            _ if mutants::is_on(Mutant::McsDroppedKept) => {}
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
        // Who has left in good order hands over nothing.
        let has_left = |node| self.queue.node.standing_of(node) == Standing::Departed;
        !matches!(self.operation.stage, Stage::Behind { pred, .. } if pred.node().is_some_and(has_left))
    }

    fn poll(&mut self, endpoint: &Endpoint) -> Progress {
        let (queue, operation) = (&self.queue, &mut self.operation);
        if queue.is_fenced() || endpoint.check_alive(operation.place.tail.node()).is_err() {
            return Progress::Done; // the lock is gone, or is taken from this node
        }
        let id = operation.id;
        match operation.stage {
            Stage::Outside | Stage::Asking => unreachable!("it is in the queue"),
            Stage::Behind { pred, has_told: false } => {
                let has_told = queue.tell(endpoint, pred, id);
                operation.stage = Stage::Behind { pred, has_told };
                if has_told { Progress::Busy } else { Progress::Idle }
            }
            Stage::Behind { pred, has_told: true } => {
                if let Some(grant) = Grant::of(queue.descriptors.of(id).grant().load()) {
                    operation.stage = Stage::Head;
                    operation.hands = grant;
                    return Progress::Busy;
                }
                if queue.is_shut_out(pred) && self.is_time(endpoint) {
                    let claim = self.queue.claim(endpoint, &mut self.operation);
                    let is_lost = endpoint.block_on(claim).is_err_and(|error| !error.is_refused());
                    return if is_lost { Progress::Done } else { Progress::Idle };
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
                    Err(error) if error.is_refused() => Progress::Idle,
                    _ => Progress::Done,
                }
            }
            Stage::Leaving => {
                if queue.hand_over(endpoint, operation) {
                    return Progress::Done;
                }
                let lock = operation.place.lock;
                let is_shut_out = |(node, _)| queue.node.standing_of(node) == Standing::ShutOut;
                let may_be_dead = queue.descriptors.tables().any(is_shut_out);
                if may_be_dead && self.is_time(endpoint) {
                    // Whoever has come is dead, if no living entry may be behind this one.
                    let (queue, operation) = (&self.queue, &self.operation);
                    let is_behind = |seen: &Seen| seen.state == State::Enqueueing || seen.pred == id;
                    let survey = endpoint.block_on(queue.survey(endpoint, lock)).ok().flatten();
                    if survey.is_some_and(|survey| !survey.seen.iter().any(is_behind)) {
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
