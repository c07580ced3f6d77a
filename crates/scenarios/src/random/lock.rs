//! Locks: one holder at a time, which sees what the holders before it have written, and the locks are free in the end.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use farfield_core::fabric::Region;
use farfield_core::{Endpoint, Guard, Mutex, Node, NodeId, Result};

use super::knowledge::{Message, Party};
use super::peril::Peril;
use super::{Object, Program, Step, VICTIM};
use crate::keep;
use farfield_check::crashed;
use farfield_check::parts::{Excuse, Protected, accepted, cut, word};

/// How an operation takes a lock.
#[derive(Clone, Copy)]
enum How {
    Waits,
    Tries,
    /// Gives up at once.
    GivesUp,
    /// Its future is dropped when it was pending so often.
    Drops(usize),
}

struct Lock {
    home: usize,
    mutexes: Rc<Vec<Mutex>>,
    data: Protected,
    homes: [usize; 2],
    /// The knowledge of the last holder.
    released: RefCell<Message>,
    /// The sections that have begun.
    begun: Cell<u64>,
    /// The sections of each node that have ended.
    ended: RefCell<Vec<u64>>,
}

/// What an operation does with the lock.
struct Section {
    how: How,
    /// Words of its own node are read and written by the CPU.
    by_cpu: bool,
    /// A word of its node, to which it gets the protected data, without waiting for that.
    gets: Option<Region>,
}

impl Lock {
    async fn take<'a>(&'a self, ep: &'a Endpoint, how: How) -> Result<Option<Guard<'a>>> {
        let mutex = &self.mutexes[ep.me().index()];
        match how {
            How::Waits => mutex.lock(ep).await.map(Some),
            How::Tries => mutex.try_lock(ep).await,
            How::GivesUp => match mutex.lock_deadline(ep, ep.now()).await {
                Err(error) if error.is_timeout() => Ok(None),
                taken => taken.map(Some),
            },
            How::Drops(pending) => cut(pending, mutex.lock(ep)).await.transpose(),
        }
    }

    async fn work(
        &self,
        ep: &Endpoint,
        party: &mut Party,
        mut guard: Guard<'_>,
        section: &Section,
        peril: &Peril,
    ) -> Result<()> {
        let is_poisoned = guard.is_poisoned();
        assert!(!is_poisoned || may_poison(peril), "it is poisoned, but no holder has died");
        if !is_poisoned {
            party.learns(&self.released.borrow(), None);
        }
        self.begun.set(self.begun.get() + 1);
        let may_be_gone = |node| !matches!(peril, Peril::Death) || crashed(node);
        if let Some(cell) = &section.gets {
            accepted(|| ep.get_span(self.data.remote(0), cell.span(0, 8)).detach())?;
        }
        let before = self.data.add_one(ep, section.by_cpu, is_poisoned, may_be_gone).await?;
        guard.clear_poison();
        self.released.replace(party.message_behind_fence());
        guard.unlock().await?;
        party.has_fenced();
        self.ended.borrow_mut()[party.node] += 1;
        // A holder that has died may have left the two words different.
        if let Some(cell) = section.gets.as_ref().filter(|_| !is_poisoned) {
            // The put that follows the get may overtake it. The next holder's may not.
            let found = cell.word(0).load();
            assert!((before..=before + 1).contains(&found), "a get under the lock has found {found}, not {before}");
        }
        Ok(())
    }
}

fn may_poison(peril: &Peril) -> bool {
    match peril {
        Peril::Nothing | Peril::Refusals(_) => false,
        Peril::Death => crashed(VICTIM.index()),
        Peril::Suspicion => true,
    }
}

struct Locks(Vec<Rc<Lock>>);

pub(super) fn open(program: &Program<'_>) -> Result<Box<dyn Object>> {
    let lock = |number: usize| {
        let home = program.draw_node();
        let open = move |node: &Node| Mutex::open(node, &format!("lock{number}"), NodeId(home as u16));
        let mutexes = keep(program.cluster, program.cluster.on_each(open)?);
        let homes = [program.draw_safe_node(), program.draw_safe_node()];
        let data = Protected::new(program.cluster, homes, &format!("{number}"))?;
        let (released, begun, ended) = (RefCell::default(), Cell::default(), RefCell::new(vec![0; program.nodes()]));
        Ok(Rc::new(Lock { home, mutexes, data, homes, released, begun, ended }))
    };
    let locks = (0..1 + program.draw(2)).map(lock).collect::<Result<Vec<_>>>()?;
    let (nodes, peril, at_end) = (program.cluster.nodes(), program.peril.clone(), locks.clone());
    program.cluster.at_end(move || {
        let goes_on = |node: usize| peril.goes_on(&nodes[node]);
        for lock in at_end.iter().filter(|lock| goes_on(lock.home)) {
            for node in (0..nodes.len()).filter(|node| goes_on(*node)) {
                let ep = nodes[node].endpoint()?;
                let guard = ep.block_on(lock.mutexes[node].lock(&ep))?;
                if lock.homes.iter().all(|home| goes_on(*home)) {
                    // The sections of a node that is gone may have been lost with it, or not.
                    let ended: u64 =
                        lock.ended.borrow().iter().enumerate().filter(|it| goes_on(it.0)).map(|it| it.1).sum();
                    lock.data.assert_sections(guard.is_poisoned(), ended..=lock.begun.get());
                }
                ep.block_on(guard.unlock())?;
            }
        }
        Ok(())
    });
    Ok(Box::new(Locks(locks)))
}

impl Object for Locks {
    fn step(&self, program: &Program<'_>, thread: usize) -> Option<Step> {
        let (peril, node) = (program.peril.clone(), program.node_of(thread));
        let first = program.draw(self.0.len());
        // Two at once in a quarter of the steps, if there are two.
        let locks: Vec<_> = (0..self.0.len()).filter(|at| *at == first || program.draw(4) == 0).collect();
        let locks: Vec<_> = locks.into_iter().map(|at| Rc::clone(&self.0[at])).collect();
        let how = match program.draw(6) {
            0..3 => How::Waits,
            3 => How::Tries,
            4 => How::GivesUp,
            _ => How::Drops(program.draw(6)),
        };
        let gets = (program.draw(3) == 0).then(|| word(program.cluster, node, "cell")).transpose().ok()?;
        let section = Section { how, by_cpu: program.draw(2) == 0, gets };
        Some(Box::new(move |ep, party| {
            let since = Excuse::now();
            let done = ep.block_on(async {
                let mut held = Vec::new();
                for (at, lock) in locks.iter().enumerate() {
                    let how = if at + 1 == locks.len() { section.how } else { How::Waits };
                    held.extend(lock.take(ep, how).await?.map(|guard| (lock, guard)));
                }
                for (lock, guard) in held {
                    lock.work(ep, party, guard, &section, &peril).await?;
                }
                Ok(())
            });
            peril.unless_faults(since, done).map(drop)
        }))
    }
}
