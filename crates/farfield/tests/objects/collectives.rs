//! Collectives: calls of all kinds and lengths give what a program without nodes would compute, and a member that is
//! replaced is told so.

use farfield::collectives::CallFailed;
use farfield::{Collectives, CollectivesOptions, Endpoint, ErrorKind, on_each};

use crate::harness::{Rng, SHORT, Scene, mix, on_each_fabric, refused};

fn options(chunk_bytes: usize, slots: usize) -> CollectivesOptions {
    let mut options = CollectivesOptions::default();
    (options.chunk_bytes, options.slots) = (chunk_bytes, slots);
    options
}

/// An element of a member's data. Its sums depend on their order, in the last bits.
fn element(call: usize, member: usize, at: usize) -> f64 {
    let bits = mix((call << 40 | member << 32 | at) as u64);
    (bits >> 12) as f64 / 3.0
}

/// A type whose length is no number of words, and an operation that does not commute.
type Odd = [u8; 3];

fn odd(call: usize, member: usize, at: usize) -> Odd {
    let bytes = mix((call << 40 | member << 32 | at) as u64).to_le_bytes();
    [bytes[0], bytes[1], bytes[2]]
}

fn then(a: Odd, b: Odd) -> Odd {
    [a[0].wrapping_mul(3).wrapping_add(b[0]), a[1].wrapping_mul(5) ^ b[1], b[2]]
}

/// Calls that follow from a seed, on each member. Each result is compared with that of the sequential model.
fn calls_follow_the_model(scene: &Scene) {
    let members = scene.nodes.len();
    for (round, (chunk_bytes, slots)) in [(8, 2), (64, 2), (200, 4), (32 << 10, 4)].into_iter().enumerate() {
        let path = format!("all-{round}");
        let open = |node: &_| Collectives::open(node, &path, options(chunk_bytes, slots));
        let all: Vec<_> = scene.open(open).into_iter().map(std::sync::Mutex::new).collect();
        scene.run(|me, _, ep| {
            let mut all = all[me].lock().unwrap();
            let mut rng = Rng::new(round as u64); // the same on all members
            for call in 0..scene.rounds(12, 60) {
                let (kind, root) = (rng.below(7), rng.below(members));
                let len = [rng.below(4), rng.below(100), rng.below(3000)][rng.below(3)];
                make(scene, &mut all, ep, me, kind, root, call, len);
            }
        });
    }
}

#[allow(clippy::too_many_arguments, reason = "what a call is made of")]
fn make(
    scene: &Scene,
    all: &mut Collectives,
    ep: &Endpoint,
    me: usize,
    kind: usize,
    root: usize,
    call: usize,
    len: usize,
) {
    let (members, at) = (scene.nodes.len(), scene.id(root));
    let of = |member| (0..len).map(|at| element(call, member, at)).collect::<Vec<f64>>();
    let sum = |at| (1..members).fold(element(call, 0, at), |sum, member| sum + element(call, member, at));
    let sums = || (0..len).map(sum).collect::<Vec<f64>>();
    let everything = || (0..members).flat_map(of).collect::<Vec<f64>>();
    let (mut data, mut into) = (of(me), vec![0.0; members * len]);
    let label = format!("call {call} of kind {kind}, {len} elements, root {root}, on {me}");
    match kind {
        0 => {
            all.broadcast_blocking(ep, at, &mut data).unwrap();
            assert_eq!(data, of(root), "{label}");
        }
        1 => {
            all.reduce_blocking(ep, at, &mut data, |a, b| a + b).unwrap();
            assert_eq!(data, if me == root { sums() } else { of(me) }, "{label}");
        }
        2 => {
            all.all_reduce_blocking(ep, &mut data, |a, b| a + b).unwrap();
            assert_eq!(data, sums(), "{label}: to the last bit");
        }
        3 => {
            into.truncate(if me == root { into.len() } else { 0 });
            all.gather_blocking(ep, at, &data, &mut into).unwrap();
            assert_eq!(into, if me == root { everything() } else { vec![] }, "{label}");
        }
        4 => {
            all.all_gather_blocking(ep, &data, &mut into).unwrap();
            assert_eq!(into, everything(), "{label}");
        }
        5 => {
            let parts: Vec<f64> = (0..members * len).map(|at| element(call, me, at)).collect();
            all.all_to_all_blocking(ep, &parts, &mut into).unwrap();
            let from = |member| (0..len).map(move |at| element(call, member, me * len + at));
            assert_eq!(into, (0..members).flat_map(from).collect::<Vec<f64>>(), "{label}");
        }
        _ => {
            // An element has to fit into a chunk.
            let mut data: Vec<Odd> = (0..len).map(|at| odd(call, me, at)).collect();
            all.all_reduce_blocking(ep, &mut data, then).unwrap();
            let fold = |at| (1..members).fold(odd(call, 0, at), |done, member| then(done, odd(call, member, at)));
            assert_eq!(data, (0..len).map(fold).collect::<Vec<Odd>>(), "{label}");
        }
    }
}

#[test]
fn one_member_is_alone() {
    on_each_fabric("collectives of one", 1, calls_follow_the_model);
}

#[test]
fn two_members_follow_the_model() {
    on_each_fabric("collectives of two", 2, calls_follow_the_model);
}

#[test]
fn three_members_follow_the_model() {
    on_each_fabric("collectives of three", 3, calls_follow_the_model);
}

#[test]
fn five_members_follow_the_model() {
    on_each_fabric("collectives of five", 5, calls_follow_the_model);
}

/// A member does not call. The other's call ends with its deadline, and both reopen the object.
#[test]
fn after_a_timeout_the_members_reopen() {
    on_each_fabric("collectives reopened", 2, |scene| {
        let open = |node: &_| Collectives::open(node, "all", options(64, 2));
        let mut all = scene.open(open);
        let (ep, far) = (scene.endpoint(0), scene.endpoint(1));
        ep.set_timeout(SHORT);
        let error = refused(all[0].all_reduce_blocking(&ep, &mut [1], |a, b| a + b));
        assert!(error.is_timeout() && error.node() == Some(scene.id(1)), "{error}");
        // The call ends well where everything has come, and the next one fails.
        let mut call = || all[1].all_reduce_blocking(&far, &mut [1], |a, b| a + b);
        let told = refused(call().and_then(|()| call()));
        assert!(told.node().is_some() && told.custom_ref::<CallFailed>().is_some(), "{told}");
        let again = |node: &farfield::Node| {
            node.reopen("all", |again| Collectives::open_among(node, again.path(), again.members(), options(64, 2)))
        };
        let new: Vec<_> = on_each(&scene.nodes, again).unwrap().into_iter().map(std::sync::Mutex::new).collect();
        let stale = refused(all[0].all_reduce_blocking(&ep, &mut [1], |a, b| a + b));
        assert!(matches!(stale.kind(), ErrorKind::Reopened { .. }), "{stale}");
        scene.run(|me, _, ep| {
            let mut data = [1 + me];
            new[me].lock().unwrap().all_reduce_blocking(ep, &mut data, |a, b| a + b).unwrap();
            assert_eq!(data, [3]);
        });
    });
}
