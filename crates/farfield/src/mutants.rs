//! Seeded bugs: what must be found before a checker of these objects can be trusted.
//!
//! Each [`Mutant`] is a switch at the place where the bug would be made: `if mutants::is_on(Mutant::…)`. Without the
//! feature `mutants`, or without debug assertions, the switch is the constant `false`, and nothing of it is left in the
//! program: no release build has seeded bugs. The feature is for tests of the checker only.
//!
//! Every mutant is documented by what it breaks, the order that is missing then (stamps as in the model: `CR` and `CW`
//! are the CPU's reads and writes, `NLR → NRW` the halves of a put, `NRR → NLW` those of a get), and the smallest
//! scenario known to show it. In the scenarios `n0`, `n1` … are nodes; `T0`, `T1` are threads of one node where it has
//! several; `∥` stands between what runs at the same time; "raw" is a word of [`Node::alloc`](crate::Node::alloc) that
//! is put and got by the endpoint. One thread on each node unless it says otherwise.

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

            /// What is wrong with it, in a line.
            pub fn breaks(self) -> &'static str {
                match self { $(Mutant::$mutant => $breaks),+ }
            }
        }
    };
}

mutants! {
    // ---- AtomicVar ----

    /// *Missing:* atomicity. A put is not atomic with the others' atomics: another's `NAR → NAW` lies between this
    /// get's `NRR` and this put's `NRW`.
    ///
    /// *Scenario:* 2 nodes, home n0. n0: `fetch_add(1)` ∥ n1: `fetch_add(1)`. Both return 0; or, at the end,
    /// `load() != 2`.
    AtomicAddByPut = "atomic-add-by-put" in "AtomicVar": "The home node's `fetch_add` is a get and a put.";

    /// *Missing:* a completed put is not visible (`pfp` is in `ib` only), and it may land between the halves of an
    /// atomic.
    ///
    /// *Scenario:* 2 nodes, home n0. n1: `store(5)`, tells n0 through another endpoint (its own would flush) ∥ n0, once
    /// told: `load()` is 0. Or n1: `store(5)` ∥ n0: `fetch_add(1)`, and at the end `load()` is 1.
    AtomicStoreByPut = "atomic-store-by-put" in "AtomicVar": "`store` is a put.";

    // ---- SharedVar ----

    /// *Missing:* `NRW` before what follows the fence. A remote fence waits for earlier writes to start (cell G10), not
    /// for them to be seen; only a get (`NRW → NRR`) says that.
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

    /// *Missing:* as `owned-load-forward`, with gets: each is waited for, the order is the wrong one.
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

    /// *Missing:* the others' copies of what was pushed.
    ///
    /// *Scenario:* 3 nodes, owner n0. n1 dies; `push` says so, and n2 does not get it.
    OwnedPushEndsAtDead = "owned-push-ends-at-dead" in "OwnedVar": "`push` ends at the first node that is gone.";

    /// *Missing:* that a torn copy whose owner is gone stays torn.
    ///
    /// *Scenario:* 2 nodes, owner n0, `T = [u64; 2]`, guards. n0 dies in the middle of a push. n1: `load()` ends in a
    /// timeout that names nobody.
    OwnedDeadAwaited = "owned-dead-awaited" in "OwnedVar": "`load` waits for a whole value of a dead owner.";

    // ---- Barrier ----

    /// *Missing:* `GF_n` before the count, for all n: LOCO appendix D, Fig. 22.
    ///
    /// *Scenario:* 3 nodes, z raw on n1 (or a `SharedVar`). n0: put z := 1 at n1, `wait` ∥ n1: `wait` ∥ n2: `wait`, get
    /// z from n1 is 0. Masked with two nodes of one thread, since data and count then go to the same node; not with two
    /// threads a node (see `barrier-fence-from-one`).
    BarrierNoFence = "barrier-no-fence" in "Barrier": "`wait` does not fence (Fig. 22).";

    /// *Missing:* as `barrier-no-fence`. The fence is there and is waited for, but it comes after the count's `NRW`.
    ///
    /// *Scenario:* that of `barrier-no-fence`. n0 itself passes only after its fence; n2 does not wait for that.
    BarrierFenceLate = "barrier-fence-late" in "Barrier": "`wait` fences after it has sent its count.";

    /// *Missing:* `GF_0` before the count. A loop from 1, or over the "other" nodes as seen from node 0.
    ///
    /// *Scenario:* 3 nodes, z raw on n0. n1: put z := 1 at n0, `wait` ∥ n0: `wait` ∥ n2: `wait`, get z from n0 is 0. Or
    /// 2 nodes of 2 threads: n1/T0 puts, n1/T1 gets. Masked where only n0 itself looks (`NRW → NRW`).
    BarrierFenceFromOne = "barrier-fence-from-one" in "Barrier": "`wait` fences all nodes but node 0.";

    /// *Missing:* `so` from one participant's `GF` to the others' `CR`.
    ///
    /// *Scenario:* 2 nodes. n1: put x := 1 at n0, `wait` ∥ n0: `wait`, x is 0.
    BarrierLastRow = "barrier-last-row" in "Barrier": "`wait` looks at all rows but the last.";

    /// *Missing:* as `barrier-last-row`, for everybody; each round lets pass who has to wait for the round before only.
    ///
    /// *Scenario:* that of `barrier-last-row`, in the first round already.
    BarrierRoundEarly = "barrier-round-early" in "Barrier": "`wait` is content with the others' last round.";

    /// *Missing:* the count of who waits again: its fence had timed out, for a node that was cut off, and it had not arrived. It
    /// finds all in the round before.
    ///
    /// *Scenario:* 3 nodes, node 2 is cut off. All put to all, `wait`, `wait_again` after a timeout; what was put is missing.
    BarrierAgainUnarrived = "barrier-again-unarrived" in "Barrier": "`wait_again` does not arrive after a wait that had not.";

    /// *Missing:* nothing of the memory model. A node that was not told waits for ever.
    ///
    /// *Scenario:* 2 nodes. n0: `wait`, whose put is refused ∥ n1: `wait`.
    BarrierToldOnce = "barrier-told-once" in "Barrier": "A node that could not be told of an arrival is not told again.";

    // ---- RingBuffer ----

    /// *Missing:* `NRW → NRW`: the message before its head.
    ///
    /// *Scenario:* 2 nodes, writer n0, capacity 64. n0: `try_send(8 bytes of 1)` ∥ n1: `try_recv` gives an empty
    /// message, or one of zeros.
    RingHeadFirst = "ring-head-first" in "RingBuffer": "The head is put before the message.";

    /// *Missing:* as `ring-head-first`, for the part of a message that lies at the beginning of the ring.
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

    /// *Missing:* room: the last message takes 8 bytes that the slowest reader has not read. No reordering is needed.
    ///
    /// *Scenario:* 2 nodes, writer n0, capacity 64. n0: `try_send` of 24 bytes, of 24 bytes, of none: the third is true
    /// although nothing was received, and overwrites the first's length. n1: `recv` thrice: the first is empty.
    RingRoomForgetsHeader = "ring-room-forgets-header" in "RingBuffer":
        "The room that a message needs is counted without its length word.";

    /// *Missing:* the reader's `CR` of the message before the writer's `CW` of the next, which the acknowledgement
    /// orders.
    ///
    /// *Scenario:* 2 nodes, writer n0, capacity 64. n0: `send(32 bytes of 1)`, `send(32 bytes of 2)` ∥ n1: `recv` gives
    /// 2s among the 1s (the second message wraps around over the first's length and first word).
    RingAckBeforeRead = "ring-ack-before-read" in "RingBuffer":
        "A reader acknowledges a message before it has copied it.";

    /// *Missing:* as `ring-ack-before-read`, for all readers but the fastest.
    ///
    /// *Scenario:* 2 nodes, writer n0, one reader on each, capacity 64. n0: `try_send(32 bytes of 1)`, `try_recv`,
    /// `try_send(32 bytes of 2)` is true ∥ n1: `recv` gives 2s, or an error. No reordering is needed. (`send` waits for
    /// all readers by another way, so it takes `try_send`.)
    RingFastestReader = "ring-fastest-reader" in "RingBuffer": "The room is that of the fastest reader.";

    /// *Missing:* the reader's `CR → CR` order: head before message.
    ///
    /// *Scenario:* that of `ring-head-first`.
    RingLengthBeforeHead = "ring-length-before-head" in "RingBuffer": "A reader reads the length before the head.";

    /// *Missing:* credits that never shrink. A matter of liveness: nothing false is received.
    ///
    /// *Scenario:* 2 nodes, writer n0, capacity 64. n0: `send(32 bytes)` thrice: the third times out ∥ n1: `recv`
    /// thrice.
    RingCreditModulo = "ring-credit-modulo" in "RingBuffer":
        "A reader acknowledges an offset in the ring, not a position.";

    /// *Missing:* a put that was refused is not there: the head must not follow it.
    ///
    /// *Scenario:* a reader on n0, one on n1; the put of the message to n1 is refused. n1 sees the head, and zeros.
    RingHeadOverHole = "ring-head-over-hole" in "RingBuffer": "The head is put though the message was refused.";

    /// *Missing:* `NRW → NRW`. What a copy lacks has to land before the head that covers it, as when it is sent first.
    ///
    /// *Scenario:* as before; the next call puts what n1 lacks. n1 sees the head before the message.
    RingRepairHeadFirst = "ring-repair-head-first" in "RingBuffer":
        "A copy that is behind gets the head before what it lacks.";

    /// *Missing:* nothing of the memory model. Who waits for readers waits for ever if one of them was not sent the message.
    ///
    /// *Scenario:* as before; n0 waits until all have read the message.
    RingBehindForgotten = "ring-behind-forgotten" in "RingBuffer": "A copy that was refused a message does not get it later.";

    /// *Missing:* nothing of the memory model. A message that no head tells of must not be said to be sent.
    ///
    /// *Scenario:* one reader, on n1; the put of the message is refused. `try_send` says that it was sent, and n1 waits.
    RingRefusedSent = "ring-refused-sent" in "RingBuffer": "A message that was refused everywhere is said to be sent.";

    /// *Missing:* nothing of the memory model. The writer waits for room that no reader gives back again.
    ///
    /// *Scenario:* capacity 64, a message of 48 bytes is in the ring. n1 receives it, and its acknowledgement is refused; it
    /// looks for another ∥ n0: send a message.
    RingAckOnce = "ring-ack-once" in "RingBuffer": "An acknowledgement that was refused is not put again.";

    // ---- Queue ----

    /// *Missing:* `NRW` of the values before the `NAW` that publishes them.
    ///
    /// *Scenario:* 2 nodes, home n0. n1: `enqueue(1)` ∥ n0: `try_dequeue` gives what the cell held before.
    QueuePublishedFirst = "queue-published-first" in "Queue": "A slot is filled before its values are put.";

    /// *Missing:* `NRR` of the value before the `NAW` that frees its cell: a later atomic may overtake a get. That the
    /// get is complete before the value is used does not help.
    ///
    /// *Scenario:* 2 nodes, home n0, capacity 1; 1 is there. n1: `try_dequeue` gives 3 ∥ n0: `enqueue(2)`, which gets
    /// the freed cell in exchange, `dequeue`, `enqueue(3)` into it.
    QueueFreedUnread = "queue-freed-unread" in "Queue": "No fence between the get of a value and what frees its cell.";

    /// *Missing:* that one of two consumers takes a value.
    ///
    /// *Scenario:* 2 nodes, home n0; 1 is there. n0: `try_dequeue` ∥ n1: `try_dequeue`. Both give 1.
    QueueTakeUnchecked = "queue-take-unchecked" in "Queue":
        "A consumer does not look whether it was who took the value.";

    /// *Missing:* what tells the uses of a slot apart. No reordering is needed.
    ///
    /// *Scenario:* 1 node, capacity 1. `try_enqueue(1)`, `try_dequeue`, `try_enqueue(2)` is false.
    QueueLapKept = "queue-lap-kept" in "Queue": "A slot whose last value is taken stays in its lap.";

    /// *Missing:* that all before the hint is filled.
    ///
    /// *Scenario:* 2 nodes, home n0. n1: `enqueue(1)` ∥ n0: `enqueue(2)`, behind the position that n1 has yet to fill;
    /// `try_dequeue` is `None`.
    QueueHintEarly = "queue-hint-early" in "Queue": "The tail is raised before the slot is filled.";

    /// *Missing:* that nobody writes to the cell of a filled slot. No reordering is needed.
    ///
    /// *Scenario:* 1 node, capacity 2. `enqueue(1)`, `enqueue(2)`; `dequeue` gives 2.
    QueueCellKept = "queue-cell-kept" in "Queue": "A producer goes on with the cell that it has given to a slot.";

    /// *Missing:* the hint's `NAW` before the end of the enqueue: it is not waited for, and need not come at all.
    ///
    /// *Scenario:* 2 nodes, home n0. n1: `enqueue(1)`, tells n0 by another endpoint ∥ n0, once told: `try_dequeue` is
    /// `None`.
    QueueEmptyByHints = "queue-empty-by-hints" in "Queue": "A consumer says empty when the hints are equal.";

    /// *Missing:* the end of the compare-and-swap before the cell's next use.
    ///
    /// *Scenario:* 2 nodes, home n0, capacity 2. n1: polls `enqueue(1)` until it has posted, drops it, `enqueue(2)`
    /// into the same cell ∥ n0: `dequeue` twice gives 2 and 2.
    QueueDroppedNotSettled = "queue-dropped-not-settled" in "Queue":
        "An enqueue that is dropped gives its cell back while it may still be published.";

    /// *Missing:* a value: it is neither in the queue nor with anybody.
    ///
    /// *Scenario:* 2 nodes, home n0; 1 is there. n1: polls `dequeue` until it has posted, and drops it; at the end the
    /// queue is empty, and `salvage` too.
    QueueTakenLost = "queue-taken-lost" in "Queue": "The value that a dropped dequeue had taken is thrown away.";

    /// *Missing:* values that were refused are not in their cell: it must not be published.
    ///
    /// *Scenario:* home n1. n0: enqueue, whose put is refused ∥ n1: dequeue. It gets zeros.
    QueueRefusedPublished = "queue-refused-published" in "Queue": "A slot is filled though its values were refused.";

    // ---- Mutex ----

    /// *Missing:* `NRW` of what was put under the lock before the `NAW` of the release, where they go to different
    /// nodes. That the puts were waited for does not help.
    ///
    /// *Scenario:* 2 nodes, home n0, x raw on n1. Each node: `lock`, get x, put x + 1 and wait for the put, `unlock`.
    /// At the end x is 1. Masked where x lies on the home: the release flushes there.
    MutexNoFence = "mutex-no-fence" in "Mutex": "`unlock` does not fence.";

    /// *Missing:* as `mutex-no-fence`, for the holder's own node, where it has put through the loopback.
    ///
    /// *Scenario:* that of `mutex-no-fence`, n1 first: n1's put to itself is seen neither by n0's get nor flushed by
    /// n1's release.
    MutexFenceSparesSelf = "mutex-fence-spares-self" in "Mutex":
        "`unlock` fences all nodes but its own, not but the home.";

    /// *Missing:* `NRR` of a get under the lock before the `NAR` of the release (remote reads are not ordered), and its `NLW`
    /// before what the holder does next.
    ///
    /// *Scenario:* 2 nodes, home n0, x raw on n0, cell on n1. n1: `lock`, get x, get x into the cell without waiting,
    /// `unlock`, load the cell ∥ n0: `lock`, put x, `unlock`. The cell is not what the first get has brought.
    MutexReadOvertaken = "mutex-read-overtaken" in "Mutex": "`unlock` does not wait for gets that are under way.";

    /// *Missing:* exclusion. A newcomer took the lock between the waiter's look and its compare-and-swap.
    ///
    /// *Scenario:* 2 nodes, home n0, x raw on n0. n0: `lock`, `unlock`, `lock`, get x, put x + 1, `unlock` ∥ n1: `lock`
    /// (while n0 holds it for the first time: a ticket), get x, put x + 1, `unlock`. At the end x is 1; or both were
    /// inside at once.
    MutexTurnUnchecked = "mutex-turn-unchecked" in "Mutex":
        "A waiter whose turn it is does not look whether it got the lock.";

    /// *Missing:* the bound on waiting. Nothing false happens, and a fair schedule ends.
    ///
    /// *Scenario:* 2 nodes, home n0. n0: `lock`. n1: polls `lock` until it has drawn its ticket (its endpoint has then
    /// posted a get), says so, and stops polling. n0, once told: `unlock`, then `try_lock` and `unlock` 17 times: the
    /// 17th succeeds.
    MutexUnboundedBypass = "mutex-unbounded-bypass" in "Mutex": "Newcomers that pass those who wait are not counted.";

    /// *Missing:* atomicity with the others' fetch-and-adds: a ticket that was drawn while the lock was held is erased.
    ///
    /// *Scenario:* 2 nodes, home n0. n0: `lock`, `unlock`, `lock`, `unlock` ∥ n1: `lock`, `unlock`. One of them waits
    /// for ever: n1 draws ticket 0 and is erased, but served; n0 then draws 0 again, and 1 is served.
    MutexReleasedByPut = "mutex-released-by-put" in "Mutex": "`unlock` puts the word that it took, without its holder.";

    /// *Missing:* progress: the turn of an operation that is gone goes to nobody.
    ///
    /// *Scenario:* 2 nodes, home n0. n0: `lock`, `unlock` ∥ n1: `lock_deadline(now)` (a timeout, if n0 holds it), then
    /// `lock`: waits for ever if n0 still holds it.
    MutexTicketLost = "mutex-ticket-lost" in "Mutex": "A waiter that gives up does not pass its turn on.";

    /// *Missing:* progress: the lock is held by nobody, or a ticket has no owner.
    ///
    /// *Scenario:* 2 nodes, home n0. n1: polls `lock` once and drops it ∥ n0: `lock` waits for ever.
    MutexDroppedNotUndone = "mutex-dropped-not-undone" in "Mutex":
        "A take or draw whose future is dropped before its completion is not undone.";

    /// *Missing:* nothing of the memory model. A lock that nobody releases is never free.
    ///
    /// *Scenario:* home n1. n0: lock, unlock, whose fetch-and-add is refused ∥ n1: lock.
    MutexReleaseRefused = "mutex-release-refused" in "Mutex": "A release that is refused is not done later.";

    // ---- KvStore ----

    /// *Missing:* the value's `NRW` before the release's `NAW`. Rule (1).
    ///
    /// *Scenario:* 2 nodes, `locks: 1` (home n0); n1 has inserted k → 1. n0: `update(k, 2)`, tells n1 by another
    /// endpoint ∥ n1, once told: `get(k)` is 1. Or n1, once told: `update(k, 3)`, and at the end k is 2. Masked where
    /// lock and value share a node.
    KvUpdateNoFence = "kv-update-no-fence" in "KvStore": "`update` releases the lock without its fence.";

    /// *Missing:* what tells the uses of a slot apart. Rule (4).
    ///
    /// *Scenario:* 1 node, 2 threads, `slots_per_node: 1`; k1 → 10 is there. T0: `delete(k1)`, `insert(k2, 20)` ∥ T1:
    /// `get(k1)` is 20: it had looked up the index before the delete. With n1 in T1's place likewise.
    KvUsesNotCounted = "kv-uses-not-counted" in "KvStore": "The uses of a slot are not counted.";

    /// *Missing:* that meta and value are of one use, when they are read at different moments.
    ///
    /// *Scenario:* that of `kv-uses-not-counted`: T1 reads the meta word before the delete, checksum and value after
    /// the insert has written them.
    KvSumUnseeded = "kv-sum-unseeded" in "KvStore": "The checksum does not depend on the slot's use.";

    /// *Missing:* the followers' acknowledgements before the `CW` of valid. Rule (2).
    ///
    /// *Scenario:* 2 nodes, 2 threads on n0. n0/T0: `insert(k, 1)` ∥ n0/T1: `get(k)` is 1, tells n1 ∥ n1, once told:
    /// `get(k)` is `None`.
    KvValidEarly = "kv-valid-early" in "KvStore": "`insert` sets valid before the other nodes know the key.";

    /// *Missing:* the cleared meta word before the meta word of the slot's next use. That the slot is freed before the
    /// *acknowledgements* is no bug by itself: the counter covers it (rule (4) is for deletes that are cut short, which
    /// would free the slot twice).
    ///
    /// *Scenario:* 1 node, 2 threads, `slots_per_node: 1`, `locks: 2`, k1 and k2 with different locks; k1 is there. T0:
    /// `delete(k1)` ∥ T1: `insert(k2, 20)` (an error if there is no slot yet); if it was true, `get(k2)` is `None` at
    /// the end.
    KvFreedFirst = "kv-freed-first" in "KvStore": "`delete` frees the slot before it clears the valid bit.";

    /// *Missing:* the `NRW` of the cleared meta before the trackers' `NRW`s, which go through another endpoint. Rule
    /// (3).
    ///
    /// *Scenario:* 2 nodes; n1 has inserted k. n0/T0: `delete(k)` ∥ n0/T1: `get(k)` is `None`, tells n1 by its own
    /// endpoint ∥ n1, once told: `get(k)` is `Some`. Or, with `slots_per_node: 1`, `locks: 2` and one thread a node:
    /// n0: `delete(k1)` ∥ n1: `insert(k2, 20)` until there is a slot, and at the end `get(k2)` is `None`: the late put
    /// has cleared it.
    KvDeleteNotFlushed = "kv-delete-not-flushed" in "KvStore":
        "`delete` tells the other nodes before the cleared valid bit is visible.";

    /// *Missing:* the retry of a torn value.
    ///
    /// *Scenario:* 2 nodes, `V = u64`; n0 has inserted k → 1. n0: `update(k, 2)` ∥ n1: `get(k)` is `None`. No delete is
    /// needed.
    KvTornIsAbsent = "kv-torn-is-absent" in "KvStore": "`get` takes a torn value for an absent one.";

    /// *Missing:* the check of a torn value.
    ///
    /// *Scenario:* 2 nodes, `V = [u64; 2]`; n0 has inserted k → `[1, 1]`. n0: `update(k, [2, 2])` ∥ n1: `get(k)` is
    /// `[2, 1]` or `[1, 2]`.
    KvSumIgnored = "kv-sum-ignored" in "KvStore": "`get` returns a value whatever its checksum says.";

    /// *Missing:* the follower's index before its acknowledgement.
    ///
    /// *Scenario:* 2 nodes. n0: `insert(k, 1)` is true, tells n1 ∥ n1, once told: `get(k)` is `None`.
    KvAckBeforeApply = "kv-ack-before-apply" in "KvStore": "A follower acknowledges a change before it applies it.";

    /// *Missing:* the inserter's own index before valid. Rule (2), where "every index" is taken to be the others'.
    ///
    /// *Scenario:* 2 nodes. n0/T0: `insert(k, 1)` ∥ n1: `get(k)` is 1, tells n0/T1 ∥ n0/T1, once told: `get(k)` is
    /// `None`.
    KvOwnIndexLast = "kv-own-index-last" in "KvStore":
        "`insert` enters the key into its own node's index after it has set valid.";

    /// *Missing:* the lock's order of changes of a key. Trackers of different writers are in none.
    ///
    /// *Scenario:* 2 nodes. n0: polls `insert(k, 1)` until it has told, and drops it ∥ n1: `insert(k, 2)` is true; at
    /// the end n1's `get(k)` is `None`: its service thread has applied n0's insert and removal only now, over its own
    /// entry.
    KvReleasedBeforeDropped = "kv-released-before-dropped" in "KvStore":
        "An insert that is undone releases its key before all nodes have dropped it.";

    /// *Missing:* the `NRW`s of the user's endpoint before those of the service thread's, to the same slot.
    ///
    /// *Scenario:* 2 nodes, `Placement::Hash`, `slots_per_node: 2` (n0 hands out one slot of n1), k1 and k2 placed on
    /// n1. n0/T0: polls `insert(k1, 1)` until it has told and drops it ∥ n0/T1: `insert(k2, 2)` until there is a slot;
    /// at the end `get(k2)` is `None`, or never whole: T0's puts came after it.
    KvHandOverUnfenced = "kv-hand-over-unfenced" in "KvStore":
        "An insert that is cut short is handed to the service thread with its puts still under way.";

    /// *Missing:* the agreement on what a dead node has told: a message that came to some survivors only is not completed
    /// elsewhere, and an operation may still be under way under its locks.
    ///
    /// *Scenario:* `kv/dies`.
    KvDeadNotSettled = "kv-dead-not-settled" in "KvStore": "Moved locks, and those of the dead, are used at once.";

    /// *Missing:* the repair of what a dead holder left: an insert that never took effect stays in every index.
    ///
    /// *Scenario:* `kv/dies-by-hash`.
    KvDeadNotRepaired = "kv-dead-not-repaired" in "KvStore": "What a dead holder has left half-done stays.";

    /// *Missing:* a place from which a value whose put was cut short can be made whole.
    ///
    /// *Scenario:* `kv/dies`.
    KvNotRedone = "kv-not-redone" in "KvStore": "A value that its writer's death tore stays torn."
;

    // ---- locks for asymmetric memory ----

    /// *Missing:* the holder's `NRW` to a node before the release's `NAW` on another: only a get from it says that.
    ///
    /// *Scenario:* `spin/release`.
    SpinNoFence = "spin-no-fence" in "SpinLockArray": "`unlock` does not fence.";

    /// *Missing:* the lock taken from a dead holder.
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

    /// *Missing:* the budget of who has competed again: it falls below zero, and the cohort keeps the lock.
    ///
    /// *Scenario:* `alock/remote-budget`.
    AlockBudgetNotReset = "alock-budget-not-reset" in "ALock": "Who competes again keeps the budget that it was granted.";

    /// *Missing:* the victim of who competes again: it is the other cohort's still, so nobody else has a turn.
    ///
    /// *Scenario:* `alock/remote-budget`.
    AlockVictimNotSet = "alock-victim-not-set" in "ALock": "Who competes again names no victim.";

    /// *Missing:* atomicity: a CPU's compare-and-swap lies between `NAR` and `NAW` of a remote one.
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

    /// *Missing:* `NRW` of a put to the own node before the store of the grant: a put is ordered before a put, not before a `CW`.
    ///
    /// *Scenario:* `mcs/neighbours`.
    McsSparesOwnNode = "mcs-spares-own-node" in "McsLockArray": "A grant by a store spares its node, as one by a put does.";

    /// *Missing:* the grant: who leaves does not know whom to hand the lock to.
    ///
    /// *Scenario:* `alock/remote-queue`.
    McsNotTold = "mcs-not-told" in "McsLockArray": "Who enqueues does not tell the one before it.";

    /// *Missing:* the grant of an operation that nobody waits for any more.
    ///
    /// *Scenario:* `alock/deadline`.
    McsDroppedKept = "mcs-dropped-kept" in "McsLockArray": "An operation that is dropped keeps its place in the queue.";

    /// *Missing:* that the chain which holds the tail claims last: it empties the tail while another is stuck.
    ///
    /// *Scenario:* `mcs/stuck-twice`.
    McsTailFirst = "mcs-tail-first" in "McsLockArray": "Of several stuck entries any may claim the head.";

    /// *Missing:* that nobody living is at the head.
    ///
    /// *Scenario:* `alock/waiter-dies`.
    McsClaimsBlindly = "mcs-claims-blindly" in "McsLockArray": "Who is behind a dead operation claims the head without a look at the others.";

    /// *Missing:* that whom an entry is behind, and what it was granted, are read of one and the same use of its descriptor.
    ///
    /// *Scenario:* `mcs/used-again`.
    McsSurveyTorn = "mcs-survey-torn" in "McsLockArray": "Who looks at the others reads how they stand before the rest, not after it.";

    /// *Missing:* that what is refused has not been done: each attempt keeps a descriptor for good.
    ///
    /// *Scenario:* `mcs/home-cut`.
    McsAsksAgain = "mcs-asks-again" in "McsLockArray": "Who cannot reach the lock's node tries to enqueue nevertheless.";

    // ---- Transactions ----

    /// *Missing:* an order of all locks: each of two transactions waits for the other's. No reordering is needed.
    ///
    /// *Scenario:* `transactions/transfers`.
    TransactionsUnordered = "transactions-unordered" in "Transactions": "Locks are taken in the order in which the cells are named.";

    // ---- Joining ----

    /// *Missing:* the answer that connects whoever opens last. No reordering is needed.
    ///
    /// *Scenario:* 2 nodes. n0 opens, then n1 does: n1 is never connected.
    JoinNotAnswered = "join-not-answered" in "Joining": "A join is not answered.";

    /// *Missing:* the announcement of what was opened before its peer was known.
    ///
    /// *Scenario:* 2 nodes. n0 and n1 come, and open before either has heard of the other: neither is ever connected.
    JoinLateNotAnnounced = "join-late-not-announced" in "Joining": "What is open is not announced to a node that comes.";

    /// *Missing:* whose opening a message is about. This was a bug: the checker found it.
    ///
    /// *Scenario:* 2 nodes open at once, so that each is connected by the other's join; they drop the object, tell each
    /// other, and open it again: an answer to the first join is still under way, and connects to memory that is gone.
    JoinLateAnswerTaken = "join-late-answer-taken" in "Joining": "A message of an opening before is taken for one of this.";

    // ---- Reopening ----

    /// *Missing:* that all living members have opened the generation before one of them returns. No reordering is needed.
    ///
    /// *Scenario:* 3 nodes reopen a path; n2 opens it and dies. n0 is connected to n2, and returns; n1 is not, and calls for the
    /// next generation, for which it waits in vain.
    ReopenUncommitted = "reopen-uncommitted" in "Reopening": "A node returns before the others have opened the generation.";

    /// *Missing:* that a node takes part in a generation that others know and it does not.
    ///
    /// *Scenario:* 3 nodes; n0 and n1 have reopened a path once, and reopen it with n2.
    ReopenGenerationOwn = "reopen-generation-own" in "Reopening": "Each node counts generations for itself.";

    // ---- deaths ----

    /// *Missing:* the others' shutting out. The removed is closed out of the memory of whoever recovers, not of a third node.
    ///
    /// *Scenario:* 3 nodes, a cut. n1 holds a lock on n0, puts to n0 and n2, and is cut off; the others take the lock from
    /// it; the cut heals, and what n1 has put lands.
    MembershipOwnShutOut = "membership-own-shut-out" in "Membership": "A node does not wait until the others have shut out the dead.";

    /// *Missing:* that any two quorums meet.
    ///
    /// *Scenario:* 2 nodes, a cut: each removes the other, and goes on.
    MembershipAnyHalf = "membership-any-half" in "Membership": "Any half of the members is a quorum.";

    /// *Missing:* the end of one life before the next begins.
    ///
    /// *Scenario:* 3 places. n3 comes, the second life of the place of n0, and belongs to the session beside n0.
    MembershipLetInEarly = "membership-let-in-early" in "Membership": "A node is let in though the life before it goes on.";

    /// *Missing:* a decision's news. This was a bug: the checker found it.
    ///
    /// *Scenario:* 4 nodes. n3 leaves: it learns first that it may, and goes. n0 dies. Of the four members that the others
    /// still count, two are left: never again a quorum.
    MembershipGoesInSilence = "membership-goes-in-silence" in "Membership": "Who leaves does not tell the others what was decided.";

    /// *Missing:* the voice of a node that has given up is counted on. This was a bug: the checker found it.
    ///
    /// *Scenario:* 3 nodes. n0 dies; n2 hears of nobody, and is fenced; n1 waits for n2's vote for ever.
    MembershipFencedInSilence = "membership-fenced-in-silence" in "Membership": "A node that is fenced does not tell the others.";

    /// *Missing:* the mark.
    ///
    /// *Scenario:* 3 nodes. n1 dies in the middle of writing a pair under a lock; n0 or n2 takes the lock, and the pair for
    /// whole.
    MutexDeathUnmarked = "mutex-death-unmarked" in "Mutex": "A lock is taken from a dead holder without a mark.";

    /// *Missing:* visibility of what was put to a node that does not answer. This was a bug: the checker found it.
    ///
    /// *Scenario:* 3 nodes, a cut between n1 and the others. n1 has put to n2 under the lock, on n0; its transport gives up
    /// on n2 only; the cut heals, and n1 releases the lock. n0 takes it and looks at n2.
    MutexReleasedUndecided = "mutex-released-undecided" in "Mutex": "A lock is released though the fence has failed at a node that does not answer.";

    /// *Missing:* progress of those behind a dead waiter.
    ///
    /// *Scenario:* 3 nodes. n1 draws a ticket and dies.
    MutexTurnKept = "mutex-turn-kept" in "Mutex": "Nobody passes over the turn of a dead waiter.";

    /// *Missing:* progress of those that read with a dead reader.
    ///
    /// *Scenario:* 3 nodes. n0 sends more than fits into the ring; n1 dies, and n2 gets no more.
    RingDeadReaderAwaited = "ring-dead-reader-awaited" in "RingBuffer": "The writer waits for the room of a dead reader.";

    /// *Missing:* that all who open an object take it to be among the same nodes.
    ///
    /// *Scenario:* 3 nodes; n2 dies. n1 knows, opens an object with n0 and is connected to what n0, which does not know,
    /// has opened with n2, too. n0 is told of the death and opens it anew.
    JoinEpochUnchecked = "join-epoch-unchecked" in "Joining": "A join or an answer of another epoch is accepted.";

    /// *Missing:* that a node that joins what is open uses the memory of its home.
    ///
    /// *Scenario:* 2 places; n0 dies. Its next life joins a variable whose home is n1; n1 closes it, and the next life finds the
    /// word gone.
    JoinReturnedUntold = "join-returned-untold" in "Joining": "A node that has returned does not count among those that an object is open on.";

    // ---- Closing ----

    /// *Missing:* that others who have the object open use this node's memory.
    ///
    /// *Scenario:* 2 nodes have an object open. n0 drops it ∥ n1: gets n0's word, which is gone.
    ClosingFreedEarly = "closing-freed-early" in "Closing": "Memory is given back before the others have closed the object.";

    /// *Missing:* who is suspected, or dead and not shut out, may be alive and at work.
    ///
    /// *Scenario:* 3 nodes have an object open; n0 suspects n2, and closes it. n2, which has it open, finds n0's memory gone.
    ClosingSuspectNotAwaited = "closing-suspect-not-awaited" in "Closing":
        "A node that is suspected, or dead and not shut out, is not waited for.";

    /// *Missing:* which opening a release is of.
    ///
    /// *Scenario:* 2 nodes open an object, close it, and open it again. The second release of n1 crosses that: n0 closes the
    /// new object, and gives its memory back while n1 uses it.
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

// Cargo unites the features of all that one command builds, and tests and examples of the workspace ask for this one: a release
// build has no seeded bugs whatever is built with it.
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

/// Switches a mutant on, or all off, for what this thread of the operating system runs from here on.
///
/// # Errors
/// The program was built without them.
pub fn enable(mutant: Option<Mutant>) -> crate::Result<()> {
    if switch::set(mutant) {
        return Ok(());
    }
    let why = "this program has no mutants: build it with the feature `farfield/mutants`, and not for release".into();
    Err(ErrorKind::Config { why }.into())
}

// ---- what some mutants do, where it is more than a line ----------------------------------------------------------
//
// They wait by blocking: a wait of the futures in which they are called would make those larger, on or off.

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

/// [`Mutant::OwnedPushLive`]: lead, value, trail, as the cells are when each is read.
pub(crate) fn push_live(endpoint: &Endpoint, to: RemotePtr<u64>, copy: &Region, words: usize) -> Result<()> {
    endpoint.put_live(to, copy.span(0, 8)).detach()?;
    endpoint.put_live(to.at(1), copy.span(8, words * 8)).detach()?;
    endpoint.put_live(to.at(1 + words), copy.span(8 + words * 8, 8)).detach()
}

/// [`Mutant::MutexReleasedByPut`]: the word as it was `taken`, without its holder; like a fetch-and-add, what it found.
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
