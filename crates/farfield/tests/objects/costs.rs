//! The cost tables: the documented cost of each object's calls, without contention.

use std::future::Future;
use std::time::Duration;

use farfield::fabric::{Counts, GroupKey};
use farfield::hamband::types::{Account, Counter, CounterUpdate, OrSet};
use farfield::{
    ALock, ALockOptions, AtomicVar, Barrier, Collectives, CollectivesOptions, Endpoint, ErrorKind, KvOptions, KvStore,
    LockArray, LockGuard, McsLockArray, Mutex, OwnedVar, Placement, Queue, QueueOptions, Replicated, ReplicatedOptions,
    RingBuffer, RingOptions, RpcClient, RpcOptions, RpcServer, SharedVar, SpinLockArray, SwarmArray, SwarmOptions,
    SwarmStore, SwarmStoreOptions, TearCheck,
};

use crate::harness::{Over, SOON, Scene, alone, beside, between_hosts, eventually, poll_times, refused, session};

/// Puts, gets, atomics, round trips.
type Cost = [u64; 4];

fn card(counts: Counts) -> Cost {
    [counts.puts, counts.gets, counts.atomics, counts.round_trips]
}

/// Asserts the cost of one call to its endpoint.
#[track_caller]
fn costs<T>(endpoint: &Endpoint, call: impl Future<Output = farfield::Result<T>>, expected: Cost) -> T {
    let (result, counts) = endpoint.block_on(endpoint.counted(call));
    assert_eq!(card(counts), expected, "puts, gets, atomics, round trips");
    result.expect("a call that works")
}

/// The cost of a replicated write without that of reserving timestamps, on two of three memory nodes: its client does
/// so when a second or more has passed since it last did, however short the calls are.
fn unless_reserving(counts: Counts, atomics: u64) -> Cost {
    let [puts, gets, found, round_trips] = card(counts);
    if found == atomics + 2 { [puts, gets, atomics, round_trips - 1] } else { [puts, gets, found, round_trips] }
}

/// As [`costs`], of a replicated write.
#[track_caller]
fn costs_of_write<T>(endpoint: &Endpoint, call: impl Future<Output = farfield::Result<T>>, expected: Cost) -> T {
    let (result, counts) = endpoint.block_on(endpoint.counted(call));
    assert_eq!(unless_reserving(counts, expected[2]), expected, "puts, gets, atomics, round trips");
    result.expect("a call that works")
}

fn scene() -> Scene {
    let over = between_hosts().unwrap_or(Over::Shm);
    Scene { nodes: session(3, over), over, threads: 1 }
}

#[test]
fn variables_cost_as_documented() {
    let _cores = beside("costs of variables");
    let scene = scene();
    let (near, far) = (scene.endpoint(0), scene.endpoint(1));
    let others = || scene.nodes[0].others();

    let vars = scene.open(|node| AtomicVar::open(node, "atomic", scene.id(1)));
    let var = &vars[0];
    costs(&near, var.load(&near), [0, 1, 0, 1]);
    costs(&near, var.fetch_add(&near, 1), [0, 0, 1, 1]);
    costs(&near, var.compare_exchange(&near, 1, 2), [0, 0, 1, 1]).unwrap();
    costs(&near, var.compare_exchange(&near, 1, 2), [0, 0, 1, 1]).unwrap_err();
    costs(&near, var.swap(&near, 9), [0, 1, 1, 2]);
    costs(&near, var.store(&near, 10), [0, 1, 1, 2]);
    // The home node has no round trips, but as many operations: its accesses are atomic with those of other nodes.
    costs(&far, vars[1].swap(&far, 11), [0, 1, 1, 0]);

    let vars = scene.open(|node| SharedVar::<u64>::open(node, "shared"));
    let var = &vars[0];
    let local = async {
        var.store(var.load() + 1);
        Ok(())
    };
    costs(&near, local, [0; 4]);
    costs(&near, var.push_all(&near), [2, 0, 0, 1]);
    costs(&near, var.fence(&near, others()), [0, 2, 0, 1]);
    costs(&near, var.fence(&near, others()), [0; 4]);
    costs(&near, var.push(&near, [scene.id(2)]), [1, 0, 0, 1]);
    costs(&near, var.fence(&near, others()), [0, 1, 0, 1]);
    costs(&near, var.pull(&near, scene.id(1)), [0, 1, 0, 1]);
    // The own copy is already here.
    costs(&near, var.push(&near, [scene.id(0)]), [0; 4]);
    costs(&near, var.pull(&near, scene.id(0)), [0; 4]);

    let words = scene.open(|node| OwnedVar::<u64>::open(node, "word", scene.id(0)));
    let guards = scene.open(|node| OwnedVar::<[u64; 5]>::open(node, "guards", scene.id(0)));
    let sums = scene.open(|node| OwnedVar::<[u64; 5]>::open_with(node, "sums", scene.id(0), TearCheck::Checksum));
    let (mut word, mut guard, mut sum) =
        (words[0].writer().unwrap(), guards[0].writer().unwrap(), sums[0].writer().unwrap());
    let local = async {
        word.store(1);
        guard.store([1; 5]);
        sum.store([1; 5]);
        Ok(())
    };
    costs(&near, local, [0; 4]);
    costs(&near, word.push(&near), [2, 0, 0, 0]);
    costs(&near, guard.push(&near), [6, 0, 0, 0]);
    costs(&near, sum.push(&near), [2, 0, 0, 0]);
    near.block_on(near.global_fence(others())).unwrap();
    costs(&far, guards[1].load(&far), [0; 4]);
    costs(&far, words[1].pull(&far), [0, 1, 0, 1]);
    costs(&far, guards[1].pull(&far), [0, 3, 0, 3]);
    costs(&far, sums[1].pull(&far), [0, 1, 0, 1]);
    assert_eq!(costs(&near, guards[0].pull(&near), [0; 4]), [1; 5]);
}

/// A push reaches the nodes that opened the variable, and no other.
#[test]
fn a_push_goes_to_the_readers_only() {
    let _cores = beside("costs of variables among some");
    let scene = scene();
    let (pair, near) = ([scene.id(0), scene.id(2)], scene.endpoint(0));
    let open_pair = |index: usize| -> farfield::Result<_> {
        let node = &scene.nodes[index];
        let shared = SharedVar::<u64>::open_among(node, "shared", &pair)?;
        let word = OwnedVar::<u64>::open_among(node, "word", &pair, pair[0], TearCheck::Guards)?;
        let guards = OwnedVar::<[u64; 5]>::open_among(node, "guards", &pair, pair[0], TearCheck::Guards)?;
        Ok((shared, word, guards))
    };
    let vars = std::thread::scope(|scope| {
        let reader = scope.spawn(|| open_pair(2).unwrap());
        [open_pair(0).unwrap(), reader.join().unwrap()]
    });
    let (shared, mut word, mut guards) = (&vars[0].0, vars[0].1.writer().unwrap(), vars[0].2.writer().unwrap());
    shared.store(7);
    word.store(8);
    guards.store([9; 5]);
    costs(&near, shared.push_all(&near), [1, 0, 0, 1]);
    costs(&near, shared.push(&near, scene.nodes[0].others()), [1, 0, 0, 1]);
    costs(&near, word.push(&near), [1, 0, 0, 0]);
    costs(&near, guards.push(&near), [3, 0, 0, 0]);
    costs(&near, shared.fence(&near, scene.nodes[0].others()), [0, 1, 0, 1]);
    assert_eq!(vars[1].0.load(), 7);
    assert_eq!((vars[1].1.try_load(), vars[1].2.try_load()), (Some(8), Some([9; 5])));
    // A node that is not named cannot open it.
    let error = refused(OwnedVar::<u64>::open_among(&scene.nodes[1], "word", &pair, pair[0], TearCheck::Guards));
    assert!(matches!(error.kind(), ErrorKind::NotAParticipant { .. }), "{error}");
    let error = refused(SharedVar::<u64>::open_among(&scene.nodes[1], "shared", &pair));
    assert!(matches!(error.kind(), ErrorKind::NotAParticipant { .. }), "{error}");
}

#[test]
fn barriers_cost_as_documented() {
    let _cores = beside("costs of barriers");
    let scene = scene();
    let barriers = scene.open(|node| Barrier::open(node, "all", 1));
    let cells = scene.nodes[2].alloc(GroupKey::DATA, 8).unwrap();
    let costs = scene.run(|node, _, endpoint| {
        let mut part = barriers[node].thread().unwrap();
        let mut cards = Vec::new();
        for round in 0..4 {
            if round == 1 {
                endpoint.put_value(cells.remote(0), 1u64).detach().unwrap();
            }
            let (result, counts) = match round {
                3 => endpoint.block_on(endpoint.counted(part.wait_unfenced(endpoint))),
                _ => endpoint.block_on(endpoint.counted(part.wait(endpoint))),
            };
            result.unwrap();
            cards.push(card(counts));
        }
        cards
    });
    // Only the second round has something to fence: the put before it. A fence of the own node takes no round trip.
    for (node, cards) in costs.into_iter().enumerate() {
        assert_eq!(cards, [[2, 0, 0, 0], [2, 1, 0, u64::from(node != 2)], [2, 0, 0, 0], [2, 0, 0, 0]], "node {node}");
    }
}

#[test]
fn calls_cost_as_documented() {
    let _cores = beside("costs of calls");
    let scene = scene();
    let (near, far) = (scene.endpoint(0), scene.endpoint(1));
    let options = RpcOptions { batch_max: 4, window: 4, ..RpcOptions::default() };
    let server = RpcServer::<[u64; 3], u64>::open(&scene.nodes[0], "rpc", options).unwrap();
    let client = RpcClient::<[u64; 3], u64>::open(&scene.nodes[1], "rpc", scene.id(0), options).unwrap();
    let sum = |_, request: [u64; 3]| request.iter().sum();
    // A put each, whatever the request's length; waiting for one costs none.
    let mut call = costs(&far, client.begin(&far, &[1, 2, 3]), [1, 0, 0, 0]);
    assert_eq!(costs(&near, server.serve_next(&near, sum), [1, 0, 0, 0]), 1);
    eventually("the reply", || call.has_reply().then_some(()));
    assert_eq!(costs(&far, call.wait(), [0; 4]), 6);
    drop(call);
    // So do several requests together.
    let mut calls = costs(&far, client.begin_batch(&far, &[[1, 2, 3], [4, 5, 6], [7, 8, 9]]), [1, 0, 0, 0]);
    assert_eq!(costs(&near, server.serve_next(&near, sum), [1, 0, 0, 0]), 3);
    eventually("the replies", || calls.have_replies().then_some(()));
    let replies = costs(&far, calls.wait(), [0; 4]);
    assert!(replies.into_iter().map(|reply| reply.unwrap()).eq([6, 15, 24]));
    drop(calls);
    // More than one put carries: as few puts as possible. A wait of 10 ms, on a busy machine, puts a request again.
    let puts_of_many = || {
        std::thread::scope(|scope| {
            let many = scope.spawn(|| {
                let far = scene.endpoint(1);
                let call = async { Ok::<_, farfield::Error>(client.call_many(&far, &[[1; 3]; 10]).await) };
                let (replies, counts) = far.block_on(far.counted(call));
                assert!(replies.unwrap().into_iter().all(|reply| reply.unwrap() == 3));
                counts.puts
            });
            let mut handled = 0;
            while handled < 10 {
                handled += near.block_on(server.serve_next(&near, sum)).unwrap();
            }
            many.join().unwrap()
        })
    };
    let least = (0..50).map(|_| puts_of_many()).inspect(|puts| assert!(*puts >= 3)).find(|puts| *puts == 3);
    assert_eq!(least, Some(3), "each time a request was put again");
    // Looks that find nothing cost nothing; the first may find a request that was put again.
    server.try_serve(&near, sum).unwrap();
    assert_eq!(costs(&near, async { server.try_serve(&near, sum) }, [0; 4]), 0);
    // The client's wait puts its request again: after 10 ms, then after 20, 40 and 80 more. A busy machine wakes it
    // later.
    let mut call = costs(&far, client.begin(&far, &[1, 2, 3]), [1, 0, 0, 0]);
    let later = far.now() + Duration::from_millis(200);
    let (_, counts) = far.block_on(far.counted(call.wait_deadline(later)));
    assert!((1..=4).contains(&counts.puts) && card(counts)[1..] == [0; 3], "{:?}", card(counts));
}

/// Two puts for each chunk, and one more where room is returned: for each two chunks of four slots, unless a chunk for
/// the same member says so.
#[test]
fn collectives_cost_as_documented() {
    let _cores = beside("costs of collectives");
    let scene = scene();
    let mut options = CollectivesOptions::default();
    options.chunk_bytes = 64;
    let all = scene.open(|node| Collectives::open(node, "all", options));
    let all: Vec<_> = all.into_iter().map(std::sync::Mutex::new).collect();
    let root = scene.id(0);
    let costs = scene.run(|node, _, ep| {
        let mut all = all[node].lock().unwrap();
        let (mut data, mut into) = ([1u64; 32], [0; 96]);
        let (mut word, mut words) = ([1u64], [0; 3]);
        let own = if node == 0 { 3 } else { 0 };
        let add = u64::wrapping_add;
        let mut puts = Vec::new();
        let mut call = |cost: (farfield::Result<()>, Counts)| {
            cost.0.unwrap();
            let [posted, gets, atomics, round_trips] = card(cost.1);
            assert_eq!([gets, atomics, round_trips], [0; 3]);
            puts.push(posted);
        };
        call(ep.block_on(ep.counted(all.all_reduce(ep, &mut word, add))));
        call(ep.block_on(ep.counted(all.all_gather(ep, &word, &mut words))));
        call(ep.block_on(ep.counted(all.all_to_all(ep, &words.clone(), &mut words))));
        call(ep.block_on(ep.counted(all.broadcast(ep, root, &mut word))));
        call(ep.block_on(ep.counted(all.reduce(ep, root, &mut word, add))));
        call(ep.block_on(ep.counted(all.gather(ep, root, &word, &mut words[..own]))));
        // Four chunks of 8 words; in blocks of 11, 11 and 10 words, two chunks for each.
        call(ep.block_on(ep.counted(all.broadcast(ep, root, &mut data))));
        call(ep.block_on(ep.counted(all.all_gather(ep, &data, &mut into))));
        call(ep.block_on(ep.counted(all.all_reduce(ep, &mut data, add))));
        puts
    });
    assert_eq!(costs[0][..3], [4, 4, 4], "two puts to each of two members");
    assert_eq!(costs[1], costs[2]);
    assert_eq!(costs, [[4, 4, 4, 4, 0, 2, 16, 18, 20], [4, 4, 4, 1, 2, 2, 2, 18, 20], [4, 4, 4, 1, 2, 2, 2, 18, 20]]);
}

#[test]
fn replicated_registers_cost_as_documented() {
    let _cores = beside("costs of replicated registers");
    let scene = scene();
    let mut options = SwarmOptions::default();
    options.patience = SOON; // the third memory node is not asked, however slow the network
    let arrays = scene.open(|node| SwarmArray::<[u64; 4]>::open(node, "array", 3, options.clone()));
    let (ep, other) = (scene.endpoint(0), scene.endpoint(1));
    let (client, reader) = (arrays[0].client(&ep).unwrap(), arrays[1].client(&other).unwrap());
    // The first write also reserves timestamps, on two of three memory nodes.
    costs(&ep, client.read(0), [0, 2, 0, 1]);
    costs(&ep, client.write(0, [7; 4]), [3, 2, 6, 2]);
    assert_eq!(costs(&other, reader.read(0), [0, 2, 0, 1]), [7; 4]);
    // Two of three memory nodes are asked: registers begin with different ones.
    for register in 1..3 {
        costs(&ep, client.read(register), [0, 2, 0, 1]);
        // In the background, the value in place, and that its timestamp is fresh.
        costs_of_write(&ep, client.write(register, [7; 4]), [3, 2, 4, 1]);
        assert_eq!(costs(&ep, client.read(register), [0, 2, 0, 1]), [7; 4]);
        assert_eq!(costs(&other, reader.read(register), [0, 2, 0, 1]), [7; 4]);
    }
}

#[test]
fn a_replicated_store_costs_as_documented() {
    let _cores = beside("costs of a replicated store");
    let scene = scene();
    let mut options = SwarmStoreOptions::default();
    options.replicas.patience = SOON; // as above
    let stores = scene.open(|node| SwarmStore::<u64, [u64; 4]>::open(node, "store", options.clone()));
    let (ep, other) = (scene.endpoint(0), scene.endpoint(1));
    let (client, reader) = (stores[0].client(&ep).unwrap(), stores[1].client(&other).unwrap());
    // The first one takes a group of registers, too.
    assert!(ep.block_on(client.insert(&0, &[7; 4])).unwrap());
    for key in 1..4 {
        // Of each of three memory nodes: the value, its word, the record and the cell; in the background the record in
        // place, and that it was chosen; and the value in place.
        assert!(costs_of_write(&ep, client.insert(&key, &[7; 4]), [10, 0, 9, 1]));
        assert_eq!(costs(&ep, client.get(&key), [0, 2, 0, 1]), Some([7; 4]));
        // Each compare-and-swap of a word has one of the instance word after it: the key might move.
        costs_of_write(&ep, client.update(&key, &[8; 4]), [3, 2, 6, 1]);
        // The index, and then the value.
        assert_eq!(costs(&other, reader.get(&key), [0, 4, 0, 2]), Some([8; 4]));
        assert_eq!(costs(&other, reader.get(&key), [0, 2, 0, 1]), Some([8; 4]));
        // The value; the index, the bit that freezes the register, and its words; the index again, the next record, and
        // the limit with the register's next owner.
        let (updated, counts) = ep.block_on(ep.counted(client.update_if(&key, |found| found[0] == 8, &[9; 4])));
        // Two memory nodes are frozen and read, each by itself: the second one may count as one more. The value is read
        // with the words of the first that was frozen, and by itself if that has no copy in place.
        let is_as_documented = matches!(unless_reserving(counts, 11), [14, 10 | 11, 11, 7 | 8]);
        assert!(updated.unwrap() && is_as_documented, "{:?}", card(counts));
        // The old place, the index, and the new place; one get more for a copy in place that has not landed yet.
        let (found, counts) = other.block_on(other.counted(reader.get(&key)));
        assert_eq!(found.unwrap(), Some([9; 4]));
        assert!(
            matches!(card(counts), [0, gets @ 6..=8, 0, round_trips] if round_trips + 3 == gets),
            "{:?}",
            card(counts)
        );
        costs_of_write(&ep, client.delete(&key), [0, 2, 4, 1]);
    }
}

/// Hamband's three categories (table 1).
#[test]
fn replicated_types_cost_as_documented() {
    let _cores = beside("costs of replicated types");
    let scene = scene();
    let counters =
        scene.open(|node| Replicated::open(node, "counter", Counter::default(), ReplicatedOptions::default()));
    let sets = scene.open(|node| Replicated::open(node, "set", OrSet::<u8>::default(), ReplicatedOptions::default()));
    let accounts =
        scene.open(|node| Replicated::open(node, "account", Account::default(), ReplicatedOptions::default()));
    let ep = scene.endpoint(0);
    let others = scene.nodes.len() as u64 - 1;
    let mut counter = counters[0].writer().unwrap();
    for _ in 0..3 {
        // Reducible: a put to each other replica, and no wait.
        costs(&ep, counter.update(&ep, &CounterUpdate::Add(1)), [others, 0, 0, 0]).unwrap();
    }
    let mut set = sets[0].writer().unwrap();
    for value in 0..3 {
        // Conflict-free: the same.
        let add = sets[0].query(|set| set.addition_of(value, 0)).unwrap();
        costs(&ep, set.update(&ep, &add), [others, 0, 0, 0]).unwrap();
    }
    let mut account = accounts[0].writer().unwrap();
    costs(&ep, account.update(&ep, &Account::deposit_of(10)), [others, 0, 0, 0]).unwrap();
    ep.block_on(account.stable(&ep)).unwrap();
    // Conflicting, at its leader: a round trip to a majority; one more behind new calls that it may depend on.
    ep.block_on(account.update(&ep, &Account::withdrawal_of(1))).unwrap().unwrap();
    for _ in 0..3 {
        let (done, counts) = ep.block_on(ep.counted(account.update(&ep, &Account::withdrawal_of(1))));
        done.unwrap().unwrap();
        assert_eq!(counts.round_trips, 1, "{:?}", card(counts));
    }
}

#[test]
fn rings_cost_as_documented() {
    let _cores = beside("costs of rings");
    let scene = scene();
    let options = RingOptions::new(scene.id(0), (0..3).map(|node| (scene.id(node), 1)), 128);
    let rings = scene.open(|node| RingBuffer::open(node, "ring", options.clone()));
    let endpoints = [scene.endpoint(0), scene.endpoint(1), scene.endpoint(2)];
    let mut sender = rings[0].sender().unwrap();
    let mut receivers = rings.iter().map(|ring| ring.receiver().unwrap()).collect::<Vec<_>>();
    let mut bytes = Vec::new();
    for wraps in [false, false, true, false] {
        let puts = if wraps { 6 } else { 4 };
        let near = &endpoints[0];
        assert!(costs(near, async { sender.try_send(near, &[7; 40]) }, [puts, 0, 0, 0]));
        near.block_on(near.global_fence([scene.id(1), scene.id(2)])).unwrap(); // it has arrived
        for (node, receiver) in receivers.iter_mut().enumerate() {
            let endpoint = &endpoints[node];
            let cost = [u64::from(node > 0), 0, 0, 0];
            assert!(costs(endpoint, async { receiver.try_recv(endpoint, &mut bytes) }, cost));
            assert!(!costs(endpoint, async { receiver.try_recv(endpoint, &mut bytes) }, [0; 4]));
            endpoint.block_on(endpoint.global_fence([scene.id(0)])).unwrap(); // the sender has its acknowledgement
        }
    }
}

#[test]
fn queues_cost_as_documented() {
    let _cores = beside("costs of queues");
    let scene = scene();
    let queues = scene.open(|node| Queue::<[u64; 3]>::open(node, "queue", QueueOptions::new(scene.id(0), 4)));
    let [home, a, b] = [0, 1, 2].map(|node| scene.endpoint(node));
    let fences = |endpoint: &Endpoint| endpoint.counts().fences;
    let value = [7; 3];
    let (enqueue, dequeue, look) = ([1, 2, 2, 2], [0, 3, 2, 2], [0, 2, 0, 1]);
    for _ in 0..6 {
        costs(&a, queues[1].enqueue(&a, &value), enqueue);
        let before = fences(&b);
        costs(&b, queues[2].dequeue(&b), dequeue);
        assert_eq!(fences(&b) - before, 1);
        costs(&b, queues[2].try_dequeue(&b), look);
    }
    // A batch costs as much as one value. All dequeues of its values but the last leave the head unchanged.
    costs(&a, queues[1].enqueue_batch(&a, &[value; 3]), enqueue);
    for last in [false, false, true] {
        costs(&b, queues[2].dequeue(&b), [0, 3, 1 + u64::from(last), 2]);
    }
    for _ in 0..4 {
        costs(&a, queues[1].try_enqueue(&a, &value), enqueue);
    }
    assert!(!costs(&a, queues[1].try_enqueue(&a, &value), look));
    // Other nodes have used these positions: the hint covers all of them.
    let mut late = dequeue;
    (late[1], late[3]) = (late[1] + 2, late[3] + 1);
    costs(&a, queues[1].dequeue(&a), late);
    costs(&a, queues[1].dequeue(&a), dequeue);
    // At home there are no round trips. This node has never enqueued, so its first call polls an outdated position
    // first.
    costs(&home, queues[0].enqueue(&home, &value), [1, 4, 2, 0]);
    costs(&home, queues[0].enqueue(&home, &value), [1, 2, 2, 0]);
    costs(&b, queues[2].dequeue(&b), late);
    // Three values are left, in the last two slots and the first. Node 1 learns of what node 0 has enqueued.
    assert_eq!(costs(&a, queues[1].len(&a), [0, 7, 0, 3]), 3);
    assert_eq!(costs(&a, queues[1].len(&a), [0, 5, 0, 2]), 3);
    costs(&a, queues[1].dequeue(&a), late);
    costs(&a, queues[1].dequeue(&a), dequeue);
    assert_eq!(costs(&a, queues[1].len(&a), [0, 4, 0, 2]), 1);
    assert!(!costs(&a, queues[1].is_empty(&a), look));
    costs(&a, queues[1].dequeue(&a), dequeue);
    assert_eq!(costs(&a, queues[1].len(&a), [0, 3, 0, 1]), 0);
    assert!(costs(&a, queues[1].is_empty(&a), look));
    assert!(!costs(&a, queues[1].is_closed(&a), look));
    assert!(costs(&a, queues[1].close(&a), [0, 2, 1, 2]));
    assert!(!costs(&a, queues[1].close(&a), look));
    assert!(costs(&a, queues[1].is_closed(&a), look));
    let refused = async { Ok(queues[1].enqueue(&a, &value).await.is_err_and(|error| error.is_closed())) };
    assert!(costs(&a, refused, look));
    let ended = async { Ok(queues[1].dequeue(&a).await.is_err_and(|error| error.is_closed())) };
    assert!(costs(&a, ended, look));
}

/// Two consumers and two values: the consumer that loses the first takes the second. Each poll is two gets and a round
/// trip. Each attempt is a get, a fence, a compare-and-swap and a round trip. The hint is raised once.
#[test]
fn contended_queues_cost_as_documented() {
    let _cores = beside("costs of contended queues");
    let over = Over::Weak(13);
    let scene = Scene { nodes: session(3, over), over, threads: 1 };
    let queues = scene.open(|node| Queue::<[u64; 3]>::open(node, "queue", QueueOptions::new(scene.id(0), 4)));
    let home = scene.endpoint(0);
    let mut slower = 0;
    for round in 0..200 {
        for _ in 0..2 {
            home.block_on(queues[0].enqueue(&home, &[round; 3])).unwrap();
        }
        let counts = scene.run(|node, _, endpoint| {
            let (taken, counts) = match node {
                0 => return None,
                _ => endpoint.block_on(endpoint.counted(queues[node].dequeue(endpoint))),
            };
            taken.unwrap();
            Some(counts)
        });
        for counts in counts.into_iter().flatten() {
            let attempts = counts.fences;
            let looks = (counts.gets - attempts) / 2;
            assert!((1..=2).contains(&attempts) && (attempts..=5).contains(&looks), "{counts:?}");
            assert_eq!(counts.round_trips, looks + attempts, "{counts:?}");
            assert!((attempts..=attempts + 1).contains(&counts.atomics) && counts.puts == 0, "{counts:?}");
            slower += u64::from(attempts == 2);
        }
    }
    println!("{slower} of 400 were slower");
}

#[test]
fn locks_cost_as_documented() {
    let _cores = beside("costs of locks");
    let scene = scene();
    let locks = scene.open(|node| Mutex::open(node, "lock", scene.id(0)));
    let cells: Vec<_> = scene.nodes.iter().map(|node| node.alloc(GroupKey::DATA, 8).unwrap()).collect();
    let (home, a, b) = (scene.endpoint(0), scene.endpoint(1), scene.endpoint(2));
    // The lock is free, and unchanged since this node last saw it.
    for _ in 0..3 {
        let guard = costs(&a, locks[1].lock(&a), [0, 0, 1, 1]);
        costs(&a, guard.unlock(), [0, 0, 1, 1]);
    }
    // Another node has acquired and released it, and left the same word behind: no ticket was drawn.
    let guard = costs(&b, locks[2].lock(&b), [0, 0, 1, 1]);
    costs(&b, locks[2].try_lock(&b), [0, 0, 1, 1]);
    costs(&b, guard.unlock(), [0, 0, 1, 1]);
    // A ticket was drawn in the meantime. The guess is wrong, and the first attempt corrects it.
    let guard = b.block_on(locks[2].lock(&b)).unwrap();
    let deadline = a.now() + std::time::Duration::from_millis(1);
    assert!(a.block_on(locks[1].lock_deadline(&a, deadline)).is_err());
    // The ticket belongs to the service thread, which passes it on once the lock is free, and so changes the word. The
    // holder of the next ticket acquires the lock only after that.
    let mut next = Box::pin(locks[0].lock(&home));
    let atomics = || scene.nodes[0].metrics().counts.atomics;
    let before = atomics();
    eventually("a ticket is drawn", || {
        assert!(poll_times(next.as_mut(), 1).is_none(), "the lock is held");
        (atomics() == before + 2).then_some(())
    });
    b.block_on(guard.unlock()).unwrap();
    home.block_on(async { next.await.unwrap().unlock().await.unwrap() });
    let guard = costs(&a, locks[1].lock(&a), [0, 0, 2, 2]);
    // The fence covers nodes that were put to, except the lock's home.
    a.put_value(cells[0].remote(0), 1u64).detach().unwrap();
    costs(&a, guard.unlock(), [0, 0, 1, 1]);
    let guard = costs(&a, locks[1].lock(&a), [0, 0, 1, 1]);
    a.put_value(cells[2].remote(0), 1u64).detach().unwrap();
    costs(&a, guard.unlock(), [0, 1, 1, 2]);
    // At home there are no round trips.
    home.block_on(async { locks[0].lock(&home).await.unwrap().unlock().await.unwrap() });
    let guard = costs(&home, locks[0].lock(&home), [0, 0, 1, 0]);
    costs(&home, guard.unlock(), [0, 0, 1, 0]);
}

#[test]
fn stores_cost_as_documented() {
    let _cores = alone("costs of stores");
    let scene = scene();
    // One lock, on node 0.
    let options = |placement| KvOptions { slots_per_node: 300, locks: 1, placement, ..KvOptions::default() };
    let kvs = scene.open(|node| KvStore::<u64, u64>::open(node, "kv", options(Placement::Inserter)));
    let ends = [scene.endpoint(0), scene.endpoint(1), scene.endpoint(2)];
    let (a, b) = (&ends[1], &ends[2]);

    // The value is here, and the lock elsewhere. The tracker's puts are posted by its own endpoint.
    let puts = |node: usize| scene.nodes[node].metrics().counts.puts;
    // An operation counts once it was posted, so a service thread may have one more to count when its put has landed.
    let settled_puts = |node: usize| {
        let (mut before, mut now) = (None, puts(node));
        while before.replace(now) != Some(now) {
            std::thread::sleep(std::time::Duration::from_millis(100));
            now = puts(node);
        }
        now
    };
    // The lock's word as node 1 last saw it.
    costs(a, kvs[1].delete(a, &1), [0, 0, 2, 2]);
    let before = settled_puts(1);
    assert!(costs(a, kvs[1].insert(a, &1, &10), [0, 0, 2, 2]));
    assert_eq!(settled_puts(1) - before, 4, "message and head to each of two nodes");
    assert!(!costs(a, kvs[1].insert(a, &1, &10), [0, 0, 2, 2]));
    costs(a, kvs[1].get(a, &1), [0; 4]);
    costs(a, kvs[1].update(a, &1, &11), [0, 0, 2, 2]);
    costs(a, kvs[1].upsert(a, &1, &12), [0, 0, 2, 2]);
    costs(a, kvs[1].modify(a, &1, |_| Some(13)), [0, 0, 2, 2]);
    // A miss, on any node.
    costs(b, kvs[2].get(b, &2), [0; 4]);
    // The value is elsewhere.
    assert_eq!(costs(b, kvs[2].get(b, &1), [0, 1, 0, 1]), Some(13));
    costs(b, kvs[2].update(b, &1, &14), [2, 1, 2, 3]);
    costs(b, kvs[2].modify(b, &1, |_| Some(15)), [2, 2, 2, 4]);
    let hour = Duration::from_secs(3600);
    assert!(costs(a, kvs[1].expire_after(a, &1, hour), [0, 0, 2, 2]));
    assert!(costs(b, kvs[2].expire_after(b, &1, hour), [0, 0, 2, 2]));
    costs(b, kvs[2].upsert_for(b, &1, &16, hour), [2, 1, 2, 3]);
    // The value is on the lock's node.
    assert!(costs(&ends[0], kvs[0].insert(&ends[0], &3, &1), [0, 0, 2, 0]));
    costs(b, kvs[2].update(b, &3, &2), [2, 0, 2, 2]);
    // Deletes, with the value here and elsewhere.
    let before = settled_puts(1);
    assert!(costs(a, kvs[1].delete(a, &1), [0, 0, 2, 2]));
    assert_eq!(settled_puts(1) - before, 4);
    assert!(a.block_on(kvs[1].insert(a, &1, &1)).unwrap());
    let before = settled_puts(2);
    assert!(costs(b, kvs[2].delete(b, &1), [1, 1, 2, 3]));
    assert_eq!(settled_puts(2) - before, 1 + 8, "the slot, and two messages to each of two nodes");

    // Many keys at once: one get for each remote value, and one round trip for each 64.
    for key in 100..200 {
        assert!(a.block_on(kvs[1].insert(a, &key, &key)).unwrap());
    }
    let mut values = Vec::new();
    let keys: Vec<u64> = (90..190).collect();
    costs(b, kvs[2].get_many(b, &keys[..60], &mut values), [0, 50, 0, 1]);
    costs(b, kvs[2].get_many(b, &keys, &mut values), [0, 90, 0, 2]);
    assert_eq!(values.iter().filter(|value| matches!(value, Ok(Some(_)))).count(), 90);
    costs(a, kvs[1].get_many(a, &keys, &mut values), [0; 4]);

    // By hash: the value is on a third node.
    let kvs = scene.open(|node| KvStore::<u64, u64>::open(node, "hash", options(Placement::Hash)));
    a.block_on(kvs[1].delete(a, &0)).unwrap();
    let far = (0..100)
        .find(|key| {
            a.block_on(kvs[1].insert(a, key, &1)).unwrap();
            let (_, get) = a.block_on(a.counted(kvs[1].get(a, key)));
            let (_, update) = a.block_on(a.counted(kvs[1].update(a, key, &2)));
            a.block_on(kvs[1].delete(a, key)).unwrap();
            get.gets == 1 && update.gets == 1
        })
        .expect("a key whose value lies on node 2");
    assert!(costs(a, kvs[1].insert(a, &far, &1), [3, 1, 2, 3]));
}

#[test]
fn locks_for_asymmetric_memory_cost_as_documented() {
    let _cores = beside("costs of locks for asymmetric memory");
    let scene = scene();
    let options = ALockOptions { remote_budget: 1, ..ALockOptions::default() };
    let locks = scene.open(|node| ALock::open_with(node, "alock", scene.id(0), options));
    let cells: Vec<_> = scene.nodes.iter().map(|node| node.alloc(GroupKey::DATA, 8).unwrap()).collect();
    let (home, a, b) = (scene.endpoint(0), scene.endpoint(1), scene.endpoint(2));

    // Remote and free: a compare-and-swap, then the put of `victim` together with a get. A compare-and-swap releases
    // it.
    let guard = costs(&a, locks[1].lock(&a), [1, 1, 1, 2]);
    costs(&a, guard.unlock(), [0, 0, 1, 1]);
    let guard = costs(&a, locks[1].try_lock(&a), [1, 1, 1, 2]).expect("it is free");
    // The fence covers nodes that were put to, except the lock's.
    a.put_value(cells[0].remote(0), 1u64).detach().unwrap();
    costs(&a, guard.unlock(), [0, 0, 1, 1]);
    let guard = costs(&a, locks[1].lock(&a), [1, 1, 1, 2]);
    a.put_value(cells[2].remote(0), 1u64).detach().unwrap();
    costs(&a, guard.unlock(), [0, 1, 1, 2]);

    // Behind another operation: two attempts, and a put to link itself. One put grants the lock. With its budget spent,
    // it competes.
    let guard = costs(&a, locks[1].lock(&a), [1, 1, 1, 2]);
    let before = b.counts();
    let mut waits = std::pin::pin!(b.counted(locks[2].lock(&b)));
    let told = || (b.counts() - before).puts == 1;
    eventually("it waits in the queue", || {
        assert!(poll_times(waits.as_mut(), 1).is_none());
        told().then_some(())
    });
    a.block_on(a.global_fence([scene.id(0)])).unwrap();
    // The put of the link, which no fence covers, has landed.
    b.get(cells[1].remote::<u64>(0)).wait().unwrap();
    costs(&a, guard.unlock(), [1, 0, 0, 0]);
    let (guard, counts) = b.block_on(waits);
    assert_eq!((counts.puts, counts.atomics), (2, 2), "{counts:?}");
    costs(&b, guard.unwrap().unlock(), [0, 0, 1, 1]);

    // On the lock's node: no operations, and no queue pair to itself. (Its lane and the service thread's connect to two
    // others.)
    let pairs = || scene.nodes[0].metrics().queue_pairs;
    let to_others = if between_hosts().is_some() { 4 } else { 0 };
    for _ in 0..10 {
        let guard = costs(&home, locks[0].lock(&home), [0; 4]);
        costs(&home, guard.unlock(), [0; 4]);
    }
    let guard = costs(&home, locks[0].lock(&home), [0; 4]);
    home.put_value(cells[1].remote(0), 1u64).detach().unwrap();
    costs(&home, guard.unlock(), [0, 1, 0, 1]);
    assert_eq!(pairs().0, to_others);

    // The rival locks.
    let spins = scene.open(|node| SpinLockArray::open(node, "spin", 1));
    let queues = scene.open(|node| McsLockArray::open(node, "mcs", 1, 64));
    let guard = costs(&a, spins[1].lock(&a, 0), [0, 0, 1, 1]);
    costs(&a, guard.unlock(), [0, 0, 1, 1]);
    let guard = costs(&home, spins[0].lock(&home, 0), [0, 0, 1, 0]);
    costs(&home, guard.unlock(), [0, 0, 1, 0]);
    let guard = costs(&home, queues[0].lock(&home, 0), [0, 0, 1, 0]);
    costs(&home, guard.unlock(), [0, 0, 1, 0]);
    assert_eq!(pairs().0, to_others + usize::from(between_hosts().is_some()), "their words are the NIC's");
    let guard = costs(&a, queues[1].lock(&a, 0), [0, 0, 1, 1]);
    costs(&a, guard.unlock(), [0, 0, 1, 1]);
}
