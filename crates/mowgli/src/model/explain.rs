//! Why a pair is in a relation: the shortest path of pairs that a person knows by name, for each step of a model.
//!
//! Unions and closures are looked into, also where they have a name; other named relations are known by their names.

use std::cell::OnceCell;

use super::evaluate::{Depends, Step};
use super::*;
use crate::relation::Relation;

/// A pair of subevents, and the reason why the second follows the first.
///
/// ```
/// # use mowgli::{litmus::Test, model::Models, witness::{Answer, Edge, find}};
/// let text = "rdmawait t { x@1; z@2; } P0@1 { Put(d, z, x); Wait(d); Write(x, 1); } ~exists (z = 1)";
/// let test = Test::parse("t", text, &Models::builtin())?;
/// let Answer::Forbidden(_, cycle) = find(&test)? else { panic!("it is forbidden") };
/// let labels: Vec<&str> = cycle.edges.iter().map(|edge: &Edge| edge.label.as_str()).collect();
/// assert_eq!(labels, ["iso", "pfp", "ppo", "rfe"]);
/// assert_eq!(cycle.edges[3].to, cycle.edges[0].from); // back to the first one
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Edge {
    /// The first one, by number.
    pub from: usize,
    /// The second one.
    pub to: usize,
    /// A relation of a model; with `^-1` behind it, it leads from `to` to `from`.
    pub label: String,
}

/// What turns a name round.
const INVERSE: &str = "^-1";
/// Relations that are their own inverse.
const SYMMETRIC: [&str; 7] = ["ev", "loc", "obj", "tag", "int", "sn", "id"];

impl Edge {
    fn inverse(self) -> Edge {
        let label = match self.label.strip_suffix(INVERSE) {
            Some(label) => label.to_owned(),
            None if SYMMETRIC.contains(&self.label.as_str()) => self.label,
            None => self.label + INVERSE,
        };
        Edge { from: self.to, to: self.from, label }
    }
}

/// A path turned round.
fn inverse(path: Vec<Edge>) -> Vec<Edge> {
    path.into_iter().rev().map(Edge::inverse).collect()
}

/// How many edges lead from each subevent to each other at least.
#[derive(Clone, Debug)]
pub(crate) struct Lengths {
    count: usize,
    lengths: Vec<u16>,
}

/// No way leads there.
const NEVER: u16 = u16::MAX;

impl Lengths {
    /// One edge for each pair.
    pub(crate) fn of(relation: &Relation) -> Lengths {
        Lengths::new(relation.count(), |from, to| if relation.has(from, to) { 1 } else { NEVER })
    }

    fn new(count: usize, length: impl Fn(usize, usize) -> u16) -> Lengths {
        let lengths = (0..count * count).map(|at| length(at / count, at % count)).collect();
        Lengths { count, lengths }
    }

    /// The length of one way.
    pub(crate) fn get(&self, from: usize, to: usize) -> Option<u16> {
        Some(self.at(from, to)).filter(|length| *length != NEVER)
    }

    fn at(&self, from: usize, to: usize) -> u16 {
        self.lengths[from * self.count + to]
    }

    /// The shorter one of two ways.
    pub(crate) fn or(&self, other: &Lengths) -> Lengths {
        Lengths::new(self.count, |from, to| self.at(from, to).min(other.at(from, to)))
    }

    fn then(&self, other: &Lengths) -> Lengths {
        Lengths::new(self.count, |from, to| {
            let through = (0..self.count).map(|by| self.at(from, by).saturating_add(other.at(by, to)));
            through.min().unwrap_or(NEVER)
        })
    }

    /// Of those pairs only.
    fn within(&self, relation: &Relation) -> Lengths {
        Lengths::new(self.count, |from, to| if relation.has(from, to) { self.at(from, to) } else { NEVER })
    }

    /// One of these ways, or several.
    pub(crate) fn closure(&self) -> Lengths {
        let mut closure = self.clone();
        for by in 0..self.count {
            for from in 0..self.count {
                let first = closure.at(from, by);
                if first != NEVER {
                    for to in 0..self.count {
                        let length = first.saturating_add(closure.at(by, to));
                        let at = from * self.count + to;
                        closure.lengths[at] = closure.lengths[at].min(length);
                    }
                }
            }
        }
        closure
    }

    /// The shortest way that leads back: how long it is, and where it begins.
    pub(crate) fn shortest_back(&self) -> Option<(u16, usize)> {
        (0..self.count).filter_map(|at| Some((self.get(at, at)?, at))).min()
    }

    /// The ways that make up one of the closure: as many as there can be.
    pub(crate) fn hops(&self, closure: &Lengths, from: usize, to: usize) -> Vec<(usize, usize)> {
        let (mut hops, mut at) = (Vec::new(), from);
        loop {
            let left = closure.at(at, to);
            let after = |by: usize| if by == to { 0 } else { closure.at(by, to) };
            // A way of no length leads nowhere else.
            let is_on = |by: &usize| self.at(at, *by) > 0 && self.at(at, *by).saturating_add(after(*by)) == left;
            let next = (0..self.count).filter(is_on).min_by_key(|by| self.at(at, *by));
            let next = next.expect("a shortest way is made of shortest ways");
            hops.push((at, next));
            if next == to {
                return hops;
            }
            at = next;
        }
    }
}

/// A law that does not hold, and the shortest way to see it.
#[derive(Clone, Debug)]
pub(crate) struct Broken {
    pub(crate) length: u16,
    /// Which law, by number.
    pub(crate) law: usize,
    /// The pair that should not be.
    from: usize,
    to: usize,
}

/// The paths behind the worth of a model's steps in a candidate.
pub(crate) struct Paths<'a> {
    library: &'a Library,
    meaning: &'a Meaning,
    worths: &'a [Worth],
    lengths: Vec<OnceCell<Lengths>>,
}

impl<'a> Paths<'a> {
    pub(crate) fn new(library: &'a Library, meaning: &'a Meaning, worths: &'a [Worth]) -> Paths<'a> {
        Paths { library, meaning, worths, lengths: vec![OnceCell::new(); worths.len()] }
    }

    /// The lengths of the paths behind `so`.
    pub(crate) fn so(&self) -> &Lengths {
        self.lengths(self.meaning.so)
    }

    /// The path behind a pair of `so`.
    pub(crate) fn so_path(&self, from: usize, to: usize) -> Vec<Edge> {
        self.path(self.meaning.so, from, to)
    }

    /// The names that `so` is made of.
    pub(crate) fn parts(&self) -> Vec<String> {
        let (mut parts, mut open) = (Vec::new(), vec![self.meaning.so]);
        while let Some(step) = open.pop() {
            match &self.meaning.steps[step].0 {
                _ if self.name(step).is_some() => parts.extend(self.name(step)),
                Step::Or(a, b) | Step::Then(a, b) => open.extend([*a, *b]),
                Step::And(a, _) | Step::Minus(a, _) | Step::Plus(a) | Step::Star(a) | Step::Maybe(a) => open.push(*a),
                _ => {}
            }
        }
        parts
    }

    /// The law that breaks in the fewest steps; unless all is decided, of those that more chosen pairs cannot mend.
    pub(crate) fn broken(&self, is_final: bool) -> Option<Broken> {
        let laws = self.meaning.laws.iter().enumerate();
        let laws = laws.filter(|(_, law)| is_final || self.meaning.steps[law.2].1 != Depends::Anyhow);
        let broken = laws.filter_map(|(at, (_, law, step))| {
            let found = match law {
                Law::Irreflexive => self.lengths(*step).shortest_back().map(|(length, at)| (length, at, at)),
                Law::Acyclic => self.lengths(*step).closure().shortest_back().map(|(length, at)| (length, at, at)),
                Law::Empty => {
                    let pairs = self.worths[*step].relation().pairs();
                    pairs.map(|(from, to)| (self.against(*step, from, to).len() as u16, from, to)).min()
                }
            };
            found.map(|(length, from, to)| Broken { length, law: at, from, to })
        });
        broken.min_by_key(|broken| broken.length)
    }

    /// The name of a law that is broken, where that begins, and the edges of it.
    pub(crate) fn explain(&self, broken: &Broken) -> (String, usize, Vec<Edge>) {
        let (name, law, step) = &self.meaning.laws[broken.law];
        let edges = match law {
            Law::Irreflexive => self.path(*step, broken.from, broken.to),
            Law::Acyclic => {
                let lengths = self.lengths(*step);
                let hops = lengths.hops(&lengths.closure(), broken.from, broken.to);
                hops.into_iter().flat_map(|(from, to)| self.path(*step, from, to)).collect()
            }
            Law::Empty => self.against(*step, broken.from, broken.to),
        };
        (name.clone(), broken.from, edges)
    }

    fn relation(&self, step: usize) -> &Relation {
        self.worths[step].relation()
    }

    /// The name under which a step is known, if it is not looked into.
    fn name(&self, step: usize) -> Option<String> {
        let is_looked_into =
            matches!(self.meaning.steps[step].0, Step::Or(..) | Step::Plus(_) | Step::Star(_) | Step::Maybe(_));
        let mut names = self.meaning.names.iter().filter(|name| *name.1 == step && !is_looked_into).map(|name| name.0);
        // Given relations have their own names, even if a model has another for them.
        let own = names.clone().find(|name| !self.library.lets.contains_key(*name));
        own.or_else(|| names.next()).map(|name| named(&self.library.name, name))
    }

    /// A word for an unnamed relation.
    fn word(&self, step: usize) -> String {
        self.name(step).unwrap_or_else(|| format!("{}.law", self.library.name))
    }

    fn lengths(&self, step: usize) -> &Lengths {
        self.lengths[step].get_or_init(|| {
            let relation = self.relation(step);
            let id = || Lengths::new(relation.count(), |from, to| if from == to { 0 } else { NEVER });
            match &self.meaning.steps[step].0 {
                Step::Base(Base::Id) | Step::Identity(_) => id().within(relation),
                _ if self.name(step).is_some() => Lengths::of(relation),
                Step::Or(a, b) => self.lengths(*a).or(self.lengths(*b)),
                Step::And(a, _) | Step::Minus(a, _) => self.lengths(*a).within(relation),
                Step::Then(a, b) => self.lengths(*a).then(self.lengths(*b)),
                Step::Inverse(a) => {
                    let lengths = self.lengths(*a);
                    Lengths::new(relation.count(), |from, to| lengths.at(to, from))
                }
                Step::Plus(a) => self.lengths(*a).closure(),
                Step::Star(a) => self.lengths(*a).closure().or(&id().within(relation)),
                Step::Maybe(a) => self.lengths(*a).or(&id().within(relation)),
                _ => Lengths::of(relation),
            }
        })
    }

    /// The shortest path behind a pair.
    fn path(&self, step: usize, from: usize, to: usize) -> Vec<Edge> {
        let length = self.lengths(step).at(from, to);
        if length == 0 {
            return Vec::new();
        }
        if let Some(label) = self.name(step) {
            return vec![Edge { from, to, label }];
        }
        let has = |step: usize| self.lengths(step).at(from, to) == length;
        match &self.meaning.steps[step].0 {
            Step::Or(a, b) => self.path(if has(*a) { *a } else { *b }, from, to),
            Step::And(a, _) | Step::Minus(a, _) | Step::Maybe(a) => self.path(*a, from, to),
            Step::Then(a, b) => {
                let (first, second) = (self.lengths(*a), self.lengths(*b));
                let is_on = |by: &usize| first.at(from, *by).saturating_add(second.at(*by, to)) == length;
                let by = (0..first.count).find(is_on).expect("a pair of `;` has a middle");
                let mut path = self.path(*a, from, by);
                path.extend(self.path(*b, by, to));
                path
            }
            Step::Inverse(a) => inverse(self.path(*a, to, from)),
            Step::Plus(a) | Step::Star(a) => {
                let lengths = self.lengths(*a);
                let hops = lengths.hops(&lengths.closure(), from, to);
                hops.into_iter().flat_map(|(from, to)| self.path(*a, from, to)).collect()
            }
            _ => vec![Edge { from, to, label: self.word(step) }],
        }
    }

    /// The defect of a pair in a relation that should be empty: there by one operand, and back by the other.
    fn against(&self, step: usize, from: usize, to: usize) -> Vec<Edge> {
        match &self.meaning.steps[step].0 {
            Step::Or(a, b) => self.against(if self.relation(*a).has(from, to) { *a } else { *b }, from, to),
            Step::And(a, b) => {
                let mut path = self.path(*a, from, to);
                path.extend(inverse(self.path(*b, from, to)));
                path
            }
            Step::Minus(a, b) if self.relation(*b).has(to, from) => {
                let mut path = self.path(*a, from, to);
                path.extend(self.path(*b, to, from));
                path
            }
            Step::Minus(a, _) => self.against(*a, from, to),
            _ => self.path(step, from, to),
        }
    }
}

/// The name of a library's relation; every library has a `so`.
pub(crate) fn named(library: &str, name: &str) -> String {
    if name == "so" { format!("{library}.so") } else { name.to_owned() }
}
