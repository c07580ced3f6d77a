//! Declarations of a header: right ones, and ones that are wrong in each way.

#![allow(non_camel_case_types, reason = "the names are C's")]
#![allow(dead_code, reason = "the declarations are compared, and the functions not called")]

use farfield_c_decl::{CompareError, Constants, Declarations, Function, Names, Type};

const HEADERS: &[&str] = &[concat!(env!("CARGO_MANIFEST_DIR"), "/tests/shapes.h")];

fn declarations(
    types: &'static [&'static [Type]],
    constants: &'static [&'static [Constants]],
    functions: &'static [&'static [Function]],
) -> Declarations {
    let none = Declarations::new(HEADERS, "libshapes-dev", Names::Tags);
    Declarations { aliases: &[("number", "unsigned int")], types, constants, functions, ..none }
}

mod right {
    use core::ffi::{c_char, c_int};
    use farfield_c_decl::{Skipped, SkippedFn, c_constants, c_functions, c_opaque, c_types};

    /// By its name in `aliases`.
    type number = u32;

    c_constants! {
        /// The kinds of shapes.
        enum kind: c_int {
            CIRCLE = 1,
            SQUARE = -2,
        }

        /// How to draw.
        flags flags: number {
            FILLED = 1 << 4,
        }

        /// Not in this version of the header.
        newer later: u32 {
            DASHED = 1 << 5,
        }
    }

    c_opaque! {
        /// Not declared as a type: only pointers to it are.
        FILE,
    }

    c_types! {
        /// A length, by the kind.
        #[derive(Clone, Copy)]
        fixed union measure {
            radius: u32,
            side: u64,
        }

        /// A shape.
        fixed struct shape {
            kind: kind,
            measure: measure,
            label: *const c_char,
            draw: Option<unsafe extern "C" fn(shape: *mut shape, flags: flags) -> c_int>,
            x as "at.x": u16,
            y as "at.y": u16,
            left_out: Skipped<u128>,
            color: [u8; 3],
        }

        /// A canvas.
        growing struct canvas {
            first: *mut shape,
        }

        /// Calls of a canvas.
        upward struct calls {
            clear: SkippedFn,
        }
    }

    c_functions! {
        /// The library.
        struct Shapes from "libshapes.so.1";
        /// A new shape.
        fn shape_new(kind: kind, bytes: usize) -> *mut shape;
        /// Prints it; a macro has this name, too.
        fn shape_print(shape: *const shape, file: *mut FILE);
        optional {
            /// Is there.
            fn reset();
            /// Not in this version of the header.
            fn shape_free(shape: *mut shape);
        }
    }
}

#[test]
fn right_declarations_are_those_of_the_header() {
    let right = declarations(&[right::TYPES], &[right::CONSTANTS], &[right::Shapes::FUNCTIONS]);
    // Of types: size and alignment; offset, size and type of each field, but for the type of the two that are left out.
    let (of_types, of_constants, of_functions) = (4 * 2 + (2 + 8 + 1 + 1) * 3 - 2, 1 + 2 + 1, 3);
    match right.compare() {
        Ok(facts) => assert_eq!(facts, of_types + of_constants + of_functions),
        Err(error) => panic!("{error}"),
    }
    right.check();
}

mod by_typedef {
    use core::ffi::c_uint;
    use farfield_c_decl::{c_constants, c_functions, c_types};

    c_constants! {
        /// The kinds of corners.
        enum corner_t: c_uint {
            ROUND = 7,
        }
    }

    c_types! {
        /// The corners of a shape.
        fixed struct corners_t {
            corner: corner_t,
        }
    }

    c_functions! {
        /// The library.
        struct Shapes from "libshapes.so.1";
        /// The corners of a shape.
        fn corners_of(shape: *const super::right::shape) -> corners_t;
    }
}

#[test]
fn types_have_names_by_typedef() {
    let mut corners = declarations(&[by_typedef::TYPES], &[by_typedef::CONSTANTS], &[by_typedef::Shapes::FUNCTIONS]);
    corners.names = Names::Typedefs;
    corners.aliases = &[("super::right::shape", "struct shape")];
    // Size and alignment; offset, size and type of the field; the enumeration's size, and its value; the function.
    assert_eq!(corners.compare().unwrap(), 2 + 3 + 2 + 1);
    corners.names = Names::Tags;
    assert!(matches!(corners.compare(), Err(CompareError::Differ { .. })));
}

mod wrong {
    use core::ffi::{c_char, c_int};
    use farfield_c_decl::{c_constants, c_functions, c_types};

    c_constants! {
        /// Of another size, and with another value.
        enum kind: i16 {
            CIRCLE = 2,
        }
    }

    c_types! {
        /// Without `label`.
        fixed struct shape {
            kind: u32,
            side as "measure.side": u64,
        }

        /// Of another type.
        growing struct canvas {
            first: *mut c_char,
            newer: [u8; 8],
        }

        /// The first fields are smaller in C.
        growing struct calls {
            newer: Option<unsafe extern "C" fn()>,
            clear: Option<unsafe extern "C" fn()>,
            last as "clear": [u64; 2],
        }
    }

    c_functions! {
        /// The library.
        struct Shapes from "libshapes.so.1";
        /// With another argument.
        fn shape_new(kind: c_int, bytes: u32) -> *mut shape;
        /// Without its result.
        fn corners_of(shape: *const shape);
    }
}

#[test]
fn each_difference_is_found() {
    let wrong = declarations(&[wrong::TYPES], &[wrong::CONSTANTS], &[wrong::Shapes::FUNCTIONS]);
    let CompareError::Differ { headers, complaint } = wrong.compare().unwrap_err() else {
        panic!("the header is there");
    };
    assert_eq!(headers, HEADERS[0]);
    let failed: Vec<_> = complaint
        .lines()
        .filter_map(|line| line.split_once("tatic assertion failed: \"")?.1.split('"').next())
        .collect();
    let expected = [
        "size of shape is 16",
        "alignment of shape is 8",
        "shape.kind is uint32_t",
        "canvas.first is __typeof__(char) *",
        "size of canvas.newer is 8",
        "canvas.newer is __typeof__(uint8_t[8])",
        "size of calls is 32 or more",
        "calls.clear is __typeof__(void (*)(void))",
        "offset of calls.clear is 16",
        "size of calls.clear is 16",
        "calls.clear is __typeof__(uint64_t[2])",
        "size of kind is 2",
        "CIRCLE is 2",
        "shape_new is __typeof__(__typeof__(struct shape) * (*)(int, uint32_t))",
        "corners_of is __typeof__(void (*)(const __typeof__(struct shape) *))",
    ];
    assert_eq!(failed, expected, "{complaint}");
}

mod unknown {
    farfield_c_decl::c_constants! {
        /// Not in the header.
        flags more: u32 {
            IS_NOT_THERE = 0,
        }
    }
}

#[test]
fn a_name_that_the_header_lacks_is_a_difference() {
    match declarations(&[], &[unknown::CONSTANTS], &[]).compare() {
        Err(CompareError::Differ { complaint, .. }) => assert!(complaint.contains("IS_NOT_THERE"), "{complaint}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_missing_header_names_its_packages() {
    let mut missing = declarations(&[], &[], &[]);
    missing.headers = &["stdlib.h", "is/not/there.h"];
    let error = missing.compare().unwrap_err();
    assert!(matches!(error, CompareError::NoHeaders { .. }), "{error}");
    let text = error.to_string();
    assert!(text.starts_with("stdlib.h, is/not/there.h (package libshapes-dev) cannot be compiled:"), "{text}");
}

#[test]
fn rust_types_are_spelled_in_c() {
    let right = declarations(&[right::TYPES], &[right::CONSTANTS], &[]);
    let spelled = |rust| right.spelling(rust).unwrap();
    assert_eq!(spelled("*mut *mut shape"), "__typeof__(__typeof__(struct shape) *) *");
    assert_eq!(spelled("*const c_void"), "const __typeof__(void) *");
    assert_eq!(spelled("[c_char; 32]"), "__typeof__(char[32])");
    assert_eq!(spelled("measure"), "union measure");
    assert_eq!(spelled("kind"), "enum kind");
    assert_eq!(spelled("flags"), "unsigned int");
    assert_eq!(spelled("*mut libc::FILE"), "__typeof__(FILE) *");
    assert_eq!(spelled("*mut other"), "__typeof__(struct other) *");
    assert_eq!(
        spelled("Option<\n    unsafe extern \"C\" fn(\n        n: usize,\n    ) -> c_int,\n>"),
        "__typeof__(int (*)(size_t))"
    );
    assert_eq!(spelled("Option<unsafe extern \"C\" fn(n: usize)>"), "__typeof__(void (*)(size_t))");
    assert_eq!(right.spelling("SkippedFn"), None);
    for unclear in ["[u8; 2", "Option<NonNull<u8>>", "Option<unsafe extern \"C\" fn(usize)>"] {
        assert!(std::panic::catch_unwind(|| right.spelling(unclear)).is_err(), "{unclear}");
    }
}
