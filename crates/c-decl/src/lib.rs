//! Declarations of C, for bindings of a library that is loaded at run time.
//!
//! [`c_types!`], [`c_constants!`], [`c_opaque!`] and [`c_functions!`] declare each item once. They make the Rust items,
//! and lists of the declarations. [`Declarations::check`] compares every entry of the lists with the headers of this
//! machine, so no field can be forgotten. [`Library`] loads a library, and finds its functions.
//!
//! ```
//! # #![allow(non_camel_case_types)]
//! use core::ffi::{c_int, c_long};
//! use farfield_c_decl::{Declarations, Library, Names, c_constants, c_functions, c_types};
//!
//! c_constants! {
//!     /// What a time is counted from.
//!     flags time_base: c_int {
//!         /// The beginning of 1970.
//!         TIME_UTC = 1,
//!     }
//! }
//!
//! c_types! {
//!     /// A time.
//!     #[derive(Clone, Copy, Debug, Default)]
//!     fixed struct timespec {
//!         tv_sec: c_long,
//!         tv_nsec: c_long,
//!     }
//! }
//!
//! c_functions! {
//!     /// Functions of the C library.
//!     struct Libc from "libc.so.6";
//!     /// Writes the time, and returns the base; 0 for a base that it does not know.
//!     fn timespec_get(time: *mut timespec, base: time_base) -> time_base;
//! }
//!
//! // SAFETY: the initialisers of the C library demand nothing of the program.
//! let library = unsafe { Library::open(Libc::LIBRARY) }?;
//! // SAFETY: the function has the type that time.h declares, which is checked below.
//! let libc = unsafe { Libc::find(&library) }?;
//! let mut now = timespec::default();
//! // SAFETY: the function writes a time, for which there is room.
//! assert_eq!(unsafe { (libc.timespec_get)(&mut now, TIME_UTC) }, TIME_UTC);
//! assert!(now.tv_sec > 0 && now.tv_nsec < 1_000_000_000);
//!
//! // In a binding this is a test.
//! let declarations = Declarations {
//!     types: &[TYPES],
//!     constants: &[CONSTANTS],
//!     functions: &[Libc::FUNCTIONS],
//!     ..Declarations::new(&["time.h"], "libc6-dev", Names::Tags)
//! };
//! declarations.check();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Why not bindgen
//!
//! bindgen needs libclang, and either the headers at each build, or declarations that it wrote from one version of
//! them. A declaration by hand is of the part that a binding uses, and states how newer versions of the library may
//! change it ([`Growth`]). So one declaration is right for all versions, and the test can use the headers of any.

mod declare;
mod headers;
mod load;

pub use declare::{Constants, Field, Function, Growth, Kind, Type};
pub use headers::{CompareError, Declarations, Names};
pub use load::{Library, MissingFunction, MissingLibrary};

/// A field for something that a binding leaves out: there for its size only. Zero where a program fills it in.
///
/// ```
/// # use farfield_c_decl::Skipped;
/// assert_eq!(size_of::<Skipped<[u32; 3]>>(), 12);
/// assert_eq!(Skipped::<u64>::default(), Skipped(0));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Skipped<T>(pub T);

/// A function pointer for something that a binding leaves out.
///
/// ```
/// # use farfield_c_decl::SkippedFn;
/// assert_eq!(SkippedFn::default().0, None);
/// ```
pub type SkippedFn = Skipped<Option<unsafe extern "C" fn()>>;
