//! Words that a thread waits for, so that it takes the lock of the process only when one of them has changed.

use farfield_fabric::Region;

/// Some words of this process, and their values when they were looked at.
#[derive(Default)]
pub(crate) struct Watch(Vec<(Region, usize, u64)>);

impl Watch {
    /// A word that has this value, or had it a moment ago.
    pub(crate) fn add(&mut self, region: &Region, offset: usize, value: u64) {
        self.0.push((region.clone(), offset, value));
    }

    /// A slot for puts that was read. One of its words changes with each put. If only some words of a put have landed,
    /// each of the others may be the last one.
    pub(crate) fn add_slot(&mut self, region: &Region, offset: usize, read: &[u64], changes: usize, is_whole: bool) {
        let words = if is_whole { changes..changes + 1 } else { 0..read.len() };
        words.for_each(|word| self.add(region, offset + 8 * word, read[word]));
    }

    pub(crate) fn has_changed(&self) -> bool {
        self.0.iter().any(|(region, offset, value)| region.word(*offset).load() != *value)
    }
}
