//! The part of a process that does not depend on the data type: its words, its groups, and the waits for others. The
//! compiler makes it once, not for each type.

use core::time::Duration;

use farfield_core::toolkit::{ErrorContext, Object, RefusedPause};
use farfield_core::{Error, ErrorKind, Node, Result};
use farfield_fabric::{self as fabric, Buf, Endpoint, Instant, NodeId, RemotePtr, Word};

use crate::conflicting::Order;
use crate::errors::is_passing;
use crate::feed::READS_NO_MORE;

/// How long a wait for another node lasts before that is looked at again, at first and at most.
const LOOKS_AGAIN: Duration = Duration::from_millis(10);
pub(crate) const LOOKS_AGAIN_MAX: Duration = Duration::from_millis(100);

/// How long a leader waits for answers before it asks again, at first and at most.
const ROUND_MIN: Duration = Duration::from_millis(20);
const ROUND_MAX: Duration = Duration::from_secs(1);

/// A process of a replicated object. It does not keep its node in the session.
pub(crate) struct Process {
    node: Node,
    /// Its rank.
    pub(crate) me: usize,
    /// The counts of applied entries of all feeds, of each process.
    pub(crate) counts: Vec<(usize, NodeId, RemotePtr<u64>)>,
    /// By synchronisation group.
    pub(crate) orders: Vec<Order>,
    /// The synchronisation group of each conflicting method.
    pub(crate) group_of: Vec<Option<usize>>,
    pub(crate) is_closed: Word,
    /// Changes whenever the state does, and when this process has sent all that it owes to others. Threads wait for it
    /// without the lock.
    pub(crate) changes: Word,
    /// The dead processes of which all calls are here that any live replica has: a bit for each rank.
    pub(crate) settled: Word,
}

impl Process {
    pub(crate) fn new(
        node: &Node,
        me: usize,
        counts: Vec<(usize, NodeId, RemotePtr<u64>)>,
        orders: Vec<Order>,
        group_of: Vec<Option<usize>>,
    ) -> Process {
        let word = || Word::new(0);
        let node = node.for_service();
        Process { node, me, counts, orders, group_of, is_closed: word(), changes: word(), settled: word() }
    }

    /// The state has changed, if `some`. Called under the lock. The count of changes now.
    pub(crate) fn note(&self, some: bool) -> u64 {
        if some {
            self.changes.fetch_add(1);
            self.node.fabric().wake_local();
        }
        self.changes.load()
    }

    pub(crate) fn has_changed(&self, endpoint: &Endpoint) {
        self.changes.fetch_add(1);
        endpoint.wake_local();
    }

    /// Why a wait ends: the object is reopened, or this node was evicted, and nothing arrives any more.
    pub(crate) fn ends(&self, object: &Object) -> Option<Error> {
        let is_fenced = object.node().fabric().is_fenced();
        let fenced = || is_fenced.then(|| fabric::Error::from(fabric::ErrorKind::Fenced).into());
        object.check_unasked().err().or_else(fenced)
    }

    /// How many entries of all logs are decided: it grows with each.
    pub(crate) fn decided(&self) -> u64 {
        self.orders.iter().map(|order| order.commands.log().decided()).sum()
    }

    /// Waits until a majority has applied these entries of feeds, this process among them.
    pub(crate) async fn spread(
        &self,
        endpoint: &Endpoint,
        order: &Order,
        entries: &[(usize, u64)],
        deadline: Instant,
    ) -> Result<()> {
        let processes = self.counts.len();
        let (start, needed, mut pause) = (endpoint.now(), processes / 2, RefusedPause::default());
        let mut round = ROUND_MIN;
        let has =
            |row: &[u64], (process, count): &(usize, u64)| row[*process] != READS_NO_MORE && row[*process] >= *count;
        loop {
            let mut missing: Vec<NodeId> = self.counts.iter().map(|(_, node, _)| *node).collect();
            missing.remove(self.me);
            let (mut asked, mut gets) = (Vec::new(), Vec::new());
            for (_, node, row) in self.counts.iter().filter(|(rank, ..)| *rank != self.me) {
                if let Ok(into) = endpoint.buf::<u64>(processes) {
                    asked.push(*node);
                    gets.push(endpoint.get_into(*row, into));
                }
            }
            let have_all = |row: &Buf<'_, u64>| entries.iter().all(|entry| has(row, entry));
            // One that does not answer does not hold up the end at the deadline, nor those that have not applied all
            // yet: they are asked again.
            let until = deadline.min(endpoint.now() + round);
            round = ROUND_MAX.min(2 * round);
            if let Some(found) = endpoint.within(until, endpoint.quorum_where(gets, needed, have_all)).await {
                if found.succeeded() >= needed {
                    let mut at_majority = order.at_majority.lock();
                    entries
                        .iter()
                        .for_each(|(process, count)| at_majority[*process] = at_majority[*process].max(*count));
                    return Ok(());
                }
                let those = found.ended().iter().filter(|(_, row)| row.as_ref().is_ok_and(have_all));
                let those: Vec<NodeId> = those.map(|(at, _)| asked[*at]).collect();
                missing.retain(|node| !those.contains(node));
            }
            let now = endpoint.now();
            if now >= deadline {
                let what = "a majority to apply what a call depends on".into();
                return Err(ErrorKind::Timeout { what, waited: now - start, missing }.into());
            }
            pause.wait(endpoint, deadline).await;
        }
    }

    /// Waits until all live replicas have applied all calls of this process. `sent` has the number of their entries in
    /// each feed and log, when none has still to be put: the service thread puts those that were refused.
    pub(crate) async fn wait_for_all(
        &self,
        endpoint: &Endpoint,
        object: &Object,
        sent: &dyn Fn() -> Option<Vec<(usize, u64)>>,
    ) -> Result<()> {
        let others = || self.counts.iter().filter(|(rank, ..)| *rank != self.me);
        let deadline = endpoint.deadline();
        // The service thread sends again all that was refused.
        let entries = loop {
            let changes = self.changes.load();
            if let Some(entries) = sent() {
                break entries;
            }
            let has_changed = || (self.changes.load() != changes).then_some(());
            let nodes: Vec<NodeId> = others().map(|(_, node, _)| *node).collect();
            let sent = endpoint.wait_until(deadline, has_changed).await;
            sent.waiting_for_nodes("nodes that refuse this one's calls", &nodes)?;
        };
        // Summaries are read when they are visible.
        object.node().fence_all_live_nodes(endpoint, others().map(|(_, node, _)| *node)).await?;
        for (_, node, row) in others() {
            for (word, count) in &entries {
                self.wait_until_applied(endpoint, *node, row.at(*word), *count, deadline).await?;
            }
        }
        Ok(())
    }

    /// Waits until a node has applied this many entries, or is gone.
    async fn wait_until_applied(
        &self,
        endpoint: &Endpoint,
        node: NodeId,
        applied: RemotePtr<u64>,
        entries: u64,
        deadline: Instant,
    ) -> Result<()> {
        let mut seen = endpoint.get(applied).await;
        let mut pause = LOOKS_AGAIN;
        loop {
            let now = endpoint.now();
            let until = deadline.min(now + pause);
            pause = LOOKS_AGAIN_MAX.min(2 * pause);
            match seen {
                Ok(count) if count >= entries => return Ok(()),
                Err(error) if error.is_gone() => return Ok(()),
                Err(error) if !is_passing(&error) => return Err(error.into()),
                _ if now >= deadline => {
                    let (what, waited) = ("a replica that has not applied all calls".into(), endpoint.timeout());
                    return Err(ErrorKind::Timeout { what, waited, missing: vec![node] }.into());
                }
                // A death does not change the word.
                Ok(count) => {
                    let waited = endpoint.wait_remote(applied, count, until).await;
                    seen = if waited.as_ref().is_err_and(fabric::Error::is_timeout) { Ok(count) } else { waited };
                }
                Err(_) => {
                    endpoint.wait_for_change(until).await;
                    seen = endpoint.get(applied).await;
                }
            }
        }
    }
}
