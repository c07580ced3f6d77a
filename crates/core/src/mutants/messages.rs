//! Seeded bugs of barriers, ring buffers and queues.

crate::mutants! {
    // ---- Barrier ----

    /// *Missing:* `GF_n` before the count, for all n: LOCO appendix D, Fig. 22.
    ///
    /// *Scenario:* 3 nodes, z raw on n1 (or a `SharedVar`). n0: put z := 1 at n1, `wait` ∥ n1: `wait` ∥ n2: `wait`, get
    /// z from n1 is 0. Masked with two nodes of one thread, since data and count are then sent to the same node; not
    /// with two threads a node (see `barrier-fence-from-one`).
    BARRIER_NO_FENCE = "barrier-no-fence" in "Barrier": "`wait` does not fence (Fig. 22).";

    /// *Missing:* as `barrier-no-fence`. The fence is executed and awaited, but only after the count's `NRW`.
    ///
    /// *Scenario:* that of `barrier-no-fence`. n0 itself passes only after its fence; n2 does not wait for that.
    BARRIER_FENCE_LATE = "barrier-fence-late" in "Barrier": "`wait` fences after it has sent its count.";

    /// *Missing:* `GF_0` before the count. A loop from 1, or over the "other" nodes as seen from node 0.
    ///
    /// *Scenario:* 3 nodes, z raw on n0. n1: put z := 1 at n0, `wait` ∥ n0: `wait` ∥ n2: `wait`, get z from n0 is 0. Or
    /// 2 nodes of 2 threads: n1/T0 puts, n1/T1 gets. Masked if only n0 itself reads z (`NRW → NRW`).
    BARRIER_FENCE_FROM_ONE = "barrier-fence-from-one" in "Barrier": "`wait` fences all nodes but node 0.";

    /// *Missing:* `CW → GF → CR` where no put owes a fence. Then the barrier posts no get, and only a fence of the
    /// processor orders the two.
    ///
    /// *Scenario:* 1 node, a barrier of one thread. T0: x := 1, `wait`, y is 0 ∥ T1: y := 1, fence, x is 0. Masked if
    /// T1 takes part, since a row is stored behind x (`CW → CW`).
    BARRIER_STORE_UNFENCED = "barrier-store-unfenced" in "Barrier":
        "A load behind the barrier passes a store from before it.";

    /// *Missing:* `so` from one participant's `GF` to the others' `CR`.
    ///
    /// *Scenario:* 2 nodes. n1: put x := 1 at n0, `wait` ∥ n0: `wait`, x is 0.
    BARRIER_LAST_ROW = "barrier-last-row" in "Barrier": "`wait` looks at all rows but the last.";

    /// *Missing:* as `barrier-last-row`, for all threads. A thread passes a round after a wait for the previous round
    /// only.
    ///
    /// *Scenario:* that of `barrier-last-row`, in the first round already.
    BARRIER_ROUND_EARLY = "barrier-round-early" in "Barrier": "`wait` is content with the others' last round.";

    /// *Missing:* the count of a thread that waits again. Its fence had timed out because of a node that was cut off,
    /// and the thread had not arrived. It finds all others in the round before.
    ///
    /// *Scenario:* 3 nodes, node 2 is cut off. All put to all, `wait`, `retry_wait` after a timeout; a put value is
    /// missing.
    BARRIER_AGAIN_UNARRIVED = "barrier-again-unarrived" in "Barrier":
        "`retry_wait` does not arrive after a wait that had not.";

    /// *Missing:* nothing of the memory model. A node that was not notified waits for ever.
    ///
    /// *Scenario:* 2 nodes. n0: `wait`, and its put is refused ∥ n1: `wait`.
    BARRIER_TOLD_ONCE = "barrier-told-once" in "Barrier":
        "A node that could not be told of an arrival is not told again.";

    /// *Missing:* nothing of the memory model. This was a bug: the checker found it.
    ///
    /// *Scenario:* 2 nodes. n0: `wait`, and its put is refused twice ∥ n1: `wait`.
    BARRIER_TOLD_TWICE = "barrier-told-twice" in "Barrier":
        "A node that could not be told of an arrival is told once more only.";

    // ---- RingBuffer ----

    /// *Missing:* `NRW → NRW`: the message before its head.
    ///
    /// *Scenario:* 2 nodes, writer n0, capacity 64. n0: `try_send(8 bytes of 1)` ∥ n1: `try_recv` gives an empty
    /// message, or one of zeros.
    RING_HEAD_FIRST = "ring-head-first" in "RingBuffer": "The head is put before the message.";

    /// *Missing:* as `ring-head-first`, for the part of a message at the beginning of the ring.
    ///
    /// *Scenario:* 2 nodes, writer n0, capacity 64. n0: `send(32 bytes of 1)`, `send(32 bytes of 2)`, the second when
    /// the first was acknowledged (it takes bytes 40 to 63 and 0 to 15) ∥ n1: `recv`, `recv`: the second ends in 1s or
    /// in the first's length.
    RING_HEAD_BEFORE_WRAPPED = "ring-head-before-wrapped" in "RingBuffer":
        "The head is put before the part of the message that wraps around.";

    /// *Missing:* `NLR` of one head before the `CW` of the next (the wait in LOCO's Fig. 14).
    ///
    /// *Scenario:* 2 nodes, writer n0. n0: `try_send([1; 8])`, `try_send([2; 8])` ∥ n1: `recv`, `recv`: the second is
    /// empty or zeros, since the first head carried the second's position.
    RING_HEAD_LIVE = "ring-head-live" in "RingBuffer": "The head is sent live, not as a copy.";

    /// *Missing:* room: the last message takes 8 bytes that the slowest reader has not read. Needs no reordering.
    ///
    /// *Scenario:* 2 nodes, writer n0, capacity 64. n0: `try_send` of 24 bytes, of 24 bytes, of none: the third is true
    /// although nothing was received, and overwrites the first's length. n1: `recv` thrice: the first is empty.
    RING_ROOM_FORGETS_HEADER = "ring-room-forgets-header" in "RingBuffer":
        "The room that a message needs is counted without its length word.";

    /// *Missing:* the reader's `CR` of the message before the writer's `CW` of the next. The acknowledgement orders the
    /// two.
    ///
    /// *Scenario:* 2 nodes, writer n0, capacity 64. n0: `send(32 bytes of 1)`, `send(32 bytes of 2)` ∥ n1: `recv` gives
    /// 2s among the 1s (the second message wraps around over the first's length and first word).
    RING_ACK_BEFORE_READ = "ring-ack-before-read" in "RingBuffer":
        "A reader acknowledges a message before it has copied it.";

    /// *Missing:* as `ring-ack-before-read`, for all readers but the fastest.
    ///
    /// *Scenario:* 2 nodes, writer n0, one reader on each, capacity 64. n0: `try_send(32 bytes of 1)`, `try_recv`,
    /// `try_send(32 bytes of 2)` is true ∥ n1: `recv` gives 2s, or an error. Needs no reordering. (`send` waits for all
    /// readers by another way, so the scenario uses `try_send`.)
    RING_FASTEST_READER = "ring-fastest-reader" in "RingBuffer": "The room is that of the fastest reader.";

    /// *Missing:* the reader's `CR → CR` order: head before message.
    ///
    /// *Scenario:* that of `ring-head-first`.
    RING_LENGTH_BEFORE_HEAD = "ring-length-before-head" in "RingBuffer": "A reader reads the length before the head.";

    /// *Missing:* credits that never shrink. This concerns liveness only: no wrong message is received.
    ///
    /// *Scenario:* 2 nodes, writer n0, capacity 64. n0: `send(32 bytes)` thrice: the third times out ∥ n1: `recv`
    /// thrice.
    RING_CREDIT_MODULO = "ring-credit-modulo" in "RingBuffer":
        "A reader acknowledges an offset in the ring, not a position.";

    /// *Missing:* the message: its put was refused, so its head must not be put either.
    ///
    /// *Scenario:* a reader on n0, one on n1; the put of the message to n1 is refused. n1 sees the head, and zeros.
    RING_HEAD_OVER_HOLE = "ring-head-over-hole" in "RingBuffer": "The head is put though the message was refused.";

    /// *Missing:* `NRW → NRW`. The missing part of a copy has to land before the head that covers it, as at the first
    /// attempt.
    ///
    /// *Scenario:* as before; the next call puts the missing part to n1. n1 sees the head before the message.
    RING_REPAIR_HEAD_FIRST = "ring-repair-head-first" in "RingBuffer":
        "A copy that is behind gets the head before what it lacks.";

    /// *Missing:* nothing of the memory model. If one reader was not sent the message, a wait for all readers never
    /// ends.
    ///
    /// *Scenario:* as before; n0 waits until all have read the message.
    RING_BEHIND_FORGOTTEN = "ring-behind-forgotten" in "RingBuffer":
        "A copy that was refused a message does not get it later.";

    /// *Missing:* nothing of the memory model. A message without a head must not be reported as sent.
    ///
    /// *Scenario:* one reader, on n1; the put of the message is refused. `try_send` returns that it was sent, and n1
    /// waits.
    RING_REFUSED_SENT = "ring-refused-sent" in "RingBuffer":
        "A message that was refused everywhere is said to be sent.";

    /// *Missing:* nothing of the memory model. The writer waits for room that the reader never gives back.
    ///
    /// *Scenario:* capacity 64, a message of 48 bytes is in the ring. n1 receives it, and its acknowledgement is
    /// refused; it polls for another ∥ n0: send a message.
    RING_ACK_ONCE = "ring-ack-once" in "RingBuffer": "An acknowledgement that was refused is not put again.";

    // ---- Queue ----

    /// *Missing:* `NRW` of the values before the `NAW` that publishes them.
    ///
    /// *Scenario:* 2 nodes, home n0. n1: `enqueue(1)` ∥ n0: `try_dequeue` returns the previous content of the cell.
    QUEUE_PUBLISHED_FIRST = "queue-published-first" in "Queue": "A slot is filled before its values are put.";

    /// *Missing:* `NRR` of the value before the `NAW` that frees its cell: a later atomic may overtake a get. It does
    /// not help that the get is complete before the value is used.
    ///
    /// *Scenario:* 2 nodes, home n0, capacity 1; the queue contains 1. n1: `try_dequeue` gives 3 ∥ n0: `enqueue(2)`,
    /// which gets the freed cell in exchange, `dequeue`, `enqueue(3)` into it.
    QUEUE_FREED_UNREAD = "queue-freed-unread" in "Queue":
        "No fence between the get of a value and what frees its cell.";

    /// *Missing:* that only one of two consumers takes a value.
    ///
    /// *Scenario:* 2 nodes, home n0; the queue contains 1. n0: `try_dequeue` ∥ n1: `try_dequeue`. Both give 1.
    QUEUE_TAKE_UNCHECKED = "queue-take-unchecked" in "Queue":
        "A consumer does not look whether it was who took the value.";

    /// *Missing:* the distinction between the uses of a slot. Needs no reordering.
    ///
    /// *Scenario:* 1 node, capacity 1. `try_enqueue(1)`, `try_dequeue`, `try_enqueue(2)` is false.
    QUEUE_LAP_KEPT = "queue-lap-kept" in "Queue": "A slot whose last value is taken stays in its lap.";

    /// *Missing:* that all slots before the hint are filled.
    ///
    /// *Scenario:* 2 nodes, home n0. n1: `enqueue(1)` ∥ n0: `enqueue(2)`, behind the position that n1 has yet to fill;
    /// `try_dequeue` is `None`.
    QUEUE_HINT_EARLY = "queue-hint-early" in "Queue": "The tail is raised before the slot is filled.";

    /// *Missing:* that the cell of a filled slot is not written. Needs no reordering.
    ///
    /// *Scenario:* 1 node, capacity 2. `enqueue(1)`, `enqueue(2)`; `dequeue` gives 2.
    QUEUE_CELL_KEPT = "queue-cell-kept" in "Queue": "A producer goes on with the cell that it has given to a slot.";

    /// *Missing:* the hint's `NAW` before the end of the enqueue: the enqueue does not wait for it, and it may never
    /// happen.
    ///
    /// *Scenario:* 2 nodes, home n0. n1: `enqueue(1)`, notifies n0 by another endpoint ∥ n0, once notified:
    /// `try_dequeue` is `None`.
    QUEUE_EMPTY_BY_HINTS = "queue-empty-by-hints" in "Queue": "A consumer says empty when the hints are equal.";

    /// *Missing:* the end of the compare-and-swap before the cell's next use.
    ///
    /// *Scenario:* 2 nodes, home n0, capacity 2. n1: polls `enqueue(1)` until it has posted, drops it, `enqueue(2)`
    /// into the same cell ∥ n0: `dequeue` twice gives 2 and 2.
    QUEUE_DROPPED_NOT_SETTLED = "queue-dropped-not-settled" in "Queue":
        "An enqueue that is dropped gives its cell back while it may still be published.";

    /// *Missing:* a value: neither the queue nor a consumer has it.
    ///
    /// *Scenario:* 2 nodes, home n0; the queue contains 1. n1: polls `dequeue` until it has posted, and drops it; at
    /// the end the queue is empty, and `salvage` too.
    QUEUE_TAKEN_LOST = "queue-taken-lost" in "Queue": "The value that a dropped dequeue had taken is thrown away.";

    /// *Missing:* the fence of the refused call's endpoint; its put has no order with those of other endpoints.
    ///
    /// *Scenario:* home n1, one enqueue of a node at a time. n0: enqueue 1 (its compare-and-swap is refused); another
    /// thread of n0: enqueue 2 ∥ n1: dequeue, which returns 1.
    QUEUE_SPARE_IN_FLIGHT = "queue-spare-in-flight" in "Queue": "A cell whose enqueue was refused goes to another thread while its put is in flight.";

    /// *Missing:* the values: their put was refused, so they are not in their cell, which must not be published.
    ///
    /// *Scenario:* home n1. n0: enqueue, and its put is refused ∥ n1: dequeue, which returns zeros.
    QUEUE_REFUSED_PUBLISHED = "queue-refused-published" in "Queue": "A slot is filled though its values were refused.";

    /// *Missing:* atomicity. An enqueue that fills the slot after the closer has read it is overwritten.
    ///
    /// *Scenario:* 2 nodes, home n0. n1: `try_enqueue` is accepted ∥ n0: `close`, `try_dequeue` says that the queue is
    /// closed and empty.
    QUEUE_CLOSE_BY_PUT = "queue-close-by-put" in "Queue": "`close` marks the end by a put.";

    /// *Missing:* the end. An enqueue that knows of a later position than the marked one continues. Needs no
    /// reordering.
    ///
    /// *Scenario:* 2 nodes, home n0. n0: `enqueue`, `try_enqueue` is accepted ∥ n1: `close` has returned before.
    QUEUE_CLOSE_UNWALKED = "queue-close-unwalked" in "Queue":
        "`close` marks the first slot that it looks at, filled or not.";

    /// *Missing:* the values that a full queue has in the marked slot. Needs no reordering.
    ///
    /// *Scenario:* a full queue. n1: `close` ∥ n0: `try_dequeue` says that the queue is closed and empty.
    QUEUE_CLOSED_TOO_SOON = "queue-closed-too-soon" in "Queue": "A dequeue ends at the mark, whatever the slot has.";

    /// *Missing:* the mark, after the last value of its slot. Needs no reordering.
    ///
    /// *Scenario:* a full queue. n1: `close` ∥ n0: `try_dequeue`, `try_enqueue` is accepted.
    QUEUE_MARK_LOST = "queue-mark-lost" in "Queue": "The last value's taker leaves its slot without the mark.";

    /// *Missing:* what the hints do not show yet, and all values of a batch but one.
    ///
    /// *Scenario:* 2 nodes, home n0. n0: `try_enqueue`, `len` is 0.
    QUEUE_LEN_BY_HINTS = "queue-len-by-hints" in "Queue": "`len` is the distance of the hints.";
}
