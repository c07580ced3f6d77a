//! The load of the baton for `chaos`: every node takes one of several batons again and again, adds one to a
//! word on another node, and passes it.

use std::collections::BTreeMap;
use std::time::Duration;

use farfield::fabric::{GroupKey, RemotePtr};
use farfield::toolkit::{ErrorContext, Object, ObjectBuilder};
use farfield::{Endpoint, Node, NodeId, Result};
use farfield_cli::{Failure, Load, Log, Observed, Setup, Work};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::Baton;

/// The load, for [`farfield_cli::Parts`].
pub const LOAD: Load = Load { name: "baton", open, judge };

/// The nodes that store batons in a generation: several, so that some outlive a death.
const HOMES_MAX: usize = 4;
/// At times a holder lingers before its put, so that some die there.
const LINGER: Duration = Duration::from_millis(3);

/// The calls of one turn, as they are logged.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
enum Call {
    Take {
        baton: u16,
    },
    /// Adds one to the sum; its result is the sum before.
    Add {
        baton: u16,
        term: u64,
    },
    Pass {
        baton: u16,
        term: u64,
    },
}

/// One node's thread.
struct Runner {
    /// Those with living nodes, as far as is known.
    courses: Vec<Course>,
    rng: SmallRng,
}

/// A baton, and the sum that it protects.
struct Course {
    number: u16,
    baton: Baton,
    sum: RemotePtr<u64>,
    /// Announces the sum, and keeps it.
    object: Object,
}

fn open(setup: &Setup<'_>) -> Result<Box<dyn Work>> {
    let Setup { node, path, members, seed } = *setup;
    let mut courses = Vec::new();
    for (at, home) in members.iter().copied().enumerate().take(HOMES_MAX) {
        // One that needs its home only, and one that needs the next node, too.
        for keeper in [home, members[(at + 1) % members.len()]] {
            let number = courses.len() as u16;
            let baton = Baton::open(node, &format!("{path}/{number}"), home)?;
            let object = open_sum(node, &format!("{path}/{number}/sum"), keeper)?;
            let sum = object.remote(keeper, "sum")?;
            courses.push(Course { number, baton, sum, object });
        }
    }
    Ok(Box::new(Runner { courses, rng: SmallRng::seed_from_u64(seed) }))
}

/// A word on the keeper.
fn open_sum(node: &Node, path: &str, keeper: NodeId) -> Result<Object> {
    let mut opening = ObjectBuilder::new(node, path, "Sum");
    if node.id() == keeper {
        opening = opening.words("sum", node.alloc_words(GroupKey::DATA, 1, &[])?);
    }
    opening.require_regions(move |peer| if peer == keeper { vec![("sum".into(), 8)] } else { vec![] }).open()
}

impl Course {
    async fn add(&self, ep: &Endpoint, linger: Duration) -> Result<u64> {
        let path = self.object.path();
        let seen = ep.get(self.sum).await.of(path)?;
        std::thread::sleep(linger);
        ep.put_value(self.sum, seen + 1).await.of(path)?;
        Ok(seen)
    }

    /// One turn.
    fn run(&self, ep: &Endpoint, log: &Log<'_>, linger: Duration) -> Result<(), Failure> {
        let (baton, mut held) = (self.number, None);
        let take = async {
            let taken = self.baton.take(ep).await?;
            Ok(held.insert(taken).term())
        };
        let term = log.call(Call::Take { baton }, ep, take)?;
        let added = log.call(Call::Add { baton, term }, ep, self.add(ep, linger));
        let passed = held.map(|held| log.call(Call::Pass { baton, term }, ep, held.pass()));
        added.map(|_| ()).and(passed.unwrap_or(Ok(())))
    }
}

impl Work for Runner {
    fn step(&mut self, ep: &Endpoint, log: &Log<'_>) {
        if self.courses.is_empty() {
            return;
        }
        let at = self.rng.random_range(0..self.courses.len());
        let linger = if self.rng.random_bool(0.2) { LINGER } else { Duration::ZERO };
        if self.courses[at].run(ep, log, linger).is_err_and(|failure| failure.is_death()) {
            self.courses.swap_remove(at);
        }
    }
}

/// No two nodes hold a baton at a time, each term has one holder, and no addition is lost.
fn judge(observed: &Observed<'_>) -> Vec<String> {
    let mut violations = Vec::new();
    let calls = observed.calls::<Call, Option<u64>>();
    let deaths: BTreeMap<NodeId, u64> = observed.deaths().collect();
    let passes = calls.iter().filter_map(|call| match call.call {
        Call::Pass { baton, term } => Some(((baton, term), call.begin_ns)),
        _ => None,
    });
    let passed: BTreeMap<(u16, u64), u64> = passes.collect();
    // The terms in order, each with its holder and the time in which it surely held the baton.
    let mut terms: BTreeMap<(u16, u64), (NodeId, u64, u64)> = BTreeMap::new();
    let mut sums: BTreeMap<(u16, u64), u64> = BTreeMap::new();
    for call in &calls {
        let Some((at_ns, Ok(Some(result)))) = call.end else { continue };
        match call.call {
            Call::Take { baton } => {
                let died_ns = deaths.get(&call.node).copied().unwrap_or(u64::MAX);
                let until_ns = passed.get(&(baton, result)).copied().unwrap_or(u64::MAX).min(died_ns);
                if let Some((other, ..)) = terms.insert((baton, result), (call.node, at_ns, until_ns)) {
                    violations.push(format!("{other} and {} have both held {baton} in term {result}", call.node));
                }
            }
            Call::Add { baton, term } => {
                if let Some(other) = sums.insert((baton, result), term) {
                    violations.push(format!("the terms {other} and {term} of {baton} have both found {result}"));
                }
            }
            Call::Pass { .. } => {}
        }
    }
    for (((baton, term), held), ((same, later), next)) in terms.iter().zip(terms.iter().skip(1)) {
        if baton == same && held.2 > next.1 {
            violations.push(format!("{} held {baton} in term {term} when {} took it in {later}", held.0, next.0));
        }
    }
    violations
}
