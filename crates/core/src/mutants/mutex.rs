//! Seeded bugs of mutexes.

crate::mutants! {
    /// *Missing:* `NRW` of the puts under the lock before the `NAW` of the release, where they are sent to different
    /// nodes. It does not help that the puts were awaited.
    ///
    /// *Scenario:* 2 nodes, home n0, x raw on n1. Each node: `lock`, get x, put x + 1 and wait for the put, `unlock`.
    /// At the end x is 1. Masked where x is on the home: the release flushes there.
    MUTEX_NO_FENCE = "mutex-no-fence" in "Mutex": "`unlock` does not fence.";

    /// *Missing:* as `mutex-no-fence`, for the holder's own node, to which it has put through the loopback.
    ///
    /// *Scenario:* that of `mutex-no-fence`, n1 first: n0's get does not see n1's put to itself, and n1's release does
    /// not flush it.
    MUTEX_FENCE_SPARES_SELF = "mutex-fence-spares-self" in "Mutex":
        "`unlock` fences all nodes but its own, not but the home.";

    /// *Missing:* `NRR` of a get under the lock before the `NAR` of the release (remote reads are not ordered), and its
    /// `NLW` before the holder's next actions.
    ///
    /// *Scenario:* 2 nodes, home n0, x raw on n0, cell on n1. n1: `lock`, get x, get x into the cell without waiting,
    /// `unlock`, load the cell ∥ n0: `lock`, put x, `unlock`. The cell differs from the result of the first get.
    MUTEX_READ_OVERTAKEN = "mutex-read-overtaken" in "Mutex": "`unlock` does not wait for gets that are under way.";

    /// *Missing:* exclusion. Another thread took the lock between the waiter's poll and its compare-and-swap.
    ///
    /// *Scenario:* 2 nodes, home n0, x raw on n0. n0: `lock`, `unlock`, `lock`, get x, put x + 1, `unlock` ∥ n1: `lock`
    /// (while n0 holds it for the first time: a ticket), get x, put x + 1, `unlock`. At the end x is 1; or both were in
    /// the critical section at once.
    MUTEX_TURN_UNCHECKED = "mutex-turn-unchecked" in "Mutex":
        "A waiter whose turn it is does not look whether it got the lock.";

    /// *Missing:* the bound on waiting. No result is wrong, and a fair schedule ends.
    ///
    /// *Scenario:* 2 nodes, home n0. n0: `lock`. n1: polls `lock` until it has drawn its ticket (its endpoint has then
    /// posted a get), notifies n0, and stops polling. n0, once notified: `unlock`, then `try_lock` and `unlock` 17
    /// times: the 17th succeeds.
    MUTEX_UNBOUNDED_BYPASS = "mutex-unbounded-bypass" in "Mutex": "Newcomers that pass those who wait are not counted.";

    /// *Missing:* atomicity with the others' fetch-and-adds: a ticket that was drawn while the lock was held is erased.
    ///
    /// *Scenario:* 2 nodes, home n0. n0: `lock`, `unlock`, `lock`, `unlock` ∥ n1: `lock`, `unlock`. One of them waits
    /// for ever: n1 draws ticket 0 and is erased, but served; n0 then draws 0 again, and 1 is served.
    MUTEX_RELEASED_BY_PUT = "mutex-released-by-put" in "Mutex":
        "`unlock` puts the word that it took, without its holder.";

    /// *Missing:* progress: no waiter takes the ticket of an abandoned operation.
    ///
    /// *Scenario:* 2 nodes, home n0. n0: `lock`, `unlock` ∥ n1: `lock_deadline(now)` (a timeout, if n0 holds it), then
    /// `lock`: waits for ever if n0 still holds it.
    MUTEX_TICKET_LOST = "mutex-ticket-lost" in "Mutex": "A waiter that gives up does not pass its turn on.";

    /// *Missing:* progress where no other call waits. This was a bug: a long search found it.
    ///
    /// *Scenario:* 3 nodes, home n0. n1 holds the lock; n2 polls `lock` once and drops it; n1 dies. n2 cannot leave:
    /// its ticket never has its turn.
    MUTEX_TICKET_BEHIND_DEAD = "mutex-ticket-behind-dead" in "Mutex":
        "A turn behind a dead holder is passed on only if another takes the lock from it.";

    /// *Missing:* progress: the lock is taken without a holder, or a ticket has no owner.
    ///
    /// *Scenario:* 2 nodes, home n0. n1: polls `lock` once and drops it ∥ n0: `lock` waits for ever.
    MUTEX_DROPPED_NOT_UNDONE = "mutex-dropped-not-undone" in "Mutex":
        "A take or draw whose future is dropped before its completion is not undone.";

    /// *Missing:* nothing of the memory model. A lock that is never released is never free.
    ///
    /// *Scenario:* home n1. n0: lock, unlock, and its fetch-and-add is refused ∥ n1: lock.
    MUTEX_RELEASE_REFUSED = "mutex-release-refused" in "Mutex": "A release that is refused is not done later.";
}
