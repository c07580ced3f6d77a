//! Seeded bugs of objects and trees.

farfield_core::mutants! {
    /// *Missing:* the record's `CW` before that of the active word.
    ///
    /// *Scenario:* `rome/patched`.
    ROME_OFFSET_FIRST = "rome-offset-first" in "ROMe":
        "A patch counts before it is written.";
    /// *Missing:* the `MF` behind the active word's `CW`.
    ///
    /// *Scenario:* `rome/patched`.
    ROME_RETURNS_EARLY = "rome-returns-early" in "ROMe":
        "A write returns before other nodes find it.";
    /// *Missing:* the lock before the read of the log. Needs no reordering.
    ///
    /// *Scenario:* `rome/compacted`.
    ROME_COMPACTION_LOSES = "rome-compaction-loses" in "ROMe":
        "A writer goes on from the state that it has seen before it has the lock, and a patch that comes meanwhile is lost.";
    /// *Missing:* the announcements: a block is used again as soon as it is replaced.
    ///
    /// *Scenario:* `rome/reused`.
    ROME_EPOCH_IGNORED = "rome-epoch-ignored" in "ROMe":
        "A block is used again, whatever readers have announced.";
    /// *Missing:* the announcement's `CW` before the `NRR` of the active word.
    ///
    /// *Scenario:* `rome/reused`.
    ROME_ANNOUNCED_LATE = "rome-announced-late" in "ROMe":
        "A reader announces itself when it has read the active word.";
    /// *Missing:* the `MF` between the announcement and the owner's reads (`CW → CR`).
    ///
    /// *Scenario:* `rome/local`.
    ROME_NO_FENCE = "rome-no-fence" in "ROMe":
        "A thread of the owner reads without a fence behind its announcement.";
    /// *Missing:* the end of the wait for a reader that is dead or has stopped. Needs no reordering.
    ///
    /// *Scenario:* `rome/reader-dies`.
    ROME_WAITS_FOR_ALL = "rome-waits-for-all" in "ROMe":
        "The owner waits for readers that are dead.";
    /// *Missing:* the announcement of a reader that cannot be read.
    ///
    /// *Scenario:* `rome/reader-cut`.
    ROME_UNREACHABLE = "rome-unreachable" in "ROMe":
        "The owner takes a reader that it does not reach for one that reads nothing.";
    /// *Missing:* the reader's look at its clock: what it has read may be of a block that is used again.
    ///
    /// *Scenario:* `rome/reader-stops`.
    ROME_LEASE_UNCHECKED = "rome-lease-unchecked" in "ROMe":
        "A reader that was stopped returns what it finds.";
    /// *Missing:* the version's `CW` before that of the active word.
    ///
    /// *Scenario:* `rome/one-key`.
    ROME_RECORD_LATER = "rome-record-later" in "ROMe":
        "A record of a leaf counts before it has its version.";
    /// *Missing:* the active word's `CW` before that of `stable`.
    ///
    /// *Scenario:* `rome/one-key`.
    ROME_STABLE_FIRST = "rome-stable-first" in "ROMe":
        "A version is stable before its active word is stored.";
    /// *Missing:* the order of tickets: `stable` passes a change before its active word is stored.
    ///
    /// *Scenario:* `rome/order`.
    ROME_TICKETS_PASS = "rome-tickets-pass" in "ROMe":
        "A change becomes stable before the ones with earlier tickets.";
    /// *Missing:* the second look of a thread that publishes: one that waits for it is not published.
    ///
    /// *Scenario:* `rome/order`.
    ROME_NOT_RAISED = "rome-not-raised" in "ROMe":
        "A thread does not publish the changes of those that wait for it.";
    /// *Missing:* the comparison of a record's version. Needs no reordering.
    ///
    /// *Scenario:* `rome/order`.
    ROME_VERSION_DROPPED = "rome-version-dropped" in "ROMe":
        "A scan takes all records that it finds, of later versions, too.";
    /// *Missing:* the wait for what a call has seen to be stable.
    ///
    /// *Scenario:* `rome/inserted`.
    ROME_FAILED_EARLY = "rome-failed-early" in "ROMe":
        "An insert that finds the key returns before the key can be read.";
    /// *Missing:* the lock of a leaf between the read of its log and its new base. Needs no reordering.
    ///
    /// *Scenario:* `rome/merged-log`.
    ROME_LOG_LOST = "rome-log-lost" in "ROMe":
        "A leaf's log is merged without the lock, and a record that comes meanwhile is lost.";
    /// *Missing:* the version of a new base. Needs no reordering.
    ///
    /// *Scenario:* `rome/later`.
    ROME_BASE_VERSION = "rome-base-version" in "ROMe":
        "A new base keeps the version of the one before.";
    /// *Missing:* the right part's active word before `stable`: a split is seen in halves.
    ///
    /// *Scenario:* `rome/split-below`.
    ROME_SPLIT_HALVES = "rome-split-halves" in "ROMe":
        "A split is stable before its right part is there.";
    /// *Missing:* the link to the right part. Needs no reordering.
    ///
    /// *Scenario:* `rome/split-below`.
    ROME_STALE_SIBLING = "rome-stale-sibling" in "ROMe":
        "The left part of a split keeps the right sibling that it had.";
    /// *Missing:* what was there before a split, for readers of earlier versions.
    ///
    /// *Scenario:* `rome/split-below`.
    ROME_SPLIT_FORGETS = "rome-split-forgets" in "ROMe":
        "The left part of a split does not name the block before.";
    /// *Missing:* the mark of a leaf that was merged into another one. Needs no reordering.
    ///
    /// *Scenario:* `rome/cached`.
    ROME_NO_TOMBSTONE = "rome-no-tombstone" in "ROMe":
        "A leaf that was merged into another one stays as it was for readers that remember it.";
    /// *Missing:* the announcements of readers that come to a slot at an earlier version.
    ///
    /// *Scenario:* `rome/slots-wide`.
    ROME_SLOT_EARLY = "rome-slot-early" in "ROMe":
        "The slot of a leaf that was merged into another one is used again at once.";
    /// *Missing:* the merge of a leaf that is emptied by records. Needs no reordering.
    ///
    /// *Scenario:* `rome/window`.
    ROME_LEAF_STAYS = "rome-leaf-stays" in "ROMe":
        "A leaf is only merged when its log is full: one that gets no more keys stays for ever.";
    /// *Missing:* the end of a tombstone, or of the wait for a version that no change has. Needs no reordering.
    ///
    /// *Scenario:* `rome/window`.
    ROME_TOMBSTONE_STAYS = "rome-tombstone-stays" in "ROMe":
        "The block of a tombstone is not used again.";
    /// *Missing:* the read of `stable` before those of the active words.
    ///
    /// *Scenario:* `rome/multi-get`.
    ROME_NOT_AS_OF = "rome-not-as-of" in "ROMe":
        "Several keys are read each as it is, and not as of one version.";
    /// *Missing:* a version of the announcement. Needs no reordering.
    ///
    /// *Scenario:* `rome/scanned`.
    ROME_BLOCK_EARLY = "rome-block-early" in "ROMe":
        "A scan announces one version more than the one that it reads.";
    /// *Missing:* the read of `stable` before that of an active word: a scan uses those of the one before.
    ///
    /// *Scenario:* `rome/scans`.
    ROME_OLD_WORDS = "rome-old-words" in "ROMe":
        "A scan uses active words that an earlier one has read.";
    /// *Missing:* the comparison of the two looks at the versions. Needs no reordering.
    ///
    /// *Scenario:* `rome/kv-instant`.
    ROME_KV_LOOKS_ONCE = "rome-kv-looks-once" in "ROMe":
        "A read at one instant takes the versions of its last look, whether they have changed or not.";
    /// *Missing:* the comparison of all partitions but the first. Needs no reordering.
    ///
    /// *Scenario:* `rome/kv-instant`.
    ROME_KV_COMPARES_SOME = "rome-kv-compares-some" in "ROMe":
        "A read at one instant compares the version of one partition alone.";
    /// *Missing:* the version as of which the later partitions are read. Needs no reordering.
    ///
    /// *Scenario:* `rome/kv-instant`.
    ROME_KV_VERSIONS_DROPPED = "rome-kv-versions-dropped" in "ROMe":
        "A read at one instant reads each partition as it is when the scan comes to it.";
    /// *Missing:* the announcements after the versions are known. Needs no reordering.
    ///
    /// *Scenario:* `rome/kv-scanned`.
    ROME_KV_UNANNOUNCED = "rome-kv-unannounced" in "ROMe":
        "A read at one instant ends its announcements before the scan.";
    /// *Missing:* the look at the gate. Needs no reordering.
    ///
    /// *Scenario:* `rome/kv-looks`.
    ROME_KV_GATE_IGNORED = "rome-kv-gate-ignored" in "ROMe":
        "Writers go on while the gate is closed, and a read at one instant looks again and again.";
    /// *Missing:* the end of the wait at a gate. Needs no reordering.
    ///
    /// *Scenario:* `rome/kv-holder-dies`.
    ROME_KV_GATE_FOR_EVER = "rome-kv-gate-for-ever" in "ROMe":
        "Writers wait at a closed gate until its reader opens it, who may be dead.";
    /// *Missing:* the end of the service thread's wait at a gate. Needs no reordering.
    ///
    /// *Scenario:* `rome/kv-service`.
    ROME_KV_SERVICE_WAITS = "rome-kv-service-waits" in "ROMe":
        "The service thread waits at a gate that is closed while it makes an update.";
    /// *Missing:* one instant of the partitions in which the first pair is looked for. Needs no reordering.
    ///
    /// *Scenario:* `rome/kv-ends`.
    ROME_KV_FIRST_OF_EACH = "rome-kv-first-of-each" in "ROMe":
        "The first pair is that of the first partition that is not empty when the search comes to it.";
    /// *Missing:* the second attempt after a closed gate. Needs no reordering.
    ///
    /// *Scenario:* `rome/kv-own-instant`.
    ROME_KV_HELD_IS_DONE = "rome-kv-held-is-done" in "ROMe":
        "An update that the owner has put off counts as done.";
    /// *Missing:* the second attempt without memory. Needs no reordering.
    ///
    /// *Scenario:* `rome/kv-full`.
    ROME_KV_FULL_IS_DONE = "rome-kv-full-is-done" in "ROMe":
        "An update for which the owner has no memory counts as done.";
    /// *Missing:* the difference between what was not sent and what has no reply. Needs no reordering.
    ///
    /// *Scenario:* `rome/kv-late`.
    ROME_KV_SAYS_NEVER = "rome-kv-says-never" in "ROMe":
        "The error of an update without a reply says that nothing has happened.";
    /// *Missing:* the number of the call that was put before. Needs no reordering.
    ///
    /// *Scenario:* `rome/kv-late`.
    ROME_KV_ASKS_ANEW = "rome-kv-asks-anew" in "ROMe":
        "An update without a reply is asked for again as another one.";
    /// *Missing:* the snapshot before the word that says where the partition is. Needs no reordering.
    ///
    /// *Scenario:* `rome/kv-moved-read`.
    ROME_KV_MOVED_EARLY = "rome-kv-moved-early" in "ROMe":
        "A partition is moved before its new owner has all of it.";
    /// *Missing:* the reader's look at the bit that says that a partition was moved. Needs no reordering.
    ///
    /// *Scenario:* `rome/kv-moved`.
    ROME_KV_MOVED_UNSEEN = "rome-kv-moved-unseen" in "ROMe":
        "Readers go on reading a partition where it was before it was moved.";
    /// *Missing:* the second attempt of a change that a move has cut off. Needs no reordering.
    ///
    /// *Scenario:* `rome/kv-moved`.
    ROME_KV_MOVED_IS_DONE = "rome-kv-moved-is-done" in "ROMe":
        "A change that was not visible when its partition was moved counts as done.";
    /// *Missing:* the look at the bit that says that a partition was moved, behind a change that changes nothing. Needs
    /// no reordering.
    ///
    /// *Scenario:* `rome/kv-moved-unchanged`.
    ROME_KV_MOVED_UNCHANGED = "rome-kv-moved-unchanged" in "ROMe":
        "A delete of a key that is not there does not notice that the partition was moved.";
    /// *Missing:* the comparison of the version that is moved. Needs no reordering.
    ///
    /// *Scenario:* `rome/kv-moved-late`.
    ROME_KV_LATE_COPY = "rome-kv-late-copy" in "ROMe":
        "A partition is moved though changes were made since it was copied.";
    /// *Missing:* the end of a freeze. Needs no reordering.
    ///
    /// *Scenario:* `rome/kv-taker-dies`.
    ROME_KV_FROZEN_FOR_EVER = "rome-kv-frozen-for-ever" in "ROMe":
        "Changes wait for a node that takes the partition, and is dead.";
    /// *Missing:* the order of the words that say where a partition is. Needs no reordering.
    ///
    /// *Scenario:* `rome/kv-moved-on`.
    ROME_KV_PLACE_FALLS = "rome-kv-place-falls" in "ROMe":
        "A node that has taken a partition and given it away says again that it is here.";
    /// *Missing:* the copy of a partition after its old owner has died without an answer. Needs no reordering.
    ///
    /// *Scenario:* `rome/kv-publish-dies`.
    ROME_KV_COPY_DISCARDED = "rome-kv-copy-discarded" in "ROMe":
        "A partition is lost for changes, though it was moved, because its old owner died before it could say so.";
    /// *Missing:* the epoch that a request carries. Needs no reordering.
    ///
    /// *Scenario:* `rome/kv-moved-back`.
    ROME_KV_ANY_EPOCH = "rome-kv-any-epoch" in "ROMe":
        "A node takes a request of one that has not heard of earlier moves as a sign that its copy is the partition.";
    /// *Missing:* the leaves behind the first one. Needs no reordering.
    ///
    /// *Scenario:* `rome/kv-moved-leaves`.
    ROME_KV_COPIES_A_LEAF = "rome-kv-copies-a-leaf" in "ROMe":
        "A partition that is moved keeps its first leaf only.";
    /// *Missing:* the look at the gate before a step above the leaves. Needs no reordering.
    ///
    /// *Scenario:* `rome/kv-chores`.
    ROME_KV_CHORES_PASS = "rome-kv-chores-pass" in "ROMe":
        "The service thread makes several changes at a closed gate, for one update.";
    /// *Missing:* the slot's `CW`, by which it names nothing, before the block of its tombstone is used again. Needs no
    /// reordering.
    ///
    /// *Scenario:* `rome/buried`.
    ROME_TOMBSTONE_EARLY = "rome-tombstone-early" in "ROMe":
        "The block of a tombstone is used again while readers that remember its slot find it there.";
    /// *Missing:* the others' answer that they had the store open before this node came. Needs no reordering.
    ///
    /// *Scenario:* `rome/kv-returned`.
    ROME_KV_RETURNS_EMPTY = "rome-kv-returns-empty" in "ROMe":
        "A node that comes back to a store opens the partition that was lost with the node before it anew, and empty.";
}
