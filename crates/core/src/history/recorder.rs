//! Recording the calls of a simulated execution.

use std::cell::{Cell, RefCell};

use super::{Budget, Event, Model, check};

/// The calls of one thread, or of all threads under the simulator, as their callers saw them. Its clock counts the
/// events of the history, which has one order there.
///
/// ```
/// use farfield::history::{Recorder, kv::{KvInput, KvModel, KvOutput}};
/// let calls = Recorder::<KvModel>::default();
/// let insert = calls.begin(0, KvInput::Insert(7));
/// calls.at_once(1, KvInput::Get, KvOutput::Found(Some(7))); // the insertion has not returned, and is seen
/// calls.end(insert, KvOutput::Succeeded(true));
/// calls.check(&KvModel);
/// ```
pub struct Recorder<M: Model> {
    events: RefCell<Vec<Event<M::Input, M::Output>>>,
    clock: Cell<u64>,
}

impl<M: Model> Default for Recorder<M> {
    fn default() -> Recorder<M> {
        Recorder { events: RefCell::default(), clock: Cell::new(0) }
    }
}

impl<M: Model> Recorder<M> {
    fn tick(&self) -> u64 {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }

    /// A call begins: until it has an answer, it may happen at any moment, or not at all. The result is its index.
    ///
    /// ```
    /// # use farfield::history::{Recorder, kv::{KvInput, KvModel, KvOutput}};
    /// # let calls = Recorder::<KvModel>::default();
    /// let pending = calls.begin(0, KvInput::Insert(7)); // its caller may have died
    /// calls.at_once(1, KvInput::Get, KvOutput::Found(None));
    /// calls.at_once(1, KvInput::Get, KvOutput::Found(Some(7))); // it may have happened in between
    /// calls.check(&KvModel);
    /// ```
    pub fn begin(&self, client: usize, input: M::Input) -> usize {
        let event = Event::pending(client as u32, self.tick(), input);
        self.events.borrow_mut().push(event);
        self.events.borrow().len() - 1
    }

    /// A call returns.
    ///
    /// ```
    /// # use farfield::history::{Recorder, kv::{KvInput, KvModel, KvOutput}};
    /// # let calls = Recorder::<KvModel>::default();
    /// let insert = calls.begin(0, KvInput::Insert(7));
    /// calls.end(insert, KvOutput::Succeeded(true));
    /// calls.check(&KvModel);
    /// ```
    pub fn end(&self, at: usize, output: M::Output) {
        let now = self.tick();
        let event = &mut self.events.borrow_mut()[at];
        (event.return_ns, event.output) = (Some(now), Some(output));
    }

    /// More is known of a call, or it has become another one.
    ///
    /// ```
    /// # use farfield::history::{Recorder, kv::{KvInput, KvModel, KvOutput}};
    /// # let calls = Recorder::<KvModel>::default();
    /// let call = calls.begin(0, KvInput::Insert(7));
    /// calls.amend(call, KvInput::Get); // it has found the key, and only reads
    /// calls.end(call, KvOutput::Found(None));
    /// calls.check(&KvModel);
    /// ```
    pub fn amend(&self, at: usize, input: M::Input) {
        self.events.borrow_mut()[at].input = input;
    }

    /// A call that takes no time.
    ///
    /// ```
    /// # use farfield::history::{Recorder, kv::{KvInput, KvModel, KvOutput}};
    /// # let calls = Recorder::<KvModel>::default();
    /// calls.at_once(0, KvInput::Insert(7), KvOutput::Succeeded(true));
    /// calls.at_once(0, KvInput::Get, KvOutput::Found(Some(7)));
    /// calls.check(&KvModel);
    /// ```
    pub fn at_once(&self, client: usize, input: M::Input, output: M::Output) {
        let at = self.begin(client, input);
        self.end(at, output);
    }

    /// A call with times that are known.
    ///
    /// ```
    /// # use farfield::history::{Event, Recorder, kv::{KvInput, KvModel, KvOutput}};
    /// # let calls = Recorder::<KvModel>::default();
    /// let (output, return_ns) = (Some(KvOutput::Found(None)), Some(20));
    /// calls.push(Event { output, return_ns, ..Event::pending(0, 10, KvInput::Get) });
    /// calls.check(&KvModel);
    /// ```
    pub fn push(&self, event: Event<M::Input, M::Output>) {
        self.events.borrow_mut().push(event);
    }

    /// Shows each call that has begun.
    ///
    /// ```
    /// # use farfield::history::{Recorder, kv::{KvInput, KvModel, KvOutput}};
    /// # let calls = Recorder::<KvModel>::default();
    /// calls.at_once(0, KvInput::Get, KvOutput::Found(None));
    /// let mut pending = 0;
    /// calls.each(|call| pending += usize::from(call.output.is_none()));
    /// assert_eq!(pending, 0);
    /// ```
    pub fn each(&self, see: impl FnMut(&Event<M::Input, M::Output>)) {
        self.events.borrow().iter().for_each(see);
    }

    /// Checks that the calls are linearizable.
    ///
    /// ```
    /// # use farfield::history::{Recorder, kv::{KvInput, KvModel, KvOutput}};
    /// # let calls = Recorder::<KvModel>::default();
    /// calls.at_once(0, KvInput::Get, KvOutput::Found(Some(7))); // no call has inserted it
    /// assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| calls.check(&KvModel))).is_err());
    /// ```
    ///
    /// # Panics
    /// They are not, or the check has used up its [`Budget`].
    pub fn check(&self, model: &M) {
        let verdict = check(model, &self.events.borrow(), Budget::default());
        assert!(verdict.is_linearizable(), "{verdict}");
    }
}
