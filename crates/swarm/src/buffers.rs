//! The buffers of a writer, and when they may be used again: see `sections`.

use core::future::{Future, poll_fn};
use core::pin::pin;
use std::time::Duration;

use farfield_core::Result;
use farfield_core::toolkit::RefusedPause;
use farfield_fabric::Instant;

use crate::census::AllAsked;
use crate::chores::Chore;
use crate::client::{Core, Place};
use crate::patience;
use crate::records::UnusedRecord;
use crate::registers::Ended;
use crate::version::{Location, Version};

/// How long a client waits until it sends a request once more, at first. Then it waits twice as long: each request is
/// answered when the calls have ended that were under way when it came.
pub(crate) const ASK_AGAIN: Duration = Duration::from_millis(10);

/// The last write of a register by a writer, with its instance.
#[derive(Clone, Copy, Default)]
pub(crate) struct Held(Option<(u64, Version)>);

impl Held {
    pub(crate) fn of(at: Location, version: Version) -> Held {
        Held(Some((at.instance, version)))
    }

    pub(crate) fn is_of(&self, version: Version) -> bool {
        self.0.is_some_and(|(_, held)| held.write() == version.write())
    }

    /// Unless this is true for it, there is none any more.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(u64, Version) -> bool) {
        self.0 = self.0.filter(|(instance, version)| is_kept(*instance, *version));
    }
}

/// What can be used again when no read uses it any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Used {
    Buffer(u16),
    Record(u16),
    Register(Ended),
}

/// The buffers of a writer.
pub(crate) struct Pool {
    pub(crate) free: Vec<u16>,
    /// The buffers that were replaced since the last request.
    pub(crate) retired: Vec<Used>,
    /// The buffers that were replaced before the last request.
    pub(crate) asked_for: Vec<Used>,
    /// The number of the last request, and the nodes that have to answer, once they are known.
    pub(crate) request: u64,
    pub(crate) asked: Option<AllAsked>,
    /// How often those were asked again that have not answered.
    pub(crate) asked_again: u32,
}

/// Buffers, and when they may be used again.
impl<'e> Core<'e> {
    /// A buffer that no read and no register needs.
    pub(crate) async fn take_unused_buffer<'c>(&'c self) -> Result<UnusedBuffer<'c, 'e>> {
        let number = self.take("a free buffer", false, |place| place.pool.free.pop()).await?;
        Ok(UnusedBuffer { core: self, number })
    }

    /// Takes something, or waits until there is some again.
    async fn take<T>(&self, what: &str, is_record: bool, pop: impl Fn(&mut Place) -> Option<T>) -> Result<T> {
        let take = || self.with_place(&pop);
        self.end_late(None);
        self.recycle(false);
        if let Some(taken) = take() {
            return Ok(taken);
        }
        let (start, mut pause) = (self.endpoint.now(), RefusedPause::default());
        let deadline = start + self.endpoint.timeout();
        loop {
            self.recycle(true);
            if let Some(taken) = take() {
                return Ok(taken);
            }
            let is_asked = self.with_place(|place| !place.pool.asked_for.is_empty());
            if is_asked {
                self.wait_for_answers(deadline, &mut pause).await?;
            } else if !self.finish_any().await? && !self.settle_one().await? {
                self.check_majority()?;
                if is_record {
                    self.give_back_all_records().await;
                }
                // All are in use, by this client's calls that are under way. One of them may be dropped, and memory
                // nodes that did not answer may do so now, or are evicted.
                let until = deadline.min(self.endpoint.now() + patience::ATTEMPT);
                let comes_back = || {
                    self.with_place(|place| !place.pool.retired.is_empty() || !place.pool.asked_for.is_empty())
                        || self.unfinished_register().is_some()
                };
                let goes_on = || match take() {
                    None => comes_back().then_some(None),
                    taken => Some(taken),
                };
                if let Ok(Some(taken)) = self.endpoint.wait_until(until, goes_on).await {
                    return Ok(taken);
                }
            }
            if self.endpoint.now() >= deadline {
                let (why, missing) = if is_asked {
                    ("reads that may use the old ones", self.unanswered())
                } else {
                    ("this client's other calls", Vec::new())
                };
                return Err(self.timed_out(format!("{what}: {why}"), start, missing));
            }
        }
    }

    /// Waits until all nodes with clients have answered the last request, or it is time to look again.
    pub(crate) async fn wait_for_answers(&self, deadline: Instant, pause: &mut RefusedPause) -> Result<()> {
        // The tables of a majority name the nodes that have to answer.
        self.check_majority()?;
        if self.with_place(|place| place.pool.asked.iter().flatten().any(|asked| asked.is_refused())) {
            pause.wait(self.endpoint, deadline).await;
            return Ok(());
        }
        let asked_again = self.with_place(|place| place.pool.asked_again);
        let until = deadline.min(self.endpoint.now() + ASK_AGAIN.saturating_mul(1 << asked_again.min(10)));
        let goes_on = || (self.is_answered() || self.check_majority().is_err()).then_some(());
        let mut wait = pin!(self.endpoint.wait_until(until, goes_on));
        // Two clients may wait for each other's late sections.
        let wait = poll_fn(|cx| {
            self.end_late(Some(cx));
            wait.as_mut().poll(cx)
        });
        if wait.await.is_err() {
            self.ask_again();
        }
        Ok(())
    }

    /// A record to which no word points.
    pub(crate) async fn take_record<'c>(&'c self) -> Result<UnusedRecord<'c, 'e>> {
        let pop = |place: &mut Place| place.store.as_mut().and_then(|store| store.records.pop());
        if self.with_store(|store| store.records.is_empty()) {
            self.give_back_all_records().await;
        }
        let number = self.take("a free record of the index", true, pop).await?;
        Ok(UnusedRecord::new(self, number))
    }

    /// A write has ended: of this and the client's last write of the register, the buffer of the earlier one is not
    /// needed any more.
    pub(crate) fn hold(&self, at: Location, version: Version) {
        self.with_place(|place| {
            let held = &mut place.held[at.register].0;
            let order = |(instance, version): (u64, Version)| (instance, version.timestamp());
            let new = (at.instance, version);
            let earlier = match *held {
                Some(last) if order(last) > order(new) => Some(new),
                last => {
                    *held = Some(new);
                    last
                }
            };
            if let Some((_, earlier)) = earlier {
                place.pool.retired.push(Used::Buffer(earlier.buffer() as u16));
            }
        });
    }

    /// A buffer that no register needs any more.
    pub(crate) fn retire_buffer(&self, buffer: usize) {
        self.retire([Used::Buffer(buffer as u16)]);
    }

    /// These can be used again when no read uses them any more.
    pub(crate) fn retire(&self, used: impl IntoIterator<Item = Used>) {
        self.with_place(|place| place.pool.retired.extend(used));
    }

    /// Takes the answers to the last request, and sends the next one if half of the spare buffers are used up, or
    /// something is needed now.
    pub(crate) fn recycle(&self, is_needed: bool) {
        self.with_place(|place| {
            let pool = &mut place.pool;
            if pool.asked_for.is_empty() {
                let spare = self.shared.options.spare_buffers;
                if pool.retired.is_empty() || pool.retired.len() < spare / 2 && !is_needed {
                    return;
                }
                core::mem::swap(&mut pool.retired, &mut pool.asked_for);
                (pool.asked, pool.asked_again) = (None, 0);
                *self.count.borrow_mut() = None;
            }
            if pool.asked.is_none() {
                pool.asked = self.count_clients();
            }
            let Some(asked) = &mut pool.asked else { return };
            let mut is_answered = true;
            for asked in asked {
                is_answered &= self.has_answered(asked, place.writer, &mut pool.request);
            }
            if !is_answered {
                return;
            }
            for used in pool.asked_for.drain(..) {
                match (used, &mut place.store) {
                    (Used::Buffer(buffer), _) => pool.free.push(buffer),
                    (Used::Record(record), Some(store)) => store.records.push(record),
                    (Used::Register(ended), Some(store)) if ended.next.is_some() => store.ended.push(ended),
                    (Used::Register(ended), Some(store)) => store.chores.push_back(Chore::End(ended)),
                    (_, None) => unreachable!("an array has only buffers"),
                }
            }
        });
    }
}

/// A buffer into which nothing was written.
pub(crate) struct UnusedBuffer<'c, 'e> {
    core: &'c Core<'e>,
    pub(crate) number: u16,
}

impl UnusedBuffer<'_, '_> {
    /// From now on a metadata word may point to it.
    pub(crate) fn keep(self) {
        core::mem::forget(self);
    }
}

impl Drop for UnusedBuffer<'_, '_> {
    fn drop(&mut self) {
        self.core.with_place(|place| place.pool.free.push(self.number));
    }
}
