//! The places of all boxes and lines. Columns are threads, with gutters between them; rows are calls, with channels
//! between them. Arrows run in gutters and channels only, so that they cross no box.

use std::collections::BTreeMap;

use crate::witness::Graph;

/// An arrow to be drawn.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) label: String,
    pub(super) is_cycle: bool,
}

pub(super) type Point = (f64, f64);
/// From, two points that it bends towards, to.
pub(super) type Curve = [Point; 4];

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Rect {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Rect {
    fn overlaps(&self, other: &Rect) -> bool {
        self.x < other.x + other.width
            && other.x < self.x + self.width
            && self.y < other.y + other.height
            && other.y < self.y + self.height
    }

    fn has(&self, (x, y): Point) -> bool {
        (self.x..self.x + self.width).contains(&x) && (self.y..self.y + self.height).contains(&y)
    }
}

/// The width of a character of size 12.
pub(super) const CHARACTER: f64 = 7.3;
/// The same of size 13.
const LARGE: f64 = 7.9;
/// The height of a line of text.
pub(super) const LINE_HEIGHT: f64 = 17.0;
/// The height of a subevent.
const SUBEVENT: f64 = 22.0;
const INITIAL: f64 = 24.0;
const HEADER: f64 = 22.0;
/// Between an arrow and the next one beside it.
const LANE: f64 = 26.0;

fn width_of(text: &str, character: f64) -> f64 {
    text.chars().count() as f64 * character
}

#[derive(Debug, Default)]
pub(super) struct Layout {
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) headers: Vec<(Rect, String)>,
    /// The boxes of the calls.
    pub(super) calls: Vec<Rect>,
    /// Those of the subevents; of the initial writes, only if an arrow touches them.
    pub(super) subevents: Vec<Option<Rect>>,
    /// The way of each line, and its label.
    pub(super) paths: Vec<Vec<Curve>>,
    pub(super) labels: Vec<Rect>,
}

/// The facts that are known before anything has a place.
struct Plan<'a> {
    graph: &'a Graph,
    lines: &'a [Line],
    /// The row of each call.
    rows: Vec<usize>,
    columns: usize,
    /// How far the widest box of each column reaches.
    widths: Vec<f64>,
    /// For each line within a column, which lane it runs in.
    lanes: BTreeMap<usize, usize>,
    /// For each line that crosses columns, which channel it runs in, and how many ran there before it.
    channels: BTreeMap<usize, (usize, usize)>,
    /// The initial writes that are drawn, with the gutter above which they are.
    initial: Vec<(usize, usize)>,
}

/// Where a line begins or ends, at one side of a subevent.
struct End {
    /// First those that lead up within the column, then those to others, then those that lead down.
    group: usize,
    /// Its vertical position in its group.
    y: f64,
    line: usize,
    is_from: bool,
}

/// How often more room is made for labels.
const ATTEMPTS_MAX: usize = 8;

impl Layout {
    pub(super) fn new(graph: &Graph, headers: Vec<String>, lines: &[Line]) -> Layout {
        let plan = Plan::new(graph, &headers, lines);
        let mut room = 1.0;
        for _ in 1..ATTEMPTS_MAX {
            let (layout, is_clear) = plan.lay_out(&headers, room);
            if is_clear {
                return layout;
            }
            room *= 1.15;
        }
        plan.lay_out(&headers, room).0
    }
}

impl<'a> Plan<'a> {
    fn new(graph: &'a Graph, headers: &[String], lines: &'a [Line]) -> Plan<'a> {
        let columns = headers.len();
        let mut widths: Vec<f64> = headers.iter().map(|header| width_of(header, LARGE)).collect();
        let mut counts = vec![0; columns];
        let mut rows = Vec::new();
        for call in &graph.calls {
            rows.push(counts[call.thread]);
            counts[call.thread] += 1;
            let width = &mut widths[call.thread];
            *width = width.max(width_of(&call.text, LARGE) + 20.0);
            for subevent in &graph.subevents[call.subevents.clone()] {
                *width = width.max(width_of(&subevent.to_string(), CHARACTER) + 32.0);
            }
        }
        let (lanes, channels) = (BTreeMap::new(), BTreeMap::new());
        let mut plan = Plan { graph, lines, rows, columns, widths, lanes, channels, initial: Vec::new() };
        plan.place_initial();
        plan.choose_lanes();
        plan.choose_channels();
        plan
    }

    /// The column of a subevent, and its place from above.
    fn place(&self, at: usize) -> Option<(usize, (usize, usize))> {
        let call = self.graph.subevents[at].call?;
        let thread = self.graph.calls[call].thread;
        Some((thread, (self.rows[call], at - self.graph.calls[call].subevents.start)))
    }

    /// The gutter that a column's own arrows run in; and those from initial writes, on the other side of a lonely
    /// column.
    fn own_gutter(&self, column: usize) -> usize {
        if column == 0 && self.columns > 1 { 0 } else { column + 1 }
    }

    fn initial_gutter(&self, column: usize) -> usize {
        if column > 0 && column + 1 == self.columns { column + 1 } else { column }
    }

    fn place_initial(&mut self) {
        let mut initial = Vec::new();
        for line in self.lines {
            for (at, other) in [(line.from, line.to), (line.to, line.from)] {
                if let (None, Some((column, down))) = (self.place(at), self.place(other))
                    && !initial.iter().any(|(_, _, known)| *known == at)
                {
                    initial.push((self.initial_gutter(column), down, at));
                }
            }
        }
        // An initial write that leads further down is further out.
        initial.sort();
        let (right, mut left): (Vec<_>, Vec<_>) = initial.into_iter().partition(|it| it.0 > 0 && it.0 == self.columns);
        left.reverse();
        self.initial = left.into_iter().chain(right).map(|(gutter, _, at)| (at, gutter)).collect();
    }

    /// Lines within a column: the short ones run inside of the long ones.
    fn choose_lanes(&mut self) {
        let mut within: Vec<_> = self
            .lines
            .iter()
            .enumerate()
            .filter_map(|(at, line)| {
                let (from, to) = (self.place(line.from)?, self.place(line.to)?);
                (from.0 == to.0).then_some((at, from.0, from.1.min(to.1), from.1.max(to.1)))
            })
            .collect();
        within.sort_by_key(|(_, column, first, last)| {
            (*column, last.0 - first.0, if last.0 == first.0 { last.1 - first.1 } else { 0 })
        });
        for (index, (at, column, first, last)) in within.iter().enumerate() {
            let beside =
                within[..index].iter().filter(|other| other.1 == *column && other.2 < *last && *first < other.3);
            let taken: Vec<usize> = beside.filter_map(|other| self.lanes.get(&other.0).copied()).collect();
            let lane = (0..).find(|lane| !taken.contains(lane)).expect("lanes have no end");
            self.lanes.insert(*at, lane);
        }
    }

    fn choose_channels(&mut self) {
        let mut used: BTreeMap<usize, usize> = BTreeMap::new();
        for (at, line) in self.lines.iter().enumerate() {
            let (Some(from), Some(to)) = (self.place(line.from), self.place(line.to)) else { continue };
            if from.0.abs_diff(to.0) < 2 {
                continue;
            }
            let (first, last) = (from.1.0.min(to.1.0), from.1.0.max(to.1.0));
            // Between the two rows; beside them, where the fewest are.
            let options = if first == last { first..=first + 1 } else { first + 1..=last };
            let channel = options.min_by_key(|channel| used.get(channel).copied().unwrap_or(0)).unwrap_or(first);
            let before = used.entry(channel).or_default();
            self.channels.insert(at, (channel, *before));
            *before += 1;
        }
    }

    /// How wide a gutter has to be.
    fn gutter(&self, gutter: usize) -> f64 {
        let mut lanes = 0;
        let mut characters = 0;
        let mut has_crossing = false;
        for (at, line) in self.lines.iter().enumerate() {
            let columns = (self.place(line.from).map(|place| place.0), self.place(line.to).map(|place| place.0));
            let is_here = match columns {
                (Some(from), Some(to)) if from == to => {
                    let is_here = self.own_gutter(from) == gutter;
                    if is_here {
                        lanes = lanes.max(self.lanes[&at] + 1);
                    }
                    is_here
                }
                (Some(from), Some(to)) => {
                    let is_here = (from.min(to) + 1..=from.max(to)).contains(&gutter);
                    has_crossing |= is_here;
                    is_here
                }
                (None, Some(column)) | (Some(column), None) => self.initial_gutter(column) == gutter,
                (None, None) => false,
            };
            if is_here {
                characters = characters.max(line.label.chars().count());
            }
        }
        let initial = self.initial.iter().filter(|initial| initial.1 == gutter);
        let initial: f64 = initial.map(|initial| self.initial_width(initial.0) + 12.0).sum();
        let is_inside = gutter > 0 && gutter < self.columns;
        let label = if characters > 0 { characters as f64 * CHARACTER + 12.0 } else { 0.0 };
        let crossing = if has_crossing { 60.0 } else { 0.0 };
        let least = if is_inside { 36.0 } else { 0.0 };
        let beside = lanes as f64 * LANE + label + crossing;
        if is_inside { beside.max(initial + 8.0).max(least) } else { beside + initial }
    }

    fn initial_width(&self, at: usize) -> f64 {
        width_of(&self.graph.subevents[at].to_string(), CHARACTER) + 20.0
    }

    /// Everything's place, with so much room in gutters; and whether no label is in the way.
    fn lay_out(&self, headers: &[String], room: f64) -> (Layout, bool) {
        let mut layout = Layout { subevents: vec![None; self.graph.subevents.len()], ..Layout::default() };
        // From left to right.
        let mut gutters = Vec::new();
        let mut columns = Vec::new();
        for gutter in 0..=self.columns {
            let width = self.gutter(gutter) * room;
            gutters.push((layout.width, width));
            layout.width += width;
            if let Some(width) = self.widths.get(gutter) {
                columns.push((layout.width, *width));
                layout.width += width;
            }
        }
        // From above.
        for (gutter, (left, width)) in gutters.iter().enumerate() {
            let here: Vec<usize> = self.initial.iter().filter(|it| it.1 == gutter).map(|it| it.0).collect();
            let total: f64 = here.iter().map(|at| self.initial_width(*at) + 12.0).sum::<f64>() - 12.0;
            let mut x = match gutter {
                0 => *left,
                last if last == self.columns => left + width - total,
                _ => left + (width - total) / 2.0,
            };
            for at in here {
                let width = self.initial_width(at);
                layout.subevents[at] = Some(Rect { x, y: 0.0, width, height: INITIAL });
                x += width + 12.0;
            }
        }
        let y = if self.initial.is_empty() { 0.0 } else { INITIAL + 24.0 };
        for (header, (x, width)) in headers.iter().zip(&columns) {
            layout.headers.push((Rect { x: *x, y, width: *width, height: HEADER }, header.clone()));
        }
        let channels = self.stack(&mut layout, &columns, y + HEADER, room);
        self.route(&mut layout, &columns, &gutters, &channels);
        let is_clear = self.label(&mut layout);
        (layout, is_clear)
    }

    /// The calls, from above; and where each channel begins.
    fn stack(&self, layout: &mut Layout, columns: &[(f64, f64)], top: f64, room: f64) -> BTreeMap<usize, f64> {
        // Between two used channels, columns are independent.
        let mut channels = BTreeMap::new();
        let mut bottoms = vec![top; self.columns];
        layout.calls = vec![Rect { x: 0.0, y: 0.0, width: 0.0, height: 0.0 }; self.rows.len()];
        for row in 0..=self.rows.iter().max().map_or(0, |row| row + 1) {
            let used = self.channels.values().filter(|channel| channel.0 == row).count();
            if used > 0 {
                let bottom = bottoms.iter().copied().fold(top, f64::max);
                channels.insert(row, bottom);
                bottoms.fill(bottom + 8.0 + 20.0 * used as f64);
            }
            for (call, shown) in self.graph.calls.iter().enumerate().filter(|(call, _)| self.rows[*call] == row) {
                let (x, width) = columns[shown.thread];
                let y = bottoms[shown.thread] + if row == 0 { 4.0 } else { 16.0 * room };
                let mut below = y + 26.0;
                for at in shown.subevents.clone() {
                    layout.subevents[at] = Some(Rect { x: x + 6.0, y: below, width: width - 12.0, height: SUBEVENT });
                    below += SUBEVENT + 8.0;
                }
                layout.calls[call] = Rect { x, y, width, height: below - y };
                bottoms[shown.thread] = below;
            }
        }
        layout.height = bottoms.into_iter().fold(top, f64::max);
        channels
    }

    /// The sides on which a line leaves its first end and reaches its second: left, or right.
    fn sides(&self, line: &Line) -> (bool, bool) {
        let columns = (self.place(line.from).map(|place| place.0), self.place(line.to).map(|place| place.0));
        match columns {
            (Some(from), Some(to)) if from == to => (self.own_gutter(from) == from, self.own_gutter(from) == from),
            (Some(from), Some(to)) => (to < from, from < to),
            (None, Some(to)) => (false, self.initial_gutter(to) == to),
            (Some(from), None) => (self.initial_gutter(from) == from, false),
            (None, None) => (false, false),
        }
    }

    /// How far down a line runs that is in a channel behind others.
    fn level(&self, channels: &BTreeMap<usize, f64>, channel: usize, before: usize) -> f64 {
        channels[&channel] + 14.0 + 20.0 * before as f64
    }

    /// Where each line touches its ends: in such an order that lines of a column do not cross, and others seldom.
    fn anchors(&self, layout: &Layout, channels: &BTreeMap<usize, f64>) -> Vec<(Point, Point)> {
        let rect = |at: usize| layout.subevents[at].expect("what a line leads from or to is drawn");
        // Those of a subevent's side.
        let mut ends: BTreeMap<(usize, bool), Vec<End>> = BTreeMap::new();
        for (at, line) in self.lines.iter().enumerate() {
            let (left_from, left_to) = self.sides(line);
            let is_around = match (self.place(line.from), self.place(line.to)) {
                (Some(from), Some(to)) => from.0 == to.0,
                _ => true,
            };
            let end = |here: usize, there: usize, is_from: bool| {
                let (group, y) = match self.channels.get(&at) {
                    Some((channel, before)) => (1, self.level(channels, *channel, *before)),
                    None if !is_around => (1, rect(there).y),
                    // The lines that go further up or down pass around the others.
                    None => (if rect(there).y < rect(here).y { 0 } else { 2 }, -rect(there).y),
                };
                End { group, y, line: at, is_from }
            };
            ends.entry((line.from, left_from)).or_default().push(end(line.from, line.to, true));
            ends.entry((line.to, left_to)).or_default().push(end(line.to, line.from, false));
        }
        let mut anchors = vec![((0.0, 0.0), (0.0, 0.0)); self.lines.len()];
        for ((at, is_left), mut all) in ends {
            all.sort_by(|a, b| a.group.cmp(&b.group).then(a.y.total_cmp(&b.y)));
            let rect = rect(at);
            let step = (14.0 / all.len() as f64).min(7.0);
            for (index, end) in all.iter().enumerate() {
                let offset = (index as f64 - (all.len() - 1) as f64 / 2.0) * step;
                let x = if is_left { rect.x } else { rect.x + rect.width };
                let point = (x, rect.y + rect.height / 2.0 + offset);
                if end.is_from { anchors[end.line].0 = point } else { anchors[end.line].1 = point }
            }
        }
        anchors
    }

    fn route(
        &self,
        layout: &mut Layout,
        columns: &[(f64, f64)],
        gutters: &[(f64, f64)],
        channels: &BTreeMap<usize, f64>,
    ) {
        let anchors = self.anchors(layout, channels);
        for (at, line) in self.lines.iter().enumerate() {
            let ((x1, y1), (x2, y2)) = anchors[at];
            let path = match (self.place(line.from), self.place(line.to)) {
                (Some(from), Some(to)) if from.0 == to.0 => {
                    // It reaches three quarters of the way, and there its label is to be clear of the box.
                    let least = (width_of(&line.label, CHARACTER) / 2.0 + 12.0) / 0.75;
                    let out = LANE * self.lanes[&at] as f64 + least.max(31.0);
                    let x = if self.own_gutter(from.0) == from.0 { x1 - out } else { x1 + out };
                    vec![[(x1, y1), (x, y1), (x, y2), (x2, y2)]]
                }
                (Some(_), Some(_)) => match self.channels.get(&at) {
                    None => vec![across((x1, y1), (x2, y2))],
                    Some((channel, before)) => {
                        let y = self.level(channels, *channel, *before);
                        // Beyond the columns that are between the two.
                        let (from, to) = (self.place(line.from), self.place(line.to));
                        let (from, to) = (from.map_or(0, |it| it.0), to.map_or(0, |it| it.0));
                        let left = columns[from.min(to) + 1].0;
                        let right = columns[from.max(to) - 1].0 + columns[from.max(to) - 1].1;
                        let (first, last) = if from < to { (left, right) } else { (right, left) };
                        vec![across((x1, y1), (first, y)), across((first, y), (last, y)), across((last, y), (x2, y2))]
                    }
                },
                (None, to) => self.below_initial(layout, line.from, (x2, y2), to.map_or(0, |to| to.0), gutters),
                (Some(from), None) => {
                    let mut path = self.below_initial(layout, line.to, (x1, y1), from.0, gutters);
                    path.reverse();
                    path.into_iter().map(|[from, a, b, to]| [to, b, a, from]).collect()
                }
            };
            layout.paths.push(path);
        }
    }

    /// The way from an initial write down to a column.
    fn below_initial(
        &self,
        layout: &Layout,
        at: usize,
        (x2, y2): Point,
        column: usize,
        gutters: &[(f64, f64)],
    ) -> Vec<Curve> {
        let rect = layout.subevents[at].expect("what a line leads from is drawn");
        let start = (rect.x + rect.width / 2.0, rect.y + rect.height);
        let (left, width) = gutters[self.initial_gutter(column)];
        let down = |(x, y): Point| [(x, y), (x, y + (y2 - y) * 0.75), ((x + x2) / 2.0, y2), (x2, y2)];
        if (left..=left + width).contains(&start.0) {
            return vec![down(start)];
        }
        // Above the headers to the other gutter.
        let (turn, sky) = (left + width / 2.0, start.1 + 14.0);
        let (middle, below) = (((start.0 + turn) / 2.0, sky), (turn, sky + 20.0));
        vec![[start, (start.0, sky), (start.0, sky), middle], [middle, (turn, sky), (turn, sky), below], down(below)]
    }

    /// Puts each label onto its line, where it covers nothing. Returns whether there was such a place for all.
    fn label(&self, layout: &mut Layout) -> bool {
        let points: Vec<Vec<Point>> = layout.paths.iter().map(|path| points(path)).collect();
        let headers = layout.headers.iter().map(|header| header.0);
        let boxes: Vec<Rect> = layout.calls.iter().copied().chain(headers).collect();
        let initial: Vec<Rect> = self.initial.iter().filter_map(|initial| layout.subevents[initial.0]).collect();
        let mut is_clear = true;
        for (at, line) in self.lines.iter().enumerate() {
            let width = width_of(&line.label, CHARACTER) + 4.0;
            let mut best: Option<(f64, Rect)> = None;
            for step in 2..=38 {
                let along = f64::from(step) / 40.0;
                let (x, y) = points[at][((points[at].len() - 1) as f64 * along) as usize];
                let rect = Rect { x: x - width / 2.0, y: y - 8.0, width, height: 16.0 };
                let hits =
                    boxes.iter().chain(&initial).chain(&layout.labels).filter(|other| other.overlaps(&rect)).count();
                let is_outside = rect.x < 0.0 || rect.x + width > layout.width || rect.y < 0.0;
                let is_outside = is_outside || rect.y + rect.height > layout.height;
                let others = points.iter().enumerate().filter(|(other, _)| *other != at);
                let crossed = others.filter(|(_, points)| points.iter().any(|point| rect.has(*point))).count();
                let cost = (hits + usize::from(is_outside)) as f64 * 100.0 + crossed as f64 + (along - 0.5).abs();
                if best.is_none_or(|best| cost < best.0) {
                    best = Some((cost, rect));
                }
            }
            let (cost, rect) = best.expect("every line has points");
            is_clear &= cost < 100.0;
            layout.labels.push(rect);
        }
        is_clear
    }
}

/// A curve that leaves and arrives sideways.
fn across(from: Point, to: Point) -> Curve {
    let bend = (to.0 - from.0) * 0.5;
    [from, (from.0 + bend, from.1), (to.0 - bend, to.1), to]
}

/// Points on a path, at even distances of the parameter.
fn points(path: &[Curve]) -> Vec<Point> {
    let mut points = Vec::new();
    for [from, a, b, to] in path {
        for step in 0..=40 {
            let t = f64::from(step) / 40.0;
            let of = |p: f64, q: f64, r: f64, s: f64| {
                let u = 1.0 - t;
                u * u * u * p + 3.0 * u * u * t * q + 3.0 * u * t * t * r + t * t * t * s
            };
            points.push((of(from.0, a.0, b.0, to.0), of(from.1, a.1, b.1, to.1)));
        }
    }
    points
}
