//! Conflicting calls (rule CONF): the leader of a synchronisation group orders them in its replicated log.
//!
//! A call waits until it is in the log and applied at its caller. The leader
//!
//! 1. applies all entries of the log that are decided, those of leaders before it too;
//! 2. asks whether the call is permissible. Until the call is in the log, only calls are applied that do not conflict
//!    with it, so the answer stays;
//! 3. makes sure that a majority has applied the entries of feeds that the call may depend on. Otherwise their sources
//!    and the leader could die, and a decided call could never be applied. As a rule it knows: it asks the others only
//!    after new entries, by one get each. Summaries that the call may depend on are part of the log's entry;
//! 4. proposes the call for the next index, and for no other one.
//!
//! The calls of other processes come through [`Commands`], which asks the next leader when one dies. The call may then
//! be in the log already: the number of the caller's last one says so. Or the next leader finds it in its own log, not
//! decided. So the refusal of a call that was asked for in two terms is ordered, too: as an entry without a call.

use core::time::Duration;

use farfield_core::toolkit::ErrorContext;
use farfield_core::{ErrorKind, Result};
use farfield_fabric::{Endpoint, LocalMutex};
use farfield_mu::{Command, CommandProposer, Commands, Decision, NextEntry, Ordered, ServeProgress, Served};

use crate::data_type::{DataType, Method, Update};
use crate::replica::{Wrong, decode, encode};
use crate::replicated::Shared;
use crate::watch::Watch;

/// The first byte of an answer: the refusal follows, or it is too long.
pub(crate) const REFUSAL: u8 = 0;
pub(crate) const TOO_LONG: u8 = 1;

/// A synchronisation group of this process.
pub(crate) struct Order {
    pub(crate) commands: Commands,
    /// By process: how many entries of its feed are known to be applied at a majority.
    pub(crate) at_majority: LocalMutex<Vec<u64>>,
}

impl Order {
    pub(crate) fn new(commands: Commands, processes: usize) -> Order {
        Order { commands, at_majority: LocalMutex::new(vec![0; processes]) }
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

/// Why a call was refused, if it was.
pub(crate) type Led<R> = Option<R>;

/// The next step of an attempt.
enum Next<R> {
    Decided(Decision<Led<R>>),
    /// Something has still to be applied here.
    Wait(u64, Watch),
    /// The feeds of these processes have entries that a majority has to have.
    Spread(Vec<(usize, u64)>),
}

impl<T: DataType> Shared<T> {
    /// Orders a call, if this process leads its group. It takes a round trip, as a rule, for which the thread is
    /// blocked: it ends all that it has begun.
    pub(crate) fn lead(
        &self,
        proposer: &mut CommandProposer<'_>,
        asked: &Asked<'_, T::Update>,
        timeout: Duration,
    ) -> Result<Ordered<Led<T::Refusal>>> {
        proposer.order(timeout, async |next| self.decide(next, asked).await)
    }

    async fn decide(&self, next: &NextEntry<'_>, asked: &Asked<'_, T::Update>) -> Result<Decision<Led<T::Refusal>>> {
        let NextEntry { endpoint, index, deadline } = *next;
        let order = &self.process.orders[asked.group];
        match self.next_of(asked, index)? {
            Next::Decided(decision) => return Ok(decision),
            Next::Wait(changes, watch) => {
                let has_changed = || {
                    let is_replaced = !order.commands.log().is_leader();
                    (watch.has_changed() || self.process.changes.load() != changes || is_replaced).then_some(())
                };
                let waited = endpoint.wait_until(deadline, has_changed).await;
                waited.waiting_for("calls that an entry of the log depends on")?;
            }
            Next::Spread(entries) => self.process.spread(endpoint, order, &entries, deadline).await?,
        }
        Ok(Decision::Again)
    }

    fn next_of(&self, asked: &Asked<'_, T::Update>, index: u64) -> Result<Next<T::Refusal>> {
        let Asked { group, origin, number, call, is_asked_again } = *asked;
        let mut local = self.local.lock();
        let some = local.drain()?.some;
        self.process.note(some);
        let of_group = &local.groups[group];
        if of_group.applied.numbers.has(origin, number) {
            return Ok(Next::Decided(Decision::End(None)));
        }
        if of_group.entries() < index {
            let (some, watch) = local.drain_and_watch()?;
            let changes = self.process.note(some);
            // It may have landed in between.
            return Ok(if some { Next::Decided(Decision::Again) } else { Next::Wait(changes, watch) });
        }
        if let Err(refusal) = local.replica.state.check(call) {
            if !is_asked_again {
                return Ok(Next::Decided(Decision::End(Some(refusal))));
            }
            let answer = self.encode_refusal(&refusal).map_err(|wrong| local.error(origin, wrong))?;
            let entry = local.replica.encode_refused(origin, number, &answer);
            let entry = entry.map_err(|wrong| local.error(origin, wrong))?;
            return Ok(Next::Decided(Decision::Propose(entry, Some(refusal))));
        }
        let at_majority = self.process.orders[group].at_majority.lock();
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
        Ok(Next::Decided(Decision::Propose(entry, None)))
    }

    /// The bytes of an answer, and of an entry for a call that is refused.
    fn encode_refusal(&self, refusal: &T::Refusal) -> Result<Vec<u8>, Wrong<T::Refusal>> {
        let bytes = encode(refusal, vec![REFUSAL])?;
        Ok(if bytes.len() > self.refusal_bytes_max + 1 { vec![TOO_LONG] } else { bytes })
    }

    /// Orders the requests of other processes, on the service thread.
    pub(crate) fn serve(&self, endpoint: &Endpoint, served: &mut [Served]) -> ServeProgress {
        let mut all = ServeProgress::default();
        for (group, (order, served)) in self.process.orders.iter().zip(served).enumerate() {
            let of_group =
                order.commands.serve(endpoint, served, |proposer, command| self.serve_one(proposer, group, command));
            all.has_worked |= of_group.has_worked;
            all.is_retried |= of_group.is_retried;
        }
        all
    }

    fn serve_one(
        &self,
        proposer: &mut CommandProposer<'_>,
        group: usize,
        command: &Command,
    ) -> Result<Ordered<Option<Vec<u8>>>> {
        let Command { number, is_repeated, ref bytes, .. } = *command;
        let node = self.process.orders[group].commands.node_at(command.origin);
        let Some((origin, ..)) = self.process.counts.iter().copied().find(|(_, of, _)| Some(*of) == node) else {
            return Ok(Ordered::Done(None)); // of no process of this object
        };
        let call = decode::<T::Update, T::Refusal>(bytes);
        let (call, _) = call.map_err(|wrong| self.local.lock().error(origin, wrong))?;
        if self.local.lock().replica.tables.group_of[call.method().number()] != Some(group) {
            return Err(ErrorKind::Corrupt { what: format!("a request for group {group}") }.into());
        }
        let asked = Asked { group, origin, number, call: &call, is_asked_again: is_repeated };
        // A round trip, as a rule. The thread has other work, too.
        Ok(match self.lead(proposer, &asked, SERVE_AT_MOST)? {
            Ordered::Done(None) => Ordered::Done(None),
            Ordered::Done(Some(refusal)) => {
                let bytes = self.encode_refusal(&refusal);
                Ordered::Done(Some(bytes.map_err(|wrong| self.local.lock().error(origin, wrong))?))
            }
            Ordered::NotLeader => Ordered::NotLeader,
            Ordered::Unknown => Ordered::Unknown,
        })
    }
}

/// How long the service thread orders one call.
const SERVE_AT_MOST: Duration = Duration::from_millis(1);
