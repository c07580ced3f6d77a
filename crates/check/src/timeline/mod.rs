//! One execution as a page: a lane for each thread, NIC and memory, operations as bars, and the point of failure.
//!
//! A recorder fills a [`Timeline`], and [`Timeline::to_html`] renders it. The page is self-contained (no file or
//! address beside it) and is a function of the timeline. `story` relates the events (each landing to its operation, and
//! each read to a later landing that it should perhaps have seen). `layout` assigns positions, `svg` draws, `page`
//! writes the text around the picture, and `text` writes lines for a terminal. Columns are ranks of events, so that
//! gaps in the schedule take no room. The script only stretches columns, and hides labels that do not fit.

mod layout;
mod number;
mod page;
#[cfg(test)]
mod samples;
mod story;
mod svg;
#[cfg(test)]
mod tests;
mod text;

pub(crate) use number::number;

/// An execution to show.
///
/// ```
/// use farfield_check::timeline::{Event, Lane, Timeline, What};
/// let timeline = Timeline {
///     title: "a store".into(),
///     threads: vec![Lane { name: "writer".into(), node: 0 }],
///     events: vec![Event { step: 1, time_ns: 0, thread: 0, what: What::Write { cell: "x".into(), value: 1 } }],
///     ..Timeline::default()
/// };
/// assert!(timeline.to_text().contains("writer on n0"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// The subject of the check: the heading of the page.
    pub title: String,
    /// A paragraph under it.
    pub about: String,
    /// The replay line of this execution.
    pub replay: String,
    /// The failure, if there is one.
    pub failure: Option<Failure>,
    /// The threads; events name them by index.
    pub threads: Vec<Lane>,
    /// The events, by ascending step.
    pub events: Vec<Event>,
}

/// The failing moment.
///
/// ```
/// # use farfield_check::timeline::{Failure, Lane, Timeline};
/// let failure = Failure { step: 9, thread: Some(0), message: "it read 0".into() };
/// let threads = vec![Lane { name: "reader".into(), node: 3 }];
/// let timeline = Timeline { threads, failure: Some(failure), ..Timeline::default() };
/// assert!(timeline.to_text().contains("it read 0"));
/// ```
#[derive(Clone, Debug)]
pub struct Failure {
    /// Its step; after the last event if that is where an assertion about the end fails.
    pub step: u64,
    /// The thread that fails.
    pub thread: Option<usize>,
    /// The property that does not hold.
    pub message: String,
}

/// A thread.
///
/// ```
/// # use farfield_check::timeline::{Failure, Lane, Timeline};
/// let reader = Lane { name: "reader".into(), node: 3 };
/// # let failure = Some(Failure { step: 9, thread: Some(0), message: "it read 0".into() });
/// let timeline = Timeline { threads: vec![reader], failure, ..Timeline::default() };
/// assert_eq!(timeline.failing_thread().unwrap(), "reader on n3");
/// ```
#[derive(Clone, Debug)]
pub struct Lane {
    /// Its task, in a word: "reader", "service".
    pub name: String,
    /// The node on which it runs.
    pub node: u16,
}

/// A step of the execution.
///
/// ```
/// # use farfield_check::timeline::{Event, What};
/// let put = What::Issue { op: 1, verb: "put", peer: 1, text: "x=1 → n1 z".into() };
/// let event = Event { step: 3, time_ns: 0, thread: 0, what: put };
/// # assert_eq!(event.step, 3);
/// ```
#[derive(Clone, Debug)]
pub struct Event {
    /// Its position in the schedule.
    pub step: u64,
    /// Virtual time in nanoseconds, mostly 0.
    pub time_ns: u64,
    /// The thread, which for a step of a NIC is the one that issued the operation.
    pub thread: usize,
    /// The event.
    pub what: What,
}

/// The event of a step. CPU writes enter the store buffer before they reach memory, those of a NIC its buffer.
///
/// A cell is named `z` or `n2 z`. Without a node it is on the thread's own node or, where the NIC reads or writes
/// remotely, on the operation's peer: a put lands there and reads its source here, a get the other way round, the first
/// landing of an atomic is there and a second one here.
///
/// ```
/// # use farfield_check::timeline::What;
/// let landed = What::Landed { op: 1, cell: "n1 z".into(), value: 1 };
/// # assert!(matches!(landed, What::Landed { op: 1, .. }));
/// ```
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "a variant's comment speaks for its fields")]
pub enum What {
    /// The CPU reads memory, or its own store buffer.
    Read { cell: String, value: u64, buffered: bool },
    /// A write of the CPU enters the store buffer.
    Write { cell: String, value: u64 },
    /// A write of the CPU reaches memory.
    Drained { cell: String, value: u64 },
    /// An atomic of the CPU.
    Rmw { cell: String, old: u64, new: u64 },
    /// The thread issues operation `op`: a `put`, `get`, `cas`, `faa` or `fence`. Numbers are unique in the execution.
    /// The text of a put ends with `→` and its target, which matters if the put never lands.
    Issue { op: u32, verb: &'static str, peer: u16, text: String },
    /// The NIC reads a word, at the source or remotely.
    NicRead { op: u32, cell: String, value: u64 },
    /// The write enters the NIC's buffer.
    Started { op: u32 },
    /// A word reaches memory: its placement.
    Landed { op: u32, cell: String, value: u64 },
    /// The operation is complete, a wait may see it.
    Completed { op: u32 },
    /// The thread sees the completion.
    Seen { op: u32 },
    /// The thread begins to wait, for this.
    Waits { text: String },
    /// The thread continues.
    Woken,
    /// The thread acquires a lock.
    Lock { name: String },
    /// It releases it.
    Unlock { name: String },
    /// The thread sends a control message to a node.
    Message { to: u16, text: String },
    /// It receives one.
    Received { from: u16, text: String },
    /// The thread reads the clock.
    Clock { ns: u64 },
    /// Anything else worth a word.
    Note { text: String },
}

impl Timeline {
    /// The page. Indices of threads that do not exist are shown as a thread of node 0.
    ///
    /// ```
    /// # use farfield_check::timeline::Timeline;
    /// let timeline = Timeline { title: "a lost addition".into(), ..Timeline::default() };
    /// let page = timeline.to_html(); // self-contained: write it to a file
    /// assert!(page.contains("a lost addition"));
    /// ```
    pub fn to_html(&self) -> String {
        let story = story::Story::of(self);
        let layout = layout::Layout::of(self, &story);
        page::render(self, &story, &layout)
    }

    /// The events as lines, and how it ends.
    ///
    /// ```
    /// # use farfield_check::timeline::{Event, Lane, Timeline, What};
    /// let timeline = Timeline {
    ///     threads: vec![Lane { name: "reader".into(), node: 3 }],
    ///     events: vec![Event { step: 1, time_ns: 0, thread: 0, what: What::Note { text: "begins".into() } }],
    ///     ..Timeline::default()
    /// };
    /// assert!(timeline.to_text().contains("begins"));
    /// ```
    pub fn to_text(&self) -> String {
        text::render(self, &story::Story::of(self))
    }

    /// The failing thread: "reader on n3".
    ///
    /// ```
    /// # use farfield_check::timeline::{Failure, Lane, Timeline};
    /// let timeline = Timeline {
    ///     threads: vec![Lane { name: "reader".into(), node: 3 }],
    ///     failure: Some(Failure { step: 9, thread: Some(0), message: "it read 0".into() }),
    ///     ..Timeline::default()
    /// };
    /// assert_eq!(timeline.failing_thread().unwrap(), "reader on n3");
    /// ```
    pub fn failing_thread(&self) -> Option<String> {
        self.failure.as_ref()?.thread.map(|thread| self.name_of(thread))
    }

    fn node_of(&self, thread: usize) -> u16 {
        self.threads.get(thread).map_or(0, |lane| lane.node)
    }

    /// "reader on n3".
    fn name_of(&self, thread: usize) -> String {
        match self.threads.get(thread) {
            Some(lane) => format!("{} on n{}", lane.name, lane.node),
            None => format!("thread {thread}"),
        }
    }
}
