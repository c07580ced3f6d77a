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
    SPIN_HOLDER_KEPT = "spin-holder-kept" in "SpinLockArray": "A lock stays with a holder that is dead.";

    /// *Missing:* as in [`SPIN_NO_FENCE`].
    ///
    /// *Scenario:* `alock/release`.
    ALOCK_NO_FENCE = "alock-no-fence" in "ALock": "`unlock` does not fence.";

    /// *Missing:* `CW → MF → CR`: the local head reads the remote tail before its victim is in memory.
    ///
    /// *Scenario:* `alock/cohorts`.
    ALOCK_VICTIM_UNFENCED = "alock-victim-unfenced" in "ALock": "The local head looks without a fence after it has named the victim.";

    /// *Missing:* the budget of a thread that competes again: it falls below zero, and the cohort keeps the lock.
    ///
    /// *Scenario:* `alock/remote-budget`.
    ALOCK_BUDGET_NOT_RESET = "alock-budget-not-reset" in "ALock": "Who competes again keeps the budget that it was granted.";

    /// *Missing:* the victim of a thread that competes again: it is still the other cohort's, so no other thread gets
    /// the lock.
    ///
    /// *Scenario:* `alock/remote-budget`.
    ALOCK_VICTIM_NOT_SET = "alock-victim-not-set" in "ALock": "Who competes again names no victim.";

    /// *Missing:* atomicity: a CPU's compare-and-swap occurs between `NAR` and `NAW` of a remote one.
    ///
    /// *Scenario:* `alock/cohorts`.
    ALOCK_WRONG_COHORT = "alock-wrong-cohort" in "ALock": "Local operations enter the remote queue, by the CPU.";

    /// *Missing:* the victim's `NRW` before the `NAW` by which its operation gives up the head, on another queue pair.
    ///
    /// *Scenario:* `alock/late-victim`.
    ALOCK_VICTIM_LATE = "alock-victim-late" in "ALock": "An operation that is dropped does not wait until its victim has landed.";

    /// *Missing:* as in [`SPIN_NO_FENCE`].
    ///
    /// *Scenario:* `mcs/release`.
    MCS_NO_FENCE = "mcs-no-fence" in "McsLockArray": "`unlock` does not fence.";

    /// *Missing:* `NRW` of a put to the thread's own node before the store of the grant: a put is ordered before a put,
    /// not before a `CW`.
    ///
    /// *Scenario:* `mcs/neighbours`.
    MCS_SPARES_OWN_NODE = "mcs-spares-own-node" in "McsLockArray": "A grant by a store spares its node, as one by a put does.";

    /// *Missing:* the grant: a releasing holder does not know its successor.
    ///
    /// *Scenario:* `alock/remote-queue`.
    MCS_NOT_TOLD = "mcs-not-told" in "McsLockArray": "Who enqueues does not tell the one before it.";

    /// *Missing:* the grant of an operation that its caller no longer awaits.
    ///
    /// *Scenario:* `alock/deadline`.
    MCS_DROPPED_KEPT = "mcs-dropped-kept" in "McsLockArray": "An operation that is dropped keeps its place in the queue.";

    /// *Missing:* that the chain that contains the tail claims last: it empties the tail while another is stuck.
    ///
    /// *Scenario:* `mcs/stuck-twice`.
    MCS_TAIL_FIRST = "mcs-tail-first" in "McsLockArray": "Of several stuck entries any may claim the head.";

    /// *Missing:* that no live node is at the head.
    ///
    /// *Scenario:* `alock/waiter-dies`.
    MCS_CLAIMS_BLINDLY = "mcs-claims-blindly" in "McsLockArray": "Who is behind a dead operation claims the head without a look at the others.";

    /// *Missing:* that an entry's predecessor and its grant are read from the same use of its descriptor.
    ///
    /// *Scenario:* `mcs/used-again`.
    MCS_SURVEY_TORN = "mcs-survey-torn" in "McsLockArray": "Who looks at the others reads how they stand before the rest, not after it.";

    /// *Missing:* that a refused operation has no effect: each attempt keeps a descriptor for good.
    ///
    /// *Scenario:* `mcs/home-cut`.
    MCS_ASKS_AGAIN = "mcs-asks-again" in "McsLockArray": "Who cannot reach the lock's node tries to enqueue nevertheless.";
}
