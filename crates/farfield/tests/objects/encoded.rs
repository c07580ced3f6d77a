//! Values by serde, in each object that takes values.

use std::collections::BTreeMap;

use farfield::{
    ByteString, Channel, ChannelOptions, Encoded, ErrorKind, KvOptions, KvStore, Queue, QueueOptions, Result,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde::{Deserialize, Serialize};

use crate::harness::{Over, beside, refused, session};

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
enum Job {
    Copy { from: String, to: Option<String> },
    Count(BTreeMap<u8, i64>),
    Stop,
}

fn job() -> impl Strategy<Value = Job> {
    prop_oneof![
        (".{0,40}", prop::option::of(".{0,40}")).prop_map(|(from, to)| Job::Copy { from, to }),
        prop::collection::btree_map(any::<u8>(), any::<i64>(), 0..20).prop_map(Job::Count),
        Just(Job::Stop),
    ]
}

const BYTES_MAX: usize = 128;

/// The store, the queue and the channel return a value whole. If it is longer than their limit, each refuses it with
/// the same error.
#[test]
fn values_of_serde_go_where_values_go() {
    let _cores = beside("values by serde");
    let nodes = session(2, Over::Shm);
    let (a, b) = (nodes[0].endpoint().unwrap(), nodes[1].endpoint().unwrap());
    let (home, reader) = (nodes[0].id(), nodes[1].id());
    let kv = KvOptions { value_bytes_max: BYTES_MAX, slots_per_node: 64, ..KvOptions::default() };
    let stores = farfield::on_each(&nodes, |node| KvStore::<u64, Encoded<Job>>::open(node, "kv", kv.clone())).unwrap();
    let queue = QueueOptions { value_bytes_max: BYTES_MAX, ..QueueOptions::new(home, 4) };
    let queues = farfield::on_each(&nodes, |node| Queue::<Encoded<Job>>::open(node, "q", queue.clone())).unwrap();
    let channel = ChannelOptions { value_bytes_max: BYTES_MAX, ..ChannelOptions::new(home, [(reader, 1)], 4) };
    let channels = farfield::on_each(&nodes, |node| Channel::<Encoded<Job>>::open(node, "c", channel.clone())).unwrap();
    let (mut sender, mut receiver) = (channels[0].sender().unwrap(), channels[1].receiver().unwrap());
    let mut too_long = 0;
    let mut run = |job: Job| {
        let encoded = Encoded::new(&job).unwrap();
        let stored = stores[0].upsert_blocking(&a, &7, &encoded);
        let enqueued = queues[0].enqueue_blocking(&a, &encoded);
        let sent = sender.send_blocking(&a, &encoded);
        let bytes = encoded.bytes().len();
        if bytes > BYTES_MAX {
            too_long += 1;
            let too_large = ErrorKind::TooLarge { bytes, max_bytes: BYTES_MAX };
            for result in [stored, enqueued, sent] {
                assert_eq!(refused(result).kind(), &too_large);
            }
            return;
        }
        [stored, enqueued, sent].into_iter().collect::<Result<()>>().unwrap();
        let got = stores[1].get_blocking(&b, &7).unwrap().expect("it was stored");
        let values = [got, queues[1].dequeue_blocking(&b).unwrap(), receiver.recv_blocking(&b).unwrap()];
        for value in values {
            assert_eq!(value.value().unwrap(), job);
        }
    };
    let mut runner = TestRunner::default();
    for _ in 0..200 {
        let job = job().new_tree(&mut runner).unwrap().current();
        run(job);
    }
    assert!(too_long > 0, "no value was too long");
}

/// Bytes that another type has written are an error of the value. The call that brings them succeeds.
#[test]
fn bytes_of_another_type_are_an_error() {
    let _cores = beside("bytes of another type");
    let nodes = session(2, Over::Shm);
    let (a, b) = (nodes[0].endpoint().unwrap(), nodes[1].endpoint().unwrap());
    let options = QueueOptions::new(nodes[0].id(), 4);
    let (jobs, bytes) = std::thread::scope(|scope| {
        let other = scope.spawn(|| Queue::<ByteString>::open(&nodes[0], "q", options.clone()));
        (Queue::<Encoded<Job>>::open(&nodes[1], "q", options.clone()), other.join().unwrap())
    });
    let (jobs, bytes) = (jobs.unwrap(), bytes.unwrap());
    for garbage in [&b"\xff\xff\xff\xff\xff\xff\xff\xff"[..], b"", b"\x00\xff\xff\xff\x7f", b"\x02more"] {
        bytes.enqueue_blocking(&a, &garbage.into()).unwrap();
        let error = refused(jobs.dequeue_blocking(&b).unwrap().value());
        assert!(matches!(error.kind(), ErrorKind::Encoding { .. }), "{error}");
        assert!(error.to_string().contains("Job"), "{error}");
    }
}
