//! Workers over TCP on the loopback interface, in one process and between two.
//!
//! A machine without UCX passes and says so, unless `FARFIELD_NEED_UCX=1`.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use std::{env, fs};

use farfield_ucx_sys::*;

/// How long anything may take: machines have bad moments.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long an event may take to wake a worker: longer than a bad moment, shorter than the timers of [`quiet`].
const SOON: Duration = Duration::from_secs(5);
/// The identifier of messages.
const ID: u16 = 7;

/// A context on the loopback interface; none where there is no UCX.
fn loopback() -> Option<Context> {
    context_on(Some("lo"), ContextOptions::default())
}

/// As [`loopback`]; its workers have no timer that would wake them.
fn quiet() -> Option<Context> {
    context_on(Some("lo"), ContextOptions { keepalive: Duration::from_secs(60), ..ContextOptions::default() })
}

/// A context on a device, or on all of them.
fn context_on(device: Option<&str>, options: ContextOptions) -> Option<Context> {
    match Ucx::get() {
        Ok(_) => {
            let options = ContextOptions { devices: device.map(str::to_owned), ..options };
            Some(Context::new(&options).expect("the loopback interface is a device"))
        }
        Err(reason) => {
            assert!(env::var_os("FARFIELD_NEED_UCX").is_none_or(|value| value != "1"), "no UCX: {reason}");
            eprintln!("no UCX: {reason}");
            None
        }
    }
}

/// A message that has come.
type Received = (Vec<u8>, Vec<u8>);

/// A worker, and the messages that it has handled.
fn receiving(context: &Context) -> (Worker, Receiver<Received>) {
    let mut worker = Worker::new(context).unwrap();
    let (sender, receiver) = mpsc::channel();
    let handler = move |message: Message<'_>| {
        let _ = sender.send((message.header.to_vec(), message.data.to_vec()));
    };
    worker.handle(ID, handler).unwrap();
    (worker, receiver)
}

/// A worker with an endpoint to another one, and the messages that this one has handled.
fn pair(context: &Context) -> (Worker, Endpoint, Worker, Receiver<Received>) {
    let mut from = Worker::new(context).unwrap();
    let (to, received) = receiving(context);
    let endpoint = from.connect(&to.address().unwrap()).unwrap();
    (from, endpoint, to, received)
}

/// The same, and a message has come.
fn connected(context: &Context) -> (Worker, Endpoint, Worker, Receiver<Received>) {
    let (mut from, endpoint, mut to, received) = pair(context);
    from.send(&endpoint, ID, b"", b"").unwrap();
    next([&mut from, &mut to], &received);
    (from, endpoint, to, received)
}

/// Makes progress on all workers until a condition holds.
#[track_caller]
fn until<const N: usize>(workers: [&mut Worker; N], mut condition: impl FnMut([&mut Worker; N]) -> bool) {
    let mut workers = workers;
    let end = Instant::now() + PATIENCE;
    while !condition(workers.each_mut().map(|worker| &mut **worker)) {
        assert!(Instant::now() < end, "it does not happen");
        if workers.iter_mut().filter_map(|worker| worker.progress().then_some(())).count() == 0 {
            thread::sleep(Duration::from_micros(50));
        }
    }
}

/// Makes progress on workers until a message has come.
#[track_caller]
fn next<const N: usize>(workers: [&mut Worker; N], received: &Receiver<Received>) -> Received {
    let mut message = None;
    until(workers, |_| {
        message = received.try_recv().ok();
        message.is_some()
    });
    message.expect("it has come")
}

/// Makes progress on workers until an operation of one of them is complete.
#[track_caller]
fn until_complete<const N: usize>(workers: [&mut Worker; N], of: usize, request: Option<Request>) {
    if let Some(request) = request {
        until(workers, |workers| workers.into_iter().nth(of).unwrap().is_complete(&request).unwrap());
    }
}

/// Sleeps until a worker has had nothing to do for a while.
fn settle(worker: &mut Worker) {
    while worker.wait(Duration::from_millis(100)).unwrap() {}
}

/// Data of a message: each byte depends on the message and its place.
fn data(message: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|place| (place.wrapping_mul(31) ^ (place >> 8) ^ message) as u8).collect()
}

#[test]
fn messages_of_any_length_come_whole_and_in_order() {
    for device in [Some("lo"), None] {
        let Some(context) = context_on(device, ContextOptions::default()) else { return };
        whole_and_in_order(&context);
    }
}

fn whole_and_in_order(context: &Context) {
    let (mut from, endpoint, mut to, received) = pair(context);
    // Short ones right behind long ones, of many parts.
    let lengths = [0, 1, 8, 64, 1 << 20, 0, 8, 4000, 8192, 8193, 100_000, 3, 300_000, 7];
    let rounds = 20;
    let mut requests = Vec::new();
    for message in 0..rounds * lengths.len() {
        let bytes = data(message, lengths[message % lengths.len()]);
        let header = message.to_le_bytes();
        requests.extend(from.send(&endpoint, ID, &header, &bytes).unwrap());
    }
    eprintln!("{} of {} messages are in flight", requests.len(), rounds * lengths.len());
    assert!(!requests.is_empty(), "no connection is made yet");
    for message in 0..rounds * lengths.len() {
        let (header, bytes) = next([&mut from, &mut to], &received);
        assert_eq!(header, message.to_le_bytes(), "the messages are out of order");
        assert!(bytes == data(message, lengths[message % lengths.len()]), "message {message} has other bytes");
    }
    until([&mut from, &mut to], |[from, _]| requests.iter().all(|request| from.is_complete(request).unwrap()));
    assert_eq!(from.operations(), requests.len());
    drop(requests);
    from.progress();
    assert_eq!(from.operations(), 0);
    from.check(&endpoint).unwrap();
}

#[test]
fn messages_without_requests_and_from_borrowed_memory_come_after_a_flush() {
    let Some(context) = loopback() else { return };
    let (mut from, endpoint, mut to, received) = pair(&context);
    let long = data(1, 1 << 20);
    for message in 0..8_u8 {
        // SAFETY: the bytes live longer than the worker's flush, after which all is complete, and are not written.
        let request = unsafe { from.send_from(&endpoint, ID, &[message], long.as_ptr(), long.len()) };
        drop(request.unwrap());
    }
    let flush = from.flush().unwrap();
    until_complete([&mut from, &mut to], 0, flush);
    until([&mut from, &mut to], |[from, _]| from.operations() == 0);
    for message in 0..8_u8 {
        assert!(
            next([&mut from, &mut to], &received) == (vec![message], long.clone()),
            "message {message} has other bytes"
        );
    }
}

#[test]
fn both_sides_may_connect_and_answer() {
    let Some(context) = loopback() else { return };
    let (mut one, answers) = receiving(&context);
    let (mut other, questions) = receiving(&context);
    let there = one.connect(&other.address().unwrap()).unwrap();
    let back = other.connect(&one.address().unwrap()).unwrap();
    for round in 0..200_u64 {
        one.send(&there, ID, &round.to_le_bytes(), b"?").unwrap();
        until([&mut one, &mut other], |[_, other]| {
            let Ok((header, _)) = questions.try_recv() else { return false };
            other.send(&back, ID, &header, b"!").unwrap();
            true
        });
        until([&mut one, &mut other], |_| {
            answers.try_recv().is_ok_and(|answer| answer == (round.to_le_bytes().to_vec(), b"!".to_vec()))
        });
    }
}

#[test]
fn misuse_is_refused() {
    let Some(context) = loopback() else { return };
    let (mut one, mut other) = (Worker::new(&context).unwrap(), Worker::new(&context).unwrap());
    let endpoint = one.connect(&other.address().unwrap()).unwrap();
    assert_eq!(other.send(&endpoint, ID, b"", b"").unwrap_err(), UcxError::OtherWorker);
    assert_eq!(other.check(&endpoint).unwrap_err(), UcxError::OtherWorker);
    let header = [0; HEADER_BYTES_MAX + 1];
    let error = one.send(&endpoint, ID, &header, b"").unwrap_err();
    assert_eq!(error, UcxError::TooLong { part: "header", bytes: HEADER_BYTES_MAX + 1, limit: HEADER_BYTES_MAX });
    let message = vec![0; MESSAGE_BYTES_MAX + 1];
    assert!(matches!(one.send(&endpoint, ID, b"", &message), Err(UcxError::TooLong { part: "message", .. })));
    assert_eq!(one.operations(), 0);

    let no_device = ContextOptions { devices: Some("farfield-none".into()), ..ContextOptions::default() };
    let text = Context::new(&no_device).unwrap_err().to_string();
    assert!(text.contains("tcp") && text.contains("farfield-none"), "{text}");
    let option = |name: &str, value: &str| {
        let others = vec![(name.to_owned(), value.to_owned())];
        Context::new(&ContextOptions { others, ..ContextOptions::default() }).unwrap_err()
    };
    assert!(matches!(option("MAX_EAGER_RAILS", "many"), UcxError::Option { .. }));
    assert!(matches!(option("TLS", "t\0cp"), UcxError::ZeroByte { .. }));
}

#[test]
fn a_panic_of_a_handler_continues_from_progress() {
    let Some(context) = loopback() else { return };
    let (mut from, mut to) = (Worker::new(&context).unwrap(), Worker::new(&context).unwrap());
    to.handle(ID, |_| panic!("the handler's panic")).unwrap();
    let endpoint = from.connect(&to.address().unwrap()).unwrap();
    from.send(&endpoint, ID, b"", b"").unwrap();
    let run = AssertUnwindSafe(|| until([&mut from, &mut to], |_| false));
    let panic = catch_unwind(run).unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"the handler's panic"));
}

#[test]
fn a_panic_of_a_handler_that_was_replaced_continues_from_progress_too() {
    let Some(context) = loopback() else { return };
    let mut from = Worker::new(&context).unwrap();
    let (mut to, received) = receiving(&context);
    for id in [ID + 1, ID + 2] {
        to.handle(id, |_| panic!("the handler's panic")).unwrap();
    }
    let endpoint = from.connect(&to.address().unwrap()).unwrap();
    from.send(&endpoint, ID, b"", b"").unwrap();
    until([&mut from, &mut to], |_| received.try_recv().is_ok());
    // Both come in one call of progress.
    for id in [ID + 1, ID + 2] {
        from.send(&endpoint, id, b"", b"").unwrap();
    }
    let flush = from.flush().unwrap();
    until_complete([&mut from], 0, flush);
    thread::sleep(Duration::from_millis(100));
    for _ in 0..2 {
        let panic = catch_unwind(AssertUnwindSafe(|| until([&mut to], |_| false))).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"the handler's panic"));
        for id in [ID + 1, ID + 2] {
            to.handle(id, |_| ()).unwrap();
        }
    }
    for _ in 0..10 {
        to.progress();
    }
}

#[test]
fn contexts_and_workers_may_be_made_at_the_same_time_and_dropped_in_any_order() {
    if loopback().is_none() {
        return;
    }
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            thread::spawn(move || {
                let context = loopback().unwrap();
                let (mut from, endpoint, to, received) = pair(&context);
                let request = from.send(&endpoint, ID, b"", &data(0, 1 << 20)).unwrap();
                // To another thread, with all that it has.
                let end = thread::spawn(move || {
                    let start = Instant::now();
                    if thread % 2 == 0 {
                        drop(context);
                        drop(from);
                        drop((request, endpoint, to));
                    } else {
                        drop((endpoint, request));
                        drop((to, from, context));
                    }
                    start.elapsed()
                });
                let took = end.join().unwrap();
                assert!(took < Duration::from_secs(10), "dropping took {took:?}");
                drop(received);
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_dropped_endpoint_is_closed_and_the_other_side_is_told() {
    let Some(context) = loopback() else { return };
    let (mut one, received) = receiving(&context);
    let (mut other, _keep) = receiving(&context);
    let there = one.connect(&other.address().unwrap()).unwrap();
    let back = other.connect(&one.address().unwrap()).unwrap();
    one.send(&there, ID, b"", b"").unwrap();
    other.send(&back, ID, b"", b"").unwrap();
    until([&mut one, &mut other], |_| received.try_recv().is_ok());
    drop(there);
    until([&mut one, &mut other], |[_, other]| other.check(&back).is_err());
    assert!(matches!(other.send(&back, ID, b"", b""), Err(UcxError::EndpointFailed { .. })));
    // A new endpoint works.
    drop(back);
    let back = other.connect(&one.address().unwrap()).unwrap();
    other.send(&back, ID, b"", b"again").unwrap();
    until([&mut one, &mut other], |_| received.try_recv().is_ok_and(|(_, bytes)| bytes == b"again"));
}

#[test]
fn an_endpoint_to_a_worker_that_has_gone_fails() {
    let Some(context) = loopback() else { return };
    let mut worker = Worker::new(&context).unwrap();
    let address = Worker::new(&context).unwrap().address().unwrap();
    // Between hosts the answer comes later.
    for _ in 0..3 {
        match worker.connect(&address) {
            Ok(endpoint) => {
                until([&mut worker], |[worker]| worker.check(&endpoint).is_err());
                assert!(matches!(worker.send(&endpoint, ID, b"", b""), Err(UcxError::EndpointFailed { .. })));
            }
            Err(error) => eprintln!("refused at once: {error}"),
        }
    }
    // The worker is as good as before.
    let (mut to, received) = receiving(&context);
    let endpoint = worker.connect(&to.address().unwrap()).unwrap();
    worker.send(&endpoint, ID, b"", b"").unwrap();
    next([&mut worker, &mut to], &received);
    worker.check(&endpoint).unwrap();
}

#[test]
fn an_event_wakes_a_sleeping_worker() {
    let Some(context) = quiet() else { return };
    let (mut from, endpoint, mut to, received) = connected(&context);
    settle(&mut to);
    // Nothing comes: it sleeps for the whole time, however often UCX has events of its own.
    let (start, end) = (Instant::now(), Instant::now() + Duration::from_millis(300));
    let mut wakes = 0;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        wakes += u32::from(to.wait(left).unwrap());
    }
    assert!(start.elapsed() >= Duration::from_millis(300) && wakes < 10, "{wakes} wakes");

    let start = Instant::now();
    let sleeper = thread::spawn(move || {
        while received.try_recv().is_err() {
            to.wait(PATIENCE).unwrap();
            assert!(start.elapsed() < PATIENCE, "nothing wakes the worker");
        }
        (start.elapsed(), to)
    });
    thread::sleep(Duration::from_millis(200));
    from.send(&endpoint, ID, b"", b"second").unwrap();
    let end = Instant::now() + PATIENCE;
    while !sleeper.is_finished() && Instant::now() < end {
        from.progress();
        thread::sleep(Duration::from_millis(1));
    }
    let (slept, _to) = sleeper.join().unwrap();
    eprintln!("woken after {slept:?}");
    assert!(slept >= Duration::from_millis(150) && slept < SOON, "{slept:?}");
}

#[test]
fn a_waker_ends_a_sleep() {
    let Some(context) = quiet() else { return };
    let mut worker = Worker::new(&context).unwrap();
    settle(&mut worker);
    let waker = worker.waker();
    let start = Instant::now();
    let sleeper = thread::spawn(move || (worker.wait(PATIENCE), worker));
    thread::sleep(Duration::from_millis(200));
    waker.wake();
    let (woken, mut worker) = sleeper.join().unwrap();
    let slept = start.elapsed();
    assert!(woken == Ok(true) && slept >= Duration::from_millis(150) && slept < SOON, "{woken:?} after {slept:?}");
    // Once for each wake, also for one that comes before the sleep.
    assert_eq!(worker.wait(Duration::from_millis(1)), Ok(false));
    waker.wake();
    assert_eq!(worker.wait(PATIENCE), Ok(true));
    assert!(start.elapsed() < SOON);
    assert_eq!(worker.wait(Duration::from_millis(1)), Ok(false));
}

#[test]
fn a_thread_sleeps_without_the_lock_of_the_worker() {
    let Some(context) = quiet() else { return };
    let (mut from, endpoint, mut to, received) = connected(&context);
    settle(&mut to);
    let sleeper = to.sleeper();
    let shared = Arc::new(Mutex::new(to));
    let start = Instant::now();
    let thread = thread::spawn({
        let shared = Arc::clone(&shared);
        move || {
            let mut slept = Vec::new();
            while received.try_recv().is_err() {
                let mut worker = shared.lock().unwrap();
                let armed = !worker.progress() && worker.arm().unwrap();
                drop(worker);
                if armed {
                    slept.push(sleeper.sleep(PATIENCE).unwrap());
                }
            }
            slept
        }
    });
    thread::sleep(Duration::from_millis(200));
    let worker = shared.lock().unwrap();
    assert!(start.elapsed() < SOON, "the lock was held for {:?}", start.elapsed());
    let waker = worker.waker();
    drop(worker);
    waker.wake();
    from.send(&endpoint, ID, b"", b"second").unwrap();
    until([&mut from], |_| thread.is_finished());
    let slept = thread.join().unwrap();
    assert!(start.elapsed() < SOON && slept.contains(&Slept::Woken), "{slept:?} after {:?}", start.elapsed());
}

#[test]
fn dropping_a_worker_ends_the_sleep_for_it() {
    let Some(context) = quiet() else { return };
    let worker = Worker::new(&context).unwrap();
    let sleeper = worker.sleeper();
    let start = Instant::now();
    let thread = thread::spawn(move || sleeper.sleep(PATIENCE));
    drop(worker);
    assert!(thread.join().unwrap().is_ok());
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

#[test]
fn a_sleeping_worker_closes_a_dropped_endpoint_and_its_peer_gets_an_event() {
    let Some(context) = quiet() else { return };
    for in_another_thread in [false, true] {
        let (mut from, endpoint, mut to, _received) = connected(&context);
        for _ in 0..3 {
            settle(&mut from);
            settle(&mut to);
        }
        while to.progress() || !to.arm().unwrap() {}
        assert_eq!(to.sleeper().sleep(Duration::from_millis(100)), Ok(Slept::TimedOut));
        while to.progress() || !to.arm().unwrap() {}
        let start = Instant::now();
        let endpoint = if in_another_thread {
            Some(endpoint)
        } else {
            drop(endpoint);
            None
        };
        let waker = from.waker();
        let (stop, is_stopped) = mpsc::channel();
        let thread = thread::spawn(move || {
            while is_stopped.try_recv().is_err() {
                from.wait(PATIENCE).unwrap();
            }
        });
        thread::sleep(Duration::from_millis(200));
        drop(endpoint);
        assert_eq!(to.sleeper().sleep(SOON), Ok(Slept::Event));
        eprintln!("closed after {:?}", start.elapsed());
        stop.send(()).unwrap();
        waker.wake();
        thread.join().unwrap();
    }
}

/// The open sockets of a process, by their inodes.
fn sockets_of(process: &str) -> BTreeSet<u64> {
    let files = fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let links = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    links.filter_map(|link| link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()).collect()
}

/// Whether this process has none of these sockets any more.
fn are_closed(sockets: &BTreeSet<u64>) -> bool {
    sockets.is_disjoint(&sockets_of("self"))
}

#[test]
fn a_child_has_no_sockets_of_its_parent() {
    let Some(context) = loopback() else { return };
    let worker = Worker::new(&context).unwrap();
    let sockets_of_child = |mark: bool| {
        let mut command = Command::new("sleep");
        command.arg("60");
        if mark {
            // SAFETY: it makes one system call.
            unsafe { command.pre_exec(close_on_exec) };
        }
        let mut child = command.spawn().unwrap();
        let sockets = sockets_of(&child.id().to_string());
        child.kill().unwrap();
        child.wait().unwrap();
        sockets.intersection(&sockets_of("self")).count()
    };
    eprintln!("{} sockets without the mark", sockets_of_child(false));
    assert_eq!(sockets_of_child(true), 0);
    drop(worker);
}

/// Set in the other process: its task.
const ROLE: &str = "FARFIELD_UCX_TEST_ROLE";
/// Stands before the address in the output of the other process.
const MARK: &str = "address:";

/// Not a test but the other process: prints its address, connects to the one on standard input, and makes progress
/// until it is killed, or its standard input ends. One that is stuck makes progress until it is connected.
#[test]
fn the_other_process() {
    let Some(role) = env::var_os(ROLE) else { return };
    let context = quiet().expect("the parent has UCX");
    let (mut worker, received) = receiving(&context);
    let hex: String = worker.address().unwrap().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    println!("{MARK}{hex}");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    // SAFETY: it is the whole address that the parent printed.
    let address = unsafe { Address::from_bytes(&bytes(line.trim())) }.unwrap();
    let back = worker.connect(&address).unwrap();
    let hello = worker.send(&back, ID, b"", b"hello").unwrap();
    let (gone, is_gone) = mpsc::channel();
    thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        let _ = gone.send(());
    });
    if role == "stuck" {
        // Connected in both directions, and then without progress.
        until([&mut worker], |_| received.try_recv().is_ok());
        until_complete([&mut worker], 0, hello);
        let flush = worker.flush().unwrap();
        until_complete([&mut worker], 0, flush);
        let _ = is_gone.recv_timeout(PATIENCE);
        return;
    }
    while is_gone.try_recv().is_err() {
        let _ = worker.wait(Duration::from_millis(20));
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|byte| u8::from_str_radix(&hex[2 * byte..2 * byte + 2], 16).unwrap()).collect()
}

/// The other process; it is killed when this is dropped.
struct Other {
    child: Child,
    /// Open as long as this process lives: the other one ends with it.
    _stdin: ChildStdin,
    address: Address,
}

impl Other {
    fn start(role: &str, address: &Address) -> Other {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "the_other_process", "--nocapture"]).env(ROLE, role);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // Workers of other tests have sockets, too.
        // SAFETY: it makes one system call.
        unsafe { command.pre_exec(close_on_exec) };
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let hex: String = address.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        std::io::Write::write_all(&mut stdin, format!("{hex}\n").as_bytes()).unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.map(|line| line.unwrap()).find_map(|line| Some(line.split_once(MARK)?.1.to_owned()));
        // SAFETY: it is the whole address that the child printed.
        let address = unsafe { Address::from_bytes(&bytes(line.expect("the other process starts").trim())) }.unwrap();
        Other { child, _stdin: stdin, address }
    }

    /// The sockets of this process that are connected to the other one.
    fn sockets(&self) -> BTreeSet<u64> {
        let text = fs::read_to_string("/proc/net/tcp").unwrap() + &fs::read_to_string("/proc/net/tcp6").unwrap();
        // Local port, remote port and inode.
        let sockets = text.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            let mut port = |place| Some(words.nth(place)?.rsplit_once(':')?.1);
            let (local, remote) = (port(1)?, port(0)?);
            Some((local, remote, words.nth(6)?.parse().ok()?))
        });
        let sockets: Vec<(&str, &str, u64)> = sockets.collect();
        let (ours, theirs) = (sockets_of("self"), sockets_of(&self.child.id().to_string()));
        let is_theirs = |port: &str| sockets.iter().any(|(local, _, inode)| *local == port && theirs.contains(inode));
        let shared = sockets.iter().filter(|(_, remote, inode)| ours.contains(inode) && is_theirs(remote));
        let shared: BTreeSet<u64> = shared.map(|&(_, _, inode)| inode).collect();
        assert!(!shared.is_empty(), "the processes have no connection: {text}");
        shared
    }

    fn kill(&mut self) {
        // SIGKILL.
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Connects to another process and exchanges messages with it.
fn with_other(role: &str, context: &Context) -> (Worker, Endpoint, Other) {
    let (mut worker, received) = receiving(context);
    let other = Other::start(role, &worker.address().unwrap());
    let endpoint = worker.connect(&other.address).unwrap();
    worker.send(&endpoint, ID, b"", b"hello").unwrap();
    until([&mut worker], |_| received.try_recv().is_ok_and(|(_, bytes)| bytes == b"hello"));
    (worker, endpoint, other)
}

/// Sends more than a peer takes that makes no progress.
fn more_than_it_takes(worker: &mut Worker, endpoint: &Endpoint) -> Vec<Request> {
    let message = data(0, 1 << 20);
    let mut requests = Vec::new();
    let start = Instant::now();
    while requests.len() < 8 {
        requests.extend(worker.send(endpoint, ID, b"", &message).unwrap());
        worker.progress();
        assert!(start.elapsed() < PATIENCE, "the other process takes all");
    }
    assert_eq!(worker.is_complete(requests.last().unwrap()), Ok(false));
    requests
}

#[test]
fn a_killed_peer_wakes_a_sleeping_worker_and_its_requests_fail() {
    let Some(context) = quiet() else { return };
    for (role, sends) in [("live", false), ("live", true), ("stuck", false)] {
        let (mut worker, endpoint, mut other) = with_other(role, &context);
        let sockets = other.sockets();
        let mut requests = Vec::new();
        if role == "stuck" {
            requests = more_than_it_takes(&mut worker, &endpoint);
        } else {
            settle(&mut worker);
        }
        worker.check(&endpoint).unwrap();
        other.kill();
        let killed = Instant::now();
        let mut refused = None;
        while worker.check(&endpoint).is_ok() {
            if sends {
                match worker.send(&endpoint, ID, b"", &data(0, 100_000)) {
                    Ok(request) => requests.extend(request),
                    Err(error) => refused = Some(error),
                }
            }
            worker.wait(PATIENCE).unwrap();
            assert!(killed.elapsed() < SOON, "nothing wakes the worker");
        }
        eprintln!("{role}: found after {:?}: {}", killed.elapsed(), worker.check(&endpoint).unwrap_err());
        let error = worker.send(&endpoint, ID, b"", b"").unwrap_err();
        assert!(matches!(error, UcxError::EndpointFailed { .. }), "{error}");
        // Its connections are closed, and messages in flight end.
        while !are_closed(&sockets) {
            worker.wait(PATIENCE).unwrap();
            assert!(killed.elapsed() < SOON, "the sockets stay open");
        }
        until([&mut worker], |[worker]| requests.iter().all(|request| worker.is_complete(request) != Ok(false)));
        eprintln!("{} sockets; {} were in flight; {refused:?}", sockets.len(), requests.len());
        if role == "stuck" {
            let error = worker.is_complete(requests.last().unwrap()).unwrap_err();
            assert!(matches!(error, UcxError::Call { call: "ucp_am_send_nbx", .. }), "{error}");
        }
        // A flush finds nothing to wait for.
        if let Some(flush) = worker.flush().unwrap() {
            until([&mut worker], |[worker]| worker.is_complete(&flush) != Ok(false));
        }
        let start = Instant::now();
        drop((requests, worker));
        assert!(start.elapsed() < Duration::from_secs(10), "dropping took {:?}", start.elapsed());
        drop(endpoint);
    }
}

#[test]
fn a_peer_without_progress_blocks_nothing() {
    let Some(context) = loopback() else { return };
    let (mut worker, endpoint, mut other) = with_other("stuck", &context);
    let (mut to, received) = receiving(&context);
    let live = worker.connect(&to.address().unwrap()).unwrap();
    let requests = more_than_it_takes(&mut worker, &endpoint);
    // A flush of another endpoint is complete, and that of the worker is not.
    let all = worker.flush().unwrap().expect("messages are in flight");
    worker.send(&live, ID, b"", b"live").unwrap();
    let flush = worker.flush_endpoint(&live).unwrap();
    until_complete([&mut worker, &mut to], 0, flush);
    until([&mut worker, &mut to], |_| received.try_recv().is_ok_and(|(_, bytes)| bytes == b"live"));
    assert_eq!(worker.is_complete(&all), Ok(false));
    // Closing by force waits for no peer: nothing is in flight any more.
    let start = Instant::now();
    drop(endpoint);
    until([&mut worker], |[worker]| worker.is_complete(&all) != Ok(false));
    eprintln!("closed in {:?}", start.elapsed());
    assert!(start.elapsed() < SOON);
    // Its messages have ended with errors, which are none of the endpoint that is made next.
    let next = worker.connect(&to.address().unwrap()).unwrap();
    assert!(worker.is_complete(requests.last().unwrap()).is_err());
    drop((requests, all));
    until([&mut worker, &mut to], |[worker, _]| worker.operations() == 0);
    worker.progress();
    worker.check(&next).unwrap();
    worker.send(&next, ID, b"", b"next").unwrap();
    until([&mut worker, &mut to], |_| received.try_recv().is_ok_and(|(_, bytes)| bytes == b"next"));
    worker.check(&live).unwrap();
    let start = Instant::now();
    drop(worker);
    assert!(start.elapsed() < Duration::from_secs(10), "dropping took {:?}", start.elapsed());
    other.kill();
}

#[test]
fn a_receiver_survives_the_death_of_a_sender() {
    let Some(context) = loopback() else { return };
    let (mut worker, received) = receiving(&context);
    // It connects to this worker, which does not connect to it.
    let mut other = Other::start("live", &worker.address().unwrap());
    until([&mut worker], |_| received.try_recv().is_ok_and(|(_, bytes)| bytes == b"hello"));
    other.kill();
    let end = Instant::now() + Duration::from_millis(300);
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        worker.wait(left).unwrap();
    }
    let next = Other::start("live", &worker.address().unwrap());
    until([&mut worker], |_| received.try_recv().is_ok_and(|(_, bytes)| bytes == b"hello"));
    drop(next);
}
