//! Round trips of the service thread, which has other work, too.

use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::task::Poll;
use std::time::Duration;

use farfield_fabric::{self as fabric, Endpoint};

use crate::replica::{Core, Peer};

/// The longest time for one round trip: a replica that takes longer is asked for the right again, so that puts under
/// way cannot land later.
const PATIENCE: Duration = Duration::from_millis(2);

/// Waits for one round trip, and not for long.
pub(super) fn wait_for<T>(endpoint: &Endpoint, op: impl Future<Output = fabric::Result<T>> + Unpin) -> Option<T> {
    wait_for_all(endpoint, vec![op]).pop()?
}

/// Waits for operations for one round trip, and not for long: the results of those that have ended well.
pub(super) fn wait_for_all<T, F>(endpoint: &Endpoint, ops: Vec<F>) -> Vec<Option<T>>
where
    F: Future<Output = fabric::Result<T>> + Unpin,
{
    let until = endpoint.now() + PATIENCE;
    let mut ops: Vec<Option<F>> = ops.into_iter().map(Some).collect();
    let mut results: Vec<Option<T>> = ops.iter().map(|_| None).collect();
    let all = poll_fn(|cx| {
        for (op, result) in ops.iter_mut().zip(&mut results) {
            if let Some(running) = op
                && let Poll::Ready(ended) = Pin::new(running).poll(cx)
            {
                (*result, *op) = (ended.ok(), None);
            }
        }
        if ops.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    });
    let _ = endpoint.block_on(endpoint.within(until, all));
    results
}

/// Gets slots that lie side by side, from `first` on, and at most those before `until`.
pub(super) fn get_slots(core: &Core, peer: &Peer, endpoint: &Endpoint, first: u64, until: u64) -> Option<Vec<u64>> {
    let slots = core.slots;
    let to_the_end = slots.count - first % slots.count;
    let count = (until - first).min(core.chunk).min(to_the_end) as usize;
    if count == 0 {
        return Some(Vec::new());
    }
    let buf = endpoint.buf::<u64>(count * slots.words).ok()?;
    let got = wait_for_all(endpoint, vec![endpoint.get_into(slots.remote(peer.log, first), buf)]);
    got.into_iter().next()?.map(|buf| buf.to_vec())
}
