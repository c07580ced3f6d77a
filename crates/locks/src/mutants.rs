//! Seeded bugs of the locks.

farfield_core::mutants! {
    /// *Missing:* the holder's `NRW` to a node before the release's `NAW` on another: only a get from the first node
    /// guarantees that.
    ///
    /// *Scenario:* `spin/release`.
    SPIN_NO_FENCE = "spin-no-fence" in "SpinLockArray": "`unlock` does not fence.";

    /// *Missing:* that the lock is taken from a dead holder.
    ///
    /// *Scenario:* `spin/holder-dies`.
    SPIN_HOLDER_KEPT = "spin-holder-kept" in "SpinLockArray": "A lock stays with a dead holder.";

    /// *Missing:* as in [`SPIN_NO_FENCE`].
    ///
    /// *Scenario:* `alock/release`.
    ALOCK_NO_FENCE = "alock-no-fence" in "ALock": "`unlock` does not fence.";

    /// *Missing:* `CW → MF → CR`: the local head reads the remote tail before its victim is in memory.
    ///
    /// *Scenario:* `alock/cohorts`.
    ALOCK_VICTIM_UNFENCED = "alock-victim-unfenced" in "ALock":
        "The local head names the victim and then reads the remote tail without a fence.";

    /// *Missing:* the budget of a thread that competes again: it falls below zero, and the cohort keeps the lock.
    ///
    /// *Scenario:* `alock/remote-budget`.
    ALOCK_BUDGET_NOT_RESET = "alock-budget-not-reset" in "ALock":
        "An operation that competes again keeps the budget that it was granted.";

    /// *Missing:* the victim of a thread that competes again: it is still the other cohort's, so no other thread gets
    /// the lock.
    ///
    /// *Scenario:* `alock/remote-budget`.
    ALOCK_VICTIM_NOT_SET = "alock-victim-not-set" in "ALock": "An operation that competes again names no victim.";

    /// *Missing:* atomicity: a CPU's compare-and-swap occurs between `NAR` and `NAW` of a remote one.
    ///
    /// *Scenario:* `alock/cohorts`.
    ALOCK_WRONG_COHORT = "alock-wrong-cohort" in "ALock": "Local operations enter the remote queue, by the CPU.";

    /// *Missing:* the victim's `NRW` before the `NAW` by which its operation gives up the head, on another queue pair.
    ///
    /// *Scenario:* `alock/late-victim`.
    ALOCK_VICTIM_LATE = "alock-victim-late" in "ALock":
        "An operation that is dropped does not wait until its victim has landed.";

    /// *Missing:* as in [`SPIN_NO_FENCE`].
    ///
    /// *Scenario:* `mcs/release`.
    MCS_NO_FENCE = "mcs-no-fence" in "McsLockArray": "`unlock` does not fence.";

    /// *Missing:* `NRW` of a put to the thread's own node before the store of the grant: a put is ordered before a put,
    /// not before a `CW`.
    ///
    /// *Scenario:* `mcs/neighbours`.
    MCS_SPARES_OWN_NODE = "mcs-spares-own-node" in "McsLockArray":
        "The release exempts its own node from the fence if the grant is a store, as if it were a put.";

    /// *Missing:* the grant: a releasing holder does not know its successor.
    ///
    /// *Scenario:* `alock/remote-queue`.
    MCS_NOT_TOLD = "mcs-not-told" in "McsLockArray":
        "An operation that enqueues does not link itself to its predecessor.";

    /// *Missing:* the grant of an operation that its caller no longer awaits.
    ///
    /// *Scenario:* `alock/deadline`.
    MCS_DROPPED_KEPT = "mcs-dropped-kept" in "McsLockArray":
        "An operation that is dropped keeps its place in the queue.";

    /// *Missing:* that the chain that contains the tail claims last: it empties the tail while another is stuck.
    ///
    /// *Scenario:* `mcs/stuck-twice`.
    MCS_TAIL_FIRST = "mcs-tail-first" in "McsLockArray": "Any of several stuck entries may claim the head.";

    /// *Missing:* that no live node is at the head.
    ///
    /// *Scenario:* `alock/waiter-dies`.
    MCS_CLAIMS_BLINDLY = "mcs-claims-blindly" in "McsLockArray":
        "An operation behind a dead one claims the head without a survey of the others.";

    /// *Missing:* that an entry's predecessor and its grant are read from the same use of its descriptor.
    ///
    /// *Scenario:* `mcs/used-again`.
    MCS_SURVEY_TORN = "mcs-survey-torn" in "McsLockArray":
        "A survey reads the state of an entry before its other words, not after them.";

    /// *Missing:* that a refused operation has no effect: each attempt keeps a descriptor for good.
    ///
    /// *Scenario:* `mcs/home-cut`.
    MCS_ASKS_AGAIN = "mcs-asks-again" in "McsLockArray":
        "An operation tries to enqueue even if its node cannot reach the lock's node.";
}
