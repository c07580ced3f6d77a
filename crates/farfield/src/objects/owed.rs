//! What a node owes to others and its service thread does: a release that cannot be done yet.

use farfield_fabric::{self as fabric, Endpoint, GroupKey, NodeId, RemotePtr};

use crate::error::Result;
use crate::mutants::{self, Mutant};
use crate::node::{Node, Object, Poller, Progress};

/// Something that is done once nobody looks at these nodes any more.
struct Owed<R> {
    node: Node,
    lost: Vec<NodeId>,
    release: R,
}

impl<R: FnMut(&Endpoint) -> Progress + Send> Poller for Owed<R> {
    fn is_owed(&self) -> bool {
        true
    }

    fn poll(&mut self, endpoint: &Endpoint) -> Progress {
        if self.node.fabric().is_fenced() {
            return Progress::Done; // it is taken from this node
        }
        self.lost.retain(|lost| self.node.silence_of(endpoint, *lost).is_none());
        if !self.lost.is_empty() {
            return Progress::Idle;
        }
        (self.release)(endpoint)
    }
}

/// Adds to a word that others wait for. If that is refused, the service thread does it: so the caller has made visible what must
/// be seen before it, or has put nothing.
pub(crate) fn add(object: &Object, endpoint: &Endpoint, word: RemotePtr<u64>, addend: u64) {
    if endpoint.faa(word, addend).detach().is_err_and(|error| error.is_refused()) {
        add_later(object, word, addend);
    }
}

/// Leaves it to the service thread to add to a word of an object, which stays open until then.
pub(crate) fn add_later(object: &Object, word: RemotePtr<u64>, addend: u64) {
    let (node, open) = (object.node(), object.hold());
    let release = move |endpoint: &Endpoint| {
        let _open = &open;
        add_once(endpoint, word, addend)
    };
    node.add_poller(Box::new(Owed { node: node.for_service(), lost: Vec::new(), release }));
}

/// An attempt to add to a word: it waits a round trip, since a node that leaves next must not take it along. The service thread
/// may be the first of its node to need a queue pair to the word; without one it tries again. If it fails for another reason than
/// that it was refused, the word is gone with its node.
pub(crate) fn add_once(endpoint: &Endpoint, word: RemotePtr<u64>, addend: u64) -> Progress {
    match endpoint.faa(word, addend).wait() {
        Err(error) if error.is_refused() => Progress::Idle,
        _ => Progress::Done,
    }
}

/// Makes visible what a holder has put, and waits for what it still reads. It spares nodes at which the release itself, a put or
/// an atomic on a word of the first three groups, comes after all that was put there.
///
/// It returns the nodes at which something may be missed nevertheless: then nothing is spared, since the release is left to
/// another endpoint ([`release_later`]).
pub(crate) async fn fence_holder(
    node: &Node,
    endpoint: &Endpoint,
    is_spared: impl Fn(NodeId) -> bool + Clone,
) -> Result<Vec<NodeId>> {
    let orders = |node| endpoint.is_ordered_before(RemotePtr::new(node, GroupKey::SIGNAL, 0));
    let fenced = node.members().filter(|node| !is_spared(*node) || !orders(*node));
    let lost = node.fence_living(endpoint, fenced).await?;
    // The release overtakes gets that are under way (NRR before NAR, and before NRW, is not kept).
    if !mutants::is_on(Mutant::MutexReadOvertaken) {
        endpoint.wait_for_reads(node.members().filter(|node| is_spared(*node))).await;
    }
    if lost.is_empty() { Ok(lost) } else { node.fence_living(endpoint, node.members()).await }
}

/// Leaves a release to the service thread, which does it when nobody looks at the `lost` nodes any more: what the holder
/// has put there is not visible, and somebody may look. If it is this node that goes, the next holder learns of its death;
/// so nothing is released before that is decided.
///
/// The release comes from another endpoint then: the caller fences what must be before it by itself.
///
/// # Errors
/// One of the nodes is silent, and nobody is known to be dead. The release is left nevertheless.
pub(crate) fn release_later(
    node: &Node,
    endpoint: &Endpoint,
    lost: Vec<NodeId>,
    release: impl FnMut(&Endpoint) -> Progress + Send + 'static,
) -> fabric::Result<()> {
    // Who is dead will be shut out soon; of the others somebody has to hear.
    let silent = lost.iter().find(|lost| endpoint.check_alive(**lost).is_ok()).copied();
    node.add_poller(Box::new(Owed { node: node.for_service(), lost, release }));
    silent.map_or(Ok(()), |node| Err(fabric::ErrorKind::Unreachable { node }.into()))
}
