//! Calls of a server on another node: a put for the request, a put for the reply, and an effect once.
//!
//! A [`Server`] has slots for each node of the session, and a [`Client`] has as many for its replies. Both sides write
//! into the other's memory, and read their own.
//!
//! ```text
//! region `requests` of the server                        region `replies` of a client
//!   +0 ┌──────────────────────────────┐                    +0  ┌────────┐
//!      │ rank 0, slot 0               │                        │ closed │ 1 once the server is closed
//!      │ rank 0, slot 1               │                        │ known  │ 1 once the server knows this client
//!      │ …          `window` of them  │                    +64 ├────────┴─────────────────────┐
//!      ├──────────────────────────────┤                        │ slot 0, slot 1 …             │
//!      │ rank 1, slot 0               │                        │ …                            │
//!      │ …                            │                        └──────────────────────────────┘
//!      └──────────────────────────────┘
//!   a slot of either: hash (64) │ number (48), attempt (16) │ opening (64) │ words (32), values (32) │ values …
//! in the server's own memory, for each slot: the opening and number of its last call, and the message with its replies
//! ```
//!
//! # Algorithm
//!
//! *Call.* A thread of the client takes a free slot. The slot's next number is that of the call. It puts the message to
//! the server's slot, and waits for a message with this number in its own. A thread of the server that finds the
//! message claims the slot (a local compare-and-swap), handles the requests one after the other, puts the replies,
//! keeps them, and gives the slot back. The replies to the slot's next request, which another thread may take, go to
//! the same place: so they are put later.
//!
//! *Once.* A message with the number of the slot's last call is a repetition: its replies are put again, and nothing
//! else happens. So a client may put a request as often as it likes. It does so by itself, 10 ms after it began to
//! wait, and then at most every 100 ms. A message with a lower number is late, and is ignored.
//!
//! *Openings.* A message names the opening of the client that it belongs to, by the address of the client's region. No
//! two openings have an address in common: one that was freed is not given out again, and another incarnation of the
//! node has another node number. When a client is opened, the nodes' service threads exchange its address, and the
//! server's puts a word that it has it. The server handles messages of the present opening of each rank alone, and
//! begins to count anew with another one.
//!
//! *A slot is used again* for the next call when its reply was read. A call that was given up leaves it: it is free
//! when the reply is there, and before, if no other slot is free within a millisecond. Then the server may miss a call
//! that was given up; it never takes one for another.
//!
//! # Ordering
//!
//! *A hash, and no word that is put after the values.* Words of a put land in any order, so a message shows that it is
//! whole. A word behind it (`NRW → NRW`) would be a second operation for each message. It would also be whole only as
//! long as one endpoint uses a slot, while threads of a client, and of the server, take turns: puts of two endpoints
//! have no order. A repetition may land late over the next message of its slot, or its replies over the next replies,
//! in whole or in part. The hash rejects mixtures, the number what is old, and the next repetition of the live call
//! mends the slot.
//!
//! *Effect before reply.* The handler has returned before the replies are put (`CW`, `CR → NLR`).
//!
//! *Read before reuse.* A client reads a reply before it puts the slot's next request (`CR → NLR`), and the server
//! reads a request before it puts its reply.
//!
//! *Two threads of a server.* One claims a slot. It compares the opening again after the claim: what it has read may be
//! of an opening that was replaced meanwhile, and the other thread may have counted anew.
//!
//! # Costs
//!
//! | call | round trips | operations |
//! |---|---|---|
//! | [`Client::call`] of the client | 1 | 1 put, whatever the request's length; its wait polls the client's own memory |
//! | the server, for it | | 1 put |
//! | [`Client::begin_batch`], [`Client::call_many`]: up to `batch_max` requests together | 1 | 1 put, and 1 put of the server; several such puts at once ring one doorbell |
//! | each further 10 to 100 ms of a wait | | 1 put; if the server has answered, 1 put of it |
//! | [`Server::try_serve`] and the waits of a server that find nothing | | none: they poll a word for each slot of each node with a client |
//! | opening a client | | control messages of the service threads, and 1 put |
//!
//! Messages of up to 64 words and four requests need no memory but the endpoint's buffers, and a buffer of a batch. The
//! server holds an uncontended lock of its node while it keeps the replies. A thread that waits for requests or replies
//! spins for a moment, and then sleeps until a put wakes it; over RDMA it polls.
//!
//! Memory: with n ranks, window w and batches of b, the server has n · w slots of 32 bytes and b requests, and as much
//! of its own for the last replies; each client w slots of 40 bytes and b replies. Slots take an odd number of cache
//! lines.
//!
//! # When a node dies, or leaves
//!
//! *A client's.* Requests that it has put are handled, or not. Its replies go nowhere. Its slots are the next client's
//! of its rank: an opening of its own, with numbers from 1. The other clients notice nothing.
//!
//! *The server's.* A call that is under way ends with [`EffectUnknown`] as soon as nothing of the server can land any
//! more, and its reply has not. A call that begins later ends with the fabric's error, after which nothing has
//! happened: [`effect_of`] says so of any error. The server's memory is lost: a server that is started again is another
//! one, and its clients are opened again. So nothing is repeated behind the caller's back.
//!
//! *A client that is stopped* has up to `window` messages in its slots, which wait for nothing. No reply waits for a
//! client.
//!
//! *A server that is stopped* lets calls time out, with [`EffectUnknown`] or [`WindowFull`].
//!
//! # Limits
//!
//! A server's node calls its handler itself: it has no client. Requests of different puts are handled in any order. The
//! record of handled calls is in the server's memory alone: exactly-once ends with it. For what has to outlive a
//! server, use a [replicated log](https://docs.rs/farfield-mu).
//!
//! Source: the shape is that of FaRM's and HERD's message slots (Dragojević et al., NSDI 2014; Kalia et al., SIGCOMM
//! 2014), with Birrell and Nelson's last reply of each activity (1984). Openings, hashes and slots that several
//! endpoints share are ours.

#![forbid(unsafe_code)]

#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod call;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod client;
mod errors;
mod incoming;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod layout;
mod many;
pub mod mutants;
mod options;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod requests;
mod server;
mod service;
// The unit tests run none of them, and are built sooner without.
#[cfg(all(feature = "scenarios", not(test)))]
pub mod scenarios;
#[cfg(test)]
mod tests;

// Where the seeded bugs are on, copies of the modules that have a `cfg(any(not(seeded), …))` (`mutants`).
#[cfg(all(seeded, not(any(clippy, doc, rust_analyzer))))]
include!(concat!(env!("OUT_DIR"), "/seeded.rs"));

pub use call::{BatchCall, Call};
pub use client::Client;
pub use errors::{
    CallEnded, Effect, EffectUnknown, NoReply, NotSent, ReplyMalformed, ReplyTooLong, RequestMalformed, ServerClosed,
    WindowFull, effect_of,
};
pub use incoming::Incoming;
pub use options::RpcOptions;
pub use server::Server;
