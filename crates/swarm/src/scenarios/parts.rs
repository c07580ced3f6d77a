//! Clients whose calls are recorded, and the check that they are linearizable.

use core::cell::RefCell;
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;
use std::rc::Rc;

use farfield_check::parts::{Excuse, unless_faults};
use farfield_check::{Cluster, choose, was_paused};
use farfield_core::history::{Budget, Event, Model, check};
use farfield_core::{Endpoint, Error, ErrorKind, Result};
use farfield_fabric::Word;

use crate::errors::NoMajority;
use crate::majority::Replicas;
use crate::{SwarmArray, SwarmClient, SwarmOptions};

/// A value, and what makes it wider than a word, so that it can be torn.
type Value = [u64; 2];

pub(super) type Array = Rc<SwarmArray<Value>>;

/// A register: a write has its value, a read has none.
struct Register;

impl Model for Register {
    type Input = Option<u64>;
    type Output = u64;
    type State = u64;

    fn initial(&self) -> u64 {
        0
    }

    fn step(&self, state: &u64, written: &Option<u64>, read: Option<&u64>) -> Option<u64> {
        match written {
            Some(value) => Some(*value),
            None => read.is_none_or(|read| read == state).then_some(*state),
        }
    }
}

type Call = Event<Option<u64>, u64>;

/// The calls on each register. Its clock counts the events of the execution.
#[derive(Clone)]
pub(super) struct History {
    calls: Rc<RefCell<Vec<Vec<Call>>>>,
    clock: Rc<RefCell<u64>>,
}

impl History {
    fn tick(&self) -> u64 {
        *self.clock.borrow_mut() += 1;
        *self.clock.borrow()
    }
}

pub(super) struct Opened {
    pub(super) clients: Vec<Array>,
    pub(super) history: History,
}

/// Opens an array on all nodes, and checks at the end what its clients have seen.
pub(super) fn open(cluster: &Cluster, registers: usize, options: SwarmOptions) -> Result<Opened> {
    let open = move |node: &_| Ok(Rc::new(SwarmArray::open(node, "array", registers, options.clone())?));
    let clients = cluster.on_each(open)?;
    let history = History { calls: Rc::new(RefCell::new(vec![Vec::new(); registers])), clock: Rc::default() };
    // They are closed when all threads have ended: closing takes locks, and would only add to the search.
    let (kept, seen) = (clients.clone(), history.clone());
    cluster.at_end(move || {
        drop(kept);
        for (register, calls) in seen.calls.borrow().iter().enumerate() {
            let verdict = check(&Register, calls, Budget::default());
            assert!(verdict.is_linearizable(), "register {register}: {verdict}");
        }
        Ok(())
    });
    Ok(Opened { clients, history })
}

/// A thread with a client, which faults may prevent from ending its calls.
pub(super) fn register(
    cluster: &Cluster,
    node: usize,
    clients: &[Array],
    history: &History,
    body: impl Fn(&Recorded<'_, '_>) -> Result<()> + 'static,
) {
    let (array, history) = (Rc::clone(&clients[node]), history.clone());
    cluster.thread(node, "client", move |ep| unless_no_majority(run(&array, ep, node, &history, &body)).map(drop));
}

/// A thread with a client whose calls all end well, whatever happens to others. (Where threads stand still, its node may be
/// evicted, too.)
pub(super) fn register_unfailing(
    cluster: &Cluster,
    node: usize,
    clients: &[Array],
    history: &History,
    body: impl Fn(&Recorded<'_, '_>) -> Result<()> + 'static,
) {
    let (array, history) = (Rc::clone(&clients[node]), history.clone());
    cluster.thread(node, "client", move |ep| match run(&array, ep, node, &history, &body) {
        Err(error) if was_paused() || error.is_timeout() && Excuse::now().is_given() => {
            unless_no_majority(Err(error)).map(|_: Option<()>| ())
        }
        ended => ended,
    });
}

fn run(
    array: &Array,
    ep: &Endpoint,
    node: usize,
    history: &History,
    body: &impl Fn(&Recorded<'_, '_>) -> Result<()>,
) -> Result<()> {
    // Another thread of the node may have the place.
    let in_use = |error: &Error| matches!(error.kind(), ErrorKind::InUse { .. });
    let client = loop {
        match array.client(ep) {
            Err(error) if in_use(&error) => ep.block_on(ep.wait_for_change(ep.deadline())),
            client => break client?,
        }
    };
    body(&Recorded { client: &client, ep, node, history: history.clone() })
}

/// A thread's result, unless faults have prevented it.
fn unless_no_majority<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(error) if error.custom_ref::<NoMajority>().is_some() => Ok(None),
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
        self.client.core.ahead.set(ahead);
    }

    /// Asks this memory node last, as if it had been slow before.
    pub(super) fn set_slow(&self, replica: usize) {
        let mut slow = Replicas::default();
        slow.add(replica);
        self.client.core.slow.set(slow);
    }

    pub(super) fn write(&self, value: u64) -> Result<()> {
        self.write_at(0, value)
    }

    pub(super) fn read(&self) -> Result<()> {
        self.read_at(0)
    }

    pub(super) fn write_at(&self, register: usize, value: u64) -> Result<()> {
        self.record(register, Some(value), || {
            // A timeout is one of waiting for a buffer, before anything is written: until a node is evicted, say. Where a
            // majority decides, time may pass at any moment.
            let mut tries = 0..4;
            loop {
                let excuse = Excuse::now();
                match self.client.write_blocking(register, [value; 2]) {
                    Err(error) if error.is_timeout() && excuse.is_given() && tries.next().is_some() => {}
                    written => return written.map(|()| Some(value)),
                }
            }
        })
    }

    pub(super) fn read_at(&self, register: usize) -> Result<()> {
        self.record(register, None, || {
            let value = self.client.read_blocking(register)?;
            assert_eq!(value[0], value[1], "a torn value");
            Ok(Some(value[0]))
        })
    }

    /// Writes these values to these registers, all at a time.
    pub(super) fn write_window(&self, writes: &[(usize, u64)]) -> Result<()> {
        let called = self.history.tick();
        let begin = |(register, value): &(usize, u64)| {
            let mut calls = self.history.calls.borrow_mut();
            calls[*register].push(Event::pending(self.node as u32, called, Some(*value)));
            (*register, calls[*register].len() - 1, *value)
        };
        let begun: Vec<(usize, usize, u64)> = writes.iter().map(begin).collect();
        let calls = begun.iter().map(async |(register, at, value)| {
            self.client.write(*register, [*value; 2]).await?;
            let returned = Some(self.history.tick());
            let event = &mut self.history.calls.borrow_mut()[*register][*at];
            (event.return_ns, event.output) = (returned, Some(*value));
            Ok(())
        });
        let mut failed = None;
        self.ep.run_window(writes.len(), calls, |written: Result<()>| {
            if let Err(error) = written {
                failed.get_or_insert(error);
            }
        });
        failed.map_or(Ok(()), Err)
    }

    /// Waits until another thread has stored this.
    pub(super) fn wait_for(&self, word: &Word, value: u64) -> Result<()> {
        let is_there = || (word.load() == value).then_some(());
        self.ep.block_on(self.ep.wait_until(self.ep.deadline(), is_there)).map_err(Error::from)
    }

    /// A write that may be dropped at some moment.
    pub(super) fn write_or_drop(&self, value: u64) -> Result<()> {
        self.record(0, Some(value), || {
            let written = self.or_drop(self.client.write(0, [value; 2]));
            Ok(written.transpose()?.map(|()| value))
        })
    }

    /// A read that may be dropped at some moment.
    pub(super) fn read_or_drop(&self) -> Result<()> {
        self.record(0, None, || Ok(self.or_drop(self.client.read(0)).transpose()?.map(|value| value[0])))
    }

    /// Polls a future a few times, and drops it.
    fn or_drop<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut polls = choose(12);
        let mut future = pin!(future);
        self.ep.block_on(poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending if polls == 0 => Poll::Ready(None),
            Poll::Pending => {
                polls -= 1;
                Poll::Pending
            }
        }))
    }

    /// Records a call: with the result of a read, and as one that may happen later if it has ended without an answer.
    fn record(&self, register: usize, input: Option<u64>, call: impl FnOnce() -> Result<Option<u64>>) -> Result<()> {
        let called = self.history.tick();
        let at = {
            let mut calls = self.history.calls.borrow_mut();
            calls[register].push(Event::pending(self.node as u32, called, input));
            calls[register].len() - 1
        };
        let output = call()?;
        if output.is_some() {
            let returned = self.history.tick();
            let event = Event { output, return_ns: Some(returned), ..Event::pending(self.node as u32, called, input) };
            self.history.calls.borrow_mut()[register][at] = event;
        }
        Ok::<(), Error>(())
    }
}
