//! Locks that each protect two words, on one node or on two: they are equal unless a holder has died between writing
//! one and the other, of which the lock tells.

use std::time::Duration;

use farfield::fabric::{GroupKey, RemotePtr};
use farfield::{CustomObject, Endpoint, Mutex, Opening};
use rand::RngExt;
use rand::rngs::SmallRng;

use super::{Load, Place};
use crate::chaos::log::{Answer, Failure, Op, Recorder};

/// How long a holder lingers between the two words, at times: so that some die there.
const LINGER: Duration = Duration::from_millis(4);
const LINGER_SHARE: f64 = 0.25;
/// So many operations are under way at once, in so many of the steps.
const WINDOW: std::ops::RangeInclusive<u64> = 2..=4;
const WINDOW_SHARE: f64 = 0.15;

pub(super) struct MutexLoad {
    /// Those whose nodes live, as far as is known.
    pairs: Vec<Pair>,
    endpoint: Endpoint,
    rng: SmallRng,
    turns: u64,
}

/// A lock and what it protects.
struct Pair {
    number: u16,
    mutex: Mutex,
    words: [RemotePtr<u64>; 2],
    object: CustomObject,
}

impl MutexLoad {
    pub(super) fn open(place: &mut Place<'_>) -> Result<MutexLoad, Failure> {
        let mut pairs = Vec::new();
        // One that needs this node only, and one that needs the next, too, for every home.
        let homes = place.homes.clone();
        let next = homes.iter().cycle().skip(1);
        let places = homes.iter().zip(next).flat_map(|(home, next)| [[*home, *home], [*home, *next]]);
        for (number, [home, second]) in (0..).zip(places) {
            let mutex = place.open(&format!("mutex/{number}"), |node, path| Mutex::open(node, path, home))?;
            pairs.push(place.open(&format!("pair/{number}"), |node, path| {
                let mut opening = Opening::new(node, path, "Pair");
                if [home, second].contains(&node.id()) {
                    opening = opening.region("words", node.alloc(GroupKey::DATA, 16)?);
                }
                let needs =
                    move |peer| if [home, second].contains(&peer) { vec![("words".into(), 16)] } else { vec![] };
                let object = opening.expect(needs).announce()?;
                object.wait(node.timeout())?;
                let words = [object.remote(home, "words")?, object.remote::<u64>(second, "words")?.at(1)];
                Ok(Pair { number, mutex, words, object })
            })?);
        }
        Ok(MutexLoad { pairs, endpoint: place.endpoint()?, rng: place.rng("mutex"), turns: 0 })
    }
}

impl Pair {
    /// Takes the lock, adds one to both words, and releases it.
    async fn add(&self, log: &Recorder, endpoint: &Endpoint, turn: u64, linger: Duration) -> Result<(), Failure> {
        let lock = self.number;
        let held = |guard: &farfield::Guard<'_>| Answer::Held { is_after_death: guard.is_after_death() };
        let mut guard = log.call_among(Op::Lock { lock, turn }, endpoint, self.mutex.lock(endpoint), held).await?;
        let changed = self.change(log, endpoint, turn, guard.is_after_death(), linger).await;
        if changed.is_ok() {
            guard.repaired();
        }
        let unlock = log.call_among(Op::Unlock { lock, turn }, endpoint, guard.unlock(), |()| Answer::Done);
        changed.and(unlock.await)
    }

    async fn change(
        &self,
        log: &Recorder,
        endpoint: &Endpoint,
        turn: u64,
        is_after_death: bool,
        linger: Duration,
    ) -> Result<(), Failure> {
        let lock = self.number;
        let named = |error: farfield::fabric::Error| farfield::Error::from(error).of(self.object.path());
        let look = async {
            let (first, second) = (endpoint.get(self.words[0]), endpoint.get(self.words[1]));
            Ok([first.await.map_err(named)?, second.await.map_err(named)?])
        };
        let from = log.call_among(Op::Look { lock, turn }, endpoint, look, |words| Answer::Words(*words)).await?;
        let to = match is_after_death {
            // Repaired: both are as if the dead had done it.
            true => [from[0].max(from[1]) + 1; 2],
            false => from.map(|word| word + 1),
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

impl Load for MutexLoad {
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
        // They queue for the same lock: if this node dies, it leaves several tickets.
        let these = (first..self.turns).map(|turn| pair.add(log, endpoint, turn, linger));
        endpoint.run_window(count as usize, these, |done| is_gone |= done.is_err_and(|failure| failure.is_death()));
        if is_gone {
            self.pairs.swap_remove(at);
        }
    }

    fn look(&mut self, log: &mut Recorder) {
        for pair in &self.pairs {
            // Its changes are judged as all others.
            let _ = self.endpoint.block_on(pair.add(log, &self.endpoint, self.turns, Duration::ZERO));
            self.turns += 1;
        }
    }
}
