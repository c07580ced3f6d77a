//! Operations that are posted together, as one step where both end at once: on shared memory.

use super::{Endpoint, Inner};
use crate::error::{Code, Error, Result};
use crate::fabric::Span;
use crate::ptr::{Plain, RemotePtr};

impl Endpoint {
    /// [`Endpoint::put_from_region`], and then a put of a word to the same node that announces it, where both end at
    /// once: on shared memory. `None` elsewhere, and for places on two nodes: nothing is done. The word is not put
    /// unless the bytes are.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(ep: &Endpoint, ring: RemotePtr<u64>, head: RemotePtr<u64>, message: Span<'_>, end: u64) -> Result<()> {
    /// if let Some(put) = ep.publish_at_once(ring, message, head, end) {
    ///     return put;
    /// }
    /// ep.put_from_region(ring, message).detach()?;
    /// ep.put_value(head, end).detach()
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Endpoint::put_value`].
    #[inline(always)]
    pub fn publish_at_once<T: Plain>(
        &self,
        dst: RemotePtr<T>,
        src: Span<'_>,
        word: RemotePtr<u64>,
        value: u64,
    ) -> Option<Result<()>> {
        let Inner::Shm(lane, marks) = &self.inner else { return None };
        if dst.node() != word.node() {
            return None;
        }
        let len = src.bytes();
        // SAFETY: the span covers `len` bytes of region memory, which is accessed by atomics only.
        Some(match unsafe { lane.publish(dst.cast(), src.as_ptr(), len, word, value) } {
            Ok(()) => {
                marks.put(word.node());
                self.count_all([2, 0, 0], word.node(), len + 8);
                Ok(())
            }
            Err((code, is_word)) => Err(self.unpublished(code, dst.cast(), len, word.cast(), is_word)),
        })
    }

    #[cold]
    #[inline(never)]
    fn unpublished(&self, code: Code, dst: RemotePtr<u8>, len: usize, word: RemotePtr<u8>, is_word: bool) -> Error {
        if let Inner::Shm(_, marks) = &self.inner {
            marks.put(dst.node());
        }
        // The word counts as posted only if the bytes were not refused.
        let (puts, bytes) = if is_word { (2, len + 8) } else { (1, len) };
        self.count_all([puts, 0, 0], dst.node(), bytes);
        if is_word { self.explain(code, word, 8) } else { self.explain(code, dst, len as u32) }
    }

    /// A put of a word of a record and a get of others, posted together, where both end at once: on shared memory. The
    /// words are named by their places in the record. `None` elsewhere, and if either is refused; then the put may be
    /// done, and the same operations say why they are refused.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, record: RemotePtr<u64>) -> Result<[u64; 2]> {
    /// if let Some(seen) = ep.put_and_get_at_once(record, (0, 1), 1) {
    ///     return Ok(seen);
    /// }
    /// ep.put_value(record, 1).detach()?;
    /// ep.get_words(record.at(1)).await
    /// # }
    /// ```
    #[inline(always)]
    pub fn put_and_get_at_once<const N: usize>(
        &self,
        record: RemotePtr<u64>,
        put: (usize, u64),
        get_at: usize,
    ) -> Option<[u64; N]> {
        let Inner::Shm(lane, marks) = &self.inner else { return None };
        let got = lane.put_and_get(record, put, get_at)?;
        let depth = self.count_all([1, 1, 0], record.node(), 8 + 8 * N);
        marks.read(record.node(), true);
        self.saw_completion(depth);
        Some(got)
    }
}
