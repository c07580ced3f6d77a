//! A word with a copy on every node, pushed and pulled explicitly.
//!
//! `load` and `store` access this node's copy only. `push` overwrites the copies of other nodes with it, and `pull`
//! overwrites it with another node's. The last push wins; nothing merges.
//!
//! ```text
//! region `copy` on every node:   0 ┌──────┐
//!                                  │ copy │ 8 bytes, zero at first
//!                                  └──────┘
//! ```
//!
//! | call | round trips | operations |
//! |---|---|---|
//! | `load`, `store` | 0 | none |
//! | `push` to k nodes | 1 | k puts |
//! | `fence` over k nodes | 1 | at most k gets |
//! | `pull` | 1 | 1 get |
//!
//! A push to the own node, or a pull from it, posts nothing: the copy is already there.
//!
//! *A push that misses some nodes* reaches all others first. Its error names each missed node.
//!
//! *When a node dies*, the other copies stay, and a word is never torn. The variable has no owner, so the remaining
//! nodes continue to use it.
//!
//! Source: LOCO §2.2 and §3.4 (`sv`). A completed push means that the copy here may be changed, not that the value is
//! visible at its target; a completed `fence` means that it is visible.

use core::marker::PhantomData;

use farfield_fabric::{Endpoint, GroupKey, NodeId, Plain, Region, RemotePtr};

use crate::error::{ErrorContext, Missed, Result};
use crate::node::{Node, Object, ObjectBuilder, Regions, current, measured};
use crate::objects::participants::Participants;

/// A replicated word of type `T` (8 bytes).
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// let nodes = farfield::local_session(2)?;
/// let vars = farfield::on_each(&nodes, |node| farfield::SharedVar::<u64>::open(node, "x"))?;
/// let (a, b) = (&vars[0], &vars[1]);
/// let ep = nodes[0].endpoint()?;
/// a.store(5);
/// ep.block_on(a.push_all(&ep))?;
/// ep.block_on(a.fence(&ep, nodes[0].others()))?;
/// assert_eq!(b.load(), 5);
/// # Ok(()) }
/// ```
pub struct SharedVar<T> {
    object: Object,
    copy: Region,
    /// Those of all participants, in ascending order of their node numbers.
    copies: Vec<RemotePtr<T>>,
    _type: PhantomData<T>,
}

/// Its calls, as they are measured.
const CALLS: [&str; 3] = ["push", "pull", "fence"];
const PUSH: usize = 0;
const PULL: usize = 1;
const FENCE: usize = 2;

impl<T: Plain> SharedVar<T> {
    const WORD: () = assert!(size_of::<T>() == 8, "a SharedVar holds a word; larger values need an OwnedVar");

    /// Opens the variable and waits for all nodes to do so.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// let vars = farfield::on_each(&nodes, |node| farfield::SharedVar::<f64>::open(node, "limit"))?;
    /// assert_eq!(vars[0].load(), 0.0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A node is missing, unreachable, or opens it differently; or memory is exhausted.
    pub fn open(node: &Node, path: &str) -> Result<SharedVar<T>> {
        SharedVar::open_among(node, path, &node.members_for(path))
    }

    /// [`SharedVar::open`] among these nodes, which must name the same. Only they open it, and [`SharedVar::push_all`]
    /// reaches them alone.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(3)?;
    /// let pair = [nodes[0].id(), nodes[1].id()];
    /// let open = |node: &farfield::Node| farfield::SharedVar::<u64>::open_among(node, "x", &pair);
    /// let vars = farfield::on_each(&nodes[..2], open)?; // the third node does not open it
    /// let ep = nodes[0].endpoint()?;
    /// vars[0].store(5);
    /// let (pushed, counts) = ep.block_on(ep.counted(vars[0].push_all(&ep)));
    /// pushed?;
    /// assert_eq!(counts.puts, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As `open`, or this node is not among them.
    pub fn open_among(node: &Node, path: &str, participants: &[NodeId]) -> Result<SharedVar<T>> {
        let () = Self::WORD;
        let participants = Participants::new(participants);
        let mut regions = Regions::new(node);
        let copy = regions.alloc("copy", GroupKey::SIGNAL, 8).of(path)?;
        let opening = ObjectBuilder::new(node, path, "SharedVar").layout(core::any::type_name::<T>()).calls(&CALLS);
        let opening = opening.participants(participants.iter()).regions(regions);
        let object = opening.require_regions(|_| vec![("copy".into(), 8)]).open()?;
        let copies = participants.iter().map(|peer| object.remote(peer, "copy")).collect::<Result<_>>()?;
        Ok(SharedVar { object, copy, copies, _type: PhantomData })
    }

    /// This node's copy.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let vars = farfield::on_each(&nodes, |node| farfield::SharedVar::<u64>::open(node, "x"))?;
    /// # let (ep, other) = (nodes[0].endpoint()?, nodes[1].id());
    /// vars[0].store(5);
    /// assert_eq!((vars[0].load(), vars[1].load()), (5, 0)); // the other copy is as before
    /// # Ok(()) }
    /// ```
    pub fn load(&self) -> T {
        T::read_from_bytes(&self.copy.word(0).load().to_ne_bytes()).unwrap_or_else(|_| T::new_zeroed())
    }

    /// Writes this node's copy. A push in progress may send the new value.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let vars = farfield::on_each(&nodes, |node| farfield::SharedVar::<u64>::open(node, "x"))?;
    /// # let (ep, other) = (nodes[0].endpoint()?, nodes[1].id());
    /// vars[0].store(5); // only this node sees it
    /// ep.block_on(vars[0].push(&ep, [other]))?; // now it is under way to the other
    /// # Ok(()) }
    /// ```
    pub fn store(&self, value: T) {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(value.as_bytes());
        self.copy.word(0).store(u64::from_ne_bytes(bytes));
    }

    /// Writes this node's copy over those of `nodes`. Each of them gets the value at the time when the NIC reads it.
    ///
    /// ```
    /// # async fn f(x: farfield::SharedVar<u64>, ep: &farfield::Endpoint) -> farfield::Result<()> {
    /// use farfield::ErrorKind;
    /// if let Err(error) = x.push_all(ep).await
    ///     && let ErrorKind::Missed { nodes } = error.kind()
    /// {
    ///     // All others have got it. Sending it again does them no harm.
    ///     x.push(ep, nodes.iter().map(|missed| missed.0)).await?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Missed`](crate::ErrorKind::Missed) names every node that did not get it, and the reason: it is
    /// unreachable, or the put was refused. All others got it.
    pub async fn push(&self, endpoint: &Endpoint, nodes: impl IntoIterator<Item = NodeId>) -> Result<()> {
        current!(self.object, endpoint, PUSH, self.push(endpoint, nodes));
        // Nodes that joined after the opening have no copy, and neither have those that did not open it.
        let copy_of = |node| self.copies.binary_search_by_key(&node, |copy| copy.node()).ok();
        // This node's own copy is the source.
        let is_other = |node: &NodeId| *node != endpoint.me();
        let pointers = nodes.into_iter().filter(is_other).filter_map(copy_of).map(|index| self.copies[index]);
        let puts: Vec<_> =
            pointers.map(|copy| (copy.node(), endpoint.put_from_region(copy, self.copy.span(0, 8)))).collect();
        let mut missed = Missed::default();
        for (node, put) in puts {
            missed.note(node, put.await);
        }
        missed.end().of(self.object.path())
    }

    /// [`SharedVar::push`] to all other nodes that opened the variable.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let vars = farfield::on_each(&nodes, |node| farfield::SharedVar::<u64>::open(node, "x"))?;
    /// # let (ep, other) = (nodes[0].endpoint()?, nodes[1].id());
    /// vars[0].store(5);
    /// ep.block_on(vars[0].push_all(&ep))?;
    /// ep.block_on(vars[0].fence(&ep, [other]))?;
    /// assert_eq!(vars[1].load(), 5);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As `push`.
    pub async fn push_all(&self, endpoint: &Endpoint) -> Result<()> {
        self.push(endpoint, self.object.node().others()).await
    }

    /// Fetches `node`'s copy over this node's and returns the value.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let vars = farfield::on_each(&nodes, |node| farfield::SharedVar::<u64>::open(node, "x"))?;
    /// # let (ep, other) = (nodes[0].endpoint()?, nodes[1].id());
    /// vars[1].store(7);
    /// assert_eq!(ep.block_on(vars[0].pull(&ep, other))?, 7);
    /// assert_eq!(vars[0].load(), 7); // the copy here has changed, too
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The node is unreachable.
    pub async fn pull(&self, endpoint: &Endpoint, node: NodeId) -> Result<T> {
        current!(self.object, endpoint, PULL, self.pull(endpoint, node));
        let from = self.object.remote::<T>(node, "copy")?;
        if node == endpoint.me() {
            return Ok(self.load()); // the copy is already here
        }
        endpoint.get_span(from, self.copy.span(0, 8)).await.of(self.object.path())?;
        Ok(self.load())
    }

    /// Waits until everything that this endpoint has pushed or put to `nodes` is visible there (`GF`).
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let vars = farfield::on_each(&nodes, |node| farfield::SharedVar::<u64>::open(node, "x"))?;
    /// # let (ep, other) = (nodes[0].endpoint()?, nodes[1].id());
    /// vars[0].store(5);
    /// ep.block_on(vars[0].push(&ep, [other]))?;
    /// ep.block_on(vars[0].fence(&ep, [other]))?;
    /// assert_eq!(vars[1].load(), 5); // visible there, and not only sent
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A node is unreachable.
    pub async fn fence(&self, endpoint: &Endpoint, nodes: impl IntoIterator<Item = NodeId>) -> Result<()> {
        measured!(self.object.meter(), endpoint, FENCE, self.fence(endpoint, nodes));
        endpoint.global_fence(nodes).await.of(self.object.path())
    }
}
