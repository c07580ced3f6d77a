//! With the feature `mutants` the tests' copies of the modules, in which the seeded bugs are (`src/mutants.rs`).

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(seeded, rust_analyzer)");
    #[cfg(feature = "mutants")]
    farfield_seeded::build();
}
