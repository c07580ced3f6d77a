//! Futures that an executor other than [`Endpoint::block_on`] polls: how and when they are woken.

use core::cell::{Cell, RefCell};
use core::task::{Context, RawWaker, RawWakerVTable, Waker};
use std::time::Duration;

use super::{Endpoint, Inner};
use crate::local::Instant;

static OWN_VTABLE: RawWakerVTable = RawWakerVTable::new(|_| OWN_RAW, |_| {}, |_| {}, |_| {});
const OWN_RAW: RawWaker = RawWaker::new(core::ptr::null(), &OWN_VTABLE);

/// The waker of `block_on`. It does nothing, since `block_on` polls again and again. It marks polls by `block_on`.
// SAFETY: the functions of the table do nothing with the pointer, which is null, and are safe to call from any thread.
pub(super) static OWN: Waker = unsafe { Waker::from_raw(OWN_RAW) };

/// The event that a future waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Awaits {
    /// The end of an operation, which rings no bell.
    Completion,
    /// A word of the own node's memory.
    Word,
    /// A moment at which it is worth looking again at what rings no bell.
    Look,
}

/// The number of polls of an operation at once, whenever its executor polls it: about a round trip of hardware.
const POLLS: u32 = 100;
/// What rings no bell is looked for after an eighth of the time for which nothing has happened, within these bounds.
const LOOK: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(4));
/// The same for tasks that a bell wakes: local stores ring none, and deaths must be noticed.
const BELL_LOOK: (Duration, Duration) = (Duration::from_micros(500), Duration::from_millis(10));
const QUIET_SHARE: u32 = 8;
/// After so long without a waiting task, an endpoint begins anew.
const PAUSE: Duration = Duration::from_millis(40);

/// An endpoint's knowledge of futures that other executors poll.
pub(super) struct Elsewhere {
    /// How many `block_on` of this endpoint are under way, one within the other. They wake those of an executor within
    /// them.
    blocks: Cell<u32>,
    within: RefCell<Vec<Waker>>,
    /// Some may be registered with the node's alarm.
    is_registered: Cell<bool>,
    /// Of the node's alarm, as last seen.
    woken: Cell<u64>,
    /// Operations posted when one was last polled, and how often it was since.
    posted: Cell<u64>,
    polls: Cell<u32>,
    /// The endpoint's progress as last seen, since when it has stood still, and when it was last looked at.
    progress: Cell<u64>,
    quiet_since: Cell<Instant>,
    last: Cell<Instant>,
}

impl Elsewhere {
    pub(super) fn new() -> Elsewhere {
        Elsewhere {
            blocks: Cell::new(0),
            within: RefCell::default(),
            is_registered: Cell::new(false),
            woken: Cell::new(0),
            posted: Cell::new(0),
            polls: Cell::new(0),
            progress: Cell::new(0),
            quiet_since: Cell::default(),
            last: Cell::default(),
        }
    }

    /// Whether a wait of the endpoint's thread is under way.
    pub(super) fn is_blocking(&self) -> bool {
        self.blocks.get() > 0
    }
}

/// A `block_on` that has to wait.
pub(super) struct Blocks<'e>(&'e Endpoint);

impl<'e> Blocks<'e> {
    pub(super) fn begin(endpoint: &'e Endpoint) -> Blocks<'e> {
        let elsewhere = &endpoint.elsewhere;
        elsewhere.blocks.set(elsewhere.blocks.get() + 1);
        // The first poll may have registered futures of an executor within; from now on `wake_within` wakes them.
        if elsewhere.is_registered.take()
            && let Some(alarm) = endpoint.fabric.alarm()
        {
            alarm.wake_all();
        }
        Blocks(endpoint)
    }

    /// Wakes the futures of executors within, which look again with the next poll.
    pub(super) fn wake_within(&self) {
        let wakers = &self.0.elsewhere.within;
        if !wakers.borrow().is_empty() {
            let mut woken = wakers.take();
            woken.drain(..).for_each(Waker::wake);
            // Its room is used again.
            if wakers.borrow().is_empty() {
                wakers.replace(woken);
            }
        }
    }
}

impl Drop for Blocks<'_> {
    fn drop(&mut self) {
        let blocks = &self.0.elsewhere.blocks;
        blocks.set(blocks.get() - 1);
        // Nothing else wakes the tasks of other executors.
        self.wake_within();
    }
}

impl Endpoint {
    /// A future has looked and found nothing, and is about to be pending. If another executor polls it, it will be
    /// woken when it is worth looking again, at `until` at the latest; and this is true: it has to look once more
    /// before it is pending. If `block_on` polls it, that polls it again without more ado.
    #[inline]
    pub(crate) fn pends(&self, cx: &Context<'_>, awaits: Awaits, until: Instant) -> bool {
        !core::ptr::eq(cx.waker().vtable(), &raw const OWN_VTABLE) && self.pends_elsewhere(cx.waker(), awaits, until)
    }

    /// A future that continues with the next poll in any case.
    pub(super) fn pends_for_once(&self, cx: &Context<'_>) {
        if !core::ptr::eq(cx.waker().vtable(), &raw const OWN_VTABLE) {
            cx.waker().wake_by_ref();
        }
    }

    #[cold]
    fn pends_elsewhere(&self, waker: &Waker, awaits: Awaits, until: Instant) -> bool {
        let elsewhere = &self.elsewhere;
        // Where there is no alarm, nothing but a `block_on` polls: one that is about to begin its steps, at least.
        let alarm = self.fabric.alarm().filter(|_| elsewhere.blocks.get() == 0);
        let Some(alarm) = alarm else {
            let mut within = elsewhere.within.borrow_mut();
            if !within.last().is_some_and(|last| last.will_wake(waker)) {
                within.push(waker.clone());
            }
            return false;
        };
        // As in a step of `block_on`.
        self.ring();
        self.poll_lane();
        self.asleep.set(true);
        let woken = alarm.woken();
        if elsewhere.woken.replace(woken) != woken {
            self.changes.set(self.changes.get() + 1);
        }
        let has_backlog = matches!(&self.inner, Inner::Dyn(state) if state.lane.borrow().has_backlog());
        if awaits == Awaits::Completion && self.polls_on() {
            waker.wake_by_ref();
            return true;
        }
        let now = self.now();
        let is_rung = awaits == Awaits::Word && alarm.is_rung_by_puts() && !has_backlog;
        let (least, most) = if is_rung { BELL_LOOK } else { LOOK };
        let tick = (self.quiet(now) / QUIET_SHARE).clamp(least, most);
        // On a grid, so that those that wait for long are woken together.
        let at = Instant { ns: (now + tick).ns.next_multiple_of(least.as_nanos() as u64) };
        elsewhere.is_registered.set(true);
        if !alarm.wake_at(waker, at.min(until)) {
            waker.wake_by_ref();
        }
        true
    }

    /// Whether an operation was posted so short a while ago that it is polled again at once.
    fn polls_on(&self) -> bool {
        let elsewhere = &self.elsewhere;
        let posted = self.counters.read().posted();
        let begins = elsewhere.posted.replace(posted) != posted;
        let polls = if begins { 0 } else { elsewhere.polls.get() };
        elsewhere.polls.set(polls.saturating_add(1));
        polls < POLLS
    }

    /// The time since the last awaited event.
    fn quiet(&self, now: Instant) -> Duration {
        let elsewhere = &self.elsewhere;
        let progress = self.progress.get();
        let goes_on = elsewhere.progress.replace(progress) == progress;
        let rests = now - elsewhere.last.replace(now) > PAUSE;
        if !goes_on || rests {
            elsewhere.quiet_since.set(now);
        }
        now - elsewhere.quiet_since.get()
    }
}
