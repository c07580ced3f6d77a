//! Locks, of another kind in each generation. Each protects two words, on one node or on two. The words are equal
//! unless a holder has died between the two writes, which the lock reports.

use std::sync::Arc;
use std::time::Duration;

use farfield::fabric::{GroupKey, RemotePtr};
use farfield::toolkit::{Object, ObjectBuilder};
use farfield::{ALockOptions, Endpoint, LockArray, LockGuard, LockOptions, LockTable, TableGuard};
use rand::RngExt;
use rand::rngs::SmallRng;

use super::{Load, Place};
use crate::chaos::log::{Answer, Failure, Op, Recorder};

/// How long a holder lingers between the two words, at times: so that some die there.
const LINGER: Duration = Duration::from_millis(4);
const LINGER_SHARE: f64 = 0.25;
/// The number of concurrent operations, in some of the steps.
const WINDOW: std::ops::RangeInclusive<u64> = 2..=4;
const WINDOW_SHARE: f64 = 0.15;

pub(super) struct LocksLoad {
    /// The pairs on nodes that are alive, as far as is known.
    pairs: Vec<Pair>,
    endpoint: Endpoint,
    rng: SmallRng,
    turns: u64,
}

/// A lock and its two words.
struct Pair {
    number: u16,
    locks: Arc<LockTable>,
    words: [RemotePtr<u64>; 2],
    object: Object,
}

/// Operations of a node on the locks of a generation. This includes operations that end while a node is unreachable: it
/// is unknown whether those have entered a queue.
const OPERATIONS_MAX: usize = 1024;

impl LocksLoad {
    pub(super) fn open(place: &mut Place<'_>) -> Result<LocksLoad, Failure> {
        let mut pairs = Vec::new();
        let alock = ALockOptions { operations_max: OPERATIONS_MAX, ..ALockOptions::default() };
        let (options, members) = (LockOptions { kind: place.locks, alock }, place.members.len());
        let locks = place.open("locks", |node, path| LockTable::open(node, path, 2 * members, options))?;
        let locks = Arc::new(locks);
        // For every home, one lock that needs only its home, and one that needs the next node, too.
        let homes = place.homes.clone();
        for number in 0..2 * members {
            let home = locks.home(number);
            let Some(at) = homes.iter().position(|node| *node == home) else { continue };
            let second = if number < members { home } else { homes[(at + 1) % homes.len()] };
            let (number, locks) = (number as u16, Arc::clone(&locks));
            pairs.push(place.open(&format!("pair/{number}"), |node, path| {
                let mut opening = ObjectBuilder::new(node, path, "Pair");
                if [home, second].contains(&node.id()) {
                    opening = opening.region("words", node.alloc(GroupKey::DATA, 16)?);
                }
                let needs =
                    move |peer| if [home, second].contains(&peer) { vec![("words".into(), 16)] } else { vec![] };
                let object = opening.require_regions(needs).announce()?;
                object.wait(node.timeout())?;
                let words = [object.remote(home, "words")?, object.remote::<u64>(second, "words")?.at(1)];
                Ok(Pair { number, locks, words, object })
            })?);
        }
        Ok(LocksLoad { pairs, endpoint: place.endpoint()?, rng: place.rng("locks"), turns: 0 })
    }
}

impl Pair {
    /// Takes the lock, adds one to both words, and releases it.
    async fn add(&self, log: &Recorder, endpoint: &Endpoint, turn: u64, linger: Duration) -> Result<(), Failure> {
        let lock = self.number;
        let held = |guard: &TableGuard<'_>| Answer::Held { is_poisoned: guard.is_poisoned() };
        let take = self.locks.lock(endpoint, usize::from(lock));
        let mut guard = log.call_among(Op::Lock { lock, turn }, endpoint, take, held).await?;
        let changed = self.change(log, endpoint, turn, guard.is_poisoned(), linger).await;
        if changed.is_ok() {
            guard.clear_poison();
        }
        let unlock = log.call_among(Op::Unlock { lock, turn }, endpoint, guard.unlock(), |()| Answer::Done);
        changed.and(unlock.await)
    }

    async fn change(
        &self,
        log: &Recorder,
        endpoint: &Endpoint,
        turn: u64,
        is_poisoned: bool,
        linger: Duration,
    ) -> Result<(), Failure> {
        let lock = self.number;
        let named = |error: farfield::fabric::Error| farfield::Error::from(error).of(self.object.path());
        let look = async {
            let (first, second) = (endpoint.get(self.words[0]), endpoint.get(self.words[1]));
            Ok([first.await.map_err(named)?, second.await.map_err(named)?])
        };
        let from = log.call_among(Op::Look { lock, turn }, endpoint, look, |words| Answer::Words(*words)).await?;
        let to = if is_poisoned {
            // Repaired: both words are as if the dead holder had completed.
            [from[0].max(from[1]) + 1; 2]
        } else {
            from.map(|word| word + 1)
        };
        let change = async {
            // Not a fence: the release has to make them visible.
            endpoint.put_value(self.words[0], to[0]).await.map_err(named)?;
            std::thread::sleep(linger);
            endpoint.put_value(self.words[1], to[1]).await.map_err(named)
        };
        log.call_among(Op::Change { lock, turn, from, to }, endpoint, change, |()| Answer::Done).await
    }
}

impl Load for LocksLoad {
    fn step(&mut self, log: &mut Recorder) {
        if self.pairs.is_empty() {
            return;
        }
        let at = self.rng.random_range(0..self.pairs.len());
        let linger = if self.rng.random_bool(LINGER_SHARE) { LINGER } else { Duration::ZERO };
        let count = if self.rng.random_bool(WINDOW_SHARE) { self.rng.random_range(WINDOW) } else { 1 };
        let first = self.turns;
        self.turns += count;
        let (pair, log, endpoint, mut is_gone) = (&self.pairs[at], &*log, &self.endpoint, false);
        // They queue for the same lock: if this node dies, it leaves several waiters.
        let these = (first..self.turns).map(|turn| pair.add(log, endpoint, turn, linger));
        endpoint.run_window(count as usize, these, |done| is_gone |= done.is_err_and(|failure| failure.is_death()));
        if is_gone {
            self.pairs.swap_remove(at);
        }
    }

    fn look(&mut self, log: &mut Recorder) {
        for pair in &self.pairs {
            // Its changes are judged like all others.
            let _ = self.endpoint.block_on(pair.add(log, &self.endpoint, self.turns, Duration::ZERO));
            self.turns += 1;
        }
    }
}
