//! The work of the service thread: it applies the calls of the others, reports how far it is, repeats puts that were
//! refused, and copies the calls that the dead have left behind. So a process that makes no call delays none of the
//! others.

use core::time::Duration;
use std::sync::Arc;

use farfield_core::toolkit::{Hold, Poller, Progress};
use farfield_fabric::{Endpoint, Instant};
use farfield_mu::Served;

use crate::data_type::DataType;
use crate::feed::READS_NO_MORE;
use crate::repair::{Repair, Repaired};
use crate::replicated::Shared;

pub(crate) struct Chores<T: DataType> {
    shared: Arc<Shared<T>>,
    repair: Repair,
    /// By synchronisation group: the last requests that were served.
    served: Vec<Served>,
    /// How long the next pause lasts, if nothing gets on meanwhile.
    pause: Duration,
    again_at: Option<Instant>,
    /// Until the object is closed here.
    open: Option<Hold>,
}

/// The pauses between attempts at something that is refused, or waits for another node.
const PAUSES: [Duration; 2] = [Duration::from_micros(100), Duration::from_millis(100)];

impl<T: DataType> Chores<T> {
    pub(crate) fn new(shared: Arc<Shared<T>>, repair: Repair, open: Hold) -> Chores<T> {
        let served = vec![Served::default(); shared.process.orders.len()];
        Chores { shared, repair, served, pause: PAUSES[0], again_at: None, open: Some(open) }
    }

    /// Something is to be done again, also if nothing happens. Another node may let it wait for long.
    fn again(&mut self, endpoint: &Endpoint) -> Progress {
        let now = endpoint.now();
        if self.again_at.is_none_or(|at| at <= now) {
            self.again_at = Some(now + self.pause);
            self.pause = PAUSES[1].min(2 * self.pause);
        }
        self.again_at.map_or(Progress::Idle, Progress::Until)
    }

    /// The others wait for this replica no more. False if one could not be told.
    fn leave(&mut self, endpoint: &Endpoint) -> bool {
        let mut local = self.shared.local.lock();
        // The calls of this process reach the others first.
        if !matches!(local.send_rest(endpoint), Ok(true) | Err(_)) {
            return false;
        }
        self.repair.close();
        let words = local.applied.bytes() / 8;
        (0..words).for_each(|word| local.applied.word(word * 8).store(READS_NO_MORE));
        local.incoming.iter_mut().flatten().all(|incoming| incoming.quit(endpoint))
    }
}

impl<T: DataType> Poller for Chores<T> {
    fn poll(&mut self, endpoint: &Endpoint) -> Progress {
        if self.shared.process.is_closed.load() != 0 {
            // One that was evicted tells no other node.
            if !self.leave(endpoint) && !endpoint.fabric().is_fenced() {
                return self.again(endpoint);
            }
            self.open = None;
            return Progress::Done;
        }
        let (mut some, mut retry) = (false, false);
        let mut local = self.shared.local.lock();
        // A replica that cannot go on says so to its callers. It still sends all that it owes.
        match local.drain() {
            Ok(drained) => {
                some |= drained.some;
                retry |= drained.waits;
                for incoming in local.incoming.iter_mut().flatten() {
                    retry |= !incoming.acknowledge(endpoint);
                }
            }
            // It applies nothing more, and the others need not wait for it.
            Err(_) => {
                self.shared.process.has_changed(endpoint);
                for incoming in local.incoming.iter_mut().flatten() {
                    retry |= !incoming.quit(endpoint);
                }
            }
        }
        if local.owes() {
            let is_sent = matches!(local.send_rest(endpoint), Ok(true));
            retry |= !is_sent;
            some |= is_sent;
        }
        drop(local);
        // It waits for others, and the threads with calls do not wait for it.
        let applied = |process: usize| {
            let local = self.shared.local.lock();
            local.incoming[process].as_ref().map(|incoming| (incoming.position(), incoming.entries()))
        };
        match self.repair.step(endpoint, applied) {
            Ok(Repaired::Nothing(settled)) if settled != self.shared.process.settled.load() => {
                self.shared.process.settled.store(settled);
                // A thread may wait for `is_settled`.
                some = true;
            }
            Ok(Repaired::Nothing(_)) => {}
            Ok(Repaired::Some) => some = true,
            // The members decide about a replica that does not answer.
            Ok(Repaired::Waits) | Err(_) => retry = true,
        }
        if !self.shared.process.orders.is_empty() {
            let served = self.shared.serve(endpoint, &mut self.served);
            some |= served.has_worked;
            retry |= served.is_retried;
        }
        if some {
            self.shared.process.has_changed(endpoint);
            (self.pause, self.again_at) = (PAUSES[0], None);
            return Progress::Busy;
        }
        if retry && !endpoint.fabric().is_fenced() { self.again(endpoint) } else { Progress::Idle }
    }

    /// Calls that are done here reach the others.
    fn must_finish_before_leave(&self) -> bool {
        self.shared.local.lock().owes()
    }
}
