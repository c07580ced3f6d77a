//! Many gets at a time.

use super::buf::Buf;
use super::marks::ShmMarks;
use super::{Endpoint, Inner, ShmLane};
use crate::error::{Code, ErrorKind, Result};
use crate::ptr::RemotePtr;

impl Endpoint {
    /// Gets `words_each` words from each of `sources`, one after the other, into `into`. All gets are posted together,
    /// without order among each other.
    ///
    /// This makes independent reads as cheap as the memory allows: on shared memory they are prefetched and share one
    /// fence.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, at: RemotePtr<u64>) -> Result<()> {
    /// let mut into = ep.buf::<u64>(4)?;
    /// ep.get_each(&[at, at.at(8)], 2, &mut into).await?; // two words from each, behind one doorbell
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The first failure. The contents of `into` are void then.
    pub async fn get_each(&self, sources: &[RemotePtr<u64>], words_each: usize, into: &mut Buf<'_, u64>) -> Result<()> {
        let (len, stride) = (words_each * 8, words_each);
        if into.len() < sources.len() * stride {
            let asked_bytes = sources.len() * len;
            return Err(ErrorKind::BufferTooShort { asked_bytes, buffer_bytes: into.size_bytes() }.into());
        }
        match &self.inner {
            Inner::Shm(lane, marks) => {
                let _ = &mut **into; // waits for operations that were dropped on the buffer
                let into = into.block().as_ptr();
                // SAFETY: the buffer has room for `sources.len() * stride` words, checked above, and is borrowed
                // exclusively.
                unsafe {
                    match words_each {
                        // Loops of a known length, for a short record.
                        3 => self.get_each_shm(lane, marks, sources, 3, into),
                        _ => self.get_each_shm(lane, marks, sources, words_each, into),
                    }
                }
            }
            Inner::Dyn(_) => {
                let mut gets = Vec::with_capacity(sources.len());
                let round = self.round();
                for source in sources {
                    gets.push(self.get_into(*source, self.buf(stride)?));
                }
                drop(round);
                let mut first = Ok(());
                for (index, get) in gets.into_iter().enumerate() {
                    match get.await {
                        Ok(words) => into[index * stride..][..stride].copy_from_slice(&words),
                        Err(error) => {
                            into[index * stride..][..stride].fill(0);
                            first = first.and(Err(error));
                        }
                    }
                }
                first
            }
        }
    }

    /// [`Endpoint::get_each`] on shared memory.
    ///
    /// # Safety
    /// `into` is aligned to 8 and valid for writes of `words` words for each source, which no other thread accesses.
    #[inline(always)]
    unsafe fn get_each_shm(
        &self,
        lane: &ShmLane,
        marks: &ShmMarks,
        sources: &[RemotePtr<u64>],
        words: usize,
        into: *mut u8,
    ) -> Result<()> {
        let len = words * 8;
        for source in sources {
            lane.prefetch(source.cast());
        }
        let (mut first, mut fenced, mut remote) = (Ok(()), false, 0);
        // Nothing is put meanwhile.
        let flushes = marks.any_unflushed();
        for (index, source) in sources.iter().enumerate() {
            remote += u64::from(source.node() != self.me);
            // SAFETY: within the memory that this function's contract gives it.
            let at = unsafe { into.add(index * len) };
            // SAFETY: `at` has `len` bytes of that memory. One fence suffices: this thread stores nothing to region
            // memory in between.
            let result = unsafe { lane.get_to_after(source.cast(), at, len, fenced) };
            match result {
                Ok(()) => {
                    fenced = true;
                    if flushes {
                        marks.read(source.node(), true);
                    }
                }
                // A refused get has not fenced.
                Err(code) => {
                    // SAFETY: `at` has `len` bytes of that memory.
                    unsafe { at.write_bytes(0, len) };
                    first = self.note_refused(first, code, *source, len);
                }
            }
        }
        self.count_gets(sources.len() as u64, remote, len);
        self.saw_completion(self.depth.get() + u64::from(remote > 0));
        first
    }

    #[cold]
    #[inline(never)]
    fn note_refused(&self, first: Result<()>, code: Code, source: RemotePtr<u64>, len: usize) -> Result<()> {
        first.and_then(|()| Err(self.explain(code, source.cast(), len as u32)))
    }
}
