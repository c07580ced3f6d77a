//! Operations of a worker: active messages and flushes.
//!
//! All messages are eager: their bytes go out with them, and the receiver gets a message whole, in one call of its
//! handler. UCX puts the parts of a long one together in memory of its own. Rendezvous, where the receiver fetches the
//! data later, would deliver later messages before it.

use core::ffi::c_void;
use core::ptr;
use std::sync::Arc;

use crate::callback::Health;
use crate::error::{Status, UcxError};
use crate::handle::{Endpoint, Request};
use crate::worker::Worker;
use crate::{
    UCP_AM_SEND_FLAG_EAGER, UCP_OP_ATTR_FIELD_FLAGS, UCS_INPROGRESS, UCS_OK, UCS_PTR_IS_ERR, UCS_PTR_RAW_STATUS,
    ucp_ep, ucp_request_param_t, ucs_status_ptr_t, ucs_status_t,
};

/// The longest header of a message.
pub const HEADER_BYTES_MAX: usize = 64;
/// The longest data of a message: the receiver needs that much memory to put it together.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// How much memory for data an operation keeps for the next one.
const KEPT_BYTES: usize = 64 << 10;
/// How many operations are kept for next ones.
const KEPT: usize = 64;

/// An operation of UCX, and the bytes that it reads.
pub(crate) struct Operation {
    call: &'static str,
    /// Null when it is complete.
    request: *mut c_void,
    /// How it ended, when it is complete.
    status: ucs_status_t,
    /// UCX has pointers to the bytes of header and data, which stay on the heap where they are.
    header: Vec<u8>,
    data: Vec<u8>,
    /// That of the endpoint, until the operation has ended: an error of one message is the end of the endpoint.
    health: Option<Arc<Health>>,
}

impl Operation {
    fn new() -> Operation {
        Operation {
            call: "",
            request: ptr::null_mut(),
            status: UCS_OK,
            header: Vec::with_capacity(HEADER_BYTES_MAX),
            data: Vec::new(),
            health: None,
        }
    }

    /// Notes how it ended. After an error, later messages must not come without this one: the endpoint fails.
    fn end(&mut self, status: ucs_status_t) -> Result<(), UcxError> {
        self.status = status;
        match self.health.take() {
            Some(health) if status != UCS_OK => Err(UcxError::EndpointFailed { status: Status(health.fail(status)) }),
            _ => self.result(),
        }
    }

    fn result(&self) -> Result<(), UcxError> {
        Status(self.status).of(self.call)
    }
}

impl Worker {
    /// Sends a message to the handler with this identifier. Header and data are copied.
    ///
    /// Without a request UCX has copied the message. It may still be in memory of UCX then, and is lost if the endpoint
    /// is closed before a [flush](Worker::flush_endpoint). A request is for [`is_complete`](Worker::is_complete);
    /// messages in flight are limited by the caller only.
    ///
    /// # Errors
    /// The message is too long, or the endpoint has failed. It fails if UCX cannot send: a message would be missing. It
    /// fails, too, when a message in flight ends with an error. This is found when `is_complete` asks for that message,
    /// or by progress if its request was dropped.
    pub fn send(
        &mut self,
        endpoint: &Endpoint,
        id: u16,
        header: &[u8],
        data: &[u8],
    ) -> Result<Option<Request>, UcxError> {
        let (ep, health) = self.usable(endpoint)?;
        short_enough(header.len(), data.len())?;
        let mut operation = self.operation("ucp_am_send_nbx", Some(health));
        operation.header.extend_from_slice(header);
        operation.data.extend_from_slice(data);
        let start = operation.data.as_ptr();
        // SAFETY: the data is the operation's own: on the heap, unchanged until the operation is complete or the worker
        // destroyed.
        unsafe { self.send_by(operation, ep, id, start, data.len()) }
    }

    /// As [`send`](Worker::send), but copies the header only.
    ///
    /// # Safety
    /// The data is valid to read, and not written, until the operation is complete or the worker has been dropped. It
    /// is complete if there is no request, if the request is complete, or if there was an error.
    ///
    /// # Errors
    /// As for [`send`](Worker::send).
    pub unsafe fn send_from(
        &mut self,
        endpoint: &Endpoint,
        id: u16,
        header: &[u8],
        data: *const u8,
        length: usize,
    ) -> Result<Option<Request>, UcxError> {
        let (ep, health) = self.usable(endpoint)?;
        short_enough(header.len(), length)?;
        let mut operation = self.operation("ucp_am_send_nbx", Some(health));
        operation.header.extend_from_slice(header);
        // SAFETY: by the contract of this function; the endpoint is usable.
        unsafe { self.send_by(operation, ep, id, data, length) }
    }

    /// Sends a message with the header that is in the operation.
    ///
    /// # Safety
    /// As for [`send_from`](Worker::send_from). The endpoint is open and has not failed.
    unsafe fn send_by(
        &mut self,
        operation: Operation,
        ep: *mut ucp_ep,
        id: u16,
        data: *const u8,
        length: usize,
    ) -> Result<Option<Request>, UcxError> {
        let param = ucp_request_param_t {
            op_attr_mask: UCP_OP_ATTR_FIELD_FLAGS,
            flags: UCP_AM_SEND_FLAG_EAGER,
            ..ucp_request_param_t::default()
        };
        let (start, bytes) = (operation.header.as_ptr().cast(), operation.header.len());
        // SAFETY: endpoint and data are as the contract of this function says; the parameters are valid for the call.
        // The header is on the heap, and stays with the operation.
        let result =
            unsafe { (self.ucx.ucp.ucp_am_send_nbx)(ep, id.into(), start, bytes, data.cast(), length, &param) };
        self.started(operation, result)
    }

    /// Is complete when every message that this endpoint sent before has been handed to the system.
    ///
    /// UCX 1.13 also waits for an answer of the peer over TCP, unlike for [`flush`](Worker::flush): a peer without
    /// progress delays it. It is no promise that the peer has handled the messages.
    ///
    /// # Errors
    /// The endpoint has failed. It fails if UCX cannot flush.
    pub fn flush_endpoint(&mut self, endpoint: &Endpoint) -> Result<Option<Request>, UcxError> {
        let (ep, health) = self.usable(endpoint)?;
        let operation = self.operation("ucp_ep_flush_nbx", Some(health));
        let param = ucp_request_param_t::default();
        // SAFETY: the endpoint is open and has not failed, and the parameters are valid for the call.
        let result = unsafe { (self.ucx.ucp.ucp_ep_flush_nbx)(ep, &param) };
        self.started(operation, result)
    }

    /// Is complete when every message that this worker sent before has been handed to the system, or has failed.
    ///
    /// It covers all endpoints: one peer that takes nothing delays it until that endpoint is closed.
    /// [`flush_endpoint`](Worker::flush_endpoint) covers one endpoint.
    ///
    /// # Errors
    /// UCX cannot flush.
    pub fn flush(&mut self) -> Result<Option<Request>, UcxError> {
        let operation = self.operation("ucp_worker_flush_nbx", None);
        let param = ucp_request_param_t::default();
        // SAFETY: the worker is alive, and the parameters are valid for the call.
        let result = unsafe { (self.ucx.ucp.ucp_worker_flush_nbx)(self.handle, &param) };
        self.started(operation, result)
    }

    /// Whether the operation is complete, as far as progress has come.
    ///
    /// # Errors
    /// It has failed, or the request is that of another worker.
    pub fn is_complete(&mut self, request: &Request) -> Result<bool, UcxError> {
        let index = request.index_in(self.number)?;
        if !self.take_status(index) {
            return Ok(false);
        }
        self.operations.get(index).result().map(|()| true)
    }

    fn operation(&mut self, call: &'static str, health: Option<Arc<Health>>) -> Operation {
        let mut operation = self.spare.pop().unwrap_or_else(Operation::new);
        operation.call = call;
        operation.health = health;
        operation
    }

    /// Keeps the buffers of an operation that is complete.
    fn keep(&mut self, mut operation: Operation) {
        if self.spare.len() < KEPT {
            operation.header.clear();
            operation.data.clear();
            operation.data.shrink_to(KEPT_BYTES);
            self.spare.push(operation);
        }
    }

    /// Keeps an operation that is in flight.
    fn started(&mut self, mut operation: Operation, result: ucs_status_ptr_t) -> Result<Option<Request>, UcxError> {
        if result.is_null() || UCS_PTR_IS_ERR(result) {
            // After an error UCX often knows already that the endpoint has failed, and its handler does not.
            let done = operation.end(UCS_PTR_RAW_STATUS(result));
            self.keep(operation);
            return done.map(|()| None);
        }
        operation.request = result;
        operation.status = UCS_INPROGRESS;
        let index = self.operations.insert(operation);
        Ok(Some(Request::new(self.number, index, &self.dropped)))
    }

    /// Whether an operation is complete. Its request of UCX is freed then, and its status kept.
    fn take_status(&mut self, index: usize) -> bool {
        let ucx = self.ucx;
        let operation = self.operations.get_mut(index);
        if !operation.request.is_null() {
            // SAFETY: the request is alive: it is freed here, once, and forgotten.
            let status = unsafe {
                let status = (ucx.ucp.ucp_request_check_status)(operation.request);
                if status == UCS_INPROGRESS {
                    return false;
                }
                (ucx.ucp.ucp_request_free)(operation.request);
                status
            };
            operation.request = ptr::null_mut();
            // The status stays, for its request if that is still there.
            let _ = operation.end(status);
        }
        true
    }

    /// Frees operations that are complete and have no request.
    pub(crate) fn free_complete(&mut self) {
        let mut next = 0;
        while let Some(&index) = self.detached.get(next) {
            if self.take_status(index) {
                self.detached.swap_remove(next);
                let operation = self.operations.remove(index);
                operation.into_iter().for_each(|operation| self.keep(operation));
            } else {
                next += 1;
            }
        }
    }

    /// Whether no operation is in flight.
    pub(crate) fn all_complete(&mut self) -> bool {
        let ucx = self.ucx;
        self.operations.iter_mut().all(|operation| {
            // SAFETY: a request that is not null is alive.
            operation.request.is_null()
                || unsafe { (ucx.ucp.ucp_request_check_status)(operation.request) != UCS_INPROGRESS }
        })
    }
}

/// Refuses a message that is too long.
fn short_enough(header: usize, data: usize) -> Result<(), UcxError> {
    if header > HEADER_BYTES_MAX {
        return Err(UcxError::TooLong { part: "header", bytes: header, limit: HEADER_BYTES_MAX });
    }
    if data > MESSAGE_BYTES_MAX {
        return Err(UcxError::TooLong { part: "message", bytes: data, limit: MESSAGE_BYTES_MAX });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{UCS_ERR_CANCELED, UCS_ERR_NO_MEMORY};
    use core::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn the_error_of_an_operation_is_that_of_its_endpoint() {
        let any = Arc::new(AtomicBool::new(false));
        let health = Arc::new(Health::new(Arc::clone(&any)));
        let end = |status| {
            let mut operation = Operation::new();
            operation.health = Some(Arc::clone(&health));
            let ended = operation.end(status);
            assert_eq!(Arc::strong_count(&health), 1);
            (ended, health.failure())
        };
        assert_eq!(end(UCS_OK), (Ok(()), None));
        assert!(!any.load(Ordering::Relaxed));
        let error = UcxError::EndpointFailed { status: Status(UCS_ERR_NO_MEMORY) };
        assert_eq!(end(UCS_ERR_NO_MEMORY), (Err(error.clone()), Some(UCS_ERR_NO_MEMORY)));
        assert!(any.load(Ordering::Relaxed));
        // The first one stays.
        assert_eq!(end(UCS_ERR_CANCELED), (Err(error), Some(UCS_ERR_NO_MEMORY)));
    }
}
