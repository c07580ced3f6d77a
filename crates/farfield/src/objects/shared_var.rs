//! A word with a copy on every node, pushed and pulled explicitly.
//!
//! `load` and `store` touch this node's copy only. `push` writes it over the copies of other nodes, `pull` fetches
//! another node's over it. Whoever pushes last wins; nothing merges.
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
//! *When a node dies*, the other copies stay, a word is never torn, and a push that includes it says so after all others
//! got it. It has no owner: whoever is left goes on.
//!
//! Source: LOCO §2.2 and §3.4 (`sv`). A completed push says that the copy here may be changed, not that it can be seen
//! there; `fence` says that.

use core::marker::PhantomData;

use farfield_fabric::{Endpoint, GroupKey, NodeId, Plain, Region, RemotePtr};

use crate::error::{Of, Result};
use crate::mutants::{self, Mutant};
use crate::node::{Node, Object, Spec};

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
    /// Of all that take part, in the order of their numbers.
    copies: Vec<RemotePtr<T>>,
    _type: PhantomData<T>,
}

impl<T: Plain> SharedVar<T> {
    const WORD: () = assert!(size_of::<T>() == 8, "a SharedVar holds a word; larger values need an OwnedVar");

    /// Opens the variable and waits for all nodes to do so.
    ///
    /// # Errors
    /// A node that is missing, gone, or opens it differently; no memory.
    pub fn open(node: &Node, path: &str) -> Result<SharedVar<T>> {
        let () = Self::WORD;
        let copy = node.alloc(GroupKey::SIGNAL, 8).of(path)?;
        let participants = node.members_for(path);
        let spec = Spec {
            path: path.into(),
            kind: "SharedVar",
            layout: core::any::type_name::<T>().into(),
            participants: participants.clone(),
            regions: vec![("copy", copy.clone())],
            expect: Box::new(|_| vec![("copy".into(), 8)]),
        };
        let object = Object::open(node, spec)?;
        let copies = participants.into_iter().map(|peer| object.remote(peer, "copy")).collect::<Result<_>>()?;
        Ok(SharedVar { object, copy, copies, _type: PhantomData })
    }

    /// This node's copy.
    pub fn load(&self) -> T {
        T::read_from_bytes(&self.copy.word(0).load().to_ne_bytes()).unwrap_or_else(|_| T::new_zeroed())
    }

    /// Writes this node's copy. A push that is under way may send it.
    pub fn store(&self, value: T) {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(value.as_bytes());
        self.copy.word(0).store(u64::from_ne_bytes(bytes));
    }

    /// Writes this node's copy over those of `nodes`: what it holds when the NIC reads it, for each of them.
    ///
    /// # Errors
    /// A node that is gone; the others get it nevertheless.
    pub async fn push(&self, endpoint: &Endpoint, nodes: impl IntoIterator<Item = NodeId>) -> Result<()> {
        self.object.check_current()?;
        // Those that came after it was opened have no copy.
        let copy_of = |node| self.copies.binary_search_by_key(&node, |copy| copy.node()).ok();
        let pointers = nodes.into_iter().filter_map(copy_of).map(|index| self.copies[index]);
        let puts: Vec<_> = pointers.map(|copy| endpoint.put_live(copy, self.copy.span(0, 8))).collect();
        if mutants::is_on(Mutant::SharedPushNotAwaited) {
            return Ok(());
        }
        let mut result = Ok(());
        for put in puts {
            result = result.and(put.await.of(self.object.path()));
        }
        result
    }

    /// [`SharedVar::push`] to all other nodes.
    ///
    /// # Errors
    /// As `push`.
    pub async fn push_all(&self, endpoint: &Endpoint) -> Result<()> {
        self.push(endpoint, self.object.node().others()).await
    }

    /// Fetches `node`'s copy over this node's; the value.
    ///
    /// # Errors
    /// The node is gone.
    pub async fn pull(&self, endpoint: &Endpoint, node: NodeId) -> Result<T> {
        self.object.check_current()?;
        let from = self.object.remote::<T>(node, "copy")?;
        let get = endpoint.get_span(from, self.copy.span(0, 8));
        if mutants::is_on(Mutant::SharedPullNotAwaited) {
            return Ok(self.load());
        }
        get.await.of(self.object.path())?;
        Ok(self.load())
    }

    /// Waits until everything that this endpoint has pushed or put to `nodes` can be seen there (`GF`).
    ///
    /// # Errors
    /// A node that is gone.
    pub async fn fence(&self, endpoint: &Endpoint, nodes: impl IntoIterator<Item = NodeId>) -> Result<()> {
        if mutants::is_on(Mutant::SharedFenceRemote) {
            let mut nodes = nodes.into_iter();
            return nodes.try_for_each(|node| endpoint.remote_fence(node).wait()).of(self.object.path());
        }
        endpoint.global_fence(nodes).await.of(self.object.path())
    }
}
