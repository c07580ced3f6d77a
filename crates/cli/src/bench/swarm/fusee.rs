//! A store with a synchronously replicated index, in the manner of FUSEE (its protocol SNAPSHOT), for f + 1 memory
//! nodes of 2f + 1. It stops when one of them dies: FUSEE has a master that takes over then.
//!
//! - A write puts its value into a buffer on all memory nodes, and gets the *primary* word in the same round trip. It
//!   exchanges the *backup* words, then keeps what it replaces (in a word of its log), then exchanges the primary word:
//!   four round trips. Of several at a time one wins: most backups have its word, or its word is the lowest of them.
//!   The others wait for the primary word, and count as replaced at once: three round trips and more.
//! - A read gets the primary word, and the value that it pointed to last time, in the same round trip. If the word has
//!   changed, it gets the value in another one.

use std::cell::RefCell;

use farfield::fabric::Instant;
use farfield::{Endpoint, ErrorKind, Node, Result};

use super::area::{self, Area, Number, Uses, image, take};
use super::system::{Client, Scale};

pub(super) struct Fusee {
    area: Area,
    scale: Scale,
    client: usize,
}

pub(super) struct FuseeClient<'f, 'e> {
    fusee: &'f Fusee,
    endpoint: &'e Endpoint,
    uses: Uses,
    /// The primary words, as they were.
    known: RefCell<Vec<u64>>,
}

impl Fusee {
    pub(super) fn open(node: &Node, scale: &Scale, client: usize) -> Result<Fusee> {
        let nodes = &scale.memory[..scale.majority()];
        Ok(Fusee { area: Area::open(node, "fusee", scale, nodes)?, scale: scale.clone(), client })
    }

    pub(super) fn client<'f, 'e>(&'f self, endpoint: &'e Endpoint) -> FuseeClient<'f, 'e> {
        let uses = Uses::new(self.client, self.scale.keys);
        FuseeClient { fusee: self, endpoint, uses, known: RefCell::new(vec![0; self.scale.keys]) }
    }

    /// The memory nodes of a key, the primary one first.
    fn order(&self, key: usize) -> impl Iterator<Item = usize> + Clone {
        let count = self.area.nodes.len();
        (0..count).map(move |at| (key + at) % count)
    }
}

impl FuseeClient<'_, '_> {
    fn primary(&self, key: usize) -> usize {
        key % self.fusee.area.nodes.len()
    }

    async fn primary_word(&self, key: usize) -> Result<u64> {
        Ok(self.endpoint.get(self.fusee.area.word(self.primary(key), key)).await?)
    }

    /// Waits until the winner has exchanged the primary word.
    async fn wait_for_winner(&self, key: usize, old: u64, deadline: Instant) -> Result<()> {
        while self.primary_word(key).await? == old {
            let now = self.endpoint.now();
            if now >= deadline {
                let what = format!("the write of key {key} that has won");
                return Err(ErrorKind::Timeout { what, waited: self.endpoint.timeout(), missing: Vec::new() }.into());
            }
        }
        Ok(())
    }

    /// Whether this write is the one that replaces the old value, after its attempt at the backups.
    async fn has_won(&self, key: usize, old: u64, new: u64, found: &[(usize, u64)]) -> Result<bool> {
        // What each backup has now.
        let after: Vec<u64> = found.iter().map(|(_, word)| if *word == old { new } else { *word }).collect();
        let own = after.iter().filter(|word| **word == new).count();
        if own == after.len() {
            return Ok(true);
        }
        if own == 0 {
            return Ok(false);
        }
        let most = |word: u64| 2 * after.iter().filter(|other| **other == word).count() > after.len();
        let wins = match after.iter().find(|word| most(**word)) {
            Some(winner) => *winner == new,
            None => after.iter().min() == Some(&new) && self.primary_word(key).await? == old,
        };
        if wins {
            let others = found.iter().zip(&after).filter(|(_, word)| **word != new);
            let mut under_way = Vec::new();
            for ((replica, _), word) in others {
                under_way.push(self.endpoint.cas(self.fusee.area.word(*replica, key), *word, new));
            }
            for exchange in under_way {
                exchange.await?;
            }
        }
        Ok(wins)
    }
}

impl Client for FuseeClient<'_, '_> {
    async fn get(&self, key: usize, into: &mut [u64]) -> Result<bool> {
        let area = &self.fusee.area;
        let primary = self.primary(key);
        for attempt in 0.. {
            let known = self.known.borrow()[key];
            let word = self.endpoint.get(area.word(primary, key));
            let mut image = None;
            if known != 0 {
                let buffer = self.endpoint.buf(area.buffer_words())?;
                image = Some(self.endpoint.get_into(area.buffer(primary, key, Number::of(known)), buffer));
            }
            let word = word.await?;
            if word == 0 {
                return Ok(false);
            }
            self.known.borrow_mut()[key] = word;
            let image = match image {
                Some(image) if word == known => image.await?,
                _ => {
                    let buffer = self.endpoint.buf(area.buffer_words())?;
                    self.endpoint.get_into(area.buffer(primary, key, Number::of(word)), buffer).await?
                }
            };
            if take(&image, Number::of(word), into) {
                return Ok(true);
            }
            area::check_attempts(attempt, key)?;
        }
        unreachable!("the loop has no end")
    }

    async fn put(&self, key: usize, value: &[u64]) -> Result<()> {
        let (fusee, area) = (self.fusee, &self.fusee.area);
        let deadline = self.endpoint.deadline();
        let number = self.uses.next(key);
        let image = image(self.endpoint, number, value)?;
        for replica in fusee.order(key) {
            self.endpoint.put(area.buffer(replica, key, number), &image).detach()?;
        }
        let old = self.primary_word(key).await?;
        // Words are different each time, so that one that is found again was not exchanged meanwhile.
        let new = ((old >> Number::BITS) + 1) << Number::BITS | number.0;
        let mut found = Vec::new();
        // A backup's word changes after the value has landed there (`NRW` before `NAR`).
        let exchanges: Vec<_> = fusee
            .order(key)
            .skip(1)
            .map(|replica| (replica, self.endpoint.cas(area.word(replica, key), old, new)))
            .collect();
        for (replica, exchange) in exchanges {
            found.push((replica, exchange.await?));
        }
        if !self.has_won(key, old, new, &found).await? {
            return self.wait_for_winner(key, old, deadline).await;
        }
        self.uses.is_written(key, number);
        // A get flushes the put before it (`NRW` before `NRR`).
        let mut logged = Vec::new();
        for replica in fusee.order(key) {
            let log = area.log(replica, self.fusee.client);
            self.endpoint.put_value(log, old).detach()?;
            logged.push(self.endpoint.get(log));
        }
        for flushed in logged {
            flushed.await?;
        }
        let before = self.endpoint.cas(area.word(self.primary(key), key), old, new).await?;
        debug_assert_eq!(before, old, "only the winner exchanges it");
        self.known.borrow_mut()[key] = new;
        Ok(())
    }
}
