//! Several calls at a time.

use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::task::Poll;

use farfield_core::Result;

/// The results of some calls, in their order, or the first error. So many are under way at a time; all are made.
pub(crate) async fn together<T, F: Future<Output = Result<T>>>(
    at_a_time: usize,
    calls: impl Iterator<Item = F>,
) -> Result<Vec<T>> {
    let mut calls = calls.enumerate();
    let mut under_way: Vec<(usize, Pin<Box<F>>)> = Vec::new();
    let mut results: Vec<Option<T>> = Vec::new();
    let mut failed = None;
    poll_fn(|cx| {
        loop {
            while under_way.len() < at_a_time
                && let Some((at, call)) = calls.next()
            {
                results.push(None);
                under_way.push((at, Box::pin(call)));
            }
            let mut has_ended = false;
            let mut at = 0;
            while at < under_way.len() {
                match under_way[at].1.as_mut().poll(cx) {
                    Poll::Pending => at += 1,
                    Poll::Ready(result) => {
                        let (place, _) = under_way.swap_remove(at);
                        match result {
                            Ok(result) => results[place] = Some(result),
                            Err(error) => failed = failed.take().or(Some(error)),
                        }
                        has_ended = true;
                    }
                }
            }
            if under_way.is_empty() && !has_ended {
                return Poll::Ready(());
            }
            if !has_ended {
                return Poll::Pending;
            }
        }
    })
    .await;
    match failed {
        None => Ok(results.into_iter().flatten().collect()),
        Some(error) => Err(error),
    }
}
