//! An ordered store with partitions on several nodes: calls on keys that all share, scans, and pairs of keys on two
//! nodes that a scan at one instant must find as they were at one moment. Partitions are moved meanwhile.

use std::ops::Range;

use farfield::rome::{RomeKvThread, RomeKvUpdate};
use farfield::{Endpoint, Error, RomeKv, RomeKvOptions};
use rand::RngExt;
use rand::rngs::SmallRng;

use super::{Load, Place, violation};
use crate::chaos::log::{Answer, Failure, KvOp, Op, Recorder};

/// Partitions, where there are more nodes. There are fewer than nodes, so that some node can take one: each has one at
/// most, so that a death takes no more along, and others go on.
const PARTITIONS_MAX: usize = 4;
/// Keys of a partition that all threads use.
pub(in crate::chaos) const KEYS: u64 = 6;
/// The first of the others.
const PAIRS: u64 = 1 << 24;
/// The most pairs of a thread: it takes another one when it does not know the outcome of a change.
const PAIRS_MAX: u64 = 1 << 6;

/// The first key of a partition.
pub(in crate::chaos) fn first_key(partition: usize) -> u64 {
    (partition as u64) << 32
}

/// The partition that a call has found to be lost.
fn lost_by(failure: &Failure) -> Option<usize> {
    failure.partition.filter(|_| failure.is_death() && failure.has_no_effect)
}

pub(super) struct RomeLoad {
    thread: RomeKvThread<u64, u64>,
    endpoint: Endpoint,
    rng: SmallRng,
    /// By partition: it is on a node that lives, as far as is known.
    lives: Vec<bool>,
    client: u64,
    written: u64,
    /// The current pair, and the number that its keys have.
    pair: u64,
    number: u64,
}

impl RomeLoad {
    pub(super) fn open(place: &mut Place<'_>) -> Result<RomeLoad, Failure> {
        let partitions = (place.members.len() - 1).clamp(1, PARTITIONS_MAX);
        let mut options = RomeKvOptions::new((1..partitions).map(first_key).collect::<Vec<_>>());
        // Small: memory is used again all the time.
        (options.tree.blocks, options.tree.pairs, options.tree.records) = (96, 16, 8);
        options.tree.lease = std::time::Duration::from_secs(1);
        let store = place.open("rome", |node, path| RomeKv::<u64, u64>::open(node, path, options))?;
        let thread = place.open("a thread of rome", |_, _| store.thread())?;
        let (endpoint, rng, client) = (place.endpoint()?, place.rng("rome"), u64::from(place.node.id().0));
        let lives = vec![true; partitions];
        Ok(RomeLoad { thread, endpoint, rng, lives, client, written: 0, pair: 0, number: 0 })
    }

    /// A value that no other thread writes.
    fn value(&mut self) -> u64 {
        self.written += 1;
        (self.client + 1) << 32 | self.written
    }

    /// A partition with an owner that lives.
    fn partition(&mut self) -> Option<usize> {
        let living: Vec<usize> = (0..self.lives.len()).filter(|partition| self.lives[*partition]).collect();
        (!living.is_empty()).then(|| living[self.rng.random_range(0..living.len())])
    }

    /// Partitions beside each other with owners that live.
    fn partitions(&mut self) -> Option<Range<usize>> {
        let at = self.partition()?;
        let (mut first, mut end) = (at, at + 1);
        while first > 0 && self.lives[first - 1] && self.rng.random_bool(0.7) {
            first -= 1;
        }
        while end < self.lives.len() && self.lives[end] && self.rng.random_bool(0.7) {
            end += 1;
        }
        Some(first..end)
    }

    /// A partition that is lost is not called any more. Of several that a call needed it is the one that the error
    /// names: this node may not know yet where the others are. An update with an unknown effect says nothing of the
    /// partition, which may have been moved before its owner died.
    fn heed(&mut self, failure: &Failure) {
        if let Some(partition) = lost_by(failure) {
            self.lives[partition] = false;
        }
    }

    fn end<T>(&mut self, ended: Result<T, Failure>) -> Option<T> {
        ended.map_err(|failure| self.heed(&failure)).ok()
    }

    fn one(&mut self, log: &Recorder, key: u64, op: KvOp) {
        let (thread, endpoint) = (&mut self.thread, &self.endpoint);
        let call = async {
            Ok(match op {
                KvOp::Get => Answer::Found(thread.get(endpoint, &key).await?),
                KvOp::Insert(value) => Answer::Changed(thread.insert(endpoint, key, value).await?),
                KvOp::Update(value) => Answer::Changed(thread.update(endpoint, key, value).await?),
                KvOp::Upsert(value) => thread.put(endpoint, key, value).await.map(|_| Answer::Done)?,
                KvOp::Delete => Answer::Changed(thread.delete(endpoint, &key).await?.is_some()),
                KvOp::UpdateIf(_) => unreachable!("only the load of the replicated store makes it"),
            })
        };
        let done = log.call(Op::Rome { key, op }, endpoint, call, Answer::clone);
        self.end(done);
    }

    /// Moves a partition to this node, unless it has one.
    fn take(&mut self, log: &Recorder) {
        let store = self.thread.store();
        let has_one = (0..self.lives.len()).any(|partition| u64::from(store.owner_of(partition).0) == self.client);
        let Some(partition) = self.partition().filter(|_| !has_one) else { return };
        let (thread, endpoint) = (&mut self.thread, &self.endpoint);
        let take = thread.take_partition(endpoint, partition);
        let done = log.call(Op::RomeTake { partition }, endpoint, take, |()| Answer::Done);
        self.end(done);
    }

    fn choose(&mut self) -> Option<(u64, KvOp)> {
        let key = first_key(self.partition()?) + self.rng.random_range(0..KEYS);
        let op = match self.rng.random_range(0..100) {
            0..45 => KvOp::Get,
            45..60 => KvOp::Insert(self.value()),
            60..75 => KvOp::Update(self.value()),
            75..85 => KvOp::Upsert(self.value()),
            _ => KvOp::Delete,
        };
        Some((key, op))
    }

    /// Several updates at once, in a batch for each owner.
    fn several(&mut self, log: &Recorder) {
        let count = self.rng.random_range(2..=5);
        let mut updates = Vec::new();
        while updates.len() < count {
            let Some((key, op)) = self.choose() else { return };
            let update = match op {
                KvOp::Insert(value) => RomeKvUpdate::Insert(key, value),
                KvOp::Update(value) => RomeKvUpdate::Update(key, value),
                KvOp::Upsert(value) => RomeKvUpdate::Put(key, value),
                KvOp::Delete => RomeKvUpdate::Delete(key),
                KvOp::Get | KvOp::UpdateIf(_) => continue,
            };
            updates.push((op, update));
        }
        let limit = self.endpoint.timeout();
        let begin = |(op, update): &(KvOp, RomeKvUpdate<u64, u64>)| {
            (*op, log.begin(Op::Rome { key: *update.key(), op: *op }, limit))
        };
        let begun: Vec<_> = updates.iter().map(begin).collect();
        let updates: Vec<_> = updates.into_iter().map(|(_, update)| update).collect();
        let results = self.endpoint.block_on(self.thread.apply(&self.endpoint, &updates));
        for ((op, begun), result) in begun.into_iter().zip(results) {
            let answer = |before: &Option<u64>| match op {
                KvOp::Insert(_) => Answer::Changed(before.is_none()),
                KvOp::Update(_) | KvOp::Delete => Answer::Changed(before.is_some()),
                _ => Answer::Done,
            };
            let ended = log.end(begun, result, answer);
            self.end(ended);
        }
    }

    /// Reads some partitions, at one instant or not.
    fn scan(&mut self, log: &Recorder, at_once: bool) {
        let Some(partitions) = self.partitions() else { return };
        let range = first_key(partitions.start)..first_key(partitions.end);
        let op = Op::RomeScan { first: partitions.start, end: partitions.end };
        let (thread, endpoint) = (&mut self.thread, &self.endpoint);
        let is_backward = self.rng.random_bool(0.3);
        let call = async {
            let mut pairs = match (at_once, is_backward) {
                (true, false) => {
                    thread.scan_at_one_instant(endpoint, range).await?.collect(endpoint, usize::MAX).await?
                }
                (true, true) => {
                    thread.scan_back_at_one_instant(endpoint, range).await?.collect(endpoint, usize::MAX).await?
                }
                (false, false) => thread.range(endpoint, range, usize::MAX).await?,
                (false, true) => thread.range_back(endpoint, range, usize::MAX).await?,
            };
            if is_backward {
                pairs.reverse();
            }
            Ok::<_, Error>(pairs)
        };
        let flat = |pairs: &Vec<(u64, u64)>| {
            let shared = pairs.iter().filter(|(key, _)| key & 0xffff_ffff < KEYS);
            Answer::Numbers(shared.flat_map(|(key, value)| [*key, *value]).collect())
        };
        let done = log.call(op, endpoint, call, flat);
        let Some(pairs) = self.end(done) else { return };
        if !pairs.is_sorted_by(|one, next| one.0 < next.0) {
            violation(format!("the keys of a scan of the ordered store are in no order: {pairs:?}"));
        }
        if at_once {
            self.check_pairs(&pairs, partitions);
        }
    }

    /// The keys of a pair of a thread, in two partitions if there are two.
    fn pair_of(&self, client: u64, pair: u64) -> [(usize, u64); 2] {
        let count = self.lives.len();
        let key = |at: usize, number: u64| {
            let partition = (client as usize + at) % count;
            (partition, first_key(partition) + PAIRS + (client * PAIRS_MAX + pair) * 2 + number)
        };
        [key(0, 0), key(1, 1)]
    }

    /// The first of a pair is as the second one, or just ahead.
    fn check_pairs(&self, pairs: &[(u64, u64)], partitions: Range<usize>) {
        let value = |key: u64| pairs.binary_search_by_key(&key, |pair| pair.0).map_or(0, |at| pairs[at].1);
        for (key, _) in pairs.iter().filter(|(key, _)| key & 0xffff_ffff >= PAIRS) {
            let of = ((key & 0xffff_ffff) - PAIRS) / 2;
            let [first, second] = self.pair_of(of / PAIRS_MAX, of % PAIRS_MAX);
            if [first, second].iter().all(|(partition, _)| partitions.contains(partition)) {
                let (ahead, behind) = (value(first.1), value(second.1));
                if ahead != behind && ahead != behind + 1 {
                    violation(format!(
                        "a scan at one instant has found {ahead} at {:x} and {behind} at {:x}",
                        first.1, second.1
                    ));
                }
            }
        }
    }

    /// Adds one to both keys of the pair, one after the other.
    fn count(&mut self, log: &Recorder) {
        if self.pair == PAIRS_MAX {
            return;
        }
        let keys = self.pair_of(self.client, self.pair);
        if keys.iter().any(|(partition, _)| !self.lives[*partition]) {
            return;
        }
        self.number += 1;
        for (_, key) in keys {
            let op = KvOp::Upsert(self.number);
            let (thread, endpoint) = (&mut self.thread, &self.endpoint);
            let put = async { thread.put(endpoint, key, self.number).await.map(drop) };
            let done = log.call(Op::Rome { key, op }, endpoint, put, |()| Answer::Done);
            if self.end(done).is_none() {
                // It may happen later.
                (self.pair, self.number) = (self.pair + 1, 0);
                return;
            }
        }
    }
}

impl Load for RomeLoad {
    fn step(&mut self, log: &mut Recorder) {
        match self.rng.random_range(0..100) {
            0..60 => {
                if let Some((key, op)) = self.choose() {
                    self.one(log, key, op);
                }
            }
            60..72 => self.several(log),
            72..88 => self.count(log),
            88..94 => self.scan(log, true),
            94..98 => self.scan(log, false),
            _ => self.take(log),
        }
    }

    fn look(&mut self, log: &mut Recorder) {
        for partition in 0..self.lives.len() {
            for key in (0..KEYS).map(|key| first_key(partition) + key) {
                if self.lives[partition] {
                    // Judged from the log, like all other calls.
                    self.one(log, key, KvOp::Get);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_partition_that_an_error_names_is_lost_and_no_other() {
        let failure = |variant: &str, has_no_effect| Failure {
            variant: variant.into(),
            nodes: vec![1],
            object: None,
            text: String::new(),
            has_no_effect,
            partition: Some(2),
        };
        assert_eq!(lost_by(&failure("PeerDead", true)), Some(2));
        assert_eq!(lost_by(&failure("PeerDead", false)), None, "it may have been moved before the death");
        assert_eq!(lost_by(&failure("Timeout", true)), None);
    }
}
