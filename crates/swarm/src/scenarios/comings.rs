//! Clients that come while others are at work, and the table in which they are entered.

use core::cell::RefCell;
use std::rc::Rc;

use farfield_check::{Cluster, Faults, Scenario, choose};
use farfield_core::{Node, Result};
use farfield_fabric::{DeathRule, Instant, NodeId, Word};

use super::parts::{Array, History, Recorded, register, run, unless_no_majority};
use crate::{SwarmArray, SwarmOptions};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        late(),
        late_memory_dies(),
        two_late(),
        late_cut(),
        opened_again(),
        opened_once_more(),
        opened_twice(),
        opened_behind(),
        opened_after_its_end(),
        opened_after_a_leave(),
        successor(),
        successor_dies(),
    ]
}

/// The first nodes have the memory: three, or the only one that has it open at the beginning.
fn open_here(node: &Node) -> Result<Array> {
    let memory = if node.nodes() < 3 { 0..1 } else { 0..3 };
    open_with(node, memory.map(NodeId))
}

fn open_with(node: &Node, memory: impl Iterator<Item = NodeId>) -> Result<Array> {
    open_registers(node, 1, memory)
}

pub(super) fn open_registers(node: &Node, registers: usize, memory: impl Iterator<Item = NodeId>) -> Result<Array> {
    let options = SwarmOptions { spare_buffers: 2, memory: memory.collect(), ..SwarmOptions::default() };
    Ok(Rc::new(SwarmArray::open(node, "array", registers, options)?))
}

/// Opens an array on the first nodes; the others come later.
fn open_on(cluster: &Cluster, first: usize) -> Result<(Vec<Array>, History)> {
    open_on_with(cluster, first, 1, open_here)
}

pub(super) fn open_on_with(
    cluster: &Cluster,
    first: usize,
    registers: usize,
    open: impl Fn(&Node) -> Result<Array> + Copy + Send + Sync + 'static,
) -> Result<(Vec<Array>, History)> {
    let open = move |node: &Node| if node.id().index() < first { open(node).map(Some) } else { Ok(None) };
    let arrays: Vec<Array> = cluster.on_each(open)?.into_iter().flatten().collect();
    let history = History::new(registers);
    let (kept, seen) = (arrays.clone(), history.clone());
    cluster.at_end(move || {
        drop(kept);
        seen.check();
        Ok(())
    });
    Ok((arrays, history))
}

/// A thread that opens the array, and has a client then.
fn comes(cluster: &Cluster, node: usize, history: &History, body: impl Fn(&Recorded<'_, '_>) -> Result<()> + 'static) {
    let (here, history, kept) = (cluster.node(node), history.clone(), Rc::new(RefCell::new(None)));
    let keeps = Rc::clone(&kept);
    cluster.at_end(move || {
        drop(keeps.take());
        Ok(())
    });
    cluster.thread(node, "comes", move |ep| {
        let Some(array) = unless_no_majority(open_here(&here))? else { return Ok(()) };
        *kept.borrow_mut() = Some(Rc::clone(&array));
        unless_no_majority(run(&array, ep, node, &history, &body)).map(drop)
    });
}

/// Its buffers are used again while another node comes and reads. The reads of that one have to be waited for.
fn writes(client: &Recorded<'_, '_>) -> Result<()> {
    (1..=6).try_for_each(|value| client.write(value))
}

fn reads(client: &Recorded<'_, '_>) -> Result<()> {
    client.read()?;
    client.read()
}

fn late() -> Scenario {
    let about = "buffers are used again while a node comes, and no read of its finds another value in them";
    Scenario::new("swarm/late", about, 2, |cluster| {
        let (arrays, history) = open_on(cluster, 1)?;
        register(cluster, 0, &arrays, &history, writes);
        comes(cluster, 1, &history, reads);
        Ok(())
    })
    .kills(&["swarm-answered-at-once", "swarm-census-kept", "swarm-registered-late"])
}

/// Two nodes come at a time, with three memory nodes, and one writes.
fn two_late() -> Scenario {
    Scenario::new("swarm/two-late", "two nodes come at a time, while a third one writes", 5, |cluster| {
        let (arrays, history) = open_on(cluster, 3)?;
        register(cluster, 0, &arrays, &history, |client| (1..=4).try_for_each(|value| client.write(value)));
        comes(cluster, 3, &history, |client| {
            client.read()?;
            client.write(11)
        });
        comes(cluster, 4, &history, reads);
        Ok(())
    })
}

/// A memory node dies while another node comes.
fn late_memory_dies() -> Scenario {
    Scenario::new("swarm/late-memory-dies", "a memory node dies while a node comes", 4, |cluster| {
        let (arrays, history) = open_on(cluster, 3)?;
        register(cluster, 0, &arrays, &history, writes);
        comes(cluster, 3, &history, reads);
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([2]))
}

/// A node that comes is cut off in the middle of it, and is waited for until it is evicted.
fn late_cut() -> Scenario {
    Scenario::new("swarm/late-cut", "a node that comes is cut off", 4, |cluster| {
        let (arrays, history) = open_on(cluster, 3)?;
        register(cluster, 0, &arrays, &history, writes);
        comes(cluster, 3, &history, reads);
        Ok(())
    })
    .rule(DeathRule::Majority)
    .faults(Faults::new().cuts(1).side([3]))
}

/// A node closes the array after it has given up a write, which one memory node may have. It opens the array again, and
/// continues with the numbers that its clients had.
fn opened_again() -> Scenario {
    let about = "a node closes an array in the middle of a write, and opens it again";
    Scenario::new("swarm/opened-again", about, 4, |cluster| {
        let (arrays, history) = open_on(cluster, 3)?;
        let (here, seen, slow) = (cluster.node(3), history.clone(), cluster.draw(3));
        cluster.thread(3, "comes twice", move |ep| {
            run(&open_here(&here)?, ep, 3, &seen, &|client| {
                client.set_slow(slow);
                client.write_or_drop(1)
            })?;
            run(&open_here(&here)?, ep, 3, &seen, &|client| (2..=4).try_for_each(|value| client.write(value)))
        });
        register(cluster, 0, &arrays, &history, move |client| {
            client.set_slow((slow + 1) % 3);
            client.read()?;
            client.read()
        });
        Ok(())
    })
}

/// The value of the first opening is in place on the first memory node, and the reader asks the others.
fn opened_once_more() -> Scenario {
    let about = "a node opens an array again, and uses no buffer again that a reader may read";
    Scenario::new("swarm/opened-once-more", about, 4, |cluster| {
        let (arrays, history) = open_on(cluster, 3)?;
        let (here, seen, turn) = (cluster.node(3), history.clone(), Rc::new(Word::new(0)));
        let now = Rc::clone(&turn);
        cluster.thread(3, "comes twice", move |ep| {
            run(&open_here(&here)?, ep, 3, &seen, &|client| client.write(1))?;
            let array = open_here(&here)?;
            now.store(1);
            run(&array, ep, 3, &seen, &|client| client.write(2))
        });
        register(cluster, 0, &arrays, &history, move |client| {
            client.set_slow(0);
            client.wait_for(&turn, 1)?;
            client.read()
        });
        Ok(())
    })
    .kills(&["swarm-successor-takes-all"])
}

/// A write of a node that closes the array has reached one memory node. The other one has a write of the next opening,
/// at the same timestamp.
fn opened_twice() -> Scenario {
    Scenario::new("swarm/opened-twice", "the writes of two openings have different timestamps", 2, |cluster| {
        let (arrays, history) = open_on(cluster, 1)?;
        let (here, seen, ahead) = (cluster.node(1), history.clone(), cluster.draw(4) as u64);
        cluster.thread(1, "comes twice", move |ep| {
            run(&open_here(&here)?, ep, 1, &seen, &|client| {
                client.set_ahead(ahead);
                client.write(1)
            })?;
            run(&open_here(&here)?, ep, 1, &seen, &|client| {
                client.write(2)?;
                client.read()
            })
        });
        register(cluster, 0, &arrays, &history, |client| {
            client.read()?;
            client.read()
        });
        Ok(())
    })
    .kills(&["swarm-timestamps-again"])
}

/// A memory node has missed a write of register 0, and its word points to a buffer that register 1 has by now. The next
/// opening must not give that back when it writes register 0.
fn opened_behind() -> Scenario {
    let about = "a node opens an array again, and one memory node is behind";
    Scenario::new("swarm/opened-behind", about, 4, |cluster| {
        let open = |node: &Node| open_registers(node, 2, (0..3).map(NodeId));
        let (_, history) = open_on_with(cluster, 3, 2, open)?;
        let here = cluster.node(3);
        cluster.thread(3, "comes twice", move |ep| {
            run(&open(&here)?, ep, 3, &history, &|client| {
                client.set_slow(0);
                client.write_at(0, 1)?;
                client.set_slow(2);
                client.write_at(0, 2)?;
                (3..=5).try_for_each(|value| client.write_at(1, value))
            })?;
            run(&open(&here)?, ep, 3, &history, &|client| {
                (6..=9).try_for_each(|value| client.write_at(0, value))?;
                client.set_slow(1);
                client.read_at(1)
            })
        });
        Ok(())
    })
    .kills(&["swarm-successor-keeps-old"])
}

/// The last write of the first opening has ended, and no reader was told that. Another one follows it. Then the next
/// opening must not write it again.
fn opened_after_its_end() -> Scenario {
    let about = "a node opens an array again, and writes nothing again that it has written before";
    Scenario::new("swarm/opened-after-its-end", about, 4, |cluster| {
        let (arrays, history) = open_on(cluster, 3)?;
        let (here, seen, turn) = (cluster.node(3), history.clone(), Rc::new(Word::new(0)));
        let now = Rc::clone(&turn);
        cluster.thread(3, "comes twice", move |ep| {
            run(&open_here(&here)?, ep, 3, &seen, &|client| client.write_unverified(1))?;
            now.store(1);
            run(&open_here(&here)?, ep, 3, &seen, &|client| {
                client.wait_for(&now, 2)?;
                client.write_or_drop(2)?;
                client.read()
            })
        });
        register(cluster, 0, &arrays, &history, move |client| {
            client.wait_for(&turn, 1)?;
            client.write(11)?;
            turn.store(2);
            (0..3).try_for_each(|_| client.read())
        });
        Ok(())
    })
    .kills(&["swarm-successor-writes-again"])
}

/// A memory node leaves that alone has the last write of the first opening. A read that has found it there brings it to
/// another one, perhaps when the next opening has looked there.
fn opened_after_a_leave() -> Scenario {
    let about = "a node opens an array again when a memory node has left, and uses no buffer that comes back";
    Scenario::new("swarm/opened-after-a-leave", about, 5, |cluster| {
        let open = |node: &Node| open_registers(node, 2, (0..3).map(NodeId));
        let (arrays, history) = open_on_with(cluster, 3, 2, open)?;
        let turn = Rc::new(Word::new(0));
        let (here, seen, now) = (cluster.node(3), history.clone(), Rc::clone(&turn));
        cluster.thread(3, "comes twice", move |ep| {
            run(&open(&here)?, ep, 3, &seen, &|client| {
                client.set_slow(0);
                client.write_at(0, 1)?;
                client.write_to_one(0, 2)
            })?;
            now.store(1);
            ep.block_on(ep.wait_until(Instant::NEVER, || here.has_gone(NodeId(0)).then_some(())))?;
            let second = |client: &Recorded<'_, '_>| {
                client.set_slow(2);
                client.write_at(1, 5)?;
                client.wait_for(&now, 3)?;
                client.read_at(0)
            };
            let Some(array) = unless_no_majority(open(&here))? else { return Ok(()) };
            unless_no_majority(run(&array, ep, 3, &seen, &second)).map(drop)
        });
        let (reader, now, seen) = (cluster.node(4), Rc::clone(&turn), history.clone());
        cluster.thread(4, "reads", move |ep| {
            let rest = || {
                now.store(2);
                ep.block_on(ep.wait_until(Instant::NEVER, || reader.has_gone(NodeId(0)).then_some(())))?;
                // The next opening may come so far meanwhile.
                for _ in 0..100 * choose(8) {
                    now.load();
                }
                Ok(())
            };
            let read = |client: &Recorded<'_, '_>| {
                client.wait_for(&now, 1)?;
                client.set_slow(2);
                client.read_with_a_rest(0, rest)?;
                now.store(3);
                Ok(())
            };
            let Some(array) = unless_no_majority(open(&reader))? else { return Ok(()) };
            unless_no_majority(run(&array, ep, 4, &seen, &read)).map(drop)
        });
        let leaves = cluster.node(0);
        cluster.thread_without_endpoint(0, "leaves", move || {
            let ep = leaves.endpoint()?;
            ep.block_on(ep.wait_until(Instant::NEVER, || (turn.load() >= 2).then_some(())))?;
            drop(ep);
            leaves.clone().leave();
            Ok(())
        });
        drop(arrays);
        Ok(())
    })
    .kills(&["swarm-successor-hurries"])
}

/// The node that takes the place of node 0.
const BACK: usize = 4;

/// Node 0 writes, and leaves or dies in the middle of it. A node that is started at its place takes over.
fn succeeds(
    name: &str,
    about: &str,
    body: impl Fn(&Recorded<'_, '_>) -> Result<()> + Copy + Send + Sync + 'static,
) -> Scenario {
    Scenario::new(name, about, 5, move |cluster| {
        let memory = || (1..4).map(NodeId);
        let open =
            move |node: &Node| if node.id() == NodeId(0) { Ok(None) } else { open_with(node, memory()).map(Some) };
        let arrays: Vec<Array> = cluster.on_each(open)?.into_iter().flatten().collect();
        let history = History::new(1);
        let (kept, seen) = (arrays.clone(), history.clone());
        let latest: Rc<RefCell<Option<Array>>> = Rc::default();
        let last = Rc::clone(&latest);
        cluster.at_end(move || {
            drop((kept, last.take()));
            seen.check();
            Ok(())
        });
        let (first, seen) = (cluster.node(0), history.clone());
        cluster.thread_without_endpoint(0, "leaves", move || {
            let ep = first.endpoint()?;
            if let Some(array) = unless_no_majority(open_with(&first, memory()))? {
                let body = |client: &Recorded<'_, '_>| {
                    client.write(1)?;
                    client.write_or_drop(2)
                };
                unless_no_majority(run(&array, &ep, 0, &seen, &body))?;
            }
            drop(ep);
            first.clone().leave();
            Ok(())
        });
        let (starter, stays, seen) = (cluster.starter(), cluster.node(1), history.clone());
        let reader = Rc::clone(&arrays[0]);
        cluster.thread_without_endpoint(BACK, "comes", move || {
            let ep = stays.endpoint()?;
            ep.block_on(ep.wait_until(Instant::NEVER, || stays.has_gone(NodeId(0)).then_some(())))?;
            let node = starter.start(BACK)?;
            let ep = node.endpoint()?;
            let Some(array) = unless_no_majority(open_with(&node, memory()))? else { return Ok(()) };
            *latest.borrow_mut() = Some(Rc::clone(&array));
            unless_no_majority(run(&array, &ep, 0, &seen, &body)).map(drop)
        });
        cluster.thread(1, "reads", move |ep| {
            let read = |client: &Recorded<'_, '_>| {
                client.read()?;
                client.write(11)?;
                client.read()
            };
            unless_no_majority(run(&reader, ep, 1, &history, &read)).map(drop)
        });
        Ok(())
    })
    .places(4)
    .rule(DeathRule::Majority)
}

fn successor() -> Scenario {
    succeeds(
        "swarm/successor",
        "a node takes over the buffers and writes of the one before it, which has left",
        |client| {
            client.read()?;
            (3..=5).try_for_each(|value| client.write(value))?;
            client.read()
        },
    )
}

fn successor_dies() -> Scenario {
    succeeds(
        "swarm/successor-dies",
        "a node takes over the buffers and writes of the one before it, which has died",
        |client| {
            client.write(3)?;
            client.read()
        },
    )
    .faults(Faults::new().crashes(1).of([0]))
}
