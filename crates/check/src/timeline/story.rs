//! Relations between the events of an execution: the parts of each operation, spans of waiting, buffering and holding a
//! lock, changes of memory, and reads that happened while a write was not, or not wholly, in memory.

use super::{Event, Timeline, What};
use std::collections::BTreeMap;

/// A cell of a node.
pub(super) type Place = (u16, String);

/// An operation. Numbers of steps are ranks: indices into the events.
pub(super) struct Op<'a> {
    pub(super) id: u32,
    pub(super) verb: &'static str,
    pub(super) thread: usize,
    pub(super) node: u16,
    peer: u16,
    pub(super) text: &'a str,
    pub(super) issue: usize,
    /// How many words it has read.
    words: usize,
    pub(super) landed: Vec<(usize, Place, u64)>,
    pub(super) completed: Option<usize>,
}

impl Op<'_> {
    /// Whether more of it has to land, as far as the execution shows.
    pub(super) fn lands_later(&self) -> bool {
        self.verb == "put" && self.landed.len() < self.words.max(1)
    }

    /// The rank at which the operation is finished.
    pub(super) fn end(&self) -> Option<usize> {
        if self.lands_later() { None } else { Some(self.completed?.max(self.landed.last().map_or(0, |l| l.0))) }
    }

    /// Until when its completed write stays out of memory, `Some(None)` if to the end.
    pub(super) fn late(&self) -> Option<Option<usize>> {
        let completed = self.completed?;
        if self.lands_later() {
            return Some(None);
        }
        self.landed.last().map(|l| l.0).filter(|&rank| rank > completed).map(Some)
    }

    fn target(&self) -> Option<Place> {
        let (_, target) = self.text.rsplit_once('→')?;
        Some(place(target.trim(), self.peer))
    }
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum SpanKind {
    Wait,
    Buffer,
    Lock,
}

/// An activity of a thread from one event to another, or to the end.
pub(super) struct Span {
    pub(super) kind: SpanKind,
    pub(super) from: usize,
    pub(super) to: Option<usize>,
}

/// A read of `op`'s target while `op` was not in memory, or partly.
pub(super) struct Hint {
    pub(super) read: usize,
    pub(super) op: u32,
    /// Whether some words had landed, and whether the one read had.
    pub(super) torn: bool,
    pub(super) found: bool,
    /// When the word, or the rest of the words, lands.
    pub(super) lands: Option<usize>,
}

#[derive(Default)]
pub(super) struct Story<'a> {
    pub(super) ops: BTreeMap<u32, Op<'a>>,
    /// By event: the cell that it touches.
    pub(super) places: Vec<Option<Place>>,
    /// By event: the old and the new value of memory.
    pub(super) changes: Vec<Option<(u64, u64)>>,
    pub(super) spans: Vec<Span>,
    /// Messages: sent, received.
    pub(super) messages: Vec<(usize, usize)>,
    /// The most informative first.
    pub(super) hints: Vec<Hint>,
    /// The failing column: the last event that led to it, or one past all if it fails at the end.
    pub(super) failure: Option<usize>,
}

impl<'a> Story<'a> {
    pub(super) fn of(timeline: &'a Timeline) -> Self {
        let mut story = Story::default();
        let mut memory = BTreeMap::new();
        for rank in 0..timeline.events.len() {
            let place = story.follow(timeline, rank);
            let mut change = None;
            if let (Some(place), Some((value, written))) = (&place, memory_access(&timeline.events[rank].what)) {
                let old = memory.insert(place.clone(), value).unwrap_or(0);
                change = written.then_some(match &timeline.events[rank].what {
                    What::Rmw { old, new, .. } => (*old, *new),
                    _ => (old, value),
                });
            }
            story.changes.push(change);
            story.places.push(place);
        }
        story.failure = timeline.failure.as_ref().map(|failure| {
            let until = timeline.events.partition_point(|event| event.step <= failure.step);
            let at_end = timeline.events.last().is_none_or(|last| last.step < failure.step);
            if at_end { until } else { until.saturating_sub(1) }
        });
        story.find_spans(timeline);
        story.find_hints(timeline);
        story
    }

    /// Adds an event to its operation, and returns the cell that it touches.
    fn follow(&mut self, timeline: &'a Timeline, rank: usize) -> Option<Place> {
        let event = &timeline.events[rank];
        let node = timeline.node_of(event.thread);
        let Some(id) = op_of(&event.what) else {
            return match &event.what {
                What::Read { cell, .. }
                | What::Write { cell, .. }
                | What::Drained { cell, .. }
                | What::Rmw { cell, .. } => Some(place(cell, node)),
                _ => None,
            };
        };
        let op = self.ops.entry(id).or_insert(Op {
            id,
            verb: "op",
            thread: event.thread,
            node,
            peer: node,
            text: "operation",
            issue: rank,
            words: 0,
            landed: Vec::new(),
            completed: None,
        });
        match &event.what {
            What::Issue { verb, peer, text, .. } => {
                (op.verb, op.peer, op.text) = (verb, *peer, text);
                op.target().filter(|_| *verb == "put")
            }
            What::NicRead { cell, .. } => {
                op.words += 1;
                Some(place(cell, if op.verb == "put" { node } else { op.peer }))
            }
            What::Landed { cell, value, .. } => {
                let here = op.verb == "get" || (op.verb != "put" && !op.landed.is_empty());
                let at = place(cell, if here { node } else { op.peer });
                op.landed.push((rank, at.clone(), *value));
                Some(at)
            }
            What::Completed { .. } => {
                op.completed.get_or_insert(rank);
                None
            }
            _ => None,
        }
    }

    fn find_spans(&mut self, timeline: &Timeline) {
        let events = &timeline.events;
        for (from, event) in events.iter().enumerate() {
            let later = |end: &dyn Fn(&What) -> bool| {
                let mut rest = events.iter().enumerate().skip(from + 1);
                rest.find(|(_, e)| e.thread == event.thread && end(&e.what)).map(|(rank, _)| rank)
            };
            let (kind, to) = match &event.what {
                What::Waits { .. } => (SpanKind::Wait, later(&|what| !is_background(what))),
                What::Lock { name: lock } => {
                    (SpanKind::Lock, later(&|what| matches!(what, What::Unlock { name } if name == lock)))
                }
                What::Write { cell: to, .. } => {
                    let ahead = self.spans.iter().filter(|s| {
                        s.kind == SpanKind::Buffer
                            && events[s.from].thread == event.thread
                            && matches!(&events[s.from].what, What::Write { cell, .. } if cell == to)
                            && s.to.is_none_or(|drained| drained > from)
                    });
                    let ahead = ahead.filter_map(|s| s.to).max().unwrap_or(from);
                    let drained = |(rank, e): &(usize, &Event)| {
                        *rank > ahead
                            && e.thread == event.thread
                            && matches!(&e.what, What::Drained { cell, .. } if cell == to)
                    };
                    (SpanKind::Buffer, events.iter().enumerate().find(drained).map(|(rank, _)| rank))
                }
                What::Message { to, text: sent } => {
                    let received = events.iter().enumerate().skip(from + 1).find(|(rank, e)| {
                        timeline.node_of(e.thread) == *to
                            && matches!(&e.what, What::Received { from, text }
                                if *from == timeline.node_of(event.thread) && text == sent)
                            && self.messages.iter().all(|m| m.1 != *rank)
                    });
                    self.messages.extend(received.map(|(rank, _)| (from, rank)));
                    continue;
                }
                _ => continue,
            };
            self.spans.push(Span { kind, from, to });
        }
    }

    pub(super) fn is_early(&self, rank: usize) -> bool {
        self.hints.iter().any(|hint| hint.read == rank)
    }

    /// Finds reads of a cell with a write that was issued, and is complete or partly in memory, or that the reader does
    /// not read again. Such a read need not be wrong. When an execution fails, look at these reads first.
    fn find_hints(&mut self, timeline: &Timeline) {
        for (read, event) in timeline.events.iter().enumerate() {
            let (value, reader) = match &event.what {
                What::Read { value, buffered: false, .. } => (*value, None),
                What::NicRead { op, value, .. } => (*value, Some(*op)),
                _ => continue,
            };
            let Some(place) = &self.places[read] else { continue };
            for op in self.ops.values().filter(|op| op.issue < read && Some(op.id) != reader && op.verb != "get") {
                let lands = match op.landed.iter().rfind(|l| l.1 == *place) {
                    Some(l) => Some((l.0, l.2)).filter(|_| l.0 > read),
                    None => None,
                };
                let never = op.lands_later() && op.target().as_ref() == Some(place);
                let never = never && op.landed.iter().all(|l| l.1 != *place);
                // A thread that reads again may be waiting for the put: until it completes, only the thread's last read
                // is informative.
                let tells = op.completed.is_some_and(|completed| completed < read)
                    || (op.verb == "put" && self.is_last_look(timeline, read));
                let stale = tells && (never || lands.is_some_and(|(_, lands)| lands != value));
                let torn = op.landed.first().is_some_and(|l| l.0 < read)
                    && (op.landed.last().is_some_and(|l| l.0 > read) || op.lands_later())
                    && op.landed.iter().any(|l| l.1 == *place);
                if stale || torn {
                    let wholly = op.landed.last().map(|l| l.0).filter(|_| !op.lands_later());
                    let lands = if torn { wholly } else { lands.map(|l| l.0) };
                    let found = op.landed.iter().any(|l| l.0 < read && l.1 == *place);
                    self.hints.push(Hint { read, op: op.id, torn, found, lands });
                }
            }
        }
        let fails = timeline.failure.as_ref().and_then(|f| f.thread);
        let failure = self.failure.unwrap_or(timeline.events.len());
        self.hints.sort_by_key(|hint| {
            (Some(timeline.events[hint.read].thread) != fails, hint.read > failure, failure.abs_diff(hint.read))
        });
    }
}

impl Story<'_> {
    /// Whether a read is the last one of its cell by its thread.
    fn is_last_look(&self, timeline: &Timeline, read: usize) -> bool {
        let thread = timeline.events[read].thread;
        let again = |(later, event): (usize, &Event)| {
            event.thread == thread
                && matches!(event.what, What::Read { .. } | What::NicRead { .. })
                && self.places[later] == self.places[read]
        };
        !timeline.events.iter().enumerate().skip(read + 1).any(again)
    }
}

/// The operation to which an event belongs.
pub(super) fn op_of(what: &What) -> Option<u32> {
    match what {
        What::Issue { op, .. }
        | What::NicRead { op, .. }
        | What::Started { op }
        | What::Landed { op, .. }
        | What::Completed { op }
        | What::Seen { op } => Some(*op),
        _ => None,
    }
}

/// Whether an event happens behind its thread's back.
pub(super) fn is_background(what: &What) -> bool {
    use What::*;
    matches!(what, Drained { .. } | NicRead { .. } | Started { .. } | Landed { .. } | Completed { .. })
}

/// The value that an event finds in memory or puts there, and whether it puts it.
fn memory_access(what: &What) -> Option<(u64, bool)> {
    match what {
        What::Read { value, buffered: false, .. } | What::NicRead { value, .. } => Some((*value, false)),
        What::Drained { value, .. } | What::Landed { value, .. } => Some((*value, true)),
        What::Rmw { new, .. } => Some((*new, true)),
        _ => None,
    }
}

/// "n2 z" is z of node 2, "z" that of `node`.
fn place(cell: &str, node: u16) -> Place {
    let named = cell.strip_prefix('n').and_then(|rest| rest.split_once(' '));
    match named.and_then(|(digits, name)| Some((digits.parse().ok()?, name))) {
        Some((node, name)) => (node, name.trim().to_string()),
        None => (node, cell.to_string()),
    }
}
