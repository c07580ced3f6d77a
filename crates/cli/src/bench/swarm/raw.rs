//! RAW: one copy of each value, which is put and got as it is. Writers at a time mix their values, and readers find the
//! mixture.

use farfield::fabric::RemotePtr;
use farfield::toolkit::Object;
use farfield::{Endpoint, Node, Result};

use super::area;
use super::system::{Client, Scale};

pub(super) struct Raw {
    _object: Object,
    values: Vec<RemotePtr<u64>>,
    words: usize,
}

pub(super) struct RawClient<'r, 'e>(&'r Raw, &'e Endpoint);

impl Raw {
    pub(super) fn open(node: &Node, scale: &Scale) -> Result<Raw> {
        let words = scale.words();
        // Each node has a share of the keys.
        let share = scale.keys.div_ceil(scale.memory.len());
        let object = area::open(node, "raw", &scale.memory, vec![("values", share * words * 8)])?;
        let values = scale.memory.iter().map(|node| object.remote(*node, "values")).collect::<Result<_>>()?;
        Ok(Raw { _object: object, values, words })
    }

    pub(super) fn client<'r, 'e>(&'r self, endpoint: &'e Endpoint) -> RawClient<'r, 'e> {
        RawClient(self, endpoint)
    }

    fn at(&self, key: usize) -> RemotePtr<u64> {
        let count = self.values.len();
        self.values[key % count].at(key / count * self.words)
    }
}

impl Client for RawClient<'_, '_> {
    async fn get(&self, key: usize, into: &mut [u64]) -> Result<bool> {
        let RawClient(raw, endpoint) = self;
        let value = endpoint.get_into(raw.at(key), endpoint.buf(raw.words)?).await?;
        into.copy_from_slice(&value);
        Ok(true)
    }

    async fn put(&self, key: usize, value: &[u64]) -> Result<()> {
        let RawClient(raw, endpoint) = self;
        let mut image = endpoint.buf(raw.words)?;
        image.copy_from_slice(value);
        endpoint.put(raw.at(key), &image).await?;
        Ok(())
    }
}
