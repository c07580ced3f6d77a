//! The CRDT types give the results of the crate `crdts` on the same random histories. Three processes issue updates
//! from their own states, and apply those of each other in the order of each source, when the declared dependencies are
//! there.

use std::collections::BTreeSet;

use ::crdts::{CmRDT, GSet as TheirGSet, LWWReg, MVReg, Orswot, PNCounter};
use farfield_hamband::types::*;
use farfield_hamband::{DataType, Update};
use proptest::prelude::*;

const PROCESSES: usize = 3;

/// A step: which process, whether it issues an update or applies one, and what.
type Step = (usize, bool, u8);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((0..PROCESSES, any::<bool>(), any::<u8>()), 0..60)
}

struct Issued<U, O> {
    ours: U,
    theirs: O,
    /// The updates at the issuer before it.
    before: Vec<usize>,
}

/// Which updates of others are there before an update, and when results are compared.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    /// Those that the type declares. Results are the same all the time.
    Declared,
    /// The same, and results are the same in the end.
    DeclaredInTheEnd,
    /// All that its issuer has applied. Results are the same all the time.
    Causal,
}

struct World<T: DataType, C: CmRDT> {
    order: Order,
    ours: Vec<T>,
    theirs: Vec<C>,
    issued: Vec<Issued<T::Update, C::Op>>,
    /// Of each process, the updates that it issued.
    sources: Vec<Vec<usize>>,
    histories: Vec<Vec<usize>>,
}

impl<T: DataType, C: CmRDT> World<T, C>
where
    C::Op: Clone,
{
    fn apply(&mut self, process: usize, update: usize) {
        let Issued { ours, theirs, .. } = &self.issued[update];
        self.ours[process].apply(ours).expect("it is permissible everywhere");
        self.theirs[process].apply(theirs.clone());
        self.histories[process].push(update);
    }

    /// Applies the next update of a source, if what it depends on is there; whether it was.
    fn deliver(&mut self, process: usize, source: usize) -> bool {
        let here = &self.histories[process];
        let Some(next) = self.sources[source].iter().copied().find(|update| !here.contains(update)) else {
            return false;
        };
        let Issued { ours, before, .. } = &self.issued[next];
        let dependencies = T::coordination().dependencies(ours.method());
        let is_ordered =
            |other: &usize| self.order == Order::Causal || dependencies.contains(&self.issued[*other].ours.method());
        let is_missing = |other: &usize| is_ordered(other) && !here.contains(other);
        if before.iter().any(is_missing) {
            return false;
        }
        self.apply(process, next);
        true
    }
}

/// An update of a process from its states, by a random value.
type Issue<T, C> = fn(&T, &C, usize, u8) -> Option<(<T as DataType>::Update, <C as CmRDT>::Op)>;

fn same<T, C, R>(
    order: Order,
    steps: &[Step],
    issue: Issue<T, C>,
    ours: fn(&T) -> R,
    theirs: fn(&C) -> R,
) -> Result<(), TestCaseError>
where
    T: DataType + Default,
    C: CmRDT + Clone + Default,
    C::Op: Clone,
    R: PartialEq + core::fmt::Debug,
{
    let mut world = World {
        order,
        ours: vec![T::default(); PROCESSES],
        theirs: vec![C::default(); PROCESSES],
        issued: vec![],
        sources: vec![vec![]; PROCESSES],
        histories: vec![vec![]; PROCESSES],
    };
    for (process, issues, value) in steps.iter().copied() {
        if !issues {
            world.deliver(process, usize::from(value) % PROCESSES);
        } else if let Some((of_ours, of_theirs)) = issue(&world.ours[process], &world.theirs[process], process, value) {
            let before = world.histories[process].clone();
            world.issued.push(Issued { ours: of_ours, theirs: of_theirs, before });
            world.sources[process].push(world.issued.len() - 1);
            world.apply(process, world.issued.len() - 1);
        }
        if order != Order::DeclaredInTheEnd {
            prop_assert_eq!(ours(&world.ours[process]), theirs(&world.theirs[process]), "process {}", process);
        }
    }
    while (0..PROCESSES * PROCESSES).any(|n| world.deliver(n / PROCESSES, n % PROCESSES)) {}
    for process in 0..PROCESSES {
        prop_assert_eq!(world.histories[process].len(), world.issued.len());
        prop_assert_eq!(ours(&world.ours[process]), theirs(&world.theirs[process]), "process {} in the end", process);
        prop_assert_eq!(&world.ours[process], &world.ours[0]);
    }
    Ok(())
}

fn sorted<V: Ord + Copy>(values: impl IntoIterator<Item = V>) -> Vec<V> {
    let mut values: Vec<V> = values.into_iter().collect();
    values.sort_unstable();
    values
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn counters(steps in steps()) {
        same::<Counter, PNCounter<usize>, String>(
            Order::Declared,
            &steps,
            |_, theirs, process, value| {
                let amount = i64::from(value) - 128;
                let steps = amount.unsigned_abs();
                let op = if amount < 0 { theirs.dec_many(process, steps) } else { theirs.inc_many(process, steps) };
                Some((CounterUpdate::Add(amount), op))
            },
            |ours| ours.value().to_string(),
            |theirs| theirs.read().to_string(),
        )?;
    }

    #[test]
    fn pn_counters(steps in steps()) {
        same::<PnCounter, PNCounter<usize>, String>(
            Order::Declared,
            &steps,
            |_, theirs, process, value| {
                let amount = u64::from(value / 2);
                Some(match value % 2 {
                    0 => (PnCounterUpdate::Increment(amount), theirs.inc_many(process, amount)),
                    _ => (PnCounterUpdate::Decrement(amount), theirs.dec_many(process, amount)),
                })
            },
            |ours| ours.value().to_string(),
            |theirs| theirs.read().to_string(),
        )?;
    }

    #[test]
    fn lww_registers(steps in steps()) {
        // Theirs has a value from the beginning.
        same::<LwwRegister<u8>, LWWReg<Option<u8>, Option<Timestamp>>, Option<u8>>(
            Order::Declared,
            &steps,
            |ours, _, process, value| {
                // Clocks of few values, so that many are equal.
                let write = ours.write_of(value, u64::from(value % 8), process as u16);
                let LwwUpdate::Write { value, at } = write.clone();
                Some((write, LWWReg { val: Some(value), marker: Some(at) }))
            },
            |ours| ours.read().copied(),
            |theirs| theirs.val,
        )?;
    }

    #[test]
    fn mv_registers(steps in steps()) {
        same::<MvRegister<u8>, MVReg<u8, usize>, Vec<u8>>(
            Order::Declared,
            &steps,
            |ours, theirs, process, value| {
                let context = theirs.read().derive_add_ctx(process);
                Some((ours.write_of(value, process as u16), theirs.write(value, context)))
            },
            |ours| sorted(ours.read().copied()),
            |theirs| sorted(theirs.read().val),
        )?;
    }

    #[test]
    fn g_sets(steps in steps()) {
        same::<GSetByElement<u8>, TheirGSet<u8>, BTreeSet<u8>>(
            Order::Declared,
            &steps,
            |_, _, _, value| Some((GSetByElementUpdate::Add(value), value)),
            |ours| ours.elements().clone(),
            |theirs| theirs.read(),
        )?;
    }

    #[test]
    fn g_sets_by_sets(steps in steps()) {
        same::<GSet<u8>, TheirGSet<u8>, BTreeSet<u8>>(
            Order::Declared,
            &steps,
            |_, _, _, value| Some((GSetUpdate::Add([value].into()), value)),
            |ours| ours.elements().clone(),
            |theirs| theirs.read(),
        )?;
    }

    #[test]
    fn or_sets(steps in steps()) {
        or_sets_are_same(Order::Causal, &steps)?;
        // Theirs keeps the last tag of a process only. A removal of the last one hides those before it, which other
        // removals take away that may not be here yet.
        or_sets_are_same(Order::DeclaredInTheEnd, &steps)?;
    }
}

fn or_sets_are_same(order: Order, steps: &[Step]) -> Result<(), TestCaseError> {
    same::<OrSet<u8>, Orswot<u8, usize>, Vec<u8>>(
        order,
        steps,
        |ours, theirs, process, value| {
            let element = value / 2 % 4;
            match value % 2 {
                0 => {
                    let context = theirs.read_ctx().derive_add_ctx(process);
                    Some((ours.addition_of(element, process as u16), theirs.add(element, context)))
                }
                _ => {
                    let context = theirs.contains(&element).derive_rm_ctx();
                    Some((ours.removal_of(&element)?, theirs.rm(element, context)))
                }
            }
        },
        |ours| sorted(ours.elements().copied()),
        |theirs| sorted(theirs.read().val),
    )
}
