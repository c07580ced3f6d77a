//! A command on its way to the leader.

use core::time::Duration;

use farfield_fabric::{self as fabric, Endpoint, ErrorKind, Instant};

use super::Commands;
use super::slots::Slip;

/// A request that has no effect is put again after such a pause, which doubles: the first may not have been accepted.
const AGAIN: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(100)];

/// Which node leads, as far as this one knows. Take it before the look that precedes a wait, and wait until it is
/// another one.
///
/// ```
/// # use farfield_mu::{CommandOptions, Commands, LogOptions};
/// # let node = farfield::Node::builder().start()?;
/// # let ep = node.endpoint()?;
/// # let options = CommandOptions { log: LogOptions::default(), command_bytes_max: 8, answer_bytes_max: 0 };
/// # let commands = Commands::open(&node, "sum", options)?;
/// loop {
///     let view = commands.view();
///     if view.leads {
///         break;
///     }
///     ep.block_on(ep.wait_until(ep.deadline(), || (commands.view() != view).then_some(())))?;
/// }
/// # Ok::<(), farfield::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View {
    /// That of the leader that this node recognises.
    pub term: u64,
    /// Its rank, if it is trusted.
    pub leader: Option<usize>,
    /// This node leads, and may order commands.
    pub leads: bool,
    /// A thread of this node orders one.
    pub is_busy: bool,
}

impl Commands {
    /// Which node leads, as far as this one knows. It reads words only, so the condition of a wait may call it.
    ///
    /// ```
    /// # use farfield_mu::{CommandOptions, Commands, LogOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let options = CommandOptions { log: LogOptions::default(), command_bytes_max: 8, answer_bytes_max: 0 };
    /// # let commands = Commands::open(&node, "sum", options)?;
    /// let proposer = commands.proposer();
    /// assert!(commands.view().is_busy);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn view(&self) -> View {
        let core = &self.0.log.0.core;
        let is_busy = self.0.is_busy.load() != 0;
        View { term: core.term.load(), leader: core.leader_rank(), leads: core.leading.load() != 0, is_busy }
    }

    /// The answer of a node, which leads in this term, to this node's command of this number.
    ///
    /// ```
    /// # use farfield_mu::{CommandOptions, Commands, LogOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let options = CommandOptions { log: LogOptions::default(), command_bytes_max: 8, answer_bytes_max: 8 };
    /// # let commands = Commands::open(&node, "sum", options)?;
    /// assert_eq!(commands.answered(0, 1, 1), None);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn answered(&self, leader: usize, term: u64, number: u64) -> Option<Vec<u8>> {
        let is_it = |slip: &Slip| (slip.term, slip.number) == (term, number);
        self.0.slots.answered(leader).filter(is_it).map(|slip| slip.bytes)
    }
}

/// A command of this node on its way to the leader, and to the next one: see [`Commands`].
///
/// ```
/// # use farfield_mu::Forward;
/// let forward = Forward::new(7);
/// assert!(!forward.is_repeated(3)); // it was asked for in no earlier term
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Forward {
    number: u64,
    /// The leader to which it was put last, the term, and when it is put again.
    sent: Option<(usize, u64, Instant)>,
    pause: Duration,
    /// The term in which it was asked for first.
    first: Option<u64>,
}

impl Forward {
    /// Of the command with this number. A node has one on its way at a time.
    ///
    /// ```
    /// # use farfield_mu::Forward;
    /// assert_eq!(Forward::new(7).number(), 7);
    /// ```
    pub fn new(number: u64) -> Forward {
        Forward { number, sent: None, pause: AGAIN[0], first: None }
    }

    /// The command's number.
    ///
    /// ```
    /// # use farfield_mu::Forward;
    /// assert_eq!(Forward::new(1).number(), 1);
    /// ```
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Puts the command to the leader of this view, unless it was put there a moment ago. The result is when to call
    /// this again, if nothing changes before; none if there is no other leader.
    ///
    /// ```
    /// # use farfield_mu::{CommandOptions, Commands, Forward, LogOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let ep = node.endpoint()?;
    /// # let options = CommandOptions { log: LogOptions::default(), command_bytes_max: 8, answer_bytes_max: 0 };
    /// # let commands = Commands::open(&node, "sum", options)?;
    /// let mut forward = Forward::new(1);
    /// assert_eq!(forward.step(&commands, &ep, &commands.view(), b"add 5")?, None); // of one node
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those that do not pass: this node is evicted, or has no memory for the put. A leader that is out of reach, or a
    /// put that is refused, is no error.
    pub fn step(
        &mut self,
        commands: &Commands,
        endpoint: &Endpoint,
        view: &View,
        command: &[u8],
    ) -> fabric::Result<Option<Instant>> {
        let slots = &commands.0.slots;
        let Some(leader) = view.leader.filter(|leader| *leader != slots.me) else { return Ok(None) };
        let now = endpoint.now();
        match self.sent {
            Some((to, term, again)) if (to, term) == (leader, view.term) => {
                if again > now {
                    return Ok(Some(again));
                }
                self.pause = AGAIN[1].min(2 * self.pause);
            }
            _ => self.pause = AGAIN[0],
        }
        let is_repeated = *self.first.get_or_insert(view.term) != view.term;
        let slip = Slip { is_repeated, term: view.term, number: self.number, bytes: command.to_vec() };
        match slots.request(endpoint, leader, &slip) {
            Err(error)
                if !(error.is_refused()
                    || error.is_unreachable()
                    || matches!(error.kind(), ErrorKind::Revoked { .. })) =>
            {
                return Err(error);
            }
            // A put that was refused is repeated as one that is lost.
            _ => {}
        }
        let again = now + self.pause;
        self.sent = Some((leader, view.term, again));
        Ok(Some(again))
    }

    /// It was proposed on this node, in this term, and is not known to be decided.
    ///
    /// ```
    /// # use farfield_mu::Forward;
    /// let mut forward = Forward::new(7);
    /// forward.was_proposed(2);
    /// assert!(forward.is_repeated(3) && !forward.is_repeated(2));
    /// ```
    pub fn was_proposed(&mut self, term: u64) {
        self.first.get_or_insert(term);
    }

    /// Whether it was asked for in another term than this one.
    ///
    /// ```
    /// # use farfield_mu::Forward;
    /// assert!(!Forward::new(1).is_repeated(1));
    /// ```
    pub fn is_repeated(&self, term: u64) -> bool {
        self.first.is_some_and(|first| first != term)
    }
}
