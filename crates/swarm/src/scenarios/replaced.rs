//! Memory nodes that take the place of others, which have left or died.

use core::cell::RefCell;
use std::rc::Rc;

use farfield_check::{Cluster, Faults, Scenario, choose};
use farfield_core::{Node, Result};
use farfield_fabric::{Endpoint, GroupKey, Instant, NodeId, RemotePtr, Word};

use super::comings::{open_on_with, open_registers};
use super::parts::{Array, History, Recorded as Client, register, run, unless_no_majority};
use super::store::options;
use super::store_parts::{Agreed, Opened, Recorded, client, client_unfailing, open_here, opened};
use crate::client::Shared;
use crate::layout::REGION_COUNT;
use crate::open::{ARRAY, STORE};
use crate::replacement::Replacement;
use crate::view::{Seat, Standing};
use crate::{SwarmArray, SwarmOptions, SwarmStoreOptions};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        registers(),
        five(),
        shards(),
        dies(),
        reopens(),
        beside_gone(),
        behind(),
        halfway(),
        store(),
        reused(),
        cleared(),
        promised(),
        records(),
    ]
}

/// The node that takes the place of node 0.
const COMES: usize = 4;

/// The path and the layout of what is replaced.
type Known = Rc<RefCell<Option<(String, String)>>>;

/// The first node leaves when it is the first one's turn, and so on.
type Turns = [Rc<Word>; 2];

fn know(known: &Known, shared: &Shared) {
    *known.borrow_mut() = Some((shared.object.path().into(), shared.object.layout().into()));
}

/// Memory nodes that leave at the second turn, and the one that takes the place of node 0 before that.
#[derive(Clone, Copy)]
struct Plan {
    leave: usize,
    comes: usize,
}

/// Of three memory nodes.
const OF_THREE: Plan = Plan { leave: 1, comes: COMES };

/// Node 0, a memory node, leaves at the first turn. Another one takes its place, which is the second turn. Then node 1
/// leaves: a version on two memory nodes is on the new one.
fn replace(cluster: &Cluster, kind: &'static str, known: &Known, turn: &Turns) {
    replace_in(cluster, OF_THREE, kind, known, turn);
}

fn replace_in(cluster: &Cluster, plan: Plan, kind: &'static str, known: &Known, turn: &Turns) {
    for number in 0..=plan.leave {
        leaves(cluster, number, &turn[number.min(1)]);
    }
    let node = cluster.node(plan.comes);
    replaces(cluster, plan.comes, kind, known, &turn[1], move |ep| {
        wait(ep, || node.has_gone(NodeId(0)))?;
        Ok(true)
    });
}

fn leaves(cluster: &Cluster, number: usize, turn: &Rc<Word>) {
    let (leaves, turn) = (cluster.node(number), Rc::clone(turn));
    cluster.thread_without_endpoint(number, "leaves", move || {
        let ep = leaves.endpoint()?;
        wait(&ep, || turn.load() > 0)?;
        drop(ep);
        leaves.clone().leave();
        Ok(())
    });
}

/// A node takes the place of node 0 when that is wanted, and the turn is over.
fn replaces(
    cluster: &Cluster,
    comes: usize,
    kind: &'static str,
    known: &Known,
    turn: &Rc<Word>,
    is_wanted: impl Fn(&Endpoint) -> Result<bool> + 'static,
) {
    let (node, turn, known) = (cluster.node(comes), Rc::clone(turn), Rc::clone(known));
    let kept: Rc<RefCell<Option<Replacement>>> = Rc::default();
    let keeps = Rc::clone(&kept);
    cluster.at_end(move || {
        drop(keeps.take());
        Ok(())
    });
    cluster.thread(comes, "replaces", move |ep| {
        if !is_wanted(ep)? {
            return Ok(());
        }
        let replaced = || {
            let (path, layout) = known.borrow().clone().expect("a client has opened it");
            let replacement = Replacement::open(&node, ep, kind, &path, &layout, NodeId(0))?;
            replacement.run(ep)?;
            Ok(replacement)
        };
        let Some(replacement) = unless_no_majority(replaced())? else { return Ok(()) };
        *kept.borrow_mut() = Some(replacement);
        turn.store(1);
        Ok(())
    });
}

fn turns() -> Turns {
    [0, 1].map(|_| Rc::new(Word::new(0)))
}

fn wait(ep: &Endpoint, is_it: impl Fn() -> bool) -> Result<()> {
    ep.block_on(ep.wait_until(Instant::NEVER, || is_it().then_some(())))?;
    Ok(())
}

/// Writes and reads go on meanwhile.
fn registers() -> Scenario {
    let about = "a memory node is replaced while clients write, and another one leaves after that";
    Scenario::new("swarm/replaced", about, 5, |cluster| while_written(cluster, OF_THREE, of_memory(3)).map(drop))
}

/// Of five memory nodes one is replaced, and then two leave.
fn five() -> Scenario {
    let about = "one of five memory nodes is replaced while clients write, and two leave after that";
    let plan = Plan { leave: 2, comes: 6 };
    Scenario::new("swarm/replaced-of-five", about, 7, move |cluster| {
        while_written(cluster, plan, of_memory(5)).map(drop)
    })
    .steps_max(1_000_000)
}

/// Each register is in a shard of its own.
fn shards() -> Scenario {
    let about =
        "a memory node of an array of two shards is replaced while clients write, and another one leaves after that";
    Scenario::new("swarm/replaced-shards", about, 5, |cluster| {
        let open = |node: &Node| {
            let memory = (0..3).map(NodeId).collect();
            let options = SwarmOptions { spare_buffers: 2, memory, ..SwarmOptions::default() };
            let nodes: Vec<NodeId> = (0..node.nodes() as u16).map(NodeId).collect();
            let array = SwarmArray::open_in_shards(node, "array", &nodes, 2, options, 3)?;
            assert_eq!(array.opened.shards.len(), 2);
            Ok(Rc::new(array))
        };
        while_written(cluster, OF_THREE, open).map(drop)
    })
    .steps_max(1_000_000)
}

/// The memory node that comes dies, perhaps in the middle of its copy, and another one takes the place.
fn dies() -> Scenario {
    let about = "a memory node dies while it takes the place of another one, and a third one takes it";
    Scenario::new("swarm/replacer-dies", about, 6, |cluster| {
        let (turn, known) = while_written(cluster, OF_THREE, of_memory(3))?;
        let (node, second) = (cluster.node(5), Rc::clone(&turn[1]));
        replaces(cluster, 5, ARRAY, &known, &turn[1], move |ep| {
            wait(ep, || node.has_gone(NodeId(COMES as u16)) || second.load() > 0)?;
            Ok(second.load() == 0)
        });
        Ok(())
    })
    .steps_max(1_000_000)
    .faults(Faults::new().crashes(1).of([COMES]))
}

/// Opens an array of two registers on so many memory nodes.
fn of_memory(nodes: u16) -> impl Fn(&Node) -> Result<Array> + Copy + Send + Sync + 'static {
    move |node| open_registers(node, 2, (0..nodes).map(NodeId))
}

/// A memory node of an array is replaced as planned, while the last two nodes that have it open write and read.
fn while_written(
    cluster: &Cluster,
    plan: Plan,
    open: impl Fn(&Node) -> Result<Array> + Copy + Send + Sync + 'static,
) -> Result<(Turns, Known)> {
    let (arrays, history) = open_on_with(cluster, plan.comes, 2, open)?;
    let (turn, known) = (turns(), Known::default());
    know(&known, &arrays[plan.comes - 1].opened.shards[0]);
    write_meanwhile(cluster, &arrays, &history, &turn);
    replace_in(cluster, plan, ARRAY, &known, &turn);
    Ok((turn, known))
}

/// A node closes the array and opens it again while a memory node gets its copy. That one must not keep the entry of
/// the first opening.
fn reopens() -> Scenario {
    let about =
        "a node opens an array again while a memory node is replaced, which does not go on to ask the first opening";
    Scenario::new("swarm/replaced-reopens", about, 5, |cluster| {
        let open = |node: &Node| open_registers(node, 1, (0..3).map(NodeId));
        let (arrays, history) = open_on_with(cluster, 3, 1, open)?;
        let (turn, known, here) = (turns(), Known::default(), cluster.node(3));
        know(&known, &arrays[2].opened.shards[0]);
        let (turns, seen) = (turn.clone(), history.clone());
        cluster.thread(3, "comes twice", move |ep| {
            run(&open(&here)?, ep, 3, &seen, &|client| client.write(1))?;
            turns[0].store(1);
            wait(ep, || here.has_gone(NodeId(0)))?;
            for _ in 0..1000 * choose(6) {
                turns[1].load();
            }
            let array = open(&here)?;
            run(&array, ep, 3, &seen, &|client| {
                client.write(2)?;
                client.wait_for(&turns[1], 1)?;
                client.read()
            })?;
            // It is entered everywhere in the same way, and as it is now.
            let shared = &array.opened.shards[0];
            let at = shared.asks.as_ref().expect("it has clients").table.node(3);
            let counted =
                shared.view.replicas(0).into_iter().filter(|replica| replica.counts && !here.has_gone(replica.node));
            let entries = counted.filter_map(|replica| ep.get(replica.clients.at(at)).wait().ok());
            let entries: Vec<u64> = entries.collect();
            assert!(entries.windows(2).all(|pair| pair[0] == pair[1]), "{entries:x?}");
            Ok(())
        });
        replace(cluster, ARRAY, &known, &turn);
        Ok(())
    })
    .steps_max(1_000_000)
    .kills(&["swarm-replaced-unentered"])
}

/// Two of five memory nodes leave, and one of them is replaced: nothing is known of the seat of the other one. A node
/// that comes after that looks for the seats.
fn beside_gone() -> Scenario {
    let about = "a memory node that replaces another one has no seat of one that had gone before";
    Scenario::new("swarm/replaced-beside-gone", about, 8, |cluster| {
        let open = |node: &Node| open_registers(node, 1, (0..5).map(NodeId));
        let (arrays, history) = open_on_with(cluster, 6, 1, open)?;
        let (turn, known) = (turns(), Known::default());
        know(&known, &arrays[5].opened.shards[0]);
        let have_gone = |node: &Node| (0..2).all(|number| node.has_gone(NodeId(number)));
        (0..2).for_each(|number| leaves(cluster, number, &turn[0]));
        let node = cluster.node(6);
        replaces(cluster, 6, ARRAY, &known, &turn[1], move |ep| {
            leave_seats_in_buffers(ep)?;
            wait(ep, || have_gone(&node))?;
            Ok(true)
        });
        let turns = turn.clone();
        register(cluster, 5, &arrays, &history, move |client: &Client<'_, '_>| {
            client.write(1)?;
            turns[0].store(1);
            client.wait_for(&turns[1], 1)?;
            client.read()
        });
        let here = cluster.node(7);
        cluster.thread(7, "comes", move |ep| {
            wait(ep, || turn[1].load() > 0 && have_gone(&here))?;
            run(&open(&here)?, ep, 7, &history, &|client| {
                client.read()?;
                client.write(2)
            })
        });
        Ok(())
    })
    .steps_max(1_000_000)
}

/// Leaves seats in the buffers of an endpoint, as the copy of another array's table does. Each says that a memory node
/// has replaced another one, and no array has memory there.
fn leave_seats_in_buffers(ep: &Endpoint) -> Result<()> {
    let place = RemotePtr::new(NodeId(2), GroupKey::DATA, 1 << 43);
    let seat = Seat { standing: Standing::Replaces, regions: [place; REGION_COUNT] };
    let mut buffers = Vec::new();
    for _ in 0..16 {
        let mut buffer = ep.buf::<u64>(5 * REGION_COUNT)?;
        buffer.chunks_exact_mut(REGION_COUNT).for_each(|words| words.copy_from_slice(&seat.words()));
        buffers.push(buffer);
    }
    Ok(())
}

/// The last two nodes that have the array open write and read while a memory node is replaced, and after that.
fn write_meanwhile(cluster: &Cluster, arrays: &[Array], history: &History, turn: &Turns) {
    for node in arrays.len() - 2..arrays.len() {
        let (turn, slow) = (turn.clone(), cluster.draw(4));
        register(cluster, node, arrays, history, move |client: &Client<'_, '_>| {
            if slow < 3 {
                client.set_slow(slow);
            }
            let value = 10 * node as u64;
            client.write_at(0, value)?;
            client.write_at(1, value + 1)?;
            turn[0].store(1);
            for more in 2..5 {
                client.write_at(more % 2, value + more as u64)?;
                client.read_at((more + 1) % 2)?;
            }
            client.wait_for(&turn[1], 1)?;
            client.read_at(0)?;
            client.write_at(1, value + 5)?;
            client.read_at(1)
        });
    }
}

/// The memory node that is asked first for a copy has missed the last write.
fn behind() -> Scenario {
    let about = "a memory node that replaces another one gets what a majority with that one had";
    Scenario::new("swarm/replaced-behind", about, 5, |cluster| {
        let open = |node: &Node| open_registers(node, 3, (0..3).map(NodeId));
        let (arrays, history) = open_on_with(cluster, 4, 3, open)?;
        let (turn, known) = (turns(), Known::default());
        know(&known, &arrays[2].opened.shards[0]);
        for node in 2..4 {
            let turn = turn.clone();
            register(cluster, node, &arrays, &history, move |client: &Client<'_, '_>| {
                if node == 3 {
                    client.set_slow(2);
                    client.write_at(2, 7)?;
                    turn[0].store(1);
                }
                client.wait_for(&turn[1], 1)?;
                client.read_at(2)
            });
        }
        replace(cluster, ARRAY, &known, &turn);
        Ok(())
    })
    .kills(&["swarm-replaced-uncopied"])
}

/// A write has reached the memory node that leaves, and reaches another one later: both are a majority.
fn halfway() -> Scenario {
    let about = "a call that counts on a memory node which is replaced has ended before that is";
    Scenario::new("swarm/replaced-halfway", about, 5, |cluster| {
        let open = |node: &Node| open_registers(node, 1, (0..3).map(NodeId));
        let (arrays, history) = open_on_with(cluster, 4, 1, open)?;
        let (turn, known, node) = (turns(), Known::default(), cluster.node(3));
        know(&known, &arrays[2].opened.shards[0]);
        let turns = turn.clone();
        register(cluster, 3, &arrays, &history, move |client: &Client<'_, '_>| {
            client.write_in_steps(7, [0, 1], |ep| {
                turns[0].store(1);
                wait(ep, || node.has_gone(NodeId(0)))?;
                // The other one may get its copy meanwhile.
                for _ in 0..1000 * choose(6) {
                    turns[1].load();
                }
                Ok(())
            })?;
            client.wait_for(&turns[1], 1)?;
            client.read_at(0)
        });
        let turns = turn.clone();
        register(cluster, 2, &arrays, &history, move |client: &Client<'_, '_>| {
            client.wait_for(&turns[1], 1)?;
            client.read_at(0)
        });
        replace(cluster, ARRAY, &known, &turn);
        Ok(())
    })
    .kills(&["swarm-replaced-unasked"])
}

/// Keys come, change, move and go meanwhile.
fn store() -> Scenario {
    let about = "a memory node of a store is replaced while clients make calls, and another one leaves after that";
    Scenario::new("swarm-kv/replaced", about, 5, |cluster| {
        replaced_store(cluster, options(), |number, client, turn| {
            let value = 10 * number as u64;
            client.insert(0, value)?;
            turn[0].store(1);
            client.update(0, value + 1)?;
            client.replace(0, [value + 1, value + 2])?;
            client.insert(1, value + 3)?;
            client.get(0)?;
            client.delete(1)?;
            client.wait_for(&turn[1], 1)?;
            client.get(0)?;
            client.update(0, value + 4)?;
            client.upsert(1, value + 5)?;
            client.get(1)
        })
    })
}

/// Registers are used again meanwhile, each for several keys.
fn reused() -> Scenario {
    let about = "registers are used again while a memory node is replaced";
    Scenario::new("swarm-kv/replaced-reuse", about, 5, |cluster| {
        replaced_store(cluster, options(), |number, client, turn| {
            let key = number as u64;
            client.insert(key, 1)?;
            turn[0].store(1);
            for value in (2..9).take_while(|_| turn[1].load() == 0) {
                client.leave(key)?;
                client.insert(key, value)?;
            }
            client.wait_for(&turn[1], 1)?;
            client.get(key)?;
            client.leave(key)?;
            client.get(5 - key)?;
            client.insert(key, 6)?;
            client.get(key)
        })
    })
}

/// A register is about to be cleared for its next key when the memory node leaves.
fn cleared() -> Scenario {
    let about = "a register is not cleared where a memory node gets its copy just now";
    Scenario::new("swarm-kv/replaced-cleared", about, 5, |cluster| {
        let (known, turn) = (Known::default(), turns());
        let Opened { stores, history } = open_store(cluster, options())?;
        know(&known, &stores[2].opened.shards[0]);
        let (turns, node) = (turn.clone(), cluster.node(3));
        client(cluster, 3, &stores, &history, move |client| {
            client.insert(0, 1)?;
            client.keep_registers(0);
            client.delete(0)?;
            client.leave_second()?;
            turns[0].store(1);
            client.wait_until(|| node.has_gone(NodeId(0)))?;
            for _ in 0..1000 * choose(6) {
                turns[1].load();
            }
            client.leave_rest()?;
            client.insert(0, 2)?;
            client.wait_for(&turns[1], 1)?;
            client.set_slow(1);
            client.get(0)
        });
        replace(cluster, STORE, &known, &turn);
        Ok(())
    })
    .kills(&["swarm-replaced-at-once"])
}

/// Two memory nodes have promised a ballot for a cell, and its proposal reaches one of them late. The other one was
/// replaced before that, and a client has changed the cell on the new one and the third.
fn promised() -> Scenario {
    let about = "a memory node that replaces another one has promised what a majority with that one had promised";
    Scenario::new("swarm-kv/replaced-promised", about, 5, |cluster| {
        let (known, turn, agreed) = (Known::default(), turns(), Agreed::default());
        let Opened { stores, history } = open_store(cluster, options())?;
        know(&known, &stores[2].opened.shards[0]);
        let next = Rc::new(Word::new(0));
        let (turns, nexts) = (turn.clone(), Rc::clone(&next));
        // Its number is higher than that of the other client, and so is its ballot.
        client(cluster, 3, &stores, &history, move |client| {
            client.promise_on(0)?;
            let promised = client.promise_on(1)?;
            turns[0].store(1);
            client.wait_for(&nexts, 1)?;
            client.accept_on(1, promised, 1)?;
            nexts.store(2);
            Ok(())
        });
        let turns = turn.clone();
        client(cluster, 2, &stores, &history, move |client| {
            client.wait_for(&turns[1], 1)?;
            client.set_slow(1);
            client.agree(&agreed, 2, false)?;
            client.pass_turn(&next, [1, 2])?;
            client.set_slow(0);
            client.agree(&agreed, 3, false)
        });
        replace_in(cluster, Plan { leave: 0, comes: COMES }, STORE, &known, &turn);
        Ok(())
    })
}

/// A cell changes when a memory node that joins has its copy: that one points to the record before. Then another memory
/// node leaves, a group of registers is taken, and a promise is left at the one that has joined.
fn records() -> Scenario {
    let about = "a record is not used again as long as a memory node that joins points to it";
    Scenario::new("swarm-kv/replaced-records", about, 5, |cluster| {
        let (known, turn, agreed) = (Known::default(), turns(), Agreed::default());
        let Opened { stores, history } = open_store(cluster, options())?;
        know(&known, &stores[2].opened.shards[0]);
        let (turns, node) = (turn.clone(), cluster.node(3));
        client_unfailing(cluster, 3, &stores, &history, move |client| {
            client.agree(&agreed, 0, false)?;
            turns[0].store(1);
            client.wait_for_copy(0)?;
            client.agree(&agreed, 1, false)?;
            client.wait_for(&turns[1], 1)?;
            client.wait_until(|| node.has_gone(NodeId(1)))?;
            client.wait_for_used()?;
            client.take_group()?;
            client.promise_on(0)?;
            client.agree(&agreed, 2, false)
        });
        replace(cluster, STORE, &known, &turn);
        Ok(())
    })
    .steps_max(1_000_000)
}

fn open_store(cluster: &Cluster, mut options: SwarmStoreOptions) -> Result<Opened> {
    options.replicas = SwarmOptions { memory: (0..3).map(NodeId).collect(), ..options.replicas };
    let open = move |node: &Node| match node.id().index() {
        COMES => Ok(None),
        _ => open_here(node, options.clone()).map(Some),
    };
    let stores = cluster.on_each(open)?.into_iter().flatten().collect();
    Ok(opened(cluster, stores))
}

fn replaced_store(
    cluster: &Cluster,
    options: SwarmStoreOptions,
    calls: impl Fn(usize, &Recorded<'_, '_>, &Turns) -> Result<()> + Clone + 'static,
) -> Result<()> {
    let Opened { stores, history } = open_store(cluster, options)?;
    let (turn, known) = (turns(), Known::default());
    know(&known, &stores[2].opened.shards[0]);
    for node in 2..4 {
        let (turn, calls, slow) = (turn.clone(), calls.clone(), cluster.draw(4));
        client(cluster, node, &stores, &history, move |client| {
            if slow < 3 {
                client.set_slow(slow);
            }
            calls(node, client, &turn)
        });
    }
    replace(cluster, STORE, &known, &turn);
    Ok(())
}
