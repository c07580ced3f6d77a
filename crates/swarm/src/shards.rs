//! Objects of many registers. A metadata word has 16 bits for a buffer, so an object of more registers than that
//! consists of several *shards*, and each register or key belongs to one of them. All lie in the same regions, one
//! behind the other. A shard has buffers, an index and timestamps of its own; a client has one number in all of them,
//! and its calls are counted together.
//!
//! The fewer buffers a client has, the more bits are left for the timestamps of an array (`version`). So an array has
//! as many shards as leave 47 bits, four and a half years:
//!
//! | clients | registers of a shard, with 32 spare buffers | of 64 shards |
//! |---|---|---|
//! | up to 3 | 16,351 | 1,046,464 |
//! | 7 | 8,159 | 522,176 |
//! | 15 | 4,063 | 260,032 |
//! | 31 | 2,015 | 128,960 |
//! | 63 | 991 | 63,424 |
//! | 127 | 479 | 30,656 |
//!
//! An array of more registers than that has all 64 shards. Each time that it is twice as large as in this table its
//! timestamps end in half of the time, and never sooner than after twelve days.

use core::ops::Index;
use std::rc::Rc;
use std::sync::Arc;

use farfield_core::{Error, ErrorKind, Result};
use farfield_fabric::{Endpoint, LocalMutex};

use crate::client::{Common, Core, Place, Shared};
use crate::layout::IndexLayout;
use crate::open::{Closes, Shape};
use crate::version::Format;

/// The most shards of an object.
const SHARDS_MAX: usize = 64;

/// How many shards an object has, and how many registers, or keys, each of them.
pub(crate) fn shards_of(shape: &Shape<'_>, writers: usize) -> Result<(usize, usize)> {
    let (spare, buffers_max) = (shape.options.spare_buffers, shape.buffers_max);
    let fits = |size: usize, buffers_max: usize| {
        let registers = match shape.is_store {
            true if size > buffers_max => return false,
            true => {
                let index = IndexLayout::new(size, writers);
                // Their numbers have 16 bits, too.
                if index.records > buffers_max {
                    return false;
                }
                index.registers()
            }
            false => size,
        };
        registers.saturating_add(spare) <= buffers_max
    };
    let all = (1..=SHARDS_MAX).map(|shards| (shards, size_of_each(shape, shards)));
    let most = (SHARDS_MAX, size_of_each(shape, SHARDS_MAX));
    let found = if shape.is_store {
        all.into_iter().find(|(_, size)| fits(*size, buffers_max))
    } else {
        let lasting = buffers_max.min(Format::buffers_that_last(writers));
        let lasts = all.into_iter().find(|(_, size)| fits(*size, lasting));
        lasts.or_else(|| Some(most).filter(|(_, size)| fits(*size, buffers_max)))
    };
    found.ok_or_else(|| {
        let why = if fits(1, buffers_max) {
            let things = if shape.is_store { "keys" } else { "registers" };
            format!(
                "there are {} {things}: an object has {SHARDS_MAX} shards at most, each with {buffers_max} buffers of \
                 a client (with {writers} clients a store needs up to half as many again); open several",
                shape.size,
            )
        } else {
            format!("`spare_buffers` is {spare}: a client has {buffers_max} buffers at most")
        };
        ErrorKind::Config { why }.into()
    })
}

fn size_of_each(shape: &Shape<'_>, shards: usize) -> usize {
    let share = shape.size.div_ceil(shards);
    // Keys fall to shards by their hashes, of which one share may be larger: by six standard deviations, once in a
    // thousand million times.
    let more = if shape.is_store && shards > 1 { 6 * share.isqrt() } else { 0 };
    share.saturating_add(more)
}

/// The state of the clients that are not in use: for each client, that of each shard.
pub(crate) type Places = Arc<LocalMutex<Vec<Vec<Place>>>>;

/// A thread's clients of all shards.
pub(crate) struct Cores<'e> {
    cores: Vec<Core<'e>>,
    places: Places,
    // After the clients.
    _closes: Arc<Closes>,
}

impl<'e> Cores<'e> {
    pub(crate) fn new(
        shards: &[Arc<Shared>],
        places: &Places,
        closes: &Arc<Closes>,
        endpoint: &'e Endpoint,
    ) -> Result<Cores<'e>> {
        let first = &shards[0];
        let path = first.object.path();
        first.object.check_current()?;
        if first.asks.is_none() {
            let why = "this node has no clients: it is not among `clients` of the options".into();
            return Err(Error::from(ErrorKind::Config { why }).of(path));
        }
        let own = places.lock().pop().ok_or_else(|| {
            let in_use = ErrorKind::InUse { what: "clients of the array", max: first.options.clients_per_node };
            Error::from(in_use).of(path)
        })?;
        let common = Rc::<Common<'e>>::default();
        let cores = shards.iter().zip(own).map(|(shard, place)| Core::new(shard, endpoint, place, Rc::clone(&common)));
        Ok(Cores { cores: cores.collect(), places: Arc::clone(places), _closes: Arc::clone(closes) })
    }

    /// That of the first shard, which stands for all where a shard does not matter.
    pub(crate) fn first(&self) -> &Core<'e> {
        &self.cores[0]
    }

    pub(crate) fn len(&self) -> usize {
        self.cores.len()
    }

    /// The shard of a key with this hash. Its cell is given by the low bits, and its tag by the highest ones.
    pub(crate) fn of_hash(&self, hash: u64) -> &Core<'e> {
        let bits = (hash >> 24) & u64::from(u32::MAX);
        &self.cores[((bits * self.cores.len() as u64) >> 32) as usize]
    }
}

impl<'e> Index<usize> for Cores<'e> {
    type Output = Core<'e>;
    fn index(&self, shard: usize) -> &Core<'e> {
        &self.cores[shard]
    }
}

impl Drop for Cores<'_> {
    fn drop(&mut self) {
        // The next client in this place has another endpoint, and must not overtake the puts of this one. Nor must a
        // section end before that.
        self.first().wait_for_all_replicas();
        self.first().leave_all();
        let own = self.cores.drain(..).map(Core::into_place).collect();
        self.places.lock().push(own);
    }
}
