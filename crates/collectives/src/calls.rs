//! How the calls move their chunks.
//!
//! In all of them a member sends its chunks in order, and takes those of others in order. In a call in which all
//! members send, each takes a chunk only after it has sent `slots / 2` more, so chunks are always under way.

use core::ops::Range;

use farfield_core::Result;
use farfield_fabric::{Endpoint, Plain};
use zerocopy::IntoBytes;

use crate::links::{Call, Links};

/// Elements that are sent in chunks. The last one may be shorter, and further ones are empty.
#[derive(Clone, Copy)]
pub(crate) struct Chunks {
    pub(crate) elements: usize,
    pub(crate) most: usize,
}

impl Chunks {
    /// At least one, so that each call sends something, and members that make another one see it.
    fn count(self) -> usize {
        self.elements.div_ceil(self.most).max(1)
    }

    fn at(self, chunk: usize) -> Range<usize> {
        let start = self.elements.min(chunk.saturating_mul(self.most));
        start..self.elements.min(start + self.most)
    }
}

/// The part of `elements` that the member of this rank reduces, of `members`.
fn block(elements: usize, members: usize, rank: usize) -> Range<usize> {
    let each = elements.div_ceil(members);
    (rank * each).min(elements)..((rank + 1) * each).min(elements)
}

fn part(range: &Range<usize>, chunk: Range<usize>) -> Range<usize> {
    range.start + chunk.start..range.start + chunk.end
}

/// The rank of a peer. Peers are all members but this one, in the order of ranks.
fn rank_of(at: usize, me: usize) -> usize {
    at + usize::from(at >= me)
}

/// Everything that a call uses.
pub(crate) struct Work<'a> {
    pub(crate) links: &'a mut Links,
    pub(crate) scratch: &'a mut [Vec<u8>; 2],
    pub(crate) endpoint: &'a Endpoint,
    pub(crate) call: Call,
    pub(crate) me: usize,
    pub(crate) root: usize,
    /// The most elements of a chunk.
    pub(crate) most: usize,
}

impl Work<'_> {
    fn peers(&self) -> Range<usize> {
        0..self.links.peers.len()
    }

    fn chunks(&self, elements: usize) -> Chunks {
        Chunks { elements, most: self.most }
    }

    /// The root among the peers; not to be called by the root.
    fn root_peer(&self) -> usize {
        self.root - usize::from(self.root > self.me)
    }

    /// How many more chunks a member sends before it takes one.
    fn lead(&self) -> usize {
        self.links.slots / 2
    }

    async fn send<T: Plain>(&mut self, to: Range<usize>, elements: &[T]) -> Result<()> {
        self.links.send(self.endpoint, &mut self.call, to, elements.as_bytes()).await
    }

    async fn take<T: Plain>(&mut self, at: usize, into: &mut [T]) -> Result<()> {
        self.links.take(self.endpoint, &mut self.call, at, into.as_mut_bytes()).await
    }

    pub(crate) async fn broadcast<T: Plain>(&mut self, data: &mut [T]) -> Result<()> {
        let chunks = self.chunks(data.len());
        for chunk in 0..chunks.count() {
            let chunk = &mut data[chunks.at(chunk)];
            if self.me == self.root {
                self.send(self.peers(), chunk).await?;
            } else {
                self.take(self.root_peer(), chunk).await?;
            }
        }
        Ok(())
    }

    pub(crate) async fn reduce<T: Plain>(&mut self, data: &mut [T], op: &mut impl FnMut(T, T) -> T) -> Result<()> {
        let chunks = self.chunks(data.len());
        for chunk in 0..chunks.count() {
            let chunk = &mut data[chunks.at(chunk)];
            if self.me == self.root {
                self.combine(chunk, op).await?;
            } else {
                let to = self.root_peer();
                self.send(to..to + 1, chunk).await?;
            }
        }
        Ok(())
    }

    /// Takes a chunk from each other member, and combines them with the own one, in the order of ranks.
    async fn combine<T: Plain>(&mut self, own: &mut [T], op: &mut impl FnMut(T, T) -> T) -> Result<()> {
        let bytes = size_of_val(own);
        for at in self.peers() {
            // Of all lower ranks, in the first buffer; and then in the own elements.
            let into = usize::from(at > 0 || self.me == 0);
            let buffer = &mut self.scratch[into][..bytes];
            self.links.take(self.endpoint, &mut self.call, at, buffer).await?;
            let [lower, next] = &mut *self.scratch;
            if at >= self.me {
                fold(own, &next[..bytes], &mut *op);
                continue;
            }
            if at > 0 {
                fold_bytes::<T>(&mut lower[..bytes], &next[..bytes], &mut *op);
            }
            if at + 1 == self.me {
                fold(own, &lower[..bytes], |own, lower| op(lower, own));
            }
        }
        Ok(())
    }

    /// All send everything to all.
    pub(crate) async fn all_reduce<T: Plain>(&mut self, data: &mut [T], op: &mut impl FnMut(T, T) -> T) -> Result<()> {
        let (chunks, lead) = (self.chunks(data.len()), self.lead());
        for step in 0..chunks.count() + lead {
            if step < chunks.count() {
                self.send(self.peers(), &data[chunks.at(step)]).await?;
            }
            if let Some(chunk) = step.checked_sub(lead) {
                self.combine(&mut data[chunks.at(chunk)], op).await?;
            }
        }
        Ok(())
    }

    /// Each member reduces its block, and sends the result to all: fewer bytes, and one more step.
    pub(crate) async fn all_reduce_blocks<T: Plain>(
        &mut self,
        data: &mut [T],
        op: &mut impl FnMut(T, T) -> T,
    ) -> Result<()> {
        let (members, len) = (self.links.peers.len() + 1, data.len());
        let (lead, me) = (self.lead(), self.me);
        let block_of = |rank: usize| block(len, members, rank);
        let own = block_of(me);
        // The first block is the longest.
        let count = self.chunks(block_of(0).len()).count();
        for step in 0..count + lead {
            for at in self.peers().filter(|_| step < count) {
                let theirs = block_of(rank_of(at, me));
                let chunk = part(&theirs, self.chunks(theirs.len()).at(step));
                self.send(at..at + 1, &data[chunk]).await?;
            }
            if let Some(chunk) = step.checked_sub(lead) {
                let chunk = part(&own, self.chunks(own.len()).at(chunk));
                self.combine(&mut data[chunk], op).await?;
            }
        }
        for step in 0..count + lead {
            if step < count {
                let chunk = part(&own, self.chunks(own.len()).at(step));
                self.send(self.peers(), &data[chunk]).await?;
            }
            for at in self.peers() {
                let Some(chunk) = step.checked_sub(lead) else { break };
                let theirs = block_of(rank_of(at, me));
                let chunk = part(&theirs, self.chunks(theirs.len()).at(chunk));
                self.take(at, &mut data[chunk]).await?;
            }
        }
        Ok(())
    }

    /// `into` has a part for each member, in the order of ranks.
    pub(crate) async fn gather<T: Plain>(&mut self, data: &[T], into: &mut [T]) -> Result<()> {
        let chunks = self.chunks(data.len());
        for chunk in (0..chunks.count()).map(|chunk| chunks.at(chunk)) {
            if self.me != self.root {
                let to = self.root_peer();
                self.send(to..to + 1, &data[chunk]).await?;
                continue;
            }
            for at in self.peers() {
                let start = rank_of(at, self.me) * data.len();
                self.take(at, &mut into[start + chunk.start..start + chunk.end]).await?;
            }
        }
        if self.me == self.root {
            into[self.me * data.len()..][..data.len()].copy_from_slice(data);
        }
        Ok(())
    }

    /// A member sends the same to all, or to each member its part.
    pub(crate) async fn exchange<T: Plain>(&mut self, data: &[T], into: &mut [T], is_same: bool) -> Result<()> {
        let each = into.len() / (self.links.peers.len() + 1);
        let (chunks, lead, me) = (self.chunks(each), self.lead(), self.me);
        for step in 0..chunks.count() + lead {
            if step < chunks.count() {
                if is_same {
                    self.send(self.peers(), &data[chunks.at(step)]).await?;
                } else {
                    for at in self.peers() {
                        let theirs = &data[rank_of(at, me) * each..][..each];
                        self.send(at..at + 1, &theirs[chunks.at(step)]).await?;
                    }
                }
            }
            for at in self.peers() {
                let Some(chunk) = step.checked_sub(lead) else { break };
                let theirs = &mut into[rank_of(at, me) * each..][..each];
                self.take(at, &mut theirs[chunks.at(chunk)]).await?;
            }
        }
        let own = if is_same { 0..each } else { me * each..(me + 1) * each };
        into[me * each..][..each].copy_from_slice(&data[own]);
        Ok(())
    }
}

fn element<T: Plain>(bytes: &[u8]) -> T {
    T::read_from_bytes(bytes).unwrap_or_else(|_| T::new_zeroed())
}

/// Combines elements with others, which are bytes at any address.
fn fold<T: Plain>(own: &mut [T], others: &[u8], mut op: impl FnMut(T, T) -> T) {
    if size_of::<T>() > 0 {
        for (own, other) in own.iter_mut().zip(others.chunks_exact(size_of::<T>())) {
            *own = op(*own, element(other));
        }
    }
}

fn fold_bytes<T: Plain>(sums: &mut [u8], others: &[u8], mut op: impl FnMut(T, T) -> T) {
    if size_of::<T>() > 0 {
        let each = size_of::<T>();
        for (sum, other) in sums.chunks_exact_mut(each).zip(others.chunks_exact(each)) {
            let combined = op(element(sum), element(other));
            sum.copy_from_slice(combined.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_and_blocks_cover_everything_once() {
        for elements in [0, 1, 7, 8, 9, 100] {
            let chunks = Chunks { elements, most: 8 };
            let covered: Vec<usize> = (0..chunks.count()).flat_map(|chunk| chunks.at(chunk)).collect();
            assert!(covered.into_iter().eq(0..elements));
            assert!(chunks.at(chunks.count()).is_empty());
            for members in 1..5 {
                let blocks = (0..members).map(|rank| block(elements, members, rank));
                assert!(blocks.clone().flatten().eq(0..elements));
                assert!(blocks.map(|block| block.len()).max() == Some(block(elements, members, 0).len()));
            }
        }
    }
}
