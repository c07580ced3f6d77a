//! Which nodes have clients, and how they are asked whether their calls use something (`sections`).
//!
//! Nodes with clients come and go, and none of them needs to know the others. Each memory node has a *table*:
//!
//! ```text
//! region `clients`: a word for each node that may have clients and for each place of a memory node, one for each client, six for each
//! place of a memory node, and one
//!   ┌──────────────────────────────────────────────┬───┬────────────────────────┬───┬─────────────────┬───┬──────────────┐
//!   │ where requests to its present incarnation go │ … │ timestamps it reserves │ … │ its seat        │ … │ its progress │
//!   └──────────────────────────────────────────────┴───┴────────────────────────┴───┴─────────────────┴───┴──────────────┘
//! region `requests` of a node with clients: for each client of all nodes, and for each place of a memory node
//!   +0  ┌────────┬────────────────────────┬───────────────────────────────┬────────┐
//!       │ number │ where the answers go   │ seat, if a memory node asks   │ number │   128 bytes
//!       └────────┴────────────────────────┴───────────────────────────────┴────────┘
//! region `answers` of a node with clients: for each of its clients, a word for each node that may have clients and each memory node
//! ```
//!
//! A *seat* is where the regions of a memory node are (`view`). A memory node that replaces another one has calls, too,
//! and asks all nodes (`replacement`); only then has it requests and a place among those that are asked.
//!
//! Each shard has its own (`shards`).
//!
//! A node registers itself at all memory nodes that live before its first call (`NAW`, waited for). A client that wants
//! something back reads the table at a majority, after the writes that have replaced it have ended there. So it finds
//! each node with calls that may have begun before. If it does not find a node, some memory node of the two majorities
//! was asked before that node was registered there, and all calls of that node begin later still.
//!
//! *Successors.* A node that is started again has other memory, and the numbers of the clients before it
//! (`succession`). A timestamp with one of these numbers has to be new. So clients reserve timestamps before they use
//! them, up to a minute at a time.
//!
//! *Order of a request.* The first number, the address and the second number are put one after the other (`NRW → NRW`),
//! and read in the opposite order. If both numbers are the same, the address between them is of the same incarnation.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

use farfield_core::toolkit::ErrorContext;
use farfield_core::{Error, MemberStatus, Node, Result};
use farfield_fabric::{self as fabric, Buf, BufOp, Endpoint, LocalMutex, NodeId, Region, RemotePtr};

use smallvec::SmallVec;

use crate::client::Core;
use crate::errors::{MemoryLost, NoMajority};
use crate::layout::REGION_COUNT;
use crate::patience::ATTEMPT;
use crate::raise::Raise;
use crate::replicas::PerReplica;
use crate::version::Location;
use crate::view::{Replica, Seat, Standing, View};

/// Bytes between the requests of two clients, which may be on different nodes.
pub(crate) const REQUEST_BYTES: usize = 128;

/// The parts of a request, in words.
pub(crate) const FIRST: usize = 0;
pub(crate) const ANSWERS: usize = 1;
pub(crate) const SEAT: usize = 2;
pub(crate) const SECOND: usize = SEAT + REGION_COUNT;

/// Where the words of a table are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Table {
    pub(crate) nodes: usize,
    pub(crate) clients: usize,
    pub(crate) memory_nodes: usize,
}

impl Table {
    pub(crate) fn bytes(self) -> usize {
        (self.progress() + 1) * 8
    }

    /// Those that may be asked: nodes with clients, and memory nodes that replace others.
    pub(crate) fn asked(self) -> usize {
        self.nodes + self.memory_nodes
    }

    /// Those that may ask.
    pub(crate) fn askers(self) -> usize {
        self.clients + self.memory_nodes
    }

    /// The entry of a node, by its rank among those that may be asked.
    pub(crate) fn node(self, rank: usize) -> usize {
        rank
    }

    /// The timestamps that a client reserves.
    fn client(self, writer: usize) -> usize {
        self.asked() + writer
    }

    /// The seat of a memory node. It is that of the first shard that counts.
    pub(crate) fn seat(self, replica: usize) -> usize {
        self.asked() + self.clients + replica * REGION_COUNT
    }

    /// What the memory node of this table gets just now, when it joins.
    pub(crate) fn progress(self) -> usize {
        self.seat(self.memory_nodes)
    }
}

/// The means of a node with clients to ask the others.
pub(crate) struct Asks {
    pub(crate) table: Table,
    /// Of each of this node's clients, the answers of all that may be asked.
    pub(crate) answers: Region,
    /// What a memory node that replaces another one tells with its requests.
    pub(crate) seat: LocalMutex<Option<Seat>>,
}

/// A node that has to answer a request.
pub(crate) struct Asked {
    rank: usize,
    requests: RemotePtr<u64>,
    /// The number of the request to it. Of two openings of one place, each has its own.
    number: u64,
    pub(crate) is_told: bool,
    /// It has answered, has closed the object, or has gone.
    pub(crate) is_over: bool,
}

/// Those that have to answer a request. It is on the path of a write now and then, so a few need no allocation.
pub(crate) type AllAsked = SmallVec<[Asked; 4]>;

impl Asked {
    /// Whether the request was not taken yet.
    pub(crate) fn is_refused(&self) -> bool {
        !self.is_told && !self.is_over
    }
}

/// A look at the tables that is under way.
#[derive(Default)]
pub(crate) struct Count<'e> {
    pending: PerReplica<BufOp<'e, u64>>,
    tables: PerReplica<Buf<'e, u64>>,
}

/// The state of the tables when a node was entered there.
pub(crate) struct Entered {
    /// For each of its clients, a timestamp that no earlier client with its number has used or will use.
    pub(crate) reserved: Vec<u64>,
    /// Whether there were earlier ones.
    pub(crate) succeeds: bool,
}

/// Enters this node in the tables of all memory nodes that have not gone, when the incarnations before it have been
/// evicted. A majority would be enough; but then an entry that is late elsewhere would be found as well for a long
/// time.
pub(crate) fn register(
    node: &Node,
    endpoint: &Endpoint,
    replicas: &[Replica],
    table: Table,
    rank: usize,
    writers: core::ops::Range<usize>,
    requests: RemotePtr<u64>,
) -> Result<Entered> {
    let majority = replicas.len() / 2 + 1;
    let get = async |replica: &Replica| -> fabric::Result<Vec<u64>> {
        let mut found = vec![endpoint.get(replica.clients.at(table.node(rank))).await?];
        for writer in writers.clone() {
            found.push(endpoint.get(replica.clients.at(table.client(writer))).await?);
        }
        Ok(found)
    };
    let look = || on_each_home(node, endpoint, replicas, majority, |replica| Box::pin(get(replica)));
    for entry in look()?.iter().map(|words| words[0]).filter(|entry| *entry != 0) {
        let earlier = RemotePtr::<u64>::from_packed(entry).node();
        let is_over = || (earlier == node.id() || is_out(node, earlier)).then_some(());
        let waited = endpoint.block_on(node.wait_for_members(endpoint, endpoint.deadline(), is_over));
        let what = "an earlier node of this place to be evicted";
        waited.waiting_for_nodes(what, &[earlier])?;
    }
    // Nothing of them lands any more: this is the last that they have reserved.
    let found = look()?;
    let reserved = |client: usize| found.iter().map(|words| words[1 + client]).max().unwrap_or(0);
    let reserved = (0..writers.len()).map(reserved).collect();
    let succeeds = found.iter().any(|words| words[0] != 0);
    enter(node, endpoint, replicas, table.node(rank), requests)?;
    Ok(Entered { reserved, succeeds })
}

/// Puts an entry of a node into the tables of all memory nodes that count and have not gone.
pub(crate) fn enter(
    node: &Node,
    endpoint: &Endpoint,
    replicas: &[Replica],
    at: usize,
    requests: RemotePtr<u64>,
) -> Result<()> {
    let entry = [0, requests.packed()];
    on_each_home(node, endpoint, replicas, replicas.len() / 2 + 1, |replica| {
        Raise::new(endpoint, replica.clients.at(at), entry, |found, entry| found == entry)
    })
    .map(drop)
}

/// Enters this node also where a memory node joins, which may have had its copy of the table before `register`. If a
/// look after that does not find its seat, it gets its copy later, and with it the entry.
///
/// Otherwise it would keep the entry of an earlier opening of this node for good, and each request would also go to
/// that one.
pub(crate) fn enter_where_one_joins(
    node: &Node,
    endpoint: &Endpoint,
    mut replicas: Vec<Replica>,
    at: usize,
    requests: RemotePtr<u64>,
) -> Result<()> {
    replicas.iter_mut().for_each(|replica| replica.counts |= replica.joins);
    enter(node, endpoint, &replicas, at, requests)
}

/// The seats of the memory nodes, as their tables have them: those that an object was opened with, or of others that
/// have replaced them. They are looked up at all that live.
pub(crate) fn agreed_seats(node: &Node, endpoint: &Endpoint, view: &View, table: Table) -> Result<()> {
    let opened_with = view.seats();
    loop {
        let (before, replicas) = (view.changes(), view.replicas(0));
        let meet = async |replica: &Replica| -> fabric::Result<Vec<Seat>> {
            let mut seats = Vec::new();
            for (number, own) in opened_with.iter().enumerate() {
                let at = replica.clients.at(table.seat(number));
                let own_word = own.words()[0];
                // One that has replaced another writes its own seat.
                let found = if own.standing == Standing::First && !own.has_gone_before() {
                    endpoint.cas(at, 0, own_word).await?
                } else {
                    endpoint.get(at).await?
                };
                if found == 0 || found == own_word {
                    seats.push(*own);
                    continue;
                }
                let mut words = [found; REGION_COUNT];
                for (part, word) in words.iter_mut().enumerate().skip(1) {
                    *word = endpoint.get(at.at(part)).await?;
                }
                // They are there before it joins, and do not change afterwards, unless another one arrives.
                if endpoint.get(at).await? != found {
                    words[0] = Seat { standing: Standing::Comes, ..Seat::from_words(words) }.words()[0];
                }
                seats.push(Seat::from_words(words));
            }
            Ok(seats)
        };
        let met = on_each_home(node, endpoint, &replicas, 1, |replica| Box::pin(meet(replica)))?;
        for (number, own) in opened_with.iter().enumerate() {
            let others = || met.iter().map(|seats| seats[number]).filter(|seat| seat != own);
            // It has other memory than the one that earlier nodes have found. (A table may still have the seat of the
            // one that it replaces.)
            if own.standing == Standing::First
                && !own.has_gone_before()
                && others().any(|seat| seat.standing == Standing::First)
            {
                return Err(Error::custom(MemoryLost { node: own.node() }).about(own.node()));
            }
            let last = |seat: &Seat| (!node.has_gone(seat.node()), seat.node(), seat.standing);
            // The seats that were seen before count as well: a table may be behind.
            let seats = met.iter().map(|seats| seats[number]).chain([*own]);
            if let Some(seat) = seats.filter(|seat| seat.standing != Standing::First).max_by_key(last) {
                view.set(number, seat);
            }
        }
        if view.changes() == before {
            return Ok(());
        }
    }
}

/// Does something at each memory node that counts and has not gone: the results of so many at least.
pub(crate) fn on_each_home<'r, T: Clone, F>(
    node: &Node,
    endpoint: &Endpoint,
    replicas: &'r [Replica],
    needed: usize,
    each: impl Fn(&'r Replica) -> F,
) -> Result<Vec<T>>
where
    F: Future<Output = fabric::Result<T>> + Unpin,
{
    let start = endpoint.now();
    let mut results: PerReplica<T> = PerReplica::new();
    loop {
        let is_left = |(number, replica): &(usize, &Replica)| {
            replica.counts && !node.has_gone(replica.node) && results.iter().all(|(done, _)| done != number)
        };
        let left: Vec<(usize, &Replica)> = replicas.iter().enumerate().filter(is_left).collect();
        let done = endpoint.block_on(endpoint.quorum(left.iter().map(|(_, replica)| each(replica)), left.len()));
        let mut failed = Vec::new();
        let mut ended: Vec<usize> = Vec::new();
        for (at, result) in done.ended() {
            ended.push(*at);
            match result {
                Ok(result) => results.push((left[*at].0, result.clone())),
                Err(error) => failed.push((left[*at].1.node, error.clone())),
            }
        }
        let are_all_done = failed.is_empty() && ended.len() == left.len();
        if are_all_done && results.len() >= needed {
            return Ok(results.into_iter().map(|(_, result)| result).collect());
        }
        // One that has failed is tried again, until it is known to have gone.
        let is_fenced = failed.iter().any(|(_, error)| matches!(error.kind(), fabric::ErrorKind::Fenced));
        if are_all_done || is_fenced || endpoint.now() >= start + endpoint.timeout() {
            let gone = replicas.iter().filter(|replica| node.has_gone(replica.node));
            failed.extend(gone.filter_map(|replica| Some((replica.node, endpoint.check_alive(replica.node).err()?))));
            let about = failed.first().map_or(node.id(), |(node, _)| *node);
            let missing = NoMajority { of: replicas.len(), needed: replicas.len() / 2 + 1, failed };
            return Err(Error::custom(missing).about(about));
        }
        endpoint.block_on(endpoint.wait_for_change(endpoint.now() + ATTEMPT));
    }
}

/// Whether nothing that a node has begun can land or be read any more.
pub(crate) fn is_out(here: &Node, node: NodeId) -> bool {
    matches!(here.status_of(node), Some(MemberStatus::Evicted | MemberStatus::Departed))
}

impl<'e> Core<'e> {
    /// The nodes that have to answer, once a majority of the tables is there.
    pub(crate) fn count_clients(&self) -> Option<AllAsked> {
        let mut count = self.count.borrow_mut();
        let Some(Count { pending, tables }) = &mut *count else {
            // Its end is seen by a later look: this call waits for nothing.
            *count = Some(self.begin_count());
            return None;
        };
        let mut at = 0;
        while at < pending.len() {
            match Pin::new(&mut pending[at].1).poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Pending => at += 1,
                Poll::Ready(table) => {
                    let (replica, _) = pending.swap_remove(at);
                    tables.extend(table.ok().map(|table| (replica, table)));
                }
            }
        }
        if tables.len() < self.majority() {
            if tables.len() + pending.len() < self.majority() {
                *count = None;
            }
            return None;
        }
        let mut asked = AllAsked::new();
        for rank in 0..self.asks().table.asked() {
            for (_, table) in tables.iter().filter(|(_, table)| table[rank] != 0) {
                let requests = RemotePtr::from_packed(table[rank]);
                if asked.iter().all(|other| other.requests != requests) {
                    asked.push(Asked { rank, requests, number: 0, is_told: false, is_over: false });
                }
            }
        }
        *count = None;
        Some(asked)
    }

    fn begin_count(&self) -> Count<'e> {
        self.keep_view();
        let nodes = self.asks().table.asked();
        let get = |(replica, it): (usize, &Replica)| {
            Some((replica, self.endpoint.get_into(it.clients, self.endpoint.buf(nodes).ok()?)))
        };
        let pending = self.replicas.borrow().iter().enumerate().filter(|(_, it)| it.counts).filter_map(get).collect();
        Count { pending, tables: PerReplica::new() }
    }

    /// Asks a node, unless it has answered. True if nothing that it has begun before the request is under way.
    pub(crate) fn has_answered(&self, asked: &mut Asked, writer: usize, last_request: &mut u64) -> bool {
        let asks = self.asks();
        let row = self.client * asks.table.asked();
        let has_answered = || asks.answers.word((row + asked.rank) * 8).load() == asked.number;
        if asked.is_over || asked.is_told && has_answered() || is_out(self.shared.object.node(), asked.requests.node())
        {
            asked.is_over = true;
            return true;
        }
        if !asked.is_told {
            *last_request += 1;
            asked.number = *last_request;
            let at = asked.requests.byte_add((writer * REQUEST_BYTES) as u64);
            let put = |word: usize, value| self.endpoint.put_untracked(at.at(word), value).detach();
            let answers = asks.answers.remote::<u64>(row * 8).packed();
            let seat = asks.seat.lock().map(|seat| seat.words());
            let mut seat = seat.iter().flatten().enumerate();
            let told = put(FIRST, asked.number)
                .and_then(|()| put(ANSWERS, answers))
                .and_then(|()| seat.try_for_each(|(part, word)| put(SEAT + part, *word)))
                .and_then(|()| put(SECOND, asked.number));
            match told {
                Ok(()) => asked.is_told = true,
                // No client is left there, and none of their calls.
                Err(error) if matches!(error.kind(), fabric::ErrorKind::Freed { .. }) => asked.is_over = true,
                // A refused one is sent again; the members decide about a node that is not reached.
                Err(_) => {}
            }
        }
        asked.is_over
    }

    /// Asks those again that have not answered: a request or an answer may have been lost with its connection, or have
    /// come to a node that was closing. It is a new request, since the other one may count as answered there.
    pub(crate) fn ask_again(&self) {
        self.with_place(|place| {
            let (writer, pool) = (place.writer, &mut place.pool);
            pool.asked_again += 1;
            for asked in pool.asked.iter_mut().flatten() {
                asked.is_told &= self.has_answered(asked, writer, &mut pool.request);
            }
        });
    }

    /// The nodes that have not answered the last request; or the memory nodes, while their tables are missing.
    pub(crate) fn unanswered(&self) -> Vec<NodeId> {
        self.with_place(|place| {
            let (writer, pool) = (place.writer, &mut place.pool);
            let Some(asked) = &mut pool.asked else {
                return self.replicas.borrow().iter().map(|replica| replica.node).collect();
            };
            let missing = asked.iter_mut().filter_map(|asked| {
                let is_missing = !self.has_answered(asked, writer, &mut pool.request);
                is_missing.then(|| asked.requests.node())
            });
            missing.collect()
        })
    }

    /// Whether all have answered the last request. It continues the request.
    pub(crate) fn is_answered(&self) -> bool {
        self.with_place(|place| {
            let (writer, pool) = (place.writer, &mut place.pool);
            if pool.asked.is_none() {
                pool.asked = self.count_clients();
            }
            let Some(asked) = &mut pool.asked else { return false };
            let mut are_all = true;
            for asked in asked {
                are_all &= self.has_answered(asked, writer, &mut pool.request);
            }
            are_all
        })
    }
}

/// Timestamps that a client reserves at a time, in microseconds. It begins with few: many clients make only some calls.
const RESERVED_MIN: u64 = 2 * SLACK;
const RESERVED_MAX: u64 = 60_000_000;

/// So many are left when it reserves more: more than its calls can use meanwhile.
pub(crate) const SLACK: u64 = 1 << 20;

impl Core<'_> {
    /// Before a guess: so many timestamps are reserved that calls beside this one do not use them up. The result is the
    /// clock, which is set forward if it is behind the epoch of this register.
    pub(crate) async fn keep_reserved(&self, at: Location) -> Result<u64> {
        let mut clock = self.clock();
        if clock < at.base() {
            self.set_clock_to(at.base());
            clock = at.base();
        }
        let (next, reserved) = self.with_place(|place| (place.last.max(clock), place.reserved));
        if next + SLACK <= reserved {
            return Ok(clock);
        }
        self.reserve(next).await?;
        Ok(self.clock())
    }

    /// Reserves this timestamp, and those after it: no successor of this client uses them.
    #[cold]
    pub(crate) async fn reserve(&self, timestamp: u64) -> Result<()> {
        let known = self.with_place(|place| place.reserved);
        if timestamp + SLACK <= known {
            return Ok(());
        }
        let reserves = self.with_place(|place| {
            place.reserves = (2 * place.reserves).clamp(RESERVED_MIN, RESERVED_MAX);
            place.reserves
        });
        let (until, word) = (timestamp + reserves, self.asks().table.client(self.writer));
        let post = |replica: usize| {
            let word = self.replica(replica).clients.at(word);
            Ok(Raise::new(self.endpoint, word, [known, until], |found, until| found >= until))
        };
        // A memory node that replaces another one waits for sections only, and the others may have been asked after it
        // had its copy of the table.
        loop {
            self.keep_view();
            let view = self.seen_view.get();
            self.gather(self.order(self.writer), self.majority(), post).await?;
            if self.shared.view.changes() == view {
                break;
            }
        }
        self.with_place(|place| place.reserved = place.reserved.max(until));
        Ok(())
    }
}
