//! Trees under changes.

use farfield_check::Scenario;
use farfield_core::Result;

use super::histories::MapCall::{self, Delete, Get, Insert, MultiGet, Put, Range};
use super::{Opened, before, changes, open, reads, tiny};
use farfield_check::Cluster;

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        one_key(),
        order(),
        later(),
        inserted(),
        compacted(),
        split(),
        split_below(),
        merged(),
        shrunk(),
        cached(),
        together(),
        backward(),
        local(),
    ]
}

/// Whatever writers do: the way down twice, and predecessors.
const GETS_MAX: u64 = 40;

fn scenario(
    name: &str,
    about: &str,
    body: impl Fn(&Cluster, &Opened) -> Result<()> + Send + Sync + 'static,
) -> Scenario {
    Scenario::new(name, about, 2, move |cluster| {
        let opened = open(cluster, tiny(24))?;
        body(cluster, &opened)
    })
}

fn puts(keys: impl IntoIterator<Item = u64>) -> Vec<MapCall> {
    keys.into_iter().map(|key| Put(key, 10 * key)).collect()
}

/// A record of the log.
fn one_key() -> Scenario {
    scenario("rome/one-key", "a value is read as it was at one moment", |cluster, opened| {
        changes(cluster, opened, 1, vec![Put(5, 1), Put(5, 2), Delete(5)])?;
        reads(cluster, opened, 1, GETS_MAX, vec![Get(5), Get(5)])
    })
    .kills(&["rome-record-later", "rome-stable-first"])
}

/// Two leaves, each with a thread that changes it.
fn order() -> Scenario {
    scenario("rome/order", "what one thread has written before another is never seen without it", |cluster, opened| {
        before(cluster, opened, &puts([1, 2, 3, 7, 8, 9]))?;
        changes(cluster, opened, 1, vec![Put(1, 1), Get(8)])?;
        changes(cluster, opened, 2, vec![Put(8, 1), Get(1)])?;
        reads(cluster, opened, 1, GETS_MAX, vec![Range(0, 9, false), MultiGet(vec![8, 1])])
    })
    .kills(&["rome-version-dropped", "rome-tickets-pass", "rome-not-raised"])
}

/// One thread writes on the left first, and then on the right, in a new base.
fn later() -> Scenario {
    scenario("rome/later", "a scan takes nothing of a leaf that is later than its moment", |cluster, opened| {
        before(cluster, opened, &puts([1, 2, 3, 7, 8, 9]))?;
        changes(cluster, opened, 1, vec![Put(1, 1), Put(9, 1), Put(1, 2), Put(9, 2), Put(1, 3), Put(9, 3)])?;
        reads(cluster, opened, 1, GETS_MAX, vec![Range(0, 10, false), Range(0, 10, false)])
    })
    .kills(&["rome-base-version"])
}

/// A call that changes nothing has seen what is not stable yet.
fn inserted() -> Scenario {
    scenario("rome/inserted", "an insert that finds the key is after the one that has added it", |cluster, opened| {
        changes(cluster, opened, 1, vec![Insert(5, 1)])?;
        changes(cluster, opened, 2, vec![Insert(5, 2), Get(5)])
    })
    .kills(&["rome-failed-early"])
}

/// Two threads fill the log of one leaf.
fn compacted() -> Scenario {
    scenario("rome/merged-log", "a log that is merged into the base loses nothing", |cluster, opened| {
        changes(cluster, opened, 1, vec![Put(5, 1), Put(5, 2), Put(5, 3)])?;
        changes(cluster, opened, 2, vec![Put(6, 1), Put(6, 2)])?;
        reads(cluster, opened, 1, GETS_MAX, vec![Get(5), Range(0, 9, false)])
    })
    .kills(&["rome-log-lost"])
}

/// The root becomes an inner node.
fn split() -> Scenario {
    scenario("rome/split", "a root that is split is whole at each moment", |cluster, opened| {
        before(cluster, opened, &puts([1, 3, 5, 6]))?;
        changes(cluster, opened, 1, puts([2, 4]))?;
        reads(cluster, opened, 1, GETS_MAX, vec![Range(0, 9, false), Get(5)])
    })
}

/// A leaf is split.
fn split_below() -> Scenario {
    scenario(
        "rome/split-below",
        "a leaf that is split is whole at each moment, and its sibling is found",
        |cluster, opened| {
            before(cluster, opened, &puts([1, 2, 3, 4, 5, 6]))?;
            changes(cluster, opened, 1, puts([7, 8, 10, 11]))?;
            changes(cluster, opened, 2, vec![Get(5), Put(9, 9)])?;
            reads(cluster, opened, 1, GETS_MAX, vec![Get(5), Range(3, 9, false), Get(7)])
        },
    )
    .kills(&["rome-split-halves", "rome-stale-sibling", "rome-split-forgets"])
}

/// Leaves with few pairs become one.
fn merged() -> Scenario {
    scenario("rome/merge", "two leaves that are merged are whole at each moment", |cluster, opened| {
        before(cluster, opened, &puts(1..=10))?; // in three leaves
        changes(cluster, opened, 1, vec![Delete(1), Delete(2), Delete(5), Delete(6), Delete(7), Put(8, 1)])?;
        reads(cluster, opened, 1, GETS_MAX, vec![Range(0, 10, false), Get(8)])
    })
}

/// All leaves become the root.
fn shrunk() -> Scenario {
    scenario("rome/shrunk", "a tree that loses a level is whole at each moment", |cluster, opened| {
        before(cluster, opened, &puts(1..=6))?;
        changes(cluster, opened, 1, vec![Delete(1), Delete(2), Delete(5), Put(6, 1), Put(9, 1)])?;
        changes(cluster, opened, 2, vec![Get(6), Put(7, 1)])?;
        reads(cluster, opened, 1, GETS_MAX, vec![Get(6), Range(0, 10, false)])
    })
}

/// A reader remembers inner nodes that are no longer there.
fn cached() -> Scenario {
    scenario("rome/cached", "an inner node that is out of date leads to no wrong answer", |cluster, opened| {
        before(cluster, opened, &puts(1..=8))?;
        let shrinks = vec![Delete(1), Delete(2), Delete(5), Delete(6), Delete(7), Put(8, 1)];
        let goes_on = vec![Put(8, 2), Put(5, 2), Put(6, 2), Put(7, 2)];
        changes(cluster, opened, 1, [shrinks, goes_on].concat())?;
        reads(cluster, opened, 1, GETS_MAX, vec![Get(8), Get(8), Get(5), Range(2, 9, false)])
    })
    .kills(&["rome-no-tombstone"])
}

/// Several keys at one moment.
fn together() -> Scenario {
    scenario("rome/multi-get", "several keys are read as of one moment", |cluster, opened| {
        before(cluster, opened, &puts([1, 2, 3, 4, 5]))?;
        changes(cluster, opened, 1, vec![Put(1, 1), Put(5, 1), Put(1, 2), Put(5, 2)])?;
        reads(cluster, opened, 1, GETS_MAX, vec![MultiGet(vec![5, 1]), MultiGet(vec![1, 5])])
    })
    .kills(&["rome-not-as-of"])
}

fn backward() -> Scenario {
    scenario("rome/backward", "a scan that goes backward is of one moment", |cluster, opened| {
        before(cluster, opened, &puts([1, 3, 5, 7]))?;
        changes(cluster, opened, 1, puts([8, 6, 4, 2]))?;
        reads(cluster, opened, 1, GETS_MAX, vec![Range(0, 9, true), Range(2, 7, true)])
    })
}

/// Threads of the owner alone.
fn local() -> Scenario {
    scenario("rome/threads", "threads of the owner change and scan a tree", |cluster, opened| {
        changes(cluster, opened, 1, puts([1, 3, 5, 7]))?;
        changes(cluster, opened, 2, vec![Put(2, 1), Range(0, 9, false), Delete(1), Put(4, 1)])?;
        changes(cluster, opened, 3, vec![Range(0, 9, true), MultiGet(vec![1, 2, 3])])
    })
}
