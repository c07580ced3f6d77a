//! What fails, and when it is known: an operation is refused while it is posted, and then it alone; or it is accepted,
//! and fails only together with all behind it.

use farfield_fabric::fault::{Faults, inject};
use farfield_fabric::{Endpoint, EndpointOptions, ErrorKind, NodeId, RemotePtr, Result, Word};

use crate::harness::{Harness, SOON, eventually, guarded, refused, soon, threads};

/// One operation of every kind, and puts and gets of several sizes, each let run on by itself.
const KINDS: usize = 9;

fn detached(endpoint: &Endpoint, place: RemotePtr<u64>, kind: usize) -> Result<()> {
    let long = place.cast::<[u64; 32]>();
    let zeros = || {
        let mut buf = endpoint.buf::<u64>(32)?;
        buf.fill(0);
        Ok::<_, farfield_fabric::Error>(buf)
    };
    match kind {
        0 => endpoint.put_value(place, 7).detach(),
        1 => endpoint.put_value(long, [7; 32]).detach(),
        2 => endpoint.put(place, &zeros()?).detach(),
        3 => endpoint.put_owned(place, zeros()?).detach(),
        4 => endpoint.get(place).detach(),
        5 => endpoint.get_into(place, endpoint.buf::<u64>(32)?).detach(),
        6 => endpoint.cas(place, 0, 1).detach(),
        7 => endpoint.faa(place, 1).detach(),
        _ => endpoint.remote_fence(place.node()).detach(),
    }
}

/// Refusals by the fabric itself: the caller learns of them, while other operations are pending, which complete.
pub(crate) fn refusals_are_known_at_once(harness: &Harness) {
    let nodes = harness.session(2);
    let (endpoint, region) = (nodes[0].endpoint(), nodes[1].region(512));
    let (count, place) = (region.remote::<u64>(0), region.remote::<u64>(64));
    let bad = place.byte_add(1 << 40);
    for kind in 0..KINDS - 1 {
        let before = endpoint.faa(count, 1);
        let error = refused(detached(&endpoint, bad, kind));
        assert!(matches!(error.kind(), ErrorKind::OutOfBounds { node: NodeId(1), .. }), "{kind}: {error}");
        detached(&endpoint, count, 7).unwrap();
        before.wait().unwrap();
    }
    assert_eq!(endpoint.get(count).wait().unwrap(), 2 * (KINDS as u64 - 1));
}

/// An operation that is made to fail is refused alike: each kind of operation, behind others, and between the parts of
/// a batch.
pub(crate) fn injected_failures_are_known_at_once(harness: &Harness) {
    let nodes = harness.session(2);
    let faults = Faults::default();
    let endpoint = Endpoint::open(inject(nodes[0].fabric.clone(), faults.clone()), EndpointOptions::default()).unwrap();
    let region = nodes[1].region(512);
    let (count, place) = (region.remote::<u64>(0), region.remote::<u64>(64));
    for kind in 0..KINDS {
        let before: Vec<_> = (0..3).map(|_| endpoint.faa(count, 1)).collect();
        faults.fail_after(0);
        let error = refused(detached(&endpoint, place, kind));
        assert_eq!(*error.kind(), ErrorKind::Injected { node: NodeId(1) }, "{kind}");
        assert!(error.is_refused());
        let behind = endpoint.faa(count, 1).accepted().unwrap();
        assert_eq!(behind.wait().unwrap(), 4 * kind as u64 + 3, "what is behind it comes after what was before");
        for op in before {
            op.wait().unwrap();
        }
        // It is as good as new.
        detached(&endpoint, place, kind).unwrap();
    }
    assert_eq!(endpoint.get(place).wait().unwrap(), 2, "cas and faa, once each: what failed had no effect");
    // Known of one that ended with a failure before the test asked.
    faults.fail_after(1);
    let ops = [endpoint.put_value(place, 5), endpoint.put_value(place, 6)];
    eventually("both have ended", || ops.iter().all(|op| op.is_complete()).then_some(()));
    let [first, second] = ops;
    first.detach().unwrap();
    refused(second.accepted().map(drop));
}

/// The right is taken in the middle, and given back: of the accepted puts, none is done behind one that was not.
pub(crate) fn a_failed_put_fails_all_puts_behind_it(harness: &Harness) {
    let nodes = harness.session(2);
    let puts = if harness.is_simulated() { 4 } else { 100 };
    for round in 0..harness.rounds(10).min(20) {
        let (key, region) = guarded(&nodes, 1, 8 * puts);
        let posted = Word::new(0);
        let write = || {
            let endpoint = nodes[0].endpoint();
            let put = |at| endpoint.put_value(region.remote::<u64>(8 * at), 1).accepted();
            let ops: Vec<_> = (0..puts).map_while(|at| put(at).ok()).collect();
            posted.store(1);
            let is_done: Vec<bool> = ops.into_iter().map(|op| op.wait().is_ok()).collect();
            assert!(is_done.is_sorted_by(|before, after| before >= after), "round {round}: {is_done:?}");
        };
        let revoke = || {
            let endpoint = nodes[1].endpoint();
            soon(&endpoint, "all is posted", || posted.load() == 1);
            nodes[1].fabric.revoke(NodeId(0), key, SOON).unwrap();
            nodes[1].fabric.permit(NodeId(0), key).unwrap();
        };
        threads([(&nodes[0], &write), (&nodes[1], &revoke)]);
        let landed: Vec<u64> = region.words(0, puts).iter().map(Word::load).collect();
        assert!(landed.is_sorted_by(|before, after| before >= after), "round {round}: {landed:?}");
    }
}
