//! The types that are measured, and the calls that are made on them.

use std::collections::BTreeSet;
use std::fmt;

use clap::ValueEnum;
use farfield::ReplicatedOptions;
use farfield::hamband::types::{
    Account, Auction, AuctionMethod, AuctionUpdate, BankMap, BankMapMethod, BankMapUpdate, Cart, CartMethod, Counter,
    CounterMethod, CounterUpdate, Courseware, CoursewareMethod, CoursewareUpdate, GSet, GSetByElement,
    GSetByElementMethod, GSetByElementUpdate, GSetMethod, GSetUpdate, LwwMethod, LwwRegister, LwwUpdate, MovieMethod,
    MovieRental, MovieUpdate, MvMethod, MvRegister, OrSet, OrSetMethod, OrSetUpdate, PnCounter, PnCounterMethod,
    PnCounterUpdate, ProjectManagement, ProjectMethod, ProjectUpdate, Timestamp,
};
use farfield::hamband::types::{AccountMethod, AccountUpdate};
use farfield::hamband::{DataType, Method, Update};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::bench::workload::scale;

/// A replicated data type of `farfield_hamband::types`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Type {
    /// Additions (fig. 8)
    Counter,
    /// Increments and decrements, each with a summary
    PnCounter,
    /// A register whose last writer wins (fig. 8)
    Lww,
    /// A register that keeps concurrent values
    MvRegister,
    /// A grow-only set, reducible (fig. 8)
    Gset,
    /// A grow-only set by buffers (fig. 9)
    GsetBuffered,
    /// An observed-remove set (fig. 9)
    OrSet,
    /// A shopping cart (fig. 9)
    Cart,
    /// A bank account
    Account,
    /// A bank with many accounts
    BankMap,
    /// Customers and movies: two synchronisation groups (fig. 10)
    Movie,
    /// Project management (fig. 11)
    Project,
    /// Courseware (fig. 13)
    Courseware,
    /// An auction, of which the end is not measured
    Auction,
    /// All of them
    All,
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}

/// What is done with any type.
pub(super) trait WithType {
    type Output;
    fn with<T: Load>(self) -> Self::Output;
}

impl Type {
    /// All types, each once.
    pub(super) fn each(types: &[Type]) -> Vec<Type> {
        let all = Type::value_variants().iter().copied().filter(|one| *one != Type::All);
        if types.contains(&Type::All) { all.collect() } else { super::once_each(types.iter().copied()) }
    }

    pub(super) fn with<W: WithType>(self, with: W) -> W::Output {
        match self {
            Type::Counter | Type::All => with.with::<Counter>(),
            Type::PnCounter => with.with::<PnCounter>(),
            Type::Lww => with.with::<LwwRegister<u64>>(),
            Type::MvRegister => with.with::<MvRegister<u64>>(),
            Type::Gset => with.with::<GSet<u32>>(),
            Type::GsetBuffered => with.with::<GSetByElement<u32>>(),
            Type::OrSet => with.with::<OrSet<u32>>(),
            Type::Cart => with.with::<Cart<u32>>(),
            Type::Account => with.with::<Account>(),
            Type::BankMap => with.with::<BankMap<u32>>(),
            Type::Movie => with.with::<MovieRental<u32, u32>>(),
            Type::Project => with.with::<ProjectManagement<u32, u32>>(),
            Type::Courseware => with.with::<Courseware<u32, u32>>(),
            Type::Auction => with.with::<Auction<u32>>(),
        }
    }
}

/// The methods of a type's updates.
pub(super) type MethodOf<T> = <<T as DataType>::Update as Update>::Method;

/// The arguments of a node's calls.
pub(super) struct Draws {
    rng: SmallRng,
    node: u16,
    drawn: u64,
}

impl Draws {
    pub(super) fn new(node: usize) -> Draws {
        Draws { rng: SmallRng::seed_from_u64(42 + node as u64), node: node as u16, drawn: 0 }
    }

    /// A number below this one.
    pub(super) fn below(&mut self, range: u64) -> u64 {
        scale(self.rng.next_u64(), range).0
    }

    fn element(&mut self, range: u32) -> u32 {
        self.below(range.into()) as u32
    }

    fn amount(&mut self) -> u64 {
        1 + self.below(10)
    }

    /// A time that this node has not had before.
    fn tick(&mut self) -> u64 {
        self.drawn += 1;
        self.drawn
    }
}

/// A type with calls to measure. None of them is refused, as a rule: what they need is there from the beginning, and is
/// not taken away.
pub(super) trait Load: DataType {
    /// Whether a call depends on the state of the replica that makes it.
    const READS_STATE: bool = false;

    /// The state at the beginning.
    fn initial() -> Self;

    /// Calls of these methods are drawn, all equally often.
    fn methods() -> Vec<MethodOf<Self>> {
        MethodOf::<Self>::ALL.to_vec()
    }

    fn options() -> ReplicatedOptions {
        ReplicatedOptions::default()
    }

    /// A call of a method. Unless it reads the state, `self` is any.
    fn call(&self, method: MethodOf<Self>, draws: &mut Draws) -> Self::Update;

    /// A query.
    fn look(&self, draws: &mut Draws) -> u64;
}

/// Calls that name the updates which they have seen may be longer.
fn long_calls() -> ReplicatedOptions {
    ReplicatedOptions { call_bytes_max: 1024, summary_bytes_max: 1024, ..ReplicatedOptions::default() }
}

impl Load for Counter {
    fn initial() -> Self {
        Counter::default()
    }

    fn call(&self, CounterMethod::Add: CounterMethod, draws: &mut Draws) -> CounterUpdate {
        CounterUpdate::Add(draws.amount() as i64)
    }

    fn look(&self, _: &mut Draws) -> u64 {
        self.value().cast_unsigned()
    }
}

impl Load for PnCounter {
    fn initial() -> Self {
        PnCounter::default()
    }

    fn call(&self, method: PnCounterMethod, draws: &mut Draws) -> PnCounterUpdate {
        match method {
            PnCounterMethod::Increment => PnCounterUpdate::Increment(draws.amount()),
            PnCounterMethod::Decrement => PnCounterUpdate::Decrement(draws.amount()),
        }
    }

    fn look(&self, _: &mut Draws) -> u64 {
        self.value().cast_unsigned()
    }
}

impl Load for LwwRegister<u64> {
    fn initial() -> Self {
        LwwRegister::default()
    }

    fn call(&self, LwwMethod::Write: LwwMethod, draws: &mut Draws) -> LwwUpdate<u64> {
        let at = Timestamp { time: draws.tick(), node: draws.node };
        LwwUpdate::Write { value: draws.below(1 << 32), at }
    }

    fn look(&self, _: &mut Draws) -> u64 {
        self.read().copied().unwrap_or_default()
    }
}

impl Load for MvRegister<u64> {
    const READS_STATE: bool = true;

    fn initial() -> Self {
        MvRegister::default()
    }

    fn options() -> ReplicatedOptions {
        long_calls()
    }

    fn call(&self, MvMethod::Write: MvMethod, draws: &mut Draws) -> Self::Update {
        self.write_of(draws.below(1 << 32), draws.node)
    }

    fn look(&self, _: &mut Draws) -> u64 {
        self.read().sum()
    }
}

/// Elements of sets.
const ELEMENTS: u32 = 10_000;

impl Load for GSet<u32> {
    fn initial() -> Self {
        GSet::default()
    }

    fn call(&self, GSetMethod::Add: GSetMethod, draws: &mut Draws) -> GSetUpdate<u32> {
        GSetUpdate::Add(BTreeSet::from([draws.element(ELEMENTS)]))
    }

    fn look(&self, draws: &mut Draws) -> u64 {
        self.contains(&draws.element(ELEMENTS)).into()
    }
}

impl Load for GSetByElement<u32> {
    fn initial() -> Self {
        GSetByElement::default()
    }

    fn call(&self, GSetByElementMethod::Add: GSetByElementMethod, draws: &mut Draws) -> GSetByElementUpdate<u32> {
        GSetByElementUpdate::Add(draws.element(ELEMENTS))
    }

    fn look(&self, draws: &mut Draws) -> u64 {
        self.contains(&draws.element(ELEMENTS)).into()
    }
}

/// Elements of a set from which some are removed.
const REMOVED: u32 = 1_000;

impl Load for OrSet<u32> {
    const READS_STATE: bool = true;

    fn initial() -> Self {
        OrSet::default()
    }

    fn options() -> ReplicatedOptions {
        long_calls()
    }

    fn call(&self, method: OrSetMethod, draws: &mut Draws) -> OrSetUpdate<u32> {
        let element = draws.element(REMOVED);
        match method {
            OrSetMethod::Add => self.addition_of(element, draws.node),
            OrSetMethod::Remove => {
                let nothing = || OrSetUpdate::Remove { element, tags: BTreeSet::new() };
                self.removal_of(&element).unwrap_or_else(nothing)
            }
        }
    }

    fn look(&self, draws: &mut Draws) -> u64 {
        self.contains(&draws.element(REMOVED)).into()
    }
}

/// Items of a cart. To find one, it looks at all of them.
const ITEMS: u32 = 20;

impl Load for Cart<u32> {
    const READS_STATE: bool = true;

    fn initial() -> Self {
        Cart::default()
    }

    fn options() -> ReplicatedOptions {
        long_calls()
    }

    fn call(&self, method: CartMethod, draws: &mut Draws) -> Self::Update {
        let item = draws.element(ITEMS);
        match method {
            CartMethod::Put => self.put_of(item, draws.amount() as u32, draws.node),
            CartMethod::Remove => self.removal_of(&item),
        }
    }

    fn look(&self, draws: &mut Draws) -> u64 {
        self.quantity(&draws.element(ITEMS))
    }
}

/// Enough for all withdrawals.
const MONEY: u64 = 1 << 60;

/// A state after updates that are permissible.
fn after<T: DataType + Default>(updates: impl IntoIterator<Item = T::Update>) -> T {
    let mut state = T::default();
    updates.into_iter().for_each(|update| {
        let applied = state.apply(&update);
        debug_assert!(applied.is_ok(), "{update:?}");
    });
    state
}

impl Load for Account {
    fn initial() -> Self {
        after([Account::deposit_of(MONEY)])
    }

    fn call(&self, method: AccountMethod, draws: &mut Draws) -> AccountUpdate {
        match method {
            AccountMethod::Deposit => Account::deposit_of(draws.amount()),
            AccountMethod::Withdraw => Account::withdrawal_of(draws.amount()),
        }
    }

    fn look(&self, _: &mut Draws) -> u64 {
        self.balance() as u64
    }
}

/// Elements below this one are there from the beginning on, and stay. Those from here on come and go.
const STAYS: u32 = 100;
/// Elements that come and go.
const COMES: u32 = 1_000;
/// Elements that are added in sets, of which the summary fits into its slot.
const FITS: u32 = 50;

impl Load for BankMap<u32> {
    fn initial() -> Self {
        let deposit = |account| BankMapUpdate::Deposit { account, amount: MONEY };
        after((0..STAYS).flat_map(|account| [BankMapUpdate::Open(account), deposit(account)]))
    }

    fn call(&self, method: BankMapMethod, draws: &mut Draws) -> BankMapUpdate<u32> {
        let (account, amount) = (draws.element(STAYS), draws.amount());
        match method {
            BankMapMethod::Open => BankMapUpdate::Open(draws.element(COMES)),
            BankMapMethod::Deposit => BankMapUpdate::Deposit { account, amount },
            BankMapMethod::Withdraw => BankMapUpdate::Withdraw { account, amount },
        }
    }

    fn look(&self, draws: &mut Draws) -> u64 {
        self.balance(&draws.element(STAYS)).unwrap_or_default() as u64
    }
}

impl Load for MovieRental<u32, u32> {
    fn initial() -> Self {
        MovieRental::default()
    }

    fn call(&self, method: MovieMethod, draws: &mut Draws) -> Self::Update {
        let which = draws.element(COMES);
        match method {
            MovieMethod::AddCustomer => MovieUpdate::AddCustomer(which),
            MovieMethod::DeleteCustomer => MovieUpdate::DeleteCustomer(which),
            MovieMethod::AddMovie => MovieUpdate::AddMovie(which),
            MovieMethod::DeleteMovie => MovieUpdate::DeleteMovie(which),
        }
    }

    fn look(&self, draws: &mut Draws) -> u64 {
        self.movies().contains(&draws.element(COMES)).into()
    }
}

impl Load for ProjectManagement<u32, u32> {
    fn initial() -> Self {
        let employees = ProjectUpdate::AddEmployee((0..STAYS).collect());
        after((0..STAYS).map(ProjectUpdate::AddProject).chain([employees]))
    }

    fn call(&self, method: ProjectMethod, draws: &mut Draws) -> Self::Update {
        let (employee, project) = (draws.element(STAYS), draws.element(STAYS));
        let comes = STAYS + draws.element(COMES);
        match method {
            ProjectMethod::AddProject => ProjectUpdate::AddProject(comes),
            ProjectMethod::DeleteProject => ProjectUpdate::DeleteProject(comes),
            ProjectMethod::WorksOn => ProjectUpdate::WorksOn { employee, project },
            ProjectMethod::AddEmployee => ProjectUpdate::AddEmployee([STAYS + draws.element(FITS)].into()),
        }
    }

    fn look(&self, draws: &mut Draws) -> u64 {
        self.works_on(&draws.element(STAYS), &draws.element(STAYS)).into()
    }
}

impl Load for Courseware<u32, u32> {
    fn initial() -> Self {
        let students = (0..STAYS).map(CoursewareUpdate::RegisterStudent);
        after((0..STAYS).map(CoursewareUpdate::AddCourse).chain(students))
    }

    fn call(&self, method: CoursewareMethod, draws: &mut Draws) -> Self::Update {
        let (student, course) = (draws.element(STAYS), draws.element(STAYS));
        let comes = STAYS + draws.element(COMES);
        match method {
            CoursewareMethod::AddCourse => CoursewareUpdate::AddCourse(comes),
            CoursewareMethod::DeleteCourse => CoursewareUpdate::DeleteCourse(comes),
            CoursewareMethod::Enroll => CoursewareUpdate::Enroll { student, course },
            CoursewareMethod::RegisterStudent => CoursewareUpdate::RegisterStudent(comes),
        }
    }

    fn look(&self, draws: &mut Draws) -> u64 {
        self.is_enrolled(&draws.element(STAYS), &draws.element(STAYS)).into()
    }
}

impl Load for Auction<u32> {
    fn initial() -> Self {
        after([AuctionUpdate::Register((0..STAYS).collect())])
    }

    fn methods() -> Vec<AuctionMethod> {
        vec![AuctionMethod::Register, AuctionMethod::Bid]
    }

    fn call(&self, method: AuctionMethod, draws: &mut Draws) -> AuctionUpdate<u32> {
        match method {
            AuctionMethod::Register => AuctionUpdate::Register([STAYS + draws.element(FITS)].into()),
            AuctionMethod::Bid => AuctionUpdate::Bid { buyer: draws.element(STAYS), amount: draws.below(1_000) },
            AuctionMethod::Close => AuctionUpdate::Close { buyer: 0, amount: 0 },
        }
    }

    fn look(&self, _: &mut Draws) -> u64 {
        self.highest().map_or(0, |(_, amount)| amount)
    }
}
