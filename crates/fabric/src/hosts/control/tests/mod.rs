//! Tests of the control plane: `protocol`, two state machines without sockets; `sessions`, nodes that talk over TCP;
//! `strangers`, attacks on a node's socket; `fuzz`, random input.

mod fuzz;
mod protocol;
mod sessions;
mod strangers;

use std::sync::Arc;
use std::time::Duration;

use super::protocol::{Admit, Happening, Identity, Protocol};
use super::secret::{Root, Secret};
use super::wire::{Frame, LENGTH_BYTES};
use super::{Hello, Limits, Refusal};
use crate::local::Instant;
use crate::ptr::NodeId;

fn identity(node: u16, secret: Option<&Secret>) -> Identity {
    Identity {
        layout: "farfield-verbs-1".into(),
        session: "night".into(),
        node: NodeId(node),
        place: node % 3,
        places: 3,
        incarnation: 1000 + u64::from(node),
        root: secret.map_or_else(Root::of_nothing, Secret::root),
        limits: Limits::default(),
    }
}

fn secret(byte: u8) -> Secret {
    Secret::new(&[byte; 32]).unwrap()
}

fn admit_all(_: &Hello) -> Result<(), Refusal> {
    Ok(())
}

/// The hello of a node to `to`.
fn hello_of(who: &Identity, to: u16) -> Hello {
    Hello {
        layout: who.layout.clone(),
        session: who.session.clone(),
        node: who.node,
        place: who.place,
        places: who.places,
        incarnation: who.incarnation,
        to,
        nonce: [9; 32],
    }
}

/// A frame without a tag.
fn framed(frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = vec![0; LENGTH_BYTES];
    frame.encode(&mut bytes);
    let len = (bytes.len() - LENGTH_BYTES) as u32;
    bytes[..LENGTH_BYTES].copy_from_slice(&len.to_le_bytes());
    bytes
}

/// One end of a connection without a socket.
struct End {
    protocol: Protocol,
    happened: Vec<Happening>,
}

impl End {
    fn new(protocol: Protocol) -> End {
        End { protocol, happened: Vec::new() }
    }

    /// Takes all that waits to be sent.
    fn said(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while !self.protocol.outgoing.is_empty() {
            let next = self.protocol.outgoing.next();
            let len = next.len().min(99); // as a socket that is nearly full
            bytes.extend_from_slice(&next[..len]);
            self.protocol.outgoing.sent(len);
        }
        bytes
    }

    fn hear(&mut self, bytes: &[u8], now: Instant, admit: Admit<'_>) {
        self.protocol.input(bytes, now, admit, &mut self.happened);
    }

    fn tick(&mut self, now: Instant) {
        self.protocol.tick(now, &mut self.happened);
    }
}

/// A caller and a listener, and the time.
struct Pair {
    caller: End,
    listener: End,
    now: Instant,
}

impl Pair {
    /// The caller calls the listener's place.
    fn new(caller: Identity, listener: Identity) -> Pair {
        let now = Instant { ns: 1_000_000_000 };
        let place = listener.place;
        Pair {
            caller: End::new(Protocol::caller(Arc::new(caller), place, [1; 32], now)),
            listener: End::new(Protocol::listener(Arc::new(listener), [2; 32], now)),
            now,
        }
    }

    /// Two nodes that fit, and are up.
    fn up() -> Pair {
        let secret = secret(7);
        let mut pair = Pair::new(identity(2, Some(&secret)), identity(1, Some(&secret)));
        pair.talk();
        assert!(matches!(pair.caller.happened[..], [Happening::Up(_)]), "{:?}", pair.caller.happened);
        assert!(matches!(pair.listener.happened[..], [Happening::Up(_)]), "{:?}", pair.listener.happened);
        pair.caller.happened.clear();
        pair.listener.happened.clear();
        pair
    }

    /// Carries everything over, until neither side has anything to say.
    fn talk(&mut self) {
        loop {
            let (there, back) = (self.caller.said(), self.listener.said());
            if there.is_empty() && back.is_empty() {
                return;
            }
            self.listener.hear(&there, self.now, &admit_all);
            self.caller.hear(&back, self.now, &admit_all);
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.caller.tick(self.now);
        self.listener.tick(self.now);
    }
}
