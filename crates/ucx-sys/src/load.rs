//! The libraries, loaded at run time, and the tables of their functions.

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::fmt;
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use farfield_c_decl::{Library, MissingFunction, MissingLibrary, c_functions};

use crate::environment::with_defaults;
use crate::{
    ucp_address, ucp_am_handler_param_t, ucp_config, ucp_context, ucp_context_attr_t, ucp_ep, ucp_ep_params_t,
    ucp_params_t, ucp_request_param_t, ucp_worker, ucp_worker_attr_t, ucp_worker_params_t, ucs_status_ptr_t,
    ucs_status_t,
};

/// The API that this crate declares, and the oldest version that has it.
pub const OLDEST: Version = Version { major: 1, minor: 13, release: 0 };

/// A version of UCX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Another one has another ABI.
    pub major: u32,
    /// Later ones add to the ABI.
    pub minor: u32,
    /// Corrections.
    pub release: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.release)
    }
}

/// Why there is no UCX on this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// A library cannot be loaded.
    #[error(
        "UCX needs {}, which could not be loaded ({}); install it: on Debian 12, Ubuntu 24.04 and later ones `apt-get \
         install libucx0`, on Fedora `dnf install ucx`",
        .0.library,
        .0.reason
    )]
    Library(MissingLibrary),
    /// A library lacks a function.
    #[error("{0}: it is not UCX {OLDEST} or later; install a newer one, as in Debian 12 and Ubuntu 24.04")]
    Symbol(MissingFunction),
    /// A version that cannot work.
    #[error(
        "UCX {found} ({path}) cannot be used: UCX {OLDEST} or a later version of UCX 1 is needed, as in Debian 12 and \
         Ubuntu 24.04"
    )]
    Version {
        /// The version of the library.
        found: Version,
        /// The library's file.
        path: String,
    },
}

/// Opens a library of UCX.
fn open(library: &'static str) -> Result<Library, LoadError> {
    // SAFETY: the initialisers of UCX read the environment, which has the variables that keep them from changing the
    // process, and demand nothing of the program.
    unsafe { Library::open(library) }.map_err(LoadError::Library)
}

c_functions! {
    /// The functions of libucs, under their C names.
    struct Ucs from "libucs.so.0";
    /// A text that lives for ever; for an unknown status until the next call.
    fn ucs_status_string(status: ucs_status_t) -> *const c_char;
}

c_functions! {
    /// The function of libucp that every version has.
    struct UcpVersion from "libucp.so.0";
    /// Writes the library's version.
    fn ucp_get_version(major_version: *mut c_uint, minor_version: *mut c_uint, release_number: *mut c_uint);
}

c_functions! {
    /// The functions of libucp, under their C names.
    struct Ucp from "libucp.so.0";
    /// Reads the configuration from the environment and a file. The prefix, besides `UCX_`, and the file may be null.
    fn ucp_config_read(
        env_prefix: *const c_char,
        filename: *const c_char,
        config_p: *mut *mut ucp_config,
    ) -> ucs_status_t;
    /// Frees a configuration.
    fn ucp_config_release(config: *mut ucp_config);
    /// Sets an option, by its name without `UCX_`. An unknown name is no error: it may be that of a transport.
    fn ucp_config_modify(config: *mut ucp_config, name: *const c_char, value: *const c_char) -> ucs_status_t;
    /// Makes a context for a program that was compiled with headers of that version.
    fn ucp_init_version(
        api_major_version: c_uint,
        api_minor_version: c_uint,
        params: *const ucp_params_t,
        config: *const ucp_config,
        context_p: *mut *mut ucp_context,
    ) -> ucs_status_t;
    /// Frees a context that has no worker.
    fn ucp_cleanup(context_p: *mut ucp_context);
    /// Writes the attributes that the mask names.
    fn ucp_context_query(context_p: *mut ucp_context, attr: *mut ucp_context_attr_t) -> ucs_status_t;
    /// Prints transports and devices.
    fn ucp_context_print_info(context: *mut ucp_context, stream: *mut libc::FILE);
    /// Makes a worker, which opens the devices.
    fn ucp_worker_create(
        context: *mut ucp_context,
        params: *const ucp_worker_params_t,
        worker_p: *mut *mut ucp_worker,
    ) -> ucs_status_t;
    /// Frees a worker with its endpoints and requests.
    fn ucp_worker_destroy(worker: *mut ucp_worker);
    /// Writes the attributes that the mask names.
    fn ucp_worker_query(worker: *mut ucp_worker, attr: *mut ucp_worker_attr_t) -> ucs_status_t;
    /// The address for peers, to be released.
    fn ucp_worker_get_address(
        worker: *mut ucp_worker,
        address_p: *mut *mut ucp_address,
        address_length_p: *mut usize,
    ) -> ucs_status_t;
    /// Frees an address.
    fn ucp_worker_release_address(worker: *mut ucp_worker, address: *mut ucp_address);
    /// Sends and receives as far as possible now, and calls the handlers; 0 if there was nothing to do.
    fn ucp_worker_progress(worker: *mut ucp_worker) -> c_uint;
    /// The descriptor that is readable when there are events; it belongs to the worker.
    fn ucp_worker_get_efd(worker: *mut ucp_worker, fd: *mut c_int) -> ucs_status_t;
    /// Makes the next event be reported. `UCS_ERR_BUSY`: there are events already.
    fn ucp_worker_arm(worker: *mut ucp_worker) -> ucs_status_t;
    /// Makes an endpoint. The connection is made later, by progress on both sides.
    fn ucp_ep_create(worker: *mut ucp_worker, params: *const ucp_ep_params_t, ep_p: *mut *mut ucp_ep) -> ucs_status_t;
    /// Begins to close an endpoint, which is not used afterwards.
    fn ucp_ep_close_nbx(ep: *mut ucp_ep, param: *const ucp_request_param_t) -> ucs_status_ptr_t;
    /// Sets or takes away a handler of active messages.
    fn ucp_worker_set_am_recv_handler(worker: *mut ucp_worker, param: *const ucp_am_handler_param_t) -> ucs_status_t;
    /// Sends an active message. Header and buffer stay until it is complete.
    fn ucp_am_send_nbx(
        ep: *mut ucp_ep,
        id: c_uint,
        header: *const c_void,
        header_length: usize,
        buffer: *const c_void,
        count: usize,
        param: *const ucp_request_param_t,
    ) -> ucs_status_ptr_t;
    /// Is complete when all earlier operations of this worker are.
    fn ucp_worker_flush_nbx(worker: *mut ucp_worker, param: *const ucp_request_param_t) -> ucs_status_ptr_t;
    /// Is complete when all earlier operations of this endpoint are.
    fn ucp_ep_flush_nbx(ep: *mut ucp_ep, param: *const ucp_request_param_t) -> ucs_status_ptr_t;
    /// The status of an operation; `UCS_INPROGRESS` if it is in flight.
    fn ucp_request_check_status(request: *mut c_void) -> ucs_status_t;
    /// Frees a request; the operation, if it is in flight, continues.
    fn ucp_request_free(request: *mut c_void);
}

/// UCX, as it is on this machine.
#[derive(Clone, Debug)]
pub struct Ucx {
    /// The functions of libucp.
    pub ucp: Ucp,
    /// The functions of libucs.
    pub ucs: Ucs,
    version: Version,
    path: PathBuf,
}

static LOADED: OnceLock<Result<Ucx, LoadError>> = OnceLock::new();

impl Ucx {
    /// UCX of this process: the libraries are loaded by the first call, and stay.
    ///
    /// The first call replaces the list of environment variables for the time of loading, and the initialisers read it.
    /// No thread may change the environment meanwhile, not even by [`std::env::set_var`]: std keeps only its own
    /// readers away then, and these are others.
    ///
    /// # Errors
    /// A library is not there, or of a version that cannot work. Later calls return the same.
    pub fn get() -> Result<&'static Ucx, LoadError> {
        LOADED.get_or_init(|| Ucx::load(Ucp::LIBRARY, Ucs::LIBRARY)).as_ref().map_err(Clone::clone)
    }

    /// UCX, if it is loaded.
    pub(crate) fn if_loaded() -> Option<&'static Ucx> {
        LOADED.get()?.as_ref().ok()
    }

    fn load(ucp_library: &'static str, ucs_library: &'static str) -> Result<Ucx, LoadError> {
        let (libucp, libucs) = with_defaults(|| Ok((open(ucp_library)?, open(ucs_library)?)))?;
        // SAFETY: the function has the type of UCX's header, which `layout` checks. No other library has one of this
        // name.
        let version_of = unsafe { UcpVersion::find(&libucp) }.map_err(LoadError::Symbol)?;
        let (mut major, mut minor, mut release) = (0, 0, 0);
        // SAFETY: the function writes three numbers, for which there is room.
        unsafe { (version_of.ucp_get_version)(&mut major, &mut minor, &mut release) };
        let version = Version { major, minor, release };
        let path = file_of(version_of.ucp_get_version as *const c_void).unwrap_or_else(|| ucp_library.into());
        usable(version, &path)?;
        // SAFETY: the functions have the types of UCX's headers, which `layout` checks, and this version has that API.
        let (ucp, ucs) = unsafe { (Ucp::find(&libucp), Ucs::find(&libucs)) };
        Ok(Ucx { ucp: ucp.map_err(LoadError::Symbol)?, ucs: ucs.map_err(LoadError::Symbol)?, version, path })
    }

    /// The version of the library.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// The library's file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The library's text for a status.
    pub(crate) fn status_text(&self, status: ucs_status_t) -> String {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the function takes any number and returns a text that ends in a zero. That of an unknown status stays
        // until the next call: it is copied before another thread may call.
        let text = unsafe { CStr::from_ptr((self.ucs.ucs_status_string)(status)) };
        text.to_string_lossy().into_owned()
    }
}

/// Refuses a version that has another API.
fn usable(found: Version, path: &Path) -> Result<(), LoadError> {
    if found < OLDEST || found.major != OLDEST.major {
        return Err(LoadError::Version { found, path: path.display().to_string() });
    }
    Ok(())
}

/// The file that a function was loaded from.
fn file_of(function: *const c_void) -> Option<PathBuf> {
    // SAFETY: zero is valid for numbers and pointers; the function takes any address and writes the structure. The
    // texts stay while the library is loaded, and the path is copied at once.
    unsafe {
        let mut info: libc::Dl_info = core::mem::zeroed();
        if libc::dladdr(function, &mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        Some(PathBuf::from(OsStr::from_bytes(CStr::from_ptr(info.dli_fname).to_bytes())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_names_its_package() {
        let error = Ucx::load("libfarfield-is-not-there.so.0", Ucs::LIBRARY).unwrap_err();
        assert!(matches!(error, LoadError::Library(_)), "{error:?}");
        let text = error.to_string();
        for word in [
            "libfarfield-is-not-there.so.0",
            "cannot open shared object file",
            "apt-get install libucx0",
            "dnf install ucx",
        ] {
            assert!(text.contains(word), "{text}");
        }
    }

    #[test]
    fn a_missing_function_names_its_library() {
        // The C library is there, and has nothing of this.
        let text = Ucx::load("libc.so.6", "libc.so.6").unwrap_err().to_string();
        assert!(text.contains("libc.so.6") && text.contains("ucp_get_version"), "{text}");
    }

    #[test]
    fn versions_that_cannot_work_are_refused_by_name() {
        let check = |major, minor, release| usable(Version { major, minor, release }, Path::new("/lib/libucp.so.0"));
        for (major, minor, release) in [(1, 13, 0), (1, 13, 1), (1, 22, 0)] {
            assert_eq!(check(major, minor, release), Ok(()));
        }
        for (major, minor, release) in [(0, 99, 0), (1, 12, 1), (2, 0, 0)] {
            let text = check(major, minor, release).unwrap_err().to_string();
            let found = format!("UCX {major}.{minor}.{release} (/lib/libucp.so.0)");
            assert!(text.contains(&found) && text.contains("UCX 1.13.0"), "{text}");
        }
    }
}
