//! The writer of a node: the calls that change the object.

use farfield_core::toolkit::ErrorContext;
use farfield_core::{Error, ErrorKind, Result};
use farfield_fabric::{Endpoint, Instant, NodeId};
use farfield_mu::{Forward, Ordered};
use smallvec::SmallVec;

use crate::analysis::Category;
use crate::conflicting::{Asked, REFUSAL};
use crate::data_type::{DataType, Method, Update};
use crate::errors::RefusedAtLength;
use crate::local::{Begun, Local};
use crate::opening::{STABLE, UPDATE};
use crate::process::LOOKS_AGAIN_MAX;
use crate::replica::decode;
use crate::replicated::{Handle, Replicated};
use crate::watch::Watch;

/// The writer of a node: its updates ([`Replicated::writer`]).
///
/// ```
/// # use farfield_hamband::{Replicated, ReplicatedOptions, Writer, types::{Counter, CounterUpdate}};
/// async fn visit(writer: &mut Writer<Counter>, ep: &farfield::Endpoint) -> farfield::Result<()> {
///     writer.update(ep, &CounterUpdate::Add(1)).await?.expect("an addition is always permissible");
///     Ok(())
/// }
/// ```
pub struct Writer<T: DataType>(pub(crate) Replicated<T>);

impl<T: DataType> Writer<T> {
    /// Makes a call of an update method. Pass the same endpoint to every call.
    ///
    /// Where this node leads the group of a conflicting call, the thread is blocked until it is ordered, and other
    /// futures of its endpoint with it: a round trip, as a rule, and at most the endpoint's timeout.
    ///
    /// | category | it returns when | operations, n replicas |
    /// |---|---|---|
    /// | reducible | it is applied here, and on its way to all others | n − 1 puts; no wait |
    /// | irreducible conflict-free | as above; it waits for room in the feed | n − 1 puts; no wait, as a rule |
    /// | conflicting, at the leader of its group | it is in the log of a majority, and applied here | 1 round trip; 2 after new calls that it may depend on |
    /// | conflicting, elsewhere | the leader has ordered it, and it is applied here | 1 put more, and the log's entry back |
    ///
    /// The inner result is the refusal of a call that is not permissible here; of a conflicting one, at the leader.
    /// Then nothing has changed. A leader that was replaced and does not know it refuses by an older state. If this
    /// node dies, the others have the call, all or none of them: see [`Writer::stable`].
    ///
    /// ```
    /// # use farfield_hamband::{Replicated, ReplicatedOptions, types::{Counter, CounterUpdate}};
    /// # let node = farfield::Node::builder().start()?;
    /// # let ep = node.endpoint()?;
    /// # let counter = Replicated::open(&node, "visits", Counter::default(), ReplicatedOptions::default())?;
    /// # let mut writer = counter.writer()?;
    /// match ep.block_on(writer.update(&ep, &CounterUpdate::Add(5)))? {
    ///     Ok(()) => assert_eq!(counter.query(|counter| counter.value())?, 5),
    ///     Err(refusal) => println!("{refusal}"),
    /// }
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The call is longer than [`call_bytes_max`](crate::ReplicatedOptions::call_bytes_max). A timeout names the nodes
    /// that have not applied enough of earlier calls, or the leader: then a conflicting call may still be ordered.
    /// [`NoMajority`](farfield_mu::NoMajority) for conflicting calls. [`WrongCoordination`](crate::WrongCoordination),
    /// [`NoSummary`](crate::NoSummary).
    pub async fn update(&mut self, endpoint: &Endpoint, update: &T::Update) -> Result<Result<(), T::Refusal>> {
        let Handle { object, .. } = &*self.0.0;
        if object.is_plain() {
            return self.update_now(endpoint, update).await.of(object.path());
        }
        object.check_current()?;
        let meter = object.meter();
        meter.measure(endpoint, UPDATE, self.update_now(endpoint, update)).await.of(object.path())
    }

    async fn update_now(&self, endpoint: &Endpoint, update: &T::Update) -> Result<Result<(), T::Refusal>> {
        let Handle { shared, object, .. } = &*self.0.0;
        let method = update.method().number();
        let deadline = endpoint.deadline();
        loop {
            let mut local = shared.local.lock();
            if let Some(group) = local.replica.tables.group_of[method] {
                drop(local);
                return self.order(endpoint, update, group, deadline).await;
            }
            let begun = match local.replica.tables.category[method] {
                Category::Reducible => {
                    let group = local.replica.tables.summary_of[method].unwrap_or_default();
                    local.reduce(endpoint, update, group)
                }
                _ => local.free(endpoint, update),
            };
            let owes = local.owes();
            drop(local);
            if owes {
                object.node().fabric().wake_service();
            }
            match begun? {
                Begun::Done => {
                    shared.process.has_changed(endpoint);
                    return Ok(Ok(()));
                }
                // It may have applied calls of others before.
                Begun::Refused(refusal) => {
                    shared.process.note(true);
                    return Ok(Err(refusal));
                }
                Begun::Full => self.wait_for_room(endpoint, deadline).await?,
            }
        }
    }

    /// Rule CONF: here if this process leads the group, and otherwise at the process that does.
    async fn order(
        &self,
        endpoint: &Endpoint,
        call: &T::Update,
        group: usize,
        deadline: Instant,
    ) -> Result<Result<(), T::Refusal>> {
        let Handle { shared, object, .. } = &*self.0.0;
        let (commands, me) = (&shared.process.orders[group].commands, shared.process.me);
        let (number, bytes) = {
            let mut local = shared.local.lock();
            local.check()?;
            let bytes = SmallVec::<[u8; 64]>::from_slice(local.encode_call(call)?);
            local.groups[group].last_call += 1;
            (local.groups[group].last_call, bytes)
        };
        let mut forward = Forward::new(number);
        // It is in the log, and its entry is applied here.
        let ended = |local: &Local<T>| {
            let applied = &local.groups[group].applied;
            applied.numbers.has(me, number).then(|| match &applied.refused {
                Some((of, answer)) if *of == number => self.refusal(local, local.processes[me], answer).map(Err),
                _ => Ok(Ok(())),
            })
        };
        loop {
            // Before the looks: a change after it ends the wait.
            let (view, decided) = (commands.view(), shared.process.decided());
            let mut again = None;
            let answer = || view.leader.and_then(|leader| commands.answered(leader, view.term, number));
            if view.leads {
                let is_asked_again = forward.is_repeated(view.term);
                let asked = Asked { group, origin: me, number, call, is_asked_again };
                if let Some(mut proposer) = commands.proposer() {
                    let led = shared.lead(&mut proposer, &asked, deadline.since(endpoint.now()));
                    endpoint.waited_for(proposer.round_trips());
                    match led? {
                        Ordered::Done(Some(refusal)) => return Ok(Err(refusal)),
                        // A later leader may find it.
                        Ordered::Unknown if endpoint.now() < deadline => forward.was_proposed(view.term),
                        Ordered::Unknown => {
                            let (what, waited) = ("a call to be ordered; it may be yet".into(), endpoint.timeout());
                            return Err(ErrorKind::Timeout { what, waited, missing: Vec::new() }.into());
                        }
                        Ordered::Done(None) | Ordered::NotLeader => {}
                    }
                } else if !view.is_busy {
                    // The other thread may have given it back already, and then nothing changes.
                    continue;
                }
            } else {
                again = forward.step(commands, endpoint, &view, &bytes)?;
            }
            let (changes, watch) = {
                let mut local = shared.local.lock();
                let some = local.drain()?.some;
                shared.process.note(some);
                if let Some(ended) = ended(&local) {
                    return ended;
                }
                let leader = view.leader.and_then(|leader| commands.node_at(leader));
                if let (false, Some(answer), Some(leader)) = (view.leads, answer(), leader) {
                    return self.refusal(&local, leader, &answer).map(Err);
                }
                // It has to wait, and only a wait needs the words that change.
                let (some, watch) = local.drain_and_watch()?;
                let changes = shared.process.note(some);
                if let Some(ended) = ended(&local) {
                    return ended;
                }
                (changes, watch)
            };
            let has_changed = || {
                let of_log = commands.view() != view || shared.process.decided() != decided;
                let of_others = watch.has_changed() || shared.process.changes.load() != changes;
                (of_log || of_others || !view.leads && answer().is_some()).then_some(Ok(()))
            };
            // Without most nodes nothing is ordered any more, whichever leads.
            let too_few = || commands.log().check_majority().err().map(Error::custom);
            let fails = || shared.process.ends(object).or_else(too_few).map(Err);
            let until = deadline.min(again.unwrap_or(endpoint.now() + LOOKS_AGAIN_MAX));
            match endpoint.wait_until_or(until, has_changed, fails).await {
                // A request is put again: the first may not have been accepted.
                Err(error) if error.is_timeout() && endpoint.now() < deadline => {}
                waited => {
                    let missing: Vec<NodeId> =
                        view.leader.and_then(|leader| commands.node_at(leader)).into_iter().collect();
                    waited.waiting_for_nodes("a call to be ordered; it may be yet", &missing)??;
                }
            }
        }
    }

    /// The refusal in an answer.
    fn refusal(&self, local: &Local<T>, leader: NodeId, answer: &[u8]) -> Result<T::Refusal> {
        let [REFUSAL, refusal @ ..] = answer else { return Err(Error::custom(RefusedAtLength)) };
        let refusal = decode::<T::Refusal, T::Refusal>(refusal);
        refusal.map(|(refusal, _)| refusal).map_err(|wrong| local.error_of(leader, wrong))
    }

    /// Waits until the feed has room for the longest message.
    async fn wait_for_room(&self, endpoint: &Endpoint, deadline: Instant) -> Result<()> {
        let Handle { shared, object, .. } = &*self.0.0;
        let mut watch = Watch::default();
        let slow = {
            let mut local = shared.local.lock();
            local.outgoing.watch_room(&mut watch);
            // A replica may have reported since the call looked.
            let bytes = local.message_bytes_max();
            if local.outgoing.has_room(endpoint, bytes) {
                return Ok(());
            }
            local.outgoing.slow(endpoint)
        };
        // A replica reports, or dies.
        let is_alive = |node: &NodeId| endpoint.check_alive(*node).is_ok();
        let may_have_room = || (watch.has_changed() || !slow.iter().all(is_alive)).then_some(Ok(()));
        let fails = || shared.process.ends(object).map(Err);
        let waited = endpoint.wait_until_or(deadline, may_have_room, fails).await;
        waited.waiting_for_nodes("room for a call: earlier ones are not applied", &slow)?
    }

    /// Waits until all live replicas have applied all calls of this writer so far.
    ///
    /// ```
    /// # use farfield_hamband::{Replicated, ReplicatedOptions, types::{Counter, CounterUpdate}};
    /// # let node = farfield::Node::builder().start()?;
    /// # let ep = node.endpoint()?;
    /// # let counter = Replicated::open(&node, "visits", Counter::default(), ReplicatedOptions::default())?;
    /// # let mut writer = counter.writer()?;
    /// let _ = ep.block_on(writer.update(&ep, &CounterUpdate::Add(5)))?;
    /// ep.block_on(writer.stable(&ep))?; // it outlives this node now
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A timeout names the nodes that have not.
    pub async fn stable(&mut self, endpoint: &Endpoint) -> Result<()> {
        let Handle { object, .. } = &*self.0.0;
        if object.is_plain() {
            return self.stable_now(endpoint).await.of(object.path());
        }
        object.check_current()?;
        object.meter().measure(endpoint, STABLE, self.stable_now(endpoint)).await.of(object.path())
    }

    async fn stable_now(&self, endpoint: &Endpoint) -> Result<()> {
        let Handle { shared, object, .. } = &*self.0.0;
        let sent = || {
            let local = shared.local.lock();
            (!local.owes()).then(|| local.entries_of_calls())
        };
        shared.process.wait_for_all(endpoint, object, &sent).await
    }
}
