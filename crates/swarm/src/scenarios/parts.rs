//! Clients whose calls are recorded, and the check that they are linearizable.

use core::cell::{Cell, RefCell};
use core::future::{Future, poll_fn};
use core::pin::{Pin, pin};
use core::task::Poll;
use core::time::Duration;
use std::rc::Rc;

use farfield_check::parts::{Excuse, unless_faults};
use farfield_check::{Cluster, choose, was_paused};
use farfield_core::history::kv::{KvInput, KvModel, KvOutput};
use farfield_core::history::{Budget, Effect, Event, Model, check};
use farfield_core::{Endpoint, Error, ErrorKind, Node, Result};
use farfield_fabric::fault::{self, inject};
use farfield_fabric::{EndpointOptions, NodeId, Word};

use crate::client::Core;
use crate::errors::NoMajority;
use crate::max_register::Look;
use crate::replicas::{Order, Replicas};
use crate::safe_guess::UNSETTLED;
use crate::{SwarmArray, SwarmClient, SwarmOptions};

/// Two equal words, so that a torn value shows.
type Value = [u64; 2];

pub(super) type Array = Rc<SwarmArray<Value>>;

/// A call on a register, or on a key of a store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Call {
    Kv(KvInput),
    /// A conditional update, from one value to another.
    Replace(u64, u64),
}

impl From<KvInput> for Call {
    fn from(input: KvInput) -> Call {
        Call::Kv(input)
    }
}

/// The calls on one key.
struct CallModel;

impl Model for CallModel {
    type Input = Call;
    type Output = KvOutput;
    type State = Option<u64>;

    fn initial(&self) -> Option<u64> {
        None
    }

    fn step(&self, state: &Option<u64>, input: &Call, output: Option<&KvOutput>) -> Option<Option<u64>> {
        let (from, to) = match input {
            Call::Kv(input) => return KvModel.step(state, input, output),
            Call::Replace(from, to) => (*from, *to),
        };
        let is_replaced = match output {
            None => true,
            Some(KvOutput::Succeeded(is_replaced)) => *is_replaced,
            Some(_) => return None,
        };
        (is_replaced == (*state == Some(from))).then_some(if is_replaced { Some(to) } else { *state })
    }

    fn effect(&self, input: &Call, output: Option<&KvOutput>) -> Effect<Option<u64>> {
        match input {
            Call::Kv(input) => KvModel.effect(input, output),
            Call::Replace(..) => Effect::Unknown,
        }
    }
}

/// The calls on one register or key.
type Calls = Vec<Event<Call, KvOutput>>;

/// The calls on each register, as those on a key of a store: zero is no value. Its clock counts the events of the
/// execution.
#[derive(Clone)]
pub(super) struct History {
    calls: Rc<RefCell<Vec<Calls>>>,
    clock: Rc<Cell<u64>>,
}

impl History {
    fn tick(&self) -> u64 {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }

    /// Of calls on so many registers or keys.
    pub(super) fn new(registers: usize) -> History {
        History { calls: Rc::new(RefCell::new(vec![Vec::new(); registers])), clock: Rc::default() }
    }

    /// Panics unless the calls on each are linearizable.
    pub(super) fn check(&self) {
        for (register, calls) in self.calls.borrow().iter().enumerate() {
            let verdict = check(&CallModel, calls, Budget::default());
            assert!(verdict.is_linearizable(), "register {register}: {verdict}");
        }
    }

    /// Records a call that begins: until it has an answer, it may happen at any moment. Returns its place.
    pub(super) fn begin(&self, node: usize, register: usize, input: impl Into<Call>) -> (usize, usize) {
        let calls = &mut self.calls.borrow_mut()[register];
        calls.push(Event::pending(node as u32, self.tick(), input.into()));
        (register, calls.len() - 1)
    }

    pub(super) fn end(&self, (register, at): (usize, usize), output: KvOutput) {
        let call = &mut self.calls.borrow_mut()[register][at];
        (call.return_ns, call.output) = (Some(self.tick()), Some(output));
    }
}

pub(super) struct Opened {
    pub(super) clients: Vec<Array>,
    pub(super) history: History,
}

/// Opens an array on all nodes, and checks the calls of its clients at the end.
pub(super) fn open(cluster: &Cluster, registers: usize, options: SwarmOptions) -> Result<Opened> {
    let open = move |node: &_| Ok(Rc::new(SwarmArray::open(node, "array", registers, options.clone())?));
    let clients = cluster.on_each(open)?;
    Ok(opened(cluster, registers, clients))
}

/// The same, with each register in a shard of its own.
pub(super) fn open_in_shards(cluster: &Cluster, registers: usize, options: SwarmOptions) -> Result<Opened> {
    let buffers_max = 1 + options.spare_buffers;
    let open = move |node: &Node| {
        let (nodes, options) = (node.live_members(), options.clone());
        Ok(Rc::new(SwarmArray::open_in_shards(node, "array", &nodes, registers, options, buffers_max)?))
    };
    let clients = cluster.on_each(open)?;
    Ok(opened(cluster, registers, clients))
}

fn opened(cluster: &Cluster, registers: usize, clients: Vec<Array>) -> Opened {
    let history = History::new(registers);
    // They are closed when all threads have ended: closing takes locks, and would only add to the search.
    let (kept, seen) = (clients.clone(), history.clone());
    cluster.at_end(move || {
        drop(kept);
        seen.check();
        Ok(())
    });
    Opened { clients, history }
}

/// A thread with a client, which faults may prevent from ending its calls.
pub(super) fn register(
    cluster: &Cluster,
    node: usize,
    clients: &[Array],
    history: &History,
    body: impl Fn(&Recorded<'_, '_>) -> Result<()> + 'static,
) {
    spawn(cluster, node, clients, history, || true, body);
}

/// A thread with a client. All its calls end well, whatever happens to others. (Where threads stand still, its node may
/// be evicted, too.)
pub(super) fn register_unfailing(
    cluster: &Cluster,
    node: usize,
    clients: &[Array],
    history: &History,
    body: impl Fn(&Recorded<'_, '_>) -> Result<()> + 'static,
) {
    spawn(cluster, node, clients, history, was_paused, body);
}

fn spawn(
    cluster: &Cluster,
    node: usize,
    clients: &[Array],
    history: &History,
    may_fail: fn() -> bool,
    body: impl Fn(&Recorded<'_, '_>) -> Result<()> + 'static,
) {
    let (array, history) = (Rc::clone(&clients[node]), history.clone());
    thread(cluster, node, may_fail, move |ep| run(&array, ep, node, &history, &body));
}

/// A thread with a client, which faults may prevent from ending its calls if it `may_fail`.
pub(super) fn thread(
    cluster: &Cluster,
    node: usize,
    may_fail: fn() -> bool,
    run: impl Fn(&Endpoint) -> Result<()> + 'static,
) {
    cluster.thread(node, "client", move |ep| match run(ep) {
        Err(error) if may_fail() => unless_no_majority(Err(error)).map(|_: Option<()>| ()),
        ended => ended,
    });
}

pub(super) fn run(
    array: &Array,
    ep: &Endpoint,
    node: usize,
    history: &History,
    body: &impl Fn(&Recorded<'_, '_>) -> Result<()>,
) -> Result<()> {
    let client = take_client(ep, || array.client(ep))?;
    body(&Recorded { client: &client, ep, node, history: history.clone() })
}

/// An endpoint like another one, and a switch: while it is on, all of three memory nodes but one are out of its reach.
pub(super) fn faulty(ep: &Endpoint, stays: usize) -> Result<(Endpoint, impl Fn(bool) + use<>)> {
    let faults = fault::Faults::default();
    let faulty = Endpoint::open(inject(ep.transport().clone(), faults.clone()), EndpointOptions::default())?;
    let cut = move |is_cut| {
        let others = (0..3).filter(|node| *node != stays);
        others.for_each(|node| faults.cut(NodeId(node as u16), is_cut));
    };
    Ok((faulty, cut))
}

/// The result of a call that may have found most memory nodes out of reach, and nothing else.
pub(super) fn unless_cut(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.custom_ref::<NoMajority>().is_some() => Ok(()),
        result => result,
    }
}

/// Of a call that begins and ends while most memory nodes are out of reach.
pub(super) fn must_miss(result: Result<()>) {
    let Err(error) = result else { panic!("it has found a majority") };
    assert!(error.custom_ref::<NoMajority>().is_some(), "{error}");
}

/// A client, when no other thread of the node has the place any more.
pub(super) fn take_client<C>(ep: &Endpoint, take: impl Fn() -> Result<C>) -> Result<C> {
    loop {
        match take() {
            Err(error) if matches!(error.kind(), ErrorKind::InUse { .. }) => {
                ep.block_on(ep.wait_for_change(ep.deadline()));
            }
            client => return client,
        }
    }
}

/// A thread's result, unless faults have prevented it. The looks of a call are bounded whatever happens: more than that
/// come of no fault.
pub(super) fn unless_no_majority<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(error) if error.custom_ref::<NoMajority>().is_some() => Ok(None),
        Err(error) if error.to_string().contains(UNSETTLED) => panic!("{error}"),
        result => unless_faults(result),
    }
}

/// A client whose calls are recorded.
pub(super) struct Recorded<'c, 'e> {
    client: &'c SwarmClient<'e, Value>,
    ep: &'e Endpoint,
    node: usize,
    history: History,
}

impl Recorded<'_, '_> {
    /// Sets its clock forward, in microseconds.
    pub(super) fn set_ahead(&self, ahead: u64) {
        self.client.cores.first().ahead.set(ahead);
    }

    /// Asks this memory node last, as if it had been slow before.
    pub(super) fn set_slow(&self, replica: usize) {
        let mut slow = Replicas::default();
        slow.add(replica);
        self.client.cores.first().common.slow.set(slow);
    }

    pub(super) fn write(&self, value: u64) -> Result<()> {
        self.write_at(0, value)
    }

    pub(super) fn read(&self) -> Result<()> {
        self.read_at(0)
    }

    pub(super) fn write_at(&self, register: usize, value: u64) -> Result<()> {
        let call = self.history.begin(self.node, register, KvInput::Upsert(value));
        // A timeout is one of waiting for a buffer, before anything is written: until a node is evicted, say. Where a
        // majority decides, time may pass at any moment.
        let mut tries = 0..4;
        loop {
            let excuse = Excuse::now();
            match self.client.write_blocking(register, [value; 2]) {
                Err(error) if error.is_timeout() && excuse.is_given() && tries.next().is_some() => {}
                written => {
                    written?;
                    self.history.end(call, KvOutput::Stored);
                    return Ok(());
                }
            }
        }
    }

    /// A write of register 0 that finds nothing later. Its client dies before it has told readers so.
    pub(super) fn write_unverified(&self, value: u64) -> Result<()> {
        let call = self.history.begin(self.node, 0, KvInput::Upsert(value));
        let core = self.client.cores.first();
        self.ep.block_on(store_only(core, value, core.order(0), core.majority()))?;
        self.history.end(call, KvOutput::Stored);
        Ok(())
    }

    /// A read that rests at some moment.
    pub(super) fn read_with_a_rest(&self, register: usize, rest: impl FnOnce() -> Result<()>) -> Result<()> {
        let call = self.history.begin(self.node, register, KvInput::Get);
        let mut read = pin!(self.client.read(register));
        let early = poll_times(self.ep, read.as_mut());
        rest()?;
        let value = match early {
            Some(value) => value?,
            None => self.ep.block_on(read)?,
        };
        self.history.end(call, found(value));
        Ok(())
    }

    /// A write that rests at some moment.
    pub(super) fn write_with_a_rest(&self, value: u64, rest: impl FnOnce() -> Result<()>) -> Result<()> {
        let call = self.history.begin(self.node, 0, KvInput::Upsert(value));
        let mut write = pin!(self.client.write(0, [value; 2]));
        let early = poll_times(self.ep, write.as_mut());
        rest()?;
        match early {
            Some(written) => written?,
            None => self.ep.block_on(write)?,
        }
        self.history.end(call, KvOutput::Stored);
        Ok(())
    }

    /// The round trips of some calls.
    pub(super) fn trips_of(&self, calls: impl FnOnce() -> Result<()>) -> Result<u64> {
        trips_of(self.ep, calls)
    }

    /// The same, with nothing under way when they begin: without the background work of those before them.
    pub(super) fn trips_alone(&self, calls: impl FnOnce() -> Result<()>) -> Result<u64> {
        self.wait_for_posted();
        self.trips_of(calls)
    }

    /// Waits until all that this client has posted has been done, also what its calls have not waited for.
    pub(super) fn wait_for_posted(&self) {
        self.client.cores.first().wait_for_all_replicas();
    }

    /// A write of register 0 that reaches one memory node, and later another one. Both are a majority.
    pub(super) fn write_in_steps(
        &self,
        value: u64,
        replicas: [usize; 2],
        rest: impl FnOnce(&Endpoint) -> Result<()>,
    ) -> Result<()> {
        let call = self.history.begin(self.node, 0, KvInput::Upsert(value));
        let core = self.client.cores.first();
        let section = core.enter()?;
        self.ep.block_on(async {
            let (at, unused) = (core.register(0)?, core.take_unused_buffer().await?);
            let clock = core.keep_reserved(at).await?;
            let version = core.guess(at, clock, unused.number).map_err(|_| core.used_up())?;
            let image = core.image(at, version, &[value; 2])?;
            unused.keep();
            let [first, second] = replicas.map(|replica| Order::from_iter([replica]));
            core.gather(first, 1, |replica| core.store_and_get(replica, at, version, Some(&image))).await?;
            rest(self.ep)?;
            core.gather(second, 1, |replica| core.store_and_get(replica, at, version, Some(&image))).await?;
            core.hold(at, version);
            Ok::<(), Error>(())
        })?;
        section.end();
        self.history.end(call, KvOutput::Stored);
        Ok(())
    }

    /// A write of register 0 that has reached one memory node, and reaches no other.
    pub(super) fn write_to_one(&self, replica: usize, value: u64) -> Result<()> {
        self.history.begin(self.node, 0, KvInput::Upsert(value));
        self.ep.block_on(store_only(self.client.cores.first(), value, [replica].into_iter().collect(), 1))
    }

    /// A read that rests for so long when it has found the latest version, and not its value.
    pub(super) fn read_with_a_pause(&self, register: usize, rest: impl FnOnce(), pause: Duration) -> Result<()> {
        let call = self.history.begin(self.node, register, KvInput::Get);
        let core = self.client.cores.first();
        let (section, at, mut value) = (core.enter()?, core.register(register)?, [0; 2]);
        let is_there = self.ep.block_on(async {
            let Look::Found(mut latest) = core.max_read(at, &section).await? else { return Ok(false) };
            rest();
            core.pause(self.ep.now() + pause).await;
            core.value(at, &mut latest, &mut value).await
        });
        section.end();
        if is_there? {
            self.history.end(call, found(value));
        }
        Ok(())
    }

    pub(super) fn read_at(&self, register: usize) -> Result<()> {
        let call = self.history.begin(self.node, register, KvInput::Get);
        self.history.end(call, found(self.client.read_blocking(register)?));
        Ok(())
    }

    /// Writes these values to these registers, all at a time.
    pub(super) fn write_window(&self, writes: &[(usize, u64)]) -> Result<()> {
        let writes = writes.iter().map(async |(register, value)| {
            let call = self.history.begin(self.node, *register, KvInput::Upsert(*value));
            self.client.write(*register, [*value; 2]).await?;
            self.history.end(call, KvOutput::Stored);
            Ok(())
        });
        let mut ended = Ok(());
        self.ep.run_window(writes.len(), writes, |written: Result<()>| ended = ended.clone().and(written));
        ended
    }

    pub(super) fn wait_until(&self, is_it: impl Fn() -> bool) -> Result<()> {
        wait_until(self.ep, is_it)
    }

    /// Waits until another thread has stored this.
    pub(super) fn wait_for(&self, word: &Word, value: u64) -> Result<()> {
        self.wait_until(|| word.load() == value)
    }

    /// A write that may be dropped at some moment.
    pub(super) fn write_or_drop(&self, value: u64) -> Result<()> {
        let call = self.history.begin(self.node, 0, KvInput::Upsert(value));
        if self.or_drop(self.client.write(0, [value; 2])).transpose()?.is_some() {
            self.history.end(call, KvOutput::Stored);
        }
        Ok(())
    }

    /// A read that may be dropped when it has put something, to bring it to a majority.
    pub(super) fn read_or_drop(&self) -> Result<()> {
        let call = self.history.begin(self.node, 0, KvInput::Get);
        let before = self.ep.counts();
        let has_put = || (self.ep.counts() - before).puts > 0;
        if let Some(value) = poll_until(self.ep, pin!(self.client.read(0)), choose(6), has_put).transpose()? {
            self.history.end(call, found(value));
        }
        Ok(())
    }

    /// Writes a register while this client's writes of two others, which have the free buffers, are dropped.
    pub(super) fn write_as_others_are_dropped(&self, others: [usize; 2], register: usize, value: u64) -> Result<()> {
        let call = self.history.begin(self.node, register, KvInput::Upsert(value));
        self.ep.block_on(async {
            let mut others = others.map(|other| Box::pin(self.client.write(other, [0; 2])));
            poll_fn(|cx| {
                for other in &mut others {
                    let _ = other.as_mut().poll(cx);
                }
                Poll::Ready(())
            })
            .await;
            let mut own = pin!(self.client.write(register, [value; 2]));
            if poll_fn(|cx| Poll::Ready(own.as_mut().poll(cx))).await.is_pending() {
                drop(others);
                own.await?;
            }
            Ok::<(), Error>(())
        })?;
        self.history.end(call, KvOutput::Stored);
        Ok(())
    }

    fn or_drop<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        poll_or_drop(self.ep, future)
    }
}

/// Stores a value of register 0 on these memory nodes, as a write with a fresh guess does, and does nothing else.
async fn store_only(core: &Core<'_>, value: u64, order: Order, needed: usize) -> Result<()> {
    let (at, unused) = (core.register(0)?, core.take_unused_buffer().await?);
    let clock = core.keep_reserved(at).await?;
    let version = core.guess(at, clock, unused.number).map_err(|_| core.used_up())?;
    let image = core.image(at, version, &[value; 2])?;
    unused.keep();
    core.gather(order, needed, |replica| core.store_and_get(replica, at, version, Some(&image))).await?;
    core.hold(at, version);
    Ok(())
}

/// The round trips of some calls of an endpoint.
pub(super) fn trips_of(ep: &Endpoint, calls: impl FnOnce() -> Result<()>) -> Result<u64> {
    let before = ep.counts();
    calls()?;
    Ok((ep.counts() - before).round_trips)
}

pub(super) fn wait_until(ep: &Endpoint, is_it: impl Fn() -> bool) -> Result<()> {
    ep.block_on(ep.wait_until(ep.deadline(), || is_it().then_some(()))).map_err(Error::from)
}

/// Polls a future a few times, and drops it.
pub(super) fn poll_or_drop<T>(ep: &Endpoint, future: impl Future<Output = T>) -> Option<T> {
    poll_times(ep, pin!(future))
}

/// Polls a future a few times.
fn poll_times<T>(ep: &Endpoint, future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    poll_until(ep, future, choose(12), || true)
}

/// Polls a future until this is true, and so many times more.
pub(super) fn poll_until<T>(
    ep: &Endpoint,
    mut future: Pin<&mut impl Future<Output = T>>,
    mut polls: usize,
    is_over: impl Fn() -> bool,
) -> Option<T> {
    ep.block_on(poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending if !is_over() => Poll::Pending,
        Poll::Pending if polls == 0 => Poll::Ready(None),
        Poll::Pending => {
            polls -= 1;
            Poll::Pending
        }
    }))
}

/// The answer of a read.
fn found(value: Value) -> KvOutput {
    assert_eq!(value[0], value[1], "a torn value");
    KvOutput::Found(Some(value[0]).filter(|value| *value != 0))
}
