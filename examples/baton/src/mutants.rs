//! Seeded bugs of the baton: its scenarios have to find them before they can be trusted.

farfield::mutants! {
    /// *Missing:* the holder's `NRW` on one node before the `NAW` of the pass on another.
    ///
    /// *Scenario:* `baton/pass`.
    BATON_NO_FENCE = "baton-no-fence" in "Baton": "`pass` does not fence.";

    /// *Missing:* that the others go on after a death.
    ///
    /// *Scenario:* `baton/holder-dies`.
    BATON_KEPT = "baton-kept" in "Baton": "A dead holder keeps the baton.";

    /// *Missing:* the eviction of the holder from all nodes: until then its last put may land.
    ///
    /// *Scenario:* `baton/holder-cut`.
    BATON_TAKEN_EARLY = "baton-taken-early" in "Baton": "A silent holder loses the baton before it is evicted.";
}
