//! The state of a simulated session: threads, nodes, lanes.

use std::collections::VecDeque;

use mowgli::machine::{Thread as Cpu, Words};
use smallvec::SmallVec;

use super::heap::Heap;
use super::wait_set::{Interest, Key, mix};
use crate::error::Code;
use crate::fabric::ControlEvent;
use crate::lane::Local;
use crate::ptr::GroupKey;

/// The next action of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pending {
    /// It runs.
    Nothing,
    /// It waits for the start of the exploration.
    Held,
    /// It starts.
    Start,
    /// It reads something.
    Read(Key),
    /// It changes a word of a region with no store for it in its store buffer, or something else with an empty store
    /// buffer.
    Write(Key),
    /// It waits until its store buffer has no store.
    Fence,
    /// It waits for an empty store buffer: the next step may pass its endpoint to another thread.
    Empty,
    /// It takes a local lock, with its store buffer empty.
    Lock(Key),
    /// It continues when something that it has read has changed, or its node has news.
    Idle(Option<u16>),
    /// It waits for the end of a thread.
    Join(u16),
    /// It waits until no other thread can continue.
    Calm,
    /// It waits for the end of all held threads.
    JoinHeld,
    /// It has ended.
    Finished,
}

pub(super) struct ThreadState {
    pub(super) name: String,
    pub(super) node: u16,
    pub(super) cpu: Cpu,
    pub(super) pending: Pending,
    /// The condition of its next wait.
    pub(super) interest: Interest,
    /// The same for the enclosing waits: an operation that is polled may block.
    pub(super) outer: SmallVec<[Interest; 2]>,
    pub(super) waits: u32,
    /// Before a wait, the reads are to be kept; after it, they were. See [`Inner::keep_interest`].
    pub(super) keeps_interest: bool,
    pub(super) deadline: Option<u64>,
    /// A digest of its observations, in order.
    pub(super) seen: u64,
    /// The same for completions, without order: threads only wait for them.
    pub(super) completions_seen: u64,
    /// Its observations since its last wait, and before; and whether it has only read since.
    pub(super) glance: u64,
    pub(super) glance_before: u64,
    pub(super) seen_before: u64,
    pub(super) has_acted: bool,
    pub(super) was_held: bool,
    pub(super) unwinding: bool,
    pub(super) panic: Option<String>,
}

pub(super) struct NodeState {
    /// Words handed out.
    pub(super) words: u32,
    /// Ranges of words, and the group of each, sorted. Freed ranges are not among them.
    pub(super) regions: Vec<(u32, u32, GroupKey)>,
    pub(super) heap: Heap,
    pub(super) groups: u16,
    /// `rights[group][peer]`.
    pub(super) rights: Vec<Vec<bool>>,
    pub(super) joined: bool,
    pub(super) left: bool,
    pub(super) incarnation: u64,
    /// The peers that it has evicted, as bits.
    pub(super) evicted: u64,
    /// Whether it was evicted itself, and knows it.
    pub(super) fenced: bool,
    /// The peers that have joined, as this node knows.
    pub(super) knows: Vec<bool>,
    /// By sender.
    pub(super) inbox: Vec<VecDeque<ControlEvent>>,
    pub(super) inbox_digest: u64,
    /// Events in it.
    pub(super) news: usize,
    pub(super) wake: bool,
}

impl NodeState {
    /// Loses the last control message of a sender that is not received yet.
    pub(super) fn lose_last(&mut self, from: u16) {
        if self.inbox[usize::from(from)].pop_back().is_some() {
            self.news -= 1;
            self.inbox_digest = mix(self.inbox_digest, u64::from(from) + 0x200);
        }
    }
}

/// A lane's queue pairs for a class of groups, one for each node: they are a machine thread of their own.
pub(super) struct LaneState {
    pub(super) lane: Cpu,
    /// The machine thread of the same lane's queue pairs for the first three groups.
    pub(super) base: Cpu,
    pub(super) class: GroupKey,
    pub(super) node: u16,
    pub(super) in_use: bool,
    /// The results of completions, until the lane is polled.
    pub(super) results: Vec<(u16, u32, Words, Option<Code>)>,
    /// The local memory of the operations in flight when the lane was closed: they continue.
    pub(super) kept: Vec<Local>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// One schedule that needs no decisions: the machine first, then the running thread.
    Settled,
    /// The chooser decides.
    Explored,
}
