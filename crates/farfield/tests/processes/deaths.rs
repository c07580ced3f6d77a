//! The behaviour of every object when a process dies, is stopped, or leaves. Each session consists of real processes,
//! one of which is killed (`kill -9`) at a moment that it announces itself.

use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

use farfield::fabric::{ErrorKind as FabricError, GroupKey, NodeId};
use farfield::history::kv::{KvHistory, KvInput, KvOutput, KvRecord};
use farfield::history::{Budget, Event};
use farfield::swarm::{NoMajority, SwarmClient, SwarmStoreClient};
use farfield::toolkit::{Poller, Progress};
use farfield::{
    Barrier, Endpoint, Error, ErrorKind, KvOptions, KvStore, LockArray, LockGuard, LockKind, LockOptions, LockTable,
    MemberStatus, Mutex, Node, OwnedVar, Placement, Queue, QueueOptions, Result, RingBuffer, RingOptions, SharedVar,
    SwarmArray, SwarmOptions, SwarmStore, SwarmStoreOptions, TransactionOptions, Transactions,
};

use crate::session::{STEP_MAX, Session, begun, is_on_verbs, is_stopped, own_file, signal};

/// The node that dies.
const VICTIM: NodeId = NodeId(2);

// ---- the parent -----------------------------------------------------------------------------------------------------

/// Runs a role in three processes, and kills the victim when it is ready.
fn killed(role: &str) {
    let mut session = Session::start(module_path!(), role, 3);
    session.all_begun();
    session.hear(VICTIM, "ready");
    session.kill(VICTIM);
    session.end([0, 1]);
}

#[test]
fn a_barrier_names_the_dead_and_the_survivors_go_on_with_another() {
    killed("barrier");
}

#[test]
fn the_next_holder_of_a_lock_learns_that_the_last_one_died() {
    killed("mutex-holder");
}

#[test]
fn the_next_holder_of_any_lock_learns_that_the_last_one_died() {
    for role in ["alock-holder", "spin-holder", "mcs-holder"] {
        killed(role);
    }
}

#[test]
fn locks_go_on_without_their_dead_waiters() {
    for role in ["alock-waiter", "spin-waiter", "mcs-waiter"] {
        let mut session = Session::start(module_path!(), role, 3);
        session.all_begun();
        session.hear(NodeId(0), "all wait");
        session.kill(VICTIM);
        session.end([0, 1]);
    }
}

#[test]
fn the_next_transaction_learns_that_one_was_cut_short() {
    killed("transactions");
}

#[test]
fn the_turn_of_a_dead_waiter_is_passed_over() {
    killed("mutex-waiter");
}

/// A store's operations on one key queue up by the dozen. The lock used to wait half a second for each dead ticket.
#[test]
fn many_turns_of_a_dead_node_are_passed_over_in_a_second() {
    killed("mutex-window");
}

/// An opening that lacked only one node used to wait for it for ever, while that node opened the object without the
/// dead one.
#[test]
fn an_opening_ends_when_one_that_was_there_dies() {
    killed("opening");
}

/// A node that left during an insert, which it had not finished, used to keep the lock of the key for ever.
#[test]
fn a_node_that_leaves_unfinished_work_counts_as_dead() {
    if crate::session::is_on_verbs() {
        return; // a node that is stopped for so long is declared dead there
    }
    let mut session = Session::start(module_path!(), "owes", 3);
    session.all_begun();
    session.hear(NodeId(1), "ready");
    session.signal(NodeId(1), "-STOP");
    session.ends(NodeId(0));
    session.signal(NodeId(1), "-CONT");
    session.end([1, 2]);
}

/// Its messages to the other nodes come in time, though each step of its work is long.
#[test]
fn a_node_whose_service_thread_has_much_work_stays_a_member() {
    let session = Session::start(module_path!(), "busy", 3);
    session.all_begun();
    session.end([0, 1, 2]);
}

#[test]
fn a_dead_reader_gives_its_room_back() {
    killed("ring-reader");
}

#[test]
fn a_dead_writer_ends_the_stream_after_its_last_whole_message() {
    killed("ring-writer");
}

#[test]
fn a_stopped_reader_keeps_its_room_and_goes_on_later() {
    if crate::session::is_on_verbs() {
        return; // a node that is stopped for so long is declared dead there
    }
    let mut session = Session::start(module_path!(), "ring-stopped", 2);
    session.hear(NodeId(1), "ready");
    session.signal(NodeId(1), "-STOP");
    session.hear(NodeId(0), "is full");
    session.signal(NodeId(1), "-CONT");
    session.end([0, 1]);
}

#[test]
fn variables_stay_when_their_owner_dies() {
    killed("vars");
}

#[test]
fn each_death_is_an_epoch() {
    let mut session = Session::start(module_path!(), "epochs", 4);
    session.all_begun();
    for node in [3, 2, 1] {
        session.hear(NodeId(0), "next");
        session.kill(NodeId(node));
    }
    session.end([0]);
}

#[test]
fn survivors_open_a_store_and_a_queue_and_outlive_another_death_with_them() {
    let mut session = Session::start(module_path!(), "opened-after", 4);
    session.all_begun();
    session.kill(NodeId(1));
    [0, 2, 3].iter().for_each(|node| session.hear(NodeId(*node), "updated"));
    session.kill(VICTIM);
    session.end([0, 3]);
}

/// One call reopens every object with a dead home or writer. Another survivor dies during that call.
#[test]
fn survivors_reopen_dead_objects_and_outlive_another_death() {
    let mut session = Session::start(module_path!(), "reopens", 4);
    session.all_begun();
    session.hear(VICTIM, "ready");
    session.kill(VICTIM);
    session.hear(NodeId(1), "has opened");
    session.kill(NodeId(1));
    session.end([0, 3]);
}

#[test]
fn reopening_does_not_wait_for_a_node_that_leaves() {
    let mut session = Session::start(module_path!(), "reopens-alone", 3);
    session.all_begun();
    session.hear(VICTIM, "ready");
    session.kill(VICTIM);
    session.end([0, 1]);
}

/// A node with a copy of every register dies: no call fails, and no value is lost.
#[test]
fn replicated_registers_go_on_without_a_memory_node() {
    killed_at_work("swarm", 3, 1000);
}

/// The same with two of five, at once.
#[test]
fn replicated_registers_go_on_without_two_of_five_memory_nodes() {
    killed_at_work("swarm", 5, 1000);
}

/// The same for a store.
#[test]
fn a_replicated_store_goes_on_without_a_memory_node() {
    killed_at_work("swarm-store", 3, 200);
}

#[test]
fn a_replicated_store_goes_on_without_two_of_five_memory_nodes() {
    killed_at_work("swarm-store", 5, 200);
}

/// Kills a minority of the memory nodes at once, the last ones, while all processes make calls. Those of all, of the
/// dead ones too, are linearizable, and more than so many (a quarter of that on emulated devices).
fn killed_at_work(role: &str, nodes: u16, operations: u64) {
    let operations = if is_on_verbs() { operations / 4 } else { operations };
    let mut session = Session::start(module_path!(), role, nodes);
    session.all_begun();
    let survivors = nodes / 2 + 1;
    let victims = || (survivors..nodes).map(NodeId);
    victims().for_each(|victim| session.hear(victim, "ready"));
    victims().for_each(|victim| session.kill(victim));
    (0..survivors).for_each(|node| session.ends(NodeId(node)));
    are_linearizable(&session, nodes, operations);
}

/// The calls that so many processes have recorded are linearizable, and more than so many.
fn are_linearizable(session: &Session, nodes: u16, operations: u64) {
    let mut history = KvHistory::new();
    for node in 0..nodes {
        let calls = std::fs::read(session.file(NodeId(node))).expect("the calls of a process");
        // The last record of a dead one may not be whole.
        let whole = calls.len() - calls.len() % KvRecord::LEN;
        history.merge(KvHistory::from_bytes(&calls[..whole]).expect("records"));
    }
    let report = history.check_each_key(Budget::default()).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(report.operations > operations, "{report}");
}

/// Two of three memory nodes die. Calls end in time, with an error that names both. On other memory nodes a store works
/// as before.
#[test]
fn a_replicated_store_without_a_majority_names_the_dead() {
    let mut session = Session::start(module_path!(), "swarm-majority", 5);
    session.all_begun();
    GONE.iter().for_each(|node| session.kill(*node));
    session.end([0, 1, 2]);
}

/// A client is stopped in the middle of its updates, again and again. No call of the others waits for it, and its own
/// end well when it continues.
#[test]
fn a_stopped_client_of_a_replicated_store_delays_no_other() {
    if crate::session::is_on_verbs() {
        return; // a node that is stopped for so long may be declared dead there
    }
    let mut session = Session::start(module_path!(), "swarm-stopped", 3);
    session.all_begun();
    (0..3).for_each(|node| session.ends(NodeId(node)));
    are_linearizable(&session, 3, 4 * STOPS * UPDATES);
}

// ---- the children ---------------------------------------------------------------------------------------------------

/// Not a test: the role of a child process.
#[test]
fn node_process() {
    crate::session::play(Duration::from_secs(20), |role, node, endpoint| match role {
        "barrier" => barrier(node, endpoint),
        "alock-holder" => lock_holder(node, endpoint, LockKind::ALock),
        "spin-holder" => lock_holder(node, endpoint, LockKind::Spin),
        "mcs-holder" => lock_holder(node, endpoint, LockKind::Mcs),
        "alock-waiter" => lock_waiter(node, endpoint, LockKind::ALock),
        "spin-waiter" => lock_waiter(node, endpoint, LockKind::Spin),
        "mcs-waiter" => lock_waiter(node, endpoint, LockKind::Mcs),
        "mutex-holder" => mutex_holder(node, endpoint),
        "transactions" => transactions(node, endpoint),
        "mutex-waiter" => mutex_waiter(node, endpoint),
        "mutex-window" => mutex_window(node, endpoint),
        "opening" => opening(node, endpoint),
        "owes" => owes(node, endpoint),
        "busy" => busy(node, endpoint),
        "ring-reader" => ring_reader(node, endpoint),
        "ring-writer" => ring_writer(node, endpoint),
        "ring-stopped" => ring_stopped(node, endpoint),
        "vars" => vars(node, endpoint),
        "epochs" => epochs(node, endpoint),
        "opened-after" => opened_after(node, endpoint),
        "reopens" => reopens(node, endpoint),
        "swarm" => swarm(node, endpoint),
        "swarm-store" => swarm_store(node, endpoint),
        "swarm-majority" => swarm_majority(node, endpoint),
        "swarm-stopped" => swarm_stopped(node, endpoint),
        "reopens-alone" => reopens_alone(node, endpoint),
        role => panic!("no role {role}"),
    });
}

fn wait_to_be_killed() -> ! {
    println!("ready");
    loop {
        std::thread::park();
    }
}

/// Asserts that an error names the victim as dead.
fn assert_names_the_dead(error: &Error) {
    let cause = match error.kind() {
        ErrorKind::Fabric(cause) => cause,
        ErrorKind::Missed { nodes } if nodes.len() == 1 => &nodes[0].1,
        _ => panic!("{error:?}"),
    };
    assert!(matches!(cause.kind(), FabricError::PeerDead { node: VICTIM, .. }), "{error:?}");
    assert!(error.object().is_some(), "it names the object: {error}");
}

/// Waits for all survivors. One may learn of the death before the other does.
fn meet_survivors(node: &Node, endpoint: &Endpoint, path: &str) -> Result<()> {
    loop {
        match Barrier::open(node, path, 1) {
            Ok(barrier) => {
                let mut part = barrier.thread()?;
                for _ in 0..100 {
                    endpoint.block_on(part.wait(endpoint))?;
                }
                return Ok(());
            }
            Err(error) => assert_names_the_dead(&error),
        }
    }
}

fn barrier(node: &Node, endpoint: &Endpoint) -> Result<()> {
    let barrier = Barrier::open(node, "all", 1)?;
    let mut part = barrier.thread()?;
    for _ in 0..3 {
        endpoint.block_on(part.wait(endpoint))?;
    }
    begun();
    if node.id() == VICTIM {
        wait_to_be_killed();
    }
    let error = endpoint.block_on(part.wait(endpoint)).expect_err("one has died");
    assert_names_the_dead(&error);
    meet_survivors(node, endpoint, "survivors")?;
    assert_eq!(node.live_members(), [NodeId(0), NodeId(1)]);
    // Each node counts the changes that its service thread has learned of.
    let counted = endpoint.wait_until(endpoint.deadline(), || (node.epoch() == 1).then_some(()));
    endpoint.block_on(counted)?;
    meet_survivors(node, endpoint, "end")
}

/// The calls of a process on keys or registers, in a file: each before it begins, and again when it has ended.
struct Calls<'e> {
    endpoint: &'e Endpoint,
    file: File,
}

impl<'e> Calls<'e> {
    fn new(endpoint: &'e Endpoint) -> Calls<'e> {
        Calls { endpoint, file: File::create(own_file(endpoint.me())).expect("a file") }
    }

    fn make(&mut self, key: u64, input: KvInput, call: impl FnOnce() -> Result<KvOutput>) -> Result<KvOutput> {
        let (client, called) = (u32::from(self.endpoint.me().0), self.endpoint.now().ns);
        self.write(key, Event::pending(client, called, input));
        let output = call()?;
        self.write(key, Event::returned(client, called, self.endpoint.now().ns, input, output));
        Ok(output)
    }

    fn write(&mut self, key: u64, call: Event<KvInput, KvOutput>) {
        let mut record = KvHistory::new();
        record.record(key, call);
        self.file.write_all(&record.to_bytes()).expect("it takes a record");
    }
}

/// A value is a number, several times.
fn number(value: [u64; 8]) -> u64 {
    assert_eq!(value, [value[0]; 8], "a torn value");
    value[0]
}

/// A client of registers, which are like the keys of a store: zero is no value.
struct RecordedRegisters<'e> {
    client: SwarmClient<'e, [u64; 8]>,
    calls: Calls<'e>,
}

impl RecordedRegisters<'_> {
    fn write(&mut self, register: u64, value: u64) -> Result<KvOutput> {
        let client = &self.client;
        self.calls.make(register, KvInput::Upsert(value), || {
            client.write_blocking(register as usize, [value; 8]).map(|()| KvOutput::Stored)
        })
    }

    fn read(&mut self, register: u64) -> Result<KvOutput> {
        let client = &self.client;
        self.calls.make(register, KvInput::Get, || {
            let found = number(client.read_blocking(register as usize)?);
            Ok(KvOutput::Found(Some(found).filter(|found| *found != 0)))
        })
    }
}

/// Of a session in which all nodes lend memory, and the last ones, a minority, die in the middle of their calls.
struct Minority {
    memory: Vec<NodeId>,
    survivors: u64,
}

impl Minority {
    fn of(node: &Node) -> Minority {
        let nodes = node.nodes();
        Minority { memory: (0..nodes as u16).map(NodeId).collect(), survivors: nodes as u64 / 2 + 1 }
    }

    fn victims(&self) -> &[NodeId] {
        &self.memory[self.survivors as usize..]
    }

    fn are_evicted(&self, node: &Node) -> bool {
        self.victims().iter().all(|victim| node.status_of(*victim) == Some(MemberStatus::Evicted))
    }
}

/// The survivors write and read under the deaths, and for long enough after them that buffers are used again.
fn swarm(node: &Node, endpoint: &Endpoint) -> Result<()> {
    let minority = Minority::of(node);
    let (me, survivors) = (u64::from(node.id().0), minority.survivors);
    let mut options = SwarmOptions::default();
    (options.spare_buffers, options.memory) = (8, minority.memory.clone());
    let array = SwarmArray::<[u64; 8]>::open(node, "array", 32, options)?;
    let mut client = RecordedRegisters { client: array.client(endpoint)?, calls: Calls::new(endpoint) };
    // Each survivor has seven registers. All write the next one, and each victim has one after that.
    let shared = 7 * survivors;
    let of_victim = |victim: u64| shared + 1 + victim - survivors;
    begun();
    if minority.victims().contains(&node.id()) {
        client.write(of_victim(me), 7)?;
        for round in 1u64.. {
            // It dies in one of them.
            client.write(shared, (me + 1) << 32 | round)?;
            if round == 16 {
                println!("ready");
            }
        }
    }
    let mut after = 0;
    for round in 1u64.. {
        let register = survivors * (round % 7) + me;
        client.write(register, round)?;
        assert_eq!(client.read(register)?, KvOutput::Found(Some(round)));
        client.read((me + 1) % survivors)?;
        client.write(shared, (me + 1) << 32 | round)?;
        client.read(shared)?;
        after += u64::from(minority.are_evicted(node));
        // A call over emulated devices takes up to 20 ms.
        if after == if is_on_verbs() { 60 } else { 300 } {
            break;
        }
        // The history has few calls for each moment, however long the eviction takes.
        std::thread::sleep(Duration::from_micros(500));
    }
    for victim in minority.victims() {
        let found = client.read(of_victim(u64::from(victim.0)))?;
        assert_eq!(found, KvOutput::Found(Some(7)), "what {victim} has written");
    }
    drop(client);
    meet_survivors(node, endpoint, "end")
}

/// A client of a store.
struct Recorded<'e> {
    client: SwarmStoreClient<'e, u64, [u64; 8]>,
    calls: Calls<'e>,
}

impl<'e> Recorded<'e> {
    fn new(store: &SwarmStore<u64, [u64; 8]>, endpoint: &'e Endpoint) -> Result<Recorded<'e>> {
        Ok(Recorded { client: store.client(endpoint)?, calls: Calls::new(endpoint) })
    }

    fn call(&mut self, key: u64, input: KvInput) -> Result<KvOutput> {
        let client = &self.client;
        self.calls.make(key, input, || {
            Ok(match input {
                KvInput::Get => KvOutput::Found(client.get_blocking(&key)?.map(number)),
                KvInput::Insert(value) => KvOutput::Succeeded(client.insert_blocking(&key, &[value; 8])?),
                KvInput::Update(value) => KvOutput::Succeeded(client.update_blocking(&key, &[value; 8])?),
                KvInput::Upsert(value) => client.upsert_blocking(&key, &[value; 8]).map(|()| KvOutput::Stored)?,
                KvInput::Delete => client.delete_blocking(&key).map(|()| KvOutput::Stored)?,
            })
        })
    }
}

/// All store it, and the survivors read it.
const SHARED: u64 = 200;

/// The survivors insert, update, read and delete under the deaths, and for long enough after them that registers are
/// used again.
fn swarm_store(node: &Node, endpoint: &Endpoint) -> Result<()> {
    let minority = Minority::of(node);
    let (me, survivors) = (u64::from(node.id().0), minority.survivors);
    let mut options = SwarmStoreOptions::default();
    options.keys = 64;
    (options.replicas.spare_buffers, options.replicas.memory) = (8, minority.memory.clone());
    let store = SwarmStore::<u64, [u64; 8]>::open(node, "store", options)?;
    let mut client = Recorded::new(&store, endpoint)?;
    let succeeded = KvOutput::Succeeded(true);
    // A victim has this key, and the three after it.
    let of_victim = |victim: u64| 100 + 10 * (victim - survivors);
    begun();
    if minority.victims().contains(&node.id()) {
        let own = of_victim(me);
        assert_eq!(client.call(own, KvInput::Insert(7))?, succeeded);
        for round in 1u64.. {
            // It dies in one of them.
            client.call(own + 1 + round % 3, KvInput::Upsert(round))?;
            client.call(SHARED, KvInput::Upsert((me + 1) << 32 | round))?;
            client.call(own + 1 + round % 3, KvInput::Delete)?;
            if round == 16 {
                println!("ready");
            }
        }
    }
    let mut after = 0;
    let counter = 10 + me;
    assert_eq!(client.call(counter, KvInput::Insert(0))?, succeeded);
    for round in 1u64.. {
        let key = 20 * (me + 1) + round % 7;
        assert_eq!(client.call(key, KvInput::Insert(round))?, succeeded, "round {round}");
        assert_eq!(client.call(key, KvInput::Get)?, KvOutput::Found(Some(round)));
        assert_eq!(client.call(counter, KvInput::Update(round))?, succeeded);
        client.call(10 + (me + 1) % survivors, KvInput::Get)?;
        client.call(SHARED, KvInput::Upsert((me + 1) << 32 | round))?;
        client.call(SHARED, KvInput::Get)?;
        client.call(of_victim(survivors) + 1 + round % 3, KvInput::Get)?;
        client.call(key, KvInput::Delete)?;
        assert_eq!(client.call(key, KvInput::Get)?, KvOutput::Found(None));
        after += u64::from(minority.are_evicted(node));
        if after == 15 {
            break;
        }
        // The history has few calls for each moment, however long the eviction takes.
        std::thread::sleep(Duration::from_micros(500));
    }
    for victim in minority.victims() {
        let found = client.call(of_victim(u64::from(victim.0)), KvInput::Get)?;
        assert_eq!(found, KvOutput::Found(Some(7)), "what {victim} has inserted");
    }
    drop(client);
    meet_survivors(node, endpoint, "end")
}

/// Memory nodes that die.
const GONE: [NodeId; 2] = [NodeId(3), NodeId(4)];

/// Asserts that a call has found that these two of three memory nodes are missing.
fn misses_both<T>(ended: Result<T>) {
    let Err(error) = ended else { panic!("it needs two of three memory nodes, and one lives") };
    let missing = error.custom_ref::<NoMajority>().unwrap_or_else(|| panic!("{error}"));
    let mut named: Vec<NodeId> = missing.failed.iter().map(|(node, _)| *node).collect();
    named.sort_unstable();
    assert_eq!((missing.of, missing.needed, &named[..]), (3, 2, &GONE[..]), "{error}");
    assert!(error.is_unreachable() && error.object() == Some("store"), "{error}");
}

/// The survivors are a majority of all nodes, and one of three memory nodes.
fn swarm_majority(node: &Node, endpoint: &Endpoint) -> Result<()> {
    let open = |path: &str, memory: [u16; 3]| {
        let mut options = SwarmStoreOptions::default();
        options.keys = 32;
        options.replicas.memory = memory.map(NodeId).to_vec();
        SwarmStore::<u64, u64>::open(node, path, options)
    };
    let store = open("store", [2, 3, 4])?;
    let (client, me) = (store.client(endpoint)?, u64::from(node.id().0));
    assert!(client.insert_blocking(&me, &me)?);
    endpoint.block_on(Barrier::open(node, "begin", 1)?.thread()?.wait(endpoint))?;
    begun();
    if GONE.contains(&node.id()) {
        loop {
            std::thread::park();
        }
    }
    let (error, took) = loop {
        let start = Instant::now();
        if let Err(error) = client.update_blocking(&me, &(me + 1)) {
            break (error, start.elapsed());
        }
        std::thread::sleep(Duration::from_micros(500));
    };
    misses_both::<()>(Err(error));
    assert!(took < endpoint.timeout(), "{took:?}");
    GONE.iter().for_each(|gone| wait_evicted(node, *gone));
    let start = Instant::now();
    misses_both(client.get_blocking(&me));
    misses_both(client.insert_blocking(&(me + 10), &me));
    misses_both(client.delete_blocking(&me));
    assert!(start.elapsed() < endpoint.timeout() / 2, "{:?}", start.elapsed());

    let again = open("again", [0, 1, 2])?;
    let client = again.client(endpoint)?;
    assert!(client.insert_blocking(&me, &me)?);
    let mut part = Barrier::open(node, "end", 1)?.thread()?;
    endpoint.block_on(part.wait(endpoint))?;
    for key in 0..3 {
        assert_eq!(client.get_blocking(&key)?, Some(key));
    }
    endpoint.block_on(part.wait(endpoint))
}

/// How often a client is stopped, and the updates of each other one meanwhile. There are gets between them.
const STOPS: u64 = 12;
const UPDATES: u64 = 30;
/// Keys that all three update.
const BESIDE: u64 = 8;
/// A call looks 13 times at most: three times for each of three clients, once, and once for each memory node. A look
/// takes three round trips.
const TRIPS_MAX: u64 = 3 * 13;

/// The victim makes updates, and node 0 stops it at any moment of them. Then both others make theirs, and it continues.
fn swarm_stopped(node: &Node, endpoint: &Endpoint) -> Result<()> {
    let mut options = SwarmStoreOptions::default();
    options.keys = 2 * BESIDE as usize;
    // More than the updates beside all stops: buffers come back only when a client that is stopped has answered.
    options.replicas.spare_buffers = 2 * (STOPS * UPDATES) as usize;
    let spare = options.replicas.spare_buffers as u64;
    let store = SwarmStore::<u64, [u64; 8]>::open(node, "store", options)?;
    let open = |path: &str| farfield::AtomicVar::open(node, path, NodeId(0));
    // The turn is odd while the victim is stopped.
    let (pid, turn, done) = (open("pid")?, open("turn")?, open("done")?);
    let mut part = Barrier::open(node, "begin", 1)?.thread()?;
    let mut client = Recorded::new(&store, endpoint)?;
    if node.id() == NodeId(0) {
        for key in 0..BESIDE {
            assert_eq!(client.call(key, KvInput::Insert(1))?, KvOutput::Succeeded(true));
        }
    }
    endpoint.block_on(part.wait(endpoint))?;
    // From here on all clients know the places of the keys.
    for key in 0..BESIDE {
        assert_eq!(client.call(key, KvInput::Get)?, KvOutput::Found(Some(1)));
    }
    endpoint.block_on(part.wait(endpoint))?;
    begun();
    let mut values = (u64::from(node.id().0) + 1) << 32..;
    let mut update_and_get = |client: &mut Recorded<'_>| {
        let value = values.next().expect("there are enough");
        let key = value % BESIDE;
        for (input, expected) in [(KvInput::Update(value), Some(KvOutput::Succeeded(true))), (KvInput::Get, None)] {
            let before = endpoint.counts().round_trips;
            let output = client.call(key, input)?;
            let trips = endpoint.counts().round_trips - before;
            assert!(trips <= TRIPS_MAX, "{input:?} has taken {trips} round trips");
            assert!(expected.is_none_or(|expected| output == expected), "{input:?} of key {key}: {output:?}");
        }
        Ok::<(), Error>(())
    };
    let soon = || endpoint.now() + STEP_MAX;
    match node.id() {
        NodeId(0) => {
            let victim = endpoint.block_on(pid.wait_change(endpoint, 0, soon()))?;
            for stop in 0..STOPS {
                signal(victim, "-STOP");
                while !is_stopped(victim) {
                    std::thread::yield_now();
                }
                endpoint.block_on(turn.store(endpoint, 2 * stop + 1))?;
                let start = Instant::now();
                (0..UPDATES).try_for_each(|_| update_and_get(&mut client))?;
                endpoint.block_on(done.wait_change(endpoint, stop, soon()))?;
                assert!(start.elapsed() < endpoint.timeout() / 2, "{:?}", start.elapsed());
                signal(victim, "-CONT");
                endpoint.block_on(turn.store(endpoint, 2 * stop + 2))?;
            }
        }
        VICTIM => {
            endpoint.block_on(pid.store(endpoint, std::process::id().into()))?;
            for stop in 0..STOPS {
                while endpoint.block_on(turn.load(endpoint))? == 2 * stop {
                    update_and_get(&mut client)?;
                }
                endpoint.block_on(turn.wait_change(endpoint, 2 * stop + 1, soon()))?;
            }
        }
        _ => {
            for stop in 0..STOPS {
                endpoint.block_on(turn.wait_change(endpoint, 2 * stop, soon()))?;
                (0..UPDATES).try_for_each(|_| update_and_get(&mut client))?;
                endpoint.block_on(done.fetch_add(endpoint, 1))?;
                endpoint.block_on(turn.wait_change(endpoint, 2 * stop + 1, soon()))?;
            }
        }
    }
    // Buffers are used again now.
    (0..spare).try_for_each(|_| update_and_get(&mut client))?;
    drop(client);
    endpoint.block_on(part.wait(endpoint))
}

/// Two words on different nodes. Under a lock, they are equal.
struct Pair {
    words: [farfield::AtomicVar; 2],
}

impl Pair {
    fn open(node: &Node) -> Result<Pair> {
        let open = |home: u16| farfield::AtomicVar::open(node, &format!("pair/{home}"), NodeId(home));
        Ok(Pair { words: [open(0)?, open(1)?] })
    }

    fn read(&self, endpoint: &Endpoint) -> Result<[u64; 2]> {
        Ok([endpoint.block_on(self.words[0].load(endpoint))?, endpoint.block_on(self.words[1].load(endpoint))?])
    }

    fn write(&self, endpoint: &Endpoint, values: [u64; 2]) -> Result<()> {
        for (word, value) in self.words.iter().zip(values) {
            endpoint.block_on(word.store(endpoint, value))?;
        }
        Ok(())
    }
}

fn mutex_holder(node: &Node, endpoint: &Endpoint) -> Result<()> {
    let (mutex, pair) = (Mutex::open(node, "lock", NodeId(0))?, Pair::open(node)?);
    let deaths = farfield::AtomicVar::open(node, "deaths", NodeId(0))?;
    let barrier = Barrier::open(node, "begin", 1)?;
    let mut part = barrier.thread()?;
    if node.id() == VICTIM {
        let guard = endpoint.block_on(mutex.lock(endpoint))?;
        endpoint.block_on(part.wait(endpoint))?;
        begun();
        pair.write(endpoint, [7, 0])?;
        println!("ready");
        std::thread::park();
        drop(guard);
    }
    endpoint.block_on(part.wait(endpoint))?;
    begun();
    for _ in 0..500 {
        let mut guard = endpoint.block_on(mutex.lock(endpoint))?;
        let mut values = pair.read(endpoint)?;
        if guard.is_poisoned() {
            assert_eq!(values[0], 7, "what the dead had put is visible");
            values[1] = values[0];
            endpoint.block_on(deaths.fetch_add(endpoint, 1))?;
            guard.clear_poison();
        }
        assert_eq!(values[0], values[1], "it is half-written, and nobody said so");
        pair.write(endpoint, values.map(|value| value + 1))?;
        endpoint.block_on(guard.unlock())?;
    }
    meet_survivors(node, endpoint, "end")?;
    let (values, deaths) = (pair.read(endpoint)?, endpoint.block_on(deaths.load(endpoint))?);
    assert_eq!(deaths, 1);
    assert_eq!(values[0], values[1]);
    meet_survivors(node, endpoint, "over")
}

/// A node holds a lock when it is killed, and has another operation waiting for it. One of the survivors is on the
/// lock's node.
fn lock_holder(node: &Node, endpoint: &Endpoint, kind: LockKind) -> Result<()> {
    let (locks, pair) = (LockTable::open(node, "lock", 1, LockOptions::new(kind))?, Pair::open(node)?);
    let deaths = farfield::AtomicVar::open(node, "deaths", NodeId(0))?;
    let barrier = Barrier::open(node, "begin", 1)?;
    let mut part = Some(barrier.thread()?);
    if node.id() == VICTIM {
        let operations = [part.take(), None].map(async |part| {
            let guard = locks.lock(endpoint, 0).await?;
            let mut part = part.expect("the other is killed before");
            // Long enough for the other operation to queue.
            endpoint.sleep_until(endpoint.now() + Duration::from_millis(50)).await;
            part.wait(endpoint).await?;
            begun();
            pair.words[0].store(endpoint, 7).await?;
            println!("ready");
            std::thread::park();
            guard.unlock().await
        });
        endpoint.run_window(2, operations, |ended| panic!("it is killed before: {ended:?}"));
    }
    endpoint.block_on(part.expect("it is there").wait(endpoint))?;
    begun();
    for _ in 0..500 {
        let mut guard = endpoint.block_on(locks.lock(endpoint, 0))?;
        let mut values = pair.read(endpoint)?;
        if guard.is_poisoned() {
            assert!(values[0] == 7 || values[0] == values[1], "what the dead had put is visible");
            values[1] = values[0];
            endpoint.block_on(deaths.fetch_add(endpoint, 1))?;
            guard.clear_poison();
        }
        assert_eq!(values[0], values[1], "it is half-written, and nobody said so");
        pair.write(endpoint, values.map(|value| value + 1))?;
        endpoint.block_on(guard.unlock())?;
    }
    meet_survivors(node, endpoint, "end")?;
    let (values, deaths) = (pair.read(endpoint)?, endpoint.block_on(deaths.load(endpoint))?);
    // A queued operation of the dead node may have held the lock, so each of them may be reported.
    let operations = if kind == LockKind::Spin { 1 } else { 2 };
    assert!((1..=operations).contains(&deaths), "{deaths}");
    assert_eq!(values[0], values[1]);
    meet_survivors(node, endpoint, "over")
}

/// Polls an operation that waits for a lock until it is in the queue. The operation does not report this. But each step
/// towards the queue is an operation that a fence waits for, and only two others can make it repeat one.
async fn enters<T>(endpoint: &Endpoint, mut wait: std::pin::Pin<&mut impl Future<Output = T>>) {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    for _ in 0..8 {
        assert!(wait.as_mut().poll(&mut context).is_pending(), "the lock is taken");
        endpoint.global_fence((0..3).map(NodeId)).await.expect("all live");
    }
}

/// Several operations wait for a lock when their node is killed, in front of others and behind them.
fn lock_waiter(node: &Node, endpoint: &Endpoint, kind: LockKind) -> Result<()> {
    const OPERATIONS: usize = 8;
    let locks = LockTable::open(node, "lock", 3, LockOptions::new(kind))?;
    let waiting = farfield::AtomicVar::open(node, "waiting", NodeId(0))?;
    let barrier = Barrier::open(node, "begin", 1)?;
    // Lock 1 is on node 1, so node 0 holds it remotely.
    let guard = if node.id() == NodeId(0) { Some(endpoint.block_on(locks.lock(endpoint, 1))?) } else { None };
    endpoint.block_on(barrier.thread()?.wait(endpoint))?;
    begun();
    if node.id() == VICTIM {
        endpoint.block_on(async {
            let mut waits: Vec<_> = (0..OPERATIONS).map(|_| Box::pin(locks.lock(endpoint, 1))).collect();
            for wait in &mut waits {
                enters(endpoint, wait.as_mut()).await;
            }
            waiting.fetch_add(endpoint, 1).await.expect("its home lives");
            std::future::pending::<()>().await;
        });
    }
    if guard.is_some() {
        // Further operations of its own queue behind the dead ones.
        endpoint.block_on(async {
            while waiting.load(endpoint).await? < 2 {
                endpoint.pause().await;
            }
            Ok::<(), Error>(())
        })?;
    }
    let mut waits = std::pin::pin!(locks.lock(endpoint, 1));
    endpoint.block_on(enters(endpoint, waits.as_mut()));
    match guard {
        Some(guard) => {
            println!("all wait");
            wait_evicted(node, VICTIM);
            endpoint.block_on(guard.unlock())?;
            endpoint.block_on(endpoint.block_on(waits)?.unlock())?;
        }
        None => {
            endpoint.block_on(waiting.fetch_add(endpoint, 1))?;
            let mut guard = endpoint.block_on(waits)?;
            guard.clear_poison();
            endpoint.block_on(guard.unlock())?;
        }
    }
    let start = Instant::now();
    for _ in 0..200 {
        let mut guard = endpoint.block_on(locks.lock(endpoint, 1))?;
        guard.clear_poison();
        endpoint.block_on(guard.unlock())?;
    }
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    let guard = endpoint.block_on(locks.lock(endpoint, 1))?;
    assert!(!guard.is_poisoned(), "all is repaired");
    endpoint.block_on(guard.unlock())?;
    // Locks on the dead node are lost: every attempt returns an error. The other locks stay usable.
    for _ in 0..3000 {
        let error = endpoint.block_on(locks.lock(endpoint, 2)).map(|_| ()).expect_err("its node is dead");
        assert_names_the_dead(&error);
    }
    endpoint.block_on(endpoint.block_on(locks.lock(endpoint, 1))?.unlock())?;
    meet_survivors(node, endpoint, "end")
}

fn transactions(node: &Node, endpoint: &Endpoint) -> Result<()> {
    let open = |kind: &LockKind| {
        let options = TransactionOptions { cells: 6, locks: 6, lock: LockOptions::new(*kind) };
        Transactions::open(node, kind.name(), options)
    };
    let all = LockKind::ALL.iter().map(open).collect::<Result<Vec<_>>>()?;
    let deaths = farfield::AtomicVar::open(node, "deaths", NodeId(0))?;
    let mut part = Barrier::open(node, "begin", 1)?.thread()?;
    let mut held = Vec::new();
    if node.id() == VICTIM {
        for cells in &all {
            let mut transaction = endpoint.block_on(cells.begin(endpoint, &[0, 1]))?;
            transaction.write(0, 7)?;
            transaction.write(1, 7)?;
            held.push(transaction);
        }
    }
    endpoint.block_on(part.wait(endpoint))?;
    begun();
    if node.id() == VICTIM {
        wait_to_be_killed();
    }
    const ROUNDS: u64 = 100;
    for cells in &all {
        for _ in 0..ROUNDS {
            let mut transaction = endpoint.block_on(cells.begin(endpoint, &[1, 0]))?;
            let values = endpoint.block_on(transaction.read_all(&[0, 1]))?;
            if transaction.is_poisoned() {
                assert_eq!(values, [0, 0], "what was not committed is not written");
                endpoint.block_on(deaths.fetch_add(endpoint, 1))?;
                transaction.clear_poison();
            }
            assert_eq!(values[0], values[1]);
            transaction.write(0, values[0] + 1)?;
            transaction.write(1, values[1] + 1)?;
            endpoint.block_on(transaction.commit())?;
        }
        assert_names_the_dead(&endpoint.block_on(cells.begin(endpoint, &[0, 2])).err().expect("cell 2 is gone"));
    }
    meet_survivors(node, endpoint, "end")?;
    assert_eq!(endpoint.block_on(deaths.load(endpoint))?, all.len() as u64, "one of each kind is told");
    for cells in &all {
        for (_, word) in cells.own_cells().take(1) {
            assert_eq!(word.load(), 2 * ROUNDS);
        }
    }
    meet_survivors(node, endpoint, "over")
}

fn mutex_window(node: &Node, endpoint: &Endpoint) -> Result<()> {
    const OPERATIONS: usize = 64;
    let mutex = Mutex::open(node, "lock", NodeId(0))?;
    let queued = farfield::AtomicVar::open(node, "queued", NodeId(0))?;
    let barrier = Barrier::open(node, "begin", 1)?;
    let guard = if node.id() == NodeId(0) { Some(endpoint.block_on(mutex.lock(endpoint))?) } else { None };
    endpoint.block_on(barrier.thread()?.wait(endpoint))?;
    begun();
    if node.id() == VICTIM {
        let operations = (0..=OPERATIONS).map(async |index| {
            if index < OPERATIONS {
                let _guard = mutex.lock(endpoint).await;
                panic!("it is killed while it waits");
            }
            // The others have drawn their tickets before this one is polled.
            queued.store(endpoint, 1).await.expect("its home lives");
            println!("ready");
        });
        endpoint.run_window(OPERATIONS + 1, operations, |()| ());
    }
    endpoint.block_on(async {
        while queued.load(endpoint).await? == 0 {
            endpoint.pause().await;
        }
        Ok::<(), Error>(())
    })?;
    wait_evicted(node, VICTIM);
    let start = Instant::now();
    match guard {
        Some(guard) => endpoint.block_on(guard.unlock())?,
        // This operation queues behind all of them.
        None => endpoint.block_on(endpoint.block_on(mutex.lock(endpoint))?.unlock())?,
    }
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    meet_survivors(node, endpoint, "over")
}

fn opening(node: &Node, endpoint: &Endpoint) -> Result<()> {
    endpoint.block_on(Barrier::open(node, "begin", 1)?.thread()?.wait(endpoint))?;
    begun();
    let announce = || {
        let cells = node.alloc(GroupKey::DATA, 64)?;
        let say = |peer: NodeId, _: &farfield::toolkit::ObjectDescriptor| println!("connected to {}", peer.0);
        farfield::toolkit::ObjectBuilder::new(node, "late", "Cells").region("cells", cells).on_connect(say).announce()
    };
    if node.id() == VICTIM {
        let cells = node.alloc(GroupKey::DATA, 64)?;
        let say = |peer: NodeId, _: &farfield::toolkit::ObjectDescriptor| match peer {
            NodeId(0) => println!("ready"),
            _ => panic!("{peer} opens it when this node is dead"),
        };
        let _late = farfield::toolkit::ObjectBuilder::new(node, "late", "Cells")
            .region("cells", cells)
            .on_connect(say)
            .announce()?;
        loop {
            std::thread::park();
        }
    }
    if node.id() == NodeId(0) {
        let start = Instant::now();
        let error = announce()?.wait(node.timeout()).expect_err("one of three has died, and one never opened it");
        assert_names_the_dead(&error);
        assert!(start.elapsed() < node.timeout() / 2, "{:?}", start.elapsed());
    } else {
        wait_evicted(node, VICTIM);
    }
    announce()?.wait(node.timeout())?;
    meet_survivors(node, endpoint, "over")
}

fn owes(node: &Node, endpoint: &Endpoint) -> Result<()> {
    let options = KvOptions { slots_per_node: 256, locks: 8, ..KvOptions::default() };
    let store = KvStore::<u64, u64>::open(node, "store", options)?;
    endpoint.block_on(Barrier::open(node, "begin", 1)?.thread()?.wait(endpoint))?;
    begun();
    match node.id() {
        NodeId(0) => {
            endpoint.set_timeout(Duration::from_millis(100));
            // Inserts until the other node is stopped, and so acknowledges no more.
            let mut keys = 0..;
            let error = loop {
                let key = keys.next().expect("there are enough");
                let changed = async { store.insert(endpoint, &key, &0).await.and(store.delete(endpoint, &key).await) };
                if let Err(error) = endpoint.block_on(changed) {
                    break error;
                }
            };
            assert!(error.is_timeout(), "{error:?}");
            return Ok(());
        }
        NodeId(1) => println!("ready"),
        _ => {}
    }
    wait_evicted(node, NodeId(0));
    let start = Instant::now();
    endpoint.block_on(async {
        for key in 0..64 {
            let key = 1_000_000 + 100 * u64::from(node.id().0) + key;
            assert!(store.insert(endpoint, &key, &1).await?);
        }
        Ok::<(), Error>(())
    })?;
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    meet_survivors(node, endpoint, "over")
}

/// Work of the service thread, in so many long steps.
struct Work(u32, std::sync::mpsc::Sender<()>);

impl Poller for Work {
    fn poll(&mut self, _: &Endpoint) -> Progress {
        if self.0 == 0 {
            self.1.send(()).expect("the role waits");
            return Progress::Done;
        }
        self.0 -= 1;
        std::thread::sleep(Duration::from_millis(80));
        Progress::Busy
    }
}

fn busy(node: &Node, endpoint: &Endpoint) -> Result<()> {
    let barrier = Barrier::open(node, "barrier", 1)?;
    let mut part = barrier.thread()?;
    begun();
    if node.id() == VICTIM {
        // 32 of them are longer than the others wait for a beat.
        let (sender, done) = std::sync::mpsc::channel();
        node.add_poller(Box::new(Work(40, sender)));
        done.recv().expect("the service thread does it");
    }
    endpoint.block_on(part.wait(endpoint))?;
    assert_eq!(node.status_of(VICTIM), Some(MemberStatus::Member));
    endpoint.block_on(part.wait(endpoint))
}

fn mutex_waiter(node: &Node, endpoint: &Endpoint) -> Result<()> {
    let mutex = Mutex::open(node, "lock", NodeId(0))?;
    let barrier = Barrier::open(node, "begin", 1)?;
    let mut part = barrier.thread()?;
    let guard = if node.id() == NodeId(0) { Some(endpoint.block_on(mutex.lock(endpoint))?) } else { None };
    endpoint.block_on(part.wait(endpoint))?;
    begun();
    if node.id() == VICTIM {
        let before = endpoint.counts();
        let operations = [true, false].map(async |waits| {
            if waits {
                let _guard = mutex.lock(endpoint).await;
                panic!("it is killed while it waits");
            }
            // It polls the lock only after it has drawn its ticket.
            while endpoint.counts().gets == before.gets {
                endpoint.pause().await;
            }
            println!("ready");
        });
        endpoint.run_window(2, operations, |()| ());
    }
    if let Some(guard) = guard {
        while node.status_of(VICTIM) != Some(MemberStatus::Evicted) {
            std::thread::yield_now();
        }
        endpoint.block_on(guard.unlock())?;
    }
    let start = Instant::now();
    for _ in 0..200 {
        let guard = endpoint.block_on(mutex.lock(endpoint))?;
        assert!(!guard.is_poisoned(), "nobody died while he held it");
        endpoint.block_on(guard.unlock())?;
    }
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    meet_survivors(node, endpoint, "end")
}

const RING_BYTES: usize = 256;

fn ring(node: &Node, writer: NodeId) -> Result<RingBuffer> {
    RingBuffer::open(node, "ring", RingOptions::broadcast(node, writer, RING_BYTES))
}

fn ring_reader(node: &Node, endpoint: &Endpoint) -> Result<()> {
    let ring = ring(node, NodeId(0))?;
    Barrier::open(node, "begin", 1)?;
    begun();
    if node.id() == VICTIM {
        let (mut receiver, mut bytes) = (ring.receiver()?, Vec::new());
        endpoint.block_on(receiver.recv(endpoint, &mut bytes))?;
        wait_to_be_killed();
    }
    if node.id() == NodeId(0) {
        let mut sender = ring.sender()?;
        for number in 0..5000u64 {
            endpoint.block_on(sender.send(endpoint, &number.to_le_bytes()))?;
        }
        assert_eq!(sender.gone(endpoint), [VICTIM]);
        endpoint.block_on(sender.wait_acknowledged(endpoint, sender.position(), endpoint.deadline()))?;
    } else {
        let (mut receiver, mut bytes) = (ring.receiver()?, Vec::new());
        for number in 0..5000u64 {
            endpoint.block_on(receiver.recv(endpoint, &mut bytes))?;
            assert_eq!(bytes, number.to_le_bytes());
        }
    }
    meet_survivors(node, endpoint, "end")
}

fn ring_writer(node: &Node, endpoint: &Endpoint) -> Result<()> {
    let ring = ring(node, VICTIM)?;
    Barrier::open(node, "begin", 1)?;
    begun();
    if node.id() == VICTIM {
        let mut sender = ring.sender()?;
        for number in 0u64.. {
            endpoint.block_on(sender.send(endpoint, &number.to_le_bytes().repeat(1 + number as usize % 9)))?;
            if number == 2000 {
                println!("ready"); // it continues until it is killed
            }
        }
    }
    let (mut receiver, mut bytes, mut next) = (ring.receiver()?, Vec::new(), 0u64);
    let error = loop {
        match endpoint.block_on(receiver.recv(endpoint, &mut bytes)) {
            Ok(()) => {
                assert_eq!(bytes, next.to_le_bytes().repeat(1 + next as usize % 9), "message {next} is not whole");
                next += 1;
            }
            Err(error) => break error,
        }
    };
    assert_names_the_dead(&error);
    assert!(next > 2000, "{next}");
    // The stream stays ended.
    let again = receiver.try_recv(endpoint, &mut bytes).expect_err("the stream has ended");
    assert_names_the_dead(&again);
    meet_survivors(node, endpoint, "end")
}

fn ring_stopped(node: &Node, endpoint: &Endpoint) -> Result<()> {
    let ring = ring(node, NodeId(0))?;
    let messages = 2000u64;
    if node.id() == NodeId(0) {
        let mut sender = ring.sender()?;
        let (mut next, mut full_since) = (0u64, None);
        while next < messages {
            if sender.try_send(endpoint, &next.to_le_bytes())? {
                (next, full_since) = (next + 1, None);
                // Slowly, so that the other node is stopped in between.
                std::thread::sleep(Duration::from_micros(500));
                continue;
            }
            let since = *full_since.get_or_insert_with(Instant::now);
            if since.elapsed() > Duration::from_secs(1) {
                println!("is full");
                assert_eq!(node.status_of(NodeId(1)), Some(MemberStatus::Member), "stopped is not dead");
                full_since = Some(Instant::now() + STEP_MAX);
            }
        }
        endpoint.block_on(sender.wait_acknowledged(endpoint, sender.position(), endpoint.deadline()))
    } else {
        let (mut receiver, mut bytes) = (ring.receiver()?, Vec::new());
        for number in 0..messages {
            endpoint.block_on(receiver.recv(endpoint, &mut bytes))?;
            assert_eq!(bytes, number.to_le_bytes());
            if number == 20 {
                println!("ready");
            }
        }
        Ok(())
    }
}

fn vars(node: &Node, endpoint: &Endpoint) -> Result<()> {
    let owned = OwnedVar::<[u64; 8]>::open(node, "owned", VICTIM)?;
    let shared = SharedVar::<u64>::open(node, "shared")?;
    let barrier = Barrier::open(node, "begin", 1)?;
    let mut part = barrier.thread()?;
    if node.id() == VICTIM {
        let mut writer = owned.writer()?;
        writer.store([9; 8]);
        endpoint.block_on(writer.push(endpoint))?;
        endpoint.block_on(part.wait(endpoint))?;
        begun();
        wait_to_be_killed();
    }
    endpoint.block_on(part.wait(endpoint))?;
    begun();
    while node.status_of(VICTIM) != Some(MemberStatus::Evicted) {
        std::thread::yield_now();
    }
    assert_eq!(endpoint.block_on(owned.load(endpoint))?, [9; 8], "the copy stays");
    assert_names_the_dead(&endpoint.block_on(owned.pull(endpoint)).expect_err("the owner has died"));
    shared.store(40 + u64::from(node.id().0));
    assert_names_the_dead(&endpoint.block_on(shared.push_all(endpoint)).expect_err("one does not get it"));
    endpoint.block_on(shared.fence(endpoint, node.live_members().into_iter().filter(|other| *other != node.id())))?;
    meet_survivors(node, endpoint, "pushed")?;
    assert!((40..42).contains(&shared.load()));
    meet_survivors(node, endpoint, "end")
}

fn epochs(node: &Node, endpoint: &Endpoint) -> Result<()> {
    let region = node.alloc(GroupKey::DATA, 8)?;
    let barrier = Barrier::open(node, "begin", 1)?;
    endpoint.block_on(barrier.thread()?.wait(endpoint))?;
    begun();
    if node.id() != NodeId(0) {
        wait_to_be_killed();
    }
    assert_eq!((node.epoch(), node.live_members().len()), (0, 4));
    for epoch in 1..=3u64 {
        println!("next");
        let dead = NodeId(4 - epoch as u16);
        while node.status_of(dead) != Some(MemberStatus::Evicted) {
            std::thread::yield_now();
        }
        assert_eq!(node.epoch(), epoch);
        assert_eq!(node.live_members(), (0..4 - epoch as u16).map(NodeId).collect::<Vec<_>>());
        let error = endpoint.check_alive(dead).expect_err("it is dead");
        assert!(matches!(error.kind(), FabricError::PeerDead { node, .. } if *node == dead));
    }
    // The last of four nodes continues: a majority is needed only where a death is uncertain.
    let mutex = Mutex::open(node, "alone", node.id())?;
    endpoint.block_on(async { mutex.lock(endpoint).await?.unlock().await })?;
    region.word(0).store(1);
    Ok(())
}

fn wait_evicted(node: &Node, dead: NodeId) {
    while node.status_of(dead) != Some(MemberStatus::Evicted) {
        std::thread::yield_now();
    }
}

/// Keys of the store that is opened after a death: so many from each node.
const KEYS_EACH: u64 = 24;

/// One of four nodes dies. The others, with a gap in their numbers, open a store and a queue. Another node dies, and
/// the remaining two continue to use both.
fn opened_after(node: &Node, endpoint: &Endpoint) -> Result<()> {
    endpoint.block_on(Barrier::open(node, "begin", 1)?.thread()?.wait(endpoint))?;
    begun();
    if node.id() == NodeId(1) {
        wait_to_be_killed();
    }
    wait_evicted(node, NodeId(1));
    let options = KvOptions { slots_per_node: 256, locks: 8, placement: Placement::Hash, ..KvOptions::default() };
    let store = KvStore::<u64, u64>::open(node, "store", options)?;
    let queue = Queue::<u64>::open(node, "queue", QueueOptions::new(NodeId(3), 64))?;
    let keys_of = |node: NodeId| u64::from(node.0) * 100..u64::from(node.0) * 100 + KEYS_EACH;
    let keys: Vec<u64> = [NodeId(0), VICTIM, NodeId(3)].into_iter().flat_map(keys_of).collect();

    endpoint.block_on(async {
        for key in keys_of(node.id()) {
            assert!(store.insert(endpoint, &key, &(key + 1)).await?);
            queue.enqueue(endpoint, &key).await?;
            assert!(queue.dequeue(endpoint).await? < 400);
        }
        Ok::<(), Error>(())
    })?;
    meet_survivors(node, endpoint, "filled")?;
    assert_eq!((store.len(), endpoint.block_on(queue.try_dequeue(endpoint))?), (keys.len(), None));
    let mut found = Vec::new();
    endpoint.block_on(store.get_many(endpoint, &keys, &mut found))?;
    for (key, found) in keys.iter().zip(&found) {
        assert_eq!(*found.as_ref().expect("nothing is lost"), Some(key + 1));
    }
    meet_survivors(node, endpoint, "looked")?;
    // Each node updates a third of all keys, and leaves a value in the queue.
    endpoint.block_on(async {
        let rank = node.live_members().iter().filter(|other| **other < node.id()).count() as u64;
        for key in keys.iter().filter(|key| *key % 3 == rank) {
            assert!(store.update(endpoint, key, &(key + 2)).await?);
        }
        queue.enqueue(endpoint, &u64::from(node.id().0)).await
    })?;
    meet_survivors(node, endpoint, "updated")?;
    println!("updated");
    if node.id() == VICTIM {
        wait_to_be_killed();
    }
    wait_evicted(node, VICTIM);

    endpoint.block_on(store.get_many(endpoint, &keys, &mut found))?;
    let is_lost = |found: &Result<Option<u64>>| {
        found.as_ref().is_err_and(|error| matches!(error.kind(), ErrorKind::ValueLost { node: VICTIM }))
    };
    let lost = found.iter().filter(|found| is_lost(found)).count();
    assert!(0 < lost && lost < keys.len(), "{lost} of {} values lay on {VICTIM}", keys.len());
    for (key, found) in keys.iter().zip(&found).filter(|(_, found)| !is_lost(found)) {
        assert_eq!(*found.as_ref().expect("a value that was not lost"), Some(key + 2));
    }
    meet_survivors(node, endpoint, "lost")?;
    let mine = |key: &&u64| key.is_multiple_of(2) == (node.id() == NodeId(0));
    endpoint.block_on(async {
        for key in keys.iter().filter(mine) {
            store.upsert(endpoint, key, &(key + 3)).await?;
            assert_eq!(store.get(endpoint, key).await?, Some(key + 3));
        }
        Ok::<(), Error>(())
    })?;
    meet_survivors(node, endpoint, "again")?;
    endpoint.block_on(async {
        for key in &keys {
            assert_eq!(store.get(endpoint, key).await?, Some(key + 3));
        }
        Ok::<(), Error>(())
    })?;
    meet_survivors(node, endpoint, "read")?;
    endpoint.block_on(async {
        for key in keys.iter().filter(mine) {
            assert!(store.delete(endpoint, key).await?);
        }
        // The queue still holds the values of the dead node.
        if node.id() == NodeId(0) {
            let mut left = Vec::new();
            while let Some(value) = queue.try_dequeue(endpoint).await? {
                left.push(value);
            }
            left.sort_unstable();
            assert_eq!(left, [0, 2, 3]);
        }
        Ok::<(), Error>(())
    })?;
    meet_survivors(node, endpoint, "deleted")?;
    assert!(store.is_empty());
    let other = NodeId(3 - node.id().0);
    endpoint.block_on(queue.enqueue(endpoint, &u64::from(other.0)))?;
    endpoint.block_on(queue.dequeue(endpoint))?;
    meet_survivors(node, endpoint, "end")
}

/// The objects that a service keeps.
struct Kept {
    mutex: Mutex,
    queue: Queue<u64>,
    ring: RingBuffer,
    store: KvStore<u64, u64>,
    barrier: Barrier,
}

/// Opens the objects at a path. Each object that has a home has it on `home`.
fn keep(node: &Node, path: &str, members: &[NodeId], home: NodeId, old: Option<&Kept>) -> Result<Kept> {
    let at = |name: &str| format!("{path}/{name}");
    let options = KvOptions { slots_per_node: 64, locks: 8, placement: Placement::Hash, ..KvOptions::default() };
    Ok(Kept {
        mutex: Mutex::open(node, &at("mutex"), home)?,
        queue: Queue::open(node, &at("queue"), QueueOptions::new(home, 16))?,
        ring: RingBuffer::open(node, &at("ring"), RingOptions::broadcast_among(members, home, 256))?,
        store: KvStore::open_with_pairs_of(node, &at("store"), options, old.map(|old| &old.store))?,
        barrier: Barrier::open(node, &at("barrier"), 1)?,
    })
}

fn reopens(node: &Node, endpoint: &Endpoint) -> Result<()> {
    let old = keep(node, "service", &node.live_members(), VICTIM, None)?;
    let (me, mut part) = (u64::from(node.id().0), old.barrier.thread()?);
    for key in 10 * me..10 * me + 10 {
        assert!(endpoint.block_on(old.store.insert(endpoint, &key, &(key + 1)))?);
    }
    endpoint.block_on(part.wait(endpoint))?;
    begun();
    if node.id() == VICTIM {
        wait_to_be_killed();
    }
    assert_names_the_dead(&endpoint.block_on(part.wait(endpoint)).expect_err("the victim never comes"));
    let lives_on = |key: &u64| ![NodeId(1), VICTIM].contains(&old.store.home_of(key).expect("placed by hash"));
    let (again, new) = loop {
        let (again, new) = node.reopen("service", |again| {
            let kept = keep(node, again.path(), again.members(), again.home(VICTIM), Some(&old))?;
            if node.id() == NodeId(1) {
                println!("has opened");
                loop {
                    std::thread::park();
                }
            }
            Ok((again.clone(), kept))
        })?;
        // Node 1 may still count as a member although it has just died.
        if !again.members().contains(&NodeId(1)) {
            break (again, new);
        }
    };
    assert_eq!((again.members(), again.home(VICTIM)), (&[NodeId(0), NodeId(3)][..], NodeId(3)));

    // The lock is free and marked, the queue is empty, and the ring starts anew.
    endpoint.block_on(async {
        let mut guard = new.mutex.lock(endpoint).await?;
        if guard.is_poisoned() {
            guard.clear_poison();
            new.queue.enqueue(endpoint, &7).await?;
        }
        guard.unlock().await
    })?;
    let mut part = new.barrier.thread()?;
    endpoint.block_on(part.wait(endpoint))?;
    let (mut bytes, is_home) = (Vec::new(), node.id() == NodeId(3));
    if is_home {
        assert_eq!(endpoint.block_on(new.queue.try_dequeue(endpoint))?, Some(7), "one of the two was the first");
        assert_eq!(endpoint.block_on(new.queue.try_dequeue(endpoint))?, None);
        endpoint.block_on(new.ring.sender()?.send(endpoint, b"anew"))?;
    } else {
        endpoint.block_on(new.ring.receiver()?.recv(endpoint, &mut bytes))?;
        assert_eq!(bytes, b"anew");
    }
    // The store holds exactly the pairs with a value on a survivor.
    let mut there = 0;
    for key in 0..40 {
        let found = endpoint.block_on(new.store.get(endpoint, &key))?;
        assert_eq!(found, lives_on(&key).then_some(key + 1), "key {key}");
        there += usize::from(found.is_some());
    }
    assert_eq!(new.store.len(), there);

    // Handles from before return an error.
    let told = endpoint.block_on(old.mutex.try_lock(endpoint)).map(drop).expect_err("an old handle");
    assert!(matches!(told.kind(), ErrorKind::Reopened { .. }), "{told}");
    let told = endpoint.block_on(old.store.update(endpoint, &1, &1)).expect_err("an old handle");
    assert!(matches!(told.kind(), ErrorKind::Reopened { .. }), "{told}");
    endpoint.block_on(part.wait(endpoint))
}

fn reopens_alone(node: &Node, endpoint: &Endpoint) -> Result<()> {
    let old = Barrier::open(node, "meet", 1)?;
    let mut part = old.thread()?;
    endpoint.block_on(part.wait(endpoint))?;
    begun();
    if node.id() == VICTIM {
        wait_to_be_killed();
    }
    assert_names_the_dead(&endpoint.block_on(part.wait(endpoint)).expect_err("the victim never comes"));
    if node.id() == NodeId(1) {
        return Ok(()); // it leaves here
    }
    // Node 1 has left or is leaving; this node continues alone.
    let members =
        node.reopen("meet", |again| Barrier::open(node, again.path(), 1).map(|_| again.members().to_vec()))?;
    assert_eq!(members, [NodeId(0)]);
    Ok(())
}
