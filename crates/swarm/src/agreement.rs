//! How the memory nodes agree on the next record of a cell, without computing anything: by compare-and-swaps.
//!
//! Each change is proposed with a *ballot*. A memory node accepts a record by a compare-and-swap of the cell's word
//! from the word that the proposer has seen: nothing else can have happened there meanwhile.
//!
//! - *Fast*: a client that knows the state of a cell proposes the next one to all memory nodes at the same time. If all
//!   accept it, it is *chosen*, in one round trip. Of two clients that propose at once neither may have all of them.
//! - *Classic* (Paxos): the client makes a majority promise a ballot of its own, builds on the highest record that they
//!   have accepted, and makes them accept the result. A record that a majority has accepted with such a ballot is
//!   chosen.
//!
//! A fast record counts for a classic proposer only if all memory nodes that promised have accepted it: otherwise one
//! of them has not, and will not any more, so it was not chosen, and will not be. Its base was chosen, and is in it.
//!
//! *What is mapped is stored.* A memory node that accepts the mapping of a key has its value: it was put before. A
//! client that builds on a record that may not have been chosen first brings the value that it maps to a majority.
//!
//! *Records are used again* when no word points to them, and no read that may have seen such a word is under way
//! (`sections`). So a word that was seen and is found again was not exchanged meanwhile.
//!
//! Sources: Lamport, *Fast Paxos* (the two kinds of rounds, with all memory nodes for a fast one); Rystsov, *CASPaxos*
//! (a register without a log); Guerraoui and others, *Velos* (Paxos by compare-and-swaps).

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, ready};

use farfield_core::{Error, Result};
use farfield_fabric::{self as fabric, Buf, BufOp, Op, Posted, RemotePtr};

use crate::cell::{BALLOT_MAX, CELL_WORDS, CellWord, Change, Entries, RECORD_WORDS, Record, ballot_after, is_fast};
use crate::census::is_out;
use crate::client::Core;
use crate::errors::TimestampsUsedUp;
use crate::max_register::Look;
use crate::records::UnusedRecord;
use crate::replicas::{Order, PerReplica, Replicas};
use crate::sections::Section;
use crate::version::{Location, Version};
use xxhash_rust::xxh3::xxh3_64;

/// A cell on one memory node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) word: CellWord,
    record: Record,
}

impl Seen {
    /// Whether another memory node has the same record.
    fn is_same(&self, other: &Seen) -> bool {
        self.word.place() == other.word.place() && self.record == other.record
    }
}

/// Gets a cell from one memory node: in place, or from where its word points to.
pub(crate) struct GetCell<'c, 'e> {
    core: &'c Core<'e>,
    replica: usize,
    cell: usize,
    step: Step<'e>,
    attempts: usize,
}

/// If a memory node's cell changes more often while it is read, the node counts as one that does not answer.
const ATTEMPTS_MAX: usize = 64;

enum Step<'e> {
    InPlace(BufOp<'e, u64>),
    Record(CellWord, BufOp<'e, u64>),
}

impl Future for GetCell<'_, '_> {
    type Output = fabric::Result<Seen>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<fabric::Result<Seen>> {
        let get = &mut *self;
        loop {
            match &mut get.step {
                Step::InPlace(op) => {
                    let words = ready!(Pin::new(op).poll(cx))?;
                    let word = CellWord(words[0]);
                    let record = match word.place() {
                        0 => Some(Record::VIRGIN),
                        // It is in place before D is set. An earlier record of the same buffer has another ballot.
                        place if word.is_decided() => Record::decode(get.cell, place, &words[1..])
                            .filter(|record| record.ballot == word.promise()),
                        _ => None,
                    };
                    if let Some(record) = record {
                        return Poll::Ready(Ok(Seen { word, record }));
                    }
                    get.core.check_counts(get.replica)?;
                    let record = get.core.endpoint.buf(RECORD_WORDS)?;
                    let op = get.core.endpoint.get_into(get.core.record_at(get.replica, word), record);
                    get.step = Step::Record(word, op);
                }
                Step::Record(word, op) => {
                    let (word, words) = (*word, ready!(Pin::new(op).poll(cx))?);
                    if let Some(record) = Record::decode(get.cell, word.place(), &words) {
                        return Poll::Ready(Ok(Seen { word, record }));
                    }
                    // The word has changed since, and its record is used again.
                    get.attempts += 1;
                    if get.attempts > ATTEMPTS_MAX {
                        let node = get.core.replica(get.replica).node;
                        return Poll::Ready(Err(fabric::ErrorKind::Unreachable { node }.into()));
                    }
                    get.core.check_counts(get.replica)?;
                    get.step = Step::InPlace(get.core.get_in_place(get.replica, get.cell)?);
                }
            }
        }
    }
}

/// A value that is stored together with the record that maps its key.
#[derive(Clone, Copy)]
pub(crate) struct Payload<'b, 'e> {
    pub(crate) at: Location,
    pub(crate) version: Version,
    pub(crate) image: &'b Buf<'e, u64>,
}

/// A proposal to one memory node.
struct Propose<'b> {
    /// The compare-and-swap of the value's metadata word.
    value: Option<Op<'b, u64>>,
    cell: Posted<'b, u64>,
}

impl Future for Propose<'_> {
    /// The cell's word before.
    type Output = fabric::Result<u64>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<fabric::Result<u64>> {
        if let Some(value) = &mut self.value {
            ready!(Pin::new(value).poll(cx))?;
            self.value = None;
        }
        Pin::new(&mut self.cell).poll(cx)
    }
}

/// What one attempt has come to.
enum Attempt {
    /// The record, when the change was made, or was not wanted any more.
    Decided(Record),
    /// The register of the payload has ended: the change was made, and the key was deleted since.
    Ended(Record),
    /// Another client was faster, or a memory node did not answer.
    Lost,
}

/// The change to make to some entries, if any.
pub(crate) type Next<'n> = &'n mut dyn FnMut(&Entries) -> Option<Change>;

/// A cell that a client changes, perhaps in several steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Deciding {
    pub(crate) cell: usize,
    /// Whether it was probably never used.
    pub(crate) is_new: bool,
    /// The highest ballot of a proposal for this purpose that may still be accepted, until it or a higher one was
    /// chosen.
    pub(crate) proposed: u64,
    /// Whether the register of the payload has ended.
    pub(crate) has_ended: bool,
    /// Whether the limit of the last record is kept (`moving`).
    pub(crate) has_kept: bool,
}

impl Deciding {
    pub(crate) fn new(cell: usize) -> Deciding {
        Deciding { cell, is_new: false, proposed: 0, has_ended: false, has_kept: false }
    }
}

impl<'e> Core<'e> {
    pub(crate) fn cell_at(&self, replica: usize, cell: usize) -> RemotePtr<u64> {
        self.replica(replica).cells.at(cell * CELL_WORDS)
    }

    pub(crate) fn record_at(&self, replica: usize, word: CellWord) -> RemotePtr<u64> {
        let record = self.index().record(self.shared.layout.writers, word.writer(), word.record().into());
        self.replica(replica).records.at(record * RECORD_WORDS)
    }

    fn get_in_place(&self, replica: usize, cell: usize) -> fabric::Result<BufOp<'e, u64>> {
        Ok(self.endpoint.get_into(self.cell_at(replica, cell), self.endpoint.buf(CELL_WORDS)?))
    }

    pub(crate) fn get_cell(&self, replica: usize, cell: usize) -> fabric::Result<GetCell<'_, 'e>> {
        let step = Step::InPlace(self.get_in_place(replica, cell)?);
        Ok(GetCell { core: self, replica, cell, step, attempts: 0 })
    }

    /// The memory nodes of which something may still be read, or land there.
    pub(crate) fn live(&self, cell: usize) -> Order {
        self.order(cell).iter().filter(|replica| self.is_live(replica)).collect()
    }

    pub(crate) fn is_live(&self, replica: &usize) -> bool {
        !is_out(self.shared.object.node(), self.replica(*replica).node)
    }

    /// Whether all memory nodes have answered lately.
    pub(crate) fn do_all_answer(&self) -> bool {
        self.live(0).len() == self.shared.memory_nodes && self.common.slow.get() == Replicas::default()
    }

    /// The record of a cell, and its word on most memory nodes. None if it is not known to be chosen.
    pub(crate) async fn look(&self, cell: usize) -> Result<Option<(Record, CellWord)>> {
        let seen =
            self.gather(self.order(cell), self.majority(), |replica| self.get_cell(replica, cell)).await?.answers;
        let chosen = self.chosen(&seen);
        if chosen.is_some_and(|(record, _)| record.ballot > 0) {
            self.note_used(cell);
        }
        Ok(chosen)
    }

    fn note_used(&self, cell: usize) {
        self.with_store(|store| store.used_cells[cell / 64] |= 1 << (cell % 64));
    }

    /// Whether this client knows that a cell was used: then a proposal that takes it for a new one is in vain.
    pub(crate) fn is_used(&self, cell: usize) -> bool {
        self.with_store(|store| store.used_cells[cell / 64] & 1 << (cell % 64) != 0)
    }

    /// The entries of a cell. None if a change may be under way: [`Core::settled_entries`] ends it.
    pub(crate) async fn entries(&self, cell: usize) -> Result<Option<Entries>> {
        Ok(self.look(cell).await?.map(|(record, _)| record.state()))
    }

    /// The highest record, if it is known to be chosen.
    pub(crate) fn chosen(&self, seen: &PerReplica<Seen>) -> Option<(Record, CellWord)> {
        let (_, top) = seen.iter().max_by_key(|(_, seen)| (seen.record.ballot, seen.word.is_decided()))?;
        let holders = seen.iter().filter(|(_, seen)| seen.is_same(top)).count();
        let needed = if is_fast(top.record.ballot) { self.shared.memory_nodes } else { self.majority() };
        let is_chosen = top.record.ballot == 0 || top.word.is_decided() || holders >= needed;
        is_chosen.then_some((top.record, top.word))
    }

    /// The entries of a cell. A change that is still under way at a second look is ended first.
    pub(crate) async fn settled_entries(&self, cell: usize) -> Result<Entries> {
        self.settled(cell).await.map(|record| record.state())
    }

    /// The record of a cell, as [`Core::settled_entries`].
    pub(crate) async fn settled(&self, cell: usize) -> Result<Record> {
        for _ in 0..2 {
            let section = self.enter()?;
            let found = self.look(cell).await;
            section.end();
            if let Some((record, _)) = found? {
                return Ok(record);
            }
        }
        self.change(&mut Deciding::new(cell), None, &mut |_| None).await
    }

    /// Changes a cell, until `next` wants no other change. The result is the record then, and no proposal of `deciding`
    /// is accepted any more. With a payload, its value is stored wherever the change is accepted.
    pub(crate) async fn change(
        &self,
        deciding: &mut Deciding,
        payload: Option<Payload<'_, 'e>>,
        next: Next<'_>,
    ) -> Result<Record> {
        let (start, cell) = (self.endpoint.now(), deciding.cell);
        for attempt in 0.. {
            let record = self.take_record().await?;
            deciding.has_kept = false;
            let section = self.enter()?;
            let made = match self.do_all_answer() {
                true if attempt == 0 && deciding.is_new => {
                    self.propose_fast(&section, deciding, record, (Record::VIRGIN, CellWord(0)), payload, next).await
                }
                true if attempt <= 1 => match self.look(cell).await {
                    Ok(Some(seen)) => self.propose_fast(&section, deciding, record, seen, payload, next).await,
                    Ok(None) => self.propose_classic(&section, deciding, record, payload, next).await,
                    Err(error) => Err(error),
                },
                _ => self.propose_classic(&section, deciding, record, payload, next).await,
            };
            section.end();
            deciding.is_new = false;
            let made = made?;
            match made {
                Attempt::Decided(record) | Attempt::Ended(record) => {
                    self.note_used(cell);
                    deciding.has_ended |= matches!(made, Attempt::Ended(_));
                    self.give_back_records(cell).await;
                    return Ok(record);
                }
                Attempt::Lost => {}
            }
            if self.endpoint.now() >= start + self.endpoint.timeout() {
                let what = format!("an agreement on cell {cell} of the index");
                return Err(self.timed_out(what, start, Vec::new()));
            }
            if attempt > 1 {
                // Clients that are in each other's way wait for different times, longer than their attempts take.
                let draw = xxh3_64(&[self.writer as u8, attempt as u8]) % 8;
                let times = (1 << attempt.min(6)) * (1 + draw as u32);
                let wait = self.patience(self.shared.options.patience / 8).saturating_mul(times) / 16;
                self.pause(self.endpoint.now() + wait.min(self.endpoint.timeout() / 8)).await;
            }
        }
        unreachable!("the loop has no end")
    }

    /// Proposes the next record to all memory nodes at the same time.
    async fn propose_fast(
        &self,
        section: &Section<'_, 'e>,
        deciding: &mut Deciding,
        record: UnusedRecord<'_, 'e>,
        (base, word): (Record, CellWord),
        payload: Option<Payload<'_, 'e>>,
        next: Next<'_>,
    ) -> Result<Attempt> {
        let (cell, entries) = (deciding.cell, base.state());
        if self.has_mapped(section, deciding, payload, &entries).await? {
            return Ok(Attempt::Ended(base));
        }
        let Some(change) = next(&entries) else {
            // An earlier proposal may still be accepted: a higher one has to be chosen first.
            return Ok(if base.ballot >= deciding.proposed { Attempt::Decided(base) } else { Attempt::Lost });
        };
        if !word.is_decided() {
            self.keep_limit_of(section, &base).await?;
        }
        let ballot = self.ballot(base.ballot.max(word.promise()), None)?;
        let before = deciding.proposed;
        deciding.proposed = before.max(ballot);
        let earlier = self.records_of(cell);
        let new = Record { ballot, base: base.ballot, change, entries };
        let (accepted, image) = self.encode(cell, &new, record)?;
        let post = |replica| self.propose_at(replica, cell, [word, accepted], &image, payload);
        let answers = self.gather_all(self.order(cell), post).await;
        let accepted_by = answers.iter().filter(|(_, found)| *found == word.0).count();
        if accepted_by < self.shared.memory_nodes {
            if accepted_by == 0 && answers.len() == self.shared.memory_nodes {
                deciding.proposed = before;
                self.give_back_of(cell, &[accepted.record()]);
            }
            return Ok(Attempt::Lost);
        }
        deciding.has_kept = self.has_kept(section, &new).await;
        if deciding.has_kept {
            self.publish(cell, accepted, &image, answers.iter().map(|(replica, _)| *replica));
        }
        // No word points to an earlier one now. (Calls of this client beside this one may have used later ones.)
        self.give_back_of(cell, &earlier);
        Ok(Attempt::Decided(new))
    }

    /// Makes a majority promise a ballot, and accept a record that is built on the highest one that they have accepted.
    async fn propose_classic(
        &self,
        section: &Section<'_, 'e>,
        deciding: &mut Deciding,
        record: UnusedRecord<'_, 'e>,
        payload: Option<Payload<'_, 'e>>,
        next: Next<'_>,
    ) -> Result<Attempt> {
        let cell = deciding.cell;
        let seen =
            self.gather(self.order(cell), self.majority(), |replica| self.get_cell(replica, cell)).await?.answers;
        if let Some((chosen, _)) = self.chosen(&seen)
            && chosen.ballot >= deciding.proposed
            && next(&chosen.state()).is_none()
        {
            return Ok(Attempt::Decided(chosen));
        }
        let highest = seen.iter().map(|(_, seen)| seen.word.promise().max(seen.record.ballot)).max().unwrap_or(0);
        let ballot = self.ballot(highest.max(deciding.proposed), Some(self.writer))?;
        let word_of = |replica: usize| {
            let found = seen.iter().find(|(other, _)| *other == replica);
            found.map_or(CellWord(0), |(_, seen)| seen.word)
        };
        let order: Order = seen.iter().map(|(replica, _)| *replica).collect();
        let promise = |replica: usize| {
            let word = word_of(replica);
            Ok(self.endpoint.cas(self.cell_at(replica, cell), word.0, word.promising(ballot).0))
        };
        let promised = self.gather_all(order, promise).await;
        if promised.len() < order.len() || promised.iter().any(|(replica, found)| *found != word_of(*replica).0) {
            return Ok(Attempt::Lost);
        }

        let (base, is_chosen) = to_build_on(&seen);
        let is_chosen = is_chosen || self.chosen(&seen).is_some_and(|(chosen, _)| chosen == base);
        if !is_chosen && !base.change.version.is_initial() && !self.is_stored(&seen, &base, section).await? {
            return Ok(Attempt::Lost);
        }
        // A limit is kept before another record is built on its own, but not before that is chosen: then it is proposed
        // once more.
        let repeats = !is_chosen && !base.change.limit.is_initial();
        let is_known = seen.iter().any(|(_, seen)| seen.record == base && seen.word.is_decided());
        if is_chosen && !is_known {
            self.keep_limit_of(section, &base).await?;
        }
        let earlier = self.records_of(cell);
        let entries = base.state();
        let has_ended = !repeats && self.has_mapped(section, deciding, payload, &entries).await?;
        let change = if repeats || has_ended { None } else { next(&entries) };
        let payload = payload.filter(|_| change.is_some());
        let new = if repeats {
            Record { ballot, ..base }
        } else {
            Record { ballot, base: base.ballot, change: change.unwrap_or(Change::NONE), entries }
        };
        deciding.proposed = ballot;
        let (accepted, image) = self.encode(cell, &new, record)?;
        let post = |replica: usize| {
            let expected = word_of(replica).promising(ballot);
            self.propose_at(replica, cell, [expected, accepted], &image, payload)
        };
        let answers = self.gather_all(order, post).await;
        let is_accepted = |(replica, found): &(usize, u64)| *found == word_of(*replica).promising(ballot).0;
        if answers.len() < order.len() || !answers.iter().all(is_accepted) {
            return Ok(Attempt::Lost);
        }
        let is_kept =
            if repeats { self.keep_limit_of(section, &new).await.is_ok() } else { self.has_kept(section, &new).await };
        deciding.has_kept = is_kept && !repeats;
        if is_kept {
            self.publish(cell, accepted, &image, order.iter());
        }
        let is_everywhere = self.live(cell).iter().all(|replica| order.contains(replica));
        if is_everywhere && self.joining.get() == Replicas::default() {
            // As after a fast proposal: no word that can still be read points to an earlier one.
            self.give_back_of(cell, &earlier);
        } else if is_kept {
            self.bring_up(section, cell, accepted, &image).await;
        }
        Ok(match (repeats, has_ended) {
            (true, _) => Attempt::Lost,
            (false, true) => Attempt::Ended(new),
            (false, false) => Attempt::Decided(new),
        })
    }

    /// Brings the value that a record maps to a majority, if it is on fewer. False if that fails. The record may have
    /// been chosen long ago, without a memory node here that knows it. Then its register may have another value by now,
    /// or may have ended, and the buffer of this one is used again. So this is a read of the register, which finds the
    /// value, or what came after it.
    async fn is_stored(&self, seen: &PerReplica<Seen>, base: &Record, section: &Section<'_, 'e>) -> Result<bool> {
        let holders: Order =
            seen.iter().filter(|(_, seen)| seen.record == *base).map(|(replica, _)| *replica).collect();
        if holders.len() >= self.majority() {
            return Ok(true);
        }
        // If one of them fails now, the others are asked.
        let others = self.order(base.change.to.at().register);
        let others = others.iter().filter(|replica| seen.iter().all(|(other, _)| other != replica));
        let mut order: Order = seen.iter().map(|(replica, _)| *replica).collect();
        order.put_last(|replica| !holders.contains(replica));
        let order = order.iter().chain(others).collect();
        Ok(match self.max_read_of(order, base.change.to.at(), section).await? {
            Look::Found(found) => found.version.is_sealed() || found.version.is_as_new(base.change.version),
            Look::Moved => true,
            Look::Gone => false,
        })
    }

    /// Whether an earlier proposal of a mapping that the cell does not have was chosen, and its key was deleted since.
    /// The mapping is not proposed again then: another client has its register. (So nothing is to be decided about
    /// another proposal.)
    async fn has_mapped(
        &self,
        section: &Section<'_, 'e>,
        deciding: &Deciding,
        payload: Option<Payload<'_, 'e>>,
        entries: &Entries,
    ) -> Result<bool> {
        let is_there = |at: Location| entries.iter().any(|entry| entry.is_mapped() && entry.at() == at);
        match payload {
            Some(payload) if deciding.proposed > 0 && !is_there(payload.at) => {
                self.has_ended(section, payload.at).await
            }
            _ => Ok(false),
        }
    }

    fn ballot(&self, after: u64, writer: Option<usize>) -> Result<u64> {
        match ballot_after(after, writer) {
            ballot if ballot <= BALLOT_MAX => Ok(ballot),
            _ => Err(Error::custom(TimestampsUsedUp).of(self.shared.object.path())),
        }
    }

    /// The word and the words of a record. The record is this client's, for the cell, from now on.
    fn encode(&self, cell: usize, new: &Record, record: UnusedRecord<'_, 'e>) -> Result<(CellWord, Buf<'e, u64>)> {
        let mut image =
            self.endpoint.buf(RECORD_WORDS).map_err(|error| Error::from(error).of(self.shared.object.path()))?;
        let accepted = CellWord::accepted(new.ballot, self.writer, record.number);
        new.encode(cell, accepted.place(), &mut image);
        record.keep(cell);
        Ok((accepted, image))
    }

    /// Puts a value and its metadata word, and then a record and its cell's word, in one round trip. A client that
    /// finds the word finds the others (`NRW` before `NAR`, `NAW` before `NAR`).
    fn propose_at<'b>(
        &'b self,
        replica: usize,
        cell: usize,
        [expected, new]: [CellWord; 2],
        image: &'b Buf<'_, u64>,
        payload: Option<Payload<'b, 'e>>,
    ) -> fabric::Result<Propose<'b>> {
        let mut value = None;
        if let Some(Payload { at, version, image }) = payload {
            let word = self.word_at(replica, at.register, version.writer());
            value = Some(self.store_once(replica, word, [Version::empty(at.instance), version], image)?);
        }
        let batch = self.endpoint.batch(self.replica(replica).node);
        let batch = batch.put(self.record_at(replica, new), image);
        Ok(Propose { value, cell: batch.cas(self.cell_at(replica, cell), expected.0, new.0) })
    }

    /// Tells readers that a record was chosen, and puts it where they find it at once. The call does not wait for it.
    fn publish(&self, cell: usize, word: CellWord, image: &Buf<'_, u64>, replicas: impl Iterator<Item = usize>) {
        for replica in replicas {
            let at = self.cell_at(replica, cell);
            let batch = self.endpoint.batch(self.replica(replica).node).put(at.at(1), image);
            // If it is refused, readers take longer.
            drop(batch.cas(at, word.0, word.decided().0));
        }
    }

    /// The words of a cell on all memory nodes, if they answer. They have executed all that this client has proposed
    /// before.
    pub(crate) async fn words(&self, cell: usize) -> Option<PerReplica<CellWord>> {
        let section = self.enter().ok()?;
        let words = self.words_in(&section, cell).await;
        section.end();
        words
    }

    /// The section keeps a memory node that joins from getting the cell meanwhile.
    async fn words_in(&self, _section: &Section<'_, 'e>, cell: usize) -> Option<PerReplica<CellWord>> {
        let live = self.holders_of_cell(cell).await?;
        // A compare-and-swap follows those of this client before it (`NAR` before `NAR`); a get might not.
        let get = |replica: usize| Ok(self.endpoint.cas(self.cell_at(replica, cell), 0, 0));
        let words = self.gather_holders(live, get).await;
        (words.len() == live.len())
            .then(|| words.into_iter().map(|(replica, word)| (replica, CellWord(word))).collect())
    }

    /// Brings the memory nodes up to date that have not accepted a record.
    async fn bring_up(&self, section: &Section<'_, 'e>, cell: usize, word: CellWord, image: &Buf<'_, u64>) {
        for (replica, found) in self.words_in(section, cell).await.unwrap_or_default() {
            if found.place() != word.place() && found.promise() < word.promise() {
                let at = self.cell_at(replica, cell);
                let batch = self.endpoint.batch(self.replica(replica).node);
                let batch = batch.put(self.record_at(replica, word), image).put(at.at(1), image);
                drop(batch.cas(at, found.0, word.decided().0));
            }
        }
    }
}

/// The state that a classic proposal is built on, after a majority has promised, and whether it is known to be chosen.
fn to_build_on(seen: &PerReplica<Seen>) -> (Record, bool) {
    let records = seen.iter().map(|(_, this)| {
        let same = || seen.iter().filter(|(_, other)| other.is_same(this));
        if this.record.ballot == 0 || same().any(|(_, other)| other.word.is_decided()) {
            (this.record, true)
        } else if is_fast(this.record.ballot) && same().count() < seen.len() {
            // One of them has not accepted it, and will not.
            (this.record.base(), true)
        } else {
            (this.record, false)
        }
    });
    records.max_by_key(|(record, is_chosen)| (record.ballot, *is_chosen)).unwrap_or((Record::VIRGIN, true))
}
