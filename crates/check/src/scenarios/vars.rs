//! Variables: the word that all update, the word that any node pushes, and values with one owner.

mod goes;

use std::rc::Rc;
use std::time::Duration;

use farfield::history::{self, Event, Model};
use farfield::{AtomicVar, Endpoint, NodeId, OwnedVar, Result, SharedVar, Sst, Wholeness};

use super::keep;
use crate::{Log, Scenario, Stage, choose};

pub(super) fn scenarios() -> Vec<Scenario> {
    let mut all = atomic_pairs();
    all.extend([atomic_any(), atomic_wait_change()]);
    all.extend([shared_fence(), shared_forwarded(), shared_in_order(), shared_versions()]);
    all.extend([shared_store_after_push(), shared_pull(), shared_pull_own_push()]);
    for wholeness in [Wholeness::Guards, Wholeness::Checksum] {
        all.extend([owned_load(wholeness), owned_versions(wholeness), owned_local(wholeness), owned_pull(wholeness)]);
        all.extend([owned_store_after_push(wholeness), owned_arrives(wholeness)]);
    }
    all.extend([owned_word(), sst_rows()]);
    all.extend(goes::scenarios());
    all
}

// ---- AtomicVar ----------------------------------------------------------------------------------------------------

/// A call on an [`AtomicVar`].
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
    /// Makes the call. Returns the value that it found, except for stores.
    fn make(self, var: &AtomicVar, ep: &Endpoint) -> Result<Option<u64>> {
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
struct Calls(Log<(u32, Call, Option<Option<u64>>)>);

impl Calls {
    fn make(&self, user: u32, call: Call, var: &AtomicVar, ep: &Endpoint) -> Result<()> {
        self.0.push((user, call, None));
        let answer = call.make(var, ep)?;
        self.0.push((user, call, Some(answer)));
        Ok(())
    }

    fn assert_linearizable(&self) {
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
fn atomic_var(stage: &Stage) -> Result<(Rc<Vec<AtomicVar>>, Calls)> {
    let vars = Rc::new(stage.on_each(|node| AtomicVar::open(node, "v", NodeId(0)))?);
    let calls = Calls(stage.log());
    let (last, at_end) = (stage.node(1), (Rc::clone(&vars), calls.clone()));
    stage.finally(move || {
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
fn atomic_pairs() -> Vec<Scenario> {
    let pair = |name: &str, about: &str, home: &'static [Call], away: &'static [Call]| {
        Scenario::new(name, about, 2, move |stage| {
            let (vars, history) = atomic_var(stage)?;
            for (node, calls) in [home, away].into_iter().enumerate() {
                let (vars, history) = (Rc::clone(&vars), history.clone());
                stage.thread(node, "user", move |ep| {
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
fn atomic_any() -> Scenario {
    Scenario::new("atomic/any", "any calls of three users come one after the other", 2, |stage| {
        let (vars, history) = atomic_var(stage)?;
        for (user, node) in [0, 0, 1].into_iter().enumerate() {
            let (vars, history) = (Rc::clone(&vars), history.clone());
            let mine = 10 * (user as u64 + 1);
            stage.thread(node, "user", move |ep| {
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
fn atomic_wait_change() -> Scenario {
    Scenario::new("atomic/wait-change", "who waits for a change sees it", 2, |stage| {
        let vars = keep(stage, stage.on_each(|node| AtomicVar::open(node, "v", NodeId(0)))?);
        let (writer, waiter) = (Rc::clone(&vars), vars);
        stage.thread(0, "writer", move |ep| ep.block_on(writer[0].fetch_add(ep, 7)).map(drop));
        stage.thread(1, "waiter", move |ep| {
            let seen = ep.block_on(waiter[1].wait_change(ep, 0, ep.deadline()))?;
            assert_eq!(seen, 7, "a value that nobody wrote");
            Ok(())
        });
        Ok(())
    })
    .small()
}

// ---- SharedVar ----------------------------------------------------------------------------------------------------

const N0: NodeId = NodeId(0);
const N1: NodeId = NodeId(1);
const N2: NodeId = NodeId(2);

type Shared = SharedVar<u64>;

/// Variables x, y, … on all nodes.
fn shared<const COUNT: usize>(stage: &Stage) -> Result<Rc<Vec<[Shared; COUNT]>>> {
    let open = |node: &farfield::Node| -> Result<[Shared; COUNT]> {
        let vars =
            ["x", "y", "z"].iter().take(COUNT).map(|path| Shared::open(node, path)).collect::<Result<Vec<_>>>()?;
        Ok(vars.try_into().ok().expect("as many variables as names"))
    };
    Ok(keep(stage, stage.on_each(open)?))
}

/// Waits until a variable's copy here is 1.
fn until_set(ep: &Endpoint, var: &Shared) -> Result<()> {
    Ok(ep.block_on(ep.wait_until(ep.deadline(), || (var.load() == 1).then_some(())))?)
}

/// Fig. 5: after the fence, NRW precedes the CR that follows. Neither waiting for the push nor a remote fence
/// guarantees that. For shared-fence-remote.
fn shared_fence() -> Scenario {
    Scenario::new("shared/fence", "of two that push, fence and look, one sees the other's", 2, |stage| {
        let vars = shared::<2>(stage)?;
        let seen = [stage.log(), stage.log()];
        for (me, seen) in seen.iter().cloned().enumerate() {
            let vars = Rc::clone(&vars);
            stage.thread(me, "party", move |ep| {
                let (mine, other) = (&vars[me][me], &vars[me][1 - me]);
                mine.store(1);
                ep.block_on(async {
                    mine.push_all(ep).await?;
                    mine.fence(ep, [N0, N1]).await
                })?;
                seen.push(other.load());
                Ok(())
            });
        }
        stage.finally(move || {
            let [a, b] = seen.map(|seen| seen.take()[0]);
            assert!(a <= 1 && b <= 1, "a value that nobody stored: {a}, {b}");
            assert!(a + b > 0, "neither sees what the other pushed before its fence");
            Ok(())
        });
        Ok(())
    })
    .kills(&["shared-fence-remote"])
    .small()
}

/// A pushed and fenced value is seen by every node that learns of it, on any path: NRW to one node before NRW to
/// another (Fig. 9b, with the fence that it lacks). For shared-fence-remote.
fn shared_forwarded() -> Scenario {
    Scenario::new("shared/forwarded", "what was fenced is seen by who hears of it from a third node", 3, |stage| {
        let vars = shared::<3>(stage)?;
        let [first, second, third] = [(); 3].map(|()| Rc::clone(&vars));
        stage.thread(0, "first", move |ep| {
            let [x, y, _] = &first[0];
            x.store(1);
            y.store(1);
            ep.block_on(async {
                x.push(ep, [N2]).await?;
                x.fence(ep, [N2]).await?;
                y.push(ep, [N1]).await
            })
        });
        stage.thread(1, "second", move |ep| {
            let [_, y, z] = &second[1];
            until_set(ep, y)?;
            z.store(1);
            ep.block_on(z.push(ep, [N2]))
        });
        stage.thread(2, "third", move |ep| {
            let [x, _, z] = &third[2];
            until_set(ep, z)?;
            assert_eq!(x.load(), 1, "what was fenced before it was told of is not there");
            Ok(())
        });
        Ok(())
    })
    .small()
}

/// Fig. 9a: pushes of one endpoint to one node land in order, NRW after NRW; the reader's CRs are in order, too.
fn shared_in_order() -> Scenario {
    Scenario::new("shared/in-order", "what was pushed first is seen first", 2, |stage| {
        let vars = shared::<2>(stage)?;
        let (writer, reader) = (Rc::clone(&vars), vars);
        stage.thread(0, "writer", move |ep| {
            let [x, y] = &writer[0];
            x.store(1);
            ep.block_on(x.push_all(ep))?;
            y.store(1);
            ep.block_on(y.push_all(ep))
        });
        stage.thread(1, "reader", move |_| {
            let [x, y] = &reader[1];
            let (later, earlier) = (y.load(), x.load());
            assert!(later <= earlier, "the later push is seen, the earlier is not");
            Ok(())
        });
        Ok(())
    })
    .small()
}

/// Versions are pushed one after the other: NRWs in order, and each NLR between the stores around it.
fn shared_versions() -> Scenario {
    Scenario::new("shared/versions", "versions are seen in order, and the last one stays", 2, |stage| {
        let vars = shared::<1>(stage)?;
        let [writer, reader, at_end] = [(); 3].map(|()| Rc::clone(&vars));
        stage.thread(0, "writer", move |ep| {
            let [x] = &writer[0];
            for version in 1..=2 {
                x.store(version);
                ep.block_on(x.push_all(ep))?;
            }
            Ok(())
        });
        stage.thread(1, "reader", move |_| {
            let mut seen = Seen::up_to(2);
            (0..3).for_each(|_| seen.word(reader[1][0].load()));
            Ok(())
        });
        stage.finally(move || {
            assert_eq!(at_end[1][0].load(), 2, "the last push was lost");
            Ok(())
        });
        Ok(())
    })
    .small()
}

/// Fig. 3d, not Fig. 1: an awaited push has read its source, NLR before the CW that follows. For
/// shared-push-not-awaited.
fn shared_store_after_push() -> Scenario {
    Scenario::new("shared/store-after-push", "a store after a push is not sent with it", 3, |stage| {
        let vars = shared::<1>(stage)?;
        let (writer, at_end) = (Rc::clone(&vars), vars);
        stage.thread(0, "writer", move |ep| {
            let [x] = &writer[0];
            x.store(1);
            ep.block_on(x.push_all(ep))?;
            x.store(2);
            // The search ends with the last thread, so this waits until the puts have landed.
            ep.block_on(x.fence(ep, [N1, N2]))
        });
        stage.finally(move || {
            for node in 1..3 {
                assert_eq!(
                    at_end[node][0].load(),
                    1,
                    "not what was pushed to node {node}, but what was stored after it"
                );
            }
            Ok(())
        });
        Ok(())
    })
    .kills(&["shared-push-not-awaited"])
    .small()
}

/// An awaited pull has written, NLW before the CR that follows, and pulls read in order. For shared-pull-not-awaited.
fn shared_pull() -> Scenario {
    Scenario::new("shared/pull", "a pull fetches what is there, never something older", 2, |stage| {
        let vars = shared::<1>(stage)?;
        vars[1][0].store(1);
        let (writer, reader) = (Rc::clone(&vars), vars);
        stage.thread(1, "writer", move |_| {
            writer[1][0].store(2);
            Ok(())
        });
        stage.thread(0, "reader", move |ep| {
            let mut seen = Seen { newest: 2, last: 1 };
            for _ in 0..2 {
                seen.word(ep.block_on(reader[0][0].pull(ep, N1))?);
            }
            Ok(())
        });
        Ok(())
    })
    .kills(&["shared-pull-not-awaited"])
    .small()
}

/// A get flushes its endpoint's earlier puts to the node: NRW before NRR. Its NLW follows the put's NLR.
fn shared_pull_own_push() -> Scenario {
    Scenario::new("shared/pull-own-push", "who pulls from where it has pushed to finds that", 2, |stage| {
        let vars = shared::<1>(stage)?;
        stage.thread(0, "writer", move |ep| {
            let [x] = &vars[0];
            x.store(1);
            ep.block_on(x.push_all(ep))?;
            assert_eq!(ep.block_on(x.pull(ep, N1))?, 1, "the push is not where it was pushed to");
            Ok(())
        });
        Ok(())
    })
    .small()
}

// ---- OwnedVar -----------------------------------------------------------------------------------------------------

/// The versions of a variable that one reader has seen: 1, 2, ….
struct Seen {
    /// The newest version that it can see.
    newest: u64,
    last: u64,
}

impl Seen {
    fn up_to(newest: u64) -> Seen {
        Seen { newest, last: 0 }
    }

    /// A version as a pair of equal words.
    fn pair(&mut self, value: [u64; 2]) {
        assert_eq!(value[0], value[1], "a torn value");
        self.word(value[0]);
    }

    fn word(&mut self, version: u64) {
        assert!(version <= self.newest, "version {version} was never stored and sent");
        assert!(version >= self.last, "version {version} after version {}", self.last);
        self.last = version;
    }
}

type Pair = OwnedVar<[u64; 2]>;

/// A pair that node 0 owns.
fn owned(stage: &Stage, wholeness: Wholeness) -> Result<Rc<Vec<Pair>>> {
    Ok(keep(stage, stage.on_each(move |node| Pair::open_with(node, "v", N0, wholeness))?))
}

fn name_of(wholeness: Wholeness, property: &str) -> String {
    match wholeness {
        Wholeness::Guards => format!("owned/guards-{property}"),
        Wholeness::Checksum => format!("owned/checksum-{property}"),
    }
}

/// The owner stores and pushes versions 1 to `versions`; a thread of node 1 loads `looks` times.
fn push_and_load(name: &str, about: &str, wholeness: Wholeness, versions: u64, looks: usize) -> Scenario {
    Scenario::new(name, about, 2, move |stage| {
        let vars = owned(stage, wholeness)?;
        let (reader, at_end) = (Rc::clone(&vars), Rc::clone(&vars));
        let mut writer = vars[0].writer()?;
        stage.thread(0, "owner", move |ep| {
            for version in 1..=versions {
                writer.store([version; 2]);
                ep.block_on(writer.push(ep))?;
            }
            Ok(())
        });
        stage.thread(1, "reader", move |_| {
            let mut seen = Seen::up_to(versions);
            (0..looks).filter_map(|_| reader[1].try_load()).for_each(|value| seen.pair(value));
            Ok(())
        });
        stage.finally(move || {
            assert_eq!(at_end[1].try_load(), Some([versions; 2]), "the last push is not there, or not whole");
            Ok(())
        });
        Ok(())
    })
}

/// NRW → NRW of lead, value, trail against the reader's CR → CR of trail, value, lead; the value's own words are in no
/// order. For owned-load-forward, owned-torn-accepted, owned-trail-first (and the checksum in place of guards).
fn owned_load(wholeness: Wholeness) -> Scenario {
    let name = name_of(wholeness, "load");
    let mutants: &[_] = match wholeness {
        Wholeness::Guards => &["owned-load-forward", "owned-torn-accepted", "owned-trail-first"],
        Wholeness::Checksum => &[],
    };
    push_and_load(&name, "a pushed value is seen whole or not at all", wholeness, 1, 1).small().kills(mutants)
}

/// The same with two versions: a mixture of both is none, and the newer is never followed by the older.
fn owned_versions(wholeness: Wholeness) -> Scenario {
    let name = name_of(wholeness, "versions");
    push_and_load(&name, "pushed values are seen whole, in order", wholeness, 2, 2).small()
}

/// CW → CW against CR → CR: the owner's threads share its copy. For owned-load-forward and owned-torn-accepted.
fn owned_local(wholeness: Wholeness) -> Scenario {
    let name = name_of(wholeness, "local");
    Scenario::new(&name, "threads of the owner see what is stored whole, in order", 1, move |stage| {
        let vars = owned(stage, wholeness)?;
        let mut writer = vars[0].writer()?;
        stage.thread(0, "owner", move |_| {
            (1..=2).for_each(|version| writer.store([version; 2]));
            Ok(())
        });
        stage.thread(0, "reader", move |_| {
            let mut seen = Seen::up_to(2);
            (0..2).filter_map(|_| vars[0].try_load()).for_each(|value| seen.pair(value));
            Ok(())
        });
        Ok(())
    })
    .small()
}

/// CW → CW of the owner against the NRRs of a reader, which are not ordered unless each is awaited. For
/// owned-pull-forward, owned-pull-at-once, owned-sum-ignored.
fn owned_pull(wholeness: Wholeness) -> Scenario {
    let name = name_of(wholeness, "pull");
    let mutants: &[_] = match wholeness {
        Wholeness::Guards => &["owned-pull-forward", "owned-pull-at-once"],
        Wholeness::Checksum => &["owned-sum-ignored"],
    };
    Scenario::new(&name, "a value that is fetched while the owner stores is whole", 2, move |stage| {
        let vars = owned(stage, wholeness)?;
        let mut writer = vars[0].writer()?;
        writer.store([1; 2]);
        stage.thread(0, "owner", move |_| {
            writer.store([2; 2]);
            Ok(())
        });
        stage.thread(1, "reader", move |ep| {
            // One attempt: a reader that retries may do so for as long as the owner stalls.
            ep.set_timeout(Duration::ZERO);
            let mut seen = Seen { newest: 2, last: 1 };
            match ep.block_on(vars[1].pull(ep)) {
                Err(error) if error.is_timeout() => Ok(()),
                pulled => pulled.map(|value| seen.pair(value)),
            }
        });
        Ok(())
    })
    .small()
    .kills(mutants)
}

/// The NLRs of a push against the CWs of the next store, which is not pushed. For owned-push-live.
fn owned_store_after_push(wholeness: Wholeness) -> Scenario {
    let name = name_of(wholeness, "store-after-push");
    Scenario::new(&name, "a store after a push is not sent with it", 2, move |stage| {
        let vars = owned(stage, wholeness)?;
        let (reader, at_end) = (Rc::clone(&vars), Rc::clone(&vars));
        let mut writer = vars[0].writer()?;
        stage.thread(0, "owner", move |ep| {
            writer.store([1; 2]);
            ep.block_on(writer.push(ep))?;
            writer.store([2; 2]);
            Ok(())
        });
        stage.thread(1, "reader", move |_| {
            if let Some(value) = reader[1].try_load() {
                Seen::up_to(1).pair(value);
            }
            Ok(())
        });
        stage.finally(move || {
            assert_eq!(at_end[1].try_load(), Some([1; 2]), "not what was pushed");
            Ok(())
        });
        Ok(())
    })
    .small()
    .kills(if wholeness == Wholeness::Guards { &["owned-push-live"] } else { &[] })
}

/// The last part of a value to land wakes a waiter, and this may be any part.
fn owned_arrives(wholeness: Wholeness) -> Scenario {
    let name = name_of(wholeness, "arrives");
    Scenario::new(&name, "who waits for a pushed value sees it, whole", 2, move |stage| {
        let vars = owned(stage, wholeness)?;
        let mut writer = vars[0].writer()?;
        stage.thread(0, "owner", move |ep| {
            writer.store([1; 2]);
            ep.block_on(writer.push(ep))
        });
        stage.thread(1, "reader", move |ep| {
            let mut seen = Seen::up_to(1);
            seen.pair(ep.block_on(vars[1].load(ep))?);
            let arrived = || vars[1].try_load().filter(|value| *value != [0; 2]);
            seen.pair(ep.block_on(ep.wait_until(ep.deadline(), arrived))?);
            Ok(())
        });
        Ok(())
    })
    .small()
}

/// A value of one word needs neither guards nor a checksum: NRW → NRW, CW → CW, and pulls in order. A pull returns the
/// value that the local copy will get, never an older one.
fn owned_word() -> Scenario {
    Scenario::new("owned/word", "a value of one word is seen in order, by loads and by pulls", 2, |stage| {
        let vars = keep(stage, stage.on_each(|node| OwnedVar::<u64>::open(node, "v", N0))?);
        let mut writer = vars[0].writer()?;
        stage.thread(0, "owner", move |ep| {
            for version in 1..=2 {
                writer.store(version);
                ep.block_on(writer.push(ep))?;
            }
            Ok(())
        });
        stage.thread(1, "reader", move |ep| {
            let (mut loaded, mut pulled) = (Seen::up_to(2), Seen::up_to(2));
            for _ in 0..2 {
                vars[1].try_load().into_iter().for_each(|version| loaded.word(version));
                pulled.word(ep.block_on(vars[1].pull(ep))?);
                assert!(pulled.last >= loaded.last, "the owner's copy is behind the one that it has pushed");
            }
            Ok(())
        });
        Ok(())
    })
    .small()
}

// ---- Sst ----------------------------------------------------------------------------------------------------------

/// Rows do not disturb each other, and a push with a global fence behind it is seen: NRW before the CR of another row.
fn sst_rows() -> Scenario {
    Scenario::new(
        "sst/rows",
        "each owner's row is its own, and of two that fence and look, one sees the other's",
        2,
        |stage| {
            let tables = keep(stage, stage.on_each(|node| Sst::<u64>::open(node, "t"))?);
            let seen = [stage.log(), stage.log()];
            for (me, seen) in seen.iter().cloned().enumerate() {
                let tables = Rc::clone(&tables);
                let mut writer = tables[me].writer(me)?;
                stage.thread(me, "owner", move |ep| {
                    writer.store(1 + me as u64);
                    ep.block_on(async {
                        writer.push(ep).await?;
                        Ok::<_, farfield::Error>(ep.global_fence([N0, N1]).await?)
                    })?;
                    let rows: Vec<Option<u64>> = tables[me].rows().map(OwnedVar::try_load).collect();
                    assert_eq!(rows[me], Some(1 + me as u64), "its own row is another's");
                    seen.push(rows[1 - me]);
                    Ok(())
                });
            }
            stage.finally(move || {
                let [by_first, by_second] = seen.map(|seen| seen.take()[0]);
                assert!([Some(0), Some(2)].contains(&by_first), "row 1 is {by_first:?}");
                assert!([Some(0), Some(1)].contains(&by_second), "row 0 is {by_second:?}");
                assert_ne!(
                    (by_first, by_second),
                    (Some(0), Some(0)),
                    "neither sees what the other pushed before its fence"
                );
                for (node, table) in tables.iter().enumerate() {
                    let rows: Vec<Option<u64>> = table.rows().map(OwnedVar::try_load).collect();
                    assert_eq!(rows, [Some(1), Some(2)], "in the end, on node {node}");
                }
                Ok(())
            });
            Ok(())
        },
    )
    .small()
}
