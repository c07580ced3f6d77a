//! Memory for futures that wait, and for the state of long calls, which passes from one to the next.

use core::cell::RefCell;
use core::future::Future;
use core::marker::PhantomData;
use core::mem::{ManuallyDrop, MaybeUninit};
use core::ops::{Deref, DerefMut};
use core::pin::Pin;
use core::ptr::NonNull;
use core::task::{Context, Poll};

use super::Endpoint;

/// The size of a block. A longer future has memory of its own, which is not kept.
const BYTES: usize = 2048;
/// How many blocks an endpoint keeps.
const KEPT_MAX: usize = 256;

#[repr(C, align(16))]
struct KeptBlock(MaybeUninit<[u8; BYTES]>);

/// The blocks that no future is in.
#[derive(Default)]
#[expect(clippy::vec_box, reason = "a block that is taken must not move, since a future lies in it")]
pub(super) struct KeptBlocks(RefCell<Vec<Box<KeptBlock>>>);

/// A future in memory that its endpoint keeps, see [`Endpoint::boxed`].
///
/// ```
/// # use farfield_fabric::*;
/// fn later<'e>(ep: &'e Endpoint, word: RemotePtr<u64>) -> Boxed<'e, impl Future<Output = Result<u64>> + 'e> {
///     ep.boxed(async move { Ok(ep.get(word).await? + ep.get(word.at(1)).await?) })
/// }
/// ```
#[must_use = "futures do nothing unless they are polled"]
pub struct Boxed<'e, F> {
    blocks: &'e KeptBlocks,
    future: NonNull<F>,
    owns: PhantomData<F>,
}

/// A value in memory that its endpoint keeps, see [`Endpoint::kept`].
///
/// ```
/// # use farfield_fabric::*;
/// fn read<'e>(words: &mut Kept<'e, Vec<u64>>, ep: &'e Endpoint, word: RemotePtr<u64>) -> Result<()> {
///     words.push(ep.get(word).wait()?);
///     Ok(())
/// }
/// ```
// Nothing polls it as a future, so it need not stay where it is.
pub struct Kept<'e, T>(Boxed<'e, T>);

impl Endpoint {
    /// Makes a value in memory that passes from one such value to the next, as [`Endpoint::boxed`] does: as a rule
    /// nothing is allocated. For a state that its owner hands from call to call: it stays where it is.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(ep: &Endpoint) {
    /// let mut seen = ep.kept(|| [0u64; 64]); // as large as a pointer, and so cheap to hand on
    /// seen[7] = 1;
    /// # }
    /// ```
    #[inline]
    pub fn kept<T>(&self, make: impl FnOnce() -> T) -> Kept<'_, T> {
        Kept(self.blocks.boxed(make))
    }

    /// Moves a future into memory of its own, which passes from one such future to the next: as a rule nothing is
    /// allocated. A future that awaits the result is small, and so is every one around it. For the part of a call that
    /// waits, behind a first look that need not.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// async fn add(ep: &Endpoint, word: RemotePtr<u64>, most: u64) -> Result<u64> {
    ///     match ep.faa(word, 1).into_value() {
    ///         Ok(before) if before < most => Ok(before),
    ///         _ => ep.boxed(async { ep.wait_remote(word, most, ep.deadline()).await }).await,
    ///     }
    /// }
    /// ```
    pub fn boxed<F: Future>(&self, future: F) -> Boxed<'_, F> {
        self.blocks.boxed(|| future)
    }
}

impl KeptBlocks {
    /// The value is made when its place is there: so it need not be moved. (If that panics, the place is lost.)
    #[inline]
    fn boxed<F>(&self, make: impl FnOnce() -> F) -> Boxed<'_, F> {
        let place = if Boxed::<F>::IS_KEPT {
            let block = self.0.borrow_mut().pop().unwrap_or_else(|| Box::new(KeptBlock(MaybeUninit::uninit())));
            NonNull::from(Box::leak(block)).cast()
        } else {
            NonNull::from(Box::leak(Box::<F>::new_uninit())).cast()
        };
        // SAFETY: the place is large enough for the future and aligned to it, and nothing else refers to it.
        unsafe { place.write(make()) };
        Boxed { blocks: self, future: place, owns: PhantomData }
    }
}

impl<F> Boxed<'_, F> {
    const IS_KEPT: bool = size_of::<F>() <= size_of::<KeptBlock>() && align_of::<F>() <= align_of::<KeptBlock>();
}

// The future stays where it is when its handle moves.
impl<F> Unpin for Boxed<'_, F> {}

impl<F: Future> Future for Boxed<'_, F> {
    type Output = F::Output;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: the future was written in `boxed`, is this handle's alone, and is not moved before it is dropped.
        unsafe { Pin::new_unchecked(self.future.as_mut()) }.poll(cx)
    }
}

impl<F> Drop for Boxed<'_, F> {
    fn drop(&mut self) {
        // SAFETY: as in `poll`; nothing uses the future afterwards.
        unsafe { self.future.drop_in_place() };
        // SAFETY: it was dropped just now, and this handle ends here.
        unsafe { self.give_back() };
    }
}

impl<F> Boxed<'_, F> {
    /// Gives the memory back.
    ///
    /// # Safety
    /// There is nothing in it any more, and nothing uses it afterwards.
    unsafe fn give_back(&self) {
        if !Self::IS_KEPT {
            // SAFETY: `boxed` has leaked a box of this type. Nothing is in it any more.
            drop(unsafe { Box::from_raw(self.future.cast::<MaybeUninit<F>>().as_ptr()) });
            return;
        }
        // SAFETY: `boxed` has leaked a box of this type, in which there is nothing to drop any more.
        let block = unsafe { Box::from_raw(self.future.cast::<KeptBlock>().as_ptr()) };
        let mut blocks = self.blocks.0.borrow_mut();
        if blocks.len() < KEPT_MAX {
            blocks.push(block);
        }
    }
}

impl<T> Kept<'_, T> {
    /// The value, out of that memory.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(ep: &Endpoint) {
    /// let kept = ep.kept(|| [1, 2, 3]);
    /// assert_eq!(kept.into_inner(), [1, 2, 3]);
    /// # }
    /// ```
    pub fn into_inner(self) -> T {
        let kept = ManuallyDrop::new(self);
        // SAFETY: the value was written in `boxed`, and is this handle's alone, which ends here without dropping it.
        let value = unsafe { kept.0.future.read() };
        // SAFETY: the value was moved out just now, and the handle ends here.
        unsafe { kept.0.give_back() };
        value
    }
}

impl<T> Deref for Kept<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the value was written in `boxed`, and is this handle's alone until it is dropped.
        unsafe { self.0.future.as_ref() }
    }
}

impl<T> DerefMut for Kept<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { self.0.future.as_mut() }
    }
}

#[cfg(test)]
mod tests {
    use core::future::poll_fn;
    use core::pin::pin;
    use std::rc::Rc;

    use super::*;

    /// Futures of all sizes are polled where they are, dropped once, at their end or before, and leave their memory to
    /// the next.
    #[test]
    fn futures_are_dropped_once_and_leave_their_memory() {
        fn future<const N: usize>(counted: &Rc<[u8; N]>) -> impl Future<Output = u8> {
            let (kept, counted) = (**counted, Rc::clone(counted));
            async move {
                let mut polls = 0;
                poll_fn(|_| {
                    polls += 1;
                    if polls < 3 { Poll::Pending } else { Poll::Ready(()) }
                })
                .await;
                kept[N - 1] + counted[0]
            }
        }
        fn each<const N: usize>(blocks: &KeptBlocks) {
            let counted = Rc::new([3; N]);
            let mut cx = Context::from_waker(core::task::Waker::noop());
            for polls in 0..5 {
                let mut boxed = pin!(blocks.boxed(|| future(&counted)));
                let polled: Vec<Poll<u8>> = (0..polls.min(3)).map(|_| boxed.as_mut().poll(&mut cx)).collect();
                assert!(polled.iter().take(2).all(Poll::is_pending));
                assert!(polled.get(2).is_none_or(|end| *end == Poll::Ready(6)));
            }
            assert_eq!(Rc::strong_count(&counted), 1, "a future of {N} bytes was not dropped");
        }
        let blocks = KeptBlocks::default();
        each::<1>(&blocks);
        each::<900>(&blocks);
        assert_eq!(blocks.0.borrow().len(), 1, "one after the other needs one block");
        each::<2000>(&blocks);
        let all: Vec<_> = (0..3).map(|_| blocks.boxed(|| async { 1 })).collect();
        assert!(blocks.0.borrow().is_empty());
        drop(all);
        assert_eq!(blocks.0.borrow().len(), 3);
    }

    #[test]
    fn values_are_kept_as_futures_are() {
        let (blocks, counted) = (KeptBlocks::default(), Rc::new(7));
        let mut kept = Kept(blocks.boxed(|| [Some(Rc::clone(&counted)), None]));
        kept[1] = Some(Rc::clone(&counted));
        let moved = kept;
        assert_eq!((moved[1].as_deref(), Rc::strong_count(&counted)), (Some(&7), 3));
        assert_eq!(blocks.0.borrow().len(), 0);
        let taken = moved.into_inner();
        assert_eq!((blocks.0.borrow().len(), Rc::strong_count(&counted)), (1, 3));
        drop((taken, Kept(blocks.boxed(|| Rc::clone(&counted)))));
        assert_eq!((blocks.0.borrow().len(), Rc::strong_count(&counted)), (1, 1));
    }
}
