//! Histories of objects and trees, and the sequential objects that they have to be linearizable as.

use std::collections::BTreeMap;

use farfield_core::history::Model;

/// A value of some words, of which a call replaces several.
pub(super) struct WordsModel(pub(super) usize);

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum WordsCall {
    Write(Vec<(usize, u64)>),
    Read,
}

impl Model for WordsModel {
    type Input = WordsCall;
    type Output = Vec<u64>;
    type State = Vec<u64>;

    fn initial(&self) -> Vec<u64> {
        vec![0; self.0]
    }

    fn step(&self, state: &Vec<u64>, call: &WordsCall, answer: Option<&Vec<u64>>) -> Option<Vec<u64>> {
        match call {
            WordsCall::Write(words) => {
                let mut state = state.clone();
                words.iter().for_each(|(at, word)| state[*at] = *word);
                Some(state)
            }
            WordsCall::Read => answer.is_none_or(|answer| answer == state).then(|| state.clone()),
        }
    }
}

/// A sorted map.
pub(super) struct MapModel;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum MapCall {
    Put(u64, u64),
    Insert(u64, u64),
    Delete(u64),
    Get(u64),
    MultiGet(Vec<u64>),
    First,
    Last,
    /// From a key on, before a key, and whether backward.
    Range(u64, u64, bool),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum MapAnswer {
    Value(Option<u64>),
    Was(bool),
    Values(Vec<Option<u64>>),
    Pairs(Vec<(u64, u64)>),
}

impl Model for MapModel {
    type Input = MapCall;
    type Output = MapAnswer;
    type State = BTreeMap<u64, u64>;

    fn initial(&self) -> BTreeMap<u64, u64> {
        BTreeMap::new()
    }

    fn step(
        &self,
        state: &BTreeMap<u64, u64>,
        call: &MapCall,
        answer: Option<&MapAnswer>,
    ) -> Option<BTreeMap<u64, u64>> {
        let mut state = state.clone();
        let right = match call {
            MapCall::Put(key, value) => MapAnswer::Value(state.insert(*key, *value)),
            MapCall::Insert(key, value) => {
                let is_new = !state.contains_key(key);
                state.entry(*key).or_insert(*value);
                MapAnswer::Was(is_new)
            }
            MapCall::Delete(key) => MapAnswer::Value(state.remove(key)),
            MapCall::Get(key) => MapAnswer::Value(state.get(key).copied()),
            MapCall::MultiGet(keys) => MapAnswer::Values(keys.iter().map(|key| state.get(key).copied()).collect()),
            MapCall::First => {
                MapAnswer::Pairs(state.first_key_value().map(|pair| (*pair.0, *pair.1)).into_iter().collect())
            }
            MapCall::Last => {
                MapAnswer::Pairs(state.last_key_value().map(|pair| (*pair.0, *pair.1)).into_iter().collect())
            }
            MapCall::Range(from, to, is_backward) => {
                let pairs = state.range(from..to).map(|(key, value)| (*key, *value));
                MapAnswer::Pairs(if *is_backward { pairs.rev().collect() } else { pairs.collect() })
            }
        };
        answer.is_none_or(|answer| *answer == right).then_some(state)
    }
}
