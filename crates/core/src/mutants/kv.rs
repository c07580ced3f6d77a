//! Seeded bugs of the key-value store.

crate::mutants! {
    /// *Missing:* the value's `NRW` before the release's `NAW`. Rule (1).
    ///
    /// *Scenario:* 2 nodes, `locks: 1` (home n0); n1 has inserted k → 1. n0: `update(k, 2)`, notifies n1 by another
    /// endpoint ∥ n1, once notified: `get(k)` is 1. Or n1, once notified: `update(k, 3)`, and at the end k is 2. Masked
    /// where lock and value share a node.
    KV_UPDATE_NO_FENCE = "kv-update-no-fence" in "KvStore": "`update` releases the lock without its fence.";

    /// *Missing:* the distinction between the uses of a slot. Rule (4).
    ///
    /// *Scenario:* 1 node, 2 threads, `slots_per_node: 1`; the store contains k1 → 10. T0: `delete(k1)`, `insert(k2,
    /// 20)` ∥ T1: `get(k1)` is 20: it had looked up the index before the delete. The same with n1 instead of T1.
    KV_USES_NOT_COUNTED = "kv-uses-not-counted" in "KvStore": "The uses of a slot are not counted.";

    /// *Missing:* that meta and value belong to one use, when they are read at different moments.
    ///
    /// *Scenario:* that of `kv-uses-not-counted`: T1 reads the meta word before the delete, checksum and value after
    /// the insert has written them.
    KV_SUM_UNSEEDED = "kv-sum-unseeded" in "KvStore": "The checksum does not depend on the slot's use.";

    /// *Missing:* the followers' acknowledgements before the `CW` of valid. Rule (2).
    ///
    /// *Scenario:* 2 nodes, 2 threads on n0. n0/T0: `insert(k, 1)` ∥ n0/T1: `get(k)` is 1, notifies n1 ∥ n1, once
    /// notified: `get(k)` is `None`.
    KV_VALID_EARLY = "kv-valid-early" in "KvStore": "`insert` sets valid before the other nodes know the key.";

    /// *Missing:* the cleared meta word before the meta word of the slot's next use. Freeing the slot before the
    /// *acknowledgements* is no bug by itself: the counter covers it (rule (4) is for deletes that are cut short, which
    /// would free the slot twice).
    ///
    /// *Scenario:* 1 node, 2 threads, `slots_per_node: 1`, `locks: 2`, k1 and k2 with different locks; the store
    /// contains k1. T0: `delete(k1)` ∥ T1: `insert(k2, 20)` (an error if there is no slot yet); if it was true,
    /// `get(k2)` is `None` at the end.
    KV_FREED_FIRST = "kv-freed-first" in "KvStore": "`delete` frees the slot before it clears the valid bit.";

    /// *Missing:* the `NRW` of the cleared meta before the trackers' `NRW`s, which use another endpoint. Rule (3).
    ///
    /// *Scenario:* 2 nodes; n1 has inserted k. n0/T0: `delete(k)` ∥ n0/T1: `get(k)` is `None`, notifies n1 by its own
    /// endpoint ∥ n1, once notified: `get(k)` is `Some`. Or, with `slots_per_node: 1`, `locks: 2` and one thread a
    /// node: n0: `delete(k1)` ∥ n1: `insert(k2, 20)` until there is a slot, and at the end `get(k2)` is `None`: the
    /// late put has cleared it.
    KV_DELETE_NOT_FLUSHED = "kv-delete-not-flushed" in "KvStore":
        "`delete` tells the other nodes before the cleared valid bit is visible.";

    /// *Missing:* the retry of a torn value.
    ///
    /// *Scenario:* 2 nodes, `V = u64`; n0 has inserted k → 1. n0: `update(k, 2)` ∥ n1: `get(k)` is `None`. Needs no
    /// delete.
    KV_TORN_IS_ABSENT = "kv-torn-is-absent" in "KvStore": "`get` takes a torn value for an absent one.";

    /// *Missing:* the check of a torn value.
    ///
    /// *Scenario:* 2 nodes, `V = [u64; 2]`; n0 has inserted k → `[1, 1]`. n0: `update(k, [2, 2])` ∥ n1: `get(k)` is
    /// `[2, 1]` or `[1, 2]`.
    KV_SUM_IGNORED = "kv-sum-ignored" in "KvStore": "`get` returns a value whatever its checksum says.";

    /// *Missing:* the follower's index before its acknowledgement.
    ///
    /// *Scenario:* 2 nodes. n0: `insert(k, 1)` is true, notifies n1 ∥ n1, once notified: `get(k)` is `None`.
    KV_ACK_BEFORE_APPLY = "kv-ack-before-apply" in "KvStore": "A follower acknowledges a change before it applies it.";

    /// *Missing:* the inserter's own index before valid. Rule (2), where "every index" is misread as the others'.
    ///
    /// *Scenario:* 2 nodes. n0/T0: `insert(k, 1)` ∥ n1: `get(k)` is 1, notifies n0/T1 ∥ n0/T1, once notified: `get(k)`
    /// is `None`.
    KV_OWN_INDEX_LAST = "kv-own-index-last" in "KvStore":
        "`insert` enters the key into its own node's index after it has set valid.";

    /// *Missing:* the order of changes of a key, which the lock provides. Trackers of different writers are not
    /// ordered.
    ///
    /// *Scenario:* 2 nodes. n0: polls `insert(k, 1)` until it has sent its message, and drops it ∥ n1: `insert(k, 2)`
    /// is true; at the end n1's `get(k)` is `None`: its service thread has applied n0's insert and removal only now,
    /// over its own entry.
    KV_RELEASED_BEFORE_DROPPED = "kv-released-before-dropped" in "KvStore":
        "An insert that is undone releases its key before all nodes have dropped it.";

    /// *Missing:* the `NRW`s of the user's endpoint before those of the service thread's, to the same slot.
    ///
    /// *Scenario:* 2 nodes, `Placement::Hash`, `slots_per_node: 2` (n0 hands out one slot of n1), k1 and k2 placed on
    /// n1. n0/T0: polls `insert(k1, 1)` until it has sent its message and drops it ∥ n0/T1: `insert(k2, 2)` until there
    /// is a slot; at the end `get(k2)` is `None`, or never whole: T0's puts landed after it.
    KV_HAND_OVER_UNFENCED = "kv-hand-over-unfenced" in "KvStore":
        "An insert that is cut short is handed to the service thread with its puts still under way.";

    /// *Missing:* the agreement on a dead node's messages. A message that reached only some survivors is not completed
    /// elsewhere, and an operation under its locks may still be in flight.
    ///
    /// *Scenario:* `kv/dies`.
    KV_DEAD_NOT_SETTLED = "kv-dead-not-settled" in "KvStore": "Moved locks, and those of the dead, are used at once.";

    /// *Missing:* the repair after a dead holder: an insert that never took effect stays in every index.
    ///
    /// *Scenario:* `kv/dies-by-hash`.
    KV_DEAD_NOT_REPAIRED = "kv-dead-not-repaired" in "KvStore": "What a dead holder has left half-done stays.";

    /// *Missing:* a copy from which a value can be restored after its put was cut short.
    ///
    /// *Scenario:* `kv/dies`.
    KV_NOT_REDONE = "kv-not-redone" in "KvStore": "A value that its writer's death tore stays torn.";

    /// *Missing:* the second look at the key, under its lock: it has been deleted since the first.
    ///
    /// *Scenario:* 1 node, `slots_per_node: 1`. `insert_for(k1, 1)`; when its time is up, `delete(k1)` and `insert(k2,
    /// 2)` ∥ the service thread, which has looked before: the slot is freed twice.
    KV_EXPIRES_REMOVED = "kv-expires-removed" in "KvStore": "A time that is up removes a key that is deleted already.";

    /// *Missing:* the second look at the time, under the key's lock.
    ///
    /// *Scenario:* 1 node. `insert_for(k, 1)`; when its time is up, `expire_after(k)` is true ∥ the service thread,
    /// which has looked before, removes it.
    KV_EXPIRES_RENEWED = "kv-expires-renewed" in "KvStore": "A time that is up removes a key that has another time by now.";

    /// *Missing:* the home's acknowledgement before the release.
    ///
    /// *Scenario:* 2 nodes; n0 has inserted k for a time. When it is up, n1: `expire_after(k)` is true, and then n0,
    /// which has not heard of it, removes k.
    KV_RENEWED_EARLY = "kv-renewed-early" in "KvStore": "A new time is reported before the value's node knows it.";

    /// *Missing:* the order of the times of a key, which its lock provides.
    ///
    /// *Scenario:* 2 nodes; n0 has inserted k. n1: polls `expire_after(k, short)` until it has sent its message, and
    /// drops it; then n0: `expire_after(k, never)` is true, and n1's message arrives.
    KV_RENEWAL_DROPPED = "kv-renewal-dropped" in "KvStore":
        "A call that sets a time, and is dropped, releases its key before the message has arrived.";

    /// *Missing:* the end of a removal with its store: a node that has closed it acknowledges nothing.
    ///
    /// *Scenario:* `kv/expiry-closed`.
    KV_REMOVAL_KEPT = "kv-removal-kept" in "KvStore": "A removal that no call has begun keeps its store open."
;
}
