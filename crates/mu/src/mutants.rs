//! Seeded bugs of the replicated log.

farfield_core::mutants! {
    /// *Missing:* the revocation of all other rights before the grant: an old leader's put lands after the new one has
    /// read the log.
    ///
    /// *Scenario:* `mu/hand-over`.
    MU_NO_REVOKE = "mu-no-revoke" in "Mu":
        "A replica lets the new leader write, and does not take the right of the old one.";
    /// *Missing:* the end of the own leadership before the grant: the old leader accepts entries in its own log.
    ///
    /// *Scenario:* `mu/hand-over`.
    MU_LEADS_ON = "mu-leads-on" in "Mu":
        "A leader that has let another one write goes on with its own log.";
    /// *Missing:* the get behind the put (`NRW → NRR`): a complete put is counted, and then dropped by the revocation.
    ///
    /// *Scenario:* `mu/counted`.
    MU_NO_FLUSH = "mu-no-flush" in "Mu":
        "A follower counts when the put to it is complete, landed or not.";
    /// *Missing:* the adoption of entries that others have accepted.
    ///
    /// *Scenario:* `mu/leader-dies`.
    MU_NO_ADOPTION = "mu-no-adoption" in "Mu":
        "A new leader proposes its own entries where others may be decided.";
    /// *Missing:* one replica of the majority.
    ///
    /// *Scenario:* `mu/leader-dies`.
    MU_MINORITY = "mu-minority" in "Mu":
        "An entry is decided one replica short of a majority.";
    /// *Missing:* a live replica of the majority that has to give the right.
    ///
    /// *Scenario:* `mu/lags`.
    MU_LEADS_EARLY = "mu-leads-early" in "Mu":
        "A candidate leads with the grants of one replica less than a majority.";
    /// *Missing:* the entries that a follower lacks.
    ///
    /// *Scenario:* `mu/leader-dies`.
    MU_NOT_BROUGHT_UP = "mu-not-brought-up" in "Mu":
        "A follower is taken in without the entries that it lacks.";
    /// *Missing:* the reader's `CR` of an entry before the `NRW` of the slot's next one.
    ///
    /// *Scenario:* `mu/recycled`.
    MU_NO_ROOM = "mu-no-room" in "Mu":
        "The leader uses a slot again, read or not.";
    /// *Missing:* the entry's `NRW` before that of the word.
    ///
    /// *Scenario:* `mu/decides`.
    MU_WORD_FIRST = "mu-word-first" in "Mu":
        "A follower is told that an entry is decided before it has it.";
    /// *Missing:* the checksum: a put that its leader's death has cut short passes for an entry.
    ///
    /// *Scenario:* `mu/leader-dies`.
    MU_TORN = "mu-torn" in "Mu":
        "A new leader adopts an entry of which a part is there.";
    /// *Missing:* the end of the wait for a dead follower. Needs no reordering.
    ///
    /// *Scenario:* `mu/follower-dies`.
    MU_WAITS_FOR_ALL = "mu-waits-for-all" in "Mu":
        "The leader waits for all replicas.";
    /// *Missing:* the first entry of a replica that comes back, as a bound of the slots that are used again. Needs no
    /// reordering.
    ///
    /// *Scenario:* `mu/returns-recycled`.
    MU_NOT_REBASED = "mu-not-rebased" in "Mu":
        "A leader brings a replica that comes back entries that are recycled.";
    /// *Missing:* that a replica reads which another leader has brought its entries, and of which this leader knows no
    /// vote. Needs no reordering.
    ///
    /// *Scenario:* `mu/returns-unseen`.
    MU_NOT_KEPT = "mu-not-kept" in "Mu":
        "A leader uses slots again that a replica which has come back has not read.";
    /// *Missing:* that another node has taken a seat since its word was got. Needs no reordering.
    ///
    /// *Scenario:* `mu/returns-heard`.
    MU_OLD_HEARD = "mu-old-heard" in "Mu":
        "A leader takes what a node has read for what the one has read that has come back in its place.";
    /// *Missing:* the wait for the leader that brings a replica its entries: with it another majority decides without
    /// an entry that was decided. Needs no reordering.
    ///
    /// *Scenario:* `mu/returns-empty`.
    MU_VOTES_EMPTY = "mu-votes-empty" in "Mu":
        "A replica that comes back has a vote before it has the entries.";
    /// *Missing:* the wait for the state of the lock. Needs no reordering.
    ///
    /// *Scenario:* `mu/mutex-returns`.
    MU_VOTES_STATELESS = "mu-votes-stateless" in "Mu":
        "A node that comes back to a lock has a vote before it has the lock's state.";
    /// *Missing:* the commands between the pieces of the lock's state. Needs no reordering.
    ///
    /// *Scenario:* `mu/mutex-returns-busy`.
    MU_STATE_ALONE = "mu-state-alone" in "Mu":
        "A node that comes back to a lock takes its state from the log, and leaves out the commands in between.";
    /// *Missing:* the release of a dead node's locks. Needs no reordering.
    ///
    /// *Scenario:* `mu/mutex-holder-dies`.
    MU_DEAD_HOLDS = "mu-dead-holds" in "Mu":
        "A dead node's claims stay in the queue.";
    /// *Missing:* the release of a call that was dropped. Needs no reordering.
    ///
    /// *Scenario:* `mu/mutex-dropped`.
    MU_DROPPED_HOLDS = "mu-dropped-holds" in "Mu":
        "A call that is dropped stays in the queue.";
    /// *Missing:* the renewals. Needs no reordering.
    ///
    /// *Scenario:* `mu/election-renewed`.
    MU_LEASE_NOT_RENEWED = "mu-lease-not-renewed" in "Mu":
        "A lease is renewed once.";
    /// *Missing:* most of the lease. Needs no reordering.
    ///
    /// *Scenario:* `mu/election-renewed`.
    MU_LEASE_CUT = "mu-lease-cut" in "Mu":
        "The log's leader ends a lease before its time.";
    /// *Missing:* that an answer is one to this command. Needs no reordering.
    ///
    /// *Scenario:* `mu/commands`.
    MU_OLD_ANSWER = "mu-old-answer" in "Mu":
        "A caller takes the leader's answer to an earlier command for that to this one.";
    /// *Missing:* the lock around the look at the term and the post: a put of an earlier term lands in a later one of
    /// the same node.
    ///
    /// The thread stops for 30 ms in between.
    ///
    /// *Scenario:* `mu/relay`.
    MU_POSTED_LATE = "mu-posted-late" in "Mu":
        "The proposer posts its puts when it has given back the lock under which it looked at its term.";
    /// *Missing:* the new number of an adopted entry: a later leader takes one with a number in between for the newer
    /// one.
    ///
    /// *Scenario:* `mu/left-by-two`.
    MU_NOT_RAISED = "mu-not-raised" in "Mu":
        "An adopted entry keeps the number with which it was proposed.";
    /// *Missing:* the end of an entry that was not decided, where the follower's next one comes.
    ///
    /// *Scenario:* `mu/left-by-one`.
    MU_STALE_NEXT = "mu-stale-next" in "Mu":
        "A follower keeps an undecided entry at the index of the next one.";
    /// *Missing:* that a leader may not know that its node was evicted: its lease counts till its end.
    ///
    /// *Scenario:* `mu/election-evicted`.
    MU_LEASE_EVICTED = "mu-lease-evicted" in "Mu":
        "The lease of an evicted node ends at once.";
    /// *Missing:* the look whether the command is in the log: the next leader orders it again.
    ///
    /// *Scenario:* `mu/commands-leader-dies`.
    MU_COMMAND_TWICE = "mu-command-twice" in "Mu":
        "A leader takes every command for a new one.";
    /// *Missing:* the turns of the others, when the first in line does not ask. Needs no reordering.
    ///
    /// *Scenario:* `mu/unheard`.
    MU_FIRST_ALONE = "mu-first-alone" in "Mu":
        "Only the first in line asks to lead after a leader's death.";
    /// *Missing:* the rests that grow. Needs no reordering.
    ///
    /// *Scenario:* `mu/deposed`.
    MU_RESTS_ALIKE = "mu-rests-alike" in "Mu":
        "A candidate that was replaced rests no longer the next time.";
}
