//! Requests to the owners of partitions: a thread's part.

use core::time::Duration;

use farfield_core::toolkit::ErrorContext;
use farfield_core::{Endpoint, Error, ErrorKind, Result};
use farfield_fabric::Instant;
use farfield_rpc::ServerClosed;

use super::updates::{Ask, Reply, Request};
use super::{Calls, RomeKv, RomeKvUpdate};
use crate::errors::{MemoryFull, Moved};
use crate::field::{Field, TreeKey};

/// The pauses before an owner is asked again that could not do it yet.
const PAUSE: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(10)];

/// Sends some of the updates to one owner, with the epochs of their partitions; their results, with their places.
pub(super) async fn send<K: TreeKey, V: Field>(
    store: &RomeKv<K, V>,
    ep: &Endpoint,
    start: Instant,
    client: &Calls<K, V>,
    (updates, epochs): (&[RomeKvUpdate<K, V>], &[u64]),
    group: &[usize],
) -> Vec<(usize, Result<Option<V>>)> {
    let request = |at: &usize| {
        let update = updates[*at];
        let partition = store.partition_of(update.key());
        Request { partition, epoch: epochs[partition], ask: Ask::Update(update) }
    };
    let requests: Vec<Request<K, V>> = group.iter().map(request).collect();
    let replies = client.call_many(ep, &requests).await;
    let mut results = Vec::with_capacity(group.len());
    for ((at, request), reply) in group.iter().zip(requests).zip(replies) {
        let result = match reply {
            Ok(Reply::Done(before)) => Ok(before),
            Ok(other) => ask_after(store, ep, start, client, request, Some(other)).await.map(Reply::before),
            Err(error) => Err(error),
        };
        results.push((*at, result));
    }
    results
}

/// Asks the owner of a partition, until it has answered with more than that it has to be asked again.
///
/// # Errors
/// [`Moved`]: it is not the owner, or not yet.
pub(super) async fn ask<K: TreeKey, V: Field>(
    store: &RomeKv<K, V>,
    ep: &Endpoint,
    start: Instant,
    client: &Calls<K, V>,
    request: Request<K, V>,
) -> Result<Reply<V>> {
    ask_after(store, ep, start, client, request, None).await
}

/// As [`ask`], after it was asked once and has answered with this.
async fn ask_after<K: TreeKey, V: Field>(
    store: &RomeKv<K, V>,
    ep: &Endpoint,
    start: Instant,
    client: &Calls<K, V>,
    request: Request<K, V>,
    mut answered: Option<Reply<V>>,
) -> Result<Reply<V>> {
    let (deadline, mut pause) = (start + ep.timeout(), PAUSE[0]);
    // It is not asked again later than this, also where other nodes were asked before. The last answer says that
    // nothing has happened. If the next one does not come by the deadline, because the owner waits for a core, nothing
    // is known any more.
    let last = start + ep.timeout() / 4 * 3;
    // What a move asks for has its time until the deadline. That changes may go on is said in any case.
    let closes = match request.ask {
        Ask::Update(_) => last,
        Ask::Thaw(_) => Instant::NEVER,
        _ => deadline,
    };
    let mut before = None;
    loop {
        let now = ep.now();
        if answered.is_none() && now > start && now >= closes {
            ep.sleep_until(deadline).await;
            let late = || {
                let what = format!("partition {}, which is being moved", request.partition);
                ErrorKind::Timeout { what, waited: ep.now() - start, missing: vec![client.server()] }.into()
            };
            return Err(before.unwrap_or_else(late)).of(store.path());
        }
        let reply = match answered.take() {
            Some(reply) => reply,
            None => {
                let reply = client.call_deadline(ep, &request, deadline).await;
                reply?
            }
        };
        let now = ep.now();
        let error = match reply {
            Reply::Done(_) | Reply::Late => return Ok(reply),
            Reply::Elsewhere => return Err(Error::custom(Moved)),
            Reply::Held => {
                let what = "reads of several partitions, or the move of this one".into();
                ErrorKind::Timeout { what, waited: now - start, missing: vec![client.server()] }.into()
            }
            Reply::Full(waiting) => Error::custom(MemoryFull { blocks: store.parts.options.tree.blocks, waiting }),
            // As if its request had come a moment later.
            Reply::Refused => {
                let server = client.server();
                return Err(Error::custom(ServerClosed { server }).about(server).of(store.path()));
            }
        };
        if now + pause >= last {
            ep.sleep_until(deadline).await;
            return Err(error).of(store.path());
        }
        // It did not happen: asking again is another call.
        before = Some(error);
        ep.sleep_until(now + pause).await;
        pause = (2 * pause).min(PAUSE[1]);
    }
}

#[cfg(test)]
mod tests {
    use farfield_core::{Node, local_session, on_each};
    use farfield_fabric::NodeId;

    use super::*;
    use crate::{RangeUnavailable, RomeKvOptions};

    /// Its error named no keys once, and was taken for one of the options.
    #[test]
    fn an_update_that_is_refused_names_its_keys() {
        let nodes = local_session(2).expect("a session");
        let open = |node: &Node| RomeKv::<u64, u64>::open(node, "store", RomeKvOptions::new([500]));
        let stores = on_each(&nodes, open).expect("all open it");
        let (mut thread, ep) = (stores[1].thread().expect("a seat"), nodes[1].endpoint().expect("one"));
        // As while the store is closed there.
        let serving = stores[0].parts.serving.lock().take();
        let one = ep.block_on(thread.put(&ep, 7, 70)).expect_err("it is refused");
        let many = ep.block_on(thread.apply(&ep, &[RomeKvUpdate::Put(7, 70)])).remove(0).expect_err("it is refused");
        for error in [one, many] {
            let lost = error.custom_ref::<RangeUnavailable>().expect("which keys");
            assert_eq!((lost.partition, lost.owner, lost.may_have_happened), (0, NodeId(0), false), "{error}");
            assert_eq!(lost.because.custom_ref(), Some(&ServerClosed { server: NodeId(0) }), "{error}");
        }
        *stores[0].parts.serving.lock() = serving;
        assert_eq!(ep.block_on(thread.put(&ep, 7, 70)).expect("it is open"), None);
    }

    #[test]
    fn an_update_is_not_sent_so_late_that_its_answer_may_be_missed_and_a_move_until_the_deadline() {
        let nodes = local_session(2).expect("a session");
        let open = |node: &Node| RomeKv::<u64, u64>::open(node, "store", RomeKvOptions::new([500]));
        let stores = on_each(&nodes, open).expect("all open it");
        let (client, ep) = (stores[1].client_of(NodeId(0)).expect("it lives"), nodes[1].endpoint().expect("one"));
        ep.set_timeout(Duration::from_secs(16));
        // Of a call that has taken so many eighths of its time, since other nodes were asked.
        let asked = |ask_for, eighths: u32| {
            let start = Instant { ns: (ep.now().ns).saturating_sub((ep.timeout() * eighths / 8).as_nanos() as u64) };
            let puts = ep.counts().puts;
            let request = Request { partition: 0, epoch: 0, ask: ask_for };
            let reply = ep.block_on(ask(&stores[1], &ep, start, &client, request));
            // A request is repeated when its reply takes long.
            (reply.map_err(|error| error.is_timeout()), ep.counts().puts > puts)
        };
        let update = Ask::Update(RomeKvUpdate::Put(1, 1));
        assert_eq!(asked(update, 5), (Ok(Reply::Done(None)), true));
        assert_eq!(asked(update, 7), (Err(true), false), "it may be unknown then whether it has happened");
        assert_eq!(asked(Ask::Freeze(1), 7), (Ok(Reply::Done(None)), true));
        let version = stores[0].version_of(0);
        assert_eq!(asked(Ask::Publish(1, version), 8), (Err(true), false), "the caller has given it up");
        assert!(asked(Ask::Thaw(1), 8).1, "changes go on");
        let frozen = || stores[0].is_frozen(0);
        ep.block_on(ep.wait_until(ep.now() + Duration::from_secs(20), || (!frozen()).then_some(()))).expect("it thaws");
    }
}
