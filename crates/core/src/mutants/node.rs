//! Seeded bugs of opening, reopening and closing objects, and of the membership.

crate::mutants! {
    // ---- Joining ----

    /// *Missing:* the answer that connects the last node to open an object. Needs no reordering.
    ///
    /// *Scenario:* 2 nodes. n0 opens, then n1 does: n1 is never connected.
    JOIN_NOT_ANSWERED = "join-not-answered" in "Joining": "A join is not answered.";

    /// *Missing:* the announcement of objects that were opened before the peer was known.
    ///
    /// *Scenario:* 2 nodes. n0 and n1 start, and open before either has learned of the other: neither is ever
    /// connected.
    JOIN_LATE_NOT_ANNOUNCED = "join-late-not-announced" in "Joining":
        "What is open is not announced to a node that comes.";

    /// *Missing:* the opening that a message belongs to. This was a bug: the checker found it.
    ///
    /// *Scenario:* 2 nodes open at once, so that each is connected by the other's join. They drop the object, notify
    /// each other, and open it again. An answer to the first join is still in flight, and connects to freed memory.
    JOIN_LATE_ANSWER_TAKEN = "join-late-answer-taken" in "Joining":
        "A message of an opening before is taken for one of this.";

    /// *Missing:* the answer to the node that lacks a region, if it was the first to open. This was a bug: the sweep
    /// found it.
    ///
    /// *Scenario:* 2 nodes. n0 needs 16 bytes of a region that has 8 on n1; n1 opens it without noticing.
    JOIN_NEEDS_UNCHECKED = "join-needs-unchecked" in "Joining":
        "A node does not check whether the other has the regions that it needs.";

    /// *Missing:* the reason why a new node of a rank cannot join. This was a bug: the sweep found it.
    ///
    /// *Scenario:* 2 places; n0 dies, and n1 opens an object with a part for each node. Its successor gets `Mismatch`.
    JOIN_OUTSIDE_DIFFERS = "join-outside-differs" in "Joining":
        "The participants of a restarted node count as a mistake of its program.";

    // ---- Reopening ----

    /// *Missing:* that all live members have opened the generation before one of them returns. Needs no reordering.
    ///
    /// *Scenario:* 3 nodes reopen a path; n2 opens it and dies. n0 is connected to n2, and returns; n1 is not, and
    /// calls for the next generation, for which it waits in vain.
    REOPEN_UNCOMMITTED = "reopen-uncommitted" in "Reopening":
        "A node returns before the others have opened the generation.";

    /// *Missing:* that a node takes part in a generation that the others know and it does not.
    ///
    /// *Scenario:* 3 nodes; n0 and n1 have reopened a path once, and reopen it with n2.
    REOPEN_GENERATION_OWN = "reopen-generation-own" in "Reopening": "Each node counts generations for itself.";

    /// *Missing:* the wake-up of a call that waits when the members change. This was a bug: the sweep found it.
    ///
    /// *Scenario:* 3 nodes, one of which joins while the others reopen a path.
    REOPEN_CHANGE_MISSED = "reopen-change-missed" in "Reopening": "A call does not learn that the members have changed.";

    // ---- the service thread ----

    /// *Missing:* another attempt after a refusal, unless something else happens. This was a bug: random programs found
    /// it.
    ///
    /// *Scenario:* 2 nodes. A release is refused, and left to the service thread. Its first attempt is refused as well.
    SERVICE_RETRY_FORGOTTEN = "service-retry-forgotten" in "Service thread":
        "A poller that was refused is not polled again soon.";

    /// *Missing:* the request of a message, until something else wakes the thread. This was a bug: a reader found it.
    ///
    /// *Scenario:* 2 nodes. n1 leaves; n0, whose service thread has a poller, hears of it just before it sleeps, and
    /// does not tell the poller.
    SERVICE_SLEEPS_ON_NEWS = "service-sleeps-on-news" in "Service thread":
        "The thread sleeps after it has handled an event.";

    /// *Missing:* the end of `Node::leave`. This was a bug: the sweep found it.
    ///
    /// *Scenario:* 1 node leaves while a thread gives its service thread a poller that holds an object.
    SERVICE_DROPS_UNDER_LOCK = "service-drops-under-lock" in "Service thread":
        "Pollers and objects are dropped under the lock that their drop takes.";

    // ---- deaths ----

    /// *Missing:* the eviction by the others. The evicted node has no access to the memory of the recovering node, but
    /// still to that of a third node.
    ///
    /// *Scenario:* 3 nodes, a cut. n1 holds a lock on n0, puts to n0 and n2, and is cut off; the others take the lock
    /// from it; the cut heals, and n1's puts land.
    MEMBERSHIP_OWN_EVICTION = "membership-own-eviction" in "Membership":
        "A node does not wait until the others have evicted the dead.";

    /// *Missing:* that any two quorums intersect.
    ///
    /// *Scenario:* 2 nodes, a cut: each removes the other, and continues.
    MEMBERSHIP_ANY_HALF = "membership-any-half" in "Membership": "Any half of the members is a quorum.";

    /// *Missing:* the end of a node before the next node of its place begins.
    ///
    /// *Scenario:* 3 places. n3 starts as the second node of the place of n0, and belongs to the session beside n0.
    MEMBERSHIP_LET_IN_EARLY = "membership-let-in-early" in "Membership":
        "A node is let in though the life before it goes on.";

    /// *Missing:* the message with a decision. This was a bug: the checker found it.
    ///
    /// *Scenario:* 4 nodes. n3 leaves: it is the first to learn of its departure, and exits. n0 dies. Of the four
    /// members that the others still count, two are left: never again a quorum.
    MEMBERSHIP_GOES_IN_SILENCE = "membership-goes-in-silence" in "Membership":
        "Who leaves does not tell the others what was decided.";

    /// *Missing:* that a fenced node has no vote: the others count on it. This was a bug: the checker found it.
    ///
    /// *Scenario:* 3 nodes. n0 dies; n2 reaches no node, and is fenced; n1 waits for n2's vote for ever.
    MEMBERSHIP_FENCED_IN_SILENCE = "membership-fenced-in-silence" in "Membership":
        "A node that is fenced does not tell the others.";

    /// *Missing:* the mark of a lock taken after a death.
    ///
    /// *Scenario:* 3 nodes. n1 dies in the middle of writing a pair under a lock; n0 or n2 takes the lock, and takes
    /// the pair to be whole.
    MUTEX_DEATH_UNMARKED = "mutex-death-unmarked" in "Mutex": "A lock is taken from a dead holder without a mark.";

    /// *Missing:* visibility of puts to a node that does not answer. This was a bug: the checker found it.
    ///
    /// *Scenario:* 3 nodes, a cut between n1 and the others. n1 has put to n2 under the lock, on n0; its transport
    /// gives up on n2 only; the cut heals, and n1 releases the lock. n0 takes it and reads from n2.
    MUTEX_RELEASED_UNDECIDED = "mutex-released-undecided" in "Mutex":
        "A lock is released though the fence has failed at a node that does not answer.";

    /// *Missing:* progress of the waiters behind a dead one.
    ///
    /// *Scenario:* 3 nodes. n1 draws a ticket and dies.
    MUTEX_TURN_KEPT = "mutex-turn-kept" in "Mutex": "Nobody passes over the turn of a dead waiter.";

    /// *Missing:* progress of the readers besides a dead one.
    ///
    /// *Scenario:* 3 nodes. n0 sends more than fits into the ring; n1 dies, and n2 gets no more.
    RING_DEAD_READER_AWAITED = "ring-dead-reader-awaited" in "RingBuffer":
        "The writer waits for the room of a dead reader.";

    /// *Missing:* the error of a stream without readers. This was a bug: the checker found it.
    ///
    /// *Scenario:* 3 nodes, of which n1 and n2 die. n0 drops the copy of one, and then that of the other, the last.
    RING_LAST_COPY_DROPPED = "ring-last-copy-dropped" in "RingBuffer":
        "The writer forgets all readers, and every message counts as sent.";

    /// *Missing:* that all participants open an object among the same nodes.
    ///
    /// *Scenario:* 3 nodes; n2 dies. n1 knows it, and opens an object with n0. It is connected to the object that n0,
    /// which does not know it, has opened with n2, too. n0 learns of the death and opens the object anew.
    JOIN_EPOCH_UNCHECKED = "join-epoch-unchecked" in "Joining": "A join or an answer of another epoch is accepted.";

    /// *Missing:* that a node that joins an open object uses the memory of its home.
    ///
    /// *Scenario:* 2 places; n0 dies. Its successor joins a variable whose home is n1; n1 closes it, and the successor
    /// finds the word freed.
    JOIN_RETURNED_UNTOLD = "join-returned-untold" in "Joining":
        "A node that has returned does not count among those that an object is open on.";

    // ---- Closing ----

    /// *Missing:* that other nodes that have the object open use this node's memory.
    ///
    /// *Scenario:* 2 nodes have an object open. n0 drops it ∥ n1: gets n0's word, which is freed.
    CLOSING_FREED_EARLY = "closing-freed-early" in "Closing":
        "Memory is given back before the others have closed the object.";

    /// *Missing:* a suspected node, or a dead one that is not yet evicted, may be alive and at work.
    ///
    /// *Scenario:* 3 nodes have an object open; n0 suspects n2, and closes it. n2, which has it open, finds n0's memory
    /// freed.
    CLOSING_SUSPECT_NOT_AWAITED = "closing-suspect-not-awaited" in "Closing":
        "A node that is suspected, or dead and not evicted, is not waited for.";

    /// *Missing:* the opening that a release belongs to.
    ///
    /// *Scenario:* 2 nodes open an object, close it, and open it again. n1's second release crosses the new opening: n0
    /// closes the new object, and frees its memory while n1 uses it.
    CLOSING_LATE_TAKEN = "closing-late-taken" in "Closing": "A release that is late counts for a later opening.";

    // ---- Measuring ----

    /// *Missing:* the measure of a call that finds its handle stale before it asks. This was a bug. Needs no
    /// reordering.
    ///
    /// *Scenario:* `measured/stale`.
    METRICS_STALE_UNCOUNTED = "metrics-stale-uncounted" in "Metrics": "A call on a stale handle is not counted.";
}
