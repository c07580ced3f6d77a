//! Random input: random and damaged frames through the decoder, and through whole connections.
//!
//! `FARFIELD_FUZZ_CASES` sets the number of cases, `FARFIELD_FUZZ_SEED` the first seed. A case that fails prints its
//! seed, which repeats it as a single case. These must hold, however the bytes are damaged on their way:
//!
//! - nothing panics, and at most one frame of input is kept;
//! - a frame that the decoder accepts, the encoder produces again;
//! - no node without the secret comes up, and a node that comes up has proved its identity;
//! - a node receives a prefix of the other side's messages, in their order;
//! - a connection that is over stays over; and without interference everything arrives.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::super::codec::{FRAME_BYTES_MAX, GREETING_BYTES_MAX};
use super::super::protocol::{Ending, Happening, Identity, Protocol};
use super::super::queues::Incoming;
use super::super::refusal::Refusal;
use super::super::refusal::tests::refusals;
use super::super::secret::{Secret, Side, Transcript};
use super::super::wire::{Frame, Hello, LENGTH_BYTES};
use super::{End, Pair, admit_all, framed, hello_of, identity, secret};
use crate::local::Instant;

static SECRETS: LazyLock<[Option<Secret>; 3]> = LazyLock::new(|| [None, Some(secret(1)), Some(secret(2))]);

#[test]
fn random_input() {
    let number = |name, default: u64| match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|why| panic!("{name}: {why}")),
        Err(_) => default,
    };
    let cases = number("FARFIELD_FUZZ_CASES", 20_000);
    let first = number("FARFIELD_FUZZ_SEED", 0);
    for seed in first..first.saturating_add(cases) {
        let failing = Failing(seed);
        let mut rng = SmallRng::seed_from_u64(seed);
        match seed % 4 {
            0 => decode(&mut rng),
            1 if rng.random_ratio(1, 20) => bounds(&mut rng),
            1 => cut_up(&mut rng),
            2 => Wire::new(&mut rng).run(),
            _ => stranger(&mut rng),
        }
        std::mem::forget(failing);
    }
}

/// Prints the case that panicked.
struct Failing(u64);

impl Drop for Failing {
    fn drop(&mut self) {
        eprintln!("to repeat it: FARFIELD_FUZZ_SEED={} FARFIELD_FUZZ_CASES=1", self.0);
    }
}

fn bytes(rng: &mut SmallRng, max: usize) -> Vec<u8> {
    let len = rng.random_range(0..=max);
    (0..len).map(|_| rng.random()).collect()
}

/// A valid frame, without its length.
fn frame(rng: &mut SmallRng) -> Vec<u8> {
    let name = |rng: &mut SmallRng| "é".repeat(rng.random_range(0..128));
    let message = bytes(rng, 100);
    let frame = match rng.random_range(0..7) {
        0 => {
            let mut hello = hello_of(&identity(rng.random_range(0..9), None), rng.random_range(0..4));
            (hello.layout, hello.session) = (name(rng), name(rng));
            Frame::Hello(hello)
        }
        1 => Frame::Proof(rng.random()),
        2 => match refusals().swap_remove(rng.random_range(0..refusals().len())) {
            Refusal::Session { .. } => Frame::Refusal(Refusal::Session { refuser: name(rng), refused: name(rng) }),
            refusal => Frame::Refusal(refusal),
        },
        3 => Frame::Beat,
        4 => Frame::Goodbye,
        5 => Frame::Payload(&message),
        _ => Frame::Message(&message),
    };
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    bytes
}

/// Does one thing to bytes.
fn damage(rng: &mut SmallRng, bytes: &mut Vec<u8>) {
    let at = rng.random_range(0..=bytes.len());
    let end = rng.random_range(at..=bytes.len());
    match rng.random_range(0..8) {
        0 => bytes.truncate(at),
        1 => bytes.extend(self::bytes(rng, 40)),
        2 => drop(bytes.drain(at..end)),
        3 => {
            let part = bytes[at..end].to_vec();
            bytes.splice(at..at, part);
        }
        4 => drop(bytes.splice(at..at, self::bytes(rng, 8))),
        _ if at == bytes.len() => bytes.push(rng.random()),
        5 => bytes[at] ^= 1 << rng.random_range(0..8),
        6 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][rng.random_range(0..5)],
        _ => bytes[at] = rng.random(),
    }
}

fn decode(rng: &mut SmallRng) {
    let mut bytes = if rng.random_ratio(1, 8) { bytes(rng, 700) } else { frame(rng) };
    if let Some(kind) = bytes.first_mut() {
        *kind %= 16; // else most are of no kind
    }
    for _ in 0..rng.random_range(0..4) {
        damage(rng, &mut bytes);
    }
    if let Ok(frame) = Frame::decode(&bytes) {
        let mut again = Vec::new();
        frame.encode(&mut again);
        assert_eq!(again, bytes, "{frame:?}");
    }
}

/// Frames, some of them damaged, in pieces.
fn cut_up(rng: &mut SmallRng) {
    let frames: Vec<Vec<u8>> = (0..rng.random_range(1..5)).map(|_| frame(rng)).collect();
    let mut stream = Vec::new();
    for frame in &frames {
        stream.extend((frame.len() as u32).to_le_bytes());
        stream.extend(frame);
    }
    let is_damaged = rng.random_bool(0.5);
    if is_damaged {
        damage(rng, &mut stream);
    }
    let bytes_max = if rng.random_bool(0.5) { FRAME_BYTES_MAX } else { GREETING_BYTES_MAX };
    let mut incoming = Incoming::default();
    let (mut rest, mut got) = (&stream[..], Vec::new());
    while !rest.is_empty() {
        let (mut piece, tail) = rest.split_at(rng.random_range(1..=rest.len()));
        rest = tail;
        while !piece.is_empty() {
            match incoming.take(&mut piece, bytes_max, Instant { ns: 1 }) {
                Ok(frame) => got.extend(frame),
                Err(_) => {
                    assert!(is_damaged);
                    return;
                }
            }
            assert!(incoming.len() < bytes_max && incoming.len() <= stream.len());
        }
    }
    assert!(is_damaged || got == frames);
}

/// A frame that is about as long as frames may be.
fn bounds(rng: &mut SmallRng) {
    let bytes_max = if rng.random_bool(0.2) { FRAME_BYTES_MAX } else { GREETING_BYTES_MAX };
    let len = bytes_max - LENGTH_BYTES + 3 - rng.random_range(0..6);
    let stream = [&(len as u32).to_le_bytes()[..], &vec![1; len]].concat();
    let mut incoming = Incoming::default();
    let mut rest = &stream[..];
    let taken = incoming.take(&mut rest, bytes_max, Instant { ns: 1 });
    assert_eq!(taken.is_ok(), LENGTH_BYTES + len <= bytes_max);
    assert!(taken.is_ok() || incoming.len() == LENGTH_BYTES, "what is too long is not kept");
}

/// Two nodes, and an attacker between them.
struct Wire<'a> {
    rng: &'a mut SmallRng,
    pair: Pair,
    nodes: [Identity; 2],
    is_one_secret: bool,
    /// The probability of interference with bytes on their way, in percent.
    malice: u32,
    has_interfered: bool,
    /// The bytes on their way to the listener, and to the caller.
    under_way: [Vec<u8>; 2],
    /// Earlier bytes, to be replayed or reflected.
    seen: [Vec<Vec<u8>>; 2],
    /// The messages of the caller, and of the listener.
    said: [u32; 2],
}

impl Wire<'_> {
    fn new(rng: &mut SmallRng) -> Wire<'_> {
        let ours = rng.random_range(0..3);
        let theirs = if rng.random_ratio(1, 6) { rng.random_range(0..3) } else { ours };
        let who = |node: u16, secret: usize| identity(node, SECRETS[secret].as_ref());
        let nodes = || [who(5, ours), who(1, theirs)];
        let [caller, listener] = nodes();
        Wire {
            pair: Pair::new(caller, listener),
            nodes: nodes(),
            is_one_secret: ours == theirs,
            malice: [0, 0, 3, 15, 60][rng.random_range(0..5)],
            has_interfered: false,
            under_way: [Vec::new(), Vec::new()],
            seen: [Vec::new(), Vec::new()],
            said: [0, 0],
            rng,
        }
    }

    fn end(&mut self, side: usize) -> &mut End {
        if side == 0 { &mut self.pair.caller } else { &mut self.pair.listener }
    }

    fn run(&mut self) {
        if self.rng.random_bool(0.5) {
            let malice = std::mem::take(&mut self.malice);
            (0..4).for_each(|turn| self.carry(turn % 2, true)); // they are up, or have refused
            self.malice = malice;
        }
        for _ in 0..self.rng.random_range(4..40) {
            let side = self.rng.random_range(0..2);
            match self.rng.random_range(0..10) {
                0 | 1 => self.say(side),
                2 => {
                    let time = Duration::from_millis(self.rng.random_range(0..300));
                    self.pair.pass(time);
                }
                _ => self.carry(side, false),
            }
            self.check();
        }
        if !self.has_interfered {
            self.arrives();
        }
    }

    fn say(&mut self, side: usize) {
        let number = self.said[side];
        let bytes = [&number.to_le_bytes()[..], &[number as u8; 30][..number as usize % 30]].concat();
        let protocol = &mut self.end(side).protocol;
        let sent = if number.is_multiple_of(2) { protocol.send_message(&bytes) } else { protocol.send_payload(&bytes) };
        assert_eq!(sent.is_ok(), protocol.is_open());
        self.said[side] += u32::from(sent.is_ok());
    }

    /// Carries some or all of `side`'s output to the other.
    fn carry(&mut self, side: usize, all: bool) {
        let said = self.end(side).said();
        self.under_way[side].extend(said);
        let len = self.under_way[side].len();
        let len = if all || self.rng.random_bool(0.5) { len } else { self.rng.random_range(0..=len) };
        let mut bytes: Vec<u8> = self.under_way[side].drain(..len).collect();
        if self.rng.random_range(0..100) < self.malice {
            self.interfere(side, &mut bytes);
        } else if !bytes.is_empty() {
            self.seen[side].push(bytes.clone());
        }
        let now = self.pair.now;
        self.end(1 - side).hear(&bytes, now, &admit_all);
    }

    fn interfere(&mut self, side: usize, bytes: &mut Vec<u8>) {
        let before = bytes.clone();
        match self.rng.random_range(0..5) {
            0 => {
                // Mostly the last bytes: repeated, or reflected to their sender.
                let from = if self.rng.random_bool(0.7) { side } else { 1 - side };
                let back = self.rng.random_range(0..4).min(self.rng.random_range(0..4));
                let again = self.seen[from].iter().rev().nth(back).cloned().unwrap_or_default();
                if self.rng.random_bool(0.5) { *bytes = again } else { bytes.extend(again) }
            }
            1 => {
                // A frame of its own, without a tag or with a wrong one.
                let mut own = frame(self.rng);
                if self.rng.random_bool(0.5) {
                    own.extend([self.rng.random::<u8>(); 32]);
                }
                bytes.extend((own.len() as u32).to_le_bytes());
                bytes.extend(own);
            }
            2 => std::mem::swap(bytes, &mut self.under_way[1 - side]),
            _ => damage(self.rng, bytes),
        }
        self.has_interfered |= *bytes != before;
    }

    /// Checks the invariants of both sides.
    fn check(&mut self) {
        for side in 0..2 {
            let (others, said) = (hello_of(&self.nodes[1 - side], self.nodes[side].place), self.said[1 - side]);
            let is_one_secret = self.is_one_secret;
            let end = self.end(side);
            let heard = judge(&end.happened, &others, is_one_secret);
            assert!(heard <= said, "{heard} heard of {said}");
            let bytes_max = if end.protocol.is_open() { FRAME_BYTES_MAX } else { GREETING_BYTES_MAX };
            assert!(end.protocol.incoming_len() < bytes_max);
        }
    }

    /// Without interference: they come up and receive all, or both refuse.
    fn arrives(&mut self) {
        self.malice = 0;
        for _ in 0..6 {
            self.carry(0, true);
            self.carry(1, true);
        }
        self.check();
        let is_one_secret = self.is_one_secret;
        for side in 0..2 {
            let said = self.said[1 - side];
            let late = self.pair.now >= Instant { ns: 6_000_000_000 };
            let end = self.end(side);
            let is_up = matches!(end.happened.first(), Some(Happening::Up(_)));
            let is_refused = matches!(end.happened[..], [Happening::Refused { refusal: Refusal::Secret, .. }]);
            // Time may have run out before they had talked, or in the middle of a frame.
            let is_late = late && end.protocol.is_over();
            assert!(is_late || if is_one_secret { is_up } else { is_refused }, "{:?}", end.happened);
            if is_up && !is_late {
                let heard = end.happened.iter().filter(|it| is_heard(it)).count();
                assert_eq!(heard, said as usize);
            }
        }
    }
}

fn is_heard(what: &Happening) -> bool {
    matches!(what, Happening::Message(_) | Happening::Payload(_))
}

/// Checks the events at one end. Returns the number of received messages.
fn judge(happened: &[Happening], other: &Hello, may_come_up: bool) -> u32 {
    let (mut is_up, mut is_over, mut is_suspected, mut heard) = (false, false, false, 0u32);
    for what in happened {
        assert!(!is_over, "after its end: {happened:?}");
        match what {
            Happening::Up(hello) => {
                assert!(may_come_up && !is_up);
                let nonce = hello.nonce;
                assert!(Hello { nonce, ..other.clone() } == *hello && (nonce == [1; 32] || nonce == [2; 32]));
                is_up = true;
            }
            Happening::Suspected | Happening::Trusted => {
                assert!(is_up && is_suspected == (*what == Happening::Trusted));
                is_suspected = !is_suspected;
            }
            Happening::Message(bytes) | Happening::Payload(bytes) => {
                assert!(is_up && bytes[..4] == heard.to_le_bytes(), "{heard} was to come, {bytes:?} came");
                assert!(bytes.len() == 4 + heard as usize % 30 && bytes[4..].iter().all(|byte| *byte == heard as u8));
                assert_eq!(heard.is_multiple_of(2), matches!(what, Happening::Message(_)));
                heard += 1;
            }
            Happening::Refused { .. } | Happening::Failed(_) => {
                assert!(!is_up);
                is_over = true;
            }
            Happening::Down(ending) => {
                assert!(is_up && *ending != Ending::Goodbye, "nobody has said goodbye");
                is_over = true;
            }
        }
    }
    heard
}

/// A stranger without the secret that knows all else, on either side of a connection.
fn stranger(rng: &mut SmallRng) {
    let (me, other) = (identity(1, SECRETS[1].as_ref()), identity(2, SECRETS[rng.random_range(0..2) * 2].as_ref()));
    let now = Instant { ns: 0 };
    let is_caller = rng.random_bool(0.5); // the node, not the stranger
    let (me, other) = if is_caller { (identity(2, SECRETS[1].as_ref()), identity(1, None)) } else { (me, other) };
    let nonce = [1; 32];
    let mut node = End::new(if is_caller {
        Protocol::caller(Arc::new(me), 1, nonce, now)
    } else {
        Protocol::listener(Arc::new(me), nonce, now)
    });
    let mut hello = framed(&Frame::Hello(hello_of(&other, if is_caller { 2 } else { 1 })));
    let mut says = node.said();
    if rng.random_ratio(1, 8) {
        damage(rng, &mut hello);
    }
    node.hear(&hello, now, &admit_all);
    says.extend(node.said());
    for _ in 0..rng.random_range(1..6) {
        let bytes = match rng.random_range(0..5) {
            0 => {
                // Proofs, as they would be with the stranger's own secret.
                let hellos = (&hello[4.min(hello.len())..], &says[4.min(says.len())..]);
                let (caller, listener) = if is_caller { (hellos.1, hellos.0) } else { hellos };
                let side = if rng.random_bool(0.8) == is_caller { Side::Listener } else { Side::Caller };
                framed(&Frame::Proof(Transcript::new(&other.root, caller, listener).proof(side)))
            }
            1 if says.len() > 36 => says[says.len() - 37..].to_vec(), // the node's own proof
            2 => bytes(rng, 200),
            3 => hello.clone(),
            _ => {
                let frame = frame(rng);
                [&(frame.len() as u32).to_le_bytes()[..], &frame].concat()
            }
        };
        node.hear(&bytes, now, &admit_all);
        says.extend(node.said());
    }
    let is_let_in = node.happened.iter().any(|what| matches!(what, Happening::Up(_)));
    assert!(!is_let_in && !node.protocol.is_open(), "{:?}", node.happened);
    assert!(node.happened.len() <= 1 && node.happened.iter().all(|it| !is_heard(it)));
}
