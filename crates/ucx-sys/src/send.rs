//! Operations of a worker: active messages and flushes.
//!
//! All messages are eager: their bytes go out with them, and the receiver gets a message whole, in one call of its
//! handler. UCX puts the parts of a long one together in memory of its own. Rendezvous, where the receiver fetches the
//! data later, would deliver later messages before it.

use core::ffi::c_void;
use core::ptr;

use crate::error::{Status, UcxError};
use crate::handle::{Endpoint, Request};
use crate::worker::Worker;
use crate::{
    UCP_AM_SEND_FLAG_EAGER, UCP_OP_ATTR_FIELD_FLAGS, UCS_INPROGRESS, UCS_OK, UCS_PTR_IS_ERR, UCS_PTR_RAW_STATUS,
    ucp_request_param_t, ucs_status_ptr_t, ucs_status_t,
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
}

impl Operation {
    fn new() -> Operation {
        Operation {
            call: "",
            request: ptr::null_mut(),
            status: UCS_OK,
            header: Vec::with_capacity(HEADER_BYTES_MAX),
            data: Vec::new(),
        }
    }
}

impl Worker {
    /// Sends a message to the handler with this identifier. Header and data are copied.
    ///
    /// Without a request the message has been handed to the system, which says nothing about the receiver. A request is
    /// for [`is_complete`](Worker::is_complete); messages in flight are limited by the caller only.
    ///
    /// # Errors
    /// The message is too long, or the endpoint has failed. It fails if UCX cannot send: a message would be missing.
    pub fn send(
        &mut self,
        endpoint: &Endpoint,
        id: u16,
        header: &[u8],
        data: &[u8],
    ) -> Result<Option<Request>, UcxError> {
        short_enough(header.len(), data.len())?;
        let mut operation = self.operation("ucp_am_send_nbx");
        operation.data.extend_from_slice(data);
        let start = operation.data.as_ptr();
        // SAFETY: the data is the operation's own: on the heap, unchanged until the operation is complete or the worker
        // destroyed.
        unsafe { self.send_by(operation, endpoint, id, header, start, data.len()) }
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
        let operation = self.operation("ucp_am_send_nbx");
        // SAFETY: by the contract of this function.
        unsafe { self.send_by(operation, endpoint, id, header, data, length) }
    }

    /// # Safety
    /// As for [`send_from`](Worker::send_from).
    unsafe fn send_by(
        &mut self,
        mut operation: Operation,
        endpoint: &Endpoint,
        id: u16,
        header: &[u8],
        data: *const u8,
        length: usize,
    ) -> Result<Option<Request>, UcxError> {
        let ep = self.usable(endpoint)?;
        short_enough(header.len(), length)?;
        operation.header.clear();
        operation.header.extend_from_slice(header);
        let param = ucp_request_param_t {
            op_attr_mask: UCP_OP_ATTR_FIELD_FLAGS,
            flags: UCP_AM_SEND_FLAG_EAGER,
            ..ucp_request_param_t::default()
        };
        let start = operation.header.as_ptr().cast();
        // SAFETY: the endpoint is open and has not failed; the parameters are valid for the call. The header is on the
        // heap, and stays with the operation; the data stays by the contract of this function.
        let result =
            unsafe { (self.ucx.ucp.ucp_am_send_nbx)(ep, id.into(), start, header.len(), data.cast(), length, &param) };
        if UCS_PTR_IS_ERR(result) {
            // Later messages would come without this one. Often UCX knows already that the endpoint has failed, and its
            // handler does not.
            self.keep(operation);
            return self.fail(endpoint, UCS_PTR_RAW_STATUS(result)).map(|()| None);
        }
        self.started(operation, result)
    }

    /// Is complete when all that was sent before by this worker has been handed to the system, or has failed.
    ///
    /// # Errors
    /// UCX cannot flush.
    pub fn flush(&mut self) -> Result<Option<Request>, UcxError> {
        let operation = self.operation("ucp_worker_flush_nbx");
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
        let operation = self.operations.get(index);
        Status(operation.status).of(operation.call).map(|()| true)
    }

    fn operation(&mut self, call: &'static str) -> Operation {
        let mut operation = self.spare.pop().unwrap_or_else(Operation::new);
        operation.call = call;
        operation
    }

    /// Keeps the buffers of an operation that is complete.
    fn keep(&mut self, mut operation: Operation) {
        if self.spare.len() < KEPT {
            operation.data.clear();
            operation.data.shrink_to(KEPT_BYTES);
            self.spare.push(operation);
        }
    }

    /// Keeps an operation that is in flight.
    fn started(&mut self, mut operation: Operation, result: ucs_status_ptr_t) -> Result<Option<Request>, UcxError> {
        if result.is_null() || UCS_PTR_IS_ERR(result) {
            let done = Status(UCS_PTR_RAW_STATUS(result)).of(operation.call);
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
            unsafe {
                operation.status = (ucx.ucp.ucp_request_check_status)(operation.request);
                if operation.status == UCS_INPROGRESS {
                    return false;
                }
                (ucx.ucp.ucp_request_free)(operation.request);
            }
            operation.request = ptr::null_mut();
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
