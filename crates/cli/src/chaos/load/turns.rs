//! The replicated lock and the election: one node at a time has the turn, and each has a higher token than all before
//! it.

use std::time::Duration;

use farfield::fabric::DeathRule;
use farfield::{AtomicVar, Election, Endpoint, NodeId, ReplicatedMutex};
use rand::RngExt;
use rand::rngs::SmallRng;

use super::{Load, Place};
use crate::chaos::log::{Answer, Failure, Op, Recorder, Turns};

/// Shorter than the longest stop: a leader that is stopped may lose its lease.
const LEASE: Duration = Duration::from_millis(500);
/// Where machines are slow. It ends before a death is found out.
const LONG_LEASE: Duration = Duration::from_secs(2);
/// How often a leader looks whether it leads.
const LOOKS: std::ops::RangeInclusive<usize> = 1..=5;
/// How long it lingers before a look, at times. A busy machine makes more of it, and all others wait for the leader.
const LINGER: Duration = Duration::from_millis(1);
const LINGER_SHARE: f64 = 0.05;

pub(super) struct MutexLoad {
    lock: ReplicatedMutex,
    /// The token of the last holder, on each home that lives, as far as is known.
    last: Vec<(NodeId, AtomicVar)>,
    endpoint: Endpoint,
}

impl MutexLoad {
    pub(super) fn open(place: &mut Place<'_>) -> Result<MutexLoad, Failure> {
        let members = place.members.clone();
        let lock = place.open("mutex", |node, path| ReplicatedMutex::open_among(node, path, &members))?;
        let mut last = Vec::new();
        for home in place.homes.clone() {
            let name = format!("mutex-token/{home}");
            last.push((home, place.open(&name, |node, path| AtomicVar::open(node, path, home))?));
        }
        Ok(MutexLoad { lock, last, endpoint: place.endpoint()? })
    }
}

impl Load for MutexLoad {
    fn step(&mut self, log: &mut Recorder) {
        let (of, endpoint) = (Turns::Mutex, &self.endpoint);
        let take = self.lock.lock(endpoint);
        let Ok(guard) = log.call(Op::Grab { of }, endpoint, take, |guard| Answer::Value(guard.token())) else { return };
        let token = guard.token();
        if let Some((home, last)) = self.last.first() {
            let mark = async {
                let before = last.load(endpoint).await?;
                last.store(endpoint, token).await?;
                Ok(before)
            };
            let op = Op::Mark { home: home.0, token };
            let marked = log.call(op, endpoint, mark, |before| Answer::Value(*before));
            if marked.is_err_and(|failure| failure.is_death()) {
                self.last.remove(0);
            }
        }
        let _ = log.call(Op::GiveBack { of, token }, endpoint, guard.unlock(endpoint), |()| Answer::Done);
    }
}

pub(super) struct ElectionLoad {
    election: Election,
    endpoint: Endpoint,
    rng: SmallRng,
}

impl ElectionLoad {
    pub(super) fn open(place: &mut Place<'_>) -> Result<ElectionLoad, Failure> {
        let members = place.members.clone();
        let is_told = place.node.fabric().death_rule() == DeathRule::System;
        let lease = if is_told { LEASE } else { LONG_LEASE };
        let election = place.open("election", |node, path| Election::open_among(node, path, &members, lease))?;
        Ok(ElectionLoad { election, endpoint: place.endpoint()?, rng: place.rng("election") })
    }
}

impl Load for ElectionLoad {
    fn step(&mut self, log: &mut Recorder) {
        let (of, endpoint) = (Turns::Election, &self.endpoint);
        let campaign = self.election.campaign(endpoint);
        let elected = log.call(Op::Grab { of }, endpoint, campaign, |leadership| Answer::Value(leadership.term()));
        let Ok(leadership) = elected else { return };
        let term = leadership.term();
        for _ in 0..self.rng.random_range(LOOKS) {
            let lingers = self.rng.random_bool(LINGER_SHARE);
            let leads = async {
                if lingers {
                    endpoint.sleep_until(endpoint.now() + LINGER).await;
                }
                Ok(leadership.is_leader())
            };
            let leads = log.call(Op::Leads { term }, endpoint, leads, |leads| Answer::Changed(*leads));
            if leads != Ok(true) {
                break;
            }
        }
        let _ = log.call(Op::GiveBack { of, token: term }, endpoint, leadership.resign(endpoint), |()| Answer::Done);
    }
}
