//! Workers over TCP on the loopback interface, in one process and between two.
//!
//! A machine without UCX passes and says so, unless `FARFIELD_NEED_UCX=1`.

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use farfield_ucx_sys::*;

/// How long anything may take: machines have bad moments.
const PATIENCE: Duration = Duration::from_secs(30);
/// The identifier of messages.
const ID: u16 = 7;

/// A context on the loopback interface; none where there is no UCX.
fn loopback() -> Option<Context> {
    context_on(Some("lo"))
}

/// A context on a device, or on all of them.
fn context_on(device: Option<&str>) -> Option<Context> {
    match Ucx::get() {
        Ok(_) => {
            let options = ContextOptions { devices: device.map(str::to_owned), ..ContextOptions::default() };
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

/// Data of a message: each byte depends on the message and its place.
fn data(message: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|place| (place.wrapping_mul(31) ^ (place >> 8) ^ message) as u8).collect()
}

#[test]
fn messages_of_any_length_come_whole_and_in_order() {
    for device in [Some("lo"), None] {
        let Some(context) = context_on(device) else { return };
        whole_and_in_order(&context);
    }
}

fn whole_and_in_order(context: &Context) {
    let mut from = Worker::new(context).unwrap();
    let (mut to, received) = receiving(context);
    let endpoint = from.connect(&to.address().unwrap()).unwrap();
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
        let mut next = None;
        until([&mut from, &mut to], |_| {
            next = received.try_recv().ok();
            next.is_some()
        });
        let (header, bytes) = next.unwrap();
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
    let mut from = Worker::new(&context).unwrap();
    let (mut to, received) = receiving(&context);
    let endpoint = from.connect(&to.address().unwrap()).unwrap();
    let long = data(1, 1 << 20);
    for message in 0..8_u8 {
        // SAFETY: the bytes live longer than the worker's flush, after which all is complete, and are not written.
        let request = unsafe { from.send_from(&endpoint, ID, &[message], long.as_ptr(), long.len()) };
        drop(request.unwrap());
    }
    let flush = from.flush().unwrap();
    if let Some(flush) = &flush {
        until([&mut from, &mut to], |[from, _]| from.is_complete(flush).unwrap());
    }
    drop(flush);
    until([&mut from, &mut to], |[from, _]| from.operations() == 0);
    for message in 0..8_u8 {
        let mut next = None;
        until([&mut from, &mut to], |_| {
            next = received.try_recv().ok();
            next.is_some()
        });
        assert!(next.unwrap() == (vec![message], long.clone()), "message {message} has other bytes");
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
    let run = std::panic::AssertUnwindSafe(|| until([&mut from, &mut to], |_| false));
    let panic = std::panic::catch_unwind(run).unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"the handler's panic"));
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
                let mut from = Worker::new(&context).unwrap();
                let (to, received) = receiving(&context);
                let endpoint = from.connect(&to.address().unwrap()).unwrap();
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
    until([&mut one, &mut other], |[one, _]| one.endpoints() == (0, 0));
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
    until([&mut worker, &mut to], |_| received.try_recv().is_ok());
    worker.check(&endpoint).unwrap();
}

#[test]
fn an_event_wakes_a_sleeping_worker() {
    let Some(context) = loopback() else { return };
    let mut from = Worker::new(&context).unwrap();
    let (mut to, received) = receiving(&context);
    let endpoint = from.connect(&to.address().unwrap()).unwrap();
    from.send(&endpoint, ID, b"", b"first").unwrap();
    until([&mut from, &mut to], |_| received.try_recv().is_ok());
    // Nothing comes: it sleeps for the whole time, however often UCX has events of its own.
    let (start, end) = (Instant::now(), Instant::now() + Duration::from_millis(300));
    let mut wakes = 0;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        wakes += u32::from(to.wait(left).unwrap());
    }
    assert!(start.elapsed() >= Duration::from_millis(300) && wakes < 10, "{wakes} wakes");

    let sleeper = thread::spawn(move || {
        let start = Instant::now();
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
    assert!(slept >= Duration::from_millis(150) && slept < Duration::from_secs(10), "{slept:?}");
}

/// Set in the other process: what it is to do.
const ROLE: &str = "FARFIELD_UCX_TEST_ROLE";
/// Stands before the address in the output of the other process.
const MARK: &str = "address:";

/// Not a test but the other process: connects to the address on standard input, if there is one, prints its own, and
/// sends, or only receives, until it is killed, or its standard input ends.
#[test]
fn the_other_process() {
    let Some(role) = env::var_os(ROLE) else { return };
    let context = loopback().expect("the parent has UCX");
    let (mut worker, received) = receiving(&context);
    let hex: String = worker.address().unwrap().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    println!("{MARK}{hex}");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    // SAFETY: it is the whole address that the parent printed.
    let address = unsafe { Address::from_bytes(&bytes(line.trim())) };
    let back = worker.connect(&address).unwrap();
    worker.send(&back, ID, b"", b"hello").unwrap();
    let (gone, is_gone) = mpsc::channel();
    thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        let _ = gone.send(());
    });
    if role == "stuck" {
        // Connected, and then without progress.
        until([&mut worker], |_| received.try_recv().is_ok());
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
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "the_other_process", "--nocapture"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let hex: String = address.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        std::io::Write::write_all(&mut stdin, format!("{hex}\n").as_bytes()).unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.map(|line| line.unwrap()).find_map(|line| Some(line.split_once(MARK)?.1.to_owned()));
        // SAFETY: it is the whole address that the child printed.
        let address = unsafe { Address::from_bytes(&bytes(line.expect("the other process starts").trim())) };
        Other { child, _stdin: stdin, address }
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

#[test]
fn a_killed_peer_is_an_error_in_bounded_time_and_sends_are_refused() {
    let Some(context) = loopback() else { return };
    for sends in [false, true] {
        let (mut worker, endpoint, mut other) = with_other("live", &context);
        worker.check(&endpoint).unwrap();
        other.kill();
        let killed = Instant::now();
        let mut requests = Vec::new();
        let mut refused = None;
        until([&mut worker], |[worker]| {
            if sends {
                match worker.send(&endpoint, ID, b"", &data(0, 100_000)) {
                    Ok(request) => requests.extend(request),
                    Err(error) => refused = Some(error),
                }
            }
            worker.check(&endpoint).is_err()
        });
        eprintln!("found after {:?}: {}", killed.elapsed(), worker.check(&endpoint).unwrap_err());
        assert!(killed.elapsed() < Duration::from_secs(10));
        let error = worker.send(&endpoint, ID, b"", b"").unwrap_err();
        assert!(matches!(error, UcxError::EndpointFailed { .. }), "{error}");
        // What was in flight ends, and so does the endpoint.
        until([&mut worker], |[worker]| {
            requests.iter().all(|request| worker.is_complete(request) != Ok(false)) && worker.endpoints() == (1, 0)
        });
        eprintln!("{} were in flight; {refused:?}", requests.len());
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
    // More than its socket takes.
    let message = data(0, 1 << 20);
    let mut requests = Vec::new();
    let start = Instant::now();
    while requests.len() < 8 {
        requests.extend(worker.send(&endpoint, ID, b"", &message).unwrap());
        worker.progress();
        assert!(start.elapsed() < PATIENCE, "the other process takes all");
    }
    let last = requests.last().unwrap();
    assert_eq!(worker.is_complete(last), Ok(false));
    // Closing by force waits for no peer.
    let start = Instant::now();
    drop(endpoint);
    until([&mut worker], |[worker]| {
        worker.endpoints() == (0, 0) && requests.iter().all(|request| worker.is_complete(request) != Ok(false))
    });
    eprintln!("closed in {:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(10));
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
