//! One value of any size, which other nodes read whole by two gets.
//!
//! ```text
//! a block
//!   ┌─────────┬──────────────────┬────────────────────────────┬──────────────────────────┬─
//!   │ version │ base: the value  │ offset (32), bytes (32)    │ bytes, padded to words   │ … patches
//!   └─────────┴──────────────────┴────────────────────────────┴──────────────────────────┴─
//! ```

use std::sync::Arc;

use farfield_core::toolkit::ErrorContext;
use farfield_core::{Endpoint, Error, ErrorKind, Node, Result};
use farfield_fabric::{NodeId, Word, memory_fence, read_words, write_words};

use crate::arena::{Arena, Replaced, Stash};
use crate::layout::Active;
use crate::open::{Opened, Plan, open};
use crate::options::ObjectOptions;
use crate::reading::{check, read};
use crate::seats::Seat;

/// The first word of the base.
const BASE: usize = 1;

/// A value of so many bytes in the memory of its owner. The owner's threads change it ([`ObjectWriter`]), and all nodes
/// read it ([`ObjectReader`]): in two gets, whatever the writers do.
///
/// ```
/// # use farfield_rome::{ObjectOptions, RomeObject};
/// # let nodes = farfield::local_session(2)?;
/// let owner = nodes[0].id();
/// let options = ObjectOptions { bytes: 100, ..ObjectOptions::default() };
/// let objects = farfield::on_each(&nodes, |node| RomeObject::open(node, "object", owner, options))?;
/// let (here, there) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
/// let mut writer = objects[0].writer()?;
/// writer.patch(&here, &[(0, b"first"), (90, b"last")])?; // both, or none
///
/// let (mut reader, mut value) = (objects[1].reader()?, Vec::new());
/// let ((), counts) = there.block_on(there.counted(async {
///     reader.read(&there, &mut value).await.expect("the owner lives")
/// }));
/// assert_eq!((&value[..5], &value[90..94], counts.gets, counts.round_trips), (&b"first"[..], &b"last"[..], 2, 2));
/// # Ok::<(), farfield::Error>(())
/// ```
#[derive(Clone)]
pub struct RomeObject {
    pub(crate) opened: Arc<Opened>,
    options: ObjectOptions,
}

impl RomeObject {
    /// Opens the object, and waits for its owner to do so. Others open it whenever they like, also a node that is
    /// restarted. Its bytes are zero at first.
    ///
    /// ```
    /// # use farfield_rome::{ObjectOptions, RomeObject};
    /// let node = farfield::Node::builder().start()?;
    /// let object = RomeObject::open(&node, "object", node.id(), ObjectOptions::default())?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The owner is missing, dead or departed, or opens it differently; no memory; invalid options.
    pub fn open(node: &Node, path: &str, owner: NodeId, options: ObjectOptions) -> Result<RomeObject> {
        let shape = options.shape(node).of(path)?;
        let plan = Plan { owner, shape, seats: options.seats, lease: options.lease, patience: None };
        let base_end = BASE + options.bytes.div_ceil(8);
        // The memory is zero, and so is the value.
        let first = |_: &_| base_end;
        let opened = open(node, path, "RomeObject", plan, &format!("{options:?}"), first)?;
        Ok(RomeObject { opened: Arc::new(opened), options })
    }

    /// The node that has it in its memory.
    ///
    /// ```
    /// # use farfield_rome::{ObjectOptions, RomeObject};
    /// # let node = farfield::Node::builder().start()?;
    /// # let object = RomeObject::open(&node, "object", node.id(), ObjectOptions::default())?;
    /// assert_eq!(object.owner(), node.id());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn owner(&self) -> NodeId {
        self.opened.owner
    }

    /// The part of one of the owner's threads: it changes the object, and reads it without an operation.
    ///
    /// ```
    /// # use farfield_rome::{ObjectOptions, RomeObject};
    /// # let node = farfield::Node::builder().start()?;
    /// # let object = RomeObject::open(&node, "object", node.id(), ObjectOptions::default())?;
    /// let (one, another) = (object.writer()?, object.writer()?);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// This node is not the owner; all seats are taken.
    pub fn writer(&self) -> Result<ObjectWriter> {
        self.opened.arena()?;
        let stash = Stash::default();
        Ok(ObjectWriter { object: self.clone(), seat: self.opened.seat()?, stash, words: Vec::new() })
    }

    /// The part of one thread of any node that reads by operations.
    ///
    /// ```
    /// # use farfield_rome::{ObjectOptions, RomeObject};
    /// # let node = farfield::Node::builder().start()?;
    /// # let object = RomeObject::open(&node, "object", node.id(), ObjectOptions::default())?;
    /// let reader = object.reader()?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// All seats are taken.
    pub fn reader(&self) -> Result<ObjectReader> {
        Ok(ObjectReader { object: self.clone(), seat: self.opened.seat()?, known: 0 })
    }

    fn base_end(&self) -> usize {
        BASE + self.options.bytes.div_ceil(8)
    }

    /// The value of a block's words.
    fn value_of(&self, words: &[u64], into: &mut Vec<u8>) {
        into.clear();
        let (base, mut log) = words[BASE..].split_at(self.options.bytes.div_ceil(8));
        into.extend(base.iter().flat_map(|word| word.to_le_bytes()));
        into.truncate(self.options.bytes);
        while let [head, rest @ ..] = log {
            let (offset, len) = ((head >> 32) as usize, *head as u32 as usize);
            let (data, rest) = rest.split_at(len.div_ceil(8));
            for (at, word) in data.iter().enumerate() {
                let part = &mut into[offset + at * 8..offset + len.min(at * 8 + 8)];
                part.copy_from_slice(&word.to_le_bytes()[..part.len()]);
            }
            log = rest;
        }
    }
}

/// One of the owner's threads, which changes the object and reads it.
///
/// ```
/// # use farfield_rome::{ObjectOptions, RomeObject};
/// # let node = farfield::Node::builder().start()?;
/// # let object = RomeObject::open(&node, "object", node.id(), ObjectOptions::default())?;
/// # let ep = node.endpoint()?;
/// let (mut writer, mut value) = (object.writer()?, Vec::new());
/// writer.patch(&ep, &[(8, &7u64.to_le_bytes())])?;
/// writer.read(&mut value);
/// assert_eq!(value[8..16], 7u64.to_le_bytes());
/// # Ok::<(), farfield::Error>(())
/// ```
pub struct ObjectWriter {
    object: RomeObject,
    seat: Seat,
    stash: Stash,
    words: Vec<u64>,
}

impl Drop for ObjectWriter {
    fn drop(&mut self) {
        if let Ok(arena) = self.object.opened.arena() {
            arena.give_back(&mut self.stash);
        }
    }
}

impl ObjectWriter {
    /// Replaces these bytes, at these offsets, all at one moment. A later one of several prevails.
    ///
    /// ```
    /// # use farfield_rome::{ObjectOptions, RomeObject};
    /// # let node = farfield::Node::builder().start()?;
    /// # let object = RomeObject::open(&node, "object", node.id(), ObjectOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// let mut writer = object.writer()?;
    /// writer.patch(&ep, &[(0, b"name"), (64, b"address")])?;
    /// assert!(writer.patch(&ep, &[(4095, b"too long")]).is_err());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`]: a patch extends beyond the value. [`MemoryFull`](crate::MemoryFull): readers need all
    /// blocks for longer than the endpoint's timeout. Nothing has changed then.
    pub fn patch(&mut self, ep: &Endpoint, patches: &[(usize, &[u8])]) -> Result<()> {
        let ObjectWriter { object, stash, words, .. } = self;
        let path = object.opened.object.path();
        let (max_bytes, arena) = (object.options.bytes, object.opened.arena()?);
        object.opened.object.check_current()?;
        words.clear();
        for (offset, bytes) in patches {
            let end = offset.saturating_add(bytes.len());
            if end > max_bytes {
                return Err(Error::from(ErrorKind::TooLarge { bytes: end, max_bytes }).of(path));
            }
            words.push((*offset as u64) << 32 | bytes.len() as u64);
            for chunk in bytes.chunks(8) {
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                words.push(u64::from_le_bytes(word));
            }
        }
        loop {
            let lock = arena.lock(ep, 0);
            let active = lock.active().expect("the owner has opened it");
            let end = active.end as usize + words.len();
            if end <= object.base_end() + object.options.log_bytes.div_ceil(8) {
                // Of the record all is in memory before the active word is (`CW → CW`).
                write_words(&arena.block_words(active.block)[active.end as usize..end], words);
                lock.set(lock.last_version(), Active { end: end as u32, ..active });
                drop(lock);
                if !stash.blocks.is_empty() {
                    arena.give_back(stash); // the log was full before: other writers may need it
                }
                // It is in memory when the call returns, so that a read that begins afterwards, anywhere, finds it.
                memory_fence();
                return Ok(());
            }
            if let Some(block) = stash.blocks.pop() {
                let version = object.compact(arena, active, block, words, &lock);
                drop(lock);
                arena.publish(ep, version)?;
                arena.replaced(version, [Replaced::Block(active.block)]);
                return Ok(());
            }
            drop(lock);
            arena.fill(ep, stash, 1, 0).of(path)?;
        }
    }

    /// Replaces the whole value. Shorter bytes leave the rest as it is.
    ///
    /// ```
    /// # use farfield_rome::{ObjectOptions, RomeObject};
    /// # let node = farfield::Node::builder().start()?;
    /// # let object = RomeObject::open(&node, "object", node.id(), ObjectOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// object.writer()?.write(&ep, &[7; 4096])?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`ObjectWriter::patch`].
    pub fn write(&mut self, ep: &Endpoint, value: &[u8]) -> Result<()> {
        self.patch(ep, &[(0, value)])
    }

    /// Reads the value, without any operation of the fabric.
    ///
    /// ```
    /// # use farfield_rome::{ObjectOptions, RomeObject};
    /// # let node = farfield::Node::builder().start()?;
    /// # let object = RomeObject::open(&node, "object", node.id(), ObjectOptions::default())?;
    /// let mut value = Vec::new();
    /// object.writer()?.read(&mut value);
    /// assert_eq!(value, [0; 4096]);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn read(&mut self, into: &mut Vec<u8>) {
        let ObjectWriter { object, seat, words, .. } = self;
        let arena = object.opened.arena().expect("a writer is of the owner");
        seat.announce_firm(arena.stable());
        let active = arena.active(0).expect("the owner has opened it");
        copy(arena.block(active), words);
        seat.clear();
        object.value_of(words, into);
    }
}

/// Copies words of a block that do not change.
fn copy(block: &[Word], into: &mut Vec<u64>) {
    into.resize(block.len(), 0);
    read_words(block, into);
}

impl RomeObject {
    /// Stores the value with these patches into a new block, and makes it current; the version, which the caller
    /// publishes.
    fn compact(
        &self,
        arena: &Arena,
        active: Active,
        block: u32,
        patches: &[u64],
        lock: &crate::arena::SlotLock<'_>,
    ) -> u64 {
        let (mut state, mut value) = (Vec::new(), Vec::new());
        copy(arena.block(active), &mut state);
        state.extend_from_slice(patches);
        self.value_of(&state, &mut value);
        let end = self.base_end();
        let words = arena.block_words(block);
        farfield_fabric::write_bytes(&words[BASE..end], &value);
        let version = arena.ticket();
        words[0].store(version);
        lock.set(version, Active { block, end: end as u32 });
        version
    }
}

/// A thread of any node, which reads the object by operations.
///
/// ```
/// # use farfield_rome::{ObjectOptions, RomeObject};
/// # let nodes = farfield::local_session(2)?;
/// # let owner = nodes[0].id();
/// # let options = ObjectOptions::default();
/// # let objects = farfield::on_each(&nodes, |node| RomeObject::open(node, "object", owner, options))?;
/// # let ep = nodes[1].endpoint()?;
/// let (mut reader, mut value) = (objects[1].reader()?, Vec::new());
/// ep.block_on(reader.read(&ep, &mut value))?;
/// assert_eq!(value, [0; 4096]);
/// # Ok::<(), farfield::Error>(())
/// ```
pub struct ObjectReader {
    object: RomeObject,
    seat: Seat,
    /// The latest version that it has seen.
    known: u64,
}

impl ObjectReader {
    /// Reads the value, as it was at one moment during the call, in two gets. They are the first two in any case, and
    /// the only ones unless this thread has stopped for a quarter of the lease meanwhile.
    ///
    /// ```
    /// # use farfield_rome::{ObjectOptions, RomeObject};
    /// # let node = farfield::Node::builder().start()?;
    /// # let object = RomeObject::open(&node, "object", node.id(), ObjectOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// let mut value = vec![1, 2, 3]; // is replaced
    /// ep.block_on(object.reader()?.read(&ep, &mut value))?;
    /// assert_eq!(value.len(), 4096);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The owner is dead or cannot be reached.
    pub async fn read(&mut self, ep: &Endpoint, into: &mut Vec<u8>) -> Result<()> {
        let ObjectReader { object, seat, known } = self;
        let opened = &*object.opened;
        let attempt = async |seat: &mut Seat, known: &mut u64| {
            let active = ep.get(opened.slot_at(0)).await?;
            check(seat, ep)?;
            let active = Active::of(active).ok_or_else(no_state)?;
            let words = ep.get_into(opened.block_at(active.block), ep.buf::<u64>(active.end as usize)?).await?;
            check(seat, ep)?;
            *known = words[0].max(*known);
            object.value_of(&words, into);
            Ok(())
        };
        read(opened, ep, seat, known, attempt).await
    }
}

/// An active word is 0 though it names a state from the beginning on.
fn no_state() -> Error {
    ErrorKind::Corrupt { what: "an active word that is 0".into() }.into()
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::MemoryFull;

    /// Two writers that found a full log, and one of them, which took the only free block, found room then. It kept the
    /// block, and the other one waited for it until its timeout, each time.
    #[test]
    fn a_writer_that_needs_no_block_keeps_none() {
        let node = Node::builder().start().expect("a node");
        let ep = node.endpoint().expect("an endpoint");
        ep.set_timeout(Duration::from_millis(20));
        let options = ObjectOptions { bytes: 8, log_bytes: 16, blocks: 2, ..ObjectOptions::default() };
        let object = RomeObject::open(&node, "object", node.id(), options).expect("it is the owner");
        let (mut one, mut other) = (object.writer().expect("a seat"), object.writer().expect("a seat"));
        let arena = object.opened.arena().expect("it is the owner");
        arena.fill(&ep, &mut other.stash, 1, 0).expect("there is a block");
        other.write(&ep, &[1; 8]).expect("the log has room");
        for round in 2..9 {
            one.write(&ep, &[round; 8]).expect("the other writer has nothing");
        }
        // None is taken where not all of it is free.
        arena.fill(&ep, &mut other.stash, 1, 0).expect("there is a block");
        let full = arena.fill(&ep, &mut other.stash, 2, 0).expect_err("there is one");
        assert_eq!((full.custom_ref(), other.stash.blocks.len()), (Some(&MemoryFull { blocks: 2, waiting: 0 }), 0));
    }
}
