//! Locks that each protect two words, on two nodes: they are equal unless a holder has died between writing one and the
//! other, of which the lock tells.

use farfield::fabric::{GroupKey, RemotePtr};
use farfield::{CustomObject, Endpoint, Mutex, NodeId, Opening};
use rand::RngExt;
use rand::rngs::SmallRng;

use super::{Load, Place};
use crate::chaos::log::{Answer, Failure, Op, Recorder};

pub(super) struct MutexLoad {
    /// Those whose nodes live, as far as is known.
    pairs: Vec<Pair>,
    endpoint: Endpoint,
    rng: SmallRng,
}

/// A lock and what it protects.
struct Pair {
    /// The lock's home, and that of the first word.
    home: NodeId,
    mutex: Mutex,
    words: [RemotePtr<u64>; 2],
    object: CustomObject,
}

impl MutexLoad {
    pub(super) fn open(place: &mut Place<'_>) -> Result<MutexLoad, Failure> {
        let mut pairs = Vec::new();
        for (index, home) in place.homes.clone().into_iter().enumerate() {
            let mutex = place.open(&format!("mutex/{home}"), |node, path| Mutex::open(node, path, home))?;
            let second = place.homes[(index + 1) % place.homes.len()];
            pairs.push(place.open(&format!("pair/{home}"), |node, path| {
                let mut opening = Opening::new(node, path, "Pair");
                if [home, second].contains(&node.id()) {
                    opening = opening.region("word", node.alloc(GroupKey::DATA, 8)?);
                }
                let needs = move |peer| if [home, second].contains(&peer) { vec![("word".into(), 8)] } else { vec![] };
                let object = opening.expect(needs).announce()?;
                object.wait(node.timeout())?;
                let words = [object.remote(home, "word")?, object.remote(second, "word")?];
                Ok(Pair { home, mutex, words, object })
            })?);
        }
        Ok(MutexLoad { pairs, endpoint: place.endpoint()?, rng: place.rng("mutex") })
    }
}

impl Pair {
    /// Takes the lock, adds one to both words, and releases it.
    fn add(&self, log: &mut Recorder, endpoint: &Endpoint) -> Result<(), Failure> {
        let lock = self.home.0;
        let held = |guard: &farfield::Guard<'_>| Answer::Held { is_after_death: guard.is_after_death() };
        let mut guard = log.call(Op::Lock { lock }, endpoint, self.mutex.lock(endpoint), held)?;
        let changed = self.change(log, endpoint, guard.is_after_death());
        if changed.is_ok() {
            guard.repaired();
        }
        let unlocked = log.call(Op::Unlock { lock }, endpoint, guard.unlock(), |()| Answer::Done);
        changed.and(unlocked)
    }

    fn change(&self, log: &mut Recorder, endpoint: &Endpoint, is_after_death: bool) -> Result<(), Failure> {
        let lock = self.home.0;
        let named = |error: farfield::fabric::Error| farfield::Error::from(error).of(self.object.path());
        let look = async {
            let (first, second) = (endpoint.get(self.words[0]), endpoint.get(self.words[1]));
            Ok([first.await.map_err(named)?, second.await.map_err(named)?])
        };
        let from = log.call(Op::Look { lock }, endpoint, look, |words| Answer::Words(*words))?;
        let to = match is_after_death {
            // Repaired: both are as if the dead had done it.
            true => [from[0].max(from[1]) + 1; 2],
            false => from.map(|word| word + 1),
        };
        let change = async {
            // Not a fence: the release has to make them visible.
            endpoint.put_value(self.words[0], to[0]).await.map_err(named)?;
            endpoint.put_value(self.words[1], to[1]).await.map_err(named)
        };
        log.call(Op::Change { lock, from, to }, endpoint, change, |()| Answer::Done)
    }
}

impl Load for MutexLoad {
    fn step(&mut self, log: &mut Recorder) {
        if self.pairs.is_empty() {
            return;
        }
        let at = self.rng.random_range(0..self.pairs.len());
        let done = self.pairs[at].add(log, &self.endpoint);
        if done.is_err_and(|failure| failure.is_death()) {
            self.pairs.swap_remove(at);
        }
    }

    fn look(&mut self, log: &mut Recorder) {
        for pair in &self.pairs {
            // Its changes are judged as all others.
            let _ = pair.add(log, &self.endpoint);
        }
    }
}
