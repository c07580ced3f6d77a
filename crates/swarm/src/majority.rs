//! Operations on a majority of the memory nodes.

use core::future::{Future, poll_fn};
use core::pin::{Pin, pin};
use core::task::{Context, Poll};
use std::time::Duration;

use farfield_core::{Error, Result};
use farfield_fabric::{self as fabric, Endpoint, ErrorKind, Instant, NodeId};

use crate::client::Core;
use crate::errors::NoMajority;
use crate::patience;
use crate::replicas::{Order, PerReplica, Replicas};
use crate::view::Replica;

/// The answers of the first memory nodes.
pub(crate) struct Gathered<T, F> {
    pub(crate) answers: PerReplica<T>,
    /// The operations that have not ended. They continue when this is dropped.
    pub(crate) pending: PerReplica<F>,
}

/// A wait for the memory nodes that were asked.
struct Wait {
    since: Instant,
    /// When others are asked, too.
    until: Instant,
    is_measured: bool,
}

/// Why a look at the operations has ended.
enum Ended {
    Enough,
    Impossible,
    Impatient,
}

impl Core<'_> {
    /// The memory nodes, in the order in which they are asked about a register: each register begins with another one,
    /// and those that were slow come last.
    pub(crate) fn order(&self, register: usize) -> Order {
        let count = self.shared.memory_nodes;
        // Once in a while they get another chance.
        let asked = self.common.asked.get().wrapping_add(1);
        self.common.asked.set(asked);
        if asked.is_multiple_of(SLOW_FOR) {
            self.common.slow.set(Replicas::default());
        }
        let (slow, out) = (self.common.slow.get(), self.out.get());
        let first = register % count;
        let mut order: Order = (first..count).chain(0..first).collect();
        if out != Replicas::default() {
            order = order.iter().filter(|replica| !out.contains(*replica)).collect();
        }
        if slow != Replicas::default() {
            order.put_last(|replica| slow.contains(replica));
        }
        order
    }

    /// Posts an operation to the first `needed` memory nodes of the order, and waits until so many have ended well. The
    /// others are asked when one of them fails, or when the client's patience ends.
    pub(crate) fn gather<T, F>(
        &self,
        order: Order,
        needed: usize,
        post: impl FnMut(usize) -> fabric::Result<F>,
    ) -> impl Future<Output = Result<Gathered<T, F>>>
    where
        F: Future<Output = fabric::Result<T>> + Unpin,
    {
        self.gather_within(self.shared.options.patience, false, order, needed, post)
    }

    /// How long a client waits before it asks others: what the memory nodes have taken lately, and `at_least` so long.
    pub(crate) fn patience(&self, at_least: Duration) -> Duration {
        self.common.answer_times.patience().min(self.endpoint.timeout() / 8).max(at_least)
    }

    /// The error of a wait that has begun then.
    #[cold]
    pub(crate) fn timed_out(&self, what: impl Into<String>, since: Instant, missing: Vec<NodeId>) -> Error {
        let timeout =
            farfield_core::ErrorKind::Timeout { what: what.into(), waited: self.endpoint.now() - since, missing };
        Error::from(timeout).of(self.shared.object.path())
    }

    /// Waits until a moment.
    pub(crate) async fn pause(&self, until: Instant) {
        while self.endpoint.now() < until {
            self.endpoint.wait_for_change(until).await;
        }
    }

    /// [`Core::gather`] with a patience of `at_least`. If it `gives_up`, it ends when its patience does and all have
    /// been asked.
    pub(crate) async fn gather_within<T, F>(
        &self,
        at_least: Duration,
        gives_up: bool,
        order: Order,
        needed: usize,
        post: impl FnMut(usize) -> fabric::Result<F>,
    ) -> Result<Gathered<T, F>>
    where
        F: Future<Output = fabric::Result<T>> + Unpin,
    {
        let (ended, gathered, failed) = self.ask(at_least, gives_up, order, needed, self.if_counting(post)).await;
        match ended {
            Ended::Enough => Ok(gathered),
            Ended::Impossible | Ended::Impatient => Err(self.no_majority(failed)),
        }
    }

    /// Posts an operation to all memory nodes of the order. The answers of those that answer soon, if none of them
    /// fails. If there is no majority without them, it waits until they do.
    pub(crate) async fn gather_all<T, F>(
        &self,
        order: Order,
        post: impl FnMut(usize) -> fabric::Result<F>,
    ) -> PerReplica<T>
    where
        F: Future<Output = fabric::Result<T>> + Unpin,
    {
        let needed = order.len();
        let gives_up = needed > self.majority() || self.live(0).len() > self.majority();
        // It may be several round trips.
        let at_least = patience::ATTEMPT.max(2 * self.patience(self.shared.options.patience));
        self.ask(at_least, gives_up, order, needed, self.if_counting(post)).await.1.answers
    }

    /// The same, for memory nodes of which some may not count yet ([`Core::holders_of`]).
    pub(crate) async fn gather_holders<T, F>(
        &self,
        holders: Order,
        post: impl FnMut(usize) -> fabric::Result<F>,
    ) -> PerReplica<T>
    where
        F: Future<Output = fabric::Result<T>> + Unpin,
    {
        let at_least = patience::ATTEMPT.max(2 * self.patience(self.shared.options.patience));
        let gives_up = self.live(0).len() > self.majority();
        self.ask(at_least, gives_up, holders, holders.len(), post).await.1.answers
    }

    /// An order may be older than the view: another call may have changed that. A memory node that replaces another one
    /// has nothing to show at first.
    fn if_counting<F>(
        &self,
        mut post: impl FnMut(usize) -> fabric::Result<F>,
    ) -> impl FnMut(usize) -> fabric::Result<F> {
        move |replica| {
            self.check_counts(replica)?;
            post(replica)
        }
    }

    /// Fails if a memory node does not count (any more, or yet).
    #[inline]
    pub(crate) fn check_counts(&self, replica: usize) -> fabric::Result<()> {
        if self.out.get().contains(replica) { self.does_not_count(replica) } else { Ok(()) }
    }

    #[cold]
    fn does_not_count(&self, replica: usize) -> fabric::Result<()> {
        Err(ErrorKind::Unreachable { node: self.replica(replica).node }.into())
    }

    async fn ask<T, F>(
        &self,
        at_least: Duration,
        gives_up: bool,
        order: Order,
        needed: usize,
        post: impl FnMut(usize) -> fabric::Result<F>,
    ) -> (Ended, Gathered<T, F>, Vec<(usize, fabric::Error)>)
    where
        F: Future<Output = fabric::Result<T>> + Unpin,
    {
        let mut gathered = Gathered { answers: PerReplica::new(), pending: PerReplica::new() };
        let mut failed = Vec::new();
        let (next, gathering, failing) = (order.iter(), &mut gathered, &mut failed);
        let mut asking = Asking { endpoint: self.endpoint, next, needed, post, gathered: gathering, failed: failing };
        let wait = |until| self.endpoint.wait_for_change(until);
        let mut timer = pin!(not_yet(&wait));
        let mut waits: Option<Wait> = None;
        let mut ended = poll_fn(|cx| {
            if let Some(ended) = asking.poll(cx, true) {
                return Poll::Ready(ended);
            }
            let until = match &waits {
                Some(wait) => wait.until,
                None => {
                    let since = self.endpoint.now();
                    let until = since + self.patience(at_least);
                    waits.insert(Wait { since, until, is_measured: self.common.answer_times.is_measured() }).until
                }
            };
            loop {
                let is_over = match timer.as_mut().as_pin_mut() {
                    None => true,
                    Some(timer) => timer.poll(cx).is_ready(),
                };
                if !is_over {
                    return Poll::Pending;
                }
                if self.endpoint.now() >= until {
                    return Poll::Ready(Ended::Impatient);
                }
                timer.set(Some(wait(until)));
            }
        })
        .await;
        let was_patient = !matches!(ended, Ended::Impatient);
        if !was_patient {
            // They come last from now on. The clock is not looked at again: every operation ends.
            self.come_last(&asking.gathered.pending);
            let mut is_first = true;
            ended = poll_fn(|cx| {
                let asks_all = core::mem::take(&mut is_first);
                match asking.poll(cx, !asks_all) {
                    Some(ended) => Poll::Ready(ended),
                    None if gives_up => Poll::Ready(Ended::Impatient),
                    None => Poll::Pending,
                }
            })
            .await;
            let mut slow = self.common.slow.get();
            asking.gathered.answers.iter().for_each(|(replica, _)| slow.remove(*replica));
            self.common.slow.set(slow);
        }
        if let Some(Wait { since, until, is_measured }) = waits
            && matches!(ended, Ended::Enough)
            && (is_measured || !was_patient)
        {
            let is_first = |(replica, _): &(usize, T)| order.iter().take(needed).any(|first| first == *replica);
            let asked = if gathered.answers.iter().all(is_first) { since } else { until };
            self.common.answer_times.add(self.endpoint.now().since(asked));
        }
        if !failed.is_empty() {
            self.come_last(&failed);
        }
        (ended, gathered, failed)
    }

    /// These memory nodes come last from now on.
    fn come_last<X>(&self, of: &[(usize, X)]) {
        let mut slow = self.common.slow.get();
        of.iter().for_each(|(replica, _)| slow.add(*replica));
        self.common.slow.set(slow);
    }

    /// Fails if so many memory nodes have gone that no call can succeed any more.
    pub(crate) fn check_majority(&self) -> Result<()> {
        let gone = |(number, replica): (usize, &Replica)| {
            self.endpoint.check_alive(replica.node).err().map(|error| (number, error))
        };
        self.keep_view();
        let replicas = self.replicas.borrow();
        let gone: Vec<_> = replicas.iter().enumerate().filter_map(gone).collect();
        let is_there =
            |(number, replica): &(usize, &Replica)| replica.counts && gone.iter().all(|(other, _)| other != number);
        let is_lost = replicas.iter().enumerate().filter(is_there).count() < self.majority();
        drop(replicas);
        if is_lost { Err(self.no_majority(gone)) } else { Ok(()) }
    }

    #[cold]
    fn no_majority(&self, failed: Vec<(usize, fabric::Error)>) -> Error {
        // A node that is fenced reaches none of them, and the cause is the node itself.
        if let Some((_, error)) = failed.iter().find(|(_, error)| matches!(error.kind(), ErrorKind::Fenced)) {
            return Error::from(error.clone()).of(self.shared.object.path());
        }
        let node = |replica: usize| -> NodeId { self.replica(replica).node };
        let about = failed.first().map(|(replica, _)| node(*replica));
        let failed = failed.into_iter().map(|(replica, error)| (node(replica), error)).collect();
        let error = Error::custom(NoMajority { of: self.shared.memory_nodes, needed: self.majority(), failed });
        about.into_iter().fold(error, Error::about).of(self.shared.object.path())
    }
}

/// A call at some of the memory nodes, and the others that may have to be asked.
struct Asking<'c, T, F, P, N> {
    endpoint: &'c Endpoint,
    next: N,
    needed: usize,
    post: P,
    gathered: &'c mut Gathered<T, F>,
    failed: &'c mut Vec<(usize, fabric::Error)>,
}

impl<T, F, P, N> Asking<'_, T, F, P, N>
where
    F: Future<Output = fabric::Result<T>> + Unpin,
    P: FnMut(usize) -> fabric::Result<F>,
    N: Iterator<Item = usize>,
{
    /// Takes the answers that are there. While too few can come, it asks the next memory nodes; if it is not patient,
    /// all of them. Returns how the call ends, if it does.
    #[inline]
    fn poll(&mut self, cx: &mut Context<'_>, is_patient: bool) -> Option<Ended> {
        loop {
            self.take_answers(cx);
            let Gathered { answers, pending } = &mut *self.gathered;
            if answers.len() >= self.needed {
                return Some(Ended::Enough);
            }
            let asked = pending.len();
            while !is_patient || answers.len() + pending.len() < self.needed {
                let Some(replica) = self.next.next() else { break };
                match (self.post)(replica) {
                    Ok(op) => pending.push((replica, op)),
                    Err(error) => self.failed.push((replica, error)),
                }
            }
            if answers.len() + pending.len() < self.needed {
                return Some(Ended::Impossible);
            }
            if pending.len() == asked {
                return None;
            }
        }
    }

    /// Polls all operations, and takes the answers of those that have ended. One that has ended may post something
    /// further: the others' posts do not depend on its answer.
    #[inline(always)]
    fn take_answers(&mut self, cx: &mut Context<'_>) {
        let Gathered { answers, pending } = &mut *self.gathered;
        let together = self.endpoint.together();
        let mut at = 0;
        while at < pending.len() {
            together.next();
            match Pin::new(&mut pending[at].1).poll(cx) {
                Poll::Pending => at += 1,
                Poll::Ready(result) => {
                    let (replica, _) = pending.swap_remove(at);
                    match result {
                        Ok(answer) => answers.push((replica, answer)),
                        Err(error) => self.failed.push((replica, error)),
                    }
                }
            }
        }
    }
}

/// The place of a future that is made when it is needed.
fn not_yet<F>(_: &impl Fn(Instant) -> F) -> Option<F> {
    None
}

/// Calls for which a memory node that was slow, or has failed, is asked last.
const SLOW_FOR: u32 = 256;
