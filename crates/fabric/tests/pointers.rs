//! Pointers as numbers: network memory may contain any bits, and the arithmetic must handle all of them.

use farfield_fabric::{GroupKey, NodeId, RemotePtr};
use proptest::prelude::*;

/// Largest offset that a pointer can name.
const OFFSET_MAX: u64 = (1 << 44) - 1;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Parts within their limits survive packing. Excess bits are cut off and change no other part.
    #[test]
    fn parts_survive_packing(node: u16, key: u8, offset: u64) {
        let ptr = RemotePtr::<u64>::new(NodeId(node), GroupKey(key), offset);
        prop_assert_eq!(ptr.node(), NodeId(node % 4096));
        prop_assert_eq!(ptr.key(), GroupKey(key));
        prop_assert_eq!(ptr.offset(), offset & OFFSET_MAX);
    }

    /// Every word is the packed form of exactly one pointer.
    #[test]
    fn packing_is_one_to_one(packed: u64) {
        let ptr = RemotePtr::<u32>::from_packed(packed);
        prop_assert_eq!(ptr.packed(), packed);
        prop_assert_eq!(RemotePtr::new(ptr.node(), ptr.key(), ptr.offset()), ptr);
        prop_assert_eq!(ptr.cast::<[u8; 3]>().packed(), packed);
    }

    /// Arithmetic stays within node and group for all operands.
    #[test]
    fn arithmetic_stays_in_the_group(packed: u64, bytes: u64, index: usize) {
        let ptr = RemotePtr::<[u64; 3]>::from_packed(packed);
        let further = ptr.byte_add(bytes);
        prop_assert_eq!((further.node(), further.key()), (ptr.node(), ptr.key()));
        prop_assert_eq!(further.offset(), ptr.offset().wrapping_add(bytes) & OFFSET_MAX);
        prop_assert_eq!(ptr.at(index), ptr.byte_add((index as u64).wrapping_mul(24)));
    }
}

/// The drawing in the documentation.
#[test]
fn the_packed_form_is_the_documented_one() {
    let ptr = RemotePtr::<u64>::new(NodeId(0xabc), GroupKey(0xde), 0x123_4567_89ab);
    assert_eq!(ptr.packed(), 0xabcd_e123_4567_89ab);
    assert_eq!(format!("{ptr:?}"), "node 2748/222+0x123456789ab");
    assert_eq!(NodeId::COUNT_MAX, 4096);
    assert_eq!(GroupKey::COUNT_MAX, 256);
}
