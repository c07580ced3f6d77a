//! The summaries S (§3.3, §4): for each process and summarisation group one call, which the process overwrites at all
//! others by one put.
//!
//! ```text
//! region `summaries`, for each process and group two slots:
//!   +0  ┌───────────────────────────────┐
//!       │ written                       │   how often this summary was written: the slot is `written` modulo 2
//!   +8  ├───────────────────────────────┤
//!       │ hash of all other words       │   XXH3
//!   +16 ├───────────────┬───────────────┤
//!       │ epoch (32)    │ bytes (32)    │   how often the summary was folded
//!   +24 ├───────────────┴───────────────┤
//!       │ numbers of calls, call        │   the applied count and the summary, in one put
//!       └───────────────────────────────┘
//! ```
//!
//! Puts to one node land in order, so one slot at most is half-written, and the other one has the summary before it. A
//! reader takes the newest that is whole; each has all calls of those before it, so none has to be read.
//!
//! *One endpoint.* The puts of two endpoints have no order: an old summary could land over a new one. So only the
//! endpoint that makes the call puts it. If the put is refused, the summary is *folded*: it is moved into the feed,
//! where entries are numbered, and a new epoch of the summary begins, empty. Likewise if it has become too long for its
//! slot. A reader uses a summary when it has applied the folds of all epochs before.

use farfield_core::Result;
use farfield_core::toolkit::Object;
use farfield_fabric::{self as fabric, Endpoint, NodeId, Region, RemotePtr, read_words, write_words};
use xxhash_rust::xxh3::xxh3_64_with_seed;
use zerocopy::IntoBytes;

use crate::errors::is_passing;
use crate::watch::Watch;

/// Words of a slot before the summary.
const HEADER: usize = 3;

/// Slots of a summary.
const SLOTS: usize = 2;

/// Bytes of a slot for a summary of this length.
pub(crate) fn slot_bytes(summary_bytes_max: usize) -> usize {
    (HEADER * 8 + summary_bytes_max).next_multiple_of(64)
}

fn hash(written: u64, rest: &[u64]) -> u64 {
    xxh3_64_with_seed(rest.as_bytes(), written)
}

/// The content of a slot.
pub(crate) struct Seen<'a> {
    pub(crate) written: u64,
    pub(crate) epoch: u64,
    pub(crate) bytes: &'a [u8],
}

/// Where the summaries are on this process.
#[derive(Clone)]
pub(crate) struct Slots {
    region: Region,
    pub(crate) groups: usize,
    slot_bytes: usize,
}

/// The summaries of all processes on this one.
pub(crate) struct Summaries {
    pub(crate) slots: Slots,
    me: usize,
    /// Those of this process on each other one.
    peers: Vec<(NodeId, RemotePtr<u64>)>,
    scratch: Vec<u64>,
}

impl Slots {
    /// The first slot of a summary.
    fn place(&self, process: usize, group: usize) -> usize {
        (process * self.groups + group) * SLOTS * self.slot_bytes
    }

    /// Copies the summary of a dead process from another replica, if that has a newer one.
    pub(crate) fn copy_from(
        &self,
        endpoint: &Endpoint,
        theirs: RemotePtr<u64>,
        process: usize,
        group: usize,
    ) -> Result<()> {
        let place = self.place(process, group);
        let words = self.slot_bytes / 8;
        for slot in (0..SLOTS).map(|at| place + at * self.slot_bytes) {
            let into = endpoint.buf::<u64>(words)?;
            let read = endpoint.get_into(theirs.byte_add(slot as u64), into).wait()?;
            let own = self.region.words(slot, words);
            let mut mine = vec![0; words];
            read_words(own, &mut mine);
            let newest = whole(&mine).map_or(0, |mine| mine.written);
            if whole(&read).is_some_and(|theirs| theirs.written > newest) {
                write_words(own, &read);
            }
        }
        Ok(())
    }
}

impl Summaries {
    pub(crate) fn new(
        object: &Object,
        processes: &[NodeId],
        me: usize,
        region: &Region,
        groups: usize,
        slot_bytes: usize,
    ) -> Result<Summaries> {
        let others = processes.iter().filter(|node| **node != processes[me]);
        let peer = |node: &NodeId| Ok((*node, object.remote::<u64>(*node, "summaries")?));
        let peers = others.map(peer).collect::<Result<_>>()?;
        let slots = Slots { region: region.clone(), groups, slot_bytes };
        Ok(Summaries { slots, me, peers, scratch: Vec::new() })
    }

    /// Bytes of all slots.
    pub(crate) fn region_bytes(processes: usize, groups: usize, slot_bytes: usize) -> usize {
        processes * groups * SLOTS * slot_bytes
    }

    pub(crate) fn bytes_max(&self) -> usize {
        self.slots.slot_bytes - HEADER * 8
    }

    /// Watches the words that change when a process writes its summary.
    pub(crate) fn watch(&self, process: usize, group: usize, watch: &mut Watch) {
        for slot in (0..SLOTS).map(|at| self.slots.place(process, group) + at * self.slots.slot_bytes) {
            let mut words = vec![0; self.slots.slot_bytes / 8];
            read_words(self.slots.region.words(slot, words.len()), &mut words);
            // The hash changes with each summary.
            let is_whole = words.iter().all(|word| *word == 0) || whole(&words).is_some();
            watch.add_slot(&self.slots.region, slot, &words, 1, is_whole);
        }
    }

    /// The newest summary that is whole, if it is newer than `known`.
    pub(crate) fn look(&mut self, process: usize, group: usize, known: u64) -> Option<Seen<'_>> {
        let place = self.slots.place(process, group);
        let slot = |at: usize| place + at * self.slots.slot_bytes;
        // One word each, as a rule: nothing has changed.
        let written = [self.slots.region.word(slot(0)).load(), self.slots.region.word(slot(1)).load()];
        if written[0].max(written[1]) <= known {
            return None;
        }
        let newest = usize::from(written[1] > written[0]);
        let mut newer = [newest, 1 - newest].into_iter().filter(|at| written[*at] > known);
        newer.find(|at| {
            self.scratch.resize(self.slots.slot_bytes / 8, 0);
            read_words(self.slots.region.words(slot(*at), self.slots.slot_bytes / 8), &mut self.scratch);
            whole(&self.scratch).is_some()
        })?;
        whole(&self.scratch)
    }

    /// Writes this process's summary here, and puts it to all others. False if one of them has refused it.
    pub(crate) fn put(
        &mut self,
        endpoint: &Endpoint,
        group: usize,
        written: u64,
        epoch: u64,
        summary: &[u8],
    ) -> fabric::Result<bool> {
        let words = HEADER + summary.len().div_ceil(8);
        self.scratch.clear();
        self.scratch.resize(words, 0);
        self.scratch[0] = written;
        self.scratch[2] = epoch << 32 | summary.len() as u64;
        self.scratch[HEADER..].as_mut_bytes()[..summary.len()].copy_from_slice(summary);
        self.scratch[1] = hash(written, &self.scratch[2..]);
        let place = self.slots.place(self.me, group) + (written % SLOTS as u64) as usize * self.slots.slot_bytes;
        write_words(self.slots.region.words(place, words), &self.scratch);
        let mut image = match endpoint.buf::<u64>(words) {
            Ok(image) => image,
            Err(error) if error.is_refused() => return Ok(false),
            Err(error) => return Err(error),
        };
        image.copy_from_slice(&self.scratch);
        let mut is_all = true;
        for (_, peer) in &self.peers {
            match endpoint.put(peer.byte_add(place as u64), &image).detach() {
                Err(error) if error.is_gone() => {}
                Err(error) if is_passing(&error) => is_all = false,
                put => put?,
            }
        }
        Ok(is_all)
    }
}

/// The content of a slot, if all of it is there.
fn whole(slot: &[u64]) -> Option<Seen<'_>> {
    let (header, summary) = slot.split_at_checked(HEADER)?;
    let bytes = header[2] as u32 as usize;
    let words = bytes.div_ceil(8);
    let rest = slot.get(2..HEADER + words)?;
    let is_whole = header[0] != 0 && header[1] == hash(header[0], rest);
    is_whole.then(|| Seen { written: header[0], epoch: header[2] >> 32, bytes: &summary.as_bytes()[..bytes] })
}
