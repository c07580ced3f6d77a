//! Seeded bugs of collectives.

farfield_core::mutants! {
    /// *Missing:* the chunk's `NRW` before that of the word: the receiver reads what was in the slot before.
    ///
    /// *Scenario:* `collectives/broadcast`.
    COLLECTIVES_WORD_FIRST = "collectives-word-first" in "Collectives":
        "The word that says that a chunk was sent is put before the chunk.";
    /// *Missing:* the receiver's `CR` of a chunk before the `NRW` of the slot's next one.
    ///
    /// *Scenario:* `collectives/reuse`.
    COLLECTIVES_NO_ROOM = "collectives-no-room" in "Collectives":
        "A chunk is put into its slot, taken or not.";
    /// *Missing:* the same: the room is returned before the chunk is read.
    ///
    /// *Scenario:* `collectives/reuse`.
    COLLECTIVES_ROOM_EARLY = "collectives-room-early" in "Collectives":
        "The receiver tells the sender that it has taken a chunk before it has read it.";
    /// *Missing:* the wait for this chunk's word: that of an earlier one is taken for it.
    ///
    /// *Scenario:* `collectives/all-reduce`.
    COLLECTIVES_OLD_WORD = "collectives-old-word" in "Collectives":
        "The receiver takes a chunk if the sender has ever sent any.";
    /// *Missing:* the look at the others' deaths: a member that waits for a dead one waits until the deadline. Needs no
    /// reordering.
    ///
    /// *Scenario:* `collectives/dies`.
    COLLECTIVES_WAITS_FOR_DEAD = "collectives-waits-for-dead" in "Collectives":
        "A call waits for members that are dead.";
    /// *Missing:* the word of a failure: the others that wait for the member wait until the deadline. Needs no
    /// reordering.
    ///
    /// *Scenario:* `collectives/different`.
    COLLECTIVES_FAILURE_UNTOLD = "collectives-failure-untold" in "Collectives":
        "A member on which a call fails tells nobody.";
    /// *Missing:* that room is for the next chunk, and not for this call. This was a bug. Needs no reordering.
    ///
    /// *Scenario:* `collectives/cut-off`.
    COLLECTIVES_ROOM_MATTERS = "collectives-room-matters" in "Collectives":
        "A call fails on a member that has its last chunk, if the sender can no longer be told of its room.";
}
