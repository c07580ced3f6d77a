//! Seeded bugs of replicated memory.

farfield_core::mutants! {
    /// *Missing:* the buffer's `NRW` before the `NAR` of its metadata word.
    ///
    /// *Scenario:* `swarm/write-read`.
    SWARM_WORD_FIRST = "swarm-word-first" in "SwarmArray": "The metadata word points to a buffer that was not written yet.";
    /// *Missing:* one of two majorities that must meet. Needs no reordering.
    ///
    /// *Scenario:* `swarm/memory-dies`.
    SWARM_MINORITY = "swarm-minority" in "SwarmArray": "A call asks half of the memory nodes.";
    /// *Missing:* the write of what was read before the read ends: the next read may find less (appendix A).
    ///
    /// *Scenario:* `swarm/two-reads`.
    SWARM_NO_WRITE_BACK = "swarm-no-write-back" in "SwarmArray": "A read returns what only a minority has.";
    /// *Missing:* the second look at a guessed version (Figure 2).
    ///
    /// *Scenario:* `swarm/stale`.
    SWARM_ONE_LOOK = "swarm-one-look" in "SwarmArray": "A read returns a guessed version that it has found once.";
    /// *Missing:* the read beside the write, before its version counts.
    ///
    /// *Scenario:* `swarm/stale`.
    SWARM_VERIFIED_EARLY = "swarm-verified-early" in "SwarmArray": "A guess is written as if it were known to be fresh.";
    /// *Missing:* the slow path of a stale guess.
    ///
    /// *Scenario:* `swarm/stale`.
    SWARM_STALE_KEPT = "swarm-stale-kept" in "SwarmArray": "A write ends though it has found a later version.";
    /// *Missing:* the reader's half of the timestamp lock.
    ///
    /// *Scenario:* `swarm/stale`.
    SWARM_READ_UNLOCKED = "swarm-read-unlocked" in "SwarmArray": "A reader returns a guessed version without its lock.";
    /// *Missing:* the writer's half of the timestamp lock: the value counts twice.
    ///
    /// *Scenario:* `swarm/stale`.
    SWARM_WRITE_UNLOCKED = "swarm-write-unlocked" in "SwarmArray": "A writer writes its value again that a reader has locked.";
    /// *Missing:* the mode in the comparison of the lock's words.
    ///
    /// *Scenario:* `swarm/lock`.
    SWARM_LOCK_MODELESS = "swarm-lock-modeless" in "SwarmArray": "Who finds the timestamp locked by the other side has the lock, too.";
    /// *Missing:* the version in the hash of a value in place.
    ///
    /// *Scenario:* `swarm/in-place`.
    SWARM_HASH_OF_VALUE = "swarm-hash-of-value" in "SwarmArray": "The hash in place does not cover the version.";
    /// *Missing:* the comparison with the hash.
    ///
    /// *Scenario:* `swarm/in-place`.
    SWARM_HASH_IGNORED = "swarm-hash-ignored" in "SwarmArray": "A read takes what is in place, whatever it is.";
    /// *Missing:* the readers' last get of a buffer before its next put.
    ///
    /// *Scenario:* `swarm/reuse`.
    SWARM_REUSED_AT_ONCE = "swarm-reused-at-once" in "SwarmArray": "A buffer is used again without asking the readers.";
    /// *Missing:* the same, on the side of the readers.
    ///
    /// *Scenario:* `swarm/reuse`.
    SWARM_ANSWERED_AT_ONCE = "swarm-answered-at-once" in "SwarmArray":
        "A node answers while reads are under way that began before the request.";
    /// *Missing:* the `NRW` of a write-back before the answer.
    ///
    /// *Scenario:* `swarm/reuse-late`.
    SWARM_SECTION_UNFLUSHED = "swarm-section-unflushed" in "SwarmArray": "A read ends before what it has put has landed.";
    /// *Missing:* the later timestamp in the record of a dropped write: the value counts twice.
    ///
    /// *Scenario:* `swarm/dropped-late`.
    SWARM_WRITTEN_THRICE = "swarm-written-thrice" in "SwarmArray":
        "A write that was dropped while it was written again is written at a third timestamp.";
    /// *Missing:* the comparison with what the word is known to hold, if writers share it. Needs no reordering.
    ///
    /// *Scenario:* `swarm/one-word-behind`.
    SWARM_WORD_FALLS = "swarm-word-falls" in "SwarmArray": "A write exchanges a later version of another writer for its own.";
}
