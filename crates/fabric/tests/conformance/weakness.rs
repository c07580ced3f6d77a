//! The outcomes that the model leaves open. On a fabric made for tests each such outcome must occur, or objects that
//! rely on its absence would pass. The fences that exclude them must work. Names in brackets are those of the model's
//! page.

use farfield_fabric::{Endpoint, NodeId};

use crate::harness::{Harness, Lines, Outcomes, alone, guarded, litmus, never, reachable, soon};

/// Rounds of one try.
const TRY: usize = 200;

/// The value of another node's line when all puts of this endpoint to that node are visible.
fn flushed(endpoint: &Endpoint, line: &Lines, round: usize) -> u64 {
    let word = line.remote(round);
    endpoint.block_on(endpoint.global_fence([word.node()])).unwrap();
    endpoint.get(word).wait().unwrap()
}

/// [Fig 1, as the types allow it] A put by value copies the value, and a buffer cannot be changed before the put has
/// read it.
pub(crate) fn a_later_change_is_not_sent_by_value_or_buffer(harness: &Harness) {
    let nodes = harness.session(2);
    let z = Lines::at(&nodes[1], 2);
    alone(&nodes[0], |endpoint| {
        let mut buf = endpoint.buf::<u64>(1).unwrap();
        let mut value;
        for _ in 0..harness.rounds(1_000) {
            value = 7;
            drop(endpoint.put_value(z.remote(0), value));
            value += 1;
            buf[0] = 7;
            drop(endpoint.put(z.remote(1), &buf));
            buf[0] = value;
            assert_eq!([0, 1].map(|line| flushed(endpoint, &z, line)), [7, 7]);
        }
    });
}

/// [3d, 3e] A change after the wait for a live put is not sent, whatever was posted before it.
pub(crate) fn a_later_change_is_not_sent_after_the_wait(harness: &Harness) {
    let nodes = harness.session(2);
    let rounds = harness.rounds(1_000);
    let (x, z) = (Lines::at(&nodes[0], rounds), Lines::at(&nodes[1], rounds));
    let other = nodes[1].region(8);
    alone(&nodes[0], |endpoint| {
        for round in 0..rounds {
            if round % 2 == 1 {
                drop(endpoint.put_value(other.remote::<u64>(0), 9));
            }
            endpoint.put_from_region(z.remote(round), x.0.span(64 * round, 8)).wait().unwrap();
            x.store(round, 1);
            assert_eq!(flushed(endpoint, &z, round), 0);
        }
    });
}

/// [G2] A remote fence keeps a later put from overtaking a get.
pub(crate) fn a_get_does_not_see_a_put_behind_a_fence(harness: &Harness) {
    let nodes = harness.session(2);
    let rounds = harness.rounds(1_000);
    let y = Lines::at(&nodes[1], rounds);
    alone(&nodes[0], |endpoint| {
        for round in 0..rounds {
            let get = endpoint.get(y.remote(round));
            drop(endpoint.remote_fence(NodeId(1)));
            drop(endpoint.put_value(y.remote(round), 1u64));
            assert_eq!(get.wait().unwrap(), 0);
        }
    });
}

/// [N1] Get, fence, put of the result: the put flushes the get's result to memory before it reads it (nfo).
pub(crate) fn a_fence_orders_a_get_before_a_put_of_its_result(harness: &Harness) {
    let nodes = harness.session(2);
    let rounds = harness.rounds(1_000);
    let (x, w) = (Lines::at(&nodes[0], rounds), Lines::at(&nodes[1], rounds));
    let one = nodes[1].region(8);
    one.word(0).store(1);
    alone(&nodes[0], |endpoint| {
        for round in 0..rounds {
            drop(endpoint.get_span(one.remote::<u64>(0), x.0.span(64 * round, 8)));
            drop(endpoint.remote_fence(NodeId(1)));
            drop(endpoint.put_from_region(w.remote(round), x.0.span(64 * round, 8)));
            assert_eq!(flushed(endpoint, &w, round), 1);
        }
    });
}

/// [Fig 1] `z̄ := x; x := 1` may send 1 when x is live.
pub(crate) fn reachable_live_change(harness: &Harness) {
    let nodes = harness.session(2);
    reachable([1], || {
        let (x, z) = (Lines::at(&nodes[0], TRY), Lines::at(&nodes[1], TRY));
        let body = |endpoint: &Endpoint, round: usize| {
            drop(endpoint.put_from_region(z.remote(round), x.0.span(64 * round, 8)));
            x.store(round, 1);
            flushed(endpoint, &z, round)
        };
        litmus(TRY, [(&nodes[0], &body)])
    });
}

/// [4 top] Waiting for a put does not make it visible.
pub(crate) fn reachable_store_buffering_of_puts(harness: &Harness) {
    let nodes = harness.session(2);
    reachable([0, 0], || {
        let (x, y) = (Lines::at(&nodes[0], TRY), Lines::at(&nodes[1], TRY));
        let first = |endpoint: &Endpoint, round| {
            endpoint.put_value(y.remote(round), 1u64).wait().unwrap();
            x.load(round)
        };
        let second = |endpoint: &Endpoint, round| {
            endpoint.put_value(x.remote(round), 1u64).wait().unwrap();
            y.load(round)
        };
        litmus(TRY, [(&nodes[0], &first), (&nodes[1], &second)])
    });
}

/// [5'] Figure 5 with a wait in place of the global fence.
pub(crate) fn reachable_store_buffering_without_global_fence(harness: &Harness) {
    let nodes = harness.session(2);
    reachable([0, 0], || {
        let x: Vec<_> = nodes.iter().map(|node| Lines::at(node, TRY)).collect();
        let y: Vec<_> = nodes.iter().map(|node| Lines::at(node, TRY)).collect();
        let first = |endpoint: &Endpoint, round: usize| {
            x[0].store(round, 1);
            endpoint.put_from_region(x[1].remote(round), x[0].0.span(64 * round, 8)).wait().unwrap();
            y[0].load(round)
        };
        let second = |endpoint: &Endpoint, round: usize| {
            y[1].store(round, 1);
            endpoint.put_from_region(y[0].remote(round), y[1].0.span(64 * round, 8)).wait().unwrap();
            x[1].load(round)
        };
        litmus(TRY, [(&nodes[0], &first), (&nodes[1], &second)])
    });
}

/// [G1] A later put may overtake a get (NRR→NRW is not ordered).
pub(crate) fn reachable_get_overtaken_by_put(harness: &Harness) {
    let nodes = harness.session(2);
    reachable([1], || {
        let y = Lines::at(&nodes[1], TRY);
        let body = |endpoint: &Endpoint, round| {
            let get = endpoint.get(y.remote(round));
            drop(endpoint.put_value(y.remote(round), 1u64));
            get.wait().unwrap()
        };
        litmus(TRY, [(&nodes[0], &body)])
    });
}

/// [N2] Get, put of the result, without a fence: the put may send the previous value.
pub(crate) fn reachable_put_of_a_result_not_there_yet(harness: &Harness) {
    let nodes = harness.session(2);
    let one = nodes[1].region(8);
    one.word(0).store(1);
    reachable([0], || {
        let (x, w) = (Lines::at(&nodes[0], TRY), Lines::at(&nodes[1], TRY));
        let body = |endpoint: &Endpoint, round: usize| {
            drop(endpoint.get_span(one.remote::<u64>(0), x.0.span(64 * round, 8)));
            drop(endpoint.put_from_region(w.remote(round), x.0.span(64 * round, 8)));
            flushed(endpoint, &w, round)
        };
        litmus(TRY, [(&nodes[0], &body)])
    });
}

/// [L1] A completed put to the endpoint's own node may not be visible to that node's CPU.
pub(crate) fn reachable_own_put_not_visible(harness: &Harness) {
    let nodes = harness.session(1);
    reachable([0], || {
        let x = Lines::at(&nodes[0], TRY);
        let body = |endpoint: &Endpoint, round| {
            endpoint.put_value(x.remote(round), 1u64).wait().unwrap();
            x.load(round)
        };
        litmus(TRY, [(&nodes[0], &body)])
    });
}

/// Waits until a line of this node contains 1.
fn wait(endpoint: &Endpoint, line: &Lines, round: usize) {
    soon(endpoint, "a put lands", || line.load(round) == 1);
}

/// Two puts to different nodes are not ordered: a reader that sees the second may still not find the first.
pub(crate) fn reachable_reordering_across_nodes(harness: &Harness) {
    let nodes = harness.session(3);
    reachable([0, 0], || {
        let (z, x) = (Lines::at(&nodes[2], TRY), Lines::at(&nodes[1], TRY));
        let source = |endpoint: &Endpoint, round| {
            drop(endpoint.put_value(z.remote(round), 1u64));
            drop(endpoint.put_value(x.remote(round), 1u64));
            0
        };
        let observer = |endpoint: &Endpoint, round| {
            wait(endpoint, &x, round);
            endpoint.get(z.remote(round)).wait().unwrap()
        };
        litmus(TRY, [(&nodes[0], &source), (&nodes[1], &observer)])
    });
}

/// [8c', 9b] The same with a messenger: n1 puts z to n3 and x to n2, n2 forwards x to n3 as y, and n3 sees y before z.
pub(crate) fn reachable_reordering_across_three_nodes(harness: &Harness) {
    let nodes = harness.session(3);
    reachable([0, 0, 0], || {
        let (z, y, x) = (Lines::at(&nodes[2], TRY), Lines::at(&nodes[2], TRY), Lines::at(&nodes[1], TRY));
        let source = |endpoint: &Endpoint, round| {
            drop(endpoint.put_value(z.remote(round), 1u64));
            drop(endpoint.put_value(x.remote(round), 1u64));
            0
        };
        let messenger = |endpoint: &Endpoint, round| {
            wait(endpoint, &x, round);
            drop(endpoint.put_value(y.remote(round), 1u64));
            0
        };
        let reader = |endpoint: &Endpoint, round| {
            wait(endpoint, &y, round);
            z.load(round)
        };
        let outcomes: Outcomes<3> = litmus(TRY, [(&nodes[0], &source), (&nodes[1], &messenger), (&nodes[2], &reader)]);
        never(&outcomes, [0, 0, 2]);
        outcomes
    });
}

/// Two puts to one node, to groups that have queue pairs of their own, are not ordered.
pub(crate) fn reachable_reordering_across_groups(harness: &Harness) {
    let nodes = harness.session(2);
    let (key, _) = guarded(&nodes, 1, 64);
    reachable([0, 0], || {
        let z = Lines(nodes[1].fabric.alloc(key, 64 * TRY).unwrap());
        let x = Lines::at(&nodes[1], TRY);
        let source = |endpoint: &Endpoint, round| {
            drop(endpoint.put_value(z.remote(round), 1u64));
            drop(endpoint.put_value(x.remote(round), 1u64));
            0
        };
        let reader = |endpoint: &Endpoint, round| {
            wait(endpoint, &x, round);
            z.load(round)
        };
        litmus(TRY, [(&nodes[0], &source), (&nodes[1], &reader)])
    });
}
