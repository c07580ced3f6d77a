//! A barrier between threads of some nodes: none passes before all have arrived, and each then sees what the others
//! have written before.

use std::cell::RefCell;
use std::rc::Rc;

use farfield_core::{Barrier, BarrierThread, Endpoint, NodeId, Result};

use super::knowledge::{Message, Party};
use super::peril::{Peril, is_refused};
use super::{Object, Program, Step};
use crate::keep;
use farfield_check::parts::Excuse;

/// The knowledge of the arrived threads, round by round.
type Arrived = Rc<RefCell<Vec<Vec<Message>>>>;

struct Part {
    thread: BarrierThread,
    round: usize,
    /// A wait has ended in an error: this thread waits no more.
    has_failed: bool,
}

impl Part {
    fn wait(&mut self, ep: &Endpoint, how: How, peril: &Peril) -> Result<Option<()>> {
        let mut since = Excuse::now();
        let mut passed = match how {
            How::Waits => ep.block_on(self.thread.wait(ep)),
            How::Unfenced => ep.block_on(self.thread.wait_unfenced(ep)),
            // It is in vain, unless the others have arrived.
            How::Twice => match ep.block_on(self.thread.wait_deadline(ep, ep.now())) {
                Err(error) if error.is_timeout() => ep.block_on(self.thread.retry_wait(ep, ep.deadline())),
                passed => passed,
            },
        };
        loop {
            let again = match (&passed, peril) {
                (Err(error), Peril::Death) => error.is_timeout() && since.is_given(),
                // As often as something may be refused: before the wait begins, or until its deadline.
                (Err(error), Peril::Refusals(_)) => is_refused(error),
                _ => false,
            };
            if !again {
                return peril.unless_faults(since, passed);
            }
            since = Excuse::now();
            passed = ep.block_on(self.thread.retry_wait(ep, ep.deadline()));
        }
    }
}

#[derive(Clone, Copy)]
enum How {
    Waits,
    Unfenced,
    Twice,
}

struct Rounds {
    /// Those of the threads that take part.
    parts: Vec<Option<Rc<RefCell<Part>>>>,
    parties: usize,
    /// How many rounds each thread still has to draw.
    left: RefCell<Vec<usize>>,
    arrived: Arrived,
}

pub(super) fn open(program: &Program<'_>) -> Result<Box<dyn Object>> {
    let on = |node: usize| program.threads.iter().filter(|of| **of == node).count();
    let nodes: Vec<usize> = (0..program.nodes()).filter(|node| on(*node) > 0).collect();
    let threads_per_node = 1 + program.draw(nodes.iter().map(|node| on(*node)).min().unwrap_or(1));
    let members: Vec<NodeId> = nodes.iter().map(|node| NodeId(*node as u16)).collect();
    let open = move |node: &farfield_core::Node| {
        let takes_part = members.contains(&node.id());
        takes_part.then(|| Barrier::open_among(node, "barrier", threads_per_node, &members)).transpose()
    };
    let barriers = keep(program.cluster, program.cluster.on_each(open)?);
    let part = |(number, node): (usize, &usize)| {
        let before = program.threads[..number].iter().filter(|of| *of == node).count();
        let barrier = barriers[*node].as_ref().filter(|_| before < threads_per_node);
        let part = |barrier: &Barrier| Ok(Part { thread: barrier.thread()?, round: 0, has_failed: false });
        barrier.map(|barrier| part(barrier).map(|part| Rc::new(RefCell::new(part)))).transpose()
    };
    let parts = program.threads.iter().enumerate().map(part).collect::<Result<Vec<_>>>()?;
    let rounds = 1 + program.draw(2);
    Ok(Box::new(Rounds {
        parties: parts.iter().flatten().count(),
        left: RefCell::new(vec![rounds; parts.len()]),
        arrived: Rc::new(RefCell::new(vec![Vec::new(); rounds])),
        parts,
    }))
}

impl Object for Rounds {
    fn step(&self, program: &Program<'_>, thread: usize) -> Option<Step> {
        let part = Rc::clone(self.parts[thread].as_ref()?);
        let left = &mut self.left.borrow_mut()[thread];
        *left = left.checked_sub(1)?;
        let how = match program.draw(4) {
            0 => How::Unfenced,
            1 => How::Twice,
            _ => How::Waits,
        };
        let (arrived, parties, peril) = (Rc::clone(&self.arrived), self.parties, program.peril.clone());
        Some(Box::new(move |ep, party| {
            let part = &mut *part.borrow_mut();
            let round = part.round;
            part.round += 1;
            if part.has_failed {
                return Ok(());
            }
            let is_fenced = !matches!(how, How::Unfenced);
            let knows = if is_fenced { party.message_behind_fence() } else { party.message() };
            arrived.borrow_mut()[round].push(knows);
            if part.wait(ep, how, &peril)?.is_none() {
                part.has_failed = true;
                return Ok(());
            }
            pass(party, &arrived.borrow()[round], parties);
            if is_fenced {
                party.has_fenced();
            }
            Ok(())
        }))
    }

    /// All threads have to wait equally often.
    fn rest(&self, program: &Program<'_>, thread: usize) -> Vec<Step> {
        std::iter::from_fn(|| self.step(program, thread)).collect()
    }
}

fn pass(party: &mut Party, arrived: &[Message], parties: usize) {
    assert_eq!(arrived.len(), parties, "a thread has passed before all have arrived");
    arrived.iter().for_each(|message| party.learns(message, None));
}
