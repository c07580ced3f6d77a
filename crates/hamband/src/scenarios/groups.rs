//! Several synchronisation groups, each with a leader of its own, of which one dies.

use std::cell::RefCell;
use std::rc::Rc;

use farfield_check::parts::{Excuse, goes_on, patiently};
use farfield_check::{Faults, Scenario};
use farfield_core::Result;
use farfield_fabric::DeathRule;

use super::OPTIONS;
use super::till::{Ledgers, LedgersUpdate};
use crate::Replicated;

pub(super) fn scenarios() -> Vec<Scenario> {
    let dies = |name, victims: &'static [usize]| {
        two_groups(name, victims).faults(Faults::new().crashes(1).of(victims.to_vec()))
    };
    vec![
        two_groups("hamband/two-groups", &[]),
        dies("hamband/first-leader-dies", &[0]),
        dies("hamband/second-leader-dies", &[1]),
        two_groups("hamband/second-leader-decided", &[1])
            .rule(DeathRule::Majority)
            .faults(Faults::new().crashes(1).cuts(1).of([1]).side([1])),
    ]
}

/// The calls of all nodes: which ledger, the value, and whether it was acknowledged.
type Calls = Rc<RefCell<Vec<(bool, u8, bool)>>>;

/// Calls of each node on each group.
const EACH: u8 = 2;

fn update_of(of_left: bool, value: u8) -> LedgersUpdate {
    if of_left { LedgersUpdate::Left(value) } else { LedgersUpdate::Right(value) }
}

/// The calls in a node's logs, whether it knows that they are decided or not.
fn logged(ledgers: &Replicated<Ledgers>) -> Vec<LedgersUpdate> {
    let shared = &ledgers.0.shared;
    let local = shared.local.lock();
    let entries = shared.process.orders.iter().flat_map(|order| order.commands.log().entries_here());
    entries.filter_map(|entry| local.replica.decode_ordered(&entry).ok()?.call).collect()
}

/// All nodes write both ledgers, which other nodes lead. A leader may die: both go on.
fn two_groups(name: &str, victims: &'static [usize]) -> Scenario {
    let about = "each group has an order and a leader of its own, and goes on when a leader dies";
    Scenario::new(name, about, 3, move |cluster| {
        let calls = Calls::default();
        let members = cluster.on_each(|node| {
            let ledgers = Replicated::open(node, "ledgers", Ledgers::default(), OPTIONS.clone())?;
            let writer = Rc::new(RefCell::new(ledgers.writer()?));
            Ok((ledgers, writer))
        })?;
        let (kept, all, nodes) = (members.clone(), Rc::clone(&calls), cluster.nodes());
        cluster.at_end(move || {
            // A cut may cost a node its place that is no victim. Then the others end at once, and may not know yet that
            // its calls are decided. But they have them in their logs, if most of them live.
            let ends_early = (0..3).any(|me| !victims.contains(&me) && !goes_on(&nodes[me]));
            let live: Vec<_> =
                nodes.iter().zip(&kept).filter(|(node, _)| goes_on(node)).map(|(_, (ledgers, _))| ledgers).collect();
            let logged: Vec<LedgersUpdate> =
                if ends_early { live.iter().flat_map(|ledgers| logged(ledgers)).collect() } else { Vec::new() };
            let is_majority = live.len() >= 2;
            let states: Vec<Ledgers> =
                live.iter().map(|ledgers| ledgers.query(Ledgers::clone)).collect::<Result<_>>()?;
            for of_left in [true, false] {
                let order = |state: &Ledgers| if of_left { state.left.clone() } else { state.right.clone() };
                let orders: Vec<Vec<u8>> = states.iter().map(order).collect();
                let Some(longest) = orders.iter().max_by_key(|order| order.len()) else { continue };
                assert!(orders.iter().all(|order| longest.starts_with(order)), "{orders:?}");
                for (_, value, is_acknowledged) in all.borrow().iter().filter(|call| call.0 == of_left) {
                    let times = longest.iter().filter(|other| *other == value).count();
                    let is_logged = logged.contains(&update_of(of_left, *value));
                    let may_lack = !is_acknowledged || ends_early && (is_logged || !is_majority);
                    assert!(
                        times == 1 || times == 0 && may_lack,
                        "{value} is {times} times in {longest:?}, {logged:?}"
                    );
                }
            }
            drop(kept);
            Ok(())
        });
        let has_given_up = Rc::new(RefCell::new(false));
        for (me, (ledgers, writer)) in members.into_iter().enumerate() {
            let (calls, node, gives_up) = (Rc::clone(&calls), cluster.node(me), Rc::clone(&has_given_up));
            cluster.thread(me, "calls", move |ep| {
                let excuse = Excuse::now();
                let call = |of_left: bool, value: u8| -> Result<()> {
                    let at = calls.borrow().len();
                    calls.borrow_mut().push((of_left, value, false));
                    let done = ep.block_on(writer.borrow_mut().update(ep, &update_of(of_left, value)))?;
                    assert_eq!(done, Ok(()), "it is permissible");
                    calls.borrow_mut()[at].2 = true;
                    Ok(())
                };
                for value in (0..EACH).map(|at| 10 * (1 + me as u8) + at) {
                    for of_left in [me == 1, me != 1] {
                        match call(of_left, value) {
                            // One that is cut off finds out that it counts as dead.
                            Err(_) if victims.contains(&me) || !goes_on(&node) => {
                                // A cut may cost another node its place, and the rest does not wait for its calls.
                                *gives_up.borrow_mut() |= !victims.contains(&me);
                                return Ok(());
                            }
                            Err(error) if error.is_timeout() && excuse.is_given() => {
                                *gives_up.borrow_mut() = true;
                                return Ok(());
                            }
                            done => done?,
                        }
                    }
                }
                // Those of the others that cannot die.
                let live = (0..3).filter(|of| !victims.contains(of)).map(|of| of as u8).collect::<Vec<_>>();
                let of_live = |order: &[u8]| order.iter().filter(|value| live.contains(&(**value / 10 - 1))).count();
                let all = live.len() * usize::from(EACH);
                let is_over =
                    |state: &Ledgers| *gives_up.borrow() || of_live(&state.left) == all && of_live(&state.right) == all;
                let waited = patiently(|| ep.block_on(ledgers.wait_until(ep, ep.deadline(), is_over)));
                if *gives_up.borrow() || !goes_on(&node) { Ok(()) } else { waited }
            });
        }
        Ok(())
    })
}
