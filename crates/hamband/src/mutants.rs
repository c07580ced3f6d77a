//! Seeded bugs of replicated data types.

farfield_core::mutants! {
    /// *Missing:* the wait for the calls that a call depends on (rule FREE-APP, D ≤ A). Needs no reordering.
    ///
    /// *Scenario:* `hamband/dependency`.
    HAMBAND_NO_DEPENDENCIES = "hamband-no-dependencies" in "Replicated":
        "A message is applied when it has landed, whatever it depends on.";
}
