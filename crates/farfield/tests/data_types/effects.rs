//! Types whose updates are effects, against the words of their specifications: what is there in the end is what was
//! added, without what some update has taken away. Processes issue updates from their own states, and apply those of
//! others in any order that the declared dependencies allow, not only in that of each source.

use std::collections::{BTreeMap, BTreeSet};

use farfield_hamband::types::*;
use farfield_hamband::{DataType, Update};
use proptest::prelude::*;

const PROCESSES: usize = 3;

/// A step: which process, whether it issues an update or applies one, and what.
type Step = (usize, bool, u8);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((0..PROCESSES, any::<bool>(), any::<u8>()), 0..80)
}

/// Executes the steps, and then all that is left. The state and the updates.
fn execute<T: DataType + Default>(
    steps: &[Step],
    issue: fn(&T, u16, u8) -> Option<T::Update>,
) -> Result<(T, Vec<T::Update>), TestCaseError> {
    let mut states = vec![T::default(); PROCESSES];
    let mut histories = vec![Vec::new(); PROCESSES];
    let mut issued: Vec<(T::Update, Vec<usize>)> = Vec::new();
    let deliver = |states: &mut [T],
                   histories: &mut [Vec<usize>],
                   issued: &[(T::Update, Vec<usize>)],
                   process: usize,
                   number: usize| {
        let (update, before): &(T::Update, Vec<usize>) = &issued[number];
        let here: &mut Vec<usize> = &mut histories[process];
        let dependencies = T::coordination().dependencies(update.method());
        let is_missing = |other: &usize| dependencies.contains(&issued[*other].0.method()) && !here.contains(other);
        let can = !here.contains(&number) && !before.iter().any(is_missing);
        if can {
            states[process].apply(update).expect("it is permissible everywhere");
            assert!(states[process].invariant());
            here.push(number);
        }
        can
    };
    for (process, issues, value) in steps.iter().copied() {
        if issues {
            if let Some(update) = issue(&states[process], process as u16, value) {
                issued.push((update, histories[process].clone()));
                deliver(&mut states, &mut histories, &issued, process, issued.len() - 1);
            }
        } else if !issued.is_empty() {
            deliver(&mut states, &mut histories, &issued, process, usize::from(value) % issued.len());
        }
    }
    // The last ones first, so that the order is as different as it can be.
    for process in 0..PROCESSES {
        while (0..issued.len()).rev().any(|number| deliver(&mut states, &mut histories, &issued, process, number)) {}
        prop_assert_eq!(histories[process].len(), issued.len());
        prop_assert_eq!(&states[process], &states[0]);
    }
    Ok((states.swap_remove(0), issued.into_iter().map(|(update, _)| update).collect()))
}

/// No tag is there twice.
fn unique(tags: impl IntoIterator<Item = Tag>) -> Result<(), TestCaseError> {
    let mut all = BTreeSet::new();
    for tag in tags {
        prop_assert!(all.insert(tag), "{} twice", tag);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_or_set_has_the_elements_added_and_not_removed(steps in steps()) {
        let (set, updates) = execute::<OrSet<u8>>(&steps, |set, node, value| match value % 2 {
            0 => Some(set.addition_of(value / 2 % 4, node)),
            _ => set.removal_of(&(value / 2 % 4)),
        })?;
        let mut added = BTreeMap::new();
        let mut removed = BTreeSet::new();
        for update in &updates {
            match update {
                OrSetUpdate::Add { element, tag } => drop(added.insert(*tag, *element)),
                OrSetUpdate::Remove { tags, .. } => removed.extend(tags.iter().copied()),
            }
        }
        unique(updates.iter().filter_map(|update| match update {
            OrSetUpdate::Add { tag, .. } => Some(*tag),
            OrSetUpdate::Remove { .. } => None,
        }))?;
        let left: BTreeSet<u8> = added.iter().filter(|(tag, _)| !removed.contains(tag)).map(|(_, element)| *element).collect();
        prop_assert_eq!(set.elements().copied().collect::<BTreeSet<u8>>(), left);
    }

    #[test]
    fn a_cart_has_the_lines_that_no_update_has_replaced(steps in steps()) {
        let (cart, updates) = execute::<Cart<u8>>(&steps, |cart, node, value| match value % 3 {
            0 => Some(cart.removal_of(&(value / 3 % 3))),
            _ => Some(cart.put_of(value / 3 % 3, u32::from(value), node)).filter(|put| cart.check(put).is_ok()),
        })?;
        let mut lines = BTreeMap::new();
        let mut gone = BTreeSet::new();
        let mut tags = vec![];
        for update in updates {
            match update {
                CartUpdate::Put { tag, item, quantity, replaced } => {
                    tags.push(tag);
                    lines.insert(tag, (item, quantity));
                    gone.extend(replaced);
                }
                CartUpdate::Remove { seen } => gone.extend(seen),
            }
        }
        unique(tags)?;
        let left = lines.iter().filter(|(tag, _)| !gone.contains(tag)).map(|(_, (item, quantity))| (item, *quantity));
        prop_assert_eq!(cart.items().collect::<Vec<_>>(), left.collect::<Vec<_>>());
    }

    #[test]
    fn a_register_has_the_values_that_no_write_has_seen(steps in steps()) {
        let (register, updates) = execute::<MvRegister<u8>>(&steps, |register, node, value| Some(register.write_of(value, node)))?;
        unique(updates.iter().map(|MvUpdate::Write { tag, .. }| *tag))?;
        let is_seen = |tag: Tag| updates.iter().any(|MvUpdate::Write { seen, .. }| seen.contains(tag));
        let mut left: Vec<_> = updates
            .iter()
            .filter(|MvUpdate::Write { tag, .. }| !is_seen(*tag))
            .map(|MvUpdate::Write { value, tag, .. }| (*tag, *value))
            .collect();
        left.sort_unstable();
        prop_assert_eq!(register.read().copied().collect::<Vec<_>>(), left.iter().map(|(_, value)| *value).collect::<Vec<_>>());
    }

    #[test]
    fn a_last_writer_wins(steps in steps()) {
        let (register, updates) = execute::<LwwRegister<u8>>(&steps, |register, node, value| {
            Some(register.write_of(value, u64::from(value % 8), node))
        })?;
        let last = updates.iter().map(|LwwUpdate::Write { value, at }| (*at, *value)).max();
        prop_assert_eq!(register.read().copied(), last.map(|(_, value)| value));
    }
}
