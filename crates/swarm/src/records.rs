//! The records of a client: to which of them the words of a cell may point, and when one can be used again.

use smallvec::SmallVec;

use crate::buffers::Used;
use crate::cell::CellWord;
use crate::client::Core;

impl<'e> Core<'e> {
    /// Gives back the records of this client to which no word of a cell points any more.
    pub(crate) async fn give_back_records(&self, cell: usize) {
        // Those that are used while this waits are not among them.
        let mut records = self.records_of(cell);
        if records.len() <= 1 {
            return;
        }
        let Some(words) = self.words(cell).await else { return };
        let place = |record: u16| CellWord::accepted(0, self.writer, record).place();
        records.retain(|record| words.iter().all(|(_, word)| word.place() != place(*record)));
        self.give_back_of(cell, &records);
    }

    /// The same for all cells, when there are no others left.
    pub(crate) async fn give_back_all_records(&self) {
        let has_some = |(cell, records): (&usize, &SmallVec<_>)| (records.len() > 1).then_some(*cell);
        let mut cells: Vec<usize> = self.with_store(|store| store.records_of.iter().filter_map(has_some).collect());
        // The same in each execution, for the model checker.
        cells.sort_unstable();
        for cell in cells {
            self.give_back_records(cell).await;
        }
    }

    /// The records of this client to which words of a cell may point.
    pub(crate) fn records_of(&self, cell: usize) -> SmallVec<[u16; 2]> {
        self.with_store(|store| store.records_of.get(&cell).cloned().unwrap_or_default())
    }

    /// Gives back these records of a cell, when no read may use them any more.
    pub(crate) fn give_back_of(&self, cell: usize, given_back: &[u16]) {
        let retired = self.with_store(|store| {
            let mut retired: SmallVec<[Used; 2]> = SmallVec::new();
            if let Some(records) = store.records_of.get_mut(&cell) {
                records.retain(|record| {
                    let is_kept = !given_back.contains(record);
                    if !is_kept {
                        retired.push(Used::Record(*record));
                    }
                    is_kept
                });
            }
            retired
        });
        self.retire(retired);
    }
}

/// A record that no word points to.
pub(crate) struct UnusedRecord<'c, 'e> {
    core: &'c Core<'e>,
    pub(crate) number: u16,
}

impl<'c, 'e> UnusedRecord<'c, 'e> {
    pub(crate) fn new(core: &'c Core<'e>, number: u16) -> UnusedRecord<'c, 'e> {
        UnusedRecord { core, number }
    }

    /// From now on the word of this cell may point to it.
    pub(crate) fn keep(self, cell: usize) {
        self.core.with_store(|store| store.records_of.entry(cell).or_default().push(self.number));
        core::mem::forget(self);
    }
}

impl Drop for UnusedRecord<'_, '_> {
    fn drop(&mut self) {
        self.core.with_store(|store| store.records.push(self.number));
    }
}
