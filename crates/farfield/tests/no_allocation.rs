//! Collectives allocate no memory, once the endpoint's buffers are there.

use std::alloc::System;

use farfield::{Collectives, CollectivesOptions, Result, local_session, on_each};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[test]
fn collectives_allocate_nothing() -> Result<()> {
    // Service threads of nodes sleep meanwhile: they would be counted, too, so the least of several tries is taken.
    let nodes = local_session(2)?;
    let allocated = on_each(&nodes, |node| {
        let ep = node.endpoint()?;
        let mut all = Collectives::open(node, "all", CollectivesOptions::default())?;
        let (mut data, mut into) = (vec![1u64; 10_000], vec![0; 20_000]);
        let mut least = usize::MAX;
        for _ in 0..20 {
            let region = Region::new(ALLOCATOR);
            all.broadcast_blocking(&ep, nodes[0].id(), &mut data)?;
            all.all_reduce_blocking(&ep, &mut data, u64::wrapping_add)?;
            all.all_gather_blocking(&ep, &data, &mut into)?;
            all.all_to_all_blocking(&ep, &data, &mut into[..10_000])?;
            all.reduce_blocking(&ep, nodes[1].id(), &mut data, u64::wrapping_add)?;
            all.all_reduce_blocking(&ep, &mut data[..1], u64::wrapping_add)?;
            least = least.min(region.change().allocations);
        }
        Ok(least)
    })?;
    assert_eq!(allocated, [0, 0]);
    Ok(())
}
