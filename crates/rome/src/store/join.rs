//! Several futures of one thread, so that their operations are under way together.

use core::future::poll_fn;
use core::pin::Pin;
use core::task::Poll;

pub(super) type Boxed<'f, T> = Pin<Box<dyn Future<Output = T> + 'f>>;

/// What all of them result in.
pub(super) async fn all<T>(mut futures: Vec<Boxed<'_, T>>) -> Vec<T> {
    let mut results: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut is_done = true;
        for (future, result) in futures.iter_mut().zip(&mut results).filter(|both| both.1.is_none()) {
            match future.as_mut().poll(context) {
                Poll::Ready(value) => *result = Some(value),
                Poll::Pending => is_done = false,
            }
        }
        if is_done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().flatten().collect()
}
