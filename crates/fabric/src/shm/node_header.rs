//! A node's card: the small shared file through which its peers see whether it lives, whether it sleeps, which rights
//! they have, and which of its lanes are in the middle of a write.
//!
//! ```text
//! offset      bytes      what
//!      0         64      header (see `sys::session`): magic, version, pid, length, boot id
//!     64         64      life (see `sys::liveness`); at this place in all versions, for sweeping
//!    128         64      left: 1 once the node has left in good order
//!    192         64      bell of the waiters:        sleepers, ring
//!    256         64      bell of the service thread: sleepers, ring
//!    320         64      bell of all other memory:   sleepers, ring
//!    384         64      lanes that share the cores, all lanes; incarnation; process; fences asked for, and done
//!    448     256·8       bytes of each group's memory
//!   2496   256·64        a mark for each lane: odd while it is in the middle of a write
//!  18880  4095·256       rights: [peer][group], 1 if the peer's right to the group was taken
//! ```
//!
//! Rights have a place for every number of a node. Their pages are taken when a peer of that number arrives: a read of
//! a page that is not there takes one, and on a full disk would be a signal.

use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use crate::ptr::NUMBERS_MAX;
use crate::sys::card_file::{CardFile, CardMapping};
use crate::sys::liveness::{LifeCell, is_alive};
use crate::{GroupKey, NodeId};

/// Most lanes (threads) of one node.
pub(crate) const LANES_MAX: usize = 256;

/// Bytes that the rendezvous layer keeps at the start of the card.
const HEADER_BYTES: usize = crate::sys::card_file::CARD_HEADER_BYTES;

/// The contents of the card behind its header.
#[repr(C, align(64))]
pub(crate) struct NodeHeader {
    pub(crate) life: LifeCell,
    /// 1 once the node has left in good order.
    pub(crate) left: AtomicU32,
    pub(crate) waiters: DoorBell,
    pub(crate) service: DoorBell,
    /// Of memory in which writes wake no thread of this node. Threads of all nodes that read it by operations sleep on
    /// it.
    pub(crate) others: DoorBell,
    /// Lanes open now, less those in the background: a hint of how many threads share the cores.
    pub(crate) lanes: AtomicU32,
    /// All lanes that are open now.
    pub(crate) open_lanes: AtomicU32,
    pub(crate) incarnation: AtomicU64,
    /// The process of the node: see `fences`, as for the next two.
    pub(crate) process: AtomicU64,
    /// How many fences of this process's threads others have asked for,
    pub(crate) fences_asked: AtomicU64,
    /// and up to which request they are done.
    pub(crate) fences_done: AtomicU64,
    pub(crate) group_bytes: GroupBytes,
    pub(crate) marks: [Mark; LANES_MAX],
    // `rights` follow: see `NodeHeader::rights_of`.
}

// The drawing above. Fields begin cache lines through the alignment of their neighbours; none may ask for more than the
// header's 64 bytes.
const _: () = {
    use core::mem::offset_of;
    assert!(align_of::<NodeHeader>() == HEADER_BYTES);
    assert!(HEADER_BYTES + offset_of!(NodeHeader, left) == 128);
    assert!(HEADER_BYTES + offset_of!(NodeHeader, waiters) == 192);
    assert!(HEADER_BYTES + offset_of!(NodeHeader, lanes) == 384);
    assert!(HEADER_BYTES + offset_of!(NodeHeader, group_bytes) == 448);
    assert!(HEADER_BYTES + offset_of!(NodeHeader, marks) == 2496);
    assert!(HEADER_BYTES + size_of::<NodeHeader>() == 18880);
};

/// A right that was taken.
pub(crate) const TAKEN: u8 = 1;

/// How many bytes of each group's memory exist by now.
#[repr(C, align(64))]
pub(crate) struct GroupBytes(pub(crate) [AtomicU64; GroupKey::COUNT_MAX]);

/// Odd while the lane is between its check of rights and the end of its write.
#[repr(C, align(64))]
pub(crate) struct Mark(pub(crate) AtomicU64);

/// The sleeping threads, and the futex word they sleep on.
#[repr(C, align(64))]
pub(crate) struct DoorBell {
    /// The number of this node's sleepers; and [`FAR`], if threads that wait by operations may sleep.
    pub(crate) sleepers: AtomicU64,
    pub(crate) ring: AtomicU32,
}

/// A thread that waits by operations may sleep, of this node or another. It is no number: such a thread may die in its
/// sleep, and then nothing would count it down. The next write rings for it, and clears this.
pub(crate) const FAR: u64 = 1 << 32;

/// The bell of a window that is not attached.
pub(crate) static SILENT: CachePadded<DoorBell> =
    CachePadded::new(DoorBell { sleepers: AtomicU64::new(0), ring: AtomicU32::new(0) });

impl NodeHeader {
    /// Whether the node of a card lives. Works for cards of any version.
    pub(crate) fn is_alive(mapping: &CardMapping) -> bool {
        if mapping.len() < HEADER_BYTES + size_of::<LifeCell>() {
            return false;
        }
        // SAFETY: in bounds as just checked, aligned since mappings begin on pages and the header has 64 bytes; all
        // fields are atomics or unused; the mapping outlives the reference.
        let life = unsafe { &*mapping.base().wrapping_add(HEADER_BYTES).cast::<LifeCell>() };
        is_alive(life.word().load(Ordering::Acquire))
    }

    /// Whether the node has died: its process ends, or has ended.
    pub(crate) fn is_dead(&self) -> bool {
        !is_alive(self.life.word().load(Ordering::Acquire)) && self.left.load(Ordering::Acquire) == 0
    }

    /// The size of a card file: its length, and how much of it is there from the start.
    pub(crate) fn file() -> CardFile {
        CardFile { bytes: NodeHeader::file_bytes(), there: NodeHeader::rights_of(NodeId(0)).start }
    }

    /// The length of a card file.
    pub(crate) fn file_bytes() -> usize {
        NodeHeader::rights_of(NodeId(NUMBERS_MAX as u16)).start
    }

    /// The place of the rights of a peer in the file.
    pub(crate) fn rights_of(peer: NodeId) -> Range<usize> {
        let start = HEADER_BYTES + size_of::<NodeHeader>() + peer.index() * GroupKey::COUNT_MAX;
        start..start + GroupKey::COUNT_MAX
    }

    /// The card in a mapped card file.
    ///
    /// # Panics
    /// If the file is shorter than a card; the rendezvous layer has checked its length.
    pub(crate) fn of(mapping: &CardMapping) -> &NodeHeader {
        assert!(mapping.len() >= HEADER_BYTES + size_of::<NodeHeader>(), "the card file has the length of a card");
        let at = mapping.base().wrapping_add(HEADER_BYTES).cast::<NodeHeader>();
        assert!(at.is_aligned());
        // SAFETY: in bounds and aligned by the assertions; the file was zeroed when it was made, every field is an
        // atomic for which any bytes are valid, and the mapping outlives the reference.
        unsafe { &*at }
    }

    /// The right of `peer` to a group: [`TAKEN`], or it may access it.
    pub(crate) fn right(mapping: &CardMapping, group: GroupKey, peer: NodeId) -> &AtomicU8 {
        let offset = NodeHeader::rights_of(peer).start + usize::from(group.0);
        assert!(peer.index() < NUMBERS_MAX && offset < mapping.len(), "a right of a member");
        // SAFETY: in bounds by the assertion; a byte-sized atomic needs no alignment; the mapping outlives the borrow.
        unsafe { &*mapping.base().wrapping_add(offset).cast::<AtomicU8>() }
    }
}
