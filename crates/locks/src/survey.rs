//! The operations of a queue, as seen by one that is stuck behind dead nodes.

use farfield_core::MemberStatus;
use farfield_fabric::{self as fabric, Endpoint, NodeId, RemotePtr};

use super::descriptor;
use super::descriptor::{About, Descriptors, Id, State};
use super::grant::Grant;
use super::queue::{AT_ONCE, Queue};

/// The living entries of a lock, and the nodes that were evicted before the entries were read.
pub(super) struct Survey {
    pub(super) seen: Vec<Seen>,
    evicted: Vec<NodeId>,
}

impl Survey {
    fn find(&self, id: Id) -> Option<&Seen> {
        self.seen.iter().find(|seen| seen.id == id)
    }

    /// The stuck beginning of an entry's chain; none if the entry is in no chain, or something has been granted in it.
    fn beginning(&self, id: Id) -> Option<Id> {
        let mut at = self.find(id)?;
        // Each entry found its predecessor before itself in the queue, so the chain ends.
        loop {
            if at.state != State::Queued || at.is_granted {
                return None;
            }
            if self.evicted.contains(&at.pred.node()?) {
                return Some(at.id);
            }
            at = self.find(at.pred)?;
        }
    }

    /// Whether a stuck entry may claim the head. `tail` was read before the survey.
    pub(super) fn lets_claim(&self, me: Id, tail: Id) -> bool {
        let mut others = self.seen.iter().filter(|seen| !matches!(seen.state, State::Free | State::Leaving));
        let Some(beginnings) = others.try_fold(Vec::new(), |mut all, seen| {
            all.push(self.beginning(seen.id)?);
            Some(all)
        }) else {
            return false;
        };
        let is_evicted = |node| self.evicted.contains(&node);
        // While the tail belongs to the dead, no living operation can empty it.
        if tail.node().is_some_and(is_evicted) {
            return beginnings.contains(&me);
        }
        match self.beginning(tail) {
            Some(last) => last != me || beginnings.iter().all(|beginning| *beginning == me),
            None => false,
        }
    }
}

/// A living entry of a lock, as the survey read it.
pub(super) struct Seen {
    pub(super) id: Id,
    pub(super) state: State,
    pub(super) pred: Id,
    is_granted: bool,
}

impl Queue {
    /// Reads the living entries of a lock; none if this is impossible now.
    ///
    /// # Errors
    /// The endpoint has no buffers for it.
    pub(super) async fn survey(&self, endpoint: &Endpoint, lock: usize) -> fabric::Result<Option<Survey>> {
        use MemberStatus::{Dead, Evicted, Member, Suspected};
        // Before any read: puts of the evicted nodes have landed by now.
        let status = |(node, table)| (node, table, self.node.status_of(node));
        let tables: Vec<_> = self.descriptors.tables().map(status).collect();
        if tables.iter().any(|(.., status)| matches!(status, Some(Suspected | Dead) | None)) {
            return Ok(None); // a get from it might not complete
        }
        let evicted = tables.iter().filter(|it| it.2 == Some(Evicted)).map(|it| it.0).collect();
        // The entries queued for this lock.
        let mut found = Vec::new();
        let mut look = |node: NodeId, table: RemotePtr<u64>, first: usize, words: &mut dyn Iterator<Item = u64>| {
            for (at, about) in words.enumerate() {
                let (slot, about) = (first + at, About(about));
                if about.lock() == lock && about.state().is_some_and(|state| state != State::Free) {
                    found.push((Descriptors::name(node, slot, about), about, table.at(slot * descriptor::BYTES / 8)));
                }
            }
        };
        let (me, each, words) = (self.node.id(), descriptor::BYTES / 8, self.descriptors.table_words());
        let mut reads = Vec::new();
        for (node, table, _) in tables.iter().copied().filter(|it| it.2 == Some(Member)) {
            if node == me {
                look(node, table, 0, &mut self.descriptors.own_words().iter().step_by(each).map(|word| word.load()));
                continue;
            }
            for first in (0..words).step_by(AT_ONCE * each) {
                let buf = endpoint.buf::<u64>((AT_ONCE * each).min(words - first))?;
                reads.push((node, table, first, endpoint.get_into(table.at(first), buf)));
            }
        }
        for (node, table, first, read) in reads {
            let Ok(words) = read.await else { return Ok(None) };
            look(node, table, first / each, &mut words.iter().step_by(each).copied());
        }
        // Reads the state of each entry. The words of a descriptor arrive in any order, and it may be reused in the
        // meantime. So its state is read once more after them. The words belong to the entry only if both reads find it
        // in the queue. (An entry that has claimed in between looks unchanged: then the claim count has changed since
        // before the survey.)
        let mut seen = Vec::new();
        for (id, before, at) in found {
            let own = (id.node() == Some(me)).then(|| self.descriptors.of(id));
            let rest = match &own {
                Some(own) => Ok([0, own.pred().load(), 0, own.grant().load()]),
                None => endpoint.get_words::<4>(at).await,
            };
            let Ok([_, pred, _, grant]) = rest else { return Ok(None) };
            let state = match &own {
                Some(own) => Ok(own.about().load()),
                None => endpoint.get(at).await,
            };
            let Ok(about) = state.map(About) else { return Ok(None) };
            // A finished entry blocks no other. The descriptor's new user is behind the caller.
            if about.generation() == before.generation() && about.state() != Some(State::Free) {
                let state = before.state().filter(|_| about == before).unwrap_or(State::Enqueueing);
                seen.push(Seen { id, state, pred: Id(pred), is_granted: Grant::of(grant).is_some() });
            }
        }
        Ok(Some(Survey { seen, evicted }))
    }

    /// Whether no living entry of a lock is in its queue. The caller must have seen a tail of the dead first. False if
    /// this cannot be determined now.
    pub(super) async fn is_deserted(&self, endpoint: &Endpoint, lock: usize) -> bool {
        let survey = self.survey(endpoint, lock).await;
        survey.ok().flatten().is_some_and(|survey| survey.seen.iter().all(|seen| seen.state == State::Leaving))
    }
}
