//! Lanes on the RDMA devices of this machine, within one process: on each device by itself, and between each two.
//!
//! A machine without a device passes and says so, unless `FARFIELD_NEED_DEVICE=1`. Without hardware:
//!
//! ```sh
//! export FARFIELD_NEED_DEVICE=1 CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=$PWD/ci/soft-roce-vm
//! cargo test -p farfield-fabric --lib verbs::on_devices
//! ```

use std::env;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::device::Device;
use super::lane::VerbsLane;
use super::options::VerbsOptions;
use super::queue::{QueuePair, QueuePairSwitch};
use super::store::BufferStore;
use super::tests::{PEER, request, span_request};
use crate::error::Code;
use crate::fabric::Region;
use crate::hosts::layout::PeerMemory;
use crate::hosts::memory::GroupMemory;
use crate::lane::{Lane, Status, Verb, WorkRequest};
use crate::pool::Block;
use crate::ptr::{GroupKey, NodeId, RemotePtr};

/// How long an operation may take: emulated machines have bad moments.
const PATIENCE: Duration = Duration::from_secs(30);
const REGION_BYTES: usize = 3 << 20;

/// The devices to test with; none where there are none.
fn devices(options: &VerbsOptions) -> Vec<Arc<Device>> {
    let opened = Device::list().and_then(|infos| {
        let active = infos.into_iter().filter(|info| info.ports.iter().any(|port| port.is_active) && !info.is_iwarp);
        active.map(|info| Device::open(&VerbsOptions { device: Some(info.name), ..options.clone() })).collect()
    });
    let devices: Vec<_> = opened.unwrap_or_else(|error| {
        assert!(env::var_os("FARFIELD_NEED_DEVICE").is_none_or(|value| value != "1"), "no device: {error}");
        eprintln!("no device: {error}");
        Vec::new()
    });
    let needed = env::var_os("FARFIELD_NEED_DEVICE").is_some_and(|value| value == "1");
    assert!(!needed || !devices.is_empty(), "no device with an active port");
    devices
}

/// Runs a test on each device by itself and from each to the next, with different options.
fn on_connections(test: impl Fn(&mut Connection)) {
    for in_order in [None, Some(false)] {
        let options = VerbsOptions { in_order, patience: Duration::from_millis(200), ..VerbsOptions::default() };
        let devices = devices(&options);
        let neighbours = devices.windows(2).flat_map(|pair| [(&pair[0], &pair[1]), (&pair[1], &pair[0])]);
        for (from, to) in devices.iter().map(|device| (device, device)).chain(neighbours) {
            eprintln!("from {} to {}, in order: {in_order:?}", from.info().name, to.info().name);
            test(&mut Connection::new(from, to));
        }
    }
}

/// A lane, and memory of the peer that it is connected to.
struct Connection {
    lane: VerbsLane,
    switch: QueuePairSwitch,
    target: Option<QueuePair>,
    region: Region,
    own: Region,
}

impl Connection {
    fn new(from: &Arc<Device>, to: &Arc<Device>) -> Connection {
        let group = GroupMemory::create(to, GroupKey::DATA, 16 << 20).unwrap();
        let region = group.alloc(PEER, REGION_BYTES).unwrap();
        let own = GroupMemory::create(from, GroupKey::DATA, 16 << 20).unwrap().alloc(NodeId(0), REGION_BYTES).unwrap();
        let memory = PeerMemory::new();
        assert!(group.chunks().into_iter().all(|chunk| memory.add(GroupKey::DATA, chunk)));
        let lane = VerbsLane::open(&BufferStore::new(from)).unwrap();
        let port = lane.port();
        let mut pair = port.new_pair().unwrap();
        let mut target = QueuePair::target(to).unwrap();
        let switch = pair.switch();
        pair.connect(&target.address()).unwrap();
        target.connect(&pair.address()).unwrap();
        port.add(PEER, GroupKey::DATA, pair, memory);
        Connection { lane, switch, target: Some(target), region, own }
    }

    fn at(&self, offset: usize) -> RemotePtr<u64> {
        self.region.remote(offset)
    }

    #[track_caller]
    fn wait(&mut self, sequence: u64) -> Status {
        let end = Instant::now() + PATIENCE;
        loop {
            self.lane.ring();
            self.lane.poll();
            match self.lane.status(PEER, sequence) {
                Status::Pending if Instant::now() < end => std::thread::yield_now(),
                Status::Pending => panic!("operation {sequence} does not end"),
                status => return status,
            }
        }
    }

    #[track_caller]
    fn run(&mut self, verb: Verb, offset: usize, bytes: &[u8], operands: [u64; 2]) -> Result<Arc<Block>, Code> {
        let (request, block) = request(verb, self.at(offset), bytes, operands);
        let sequence = self.lane.post(request);
        match self.wait(sequence) {
            Status::Failed(code) => Err(code),
            _ => Ok(block),
        }
    }

    #[track_caller]
    fn word(&mut self, verb: Verb, offset: usize, operands: [u64; 2]) -> u64 {
        self.run(verb, offset, &[0; 8], operands).unwrap().read()
    }

    #[track_caller]
    fn put(&mut self, offset: usize, value: u64) -> Result<(), Code> {
        self.run(Verb::Put, offset, &value.to_ne_bytes(), [0; 2]).map(|_| ())
    }
}

#[test]
fn devices_are_described() {
    for device in devices(&VerbsOptions::default()) {
        eprintln!("{:?}", device.info());
        eprintln!("uses {:?} of port {}, {:?}", device.address(), device.port().number, device.survey().unwrap());
    }
}

#[test]
fn words() {
    on_connections(|connection| {
        connection.put(64, 7).unwrap();
        assert_eq!(connection.word(Verb::Get, 64, [0; 2]), 7);
        assert_eq!(connection.word(Verb::Faa, 64, [1 << 40, 0]), 7);
        assert_eq!(connection.word(Verb::Cas, 64, [7, 1]), (1 << 40) + 7);
        assert_eq!(connection.word(Verb::Cas, 64, [(1 << 40) + 7, 9]), (1 << 40) + 7);
        assert_eq!((connection.region.word(64).load(), connection.region.word(72).load()), (9, 0));
        // A put of nothing is one.
        connection.run(Verb::Put, 64, &[], [0; 2]).unwrap();
        connection.run(Verb::RemoteFence, 64, &[], [0; 2]).unwrap();
        assert_eq!(connection.word(Verb::Get, 64, [0; 2]), 9);
    });
}

#[test]
fn sizes() {
    on_connections(|connection| {
        let mut rng = SmallRng::seed_from_u64(1);
        for len in [1, 8, 9, 255, 256, 257, 1000, 4096, 5000, 65_537, 1 << 20] {
            let bytes: Vec<u8> = (0..len).map(|_| rng.random()).collect();
            connection.run(Verb::Put, 128, &bytes, [0; 2]).unwrap();
            let back = connection.run(Verb::Get, 128, &vec![0; len], [0; 2]).unwrap();
            // SAFETY: the get is complete, so nothing writes to the block.
            let back = unsafe { core::slice::from_raw_parts(back.as_ptr(), len) };
            assert!(back == bytes, "{len} bytes");
        }
    });
}

#[test]
fn shared_cells() {
    on_connections(|connection| {
        for len in [8, 16, 256, 264, 100_000] {
            for word in 0..len / 8 {
                connection.own.word(8 * word).store((len + word) as u64);
            }
            let put = span_request(Verb::Put, connection.at(64), &connection.own, 0, len);
            let put = connection.lane.post(put);
            let get = span_request(Verb::Get, connection.at(64), &connection.own, 1 << 20, len);
            let get = connection.lane.post(get);
            assert_eq!((connection.wait(put), connection.wait(get)), (Status::Done, Status::Done));
            for word in 0..len / 8 {
                assert_eq!(connection.own.word((1 << 20) + 8 * word).load(), (len + word) as u64);
            }
        }
    });
}

#[test]
fn thousands_of_operations_in_a_window() {
    const WORDS: usize = 64;
    on_connections(|connection| {
        let mut rng = SmallRng::seed_from_u64(2);
        let (mut model, mut last) = ([0u64; WORDS], [0u64; WORDS]);
        let mut window = std::collections::VecDeque::new();
        let finish = |connection: &mut Connection, (sequence, block, expected): (u64, Arc<Block>, Option<u64>)| {
            assert_eq!(connection.wait(sequence), Status::Done);
            if let Some(expected) = expected {
                assert_eq!(block.read::<u64>(), expected, "operation {sequence}");
            }
        };
        for count in 1..=3_000u64 {
            let word = rng.random_range(0..WORDS);
            let begins_batch = count.is_multiple_of(50);
            if begins_batch {
                connection.lane.hold(PEER);
            }
            // No operation is ordered behind a get or an atomic. So a word has puts or atomics, and gets look at words
            // with puts (the last put of a word flushes before them).
            let (verb, operands, bytes, expected) = match rng.random_range(0..4) {
                0 if word % 2 == 0 => (Verb::Get, [0; 2], 0, None),
                1 if word % 2 == 1 => (Verb::Faa, [count, 0], 0, Some(model[word])),
                2 if word % 2 == 1 => (Verb::Cas, [model[word], count], 0, Some(model[word])),
                _ if word % 2 == 1 => (Verb::Faa, [1, 0], 0, Some(model[word])),
                _ => (Verb::Put, [0; 2], count, None),
            };
            model[word] = match verb {
                Verb::Put | Verb::Cas => count,
                Verb::Faa => model[word].wrapping_add(operands[0]),
                _ => model[word],
            };
            last[word] = count;
            let (request, block) = request(verb, connection.at(64 + 8 * word), &bytes.to_ne_bytes(), operands);
            window.push_back((connection.lane.post(request), block, expected));
            if begins_batch {
                connection.lane.doorbell(PEER);
            }
            if window.len() == 100 {
                let first = window.pop_front().unwrap();
                finish(connection, first);
            }
        }
        window.into_iter().for_each(|entry| finish(connection, entry));
        for (word, expected) in model.into_iter().enumerate() {
            assert_eq!(connection.word(Verb::Get, 64 + 8 * word, [0; 2]), expected, "word {word}");
        }
    });
}

/// More than the send queue holds, posted at once; puts to one word land in order, and every word lands whole.
#[test]
fn a_flood_lands_in_order_and_words_land_whole() {
    on_connections(|connection| {
        let region = connection.region.clone();
        let (done, (torn, backwards)) = std::thread::scope(|scope| {
            let reader = scope.spawn(move || {
                let (word, mut last, mut torn, mut backwards) = (region.word(64), 0, 0, 0);
                while last != u64::MAX {
                    let value = word.load();
                    // Both halves of each value are the same, and count upwards.
                    torn += u64::from(value >> 32 != value & 0xffff_ffff);
                    backwards += u64::from(value < last);
                    last = value;
                }
                (torn, backwards)
            });
            let puts: Vec<_> = (0..1000u64)
                .map(|count| {
                    let value = if count == 999 { u64::MAX } else { count * 0x0010_0001_0010_0001 };
                    let (request, _) = request(Verb::Put, connection.at(64), &value.to_ne_bytes(), [0; 2]);
                    connection.lane.post(request)
                })
                .collect();
            let done = puts.iter().all(|put| connection.wait(*put) == Status::Done);
            assert_eq!(connection.word(Verb::Get, 64, [0; 2]), u64::MAX);
            (done, reader.join().unwrap())
        });
        assert!(done);
        assert_eq!((torn, backwards), (0, 0), "words seen in the middle of a write, and put before what came before");
    });
}

/// With the fence flag, Soft-RoCE forgets once in some hundred times to continue after the last request before it.
#[test]
fn fenced_operations_start_when_the_gets_have_ended() {
    for device in devices(&VerbsOptions { patience: Duration::from_millis(200), ..VerbsOptions::default() }) {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut connection = Connection::new(&device, &device);
                    for round in 0..2_000 {
                        let get = connection.lane.post(request(Verb::Get, connection.at(64), &[0; 8], [0; 2]).0);
                        connection.lane.post(request(Verb::RemoteFence, connection.at(64), &[], [0; 2]).0);
                        let faa = connection.lane.post(request(Verb::Faa, connection.at(64), &[0; 8], [1, 0]).0);
                        assert_eq!([get, faa].map(|it| connection.wait(it)), [Status::Done; 2], "in round {round}");
                    }
                    assert_eq!(connection.word(Verb::Get, 64, [0; 2]), 2_000);
                });
            }
        });
    }
}

/// The result of a get or an atomic is there when it has ended, whatever packets were lost. Soft-RoCE takes the
/// acknowledgement of a put that it had to send again for that of the next operation.
#[test]
fn an_operation_behind_a_put_brings_its_answer() {
    const NO_ANSWER: u64 = 0xdead_dead_dead_dead;
    on_connections(|connection| {
        for round in 0..500u64 {
            connection.lane.hold(PEER);
            let put = connection.lane.post(request(Verb::Put, connection.at(64), &round.to_ne_bytes(), [0; 2]).0);
            let (verb, offset, operands) =
                if round % 2 == 0 { (Verb::Faa, 72, [1, 0]) } else { (Verb::Get, 72, [0; 2]) };
            let (answer, block) = request(verb, connection.at(offset), &NO_ANSWER.to_ne_bytes(), operands);
            let answer = connection.lane.post(answer);
            connection.lane.doorbell(PEER);
            assert_eq!([put, answer].map(|it| connection.wait(it)), [Status::Done; 2], "in round {round}");
            assert_eq!(block.read::<u64>(), round.div_ceil(2), "in round {round}");
        }
    });
}

#[test]
fn a_right_that_is_taken_ends_the_queue_pair() {
    on_connections(|connection| {
        connection.put(64, 1).unwrap();
        connection.target.as_ref().unwrap().permit(false).unwrap();
        let burst: Vec<WorkRequest> =
            (0..20).map(|_| request(Verb::Put, connection.at(64), &[2; 8], [0; 2]).0).collect();
        let burst: Vec<_> = burst.into_iter().map(|request| connection.lane.post(request)).collect();
        for put in burst {
            assert_eq!(connection.wait(put), Status::Failed(Code::Revoked));
        }
        // The target may have ended with the refusal, too. Either way nothing connects again.
        let _ = connection.target.as_ref().unwrap().permit(true);
        assert_eq!(connection.put(64, 3), Err(Code::Revoked));
        assert_eq!(connection.region.word(64).load(), 1);
    });
}

#[test]
fn a_peer_that_is_gone_is_unreachable() {
    on_connections(|connection| {
        connection.put(64, 1).unwrap();
        connection.target = None;
        let burst: Vec<WorkRequest> =
            (0..300).map(|_| request(Verb::Get, connection.at(64), &[2; 8], [0; 2]).0).collect();
        let burst: Vec<_> = burst.into_iter().map(|request| connection.lane.post(request)).collect();
        for get in burst {
            assert_eq!(connection.wait(get), Status::Failed(Code::Unreachable));
        }
        assert_eq!(connection.put(64, 3), Err(Code::Unreachable));
    });
}

#[test]
fn a_queue_pair_that_is_ended_flushes() {
    on_connections(|connection| {
        connection.put(64, 1).unwrap();
        connection.target = None;
        let (get, block) = request(Verb::Get, connection.at(64), &[2; 8], [0; 2]);
        let get = connection.lane.post(get);
        connection.switch.end(Code::Fenced);
        assert_eq!(connection.wait(get), Status::Failed(Code::Fenced));
        assert_eq!(Arc::strong_count(&block), 1);
        assert_eq!(connection.put(64, 3), Err(Code::Fenced));
    });
}
