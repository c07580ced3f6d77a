//! The options of objects and trees.

use core::ops::RangeInclusive;
use core::time::Duration;

use farfield_core::toolkit::{at_least_one, buf_bytes_max};
use farfield_core::{Error, ErrorKind, Node, Result};

use crate::layout::Shape;
use crate::page;
use crate::seats::{SEAT_WORDS, Seats};
use crate::{Field, TreeKey};

/// The sizes of a [`RomeObject`](crate::RomeObject). They must be the same on all nodes.
///
/// ```
/// use farfield_rome::ObjectOptions;
/// let mut options = ObjectOptions::default();
/// options.bytes = 1 << 20; // the value
/// options.log_bytes = 1 << 16; // a patch of 100 bytes takes 112
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectOptions {
    /// Bytes of the value, 1 at least. With the log they have to fit a buffer of an endpoint
    /// ([`Builder::pool_bytes_max`](farfield_core::Builder::pool_bytes_max)). Default: 4096.
    pub bytes: usize,
    /// Bytes of the log. A patch takes its bytes, filled up to words, and 8 more; one that takes more than the whole
    /// log rewrites the value. A read transfers the value and what the log has. Default: 1024.
    pub log_bytes: usize,
    /// How many states of the value there is room for, 2 at least: one is current, and the others may still be read.
    /// Default: 8.
    pub blocks: usize,
    /// How many readers and writers a node may have at a time. Default: 64.
    pub seats: usize,
    /// For how long the owner keeps what a stopped reader may need, from 1 ms to an hour. A reader that was stopped for
    /// a quarter of that starts again. Default: 4 s.
    pub lease: Duration,
}

impl Default for ObjectOptions {
    fn default() -> ObjectOptions {
        ObjectOptions { bytes: 4096, log_bytes: 1024, blocks: 8, seats: 64, lease: LEASE }
    }
}

/// The sizes of a [`RomeTree`](crate::RomeTree). They must be the same on all nodes.
///
/// ```
/// use farfield_rome::TreeOptions;
/// let mut options = TreeOptions::default();
/// options.blocks = 1 << 16; // for some three million pairs
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TreeOptions {
    /// Pairs in the base of a node, 3 at least. A remote look-up transfers so many at most, and the log. Default: 64.
    pub pairs: usize,
    /// Records in the log of a leaf, from 1 to one less than `pairs`. A full log is merged into a new base. Default:
    /// 24.
    pub records: usize,
    /// Memory, in nodes of the tree: a node has `pairs / 2` to `pairs` pairs where they are inserted in a random order.
    /// What was replaced lately, and may still be read, takes room, too, and each [`Partition`](crate::Partition) and
    /// each [`RomeKvThread`](crate::RomeKvThread) of the owner has up to 3 at hand. Default: 4096.
    pub blocks: usize,
    /// How many readers and writers a node of the session may have at a time. Default: 64.
    pub seats: usize,
    /// For how long the owner keeps what a stopped reader may need, from 1 ms to an hour. A reader that was stopped for
    /// a quarter of that starts again, and a scan ends ([`SnapshotExpired`](crate::SnapshotExpired)). Default: 4 s.
    pub lease: Duration,
}

impl Default for TreeOptions {
    fn default() -> TreeOptions {
        TreeOptions { pairs: 64, records: 24, blocks: 4096, seats: 64, lease: LEASE }
    }
}

const LEASE: Duration = Duration::from_secs(4);
const LEASES: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(3600);
const SEATS_MAX: usize = (1 << 16) / SEAT_WORDS;

fn config(why: String) -> Error {
    Error::from(ErrorKind::Config { why })
}

fn check_common(node: &Node, block_words: usize, seats: usize, lease: Duration) -> Result<()> {
    at_least_one(&[("seats", seats)])?;
    if seats > SEATS_MAX {
        return Err(config(format!("`seats` is {seats}: it has to be {SEATS_MAX} at most")));
    }
    if !LEASES.contains(&lease) {
        return Err(config(format!(
            "`lease` is {lease:?}: it has to be from {:?} to {:?}",
            LEASES.start(),
            LEASES.end()
        )));
    }
    let max = buf_bytes_max(node);
    let bytes = (block_words * 8).max(Seats::bytes(seats));
    if bytes > max {
        let why = format!(
            "{bytes} bytes are read at a time, and the buffers of this node's endpoints hold {max}: raise `pool_bytes_max`; one \
             has 1 GiB at most"
        );
        return Err(config(why));
    }
    Ok(())
}

impl ObjectOptions {
    pub(crate) fn shape(&self, node: &Node) -> Result<Shape> {
        at_least_one(&[("bytes", self.bytes)])?;
        if self.blocks < 2 || self.blocks > 1 << 24 {
            return Err(config(format!("`blocks` is {}: it has to be from 2 to 2^24", self.blocks)));
        }
        let words = self.bytes.div_ceil(8) + self.log_bytes.div_ceil(8) + 1;
        if words > 1 << 31 {
            return Err(config("`bytes` and `log_bytes` are more than 16 GiB".into()));
        }
        check_common(node, words, self.seats, self.lease)?;
        Ok(Shape { ranks: node.nodes(), slots: 1, blocks: self.blocks, block_words: words.next_multiple_of(8) })
    }
}

impl TreeOptions {
    pub(crate) fn shape<K: TreeKey, V: Field>(&self, node: &Node) -> Result<Shape> {
        if self.pairs < 3 || self.records == 0 || self.records >= self.pairs {
            let why = format!(
                "`pairs` is {} and `records` {}: there have to be 3 pairs at least, and fewer records, but 1 at least",
                self.pairs, self.records
            );
            return Err(config(why));
        }
        if self.blocks < 8 || self.blocks > 1 << 30 {
            return Err(config(format!("`blocks` is {}: it has to be from 8 to 2^30", self.blocks)));
        }
        let block_words = page::words_max::<K, V>(self.pairs, self.records);
        if block_words > 1 << 24 {
            return Err(config("`pairs` is too large: a node of the tree would have more than 128 MiB".into()));
        }
        check_common(node, block_words, self.seats, self.lease)?;
        Ok(Shape {
            ranks: node.nodes(),
            slots: self.blocks,
            blocks: self.blocks,
            block_words: block_words.next_multiple_of(8),
        })
    }
}
