//! The count of round trips of operations that are posted together.

use core::cell::Cell;

use super::Endpoint;

/// Operations that are posted together and depend on none of each other, where none of them is a future: see
/// [`Endpoint::together`].
///
/// ```
/// # use farfield_fabric::{*, sim::*};
/// # let settings = Settings { steps_max: 10_000, ..Settings::new(2) };
/// # let outcome = sim::run(settings, Box::new(First), |handle| {
/// # let [node, peer] = [0, 1].map(|node| handle.join(NodeId(node)));
/// # node.serve(std::time::Duration::ZERO, &mut |_| ()); // it learns of its peer
/// let words = peer.alloc(GroupKey::DATA, 64).expect("memory"); // of another node
/// let ep = Endpoint::open(node, EndpointOptions::default()).expect("a lane");
/// let together: Together<'_> = ep.together();
/// for at in 0..8 {
///     together.next();
///     ep.faa(words.remote(at * 8), 1).wait().expect("the peer lives");
/// }
/// drop(together);
/// assert_eq!(ep.counts().round_trips, 1);
/// # });
/// # assert_eq!(outcome.failure, None);
/// ```
pub struct Together<'e> {
    endpoint: &'e Endpoint,
    start: u64,
    deepest: Cell<u64>,
}

impl Together<'_> {
    /// Another chain of operations begins.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(ep: &Endpoint, words: &[RemotePtr<u64>]) -> Result<()> {
    /// let together = ep.together();
    /// for word in words {
    ///     together.next();
    ///     let before = ep.faa(*word, 1).wait()?;
    ///     ep.put_value(word.at(1), before).wait()?; // a chain of two
    /// }
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn next(&self) {
        self.deepest.set(self.deepest.get().max(self.endpoint.depth.get()));
        self.endpoint.depth.set(self.start);
    }
}

impl Drop for Together<'_> {
    #[inline]
    fn drop(&mut self) {
        self.endpoint.depth.set(self.endpoint.depth.get().max(self.deepest.get()));
    }
}

impl Endpoint {
    /// Until the value is dropped, operations after each [`Together::next`] count as posted at the same time as the
    /// rest: the longest chain is the number of round trips. On a fabric that completes operations at once they are
    /// counted as one after the other otherwise.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(ep: &Endpoint, words: &[RemotePtr<u64>]) -> Result<()> {
    /// let before = ep.counts();
    /// let together = ep.together();
    /// for word in words {
    ///     together.next();
    ///     ep.faa(*word, 1).wait()?;
    /// }
    /// drop(together);
    /// assert_eq!((ep.counts() - before).round_trips, 1);
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn together(&self) -> Together<'_> {
        let start = self.depth.get();
        Together { endpoint: self, start, deepest: Cell::new(start) }
    }
}
