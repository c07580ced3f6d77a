//! Words in the memory of a device.

use super::*;
use crate::fabric::Words;

const KIB: usize = 1 << 10;

/// Two nodes, each of which has a device with so many bytes of memory.
fn session(name: &str, device_bytes: usize) -> Vec<Served> {
    let stub = || {
        Stub::new(true, |info, options| {
            info.device_memory_bytes = device_bytes as u64;
            options.device_memory_bytes = 4 * KIB;
        })
    };
    let nodes: Vec<_> = (0..2).map(|place| Served::join_on(stub(), name, place, 2)).collect();
    Served::until_all_are_up(&nodes);
    nodes
}

fn words(node: &Served, count: usize, pattern: &[u64]) -> Words {
    node.fabric.alloc_words(GroupKey::DATA, count, pattern).unwrap()
}

/// All operations, from the words' own node and from another one.
fn work(nodes: &[Served], word: RemotePtr<u64>, value: u64) {
    let mut value = value;
    for node in nodes {
        let endpoint = node.endpoint();
        assert_eq!(endpoint.get(word).wait().unwrap(), value);
        assert_eq!(endpoint.faa(word, 3).wait().unwrap(), value);
        assert_eq!(endpoint.cas(word, value + 3, value + 9).wait().unwrap(), value + 3);
        endpoint.put_value(word, value + 10).wait().unwrap();
        let mut both = endpoint.buf::<u64>(2).unwrap();
        both.fill(value + 10);
        endpoint.put(word, &both).wait().unwrap();
        value += 10;
    }
    let endpoint = nodes[0].endpoint();
    endpoint.put_value(word, value - 20).wait().unwrap();
    assert_eq!([word, word.byte_add(8)].map(|word| endpoint.get(word).wait().unwrap()), [value - 20, value]);
}

#[test]
fn words_lie_on_the_device_as_long_as_it_has_room_and_then_in_the_machine() {
    let nodes = session("words", 128 * KIB);
    let stub = &nodes[0].stub;
    let first = words(&nodes[0], 10, &[5, 7]);
    work(&nodes, first.remote(0), 5);
    assert_eq!((first.count(), first.bytes(), stub.state().device_memory.as_slice()), (10, 80, &[4 * KIB][..]));
    assert_eq!(stub.state().device_memory_left, 124 * KIB);
    let endpoint = nodes[1].endpoint();
    assert_eq!([2, 3, 8, 9].map(|at| endpoint.get(first.remote(at)).wait().unwrap()), [5, 7, 5, 7]);
    // 80 bytes take two lines of 64: 62 are left. The rest is elsewhere, and works.
    let large = words(&nodes[0], 8 * 62 + 1, &[1]);
    let rest = words(&nodes[0], 8 * 62, &[2]);
    let none_left = words(&nodes[0], 1, &[]);
    for (words, value) in [(&large, 1), (&rest, 2), (&none_left, 0)] {
        work(&nodes, words.remote(0), value);
        work(&nodes, words.remote(words.count().saturating_sub(2)), if words.count() > 2 { value } else { 0 });
    }
    assert_eq!(stub.state().device_memory.len(), 1);
    // The memory behind them is unused.
    let beyond = endpoint.get(rest.remote(0).byte_add(62 * 64)).wait();
    assert!(matches!(refused(beyond), ErrorKind::OutOfBounds { .. }));
    let region = nodes[0].fabric.alloc(GroupKey::DATA, 64).unwrap();
    endpoint.put_value(region.remote(0), 9_u64).wait().unwrap();
    assert_eq!(region.word(0).load(), 9, "regions lie in the machine's memory");
}

#[test]
fn words_that_are_given_back_serve_again_and_late_pointers_are_errors() {
    let nodes = session("words-again", 4 * KIB);
    let endpoint = nodes[1].endpoint();
    let whole = words(&nodes[0], 512, &[1]);
    let late = whole.remote(3);
    assert_eq!(endpoint.get(late).wait().unwrap(), 1);
    nodes[0].fabric.free_words(whole).unwrap();
    let is_freed = || endpoint.get(late).wait().is_err_and(|error| matches!(error.kind(), ErrorKind::Freed { .. }));
    until("the peer hears of it", is_freed);
    // Its place is taken again when nothing is under way there any more; until then the machine's memory serves.
    let mut elsewhere = Vec::new();
    let mut again = None;
    until("it is given out again", || {
        let words = words(&nodes[0], 512, &[2, 4]);
        let address = words.remote(3).offset() & ((1 << 36) - 1);
        if address == late.offset() {
            again = Some(words)
        } else {
            elsewhere.push(words)
        }
        again.is_some()
    });
    let again = again.expect("it was waited for");
    assert_ne!(again.remote(3), late);
    assert_eq!([again.remote(2), again.remote(3)].map(|word| endpoint.get(word).wait().unwrap()), [2, 4]);
    assert!(is_freed(), "the pointer is late for ever");
    assert_eq!(nodes[0].stub.state().device_memory, [4 * KIB]);
}

#[test]
fn a_device_with_less_memory_than_it_says_gives_all_it_has() {
    let nodes = session("words-less", 128 * KIB);
    nodes[0].stub.state().device_memory_left = KIB;
    let first = words(&nodes[0], 2, &[6]);
    work(&nodes, first.remote(0), 6);
    assert_eq!(nodes[0].stub.state().device_memory, [KIB]);
    // Another process has taken all of it.
    nodes[1].stub.state().device_memory_left = 63;
    let second = words(&nodes[1], 2, &[8]);
    work(&nodes, second.remote(0), 8);
    assert!(nodes[1].stub.state().device_memory.is_empty());
    // The device gets it back with the end of the node.
    let state = Arc::clone(&nodes[0].stub.state);
    drop((first, second, nodes));
    assert_eq!(state.lock().unwrap().device_memory_left, KIB);
}
