//! The RDMA^TSO machine.
//!
//! ```text
//!            thread                        queue pair (thread, peer)                     peer's memory
//!   CPU ──► store buffer ──Drain──► operations in flight ──Start──► remote side's buffer ──Land──►
//!                │                    │ Read: NLR, NRR, NAR                              ◄──Modify──
//!              Drain                  └───────────────────Start──► local side's buffer
//!                ▼                                                      │
//!            own memory ◄──────────────────────Land─────────────────────┘
//! ```
//!
//! It follows the model of Ambal et al., "Semantics of Remote Direct Memory Access: Operational and Declarative Models
//! of RDMA on TSO Architectures" (OOPSLA 2024, doi 10.1145/3689781), with waits for single operations, and adds remote
//! read-modify-writes.
//!
//! *CPU.* Writes and the issue of operations enter the thread's store buffer and leave it in order ([`Step::Drain`]). A
//! read takes the newest own buffered write of the word, else memory. A compare-and-swap or a memory fence needs the
//! buffer without writes ([`Machine::is_drained`]).
//!
//! *NIC.* A queue pair is no queue: an operation's next subevent may happen once every earlier subevent of the queue
//! pair that the stamp table orders before it has happened. A put reads its source (NLR), enters the remote side's
//! buffer (NRW starts: the put is complete) and lands. A get reads (NRR), enters the local side's buffer (NLW) and
//! lands: then it is complete. Both buffers are FIFOs, one of each for every queue pair. A NIC read waits until the
//! buffer of its side is empty. Nothing orders different queue pairs.
//!
//! *Read-modify-writes* read (NAR), write memory directly (NAW, unless a comparison fails) and bring the old value
//! back (NLW). They are atomic among themselves only: CPU accesses and puts may occur between NAR and NAW.
//!
//! *Transfers* of k words move in min(k, 64) pieces, each piece at once, the pieces of a half in any order.
//!
//! Nothing happens by itself: [`Machine::enabled`] lists the possible steps, [`Machine::apply`] takes one.

use std::hash::{Hash, Hasher};

use smallvec::SmallVec;

mod cpu;
mod memory;
mod operation;
mod pair;
mod steps;

use cpu::{Cpu, Entry};
use memory::{Memory, mix};
use pair::{InFlight, Stage};

pub use operation::{
    Applied, Completion, Crossing, Footprint, Loc, Node, Operation, Part, Source, Step, Thread, Words,
};

/// The whole state: the nodes' memory, the threads' store buffers, the queue pairs.
///
/// ```
/// use mowgli::machine::{Loc, Machine, Step};
/// let mut machine = Machine::new(1);
/// machine.grow(0, 2);
/// let thread = machine.add_thread(0);
/// machine.write(thread, 0, 7);
/// // The write is in the store buffer: its thread sees it, and memory does not have it yet.
/// assert_eq!((machine.read(thread, 0), machine.memory(Loc { node: 0, word: 0 })), (7, 0));
/// machine.apply(Step::Drain(thread));
/// assert_eq!(machine.memory(Loc { node: 0, word: 0 }), 7);
/// ```
#[derive(Clone, Debug)]
pub struct Machine {
    memory: Memory,
    threads: Vec<Cpu>,
    /// Cached: the words of the read-modify-writes that are between NAR and NAW.
    held: SmallVec<[Loc; 4]>,
    /// Cached: the steps of all threads, in canonical order; an NAR is listed whether its word is held or not.
    listed: Vec<Step>,
}

/// Compares the meaning: caches do not count.
impl PartialEq for Machine {
    fn eq(&self, other: &Machine) -> bool {
        self.memory == other.memory && self.threads == other.threads
    }
}

impl Eq for Machine {}

impl Hash for Machine {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.digest());
    }
}

/// Building a machine, and looking at its memory.
impl Machine {
    /// So many nodes, without memory, without threads.
    ///
    /// ```
    /// # use mowgli::machine::{Machine, Thread};
    /// let mut machine = Machine::new(2); // the nodes 0 and 1
    /// machine.grow(1, 4);
    /// assert_eq!(machine.add_thread(1), Thread(0));
    /// ```
    pub fn new(nodes: usize) -> Machine {
        Machine { memory: Memory::new(nodes), threads: Vec::new(), held: SmallVec::new(), listed: Vec::new() }
    }

    /// A node's memory has at least so many words from now on; the new ones are 0.
    ///
    /// ```
    /// # use mowgli::machine::{Loc, Machine};
    /// # let mut machine = Machine::new(1);
    /// machine.grow(0, 1);
    /// machine.poke(Loc { node: 0, word: 0 }, 7);
    /// machine.grow(0, 3);
    /// assert_eq!([0, 1, 2].map(|word| machine.memory(Loc { node: 0, word })), [7, 0, 0]);
    /// ```
    pub fn grow(&mut self, node: Node, words: u32) {
        self.memory.grow(node, words);
    }

    /// A new thread on a node.
    ///
    /// ```
    /// # use mowgli::machine::Machine;
    /// # let mut machine = Machine::new(1);
    /// # machine.grow(0, 1);
    /// let (first, second) = (machine.add_thread(0), machine.add_thread(0));
    /// machine.write(first, 0, 7);
    /// assert_eq!((machine.read(first, 0), machine.read(second, 0)), (7, 0)); // each has a store buffer
    /// ```
    pub fn add_thread(&mut self, node: Node) -> Thread {
        assert!(usize::from(node) < self.memory.nodes(), "there is no node {node}");
        let thread = Thread(u16::try_from(self.threads.len()).expect("fewer than 65536 threads"));
        self.threads.push(Cpu::new(thread, node, self.memory.nodes()));
        thread
    }

    /// The node of a thread.
    ///
    /// ```
    /// # use mowgli::machine::Machine;
    /// # let mut machine = Machine::new(2);
    /// let thread = machine.add_thread(1);
    /// assert_eq!(machine.node_of(thread), 1);
    /// ```
    pub fn node_of(&self, thread: Thread) -> Node {
        self.cpu(thread).node
    }

    /// A word as it is in memory, whatever the buffers hold.
    ///
    /// ```
    /// # use mowgli::machine::*;
    /// # let mut machine = Machine::new(2); // two nodes, each with four words
    /// # (0..2).for_each(|node| machine.grow(node, 4));
    /// # let thread = machine.add_thread(0);
    /// machine.write(thread, 0, 7);
    /// assert_eq!(machine.memory(Loc { node: 0, word: 0 }), 0); // the write is in the store buffer
    /// ```
    pub fn memory(&self, loc: Loc) -> u64 {
        self.memory.get(loc)
    }

    /// Sets a word of memory directly, past all buffers: for initial values.
    ///
    /// ```
    /// # use mowgli::machine::{Loc, Machine};
    /// # let mut machine = Machine::new(1);
    /// machine.grow(0, 2);
    /// machine.poke(Loc { node: 0, word: 1 }, 10);
    /// assert_eq!(machine.memory(Loc { node: 0, word: 1 }), 10);
    /// ```
    pub fn poke(&mut self, loc: Loc, value: u64) {
        self.memory.set(loc, value);
    }

    /// Whether nothing is buffered or in flight.
    ///
    /// ```
    /// # use mowgli::machine::*;
    /// # let mut machine = Machine::new(2); // two nodes, each with four words
    /// # (0..2).for_each(|node| machine.grow(node, 4));
    /// # let thread = machine.add_thread(0);
    /// machine.write(thread, 0, 7);
    /// assert!(!machine.is_idle());
    /// machine.apply(Step::Drain(thread));
    /// assert!(machine.is_idle());
    /// ```
    pub fn is_idle(&self) -> bool {
        self.threads.iter().all(|cpu| cpu.store_buffer.is_empty() && cpu.active.is_empty())
    }

    /// A digest of the whole state, the same for equal states.
    ///
    /// ```
    /// # use mowgli::machine::*;
    /// # let mut machine = Machine::new(2); // two nodes, each with four words
    /// # (0..2).for_each(|node| machine.grow(node, 4));
    /// # let thread = machine.add_thread(0);
    /// let mut other = machine.clone();
    /// other.poke(Loc { node: 1, word: 0 }, 7);
    /// assert_ne!(machine.digest(), other.digest());
    /// other.poke(Loc { node: 1, word: 0 }, 0);
    /// assert_eq!(machine.digest(), other.digest());
    /// ```
    pub fn digest(&self) -> u64 {
        let mut digest = self.memory.digest();
        for (thread, cpu) in self.threads.iter().enumerate() {
            digest ^= mix(thread as u64, cpu.digest());
            for pair in &cpu.pairs {
                digest ^= pair.digest();
            }
        }
        digest
    }

    fn cpu(&self, thread: Thread) -> &Cpu {
        &self.threads[usize::from(thread.0)]
    }

    fn cpu_mut(&mut self, thread: Thread) -> &mut Cpu {
        &mut self.threads[usize::from(thread.0)]
    }
}

/// What threads do: events of the CPU on its own node's memory, and the issue of operations.
impl Machine {
    /// The newest own buffered write of the word, else memory.
    ///
    /// ```
    /// # use mowgli::machine::*;
    /// # let mut machine = Machine::new(2); // two nodes, each with four words
    /// # (0..2).for_each(|node| machine.grow(node, 4));
    /// # let thread = machine.add_thread(0);
    /// machine.poke(Loc { node: 0, word: 0 }, 1);
    /// machine.poke(Loc { node: 0, word: 1 }, 2);
    /// machine.write(thread, 0, 7);
    /// assert_eq!((machine.read(thread, 0), machine.read(thread, 1)), (7, 2));
    /// ```
    pub fn read(&self, thread: Thread, word: u32) -> u64 {
        let cpu = self.cpu(thread);
        cpu.newest_write(word).unwrap_or_else(|| self.memory.get(Loc { node: cpu.node, word }))
    }

    /// Whether [`read`](Self::read) would take the value from the thread's own store buffer.
    ///
    /// ```
    /// # use mowgli::machine::*;
    /// # let mut machine = Machine::new(2); // two nodes, each with four words
    /// # (0..2).for_each(|node| machine.grow(node, 4));
    /// # let thread = machine.add_thread(0);
    /// machine.write(thread, 0, 7);
    /// assert!(machine.forwards(thread, 0));
    /// machine.apply(Step::Drain(thread));
    /// assert!(!machine.forwards(thread, 0)); // the write has reached memory
    /// ```
    pub fn forwards(&self, thread: Thread, word: u32) -> bool {
        self.cpu(thread).newest_write(word).is_some()
    }

    /// A CPU write: it enters the store buffer.
    ///
    /// ```
    /// # use mowgli::machine::*;
    /// # let mut machine = Machine::new(2); // two nodes, each with four words
    /// # (0..2).for_each(|node| machine.grow(node, 4));
    /// # let thread = machine.add_thread(0);
    /// machine.write(thread, 0, 7);
    /// machine.apply(Step::Drain(thread)); // it leaves the store buffer
    /// assert_eq!(machine.memory(Loc { node: 0, word: 0 }), 7);
    /// ```
    pub fn write(&mut self, thread: Thread, word: u32, value: u64) {
        let loc = Loc { node: self.node_of(thread), word };
        assert!(self.memory.has(loc, 1), "node {} has no word {word}", loc.node);
        let cpu = self.cpu_mut(thread);
        cpu.store_buffer.push_back(Entry::Write { word, value });
        cpu.writes += 1;
        cpu.digest.forget();
        if cpu.store_buffer.len() == 1 {
            self.list(thread);
        }
    }

    /// Whether the thread's store buffer is empty: no write and no operation is left in it. A CPU instruction need not
    /// wait for that (see [`Machine::is_drained`]); handing the thread's queue pairs to another thread must.
    ///
    /// ```
    /// # use mowgli::machine::*;
    /// # let mut machine = Machine::new(2); // two nodes, each with four words
    /// # (0..2).for_each(|node| machine.grow(node, 4));
    /// # let thread = machine.add_thread(0);
    /// machine.issue(thread, Operation::Fence { node: 1 });
    /// assert!(!machine.is_empty(thread));
    /// machine.apply(Step::Drain(thread));
    /// assert!(machine.is_empty(thread) && !machine.is_idle()); // the fence is in flight
    /// ```
    pub fn is_empty(&self, thread: Thread) -> bool {
        self.cpu(thread).store_buffer.is_empty()
    }

    /// Whether no CPU write is left in the store buffer: then a memory fence or a compare-and-swap may execute.
    /// Operations may be left in it.
    ///
    /// ```
    /// # use mowgli::machine::*;
    /// # let mut machine = Machine::new(2); // two nodes, each with four words
    /// # (0..2).for_each(|node| machine.grow(node, 4));
    /// # let thread = machine.add_thread(0);
    /// machine.issue(thread, Operation::Fence { node: 1 });
    /// assert!(machine.is_drained(thread) && !machine.is_empty(thread)); // an operation, and no write
    /// ```
    pub fn is_drained(&self, thread: Thread) -> bool {
        self.cpu(thread).writes == 0
    }

    /// A CPU compare-and-swap; the old value.
    ///
    /// ```
    /// # use mowgli::machine::*;
    /// # let mut machine = Machine::new(2); // two nodes, each with four words
    /// # (0..2).for_each(|node| machine.grow(node, 4));
    /// # let thread = machine.add_thread(0);
    /// assert_eq!(machine.compare_exchange(thread, 0, 0, 7), 0);
    /// assert_eq!(machine.compare_exchange(thread, 0, 0, 8), 7); // it is 7, so it stays
    /// assert_eq!(machine.read(thread, 0), 7);
    /// ```
    ///
    /// # Panics
    /// The thread [is not drained](Self::is_drained).
    pub fn compare_exchange(&mut self, thread: Thread, word: u32, expected: u64, new: u64) -> u64 {
        self.read_modify_write(thread, word, |old| if old == expected { new } else { old })
    }

    /// A CPU fetch-and-add, wrapping; the old value.
    ///
    /// ```
    /// # use mowgli::machine::*;
    /// # let mut machine = Machine::new(2); // two nodes, each with four words
    /// # (0..2).for_each(|node| machine.grow(node, 4));
    /// # let thread = machine.add_thread(0);
    /// assert_eq!(machine.fetch_add(thread, 0, 7), 0);
    /// assert_eq!(machine.read(thread, 0), 7);
    /// ```
    ///
    /// # Panics
    /// The thread [is not drained](Self::is_drained).
    pub fn fetch_add(&mut self, thread: Thread, word: u32, addend: u64) -> u64 {
        self.read_modify_write(thread, word, |old| old.wrapping_add(addend))
    }

    fn read_modify_write(&mut self, thread: Thread, word: u32, modify: impl FnOnce(u64) -> u64) -> u64 {
        assert!(self.is_drained(thread), "a CPU read-modify-write waits until the store buffer has no write");
        let loc = Loc { node: self.node_of(thread), word };
        let old = self.memory.get(loc);
        self.memory.set(loc, modify(old));
        old
    }

    /// An operation enters the store buffer. Returns its peer and its sequence: 1, 2, … for each thread and peer.
    ///
    /// ```
    /// # use mowgli::machine::*;
    /// # let mut machine = Machine::new(2); // two nodes, each with four words
    /// # (0..2).for_each(|node| machine.grow(node, 4));
    /// # let thread = machine.add_thread(0);
    /// # let source = Source::Carried(Words::from_slice(&[7]));
    /// # let put = Operation::Put { source, to: Loc { node: 1, word: 0 }, words: 1, last_mask: !0 };
    /// assert_eq!(machine.issue(thread, put), (1, 1)); // the first one to node 1
    /// assert_eq!(machine.issue(thread, Operation::Fence { node: 1 }), (1, 2));
    /// ```
    ///
    /// # Panics
    /// It touches memory that its node does not have, or its number of words is wrong.
    pub fn issue(&mut self, thread: Thread, operation: Operation) -> (Node, u32) {
        self.issue_on(thread, thread, operation)
    }

    /// [`Machine::issue`] by a thread that uses the queue pairs of another, for an endpoint that moved between
    /// threads. The operation passes the store buffer of `thread`, and is `lane`'s from then on. Both are on the same
    /// node.
    ///
    /// ```
    /// # use mowgli::machine::{Machine, Operation};
    /// # let mut machine = Machine::new(2);
    /// let (lane, thread) = (machine.add_thread(0), machine.add_thread(0));
    /// assert_eq!(machine.issue(lane, Operation::Fence { node: 1 }), (1, 1));
    /// assert_eq!(machine.issue_on(thread, lane, Operation::Fence { node: 1 }), (1, 2)); // the second one of `lane`
    /// ```
    pub fn issue_on(&mut self, thread: Thread, lane: Thread, operation: Operation) -> (Node, u32) {
        let own = self.node_of(thread);
        let (remote, local, words) = match operation {
            Operation::Put { source: Source::Cells(word), to, words, .. } => (to, Some(word), words),
            Operation::Put { to, words, .. } => (to, None, words),
            Operation::Get { from, words, into } => (from, into, words),
            Operation::Cas { at, .. } | Operation::Faa { at, .. } => (at, None, 1),
            Operation::Fence { node } => (Loc { node, word: 0 }, None, 0),
        };
        for loc in [Some(remote), local.map(|word| Loc { node: own, word })].into_iter().flatten() {
            assert!(self.memory.has(loc, words), "node {} has no words {}..+{words}", loc.node, loc.word);
        }
        let peer = remote.node;
        assert_eq!(self.node_of(lane), own, "a thread uses queue pairs of its own node");
        let sequence = self.cpu_mut(lane).pairs[usize::from(peer)].issue();
        let operation = InFlight::new(sequence, operation);
        let cpu = self.cpu_mut(thread);
        cpu.store_buffer.push_back(Entry::Operation { lane, peer, operation });
        cpu.digest.forget();
        if cpu.store_buffer.len() == 1 {
            self.list(thread);
        }
        (peer, sequence)
    }

    /// Whether an operation is complete: a put when its NRW has started, a get or an atomic when its NLW has finished,
    /// a fence when it took effect. Completion of a later operation implies nothing about an earlier one. False for an
    /// operation that was never issued.
    ///
    /// ```
    /// # use mowgli::machine::*;
    /// # let mut machine = Machine::new(2); // two nodes, each with four words
    /// # (0..2).for_each(|node| machine.grow(node, 4));
    /// # let thread = machine.add_thread(0);
    /// # let source = Source::Carried(Words::from_slice(&[7]));
    /// # let put = Operation::Put { source, to: Loc { node: 1, word: 0 }, words: 1, last_mask: !0 };
    /// let (peer, put) = machine.issue(thread, put);
    /// machine.apply(Step::Drain(thread));
    /// machine.apply(Step::Nic { thread, peer, sequence: put, part: Part::Read(0) });
    /// machine.apply(Step::Nic { thread, peer, sequence: put, part: Part::Start });
    /// assert!(machine.is_complete(thread, peer, put));
    /// assert_eq!(machine.memory(Loc { node: 1, word: 0 }), 0); // complete, and not yet visible
    /// ```
    pub fn is_complete(&self, thread: Thread, peer: Node, sequence: u32) -> bool {
        let cpu = self.cpu(thread);
        let pair = cpu.pair(peer);
        if sequence == 0 || sequence > pair.issued {
            return false;
        }
        match pair.position(sequence) {
            Some(at) => pair.get(at).is_complete(),
            // A finished operation has left the window.
            None => !self.threads.iter().any(|cpu| cpu.buffered(thread, peer, sequence).is_some()),
        }
    }

    /// Drops the remaining steps of an operation: its target is dead, or its right revoked. Later operations continue
    /// as if it had finished. Returns its completion if it was not complete before, with zeros for the words that it
    /// would have brought.
    ///
    /// ```
    /// # use mowgli::machine::*;
    /// # let mut machine = Machine::new(2); // two nodes, each with four words
    /// # (0..2).for_each(|node| machine.grow(node, 4));
    /// # let thread = machine.add_thread(0);
    /// let get = Operation::Get { from: Loc { node: 1, word: 0 }, words: 2, into: None };
    /// let (peer, get) = machine.issue(thread, get);
    /// assert_eq!(machine.cancel(thread, peer, get).unwrap().words[..], [0, 0]);
    /// assert!(machine.is_idle());
    /// ```
    pub fn cancel(&mut self, thread: Thread, peer: Node, sequence: u32) -> Option<Completion> {
        let cpu = self.cpu_mut(thread);
        let operation = if let Some(at) = cpu.pair(peer).position(sequence) {
            cpu.leave(peer, at)
        } else {
            let buffered = |(cpu, at): (usize, &Cpu)| at.buffered(thread, peer, sequence).map(|at| (cpu, at));
            let (issuer, at) = self.threads.iter().enumerate().find_map(buffered)?;
            let cpu = &mut self.threads[issuer];
            cpu.digest.forget();
            let Some(Entry::Operation { operation, .. }) = cpu.store_buffer.remove(at) else {
                unreachable!("an operation was found there")
            };
            self.list(Thread(issuer as u16));
            operation
        };
        self.list(thread);
        if operation.stage == Stage::Modifying {
            self.release(peer, &operation);
        }
        if operation.is_complete() {
            return None;
        }
        let words = if operation.brings_words() { operation.words as usize } else { 0 };
        Some(Completion { thread, peer, sequence, words: SmallVec::from_elem(0, words) })
    }

    /// A thread's operations under way to a node, in its queue pair or still in a store buffer: sequence and first
    /// remote word.
    ///
    /// ```
    /// # use mowgli::machine::*;
    /// # let mut machine = Machine::new(2); // two nodes, each with four words
    /// # (0..2).for_each(|node| machine.grow(node, 4));
    /// # let thread = machine.add_thread(0);
    /// # let source = Source::Carried(Words::from_slice(&[7]));
    /// # let put = Operation::Put { source, to: Loc { node: 1, word: 0 }, words: 1, last_mask: !0 };
    /// machine.issue(thread, put);
    /// assert_eq!(machine.in_flight(thread, 1), [(1, Loc { node: 1, word: 0 })]);
    /// assert_eq!(machine.newest_posted(thread, 1), None); // it is still in the store buffer
    /// ```
    pub fn in_flight(&self, thread: Thread, peer: Node) -> Vec<(u32, Loc)> {
        let buffered = self.threads.iter().flat_map(|cpu| &cpu.store_buffer).filter_map(|entry| match entry {
            Entry::Operation { lane, peer: to, operation } if (*lane, *to) == (thread, peer) => Some(operation),
            _ => None,
        });
        let window = self.cpu(thread).pair(peer).window();
        window.iter().chain(buffered).map(|op| (op.sequence, Loc { node: peer, word: op.remote_word() })).collect()
    }

    /// The newest operation of a queue pair that has left the store buffer and is not finished.
    ///
    /// ```
    /// # use mowgli::machine::*;
    /// # let mut machine = Machine::new(2); // two nodes, each with four words
    /// # (0..2).for_each(|node| machine.grow(node, 4));
    /// # let thread = machine.add_thread(0);
    /// machine.issue(thread, Operation::Fence { node: 1 });
    /// assert_eq!(machine.newest_posted(thread, 1), None);
    /// machine.apply(Step::Drain(thread)); // it leaves the store buffer
    /// assert_eq!(machine.newest_posted(thread, 1), Some(1));
    /// ```
    pub fn newest_posted(&self, thread: Thread, peer: Node) -> Option<u32> {
        self.cpu(thread).pair(peer).window().last().map(|operation| operation.sequence)
    }

    /// The CPUs of a node stop: their store buffers are lost. Its queue pairs continue.
    ///
    /// ```
    /// # use mowgli::machine::*;
    /// # let mut machine = Machine::new(2); // two nodes, each with four words
    /// # (0..2).for_each(|node| machine.grow(node, 4));
    /// # let thread = machine.add_thread(0);
    /// machine.write(thread, 0, 7);
    /// machine.lose_store_buffers(0);
    /// assert!(machine.is_idle());
    /// assert_eq!(machine.read(thread, 0), 0);
    /// ```
    pub fn lose_store_buffers(&mut self, node: Node) {
        for thread in (0..self.threads.len()).map(|thread| Thread(thread as u16)) {
            let cpu = self.cpu_mut(thread);
            if cpu.node == node {
                cpu.store_buffer.clear();
                cpu.writes = 0;
                cpu.digest.forget();
                self.list(thread);
            }
        }
    }

    /// Another read-modify-write may have the word.
    fn release(&mut self, peer: Node, operation: &InFlight) {
        let loc = operation.atomic_at().map(|word| Loc { node: peer, word });
        self.held.retain(|held| Some(*held) != loc);
    }
}
