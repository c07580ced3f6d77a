//! Seeded bugs of replicated data types.

farfield_core::mutants! {
    /// *Missing:* the wait for the calls that a call depends on (rule FREE-APP, D ≤ A). Needs no reordering.
    ///
    /// *Scenario:* `hamband/dependency`.
    HAMBAND_NO_DEPENDENCIES = "hamband-no-dependencies" in "Hamband":
        "A message is applied when it has landed, whatever it depends on.";
    /// *Missing:* a dependency on a call that the source has taken in this very call. Needs no reordering of puts to
    /// one node.
    ///
    /// *Scenario:* `hamband/dependency-just-seen`.
    HAMBAND_DEPENDENCIES_EARLY = "hamband-dependencies-early" in "Hamband":
        "The dependencies of a call are read before it takes the calls of others.";
    /// *Missing:* the one order of conflicting calls (conflict synchronisation). Needs no reordering.
    ///
    /// *Scenario:* `hamband/refines-groups`.
    HAMBAND_GROUP_SPLIT = "hamband-group-split" in "Hamband":
        "Each conflicting method has its own log and leader, instead of each group.";
    /// *Missing:* the evidence that all words of the put have landed: an entry may be read in part.
    ///
    /// *Scenario:* `hamband/free`.
    HAMBAND_ENTRY_UNCHECKED = "hamband-entry-unchecked" in "Hamband":
        "An entry of a feed is taken for whole when its first word is there.";
    /// *Missing:* the same, of a summary. Summary and applied count are in one slot: one of them may be early.
    ///
    /// *Scenario:* `hamband/reduce`.
    HAMBAND_SUMMARY_UNCHECKED = "hamband-summary-unchecked" in "Hamband":
        "A summary is taken for whole when its first word is there.";
    /// *Missing:* the readers' `CR` of an entry before the `NRW` of the one that takes its place.
    ///
    /// *Scenario:* `hamband/room`.
    HAMBAND_NO_ROOM = "hamband-no-room" in "Hamband":
        "The source reuses the place of an entry, applied or not.";
    /// *Missing:* the summary that was there before the one that the source could not write to its end. Needs a death.
    ///
    /// *Scenario:* `hamband/dies-overwriting`.
    HAMBAND_ONE_SLOT = "hamband-one-slot" in "Hamband":
        "A summary overwrites the one before it.";
    /// *Missing:* the fold of the epoch before: its calls are lost. Needs no reordering of puts to one node.
    ///
    /// *Scenario:* `hamband/refused`.
    HAMBAND_FOLD_UNAWAITED = "hamband-fold-unawaited" in "Hamband":
        "A summary of a new epoch takes the place of the old one, whether that was folded here or not.";
    /// *Missing:* the part of the summary that the replica has already. Needs no reordering.
    ///
    /// *Scenario:* `hamband/reduce`.
    HAMBAND_SUMMARY_TWICE = "hamband-summary-twice" in "Hamband":
        "A summary is applied whole, and not its remainder.";
    /// *Missing:* agreement (§4, reliable broadcast). Survivors' copies are in place of the paper's backup slot: they
    /// cannot be late. Needs a death.
    ///
    /// *Scenario:* `hamband/dies`.
    HAMBAND_UNCOPIED = "hamband-uncopied" in "Hamband":
        "Survivors copy no entries of a dead node's feed from each other.";
    /// *Missing:* the same, of summaries.
    ///
    /// *Scenario:* `hamband/dies`.
    HAMBAND_SUMMARY_UNCOPIED = "hamband-summary-uncopied" in "Hamband":
        "Survivors copy no summaries of a dead node from each other.";
    /// *Missing:* that a replica which has closed the object copies nothing. This was a bug. Needs a death.
    ///
    /// *Scenario:* `hamband/closed`.
    HAMBAND_CLOSED_ASKED = "hamband-closed-asked" in "Hamband":
        "Survivors wait until a replica that was closed has copied, too.";
    /// *Missing:* the wait for the calls that an ordered call depends on (rule CONF-APP, D ≤ A). Needs no reordering.
    ///
    /// *Scenario:* `hamband/ordered-after`.
    HAMBAND_ORDERED_EARLY = "hamband-ordered-early" in "Hamband":
        "An entry of a log is applied when it is decided, whatever it depends on.";
    /// *Missing:* the summaries that an ordered call depends on: another replica may have older ones.
    ///
    /// *Scenario:* `hamband/ordered-after`.
    HAMBAND_NOT_CARRIED = "hamband-not-carried" in "Hamband":
        "An entry of a log does not carry the summaries that its call depends on.";
    /// *Missing:* the write at which a summary became another one: an entry does not carry it, as if an earlier one had
    /// it.
    ///
    /// *Scenario:* `hamband/leader-dies`.
    HAMBAND_CHANGE_UNSEEN = "hamband-change-unseen" in "Hamband":
        "A summary that a call has changed counts as carried by earlier entries of the log.";
    /// *Missing:* the entries of leaders before this one: the call may not be permissible after them. Needs a death.
    ///
    /// *Scenario:* `hamband/contended`.
    HAMBAND_ASKED_EARLY = "hamband-asked-early" in "Hamband":
        "A leader asks whether a call is permissible before it has applied all entries that are decided.";
    /// *Missing:* the number of the caller's last call: the next leader orders one again that is in the log. Needs a
    /// death.
    ///
    /// *Scenario:* `hamband/leader-dies`.
    HAMBAND_ORDERED_TWICE = "hamband-ordered-twice" in "Hamband":
        "A leader does not look whether a call is ordered already.";
    /// *Missing:* the log's entries: a call is stable before others have applied it.
    ///
    /// *Scenario:* `hamband/ordered-stable`.
    HAMBAND_STABLE_EARLY = "hamband-stable-early" in "Hamband":
        "A call counts as stable when the feeds and summaries have arrived.";
    /// *Missing:* the entry's number in its hash: the first word has the number, too, and the two cancel each other
    /// out. The entry that was at its place a round earlier is applied again. Needs reordering.
    ///
    /// *Scenario:* `hamband/room`.
    HAMBAND_HASH_ALIKE = "hamband-hash-alike" in "Hamband":
        "The hash of an entry is that of an earlier one of the same length.";
}
