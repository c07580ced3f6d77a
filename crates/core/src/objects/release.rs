//! Releases: the fence before them, and those that cannot be done yet and are left to the service thread.

use farfield_fabric::{self as fabric, Endpoint, GroupKey, NodeId, RemotePtr};

use crate::error::Result;
use crate::node::{Node, Object, Poller, Progress};

/// A release that waits until no live node can read the memory of the lost ones.
struct DeferredRelease<R> {
    node: Node,
    lost: Vec<NodeId>,
    release: R,
}

impl<R: FnMut(&Endpoint) -> Progress + Send> Poller for DeferredRelease<R> {
    fn must_finish_before_leave(&self) -> bool {
        true
    }

    fn poll(&mut self, endpoint: &Endpoint) -> Progress {
        if self.node.fabric().is_fenced() {
            return Progress::Done; // the survivors take it from this node
        }
        self.lost.retain(|lost| self.node.fenced_error(endpoint, *lost).is_none());
        if !self.lost.is_empty() {
            return Progress::Idle;
        }
        (self.release)(endpoint)
    }
}

/// Adds to a word that others wait for. If the operation is refused, the service thread repeats it, from an endpoint of
/// its own. So the caller must have made its earlier puts visible, or have none.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// # use farfield::toolkit::{ObjectBuilder, Regions};
/// # let node = farfield::Node::builder().start()?;
/// # let (ep, mut regions) = (node.endpoint()?, Regions::new(&node));
/// # regions.alloc_words("lock", farfield::fabric::GroupKey::DATA, 1, &[1])?;
/// # let object = ObjectBuilder::new(&node, "app/lock", "Lock").regions(regions).open()?;
/// # let word = object.remote::<u64>(node.id(), "lock")?;
/// use farfield::toolkit::release;
/// release::add(&object, &ep, word, 1u64.wrapping_neg()); // the holder's 1 goes, even if this is refused
/// assert_eq!(ep.get(word).wait()?, 0);
/// # Ok(()) }
/// ```
pub fn add(object: &Object, endpoint: &Endpoint, word: RemotePtr<u64>, addend: u64) {
    if endpoint.faa(word, addend).detach().is_err_and(|error| error.is_refused()) {
        add_later(object, word, addend);
    }
}

/// Lets the service thread add to a word of an object, which stays open until then.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// # use farfield::toolkit::{ObjectBuilder, Regions};
/// # let node = farfield::Node::builder().start()?;
/// # let (ep, mut regions) = (node.endpoint()?, Regions::new(&node));
/// # regions.alloc_words("lock", farfield::fabric::GroupKey::DATA, 1, &[1])?;
/// # let object = ObjectBuilder::new(&node, "app/lock", "Lock").regions(regions).open()?;
/// # let word = object.remote::<u64>(node.id(), "lock")?;
/// use farfield::toolkit::release;
/// release::add_later(&object, word, 1u64.wrapping_neg());
/// assert_eq!(ep.block_on(ep.wait_remote(word, 1, ep.deadline()))?, 0); // the service thread has done it
/// # Ok(()) }
/// ```
pub fn add_later(object: &Object, word: RemotePtr<u64>, addend: u64) {
    let (node, open) = (object.node(), object.hold());
    let release = move |endpoint: &Endpoint| {
        let _open = &open;
        add_once(endpoint, word, addend)
    };
    node.add_poller(Box::new(DeferredRelease { node: node.for_service(), lost: Vec::new(), release }));
}

/// Tries to add to a word, for a [`Poller`]. It waits one round trip, so that the addition has landed if the node
/// leaves next. [`Progress::Retry`]: it was refused, perhaps because the service thread has no queue pair to the word
/// yet. [`Progress::Done`]: it has landed, or the word was lost with its node.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// # use farfield::toolkit::{ObjectBuilder, Regions};
/// # let node = farfield::Node::builder().start()?;
/// # let (ep, mut regions) = (node.endpoint()?, Regions::new(&node));
/// # regions.alloc_words("lock", farfield::fabric::GroupKey::DATA, 1, &[1])?;
/// # let object = ObjectBuilder::new(&node, "app/lock", "Lock").regions(regions).open()?;
/// # let word = object.remote::<u64>(node.id(), "lock")?;
/// use farfield::toolkit::{Progress, release};
/// assert_eq!(release::add_once(&ep, word, 1u64.wrapping_neg()), Progress::Done);
/// # Ok(()) }
/// ```
pub fn add_once(endpoint: &Endpoint, word: RemotePtr<u64>, addend: u64) -> Progress {
    match endpoint.faa(word, addend).wait() {
        Err(error) if error.is_refused() => Progress::Retry,
        _ => Progress::Done,
    }
}

/// The fence before a release: makes the holder's puts visible, and waits for its pending gets. It exempts nodes at
/// which the release itself, a put or an atomic on a word of the first three groups, lands after all that the endpoint
/// put there.
///
/// It returns the nodes at which a reader may miss a put nevertheless. Then it has exempted none, since another
/// endpoint must do the release: pass them to [`release_later`].
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// # use farfield::toolkit::{ObjectBuilder, Regions};
/// # let node = farfield::Node::builder().start()?;
/// # let (ep, mut regions) = (node.endpoint()?, Regions::new(&node));
/// # regions.alloc_words("lock", farfield::fabric::GroupKey::DATA, 1, &[1])?;
/// # let object = ObjectBuilder::new(&node, "app/lock", "Lock").regions(regions).open()?;
/// # let word = object.remote::<u64>(node.id(), "lock")?;
/// use farfield::toolkit::release;
/// let home = word.node(); // the release is an atomic there: it lands after all puts to that node
/// let lost = ep.block_on(release::fence_holder(&node, &ep, |node| node == home))?;
/// assert!(lost.is_empty()); // every put is visible
/// release::add(&object, &ep, word, 1u64.wrapping_neg());
/// # Ok(()) }
/// ```
///
/// # Errors
/// A node refuses the fence for another reason than its death, its departure or its silence.
pub async fn fence_holder(
    node: &Node,
    endpoint: &Endpoint,
    is_exempt: impl Fn(NodeId) -> bool + Clone,
) -> Result<Vec<NodeId>> {
    if endpoint.owes_no_fence() || fence_owed(node, endpoint, &is_exempt) {
        return Ok(Vec::new());
    }
    // A wait has memory of its own, so that the future of a release that need not wait is small.
    endpoint.boxed(fence_and_wait(node, endpoint, is_exempt)).await
}

/// [`fence_holder`] that spares one node, if any, where it needs no wait, since nothing is owed, or on shared memory.
/// Returns whether it is done. If not, `fence_holder` does the rest, or says why it fails.
///
/// ```
/// # use farfield::{Endpoint, Node, NodeId, Result, toolkit::release};
/// # async fn f(node: &Node, ep: &Endpoint, home: NodeId) -> Result<()> {
/// if !release::fence_at_once(node, ep, Some(home)) {
///     let lost = release::fence_holder(node, ep, |node| node == home).await?; // only now is there a future
///     // …
/// #     drop(lost);
/// }
/// # Ok(()) }
/// ```
#[inline(always)]
pub fn fence_at_once(node: &Node, endpoint: &Endpoint, exempt: Option<NodeId>) -> bool {
    endpoint.owes_no_fence()
        || exempt.is_some_and(|exempt| endpoint.owes_no_fence_but(exempt))
        || fence_all_owed(node, endpoint, exempt)
}

#[inline(never)]
fn fence_all_owed(node: &Node, endpoint: &Endpoint, exempt: Option<NodeId>) -> bool {
    // A dead node is refused, and not fenced if it is no member any more.
    endpoint.fence_all_at_once(exempt) || fence_owed(node, endpoint, |node| Some(node) == exempt)
}

#[inline(never)]
fn fence_owed(node: &Node, endpoint: &Endpoint, is_exempt: impl Fn(NodeId) -> bool) -> bool {
    let mut owed = node.members().filter(|member| endpoint.owes_fence(*member, is_exempt(*member)));
    match owed.next() {
        None => true,
        Some(first) => endpoint.fence_at_once(core::iter::once(first).chain(owed)),
    }
}

async fn fence_and_wait(
    node: &Node,
    endpoint: &Endpoint,
    is_exempt: impl Fn(NodeId) -> bool + Clone,
) -> Result<Vec<NodeId>> {
    let orders = |node| endpoint.is_ordered_before(RemotePtr::new(node, GroupKey::SIGNAL, 0));
    let fenced = node.members().filter(|node| !is_exempt(*node) || !orders(*node));
    let lost = node.fence_live_nodes(endpoint, fenced).await?;
    // The release overtakes gets that are under way (NRR before NAR, and before NRW, is not kept).
    endpoint.wait_for_reads(node.members().filter(|node| is_exempt(*node))).await;
    if lost.is_empty() { Ok(lost) } else { node.fence_live_nodes(endpoint, node.members()).await }
}

/// Leaves a release to the service thread, which does it once the `lost` nodes are evicted or have left: a holder's
/// puts there are not visible, and until then a live node may read them. If the members evict this node instead, the
/// next holder is warned of its death. So nothing is released before the members have decided.
///
/// Another endpoint does the release: the caller must have fenced all earlier puts ([`fence_holder`]).
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// # use farfield::toolkit::{ObjectBuilder, Regions};
/// # let node = farfield::Node::builder().start()?;
/// # let (ep, mut regions) = (node.endpoint()?, Regions::new(&node));
/// # regions.alloc_words("lock", farfield::fabric::GroupKey::DATA, 1, &[1])?;
/// # let object = ObjectBuilder::new(&node, "app/lock", "Lock").regions(regions).open()?;
/// # let word = object.remote::<u64>(node.id(), "lock")?;
/// # let lost = Vec::new();
/// use farfield::toolkit::release;
/// // `fence_holder` has returned the `lost` nodes.
/// let release = move |ep: &farfield::Endpoint| release::add_once(ep, word, 1u64.wrapping_neg());
/// release::release_later(&node, &ep, lost, release)?;
/// assert_eq!(ep.block_on(ep.wait_remote(word, 1, ep.deadline()))?, 0);
/// # Ok(()) }
/// ```
///
/// # Errors
/// One of the nodes does not answer, and is not known to be dead. The service thread releases nevertheless.
pub fn release_later(
    node: &Node,
    endpoint: &Endpoint,
    lost: Vec<NodeId>,
    release: impl FnMut(&Endpoint) -> Progress + Send + 'static,
) -> fabric::Result<()> {
    // A dead node will be evicted soon. The caller learns of a silent one.
    let silent = lost.iter().find(|lost| endpoint.check_alive(**lost).is_ok()).copied();
    node.add_poller(Box::new(DeferredRelease { node: node.for_service(), lost, release }));
    silent.map_or(Ok(()), |node| Err(fabric::ErrorKind::Unreachable { node }.into()))
}
