//! Memory nodes: they lend memory to arrays and stores without knowing their types.

use std::collections::VecDeque;
use std::sync::Arc;

use farfield_core::toolkit::{Call, Object, ObjectBuilder, Regions};
use farfield_core::{Error, Node, Result};
use farfield_fabric::{Endpoint, GroupKey, Instant, LocalMutex};

use crate::layout::REGIONS;
use crate::open::KINDS;

/// Lends memory of a node to replicated registers and stores that other nodes open. It needs to know neither their types nor their
/// sizes, and computes nothing for their calls.
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
}

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
        MemoryNode { node: node.clone(), bytes_max, calls, lent: LocalMutex::default() }
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
        lent.iter().map(|(object, bytes)| Lent { path: object.path().into(), bytes: *bytes }).collect()
    }

    /// Waits for others that need memory, until something is lent or that moment has come. An array or a store that does not
    /// fit is refused, and its opening fails there.
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

    /// Opens an array or a store here. The error is for the node that needs it.
    fn lend(&self, call: &Call) -> Result<Lent, String> {
        let theirs = call.theirs();
        let sum = theirs.expected.iter().try_fold(0u64, |sum, (_, bytes)| sum.checked_add(*bytes));
        let bytes = sum.ok_or_else(|| "its memory is more than 64 bits can count".to_owned())?;
        let left = self.bytes_max.saturating_sub(self.lent.lock().iter().map(|(_, bytes)| bytes).sum());
        if bytes > left {
            return Err(format!("its memory is {bytes} bytes here, and {left} are left to lend there"));
        }
        let told = |error: Error| error.to_string();
        let mut regions = Regions::new(&self.node);
        for (name, bytes) in &theirs.expected {
            let known = REGIONS.iter().find(|known| **known == name.as_str());
            let known = known.ok_or_else(|| format!("its region `{name}` is unknown there: is it another version?"))?;
            regions.alloc(known, GroupKey::DATA, *bytes as usize).map_err(told)?;
        }
        let kind = KINDS.iter().find(|kind| **kind == theirs.kind).expect("only such calls are heard");
        let opening = ObjectBuilder::new(&self.node, &theirs.path, kind).layout(&theirs.layout);
        let object = opening.homes(&[self.node.id()]).regions(regions).announce().map_err(told)?;
        let lent = Lent { path: theirs.path.clone(), bytes };
        self.lent.lock().push((object, bytes));
        Ok(lent)
    }
}

impl Drop for MemoryNode {
    fn drop(&mut self) {
        self.node.no_calls();
    }
}
