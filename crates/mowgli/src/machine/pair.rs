//! A queue pair: the operations of one thread towards one node that are not finished, and what each may do next.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use super::memory::{fold, mix};
use super::{Node, Operation, Part, Source, Step, Thread, Words};

/// An operation on its way. The node at the other end is that of its queue pair.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct InFlight {
    pub(super) sequence: u32,
    pub(super) task: Task,
    /// The length of the transfer in words; 1 for an atomic, 0 for a fence.
    pub(super) words: u32,
    pub(super) stage: Stage,
    /// The pieces that the present half has still to move, a bit for each: while it is reading or started.
    pub(super) left: u64,
    /// The carried words. A word that is not read yet, or has landed already, is 0 here, so that states without a
    /// relevant difference are equal.
    pub(super) data: Words,
}

impl InFlight {
    /// The first remote word; of a fence, which has none, the node's first.
    pub(super) fn remote_word(&self) -> u32 {
        match self.task {
            Task::Put { to, .. } => to,
            Task::Get { from, .. } => from,
            Task::Cas { at, .. } | Task::Faa { at, .. } => at,
            Task::Fence => 0,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Task {
    /// `cells` is `None` if the words are carried from the outset.
    Put {
        cells: Option<u32>,
        to: u32,
        last_mask: u64,
    },
    Get {
        from: u32,
        into: Option<u32>,
    },
    Cas {
        at: u32,
        expected: u64,
        new: u64,
    },
    Faa {
        at: u32,
        addend: u64,
    },
    Fence,
}

/// The progress of an operation. There is no stage for "finished": finished operations leave the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// Its reading half (NLR, NRR, NAR) is not finished.
    Reading,
    /// An atomic between NAR and NAW: no other remote read-modify-write may touch the word.
    Modifying,
    /// Next is the start of its writing half; of a fence, its effect.
    Ready,
    /// Its writing half (NRW, NLW) is in the buffer of its side.
    Started,
}

/// The number of pieces of a transfer.
fn pieces(words: u32) -> u32 {
    words.clamp(1, 64)
}

/// One bit for each piece.
fn all(pieces: u32) -> u64 {
    u64::MAX >> (64 - pieces)
}

impl InFlight {
    pub(super) fn new(sequence: u32, operation: Operation) -> InFlight {
        let mut data = Words::new();
        let (task, words, left) = match operation {
            Operation::Put { source: Source::Carried(carried), to, words, last_mask } => {
                assert_eq!(carried.len(), words as usize, "a put carries as many words as it writes");
                data = carried;
                (Task::Put { cells: None, to: to.word, last_mask }, words, 1)
            }
            Operation::Put { source: Source::Cells(cells), to, words, last_mask } => {
                data.resize(words as usize, 0);
                (Task::Put { cells: Some(cells), to: to.word, last_mask }, words, all(pieces(words)))
            }
            Operation::Get { from, words, into } => {
                data.resize(words as usize, 0);
                (Task::Get { from: from.word, into }, words, all(pieces(words)))
            }
            Operation::Cas { at, expected, new } => {
                data.push(0);
                (Task::Cas { at: at.word, expected, new }, 1, 1)
            }
            Operation::Faa { at, addend } => {
                data.push(0);
                (Task::Faa { at: at.word, addend }, 1, 1)
            }
            Operation::Fence { .. } => (Task::Fence, 0, 0),
        };
        let stage = if matches!(task, Task::Fence) { Stage::Ready } else { Stage::Reading };
        InFlight { sequence, task, words, stage, left, data }
    }

    pub(super) fn is_put(&self) -> bool {
        matches!(self.task, Task::Put { .. })
    }

    pub(super) fn is_fence(&self) -> bool {
        matches!(self.task, Task::Fence)
    }

    pub(super) fn is_atomic(&self) -> bool {
        matches!(self.task, Task::Cas { .. } | Task::Faa { .. })
    }

    /// The word of an atomic.
    pub(super) fn atomic_at(&self) -> Option<u32> {
        match self.task {
            Task::Cas { at, .. } | Task::Faa { at, .. } => Some(at),
            _ => None,
        }
    }

    /// Whether its completion carries its result.
    pub(super) fn brings_words(&self) -> bool {
        matches!(self.task, Task::Get { into: None, .. } | Task::Cas { .. } | Task::Faa { .. })
    }

    /// Whether its thread may see it complete while it is still in the window: a put whose NRW has started.
    pub(super) fn is_complete(&self) -> bool {
        self.is_put() && self.stage == Stage::Started
    }

    /// The first word of a piece in the transfer, and how many words it has.
    pub(super) fn piece(&self, index: u8) -> (u32, u32) {
        if self.words <= 64 {
            return (u32::from(index), self.words.min(1));
        }
        let cut = |index: u64| (index * u64::from(self.words) / 64) as u32;
        let from = cut(u64::from(index));
        (from, cut(u64::from(index) + 1) - from)
    }

    /// The writing half enters the buffer of its side.
    pub(super) fn start(&mut self) {
        self.stage = Stage::Started;
        self.left = if self.brings_words() { 1 } else { all(pieces(self.words)) };
    }

    pub(super) fn digest(&self, seed: u64) -> u64 {
        let [kind, a, b, c] = match self.task {
            Task::Put { cells, to, last_mask } => [0, cells.map_or(u64::MAX, u64::from), u64::from(to), last_mask],
            Task::Get { from, into } => [1, u64::from(from), into.map_or(u64::MAX, u64::from), 0],
            Task::Cas { at, expected, new } => [2, u64::from(at), expected, new],
            Task::Faa { at, addend } => [3, u64::from(at), addend, 0],
            Task::Fence => [4, 0, 0, 0],
        };
        // Sums of products that do not wait for each other; each has constants of its own by the shift of one factor.
        let head = u64::from(self.sequence) << 32 | u64::from(self.words);
        let stage = kind << 8 | self.stage as u64;
        let mut digest = fold(head, stage).wrapping_add(fold(self.left, a).rotate_left(7));
        digest = digest.wrapping_add(fold(b, c).rotate_left(14));
        for (index, &word) in self.data.iter().enumerate() {
            digest = digest.wrapping_add(fold(word, !(index as u64)));
        }
        mix(seed, digest)
    }
}

/// A digest that is computed on demand; 0 is "not yet".
#[derive(Default, Debug)]
pub(super) struct Digest(AtomicU64);

impl Digest {
    pub(super) fn forget(&mut self) {
        *self.0.get_mut() = 0;
    }

    /// Relaxed: threads that race here compute the same value from the same state.
    pub(super) fn get(&self, compute: impl FnOnce() -> u64) -> u64 {
        match self.0.load(Ordering::Relaxed) {
            0 => {
                let digest = compute().max(1);
                self.0.store(digest, Ordering::Relaxed);
                digest
            }
            digest => digest,
        }
    }
}

impl Clone for Digest {
    fn clone(&self) -> Digest {
        Digest(AtomicU64::new(self.0.load(Ordering::Relaxed)))
    }
}

/// The queue pair of a thread and a node.
#[derive(Clone)]
pub(super) struct Pair {
    thread: Thread,
    peer: Node,
    /// How many operations the thread has issued to the node; some may be in its store buffer still.
    pub(super) issued: u32,
    /// By sequence, without those that are finished.
    window: Vec<InFlight>,
    /// Cached: the steps that the window allows, in canonical order. Whether an atomic's word is taken by another
    /// queue pair is not considered here.
    steps: Vec<Step>,
    /// Cached: the step among them that is an NAR, and its word. There is one at most, since read-modify-writes of one
    /// queue pair execute in order.
    atomic_read: Option<(Step, u32)>,
    digest: Digest,
}

impl PartialEq for Pair {
    fn eq(&self, other: &Pair) -> bool {
        (self.thread, self.peer, self.issued) == (other.thread, other.peer, other.issued) && self.window == other.window
    }
}

impl Eq for Pair {}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair").field("issued", &self.issued).field("window", &self.window).finish_non_exhaustive()
    }
}

impl Pair {
    pub(super) fn new(thread: Thread, peer: Node) -> Pair {
        let (window, steps) = (Vec::new(), Vec::new());
        Pair { thread, peer, issued: 0, window, steps, atomic_read: None, digest: Digest::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.window.is_empty()
    }

    pub(super) fn window(&self) -> &[InFlight] {
        &self.window
    }

    pub(super) fn steps(&self) -> &[Step] {
        &self.steps
    }

    pub(super) fn atomic_read(&self) -> Option<(Step, u32)> {
        self.atomic_read
    }

    pub(super) fn issue(&mut self) -> u32 {
        self.issued += 1;
        self.digest.forget();
        self.issued
    }

    pub(super) fn enter(&mut self, operation: InFlight) {
        self.window.push(operation);
        self.refresh();
    }

    pub(super) fn position(&self, sequence: u32) -> Option<usize> {
        self.window.iter().position(|operation| operation.sequence == sequence)
    }

    pub(super) fn get(&self, at: usize) -> &InFlight {
        &self.window[at]
    }

    /// For a change; [`piece_done`](Self::piece_done), [`refresh`](Self::refresh) or [`leave`](Self::leave) must
    /// follow.
    pub(super) fn get_mut(&mut self, at: usize) -> &mut InFlight {
        &mut self.window[at]
    }

    /// The operation is finished, or never will be.
    pub(super) fn leave(&mut self, at: usize) -> InFlight {
        let operation = self.window.remove(at);
        self.refresh();
        operation
    }

    /// A piece was moved and others of the same half are left: nothing changes but that this one is done.
    pub(super) fn piece_done(&mut self, step: Step) {
        self.digest.forget();
        if let Some(at) = self.steps.iter().position(|&other| other == step) {
            self.steps.remove(at);
        }
    }

    /// Whether an operation before this one has an unfinished NRR or NAR.
    pub(super) fn reads_before(&self, at: usize) -> bool {
        self.window[..at].iter().any(|earlier| !earlier.is_put() && earlier.stage == Stage::Reading)
    }

    /// Computes again which steps the window allows: the stamp table, row by row. Each `no_…` below is a condition on
    /// the operations before the current one; finished ones have left the window, so they hinder none.
    pub(super) fn refresh(&mut self) {
        self.digest.forget();
        self.steps.clear();
        self.atomic_read = None;
        // nfo: a NIC read flushes the writes of this queue pair on its side, those of later operations included.
        let (mut local_empty, mut remote_empty) = (true, true);
        for operation in &self.window {
            if operation.stage == Stage::Started {
                *if operation.is_put() { &mut remote_empty } else { &mut local_empty } = false;
            }
        }
        let mut no_fence = true;
        let mut no_put = true;
        let mut no_nlr = true;
        let mut no_unstarted_nrw = true;
        let mut no_unstarted_nlw = true;
        let mut no_atomic = true;
        // Whether the buffer of the side has no write of an earlier operation.
        let (mut local_front, mut remote_front) = (true, true);
        for operation in &self.window {
            let stage = operation.stage;
            let (thread, peer, sequence) = (self.thread, self.peer, operation.sequence);
            let step = |part| Step::Nic { thread, peer, sequence, part };
            if operation.is_put() {
                match stage {
                    // NLR: row F (NLR→NLR) and row J (RF→NLR). NRW, NRR and NLW do not hold it back (G6, H6, I6).
                    Stage::Reading if no_fence && no_nlr && local_empty => {
                        self.steps.extend(bits(operation.left).map(|piece| step(Part::Read(piece))));
                    }
                    // NRW: after its own NLR (iso), and after earlier NRW have started (G7: the FIFO keeps them in
                    // order), so their NLR are done too (F7). J7 holds since its own NLR waited for fences.
                    Stage::Ready if no_unstarted_nrw => self.steps.push(step(Part::Start)),
                    // G7: the buffer is a FIFO.
                    Stage::Started if remote_front => {
                        self.steps.extend(bits(operation.left).map(|piece| step(Part::Land(piece))));
                    }
                    _ => {}
                }
                no_put = false;
                no_nlr &= stage != Stage::Reading;
                no_unstarted_nrw &= stage == Stage::Started;
                remote_front &= stage != Stage::Started;
            } else if operation.is_fence() {
                // RF: rows F, H and J: earlier NLR and NRR and fences are done. Earlier NRW and NLW must only have
                // started (G10, I10), which implies that their reads are done as well.
                if no_fence && no_unstarted_nrw && no_unstarted_nlw {
                    self.steps.push(step(Part::Pass));
                }
                no_fence = false;
            } else {
                let atomic = operation.is_atomic();
                match stage {
                    // NRR: after earlier puts, both halves (F8, G8), and fences (J8), but not after other reads (H8).
                    // NAR: also after earlier read-modify-writes of the queue pair, both halves.
                    Stage::Reading if no_fence && no_put && remote_empty && (no_atomic || !atomic) => {
                        self.steps.extend(bits(operation.left).map(|piece| step(Part::Read(piece))));
                        self.atomic_read =
                            operation.atomic_at().map(|word| (step(Part::Read(0)), word)).or(self.atomic_read);
                    }
                    Stage::Modifying => self.steps.push(step(Part::Modify)),
                    // NLW: after earlier puts, both halves (F9, G9), and after earlier NLW have started (I9: the FIFO
                    // keeps them in order), so their NRR, NAR and NAW are done too (H9). J9 holds since its own
                    // reading half waited for fences.
                    Stage::Ready if no_put && no_unstarted_nlw => self.steps.push(step(Part::Start)),
                    // I9: the buffer is a FIFO.
                    Stage::Started if local_front => {
                        self.steps.extend(bits(operation.left).map(|piece| step(Part::Land(piece))));
                    }
                    _ => {}
                }
                no_atomic &= !(atomic && matches!(stage, Stage::Reading | Stage::Modifying));
                no_unstarted_nlw &= stage == Stage::Started;
                local_front &= stage != Stage::Started;
            }
        }
    }

    pub(super) fn digest(&self) -> u64 {
        if self.issued == 0 {
            return 0;
        }
        self.digest.get(|| {
            let pair = u64::from(self.thread.0) << 16 | u64::from(self.peer);
            let seed = mix(mix(2, pair), u64::from(self.issued));
            self.window.iter().fold(seed, |digest, operation| operation.digest(digest))
        })
    }
}

/// The indices of the bits that are set, from the lowest.
fn bits(mut mask: u64) -> impl Iterator<Item = u8> {
    std::iter::from_fn(move || {
        let lowest = (mask != 0).then(|| mask.trailing_zeros() as u8);
        mask &= mask.wrapping_sub(1);
        lowest
    })
}
