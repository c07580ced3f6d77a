//! Converts the simulator's records to a timeline.
//!
//! Events that do not help to understand an execution are left out: the setup, the checks at the end, the unwinding of
//! threads after the failure, locks and words of a node's own that only one thread touches, and the middle of an
//! execution that loops.

use std::collections::{BTreeMap, BTreeSet};

use farfield_core::fabric::Verb;
use farfield_core::fabric::sim::Loc;
use farfield_core::fabric::sim::{Cell, Event as Recorded, Outcome, What as Raw};

use crate::Scenario;
use crate::search::Replay;
use crate::timeline::{Event, Failure, Lane, Timeline, What, number};

/// Of an execution with more events, only the first and the last are shown.
const EVENTS_MAX: usize = 2000;
const LAST_EVENTS: usize = 300;
/// Words at the start of each node's memory that global fences read.
const FENCE_WORDS: u32 = 8;
/// The simulation's first thread: it runs the setup, and the checks at the end.
const CHECK: usize = 0;
/// More operations than these that a thread waits for are only counted.
const WAITS_MAX: usize = 3;

/// The timeline of an execution that was [replayed](crate::replay).
///
/// ```
/// # use farfield_check::{Budget, Scenario, check, choose, note, replay, timeline_of};
/// # let luck = Scenario::new("doc/luck", "one choice of three is wrong", 1, |cluster| {
/// #     cluster.thread(0, "draws", |_| {
/// #         let drawn = choose(3);
/// #         note(|| format!("drew {drawn}"));
/// #         Ok(assert_ne!(drawn, 2, "the wrong choice"))
/// #     });
/// #     Ok(())
/// # });
/// let finding = check(&luck, Budget::executions(100), 1).finding.unwrap();
/// let timeline = timeline_of(&luck, &finding.replay, &replay(&luck, &finding.replay));
/// assert!(timeline.to_text().contains("drew 2"));
/// ```
pub fn timeline_of(scenario: &Scenario, replay: &Replay, outcome: &Outcome) -> Timeline {
    let events = worth_telling(outcome);
    // Threads without events since the setup are left out, and the others numbered anew.
    let mut threads: BTreeSet<usize> = events.iter().map(|event| event.thread).collect();
    threads.extend(outcome.failure.as_ref().and_then(|failure| failure.thread).filter(|thread| *thread != CHECK));
    let number_of: BTreeMap<usize, usize> =
        threads.iter().enumerate().map(|(number, thread)| (*thread, number)).collect();
    let failure = outcome.failure.as_ref().map(|failure| Failure {
        step: failure.step,
        thread: failure.thread.filter(|thread| *thread != CHECK).map(|thread| number_of[&thread]),
        message: failure.message.clone(),
    });
    let names = Names::of(outcome, &events);
    let start_ns = events.first().map_or(0, |event| event.time_ns);
    let mut waits = Waits::default();
    let described = events.iter().map(|event| {
        waits.follow(event, &names);
        let what = match event.what {
            Raw::Waits => What::Waits { text: waits.text(event.thread) },
            _ => names.describe(&event.what),
        };
        Event { step: event.step, time_ns: event.time_ns - start_ns, thread: number_of[&event.thread], what }
    });
    Timeline {
        title: scenario.name().into(),
        about: match &outcome.faults {
            Some(faults) => format!("{}. Faults: {faults}", scenario.about()),
            None => scenario.about().into(),
        },
        replay: replay.to_string(),
        events: described.collect(),
        failure,
        threads: lanes(outcome, &threads),
    }
}

/// The threads by their tasks, numbered where several of a node have the same task.
fn lanes(outcome: &Outcome, threads: &BTreeSet<usize>) -> Vec<Lane> {
    let name = |thread: usize| match outcome.threads[thread].1.as_str() {
        name if is_service(name) => "service",
        name => name,
    };
    let lane = |thread: &usize| {
        let node = outcome.threads[*thread].0;
        let alike = |other: &&usize| outcome.threads[**other].0 == node && name(**other) == name(*thread);
        let (before, all) = (threads.range(..thread).filter(alike).count(), threads.iter().filter(alike).count());
        let number = if all > 1 { format!(" {}", before + 1) } else { String::new() };
        Lane { name: name(*thread).to_string() + &number, node: node.0 }
    };
    threads.iter().map(lane).collect()
}

/// The events since the exploration began, until the failure, without those that concern only their own thread.
fn worth_telling(outcome: &Outcome) -> Vec<Recorded> {
    let explored = outcome.events.iter().filter(|event| event.step >= outcome.explored_from);
    let mut events: Vec<Recorded> = explored.cloned().collect();
    if let Some(failure) = &outcome.failure {
        let unwinds = |event: &Recorded| event.step >= failure.step && matches!(event.what, Raw::Unlock { .. });
        while events.last().is_some_and(unwinds) {
            events.pop();
        }
    }
    // Time passes for the thread that continues then, not for the thread that happens to be first.
    for at in 0..events.len() {
        if let (Raw::Elapsed, Some(next)) = (&events[at].what, events.get(at + 1)) {
            events[at].thread = next.thread;
        }
    }
    events.retain(|event| event.thread != CHECK);
    let mut users: BTreeMap<u32, BTreeSet<usize>> = BTreeMap::new();
    for event in &events {
        if let Some(own) = own_cell(&event.what) {
            users.entry(own).or_default().insert(event.thread);
        }
    }
    events.retain(|event| own_cell(&event.what).is_none_or(|own| users[&own].len() > 1));
    // Service threads often wake up without work.
    let waits = |event: &Recorded| matches!(event.what, Raw::Waits | Raw::Woken);
    let works: BTreeSet<usize> = events.iter().filter(|event| !waits(event)).map(|event| event.thread).collect();
    events.retain(|event| works.contains(&event.thread) || !is_service(&outcome.threads[event.thread].1));
    if events.len() > EVENTS_MAX {
        let left_out = EVENTS_MAX - LAST_EVENTS..events.len() - LAST_EVENTS;
        let text = format!("… {} events left out", left_out.len());
        let note = Recorded { what: Raw::Note { text }, ..events[left_out.start].clone() };
        events.splice(left_out, [note]);
    }
    events
}

fn is_service(name: &str) -> bool {
    name.starts_with("farfield-")
}

/// The word or lock outside of registered memory that an event touches.
fn own_cell(what: &Raw) -> Option<u32> {
    match what {
        Raw::Read { cell: Cell::Own(own), .. }
        | Raw::Write { cell: Cell::Own(own), .. }
        | Raw::Drained { cell: Cell::Own(own), .. }
        | Raw::Rmw { cell: Cell::Own(own), .. }
        | Raw::Lock { cell: Cell::Own(own) }
        | Raw::Unlock { cell: Cell::Own(own) } => Some(*own),
        _ => None,
    }
}

/// The words that each thread has read since it last waited or acted: it waits for a change of these.
#[derive(Default)]
struct Waits {
    looked_at: BTreeMap<usize, Vec<String>>,
    /// Operations that the thread has not seen complete.
    open: BTreeMap<usize, BTreeSet<u32>>,
}

impl Waits {
    fn follow(&mut self, event: &Recorded, names: &Names<'_>) {
        match &event.what {
            Raw::Woken | Raw::Write { .. } | Raw::Rmw { .. } => {
                self.looked_at.entry(event.thread).or_default().clear();
            }
            Raw::Read { cell, .. } => {
                let (looked_at, name) = (self.looked_at.entry(event.thread).or_default(), names.cell(*cell));
                if !looked_at.contains(&name) {
                    looked_at.push(name);
                }
            }
            Raw::Issue { op, .. } => {
                self.looked_at.entry(event.thread).or_default().clear();
                self.open.entry(event.thread).or_default().insert(*op);
            }
            Raw::Seen { op } => {
                self.open.entry(event.thread).or_default().remove(op);
            }
            _ => {}
        }
    }

    fn text(&self, thread: usize) -> String {
        let open: Vec<String> = self.open.get(&thread).into_iter().flatten().map(|op| format!("#{op}")).collect();
        let looked_at = self.looked_at.get(&thread).map_or(&[][..], Vec::as_slice);
        match (looked_at, &open[..]) {
            ([], []) => "for news".into(),
            ([], ops) if ops.len() > WAITS_MAX => format!("for {} operations", ops.len()),
            ([], ops) => format!("for {}", ops.join(" or ")),
            ([cell], _) => format!("until {cell} changes"),
            // A thread that checks several conditions in order stops at the first that is false.
            ([others @ .., cell], _) => format!("until {cell} changes, or {} more", others.len()),
        }
    }
}

/// Regions with their names: without that of the region, `path.region`, where an object has one only.
fn regions<'a>(labels: &'a [(u16, u32, u32, String)]) -> Vec<(u16, u32, u32, &'a str)> {
    let of = |path: &str| {
        let of_path = labels.iter().filter_map(|(.., name)| name.rsplit_once('.')).filter(|(p, _)| *p == path);
        of_path.map(|(_, region)| region).collect::<BTreeSet<_>>().len()
    };
    let named = |(node, first, words, name): &'a (u16, u32, u32, String)| {
        let only = name.rsplit_once('.').filter(|(path, _)| of(path) == 1);
        (*node, *first, *words, only.map_or(name.as_str(), |(path, _)| path))
    };
    labels.iter().map(named).collect()
}

/// Names of memory.
struct Names<'a> {
    /// Node, first word, words, name.
    regions: Vec<(u16, u32, u32, &'a str)>,
    /// Of words and locks outside of it.
    own: BTreeMap<u32, String>,
    /// Where operations read first.
    sources: BTreeMap<u32, Loc>,
}

impl<'a> Names<'a> {
    fn of(outcome: &'a Outcome, events: &[Recorded]) -> Names<'a> {
        let mut own = BTreeMap::new();
        let (mut locks, mut words) = (0, 0);
        for event in events {
            if let Some(cell) = own_cell(&event.what) {
                let is_lock = matches!(event.what, Raw::Lock { .. } | Raw::Unlock { .. });
                own.entry(cell).or_insert_with(|| {
                    let count = if is_lock { &mut locks } else { &mut words };
                    *count += 1;
                    format!("{} {count}", if is_lock { "lock" } else { "local" })
                });
            }
        }
        let mut sources = BTreeMap::new();
        for event in events {
            if let Raw::NicRead { op, loc, .. } = event.what {
                sources.entry(op).or_insert(loc);
            }
        }
        Names { regions: regions(&outcome.labels), own, sources }
    }

    /// A word without its node.
    fn bare(&self, loc: Loc) -> String {
        self.loc(loc).split_once(' ').map_or_else(String::new, |(_, name)| name.into())
    }

    fn loc(&self, loc: Loc) -> String {
        let found = self
            .regions
            .iter()
            .find(|(node, first, words, _)| *node == loc.node && (*first..first + words).contains(&loc.word));
        match found {
            Some((node, _, 1, name)) => format!("n{node} {name}"),
            Some((node, first, _, name)) => format!("n{node} {name}[{}]", loc.word - first),
            None => format!("n{} word {}", loc.node, loc.word),
        }
    }

    fn cell(&self, cell: Cell) -> String {
        match cell {
            Cell::Region(loc) => self.loc(loc),
            Cell::Own(own) => self.own.get(&own).cloned().unwrap_or_else(|| format!("local {own}")),
        }
    }

    fn describe(&self, what: &Raw) -> What {
        match what {
            Raw::Read { cell, value, buffered } => {
                What::Read { cell: self.cell(*cell), value: *value, buffered: *buffered }
            }
            Raw::Write { cell, value } => What::Write { cell: self.cell(*cell), value: *value },
            Raw::Drained { cell, value } => What::Drained { cell: self.cell(*cell), value: *value },
            Raw::Rmw { cell, old, new } => What::Rmw { cell: self.cell(*cell), old: *old, new: *new },
            Raw::Issue { op, verb, peer, remote, words, value } => {
                let place = remote.map_or_else(|| format!("n{}", peer.0), |loc| self.loc(loc));
                let is_fence = remote.is_some_and(|loc| loc.word < FENCE_WORDS);
                let (verb, text) = match (verb, value) {
                    (Verb::Put, Some(value)) if *words == 1 => ("put", format!("put {} → {place}", number(*value))),
                    (Verb::Put, _) if *words == 1 => {
                        let source = self.sources.get(op).map_or_else(|| "a word".into(), |loc| self.bare(*loc));
                        ("put", format!("put {source} → {place}"))
                    }
                    (Verb::Put, _) => ("put", format!("put {words} words → {place}")),
                    (Verb::Get, _) if is_fence => ("get", format!("fence n{} (a get)", peer.0)),
                    (Verb::Get, _) if *words > 1 => ("get", format!("get {words} words from {place}")),
                    (Verb::Get, _) => ("get", format!("get {place}")),
                    (Verb::Cas, Some(new)) => ("cas", format!("cas {place} to {}", number(*new))),
                    (Verb::Faa, Some(addend)) if (*addend as i64) < 0 => {
                        ("faa", format!("faa {place} − {}", number(addend.wrapping_neg())))
                    }
                    (Verb::Faa, Some(addend)) => ("faa", format!("faa {place} + {}", number(*addend))),
                    (Verb::Cas, None) => ("cas", format!("cas {place}")),
                    (Verb::Faa, None) => ("faa", format!("faa {place}")),
                    (Verb::RemoteFence, _) => ("fence", format!("remote fence to n{}", peer.0)),
                };
                What::Issue { op: *op, verb, peer: peer.0, text }
            }
            Raw::NicRead { op, loc, value } => What::NicRead { op: *op, cell: self.loc(*loc), value: *value },
            Raw::Started { op } => What::Started { op: *op },
            Raw::Landed { op, loc, value } => What::Landed { op: *op, cell: self.loc(*loc), value: *value },
            Raw::Completed { op } => What::Completed { op: *op },
            Raw::Seen { op } => What::Seen { op: *op },
            Raw::Waits => What::Waits { text: String::new() },
            Raw::Woken => What::Woken,
            Raw::Lock { cell } => What::Lock { name: self.cell(*cell) },
            Raw::Unlock { cell } => What::Unlock { name: self.cell(*cell) },
            Raw::Message { to, bytes } => What::Message { to: to.0, text: format!("{bytes} bytes") },
            Raw::Received { from, text } => What::Received { from: from.0, text: text.clone() },
            Raw::Fault { fault } => What::Note { text: format!("fault: {fault}") },
            Raw::Evicted { peer } => What::Note { text: format!("n{} is evicted", peer.0) },
            Raw::Elapsed => What::Note { text: "time passes".into() },
            Raw::Note { text } => What::Note { text: text.clone() },
        }
    }
}

#[cfg(test)]
mod tests {
    use farfield_core::SharedVar;

    use super::*;
    use crate::replay;

    #[test]
    fn an_execution_is_told_in_the_names_of_its_objects() {
        let scenario = Scenario::new("test/push", "a push that is waited for", 2, |cluster| {
            let vars = cluster.on_each(|node| SharedVar::<u64>::open(node, "x"))?;
            let mut vars = vars.into_iter();
            let (mine, other) = (vars.next().expect("two"), vars.next().expect("two"));
            cluster.thread(0, "writer", move |ep| {
                mine.store(7);
                ep.block_on(mine.push_all(ep)).map(drop)
            });
            cluster.at_end(move || {
                assert_eq!(other.load(), 8, "it is not eight");
                Ok(())
            });
            Ok(())
        });
        let line: Replay = "test/push#e:".parse().expect("a line");
        let timeline = timeline_of(&scenario, &line, &replay(&scenario, &line));
        let threads: Vec<&str> = timeline.threads.iter().map(|lane| lane.name.as_str()).collect();
        assert_eq!(threads, ["writer"], "who has nothing to do is not there");
        assert!(timeline.failing_thread().is_none(), "nobody's but the check's");
        let text = timeline.to_text();
        for part in ["writes n0 x = 7", "issues #0 put x → n1 x", "waits for #0", "n1 x = 7 lands", "it is not eight"]
        {
            assert!(text.contains(part), "{part}:\n{text}");
        }
    }
}
