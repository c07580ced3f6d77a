//! Seeded bugs of calls.

farfield_core::mutants! {}
