//! The macros in which types, constants and functions of C are declared, each once.
//!
//! They make the Rust items, and for the tests a list of the declarations: [`layout`](crate::layout) compares every
//! entry of it with the system's headers, so no field can be forgotten.

/// Declares structs and unions of C, by their names there (those of `typedef`).
///
/// ```text
/// fixed struct NAME as "SPELLING IN C" {
///     FIELD as "PATH IN C": TYPE,
/// }
/// ```
///
/// `as` stands only where C spells it otherwise: nested types that have no name there, members of nested unions. The
/// word before `struct` or `union` says how newer versions may change the type:
///
/// - `fixed`: not at all. Other types contain it, or the library fills it in without a mask.
/// - `growing`: they may add fields behind the last. A mask in the structure says which fields there are, so that a
///   declaration of the first fields is right for all versions.
macro_rules! c_types {
    ($(
        $(#[$attribute:meta])*
        $growth:ident $kind:tt $name:ident $(as $spelling:literal)? {
            $($(#[$field_attribute:meta])* $field:ident $(as $path:literal)?: $type:ty,)*
        }
    )*) => {
        $(
            $(#[$attribute])*
            #[repr(C)]
            pub $kind $name {
                $($(#[$field_attribute])* pub $field: $type,)*
            }
        )*

        #[cfg(test)]
        pub(crate) const TYPES: &[crate::layout::Type] = &[$(
            crate::layout::Type {
                name: stringify!($name),
                spelling: crate::declare::spelled!([stringify!($name)] $($spelling)?),
                growth: crate::layout::Growth::$growth,
                size: size_of::<$name>(),
                align: align_of::<$name>(),
                fields: &[$(
                    crate::layout::Field {
                        path: crate::declare::spelled!([stringify!($field)] $($path)?),
                        rust_type: stringify!($type),
                        offset: core::mem::offset_of!($name, $field),
                        size: size_of::<$type>(),
                    },
                )*],
            },
        )*];
    };
}

/// Declares constants of C, in groups.
///
/// - `enum NAME: TYPE`: an enumeration that has this name by `typedef`. It becomes an integer type, since a newer
///   library may return new values.
/// - `flags NAME: TYPE`: other constants, with the integer type of the places where they are used.
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

        #[cfg(test)]
        pub(crate) const CONSTANTS: &[crate::layout::Constants] = &[$(
            crate::layout::Constants {
                name: stringify!($name),
                kind: stringify!($kind),
                rust_type: stringify!($type),
                size: size_of::<$type>(),
                values: &[$((stringify!($constant), $constant as i128),)*],
            },
        )*];
    };
}

/// Declares types that only the library knows.
macro_rules! c_opaque {
    ($($(#[$attribute:meta])* $name:ident,)*) => {
        $(
            $(#[$attribute])*
            #[repr(C)]
            pub struct $name {
                _opaque: crate::Skipped<[u8; 0]>,
            }
        )*
    };
}

/// Declares a table of a library's functions, without which loading fails.
macro_rules! c_functions {
    (
        $(#[$attribute:meta])*
        struct $table:ident from $library:literal;
        $($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug)]
        pub struct $table {
            $($(#[$doc])* pub $name: unsafe extern "C" fn($($argument: $type),*) $(-> $result)?,)*
        }

        impl $table {
            /// The library's name.
            pub const LIBRARY: &'static str = $library;

            /// Finds the functions in an open library.
            fn find(handle: &libloading::Library, library: &'static str) -> Result<$table, LoadError> {
                // SAFETY: the fields have the types that the library's headers declare for these functions, which
                // `layout` checks; the functions stay where they are, since the library is never closed.
                unsafe {
                    Ok($table {
                        $($name: symbol(handle, library, stringify!($name))?,)*
                    })
                }
            }

            #[cfg(test)]
            pub(crate) const FUNCTIONS: &[crate::layout::Function] = &[
                $(crate::layout::Function {
                    name: stringify!($name),
                    arguments: &[$(stringify!($type)),*],
                    result: stringify!($($result)?),
                },)*
            ];
        }
    };
}

/// The spelling in C: the one given, else the default.
#[cfg(test)]
macro_rules! spelled {
    ([$default:expr]) => {
        $default
    };
    ([$default:expr] $spelling:literal) => {
        $spelling
    };
}

pub(crate) use {c_constants, c_functions, c_opaque, c_types};

#[cfg(test)]
pub(crate) use spelled;
