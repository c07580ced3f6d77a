//! Compares every declaration of this crate with the C headers of this machine: see [`Declarations::check`].

use farfield_c_decl::{Declarations, Names};

use crate::{Verbs, completion, context, device, memory, queue_pair};

const DECLARATIONS: Declarations = Declarations {
    aliases: &[("be32", "__be32"), ("be64", "__be64")],
    types: &[device::TYPES, context::TYPES, memory::TYPES, completion::TYPES, queue_pair::TYPES],
    constants: &[
        device::CONSTANTS,
        context::CONSTANTS,
        memory::CONSTANTS,
        completion::CONSTANTS,
        queue_pair::CONSTANTS,
    ],
    functions: &[Verbs::FUNCTIONS],
    ..Declarations::new(
        &["sys/socket.h", "infiniband/verbs.h"],
        "libibverbs-dev, on Fedora rdma-core-devel",
        Names::Tags,
    )
};

#[test]
fn the_declarations_are_those_of_the_headers() {
    DECLARATIONS.check();
}

#[test]
fn rust_types_are_spelled_in_c() {
    let spelled = |rust| DECLARATIONS.spelling(rust).unwrap();
    assert_eq!(spelled("*mut *mut ibv_device"), "__typeof__(__typeof__(struct ibv_device) *) *");
    assert_eq!(spelled("ibv_gid"), "union ibv_gid");
    assert_eq!(spelled("ibv_wc_status"), "enum ibv_wc_status");
    assert_eq!(spelled("ibv_access_flags"), "unsigned int");
    assert_eq!(
        spelled("Option<unsafe extern \"C\" fn(qp: *mut ibv_qp, flags: u32) -> c_int>"),
        "__typeof__(int (*)(__typeof__(struct ibv_qp) *, uint32_t))"
    );
}
