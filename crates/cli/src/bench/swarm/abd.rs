//! DM-ABD: registers on a majority of the memory nodes (Attiya, Bar-Noy, Dolev), with values out of place.
//!
//! ```text
//! a word:   ┌───────────┬────────┐   the highest one is of the latest write
//!           │ timestamp │ number │
//!           └───────────┴────────┘
//!            40 bits     24
//! ```
//!
//! - A write puts its value into a buffer, and gets the words in the same round trip. Then it raises the words to a
//!   later one.
//! - A read gets the words, and brings the highest one and its value to a majority, unless a majority has it. Then it
//!   gets the value.

use farfield::fabric::Op;
use farfield::{Endpoint, Node, Result};

use super::area::{self, Area, Number, Uses, image, take};
use super::system::{Client, Scale};

pub(super) struct Abd {
    area: Area,
    scale: Scale,
    client: usize,
}

pub(super) struct AbdClient<'a, 'e> {
    abd: &'a Abd,
    endpoint: &'e Endpoint,
    uses: Uses,
}

impl Abd {
    pub(super) fn open(node: &Node, scale: &Scale, client: usize) -> Result<Abd> {
        Ok(Abd { area: Area::open(node, "dm-abd", scale, &scale.memory)?, scale: scale.clone(), client })
    }

    pub(super) fn client<'a, 'e>(&'a self, endpoint: &'e Endpoint) -> AbdClient<'a, 'e> {
        AbdClient { abd: self, endpoint, uses: Uses::new(self.client, self.scale.keys) }
    }
}

impl<'e> AbdClient<'_, 'e> {
    /// The memory nodes that are asked about a key.
    fn asked(&self, key: usize) -> impl Iterator<Item = usize> + Clone {
        self.abd.scale.order(key).take(self.abd.scale.majority())
    }

    /// The words of a key.
    fn words(&self, key: usize) -> Vec<(usize, Op<'e, u64>)> {
        self.asked(key).map(|replica| (replica, self.endpoint.get(self.abd.area.word(replica, key)))).collect()
    }

    /// Raises the words that are lower than this one, all at a time.
    async fn raise(&self, key: usize, mut lower: Vec<(usize, u64)>, word: u64) -> Result<()> {
        while !lower.is_empty() {
            let exchange = |(replica, found): &(usize, u64)| {
                (*replica, *found, self.endpoint.cas(self.abd.area.word(*replica, key), *found, word))
            };
            let under_way: Vec<_> = lower.iter().map(exchange).collect();
            lower.clear();
            for (replica, expected, exchange) in under_way {
                let found = exchange.await?;
                if found != expected && found < word {
                    lower.push((replica, found));
                }
            }
        }
        Ok(())
    }
}

impl Client for AbdClient<'_, '_> {
    async fn get(&self, key: usize, into: &mut [u64]) -> Result<bool> {
        let area = &self.abd.area;
        for attempt in 0.. {
            let mut words = Vec::new();
            for (replica, word) in self.words(key) {
                words.push((replica, word.await?));
            }
            let word = words.iter().map(|(_, word)| *word).max().unwrap_or(0);
            if word == 0 {
                return Ok(false);
            }
            let number = Number::of(word);
            let (holders, lower): (Vec<_>, Vec<_>) = words.into_iter().partition(|(_, found)| *found == word);
            let buffer = self.endpoint.buf(area.buffer_words())?;
            // A slow reader may have written an earlier value back over that of one memory node.
            let (holder, _) = holders[attempt % holders.len()];
            let image = self.endpoint.get_into(area.buffer(holder, key, number), buffer).await?;
            if !take(&image, number, into) {
                area::check_attempts(attempt, key)?;
                continue;
            }
            let puts: Vec<_> = lower
                .iter()
                .map(|(replica, _)| self.endpoint.put(area.buffer(*replica, key, number), &image))
                .collect();
            for put in puts {
                put.detach()?;
            }
            // A word changes after its value has landed (`NRW` before `NAR`).
            self.raise(key, lower, word).await?;
            return Ok(true);
        }
        unreachable!("the loop has no end")
    }

    async fn put(&self, key: usize, value: &[u64]) -> Result<()> {
        let area = &self.abd.area;
        let number = self.uses.next(key);
        let image = image(self.endpoint, number, value)?;
        for replica in self.asked(key) {
            self.endpoint.put(area.buffer(replica, key, number), &image).detach()?;
        }
        let mut words = Vec::new();
        for (replica, word) in self.words(key) {
            words.push((replica, word.await?));
        }
        let latest = words.iter().map(|(_, word)| word >> Number::BITS).max().unwrap_or(0);
        self.uses.is_written(key, number);
        self.raise(key, words, (latest + 1) << Number::BITS | number.0).await
    }
}
