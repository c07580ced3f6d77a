//! The key-value store is linearizable under any concurrent operations, even if some of them are cut short.
//!
//! Clients record their calls in a history. Its clock is the log: adding an entry takes a position in the order of the
//! execution. At the end, the history must be linearizable together with the values that every node then finds.

mod goes;

use std::hash::BuildHasher;
use std::rc::Rc;
use std::time::Duration;

use farfield::fabric::{Instant, RemotePtr};
use farfield::history::Event;
use farfield::history::kv::{KvHistory, KvInput, KvOutput};
use farfield::{Endpoint, Error, ErrorKind, KvOptions, KvStore, NodeId, Placement, Result};
use foldhash::fast::FixedState;

use super::death::comes_of_faults;
use super::mutex::{cut, word};
use crate::scenario::{Log, Scenario, Stage, choose, crashed};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        update(),
        torn(),
        insert(),
        inserted(),
        found(),
        delete(),
        upsert(),
        modify(),
        reused(),
        reused_elsewhere(),
        handed_on(),
        handed_on_elsewhere(),
        window(),
        by_hash(),
        traffic(),
        cut_insert(),
        cut_delete(),
        cut_delete_elsewhere(),
        cut_slot(),
        timeout(),
        goes::dies(),
        goes::dies_by_hash(),
        goes::is_cut_off(),
        goes::is_cut_off_by_hash(),
    ]
}

/// A value of two words, which a reader may find torn.
type Pair = [u64; 2];
type Store = KvStore<u64, Pair>;

/// As small as a store can be.
fn tiny() -> KvOptions {
    KvOptions { slots_per_node: 2, locks: 1, tracker_bytes: 128, ..KvOptions::default() }
}

/// The store's hash of a key. Its upper half selects the key's lock; the hash also selects the node.
fn hash_of(key: u64) -> u64 {
    FixedState::with_seed(0x6661_7266_6965_6c64).hash_one(key)
}

/// The lowest keys with hashes that satisfy the conditions.
fn keys<const N: usize>(wanted: [fn(u64) -> bool; N]) -> [u64; N] {
    let mut next = 1;
    wanted.map(|wanted| {
        let found = (next..).find(|key| wanted(hash_of(*key))).expect("half of all keys are as wanted");
        next = found + 1;
        found
    })
}

/// With two locks.
fn first_lock(hash: u64) -> bool {
    (hash >> 32).is_multiple_of(2)
}
fn second_lock(hash: u64) -> bool {
    !first_lock(hash)
}

/// With two nodes and [`Placement::Hash`].
fn on_node_1(hash: u64) -> bool {
    hash % 2 == 1
}

enum Entry {
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
struct Client {
    id: u32,
    kv: Rc<Store>,
    log: Log<Entry>,
    /// Where nodes may be cut off: a word on each other node. The client gets all of them after an answer, see
    /// [`Entry::Unheard`].
    heard_at: Rc<[(usize, RemotePtr<u64>)]>,
}

/// The result of a call: an answer; no room; the value is lost; or no answer in time, so that it is unknown whether the
/// call has taken effect.
#[derive(PartialEq, Debug)]
enum Answer<T> {
    Is(T),
    Full,
    Lost,
    None,
}

impl Client {
    /// Opens a store on all nodes, in which node `.0` has inserted key `.1` with value `.2`. Returns a client for each
    /// node.
    fn open(stage: &Stage, options: KvOptions, there: &[(usize, u64, u64)]) -> Result<Vec<Client>> {
        let log = stage.log();
        let opened = stage.on_each(move |node| {
            let kv = Rc::new(Store::open(node, "kv", options.clone())?);
            Ok(Client { id: u32::from(node.id().0), kv, log: log.clone(), heard_at: Rc::new([]) })
        })?;
        let (clients, there) = (opened.clone(), there.to_vec());
        stage.on_each(move |node| {
            let ep = node.endpoint()?;
            for (_, key, value) in there.iter().filter(|(home, ..)| *home == node.id().index()) {
                assert_eq!(ep.block_on(clients[node.id().index()].insert(&ep, *key, *value))?, Answer::Is(true));
            }
            Ok(())
        })?;
        Ok(opened)
    }

    async fn call<T>(
        &self,
        ep: &Endpoint,
        key: u64,
        input: KvInput,
        call: impl Future<Output = Result<T>>,
        output: impl Fn(&T) -> KvOutput,
    ) -> Result<Answer<T>> {
        let at = self.log.push(Entry::Called { client: self.id, key, input });
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
            Err(error) if matches!(error.kind(), ErrorKind::Lost { .. }) => {
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
            Err(error) if error.is_timeout() || self.may_be_cut_off() && comes_of_faults(&error) => Ok(Answer::None),
            Err(error) => Err(error),
        }
    }

    fn may_be_cut_off(&self) -> bool {
        !self.heard_at.is_empty()
    }

    async fn get(&self, ep: &Endpoint, key: u64) -> Result<Answer<Option<u64>>> {
        let get = async { Ok(self.kv.get(ep, &key).await?.map(whole)) };
        self.call(ep, key, KvInput::Get, get, |found| KvOutput::Found(*found)).await
    }

    async fn get_many(&self, ep: &Endpoint, keys: &[u64]) -> Result<()> {
        let call = |key: &u64| self.log.push(Entry::Called { client: self.id, key: *key, input: KvInput::Get });
        let calls: Vec<usize> = keys.iter().map(call).collect();
        let mut found = Vec::new();
        self.kv.get_many(ep, keys, &mut found).await?;
        for (call, found) in calls.into_iter().zip(found) {
            self.log.push(Entry::Returned { call, output: KvOutput::Found(found?.map(whole)) });
        }
        Ok(())
    }

    async fn insert(&self, ep: &Endpoint, key: u64, value: u64) -> Result<Answer<bool>> {
        let insert = async { self.kv.insert(ep, &key, &[value; 2]).await };
        self.call(ep, key, KvInput::Insert(value), insert, |done| KvOutput::Succeeded(*done)).await
    }

    async fn update(&self, ep: &Endpoint, key: u64, value: u64) -> Result<Answer<bool>> {
        let update = async { self.kv.update(ep, &key, &[value; 2]).await };
        self.call(ep, key, KvInput::Update(value), update, |done| KvOutput::Succeeded(*done)).await
    }

    async fn upsert(&self, ep: &Endpoint, key: u64, value: u64) -> Result<Answer<()>> {
        let upsert = async { self.kv.upsert(ep, &key, &[value; 2]).await };
        self.call(ep, key, KvInput::Upsert(value), upsert, |()| KvOutput::Stored).await
    }

    async fn delete(&self, ep: &Endpoint, key: u64) -> Result<Answer<bool>> {
        let delete = async { self.kv.delete(ep, &key).await };
        self.call(ep, key, KvInput::Delete, delete, |done| KvOutput::Succeeded(*done)).await
    }

    /// Retries until a slot is free: a few times at once, and then when no other thread can make progress.
    async fn insert_when_free(&self, ep: &Endpoint, key: u64, value: u64) -> Result<()> {
        for round in 0.. {
            if self.insert(ep, key, value).await? != Answer::Full {
                break;
            }
            assert!(round < 8, "no slot comes back");
            if round >= 2 {
                a_moment(ep).await;
            }
        }
        Ok(())
    }
}

/// Runs a call, or drops it between two of its polls.
fn cut_short<T>(ep: &Endpoint, call: impl Future<Output = Result<T>>) -> Result<()> {
    ep.block_on(cut(choose(8), call)).map_or(Ok(()), |done| done.map(drop))
}

/// Time passes only when no thread can make progress.
async fn a_moment(ep: &Endpoint) {
    let _ = ep.wait_until(ep.now() + Duration::from_millis(1), || None::<()>).await;
}

fn is_full(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Full { .. })
}

/// The stored value. Panics if the value is torn.
fn whole(pair: Pair) -> u64 {
    assert_eq!(pair[0], pair[1], "a torn value was returned");
    pair[0]
}

/// At the end no operation is in flight: all nodes find the same values, and as many keys as there are. The history
/// with these last gets is linearizable.
fn linearizable(stage: &Stage, clients: &[Client], keys: &[u64]) {
    let (nodes, clients, keys) = (stage.nodes(), clients.to_vec(), keys.to_vec());
    stage.finally(move || {
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
fn history_of_heard(entries: &[Entry], is_heard: impl Fn(usize, u32) -> bool) -> KvHistory {
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
fn all_slots_come_back(stage: &Stage, clients: &[Client], keys: &[u64]) {
    // All stores stay open, because a node that has closed the store acknowledges nothing.
    let (node, clients, keys) = (stage.node(0), clients.to_vec(), keys.to_vec());
    stage.finally(move || {
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

/// `NRW` of the value against the `NAW` of the release, on two queue pairs: the lock is on node 0, the value on node 1.
/// A get after the update, and the update after it, must find the new value. For `kv-update-no-fence`,
/// `kv-torn-is-absent`.
fn update() -> Scenario {
    Scenario::new("kv/update", "an update is seen by the gets and updates after it", 2, |stage| {
        let clients = Client::open(stage, tiny(), &[(1, 1, 1)])?;
        let (near, far) = (clients[0].clone(), clients[1].clone());
        stage.thread(0, "updates", move |ep| ep.block_on(near.update(ep, 1, 2)).map(drop));
        stage.thread(1, "gets", move |ep| {
            ep.block_on(far.get(ep, 1))?;
            ep.block_on(far.update(ep, 1, 3)).map(drop)
        });
        linearizable(stage, &clients, &[1]);
        Ok(())
    })
    .kills(&["kv-update-no-fence"])
}

/// A get reads a slot word by word while another node's put lands word by word. For `kv-sum-ignored`,
/// `kv-torn-is-absent`.
fn torn() -> Scenario {
    Scenario::new("kv/torn", "a get finds the value from before an update or from after it, whole", 2, |stage| {
        let clients = Client::open(stage, tiny(), &[(0, 1, 1)])?;
        let (near, far) = (clients[0].clone(), clients[1].clone());
        stage.thread(0, "updates", move |ep| ep.block_on(near.update(ep, 1, 2)).map(drop));
        stage.thread(1, "gets", move |ep| ep.block_on(far.get(ep, 1)).map(drop));
        linearizable(stage, &clients, &[1]);
        Ok(())
    })
    .kills(&["kv-torn-is-absent", "kv-sum-ignored"])
}

/// Every index against the `CW` of valid: once one get hits, none misses. For `kv-valid-early`.
fn insert() -> Scenario {
    Scenario::new("kv/insert", "once a get has found a new key, no get anywhere misses it", 2, |stage| {
        let clients = Client::open(stage, tiny(), &[])?;
        let (inserts, near, far) = (clients[0].clone(), clients[0].clone(), clients[1].clone());
        stage.thread(0, "inserts", move |ep| ep.block_on(inserts.insert(ep, 1, 1)).map(drop));
        stage.thread(0, "gets", move |ep| ep.block_on(near.get(ep, 1)).map(drop));
        stage.thread(1, "gets", move |ep| {
            ep.block_on(far.get(ep, 1))?;
            ep.block_on(far.get(ep, 1)).map(drop)
        });
        linearizable(stage, &clients, &[1]);
        Ok(())
    })
    .kills(&["kv-valid-early"])
}

/// The index of another node, `CW`s of its service thread, against the `NRW` of the acknowledgement. For
/// `kv-ack-before-apply`.
fn inserted() -> Scenario {
    Scenario::new("kv/inserted", "who is told of an insert finds the key", 2, |stage| {
        let clients = Client::open(stage, tiny(), &[])?;
        let (near, far, told) = (clients[0].clone(), clients[1].clone(), word(stage, 1, "told")?);
        let tell = told.remote::<u64>(0);
        stage.thread(0, "inserts", move |ep| {
            ep.block_on(near.insert(ep, 1, 1))?;
            ep.put_value(tell, 1).wait().map_err(Into::into)
        });
        stage.thread(1, "gets", move |ep| {
            ep.block_on(ep.wait_until(Instant::NEVER, || (told.word(0).load() == 1).then_some(())))?;
            ep.block_on(far.get(ep, 1)).map(drop)
        });
        linearizable(stage, &clients, &[1]);
        Ok(())
    })
    .kills(&["kv-ack-before-apply"])
}

/// The inserter's own index against the `CW` of valid, which another node's get may see at once. For
/// `kv-own-index-last`.
fn found() -> Scenario {
    Scenario::new("kv/found", "a key that another node has found is found on the inserter's", 2, |stage| {
        let clients = Client::open(stage, tiny(), &[])?;
        let (inserts, near, far) = (clients[0].clone(), clients[0].clone(), clients[1].clone());
        let told = word(stage, 0, "told")?;
        let tell = told.remote::<u64>(0);
        stage.thread(0, "inserts", move |ep| ep.block_on(inserts.insert(ep, 1, 1)).map(drop));
        stage.thread(0, "gets", move |ep| {
            ep.block_on(ep.wait_until(Instant::NEVER, || (told.word(0).load() == 1).then_some(())))?;
            ep.block_on(near.get(ep, 1)).map(drop)
        });
        stage.thread(1, "gets", move |ep| {
            for _ in 0..6 {
                if ep.block_on(far.get(ep, 1))? == Answer::Is(Some(1)) {
                    break;
                }
            }
            ep.put_value(tell, 1).wait().map_err(Into::into)
        });
        linearizable(stage, &clients, &[1]);
        Ok(())
    })
    .kills(&["kv-own-index-last"])
}

/// `NRW` of the cleared meta word, by the deleter's endpoint, against the trackers' `NRW`s, by another: once one get
/// misses, none hits. For `kv-delete-not-flushed`.
fn delete() -> Scenario {
    Scenario::new("kv/delete", "once a get has missed a deleted key, no get anywhere finds it", 2, |stage| {
        let clients = Client::open(stage, tiny(), &[(1, 1, 1)])?;
        let (deletes, near, far) = (clients[0].clone(), clients[0].clone(), clients[1].clone());
        stage.thread(0, "deletes", move |ep| ep.block_on(deletes.delete(ep, 1)).map(drop));
        stage.thread(0, "gets", move |ep| ep.block_on(near.get(ep, 1)).map(drop));
        stage.thread(1, "gets", move |ep| {
            ep.block_on(far.get(ep, 1))?;
            ep.block_on(far.get(ep, 1)).map(drop)
        });
        linearizable(stage, &clients, &[1]);
        Ok(())
    })
    .kills(&["kv-delete-not-flushed"])
}

/// An upsert of one node against an insert and a delete of another: it updates what the one has inserted, or inserts
/// anew, in another slot.
fn upsert() -> Scenario {
    Scenario::new("kv/upsert", "upserts on one node, an insert and a delete on another", 2, |stage| {
        let clients = Client::open(stage, tiny(), &[])?;
        let (near, far) = (clients[0].clone(), clients[1].clone());
        stage.thread(0, "upserts", move |ep| {
            ep.block_on(near.upsert(ep, 1, 1))?;
            ep.block_on(near.upsert(ep, 1, 2)).map(drop)
        });
        stage.thread(1, "inserts", move |ep| {
            ep.block_on(far.insert(ep, 1, 3))?;
            ep.block_on(far.delete(ep, 1)).map(drop)
        });
        linearizable(stage, &clients, &[1]);
        Ok(())
    })
}

/// A read and a write as one operation: increments of two nodes, of a key that is not there at first.
fn modify() -> Scenario {
    Scenario::new("kv/modify", "no increment of two nodes is lost", 2, |stage| {
        let clients = Client::open(stage, tiny(), &[])?;
        for (node, client) in clients.iter().cloned().enumerate() {
            stage.thread(node, "adds", move |ep| {
                let add = |before: Option<&Pair>| Some([before.copied().map_or(0, whole) + 1; 2]);
                ep.block_on(client.kv.modify(ep, &1, add)).map(drop)
            });
        }
        let (node, client) = (stage.node(1), clients[1].clone());
        stage.finally(move || {
            let ep = node.endpoint()?;
            assert_eq!(ep.block_on(client.kv.get(&ep, &1))?, Some([2; 2]), "the sum of the increments");
            Ok(())
        });
        Ok(())
    })
}

/// A slot is used again while a get has looked up its earlier use: the words that the get reads one by one must not
/// yield another key's value. For `kv-uses-not-counted`, `kv-sum-unseeded`.
fn reused() -> Scenario {
    Scenario::new("kv/reused", "a get of a deleted key does not find the next key of its slot", 1, |stage| {
        let clients = Client::open(stage, KvOptions { slots_per_node: 1, ..tiny() }, &[(0, 1, 1)])?;
        let (deletes, gets) = (clients[0].clone(), clients[0].clone());
        stage.thread(0, "deletes", move |ep| {
            ep.block_on(deletes.delete(ep, 1))?;
            ep.block_on(deletes.insert(ep, 2, 2)).map(drop)
        });
        stage.thread(0, "gets", move |ep| ep.block_on(gets.get(ep, 1)).map(drop));
        linearizable(stage, &clients, &[1, 2]);
        Ok(())
    })
    .small()
    .kills(&["kv-uses-not-counted", "kv-sum-unseeded"])
}

/// The same for a get from another node, alone and as one of many: that node's index drops the key only when the
/// message arrives. For `kv-uses-not-counted`.
fn reused_elsewhere() -> Scenario {
    Scenario::new("kv/reused-elsewhere", "gets from another node tell the uses of a slot apart", 2, |stage| {
        let clients = Client::open(stage, KvOptions { slots_per_node: 1, ..tiny() }, &[(0, 1, 1)])?;
        let (deletes, gets) = (clients[0].clone(), clients[1].clone());
        stage.thread(0, "deletes", move |ep| {
            ep.block_on(deletes.delete(ep, 1))?;
            ep.block_on(deletes.insert(ep, 2, 2)).map(drop)
        });
        stage.thread(1, "gets", move |ep| match choose(2) {
            0 => ep.block_on(gets.get(ep, 1)).map(drop),
            _ => ep.block_on(gets.get_many(ep, &[2, 1])),
        });
        linearizable(stage, &clients, &[1, 2]);
        Ok(())
    })
}

/// Two keys with different locks share one slot: a delete frees it, and an insert of another thread uses it. No
/// operation of the first takes effect after the second. For `kv-freed-first`.
fn handed_on() -> Scenario {
    Scenario::new("kv/handed-on", "a slot goes from one thread's delete to another's insert", 1, |stage| {
        let [old, new] = keys([first_lock, second_lock]);
        let clients = Client::open(stage, KvOptions { slots_per_node: 1, locks: 2, ..tiny() }, &[(0, old, 1)])?;
        let (deletes, inserts) = (clients[0].clone(), clients[0].clone());
        stage.thread(0, "deletes", move |ep| ep.block_on(deletes.delete(ep, old)).map(drop));
        stage.thread(0, "inserts", move |ep| ep.block_on(inserts.insert_when_free(ep, new, 2)));
        linearizable(stage, &clients, &[old, new]);
        Ok(())
    })
    .small()
    .kills(&["kv-freed-first"])
}

/// The same with the delete on another node: its put of the cleared meta word lands before the slot's next use is
/// written. For `kv-delete-not-flushed`.
fn handed_on_elsewhere() -> Scenario {
    Scenario::new("kv/handed-on-elsewhere", "a slot goes from one node's delete to another's insert", 2, |stage| {
        let [old, new] = keys([first_lock, second_lock]);
        let clients = Client::open(stage, KvOptions { slots_per_node: 1, locks: 2, ..tiny() }, &[(0, old, 1)])?;
        let (inserts, deletes) = (clients[0].clone(), clients[1].clone());
        stage.thread(0, "inserts", move |ep| ep.block_on(inserts.insert_when_free(ep, new, 2)));
        stage.thread(1, "deletes", move |ep| ep.block_on(deletes.delete(ep, old)).map(drop));
        linearizable(stage, &clients, &[old, new]);
        Ok(())
    })
}

/// Two concurrent operations of one thread, on keys with different locks, through one tracker.
fn window() -> Scenario {
    Scenario::new("kv/window", "several operations of one thread, and gets elsewhere", 2, |stage| {
        let [a, b] = keys([first_lock, second_lock]);
        let clients = Client::open(stage, KvOptions { locks: 2, ..tiny() }, &[(1, a, 1)])?;
        let (changes, gets) = (clients[0].clone(), clients[1].clone());
        stage.thread(0, "changes", move |ep| {
            let change = async |at: u64| -> Result<()> {
                match at {
                    0 => changes.delete(ep, a).await.map(drop),
                    1 => changes.insert(ep, b, 2).await.map(drop),
                    2 => changes.upsert(ep, a, 3).await.map(drop),
                    _ => changes.update(ep, b, 4).await.map(drop),
                }
            };
            let mut ended = Ok(());
            ep.run_window(2, (0..2).map(&change), |result| ended = ended.clone().and(result));
            ep.run_window(2, (2..4).map(&change), |result| ended = ended.clone().and(result));
            ended
        });
        stage.thread(1, "gets", move |ep| {
            ep.block_on(gets.get_many(ep, &[b, a]))?;
            ep.block_on(gets.get_many(ep, &[a, b]))
        });
        linearizable(stage, &clients, &[a, b]);
        Ok(())
    })
}

/// Values on another node than the inserter's: puts write the slot, make it valid and clear it. They run against the
/// puts of the trackers and the lock, to other nodes.
fn by_hash() -> Scenario {
    Scenario::new(
        "kv/by-hash",
        "keys whose values lie on another node than their inserter's and their lock",
        2,
        |stage| {
            let [a] = keys([on_node_1]);
            let options = KvOptions { placement: Placement::Hash, ..tiny() };
            let clients = Client::open(stage, options, &[])?;
            let (near, far) = (clients[0].clone(), clients[1].clone());
            stage.thread(0, "changes", move |ep| {
                ep.block_on(near.insert(ep, a, 1))?;
                ep.block_on(near.update(ep, a, 2))?;
                ep.block_on(near.delete(ep, a)).map(drop)
            });
            stage.thread(1, "gets", move |ep| {
                ep.block_on(far.get(ep, a))?;
                ep.block_on(far.update(ep, a, 3))?;
                ep.block_on(far.get(ep, a)).map(drop)
            });
            linearizable(stage, &clients, &[a]);
            Ok(())
        },
    )
}

/// Any operations against each other: two nodes choose among all operations, and three keys, two of which share a lock.
fn traffic() -> Scenario {
    Scenario::new("kv/traffic", "any operations of two nodes on a few keys", 2, |stage| {
        let keys = keys([first_lock, first_lock, second_lock]);
        let clients = Client::open(stage, KvOptions { locks: 2, ..tiny() }, &[(0, keys[0], 1)])?;
        for (node, client) in clients.iter().cloned().enumerate() {
            stage.thread(node, "client", move |ep| {
                for round in 1..=2 {
                    let (key, value) = (keys[choose(3)], 10 * round + node as u64);
                    ep.block_on(async {
                        match choose(6) {
                            0 => client.get(ep, key).await.map(drop),
                            1 => client.insert(ep, key, value).await.map(drop),
                            2 => client.update(ep, key, value).await.map(drop),
                            3 => client.upsert(ep, key, value).await.map(drop),
                            4 => client.get_many(ep, &keys).await,
                            _ => client.delete(ep, key).await.map(drop),
                        }
                    })?;
                }
                Ok(())
            });
        }
        linearizable(stage, &clients, &keys);
        all_slots_come_back(stage, &clients, &keys);
        Ok(())
    })
}

/// An insert that is dropped between any two of its polls, and another node's insert of the same key. Trackers of
/// different nodes are not ordered, so the key stays locked until the first insert is undone on all nodes. For
/// `kv-released-before-dropped`.
fn cut_insert() -> Scenario {
    Scenario::new(
        "kv/cut-insert",
        "a key whose insert was dropped at any moment can be inserted elsewhere",
        2,
        |stage| {
            let clients = Client::open(stage, tiny(), &[])?;
            let (cuts, inserts) = (clients[0].clone(), clients[1].clone());
            stage.thread(0, "cuts", move |ep| cut_short(ep, cuts.insert(ep, 1, 1)));
            stage.thread(1, "inserts", move |ep| {
                ep.block_on(inserts.insert(ep, 1, 2))?;
                ep.block_on(inserts.get(ep, 1)).map(drop)
            });
            linearizable(stage, &clients, &[1]);
            all_slots_come_back(stage, &clients, &[1]);
            Ok(())
        },
    )
    .kills(&["kv-released-before-dropped"])
}

/// A delete that is dropped between any two of its polls: it is completed, or has not begun, and the slot is freed
/// once.
fn cut_delete() -> Scenario {
    let about = "a delete that is dropped at any moment is completed, or has not begun";
    Scenario::new("kv/cut-delete", about, 2, |stage| cut_delete_of(stage, 0))
}

/// The same on another node than the slot's, which returns the slot by a message.
fn cut_delete_elsewhere() -> Scenario {
    let about = "the slot of a delete that is dropped on another node comes back, once";
    Scenario::new("kv/cut-delete-elsewhere", about, 2, |stage| cut_delete_of(stage, 1))
}

fn cut_delete_of(stage: &Stage, deleter: usize) -> Result<()> {
    let clients = Client::open(stage, tiny(), &[(0, 1, 1)])?;
    let (cuts, inserts) = (clients[deleter].clone(), clients[1 - deleter].clone());
    stage.thread(deleter, "cuts", move |ep| cut_short(ep, cuts.delete(ep, 1)));
    stage.thread(1 - deleter, "inserts", move |ep| {
        ep.block_on(inserts.get(ep, 1))?;
        ep.block_on(inserts.insert(ep, 1, 2)).map(drop)
    });
    linearizable(stage, &clients, &[1]);
    all_slots_come_back(stage, &clients, &[1]);
    Ok(())
}

/// `NRW`s of the user's endpoint against those of the service thread's, to one slot: the puts of an insert that was
/// dropped land before the slot is cleared and used again. For `kv-hand-over-unfenced`.
fn cut_slot() -> Scenario {
    Scenario::new("kv/cut-slot", "the slot of an insert that was dropped is another key's, and only its", 2, |stage| {
        let [old, new] =
            keys([|hash| on_node_1(hash) && first_lock(hash), |hash| on_node_1(hash) && second_lock(hash)]);
        let options = KvOptions { placement: Placement::Hash, locks: 2, ..tiny() };
        let clients = Client::open(stage, options, &[])?;
        let (cuts, inserts) = (clients[0].clone(), clients[0].clone());
        stage.thread(0, "cuts", move |ep| {
            cut_short(ep, cuts.insert(ep, old, 1))?;
            ep.block_on(cuts.delete(ep, old)).map(drop)
        });
        stage.thread(0, "inserts", move |ep| ep.block_on(inserts.insert_when_free(ep, new, 2)));
        linearizable(stage, &clients, &[old, new]);
        Ok(())
    })
    .kills(&["kv-hand-over-unfenced"])
}

/// Deadlines that pass at any moment: for the lock, for room in the tracker, for acknowledgements. A change without an
/// answer has happened or not, the same on all nodes, and the key can be used again.
fn timeout() -> Scenario {
    Scenario::new("kv/timeout", "changes that time out at any moment have happened, or not, on all nodes", 2, |stage| {
        let clients = Client::open(stage, tiny(), &[])?;
        for (node, client) in clients.iter().cloned().enumerate() {
            stage.thread(node, "changes", move |ep| {
                ep.set_timeout(Duration::from_millis(30));
                ep.block_on(async {
                    client.insert(ep, 1, 1 + node as u64).await?;
                    if node == 0 {
                        client.delete(ep, 1).await?;
                    }
                    client.get(ep, 1).await.map(drop)
                })
            });
        }
        linearizable(stage, &clients, &[1]);
        all_slots_come_back(stage, &clients, &[1]);
        Ok(())
    })
    .early_timeouts()
}

/// The node that dies, in scenarios where one dies.
const VICTIM: NodeId = NodeId(1);
