//! What failures of work requests mean to an operation.
//!
//! A lane checks keys, bounds and alignment before it posts. So when a peer refuses an access, it is the right that is
//! missing, and not the place that is wrong. A refusal may be reported as *remote access error* or as *remote invalid
//! request*: Soft-RoCE says the latter where a queue pair lacks the right.

use core::ffi::c_int;

use farfield_verbs_sys::*;

use crate::error::Code;
use crate::lane::Verb;

/// The meaning of a completion's status that is not success. `None` if it only follows from an earlier failure of the
/// queue pair, or from its being ended.
pub(super) fn code_of(status: ibv_wc_status) -> Option<Code> {
    Some(match status {
        IBV_WC_WR_FLUSH_ERR => return None,
        IBV_WC_REM_ACCESS_ERR | IBV_WC_REM_INV_REQ_ERR | IBV_WC_REM_INV_RD_REQ_ERR => Code::Revoked,
        // The peer does not answer, or could not do it: it may have been done or not. Whether the peer is dead, the
        // session knows.
        IBV_WC_RETRY_EXC_ERR
        | IBV_WC_RNR_RETRY_EXC_ERR
        | IBV_WC_RESP_TIMEOUT_ERR
        | IBV_WC_REM_OP_ERR
        | IBV_WC_REM_ABORT_ERR => Code::Unreachable,
        // Mistakes of this side: lengths, keys, states; faults of the device; statuses of services that are not
        // used here, or not known yet.
        _ => Code::Device,
    })
}

/// Why a work request could not be posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    /// The send queue is full: again later.
    Full,
    /// This request will never do.
    Never(Code),
}

/// The meaning of the errno value of a post.
pub(super) fn refusal_of(errno: c_int, verb: Verb) -> Refusal {
    match errno {
        libc::ENOMEM | libc::EAGAIN | libc::ENOBUFS => Refusal::Full,
        libc::EOPNOTSUPP | libc::ENOSYS if matches!(verb, Verb::Cas | Verb::Faa) => Refusal::Never(Code::NoAtomics),
        _ => Refusal::Never(Code::Device),
    }
}
