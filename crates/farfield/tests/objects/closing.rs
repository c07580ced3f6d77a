//! Closing objects: an object's memory is freed once all nodes that announced it to each other have closed it.

use farfield::fabric::{ErrorKind as FabricError, GroupKey};
use farfield::toolkit::{Object, ObjectBuilder};
use farfield::{
    ALockArray, ALockOptions, AtomicVar, Barrier, ErrorKind, KvOptions, KvStore, LockArray, LockGuard, LockKind,
    LockOptions, LockTable, McsLockArray, Mutex, Node, OwnedVar, Queue, QueueOptions, Result, RingBuffer, RingOptions,
    SharedVar, SpinLockArray, Sst, TransactionOptions, Transactions, local_session_with,
};

use crate::harness::{Over, SHORT, Scene, beside, eventually, fabrics, on_each_fabric, over, refused};

/// The number of kinds of objects.
const KINDS: usize = 14;

/// Opens, uses and closes an object of each kind.
fn one_of_each(node: &Node, paths: &str) -> Result<()> {
    let (ep, path, home) = (node.endpoint()?, |kind: &str| format!("{paths}/{kind}"), farfield::NodeId(0));
    let mut barrier = Barrier::open(node, &path("barrier"), 1)?.thread()?;
    let alock = ALockOptions { operations_max: 8, ..ALockOptions::default() };
    ep.block_on(async {
        let var = AtomicVar::open(node, &path("atomic"), home)?;
        var.fetch_add(&ep, 1).await?;
        let shared = SharedVar::<u64>::open(node, &path("shared"))?;
        shared.store(5);
        shared.push_all(&ep).await?;
        let owned = OwnedVar::<[u64; 4]>::open(node, &path("owned"), home)?;
        let table = Sst::<u64>::open(node, &path("table"))?;
        if node.id() == home {
            let mut writer = owned.writer()?;
            writer.store([1, 2, 3, 4]);
            writer.push(&ep).await?;
        }
        table.row(0).load(&ep).await?;
        let ring = RingBuffer::open(node, &path("ring"), RingOptions::broadcast(node, home, 1 << 15))?;
        if node.id() == home {
            ring.sender()?.send(&ep, b"hello").await?;
        } else {
            ring.receiver()?.recv(&ep, &mut Vec::new()).await?;
        }
        let options = QueueOptions::new(home, 8);
        let queue = Queue::<u64>::open(node, &path("queue"), options)?;
        queue.enqueue(&ep, &1).await?;
        queue.dequeue(&ep).await?;
        Mutex::open(node, &path("mutex"), home)?.lock(&ep).await?.unlock().await?;
        ALockArray::open(node, &path("alock"), 3, alock)?.lock(&ep, 1).await?.unlock().await?;
        SpinLockArray::open(node, &path("spin"), 3)?.lock(&ep, 1).await?.unlock().await?;
        McsLockArray::open(node, &path("mcs"), 3, 8)?.lock(&ep, 1).await?.unlock().await?;
        let lock = LockOptions { alock, ..LockOptions::new(LockKind::ALock) };
        LockTable::open(node, &path("any"), 3, lock)?.lock(&ep, 1).await?.unlock().await?;
        let cells = Transactions::open(node, &path("cells"), TransactionOptions { cells: 8, locks: 3, lock })?;
        cells.begin(&ep, &[1, 2]).await?.commit().await?;
        let options = KvOptions { slots_per_node: 16, locks: 8, tracker_bytes: 1 << 14, ..KvOptions::default() };
        let store = KvStore::<u64, u64>::open(node, &path("store"), options)?;
        store.insert(&ep, &u64::from(node.id().0), &1).await?;
        // A node that closes a store acknowledges no further tracker messages.
        barrier.wait(&ep).await
    })
}

/// Waits until all memory of objects has been freed.
fn comes_back(nodes: &[Node]) {
    for node in nodes {
        eventually("memory comes back", || (node.metrics().memory_bytes == 0).then_some(()));
    }
}

/// A thousand objects of all kinds (on other fabrics than shared memory, some dozens) use a fraction of the memory that
/// they would have together.
#[test]
fn a_thousand_objects_are_opened_and_closed_and_memory_is_flat() {
    for fabric in fabrics(&[6]) {
        let rounds = if fabric == Over::Shm { 1000_usize.div_ceil(KINDS) } else { 3 };
        let _cores = beside("a thousand objects");
        let limited = over(fabric, 3);
        let nodes = local_session_with(3, |builder| limited(builder).memory_bytes_max(2 << 20)).expect("a session");
        for round in 0..rounds {
            // Every second round reuses the names of the round before.
            let paths = format!("objects/{}", round / 2);
            farfield::on_each(&nodes, |node| one_of_each(node, &paths)).unwrap();
            comes_back(&nodes);
        }
        let open = |node: &Node| node.metrics().objects;
        assert!(nodes.iter().all(|node| open(node).is_empty()));
    }
}

fn words(node: &Node, path: &str) -> Result<Object> {
    let word = node.alloc(GroupKey::DATA, 64)?;
    word.word(0).store(u64::from(node.id().0) + 1);
    let object = ObjectBuilder::new(node, path, "Words").region("word", word).announce()?;
    object.wait(node.timeout())?;
    Ok(object)
}

/// A node that keeps an object open can still use the memory of all nodes. After it has closed the object, late reads
/// get an error.
#[test]
fn a_node_that_keeps_an_object_open_keeps_its_memory() {
    on_each_fabric("an object that one keeps open", 3, |scene: &Scene| {
        let ep = scene.endpoint(2);
        let mut objects = scene.open(|node| words(node, "kept"));
        let kept = objects.pop().unwrap();
        let pointers = [0, 1].map(|node| kept.remote::<u64>(scene.id(node), "word").unwrap());
        drop(objects);
        // These objects are opened and closed later, so notices of the earlier closing have arrived by the end.
        for _ in 0..3 {
            drop(scene.open(|node| words(node, "other")));
            for node in &scene.nodes {
                eventually("the other's memory comes back", || (node.metrics().memory_bytes == 64).then_some(()));
            }
        }
        for (node, pointer) in pointers.into_iter().enumerate() {
            assert_eq!(ep.get(pointer).wait().unwrap(), node as u64 + 1);
        }
        drop(kept);
        comes_back(&scene.nodes);
        for pointer in pointers {
            // Over a network, the node learns of the free with a delay, and reads the old value until then.
            let error = eventually("a get is late", || ep.get(pointer).wait().err());
            assert!(matches!(error.kind(), FabricError::Freed { .. }), "{error}");
        }
    });
}

/// An opening that fails leaves nothing behind, on any node that had heard of it.
#[test]
fn openings_that_come_to_nothing_give_their_memory_back() {
    let _cores = beside("openings that fail");
    let hasty = over(Over::Shm, 2);
    let nodes = local_session_with(2, |builder| hasty(builder).timeout(SHORT)).expect("a session");
    let (first, second) = (&nodes[0], &nodes[1]);
    // No other node opens it.
    assert!(refused(SharedVar::<u64>::open(first, "alone")).is_timeout());
    comes_back(&nodes);
    // The path is already open; the region of the second opening is freed at once.
    let open = words_of_one(first, "taken");
    assert!(matches!(refused(words(first, "taken")).kind(), ErrorKind::AlreadyOpen));
    assert_eq!(first.metrics().memory_bytes, 64);
    drop(open);
    drop(ObjectBuilder::new(first, "never", "Words").region("word", first.alloc(GroupKey::DATA, 64).unwrap()));
    comes_back(&nodes);
    // The other node opens it differently.
    std::thread::scope(|scope| {
        scope.spawn(|| refused(words(first, "different")));
        scope.spawn(|| refused(SharedVar::<u64>::open(second, "different")));
    });
    comes_back(&nodes);
}

fn words_of_one(node: &Node, path: &str) -> Object {
    let word = node.alloc(GroupKey::DATA, 64).unwrap();
    ObjectBuilder::new(node, path, "Words").participants([node.id()]).region("word", word).announce().unwrap()
}

/// An abandoned ticket is passed on even if its node has closed the lock. Then all memory is freed.
#[test]
fn unfinished_work_is_done_when_its_object_is_closed() {
    on_each_fabric("a lock with a ticket that is given up", 2, |scene: &Scene| {
        let locks = scene.open(|node| Mutex::open(node, "lock", scene.id(0)));
        let [near, far] = [0, 1].map(|node| scene.endpoint(node));
        let [home, other]: [Mutex; 2] = locks.try_into().unwrap_or_else(|_| panic!("two"));
        let guard = near.block_on(home.lock(&near)).unwrap();
        let late = far.now() + SHORT;
        assert!(refused(far.block_on(other.lock_deadline(&far, late))).is_timeout());
        drop(other);
        near.block_on(guard.unlock()).unwrap();
        // These operations queue behind that ticket.
        let tickets = [(); 3].map(|()| home.lock(&near));
        for ticket in tickets {
            near.block_on(async { ticket.await?.unlock().await }).unwrap();
        }
        drop(home);
        comes_back(&scene.nodes);
    });
}
