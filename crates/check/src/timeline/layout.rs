//! Positions of everything: lanes from top to bottom, bars in the rows of their NIC's lane, labels where there is room.

use super::story::{Op, Story, is_background};
use super::{Timeline, What};
use std::collections::{BTreeMap, BTreeSet};

/// The initial width of a column, before zooming.
pub(super) const COLUMN_PX: f64 = 28.0;
/// Room on the right for the text at the end of a lane.
pub(super) const END_PX: f64 = 150.0;
const CHAR_PX: f64 = 7.3;
/// Longer labels are cut; the tooltip and the table have the whole.
pub(super) const LABEL_CHARS_MAX: usize = 40;
const AXIS_HEIGHT: u32 = 28;
/// Heights of a thread's lane and of a memory's with one row of labels, and of another row.
const THREAD_HEIGHT: u32 = 44;
const MEMORY_HEIGHT: u32 = 42;
const LABEL_HEIGHT: u32 = 14;
const LABEL_ROWS_MAX: usize = 4;
const BAR_HEIGHT: u32 = 34;
const NODE_GAP: u32 = 10;

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Thread(usize),
    Nic,
    Memory,
}

/// A lane of the picture.
pub(super) struct Strip {
    pub(super) kind: Kind,
    pub(super) node: u16,
    pub(super) name: String,
    pub(super) y: u32,
    pub(super) height: u32,
    /// How many rows of labels it has, none in a NIC's lane.
    pub(super) rows: u32,
}

impl Strip {
    /// The height of its marks.
    pub(super) fn rail(&self) -> u32 {
        self.y + if self.kind == Kind::Memory { 12 } else { 27 }
    }
}

pub(super) struct Layout {
    pub(super) strips: Vec<Strip>,
    /// Top of the row of each operation's bar.
    pub(super) bars: BTreeMap<u32, u32>,
    pub(super) columns: usize,
    pub(super) height: u32,
    /// Names of threads that do nothing, which have no lane.
    pub(super) idle: Vec<String>,
}

impl Layout {
    pub(super) fn of(timeline: &Timeline, story: &Story) -> Self {
        let at_end = story.failure.filter(|&rank| rank >= timeline.events.len());
        let mut layout = Layout {
            strips: Vec::new(),
            bars: BTreeMap::new(),
            columns: timeline.events.len() + usize::from(at_end.is_some()),
            height: AXIS_HEIGHT,
            idle: Vec::new(),
        };
        let mut nodes: BTreeSet<u16> = timeline.threads.iter().map(|lane| lane.node).collect();
        nodes.extend(timeline.events.iter().map(|event| timeline.node_of(event.thread)));
        nodes.extend(story.places.iter().flatten().map(|place| place.0));
        for node in nodes {
            let before = layout.strips.len();
            for (thread, lane) in timeline.threads.iter().enumerate().filter(|(_, lane)| lane.node == node) {
                if works(timeline, thread) {
                    let own = |rank: &usize| {
                        let event = &timeline.events[*rank];
                        event.thread == thread && !is_background(&event.what)
                    };
                    let rows = label_rows((0..timeline.events.len()).filter(own));
                    layout.add(Kind::Thread(thread), node, &lane.name, (THREAD_HEIGHT, rows));
                } else {
                    layout.idle.push(timeline.name_of(thread));
                }
            }
            let top = layout.height;
            let rows = layout.pack(story.ops.values().filter(|op| op.node == node), top);
            if rows > 0 {
                layout.add(Kind::Nic, node, "NIC", (rows * BAR_HEIGHT + 4, 0));
            }
            let here = |rank: &usize| story.places[*rank].as_ref().is_some_and(|place| place.0 == node);
            if (0..story.places.len()).any(|rank| here(&rank)) {
                let told = |rank: &usize| here(rank) && (story.changes[*rank].is_some() || story.is_early(*rank));
                let rows = label_rows((0..story.places.len()).filter(told));
                layout.add(Kind::Memory, node, "memory", (MEMORY_HEIGHT, rows));
            }
            if layout.strips.len() > before {
                layout.height += NODE_GAP;
            }
        }
        layout
    }

    fn add(&mut self, kind: Kind, node: u16, name: &str, (height, rows): (u32, u32)) {
        let height = height + rows.saturating_sub(1) * LABEL_HEIGHT;
        self.strips.push(Strip { kind, node, name: name.to_string(), y: self.height, height, rows });
        self.height += height;
    }

    /// Puts each bar in the first row that is free, with some columns for its label. Returns how many rows it used.
    fn pack<'a>(&mut self, ops: impl Iterator<Item = &'a Op<'a>>, top: u32) -> u32 {
        let mut ops: Vec<_> = ops.collect();
        ops.sort_by_key(|op| op.issue);
        let mut free_from: Vec<usize> = Vec::new();
        for op in ops {
            let label = (op.text.chars().count().min(LABEL_CHARS_MAX) as f64 * CHAR_PX / COLUMN_PX) as usize + 2;
            let row = free_from.iter().position(|&free| free <= op.issue).unwrap_or(free_from.len());
            free_from.resize(free_from.len().max(row + 1), 0);
            free_from[row] = op.end().unwrap_or(self.columns).max(op.issue + label) + 1;
            self.bars.insert(op.id, top + row as u32 * BAR_HEIGHT + 2);
        }
        free_from.len() as u32
    }

    pub(super) fn thread(&self, thread: usize) -> Option<&Strip> {
        self.strips.iter().find(|strip| strip.kind == Kind::Thread(thread))
    }

    pub(super) fn memory(&self, node: u16) -> Option<&Strip> {
        self.strips.iter().find(|strip| strip.kind == Kind::Memory && strip.node == node)
    }
}

/// The rows of labels that events of these ranks need: as many as crowd within the width of a label.
fn label_rows(ranks: impl Iterator<Item = usize>) -> u32 {
    let ranks: Vec<usize> = ranks.collect();
    let crowd = |(i, rank): (usize, &usize)| ranks[i..].iter().take_while(|&&other| other < rank + 4).count();
    ranks.iter().enumerate().map(crowd).max().unwrap_or(1).min(LABEL_ROWS_MAX) as u32
}

/// Whether a thread does more than wait, or is the failing one.
fn works(timeline: &Timeline, thread: usize) -> bool {
    let fails = timeline.failure.as_ref().is_some_and(|f| f.thread == Some(thread));
    let mut own = timeline.events.iter().filter(|e| e.thread == thread && !is_background(&e.what));
    fails || own.any(|e| !matches!(e.what, What::Waits { .. } | What::Woken))
}

/// A label that starts in the middle of column `rank`, or `shift_px` from it.
pub(super) struct Label {
    pub(super) rank: f64,
    pub(super) shift_px: f64,
    pub(super) text: String,
    /// Whether it has priority over other labels where room is short.
    pub(super) first: bool,
    /// Attributes and class of the text.
    pub(super) attributes: String,
}

impl Label {
    pub(super) fn x(&self) -> f64 {
        (self.rank + 0.5) * COLUMN_PX + self.shift_px
    }

    pub(super) fn width_px(&self) -> f64 {
        self.text.chars().count() as f64 * CHAR_PX + 6.0
    }
}

/// The row of each label of a lane, none for those which would cover another. The page's script does the same after
/// each change of the columns' width.
pub(super) fn fit(labels: &[Label], rows: usize) -> Vec<Option<usize>> {
    let mut taken: Vec<Vec<(f64, f64)>> = vec![Vec::new(); rows];
    let mut placed = vec![None; labels.len()];
    let first = (0..labels.len()).filter(|&i| labels[i].first);
    let others = (0..labels.len()).filter(|&i| !labels[i].first);
    for i in first.chain(others) {
        let (from, to) = (labels[i].x(), labels[i].x() + labels[i].width_px());
        placed[i] = taken.iter().position(|row| row.iter().all(|other| to <= other.0 || other.1 <= from));
        if let Some(row) = placed[i] {
            taken[row].push((from, to));
        }
    }
    placed
}
