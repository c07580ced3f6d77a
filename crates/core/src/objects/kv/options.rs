//! The size and shape of a store.

/// The home of the value of a new key.
///
/// ```
/// use farfield::{KvOptions, Placement};
/// assert_eq!(KvOptions::default().placement, Placement::Inserter);
/// let spread = KvOptions { placement: Placement::Hash, ..KvOptions::default() }; // evenly, whoever inserts
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Placement {
    /// On the node that inserts it.
    #[default]
    Inserter,
    /// On the node that the key's hash selects.
    Hash,
}

/// The size and shape of a store. All nodes must agree.
///
/// ```
/// use farfield::{ByteString, KvOptions, KvStore, Placement};
/// # fn main() -> farfield::Result<()> {
/// let node = farfield::Node::builder().session("doc-kv-options").start()?;
/// let placement = Placement::Hash;
/// let options = KvOptions { slots_per_node: 1000, value_bytes_max: 200, placement, ..KvOptions::default() };
/// let notes = KvStore::<u64, ByteString>::open(&node, "notes", options)?;
/// # drop(notes); Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct KvOptions {
    /// Slots for values on each node.
    pub slots_per_node: usize,
    /// The longest key, in bytes, for keys that are byte strings.
    pub key_bytes_max: usize,
    /// The longest value, in bytes, for values that are byte strings.
    pub value_bytes_max: usize,
    /// The number of locks; a key's hash selects its lock.
    pub locks: usize,
    /// The home of new values.
    pub placement: Placement,
    /// Bytes of each node's tracker.
    pub tracker_bytes: usize,
}

impl Default for KvOptions {
    fn default() -> KvOptions {
        KvOptions {
            slots_per_node: 1 << 16,
            key_bytes_max: 64,
            value_bytes_max: 64,
            locks: 4096,
            placement: Placement::default(),
            tracker_bytes: 1 << 18,
        }
    }
}
