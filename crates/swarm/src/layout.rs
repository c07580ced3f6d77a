//! Where everything lies in the memory of a memory node.
//!
//! ```text
//! region `registers`: for each register
//!   +0          ┌───────────────┬─────┬───────────────┬────────┬─────────────────┐
//!               │ metadata word │  …  │ metadata word │ hash   │ value, in place │
//!               └───────────────┴─────┴───────────────┴────────┴─────────────────┘
//! region `buffers`: for each client, each of its buffers
//!   +0          ┌────────┬─────────────────────┐
//!               │ hash   │ value, out of place │
//!               └────────┴─────────────────────┘
//! region `locks`: for each register, a timestamp lock for each client (one word)
//! ```
//!
//! The value in place lies beside the metadata words, so one get reads both. A write puts it on one
//! memory node, the first that its client asks.

use farfield_core::Result;
use farfield_core::toolkit::region_bytes;

/// The most memory nodes of an array.
pub(crate) const REPLICAS_MAX: usize = 7;

/// The sizes, in words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    pub(crate) registers: usize,
    pub(crate) value_words: usize,
    pub(crate) writers: usize,
    pub(crate) metadata_words: usize,
    /// Of each writer.
    pub(crate) buffers: usize,
}

impl Layout {
    pub(crate) fn new(
        registers: usize,
        value_words: usize,
        writers: usize,
        metadata_words: usize,
        buffers: usize,
    ) -> Result<Layout> {
        let layout = Layout { registers, value_words, writers, metadata_words, buffers };
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
        self.metadata_words + self.image_words()
    }

    /// The metadata word of a writer, in a register.
    pub(crate) fn metadata_word(&self, writer: usize) -> usize {
        writer % self.metadata_words
    }

    pub(crate) fn register(&self, register: usize) -> usize {
        register * self.register_words()
    }

    pub(crate) fn buffer(&self, writer: usize, buffer: usize) -> usize {
        (writer * self.buffers + buffer) * self.image_words()
    }

    pub(crate) fn lock(&self, register: usize, writer: usize) -> usize {
        register * self.writers + writer
    }

    pub(crate) fn registers_bytes(&self) -> Result<usize> {
        region_bytes(self.registers, self.register_words(), "the registers, their size or the clients")
    }

    pub(crate) fn buffers_bytes(&self) -> Result<usize> {
        let buffers = self.writers.saturating_mul(self.buffers);
        region_bytes(buffers, self.image_words(), "the registers, their size or the clients")
    }

    pub(crate) fn locks_bytes(&self) -> Result<usize> {
        region_bytes(self.registers, self.writers, "the registers or the clients")
    }
}
