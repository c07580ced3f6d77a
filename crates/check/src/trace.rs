//! From what the simulator recorded to a timeline.

use farfield::fabric::NodeId;
use farfield::fabric::Verb;
use farfield::fabric::mowgli::machine::Loc;
use farfield::fabric::sim::{Cell, Outcome, What as Raw};

use crate::Scenario;
use crate::search::Replay;
use crate::timeline::{Event, Failure, Lane, Timeline, What};

/// The timeline of an execution that was [replayed](crate::replay).
pub fn timeline_of(scenario: &Scenario, replay: &Replay, outcome: &Outcome) -> Timeline {
    let names = Names(&outcome.labels);
    let threads = outcome.threads.iter().map(|(node, name)| Lane { name: name.clone(), node: node.0 }).collect();
    let failure = outcome.failure.as_ref().map(|failure| Failure {
        step: failure.step,
        thread: failure.thread,
        message: failure.message.clone(),
    });
    let node_of = |thread: usize| outcome.threads[thread].0;
    // The stage is set before the first choice of interest: what threads did to open objects tells nothing of a failure.
    let begin = outcome.explored_from;
    let recorded = outcome.events.iter().filter(|event| event.step >= begin);
    let events = recorded.map(|event| Event {
        step: event.step,
        time_ns: event.time_ns,
        thread: event.thread,
        what: names.describe(&event.what, node_of(event.thread)),
    });
    Timeline {
        title: scenario.name.clone(),
        about: scenario.about.clone(),
        replay: replay.to_string(),
        failure,
        threads,
        events: events.collect(),
    }
}

/// Names of memory: node, first word, words, name.
struct Names<'a>(&'a [(u16, u32, u32, String)]);

impl Names<'_> {
    fn loc(&self, loc: Loc) -> String {
        let found = self
            .0
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
            Cell::Own(number) => format!("local {number}"),
        }
    }

    fn describe(&self, what: &Raw, _node: NodeId) -> What {
        match what {
            Raw::Read { cell, value, buffered } => {
                What::Read { cell: self.cell(*cell), value: *value, buffered: *buffered }
            }
            Raw::Write { cell, value } => What::Write { cell: self.cell(*cell), value: *value },
            Raw::Drained { cell, value } => What::Drained { cell: self.cell(*cell), value: *value },
            Raw::Rmw { cell, old, new } => What::Rmw { cell: self.cell(*cell), old: *old, new: *new },
            Raw::Issue { op, verb, peer, remote, words, value } => {
                let verb = match verb {
                    Verb::Put => "put",
                    Verb::Get => "get",
                    Verb::Cas => "cas",
                    Verb::Faa => "faa",
                    Verb::RemoteFence => "fence",
                };
                let place = remote.map_or_else(|| format!("n{}", peer.0), |loc| self.loc(loc));
                let text = match (verb, value) {
                    ("put", Some(value)) => format!("put {value} → {place}"),
                    ("cas" | "faa", Some(value)) => format!("{verb} {place} ({value})"),
                    ("get", _) => format!("get {place}"),
                    _ => format!("{verb} → {place}"),
                };
                let text = if *words > 1 { format!("{text} ({words} words)") } else { text };
                What::Issue { op: *op, verb, peer: peer.0, text }
            }
            Raw::NicRead { op, loc, value } => What::NicRead { op: *op, cell: self.loc(*loc), value: *value },
            Raw::Started { op } => What::Started { op: *op },
            Raw::Landed { op, loc, value } => What::Landed { op: *op, cell: self.loc(*loc), value: *value },
            Raw::Completed { op } => What::Completed { op: *op },
            Raw::Seen { op } => What::Seen { op: *op },
            Raw::Waits => What::Waits { text: "until something it has looked at changes".into() },
            Raw::Woken => What::Woken,
            Raw::Lock { cell } => What::Lock { name: self.cell(*cell) },
            Raw::Unlock { cell } => What::Unlock { name: self.cell(*cell) },
            Raw::Message { to, bytes } => What::Message { to: to.0, text: format!("{bytes} bytes") },
            Raw::Received { from, text } => What::Received { from: from.0, text: text.clone() },
            Raw::Elapsed => What::Note { text: "time passes".into() },
            Raw::Note { text } => What::Note { text: text.clone() },
        }
    }
}
