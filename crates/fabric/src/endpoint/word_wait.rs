//! A wait for memory, look by look.

use core::task::{Context, Poll};

use super::{Awaits, Endpoint};
use crate::error::{ErrorKind, Result};
use crate::fabric::Watches;
use crate::local::Instant;

/// The state of a wait for memory, for a future that is more than this wait: [`Endpoint::wait_until_or`] without a
/// future of its own.
///
/// ```
/// # use farfield_fabric::*;
/// # use std::{future::poll_fn, task::Poll};
/// async fn changes(ep: &Endpoint, word: &Word, from: u64) -> Result<u64> {
///     let mut wait = WordWait::new(None);
///     poll_fn(|cx| wait.poll(ep, cx, || Some(word.load()).filter(|now| *now != from), || None)).await
/// }
/// ```
#[derive(Debug)]
pub struct WordWait {
    deadline: Option<Instant>,
    started: Option<Instant>,
    polls: u32,
}

impl WordWait {
    /// A wait until this deadline, or as long as the endpoint's timeout. The clock is first read when the first look
    /// has not ended the wait.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(ep: &Endpoint) {
    /// let (patient, brief) = (WordWait::new(None), WordWait::new(Some(ep.now() + ep.timeout() / 10)));
    /// # }
    /// ```
    #[inline]
    pub const fn new(deadline: Option<Instant>) -> WordWait {
        WordWait { deadline, started: None, polls: 0 }
    }

    /// Looks once: the arguments are those of [`Endpoint::wait_until_or`].
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # use std::task::{Context, Poll};
    /// # fn f(ep: &Endpoint, cx: &Context<'_>, wait: &mut WordWait, ready: &Word, peer: NodeId) -> Poll<Result<()>> {
    /// let is_ready = || (ready.load() != 0).then_some(Ok(()));
    /// wait.poll(ep, cx, is_ready, || ep.check_alive(peer).err().map(Err)).map(|waited| waited?)
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`].
    #[inline]
    pub fn poll<T>(
        &mut self,
        endpoint: &Endpoint,
        cx: &Context<'_>,
        mut condition: impl FnMut() -> Option<T>,
        mut rare: impl FnMut() -> Option<T>,
    ) -> Poll<Result<T>> {
        let progressed = |value: T| {
            endpoint.progress.set(endpoint.progress.get() + 1);
            value
        };
        if let Some(value) = condition().or_else(|| if self.is_rare(endpoint) { rare() } else { None }) {
            return Poll::Ready(Ok(progressed(value)));
        }
        match self.goes_on(endpoint, cx) {
            Ok(false) => Poll::Pending,
            Ok(true) => match condition().or_else(rare) {
                Some(value) => Poll::Ready(Ok(progressed(value))),
                None => Poll::Pending,
            },
            // A thread that did not run for long may find the condition true by now.
            Err(timeout) => Poll::Ready(condition().or_else(rare).map(progressed).ok_or(timeout)),
        }
    }

    /// Whether it is time for a rare check: at each look but while the thread spins. On shared memory the first look
    /// has none, since the next ones follow at once, unless the thread is about to sleep for a wait beside this one.
    #[inline]
    fn is_rare(&self, endpoint: &Endpoint) -> bool {
        match self.polls {
            0 => !endpoint.ends_at_once() || endpoint.asleep.get(),
            polls => polls.is_multiple_of(16) || !endpoint.spins.get(),
        }
    }

    /// Whether the condition is to be looked at once more before the thread waits; or the time is over. Not generic,
    /// and so compiled once for all waits.
    #[inline(never)]
    fn goes_on(&mut self, endpoint: &Endpoint, cx: &Context<'_>) -> Result<bool> {
        // Reading the clock costs as much as dozens of polls. Before a sleep it is read in any case, so the timeout may
        // begin there.
        let begins = self.polls == 0 && self.deadline.is_none() && endpoint.ends_at_once();
        let is_time = (self.polls.is_multiple_of(64) && !begins) || endpoint.asleep.get();
        self.polls = self.polls.wrapping_add(1);
        if self.deadline != Some(Instant::NEVER) && is_time {
            let now = endpoint.now();
            let started = *self.started.get_or_insert(now);
            let deadline = *self.deadline.get_or_insert_with(|| now + endpoint.timeout());
            if now >= deadline {
                return Err(ErrorKind::Timeout { waited: now - started }.into());
            }
            endpoint.next_deadline.set(endpoint.next_deadline.get().min(deadline));
        }
        endpoint.watches.set(endpoint.watches.get().and(Watches::Here));
        Ok(endpoint.pends(cx, Awaits::Word, self.deadline.unwrap_or(Instant::NEVER)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EndpointOptions;
    use crate::endpoint::elsewhere::OWN;
    use crate::shm::{ShmFabric, ShmOptions};

    /// A peer may be dead when a wait begins. If the thread is about to sleep, no other look follows at once.
    #[test]
    fn a_first_look_before_a_sleep_includes_the_rare_condition() {
        let options = ShmOptions::new(format!("test-word-wait-{}", std::process::id()), 0, 1);
        let node = ShmFabric::join(&options).expect("a place in the session");
        let endpoint = Endpoint::open(node, EndpointOptions::default()).expect("an endpoint");
        let context = Context::from_waker(&OWN);
        for is_asleep in [false, true] {
            endpoint.asleep.set(is_asleep);
            let first = WordWait::new(None).poll(&endpoint, &context, || None, || Some("rare"));
            assert_eq!(first, if is_asleep { Poll::Ready(Ok("rare")) } else { Poll::Pending });
        }
    }
}
