//! The nodes of the system: the controller, which is node 0, and the converters. They share two arrays of owned
//! variables. Each variable is opened by its writer and its one reader alone, so a push is one put.
//!
//! ```text
//! node 0, the controller              node 1, converter 0          node 2, converter 1
//!   duty 0 (writes)  ───── push ────▶   duty 0 (reads)
//!   duty 1 (writes)  ───── push ────────────────────────────────▶    duty 1 (reads)
//!   volts 0 (reads)  ◀──── push ─────   volts 0 (writes)
//!   volts 1 (reads)  ◀──── push ─────────────────────────────────    volts 1 (writes)
//! ```
//!
//! A part acts at given times and does not read a clock. So its time may be that of the machine (`real_time.rs`) or one
//! that is counted (`virtual_time.rs`).

use std::collections::VecDeque;

use farfield::{Endpoint, Node, NodeId, OwnedVar, OwnedWriter, Result, TearCheck};

use crate::model::{Controller, Converter, Nanos, Seen, TICK, Timing};

/// The controller's node. Converter `c` is node `c + 1`.
pub(crate) const CONTROLLER: NodeId = NodeId(0);

/// One node's part in the system.
pub(crate) enum Part {
    Controller(ControllerPart),
    Converter(ConverterPart),
}

pub(crate) struct ControllerPart {
    ep: Endpoint,
    converters: Vec<NodeId>,
    duties: Vec<OwnedWriter<f64>>,
    volts: Vec<OwnedVar<f64>>,
    achieved_us: Vec<OwnedVar<f64>>,
    controller: Controller,
    clock: Clock,
    held: VecDeque<(Nanos, Vec<f64>)>,
    seen: Seen,
}

pub(crate) struct ConverterPart {
    ep: Endpoint,
    index: usize,
    duty: OwnedVar<f64>,
    volts: OwnedWriter<f64>,
    achieved_us: OwnedWriter<f64>,
    converter: Converter,
    duty_in_force: f64,
    clock: Clock,
    held: VecDeque<(Nanos, f64)>,
}

/// When a loop steps.
#[derive(Clone, Copy, Default)]
struct Clock {
    period: Nanos,
    next: Nanos,
    /// The time of the last step.
    last: Nanos,
    steps: u32,
}

impl Clock {
    fn new(period: Nanos) -> Self {
        Self { period, ..Self::default() }
    }

    /// A step is done. A late one is not made up for.
    fn stepped(&mut self, now: Nanos) {
        self.next = now.max(self.next + self.period);
        self.last = now;
        self.steps += 1;
    }

    fn achieved_us(&self) -> f64 {
        self.last as f64 / 1000.0 / f64::from(self.steps.saturating_sub(1).max(1))
    }
}

/// A word's value: a word is never torn.
fn read(var: &OwnedVar<f64>) -> f64 {
    var.try_load().unwrap_or(f64::NAN)
}

impl Part {
    /// Opens a node's variables, and waits for the nodes with which it shares them.
    pub(crate) fn open(node: &Node) -> Result<Part> {
        let converters: Vec<NodeId> = node.members().filter(|member| *member != CONTROLLER).collect();
        let announce = |kind: &str, index: usize, owner: NodeId| {
            let pair = [CONTROLLER, converters[index]];
            OwnedVar::announce(node, &format!("dcdc/{kind}/{index}"), &pair, owner, TearCheck::default())
        };
        let (mut duties, mut volts, mut achieved_us) = (Vec::new(), Vec::new(), Vec::new());
        let is_mine = |index: &usize| [CONTROLLER, converters[*index]].contains(&node.id());
        for index in (0..converters.len()).filter(is_mine) {
            duties.push(announce("duty", index, CONTROLLER)?);
            volts.push(announce("volts", index, converters[index])?);
            achieved_us.push(announce("achieved_us", index, converters[index])?);
        }
        // All are announced before the first wait: one exchange in total, not one for each.
        [&duties, &volts, &achieved_us].into_iter().flatten().try_for_each(OwnedVar::wait)?;
        let (ep, clock) = (node.endpoint()?, Clock::default());
        if node.id() == CONTROLLER {
            let duties = duties.iter().map(OwnedVar::writer).collect::<Result<_>>()?;
            let controller = Controller::new(converters.len(), TICK);
            let (held, seen) = (VecDeque::new(), Vec::new());
            let part = ControllerPart { ep, converters, duties, volts, achieved_us, controller, clock, held, seen };
            return Ok(Part::Controller(part));
        }
        let index = node.id().index() - 1;
        Ok(Part::Converter(ConverterPart {
            ep,
            index,
            volts: volts[0].writer()?,
            duty: duties.remove(0),
            achieved_us: achieved_us[0].writer()?,
            converter: Converter::new(index),
            duty_in_force: 0.0,
            clock,
            held: VecDeque::new(),
        }))
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        match self {
            Part::Controller(part) => &part.ep,
            Part::Converter(part) => &part.ep,
        }
    }

    /// Puts this node's part and what it shows to others back to the state of rest.
    pub(crate) fn restart(&mut self, timing: Timing) -> Result<()> {
        match self {
            Part::Controller(part) => {
                part.controller = Controller::new(part.converters.len(), timing.period);
                part.clock = Clock::new(timing.period);
                part.held.clear();
                part.seen.clear();
                part.push(&vec![0.0; part.converters.len()])
            }
            Part::Converter(part) => {
                part.converter = Converter::new(part.index);
                part.duty_in_force = 0.0;
                part.clock = Clock::new(TICK);
                part.held.clear();
                part.push(0.0)
            }
        }
    }

    /// The next time at which this part does something.
    pub(crate) fn next_event(&self) -> Nanos {
        let (step, leaves) = match self {
            Part::Controller(part) => (part.clock.next, part.held.front().map(|held| held.0)),
            Part::Converter(part) => (part.clock.next, part.held.front().map(|held| held.0)),
        };
        leaves.map_or(step, |leaves| leaves.min(step))
    }

    /// Does the work that is due: sends the values held back until now, and steps.
    pub(crate) fn act(&mut self, now: Nanos, delay: Nanos) -> Result<()> {
        match self {
            Part::Controller(part) => part.act(now, delay),
            Part::Converter(part) => part.act(now, delay),
        }
    }

    /// Waits until everything that this part has pushed can be seen by its readers.
    pub(crate) fn fence(&self) -> Result<()> {
        match self {
            Part::Controller(part) => Ok(part.ep.block_on(part.ep.global_fence(part.converters.iter().copied()))?),
            Part::Converter(part) => Ok(part.ep.block_on(part.ep.global_fence([CONTROLLER]))?),
        }
    }

    /// Publishes how well a converter's loop kept its period.
    pub(crate) fn publish_achieved(&mut self) -> Result<()> {
        if let Part::Converter(part) = self {
            part.achieved_us.store(part.clock.achieved_us());
            part.ep.block_on(part.achieved_us.push(&part.ep))?;
        }
        Ok(())
    }

    /// On the controller: the sum of the outputs that it saw at each step, and the mean periods in microseconds that
    /// its own loop and the slowest converter's achieved.
    pub(crate) fn results(&mut self) -> Option<(Seen, [f64; 2])> {
        let Part::Controller(part) = self else { return None };
        let converters = part.achieved_us.iter().map(read).fold(0.0, f64::max);
        Some((core::mem::take(&mut part.seen), [part.clock.achieved_us(), converters]))
    }
}

impl ControllerPart {
    fn push(&mut self, duties: &[f64]) -> Result<()> {
        for (writer, duty) in self.duties.iter_mut().zip(duties) {
            writer.store(*duty);
            self.ep.block_on(writer.push(&self.ep))?;
        }
        Ok(())
    }

    fn send_due(&mut self, now: Nanos) -> Result<()> {
        while let Some((_, duties)) = self.held.pop_front_if(|held| held.0 <= now) {
            self.push(&duties)?;
        }
        Ok(())
    }

    fn act(&mut self, now: Nanos, delay: Nanos) -> Result<()> {
        self.send_due(now)?;
        if now >= self.clock.next {
            let volts: Vec<f64> = self.volts.iter().map(read).collect();
            self.seen.push((now, volts.iter().sum()));
            self.held.push_back((now + delay, self.controller.step(&volts)));
            self.clock.stepped(now);
        }
        self.send_due(now)
    }
}

impl ConverterPart {
    fn push(&mut self, volts: f64) -> Result<()> {
        self.volts.store(volts);
        self.ep.block_on(self.volts.push(&self.ep))
    }

    fn send_due(&mut self, now: Nanos) -> Result<()> {
        while let Some((_, volts)) = self.held.pop_front_if(|held| held.0 <= now) {
            self.push(volts)?;
        }
        Ok(())
    }

    fn act(&mut self, now: Nanos, delay: Nanos) -> Result<()> {
        self.send_due(now)?;
        if now >= self.clock.next {
            // A converter is a physical device: it kept running while this loop was late.
            let volts = self.converter.step(self.duty_in_force, now - self.clock.last);
            self.held.push_back((now + delay, volts));
            self.duty_in_force = read(&self.duty);
            self.clock.stepped(now);
        }
        self.send_due(now)
    }
}
