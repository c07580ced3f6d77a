//! Changes of a pair under its lock: insert, update, removal, and its time.

use core::time::Duration;
use std::sync::Arc;

use farfield_fabric::{Begun, Endpoint, NodeId};

use super::index::Entry;
use super::locks::Locked;
use super::slots::Meta;
use super::tracker::{Change, microseconds};
use super::unfinished::{Changing, Renewing, Work};
use super::{KvStore, UPDATE};
use crate::error::{ErrorContext, ErrorKind, Result};
use crate::node::measured;
use crate::objects::codec::{Key, Value};
use crate::objects::wait_limit::Rest;

impl<K: Key, V: Value> KvStore<K, V> {
    /// Removes a key under its lock.
    pub(super) async fn remove<'a>(&'a self, locked: Locked<'a>, key: &K, entry: Entry) -> Result<Locked<'a>> {
        let endpoint = locked.endpoint();
        let changing = self.changing(locked, key, entry);
        // The linearization point. No node may lose the key from its index before all nodes see it cleared: otherwise
        // one node's miss could be followed by another's hit.
        match self.clear(endpoint, entry).await {
            // No node sees the value any more, once its home is out for good.
            Err(error) if error.is_gone() => self.wait_silent(endpoint, entry.slot.node()).await?,
            cleared => cleared.of(self.object.path())?,
        }
        self.index.remove(key, entry);
        let position = self.tracker.tell(endpoint, key, Change::Remove { entry }).await?;
        self.tracker.wait(endpoint, position).await?;
        // All indexes have dropped it: the slot may be another key's.
        if self.slots.is_ours(entry.slot) {
            self.slots.free(entry.slot);
        } else {
            self.tracker.tell(endpoint, key, Change::Free { entry }).await?;
        }
        Ok(changing.finish())
    }

    /// Clears the valid bit of a slot, visibly.
    pub(super) async fn clear(&self, endpoint: &Endpoint, entry: Entry) -> Result<()> {
        self.write_meta(endpoint, entry.slot, Meta { counter: entry.counter, valid: false })?;
        endpoint.global_fence([entry.slot.node()]).await?;
        Ok(())
    }

    /// Waits until all nodes take a dead or departed one for such: until then another may still read there a value
    /// that this one cannot change.
    async fn wait_silent(&self, endpoint: &Endpoint, node: NodeId) -> Result<()> {
        let here = self.object.node();
        let is_silent = || here.fenced_error(endpoint, node).map(drop);
        let waited = here.wait_for_members(endpoint, endpoint.deadline(), is_silent).await;
        waited.waiting_for_nodes("all members to evict a dead node", &[node]).of(self.object.path())
    }

    /// From here on an insert or delete that is cut short is completed by the service thread.
    fn changing<'a, 'k>(&'a self, locked: Locked<'a>, key: &'k K, entry: Entry) -> Changing<'a, 'k, K> {
        Changing::new(self.object.node(), self.work(), locked, key, entry)
    }

    fn work(&self) -> Work<K> {
        let (tracker, index, slots) = (Arc::clone(&self.tracker), Arc::clone(&self.index), Arc::clone(&self.slots));
        Work { tracker, index, slots }
    }

    /// Sets the time of a key under its lock. When it returns, the node that has the value knows it: the time of an
    /// earlier call cannot remove the key any more.
    pub(super) async fn set_time<'a>(
        &'a self,
        locked: Locked<'a>,
        key: &K,
        entry: Entry,
        time: Duration,
    ) -> Result<Locked<'a>> {
        let endpoint = locked.endpoint();
        if entry.slot.node() == self.object.node().id() {
            self.expiries.set(key, entry, endpoint.now() + time);
            return Ok(locked);
        }
        let mut renewing = Renewing::new(self.object.node(), self.work(), locked, key, entry);
        let position = self.tracker.tell(endpoint, key, Change::Expire { entry, us: microseconds(time) }).await?;
        renewing.told = Some(position);
        self.tracker.wait(endpoint, position).await?;
        Ok(renewing.finish())
    }

    /// Inserts a key under its lock, perhaps for a time.
    pub(super) async fn insert_locked(
        &self,
        locked: Locked<'_>,
        key: &K,
        value: &V,
        time: Option<Duration>,
    ) -> Result<()> {
        let endpoint = locked.endpoint();
        let path = self.object.path();
        let home = self.home_of_value(endpoint, key);
        let Some((slot, counter)) = self.slots.take(home) else {
            let slots = self.slots.share_on(home);
            locked.unlock().await?;
            return Err(ErrorKind::Full { node: home, slots }).of(path);
        };
        let entry = Entry { slot, counter };
        let changing = self.changing(locked, key, entry);
        self.write_all(endpoint, entry, value)?;
        self.index.insert(key.clone(), entry);
        let position = self.tracker.tell(endpoint, key, Change::Insert { entry }).await?;
        let position = match time {
            Some(time) if home != self.object.node().id() => {
                self.tracker.tell(endpoint, key, Change::Expire { entry, us: microseconds(time) }).await?
            }
            _ => position,
        };
        self.tracker.wait(endpoint, position).await?;
        // The linearization point: every index has it by now.
        self.write_meta(endpoint, slot, Meta { counter, valid: true })?;
        // If the value is elsewhere, the time has begun there with the announcement. It is not up before the lock is
        // free.
        if let Some(time) = time.filter(|_| home == self.object.node().id()) {
            self.expiries.set(key, entry, endpoint.now() + time);
        }
        changing.finish().unlock().await
    }

    pub(super) async fn update_locked(&self, locked: Locked<'_>, entry: Entry, value: &V) -> Result<()> {
        match self.begin_update_locked(locked, entry, value)? {
            Ok(()) => Ok(()),
            Err(rest) => rest.await,
        }
    }

    /// Changes the value of a key under its lock, and begins to release that.
    #[inline(always)]
    fn begin_update_locked<'a>(
        &'a self,
        locked: Locked<'a>,
        entry: Entry,
        value: &V,
    ) -> Result<Begun<(), impl Rest<()> + use<'a, K, V>>> {
        let (endpoint, stripe) = (locked.endpoint(), locked.stripe);
        self.write_value(endpoint, stripe, entry, value).map_err(|error| self.lost_by(error))?;
        // The release makes the value visible before the lock can be taken by another.
        match locked.begin_unlock()? {
            Ok(()) => self.check_there(endpoint, entry).map(Ok),
            Err(rest) => Ok(Err(endpoint.boxed(async move {
                rest.await?;
                self.check_there(endpoint, entry)
            }))),
        }
    }

    /// [`KvStore::update`], at once where it need not wait.
    #[inline(always)]
    pub(super) fn begin_update<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        key: &'a K,
        value: &'a V,
    ) -> Result<Begun<bool, impl Rest<bool> + use<'a, K, V>>> {
        let mut stage = Updating::Begins;
        if !self.object.meter().is_on() {
            self.check_sizes(key, Some(value))?;
            stage = match self.begin_lock(endpoint, key)? {
                Err(rest) => Updating::Locks(rest),
                Ok(locked) => match self.index.find(key) {
                    None => Updating::Locked(locked),
                    Some(entry) => match self.begin_update_locked(locked, entry, value)? {
                        Ok(()) => return Ok(Ok(true)),
                        Err(rest) => Updating::Releases(rest),
                    },
                },
            };
        }
        Ok(Err(endpoint.boxed(self.update_on(endpoint, key, value, stage))))
    }

    #[cold]
    async fn update_on<'a, L: Rest<Locked<'a>>, R: Rest<()>>(
        &'a self,
        endpoint: &'a Endpoint,
        key: &K,
        value: &V,
        stage: Updating<'a, L, R>,
    ) -> Result<bool> {
        let again = async || self.update_on::<L, R>(endpoint, key, value, Updating::Begins).await;
        measured!(self.object.meter(), endpoint, UPDATE, again());
        let locked = match stage {
            Updating::Begins => {
                self.check_sizes(key, Some(value))?;
                self.lock(endpoint, key).await?
            }
            Updating::Locks(rest) => rest.await?,
            Updating::Locked(locked) => locked,
            Updating::Releases(rest) => return rest.await.map(|()| true),
        };
        match self.index.get(key) {
            None => locked.unlock().await.map(|()| false),
            Some(entry) => self.update_locked(locked, entry, value).await.map(|()| true),
        }
    }
}

/// How far an update has come that has to wait.
enum Updating<'a, L, R> {
    Begins,
    Locks(L),
    Locked(Locked<'a>),
    Releases(R),
}
