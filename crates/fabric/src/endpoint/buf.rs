//! Buffers that a NIC may read and write, and the pool of an endpoint that provides them.
//!
//! The buffer carries the obligation, not the handle of the operation. A block counts the operations in flight on it.
//! Mutable access to a [`Buf`] waits while the count is not zero, which can only be after an operation was dropped or
//! forgotten before it completed; dropping a `Buf` parks its block until the count is zero. So no order of drops and
//! forgets lets a program see memory change under a `&` or a NIC write to memory that is used again.

use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::Endpoint;
use crate::error::Result;
use crate::pool::Block;
use crate::ptr::Plain;

/// An array of `T` in registered memory, from its endpoint's pool.
///
/// It is the source of puts and the target of gets. While an operation handle borrows it, it cannot be changed:
///
/// ```compile_fail,E0502
/// # fn f(ep: &farfield_fabric::Endpoint, dst: farfield_fabric::RemotePtr<u64>) -> farfield_fabric::Result<()> {
/// let mut buf = ep.buf::<u64>(4)?;
/// let put = ep.put(dst, &buf);
/// buf[0] = 1; // the put may not have read it yet
/// put.wait()
/// # }
/// ```
pub struct Buf<'e, T: Plain> {
    endpoint: &'e Endpoint,
    /// Always `Some` until drop.
    block: Option<Arc<Block>>,
    len: usize,
    _type: PhantomData<T>,
}

impl<'e, T: Plain> Buf<'e, T> {
    const ALIGNED: () = assert!(align_of::<T>() <= 8, "types in network memory are aligned to 8 bytes at most");

    pub(crate) fn new(endpoint: &'e Endpoint, len: usize) -> Result<Buf<'e, T>> {
        let () = Self::ALIGNED;
        let block = endpoint.pool().take(len.saturating_mul(size_of::<T>()))?;
        Ok(Buf { endpoint, block: Some(block), len, _type: PhantomData })
    }

    pub(crate) fn block(&self) -> &Arc<Block> {
        self.block.as_ref().expect("a buffer has its block until it is dropped")
    }

    pub(crate) fn size_bytes(&self) -> usize {
        self.len * size_of::<T>()
    }
}

impl<T: Plain> Deref for Buf<'_, T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: the block holds `len` elements, aligned (8-byte words, `align_of::<T>() <= 8`), initialised (zero at
        // first) and plain. Nothing writes to it while this borrow lasts: gets take the buffer by value, so a `Buf`
        // in hand has at most puts in flight, which only read.
        unsafe { core::slice::from_raw_parts(self.block().as_ptr().cast(), self.len) }
    }
}

impl<T: Plain> DerefMut for Buf<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        if !self.block().is_idle() {
            // A put may still read the memory after its handle was dropped or forgotten.
            self.endpoint.wait_for_block(self.block());
        }
        // SAFETY: as in `deref`; no operation is in flight, and `&mut self` excludes other references.
        unsafe { core::slice::from_raw_parts_mut(self.block().as_ptr().cast(), self.len) }
    }
}

impl<T: Plain> Drop for Buf<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.endpoint.pool().put_back(block);
        }
    }
}

impl<T: Plain + fmt::Debug> fmt::Debug for Buf<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
