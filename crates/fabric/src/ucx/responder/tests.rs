//! A node and the messages of a lane, without UCX.

use core::sync::atomic::AtomicU64;

use super::*;
use crate::hosts::layout::ChunkInfo;
use crate::ptr::RemotePtr;

const ME: NodeId = NodeId(0);
const PEER: NodeId = NodeId(1);
const LANE: u64 = 5;
/// A group with rights of its own.
const FURTHER: GroupKey = GroupKey(7);
const MEMORY_WORDS: usize = PIECE_BYTES / 8;

/// A node with the same memory in two groups, and a lane that has a target for each: 1 and 2.
struct Rig {
    memory: Vec<AtomicU64>,
    served: Served,
    board: Board,
}

impl Rig {
    fn new() -> Rig {
        let memory: Vec<AtomicU64> = (0..MEMORY_WORDS).map(|_| AtomicU64::new(0)).collect();
        let peer_memory = PeerMemory::new();
        for key in [GroupKey::DATA, FURTHER] {
            let chunk = ChunkInfo { first: 0, bytes: PIECE_BYTES as u64, address: memory.as_ptr() as u64, rkey: 0 };
            assert!(peer_memory.add(key, chunk));
        }
        let served = Served { me: ME, memory: peer_memory, sleepers: Sleepers::new(true) };
        let mut rig = Rig { memory, served, board: Board::default() };
        rig.add(1, GroupKey::DATA.class());
        rig.add(2, FURTHER);
        rig
    }

    fn add(&mut self, token: u64, class: GroupKey) {
        let address = Address { worker: vec![1], id: LANE, token: 0 };
        self.board.add(&address, PEER, token, class);
    }

    fn send(&mut self, number: u64, words: &[u64]) {
        self.board.handle(Header { from: LANE, number }, bytes_of(words), &self.served);
    }

    fn word(&self) -> u64 {
        self.memory[0].load(Ordering::Relaxed)
    }

    /// The lane was refused for this reason: it holds nothing, and nothing of it is handled any more.
    fn is_refused(&mut self, why: &str) {
        assert!(matches!(&self.board.refused[..], [(PEER, breach)] if breach.contains(why)), "{why}");
        let Caller { arrived, ends, .. } = &self.board.lanes[&LANE];
        assert!(arrived.is_empty() && ends.replies.is_empty() && self.board.gone == [LANE]);
        let before = self.word();
        (0..9).for_each(|number| self.send(number, &put(1, GroupKey::DATA, before + 1)));
        assert_eq!((self.word(), self.board.refused.len()), (before, 1));
        assert!(self.board.take_replies(LANE, 0).is_none());
    }
}

fn message(target: u64, verb: Verb, key: GroupKey, len: usize) -> Vec<u64> {
    let (remote, mut message) = (RemotePtr::new(ME, key, 0), Vec::new());
    Request { target, verb, remote, len, operands: [0; 2], data: &[] }.encode(&mut message);
    message
}

/// A put of a word.
fn put(target: u64, key: GroupKey, value: u64) -> Vec<u64> {
    let mut message = message(target, Verb::Put, key, 8);
    message[3] = value;
    message
}

#[test]
fn a_lane_has_no_more_replies_than_its_window() {
    let get = message(1, Verb::Get, GroupKey::DATA, PIECE_BYTES);
    let mut rig = Rig::new();
    for round in 0..3 {
        rig.send(2 * round, &get.repeat(2));
        rig.send(2 * round + 1, &get);
        let (_, header, replies) = rig.board.take_replies(LANE, 9).expect("it is answered");
        assert!(header == Header { from: 9, number: round } && replies.len() == 3 * (2 + PIECE_BYTES / 8));
    }
    // In one message, or in several that come before the replies are sent.
    rig.send(6, &get.repeat(4));
    rig.is_refused("asks for more");
    let mut rig = Rig::new();
    (0..4).for_each(|number| rig.send(number, &get));
    rig.is_refused("asks for more");
    // Refusals are replies, too.
    let mut rig = Rig::new();
    let wrong = message(3, Verb::Put, GroupKey::DATA, 0).repeat(100_000);
    (0..3).for_each(|number| rig.send(number, &wrong));
    rig.is_refused("asks for more");
}

#[test]
fn a_lane_has_no_more_early_messages_than_its_window() {
    let long = message(1, Verb::Put, GroupKey::DATA, PIECE_BYTES);
    let mut rig = Rig::new();
    (1..=3).for_each(|number| rig.send(number, &long));
    rig.send(0, &put(1, GroupKey::DATA, 7));
    assert_eq!((rig.word(), rig.board.refused.len()), (0, 0), "the long ones are done behind the first");
    (5..=8).for_each(|number| rig.send(number, &long));
    rig.is_refused("early");
}

#[test]
fn messages_that_no_lane_sends_end_it() {
    for (words, why) in [
        (vec![0; WINDOW_BYTES / 8 + 1], "longer"),
        (vec![1], "no request"),
        ([put(1, GroupKey::DATA, 7), vec![0; 2]].concat(), "no request"),
    ] {
        let mut rig = Rig::new();
        rig.send(0, &words);
        rig.is_refused(why);
    }
    let mut rig = Rig::new();
    rig.board.handle(Header { from: LANE, number: 0 }, &[0; 7], &rig.served);
    rig.is_refused("no request");
    // A stranger's have no effect.
    let mut rig = Rig::new();
    rig.board.handle(Header { from: LANE + 1, number: 0 }, bytes_of(&put(1, GroupKey::DATA, 7)), &rig.served);
    assert_eq!((rig.word(), rig.board.answered.len(), rig.board.refused.len()), (0, 0, 0));
}

/// A target that has refused a request is of no use, and is not dropped yet: the lane is still known.
#[test]
fn a_lane_is_known_until_its_last_target_is_dropped() {
    let mut rig = Rig::new();
    rig.send(0, &message(1, Verb::Get, FURTHER, 8));
    let (_, _, replies) = rig.board.take_replies(LANE, 9).expect("it is refused");
    let outcome = Reply::take(&mut &replies[..]).map(|reply| reply.outcome);
    assert_eq!(outcome, Some(Outcome::Ended(Code::BadKey)));
    // The right to the other group is taken, and given again. The messages of the lane are counted on.
    assert!(!rig.board.remove(LANE, 2), "the lane has a target still");
    rig.send(1, &put(2, FURTHER, 7));
    assert_eq!(rig.word(), 0);
    rig.add(3, FURTHER);
    rig.send(2, &put(3, FURTHER, 8));
    assert_eq!(rig.word(), 8);
    assert!(!rig.board.remove(LANE, 3) && rig.board.gone.is_empty());
    assert!(rig.board.remove(LANE, 1) && rig.board.lanes.is_empty() && rig.board.gone == [LANE]);
    // As after an eviction.
    rig.send(3, &put(3, FURTHER, 9));
    assert_eq!(rig.word(), 8);
}

/// A thread that looks for messages before it sleeps does so while they come soon after each other, and not for long.
#[test]
fn it_looks_on_while_messages_come_soon() {
    let start = Instant::now();
    let at = |micros| start + Duration::from_micros(micros);
    let mut looks = Looks::default();
    // Beats: each comes long after the last.
    for beat in 0..3 {
        looks.found(at(5000 * beat));
        assert!(!looks.go_on(at(5000 * beat + 1)));
    }
    // It has slept, and was woken soon.
    looks.found(at(10_050));
    assert!(looks.go_on(at(10_060)) && looks.go_on(at(10_150)) && !looks.go_on(at(10_161)));
    // One of several parts of the same message tells nothing.
    looks.found(at(11_000));
    looks.found(at(11_001));
    assert!(!looks.go_on(at(11_002)));
}
