//! SWARM-KV (§5): a key-value store. Its values are replicated registers, and its index is replicated as they are.
//!
//! ```text
//! the image of a value
//!   ┌──────┬────────────────┬───────────┬─────────────┐
//!   │ hash │ key's length+1 │ key       │ value       │
//!   └──────┴────────────────┴───────────┴─────────────┘
//! ```

use core::cell::RefCell;
use core::marker::PhantomData;

use farfield_core::{Error, ErrorKind, Key, Node, Result, Value};
use farfield_fabric::{Endpoint, NodeId};
use foldhash::fast::FixedState;
use quick_cache::UnitWeighter;
use quick_cache::unsync::{Cache, DefaultLifecycle};
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64;
use zerocopy::IntoBytes;

use crate::cell::{Entries, Entry};
use crate::chores::Chore;
use crate::client::{Core, Home};
use crate::open::{Opened, Shape};
use crate::options::SwarmStoreOptions;
use crate::safe_guess::{Read, Sealed, Written};
use crate::sections::Section;
use crate::shards::Cores;
use crate::together::together;
use crate::version::{BUFFERS_MAX, Location, Version};

mod blocking;
mod conditional;
mod insert;
mod scan;

/// A key-value store with a copy of every entry on several memory nodes, of which any minority may die. See the [crate]
/// for the algorithm of its values, and the module `agreement` for that of its index.
///
/// ```
/// use farfield::ByteString;
/// use farfield::swarm::{SwarmStore, SwarmStoreOptions};
/// let nodes = farfield::local_session(3)?;
/// let open = |node: &farfield::Node| SwarmStore::<ByteString, u64>::open(node, "stock", SwarmStoreOptions::default());
/// let stores = farfield::on_each(&nodes, open)?;
/// let (ep, far) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
/// let (mine, yours) = (stores[0].client(&ep)?, stores[1].client(&far)?);
/// let pears = ByteString::from("pears");
/// assert!(ep.block_on(mine.insert(&pears, &12))?);
/// assert!(far.block_on(yours.update(&pears, &11))?);
/// assert_eq!(ep.block_on(mine.get(&pears))?, Some(11));
/// ep.block_on(mine.delete(&pears))?;
/// assert_eq!(far.block_on(yours.get(&pears))?, None);
/// # drop((mine, yours));
/// # Ok::<(), farfield::Error>(())
/// ```
pub struct SwarmStore<K, V> {
    pub(crate) opened: Opened,
    limits: Limits,
    cached_keys: usize,
    _types: PhantomData<fn() -> (K, V)>,
}

/// The calls of a store, as they are counted.
const CALLS: [&str; 8] = ["get", "get_many", "insert", "update", "upsert", "delete", "scan", "update_if"];
const GET: usize = 0;
const GET_MANY: usize = 1;
const INSERT: usize = 2;
const UPDATE: usize = 3;
const UPSERT: usize = 4;
const DELETE: usize = 5;
const SCAN: usize = 6;
const UPDATE_IF: usize = 7;

/// The lengths of keys and values.
#[derive(Clone, Copy)]
struct Limits {
    key_bytes_max: usize,
    value_bytes_max: usize,
    /// Words of the longest key, and of the longest value.
    key_words: usize,
    value_words: usize,
}

impl Limits {
    fn image_words(&self) -> usize {
        1 + self.key_words + self.value_words
    }
}

impl<K: Key, V: Value> SwarmStore<K, V> {
    /// Opens a store at `path`, and waits for the memory nodes. If they have just opened it, it is empty.
    ///
    /// ```
    /// # use farfield::swarm::{SwarmStore, SwarmStoreOptions};
    /// # let nodes = farfield::local_session(3)?;
    /// let mut options = SwarmStoreOptions::default();
    /// options.keys = 1000;
    /// let open = |node: &farfield::Node| SwarmStore::<u64, [u64; 8]>::open(node, "positions", options.clone());
    /// let positions = farfield::on_each(&nodes, open)?; // three copies of each entry
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A node is missing, unreachable, or opens it differently; the options are invalid; or no memory is left.
    pub fn open(node: &Node, path: &str, options: SwarmStoreOptions) -> Result<SwarmStore<K, V>> {
        SwarmStore::open_among(node, path, &crate::open::default_participants(node, path), options)
    }

    /// [`SwarmStore::open`] among these participants.
    ///
    /// ```
    /// # use farfield::swarm::{SwarmStore, SwarmStoreOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// let alone = SwarmStore::<u64, u64>::open_among(&node, "limits", &[node.id()], SwarmStoreOptions::default())?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`SwarmStore::open`].
    pub fn open_among(
        node: &Node,
        path: &str,
        participants: &[NodeId],
        options: SwarmStoreOptions,
    ) -> Result<SwarmStore<K, V>> {
        options.check().map_err(|error| error.of(path))?;
        let SwarmStoreOptions { keys, key_bytes_max, value_bytes_max, cached_keys, replicas } = options;
        let key_bytes_max = if K::FIXED { size_of::<K>() } else { key_bytes_max };
        let limits = Limits {
            key_bytes_max,
            value_bytes_max,
            key_words: key_bytes_max.div_ceil(8),
            value_words: V::words(value_bytes_max),
        };
        let types = (core::any::type_name::<K>(), core::any::type_name::<V>());
        let shape = Shape {
            kind: crate::open::STORE,
            described: format!(
                "{keys} keys of {} up to {key_bytes_max} bytes, values of {} of {} words",
                types.0, types.1, limits.value_words
            ),
            options: &replicas,
            size: keys,
            value_words: limits.image_words(),
            is_store: true,
            buffers_max: BUFFERS_MAX,
            calls: &CALLS,
        };
        let opened = Opened::open(node, path, participants, &shape)?;
        Ok(SwarmStore { opened, limits, cached_keys, _types: PhantomData })
    }

    /// A client, which makes its calls with this endpoint. A thread takes one and keeps it.
    ///
    /// ```
    /// # use farfield::swarm::{SwarmStore, SwarmStoreOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let store = SwarmStore::<u64, u64>::open(&node, "s", SwarmStoreOptions::default())?;
    /// let ep = node.endpoint()?;
    /// let client = store.client(&ep)?;
    /// client.upsert_blocking(&7, &49)?;
    /// # drop(client);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The node has [`clients_per_node`](crate::SwarmOptions::clients_per_node) clients already.
    pub fn client<'e>(&self, endpoint: &'e Endpoint) -> Result<SwarmStoreClient<'e, K, V>> {
        Ok(SwarmStoreClient {
            cores: self.opened.client(endpoint)?,
            limits: self.limits,
            cache: RefCell::new(Cache::with(
                self.cached_keys,
                self.cached_keys as u64,
                UnitWeighter,
                FixedState::default(),
                DefaultLifecycle::default(),
            )),
            spare: RefCell::default(),
            _types: PhantomData,
        })
    }
}

type Places = Cache<Box<[u8]>, Location, UnitWeighter, FixedState>;

/// One thread's access to a [`SwarmStore`].
///
/// ```
/// # use farfield::swarm::{SwarmStore, SwarmStoreOptions};
/// # let node = farfield::Node::builder().start()?;
/// # let store = SwarmStore::<u64, u64>::open(&node, "s", SwarmStoreOptions::default())?;
/// # let ep = node.endpoint()?;
/// let client = store.client(&ep)?;
/// // Several calls at a time, each in one round trip. A client has up to 64 under way.
/// ep.run_window(4, (0..8).map(|key| { let client = &client; async move { client.upsert(&key, &1).await } }), |done| done.unwrap());
/// assert_eq!(client.get_many_blocking(&[3, 4, 100])?, [Some(1), Some(1), None]);
/// # drop(client);
/// # Ok::<(), farfield::Error>(())
/// ```
pub struct SwarmStoreClient<'e, K, V> {
    pub(crate) cores: Cores<'e>,
    limits: Limits,
    /// Where the values of keys are.
    pub(crate) cache: RefCell<Places>,
    /// Memory for the bytes of keys.
    spare: RefCell<Vec<Vec<u8>>>,
    _types: PhantomData<fn() -> (K, V)>,
}

/// A key's bytes, and what follows from them.
pub(crate) struct Name<'c, 'e> {
    bytes: Vec<u8>,
    hash: u64,
    /// The client of its shard.
    core: &'c Core<'e>,
    pub(crate) cell: usize,
    /// Where the bytes' memory is kept for the next call.
    spare: &'c RefCell<Vec<Vec<u8>>>,
}

impl Drop for Name<'_, '_> {
    fn drop(&mut self) {
        let mut bytes = core::mem::take(&mut self.bytes);
        bytes.clear();
        self.spare.borrow_mut().push(bytes);
    }
}

/// The words of a key and a value.
pub(crate) type Words = SmallVec<[u64; 24]>;

impl<'e, K: Key, V: Value> SwarmStoreClient<'e, K, V> {
    /// The value of a key, if it is there.
    ///
    /// ```
    /// # use farfield::swarm::{SwarmStore, SwarmStoreOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let store = SwarmStore::<u64, u64>::open(&node, "s", SwarmStoreOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// # let client = store.client(&ep)?;
    /// assert_eq!(ep.block_on(client.get(&7))?, None);
    /// # drop(client);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`NoMajority`](crate::NoMajority); more than 64 calls at a time; or a timeout, if memory nodes with the latest
    /// value come and go. If a client has stopped in the middle of a move of the key ([`SwarmStoreClient::update_if`]),
    /// this ends the move, which needs a free register: [`StoreFull`](crate::StoreFull) or
    /// [`TimestampsUsedUp`](crate::TimestampsUsedUp) if there is none.
    pub async fn get(&self, key: &K) -> Result<Option<V>> {
        measured!(self.cores.first(), GET, self.get(key));
        self.look(key).await
    }

    async fn look(&self, key: &K) -> Result<Option<V>> {
        let name = self.name(key)?;
        let mut words = self.empty_words();
        match self.find(&name, &mut words).await? {
            Some(_) => self.decode(&words).map(Some),
            None => Ok(None),
        }
    }

    /// The values of several keys, which are read at the same time: each by itself, not all at one moment.
    ///
    /// ```
    /// # use farfield::swarm::{SwarmStore, SwarmStoreOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let store = SwarmStore::<u64, u64>::open(&node, "s", SwarmStoreOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// # let client = store.client(&ep)?;
    /// client.insert_blocking(&7, &49)?;
    /// assert_eq!(ep.block_on(client.get_many(&[7, 8]))?, [Some(49), None]);
    /// # drop(client);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`SwarmStoreClient::get`].
    pub async fn get_many(&self, keys: &[K]) -> Result<Vec<Option<V>>> {
        measured!(self.cores.first(), GET_MANY, self.get_many(keys));
        together(AT_A_TIME, keys.iter().map(|key| self.look(key))).await
    }

    /// Replaces the value of a key. False if it is not there.
    ///
    /// ```
    /// # use farfield::swarm::{SwarmStore, SwarmStoreOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let store = SwarmStore::<u64, u64>::open(&node, "s", SwarmStoreOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// # let client = store.client(&ep)?;
    /// assert!(!ep.block_on(client.update(&7, &49))?);
    /// # drop(client);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`NoMajority`](crate::NoMajority) and a timeout: it has happened, or not, or will have before this client's next
    /// write of the key. The key or the value is too long, more than 64 calls at a time (and the key does not move
    /// meanwhile), or [`TimestampsUsedUp`](crate::TimestampsUsedUp): it has not. Once in six to twelve days the key
    /// moves to a fresh register, and fails as [`SwarmStoreClient::update_if`] does if there is none. If it has to end
    /// a move, as [`SwarmStoreClient::get`]: it has happened, or not, or will when the move ends.
    pub async fn update(&self, key: &K, value: &V) -> Result<bool> {
        measured!(self.cores.first(), UPDATE, self.update(key, value));
        self.replace(key, value).await
    }

    async fn replace(&self, key: &K, value: &V) -> Result<bool> {
        let name = self.name(key)?;
        let words = self.encode(&name, value)?;
        let mut found = self.empty_words();
        loop {
            let cached = self.cached(&name);
            let at = match cached {
                Some(at) => at,
                None => match self.find_in_index(&name, &mut found).await? {
                    Some(at) => at,
                    None => return Ok(false),
                },
            };
            let entry = Entry::mapped(at, name.hash);
            // No other write of this client to the register begins before it is known whether this one counts.
            let written = name.core.write_in_section(Home::store(name.cell, entry), &words).await?;
            let (written, writing, section) = written;
            match written {
                Written::Done => {
                    section.end();
                    return Ok(true);
                }
                Written::Gone => {
                    section.end();
                    self.forget(&name, at);
                }
                Written::Moving(again) => {
                    self.forget(&name, at);
                    if name.core.counts(section, name.cell, entry, again).await? {
                        return Ok(true);
                    }
                }
                Written::UsedUp => {
                    section.end();
                    drop(writing);
                    if self.renew(&name, at, Some(&words)).await? {
                        return Ok(true);
                    }
                }
            }
        }
    }

    /// Inserts a key, or replaces its value.
    ///
    /// ```
    /// # use farfield::swarm::{SwarmStore, SwarmStoreOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let store = SwarmStore::<u64, u64>::open(&node, "s", SwarmStoreOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// # let client = store.client(&ep)?;
    /// ep.block_on(client.upsert(&7, &49))?;
    /// ep.block_on(client.upsert(&7, &50))?;
    /// # drop(client);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`SwarmStoreClient::update`] and [`SwarmStoreClient::insert`].
    pub async fn upsert(&self, key: &K, value: &V) -> Result<()> {
        measured!(self.cores.first(), UPSERT, self.upsert(key, value));
        // Another client may insert and delete it in between, in each round of this loop.
        while !self.replace(key, value).await? {
            if self.add(key, value).await? {
                break;
            }
        }
        Ok(())
    }

    /// Deletes a key. When this returns, it is not there, unless it was inserted again.
    ///
    /// ```
    /// # use farfield::swarm::{SwarmStore, SwarmStoreOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let store = SwarmStore::<u64, u64>::open(&node, "s", SwarmStoreOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// # let client = store.client(&ep)?;
    /// client.insert_blocking(&7, &49)?;
    /// ep.block_on(client.delete(&7))?;
    /// ep.block_on(client.delete(&7))?; // it is not there any more, which is no error
    /// # drop(client);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`NoMajority`](crate::NoMajority), a timeout and more than 64 calls at a time: it has happened, or not, or will
    /// when a read finds it. If the key has to move first, or its move has to be ended, as
    /// [`SwarmStoreClient::update`].
    pub async fn delete(&self, key: &K) -> Result<()> {
        measured!(self.cores.first(), DELETE, self.delete(key));
        let name = self.name(key)?;
        self.remove(&name).await?;
        name.core.tend_if_many().await;
        Ok(())
    }

    async fn remove(&self, name: &Name<'_, 'e>) -> Result<()> {
        // The last register that this call has sealed, perhaps in vain.
        let mut own = None;
        // If it had ended before, or others end it at the same time, the key may have been inserted again.
        if let Some(at) = self.cached(name) {
            match self.end(name, at).await? {
                (Sealed::Now, _) => return Ok(()),
                (Sealed::Before | Sealed::Moving, seal) => own = Some((at, seal)),
                (Sealed::Moved | Sealed::UsedUp, _) => {}
            }
        }
        while let Some(at) = self.find_in_index(name, &mut self.empty_words()).await? {
            // Of all that have sealed one register, one has to have ended it: the index says which (`moving`).
            if let Some((ended, seal)) = own
                && name.core.has_ended_it(name.cell, Entry::mapped(ended, name.hash), seal).await?
            {
                return Ok(());
            }
            match self.end(name, at).await? {
                // It was there during this call. The key is deleted then, whichever client ends the register.
                (Sealed::Now | Sealed::Before, _) => return Ok(()),
                (Sealed::Moving, seal) => own = Some((at, seal)),
                // It may have moved before.
                (Sealed::Moved, _) => own = None,
                (Sealed::UsedUp, _) => drop(self.renew(name, at, None).await?),
            }
        }
        Ok(())
    }

    /// Ends a key's register.
    async fn end(&self, name: &Name<'_, 'e>, at: Location) -> Result<(Sealed, Version)> {
        let (cell, entry) = (name.cell, Entry::mapped(at, name.hash));
        // Its seal may be there even if this call is given up.
        let mut sealing = Sealing { core: name.core, chore: Some(Chore::Find { cell, entry }) };
        let (sealed, seal) = name.core.seal_in_section(at).await?;
        self.forget(name, at);
        sealing.chore = match sealed {
            // Others may do it, too: one does.
            Sealed::Now | Sealed::Before => Some(Chore::Unmap { cell, entry, seal }),
            Sealed::Moved | Sealed::Moving | Sealed::UsedUp => None,
        };
        Ok((sealed, seal))
    }

    /// Reads a key's value.
    async fn find(&self, name: &Name<'_, 'e>, words: &mut [u64]) -> Result<Option<Location>> {
        if let Some(at) = self.cached(name) {
            if name.core.read(at, words).await? == Read::Value && self.is_of(name, words) {
                return Ok(Some(at));
            }
            self.forget(name, at);
        }
        self.find_in_index(name, words).await
    }

    /// Looks for a key in the index, and reads its value.
    async fn find_in_index(&self, name: &Name<'_, 'e>, words: &mut [u64]) -> Result<Option<Location>> {
        loop {
            let entries = name.core.settled_entries(name.cell).await?;
            let section = name.core.enter()?;
            let found = self.find_among(&section, name, entries, words).await;
            section.end();
            match found? {
                Found::At(at) => {
                    self.remember(name, at);
                    return Ok(Some(at));
                }
                Found::Nothing => return Ok(None),
                Found::Moved(entry) => drop(name.core.left(name.cell, entry).await?),
            }
        }
    }

    async fn find_among(
        &self,
        section: &Section<'_, 'e>,
        name: &Name<'_, 'e>,
        entries: Entries,
        words: &mut [u64],
    ) -> Result<Found> {
        for entry in entries.into_iter().filter(|entry| entry.may_be(name.hash)) {
            match name.core.read_in(section, entry.at(), words).await? {
                Read::Value if self.is_of(name, words) => return Ok(Found::At(entry.at())),
                // Its key is another one.
                Read::Value => {}
                Read::Sealed(seal) => name.core.found_deleted(name.cell, entry, seal),
                Read::Moved => return Ok(Found::Moved(entry)),
            }
        }
        Ok(Found::Nothing)
    }

    fn cached(&self, name: &Name<'_, 'e>) -> Option<Location> {
        self.cache.borrow().get(&name.bytes[..]).copied()
    }

    fn remember(&self, name: &Name<'_, 'e>, at: Location) {
        self.cache.borrow_mut().insert(name.bytes.as_slice().into(), at);
    }

    fn forget(&self, name: &Name<'_, 'e>, at: Location) {
        self.cache.borrow_mut().remove_if(&name.bytes[..], |cached| *cached == at);
    }

    pub(crate) fn name(&self, key: &K) -> Result<Name<'_, 'e>> {
        self.cores.first().shared.object.check_current()?;
        self.check_length(K::FIXED, key.bytes(), self.limits.key_bytes_max)?;
        let mut bytes = self.spare.borrow_mut().pop().unwrap_or_default();
        key.encode(&mut bytes);
        let hash = xxh3_64(&bytes);
        let core = self.cores.of_hash(hash);
        let cell = (hash % core.index().buckets as u64) as usize;
        Ok(Name { bytes, hash, core, cell, spare: &self.spare })
    }

    fn check_length(&self, is_fixed: bool, bytes: usize, max_bytes: usize) -> Result<()> {
        if is_fixed || bytes <= max_bytes {
            return Ok(());
        }
        Err(Error::from(ErrorKind::TooLarge { bytes, max_bytes }).of(self.cores.first().shared.object.path()))
    }

    fn empty_words(&self) -> Words {
        SmallVec::from_elem(0, self.limits.image_words())
    }

    fn encode(&self, name: &Name<'_, 'e>, value: &V) -> Result<Words> {
        self.check_length(V::FIXED, value.bytes(), self.limits.value_bytes_max)?;
        let mut words = self.empty_words();
        words[0] = name.bytes.len() as u64 + 1;
        words[1..].as_mut_bytes()[..name.bytes.len()].copy_from_slice(&name.bytes);
        value.encode(&mut words[1 + self.limits.key_words..]);
        Ok(words)
    }

    fn is_of(&self, name: &Name<'_, 'e>, words: &[u64]) -> bool {
        words[0] == name.bytes.len() as u64 + 1 && words[1..].as_bytes()[..name.bytes.len()] == name.bytes
    }

    fn decode(&self, words: &[u64]) -> Result<V> {
        let value = V::decode(&words[1 + self.limits.key_words..]);
        value.map(|(value, _)| value).ok_or_else(|| self.corrupt("a value"))
    }

    fn key(&self, words: &[u64]) -> Result<K> {
        let length = (words[0] as usize).checked_sub(1).filter(|length| *length <= self.limits.key_bytes_max);
        let key = length.and_then(|length| K::decode(&words[1..].as_bytes()[..length]));
        key.ok_or_else(|| self.corrupt("a key"))
    }

    #[cold]
    fn corrupt(&self, what: &str) -> Error {
        Error::from(ErrorKind::Corrupt { what: what.into() }).of(self.cores.first().shared.object.path())
    }
}

/// What a look into the index has found.
enum Found {
    At(Location),
    Nothing,
    /// The key of this entry moves, or its register was used again meanwhile.
    Moved(Entry),
}

/// Gets at a time. A client has sections for twice as many calls.
const AT_A_TIME: usize = 32;

/// A delete that is under way, with the chore that it leaves.
struct Sealing<'c, 'e> {
    core: &'c Core<'e>,
    chore: Option<Chore>,
}

impl Drop for Sealing<'_, '_> {
    fn drop(&mut self) {
        if let Some(chore) = self.chore.take() {
            self.core.add_chore(chore);
        }
    }
}
