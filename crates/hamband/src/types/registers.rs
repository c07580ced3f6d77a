//! Registers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::tags::{NotYetHere, Tag, Tags};
use super::{Element, Never, initially_empty};
use crate::{Coordination, DataType, methods};

/// When a value was written: a time, and the node that wrote it, which decides between equal times. Two writes never
/// have the same.
///
/// ```
/// use farfield_hamband::types::Timestamp;
/// assert!(Timestamp { time: 5, node: 0 } < Timestamp { time: 5, node: 1 });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Timestamp {
    /// A clock's value.
    pub time: u64,
    /// The rank of the node.
    pub node: u16,
}

/// A register in which the last writer wins (Shapiro et al., 2011, specification 9; figure 8 of the paper). `Write` is
/// reducible: of two writes, the later one is the summary.
///
/// ```
/// use farfield_hamband::DataType;
/// use farfield_hamband::types::LwwRegister;
/// let mut colour = LwwRegister::default();
/// let (red, blue) = (colour.write_of("red".to_owned(), 10, 0), colour.write_of("blue".to_owned(), 10, 1));
/// colour.apply(&blue)?;
/// colour.apply(&red)?; // node 1 wins at the same time
/// assert_eq!(colour.read().map(|colour| &**colour), Some("blue"));
/// # Ok::<(), farfield_hamband::types::Never>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(bound = "V: Element")]
pub struct LwwRegister<V> {
    content: Option<(Timestamp, V)>,
}

initially_empty!(LwwRegister<V> { content });

methods! {
    /// The updates of an [`LwwRegister`].
    ///
    /// ```
    /// use farfield_hamband::types::{LwwUpdate, Timestamp};
    /// let write = LwwUpdate::Write { value: 5, at: Timestamp { time: 1, node: 0 } };
    /// ```
    #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
    #[serde(bound = "V: Element")]
    pub enum LwwUpdate<V: Element>: LwwMethod {
        /// Overwrites an earlier value.
        Write {
            /// The value.
            value: V,
            /// Unique.
            at: Timestamp,
        },
    }
}

impl<V: Element> LwwRegister<V> {
    /// The last value.
    ///
    /// ```
    /// assert_eq!(farfield_hamband::types::LwwRegister::<u64>::default().read(), None);
    /// ```
    pub fn read(&self) -> Option<&V> {
        self.content.as_ref().map(|(_, value)| value)
    }

    /// When it was written.
    ///
    /// ```
    /// assert_eq!(farfield_hamband::types::LwwRegister::<u64>::default().written_at(), None);
    /// ```
    pub fn written_at(&self) -> Option<Timestamp> {
        self.content.as_ref().map(|(at, _)| *at)
    }

    /// A write of this node, at a time of its clock. If the value here has a later time, the write follows directly
    /// after it, so it is not lost.
    ///
    /// ```
    /// use farfield_hamband::types::{LwwRegister, LwwUpdate, Timestamp};
    /// let write = LwwRegister::default().write_of(5, 1234, 0);
    /// assert_eq!(write, LwwUpdate::Write { value: 5, at: Timestamp { time: 1234, node: 0 } });
    /// ```
    pub fn write_of(&self, value: V, clock: u64, node: u16) -> LwwUpdate<V> {
        let after = self.written_at().map_or(0, |at| at.time.saturating_add(1));
        LwwUpdate::Write { value, at: Timestamp { time: clock.max(after), node } }
    }
}

impl<V: Element> DataType for LwwRegister<V> {
    type Update = LwwUpdate<V>;
    type Refusal = Never;

    fn apply(&mut self, LwwUpdate::Write { value, at }: &LwwUpdate<V>) -> Result<(), Never> {
        if self.written_at().is_none_or(|written| written < *at) {
            self.content = Some((*at, value.clone()));
        }
        Ok(())
    }

    fn coordination() -> Coordination<LwwMethod> {
        Coordination::none().summarised([LwwMethod::Write])
    }

    fn summarise(first: &LwwUpdate<V>, then: &LwwUpdate<V>) -> Option<LwwUpdate<V>> {
        let (LwwUpdate::Write { at: one, .. }, LwwUpdate::Write { at: other, .. }) = (first, then);
        Some(if one < other { then } else { first }.clone())
    }

    fn remainder(_: &LwwUpdate<V>, later: &LwwUpdate<V>) -> Option<LwwUpdate<V>> {
        Some(later.clone())
    }
}

/// A register that keeps all values which were written concurrently (Shapiro et al., 2011, specification 10). A write
/// has the tags of the writes that its issuer has seen, as a version vector, and overwrites these. `Write` is
/// conflict-free and depends on itself: a replica applies the writes that a write has seen first.
///
/// ```
/// use farfield_hamband::DataType;
/// use farfield_hamband::types::MvRegister;
/// let mut register = MvRegister::default();
/// // Neither write has seen the other.
/// let (one, other) = (register.write_of("tea".to_owned(), 0), register.write_of("coffee".to_owned(), 1));
/// register.apply(&one)?;
/// register.apply(&other)?;
/// assert_eq!(register.read().collect::<Vec<_>>(), ["tea", "coffee"]);
/// register.apply(&register.write_of("water".to_owned(), 0))?;
/// assert_eq!(register.read().collect::<Vec<_>>(), ["water"]);
/// # Ok::<(), farfield_hamband::types::NotYetHere>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(bound = "V: Element")]
pub struct MvRegister<V> {
    values: BTreeMap<Tag, V>,
    written: Tags,
}

initially_empty!(MvRegister<V> { values, written });

methods! {
    /// The updates of an [`MvRegister`].
    ///
    /// ```
    /// use farfield_hamband::types::{MvUpdate, Tag, Tags};
    /// let write = MvUpdate::Write { value: 5, tag: Tag { node: 0, count: 1 }, seen: Tags::default() };
    /// ```
    #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
    #[serde(bound = "V: Element")]
    pub enum MvUpdate<V: Element>: MvMethod {
        /// Overwrites the values that its issuer has seen.
        Write {
            /// The value.
            value: V,
            /// Unique.
            tag: Tag,
            /// The writes that the issuer has seen.
            seen: Tags,
        },
    }
}

impl<V: Element> MvRegister<V> {
    /// The values, by their tags: one, unless writes were concurrent.
    ///
    /// ```
    /// assert_eq!(farfield_hamband::types::MvRegister::<u64>::default().read().count(), 0);
    /// ```
    pub fn read(&self) -> impl Iterator<Item = &V> {
        self.values.values()
    }

    /// A write of this node, which overwrites all values that are here.
    ///
    /// ```
    /// use farfield_hamband::types::{MvRegister, MvUpdate, Tag, Tags};
    /// let write = MvRegister::default().write_of(5, 3);
    /// assert_eq!(write, MvUpdate::Write { value: 5, tag: Tag { node: 3, count: 1 }, seen: Tags::default() });
    /// ```
    pub fn write_of(&self, value: V, node: u16) -> MvUpdate<V> {
        MvUpdate::Write { value, tag: self.written.next(node), seen: self.written.clone() }
    }
}

impl<V: Element> DataType for MvRegister<V> {
    type Update = MvUpdate<V>;
    type Refusal = NotYetHere;

    fn apply(&mut self, update: &MvUpdate<V>) -> Result<(), NotYetHere> {
        self.check(update)?;
        let MvUpdate::Write { value, tag, seen } = update;
        self.values.retain(|tag, _| !seen.contains(*tag));
        if self.written.insert(*tag) {
            self.values.insert(*tag, value.clone());
        }
        Ok(())
    }

    fn check(&self, MvUpdate::Write { seen, .. }: &MvUpdate<V>) -> Result<(), NotYetHere> {
        if seen.is_subset(&self.written) { Ok(()) } else { Err(NotYetHere) }
    }

    fn invariant(&self) -> bool {
        self.values.keys().all(|tag| self.written.contains(*tag))
    }

    fn coordination() -> Coordination<MvMethod> {
        Coordination::none().depends(MvMethod::Write, MvMethod::Write)
    }
}
