//! A baton: one node at a time holds it, every holder sees what the holders before it have written, and a dead holder
//! loses it to the others.
//!
//! This crate is the example of `docs/your-own-object.md`. It uses public items only.
//!
//! # Memory
//!
//! ```text
//! word `baton`, on the home
//! 63                                    16 15             0
//! ┌───────────────────────────────────────┬────────────────┐
//! │ term: how often it was taken          │ holder + 1     │   holder 0: it is free
//! └───────────────────────────────────────┴────────────────┘
//! ```
//!
//! # Algorithm
//!
//! *Take:* get the word; if it is free, a compare-and-swap from that state to this node and the next term. *Pass:*
//! fence what this node has put anywhere, then subtract the holder from the word. A put is complete before it is
//! visible, so without the fence the next holder could read old values (cells `NRW` before `NAW` on another node).
//!
//! *If the holder dies*, another node may take the baton once the members have evicted the dead one
//! ([`MemberStatus::Evicted`]): from then on none of its puts, and no late pass, can land any more. *If the home dies*,
//! the baton is lost with it; every call returns an error that names the home, and
//! [`Node::reopen`](farfield::Node::reopen) opens another among the survivors.
//!
//! # Costs
//!
//! | call | round trips |
//! |---|---|
//! | [`Baton::try_take`] | 2, or 1 if another node holds it |
//! | [`Held::pass`] | 1 if this node has put anything since the last fence, else 0 |

#![forbid(unsafe_code)]

use farfield::fabric::{GroupKey, RemotePtr};
use farfield::toolkit::{CancelGuard, ErrorContext, Object, ObjectBuilder, Regions, release};
use farfield::{Endpoint, ErrorKind, MemberStatus, Node, NodeId, Result};

pub mod load;
pub mod mutants;
pub mod scenarios;

const HOLDER_BITS: u32 = 16;

/// A baton that one node holds at a time. See the [crate] for its algorithm.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// use farfield_baton::Baton;
/// let node = farfield::Node::builder().session("doc-baton").start()?;
/// let (ep, baton) = (node.endpoint()?, Baton::open(&node, "leader", node.id())?);
/// ep.block_on(async {
///     let held = baton.take(&ep).await?;
///     assert_eq!(held.term(), 1);
///     held.pass().await
/// })?;
/// # Ok(()) }
/// ```
pub struct Baton {
    object: Object,
    word: RemotePtr<u64>,
}

/// Holds the baton until it is passed or dropped.
#[must_use = "the baton is passed when this is dropped"]
pub struct Held<'a> {
    baton: &'a Baton,
    endpoint: &'a Endpoint,
    term: u64,
    is_held: bool,
}

impl Baton {
    /// Opens the baton at `path`, with its word on `home`, and waits for all members. Restarted nodes may join.
    ///
    /// # Errors
    /// A node is missing, unreachable, or opens it differently.
    pub fn open(node: &Node, path: &str, home: NodeId) -> Result<Baton> {
        let mut regions = Regions::new(node);
        if node.id() == home {
            regions.alloc_words("baton", GroupKey::DATA, 1, &[0]).of(path)?;
        }
        let needs = move |peer| if peer == home { vec![("baton".into(), 8)] } else { vec![] };
        let opening = ObjectBuilder::new(node, path, "Baton").layout(&format!("home={home}")).regions(regions);
        let object = opening.require_regions(needs).takes_in_returned().open()?;
        let word = object.remote(home, "baton")?;
        Ok(Baton { object, word })
    }

    /// Takes the baton if it is free, or if its holder is dead and evicted.
    ///
    /// # Errors
    /// The home is unreachable, or the baton was reopened.
    pub async fn try_take<'a>(&'a self, endpoint: &'a Endpoint) -> Result<Option<Held<'a>>> {
        self.object.check_current()?;
        let path = self.object.path();
        let mut found = endpoint.get(self.word).await.of(path)?;
        while holder(found).is_none_or(|holder| self.has_lost(holder)) {
            let (free, term) = (found, (found >> HOLDER_BITS) + 1);
            let taken = term << HOLDER_BITS | self.me();
            // If the caller drops this future, a baton that was taken is passed on.
            let take = CancelGuard::new(endpoint, endpoint.cas(self.word, free, taken), |seen| {
                if seen == free {
                    release::add(&self.object, endpoint, self.word, self.me().wrapping_neg());
                }
            });
            found = take.await.of(path)?;
            if found == free {
                return Ok(Some(Held { baton: self, endpoint, term, is_held: true }));
            }
            // Another node was faster, and may have passed it already.
        }
        Ok(None)
    }

    /// Takes the baton, waiting as long as the endpoint's timeout.
    ///
    /// # Errors
    /// A timeout, or as [`Baton::try_take`].
    pub async fn take<'a>(&'a self, endpoint: &'a Endpoint) -> Result<Held<'a>> {
        let (start, deadline) = (endpoint.now(), endpoint.deadline());
        loop {
            if let Some(held) = self.try_take(endpoint).await? {
                return Ok(held);
            }
            if endpoint.now() >= deadline {
                let holder = holder(endpoint.get(self.word).await.of(self.object.path())?);
                let (waited, missing) = (endpoint.now() - start, holder.into_iter().collect());
                return Err(ErrorKind::Timeout { what: "the baton".into(), waited, missing }).of(self.object.path());
            }
            endpoint.wait_for_change(deadline).await;
        }
    }

    /// Whether the others may take the baton from this holder.
    fn has_lost(&self, holder: NodeId) -> bool {
        match self.object.node().status_of(holder) {
            Some(MemberStatus::Evicted) => !mutants::BATON_KEPT.is_on(),
            // Its last puts may still land.
            Some(MemberStatus::Suspected | MemberStatus::Dead) => mutants::BATON_TAKEN_EARLY.is_on(),
            Some(MemberStatus::Member | MemberStatus::Departed) | None => false,
        }
    }

    fn me(&self) -> u64 {
        u64::from(self.object.node().id().0) + 1
    }
}

impl Held<'_> {
    /// How often the baton was taken, this time included. Later holders have higher terms.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// Makes this node's puts visible everywhere, and passes the baton on.
    ///
    /// # Errors
    /// A node does not answer, so that this node's puts there may be missed: the service thread passes the baton on
    /// once the members have decided about that node.
    pub async fn pass(mut self) -> Result<()> {
        self.release().await
    }

    async fn release(&mut self) -> Result<()> {
        let Baton { object, word } = self.baton;
        let (node, path, addend) = (object.node(), object.path(), self.baton.me().wrapping_neg());
        let lost = if mutants::BATON_NO_FENCE.is_on() {
            Vec::new()
        } else {
            release::fence_holder(node, self.endpoint, |_| false).await.of(path)?
        };
        // From here on it is no longer this node's, even if the caller drops this future.
        self.is_held = false;
        if lost.is_empty() {
            release::add(object, self.endpoint, *word, addend);
            return Ok(());
        }
        let (word, open) = (*word, object.hold());
        let pass = move |endpoint: &Endpoint| {
            let _open = &open;
            release::add_once(endpoint, word, addend)
        };
        release::release_later(node, self.endpoint, lost, pass).of(path)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.is_held {
            // The error is ignored here: the next call reports it, too.
            let _ = self.endpoint.block_on(self.release());
        }
    }
}

/// The holder in a state of the word.
fn holder(word: u64) -> Option<NodeId> {
    let holder = word & ((1 << HOLDER_BITS) - 1);
    holder.checked_sub(1).map(|node| NodeId(node as u16))
}
