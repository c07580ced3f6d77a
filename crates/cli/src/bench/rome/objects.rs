//! Ways to read an object of another node whole, while its owner changes it (table 1 of the paper).
//!
//! ```text
//! of locking, versions and checksums:
//!   ┌────────┬───────────┐   a version, or the hash of the object
//!   │ header │ object …  │
//!   └────────┴───────────┘
//! ```
//!
//! A write changes the first and the last word of the object, to the same. A read that finds two different ones is
//! wrong.

use std::fmt;
use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use farfield::fabric::{GroupKey, Region, RemotePtr, memory_fence};
use farfield::rome::{ObjectReader, ObjectWriter, RomeObject};
use farfield::toolkit::{Object, ObjectBuilder, Regions};
use farfield::{Endpoint, Mutex, Node, NodeId, ObjectOptions};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;
use zerocopy::IntoBytes;

use super::load::Done;

/// A way to read an object whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Way {
    /// Farfield's objects
    Rome,
    /// A lock, which the owner takes by its NIC, too
    Locking,
    /// A version before and after the object, which is odd while it changes
    Versions,
    /// A hash of the object
    Checksums,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Rome => "rome",
            Way::Locking => "locking",
            Way::Versions => "versions",
            Way::Checksums => "checksums",
        })
    }
}

/// How often the owner changes the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Writes {
    Never,
    /// With a pause of 100 us after each
    Some,
    /// Without a pause
    Always,
}

impl fmt::Display for Writes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Writes::Never => "no writes",
            Writes::Some => "some writes",
            Writes::Always => "always writes",
        })
    }
}

/// The pause of [`Writes::Some`].
const PAUSE: Duration = Duration::from_micros(100);

/// The owner's thread.
pub(super) trait Writer {
    /// Makes this the first and the last word.
    fn write(&mut self, content: u64) -> Result<()>;
}

/// A thread of another node.
pub(super) trait Reader {
    /// Reads the object, unless it has changed meanwhile.
    async fn attempt(&mut self, into: &mut Vec<u8>) -> Result<bool>;
}

/// What is done with any writer or reader.
pub(super) trait Part {
    fn write(self, writer: &mut impl Writer) -> Result<Done>;
    fn read(self, reader: &mut impl Reader) -> Result<Done>;
}

/// An object of node 0, that is open on this node.
pub(super) struct Shared {
    way: Way,
    bytes: usize,
    is_owner: bool,
    rome: Option<RomeObject>,
    plain: Option<Plain>,
    mutex: Option<Mutex>,
}

/// The object of the ways that are not Farfield's.
struct Plain {
    _object: Object,
    own: Option<Region>,
    at: RemotePtr<u64>,
    /// With the header.
    words: usize,
}

const OWNER: NodeId = NodeId(0);

impl Plain {
    fn open(node: &Node, bytes: usize) -> Result<Plain> {
        let words = 1 + bytes.div_ceil(8);
        let mut regions = Regions::new(node);
        let own = (node.id() == OWNER).then(|| regions.alloc("object", GroupKey::DATA, words * 8)).transpose()?;
        if let Some(own) = &own {
            own.word(0).store(hash(&vec![0; words - 1]));
        }
        let needs = move |peer| {
            let object = (peer == OWNER).then(|| ("object".to_owned(), (words * 8) as u64));
            object.into_iter().collect()
        };
        let object = ObjectBuilder::new(node, "plain", "plain").regions(regions).require_regions(needs).open()?;
        let at = object.remote(OWNER, "object")?;
        Ok(Plain { _object: object, own, at, words })
    }
}

/// A version must be even.
fn hash(object: &[u64]) -> u64 {
    xxh3_64(object.as_bytes()) & !1
}

impl Shared {
    pub(super) fn open(way: Way, node: &Node, bytes: usize) -> Result<Shared> {
        let options = ObjectOptions { bytes, ..ObjectOptions::default() };
        Ok(Shared {
            way,
            bytes,
            is_owner: node.id() == OWNER,
            rome: (way == Way::Rome).then(|| RomeObject::open(node, "object", OWNER, options)).transpose()?,
            plain: (way != Way::Rome).then(|| Plain::open(node, bytes)).transpose()?,
            mutex: (way == Way::Locking).then(|| Mutex::open(node, "lock", OWNER)).transpose()?,
        })
    }

    /// Does the part of this node.
    pub(super) fn run(&self, endpoint: &Endpoint, part: impl Part) -> Result<Done> {
        if let Some(object) = &self.rome {
            return if self.is_owner {
                let last = self.bytes - 8;
                part.write(&mut RomeWriter { writer: object.writer()?, endpoint, last })
            } else {
                part.read(&mut RomeReader { reader: object.reader()?, endpoint })
            };
        }
        let (way, mutex) = (self.way, self.mutex.as_ref());
        let plain = self.plain.as_ref().context("a way has an object")?;
        match &plain.own {
            Some(own) => part.write(&mut PlainWriter { way, endpoint, own, copy: vec![0; plain.words - 1], mutex }),
            None => part.read(&mut PlainReader { way, endpoint, plain, mutex }),
        }
    }
}

struct RomeWriter<'e> {
    writer: ObjectWriter,
    endpoint: &'e Endpoint,
    /// Where the last word is.
    last: usize,
}

impl Writer for RomeWriter<'_> {
    fn write(&mut self, content: u64) -> Result<()> {
        let word = content.to_le_bytes();
        Ok(self.writer.patch(self.endpoint, &[(0, &word), (self.last, &word)])?)
    }
}

struct RomeReader<'e> {
    reader: ObjectReader,
    endpoint: &'e Endpoint,
}

impl Reader for RomeReader<'_> {
    async fn attempt(&mut self, into: &mut Vec<u8>) -> Result<bool> {
        self.reader.read(self.endpoint, into).await?;
        Ok(true)
    }
}

struct PlainWriter<'a> {
    way: Way,
    endpoint: &'a Endpoint,
    own: &'a Region,
    /// The object as it is: what has to be hashed.
    copy: Vec<u64>,
    mutex: Option<&'a Mutex>,
}

impl PlainWriter<'_> {
    fn store(&mut self, content: u64) {
        let last = self.copy.len() - 1;
        (self.copy[0], self.copy[last]) = (content, content);
        let words = self.own.words(8, self.copy.len());
        words[0].store(content);
        words[last].store(content);
    }
}

impl Writer for PlainWriter<'_> {
    fn write(&mut self, content: u64) -> Result<()> {
        match self.mutex {
            // The processor's atomics are no atomics to the NIC, so the owner takes the lock as the others do.
            Some(mutex) => {
                let endpoint = self.endpoint;
                let guard = endpoint.block_on(mutex.lock(endpoint))?;
                self.store(content);
                endpoint.block_on(guard.unlock())?;
            }
            None if self.way == Way::Versions => {
                // In memory in this order (`CW → CW`): a read of a word of this write then finds another version.
                let version = self.own.word(0).load();
                self.own.word(0).store(version.wrapping_add(1));
                self.store(content);
                self.own.word(0).store(version.wrapping_add(2));
            }
            None => {
                self.store(content);
                self.own.word(0).store(hash(&self.copy));
            }
        }
        // A read that begins later finds it.
        memory_fence();
        Ok(())
    }
}

struct PlainReader<'a> {
    way: Way,
    endpoint: &'a Endpoint,
    plain: &'a Plain,
    mutex: Option<&'a Mutex>,
}

impl Reader for PlainReader<'_> {
    async fn attempt(&mut self, into: &mut Vec<u8>) -> Result<bool> {
        let (endpoint, Plain { at, words, .. }) = (self.endpoint, self.plain);
        let guard = match self.mutex {
            Some(mutex) => Some(mutex.lock(endpoint).await?),
            None => None,
        };
        // Each get is posted when the one before has ended (`NRR → WT → NRR`).
        let before = if self.way == Way::Versions { endpoint.get(*at).await? } else { 0 };
        if before % 2 == 1 {
            return Ok(false);
        }
        let object = endpoint.get_into(*at, endpoint.buf::<u64>(*words)?).await?;
        let is_whole = match self.way {
            Way::Versions => endpoint.get(*at).await? == before,
            Way::Checksums => hash(&object[1..]) == object[0],
            Way::Locking | Way::Rome => true,
        };
        if let Some(guard) = guard {
            guard.unlock().await?;
        }
        into.clear();
        into.extend_from_slice(object[1..].as_bytes());
        Ok(is_whole)
    }
}

/// A part that lasts for a time.
pub(super) struct Timed<'e> {
    pub(super) endpoint: &'e Endpoint,
    pub(super) writes: Writes,
    /// Of the object.
    pub(super) bytes: usize,
    pub(super) duration: Duration,
}

impl Part for Timed<'_> {
    fn write(self, writer: &mut impl Writer) -> Result<Done> {
        let mut done = Done::new(false);
        let start = Instant::now();
        let end = start + self.duration;
        let mut content = 0;
        while self.writes != Writes::Never && Instant::now() < end {
            let (issued, before) = (Instant::now(), self.endpoint.counts());
            content += 1;
            writer.write(content)?;
            done.result.add(issued.elapsed().as_nanos() as u64, self.endpoint.counts() - before);
            if self.writes == Writes::Some {
                std::thread::sleep(PAUSE);
            }
        }
        done.result.seconds = start.elapsed().as_secs_f64();
        Ok(done)
    }

    fn read(self, reader: &mut impl Reader) -> Result<Done> {
        let endpoint = self.endpoint;
        let mut done = Done::new(true);
        let start = Instant::now();
        let end = start + self.duration;
        let (mut object, mut latest) = (Vec::new(), 0);
        let (mut issued, mut before) = (start, endpoint.counts());
        while issued < end {
            if !endpoint.block_on(reader.attempt(&mut object))? {
                done.retries += 1;
                // Of a read that never ends, too.
                if Instant::now() >= end {
                    break;
                }
                continue;
            }
            let (now, counts) = (Instant::now(), endpoint.counts());
            done.result.add((now - issued).as_nanos() as u64, counts - before);
            (issued, before) = (now, counts);
            let word = |at: usize| object[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
            let (first, last) = (word(0), word(self.bytes - 8));
            ensure!(first == last, "a read has found a mixture: {first} and {last}");
            ensure!(first >= latest, "a read has found {first} after {latest}");
            latest = first;
            black_box(&object);
        }
        done.result.seconds = start.elapsed().as_secs_f64();
        Ok(done)
    }
}
