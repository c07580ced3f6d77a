//! Becoming the leader, and bringing followers up to date.

use std::time::Duration;

use farfield_core::toolkit::Progress;
use farfield_fabric::{Buf, Endpoint, Instant, Op};
use smallvec::SmallVec;

use super::returns::{begins_at, begins_to_read, get_reads, known_reads};
use super::trips::{get_slots, wait_for, wait_for_all};
use crate::layout::{BASE, BROUGHT, CHECK, COMMIT, Image, RAISED, Stamp, applied_at, grant_at, request_at};
use crate::replica::{Core, FEW, Follower, Leading, Peer};

/// How long a candidate waits for a grant before it asks again. The time doubles.
const GRANT_MIN: Duration = Duration::from_millis(5);
const GRANT_MAX: Duration = Duration::from_secs(1);
/// Attempts of one ballot at a replica that does not answer.
const UNANSWERED_MAX: u64 = 200;
/// A leader that was replaced waits for the request of its successor. If there is none, it asks again: at first after
/// so long, and after twice as long each further time: nodes that do not reach each other may depose each other.
const REST: Duration = Duration::from_millis(1);
const REST_MAX: Duration = Duration::from_millis(200);
/// A node without a leader waits so long for each one before it: far longer than a change of the leader takes, and than
/// the survivors of a leader take to learn of its death one after another.
const TURN: Duration = Duration::from_secs(2);

/// This node as a candidate or leader.
pub(super) struct Lead {
    candidacy: Option<Candidacy>,
    /// It does not ask before this.
    rests_until: Option<Instant>,
    /// How long it rests at least when it is replaced next.
    rest: Duration,
    /// Since then this node has known of no leader.
    leaderless_since: Option<Instant>,
    /// The highest round that it has heard of.
    round: u64,
}

/// From the request to lead to the end of the term.
struct Candidacy {
    stamp: Stamp,
    phase: Phase,
    /// By rank.
    others: SmallVec<[Other; FEW]>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// It waits for the grants of a majority.
    Asking,
    /// This log lacks decided entries, which the replica of this rank has.
    Copying {
        from: usize,
        until: u64,
    },
    /// It looks for entries from this index on that may be decided.
    Adopting {
        index: u64,
    },
    /// It brings a majority to the same entries, of which there are so many.
    Confirming {
        tail: u64,
    },
    Leading,
}

/// A replica of another node, as the candidate sees it.
#[derive(Clone, Copy, Debug)]
struct Other {
    /// The last request to it.
    stamp: Stamp,
    state: Granted,
    /// It is asked, or asked again, from then on.
    ask_at: Option<Instant>,
    pause: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Granted {
    /// It has no valid request of this candidate's.
    No,
    Asked,
    /// This node may write its log. It has the right entries up to `has`, if that is known, and was told that those up
    /// to `told` are decided.
    Yes {
        has: Option<u64>,
        told: u64,
    },
    /// It is a follower, and the proposer puts to it.
    Confirmed,
}

impl Other {
    const NEW: Other = Other { stamp: Stamp(0), state: Granted::No, ask_at: None, pause: GRANT_MIN };

    fn fails(&mut self, now: Instant) {
        self.state = Granted::No;
        self.ask_at = Some(now + self.pause);
        self.pause = GRANT_MAX.min(2 * self.pause);
    }
}

impl Candidacy {
    /// The others that have given the right, and have a vote.
    fn granted(&self, core: &Core) -> SmallVec<[usize; FEW]> {
        let is_granted = |other: &Other| matches!(other.state, Granted::Yes { .. } | Granted::Confirmed);
        let granted = self.others.iter().enumerate().filter(move |(_, other)| is_granted(other));
        granted.map(|(rank, _)| rank).filter(|rank| core.has_vote(*rank)).collect()
    }

    fn has_majority(&self, core: &Core) -> bool {
        self.granted(core).len() + 1 >= core.majority()
    }
}

impl Lead {
    pub(super) fn new() -> Lead {
        Lead { candidacy: None, rests_until: None, rest: REST, leaderless_since: None, round: 0 }
    }

    /// Another node has come to a rank. The grants of the one before it are void.
    pub(super) fn forget(&mut self, rank: usize) {
        if let Some(candidacy) = &mut self.candidacy {
            candidacy.others[rank] = Other::NEW;
        }
    }

    /// How many are before this node in the line of those that may lead next, by rank. None if it knows of a leader
    /// (which stays when a lower rank returns: each change costs a pause), or has no vote. The first in line may take
    /// an earlier leader for the present one, because a cut link kept the last one's request from it. So the others
    /// ask, too.
    fn place(core: &Core) -> Option<u32> {
        let before = || (0..core.me).filter(|rank| core.is_trusted(*rank)).count() as u32;
        match core.promised_to.load().checked_sub(1).map(|rank| rank as usize) {
            Some(rank) if rank == core.me => core.has_vote(core.me).then_some(0),
            Some(rank) if core.is_trusted(rank) => None,
            _ => core.is_trusted(core.me).then(before),
        }
    }

    /// Does the next step.
    pub(super) fn step(&mut self, core: &Core, peers: &[Peer], promised: Stamp, endpoint: &Endpoint) -> Progress {
        let now = endpoint.now();
        let Some(candidacy) = &mut self.candidacy else {
            let is_wanted = core.is_wanted.load() != 0 && core.has_vote(core.me);
            let Some(place) = (if is_wanted { Some(0) } else { Lead::place(core) }) else {
                self.leaderless_since = None;
                return Progress::Idle;
            };
            let turn = *self.leaderless_since.get_or_insert(now) + TURN * place;
            if let Some(until) = self.rests_until.into_iter().chain([turn]).max().filter(|until| now < *until) {
                return Progress::Until(until);
            }
            self.leaderless_since = None;
            if promised.rank() != core.me {
                self.rest = REST; // it has heard of the one that has replaced it
            }
            core.is_wanted.store(0);
            self.round = self.round.max(promised.round()) + 1;
            let stamp = Stamp::first(self.round, core.me);
            let others = (0..core.ranks()).map(|_| Other::NEW).collect();
            let mut candidacy = Candidacy { stamp, phase: Phase::Asking, others };
            tracing::debug!(node = core.node.id().0, object = core.path, term = stamp.ballot(), "asks to lead");
            // All replicas at the same time. The service thread treats the request to this node's like any other one,
            // in its next round. Only then does it refuse an earlier leader, which has this request by then
            // (`NRW → NRW`) and does not ask again. What is granted before this replica has promised the ballot is of
            // no use until then. This node leads in no earlier term, so nothing of one is on its way by those rights.
            core.control.word(request_at(core.me)).store(stamp.0);
            ask(core, peers, endpoint, &mut candidacy);
            self.candidacy = Some(candidacy);
            return Progress::Busy;
        };
        let ballot = candidacy.stamp.ballot();
        if promised > candidacy.stamp {
            // Another one has asked with a higher ballot. It has the promise of this replica.
            self.candidacy = None;
            return Progress::Busy;
        }
        if candidacy.phase == Phase::Leading && core.leading.load() != ballot {
            self.rest(core, now);
            return Progress::Busy;
        }
        if promised != candidacy.stamp || core.control.word(grant_at(core.ranks(), core.me)).load() != promised.0 {
            // Until the right of all others to this log is revoked: then the service thread continues.
            return Progress::Idle;
        }
        let asked = ask(core, peers, endpoint, candidacy);
        if let Some(round) = asked.overtaken {
            self.round = self.round.max(round);
            core.step_down(ballot);
            self.rest(core, now);
            return Progress::Busy;
        }
        let is_enough = candidacy.has_majority(core);
        let has_worked = match candidacy.phase {
            Phase::Leading => bring_up(core, peers, endpoint, candidacy),
            _ if !is_enough => {
                candidacy.phase = Phase::Asking;
                false
            }
            Phase::Asking => {
                candidacy.begin_recovery(core, peers, endpoint);
                true
            }
            Phase::Copying { from, until } => {
                candidacy.copy(core, peers, endpoint, from, until);
                true
            }
            Phase::Adopting { index } => {
                candidacy.adopt(core, peers, endpoint, index);
                true
            }
            Phase::Confirming { tail } => candidacy.confirm(core, peers, endpoint, tail),
        };
        match asked.again_at {
            _ if has_worked => Progress::Busy,
            Some(at) => Progress::Until(at),
            None => Progress::Idle,
        }
    }

    fn rest(&mut self, core: &Core, now: Instant) {
        self.candidacy = None;
        // Two candidates do not ask again at the same moment.
        let turn = (core.me as u64 + self.round) % core.ranks() as u64;
        self.rests_until = Some(now + self.rest * (1 + turn as u32));
        self.rest = REST_MAX.min(2 * self.rest);
    }
}

/// The result of a round of requests.
struct Asked {
    /// The round of a higher ballot that a replica has promised.
    overtaken: Option<u64>,
    /// When the next request is due.
    again_at: Option<Instant>,
}

/// Asks the replicas that have not granted this node the right, and hears their answers.
fn ask(core: &Core, peers: &[Peer], endpoint: &Endpoint, candidacy: &mut Candidacy) -> Asked {
    let (now, ballot) = (endpoint.now(), candidacy.stamp.ballot());
    let mut asked = Asked { overtaken: None, again_at: None };
    let confirmed = core.confirmed.load();
    for rank in (0..core.ranks()).filter(|rank| *rank != core.me) {
        let other = &mut candidacy.others[rank];
        if core.is_gone(rank) {
            if other.state == Granted::Confirmed {
                core.drop_follower(ballot, rank);
            }
            other.state = Granted::No;
            continue;
        }
        if other.state == Granted::Confirmed && confirmed >> rank & 1 == 0 && candidacy.phase == Phase::Leading {
            // The proposer has dropped it.
            other.fails(now);
        }
        let answer = Stamp(core.control.word(grant_at(core.ranks(), rank)).load());
        if answer.ballot() > ballot {
            asked.overtaken = asked.overtaken.max(Some(answer.round()));
            continue;
        }
        if other.state == Granted::Asked && answer == other.stamp {
            other.state = Granted::Yes { has: None, told: 0 };
            other.ask_at = None;
        }
        if !matches!(other.state, Granted::No | Granted::Asked) {
            continue;
        }
        if other.ask_at.is_none_or(|at| at <= now) {
            let stamp = match other.stamp.again() {
                _ if other.stamp.ballot() != ballot => Some(candidacy.stamp),
                // It has not answered so far: the rest of the attempts is for its return.
                Some(_) if other.state == Granted::Asked && other.stamp.attempt() >= UNANSWERED_MAX => {
                    Some(other.stamp)
                }
                next => next,
            };
            let Some(stamp) = stamp else {
                // So many attempts with one ballot: it takes a new one.
                asked.overtaken = asked.overtaken.max(Some(candidacy.stamp.round()));
                continue;
            };
            let at = peers[rank].control.byte_add(request_at(core.me) as u64);
            other.state = Granted::No;
            if endpoint.put_untracked(at, stamp.0).detach().is_ok() {
                (other.stamp, other.state) = (stamp, Granted::Asked);
            }
            other.ask_at = Some(now + other.pause);
            other.pause = GRANT_MAX.min(2 * other.pause);
        }
        asked.again_at = asked.again_at.into_iter().chain(other.ask_at).min();
    }
    asked
}

impl Candidacy {
    /// Reads how much each replica knows to be decided. From here on no earlier leader can write to any of them.
    fn begin_recovery(&mut self, core: &Core, peers: &[Peer], endpoint: &Endpoint) {
        let granted = self.granted(core);
        let commit = |rank: &usize| endpoint.get(peers[*rank].log.byte_add(COMMIT as u64));
        let answers = wait_for_all(endpoint, granted.iter().map(commit).collect());
        let are_known = get_reads(core, peers, endpoint, &granted);
        let own = core.decided();
        let (mut from, mut until) = (core.me, own);
        for ((rank, answer), is_known) in granted.into_iter().zip(answers).zip(are_known) {
            match answer {
                Some(decided) if is_known && decided > until => (from, until) = (rank, decided),
                Some(_) if is_known => {}
                _ => self.others[rank].fails(endpoint.now()),
            }
        }
        if self.has_majority(core) {
            self.phase = if until > own { Phase::Copying { from, until } } else { Phase::Adopting { index: until } };
        }
    }

    /// Copies decided entries that this log lacks.
    fn copy(&mut self, core: &Core, peers: &[Peer], endpoint: &Endpoint, from: usize, until: u64) {
        let first = core.decided();
        let Some(mut slots) = get_slots(core, &peers[from], endpoint, first, until) else {
            self.others[from].fails(endpoint.now());
            self.phase = Phase::Asking;
            return;
        };
        for (index, words) in (first..).zip(slots.chunks_mut(core.slots.words)) {
            let image = Image(words);
            if !image.is_whole(index) {
                // It has recycled the slot: this replica was taken for gone.
                tracing::warn!(node = core.node.id().0, object = core.path, index, "a decided entry is missing");
                self.others[from].fails(endpoint.now());
                self.phase = Phase::Asking;
                return;
            }
            image.store(core.slots.words_of(&core.log, index, image.used()));
            // Entry before word (`CW → CW`), for the reader of this node.
            core.log.word(COMMIT).store(index + 1);
        }
        core.changed();
        if core.decided() >= until {
            self.phase = Phase::Adopting { index: until };
        }
    }

    /// Takes over the entry of this index that a majority may have accepted: the one with the highest ballot. If there
    /// is none, none is decided there or later.
    fn adopt(&mut self, core: &Core, peers: &[Peer], endpoint: &Endpoint, index: u64) {
        let granted = self.granted(core);
        let words = core.slots.words;
        let gets = granted.iter().filter_map(|rank| {
            let buf = endpoint.buf::<u64>(words).ok()?;
            Some(endpoint.get_into(core.slots.remote(peers[*rank].log, index), buf))
        });
        let gets: Vec<_> = gets.collect();
        if gets.len() < granted.len() {
            return; // no buffers: once more
        }
        let answers = wait_for_all(endpoint, gets);
        let own_words = core.slots.words_of(&core.log, index, words);
        let mut own = vec![0; words];
        Image(&mut own).load(own_words);
        let own_is_whole = Image(&mut own).is_whole(index);
        let mut highest: Option<(u64, Vec<u64>)> = own_is_whole.then(|| (Image(&mut own).ballot(), own.clone()));
        for (rank, answer) in granted.into_iter().zip(answers) {
            let Some(mut slot) = answer else {
                self.others[rank].fails(endpoint.now());
                continue;
            };
            let image = Image(&mut slot);
            // No replica has accepted an entry that a dead leader has put in part only.
            if image.is_whole(index) && highest.as_ref().is_none_or(|(ballot, _)| image.ballot() > *ballot) {
                highest = Some((image.ballot(), slot.to_vec()));
            }
        }
        if !self.has_majority(core) {
            self.phase = Phase::Asking;
            return;
        }
        let Some((_, mut slot)) = highest else {
            self.phase = Phase::Confirming { tail: index };
            return;
        };
        let mut image = Image(&mut slot);
        image.raise(self.stamp.ballot());
        if own_is_whole && Image(&mut own).origin() == image.origin() {
            own_words[RAISED].store(self.stamp.ballot());
        } else {
            image.store(&own_words[..image.used()]);
        }
        self.phase = Phase::Adopting { index: index + 1 };
    }

    /// Brings a majority to the entries of this log: then all of them are decided, and this node leads.
    fn confirm(&mut self, core: &Core, peers: &[Peer], endpoint: &Endpoint, tail: u64) -> bool {
        let mut has_worked = false;
        let decided = core.decided();
        let mut ready = SmallVec::<[usize; FEW]>::new();
        for (rank, (other, peer)) in self.others.iter_mut().zip(peers).enumerate() {
            let Granted::Yes { has, .. } = other.state else { continue };
            if !core.has_vote(rank) {
                continue; // its turn comes when this node leads
            }
            if has != Some(tail) {
                other.bring_on(core, rank, peer, endpoint, Target { tail, decided, ballot: None });
                has_worked = true;
            }
            if matches!(other.state, Granted::Yes { has: Some(has), .. } if has == tail) {
                ready.push(rank);
            }
        }
        if ready.len() + 1 < core.majority() {
            return has_worked;
        }
        // A majority has accepted all of them with this ballot, or knows that they are decided.
        core.log.word(COMMIT).store(tail);
        let mut state = core.state.lock();
        let followers = (0..core.ranks()).map(|_| Follower::default()).collect();
        let ballot = self.stamp.ballot();
        state.leading = Some(Leading { ballot, tail, decided: tail, room: 0, followers });
        // Of an earlier term: another leader may have brought them from another entry since.
        state.bases.iter_mut().for_each(|base| *base = None);
        core.leading.store(ballot);
        drop(state);
        // What was asked for meanwhile: else this node would ask again when another one has taken over.
        core.is_wanted.store(0);
        tracing::info!(node = core.node.id().0, object = core.path, term = ballot, entries = tail, "leads");
        self.phase = Phase::Leading;
        bring_up(core, peers, endpoint, self);
        core.changed();
        true
    }
}

/// Brings replicas that have given the right to the entries of the leader, and makes them followers. Whether there was
/// one.
fn bring_up(core: &Core, peers: &[Peer], endpoint: &Endpoint, candidacy: &mut Candidacy) -> bool {
    let ballot = candidacy.stamp.ballot();
    let granted = candidacy.granted(core);
    let mut has_worked = false;
    for (rank, other) in candidacy.others.iter_mut().enumerate() {
        if !matches!(other.state, Granted::Yes { .. }) {
            continue;
        }
        has_worked = true;
        if !core.has_vote(rank) && !begins_to_read(core, peers, endpoint, rank, &granted) {
            other.fails(endpoint.now());
            continue;
        }
        let target = {
            let state = core.state.lock();
            state.leading.as_ref().filter(|leading| leading.ballot == ballot).map(|it| (it.tail, it.decided))
        };
        let Some((tail, decided)) = target else { break };
        other.bring_on(core, rank, &peers[rank], endpoint, Target { tail, decided, ballot: Some(ballot) });
        let Granted::Yes { has: Some(has), told } = other.state else { continue };
        let mut state = core.state.lock();
        let Some(leading) = state.leading.as_mut().filter(|leading| leading.ballot == ballot) else { break };
        // Under the lock: the proposer puts the next entry to it, and no entry in between is left out. Its count of
        // decided entries is exact, so that the service thread has nothing more to put to it, which could overtake the
        // proposer's puts.
        if leading.tail == has && leading.decided == told {
            leading.followers[rank] = Follower { is_confirmed: true, has, by: None };
            core.confirmed.store(core.confirmed.load() | 1 << rank);
            (other.state, other.pause) = (Granted::Confirmed, GRANT_MIN);
            drop(state);
            tracing::debug!(node = core.node.id().0, object = core.path, rank, has, "follows");
            core.changed();
        }
    }
    has_worked
}

/// Where a replica is brought to.
#[derive(Clone, Copy)]
struct Target {
    tail: u64,
    decided: u64,
    /// That of this node, if it leads.
    ballot: Option<u64>,
}

/// The puts that an entry needs at a replica.
enum Put<'e> {
    /// The ballot with which it accepts the entry that it has.
    Raise(u64, u64),
    Whole(u64, Buf<'e, u64>),
}

impl Other {
    /// Brings a replica some entries further, towards `tail`, and tells it that those before `decided` are. When this
    /// has ended well, everything is in its memory.
    fn bring_on(&mut self, core: &Core, rank: usize, peer: &Peer, endpoint: &Endpoint, target: Target) {
        let brought = self.try_bring_on(core, rank, peer, endpoint, target);
        match brought {
            Some((has, told)) => self.state = Granted::Yes { has: Some(has), told },
            None => self.fails(endpoint.now()),
        }
    }

    fn try_bring_on(
        &mut self,
        core: &Core,
        rank: usize,
        peer: &Peer,
        endpoint: &Endpoint,
        target: Target,
    ) -> Option<(u64, u64)> {
        let Target { tail, decided, ballot } = target;
        let commit = peer.log.byte_add(COMMIT as u64);
        let (mut first, mut told) = match self.state {
            Granted::Yes { has: Some(has), told } => (has, told),
            // The entries that it knows to be decided are right.
            _ => wait_for(endpoint, endpoint.get(commit)).map(|decided| (decided, decided))?,
        };
        if first > tail {
            tracing::error!(node = core.node.id().0, object = core.path, first, tail, "a follower is ahead");
            return None;
        }
        let mut images: SmallVec<[_; 4]> = SmallVec::new();
        let mut puts: SmallVec<[Op<'_, ()>; 8]> = SmallVec::new();
        let has_returned = core.returned.load() >> rank & 1 != 0;
        if has_returned && ballot.is_some() {
            let applied = wait_for(endpoint, endpoint.get(peer.control.byte_add(applied_at(core.ranks()) as u64)))?;
            let from = begins_at(core, rank, first, applied);
            if from > tail {
                return Some((first, told)); // the proposer has got on meanwhile: once more, with its next entry
            }
            if from > first {
                // The entries before are recycled here. `BASE` before `COMMIT` (`NRW → NRW`): its reader skips them.
                puts.push(endpoint.put_value(peer.log.byte_add(BASE as u64), from));
                (first, told) = (from, from);
            }
        }
        let slots = core.slots;
        let mut there = get_slots(core, peer, endpoint, first, tail)?;
        let count = (there.len() / slots.words) as u64;
        let mut own = vec![0; slots.words];
        for (index, words) in (first..).zip(there.chunks_mut(slots.words)) {
            let mut image = Image(&mut own);
            image.load(slots.words_of(&core.log, index, slots.words));
            let its = Image(words);
            if its.is_whole(index) && its.origin() == image.origin() {
                // It has the entry. One word says that it accepts it with this ballot, so that the entry is never in
                // pieces: this may be one of few replicas that have it.
                if its.ballot() < image.ballot() {
                    images.push(Put::Raise(index, image.ballot()));
                }
                continue;
            }
            let mut buf = endpoint.buf::<u64>(image.used()).ok()?;
            buf.copy_from_slice(&image.0[..image.used()]);
            images.push(Put::Whole(index, buf));
        }
        for put in &images {
            match put {
                Put::Raise(index, ballot) => {
                    puts.push(endpoint.put_value(slots.remote(peer.log, *index).at(RAISED), *ballot));
                }
                Put::Whole(index, buf) => {
                    // Another entry that was not decided may be there. It must not pass for one that was accepted with
                    // this ballot while it is overwritten: it is spoilt first (`NRW → NRW`).
                    let at = slots.remote(peer.log, *index);
                    puts.push(endpoint.put_value(at.at(CHECK), 0));
                    puts.push(endpoint.put(at, buf));
                }
            }
        }
        for (at, node) in known_reads(core) {
            puts.push(endpoint.put_value(peer.log.byte_add(at as u64), node));
        }
        let has = first + count;
        if has == tail {
            // An entry that was proposed here and never decided. The reader must not take it for the next one.
            let next = slots.remote(peer.log, tail);
            if wait_for(endpoint, endpoint.get(next))? == tail + 1 {
                puts.push(endpoint.put_value(next, 0));
            }
        }
        let told = told.max(decided.min(has));
        // The word after the entries (`NRW → NRW`), and the get after both (`NRW → NRR`): when it has ended, they are
        // there, and nothing of this endpoint can overtake the proposer's puts.
        puts.push(endpoint.put_value(commit, told));
        if let Some(ballot) = ballot.filter(|_| has_returned && has == tail) {
            // It has all that was decided before it came, so it has a vote from now on. This lands before it is
            // counted, and after the word (`NRW → NRW`): a candidate copies the entries behind its own.
            puts.push(endpoint.put_value(peer.log.byte_add(BROUGHT as u64), ballot));
        }
        let flush = endpoint.get(commit);
        wait_for_all(endpoint, puts.into_vec()).into_iter().all(|put| put.is_some()).then_some(())?;
        wait_for(endpoint, flush)?;
        Some((has, told))
    }
}

#[cfg(test)]
mod tests;
