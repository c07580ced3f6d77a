//! All operations of a replicated store, on keys that all threads share. A minority of its memory nodes may die.

use farfield::swarm::SwarmStoreClient;
use farfield::{Endpoint, SwarmStore, SwarmStoreOptions};
use rand::RngExt;
use rand::rngs::SmallRng;

use super::{Load, Place, Thread, violation};
use crate::chaos::log::{Answer, Failure, KvOp, Op, Recorder};

/// Few keys, and room for few more: registers are used again all the time.
const KEYS: u64 = 20;
const ROOM: usize = 32;
/// The number of concurrent operations, in some of the steps.
const WINDOW: std::ops::RangeInclusive<usize> = 2..=4;
const WINDOW_SHARE: f64 = 0.15;

/// A value, with copies of a number that no other call writes.
type Wide = [u64; 8];

/// The memory nodes among some members: other ones in each generation, unless these are all.
pub(in crate::chaos) fn memory_of<N: Copy + PartialEq>(members: &[N], first: N) -> Vec<N> {
    let count = match members.len() {
        0..=2 => 1,
        3..=4 => 3,
        _ => 5,
    };
    let at = members.iter().position(|member| *member == first).unwrap_or(0);
    members.iter().cycle().skip(at).take(count).copied().collect()
}

pub(super) fn open(place: &mut Place<'_>) -> Result<Thread, Failure> {
    let mut options = SwarmStoreOptions::default();
    (options.keys, options.cached_keys) = (ROOM, KEYS as usize / 2);
    options.replicas.memory = memory_of(&place.members, place.homes[0]);
    options.replicas.spare_buffers = 8;
    let store = place.open("swarm", |node, path| SwarmStore::<u64, Wide>::open(node, path, options))?;
    let (endpoint, mut rng) = (place.endpoint()?, place.rng("swarm"));
    let thread = u64::from(place.node.id().0);
    Ok(Box::new(move |work| {
        let client = store.client(&endpoint).expect("it is the only one of its node");
        work(&mut SwarmLoad { client, endpoint: &endpoint, rng: &mut rng, thread, written: 0 });
    }))
}

struct SwarmLoad<'e> {
    client: SwarmStoreClient<'e, u64, Wide>,
    endpoint: &'e Endpoint,
    rng: &'e mut SmallRng,
    thread: u64,
    written: u64,
}

impl SwarmLoad<'_> {
    /// A number that no other call writes.
    fn value(&mut self) -> u64 {
        self.written += 1;
        (self.thread + 1) << 32 | self.written
    }

    async fn call(&self, log: &Recorder, key: u64, op: KvOp) {
        let client = &self.client;
        let call = async {
            Ok(match op {
                KvOp::Get => Answer::Found(client.get(&key).await?.map(|found| {
                    if found != [found[0]; 8] {
                        violation(format!("key {key} of the replicated store: torn: {found:?}"));
                    }
                    found[0]
                })),
                KvOp::Insert(value) => Answer::Changed(client.insert(&key, &[value; 8]).await?),
                KvOp::Update(value) => Answer::Changed(client.update(&key, &[value; 8]).await?),
                KvOp::Upsert(value) => client.upsert(&key, &[value; 8]).await.map(|()| Answer::Done)?,
                KvOp::Delete => client.delete(&key).await.map(|()| Answer::Done)?,
                KvOp::UpdateIf(value) => {
                    let mut replaced = None;
                    let passes = |found: &Wide| {
                        replaced = Some(found[0]).filter(|found| found.is_multiple_of(2));
                        replaced.is_some()
                    };
                    let is_updated = client.update_if(&key, passes, &[value; 8]).await?;
                    Answer::Found(replaced.filter(|_| is_updated))
                }
            })
        };
        let _ = log.call_among(Op::Swarm { key, op }, self.endpoint, call, Answer::clone).await;
    }

    fn choose(&mut self) -> (u64, KvOp) {
        let key = self.rng.random_range(0..KEYS);
        let op = match self.rng.random_range(0..100) {
            0..40 => KvOp::Get,
            40..55 => KvOp::Insert(self.value()),
            55..75 => KvOp::Update(self.value()),
            75..85 => KvOp::Upsert(self.value()),
            85..90 => KvOp::UpdateIf(self.value()),
            _ => KvOp::Delete,
        };
        (key, op)
    }
}

impl Load for SwarmLoad<'_> {
    fn step(&mut self, log: &mut Recorder) {
        let count = if self.rng.random_bool(WINDOW_SHARE) { self.rng.random_range(WINDOW) } else { 1 };
        let mut calls: Vec<(u64, KvOp)> = (0..count).map(|_| self.choose()).collect();
        if self.rng.random_bool(0.5) {
            // All on one key: they get in each other's way.
            let key = calls[0].0;
            calls.iter_mut().for_each(|call| call.0 = key);
        }
        let (this, log) = (&*self, &*log);
        let calls = calls.into_iter().map(|(key, op)| this.call(log, key, op));
        this.endpoint.run_window(count, calls, |()| {});
    }

    fn look(&mut self, log: &mut Recorder) {
        for key in 0..KEYS {
            // Judged from the log, like all other calls.
            self.endpoint.block_on(self.call(log, key, KvOp::Get));
        }
    }
}
