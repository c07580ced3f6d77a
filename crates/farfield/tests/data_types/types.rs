//! The types against their specifications, and against the checks of what they declare.

use farfield_hamband::analysis::{Analysis, Options, Specification, analyse};
use farfield_hamband::check::{Check, Report};
use farfield_hamband::types::*;
use farfield_hamband::{Coordination, DataType, Method, Update};
use proptest::prelude::*;

type MethodOf<T> = <<T as DataType>::Update as Update>::Method;

fn analysed(file: &str) -> Analysis {
    let path = format!("{}/types/{file}.wrdt", concat!(env!("CARGO_MANIFEST_DIR"), "/../hamband"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let spec = Specification::parse(file, &text).unwrap_or_else(|error| panic!("{error}"));
    analyse(&spec, &Options::default()).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// `AddCourse` is `addCourse`.
fn lowered(name: &str) -> String {
    name[..1].to_lowercase() + &name[1..]
}

/// A type declares what the analysis proves of its specification, no more and no less.
fn declares_the_proved_coordination<T: DataType>(file: &str) {
    let analysis = analysed(file);
    assert!(analysis.is_right() && analysis.undecided == 0, "{analysis}");
    let (coordination, methods) = (T::coordination(), MethodOf::<T>::ALL);
    let names: Vec<_> = analysis.methods.iter().map(|method| method.name.clone()).collect();
    assert_eq!(MethodOf::<T>::NAMES.iter().map(|name| lowered(name)).collect::<Vec<_>>(), names, "{file}");
    let categories: Vec<_> = methods.iter().map(|method| coordination.category(*method)).collect();
    assert_eq!(categories, analysis.methods.iter().map(|method| method.category).collect::<Vec<_>>(), "{file}");
    for (one, first) in methods.iter().enumerate() {
        for (other, second) in methods.iter().enumerate() {
            let conflict = analysis.conflicts.contains(&(one.min(other), one.max(other)));
            assert_eq!(coordination.conflicts(*first, *second), conflict, "{file}: {first:?}, {second:?}");
            let depends = analysis.dependencies.contains(&(one, other));
            assert_eq!(coordination.dependencies(*first).contains(second), depends, "{file}: {first:?} on {second:?}");
        }
    }
    let numbers = |groups: Vec<Vec<MethodOf<T>>>| -> Vec<Vec<usize>> {
        groups.iter().map(|group| group.iter().map(|method| method.number()).collect()).collect()
    };
    assert_eq!(numbers(coordination.groups()), analysis.synchronisation_groups, "{file}");
    assert_eq!(numbers(coordination.summary_groups()), analysis.summarisation_groups, "{file}");
}

#[test]
fn every_type_declares_the_coordination_proved_of_it() {
    declares_the_proved_coordination::<Account>("account");
    declares_the_proved_coordination::<Auction<u8>>("auction");
    declares_the_proved_coordination::<BankMap<u8>>("bank_map");
    declares_the_proved_coordination::<Counter>("counter");
    declares_the_proved_coordination::<Courseware<u8, u8>>("courseware");
    declares_the_proved_coordination::<GSet<u8>>("gset");
    declares_the_proved_coordination::<GSetByElement<u8>>("gset_by_element");
    declares_the_proved_coordination::<LwwRegister<u8>>("lww_register");
    declares_the_proved_coordination::<MovieRental<u8, u8>>("movie");
    declares_the_proved_coordination::<MvRegister<u8>>("mv_register");
    declares_the_proved_coordination::<OrSet<u8>>("or_set");
    declares_the_proved_coordination::<PnCounter>("pn_counter");
    declares_the_proved_coordination::<ProjectManagement<u8, u8>>("project_management");
    declares_the_proved_coordination::<Cart<u8>>("shopping_cart");
}

fn tag() -> impl Strategy<Value = Tag> {
    (0..2u16, 1..4u64).prop_map(|(node, count)| Tag { node, count })
}

fn some_tags() -> impl Strategy<Value = std::collections::BTreeSet<Tag>> {
    prop::collection::btree_set(tag(), 0..3)
}

fn account() -> Check<Account> {
    let amount = || prop_oneof![0..5u64, Just(u64::MAX)];
    let calls = prop_oneof![amount().prop_map(Account::deposit_of), amount().prop_map(Account::withdrawal_of)];
    Check::new(Account::default(), calls)
}

fn auction() -> Check<Auction<u8>> {
    use AuctionUpdate::{Bid, Close, Register};
    let calls = prop_oneof![
        prop::collection::btree_set(0..2u8, 0..3).prop_map(Register),
        (0..2u8, 0..3u64).prop_map(|(buyer, amount)| Bid { buyer, amount }),
        (0..2u8, 0..3u64).prop_map(|(buyer, amount)| Close { buyer, amount }),
    ];
    Check::new(Auction::default(), calls)
}

fn bank_map() -> Check<BankMap<u8>> {
    use BankMapUpdate::{Deposit, Open, Withdraw};
    let calls = prop_oneof![
        (0..2u8).prop_map(Open),
        (0..2u8, 0..3u64).prop_map(|(account, amount)| Deposit { account, amount }),
        (0..2u8, 0..3u64).prop_map(|(account, amount)| Withdraw { account, amount }),
    ];
    Check::new(BankMap::default(), calls)
}

fn counter() -> Check<Counter> {
    Check::new(Counter::default(), any::<i64>().prop_map(CounterUpdate::Add))
}

fn pn_counter() -> Check<PnCounter> {
    use PnCounterUpdate::{Decrement, Increment};
    let calls = prop_oneof![any::<u64>().prop_map(Increment), any::<u64>().prop_map(Decrement)];
    Check::new(PnCounter::default(), calls)
}

fn courseware() -> Check<Courseware<u8, u8>> {
    use CoursewareUpdate::{AddCourse, DeleteCourse, Enroll, RegisterStudent};
    let calls = prop_oneof![
        (0..2u8).prop_map(AddCourse),
        (0..2u8).prop_map(DeleteCourse),
        (0..2u8, 0..2u8).prop_map(|(student, course)| Enroll { student, course }),
        (0..2u8).prop_map(RegisterStudent),
    ];
    Check::new(Courseware::default(), calls)
}

fn project_management() -> Check<ProjectManagement<u8, u8>> {
    use ProjectUpdate::{AddEmployee, AddProject, DeleteProject, WorksOn};
    let calls = prop_oneof![
        (0..2u8).prop_map(AddProject),
        (0..2u8).prop_map(DeleteProject),
        (0..2u8, 0..2u8).prop_map(|(employee, project)| WorksOn { employee, project }),
        prop::collection::btree_set(0..2u8, 0..3).prop_map(AddEmployee),
    ];
    Check::new(ProjectManagement::default(), calls)
}

fn movie() -> Check<MovieRental<u8, u8>> {
    use MovieUpdate::{AddCustomer, AddMovie, DeleteCustomer, DeleteMovie};
    let calls = prop_oneof![
        (0..2u8).prop_map(AddCustomer),
        (0..2u8).prop_map(DeleteCustomer),
        (0..2u8).prop_map(AddMovie),
        (0..2u8).prop_map(DeleteMovie),
    ];
    Check::new(MovieRental::default(), calls)
}

fn gset() -> Check<GSet<u8>> {
    Check::new(GSet::default(), prop::collection::btree_set(0..4u8, 0..3).prop_map(GSetUpdate::Add))
}

fn gset_by_element() -> Check<GSetByElement<u8>> {
    Check::new(GSetByElement::default(), (0..4u8).prop_map(GSetByElementUpdate::Add))
}

fn lww_register() -> Check<LwwRegister<u8>> {
    let calls = (0..9u8, 0..4u64, 0..2u16)
        .prop_map(|(value, time, node)| LwwUpdate::Write { value, at: Timestamp { time, node } });
    Check::new(LwwRegister::default(), calls).never_both(|one, other| {
        let (LwwUpdate::Write { at: one, .. }, LwwUpdate::Write { at: other, .. }) = (one, other);
        one == other
    })
}

fn mv_register() -> Check<MvRegister<u8>> {
    let calls = (0..9u8, tag(), some_tags()).prop_map(|(value, tag, seen)| MvUpdate::Write {
        value,
        tag,
        seen: seen.into_iter().collect(),
    });
    Check::new(MvRegister::default(), calls).never_both(|one, other| {
        let (MvUpdate::Write { tag: one, .. }, MvUpdate::Write { tag: other, .. }) = (one, other);
        one == other
    })
}

fn or_set() -> Check<OrSet<u8>> {
    use OrSetUpdate::{Add, Remove};
    let calls = prop_oneof![
        (0..2u8, tag()).prop_map(|(element, tag)| Add { element, tag }),
        (0..2u8, some_tags()).prop_map(|(element, tags)| Remove { element, tags }),
    ];
    Check::new(OrSet::default(), calls)
        .never_both(|one, other| matches!((one, other), (Add { tag: one, .. }, Add { tag: other, .. }) if one == other))
}

fn cart() -> Check<Cart<u8>> {
    use CartUpdate::{Put, Remove};
    let calls = prop_oneof![
        (tag(), 0..2u8, 0..3u32, some_tags()).prop_map(|(tag, item, quantity, replaced)| Put {
            tag,
            item,
            quantity,
            replaced
        }),
        some_tags().prop_map(|seen| Remove { seen }),
    ];
    Check::new(Cart::default(), calls)
        .never_both(|one, other| matches!((one, other), (Put { tag: one, .. }, Put { tag: other, .. }) if one == other))
}

/// The tag of a node's update with this number.
fn of(node: u16, count: u64) -> Tag {
    Tag { node, count }
}

fn few_of_mv_register() -> Check<MvRegister<u8>> {
    let write = |value, tag, seen: &[Tag]| MvUpdate::Write { value, tag, seen: seen.iter().copied().collect() };
    let calls = [
        write(1, of(0, 1), &[]),
        write(2, of(1, 1), &[]),
        write(3, of(0, 2), &[of(0, 1)]),
        write(4, of(1, 2), &[of(0, 1), of(1, 1)]),
        write(5, of(2, 1), &[of(0, 1), of(0, 2)]),
    ];
    Check::of(MvRegister::default(), calls).never_both(|one, other| one == other)
}

fn few_of_or_set() -> Check<OrSet<u8>> {
    use OrSetUpdate::{Add, Remove};
    let calls = [
        Add { element: 0, tag: of(0, 1) },
        Add { element: 0, tag: of(1, 1) },
        Add { element: 1, tag: of(0, 2) },
        Remove { element: 0, tags: [of(0, 1)].into() },
        Remove { element: 0, tags: [of(1, 1)].into() },
        Remove { element: 0, tags: [of(0, 1), of(1, 1)].into() },
        Remove { element: 1, tags: [of(0, 2)].into() },
    ];
    Check::of(OrSet::default(), calls).never_both(|one, other| matches!(one, Add { .. }) && one == other)
}

fn few_of_cart() -> Check<Cart<u8>> {
    use CartUpdate::{Put, Remove};
    let put = |tag, item, quantity, replaced: &[Tag]| {
        let replaced = replaced.iter().copied().collect();
        Put { tag, item, quantity, replaced }
    };
    let calls = [
        put(of(0, 1), 0, 1, &[]),
        put(of(1, 1), 0, 2, &[]),
        put(of(0, 2), 0, 3, &[of(0, 1)]),
        put(of(1, 2), 1, 1, &[of(0, 1), of(1, 1)]),
        Remove { seen: [of(0, 1)].into() },
        Remove { seen: [of(0, 2), of(1, 1)].into() },
    ];
    Check::of(Cart::default(), calls).never_both(|one, other| matches!(one, Put { .. }) && one == other)
}

/// What is declared is not refuted, and all of it is needed.
fn passes<T: DataType>(what: &str, check: &Check<T>) -> Report {
    let report = check.run().unwrap_or_else(|refuted| panic!("{what}: {refuted}"));
    println!("{what:20} {report}");
    assert_eq!(report.warnings(), [] as [String; 0], "{what}");
    report
}

#[test]
fn the_code_of_every_type_matches_its_declaration() {
    passes("account", &account());
    passes("auction", &auction());
    passes("bank map", &bank_map());
    passes("counter", &counter());
    passes("PN-counter", &pn_counter());
    passes("courseware", &courseware());
    passes("project management", &project_management());
    passes("movie", &movie());
    passes("G-set", &gset());
    passes("G-set by element", &gset_by_element());
    passes("LWW register", &lww_register());
    passes("MV register", &mv_register());
    passes("OR-set", &or_set());
    passes("cart", &cart());
    // Random tags seldom name updates that are there. Those of these calls do.
    passes("MV register, few", &few_of_mv_register());
    passes("OR-set, few", &few_of_or_set());
    passes("cart, few", &few_of_cart());
}

/// All that the type declares, but for one relation.
fn without<T: DataType>(left_out: impl Fn(&str, usize, usize) -> bool) -> Coordination<MethodOf<T>> {
    let (all, methods) = (T::coordination(), MethodOf::<T>::ALL);
    let mut fewer = Coordination::none();
    for (one, first) in methods.iter().enumerate() {
        for (other, second) in methods.iter().enumerate() {
            if one <= other && all.conflicts(*first, *second) && !left_out("conflict", one, other) {
                fewer = fewer.conflict(*first, *second);
            }
            if all.dependencies(*first).contains(second) && !left_out("dependency", one, other) {
                fewer = fewer.depends(*first, *second);
            }
        }
    }
    all.summary_groups().into_iter().fold(fewer, Coordination::summarised)
}

/// Without any one relation, executions fail, and so do states. How many were left out.
fn needs_all<T: DataType>(what: &str, check: impl Fn() -> Check<T>) -> usize {
    let (all, methods) = (T::coordination(), MethodOf::<T>::ALL);
    let mut left_out = 0;
    for (one, first) in methods.iter().enumerate() {
        for (other, second) in methods.iter().enumerate() {
            for kind in ["conflict", "dependency"] {
                let conflicts = all.conflicts(*first, *second);
                let is_declared = match kind {
                    "conflict" => one <= other && conflicts,
                    // A conflict orders both calls already.
                    _ => all.dependencies(*first).contains(second) && !conflicts,
                };
                if !is_declared {
                    continue;
                }
                let fewer = without::<T>(|of, a, b| (of, a, b) == (kind, one, other));
                let check = check().coordination(fewer).cases(2000, 20000);
                let what = format!("{what} without the {kind} of {first:?} and {second:?}");
                let failed = check.executions().err().unwrap_or_else(|| panic!("{what}: executions pass"));
                assert!(failed.relation.to_string().starts_with("an execution"), "{what}: {failed}");
                println!("{what}:\n{failed}");
                let refuted = check.run().err().unwrap_or_else(|| panic!("{what}: states pass"));
                println!("{refuted}\n");
                left_out += 1;
            }
        }
    }
    left_out
}

#[test]
fn no_declared_relation_can_be_left_out() {
    assert_eq!(needs_all("account", account), 2);
    assert_eq!(needs_all("auction", auction), 3);
    assert_eq!(needs_all("bank map", bank_map), 4);
    assert_eq!(needs_all("courseware", courseware), 4);
    assert_eq!(needs_all("project management", project_management), 4);
    assert_eq!(needs_all("movie", movie), 2);
    assert_eq!(needs_all("MV register", few_of_mv_register), 1);
    assert_eq!(needs_all("OR-set", few_of_or_set), 1);
    assert_eq!(needs_all("cart", few_of_cart), 2);
}

#[test]
fn a_node_reads_its_last_write() {
    // Its clock may be behind that of another node.
    let mut register = LwwRegister::default();
    register.apply(&register.write_of(1, 100, 7)).unwrap_or_else(|never| match never {});
    register.apply(&register.write_of(2, 50, 0)).unwrap_or_else(|never| match never {});
    assert_eq!((register.read(), register.written_at()), (Some(&2), Some(Timestamp { time: 101, node: 0 })));

    let mut cart = Cart::default();
    for quantity in 1..=3 {
        cart.apply(&cart.put_of('a', quantity, 0)).expect("the lines are there");
    }
    assert_eq!((cart.quantity(&'a'), cart.items().count()), (3, 1));
}

#[test]
fn sums_do_not_overflow() {
    let mut account = Account::default();
    let most = Account::deposit_of(u64::MAX);
    let all = (0..99).try_fold(most.clone(), |sum, _| Account::summarise(&sum, &most)).expect("a summary");
    account.apply(&all).expect("a deposit");
    assert_eq!(account.balance(), 100 * u128::from(u64::MAX));
    assert_eq!(Account::remainder(&all, &all), Some(Account::deposit_of(0)));
    assert_eq!(Account::remainder(&all, &most), None); // it is no later summary
}
