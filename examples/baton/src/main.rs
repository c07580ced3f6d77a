//! Farfield's command line with the baton in it, for `chaos` (the model checker alone is in `bin/baton-check.rs`).
//!
//! ```sh
//! cargo run --release -p farfield-baton --bin farfield-baton -- chaos --seconds 20
//! ```

#![forbid(unsafe_code)]

use farfield_baton::{load, mutants, scenarios};
use farfield_cli::Parts;

fn main() -> std::process::ExitCode {
    farfield_cli::main(Parts { scenarios: scenarios::all(), mutants: mutants::ALL.to_vec(), loads: vec![load::LOAD] })
}
