//! When a buffer may be used again (§4.5): when no read can still use an old version that points to it.
//!
//! A write replaces the value of its client's last write of the register: a read that begins later finds a higher
//! version at a majority. But one that has begun before may still read the old buffer, or copy from it to a memory node
//! that has missed it. So the client asks all nodes that have clients (`census`), and uses its old buffers again when
//! all have answered. On each node the service thread answers when the reads that were under way have ended. Nothing of
//! this is on the path of a read but two stores: its *section* has the number of the current epoch while it runs.
//!
//! *Order.* The request is put when the write's compare-and-swaps have completed at a majority (`NAW` before the put is
//! posted). The service thread reads it (`CR`), begins an epoch, and looks at the sections (`CR`). A read stores its
//! section (`CW`) before it posts its gets (`CW → NRR`). If the service thread has not seen the section, the gets are
//! later than that look, and so than the write: they find the new version. This holds whichever epoch the read has
//! stored: one that is too old is only waited for once more.

use core::cell::Cell;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::sync::Arc;

use farfield_core::toolkit::{Hold, Poller, Progress};
use farfield_core::{Error, ErrorKind, Result};
use farfield_fabric::{self as fabric, Endpoint, Op, Region, RemotePtr, Word};

use crate::census::{ANSWERS, FIRST, REQUEST_BYTES, SEAT, SECOND, Table};
use crate::client::Core;
use crate::layout::REGION_COUNT;
use crate::replicas::Replicas;
use crate::view::{Seat, View};

/// Reads that a client may have under way.
pub(crate) const SECTIONS: usize = 64;

/// The state that the clients of a node share with its service thread.
pub(crate) struct Sections {
    epoch: Word,
    /// For each client, its sections: the epoch in which a read has begun, or 0.
    active: Box<[Word]>,
    /// Whether the array is closed here.
    closed: Word,
}

impl Sections {
    pub(crate) fn new(clients: usize) -> Sections {
        let active = (0..clients * SECTIONS).map(|_| Word::new(0)).collect();
        Sections { epoch: Word::new(1), active, closed: Word::new(0) }
    }

    pub(crate) fn enter(&self, client: usize, section: usize) {
        self.active[client * SECTIONS + section].store(self.epoch.load());
    }

    pub(crate) fn leave(&self, client: usize, section: usize) {
        self.active[client * SECTIONS + section].store(0);
    }

    pub(crate) fn close(&self) {
        self.closed.store(1);
    }

    fn begin_epoch(&self) -> u64 {
        let epoch = self.epoch.load() + 1;
        self.epoch.store(epoch);
        epoch
    }

    /// Whether all reads that had begun before the epoch have ended.
    fn have_ended(&self, epoch: u64) -> bool {
        self.active.iter().map(Word::load).all(|began| began == 0 || began >= epoch)
    }
}

/// The requests of one client, on some node.
#[derive(Clone, Copy, Default)]
struct Requests {
    /// Where the answers go, of the incarnation that asks.
    answers: u64,
    answered: u64,
    /// The request that is being looked at, and the epoch that began with it.
    current: (u64, u64),
}

/// Answers the requests of all clients, on the service thread. When the object is closed here, that continues until its
/// memory is freed: others may have asked by then.
pub(crate) struct Answers {
    sections: Arc<Sections>,
    /// The requests of all clients (`census`).
    asked: Region,
    /// This node, among those that may have clients.
    rank: usize,
    /// Of the clients first, and then of the memory nodes that replace others.
    requests: Vec<Requests>,
    clients: usize,
    view: Arc<View>,
    /// Until no client is left here.
    open: Option<Hold>,
}

impl Answers {
    pub(crate) fn new(
        sections: Arc<Sections>,
        view: Arc<View>,
        asked: Region,
        rank: usize,
        table: Table,
        open: Hold,
    ) -> Answers {
        let requests = vec![Requests::default(); table.askers()];
        Answers { sections, asked, rank, requests, clients: table.clients, view, open: Some(open) }
    }

    /// What a memory node that replaces another one tells with its request, in the first shard. None if another request
    /// is on its way.
    fn seat(&self, writer: usize, number: u64) -> Option<Option<Seat>> {
        let word = |part: usize| self.asked.word(writer * REQUEST_BYTES + 8 * part).load();
        let words = core::array::from_fn::<u64, REGION_COUNT, _>(|part| word(SEAT + part));
        (word(FIRST) == number).then(|| (words[0] != 0).then(|| Seat::from_words(words)))
    }

    /// Puts an answer; false if that was refused, or the node is out of reach now.
    fn answer(&mut self, endpoint: &Endpoint, writer: usize, answer: u64) -> bool {
        let Requests { answers, answered, .. } = &mut self.requests[writer];
        match endpoint.put_untracked(RemotePtr::from_packed(*answers).at(self.rank), answer).detach() {
            // The members decide about a node that is out of reach, and one that has just come may not be connected
            // yet. No client waits for the answer on one that is gone or has closed the object, nor for one of a node
            // that is fenced.
            Err(error)
                if !error.is_gone()
                    && !matches!(error.kind(), fabric::ErrorKind::Freed { .. } | fabric::ErrorKind::Fenced) =>
            {
                false
            }
            _ => {
                *answered = answer;
                true
            }
        }
    }

    /// The last request of a client that is not answered yet.
    fn request(&mut self, writer: usize) -> Option<u64> {
        let word = |part: usize| self.asked.word(writer * REQUEST_BYTES + 8 * part).load();
        let (number, answers) = (word(SECOND), word(ANSWERS));
        let known = &mut self.requests[writer];
        if number == 0 || answers == known.answers && number <= known.answered {
            return None;
        }
        // Otherwise its next part is on its way.
        if word(FIRST) != number {
            return None;
        }
        if answers != known.answers {
            *known = Requests { answers, ..Requests::default() };
        }
        Some(number)
    }
}

impl Poller for Answers {
    fn poll(&mut self, endpoint: &Endpoint) -> Progress {
        if self.sections.closed.load() != 0 {
            self.open = None;
            if endpoint.check_word(self.asked.remote::<u64>(0)).is_err() {
                return Progress::Done;
            }
        }
        let (mut is_busy, mut waits) = (false, false);
        for writer in 0..self.requests.len() {
            let Some(asked) = self.request(writer) else { continue };
            let current = self.requests[writer].current;
            if current.0 != asked {
                if let Some(replica) = writer.checked_sub(self.clients) {
                    let Some(seat) = self.seat(writer, asked) else {
                        waits = true;
                        continue;
                    };
                    // Before the epoch: calls that are not waited for find it.
                    seat.into_iter().for_each(|seat| self.view.set(replica, seat));
                }
                self.requests[writer].current = (asked, self.sections.begin_epoch());
            }
            let epoch = self.requests[writer].current.1;
            if self.sections.have_ended(epoch) && self.answer(endpoint, writer, asked) {
                is_busy = true;
            } else {
                waits = true;
            }
        }
        match (is_busy, waits) {
            (true, _) => Progress::Busy,
            (false, true) => Progress::Retry,
            (false, false) => Progress::Idle,
        }
    }
}

/// A read that is under way.
pub(crate) struct Section<'c, 'e> {
    core: &'c Core<'e>,
    number: usize,
    /// Memory nodes to which it has put something that may not have landed.
    pub(crate) has_put: Cell<Replicas>,
    /// Whether it ends when these puts have landed.
    is_late: Cell<bool>,
}

impl<'e> Core<'e> {
    /// Begins a read.
    pub(crate) fn enter<'c>(&'c self) -> Result<Section<'c, 'e>> {
        self.end_late(None);
        let number = self.common.sections.get().trailing_ones() as usize;
        if number >= SECTIONS {
            let in_use = ErrorKind::InUse {
                what: "reads of a client (those count whose copies a memory node has not taken yet)",
                max: SECTIONS,
            };
            return Err(Error::from(in_use).of(self.shared.object.path()));
        }
        self.common.sections.set(self.common.sections.get() | 1 << number);
        self.shared.sections.enter(self.client, number);
        // A call that the service thread has not seen finds the view of its request, or that of the one before: a
        // memory node that replaces another one asks twice before it copies anything, and it does no harm to count on
        // it late.
        self.keep_view();
        Ok(Section { core: self, number, has_put: Cell::default(), is_late: Cell::new(false) })
    }

    pub(crate) fn leave(&self, number: usize) {
        self.shared.sections.leave(self.client, number);
        self.common.sections.set(self.common.sections.get() & !(1 << number));
    }

    /// Ends all sections, when nothing that was put is under way any more.
    pub(crate) fn leave_all(&self) {
        self.common.late.borrow_mut().clear();
        let mut sections = self.common.sections.get();
        while sections != 0 {
            self.leave(sections.trailing_zeros() as usize);
            sections &= sections - 1;
        }
    }

    /// A get flushes the puts before it (`NRW → NRR`).
    fn flush(&self, replica: usize) -> Op<'e, u64> {
        self.endpoint.get(self.replica(replica).buffers)
    }

    /// Waits until the puts to a memory node have landed, or its connection is lost, and they with it.
    fn wait_for_flush(&self, replica: usize) {
        while self.flush(replica).wait().is_err_and(|error| error.is_refused()) {
            self.endpoint.progress();
        }
    }

    /// Waits until the atomics to a memory node have been done, or its connection is lost (`NAR` after `NAR`).
    fn wait_for_atomics(&self, replica: usize) {
        let nothing = || self.endpoint.cas(self.replica(replica).clients, 0, 0);
        while nothing().wait().is_err_and(|error| error.is_refused()) {
            self.endpoint.progress();
        }
    }

    /// Waits until all that this client has posted to the memory nodes has been done.
    pub(crate) fn wait_for_all_replicas(&self) {
        for replica in 0..self.shared.memory_nodes {
            self.wait_for_flush(replica);
            self.wait_for_atomics(replica);
        }
    }

    /// Ends the sections of all shards whose puts have landed. (They have the same memory nodes.) With a context, its
    /// task is woken when others may have.
    pub(crate) fn end_late(&self, mut cx: Option<&mut Context<'_>>) {
        if self.common.late.borrow().is_empty() {
            return;
        }
        let mut late = self.common.late.borrow_mut();
        let mut at = 0;
        while at < late.len() {
            let (number, replica, flush) = &mut late[at];
            let ended = match &mut cx {
                Some(cx) => Pin::new(&mut *flush).poll(cx),
                None if flush.is_complete() => Pin::new(&mut *flush).poll(&mut Context::from_waker(Waker::noop())),
                None => Poll::Pending,
            };
            match ended {
                Poll::Pending => at += 1,
                Poll::Ready(Err(error)) if error.is_refused() => {
                    *flush = self.flush(*replica);
                    at += 1;
                }
                Poll::Ready(_) => {
                    let number = *number;
                    drop(late.swap_remove(at));
                    if late.iter().all(|(other, ..)| *other != number) {
                        self.leave(number);
                    }
                }
            }
        }
    }
}

impl Section<'_, '_> {
    /// It puts something to a memory node: until that has landed, the buffer must not be used again.
    pub(crate) fn puts_to(&self, replica: usize) {
        let mut has_put = self.has_put.get();
        has_put.add(replica);
        self.has_put.set(has_put);
    }

    /// Its puts to a memory node have landed.
    pub(crate) fn has_landed(&self, replica: usize) {
        let mut has_put = self.has_put.get();
        has_put.remove(replica);
        self.has_put.set(has_put);
    }

    /// The read has ended, and does not wait for its puts to memory nodes that do not answer.
    pub(crate) fn end(self) {
        let has_put = self.has_put.take();
        if has_put != Replicas::default() {
            self.is_late.set(true);
            let flushes = has_put.iter().map(|replica| (self.number, replica, self.core.flush(replica)));
            self.core.common.late.borrow_mut().extend(flushes);
            // Those of nodes that have failed have ended.
            self.core.end_late(None);
        }
    }
}

/// A read that is dropped in the middle waits until its puts have landed: its client may not call again for long, and
/// others need the buffers.
impl Drop for Section<'_, '_> {
    fn drop(&mut self) {
        for replica in self.has_put.get().iter() {
            self.core.wait_for_flush(replica);
        }
        if !self.is_late.get() {
            self.core.leave(self.number);
        }
    }
}
