//! Several operations on the memory of one group of a node, which is looked up once.

use core::sync::atomic::{AtomicU64, Ordering};

use super::copy::store_load_fence;
use super::lane::ShmLane;
use super::window::Window;
use crate::error::Code;
use crate::ptr::RemotePtr;

/// The memory of a group of a node that lived a moment ago, for operations that follow each other at once.
pub(crate) struct Reached<'l> {
    lane: &'l ShmLane,
    index: usize,
    window: &'l Window,
}

impl Reached<'_> {
    /// Whether a word is in this memory.
    #[inline(always)]
    pub(crate) fn has(&self, word: RemotePtr<u64>) -> bool {
        word.window() == self.index
    }

    #[inline(always)]
    pub(crate) fn put(&self, dst: RemotePtr<u64>, value: u64) -> Result<(), Code> {
        let place = self.lane.place_in(self.window, dst.cast(), 8)?;
        // SAFETY: as in `cas_at`.
        self.lane.write(&place, || unsafe { AtomicU64::from_ptr(place.at.cast()) }.store(value, Ordering::Release))
    }

    #[inline(always)]
    pub(crate) fn get(&self, src: RemotePtr<u64>) -> Result<u64, Code> {
        let place = self.lane.place_in(self.window, src.cast(), 8)?;
        ShmLane::may(self.window)?;
        store_load_fence();
        // SAFETY: as in `cas_at`.
        let bits = unsafe { AtomicU64::from_ptr(place.at.cast()) }.load(Ordering::Acquire);
        place.held().map(|()| bits)
    }

    #[inline(always)]
    pub(crate) fn cas(&self, dst: RemotePtr<u64>, expected: u64, new: u64) -> Result<u64, Code> {
        let place = self.lane.place_in(self.window, dst.cast(), 8)?;
        self.lane.cas_at(&place, expected, new)
    }
}

impl ShmLane {
    /// The memory of a group of a node, if it lives, for several operations.
    #[inline(always)]
    pub(crate) fn reach(&self, at: RemotePtr<u8>) -> Option<Reached<'_>> {
        let window = self.windows.get(at.window())?;
        Self::is_owned(window).then_some(Reached { lane: self, index: at.window(), window })
    }
}
