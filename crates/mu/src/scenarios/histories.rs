//! Histories of the log, of a replicated lock, and of commands; the sequential objects that they have to be
//! linearizable as.

use farfield_core::history::{Event, Model, Recorder};

// ---- the log --------------------------------------------------------------------------------------------------------

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LogCall {
    /// Appends a value. After `OutcomeUnknown` it is known where, if it is decided.
    Append(u64, Option<u64>),
    /// Reads the entry of this index.
    Read(u64),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LogAnswer {
    /// The index of the value.
    Appended(u64),
    /// The value was not decided, and never will be.
    Refused,
    Value(u64),
}

/// A log that one process holds.
#[derive(Default)]
pub(super) struct LogModel;

impl Model for LogModel {
    type Input = LogCall;
    type Output = LogAnswer;
    type State = Vec<u64>;

    fn initial(&self) -> Vec<u64> {
        Vec::new()
    }

    fn step(&self, log: &Vec<u64>, call: &LogCall, answer: Option<&LogAnswer>) -> Option<Vec<u64>> {
        let next = log.len() as u64;
        match (*call, answer) {
            (LogCall::Append(..), Some(LogAnswer::Refused)) => Some(log.clone()),
            (LogCall::Append(value, at), answer) => {
                let is_there =
                    at.is_none_or(|at| at == next) && answer.is_none_or(|it| *it == LogAnswer::Appended(next));
                is_there.then(|| log.iter().copied().chain([value]).collect())
            }
            (LogCall::Read(index), answer) => {
                let value = LogAnswer::Value(*log.get(index as usize)?);
                answer.is_none_or(|answer| *answer == value).then(|| log.clone())
            }
        }
    }
}

// ---- the lock -------------------------------------------------------------------------------------------------------

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LockCall {
    /// A call of this number. If it never returns, its claim is given back at once.
    Lock(usize),
    /// Gives back what the call of this number holds.
    Unlock(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LockAnswer {
    Token(u64),
    Unlocked,
}

/// A lock with a fencing token: the number of the holder's call, and the last token.
#[derive(Default)]
pub(super) struct LockModel;

impl Model for LockModel {
    type Input = LockCall;
    type Output = LockAnswer;
    type State = (Option<usize>, u64);

    fn initial(&self) -> (Option<usize>, u64) {
        (None, 0)
    }

    fn step(
        &self,
        (holder, last): &(Option<usize>, u64),
        call: &LockCall,
        answer: Option<&LockAnswer>,
    ) -> Option<(Option<usize>, u64)> {
        match (*call, answer) {
            (LockCall::Lock(_), None) if holder.is_none() => Some((None, last + 1)),
            (LockCall::Lock(number), Some(LockAnswer::Token(token))) if holder.is_none() && *token == last + 1 => {
                Some((Some(number), *token))
            }
            (LockCall::Unlock(number), _) if *holder == Some(number) => Some((None, *last)),
            _ => None,
        }
    }
}

/// Panics unless the calls are linearizable. A lock is given back at some time if its holder has died, or was evicted.
pub(super) fn check_locks(calls: &Recorder<LockModel>) {
    let (mut held, mut given_back) = (Vec::new(), Vec::new());
    calls.each(|event| match (event.input, event.answered_ns()) {
        (LockCall::Lock(number), Some(since)) => held.push((event.client, number, since)),
        (LockCall::Unlock(number), _) => given_back.push(number),
        _ => {}
    });
    for (node, number, since) in held.into_iter().filter(|(_, number, _)| !given_back.contains(number)) {
        calls.push(Event::pending(node, since, LockCall::Unlock(number)));
    }
    calls.check(&LockModel);
}
