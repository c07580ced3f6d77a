//! A value with one writer and a copy on every node, of any size, never seen torn.
//!
//! A value of one word is written whole by the hardware. For larger ones there are two ways.
//!
//! ```text
//! Guards:     0 ┌───────────┬────────────────┬────────────┐      Checksum:  0 ┌────────────────┬─────┐
//!               │ lead (8)  │ value (8·k)    │ trail (8)  │                   │ value (8·k)    │ sum │
//!               └───────────┴────────────────┴────────────┘                   └────────────────┴─────┘
//! ```
//!
//! **Guards.** The writer counts its versions and writes lead, value, trail: in this order locally (stores stay in
//! order) and by three puts that land in order. A reader reads them *in reverse*: trail, value, lead. If it saw trail
//! `g`, all of version `g` had landed before it read the value; if it then sees lead `g`, no later version had begun to
//! land when it had read the value. So equal guards mean a whole value. Reading in write order does not (LOCO appendix
//! D, the second bug). A remote reader has one get for each part and waits in between, since remote reads are
//! unordered.
//!
//! **Checksum.** The sum is XXH3 of the value, exclusive-or that of zeros, so that memory that was never written
//! is a valid zero. One put; a remote read is one get. A mixture is taken for whole with probability 2⁻⁶⁴.
//!
//! A push sends a copy, so the writer may store again at once. The receivers are the nodes that opened the variable:
//! all, or the owner's readers alone ([`OwnedVar::open_among`]).
//!
//! | call | round trips | operations |
//! |---|---|---|
//! | `load`, `store` | 0 | none |
//! | `push`, n nodes that opened it | 0 (not waited for) | n − 1 puts of a word or with a checksum, 3·(n − 1) with guards |
//! | `pull` | 1 (word, checksum) or 3 (guards), again if torn; 0 on the owner | as many gets |
//!
//! *If a push does not reach some nodes*, its error names each of them; all others have the value. The next push sends
//! the whole value to all nodes, so nothing needs repair. With guards, a refused push leaves a copy as it was: if the
//! value is refused behind its lead, the lead is put back. Only if that is refused too, or the trail is, the copy is
//! torn until the next push.
//!
//! *When the owner dies*, every copy stays as it was. Copies may differ by the values pushed since the last global
//! fence. A copy in which a push ends stays torn: [`OwnedVar::try_load`] returns `None`, and [`OwnedVar::load`] an
//! error that names the owner.
//!
//! Source: LOCO §2.2, appendix D and §H.6.1 (`msw`).

mod writer;

use core::marker::PhantomData;
use std::sync::Arc;

use farfield_fabric::{Endpoint, GroupKey, NodeId, Plain, Region, RemotePtr, Word, read_words, write_words};
use xxhash_rust::xxh3::xxh3_64;
use zerocopy::IntoBytes;

use crate::error::{ErrorContext, ErrorKind, Result};
use crate::node::{Meter, Node, Object, ObjectBuilder, Regions, current};
use crate::objects::participants::Participants;

/// How a value larger than a word is kept whole.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// # let nodes = farfield::local_session(2)?;
/// use farfield::{OwnedVar, TearCheck};
/// let owner = nodes[0].id();
/// // A pull is one get with a checksum, and three in a row with guards.
/// let open = |node: &farfield::Node| OwnedVar::<[u64; 4]>::open_with(node, "far", owner, TearCheck::Checksum);
/// let vars = farfield::on_each(&nodes, open)?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TearCheck {
    /// A version before and after it.
    #[default]
    Guards,
    /// A checksum after it.
    Checksum,
}

/// A value that one node owns and others see: all, or those among which it is opened.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// let nodes = farfield::local_session(2)?;
/// let owner = nodes[0].id();
/// let vars = farfield::on_each(&nodes, |node| farfield::OwnedVar::<[u64; 4]>::open(node, "setpoint", owner))?;
/// let (a, b) = (&vars[0], &vars[1]);
/// let ep = nodes[0].endpoint()?;
/// let mut writer = a.writer()?;
/// writer.store([1, 2, 3, 4]);
/// ep.block_on(writer.push(&ep))?;
/// ep.block_on(ep.global_fence(nodes[0].others()))?; // now it can be seen
/// assert_eq!(b.try_load(), Some([1, 2, 3, 4]));
/// # Ok(()) }
/// ```
pub struct OwnedVar<T>(Arc<Shared<T>>);

struct Shared<T> {
    object: Object,
    owner: NodeId,
    image: Image,
    copy: Region,
    /// 1 once the writer was taken.
    writer_taken: Word,
    _type: PhantomData<fn() -> T>,
}

/// The one writer of an [`OwnedVar`].
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// # let nodes = farfield::local_session(2)?;
/// # let (ep, owner) = (nodes[0].endpoint()?, nodes[0].id());
/// # let vars = farfield::on_each(&nodes, |node| farfield::OwnedVar::<[u64; 4]>::open(node, "setpoint", owner))?;
/// let mut writer = vars[0].writer()?;
/// for step in 0..3 {
///     writer.store([step; 4]);
///     ep.block_on(writer.push(&ep))?; // readers see some of the steps, each whole
/// }
/// # Ok(()) }
/// ```
pub struct OwnedWriter<T> {
    var: Arc<Shared<T>>,
    value: T,
    version: u64,
    peers: Vec<Peer>,
}

/// The copy on another node.
struct Peer {
    copy: RemotePtr<u64>,
    /// The version that it has; none if it is torn.
    whole: Option<u64>,
}

impl<T> Clone for OwnedVar<T> {
    fn clone(&self) -> Self {
        OwnedVar(Arc::clone(&self.0))
    }
}

/// The offsets of the parts, in words.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Image {
    Word,
    Guards { words: usize },
    Checksum { words: usize },
}

impl Image {
    fn of<T: Plain>(tear_check: TearCheck) -> Image {
        let words = size_of::<T>() / 8;
        match (words, tear_check) {
            (1, _) => Image::Word,
            (_, TearCheck::Guards) => Image::Guards { words },
            (_, TearCheck::Checksum) => Image::Checksum { words },
        }
    }

    fn words(self) -> usize {
        match self {
            Image::Word => 1,
            Image::Guards { words } => words + 2,
            Image::Checksum { words } => words + 1,
        }
    }
}

fn checksum<T: Plain>(value: &T) -> u64 {
    xxh3_64(value.as_bytes()) ^ xxh3_64(T::new_zeroed().as_bytes())
}

fn put_words<T: Plain>(words: &[Word], value: T) {
    for (to, from) in words.iter().zip(value.as_bytes().chunks_exact(8)) {
        let word = u64::from_ne_bytes(from.try_into().expect("eight bytes"));
        write_words(core::slice::from_ref(to), &[word]);
    }
}

fn read_value<T: Plain>(words: &[Word]) -> T {
    let mut value = T::new_zeroed();
    for (to, from) in value.as_mut_bytes().chunks_exact_mut(8).zip(words) {
        let mut word = [0];
        read_words(core::slice::from_ref(from), &mut word);
        to.copy_from_slice(&word[0].to_ne_bytes());
    }
    value
}

/// The calls, as they are measured.
pub(super) const CALLS: [&str; 2] = ["push", "pull"];
const PUSH: usize = 0;
const PULL: usize = 1;

impl<T: Plain> OwnedVar<T> {
    const WORDS: () = assert!(
        size_of::<T>().is_multiple_of(8) && size_of::<T>() > 0,
        "an OwnedVar's type is made of whole 8-byte words"
    );

    /// Opens the variable, with guards if it is larger than a word, and waits for all nodes to do so.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// let owner = nodes[1].id();
    /// let vars = farfield::on_each(&nodes, |node| farfield::OwnedVar::<[u64; 4]>::open(node, "setpoint", owner))?;
    /// assert_eq!(vars[0].try_load(), Some([0; 4]));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A node that is missing, dead or departed, or opens it differently; no memory.
    pub fn open(node: &Node, path: &str, owner: NodeId) -> Result<OwnedVar<T>> {
        OwnedVar::open_with(node, path, owner, TearCheck::default())
    }

    /// [`OwnedVar::open`] with a choice of how the value is kept whole.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// use farfield::{OwnedVar, TearCheck};
    /// let var = OwnedVar::<[u64; 512]>::open_with(&node, "page", node.id(), TearCheck::Checksum)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As `open`.
    pub fn open_with(node: &Node, path: &str, owner: NodeId, tear_check: TearCheck) -> Result<OwnedVar<T>> {
        OwnedVar::open_among(node, path, &node.members_for(path), owner, tear_check)
    }

    /// [`OwnedVar::open_with`] among these nodes, which must name the same: the owner and those that read it. Only they
    /// open it, and a push reaches them alone.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(3)?;
    /// use farfield::{Node, OwnedVar, TearCheck};
    /// let (owner, reader) = (nodes[0].id(), nodes[1].id());
    /// let open = |node: &Node| OwnedVar::<u64>::open_among(node, "duty", &[owner, reader], owner, TearCheck::Guards);
    /// let vars = farfield::on_each(&nodes[..2], open)?; // the third node does not open it
    /// let (ep, mut writer) = (nodes[0].endpoint()?, vars[0].writer()?);
    /// writer.store(5);
    /// let (pushed, counts) = ep.block_on(ep.counted(writer.push(&ep)));
    /// pushed?;
    /// assert_eq!(counts.puts, 1); // to its reader, not to all
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As `open`, or this node is not among them.
    pub fn open_among(
        node: &Node,
        path: &str,
        participants: &[NodeId],
        owner: NodeId,
        tear_check: TearCheck,
    ) -> Result<OwnedVar<T>> {
        let var = OwnedVar::announce(node, path, participants, owner, tear_check)?;
        var.wait()?;
        Ok(var)
    }

    /// [`OwnedVar::open_among`] without waiting for the other nodes: [`OwnedVar::wait`] must follow before it is used.
    /// A composed object announces all its parts first, and then waits for each.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(3)?;
    /// use farfield::{Node, OwnedVar, TearCheck};
    /// let pair = [nodes[0].id(), nodes[1].id()];
    /// let open = |node: &Node| {
    ///     let part = |path, owner| OwnedVar::<u64>::announce(node, path, &pair, owner, TearCheck::Guards);
    ///     let parts = [part("talk/left", pair[0])?, part("talk/right", pair[1])?];
    ///     parts.iter().try_for_each(OwnedVar::wait)?; // one exchange with the others, not one for each part
    ///     Ok(parts)
    /// };
    /// let talks = farfield::on_each(&nodes[..2], open)?; // the third node does not open it
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The path is already open, this node is not among them, or no memory.
    pub fn announce(
        node: &Node,
        path: &str,
        participants: &[NodeId],
        owner: NodeId,
        tear_check: TearCheck,
    ) -> Result<OwnedVar<T>> {
        let meter = node.meter(path, "OwnedVar", &CALLS);
        OwnedVar::announce_part(node, path, participants, owner, tear_check, meter)
    }

    /// [`OwnedVar::announce`] for a part of an object. Its calls are measured under that object's name.
    pub(in crate::objects) fn announce_part(
        node: &Node,
        path: &str,
        participants: &[NodeId],
        owner: NodeId,
        tear_check: TearCheck,
        meter: Meter,
    ) -> Result<OwnedVar<T>> {
        let () = Self::WORDS;
        let image = Image::of::<T>(tear_check);
        let bytes = image.words() * 8;
        let mut regions = Regions::new(node);
        let copy = regions.alloc("copy", GroupKey::SIGNAL, bytes).of(path)?;
        let layout = format!("{}, owner={}, {image:?}", core::any::type_name::<T>(), owner.0);
        let opening = ObjectBuilder::new(node, path, "OwnedVar").layout(&layout).measured_by(meter);
        let object = opening
            .participants(Participants::new(participants).iter())
            .regions(regions)
            .require_regions(move |_| vec![("copy".into(), bytes as u64)])
            .announce()?;
        let shared = Shared { object, owner, image, copy, writer_taken: Word::new(0), _type: PhantomData };
        Ok(OwnedVar(Arc::new(shared)))
    }

    /// Waits until all participants have opened the variable.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let all = nodes[0].live_members();
    /// use farfield::{OwnedVar, TearCheck};
    /// let announce = |node| OwnedVar::<u64>::announce(node, "setpoint", &all, all[0], TearCheck::Guards);
    /// let (here, there) = (announce(&nodes[0])?, announce(&nodes[1])?);
    /// here.wait()?;
    /// there.wait()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A node that is missing, dead or departed, or that opens it differently.
    pub fn wait(&self) -> Result<()> {
        let node = self.0.object.node();
        self.0.object.wait_with(&node.endpoint()?, node.timeout())
    }

    /// The owner.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let (ep, owner) = (nodes[0].endpoint()?, nodes[0].id());
    /// # let vars = farfield::on_each(&nodes, |node| farfield::OwnedVar::<[u64; 4]>::open(node, "setpoint", owner))?;
    /// assert_eq!(vars[1].owner(), owner);
    /// # Ok(()) }
    /// ```
    pub fn owner(&self) -> NodeId {
        self.0.owner
    }

    /// The writer, once, on the owner.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let (a, b, owner) = (nodes[0].endpoint()?, nodes[1].endpoint()?, nodes[0].id());
    /// # let vars = farfield::on_each(&nodes, |node| farfield::OwnedVar::<[u64; 4]>::open(node, "setpoint", owner))?;
    /// # let mut writer = vars[0].writer()?;
    /// writer.store([1; 4]);
    /// assert_eq!(writer.value(), [1; 4]);
    /// assert!(vars[1].writer().is_err()); // another node owns it
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// This node is not the owner, or the writer was taken before.
    pub fn writer(&self) -> Result<OwnedWriter<T>> {
        let shared = &self.0;
        let node = shared.object.node();
        let refuse = |why: String| Err(ErrorKind::NotAParticipant { why }).of(shared.object.path());
        if node.id() != shared.owner {
            return refuse(format!("only its owner, {}, can write it", shared.owner));
        }
        let peer = |node| Ok(Peer { copy: shared.object.remote(node, "copy")?, whole: Some(0) });
        let peers = shared.object.others().map(peer).collect::<Result<_>>()?;
        if shared.writer_taken.compare_exchange(0, 1).is_err() {
            return refuse("its only writer is already taken".into());
        }
        Ok(OwnedWriter { var: Arc::clone(shared), value: T::new_zeroed(), version: 0, peers })
    }

    /// This node's copy, if it is whole at this moment. Zero until the first value arrives.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let (a, b, owner) = (nodes[0].endpoint()?, nodes[1].endpoint()?, nodes[0].id());
    /// # let vars = farfield::on_each(&nodes, |node| farfield::OwnedVar::<[u64; 4]>::open(node, "setpoint", owner))?;
    /// # let mut writer = vars[0].writer()?;
    /// writer.store([1; 4]);
    /// a.block_on(writer.push(&a))?;
    /// a.block_on(a.global_fence(nodes[0].others()))?;
    /// assert_eq!(vars[1].try_load(), Some([1; 4]));
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn try_load(&self) -> Option<T> {
        let copy = &self.0.copy;
        match self.0.image {
            Image::Word => Some(read_value(copy.words(0, 1))),
            Image::Guards { words } => {
                // In reverse: trail, value, lead. See the module's documentation.
                let trail = copy.word(8 + words * 8).load();
                let value = read_value(copy.words(8, words));
                let lead = copy.word(0).load();
                (lead == trail).then_some(value)
            }
            Image::Checksum { words } => {
                let value = read_value(copy.words(0, words));
                (copy.word(words * 8).load() == checksum(&value)).then_some(value)
            }
        }
    }

    /// This node's copy, as soon as it is whole.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let (a, b, owner) = (nodes[0].endpoint()?, nodes[1].endpoint()?, nodes[0].id());
    /// # let vars = farfield::on_each(&nodes, |node| farfield::OwnedVar::<[u64; 4]>::open(node, "setpoint", owner))?;
    /// # let mut writer = vars[0].writer()?;
    /// writer.store([1; 4]);
    /// a.block_on(writer.push(&a))?;
    /// a.block_on(a.global_fence(nodes[0].others()))?;
    /// assert_eq!(b.block_on(vars[1].load(&b))?, [1; 4]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The owner died in the middle of a push, or a timeout: it is stopped there.
    pub async fn load(&self, endpoint: &Endpoint) -> Result<T> {
        if let Some(value) = self.try_load() {
            return Ok(value);
        }
        let shared = &self.0;
        let look = || {
            self.try_load().map(Ok).or_else(|| {
                let gone = shared.object.node().fenced_error(endpoint, shared.owner)?;
                // An earlier put of the owner may have landed since.
                Some(self.try_load().ok_or(gone))
            })
        };
        let loaded = endpoint.wait_until(endpoint.deadline(), look).await;
        loaded.waiting_for("an untorn value").of(shared.object.path())?.of(shared.object.path())
    }

    /// The owner's own copy, fetched now; this node's copy stays.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let (a, b, owner) = (nodes[0].endpoint()?, nodes[1].endpoint()?, nodes[0].id());
    /// # let vars = farfield::on_each(&nodes, |node| farfield::OwnedVar::<[u64; 4]>::open(node, "setpoint", owner))?;
    /// # let mut writer = vars[0].writer()?;
    /// writer.store([1; 4]); // and pushes it to nobody
    /// assert_eq!(b.block_on(vars[1].pull(&b))?, [1; 4]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The owner is dead or has left, or a timeout.
    pub async fn pull(&self, endpoint: &Endpoint) -> Result<T> {
        let shared = &self.0;
        current!(shared.object, endpoint, PULL, self.pull(endpoint));
        let path = shared.object.path();
        let from: RemotePtr<u64> = shared.object.remote(shared.owner, "copy")?;
        if from.node() == endpoint.me() {
            return self.load(endpoint).await; // only its CPU writes there
        }
        let deadline = endpoint.deadline();
        loop {
            match shared.image {
                Image::Word => {
                    let word = endpoint.get(from).await.of(path)?;
                    return Ok(T::read_from_bytes(&word.to_ne_bytes()).unwrap_or_else(|_| T::new_zeroed()));
                }
                Image::Guards { words } => {
                    // Remote reads are unordered: each is waited for before the next.
                    let trail = endpoint.get(from.at(1 + words)).await.of(path)?;
                    let value = endpoint.get_torn(from.at(1).cast::<T>()).await.of(path)?;
                    let lead = endpoint.get(from).await.of(path)?;
                    if let Some(value) = value.validate(|_| lead == trail) {
                        return Ok(value);
                    }
                }
                Image::Checksum { words } => {
                    let image = endpoint.get_into(from, endpoint.buf::<u64>(words + 1).of(path)?).await.of(path)?;
                    let value = T::read_from_prefix(image.as_bytes());
                    if let Ok((value, _)) = value
                        && image[words] == checksum(&value)
                    {
                        return Ok(value);
                    }
                }
            }
            if endpoint.now() >= deadline {
                return Err(farfield_fabric::Error::from(farfield_fabric::ErrorKind::Timeout {
                    waited: endpoint.timeout(),
                }))
                .waiting_for("an untorn value from its owner")
                .of(path);
            }
            endpoint.wait_for_change(deadline).await;
        }
    }
}

impl OwnedVar<u64> {
    /// The copy of this node: a word is whole without any check.
    #[inline(always)]
    pub(in crate::objects) fn word(&self) -> &Word {
        self.0.copy.word(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_was_never_written_is_a_valid_zero() {
        assert_eq!(checksum(&[0u64; 5]), 0);
        assert_ne!(checksum(&[0u64, 1]), 0);
    }
}
