//! Reading the decided entries.

use std::sync::Arc;

use farfield_core::toolkit::ErrorContext;
use farfield_core::{Error, ErrorKind, Result};
use farfield_fabric::Endpoint;

use crate::errors::EntriesMissing;
use crate::layout::{BASE, header_of, read_entry, used_words};
use crate::replica::Handle;

/// Reads the decided entries on one node, in order: see [`ReplicatedLog::reader`](crate::ReplicatedLog::reader).
///
/// It reads this node's memory only, so it continues when the leader is dead, with the entries that were decided.
///
/// ```
/// # use farfield_mu::{LogOptions, ReplicatedLog};
/// # let node = farfield::Node::builder().start()?;
/// # let log = ReplicatedLog::open(&node, "log", LogOptions::default())?;
/// # let ep = node.endpoint()?;
/// # ep.block_on(ep.wait_until(ep.deadline(), || log.is_leader().then_some(())))?;
/// # let mut proposer = log.proposer()?;
/// ep.block_on(proposer.propose(&ep, b"entry"))?;
/// let (mut reader, mut entry) = (log.reader()?, Vec::new());
/// while let Some(index) = reader.try_next(&mut entry)? {
///     println!("entry {index}: {entry:?}");
///     reader.acknowledge(); // it is applied
/// }
/// # Ok::<(), farfield::Error>(())
/// ```
pub struct LogReader {
    handle: Arc<Handle>,
    next: u64,
    /// The value of `decided` at the last look.
    decided: u64,
    /// The application knows that entries before this one are missing.
    skipped: u64,
}

impl LogReader {
    pub(crate) fn new(handle: &Arc<Handle>) -> Result<LogReader> {
        if handle.reader_taken.compare_exchange(0, 1).is_err() {
            return Err(Error::from(ErrorKind::InUse { what: "readers of the log", max: 1 }).of(handle.object.path()));
        }
        // The one before has acknowledged all before this one.
        let next = handle.core.applied().load();
        Ok(LogReader { handle: Arc::clone(handle), next, decided: next, skipped: 0 })
    }

    /// The next decided entry and its index, if there is one. It does not wait, so a
    /// [`Poller`](farfield_core::toolkit::Poller) may call it on the service thread. The entry's slot is used again
    /// only after [`LogReader::acknowledge`].
    ///
    /// ```
    /// # use farfield_mu::{LogOptions, ReplicatedLog};
    /// # let node = farfield::Node::builder().start()?;
    /// # let log = ReplicatedLog::open(&node, "log", LogOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// let mut reader = log.reader()?;
    /// assert_eq!(reader.try_next(&mut Vec::new())?, None);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Reopened`]: the log was reopened, and all entries that were decided before are read.
    /// [`EntriesMissing`], once, on a node that has come back.
    pub fn try_next(&mut self, into: &mut Vec<u8>) -> Result<Option<u64>> {
        if self.skips() {
            return Err(Error::custom(EntriesMissing { next: self.next })).of(self.handle.object.path());
        }
        let core = &*self.handle.core;
        // `decided` shares a cache line that the leader writes: it is read again only when all is read that it covers.
        if self.next >= self.decided {
            self.decided = core.decided();
            if self.next >= self.decided {
                return self.handle.object.check_current().map(|()| None);
            }
        }
        // The word was read first (`CR → CR`), and the leader has put it after the entry, or when it knew that the
        // entry had landed (`NRW → NRW`). So the entry is there and whole.
        let slot = core.slots.words_of(&core.log, self.next, core.slots.words);
        let (index, _, len) = header_of(slot);
        // The slot still has an earlier entry. A leader brings the follower up to date even if a put failed without its
        // knowledge, so the entry arrives.
        if index != Some(self.next) || used_words(len) > slot.len() {
            return Ok(None);
        }
        read_entry(slot, len, into);
        self.next += 1;
        Ok(Some(self.next - 1))
    }

    /// On a node that has come back: whether the next entries are not here, since the others have recycled them. Then
    /// it continues after them.
    fn skips(&mut self) -> bool {
        let core = &*self.handle.core;
        if core.returned.load() == 0 {
            return false;
        }
        let base = core.log.word(BASE).load();
        let skips = base > self.next || base > self.skipped;
        if skips {
            (self.next, self.skipped) = (self.next.max(base), base);
        }
        skips
    }

    /// Whether [`LogReader::try_next`] returns an entry now: to wait for one together with other conditions.
    ///
    /// ```
    /// # use farfield_mu::{LogOptions, ReplicatedLog};
    /// # let node = farfield::Node::builder().start()?;
    /// # let log = ReplicatedLog::open(&node, "log", LogOptions::default())?;
    /// assert!(!log.reader()?.has_next());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn has_next(&self) -> bool {
        let core = &*self.handle.core;
        // Word before slot (`CR → CR`), as in `try_next`.
        let skips = core.returned.load() != 0 && core.log.word(BASE).load() > self.skipped;
        skips || core.decided() > self.next && core.slots.words_of(&core.log, self.next, 1)[0].load() == self.next + 1
    }

    /// [`LogReader::try_next`], which waits until there is one.
    ///
    /// ```
    /// # use farfield_mu::{LogOptions, ReplicatedLog};
    /// # let node = farfield::Node::builder().start()?;
    /// # let log = ReplicatedLog::open(&node, "log", LogOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// ep.set_timeout(std::time::Duration::from_millis(10));
    /// let mut reader = log.reader()?;
    /// assert!(ep.block_on(reader.next(&ep, &mut Vec::new())).unwrap_err().is_timeout());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A timeout, or an error of `try_next`. Nothing is lost: call it again.
    pub async fn next(&mut self, endpoint: &Endpoint, into: &mut Vec<u8>) -> Result<u64> {
        let deadline = endpoint.deadline();
        loop {
            if let Some(index) = self.try_next(into)? {
                return Ok(index);
            }
            let object = &self.handle.object;
            let is_there = || (self.has_next() || object.check_current().is_err()).then_some(());
            let waited = endpoint.wait_until(deadline, is_there).await;
            waited.waiting_for("the next entry of the log").of(object.path())?;
        }
    }

    /// The index of the entry that [`LogReader::try_next`] returns next.
    ///
    /// ```
    /// # use farfield_mu::{LogOptions, ReplicatedLog};
    /// # let node = farfield::Node::builder().start()?;
    /// # let log = ReplicatedLog::open(&node, "log", LogOptions::default())?;
    /// assert_eq!(log.reader()?.position(), 0);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn position(&self) -> u64 {
        self.next
    }

    /// The application has applied all entries that it has read, so their slots may be used again. An application that
    /// does not call this fills the log.
    ///
    /// ```
    /// # use farfield_mu::{LogOptions, ReplicatedLog};
    /// # let node = farfield::Node::builder().start()?;
    /// # let log = ReplicatedLog::open(&node, "log", LogOptions::default())?;
    /// let mut reader = log.reader()?;
    /// reader.acknowledge(); // of none so far
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn acknowledge(&mut self) {
        // The entries were read first (`CR → CW`), and the leader gets this word before it overwrites them.
        let applied = self.handle.core.applied();
        if applied.load() != self.next {
            applied.store(self.next);
        }
    }

    /// As [`LogReader::acknowledge`], for the entries before `index` only.
    ///
    /// ```
    /// # use farfield_mu::{LogOptions, ReplicatedLog};
    /// # let node = farfield::Node::builder().start()?;
    /// # let log = ReplicatedLog::open(&node, "log", LogOptions::default())?;
    /// let reader = log.reader()?;
    /// reader.applied(reader.position()); // all that were read
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn applied(&self, index: u64) {
        let applied = self.handle.core.applied();
        if index <= self.next && index > applied.load() {
            applied.store(index);
        }
    }
}

impl Drop for LogReader {
    fn drop(&mut self) {
        self.handle.reader_taken.store(0);
    }
}
