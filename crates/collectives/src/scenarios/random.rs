//! Some calls in a row, drawn at random: each member has what a program without nodes would compute.

use std::rc::Rc;

use farfield_check::{Cluster, Scenario};
use farfield_core::{Endpoint, Result};
use farfield_fabric::NodeId;

use super::open;
use crate::Collectives;

const NODES: usize = 3;

pub(super) fn scenarios() -> Vec<Scenario> {
    let about = "calls of all kinds, roots and lengths give what they should, one after the other";
    vec![Scenario::new("collectives/random", about, NODES, |cluster| {
        let calls: Rc<[Drawn]> = (0..3).map(|_| Drawn::new(cluster)).collect();
        for (me, member) in open(cluster)?.into_iter().enumerate() {
            let calls = Rc::clone(&calls);
            cluster.thread(me, "calls", move |ep| {
                let mut all = member.borrow_mut();
                calls.iter().enumerate().try_for_each(|(number, call)| call.make(number as u64, me, &mut all, ep))
            });
        }
        Ok(())
    })]
}

#[derive(Clone, Copy)]
struct Drawn {
    kind: usize,
    root: usize,
    len: usize,
}

impl Drawn {
    fn new(cluster: &Cluster) -> Drawn {
        Drawn { kind: cluster.draw(6), root: cluster.draw(NODES), len: 1 + cluster.draw(3) }
    }

    /// The elements of a member in a call.
    fn data(self, number: u64, member: usize, len: usize) -> Vec<u64> {
        (0..len).map(|at| 1000 * (number + 1) + 100 * member as u64 + at as u64).collect()
    }

    fn make(self, number: u64, me: usize, all: &mut Collectives, ep: &Endpoint) -> Result<()> {
        let Drawn { kind, root, len } = self;
        let of = |member| self.data(number, member, len);
        let sums = || (0..len).map(|at| (0..NODES).map(|member| of(member)[at]).sum()).collect::<Vec<u64>>();
        let is_root = me == root;
        let at = NodeId(root as u16);
        let (mut data, mut into) = (of(me), vec![0; NODES * len]);
        match kind {
            0 => {
                all.broadcast_blocking(ep, at, &mut data)?;
                assert_eq!(data, of(root));
            }
            1 => {
                all.reduce_blocking(ep, at, &mut data, |a, b| a + b)?;
                assert!(!is_root || data == sums(), "{data:?}");
            }
            2 => {
                all.all_reduce_blocking(ep, &mut data, |a, b| a + b)?;
                assert_eq!(data, sums());
            }
            3 => {
                into.truncate(if is_root { NODES * len } else { 0 });
                all.gather_blocking(ep, at, &data, &mut into)?;
                assert!(!is_root || into == (0..NODES).flat_map(of).collect::<Vec<u64>>(), "{into:?}");
            }
            4 => {
                all.all_gather_blocking(ep, &data, &mut into)?;
                assert_eq!(into, (0..NODES).flat_map(of).collect::<Vec<u64>>());
            }
            _ => {
                all.all_to_all_blocking(ep, &self.data(number, me, NODES * len), &mut into)?;
                let part = |member| self.data(number, member, NODES * len)[me * len..][..len].to_vec();
                assert_eq!(into, (0..NODES).flat_map(part).collect::<Vec<u64>>());
            }
        }
        Ok(())
    }
}
