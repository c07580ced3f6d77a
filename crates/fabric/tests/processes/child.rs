//! A process that is a node and executes commands.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farfield_fabric::shm::{ShmFabric, ShmOptions};
use farfield_fabric::{
    ControlEvent, Endpoint, EndpointOptions, ErrorKind, Fabric, GroupKey, NodeId, PeerState, Region, RemotePtr,
    Transport, Word,
};

use crate::{SOON, all_stopped, signal};

/// Session, node, number of nodes and most bytes of a group.
pub(crate) const ROLE_VAR: &str = "FARFIELD_TEST_ROLE";
/// The layout to announce.
pub(crate) const LAYOUT_VAR: &str = "FARFIELD_TEST_LAYOUT";

/// Runs the node that the environment describes, until its standard input ends. Does nothing if the environment
/// describes none.
pub(crate) fn run() {
    let Ok(role) = std::env::var(ROLE_VAR) else { return };
    let [session, node, nodes, bytes_max] = role.split(' ').collect::<Vec<_>>()[..] else { panic!("{role}") };
    let mut options = ShmOptions::new(session, node.parse().unwrap(), nodes.parse().unwrap());
    options.group_bytes_max = bytes_max.parse().unwrap();
    options.layout = std::env::var(LAYOUT_VAR).unwrap();
    let fabric = match ShmFabric::join(&options) {
        Ok(fabric) => fabric,
        Err(error) => {
            println!("@refused {error}");
            return;
        }
    };
    let (events, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
    let body = {
        let (fabric, events, stop) = (Arc::clone(&fabric), Arc::clone(&events), Arc::clone(&stop));
        move || {
            while !stop.load(Ordering::Acquire) {
                fabric.serve(Duration::from_millis(50), &mut |event| events.lock().unwrap().push(event));
            }
            fabric.leave();
        }
    };
    let service = Arc::clone(&fabric).spawn_service("service".into(), Box::new(body)).unwrap();
    let options = EndpointOptions { timeout: SOON, ..EndpointOptions::default() };
    let endpoint = Endpoint::open(fabric.clone(), options).unwrap();
    let mut me = Obeying { fabric: fabric.clone(), endpoint, regions: Vec::new(), heap: Vec::new(), events };
    println!("@ready {}", std::process::id());
    for line in std::io::stdin().lines().map_while(Result::ok) {
        if line == "leave" {
            break;
        }
        match me.obey(&line) {
            Ok(value) => println!("@ok {value}"),
            Err(error) => println!("@err {error}"),
        }
    }
    stop.store(true, Ordering::Release);
    fabric.wake_service();
    service.join().unwrap();
    println!("@ok 0");
    // The process stays until the parent ends it: leaving the session does not end the process.
    let _ = std::io::stdin().read_line(&mut String::new());
}

struct Obeying {
    fabric: Arc<ShmFabric>,
    endpoint: Endpoint,
    regions: Vec<Region>,
    heap: Vec<u8>,
    events: Arc<Mutex<Vec<ControlEvent>>>,
}

/// Waits until something is so.
fn until(what: &str, ready: &dyn Fn() -> bool) -> Result<(), String> {
    let start = Instant::now();
    while !ready() {
        if start.elapsed() > SOON / 2 {
            return Err(what.to_owned());
        }
        std::thread::yield_now();
    }
    Ok(())
}

impl Obeying {
    fn obey(&mut self, line: &str) -> Result<String, String> {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let args: Vec<u64> = rest.split_whitespace().map(|word| word.parse().unwrap()).collect();
        let number = |at: usize| args[at];
        let place = |at: usize| RemotePtr::<u64>::from_packed(args[at]);
        let told = |error: farfield_fabric::Error| format!("{:?} | {error}", error.kind());
        let key = |at: usize| GroupKey(args[at] as u8);
        let node = |at: usize| NodeId(args[at] as u16);
        let endpoint = &self.endpoint;
        match verb {
            "up" => {
                let peer = number(0) as u16;
                self.until(|events| events.contains(&ControlEvent::Up(NodeId(peer))).then(|| "0".into()))
            }
            "down" => {
                let peer = number(0) as u16;
                self.until(|events| events.contains(&ControlEvent::Down(NodeId(peer))).then(|| "0".into()))
            }
            "refusal" => self.until(|events| {
                events.iter().find(|event| matches!(event, ControlEvent::Refused(..))).map(|event| format!("{event:?}"))
            }),
            "refusals" => {
                let events = self.events.lock().unwrap();
                Ok(events.iter().filter(|event| matches!(event, ControlEvent::Refused(..))).count().to_string())
            }
            "state" => Ok(format!("{:?}", self.fabric.peer_state(node(0)))),
            "alloc" => {
                let region = self.fabric.alloc(key(0), number(1) as usize).map_err(told)?;
                let packed = region.remote::<u64>(0).packed();
                self.regions.push(region);
                Ok(packed.to_string())
            }
            "word" => {
                let region = &self.regions[number(0) as usize];
                Ok(region.word(number(1) as usize).load().to_string())
            }
            "put" => endpoint.put_value(place(0), number(1)).wait().map_err(told).map(|()| "0".into()),
            "get" => endpoint.get(place(0)).wait().map_err(told).map(|value| value.to_string()),
            "cas" => endpoint.cas(place(0), number(1), number(2)).wait().map_err(told).map(|value| value.to_string()),
            "faa" => endpoint.faa(place(0), number(1)).wait().map_err(told).map(|value| value.to_string()),
            "add" => {
                for _ in 0..number(1) {
                    endpoint.faa(place(0), 1).wait().map_err(told)?;
                }
                Ok("0".into())
            }
            "fill" => {
                let words = (number(1) / 8) as usize;
                let mut buf = endpoint.buf::<u64>(words.min(1 << 16)).unwrap();
                for start in (0..words).step_by(buf.len()) {
                    for (at, word) in buf.iter_mut().enumerate() {
                        *word = number(2) + (start + at) as u64;
                    }
                    endpoint.put(place(0).at(start), &buf).wait().map_err(told)?;
                }
                Ok("0".into())
            }
            "check" => {
                let region = &self.regions[number(0) as usize];
                let words = region.words(0, region.bytes() / 8);
                let wrong = words.iter().enumerate().find(|(at, word)| word.load() != number(1) + *at as u64);
                wrong.map_or(Ok("0".into()), |(at, word)| Err(format!("word {at} is {}", word.load())))
            }
            "heap" => {
                self.heap = vec![1; number(0) as usize];
                Ok(self.heap.iter().step_by(4096).map(|byte| u64::from(*byte)).sum::<u64>().to_string())
            }
            "fork" => {
                // SAFETY: the child calls `pause` only, which is safe after a fork with other threads around.
                let pid = unsafe { libc::fork() };
                if pid == 0 {
                    loop {
                        // SAFETY: takes no argument, returns on a signal only.
                        unsafe { libc::pause() };
                    }
                }
                Ok(pid.to_string())
            }
            "kill" => {
                let (pid, word) = (number(0) as i32, place(1));
                endpoint.put_value(word, 1).wait().map_err(told)?;
                let start = Instant::now();
                signal(pid, libc::SIGKILL);
                loop {
                    let result = endpoint.put_value(word, 2).wait();
                    let took = start.elapsed();
                    match result {
                        Err(error) => return Ok(format!("{} {}", took.as_micros(), told(error))),
                        Ok(()) if took > SOON => return Err("it does not die".into()),
                        Ok(()) => {}
                    }
                }
            }
            "write" => {
                let (endpoint, target, beat) = (self.another_endpoint(), place(0), place(1));
                std::thread::spawn(move || write_on(&endpoint, target, beat));
                Ok("0".into())
            }
            "write_by_many" => {
                let (fabric, target, beat) = (Arc::clone(&self.fabric), place(0), place(1));
                std::thread::spawn(move || write_by_many(&fabric, target, beat));
                Ok("0".into())
            }
            "write_late" => {
                let (endpoint, told, beat) = (self.another_endpoint(), place(0), place(1));
                std::thread::spawn(move || write_late(&endpoint, told, beat));
                Ok("0".into())
            }
            "free_stopped" => self.free_stopped(number(0) as i32, node(1), number(2)),
            "revoke" => {
                let timeout = Duration::from_millis(number(2));
                self.fabric.revoke(node(0), key(1), timeout).map_err(told).map(|()| "0".into())
            }
            "revoke_often" => self.revoke_often(node(0), number(1), Duration::from_micros(number(2))),
            "free_often" => self.free_often(number(0) as usize, number(1)),
            "revoke_stopped" => self.revoke_stopped(number(0) as i32, node(1), number(2)),
            _ => panic!("no such command: {line}"),
        }
    }

    fn another_endpoint(&self) -> Endpoint {
        Endpoint::open(self.fabric.clone(), EndpointOptions::default()).unwrap()
    }

    fn until(&self, mut found: impl FnMut(&[ControlEvent]) -> Option<String>) -> Result<String, String> {
        let start = Instant::now();
        while start.elapsed() < SOON / 2 {
            if let Some(found) = found(&self.events.lock().unwrap()) {
                return Ok(found);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(format!("not among the events: {:?}", self.events.lock().unwrap()))
    }

    /// Allocates regions of `bytes` bytes until one is at `address`, or at one that is not among those that were
    /// `seen`: then all that was given back is out of use. Returns whether one is, and the regions.
    fn alloc_until(&self, address: *const Word, bytes: usize, seen: &mut BTreeSet<*const Word>) -> (bool, Vec<Region>) {
        let mut regions = Vec::new();
        loop {
            let region = self.fabric.alloc(GroupKey::DATA, bytes).unwrap();
            let at: *const Word = region.word(0);
            regions.push(region);
            let is_new = seen.insert(at);
            if is_new || at == address {
                return (at == address, regions);
            }
        }
    }

    /// Repeatedly stops the peer at a random moment of its writing, and frees the memory that it writes to. Returns how
    /// often the peer was in the middle of a write. The last time it is, it is killed.
    fn free_stopped(&self, pid: i32, peer: NodeId, rounds: u64) -> Result<String, String> {
        const BYTES: usize = 1 << 16;
        // An address is allocated 128 times at most: its generations end. Each is used in fewer rounds than that.
        const ROUNDS_OF_ADDRESS: u64 = 64;
        let (beat, told) = (&self.regions[0], self.regions[0].word(8));
        let turns = |more: u64| {
            let from = beat.word(0).load();
            until("the peer does not run", &|| beat.word(0).load() >= from + more)
        };
        let is_zero = |region: &Region| region.words(0, BYTES / 8).iter().all(|word| word.load() == 0);
        let (mut used_up, mut seen) = (Vec::new(), BTreeSet::new());
        let (mut kept, mut random) = (0, 0x9e37_79b9_7f4a_7c15u64);
        for round in 0.. {
            let region = self.fabric.alloc(GroupKey::DATA, BYTES).map_err(|error| error.to_string())?;
            let address: *const Word = region.word(0);
            seen.insert(address);
            told.store(region.remote::<u64>(0).packed());
            turns(2)?;
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let moment = Instant::now();
            while moment.elapsed() < Duration::from_micros(random >> 57) {
                std::hint::spin_loop();
            }
            signal(pid, libc::SIGSTOP);
            until("the peer does not stop", &|| all_stopped(pid))?;
            self.fabric.free(region).map_err(|error| error.to_string())?;
            // Giving back waits for no fence, and a revocation does, whatever its outcome. The first one may be for
            // memory that was given back earlier.
            let mut begun = Vec::new();
            for _ in 0..2 {
                let region = self.fabric.alloc(GroupKey::DATA, BYTES).map_err(|error| error.to_string())?;
                seen.insert(region.word(0));
                begun.push(region);
                let _ = self.fabric.revoke(peer, GroupKey::SERVICE, Duration::from_millis(5));
                self.fabric.start_permit(peer, GroupKey::SERVICE).map_err(|error| error.to_string())?;
            }
            let (is_back, mut regions) = self.alloc_until(address, BYTES, &mut seen);
            let mut found = is_back || begun.iter().any(|region| std::ptr::eq(region.word(0), address));
            regions.append(&mut begun);
            kept += u64::from(!found);
            let last = round >= rounds && !found;
            if last {
                signal(pid, libc::SIGKILL);
                until("the peer does not die", &|| matches!(self.fabric.peer_state(peer), PeerState::Dead { .. }))?;
            } else {
                signal(pid, libc::SIGCONT);
                turns(3)?;
            }
            let start = Instant::now();
            while !found {
                // Its write has ended, completed or not; or soon its process has.
                std::thread::sleep(Duration::from_millis(1));
                let (is_back, more) = self.alloc_until(address, BYTES, &mut seen);
                regions.extend(more);
                found = is_back;
                if start.elapsed() > SOON / 2 {
                    return Err(format!("round {round}: the memory does not come back"));
                }
            }
            if let Some(at) = regions.iter().position(|region| !is_zero(region)) {
                return Err(format!("round {round}: a late write is in region {at}"));
            }
            if round % ROUNDS_OF_ADDRESS == ROUNDS_OF_ADDRESS - 1 {
                used_up.append(&mut regions);
            }
            regions.into_iter().try_for_each(|region| self.fabric.free(region)).map_err(|error| error.to_string())?;
            if last {
                return Ok(kept.to_string());
            }
            if round > 10 * rounds {
                return Err("it was never stopped in the middle of a write".into());
            }
        }
        unreachable!()
    }

    /// Allocates and frees regions, one after the other. Returns how many microseconds a free took, and an allocation.
    fn free_often(&self, bytes: usize, rounds: u64) -> Result<String, String> {
        let (mut frees, mut allocations) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..rounds {
            let start = Instant::now();
            let region = self.fabric.alloc(GroupKey::DATA, bytes).map_err(|error| error.to_string())?;
            let freed = Instant::now();
            self.fabric.free(region).map_err(|error| error.to_string())?;
            allocations += freed - start;
            frees += freed.elapsed();
        }
        let each = |all: Duration| all.as_micros() as u64 / rounds;
        Ok(format!("{} {}", each(frees), each(allocations)))
    }

    /// Repeatedly revokes the peer's right to region 0 while it writes, with calls that wait for so long. Returns how
    /// many microseconds a revocation took.
    fn revoke_often(&self, peer: NodeId, rounds: u64, timeout: Duration) -> Result<String, String> {
        let (target, beat) = (self.regions[0].word(0), self.regions[1].word(0));
        let lines = self.regions[1].words(4096, 512);
        let (mut took, mut random) = (Duration::ZERO, 0x9e37_79b9_7f4a_7c15u64);
        for round in 0..rounds {
            self.fabric.permit(peer, GroupKey::DATA).map_err(|error| error.to_string())?;
            let before = target.load();
            until("the peer does not write", &|| target.load() != before)?;
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let moment = Instant::now();
            while moment.elapsed() < Duration::from_nanos(random >> 51) {
                std::hint::spin_loop();
            }
            lines.iter().step_by(8).for_each(|word| word.store(round)); // the peer's stores to them are slow then
            let start = Instant::now();
            loop {
                match self.fabric.revoke(peer, GroupKey::DATA, timeout) {
                    Ok(()) => break,
                    Err(error) if matches!(error.kind(), ErrorKind::RevokeUndecided { .. }) => {}
                    Err(error) => return Err(error.to_string()),
                }
                if start.elapsed() > SOON / 2 {
                    return Err(format!("round {round}: it is never decided"));
                }
                std::thread::yield_now();
            }
            took += start.elapsed();
            let (settled, turns) = (target.load(), beat.load());
            until("the peer does not run", &|| beat.load() > turns + 2)?;
            if target.load() != settled {
                return Err(format!("round {round}: a write landed after the revoke"));
            }
        }
        Ok((took.as_micros() as u64 / rounds).to_string())
    }

    /// Repeatedly stops the peer at a random moment of its writing and revokes its right to region 0.
    fn revoke_stopped(&self, pid: i32, peer: NodeId, rounds: u64) -> Result<String, String> {
        let (guarded, beat) = (&self.regions[0], &self.regions[1]);
        let words = guarded.words(0, guarded.bytes() / 8);
        let snapshot = || words.iter().map(farfield_fabric::Word::load).collect::<Vec<_>>();
        // Waits for some more iterations of the peer's loop.
        let turns = |more: u64| -> Result<(), String> {
            let (from, start) = (beat.word(0).load(), Instant::now());
            while beat.word(0).load() < from + more {
                if start.elapsed() > SOON / 2 {
                    return Err("the peer does not run".into());
                }
                std::thread::yield_now();
            }
            Ok(())
        };
        let mut undecided = 0;
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        for round in 0..rounds {
            self.fabric.permit(peer, GroupKey::DATA).map_err(|error| error.to_string())?;
            turns(2)?;
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let moment = Instant::now();
            while moment.elapsed() < Duration::from_micros(random >> 57) {
                std::hint::spin_loop();
            }
            signal(pid, libc::SIGSTOP);
            let mut asked = Instant::now();
            while !all_stopped(pid) {
                if asked.elapsed() > SOON / 2 {
                    return Err("the peer does not stop".into());
                }
            }
            asked = Instant::now();
            let timeout = Duration::from_millis(2);
            let first = self.fabric.revoke(peer, GroupKey::DATA, timeout);
            let settled = match first {
                Ok(()) => {
                    let settled = snapshot();
                    signal(pid, libc::SIGCONT);
                    settled
                }
                Err(error) => {
                    let named = matches!(*error.kind(), ErrorKind::RevokeUndecided { node, .. } if node == peer);
                    if !named || asked.elapsed() < timeout {
                        signal(pid, libc::SIGCONT);
                        return Err(format!("round {round}: {error} after {:?}", asked.elapsed()));
                    }
                    undecided += 1;
                    signal(pid, libc::SIGCONT);
                    self.fabric.revoke(peer, GroupKey::DATA, SOON / 2).map_err(|error| format!("again: {error}"))?;
                    snapshot()
                }
            };
            turns(3)?;
            if let Some(at) = snapshot().iter().zip(&settled).position(|(now, then)| now != then) {
                return Err(format!("round {round}: a write to word {at} landed after the revoke"));
            }
        }
        Ok(format!("{undecided}"))
    }
}

/// Writes to `target` for ever, by one short-lived thread after the other, and counts its iterations in `beat`. A core
/// on which such a thread has ended must not be left out of a fence.
fn write_by_many(fabric: &Arc<ShmFabric>, target: RemotePtr<u64>, beat: RemotePtr<u64>) {
    let mut is_alive = true;
    let mut value = 0;
    while is_alive {
        let write = || {
            let endpoint = Endpoint::open(fabric.clone(), EndpointOptions::default()).unwrap();
            let lines = endpoint.buf::<u64>(512).unwrap();
            (0..500).all(|_| {
                value += 1;
                let _ = endpoint.put(beat.at(512), &lines).wait(); // the next stores stay in the store buffer for long
                let _ = endpoint.put_value(target, value).wait(); // refused while revoked, as intended
                endpoint.put_value(beat, value).wait().is_ok()
            })
        };
        is_alive = std::thread::scope(|scope| scope.spawn(write).join().unwrap());
    }
}

/// Writes to `target` (8192 words) for ever, and counts its iterations in `beat`.
fn write_on(endpoint: &Endpoint, target: RemotePtr<u64>, beat: RemotePtr<u64>) {
    let mut buf = endpoint.buf::<u64>(8192).unwrap();
    let mut value = 0;
    loop {
        value += 1;
        buf.fill(value);
        // Refused while revoked, as intended.
        let _ = endpoint.put(target, &buf).wait();
        let _ = endpoint.put_value(target.at(100), value).wait();
        let _ = endpoint.faa(target.at(200), 1).wait();
        if endpoint.faa(beat, 1).wait().is_err() {
            return;
        }
    }
}

/// Writes for ever to the pointer stored at `told` (8192 words), and counts its iterations in `beat`.
fn write_late(endpoint: &Endpoint, told: RemotePtr<u64>, beat: RemotePtr<u64>) {
    let mut buf = endpoint.buf::<u64>(8192).unwrap();
    buf.fill(7);
    while let Ok(target) = endpoint.get(told).wait() {
        if target != 0 {
            // A late put is refused, as intended.
            let _ = endpoint.put(RemotePtr::<u64>::from_packed(target), &buf).wait();
        }
        if endpoint.faa(beat, 1).wait().is_err() {
            return;
        }
    }
}
