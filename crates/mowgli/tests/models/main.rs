//! The tests of the models in one program: so the short ones fill the core that a long one leaves free.

mod chains;
mod compose;
mod errors;
mod litmus;
mod machine;
mod program;
mod random;
mod refine;
mod suite;
mod witness;
