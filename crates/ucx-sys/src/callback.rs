//! The functions that UCX calls: for a message that has come, and for an endpoint that has failed.

use core::any::Any;
use core::ffi::c_void;
use core::panic::AssertUnwindSafe;
use core::slice;
use core::sync::atomic::{AtomicBool, AtomicI8, Ordering};
use std::panic::catch_unwind;
use std::sync::Arc;

use crate::{
    UCP_AM_RECV_ATTR_FLAG_RNDV, UCS_ERR_LAST, UCS_ERR_UNSUPPORTED, UCS_OK, ucp_am_recv_param_t, ucp_ep, ucs_status_t,
};

/// A message, as a handler sees it. The bytes are UCX's, for the time of the call, and at any address:
/// words in them may not be aligned.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// The header of the message.
    pub header: &'a [u8],
    /// The data of the message.
    pub data: &'a [u8],
}

/// The handler of the messages with one identifier. UCX has a pointer to it.
pub(crate) struct Handler {
    call: Box<dyn FnMut(Message<'_>) + Send>,
    /// The handler is not called any more: its worker is being dropped.
    pub(crate) is_closed: bool,
    /// The panic of the handler, which progress continues with.
    pub(crate) panic: Option<Box<dyn Any + Send>>,
}

impl Handler {
    pub(crate) fn new(call: Box<dyn FnMut(Message<'_>) + Send>) -> Handler {
        Handler { call, is_closed: false, panic: None }
    }
}

/// UCX calls it for a message; `arg` is a [`Handler`].
///
/// # Safety
/// `arg` points to a [`Handler`] that nothing else uses during the call. Header and data are as UCX describes them.
pub(crate) unsafe extern "C" fn deliver(
    arg: *mut c_void,
    header: *const c_void,
    header_length: usize,
    data: *mut c_void,
    length: usize,
    param: *const ucp_am_recv_param_t,
) -> ucs_status_t {
    // SAFETY: by the contract of this function; UCX has the parameters on its stack.
    let (handler, attributes) = unsafe { (&mut *arg.cast::<Handler>(), (*param).recv_attr) };
    if attributes & UCP_AM_RECV_ATTR_FLAG_RNDV != 0 {
        // Such data comes after later messages, and this crate sends none. The sender gets this status.
        return UCS_ERR_UNSUPPORTED;
    }
    if handler.is_closed || handler.panic.is_some() {
        return UCS_OK;
    }
    // SAFETY: header and data are those of the message, valid to read for the call.
    let message = unsafe { Message { header: bytes(header, header_length), data: bytes(data, length) } };
    let call = AssertUnwindSafe(|| (handler.call)(message));
    if let Err(panic) = catch_unwind(call) {
        handler.panic = Some(panic);
    }
    UCS_OK
}

/// # Safety
/// If there are any, the bytes are valid to read during the life of the result.
unsafe fn bytes<'a>(start: *const c_void, length: usize) -> &'a [u8] {
    if length == 0 {
        return &[];
    }
    // SAFETY: by the contract of this function.
    unsafe { slice::from_raw_parts(start.cast(), length) }
}

/// Whether an endpoint has failed. UCX has a pointer to it.
pub(crate) struct Health {
    status: AtomicI8,
    /// Set with the status: some endpoint of the worker has failed.
    any: Arc<AtomicBool>,
}

impl Health {
    pub(crate) fn new(any: Arc<AtomicBool>) -> Health {
        Health { status: AtomicI8::new(UCS_OK), any }
    }

    /// For a new endpoint.
    pub(crate) fn reset(&self) {
        // Relaxed: UCX gets its pointer afterwards, in this thread.
        self.status.store(UCS_OK, Ordering::Relaxed);
    }

    /// Marks the endpoint as failed. The first status stays, and is returned.
    pub(crate) fn fail(&self, status: ucs_status_t) -> ucs_status_t {
        let status = if status == UCS_OK { UCS_ERR_LAST } else { status };
        // Release: see `failure`. The status is there before the mark that makes the worker look for it.
        let first = match self.status.compare_exchange(UCS_OK, status, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => status,
            Err(first) => first,
        };
        self.any.store(true, Ordering::Release);
        first
    }

    pub(crate) fn failure(&self) -> Option<ucs_status_t> {
        // Acquire: this thread sees all that UCX wrote before the failure.
        let status = self.status.load(Ordering::Acquire);
        (status != UCS_OK).then_some(status)
    }
}

/// UCX calls it when an endpoint fails; `arg` is a [`Health`].
///
/// # Safety
/// `arg` points to a [`Health`].
pub(crate) unsafe extern "C" fn has_failed(arg: *mut c_void, _: *mut ucp_ep, status: ucs_status_t) {
    // SAFETY: by the contract of this function; it is only read, and its fields are atomic.
    unsafe { &*arg.cast::<Health>() }.fail(status);
}
