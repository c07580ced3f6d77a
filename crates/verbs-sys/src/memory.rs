//! Protection domains, registered memory, and the device's own memory.

#![allow(missing_docs, reason = "fields and constants are those of the manual pages, and documented where it matters")]

use core::ffi::{c_int, c_uint, c_void};

use farfield_c_decl::{c_constants, c_types};

use crate::context::{extended_op, set_errno, verbs_get_ctx};
use crate::{ibv_context, verbs_context};

c_constants! {
    /// The allowed accesses to memory, or through a queue pair.
    flags ibv_access_flags: c_uint {
        IBV_ACCESS_LOCAL_WRITE = 1 << 0,
        IBV_ACCESS_REMOTE_WRITE = 1 << 1,
        IBV_ACCESS_REMOTE_READ = 1 << 2,
        IBV_ACCESS_REMOTE_ATOMIC = 1 << 3,
        IBV_ACCESS_ZERO_BASED = 1 << 5,
        IBV_ACCESS_HUGETLB = 1 << 7,
        /// Gives up that a write lands after an earlier one. Not for memory in which order matters.
        IBV_ACCESS_RELAXED_ORDERING = 1 << 20,
    }
}

c_types! {
    /// A protection domain: regions and queue pairs of one domain go together.
    fixed struct ibv_pd {
        context: *mut ibv_context,
        handle: u32,
    }

    /// A region of registered memory.
    fixed struct ibv_mr {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        handle: u32,
        lkey: u32,
        rkey: u32,
    }

    /// What memory of a device is asked for.
    #[derive(Clone, Copy, Debug, Default)]
    growing struct ibv_alloc_dm_attr {
        length: usize,
        /// The binary logarithm of what its start is to be a multiple of; 0 for any.
        log_align_req: u32,
        comp_mask: u32,
    }

    /// Memory of a device.
    growing struct ibv_dm {
        context: *mut ibv_context,
        /// Copies into it. Errno value.
        memcpy_to_dm: Option<
            unsafe extern "C" fn(dm: *mut ibv_dm, dm_offset: u64, host_addr: *const c_void, length: usize) -> c_int
        >,
        /// Copies out of it. Errno value.
        memcpy_from_dm: Option<
            unsafe extern "C" fn(host_addr: *mut c_void, dm: *mut ibv_dm, dm_offset: u64, length: usize) -> c_int
        >,
        comp_mask: u32,
        handle: u32,
    }
}

/// Allocates memory of a device. Null and errno: `EOPNOTSUPP` where the library or the provider has none to give.
///
/// # Safety
/// `context` is an open context, as [`verbs_get_ctx`] asks for it; the attributes are valid.
pub unsafe fn ibv_alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm {
    // SAFETY: by the contract of this function.
    unsafe {
        match extended_op!(context, alloc_dm) {
            Some(alloc_dm) => alloc_dm(context, attr),
            None => {
                set_errno(libc::EOPNOTSUPP);
                core::ptr::null_mut()
            }
        }
    }
}

/// Frees memory of a device. Errno value: `EBUSY` while it is registered.
///
/// # Safety
/// `dm` is from [`ibv_alloc_dm`] and is not used afterwards.
pub unsafe fn ibv_free_dm(dm: *mut ibv_dm) -> c_int {
    // SAFETY: by the contract of this function; a provider that allocates it frees it.
    unsafe { extended_op!((*dm).context, free_dm).map_or(libc::EOPNOTSUPP, |free_dm| free_dm(dm)) }
}

/// Registers memory of a device. Addresses begin at 0 with `access` of [`IBV_ACCESS_ZERO_BASED`], which some devices
/// insist on. Null and errno.
///
/// # Safety
/// `pd` is a protection domain of the context that `dm` was allocated of.
pub unsafe fn ibv_reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    dm_offset: u64,
    length: usize,
    access: ibv_access_flags,
) -> *mut ibv_mr {
    // SAFETY: by the contract of this function.
    unsafe {
        match extended_op!((*dm).context, reg_dm_mr) {
            Some(reg_dm_mr) => reg_dm_mr(pd, dm, dm_offset, length, access),
            None => {
                set_errno(libc::EOPNOTSUPP);
                core::ptr::null_mut()
            }
        }
    }
}
