//! The macros in which types, constants and functions of C are declared, each once, and the lists that they make.

/// How newer versions of a library may change a type.
///
/// ```
/// farfield_c_decl::c_types! {
///     /// The options of a call, which has a mask of those that are set.
///     growing struct options {
///         mask: u64,
///     }
/// }
/// assert_eq!(TYPES[0].growth, farfield_c_decl::Growth::Growing);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// `fixed`: not at all. Programs or other types contain it, and the library relies on its size.
    Fixed,
    /// `growing`: they may add fields behind the last. Either the library allocates it, or a size or a mask states how
    /// much of it there is, so that a declaration of the first fields is right for all versions.
    Growing,
    /// `upward`: they may add fields before the first. Its fields are found from the end.
    Upward,
}

/// A struct or union that [`c_types!`](crate::c_types) declared.
///
/// ```
/// farfield_c_decl::c_types! {
///     /// A pair.
///     fixed struct pair as "struct couple" {
///         first: u32,
///         second as "other": u64,
///     }
/// }
/// let [pair] = TYPES else { panic!() };
/// assert_eq!((pair.name, pair.spelling), ("pair", Some("struct couple")));
/// assert_eq!((pair.size, pair.align, pair.fields.len()), (16, 8, 2));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Type {
    /// `struct` or `union`.
    pub keyword: &'static str,
    /// The name in Rust.
    pub name: &'static str,
    /// The type in C, if it differs from the name.
    pub spelling: Option<&'static str>,
    /// How newer versions may change it.
    pub growth: Growth,
    /// Its size in Rust, in bytes.
    pub size: usize,
    /// Its alignment in Rust, in bytes.
    pub align: usize,
    /// Its fields.
    pub fields: &'static [Field],
}

/// A field of a [`Type`].
///
/// ```
/// farfield_c_decl::c_types! {
///     /// A pair.
///     fixed struct pair {
///         first: u32,
///         second as "other": u64,
///     }
/// }
/// let second = &TYPES[0].fields[1];
/// assert_eq!((second.path, second.rust_type), ("other", "u64"));
/// assert_eq!((second.offset, second.size), (8, 8));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its place in C, from the type.
    pub path: &'static str,
    /// Its type, as it is declared in Rust.
    pub rust_type: &'static str,
    /// Its offset in Rust, in bytes.
    pub offset: usize,
    /// Its size in Rust, in bytes.
    pub size: usize,
}

/// The kind of a group of constants.
///
/// ```
/// farfield_c_decl::c_constants! {
///     /// The directions.
///     enum direction: u32 {
///         NORTH = 0,
///     }
/// }
/// assert_eq!(CONSTANTS[0].kind, farfield_c_decl::Kind::Enum);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `enum`: an enumeration. It becomes an integer type, since a newer library may return new values.
    Enum,
    /// `flags`: other constants, with the integer type of the places where they are used.
    Flags,
    /// `newer`: as `flags`, but older headers lack them.
    Newer,
}

/// A group that [`c_constants!`](crate::c_constants) declared.
///
/// ```
/// farfield_c_decl::c_constants! {
///     /// Rights to a file.
///     flags rights: u8 {
///         READ = 1 << 2,
///         WRITE = 1 << 1,
///     }
/// }
/// let [rights] = CONSTANTS else { panic!() };
/// assert_eq!((rights.name, rights.rust_type, rights.size), ("rights", "u8", 1));
/// assert_eq!(rights.values, [("READ", 4), ("WRITE", 2)]);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Constants {
    /// The name of the enumeration, or of the group.
    pub name: &'static str,
    /// The kind of the group.
    pub kind: Kind,
    /// Its integer type.
    pub rust_type: &'static str,
    /// The size of that type, in bytes.
    pub size: usize,
    /// Names and values.
    pub values: &'static [(&'static str, i128)],
}

/// A function that [`c_functions!`](crate::c_functions) declared.
///
/// ```
/// farfield_c_decl::c_functions! {
///     /// Functions of the C library.
///     struct Libc from "libc.so.6";
///     /// The first of such a byte.
///     fn memchr(memory: *const u8, byte: i32, bytes: usize) -> *mut u8;
/// }
/// let [memchr] = Libc::FUNCTIONS else { panic!() };
/// assert_eq!((memchr.name, memchr.arguments), ("memchr", &["*const u8", "i32", "usize"][..]));
/// assert_eq!((memchr.result, memchr.optional), ("*mut u8", false));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// Its name.
    pub name: &'static str,
    /// The types of its arguments, as they are declared in Rust.
    pub arguments: &'static [&'static str],
    /// The type of its result; empty if it has none.
    pub result: &'static str,
    /// Whether older versions of the library lack it.
    pub optional: bool,
}

/// Declares structs and unions of C.
///
/// ```text
/// fixed struct NAME as "SPELLING IN C" {
///     FIELD as "PATH IN C": TYPE,
/// }
/// ```
///
/// `as` stands only where C spells it otherwise: nested types that have no name there, members of nested unions. The
/// word before `struct` or `union` states how newer versions may change the type: `fixed`, `growing` or `upward`, see
/// [`Growth`](crate::Growth).
///
/// Types and fields are public. The module has one such call, which also makes its list, `TYPES`: a slice of
/// [`Type`](crate::Type), visible in the crate.
///
/// ```
/// # #![allow(non_camel_case_types)]
/// use core::ffi::c_long;
///
/// farfield_c_decl::c_types! {
///     /// A duration.
///     #[derive(Clone, Copy, Debug, Default)]
///     fixed struct timespec {
///         tv_sec: c_long,
///         /// Less than a second.
///         tv_nsec: c_long,
///     }
///
///     /// A timer: the first time, and the times after it.
///     #[derive(Clone, Copy, Debug, Default)]
///     fixed struct itimerspec {
///         it_interval: timespec,
///         first_seconds as "it_value.tv_sec": c_long,
///         first_nanoseconds as "it_value.tv_nsec": c_long,
///     }
/// }
/// assert_eq!(itimerspec::default().it_interval.tv_nsec, 0);
/// assert_eq!(TYPES.len(), 2);
/// ```
#[macro_export]
macro_rules! c_types {
    ($(
        $(#[$attribute:meta])*
        $growth:ident $keyword:tt $name:ident $(as $spelling:literal)? {
            $($(#[$field_attribute:meta])* $field:ident $(as $path:literal)?: $type:ty,)*
        }
    )*) => {
        $(
            $(#[$attribute])*
            #[repr(C)]
            pub $keyword $name {
                $($(#[$field_attribute])* pub $field: $type,)*
            }
        )*

        #[allow(dead_code, reason = "the comparison with the headers reads it")]
        pub(crate) const TYPES: &[$crate::Type] = &[$(
            $crate::Type {
                keyword: stringify!($keyword),
                name: stringify!($name),
                spelling: $crate::__declared!(or [None] $([Some($spelling)])?),
                growth: $crate::__declared!(growth $growth),
                size: ::core::mem::size_of::<$name>(),
                align: ::core::mem::align_of::<$name>(),
                fields: &[$(
                    $crate::Field {
                        path: $crate::__declared!(or [stringify!($field)] $([$path])?),
                        rust_type: stringify!($type),
                        offset: ::core::mem::offset_of!($name, $field),
                        size: ::core::mem::size_of::<$type>(),
                    },
                )*],
            },
        )*];
    };
}

/// Declares constants of C, in groups.
///
/// ```text
/// enum NAME: TYPE {
///     CONSTANT = VALUE,
/// }
/// ```
///
/// The word before the name is `enum`, `flags` or `newer`, see [`Kind`](crate::Kind).
///
/// Groups and constants are public. The module has one such call, which also makes its list, `CONSTANTS`: a slice of
/// [`Constants`](crate::Constants), visible in the crate.
///
/// ```
/// # #![allow(non_camel_case_types)]
/// use core::ffi::{c_int, c_uint};
///
/// farfield_c_decl::c_constants! {
///     /// The processes to wait for.
///     enum idtype_t: c_uint {
///         P_ALL = 0,
///         P_PID = 1,
///         P_PGID = 2,
///     }
///
///     /// Options of waiting.
///     flags wait_options: c_int {
///         /// Returns at once.
///         WNOHANG = 1 << 0,
///     }
/// }
/// let options: wait_options = WNOHANG;
/// assert_eq!((P_PGID, options), (2, 1));
/// ```
#[macro_export]
macro_rules! c_constants {
    ($(
        $(#[$attribute:meta])*
        $kind:ident $name:ident: $type:ident {
            $($(#[$value_attribute:meta])* $constant:ident = $value:expr,)*
        }
    )*) => {
        $(
            $(#[$attribute])*
            pub type $name = $type;
            $($(#[$value_attribute])* pub const $constant: $name = $value;)*
        )*

        #[allow(dead_code, reason = "the comparison with the headers reads it")]
        pub(crate) const CONSTANTS: &[$crate::Constants] = &[$(
            $crate::Constants {
                name: stringify!($name),
                kind: $crate::__declared!(kind $kind),
                rust_type: stringify!($type),
                size: ::core::mem::size_of::<$type>(),
                values: &[$((stringify!($constant), $constant as i128),)*],
            },
        )*];
    };
}

/// Declares types that only the library knows. Programs have pointers to them.
///
/// ```
/// # #![allow(non_camel_case_types)]
/// farfield_c_decl::c_opaque! {
///     /// An open directory.
///     __dirstream,
/// }
/// let none: *mut __dirstream = core::ptr::null_mut();
/// assert!(none.is_null());
/// ```
#[macro_export]
macro_rules! c_opaque {
    ($($(#[$attribute:meta])* $name:ident,)*) => {
        $(
            $(#[$attribute])*
            #[repr(C)]
            pub struct $name {
                _opaque: $crate::Skipped<[u8; 0]>,
            }
        )*
    };
}

/// Declares a table of a library's functions. Those in `optional` may be missing.
///
/// ```text
/// struct TABLE from "LIBRARY";
/// fn NAME(ARGUMENT: TYPE) -> TYPE;
/// optional {
///     fn NAME(ARGUMENT: TYPE) -> TYPE;
/// }
/// ```
///
/// The functions are public fields of the table, under their C names. In addition the table has
///
/// - `LIBRARY`, the library's name;
/// - `find`, visible in the crate: it finds the functions in an open [`Library`](crate::Library), and is `unsafe`
///   because only the library's headers have their types;
/// - `for_tests`: a table for a library that need not be there;
/// - `FUNCTIONS`, visible in the crate: the list, a slice of [`Function`](crate::Function).
///
/// ```
/// use core::ffi::c_int;
///
/// farfield_c_decl::c_functions! {
///     /// Functions of the C library.
///     struct Libc from "libc.so.6";
///     /// The absolute value.
///     fn abs(number: c_int) -> c_int;
///     optional {
///         /// Is in none.
///         fn is_not_there(number: c_int);
///     }
/// }
///
/// // SAFETY: the initialisers of the C library demand nothing of the program.
/// let library = unsafe { farfield_c_decl::Library::open(Libc::LIBRARY) }?;
/// // SAFETY: `abs` has the type that stdlib.h declares, and the other one does not exist.
/// let libc = unsafe { Libc::find(&library) }?;
/// // SAFETY: the number has an absolute value.
/// assert_eq!(unsafe { (libc.abs)(-7) }, 7);
/// assert!(libc.is_not_there.is_none());
///
/// unsafe extern "C" fn always_five(_: c_int) -> c_int {
///     5
/// }
/// let fake = Libc { abs: always_five, ..Libc::for_tests() };
/// // SAFETY: the function demands nothing.
/// assert_eq!(unsafe { (fake.abs)(-7) }, 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[macro_export]
macro_rules! c_functions {
    (
        $(#[$attribute:meta])*
        struct $table:ident from $library:literal;
        $($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*
        $(optional {
            $($(#[$doc2:meta])* fn $name2:ident($($argument2:ident: $type2:ty),* $(,)?) $(-> $result2:ty)?;)*
        })?
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug)]
        pub struct $table {
            $($(#[$doc])* pub $name: unsafe extern "C" fn($($argument: $type),*) $(-> $result)?,)*
            $($($(#[$doc2])* pub $name2: ::core::option::Option<unsafe extern "C" fn($($argument2: $type2),*) $(-> $result2)?>,)*)?
        }

        impl $table {
            /// The library's name.
            pub const LIBRARY: &'static str = $library;

            /// Finds the functions in an open library.
            ///
            /// # Errors
            /// The library lacks one that is not optional.
            ///
            /// # Safety
            /// The library's functions of these names have the declared types.
            pub(crate) unsafe fn find(library: &$crate::Library) -> ::core::result::Result<$table, $crate::MissingFunction> {
                // SAFETY: by the contract of this function.
                unsafe {
                    ::core::result::Result::Ok($table {
                        $($name: library.function(stringify!($name))?,)*
                        $($($name2: library.function(stringify!($name2)).ok(),)*)?
                    })
                }
            }

            /// A table for tests, for a library that need not be there. A function that the test has not replaced ends
            /// the process and prints its name. There are no optional functions.
            #[must_use]
            pub fn for_tests() -> $table {
                $table {
                    $($name: {
                        unsafe extern "C" fn missing($(_: $type),*) $(-> $result)? {
                            panic!(concat!("the test has no ", stringify!($name)))
                        }
                        missing
                    },)*
                    $($($name2: ::core::option::Option::None,)*)?
                }
            }

            #[allow(dead_code, reason = "the comparison with the headers reads it")]
            pub(crate) const FUNCTIONS: &[$crate::Function] = &[
                $($crate::Function {
                    name: stringify!($name),
                    arguments: &[$(stringify!($type)),*],
                    result: stringify!($($result)?),
                    optional: false,
                },)*
                $($($crate::Function {
                    name: stringify!($name2),
                    arguments: &[$(stringify!($type2)),*],
                    result: stringify!($($result2)?),
                    optional: true,
                },)*)?
            ];
        }
    };
}

/// A part of a declaration: the value of its word, or what is given instead of the default.
#[doc(hidden)]
#[macro_export]
macro_rules! __declared {
    (growth fixed) => {
        $crate::Growth::Fixed
    };
    (growth growing) => {
        $crate::Growth::Growing
    };
    (growth upward) => {
        $crate::Growth::Upward
    };
    (kind enum) => {
        $crate::Kind::Enum
    };
    (kind flags) => {
        $crate::Kind::Flags
    };
    (kind newer) => {
        $crate::Kind::Newer
    };
    (or [$default:expr]) => {
        $default
    };
    (or [$default:expr] [$given:expr]) => {
        $given
    };
}
