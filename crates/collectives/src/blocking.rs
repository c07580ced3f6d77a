//! The blocking forms of the calls, for programs that use no `async`.

use farfield_core::Result;
use farfield_fabric::{Endpoint, NodeId, Plain};

use crate::Collectives;

/// `NAME_blocking = NAME(arguments)`.
macro_rules! blocking {
    ($($(#[$example:meta])+ $blocking:ident = $call:ident($($argument:ident: $kind:ty),+);)+) => {
        impl Collectives {$(
            #[doc = concat!(
                " [`", stringify!($call), "`](Self::", stringify!($call), "), which it waits for on this thread."
            )]
            #[doc = ""]
            #[doc = " ```"]
            #[doc = " # use farfield::{Collectives, CollectivesOptions};"]
            #[doc = concat!(" # let node = farfield::Node::builder().session(\"doc-", stringify!($blocking), "\").start()?;")]
            #[doc = " # let (ep, me) = (node.endpoint()?, node.id());"]
            #[doc = " # let mut all = Collectives::open(&node, \"all\", CollectivesOptions::default())?;"]
            $(#[$example])+
            #[doc = " # Ok::<(), farfield::Error>(())"]
            #[doc = " ```"]
            #[doc = ""]
            #[doc = " # Errors"]
            #[doc = concat!(" As `", stringify!($call), "`.")]
            pub fn $blocking<T: Plain>(&mut self, endpoint: &Endpoint $(, $argument: $kind)+) -> Result<()> {
                endpoint.block_on(self.$call(endpoint $(, $argument)+))
            }
        )+}
    };
}

blocking! {
    /// let mut data = [1, 2];
    /// all.broadcast_blocking(&ep, me, &mut data)?;
    broadcast_blocking = broadcast(root: NodeId, data: &mut [T]);
    /// let mut sums = [1u64, 2];
    /// all.reduce_blocking(&ep, me, &mut sums, u64::wrapping_add)?;
    reduce_blocking = reduce(root: NodeId, data: &mut [T], op: impl FnMut(T, T) -> T);
    /// let mut sums = [1u64, 2];
    /// all.all_reduce_blocking(&ep, &mut sums, u64::wrapping_add)?;
    all_reduce_blocking = all_reduce(data: &mut [T], op: impl FnMut(T, T) -> T);
    /// let mut gathered = [0; 2];
    /// all.gather_blocking(&ep, me, &[1, 2], &mut gathered)?;
    /// assert_eq!(gathered, [1, 2]); // this node is alone
    gather_blocking = gather(root: NodeId, data: &[T], into: &mut [T]);
    /// let mut gathered = [0; 2];
    /// all.all_gather_blocking(&ep, &[1, 2], &mut gathered)?;
    all_gather_blocking = all_gather(data: &[T], into: &mut [T]);
    /// let mut parts = [0];
    /// all.all_to_all_blocking(&ep, &[1], &mut parts)?;
    all_to_all_blocking = all_to_all(data: &[T], into: &mut [T]);
}
