//! Clients that record their calls in a history, and the judgements of it.

use std::hash::BuildHasher;
use std::rc::Rc;

use farfield_core::fabric::RemotePtr;
use farfield_core::history::Event;
use farfield_core::history::kv::{KvHistory, KvInput, KvOutput};
use farfield_core::{Endpoint, Error, ErrorKind, KvOptions, KvStore, Result};
use foldhash::fast::FixedState;

use super::{VICTIM, a_moment};
use farfield_check::parts::{Excuse, comes_of_faults};
use farfield_check::{Cluster, Log, crashed};

/// A value of two words, which a reader may find torn.
pub(crate) type Pair = [u64; 2];

type Store = KvStore<u64, Pair>;

/// As small as a store can be.
pub(crate) fn tiny() -> KvOptions {
    KvOptions { slots_per_node: 2, locks: 1, tracker_bytes: 128, ..KvOptions::default() }
}

/// The store's hash of a key. Its upper half selects the key's lock; the hash also selects the node.
fn hash_of(key: u64) -> u64 {
    FixedState::with_seed(0x6661_7266_6965_6c64).hash_one(key)
}

/// The lowest keys with hashes that satisfy the conditions.
pub(crate) fn keys<const N: usize>(wanted: [fn(u64) -> bool; N]) -> [u64; N] {
    let mut next = 1;
    wanted.map(|wanted| {
        let found = (next..).find(|key| wanted(hash_of(*key))).expect("half of all keys are as wanted");
        next = found + 1;
        found
    })
}

/// With two locks.
pub(crate) fn first_lock(hash: u64) -> bool {
    (hash >> 32).is_multiple_of(2)
}

pub(crate) fn second_lock(hash: u64) -> bool {
    !first_lock(hash)
}

/// With two nodes and [`Placement::Hash`].
pub(crate) fn on_node_1(hash: u64) -> bool {
    hash % 2 == 1
}

pub(crate) enum Entry {
    Called {
        client: u32,
        key: u64,
        input: KvInput,
    },
    Returned {
        call: usize,
        output: KvOutput,
    },
    /// It has not taken effect, and never will.
    Refused {
        call: usize,
    },
    /// Its node could not report the answer to another node.
    Unheard {
        call: usize,
        by: usize,
    },
}

/// A node's store, and the log of its calls.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) id: u32,
    pub(crate) kv: Rc<Store>,
    pub(crate) log: Log<Entry>,
    /// Where nodes may be cut off: a word on each other node. The client gets all of them after an answer, see
    /// [`Entry::Unheard`].
    pub(crate) heard_at: Rc<[(usize, RemotePtr<u64>)]>,
}

/// The result of a call: an answer; no room; the value is lost; or no answer in time, so that it is unknown whether the
/// call has taken effect.
#[derive(PartialEq, Debug)]
pub(crate) enum Answer<T> {
    Is(T),
    Full,
    Lost,
    None,
}

impl Client {
    /// Opens a store on all nodes, in which node `.0` has inserted key `.1` with value `.2`. Returns a client for each
    /// node.
    pub(crate) fn open(cluster: &Cluster, options: KvOptions, there: &[(usize, u64, u64)]) -> Result<Vec<Client>> {
        let log = cluster.log();
        let opened = cluster.on_each(move |node| {
            let kv = Rc::new(Store::open(node, "kv", options.clone())?);
            Ok(Client { id: u32::from(node.id().0), kv, log: log.clone(), heard_at: Rc::new([]) })
        })?;
        let (clients, there) = (opened.clone(), there.to_vec());
        cluster.on_each(move |node| {
            let ep = node.endpoint()?;
            for (_, key, value) in there.iter().filter(|(home, ..)| *home == node.id().index()) {
                assert_eq!(ep.block_on(clients[node.id().index()].insert(&ep, *key, *value))?, Answer::Is(true));
            }
            Ok(())
        })?;
        Ok(opened)
    }

    pub(crate) async fn call<T>(
        &self,
        ep: &Endpoint,
        key: u64,
        input: KvInput,
        call: impl Future<Output = Result<T>>,
        output: impl Fn(&T) -> KvOutput,
    ) -> Result<Answer<T>> {
        let at = self.log.push(Entry::Called { client: self.id, key, input });
        let excuse = Excuse::now();
        match call.await {
            Ok(answer) => {
                self.log.push(Entry::Returned { call: at, output: output(&answer) });
                for (by, word) in &*self.heard_at {
                    if ep.get(*word).await.is_err() {
                        self.log.push(Entry::Unheard { call: at, by: *by });
                    }
                }
                Ok(Answer::Is(answer))
            }
            Err(error) if is_full(&error) => {
                self.log.push(Entry::Refused { call: at });
                Ok(Answer::Full)
            }
            Err(error) if matches!(error.kind(), ErrorKind::ValueLost { .. }) => {
                let by_the_dead = error.node() == Some(VICTIM) && crashed(VICTIM.index());
                assert!(by_the_dead || self.may_be_cut_off(), "{error}");
                // An earlier change may have taken effect.
                if input == KvInput::Get {
                    self.log.push(Entry::Refused { call: at });
                }
                Ok(Answer::Lost)
            }
            // In the middle of an insert there.
            Err(error) if error.is_gone() && error.node() == Some(VICTIM) => Ok(Answer::None),
            Err(error) if error.is_timeout() && excuse.is_given() => Ok(Answer::None),
            Err(error) if self.may_be_cut_off() && comes_of_faults(&error) => Ok(Answer::None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn may_be_cut_off(&self) -> bool {
        !self.heard_at.is_empty()
    }

    pub(crate) async fn get(&self, ep: &Endpoint, key: u64) -> Result<Answer<Option<u64>>> {
        let get = async { Ok(self.kv.get(ep, &key).await?.map(whole)) };
        self.call(ep, key, KvInput::Get, get, |found| KvOutput::Found(*found)).await
    }

    pub(crate) async fn get_many(&self, ep: &Endpoint, keys: &[u64]) -> Result<()> {
        let call = |key: &u64| self.log.push(Entry::Called { client: self.id, key: *key, input: KvInput::Get });
        let calls: Vec<usize> = keys.iter().map(call).collect();
        let mut found = Vec::new();
        self.kv.get_many(ep, keys, &mut found).await?;
        assert_eq!(found.len(), keys.len(), "an answer for each key");
        for (call, found) in calls.into_iter().zip(found) {
            self.log.push(Entry::Returned { call, output: KvOutput::Found(found?.map(whole)) });
        }
        Ok(())
    }

    pub(crate) async fn insert(&self, ep: &Endpoint, key: u64, value: u64) -> Result<Answer<bool>> {
        let insert = async { self.kv.insert(ep, &key, &[value; 2]).await };
        self.call(ep, key, KvInput::Insert(value), insert, |done| KvOutput::Succeeded(*done)).await
    }

    pub(crate) async fn update(&self, ep: &Endpoint, key: u64, value: u64) -> Result<Answer<bool>> {
        let update = async { self.kv.update(ep, &key, &[value; 2]).await };
        self.call(ep, key, KvInput::Update(value), update, |done| KvOutput::Succeeded(*done)).await
    }

    pub(crate) async fn upsert(&self, ep: &Endpoint, key: u64, value: u64) -> Result<Answer<()>> {
        let upsert = async { self.kv.upsert(ep, &key, &[value; 2]).await };
        self.call(ep, key, KvInput::Upsert(value), upsert, |()| KvOutput::Stored).await
    }

    pub(crate) async fn delete(&self, ep: &Endpoint, key: u64) -> Result<Answer<bool>> {
        let delete = async { self.kv.delete(ep, &key).await };
        self.call(ep, key, KvInput::Delete, delete, |done| KvOutput::Succeeded(*done)).await
    }

    /// Inserts as soon as a slot is free.
    pub(crate) async fn insert_when_free(&self, ep: &Endpoint, key: u64, value: u64) -> Result<()> {
        self.when_free(ep, async || {
            self.insert(ep, key, value).await.map(|answer| (answer != Answer::Full).then_some(()))
        })
        .await
    }

    /// Stores as soon as a slot is free, if the key needs one.
    pub(crate) async fn upsert_when_free(&self, ep: &Endpoint, key: u64, value: u64) -> Result<Answer<()>> {
        let upsert = async || Ok(Some(self.upsert(ep, key, value).await?).filter(|answer| *answer != Answer::Full));
        self.when_free(ep, upsert).await
    }

    /// Retries until a slot is free: a few times at once, and then when no other thread can make progress. A slot that
    /// another node's delete has freed is available once this node has heard of it.
    async fn when_free<T>(&self, ep: &Endpoint, call: impl AsyncFn() -> Result<Option<T>>) -> Result<T> {
        for round in 0.. {
            if let Some(done) = call().await? {
                return Ok(done);
            }
            assert!(round < 8, "no slot comes back");
            if round >= 2 {
                a_moment(ep).await;
            }
        }
        unreachable!("a loop without end")
    }
}

pub(super) fn is_full(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Full { .. })
}

/// The stored value. Panics if the value is torn.
pub(crate) fn whole(pair: Pair) -> u64 {
    assert_eq!(pair[0], pair[1], "a torn value was returned");
    pair[0]
}

/// At the end no operation is in flight: all nodes find the same values, and as many keys as there are. The history
/// with these last gets is linearizable.
pub(crate) fn linearizable(cluster: &Cluster, clients: &[Client], keys: &[u64]) {
    let (nodes, clients, keys) = (cluster.nodes(), clients.to_vec(), keys.to_vec());
    cluster.at_end(move || {
        let mut there = 0;
        for key in &keys {
            let ep = nodes[0].endpoint()?;
            // The holder of the key's lock has waited for all operations that were cut short.
            ep.block_on(clients[0].kv.modify(&ep, key, |_| None))?;
            let mut found = Vec::new();
            for (node, client) in nodes.iter().zip(&clients) {
                let ep = node.endpoint()?;
                found.push(ep.block_on(client.get(&ep, *key))?);
            }
            assert!(found.iter().all(|value| *value == found[0]), "key {key} has different values: {found:?}");
            there += usize::from(found[0] != Answer::Is(None));
        }
        for client in &clients {
            assert_eq!(client.kv.len(), there, "the keys in the index of node {}", client.id);
        }
        let history = history_of(&clients[0].log.take());
        if let Err(failure) = history.check_each_key(Default::default()) {
            panic!("{failure}");
        }
        Ok(())
    });
}

fn history_of(entries: &[Entry]) -> KvHistory {
    history_of_heard(entries, |_, _| true)
}

/// The history of the calls with answers that count. `is_heard` decides this by call and client.
pub(crate) fn history_of_heard(entries: &[Entry], is_heard: impl Fn(usize, u32) -> bool) -> KvHistory {
    let mut history = KvHistory::new();
    for (at, entry) in entries.iter().enumerate() {
        let Entry::Called { client, key, input } = entry else { continue };
        let mut ends = entries[at..].iter().zip(at as u64..).filter_map(|(entry, moment)| match entry {
            Entry::Returned { call, output } if *call == at => Some((moment, Some(*output))),
            Entry::Refused { call } if *call == at => Some((moment, None)),
            _ => None,
        });
        match ends.next() {
            Some((end, Some(output))) if is_heard(at, *client) => {
                history.record(*key, Event::returned(*client, at as u64, end, *input, output));
            }
            Some((_, None)) => {}
            _ => history.record(*key, Event::pending(*client, at as u64, *input)),
        }
    }
    history
}

/// After [`linearizable`]: the keys can be deleted, and then node 0 has all its slots again, each of them once.
pub(crate) fn all_slots_come_back(cluster: &Cluster, clients: &[Client], keys: &[u64]) {
    // All stores stay open, because a node that has closed the store acknowledges nothing.
    let (node, clients, keys) = (cluster.node(0), clients.to_vec(), keys.to_vec());
    cluster.at_end(move || {
        let (ep, client) = (node.endpoint()?, &clients[0]);
        ep.block_on(async {
            for key in &keys {
                client.kv.delete(&ep, key).await?;
            }
            let slots = client.kv.options().slots_per_node as u64;
            let insert = async |key: u64| client.kv.insert(&ep, &key, &[key; 2]).await;
            for key in 1000..1000 + slots {
                // A slot that another node has freed by a delete returns a moment later.
                while let Err(error) = insert(key).await {
                    assert!(is_full(&error), "{error}");
                    a_moment(&ep).await;
                }
            }
            assert!(insert(1000 + slots).await.is_err_and(|error| is_full(&error)), "a slot was freed twice");
            for key in 1000..1000 + slots {
                assert_eq!(client.kv.get(&ep, &key).await?, Some([key; 2]), "two keys have one slot");
            }
            Ok(())
        })
    });
}
