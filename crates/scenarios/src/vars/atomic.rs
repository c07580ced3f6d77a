//! Atomic variables are linearizable.

use std::rc::Rc;

use farfield_core::history::{Event, Model};
use farfield_core::{AtomicVar, Endpoint, NodeId, Result, history};

use super::super::keep;
pub(crate) use Call::{Add, Exchange, Load, Store, Swap};
use farfield_check::{Cluster, Log, Scenario, choose};

/// A call on an [`AtomicVar`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    Load,
    Add(u64),
    /// Expected, new.
    Exchange(u64, u64),
    Swap(u64),
    Store(u64),
}

impl Call {
    /// Makes the call. Returns the value that it found, except for stores.
    pub(super) fn make(self, var: &AtomicVar, ep: &Endpoint) -> Result<Option<u64>> {
        ep.block_on(async {
            match self {
                Load => var.load(ep).await.map(Some),
                Add(addend) => var.fetch_add(ep, addend).await.map(Some),
                Exchange(expected, new) => {
                    let (Ok(found) | Err(found)) = var.compare_exchange(ep, expected, new).await?;
                    Ok(Some(found))
                }
                Swap(new) => var.swap(ep, new).await.map(Some),
                Store(new) => var.store(ep, new).await.map(|()| None),
            }
        })
    }
}

/// A word with calls that take effect one at a time.
struct OneByOne;

impl Model for OneByOne {
    type Input = Call;
    type Output = Option<u64>;
    type State = u64;

    fn initial(&self) -> u64 {
        0
    }

    fn step(&self, state: &u64, call: &Call, answer: Option<&Option<u64>>) -> Option<u64> {
        let found = answer.copied().flatten();
        let new = match *call {
            Load => *state,
            Exchange(expected, _) if expected != *state => *state,
            Add(addend) => state.wrapping_add(addend),
            Exchange(_, new) | Swap(new) | Store(new) => new,
        };
        found.is_none_or(|found| found == *state).then_some(new)
    }
}

/// The calls of a variable's users, in time: each begins with an entry, and ends with one that has its answer.
#[derive(Clone)]
pub(crate) struct Calls(pub(crate) Log<(u32, Call, Option<Option<u64>>)>);

impl Calls {
    pub(crate) fn make(&self, user: u32, call: Call, var: &AtomicVar, ep: &Endpoint) -> Result<()> {
        self.ask(user, call, var, ep).map(drop)
    }

    /// Makes a call, and returns the value that it found, except for stores.
    pub(crate) fn ask(&self, user: u32, call: Call, var: &AtomicVar, ep: &Endpoint) -> Result<Option<u64>> {
        self.0.push((user, call, None));
        let answer = call.make(var, ep)?;
        self.0.push((user, call, Some(answer)));
        Ok(answer)
    }

    pub(crate) fn assert_linearizable(&self) {
        let entries = self.0.take();
        let mut events = Vec::new();
        for (begin, (user, call, answer)) in entries.iter().enumerate() {
            let mut rest = entries.iter().enumerate().skip(begin + 1);
            if answer.is_none() {
                events.push(match rest.find(|(_, entry)| entry.0 == *user) {
                    Some((end, (_, _, Some(answer)))) => {
                        Event::returned(*user, begin as u64, end as u64, *call, *answer)
                    }
                    // It ended in an error, or its node died: it has taken effect, or not, or does so later.
                    _ => Event::pending(*user, begin as u64, *call),
                });
            }
        }
        let verdict = history::check(&OneByOne, &events, history::Budget::default());
        assert!(verdict.is_linearizable(), "no order of these calls explains what they found: {events:?}");
    }
}

/// A variable with its home on node 0. The history is judged when all threads have ended, followed by a load by node 1.
fn atomic_var(cluster: &Cluster) -> Result<(Rc<Vec<AtomicVar>>, Calls)> {
    let vars = Rc::new(cluster.on_each(|node| AtomicVar::open(node, "v", NodeId(0)))?);
    let calls = Calls(cluster.log());
    let (last, at_end) = (cluster.node(1), (Rc::clone(&vars), calls.clone()));
    cluster.at_end(move || {
        let (vars, calls) = at_end;
        calls.make(u32::MAX, Load, &vars[1], &last.endpoint()?)?;
        calls.assert_linearizable();
        Ok(())
    });
    Ok((vars, calls))
}

/// One user on the word's home, one elsewhere. Atomicity is that of NAR and NAW of remote atomics among themselves,
/// so the home's user must go through its NIC, too, and a store may not be a put, which lands between the two, or
/// later than it is complete. For atomic-add-by-put and atomic-store-by-put.
pub(super) fn atomic_pairs() -> Vec<Scenario> {
    let pair = |name: &str, about: &str, home: &'static [Call], away: &'static [Call]| {
        Scenario::new(name, about, 2, move |cluster| {
            let (vars, history) = atomic_var(cluster)?;
            for (node, calls) in [home, away].into_iter().enumerate() {
                let (vars, history) = (Rc::clone(&vars), history.clone());
                cluster.thread(node, "user", move |ep| {
                    calls.iter().try_for_each(|call| history.make(node as u32, *call, &vars[node], ep))
                });
            }
            Ok(())
        })
        .small()
    };
    vec![
        pair("atomic/adds", "each of two additions counts", &[Add(1)], &[Add(1)]).kills(&["atomic-add-by-put"]),
        pair("atomic/exchanges", "one of two exchanges succeeds", &[Exchange(0, 1)], &[Exchange(0, 2)]),
        pair("atomic/swaps", "one of two swaps finds what the other left", &[Swap(1)], &[Swap(2)]),
        pair("atomic/store-add", "a store loses no addition, nor itself", &[Add(1)], &[Store(5)]),
        pair("atomic/add-store", "a store loses no addition, nor itself", &[Store(5)], &[Add(1)])
            .kills(&["atomic-store-by-put"]),
        pair("atomic/store-load", "a store that has returned is seen, and seen again", &[Load, Load], &[Store(5)]),
    ]
}

/// Any two calls of three users, two of them on the home: all that can come between a get, an NAR and its NAW. For
/// atomic-add-by-put and atomic-store-by-put.
pub(super) fn atomic_any() -> Scenario {
    Scenario::new("atomic/any", "any calls of three users come one after the other", 2, |cluster| {
        let (vars, history) = atomic_var(cluster)?;
        for (user, node) in [0, 0, 1].into_iter().enumerate() {
            let (vars, history) = (Rc::clone(&vars), history.clone());
            let mine = 10 * (user as u64 + 1);
            cluster.thread(node, "user", move |ep| {
                for _ in 0..2 {
                    let call = [Load, Add(1), Exchange(0, mine), Swap(mine), Store(mine)][choose(5)];
                    history.make(user as u32, call, &vars[node], ep)?;
                }
                Ok(())
            });
        }
        Ok(())
    })
}

/// A waiter reads repeatedly (NRR after NRR, each awaited): it returns, with the value that was written.
pub(super) fn atomic_wait_change() -> Scenario {
    Scenario::new("atomic/wait-change", "who waits for a change sees it", 2, |cluster| {
        let vars = keep(cluster, cluster.on_each(|node| AtomicVar::open(node, "v", NodeId(0)))?);
        let (writer, waiter) = (Rc::clone(&vars), vars);
        cluster.thread(0, "writer", move |ep| ep.block_on(writer[0].fetch_add(ep, 7)).map(drop));
        cluster.thread(1, "waiter", move |ep| {
            let seen = ep.block_on(waiter[1].wait_change(ep, 0, ep.deadline()))?;
            assert_eq!(seen, 7, "a value that nobody wrote");
            Ok(())
        });
        Ok(())
    })
    .small()
}
