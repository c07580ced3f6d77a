//! A node's announcement of an object, and the differences of two announcements.

use serde::{Deserialize, Serialize};

/// A node's description of an object, and the addresses of its part of it.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// # let nodes = farfield::local_session(2)?;
/// use farfield::toolkit::{ObjectBuilder, ObjectDescriptor};
/// let check = |peer, theirs: &ObjectDescriptor| println!("{peer}: {} {:?}", theirs.kind, theirs.regions);
/// let open = |node: &farfield::Node| ObjectBuilder::new(node, "app/mail", "Mail").on_connect(check).open();
/// let mail = farfield::on_each(&nodes, open)?;
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ObjectDescriptor {
    /// `kv/locks/3`: `/` separates sub-objects.
    pub path: String,
    /// The type of object.
    pub kind: String,
    /// Sizes and options that all participants must agree on.
    pub layout: String,
    /// The nodes that take part.
    pub participants: Vec<u16>,
    /// The sender's regions: name, packed pointer, bytes.
    pub regions: Vec<(String, u64, u64)>,
    /// The regions that the sender needs of the receiver, and their sizes.
    pub expected: Vec<(String, u64)>,
    /// Nodes that the sender knows to be dead or departed.
    pub gone: Vec<u16>,
}

impl ObjectDescriptor {
    /// Whether the participants differ only by nodes that one of the two knows to be dead or departed, and by their
    /// replacements. Then one of the two has not learned of this yet, and will open the object anew.
    pub(super) fn is_of_another_epoch(&self, theirs: &ObjectDescriptor, gone: &[u16], places: u16) -> bool {
        let differs = |node: &&u16| self.participants.contains(node) != theirs.participants.contains(node);
        let differing: Vec<u16> =
            self.participants.iter().chain(&theirs.participants).filter(differs).copied().collect();
        let is_gone = |node: &u16| gone.contains(node) || theirs.gone.contains(node);
        let replaces = |node: u16| differing.iter().any(|it| *it < node && it % places == node % places && is_gone(it));
        !differing.is_empty() && differing.iter().all(|node| is_gone(node) || replaces(*node))
    }

    /// Whether the participants differ at most by dead or departed nodes and by restarted ones.
    pub(super) fn differs_by_lives(&self, theirs: &ObjectDescriptor, gone: &[u16], places: u16) -> bool {
        let is_common = |node: &u16| self.participants.contains(node) && theirs.participants.contains(node);
        let all = || self.participants.iter().chain(&theirs.participants);
        // The one before another at its place has gone, also where the news of that is still on its way.
        let is_replaced = |node: &u16| all().any(|it| it > node && it % places == node % places);
        let is_gone = |node: &u16| gone.contains(node) || theirs.gone.contains(node) || is_replaced(node);
        let is_past = |node: &u16| *node >= places || is_gone(node);
        all().all(|node| is_common(node) || is_past(node))
    }

    /// The first difference from another node's announcement, if any. `expected` are the regions that this node needs
    /// of the other.
    pub(super) fn differs(&self, theirs: &ObjectDescriptor, expected: &[(String, u64)]) -> Option<Difference> {
        if self.kind != theirs.kind {
            return Difference::new("its type", &self.kind, &theirs.kind);
        }
        if self.layout != theirs.layout {
            return Difference::new("its layout", &self.layout, &theirs.layout);
        }
        if self.participants != theirs.participants {
            return Difference::new("the set of participants", &self.participants, &theirs.participants);
        }
        self.differs_in_regions(theirs, expected)
    }

    /// The first difference from another node's announcement besides the participants, if any.
    pub(super) fn differs_otherwise(
        &self,
        theirs: &ObjectDescriptor,
        expected: &[(String, u64)],
    ) -> Option<Difference> {
        let participants = self.participants.clone();
        self.differs(&ObjectDescriptor { participants, ..theirs.clone() }, expected)
    }

    /// Both nodes check both directions: the one that checks first may be the only one that answers.
    fn differs_in_regions(&self, theirs: &ObjectDescriptor, expected: &[(String, u64)]) -> Option<Difference> {
        if let Some((name, bytes)) = theirs.expected.iter().find(|needed| self.lacks(needed)) {
            return Difference::new(&format!("region `{name}` in bytes"), &self.bytes_of(name), &Some(bytes));
        }
        let (name, bytes) = expected.iter().find(|needed| theirs.lacks(needed))?;
        Difference::new(&format!("region `{name}` in bytes"), &Some(bytes), &theirs.bytes_of(name))
    }

    fn bytes_of(&self, name: &str) -> Option<u64> {
        self.regions.iter().find(|region| region.0 == name).map(|region| region.2)
    }

    fn lacks(&self, (name, bytes): &(String, u64)) -> bool {
        self.bytes_of(name) != Some(*bytes)
    }
}

/// A property in which two nodes open an object differently.
pub(super) struct Difference {
    pub(super) what: String,
    pub(super) here: String,
    pub(super) there: String,
}

impl Difference {
    pub(super) fn new(what: &str, here: &dyn core::fmt::Debug, there: &dyn core::fmt::Debug) -> Option<Difference> {
        Some(Difference { what: what.into(), here: format!("{here:?}"), there: format!("{there:?}") })
    }

    /// The description for this node.
    pub(super) fn seen_here(&self) -> String {
        format!("{} is {} here and {} there", self.what, self.here, self.there)
    }

    /// The description for the other node.
    pub(super) fn seen_there(&self) -> String {
        format!("{} is {} here and {} there", self.what, self.there, self.here)
    }
}

#[cfg(test)]
mod tests;
