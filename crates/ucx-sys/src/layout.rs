//! Compares every declaration of this crate with the C headers of this machine: see [`Declarations::check`].

use farfield_c_decl::{Declarations, Names};

use crate::{Ucp, UcpVersion, Ucs, ucp, ucs};

const DECLARATIONS: Declarations = Declarations {
    aliases: &[("ucs_status_ptr_t", "ucs_status_ptr_t")],
    types: &[ucp::TYPES],
    constants: &[ucs::CONSTANTS, ucp::CONSTANTS],
    functions: &[Ucs::FUNCTIONS, UcpVersion::FUNCTIONS, Ucp::FUNCTIONS],
    ..Declarations::new(&["ucp/api/ucp.h"], "libucx-dev, on Fedora ucx-devel", Names::Typedefs)
};

#[test]
fn the_declarations_are_those_of_the_headers() {
    DECLARATIONS.check();
}

#[test]
fn rust_types_are_spelled_in_c() {
    let spelled = |rust| DECLARATIONS.spelling(rust).unwrap();
    assert_eq!(spelled("*mut *mut ucp_worker"), "__typeof__(__typeof__(struct ucp_worker) *) *");
    assert_eq!(spelled("ucs_status_t"), "ucs_status_t");
    assert_eq!(spelled("ucp_op_attr_t"), "uint32_t");
    assert_eq!(spelled("*mut libc::FILE"), "__typeof__(FILE) *");
    assert_eq!(
        spelled("Option<unsafe extern \"C\" fn(arg: *mut c_void, status: ucs_status_t) -> c_int>"),
        "__typeof__(int (*)(__typeof__(void) *, ucs_status_t))"
    );
}
