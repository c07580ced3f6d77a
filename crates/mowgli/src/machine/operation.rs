//! The words of the machine, the operations of its threads, and its steps.

use smallvec::SmallVec;

/// The words that an operation carries.
///
/// ```
/// # use mowgli::machine::*;
/// # let mut machine = Machine::new(2); // two nodes, each with four words
/// # (0..2).for_each(|node| machine.grow(node, 4));
/// # let thread = machine.add_thread(0);
/// let source = Source::Carried(Words::from_slice(&[7, 8]));
/// let put = Operation::Put { source, to: Loc { node: 1, word: 0 }, words: 2, last_mask: !0 };
/// let (peer, sequence) = machine.issue(thread, put);
/// machine.apply(Step::Drain(thread));
/// for part in [Part::Read(0), Part::Start, Part::Land(0), Part::Land(1)] {
///     machine.apply(Step::Nic { thread, peer, sequence, part });
/// }
/// assert_eq!([0, 1].map(|word| machine.memory(Loc { node: 1, word })), [7, 8]);
/// ```
pub type Words = SmallVec<[u64; 4]>;

/// A node of the machine, from 0.
///
/// ```
/// # use mowgli::machine::{Machine, Node};
/// let nodes: [Node; 2] = [0, 1];
/// let mut machine = Machine::new(nodes.len());
/// let threads = nodes.map(|node| machine.add_thread(node));
/// assert_eq!(machine.node_of(threads[1]), nodes[1]);
/// ```
pub type Node = u16;

/// An aligned 8-byte word of a node's memory.
///
/// ```
/// # use mowgli::machine::{Loc, Machine};
/// let mut machine = Machine::new(2);
/// machine.grow(1, 4);
/// machine.poke(Loc { node: 1, word: 3 }, 7); // the last of the four words of node 1
/// assert_eq!(machine.memory(Loc { node: 1, word: 3 }), 7);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Loc {
    /// The node of the memory.
    pub node: Node,
    /// The word's index in it.
    pub word: u32,
}

/// A CPU thread: it has a store buffer, and a queue pair to each node (its own included: loopback).
///
/// ```
/// # use mowgli::machine::{Machine, Thread};
/// let mut machine = Machine::new(2);
/// // The threads of all nodes are numbered together.
/// assert_eq!([0, 1, 1].map(|node| machine.add_thread(node)), [Thread(0), Thread(1), Thread(2)]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Thread(pub u16);

/// The source of a put's words.
///
/// ```
/// # use mowgli::machine::*;
/// # let mut machine = Machine::new(2); // two nodes, each with four words
/// # (0..2).for_each(|node| machine.grow(node, 4));
/// # let thread = machine.add_thread(0);
/// let put = Operation::Put { source: Source::Cells(0), to: Loc { node: 1, word: 0 }, words: 1, last_mask: !0 };
/// let (peer, sequence) = machine.issue(thread, put);
/// machine.apply(Step::Drain(thread));
/// machine.poke(Loc { node: 0, word: 0 }, 7); // the NIC has not read the word yet
/// for part in [Part::Read(0), Part::Start, Part::Land(0)] {
///     machine.apply(Step::Nic { thread, peer, sequence, part });
/// }
/// assert_eq!(machine.memory(Loc { node: 1, word: 0 }), 7);
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    /// They were fixed when the operation was issued: a value, or memory that does not change meanwhile.
    Carried(Words),
    /// Cells of the issuing node from this word on, read when the NIC gets to it.
    Cells(u32),
}

/// An operation that a thread asks of its NIC.
///
/// ```
/// # use mowgli::machine::*;
/// # let mut machine = Machine::new(2); // two nodes, each with four words
/// # (0..2).for_each(|node| machine.grow(node, 4));
/// # let thread = machine.add_thread(0);
/// machine.poke(Loc { node: 1, word: 0 }, 40);
/// machine.issue(thread, Operation::Faa { at: Loc { node: 1, word: 0 }, addend: 2 });
/// let mut steps = Vec::new();
/// let old = loop {
///     steps.clear();
///     machine.enabled(&mut steps);
///     if let Some(done) = machine.apply(steps[0]).completion {
///         break done.words[0];
///     }
/// };
/// assert_eq!((old, machine.memory(Loc { node: 1, word: 0 })), (40, 42));
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    /// Local words to remote memory.
    Put {
        /// The words.
        source: Source,
        /// The first remote word.
        to: Loc,
        /// How many words.
        words: u32,
        /// Which bits of the last word are written; all ones unless the transfer ends inside a word.
        last_mask: u64,
    },
    /// Remote words to local memory.
    Get {
        /// The first remote word.
        from: Loc,
        /// How many words.
        words: u32,
        /// The first of the issuing node's cells that they are written to. `None` if their memory is not read before
        /// the operation is complete: then the [`Completion`] carries them.
        into: Option<u32>,
    },
    /// Remote compare-and-swap; the completion carries the old value.
    Cas {
        /// The word.
        at: Loc,
        /// Written over…
        expected: u64,
        /// …by this.
        new: u64,
    },
    /// Remote fetch-and-add, wrapping; the completion carries the old value.
    Faa {
        /// The word.
        at: Loc,
        /// The number to add.
        addend: u64,
    },
    /// Remote fence of the queue pair to a node.
    Fence {
        /// The node.
        node: Node,
    },
}

/// A step that the machine may take by itself.
///
/// ```
/// # use mowgli::machine::*;
/// # let mut machine = Machine::new(2); // two nodes, each with four words
/// # (0..2).for_each(|node| machine.grow(node, 4));
/// # let thread = machine.add_thread(0);
/// let (peer, sequence) = machine.issue(thread, Operation::Fence { node: 1 });
/// machine.apply(Step::Drain(thread)); // the fence enters its queue pair
/// let mut steps = Vec::new();
/// machine.enabled(&mut steps);
/// assert_eq!(steps, [Step::Nic { thread, peer, sequence, part: Part::Pass }]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Step {
    /// The oldest entry of a thread's store buffer leaves it: a CPU write reaches memory, an operation its queue pair.
    Drain(Thread),
    /// A subevent of an operation.
    Nic {
        /// The issuing thread.
        thread: Thread,
        /// The target node.
        peer: Node,
        /// Its number among the operations of this thread to that node, from 1.
        sequence: u32,
        /// Which subevent.
        part: Part,
    },
}

/// The subevents of an operation; those of long transfers are done piece by piece, in any order.
///
/// ```
/// # use mowgli::machine::*;
/// # let mut machine = Machine::new(2); // two nodes, each with four words
/// # (0..2).for_each(|node| machine.grow(node, 4));
/// # let thread = machine.add_thread(0);
/// let get = Operation::Get { from: Loc { node: 1, word: 0 }, words: 1, into: Some(0) };
/// let (peer, sequence) = machine.issue(thread, get);
/// machine.apply(Step::Drain(thread));
/// let mut is_complete = |part| machine.apply(Step::Nic { thread, peer, sequence, part }).completion.is_some();
/// assert_eq!([Part::Read(0), Part::Start, Part::Land(0)].map(&mut is_complete), [false, false, true]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Part {
    /// NLR of a put, NRR of a get, NAR of an atomic: one piece is read. (A carried source has one piece.)
    Read(u8),
    /// NRW, NLW: the write enters the buffer of its side. For an atomic: the old value enters the local side's buffer.
    Start,
    /// One piece leaves the buffer for memory. (The content of a completion has one piece.)
    Land(u8),
    /// NAW: an atomic writes.
    Modify,
    /// RF: a remote fence takes effect.
    Pass,
}

/// Which way a step needs the connection between the two nodes of its queue pair.
///
/// ```
/// # use mowgli::machine::*;
/// # let mut machine = Machine::new(2); // two nodes, each with four words
/// # (0..2).for_each(|node| machine.grow(node, 4));
/// # let thread = machine.add_thread(0);
/// let get = Operation::Get { from: Loc { node: 1, word: 0 }, words: 1, into: Some(0) };
/// let (peer, sequence) = machine.issue(thread, get);
/// machine.apply(Step::Drain(thread));
/// let part = |part| Step::Nic { thread, peer, sequence, part };
/// assert_eq!(machine.crossing(part(Part::Read(0))), Some(Crossing::There)); // the request
/// machine.apply(part(Part::Read(0)));
/// assert_eq!(machine.crossing(part(Part::Start)), Some(Crossing::Back)); // the word
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crossing {
    /// A request or a write on its way to the peer.
    There,
    /// A value that was read, on its way back.
    Back,
}

/// The memory that a step would touch. Two steps with disjoint footprints may be taken in either order.
///
/// Locations are the first word and the number of words.
///
/// ```
/// # use mowgli::machine::*;
/// # let mut machine = Machine::new(2);
/// # (0..2).for_each(|node| machine.grow(node, 4));
/// # let (one, two) = (machine.add_thread(0), machine.add_thread(1));
/// machine.write(one, 0, 7);
/// machine.write(two, 0, 8);
/// let [first, second] = [one, two].map(Step::Drain);
/// assert_ne!(machine.footprint(first).writes, machine.footprint(second).writes); // memory of two nodes
/// let mut other = machine.clone();
/// [first, second].map(|step| machine.apply(step));
/// [second, first].map(|step| other.apply(step));
/// assert_eq!(machine, other);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Footprint {
    /// The thread of the step.
    pub thread: Thread,
    /// The queue pair that changes.
    pub pair: Option<(Thread, Node)>,
    /// Memory that is read.
    pub reads: Option<(Loc, u32)>,
    /// Memory that is written. NAR counts as a write, since it excludes other read-modify-writes of the word.
    pub writes: Option<(Loc, u32)>,
    /// Whether the operation is complete afterwards, and was not before.
    pub completes: bool,
}

/// The effects of a step. Locations are the first word and the number of words.
///
/// ```
/// # use mowgli::machine::*;
/// # let mut machine = Machine::new(2); // two nodes, each with four words
/// # (0..2).for_each(|node| machine.grow(node, 4));
/// # let thread = machine.add_thread(0);
/// machine.write(thread, 2, 0); // the word is 0 already
/// let writes = Some((Loc { node: 0, word: 2 }, 1));
/// assert_eq!(machine.apply(Step::Drain(thread)), Applied { writes, changed: false, ..Applied::default() });
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Applied {
    /// Memory that was read.
    pub reads: Option<(Loc, u32)>,
    /// Memory that was written.
    pub writes: Option<(Loc, u32)>,
    /// Whether some written word has another value now.
    pub changed: bool,
    /// The operation that is complete now.
    pub completion: Option<Completion>,
}

/// An operation is complete: a wait for it returns.
///
/// ```
/// # use mowgli::machine::*;
/// # let mut machine = Machine::new(2); // two nodes, each with four words
/// # (0..2).for_each(|node| machine.grow(node, 4));
/// # let thread = machine.add_thread(0);
/// machine.poke(Loc { node: 1, word: 0 }, 40);
/// let get = Operation::Get { from: Loc { node: 1, word: 0 }, words: 1, into: None };
/// let (peer, sequence) = machine.issue(thread, get);
/// machine.apply(Step::Drain(thread));
/// let mut done = |part| machine.apply(Step::Nic { thread, peer, sequence, part }).completion;
/// let [.., completion] = [Part::Read(0), Part::Start, Part::Land(0)].map(&mut done);
/// assert_eq!(completion, Some(Completion { thread, peer, sequence, words: Words::from_slice(&[40]) }));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The issuing thread.
    pub thread: Thread,
    /// The target node.
    pub peer: Node,
    /// Its number among the operations of this thread to that node.
    pub sequence: u32,
    /// The words that a get without cells, or an atomic, has read. Empty for others.
    pub words: Words,
}
