//! Seeded bugs of variables.

crate::mutants! {
    // ---- AtomicVar ----

    /// *Missing:* atomicity. A put is not atomic with the others' atomics: another's `NAR → NAW` occurs between this
    /// get's `NRR` and this put's `NRW`.
    ///
    /// *Scenario:* 2 nodes, home n0. n0: `fetch_add(1)` ∥ n1: `fetch_add(1)`. Both return 0; or, at the end,
    /// `load() != 2`.
    ATOMIC_ADD_BY_PUT = "atomic-add-by-put" in "AtomicVar": "The home node's `fetch_add` is a get and a put.";

    /// *Missing:* a completed put is not visible (`pfp` is in `ib` only), and it may land between the halves of an
    /// atomic.
    ///
    /// *Scenario:* 2 nodes, home n0. n1: `store(5)`, notifies n0 through another endpoint (its own would flush) ∥ n0,
    /// once notified: `load()` is 0. Or n1: `store(5)` ∥ n0: `fetch_add(1)`, and at the end `load()` is 1.
    ATOMIC_STORE_BY_PUT = "atomic-store-by-put" in "AtomicVar": "`store` is a put.";

    // ---- SharedVar ----

    /// *Missing:* `NRW` before the operations after the fence. A remote fence waits until earlier writes start (cell
    /// G10), not until they are visible; only a get (`NRW → NRR`) guarantees that.
    ///
    /// *Scenario:* Fig. 5. 2 nodes, variables x, y. n0: `x.store(1)`, `x.push([n1])`, `x.fence([n1])`, `a = y.load()` ∥
    /// n1: `y.store(1)`, `y.push([n0])`, `y.fence([n0])`, `b = x.load()`. `a == 0 && b == 0`.
    SHARED_FENCE_REMOTE = "shared-fence-remote" in "SharedVar":
        "`fence` is remote fences that are waited for, not gets.";

    /// *Missing:* `pf`, `NLR` before the store that follows the push (Fig. 1 instead of Fig. 3d).
    ///
    /// *Scenario:* 2 nodes. n0: `store(1)`, `push([n1])`, `store(2)`, `fence([n1])`. At the end n1's `load()` is 2.
    SHARED_PUSH_NOT_AWAITED = "shared-push-not-awaited" in "SharedVar": "`push` returns before its puts are complete.";

    /// *Missing:* `pfg`, `NLW` before the `CR` that follows the wait.
    ///
    /// *Scenario:* 2 nodes; n1 has stored 5 before the start. n0: `pull(n1)` returns 0.
    SHARED_PULL_NOT_AWAITED = "shared-pull-not-awaited" in "SharedVar": "`pull` returns before its get is complete.";

    // ---- OwnedVar ----

    /// *Missing:* the reader's `CR → CR` order against the writer's lead, value, trail (LOCO appendix D, the second
    /// bug).
    ///
    /// *Scenario:* 2 nodes, owner n0, `T = [u64; 2]`, guards. n0: `store([1, 1])`, `push` ∥ n1: `try_load()` is
    /// `[1, 0]` or `[0, 1]`. With two threads on n0 the store alone shows it.
    OWNED_LOAD_FORWARD = "owned-load-forward" in "OwnedVar": "`try_load` reads lead, value, trail: in write order.";

    /// *Missing:* as `owned-load-forward`, with gets: each is awaited, but in the wrong order.
    ///
    /// *Scenario:* 2 nodes, owner n0, `T = [u64; 2]`, guards. n0: `store([1, 1])` ∥ n1: `pull()` is `[1, 0]` or
    /// `[0, 1]`.
    OWNED_PULL_FORWARD = "owned-pull-forward" in "OwnedVar": "`pull` gets lead, value, trail: in write order.";

    /// *Missing:* `NRR → NRR` has no order: without a wait in between, the lead may be read before the value. A
    /// simulator with queue pairs that are first in, first out cannot show it.
    ///
    /// *Scenario:* that of `owned-pull-forward`.
    OWNED_PULL_AT_ONCE = "owned-pull-at-once" in "OwnedVar":
        "`pull` posts the gets of trail, value, lead without waiting.";

    /// *Missing:* the retry of a torn value (`TryRead` may fail).
    ///
    /// *Scenario:* that of `owned-load-forward`.
    OWNED_TORN_ACCEPTED = "owned-torn-accepted" in "OwnedVar": "`try_load` returns the value whatever the guards say.";

    /// *Missing:* as `owned-torn-accepted`, for a fetched value with a checksum.
    ///
    /// *Scenario:* 2 nodes, owner n0, `T = [u64; 2]`, `TearCheck::Checksum`. n0: `store([1, 1])` ∥ n1: `pull()` is
    /// `[1, 0]` or `[0, 1]`.
    OWNED_SUM_IGNORED = "owned-sum-ignored" in "OwnedVar": "`pull` returns the value whatever its checksum says.";

    /// *Missing:* `NLR` before the store that follows (the papers' unstated condition: the writer waits for its last
    /// put before it rewrites the cells). With one word, as in a barrier's rows, this is no bug.
    ///
    /// *Scenario:* 2 nodes, owner n0, `T = [u64; 2]`, guards. n0: `store([1, 1])`, `push`, `store([2, 2])` ∥ n1:
    /// `try_load()` is `[2, 1]` or `[1, 2]`: lead and trail were read before the second store's, the value in its
    /// middle.
    OWNED_PUSH_LIVE = "owned-push-live" in "OwnedVar": "`push` sends the live cells, not a copy.";

    /// *Missing:* `NRW → NRW` is used in the wrong order.
    ///
    /// *Scenario:* that of `owned-load-forward`.
    OWNED_TRAIL_FIRST = "owned-trail-first" in "OwnedVar": "`push` sends the trailing guard before the value.";

    /// *Missing:* the others' copies of the pushed value.
    ///
    /// *Scenario:* 3 nodes, owner n0. n1 dies; `push` returns an error, and n2 does not receive the value.
    OWNED_PUSH_ENDS_AT_DEAD = "owned-push-ends-at-dead" in "OwnedVar": "`push` ends at the first node that is gone.";

    /// *Missing:* that a torn copy of a dead owner stays torn.
    ///
    /// *Scenario:* 2 nodes, owner n0, `T = [u64; 2]`, guards. n0 dies in the middle of a push. n1: `load()` ends in a
    /// timeout that names no node.
    OWNED_DEAD_AWAITED = "owned-dead-awaited" in "OwnedVar": "`load` waits for a whole value of a dead owner.";
}
