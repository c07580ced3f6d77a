//! The protocol without time, messages or memory of its own: what holds whatever the order of events.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use farfield_fabric::NodeId;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use super::{Message, ObjectDescriptor, Openings};

const NOBODY: fn(NodeId) -> bool = |_| false;

/// The release by no opening.
const NONE: u64 = u64::MAX;

fn queue(path: &str) -> ObjectDescriptor {
    ObjectDescriptor {
        path: path.into(),
        kind: "Queue".into(),
        layout: String::new(),
        participants: vec![0, 1],
        regions: vec![],
        expected: vec![],
        gone: vec![],
    }
}

/// Of node 0, told to nodes 1 and 2, with two regions.
fn opened() -> Openings<&'static str> {
    let mut openings = Openings::default();
    openings.opens(1, "object", vec!["a", "b"], &[NodeId(1), NodeId(2)]);
    openings
}

#[test]
fn memory_comes_back_when_all_informed_nodes_have_released_it() {
    let mut openings = opened();
    assert!(openings.uses(1, NodeId(1), 7));
    openings.drops(1, NOBODY);
    let (said, regions) = openings.closes(1, NOBODY);
    let closed = Message::Closed { opening: 1 };
    let released = Message::Released { opening: 7, by: 1 };
    assert_eq!(said, [(NodeId(1), released), (NodeId(1), closed.clone()), (NodeId(2), closed)]);
    assert!(regions.is_empty());
    assert!(openings.is_released(NodeId(2), 1, NONE, NOBODY).is_empty());
    assert!(openings.is_released(NodeId(2), 1, NONE, NOBODY).is_empty(), "it counts once");
    assert!(openings.is_released(NodeId(3), 1, NONE, NOBODY).is_empty(), "and from who was told only");
    assert_eq!(openings.is_released(NodeId(1), 1, 7, NOBODY), ["a", "b"]);
    assert!(openings.is_released(NodeId(1), 1, 7, NOBODY).is_empty());
}

#[test]
fn memory_of_an_opening_told_to_no_node_comes_back_at_once() {
    let mut openings = Openings::default();
    openings.opens(1, "object", vec!["a"], &[]);
    assert_eq!(openings.closes(1, NOBODY), (vec![], vec!["a"]));
    assert!(openings.own.is_empty());
}

#[test]
fn objects_open_on_other_nodes_are_known_until_closed() {
    let mut openings = opened();
    let there = |openings: &Openings<_>, peer: u16| -> Vec<String> {
        openings.open_there(NodeId(peer)).map(|it| it.path.clone()).collect()
    };
    for (peer, opening, path) in [(1, 5, "one"), (1, 6, "other"), (2, 5, "one"), (1, 7, "object")] {
        openings.calls(NodeId(peer), opening, queue(path));
    }
    assert_eq!(there(&openings, 1), ["other", "one"], "the latest first, without what is open here");
    openings.is_closed_there(NodeId(1), 6);
    assert_eq!(there(&openings, 1), ["one"]);
    openings.forget(|node| node == NodeId(1));
    assert_eq!((there(&openings, 1), there(&openings, 2)), (vec![], vec!["one".to_string()]));
}

#[test]
fn closing_waits_for_no_node_that_has_released_or_is_gone() {
    let mut openings = opened();
    assert!(openings.is_released(NodeId(1), 1, 7, NOBODY).is_empty(), "it is open here");
    let (said, regions) = openings.closes(1, NOBODY);
    assert_eq!(said.len(), 2, "a node that has released it forgets it, too, when it hears that it is closed");
    assert!(regions.is_empty());
    assert!(openings.forget(|node| node == NodeId(1)).is_empty());
    assert_eq!(openings.forget(|node| node == NodeId(2)), ["a", "b"]);
    let mut openings = opened();
    let (said, regions) = openings.closes(1, |_| true);
    assert!(said.is_empty());
    assert_eq!(regions, ["a", "b"]);
}

#[test]
fn a_dropped_opening_is_told_to_no_node_and_not_connected() {
    let mut openings = opened();
    openings.drops(1, NOBODY);
    assert!(!openings.tells(1, NodeId(3)));
    assert!(!openings.uses(1, NodeId(1), 7));
    assert!(!openings.tells(2, NodeId(3)), "there is none of that number");
}

#[test]
fn an_unused_opening_is_released_at_once_a_used_one_on_closing() {
    let mut openings = opened();
    assert!(openings.uses(1, NodeId(1), 7) && openings.uses(1, NodeId(1), 7));
    assert!(!openings.uses(1, NodeId(1), 8), "that one has to be closed first");
    assert_eq!(openings.is_closed_there(NodeId(2), 7), Some(Message::Released { opening: 7, by: NONE }));
    assert_eq!(openings.is_closed_there(NodeId(1), 6), Some(Message::Released { opening: 6, by: NONE }));
    assert_eq!(openings.is_closed_there(NodeId(1), 7), None);
    openings.drops(1, NOBODY);
    assert!(openings.earlier.is_empty(), "nothing of it is on its way any more");
    assert_eq!(openings.is_closed_there(NodeId(1), 7), None, "something here is at work still");
    let (said, _) = openings.closes(1, NOBODY);
    assert_eq!(said[0], (NodeId(1), Message::Released { opening: 7, by: 1 }));
    assert_eq!(openings.is_closed_there(NodeId(1), 7), Some(Message::Released { opening: 7, by: NONE }), "asked twice");
}

/// Node 1 is no home of an object of node 0. It closes the object and opens it again, and its release follows its join.
#[test]
fn an_object_opened_again_keeps_the_memory_of_its_home() {
    let mut openings = opened();
    assert!(openings.uses(1, NodeId(1), 7));
    assert_eq!(openings.lets_go(NodeId(1), 7), Message::Released { opening: 7, by: NONE });
    assert!(openings.uses(1, NodeId(1), 8) && openings.tells(1, NodeId(1)));
    openings.is_released(NodeId(1), 1, 7, NOBODY);
    openings.is_released(NodeId(2), 1, NONE, NOBODY);
    openings.drops(1, NOBODY);
    assert!(openings.closes(1, NOBODY).1.is_empty());
    assert_eq!(openings.users_before("object", NOBODY), [NodeId(1)]);
    assert!(openings.users_before("another", NOBODY).is_empty());
    assert_eq!(openings.is_released(NodeId(1), 1, 8, NOBODY), ["a", "b"]);
    assert!(openings.users_before("object", NOBODY).is_empty());

    // And there, the end of the first opening does not end the use by the second one.
    let mut openings = Openings::<&str>::default();
    openings.opens(1, "object", vec![], &[NodeId(0)]);
    assert!(openings.uses(1, NodeId(0), 5));
    openings.drops(1, NOBODY);
    openings.opens(2, "object", vec![], &[NodeId(0)]);
    assert!(openings.uses(2, NodeId(0), 5));
    assert_eq!(openings.closes(1, NOBODY).0[0], (NodeId(0), Message::Released { opening: 5, by: 1 }));
    assert_eq!(openings.is_closed_there(NodeId(0), 5), None, "it is used still");
}

#[test]
fn connected_openings_are_remembered_until_closed_there() {
    let mut openings = opened();
    assert!(openings.uses(1, NodeId(1), 7) && openings.uses(1, NodeId(2), 3));
    assert!(!openings.is_late("object", NodeId(1), 7), "it is open");
    openings.drops(1, |node| node == NodeId(2));
    assert!(openings.is_late("object", NodeId(1), 7) && openings.is_late("object", NodeId(1), 6));
    assert!(!openings.is_late("object", NodeId(1), 8));
    assert!(!openings.is_late("another", NodeId(1), 7));
    assert!(!openings.is_late("object", NodeId(2), 3), "it is gone");
    openings.closes(1, NOBODY);
    assert_eq!(openings.is_closed_there(NodeId(1), 7), Some(Message::Released { opening: 7, by: NONE }));
    assert!(openings.earlier.is_empty() && openings.used.is_empty());
}

/// A node of a random session: its state beside the protocol's own.
struct Sim {
    openings: Openings<u64>,
    /// The object: its number, and its connections.
    object: Option<(u64, BTreeMap<NodeId, u64>)>,
    /// Debts of objects that were dropped.
    owed: Vec<(u64, BTreeMap<NodeId, u64>)>,
    opened: u64,
    /// Regions that are given out: each has the number of its opening.
    memory: BTreeSet<u64>,
    is_alive: bool,
}

#[derive(Clone)]
enum Said {
    Join { opening: u64 },
    Connect { answers: u64, opening: u64 },
    Close(Message),
}

/// Four nodes open one path again and again, in any order with their messages and deaths, of which one may happen. Used
/// memory is there; in the end no living node has any left.
#[test]
fn random_sessions_use_existing_memory_and_give_all_back() {
    const NODES: usize = 4;
    let nodes = || (0..NODES).map(|node| NodeId(node as u16));
    let (mut reopened, mut connected, mut given_back) = (0, 0, 0);
    for seed in 0..300 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut all: Vec<Sim> = nodes()
            .map(|_| Sim {
                openings: Openings::default(),
                object: None,
                owed: Vec::new(),
                opened: 0,
                memory: BTreeSet::new(),
                is_alive: true,
            })
            .collect();
        let mut wires: BTreeMap<(NodeId, NodeId), VecDeque<Said>> = BTreeMap::new();
        // From when on a death is known, and the dead evicted.
        let (mut silent, steps) = (BTreeSet::new(), 400);
        for step in 0..steps + 2000 {
            let is_ending = step >= steps;
            let me = NodeId(rng.random_range(0..NODES) as u16);
            let is_gone = |node: NodeId| silent.contains(&node);
            let node = &mut all[me.index()];
            if !node.is_alive {
                if rng.random_bool(0.05) && silent.insert(me) {
                    for node in &mut all {
                        for region in node.openings.forget(|gone| gone == me) {
                            assert!(node.memory.remove(&region));
                        }
                    }
                }
                continue;
            }
            let mut said: Vec<(NodeId, Said)> = Vec::new();
            let mut regions = Vec::new();
            match rng.random_range(0..100) {
                0 if !is_ending && seed % 2 == 0 && step > 100 => {
                    let deaths = all.iter().filter(|node| !node.is_alive).count();
                    all[me.index()].is_alive = deaths > 0;
                    continue;
                }
                1..10 if node.object.is_none() && !is_ending => {
                    node.opened += 1;
                    reopened += usize::from(node.opened > 1);
                    let opening = node.opened;
                    node.memory.insert(opening);
                    let told: Vec<NodeId> = nodes().filter(|peer| *peer != me && !is_gone(*peer)).collect();
                    node.openings.opens(opening, "object", vec![opening], &told);
                    node.object = Some((opening, BTreeMap::new()));
                    said.extend(told.into_iter().map(|peer| (peer, Said::Join { opening })));
                }
                10..15 if node.object.is_some() => {
                    let (opening, uses) = node.object.take().unwrap();
                    node.openings.drops(opening, is_gone);
                    node.owed.push((opening, uses));
                }
                15..25 if !node.owed.is_empty() => {
                    let (opening, _) = node.owed.swap_remove(rng.random_range(0..node.owed.len()));
                    let (messages, free) = node.openings.closes(opening, is_gone);
                    regions = free;
                    said.extend(messages.into_iter().map(|(to, message)| (to, Said::Close(message))));
                }
                // A node that comes up is told once more.
                25 => {
                    let peer = NodeId(rng.random_range(0..NODES) as u16);
                    if let Some((opening, _)) = &node.object
                        && peer != me
                        && node.openings.tells(*opening, peer)
                    {
                        said.push((peer, Said::Join { opening: *opening }));
                    }
                }
                _ => {
                    let from = NodeId(rng.random_range(0..NODES) as u16);
                    match wires.get_mut(&(from, me)).and_then(VecDeque::pop_front) {
                        Some(Said::Join { opening }) => {
                            if let Some((own, uses)) = &mut node.object
                                && !node.openings.is_late("object", from, opening)
                                && node.openings.uses(*own, from, opening)
                                && node.openings.tells(*own, from)
                            {
                                uses.insert(from, opening);
                                connected += 1;
                                said.push((from, Said::Connect { answers: opening, opening: *own }));
                            }
                        }
                        Some(Said::Connect { answers, opening }) => {
                            if let Some((own, uses)) = node.object.as_mut().filter(|(own, _)| *own == answers)
                                && node.openings.uses(*own, from, opening)
                            {
                                uses.insert(from, opening);
                            }
                        }
                        Some(Said::Close(Message::Closed { opening })) => {
                            let answer = node.openings.is_closed_there(from, opening);
                            said.extend(answer.map(|answer| (from, Said::Close(answer))));
                        }
                        Some(Said::Close(Message::Released { opening, by })) => {
                            regions = node.openings.is_released(from, opening, by, is_gone);
                        }
                        None => {}
                    }
                }
            }
            for region in regions {
                given_back += 1;
                assert!(node.memory.remove(&region), "given back once");
            }
            for (to, message) in said {
                wires.entry((me, to)).or_default().push_back(message);
            }
            // Used memory is there; a node's memory ends with the node.
            for node in all.iter().filter(|node| node.is_alive) {
                for (own, uses) in node.object.iter().chain(&node.owed) {
                    assert!(node.memory.contains(own), "seed {seed}: its own memory is gone");
                    let found = |(peer, opening): (&NodeId, &u64)| {
                        !all[peer.index()].is_alive || all[peer.index()].memory.contains(opening)
                    };
                    assert!(uses.iter().all(found), "seed {seed}, step {step}: something that is used is gone");
                }
            }
        }
        for (at, node) in all.iter().enumerate().filter(|(_, node)| node.is_alive) {
            let left: Vec<_> = node.openings.own.keys().collect();
            let has_ended = node.object.is_none() && node.owed.is_empty() && node.memory.is_empty() && left.is_empty();
            assert!(has_ended, "seed {seed}: node {at} has kept {left:?}");
            assert!(
                node.openings.earlier.is_empty() && node.openings.used.is_empty(),
                "seed {seed}: node {at} remembers"
            );
        }
    }
    assert!(reopened > 1000 && connected > 1000 && given_back > 1000, "{reopened} {connected} {given_back}");
}
