//! The library, loaded at run time, and the table of its functions.
//!
//! A symbol of libibverbs may have two versions: `IBVERBS_1.0` speaks an ABI of 2006, `IBVERBS_1.1` is the one that
//! headers declare. Looking a symbol up without a version gives the default one, which is the latter; a test checks it.

use core::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

use farfield_c_decl::{Library, MissingFunction, MissingLibrary, c_functions};
use libc::ssize_t;

use crate::{
    _compat_ibv_port_attr, be64, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr,
    ibv_event_type, ibv_gid_entry, ibv_mr, ibv_pd, ibv_port_state, ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr,
    ibv_wc_status, ibv_wr_opcode,
};

/// Why there is no real RDMA on this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// A library cannot be loaded.
    #[error(
        "RDMA needs {}, which could not be loaded ({}); install it: on Debian and Ubuntu `apt install libibverbs1 \
         ibverbs-providers`, on Fedora `dnf install libibverbs`",
        .0.library,
        .0.reason
    )]
    Library(MissingLibrary),
    /// A library is too old.
    #[error("{0}: it is older than version 32 of rdma-core; install a newer one")]
    Symbol(MissingFunction),
}

c_functions! {
    /// The functions of libibverbs, under their C names.
    struct Verbs from "libibverbs.so.1";
    /// The devices of this machine, a null behind the last. Null and errno: `ENOSYS` where the kernel has no RDMA.
    fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device;
    /// Frees the list, and with it the devices that were not opened.
    fn ibv_free_device_list(list: *mut *mut ibv_device);
    /// The kernel's name of the device; it lives as long as the device.
    fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
    /// The device's GUID, 0 if it cannot be read.
    fn ibv_get_device_guid(device: *mut ibv_device) -> be64;
    /// Opens a device. Null and errno.
    fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    /// Closes it. -1 and errno.
    fn ibv_close_device(context: *mut ibv_context) -> c_int;
    /// Errno value.
    fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
    /// The old query: use the function [`ibv_query_port`](crate::ibv_query_port).
    fn ibv_query_port(context: *mut ibv_context, port_num: u8, attr: *mut _compat_ibv_port_attr) -> c_int;
    /// Use the function [`ibv_query_gid_ex`](crate::ibv_query_gid_ex).
    fn _ibv_query_gid_ex(
        context: *mut ibv_context,
        port_num: u32,
        gid_index: u32,
        entry: *mut ibv_gid_entry,
        flags: u32,
        entry_size: usize,
    ) -> c_int;
    /// Use the function [`ibv_query_gid_table`](crate::ibv_query_gid_table).
    fn _ibv_query_gid_table(
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        max_entries: usize,
        flags: u32,
        entry_size: usize,
    ) -> ssize_t;
    /// Null and errno.
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    /// Errno value: `EBUSY` while something belongs to it.
    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    /// Registers memory. Null and errno: `ENOMEM` when the limit of locked memory (`ulimit -l`) is in the way.
    fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr;
    /// Errno value.
    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    /// Null and errno.
    fn ibv_create_cq(
        context: *mut ibv_context,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: c_int,
    ) -> *mut ibv_cq;
    /// Errno value: `EBUSY` while a queue pair uses it.
    fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    /// Null and errno. `attr.cap` is changed to what there is.
    fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    /// The extended view of a queue pair; null if it was made without extended operations.
    fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex;
    /// Errno value.
    fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int;
    /// Errno value.
    fn ibv_query_qp(
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_attr,
        attr_mask: c_int,
        init_attr: *mut ibv_qp_init_attr,
    ) -> c_int;
    /// Errno value. Waits until the asynchronous events about it are acknowledged.
    fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    /// The next asynchronous event, each to be acknowledged. -1 and errno.
    fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
    /// Acknowledges an event.
    fn ibv_ack_async_event(event: *mut ibv_async_event);
    /// Prepares for `fork`; to be called before any device is opened. Errno value.
    fn ibv_fork_init() -> c_int;
    /// A text that lives for ever.
    fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char;
    /// A text that lives for ever.
    fn ibv_event_type_str(event: ibv_event_type) -> *const c_char;
    /// A text that lives for ever.
    fn ibv_port_state_str(port_state: ibv_port_state) -> *const c_char;
    optional {
        /// Whether messages of the queue pair are placed in order, 1 or 0 (since version 36).
        fn ibv_query_qp_data_in_order(qp: *mut ibv_qp, op: ibv_wr_opcode, flags: u32) -> c_int;
    }
}

impl Verbs {
    /// The table of this process: the library is loaded by the first call, and stays.
    ///
    /// # Errors
    /// The library is not there, or too old. Later calls return the same.
    pub fn get() -> Result<&'static Verbs, LoadError> {
        static TABLE: OnceLock<Result<Verbs, LoadError>> = OnceLock::new();
        TABLE.get_or_init(|| Verbs::load(Verbs::LIBRARY)).as_ref().map_err(Clone::clone)
    }

    fn load(library: &'static str) -> Result<Verbs, LoadError> {
        // SAFETY: the initialisers of rdma-core demand nothing of the program. The functions have the types of its
        // header, which `layout` checks. No other library has functions of these names.
        unsafe {
            let library = Library::open(library).map_err(LoadError::Library)?;
            Verbs::find(&library).map_err(LoadError::Symbol)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::{CStr, CString};

    #[test]
    fn a_missing_library_names_its_packages() {
        let error = Verbs::load("libfarfield-is-not-there.so.1").unwrap_err();
        assert!(matches!(error, LoadError::Library(_)), "{error:?}");
        let text = error.to_string();
        for word in [
            "libfarfield-is-not-there.so.1",
            "cannot open shared object file",
            "libibverbs1 ibverbs-providers",
            "dnf install libibverbs",
        ] {
            assert!(text.contains(word), "{text}");
        }
    }

    #[test]
    fn a_missing_function_names_its_library() {
        // The C library is there, and has nothing of this.
        let text = Verbs::load("libc.so.6").unwrap_err().to_string();
        assert!(text.contains("libc.so.6") && text.contains("ibv_get_device_list"), "{text}");
    }

    /// Where both versions of a symbol exist, no version means the new one.
    #[test]
    fn symbols_have_their_default_version() {
        let library = CString::new(Verbs::LIBRARY).unwrap();
        // SAFETY: as in `Verbs::load`.
        let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY) };
        if handle.is_null() {
            eprintln!("no libibverbs on this machine: not tested");
            return;
        }
        let lookup = |name: &str, version: Option<&CStr>| {
            let name = CString::new(name).unwrap();
            // SAFETY: the handle is that of an open library, which is never closed; the texts end in a zero.
            unsafe {
                match version {
                    Some(version) => libc::dlvsym(handle, name.as_ptr(), version.as_ptr()),
                    None => libc::dlsym(handle, name.as_ptr()),
                }
            }
        };
        let mut in_both = Vec::new();
        for function in Verbs::FUNCTIONS {
            let old = lookup(function.name, Some(c"IBVERBS_1.0"));
            let new = lookup(function.name, Some(c"IBVERBS_1.1"));
            if !old.is_null() && !new.is_null() && old != new {
                assert_eq!(lookup(function.name, None), new, "{}", function.name);
                in_both.push(function.name);
            }
        }
        assert!(in_both.contains(&"ibv_get_device_list") && in_both.contains(&"ibv_create_qp"), "{in_both:?}");
    }
}
