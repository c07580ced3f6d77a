//! The model checker with the baton's scenarios: the command line of `farfield check`.
//!
//! ```sh
//! cargo run --release -p farfield-baton --bin baton-check
//! cargo run --release -p farfield-baton --bin baton-check -- --replay LINE --timeline out.html
//! cargo run -p farfield-baton --features farfield/mutants --bin baton-check -- --mutant baton-no-fence
//! ```

#![forbid(unsafe_code)]

use farfield_baton::{mutants, scenarios};
use farfield_check::Program;

fn main() -> std::process::ExitCode {
    Program::new(scenarios::all()).mutants(mutants::ALL).main()
}
