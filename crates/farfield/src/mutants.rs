//! Seeded bugs: a checker of these objects has to find them before it can be trusted.
//!
//! Each [`Mutant`] is a switch in the code where the bug would be made: `if mutants::is_on(Mutant::…)`. Without the
//! feature `mutants`, or without debug assertions, the switch is the constant `false`, and the compiler removes its
//! code. So no release build has seeded bugs. The feature is for tests of the checker only.
//!
//! The documentation of every mutant states the effect of the bug, the order that is then missing, and the smallest
//! known scenario that shows it. The order uses the stamps of the model: `CR` and `CW` are the CPU's reads and writes,
//! `NLR → NRW` the halves of a put, `NRR → NLW` those of a get. In the scenarios `n0`, `n1` … are nodes, with one
//! thread each unless stated otherwise. `T0`, `T1` are threads of one node that has several. `∥` separates concurrent
//! parts. "Raw" is a word of [`Node::alloc`](crate::Node::alloc) that the endpoint puts and gets.

use core::str::FromStr;

use farfield_fabric::{Endpoint, Plain, Region, RemotePtr, Result};

use crate::error::{Error, ErrorKind};

macro_rules! mutants {
    ($($(#[doc = $doc:literal])+ $mutant:ident = $name:literal in $object:literal: $breaks:literal;)+) => {
        /// A seeded bug.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Mutant {
            $(#[doc = $breaks] #[doc = ""] $(#[doc = $doc])+ $mutant,)+
        }

        impl Mutant {
            /// All of them.
            pub const ALL: &[Mutant] = &[$(Mutant::$mutant),+];

            /// Its name: `barrier-no-fence`.
            pub fn name(self) -> &'static str {
                match self { $(Mutant::$mutant => $name),+ }
            }

            /// The type that has the bug: `Barrier`.
            pub fn object(self) -> &'static str {
                match self { $(Mutant::$mutant => $object),+ }
            }

            /// A one-line description of the bug.
            pub fn breaks(self) -> &'static str {
                match self { $(Mutant::$mutant => $breaks),+ }
            }
        }
    };
}

mutants! {
    // ---- AtomicVar ----

    /// *Missing:* atomicity. A put is not atomic with the others' atomics: another's `NAR → NAW` occurs between this
    /// get's `NRR` and this put's `NRW`.
    ///
    /// *Scenario:* 2 nodes, home n0. n0: `fetch_add(1)` ∥ n1: `fetch_add(1)`. Both return 0; or, at the end,
    /// `load() != 2`.
    AtomicAddByPut = "atomic-add-by-put" in "AtomicVar": "The home node's `fetch_add` is a get and a put.";

    /// *Missing:* a completed put is not visible (`pfp` is in `ib` only), and it may land between the halves of an
    /// atomic.
    ///
    /// *Scenario:* 2 nodes, home n0. n1: `store(5)`, notifies n0 through another endpoint (its own would flush) ∥ n0,
    /// once notified: `load()` is 0. Or n1: `store(5)` ∥ n0: `fetch_add(1)`, and at the end `load()` is 1.
    AtomicStoreByPut = "atomic-store-by-put" in "AtomicVar": "`store` is a put.";

    // ---- SharedVar ----

    /// *Missing:* `NRW` before the operations after the fence. A remote fence waits until earlier writes start (cell
    /// G10), not until they are visible; only a get (`NRW → NRR`) guarantees that.
    ///
    /// *Scenario:* Fig. 5. 2 nodes, variables x, y. n0: `x.store(1)`, `x.push([n1])`, `x.fence([n1])`, `a = y.load()` ∥
    /// n1: `y.store(1)`, `y.push([n0])`, `y.fence([n0])`, `b = x.load()`. `a == 0 && b == 0`.
    SharedFenceRemote = "shared-fence-remote" in "SharedVar": "`fence` is remote fences that are waited for, not gets.";

    /// *Missing:* `pf`, `NLR` before the store that follows the push (Fig. 1 instead of Fig. 3d).
    ///
    /// *Scenario:* 2 nodes. n0: `store(1)`, `push([n1])`, `store(2)`, `fence([n1])`. At the end n1's `load()` is 2.
    SharedPushNotAwaited = "shared-push-not-awaited" in "SharedVar": "`push` returns before its puts are complete.";

    /// *Missing:* `pfg`, `NLW` before the `CR` that follows the wait.
    ///
    /// *Scenario:* 2 nodes; n1 has stored 5 before the start. n0: `pull(n1)` returns 0.
    SharedPullNotAwaited = "shared-pull-not-awaited" in "SharedVar": "`pull` returns before its get is complete.";

    // ---- OwnedVar ----

    /// *Missing:* the reader's `CR → CR` order against the writer's lead, value, trail (LOCO appendix D, the second
    /// bug).
    ///
    /// *Scenario:* 2 nodes, owner n0, `T = [u64; 2]`, guards. n0: `store([1, 1])`, `push` ∥ n1: `try_load()` is
    /// `[1, 0]` or `[0, 1]`. With two threads on n0 the store alone shows it.
    OwnedLoadForward = "owned-load-forward" in "OwnedVar": "`try_load` reads lead, value, trail: in write order.";

    /// *Missing:* as `owned-load-forward`, with gets: each is awaited, but in the wrong order.
    ///
    /// *Scenario:* 2 nodes, owner n0, `T = [u64; 2]`, guards. n0: `store([1, 1])` ∥ n1: `pull()` is `[1, 0]` or
    /// `[0, 1]`.
    OwnedPullForward = "owned-pull-forward" in "OwnedVar": "`pull` gets lead, value, trail: in write order.";

    /// *Missing:* `NRR → NRR` has no order: without a wait in between, the lead may be read before the value. A
    /// simulator whose queue pairs are first in, first out cannot show it.
    ///
    /// *Scenario:* that of `owned-pull-forward`.
    OwnedPullAtOnce = "owned-pull-at-once" in "OwnedVar":
        "`pull` posts the gets of trail, value, lead without waiting.";

    /// *Missing:* the retry of a torn value (`TryRead` may fail).
    ///
    /// *Scenario:* that of `owned-load-forward`.
    OwnedTornAccepted = "owned-torn-accepted" in "OwnedVar": "`try_load` returns the value whatever the guards say.";

    /// *Missing:* as `owned-torn-accepted`, for a fetched value with a checksum.
    ///
    /// *Scenario:* 2 nodes, owner n0, `T = [u64; 2]`, `Wholeness::Checksum`. n0: `store([1, 1])` ∥ n1: `pull()` is
    /// `[1, 0]` or `[0, 1]`.
    OwnedSumIgnored = "owned-sum-ignored" in "OwnedVar": "`pull` returns the value whatever its checksum says.";

    /// *Missing:* `NLR` before the store that follows (the papers' unstated condition: the writer waits for its last
    /// put before it rewrites the cells). With one word, as in a barrier's rows, this is no bug.
    ///
    /// *Scenario:* 2 nodes, owner n0, `T = [u64; 2]`, guards. n0: `store([1, 1])`, `push`, `store([2, 2])` ∥ n1:
    /// `try_load()` is `[2, 1]` or `[1, 2]`: lead and trail were read before the second store's, the value in its
    /// middle.
    OwnedPushLive = "owned-push-live" in "OwnedVar": "`push` sends the live cells, not a copy.";

    /// *Missing:* `NRW → NRW` is used in the wrong order.
    ///
    /// *Scenario:* that of `owned-load-forward`.
    OwnedTrailFirst = "owned-trail-first" in "OwnedVar": "`push` sends the trailing guard before the value.";

    /// *Missing:* the others' copies of the pushed value.
    ///
    /// *Scenario:* 3 nodes, owner n0. n1 dies; `push` returns an error, and n2 does not receive the value.
    OwnedPushEndsAtDead = "owned-push-ends-at-dead" in "OwnedVar": "`push` ends at the first node that is gone.";

    /// *Missing:* that a torn copy of a dead owner stays torn.
    ///
    /// *Scenario:* 2 nodes, owner n0, `T = [u64; 2]`, guards. n0 dies in the middle of a push. n1: `load()` ends in a
    /// timeout that names no node.
    OwnedDeadAwaited = "owned-dead-awaited" in "OwnedVar": "`load` waits for a whole value of a dead owner.";

    // ---- Barrier ----

    /// *Missing:* `GF_n` before the count, for all n: LOCO appendix D, Fig. 22.
    ///
    /// *Scenario:* 3 nodes, z raw on n1 (or a `SharedVar`). n0: put z := 1 at n1, `wait` ∥ n1: `wait` ∥ n2: `wait`, get
    /// z from n1 is 0. Masked with two nodes of one thread, since data and count are then sent to the same node; not
    /// with two threads a node (see `barrier-fence-from-one`).
    BarrierNoFence = "barrier-no-fence" in "Barrier": "`wait` does not fence (Fig. 22).";

    /// *Missing:* as `barrier-no-fence`. The fence is executed and awaited, but only after the count's `NRW`.
    ///
    /// *Scenario:* that of `barrier-no-fence`. n0 itself passes only after its fence; n2 does not wait for that.
    BarrierFenceLate = "barrier-fence-late" in "Barrier": "`wait` fences after it has sent its count.";

    /// *Missing:* `GF_0` before the count. A loop from 1, or over the "other" nodes as seen from node 0.
    ///
    /// *Scenario:* 3 nodes, z raw on n0. n1: put z := 1 at n0, `wait` ∥ n0: `wait` ∥ n2: `wait`, get z from n0 is 0. Or
    /// 2 nodes of 2 threads: n1/T0 puts, n1/T1 gets. Masked if only n0 itself reads z (`NRW → NRW`).
    BarrierFenceFromOne = "barrier-fence-from-one" in "Barrier": "`wait` fences all nodes but node 0.";

    /// *Missing:* `so` from one participant's `GF` to the others' `CR`.
    ///
    /// *Scenario:* 2 nodes. n1: put x := 1 at n0, `wait` ∥ n0: `wait`, x is 0.
    BarrierLastRow = "barrier-last-row" in "Barrier": "`wait` looks at all rows but the last.";

    /// *Missing:* as `barrier-last-row`, for all threads. A thread passes a round after a wait for the previous round
    /// only.
    ///
    /// *Scenario:* that of `barrier-last-row`, in the first round already.
    BarrierRoundEarly = "barrier-round-early" in "Barrier": "`wait` is content with the others' last round.";

    /// *Missing:* the count of a thread that waits again. Its fence had timed out because of a node that was cut off,
    /// and the thread had not arrived. It finds all others in the round before.
    ///
    /// *Scenario:* 3 nodes, node 2 is cut off. All put to all, `wait`, `wait_again` after a timeout; a put value is
    /// missing.
    BarrierAgainUnarrived = "barrier-again-unarrived" in "Barrier": "`wait_again` does not arrive after a wait that had not.";

    /// *Missing:* nothing of the memory model. A node that was not notified waits for ever.
    ///
    /// *Scenario:* 2 nodes. n0: `wait`, and its put is refused ∥ n1: `wait`.
    BarrierToldOnce = "barrier-told-once" in "Barrier": "A node that could not be told of an arrival is not told again.";

    // ---- RingBuffer ----

    /// *Missing:* `NRW → NRW`: the message before its head.
    ///
    /// *Scenario:* 2 nodes, writer n0, capacity 64. n0: `try_send(8 bytes of 1)` ∥ n1: `try_recv` gives an empty
    /// message, or one of zeros.
    RingHeadFirst = "ring-head-first" in "RingBuffer": "The head is put before the message.";

    /// *Missing:* as `ring-head-first`, for the part of a message at the beginning of the ring.
    ///
    /// *Scenario:* 2 nodes, writer n0, capacity 64. n0: `send(32 bytes of 1)`, `send(32 bytes of 2)`, the second when
    /// the first was acknowledged (it takes bytes 40 to 63 and 0 to 15) ∥ n1: `recv`, `recv`: the second ends in 1s or
    /// in the first's length.
    RingHeadBeforeWrapped = "ring-head-before-wrapped" in "RingBuffer":
        "The head is put before the part of the message that wraps around.";

    /// *Missing:* `NLR` of one head before the `CW` of the next (the wait in LOCO's Fig. 14).
    ///
    /// *Scenario:* 2 nodes, writer n0. n0: `try_send([1; 8])`, `try_send([2; 8])` ∥ n1: `recv`, `recv`: the second is
    /// empty or zeros, since the first head carried the second's position.
    RingHeadLive = "ring-head-live" in "RingBuffer": "The head is sent live, not as a copy.";

    /// *Missing:* room: the last message takes 8 bytes that the slowest reader has not read. Needs no reordering.
    ///
    /// *Scenario:* 2 nodes, writer n0, capacity 64. n0: `try_send` of 24 bytes, of 24 bytes, of none: the third is true
    /// although nothing was received, and overwrites the first's length. n1: `recv` thrice: the first is empty.
    RingRoomForgetsHeader = "ring-room-forgets-header" in "RingBuffer":
        "The room that a message needs is counted without its length word.";

    /// *Missing:* the reader's `CR` of the message before the writer's `CW` of the next. The acknowledgement orders the
    /// two.
    ///
    /// *Scenario:* 2 nodes, writer n0, capacity 64. n0: `send(32 bytes of 1)`, `send(32 bytes of 2)` ∥ n1: `recv` gives
    /// 2s among the 1s (the second message wraps around over the first's length and first word).
    RingAckBeforeRead = "ring-ack-before-read" in "RingBuffer":
        "A reader acknowledges a message before it has copied it.";

    /// *Missing:* as `ring-ack-before-read`, for all readers but the fastest.
    ///
    /// *Scenario:* 2 nodes, writer n0, one reader on each, capacity 64. n0: `try_send(32 bytes of 1)`, `try_recv`,
    /// `try_send(32 bytes of 2)` is true ∥ n1: `recv` gives 2s, or an error. Needs no reordering. (`send` waits for all
    /// readers by another way, so the scenario uses `try_send`.)
    RingFastestReader = "ring-fastest-reader" in "RingBuffer": "The room is that of the fastest reader.";

    /// *Missing:* the reader's `CR → CR` order: head before message.
    ///
    /// *Scenario:* that of `ring-head-first`.
    RingLengthBeforeHead = "ring-length-before-head" in "RingBuffer": "A reader reads the length before the head.";

    /// *Missing:* credits that never shrink. This concerns liveness only: no wrong message is received.
    ///
    /// *Scenario:* 2 nodes, writer n0, capacity 64. n0: `send(32 bytes)` thrice: the third times out ∥ n1: `recv`
    /// thrice.
    RingCreditModulo = "ring-credit-modulo" in "RingBuffer":
        "A reader acknowledges an offset in the ring, not a position.";

    /// *Missing:* the message: its put was refused, so its head must not be put either.
    ///
    /// *Scenario:* a reader on n0, one on n1; the put of the message to n1 is refused. n1 sees the head, and zeros.
    RingHeadOverHole = "ring-head-over-hole" in "RingBuffer": "The head is put though the message was refused.";

    /// *Missing:* `NRW → NRW`. The missing part of a copy has to land before the head that covers it, as at the first
    /// attempt.
    ///
    /// *Scenario:* as before; the next call puts the missing part to n1. n1 sees the head before the message.
    RingRepairHeadFirst = "ring-repair-head-first" in "RingBuffer":
        "A copy that is behind gets the head before what it lacks.";

    /// *Missing:* nothing of the memory model. If one reader was not sent the message, a wait for all readers never
    /// ends.
    ///
    /// *Scenario:* as before; n0 waits until all have read the message.
    RingBehindForgotten = "ring-behind-forgotten" in "RingBuffer": "A copy that was refused a message does not get it later.";

    /// *Missing:* nothing of the memory model. A message without a head must not be reported as sent.
    ///
    /// *Scenario:* one reader, on n1; the put of the message is refused. `try_send` returns that it was sent, and n1
    /// waits.
    RingRefusedSent = "ring-refused-sent" in "RingBuffer": "A message that was refused everywhere is said to be sent.";

    /// *Missing:* nothing of the memory model. The writer waits for room that the reader never gives back.
    ///
    /// *Scenario:* capacity 64, a message of 48 bytes is in the ring. n1 receives it, and its acknowledgement is
    /// refused; it polls for another ∥ n0: send a message.
    RingAckOnce = "ring-ack-once" in "RingBuffer": "An acknowledgement that was refused is not put again.";

    // ---- Queue ----

    /// *Missing:* `NRW` of the values before the `NAW` that publishes them.
    ///
    /// *Scenario:* 2 nodes, home n0. n1: `enqueue(1)` ∥ n0: `try_dequeue` returns the previous content of the cell.
    QueuePublishedFirst = "queue-published-first" in "Queue": "A slot is filled before its values are put.";

    /// *Missing:* `NRR` of the value before the `NAW` that frees its cell: a later atomic may overtake a get. It does
    /// not help that the get is complete before the value is used.
    ///
    /// *Scenario:* 2 nodes, home n0, capacity 1; the queue contains 1. n1: `try_dequeue` gives 3 ∥ n0: `enqueue(2)`,
    /// which gets the freed cell in exchange, `dequeue`, `enqueue(3)` into it.
    QueueFreedUnread = "queue-freed-unread" in "Queue": "No fence between the get of a value and what frees its cell.";

    /// *Missing:* that only one of two consumers takes a value.
    ///
    /// *Scenario:* 2 nodes, home n0; the queue contains 1. n0: `try_dequeue` ∥ n1: `try_dequeue`. Both give 1.
    QueueTakeUnchecked = "queue-take-unchecked" in "Queue":
        "A consumer does not look whether it was who took the value.";

    /// *Missing:* the distinction between the uses of a slot. Needs no reordering.
    ///
    /// *Scenario:* 1 node, capacity 1. `try_enqueue(1)`, `try_dequeue`, `try_enqueue(2)` is false.
    QueueLapKept = "queue-lap-kept" in "Queue": "A slot whose last value is taken stays in its lap.";

    /// *Missing:* that all slots before the hint are filled.
    ///
    /// *Scenario:* 2 nodes, home n0. n1: `enqueue(1)` ∥ n0: `enqueue(2)`, behind the position that n1 has yet to fill;
    /// `try_dequeue` is `None`.
    QueueHintEarly = "queue-hint-early" in "Queue": "The tail is raised before the slot is filled.";

    /// *Missing:* that the cell of a filled slot is not written. Needs no reordering.
    ///
    /// *Scenario:* 1 node, capacity 2. `enqueue(1)`, `enqueue(2)`; `dequeue` gives 2.
    QueueCellKept = "queue-cell-kept" in "Queue": "A producer goes on with the cell that it has given to a slot.";

    /// *Missing:* the hint's `NAW` before the end of the enqueue: the enqueue does not wait for it, and it may never
    /// happen.
    ///
    /// *Scenario:* 2 nodes, home n0. n1: `enqueue(1)`, notifies n0 by another endpoint ∥ n0, once notified:
    /// `try_dequeue` is `None`.
    QueueEmptyByHints = "queue-empty-by-hints" in "Queue": "A consumer says empty when the hints are equal.";

    /// *Missing:* the end of the compare-and-swap before the cell's next use.
    ///
    /// *Scenario:* 2 nodes, home n0, capacity 2. n1: polls `enqueue(1)` until it has posted, drops it, `enqueue(2)`
    /// into the same cell ∥ n0: `dequeue` twice gives 2 and 2.
    QueueDroppedNotSettled = "queue-dropped-not-settled" in "Queue":
        "An enqueue that is dropped gives its cell back while it may still be published.";

    /// *Missing:* a value: neither the queue nor a consumer has it.
    ///
    /// *Scenario:* 2 nodes, home n0; the queue contains 1. n1: polls `dequeue` until it has posted, and drops it; at
    /// the end the queue is empty, and `salvage` too.
    QueueTakenLost = "queue-taken-lost" in "Queue": "The value that a dropped dequeue had taken is thrown away.";

    /// *Missing:* the values: their put was refused, so they are not in their cell, which must not be published.
    ///
    /// *Scenario:* home n1. n0: enqueue, and its put is refused ∥ n1: dequeue, which returns zeros.
    QueueRefusedPublished = "queue-refused-published" in "Queue": "A slot is filled though its values were refused.";

    // ---- Mutex ----

    /// *Missing:* `NRW` of the puts under the lock before the `NAW` of the release, where they are sent to different
    /// nodes. It does not help that the puts were awaited.
    ///
    /// *Scenario:* 2 nodes, home n0, x raw on n1. Each node: `lock`, get x, put x + 1 and wait for the put, `unlock`.
    /// At the end x is 1. Masked where x is on the home: the release flushes there.
    MutexNoFence = "mutex-no-fence" in "Mutex": "`unlock` does not fence.";

    /// *Missing:* as `mutex-no-fence`, for the holder's own node, to which it has put through the loopback.
    ///
    /// *Scenario:* that of `mutex-no-fence`, n1 first: n0's get does not see n1's put to itself, and n1's release does
    /// not flush it.
    MutexFenceSparesSelf = "mutex-fence-spares-self" in "Mutex":
        "`unlock` fences all nodes but its own, not but the home.";

    /// *Missing:* `NRR` of a get under the lock before the `NAR` of the release (remote reads are not ordered), and its
    /// `NLW` before the holder's next actions.
    ///
    /// *Scenario:* 2 nodes, home n0, x raw on n0, cell on n1. n1: `lock`, get x, get x into the cell without waiting,
    /// `unlock`, load the cell ∥ n0: `lock`, put x, `unlock`. The cell differs from the result of the first get.
    MutexReadOvertaken = "mutex-read-overtaken" in "Mutex": "`unlock` does not wait for gets that are under way.";

    /// *Missing:* exclusion. Another thread took the lock between the waiter's poll and its compare-and-swap.
    ///
    /// *Scenario:* 2 nodes, home n0, x raw on n0. n0: `lock`, `unlock`, `lock`, get x, put x + 1, `unlock` ∥ n1: `lock`
    /// (while n0 holds it for the first time: a ticket), get x, put x + 1, `unlock`. At the end x is 1; or both were in
    /// the critical section at once.
    MutexTurnUnchecked = "mutex-turn-unchecked" in "Mutex":
        "A waiter whose turn it is does not look whether it got the lock.";

    /// *Missing:* the bound on waiting. No result is wrong, and a fair schedule ends.
    ///
    /// *Scenario:* 2 nodes, home n0. n0: `lock`. n1: polls `lock` until it has drawn its ticket (its endpoint has then
    /// posted a get), notifies n0, and stops polling. n0, once notified: `unlock`, then `try_lock` and `unlock` 17
    /// times: the 17th succeeds.
    MutexUnboundedBypass = "mutex-unbounded-bypass" in "Mutex": "Newcomers that pass those who wait are not counted.";

    /// *Missing:* atomicity with the others' fetch-and-adds: a ticket that was drawn while the lock was held is erased.
    ///
    /// *Scenario:* 2 nodes, home n0. n0: `lock`, `unlock`, `lock`, `unlock` ∥ n1: `lock`, `unlock`. One of them waits
    /// for ever: n1 draws ticket 0 and is erased, but served; n0 then draws 0 again, and 1 is served.
    MutexReleasedByPut = "mutex-released-by-put" in "Mutex": "`unlock` puts the word that it took, without its holder.";

    /// *Missing:* progress: no waiter takes the ticket of an abandoned operation.
    ///
    /// *Scenario:* 2 nodes, home n0. n0: `lock`, `unlock` ∥ n1: `lock_deadline(now)` (a timeout, if n0 holds it), then
    /// `lock`: waits for ever if n0 still holds it.
    MutexTicketLost = "mutex-ticket-lost" in "Mutex": "A waiter that gives up does not pass its turn on.";

    /// *Missing:* progress: the lock is taken without a holder, or a ticket has no owner.
    ///
    /// *Scenario:* 2 nodes, home n0. n1: polls `lock` once and drops it ∥ n0: `lock` waits for ever.
    MutexDroppedNotUndone = "mutex-dropped-not-undone" in "Mutex":
        "A take or draw whose future is dropped before its completion is not undone.";

    /// *Missing:* nothing of the memory model. A lock that is never released is never free.
    ///
    /// *Scenario:* home n1. n0: lock, unlock, and its fetch-and-add is refused ∥ n1: lock.
    MutexReleaseRefused = "mutex-release-refused" in "Mutex": "A release that is refused is not done later.";

    // ---- KvStore ----

    /// *Missing:* the value's `NRW` before the release's `NAW`. Rule (1).
    ///
    /// *Scenario:* 2 nodes, `locks: 1` (home n0); n1 has inserted k → 1. n0: `update(k, 2)`, notifies n1 by another
    /// endpoint ∥ n1, once notified: `get(k)` is 1. Or n1, once notified: `update(k, 3)`, and at the end k is 2. Masked
    /// where lock and value share a node.
    KvUpdateNoFence = "kv-update-no-fence" in "KvStore": "`update` releases the lock without its fence.";

    /// *Missing:* the distinction between the uses of a slot. Rule (4).
    ///
    /// *Scenario:* 1 node, 2 threads, `slots_per_node: 1`; the store contains k1 → 10. T0: `delete(k1)`, `insert(k2,
    /// 20)` ∥ T1: `get(k1)` is 20: it had looked up the index before the delete. The same with n1 instead of T1.
    KvUsesNotCounted = "kv-uses-not-counted" in "KvStore": "The uses of a slot are not counted.";

    /// *Missing:* that meta and value belong to one use, when they are read at different moments.
    ///
    /// *Scenario:* that of `kv-uses-not-counted`: T1 reads the meta word before the delete, checksum and value after
    /// the insert has written them.
    KvSumUnseeded = "kv-sum-unseeded" in "KvStore": "The checksum does not depend on the slot's use.";

    /// *Missing:* the followers' acknowledgements before the `CW` of valid. Rule (2).
    ///
    /// *Scenario:* 2 nodes, 2 threads on n0. n0/T0: `insert(k, 1)` ∥ n0/T1: `get(k)` is 1, notifies n1 ∥ n1, once
    /// notified: `get(k)` is `None`.
    KvValidEarly = "kv-valid-early" in "KvStore": "`insert` sets valid before the other nodes know the key.";

    /// *Missing:* the cleared meta word before the meta word of the slot's next use. Freeing the slot before the
    /// *acknowledgements* is no bug by itself: the counter covers it (rule (4) is for deletes that are cut short, which
    /// would free the slot twice).
    ///
    /// *Scenario:* 1 node, 2 threads, `slots_per_node: 1`, `locks: 2`, k1 and k2 with different locks; the store
    /// contains k1. T0: `delete(k1)` ∥ T1: `insert(k2, 20)` (an error if there is no slot yet); if it was true,
    /// `get(k2)` is `None` at the end.
    KvFreedFirst = "kv-freed-first" in "KvStore": "`delete` frees the slot before it clears the valid bit.";

    /// *Missing:* the `NRW` of the cleared meta before the trackers' `NRW`s, which use another endpoint. Rule (3).
    ///
    /// *Scenario:* 2 nodes; n1 has inserted k. n0/T0: `delete(k)` ∥ n0/T1: `get(k)` is `None`, notifies n1 by its own
    /// endpoint ∥ n1, once notified: `get(k)` is `Some`. Or, with `slots_per_node: 1`, `locks: 2` and one thread a
    /// node: n0: `delete(k1)` ∥ n1: `insert(k2, 20)` until there is a slot, and at the end `get(k2)` is `None`: the
    /// late put has cleared it.
    KvDeleteNotFlushed = "kv-delete-not-flushed" in "KvStore":
        "`delete` tells the other nodes before the cleared valid bit is visible.";

    /// *Missing:* the retry of a torn value.
    ///
    /// *Scenario:* 2 nodes, `V = u64`; n0 has inserted k → 1. n0: `update(k, 2)` ∥ n1: `get(k)` is `None`. Needs no
    /// delete.
    KvTornIsAbsent = "kv-torn-is-absent" in "KvStore": "`get` takes a torn value for an absent one.";

    /// *Missing:* the check of a torn value.
    ///
    /// *Scenario:* 2 nodes, `V = [u64; 2]`; n0 has inserted k → `[1, 1]`. n0: `update(k, [2, 2])` ∥ n1: `get(k)` is
    /// `[2, 1]` or `[1, 2]`.
    KvSumIgnored = "kv-sum-ignored" in "KvStore": "`get` returns a value whatever its checksum says.";

    /// *Missing:* the follower's index before its acknowledgement.
    ///
    /// *Scenario:* 2 nodes. n0: `insert(k, 1)` is true, notifies n1 ∥ n1, once notified: `get(k)` is `None`.
    KvAckBeforeApply = "kv-ack-before-apply" in "KvStore": "A follower acknowledges a change before it applies it.";

    /// *Missing:* the inserter's own index before valid. Rule (2), where "every index" is misread as the others'.
    ///
    /// *Scenario:* 2 nodes. n0/T0: `insert(k, 1)` ∥ n1: `get(k)` is 1, notifies n0/T1 ∥ n0/T1, once notified: `get(k)`
    /// is `None`.
    KvOwnIndexLast = "kv-own-index-last" in "KvStore":
        "`insert` enters the key into its own node's index after it has set valid.";

    /// *Missing:* the order of changes of a key, which the lock provides. Trackers of different writers are not
    /// ordered.
    ///
    /// *Scenario:* 2 nodes. n0: polls `insert(k, 1)` until it has sent its message, and drops it ∥ n1: `insert(k, 2)`
    /// is true; at the end n1's `get(k)` is `None`: its service thread has applied n0's insert and removal only now,
    /// over its own entry.
    KvReleasedBeforeDropped = "kv-released-before-dropped" in "KvStore":
        "An insert that is undone releases its key before all nodes have dropped it.";

    /// *Missing:* the `NRW`s of the user's endpoint before those of the service thread's, to the same slot.
    ///
    /// *Scenario:* 2 nodes, `Placement::Hash`, `slots_per_node: 2` (n0 hands out one slot of n1), k1 and k2 placed on
    /// n1. n0/T0: polls `insert(k1, 1)` until it has sent its message and drops it ∥ n0/T1: `insert(k2, 2)` until there
    /// is a slot; at the end `get(k2)` is `None`, or never whole: T0's puts landed after it.
    KvHandOverUnfenced = "kv-hand-over-unfenced" in "KvStore":
        "An insert that is cut short is handed to the service thread with its puts still under way.";

    /// *Missing:* the agreement on a dead node's messages. A message that reached only some survivors is not completed
    /// elsewhere, and an operation under its locks may still be in flight.
    ///
    /// *Scenario:* `kv/dies`.
    KvDeadNotSettled = "kv-dead-not-settled" in "KvStore": "Moved locks, and those of the dead, are used at once.";

    /// *Missing:* the repair after a dead holder: an insert that never took effect stays in every index.
    ///
    /// *Scenario:* `kv/dies-by-hash`.
    KvDeadNotRepaired = "kv-dead-not-repaired" in "KvStore": "What a dead holder has left half-done stays.";

    /// *Missing:* a copy from which a value can be restored after its put was cut short.
    ///
    /// *Scenario:* `kv/dies`.
    KvNotRedone = "kv-not-redone" in "KvStore": "A value that its writer's death tore stays torn."
;

    // ---- locks for asymmetric memory ----

    /// *Missing:* the holder's `NRW` to a node before the release's `NAW` on another: only a get from the first node
    /// guarantees that.
    ///
    /// *Scenario:* `spin/release`.
    SpinNoFence = "spin-no-fence" in "SpinLockArray": "`unlock` does not fence.";

    /// *Missing:* that the lock is taken from a dead holder.
    ///
    /// *Scenario:* `spin/holder-dies`.
    SpinHolderKept = "spin-holder-kept" in "SpinLockArray": "A lock stays with a holder that is dead.";

    /// *Missing:* as in [`Mutant::SpinNoFence`].
    ///
    /// *Scenario:* `alock/release`.
    AlockNoFence = "alock-no-fence" in "ALock": "`unlock` does not fence.";

    /// *Missing:* `CW → MF → CR`: the local head reads the remote tail before its victim is in memory.
    ///
    /// *Scenario:* `alock/cohorts`.
    AlockVictimUnfenced = "alock-victim-unfenced" in "ALock": "The local head looks without a fence after it has named the victim.";

    /// *Missing:* the budget of a thread that competes again: it falls below zero, and the cohort keeps the lock.
    ///
    /// *Scenario:* `alock/remote-budget`.
    AlockBudgetNotReset = "alock-budget-not-reset" in "ALock": "Who competes again keeps the budget that it was granted.";

    /// *Missing:* the victim of a thread that competes again: it is still the other cohort's, so no other thread gets
    /// the lock.
    ///
    /// *Scenario:* `alock/remote-budget`.
    AlockVictimNotSet = "alock-victim-not-set" in "ALock": "Who competes again names no victim.";

    /// *Missing:* atomicity: a CPU's compare-and-swap occurs between `NAR` and `NAW` of a remote one.
    ///
    /// *Scenario:* `alock/cohorts`.
    AlockWrongCohort = "alock-wrong-cohort" in "ALock": "Local operations enter the remote queue, by the CPU.";

    /// *Missing:* the victim's `NRW` before the `NAW` by which its operation gives up the head, on another queue pair.
    ///
    /// *Scenario:* `alock/late-victim`.
    AlockVictimLate = "alock-victim-late" in "ALock": "An operation that is dropped does not wait until its victim has landed.";

    /// *Missing:* as in [`Mutant::SpinNoFence`].
    ///
    /// *Scenario:* `mcs/release`.
    McsNoFence = "mcs-no-fence" in "McsLockArray": "`unlock` does not fence.";

    /// *Missing:* `NRW` of a put to the thread's own node before the store of the grant: a put is ordered before a put,
    /// not before a `CW`.
    ///
    /// *Scenario:* `mcs/neighbours`.
    McsSparesOwnNode = "mcs-spares-own-node" in "McsLockArray": "A grant by a store spares its node, as one by a put does.";

    /// *Missing:* the grant: a releasing holder does not know its successor.
    ///
    /// *Scenario:* `alock/remote-queue`.
    McsNotTold = "mcs-not-told" in "McsLockArray": "Who enqueues does not tell the one before it.";

    /// *Missing:* the grant of an operation that its caller no longer awaits.
    ///
    /// *Scenario:* `alock/deadline`.
    McsDroppedKept = "mcs-dropped-kept" in "McsLockArray": "An operation that is dropped keeps its place in the queue.";

    /// *Missing:* that the chain that contains the tail claims last: it empties the tail while another is stuck.
    ///
    /// *Scenario:* `mcs/stuck-twice`.
    McsTailFirst = "mcs-tail-first" in "McsLockArray": "Of several stuck entries any may claim the head.";

    /// *Missing:* that no live node is at the head.
    ///
    /// *Scenario:* `alock/waiter-dies`.
    McsClaimsBlindly = "mcs-claims-blindly" in "McsLockArray": "Who is behind a dead operation claims the head without a look at the others.";

    /// *Missing:* that an entry's predecessor and its grant are read from the same use of its descriptor.
    ///
    /// *Scenario:* `mcs/used-again`.
    McsSurveyTorn = "mcs-survey-torn" in "McsLockArray": "Who looks at the others reads how they stand before the rest, not after it.";

    /// *Missing:* that a refused operation has no effect: each attempt keeps a descriptor for good.
    ///
    /// *Scenario:* `mcs/home-cut`.
    McsAsksAgain = "mcs-asks-again" in "McsLockArray": "Who cannot reach the lock's node tries to enqueue nevertheless.";

    // ---- Transactions ----

    /// *Missing:* an order of all locks: each of two transactions waits for the other's. Needs no reordering.
    ///
    /// *Scenario:* `transactions/transfers`.
    TransactionsUnordered = "transactions-unordered" in "Transactions": "Locks are taken in the order in which the cells are named.";

    // ---- Joining ----

    /// *Missing:* the answer that connects the last node to open an object. Needs no reordering.
    ///
    /// *Scenario:* 2 nodes. n0 opens, then n1 does: n1 is never connected.
    JoinNotAnswered = "join-not-answered" in "Joining": "A join is not answered.";

    /// *Missing:* the announcement of objects that were opened before the peer was known.
    ///
    /// *Scenario:* 2 nodes. n0 and n1 start, and open before either has learned of the other: neither is ever
    /// connected.
    JoinLateNotAnnounced = "join-late-not-announced" in "Joining": "What is open is not announced to a node that comes.";

    /// *Missing:* the opening that a message belongs to. This was a bug: the checker found it.
    ///
    /// *Scenario:* 2 nodes open at once, so that each is connected by the other's join. They drop the object, notify
    /// each other, and open it again. An answer to the first join is still in flight, and connects to freed memory.
    JoinLateAnswerTaken = "join-late-answer-taken" in "Joining": "A message of an opening before is taken for one of this.";

    // ---- Reopening ----

    /// *Missing:* that all live members have opened the generation before one of them returns. Needs no reordering.
    ///
    /// *Scenario:* 3 nodes reopen a path; n2 opens it and dies. n0 is connected to n2, and returns; n1 is not, and calls for the
    /// next generation, for which it waits in vain.
    ReopenUncommitted = "reopen-uncommitted" in "Reopening": "A node returns before the others have opened the generation.";

    /// *Missing:* that a node takes part in a generation that the others know and it does not.
    ///
    /// *Scenario:* 3 nodes; n0 and n1 have reopened a path once, and reopen it with n2.
    ReopenGenerationOwn = "reopen-generation-own" in "Reopening": "Each node counts generations for itself.";

    // ---- deaths ----

    /// *Missing:* the eviction by the others. The evicted node has no access to the memory of the recovering node, but
    /// still to that of a third node.
    ///
    /// *Scenario:* 3 nodes, a cut. n1 holds a lock on n0, puts to n0 and n2, and is cut off; the others take the lock
    /// from it; the cut heals, and n1's puts land.
    MembershipOwnShutOut = "membership-own-shut-out" in "Membership": "A node does not wait until the others have shut out the dead.";

    /// *Missing:* that any two quorums intersect.
    ///
    /// *Scenario:* 2 nodes, a cut: each removes the other, and continues.
    MembershipAnyHalf = "membership-any-half" in "Membership": "Any half of the members is a quorum.";

    /// *Missing:* the end of a node before the next node of its place begins.
    ///
    /// *Scenario:* 3 places. n3 starts as the second node of the place of n0, and belongs to the session beside n0.
    MembershipLetInEarly = "membership-let-in-early" in "Membership": "A node is let in though the life before it goes on.";

    /// *Missing:* the message with a decision. This was a bug: the checker found it.
    ///
    /// *Scenario:* 4 nodes. n3 leaves: it is the first to learn of its departure, and exits. n0 dies. Of the four
    /// members that the others still count, two are left: never again a quorum.
    MembershipGoesInSilence = "membership-goes-in-silence" in "Membership": "Who leaves does not tell the others what was decided.";

    /// *Missing:* that a fenced node has no vote: the others count on it. This was a bug: the checker found it.
    ///
    /// *Scenario:* 3 nodes. n0 dies; n2 reaches no node, and is fenced; n1 waits for n2's vote for ever.
    MembershipFencedInSilence = "membership-fenced-in-silence" in "Membership": "A node that is fenced does not tell the others.";

    /// *Missing:* the mark of a lock taken after a death.
    ///
    /// *Scenario:* 3 nodes. n1 dies in the middle of writing a pair under a lock; n0 or n2 takes the lock, and takes
    /// the pair to be whole.
    MutexDeathUnmarked = "mutex-death-unmarked" in "Mutex": "A lock is taken from a dead holder without a mark.";

    /// *Missing:* visibility of puts to a node that does not answer. This was a bug: the checker found it.
    ///
    /// *Scenario:* 3 nodes, a cut between n1 and the others. n1 has put to n2 under the lock, on n0; its transport
    /// gives up on n2 only; the cut heals, and n1 releases the lock. n0 takes it and reads from n2.
    MutexReleasedUndecided = "mutex-released-undecided" in "Mutex": "A lock is released though the fence has failed at a node that does not answer.";

    /// *Missing:* progress of the waiters behind a dead one.
    ///
    /// *Scenario:* 3 nodes. n1 draws a ticket and dies.
    MutexTurnKept = "mutex-turn-kept" in "Mutex": "Nobody passes over the turn of a dead waiter.";

    /// *Missing:* progress of the readers besides a dead one.
    ///
    /// *Scenario:* 3 nodes. n0 sends more than fits into the ring; n1 dies, and n2 gets no more.
    RingDeadReaderAwaited = "ring-dead-reader-awaited" in "RingBuffer": "The writer waits for the room of a dead reader.";

    /// *Missing:* that all participants open an object among the same nodes.
    ///
    /// *Scenario:* 3 nodes; n2 dies. n1 knows it, and opens an object with n0. It is connected to the object that n0,
    /// which does not know it, has opened with n2, too. n0 learns of the death and opens the object anew.
    JoinEpochUnchecked = "join-epoch-unchecked" in "Joining": "A join or an answer of another epoch is accepted.";

    /// *Missing:* that a node that joins an open object uses the memory of its home.
    ///
    /// *Scenario:* 2 places; n0 dies. Its successor joins a variable whose home is n1; n1 closes it, and the successor
    /// finds the word freed.
    JoinReturnedUntold = "join-returned-untold" in "Joining": "A node that has returned does not count among those that an object is open on.";

    // ---- Closing ----

    /// *Missing:* that other nodes that have the object open use this node's memory.
    ///
    /// *Scenario:* 2 nodes have an object open. n0 drops it ∥ n1: gets n0's word, which is freed.
    ClosingFreedEarly = "closing-freed-early" in "Closing": "Memory is given back before the others have closed the object.";

    /// *Missing:* a suspected node, or a dead one that is not yet evicted, may be alive and at work.
    ///
    /// *Scenario:* 3 nodes have an object open; n0 suspects n2, and closes it. n2, which has it open, finds n0's memory
    /// freed.
    ClosingSuspectNotAwaited = "closing-suspect-not-awaited" in "Closing":
        "A node that is suspected, or dead and not shut out, is not waited for.";

    /// *Missing:* the opening that a release belongs to.
    ///
    /// *Scenario:* 2 nodes open an object, close it, and open it again. n1's second release crosses the new opening: n0
    /// closes the new object, and frees its memory while n1 uses it.
    ClosingLateTaken = "closing-late-taken" in "Closing": "A release that is late counts for a later opening.";
}

impl FromStr for Mutant {
    type Err = Error;

    fn from_str(name: &str) -> crate::Result<Mutant> {
        let found = Mutant::ALL.iter().find(|mutant| mutant.name() == name);
        found.copied().ok_or_else(|| ErrorKind::Config { why: format!("unknown mutant `{name}`") }.into())
    }
}

impl core::fmt::Display for Mutant {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

// Cargo unites the features of all packages that one command builds, and tests and examples of the workspace enable
// this one. So the switch also requires debug assertions: a release build never has seeded bugs.
#[cfg(all(feature = "mutants", debug_assertions))]
mod switch {
    #![allow(clippy::disallowed_types, reason = "a session under the simulator is one thread, and has one mutant")]

    use core::cell::Cell;

    use super::Mutant;

    thread_local! {
        static ON: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    pub(super) fn set(mutant: Option<Mutant>) -> bool {
        ON.set(mutant);
        true
    }

    /// Whether a mutant is on.
    #[inline]
    pub(crate) fn is_on(mutant: Mutant) -> bool {
        ON.get() == Some(mutant)
    }
}

#[cfg(not(all(feature = "mutants", debug_assertions)))]
mod switch {
    use super::Mutant;

    pub(super) fn set(mutant: Option<Mutant>) -> bool {
        mutant.is_none()
    }

    /// Whether a mutant is on: never, without the feature.
    #[inline(always)]
    pub(crate) const fn is_on(_: Mutant) -> bool {
        false
    }
}

pub(crate) use switch::is_on;

/// Switches one mutant on, or all off, for this thread of the operating system from now on.
///
/// # Errors
/// The program was built without mutants.
pub fn enable(mutant: Option<Mutant>) -> crate::Result<()> {
    if switch::set(mutant) {
        return Ok(());
    }
    let why = "this program has no mutants: build it with the feature `farfield/mutants`, and not for release".into();
    Err(ErrorKind::Config { why }.into())
}

// ---- code of some mutants that is longer than a line -------------------------------------------------------------
//
// These functions block: an `await` in the calling futures would enlarge those, on or off.

/// [`Mutant::AtomicAddByPut`].
pub(crate) fn add_by_put(endpoint: &Endpoint, word: RemotePtr<u64>, addend: u64) -> Result<u64> {
    let old = endpoint.get(word).wait()?;
    endpoint.put_value(word, old.wrapping_add(addend)).wait()?;
    Ok(old)
}

/// Whether an `OwnedVar` with guards is pulled by [`pull`].
pub(crate) fn pulls() -> bool {
    is_on(Mutant::OwnedPullForward) || is_on(Mutant::OwnedPullAtOnce)
}

/// [`Mutant::OwnedPullForward`] and [`Mutant::OwnedPullAtOnce`]: the value, if the guards are equal.
pub(crate) fn pull<T: Plain>(endpoint: &Endpoint, from: RemotePtr<u64>) -> Result<Option<T>> {
    let (trail_at, value_at) = (from.at(1 + size_of::<T>() / 8), from.at(1).cast::<T>());
    let buf = endpoint.buf::<T>(1)?;
    let (trail, value, lead) = if is_on(Mutant::OwnedPullForward) {
        let lead = endpoint.get(from).wait()?;
        let value = endpoint.get_into(value_at, buf).wait()?;
        (endpoint.get(trail_at).wait()?, value, lead)
    } else {
        let (trail, value, lead) = (endpoint.get(trail_at), endpoint.get_into(value_at, buf), endpoint.get(from));
        (trail.wait()?, value.wait()?, lead.wait()?)
    };
    Ok((lead == trail).then(|| value[0]))
}

/// [`Mutant::OwnedPushLive`]: lead, value, trail, with the contents of the cells when each is read.
pub(crate) fn push_live(endpoint: &Endpoint, to: RemotePtr<u64>, copy: &Region, words: usize) -> Result<()> {
    endpoint.put_live(to, copy.span(0, 8)).detach()?;
    endpoint.put_live(to.at(1), copy.span(8, words * 8)).detach()?;
    endpoint.put_live(to.at(1 + words), copy.span(8 + words * 8, 8)).detach()
}

/// [`Mutant::MutexReleasedByPut`]: puts the word as it was `taken`, without its holder. Returns the word before that,
/// as a fetch-and-add does.
pub(crate) fn release_by_put(endpoint: &Endpoint, word: RemotePtr<u64>, taken: u64, holder: u64) -> Result<u64> {
    endpoint.put_value(word, taken.wrapping_sub(holder)).wait()?;
    Ok(taken)
}

#[cfg(all(test, feature = "mutants", debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn names_are_kebab_case_begin_with_the_object_and_lead_back() {
        let vars = ["AtomicVar", "SharedVar", "OwnedVar"];
        let others =
            ["Barrier", "RingBuffer", "Queue", "Mutex", "KvStore", "Joining", "Reopening", "Closing", "Membership"];
        let systems = ["ALock", "SpinLockArray", "McsLockArray", "Transactions"];
        for mutant in Mutant::ALL {
            let name = mutant.name();
            assert_eq!(name.parse::<Mutant>().unwrap(), *mutant);
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{name}");
            let objects = [&vars[..], &others, &systems].concat();
            assert!(objects.contains(&mutant.object()), "{name}");
            let first = name.split('-').next().unwrap();
            assert!(mutant.object().to_ascii_lowercase().starts_with(first), "{name}");
            let camel: String = name.split('-').map(|part| part[..1].to_ascii_uppercase() + &part[1..]).collect();
            assert_eq!(format!("{mutant:?}"), camel);
        }
        assert!("barrier".parse::<Mutant>().is_err());
    }

    #[test]
    fn one_is_on_at_a_time_and_in_this_thread_only() {
        enable(Some(Mutant::BarrierNoFence)).unwrap();
        assert!(is_on(Mutant::BarrierNoFence) && !is_on(Mutant::RingHeadFirst));
        enable(None).unwrap();
        assert!(!is_on(Mutant::BarrierNoFence));
    }
}
