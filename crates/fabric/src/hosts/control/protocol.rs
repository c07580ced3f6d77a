//! One connection as a state machine, without sockets or clock: its input is bytes and times, its output bytes and
//! events.
//!
//! ```text
//! caller                          listener
//!   hello  ───────────────────────►          looks whether it fits
//!          ◄─────────────────────── hello
//!   proof  ───────────────────────►          right: the caller is up here
//!          ◄─────────────────────── proof
//!   the listener is up here                  from here on every frame carries a tag
//! ```
//!
//! Either side may send a refusal in place of its next frame; then the connection is over. The caller proves first, so
//! a calling stranger learns nothing that depends on the secret.

use std::sync::Arc;
use std::time::Duration;

use super::codec::{FRAME_BYTES_MAX, GREETING_BYTES_MAX, Malformed};
use super::options::Limits;
use super::queues::{Incoming, Outgoing};
use super::refusal::Refusal;
use super::secret::{Root, Seal, Side, Transcript};
use super::wire::{Frame, Hello, LENGTH_BYTES, TAG_BYTES, VERSION};
use crate::fabric::CONTROL_BYTES_MAX;
use crate::local::Instant;
use crate::ptr::NodeId;

/// The description of a node that it sends on all its connections.
pub(super) struct Identity {
    pub(super) layout: String,
    pub(super) session: String,
    pub(super) node: NodeId,
    pub(super) place: u16,
    pub(super) places: u16,
    pub(super) incarnation: u64,
    pub(super) root: Root,
    pub(super) limits: Limits,
}

/// What happens on a connection.
#[derive(PartialEq, Debug)]
pub(super) enum Happening {
    /// The peer has proved that it knows the session's secret, if there is one.
    Up(Hello),
    /// Nothing was heard of it for long.
    Suspected,
    /// It was heard of again.
    Trusted,
    Payload(Vec<u8>),
    Message(Vec<u8>),
    /// One side has refused the other. The peer's place, as far as it is known.
    Refused {
        place: Option<u16>,
        by_us: bool,
        refusal: Refusal,
    },
    /// A connection that was up is over.
    Down(Ending),
    /// A connection that was not up yet is over.
    Failed(Broken),
}

/// How a connection ended that was up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    /// The peer has sent its goodbye.
    Goodbye,
    /// It did not. Whether it is dead is not known by this.
    Broken(Broken),
}

/// Why a connection ended without a goodbye.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Broken {
    /// The other side closed it, or its process has ended.
    #[error("the other side hung up")]
    HungUp,
    /// The system closed it.
    #[error("{0}")]
    System(String),
    /// The input is not a frame.
    #[error("{0}")]
    Malformed(Malformed),
    /// A frame announces more bytes than frames may have.
    #[error("a frame says that it has {0} bytes, which is more than it may have")]
    Long(usize),
    /// A frame was changed on its way, or is not the peer's.
    #[error("a frame has the wrong tag: it was damaged, or it is not the peer's")]
    Tag,
    /// A frame arrived in a state in which its kind is not allowed.
    #[error("a frame came out of turn")]
    Turn,
    /// The node has called itself.
    #[error("this node has reached itself")]
    Myself,
    /// The connection was not made and agreed on in time.
    #[error("it was not connected within {0:?}")]
    Handshake(Duration),
    /// A frame began and did not end.
    #[error("a frame did not end within {0:?}")]
    Frame(Duration),
}

/// Why something cannot be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum SendError {
    /// The node is not connected.
    #[error("it is not connected")]
    NotUp,
    /// The message is too long.
    #[error("{bytes} bytes are more than {CONTROL_BYTES_MAX}")]
    TooLong {
        /// How long it is.
        bytes: usize,
    },
    /// The peer does not read its input.
    #[error("it does not take what is sent to it, and {} bytes wait: is it stopped?", super::queues::QUEUE_BYTES_MAX)]
    Full,
}

/// Asks whether a node may come up now: its place may be taken, or its life over.
pub(super) type Admit<'a> = &'a dyn Fn(&Hello) -> Result<(), Refusal>;

enum State {
    /// Awaits the peer's hello.
    Greeting,
    /// Awaits its proof.
    Proving {
        peer: Hello,
        transcript: Transcript,
    },
    /// Frames of any kind with a tag.
    Open {
        heard: Instant,
        beaten: Instant,
        suspected: bool,
        hears: Seal,
        says: Seal,
    },
    Over,
}

pub(super) struct Protocol {
    me: Arc<Identity>,
    side: Side,
    nonce: [u8; 32],
    /// The own hello as it was sent, from then on.
    hello: Vec<u8>,
    /// The place that is called.
    calls: Option<u16>,
    state: State,
    /// Since when the handshake is under way.
    since: Instant,
    incoming: Incoming,
    pub(super) outgoing: Outgoing,
}

impl Protocol {
    /// The side that calls `place`; its hello is to be sent at once.
    pub(super) fn caller(me: Arc<Identity>, place: u16, nonce: [u8; 32], now: Instant) -> Protocol {
        let mut caller = Protocol::new(me, Side::Caller, Some(place), nonce, now);
        caller.greet(place);
        caller
    }

    /// The side that is called.
    pub(super) fn listener(me: Arc<Identity>, nonce: [u8; 32], now: Instant) -> Protocol {
        Protocol::new(me, Side::Listener, None, nonce, now)
    }

    fn new(me: Arc<Identity>, side: Side, calls: Option<u16>, nonce: [u8; 32], now: Instant) -> Protocol {
        let (incoming, outgoing) = (Incoming::default(), Outgoing::default());
        Protocol { me, side, nonce, hello: Vec::new(), calls, state: State::Greeting, since: now, incoming, outgoing }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. })
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    #[cfg(test)]
    pub(super) fn incoming_len(&self) -> usize {
        self.incoming.len()
    }

    /// Takes the input.
    pub(super) fn input(&mut self, mut bytes: &[u8], now: Instant, admit: Admit<'_>, out: &mut Vec<Happening>) {
        while !bytes.is_empty() && !self.is_over() {
            let frame_bytes_max = if self.is_open() { FRAME_BYTES_MAX } else { GREETING_BYTES_MAX };
            match self.incoming.take(&mut bytes, frame_bytes_max, now) {
                Ok(Some(frame)) => self.frame(&frame, now, admit, out),
                Ok(None) => {}
                Err(too_long) => self.end(Broken::Long(too_long.said_bytes), out),
            }
        }
    }

    /// The connection is over, or this side makes an end.
    pub(super) fn end(&mut self, why: Broken, out: &mut Vec<Happening>) {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Open { .. } => out.push(Happening::Down(Ending::Broken(why))),
            State::Greeting | State::Proving { .. } => out.push(Happening::Failed(why)),
            State::Over => {}
        }
    }

    /// Does what time asks for.
    pub(super) fn tick(&mut self, now: Instant, out: &mut Vec<Happening>) {
        let limits = self.me.limits;
        if self.incoming.began.is_some_and(|began| now >= began + limits.frame) && self.is_open() {
            return self.end(Broken::Frame(limits.frame), out);
        }
        match &mut self.state {
            State::Greeting | State::Proving { .. } if now >= self.since + limits.handshake => {
                self.end(Broken::Handshake(limits.handshake), out);
            }
            State::Open { heard, beaten, suspected, says, .. } => {
                if !*suspected && now >= *heard + limits.silence {
                    *suspected = true;
                    out.push(Happening::Suspected);
                }
                // Whatever waits to be sent is as good a sign of life.
                if now >= *beaten + limits.beat {
                    *beaten = now;
                    if self.outgoing.is_empty() {
                        push_sealed(&mut self.outgoing, says, &Frame::Beat);
                    }
                }
            }
            _ => {}
        }
    }

    /// When `tick` has something to do.
    pub(super) fn deadline(&self) -> Instant {
        let limits = self.me.limits;
        match &self.state {
            State::Greeting | State::Proving { .. } => self.since + limits.handshake,
            State::Open { heard, beaten, suspected, .. } => {
                let silent = if *suspected { Instant::NEVER } else { *heard + limits.silence };
                let frame = self.incoming.began.map_or(Instant::NEVER, |began| began + limits.frame);
                silent.min(frame).min(*beaten + limits.beat)
            }
            State::Over => Instant::NEVER,
        }
    }

    /// This node has not looked for so long: that is not the peer's fault.
    pub(super) fn forgive(&mut self, gap: Duration) {
        self.since = self.since + gap;
        self.incoming.began = self.incoming.began.map(|began| began + gap);
        if let State::Open { heard, .. } = &mut self.state {
            *heard = *heard + gap;
        }
    }

    /// Sends bytes of the fabric.
    pub(super) fn send_payload(&mut self, bytes: &[u8]) -> Result<(), SendError> {
        self.send(bytes.len(), &Frame::Payload(bytes))
    }

    /// Sends bytes of the layers above.
    pub(super) fn send_message(&mut self, bytes: &[u8]) -> Result<(), SendError> {
        self.send(bytes.len(), &Frame::Message(bytes))
    }

    fn send(&mut self, bytes: usize, frame: &Frame<'_>) -> Result<(), SendError> {
        let State::Open { says, .. } = &mut self.state else { return Err(SendError::NotUp) };
        if bytes > CONTROL_BYTES_MAX {
            return Err(SendError::TooLong { bytes });
        }
        if !self.outgoing.has_room_for(LENGTH_BYTES + 1 + bytes + TAG_BYTES) {
            return Err(SendError::Full);
        }
        push_sealed(&mut self.outgoing, says, frame);
        Ok(())
    }

    /// Sends a goodbye, after all queued frames.
    pub(super) fn goodbye(&mut self) {
        if let State::Open { says, .. } = &mut self.state {
            push_sealed(&mut self.outgoing, says, &Frame::Goodbye);
        }
        self.state = State::Over;
    }

    fn frame(&mut self, bytes: &[u8], now: Instant, admit: Admit<'_>, out: &mut Vec<Happening>) {
        let bytes = match &mut self.state {
            State::Open { hears, .. } => match hears.open(bytes) {
                Some(bytes) => bytes,
                None => return self.end(Broken::Tag, out),
            },
            _ => bytes,
        };
        let frame = match Frame::decode(bytes) {
            Ok(frame) => frame,
            Err(Malformed::Version(refused)) if matches!(self.state, State::Greeting) => {
                return self.refuse(self.calls, Refusal::Version { refuser: VERSION, refused }, out);
            }
            Err(why) => return self.end(Broken::Malformed(why), out),
        };
        match (&mut self.state, frame) {
            (State::Greeting, Frame::Hello(peer)) => self.greeted(peer, bytes, admit, out),
            (State::Proving { .. }, Frame::Proof(proof)) => self.proved(&proof, now, admit, out),
            (State::Greeting, Frame::Refusal(refusal)) if self.side == Side::Caller => {
                self.refused(self.calls, refusal, out);
            }
            (State::Proving { peer, .. }, Frame::Refusal(refusal)) => {
                let place = peer.place;
                self.refused(Some(place), refusal, out);
            }
            (State::Open { heard, suspected, .. }, frame) => {
                *heard = now;
                if std::mem::take(suspected) {
                    out.push(Happening::Trusted);
                }
                match frame {
                    Frame::Beat => {}
                    Frame::Payload(bytes) => out.push(Happening::Payload(bytes.to_vec())),
                    Frame::Message(bytes) => out.push(Happening::Message(bytes.to_vec())),
                    Frame::Goodbye => {
                        self.state = State::Over;
                        out.push(Happening::Down(Ending::Goodbye));
                    }
                    Frame::Hello(_) | Frame::Proof(_) | Frame::Refusal(_) => self.end(Broken::Turn, out),
                }
            }
            _ => self.end(Broken::Turn, out),
        }
    }

    fn greet(&mut self, to: u16) {
        let me = &self.me;
        let hello = Frame::Hello(Hello {
            layout: me.layout.clone(),
            session: me.session.clone(),
            node: me.node,
            place: me.place,
            places: me.places,
            incarnation: me.incarnation,
            to,
            nonce: self.nonce,
        });
        hello.encode(&mut self.hello);
        self.outgoing.push(&self.hello, &[]);
    }

    fn greeted(&mut self, peer: Hello, bytes: &[u8], admit: Admit<'_>, out: &mut Vec<Happening>) {
        if peer.nonce == self.nonce {
            return self.end(Broken::Myself, out);
        }
        if let Err(refusal) = self.check(&peer) {
            // The called place is not at this address, or a stranger called: its place may not exist.
            let place = self.calls.unwrap_or(peer.place);
            return self.refuse((place < self.me.places).then_some(place), refusal, out);
        }
        let transcript = match self.side {
            Side::Listener => {
                self.greet(peer.place);
                Transcript::new(&self.me.root, bytes, &self.hello)
            }
            Side::Caller => {
                // Only this node calls that place, so no other connection of that place can intervene.
                if let Err(refusal) = admit(&peer) {
                    return self.refuse(Some(peer.place), refusal, out);
                }
                let transcript = Transcript::new(&self.me.root, &self.hello, bytes);
                self.push_proof(&transcript);
                transcript
            }
        };
        self.state = State::Proving { peer, transcript };
    }

    /// Whether the peer's hello fits to what this node is.
    fn check(&self, peer: &Hello) -> Result<(), Refusal> {
        let me = &self.me;
        if peer.layout != me.layout {
            return Err(Refusal::Layout { refuser: me.layout.clone(), refused: peer.layout.clone() });
        }
        if peer.session != me.session {
            return Err(Refusal::Session { refuser: me.session.clone(), refused: peer.session.clone() });
        }
        if peer.places != me.places {
            return Err(Refusal::Places { refuser: me.places, refused: peer.places });
        }
        if !is_life_of(peer.node, peer.place, peer.places) {
            return Err(Refusal::Number { node: peer.node, place: peer.place });
        }
        if peer.to != me.place {
            return Err(Refusal::Address { wanted: peer.to, found: me.place });
        }
        match self.calls {
            Some(called) if called != peer.place => Err(Refusal::Address { wanted: called, found: peer.place }),
            None if peer.place <= me.place => Err(Refusal::Caller { caller: peer.place, called: me.place }),
            _ => Ok(()),
        }
    }

    fn proved(&mut self, proof: &[u8; 32], now: Instant, admit: Admit<'_>, out: &mut Vec<Happening>) {
        let State::Proving { peer, transcript } = std::mem::replace(&mut self.state, State::Over) else { return };
        let is_right = transcript.is_proof(self.side.other(), proof);
        let admitted = match self.side {
            _ if !is_right => Err(Refusal::Secret),
            Side::Listener => admit(&peer),
            Side::Caller => Ok(()),
        };
        if let Err(refusal) = admitted {
            return self.refuse(Some(peer.place), refusal, out);
        }
        if self.side == Side::Listener {
            self.push_proof(&transcript);
        }
        let (hears, says) = (transcript.seal(self.side.other()), transcript.seal(self.side));
        self.state = State::Open { heard: now, beaten: now, suspected: false, hears, says };
        out.push(Happening::Up(peer));
    }

    fn push_proof(&mut self, transcript: &Transcript) {
        let mut frame = Vec::new();
        Frame::Proof(transcript.proof(self.side)).encode(&mut frame);
        self.outgoing.push(&frame, &[]);
    }

    fn refuse(&mut self, place: Option<u16>, refusal: Refusal, out: &mut Vec<Happening>) {
        let mut frame = Vec::new();
        Frame::Refusal(refusal.clone()).encode(&mut frame);
        self.outgoing.push(&frame, &[]);
        self.state = State::Over;
        out.push(Happening::Refused { place, by_us: true, refusal });
    }

    fn refused(&mut self, place: Option<u16>, refusal: Refusal, out: &mut Vec<Happening>) {
        self.state = State::Over;
        out.push(Happening::Refused { place, by_us: false, refusal });
    }
}

/// Whether a number is that of a life of a place.
pub(super) fn is_life_of(node: NodeId, place: u16, places: u16) -> bool {
    place < places && node.index() < NodeId::COUNT_MAX && node.0 % places == place
}

fn push_sealed(outgoing: &mut Outgoing, says: &mut Seal, frame: &Frame<'_>) {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    let tag = says.tag(&bytes);
    outgoing.push(&bytes, &tag);
}
