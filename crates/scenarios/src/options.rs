//! Options and arguments that an object refuses, and those at the border that it takes.

use farfield_core::toolkit::ObjectBuilder;
use farfield_core::{
    AtomicVar, Barrier, ByteString, Error, ErrorKind, KvOptions, KvStore, Mutex, MutexArray, NodeId, Queue,
    QueueOptions, Result, RingBuffer, RingOptions, Sst,
};

use super::keep;
use farfield_check::{Cluster, Scenario};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        refused("kv/options", 1, kv),
        refused("queue/options", 1, queue),
        refused("ring/options", 2, ring),
        refused("locks/options", 1, locks),
        homes(),
    ]
}

fn refused(name: &str, nodes: usize, body: fn(&Cluster) -> Result<()>) -> Scenario {
    Scenario::new(name, "what cannot work is refused, with the reason", nodes, body)
}

fn is_config<T>(opened: Result<T>) {
    let error = opened.err().expect("options that cannot work");
    assert!(matches!(error.kind(), ErrorKind::Config { .. }), "{error}");
}

/// The products of these sizes exceed any memory, or overflow a number, and would then be small.
fn is_huge<T>(mut open: impl FnMut(usize) -> Result<T>) {
    for huge in [1 << 41, 1 << 59, 1 << 61, usize::MAX / 8, usize::MAX] {
        is_config(open(huge));
    }
}

fn is_too_large<T>(done: Result<T>) {
    let error = done.err().expect("longer than the options say");
    assert!(matches!(error.kind(), ErrorKind::TooLarge { .. }), "{error}");
}

fn kv(cluster: &Cluster) -> Result<()> {
    let (node, ep) = (cluster.node(0), cluster.node(0).endpoint()?);
    let small = || KvOptions { slots_per_node: 2, locks: 1, tracker_bytes: 128, ..KvOptions::default() };
    let open = |options: KvOptions| KvStore::<ByteString, ByteString>::open(&node, "refused", options);
    is_config(open(KvOptions { slots_per_node: 0, ..small() }));
    is_config(open(KvOptions { locks: 0, ..small() }));
    // A message is a length, 24 bytes, and the key.
    is_config(open(KvOptions { tracker_bytes: 88, ..small() }));
    is_config(open(KvOptions { tracker_bytes: 100, ..small() }));
    is_huge(|huge| open(KvOptions { slots_per_node: huge, ..small() }));
    is_huge(|huge| open(KvOptions { locks: huge, ..small() }));
    is_huge(|huge| open(KvOptions { value_bytes_max: huge, ..small() }));
    is_huge(|huge| open(KvOptions { key_bytes_max: huge, ..small() }));
    is_huge(|huge| open(KvOptions { tracker_bytes: huge, ..small() }));
    let texts = KvStore::open(&node, "texts", KvOptions { tracker_bytes: 96, ..small() })?;
    let text = |bytes: usize| ByteString::from(vec![7; bytes]);
    ep.block_on(async {
        for (key, value) in [(text(65), text(1)), (text(1), text(65))] {
            is_too_large(texts.insert(&ep, &key, &value).await);
            is_too_large(texts.upsert(&ep, &key, &value).await);
            is_too_large(texts.update(&ep, &key, &value).await);
            is_too_large(texts.modify(&ep, &key, |_| Some(value.clone())).await);
        }
        is_too_large(texts.delete(&ep, &text(65)).await);
        assert!(texts.insert(&ep, &text(64), &text(64)).await?);
        assert_eq!(texts.get(&ep, &text(64)).await?, Some(text(64)));
        Ok::<(), Error>(())
    })?;
    // The lengths are about byte strings.
    let options = KvOptions { key_bytes_max: 1, value_bytes_max: 1, ..small() };
    let fixed = KvStore::<u64, [u64; 2]>::open(&node, "fixed", options)?;
    assert!(ep.block_on(fixed.insert(&ep, &1, &[1; 2]))?);
    keep(cluster, (texts, fixed));
    Ok(())
}

fn queue(cluster: &Cluster) -> Result<()> {
    let (node, ep) = (cluster.node(0), cluster.node(0).endpoint()?);
    let small = || QueueOptions { batch_max: 2, value_bytes_max: 8, ..QueueOptions::new(NodeId(0), 2) };
    let open = |options: QueueOptions| Queue::<ByteString>::open(&node, "refused", options);
    is_config(open(QueueOptions { capacity: 0, ..small() }));
    is_config(open(QueueOptions { enqueues_per_node: 0, ..small() }));
    is_config(open(QueueOptions { batch_max: 0, ..small() }));
    is_config(open(QueueOptions { batch_max: 64, ..small() }));
    is_config(open(QueueOptions { capacity: 1 << 20, batch_max: 1, ..small() }));
    is_huge(|huge| open(QueueOptions { capacity: huge, ..small() }));
    is_huge(|huge| open(QueueOptions { enqueues_per_node: huge, ..small() }));
    is_huge(|huge| open(QueueOptions { batch_max: huge, ..small() }));
    is_huge(|huge| open(QueueOptions { value_bytes_max: huge, ..small() }));
    is_config(open(QueueOptions { home: NodeId(1), ..small() }));
    let texts = Queue::<ByteString>::open(&node, "texts", small())?;
    let text = |bytes: usize| ByteString::from(vec![7; bytes]);
    let fixed = Queue::<[u64; 2]>::open(&node, "fixed", small())?;
    ep.block_on(async {
        is_too_large(texts.enqueue(&ep, &text(9)).await);
        let many = texts.enqueue_batch(&ep, &[text(1), text(2), text(3)]).await.expect_err("more than `batch_max`");
        assert!(matches!(many.kind(), ErrorKind::TooMany { asked: 3, max: 2, .. }), "{many}");
        // Nothing is enqueued, and it takes no room.
        for _ in 0..3 {
            assert!(texts.try_enqueue_batch(&ep, &[]).await?);
        }
        assert_eq!(texts.try_dequeue(&ep).await?, None);
        texts.enqueue(&ep, &text(8)).await?;
        assert_eq!(texts.dequeue(&ep).await?, text(8));
        fixed.enqueue(&ep, &[1; 2]).await
    })?;
    keep(cluster, (texts, fixed));
    Ok(())
}

fn ring(cluster: &Cluster) -> Result<()> {
    let (node, [a, b]) = (cluster.node(0), [0, 1].map(NodeId));
    let announce = |readers: &[(NodeId, usize)], bytes| {
        RingBuffer::announce(&node, "refused", RingOptions::new(a, readers.iter().copied(), bytes))
    };
    is_config(announce(&[(b, 1)], 56));
    is_config(announce(&[(b, 1)], 68));
    is_huge(|huge| announce(&[(b, 1)], huge & !7));
    is_huge(|huge| announce(&[(b, huge)], 64));
    is_config(announce(&[], 64));
    is_config(announce(&[(b, 0)], 64));
    is_config(announce(&[(b, 1), (b, 1)], 64));
    is_config(announce(&[(b, 1), (a, 1), (b, 1)], 64));
    // The writer among its readers, in any order.
    let rings =
        cluster.on_each(move |node| RingBuffer::open(node, "ring", RingOptions::new(b, [(b, 1), (a, 1)], 64)))?;
    let rings = keep(cluster, rings);
    let (ep, mut sender) = (cluster.node(1).endpoint()?, rings[1].sender()?);
    assert!(matches!(
        rings[0].sender().err().map(|error| error.kind().clone()),
        Some(ErrorKind::NotAParticipant { .. })
    ));
    let mut readers = [rings[0].receiver()?, rings[1].receiver()?];
    for ring in rings.iter() {
        let taken = ring.receiver().err().expect("one reader on each node");
        assert!(taken.to_string().contains("all are taken"), "{taken}");
    }
    assert_eq!(sender.message_bytes_max(), 56);
    is_too_large(sender.try_send(&ep, &[7; 57]));
    assert!(sender.try_send(&ep, &[7; 56])?, "an empty ring has room for the longest message");
    for (node, reader) in readers.iter_mut().enumerate() {
        let (ep, mut message) = (cluster.node(node).endpoint()?, Vec::new());
        let look = || is_received(reader.try_recv_unacknowledged(&ep, &mut message));
        ep.block_on(ep.wait_until(ep.deadline(), look))??;
        assert_eq!(message, [7; 56]);
        // A look in vain acknowledges nothing.
        assert!(!reader.try_recv(&ep, &mut message)?);
        ep.block_on(ep.global_fence([a, b]))?;
        assert!(!sender.is_acknowledged(&ep, 64), "a message that was not acknowledged");
    }
    for (node, reader) in readers.iter_mut().enumerate() {
        reader.acknowledge(&cluster.node(node).endpoint()?)?;
    }
    ep.block_on(sender.wait_acknowledged(&ep, 64, ep.deadline()))?;
    Ok(())
}

fn locks(cluster: &Cluster) -> Result<()> {
    let (node, one) = (cluster.node(0), [NodeId(0)]);
    let open = |count| MutexArray::open(&node, "locks", count);
    is_config(open(0));
    is_huge(open);
    let among_none = MutexArray::open_among(&node, "locks", &[], 1).err().expect("this node is not among them");
    assert!(matches!(among_none.kind(), ErrorKind::NotAParticipant { .. }), "{among_none}");
    let rows = |count: usize| Sst::<u64>::open_among(&node, "rows", &one, &vec![NodeId(0); count]);
    is_config(rows(1 << 17));
    is_config(Barrier::open(&node, "threads", 0));
    is_huge(|threads| Barrier::open(&node, "threads", threads));
    // The refused openings have left nothing open.
    keep(cluster, (open(2)?, rows(2)?, Barrier::open(&node, "threads", 2)?));
    Ok(())
}

/// For a wait: a message that was received, or an error.
fn is_received(received: Result<bool>) -> Option<Result<()>> {
    received.map(|received| received.then_some(())).transpose()
}

/// Memory is where the words are, and nowhere else. A barrier has as many parts as it was opened for.
fn homes() -> Scenario {
    Scenario::new("barrier/options", "each node takes its part, and the memory that it needs", 2, |cluster| {
        let barriers = cluster.on_each(|node| Barrier::open(node, "b", 1))?;
        for barrier in &barriers {
            let part = barrier.thread()?;
            let taken = barrier.thread().err().expect("its only part is taken");
            assert!(taken.to_string().contains("all of this node's are taken"), "{taken}");
            drop(part);
        }
        let open = |path: &str, participants: &[NodeId]| {
            let announced = ObjectBuilder::new(&cluster.node(1), path, "Object");
            let announced = announced.participants(participants.iter().copied()).announce();
            announced.err().expect("it cannot be opened").to_string()
        };
        let both = [0, 1].map(NodeId);
        for path in ["", &"p".repeat(513)] {
            assert!(open(path, &both).contains("1 to 512 bytes"));
        }
        assert!(open("strange", &both[..1]).contains("participant"));
        let before = cluster.node(1).metrics().memory_bytes;
        let mutexes = cluster.on_each(|node| Mutex::open(node, "m", NodeId(0)))?;
        let variables = cluster.on_each(|node| AtomicVar::open(node, "v", NodeId(0)))?;
        assert_eq!(cluster.node(1).metrics().memory_bytes, before, "their words are on the other node");
        keep(cluster, (barriers, mutexes, variables));
        Ok(())
    })
}
