//! Seeded bugs of replicated data types.

farfield_core::mutants! {
    /// *Missing:* the wait for the calls that a call depends on (rule FREE-APP, D ≤ A). Needs no reordering.
    ///
    /// *Scenario:* `hamband/dependency`.
    HAMBAND_NO_DEPENDENCIES = "hamband-no-dependencies" in "Replicated":
        "A message is applied when it has landed, whatever it depends on.";
    /// *Missing:* the evidence that all words of the put have landed: an entry may be read in part.
    ///
    /// *Scenario:* `hamband/free`.
    HAMBAND_ENTRY_UNCHECKED = "hamband-entry-unchecked" in "Replicated":
        "An entry of a feed is taken for whole when its first word is there.";
    /// *Missing:* the same, of a summary.
    ///
    /// *Scenario:* `hamband/reduce`.
    HAMBAND_SUMMARY_UNCHECKED = "hamband-summary-unchecked" in "Replicated":
        "A summary is taken for whole when its first word is there.";
    /// *Missing:* the readers' `CR` of an entry before the `NRW` of the one that takes its place.
    ///
    /// *Scenario:* `hamband/room`.
    HAMBAND_NO_ROOM = "hamband-no-room" in "Replicated":
        "The source reuses the place of an entry, applied or not.";
    /// *Missing:* the summary that was there before the one that the source could not write to its end. Needs a death.
    ///
    /// *Scenario:* `hamband/dies`.
    HAMBAND_ONE_SLOT = "hamband-one-slot" in "Replicated":
        "A summary overwrites the one before it.";
    /// *Missing:* the fold of the epoch before: its calls are lost. Needs no reordering of puts to one node.
    ///
    /// *Scenario:* `hamband/fold`.
    HAMBAND_FOLD_UNAWAITED = "hamband-fold-unawaited" in "Replicated":
        "A summary of a new epoch takes the place of the old one, whether that was folded here or not.";
    /// *Missing:* what the replica has of the summary already. Needs no reordering.
    ///
    /// *Scenario:* `hamband/reduce`.
    HAMBAND_SUMMARY_TWICE = "hamband-summary-twice" in "Replicated":
        "A summary is applied whole, and not its remainder.";
    /// *Missing:* agreement (§4, reliable broadcast). Needs a death.
    ///
    /// *Scenario:* `hamband/dies`.
    HAMBAND_UNCOPIED = "hamband-uncopied" in "Replicated":
        "Survivors copy no entries of a dead node's feed from each other.";
    /// *Missing:* the same, of summaries.
    ///
    /// *Scenario:* `hamband/dies`.
    HAMBAND_SUMMARY_UNCOPIED = "hamband-summary-uncopied" in "Replicated":
        "Survivors copy no summaries of a dead node from each other.";
}
