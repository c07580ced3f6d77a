//! The lock of a key: its home, also after deaths, and the repairs of its next holder.

use farfield_fabric::{Begun, Endpoint, Instant};

use super::index::hash_of;
use super::recovery::Entered;
use super::{KvStore, Look};
use crate::error::{Error, ErrorContext, Result};
use crate::objects::codec::{Key, Value};
use crate::objects::mutex::Guard;
use crate::objects::wait_limit::{Rest, WaitLimit, Waits};

/// A key's lock.
pub(super) struct Locked<'a> {
    /// Released first: until then the operation counts as under way.
    pub(super) guard: Guard<'a>,
    pub(super) entered: Entered<'a>,
    /// The stripe of the key.
    pub(super) stripe: usize,
}

impl<'a> Locked<'a> {
    #[inline]
    pub(super) fn endpoint(&self) -> &'a Endpoint {
        self.guard.endpoint()
    }

    /// Ends a completed operation. If the lock's home is dead, the lock is lost with it, and keeps no operation out.
    pub(super) async fn unlock(self) -> Result<()> {
        match self.begin_unlock()? {
            Ok(()) => Ok(()),
            Err(rest) => rest.await,
        }
    }

    /// Begins [`Locked::unlock`]: does it where that needs no wait.
    #[inline(always)]
    pub(super) fn begin_unlock(self) -> Result<Begun<(), impl Rest<()> + use<'a>>> {
        let Locked { guard, entered, .. } = self;
        let endpoint = guard.endpoint();
        match guard.begin_unlock() {
            Ok(Ok(())) => Ok(Ok(())),
            // The lock first, also where this is dropped before it begins: until then the operation counts as under
            // way.
            Ok(Err(rest)) => Ok(Err(endpoint.boxed(async move {
                let released = rest.await;
                drop(entered);
                unless_gone(released)
            }))),
            Err(error) => unless_gone(Err(error)).map(Ok),
        }
    }
}

fn unless_gone(released: Result<()>) -> Result<()> {
    released.or_else(|error| if error.is_gone() { Ok(()) } else { Err(error) })
}

/// Which lock protects a key.
#[derive(Clone, Copy)]
pub(super) struct Stripes {
    pub(super) count: usize,
    /// The participants.
    pub(super) nodes: usize,
}

impl Stripes {
    #[inline]
    pub(super) fn of<K: Key>(self, key: &K) -> usize {
        (hash_of(key) >> 32) as usize % self.count
    }

    /// The first home of the locks of a stripe, by rank.
    #[inline]
    pub(super) fn home(self, stripe: usize) -> usize {
        stripe % self.nodes
    }

    /// The lock of a stripe on a node: of the same row.
    pub(super) fn lock_on(self, stripe: usize, home: usize) -> usize {
        stripe / self.nodes * self.nodes + home
    }
}

impl<K: Key, V: Value> KvStore<K, V> {
    #[inline]
    pub(super) fn stripe(&self, key: &K) -> usize {
        self.stripes.of(key)
    }

    /// Whether an error means that a lock is lost with its home.
    fn is_lost_with(&self, error: &Error, home: usize) -> bool {
        error.is_gone() && error.node() == Some(self.participants.at(home))
    }

    pub(super) async fn lock<'a>(&'a self, endpoint: &'a Endpoint, key: &K) -> Result<Locked<'a>> {
        match self.begin_lock(endpoint, key)? {
            Ok(locked) => Ok(locked),
            Err(rest) => rest.await,
        }
    }

    /// Begins to take the lock of a key: takes it if it is free, and the fabric completes operations at once.
    #[inline(always)]
    pub(super) fn begin_lock<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        key: &K,
    ) -> Result<Begun<Locked<'a>, impl Rest<Locked<'a>> + use<'a, K, V>>> {
        let stripe = self.stripe(key);
        let mut begun = None;
        if let Some(entered) = self.deaths.enter(self.stripes.home(stripe)) {
            match self.locks.begin(endpoint, stripe, WaitLimit::Timeout) {
                Ok(Ok(guard)) if !guard.is_poisoned() => return Ok(Ok(Locked { guard, entered, stripe })),
                other => begun = Some((other, entered)),
            }
        }
        Ok(Err(endpoint.boxed(self.lock_on(endpoint, stripe, begun))))
    }

    /// [`KvStore::begin_lock`] where it has to wait, or a node has died.
    #[cold]
    async fn lock_on<'a, R: Rest<Option<Guard<'a>>>>(
        &'a self,
        endpoint: &'a Endpoint,
        stripe: usize,
        begun: Option<(Result<Begun<Guard<'a>, R>>, Entered<'a>)>,
    ) -> Result<Locked<'a>> {
        let home = self.stripes.home(stripe);
        // Of the waits after that for the lock, which has its own, as long.
        let deadline = WaitLimit::Timeout.until(endpoint, endpoint.now());
        if let Some((begun, entered)) = begun {
            let locked = match begun {
                Ok(Err(rest)) => Waits(rest).await,
                Ok(Ok(guard)) => Ok(guard),
                Err(error) => Err(error),
            };
            match locked {
                Ok(guard) if !guard.is_poisoned() => return Ok(Locked { guard, entered, stripe }),
                Ok(_) => {}
                Err(error) if self.is_lost_with(&error, home) => {}
                Err(error) => return Err(error),
            }
        }
        endpoint.boxed(self.lock_after_death(endpoint, stripe, deadline)).await
    }

    /// Takes the lock of a stripe at its present home, and repairs the keys that it protects.
    #[cold]
    async fn lock_after_death<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        stripe: usize,
        deadline: Instant,
    ) -> Result<Locked<'a>> {
        let path = self.object.path();
        let first = self.stripes.home(stripe);
        loop {
            let home = self.deaths.place(first);
            if home != first {
                // The dead home is settled, and so is every node that may have died under one of its locks.
                self.deaths.wait_settled(endpoint, None, deadline).await.of(path)?;
            }
            // Closed meanwhile?
            let Some(entered) = self.deaths.enter(home) else { continue };
            let lock = self.stripes.lock_on(stripe, home);
            let guard = match self.locks.lock_deadline(endpoint, lock, deadline).await {
                Ok(guard) => guard,
                Err(error) if self.is_lost_with(&error, home) => {
                    drop(entered);
                    self.deaths.wait_closed(endpoint, home, deadline).await.of(path)?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let moved = home != first && !self.deaths.is_repaired(stripe, lock);
            let locked = Locked { guard, entered, stripe };
            if !moved && !locked.guard.is_poisoned() {
                return Ok(locked);
            }
            if let Some(locked) = self.repair(locked, lock, deadline).await? {
                if moved {
                    self.deaths.has_repaired(stripe, lock);
                }
                return Ok(locked);
            }
        }
    }

    /// Repairs all keys of a lock after a holder has died. None if its home has died meanwhile.
    ///
    /// No other operation works on these keys, and the announcements of the dead are the same everywhere once they are
    /// settled. So an incomplete entry is one that a dead node has not finished. A slot that is not valid belongs to
    /// an insert that has not taken effect, or to a delete that has: both end without the key. A torn value belongs to
    /// an update, which is completed. If this is cut short, the next holder repeats it.
    async fn repair<'a>(
        &'a self,
        mut locked: Locked<'a>,
        lock: usize,
        deadline: Instant,
    ) -> Result<Option<Locked<'a>>> {
        let endpoint = locked.endpoint();
        let settled = self.deaths.wait_settled(endpoint, Some(locked.entered.home()), deadline).await;
        if !settled.of(self.object.path())? {
            return Ok(None);
        }
        let is_of_lock = |key: &K| {
            let stripe = self.stripe(key);
            self.stripes.lock_on(stripe, self.deaths.place(self.stripes.home(stripe))) == lock
        };
        for (key, entry) in self.index.entries(is_of_lock) {
            match self.look(endpoint, entry).await {
                Ok(Look::Found(_)) => {}
                Ok(Look::Absent) => locked = self.remove(locked, &key, entry).await?,
                Ok(Look::Torn) => {
                    let stripe = self.stripe(&key);
                    match self.value_to_redo(endpoint, stripe, entry).await? {
                        Some(value) => self.write_value(endpoint, stripe, entry, &value)?,
                        None => tracing::error!("a value on {} is torn, and not to be redone", entry.slot.node()),
                    }
                }
                // Its value is lost with its node.
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
        locked.guard.clear_poison();
        Ok(Some(locked))
    }
}
