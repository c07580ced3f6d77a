use super::*;
use crate::ptr::NodeId;

#[test]
fn slots_follow_each_other_and_double() {
    let mut next = 0;
    for slot in 0..SLOTS {
        let (first, bytes) = (slot_first(slot), slot_bytes(slot));
        assert_eq!(first, next, "slot {slot}");
        assert_eq!((slot_of(first), slot_of(first + bytes - 1)), (slot, slot));
        next = first + bytes;
    }
    assert_eq!(next, 1 << 44, "all offsets of a pointer");
}

#[test]
fn places_are_found_in_chunks_and_nowhere_else() {
    let memory = PeerMemory::new();
    let (key, mib) = (GroupKey::DATA, 1u64 << 20);
    let at = |offset| RemotePtr::<u8>::new(NodeId(1), key, offset);
    assert_eq!(memory.find(at(0), 8), Err(Code::BadKey));
    assert!(memory.add(key, ChunkInfo { first: 0, bytes: 2 * mib, address: 1 << 32, rkey: 5 }));
    assert!(memory.add(key, ChunkInfo { first: 8 * mib, bytes: mib, address: 1 << 33, rkey: 6 }));
    assert_eq!(memory.find(at(64), 8), Ok(((1 << 32) + 64, 5)));
    assert_eq!(memory.find(at(2 * mib - 8), 8), Ok(((1 << 32) + 2 * mib - 8, 5)));
    assert_eq!(memory.find(at(9 * mib - 16), 16), Ok(((1 << 33) + mib - 16, 6)));
    for (offset, len) in [(2 * mib - 8, 16), (2 * mib, 0), (9 * mib - 8, 16), (10 * mib, 8), ((1 << 44) - 8, 8)] {
        assert_eq!(memory.find(at(offset), len).is_err(), (offset, len) != (2 * mib, 0), "{offset} {len}");
    }
    for (first, bytes) in [(mib, mib), (4 * mib, 5 * mib), (0, 0), (1 << 60, 1)] {
        assert!(!memory.add(key, ChunkInfo { first, bytes, address: 0, rkey: 0 }), "{first} {bytes}");
    }
}
