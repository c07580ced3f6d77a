//! Unique tags of updates, and sets of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A unique tag of an update: the node that issued it, and a number which that node uses once.
///
/// ```
/// use farfield_hamband::types::Tag;
/// assert_eq!(Tag { node: 2, count: 7 }.to_string(), "2:7");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Tag {
    /// The rank of the node.
    pub node: u16,
    /// A number that the node uses once.
    pub count: u64,
}

impl core::fmt::Display for Tag {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}:{}", self.node, self.count)
    }
}

/// A set of tags, as a version vector with exceptions: for each node, ranges of its numbers. Where all updates of a
/// node are there, that is one range.
///
/// ```
/// use farfield_hamband::types::{Tag, Tags};
/// let mut tags: Tags = [1, 2, 4].map(|count| Tag { node: 0, count }).into_iter().collect();
/// assert!(!tags.contains(Tag { node: 0, count: 3 }));
/// tags.insert(Tag { node: 0, count: 3 });
/// assert_eq!(tags, (1..=4).map(|count| Tag { node: 0, count }).collect());
/// ```
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Tags {
    /// By node, from the first to the last number of a range. Ranges neither overlap nor touch.
    ranges: BTreeMap<u16, BTreeMap<u64, u64>>,
}

impl Tags {
    /// Whether the tag is there.
    ///
    /// ```
    /// use farfield_hamband::types::{Tag, Tags};
    /// assert!(!Tags::default().contains(Tag { node: 0, count: 1 }));
    /// ```
    pub fn contains(&self, tag: Tag) -> bool {
        self.covers(tag.node, tag.count, tag.count)
    }

    /// Adds a tag; whether it was new.
    ///
    /// ```
    /// use farfield_hamband::types::{Tag, Tags};
    /// let mut tags = Tags::default();
    /// assert!(tags.insert(Tag { node: 0, count: 1 }));
    /// assert!(!tags.insert(Tag { node: 0, count: 1 }));
    /// ```
    pub fn insert(&mut self, tag: Tag) -> bool {
        let is_new = !self.contains(tag);
        if is_new {
            self.insert_range(tag.node, tag.count, tag.count);
        }
        is_new
    }

    /// Whether all tags of this set are in the other.
    ///
    /// ```
    /// use farfield_hamband::types::{Tag, Tags};
    /// let one = Tags::from_iter([Tag { node: 0, count: 1 }]);
    /// assert!(Tags::default().is_subset(&one) && !one.is_subset(&Tags::default()));
    /// ```
    pub fn is_subset(&self, other: &Tags) -> bool {
        self.ranges.iter().all(|(node, ranges)| ranges.iter().all(|(from, to)| other.covers(*node, *from, *to)))
    }

    /// The next tag of a node: its number is above all those of the node that are here. It is unique if the node has
    /// applied its own updates to this set, as a replica does, and was not started again without them.
    ///
    /// ```
    /// use farfield_hamband::types::{Tag, Tags};
    /// let mut tags = Tags::default();
    /// assert_eq!(tags.next(3), Tag { node: 3, count: 1 });
    /// tags.insert(tags.next(3));
    /// assert_eq!(tags.next(3), Tag { node: 3, count: 2 });
    /// ```
    pub fn next(&self, node: u16) -> Tag {
        let last = self.ranges.get(&node).and_then(|ranges| ranges.last_key_value()).map_or(0, |(_, to)| *to);
        Tag { node, count: last.saturating_add(1) }
    }

    fn covers(&self, node: u16, from: u64, to: u64) -> bool {
        let ranges = self.ranges.get(&node);
        ranges.and_then(|ranges| ranges.range(..=from).next_back()).is_some_and(|(_, end)| *end >= to)
    }

    fn insert_range(&mut self, node: u16, mut from: u64, mut to: u64) {
        let ranges = self.ranges.entry(node).or_default();
        // Those that overlap the new one or touch it become one with it.
        while let Some((start, end)) =
            ranges.range(..=to.saturating_add(1)).next_back().map(|(start, end)| (*start, *end))
            && end >= from.saturating_sub(1)
        {
            ranges.remove(&start);
            (from, to) = (from.min(start), to.max(end));
        }
        ranges.insert(from, to);
    }
}

impl FromIterator<Tag> for Tags {
    fn from_iter<I: IntoIterator<Item = Tag>>(tags: I) -> Tags {
        let mut set = Tags::default();
        for tag in tags {
            set.insert(tag);
        }
        set
    }
}

/// An update names an earlier one that is not here yet. A replica never meets this: it applies the updates that an
/// update depends on first.
///
/// ```
/// use farfield_hamband::DataType;
/// use farfield_hamband::types::{OrSet, OrSetUpdate, Tag};
/// let tag = Tag { node: 0, count: 1 };
/// let removal = OrSetUpdate::Remove { element: 'a', tags: [tag].into() };
/// assert_eq!(OrSet::default().apply(&removal).unwrap_err().to_string(), "an update that it has seen is not here yet");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("an update that it has seen is not here yet")]
pub struct NotYetHere;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn tags_are_a_set(
            counts in prop::collection::vec((0..2u16, 0..12u64), 0..24),
            others in prop::collection::vec((0..2u16, 0..12u64), 0..12),
        ) {
            let tag = |(node, count): &(u16, u64)| Tag { node: *node, count: *count };
            let (model, tags): (BTreeSet<Tag>, Tags) = (counts.iter().map(tag).collect(), counts.iter().map(tag).collect());
            let (other, other_tags): (BTreeSet<Tag>, Tags) = (others.iter().map(tag).collect(), others.iter().map(tag).collect());
            for node in 0..2 {
                for count in 0..14 {
                    let tag = Tag { node, count };
                    prop_assert_eq!(tags.contains(tag), model.contains(&tag));
                }
            }
            prop_assert_eq!(other_tags.is_subset(&tags), other.is_subset(&model));
            prop_assert_eq!(&tags, &model.iter().copied().collect::<Tags>());
            // Ranges do not touch.
            for ranges in tags.ranges.values() {
                prop_assert!(ranges.iter().zip(ranges.iter().skip(1)).all(|((_, to), (from, _))| to + 1 < *from));
            }
        }
    }

    #[test]
    fn the_last_number_does_not_overflow() {
        let last = Tag { node: 0, count: u64::MAX };
        let tags: Tags = [Tag { node: 0, count: 0 }, last].into_iter().collect();
        assert!(tags.contains(last) && !tags.contains(Tag { node: 0, count: 1 }));
        assert_eq!(tags.next(0), last);
    }
}
