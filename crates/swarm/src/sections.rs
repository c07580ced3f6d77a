//! When a buffer may be used again (§4.5): when no read can still use an old version that points to it.
//!
//! A write replaces the value of its client's last write of the register: a read that begins later finds a higher version
//! at a majority. But one that has begun before may still read the old buffer, or copy from it to a memory node that has
//! missed it. So the client asks all nodes, by one put each, and uses its old buffers again when all have answered. On
//! each node the service thread answers when the reads that were under way have ended. Nothing of this is on the path of a
//! read but two stores: its *section* has the number of the current epoch while it runs.
//!
//! *Order.* The request is put when the write's compare-and-swaps have completed at a majority (`NAW` before the put is
//! posted). The service thread reads it (`CR`), begins an epoch, and looks at the sections (`CR`). A read stores its
//! section (`CW`) before it posts its gets (`CW → NRR`). If the service thread has not seen the section, the gets are
//! later than that look, and so than the write: they find the new version. This holds whichever epoch the read has
//! stored: one that is too old is only waited for once more.

use farfield_core::toolkit::{Hold, Poller, Progress};
use farfield_fabric::{Endpoint, Region, RemotePtr, Word};
use std::sync::Arc;

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
    answered: u64,
    /// The request that is being looked at, and the epoch that began with it.
    current: (u64, u64),
}

/// Answers the requests of all clients, on the service thread.
pub(crate) struct Answers {
    sections: Arc<Sections>,
    /// A word for each client, with the number of its last request.
    asked: Region,
    /// The words for this node's answers.
    answers: Vec<RemotePtr<u64>>,
    requests: Vec<Requests>,
    /// Until the others know that nothing is read here any more.
    _open: Hold,
}

impl Answers {
    pub(crate) fn new(sections: Arc<Sections>, asked: Region, answers: Vec<RemotePtr<u64>>, open: Hold) -> Answers {
        let requests = vec![Requests::default(); answers.len()];
        Answers { sections, asked, answers, requests, _open: open }
    }

    /// Puts an answer; false if that was refused, or the node is out of reach now.
    fn answer(&mut self, endpoint: &Endpoint, writer: usize, answer: u64) -> bool {
        match endpoint.put_untracked(self.answers[writer], answer).detach() {
            // The members decide about a node that is out of reach, and until then it may come back. Nobody waits for the
            // answer on one that is gone, nor for one of a node that is fenced.
            Err(error) if error.is_refused() || error.is_unreachable() && !error.is_gone() => false,
            _ => {
                self.requests[writer].answered = answer;
                true
            }
        }
    }
}

/// Bytes between the request words of two clients, which may be on different nodes.
pub(crate) const REQUEST_BYTES: usize = 64;

impl Poller for Answers {
    fn must_finish_before_leave(&self) -> bool {
        self.sections.closed.load() != 0
    }

    fn poll(&mut self, endpoint: &Endpoint) -> Progress {
        if self.sections.closed.load() != 0 {
            // No client of this node is left: this answers all requests to come.
            let writers = 0..self.requests.len();
            let are_told = writers
                .map(|writer| self.requests[writer].answered == u64::MAX || self.answer(endpoint, writer, u64::MAX));
            return if are_told.fold(true, |all, is_told| all & is_told) { Progress::Done } else { Progress::Retry };
        }
        let (mut is_busy, mut waits) = (false, false);
        for writer in 0..self.requests.len() {
            let asked = self.asked.word(writer * REQUEST_BYTES).load();
            let Requests { answered, current } = &mut self.requests[writer];
            if asked <= *answered {
                continue;
            }
            if current.0 != asked {
                *current = (asked, self.sections.begin_epoch());
            }
            let epoch = current.1;
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
