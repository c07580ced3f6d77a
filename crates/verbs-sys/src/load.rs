//! The library, loaded at run time, and the table of its functions.
//!
//! A symbol of libibverbs may have two versions: `IBVERBS_1.0` speaks an ABI of 2006, `IBVERBS_1.1` is the one that
//! headers declare. Looking a symbol up without a version gives the default one, which is the latter; a test checks it.

use core::ffi::{c_char, c_int, c_void};
use std::error::Error as _;
use std::sync::OnceLock;

use libc::ssize_t;
use libloading::Library;

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
        "RDMA needs {library}, which could not be loaded ({reason}); install it: on Debian and Ubuntu `apt install \
         libibverbs1 ibverbs-providers`, on Fedora `dnf install libibverbs`"
    )]
    Library {
        /// The library's name.
        library: &'static str,
        /// The dynamic linker's error.
        reason: String,
    },
    /// A library is too old.
    #[error(
        "{library} has no function {symbol} ({reason}): it is older than version 32 of rdma-core; install a newer one"
    )]
    Symbol {
        /// The library's name.
        library: &'static str,
        /// The function.
        symbol: &'static str,
        /// The dynamic linker's error.
        reason: String,
    },
}

/// Declares a table of a library's functions: `required` ones, without which loading fails, and `optional` ones.
macro_rules! c_functions {
    (
        $(#[$attribute:meta])*
        struct $table:ident from $library:literal;
        required {
            $($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*
        }
        optional {
            $($(#[$doc2:meta])* fn $name2:ident($($argument2:ident: $type2:ty),* $(,)?) $(-> $result2:ty)?;)*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug)]
        pub struct $table {
            $($(#[$doc])* pub $name: unsafe extern "C" fn($($argument: $type),*) $(-> $result)?,)*
            $($(#[$doc2])* pub $name2: Option<unsafe extern "C" fn($($argument2: $type2),*) $(-> $result2)?>,)*
        }

        impl $table {
            /// The table of this process: the library is loaded by the first call, and stays.
            ///
            /// # Errors
            /// The library is not there, or too old. Later calls return the same.
            pub fn get() -> Result<&'static $table, LoadError> {
                static TABLE: OnceLock<Result<$table, LoadError>> = OnceLock::new();
                TABLE.get_or_init(|| $table::load($library)).as_ref().map_err(Clone::clone)
            }

            fn load(library: &'static str) -> Result<$table, LoadError> {
                let handle = open(library)?;
                // SAFETY: the fields have the types that the library's headers declare for these functions, which
                // `layout` checks; the functions stay where they are, since the library is never closed.
                let table = unsafe {
                    $table {
                        $($name: symbol(&handle, library, stringify!($name))?,)*
                        $($name2: symbol(&handle, library, stringify!($name2)).ok(),)*
                    }
                };
                core::mem::forget(handle);
                Ok(table)
            }

            /// A table for tests, for libraries that need not be there. A function that the test has not replaced ends
            /// the process and says its name.
            #[must_use]
            pub fn for_tests() -> $table {
                $table {
                    $($name: {
                        unsafe extern "C" fn missing($(_: $type),*) $(-> $result)? {
                            panic!(concat!("the test has no ", stringify!($name)))
                        }
                        missing
                    },)*
                    $($name2: None,)*
                }
            }

            #[cfg(test)]
            pub(crate) const FUNCTIONS: &[crate::layout::Function] = &[
                $(crate::layout::Function {
                    name: stringify!($name),
                    arguments: &[$(stringify!($type)),*],
                    result: stringify!($($result)?),
                    optional: false,
                },)*
                $(crate::layout::Function {
                    name: stringify!($name2),
                    arguments: &[$(stringify!($type2)),*],
                    result: stringify!($($result2)?),
                    optional: true,
                },)*
            ];
        }
    };
}

fn open(library: &'static str) -> Result<Library, LoadError> {
    // SAFETY: loading runs the library's initialisers. Those of rdma-core demand nothing of the program.
    unsafe { Library::new(library) }.map_err(|error| LoadError::Library { library, reason: reason(&error) })
}

/// The dynamic linker's own words, which are the error's source.
fn reason(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// # Safety
/// `F` is the type of a pointer to the function, which is called only while the library is loaded.
unsafe fn symbol<F: Copy>(handle: &Library, library: &'static str, symbol: &'static str) -> Result<F, LoadError> {
    // SAFETY: by the contract of this function.
    match unsafe { handle.get::<F>(symbol) } {
        Ok(function) => Ok(*function),
        Err(error) => Err(LoadError::Symbol { library, symbol, reason: reason(&error) }),
    }
}

c_functions! {
    /// The functions of libibverbs, under their C names.
    struct Verbs from "libibverbs.so.1";
    required {
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
    }
    optional {
        /// Whether messages of the queue pair are placed in order, 1 or 0 (since version 36).
        fn ibv_query_qp_data_in_order(qp: *mut ibv_qp, op: ibv_wr_opcode, flags: u32) -> c_int;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::{CStr, CString};

    #[test]
    fn a_missing_library_names_its_packages() {
        let error = Verbs::load("libfarfield-is-not-there.so.1").unwrap_err();
        assert!(matches!(error, LoadError::Library { library: "libfarfield-is-not-there.so.1", .. }), "{error:?}");
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
        let Ok(library) = open("libibverbs.so.1") else {
            eprintln!("no libibverbs on this machine: not tested");
            return;
        };
        let handle = libloading::os::unix::Library::from(library).into_raw();
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
