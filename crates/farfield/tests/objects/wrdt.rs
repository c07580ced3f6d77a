//! Replicas of data types: random calls of all nodes, and then all replicas are alike. Each has the calls that were
//! made.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use farfield::hamband::DataType;
use farfield::hamband::types::{Account, Courseware, CoursewareUpdate, MovieRental, MovieUpdate, OrSet};
use farfield::{Barrier, Endpoint, Replicated, ReplicatedOptions, Result};

use crate::harness::{Rng, Scene, everywhere};

/// Small: feeds and summaries are full at times.
fn options() -> ReplicatedOptions {
    ReplicatedOptions { summary_bytes_max: 128, feed_bytes: 2048, ..ReplicatedOptions::default() }
}

/// Makes calls on all nodes. One thread of each node writes, and the others look. `call` makes a call from a state;
/// `made` is told of each that was permissible.
fn converge<T: DataType + Default + Sync>(
    scene: &Scene,
    call: impl Fn(&T, &mut Rng, u16) -> Option<T::Update> + Sync,
    made: impl Fn(&T::Update) + Sync,
) -> T {
    let name = std::any::type_name::<T>();
    let objects = scene.open(|node| Replicated::open(node, name, T::default(), options()));
    let ended = scene.open(|node| Barrier::open(node, &format!("{name}/ended"), 1));
    let calls = scene.rounds(60, 600);
    let writing = AtomicU64::new(scene.nodes.len() as u64);
    let ends = Mutex::new(Vec::new());
    scene.run(|node, thread, ep: &Endpoint| {
        let object = &objects[node];
        if thread >= scene.nodes.len() {
            while writing.load(Ordering::Relaxed) > 0 {
                assert!(object.query(T::invariant).unwrap());
                std::thread::yield_now();
            }
            return;
        }
        let run = || -> Result<T> {
            let (mut writer, mut rng) = (object.writer()?, Rng::new(thread as u64));
            for _ in 0..calls {
                let me = scene.id(node).0;
                let Some(update) = object.query(|state| call(state, &mut rng, me))? else { continue };
                if ep.block_on(writer.update(ep, &update))?.is_ok() {
                    made(&update);
                }
                assert!(object.query(T::invariant)?);
            }
            ep.block_on(writer.stable(ep))?;
            ep.block_on(ended[node].thread()?.wait(ep))?;
            object.query(T::clone)
        };
        let end = run();
        writing.fetch_sub(1, Ordering::Relaxed);
        ends.lock().unwrap().push(end.unwrap());
    });
    let ends = ends.into_inner().unwrap();
    assert!(ends.iter().all(|end| *end == ends[0]), "replicas of {name} differ: {ends:?}");
    ends[0].clone()
}

/// A reducible method, and a conflicting one.
fn accounts(scene: &Scene) {
    let (paid, taken) = (AtomicU64::new(0), AtomicU64::new(0));
    let account = converge::<Account>(
        scene,
        |_, rng, _| {
            let amount = 1 + rng.below(20) as u64;
            Some(if rng.below(2) == 0 { Account::deposit_of(amount) } else { Account::withdrawal_of(amount) })
        },
        |update| {
            let mut sum = Account::default();
            // An amount shows in a balance only.
            if sum.apply(update).is_ok() {
                paid.fetch_add(sum.balance() as u64, Ordering::Relaxed);
            } else {
                let amount = (1..=20).find(|amount| *update == Account::withdrawal_of(*amount)).unwrap();
                taken.fetch_add(amount, Ordering::Relaxed);
            }
        },
    );
    assert_eq!(account.balance(), u128::from(paid.into_inner() - taken.into_inner()));
}

#[test]
fn an_account_has_all_deposits_and_withdrawals() {
    everywhere("a replicated account", 3, accounts);
}

/// Irreducible calls with dependencies, two synchronisation groups, and one with foreign keys.
fn schemata(scene: &Scene) {
    converge::<OrSet<u8>>(
        scene,
        |state, rng, me| {
            let element = rng.below(6) as u8;
            if rng.below(5) < 3 { Some(state.addition_of(element, me)) } else { state.removal_of(&element) }
        },
        |_| {},
    );
    converge::<MovieRental<u8, u8>>(
        scene,
        |_, rng, _| {
            let id = rng.below(5) as u8;
            Some(match rng.below(4) {
                0 => MovieUpdate::AddCustomer(id),
                1 => MovieUpdate::DeleteCustomer(id),
                2 => MovieUpdate::AddMovie(id),
                _ => MovieUpdate::DeleteMovie(id),
            })
        },
        |_| {},
    );
    let registered = Mutex::new(BTreeSet::new());
    converge::<Courseware<u8, u8>>(
        scene,
        |_, rng, _| {
            let (student, course) = (rng.below(6) as u8, rng.below(4) as u8);
            Some(match rng.below(6) {
                0 => CoursewareUpdate::AddCourse(course),
                1 => CoursewareUpdate::DeleteCourse(course),
                2 => CoursewareUpdate::RegisterStudent(student),
                _ => CoursewareUpdate::Enroll { student, course },
            })
        },
        |update| {
            if let CoursewareUpdate::RegisterStudent(student) = update {
                registered.lock().unwrap().insert(*student);
            }
        },
    );
    assert!(!registered.into_inner().unwrap().is_empty());
}

#[test]
fn replicas_of_schemata_converge() {
    everywhere("replicated schemata", 3, schemata);
}
