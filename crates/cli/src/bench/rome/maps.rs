//! The sorted maps, from numbers to numbers, in the memory of one process.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::RwLock;

use anyhow::{Context, Result, anyhow};
use clap::ValueEnum;
use farfield::rome::Partition;
use farfield::{Endpoint, Node, NodeId, RomeTree, TreeOptions};
use redb::backends::InMemoryBackend;
use redb::{Database, Durability, ReadableDatabase, TableDefinition};
use serde::{Deserialize, Serialize};

/// A sorted map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// Farfield's tree, which other nodes can scan
    Rome,
    /// A `BTreeMap` in an `RwLock`: scans hold up writers
    #[value(name = "btreemap")]
    BTreeMap,
    /// The embedded store redb, in memory, with a transaction for each call that is not made durable
    Redb,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Rome => "rome",
            Kind::BTreeMap => "btreemap",
            Kind::Redb => "redb",
        })
    }
}

/// One thread's access to a map.
pub(super) trait Map {
    fn get(&mut self, key: u64) -> Result<Option<u64>>;

    /// Gives a key this value, whether it is there or not.
    fn put(&mut self, key: u64, value: u64) -> Result<()>;

    /// Reads so many pairs from a key on, as of one moment; how many there were, and the sum of their values.
    fn scan(&mut self, from: u64, count: usize) -> Result<(usize, u64)>;
}

/// What is done with any map.
pub(super) trait Body {
    type Output;
    fn run(&self, map: &mut impl Map) -> Result<Self::Output>;
}

/// A map of this process.
pub(super) enum System {
    Rome(RomeTree<u64, u64>),
    BTreeMap(RwLock<BTreeMap<u64, u64>>),
    Redb(Database),
}

const TABLE: TableDefinition<'_, u64, u64> = TableDefinition::new("pairs");

impl System {
    /// A map with these pairs, in the order of their keys.
    pub(super) fn open(
        kind: Kind,
        node: &Node,
        options: TreeOptions,
        pairs: impl Iterator<Item = (u64, u64)>,
    ) -> Result<System> {
        Ok(match kind {
            Kind::Rome => {
                let tree = tree(node, TREE, options)?;
                tree.partition()?.load(&node.endpoint()?, pairs)?;
                System::Rome(tree)
            }
            Kind::BTreeMap => System::BTreeMap(RwLock::new(pairs.collect())),
            Kind::Redb => {
                let database = Database::builder().create_with_backend(InMemoryBackend::new())?;
                write(&database, |table| {
                    for (key, value) in pairs {
                        table.insert(key, value)?;
                    }
                    Ok(())
                })
                .context("loading redb")?;
                System::Redb(database)
            }
        })
    }

    /// How many changes had to wait for readers.
    pub(super) fn waits(&self) -> Result<u64> {
        match self {
            System::Rome(tree) => Ok(tree.memory()?.waits),
            System::BTreeMap(_) | System::Redb(_) => Ok(0),
        }
    }

    /// Calls `body` with a thread's access.
    pub(super) fn with_thread<B: Body>(&self, endpoint: &Endpoint, body: &B) -> Result<B::Output> {
        match self {
            System::Rome(tree) => body.run(&mut Rome { partition: tree.partition()?, endpoint, pairs: Vec::new() }),
            System::BTreeMap(map) => body.run(&mut Locked(map)),
            System::Redb(database) => body.run(&mut Redb(database)),
        }
    }
}

/// The tree that the workers call.
pub(super) const TREE: &str = "tree";
/// Another one, which scanners read in a control.
pub(super) const CONTROL: &str = "control";

/// A tree of node 0, as all nodes open it.
pub(super) fn tree(node: &Node, name: &str, options: TreeOptions) -> Result<RomeTree<u64, u64>> {
    Ok(RomeTree::open(node, name, NodeId(0), options)?)
}

struct Rome<'e> {
    partition: Partition<u64, u64>,
    endpoint: &'e Endpoint,
    pairs: Vec<(u64, u64)>,
}

impl Map for Rome<'_> {
    #[inline]
    fn get(&mut self, key: u64) -> Result<Option<u64>> {
        Ok(self.partition.get(&key))
    }

    #[inline]
    fn put(&mut self, key: u64, value: u64) -> Result<()> {
        Ok(self.partition.put(self.endpoint, key, value).map(drop)?)
    }

    fn scan(&mut self, from: u64, count: usize) -> Result<(usize, u64)> {
        let Rome { partition, endpoint, pairs } = self;
        pairs.clear();
        let mut scan = partition.scan(endpoint, from..);
        while pairs.len() < count && scan.next(endpoint, pairs)? {}
        pairs.truncate(count);
        Ok((pairs.len(), pairs.iter().map(|(_, value)| value).sum()))
    }
}

struct Locked<'m>(&'m RwLock<BTreeMap<u64, u64>>);

fn poisoned<T>(_: T) -> anyhow::Error {
    anyhow!("another thread has panicked")
}

impl Map for Locked<'_> {
    #[inline]
    fn get(&mut self, key: u64) -> Result<Option<u64>> {
        Ok(self.0.read().map_err(poisoned)?.get(&key).copied())
    }

    #[inline]
    fn put(&mut self, key: u64, value: u64) -> Result<()> {
        self.0.write().map_err(poisoned)?.insert(key, value);
        Ok(())
    }

    fn scan(&mut self, from: u64, count: usize) -> Result<(usize, u64)> {
        let map = self.0.read().map_err(poisoned)?;
        let pairs = map.range(from..).take(count);
        Ok(pairs.fold((0, 0), |(count, sum), (_, value)| (count + 1, sum + value)))
    }
}

struct Redb<'m>(&'m Database);

/// One transaction of redb that changes the table.
fn write(
    database: &Database,
    change: impl FnOnce(&mut redb::Table<'_, u64, u64>) -> Result<(), redb::StorageError>,
) -> Result<()> {
    let mut transaction = database.begin_write()?;
    transaction.set_durability(Durability::None)?;
    change(&mut transaction.open_table(TABLE)?)?;
    Ok(transaction.commit()?)
}

impl Map for Redb<'_> {
    fn get(&mut self, key: u64) -> Result<Option<u64>> {
        let table = self.0.begin_read()?.open_table(TABLE)?;
        Ok(table.get(key)?.map(|value| value.value()))
    }

    fn put(&mut self, key: u64, value: u64) -> Result<()> {
        write(self.0, |table| table.insert(key, value).map(drop))
    }

    fn scan(&mut self, from: u64, count: usize) -> Result<(usize, u64)> {
        let table = self.0.begin_read()?.open_table(TABLE)?;
        let mut found = (0, 0);
        for pair in table.range(from..)?.take(count) {
            found = (found.0 + 1, found.1 + pair?.1.value());
        }
        Ok(found)
    }
}
