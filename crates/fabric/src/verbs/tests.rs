//! The lane on a device that tests made: every failure, and that nothing is lost.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use farfield_verbs_sys::*;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::fabric::{JoinOptions, VerbsFabric};
use super::lane::VerbsLane;
use super::options::VerbsOptions;
use super::queue::{QueuePair, QueuePairSwitch};
use super::store::BufferStore;
use super::stub::Stub;
use crate::error::Code;
use crate::fabric::{Fabric, PeerState, Region, Transport};
use crate::hosts::control::Secret;
use crate::hosts::layout::PeerMemory;
use crate::hosts::memory::GroupMemory;
use crate::lane::{Keep, Lane, Local, Status, Verb, WordOrigin, WordTicket, WorkRequest};
use crate::pool::Block;
use crate::ptr::{GroupKey, NodeId, RemotePtr};

mod freeing;
mod nodes;

pub(super) const PEER: NodeId = NodeId(3);

/// A request, and its block.
pub(super) fn request(
    verb: Verb,
    remote: RemotePtr<u64>,
    bytes: &[u8],
    operands: [u64; 2],
) -> (WorkRequest, Arc<Block>) {
    let block = Block::new(bytes.len());
    // SAFETY: the block is new and has room for the bytes.
    unsafe { block.as_ptr().copy_from(bytes.as_ptr(), bytes.len()) };
    let local = Local::block(&block);
    (WorkRequest { verb, remote: remote.cast(), len: bytes.len(), operands, local }, block)
}

/// A put or get between shared cells of this node and a peer.
pub(super) fn span_request(
    verb: Verb,
    remote: RemotePtr<u64>,
    region: &Region,
    offset: usize,
    len: usize,
) -> WorkRequest {
    let span = region.span(offset, len);
    let local = Local { ptr: span.as_ptr(), keep: Keep::Memory(span.keep()) };
    WorkRequest { verb, remote: remote.cast(), len, operands: [0; 2], local }
}

/// A lane on a stub, connected to a peer with its memory in this process.
struct Rig {
    stub: Stub,
    lane: VerbsLane,
    region: Region,
    memory: Arc<PeerMemory>,
    switch: QueuePairSwitch,
}

impl Drop for Rig {
    /// The lane waits for its pending operations; the device decides how they end.
    fn drop(&mut self) {
        for _ in 0..100 {
            self.stub.flush();
            self.lane.ring();
            self.lane.poll();
        }
    }
}

impl Rig {
    fn on(stub: Stub) -> Rig {
        let lane = VerbsLane::open(&BufferStore::new(&stub.device)).unwrap();
        let group = GroupMemory::create(&stub.device, GroupKey::DATA, 2 << 20).unwrap();
        let region = group.alloc(PEER, 1 << 20).unwrap();
        let memory = PeerMemory::new();
        assert!(group.chunks().into_iter().all(|chunk| memory.add(GroupKey::DATA, chunk)));
        let switch = Self::connect(&stub, &lane, PEER, &memory);
        stub.state().destroyed = 0;
        Rig { stub, lane, region, memory, switch }
    }

    /// Hands a new queue pair to the lane, by which it reaches the memory.
    fn connect(stub: &Stub, lane: &VerbsLane, peer: NodeId, memory: &Arc<PeerMemory>) -> QueuePairSwitch {
        let mut pair = lane.port().new_pair().unwrap();
        pair.connect(&QueuePair::target(&stub.device).unwrap().address()).unwrap();
        let switch = pair.switch();
        lane.port().add(peer, GroupKey::DATA, pair, Arc::clone(memory));
        switch
    }

    fn both() -> impl Iterator<Item = Rig> {
        [true, false].into_iter().map(|extended| Rig::on(Stub::new(extended, |_, _| ())))
    }

    fn at(&self, word: usize) -> RemotePtr<u64> {
        self.region.remote(8 * word)
    }

    fn put(&mut self, word: usize, value: u64) -> u64 {
        let (request, _) = request(Verb::Put, self.at(word), &value.to_ne_bytes(), [0; 2]);
        self.lane.post(request)
    }

    fn word(&mut self, verb: Verb, word: usize, operands: [u64; 2]) -> Option<WordTicket> {
        let origin = WordOrigin { remote: self.at(word).cast(), flushes: word as u64 };
        self.lane.post_word(verb, origin, operands)
    }

    fn result(&mut self, ticket: WordTicket) -> Option<Result<u64, Code>> {
        self.lane.poll_word(ticket).map(|(result, _)| result)
    }

    fn status(&mut self, sequence: u64) -> Status {
        self.lane.poll();
        self.lane.status(PEER, sequence)
    }

    fn statuses(&mut self, sequences: &[u64]) -> Vec<Status> {
        sequences.iter().map(|sequence| self.status(*sequence)).collect()
    }
}

#[test]
fn operations_have_their_documented_effects() {
    for mut rig in Rig::both() {
        let put = rig.put(0, 5);
        assert_eq!(rig.status(put), Status::Pending);
        rig.stub.complete(1);
        assert_eq!(rig.status(put), Status::Done);
        let word = rig.at(0);
        let run = |rig: &mut Rig, verb, operands| {
            let (request, block) = request(verb, word, &[0; 8], operands);
            let sequence = rig.lane.post(request);
            rig.stub.complete(1);
            assert_eq!(rig.status(sequence), Status::Done);
            block.read::<u64>()
        };
        assert_eq!(run(&mut rig, Verb::Get, [0; 2]), 5);
        assert_eq!(run(&mut rig, Verb::Faa, [3, 0]), 5);
        assert_eq!(run(&mut rig, Verb::Cas, [8, 9]), 8);
        assert_eq!(run(&mut rig, Verb::Cas, [8, 1]), 9);
        assert_eq!(rig.region.word(0).load(), 9);
    }
}

#[test]
fn words_go_the_short_way_and_end_in_order() {
    for mut rig in Rig::both() {
        let run = |rig: &mut Rig, verb, operands| {
            let ticket = rig.word(verb, 0, operands).expect("nothing is in the way");
            assert_eq!(rig.result(ticket), None);
            assert!(!rig.lane.is_word_complete(ticket));
            rig.stub.complete(1);
            rig.result(ticket).expect("it is complete").expect("it was done")
        };
        run(&mut rig, Verb::Put, [5, 0]);
        assert_eq!(run(&mut rig, Verb::Get, [0; 2]), 5);
        assert_eq!(run(&mut rig, Verb::Faa, [3, 0]), 5);
        assert_eq!(run(&mut rig, Verb::Cas, [8, 9]), 8);
        assert_eq!(run(&mut rig, Verb::Cas, [8, 1]), 9);
        // Behind a put by the long way, and several at a time: asked for in any order, and some not at all.
        let put = rig.put(0, 20);
        let tickets: Vec<_> = (0..4).map(|_| rig.word(Verb::Faa, 0, [1, 0]).unwrap()).collect();
        rig.stub.complete(4);
        assert_eq!(rig.result(tickets[2]), Some(Ok(22)));
        assert_eq!((rig.result(tickets[3]), rig.status(put)), (None, Status::Done));
        rig.lane.drop_word(tickets[0]);
        rig.lane.drop_word(tickets[3]);
        rig.stub.complete(1);
        assert!(rig.lane.is_word_complete(tickets[1]));
        assert_eq!((rig.result(tickets[1]), rig.region.word(0).load()), (Some(Ok(21)), 24));
        rig.lane.poll();
        assert_eq!(rig.lane.places_in_use(), 0);
    }
}

#[test]
fn unusual_operations_do_not_take_the_short_path() {
    for mut rig in Rig::both() {
        let can = |rig: &mut Rig| {
            let Some(ticket) = rig.word(Verb::Get, 0, [0; 2]) else { return false };
            rig.stub.complete(1);
            rig.result(ticket).is_some_and(|result| result.is_ok())
        };
        assert!(can(&mut rig));
        let words = rig.region.bytes() / 8;
        // Beyond the region there is the rest of its chunk, which is no other's.
        assert!(rig.word(Verb::Get, 2 * words, [0; 2]).is_none());
        let beyond = rig.word(Verb::Get, words, [0; 2]).unwrap();
        rig.stub.complete(1);
        assert_eq!(rig.result(beyond), Some(Ok(0)));
        let origin = |packed| WordOrigin { remote: RemotePtr::from_packed(packed), flushes: 0 };
        for packed in [rig.at(0).packed() + 4, rig.at(0).packed() + 7, 0, u64::MAX - 7] {
            assert!(rig.lane.post_word(Verb::Get, origin(packed), [0; 2]).is_none());
        }
        // Batches, fences, and what waits.
        rig.lane.hold(PEER);
        assert!(!can(&mut rig));
        rig.lane.doorbell(PEER);
        assert!(can(&mut rig));
        let (fence, _) = request(Verb::RemoteFence, rig.at(0), &[], [0; 2]);
        rig.lane.post(fence);
        assert!(!can(&mut rig));
        let get = rig.put(1, 1);
        rig.stub.complete(1);
        assert_eq!(rig.status(get), Status::Done);
        assert!(can(&mut rig));
        // A request that the device refuses was not posted.
        rig.stub.state().refusals.push_back((0, libc::ENOMEM));
        assert!(!can(&mut rig) && can(&mut rig));
        // As many as there are places, or room in the queue.
        let tickets: Vec<_> = std::iter::from_fn(|| rig.word(Verb::Get, 0, [0; 2])).collect();
        assert!(tickets.len() > 200 && rig.stub.state().posted.len() == tickets.len(), "{}", tickets.len());
        rig.stub.complete(tickets.len());
        assert!(tickets.iter().all(|ticket| rig.result(*ticket) == Some(Ok(0))));
        assert!(can(&mut rig));
        // The end of the queue pair ends them, and the next is refused.
        let ticket = rig.word(Verb::Get, 0, [0; 2]).unwrap();
        rig.switch.end(Code::Fenced);
        rig.stub.flush();
        assert_eq!(rig.result(ticket), Some(Err(Code::Fenced)));
        assert!(rig.word(Verb::Get, 0, [0; 2]).is_none());
        assert_eq!(rig.lane.places_in_use(), 0);
    }
}

#[test]
fn words_go_by_the_queue_pair_that_there_is() {
    for mut rig in Rig::both() {
        let first = rig.word(Verb::Get, 0, [0; 2]).unwrap();
        rig.stub.complete(1);
        assert_eq!(rig.result(first), Some(Ok(0)));
        // A right is revoked and permitted again, and the lane is not polled meanwhile.
        rig.switch.end(Code::Revoked);
        rig.switch = Rig::connect(&rig.stub, &rig.lane, PEER, &rig.memory);
        let again = rig.word(Verb::Get, 0, [0; 2]).expect("there is a way");
        rig.stub.complete(1);
        assert_eq!(rig.result(again), Some(Ok(0)));
        // A completion of a destroyed queue pair is not taken for that of another.
        let other = NodeId(PEER.0 + 1);
        Rig::connect(&rig.stub, &rig.lane, other, &rig.memory);
        let to_other = RemotePtr::<u8>::new(other, GroupKey::DATA, rig.at(0).offset());
        let under_way = rig.lane.post_word(Verb::Get, WordOrigin { remote: to_other, flushes: 0 }, [0; 2]).unwrap();
        let lost = rig.word(Verb::Get, 0, [0; 2]).unwrap();
        rig.stub.state().posted.swap(0, 1);
        rig.stub.complete(1);
        rig.switch.end(Code::Revoked);
        rig.switch = Rig::connect(&rig.stub, &rig.lane, PEER, &rig.memory);
        let (fence, _) = request(Verb::RemoteFence, rig.at(0), &[], [0; 2]);
        rig.lane.post(fence);
        assert_eq!(rig.result(under_way), None);
        rig.stub.complete(1);
        assert_eq!((rig.result(under_way), rig.result(lost)), (Some(Ok(0)), Some(Err(Code::Revoked))));
        assert_eq!(rig.lane.places_in_use(), 0);
    }
}

#[test]
fn words_fail_as_others_do() {
    for mut rig in Rig::both() {
        let tickets: Vec<_> = (0..3).map(|_| rig.word(Verb::Faa, 0, [1, 0]).unwrap()).collect();
        rig.stub.complete(1);
        rig.stub.fail(IBV_WC_REM_ACCESS_ERR);
        rig.stub.flush();
        let results: Vec<_> = tickets.iter().map(|ticket| rig.result(*ticket).unwrap()).collect();
        assert_eq!(results, [Ok(0), Err(Code::Revoked), Err(Code::Revoked)]);
        assert_eq!((rig.word(Verb::Faa, 0, [1, 0]), rig.lane.places_in_use()), (None, 0));
    }
    // Where nothing is flushed, or nothing is heard at all.
    for mut rig in Rig::both() {
        let tickets: Vec<_> = (0..2).map(|_| rig.word(Verb::Faa, 0, [1, 0]).unwrap()).collect();
        rig.stub.fail(IBV_WC_RETRY_EXC_ERR);
        let result = loop {
            if let Some(result) = rig.result(tickets[1]) {
                break result;
            }
        };
        assert_eq!((result, rig.result(tickets[0])), (Err(Code::Unreachable), Some(Err(Code::Unreachable))));
    }
    for mut rig in Rig::both() {
        let ticket = rig.word(Verb::Faa, 0, [1, 0]).unwrap();
        rig.stub.state().is_broken = true;
        assert_eq!(rig.result(ticket), Some(Err(Code::Device)));
        assert_eq!(rig.lane.places_in_use(), 0);
    }
}

#[test]
fn every_status_has_a_code() {
    for status in 1..=IBV_WC_TM_RNDV_INCOMPLETE + 5 {
        let expected = match status {
            IBV_WC_REM_ACCESS_ERR | IBV_WC_REM_INV_REQ_ERR | IBV_WC_REM_INV_RD_REQ_ERR => Code::Revoked,
            IBV_WC_RETRY_EXC_ERR | IBV_WC_RNR_RETRY_EXC_ERR | IBV_WC_RESP_TIMEOUT_ERR => Code::Unreachable,
            IBV_WC_REM_OP_ERR | IBV_WC_REM_ABORT_ERR | IBV_WC_WR_FLUSH_ERR => Code::Unreachable,
            _ => Code::Device,
        };
        for mut rig in Rig::both() {
            let before = rig.put(0, 1);
            let failed = rig.put(1, 1);
            let behind = rig.put(2, 1);
            rig.stub.complete(1);
            rig.stub.fail(status);
            assert_eq!(
                rig.statuses(&[before, failed, behind]),
                [Status::Done, Status::Failed(expected), Status::Pending,]
            );
            // Later operations are refused; pending ones end when the device reports it.
            let later = rig.put(3, 1);
            assert_eq!(rig.statuses(&[behind, later]), [Status::Pending, Status::Failed(expected)]);
            rig.stub.flush();
            assert_eq!(rig.status(behind), Status::Failed(expected));
            assert_eq!((rig.region.word(0).load(), rig.region.word(8).load()), (1, 0));
        }
    }
}

#[test]
fn an_ended_queue_pair_reports_the_first_reason() {
    for code in [Code::Unreachable, Code::Revoked, Code::Fenced] {
        for mut rig in Rig::both() {
            let put = rig.put(0, 1);
            rig.switch.end(code);
            rig.switch.end(Code::Unreachable);
            assert_eq!(rig.stub.state().modified.last().unwrap().0, IBV_QPS_ERR);
            let later = rig.put(0, 1);
            assert_eq!(rig.statuses(&[put, later]), [Status::Pending, Status::Failed(code)]);
            rig.stub.flush();
            assert_eq!(rig.status(put), Status::Failed(code));
        }
    }
}

#[test]
fn a_request_refused_while_posting_fails_alone() {
    let cases = [
        (libc::EINVAL, Verb::Put, Code::Device),
        (libc::EFAULT, Verb::Get, Code::Device),
        (libc::EIO, Verb::Cas, Code::Device),
        (libc::EOPNOTSUPP, Verb::Put, Code::Device),
        (libc::EOPNOTSUPP, Verb::Cas, Code::NoAtomics),
        (libc::ENOSYS, Verb::Faa, Code::NoAtomics),
    ];
    for (errno, verb, code) in cases {
        for mut rig in Rig::both() {
            rig.stub.state().refusals.push_back((0, errno));
            let (request, block) = request(verb, rig.at(0), &[0; 8], [0; 2]);
            let refused = rig.lane.post(request);
            assert_eq!((rig.status(refused), Arc::strong_count(&block)), (Status::Failed(code), 1));
            let next = rig.put(0, 7);
            rig.stub.complete(1);
            assert_eq!(rig.status(next), Status::Done);
        }
    }
}

#[test]
fn a_full_queue_is_tried_again_and_one_that_is_full_without_work_is_broken() {
    for mut rig in Rig::both() {
        let first = rig.put(0, 1);
        rig.stub.state().refusals.extend([(0, libc::ENOMEM), (0, libc::EAGAIN)]);
        let second = rig.put(0, 2);
        assert_eq!(rig.stub.state().posted.len(), 1);
        rig.stub.complete(1);
        assert_eq!(rig.statuses(&[first, second]), [Status::Done, Status::Pending]);
        rig.stub.complete(1);
        assert_eq!(rig.status(second), Status::Done);
        assert_eq!(rig.region.word(0).load(), 2);
        rig.stub.state().refusals.push_back((0, libc::ENOMEM));
        let third = rig.put(0, 3);
        assert_eq!(rig.status(third), Status::Failed(Code::Device));
    }
}

#[test]
fn more_than_the_queue_holds_waits_its_turn() {
    for mut rig in Rig::both() {
        let puts: Vec<_> = (0..1000).map(|at| rig.put(at % 100, at as u64)).collect();
        assert_eq!(rig.stub.state().posted.len(), 256);
        while !rig.stub.state().posted.is_empty() {
            let is_told = |posted: &super::stub::Posted| posted.flags & IBV_SEND_SIGNALED != 0;
            assert!(rig.stub.state().posted.iter().any(is_told), "a completion will tell of what is under way");
            rig.stub.complete(1);
            rig.lane.poll();
        }
        assert!(rig.statuses(&puts).iter().all(|status| *status == Status::Done));
        for word in 0..100 {
            assert_eq!(rig.region.word(8 * word).load(), 900 + word as u64);
        }
    }
}

#[test]
fn a_batch_has_one_doorbell_and_one_completion() {
    for mut rig in Rig::both() {
        rig.lane.hold(PEER);
        let puts: Vec<_> = (0..8).map(|at| rig.put(at, at as u64 + 1)).collect();
        rig.lane.poll();
        assert_eq!(rig.stub.state().doorbells, 0);
        rig.lane.doorbell(PEER);
        assert_eq!(rig.stub.state().doorbells, 1);
        let signalled: Vec<_> =
            rig.stub.state().posted.iter().map(|posted| posted.flags & IBV_SEND_SIGNALED != 0).collect();
        assert_eq!(signalled, [false, false, false, false, false, false, false, true]);
        rig.stub.complete(7);
        assert_eq!(rig.status(puts[0]), Status::Pending);
        rig.stub.complete(1);
        assert!(rig.statuses(&puts).iter().all(|status| *status == Status::Done));
        // A wait in the middle of a batch starts the batch.
        rig.lane.hold(PEER);
        rig.put(0, 1);
        rig.lane.ring();
        assert_eq!(rig.stub.state().doorbells, 2);
    }
}

#[test]
fn a_failure_in_the_middle_of_a_batch() {
    for mut rig in Rig::both() {
        rig.lane.hold(PEER);
        let puts: Vec<_> = (0..8).map(|at| rig.put(at, 1)).collect();
        rig.lane.doorbell(PEER);
        rig.stub.complete(3);
        rig.stub.fail(IBV_WC_REM_ACCESS_ERR);
        rig.stub.flush();
        let (done, failed) = (Status::Done, Status::Failed(Code::Revoked));
        assert_eq!(rig.statuses(&puts), [done, done, done, failed, failed, failed, failed, failed]);
    }
}

/// Waiting requests were accepted, and the one behind them may report them as done: it does not fail alone.
#[test]
fn a_refused_request_that_waited_ends_the_queue_pair() {
    // The device refuses the fourth of a batch, with the first three under way.
    for mut rig in Rig::both() {
        rig.stub.state().refusals.extend([(3, libc::EINVAL), (0, libc::EINVAL), (0, libc::EINVAL)]);
        rig.lane.hold(PEER);
        let puts: Vec<_> = (0..8).map(|at| rig.put(at, 1)).collect();
        assert!(rig.statuses(&puts).iter().all(|status| *status == Status::Pending));
        rig.lane.doorbell(PEER);
        rig.stub.flush();
        let failed = Status::Failed(Code::Device);
        assert_eq!(rig.statuses(&puts)[3..], [failed; 5]);
        assert_eq!((3..8).map(|word| rig.region.word(8 * word).load()).collect::<Vec<_>>(), [0; 5]);
        let next = rig.put(0, 2);
        assert_eq!(rig.status(next), failed);
    }
    // A full queue kept it waiting.
    for mut rig in Rig::both() {
        let first = rig.put(0, 1);
        rig.stub.state().refusals.extend([(0, libc::ENOMEM), (0, libc::EAGAIN)]);
        let second = rig.put(1, 1);
        assert_eq!(rig.lane.status(PEER, second), Status::Pending); // without a poll, which would post it
        // Both together, and then by itself.
        rig.stub.state().refusals.extend([(0, libc::EINVAL), (0, libc::EINVAL)]);
        let third = rig.put(2, 1);
        rig.stub.flush();
        assert_eq!(rig.statuses(&[second, third]), [Status::Failed(Code::Device); 2]);
        assert!(rig.status(first) != Status::Pending);
    }
    // The last part of a long one is refused: its memory is kept until the others have ended.
    for mut rig in Rig::both() {
        rig.stub.state().refusals.extend([(2, libc::EINVAL), (0, libc::EINVAL), (0, libc::EINVAL)]);
        let (long, block) = request(Verb::Put, rig.at(0), &[1; 10_000], [0; 2]);
        let put = rig.lane.post(long);
        if !rig.stub.state().posted.is_empty() {
            assert_eq!((rig.status(put), Arc::strong_count(&block)), (Status::Pending, 2));
        }
        rig.stub.flush();
        while rig.status(put) == Status::Pending {}
        assert_eq!((rig.status(put), Arc::strong_count(&block)), (Status::Failed(Code::Device), 1));
    }
}

/// A request that is refused while it is posted affects no other: fenced ones still are.
#[test]
fn a_refused_request_leaves_its_fence() {
    for mut rig in Rig::both() {
        let get = rig.lane.post(request(Verb::Get, rig.at(0), &[0; 8], [0; 2]).0);
        rig.lane.post(request(Verb::RemoteFence, rig.at(0), &[], [0; 2]).0);
        rig.stub.state().refusals.push_back((0, libc::EINVAL));
        let refused = rig.put(1, 1);
        let put = rig.put(1, 2);
        assert_eq!(rig.statuses(&[get, refused]), [Status::Pending, Status::Failed(Code::Device)]);
        let flags: Vec<_> = rig.stub.state().posted.iter().map(|posted| posted.flags & IBV_SEND_FENCE != 0).collect();
        assert_eq!(flags, [false, true]);
        rig.stub.complete(2);
        assert_eq!(rig.statuses(&[get, put]), [Status::Done; 2]);
    }
}

#[test]
fn invalid_requests_are_refused_before_posting() {
    let mut rig = Rig::on(Stub::new(true, |info, _| info.atomics = super::info::Atomics::None));
    let place = |offset| RemotePtr::<u64>::new(PEER, GroupKey::DATA, offset);
    let code = |rig: &mut Rig, verb, remote| {
        let (request, _) = request(verb, remote, &[0; 8], [0; 2]);
        let sequence = rig.lane.post(request);
        rig.lane.status(remote.node(), sequence)
    };
    assert_eq!(code(&mut rig, Verb::Put, place(4)), Status::Failed(Code::Misaligned));
    assert_eq!(code(&mut rig, Verb::Put, place(2 << 20)), Status::Failed(Code::OutOfBounds));
    assert_eq!(code(&mut rig, Verb::Get, RemotePtr::new(PEER, GroupKey(9), 0)), Status::Failed(Code::BadKey));
    assert_eq!(code(&mut rig, Verb::Get, RemotePtr::new(NodeId(9), GroupKey::DATA, 0)), Status::Failed(Code::BadKey));
    assert_eq!(code(&mut rig, Verb::Cas, place(64)), Status::Failed(Code::NoAtomics));
    rig.stub.state().registered_bytes_max = Some(0);
    assert_eq!(code(&mut rig, Verb::Get, place(64)), Status::Failed(Code::Device));
    assert_eq!(rig.stub.state().posted.len(), 0);
}

#[test]
fn short_puts_are_copied_and_slabs_registered_once() {
    for mut rig in Rig::both() {
        let before = rig.stub.state().registered.len();
        let (short, _) = request(Verb::Put, rig.at(0), &[1; 128], [0; 2]);
        rig.lane.post(short);
        let span = span_request(Verb::Put, rig.at(0), &rig.region, 512, 24);
        rig.lane.post(span);
        assert!(rig.stub.state().posted.iter().all(|posted| posted.inline.is_some()));
        assert_eq!(rig.stub.state().registered.len(), before);
        let (long, block) = request(Verb::Put, rig.at(0), &[1; 136], [0; 2]);
        rig.lane.post(long);
        let again = WorkRequest { local: Local::block(&block), ..request(Verb::Put, rig.at(64), &[0; 136], [0; 2]).0 };
        rig.lane.post(again);
        assert_eq!(rig.stub.state().registered.len(), before + 1);
        // Shared cells are registered with their chunk.
        let span = span_request(Verb::Get, rig.at(0), &rig.region, 1024, 4096);
        rig.lane.post(span);
        assert_eq!(rig.stub.state().registered.len(), before + 1);
        rig.stub.complete(5);
        assert_eq!(rig.region.word(1024).load(), u64::from_ne_bytes([1; 8]));
    }
}

#[test]
fn long_operations_are_cut_to_messages() {
    for mut rig in Rig::both() {
        let bytes: Vec<u8> = (0..10_000u32).map(|at| at as u8).collect();
        let (long, block) = request(Verb::Put, rig.at(0), &bytes, [0; 2]);
        let put = rig.lane.post(long);
        let lens: Vec<_> = rig.stub.state().posted.iter().map(|posted| posted.local.length).collect();
        assert_eq!(lens, [4096, 4096, 1808]);
        rig.stub.complete(3);
        assert_eq!(rig.status(put), Status::Done);
        assert_eq!(rig.region.word(8 * 1249).load().to_ne_bytes(), bytes[9992..]);
        // A part is under way and the rest is not, when the queue pair ends: the memory is kept until the part has
        // ended.
        rig.stub.state().refusals.extend((0..10).map(|at| (usize::from(at == 0), libc::ENOMEM)));
        let again = WorkRequest { local: Local::block(&block), ..request(Verb::Put, rig.at(0), &bytes, [0; 2]).0 };
        let put = rig.lane.post(again);
        assert_eq!(rig.stub.state().posted.len(), 1);
        rig.switch.end(Code::Fenced);
        assert_eq!((rig.status(put), Arc::strong_count(&block)), (Status::Pending, 2));
        rig.stub.complete(1);
        rig.stub.flush();
        while rig.status(put) == Status::Pending {}
        assert_eq!((rig.status(put), Arc::strong_count(&block)), (Status::Failed(Code::Fenced), 1));
    }
}

#[test]
fn fences_and_devices_that_promise_no_order() {
    let kinds = |rig: &Rig| -> Vec<_> {
        let kind = |opcode| if opcode == IBV_WR_RDMA_READ { "get" } else { "put" };
        rig.stub.state().posted.iter().map(|at| (kind(at.opcode), at.flags & IBV_SEND_FENCE != 0)).collect()
    };
    let run = |rig: &mut Rig| {
        rig.put(0, 1);
        rig.put(1, 2);
        let (get, _) = request(Verb::Get, rig.at(0), &[0; 8], [0; 2]);
        rig.lane.post(get);
        rig.put(2, 3);
        let (fence, _) = request(Verb::RemoteFence, rig.at(0), &[], [0; 2]);
        let fence = rig.lane.post(fence);
        assert_eq!(rig.status(fence), Status::Done);
        let get = span_request(Verb::Get, rig.at(0), &rig.region, 1024, 8);
        rig.lane.post(get);
        let get = span_request(Verb::Get, rig.at(0), &rig.region, 2048, 8);
        rig.lane.post(get);
    };
    let mut rig = Rig::on(Stub::new(true, |_, _| ()));
    run(&mut rig);
    let (plain, fenced) = (("put", false), ("get", true));
    assert_eq!(kinds(&rig), [plain, plain, ("get", false), plain, fenced, ("get", false)]);
    let mut rig = Rig::on(Stub::new(true, |_, options| options.in_order = Some(false)));
    run(&mut rig);
    let put = ("put", true);
    assert_eq!(kinds(&rig), [put, ("get", false), put, ("get", false), put, fenced, fenced]);
    // Where the lane holds back, reads are not even posted before the puts before them have ended, nor fenced requests
    // before all have.
    let mut rig = Rig::on(Stub::new(true, |_, options| options.holds_back = Some(true)));
    run(&mut rig);
    assert_eq!(kinds(&rig), [plain, plain]);
    assert_eq!(rig.word(Verb::Get, 5, [0; 2]), None, "nor by the short way");
    rig.stub.complete(1);
    rig.lane.poll();
    assert_eq!(kinds(&rig), [plain]);
    rig.stub.complete(1);
    rig.lane.poll();
    assert_eq!(kinds(&rig), [("get", false), plain]);
    rig.stub.complete(1);
    rig.lane.poll();
    assert_eq!(kinds(&rig), [plain], "one before it is under way");
    rig.stub.complete(1);
    rig.lane.poll();
    assert_eq!(kinds(&rig), [("get", false); 2], "it needs no flag");
}

/// An addition that is not awaited is executed nevertheless, though it is not even posted when the lane is dropped.
#[test]
fn a_dropped_lane_completes_its_pending_operations() {
    let mut rig = Rig::on(Stub::new(true, |_, options| options.holds_back = Some(true)));
    rig.put(0, 1);
    rig.lane.post(request(Verb::Faa, rig.at(0), &[0; 8], [1, 0]).0);
    assert!(rig.lane.has_backlog());
    let lane = core::mem::replace(&mut rig.lane, VerbsLane::open(&BufferStore::new(&rig.stub.device)).unwrap());
    std::thread::scope(|scope| {
        let dropping = scope.spawn(move || drop(lane));
        while !dropping.is_finished() {
            rig.stub.complete(1);
            std::thread::yield_now();
        }
    });
    assert_eq!(rig.region.word(0).load(), 2);
}

#[test]
fn a_device_that_does_not_flush_loses_its_queue_pair() {
    for mut rig in Rig::both() {
        let puts: Vec<_> = (0..3).map(|at| rig.put(at, 1)).collect();
        rig.stub.fail(IBV_WC_RETRY_EXC_ERR);
        while rig.status(puts[2]) == Status::Pending {
            std::thread::yield_now();
        }
        assert_eq!(rig.statuses(&puts), [Status::Failed(Code::Unreachable); 3]);
        assert_eq!(rig.stub.state().destroyed, 1);
    }
}

#[test]
fn a_device_that_says_nothing_for_far_too_long_loses_its_queue_pair() {
    for extended in [true, false] {
        let mut rig = Rig::on(Stub::new(extended, |_, options| options.patience = Duration::from_millis(10)));
        let done = rig.put(0, 1);
        rig.stub.complete(1);
        assert_eq!(rig.status(done), Status::Done);
        let word = rig.word(Verb::Get, 0, [0; 2]).unwrap();
        let put = rig.put(0, 1);
        while rig.status(put) == Status::Pending {
            std::thread::yield_now();
        }
        assert_eq!(rig.status(put), Status::Failed(Code::Unreachable));
        assert_eq!(rig.result(word), Some(Err(Code::Unreachable)));
        assert!(rig.stub.state().destroyed == 1 && rig.memory.is_unreachable());
    }
}

/// Much takes its time: only a device that moves nothing at all has given up.
#[test]
fn a_long_put_may_take_long() {
    let mut rig = Rig::on(Stub::new(true, |_, options| options.patience = Duration::from_millis(10)));
    let (put, _) = request(Verb::Put, rig.at(0), &vec![1; 3 << 18], [0; 2]);
    let put = rig.lane.post(put);
    let start = std::time::Instant::now();
    // Longer than a small one may take, and less than this one may.
    while start.elapsed() < Duration::from_millis(1500) {
        assert_eq!(rig.status(put), Status::Pending);
        std::thread::yield_now();
    }
    rig.stub.complete(usize::MAX);
    assert_eq!(rig.status(put), Status::Done);
}

#[test]
fn a_broken_completion_queue_ends_everything() {
    for mut rig in Rig::both() {
        let put = rig.put(0, 1);
        rig.stub.state().is_broken = true;
        let later = rig.put(0, 1);
        assert_eq!(rig.statuses(&[put, later]), [Status::Failed(Code::Device); 2]);
        assert_eq!(rig.stub.state().destroyed, 1);
    }
}

/// Some work requests are done; or flushed, if the lane has ended the queue pair.
fn end_some(rig: &Rig, count: usize) {
    let is_ended = rig.stub.state().modified.iter().any(|(state, _)| *state == IBV_QPS_ERR);
    if is_ended { rig.stub.flush() } else { rig.stub.complete(count) }
}

/// Whatever the device does, every operation ends, and gives its memory back.
#[test]
fn nothing_is_lost() {
    for seed in 0..400 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let in_order = rng.random_bool(0.5);
        let holds_back = rng.random_bool(0.5);
        let amend =
            |options: &mut VerbsOptions| (options.in_order, options.holds_back) = (Some(in_order), Some(holds_back));
        let stub = Stub::new(rng.random_bool(0.5), |_, options| amend(options));
        let mut rig = Rig::on(stub);
        let (mut all, mut words) = (Vec::new(), Vec::new());
        for _ in 0..rng.random_range(1..600) {
            match rng.random_range(0..130) {
                100..120 => {
                    let verb = [Verb::Put, Verb::Get, Verb::Cas, Verb::Faa][rng.random_range(0..4)];
                    match rig.word(verb, rng.random_range(0..9), [1, 0]) {
                        Some(ticket) if rng.random_bool(0.2) => rig.lane.drop_word(ticket),
                        ticket => words.extend(ticket),
                    }
                }
                120.. => {
                    let at = rng.random_range(0..words.len().max(1));
                    if words.get(at).is_some_and(|ticket| rig.result(*ticket).is_some()) {
                        words.swap_remove(at);
                    }
                }
                0..60 => {
                    let verb = [Verb::Put, Verb::Get, Verb::Faa, Verb::RemoteFence][rng.random_range(0..4)];
                    let len = if verb == Verb::Faa { 8 } else { 8 * rng.random_range(0..1200) };
                    let (request, block) = request(verb, rig.at(0), &vec![1; len], [1, 0]);
                    all.push((rig.lane.post(request), block));
                }
                60..70 => rig.lane.hold(PEER),
                70..80 => rig.lane.doorbell(PEER),
                80..85 => rig.lane.poll(),
                85..88 => {
                    let errno = [libc::ENOMEM, libc::EINVAL][rng.random_range(0..2)];
                    rig.stub.state().refusals.push_back((rng.random_range(0..20), errno));
                }
                88 if rng.random_bool(0.1) => rig.stub.fail(IBV_WC_RETRY_EXC_ERR),
                _ => end_some(&rig, rng.random_range(0..9)),
            }
        }
        rig.stub.state().refusals.clear();
        let mut polls = 0;
        while let Some((sequence, _)) =
            all.iter().find(|(sequence, _)| rig.lane.status(PEER, *sequence) == Status::Pending)
        {
            end_some(&rig, usize::MAX);
            rig.lane.ring();
            rig.lane.poll();
            polls += 1;
            assert!(polls < 1000, "seed {seed}: operation {sequence} does not end");
        }
        for (sequence, block) in &all {
            assert_eq!(Arc::strong_count(block), 1, "seed {seed}: the memory of operation {sequence}");
        }
        while !words.is_empty() {
            end_some(&rig, usize::MAX);
            words.retain(|ticket| rig.result(*ticket).is_none());
            polls += 1;
            assert!(polls < 2000, "seed {seed}: {} operations on words do not end", words.len());
        }
        end_some(&rig, usize::MAX);
        rig.lane.poll();
        assert_eq!(rig.lane.places_in_use(), 0, "seed {seed}");
    }
}

/// A node with another secret is not admitted, and both sides report why, until a node with the right one arrives.
#[test]
fn why_a_node_was_refused_can_be_read_until_it_comes() {
    let join = |place: u16, secret: &[u8]| {
        let stub = Stub::new(true, |_, _| {});
        let here = (Ipv4Addr::LOCALHOST, 0).into();
        let mut options = JoinOptions::new("refusals", place, 2, here);
        options.secret = Some(Secret::new(secret).unwrap());
        options.group_bytes_max = 4 << 20;
        VerbsFabric::join_on(&options, &stub.device).unwrap()
    };
    let first = join(0, b"the secret of the session");
    let stranger = join(1, b"something else altogether");
    let until = |nodes: &[&VerbsFabric], what: &mut dyn FnMut() -> bool| {
        let start = std::time::Instant::now();
        while !what() {
            assert!(start.elapsed() < Duration::from_secs(30), "{:?}", nodes[0].refusals());
            nodes.iter().for_each(|node| node.serve(Duration::from_millis(1), &mut |_| {}));
        }
    };
    let meet = |other: &VerbsFabric| {
        let addresses = [first.address(), other.address()];
        first.meet(&addresses).unwrap();
        other.meet(&addresses).unwrap();
    };
    meet(&stranger);
    until(&[&first, &stranger], &mut || !first.refusals().is_empty() && !stranger.refusals().is_empty());
    for node in [&first, &stranger] {
        let why = node.refusals().join("; ");
        assert!(
            why.contains("secret") && why.contains(if node.me() == NodeId(0) { "place 1" } else { "place 0" }),
            "{why}"
        );
    }
    drop(stranger);
    let second = join(1, b"the secret of the session");
    meet(&second);
    until(&[&first, &second], &mut || matches!(first.peer_state(NodeId(1)), PeerState::Up { .. }));
    assert_eq!(first.refusals(), Vec::<String>::new());
}
