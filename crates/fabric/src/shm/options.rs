//! The options of a node on shared memory.

use super::limits::LAYOUT;
use crate::sys::pages::HugePages;

/// How a node joins a session on shared memory.
///
/// ```
/// use farfield_fabric::{HugePages, shm::ShmOptions};
/// // The second of three nodes, in little memory.
/// let own = ShmOptions { group_bytes_max: 1 << 30, huge_pages: HugePages::Never, ..ShmOptions::new("sensors", 1, 3) };
/// ```
#[derive(Clone, Debug)]
pub struct ShmOptions {
    /// The session's name: nodes with the same name find each other.
    pub session: String,
    /// This node's place. If a node that was there is dead or has left, this one is its next life, and has another
    /// number.
    pub place: u16,
    /// How many nodes the session has at a time.
    pub places: usize,
    /// The most memory of one group, in bytes. Address space for it is reserved, memory is taken as it is needed.
    pub group_bytes_max: usize,
    /// Which pages its memory is made of.
    pub huge_pages: HugePages,
    /// The layout to announce; another one than [`LAYOUT`] is for tests of the refusal.
    pub layout: String,
    /// Seed of random choices; random if none is given.
    pub seed: Option<u64>,
}

impl ShmOptions {
    /// The node at `place` of `places` in a session.
    ///
    /// ```
    /// # use farfield_fabric::shm::ShmOptions;
    /// let options = ShmOptions::new("sensors", 0, 3);
    /// assert_eq!((options.place, options.places), (0, 3));
    /// ```
    pub fn new(session: impl Into<String>, place: u16, places: usize) -> ShmOptions {
        ShmOptions {
            session: session.into(),
            place,
            places,
            group_bytes_max: 64 << 30,
            huge_pages: HugePages::default(),
            layout: LAYOUT.into(),
            seed: None,
        }
    }
}
