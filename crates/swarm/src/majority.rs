//! Operations on a majority of the memory nodes.

use core::future::{Future, poll_fn};
use core::pin::{Pin, pin};
use core::task::{Context, Poll};
use std::time::Duration;

use farfield_core::{Error, Result};
use farfield_fabric::{self as fabric, ErrorKind, Instant, NodeId};
use smallvec::SmallVec;

use crate::client::Core;
use crate::errors::NoMajority;
use crate::layout::REPLICAS_MAX;

/// One thing for each memory node, at most.
pub(crate) type PerReplica<T> = SmallVec<[(usize, T); REPLICAS_MAX]>;

/// The memory nodes in the order in which they are asked.
pub(crate) type Order = SmallVec<[usize; REPLICAS_MAX]>;

/// A set of memory nodes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Replicas(u8);

impl Replicas {
    pub(crate) fn add(&mut self, replica: usize) {
        self.0 |= 1 << replica;
    }

    pub(crate) fn remove(&mut self, replica: usize) {
        self.0 &= !(1 << replica);
    }

    pub(crate) fn contains(self, replica: usize) -> bool {
        self.0 & 1 << replica != 0
    }

    pub(crate) fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..REPLICAS_MAX).filter(move |replica| self.contains(*replica))
    }
}

/// The answers of the first memory nodes.
pub(crate) struct Gathered<T, F> {
    pub(crate) answers: PerReplica<T>,
    /// The operations that have not ended. They continue when this is dropped.
    pub(crate) pending: PerReplica<F>,
}

/// Why a look at the operations has ended.
enum Ended {
    Enough,
    Impossible,
    Impatient,
}

impl Core<'_> {
    /// The memory nodes, in the order in which they are asked about a register: each register begins with another one, and
    /// those that were slow come last.
    pub(crate) fn order(&self, register: usize) -> Order {
        let count = self.shared.replicas.len();
        // Once in a while they get another chance.
        let asked = self.asked.get().wrapping_add(1);
        self.asked.set(asked);
        if asked.is_multiple_of(SLOW_FOR) {
            self.slow.set(Replicas::default());
        }
        let slow = self.slow.get();
        let mut order: Order = (0..count).map(|at| (register + at) % count).collect();
        if slow != Replicas::default() {
            order.sort_by_key(|replica| slow.contains(*replica));
        }
        order
    }

    /// Posts an operation to the first `needed` memory nodes of the order, and waits until so many have ended well. The
    /// others are asked when one of them fails, or when the client's patience ends.
    pub(crate) async fn gather<T, F>(
        &self,
        order: Order,
        needed: usize,
        post: impl FnMut(usize) -> fabric::Result<F>,
    ) -> Result<Gathered<T, F>>
    where
        F: Future<Output = fabric::Result<T>> + Unpin,
    {
        self.gather_within(self.shared.options.patience, false, order, needed, post).await
    }

    /// [`Core::gather`] with another patience. If it `gives_up`, it ends when its patience does and nobody is left to ask.
    pub(crate) async fn gather_within<T, F>(
        &self,
        patience: Duration,
        gives_up: bool,
        order: Order,
        needed: usize,
        mut post: impl FnMut(usize) -> fabric::Result<F>,
    ) -> Result<Gathered<T, F>>
    where
        F: Future<Output = fabric::Result<T>> + Unpin,
    {
        let mut next = order.iter().copied();
        let mut gathered: Gathered<T, F> = Gathered { answers: PerReplica::new(), pending: PerReplica::new() };
        let mut failed: Vec<(usize, fabric::Error)> = Vec::new();
        let Gathered { answers, pending } = &mut gathered;
        let mut look = |cx: &mut Context<'_>,
                        answers: &mut PerReplica<T>,
                        pending: &mut PerReplica<F>,
                        failed: &mut Vec<(usize, fabric::Error)>,
                        next: &mut dyn Iterator<Item = usize>,
                        is_patient: bool| loop {
            let mut at = 0;
            while at < pending.len() {
                match Pin::new(&mut pending[at].1).poll(cx) {
                    Poll::Pending => at += 1,
                    Poll::Ready(result) => {
                        let (replica, _) = pending.swap_remove(at);
                        match result {
                            Ok(answer) => answers.push((replica, answer)),
                            Err(error) => failed.push((replica, error)),
                        }
                    }
                }
            }
            if answers.len() >= needed {
                return Some(Ended::Enough);
            }
            let asked = pending.len();
            while !is_patient || answers.len() + pending.len() < needed {
                let Some(replica) = next.next() else { break };
                match post(replica) {
                    Ok(op) => pending.push((replica, op)),
                    Err(error) => failed.push((replica, error)),
                }
            }
            if answers.len() + pending.len() < needed {
                return Some(Ended::Impossible);
            }
            if pending.len() == asked {
                return None;
            }
        };
        let wait = |until| self.endpoint.wait_for_change(until);
        let mut timer = pin!(not_yet(&wait));
        let mut until = None;
        let mut ended = poll_fn(|cx| {
            if let Some(ended) = look(cx, answers, pending, &mut failed, &mut next, true) {
                return Poll::Ready(ended);
            }
            let until = *until.get_or_insert_with(|| self.endpoint.now() + patience);
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
        if matches!(ended, Ended::Impatient) {
            // They come last from now on. The clock is not looked at again: every operation ends.
            let mut slow = self.slow.get();
            pending.iter().for_each(|(replica, _)| slow.add(*replica));
            self.slow.set(slow);
            let mut is_first = true;
            ended = poll_fn(|cx| {
                let asks_all = core::mem::take(&mut is_first);
                match look(cx, answers, pending, &mut failed, &mut next, !asks_all) {
                    Some(ended) => Poll::Ready(ended),
                    None if gives_up => Poll::Ready(Ended::Impatient),
                    None => Poll::Pending,
                }
            })
            .await;
            let mut slow = self.slow.get();
            gathered.answers.iter().for_each(|(replica, _)| slow.remove(*replica));
            self.slow.set(slow);
        }
        if !failed.is_empty() {
            let mut slow = self.slow.get();
            failed.iter().for_each(|(replica, _)| slow.add(*replica));
            self.slow.set(slow);
        }
        match ended {
            Ended::Enough => Ok(gathered),
            Ended::Impossible | Ended::Impatient => Err(self.no_majority(failed)),
        }
    }

    #[cold]
    fn no_majority(&self, failed: Vec<(usize, fabric::Error)>) -> Error {
        // A node that is fenced reaches none of them, and the cause is the node itself.
        if let Some((_, error)) = failed.iter().find(|(_, error)| matches!(error.kind(), ErrorKind::Fenced)) {
            return Error::from(error.clone()).of(self.shared.object.path());
        }
        let node = |replica: usize| -> NodeId { self.shared.replicas[replica].node };
        let about = failed.first().map(|(replica, _)| node(*replica));
        let failed = failed.into_iter().map(|(replica, error)| (node(replica), error)).collect();
        let error = Error::custom(NoMajority { of: self.shared.replicas.len(), needed: self.majority(), failed });
        about.into_iter().fold(error, Error::about).of(self.shared.object.path())
    }
}

/// The place of a future that is made when it is needed.
fn not_yet<F>(_: &impl Fn(Instant) -> F) -> Option<F> {
    None
}

/// Calls for which a memory node that was slow, or has failed, comes last.
const SLOW_FOR: u32 = 256;
