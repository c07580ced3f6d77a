//! The changes that threads can notice, the values that each has seen, and the waits that a change ends.

use foldhash::HashMap;
use mowgli::machine::{Loc, Thread as Cpu, Words};
use smallvec::SmallVec;

use super::state::{LaneState, ThreadState};
use super::world::Inner;
use crate::error::Code;

/// Names something that threads can notice: a word, completions of a lane, news for a node, …
pub(super) type Key = u64;
pub(super) const OWN: Key = 1 << 60;
const COMPLETIONS: Key = 2 << 60;
const INBOX: Key = 3 << 60;
const PEER: Key = 4 << 60;
pub(super) const CLOCK: Key = 5 << 60;
/// The action of a thread that has let its other operations run.
const PAUSED: u64 = 6 << 60;

pub(super) fn cell_key(node: u16, word: u32) -> Key {
    Key::from(node) << 32 | Key::from(word)
}
pub(super) fn loc_key(loc: Loc) -> Key {
    cell_key(loc.node, loc.word)
}
pub(super) fn completions_key(lane: Cpu) -> Key {
    COMPLETIONS | Key::from(lane.0)
}
pub(super) fn inbox_key(node: u16) -> Key {
    INBOX | Key::from(node)
}
pub(super) fn peer_key(node: u16) -> Key {
    PEER | Key::from(node)
}

/// Mixes a value into a digest.
#[inline]
pub(super) fn mix(digest: u64, value: u64) -> u64 {
    let x = (digest ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ x >> 32
}

/// The keys that a thread has looked at since it last waited, and whether it has to look again.
#[derive(Clone, Default)]
pub(super) struct Interest {
    pub(super) watch: SmallVec<[Key; 24]>,
    /// A bit for each of them: most changes are of nothing that is watched.
    bits: u64,
    watches_all: bool,
    /// Something of it has changed.
    pub(super) has_changed: bool,
    /// Completions have arrived that the thread was not notified of.
    pub(super) has_arrivals: bool,
    /// It has read the clock: when time passes, it has to look again.
    pub(super) reads_clock: bool,
    /// Completions that it was notified of since, with results that were not taken yet.
    untaken: SmallVec<[Told; 4]>,
}

/// Names an operation whose completion a thread was notified of: its lane, the peer, and its number there.
pub(super) type Told = (Cpu, u16, u64);

#[inline]
fn bit(key: Key) -> u64 {
    1 << (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58)
}

impl Interest {
    #[inline]
    pub(super) fn looks_at(&self, first: Key, count: u64) -> bool {
        if count == 1 && self.bits & bit(first) == 0 {
            return self.watches_all;
        }
        self.watches_all || self.watch.iter().any(|key| *key >= first && *key < first + count)
    }

    #[inline]
    fn look_at(&mut self, key: Key) {
        if self.watches_all || (self.bits & bit(key) != 0 && self.watch.contains(&key)) {
            return;
        }
        if self.watch.len() == WATCH_MAX {
            self.watches_all = true;
            return;
        }
        self.watch.push(key);
        self.bits |= bit(key);
    }

    /// Forgets everything, to begin anew.
    fn clear(&mut self) {
        self.watch.clear();
        self.untaken.clear();
        self.bits = 0;
        (self.watches_all, self.has_changed, self.has_arrivals) = (false, false, false);
    }

    /// Ends a wait, and begins anew. If only completions have ended it and the values that were read are to be `kept`,
    /// they stay. Returns whether they do.
    pub(super) fn end(&mut self, kept: bool) -> bool {
        let stays = kept && !self.has_changed && self.has_completions();
        if stays {
            self.has_arrivals = false;
            self.untaken.clear();
        } else {
            self.clear();
        }
        stays
    }

    fn has_completions(&self) -> bool {
        self.has_arrivals || !self.untaken.is_empty()
    }

    fn is_woken(&self) -> bool {
        self.has_changed || self.has_completions()
    }

    /// Whether no change ends the wait.
    pub(super) fn is_deaf(&self) -> bool {
        self.watch.is_empty() && !self.watches_all
    }
}

impl ThreadState {
    pub(super) fn is_woken(&self) -> bool {
        self.interest.is_woken()
    }

    pub(super) fn interests(&mut self) -> impl Iterator<Item = &mut Interest> {
        self.outer.iter_mut().chain([&mut self.interest])
    }
}

/// More different things than a thread looks at between two waits; beyond, any change wakes it. Two such threads may
/// wake each other for ever, each by the locks that it takes to look.
const WATCH_MAX: usize = 256;

/// The facts outside of a lock about the contents of it, or of another structure in the node's own memory.
#[derive(Default)]
pub(super) struct OwnState {
    pub(super) holder: Option<usize>,
    digest: u64,
}

/// The words, locks and structures in the nodes' own memory that threads have touched.
#[derive(Default)]
pub(super) struct OwnCells {
    pub(super) cells: Vec<OwnState>,
    /// The index of each, by its address.
    pub(super) names: HashMap<usize, u32>,
    pub(super) digest: u64,
}

impl Inner {
    /// The name of a place in ordinary memory: numbered as it is first seen, since addresses differ between executions.
    pub(super) fn own_name(&mut self, address: usize) -> u32 {
        if let Some(name) = self.own.names.get(&address) {
            return *name;
        }
        let name = self.own.cells.len() as u32;
        self.own.cells.push(OwnState::default());
        self.own.names.insert(address, name);
        name
    }

    pub(super) fn own_key(&mut self, address: usize) -> Key {
        OWN | Key::from(self.own_name(address))
    }

    /// The thread has seen a value: it is part of the thread's knowledge, and its change ends the thread's wait.
    #[inline]
    pub(super) fn saw(&mut self, thread: usize, key: Key, value: u64) {
        let state = &mut self.threads[thread];
        state.seen = mix(mix(state.seen, key), value);
        state.glance = mix(mix(state.glance, key), value);
        self.watch(thread, key);
    }

    /// The thread has done something that others could notice: it is elsewhere in its program than before.
    #[inline]
    pub(super) fn acted(&mut self, thread: usize, what: u64) {
        let state = &mut self.threads[thread];
        state.seen = mix(state.seen, what);
        state.has_acted = true;
    }

    /// Notifies the thread of completions; the others stay pending.
    pub(super) fn told_of(&mut self, thread: usize, completions: &[Told]) {
        let lanes = &self.lanes;
        for interest in self.threads[thread].interests() {
            let waits = |lane: &LaneState| !lane.results.is_empty() && interest.looks_at(completions_key(lane.base), 1);
            // Those of a lane that this wait does not poll have woken it once.
            interest.has_arrivals = interest.has_arrivals && lanes.iter().any(waits);
            interest.untaken.extend_from_slice(completions);
        }
    }

    /// The result of an operation was handed on: the thread need not be woken for it.
    pub(super) fn took(&mut self, thread: usize, operation: Told) {
        for interest in self.threads[thread].interests() {
            interest.untaken.retain(|told| *told != operation);
        }
    }

    /// The thread has seen that an operation is complete, and its result.
    pub(super) fn saw_completion(&mut self, thread: usize, lane: Cpu, result: &(u16, u32, Words, Option<Code>)) {
        let (peer, sequence, words, failure) = result;
        let operation = u64::from(lane.0) << 48 | u64::from(*peer) << 32 | u64::from(*sequence);
        let mut digest = words.iter().fold(mix(COMPLETIONS, operation), |digest, word| mix(digest, *word));
        if let Some(code) = failure {
            digest = mix(digest, *code as u64);
        }
        let state = &mut self.threads[thread];
        state.completions_seen ^= digest;
        state.has_acted = true;
    }

    /// The thread is about to wait. If it has only looked since it last waited, and has seen the same values as then,
    /// its state is the same: waiting is looking again and again.
    pub(super) fn about_to_wait(&mut self, thread: usize) {
        let state = &mut self.threads[thread];
        if !state.has_acted && state.glance == state.glance_before {
            state.seen = state.seen_before;
        }
        state.seen_before = state.seen;
        state.glance_before = state.glance;
        state.glance = 0;
        state.has_acted = false;
    }

    /// A wait of the thread ends when this changes.
    #[inline]
    pub(super) fn watch(&mut self, thread: usize, key: Key) {
        for interest in self.threads[thread].interests() {
            interest.look_at(key);
        }
    }

    /// The thread begins to wait, perhaps in the middle of another wait, which keeps its own interest.
    pub(super) fn begin_wait(&mut self, thread: usize) {
        let state = &mut self.threads[thread];
        if state.waits > 0 {
            state.outer.push(state.interest.clone());
        }
        state.waits += 1;
    }

    /// The current thread is about to sleep in a system call, which only news, `wake_service` and its timeout end:
    /// no change of what it has read does.
    pub(super) fn hears_news_only(&mut self) {
        if let Some(current) = self.current {
            let interest = &mut self.threads[current].interest;
            interest.clear();
            interest.reads_clock = false;
        }
    }

    /// The next wait also belongs to a condition that reads by operations, and has none pending meanwhile. If
    /// completions of others end it, the values that were read still count. Otherwise two such waits would wake each
    /// other for ever, each by its own reads.
    pub(super) fn keep_interest(&mut self, keep: bool) {
        if let Some(current) = self.current {
            self.threads[current].keeps_interest = keep;
        }
    }

    /// Whether the last wait of the current thread has ended for completions only, and its interest was kept.
    pub(super) fn was_kept(&self) -> bool {
        self.current.is_some_and(|current| self.threads[current].keeps_interest)
    }

    pub(super) fn end_wait(&mut self, thread: usize) {
        let state = &mut self.threads[thread];
        state.waits = state.waits.saturating_sub(1);
        if let Some(outer) = state.outer.pop() {
            state.interest = outer;
        }
    }

    /// The thread itself has changed something that it has looked at.
    pub(super) fn notify_itself(&mut self, thread: usize, key: Key) {
        for interest in self.threads[thread].interests() {
            interest.has_changed = interest.has_changed || interest.looks_at(key, 1);
        }
    }

    /// The thread has more to do: its next wait ends at once. It is elsewhere in its program then, though it has seen
    /// nothing new.
    pub(super) fn stay_awake(&mut self, thread: usize) {
        self.threads[thread].interest.has_changed = true;
        self.acted(thread, PAUSED);
    }

    /// Threads that have read one of these continue, except `by`, which knows.
    #[inline]
    pub(super) fn notify(&mut self, first: Key, count: u64, by: Option<usize>) {
        self.changed = true;
        for (index, thread) in self.threads.iter_mut().enumerate() {
            if Some(index) != by {
                for interest in thread.interests() {
                    interest.has_changed = interest.has_changed || interest.looks_at(first, count);
                }
            }
        }
    }

    /// A store to a word outside of regions, or another change there that leads to `value`.
    pub(super) fn own_changed(&mut self, thread: usize, key: Key, old: u64, new: u64) {
        if old != new {
            self.own.digest ^= mix(key, old) ^ mix(key, new);
            self.notify(key, 1, None);
        }
        self.acted(thread, mix(key, new));
    }

    /// A change of a structure with contents that are unknown here: they depend on the order of the changes.
    pub(super) fn own_written(&mut self, thread: usize, key: Key) {
        let own = &mut self.own.cells[(key & !OWN) as usize];
        let before = own.digest;
        own.digest = mix(mix(before, thread as u64 + 1), self.threads[thread].seen);
        let after = own.digest;
        self.own.digest ^= mix(key, before) ^ mix(key, after);
        self.saw(thread, key, before);
        self.acted(thread, key);
        self.notify(key, 1, Some(thread));
    }

    pub(super) fn own_read(&mut self, thread: usize, key: Key) {
        let digest = self.own.cells[(key & !OWN) as usize].digest;
        self.saw(thread, key, digest);
    }

    pub(super) fn lock(&mut self, thread: usize, key: Key) {
        self.own.cells[(key & !OWN) as usize].holder = Some(thread);
        self.own_read(thread, key);
    }

    pub(super) fn unlock(&mut self, thread: usize, key: Key) {
        self.own_written(thread, key);
    }

    pub(super) fn release(&mut self, key: Key) {
        self.own.cells[(key & !OWN) as usize].holder = None;
    }

    pub(super) fn looked_at_clock(&mut self, thread: usize) {
        let state = &mut self.threads[thread];
        state.seen = mix(state.seen, self.time.now_ns);
    }
}
