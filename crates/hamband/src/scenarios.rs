//! Scenarios for the model checker.

mod faults;
mod groups;
mod ordered;
mod refined;
mod till;

use std::cell::RefCell;
use std::rc::Rc;

use farfield_check::{Cluster, Scenario, with_at_once, with_slow};
use farfield_core::{Endpoint, Result};

use self::till::{Till, TillUpdate};
use crate::{Replicated, ReplicatedOptions, Writer};

/// All of them.
///
/// ```
/// let scenarios = farfield_hamband::scenarios::all();
/// assert!(scenarios.iter().any(|scenario| scenario.name() == "hamband/reduce"));
/// ```
pub fn all() -> Vec<Scenario> {
    let own = [
        reduce(),
        reduce_often(),
        free(),
        dependency(),
        dependency_just_seen(),
        after_summary("hamband/after-summary", 1),
        after_summary("hamband/after-fold", 30),
        stable(),
        room(),
        fold(),
    ];
    let parts = [faults::scenarios(), ordered::scenarios(), groups::scenarios(), refined::scenarios()];
    with_at_once(with_slow(own.into_iter().chain(parts.concat())), AT_ONCE)
}

/// Those that are also searched with operations that complete at once.
const AT_ONCE: &[&str] = &["hamband/room", "hamband/fold", "hamband/dies"];

static OPTIONS: ReplicatedOptions = ReplicatedOptions {
    call_bytes_max: 16,
    refusal_bytes_max: 24,
    summary_bytes_max: 16,
    feed_bytes: 512,
    serialised: false,
};

type Member = (Replicated<Till>, Rc<RefCell<Writer<Till>>>);

/// Opens the object on all nodes.
fn open_each(cluster: &Cluster, options: &'static ReplicatedOptions) -> Result<Vec<Member>> {
    cluster.on_each(|node| {
        let till = Replicated::open(node, "till", Till::default(), options.clone())?;
        let writer = Rc::new(RefCell::new(till.writer()?));
        Ok((till, writer))
    })
}

/// Opens the object on all nodes. It is closed when all threads have ended.
fn open(cluster: &Cluster, options: &'static ReplicatedOptions) -> Result<Vec<Member>> {
    let members = open_each(cluster, options)?;
    let kept = members.clone();
    cluster.at_end(move || {
        drop(kept);
        Ok(())
    });
    Ok(members)
}

/// A scenario in which each node has a thread.
fn calls(
    name: &str,
    about: &str,
    nodes: usize,
    body: impl Fn(usize, &Replicated<Till>, &mut Writer<Till>, &Endpoint) -> Result<()> + Clone + Send + Sync + 'static,
) -> Scenario {
    Scenario::new(name, about, nodes, move |cluster| {
        for (me, (till, writer)) in open(cluster, &OPTIONS)?.into_iter().enumerate() {
            let body = body.clone();
            cluster.thread(me, "calls", move |ep| body(me, &till, &mut writer.borrow_mut(), ep));
        }
        Ok(())
    })
}

/// Makes a call that is permissible.
fn call(writer: &mut Writer<Till>, ep: &Endpoint, update: &TillUpdate) -> Result<()> {
    let done = ep.block_on(writer.update(ep, update))?;
    assert_eq!(done, Ok(()), "{update:?} is permissible");
    Ok(())
}

fn wait_until(till: &Replicated<Till>, ep: &Endpoint, condition: impl FnMut(&Till) -> bool) -> Result<()> {
    ep.block_on(till.wait_until(ep, ep.deadline(), condition))
}

/// One summary, overwritten once: the smallest case.
fn reduce() -> Scenario {
    calls(
        "hamband/reduce",
        "a replica has whole summaries only, and the newest in the end",
        2,
        |me, till, writer, ep| {
            if me == 0 {
                call(writer, ep, &TillUpdate::Add(1))?;
                return call(writer, ep, &TillUpdate::Add(2));
            }
            let mut last = 0;
            wait_until(till, ep, |till| {
                assert!(last <= till.cash && [0, 1, 3].contains(&till.cash), "{} after {last}", till.cash);
                last = till.cash;
                till.cash == 3
            })
        },
    )
    .kills(&["hamband-summary-unchecked", "hamband-summary-twice"])
}

/// Each slot is overwritten, while all read.
fn reduce_often() -> Scenario {
    calls("hamband/reduce-often", "all replicas have the calls of all", 3, |me, till, writer, ep| {
        for _ in 0..3 {
            call(writer, ep, &TillUpdate::Add(1 << (8 * me)))?;
        }
        let mut last = 0;
        wait_until(till, ep, |till| {
            assert!(last <= till.cash, "{:x} after {last:x}", till.cash);
            last = till.cash;
            till.cash == 0x03_03_03
        })
    })
}

/// Messages arrive once each, in the order of their source.
fn free() -> Scenario {
    calls("hamband/free", "all calls of a feed are applied, each once", 2, |me, till, writer, ep| {
        let mine = 10 * (me as u8);
        call(writer, ep, &TillUpdate::Open(mine))?;
        call(writer, ep, &TillUpdate::Deposit(mine, 1))?;
        call(writer, ep, &TillUpdate::Deposit(mine, 2))?;
        wait_until(till, ep, |till| {
            let sums: Vec<u64> = till.accounts.values().copied().collect();
            assert!(sums.iter().all(|sum| [0, 1, 3].contains(sum)), "{sums:?}");
            sums == [3, 3]
        })?;
        ep.block_on(writer.stable(ep))
    })
    .kills(&["hamband-entry-unchecked"])
}

/// A call depends on another node's, which a third node may get later.
fn dependency() -> Scenario {
    calls("hamband/dependency", "a call waits for those that it depends on", 3, |me, till, writer, ep| {
        match me {
            0 => call(writer, ep, &TillUpdate::Open(7))?,
            1 => {
                wait_until(till, ep, |till| till.accounts.contains_key(&7))?;
                call(writer, ep, &TillUpdate::Deposit(7, 5))?;
            }
            _ => {}
        }
        wait_until(till, ep, |till| till.accounts.get(&7) == Some(&5))
    })
    .kills(&["hamband-no-dependencies"])
}

/// The caller has not read the call that its own depends on: `update` takes it first.
fn dependency_just_seen() -> Scenario {
    let about = "a call depends on the calls that it takes before it is checked";
    calls("hamband/dependency-just-seen", about, 3, |me, till, writer, ep| {
        let deposit = TillUpdate::Deposit(7, 5);
        match me {
            0 => call(writer, ep, &TillUpdate::Open(7))?,
            1 => {
                let mut is_made = false;
                for _ in 0..4 {
                    is_made = is_made || ep.block_on(writer.update(ep, &deposit))?.is_ok();
                    ep.block_on(ep.pause());
                }
                if !is_made {
                    wait_until(till, ep, |till| till.accounts.contains_key(&7))?;
                    call(writer, ep, &deposit)?;
                }
            }
            _ => {}
        }
        wait_until(till, ep, |till| till.accounts.get(&7) == Some(&5))
    })
    .kills(&["hamband-dependencies-early"])
}

/// A call depends on one that others have by a summary, or by a summary that was too long and went into the feed.
fn after_summary(name: &str, marks: u8) -> Scenario {
    let about = "a call waits for the summary that it depends on";
    calls(name, about, 3, move |me, till, writer, ep| {
        let last = marks - 1;
        match me {
            0 => (0..marks).try_for_each(|mark| call(writer, ep, &TillUpdate::Mark([mark].into())))?,
            1 => {
                wait_until(till, ep, |till| till.marks.contains(&last))?;
                call(writer, ep, &TillUpdate::Use(last))?;
            }
            _ => {}
        }
        wait_until(till, ep, |till| {
            assert!(till.used.is_subset(&till.marks), "{till:?}");
            till.used.contains(&last)
        })
    })
}

/// All replicas apply a feed's entries beside summaries.
fn stable() -> Scenario {
    calls("hamband/stable", "a call is stable when all replicas have it", 3, |me, till, writer, ep| {
        if me == 2 {
            return Ok(());
        }
        call(writer, ep, &TillUpdate::Add(1 << me))?;
        call(writer, ep, &TillUpdate::Open(me as u8))?;
        ep.block_on(writer.stable(ep))?;
        // All have it: the next call of another node follows it everywhere.
        call(writer, ep, &TillUpdate::Open(10 + me as u8))?;
        wait_until(till, ep, |till| {
            let (has_second, has_first) = (till.accounts.contains_key(&11), till.accounts.contains_key(&1));
            assert!(!has_second || has_first && till.cash & 2 != 0, "{till:?}");
            has_second
        })
    })
}

/// More messages than the feed has room for.
fn room() -> Scenario {
    calls("hamband/room", "an entry is overwritten when all have applied it", 2, |me, till, writer, ep| {
        if me == 0 {
            call(writer, ep, &TillUpdate::Open(1))?;
            return (1..=24).try_for_each(|amount| call(writer, ep, &TillUpdate::Deposit(1, amount)));
        }
        let mut last = 0;
        wait_until(till, ep, |till| {
            let sum = till.accounts.get(&1).copied().unwrap_or(0);
            let is_of_first = (0..=24).any(|calls| sum == calls * (calls + 1) / 2);
            assert!(last <= sum && is_of_first, "{sum} after {last}");
            last = sum;
            sum == 300
        })
    })
    .kills(&["hamband-no-room", "hamband-hash-alike"])
}

/// A summary becomes too long, again and again.
fn fold() -> Scenario {
    calls(
        "hamband/fold",
        "a summary that is too long goes into the feed, and another one begins",
        2,
        |me, till, writer, ep| {
            if me == 0 {
                for mark in 0..60 {
                    call(writer, ep, &TillUpdate::Mark([mark].into()))?;
                }
                return Ok(());
            }
            let mut last = 0;
            wait_until(till, ep, |till| {
                let marks = till.marks.len();
                assert!(
                    last <= marks && till.marks.iter().copied().eq(0..marks as u8),
                    "{:?} after {last}",
                    till.marks
                );
                last = marks;
                marks == 60
            })
        },
    )
}
