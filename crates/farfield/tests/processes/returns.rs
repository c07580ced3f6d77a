//! Nodes that return: real processes that die or leave and are started again, at the same place, as other nodes.

use std::time::Duration;

use farfield::fabric::{ErrorKind as FabricError, GroupKey, NodeId};
use farfield::toolkit::ObjectBuilder;
use farfield::{
    AtomicVar, Barrier, Endpoint, Error, ErrorKind, KvOptions, KvStore, MemberStatus, Mutex, Node, Placement, Queue,
    QueueOptions, Result, RingBuffer, RingOptions,
};

use crate::session::{STEP_MAX, Session, begun};

const PLACES: u16 = 4;
/// The place that is replaced after each round, and whether its node is killed or leaves. In the end none of the first
/// nodes is left.
const ROUNDS: [(u16, bool); 7] = [(2, true), (0, true), (2, false), (3, true), (1, true), (1, false), (2, true)];

/// The members of the session after so many replacements: the node of each place.
fn members(round: usize) -> [u16; PLACES as usize] {
    let mut members = [0, 1, 2, 3];
    for (place, _) in &ROUNDS[..round] {
        members[usize::from(*place)] += PLACES;
    }
    members
}

#[test]
fn returning_nodes_work_with_all_others_until_all_are_replaced() {
    let mut session = Session::start(module_path!(), "rounds", PLACES);
    for (place, dies) in ROUNDS {
        let node = NodeId(place);
        session.all_begun();
        if dies {
            session.kill(node);
        } else {
            session.ends(node);
        }
        session.begin(place);
    }
    session.end(0..PLACES);
}

#[test]
fn two_return_at_once() {
    let mut session = Session::start(module_path!(), "two", PLACES);
    let two = [NodeId(1), NodeId(2)];
    session.all_begun();
    two.iter().for_each(|node| session.kill(*node));
    two.iter().for_each(|node| session.begin(node.0));
    session.end(0..PLACES);
}

/// A restarted node joins the open objects that store nothing on it; an object with memory on every node reports how
/// to proceed.
#[test]
fn a_returning_node_joins_the_open_objects() {
    let mut session = Session::start(module_path!(), "joins", PLACES);
    // A node that dies before all have opened the objects makes their opening fail.
    session.all_begun();
    for place in [2, 2, 3] {
        let victim = NodeId(place);
        session.hear(victim, "ready");
        session.kill(victim);
        session.begin(place);
        session.hear(victim, "joined");
    }
    session.end(0..PLACES);
}

/// More often than a table of 256 numbers had room for; each life joins the variable that the first one opened.
#[test]
fn a_place_is_filled_again_and_again() {
    const LIVES: u16 = 150;
    let name = format!("test-lives-{}", std::process::id());
    let start = |place| Node::builder().session(&name).node(place).nodes(2).start().expect("the node starts");
    let open = |node: &Node| AtomicVar::open(node, "sum", NodeId(0)).expect("it is open, or all open it");
    let (stays, first) = (start(0), start(1));
    let kept = std::thread::scope(|scope| {
        let kept = scope.spawn(|| open(&stays));
        drop(open(&first));
        kept.join().expect("no panic")
    });
    first.leave();
    for life in 1..LIVES {
        let node = start(1);
        assert_eq!(node.id(), NodeId(1 + 2 * life));
        let (sum, endpoint) = (open(&node), node.endpoint().expect("an endpoint"));
        assert_eq!(endpoint.block_on(sum.fetch_add(&endpoint, 1)).expect("its home lives"), u64::from(life) - 1);
        drop((sum, endpoint));
        node.leave();
    }
    let endpoint = stays.endpoint().expect("an endpoint");
    assert_eq!(endpoint.block_on(kept.load(&endpoint)).expect("it is here"), u64::from(LIVES) - 1);
    // The nodes' memory is given back: each has 192 GiB of address space in two processes, which here are one.
    let status = std::fs::read_to_string("/proc/self/status").expect("the process's own");
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")?.trim().strip_suffix(" kB"));
    let size_gib = size.expect("a size").trim().parse::<u64>().expect("a number") >> 20;
    assert!(size_gib < 4096, "{size_gib} GiB of address space after {LIVES} lives");
}

/// Not a test: the work of a child process.
#[test]
fn node_process() {
    crate::session::play(Duration::from_secs(20), |role, node, endpoint| match role {
        "rounds" => rounds(node, endpoint),
        "two" => two(node, endpoint),
        "joins" => joins(node, endpoint),
        role => panic!("no role {role}"),
    });
}

/// Waits until these are the members, as this node sees it.
fn wait_for_members(node: &Node, members: impl Into<Vec<u16>>) {
    let mut members: Vec<u16> = members.into();
    members.sort_unstable();
    while node.live_members() != members.iter().copied().map(NodeId).collect::<Vec<_>>() {
        std::thread::yield_now();
    }
}

/// Opens objects among the members, and uses them. Returns the one with the newest member as its home.
fn work(node: &Node, endpoint: &Endpoint, path: &str, newest: NodeId) -> Result<AtomicVar> {
    let barrier = Barrier::open(node, &format!("{path}/barrier"), 1)?;
    let mutex = Mutex::open(node, &format!("{path}/mutex"), newest)?;
    let sum = AtomicVar::open(node, &format!("{path}/sum"), newest)?;
    let ring = RingBuffer::open(node, &format!("{path}/ring"), RingOptions::broadcast(node, newest, 256))?;
    let mut part = barrier.thread()?;
    for _ in 0..100 {
        let guard = endpoint.block_on(mutex.lock(endpoint))?;
        let before = endpoint.block_on(sum.load(endpoint))?;
        endpoint.block_on(sum.store(endpoint, before + 1))?;
        endpoint.block_on(guard.unlock())?;
    }
    endpoint.block_on(part.wait(endpoint))?;
    assert_eq!(endpoint.block_on(sum.load(endpoint))?, 100 * u64::from(PLACES));
    if node.id() == newest {
        let mut sender = ring.sender()?;
        for number in 0..200u64 {
            endpoint.block_on(sender.send(endpoint, &number.to_le_bytes()))?;
        }
        endpoint.block_on(sender.wait_acknowledged(endpoint, sender.position(), endpoint.deadline()))?;
    } else {
        let (mut receiver, mut bytes) = (ring.receiver()?, Vec::new());
        for number in 0..200u64 {
            endpoint.block_on(receiver.recv(endpoint, &mut bytes))?;
            assert_eq!(bytes, number.to_le_bytes());
        }
    }
    endpoint.block_on(part.wait(endpoint))?;
    store_and_queue(node, endpoint, path, newest)?;
    Ok(sum)
}

/// A store, in which all nodes insert, read, change and delete keys; and a queue on the newest, by which each sends its
/// number to all.
fn store_and_queue(node: &Node, endpoint: &Endpoint, path: &str, newest: NodeId) -> Result<()> {
    let mut part = Barrier::open(node, &format!("{path}/store/barrier"), 1)?.thread()?;
    let options = KvOptions { slots_per_node: 64, locks: 8, placement: Placement::Hash, ..KvOptions::default() };
    let store = KvStore::<u64, u64>::open(node, &format!("{path}/store"), options)?;
    let queue = Queue::<u64>::open(node, &format!("{path}/queue"), QueueOptions::new(newest, 16))?;
    let members = node.live_members();
    let me = u64::from(node.id().0);
    let next = members.iter().map(|member| u64::from(member.0)).find(|member| *member > me);
    let next = next.unwrap_or(u64::from(members[0].0));
    let keys_of = |node: u64| 100 * node..100 * node + 10;
    for key in keys_of(me) {
        assert!(endpoint.block_on(store.insert(endpoint, &key, &key))?);
    }
    for _ in &members {
        endpoint.block_on(queue.enqueue(endpoint, &me))?;
    }
    endpoint.block_on(part.wait(endpoint))?;
    assert_eq!(store.len(), 10 * members.len());
    for key in keys_of(next) {
        assert_eq!(endpoint.block_on(store.modify(endpoint, &key, |value| value.map(|value| value + 1)))?, Some(key));
    }
    let mut received = 0;
    for _ in &members {
        received += endpoint.block_on(queue.dequeue(endpoint))?;
    }
    assert!(members.iter().map(|member| u64::from(member.0)).max().is_some_and(|most| received <= 4 * most));
    endpoint.block_on(part.wait(endpoint))?;
    assert_eq!(endpoint.block_on(queue.try_dequeue(endpoint))?, None);
    for key in keys_of(me) {
        assert_eq!(endpoint.block_on(store.get(endpoint, &key))?, Some(key + 1));
        assert!(endpoint.block_on(store.delete(endpoint, &key))?);
    }
    endpoint.block_on(part.wait(endpoint))?;
    assert!(store.is_empty());
    endpoint.block_on(part.wait(endpoint))
}

fn assert_names(error: &Error, node: NodeId, died: bool) {
    let ErrorKind::Fabric(cause) = error.kind() else { panic!("{error:?}") };
    let names = match (cause.kind(), died) {
        (FabricError::PeerDead { node: named, .. }, true) | (FabricError::PeerLeft { node: named }, false) => *named,
        _ => panic!("{error:?}"),
    };
    assert_eq!(names, node, "{error}");
}

fn rounds(node: &Node, endpoint: &Endpoint) -> Result<()> {
    let me = node.id();
    assert_eq!((node.rank_of(me), node.nodes()), (usize::from(me.0 % PLACES), usize::from(PLACES)));
    let first = (0..=ROUNDS.len()).find(|round| members(*round).contains(&me.0)).expect("a member");
    // The objects of earlier rounds, with dead homes.
    let mut old: Vec<(AtomicVar, NodeId, bool)> = Vec::new();
    for round in first..=ROUNDS.len() {
        wait_for_members(node, members(round));
        let newest = round.checked_sub(1).map_or(me.0 % PLACES, |last| ROUNDS[last].0);
        let newest = NodeId(members(round)[usize::from(if round == 0 { 2 } else { newest })]);
        let sum = work(node, endpoint, &format!("round/{round}"), newest)?;
        // A pointer to memory of one life never reaches the next.
        for (var, home, died) in &old {
            let error = endpoint.block_on(var.store(endpoint, 99)).expect_err("its home is gone");
            assert_names(&error, *home, *died);
            let status = node.status_of(*home);
            assert_eq!(status, Some(if *died { MemberStatus::Evicted } else { MemberStatus::Departed }));
        }
        let Some((place, dies)) = ROUNDS.get(round) else { break };
        let next = NodeId(members(round)[usize::from(*place)]);
        begun();
        if me == next {
            if *dies {
                loop {
                    std::thread::park();
                }
            }
            return Ok(());
        }
        if newest == next {
            old.push((sum, newest, *dies));
        }
    }
    assert_eq!(node.members().filter(|member| node.rank_of(*member) == 2).count(), 4, "places have a history");
    Ok(())
}

fn two(node: &Node, endpoint: &Endpoint) -> Result<()> {
    let is_back = node.id().0 >= PLACES;
    if !is_back {
        work(node, endpoint, "before", NodeId(0))?;
        begun();
        if [1, 2].contains(&node.id().0) {
            loop {
                std::thread::park();
            }
        }
    }
    // The survivors and the restarted nodes find each other by reopening, in any order.
    let (again, barrier) = loop {
        let reopened = node.reopen("after", |again| {
            let barrier = Barrier::open(node, &format!("{}/all-there", again.path()), 1)?;
            Ok((again.clone(), barrier))
        })?;
        if reopened.0.members().len() == usize::from(PLACES) {
            break reopened;
        }
    };
    assert_eq!(again.members(), [0, 3, 5, 6].map(NodeId));
    endpoint.block_on(barrier.thread()?.wait(endpoint))?;
    assert_eq!(again.home(NodeId(2)), NodeId(6));
    work(node, endpoint, again.path(), again.home(NodeId(2)))?;
    Ok(())
}

/// How often each life adds under the lock.
const ADDITIONS: u64 = 50;
/// Those of the first four lives, of two at place 2, and one at place 3.
const TURNS: u64 = 7;

/// A lock, a sum and a count that node 0 has; those that die do so when they have added.
fn joins(node: &Node, endpoint: &Endpoint) -> Result<()> {
    let home = NodeId(0);
    let (sum, lock) = (AtomicVar::open(node, "sum", home)?, Mutex::open(node, "lock", home)?);
    let turns = AtomicVar::open(node, "turns", home)?;
    let everywhere = |layout: &'static str| {
        let word = node.alloc(GroupKey::DATA, 8)?;
        ObjectBuilder::new(node, layout, "Words").layout(layout).region("word", word).announce()
    };
    // An object that admits any fitting node; this one reports so.
    let elsewhere = |home: u16| {
        let opening =
            ObjectBuilder::new(node, "elsewhere", "Elsewhere").layout(if home == 0 { "home=0" } else { "home=1" });
        opening.takes_in_returned().announce()
    };
    let has_returned = node.id().0 >= PLACES;
    let objects = if has_returned {
        for (object, why) in [(everywhere("words")?, "a part for each node"), (elsewhere(1)?, "its layout")] {
            let error = object.wait(Duration::from_millis(500)).expect_err("the others have it open");
            assert!(error.is_timeout(), "{error}");
            assert!([why, "Node::reopen"].iter().all(|part| error.to_string().contains(part)), "{error}");
        }
        println!("joined");
        Vec::new()
    } else {
        vec![everywhere("words")?, elsewhere(0)?]
    };
    for object in &objects {
        object.wait(STEP_MAX)?;
    }
    begun();
    for _ in 0..ADDITIONS {
        let guard = endpoint.block_on(lock.lock(endpoint))?;
        let before = endpoint.block_on(sum.load(endpoint))?;
        endpoint.block_on(sum.store(endpoint, before + 1))?;
        endpoint.block_on(guard.unlock())?;
    }
    endpoint.block_on(turns.fetch_add(endpoint, 1))?;
    // The lives that die: the first two of place 2, and the first of place 3.
    if [2, 2 + PLACES, 3].contains(&node.id().0) {
        println!("ready");
        loop {
            std::thread::park();
        }
    }
    while endpoint.block_on(turns.load(endpoint))? < TURNS {
        std::thread::yield_now();
    }
    assert_eq!(endpoint.block_on(sum.load(endpoint))?, TURNS * ADDITIONS);
    // No node adds to the sum again until all have read it.
    endpoint.block_on(turns.fetch_add(endpoint, 1))?;
    let looked = TURNS + u64::from(PLACES);
    while endpoint.block_on(turns.load(endpoint))? < looked {
        std::thread::yield_now();
    }
    drop(objects);
    // The home closes it first: its memory stays for those that have joined.
    if node.id() == home {
        drop((sum, lock));
        endpoint.block_on(turns.fetch_add(endpoint, 1))?;
    } else {
        endpoint.block_on(async {
            while turns.load(endpoint).await? == looked {
                endpoint.pause().await;
            }
            sum.fetch_add(endpoint, 1).await?;
            lock.lock(endpoint).await?.unlock().await
        })?;
    }
    endpoint.block_on(turns.fetch_add(endpoint, 1))?;
    loop {
        match endpoint.block_on(turns.load(endpoint)) {
            Ok(count) if count < looked + 1 + u64::from(PLACES) => std::thread::yield_now(),
            Ok(_) => return Ok(()),
            // The home has seen it, and left.
            Err(error) if node.id() != home && error.is_gone() => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}
