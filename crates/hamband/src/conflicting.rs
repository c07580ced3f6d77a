//! Conflicting calls (rule CONF): the leader of a synchronisation group orders them in its replicated log.
//!
//! ```text
//! region `requests`, for each process a slot: a call that it wants this one to order
//!   +0  ┌──────────────────┬───┬──────────────┐
//!       │ bytes (32)       │ A │ group (31)   │   A: it was asked for in an earlier term, too
//!   +8  ├──────────────────┴──────────────────┤
//!       │ term, in which this process leads   │
//!   +16 ├─────────────────────────────────────┤
//!       │ number among the caller's calls     │
//!   +24 ├─────────────────────────────────────┤
//!       │ hash of all other words             │   XXH3
//!   +32 ├─────────────────────────────────────┤
//!       │ call                                │
//!       └─────────────────────────────────────┘
//! region `answers`, for each process a slot of the same form: why it has refused the call
//! ```
//!
//! A call waits until it is in the log and applied at its caller. The leader
//!
//! 1. applies all entries of the log that are decided, those of leaders before it too;
//! 2. asks whether the call is permissible. Until the call is in the log, only calls are applied that do not conflict with it, so
//!    the answer stays;
//! 3. makes sure that a majority has applied the entries of feeds that the call may depend on. Otherwise their sources and the leader could
//!    die, and a decided call could never be applied. As a rule it knows: it asks the others only after new entries, by one
//!    get each. Summaries that the call may depend on are part of the log's entry;
//! 4. proposes the call for the next index, and for no other one.
//!
//! *A call that is asked for twice.* When the leader dies, a process asks the next one, and the call may already be in the log. Calls have numbers,
//! and a leader that has applied all entries sees by the number of the caller's last one that this is ordered. A leader that has lost its office may find the old request
//! when it leads again: it serves a request only in the term that this names. And it may find the call in its own log, not decided. So the
//! refusal of a call that was asked for in two terms is ordered, too: as an entry without a call.

use core::time::Duration;

use farfield_core::toolkit::{ErrorContext, RefusedPause};
use farfield_core::{ErrorKind, Node, Result};
use farfield_fabric::{self as fabric, Endpoint, Instant, LocalMutex, NodeId, Region, RemotePtr, Word, read_words};
use farfield_mu::{NotLeader, NotNext, OutcomeUnknown, Proposer, ReplicatedLog};
use xxhash_rust::xxh3::xxh3_64;
use zerocopy::IntoBytes;

use crate::data_type::{DataType, Method, Update};
use crate::feed::READS_NO_MORE;
use crate::replica::{Wrong, decode, encode};
use crate::replicated::Shared;
use crate::watch::Watch;

/// Words of a slot before the call.
const HEADER: usize = 4;

/// In the number of a group: it was asked for before.
const AGAIN: usize = 1 << 31;

/// The first byte of an answer: the refusal follows, or it is too long.
pub(crate) const REFUSAL: u8 = 0;
pub(crate) const TOO_LONG: u8 = 1;

/// Bytes of a slot for a call or refusal of this length.
pub(crate) fn slot_bytes(bytes_max: usize) -> usize {
    (HEADER * 8 + bytes_max).next_multiple_of(64)
}

/// A synchronisation group of this process.
pub(crate) struct Order {
    node: Node,
    pub(crate) log: ReplicatedLog,
    /// 1 while a thread of this process orders a call.
    pub(crate) is_busy: Word,
    /// The proposer, and an endpoint for it alone: the puts of two endpoints have no order.
    proposer: LocalMutex<Option<(Proposer, Endpoint)>>,
    /// By process: how many entries of its feed are known to be applied at a majority.
    at_majority: LocalMutex<Vec<u64>>,
}

impl Order {
    pub(crate) fn new(node: &Node, log: ReplicatedLog, processes: usize) -> Result<Order> {
        let node = node.for_service();
        let proposer = LocalMutex::new(Some((log.proposer()?, node.background_endpoint()?)));
        Ok(Order { node, log, is_busy: Word::new(0), proposer, at_majority: LocalMutex::new(vec![0; processes]) })
    }

    /// The right of a thread of this process to order calls, if no other one has it.
    pub(crate) fn take_turn(&self) -> Option<Turn<'_>> {
        self.is_busy.compare_exchange(0, 1).ok()?;
        // It was given back before the word was set to 0.
        Some(Turn { order: self, proposer: self.proposer.lock().take() })
    }
}

pub(crate) struct Turn<'a> {
    order: &'a Order,
    proposer: Option<(Proposer, Endpoint)>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.order.proposer.lock() = self.proposer.take();
        self.order.is_busy.store(0);
        self.order.node.fabric().wake_local();
    }
}

/// A call to be ordered.
pub(crate) struct Asked<'a, U> {
    pub(crate) group: usize,
    pub(crate) origin: usize,
    pub(crate) number: u64,
    pub(crate) call: &'a U,
    /// An earlier leader may have it in its log.
    pub(crate) is_asked_again: bool,
}

/// How an attempt to order a call has ended.
pub(crate) enum Led<R> {
    Ordered,
    Refused(R),
    /// Another process leads, or none.
    NotLeader,
    /// It was proposed, and a later leader decides about it.
    Unknown,
}

/// The next step of an attempt.
enum Next<R> {
    End(Led<R>),
    /// Something has still to be applied here.
    Wait(u64, Watch),
    /// The feeds of these processes have entries that a majority has to have.
    Spread(Vec<(usize, u64)>),
    Propose(Vec<u8>, Led<R>),
}

/// The memory for requests and answers.
pub(crate) struct Desk {
    requests: Region,
    answers: Region,
    slot_bytes: usize,
    me: usize,
    /// By rank: the slots of this process there, for its requests and its answers.
    peers: Vec<(NodeId, RemotePtr<u64>, RemotePtr<u64>)>,
}

/// The content of a slot.
pub(crate) struct Slip {
    pub(crate) group: usize,
    pub(crate) is_again: bool,
    pub(crate) term: u64,
    pub(crate) number: u64,
    pub(crate) bytes: Vec<u8>,
}

impl Desk {
    pub(crate) fn new(
        requests: Region,
        answers: Region,
        slot_bytes: usize,
        me: usize,
        peers: Vec<(NodeId, RemotePtr<u64>, RemotePtr<u64>)>,
    ) -> Desk {
        Desk { requests, answers, slot_bytes, me, peers }
    }

    fn put(&self, endpoint: &Endpoint, to: RemotePtr<u64>, slip: &Slip) -> fabric::Result<()> {
        let words = HEADER + slip.bytes.len().div_ceil(8);
        debug_assert!(words * 8 <= self.slot_bytes, "the callers look");
        let mut image = endpoint.buf::<u64>(words)?;
        image[0] = u64::from(slip.is_again) << 63 | (slip.group as u64) << 32 | slip.bytes.len() as u64;
        image[1] = slip.term;
        image[2] = slip.number;
        image[HEADER..].fill(0);
        image[HEADER..].as_mut_bytes()[..slip.bytes.len()].copy_from_slice(&slip.bytes);
        image[3] = hash(&image);
        endpoint.put(to.byte_add((self.me * self.slot_bytes) as u64), &image).detach()
    }

    pub(crate) fn request(&self, endpoint: &Endpoint, leader: usize, slip: &Slip) -> fabric::Result<()> {
        self.put(endpoint, self.peers[leader].1, slip)
    }

    pub(crate) fn answer(&self, endpoint: &Endpoint, caller: usize, slip: &Slip) -> fabric::Result<()> {
        self.put(endpoint, self.peers[caller].2, slip)
    }

    /// A request of a process, if all of it is there.
    pub(crate) fn requested(&self, caller: usize) -> Option<Slip> {
        self.read(&self.requests, caller)
    }

    /// The answer of a process, if all of it is there.
    pub(crate) fn answered(&self, leader: usize) -> Option<Slip> {
        self.read(&self.answers, leader)
    }

    /// Watches the words that change when a process answers.
    pub(crate) fn watch_answers(&self, watch: &mut Watch) {
        for peer in 0..self.peers.len() {
            let words = self.words(&self.answers, peer);
            let is_whole = words.iter().all(|word| *word == 0) || slip(&words).is_some();
            watch.add_slot(&self.answers, peer * self.slot_bytes, &words, 3, is_whole);
        }
    }

    fn words(&self, region: &Region, peer: usize) -> Vec<u64> {
        let mut words = vec![0; self.slot_bytes / 8];
        read_words(region.words(peer * self.slot_bytes, words.len()), &mut words);
        words
    }

    fn read(&self, region: &Region, peer: usize) -> Option<Slip> {
        // A look at one word, as a rule.
        let is_empty = region.word(peer * self.slot_bytes + 16).load() == 0;
        if is_empty { None } else { slip(&self.words(region, peer)) }
    }
}

/// The content of a slot, if all of it is there.
fn slip(slot: &[u64]) -> Option<Slip> {
    let bytes = slot[0] as u32 as usize;
    let words = slot.get(..HEADER + bytes.div_ceil(8))?;
    let slip = || Slip {
        group: (words[0] >> 32) as usize & (AGAIN - 1),
        is_again: words[0] >> 63 != 0,
        term: words[1],
        number: words[2],
        bytes: words[HEADER..].as_bytes()[..bytes].to_vec(),
    };
    (words[2] != 0 && words[3] == hash(words)).then(slip)
}

/// Of all words but the hash itself.
fn hash(words: &[u64]) -> u64 {
    let (header, call) = words.split_at(HEADER);
    xxh3_64(header[..3].as_bytes()).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ xxh3_64(call.as_bytes())
}

/// A request that was served: group, term and number.
pub(crate) type Request = (usize, u64, u64);

impl<T: DataType> Shared<T> {
    /// Orders a call, if this process leads its group. It takes a round trip, as a rule, for which the thread is blocked: it ends
    /// all that it has begun.
    pub(crate) fn lead(
        &self,
        turn: &mut Turn<'_>,
        asked: &Asked<'_, T::Update>,
        timeout: Duration,
    ) -> Result<Led<T::Refusal>> {
        let Some((proposer, endpoint)) = &mut turn.proposer else { return Ok(Led::NotLeader) };
        endpoint.set_timeout(timeout);
        endpoint.block_on(self.lead_with(proposer, endpoint, turn.order, asked))
    }

    async fn lead_with(
        &self,
        proposer: &mut Proposer,
        endpoint: &Endpoint,
        order: &Order,
        asked: &Asked<'_, T::Update>,
    ) -> Result<Led<T::Refusal>> {
        let deadline = endpoint.deadline();
        loop {
            // All entries before this index are decided, also those of leaders before this one.
            let index = match proposer.ready(endpoint).await {
                Err(error) if error.custom_ref::<NotLeader>().is_some() => return Ok(Led::NotLeader),
                index => index?,
            };
            match self.next_of(asked, index)? {
                Next::End(end) => return Ok(end),
                Next::Wait(changes, watch) => {
                    let has_changed = || {
                        (watch.has_changed() || self.changes.load() != changes || !order.log.is_leader()).then_some(())
                    };
                    let waited = endpoint.wait_until(deadline, has_changed).await;
                    waited.waiting_for("calls that an entry of the log depends on")?;
                }
                Next::Spread(entries) => self.spread(endpoint, order, &entries, deadline).await?,
                Next::Propose(entry, led) => match proposer.propose_at(endpoint, index, &entry).await {
                    Ok(_) => return Ok(led),
                    Err(error) if error.custom_ref::<NotLeader>().is_some() => return Ok(Led::NotLeader),
                    Err(error) if error.custom_ref::<NotNext>().is_some() => {}
                    Err(error) if error.custom_ref::<OutcomeUnknown>().is_some() => return Ok(Led::Unknown),
                    Err(error) => return Err(error),
                },
            }
        }
    }

    fn next_of(&self, asked: &Asked<'_, T::Update>, index: u64) -> Result<Next<T::Refusal>> {
        let Asked { group, origin, number, call, is_asked_again } = *asked;
        let mut local = self.local.lock();
        let (some, watch) = local.drain_and_watch()?;
        let changes = self.note(some);
        let of_group = &local.groups[group];
        if of_group.applied.last[origin] >= number {
            return Ok(Next::End(Led::Ordered));
        }
        if of_group.entries() < index {
            return Ok(Next::Wait(changes, watch));
        }
        if let Err(refusal) = local.replica.state.check(call) {
            if !is_asked_again {
                return Ok(Next::End(Led::Refused(refusal)));
            }
            let answer = self.encode_refusal(&refusal).map_err(|wrong| local.error(origin, wrong))?;
            let entry = local.replica.encode_refused(origin, number, &answer);
            let entry = entry.map_err(|wrong| local.error(origin, wrong))?;
            return Ok(Next::Propose(entry, Led::Refused(refusal)));
        }
        let at_majority = self.orders[group].at_majority.lock();
        let missing = of_group.relies_on.iter().zip(at_majority.iter()).enumerate();
        let missing: Vec<(usize, u64)> = missing
            .filter(|(_, (needed, there))| needed > there)
            .map(|(process, (needed, _))| (process, *needed))
            .collect();
        if !missing.is_empty() {
            return Ok(Next::Spread(missing));
        }
        let entry = local.replica.encode_ordered(&of_group.applied, origin, number, call, Vec::new());
        let entry = entry.map_err(|wrong| local.error(origin, wrong))?;
        Ok(Next::Propose(entry, Led::Ordered))
    }

    /// The bytes of an answer, and of an entry for a call that is refused.
    fn encode_refusal(&self, refusal: &T::Refusal) -> Result<Vec<u8>, Wrong<T::Refusal>> {
        let bytes = encode(refusal, vec![REFUSAL])?;
        Ok(if bytes.len() > self.refusal_bytes_max + 1 { vec![TOO_LONG] } else { bytes })
    }

    /// Waits until a majority has applied these entries of feeds, this process among them.
    async fn spread(
        &self,
        endpoint: &Endpoint,
        order: &Order,
        entries: &[(usize, u64)],
        deadline: Instant,
    ) -> Result<()> {
        let processes = self.counts.len();
        let (needed, mut pause) = (processes / 2, RefusedPause::default());
        loop {
            let mut late = Vec::new();
            let rows = self.counts.iter().filter(|(rank, ..)| *rank != self.me);
            let gets: Vec<_> = rows
                .map(|(_, node, row)| {
                    let into = endpoint.buf::<u64>(processes);
                    (*node, into.map(|into| endpoint.get_into(*row, into)))
                })
                .collect();
            let mut have = 0;
            for (node, get) in gets {
                let row = match get {
                    Ok(get) => get.await,
                    Err(error) => Err(error),
                };
                let has = |(process, count): &(usize, u64)| {
                    row.as_ref().is_ok_and(|row| row[*process] != READS_NO_MORE && row[*process] >= *count)
                };
                if entries.iter().all(has) {
                    have += 1;
                } else {
                    late.push(node);
                }
                if have >= needed {
                    break;
                }
            }
            if have >= needed {
                let mut at_majority = order.at_majority.lock();
                entries.iter().for_each(|(process, count)| at_majority[*process] = at_majority[*process].max(*count));
                return Ok(());
            }
            let now = endpoint.now();
            if now >= deadline {
                let what = "a majority to apply what a call depends on".into();
                return Err(ErrorKind::Timeout { what, waited: endpoint.timeout(), missing: late }.into());
            }
            pause.wait(endpoint, deadline).await;
        }
    }

    /// Orders the requests of other processes, on the service thread. The result: something was done; something has to be repeated.
    pub(crate) fn serve(&self, endpoint: &Endpoint, served: &mut [Option<Request>]) -> (bool, bool) {
        let (mut some, mut retry) = (false, false);
        for (caller, last) in served.iter_mut().enumerate() {
            let Some(slip) = self.desk.requested(caller).filter(|_| caller != self.me) else { continue };
            let Some(order) = self.orders.get(slip.group) else { continue };
            let request = (slip.group, slip.term, slip.number);
            if *last == Some(request) || !order.log.is_leader() || order.log.term() != slip.term {
                continue;
            }
            let Some(mut turn) = order.take_turn() else {
                retry = true;
                continue;
            };
            match self.serve_one(endpoint, &mut turn, caller, &slip) {
                Ok(true) => {
                    *last = Some(request);
                    some = true;
                }
                Ok(false) => {}
                Err(_) => retry = true,
            }
        }
        (some, retry)
    }

    /// False if this process does not lead.
    fn serve_one(&self, endpoint: &Endpoint, turn: &mut Turn<'_>, caller: usize, slip: &Slip) -> Result<bool> {
        let call = decode::<T::Update, T::Refusal>(&slip.bytes);
        let (call, _) = call.map_err(|wrong| self.local.lock().error(caller, wrong))?;
        let (group, number, is_asked_again) = (slip.group, slip.number, slip.is_again);
        let asked = Asked { group, origin: caller, number, call: &call, is_asked_again };
        if self.local.lock().replica.tables.group_of[call.method().number()] != Some(slip.group) {
            return Err(ErrorKind::Corrupt { what: format!("a request for group {}", slip.group) }.into());
        }
        // A round trip, as a rule. The thread has other work, too.
        match self.lead(turn, &asked, SERVE_AT_MOST)? {
            Led::Ordered => Ok(true),
            // The caller asks the next leader.
            Led::NotLeader | Led::Unknown => Ok(false),
            Led::Refused(refusal) => {
                let bytes = self.encode_refusal(&refusal);
                let bytes = bytes.map_err(|wrong| self.local.lock().error(caller, wrong))?;
                let Slip { group, is_again, term, number, .. } = *slip;
                self.desk.answer(endpoint, caller, &Slip { group, is_again, term, number, bytes })?;
                Ok(true)
            }
        }
    }
}

/// How long the service thread orders one call.
const SERVE_AT_MOST: Duration = Duration::from_millis(1);
