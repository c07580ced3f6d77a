//! Reads under an announcement. A thread that was stopped meanwhile begins again.

use farfield_core::toolkit::ErrorContext;
use farfield_core::{Endpoint, Error, ErrorKind, Result};
use farfield_fabric::Instant;

use crate::errors::SnapshotExpired;
use crate::open::Opened;
use crate::seats::Seat;

/// Runs an attempt under an announcement of the version that is known, and again if this thread was stopped meanwhile.
/// What it reads last it reads in time ([`check`]).
///
/// # Errors
/// Those of an attempt. [`ErrorKind::Timeout`]: it was stopped again and again.
pub(crate) async fn read<T>(
    opened: &Opened,
    ep: &Endpoint,
    seat: &mut Seat,
    known: &mut u64,
    attempt: impl AsyncFnMut(&mut Seat, &mut u64) -> Result<T>,
) -> Result<T> {
    let value = announced(opened, ep, seat, known, attempt).await?;
    seat.clear();
    Ok(value)
}

/// As [`read`]; the announcement stays.
pub(crate) async fn announced<T>(
    opened: &Opened,
    ep: &Endpoint,
    seat: &mut Seat,
    known: &mut u64,
    mut attempt: impl AsyncFnMut(&mut Seat, &mut u64) -> Result<T>,
) -> Result<T> {
    let (start, path) = (ep.now(), opened.object.path());
    loop {
        late_since(ep, start).of(path)?;
        opened.object.check_current()?;
        let reading = Reading::begin(seat, ep, *known);
        match attempt(&mut *reading.0, known).await {
            Ok(value) => {
                core::mem::forget(reading);
                return Ok(value);
            }
            Err(error) if error.custom_ref::<SnapshotExpired>().is_some() => {}
            Err(error) => return Err(error).of(path),
        }
    }
}

/// Fails if the reader has made no progress for too long.
pub(crate) fn check(seat: &mut Seat, ep: &Endpoint) -> Result<()> {
    let lease = seat.lease();
    seat.check(ep).map_err(|idle| Error::custom(SnapshotExpired { idle, lease }))
}

/// The same, for reads by the owner's processor.
pub(crate) fn check_here(seat: &mut Seat, ep: &Endpoint) -> Result<()> {
    let lease = seat.lease();
    seat.check_here(ep).map_err(|idle| Error::custom(SnapshotExpired { idle, lease }))
}

/// A reader that stops again and again ends with a timeout.
///
/// # Errors
/// [`ErrorKind::Timeout`]
pub(crate) fn late_since(ep: &Endpoint, start: Instant) -> Result<()> {
    let waited = ep.now().since(start);
    if waited <= ep.timeout() {
        return Ok(());
    }
    let what = "a read: in each attempt this thread was stopped, or a get took, for more than a quarter of the `lease`";
    Err(ErrorKind::Timeout { what: what.into(), waited, missing: Vec::new() }.into())
}

/// An announcement, until it is dropped.
struct Reading<'s>(&'s mut Seat);

impl<'s> Reading<'s> {
    fn begin(seat: &'s mut Seat, ep: &Endpoint, version: u64) -> Reading<'s> {
        seat.announce(ep, version);
        Reading(seat)
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.clear();
    }
}
