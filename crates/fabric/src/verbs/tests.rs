//! The lane on a device that tests made: every failure, and that nothing is lost.

use std::sync::Arc;

use farfield_verbs_sys::*;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::lane::VerbsLane;
use super::memory::{GroupMemory, PeerMemory};
use super::queue::{QueuePair, QueuePairSwitch};
use super::stub::Stub;
use crate::buf::Block;
use crate::error::Code;
use crate::fabric::Region;
use crate::lane::{DynLane, Keep, Local, Status, Verb, WorkRequest};
use crate::ptr::{GroupKey, NodeId, RemotePtr};

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

/// A lane on a stub, connected to a peer whose memory is in this process.
struct Rig {
    stub: Stub,
    lane: VerbsLane,
    region: Region,
    switch: QueuePairSwitch,
}

impl Rig {
    fn on(stub: Stub) -> Rig {
        let lane = VerbsLane::open(&stub.device).unwrap();
        let group = GroupMemory::create(&stub.device, GroupKey::DATA, 2 << 20).unwrap();
        let region = group.alloc(PEER, 1 << 20).unwrap();
        let memory = PeerMemory::new();
        assert!(group.chunks().into_iter().all(|chunk| memory.add(GroupKey::DATA, chunk)));
        let port = lane.port();
        let mut pair = port.new_pair().unwrap();
        pair.connect(&QueuePair::target(&stub.device).unwrap().address()).unwrap();
        let switch = pair.switch();
        port.add(PEER, GroupKey::DATA, pair, memory);
        stub.state().destroyed = 0;
        Rig { stub, lane, region, switch }
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

    fn status(&mut self, sequence: u64) -> Status {
        self.lane.poll();
        self.lane.status(PEER, sequence)
    }

    fn statuses(&mut self, sequences: &[u64]) -> Vec<Status> {
        sequences.iter().map(|sequence| self.status(*sequence)).collect()
    }
}

#[test]
fn operations_do_what_they_say() {
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
            // What comes now is refused; what is under way ends when the device says so.
            let later = rig.put(3, 1);
            assert_eq!(rig.statuses(&[behind, later]), [Status::Pending, Status::Failed(expected)]);
            rig.stub.flush();
            assert_eq!(rig.status(behind), Status::Failed(expected));
            assert_eq!((rig.region.word(0).load(), rig.region.word(8).load()), (1, 0));
        }
    }
}

#[test]
fn who_ends_a_queue_pair_says_why() {
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
fn what_is_refused_while_posting_fails_alone() {
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
        // Who waits in the middle of a batch starts it.
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
    // The device refuses the fourth while posting.
    for mut rig in Rig::both() {
        rig.stub.state().refusals.extend([(3, libc::EINVAL), (0, libc::EINVAL)]);
        rig.lane.hold(PEER);
        let puts: Vec<_> = (0..4).map(|at| rig.put(at, 1)).collect();
        rig.lane.doorbell(PEER);
        let posted = rig.stub.state().posted.len();
        rig.stub.complete(posted);
        let done = Status::Done;
        assert_eq!(rig.statuses(&puts), [done, done, done, Status::Failed(Code::Device)]);
        assert_eq!((0..4).map(|word| rig.region.word(8 * word).load()).collect::<Vec<_>>(), [1, 1, 1, 0]);
    }
}

#[test]
fn what_is_wrong_here_is_refused_before_posting() {
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
    rig.stub.state().registering_fails = true;
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
fn a_broken_completion_queue_ends_everything() {
    for mut rig in Rig::both() {
        let put = rig.put(0, 1);
        rig.stub.state().is_broken = true;
        let later = rig.put(0, 1);
        assert_eq!(rig.statuses(&[put, later]), [Status::Failed(Code::Device); 2]);
        assert_eq!(rig.stub.state().destroyed, 1);
    }
}

/// Whatever the device does, every operation ends, and gives its memory back.
#[test]
fn nothing_is_lost() {
    for seed in 0..400 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let in_order = rng.random_bool(0.5);
        let stub = Stub::new(rng.random_bool(0.5), |_, options| options.in_order = Some(in_order));
        let mut rig = Rig::on(stub);
        let mut all = Vec::new();
        for _ in 0..rng.random_range(1..600) {
            match rng.random_range(0..100) {
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
                _ => rig.stub.complete(rng.random_range(0..9)),
            }
        }
        rig.stub.state().refusals.clear();
        let mut polls = 0;
        while let Some((sequence, _)) =
            all.iter().find(|(sequence, _)| rig.lane.status(PEER, *sequence) == Status::Pending)
        {
            let under_way = rig.stub.state().posted.len();
            rig.stub.complete(under_way);
            rig.lane.ring();
            rig.lane.poll();
            polls += 1;
            assert!(polls < 1000, "seed {seed}: operation {sequence} does not end");
        }
        for (sequence, block) in &all {
            assert_eq!(Arc::strong_count(block), 1, "seed {seed}: the memory of operation {sequence}");
        }
    }
}
