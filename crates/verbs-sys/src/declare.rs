//! The macros in which types and constants of C are declared, each once.
//!
//! They make the Rust items, and for the tests a list of the declarations: [`layout`](crate::layout) compares every
//! entry of it with the system's headers, so no field can be forgotten.

/// Declares structs and unions of C.
///
/// ```text
/// fixed struct NAME as "SPELLING IN C" {
///     FIELD as "PATH IN C": TYPE,
/// }
/// ```
///
/// `as` stands only where C spells it otherwise: nested types that have no name there, members of nested unions. Before
/// `struct` or `union` stands what newer versions may do to the type:
///
/// - `fixed`: nothing. Programs or other types contain it, and the library relies on its size.
/// - `growing`: add fields behind the last. Either the library allocates it, or it is told how much of it there is
///   (a size or a mask), so that a declaration of the first fields is right for all versions.
/// - `upward`: add fields before the first. Its fields are found from the end.
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
                spelling: crate::declare::spelled!([concat!("struct ", stringify!($name))] $($spelling)?),
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
/// - `enum NAME: TYPE`: an enumeration. It becomes an integer type, since a newer library may return new values.
/// - `flags NAME: TYPE`: other constants, with the integer type of the places where they are used.
/// - `newer NAME: TYPE`: as `flags`, but older headers lack them.
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

pub(crate) use {c_constants, c_types};

#[cfg(test)]
pub(crate) use spelled;
