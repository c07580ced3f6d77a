//! Protection domains, registered memory, and windows into it.

#![allow(missing_docs, reason = "fields and constants are those of the manual pages, and documented where it matters")]

use core::ffi::{c_int, c_uint, c_void};

use crate::context::{extended_op, set_errno, verbs_get_ctx};
use crate::declare::{c_constants, c_types};
use crate::{ibv_context, verbs_context};

c_constants! {
    /// Who may do what with memory, or through a queue pair.
    flags ibv_access_flags: c_uint {
        IBV_ACCESS_LOCAL_WRITE = 1 << 0,
        IBV_ACCESS_REMOTE_WRITE = 1 << 1,
        IBV_ACCESS_REMOTE_READ = 1 << 2,
        IBV_ACCESS_REMOTE_ATOMIC = 1 << 3,
        IBV_ACCESS_MW_BIND = 1 << 4,
        IBV_ACCESS_ZERO_BASED = 1 << 5,
        IBV_ACCESS_HUGETLB = 1 << 7,
        /// Gives up that a write lands after an earlier one. Not for memory whose order matters.
        IBV_ACCESS_RELAXED_ORDERING = 1 << 20,
    }

    /// How a window is bound: by a call, or by a work request.
    enum ibv_mw_type: c_uint {
        IBV_MW_TYPE_1 = 1,
        IBV_MW_TYPE_2 = 2,
    }
}

c_types! {
    /// A protection domain: regions, windows and queue pairs of one domain go together.
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

    /// A window into a region, which can be opened and closed without registering.
    fixed struct ibv_mw {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        /// Changes with every binding: see [`ibv_inc_rkey`].
        rkey: u32,
        handle: u32,
        kind as "type": ibv_mw_type,
    }

    /// What a window shows.
    #[derive(Clone, Copy, Debug, Default)]
    fixed struct ibv_mw_bind_info {
        mr: *mut ibv_mr,
        addr: u64,
        length: u64,
        mw_access_flags: ibv_access_flags,
    }
}

/// The key for the next binding of a window of type 2: its low byte counts.
#[must_use]
pub const fn ibv_inc_rkey(rkey: u32) -> u32 {
    (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff)
}

/// Allocates a memory window. Null and errno: `EOPNOTSUPP` where there are none.
///
/// # Safety
/// `pd` is a protection domain of an open context.
pub unsafe fn ibv_alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: by the contract of this function.
    unsafe {
        match (*(*pd).context).ops.alloc_mw {
            Some(alloc_mw) => alloc_mw(pd, kind),
            None => {
                set_errno(libc::EOPNOTSUPP);
                core::ptr::null_mut()
            }
        }
    }
}

/// Frees a memory window. Errno value.
///
/// # Safety
/// `mw` came from [`ibv_alloc_mw`] and is not used afterwards.
pub unsafe fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: by the contract of this function; a provider that allocates windows frees them.
    unsafe { (*(*mw).context).ops.dealloc_mw.map_or(libc::EOPNOTSUPP, |dealloc_mw| dealloc_mw(mw)) }
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
/// `dm` came from [`ibv_alloc_dm`] and is not used afterwards.
pub unsafe fn ibv_free_dm(dm: *mut ibv_dm) -> c_int {
    // SAFETY: by the contract of this function; a provider that allocates it frees it.
    unsafe { extended_op!((*dm).context, free_dm).map_or(libc::EOPNOTSUPP, |free_dm| free_dm(dm)) }
}

/// Registers memory of a device. Addresses begin at 0 with `access` of [`IBV_ACCESS_ZERO_BASED`], which some devices insist on.
/// Null and errno.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_low_byte_of_a_key_counts() {
        assert_eq!(ibv_inc_rkey(0x1200), 0x1201);
        assert_eq!(ibv_inc_rkey(0x12ff), 0x1200);
        assert_eq!(ibv_inc_rkey(u32::MAX), 0xffff_ff00);
    }
}
