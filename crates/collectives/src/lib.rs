//! Collectives: calls that all members make together, to pass data from one to all, from all to one, or from all to
//! all.
//!
//! Each member sends to each other one over a *link*, which is memory of the receiver:
//!
//! ```text
//! region `slots` of a member: `slots` buffers for each other member, used in turn
//!   +0          ┌───────────────┬──────────────────────────────┬─
//!               │ call (24)     │ chunk (chunk_bytes)          │ …
//!               └───────────────┴──────────────────────────────┴─
//! region `words`: a cache line for each other member S
//!   +0          ┌──────────────────────────┬──────────────────────────┐
//!               │ sent by S (4)            │ taken by S (4)           │  chunks from S; chunks for S that it has taken
//!   +8          ├──────────────────────────┴──────────────────────────┤
//!               │ failed                                              │  0, or: a call has failed on S
//!               └─────────────────────────────────────────────────────┘
//! ```
//!
//! # Algorithm
//!
//! *A link* is a ring of slots with credit. The sender puts a chunk, together with the call's kind, root, sizes and
//! number, and then its word. The receiver waits for the word, compares the call with its own, and copies the chunk. It
//! returns room with the word of its own link in the opposite direction: with the next chunk that it sends there, or by
//! a put for each half of the slots. So no call needs a barrier at its end, and calls that follow each other overlap.
//!
//! | call | chunks |
//! |---|---|
//! | `broadcast` | from the root to each other member |
//! | `reduce`, `gather` | from each other member to the root |
//! | `all_reduce` | from all to all, and each member combines them; among three or more members, of more than 4 KiB or a chunk: each combines one block, and sends the result to all |
//! | `all_gather`, `all_to_all` | from all to all |
//!
//! Elements are combined in the order of ranks. So all members get the same bits, also of floating-point numbers, and
//! the operation has to be associative only. (`all_reduce` combines each element once, or on all members alike.)
//!
//! # Ordering
//!
//! *Chunk before word.* Both are puts to one node by one endpoint, so they land in this order (`NRW → NRW`), and the
//! receiver reads them in this order (`CR → CR`). No fence is needed. Pass the same endpoint to every call: the puts of
//! two endpoints have no order.
//!
//! *A call is no barrier and no fence.* What a member has put to another before the call, with the same endpoint, that
//! one sees when it has taken a chunk of the call. Puts to a third node may still be on their way: use a `Barrier` for
//! those.
//!
//! *Use of a slot.* The sender puts into a slot only when the receiver's word says that it has taken the slot's last
//! chunk. The receiver reads the chunk before it puts that word (`CR → NRW`), and the sender reads the word before it
//! puts the next chunk. The word counts chunks since the opening, so one that arrives late returns too little room,
//! never too much, and no chunk of an earlier call is taken for one of this call.
//!
//! *No circle of waiting members.* All make the same calls in the same order. A receiver has told the sender of all but
//! less than half of the slots that it has taken, and in a call in which all send, a member is at most half of the
//! slots ahead of the chunks that it has taken. So the member that is furthest behind always has room.
//!
//! # Costs
//!
//! No call waits for an operation: a call takes no round trip, and half of one passes until a chunk is there. With n
//! members, s slots and data of c chunks, one member posts:
//!
//! | call | puts |
//! |---|---|
//! | `broadcast`, root | 2·c·(n − 1) |
//! | `broadcast`, other | 1 for each s/2 chunks, which returns room |
//! | `reduce`, `gather`, root | n − 1 for each s/2 chunks |
//! | `reduce`, `gather`, other | 2·c |
//! | `all_reduce`, `all_gather`, `all_to_all` | 2·c·(n − 1); at most n − 1 more for each s/2 chunks |
//! | `all_reduce` in blocks | 4·(n − 1) for each chunk of a block; as above |
//!
//! `all_to_all` has c chunks for each other member. A call allocates no memory, unless it fails: chunks are sent from
//! the endpoint's buffers, of which there are as many as the longest-lived operation needs.
//!
//! # When a node dies, or calls differ
//!
//! Every call of the others ends, at once or when the death is known, with an error that names the node. It is a
//! [`CallFailed`], and so are the errors of all later calls: members may be at different calls now, so the object must
//! be reopened by all live members ([`Node::reopen`]). A call may have ended well on some members when it fails on
//! others. A member on which a call fails, for any cause, tells all others, and their calls fail, too.
//!
//! A member that makes another call, or with other sizes, is found where one takes a chunk of the other, and the call
//! fails on both ([`DifferentCalls`]). A member that only sends may end its call well, and see it in a later one. A
//! member that waits for another one than that which sends to it cannot see it: its call times out. The types of
//! equally long elements are not compared. A call that is dropped is told to the others by this member's next call;
//! until then they wait, at most until their deadlines.
//!
//! A call takes at most as long as the endpoint's timeout, however long its data is.
//!
//! A node may leave when its last call has ended; it flushes or drops its endpoint before, as after a barrier.
//!
//! Source: ring buffer and barrier of LOCO (§4, §5.2); the composition is ours.

#![forbid(unsafe_code)]

mod blocking;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod calls;
mod errors;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod links;
pub mod mutants;
mod options;
// The unit tests run none of them, and are built sooner without.
#[cfg(all(feature = "scenarios", not(test)))]
pub mod scenarios;

// Where the seeded bugs are on, copies of the modules that have a `cfg(any(not(seeded), …))` (`mutants`).
#[cfg(all(seeded, not(any(clippy, doc, rust_analyzer))))]
include!(concat!(env!("OUT_DIR"), "/seeded.rs"));

use farfield_core::toolkit::{ErrorContext, ObjectBuilder, Participants, Regions};
use farfield_core::{Error, ErrorKind, Node, Result, WaitLimit};
use farfield_fabric::{Endpoint, GroupKey, NodeId, Plain};

use self::calls::Work;
pub use self::errors::{CallDropped, CallFailed, CallKind, CallShape, DifferentCalls, FailedElsewhere, WrongLength};
use self::links::{Call, Links, Peer, WORDS_BYTES};
pub use self::options::CollectivesOptions;

/// An `all_reduce` of more bytes than this is sent in blocks: each member then combines one n-th of the elements. That
/// takes a step more, and pays when copying costs more than waiting.
const BLOCKS_FROM_BYTES: usize = 4096;

/// One member's part in the collectives of all members.
///
/// ```
/// use farfield::{Collectives, CollectivesOptions};
/// let nodes = farfield::local_session(3)?;
/// farfield::on_each(&nodes, |node| {
///     let (ep, me) = (node.endpoint()?, u64::from(node.id().0));
///     let mut all = Collectives::open(node, "all", CollectivesOptions::default())?;
///     ep.block_on(async {
///         let mut sums = [me, 1];
///         all.all_reduce(&ep, &mut sums, |a, b| a + b).await?;
///         assert_eq!(sums, [0 + 1 + 2, 3]);
///         let mut squares = [0; 3];
///         all.all_gather(&ep, &[me * me], &mut squares).await?;
///         assert_eq!(squares, [0, 1, 4]);
///         Ok(())
///     })
/// })?;
/// # Ok::<(), farfield::Error>(())
/// ```
pub struct Collectives {
    links: Links,
    members: Participants,
    /// Of this node.
    rank: usize,
    chunk_bytes: usize,
    /// For elements that are combined.
    scratch: [Vec<u8>; 2],
    /// Calls that have begun.
    calls: u64,
    state: State,
}

enum State {
    Idle,
    /// If it is found at the beginning of a call, the one before was dropped.
    Calling,
    Failed(Error),
}

impl Collectives {
    /// Opens the collectives among all members of the session, and waits for them to do so.
    ///
    /// ```
    /// # use farfield::{Collectives, CollectivesOptions};
    /// # let nodes = farfield::local_session(2)?;
    /// let open = |node: &farfield::Node| Collectives::open(node, "all", CollectivesOptions::default());
    /// let members = farfield::on_each(&nodes, open)?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// Invalid options; a node that is missing, dead or departed, or that opens it differently; no memory.
    pub fn open(node: &Node, path: &str, options: CollectivesOptions) -> Result<Collectives> {
        Collectives::open_among(node, path, &node.members_for(path), options)
    }

    /// Opens the collectives among these nodes, which must name the same, and waits for them to do so.
    ///
    /// ```
    /// # use farfield::{Collectives, CollectivesOptions};
    /// # let nodes = farfield::local_session(3)?;
    /// let pair = [nodes[0].id(), nodes[2].id()];
    /// let open = |node: &farfield::Node| Collectives::open_among(node, "pair", &pair, CollectivesOptions::default());
    /// let members = farfield::on_each(&[nodes[0].clone(), nodes[2].clone()], open)?; // node 1 does not open it
    /// assert_eq!((members[1].rank(), members[1].members()), (1, pair.to_vec()));
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `open`, or this node is not among them.
    pub fn open_among(
        node: &Node,
        path: &str,
        participants: &[NodeId],
        options: CollectivesOptions,
    ) -> Result<Collectives> {
        options.check(node).of(path)?;
        let CollectivesOptions { chunk_bytes, slots } = options;
        let members = Participants::new(participants);
        let rank = members.require(node.id()).of(path)?;
        let others = members.count() - 1;
        let (slot_words, slots_bytes, words_bytes) = options.sizes(others).of(path)?;
        let mut regions = Regions::new(node);
        let inbox = regions.alloc("slots", GroupKey::DATA, slots_bytes).of(path)?;
        let words = regions.alloc("words", GroupKey::SIGNAL, words_bytes).of(path)?;
        let layout = format!("chunk_bytes={chunk_bytes}, slots={slots}");
        let opening = ObjectBuilder::new(node, path, "Collectives").layout(&layout).regions(regions);
        let object = opening
            .participants(members.iter())
            .require_regions(move |_| vec![("slots".into(), slots_bytes as u64), ("words".into(), words_bytes as u64)])
            .open()?;
        let peer = |there: usize| {
            // Among the links to that member, which has none to itself.
            let (node, link) = (members.at(there), rank - usize::from(rank > there));
            let slots = object.remote::<u64>(node, "slots")?.at(link * slots * slot_words);
            let words = object.remote::<u64>(node, "words")?.byte_add((link * WORDS_BYTES) as u64);
            Ok(Peer { node, slots, words, sent: 0, taken: 0, told: 0 })
        };
        let peers = (0..members.count()).filter(|there| *there != rank).map(peer).collect::<Result<_>>()?;
        let links = Links { object, slots, slot_words, inbox, words, peers };
        let scratch = [vec![0; chunk_bytes], vec![0; chunk_bytes]];
        Ok(Collectives { links, members, rank, chunk_bytes, scratch, calls: 0, state: State::Idle })
    }

    /// The members, in the order of their ranks.
    ///
    /// ```
    /// # use farfield::{Collectives, CollectivesOptions};
    /// # let node = farfield::Node::builder().session("doc-coll-members").start()?;
    /// let all = Collectives::open(&node, "all", CollectivesOptions::default())?;
    /// assert_eq!(all.members(), [node.id()]);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn members(&self) -> Vec<NodeId> {
        self.members.iter().collect()
    }

    /// This node's position among the members, from 0. The parts of gathered data have this order.
    ///
    /// ```
    /// # use farfield::{Collectives, CollectivesOptions};
    /// # let node = farfield::Node::builder().session("doc-coll-rank").start()?;
    /// let all = Collectives::open(&node, "all", CollectivesOptions::default())?;
    /// assert_eq!(all.rank(), 0); // it is alone
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Copies the elements of the root to all other members. It ends on the root when they are sent, and on another
    /// member when it has them.
    ///
    /// ```
    /// # use farfield::{Collectives, CollectivesOptions};
    /// # let nodes = farfield::local_session(2)?;
    /// # let root = nodes[1].id();
    /// farfield::on_each(&nodes, |node| {
    ///     let (ep, mut all) = (node.endpoint()?, Collectives::open(node, "all", CollectivesOptions::default())?);
    ///     let mut data = if node.id() == root { [7u32, 8, 9] } else { [0; 3] };
    ///     ep.block_on(all.broadcast(&ep, root, &mut data))?;
    ///     assert_eq!(data, [7, 8, 9]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CallFailed`], with its cause: a dead or departed member, a timeout, another member's failure, different calls.
    /// The elements may be overwritten in part. Before anything is sent: the root is no member, or an element is longer
    /// than a chunk.
    pub async fn broadcast<T: Plain>(&mut self, endpoint: &Endpoint, root: NodeId, data: &mut [T]) -> Result<()> {
        let root = self.rank_of(root)?;
        let mut work = self.begin::<T>(endpoint, CallKind::Broadcast, root, data.len())?;
        let done = work.broadcast(data).await;
        self.end(endpoint, done)
    }

    /// Combines the elements of all members with the same index, in the order of ranks. The root's elements become the
    /// result. It ends on another member when its elements are sent.
    ///
    /// ```
    /// # use farfield::{Collectives, CollectivesOptions};
    /// # let nodes = farfield::local_session(2)?;
    /// # let root = nodes[1].id();
    /// farfield::on_each(&nodes, |node| {
    ///     let (ep, mut all) = (node.endpoint()?, Collectives::open(node, "all", CollectivesOptions::default())?);
    ///     let mut data = [1u64, 10 * u64::from(node.id().0)];
    ///     ep.block_on(all.reduce(&ep, root, &mut data, u64::wrapping_add))?;
    ///     assert!(node.id() != root || data == [2, 10]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Collectives::broadcast`].
    pub async fn reduce<T: Plain>(
        &mut self,
        endpoint: &Endpoint,
        root: NodeId,
        data: &mut [T],
        mut op: impl FnMut(T, T) -> T,
    ) -> Result<()> {
        let root = self.rank_of(root)?;
        let mut work = self.begin::<T>(endpoint, CallKind::Reduce, root, data.len())?;
        let done = work.reduce(data, &mut op).await;
        self.end(endpoint, done)
    }

    /// Combines the elements of all members with the same index, in the order of ranks. All members get the same
    /// result.
    ///
    /// ```
    /// # use farfield::{Collectives, CollectivesOptions};
    /// # let nodes = farfield::local_session(2)?;
    /// farfield::on_each(&nodes, |node| {
    ///     let (ep, mut all) = (node.endpoint()?, Collectives::open(node, "all", CollectivesOptions::default())?);
    ///     let mut largest = [f64::from(node.id().0)];
    ///     ep.block_on(all.all_reduce(&ep, &mut largest, f64::max))?;
    ///     assert_eq!(largest, [1.0]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Collectives::broadcast`].
    pub async fn all_reduce<T: Plain>(
        &mut self,
        endpoint: &Endpoint,
        data: &mut [T],
        mut op: impl FnMut(T, T) -> T,
    ) -> Result<()> {
        let in_blocks = self.members.count() > 2 && size_of_val(data) > BLOCKS_FROM_BYTES.min(self.chunk_bytes);
        let mut work = self.begin::<T>(endpoint, CallKind::AllReduce, 0, data.len())?;
        let done =
            if in_blocks { work.all_reduce_blocks(data, &mut op).await } else { work.all_reduce(data, &mut op).await };
        self.end(endpoint, done)
    }

    /// Brings the elements of all members to the root: `into` there has the elements of each, in the order of ranks.
    /// Other members pass an empty `into`.
    ///
    /// ```
    /// # use farfield::{Collectives, CollectivesOptions};
    /// # let nodes = farfield::local_session(2)?;
    /// # let root = nodes[0].id();
    /// farfield::on_each(&nodes, |node| {
    ///     let (ep, mut all) = (node.endpoint()?, Collectives::open(node, "all", CollectivesOptions::default())?);
    ///     let mut gathered = if node.id() == root { vec![0; 2] } else { vec![] };
    ///     ep.block_on(all.gather(&ep, root, &[node.id().0], &mut gathered))?;
    ///     assert!(node.id() != root || gathered == [0, 1]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Collectives::broadcast`]; [`WrongLength`].
    pub async fn gather<T: Plain>(
        &mut self,
        endpoint: &Endpoint,
        root: NodeId,
        data: &[T],
        into: &mut [T],
    ) -> Result<()> {
        let root = self.rank_of(root)?;
        let expected = if root == self.rank { data.len() * self.members.count() } else { 0 };
        self.check_length("into", into.len(), expected)?;
        let mut work = self.begin::<T>(endpoint, CallKind::Gather, root, data.len())?;
        let done = work.gather(data, into).await;
        self.end(endpoint, done)
    }

    /// Brings the elements of all members to all members: `into` has the elements of each, in the order of ranks.
    ///
    /// ```
    /// # use farfield::{Collectives, CollectivesOptions};
    /// # let nodes = farfield::local_session(2)?;
    /// farfield::on_each(&nodes, |node| {
    ///     let (ep, mut all) = (node.endpoint()?, Collectives::open(node, "all", CollectivesOptions::default())?);
    ///     let mut gathered = [0; 4];
    ///     ep.block_on(all.all_gather(&ep, &[node.id().0, 9], &mut gathered))?;
    ///     assert_eq!(gathered, [0, 9, 1, 9]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Collectives::broadcast`]; [`WrongLength`].
    pub async fn all_gather<T: Plain>(&mut self, endpoint: &Endpoint, data: &[T], into: &mut [T]) -> Result<()> {
        self.check_length("into", into.len(), data.len() * self.members.count())?;
        let mut work = self.begin::<T>(endpoint, CallKind::AllGather, 0, data.len())?;
        let done = work.exchange(data, into, true).await;
        self.end(endpoint, done)
    }

    /// Sends to each member its part: `data` has a part for each, in the order of ranks, and `into` gets a part from
    /// each.
    ///
    /// ```
    /// # use farfield::{Collectives, CollectivesOptions};
    /// # let nodes = farfield::local_session(2)?;
    /// farfield::on_each(&nodes, |node| {
    ///     let (ep, mut all) = (node.endpoint()?, Collectives::open(node, "all", CollectivesOptions::default())?);
    ///     let me = 10 * node.id().0;
    ///     let mut parts = [0; 2];
    ///     ep.block_on(all.all_to_all(&ep, &[me, me + 1], &mut parts))?;
    ///     assert_eq!(parts, [node.id().0, 10 + node.id().0]); // the part for this node, from each
    ///     Ok(())
    /// })?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Collectives::broadcast`]; [`WrongLength`].
    pub async fn all_to_all<T: Plain>(&mut self, endpoint: &Endpoint, data: &[T], into: &mut [T]) -> Result<()> {
        let members = self.members.count();
        self.check_length("data", data.len(), data.len() / members * members)?;
        self.check_length("into", into.len(), data.len())?;
        let mut work = self.begin::<T>(endpoint, CallKind::AllToAll, 0, data.len() / members)?;
        let done = work.exchange(data, into, false).await;
        self.end(endpoint, done)
    }

    fn rank_of(&self, root: NodeId) -> Result<usize> {
        self.members.require(root).of(self.links.object.path())
    }

    fn check_length(&self, what: &'static str, elements: usize, expected: usize) -> Result<()> {
        if elements == expected {
            return Ok(());
        }
        Err(Error::custom(WrongLength { what, elements, expected })).of(self.links.object.path())
    }

    /// Begins a call in which one member sends `elements` to another.
    fn begin<'a, T>(
        &'a mut self,
        endpoint: &'a Endpoint,
        kind: CallKind,
        root: usize,
        elements: usize,
    ) -> Result<Work<'a>> {
        let object = &self.links.object;
        let (bytes, max_bytes) = (size_of::<T>(), self.chunk_bytes);
        if bytes > max_bytes {
            return Err(ErrorKind::TooLarge { bytes, max_bytes }).of(object.path());
        }
        object.check_current()?;
        let failure = match &self.state {
            State::Idle => self.links.failure(endpoint, None),
            State::Calling => Some(Error::custom(CallDropped)),
            State::Failed(error) => return Err(error.clone()),
        };
        if let Some(failure) = failure {
            return Err(self.fail(endpoint, failure));
        }
        self.state = State::Calling;
        let shape = CallShape {
            kind,
            root: root as u16,
            element_bytes: bytes as u32,
            bytes: (bytes * elements) as u64,
            number: self.calls,
        };
        self.calls += 1;
        let call = Call { shape, limit: WaitLimit::Timeout };
        // Elements without bytes are all in one chunk.
        let most = self.chunk_bytes.checked_div(bytes).unwrap_or(usize::MAX);
        Ok(Work { links: &mut self.links, scratch: &mut self.scratch, endpoint, call, me: self.rank, root, most })
    }

    fn end(&mut self, endpoint: &Endpoint, done: Result<()>) -> Result<()> {
        match done {
            Ok(()) => {
                self.state = State::Idle;
                Ok(())
            }
            Err(error) => Err(self.fail(endpoint, error)),
        }
    }

    /// The error of this call and all later ones.
    #[cold]
    fn fail(&mut self, endpoint: &Endpoint, because: Error) -> Error {
        self.links.tell_failed(endpoint, &because);
        let path = self.links.object.path();
        let error = match because.kind() {
            // These contain the remedy themselves.
            ErrorKind::Reopened { .. } | ErrorKind::Reopens { .. } => because,
            _ => Error::custom(CallFailed { because }),
        };
        let error = error.of(path);
        self.state = State::Failed(error.clone());
        error
    }
}

#[cfg(test)]
mod tests;
