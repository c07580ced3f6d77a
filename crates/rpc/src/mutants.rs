//! Seeded bugs of calls.

farfield_core::mutants! {
    /// *Missing:* the comparison with the number of the slot's last call. Needs no reordering.
    ///
    /// *Scenario:* `rpc/retried`.
    RPC_TWICE = "rpc-twice" in "Rpc":
        "A request that is put again is handled again.";
    /// *Missing:* the hash of a message: its words land in any order.
    ///
    /// *Scenario:* `rpc/service`.
    RPC_TORN = "rpc-torn" in "Rpc":
        "A message of which a part is there is taken for whole.";
    /// *Missing:* the comparison of a reply's number. Needs no reordering.
    ///
    /// *Scenario:* `rpc/service`.
    RPC_ANY_REPLY = "rpc-any-reply" in "Rpc":
        "A client takes the reply in its slot for that to its call.";
    /// *Missing:* the claim of a slot before its request is handled. Needs no reordering.
    ///
    /// *Scenario:* `rpc/threads`.
    RPC_TWO_TAKE = "rpc-two-take" in "Rpc":
        "Two threads of a server handle one request.";
    /// *Missing:* a new count for a new opening. Needs no reordering.
    ///
    /// *Scenario:* `rpc/client-leaves`.
    RPC_COUNTS_ON = "rpc-counts-on" in "Rpc":
        "The calls of a client at the rank of an earlier one are taken for repetitions of its calls.";
    /// *Missing:* the comparison of the opening: the late `NRW` of an earlier opening's request is served.
    ///
    /// *Scenario:* `rpc/opened-again`.
    RPC_ANY_OPENING = "rpc-any-opening" in "Rpc":
        "A request of an earlier opening of the client is handled as that of the present one.";
    /// *Missing:* the second comparison of the opening, after the claim: of two threads of the server one has read a
    /// request before, and takes it when it was handled, and the node has opened its client again. Needs no reordering.
    ///
    /// *Scenario:* `rpc/opened-again-threads`.
    RPC_LATE_LOOK = "rpc-late-look" in "Rpc":
        "A thread handles what it has read before another thread handled it.";
    /// *Missing:* the end of the window: the slot after it is that of the next rank. Needs no reordering.
    ///
    /// *Scenario:* `rpc/window`.
    RPC_WINDOW = "rpc-window" in "Rpc":
        "A client has one slot more than the server has for it.";
    /// *Missing:* the number of the next call of a slot after a call was given up. Needs no reordering.
    ///
    /// *Scenario:* `rpc/given-up`.
    RPC_NUMBER_REUSED = "rpc-number-reused" in "Rpc":
        "A call has the number of the one before it, which was given up.";
    /// *Missing:* the same number for all attempts of a call. Needs no reordering.
    ///
    /// *Scenario:* `rpc/retried`.
    RPC_RENUMBERED = "rpc-renumbered" in "Rpc":
        "A request that is put again has another number.";
    /// *Missing:* the repetition of a request that a late put has overwritten (two endpoints: `NRW`, `NRW`, no order).
    ///
    /// *Scenario:* `rpc/retried-by-two`.
    RPC_NOT_REPEATED = "rpc-not-repeated" in "Rpc":
        "A wait puts its request once.";
    /// *Missing:* the record of a request after its handler has ended without a reply. Needs no reordering.
    ///
    /// *Scenario:* `rpc/no-reply`.
    RPC_FORGETS = "rpc-forgets" in "Rpc":
        "A request without a reply is taken for one that was never handled.";
    /// *Missing:* the end of a wait for a dead server. Needs no reordering.
    ///
    /// *Scenario:* `rpc/server-dies`.
    RPC_WAITS_FOR_DEAD = "rpc-waits-for-dead" in "Rpc":
        "A call waits for a dead server until its deadline.";
    /// *Missing:* the difference between a request that was put and one that was not. Needs no reordering.
    ///
    /// *Scenario:* `rpc/server-dies`.
    RPC_SAYS_NEVER = "rpc-says-never" in "Rpc":
        "The error of a call whose request was put says that nothing has happened.";
    /// *Missing:* the word that says so to the clients. Needs no reordering.
    ///
    /// *Scenario:* `rpc/closed`.
    RPC_CLOSED_SILENTLY = "rpc-closed-silently" in "Rpc":
        "A server that is dropped says so to no client.";
}
