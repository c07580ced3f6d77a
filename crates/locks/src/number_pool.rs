//! A pool of numbers, each of which one operation has at a time.

use crossbeam_utils::CachePadded;
use farfield_fabric::{Endpoint, Word};

use farfield_core::{ErrorKind, Result};

/// As many operations of one thread rarely hold or await a lock at a time: threads meet in no word then.
const EACH: usize = 8;

/// The numbers from 0 to one less than `count`.
pub(super) struct NumberPool {
    what: &'static str,
    count: usize,
    /// A bit for each that is in use, so many to a word.
    used: Box<[CachePadded<Word>]>,
}

impl NumberPool {
    /// So many; `what` they are names them in an error.
    pub(super) fn new(what: &'static str, count: usize) -> NumberPool {
        let used = std::iter::repeat_with(CachePadded::<Word>::default).take(count.div_ceil(EACH)).collect();
        NumberPool { what, count, used }
    }

    /// An unused one. Each endpoint looks in another place first.
    ///
    /// # Errors
    /// All are in use.
    #[inline]
    pub(super) fn take(&self, endpoint: &Endpoint) -> Result<usize> {
        match self.take_at_once(endpoint) {
            Some(number) => Ok(number),
            None => self.take_any(endpoint),
        }
    }

    #[cold]
    fn take_any(&self, endpoint: &Endpoint) -> Result<usize> {
        for at in 0..self.used.len() {
            let at = (endpoint.number() + at) % self.used.len();
            let used = &self.used[at];
            let mut bits = 0u64;
            loop {
                let bit = bits.trailing_ones() as usize;
                let number = at * EACH + bit;
                if bit >= EACH || number >= self.count {
                    break;
                }
                match used.compare_exchange(bits, bits | 1 << bit) {
                    Ok(_) => return Ok(number),
                    Err(found) => bits = found,
                }
            }
        }
        Err(ErrorKind::InUse { what: self.what, max: self.count }.into())
    }

    /// An unused one of those where this endpoint looks first. None if there is none, or another thread was faster.
    #[inline]
    pub(super) fn take_at_once(&self, endpoint: &Endpoint) -> Option<usize> {
        let at = endpoint.number();
        let at = if at < self.used.len() { at } else { at % self.used.len() }; // a division takes long
        let bits = self.used[at].load();
        let bit = bits.trailing_ones() as usize;
        let number = at * EACH + bit;
        let is_taken =
            bit < EACH && number < self.count && self.used[at].compare_exchange(bits, bits | 1 << bit).is_ok();
        is_taken.then_some(number)
    }

    /// How many are in use.
    #[cfg(any(test, feature = "scenarios"))]
    pub(super) fn in_use(&self) -> usize {
        self.used.iter().map(|used| used.load().count_ones() as usize).sum()
    }

    /// It is unused again.
    #[inline]
    pub(super) fn give_back(&self, number: usize) {
        self.used[number / EACH].fetch_add((1u64 << (number % EACH)).wrapping_neg());
    }
}

#[cfg(test)]
mod tests {
    use farfield_core::local_session;

    use super::*;

    /// As many as there are can be taken, each once, and again after they were given back.
    #[test]
    fn each_is_taken_once() -> Result<()> {
        let endpoint = local_session(1)?.remove(0).endpoint()?;
        for count in [1, 7, 8, 9, 20] {
            let pool = NumberPool::new("numbers", count);
            for _ in 0..3 {
                let mut taken = (0..count).map(|_| pool.take(&endpoint)).collect::<Result<Vec<_>>>()?;
                assert_eq!(pool.in_use(), count);
                let error = pool.take(&endpoint).expect_err("all are in use");
                assert!(matches!(error.kind(), ErrorKind::InUse { what: "numbers", max } if *max == count), "{error}");
                taken.sort_unstable();
                assert!(taken.iter().copied().eq(0..count), "{taken:?} of {count}");
                taken.into_iter().for_each(|number| pool.give_back(number));
                assert_eq!(pool.in_use(), 0);
            }
        }
        Ok(())
    }
}
