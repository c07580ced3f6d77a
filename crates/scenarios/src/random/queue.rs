//! A queue that is linearizable. A thread that has dequeued a value knows what its producer knew.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use farfield_core::{NodeId, Queue, QueueOptions, Result};

use super::peril::Peril;
use super::{Object, Program, Step};
use crate::keep;
use crate::queue::{Client, Do, assert_linearizable};
use farfield_check::parts::Excuse;

/// Two words, which may be torn.
type Value = [u64; 2];

struct Clients {
    home: usize,
    batch_max: usize,
    /// Those of the threads.
    clients: Vec<Rc<Client<Value>>>,
}

/// A call that waits ends when this has passed, and nothing else can happen.
const PATIENCE: Duration = Duration::from_millis(50);

pub(super) fn open(program: &Program<'_>) -> Result<Box<dyn Object>> {
    let (home, capacity, batch_max) = (program.draw_node(), 1 + program.draw(2), 1 + program.draw(2));
    let options = QueueOptions {
        batch_max,
        enqueues_per_node: 1 + program.draw(2),
        ..QueueOptions::new(NodeId(home as u16), capacity)
    };
    let open = move |node: &farfield_core::Node| Queue::<Value>::open(node, "queue", options.clone()).map(Rc::new);
    let queues = keep(program.cluster, program.cluster.on_each(open)?);
    let log = program.cluster.log();
    let may_lose_home = matches!(program.peril, Peril::Death | Peril::Suspicion);
    let client = |id: usize, node: usize| Client {
        id: id as u32,
        queue: Rc::clone(&queues[node]),
        log: log.clone(),
        may_lose_home,
    };
    let clients = program.threads.iter().enumerate().map(|(thread, node)| Rc::new(client(thread, *node))).collect();
    let (nodes, peril, last) = (program.cluster.nodes(), program.peril.clone(), RefCell::new(Vec::new()));
    for node in 0..program.nodes() {
        last.borrow_mut().push(client(program.threads.len() + node, node));
    }
    program.cluster.at_end(move || {
        let last = last.take();
        if peril.goes_on(&nodes[home]) {
            // By any node that continues.
            let node = (0..nodes.len()).rfind(|node| peril.goes_on(&nodes[*node])).unwrap_or(home);
            let ep = nodes[node].endpoint()?;
            while ep.block_on(last[node].follow(&ep, Do::TryDequeue))?.is_some() {}
        }
        assert_linearizable(capacity, last[home].log.take());
        Ok(())
    });
    Ok(Box::new(Clients { home, batch_max, clients }))
}

impl Object for Clients {
    fn step(&self, program: &Program<'_>, thread: usize) -> Option<Step> {
        let (client, home, peril) = (Rc::clone(&self.clients[thread]), self.home, program.peril.clone());
        let (kind, batch) = (program.draw(10), 1 + program.draw(self.batch_max));
        Some(Box::new(move |ep, party| {
            let before = ep.timeout();
            let tokens: Vec<u64> = if kind < 4 { (0..batch).map(|_| party.token()).collect() } else { Vec::new() };
            let what = match kind {
                0 => Do::EnqueueInTime(tokens[0]),
                1 => Do::TryEnqueue(tokens[0]),
                2 => Do::TryBatch(&tokens),
                3 => Do::CutEnqueue(tokens[0]),
                4 => Do::CutDequeue,
                5 => Do::TryDequeue,
                6 => Do::IsEmpty,
                7 => Do::Close,
                _ => Do::DequeueInTime,
            };
            ep.set_timeout(PATIENCE);
            let since = Excuse::now();
            let found = ep.block_on(client.follow(ep, what));
            ep.set_timeout(before);
            if let Some(Some(token)) = peril.unless_faults(since, found)? {
                party.hears(token, Some(home));
            }
            Ok(())
        }))
    }
}
