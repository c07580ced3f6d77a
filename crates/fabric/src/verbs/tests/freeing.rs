//! A lane and memory that a peer gives back: before a request is posted, while it waits, and once it is with the
//! device.

use super::*;
use crate::hosts::layout::GenerationInfo;

impl Rig {
    /// The peer gives all memory of the region back, and the lane's node has heard of it.
    fn give_back(&mut self) {
        let info = GenerationInfo {
            address_bits: 36,
            first: self.region.remote::<u8>(0).offset(),
            bytes: self.region.bytes() as u64,
            generation: 1,
        };
        assert!(self.memory.set_generation(GroupKey::DATA, info));
        self.switch.warn();
    }

    fn posted(&self) -> usize {
        self.stub.state().posted.len()
    }
}

#[test]
fn late_operations_are_not_posted() {
    for mut rig in Rig::both() {
        let first = rig.word(Verb::Get, 0, [0; 2]).expect("the way is open now");
        rig.stub.complete(1);
        assert_eq!(rig.result(first), Some(Ok(0)));
        rig.give_back();
        for verb in [Verb::Put, Verb::Get, Verb::Cas, Verb::Faa] {
            assert!(rig.word(verb, 0, [0; 2]).is_none(), "the lane looks, and finds no way");
            let (late, _) = request(verb, rig.at(100), &[0; 8], [0; 2]);
            let sequence = rig.lane.post(late);
            assert_eq!(rig.status(sequence), Status::Failed(Code::Freed));
        }
        assert_eq!(rig.posted(), 0);
        // The memory in its place is reached, on the short way too, and so is the memory beside it.
        let again = rig.at(0).byte_add(1 << 36);
        let beside = rig.at(rig.region.bytes() / 8);
        for place in [again, beside, again.byte_add(64)] {
            for _ in 0..2 {
                let origin = WordOrigin { remote: place.cast(), flushes: 0 };
                let ticket = rig.lane.post_word(Verb::Faa, origin, [1, 0]).expect("there is a way");
                rig.stub.complete(1);
                assert!(rig.result(ticket).is_some_and(|result| result.is_ok()));
            }
        }
        assert_eq!((rig.region.word(0).load(), rig.region.word(64).load()), (2, 2));
        // The memory after it was never given out.
        let (wrong, _) = request(Verb::Get, again.byte_add(1 << 36), &[0; 8], [0; 2]);
        let sequence = rig.lane.post(wrong);
        assert_eq!(rig.status(sequence), Status::Failed(Code::OutOfBounds));
    }
}

#[test]
fn waiting_requests_are_checked_again_when_posted() {
    for mut rig in Rig::both() {
        let beside = rig.at(rig.region.bytes() / 8);
        rig.lane.hold(PEER);
        let late = [rig.put(0, 7), rig.put(1, 7)];
        let (good, _) = request(Verb::Put, beside, &7_u64.to_ne_bytes(), [0; 2]);
        let good = rig.lane.post(good);
        rig.give_back();
        rig.lane.doorbell(PEER);
        assert_eq!(rig.statuses(&late), [Status::Failed(Code::Freed); 2]);
        assert_eq!((rig.status(good), rig.posted()), (Status::Pending, 1));
        rig.stub.complete(1);
        assert_eq!((rig.status(good), rig.region.word(0).load()), (Status::Done, 0));
    }
}

#[test]
fn operations_under_way_are_counted_until_they_have_ended() {
    for mut rig in Rig::both() {
        let port = rig.lane.port();
        assert_eq!(port.under_way(), None);
        let put = rig.put(0, 5);
        let seen = port.under_way().expect("a put is under way");
        let word = rig.word(Verb::Get, 0, [0; 2]).unwrap();
        rig.stub.complete(1);
        assert!(!port.has_ended(seen), "the lane was not polled");
        assert_eq!(rig.status(put), Status::Done);
        assert!(port.has_ended(seen));
        let seen = port.under_way().expect("a get is under way");
        rig.stub.complete(1);
        assert_eq!(rig.result(word), Some(Ok(5)));
        assert!(port.has_ended(seen) && port.under_way().is_none());
        // Refused by the device, or by the lane, or ended with the queue pair.
        rig.stub.state().refusals.push_back((0, libc::ENOMEM));
        assert!(rig.word(Verb::Get, 0, [0; 2]).is_none());
        assert_eq!(port.under_way(), None);
        rig.put(0, 6);
        let word = rig.word(Verb::Get, 0, [0; 2]).unwrap();
        rig.switch.end(Code::Revoked);
        rig.stub.flush();
        assert_eq!(rig.result(word), Some(Err(Code::Revoked)));
        assert!(rig.word(Verb::Get, 0, [0; 2]).is_none());
        assert_eq!(port.under_way(), None);
    }
}

#[test]
fn memory_is_given_out_again_with_its_next_generation_and_zeroed() {
    let stub = Stub::new(true, |_, _| ());
    let group = GroupMemory::create(&stub.device, GroupKey::DATA, 4 << 20).unwrap();
    let region = group.alloc(PEER, 1 << 20).unwrap();
    let memory = PeerMemory::new();
    group.chunks().into_iter().for_each(|chunk| assert!(memory.add(GroupKey::DATA, chunk)));
    let at = region.remote::<u8>(0);
    region.word(8).store(7);
    let allocation = Arc::clone(region.keep()).downcast::<crate::space::Allocation>().unwrap();
    assert!(group.alloc_again(PEER, 64).is_none());
    let info = group.give_back(&allocation);
    assert!(memory.set_generation(GroupKey::DATA, info) && group.generations() == [info]);
    assert_eq!(memory.find(at, 8), Err(Code::Freed));
    assert!(group.alloc_again(PEER, 64).is_none(), "it may be in use");
    group.give_out_again(info);
    let (half, news) = group.alloc_again(PEER, 1 << 19).unwrap();
    assert_eq!((half.remote::<u8>(0), news), (at.byte_add(1 << 36), None));
    assert_eq!((half.word(8).load(), memory.find(half.remote(8), 8).is_ok()), (0, true));
    // Half of it has another generation than the other: the peers are told.
    let allocation = Arc::clone(half.keep()).downcast::<crate::space::Allocation>().unwrap();
    let info = group.give_back(&allocation);
    group.give_out_again(info);
    assert!(memory.set_generation(GroupKey::DATA, info));
    let (whole, news) = group.alloc_again(PEER, 1 << 20).unwrap();
    let news = news.expect("some of it had generation 1");
    assert_eq!((whole.remote::<u8>(0), news.generation, news.bytes), (at.byte_add(2 << 36), 2, 1 << 20));
    let last = whole.remote::<u8>((1 << 20) - 8);
    assert_eq!(memory.find(last, 8), Err(Code::OutOfBounds), "it was not told yet");
    assert!(memory.set_generation(GroupKey::DATA, news) && memory.find(last, 8).is_ok());
    assert_eq!(group.generations(), [news]);
    // What there is not is refused.
    for wrong in [
        GenerationInfo { first: 1 << 30, ..news },
        GenerationInfo { first: 8, ..news },
        GenerationInfo { bytes: 63, ..news },
        GenerationInfo { bytes: 4 << 20, ..news },
        GenerationInfo { address_bits: 45, ..news },
    ] {
        assert!(!memory.set_generation(GroupKey::DATA, wrong), "{wrong:?}");
    }
}
