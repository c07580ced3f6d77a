//! Waiting, and the small executor that interleaves many operations of one thread.

use core::future::{Future, poll_fn};
use core::pin::{Pin, pin};
use core::task::{Context, Poll};
use std::time::Duration;

use super::elsewhere::{self, Awaits, Blocks};
use super::{Endpoint, Inner, WordWait};
use crate::cell::memory_fence;
use crate::error::{ErrorKind, Result};
use crate::fabric::{Waiting, Watches};
use crate::local::Instant;
use crate::ptr::RemotePtr;

/// Looks of [`Endpoint::spin_until`]: a microsecond or two.
const SPINS: u32 = 64;

/// For so many further waits the advice whether to spin is kept: to ask for it costs dozens of looks.
const SPIN_ADVICE_WAITS: u32 = 15;

impl Endpoint {
    /// The fabric's clock.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(ep: &Endpoint, at: RemotePtr<u64>) -> Result<()> {
    /// let start = ep.now();
    /// ep.get(at).wait()?;
    /// println!("{:?}", ep.now() - start);
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn now(&self) -> Instant {
        self.fabric.now()
    }

    /// How long blocking calls wait where no deadline is given.
    ///
    /// ```
    /// # fn f(ep: &farfield_fabric::Endpoint) {
    /// let patient = ep.now() + 2 * ep.timeout(); // a deadline
    /// # }
    /// ```
    pub fn timeout(&self) -> Duration {
        self.timeout.get()
    }

    /// Sets how long blocking calls wait where no deadline is given.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, word: &Word, at: RemotePtr<u64>) -> Result<()> {
    /// ep.set_timeout(std::time::Duration::from_millis(200));
    /// assert!(ep.deadline() <= ep.now() + ep.timeout());
    /// # Ok(()) }
    /// ```
    pub fn set_timeout(&self, timeout: Duration) {
        self.timeout.set(timeout);
    }

    /// The moment at which a wait that begins now gives up.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, word: &Word) -> Result<()> {
    /// ep.wait_until(ep.deadline(), || (word.load() != 0).then_some(())).await?;
    /// # Ok(()) }
    /// ```
    pub fn deadline(&self) -> Instant {
        self.now() + self.timeout.get()
    }

    /// Waits until `condition` gives a value, or the deadline passes. This is the one way to wait for memory: it
    /// spins, yields and sleeps as fits the machine, and lets the endpoint's other operations run meanwhile.
    ///
    /// The condition is evaluated often and must only read ([`Word`](crate::Word)s, say). Let it check the peers that
    /// it depends on, too ([`Endpoint::check_alive`]), so that their death ends the wait. In the evaluation that
    /// returns the value it may do anything.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, word: &Word, at: RemotePtr<u64>) -> Result<()> {
    /// let deadline = ep.now() + std::time::Duration::from_secs(1);
    /// let flag = ep.wait_until(deadline, || Some(word.load()).filter(|flag| *flag != 0)).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`].
    pub async fn wait_until<T>(&self, deadline: Instant, condition: impl FnMut() -> Option<T>) -> Result<T> {
        self.wait_until_or(deadline, condition, || None).await
    }

    /// Waits until a moment, whatever happens meanwhile: the pause between two attempts.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint) -> () {
    /// ep.sleep_until(ep.now() + std::time::Duration::from_millis(1)).await;
    /// # }
    /// ```
    pub async fn sleep_until(&self, moment: Instant) {
        let _ = self.wait_until(moment, || None::<()>).await;
    }

    /// Waits for a future, but not beyond the deadline. None if it has not ended by then; it is dropped.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, copy: RemotePtr<u64>) -> Result<()> {
    /// match ep.within(ep.deadline(), ep.get(copy)).await {
    ///     Some(word) => println!("{}", word?),
    ///     None => println!("{} does not answer", copy.node()), // the get goes on without this call
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn within<F: Future>(&self, deadline: Instant, future: F) -> Option<F::Output> {
        let (mut future, mut late) = (pin!(future), pin!(self.sleep_until(deadline)));
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => late.as_mut().poll(cx).map(|()| None),
        })
        .await
    }

    /// Whether threads have cores of their own, as it was a few waits ago at most.
    #[inline]
    fn is_spin_worthwhile(&self) -> bool {
        let (advice, waits) = self.spin_advice.get();
        if waits == 0 {
            return self.ask_for_spin_advice();
        }
        self.spin_advice.set((advice, waits - 1));
        advice
    }

    #[cold]
    #[inline(never)]
    fn ask_for_spin_advice(&self) -> bool {
        let advice = self.fabric.is_spin_worthwhile();
        self.spin_advice.set((advice, SPIN_ADVICE_WAITS));
        advice
    }

    /// Looks for a moment, about as long as it takes another core to answer, before a wait begins. None if the
    /// condition gave no value by then, or at once where a look is not worth its while: over RDMA, and where threads
    /// share cores, which is asked once in several waits.
    ///
    /// ```
    /// # use farfield_fabric::{Endpoint, Result, Word};
    /// # async fn f(ep: &Endpoint, answer: &Word) -> Result<u64> {
    /// let answered = || Some(answer.load()).filter(|value| *value != 0);
    /// match ep.spin_until(answered) {
    ///     Some(answer) => Ok(answer), // no wait was begun
    ///     None => ep.wait_until(ep.deadline(), answered).await,
    /// }
    /// # }
    /// ```
    #[inline]
    pub fn spin_until<T>(&self, mut condition: impl FnMut() -> Option<T>) -> Option<T> {
        if !matches!(self.inner, Inner::Shm(..)) || !self.is_spin_worthwhile() {
            return None;
        }
        for _ in 0..SPINS {
            if let Some(value) = condition() {
                return Some(value);
            }
            core::hint::spin_loop();
        }
        None
    }

    /// [`Endpoint::wait_until`] with a further condition that costs more to look at and is rarely true, such as the
    /// death of a peer. It is evaluated now and then while the thread spins, and later at every look, but not
    /// at the first one on shared memory if more follow at once.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, peer: NodeId, answer: &Word) -> Result<u64> {
    /// let answered = || Some(answer.load()).filter(|value| *value != 0).map(Ok);
    /// let gone = || ep.check_alive(peer).err().map(Err); // or it would wait for an answer that never comes
    /// ep.wait_until_or(ep.deadline(), answered, gone).await?
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`].
    pub async fn wait_until_or<T>(
        &self,
        deadline: Instant,
        mut condition: impl FnMut() -> Option<T>,
        mut rare: impl FnMut() -> Option<T>,
    ) -> Result<T> {
        let mut wait = WordWait::new(Some(deadline));
        poll_fn(|cx| wait.poll(self, cx, &mut condition, &mut rare)).await
    }

    /// Waits until a remote word differs from `seen`, by reading it again and again; the value.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, word: &Word, at: RemotePtr<u64>) -> Result<()> {
    /// let changed = ep.wait_remote(at, 0, ep.deadline()).await?; // until it is no longer 0
    /// assert_ne!(changed, 0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`], or an error of the gets.
    pub async fn wait_remote(&self, word: RemotePtr<u64>, seen: u64, deadline: Instant) -> Result<u64> {
        let mut polls = 0u32;
        let start = self.now();
        loop {
            let value = self.get(word).await?;
            if value != seen {
                self.progress.set(self.progress.get() + 1);
                return Ok(value);
            }
            polls = polls.wrapping_add(1);
            if polls.is_multiple_of(16) || self.asleep.get() {
                let now = self.now();
                if now >= deadline {
                    return Err(ErrorKind::Timeout { waited: now - start }.into());
                }
            }
            self.wait_for_change_at(Watches::of(word), deadline).await;
        }
    }

    /// Lets the endpoint's other operations run, and then continues in any case.
    ///
    /// To wait for something use [`Endpoint::wait_until`] or [`Endpoint::wait_for_change`]. In a simulation time stands
    /// still while a thread can run, so a loop of pauses never ends.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, values: &[u64]) {
    /// let mut sum = 0;
    /// for part in values.chunks(1000) {
    ///     sum += part.iter().sum::<u64>();
    ///     ep.pause().await; // the operations of other tasks continue
    /// }
    /// # }
    /// ```
    pub async fn pause(&self) {
        let mut paused = false;
        poll_fn(|cx| {
            if core::mem::replace(&mut paused, true) {
                return Poll::Ready(());
            }
            self.fabric.stay_awake();
            self.pends_for_once(cx);
            Poll::Pending
        })
        .await;
    }

    /// Waits until it is worth reading remote memory again, for conditions that need operations, which
    /// [`Endpoint::wait_until`] cannot post. It ends when something that this thread has read since its last wait may
    /// have changed, or at `until`. It may also end without a reason.
    ///
    /// ```
    /// # use farfield_fabric::{Endpoint, RemotePtr, Result};
    /// # async fn f(ep: &Endpoint, asked: RemotePtr<u64>, answered: RemotePtr<u64>) -> Result<()> {
    /// let deadline = ep.deadline();
    /// while ep.get(answered).await? != ep.get(asked).await? && ep.now() < deadline {
    ///     ep.wait_for_change(deadline).await;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn wait_for_change(&self, until: Instant) {
        self.wait_for_change_at(Watches::Several, until).await;
    }

    /// [`Endpoint::wait_for_change`] where all words that were read since the last wait are in the memory of this one:
    /// of its node, and of its group. On shared memory a write there ends the wait.
    ///
    /// ```
    /// # use farfield_fabric::{Endpoint, RemotePtr, Result};
    /// # async fn f(ep: &Endpoint, state: RemotePtr<u64>) -> Result<()> {
    /// let deadline = ep.deadline();
    /// while ep.get(state).await? != 1 && ep.now() < deadline {
    ///     ep.wait_for_change_on(state, deadline).await;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn wait_for_change_on(&self, word: RemotePtr<u64>, until: Instant) {
        self.wait_for_change_at(Watches::of(word), until).await;
    }

    async fn wait_for_change_at(&self, watched: Watches, until: Instant) {
        let before = self.changes.get();
        poll_fn(|cx| {
            if self.changes.get() != before {
                return Poll::Ready(());
            }
            if self.pends(cx, Awaits::Look, until) {
                let is_over = self.changes.get() != before || self.now() >= until;
                return if is_over { Poll::Ready(()) } else { Poll::Pending };
            }
            self.watches.set(self.watches.get().and(watched));
            self.next_deadline.set(self.next_deadline.get().min(until));
            Poll::Pending
        })
        .await;
    }

    /// Runs a future to its end on this thread.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, word: &Word, at: RemotePtr<u64>) -> Result<()> {
    /// let value = ep.block_on(async {
    ///     ep.put_value(at, 1).await?;
    ///     ep.get(at).await
    /// })?;
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let mut context = Context::from_waker(&elsewhere::OWN);
        // On shared memory nested waits lose nothing: their steps end by themselves.
        let _wait = (!matches!(self.inner, Inner::Shm(..))).then(|| WaitScope::begin(self));
        let output = match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => output,
            Poll::Pending => self.block_on_slow(future),
        };
        self.publish_depth();
        output
    }

    #[inline(never)]
    fn block_on_slow<F: Future>(&self, mut future: Pin<&mut F>) -> F::Output {
        let mut context = Context::from_waker(&elsewhere::OWN);
        let mut blocked = Blocked::begin(self);
        loop {
            blocked.idle();
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                blocked.end();
                return output;
            }
        }
    }

    pub(super) fn idle(&self, waiting: &mut Waiting) {
        self.ring();
        waiting.watches = self.watches.replace(Watches::Nothing);
        waiting.deadline = self.next_deadline.replace(Instant::NEVER);
        self.fabric.idle(waiting);
        if !core::mem::take(&mut waiting.only_completions) {
            self.changes.set(self.changes.get() + 1);
        }
        self.asleep.set(waiting.is_asleep());
        self.spins.set(waiting.spins());
    }

    pub(super) fn idle_end(&self, waiting: &mut Waiting) {
        self.fabric.idle_end(waiting);
        self.asleep.set(false);
        self.spins.set(false);
    }

    /// Runs the futures of an iterator, at most `window` of them at a time, interleaved on this thread; `done` gets
    /// their outputs as they end. This is the papers' window of outstanding operations.
    ///
    /// ```
    /// # fn f(ep: &farfield_fabric::Endpoint, words: &[farfield_fabric::RemotePtr<u64>]) {
    /// let mut sum = 0;
    /// ep.run_window(8, words.iter().map(|w| ep.get(*w)), |v| sum += v.unwrap_or(0));
    /// # }
    /// ```
    pub fn run_window<F: Future>(
        &self,
        window: usize,
        futures: impl IntoIterator<Item = F>,
        done: impl FnMut(F::Output),
    ) {
        self.block_on(self.each_in_window(window, futures, done));
    }

    /// [`Endpoint::run_window`] as a future.
    ///
    /// What the tasks post may be sent together, when each has had its turn. So a task that has something to compute
    /// does it in short parts ([`Endpoint::pause`]).
    ///
    /// ```
    /// # async fn f(ep: &farfield_fabric::Endpoint, words: &[farfield_fabric::RemotePtr<u64>]) {
    /// let mut failed = 0;
    /// ep.each_in_window(8, words.iter().map(|w| ep.put_value(*w, 0)), |put| failed += u64::from(put.is_err())).await;
    /// # }
    /// ```
    pub async fn each_in_window<F: Future>(
        &self,
        window: usize,
        futures: impl IntoIterator<Item = F>,
        mut done: impl FnMut(F::Output),
    ) {
        let mut futures = futures.into_iter().fuse();
        let start = self.depth.get();
        // Operations that are tasks themselves are posted as they are taken.
        let round = self.round();
        // A task and its depth. The first two need no memory of their own: a window of two allocates nothing.
        let (mut first, mut second) = (pin!(futures.next()), pin!(if window > 1 { futures.next() } else { None }));
        let (mut first_depth, mut second_depth) = (start, start);
        let further = futures.by_ref().take(window.saturating_sub(2));
        let mut further: Vec<(Pin<Box<Option<F>>>, u64)> = further.map(|it| (Box::pin(Some(it)), start)).collect();
        drop(round);
        let mut deepest = start;
        poll_fn(|cx| {
            let (outside, _round) = (self.depth.get(), self.round());
            let mut is_open = false;
            let mut poll = |mut task: Pin<&mut Option<F>>, depth: &mut u64| {
                // A task that ends is replaced at once by the next future, in the same memory.
                while let Some(future) = task.as_mut().as_pin_mut() {
                    self.depth.set(*depth);
                    let poll = future.poll(cx);
                    *depth = self.depth.get();
                    let Poll::Ready(output) = poll else {
                        is_open = true;
                        return;
                    };
                    deepest = deepest.max(*depth);
                    self.depth.set(outside);
                    self.progress.set(self.progress.get() + 1);
                    done(output);
                    *depth = start;
                    task.set(futures.next());
                }
            };
            poll(first.as_mut(), &mut first_depth);
            poll(second.as_mut(), &mut second_depth);
            further.iter_mut().for_each(|(task, depth)| poll(task.as_mut(), depth));
            self.depth.set(outside);
            if is_open { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
        self.depth.set(self.depth.get().max(deepest));
        self.publish_depth();
    }

    /// Wakes this node's threads that wait for a word which this thread has just stored to.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(ep: &Endpoint, word: &Word) {
    /// word.store(1);
    /// ep.wake_local(); // a thread of this node may sleep until it is 1
    /// # }
    /// ```
    #[inline]
    pub fn wake_local(&self) {
        match &self.inner {
            Inner::Shm(lane, _) => lane.wake_local(),
            Inner::Dyn(_) => self.fabric.wake_local(),
        }
    }

    /// A [`memory_fence`], and then [`Endpoint::wake_local`]. On shared memory, where waking begins with such a fence,
    /// it is one for both.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(ep: &Endpoint, mine: &Word, theirs: &Word) -> bool {
    /// mine.store(1);
    /// ep.fence_and_wake_local(); // a thread of this node may sleep until it is 1
    /// theirs.load() == 0 // not read before the store is visible
    /// # }
    /// ```
    #[inline]
    pub fn fence_and_wake_local(&self) {
        match &self.inner {
            Inner::Shm(lane, _) => lane.wake_local(),
            Inner::Dyn(_) => {
                memory_fence();
                self.fabric.wake_local();
            }
        }
    }
}

/// A thread that waits for its future, between two polls.
struct Blocked<'e> {
    endpoint: &'e Endpoint,
    blocks: Blocks<'e>,
    waiting: Waiting,
    seen: u64,
    /// What a wait around this one sleeps for.
    outer: (bool, Watches, Instant),
}

/// None of it is compiled again for each future that is waited for.
impl<'e> Blocked<'e> {
    #[inline(never)]
    fn begin(endpoint: &'e Endpoint) -> Blocked<'e> {
        // It may be nested in another wait, which continues as if this had not been, or looks once too often.
        let outer = if endpoint.elsewhere.is_blocking() {
            (endpoint.asleep.get(), endpoint.watches.get(), endpoint.next_deadline.get())
        } else {
            (false, Watches::Nothing, Instant::NEVER)
        };
        let blocks = Blocks::begin(endpoint);
        Blocked { endpoint, blocks, waiting: Waiting::default(), seen: endpoint.progress.get(), outer }
    }

    #[inline(never)]
    fn end(mut self) {
        let Blocked { endpoint, outer, .. } = self;
        endpoint.idle_end(&mut self.waiting);
        endpoint.asleep.set(outer.0);
        endpoint.watches.set(outer.1);
        endpoint.next_deadline.set(outer.2);
    }

    #[inline(never)]
    fn idle(&mut self) {
        let endpoint = self.endpoint;
        endpoint.poll_lane();
        if core::mem::replace(&mut self.seen, endpoint.progress.get()) != self.seen {
            self.waiting.reset();
        }
        endpoint.idle(&mut self.waiting);
        self.blocks.wake_within();
    }
}

/// A wait of the endpoint's thread. It may be nested in another, if a polled operation blocks. The conditions of the
/// outer wait are kept meanwhile, since its tasks are not polled again before it continues.
pub(super) struct WaitScope<'e> {
    endpoint: &'e Endpoint,
    outer: (Watches, Instant),
}

impl<'e> WaitScope<'e> {
    pub(super) fn begin(endpoint: &'e Endpoint) -> WaitScope<'e> {
        endpoint.fabric.wait_begins();
        let outer = (endpoint.watches.replace(Watches::Nothing), endpoint.next_deadline.replace(Instant::NEVER));
        WaitScope { endpoint, outer }
    }
}

impl Drop for WaitScope<'_> {
    fn drop(&mut self) {
        let (watches, deadline) = self.outer;
        self.endpoint.watches.set(watches);
        self.endpoint.next_deadline.set(deadline);
        self.endpoint.fabric.wait_ends();
    }
}
