//! A replicated data type with calls of all categories: deposits are summed up, withdrawals are ordered by one leader,
//! numbers are booked in feeds, and struck by the order of another leader. Most of its nodes have to live for the
//! ordered calls; all others continue in any case.

use core::fmt;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use farfield::hamband::{Coordination, DataType, Writer, methods};
use farfield::{Endpoint, MemberStatus, Node, NodeId, Replicated, ReplicatedOptions};
use rand::RngExt;
use rand::rngs::SmallRng;
use serde::{Deserialize, Serialize};

use super::{Load, Place};
use crate::chaos::log::{Answer, Failure, LedgerOp, Op, Recorder};

/// Small, so that withdrawals are refused at times.
const AMOUNT: RangeInclusive<u64> = 1..=20;
/// So that feeds and summaries are full at times.
const OPTIONS: ReplicatedOptions = ReplicatedOptions {
    call_bytes_max: 16,
    refusal_bytes_max: 32,
    summary_bytes_max: 32,
    feed_bytes: 4096,
    serialised: false,
};

/// A balance, which is never negative, and numbers that are booked once, and struck once after that.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
pub(in crate::chaos) struct Ledger {
    pub(in crate::chaos) balance: u64,
    pub(in crate::chaos) booked: BTreeSet<u64>,
    pub(in crate::chaos) struck: BTreeSet<u64>,
}

methods! {
    /// The updates of a [`Ledger`].
    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    pub(in crate::chaos) enum LedgerUpdate: LedgerMethod {
        Deposit(u64),
        Withdraw(u64),
        Book(u64),
        Strike(u64),
    }
}

/// Why an update is refused.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(in crate::chaos) enum LedgerRefusal {
    TooLow(u64),
    NotThere(u64),
}

impl fmt::Display for LedgerRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LedgerRefusal::TooLow(balance) => write!(f, "the balance is {balance}"),
            LedgerRefusal::NotThere(number) => write!(f, "{number} is not booked, or struck already"),
        }
    }
}

impl DataType for Ledger {
    type Update = LedgerUpdate;
    type Refusal = LedgerRefusal;

    fn apply(&mut self, update: &LedgerUpdate) -> Result<(), LedgerRefusal> {
        self.check(update)?;
        match update {
            LedgerUpdate::Deposit(amount) => self.balance += amount,
            LedgerUpdate::Withdraw(amount) => self.balance -= amount,
            LedgerUpdate::Book(number) => drop(self.booked.insert(*number)),
            LedgerUpdate::Strike(number) => drop(self.struck.insert(*number)),
        }
        Ok(())
    }

    fn check(&self, update: &LedgerUpdate) -> Result<(), LedgerRefusal> {
        match update {
            LedgerUpdate::Withdraw(amount) if *amount > self.balance => Err(LedgerRefusal::TooLow(self.balance)),
            LedgerUpdate::Strike(number) if !self.booked.contains(number) || self.struck.contains(number) => {
                Err(LedgerRefusal::NotThere(*number))
            }
            _ => Ok(()),
        }
    }

    fn coordination() -> Coordination<LedgerMethod> {
        use LedgerMethod::{Book, Deposit, Strike, Withdraw};
        let of_balance = Coordination::none().conflict(Withdraw, Withdraw).depends(Withdraw, Deposit);
        of_balance.conflict(Strike, Strike).depends(Strike, Book).summarised([Deposit])
    }

    fn summarise(first: &LedgerUpdate, then: &LedgerUpdate) -> Option<LedgerUpdate> {
        match (first, then) {
            (LedgerUpdate::Deposit(a), LedgerUpdate::Deposit(b)) => Some(LedgerUpdate::Deposit(a + b)),
            _ => None,
        }
    }

    fn remainder(earlier: &LedgerUpdate, later: &LedgerUpdate) -> Option<LedgerUpdate> {
        match (earlier, later) {
            (LedgerUpdate::Deposit(a), LedgerUpdate::Deposit(b)) => Some(LedgerUpdate::Deposit(b.checked_sub(*a)?)),
            _ => None,
        }
    }
}

impl LedgerOp {
    fn update(self) -> Option<LedgerUpdate> {
        Some(match self {
            LedgerOp::Deposit(amount) => LedgerUpdate::Deposit(amount),
            LedgerOp::Withdraw(amount) => LedgerUpdate::Withdraw(amount),
            LedgerOp::Book(number) => LedgerUpdate::Book(number),
            LedgerOp::Strike(number) => LedgerUpdate::Strike(number),
            LedgerOp::Look | LedgerOp::Stable | LedgerOp::Settled | LedgerOp::Final => return None,
        })
    }
}

/// The numbers that a node books.
pub(in crate::chaos) fn numbers_of(node: u16) -> std::ops::Range<u64> {
    u64::from(node) << 32..(u64::from(node) + 1) << 32
}

pub(super) struct WrdtLoad {
    node: Node,
    ledger: Replicated<Ledger>,
    writer: Writer<Ledger>,
    members: Vec<NodeId>,
    endpoint: Endpoint,
    rng: SmallRng,
    booked: u64,
    /// Most nodes live, as far as is known.
    has_majority: bool,
}

impl WrdtLoad {
    pub(super) fn open(place: &mut Place<'_>) -> Result<WrdtLoad, Failure> {
        let members = place.members.clone();
        let ledger = place
            .open("ledger", |node, path| Replicated::open_among(node, path, &members, Ledger::default(), OPTIONS))?;
        let writer = place.open("the writer of ledger", |_, _| ledger.writer())?;
        let (endpoint, rng) = (place.endpoint()?, place.rng("wrdt"));
        let node = place.node.clone();
        Ok(WrdtLoad { node, ledger, writer, members, endpoint, rng, booked: 0, has_majority: true })
    }

    fn update(&mut self, log: &mut Recorder, op: LedgerOp) {
        let Some(update) = op.update() else { return };
        let (writer, endpoint) = (&mut self.writer, &self.endpoint);
        let call = async { writer.update(endpoint, &update).await.map(|done| done.is_ok()) };
        let done = log.call(Op::Ledger { op }, endpoint, call, |done| Answer::Changed(*done));
        self.has_majority &= !done.is_err_and(|failure| failure.variant == "NoMajority");
    }

    /// A number that is booked, and struck by no call that has come here.
    fn open_number(&mut self) -> Option<u64> {
        let from = numbers_of(self.members[self.rng.random_range(0..self.members.len())].0);
        let at = from.start + self.rng.random_range(0..=self.booked);
        let find = |ledger: &Ledger| {
            let all = ledger.booked.range(at..).chain(&ledger.booked);
            all.copied().find(|number| !ledger.struck.contains(number))
        };
        self.ledger.query(find).ok().flatten()
    }

    fn look_now(&mut self, log: &mut Recorder) {
        let members = &self.members;
        let look = |ledger: &Ledger| {
            let of = |member: &NodeId| ledger.booked.range(numbers_of(member.0)).count() as u64;
            [ledger.balance, ledger.struck.len() as u64].into_iter().chain(members.iter().map(of)).collect()
        };
        let begun = log.begin(Op::Ledger { op: LedgerOp::Look }, self.endpoint.timeout());
        let _ = log.end(begun, self.ledger.query(look), |numbers: &Vec<u64>| Answer::Numbers(numbers.clone()));
    }

    fn stable(&mut self, log: &mut Recorder) {
        let stable = self.writer.stable(&self.endpoint);
        let _ = log.call(Op::Ledger { op: LedgerOp::Stable }, &self.endpoint, stable, |()| Answer::Done);
    }
}

impl Load for WrdtLoad {
    fn step(&mut self, log: &mut Recorder) {
        let op = match self.rng.random_range(0..100) {
            0..25 => LedgerOp::Deposit(self.rng.random_range(AMOUNT)),
            25..45 => LedgerOp::Withdraw(self.rng.random_range(AMOUNT)),
            45..65 => {
                self.booked += 1;
                LedgerOp::Book(numbers_of(self.node.id().0).start + self.booked)
            }
            65..80 => self.open_number().map_or(LedgerOp::Look, LedgerOp::Strike),
            80..97 => LedgerOp::Look,
            _ => LedgerOp::Stable,
        };
        match op {
            LedgerOp::Look => self.look_now(log),
            LedgerOp::Stable => self.stable(log),
            // It would fail, and does nothing for the others.
            op if op.is_ordered() && !self.has_majority => self.look_now(log),
            op => self.update(log, op),
        }
    }

    fn settle(&mut self, log: &mut Recorder) {
        self.stable(log);
    }

    fn look(&mut self, log: &mut Recorder) {
        let (endpoint, ledger, node) = (&self.endpoint, &self.ledger, &self.node);
        let is_member = |member: &NodeId| node.status_of(*member) == Some(MemberStatus::Member);
        let dead: Vec<NodeId> = self.members.iter().copied().filter(|member| !is_member(member)).collect();
        let are_settled = || dead.iter().all(|node| ledger.is_settled(*node)).then_some(());
        let settled = async { endpoint.wait_until(endpoint.deadline(), are_settled).await.map_err(Into::into) };
        let _ = log.call(Op::Ledger { op: LedgerOp::Settled }, endpoint, settled, |()| Answer::Done);
        let begun = log.begin(Op::Ledger { op: LedgerOp::Final }, endpoint.timeout());
        let state = |ledger: &Ledger| serde_json::to_value(ledger).expect("plain data");
        let _ = log.end(begun, ledger.query(state), |state| Answer::Custom(state.clone()));
    }
}
