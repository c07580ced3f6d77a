//! The options of a queue, and the addresses of its slots and cells.

use farfield_fabric::{NodeId, RemotePtr};

use super::Queue;
use super::state::State;
use crate::objects::codec::Value;

/// The location of a queue, and its size. All nodes must agree.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// # let nodes = farfield::local_session(2)?;
/// use farfield::{ByteString, Queue, QueueOptions};
/// let options = QueueOptions { value_bytes_max: 200, batch_max: 1, ..QueueOptions::new(nodes[0].id(), 64) };
/// let mail = farfield::on_each(&nodes, |node| Queue::<ByteString>::open(node, "mail", options.clone()))?;
/// assert_eq!(mail[1].capacity(), 64);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct QueueOptions {
    /// The home node.
    pub home: NodeId,
    /// Its capacity in calls: each enqueues a value, or a batch.
    pub capacity: usize,
    /// The most values of a batch, 63 or less. Each cell has room for so many.
    pub batch_max: usize,
    /// The longest value, in bytes, where values are byte strings.
    pub value_bytes_max: usize,
    /// How many enqueues of one node may be in progress at once: one more waits for one of them. Those that wait for
    /// room do not count.
    pub enqueues_per_node: usize,
}

impl QueueOptions {
    /// A queue on `home` with so many slots, for batches of up to 8 values.
    ///
    /// ```
    /// let options = farfield::QueueOptions::new(farfield::NodeId(2), 64);
    /// assert_eq!((options.home, options.batch_max), (farfield::NodeId(2), 8));
    /// ```
    pub fn new(home: NodeId, capacity: usize) -> QueueOptions {
        QueueOptions { home, capacity, batch_max: 8, value_bytes_max: 64, enqueues_per_node: 16 }
    }
}

impl<V: Value> Queue<V> {
    pub(super) fn slot(&self, position: u64) -> RemotePtr<u64> {
        self.slots.at((position % self.options.capacity as u64) as usize)
    }

    /// [`Queue::slot`] and [`Queue::lap`] by one division.
    #[inline(always)]
    pub(super) fn slot_and_lap(&self, position: u64) -> (RemotePtr<u64>, u32) {
        let capacity = self.options.capacity as u64;
        (self.slots.at((position % capacity) as usize), (position / capacity) as u32)
    }

    pub(super) fn lap(&self, position: u64) -> u32 {
        (position / self.options.capacity as u64) as u32
    }

    /// The address of the next value of a filled slot.
    pub(super) fn value(&self, state: State) -> RemotePtr<u64> {
        self.cell(state.cell()).at(state.next() as usize * self.value_words())
    }

    pub(super) fn cell(&self, cell: u64) -> RemotePtr<u64> {
        self.cells.at(cell as usize * self.options.batch_max * self.value_words())
    }

    pub(super) fn value_words(&self) -> usize {
        // A value without bytes has a word, too, so that all have a place.
        V::words(self.options.value_bytes_max).max(1)
    }

    /// The next position to fill when the slot of `position`, which is filled, is in a state.
    pub(super) fn after_filled(&self, position: u64, state: State) -> u64 {
        match state.count() {
            0 => self.after_taken(position, state),
            _ => self.of_lap(position, state.lap()) + 1,
        }
    }

    /// The next position to take when the slot of `position`, which is taken, is in a state.
    pub(super) fn after_taken(&self, position: u64, state: State) -> u64 {
        // Its slot awaits, or holds, a later position: the earlier position of the slot is taken.
        self.of_lap(position, state.lap()) - self.options.capacity as u64 + 1
    }

    /// The position that uses the slot of `position` in a lap, which is not earlier.
    pub(super) fn of_lap(&self, position: u64, lap: u32) -> u64 {
        position + u64::from(lap.wrapping_sub(self.lap(position))) * self.options.capacity as u64
    }
}
