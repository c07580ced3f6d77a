//! The numbers by which an object is laid out, which a memory node that replaces another one has to know as well: it
//! does not know its types.

use farfield_core::toolkit::{Object, region_bytes};
use farfield_core::{Node, Result};
use farfield_fabric::{NodeId, RemotePtr};

use crate::census::Table;
use crate::layout::{CELLS, IndexLayout, Layout, REGION_COUNT, REGIONS, REPLICAS_MAX};
use crate::version::{BUFFERS_MAX, WRITERS_MAX};
use crate::view::{Seat, Standing};

/// The sizes of all regions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Parts {
    pub(crate) shards: usize,
    /// Of a shard, in bytes. An array has only the first ones.
    of_each: [usize; REGION_COUNT],
}

impl Parts {
    pub(crate) fn new(shards: usize, layout: &Layout, index: Option<&IndexLayout>, table: Table) -> Result<Parts> {
        let (cells, records) = match index {
            None => (0, 0),
            Some(index) => (index.cells_bytes()?, index.records_bytes(layout.writers, table.memory_nodes)?),
        };
        let of_each =
            [table.bytes(), layout.registers_bytes()?, layout.buffers_bytes()?, layout.locks_bytes()?, cells, records];
        Ok(Parts { shards, of_each })
    }

    /// The regions that there are.
    fn names(&self) -> impl Iterator<Item = &'static str> {
        REGIONS.into_iter().take(if self.of_each[CELLS] == 0 { CELLS } else { REGION_COUNT })
    }

    /// The regions that a memory node lends, and their bytes.
    pub(crate) fn all(&self) -> Result<Vec<(&'static str, usize)>> {
        let of_all = |(name, bytes): (&'static str, usize)| {
            Ok((name, region_bytes(self.shards, bytes / 8, "the registers, their size or the clients")?))
        };
        self.names().zip(self.of_each).map(of_all).collect()
    }

    pub(crate) fn words_of_each(&self) -> [usize; REGION_COUNT] {
        self.of_each.map(|bytes| bytes / 8)
    }
}

/// All numbers of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    pub(crate) parts: Parts,
    pub(crate) layout: Layout,
    pub(crate) index: Option<IndexLayout>,
    pub(crate) table: Table,
    pub(crate) memory: Vec<NodeId>,
}

const NAME: &str = "plan=";
/// More words than any node has.
const WORDS_MAX: usize = 1 << 40;

impl Plan {
    /// The numbers, as a part of the description that all nodes of an object have in common.
    pub(crate) fn described(&self) -> String {
        let Plan { parts, layout, index, table, memory } = self;
        let Layout { registers, value_words, writers, metadata_words, buffers, lock_words, .. } = *layout;
        let none = IndexLayout { buckets: 0, group: 0, groups: 0, records: 0 };
        let IndexLayout { buckets, group, groups, records } = index.unwrap_or(none);
        let mut numbers = vec![parts.shards, registers, value_words, writers, metadata_words, buffers, lock_words];
        numbers.extend([buckets, group, groups, records, table.nodes]);
        numbers.extend(memory.iter().map(|node| node.index()));
        let numbers: Vec<String> = numbers.iter().map(usize::to_string).collect();
        format!("{NAME}{}", numbers.join("/"))
    }

    /// The numbers in such a description. None if it is that of another version.
    pub(crate) fn of(described: &str) -> Option<Plan> {
        let (_, numbers) = described.rsplit_once(NAME)?;
        let numbers: Vec<usize> = numbers.split('/').map(|number| number.parse().ok()).collect::<Option<_>>()?;
        let (numbers, memory) = numbers.split_at_checked(12)?;
        let [shards, registers, value_words, writers, metadata_words, buffers, lock_words, ..] = *numbers else {
            return None;
        };
        let [.., buckets, group, groups, records, nodes] = *numbers else { return None };
        // Another node has written them: sizes of these cannot overflow.
        let are_small = numbers.iter().all(|number| *number <= WORDS_MAX) && group.saturating_mul(groups) <= WORDS_MAX;
        let are_some = shards > 0
            && metadata_words > 0
            && (1..=WRITERS_MAX).contains(&writers)
            && (1..=BUFFERS_MAX).contains(&buffers);
        if !are_small || !are_some || memory.len() > REPLICAS_MAX {
            return None;
        }
        let has_limits = lock_words > writers;
        let layout = Layout::new(registers, value_words, writers, metadata_words, buffers, has_limits).ok()?;
        let index = (records > 0).then_some(IndexLayout { buckets, group, groups, records });
        let table = Table { nodes, clients: writers, memory_nodes: memory.len() };
        let memory = memory.iter().map(|node| u16::try_from(*node).ok().map(NodeId)).collect::<Option<Vec<_>>>()?;
        let parts = Parts::new(shards, &layout, index.as_ref(), table).ok()?;
        Some(Plan { parts, layout, index, table, memory })
    }

    /// Where the memory nodes have their regions, as this object knows. (One of them may have gone that this node does
    /// not need.)
    pub(crate) fn seats(&self, node: &Node, object: &Object, replaced: Option<NodeId>) -> Result<Vec<Seat>> {
        let seat = |home: &NodeId| match self.regions_of(object, *home) {
            Err(_) if node.has_gone(*home) || replaced == Some(*home) => Ok(Seat::gone(*home)),
            regions => Ok(Seat { standing: Standing::First, regions: regions? }),
        };
        self.memory.iter().map(seat).collect()
    }

    /// The regions of a node.
    pub(crate) fn regions_of(&self, object: &Object, home: NodeId) -> Result<[RemotePtr<u64>; REGION_COUNT]> {
        let mut regions = Seat::gone(home).regions;
        for (region, name) in regions.iter_mut().zip(self.parts.names()) {
            *region = object.remote(home, name)?;
        }
        Ok(regions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(is_store: bool) -> Result<Plan> {
        let (shards, writers, memory) = (2, 5, vec![NodeId(3), NodeId(9), NodeId(4)]);
        let index = is_store.then(|| IndexLayout::new(70, writers));
        let registers = index.map_or(70, |index| index.registers());
        let layout = Layout::new(registers, 3, writers, 2, registers + 4, is_store)?;
        let table = Table { nodes: 6, clients: writers, memory_nodes: memory.len() };
        let parts = Parts::new(shards, &layout, index.as_ref(), table)?;
        Ok(Plan { parts, layout, index, table, memory })
    }

    #[test]
    fn a_plan_is_read_as_it_was_written() -> Result<()> {
        for plan in [plan(false)?, plan(true)?] {
            assert_eq!(Plan::of(&format!("70 keys of 8 bytes, {}", plan.described())), Some(plan));
        }
        assert_eq!(Plan::of("70 keys of 8 bytes"), None);
        Ok(())
    }

    /// Another node has written them, perhaps one with another version.
    #[test]
    fn a_plan_with_impossible_numbers_is_none() -> Result<()> {
        // Of the shards, the writers, the metadata words and the buffers there is one at least.
        const AT_LEAST_ONE: [usize; 4] = [0, 3, 4, 5];
        for plan in [plan(false)?, plan(true)?] {
            let described = plan.described();
            let numbers: Vec<&str> = described.strip_prefix(NAME).expect("its name").split('/').collect();
            let with = |at: usize, number: &str| {
                let mut numbers = numbers.clone();
                numbers[at] = number;
                Plan::of(&format!("{NAME}{}", numbers.join("/")))
            };
            assert_eq!(with(0, numbers[0]), Some(plan));
            let largest = usize::MAX.to_string();
            for at in 0..numbers.len() {
                assert_eq!(with(at, &largest), None, "number {at}");
                assert_eq!(with(at, "many"), None, "number {at}");
            }
            for at in AT_LEAST_ONE {
                assert_eq!(with(at, "0"), None, "number {at}");
            }
            assert_eq!(Plan::of(&format!("{NAME}{}", numbers[..11].join("/"))), None);
            assert_eq!(Plan::of(&format!("{described}/5/6/7/8/9")), None, "too many memory nodes");
        }
        Ok(())
    }
}
