//! Memory nodes: they lend memory to arrays and stores without knowing their types.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use farfield_core::toolkit::{Call, Object, ObjectBuilder, Regions};
use farfield_core::{Error, ErrorKind, Node, Result};
use farfield_fabric::{Endpoint, GroupKey, Instant, LocalMutex, NodeId};

use crate::layout::REGIONS;
use crate::open::KINDS;
use crate::plan::Plan;
use crate::replacement::Replacement;

/// Lends memory of a node to replicated registers and stores that other nodes open. It needs to know neither their
/// types nor their sizes, and computes nothing for their calls.
///
/// Lent memory stays when all clients have gone, and they or others may come back to it. It ends with this.
///
/// ```
/// use farfield::{NodeId, swarm::{MemoryNode, SwarmOptions, SwarmRegister}};
/// let nodes = farfield::local_session(4)?;
/// let lenders: Vec<MemoryNode> = nodes[..3].iter().map(|node| MemoryNode::new(node, 64 << 20)).collect();
/// let mut options = SwarmOptions::default(); // the memory nodes are the first three
/// options.clients = vec![NodeId(3)];
/// std::thread::scope(|scope| -> farfield::Result<()> {
///     let opened = scope.spawn(|| SwarmRegister::<u64>::open(&nodes[3], "limit", options));
///     for (lender, node) in lenders.iter().zip(&nodes) {
///         let ep = node.endpoint()?;
///         lender.serve(&ep, ep.deadline())?; // `farfield memory` does this for ever
///     }
///     let (register, ep) = (opened.join().unwrap()?, nodes[3].endpoint()?);
///     register.client(&ep)?.write_blocking(7)
/// })?;
/// # drop(lenders); Ok::<(), farfield::Error>(())
/// ```
///
/// Section 4 of the paper calls such nodes passive.
pub struct MemoryNode {
    node: Node,
    bytes_max: u64,
    calls: Arc<LocalMutex<VecDeque<Call>>>,
    lent: LocalMutex<Vec<(Object, u64)>>,
    /// Whether it takes the places of memory nodes that were here before.
    replaces: bool,
    wanted: LocalMutex<Vec<Wanted>>,
    replaced: LocalMutex<Vec<Replacement>>,
}

/// An array or a store that has lost the memory node that was at this node's place.
struct Wanted {
    kind: &'static str,
    path: String,
    layout: String,
    of: NodeId,
    bytes: u64,
    /// When it is tried again. None while a thread tries.
    next: Option<Instant>,
    /// Once its memory is there, and no thread tries.
    replacement: Option<Replacement>,
    has_memory: bool,
}

/// How long it waits after an attempt that has failed.
const AGAIN: Duration = Duration::from_secs(1);

/// The memory of one array or store on a memory node.
///
/// ```
/// # let node = farfield::Node::builder().start()?;
/// let memory = farfield::swarm::MemoryNode::new(&node, 1 << 30);
/// for lent in memory.lent() {
///     println!("{}: {} bytes", lent.path, lent.bytes);
/// }
/// # Ok::<(), farfield::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Lent {
    /// The path of the array or store.
    pub path: String,
    /// How many bytes lie here.
    pub bytes: u64,
    /// The memory node that this one has replaced, if it is not one from the beginning ([`MemoryNode::replacing`]).
    pub replaces: Option<NodeId>,
}

impl MemoryNode {
    /// Lends memory of this node, at most so many bytes in all. From now on [`MemoryNode::serve`] has to be called.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?;
    /// let memory = farfield::swarm::MemoryNode::new(&node, 1 << 30);
    /// assert_eq!(memory.lent(), []);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn new(node: &Node, bytes_max: u64) -> MemoryNode {
        let calls = Arc::<LocalMutex<VecDeque<Call>>>::default();
        let heard = Arc::clone(&calls);
        node.on_call(move |call| {
            // Others are opened by this node's program, perhaps.
            if KINDS.contains(&call.theirs().kind.as_str()) && !call.theirs().expected.is_empty() {
                heard.lock().push_back(call);
            }
        });
        MemoryNode {
            node: node.clone(),
            bytes_max,
            calls,
            lent: LocalMutex::default(),
            replaces: false,
            wanted: LocalMutex::default(),
            replaced: LocalMutex::default(),
        }
    }

    /// From now on [`MemoryNode::serve`] also takes the place of a memory node that was at this node's place in the
    /// session, and has died or left: for each array and store that is open somewhere, or is opened later. It gets a
    /// copy of all that is there, while calls go on, and counts as a memory node then. Clients and options go on to
    /// name the one that it replaces.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?;
    /// let memory = farfield::swarm::MemoryNode::new(&node, 1 << 30).replacing();
    /// assert_eq!(memory.lent(), []); // no other node is there
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// The paper is silent about this; the crate's module `replacement` has the argument.
    pub fn replacing(mut self) -> MemoryNode {
        self.replaces = true;
        self
    }

    /// The arrays and stores that have memory here.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?;
    /// # let memory = farfield::swarm::MemoryNode::new(&node, 1 << 30);
    /// let bytes: u64 = memory.lent().iter().map(|lent| lent.bytes).sum();
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn lent(&self) -> Vec<Lent> {
        let lent = self.lent.lock();
        let first =
            lent.iter().map(|(object, bytes)| Lent { path: object.path().into(), bytes: *bytes, replaces: None });
        first.chain(self.replaced.lock().iter().map(Replacement::lent)).collect()
    }

    /// Waits for others that need memory, until something is lent or that moment has come (later while it makes a copy,
    /// [`MemoryNode::replacing`]). An array or a store that does not fit is refused, and its opening fails there.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?;
    /// # let memory = farfield::swarm::MemoryNode::new(&node, 1 << 30);
    /// let ep = node.endpoint()?;
    /// let lent = memory.serve(&ep, ep.now() + std::time::Duration::from_millis(10))?;
    /// assert_eq!(lent, None); // no other node is there
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The node is fenced. A caller that cannot be served gets an error of its own.
    pub fn serve(&self, endpoint: &Endpoint, until: Instant) -> Result<Option<Lent>> {
        loop {
            if let Some(lent) = self.replace_one(endpoint) {
                return Ok(Some(lent));
            }
            let next = || self.calls.lock().pop_front();
            let Ok(call) = endpoint.block_on(endpoint.wait_until(until, next)) else {
                endpoint.check_alive(endpoint.me())?;
                return Ok(None);
            };
            let theirs = call.theirs();
            if !call.is_current() {
                continue;
            }
            if self.lent.lock().iter().any(|(object, _)| object.path() == theirs.path) {
                // Another node has called for it, too, and has its answer.
                continue;
            }
            if let Some(plan) = Plan::of(&theirs.layout)
                && !plan.memory.contains(&self.node.id())
            {
                // It is open already, or is still being opened, with another memory node at this place.
                self.want(&call, &plan);
                continue;
            }
            match self.lend(&call) {
                Ok(lent) => return Ok(Some(lent)),
                // This node's program has opened it itself, and the caller has its answer.
                Err(_) if !call.is_current() => {}
                Err(why) => {
                    tracing::warn!(node = self.node.id().0, object = theirs.path, "not lent: {why}");
                    call.refuse(&why);
                }
            }
        }
    }

    /// Notes that a memory node is wanted in place of one that was here before.
    fn want(&self, call: &Call, plan: &Plan) {
        let theirs = call.theirs();
        let place = |node: &NodeId| self.node.rank_of(*node);
        let of = plan.memory.iter().copied().find(|home| place(home) == place(&self.node.id()));
        // Under one lock with the addition: two threads may have heard of it.
        let mut wanted = self.wanted.lock();
        let is_known = wanted.iter().any(|wanted| wanted.path == theirs.path)
            || self.replaced.lock().iter().any(|replaced| replaced.object().path() == theirs.path);
        let (true, false, Some(of)) = (self.replaces, is_known, of) else { return };
        let Some(kind) = KINDS.iter().find(|kind| **kind == theirs.kind) else { return };
        let bytes = plan.parts.all().map_or(u64::MAX, |all| all.iter().map(|(_, bytes)| *bytes as u64).sum());
        let (path, layout) = (theirs.path.clone(), theirs.layout.clone());
        let (next, replacement, has_memory) = (Some(self.node.now()), None, false);
        wanted.push(Wanted { kind, path, layout, of, bytes, next, replacement, has_memory });
    }

    /// Takes the place of another memory node, if one is wanted. An attempt that fails is made again later.
    fn replace_one(&self, endpoint: &Endpoint) -> Option<Lent> {
        let now = endpoint.now();
        let path = {
            let mut all = self.wanted.lock();
            // The one that has waited longest: those that fail do not hold up others.
            let due = all.iter_mut().filter(|wanted| wanted.next.is_some_and(|next| next <= now));
            let wanted = due.min_by_key(|wanted| wanted.next)?;
            wanted.next = None;
            wanted.path.clone()
        };
        let done = self.try_replace(endpoint, &path);
        let mut all = self.wanted.lock();
        let at = all.iter().position(|wanted| wanted.path == path)?;
        match done {
            Ok(replacement) => {
                let lent = replacement.lent();
                self.replaced.lock().push(replacement);
                all.swap_remove(at);
                Some(lent)
            }
            Err(why) => {
                let wanted = &mut all[at];
                tracing::warn!(node = self.node.id().0, object = path, "{} is not replaced yet: {why}", wanted.of);
                wanted.next = Some(endpoint.now() + AGAIN);
                None
            }
        }
    }

    /// One attempt, by the thread that has claimed it. Other threads serve meanwhile.
    fn try_replace(&self, endpoint: &Endpoint, path: &str) -> Result<Replacement> {
        let (begun, kind, layout, of, bytes) = {
            let mut all = self.wanted.lock();
            let claimed = all.iter_mut().find(|wanted| wanted.path == path);
            let Wanted { kind, layout, of, bytes, replacement, .. } = claimed.expect("an attempt is on the list");
            (replacement.take(), *kind, layout.clone(), *of, *bytes)
        };
        let replacement = match begun {
            Some(replacement) => replacement,
            None => {
                self.check_left(bytes).map_err(|why| Error::from(ErrorKind::Config { why }).of(path))?;
                self.claimed(path, |wanted| wanted.has_memory = true);
                let opened = Replacement::open(&self.node, endpoint, kind, path, &layout, of);
                self.claimed(path, |wanted| wanted.has_memory = opened.is_ok());
                opened?
            }
        };
        match replacement.run(endpoint) {
            Ok(()) => Ok(replacement),
            Err(error) => {
                self.claimed(path, |wanted| wanted.replacement = Some(replacement));
                Err(error)
            }
        }
    }

    fn claimed(&self, path: &str, change: impl FnOnce(&mut Wanted)) {
        if let Some(wanted) = self.wanted.lock().iter_mut().find(|wanted| wanted.path == path) {
            change(wanted);
        }
    }

    /// The bytes that are left to lend.
    fn left(&self) -> u64 {
        let wanted = self.wanted.lock();
        let copying = wanted.iter().filter(|wanted| wanted.has_memory).map(|wanted| wanted.bytes);
        self.bytes_max.saturating_sub(self.lent().iter().map(|lent| lent.bytes).chain(copying).sum())
    }

    /// Fails if fewer bytes are left to lend.
    fn check_left(&self, bytes: u64) -> Result<(), String> {
        let (left, me) = (self.left(), self.node.id());
        if bytes > left {
            return Err(format!("its memory is {bytes} bytes, and {left} are left to lend on {me}"));
        }
        Ok(())
    }

    /// Opens an array or a store here. The error is for the node that needs it.
    fn lend(&self, call: &Call) -> Result<Lent, String> {
        let theirs = call.theirs();
        let sum = theirs.expected.iter().try_fold(0u64, |sum, (_, bytes)| sum.checked_add(*bytes));
        let bytes = sum.ok_or_else(|| "its memory is more than 64 bits can count".to_owned())?;
        self.check_left(bytes)?;
        let told = |error: Error| error.to_string();
        let mut regions = Regions::new(&self.node);
        for (name, bytes) in &theirs.expected {
            let known = REGIONS.iter().find(|known| **known == name.as_str());
            let known = known.ok_or_else(|| format!("its region `{name}` is unknown there: is it another version?"))?;
            regions.alloc(known, GroupKey::DATA, *bytes as usize).map_err(told)?;
        }
        let kind = KINDS.iter().find(|kind| **kind == theirs.kind);
        let kind = kind.ok_or_else(|| format!("memory nodes know no `{}`", theirs.kind))?;
        let opening = ObjectBuilder::new(&self.node, &theirs.path, kind).layout(&theirs.layout);
        let object = opening.homes(&[self.node.id()]).regions(regions).announce().map_err(told)?;
        let lent = Lent { path: theirs.path.clone(), bytes, replaces: None };
        self.lent.lock().push((object, bytes));
        Ok(lent)
    }
}

impl Drop for MemoryNode {
    fn drop(&mut self) {
        self.node.no_calls();
    }
}

#[cfg(test)]
mod tests {
    use farfield_core::local_session;

    use super::*;

    #[test]
    fn all_bytes_that_are_left_can_be_lent_and_no_more() -> Result<()> {
        let nodes = local_session(1)?;
        let memory = MemoryNode::new(&nodes[0], 4096);
        assert_eq!(memory.check_left(4096), Ok(()));
        let why = memory.check_left(4097).expect_err("they are too many");
        assert!(why.contains("4097") && why.contains("4096") && why.contains("node 0"), "{why}");
        // So many are wanted where the sum is more than 64 bits can count.
        assert!(memory.check_left(u64::MAX).is_err());
        Ok(())
    }
}
