//! The options of a replicated object.

use farfield_core::toolkit::at_least_one;
use farfield_core::{Error, ErrorKind, Result};

use crate::feed::framed_bytes;

/// Sizes of a [`Replicated`](crate::Replicated) object, and its order. They are the same on all nodes.
///
/// ```
/// use farfield_hamband::ReplicatedOptions;
/// let options = ReplicatedOptions { call_bytes_max: 1000, ..ReplicatedOptions::default() };
/// assert!(options.summary_bytes_max < options.feed_bytes);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplicatedOptions {
    /// The longest call, encoded. Default: 128 bytes.
    pub call_bytes_max: usize,
    /// The longest refusal of a conflicting call, encoded. Default: 128 bytes.
    pub refusal_bytes_max: usize,
    /// The longest summary of calls, encoded. A longer one is sent as a call, and another one begins. Default: 256
    /// bytes.
    pub summary_bytes_max: usize,
    /// Room for the irreducible conflict-free calls of a node that some node has not applied yet, in bytes. Default: 64
    /// KiB.
    pub feed_bytes: usize,
    /// Whether all calls are conflicting, whatever the type says of its methods: they go through one log, in one order.
    /// That is state machine replication: a baseline, and a way to replicate a type of which the relations are not
    /// known. Default: no.
    ///
    /// ```
    /// use farfield_hamband::types::{Counter, CounterMethod, CounterUpdate};
    /// use farfield_hamband::{Replicated, ReplicatedOptions};
    /// let node = farfield::Node::builder().start()?;
    /// let ep = node.endpoint()?;
    /// let options = ReplicatedOptions { serialised: true, ..ReplicatedOptions::default() };
    /// let visits = Replicated::open(&node, "visits", Counter::default(), options)?;
    /// ep.block_on(visits.writer()?.update(&ep, &CounterUpdate::Add(5)))?.expect("an addition is always permissible");
    /// assert_eq!(visits.leader_of(CounterMethod::Add), Some(node.id())); // it was ordered
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub serialised: bool,
}

impl Default for ReplicatedOptions {
    fn default() -> ReplicatedOptions {
        ReplicatedOptions {
            call_bytes_max: 128,
            refusal_bytes_max: 128,
            summary_bytes_max: 256,
            feed_bytes: 1 << 16,
            serialised: false,
        }
    }
}

/// The rest of an encoded message, beside its call and the dependencies of that.
pub(crate) const MESSAGE_OVERHEAD: usize = 32;

impl ReplicatedOptions {
    /// Checks the options. `beside` is the most that a message has beside its call.
    pub(crate) fn check(&self, beside: usize) -> Result<()> {
        at_least_one(&[("call_bytes_max", self.call_bytes_max)])?;
        let refuse = |why: String| Err(Error::from(ErrorKind::Config { why }));
        if self.summary_bytes_max < self.call_bytes_max {
            return refuse(
                "`summary_bytes_max` has to be at least `call_bytes_max`: a summary of one call is that call".into(),
            );
        }
        if self.summary_bytes_max.max(self.refusal_bytes_max) > u32::MAX as usize / 2 {
            return refuse("`summary_bytes_max` and `refusal_bytes_max` have to be less than 2 GiB".into());
        }
        let needed = 4 * framed_bytes(self.summary_bytes_max.saturating_add(beside));
        if self.feed_bytes < needed || !self.feed_bytes.is_multiple_of(64) {
            return refuse(format!(
                "`feed_bytes` has to be a multiple of 64, and at least {} for four messages of `summary_bytes_max`",
                needed.next_multiple_of(64)
            ));
        }
        Ok(())
    }
}
