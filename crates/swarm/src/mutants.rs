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
    /// *Missing:* the `NAR` of a later version before that of the writer's lock: readers that are refused find nothing
    /// else.
    ///
    /// *Scenario:* `swarm/dies-with-lock`.
    SWARM_LOCK_FIRST = "swarm-lock-first" in "SwarmArray": "A writer locks its stale guess before the later version is there.";
    /// *Missing:* the look at the memory node that has refused a lock. Needs no reordering.
    ///
    /// *Scenario:* `swarm/dies-with-lock`.
    SWARM_REFUSAL_UNREAD = "swarm-refusal-unread" in "SwarmArray":
        "A reader asks for a lock on other memory nodes than those that it looks at.";
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
    /// *Missing:* the eviction of a node that does not answer (its lease), before buffers that its reads may use are
    /// used again. Needs no reordering.
    ///
    /// *Scenario:* `swarm/reuse-silent`.
    SWARM_LEASE_IGNORED = "swarm-lease-ignored" in "SwarmArray":
        "A node that has not answered for ten milliseconds is not waited for any more.";
    /// *Missing:* the look at the tables after the writes that have replaced a buffer.
    ///
    /// *Scenario:* `swarm/late`.
    SWARM_CENSUS_KEPT = "swarm-census-kept" in "SwarmArray": "A client asks those nodes that it found the first time.";
    /// *Missing:* the `NAW` of a node's entry before its first read.
    ///
    /// *Scenario:* `swarm/late`.
    SWARM_REGISTERED_LATE = "swarm-registered-late" in "SwarmArray": "A node that comes is not entered in the tables.";
    /// *Missing:* the readers' last get of a buffer before its next put. Needs no reordering.
    ///
    /// *Scenario:* `swarm/opened-once-more`.
    SWARM_SUCCESSOR_TAKES_ALL = "swarm-successor-takes-all" in "SwarmArray":
        "A client uses all buffers of the one before it, and metadata words point to some.";
    /// *Missing:* that a memory node which is behind may point to a buffer that has another value now. Needs no
    /// reordering.
    ///
    /// *Scenario:* `swarm/opened-behind`.
    SWARM_SUCCESSOR_KEEPS_OLD = "swarm-successor-keeps-old" in "SwarmArray":
        "A client takes each metadata word of the one before it for its last write there.";
    /// *Missing:* the end of reads that may have found something on a memory node which has gone since.
    ///
    /// *Scenario:* `swarm/opened-after-a-leave`.
    SWARM_SUCCESSOR_HURRIES = "swarm-successor-hurries" in "SwarmArray":
        "A client takes what the memory nodes show for all that they will show.";
    /// *Missing:* that a write may have ended while its timestamp is not known to be fresh. Needs no reordering.
    ///
    /// *Scenario:* `swarm/opened-after-its-end`.
    SWARM_SUCCESSOR_WRITES_AGAIN = "swarm-successor-writes-again" in "SwarmArray":
        "A client writes again what the one before it has written, after later writes.";
    /// *Missing:* that a register has one owner. Needs no reordering.
    ///
    /// *Scenario:* `swarm-kv/opened-lent`.
    SWARM_SUCCESSOR_TAKES_REGISTERS = "swarm-successor-takes-registers" in "SwarmStore":
        "A client takes all registers of its groups that the index does not name, and others have some.";
    /// *Missing:* the owner's word before the entry leaves the index. Needs no reordering.
    ///
    /// *Scenario:* `swarm-kv/opened-kept`.
    SWARM_OWNER_UNNAMED = "swarm-owner-unnamed" in "SwarmStore":
        "A client keeps a register, and none of the memory nodes names its owner.";
    /// *Missing:* the owner's word before another record is built on that of a move. Needs no reordering.
    ///
    /// *Scenario:* `swarm-kv/opened-kept`.
    SWARM_OWNER_UNKEPT = "swarm-owner-unkept" in "SwarmStore":
        "The next client does not find the register that a key has left by a move.";
    /// *Missing:* that no two writes have one timestamp.
    ///
    /// *Scenario:* `swarm/opened-twice`.
    SWARM_TIMESTAMPS_AGAIN = "swarm-timestamps-again" in "SwarmArray": "A client uses timestamps of the one before it.";
    /// *Missing:* the same, on the side of the readers.
    ///
    /// *Scenario:* `swarm/late`.
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
    /// *Missing:* the value's `NRW` before the `NAR` of the cell, on all memory nodes but one.
    ///
    /// *Scenario:* `swarm-kv/inserts`.
    SWARM_VALUE_LATE = "swarm-value-late" in "SwarmStore":
        "A memory node accepts the mapping of a key without its value.";
    /// *Missing:* the last memory node of a fast ballot: a proposer that does not ask the others may find it free.
    ///
    /// *Scenario:* `swarm-kv/inserts`.
    SWARM_FAST_MAJORITY = "swarm-fast-majority" in "SwarmStore": "A fast record counts when a majority has accepted it.";
    /// *Missing:* the promise before a classic proposal. Needs no reordering.
    ///
    /// *Scenario:* `swarm-kv/settled`.
    SWARM_NO_PROMISE = "swarm-no-promise" in "SwarmStore": "A classic proposal is made without promises.";
    /// *Missing:* the record that a majority may have accepted.
    ///
    /// *Scenario:* `swarm-kv/inserts`.
    SWARM_ADOPTS_NOTHING = "swarm-adopts-nothing" in "SwarmStore":
        "A classic proposal is built on what was chosen before a record that may have been chosen.";
    /// *Missing:* the difference between a fast record that may have been chosen and one that was not.
    ///
    /// *Scenario:* `swarm-kv/refused`.
    SWARM_ADOPTS_LOST = "swarm-adopts-lost" in "SwarmStore":
        "A classic proposal is built on a fast record that a memory node has refused.";
    /// *Missing:* the end of a change that is under way, before its result is used.
    ///
    /// *Scenario:* `swarm-kv/settled`.
    SWARM_LOOK_UNSETTLED = "swarm-look-unsettled" in "SwarmStore": "A look at the index takes a record that may not be chosen.";
    /// *Missing:* a higher ballot, when an insert finds its key and gives its register back.
    ///
    /// *Scenario:* `swarm-kv/dropped-reuse`.
    SWARM_PROPOSAL_FORGOTTEN = "swarm-proposal-forgotten" in "SwarmStore":
        "An insert ends while its proposal may still be accepted.";
    /// *Missing:* the look at the register before its mapping is proposed once more.
    ///
    /// *Scenario:* `swarm-kv/mapped-once`.
    SWARM_MAPPED_AGAIN = "swarm-mapped-again" in "SwarmStore": "A mapping that was chosen and deleted is made again.";
    /// *Missing:* the seal among the metadata words. Needs no reordering.
    ///
    /// *Scenario:* `swarm-kv/moved`.
    SWARM_SEAL_UNSEEN = "swarm-seal-unseen" in "SwarmStore": "An update writes to a deleted key's register.";
    /// *Missing:* the timestamp lock of a write that finds a seal: the value may count, and is written elsewhere again.
    ///
    /// *Scenario:* `swarm-kv/memory-apart`.
    SWARM_GONE_UNLOCKED = "swarm-gone-unlocked" in "SwarmStore": "An update is repeated though a reader may have taken its value.";
    /// *Missing:* the comparison of instances in a write. Needs no reordering.
    ///
    /// *Scenario:* `swarm-kv/moved`.
    SWARM_INSTANCE_UNWRITTEN = "swarm-instance-unwritten" in "SwarmStore":
        "An update writes to a register that was used again for another key.";
    /// *Missing:* the end of the calls that were under way before a register is cleared.
    ///
    /// *Scenario:* `swarm-kv/ended`.
    SWARM_ENDED_AT_ONCE = "swarm-ended-at-once" in "SwarmStore": "A register is cleared while calls use it.";
    /// *Missing:* one instance for all memory nodes.
    ///
    /// *Scenario:* `swarm-kv/renews-halfway`.
    SWARM_EPOCH_HALFWAY = "swarm-epoch-halfway" in "SwarmStore": "A register is used again while some memory nodes have its instance of another epoch.";
    /// *Missing:* the epoch of a timestamp in its lock, which stays when the register has another key.
    ///
    /// *Scenario:* `swarm-kv/renews-locked`.
    SWARM_LOCK_OF_EPOCH = "swarm-lock-of-epoch" in "SwarmStore": "A timestamp is locked as it is in its epoch.";
    /// *Missing:* the exchange of the old metadata words.
    ///
    /// *Scenario:* `swarm-kv/reuse`.
    SWARM_WORDS_KEPT = "swarm-words-kept" in "SwarmStore": "A register is used again with its old metadata words.";
    /// *Missing:* the exchange of the metadata words before the index says that the register is free. Needs no
    /// reordering.
    ///
    /// *Scenario:* `swarm-kv/free-clear`.
    SWARM_INDEX_FIRST = "swarm-index-first" in "SwarmStore":
        "The index says that a register is free before its metadata words are clear.";
    /// *Missing:* the look into the index, when a key is not where it was. Needs no reordering.
    ///
    /// *Scenario:* `swarm-kv/delete-get`.
    SWARM_CACHE_TRUSTED = "swarm-cache-trusted" in "SwarmStore": "A key that was deleted where it was is not looked for elsewhere.";
    /// *Missing:* the look for seals of others. Needs no reordering.
    ///
    /// *Scenario:* `swarm-kv/deletes`.
    SWARM_DELETED_BEFORE = "swarm-deleted-before" in "SwarmStore":
        "A delete ends with a register that had ended before it.";
    /// *Missing:* the bit that freezes a register, after the compare-and-swap of a write (`NAR` before `NAR`).
    ///
    /// *Scenario:* `swarm-kv/replace-update`.
    SWARM_FREEZE_UNSEEN = "swarm-freeze-unseen" in "SwarmStore": "An update looks for a move beside its write, not after it.";
    /// *Missing:* a second look at a cell of groups, of which another call of the client has taken one. Needs no
    /// reordering.
    ///
    /// *Scenario:* `swarm-kv/groups`.
    SWARM_GROUPS_PASSED = "swarm-groups-passed" in "SwarmStore": "A client passes by groups of registers that are free.";
    /// *Missing:* the second of two deletes, each of which has found the other one's seal. Needs no reordering.
    ///
    /// *Scenario:* `swarm-kv/deletes-both`.
    SWARM_DELETED_BY_NONE = "swarm-deleted-by-none" in "SwarmStore": "A deleted key stays in the index.";
    /// *Missing:* the freeze of a majority before the first look at the words.
    ///
    /// *Scenario:* `swarm-kv/replace-looks`.
    SWARM_FROZEN_AFTER = "swarm-frozen-after" in "SwarmStore": "A conditional update freezes a register when it has read it.";
    /// *Missing:* the comparison with the limit. Needs no reordering.
    ///
    /// *Scenario:* `swarm-kv/replace-stale`.
    SWARM_LIMIT_AGAIN = "swarm-limit-again" in "SwarmStore": "An update that was moved is made again.";
    /// *Missing:* the timestamp lock of a write below the limit.
    ///
    /// *Scenario:* `swarm-kv/replace-late`.
    SWARM_BELOW_UNLOCKED = "swarm-below-unlocked" in "SwarmStore": "An update that a reader has taken is made again after a move.";
    /// *Missing:* the end of a write, before readers take it at the first look.
    ///
    /// *Scenario:* `swarm-kv/replace-read`.
    SWARM_STALE_VERIFIED = "swarm-stale-verified" in "SwarmStore": "The second write of a stale guess is verified before it has ended.";
    /// *Missing:* the look for the bit after a seal is at a majority.
    ///
    /// *Scenario:* `swarm-kv/replace-delete`.
    SWARM_SEAL_ONCE = "swarm-seal-once" in "SwarmStore": "A reader trusts a seal while the key may move.";
    /// *Missing:* the look for the bit by a delete. Needs no reordering.
    ///
    /// *Scenario:* `swarm-kv/replace-delete`.
    SWARM_SEALED_FROZEN = "swarm-sealed-frozen" in "SwarmStore": "A delete ends with a register whose key moves.";
    /// *Missing:* the question which of several seals has ended a register. Needs no reordering.
    ///
    /// *Scenario:* `swarm-kv/replace-delete`.
    SWARM_END_UNOWNED = "swarm-end-unowned" in "SwarmStore": "A delete goes on to the next entry though its seal counts.";
    /// *Missing:* the high bits of an array's timestamp in the order of its locks. Needs no reordering.
    ///
    /// *Scenario:* `swarm/years`.
    SWARM_LOCK_OF_DAYS = "swarm-lock-of-days" in "SwarmArray": "A lock compares timestamps by their low 40 bits.";
    /// *Missing:* the answers of all nodes before a memory node that replaces another one gets its copy.
    ///
    /// *Scenario:* `swarm/replaced-halfway`.
    SWARM_REPLACED_UNASKED = "swarm-replaced-unasked" in "SwarmArray": "A memory node is copied while calls count on the one that it replaces.";
    /// *Missing:* a majority that meets all those with the memory node that is replaced.
    ///
    /// *Scenario:* `swarm/replaced-behind`.
    SWARM_REPLACED_UNCOPIED = "swarm-replaced-uncopied" in "SwarmArray": "A memory node that replaces another one has what one of the others has.";
    /// *Missing:* the entry of a node that comes where a memory node joins. Needs no reordering.
    ///
    /// *Scenario:* `swarm/replaced-reopens`.
    SWARM_REPLACED_UNENTERED = "swarm-replaced-unentered" in "SwarmArray": "A node that comes is entered at the memory nodes that count, and no others.";
    /// *Missing:* the wait while a memory node that joins gets a register.
    ///
    /// *Scenario:* `swarm-kv/replaced-cleared`.
    SWARM_REPLACED_AT_ONCE = "swarm-replaced-at-once" in "SwarmStore": "A register is used again while a memory node gets its copy.";
    /// *Missing:* a value that was found twice: its writer may have stopped (wait-freedom). Needs no reordering.
    ///
    /// *Scenario:* `swarm/others-stopped`.
    SWARM_AWAITS_WRITER = "swarm-awaits-writer" in "SwarmArray": "A read waits until the writer has verified its value.";
}
