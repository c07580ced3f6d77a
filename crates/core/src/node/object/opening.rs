//! How an object is described and opened.

use std::time::Duration;

use farfield_fabric::{NodeId, Region, Words};

use super::{Callbacks, Expect, Object, ObjectDescriptor, Regions};
use crate::error::{ErrorContext, Result};
use crate::node::{Meter, Node};

/// An object that is being opened: its regions, its demands on its peers, and callbacks for those.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// use farfield::fabric::GroupKey;
/// let nodes = farfield::local_session(2)?;
/// let open = |node: &farfield::Node| {
///     let cells = node.alloc(GroupKey::SIGNAL, 64)?;
///     let builder = farfield::toolkit::ObjectBuilder::new(node, "app/cells", "Cells");
///     builder.layout("one line").region("cells", cells).announce()
/// };
/// let (a, b) = (open(&nodes[0])?, open(&nodes[1])?);
/// a.wait(nodes[0].timeout())?;
/// b.wait(nodes[1].timeout())?;
/// let word = a.remote::<u64>(nodes[1].id(), "cells")?;
/// nodes[0].endpoint()?.put_value(word, 7).wait()?;
/// # Ok(()) }
/// ```
#[must_use = "nothing is opened before `announce`"]
pub struct ObjectBuilder {
    pub(super) node: Node,
    pub(super) path: String,
    pub(super) kind: &'static str,
    pub(super) layout: String,
    /// `None`: the default ones.
    pub(super) participants: Option<Vec<NodeId>>,
    pub(super) regions: Regions,
    pub(super) expect: Expect,
    pub(super) takes_in: bool,
    pub(super) has_homes: bool,
    /// Whether this node is one.
    pub(super) is_home: bool,
    pub(super) callbacks: Callbacks,
    pub(super) calls: &'static [&'static str],
    pub(super) meter: Option<Meter>,
}

impl ObjectBuilder {
    /// Describes an object of type `kind` at `path`. Its participants are all members of the session, or of the
    /// generation of the path ([`Node::reopen`]).
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # use farfield::{fabric::GroupKey, toolkit::{ObjectBuilder, ObjectDescriptor, Regions}};
    /// # let node = farfield::Node::builder().start()?;
    /// let object = ObjectBuilder::new(&node, "app/mail", "Mail").open()?; // without memory
    /// assert_eq!(object.participants(), node.live_members());
    /// # Ok(()) }
    /// ```
    pub fn new(node: &Node, path: &str, kind: &'static str) -> ObjectBuilder {
        ObjectBuilder {
            node: node.clone(),
            path: path.into(),
            kind,
            layout: String::new(),
            participants: None,
            regions: Regions::new(node),
            expect: Box::new(|_| Vec::new()),
            takes_in: false,
            has_homes: false,
            is_home: false,
            callbacks: Callbacks::default(),
            calls: &[],
            meter: None,
        }
    }

    /// Sets the sizes and options that all participants must agree on.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # use farfield::{Node, fabric::GroupKey, toolkit::{ObjectBuilder, ObjectDescriptor, Regions}};
    /// # let nodes = farfield::local_session(2)?;
    /// use farfield::ErrorKind;
    /// let open = |node, layout: &str| ObjectBuilder::new(node, "app/mail", "Mail").layout(layout).announce();
    /// let (here, there) = (open(&nodes[0], "8 letters")?, open(&nodes[1], "9 letters")?);
    /// let error = here.wait(nodes[0].timeout()).unwrap_err();
    /// assert!(matches!(error.kind(), ErrorKind::Mismatch { .. })); // on both nodes
    /// # Ok(()) }
    /// ```
    pub fn layout(mut self, layout: &str) -> ObjectBuilder {
        self.layout = layout.into();
        self
    }

    /// Sets the nodes that take part.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # use farfield::{Node, fabric::GroupKey, toolkit::{ObjectBuilder, ObjectDescriptor, Regions}};
    /// # let nodes = farfield::local_session(2)?;
    /// let alone = ObjectBuilder::new(&nodes[0], "app/mail", "Mail").participants([nodes[0].id()]);
    /// let object = alone.open()?; // the other node does not open it
    /// # Ok(()) }
    /// ```
    pub fn participants(mut self, nodes: impl IntoIterator<Item = NodeId>) -> ObjectBuilder {
        self.participants = Some(nodes.into_iter().collect());
        self
    }

    /// Adds a region of this node that peers may ask for by name. From now on the region belongs to this object alone.
    /// It is freed when all nodes that received its address have closed the object, and at once if this opening is
    /// never announced.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # use farfield::{fabric::GroupKey, toolkit::{ObjectBuilder, ObjectDescriptor, Regions}};
    /// # let node = farfield::Node::builder().start()?;
    /// let inbox = node.alloc(GroupKey::SIGNAL, 4096)?;
    /// let object = ObjectBuilder::new(&node, "app/mail", "Mail").region("inbox", inbox).open()?;
    /// assert!(object.remote::<u64>(node.id(), "inbox").is_ok());
    /// # Ok(()) }
    /// ```
    pub fn region(mut self, name: &'static str, region: Region) -> ObjectBuilder {
        self.regions.add(name, region);
        self
    }

    /// Sets the regions of this node, announced and private ones, in place of those that were added before. They
    /// belong to this object alone, as with [`ObjectBuilder::region`].
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # use farfield::{fabric::GroupKey, toolkit::{ObjectBuilder, ObjectDescriptor, Regions}};
    /// # let node = farfield::Node::builder().start()?;
    /// let mut regions = Regions::new(&node);
    /// regions.alloc("inbox", GroupKey::SIGNAL, 4096)?;
    /// let object = ObjectBuilder::new(&node, "app/mail", "Mail").regions(regions).open()?;
    /// assert!(object.remote::<u64>(node.id(), "inbox").is_ok());
    /// # Ok(()) }
    /// ```
    pub fn regions(mut self, regions: Regions) -> ObjectBuilder {
        self.regions = regions;
        self
    }

    /// Adds words of this node that peers may ask for by name ([`Node::alloc_words`]), as [`ObjectBuilder::region`]
    /// does with memory.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # use farfield::{fabric::GroupKey, toolkit::{ObjectBuilder, ObjectDescriptor, Regions}};
    /// # let node = farfield::Node::builder().start()?;
    /// let count = node.alloc_words(GroupKey::DATA, 1, &[10])?;
    /// let object = ObjectBuilder::new(&node, "app/count", "Count").words("count", count).open()?;
    /// let count = object.remote::<u64>(node.id(), "count")?;
    /// assert_eq!(node.endpoint()?.get(count).wait()?, 10);
    /// # Ok(()) }
    /// ```
    pub fn words(mut self, name: &'static str, words: Words) -> ObjectBuilder {
        self.regions.add_words(name, words);
        self
    }

    /// Sets the regions that this node needs of a peer, with their sizes in bytes.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # use farfield::{Node, fabric::GroupKey, toolkit::{ObjectBuilder, ObjectDescriptor, Regions}};
    /// # let nodes = farfield::local_session(2)?;
    /// let open = |node: &Node| {
    ///     let inbox = node.alloc(GroupKey::SIGNAL, 4096)?;
    ///     let builder = ObjectBuilder::new(node, "app/mail", "Mail").region("inbox", inbox);
    ///     builder.require_regions(|_| vec![("inbox".into(), 4096)]).open() // of every peer
    /// };
    /// let mail = farfield::on_each(&nodes, open)?;
    /// # Ok(()) }
    /// ```
    pub fn require_regions(
        mut self,
        of: impl Fn(NodeId) -> Vec<(String, u64)> + Send + Sync + 'static,
    ) -> ObjectBuilder {
        self.expect = Box::new(of);
        self
    }

    /// Names the calls of the object, for its [`Meter`](crate::toolkit::Meter): if the node measures calls, it can
    /// measure these, and [`Node::metrics`] shows them.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # use farfield::toolkit::ObjectBuilder;
    /// const POST: usize = 0;
    /// let node = farfield::Node::builder().latencies(true).start()?;
    /// let mail = ObjectBuilder::new(&node, "app/mail", "Mail").calls(&["post"]).open()?;
    /// let ep = node.endpoint()?;
    /// ep.block_on(mail.meter().measure(&ep, POST, async { Ok(()) }))?;
    /// assert!(node.metrics().call("app/mail", "post").is_some());
    /// # Ok(()) }
    /// ```
    pub fn calls(mut self, names: &'static [&'static str]) -> ObjectBuilder {
        self.calls = names;
        self
    }

    /// The calls of the object are measured as those of another, of which it is a part.
    pub(crate) fn measured_by(mut self, meter: Meter) -> ObjectBuilder {
        self.meter = Some(meter);
        self
    }

    /// Lets restarted nodes join the object while it is open, as additional nodes or in place of a dead or departed
    /// one. The object must be stored on live nodes only, and must need no memory of a joining node. Without this
    /// option, such a node waits until the object is reopened ([`Node::reopen`]). [`ObjectBuilder::on_join`] reports
    /// the joining node.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// use farfield::fabric::GroupKey;
    /// let node = farfield::Node::builder().session("doc-takes-in").start()?;
    /// let home = node.id();
    /// let count = node.alloc_words(GroupKey::DATA, 1, &[])?; // on the home only
    /// let expect = move |peer| if peer == home { vec![("count".to_string(), 8)] } else { vec![] };
    /// let opening = farfield::toolkit::ObjectBuilder::new(&node, "app/count", "Count").words("count", count);
    /// let object = opening.require_regions(expect).takes_in_returned().announce()?;
    /// # drop(object); Ok(()) }
    /// ```
    pub fn takes_in_returned(mut self) -> ObjectBuilder {
        self.takes_in = true;
        self
    }

    /// The object is on these nodes, its *homes*, and any node of the session may open it at any time, a restarted one
    /// included. Opening waits for the homes that are neither dead nor departed, and for no other node. A node that is
    /// no home learns of the homes only, and tells other nodes itself if they need its memory. It may close the object
    /// and open it again, while others keep it open.
    ///
    /// A home that closes the object opens it again only when the others have closed it, too: they use its memory.
    ///
    /// In place of [`ObjectBuilder::participants`]. A home that has died keeps its place: then [`Object::remote`] is an
    /// error for it.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # use farfield::{Node, fabric::GroupKey, toolkit::{Object, ObjectBuilder}};
    /// # let nodes = farfield::local_session(3)?;
    /// let homes = [nodes[0].id()];
    /// let open = |node: &Node| -> farfield::Result<Object> {
    ///     let mut builder = ObjectBuilder::new(node, "app/mail", "Mail").homes(&homes);
    ///     if homes.contains(&node.id()) {
    ///         builder = builder.region("inbox", node.alloc(GroupKey::DATA, 4096)?);
    ///     }
    ///     builder.require_regions(move |peer| if peer == homes[0] { vec![("inbox".into(), 4096)] } else { vec![] }).open()
    /// };
    /// let (home, early) = (open(&nodes[0])?, open(&nodes[1])?); // without the third node
    /// assert_eq!(early.remote::<u64>(homes[0], "inbox")?, home.remote(homes[0], "inbox")?);
    /// let late = open(&nodes[2])?;
    /// # Ok(()) }
    /// ```
    pub fn homes(mut self, homes: &[NodeId]) -> ObjectBuilder {
        let me = self.node.id();
        let others = homes.iter().copied().filter(|home| *home != me);
        self.participants = Some(others.chain([me]).collect());
        (self.has_homes, self.is_home) = (true, homes.contains(&me));
        self
    }

    /// Adds a callback that the service thread runs when it has accepted a peer's join: once, unless the peer opens the
    /// object anew. Of two participants, at least the first to open the object sees the other's join.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # use farfield::{Node, fabric::GroupKey, toolkit::{ObjectBuilder, ObjectDescriptor, Regions}};
    /// # let nodes = farfield::local_session(2)?;
    /// let (sender, joined) = std::sync::mpsc::channel();
    /// let report = move |peer, _: &ObjectDescriptor| drop(sender.send(peer));
    /// let here = ObjectBuilder::new(&nodes[0], "app/mail", "Mail").on_join(report).announce()?;
    /// let there = ObjectBuilder::new(&nodes[1], "app/mail", "Mail").open()?;
    /// assert_eq!(joined.recv().unwrap(), nodes[1].id());
    /// # Ok(()) }
    /// ```
    pub fn on_join(mut self, callback: impl Fn(NodeId, &ObjectDescriptor) + Send + Sync + 'static) -> ObjectBuilder {
        self.callbacks.on_join.push(Box::new(callback));
        self
    }

    /// Adds a callback that the service thread runs once for each peer, when its regions are known.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # use farfield::{Node, fabric::GroupKey, toolkit::{ObjectBuilder, ObjectDescriptor, Regions}};
    /// # let nodes = farfield::local_session(2)?;
    /// let (sender, connected) = std::sync::mpsc::channel();
    /// let report = move |peer, theirs: &ObjectDescriptor| drop(sender.send((peer, theirs.regions.len())));
    /// let here = ObjectBuilder::new(&nodes[0], "app/mail", "Mail").on_connect(report).announce()?;
    /// let there = ObjectBuilder::new(&nodes[1], "app/mail", "Mail").open()?;
    /// assert_eq!(connected.recv().unwrap(), (nodes[1].id(), 0)); // the peer has no regions in it
    /// # Ok(()) }
    /// ```
    pub fn on_connect(mut self, callback: impl Fn(NodeId, &ObjectDescriptor) + Send + Sync + 'static) -> ObjectBuilder {
        self.callbacks.on_connect.push(Box::new(callback));
        self
    }

    /// Opens the object without waiting for the others.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # use farfield::{Node, fabric::GroupKey, toolkit::{ObjectBuilder, ObjectDescriptor, Regions}};
    /// # let nodes = farfield::local_session(2)?;
    /// let open = |node, path| ObjectBuilder::new(node, path, "Mail").announce();
    /// let here = (open(&nodes[0], "app/in")?, open(&nodes[0], "app/out")?); // one exchange for both
    /// let there = (open(&nodes[1], "app/in")?, open(&nodes[1], "app/out")?);
    /// here.0.wait(nodes[0].timeout())?;
    /// here.1.wait(nodes[0].timeout())?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The path is already open; other nodes still use the memory of an earlier opening on this home; or the
    /// participants are invalid.
    pub fn announce(self) -> Result<Object> {
        Object::announce(self)
    }

    /// Waits until no node uses memory of an earlier opening of the path on this node.
    fn wait_for_users(&self, timeout: Duration) -> Result<()> {
        let shared = self.node.shared();
        let users = || {
            let openings = shared.service.openings.lock();
            openings.users_before(&self.path, |user| shared.is_silent(user))
        };
        if users().is_empty() {
            return Ok(());
        }
        let endpoint = self.node.endpoint()?;
        let none = || users().is_empty().then_some(());
        let waited = endpoint.block_on(self.node.wait_for_members(&endpoint, endpoint.now() + timeout, none));
        let what = "those that have it open with the memory of an earlier opening here to close it";
        waited.or_else(|error| Err(error).waiting_for_nodes(what, &users()).of(&self.path))
    }

    /// Opens the object and waits for all other participants, as long as the node's timeout.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # use farfield::{Node, fabric::GroupKey, toolkit::{ObjectBuilder, ObjectDescriptor, Regions}};
    /// # let nodes = farfield::local_session(2)?;
    /// let mail = farfield::on_each(&nodes, |node| ObjectBuilder::new(node, "app/mail", "Mail").open())?;
    /// assert!(mail[0].others().eq([nodes[1].id()])); // it has opened it, too
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`ObjectBuilder::announce`] and [`Object::wait`].
    pub fn open(self) -> Result<Object> {
        let timeout = self.node.timeout();
        if self.is_home {
            self.wait_for_users(timeout)?;
        }
        let object = self.announce()?;
        object.wait(timeout)?;
        Ok(object)
    }
}
