//! One call of [`Node::reopen`]: it agrees on a generation, opens the objects, and commits.

use farfield_fabric::{self as fabric, Endpoint, NodeId};

use super::super::Message;
use super::{Call, Known, Reopening, Step, generation_of};
use crate::error::{Error, ErrorKind, Result};
use crate::node::{LongWait, Node};

/// The result of waiting for the others.
enum Met {
    All,
    /// A member calls for a higher generation.
    Another,
}

/// One call of [`Node::reopen`].
pub(super) struct Caller<'a> {
    node: &'a Node,
    path: &'a str,
    candidates: Option<&'a [NodeId]>,
    endpoint: &'a Endpoint,
}

impl<'a> Caller<'a> {
    pub(super) fn begin(
        node: &'a Node,
        path: &'a str,
        candidates: Option<&'a [NodeId]>,
        endpoint: &'a Endpoint,
    ) -> Result<Caller<'a>> {
        let known = &node.shared().service.reopenings;
        let mut paths = known.paths.lock();
        let of_path = paths.entry(path.into()).or_default();
        if std::mem::replace(&mut of_path.is_calling, true) {
            return Err(Error::from(ErrorKind::AlreadyOpen).of(path));
        }
        of_path.own = None;
        known.has_changed(&paths);
        Ok(Caller { node, path, candidates, endpoint })
    }

    fn known<T>(&self, with: impl FnOnce(&mut Known) -> T) -> T {
        let mut paths = self.node.shared().service.reopenings.paths.lock();
        with(paths.entry(self.path.into()).or_default())
    }

    pub(super) fn run<T>(&self, mut open: impl FnMut(&Reopening) -> Result<T>) -> Result<T> {
        loop {
            let (generation, members) = self.agree()?;
            tracing::info!(generation, ?members, "agreed");
            self.known(|known| (known.last, known.members) = (generation, members.clone()));
            let reopening = Reopening {
                path: format!("{}@{generation}", self.path),
                generation,
                members: members.iter().copied().map(NodeId).collect(),
                places: self.node.nodes(),
            };
            let opened = match open(&reopening) {
                Ok(opened) => opened,
                Err(error) => {
                    let is_lost = members.iter().any(|node| self.node.shared().is_gone(NodeId(*node)));
                    let is_lost = is_lost || error.is_unreachable();
                    if self.check_fenced().is_ok() && (is_lost || self.is_overtaken()) {
                        tracing::info!("{}: generation {generation} came to nothing: {error}", self.path);
                        continue;
                    }
                    return Err(error);
                }
            };
            self.say(generation, &members, Step::Opened);
            match self.meet(generation, &members)? {
                Met::All => {
                    self.supersede(generation);
                    tracing::info!(generation, "reopened");
                    return Ok(opened);
                }
                Met::Another => {
                    self.known(|known| known.opened = 0); // the others are not to count on it
                    drop(opened);
                }
            }
        }
    }

    /// Waits until all members have called for the same generation among the same members.
    fn agree(&self) -> Result<(u64, Vec<u16>)> {
        let (mut generation, mut members) = (0, Vec::new());
        self.wait("all members to call `reopen`", |caller| {
            let now = caller.members();
            let highest = caller.known(|known| {
                let said = now.iter().filter_map(|node| known.said.get(&NodeId(*node)));
                said.map(|call| call.generation).chain([known.last + 1]).max().unwrap_or(0)
            });
            if highest > generation || now != members {
                // With other members it is another generation: some nodes may have agreed on the one before.
                let next = if members.is_empty() { highest } else { highest.max(generation + 1) };
                (generation, members) = (next, now);
                caller.say(generation, &members, Step::Calls);
            }
            let missing = caller.missing(&members, |call| call.is_of(generation, &members));
            if missing.is_empty() { Ok((generation, members.clone())) } else { Err(missing) }
        })
    }

    /// Waits until all live members have opened their objects, or one of them calls for a higher generation.
    fn meet(&self, generation: u64, members: &[u16]) -> Result<Met> {
        self.wait("all members to reopen it", |caller| {
            if caller.is_overtaken() {
                return Ok(Met::Another);
            }
            let missing = caller.missing(members, |call| call.opened == generation);
            let living = missing.into_iter().filter(|node| !caller.node.shared().is_gone(*node));
            let missing: Vec<NodeId> = living.collect();
            if missing.is_empty() { Ok(Met::All) } else { Err(missing) }
        })
    }

    /// Polls `look` until it returns a value. Until then it returns the nodes that it waits for, all of them live.
    fn wait<T>(&self, what: &str, mut look: impl FnMut(&Caller<'_>) -> Result<T, Vec<NodeId>>) -> Result<T> {
        let (endpoint, service) = (self.endpoint, &self.node.shared().service);
        // This precedes the poll, so no change in between is missed.
        let seen = || service.reopenings.changes.load();
        let start = endpoint.now();
        let long = LongWait::default();
        loop {
            self.check_fenced()?;
            let before = seen();
            let missing = match look(self) {
                Ok(done) => return Ok(done),
                Err(missing) => missing,
            };
            let tells = || {
                if let Some(waited) = long.becomes_long(endpoint, || tracing::enabled!(tracing::Level::INFO)) {
                    tracing::info!(?waited, ?missing, "still waits for {what}");
                }
            };
            // The fabric knows of a death before the membership does.
            let has_changed = || {
                tells();
                (seen() != before || missing.iter().any(|node| endpoint.check_alive(*node).is_err())).then_some(())
            };
            if endpoint.block_on(endpoint.wait_until(start + self.node.timeout(), has_changed)).is_err() {
                let waited = endpoint.now() - start;
                return Err(ErrorKind::Timeout { what: what.into(), waited, missing }.into());
            }
        }
    }

    /// A removed node has no members with which to reopen an object.
    fn check_fenced(&self) -> Result<()> {
        if self.node.fabric().is_fenced() { Err(fabric::Error::from(fabric::ErrorKind::Fenced).into()) } else { Ok(()) }
    }

    /// The members in this node's current view, in order.
    fn members(&self) -> Vec<u16> {
        let is_candidate = |node: &NodeId| self.candidates.is_none_or(|nodes| nodes.contains(node));
        self.node.live_members().into_iter().filter(is_candidate).map(|node| node.0).collect()
    }

    /// The other members without the expected call as their latest.
    fn missing(&self, members: &[u16], is_right: impl Fn(&Call) -> bool) -> Vec<NodeId> {
        let others = members.iter().copied().map(NodeId).filter(|node| *node != self.node.id());
        self.known(|known| others.filter(|node| !known.said.get(node).is_some_and(&is_right)).collect())
    }

    /// Whether a member skips this generation without having opened it.
    fn is_overtaken(&self) -> bool {
        self.known(|known| known.overtaking().is_some())
    }

    fn say(&self, generation: u64, members: &[u16], step: Step) {
        let shared = self.node.shared();
        let others = members.iter().copied().map(NodeId).filter(|node| *node != self.node.id());
        self.known(|known| {
            known.opened = if step == Step::Opened { generation } else { known.opened };
            let (path, members, opened) = (self.path.into(), members.to_vec(), known.opened);
            let call = known.own.insert(Call { path, generation, members, step, opened });
            // Under the lock: the service thread sends the call, too, and must not send it after the next one.
            others.for_each(|node| _ = Message::Reopen(call.clone()).send(shared, node));
        });
    }

    /// The objects of earlier generations end here.
    fn supersede(&self, generation: u64) {
        let open: Vec<_> = self.node.shared().service.objects.lock().values().cloned().collect();
        for object in open {
            if generation_of(&object.own.path, self.path).is_some_and(|earlier| earlier < generation) {
                object.reopened.store(generation);
            }
        }
        self.endpoint.wake_local();
    }

    pub(super) fn end(&self, is_open: bool) {
        let known = &self.node.shared().service.reopenings;
        if !is_open {
            let own = self.known(|known| {
                known.opened = 0; // it drops an object that it may have opened
                known.own.take()
            });
            if let Some(Call { generation, members, .. }) = own {
                self.say(generation, &members, Step::GivesUp);
            }
        }
        let mut paths = known.paths.lock();
        let of_path = paths.entry(self.path.into()).or_default();
        of_path.is_calling = false;
        // If it is open, each living member has opened this generation. Later messages of members, and those of other
        // nodes, ask for another one. In either case calls of the gone count no more.
        let shared = self.node.shared();
        of_path.said.retain(|node, _| !shared.is_gone(*node));
        known.has_changed(&paths);
    }
}
