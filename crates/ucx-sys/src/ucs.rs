//! Types of libucs, the layer below UCP: the status of a call, the mode of threads.

#![allow(missing_docs, reason = "constants are those of the header, and documented where it matters")]

use core::ffi::{c_uint, c_void};

use farfield_c_decl::c_constants;

c_constants! {
    /// How a call or an operation ended.
    enum ucs_status_t: i8 {
        UCS_OK = 0,
        /// The operation is not complete.
        UCS_INPROGRESS = 1,
        UCS_ERR_NO_MESSAGE = -1,
        UCS_ERR_NO_RESOURCE = -2,
        UCS_ERR_IO_ERROR = -3,
        UCS_ERR_NO_MEMORY = -4,
        UCS_ERR_INVALID_PARAM = -5,
        UCS_ERR_UNREACHABLE = -6,
        UCS_ERR_INVALID_ADDR = -7,
        UCS_ERR_NOT_IMPLEMENTED = -8,
        UCS_ERR_MESSAGE_TRUNCATED = -9,
        UCS_ERR_NO_PROGRESS = -10,
        UCS_ERR_BUFFER_TOO_SMALL = -11,
        UCS_ERR_NO_ELEM = -12,
        UCS_ERR_SOME_CONNECTS_FAILED = -13,
        UCS_ERR_NO_DEVICE = -14,
        /// From arming a worker: there are events, which progress takes.
        UCS_ERR_BUSY = -15,
        /// The endpoint was closed before the operation was complete.
        UCS_ERR_CANCELED = -16,
        UCS_ERR_SHMEM_SEGMENT = -17,
        UCS_ERR_ALREADY_EXISTS = -18,
        UCS_ERR_OUT_OF_RANGE = -19,
        UCS_ERR_TIMED_OUT = -20,
        UCS_ERR_EXCEEDS_LIMIT = -21,
        UCS_ERR_UNSUPPORTED = -22,
        UCS_ERR_REJECTED = -23,
        UCS_ERR_NOT_CONNECTED = -24,
        /// The peer's process has gone, or has closed its endpoint by force.
        UCS_ERR_CONNECTION_RESET = -25,
        UCS_ERR_ENDPOINT_TIMEOUT = -80,
        UCS_ERR_LAST = -100,
    }

    /// The threads that may use an object.
    enum ucs_thread_mode_t: c_uint {
        /// Only the thread that made it.
        UCS_THREAD_MODE_SINGLE = 0,
        /// Any, one at a time.
        UCS_THREAD_MODE_SERIALIZED = 1,
        /// Any.
        UCS_THREAD_MODE_MULTI = 2,
    }

    /// The kind of memory of a buffer; others than the host's are left out.
    enum ucs_memory_type_t: c_uint {
        UCS_MEMORY_TYPE_HOST = 0,
    }
}

/// The result of starting an operation: null if it is complete, a status if it has failed, else its request.
pub type ucs_status_ptr_t = *mut c_void;

/// Whether a result of starting an operation is an error.
#[inline]
#[must_use]
#[allow(non_snake_case, reason = "the name of the macro in C")]
pub fn UCS_PTR_IS_ERR(pointer: ucs_status_ptr_t) -> bool {
    pointer.addr() >= UCS_ERR_LAST as isize as usize
}

/// The status in a result of starting an operation that is null or an error.
#[inline]
#[must_use]
#[allow(non_snake_case, reason = "the name of the macro in C")]
pub fn UCS_PTR_RAW_STATUS(pointer: ucs_status_ptr_t) -> ucs_status_t {
    pointer.addr() as ucs_status_t
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_a_status_or_a_request() {
        let status = |status: ucs_status_t| core::ptr::without_provenance_mut(status as isize as usize);
        for error in [UCS_ERR_NO_MESSAGE, UCS_ERR_CONNECTION_RESET, UCS_ERR_LAST] {
            assert!(UCS_PTR_IS_ERR(status(error)));
            assert_eq!(UCS_PTR_RAW_STATUS(status(error)), error);
        }
        assert!(!UCS_PTR_IS_ERR(core::ptr::null_mut()));
        assert_eq!(UCS_PTR_RAW_STATUS(core::ptr::null_mut()), UCS_OK);
        let mut request = 0_u64;
        assert!(!UCS_PTR_IS_ERR((&raw mut request).cast()));
    }
}
