//! The ring buffer: each reader gets each message once, in order, whole. A reader that does not read holds the writer
//! up.

use farfield_core::fabric::{GroupKey, Instant};
use farfield_core::{Endpoint, Error, NodeId, Result, RingBuffer, RingOptions, RingReceiver, RingSender};

use super::keep;
use farfield_check::parts::is_decided;
use farfield_check::{Cluster, Faults, Scenario, crashed};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        message(),
        lengths(),
        two_messages(),
        wraps(),
        reuse(),
        full(),
        credits(),
        exact_fit(),
        own_node(),
        own_node_reuse(),
        slow_remote_reader(),
        slow_local_reader(),
        readers_of_one_node(),
        readers_on_two_nodes(),
        after_put(),
        crossed(),
        acknowledged(),
        readers_die(),
    ]
}

/// The smallest ring.
const CAPACITY: usize = 64;

/// The events in a stream from node 0. Message number `n` is bytes of value `n + 1`; with its length word, and
/// padded, it takes 8 more.
#[derive(Clone, Copy)]
struct Plan {
    nodes: usize,
    /// Nodes with readers, and how many each.
    readers: &'static [(u16, usize)],
    /// Lengths of the messages that are in the ring from the start.
    before: &'static [usize],
    /// How many of those each reader has received: there are no others to wait for.
    received: &'static [usize],
    /// Lengths of the messages that are sent.
    sends: &'static [usize],
    /// Whether the writer waits for room, or sends only what there is room for.
    waits_for_room: bool,
    /// How many messages each reader waits for.
    waits: usize,
    /// How often it then looks for another.
    looks: usize,
}

/// One reader on node 1, and an empty ring.
const TWO_NODES: Plan = Plan {
    nodes: 2,
    readers: &[(1, 1)],
    before: &[],
    received: &[0],
    sends: &[],
    waits_for_room: false,
    waits: 0,
    looks: 0,
};

type Message = Vec<u8>;

/// Runs a plan. In the end every reader has received exactly the messages that were sent, in order.
fn stream(name: &str, about: &str, plan: Plan) -> Scenario {
    Scenario::new(name, about, plan.nodes, move |cluster| {
        let (mut sender, mut readers) = ring(cluster, "r", 0, plan.readers)?;
        let mut before: Vec<Message> = Vec::new();
        for (number, len) in plan.before.iter().enumerate() {
            before.push(vec![number as u8 + 1; *len]);
            assert!(sender.try_send(&cluster.node(0).endpoint()?, &before[number])?, "no room at the start");
            for (reader, received) in readers.iter_mut().zip(plan.received) {
                if number < *received {
                    reader.wait_for_message(&cluster.node(reader.node).endpoint()?)?;
                }
            }
        }

        let done_reading = cluster.log();
        for (number, mut reader) in readers.into_iter().enumerate() {
            let done = done_reading.clone();
            cluster.thread_that_drops(reader.node, "reader", move |ep| {
                (0..plan.waits).try_for_each(|_| reader.wait_for_message(ep))?;
                (0..plan.looks).try_for_each(|_| reader.look_for_message(ep).map(drop))?;
                done.push((number, reader));
                Ok(())
            });
        }

        let done_writing = cluster.log();
        let done = done_writing.clone();
        cluster.thread_that_drops(0, "writer", move |ep| {
            let mut messages = before;
            for (at, len) in plan.sends.iter().enumerate() {
                let message = vec![(plan.before.len() + at) as u8 + 1; *len];
                if plan.waits_for_room {
                    ep.block_on(sender.send(ep, &message))?;
                    messages.push(message);
                } else if sender.try_send(ep, &message)? {
                    messages.push(message);
                }
            }
            done.push((sender, messages));
            Ok(())
        });

        let nodes = cluster.nodes();
        cluster.at_end(move || {
            let (sender, sent) = done_writing.take().remove(0);
            for (number, mut reader) in done_reading.take() {
                while reader.look_for_message(&nodes[reader.node].endpoint()?)? {}
                assert_eq!(reader.messages, sent, "reader {number} has not received (left) what was sent (right)");
            }
            assert!(
                sender.is_acknowledged(&nodes[0].endpoint()?, sender.position()),
                "all has been read, but not acknowledged"
            );
            Ok(())
        });
        Ok(())
    })
}

/// A reader, and the messages that it has received.
struct Reader {
    node: usize,
    receiver: RingReceiver,
    messages: Vec<Message>,
}

impl Reader {
    fn wait_for_message(&mut self, ep: &Endpoint) -> Result<()> {
        let mut message = Vec::new();
        ep.block_on(self.receiver.recv(ep, &mut message))?;
        self.messages.push(message);
        Ok(())
    }

    /// Receives a message if there is one. Returns whether there was.
    fn look_for_message(&mut self, ep: &Endpoint) -> Result<bool> {
        let mut message = Vec::new();
        let found = self.receiver.try_recv(ep, &mut message)?;
        self.messages.extend(found.then_some(message));
        Ok(found)
    }
}

/// A ring from a node: its sender, and its readers in the order of `readers`.
fn ring(
    cluster: &Cluster,
    path: &'static str,
    writer: u16,
    readers: &'static [(u16, usize)],
) -> Result<(RingSender, Vec<Reader>)> {
    let on = readers.iter().map(|(node, count)| (NodeId(*node), *count));
    let options = RingOptions::new(NodeId(writer), on, CAPACITY);
    let rings = keep(cluster, cluster.on_each(move |node| RingBuffer::open(node, path, options.clone()))?);
    let nodes = readers.iter().flat_map(|(node, count)| std::iter::repeat_n(usize::from(*node), *count));
    let reader = |node: usize| Ok(Reader { node, receiver: rings[node].receiver()?, messages: Vec::new() });
    Ok((rings[usize::from(writer)].sender()?, nodes.map(reader).collect::<Result<_>>()?))
}

// ---- one reader ---------------------------------------------------------------------------------------------------

/// NRW → NRW, the message before its head, against CR → CR, the head before the length. For ring-head-first and
/// ring-length-before-head.
fn message() -> Scenario {
    let plan = Plan { sends: &[8], looks: 2, ..TWO_NODES };
    stream("ring/message", "a message is seen whole or not at all", plan)
        .small()
        .kills(&["ring-head-first", "ring-length-before-head"])
}

/// The same for a message without content, and for one that does not end with a word.
fn lengths() -> Scenario {
    let plan = Plan { sends: &[0, 5], waits_for_room: true, waits: 2, ..TWO_NODES };
    stream("ring/lengths", "messages of no bytes, and of parts of a word", plan).small()
}

/// The NLR of one head against the CW of the next. For ring-head-live.
fn two_messages() -> Scenario {
    let plan = Plan { sends: &[8, 8], waits: 2, ..TWO_NODES };
    stream("ring/two-messages", "a head covers no message but those sent before it", plan)
        .small()
        .kills(&["ring-head-live"])
}

/// A message that wraps around the end is two puts: both land before the head. For ring-head-before-wrapped.
fn wraps() -> Scenario {
    let plan = Plan { before: &[48], received: &[1], sends: &[8], looks: 2, ..TWO_NODES };
    stream("ring/wraps", "a message that goes around the end is seen whole or not at all", plan)
        .small()
        .kills(&["ring-head-before-wrapped"])
}

/// The reader's CRs of a message before the NRW of its acknowledgement, the writer's CR of that before the CWs and NLRs
/// of the next message in that space. For ring-ack-before-read.
fn reuse() -> Scenario {
    let plan = Plan { before: &[48], sends: &[16], waits_for_room: true, waits: 2, ..TWO_NODES };
    stream("ring/reuse", "a message is overwritten only when it has been read", plan)
        .small()
        .kills(&["ring-ack-before-read"])
}

/// A full ring has no room, not even for a message without content. For ring-room-forgets-header.
fn full() -> Scenario {
    let plan = Plan { before: &[24, 24], sends: &[0], waits: 2, ..TWO_NODES };
    stream("ring/full", "into a full ring nothing is sent", plan).small().kills(&["ring-room-forgets-header"])
}

/// Credits count bytes since the start, not within the ring. For ring-credit-modulo.
fn credits() -> Scenario {
    let plan = Plan { before: &[48, 48], received: &[2], sends: &[8], waits_for_room: true, waits: 1, ..TWO_NODES };
    stream("ring/credits", "what has been read makes room, however often the ring has been filled", plan)
        .small()
        .kills(&["ring-credit-modulo"])
}

/// Back-pressure at its hardest: each message takes the whole ring, and waits for the one before.
fn exact_fit() -> Scenario {
    let plan = Plan { sends: &[56, 56], waits_for_room: true, waits: 2, ..TWO_NODES };
    stream("ring/exact-fit", "messages that fill the ring take turns", plan)
}

// ---- several readers ----------------------------------------------------------------------------------------------

/// On the writer's node there is no NIC in between: CW → CW against CR → CR. For ring-length-before-head.
fn own_node() -> Scenario {
    let plan = Plan { nodes: 1, readers: &[(0, 1)], sends: &[8, 8], looks: 3, ..TWO_NODES };
    stream("ring/own-node", "a reader on the writer's node sees messages whole, in order", plan).small()
}

/// The acknowledgement is a CW: after the CRs of the message. For ring-ack-before-read.
fn own_node_reuse() -> Scenario {
    let plan =
        Plan { nodes: 1, readers: &[(0, 1)], before: &[48], sends: &[16], waits_for_room: true, waits: 2, ..TWO_NODES };
    stream("ring/own-node-reuse", "a message is overwritten only when the reader here has read it", plan).small()
}

/// The reader on the writer's node has read, the remote one has not. For ring-fastest-reader.
fn slow_remote_reader() -> Scenario {
    let plan =
        Plan { readers: &[(0, 1), (1, 1)], before: &[48], received: &[1, 0], sends: &[16], looks: 1, ..TWO_NODES };
    stream("ring/slow-remote-reader", "the reader who is behind loses nothing", plan).small()
}

/// The remote reader has read, the one on the writer's node has not. For ring-fastest-reader.
fn slow_local_reader() -> Scenario {
    let plan =
        Plan { readers: &[(0, 1), (1, 1)], before: &[48], received: &[0, 1], sends: &[16], looks: 1, ..TWO_NODES };
    stream("ring/slow-local-reader", "the reader who is behind loses nothing", plan)
        .small()
        .kills(&["ring-fastest-reader"])
}

/// Two readers share one copy of the ring. For ring-fastest-reader.
fn readers_of_one_node() -> Scenario {
    let plan = Plan { readers: &[(1, 2)], before: &[48], received: &[1, 0], sends: &[16], looks: 1, ..TWO_NODES };
    stream("ring/readers-of-one-node", "each reader of a node gets each message", plan).small()
}

/// Puts to different nodes are not ordered, nor are the acknowledgements. For ring-fastest-reader.
fn readers_on_two_nodes() -> Scenario {
    let plan = Plan {
        nodes: 3,
        readers: &[(1, 1), (2, 1)],
        before: &[48],
        received: &[0, 0],
        sends: &[16],
        waits_for_room: true,
        waits: 2,
        looks: 0,
    };
    stream("ring/readers-on-two-nodes", "the writer waits for the reader who is behind", plan)
}

// ---- the order of a message and other memory ----------------------------------------------------------------------

/// A send is an NRW of its endpoint like any other (Fig. 9a): an earlier put to the reader's node is visible when the
/// message is.
fn after_put() -> Scenario {
    Scenario::new(
        "ring/after-put",
        "what was put to the reader's node before a message is seen with it",
        2,
        |cluster| {
            let (mut sender, mut readers) = ring(cluster, "r", 0, &[(1, 1)])?;
            let word = cluster.node(1).alloc(GroupKey::DATA, 8)?;
            let remote = word.remote::<u64>(0);
            cluster.thread(0, "writer", move |ep| {
                ep.put_value(remote, 1).detach()?;
                assert!(sender.try_send(ep, &[])?, "an empty ring has room");
                Ok(())
            });
            let mut reader = readers.remove(0);
            cluster.thread(1, "reader", move |ep| {
                reader.wait_for_message(ep)?;
                assert_eq!(word.word(0).load(), 1, "the message is there, what was put before it is not");
                Ok(())
            });
            Ok(())
        },
    )
    .small()
}

/// Fig. 13: two rings, one each way. A message that was sent and fenced is found. So if two nodes send, fence and look,
/// one of them finds the other's message.
fn crossed() -> Scenario {
    Scenario::new("ring/crossed", "of two that send, fence and look, one finds the other's message", 2, |cluster| {
        let (from_first, mut to_second) = ring(cluster, "x", 0, &[(1, 1)])?;
        let (from_second, mut to_first) = ring(cluster, "y", 1, &[(0, 1)])?;
        let parties = [(from_first, to_first.remove(0)), (from_second, to_second.remove(0))];
        let found = [cluster.log(), cluster.log()];
        for (me, (mut sender, mut reader)) in parties.into_iter().enumerate() {
            let found = found[me].clone();
            cluster.thread(me, "party", move |ep| {
                assert!(sender.try_send(ep, &[])?, "an empty ring has room");
                ep.block_on(ep.global_fence([NodeId(0), NodeId(1)]))?;
                found.push(reader.look_for_message(ep)?);
                Ok(())
            });
        }
        cluster.at_end(move || {
            let found = found.map(|found| found.take()[0]);
            assert_ne!(found, [false, false], "neither finds what the other sent before its fence");
            Ok(())
        });
        Ok(())
    })
    .small()
}

/// A reader's work before its acknowledgement is done when the writer sees the acknowledgement: its NRW follows the
/// reader's CRs and CWs.
fn acknowledged() -> Scenario {
    Scenario::new("ring/acknowledged", "an acknowledged message has been dealt with", 2, |cluster| {
        let (mut sender, readers) = ring(cluster, "r", 0, &[(0, 1), (1, 1)])?;
        let events = cluster.log();
        for Reader { node, mut receiver, .. } in readers {
            let events = events.clone();
            cluster.thread(node, "reader", move |ep| {
                let mut message = Vec::new();
                let mut look = || receiver.try_recv_unacknowledged(ep, &mut message).map(|found| found.then_some(()));
                ep.block_on(ep.wait_until(ep.deadline(), || look().transpose()))??;
                events.push("dealt with");
                receiver.acknowledge(ep)
            });
        }
        let at_end = events.clone();
        cluster.thread(0, "writer", move |ep| {
            assert!(sender.try_send(ep, &[])?, "an empty ring has room");
            assert!(sender.is_acknowledged(ep, 0), "nothing is behind");
            ep.block_on(sender.wait_acknowledged(ep, sender.position(), ep.deadline()))?;
            events.push("acknowledged");
            Ok(())
        });
        cluster.at_end(move || {
            assert_eq!(at_end.take(), ["dealt with", "dealt with", "acknowledged"], "the writer was told too early");
            Ok(())
        });
        Ok(())
    })
    .small()
}

/// Both readers may die, also while the writer puts to them. It keeps a copy by which it is told.
fn readers_die() -> Scenario {
    Scenario::new("ring/readers-die", "a writer whose readers have all died is told so by each call", 3, |cluster| {
        let options = RingOptions::new(NodeId(0), [(NodeId(1), 1), (NodeId(2), 1)], 4 * CAPACITY);
        let rings = cluster.on_each(move |node| RingBuffer::open(node, "ring", options.clone()))?;
        let (mut sender, me) = (rings[0].sender()?, cluster.node(0));
        cluster.thread(0, "sends", move |ep| {
            let are_dead = || crashed(1) && crashed(2);
            for number in 1..=4u64 {
                if let Err(error) = sender.try_send(ep, &number.to_le_bytes()) {
                    assert!(error.is_gone() && are_dead(), "{error}");
                }
            }
            if are_dead() {
                ep.block_on(ep.wait_until(Instant::NEVER, || is_decided(&me).then_some(())))?;
                let told = sender.try_send(ep, b"nobody");
                assert!(told.as_ref().is_err_and(Error::is_gone), "it was sent to nobody: {told:?}");
            }
            Ok(())
        });
        keep(cluster, rings);
        Ok(())
    })
    .faults(Faults::new().crashes(2).of([1, 2]))
    .kills(&["ring-last-copy-dropped"])
}
