//! Nodes as of one version, for searches and scans: by gets, or by the owner's processor.

use std::collections::BTreeMap;
use std::sync::Arc;

use farfield_core::{Endpoint, Error, ErrorKind, Result};
use farfield_fabric::read_words;

use crate::arena::Arena;
use crate::field::{Field, TreeKey};
use crate::layout::Active;
use crate::open::Opened;
use crate::page::Page;
use crate::reading::{check, check_here};
use crate::seats::Seat;

/// A copy of a node.
pub(super) type Node = Arc<[u64]>;

/// Inner nodes that were read before. They may be out of date: whatever they lead to is looked at.
#[derive(Default)]
pub(super) struct Cache {
    nodes: BTreeMap<u32, Node>,
}

impl Cache {
    const NODES_MAX: usize = 1 << 14;

    pub(super) fn get(&self, slot: u32) -> Option<&Node> {
        self.nodes.get(&slot)
    }

    pub(super) fn keep(&mut self, slot: u32, node: &Node) {
        if self.nodes.len() >= Cache::NODES_MAX {
            self.nodes.clear();
        }
        self.nodes.insert(slot, Arc::clone(node));
    }

    pub(super) fn forget(&mut self, slot: u32) {
        self.nodes.remove(&slot);
    }

    pub(super) fn clear(&mut self) {
        self.nodes.clear();
    }
}

/// How a search reaches a node. With cached ones it passes through nodes of different moments, and a slot may have been
/// given to another node between them. A search that takes only these steps ends: each leads down by a level, or to the
/// right.
#[derive(Clone, Copy)]
pub(super) enum Step<K> {
    /// It begins there.
    First,
    /// From a node on this level.
    Down(u8),
    /// From a node on this level, with this high fence.
    Right(u8, Option<K>),
}

impl<K: TreeKey> Step<K> {
    pub(super) fn right<V: Field>(page: Page<&[u64], K, V>) -> Step<K> {
        Step::Right(page.level(), page.high())
    }

    /// Whether it can be that node.
    pub(super) fn leads_to<V: Field>(self, page: Page<&[u64], K, V>) -> bool {
        match self {
            Step::First => true,
            Step::Down(level) => page.level() + 1 == level,
            Step::Right(level, high) => page.level() == level && high.is_some_and(|high| page.low() >= high),
        }
    }
}

/// A source of nodes as of one version, which is announced.
pub(super) trait Fetch<K, V> {
    fn version(&self) -> u64;

    /// These nodes; none for one that was not there. The next ones will be `ahead`.
    async fn nodes(&mut self, slots: &[u32], ahead: &[u32]) -> Result<Vec<Option<Node>>>;

    fn cache(&mut self) -> Option<&mut Cache>;
}

/// By the owner's processor.
pub(super) struct Here<'a> {
    pub(super) arena: &'a Arena,
    pub(super) seat: &'a mut Seat,
    pub(super) ep: &'a Endpoint,
    pub(super) version: u64,
}

impl<K: TreeKey, V: Field> Fetch<K, V> for Here<'_> {
    fn version(&self) -> u64 {
        self.version
    }

    async fn nodes(&mut self, slots: &[u32], _: &[u32]) -> Result<Vec<Option<Node>>> {
        let mut nodes = Vec::with_capacity(slots.len());
        for slot in slots {
            // What is read is looked at when it is known to be whole.
            let mut next = self.arena.active(*slot);
            nodes.push(loop {
                let Some(active) = next else { break None };
                let block = self.arena.block(active);
                let mut words = vec![0; block.len()];
                read_words(block, &mut words);
                check_here(self.seat, self.ep)?;
                let page: Page<&[u64], K, V> = Page::of(&words);
                if page.version() <= self.version {
                    break Some(words.into());
                }
                next = Active::of(page.previous());
            });
        }
        Ok(nodes)
    }

    fn cache(&mut self) -> Option<&mut Cache> {
        None
    }
}

/// Active words that are read at a time.
const WORDS_MAX: usize = 1 << 10;

/// By gets.
pub(super) struct There<'a> {
    pub(super) opened: &'a Opened,
    pub(super) seat: &'a mut Seat,
    pub(super) cache: &'a mut Cache,
    pub(super) ep: &'a Endpoint,
    pub(super) version: u64,
    /// Active words that were read already.
    pub(super) ahead: &'a mut BTreeMap<u32, u64>,
}

impl There<'_> {
    /// Gets the blocks of these active words, and the active words of these slots, in one round trip.
    async fn round(&mut self, blocks: &[Active], slots: &[u32]) -> Result<(Vec<Node>, Vec<u64>)> {
        let There { opened, seat, ep, .. } = self;
        let mut gets = Vec::with_capacity(blocks.len());
        for active in blocks {
            gets.push(ep.get_into(opened.block_at(active.block), ep.buf::<u64>(active.end as usize)?));
        }
        let words = slots.iter().map(|slot| ep.get(opened.slot_at(*slot))).collect::<Vec<_>>();
        let (mut nodes, mut actives) = (Vec::with_capacity(blocks.len()), Vec::with_capacity(slots.len()));
        for get in gets {
            nodes.push(Node::from(&get.await?[..]));
        }
        for word in words {
            actives.push(word.await?);
        }
        check(seat, ep)?;
        Ok((nodes, actives))
    }
}

impl<K: TreeKey, V: Field> Fetch<K, V> for There<'_> {
    fn version(&self) -> u64 {
        self.version
    }

    async fn nodes(&mut self, slots: &[u32], ahead: &[u32]) -> Result<Vec<Option<Node>>> {
        let unknown: Vec<u32> = slots.iter().copied().filter(|slot| !self.ahead.contains_key(slot)).collect();
        for unknown in unknown.chunks(WORDS_MAX) {
            let (_, words) = self.round(&[], unknown).await?;
            self.ahead.extend(unknown.iter().copied().zip(words));
        }
        let active = |slot: &u32| self.ahead.remove(slot).and_then(Active::of);
        let mut wanted: Vec<Option<Active>> = slots.iter().map(active).collect();
        let mut ahead: Vec<u32> = ahead.iter().copied().filter(|slot| !self.ahead.contains_key(slot)).collect();
        let mut nodes: Vec<Option<Node>> = vec![None; slots.len()];
        // A round for each base that a node got since this version, mostly one.
        loop {
            let at: Vec<usize> = (0..slots.len()).filter(|at| wanted[*at].is_some()).collect();
            if at.is_empty() {
                return Ok(nodes);
            }
            let blocks: Vec<Active> = at.iter().filter_map(|at| wanted[*at]).collect();
            let mut read = Vec::with_capacity(blocks.len());
            for blocks in blocks.chunks(self.opened.reads_max) {
                let (nodes, words) = self.round(blocks, &ahead).await?;
                self.ahead.extend(ahead.drain(..).zip(words));
                read.extend(nodes);
            }
            for (at, node) in at.into_iter().zip(read) {
                let page: Page<&[u64], K, V> = Page::of(&node);
                wanted[at] = if page.version() <= self.version { None } else { Active::of(page.previous()) };
                if wanted[at].is_none() && page.version() <= self.version {
                    nodes[at] = Some(node);
                }
            }
        }
    }

    fn cache(&mut self) -> Option<&mut Cache> {
        Some(self.cache)
    }
}

/// A search has led to what cannot be in a tree.
pub(super) fn corrupt() -> Error {
    ErrorKind::Corrupt { what: "a search that leads to no leaf with the key".into() }.into()
}
