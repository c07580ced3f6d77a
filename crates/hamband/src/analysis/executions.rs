//! Random executions of the paper's abstract semantics (§3.2, figure 5), with the relations that the analysis finds:
//! every state satisfies the invariant (lemma 1), every call is permissible wherever it is applied, and replicas with
//! the same calls have the same state (lemma 2). With a relation left out, an execution shows why it is needed.

use super::exhaustive::{Call, Datum, Domain};
use super::graph::{Options, analyse};
use super::specification::Specification;

const PROCESSES: usize = 3;
const STEPS: usize = 16;

/// Numbers that depend on a seed (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ x >> 31) % end as u64) as usize
    }
}

/// The coordination that a run has.
#[derive(Clone)]
struct Relations {
    conflicts: Vec<(usize, usize)>,
    dependencies: Vec<(usize, usize)>,
}

impl Relations {
    fn conflict(&self, a: usize, b: usize) -> bool {
        self.conflicts.contains(&(a.min(b), a.max(b)))
    }
}

/// A call that was issued: its method, its arguments, its process, and the calls there before it.
struct Issued<'a> {
    method: usize,
    call: Call<'a>,
    before: Vec<usize>,
}

/// A replicated execution: each process has a state, and the calls that lead to it.
struct World<'a> {
    domain: &'a Domain<'a>,
    relations: &'a Relations,
    issued: Vec<Issued<'a>>,
    states: Vec<Vec<Datum>>,
    histories: Vec<Vec<usize>>,
}

impl<'a> World<'a> {
    fn new(domain: &'a Domain<'a>, relations: &'a Relations) -> World<'a> {
        let initial: Vec<Datum> =
            domain.spec.variables.iter().map(|variable| domain.inside(&[], None).value(&variable.initial)).collect();
        let (states, histories) = (vec![initial; PROCESSES], vec![vec![]; PROCESSES]);
        World { domain, relations, issued: vec![], states, histories }
    }

    /// The rule CALL, if its conditions hold.
    fn call(&mut self, process: usize, method: usize, call: &Call<'a>) -> Result<(), String> {
        let has_conflicts = self.histories.iter().flatten().all(|other| {
            self.histories[process].contains(other) || !self.relations.conflict(method, self.issued[*other].method)
        });
        let is_new = self.issued.iter().all(|other| Domain::are_different(call, &other.call));
        if !has_conflicts || !is_new || !self.domain.permissible(&self.states[process], call) {
            return Ok(());
        }
        self.issued.push(Issued { method, call: call.clone(), before: self.histories[process].clone() });
        self.apply(process, self.issued.len() - 1)
    }

    /// The rule PROP, if its conditions hold; whether they did.
    fn propagate(&mut self, process: usize, call: usize) -> Result<bool, String> {
        let here = &self.histories[process];
        let Issued { method, before, .. } = &self.issued[call];
        let is_ordered = self.histories.iter().filter_map(|history| {
            let place = history.iter().position(|other| *other == call)?;
            Some(&history[..place])
        });
        let is_ordered = is_ordered
            .flatten()
            .all(|other| here.contains(other) || !self.relations.conflict(*method, self.issued[*other].method));
        let depends = |other: &usize| self.relations.dependencies.contains(&(*method, self.issued[*other].method));
        if here.contains(&call) || !is_ordered || before.iter().any(|other| depends(other) && !here.contains(other)) {
            return Ok(false);
        }
        self.apply(process, call).map(|()| true)
    }

    fn apply(&mut self, process: usize, call: usize) -> Result<(), String> {
        let issued = &self.issued[call].call;
        let is_permissible = self.domain.permissible(&self.states[process], issued);
        self.states[process] = self.domain.apply(&self.states[process], issued);
        self.histories[process].push(call);
        if is_permissible && self.domain.integrity(&self.states[process]) {
            Ok(())
        } else {
            Err(format!("integrity: {}{:?} in {:?}", issued.0.name, issued.1, self.states[process]))
        }
    }

    fn converges(&self) -> Result<(), String> {
        for other in 1..PROCESSES {
            let sorted = |process: usize| {
                let mut history = self.histories[process].clone();
                history.sort_unstable();
                history
            };
            if sorted(0) == sorted(other) && self.states[0] != self.states[other] {
                return Err(format!("convergence: {:?} and {:?}", self.states[0], self.states[other]));
            }
        }
        Ok(())
    }
}

/// One execution: calls and propagations at random, and then all propagations that are left.
fn run(domain: &Domain<'_>, relations: &Relations, seed: u64) -> Result<usize, String> {
    let mut random = Random(seed);
    let calls: Vec<_> = (0..domain.spec.updates.len()).map(|method| domain.calls(method)).collect();
    let mut world = World::new(domain, relations);
    for _ in 0..STEPS {
        let process = random.below(PROCESSES);
        if random.below(2) == 0 || world.issued.is_empty() {
            let method = random.below(calls.len());
            world.call(process, method, &calls[method][random.below(calls[method].len())])?;
        } else {
            world.propagate(process, random.below(world.issued.len()))?;
        }
        world.converges()?;
    }
    let mut goes_on = true;
    while goes_on {
        goes_on = false;
        for process in 0..PROCESSES {
            for call in 0..world.issued.len() {
                goes_on |= world.propagate(process, call)?;
            }
        }
    }
    world.converges()?;
    if world.histories.iter().all(|history| history.len() == world.issued.len()) {
        Ok(world.issued.len())
    } else {
        Err("a call cannot be propagated".to_owned())
    }
}

fn specification(name: &str) -> Specification {
    let path = format!("{}/types/{name}.wrdt", env!("CARGO_MANIFEST_DIR"));
    Specification::parse(&path, &std::fs::read_to_string(&path).expect(&path)).expect(name)
}

fn found(spec: &Specification) -> Relations {
    let analysis = analyse(spec, &Options::default()).expect("apt-get install z3");
    Relations { conflicts: analysis.conflicts, dependencies: analysis.dependencies }
}

/// The first failure among so many executions, or how many calls they had.
fn failure(spec: &Specification, relations: &Relations, executions: u64) -> Result<usize, String> {
    let domain = Domain { spec };
    (0..executions).map(|seed| run(&domain, relations, seed)).sum()
}

#[test]
fn executions_with_the_relations_keep_the_invariant_and_converge() {
    let names = ["account", "auction", "bank_map", "counter", "courseware", "gset", "gset_by_element", "lww_register"];
    for name in names.iter().chain(&["movie", "mv_register", "or_set", "pn_counter", "project_management"]) {
        let spec = specification(name);
        match failure(&spec, &found(&spec), 200) {
            Ok(calls) => assert!(calls > 200, "{name}: {calls} calls only"),
            Err(why) => panic!("{name}: {why}"),
        }
    }
}

#[test]
fn no_relation_of_the_accounts_and_the_schemata_can_be_left_out() {
    for name in ["account", "bank_map", "courseware", "project_management", "movie", "or_set"] {
        let spec = specification(name);
        let all = found(&spec);
        for n in 0..all.conflicts.len() {
            let mut fewer = all.clone();
            let edge = fewer.conflicts.remove(n);
            assert!(failure(&spec, &fewer, 5000).is_err(), "{name} without the conflict {edge:?}");
        }
        for n in 0..all.dependencies.len() {
            let mut fewer = all.clone();
            let edge = fewer.dependencies.remove(n);
            // A conflict orders both calls already.
            let is_ordered = all.conflict(edge.0, edge.1);
            assert!(is_ordered || failure(&spec, &fewer, 5000).is_err(), "{name} without the dependency {edge:?}");
        }
    }
}
