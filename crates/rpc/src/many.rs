//! Many calls at once, in as few puts as possible.

use std::collections::VecDeque;

use farfield_core::toolkit::ErrorContext;
use farfield_core::{Endpoint, Error, ErrorKind, Result, Value, WaitLimit};
use farfield_fabric::Instant;

use crate::call::Frame;
use crate::client::Client;
use crate::errors::NotSent;
use crate::layout::{check_length, values_of};

/// The requests of one put, or how many are not sent, and why.
type Part<'a> = core::result::Result<Frame<'a>, (usize, Error)>;

impl<Req: Value, Rep: Value> Client<Req, Rep> {
    pub(crate) async fn many(&self, endpoint: &Endpoint, requests: &[Req], mut limit: WaitLimit) -> Vec<Result<Rep>> {
        let (start, options) = (endpoint.now(), &self.link.options);
        let parts = options.window.min(requests.len().div_ceil(options.batch_max));
        let (mut results, mut under_way) = (Vec::with_capacity(requests.len()), VecDeque::with_capacity(parts));
        let mut rest = requests;
        while !rest.is_empty() || !under_way.is_empty() {
            let late = self.late(endpoint, start, &limit);
            // All that there are slots for, and one at least.
            while let Some((count, part)) =
                self.next_part(endpoint, rest, &mut limit, &late, under_way.is_empty()).await
            {
                under_way.push_back(part);
                rest = &rest[count..];
            }
            self.post_all(endpoint, &mut under_way, &late);
            match under_way.pop_front() {
                Some(Ok(mut frame)) => results.extend(frame.replies_of_all(&mut limit).await),
                Some(Err((count, error))) => results.extend((0..count).map(|_| Err(error.clone()))),
                None => {}
            }
        }
        results
    }

    /// The error of what was not sent before the deadline, once it has passed.
    fn late(&self, endpoint: &Endpoint, start: Instant, limit: &WaitLimit) -> Option<Error> {
        let WaitLimit::Deadline(deadline) = *limit else { return None };
        let now = endpoint.now();
        (now >= deadline).then(|| {
            let (what, missing) = ("the replies to earlier requests".into(), vec![self.link.server]);
            let because = ErrorKind::Timeout { what, waited: now - start, missing }.into();
            let error = Error::custom(NotSent { server: self.link.server, because });
            error.about(self.link.server).of(self.link.object.path())
        })
    }

    /// The next requests, as many as one put carries, or some that are not sent. None if there are no more, or no
    /// resources for them before an earlier part has ended.
    async fn next_part<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        rest: &[Req],
        limit: &mut WaitLimit,
        late: &Option<Error>,
        is_first: bool,
    ) -> Option<(usize, Part<'a>)> {
        let (link, first) = (&*self.link, rest.first()?);
        if let Some(late) = late {
            return Some((rest.len(), Err((rest.len(), late.clone()))));
        }
        // One that is too long fails alone.
        let length = |request: &Req| check_length(request, link.options.request_bytes_max);
        if let Err(too_long) = length(first) {
            return Some((1, Err((1, too_long.of(link.object.path())))));
        }
        if let Err(error) = link.check_usable() {
            return Some((1, Err((1, error))));
        }
        let count = rest.iter().take(link.options.batch_max).take_while(|request| length(request).is_ok()).count();
        let frame = if is_first {
            self.frame(endpoint, &rest[..count], limit).await
        } else {
            let taken = link.try_take(false)?;
            Frame::new(link, endpoint, taken, &rest[..count]).of(link.object.path())
        };
        match frame {
            Err(error) if error.is_refused() && !is_first => None,
            frame => Some((count, frame.map_err(|error| (count, error)))),
        }
    }

    /// Puts the messages that were not put yet, behind one doorbell. One that is refused is put after an earlier part
    /// has ended. The first fails then: nothing of it has happened.
    fn post_all(&self, endpoint: &Endpoint, under_way: &mut VecDeque<Part<'_>>, late: &Option<Error>) {
        let link = &*self.link;
        let is_unsent = |part: &Part<'_>| part.as_ref().is_ok_and(|frame| !frame.is_sent());
        if !under_way.iter().any(is_unsent) {
            return;
        }
        let failed = endpoint.check_alive(link.server).map_err(|gone| Error::from(gone).of(link.object.path()));
        let failed = failed.err().or_else(|| late.clone());
        let doorbell = endpoint.batch(link.server);
        for (at, part) in under_way.iter_mut().enumerate() {
            let Ok(frame) = part else { continue };
            if frame.is_sent() {
                continue;
            }
            let error = match &failed {
                Some(failed) => failed.clone(),
                None => match frame.post() {
                    Ok(()) => continue,
                    Err(refused) if refused.is_refused() && at > 0 => continue,
                    Err(error) => Error::from(error).of(link.object.path()),
                },
            };
            *part = Err((values_of(frame.image()), error));
        }
        drop(doorbell.post());
    }
}
