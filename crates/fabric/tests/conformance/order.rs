//! The orders of the model: outcomes that must never be seen. Test names in brackets are those of the model's page.

use farfield_fabric::{Buf, Endpoint, GroupKey, NodeId, Region, RemotePtr, Word};

use crate::harness::{Harness, Lines, Node, alone, litmus, never, threads};

/// A get flushes this thread's earlier puts to its node (NRW→NRR), the own node included, without waiting for them.
pub(crate) fn a_get_sees_the_puts_before_it(harness: &Harness) {
    let nodes = harness.session(2);
    for home in &nodes {
        let word = home.region(64).remote::<u64>(0);
        alone(&nodes[0], |endpoint| {
            for value in 1..=harness.rounds(2_000) as u64 {
                drop(endpoint.put_value(word, value));
                assert_eq!(endpoint.get(word).wait().unwrap(), value, "on {}", home.id());
            }
        });
    }
}

/// Puts to one node land in order (NRW→NRW): a reader that sees the flag sees the data.
pub(crate) fn messages_pass(harness: &Harness) {
    let nodes = harness.session(2);
    message_passing(&nodes, harness.rounds(5_000) as u64, 1);
}

/// As [`messages_pass`]; each message is 64 words, which may land in any order, but all before the flag.
pub(crate) fn messages_pass_with_long_data(harness: &Harness) {
    let nodes = harness.session(2);
    message_passing(&nodes, harness.rounds(500) as u64, 64);
    message_passing(&nodes, harness.rounds(100) as u64, 512);
}

fn message_passing(nodes: &[Node], messages: u64, words: usize) {
    let (data, flag) = (nodes[1].region(words * 8), nodes[1].region(8));
    let write = || {
        let (target, ready) = (data.remote::<u64>(0), flag.remote::<u64>(0));
        let endpoint = nodes[0].endpoint();
        let mut buf = endpoint.buf::<u64>(words).unwrap();
        for message in 1..=messages {
            buf.fill(message);
            drop(endpoint.put(target, &buf));
            let announced = endpoint.put_value(ready, message);
            // Now and then it waits, so that both sides of a queue pair's pace are tried.
            if message % 8 == 0 {
                announced.wait().unwrap();
            }
        }
        endpoint.block_on(endpoint.global_fence([NodeId(1)])).unwrap();
    };
    let read = || loop {
        let seen = flag.word(0).load();
        for (at, word) in data.words(0, words).iter().enumerate() {
            let found = word.load();
            assert!(found >= seen, "word {at} holds message {found} after the flag of message {seen}");
        }
        if seen == messages {
            break;
        }
        std::hint::spin_loop();
    };
    threads([(&nodes[0], &write), (&nodes[1], &read)]);
}

/// [9a] A put to a location, then the broadcast of a shared variable to the same node: the second is not seen first.
pub(crate) fn messages_pass_into_local_copies(harness: &Harness) {
    let nodes = harness.session(2);
    let rounds = harness.rounds(2_500);
    let (z, x_there, x_here) =
        (Lines::at(&nodes[1], rounds), Lines::at(&nodes[1], rounds), Lines::at(&nodes[0], rounds));
    let writer = |endpoint: &Endpoint, round: usize| {
        drop(endpoint.put_value(z.remote(round), 1u64));
        x_here.store(round, 1);
        drop(endpoint.put_from_region(x_there.remote(round), x_here.0.span(64 * round, 8)));
        0
    };
    let reader = |_: &Endpoint, round: usize| {
        let a = x_there.load(round);
        a * 2 + z.load(round)
    };
    never(&litmus(rounds, [(&nodes[0], &writer), (&nodes[1], &reader)]), [0, 2]);
}

/// [4 bottom] Each thread puts to the other's node, gets from there, and then reads its own: one of them sees 1.
pub(crate) fn store_buffering_with_put_and_get(harness: &Harness) {
    let nodes = harness.session(2);
    let rounds = harness.rounds(5_000);
    let (x, y) = (Lines::at(&nodes[0], rounds), Lines::at(&nodes[1], rounds));
    let side = |mine: &Lines, theirs: &Lines, endpoint: &Endpoint, round: usize| {
        drop(endpoint.put_value(theirs.remote(round), 1u64));
        endpoint.get(RemotePtr::<u64>::new(theirs.remote(round).node(), GroupKey::SIGNAL, 0)).wait().unwrap();
        mine.load(round)
    };
    let first = |endpoint: &Endpoint, round| side(&x, &y, endpoint, round);
    let second = |endpoint: &Endpoint, round| side(&y, &x, endpoint, round);
    never(&litmus(rounds, [(&nodes[0], &first), (&nodes[1], &second)]), [0, 0]);
}

/// The same where the put and the get are one call, on two words of a record.
pub(crate) fn store_buffering_with_a_put_and_a_get_together(harness: &Harness) {
    let nodes = harness.session(2);
    let rounds = harness.rounds(5_000);
    let (first_word, second_word) = (0, 8); // each has a line of the cache
    let records = nodes[1].region(128 * rounds);
    let side = |own: usize, other: usize, endpoint: &Endpoint, round: usize| {
        let record = records.remote::<u64>(128 * round);
        if let Some([seen]) = endpoint.put_and_get_at_once(record, (own, 1), other) {
            return seen;
        }
        drop(endpoint.put_value(record.at(own), 1));
        endpoint.get(record.at(other)).wait().unwrap()
    };
    let first = |endpoint: &Endpoint, round| side(first_word, second_word, endpoint, round);
    let second = |endpoint: &Endpoint, round| side(second_word, first_word, endpoint, round);
    never(&litmus(rounds, [(&nodes[0], &first), (&nodes[1], &second)]), [0, 0]);
}

/// [8a] Two threads of a node, with a fence that also wakes others between store and load (CW→MF→CR).
pub(crate) fn store_buffering_with_a_fence_that_wakes(harness: &Harness) {
    let nodes = harness.session(1);
    let rounds = harness.rounds(5_000);
    let (x, y) = (Lines::at(&nodes[0], rounds), Lines::at(&nodes[0], rounds));
    let side = |own: &Lines, other: &Lines, endpoint: &Endpoint, round: usize| {
        own.store(round, 1);
        endpoint.fence_and_wake_local();
        other.load(round)
    };
    let first = |endpoint: &Endpoint, round| side(&x, &y, endpoint, round);
    let second = |endpoint: &Endpoint, round| side(&y, &x, endpoint, round);
    never(&litmus(rounds, [(&nodes[0], &first), (&nodes[0], &second)]), [0, 0]);
}

/// Each thread writes the word in its own memory by a CPU store and gets the other's (CW→NRR): one of them sees 1.
pub(crate) fn store_buffering_with_a_local_store_and_get(harness: &Harness) {
    let nodes = harness.session(2);
    let rounds = harness.rounds(5_000);
    let (x, y) = (Lines::at(&nodes[0], rounds), Lines::at(&nodes[1], rounds));
    let first = |endpoint: &Endpoint, round| {
        x.store(round, 1);
        endpoint.get(y.remote(round)).wait().unwrap()
    };
    let second = |endpoint: &Endpoint, round| {
        y.store(round, 1);
        endpoint.get(x.remote(round)).wait().unwrap()
    };
    never(&litmus(rounds, [(&nodes[0], &first), (&nodes[1], &second)]), [0, 0]);
}

/// How a word is read in [`store_buffering_with_a_local_store_and_every_get`].
type Read = fn(&Endpoint, RemotePtr<u64>, Buf<'_, u64>, &Region) -> u64;

/// The same for every form of get: each has its own fence.
pub(crate) fn store_buffering_with_a_local_store_and_every_get(harness: &Harness) {
    let nodes = harness.session(2);
    let rounds = harness.rounds(2_500);
    let forms: [Read; 4] = [
        |endpoint, word, _, _| endpoint.block_on(endpoint.get_torn(word)).unwrap().validate(|_| true).unwrap(),
        |endpoint, word, mut buf, _| {
            let into = &mut buf;
            endpoint.block_on(endpoint.get_each(&[word], 1, into)).unwrap();
            into[0]
        },
        |endpoint, word, _, cell| {
            endpoint.get_span(word, cell.span(0, 8)).wait().unwrap();
            cell.word(0).load()
        },
        |endpoint, word, buf, _| endpoint.get_into(word, buf).wait().unwrap()[0],
    ];
    let cells = [nodes[0].region(8), nodes[1].region(8)];
    for read in forms {
        let (x, y) = (Lines::at(&nodes[0], rounds), Lines::at(&nodes[1], rounds));
        let first = |endpoint: &Endpoint, round| {
            let buf = endpoint.buf(1).unwrap();
            let word = y.remote(round);
            x.store(round, 1);
            read(endpoint, word, buf, &cells[0])
        };
        let second = |endpoint: &Endpoint, round| {
            let buf = endpoint.buf(1).unwrap();
            let word = x.remote(round);
            y.store(round, 1);
            read(endpoint, word, buf, &cells[1])
        };
        never(&litmus(rounds, [(&nodes[0], &first), (&nodes[1], &second)]), [0, 0]);
    }
}

/// The result of an awaited get is in memory, where other threads of the node find it, before the thread's next reads
/// (NLW→WT→CR).
pub(crate) fn store_buffering_with_results_of_gets(harness: &Harness) {
    let nodes = harness.session(2);
    let rounds = harness.rounds(5_000);
    let (x, y) = (Lines::at(&nodes[0], rounds), Lines::at(&nodes[0], rounds));
    let ones = nodes[1].region(8);
    ones.word(0).store(1);
    let side = |own: &Lines, other: &Lines, endpoint: &Endpoint, round: usize| {
        endpoint.get_span(ones.remote::<u64>(0), own.0.span(64 * round, 8)).wait().unwrap();
        other.load(round)
    };
    let first = |endpoint: &Endpoint, round| side(&x, &y, endpoint, round);
    let second = |endpoint: &Endpoint, round| side(&y, &x, endpoint, round);
    never(&litmus(rounds, [(&nodes[0], &first), (&nodes[0], &second)]), [0, 0]);
}

/// A put leaves the store buffer behind the stores before it: when its source is read, they are in memory (CW→NLR).
pub(crate) fn store_buffering_with_sources_of_puts(harness: &Harness) {
    let nodes = harness.session(2);
    let rounds = harness.rounds(5_000);
    let (x, y) = (Lines::at(&nodes[0], rounds), Lines::at(&nodes[0], rounds));
    let sent = [nodes[1].region(8), nodes[1].region(8)];
    let side = |me: usize, own: &Lines, other: &Lines, endpoint: &Endpoint, round: usize| {
        own.store(round, 1);
        let to = sent[me].remote::<u64>(0);
        drop(endpoint.put_from_region(to, other.0.span(64 * round, 8)));
        endpoint.get(to).wait().unwrap()
    };
    let first = |endpoint: &Endpoint, round| side(0, &x, &y, endpoint, round);
    let second = |endpoint: &Endpoint, round| side(1, &y, &x, endpoint, round);
    never(&litmus(rounds, [(&nodes[0], &first), (&nodes[0], &second)]), [0, 0]);
}

/// [5] Shared variables with a global fence: each writes its copy, broadcasts, fences, and reads its copy of the
/// other's.
pub(crate) fn store_buffering_through_a_copy_and_a_global_fence(harness: &Harness) {
    let nodes = harness.session(2);
    let rounds = harness.rounds(5_000);
    let x = nodes.iter().map(|node| Lines::at(node, rounds)).collect::<Vec<_>>();
    let y = nodes.iter().map(|node| Lines::at(node, rounds)).collect::<Vec<_>>();
    let side = |own: &[Lines], me: usize, other: &[Lines], endpoint: &Endpoint, round: usize| {
        let peer = 1 - me;
        own[me].store(round, 1);
        drop(endpoint.put_from_region(own[peer].remote(round), own[me].0.span(64 * round, 8)));
        endpoint.block_on(endpoint.global_fence([NodeId(peer as u16)])).unwrap();
        other[me].load(round)
    };
    let first = |endpoint: &Endpoint, round| side(&x, 0, &y, endpoint, round);
    let second = |endpoint: &Endpoint, round| side(&y, 1, &x, endpoint, round);
    never(&litmus(rounds, [(&nodes[0], &first), (&nodes[1], &second)]), [0, 0]);
}

/// A remote atomic flushes earlier puts to its node as a get does (NRW→NAR), and once it is waited for its effect is
/// there.
pub(crate) fn store_buffering_with_atomics(harness: &Harness) {
    let nodes = harness.session(2);
    let rounds = harness.rounds(2_500);
    let (x, y) = (Lines::at(&nodes[0], rounds), Lines::at(&nodes[1], rounds));
    let first = |endpoint: &Endpoint, round| {
        assert_eq!(endpoint.faa(y.remote(round), 1).wait().unwrap(), 0);
        x.load(round)
    };
    let second = |endpoint: &Endpoint, round| {
        assert_eq!(endpoint.cas(x.remote(round), 0, 1).wait().unwrap(), 0);
        y.load(round)
    };
    never(&litmus(rounds, [(&nodes[0], &first), (&nodes[1], &second)]), [0, 0]);
}

/// Waiting for a get means that its result has landed: in a value, a buffer, or shared cells (NLW→WT).
pub(crate) fn a_get_is_complete_when_waited_for(harness: &Harness) {
    let nodes = harness.session(2);
    let (source, cells) = (nodes[1].region(256), nodes[0].region(256));
    alone(&nodes[0], |endpoint| {
        let at = source.remote::<u64>(0);
        let mut buf = endpoint.buf::<u64>(32).unwrap();
        for value in 1..=harness.rounds(500) as u64 {
            buf.fill(value);
            drop(endpoint.put(at, &buf));
            assert_eq!(endpoint.get(at).wait().unwrap(), value);
            let whole = endpoint.block_on(endpoint.get_torn(at.cast::<[u64; 32]>())).unwrap();
            assert!(whole.validate(|words| words.iter().all(|word| *word == value)).is_some());
            let into = endpoint.get_into(at, endpoint.buf::<u64>(32).unwrap()).wait().unwrap();
            assert!(into.iter().all(|word| *word == value), "{into:?}");
            endpoint.get_span(at, cells.span(0, 256)).wait().unwrap();
            assert!(cells.words(0, 32).iter().all(|word| word.load() == value));
        }
    });
}

/// Many puts to one word without any wait: the last one stays, and a reader never sees the value go back.
pub(crate) fn many_puts_land_in_order(harness: &Harness) {
    let nodes = harness.session(2);
    let region = nodes[1].region(8);
    let puts = harness.rounds(5_000) as u64;
    let done = Word::new(0);
    let write = || {
        let (endpoint, word) = (nodes[0].endpoint(), region.remote::<u64>(0));
        for value in 1..=puts {
            drop(endpoint.put_value(word, value));
        }
        let seen = endpoint.get(word).wait();
        done.store(1);
        assert_eq!(seen.unwrap(), puts);
    };
    let read = || {
        let mut last = 0;
        while done.load() == 0 {
            let seen = region.word(0).load();
            assert!(seen >= last, "{seen} after {last}");
            last = seen;
        }
        assert_eq!(region.word(0).load(), puts);
    };
    threads([(&nodes[0], &write), (&nodes[1], &read)]);
}
