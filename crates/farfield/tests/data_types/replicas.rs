//! Replicas of all types on nodes of one process: random calls of all nodes, and then all replicas are alike and keep
//! the invariant. Some record their histories, which are those of the abstract semantics.

use std::collections::BTreeSet;

use farfield::{Barrier, Node, Result};
use farfield_hamband::recorded::{Calls, Recorded, well_coordinated};
use farfield_hamband::types::{
    Account, AccountMethod, AccountUpdate, Auction, AuctionUpdate, BankMap, BankMapUpdate, Cart, Counter,
    CounterUpdate, Courseware, CoursewareUpdate, GSet, GSetByElement, GSetByElementUpdate, GSetUpdate, LwwRegister,
    MovieRental, MovieUpdate, MvRegister, OrSet, PnCounter, PnCounterUpdate, ProjectManagement, ProjectUpdate,
};
use farfield_hamband::{DataType, Replicated, ReplicatedOptions};
use rand::{Rng, RngExt};

const NODES: usize = 3;
const CALLS: usize = 120;

/// Makes random calls on all nodes, and compares the replicas. `call` makes one from a state: none, if there is nothing
/// to do.
fn converge<T: DataType + Sync>(initial: &T, call: impl Fn(&T, &mut dyn Rng, u16) -> Option<T::Update> + Sync) -> T {
    let nodes = farfield::local_session(NODES).unwrap();
    let options = ReplicatedOptions { feed_bytes: 8192, ..ReplicatedOptions::default() };
    let run = |node: &Node| -> Result<(T, usize)> {
        let ep = node.endpoint()?;
        let mut all_done = Barrier::open(node, "done", 1)?.thread()?;
        let object = Replicated::open(node, "object", initial.clone(), options.clone())?;
        let (mut writer, mut rng, mut made) = (object.writer()?, node.rng(1), 0);
        for _ in 0..CALLS {
            let Some(update) = object.query(|state| call(state, &mut rng, node.id().0))? else { continue };
            made += usize::from(ep.block_on(writer.update(&ep, &update))?.is_ok());
            object.query(|state| assert!(state.invariant(), "{state:?}"))?;
        }
        ep.block_on(writer.stable(&ep))?;
        ep.block_on(all_done.wait(&ep))?;
        let state = object.query(T::clone)?;
        // None is closed before all have looked.
        ep.block_on(all_done.wait(&ep))?;
        Ok((state, made))
    };
    let ends = farfield::on_each(&nodes, run).unwrap();
    assert!(ends.iter().all(|(state, _)| *state == ends[0].0), "replicas differ: {ends:?}");
    assert!(ends.iter().map(|(_, made)| made).sum::<usize>() > 0, "no call was permissible");
    ends[0].0.clone()
}

/// Makes random calls on all nodes, refused or not, whose replicas record what they apply. Their histories have been
/// well coordinated (figure 5), and have the same calls.
fn refines<T: DataType + Sync>(initial: &T, call: impl Fn(&mut dyn Rng) -> T::Update + Sync) {
    let nodes = farfield::local_session(NODES).unwrap();
    let options = ReplicatedOptions { feed_bytes: 8192, ..ReplicatedOptions::default() };
    let run = |node: &Node| -> Result<Option<Recorded<T>>> {
        let ep = node.endpoint()?;
        let mut all_done = Barrier::open(node, "done", 1)?.thread()?;
        let object = Replicated::open(node, "recorded", Recorded::new(initial.clone()), options.clone())?;
        let (mut writer, mut rng) = (object.writer()?, node.rng(1));
        for number in 0..CALLS as u32 {
            let one = Calls::one(node.id().0, number, call(&mut rng));
            let _refusal = ep.block_on(writer.update(&ep, &one))?;
        }
        ep.block_on(writer.stable(&ep))?;
        ep.block_on(all_done.wait(&ep))?;
        let replica = object.query(Recorded::clone)?;
        // None is closed before all have looked.
        ep.block_on(all_done.wait(&ep))?;
        Ok(Some(replica))
    };
    let replicas = farfield::on_each(&nodes, run).unwrap();
    well_coordinated(initial, &replicas).unwrap_or_else(|fault| panic!("{fault}"));
    let lengths: Vec<usize> = replicas.iter().flatten().map(|replica| replica.history().len()).collect();
    assert!(lengths[0] > 0 && lengths == [lengths[0]; NODES], "calls are missing: {lengths:?}");
}

#[test]
fn histories_are_those_of_the_abstract_semantics() {
    refines(&Account::default(), account);
    refines(&Courseware::<u8, u8>::default(), courseware);
    refines(&ProjectManagement::<u8, u8>::default(), project);
    refines(&MovieRental::<u8, u8>::default(), movie);
}

fn account(rng: &mut dyn Rng) -> AccountUpdate {
    let amount = rng.random_range(1..20);
    if rng.random_bool(0.5) { Account::deposit_of(amount) } else { Account::withdrawal_of(amount) }
}

fn courseware(rng: &mut dyn Rng) -> CoursewareUpdate<u8, u8> {
    let (student, course) = (rng.random_range(0..6), rng.random_range(0..4));
    match rng.random_range(0..6) {
        0 => CoursewareUpdate::AddCourse(course),
        1 => CoursewareUpdate::DeleteCourse(course),
        2 => CoursewareUpdate::RegisterStudent(student),
        _ => CoursewareUpdate::Enroll { student, course },
    }
}

/// Of all categories.
fn project(rng: &mut dyn Rng) -> ProjectUpdate<u8, u8> {
    let (project, employee) = (rng.random_range(0..4), rng.random_range(0..6));
    match rng.random_range(0..6) {
        0 => ProjectUpdate::AddProject(project),
        1 => ProjectUpdate::DeleteProject(project),
        2 => ProjectUpdate::AddEmployee(BTreeSet::from([employee])),
        _ => ProjectUpdate::WorksOn { employee, project },
    }
}

/// Two groups, each with a log of its own.
fn movie(rng: &mut dyn Rng) -> MovieUpdate<u8, u8> {
    let id = rng.random_range(0..5);
    match rng.random_range(0..4) {
        0 => MovieUpdate::AddCustomer(id),
        1 => MovieUpdate::DeleteCustomer(id),
        2 => MovieUpdate::AddMovie(id),
        _ => MovieUpdate::DeleteMovie(id),
    }
}

#[test]
fn counters_count_all_calls() {
    let counter = converge(&Counter::default(), |_, _, _| Some(CounterUpdate::Add(2)));
    assert_eq!(counter.value(), 2 * (NODES * CALLS) as i64);
    let counter = converge(&PnCounter::default(), |_, rng, _| {
        Some(if rng.random_bool(0.5) { PnCounterUpdate::Increment(3) } else { PnCounterUpdate::Decrement(1) })
    });
    assert_eq!(counter.added() / 3 + counter.taken(), (NODES * CALLS) as u64);
}

#[test]
fn registers_have_one_value_or_all_that_are_concurrent() {
    let last = converge(&LwwRegister::default(), |state: &LwwRegister<u64>, rng, me| {
        Some(state.write_of(rng.random_range(0..1000), rng.random_range(0..50), me))
    });
    assert!(last.read().is_some());
    let values = converge(&MvRegister::default(), |state: &MvRegister<u64>, rng, me| {
        Some(state.write_of(rng.random_range(0..1000), me))
    });
    assert!((1..=NODES).contains(&values.read().count()));
}

#[test]
fn sets_have_all_elements() {
    // Its summary grows beyond its slot.
    let set = converge(&GSet::default(), |_, rng, me| {
        Some(GSetUpdate::Add(BTreeSet::from([u64::from(me) << 32 | rng.random_range(0..1 << 30)])))
    });
    assert!(set.elements().len() > NODES * CALLS / 2);
    converge(&GSetByElement::default(), |_, rng, _| Some(GSetByElementUpdate::Add(rng.random_range(0..1000u64))));
    converge(&OrSet::default(), |state: &OrSet<u8>, rng, me| {
        let element = rng.random_range(0..6);
        if rng.random_bool(0.6) { Some(state.addition_of(element, me)) } else { state.removal_of(&element) }
    });
    converge(&Cart::default(), |state: &Cart<u8>, rng, me| {
        let item = rng.random_range(0..4);
        let puts = rng.random_bool(0.7);
        Some(if puts { state.put_of(item, rng.random_range(1..9), me) } else { state.removal_of(&item) })
    });
}

#[test]
fn banks_are_never_overdrawn() {
    converge(&Account::default(), |_, rng, _| Some(account(rng)));
    converge(&BankMap::default(), |_, rng, _| {
        let account = rng.random_range(0..4u8);
        Some(match rng.random_range(0..3) {
            0 => BankMapUpdate::Open(account),
            1 => BankMapUpdate::Deposit { account, amount: rng.random_range(1..10) },
            _ => BankMapUpdate::Withdraw { account, amount: rng.random_range(1..10) },
        })
    });
}

#[test]
fn schemata_keep_their_foreign_keys() {
    converge(&Courseware::default(), |_, rng, _| Some(courseware(rng)));
    converge(&ProjectManagement::default(), |_, rng, _| Some(project(rng)));
    converge(&MovieRental::default(), |_, rng, _| Some(movie(rng)));
}

#[test]
fn an_auction_ends_with_its_highest_bid() {
    let auction = converge(&Auction::default(), |state: &Auction<u8>, rng, _| {
        let buyer = rng.random_range(0..4);
        match rng.random_range(0..40) {
            0 => state.closing(),
            1..10 => Some(AuctionUpdate::Register(BTreeSet::from([buyer]))),
            _ => Some(AuctionUpdate::Bid { buyer, amount: rng.random_range(1..100) }),
        }
    });
    assert!(auction.is_open() || auction.winner().is_some());
}

/// A conflicting call at the leader of its group is one round trip, which the endpoint of the call counts.
#[test]
fn a_conflicting_call_at_its_leader_is_one_round_trip() {
    let nodes = farfield::local_session(3).unwrap();
    let open = |node: &Node| Replicated::open(node, "account", Account::default(), ReplicatedOptions::default());
    let accounts = farfield::on_each(&nodes, open).unwrap();
    let ep = nodes[0].endpoint().unwrap();
    let leads = || (accounts[0].leader_of(AccountMethod::Withdraw) == Some(nodes[0].id())).then_some(());
    ep.block_on(ep.wait_until(ep.deadline(), leads)).unwrap();
    let mut writer = accounts[0].writer().unwrap();
    ep.block_on(writer.update(&ep, &Account::deposit_of(100))).unwrap().unwrap();
    let trips: Vec<u64> = (0..20)
        .map(|_| {
            let before = ep.counts();
            ep.block_on(writer.update(&ep, &Account::withdrawal_of(1))).unwrap().unwrap();
            (ep.counts() - before).round_trips
        })
        .collect();
    // The first ones ask for room in the log, and whether a majority has what they depend on.
    assert!(trips.iter().all(|trips| *trips >= 1) && trips[10..] == [1; 10], "{trips:?}");
}

/// A thread that waits for the calls of a node that has left is woken when they are here.
#[test]
fn a_thread_waits_until_a_node_is_settled() {
    let mut nodes = farfield::local_session(3).unwrap();
    let open = |node: &Node| Replicated::open(node, "counter", Counter::default(), ReplicatedOptions::default());
    let mut counters = farfield::on_each(&nodes, open).unwrap();
    let gone = nodes[2].id();
    drop(counters.pop());
    nodes.pop().unwrap().leave();
    let ep = nodes[0].endpoint().unwrap();
    ep.set_timeout(std::time::Duration::from_secs(60));
    let start = ep.now();
    ep.block_on(ep.wait_until(ep.deadline(), || counters[0].is_settled(gone).then_some(()))).unwrap();
    assert!(ep.now().since(start) < std::time::Duration::from_secs(30), "it has slept until its timeout");
}
