//! Variables: the word that all update, the word that any node pushes, and values with one owner.

pub(super) mod atomic;
mod node_failure;
mod owned;

use std::rc::Rc;

use farfield_core::{Endpoint, NodeId, Result, SharedVar, TearCheck};

use self::atomic::{atomic_any, atomic_pairs, atomic_wait_change};
use self::owned::{
    Seen, owned_arrives, owned_load, owned_local, owned_pull, owned_store_after_push, owned_versions, owned_word,
    sst_opened, sst_rows,
};
use super::keep;
use farfield_check::{Cluster, Scenario};

pub(super) fn scenarios() -> Vec<Scenario> {
    let mut all = atomic_pairs();
    all.extend([atomic_any(), atomic_wait_change()]);
    all.extend([shared_fence(), shared_forwarded(), shared_in_order(), shared_versions()]);
    all.extend([shared_store_after_push(), shared_pull(), shared_pull_own_push()]);
    for wholeness in [TearCheck::Guards, TearCheck::Checksum] {
        all.extend([owned_load(wholeness), owned_versions(wholeness), owned_local(wholeness), owned_pull(wholeness)]);
        all.extend([owned_store_after_push(wholeness), owned_arrives(wholeness)]);
    }
    all.extend([owned_word(), sst_rows(), sst_opened()]);
    all.extend(node_failure::scenarios());
    all
}

const N0: NodeId = NodeId(0);
const N1: NodeId = NodeId(1);
const N2: NodeId = NodeId(2);

type Shared = SharedVar<u64>;

/// Variables x, y, … on all nodes.
fn shared<const COUNT: usize>(cluster: &Cluster) -> Result<Rc<Vec<[Shared; COUNT]>>> {
    let open = |node: &farfield_core::Node| -> Result<[Shared; COUNT]> {
        let vars =
            ["x", "y", "z"].iter().take(COUNT).map(|path| Shared::open(node, path)).collect::<Result<Vec<_>>>()?;
        Ok(vars.try_into().ok().expect("as many variables as names"))
    };
    Ok(keep(cluster, cluster.on_each(open)?))
}

/// Waits until a variable's copy here is 1.
fn until_set(ep: &Endpoint, var: &Shared) -> Result<()> {
    Ok(ep.block_on(ep.wait_until(ep.deadline(), || (var.load() == 1).then_some(())))?)
}

/// Fig. 5: after the fence, NRW precedes the CR that follows. Neither waiting for the push nor a remote fence
/// guarantees that. For shared-fence-remote.
fn shared_fence() -> Scenario {
    Scenario::new("shared/fence", "of two that push, fence and look, one sees the other's", 2, |cluster| {
        let vars = shared::<2>(cluster)?;
        let seen = [cluster.log(), cluster.log()];
        for (me, seen) in seen.iter().cloned().enumerate() {
            let vars = Rc::clone(&vars);
            cluster.thread(me, "party", move |ep| {
                let (mine, other) = (&vars[me][me], &vars[me][1 - me]);
                mine.store(1);
                ep.block_on(async {
                    mine.push_all(ep).await?;
                    mine.fence(ep, [N0, N1]).await
                })?;
                seen.push(other.load());
                Ok(())
            });
        }
        cluster.at_end(move || {
            let [a, b] = seen.map(|seen| seen.take()[0]);
            assert!(a <= 1 && b <= 1, "a value that nobody stored: {a}, {b}");
            assert!(a + b > 0, "neither sees what the other pushed before its fence");
            Ok(())
        });
        Ok(())
    })
    .kills(&["shared-fence-remote"])
    .small()
}

/// A pushed and fenced value is seen by every node that learns of it, on any path: NRW to one node before NRW to
/// another (Fig. 9b, with the fence that it lacks). For shared-fence-remote.
fn shared_forwarded() -> Scenario {
    Scenario::new("shared/forwarded", "what was fenced is seen by who hears of it from a third node", 3, |cluster| {
        let vars = shared::<3>(cluster)?;
        let [first, second, third] = [(); 3].map(|()| Rc::clone(&vars));
        cluster.thread(0, "first", move |ep| {
            let [x, y, _] = &first[0];
            x.store(1);
            y.store(1);
            ep.block_on(async {
                x.push(ep, [N2]).await?;
                x.fence(ep, [N2]).await?;
                y.push(ep, [N1]).await
            })
        });
        cluster.thread(1, "second", move |ep| {
            let [_, y, z] = &second[1];
            until_set(ep, y)?;
            z.store(1);
            ep.block_on(z.push(ep, [N2]))
        });
        cluster.thread(2, "third", move |ep| {
            let [x, _, z] = &third[2];
            until_set(ep, z)?;
            assert_eq!(x.load(), 1, "what was fenced before it was told of is not there");
            Ok(())
        });
        Ok(())
    })
    .small()
}

/// Fig. 9a: pushes of one endpoint to one node land in order, NRW after NRW; the reader's CRs are in order, too.
fn shared_in_order() -> Scenario {
    Scenario::new("shared/in-order", "what was pushed first is seen first", 2, |cluster| {
        let vars = shared::<2>(cluster)?;
        let (writer, reader) = (Rc::clone(&vars), vars);
        cluster.thread(0, "writer", move |ep| {
            let [x, y] = &writer[0];
            x.store(1);
            ep.block_on(x.push_all(ep))?;
            y.store(1);
            ep.block_on(y.push_all(ep))
        });
        cluster.thread(1, "reader", move |_| {
            let [x, y] = &reader[1];
            let (later, earlier) = (y.load(), x.load());
            assert!(later <= earlier, "the later push is seen, the earlier is not");
            Ok(())
        });
        Ok(())
    })
    .small()
}

/// Versions are pushed one after the other: NRWs in order, and each NLR between the stores around it.
fn shared_versions() -> Scenario {
    Scenario::new("shared/versions", "versions are seen in order, and the last one stays", 2, |cluster| {
        let vars = shared::<1>(cluster)?;
        let [writer, reader, at_end] = [(); 3].map(|()| Rc::clone(&vars));
        cluster.thread(0, "writer", move |ep| {
            let [x] = &writer[0];
            for version in 1..=2 {
                x.store(version);
                ep.block_on(x.push_all(ep))?;
            }
            Ok(())
        });
        cluster.thread(1, "reader", move |_| {
            let mut seen = Seen::up_to(2);
            (0..3).for_each(|_| seen.word(reader[1][0].load()));
            Ok(())
        });
        cluster.at_end(move || {
            assert_eq!(at_end[1][0].load(), 2, "the last push was lost");
            Ok(())
        });
        Ok(())
    })
    .small()
}

/// Fig. 3d, not Fig. 1: an awaited push has read its source, NLR before the CW that follows. For
/// shared-push-not-awaited.
fn shared_store_after_push() -> Scenario {
    Scenario::new("shared/store-after-push", "a store after a push is not sent with it", 3, |cluster| {
        let vars = shared::<1>(cluster)?;
        let (writer, at_end) = (Rc::clone(&vars), vars);
        cluster.thread(0, "writer", move |ep| {
            let [x] = &writer[0];
            x.store(1);
            ep.block_on(x.push_all(ep))?;
            x.store(2);
            // The search ends with the last thread, so this waits until the puts have landed.
            ep.block_on(x.fence(ep, [N1, N2]))
        });
        cluster.at_end(move || {
            for node in 1..3 {
                assert_eq!(
                    at_end[node][0].load(),
                    1,
                    "not what was pushed to node {node}, but what was stored after it"
                );
            }
            Ok(())
        });
        Ok(())
    })
    .kills(&["shared-push-not-awaited"])
    .small()
}

/// An awaited pull has written, NLW before the CR that follows, and pulls read in order. For shared-pull-not-awaited.
fn shared_pull() -> Scenario {
    Scenario::new("shared/pull", "a pull fetches what is there, never something older", 2, |cluster| {
        let vars = shared::<1>(cluster)?;
        vars[1][0].store(1);
        let (writer, reader) = (Rc::clone(&vars), vars);
        cluster.thread(1, "writer", move |_| {
            writer[1][0].store(2);
            Ok(())
        });
        cluster.thread(0, "reader", move |ep| {
            let mut seen = Seen { newest: 2, last: 1 };
            for _ in 0..2 {
                seen.word(ep.block_on(reader[0][0].pull(ep, N1))?);
            }
            Ok(())
        });
        Ok(())
    })
    .kills(&["shared-pull-not-awaited"])
    .small()
}

/// A get flushes its endpoint's earlier puts to the node: NRW before NRR. Its NLW follows the put's NLR.
fn shared_pull_own_push() -> Scenario {
    Scenario::new("shared/pull-own-push", "who pulls from where it has pushed to finds that", 2, |cluster| {
        let vars = shared::<1>(cluster)?;
        cluster.thread(0, "writer", move |ep| {
            let [x] = &vars[0];
            x.store(1);
            ep.block_on(x.push_all(ep))?;
            assert_eq!(ep.block_on(x.pull(ep, N1))?, 1, "the push is not where it was pushed to");
            Ok(())
        });
        Ok(())
    })
    .small()
}
