//! Variables: the counter that all update, the word that anybody pushes, and values with one owner.

use std::rc::Rc;

use farfield::history::{self, Event, Model};
use farfield::{AtomicVar, Endpoint, NodeId, OwnedVar, Result, SharedVar, Sst, Wholeness};

use crate::{Log, Scenario, Stage, choose};

pub(super) fn scenarios() -> Vec<Scenario> {
    let guards = Wholeness::Guards;
    let checksum = Wholeness::Checksum;
    vec![
        // Two users, one on the word's home. `fetch_add` and `compare_exchange` are one atomic each: their NAR and NAW
        // may not be parted by another's. Mutant: atomic-add-by-put.
        atomic("atomic/adds", "each of two additions counts", &[(0, &[Add(1)]), (1, &[Add(1)])]).small(),
        atomic("atomic/exchanges", "one of two exchanges wins", &[(0, &[Exchange(0, 1)]), (1, &[Exchange(0, 2)])])
            .small(),
        // A store may not land between the halves of an atomic. Mutant: atomic-store-by-put.
        atomic("atomic/store-and-add", "a store and an addition come one after the other", &[
            (0, &[Add(1)]),
            (1, &[Store(5)]),
        ])
        .small(),
        // A store that has returned is seen by whoever looks then. Mutant: atomic-store-by-put.
        atomic("atomic/store-and-loads", "a load sees a store that has returned, and goes not back", &[
            (0, &[Load, Load]),
            (1, &[Store(5)]),
        ])
        .small(),
        atomic("atomic/swaps", "two swaps come one after the other", &[(0, &[Swap(1)]), (1, &[Swap(2)])]).small(),
        atomic_any(),
        wait_change(),
        dekker(),
        forwarded(),
        in_order(),
        push_then_store(),
        pull_fetches(),
        push_then_pull(),
        owned_load("owned/guards-load", "a pushed value is seen whole, in order", guards).small(),
        owned_load("owned/checksum-load", "a pushed value is seen whole, in order", checksum).small(),
        owned_local("owned/guards-local", "a stored value is seen whole by threads of the owner", guards).small(),
        owned_local("owned/checksum-local", "a stored value is seen whole by threads of the owner", checksum).small(),
        owned_pull("owned/guards-pull", "a stored value is fetched whole, in order", guards).small(),
        owned_pull("owned/checksum-pull", "a stored value is fetched whole, in order", checksum).small(),
        owned_store_after_push("owned/guards-store-after-push", guards).small(),
        owned_store_after_push("owned/checksum-store-after-push", checksum).small(),
        owned_word(),
        owned_load_waits(),
        rows(),
    ]
}

// ---- AtomicVar -------------------------------------------------------------------------------------------------------

/// What is done to an [`AtomicVar`].
#[derive(Clone, Copy, Debug)]
enum Call {
    Load,
    Add(u64),
    /// Expected, new.
    Exchange(u64, u64),
    Swap(u64),
    Store(u64),
}
use Call::{Add, Exchange, Load, Store, Swap};

impl Call {
    /// Does it; the value that was found, but for stores.
    fn make(self, var: &AtomicVar, ep: &Endpoint) -> Result<Option<u64>> {
        ep.block_on(async {
            Ok(match self {
                Load => Some(var.load(ep).await?),
                Add(addend) => Some(var.fetch_add(ep, addend).await?),
                Exchange(expected, new) => match var.compare_exchange(ep, expected, new).await? {
                    Ok(found) | Err(found) => Some(found),
                },
                Swap(new) => Some(var.swap(ep, new).await?),
                Store(new) => {
                    var.store(ep, new).await?;
                    None
                }
            })
        })
    }
}

/// A word whose calls come one at a time.
struct OneByOne;

impl Model for OneByOne {
    type Input = Call;
    type Output = Option<u64>;
    type State = u64;

    fn initial(&self) -> u64 {
        0
    }

    fn step(&self, state: &u64, call: &Call, found: Option<&Option<u64>>) -> Option<u64> {
        let found = found.copied().flatten();
        let new = match *call {
            Load => *state,
            Add(addend) => state.wrapping_add(addend),
            Exchange(expected, new) => if *state == expected { new } else { *state },
            Swap(new) | Store(new) => new,
        };
        found.is_none_or(|found| found == *state).then_some(new)
    }
}

/// The calls of an [`AtomicVar`]'s users, in time: each begins with an entry, and ends with one that has its answer.
#[derive(Clone)]
struct Calls(Log<(u32, Call, Option<Option<u64>>)>);

impl Calls {
    fn make(&self, client: u32, call: Call, var: &AtomicVar, ep: &Endpoint) -> Result<()> {
        self.0.push((client, call, None));
        let found = call.make(var, ep)?;
        self.0.push((client, call, Some(found)));
        Ok(())
    }

    fn assert_linearizable(&self) {
        let entries = self.0.take();
        let mut events = Vec::new();
        for (begun, (client, call, answer)) in entries.iter().enumerate() {
            let mut later = entries.iter().enumerate().skip(begun + 1);
            let ended = later.find_map(|(at, (other, _, found))| found.filter(|_| other == client).map(|f| (at, f)));
            if let (None, Some((ended, found))) = (answer, ended) {
                events.push(Event::returned(*client, begun as u64, ended as u64, *call, found));
            }
        }
        let verdict = history::check(&OneByOne, &events, history::Budget::default());
        assert!(verdict.is_linearizable(), "no order of the calls explains what they found: {events:?}");
    }
}

/// Threads `(node, calls)` use a variable whose home is node 0, and another looks when they have ended.
fn atomic(name: &str, about: &str, users: &'static [(usize, &'static [Call])]) -> Scenario {
    Scenario::new(name, about, 2, move |stage| {
        let (vars, history) = atomic_vars(stage)?;
        for (client, (node, calls)) in users.iter().enumerate() {
            let (vars, history) = (Rc::clone(&vars), history.clone());
            stage.thread(*node, "user", move |ep| {
                calls.iter().try_for_each(|call| history.make(client as u32, *call, &vars[*node], ep))
            });
        }
        Ok(())
    })
}

/// All kinds of calls against each other, two users on the word's home. Every pair of NAR and NAW, and the gets and retries
/// of `swap`, may meet any other. Mutants: atomic-add-by-put, atomic-store-by-put.
fn atomic_any() -> Scenario {
    Scenario::new("atomic/any", "any calls come one after the other", 2, |stage| {
        let (vars, history) = atomic_vars(stage)?;
        for (client, node) in [0, 0, 1].into_iter().enumerate() {
            let (vars, history) = (Rc::clone(&vars), history.clone());
            stage.thread(node, "user", move |ep| {
                for _ in 0..2 {
                    let mine = 10 * (client as u64 + 1);
                    let call = [Load, Add(1), Exchange(0, mine), Swap(mine), Store(mine)][choose(5)];
                    history.make(client as u32, call, &vars[node], ep)?;
                }
                Ok(())
            });
        }
        Ok(())
    })
}

/// A variable whose home is node 0, and its history, which is judged in the end.
fn atomic_vars(stage: &Stage) -> Result<(Rc<Vec<AtomicVar>>, Calls)> {
    let vars = Rc::new(stage.on_each(|node| AtomicVar::open(node, "v", NodeId(0)))?);
    let history = Calls(stage.log());
    let (home, at_end) = (stage.node(0), (Rc::clone(&vars), history.clone()));
    stage.finally(move || {
        let (vars, history) = at_end;
        history.make(u32::MAX, Load, &vars[0], &home.endpoint()?)?;
        history.assert_linearizable();
        Ok(())
    });
    Ok((vars, history))
}

/// A waiter that reads again and again (NRR after NRR) misses no change, and sees the new value.
fn wait_change() -> Scenario {
    Scenario::new("atomic/wait-change", "who waits for a change sees it", 2, |stage| {
        let vars = Rc::new(stage.on_each(|node| AtomicVar::open(node, "v", NodeId(0)))?);
        let writer = Rc::clone(&vars);
        stage.thread(0, "writer", move |ep| ep.block_on(writer[0].fetch_add(ep, 7)).map(drop));
        let waiter = Rc::clone(&vars);
        stage.thread(1, "waiter", move |ep| {
            let seen = ep.block_on(waiter[1].wait_change(ep, 0, ep.deadline()))?;
            assert_eq!(seen, 7, "a change to a value that nobody wrote");
            Ok(())
        });
        stage.finally(move || {
            drop(vars);
            Ok(())
        });
        Ok(())
    })
    .small()
}

// ---- SharedVar -------------------------------------------------------------------------------------------------------

/// Shared variables, one for each path, of all nodes: `vars[node][path]`. They stay open until the end.
fn shared_vars(stage: &Stage, paths: &'static [&'static str]) -> Result<Rc<Vec<Vec<SharedVar<u64>>>>> {
    let open = |node: &farfield::Node| paths.iter().map(|path| SharedVar::open(node, path)).collect::<Result<Vec<_>>>();
    let vars = Rc::new(stage.on_each(open)?);
    let kept = Rc::clone(&vars);
    stage.finally(move || {
        drop(kept);
        Ok(())
    });
    Ok(vars)
}

/// Fig. 5: the fence puts NRW before the CR that follows; waiting for the push does not. Mutant: shared-fence-remote.
fn dekker() -> Scenario {
    Scenario::new("shared/fence", "of two that push, fence and look, one sees the other's", 2, |stage| {
        let vars = shared_vars(stage, &["x", "y"])?;
        let seen = [stage.log(), stage.log()];
        for me in 0..2 {
            let (vars, seen) = (Rc::clone(&vars), seen[me].clone());
            stage.thread(me, "party", move |ep| {
                let (mine, other) = (&vars[me][me], &vars[me][1 - me]);
                mine.store(1);
                ep.block_on(async {
                    mine.push_all(ep).await?;
                    mine.fence(ep, mine_to(me)).await
                })?;
                seen.push(other.load());
                Ok(())
            });
        }
        stage.finally(move || {
            let seen = seen.map(|seen| seen.take()[0]);
            assert!(seen.iter().all(|value| *value < 2), "a value that nobody stored: {seen:?}");
            assert_ne!(seen, [0, 0], "neither sees what the other pushed before its fence");
            Ok(())
        });
        Ok(())
    })
    .small()
}

/// The other of two nodes.
fn mine_to(me: usize) -> [NodeId; 1] {
    [NodeId(1 - me as u16)]
}
