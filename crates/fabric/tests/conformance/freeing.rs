//! Freed memory is used again, and a late pointer is an error: it never reaches the later memory at its place.

use farfield_fabric::{Endpoint, Error, ErrorKind, GroupKey, NodeId, Region, RemotePtr, Word};

use crate::harness::{Harness, Node, alone, eventually, guarded, refused, soon, threads};

/// Every kind of operation on two words of an endpoint's node, with its result.
fn all_kinds(endpoint: &Endpoint, own: &Region, place: RemotePtr<u64>) -> Vec<(&'static str, Result<(), Error>)> {
    let buf = || {
        let mut buf = endpoint.buf::<u64>(2).unwrap();
        buf.fill(0xbad);
        buf
    };
    let span = own.span(0, 16);
    let batch = endpoint.batch(place.node()).put_value(place, 0xbad).post();
    let mut into = endpoint.buf::<u64>(1).unwrap();
    vec![
        ("put", endpoint.put(place, &buf()).wait()),
        ("put_owned", endpoint.put_owned(place, buf()).wait().map(drop)),
        ("put_from_region", endpoint.put_from_region(place, span).wait()),
        ("get_into", endpoint.get_into(place, buf()).wait().map(drop)),
        ("get_span", endpoint.get_span(place, span).wait()),
        ("put_value", endpoint.put_value(place, 0xbad).wait()),
        ("put of two words", endpoint.put_value(place.cast(), [0xbad_u64; 2]).wait()),
        ("get", endpoint.get(place).wait().map(drop)),
        ("get_torn", endpoint.block_on(endpoint.get_torn(place.cast::<[u64; 2]>())).map(drop)),
        ("cas", endpoint.cas(place, 0, 0xbad).wait().map(drop)),
        ("faa", endpoint.faa(place, 0xbad).wait().map(drop)),
        ("batch", endpoint.block_on(batch)),
        ("get_each", endpoint.block_on(endpoint.get_each(&[place], 1, &mut into))),
        ("check_word", endpoint.check_word(place)),
    ]
}

/// Waits until a node knows that the memory at a place is not there any more.
fn until_freed(endpoint: &Endpoint, place: RemotePtr<u64>) {
    let is_freed = || endpoint.get(place).wait().is_err_and(|error| matches!(error.kind(), ErrorKind::Freed { .. }));
    eventually("a get is late", || is_freed().then_some(()));
}

/// The address of a region on this host.
pub(crate) fn address(region: &Region) -> *const Word {
    region.word(0)
}

/// Memory at the place of earlier memory, and the memory that was allocated on the way to it.
pub(crate) fn again(node: &Node, key: GroupKey, address_before: *const Word, bytes: usize) -> (Region, Vec<Region>) {
    let mut others = Vec::new();
    let found = eventually("the memory is given out again", || {
        let new = node.fabric.alloc(key, bytes).unwrap();
        if address(&new) == address_before {
            return Some(new);
        }
        others.push(new);
        None
    });
    (found, others)
}

/// Freed words are used again as memory is: with other pointers, their pattern, and no effect of late operations.
pub(crate) fn words_given_back_come_back(harness: &Harness) {
    let nodes = harness.session(2);
    let alloc = || nodes[0].fabric.alloc_words(GroupKey::DATA, 9, &[4]).unwrap();
    let words = alloc();
    let late = words.remote(8);
    assert_eq!(nodes[1].endpoint().faa(late, 1).wait().unwrap(), 4);
    nodes[0].fabric.free_words(words).unwrap();
    for node in &nodes {
        until_freed(&node.endpoint(), late);
    }
    // As many as can be had of the place meanwhile: all begin anew.
    let again: Vec<_> = (0..20).map(|_| alloc()).collect();
    for (words, node) in again.iter().zip(nodes.iter().cycle()) {
        let endpoint = node.endpoint();
        assert!(words.remote(8) != late && endpoint.faa(words.remote(8), 1).wait().unwrap() == 4);
        assert!(matches!(refused(endpoint.faa(late, 1).wait()).kind(), ErrorKind::Freed { .. }));
    }
}

/// From all nodes, by all kinds of operation, in the middle of the memory too; before and after it is given out again.
pub(crate) fn late_pointers_are_refused(harness: &Harness) {
    let nodes = harness.session(2);
    let (further, _) = guarded(&nodes, 1, 64);
    for key in [GroupKey::DATA, GroupKey::SIGNAL, further] {
        let [before, region, after] = [(); 3].map(|()| nodes[1].fabric.alloc(key, 256).unwrap());
        let late = [0, 8, 64, 240].map(|at| region.remote::<u64>(at));
        let check = || {
            for node in &nodes {
                let (endpoint, own) = (node.endpoint(), node.region(16));
                until_freed(&endpoint, late[0]);
                for place in late {
                    for (kind, result) in all_kinds(&endpoint, &own, place) {
                        let expected = ErrorKind::Freed { node: NodeId(1), key, offset: place.offset() };
                        assert_eq!(result.err().map(|error| error.kind().clone()), Some(expected), "{kind}");
                    }
                }
                for neighbour in [&before, &after] {
                    endpoint.faa(neighbour.remote(248), 1).wait().unwrap();
                }
            }
        };
        let endpoint = nodes[0].endpoint();
        endpoint.put_value(late[1], 5).wait().unwrap();
        assert_eq!(endpoint.get(late[1]).wait().unwrap(), 5);
        nodes[1].fabric.free(region.clone()).unwrap();
        check();
        nodes[1].fabric.free(region.clone()).unwrap(); // it was given back already
        // Its holder here can still access it.
        region.word(16).store(7);
        let another = nodes[1].fabric.alloc(key, 256).unwrap();
        assert_ne!(address(&another), address(&region));
        assert_eq!((region.word(8).load(), region.word(16).load()), (5, 7));
        let lay = address(&region);
        drop(region);
        let (new, _others) = again(&nodes[1], key, lay, 256);
        assert!(new.words(0, 32).iter().all(|word| word.load() == 0), "it is zeroed");
        assert_ne!(new.remote(0), late[0]);
        let last = new.remote::<u64>(248);
        eventually("the new memory is reached", || endpoint.put_value(last, 9).wait().ok());
        assert_eq!(endpoint.get(last).wait().unwrap(), 9);
        check();
        assert_eq!(new.words(0, 32).iter().map(Word::load).sum::<u64>(), 9, "nothing else has come");
        for neighbour in [before, after] {
            assert_eq!(neighbour.words(0, 32).iter().map(Word::load).sum::<u64>(), 4);
        }
    }
}

/// A node cannot free memory of others.
pub(crate) fn memory_of_others_is_not_given_back(harness: &Harness) {
    let nodes = harness.session(2);
    let region = nodes[1].region(64);
    refused(nodes[0].fabric.free(region.clone()));
    nodes[0].endpoint().put_value(region.remote::<u64>(0), 5).wait().unwrap();
    nodes[1].endpoint().get(region.remote::<u64>(0)).wait().unwrap();
}

/// Memory that is given out and back ten thousand times, many times as much as there is; a tenth of that where a
/// processor is emulated or a scheduler decides at every step.
pub(crate) fn memory_given_back_comes_back(harness: &Harness) {
    let (nodes, limit) = harness.session_with_small_groups(2);
    let (cycles, bytes) = match harness.name {
        "sim" => (1_000, limit / 512),
        "verbs" | "ucx" | "ucx(all)" => (1_000, limit / 128),
        _ => (10_000, limit / 128),
    };
    alone(&nodes[1], |endpoint| {
        let mut late = RemotePtr::<u64>::new(NodeId(1), GroupKey::DATA, 0);
        for cycle in 0..cycles {
            // Side by side, of varying sizes.
            let sizes =
                if cycle % 2 == 0 { [bytes / 2, bytes / 4, bytes / 4] } else { [bytes / 4, bytes / 2, bytes / 4] };
            let regions = sizes.map(|size| nodes[1].region(size));
            for region in regions {
                for word in [region.word(0), region.word(region.bytes() - 8)] {
                    assert_eq!(word.load(), 0, "cycle {cycle}");
                    word.store(7);
                }
                if cycle % 16 == 0 {
                    if cycle > 0 {
                        assert!(matches!(refused(endpoint.get(late).wait()).kind(), ErrorKind::Freed { .. }));
                    }
                    late = region.remote(0);
                    endpoint.faa(late, 1).wait().unwrap();
                    assert_eq!(endpoint.get(late).wait().unwrap(), 8);
                }
                nodes[1].fabric.free(region).unwrap();
            }
        }
    });
}

/// Sizes of long operations: so that memory is given back in the middle of one.
fn long(harness: &Harness) -> usize {
    match harness.name {
        "sim" => 64,
        "shm" => 256 << 10,
        _ => 4 << 10,
    }
}

/// Notes that a thread has ended, in any way.
struct Ends<'w>(&'w Word);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(1);
    }
}

/// A node puts through a pointer that the owner gives out, waiting for it or not, on and on after the memory is given
/// back. The memory that the owner gives out then is zero, and stays so.
pub(crate) fn late_puts_change_nothing_that_is_given_out_later(harness: &Harness) {
    let (nodes, bytes) = (harness.session(2), long(harness));
    let (place, done) = (Word::new(0), Word::new(0));
    let write = || {
        let endpoint = nodes[0].endpoint();
        let mut round = 0;
        while done.load() == 0 {
            let to = RemotePtr::<u64>::from_packed(place.load());
            if to.packed() == 0 {
                endpoint.block_on(endpoint.pause());
                continue;
            }
            let mut buf = endpoint.buf::<u64>(bytes / 8).unwrap();
            buf.fill(0xbad);
            round += 1;
            let is_late = |result: Result<(), Error>| {
                if let Err(error) = result {
                    assert!(matches!(error.kind(), ErrorKind::Freed { .. }), "{error}");
                }
            };
            match round % 4 {
                0 => drop(endpoint.put(to, &buf)),
                1 => is_late(endpoint.put_value(to.byte_add(64 * (round / 4) % bytes as u64), 0xbad).wait()),
                2 => is_late(endpoint.faa(to, 1).wait().map(drop)),
                _ => is_late(endpoint.put(to, &buf).wait()),
            }
        }
    };
    let own = || {
        let (endpoint, _ends) = (nodes[1].endpoint(), Ends(&done));
        for round in 0..harness.rounds(50) {
            let region = nodes[1].region(bytes);
            for look in 0..3 {
                let seen = region.words(0, bytes / 8).iter().position(|word| word.load() != 0);
                assert_eq!(seen, None, "round {round}, look {look}: a late put has landed");
                endpoint.block_on(endpoint.pause());
            }
            place.store(region.remote::<u64>(0).packed());
            soon(&endpoint, "a put has landed", || region.word(0).load() != 0);
            nodes[1].fabric.free(region).unwrap();
        }
    };
    threads([(&nodes[0], &write), (&nodes[1], &own)]);
}

/// A get brings the contents of the time when its pointer was valid, or an error.
pub(crate) fn late_gets_bring_nothing_of_reallocated_memory(harness: &Harness) {
    let (nodes, bytes) = (harness.session(2), long(harness));
    let (place, count, done) = (Word::new(0), Word::new(0), Word::new(0));
    let read = || {
        let (endpoint, own) = (nodes[0].endpoint(), nodes[0].region(bytes));
        let mut round = 0;
        while done.load() == 0 {
            let from = RemotePtr::<u64>::from_packed(place.load());
            if from.packed() == 0 {
                endpoint.block_on(endpoint.pause());
                continue;
            }
            round += 1;
            let brought = match round % 3 {
                0 => endpoint.get(from.byte_add(64 * (round / 4) % bytes as u64)).wait().map(|word| vec![word]),
                1 => {
                    let got = endpoint.get_span(from, own.span(0, bytes)).wait();
                    got.map(|()| own.words(0, bytes / 8).iter().map(Word::load).collect())
                }
                _ => endpoint.get_into(from, endpoint.buf(bytes / 8).unwrap()).wait().map(|buf| buf.to_vec()),
            };
            match brought {
                Ok(words) => assert!(words.iter().all(|word| *word == from.packed()), "{words:x?} by {from:?}"),
                Err(error) => assert!(matches!(error.kind(), ErrorKind::Freed { .. }), "{error}"),
            }
            count.fetch_add(1);
        }
    };
    let own = || {
        let (endpoint, _ends) = (nodes[1].endpoint(), Ends(&done));
        for _ in 0..harness.rounds(50) {
            let region = nodes[1].region(bytes);
            let packed = region.remote::<u64>(0).packed();
            region.words(0, bytes / 8).iter().for_each(|word| word.store(packed));
            place.store(packed);
            let before = count.load();
            soon(&endpoint, "a get is done", || count.load() != before);
            nodes[1].fabric.free(region).unwrap();
        }
    };
    threads([(&nodes[0], &read), (&nodes[1], &own)]);
}
