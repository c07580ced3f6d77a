//! An execution before it is known whether it is consistent: the subevents of one trace of each thread, and what
//! relates them.

use crate::litmus::{Place, Test, Value};
use crate::model::{Base, Given, Worth};
use crate::relation::{Relation, SUBEVENTS_MAX, Set};
use crate::stamp::{self, Stamp};
use crate::too_large::TooLarge;
use crate::trace::{Event, Subevent, Trace};

/// Where a subevent belongs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home {
    /// None for initial writes.
    pub(crate) thread: Option<usize>,
    /// Its event, by number; those of a thread in program order.
    pub(crate) event: usize,
    /// Its place among those of its thread.
    position: usize,
    pub(crate) library: usize,
}

/// One trace of each thread.
pub(crate) struct Execution<'a> {
    pub(crate) test: &'a Test,
    pub(crate) traces: Vec<&'a Trace>,
    pub(crate) homes: Vec<Home>,
    pub(crate) reads: Vec<Option<(Place, &'a Value)>>,
    pub(crate) writes: Vec<Option<(Place, &'a Value)>>,
    /// Of each subevent that is none of the initial writes.
    pub(crate) subevents: Vec<Option<&'a Subevent>>,
    pub(crate) events: Vec<Option<&'a Event>>,
    /// How many initial writes there are: they come first.
    pub(crate) initial: usize,
    pub(crate) ppo: Relation,
}

impl<'a> Execution<'a> {
    /// # Errors
    /// It has too many subevents.
    pub(crate) fn new(test: &'a Test, traces: &[&'a Trace]) -> Result<Execution<'a>, TooLarge> {
        let whole: Vec<(&Trace, usize)> = traces.iter().map(|trace| (*trace, trace.events.len())).collect();
        Execution::of_beginnings(test, &whole)
    }

    /// The first events of each trace: so many.
    ///
    /// # Errors
    /// It has too many subevents.
    pub(crate) fn of_beginnings(test: &'a Test, beginnings: &[(&'a Trace, usize)]) -> Result<Execution<'a>, TooLarge> {
        let mut all = Execution {
            test,
            traces: beginnings.iter().map(|beginning| beginning.0).collect(),
            homes: Vec::new(),
            reads: Vec::new(),
            writes: Vec::new(),
            subevents: Vec::new(),
            events: Vec::new(),
            initial: 0,
            ppo: Relation::empty(0),
        };
        for place in test.places() {
            let object = &test.objects[place.0];
            all.homes.push(Home { thread: None, event: all.events.len(), position: 0, library: object.library });
            all.reads.push(None);
            all.writes.push(object.starts.as_ref().map(|value| (place, value)));
            all.subevents.push(None);
            all.events.push(None);
        }
        all.initial = all.homes.len();
        for (thread, (trace, events)) in beginnings.iter().enumerate() {
            for (position, event) in trace.events[..*events].iter().enumerate() {
                for subevent in &event.subevents {
                    let home =
                        Home { thread: Some(thread), event: all.events.len(), position, library: event.call.library };
                    all.homes.push(home);
                    all.reads.push(subevent.reads.as_ref().map(|(place, value)| (*place, value)));
                    all.writes.push(subevent.writes.as_ref().map(|(place, value)| (*place, value)));
                    all.subevents.push(Some(subevent));
                }
                all.events.push(Some(event));
            }
        }
        let count = all.homes.len();
        if count > SUBEVENTS_MAX {
            return Err(TooLarge::Subevents(count));
        }
        all.ppo = Relation::of(count, |a, b| all.follows(a, b) && stamp::keeps_order(all.stamp(a), all.stamp(b)));
        Ok(all)
    }

    pub(crate) fn count(&self) -> usize {
        self.homes.len()
    }

    /// Program order, of subevents of different events.
    fn follows(&self, first: usize, second: usize) -> bool {
        let (first, second) = (self.homes[first], self.homes[second]);
        first.thread.is_some() && first.thread == second.thread && first.event < second.event
    }

    fn stamp(&self, at: usize) -> stamp::NodeStamp {
        let subevent = self.subevents[at].expect("initial writes are in no program order");
        (subevent.stamp, subevent.node)
    }

    fn has_stamp(&self, at: usize, stamp: Stamp) -> bool {
        self.subevents[at].is_some_and(|subevent| subevent.stamp == stamp)
    }

    fn event(&self, at: usize) -> Option<&'a Event> {
        self.events[self.homes[at].event]
    }

    pub(crate) fn place(&self, at: usize) -> Option<Place> {
        let touched = self.subevents[at].and_then(|subevent| subevent.touches);
        self.reads[at].or(self.writes[at]).map(|access| access.0).or(touched)
    }
}

/// The events of one library among those of an execution.
pub(crate) struct View<'a> {
    execution: &'a Execution<'a>,
    universe: Set,
}

impl<'a> View<'a> {
    pub(crate) fn new(execution: &'a Execution<'a>, library: usize) -> View<'a> {
        let mut universe = Set::default();
        (0..execution.count()).filter(|at| execution.homes[*at].library == library).for_each(|at| universe.insert(at));
        View { execution, universe }
    }

    fn set(&self, holds: impl Fn(usize) -> bool) -> Worth {
        let mut set = Set::default();
        self.universe.iter().filter(|at| holds(*at)).for_each(|at| set.insert(at));
        Worth::Set(set)
    }

    fn relation(&self, holds: impl Fn(usize, usize) -> bool) -> Worth {
        let mut relation = Relation::empty(self.execution.count());
        for from in self.universe.iter() {
            self.universe.iter().filter(|to| holds(from, *to)).for_each(|to| relation.insert(from, to));
        }
        Worth::Relation(relation)
    }
}

impl Given for View<'_> {
    fn universe(&self) -> (usize, Set) {
        (self.execution.count(), self.universe)
    }

    fn base(&self, base: &Base) -> Worth {
        let all = self.execution;
        let both = |a: Option<usize>, b: Option<usize>| a.is_some() && a == b;
        let tag = |at: usize| all.event(at).and_then(Event::tag);
        let object = |at: usize| all.event(at).and_then(Event::object);
        match base {
            Base::Reads => self.set(|at| all.reads[at].is_some()),
            Base::Writes => self.set(|at| all.writes[at].is_some()),
            Base::Stamp(stamp) => self.set(|at| all.has_stamp(at, *stamp)),
            Base::Method(name) => self.set(|at| all.event(at).is_some_and(|event| event.call.method == *name)),
            Base::Po => self.relation(|a, b| all.follows(a, b)),
            Base::Ppo => self.relation(|a, b| all.ppo.has(a, b)),
            Base::Ippo => self.relation(|a, b| all.follows(a, b) && stamp::starts_in_order(all.stamp(a), all.stamp(b))),
            Base::Iso => self.relation(|a, b| {
                b == a + 1
                    && all.homes[a].event == all.homes[b].event
                    && all.subevents[b].is_some_and(|subevent| subevent.follows)
            }),
            Base::SameEvent => self.relation(|a, b| a != b && all.homes[a].event == all.homes[b].event),
            Base::SamePlace => self.relation(|a, b| all.place(a).is_some() && all.place(a) == all.place(b)),
            Base::SameValue => self.relation(|a, b| match (all.writes[a], all.reads[b]) {
                (Some(written), Some(read)) => written.1 == read.1,
                _ => false,
            }),
            Base::SameObject => self.relation(|a, b| both(object(a), object(b))),
            Base::SameTag => self.relation(|a, b| both(tag(a), tag(b))),
            Base::SameThread => self.relation(|a, b| both(all.homes[a].thread, all.homes[b].thread)),
            Base::SameNode => self.relation(|a, b| {
                let node = |at: usize| all.subevents[at].and_then(|subevent| subevent.node).map(usize::from);
                both(node(a), node(b))
            }),
            Base::Id => self.relation(|a, b| a == b),
        }
    }

    fn nth(&self, from: Set, to: Set, relation: &Relation) -> Relation {
        // How many events with a subevent of `of` that is related to `other` come before `at`.
        let before = |at: usize, of: Set, related: &dyn Fn(usize) -> bool| {
            let before = of.iter().filter(|earlier| self.execution.follows(*earlier, at) && related(*earlier));
            let mut events: Vec<usize> = before.map(|earlier| self.execution.homes[earlier].event).collect();
            events.dedup();
            events.len()
        };
        let mut nth = Relation::empty(self.execution.count());
        for a in from.iter() {
            for b in relation.row(a).iter().filter(|b| to.has(*b)) {
                let of_a = before(a, from, &|earlier| relation.has(earlier, b));
                let of_b = before(b, to, &|earlier| relation.has(a, earlier));
                if of_a == of_b {
                    nth.insert(a, b);
                }
            }
        }
        nth
    }

    fn unmet(&self, set: Set, attribute: &str) -> Set {
        let all = self.execution;
        let mut unmet = Set::default();
        for at in set.iter() {
            let Some(event) = all.event(at) else { continue };
            let is_like = |other: &Event| {
                (other.call.library, &other.call.method, other.object())
                    == (event.call.library, &event.call.method, event.object())
            };
            let Home { thread: Some(thread), position, .. } = all.homes[at] else { continue };
            let index = all.traces[thread].events[..position].iter().filter(|it| is_like(it)).count();
            let count = |thread: usize| all.traces[thread].events.iter().filter(|it| is_like(it)).count();
            let object = event.object().map(|object| &all.test.objects[object]);
            let lists = object.into_iter().flat_map(|object| &object.threads).filter(|list| list.0 == attribute);
            if lists.flat_map(|list| &list.1).any(|thread| count(*thread) <= index) {
                unmet.insert(at);
            }
        }
        unmet
    }
}
