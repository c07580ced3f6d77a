//! The commands of a replicated state machine: forwarded to the log's leader, decided once, answered.
//!
//! Three objects stand on it: [`ReplicatedMutex`](crate::ReplicatedMutex), [`Election`](crate::Election), and the
//! conflicting calls of replicated data types (`farfield_hamband`).
//!
//! *A command that is asked for twice.* When the leader dies, a node asks the next one, and the command may already be
//! in the log. Commands have numbers, and the state machine keeps the number of each node's last one
//! ([`CommandNumbers`]). A leader that has applied all entries before an index sees by it whether the command is
//! decided, and proposes for this index only. A leader that has lost its office may find an old request when it leads
//! again: it serves a request only in the term that this names.

mod forward;
mod slots;

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use farfield_core::{Node, Result};
use farfield_fabric::{Endpoint, GroupKey, Instant, LocalMutex, NodeId, Word};

pub use self::forward::{Forward, View};
use self::slots::{Slip, Slots, slot_bytes};
use crate::errors::{NotLeader, NotNext, OutcomeUnknown};
use crate::replica::ranks_of;
use crate::{Beside, LogOptions, Proposer, ReplicatedLog, last_of_each_place};

/// The sizes of [`Commands`]. They must be the same on all nodes.
///
/// ```
/// use farfield_mu::{CommandOptions, LogOptions};
/// let options = CommandOptions { log: LogOptions::default(), command_bytes_max: 64, answer_bytes_max: 0 };
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommandOptions {
    /// Of the log. Its entries are what the leader makes of the commands.
    pub log: LogOptions,
    /// The longest command in bytes.
    pub command_bytes_max: usize,
    /// The longest answer of the leader in bytes; 0 if it answers by the log alone.
    pub answer_bytes_max: usize,
}

/// A command of a node, as it reaches the leader.
///
/// ```
/// use farfield_mu::Command;
/// let command = Command { origin: 2, number: 7, is_repeated: false, bytes: b"add 1".to_vec() };
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command {
    /// The rank of the node that has made it ([`Commands::node_at`]).
    pub origin: usize,
    /// Among the commands of that node: each is one higher than the last.
    pub number: u64,
    /// It was asked for in an earlier term, too: that leader may have it in its log, not decided.
    pub is_repeated: bool,
    /// As the application has encoded it.
    pub bytes: Vec<u8>,
}

/// What the leader does with a command, at one index of the log ([`CommandProposer::order`]).
///
/// ```
/// use farfield_mu::Decision;
/// fn decide(last: u64, number: u64) -> Decision<bool> {
///     if last >= number { Decision::End(true) } else { Decision::Propose(number.to_le_bytes().to_vec(), true) }
/// }
/// # assert!(matches!(decide(7, 7), Decision::End(true)));
/// ```
#[derive(Clone, Debug)]
pub enum Decision<T> {
    /// Nothing is proposed: the command is in the log already, or is refused.
    End(T),
    /// It has waited for something: it decides again, at the index that the next entry has then.
    Again,
    /// This entry is proposed for this index, and for no other one. `T` is the result when it is decided.
    Propose(Vec<u8>, T),
}

/// How [`CommandProposer::order`] has ended.
///
/// ```
/// use farfield_mu::Ordered;
/// assert_eq!(Ordered::Done(3).done(), Some(3));
/// assert_eq!(Ordered::<u64>::NotLeader.done(), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ordered<T> {
    /// As it was decided.
    Done(T),
    /// Nothing is decided: another node leads, or none.
    NotLeader,
    /// An entry was proposed, and a later leader decides about it.
    Unknown,
}

impl<T> Ordered<T> {
    /// The result, if the command is decided.
    ///
    /// ```
    /// assert_eq!(farfield_mu::Ordered::<u64>::Unknown.done(), None);
    /// ```
    pub fn done(self) -> Option<T> {
        match self {
            Ordered::Done(result) => Some(result),
            Ordered::NotLeader | Ordered::Unknown => None,
        }
    }
}

/// The next entry of the log, about which a leader decides.
///
/// ```
/// # use farfield_mu::{Decision, NextEntry};
/// fn decide(next: &NextEntry<'_>) -> Decision<u64> {
///     Decision::Propose(b"entry".to_vec(), next.index)
/// }
/// ```
pub struct NextEntry<'e> {
    /// That of the proposer, for operations that the decision needs.
    pub endpoint: &'e Endpoint,
    /// Its index. All entries before it are decided.
    pub index: u64,
    /// When the attempt ends.
    pub deadline: Instant,
}

/// What the leader has done with the requests of others ([`Commands::serve`]).
///
/// ```
/// let progress = farfield_mu::ServeProgress::default();
/// assert!(!progress.has_worked && !progress.is_retried);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ServeProgress {
    /// A request was served.
    pub has_worked: bool,
    /// A request has to be served again later.
    pub is_retried: bool,
}

/// The last request of each node that was served, as its term and number ([`Commands::serve`]).
///
/// ```
/// let mut served = farfield_mu::Served::default(); // none yet
/// ```
#[derive(Clone, Default, Debug)]
pub struct Served(Vec<(u64, u64)>);

/// The last command of each node that is in the log: a part of the state, which is the same on all replicas after the
/// same entries. With it no command is ordered twice.
///
/// ```
/// use farfield_mu::CommandNumbers;
/// let mut numbers = CommandNumbers::new(3);
/// assert!(!numbers.has(2, 1)); // command 1 of the node of rank 2
/// numbers.applied(2, 1);
/// assert!(numbers.has(2, 1) && !numbers.has(2, 2));
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CommandNumbers(Vec<u64>);

impl CommandNumbers {
    /// Of so many nodes, none of which has made a command.
    ///
    /// ```
    /// assert_eq!(farfield_mu::CommandNumbers::new(3).last(1), 0);
    /// ```
    pub fn new(nodes: usize) -> CommandNumbers {
        CommandNumbers(vec![0; nodes])
    }

    /// The number of a node's last command.
    ///
    /// ```
    /// let mut numbers = farfield_mu::CommandNumbers::new(3);
    /// numbers.applied(1, 4);
    /// assert_eq!(numbers.last(1), 4);
    /// ```
    pub fn last(&self, origin: usize) -> u64 {
        self.0[origin]
    }

    /// Whether a command is in the log: the leader looks before it proposes it.
    ///
    /// ```
    /// assert!(!farfield_mu::CommandNumbers::new(3).has(1, 1));
    /// ```
    pub fn has(&self, origin: usize, number: u64) -> bool {
        self.0[origin] >= number
    }

    /// An entry with this command is applied.
    ///
    /// ```
    /// let mut numbers = farfield_mu::CommandNumbers::new(3);
    /// numbers.applied(1, 1);
    /// assert!(numbers.has(1, 1));
    /// ```
    pub fn applied(&mut self, origin: usize, number: u64) {
        self.0[origin] = number;
    }
}

/// A node's part in a replicated state machine: a [`ReplicatedLog`], and memory in which each node asks the leader to
/// order commands.
///
/// The application keeps the state, reads the log, and decides what becomes of a command. This layer brings commands to
/// the leader, and again to the next one; proposes what the application decides, at the index for which it decided; and
/// brings answers back.
///
/// *At the caller.* Number the command, and repeat [`Forward::step`] until the command is in the log, or answered.
/// While this node leads, order it here ([`Commands::proposer`]).
///
/// *At the leader.* The service thread calls [`Commands::serve`]. The decision first reads all entries of the log that
/// are decided, and looks whether the command's number is that of its node's last one: then it is decided already.
///
/// *An answer without an entry* ([`Decision::End`]) takes no round trip. A leader that was replaced, and does not know
/// it, answers by an older state. Where that is not enough, propose an entry, and answer when it is decided.
///
/// ```
/// use farfield_mu::{CommandOptions, Commands, Decision, LogOptions, LogReader, Ordered};
///
/// /// Applies all decided entries: each is a number and what is added.
/// fn apply(reader: &mut LogReader, (last, sum): &mut (u64, u64)) -> farfield::Result<()> {
///     let mut entry = Vec::new();
///     while reader.try_next(&mut entry)?.is_some() {
///         let (number, adds) = entry.split_at(8);
///         *last = u64::from_le_bytes(number.try_into().unwrap());
///         *sum += u64::from_le_bytes(adds.try_into().unwrap());
///         reader.acknowledge();
///     }
///     Ok(())
/// }
///
/// let node = farfield::Node::builder().start()?;
/// let ep = node.endpoint()?;
/// let options = CommandOptions { log: LogOptions::default(), command_bytes_max: 8, answer_bytes_max: 0 };
/// let commands = Commands::open(&node, "sum", options)?;
/// ep.block_on(ep.wait_until(ep.deadline(), || commands.log().is_leader().then_some(())))?;
/// let (mut reader, mut state, number) = (commands.log().reader()?, (0u64, 0u64), 1u64);
/// for _ in 0..2 {
///     // Asked for twice, decided once.
///     let mut proposer = commands.proposer().expect("no other thread orders a command");
///     let ordered = proposer.order(ep.timeout(), async |next| {
///         apply(&mut reader, &mut state)?;
///         assert_eq!(reader.position(), next.index);
///         let entry = [number.to_le_bytes(), 5u64.to_le_bytes()].concat();
///         Ok(if state.0 >= number { Decision::End(()) } else { Decision::Propose(entry, ()) })
///     })?;
///     assert_eq!(ordered, Ordered::Done(()));
/// }
/// apply(&mut reader, &mut state)?;
/// assert_eq!(state, (1, 5));
/// # Ok::<(), farfield::Error>(())
/// ```
#[derive(Clone)]
pub struct Commands(Arc<Parts>);

struct Parts {
    log: ReplicatedLog,
    slots: Slots,
    /// 1 while a thread of this node orders a command.
    is_busy: Word,
    /// The proposer, and an endpoint for it alone: the puts of two endpoints have no order.
    proposer: LocalMutex<Option<(Proposer, Endpoint)>>,
}

/// [`Commands`] that this node has announced, and others may not have opened yet.
///
/// ```
/// use farfield_mu::{CommandOptions, Commands, LogOptions};
/// let node = farfield::Node::builder().start()?;
/// let options = CommandOptions { log: LogOptions::default(), command_bytes_max: 8, answer_bytes_max: 0 };
/// let commands = Commands::announce(&node, "sum", &[node.id()], options)?.wait()?;
/// # Ok::<(), farfield::Error>(())
/// ```
pub struct AnnouncedCommands {
    log: ReplicatedLog,
    regions: slots::OwnRegions,
    options: CommandOptions,
}

impl fmt::Debug for AnnouncedCommands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnnouncedCommands").field("options", &self.options).finish_non_exhaustive()
    }
}

impl AnnouncedCommands {
    /// Waits until all nodes have opened it.
    ///
    /// ```
    /// # use farfield_mu::{CommandOptions, Commands, LogOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let options = CommandOptions { log: LogOptions::default(), command_bytes_max: 8, answer_bytes_max: 0 };
    /// let announce = |path| Commands::announce(&node, path, &[node.id()], options);
    /// let (one, two) = (announce("one")?, announce("two")?);
    /// let commands = [one.wait()?, two.wait()?];
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A node that is missing, dead or departed, or that opens it differently.
    pub fn wait(self) -> Result<Commands> {
        let commands = self.begin()?;
        commands.0.log.wait()?;
        Ok(commands)
    }

    /// As `wait`, but a node that has come back takes part without a vote. It has one when [`ReplicatedLog::wait`]
    /// returns.
    pub(crate) fn begin(self) -> Result<Commands> {
        let AnnouncedCommands { log, regions, options } = self;
        log.wait_for_all()?;
        let core = &log.0.core;
        let slots = Slots::new(core, regions, &options);
        let proposer = LocalMutex::new(Some((log.proposer()?.beside_reader(), core.node.background_endpoint()?)));
        Ok(Commands(Arc::new(Parts { log, slots, is_busy: Word::new(0), proposer })))
    }
}

impl Commands {
    /// Opens it on all live members of the session, and waits for them to do so.
    ///
    /// ```
    /// # use farfield_mu::{CommandOptions, Commands, LogOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// let options = CommandOptions { log: LogOptions::default(), command_bytes_max: 8, answer_bytes_max: 0 };
    /// let commands = Commands::open(&node, "sum", options)?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A node that is missing, dead or departed, or that opens it differently; no memory; invalid options.
    pub fn open(node: &Node, path: &str, options: CommandOptions) -> Result<Commands> {
        Commands::announce(node, path, &node.members_for(path), options)?.wait()
    }

    /// Opens it among these nodes, without waiting for the others.
    ///
    /// ```
    /// # use farfield_mu::{CommandOptions, Commands, LogOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let options = CommandOptions { log: LogOptions::default(), command_bytes_max: 8, answer_bytes_max: 0 };
    /// let announced = Commands::announce(&node, "sum", &[node.id()], options)?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// Memory or permission groups are exhausted, or the options are invalid; this node is no participant.
    pub fn announce(
        node: &Node,
        path: &str,
        participants: &[NodeId],
        options: CommandOptions,
    ) -> Result<AnnouncedCommands> {
        Commands::announce_with(node, path, participants, options, false)
    }

    /// With a state that a returning node takes from the others, if the object on top sees to that.
    pub(crate) fn announce_with(
        node: &Node,
        path: &str,
        participants: &[NodeId],
        options: CommandOptions,
        keeps_state: bool,
    ) -> Result<AnnouncedCommands> {
        let ranks = ranks_of(node, &last_of_each_place(node, participants));
        // A request wakes the service thread, which serves it; an answer, threads.
        let bytes = |bytes_max| ranks * slot_bytes(bytes_max);
        let mut beside = vec![("requests", GroupKey::SERVICE, bytes(options.command_bytes_max))];
        if options.answer_bytes_max > 0 {
            beside.push(("answers", GroupKey::SIGNAL, bytes(options.answer_bytes_max)));
        }
        let beside = Beside { regions: &beside, keeps_state };
        let (log, regions) = ReplicatedLog::announce_with(node, path, participants, options.log, &beside)?;
        Ok(AnnouncedCommands { log, regions, options })
    }

    /// The log: its reader, its leader. Its proposer belongs to this layer.
    ///
    /// ```
    /// # use farfield_mu::{CommandOptions, Commands, LogOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let options = CommandOptions { log: LogOptions::default(), command_bytes_max: 8, answer_bytes_max: 0 };
    /// # let commands = Commands::open(&node, "sum", options)?;
    /// let reader = commands.log().reader()?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn log(&self) -> &ReplicatedLog {
        &self.0.log
    }

    /// The node of a rank, as it is in [`Command::origin`] and [`View::leader`], if there is one.
    ///
    /// ```
    /// # use farfield_mu::{CommandOptions, Commands, LogOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let options = CommandOptions { log: LogOptions::default(), command_bytes_max: 8, answer_bytes_max: 0 };
    /// # let commands = Commands::open(&node, "sum", options)?;
    /// assert_eq!(commands.node_at(0), Some(node.id()));
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn node_at(&self, rank: usize) -> Option<NodeId> {
        let core = &self.0.log.0.core;
        (rank < core.ranks()).then(|| core.node_at(rank)).flatten()
    }

    /// The right to order commands, for one thread of this node at a time. None while another thread has it.
    ///
    /// ```
    /// # use farfield_mu::{CommandOptions, Commands, LogOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let options = CommandOptions { log: LogOptions::default(), command_bytes_max: 8, answer_bytes_max: 0 };
    /// # let commands = Commands::open(&node, "sum", options)?;
    /// let proposer = commands.proposer();
    /// assert!(proposer.is_some() && commands.proposer().is_none());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn proposer(&self) -> Option<CommandProposer<'_>> {
        self.0.is_busy.compare_exchange(0, 1).ok()?;
        // It was given back before the word was set to 0.
        Some(CommandProposer { commands: self, parts: self.0.proposer.lock().take(), round_trips: 0 })
    }

    /// Orders the requests of other nodes, if this one leads: for the service thread. `order` decides about one, as a
    /// rule by [`CommandProposer::order`]. An answer of it is put to the command's node; a command that is in the log
    /// has none.
    ///
    /// ```
    /// # use farfield_mu::{CommandOptions, Commands, LogOptions, Ordered, Served};
    /// # let node = farfield::Node::builder().start()?;
    /// # let ep = node.endpoint()?;
    /// # let options = CommandOptions { log: LogOptions::default(), command_bytes_max: 8, answer_bytes_max: 0 };
    /// # let commands = Commands::open(&node, "sum", options)?;
    /// let mut served = Served::default();
    /// let progress = commands.serve(&ep, &mut served, |_proposer, command| {
    ///     println!("command {} of node {}", command.number, command.origin);
    ///     Ok(Ordered::Done(None))
    /// });
    /// assert!(!progress.has_worked); // there is no other node
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn serve(
        &self,
        endpoint: &Endpoint,
        served: &mut Served,
        mut order: impl FnMut(&mut CommandProposer<'_>, &Command) -> Result<Ordered<Option<Vec<u8>>>>,
    ) -> ServeProgress {
        let Parts { log, slots, .. } = &*self.0;
        let mut progress = ServeProgress::default();
        if !log.is_leader() {
            return progress;
        }
        served.0.resize(slots.ranks(), (0, 0));
        for (origin, last) in served.0.iter_mut().enumerate() {
            // Only in the term in which it was asked for: another leader may have ordered it since.
            let Some(slip) = slots.requested(origin, *last).filter(|slip| log.is_leader() && slip.term == log.term())
            else {
                continue;
            };
            let Some(mut proposer) = self.proposer() else {
                progress.is_retried = true;
                continue;
            };
            let Slip { is_repeated, term, number, bytes } = slip;
            match order(&mut proposer, &Command { origin, number, is_repeated, bytes }) {
                Ok(Ordered::Done(answer)) => {
                    let slip = |bytes| Slip { is_repeated, term, number, bytes };
                    if answer.is_some_and(|answer| slots.answer(endpoint, origin, &slip(answer)).is_err()) {
                        progress.is_retried = true;
                    } else {
                        *last = (term, number);
                        progress.has_worked = true;
                    }
                }
                // The caller asks the next leader.
                Ok(Ordered::NotLeader | Ordered::Unknown) => {}
                Err(_) => progress.is_retried = true,
            }
        }
        progress
    }
}

/// Orders commands on the leader, one at a time: see [`Commands::proposer`].
///
/// ```
/// # use farfield_mu::{CommandOptions, Commands, LogOptions};
/// # let node = farfield::Node::builder().start()?;
/// # let options = CommandOptions { log: LogOptions::default(), command_bytes_max: 8, answer_bytes_max: 0 };
/// # let commands = Commands::open(&node, "sum", options)?;
/// drop(commands.proposer());
/// assert!(commands.proposer().is_some()); // it was given back
/// # Ok::<(), farfield::Error>(())
/// ```
pub struct CommandProposer<'c> {
    commands: &'c Commands,
    parts: Option<(Proposer, Endpoint)>,
    round_trips: u64,
}

impl Drop for CommandProposer<'_> {
    fn drop(&mut self) {
        let parts = &*self.commands.0;
        *parts.proposer.lock() = self.parts.take();
        parts.is_busy.store(0);
        parts.log.0.core.node.fabric().wake_local();
    }
}

impl CommandProposer<'_> {
    /// Orders a command, if this node leads: a round trip, as a rule, for which the thread is blocked. So it ends all
    /// that it has begun.
    ///
    /// `decide` says what is proposed at an index. It reads all entries before that first. Between its look and the
    /// entry no other one is decided: if one was, `decide` is called again.
    ///
    /// ```
    /// # use farfield_mu::{CommandOptions, Commands, Decision, LogOptions, Ordered};
    /// # let node = farfield::Node::builder().start()?;
    /// # let ep = node.endpoint()?;
    /// # let options = CommandOptions { log: LogOptions::default(), command_bytes_max: 8, answer_bytes_max: 0 };
    /// # let commands = Commands::open(&node, "sum", options)?;
    /// # ep.block_on(ep.wait_until(ep.deadline(), || commands.log().is_leader().then_some(())))?;
    /// let mut proposer = commands.proposer().expect("no other thread orders a command");
    /// let decide = async |next: &farfield_mu::NextEntry<'_>| Ok(Decision::Propose(b"entry".to_vec(), next.index));
    /// assert_eq!(proposer.order(ep.timeout(), decide)?, Ordered::Done(0));
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// Nothing was proposed: an error of the decision, and those of [`Proposer::ready`](crate::Proposer::ready) but for
    /// [`NotLeader`].
    pub fn order<T>(
        &mut self,
        timeout: Duration,
        decide: impl AsyncFnMut(&NextEntry<'_>) -> Result<Decision<T>>,
    ) -> Result<Ordered<T>> {
        let Some((proposer, endpoint)) = &mut self.parts else { return Ok(Ordered::NotLeader) };
        endpoint.set_timeout(timeout);
        let before = endpoint.counts().round_trips;
        let ordered = endpoint.block_on(order(proposer, endpoint, decide));
        self.round_trips += endpoint.counts().round_trips - before;
        ordered
    }

    /// The round trips for which this thread has waited so far, on an endpoint of the proposer's own. Pass them to
    /// [`Endpoint::waited_for`], so that the thread's endpoint counts them.
    ///
    /// ```
    /// # use farfield_mu::{CommandOptions, Commands, LogOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let options = CommandOptions { log: LogOptions::default(), command_bytes_max: 8, answer_bytes_max: 0 };
    /// # let commands = Commands::open(&node, "sum", options)?;
    /// assert_eq!(commands.proposer().map(|proposer| proposer.round_trips()), Some(0)); // it has ordered nothing
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn round_trips(&self) -> u64 {
        self.round_trips
    }
}

async fn order<T>(
    proposer: &mut Proposer,
    endpoint: &Endpoint,
    mut decide: impl AsyncFnMut(&NextEntry<'_>) -> Result<Decision<T>>,
) -> Result<Ordered<T>> {
    let deadline = endpoint.deadline();
    loop {
        // All entries before this index are decided, also those of leaders before this one.
        let index = match proposer.ready(endpoint).await {
            Err(error) if error.custom_ref::<NotLeader>().is_some() => return Ok(Ordered::NotLeader),
            index => index?,
        };
        match decide(&NextEntry { endpoint, index, deadline }).await? {
            Decision::End(result) => return Ok(Ordered::Done(result)),
            Decision::Again => {}
            Decision::Propose(entry, result) => match proposer.propose_at(endpoint, index, &entry).await {
                Ok(_) => return Ok(Ordered::Done(result)),
                Err(error) if error.custom_ref::<NotLeader>().is_some() => return Ok(Ordered::NotLeader),
                Err(error) if error.custom_ref::<NotNext>().is_some() => {}
                Err(error) if error.custom_ref::<OutcomeUnknown>().is_some() => return Ok(Ordered::Unknown),
                Err(error) => return Err(error),
            },
        }
    }
}
