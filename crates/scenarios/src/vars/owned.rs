//! Owned variables, and tables of them, are never torn and arrive in order.

use std::rc::Rc;
use std::time::Duration;

use farfield_core::{OwnedVar, Result, Sst, TearCheck};

use super::{N0, N1};
use crate::keep;
use farfield_check::{Cluster, Scenario};

/// The versions of a variable that one reader has seen: 1, 2, ….
pub(super) struct Seen {
    /// The newest version that it can see.
    pub(super) newest: u64,
    pub(super) last: u64,
}

impl Seen {
    pub(super) fn up_to(newest: u64) -> Seen {
        Seen { newest, last: 0 }
    }

    /// A version as a pair of equal words.
    pub(super) fn pair(&mut self, value: [u64; 2]) {
        assert_eq!(value[0], value[1], "a torn value");
        self.word(value[0]);
    }

    pub(super) fn word(&mut self, version: u64) {
        assert!(version <= self.newest, "version {version} was never stored and sent");
        assert!(version >= self.last, "version {version} after version {}", self.last);
        self.last = version;
    }
}

pub(super) type Pair = OwnedVar<[u64; 2]>;

/// A pair that node 0 owns.
pub(super) fn opened(cluster: &Cluster, wholeness: TearCheck) -> Result<Rc<Vec<Pair>>> {
    Ok(keep(cluster, cluster.on_each(move |node| Pair::open_with(node, "v", N0, wholeness))?))
}

pub(super) fn name_of(wholeness: TearCheck, property: &str) -> String {
    match wholeness {
        TearCheck::Guards => format!("owned/guards-{property}"),
        TearCheck::Checksum => format!("owned/checksum-{property}"),
    }
}

/// The owner stores and pushes versions 1 to `versions`; a thread of node 1 loads `looks` times.
fn push_and_load(name: &str, about: &str, wholeness: TearCheck, versions: u64, looks: usize) -> Scenario {
    Scenario::new(name, about, 2, move |cluster| {
        let vars = opened(cluster, wholeness)?;
        let (reader, at_end) = (Rc::clone(&vars), Rc::clone(&vars));
        let mut writer = vars[0].writer()?;
        cluster.thread(0, "owner", move |ep| {
            for version in 1..=versions {
                writer.store([version; 2]);
                ep.block_on(writer.push(ep))?;
            }
            Ok(())
        });
        cluster.thread(1, "reader", move |_| {
            let mut seen = Seen::up_to(versions);
            (0..looks).filter_map(|_| reader[1].try_load()).for_each(|value| seen.pair(value));
            Ok(())
        });
        cluster.at_end(move || {
            assert_eq!(at_end[1].try_load(), Some([versions; 2]), "the last push is not there, or not whole");
            Ok(())
        });
        Ok(())
    })
}

/// NRW → NRW of lead, value, trail against the reader's CR → CR of trail, value, lead; the value's own words are in no
/// order. For owned-load-forward, owned-torn-accepted, owned-trail-first (and the checksum in place of guards).
pub(super) fn owned_load(wholeness: TearCheck) -> Scenario {
    let name = name_of(wholeness, "load");
    let mutants: &[_] = match wholeness {
        TearCheck::Guards => &["owned-load-forward", "owned-torn-accepted", "owned-trail-first"],
        TearCheck::Checksum => &[],
    };
    push_and_load(&name, "a pushed value is seen whole or not at all", wholeness, 1, 1).small().kills(mutants)
}

/// The same with two versions: a mixture of both is none, and the newer is never followed by the older.
pub(super) fn owned_versions(wholeness: TearCheck) -> Scenario {
    let name = name_of(wholeness, "versions");
    push_and_load(&name, "pushed values are seen whole, in order", wholeness, 2, 2).small()
}

/// CW → CW against CR → CR: the owner's threads share its copy. For owned-load-forward and owned-torn-accepted.
pub(super) fn owned_local(wholeness: TearCheck) -> Scenario {
    let name = name_of(wholeness, "local");
    Scenario::new(&name, "threads of the owner see what is stored whole, in order", 1, move |cluster| {
        let vars = opened(cluster, wholeness)?;
        let mut writer = vars[0].writer()?;
        cluster.thread(0, "owner", move |_| {
            (1..=2).for_each(|version| writer.store([version; 2]));
            Ok(())
        });
        cluster.thread(0, "reader", move |_| {
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
pub(super) fn owned_pull(wholeness: TearCheck) -> Scenario {
    let name = name_of(wholeness, "pull");
    let mutants: &[_] = match wholeness {
        TearCheck::Guards => &["owned-pull-forward", "owned-pull-at-once"],
        TearCheck::Checksum => &["owned-sum-ignored"],
    };
    Scenario::new(&name, "a value that is fetched while the owner stores is whole", 2, move |cluster| {
        let vars = opened(cluster, wholeness)?;
        let mut writer = vars[0].writer()?;
        writer.store([1; 2]);
        cluster.thread(0, "owner", move |_| {
            writer.store([2; 2]);
            Ok(())
        });
        cluster.thread(1, "reader", move |ep| {
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
pub(super) fn owned_store_after_push(wholeness: TearCheck) -> Scenario {
    let name = name_of(wholeness, "store-after-push");
    Scenario::new(&name, "a store after a push is not sent with it", 2, move |cluster| {
        let vars = opened(cluster, wholeness)?;
        let (reader, at_end) = (Rc::clone(&vars), Rc::clone(&vars));
        let mut writer = vars[0].writer()?;
        cluster.thread(0, "owner", move |ep| {
            writer.store([1; 2]);
            ep.block_on(writer.push(ep))?;
            writer.store([2; 2]);
            Ok(())
        });
        cluster.thread(1, "reader", move |_| {
            if let Some(value) = reader[1].try_load() {
                Seen::up_to(1).pair(value);
            }
            Ok(())
        });
        cluster.at_end(move || {
            assert_eq!(at_end[1].try_load(), Some([1; 2]), "not what was pushed");
            Ok(())
        });
        Ok(())
    })
    .small()
    .kills(if wholeness == TearCheck::Guards { &["owned-push-live"] } else { &[] })
}

/// The last part of a value to land wakes a waiter, and this may be any part.
pub(super) fn owned_arrives(wholeness: TearCheck) -> Scenario {
    let name = name_of(wholeness, "arrives");
    Scenario::new(&name, "who waits for a pushed value sees it, whole", 2, move |cluster| {
        let vars = opened(cluster, wholeness)?;
        let mut writer = vars[0].writer()?;
        cluster.thread(0, "owner", move |ep| {
            writer.store([1; 2]);
            ep.block_on(writer.push(ep))
        });
        cluster.thread(1, "reader", move |ep| {
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
pub(super) fn owned_word() -> Scenario {
    Scenario::new("owned/word", "a value of one word is seen in order, by loads and by pulls", 2, |cluster| {
        let vars = keep(cluster, cluster.on_each(|node| OwnedVar::<u64>::open(node, "v", N0))?);
        let mut writer = vars[0].writer()?;
        cluster.thread(0, "owner", move |ep| {
            for version in 1..=2 {
                writer.store(version);
                ep.block_on(writer.push(ep))?;
            }
            Ok(())
        });
        cluster.thread(1, "reader", move |ep| {
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

/// Rows do not disturb each other, and a push with a global fence behind it is seen: NRW before the CR of another row.
pub(super) fn sst_rows() -> Scenario {
    Scenario::new(
        "sst/rows",
        "each owner's row is its own, and of two that fence and look, one sees the other's",
        2,
        |cluster| {
            let tables = keep(cluster, cluster.on_each(|node| Sst::<u64>::open(node, "t"))?);
            let seen = [cluster.log(), cluster.log()];
            for (me, seen) in seen.iter().cloned().enumerate() {
                let tables = Rc::clone(&tables);
                let mut writer = tables[me].writer(me)?;
                cluster.thread(me, "owner", move |ep| {
                    writer.store(1 + me as u64);
                    ep.block_on(async {
                        writer.push(ep).await?;
                        Ok::<_, farfield_core::Error>(ep.global_fence([N0, N1]).await?)
                    })?;
                    let rows: Vec<Option<u64>> = tables[me].rows().map(OwnedVar::try_load).collect();
                    assert_eq!(rows[me], Some(1 + me as u64), "its own row is another's");
                    seen.push(rows[1 - me]);
                    Ok(())
                });
            }
            cluster.at_end(move || {
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

/// Each node opens the table while the other does: when a call returns, all rows are there.
pub(super) fn sst_opened() -> Scenario {
    Scenario::new("sst/opened", "a table that is open can be used, every row of it", 2, |cluster| {
        let kept = cluster.log();
        let tables = kept.clone();
        for (me, node) in cluster.nodes().into_iter().enumerate() {
            let kept = kept.clone();
            cluster.thread_that_drops(me, "opens", move |ep| {
                let table = Sst::<u64>::open(&node, "t")?;
                let mut row = table.writer(me)?;
                row.store(1);
                ep.block_on(row.push(ep))?;
                assert_eq!(ep.block_on(table.row(1 - me).pull(ep))? & !1, 0, "it is 0, or 1");
                let has_come = || (table.row(1 - me).try_load() == Some(1)).then_some(());
                ep.block_on(ep.wait_until(ep.deadline(), has_come))?;
                kept.push((table, row));
                Ok(())
            });
        }
        cluster.at_end(move || {
            assert_eq!(tables.take().len(), 2);
            Ok(())
        });
        Ok(())
    })
}
