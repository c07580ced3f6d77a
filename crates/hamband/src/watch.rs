//! Words that a thread waits for, so that it takes the lock of the process only when one of them has changed.

use farfield_fabric::Region;

/// Some words of this process, and their values at some moment.
#[derive(Default)]
pub(crate) struct Watch(Vec<(Region, usize, u64)>);

impl Watch {
    pub(crate) fn add(&mut self, region: &Region, offset: usize) {
        self.0.push((region.clone(), offset, region.word(offset).load()));
    }

    /// Words of a put of which some have landed: each of the others may be the last.
    pub(crate) fn add_all(&mut self, region: &Region, offset: usize, words: usize) {
        (0..words).for_each(|word| self.add(region, offset + 8 * word));
    }

    pub(crate) fn has_changed(&self) -> bool {
        self.0.iter().any(|(region, offset, value)| region.word(*offset).load() != *value)
    }
}
