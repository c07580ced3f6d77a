//! Values in the slots of nodes: where each is, how it is written, and how a read knows that it is whole.

use core::time::Duration;

use farfield_fabric::{Begun, Buf, BufOp, Endpoint, Instant, NodeId, Op, Plain, RemotePtr, read_words, write_words};

use super::index::{Entry, hash_of};
use super::slots::Meta;
use super::{KvStore, Placement, slots};
use crate::error::{Error, ErrorContext, ErrorKind, Result};
use crate::objects::codec::{Key, Value};

/// The result of one read of a slot.
pub(super) enum Look<V> {
    Found(V),
    Absent,
    Torn,
}

/// A read of a slot of so many words that has not ended.
pub(super) enum Looking<'e> {
    Three(Op<'e, [u64; 3]>),
    Four(Op<'e, [u64; 4]>),
    Ten(Op<'e, [u64; 10]>),
    Any(BufOp<'e, u64>),
}

impl<'e> Looking<'e> {
    #[inline(always)]
    fn begin<V: Value, const WORDS: usize>(
        get: Op<'e, [u64; WORDS]>,
        counter: u64,
        pending: impl FnOnce(Op<'e, [u64; WORDS]>) -> Looking<'e>,
    ) -> Begun<Look<V>, Looking<'e>>
    where
        [u64; WORDS]: Plain,
    {
        get.into_value().map(|image| judge(&image, counter)).map_err(pending)
    }
}

impl<K: Key, V: Value> KvStore<K, V> {
    pub(super) fn rank_by_hash(&self, key: &K) -> usize {
        (hash_of(key) % self.participants.count() as u64) as usize
    }

    /// The home of a new value: a node that is neither dead nor departed.
    pub(super) fn home_of_value(&self, endpoint: &Endpoint, key: &K) -> NodeId {
        let node = self.object.node();
        match self.options.placement {
            Placement::Inserter => node.id(),
            Placement::Hash => {
                let ring = self.participants.ring(self.rank_by_hash(key));
                let mut ring = ring.map(|rank| self.participants.at(rank));
                ring.find(|home| endpoint.check_alive(*home).is_ok()).unwrap_or(node.id())
            }
        }
    }

    /// This node's slot at a pointer, as words.
    pub(super) fn here(&self, slot: RemotePtr<u64>) -> Option<&[farfield_fabric::Word]> {
        (slot.node() == self.object.node().id()).then(|| {
            let offset = slot.offset() - self.region.remote::<u64>(0).offset();
            self.region.words(offset as usize, self.layout.words)
        })
    }

    pub(super) fn write_meta(&self, endpoint: &Endpoint, slot: RemotePtr<u64>, meta: Meta) -> Result<()> {
        match self.here(slot) {
            Some(words) => {
                words[0].store(meta.packed());
                Ok(())
            }
            None => endpoint.put_value(slot, meta.packed()).detach().of(self.object.path()),
        }
    }

    /// Writes checksum and value over those that are there.
    pub(super) fn write_value(&self, endpoint: &Endpoint, stripe: usize, entry: Entry, value: &V) -> Result<()> {
        // A small value needs no buffer.
        match self.layout.words {
            3 if V::FIXED => return self.write_small::<4, 2>(endpoint, stripe, entry, value),
            10 if V::FIXED => return self.write_small::<11, 9>(endpoint, stripe, entry, value),
            _ => {}
        }
        self.with_image(endpoint, entry, value, |image| match self.here(entry.slot) {
            // If this node dies here, its slot dies with it.
            Some(words) => {
                write_words(&words[1..image.len()], &image[1..]);
                Ok(())
            }
            None => {
                // Put first where it harms no reader, to the same node. Puts land in order: if this node's death cuts
                // the second short, the first is whole.
                let mut redo = endpoint.buf::<u64>(1 + image.len())?;
                redo[0] = entry.slot.packed();
                redo[1] = slots::redo_checksum(&image[1..], entry);
                redo[2..].copy_from_slice(&image[1..]);
                endpoint.put(self.redo_of(entry.slot.node(), stripe), &redo).detach()?;
                let mut tail = endpoint.buf::<u64>(image.len() - 1)?;
                tail.copy_from_slice(&image[1..]);
                endpoint.put(entry.slot.at(1), &tail).detach()
            }
        })
    }

    /// The same for values of `REDO` − 3 and `TAIL` − 1 words.
    fn write_small<const REDO: usize, const TAIL: usize>(
        &self,
        endpoint: &Endpoint,
        stripe: usize,
        entry: Entry,
        value: &V,
    ) -> Result<()>
    where
        [u64; REDO]: Plain,
        [u64; TAIL]: Plain,
    {
        let mut redo = [0; REDO];
        value.encode(&mut redo[3..]);
        redo[2] = slots::checksum(&redo[3..], entry.counter);
        if let Some(words) = self.here(entry.slot) {
            write_words(&words[1..], &redo[2..]);
            return Ok(());
        }
        redo[0] = entry.slot.packed();
        redo[1] = slots::redo_checksum(&redo[2..], entry);
        let to = self.redo_of(entry.slot.node(), stripe).cast::<[u64; REDO]>();
        let tail = core::array::from_fn::<u64, TAIL, _>(|at| redo[at + 2]);
        let redone = endpoint.put_value(to, redo).detach();
        redone.and_then(|()| endpoint.put_value(entry.slot.at(1).cast(), tail).detach()).of(self.object.path())
    }

    fn redo_of(&self, node: NodeId, stripe: usize) -> RemotePtr<u64> {
        let rank = self.participants.rank_of(node).expect("values lie on participants");
        self.redo[rank].at(stripe * self.layout.redo_words())
    }

    /// The value that a dead node was writing into a slot which is torn now.
    pub(super) async fn value_to_redo(&self, endpoint: &Endpoint, stripe: usize, entry: Entry) -> Result<Option<V>> {
        let path = self.object.path();
        let redo = endpoint.buf::<u64>(self.layout.redo_words()).of(path)?;
        let from = self.redo_of(entry.slot.node(), stripe);
        let redo = endpoint.get_into(from, redo).await.map_err(|error| self.lost_by(error))?;
        let Some((value, words)) = V::decode(&redo[3..]) else { return Ok(None) };
        let is_whole = redo[0] == entry.slot.packed() && redo[1] == slots::redo_checksum(&redo[2..3 + words], entry);
        Ok(is_whole.then_some(value))
    }

    /// Writes the whole slot of a new entry, not valid.
    pub(super) fn write_all(&self, endpoint: &Endpoint, entry: Entry, value: &V) -> Result<()> {
        self.with_image(endpoint, entry, value, |image| match self.here(entry.slot) {
            Some(words) => {
                words[0].store(image[0]);
                write_words(&words[1..image.len()], &image[1..]);
                Ok(())
            }
            None => {
                // The meta word first, by itself: a put may land in pieces, and puts land in order.
                endpoint.put_value(entry.slot, image[0]).detach()?;
                let mut tail = endpoint.buf::<u64>(image.len() - 1)?;
                tail.copy_from_slice(&image[1..]);
                endpoint.put(entry.slot.at(1), &tail).detach()
            }
        })
    }

    fn with_image(
        &self,
        endpoint: &Endpoint,
        entry: Entry,
        value: &V,
        write: impl FnOnce(&[u64]) -> farfield_fabric::Result<()>,
    ) -> Result<()> {
        let mut image: Buf<'_, u64> = endpoint.buf(self.layout.words).of(self.object.path())?;
        let words = value.encode(&mut image[2..]);
        image[0] = Meta { counter: entry.counter, valid: false }.packed();
        image[1] = slots::checksum(&image[2..2 + words], entry.counter);
        write(&image[..2 + words]).of(self.object.path())
    }

    pub(super) async fn look(&self, endpoint: &Endpoint, entry: Entry) -> Result<Look<V>> {
        match self.begin_look(endpoint, entry)? {
            Ok(look) => Ok(look),
            Err(looking) => self.end_look(looking, entry).await,
        }
    }

    /// Reads a slot, at once if it is here or the fabric completes operations at once.
    #[inline(always)]
    pub(super) fn begin_look<'e>(&self, endpoint: &'e Endpoint, entry: Entry) -> Result<Begun<Look<V>, Looking<'e>>> {
        if entry.slot.node() == endpoint.me() {
            return Ok(Ok(self.look_here(entry)));
        }
        let counter = entry.counter;
        // A small value needs no buffer.
        Ok(match self.layout.words {
            3 => Looking::begin(endpoint.get_words(entry.slot), counter, Looking::Three),
            4 => Looking::begin(endpoint.get_words(entry.slot), counter, Looking::Four),
            10 => Looking::begin(endpoint.get_words(entry.slot), counter, Looking::Ten),
            words => {
                let image = endpoint.buf::<u64>(words).of(self.object.path())?;
                let image = endpoint.get_into(entry.slot, image).into_value();
                image.map(|image| judge(&image, counter)).map_err(Looking::Any)
            }
        })
    }

    pub(super) async fn end_look(&self, looking: Looking<'_>, entry: Entry) -> Result<Look<V>> {
        let counter = entry.counter;
        let look = match looking {
            Looking::Three(get) => get.await.map(|image| judge(&image, counter)),
            Looking::Four(get) => get.await.map(|image| judge(&image, counter)),
            Looking::Ten(get) => get.await.map(|image| judge(&image, counter)),
            Looking::Any(get) => get.await.map(|image| judge(&image, counter)),
        };
        look.map_err(|error| self.lost_by(error))
    }

    pub(super) fn look_here(&self, entry: Entry) -> Look<V> {
        let Some(words) = self.here(entry.slot) else { return Look::Torn };
        let mut image = [0; 34];
        match image.get_mut(..words.len()) {
            Some(image) => {
                read_words(words, image);
                judge(image, entry.counter)
            }
            None => {
                let mut image = vec![0; words.len()];
                read_words(words, &mut image);
                judge(&image, entry.counter)
            }
        }
    }

    /// After a torn read: lets other tasks run, until the deadline, or until the writer is known to be dead or
    /// departed.
    #[cold]
    pub(super) async fn torn(&self, endpoint: &Endpoint, key: &K, since: &mut Option<Instant>) -> Result<()> {
        let now = endpoint.now();
        let since = *since.get_or_insert(now);
        let waited = now - since;
        if waited >= endpoint.timeout() {
            let error = farfield_fabric::Error::from(farfield_fabric::ErrorKind::Timeout { waited });
            return Err(error).waiting_for("an untorn value").of(self.object.path());
        }
        if waited >= TORN_LONG {
            // The writer of the value holds the key's lock. If it has died, the next holder makes the value whole.
            self.lock(endpoint, key).await?.unlock().await?;
        }
        endpoint.wait_for_change((now + TORN_LONG).min(since + endpoint.timeout())).await;
        Ok(())
    }

    /// Checks that a key and a value fit.
    #[inline]
    pub(super) fn check_sizes(&self, key: &K, value: Option<&V>) -> Result<()> {
        let too_large = |bytes: usize, max_bytes: usize| {
            Err(Error::from(ErrorKind::TooLarge { bytes, max_bytes }).of(self.object.path()))
        };
        let (key_bytes, value_bytes) = (key.bytes(), value.map_or(0, Value::bytes));
        if !K::FIXED && key_bytes > self.options.key_bytes_max {
            return too_large(key_bytes, self.options.key_bytes_max);
        }
        if !V::FIXED && value_bytes > self.options.value_bytes_max {
            return too_large(value_bytes, self.options.value_bytes_max);
        }
        Ok(())
    }

    /// Checks that the node of a value is alive.
    #[inline]
    pub(super) fn check_there(&self, endpoint: &Endpoint, entry: Entry) -> Result<()> {
        let node = entry.slot.node();
        if node == self.object.node().id() {
            return Ok(());
        }
        endpoint.check_alive(node).map_err(|error| self.lost_by(error))
    }

    /// The error of a value on a dead or departed node.
    #[cold]
    pub(super) fn lost_by(&self, error: impl Into<Error>) -> Error {
        let error = error.into();
        let error = match error.node() {
            Some(node) if error.is_gone() => ErrorKind::ValueLost { node }.into(),
            _ => error,
        };
        error.of(self.object.path())
    }
}

/// A value that stays torn for so long may have a dead writer.
const TORN_LONG: Duration = Duration::from_millis(10);

/// Interprets a slot's words for the entry that led there (LOCO appendix I.1).
#[inline]
pub(super) fn judge<V: Value>(image: &[u64], counter: u64) -> Look<V> {
    let meta = Meta::from_packed(image[0]);
    // Another counter: the slot has belonged to another key since the index was read. So a delete had taken effect,
    // and did not end before our index knew. Not valid: an insert has not taken effect yet, or a delete has. One word,
    // which is never torn, shows both.
    if meta.counter != counter || !meta.valid {
        return Look::Absent;
    }
    match V::decode(&image[2..]) {
        Some((value, words)) if slots::checksum(&image[2..2 + words], counter) == image[1] => Look::Found(value),
        _ => Look::Torn,
    }
}
