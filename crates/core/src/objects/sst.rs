//! A shared state table: one row for each of several owners, with a copy of the table on every node.
//!
//! Row `r` is an [`OwnedVar`] at `path/r`, owned by the node that the row is assigned to. Each owner publishes its own
//! state in its row; rows are not ordered among each other. The table is announced at `path`, so that a different
//! number or order of owners is an error on both sides. Costs are those of the rows. Source: Derecho's SST, as in LOCO
//! appendix A.1.

use farfield_fabric::{NodeId, Plain};

use crate::error::{ErrorContext, ErrorKind, Result};
use crate::node::{Meter, Node, Object, ObjectBuilder};
use crate::objects::owned_var::{CALLS, OwnedVar, OwnedWriter, TearCheck};
use crate::objects::participants::Participants;

/// A table of rows of type `T`, each with its owner.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// let nodes = farfield::local_session(2)?;
/// let tables = farfield::on_each(&nodes, |node| farfield::Sst::<u64>::open(node, "load"))?;
/// let (a, b) = (&tables[0], &tables[1]);
/// let ep = nodes[1].endpoint()?;
/// let mut mine = b.writer(1)?;
/// mine.store(80);
/// ep.block_on(mine.push(&ep))?;
/// ep.block_on(ep.global_fence(nodes[1].others()))?;
/// assert_eq!(a.row(1).try_load(), Some(80));
/// # Ok(()) }
/// ```
pub struct Sst<T> {
    table: Object,
    rows: Vec<OwnedVar<T>>,
}

/// The most rows of one table.
const ROWS_MAX: usize = 1 << 16;

/// Checks the number of rows of a table, before anything is made for each.
pub(super) fn check_rows(rows: usize) -> Result<()> {
    if rows <= ROWS_MAX {
        return Ok(());
    }
    let why = format!("it would have {rows} rows, one for each owner or thread: at most {ROWS_MAX} are possible");
    Err(ErrorKind::Config { why }.into())
}

impl<T: Plain> Sst<T> {
    /// Opens a table with a row for each node, and waits for all nodes to do so.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// let tables = farfield::on_each(&nodes, |node| farfield::Sst::<u64>::open(node, "load"))?;
    /// assert_eq!(tables[0].row(1).owner(), nodes[1].id());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A node is missing, unreachable, or opens it differently; or memory is exhausted.
    pub fn open(node: &Node, path: &str) -> Result<Sst<T>> {
        let nodes = node.members_for(path);
        Sst::open_among(node, path, &nodes, &nodes)
    }

    /// Opens a table in which `owners[r]` owns row `r`.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// let owners = [nodes[0].id(), nodes[1].id(), nodes[1].id()]; // the second node has two rows
    /// let tables = farfield::on_each(&nodes, |node| farfield::Sst::<u64>::open_with(node, "load", &owners))?;
    /// assert_eq!(tables[0].row(2).owner(), nodes[1].id());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As `open`.
    pub fn open_with(node: &Node, path: &str, owners: &[NodeId]) -> Result<Sst<T>> {
        Sst::open_among(node, path, &node.members_for(path), owners)
    }

    /// [`Sst::open_with`] among these nodes, which must name the same. The owners should be among them: a row of
    /// another node stays zero.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(3)?;
    /// let pair = [nodes[0].id(), nodes[1].id()];
    /// let open = |node: &farfield::Node| farfield::Sst::<u64>::open_among(node, "load", &pair, &pair);
    /// let tables = farfield::on_each(&nodes[..2], open)?; // the third node does not open it
    /// assert_eq!(tables[0].len(), 2);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As `open`, or this node is not among them.
    pub fn open_among(node: &Node, path: &str, participants: &[NodeId], owners: &[NodeId]) -> Result<Sst<T>> {
        Sst::open_as(node, path, "Sst", participants, owners, node.meter(path, "Sst", &CALLS))
    }

    /// The table of an object of another type, under the object's own path: nodes that open two types there learn it.
    pub(super) fn open_as(
        node: &Node,
        path: &str,
        kind: &'static str,
        participants: &[NodeId],
        owners: &[NodeId],
        meter: Meter,
    ) -> Result<Sst<T>> {
        check_rows(owners.len()).of(path)?;
        let layout = format!("{}, owners={owners:?}", core::any::type_name::<T>());
        let opening = ObjectBuilder::new(node, path, kind).layout(&layout);
        let table = opening.participants(Participants::new(participants).iter()).announce()?;
        // All rows are announced before the first wait: one exchange in total, not one for each row.
        let announce = |(row, owner): (usize, &NodeId)| {
            let (path, tear_check) = (format!("{path}/{row}"), TearCheck::Guards);
            OwnedVar::announce_part(node, &path, participants, *owner, tear_check, meter)
        };
        let rows = owners.iter().enumerate().map(announce).collect::<Result<Vec<_>>>()?;
        table.wait_with(&node.endpoint()?, node.timeout())?;
        rows.iter().try_for_each(OwnedVar::wait)?;
        Ok(Sst { table, rows })
    }

    /// Fails if the table was reopened, or if another node waits for this one to reopen it. An object that waits for
    /// the rows of others calls it in that wait, which would not end otherwise.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let ep = node.endpoint()?;
    /// # let table = farfield::Sst::<u64>::open(&node, "load")?;
    /// # table.writer(0)?.store(80);
    /// let is_busy = |row: &farfield::OwnedVar<u64>| row.try_load().is_some_and(|load| load > 50);
    /// let look = || {
    ///     if table.rows().all(is_busy) { Some(Ok(())) } else { table.check_unasked().err().map(Err) }
    /// };
    /// ep.block_on(ep.wait_until(ep.deadline(), look))??;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Reopened`], or [`ErrorKind::Reopens`].
    pub fn check_unasked(&self) -> Result<()> {
        self.table.check_unasked()
    }

    /// The number of rows.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let table = farfield::Sst::<u64>::open(&node, "load")?;
    /// assert_eq!(table.len(), node.nodes()); // one row for each node
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no rows.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let table = farfield::Sst::<u64>::open(&node, "load")?;
    /// assert!(!table.is_empty());
    /// # Ok(()) }
    /// ```
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns row `row`.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let table = farfield::Sst::<u64>::open(&node, "load")?;
    /// table.writer(0)?.store(80);
    /// assert_eq!(table.row(0).try_load(), Some(80));
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    /// If there is no such row, as indexing a slice does.
    #[inline]
    pub fn row(&self, row: usize) -> &OwnedVar<T> {
        &self.rows[row]
    }

    /// All rows, in order.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let tables = farfield::on_each(&nodes, |node| farfield::Sst::<u64>::open(node, "load"))?;
    /// let total: u64 = tables[0].rows().filter_map(|row| row.try_load()).sum();
    /// assert_eq!(total, 0); // no owner has pushed a value yet
    /// # Ok(()) }
    /// ```
    pub fn rows(&self) -> impl Iterator<Item = &OwnedVar<T>> {
        self.rows.iter()
    }

    /// Returns the writer of a row, once, on its owner.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let table = farfield::Sst::<u64>::open(&node, "load")?;
    /// table.writer(0)?.store(80);
    /// assert!(table.writer(0).is_err()); // the only writer of the row is taken
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// There is no such row, this node does not own it, or the writer was taken before.
    pub fn writer(&self, row: usize) -> Result<OwnedWriter<T>> {
        match self.rows.get(row) {
            Some(row) => row.writer(),
            None => {
                let why = format!("row {row} does not exist: there are {}, numbered from 0", self.rows.len());
                Err(ErrorKind::NotAParticipant { why }).of(self.table.path())
            }
        }
    }
}
