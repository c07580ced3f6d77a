//! The kinds of faults, and which of them a scenario may have.

use core::fmt;

use super::NODES_MAX;

/// The faults that may happen in an execution, and how many of each.
///
/// ```
/// # use farfield_fabric::sim::Faults;
/// let faults = Faults::new().crashes(1).of([2]);
/// assert_eq!(faults.to_string(), "1 crash of n2");
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    pub(super) crashes: u32,
    pub(super) cuts: u32,
    pub(super) stalls: u32,
    pub(super) pauses: u32,
    pub(super) false_suspicions: u32,
    /// The nodes where they happen; all, if none is given.
    nodes: Option<u64>,
    /// One side of each possible cut; each single node, if none is given.
    pub(super) sides: Vec<u64>,
}

impl Faults {
    /// No faults.
    ///
    /// ```
    /// # use farfield_fabric::sim::Faults;
    /// assert_eq!(Faults::new().count(), 0);
    /// ```
    pub fn new() -> Faults {
        Faults::default()
    }

    /// The number of nodes that may die.
    ///
    /// ```
    /// # use farfield_fabric::sim::Faults;
    /// assert_eq!(Faults::new().crashes(2).to_string(), "2 crashes");
    /// ```
    #[must_use]
    pub fn crashes(self, crashes: u32) -> Faults {
        Faults { crashes, ..self }
    }

    /// How often the nodes may be divided in two, until the cut heals. Under
    /// [`DeathRule::Majority`](crate::DeathRule::Majority) only.
    ///
    /// ```
    /// # use farfield_fabric::sim::Faults;
    /// assert_eq!(Faults::new().cuts(1).side([0, 1]).to_string(), "1 cut of n0, n1");
    /// ```
    #[must_use]
    pub fn cuts(self, cuts: u32) -> Faults {
        Faults { cuts, ..self }
    }

    /// How often a NIC may stall.
    ///
    /// ```
    /// # use farfield_fabric::sim::Faults;
    /// assert_eq!(Faults::new().stalls(1).to_string(), "1 stalled NIC");
    /// ```
    #[must_use]
    pub fn stalls(self, stalls: u32) -> Faults {
        Faults { stalls, ..self }
    }

    /// How often a thread may stop for long, while time passes.
    ///
    /// ```
    /// # use farfield_fabric::sim::Faults;
    /// assert_eq!(Faults::new().pauses(2).to_string(), "2 paused threads");
    /// ```
    #[must_use]
    pub fn pauses(self, pauses: u32) -> Faults {
        Faults { pauses, ..self }
    }

    /// How often a node that is only slow may be suspected. Under [`DeathRule::Majority`](crate::DeathRule::Majority)
    /// only.
    ///
    /// ```
    /// # use farfield_fabric::sim::Faults;
    /// let faults = Faults::new().false_suspicions(1);
    /// assert_eq!(faults.to_string(), "1 false suspicion");
    /// ```
    #[must_use]
    pub fn false_suspicions(self, false_suspicions: u32) -> Faults {
        Faults { false_suspicions, ..self }
    }

    /// The nodes that may die, stall, be cut off or be suspected. The default is all.
    ///
    /// ```
    /// # use farfield_fabric::sim::Faults;
    /// assert_eq!(Faults::new().stalls(1).of([0, 2]).to_string(), "1 stalled NIC of n0, n2");
    /// ```
    #[must_use]
    pub fn of(self, nodes: impl IntoIterator<Item = usize>) -> Faults {
        Faults { nodes: Some(set(nodes)), ..self }
    }

    /// Allows a cut between these nodes and the others. Without any call, each single node may be cut off.
    ///
    /// ```
    /// # use farfield_fabric::sim::Faults;
    /// let faults = Faults::new().cuts(1).side([0]).side([1, 2]);
    /// assert_eq!(faults.to_string(), "1 cut of n0 or n1, n2");
    /// ```
    #[must_use]
    pub fn side(mut self, nodes: impl IntoIterator<Item = usize>) -> Faults {
        self.sides.push(set(nodes));
        self
    }

    /// How many faults may happen in one execution.
    ///
    /// ```
    /// # use farfield_fabric::sim::Faults;
    /// assert_eq!(Faults::new().crashes(1).pauses(2).count(), 3);
    /// ```
    pub fn count(&self) -> u32 {
        self.crashes + self.cuts + self.stalls + self.pauses + self.false_suspicions
    }

    /// The kinds of faults that may happen, by name.
    ///
    /// ```
    /// # use farfield_fabric::sim::Faults;
    /// let faults = Faults::new().crashes(1).pauses(2);
    /// assert_eq!(faults.kinds().collect::<Vec<_>>(), ["crash", "paused thread"]);
    /// ```
    pub fn kinds(&self) -> impl Iterator<Item = &'static str> {
        self.limits().into_iter().filter(|(count, _)| *count > 0).map(|(_, name)| name)
    }

    /// The limit for each kind of fault, and its name.
    fn limits(&self) -> [(u32, &'static str); 5] {
        [
            (self.crashes, "crash"),
            (self.cuts, "cut"),
            (self.stalls, "stalled NIC"),
            (self.pauses, "paused thread"),
            (self.false_suspicions, "false suspicion"),
        ]
    }

    pub(super) fn has(&self, node: u16) -> bool {
        self.nodes.is_none_or(|nodes| contains(nodes, node))
    }
}

/// The limit for each kind of fault, and the nodes.
impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |set: u64| nodes_of(set).map(|node| format!("n{node}")).collect::<Vec<_>>().join(", ");
        let at = self.nodes.map_or(String::new(), |nodes| format!(" of {}", names(nodes)));
        let between = match &self.sides[..] {
            [] => at.clone(),
            sides => format!(" of {}", sides.iter().map(|side| names(*side)).collect::<Vec<_>>().join(" or ")),
        };
        let allowed = self.limits().into_iter().filter(|(count, _)| *count > 0);
        let told = allowed.map(|(count, name)| {
            let plural = match (count, name) {
                (1, _) => "",
                (_, "crash") => "es",
                _ => "s",
            };
            let at = if name == "cut" { &between } else { &at };
            format!("{count} {name}{plural}{at}")
        });
        f.write_str(&told.collect::<Vec<_>>().join(", "))
    }
}

pub(super) fn set(nodes: impl IntoIterator<Item = usize>) -> u64 {
    nodes.into_iter().fold(0, |set, node| {
        assert!(node < NODES_MAX, "a simulated session has {NODES_MAX} nodes at most");
        set | 1 << node
    })
}

pub(super) fn contains(set: u64, node: u16) -> bool {
    set >> node & 1 == 1
}

pub(super) fn nodes_of(set: u64) -> impl Iterator<Item = u16> {
    (0..NODES_MAX as u16).filter(move |node| contains(set, *node))
}

/// A fault, or a consequence of one.
///
/// ```
/// # use farfield_fabric::sim::Fault;
/// let fault = Fault::Suspect { observer: 0, peer: 2 }; // after a crash or a cut
/// assert_eq!(fault.to_string(), "n0 suspects n2");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(missing_docs, reason = "the fields say what they are")]
pub enum Fault {
    /// The cut heals.
    Heal,
    /// A stalled NIC continues.
    Resume(u16),
    /// A paused thread continues.
    Continue(u16),
    /// A crashed node is known to be dead, and its operations are over.
    Known(u16),
    /// The operations of a crashed node are over.
    Lost(u16),
    /// A node suspects another, after too long a silence.
    Suspect { observer: u16, peer: u16 },
    /// The suspicion ends with a message.
    Trust { observer: u16, peer: u16 },
    /// The transport gives up on a peer.
    TimeOut { observer: u16, peer: u16 },
    /// The last control message of a crashed node that is not received yet is lost.
    LoseMessage { from: u16, to: u16 },
    /// A node dies.
    Crash(u16),
    /// These nodes are cut off from the others.
    Cut(u64),
    /// A NIC stalls.
    Stall(u16),
    /// A thread stops for long.
    Pause(u16),
    /// A node suspects another that is only slow.
    FalselySuspect { observer: u16, peer: u16 },
}

impl Fault {
    /// Whether it is a new fault, and not a consequence of one.
    ///
    /// ```
    /// # use farfield_fabric::sim::Fault;
    /// assert!(Fault::Crash(2).is_new());
    /// assert!(!Fault::Known(2).is_new()); // a consequence
    /// ```
    pub fn is_new(self) -> bool {
        use Fault::*;
        matches!(self, Crash(_) | Cut(_) | Stall(_) | Pause(_) | FalselySuspect { .. })
    }

    /// Whether it ends one.
    ///
    /// ```
    /// # use farfield_fabric::sim::Fault;
    /// assert!(Fault::Resume(1).is_end());
    /// assert!(!Fault::Stall(1).is_end());
    /// ```
    pub fn is_end(self) -> bool {
        matches!(self, Fault::Heal | Fault::Resume(_) | Fault::Continue(_))
    }

    /// A number that determines which components are fast and which are slow.
    pub(super) fn component(self) -> u32 {
        let (kind, a, b) = match self {
            Fault::Heal => (0, 0, 0),
            Fault::Resume(node) => (1, node, 0),
            Fault::Continue(thread) => (2, thread, 0),
            Fault::Known(node) => (3, node, 0),
            Fault::Lost(node) => (4, node, 0),
            Fault::Suspect { observer, peer } => (5, observer, peer),
            Fault::Trust { observer, peer } => (6, observer, peer),
            Fault::TimeOut { observer, peer } => (7, observer, peer),
            Fault::LoseMessage { from, to } => (8, from, to),
            Fault::Crash(node) => (9, node, 0),
            Fault::Cut(side) => (10, side.trailing_zeros() as u16, side.count_ones() as u16),
            Fault::Stall(node) => (11, node, 0),
            Fault::Pause(thread) => (12, thread, 0),
            Fault::FalselySuspect { observer, peer } => (13, observer, peer),
        };
        3 << 30 | kind << 24 | u32::from(a) << 8 | u32::from(b)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Fault::Heal => f.write_str("the cut heals"),
            Fault::Resume(node) => write!(f, "the NIC of n{node} goes on"),
            Fault::Continue(_) => f.write_str("the thread goes on"),
            Fault::Known(node) => write!(f, "n{node} is known to be dead"),
            Fault::Lost(node) => write!(f, "what n{node} had under way is over"),
            Fault::Suspect { observer, peer } => write!(f, "n{observer} suspects n{peer}"),
            Fault::Trust { observer, peer } => write!(f, "n{observer} trusts n{peer} again"),
            Fault::TimeOut { observer, peer } => write!(f, "the transport of n{observer} gives up on n{peer}"),
            Fault::LoseMessage { from, to } => write!(f, "a control message of n{from} to n{to} is lost"),
            Fault::Crash(node) => write!(f, "n{node} crashes"),
            Fault::Cut(side) => {
                let names: Vec<String> = nodes_of(side).map(|node| format!("n{node}")).collect();
                write!(f, "a cut between {} and the others", names.join(", "))
            }
            Fault::Stall(node) => write!(f, "the NIC of n{node} stalls"),
            Fault::Pause(_) => f.write_str("the thread is not run for long"),
            Fault::FalselySuspect { observer, peer } => write!(f, "n{observer} suspects n{peer}, which is only slow"),
        }
    }
}
