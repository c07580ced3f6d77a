//! All entries, for administration.

use farfield_core::{Key, Result, Value};

use super::{AT_A_TIME, SCAN, SwarmStoreClient};
use crate::cell::{Entries, Entry};
use crate::client::Core;
use crate::safe_guess::Read;
use crate::sections::Section;
use crate::together::together;

/// Cells of a part of a scan.
const SCANNED: usize = 64;

impl<'e, K: Key, V: Value> SwarmStoreClient<'e, K, V> {
    /// Some entries, in no order, and where to go on; for administration. Begin with 0; None is the end. A key that is
    /// there all the time is found once, and its value is one that it had meanwhile.
    ///
    /// ```
    /// # use farfield::swarm::{SwarmStore, SwarmStoreOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let store = SwarmStore::<u64, u64>::open(&node, "s", SwarmStoreOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// # let client = store.client(&ep)?;
    /// # client.insert_blocking(&7, &49)?;
    /// let (mut from, mut all) = (Some(0), Vec::new());
    /// while let Some(position) = from {
    ///     let (entries, next) = ep.block_on(client.scan(position))?;
    ///     all.extend(entries);
    ///     from = next;
    /// }
    /// assert_eq!(all, [(7, 49)]);
    /// # drop(client);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`SwarmStoreClient::get`].
    pub async fn scan(&self, from: usize) -> Result<(Vec<(K, V)>, Option<usize>)> {
        measured!(self.cores.first(), SCAN, self.scan(from));
        let first = self.cores.first();
        first.shared.object.check_current()?;
        // The cells of one shard after those of the other: all have as many.
        let buckets = first.index().buckets;
        let cells = buckets * self.cores.len();
        let end = cells.min(from.saturating_add(SCANNED));
        let scan = |cell| self.scan_cell(&self.cores[cell / buckets], cell % buckets);
        let found = together(AT_A_TIME, (from..end).map(scan)).await?;
        Ok((found.into_iter().flatten().collect(), (end < cells).then_some(end)))
    }

    async fn scan_cell(&self, core: &Core<'e>, cell: usize) -> Result<Vec<(K, V)>> {
        loop {
            let entries = core.settled_entries(cell).await?;
            let section = core.enter()?;
            let found = self.scan_among(core, &section, cell, entries).await;
            section.end();
            match found? {
                Ok(found) => return Ok(found),
                Err(moved) => drop(core.left(cell, moved).await?),
            }
        }
    }

    /// Or an entry, if its key moves.
    async fn scan_among(
        &self,
        core: &Core<'e>,
        section: &Section<'_, 'e>,
        cell: usize,
        entries: Entries,
    ) -> Result<Result<Vec<(K, V)>, Entry>> {
        let mut found = Vec::new();
        let mut words = self.empty_words();
        for entry in entries.into_iter().filter(|entry| entry.is_mapped()) {
            match core.read_in(section, entry.at(), &mut words).await? {
                Read::Value => found.push((self.key(&words)?, self.decode(&words)?)),
                Read::Sealed(seal) => core.found_deleted(cell, entry, seal),
                Read::Moved => return Ok(Err(entry)),
            }
        }
        Ok(Ok(found))
    }
}
