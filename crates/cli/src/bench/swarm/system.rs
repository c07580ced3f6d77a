//! The systems: stores of values of a fixed size. Their keys are numbers, and are there from the beginning on.

use std::fmt;

use anyhow::{Context, Result};
use clap::ValueEnum;
use farfield::swarm::SwarmStoreClient;
use farfield::{ByteString, Endpoint, Node, NodeId, SwarmStore, SwarmStoreOptions};
use serde::{Deserialize, Serialize};

use super::abd::Abd;
use super::fusee::Fusee;
use super::raw::Raw;

/// A way to keep values on memory nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    /// Farfield's replicated store
    Swarm,
    /// A majority by the algorithm of Attiya, Bar-Noy and Dolev, with values out of place
    DmAbd,
    /// An index on one memory node that is copied to others before it changes (SNAPSHOT, as FUSEE has it). It stops at
    /// a death
    Fusee,
    /// One copy, no order among writers, torn values. It stops at a death
    Raw,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Swarm => "swarm",
            Kind::DmAbd => "dm-abd",
            Kind::Fusee => "fusee",
            Kind::Raw => "raw",
        })
    }
}

/// What is stored, and where.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    pub(super) memory: Vec<NodeId>,
    pub(super) clients: usize,
    pub(super) keys: usize,
    /// Of a value, in bytes.
    pub(super) size: usize,
    /// Of a register of `swarm`; 0: one for each client.
    pub(super) metadata_words: usize,
}

impl Scale {
    /// They come after the memory nodes.
    pub(super) fn client_nodes(&self) -> Vec<NodeId> {
        let first = self.memory.len();
        (first..first + self.clients).map(|node| NodeId(node as u16)).collect()
    }

    pub(super) fn words(&self) -> usize {
        self.size.div_ceil(8)
    }

    /// The memory nodes in the order in which a client asks them about a key.
    pub(super) fn order(&self, key: usize) -> impl Iterator<Item = usize> + Clone {
        let count = self.memory.len();
        (0..count).map(move |at| (key + at) % count)
    }

    pub(super) fn majority(&self) -> usize {
        self.memory.len() / 2 + 1
    }
}

/// One thread's access to a system.
pub(super) trait Client {
    /// Gets a key's value. False if it has none.
    async fn get(&self, key: usize, into: &mut [u64]) -> farfield::Result<bool>;

    /// Replaces a key's value, or gives it one.
    async fn put(&self, key: usize, value: &[u64]) -> farfield::Result<()>;

    /// Gives a key that is not there a value. Where keys have fixed places, that is one like any other.
    async fn insert(&self, key: usize, value: &[u64]) -> farfield::Result<()> {
        self.put(key, value).await
    }

    /// Takes a key away. False if there is nothing to do.
    async fn delete(&self, _: usize) -> farfield::Result<bool> {
        Ok(false)
    }
}

/// A system that is open on this node.
pub(super) enum System {
    Swarm(SwarmStore<u64, ByteString>),
    DmAbd(Abd),
    Fusee(Fusee),
    Raw(Raw),
}

impl System {
    /// Opens it on all nodes. `client` is this node's number among those that have one.
    pub(super) fn open(kind: Kind, node: &Node, scale: &Scale, client: Option<usize>) -> Result<System> {
        let client = client.unwrap_or(0);
        Ok(match kind {
            Kind::Swarm => {
                let mut options = SwarmStoreOptions::default();
                (options.keys, options.key_bytes_max, options.value_bytes_max) = (scale.keys, 8, scale.size);
                // Caches are warm.
                options.cached_keys = options.cached_keys.max(scale.keys);
                options.replicas.memory = scale.memory.clone();
                options.replicas.clients = scale.client_nodes();
                options.replicas.metadata_words = scale.metadata_words;
                System::Swarm(SwarmStore::open(node, "swarm", options)?)
            }
            Kind::DmAbd => System::DmAbd(Abd::open(node, scale, client)?),
            Kind::Fusee => System::Fusee(Fusee::open(node, scale, client)?),
            Kind::Raw => System::Raw(Raw::open(node, scale)?),
        })
    }

    /// Calls `body` with a client.
    pub(super) fn with_client<B: Body>(&self, endpoint: &Endpoint, body: B) -> Result<B::Output> {
        match self {
            System::Swarm(store) => body.run(&Swarm(store.client(endpoint).context("a client of the store")?)),
            System::DmAbd(abd) => body.run(&abd.client(endpoint)),
            System::Fusee(fusee) => body.run(&fusee.client(endpoint)),
            System::Raw(raw) => body.run(&raw.client(endpoint)),
        }
    }
}

/// What is done with any client.
pub(super) trait Body {
    type Output;
    fn run(self, client: &impl Client) -> Result<Self::Output>;
}

struct Swarm<'e>(SwarmStoreClient<'e, u64, ByteString>);

impl Client for Swarm<'_> {
    async fn get(&self, key: usize, into: &mut [u64]) -> farfield::Result<bool> {
        let Some(value) = self.0.get(&(key as u64)).await? else { return Ok(false) };
        for (word, bytes) in into.iter_mut().zip(value.as_ref().chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(whole);
        }
        Ok(true)
    }

    async fn put(&self, key: usize, value: &[u64]) -> farfield::Result<()> {
        self.0.upsert(&(key as u64), &bytes(value)).await
    }

    async fn insert(&self, key: usize, value: &[u64]) -> farfield::Result<()> {
        self.0.insert(&(key as u64), &bytes(value)).await.map(drop)
    }

    async fn delete(&self, key: usize) -> farfield::Result<bool> {
        self.0.delete(&(key as u64)).await.map(|()| true)
    }
}

fn bytes(words: &[u64]) -> ByteString {
    words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>().into()
}
