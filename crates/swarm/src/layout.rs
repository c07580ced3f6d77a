//! Where everything is in the memory of a memory node.
//!
//! ```text
//! region `registers`: for each register
//!   +0          ┌──────────┬───────────────┬─────┬───────────────┬────────┬─────────────────┐
//!               │ instance │ metadata word │  …  │ metadata word │ hash   │ value, in place │
//!               └──────────┴───────────────┴─────┴───────────────┴────────┴─────────────────┘
//! region `buffers`: for each client, each of its buffers
//!   +0          ┌────────┬─────────────────────┐
//!               │ hash   │ value, out of place │
//!               └────────┴─────────────────────┘
//! region `locks`: for each register
//!   +0          ┌────────────────┬─────┬────────────────┬───────┬───────┐
//!               │ timestamp lock │  …  │ timestamp lock │ limit │ owner │   one lock for each client; the others
//!               └────────────────┴─────┴────────────────┴───────┴───────┘   are in a store (`moving`, `owners`)
//! ```
//!
//! An object of several shards (`shards`) has these of each of them, one behind the other.
//!
//! The value in place is beside the metadata words, so one get reads both. A write puts it on one memory node, the
//! first that its client asks.

use farfield_core::Result;
use farfield_core::toolkit::region_bytes;

use crate::cell::{CELL_WORDS, ENTRIES, RECORD_WORDS};
use crate::version::Format;

/// The regions of a memory node, in this order.
pub(crate) const REGIONS: [&str; REGION_COUNT] = ["clients", "registers", "buffers", "locks", "index", "records"];
pub(crate) const REGION_COUNT: usize = 6;
/// So many of them an array has.
pub(crate) const CELLS: usize = 4;

/// The most memory nodes of an array.
pub(crate) const REPLICAS_MAX: usize = 7;

/// The index of a store.
///
/// ```text
/// region `index`: for each cell
///   +0          ┌──────┬──────────────────┐
///               │ word │ record, in place │
///               └──────┴──────────────────┘
/// region `records`: for each client, each of its records (`cell`)
/// ```
///
/// The first cells are *buckets*: each key has one, by its hash. The others say which client has which group of
/// registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct IndexLayout {
    pub(crate) buckets: usize,
    /// Registers that a client takes at a time, and how many such groups there are.
    pub(crate) group: usize,
    pub(crate) groups: usize,
    /// Of each writer. There is no record 0.
    pub(crate) records: usize,
}

impl IndexLayout {
    /// Records of a client beside one for each cell: for proposals that are under way, and that are given back.
    pub(crate) const SPARE_RECORDS: usize = 64;

    pub(crate) fn new(keys: usize, writers: usize) -> IndexLayout {
        let group = (keys / writers / 16).clamp(1, 32);
        // So many registers without a key may be with a client that makes no more calls: some are free, some come back,
        // and some have come back.
        let groups = keys.div_ceil(group) + 8 * writers;
        let mut layout = IndexLayout { buckets: keys, group, groups, records: 0 };
        layout.records = 1 + layout.cells() + Self::SPARE_RECORDS;
        layout
    }

    /// The cells that say which client has which group.
    pub(crate) fn group_cells(&self) -> usize {
        self.groups.div_ceil(ENTRIES)
    }

    pub(crate) fn cells(&self) -> usize {
        self.buckets + self.group_cells()
    }

    pub(crate) fn registers(&self) -> usize {
        self.groups * self.group
    }

    pub(crate) fn cells_bytes(&self) -> Result<usize> {
        region_bytes(self.cells(), CELL_WORDS, "the keys")
    }

    /// Where a record of a writer is. After the clients come the memory nodes that replace others.
    pub(crate) fn record(&self, writers: usize, writer: usize, record: usize) -> usize {
        let of_memory = writer.saturating_sub(writers);
        writer.min(writers) * self.records + of_memory * Self::SPARE_RECORDS + record
    }

    pub(crate) fn records_bytes(&self, writers: usize, memory_nodes: usize) -> Result<usize> {
        let records = self.records.saturating_mul(writers).saturating_add(memory_nodes * Self::SPARE_RECORDS);
        region_bytes(records, RECORD_WORDS, "the keys or the clients")
    }
}

/// The sizes, in words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    pub(crate) registers: usize,
    pub(crate) value_words: usize,
    pub(crate) writers: usize,
    pub(crate) metadata_words: usize,
    /// Of each writer.
    pub(crate) buffers: usize,
    /// Of each register.
    pub(crate) lock_words: usize,
    pub(crate) format: Format,
}

impl Layout {
    pub(crate) fn new(
        registers: usize,
        value_words: usize,
        writers: usize,
        metadata_words: usize,
        buffers: usize,
        has_limits: bool,
    ) -> Result<Layout> {
        // Only a store has limits and owners.
        let lock_words = if has_limits { writers + 2 } else { writers };
        let format = if has_limits { Format::STORE } else { Format::of_array(writers, buffers) };
        let layout = Layout { registers, value_words, writers, metadata_words, buffers, lock_words, format };
        layout.registers_bytes()?;
        layout.buffers_bytes()?;
        layout.locks_bytes()?;
        Ok(layout)
    }

    /// The words of a hash and a value.
    pub(crate) fn image_words(&self) -> usize {
        1 + self.value_words
    }

    pub(crate) fn register_words(&self) -> usize {
        self.head_words() + self.image_words()
    }

    /// The instance and the metadata words of a register.
    pub(crate) fn head_words(&self) -> usize {
        1 + self.metadata_words
    }

    /// The metadata word of a writer, in a register.
    pub(crate) fn metadata_word(&self, writer: usize) -> usize {
        1 + writer % self.metadata_words
    }

    pub(crate) fn register(&self, register: usize) -> usize {
        register * self.register_words()
    }

    pub(crate) fn buffer(&self, writer: usize, buffer: usize) -> usize {
        (writer * self.buffers + buffer) * self.image_words()
    }

    pub(crate) fn lock(&self, register: usize, writer: usize) -> usize {
        register * self.lock_words + writer
    }

    /// The limit of a register of a store.
    pub(crate) fn limit(&self, register: usize) -> usize {
        self.lock(register, self.writers)
    }

    /// The owner of a register of a store.
    pub(crate) fn owner(&self, register: usize) -> usize {
        self.limit(register) + 1
    }

    pub(crate) fn registers_bytes(&self) -> Result<usize> {
        region_bytes(self.registers, self.register_words(), "the registers, their size or the clients")
    }

    pub(crate) fn buffers_bytes(&self) -> Result<usize> {
        let buffers = self.writers.saturating_mul(self.buffers);
        region_bytes(buffers, self.image_words(), "the registers, their size or the clients")
    }

    pub(crate) fn locks_bytes(&self) -> Result<usize> {
        region_bytes(self.registers, self.lock_words, "the registers or the clients")
    }
}
