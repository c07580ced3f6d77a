//! A table of locks; their kind is chosen when it is opened.

use core::borrow::BorrowMut;
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::str::FromStr;
use core::task::{Context, Poll};

use farfield_fabric::{Begun, Endpoint, NodeId};
use serde::{Deserialize, Serialize};

use super::{
    ALockArray, ALockGuard, ALockOptions, LockArray, LockGuard, McsGuard, McsLockArray, SpinGuard, SpinLockArray,
    WaitLimit,
};
use farfield_core::Node;
use farfield_core::toolkit::Rest;
use farfield_core::{Error, ErrorKind, Result};
use farfield_core::{Guard, MutexArray};

/// A kind of lock. The page of [`locks`](super) explains which kind suits which purpose.
///
/// ```
/// use farfield::LockKind;
/// assert_eq!("mcs".parse::<LockKind>()?, LockKind::Mcs); // from a command line, say
/// assert!("ticket".parse::<LockKind>().is_err());
/// # Ok::<(), farfield::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LockKind {
    /// The lock for asymmetric memory: [`ALockArray`].
    ALock,
    /// A remote spinlock: [`SpinLockArray`].
    Spin,
    /// A remote queue lock: [`McsLockArray`].
    Mcs,
    /// The ticket lock: [`MutexArray`].
    Mutex,
}

impl LockKind {
    /// All kinds.
    ///
    /// ```
    /// use farfield::LockKind;
    /// let names: Vec<&str> = LockKind::ALL.iter().map(|kind| kind.name()).collect();
    /// assert_eq!(names, ["alock", "spin", "mcs", "mutex"]);
    /// ```
    pub const ALL: &[LockKind] = &[LockKind::ALock, LockKind::Spin, LockKind::Mcs, LockKind::Mutex];

    /// The kind's name, such as `alock`.
    ///
    /// ```
    /// assert_eq!(farfield::LockKind::ALock.name(), "alock");
    /// ```
    pub fn name(self) -> &'static str {
        match self {
            LockKind::ALock => "alock",
            LockKind::Spin => "spin",
            LockKind::Mcs => "mcs",
            LockKind::Mutex => "mutex",
        }
    }
}

impl fmt::Display for LockKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for LockKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<LockKind> {
        LockKind::ALL.iter().find(|kind| kind.name() == name).copied().ok_or_else(|| {
            let names: Vec<_> = LockKind::ALL.iter().map(|kind| kind.name()).collect();
            ErrorKind::Config { why: format!("unknown kind of lock `{name}`: choose one of {}", names.join(", ")) }
                .into()
        })
    }
}

/// The options of a table of locks. They must be the same on all nodes.
///
/// ```
/// # use farfield::{ALockOptions, LockKind, LockOptions};
/// let alock = ALockOptions { operations_max: 64, ..ALockOptions::default() };
/// let options = LockOptions { alock, ..LockOptions::new(LockKind::Mcs) };
/// assert_eq!(options.kind, LockKind::Mcs);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockOptions {
    /// The kind of its locks.
    pub kind: LockKind,
    /// The budgets of an ALock, and how many operations of a node may hold or await an ALock or a queue lock at a time.
    pub alock: ALockOptions,
}

impl LockOptions {
    /// Locks of a kind, with default options.
    ///
    /// ```
    /// # use farfield::{ALockOptions, LockKind, LockOptions};
    /// assert_eq!(LockOptions::new(LockKind::ALock).alock, ALockOptions::default());
    /// ```
    pub fn new(kind: LockKind) -> LockOptions {
        LockOptions { kind, alock: ALockOptions::default() }
    }
}

/// Locks spread over the nodes that open them, in order. Their kind is chosen at run time.
///
/// ```
/// use farfield::{LockArray, LockGuard, LockKind, LockOptions, LockTable};
/// # fn main() -> farfield::Result<()> {
/// let node = farfield::Node::builder().session("doc-table").start()?;
/// let locks = LockTable::open(&node, "accounts", 1000, LockOptions::new(LockKind::ALock))?;
/// let ep = node.endpoint()?;
/// ep.block_on(async { locks.lock(&ep, 7).await?.unlock().await })?;
/// # Ok(()) }
/// ```
pub struct LockTable(Kind);

enum Kind {
    ALock(ALockArray),
    Spin(SpinLockArray),
    Mcs(McsLockArray),
    Mutex(MutexArray),
}

/// Holds a lock of a table until it is dropped or unlocked.
///
/// ```
/// # use farfield::{LockArray, LockKind, LockOptions, LockTable, TableGuard};
/// # let node = farfield::Node::builder().session("doc-table-guard").start()?;
/// # let (locks, ep) = (LockTable::open(&node, "stripes", 64, LockOptions::new(LockKind::Spin))?, node.endpoint()?);
/// {
///     let _held: TableGuard<'_> = ep.block_on(locks.lock(&ep, 7))?;
/// } // dropped: the lock is free
/// assert!(ep.block_on(locks.try_lock(&ep, 7))?.is_some());
/// # Ok::<(), farfield::Error>(())
/// ```
#[must_use = "the lock is released when the guard is dropped"]
pub struct TableGuard<'a>(Option<Held<'a>>); // none once it is released

enum Held<'a> {
    ALock(ALockGuard<'a>),
    Spin(SpinGuard<'a>),
    Mcs(McsGuard<'a>),
    Mutex(Guard<'a>),
}

impl LockTable {
    /// Opens `count` locks and waits for all nodes to do so.
    ///
    /// ```
    /// # use farfield::{LockKind, LockOptions, LockTable};
    /// # let node = farfield::Node::builder().session("doc-table-open").start()?;
    /// for kind in LockKind::ALL {
    ///     let locks = LockTable::open(&node, kind.name(), 8, LockOptions::new(*kind))?;
    ///     assert_eq!(locks.kind(), *kind);
    /// }
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A node is missing, unreachable, or opens them differently; or memory is exhausted.
    pub fn open(node: &Node, path: &str, count: usize, options: LockOptions) -> Result<LockTable> {
        LockTable::open_among(node, path, &node.members_for(path), count, options)
    }

    /// Opens the locks among these nodes, which must name the same, and waits for them to do so. Lock `i` is on the one
    /// at `i mod nodes` of them, in the order of their numbers.
    ///
    /// ```
    /// # use farfield::{LockArray, LockKind, LockOptions, LockTable};
    /// # let nodes = farfield::local_session(3)?; let pair = [nodes[0].id(), nodes[1].id()];
    /// let options = LockOptions::new(LockKind::Mcs);
    /// let open = |node: &farfield::Node| LockTable::open_among(node, "stripes", &pair, 64, options);
    /// let locks = farfield::on_each(&nodes[..2], open)?; // the third node does not open them
    /// assert_eq!(locks[1].home(3), pair[1]);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `open`, or this node is not among them.
    pub fn open_among(
        node: &Node,
        path: &str,
        participants: &[NodeId],
        count: usize,
        options: LockOptions,
    ) -> Result<LockTable> {
        let LockOptions { kind, alock } = options;
        Ok(LockTable(match kind {
            LockKind::ALock => Kind::ALock(ALockArray::open_among(node, path, participants, count, alock)?),
            LockKind::Spin => Kind::Spin(SpinLockArray::open_among(node, path, participants, count)?),
            LockKind::Mcs => {
                Kind::Mcs(McsLockArray::open_among(node, path, participants, count, alock.operations_max)?)
            }
            LockKind::Mutex => Kind::Mutex(MutexArray::open_among(node, path, participants, count)?),
        }))
    }

    /// The kind of its locks.
    ///
    /// ```
    /// # use farfield::{LockKind, LockOptions, LockTable};
    /// # let node = farfield::Node::builder().session("doc-table-kind").start()?;
    /// let locks = LockTable::open(&node, "stripes", 8, LockOptions::new("spin".parse()?))?;
    /// assert_eq!(locks.kind(), LockKind::Spin);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn kind(&self) -> LockKind {
        match &self.0 {
            Kind::ALock(_) => LockKind::ALock,
            Kind::Spin(_) => LockKind::Spin,
            Kind::Mcs(_) => LockKind::Mcs,
            Kind::Mutex(_) => LockKind::Mutex,
        }
    }
}

impl LockArray for LockTable {
    type Guard<'a> = TableGuard<'a>;

    fn len(&self) -> usize {
        match &self.0 {
            Kind::ALock(locks) => locks.len(),
            Kind::Spin(locks) => locks.len(),
            Kind::Mcs(locks) => locks.len(),
            Kind::Mutex(locks) => locks.len(),
        }
    }

    #[inline]
    fn home(&self, index: usize) -> NodeId {
        match &self.0 {
            Kind::ALock(locks) => locks.home(index),
            Kind::Spin(locks) => locks.home(index),
            Kind::Mcs(locks) => locks.home(index),
            Kind::Mutex(locks) => locks.home(index),
        }
    }

    #[inline(always)]
    fn begin<'a, L: BorrowMut<WaitLimit>>(
        &'a self,
        endpoint: &'a Endpoint,
        index: usize,
        limit: L,
    ) -> Result<Begun<TableGuard<'a>, impl Rest<Option<TableGuard<'a>>>>> {
        let Kind::ALock(locks) = &self.0 else { return self.begin_rival(endpoint, index, limit) };
        match locks.begin(endpoint, index, limit)? {
            Ok(guard) => Ok(Ok(TableGuard(Some(Held::ALock(guard))))),
            Err(rest) => Ok(Err(Taking(OfKind::ALock(rest)))),
        }
    }
}

impl LockTable {
    /// [`LockArray::begin`] of the other kinds, out of the way of the ALock.
    #[inline(never)]
    fn begin_rival<'a, L: BorrowMut<WaitLimit>, A>(
        &'a self,
        endpoint: &'a Endpoint,
        index: usize,
        limit: L,
    ) -> BegunOf<'a, A, impl Rest<Option<SpinGuard<'a>>>, impl Rest<Option<McsGuard<'a>>>, impl Rest<Option<Guard<'a>>>>
    {
        let begun = match &self.0 {
            Kind::ALock(_) => unreachable!("it is no rival"),
            Kind::Spin(locks) => locks.begin(endpoint, index, limit)?.map(Held::Spin).map_err(OfKind::Spin),
            Kind::Mcs(locks) => locks.begin(endpoint, index, limit)?.map(Held::Mcs).map_err(OfKind::Mcs),
            Kind::Mutex(locks) => locks.begin(endpoint, index, limit)?.map(Held::Mutex).map_err(OfKind::Mutex),
        };
        Ok(begun.map(|held| TableGuard(Some(held))).map_err(Taking))
    }
}

/// A begun call of one of the kinds.
type BegunOf<'a, A, S, M, X> = Result<Begun<TableGuard<'a>, Taking<OfKind<A, S, M, X>>>>;

/// The rest of a call of one of the kinds.
enum OfKind<A, S, M, X> {
    ALock(A),
    Spin(S),
    Mcs(M),
    Mutex(X),
}

/// A wait for a lock of one of the kinds.
struct Taking<R>(R);

impl<'a, A, S, M, X> Future for Taking<OfKind<A, S, M, X>>
where
    A: Future<Output = Result<Option<ALockGuard<'a>>>> + Unpin,
    S: Future<Output = Result<Option<SpinGuard<'a>>>> + Unpin,
    M: Future<Output = Result<Option<McsGuard<'a>>>> + Unpin,
    X: Future<Output = Result<Option<Guard<'a>>>> + Unpin,
{
    type Output = Result<Option<TableGuard<'a>>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        fn held<G, H>(ended: Result<Option<G>>, held: impl FnOnce(G) -> H) -> Result<Option<H>> {
            ended.map(|guard| guard.map(held))
        }
        let polled = match &mut self.0 {
            OfKind::ALock(rest) => Pin::new(rest).poll(cx).map(|ended| held(ended, Held::ALock)),
            OfKind::Spin(rest) => Pin::new(rest).poll(cx).map(|ended| held(ended, Held::Spin)),
            OfKind::Mcs(rest) => Pin::new(rest).poll(cx).map(|ended| held(ended, Held::Mcs)),
            OfKind::Mutex(rest) => Pin::new(rest).poll(cx).map(|ended| held(ended, Held::Mutex)),
        };
        polled.map(|ended| held(ended, |guard| TableGuard(Some(guard))))
    }
}

/// A release of a lock of one of the kinds that has to wait.
impl<A, S, M, X> Future for OfKind<A, S, M, X>
where
    A: Rest<()>,
    S: Rest<()>,
    M: Rest<()>,
    X: Rest<()>,
{
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match &mut *self {
            OfKind::ALock(rest) => Pin::new(rest).poll(cx),
            OfKind::Spin(rest) => Pin::new(rest).poll(cx),
            OfKind::Mcs(rest) => Pin::new(rest).poll(cx),
            OfKind::Mutex(rest) => Pin::new(rest).poll(cx),
        }
    }
}

impl<'a> TableGuard<'a> {
    /// [`LockGuard::begin_unlock`], where the guard stays where it is: among others, for one. It holds nothing
    /// afterwards: releasing it again does nothing, and it no longer says whether the lock was poisoned.
    ///
    /// ```
    /// # use farfield::{LockArray, LockKind, LockOptions, LockTable, TableGuard};
    /// # let node = farfield::Node::builder().session("doc-table-release").start()?;
    /// # let ep = node.endpoint()?;
    /// for &kind in LockKind::ALL {
    ///     let locks = LockTable::open(&node, kind.name(), 64, LockOptions::new(kind))?;
    ///     let mut held = [3, 5].map(|index| ep.block_on(locks.lock(&ep, index)).unwrap());
    ///     for guard in &mut held {
    ///         if let Err(rest) = guard.begin_release()? {
    ///             ep.block_on(rest)?;
    ///         }
    ///     }
    ///     let again = ep.block_on(locks.try_lock(&ep, 5))?;
    ///     assert!(again.is_some() && held[1].begin_release()?.is_ok()); // the second release releases nothing
    ///     assert!(ep.block_on(locks.try_lock(&ep, 5))?.is_none());
    /// }
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `unlock`.
    #[inline(always)]
    pub fn begin_release(&mut self) -> Result<Begun<(), impl Rest<()> + use<'a>>> {
        match &mut self.0 {
            Some(Held::ALock(guard)) if guard.is_held() => match guard.begin_release()? {
                Ok(()) => Ok(Ok(())),
                Err(rest) => Ok(Err(OfKind::ALock(rest))),
            },
            _ => begin_unlock_of_rival(self.0.take()),
        }
    }
}

/// [`LockGuard::begin_unlock`] of the other kinds than ALock.
#[inline(never)]
fn begin_unlock_of_rival<A>(
    held: Option<Held<'_>>,
) -> Result<Begun<(), OfKind<A, impl Rest<()>, impl Rest<()>, impl Rest<()>>>> {
    Ok(match held {
        Some(Held::ALock(_)) | None => Ok(()), // it was released before
        Some(Held::Spin(guard)) => guard.begin_unlock()?.map_err(OfKind::Spin),
        Some(Held::Mcs(guard)) => guard.begin_unlock()?.map_err(OfKind::Mcs),
        Some(Held::Mutex(guard)) => guard.begin_unlock()?.map_err(OfKind::Mutex),
    })
}

impl LockGuard for TableGuard<'_> {
    #[inline(always)]
    fn begin_unlock(mut self) -> Result<Begun<(), impl Rest<()>>> {
        self.begin_release()
    }

    fn is_poisoned(&self) -> bool {
        match &self.0 {
            Some(Held::ALock(guard)) => guard.is_poisoned(),
            Some(Held::Spin(guard)) => guard.is_poisoned(),
            Some(Held::Mcs(guard)) => guard.is_poisoned(),
            Some(Held::Mutex(guard)) => guard.is_poisoned(),
            None => false,
        }
    }

    fn clear_poison(&mut self) {
        match &mut self.0 {
            Some(Held::ALock(guard)) => guard.clear_poison(),
            Some(Held::Spin(guard)) => guard.clear_poison(),
            Some(Held::Mcs(guard)) => guard.clear_poison(),
            Some(Held::Mutex(guard)) => guard.clear_poison(),
            None => {}
        }
    }
}
