//! Scenarios of commands: a purse, from which all nodes take.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use farfield_check::parts::{Excuse, goes_on};
use farfield_check::{Cluster, Faults, Scenario};
use farfield_core::history::{Model, Recorder};
use farfield_core::toolkit::{Poller, Progress};
use farfield_core::{Endpoint, Node, Result};
use farfield_fabric::{LocalMutex, Word};

use crate::{
    Command, CommandNumbers, CommandOptions, CommandProposer, Commands, Decision, Forward, LogOptions, LogReader,
    Ordered, Served,
};

/// The money at the beginning.
const PURSE: u64 = 5;

pub(super) fn scenarios() -> Vec<Scenario> {
    let about = "commands of all nodes are ordered, once each, and answered";
    vec![
        takes("mu/commands", about, &[]).kills(&["mu-old-answer"]),
        takes("mu/commands-leader-dies", "a command that two leaders are asked for is ordered once", &[])
            .faults(Faults::new().crashes(1).of([0]))
            .kills(&["mu-command-twice"]),
        takes("mu/commands-contested", "a leader that comes back orders nothing that another one has", &[0, 1]),
    ]
}

/// What is left after a call, and whether it has taken what it wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Taken {
    is_taken: bool,
    left: u64,
}

struct PurseModel {
    /// A refusal may be that of a leader that was replaced and does not know it: of an earlier state.
    may_be_late: bool,
}

impl Model for PurseModel {
    type Input = u64;
    type Output = Taken;
    type State = u64;

    fn initial(&self) -> u64 {
        PURSE
    }

    fn step(&self, left: &u64, amount: &u64, taken: Option<&Taken>) -> Option<u64> {
        let is_late = |it: &Taken| !it.is_taken && it.left >= *left && *amount > it.left;
        if self.may_be_late && taken.is_some_and(is_late) {
            return Some(*left);
        }
        let is_taken = amount <= left;
        let left = if is_taken { left - amount } else { *left };
        taken.is_none_or(|taken| *taken == Taken { is_taken, left }).then_some(left)
    }
}

struct State {
    reader: LogReader,
    numbers: CommandNumbers,
    left: u64,
    /// The last command of this node, and its result.
    own: Option<(u64, Taken)>,
}

/// A node's part.
struct Purse {
    me: usize,
    commands: Commands,
    state: LocalMutex<State>,
    /// Counts the entries that are applied.
    applied: Word,
}

impl Purse {
    fn open(node: &Node, me: usize) -> Result<Arc<Purse>> {
        let log = LogOptions { entry_bytes_max: 32, entries: 16 };
        let options = CommandOptions { log, command_bytes_max: 8, answer_bytes_max: 8 };
        let commands = Commands::open(node, "purse", options)?;
        let numbers = CommandNumbers::new(node.members().count());
        let state = State { reader: commands.log().reader()?, numbers, left: PURSE, own: None };
        Ok(Arc::new(Purse { me, commands, state: LocalMutex::new(state), applied: Word::new(0) }))
    }

    /// Applies all decided entries: origin, number, amount and index, by words.
    fn drain(&self) -> Result<bool> {
        let (mut state, mut entry, mut some) = (self.state.lock(), Vec::new(), false);
        while let Some(index) = state.reader.try_next(&mut entry)? {
            let words: Vec<u64> = entry.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
            let (origin, number, amount) = (words[0] as usize, words[1], words[2]);
            assert_eq!(words[3], index, "it was decided for another index");
            let is_taken = amount <= state.left;
            state.left -= if is_taken { amount } else { 0 };
            state.numbers.applied(origin, number);
            if origin == self.me {
                state.own = Some((number, Taken { is_taken, left: state.left }));
            }
            state.reader.acknowledge();
            some = true;
        }
        if some {
            self.applied.store(state.reader.position());
        }
        Ok(some)
    }

    /// Orders a command. The result of one that is refused; none of one that is in the log.
    fn order(&self, proposer: &mut CommandProposer<'_>, command: &Command) -> Result<Ordered<Option<u64>>> {
        let amount = u64::from_le_bytes(command.bytes.as_slice().try_into().unwrap());
        proposer.order(Duration::from_millis(1), async |next| {
            self.drain()?;
            let state = self.state.lock();
            // A later leader may have decided more: then this one proposes nothing.
            assert!(state.reader.position() >= next.index, "all entries before it are decided");
            if state.numbers.has(command.origin, command.number) {
                return Ok(Decision::End(None));
            }
            // The refusal of one that an earlier leader may have in its log is ordered, too.
            if amount > state.left && !command.is_repeated {
                return Ok(Decision::End(Some(state.left)));
            }
            let entry = [command.origin as u64, command.number, amount, next.index];
            Ok(Decision::Propose(entry.iter().flat_map(|word| word.to_le_bytes()).collect(), None))
        })
    }

    /// Takes from the purse, here or at the leader.
    fn take(&self, ep: &Endpoint, number: u64, amount: u64) -> Result<Taken> {
        let (deadline, bytes) = (ep.deadline(), amount.to_le_bytes());
        let mut forward = Forward::new(number);
        loop {
            // Before the look: a change after it ends the wait.
            let (view, decided) = (self.commands.view(), self.commands.log().decided());
            self.drain()?;
            let own = self.state.lock().own;
            if let Some((_, taken)) = own.filter(|(of, _)| *of == number) {
                return Ok(taken);
            }
            let refused = |left| Taken { is_taken: false, left };
            let mut again = None;
            let answer = || self.commands.answered(view.leader?, view.term, number);
            if view.leads {
                let is_repeated = forward.is_repeated(view.term);
                let command = Command { origin: self.me, number, is_repeated, bytes: bytes.to_vec() };
                if let Some(mut proposer) = self.commands.proposer() {
                    match self.order(&mut proposer, &command) {
                        Ok(Ordered::Done(Some(left))) => return Ok(refused(left)),
                        Ok(Ordered::Done(None)) => continue,
                        Ok(Ordered::Unknown) => forward.was_proposed(view.term),
                        Ok(Ordered::NotLeader) => {}
                        // This attempt has ended, and not the call.
                        Err(error) => assert!(error.is_timeout() || !goes_on_with(&error), "{error}"),
                    }
                    again = Some(ep.now() + Duration::from_millis(10));
                } else if !view.is_busy {
                    // The other thread may have given it back already, and then nothing changes.
                    continue;
                }
            } else {
                again = forward.step(&self.commands, ep, &view, &bytes)?;
                if let Some(answer) = answer() {
                    return Ok(refused(u64::from_le_bytes(answer.try_into().unwrap())));
                }
            }
            let has_changed = || {
                let of_log = self.commands.view() != view || self.commands.log().decided() != decided;
                (of_log || !view.leads && answer().is_some()).then_some(())
            };
            let until = deadline.min(again.unwrap_or(deadline));
            match ep.block_on(ep.wait_until(until, has_changed)) {
                Err(error) if error.is_timeout() && ep.now() < deadline => {}
                waited => waited?,
            }
        }
    }
}

/// A majority is missing, or a follower does not read.
fn goes_on_with(error: &farfield_core::Error) -> bool {
    error.custom_ref::<crate::NoMajority>().is_none() && error.custom_ref::<crate::LogFull>().is_none()
}

/// The service thread's part.
struct Chores {
    purse: Arc<Purse>,
    served: Served,
    is_closed: Arc<Word>,
}

impl Poller for Chores {
    fn poll(&mut self, endpoint: &Endpoint) -> Progress {
        if self.is_closed.load() != 0 {
            return Progress::Done;
        }
        let Ok(some) = self.purse.drain() else { return Progress::Retry };
        let served = self.purse.commands.serve(endpoint, &mut self.served, |proposer, command| {
            let ordered = self.purse.order(proposer, command)?;
            Ok(match ordered {
                Ordered::Done(left) => Ordered::Done(left.map(|left| left.to_le_bytes().to_vec())),
                Ordered::NotLeader => Ordered::NotLeader,
                Ordered::Unknown => Ordered::Unknown,
            })
        });
        match served {
            _ if some || served.has_worked => {
                endpoint.wake_local();
                Progress::Busy
            }
            _ if served.is_retried && !endpoint.fabric().is_fenced() => Progress::Retry,
            _ => Progress::Idle,
        }
    }
}

/// Each node takes several times. These nodes ask to lead meanwhile.
fn takes(name: &str, about: &str, asking: &'static [usize]) -> Scenario {
    Scenario::new(name, about, 3, move |cluster: &Cluster| {
        let opened = cluster.on_each(|node| {
            let purse = Purse::open(node, node.id().index())?;
            let is_closed = Arc::new(Word::new(0));
            let chores =
                Chores { purse: Arc::clone(&purse), served: Served::default(), is_closed: Arc::clone(&is_closed) };
            node.add_poller(Box::new(chores));
            Ok((purse, is_closed))
        })?;
        let calls = Rc::new(Recorder::<PurseModel>::default());
        let (seen, kept, nodes) = (Rc::clone(&calls), RefCell::new(opened.clone()), cluster.nodes());
        cluster.at_end(move || {
            seen.check(&PurseModel { may_be_late: !asking.is_empty() });
            for ((_, is_closed), node) in kept.take().iter().zip(&nodes) {
                is_closed.store(1);
                node.fabric().wake_service();
            }
            Ok(())
        });
        for (me, (purse, _)) in opened.into_iter().enumerate() {
            if asking.contains(&me) {
                let log = purse.commands.log().clone();
                cluster.thread(me, "asks", move |ep| {
                    for _ in 0..2 {
                        log.ask_to_lead();
                        let leads = || log.is_leader().then_some(());
                        let _ = ep.block_on(ep.wait_until(ep.now() + Duration::from_millis(20), leads));
                    }
                    Ok(())
                });
            }
            let (calls, node) = (Rc::clone(&calls), cluster.node(me));
            cluster.thread(me, "takes", move |ep| {
                for (number, amount) in [(1, 1), (2, 4), (3, 1)] {
                    let (excuse, call) = (Excuse::now(), calls.begin(me, amount));
                    match purse.take(ep, number, amount) {
                        Ok(taken) => calls.end(call, taken),
                        Err(error) => {
                            assert!(excuse.is_given() || !goes_on(&node), "nothing has happened: {error}");
                            return Ok(());
                        }
                    }
                }
                Ok(())
            });
        }
        Ok(())
    })
}
