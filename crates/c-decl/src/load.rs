//! A library, loaded at run time.

use core::mem::ManuallyDrop;
use std::error::Error as _;

/// A library that the dynamic linker cannot load.
///
/// ```
/// use farfield_c_decl::Library;
///
/// // SAFETY: there is no such library.
/// let missing = unsafe { Library::open("libfarfield-is-not-there.so.1") }.unwrap_err();
/// assert_eq!(missing.library, "libfarfield-is-not-there.so.1");
/// assert!(missing.reason.contains("cannot open shared object file"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{library} could not be loaded ({reason})")]
pub struct MissingLibrary {
    /// The library's name.
    pub library: &'static str,
    /// The dynamic linker's error.
    pub reason: String,
}

/// A function that a library lacks.
///
/// ```
/// use farfield_c_decl::Library;
///
/// // SAFETY: the initialisers of the C library demand nothing of the program.
/// let libc = unsafe { Library::open("libc.so.6") }?;
/// // SAFETY: there is no such function.
/// let missing = unsafe { libc.function::<unsafe extern "C" fn()>("is_not_there") }.unwrap_err();
/// assert!(missing.to_string().starts_with("libc.so.6 has no function is_not_there ("));
/// # Ok::<(), farfield_c_decl::MissingLibrary>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{library} has no function {function} ({reason})")]
pub struct MissingFunction {
    /// The library's name.
    pub library: &'static str,
    /// The function.
    pub function: &'static str,
    /// The dynamic linker's error.
    pub reason: String,
}

/// A library in this process. It is never closed: its initialisers may have left pointers to it in the process.
///
/// ```
/// use core::ffi::c_int;
/// use farfield_c_decl::Library;
///
/// // SAFETY: the initialisers of the C library demand nothing of the program.
/// let libc = unsafe { Library::open("libc.so.6") }?;
/// // SAFETY: this is the type that stdlib.h declares.
/// let abs = unsafe { libc.function::<unsafe extern "C" fn(c_int) -> c_int>("abs") }?;
/// // SAFETY: the number has an absolute value.
/// assert_eq!(unsafe { abs(-7) }, 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Library {
    name: &'static str,
    handle: ManuallyDrop<libloading::Library>,
}

impl Library {
    /// Loads a library, by the name that the dynamic linker searches.
    ///
    /// # Errors
    /// It cannot be loaded.
    ///
    /// # Safety
    /// Loading runs the library's initialisers. The program keeps the conditions that they have.
    pub unsafe fn open(name: &'static str) -> Result<Library, MissingLibrary> {
        // SAFETY: by the contract of this function. The finalisers never run, since the library is never closed.
        match unsafe { libloading::Library::new(name) } {
            Ok(handle) => Ok(Library { name, handle: ManuallyDrop::new(handle) }),
            Err(error) => Err(MissingLibrary { library: name, reason: reason(&error) }),
        }
    }

    /// Finds a function. Its pointer stays valid while the process runs.
    ///
    /// # Errors
    /// The library has no such function.
    ///
    /// # Safety
    /// `F` is the type of a pointer to the function.
    pub unsafe fn function<F: Copy>(&self, function: &'static str) -> Result<F, MissingFunction> {
        // SAFETY: by the contract of this function. The pointer outlives the handle, and stays valid, since the library
        // is never closed.
        match unsafe { self.handle.get::<F>(function) } {
            Ok(pointer) => Ok(*pointer),
            Err(error) => Err(MissingFunction { library: self.name, function, reason: reason(&error) }),
        }
    }
}

/// The text of the dynamic linker, which is the error's source.
fn reason(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}
