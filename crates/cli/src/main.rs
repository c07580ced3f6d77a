//! The program `farfield`.

#![forbid(unsafe_code)]

/// The model checker sets a stage for each execution: allocations, most of all.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    farfield_cli::main(farfield_cli::Parts::default())
}
