//! Sessions within one process, for tests and examples.

use farfield_fabric::check_nodes;

use super::{Builder, Node, config};
use crate::error::Result;

/// Starts several nodes in this process, for tests and examples.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// let nodes = farfield::local_session(3)?;
/// assert_eq!(nodes[2].id().0, 2);
/// # Ok(()) }
/// ```
///
/// # Errors
/// Any error of [`Builder::start`].
pub fn local_session(nodes: usize) -> Result<Vec<Node>> {
    local_session_with(nodes, |builder| builder)
}

/// Like [`local_session`], with a function that configures each node's builder.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// let second = std::time::Duration::from_secs(1);
/// let nodes = farfield::local_session_with(2, |builder| builder.timeout(second).seed(7))?;
/// assert_eq!(nodes[1].timeout(), second);
/// # Ok(()) }
/// ```
///
/// # Errors
/// Any error of [`Builder::start`].
pub fn local_session_with(nodes: usize, configure: impl Fn(Builder) -> Builder) -> Result<Vec<Node>> {
    let session = config::unique_session("local");
    check_nodes(nodes)?;
    let count = nodes as u16;
    let start = |node| configure(Node::builder().session(&session).node(node).nodes(count)).start();
    let nodes: Vec<Node> = (0..count).map(start).collect::<Result<_>>()?;
    for node in &nodes {
        node.wait_for_all(node.timeout())?;
    }
    Ok(nodes)
}

/// Runs `body` for each of several nodes, each on its own thread, and returns the results. Use it for calls that all
/// nodes must make at once, such as opening an object. See [`local_session`].
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// # let nodes = farfield::local_session(2)?;
/// let barriers = farfield::on_each(&nodes, |node| farfield::Barrier::open(node, "start", 1))?;
/// assert_eq!(barriers.len(), 2);
/// # Ok(()) }
/// ```
///
/// # Errors
/// The first error, once all threads have ended.
///
/// # Panics
/// If a body panics.
#[allow(clippy::disallowed_methods, reason = "scoped threads for tests and examples; never used by an object")]
pub fn on_each<T: Send>(nodes: &[Node], body: impl Fn(&Node) -> Result<T> + Sync) -> Result<Vec<T>> {
    let body = &body;
    std::thread::scope(|scope| {
        let threads: Vec<_> = nodes.iter().map(|node| scope.spawn(move || body(node))).collect();
        let joined =
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        joined.collect::<Vec<_>>().into_iter().collect()
    })
}
