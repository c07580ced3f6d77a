//! The image of a message in a slot: of the requests of one put, or of their replies.
//!
//! ```text
//!   +0  ┌─────────────────────────────────────┐
//!       │ hash of all other words             │  XXH3
//!   +8  ├─────────────────────────┬───────────┤
//!       │ number of the call (48) │ attempt   │  the number counts the calls of this slot, from 1
//!   +16 ├─────────────────────────┴───────────┤
//!       │ opening: where the replies go       │  of the client: no two of them are the same
//!   +24 ├─────────────────────────┬───────────┤
//!       │ words behind this (32)  │ values    │
//!   +32 ├─────────────────────────┴───────────┤
//!       │ in replies: two bits for each value │  whether there is one, and why not
//!       ├─────────────────────────────────────┤
//!       │ the values, one after the other     │
//!       └─────────────────────────────────────┘
//! ```

use core::ops::{Deref, DerefMut};

use farfield_core::toolkit::{ErrorContext, region_bytes};
use farfield_core::{ErrorKind, Result, Value};
use farfield_fabric::{Word, read_words};
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64;
use zerocopy::IntoBytes;

use crate::options::RpcOptions;

pub(crate) const CHECK: usize = 0;
pub(crate) const CALL: usize = 1;
pub(crate) const OPENING: usize = 2;
const SHAPE: usize = 3;
/// Words before the values of a request.
pub(crate) const HEADER: usize = 4;

/// Bits of the attempt, below the number.
const ATTEMPT_BITS: u32 = 16;

/// Words of a message that needs no allocation.
const SHORT: usize = 64;

/// A copy of a message.
pub(crate) struct Image {
    short: [u64; SHORT],
    /// In place of `short`, if there are more words.
    long: Vec<u64>,
    len: usize,
}

impl Image {
    #[inline(always)]
    pub(crate) fn new() -> Image {
        Image { short: [0; SHORT], long: Vec::new(), len: 0 }
    }

    /// Takes this length. The words are not cleared.
    fn resize(&mut self, words: usize) {
        if words > SHORT {
            self.long.resize(words, 0);
        }
        self.len = words;
    }

    /// Adds words, up to this number.
    pub(crate) fn grow(&mut self, words: usize) {
        debug_assert!(words >= self.len, "it does not take words away");
        if words <= SHORT {
            self.short[self.len..words].fill(0);
        } else {
            if self.len <= SHORT {
                self.long.clear();
                self.long.extend_from_slice(&self.short[..self.len]);
            }
            self.long.resize(words, 0);
        }
        self.len = words;
    }
}

impl Deref for Image {
    type Target = [u64];

    #[inline]
    fn deref(&self) -> &[u64] {
        if self.len <= SHORT { &self.short[..self.len] } else { &self.long }
    }
}

impl DerefMut for Image {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u64] {
        if self.len <= SHORT { &mut self.short[..self.len] } else { &mut self.long }
    }
}

/// The word of a call's attempt.
pub(crate) fn call_word(number: u64, attempt: u64) -> u64 {
    number << ATTEMPT_BITS | attempt & ((1 << ATTEMPT_BITS) - 1)
}

/// The number of a call, of its word.
pub(crate) fn number_of(word: u64) -> u64 {
    word >> ATTEMPT_BITS
}

/// Writes all of the header but the hash, and then the hash.
pub(crate) fn seal(image: &mut [u64], call: u64, opening: u64, values: usize) {
    image[CALL] = call;
    image[OPENING] = opening;
    image[SHAPE] = ((image.len() - HEADER) as u64) << 32 | values as u64;
    image[CHECK] = hash_of(image);
}

/// Of all words but the first.
fn hash_of(image: &[u64]) -> u64 {
    xxh3_64(image[CHECK + 1..].as_bytes())
}

/// How many values a message has.
pub(crate) fn values_of(image: &[u64]) -> usize {
    (image[SHAPE] & u64::from(u32::MAX)) as usize
}

/// Copies a message. False if not all of it is there: words land in any order.
pub(crate) fn read(slot: &[Word], image: &mut Image) -> bool {
    let mut header = [0; HEADER];
    read_words(&slot[..HEADER], &mut header);
    let words = HEADER.saturating_add((header[SHAPE] >> 32) as usize);
    if words > slot.len() {
        return false;
    }
    image.resize(words);
    let (first, rest) = image.split_at_mut(HEADER);
    first.copy_from_slice(&header);
    read_words(&slot[HEADER..words], rest);
    image[CHECK] == hash_of(image)
}

/// Fails if a value is too long.
pub(crate) fn check_length<V: Value>(value: &V, bytes_max: usize) -> Result<()> {
    let bytes = value.bytes();
    if V::FIXED || bytes <= bytes_max {
        return Ok(());
    }
    Err(ErrorKind::TooLarge { bytes, max_bytes: bytes_max }.into())
}

/// Words of values.
pub(crate) fn words_of<V: Value>(values: &[V]) -> usize {
    values.iter().map(|value| V::words(value.bytes())).sum()
}

/// Reads as many values.
pub(crate) fn decode<V: Value>(mut words: &[u64], count: usize) -> Option<SmallVec<[V; 4]>> {
    let mut values = SmallVec::new();
    for _ in 0..count {
        let (value, used) = V::decode(words)?;
        words = words.get(used..)?;
        values.push(value);
    }
    Some(values)
}

/// Why a call has no reply, or that it has one: two bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Status {
    Done,
    /// The reply is longer than the limit.
    TooLong,
    /// The handler has ended without one.
    None,
    /// The request is no value of its type. It was not handled.
    Malformed,
}

impl Status {
    const ALL: [Status; 4] = [Status::Done, Status::TooLong, Status::None, Status::Malformed];

    /// That of a value of a message of replies.
    pub(crate) fn of(image: &[u64], value: usize) -> Status {
        let statuses = image.get(HEADER).copied().unwrap_or(0);
        Status::ALL[(statuses >> (2 * value) & 3) as usize]
    }
}

/// A message of replies in the making.
pub(crate) struct Replies {
    pub(crate) image: Image,
    values: usize,
}

impl Replies {
    #[inline(always)]
    pub(crate) fn new() -> Replies {
        // In one piece, so that it is made where it stays.
        Replies { image: Image { short: [0; SHORT], long: Vec::new(), len: HEADER + 1 }, values: 0 }
    }

    /// One that all requests have the same status.
    pub(crate) fn all(status: Status, count: usize) -> Replies {
        let mut replies = Replies::new();
        (0..count).for_each(|_| replies.push_status(status));
        replies
    }

    pub(crate) fn push<V: Value>(&mut self, value: &V, bytes_max: usize) {
        if check_length(value, bytes_max).is_err() {
            return self.push_status(Status::TooLong);
        }
        let at = self.image.len();
        self.image.grow(at + V::words(value.bytes()));
        value.encode(&mut self.image[at..]);
        self.push_status(Status::Done);
    }

    pub(crate) fn push_status(&mut self, status: Status) {
        self.image[HEADER] |= (status as u64) << (2 * self.values);
        self.values += 1;
    }

    pub(crate) fn len(&self) -> usize {
        self.values
    }

    pub(crate) fn seal(&mut self, call: u64, opening: u64) {
        seal(&mut self.image, call, opening, self.values);
    }
}

/// Where the slots are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    /// Words of a request's slot, and of a reply's.
    pub(crate) request_words: usize,
    pub(crate) reply_words: usize,
    pub(crate) window: usize,
    request_stride: usize,
    reply_stride: usize,
    pub(crate) requests_bytes: usize,
    pub(crate) replies_bytes: usize,
}

/// Bytes of a client's region before the slots.
pub(crate) const REPLIES: usize = 64;
/// The first of their words: not 0 once the server is closed.
pub(crate) const CLOSED: usize = 0;
/// The second: not 0 once the server knows this client.
pub(crate) const KNOWN: usize = 8;

impl Layout {
    pub(crate) fn new<Req: Value, Rep: Value>(options: &RpcOptions, places: usize, path: &str) -> Result<Layout> {
        options.check(path)?;
        let values = |words: usize| options.batch_max.saturating_mul(words);
        let request_words = HEADER.saturating_add(values(Req::words(options.request_bytes_max)));
        let reply_words = (HEADER + 1).saturating_add(values(Rep::words(options.reply_bytes_max)));
        let sizes = "`window`, `batch_max`, `request_bytes_max` or `reply_bytes_max`";
        let (request_stride, reply_stride) = (stride(request_words), stride(reply_words));
        let bytes = |slots: usize, stride: usize| region_bytes(slots, stride / 8, sizes).of(path);
        Ok(Layout {
            request_words,
            reply_words,
            window: options.window,
            request_stride,
            reply_stride,
            requests_bytes: bytes(places.saturating_mul(options.window), request_stride)?,
            replies_bytes: REPLIES + bytes(options.window, reply_stride)?,
        })
    }

    /// The request of a slot, of those of all ranks one after the other.
    pub(crate) fn request_at(&self, slot: usize) -> usize {
        slot * self.request_stride
    }

    pub(crate) fn reply_at(&self, slot: usize) -> usize {
        REPLIES + slot * self.reply_stride
    }
}

/// Bytes from slot to slot: an odd number of cache lines, so that the first lines of all slots lie in different sets of
/// a cache. A server that polls for requests reads these.
fn stride(words: usize) -> usize {
    (words.div_ceil(8) | 1).saturating_mul(64)
}
