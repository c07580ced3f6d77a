//! Executions to render, written down by hand or drawn from a seed. They look like recorded ones; no simulator ran.

use super::{Event, Failure, Lane, Timeline, What};

/// Writes a timeline, one step per call.
pub(super) struct Recorder {
    pub(super) timeline: Timeline,
    step: u64,
    ops: u32,
    state: u64,
}

impl Recorder {
    pub(super) fn new(title: &str, about: &str, threads: &[(&str, u16)]) -> Self {
        let threads = threads.iter().map(|&(name, node)| Lane { name: name.into(), node }).collect();
        let (title, about) = (title.to_string(), about.to_string());
        let timeline = Timeline {
            title,
            about,
            threads,
            replay: "seed=7 steps=211 path=0:3.1.1.0.2".into(),
            ..Timeline::default()
        };
        Recorder { timeline, step: 0, ops: 0, state: 7 }
    }

    pub(super) fn add(&mut self, thread: usize, what: What) -> u64 {
        self.step += 1 + self.draw(3);
        self.timeline.events.push(Event { step: self.step, time_ns: 0, thread, what });
        self.step
    }

    pub(super) fn draw(&mut self, below: u64) -> u64 {
        self.state = self.state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.state >> 33) % below
    }

    pub(super) fn fail(&mut self, step: u64, thread: usize, message: &str) {
        self.timeline.failure = Some(Failure { step, thread: Some(thread), message: message.into() });
    }

    fn issue(&mut self, thread: usize, verb: &'static str, peer: u16, text: &str) -> u32 {
        self.ops += 1;
        self.add(thread, What::Issue { op: self.ops, verb, peer, text: text.into() });
        self.ops
    }

    fn read(&mut self, thread: usize, cell: &str, value: u64) -> u64 {
        self.add(thread, What::Read { cell: cell.into(), value, buffered: false })
    }

    fn write(&mut self, thread: usize, cell: &str, value: u64) {
        self.add(thread, What::Write { cell: cell.into(), value });
    }

    fn drained(&mut self, thread: usize, cell: &str, value: u64) {
        self.add(thread, What::Drained { cell: cell.into(), value });
    }

    fn nic_read(&mut self, thread: usize, op: u32, cell: &str, value: u64) -> u64 {
        self.add(thread, What::NicRead { op, cell: cell.into(), value })
    }

    fn started(&mut self, thread: usize, op: u32) {
        self.add(thread, What::Started { op });
    }

    fn landed(&mut self, thread: usize, op: u32, cell: &str, value: u64) {
        self.add(thread, What::Landed { op, cell: cell.into(), value });
    }

    fn completed(&mut self, thread: usize, op: u32) {
        self.add(thread, What::Completed { op });
    }

    fn seen(&mut self, thread: usize, op: u32) {
        self.add(thread, What::Seen { op });
    }

    fn waits(&mut self, thread: usize, text: &str) {
        self.add(thread, What::Waits { text: text.into() });
    }

    fn woken(&mut self, thread: usize) {
        self.add(thread, What::Woken);
    }
}

/// The barrier without a fence towards nodes that take no part (the paper's Fig. 22): a put to n2 is overtaken.
pub(super) fn barrier() -> Timeline {
    let about = "Three nodes meet at a barrier. n1 has put z := 1 to n2 before, n3 gets z from n2 after. Whatever was \
                 put before the barrier must be seen after it.";
    let threads = [("writer", 1), ("service", 1), ("peer", 2), ("service", 2), ("reader", 3), ("service", 3)];
    let mut r = Recorder::new("barrier: a put before it is not seen after it", about, &threads);
    let (writer, peer, reader) = (0, 2, 4);
    let z = r.issue(writer, "put", 2, "put 1 → n2 z");
    r.waits(1, "for a message");
    r.write(peer, "bar.2", 1);
    r.nic_read(writer, z, "src", 1);
    r.drained(peer, "bar.2", 1);
    r.started(writer, z);
    let to_writer = r.issue(peer, "put", 1, "put 1 → n1 bar.2");
    r.completed(writer, z);
    let to_reader = r.issue(peer, "put", 3, "put 1 → n3 bar.2");
    r.seen(writer, z);
    r.started(peer, to_reader);
    r.write(reader, "bar.3", 1);
    r.completed(peer, to_reader);
    r.write(writer, "bar.1", 1);
    r.landed(peer, to_reader, "bar.2", 1);
    r.drained(writer, "bar.1", 1);
    r.started(peer, to_writer);
    let arrive = r.issue(writer, "put", 3, "put 1 → n3 bar.1");
    let arrive2 = r.issue(writer, "put", 2, "put 1 → n2 bar.1");
    r.landed(peer, to_writer, "bar.2", 1);
    r.completed(peer, to_writer);
    r.waits(3, "for a message");
    r.drained(reader, "bar.3", 1);
    r.read(reader, "bar.2", 1);
    r.waits(writer, "until bar.3 ≥ 1");
    r.nic_read(writer, arrive, "bar.1", 1);
    r.waits(reader, "until bar.1 ≥ 1");
    r.started(writer, arrive);
    r.landed(writer, arrive, "bar.1", 1);
    r.completed(writer, arrive);
    r.woken(reader);
    r.nic_read(writer, arrive2, "bar.1", 1);
    r.read(reader, "bar.1", 1);
    r.waits(peer, "until bar.1 ≥ 1");
    r.started(writer, arrive2);
    let get = r.issue(reader, "get", 2, "get a ← n2 z");
    r.completed(writer, arrive2);
    r.nic_read(reader, get, "z", 0);
    r.landed(reader, get, "a", 0);
    r.completed(reader, get);
    r.seen(reader, get);
    let step = r.read(reader, "a", 0);
    r.landed(writer, z, "z", 1);
    r.landed(writer, arrive2, "bar.1", 1);
    r.fail(step, reader, "after the barrier reader got z = 0 from n2, but writer put z := 1 before the barrier");
    r.timeline
}

/// A shared variable of two words between guards. Its reader reads the guards in the writer's order.
pub(super) fn torn() -> Timeline {
    let about = "A writer puts lead guard, two words of data and trail guard. The reader reads the lead guard first, \
                 so equal guards prove nothing.";
    let mut r = Recorder::new(
        "shared variable: a torn value is accepted",
        about,
        &[("writer", 0), ("reader", 1), ("service", 1)],
    );
    let cells = ["v.lead", "v.0", "v.1", "v.trail"];
    for version in 1..=2 {
        for cell in cells {
            r.write(0, cell, version);
        }
        for cell in cells {
            r.drained(0, cell, version);
        }
        let op = r.issue(0, "put", 1, "put v → n1 v");
        for cell in cells {
            r.nic_read(0, op, cell, version);
        }
        r.started(0, op);
        r.completed(0, op);
        if version == 1 {
            for cell in cells {
                r.landed(0, op, cell, version);
            }
            r.seen(0, op);
            continue;
        }
        r.read(1, "v.lead", 1);
        r.seen(0, op);
        r.read(1, "v.0", 1);
        r.landed(0, op, "v.lead", 2);
        r.landed(0, op, "v.0", 2);
        r.landed(0, op, "v.1", 2);
        r.read(1, "v.1", 2);
        r.add(2, What::Received { from: 0, text: "hello <&> \"n1\"".into() });
        let step = r.read(1, "v.trail", 1);
        r.fail(step + 1, 1, "reader accepted (1, 2), which nobody wrote: guards 1 and 1 are equal");
        r.add(1, What::Note { text: "accepts (1, 2)".into() });
        r.landed(0, op, "v.trail", 2);
    }
    r.timeline
}

/// A counter on n2 under a mutex that is released before the put of the new value is in memory.
pub(super) fn mutex() -> Timeline {
    let about = "Two workers add 1 to a counter on n2 under a mutex: acquire, get, put, release. The release does not \
                 fence, so the last put may still be in the NIC's buffer when the lock changes hands.";
    let threads = [("worker a", 0), ("service", 0), ("worker b", 1), ("service", 1), ("service", 2)];
    let mut r = Recorder::new("mutex: released before the put has landed", about, &threads);
    let mut count = 0;
    for round in 0..7 {
        let (me, other) = if round % 2 == 0 { (0, 2) } else { (2, 0) };
        let node = me as u16 / 2;
        let (ticket, found) = (r.issue(me, "faa", 2, "faa 1 → n2 m.next"), if round == 6 { count - 1 } else { count });
        r.nic_read(me, ticket, "m.next", round);
        r.landed(me, ticket, "m.next", round + 1);
        r.read(other, "work", 40 + round);
        r.landed(me, ticket, "ticket", round);
        r.completed(me, ticket);
        r.seen(me, ticket);
        if round > 0 {
            r.waits(me, &format!("until m.owner = {round}"));
            r.add(other, What::Message { to: node, text: format!("owner {round}") });
            r.add(me + 1, What::Received { from: 1 - node, text: format!("owner {round}") });
            r.woken(me);
        }
        r.add(me, What::Lock { name: "m".into() });
        let get = r.issue(me, "get", 2, "get c ← n2 counter");
        let step = r.nic_read(me, get, "counter", found);
        r.landed(me, get, "c", found);
        r.completed(me, get);
        r.write(other, "work", 41 + round);
        r.seen(me, get);
        if round == 6 {
            r.fail(step, 0, "worker a got counter = 5 under the lock, but 6 increments were made under it");
        }
        let put = r.issue(me, "put", 2, &format!("put {} → n2 counter", found + 1));
        r.nic_read(me, put, "c", found + 1);
        r.drained(other, "work", 41 + round);
        r.started(me, put);
        r.completed(me, put);
        if round < 5 {
            r.landed(me, put, "counter", found + 1);
        }
        r.seen(me, put);
        r.add(me, What::Unlock { name: "m".into() });
        count = found + 1;
    }
    r.timeline
}

/// About `length` events of eight threads on four nodes, which do not fail, or only at the end.
pub(super) fn busy(length: usize, fails: bool) -> Timeline {
    let threads: Vec<_> =
        (0..8).map(|i| (["writer", "reader", "sweeper of old epochs", "service"][i % 4], i as u16 / 2)).collect();
    let mut r = Recorder::new("key-value store under load", "Eight threads, drawn at random.", &threads);
    let mut flight: Vec<(usize, u32, u32, String, u64)> = Vec::new();
    while r.timeline.events.len() < length {
        let thread = r.draw(8) as usize;
        let (node, cell) = (thread as u16 / 2, format!("slot{}", r.draw(5)));
        let peer = (node + 1 + r.draw(3) as u16) % 4;
        let value = r.draw(90) + r.draw(20) / 19 * 0xdead_beef_0000;
        match r.draw(14) {
            0..=1 => {
                r.read(thread, &cell, value);
            }
            2 => {
                r.write(thread, &cell, value);
                r.drained(thread, &cell, value);
            }
            3 => {
                r.add(thread, What::Rmw { cell, old: value, new: value + 1 });
            }
            4 => {
                r.waits(thread, "for room");
            }
            5 if flight.len() < 9 => {
                let op = r.issue(thread, "get", peer, &format!("get ← n{peer} {cell}"));
                r.nic_read(thread, op, &cell, value);
                r.landed(thread, op, "reply", value);
                r.completed(thread, op);
            }
            6 | 7 if flight.len() < 9 => {
                let op = r.issue(thread, "put", peer, &format!("put {value} → n{peer} {cell}"));
                flight.push((thread, op, 0, format!("n{peer} {cell}"), value));
            }
            _ if !flight.is_empty() => {
                let i = r.draw(flight.len() as u64) as usize;
                let (thread, op, done, cell, value) = flight[i].clone();
                match done {
                    0 => r.started(thread, op),
                    1 => r.completed(thread, op),
                    2 => r.seen(thread, op),
                    _ => r.landed(thread, op, &cell, value),
                }
                flight[i].2 += 1;
                flight.retain(|f| f.2 < 4);
            }
            _ => {}
        }
    }
    if fails {
        r.fail(u64::MAX, 1, "history is not linearizable: get(k3) → 17 has no place");
    }
    r.timeline
}
