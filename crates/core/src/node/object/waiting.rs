//! Waiting until the other participants have opened an object, too.

use std::time::Duration;

use farfield_fabric::{Endpoint, NodeId};

use super::{Object, open_span};
use crate::error::{Error, ErrorContext, ErrorKind, Result};
use crate::node::LongWait;

/// How long a join may be in flight when its sender has known for as long that a participant is dead or departed.
const ON_THE_WAY_MAX: Duration = Duration::from_millis(100);

impl Object {
    /// Waits until all participants have opened the object.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// let open = |node| farfield::toolkit::ObjectBuilder::new(node, "app/mail", "Mail").announce();
    /// let (here, there) = (open(&nodes[0])?, open(&nodes[1])?);
    /// here.wait(nodes[0].timeout())?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A timeout that names the missing nodes, a participant that is dead or departed, or one that opens the object
    /// differently.
    pub fn wait(&self, timeout: Duration) -> Result<()> {
        self.wait_with(&self.node.endpoint()?, timeout)
    }

    /// [`Object::wait`] on an endpoint that the caller has: a composed object announces all its parts and then waits
    /// for each, on one endpoint.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # use farfield::toolkit::ObjectBuilder;
    /// # let nodes = farfield::local_session(2)?;
    /// let open = |node: &farfield::Node| {
    ///     let part = |path| ObjectBuilder::new(node, path, "Mail").announce();
    ///     let parts = [part("app/mail/in")?, part("app/mail/out")?]; // one exchange with the others, not two
    ///     let endpoint = node.endpoint()?;
    ///     parts.iter().try_for_each(|part| part.wait_with(&endpoint, node.timeout()))?;
    ///     Ok(parts)
    /// };
    /// let mail = farfield::on_each(&nodes, open)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Object::wait`].
    pub fn wait_with(&self, endpoint: &Endpoint, timeout: Duration) -> Result<()> {
        let _span = open_span(&self.node, self.path(), self.open.kind).entered();
        let long = LongWait::default();
        let missing = || {
            let state = self.open.state.lock();
            let others = self.participants.iter().filter(|node| **node != self.node.id());
            let is_missing = |node: &&NodeId| {
                let has_gone = self.open.has_homes && self.node.has_gone(**node);
                !has_gone && !state.connected.contains_key(node)
            };
            others.filter(is_missing).copied().collect::<Vec<_>>()
        };
        let start = endpoint.now();
        let (mut seen, mut gone_since, mut calls_seen) = (u64::MAX, None, 0);
        let reopenings = &self.node.shared().service.reopenings;
        let mut look = || {
            if let Some(waited) = long.becomes_long(endpoint, || tracing::enabled!(tracing::Level::INFO)) {
                let missing = missing();
                let there = self.open_instead(&missing);
                tracing::info!(?waited, ?missing, "still waits for all participants to open it{there}");
            }
            if std::mem::replace(&mut seen, self.open.changes.load()) != seen {
                if let Some((node, differs)) = self.open.state.lock().mismatch.clone() {
                    return Some(Err(Error::from(ErrorKind::Mismatch { node, differs })));
                }
                if missing().is_empty() {
                    return Some(Ok(()));
                }
            }
            if std::mem::replace(&mut calls_seen, reopenings.changes()) != calls_seen
                && let Err(overtaken) = reopenings.check_overtaken(self.path())
            {
                return Some(Err(overtaken));
            }
            if self.open.has_homes {
                return missing().is_empty().then_some(Ok(()));
            }
            let gone_of = |nodes: Vec<NodeId>| nodes.into_iter().find_map(|node| endpoint.check_alive(node).err());
            // A dead or departed node that stores no part of the object is not needed, if it admits others.
            let is_needed = |node: &NodeId| {
                !self.open.takes_in || endpoint.check_alive(*node).is_ok() || !(self.open.expect)(*node).is_empty()
            };
            let mut missing = missing();
            missing.retain(is_needed);
            if missing.is_empty() {
                return Some(Ok(()));
            }
            if let Some(error) = gone_of(missing) {
                return Some(Err(error.into()));
            }
            // A connected participant is dead or departed. The missing ones know it, or learn it before they come up.
            // Then they open the object without that node, unless their joins are in flight already.
            let error = gone_of(self.others().filter(is_needed).collect())?;
            let since = *gone_since.get_or_insert_with(|| endpoint.now());
            (endpoint.now() - since >= ON_THE_WAY_MAX).then(|| Err(error.into()))
        };
        let waited = match endpoint.block_on(endpoint.wait_until(start + timeout, &mut look)) {
            Ok(result) => result,
            Err(_) => {
                let missing = missing();
                // The last one has come since the last look.
                if missing.is_empty()
                    && let Some(result) = look()
                {
                    return result.of(self.path());
                }
                let mut what = String::from("all participants to open it");
                what += &self.open_instead(&missing);
                if let Some((node, why)) = self.open.state.lock().outside.first_key_value() {
                    what += &format!(
                        " ({node} opened it before {} joined, which cannot join the object: {why}. Call `Node::reopen` \
                         on all nodes)",
                        self.node.id()
                    );
                }
                Err(ErrorKind::Timeout { what, waited: endpoint.now() - start, missing }.into())
            }
        };
        match &waited {
            Ok(()) => tracing::info!("open"),
            Err(error) => tracing::info!(%error, "not opened"),
        }
        waited.of(self.path())
    }

    /// For messages: what missing nodes have open and this one has not. A path may be misspelt, here or there.
    fn open_instead(&self, missing: &[NodeId]) -> String {
        const SHOWN_MAX: usize = 3;
        let openings = self.node.shared().service.openings.lock();
        let of_node = |node: &NodeId| {
            let mut there = openings.open_there(*node);
            let shown: Vec<String> =
                there.by_ref().take(SHOWN_MAX).map(|it| format!("`{}` ({})", it.path, it.kind)).collect();
            let more = match there.count() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            (!shown.is_empty())
                .then(|| format!("; {node} has opened {}{more}, and this node has not", shown.join(", ")))
        };
        missing.iter().filter_map(of_node).collect()
    }
}
