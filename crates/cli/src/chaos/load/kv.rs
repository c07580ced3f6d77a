//! All operations of a key-value store, on keys that all share and on a few of the thread's own.

use std::sync::Arc;

use farfield::{Endpoint, KvOptions, KvStore, Placement};
use rand::RngExt;
use rand::rngs::SmallRng;

use super::{Load, Place};
use crate::chaos::log::{Answer, Failure, KvOp, Op, Recorder};

/// Keys that all threads use.
const SHARED_KEYS: u64 = 24;
/// Keys that one thread writes, and all read.
const OWN_KEYS: u64 = 2;
/// The number of concurrent operations, in some of the steps.
const WINDOW: std::ops::RangeInclusive<usize> = 2..=4;
const WINDOW_SHARE: f64 = 0.15;

pub(super) struct KvLoad {
    kv: Arc<KvStore<u64, u64>>,
    endpoint: Endpoint,
    rng: SmallRng,
    /// The thread's number, of all threads of all nodes.
    client: u64,
    clients: Vec<u64>,
    written: u64,
}

impl KvLoad {
    pub(super) fn open(place: &mut Place<'_>, threads: usize) -> Result<Vec<KvLoad>, Failure> {
        let placement = if place.is_placed_by_hash { Placement::Hash } else { Placement::Inserter };
        let options = KvOptions { slots_per_node: 1024, locks: 96, placement, ..KvOptions::default() };
        let kv: Arc<KvStore<u64, u64>> = Arc::new(place.open("kv", |node, path| KvStore::open(node, path, options))?);
        let number = |node: u16, thread: usize| u64::from(node) * threads as u64 + thread as u64;
        let clients: Vec<u64> =
            place.members.iter().flat_map(|member| (0..threads).map(|thread| number(member.0, thread))).collect();
        for key in Self::keys(&clients) {
            if let Some(home) = kv.home_of(&key) {
                let begun = place.log.begin(Op::Home { key }, place.node.timeout());
                place.log.end(begun, Ok(home), |home| Answer::Value(u64::from(home.0)))?;
            }
        }
        let thread = |thread: usize| {
            let (rng, client) = (place.rng(&format!("kv-{thread}")), number(place.node.id().0, thread));
            let (kv, clients) = (Arc::clone(&kv), clients.clone());
            Ok(KvLoad { kv, endpoint: place.endpoint()?, rng, client, clients, written: 0 })
        };
        (0..threads).map(thread).collect()
    }

    /// A value that no other thread writes.
    fn value(&mut self) -> u64 {
        self.written += 1;
        (self.client + 1) << 32 | self.written
    }

    fn own_key(client: u64, index: u64) -> u64 {
        SHARED_KEYS + client * OWN_KEYS + index
    }

    /// All keys that these clients use.
    fn keys(clients: &[u64]) -> impl Iterator<Item = u64> {
        let own = clients.iter().flat_map(|client| (0..OWN_KEYS).map(|index| Self::own_key(*client, index)));
        (0..SHARED_KEYS).chain(own)
    }

    async fn call(&self, log: &Recorder, key: u64, op: KvOp) -> Result<(), Failure> {
        let (kv, endpoint) = (&self.kv, &self.endpoint);
        let call = async {
            Ok(match op {
                KvOp::Get => Answer::Found(kv.get(endpoint, &key).await?),
                KvOp::Insert(value) => Answer::Changed(kv.insert(endpoint, &key, &value).await?),
                KvOp::Update(value) => Answer::Changed(kv.update(endpoint, &key, &value).await?),
                KvOp::Upsert(value) => kv.upsert(endpoint, &key, &value).await.map(|()| Answer::Done)?,
                KvOp::Delete => Answer::Changed(kv.delete(endpoint, &key).await?),
                KvOp::UpdateIf(_) => unreachable!("only the load of the replicated store makes it"),
            })
        };
        log.call_among(Op::Kv { key, op }, endpoint, call, Answer::clone).await.map(drop)
    }

    /// The next operation and its key.
    fn choose(&mut self) -> (u64, KvOp) {
        let choice = self.rng.random_range(0..100);
        let is_own = self.rng.random_bool(0.2);
        let index = self.rng.random_range(0..OWN_KEYS);
        let key = match (is_own, choice) {
            (false, _) => self.rng.random_range(0..SHARED_KEYS),
            (true, 0..40) => {
                let owner = self.clients[self.rng.random_range(0..self.clients.len())];
                Self::own_key(owner, index)
            }
            (true, _) => Self::own_key(self.client, index),
        };
        let op = match choice {
            0..40 => KvOp::Get,
            40..52 => KvOp::Insert(self.value()),
            52..74 => KvOp::Update(self.value()),
            74..88 => KvOp::Upsert(self.value()),
            _ => KvOp::Delete,
        };
        (key, op)
    }
}

impl Load for KvLoad {
    fn step(&mut self, log: &mut Recorder) {
        let count = if self.rng.random_bool(WINDOW_SHARE) { self.rng.random_range(WINDOW) } else { 1 };
        let mut calls: Vec<(u64, KvOp)> = (0..count).map(|_| self.choose()).collect();
        if self.rng.random_bool(0.5) {
            // All on one key: those that change it queue for its lock.
            let key = calls[0].0;
            calls.iter_mut().filter(|call| call.0 < SHARED_KEYS && key < SHARED_KEYS).for_each(|call| call.0 = key);
        }
        let mut lost = Vec::new();
        let log = &*log;
        let these = calls.iter().map(|(key, op)| async { (*key, self.call(log, *key, *op).await) });
        self.endpoint.run_window(count, these, |(key, done)| {
            lost.extend(done.is_err_and(|failure| failure.variant == "ValueLost").then_some(key));
        });
        for key in lost {
            // Inserts the key again, as the error suggests. (Not always, so that other threads find it lost, too.)
            if self.rng.random_bool(0.5) {
                let value = self.value();
                let _ = self.endpoint.block_on(self.call(log, key, KvOp::Insert(value)));
            }
        }
    }

    fn look(&mut self, log: &mut Recorder) {
        for key in Self::keys(&self.clients) {
            // Judged from the log, like all other calls.
            let _ = self.endpoint.block_on(self.call(log, key, KvOp::Get));
        }
    }
}
