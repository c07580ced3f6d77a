//! Variables when a node dies, or is cut off.
//!
//! A value that is read is whole, was stored by a user, and is never older than an earlier one, whatever operations
//! were cut short. An operation to the dead node ends in an error that names it. Copies on other nodes stay.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use farfield_core::fabric::{DeathRule, Instant, Plain};
use farfield_core::{AtomicVar, Error, MemberStatus, Node, NodeId, OwnedVar, Result, SharedVar, Sst, TearCheck};

use super::atomic::{Add, Call, Calls, Exchange, Load, Store, Swap};
use super::owned::{Seen, name_of, opened};
use super::{N0, N1, N2, keep, shared};
use farfield_check::parts::{comes_of_faults, goes_on, is_decided, patiently};
use farfield_check::{Cluster, Faults, Log, Scenario, crashed, was_paused};

pub(super) fn scenarios() -> Vec<Scenario> {
    let mut all = vec![atomic_cut_short(), atomic_home_dies(), atomic_home_is_cut_off()];
    all.extend([shared_cut_short(), shared_pusher_dies(), shared_pusher_is_cut_off(), shared_reader_dies()]);
    all.extend([owned_cut_short(TearCheck::Guards), owned_cut_short(TearCheck::Checksum)]);
    all.extend(owned_owner_goes());
    all.extend([owned_reader_dies(), sst_owner_dies(), sst_owner_is_cut_off()]);
    all
}

/// The fault of a scenario.
#[derive(Clone, Copy)]
enum Goes {
    /// This node may die.
    Dies(usize),
    /// Node 0 may be cut off for a while. The nodes decide which of them is evicted; it may be another.
    IsCutOff,
}
use Goes::{Dies, IsCutOff};

impl Goes {
    fn scenario(self, name: &str, about: &str, nodes: usize, body: fn(&Cluster, Goes) -> Result<()>) -> Scenario {
        let scenario = Scenario::new(name, about, nodes, move |cluster| body(cluster, self));
        match self {
            Dies(node) => scenario.faults(Faults::new().crashes(1).of([node])),
            IsCutOff => scenario.rule(DeathRule::Majority).faults(Faults::new().cuts(1).side([0])),
        }
    }

    /// Retries after a timeout that this fault may cause. It is unknown whether a node that may be cut off will ever
    /// answer.
    fn patiently<T>(self, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        match self {
            Dies(_) => patiently(attempt),
            IsCutOff => attempt(),
        }
    }

    /// Checks that this fault may cause the error, and that the error names the dead node.
    fn excuses(self, error: &Error) {
        match self {
            Dies(_) if error.is_timeout() && was_paused() => {}
            Dies(node) => assert!(crashed(node) && error.is_gone() && names(error, node), "{error}"),
            IsCutOff => {
                assert!(comes_of_faults(error) && (error.node().is_some() || !error.is_unreachable()), "{error}")
            }
        }
    }
}

fn names(error: &Error, node: usize) -> bool {
    error.node() == Some(NodeId(node as u16))
}

/// The nodes that continue after all has been decided.
fn those_left(nodes: &[Node]) -> Result<Vec<usize>> {
    let left = || (0..nodes.len()).filter(|node| goes_on(&nodes[*node])).collect::<Vec<_>>();
    let Some(first) = left().first().copied() else { return Ok(Vec::new()) };
    let ep = nodes[first].endpoint()?;
    // Time passes when all nodes have received all messages.
    let heard = ep.block_on(ep.wait_until(ep.now() + Duration::from_secs(2), || None::<()>));
    assert!(heard.is_err());
    let is_one_epoch =
        || left().iter().all(|node| is_decided(&nodes[*node]) && nodes[*node].epoch() == nodes[left()[0]].epoch());
    ep.block_on(ep.wait_until(Instant::NEVER, || is_one_epoch().then_some(())))?;
    Ok(left())
}

/// The result of a remaining node's operation on another node: an answer if that node remains, too, else an error that
/// names the dead node.
fn told<T>(left: &[usize], node: usize, result: Result<T>) -> Option<T> {
    match result {
        Ok(_) if !left.contains(&node) => panic!("n{node} is gone, and has answered"),
        Err(error) if left.contains(&node) => panic!("n{node} is there: {error}"),
        Err(error) => {
            assert!(error.is_gone() && names(&error, node), "{error}");
            None
        }
        Ok(value) => Some(value),
    }
}

// ---- AtomicVar ----------------------------------------------------------------------------------------------------

/// Calls on a word that is stored on a node that may die. Those with an answer take effect one after the other; those
/// without may have happened. After a call has failed, all later ones fail.
fn atomic(cluster: &Cluster, goes: Goes, users: &[(usize, &'static [Call])]) -> Result<()> {
    let vars = keep(cluster, cluster.on_each(|node| AtomicVar::open(node, "v", N0))?);
    let history = Calls(cluster.log());
    for (user, (node, calls)) in users.iter().copied().enumerate() {
        let (vars, history) = (Rc::clone(&vars), history.clone());
        cluster.thread(node, "user", move |ep| {
            let mut has_failed = false;
            for call in calls {
                match history.make(user as u32, *call, &vars[node], ep) {
                    Ok(()) => assert!(!has_failed, "a call is answered by who was out of reach"),
                    Err(error) => {
                        goes.excuses(&error);
                        has_failed = true;
                    }
                }
            }
            Ok(())
        });
    }
    let nodes = cluster.nodes();
    cluster.at_end(move || {
        let left = those_left(&nodes)?;
        for node in &left {
            told(&left, 0, history.make(100 + *node as u32, Load, &vars[*node], &nodes[*node].endpoint()?));
        }
        history.assert_linearizable();
        Ok(())
    });
    Ok(())
}

/// `NAR → NAW` of a node when the word's home dies.
fn atomic_cut_short() -> Scenario {
    let about = "an addition to a word whose home dies is done, or not; an error stays one";
    let body = |cluster: &Cluster, goes| atomic(cluster, goes, &[(0, &[Add(1)]), (1, &[Add(1), Load])]);
    Dies(0).scenario("atomic/cut-short", about, 2, body).medium()
}

fn atomic_home_dies() -> Scenario {
    Dies(0).scenario("atomic/home-dies", "calls to a word whose home dies are done, or not", 3, |cluster, goes| {
        atomic(cluster, goes, &[(0, &[Add(1)]), (1, &[Store(10), Add(2)]), (2, &[Exchange(10, 20), Load])])?;
        waits_for_change(cluster, goes)
    })
}

/// A node that is cut off may use its own word until it learns of its eviction.
fn atomic_home_is_cut_off() -> Scenario {
    IsCutOff.scenario("atomic/home-cut", "calls to a word that is cut off are done, or not", 3, |cluster, goes| {
        atomic(cluster, goes, &[(0, &[Add(1), Load]), (1, &[Swap(10), Load]), (2, &[Add(2), Load])])?;
        waits_for_change(cluster, goes)
    })
}

/// A thread that waits for a word's first change sees it, or gets an error that names the dead node.
fn waits_for_change(cluster: &Cluster, goes: Goes) -> Result<()> {
    let vars = keep(cluster, cluster.on_each(|node| AtomicVar::open(node, "waited-for", N0))?);
    let writes = Rc::clone(&vars);
    cluster.thread(2, "writes", move |ep| {
        let written = ep.block_on(writes[2].fetch_add(ep, 7));
        written.map_or_else(|error| goes.excuses(&error), drop);
        Ok(())
    });
    cluster.thread(1, "waits", move |ep| {
        match goes.patiently(|| ep.block_on(vars[1].wait_change(ep, 0, ep.deadline()))) {
            Ok(seen) => assert_eq!(seen, 7, "a value that nobody wrote"),
            Err(error) => goes.excuses(&error),
        }
        Ok(())
    });
    Ok(())
}

// ---- SharedVar ----------------------------------------------------------------------------------------------------

/// Node 0 pushes versions of `x`. All others load their copies, and pull versions of `y`, which node 0 only stores. The
/// remaining nodes use `x` again in the end.
fn pushes(cluster: &Cluster, goes: Goes, versions: u64, pulls: usize) -> Result<()> {
    let vars = shared::<2>(cluster)?;
    let nodes = cluster.nodes();
    let is_fenced = Rc::new(Cell::new(false));
    let (pushed, fenced, others) = (Rc::clone(&vars), Rc::clone(&is_fenced), nodes[0].others().collect::<Vec<_>>());
    cluster.thread(0, "pushes", move |ep| {
        let [x, y] = &pushed[0];
        let push_all = async || {
            for version in 1..=versions {
                y.store(version);
                x.store(version);
                x.push_all(ep).await?;
            }
            x.fence(ep, others.clone()).await
        };
        match ep.block_on(push_all()) {
            Ok(()) => fenced.set(true),
            Err(error) => goes.excuses(&error),
        }
        Ok(())
    });
    let last: Log<(usize, u64)> = cluster.log();
    for node in 1..nodes.len() {
        let (vars, last) = (Rc::clone(&vars), last.clone());
        cluster.thread(node, "reads", move |ep| {
            let [x, y] = &vars[node];
            let (mut loaded, mut pulled) = (Seen::up_to(versions), Seen::up_to(versions));
            (0..2).for_each(|_| loaded.word(x.load()));
            for _ in 0..pulls {
                match ep.block_on(y.pull(ep, N0)) {
                    Ok(version) => pulled.word(version),
                    Err(error) => {
                        goes.excuses(&error);
                        pulled.word(y.load());
                    }
                }
            }
            last.push((node, loaded.last));
            Ok(())
        });
    }
    cluster.at_end(move || {
        for (node, last) in last.take() {
            let mut seen = Seen { newest: versions, last };
            seen.word(vars[node][0].load());
            assert!(!is_fenced.get() || seen.last == versions, "what was fenced is not there");
        }
        let left = those_left(&nodes)?;
        for node in left.iter().copied().filter(|node| *node != 0) {
            let (ep, x, number) = (nodes[node].endpoint()?, &vars[node][0], 100 + node as u64);
            let before = x.load();
            match told(&left, 0, ep.block_on(x.pull(&ep, N0))) {
                Some(pulled) => assert!(pulled >= before, "what was pushed is not where it was pushed from"),
                None => assert_eq!(x.load(), before, "a pull that has failed has changed the copy"),
            }
            x.store(number);
            for other in (0..nodes.len()).filter(|other| *other != node) {
                told(&left, other, ep.block_on(x.push(&ep, [NodeId(other as u16)])));
            }
            for other in &left {
                ep.block_on(x.fence(&ep, [NodeId(*other as u16)]))?;
                assert_eq!(vars[*other][0].load(), number, "n{other} is left, and did not get it");
            }
        }
        Ok(())
    });
    Ok(())
}

/// `NRW` of a push from a node that dies, and `NRR` of a pull from that node.
fn shared_cut_short() -> Scenario {
    let about = "a word that is pushed and pulled while its node dies is one that it has stored";
    Dies(0).scenario("shared/cut-short", about, 2, |cluster, goes| pushes(cluster, goes, 1, 1)).medium()
}

fn shared_pusher_dies() -> Scenario {
    let about = "copies of the survivors stay when who pushes dies, and can be used again";
    Dies(0).scenario("shared/pusher-dies", about, 3, |cluster, goes| pushes(cluster, goes, 2, 2))
}

fn shared_pusher_is_cut_off() -> Scenario {
    let about = "copies of those who are left stay when who pushes is cut off, and can be used again";
    IsCutOff.scenario("shared/pusher-cut", about, 3, |cluster, goes| pushes(cluster, goes, 2, 2))
}

/// A push names the dead node in its error, and all other nodes get the value.
fn shared_reader_dies() -> Scenario {
    let about = "a push to one that dies names it, and the others get it";
    Dies(1).scenario("shared/reader-dies", about, 3, |cluster, goes| {
        let vars: Rc<Vec<[SharedVar<u64>; 1]>> = shared(cluster)?;
        let [pushed, read, at_end] = [(); 3].map(|()| Rc::clone(&vars));
        cluster.thread(0, "pushes", move |ep| {
            let [x] = &pushed[0];
            for version in 1..=3 {
                x.store(version);
                for done in [ep.block_on(x.push_all(ep)), ep.block_on(x.fence(ep, [N1, N2]))] {
                    done.unwrap_or_else(|error| goes.excuses(&error));
                }
            }
            Ok(())
        });
        cluster.thread(2, "reads", move |_| {
            let mut seen = Seen::up_to(3);
            (0..3).for_each(|_| seen.word(read[2][0].load()));
            Ok(())
        });
        cluster.at_end(move || {
            assert_eq!(at_end[2][0].load(), 3, "the last push was lost");
            Ok(())
        });
        Ok(())
    })
}

// ---- OwnedVar -----------------------------------------------------------------------------------------------------

/// The type of a versioned value.
trait Version: Plain {
    fn of(version: u64) -> Self;
    /// A value that was read.
    fn seen(self, seen: &mut Seen);
}

impl Version for u64 {
    fn of(version: u64) -> u64 {
        version
    }

    fn seen(self, seen: &mut Seen) {
        seen.word(self);
    }
}

impl Version for [u64; 2] {
    fn of(version: u64) -> [u64; 2] {
        [version; 2]
    }

    fn seen(self, seen: &mut Seen) {
        seen.pair(self);
    }
}

/// A reader's findings on a value with an owner that may die.
struct Found {
    node: usize,
    seen: Seen,
    /// An error reported that its copy will never be whole again.
    is_torn: bool,
    /// The value at the time when no put of the owner could land any more.
    rest: Option<Option<u64>>,
}

/// Node 0 owns a value, and pushes versions of it. The first of several is fenced. A push that is cut short leaves each
/// copy old, new or torn, and a torn copy is never returned as a value.
fn owns<V: Version>(cluster: &Cluster, goes: Goes, wholeness: TearCheck, versions: u64, waits: bool) -> Result<()> {
    let vars = keep(cluster, cluster.on_each(move |node| OwnedVar::<V>::open_with(node, "v", N0, wholeness))?);
    let nodes = cluster.nodes();
    let (mut writer, others) = (vars[0].writer()?, nodes[0].others().collect::<Vec<_>>());
    let fenced = Rc::new(Cell::new(0));
    let is_fenced = Rc::clone(&fenced);
    cluster.thread(0, "owner", move |ep| {
        for version in 1..=versions {
            writer.store(V::of(version));
            ep.block_on(writer.push(ep)).unwrap_or_else(|error| goes.excuses(&error));
            if version < versions {
                match ep.block_on(ep.global_fence(others.iter().copied())) {
                    Ok(()) => is_fenced.set(version),
                    Err(error) => goes.excuses(&error.into()),
                }
            }
        }
        Ok(())
    });
    let found: Log<Found> = cluster.log();
    for node in 1..nodes.len() {
        let (var, found, me) = (vars[node].clone(), found.clone(), nodes[node].clone());
        cluster.thread(node, "reads", move |ep| {
            let (mut seen, mut pulled, mut is_torn) = (Seen::up_to(versions), Seen::up_to(versions), false);
            var.try_load().into_iter().for_each(|value| value.seen(&mut seen));
            if waits {
                var.try_load().into_iter().for_each(|value| value.seen(&mut seen));
                match goes.patiently(|| ep.block_on(var.load(ep))) {
                    Ok(value) => value.seen(&mut seen),
                    Err(error) => {
                        goes.excuses(&error);
                        is_torn = error.is_gone() && names(&error, 0);
                    }
                }
                match goes.patiently(|| ep.block_on(var.pull(ep))) {
                    Ok(value) => value.seen(&mut pulled),
                    Err(error) => goes.excuses(&error),
                }
            }
            let is_over = me.status_of(N0) == Some(MemberStatus::Evicted);
            let mut look = || {
                var.try_load().map(|value| {
                    value.seen(&mut seen);
                    seen.last
                })
            };
            let rest = is_over.then(&mut look);
            found.push(Found { node, seen, is_torn, rest });
            Ok(())
        });
    }
    cluster.at_end(move || {
        let left = those_left(&nodes)?;
        for Found { node, mut seen, is_torn, rest } in found.take() {
            let value = vars[node].try_load().map(|value| {
                value.seen(&mut seen);
                seen.last
            });
            assert!(value.is_none_or(|value| value >= fenced.get()), "what was fenced is not there");
            if left.contains(&node) {
                assert!(!is_torn || value.is_none(), "a copy that was torn for good is whole");
                assert!(rest.is_none_or(|rest| rest == value), "something landed later than all was over");
                assert!(!left.contains(&0) || value == Some(versions), "the last push is not there, or not whole");
            }
        }
        for node in left.iter().copied().filter(|node| *node != 0) {
            let ep = nodes[node].endpoint()?;
            if let Err(error) = ep.block_on(vars[node].load(&ep)) {
                assert!(!left.contains(&0) && error.is_gone() && names(&error, 0), "{error}");
                assert!(vars[node].try_load().is_none());
            }
            told(&left, 0, ep.block_on(vars[node].pull(&ep)));
        }
        Ok(())
    });
    Ok(())
}

/// `NRW`s of the parts of a value, of which only the first land, and of the last only some words. For
/// `owned-dead-awaited`.
fn owned_cut_short(wholeness: TearCheck) -> Scenario {
    let about = "a push that ends in the middle leaves the old value, the new one, or none";
    let body = match wholeness {
        TearCheck::Guards => |cluster: &Cluster, goes| owns::<[u64; 2]>(cluster, goes, TearCheck::Guards, 1, false),
        TearCheck::Checksum => |cluster: &Cluster, goes| owns::<[u64; 2]>(cluster, goes, TearCheck::Checksum, 1, false),
    };
    let scenario = Dies(0).scenario(&name_of(wholeness, "cut-short"), about, 2, body);
    match wholeness {
        TearCheck::Guards => scenario.medium().kills(&["owned-dead-awaited"]),
        TearCheck::Checksum => scenario.small(),
    }
}

/// An owner of every kind of image dies, or is cut off.
fn owned_owner_goes() -> Vec<Scenario> {
    type Body = fn(&Cluster, Goes) -> Result<()>;
    let images: [(&str, Body); 3] = [
        ("word", |cluster, goes| owns::<u64>(cluster, goes, TearCheck::Guards, 2, true)),
        ("guards", |cluster, goes| owns::<[u64; 2]>(cluster, goes, TearCheck::Guards, 2, true)),
        ("checksum", |cluster, goes| owns::<[u64; 2]>(cluster, goes, TearCheck::Checksum, 2, true)),
    ];
    let of_image = |(image, body): (&str, Body)| {
        let about = "copies stay when their owner dies: each whole, or torn for good";
        let about_cut = "copies stay when their owner is cut off: each whole, or torn for good";
        [
            Dies(0).scenario(&format!("owned/{image}-owner-dies"), about, 3, body),
            IsCutOff.scenario(&format!("owned/{image}-owner-cut"), about_cut, 3, body),
        ]
    };
    images.into_iter().flat_map(of_image).collect()
}

/// For `owned-push-ends-at-dead`.
fn owned_reader_dies() -> Scenario {
    let about = "a push to one that dies names it, and the others get it";
    let scenario = Dies(1).scenario("owned/reader-dies", about, 3, |cluster, goes| {
        let vars = opened(cluster, TearCheck::Guards)?;
        let (reader, at_end) = (Rc::clone(&vars), Rc::clone(&vars));
        let mut writer = vars[0].writer()?;
        cluster.thread(0, "owner", move |ep| {
            for version in 1..=3 {
                writer.store([version; 2]);
                ep.block_on(writer.push(ep)).unwrap_or_else(|error| goes.excuses(&error));
            }
            Ok(())
        });
        cluster.thread(2, "reads", move |_| {
            let mut seen = Seen::up_to(3);
            (0..2).filter_map(|_| reader[2].try_load()).for_each(|value| seen.pair(value));
            Ok(())
        });
        cluster.at_end(move || {
            assert_eq!(at_end[2].try_load(), Some([3; 2]), "the last push is not there, or not whole");
            Ok(())
        });
        Ok(())
    });
    scenario.kills(&["owned-push-ends-at-dead"])
}

// ---- Sst ----------------------------------------------------------------------------------------------------------

/// Each node pushes versions of its row, and reads all rows. The failing node does not disturb the rows of the others.
fn rows(cluster: &Cluster, goes: Goes) -> Result<()> {
    const VERSIONS: u64 = 2;
    let tables = keep(cluster, cluster.on_each(|node| Sst::<[u64; 2]>::open(node, "t"))?);
    let last: Log<(usize, [u64; 3])> = cluster.log();
    for me in 0..3 {
        let (tables, last) = (Rc::clone(&tables), last.clone());
        let mut writer = tables[me].writer(me)?;
        cluster.thread(me, "owner", move |ep| {
            let mut seen = [(); 3].map(|()| Seen::up_to(VERSIONS));
            for version in 1..=VERSIONS {
                writer.store([version; 2]);
                ep.block_on(writer.push(ep)).unwrap_or_else(|error| goes.excuses(&error));
                for (row, seen) in tables[me].rows().zip(&mut seen) {
                    row.try_load().into_iter().for_each(|value| seen.pair(value));
                }
            }
            assert_eq!(seen[me].last, VERSIONS, "its own row is another's");
            match goes.patiently(|| ep.block_on(tables[me].row(0).load(ep))) {
                Ok(value) => seen[0].pair(value),
                Err(error) => goes.excuses(&error),
            }
            last.push((me, seen.map(|seen| seen.last)));
            Ok(())
        });
    }
    let nodes = cluster.nodes();
    cluster.at_end(move || {
        let left = those_left(&nodes)?;
        for (node, last) in last.take().into_iter().filter(|(node, _)| left.contains(node)) {
            for (row, last) in last.into_iter().enumerate() {
                let value = tables[node].row(row).try_load();
                value.into_iter().for_each(|value| Seen { newest: VERSIONS, last }.pair(value));
                assert!(!left.contains(&row) || value == Some([VERSIONS; 2]), "row {row} on n{node}: {value:?}");
            }
        }
        Ok(())
    });
    Ok(())
}

fn sst_owner_dies() -> Scenario {
    Dies(0).scenario("sst/owner-dies", "the row of a dead owner stays, the others go on", 3, rows)
}

fn sst_owner_is_cut_off() -> Scenario {
    let about = "the row of an owner that is cut off stays, the others go on";
    IsCutOff.scenario("sst/owner-cut", about, 3, rows)
}
