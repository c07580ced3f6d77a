//! What each thread of a program must see: versions that were written before a synchronisation that it has passed.
//!
//! A *register* is a word with one writing thread, which writes the versions 1, 2, …; copies of variables are
//! registers, too. For each register, a thread knows a version that is in memory: it has read it, or it has learned of
//! it by a message. A message is whatever a thread passes to another by an object: a value in a queue, a key's value, a
//! register's version, the release of a lock. It brings the knowledge of its sender, and the sender's earlier puts to
//! the node where it landed (`NRW → NRW`, `NRW → NAR`). A read that finds an older version than the thread knows is a
//! failure.

use std::cell::RefCell;
use std::rc::Rc;

/// The knowledge of a thread when it wrote or sent something.
#[derive(Clone, Default)]
pub(super) struct Message {
    /// The version of each register that was in memory.
    seen: Vec<u64>,
    /// The version that the sender had put itself, last.
    put: Vec<u64>,
}

/// Where a message has arrived, if by a put or an atomic: the sender's earlier puts to that node are visible with it.
/// Otherwise it is a store of the CPU.
pub(super) type Landed = Option<usize>;

/// How a register is read.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Read {
    /// By a load of the CPU.
    Load,
    /// By a get, which flushes the endpoint's earlier puts to the node.
    Get,
}

struct Register {
    name: String,
    home: usize,
    writer: usize,
    /// Written by stores of the CPU, on its own node. Otherwise by puts.
    is_stored: bool,
    /// The writer's knowledge when it wrote each version; none, if it wrote that one elsewhere only.
    versions: Vec<Option<Message>>,
    /// The last version that was stored, or accepted as a put.
    last: u64,
}

/// The registers and messages of a program.
#[derive(Clone, Default)]
pub(super) struct Board(Rc<RefCell<(Vec<Register>, Vec<Message>)>>);

impl Board {
    /// A new register, before the threads begin.
    pub(super) fn register(&self, name: &str, home: usize, writer: usize, is_stored: bool) -> usize {
        let (registers, _) = &mut *self.0.borrow_mut();
        let versions = vec![Some(Message::default())];
        registers.push(Register { name: name.into(), home, writer, is_stored, versions, last: 0 });
        registers.len() - 1
    }

    /// A number that needs no knowledge, for values that are there from the start.
    pub(super) fn token(&self) -> u64 {
        let (_, messages) = &mut *self.0.borrow_mut();
        messages.push(Message::default());
        messages.len() as u64
    }

    /// The last version of a register that was stored, or accepted as a put.
    pub(super) fn last(&self, register: usize) -> u64 {
        self.0.borrow().0[register].last
    }
}

/// A thread of a program.
pub(super) struct Party {
    pub(super) number: usize,
    pub(super) node: usize,
    board: Board,
    seen: Vec<u64>,
    put: Vec<u64>,
}

impl Party {
    pub(super) fn new(number: usize, node: usize, board: &Board) -> Party {
        let unknown = vec![0; board.0.borrow().0.len()];
        Party { number, node, board: board.clone(), seen: unknown.clone(), put: unknown }
    }

    /// This thread's knowledge, for another.
    pub(super) fn message(&self) -> Message {
        Message { seen: self.seen.clone(), put: self.put.clone() }
    }

    /// The same, after a fence that makes all its puts visible.
    pub(super) fn message_behind_fence(&self) -> Message {
        let newest = self.seen.iter().zip(&self.put).map(|(seen, put)| *seen.max(put));
        Message { seen: newest.collect(), put: Vec::new() }
    }

    /// A unique number, to be sent to other threads, above 0.
    pub(super) fn token(&self) -> u64 {
        let (_, messages) = &mut *self.board.0.borrow_mut();
        messages.push(self.message());
        messages.len() as u64
    }

    /// Another thread's number has arrived.
    pub(super) fn hears(&mut self, token: u64, landed: Landed) {
        let message = self.board.0.borrow().1[token as usize - 1].clone();
        self.learns(&message, landed);
    }

    pub(super) fn learns(&mut self, message: &Message, landed: Landed) {
        let (registers, _) = &*self.board.0.borrow();
        for (at, register) in registers.iter().enumerate() {
            let put = message.put.get(at).filter(|_| landed == Some(register.home));
            let newest = message.seen.get(at).max(put).copied().unwrap_or(0);
            self.seen[at] = self.seen[at].max(newest);
        }
    }

    /// All that this thread has put to a node is visible.
    pub(super) fn has_flushed(&mut self, node: usize) {
        let (registers, _) = &*self.board.0.borrow();
        for (at, _) in registers.iter().enumerate().filter(|(_, register)| register.home == node) {
            self.seen[at] = self.seen[at].max(self.put[at]);
        }
    }

    /// All that this thread has put is visible.
    pub(super) fn has_fenced(&mut self) {
        self.seen = self.message_behind_fence().seen;
    }

    /// The newest version of a register.
    pub(super) fn newest(&self, register: usize) -> u64 {
        self.board.0.borrow().0[register].versions.len() as u64 - 1
    }

    /// This thread is about to write the next version of a register.
    pub(super) fn next(&self, register: usize) -> u64 {
        let version = self.newest(register) + 1;
        self.will_write(register, version);
        version
    }

    /// This thread is about to write a version, again or for the first time.
    pub(super) fn will_write(&self, register: usize, version: u64) {
        let (registers, _) = &mut *self.board.0.borrow_mut();
        let (at, versions) = (version as usize, &mut registers[register].versions);
        versions.resize(versions.len().max(at + 1), None);
        versions[at].get_or_insert_with(|| self.message());
    }

    /// It has written it: the store is done, or the put was accepted.
    pub(super) fn has_written(&mut self, at: usize, version: u64) {
        let register = &mut self.board.0.borrow_mut().0[at];
        register.last = version;
        if register.is_stored {
            self.seen[at] = version;
        } else {
            self.put[at] = version;
        }
    }

    /// This thread has found a version.
    pub(super) fn has_read(&mut self, at: usize, version: u64, how: Read) {
        let (writer, landed, message) = {
            let register = &self.board.0.borrow().0[at];
            let known = if how == Read::Get { self.seen[at].max(self.put[at]) } else { self.seen[at] };
            let name = &register.name;
            assert!(version >= known, "{name}: a thread that knows of version {known} has found version {version}");
            let message = register.versions.get(version as usize).cloned().flatten();
            let message = message.unwrap_or_else(|| panic!("{name}: version {version} was never written there"));
            (register.writer, (!register.is_stored).then_some(register.home), message)
        };
        if writer != self.number {
            self.learns(&message, landed);
            self.seen[at] = self.seen[at].max(version);
        }
        if how == Read::Get {
            let home = self.board.0.borrow().0[at].home;
            self.has_flushed(home);
        }
    }
}
