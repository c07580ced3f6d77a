//! Words are whole. Longer values tear between words and nowhere else.

use std::sync::atomic::{AtomicUsize, Ordering};

use farfield_fabric::{Endpoint, Word};

use crate::harness::{Harness, Node, threads};

/// A word with two halves that show whether they belong together.
fn stamped(value: u64) -> u64 {
    value << 32 | (!value & 0xffff_ffff)
}

fn is_stamped(word: u64) -> bool {
    word >> 32 == !word & 0xffff_ffff
}

/// Runs `writer` until `reader` has read `reads` times.
fn against(nodes: &[Node], writer: impl Fn(&Endpoint, u64) + Sync, reads: usize, reader: impl Fn(&Endpoint) + Sync) {
    let done = Word::new(0);
    let write = || {
        let endpoint = nodes[0].endpoint();
        let mut value = 0;
        while done.load() == 0 {
            value = (value + 1) & 0xffff_ffff;
            writer(&endpoint, value);
        }
    };
    let read = || {
        let endpoint = nodes[1].endpoint();
        for _ in 0..reads {
            reader(&endpoint);
        }
        done.store(1);
    };
    threads([(&nodes[0], &write), (&nodes[1], &read)]);
}

/// Eight bytes are put and got whole, by value and within buffers.
pub(crate) fn words_are_never_torn(harness: &Harness) {
    let nodes = harness.session(2);
    let region = nodes[1].region(8);
    region.word(0).store(stamped(0));
    let word = region.remote::<u64>(0);
    let reads = harness.rounds(3_000);
    let write = |endpoint: &Endpoint, value: u64| {
        // Two halves in one plain value.
        endpoint.put_value(word.cast::<[u32; 2]>(), [!value as u32, value as u32]).wait().unwrap();
    };
    against(&nodes, write, reads, |endpoint| {
        let got = endpoint.get(word).wait().unwrap();
        assert!(is_stamped(got), "{got:#x}");
        let seen = region.word(0).load();
        assert!(is_stamped(seen), "{seen:#x}");
    });
}

/// Long puts and gets may mix several writes, but each word is one that was written.
pub(crate) fn long_transfers_tear_between_words_only(harness: &Harness) {
    let nodes = harness.session(2);
    for words in [5, 64, 512] {
        let region = nodes[1].region(words * 8);
        for word in region.words(0, words) {
            word.store(stamped(0));
        }
        let place = region.remote::<u64>(0);
        let write = |endpoint: &Endpoint, value: u64| {
            let mut buf = endpoint.buf::<u64>(words).unwrap();
            buf.fill(stamped(value));
            endpoint.put_owned(place, buf).wait().unwrap();
        };
        let torn = AtomicUsize::new(0);
        against(&nodes, write, harness.rounds(300), |endpoint| {
            let got = endpoint.get_into(place, endpoint.buf::<u64>(words).unwrap()).wait().unwrap();
            for word in got.iter() {
                assert!(is_stamped(*word), "{word:#x}");
            }
            torn.fetch_add(usize::from(got.windows(2).any(|pair| pair[0] != pair[1])), Ordering::Relaxed);
        });
        let (torn, reads) = (torn.into_inner(), harness.rounds(300));
        println!("{words} words: {torn} of {reads} reads are mixed");
        // An outcome that the model allows must occur in the simulator.
        assert!(torn > 0 || !harness.is_simulated(), "no read of {words} words was mixed");
    }
}

/// A length that is no multiple of a word writes exactly that many bytes; so does a get into a buffer.
pub(crate) fn odd_lengths_write_nothing_beyond(harness: &Harness) {
    let nodes = harness.session(2);
    let region = nodes[1].region(2048);
    let endpoint = nodes[0].endpoint();
    for len in [1, 3, 7, 9, 13, 63, 65, 511, 513, 1023] {
        for word in region.words(0, 256) {
            word.store(u64::MAX);
        }
        let mut buf = endpoint.buf::<u8>(len).unwrap();
        for (at, byte) in buf.iter_mut().enumerate() {
            *byte = at as u8 & 0x7f;
        }
        endpoint.put(region.remote(8), &buf).wait().unwrap();
        endpoint.block_on(endpoint.global_fence([nodes[1].id()])).unwrap();
        let memory: Vec<u8> = region.words(0, 256).iter().flat_map(|word| word.load().to_le_bytes()).collect();
        assert!(memory[..8].iter().all(|byte| *byte == 0xff), "bytes before, length {len}");
        assert_eq!(memory[8..8 + len], buf[..], "length {len}");
        assert!(memory[8 + len..].iter().all(|byte| *byte == 0xff), "bytes behind, length {len}");
        let back = endpoint.get_into(region.remote(8), endpoint.buf::<u8>(len).unwrap()).wait().unwrap();
        assert_eq!(back[..], buf[..]);
    }
    endpoint.put_value(region.remote(8), [1u8, 2, 3]).wait().unwrap();
    endpoint.block_on(endpoint.global_fence([nodes[1].id()])).unwrap();
    assert_eq!(region.word(8).load().to_le_bytes()[..4], [1, 2, 3, 3]);
}
