//! What shared cells and local locks do under a simulation.

use core::sync::atomic::{AtomicU64, Ordering};

use super::record::{Cell, What};
use super::state::Pending;
use super::threads::{Turn, World, own_cell, with_world};
use super::wait_set::{Key, cell_key, mix};
use mowgli::machine::Loc;

use crate::hook::Hooks;

/// The simulator's side of [`crate::hook`].
pub(super) const HOOKS: &Hooks = &Hooks {
    load,
    glance,
    store,
    compare_exchange,
    fetch_add,
    fence,
    backwards,
    completes_at_once,
    lock,
    unlock,
    structure,
    forget,
    join,
    is_finished,
};

/// The place of a word.
enum Place {
    /// In the machine's memory.
    Region(Loc),
    /// Outside of regions.
    Own(usize),
}

fn rank_of(world: &World, word: &AtomicU64) -> Place {
    let address = core::ptr::from_ref(word) as usize;
    match world.arena.place(address) {
        Some((node, word)) => Place::Region(Loc { node, word }),
        None => Place::Own(address),
    }
}

/// The key of a place in ordinary memory.
fn key_of(world: &World, address: usize) -> Key {
    world.inner.borrow_mut().own_key(address)
}

fn region_key(loc: Loc) -> Key {
    cell_key(loc.node, loc.word)
}

/// A load, if a simulation runs here.
#[cold]
fn load(word: &AtomicU64) -> Option<u64> {
    with_world(|world| match rank_of(world, word) {
        Place::Region(loc) => match world.point(Pending::Read(region_key(loc))) {
            Turn::Mine(me) => {
                if world.is_elsewhere(me, loc.node) {
                    return world.inner.borrow().machine.memory(loc);
                }
                let mut inner = world.inner.borrow_mut();
                let cpu = inner.threads[me].cpu;
                let value = inner.machine.read(cpu, loc.word);
                inner.saw(me, region_key(loc), value);
                if inner.records() {
                    let buffered = inner.machine.forwards(cpu, loc.word);
                    inner.note(me, What::Read { cell: Cell::Region(loc), value, buffered });
                }
                value
            }
            Turn::Outside | Turn::Unwinding => world.inner.borrow().machine.memory(loc),
        },
        Place::Own(address) => {
            let key = key_of(world, address);
            if let Turn::Mine(me) = world.point(Pending::Read(key)) {
                let mut inner = world.inner.borrow_mut();
                let value = word.load(Ordering::Acquire);
                inner.saw(me, key, value);
                inner.note(me, What::Read { cell: own_cell(key), value, buffered: false });
                return value;
            }
            word.load(Ordering::Acquire)
        }
    })
}

/// A load that is no step of its own, but belongs to the step before it. Its value still distinguishes states.
#[cold]
fn glance(word: &AtomicU64) -> Option<u64> {
    with_world(|world| {
        let Place::Own(address) = rank_of(world, word) else { return None };
        let key = key_of(world, address);
        let (value, mut inner) = (word.load(Ordering::Acquire), world.inner.borrow_mut());
        if let Some(me) = inner.current.filter(|_| !world.is_torn_down()) {
            inner.saw(me, key, value);
        }
        Some(value)
    })
    .flatten()
    .or_else(|| load(word))
}

/// A store; whether a simulation runs here and has done it.
#[cold]
fn store(word: &AtomicU64, value: u64) -> bool {
    with_world(|world| match rank_of(world, word) {
        // An unwinding thread changes no memory.
        Place::Region(_) if world.is_torn_down() => {}
        Place::Region(loc) => {
            let current = world.inner.borrow().current;
            let current = current.filter(|me| !world.is_elsewhere(*me, loc.node));
            let mut inner = world.inner.borrow_mut();
            match current {
                // No thread can observe when a write enters its thread's store buffer: no scheduling point.
                Some(me) => {
                    let cpu = inner.threads[me].cpu;
                    // Another operation of the same thread may wait for the word.
                    if inner.machine.read(cpu, loc.word) != value {
                        inner.notify_itself(me, region_key(loc));
                    }
                    inner.machine.write(cpu, loc.word, value);
                    inner.acted(me, mix(region_key(loc), value));
                    inner.note(me, What::Write { cell: Cell::Region(loc), value });
                }
                None => inner.machine.poke(loc, value),
            }
        }
        Place::Own(address) => {
            change(world, address, word, |_| value);
        }
    })
    .is_some()
}

/// Changes a word outside of regions at its turn; returns the old value.
fn change(world: &World, address: usize, word: &AtomicU64, new_of: impl Fn(u64) -> u64) -> u64 {
    let key = key_of(world, address);
    let turn = world.point(Pending::Write(key));
    let old = word.load(Ordering::Relaxed);
    let new = new_of(old);
    word.store(new, Ordering::Relaxed); // all threads of a simulation are one
    if let Turn::Mine(me) = turn {
        let mut inner = world.inner.borrow_mut();
        inner.own_changed(me, key, old, new);
        inner.note(me, What::Rmw { cell: own_cell(key), old, new });
    }
    old
}

/// A CPU compare-and-swap, if a simulation runs here.
#[cold]
fn compare_exchange(word: &AtomicU64, expected: u64, new: u64) -> Option<Result<u64, u64>> {
    let swap = |old: u64| if old == expected { new } else { old };
    modify(word, swap).map(|old| if old == expected { Ok(old) } else { Err(old) })
}

/// A CPU fetch-and-add, if a simulation runs here.
#[cold]
fn fetch_add(word: &AtomicU64, addend: u64) -> Option<u64> {
    modify(word, |old| old.wrapping_add(addend))
}

fn modify(word: &AtomicU64, new_of: impl Fn(u64) -> u64) -> Option<u64> {
    with_world(|world| match rank_of(world, word) {
        Place::Region(loc) => {
            let turn = world.point(Pending::Write(region_key(loc)));
            let mine = match turn {
                Turn::Mine(me) if !world.is_elsewhere(me, loc.node) => Some(me),
                _ => None,
            };
            let mut inner = world.inner.borrow_mut();
            let old = inner.machine.memory(loc);
            let new = new_of(old);
            match mine {
                Some(me) => {
                    let cpu = inner.threads[me].cpu;
                    inner.machine.compare_exchange(cpu, loc.word, old, new);
                    inner.saw(me, region_key(loc), old);
                    inner.acted(me, new);
                    if old != new {
                        inner.notify(region_key(loc), 1, None);
                    }
                    inner.note(me, What::Rmw { cell: Cell::Region(loc), old, new });
                }
                None if turn == Turn::Unwinding => {}
                None => inner.machine.poke(loc, new),
            }
            old
        }
        Place::Own(address) => change(world, address, word, new_of),
    })
}

/// A memory fence; whether a simulation runs here.
#[cold]
fn fence() -> bool {
    with_world(|world| {
        if let Turn::Mine(me) = world.point(Pending::Fence) {
            world.inner.borrow_mut().acted(me, 0);
        }
    })
    .is_some()
}

/// Whether the words of a larger value are accessed backwards, as the search chooses.
fn backwards(words: usize) -> bool {
    words > 1 && super::threads::choose(2) == 1
}

/// Whether this simulation completes operations at once ([`Settings::completes_at_once`](super::Settings)).
fn completes_at_once() -> bool {
    with_world(|world| !world.is_torn_down() && world.inner.borrow().rules.completes_at_once) == Some(true)
}

/// Takes a local lock, in the simulation's books; `try_lock` takes it really.
#[cold]
fn lock(address: usize, try_lock: &mut dyn FnMut() -> bool) -> bool {
    with_world(|world| {
        let key = key_of(world, address);
        let turn = world.point(Pending::Lock(key));
        if let Turn::Mine(me) = turn {
            let mut inner = world.inner.borrow_mut();
            inner.lock(me, key);
            inner.note(me, What::Lock { cell: own_cell(key) });
        }
        while !try_lock() {
            assert_eq!(turn, Turn::Unwinding, "a lock that is free can be taken");
            world.let_others_unwind();
        }
    })
    .is_some()
}

/// Releases a local lock.
#[cold]
fn unlock(address: usize) {
    with_world(|world| {
        // Releasing is a locked instruction: earlier stores are in memory by then, and operations with the NIC.
        let drained = |world: &World| {
            let inner = world.inner.borrow();
            inner.current.is_none_or(|me| inner.machine.is_empty(inner.threads[me].cpu))
        };
        let turn = if drained(world) { None } else { Some(world.point(Pending::Empty)) };
        let mut inner = world.inner.borrow_mut();
        let key = inner.own_key(address);
        if let (Some(me), true) = (inner.current, turn.is_none_or(|turn| turn != Turn::Unwinding)) {
            inner.unlock(me, key);
            inner.note(me, What::Unlock { cell: own_cell(key) });
        }
        // An unwinding thread releases it, too.
        inner.release(key);
    });
}

/// An access to a concurrent structure of the node's own memory.
#[cold]
fn structure(address: usize, write: bool) {
    with_world(|world| {
        let key = key_of(world, address);
        let turn = world.point(if write { Pending::Write(key) } else { Pending::Read(key) });
        if let Turn::Mine(me) = turn {
            let mut inner = world.inner.borrow_mut();
            if write {
                inner.own_written(me, key);
            } else {
                inner.own_read(me, key);
            }
        }
    });
}

/// Another word, lock or structure at this address gets another name: executions may not depend on where the allocator
/// of the process uses memory again. (One that is moved after its first use keeps its name at the old address.)
#[cold]
fn forget(address: usize) {
    with_world(|world| world.inner.borrow_mut().own.names.remove(&address));
}

/// Waits for the end of a simulated thread; the message of its panic.
fn join(world: u64, index: usize) -> Result<(), String> {
    with_world(|here| if here.id == world { here.join(index) } else { Ok(()) }).unwrap_or(Ok(()))
}

/// Whether a simulated thread has ended.
fn is_finished(world: u64, index: usize) -> bool {
    with_world(|here| here.id != world || here.is_finished(index)).unwrap_or(true)
}
