//! A barrier for the threads of all nodes.
//!
//! Each thread owns a row of a table of counters, [`Sst`] at the barrier's path. To pass, a thread
//!
//! 1. waits until everything it has put *to any node*, in any group, is visible there, and everything that it gets has
//!    landed (a global fence over every node of the session);
//! 2. counts itself one higher, locally and by a put to every other node;
//! 3. waits until every row of its own copy is at least as high.
//!
//! The fence is the first step, and covers every node. The papers' first bug (LOCO appendix D, Fig. 22) was to leave it
//! out: puts to one node land in order, so the signalled node sees the puts to *itself*, but a third node may still
//! wait for its data. It is not enough that only participants fence, too, when barriers of different threads follow
//! each other (Fig. 12). Hence the fence covers every node.
//!
//! | call | round trips | operations of one thread, n nodes |
//! |---|---|---|
//! | `wait` | 1; 0 if nothing is to be fenced | a get from each node with puts since its last fence, n − 1 puts |
//! | `wait_unfenced` | 0 | n − 1 puts |
//!
//! The round trips do not include the time until the others arrive. The put of an arrival is not fenced by the next
//! call, if all earlier puts to that node were: a thread that sees it reads nothing because of it but data that was
//! fenced before.
//!
//! *When a node dies*, waiting threads get an error that names it, as long as any node is missing. This holds even if
//! the dead node had arrived, since other nodes may know of its death before they arrive, and then never do. Some
//! threads may have passed: those that had seen all arrive. A node that leaves after it has arrived counts as arrived.
//! The survivors, together with joining nodes, reopen the barrier ([`Node::reopen`]). Threads that wait when another
//! node has called `reopen` get an error that reports it ([`ErrorKind::Reopens`]).
//!
//! Memory: `nodes · threads_per_node` rows of 8 bytes on every node, monotonic counters. Source: LOCO §4, Fig. 7 and
//! 11.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::sync::Arc;

use farfield_fabric::{self as fabric, Attempt, Endpoint, Instant, NodeId, Word, WordWait};

use crate::error::{Error, ErrorContext, ErrorKind, Missed, Result};
use crate::node::{LongWait, Meter, Node, RefusedPause, Timing};
use crate::objects::options::at_least_one;
use crate::objects::owned_var::OwnedWriter;
use crate::objects::participants::Participants;
use crate::objects::sst::{Sst, check_rows};

/// A barrier over a fixed number of threads on every node.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// let node = farfield::Node::builder().session("doc-barrier").start()?;
/// let barrier = farfield::Barrier::open(&node, "start", 1)?;
/// let (mut thread, ep) = (barrier.thread()?, node.endpoint()?);
/// ep.block_on(thread.wait(&ep))?;
/// # Ok(()) }
/// ```
pub struct Barrier(Arc<Shared>);

struct Shared {
    path: String,
    node: Node,
    arrived: Sst<u64>,
    threads_per_node: usize,
    meter: Meter,
    /// This node's.
    first_row: usize,
    /// Threads of this node that have a row.
    taken: Word,
}

/// The calls, as they are measured.
const WAIT: usize = 0;
const WAIT_UNFENCED: usize = 1;

/// The future of a wait: of its rest after the arrival, or of all of it.
enum Waiting<'a, W> {
    AfterArrival(AllArrived<'a>),
    Whole(W),
}

impl<W: Future<Output = Result<()>> + Unpin> Future for Waiting<'_, W> {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match self.get_mut() {
            Waiting::AfterArrival(rest) => Pin::new(rest).poll(cx),
            Waiting::Whole(rest) => Pin::new(rest).poll(cx),
        }
    }
}

/// The rest of a wait when all nodes have been told of the arrival: until all rows have arrived.
struct AllArrived<'a> {
    thread: &'a BarrierThread,
    endpoint: &'a Endpoint,
    /// The first row that is not known to have arrived.
    next: usize,
    wait: WordWait,
    long: LongWait,
}

impl Future for AllArrived<'_> {
    type Output = Result<()>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let AllArrived { thread, endpoint, next, wait, long } = self.get_mut();
        let all_are_here = || thread.have_arrived(next).then_some(Ok(()));
        match wait.poll(endpoint, cx, all_are_here, || thread.never_comes(endpoint, long).map(Err)) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(Ok(()))) => Poll::Ready(Ok(())),
            Poll::Ready(Ok(Err(error))) => Poll::Ready(Err(error).of(&thread.barrier.path)),
            Poll::Ready(Err(late)) => Poll::Ready(thread.is_late(next, late).of(&thread.barrier.path)),
        }
    }
}

/// The wait reports a dead or departed peer, unless it had arrived before it left.
#[cold]
fn note_untold(missed: &mut Option<Missed>, node: NodeId, error: fabric::Error) {
    if !error.is_unreachable() {
        missed.get_or_insert_default().note(node, Err(error));
    }
}

/// One thread's part in a [`Barrier`].
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// # let nodes = farfield::local_session(2)?;
/// farfield::on_each(&nodes, |node| {
///     let barrier = farfield::Barrier::open(node, "start", 1)?;
///     let (mut thread, ep) = (barrier.thread()?, node.endpoint()?);
///     ep.block_on(thread.wait(&ep)) // until the other node's thread arrives
/// })?;
/// # Ok(()) }
/// ```
pub struct BarrierThread {
    barrier: Arc<Shared>,
    row: OwnedWriter<u64>,
    /// A wait has begun, and this thread has not arrived yet.
    is_coming: bool,
    /// It has arrived, but the put that announces this to some node was refused.
    is_untold: bool,
}

impl Barrier {
    /// Opens a barrier of `threads_per_node` threads on every member of the session, and waits for the members to do
    /// so.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// let barriers = farfield::on_each(&nodes, |node| farfield::Barrier::open(node, "start", 4))?;
    /// let threads = (barriers[0].thread()?, barriers[0].thread()?); // two of the four on this node
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A node that is missing, dead or departed, or that opens it differently; no memory; no threads, or more than
    /// 65,536 in all.
    pub fn open(node: &Node, path: &str, threads_per_node: usize) -> Result<Barrier> {
        Barrier::open_among(node, path, threads_per_node, &node.members_for(path))
    }

    /// Opens the barrier among these nodes, which must name the same, and waits for them to do so. So survivors can
    /// continue with another barrier although there are joining nodes.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(3)?;
    /// let pair = [nodes[0].id(), nodes[1].id()];
    /// let open = |node: &farfield::Node| farfield::Barrier::open_among(node, "pair", 1, &pair);
    /// let barriers = farfield::on_each(&nodes[..2], open)?; // the third node does not open it
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As `open`, or this node is not among them.
    pub fn open_among(node: &Node, path: &str, threads_per_node: usize, participants: &[NodeId]) -> Result<Barrier> {
        at_least_one(&[("threads_per_node", threads_per_node)]).of(path)?;
        let members = Participants::new(participants);
        let rank = members.require(node.id()).of(path)?;
        check_rows(threads_per_node.saturating_mul(members.count())).of(path)?;
        let first_row = rank * threads_per_node;
        let owners: Vec<NodeId> =
            members.iter().flat_map(|member| std::iter::repeat_n(member, threads_per_node)).collect();
        // Its pushes are parts of waits.
        let arrived = Sst::open_as(node, path, "Barrier", participants, &owners, Meter::OFF)?;
        let taken = Word::new(0);
        let (path, node, meter) = (path.into(), node.clone(), node.meter(path, "Barrier", &["wait", "wait_unfenced"]));
        let shared = Shared { path, node, arrived, threads_per_node, meter, first_row, taken };
        Ok(Barrier(Arc::new(shared)))
    }

    /// The nodes of the threads that meet: those among which the barrier was opened.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let barrier = farfield::Barrier::open(&node, "start", 1)?;
    /// assert_eq!(barrier.members(), [node.id()]);
    /// # Ok(()) }
    /// ```
    pub fn members(&self) -> Vec<NodeId> {
        let rows = self.0.arrived.rows().step_by(self.0.threads_per_node);
        rows.map(|row| row.owner()).collect()
    }

    /// The part of one more thread of this node.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let barrier = farfield::Barrier::open(&node, "start", 1)?;
    /// let thread = barrier.thread()?;
    /// assert!(barrier.thread().is_err()); // it was opened for one thread of each node
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// All parts of this node are in use.
    pub fn thread(&self) -> Result<BarrierThread> {
        let shared = &self.0;
        let index = shared.taken.fetch_add(1) as usize;
        if index >= shared.threads_per_node {
            let why =
                format!("it has {} threads on each node, and all of this node's are taken", shared.threads_per_node);
            return Err(Error::from(ErrorKind::NotAParticipant { why }).of(&shared.path));
        }
        let row = shared.arrived.writer(shared.first_row + index)?;
        Ok(BarrierThread { barrier: Arc::clone(shared), row, is_coming: false, is_untold: false })
    }
}

impl Shared {
    /// Waits until the endpoint's earlier puts are visible on all nodes. A dead or departed node may miss them, since
    /// no thread reads there any more.
    async fn fence(&self, endpoint: &Endpoint, deadline: Instant) -> Result<()> {
        let Shared { path, node, .. } = self;
        let lost = node.fence_live_nodes(endpoint, node.members()).await.of(path)?;
        if !lost.is_empty() {
            let is_silent = |node_lost: &NodeId| node.fenced_error(endpoint, *node_lost).is_some();
            let all_are = || lost.iter().all(is_silent).then_some(());
            let waited = node.wait_for_members(endpoint, deadline, all_are).await;
            waited.waiting_for_nodes("earlier writes to become visible", &lost).of(path)?;
        }
        Ok(())
    }
}

impl BarrierThread {
    /// Waits until all threads have arrived. All their earlier writes and puts are visible then. Pass the same endpoint
    /// each time: the puts of two endpoints to a node have no order.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let barrier = farfield::Barrier::open(&node, "start", 1)?;
    /// # let (mut thread, ep) = (barrier.thread()?, node.endpoint()?);
    /// ep.block_on(thread.wait(&ep))?; // every thread has arrived, and sees what was put before
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A dead or departed participant. [`ErrorKind::Missed`]: this thread has arrived, but until the deadline the put
    /// that announces it to some nodes was refused. A timeout that names the missing nodes; before this thread has
    /// arrived, they include a node that received a put and does not answer. After `Missed` or a timeout,
    /// [`BarrierThread::retry_wait`] continues. A node that leaves after it has arrived, but before all have, flushes
    /// the endpoint ([`Endpoint::flush`]) or drops it: no fence covers the arrival.
    pub fn wait<'a>(&'a mut self, endpoint: &'a Endpoint) -> impl Future<Output = Result<()>> {
        self.fence_and_arrive(endpoint, None)
    }

    /// [`BarrierThread::wait`] with a deadline. After a timeout, continue the same round with
    /// [`BarrierThread::retry_wait`].
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let barriers = farfield::on_each(&nodes, |node| farfield::Barrier::open(node, "start", 1))?;
    /// # let (mut thread, ep) = (barriers[0].thread()?, nodes[0].endpoint()?);
    /// let deadline = ep.now() + std::time::Duration::from_millis(10);
    /// let error = ep.block_on(thread.wait_deadline(&ep, deadline)).unwrap_err();
    /// assert!(error.is_timeout() && error.node() == Some(nodes[1].id())); // the missing node
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As `wait`.
    pub fn wait_deadline<'a>(
        &'a mut self,
        endpoint: &'a Endpoint,
        deadline: Instant,
    ) -> impl Future<Output = Result<()>> {
        self.fence_and_arrive(endpoint, Some(deadline))
    }

    /// The deadline of a call without one is that of the endpoint. The clock is read when the call has to wait.
    fn fence_and_arrive<'a>(
        &'a mut self,
        endpoint: &'a Endpoint,
        deadline: Option<Instant>,
    ) -> impl Future<Output = Result<()>> {
        Attempt::new(move || {
            self.is_coming = true;
            let meter = self.barrier.meter;
            if meter.is_on() {
                // As one that has to wait.
                let timing = meter.start(endpoint, WAIT);
                return Ok(Err(Waiting::Whole(endpoint.boxed(self.wait_on(endpoint, None, deadline, timing)))));
            }
            // Before the count is visible anywhere, every earlier put is visible everywhere: a thread that passes may
            // read any node.
            let node = &self.barrier.node;
            if !node.is_fenced_at_once(endpoint, || node.members()) {
                return Ok(Err(Waiting::Whole(endpoint.boxed(self.wait_on(endpoint, None, deadline, Timing::OFF)))));
            }
            Ok(match self.arrive(endpoint) {
                Ok(()) => Ok(()),
                Err(Ok(next)) => Err(Waiting::AfterArrival(self.rest(endpoint, next, deadline))),
                Err(told) => {
                    Err(Waiting::Whole(endpoint.boxed(self.wait_on(endpoint, Some(told), deadline, Timing::OFF))))
                }
            })
        })
    }

    /// The rest of a wait: all of it, with its fence, or the rest after [`BarrierThread::arrive`].
    async fn wait_on(
        &mut self,
        endpoint: &Endpoint,
        told: Option<Result<usize>>,
        mut deadline: Option<Instant>,
        timing: Timing,
    ) -> Result<()> {
        let told = match told {
            Some(told) => told,
            None => {
                let until = deadline.unwrap_or_else(|| endpoint.deadline());
                let fenced = endpoint.boxed(self.barrier.fence(endpoint, until)).await;
                deadline = Some(until);
                match fenced.map(|()| self.arrive(endpoint)) {
                    Ok(Err(told)) => told,
                    ended => {
                        let ended = ended.map(drop);
                        timing.end(endpoint, &ended);
                        return ended;
                    }
                }
            }
        };
        let waited = self.all_arrived(endpoint, told, deadline).await;
        timing.end(endpoint, &waited);
        waited
    }

    /// Like [`BarrierThread::wait`], but without the fence: puts to a third node may not be visible yet (Fig. 22). For
    /// threads that have fenced already, or that need no order of memory.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let barrier = farfield::Barrier::open(&node, "start", 1)?;
    /// # let (mut thread, ep) = (barrier.thread()?, node.endpoint()?);
    /// ep.block_on(ep.global_fence(node.others()))?; // it has made its puts visible already
    /// ep.block_on(thread.wait_unfenced(&ep))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As `wait`.
    pub fn wait_unfenced<'a>(&'a mut self, endpoint: &'a Endpoint) -> impl Future<Output = Result<()>> {
        Attempt::new(move || {
            let meter = self.barrier.meter;
            if meter.is_on() {
                let timing = meter.start(endpoint, WAIT_UNFENCED);
                let told = self.arrive(endpoint).map_or_else(|told| told, |()| Ok(self.barrier.arrived.len()));
                return Ok(Err(Waiting::Whole(endpoint.boxed(self.wait_on(endpoint, Some(told), None, timing)))));
            }
            Ok(match self.arrive(endpoint) {
                Ok(()) => Ok(()),
                Err(Ok(next)) => Err(Waiting::AfterArrival(self.rest(endpoint, next, None))),
                Err(told) => Err(Waiting::Whole(endpoint.boxed(self.wait_on(endpoint, Some(told), None, Timing::OFF)))),
            })
        })
    }

    /// Waits again for the round in which an earlier wait timed out. Arrives first if that wait had not.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let barriers = farfield::on_each(&nodes, |node| farfield::Barrier::open(node, "start", 1))?;
    /// # let (mut thread, ep) = (barriers[0].thread()?, nodes[0].endpoint()?);
    /// # let (mut late, far) = (barriers[1].thread()?, nodes[1].endpoint()?);
    /// let deadline = ep.now() + std::time::Duration::from_millis(10);
    /// assert!(ep.block_on(thread.wait_deadline(&ep, deadline)).is_err());
    /// # let _ = far.block_on(late.wait_deadline(&far, far.now()));
    /// // … the other node's thread arrives …
    /// ep.block_on(thread.retry_wait(&ep, ep.deadline()))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As `wait`.
    pub async fn retry_wait(&mut self, endpoint: &Endpoint, deadline: Instant) -> Result<()> {
        if self.is_coming {
            // Otherwise it would find all rows at the round before.
            self.wait_deadline(endpoint, deadline).await
        } else {
            let told = self.tell_untold(endpoint);
            self.all_arrived(endpoint, told, Some(deadline)).await
        }
    }

    /// Arrives, and looks whether all others have. If not, returns how many rows are known to have arrived, or why not
    /// all nodes could be told.
    #[inline]
    fn arrive(&mut self, endpoint: &Endpoint) -> core::result::Result<(), Result<usize>> {
        self.row.store_word(self.row.value() + 1);
        self.is_coming = false;
        self.is_untold = true;
        let mut told = self.tell_untold(endpoint);
        // This thread's earlier stores come before its loads behind the barrier (`CW → GF → CR`), also where no put
        // owes a fence. And other threads of this node may sleep until they see the row.
        endpoint.fence_and_wake_local();
        if let Ok(next) = &mut told
            && *next < self.barrier.arrived.len()
        {
            endpoint.spin_until(|| self.have_arrived(next).then_some(()));
        }
        if told.as_ref().is_ok_and(|next| *next == self.barrier.arrived.len()) { Ok(()) } else { Err(told) }
    }

    /// Tells the nodes if they are still to be told. Returns how many rows, from the first one on, have arrived: rows
    /// only grow, so a row needs to be seen only once.
    #[inline]
    fn tell_untold(&mut self, endpoint: &Endpoint) -> Result<usize> {
        if self.is_untold {
            self.tell(endpoint)?;
        }
        Ok(self.arrived_from(0))
    }

    /// The first row from `next` on that has not arrived.
    #[inline]
    fn arrived_from(&self, next: usize) -> usize {
        let round = self.row.value();
        let Shared { arrived, .. } = &*self.barrier;
        let behind = arrived.rows().skip(next).position(|row| row.word().load() < round);
        behind.map_or(arrived.len(), |behind| next + behind)
    }

    /// Announces to all nodes that this thread has arrived. Repeating it does no harm.
    #[inline]
    fn tell(&mut self, endpoint: &Endpoint) -> Result<()> {
        let round = self.row.value();
        // No fence has to cover it: the row is read by threads that wait for it, and says nothing of later puts.
        let tell = |(at, copy)| endpoint.notify(copy, round).err().map(|error| (at, error));
        let refused = self.row.copies().enumerate().find_map(tell);
        if let Some((at, error)) = refused {
            return self.tell_others(endpoint, at, error);
        }
        self.is_untold = false;
        Ok(())
    }

    /// Tells the nodes behind one that could not be told.
    #[cold]
    #[inline(never)]
    fn tell_others(&mut self, endpoint: &Endpoint, at: usize, error: fabric::Error) -> Result<()> {
        let (round, mut missed) = (self.row.value(), None);
        let mut copies = self.row.copies().skip(at);
        if let Some(copy) = copies.next() {
            note_untold(&mut missed, copy.node(), error);
        }
        for copy in copies {
            if let Err(error) = endpoint.notify(copy, round) {
                note_untold(&mut missed, copy.node(), error);
            }
        }
        self.is_untold = missed.is_some();
        missed.map_or(Ok(()), |missed| missed.end().of(&self.barrier.path))
    }

    /// Announces it again and again after a refusal.
    async fn tell_again(&mut self, endpoint: &Endpoint, deadline: Instant, mut refused: Error) -> Result<usize> {
        let mut pause = RefusedPause::default();
        while endpoint.now() < deadline {
            pause.wait(endpoint, deadline).await;
            match self.tell_untold(endpoint) {
                Ok(next) => return Ok(next),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    /// Waits until all nodes are told, and all have arrived. The wait does not end before all nodes are told: one that
    /// is not would wait for ever.
    async fn all_arrived(
        &mut self,
        endpoint: &Endpoint,
        told: Result<usize>,
        mut deadline: Option<Instant>,
    ) -> Result<()> {
        let next = match told {
            Ok(next) => next,
            Err(refused) => {
                let until = deadline.unwrap_or_else(|| endpoint.deadline());
                deadline = Some(until);
                endpoint.boxed(self.tell_again(endpoint, until, refused)).await?
            }
        };
        self.rest(endpoint, next, deadline).await
    }

    #[inline]
    fn rest<'a>(&'a self, endpoint: &'a Endpoint, next: usize, deadline: Option<Instant>) -> AllArrived<'a> {
        AllArrived { thread: self, endpoint, next, wait: WordWait::new(deadline), long: LongWait::default() }
    }

    /// Whether all rows have arrived, if those before `next` have.
    #[inline]
    fn have_arrived(&self, next: &mut usize) -> bool {
        *next = self.arrived_from(*next);
        *next == self.barrier.arrived.len()
    }

    /// Why one that is missing will never arrive.
    #[cold]
    fn never_comes(&self, endpoint: &Endpoint, long: &LongWait) -> Option<Error> {
        let Shared { path, arrived, .. } = &*self.barrier;
        if let Some(waited) = long.becomes_long(endpoint, || tracing::enabled!(tracing::Level::INFO)) {
            tracing::info!(object = path, ?waited, "still waits for all threads to arrive");
        }
        // Any of the remaining nodes may be dead or departed, and this one may wait for it, too. Its row is read after
        // its state: a node that arrived and then left has arrived. So has one that arrived and then died. But the
        // remaining nodes may know of its death since they opened the barrier, and never arrive.
        let round = self.row.value();
        let gone = arrived.rows().find_map(|row| {
            let error = endpoint.check_alive(row.owner()).err()?;
            let is_behind = row.word().load() < round;
            let is_dead = matches!(error.kind(), fabric::ErrorKind::PeerDead { .. });
            (is_behind || is_dead).then_some(error.into())
        });
        // The missing nodes may have continued with another generation, and never arrive at this one.
        gone.or_else(|| arrived.check_unasked().err())
    }

    #[cold]
    fn is_late(&self, next: &mut usize, late: fabric::Error) -> Result<()> {
        let fabric::ErrorKind::Timeout { waited } = *late.kind() else { return Err(late.into()) };
        let round = self.row.value();
        let behind = self.barrier.arrived.rows().filter(|row| row.word().load() < round);
        let mut missing: Vec<NodeId> = behind.map(|row| row.owner()).collect();
        missing.dedup();
        // The last one has arrived since the last look.
        if missing.is_empty() && self.have_arrived(next) {
            return Ok(());
        }
        Err(ErrorKind::Timeout { what: "all threads to arrive".into(), waited, missing }.into())
    }
}
