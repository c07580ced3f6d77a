//! Proposing entries: the path of one round trip.

use core::future::{Future, poll_fn};
use core::pin::{Pin, pin};
use core::task::{Context, Poll};
use std::sync::Arc;
use std::time::Duration;

use farfield_core::toolkit::ErrorContext;
use farfield_core::{Error, ErrorKind, Result};
use farfield_fabric::{self as fabric, Endpoint, Instant, Op};
use smallvec::SmallVec;

use crate::errors::{LogFull, NoMajority, NotLeader, NotNext, OutcomeUnknown};
use crate::layout::{COMMIT, ECHOES, Image, PROOF, applied_at, echo_at, header_of, used_words};
use crate::replica::{FEW, Follower, Handle, Leading, State};

/// A leader that needs a free slot asks the replicas again after such a pause, which doubles.
const PAUSE_MIN: Duration = Duration::from_micros(20);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// How long it waits for a reader of this node that does not get on: as a rule the thread that proposes reads, too.
/// Another thread that reads may have no core for a while.
const OWN_READER_MAX: Duration = Duration::from_millis(200);

/// Proposes entries, one after the other: see [`ReplicatedLog::proposer`](crate::ReplicatedLog::proposer).
///
/// ```
/// # use farfield_mu::{LogOptions, ReplicatedLog};
/// # let node = farfield::Node::builder().start()?;
/// # let log = ReplicatedLog::open(&node, "log", LogOptions::default())?;
/// # let ep = node.endpoint()?;
/// # ep.block_on(ep.wait_until(ep.deadline(), || log.is_leader().then_some(())))?;
/// let mut proposer = log.proposer()?;
/// let first = ep.block_on(proposer.propose(&ep, b"one"))?;
/// let second = ep.block_on(proposer.propose(&ep, b"two"))?;
/// assert_eq!((first, second), (0, 1));
/// # Ok::<(), farfield::Error>(())
/// ```
pub struct Proposer {
    handle: Arc<Handle>,
    /// How long it waits for this node's own reader.
    own_reader_max: Duration,
}

/// The operations of one entry on one follower: the put of the slot, and a get of its header behind it.
struct Sent<'e> {
    rank: usize,
    put: Option<Op<'e, ()>>,
    echo: Option<Op<'e, ()>>,
}

/// Why a wait of the proposer has ended.
enum Wake {
    /// Something has changed: other followers, another leader, an entry that has landed.
    Changed,
    /// The operations of this follower have failed.
    Failed(usize, fabric::Error),
    TimedOut,
}

impl Proposer {
    pub(crate) fn new(handle: &Arc<Handle>) -> Result<Proposer> {
        if handle.proposer_taken.compare_exchange(0, 1).is_err() {
            return Err(Error::from(ErrorKind::InUse { what: "proposers of the log", max: 1 }).of(handle.object.path()));
        }
        Ok(Proposer { handle: Arc::clone(handle), own_reader_max: OWN_READER_MAX })
    }

    /// The service thread reads, which has its reasons if it does not get on: this thread waits for it to its deadline.
    pub(crate) fn beside_reader(mut self) -> Proposer {
        self.own_reader_max = Duration::MAX;
        self
    }

    /// Proposes an entry, and waits until it is decided. The result is its index.
    ///
    /// If the call is dropped, the entry is decided by the next one, or not at all: as after [`OutcomeUnknown`].
    ///
    /// Pass the same endpoint to every call. With another one, a follower that is behind learns of the last entries
    /// later.
    ///
    /// ```
    /// # use farfield_mu::{LogOptions, NotLeader, ReplicatedLog};
    /// # let node = farfield::Node::builder().start()?;
    /// # let log = ReplicatedLog::open(&node, "log", LogOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// # ep.block_on(ep.wait_until(ep.deadline(), || log.is_leader().then_some(())))?;
    /// # let mut proposer = log.proposer()?;
    /// match ep.block_on(proposer.propose(&ep, b"entry")) {
    ///     Ok(index) => println!("decided as entry {index}"),
    ///     Err(error) if error.custom_ref::<NotLeader>().is_some() => println!("ask the leader: {error}"),
    ///     Err(error) => return Err(error), // a timeout; see `OutcomeUnknown`
    /// }
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// Nothing was proposed: [`NotLeader`]; [`LogFull`] or [`NoMajority`] after the endpoint's timeout, or [`LogFull`]
    /// soon, if this node itself has not read; [`ErrorKind::TooLarge`](farfield_core::ErrorKind::TooLarge). Otherwise
    /// [`OutcomeUnknown`].
    pub async fn propose(&mut self, endpoint: &Endpoint, entry: &[u8]) -> Result<u64> {
        self.propose_if(endpoint, entry, None).await
    }

    /// Waits until an entry can be proposed, and all before it are decided: those of earlier leaders, and one of a
    /// dropped call. The result is the index that the next entry has. So a program can read all entries before it
    /// decides about the next, and propose that by [`Proposer::propose_at`].
    ///
    /// ```
    /// # use farfield_mu::{LogOptions, ReplicatedLog};
    /// # let node = farfield::Node::builder().start()?;
    /// # let log = ReplicatedLog::open(&node, "log", LogOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// # ep.block_on(ep.wait_until(ep.deadline(), || log.is_leader().then_some(())))?;
    /// # let mut proposer = log.proposer()?;
    /// let index = ep.block_on(proposer.ready(&ep))?;
    /// // … read all entries before `index`, and decide …
    /// assert_eq!(ep.block_on(proposer.propose_at(&ep, index, b"entry"))?, index);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`NotLeader`]; [`LogFull`] and [`NoMajority`], as `propose`.
    pub async fn ready(&mut self, endpoint: &Endpoint) -> Result<u64> {
        let path = self.handle.object.path();
        self.handle.object.check_current()?;
        let ballot = self.begin(endpoint, endpoint.deadline()).await.of(path)?;
        let state = self.handle.core.state.lock();
        match state.leading.as_ref().filter(|leading| leading.ballot == ballot) {
            Some(leading) => Ok(leading.tail),
            None => {
                drop(state);
                Err(self.not_leader())
            }
        }
    }

    /// Proposes an entry as [`Proposer::propose`] does, if it gets this index: no other entry was decided since
    /// [`Proposer::ready`].
    ///
    /// ```
    /// # use farfield_mu::{LogOptions, NotNext, ReplicatedLog};
    /// # let node = farfield::Node::builder().start()?;
    /// # let log = ReplicatedLog::open(&node, "log", LogOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// # ep.block_on(ep.wait_until(ep.deadline(), || log.is_leader().then_some(())))?;
    /// # let mut proposer = log.proposer()?;
    /// let error = ep.block_on(proposer.propose_at(&ep, 7, b"entry")).unwrap_err();
    /// assert_eq!(error.custom_ref::<NotNext>().unwrap().next, 0);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `propose`; [`NotNext`], and nothing was proposed.
    pub async fn propose_at(&mut self, endpoint: &Endpoint, index: u64, entry: &[u8]) -> Result<u64> {
        self.propose_if(endpoint, entry, Some(index)).await
    }

    async fn propose_if(&mut self, endpoint: &Endpoint, entry: &[u8], expected: Option<u64>) -> Result<u64> {
        let path = self.handle.object.path();
        self.handle.object.check_current()?;
        let core = &*self.handle.core;
        let max = core.slots.bytes_max();
        if entry.len() > max {
            return Err(Error::from(ErrorKind::TooLarge { bytes: entry.len(), max_bytes: max }).of(path));
        }
        let deadline = endpoint.deadline();
        let ballot = self.begin(endpoint, deadline).await.of(path)?;
        let mut buf = endpoint.buf::<u64>(used_words(entry.len())).of(path)?;
        let origin = u64::from(core.node.id().0) << 48 | core.proposed.fetch_add(1);
        let mut sent: SmallVec<[Sent<'_>; FEW]> = SmallVec::new();
        let mut state = core.state.lock();
        let State { leading, peers, .. } = &mut *state;
        let Some(leading) = leading.as_mut().filter(|leading| leading.ballot == ballot) else {
            drop(state);
            return Err(self.not_leader());
        };
        let index = leading.tail;
        if expected.is_some_and(|expected| expected != index) {
            return Err(Error::custom(NotNext { next: index })).of(path);
        }
        let mut image = Image(&mut buf);
        let used = image.fill(index, ballot, origin, entry);
        // Under the lock: the service thread lets no other leader write here before this store (the lock; then `CW` →
        // the `NRW` of its grant). So this replica has accepted the entry when a later leader reads its log.
        image.store(core.slots.words_of(&core.log, index, used));
        leading.tail += 1;
        // All followers get it before the first await, so a dropped call has put it to all. One that is confirmed later
        // has got it with the rest of the log.
        for (rank, follower) in leading.followers.iter_mut().enumerate().filter(|(_, it)| it.is_confirmed) {
            // Earlier entries that may not have landed there were put by another endpoint.
            let is_by_another = follower.by != Some(endpoint.number()) && follower.has < index;
            follower.by = if is_by_another { None } else { Some(endpoint.number()) };
            // *Posted under the lock*, too. A thread that stops between a look at its term and the post could go on
            // when another node has led, and this one has got the right again for a later term: its put would land
            // there. Under the lock it is posted before this node's service thread asks for the right again, so by a
            // queue pair that the follower's revocation ends.
            let at = core.slots.remote(peers[rank].log, index);
            let put = endpoint.put(at, &buf);
            // *Durable.* A put that is complete may not have landed, and the follower drops puts that have not landed
            // when it revokes the right. The get follows it in the follower's memory (`NRW → NRR`) and by the same
            // queue pair: when its result is here, the entry is there, and every later leader that this follower lets
            // write finds it.
            let echo = endpoint.get_span(at, core.echoes.span(echo_at(rank, index), PROOF * 8));
            sent.push(Sent { rank, put: Some(put), echo: Some(echo) });
        }
        drop(state);
        self.drop_refusing(ballot, index, &mut sent);
        let decided = self.wait_decided(endpoint, deadline, ballot, index, &mut sent).await;
        match decided {
            Ok(()) => {
                self.push_decided(endpoint, ballot);
                Ok(index)
            }
            Err(because) => self.resolve(endpoint, deadline, ballot, index, origin, because).await.of(path),
        }
    }

    /// Waits until an entry can be proposed: this node leads, a majority takes part, an earlier entry of a dropped call
    /// is decided, and its slot is free. The ballot.
    async fn begin(&self, endpoint: &Endpoint, deadline: Instant) -> Result<u64> {
        let core = &*self.handle.core;
        loop {
            let seen = core.changes.load();
            enum Next {
                Ready(u64),
                Finish(u64, u64),
                Room(u64, u64),
                Majority(usize),
            }
            let next = {
                let mut state = core.state.lock();
                let Some(leading) = state.leading.as_mut() else { return Err(self.not_leader()) };
                self.hear(leading);
                if leading.decided < leading.tail {
                    Next::Finish(leading.ballot, leading.tail - 1)
                } else if leading.present() < core.majority() {
                    Next::Majority(leading.present())
                } else if leading.tail >= leading.room {
                    Next::Room(leading.ballot, leading.tail)
                } else {
                    Next::Ready(leading.ballot)
                }
            };
            match next {
                Next::Ready(ballot) => return Ok(ballot),
                Next::Finish(ballot, index) => {
                    let mut none = SmallVec::new();
                    self.wait_decided(endpoint, deadline, ballot, index, &mut none).await?;
                    self.push_decided(endpoint, ballot);
                }
                Next::Majority(present) => {
                    core.check_majority().map_err(Error::custom)?;
                    let missing = NoMajority { of: core.replicas(), needed: core.majority(), present };
                    let changed = || (core.changes.load() != seen).then_some(());
                    let waited = endpoint.wait_until(deadline, changed).await;
                    waited.map_err(|_| Error::custom(missing))?;
                }
                Next::Room(ballot, tail) => self.make_room(endpoint, deadline, ballot, tail).await?,
            }
        }
    }

    /// Asks all live replicas for their acknowledgements, until there is a free slot.
    async fn make_room(&self, endpoint: &Endpoint, deadline: Instant, ballot: u64, tail: u64) -> Result<()> {
        let core = &*self.handle.core;
        let (mut pause, mut last) = (PAUSE_MIN, None);
        let until_of = |now: Instant| deadline.min(now + self.own_reader_max.min(deadline.since(now)));
        // What this node's reader has acknowledged, and until when it is waited for.
        let mut own = (core.applied().load(), until_of(endpoint.now()));
        loop {
            let mut least = (core.applied().load(), core.me);
            let mut heard: SmallVec<[(usize, u64); FEW]> = SmallVec::new();
            let mut ops: SmallVec<[(usize, Op<'_, u64>); FEW]> = SmallVec::new();
            let (peers, bases) = {
                let state = core.state.lock();
                (state.peers.clone(), state.bases.clone())
            };
            let mut is_cut_short = false;
            // By a leader before this one, and not by this one yet, which knows where it begins.
            let is_kept = |rank: usize| core.reads(rank) && bases[rank].is_none();
            // The dead are left out: their memory is out of reach, and they never read again.
            for rank in (0..core.ranks()).filter(|rank| *rank != core.me && !core.is_gone(*rank)) {
                let at = peers[rank].control.byte_add(applied_at(core.ranks()) as u64);
                ops.push((rank, endpoint.get(at)));
            }
            for (rank, op) in ops {
                match endpoint.within(deadline, op).await {
                    // One that has come back holds nothing up before a leader brings it its first entry. From then on
                    // it does: see below.
                    Some(Ok(0)) if !core.has_vote(rank) && !is_kept(rank) => {}
                    Some(Ok(applied)) => {
                        least = least.min((applied, rank));
                        heard.push((rank, applied));
                    }
                    // It may have left or died meanwhile; a live one keeps its entries.
                    Some(Err(_)) if !core.is_gone(rank) => least = (0, rank),
                    Some(Err(_)) => {}
                    None => {
                        // In this round it has not answered. An earlier one knows the slowest.
                        least = last.unwrap_or((0, rank));
                        is_cut_short = true;
                        break;
                    }
                }
            }
            if core.leading.load() != ballot {
                return Err(self.not_leader());
            }
            let mut state = core.state.lock();
            let State { leading, bases, peers: present } = &mut *state;
            // Not from a node that another one has replaced meanwhile: that one has read nothing.
            heard.retain(|(rank, _)| present[*rank].control == peers[*rank].control);
            // Under the lock, as it gets its first entry. Its word may not say so yet.
            for (rank, base) in bases.iter().enumerate().filter_map(|(rank, base)| Some((rank, (*base)?))) {
                let is_heard = heard.iter().any(|(of, applied)| *of == rank && *applied >= base);
                if !is_heard && !is_cut_short && !core.is_gone(rank) {
                    least = least.min((base, rank));
                }
            }
            let room = least.0 + core.slots.count;
            if tail < room {
                if let Some(leading) = leading.as_mut().filter(|it| it.ballot == ballot) {
                    leading.room = leading.room.max(room);
                    // An entry that a follower has read is in its memory. Its header may not have come back, and this
                    // log's copy of it, with which it would be compared, is overwritten soon.
                    for (rank, applied) in heard {
                        let follower = &mut leading.followers[rank];
                        follower.has = follower.has.max(applied.min(tail));
                    }
                }
                return Ok(());
            }
            drop(state);
            let now = endpoint.now();
            if core.applied().load() != own.0 {
                own = (core.applied().load(), until_of(now));
            }
            // All others may have got on, and the thread of this call may be the one that has to read.
            let is_own = least.1 == core.me;
            if now >= deadline || is_own && now >= own.1 {
                let (acknowledged, rank) = least;
                let behind = core.node_at(rank).unwrap_or_else(|| core.node.id());
                return Err(Error::custom(LogFull { behind, acknowledged }).about(behind));
            }
            last = Some(least);
            // The words may be those of any replica.
            let until = if is_own { deadline.min(own.1) } else { deadline };
            endpoint.wait_for_change(until.min(now + pause)).await;
            pause = PAUSE_MAX.min(2 * pause);
        }
    }

    /// A follower that has refused an operation has a hole, and gets nothing more until the service thread has brought
    /// it up to date. So does one that is far behind.
    fn drop_refusing(&self, ballot: u64, index: u64, sent: &mut SmallVec<[Sent<'_>; FEW]>) {
        let has_failed = |op: &Option<Op<'_, ()>>| op.as_ref().is_some_and(Op::has_failed);
        for of in sent.iter_mut().filter(|of| has_failed(&of.put) || has_failed(&of.echo)) {
            let refused = [of.put.take(), of.echo.take()].into_iter().flatten().find_map(|op| op.detach().err());
            if let Some(error) = refused {
                self.failed(ballot, of.rank, &error);
            }
        }
        sent.retain(|of| of.put.is_some() || of.echo.is_some());
        for of in sent.iter() {
            let has = self.followers(ballot).get(of.rank).map_or(0, |follower| follower.has);
            if index.saturating_sub(has) >= ECHOES as u64 {
                self.handle.core.drop_follower(ballot, of.rank);
            }
        }
    }

    fn failed(&self, ballot: u64, rank: usize, error: &fabric::Error) {
        let core = &*self.handle.core;
        tracing::debug!(node = core.node.id().0, object = core.path, rank, %error, "a follower is dropped");
        if matches!(error.kind(), fabric::ErrorKind::Revoked { .. }) {
            // The follower has let another node write: that one leads, or will.
            core.step_down(ballot);
        } else {
            core.drop_follower(ballot, rank);
        }
    }

    fn followers(&self, ballot: u64) -> SmallVec<[Follower; FEW]> {
        let state = self.handle.core.state.lock();
        let leading = state.leading.as_ref().filter(|leading| leading.ballot == ballot);
        leading.map(|leading| leading.followers.clone()).unwrap_or_default()
    }

    /// Waits until a majority has the entry.
    async fn wait_decided(
        &self,
        endpoint: &Endpoint,
        deadline: Instant,
        ballot: u64,
        index: u64,
        sent: &mut SmallVec<[Sent<'_>; FEW]>,
    ) -> Result<()> {
        let core = &*self.handle.core;
        loop {
            let seen = core.changes.load();
            let awaited: SmallVec<[(usize, u64); FEW]> = {
                let mut state = core.state.lock();
                let Some(leading) = state.leading.as_mut().filter(|leading| leading.ballot == ballot) else {
                    drop(state);
                    return Err(self.not_leader());
                };
                self.hear(leading);
                if leading.have(index + 1) >= core.majority() {
                    leading.decided = index + 1;
                    // The entry was stored first (`CW → CW`): a reader here that sees the word sees the entry.
                    core.log.word(COMMIT).store(index + 1);
                    drop(state);
                    core.node.fabric().wake_local();
                    // The headers were seen where they have landed, before the operations were polled.
                    sent.iter()
                        .filter_map(|of| of.echo.as_ref())
                        .filter(|_| core.replicas() > 1)
                        .for_each(Op::was_seen);
                    return Ok(());
                }
                let is_awaited = |(_, it): &(usize, &Follower)| it.is_confirmed && it.has <= index;
                leading.followers.iter().enumerate().filter(is_awaited).map(|(rank, it)| (rank, it.has)).collect()
            };
            core.check_majority().map_err(Error::custom)?;
            match self.wait_for_news(endpoint, deadline, seen, &awaited, sent).await {
                Wake::Changed => {}
                Wake::Failed(rank, error) => self.failed(ballot, rank, &error),
                Wake::TimedOut => {
                    let waited = endpoint.timeout();
                    let missing = self.missing(ballot, index);
                    let what = format!("a majority of the replicas to accept entry {index}");
                    return Err(ErrorKind::Timeout { what, waited, missing }.into());
                }
            }
        }
    }

    /// Waits until an operation has ended, or something else has changed.
    async fn wait_for_news(
        &self,
        endpoint: &Endpoint,
        deadline: Instant,
        seen: u64,
        awaited: &[(usize, u64)],
        sent: &mut SmallVec<[Sent<'_>; FEW]>,
    ) -> Wake {
        let core = &*self.handle.core;
        // The headers of entries of dropped calls come back, too, and their operations are polled no more.
        let is_news = || {
            let has_come = awaited.iter().any(|(rank, index)| self.has_come(*rank, *index));
            (has_come || core.changes.load() != seen).then_some(())
        };
        let mut waiter = pin!(endpoint.wait_until(deadline, is_news));
        poll_fn(|cx| {
            let mut has_ended = false;
            for of in sent.iter_mut() {
                let failed = ended(&mut of.put, cx).or_else(|| ended(&mut of.echo, cx));
                if let Some(error) = failed {
                    (of.put, of.echo) = (None, None);
                    return Poll::Ready(Wake::Failed(of.rank, error));
                }
                has_ended |= of.put.is_none() && of.echo.is_none();
            }
            if has_ended {
                sent.retain(|of| of.put.is_some() || of.echo.is_some());
                return Poll::Ready(Wake::Changed);
            }
            waiter.as_mut().poll(cx).map(|changed| match changed {
                Ok(()) => Wake::Changed,
                Err(_) => Wake::TimedOut,
            })
        })
        .await
    }

    /// Reads the headers that have come back from the followers: how far each is.
    fn hear(&self, leading: &mut Leading) {
        let Leading { tail, followers, .. } = leading;
        for (rank, follower) in followers.iter_mut().enumerate().filter(|(_, follower)| follower.is_confirmed) {
            while follower.has < *tail && self.has_come(rank, follower.has) {
                follower.has += 1;
            }
        }
    }

    /// Whether a follower's header of an entry has come back, and is that of this log.
    fn has_come(&self, rank: usize, index: u64) -> bool {
        let core = &*self.handle.core;
        let echo = core.echoes.words(echo_at(rank, index), PROOF);
        // The slots from `has` on are not used again before the follower has read them.
        let own = core.slots.words_of(&core.log, index, PROOF);
        echo.iter().zip(own).all(|(echo, own)| echo.load() == own.load())
    }

    /// Tells the followers how much is decided, and does not wait.
    fn push_decided(&self, endpoint: &Endpoint, ballot: u64) {
        let core = &*self.handle.core;
        let mut refused = SmallVec::<[usize; FEW]>::new();
        let state = core.state.lock();
        let Some(leading) = state.leading.as_ref().filter(|leading| leading.ballot == ballot) else { return };
        let decided = leading.decided;
        for (rank, follower) in leading.followers.iter().enumerate().filter(|(_, follower)| follower.is_confirmed) {
            // The word must not overtake the entry. Either this endpoint has put both, in this order (`NRW → NRW`), or
            // the entry is known to have landed.
            if follower.has < decided && follower.by != Some(endpoint.number()) {
                continue;
            }
            // Under the lock, as the entry: the word must not come to a follower that has another leader's entries.
            let put = endpoint.put_value(state.peers[rank].log.byte_add(COMMIT as u64), decided);
            if put.detach().is_err() {
                refused.push(rank);
            }
        }
        drop(state);
        refused.into_iter().for_each(|rank| core.drop_follower(ballot, rank));
    }

    /// This node no longer leads, or the deadline has passed: whether the entry was decided.
    async fn resolve(
        &self,
        endpoint: &Endpoint,
        deadline: Instant,
        ballot: u64,
        index: u64,
        origin: u64,
        because: Error,
    ) -> Result<u64> {
        let core = &*self.handle.core;
        // The next leader decides another entry here, or this one, and then this replica learns of it. Or this node
        // leads again, and decides by its next call.
        let leads_again = || {
            let leading = core.leading.load();
            leading != 0 && leading != ballot
        };
        let is_decided = || (core.decided() > index || leads_again()).then_some(());
        let never_comes = || core.check_majority().is_err().then_some(());
        // If it times out, the look at the words below says so.
        let _ = endpoint.wait_until_or(deadline, is_decided, never_comes).await;
        if core.decided() <= index {
            // Also if this node leads again and has not found the entry: a replica that it could not read may have it,
            // and of five replicas a later leader may read that one (`specs/mu`, `refused early`).
            return Err(Error::custom(OutcomeUnknown { index, because }));
        }
        let slot = core.slots.words_of(&core.log, index, core.slots.words);
        match header_of(slot) {
            (Some(there), by, _) if there == index && by == origin => Ok(index),
            (Some(there), ..) if there == index => Err(self.not_leader()),
            // It is used for a later one.
            _ => Err(Error::custom(OutcomeUnknown { index, because })),
        }
    }

    #[cold]
    fn not_leader(&self) -> Error {
        let leader = self.handle.core.leader();
        let error = Error::custom(NotLeader { leader });
        leader.map_or(error.clone(), |leader| error.about(leader)).of(self.handle.object.path())
    }

    /// The followers that do not have an entry.
    #[cold]
    fn missing(&self, ballot: u64, index: u64) -> Vec<farfield_fabric::NodeId> {
        let (core, followers) = (&*self.handle.core, self.followers(ballot));
        let lacks = |rank: &usize| !followers.get(*rank).is_some_and(|it| it.is_confirmed && it.has > index);
        (0..core.ranks()).filter(|rank| *rank != core.me && lacks(rank)).filter_map(|rank| core.node_at(rank)).collect()
    }
}

/// Polls an operation that has not ended. Its error, if it has failed.
fn ended(op: &mut Option<Op<'_, ()>>, cx: &mut Context<'_>) -> Option<fabric::Error> {
    match Pin::new(op.as_mut()?).poll(cx) {
        Poll::Pending => None,
        Poll::Ready(result) => {
            *op = None;
            result.err()
        }
    }
}

impl Drop for Proposer {
    fn drop(&mut self) {
        self.handle.proposer_taken.store(0);
    }
}
