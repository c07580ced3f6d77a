//! Sets.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::tags::{NotYetHere, Tag, Tags};
use super::{Element, Never, initially_empty};
use crate::{Coordination, DataType, methods};

/// A grow-only set, with elements that are added in sets (§2, figures 8 and 9 of the paper). `Add` is reducible: two
/// additions are that of the union.
///
/// ```
/// use farfield_hamband::DataType;
/// use farfield_hamband::types::{GSet, GSetUpdate};
/// let mut set = GSet::default();
/// set.apply(&GSetUpdate::Add(['a', 'b'].into()))?;
/// assert!(set.contains(&'a') && !set.contains(&'c'));
/// # Ok::<(), farfield_hamband::types::Never>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(bound = "E: Element")]
pub struct GSet<E> {
    elements: BTreeSet<E>,
}

initially_empty!(GSet<E> { elements });

methods! {
    /// The updates of a [`GSet`].
    ///
    /// ```
    /// use farfield_hamband::{DataType, types::{GSet, GSetUpdate::Add}};
    /// assert_eq!(GSet::summarise(&Add([1].into()), &Add([2].into())), Some(Add([1, 2].into())));
    /// ```
    #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
    #[serde(bound = "E: Element")]
    pub enum GSetUpdate<E: Element>: GSetMethod {
        /// Adds all these elements.
        Add(BTreeSet<E>),
    }
}

impl<E: Element> GSet<E> {
    /// Whether an element is there.
    ///
    /// ```
    /// assert!(!farfield_hamband::types::GSet::default().contains(&5));
    /// ```
    pub fn contains(&self, element: &E) -> bool {
        self.elements.contains(element)
    }

    /// All elements.
    ///
    /// ```
    /// assert!(farfield_hamband::types::GSet::<u64>::default().elements().is_empty());
    /// ```
    pub fn elements(&self) -> &BTreeSet<E> {
        &self.elements
    }
}

impl<E: Element> DataType for GSet<E> {
    type Update = GSetUpdate<E>;
    type Refusal = Never;

    fn apply(&mut self, GSetUpdate::Add(more): &GSetUpdate<E>) -> Result<(), Never> {
        self.elements.extend(more.iter().cloned());
        Ok(())
    }

    fn coordination() -> Coordination<GSetMethod> {
        Coordination::none().summarised([GSetMethod::Add])
    }

    fn summarise(GSetUpdate::Add(a): &GSetUpdate<E>, GSetUpdate::Add(b): &GSetUpdate<E>) -> Option<GSetUpdate<E>> {
        Some(GSetUpdate::Add(a | b))
    }

    fn remainder(GSetUpdate::Add(a): &GSetUpdate<E>, GSetUpdate::Add(b): &GSetUpdate<E>) -> Option<GSetUpdate<E>> {
        Some(GSetUpdate::Add(b - a))
    }
}

/// A grow-only set, with elements that are added one by one (§2, figure 9 of the paper). Two elements are not one, so
/// `Add` has no summary: it is irreducible conflict-free.
///
/// ```
/// use farfield_hamband::DataType;
/// use farfield_hamband::types::{GSetByElement, GSetByElementUpdate};
/// let mut set = GSetByElement::default();
/// set.apply(&GSetByElementUpdate::Add('a'))?;
/// assert!(set.contains(&'a') && !set.contains(&'b'));
/// # Ok::<(), farfield_hamband::types::Never>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(bound = "E: Element")]
pub struct GSetByElement<E> {
    elements: BTreeSet<E>,
}

initially_empty!(GSetByElement<E> { elements });

methods! {
    /// The updates of a [`GSetByElement`].
    ///
    /// ```
    /// use farfield_hamband::{DataType, types::{GSetByElement, GSetByElementUpdate::Add}};
    /// assert_eq!(GSetByElement::summarise(&Add(1), &Add(2)), None);
    /// ```
    #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
    #[serde(bound = "E: Element")]
    pub enum GSetByElementUpdate<E: Element>: GSetByElementMethod {
        /// Adds an element.
        Add(E),
    }
}

impl<E: Element> GSetByElement<E> {
    /// Whether an element is there.
    ///
    /// ```
    /// assert!(!farfield_hamband::types::GSetByElement::default().contains(&5));
    /// ```
    pub fn contains(&self, element: &E) -> bool {
        self.elements.contains(element)
    }

    /// All elements.
    ///
    /// ```
    /// assert!(farfield_hamband::types::GSetByElement::<u64>::default().elements().is_empty());
    /// ```
    pub fn elements(&self) -> &BTreeSet<E> {
        &self.elements
    }
}

impl<E: Element> DataType for GSetByElement<E> {
    type Update = GSetByElementUpdate<E>;
    type Refusal = Never;

    fn apply(&mut self, GSetByElementUpdate::Add(element): &GSetByElementUpdate<E>) -> Result<(), Never> {
        self.elements.insert(element.clone());
        Ok(())
    }

    fn coordination() -> Coordination<GSetByElementMethod> {
        Coordination::none()
    }
}

/// An observed-remove set (Shapiro et al., 2011, specification 15; figure 9 of the paper). Each addition has a tag, and
/// a removal takes away the tags that its issuer has seen; so a concurrent addition stays. `Add` and `Remove` are
/// irreducible conflict-free, and `Remove` depends on `Add`.
///
/// ```
/// use farfield_hamband::DataType;
/// use farfield_hamband::types::OrSet;
/// let mut set = OrSet::default();
/// set.apply(&set.addition_of('a', 0))?;
/// let (removal, addition) = (set.removal_of(&'a').expect("it is there"), set.addition_of('a', 1));
/// set.apply(&addition)?;
/// set.apply(&removal)?; // has not seen that addition
/// assert!(set.contains(&'a'));
/// # Ok::<(), farfield_hamband::types::NotYetHere>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(bound = "E: Element")]
pub struct OrSet<E> {
    /// The tags of the additions that were not removed. None is empty.
    elements: BTreeMap<E, BTreeSet<Tag>>,
    /// The tags of all additions.
    added: Tags,
}

initially_empty!(OrSet<E> { elements, added });

methods! {
    /// The updates of an [`OrSet`].
    ///
    /// ```
    /// use farfield_hamband::types::{OrSetUpdate, Tag};
    /// let tag = Tag { node: 0, count: 1 };
    /// let add = OrSetUpdate::Add { element: 'a', tag };
    /// let remove = OrSetUpdate::Remove { element: 'a', tags: [tag].into() };
    /// ```
    #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
    #[serde(bound = "E: Element")]
    pub enum OrSetUpdate<E: Element>: OrSetMethod {
        /// Adds an element.
        Add {
            /// The element.
            element: E,
            /// Unique.
            tag: Tag,
        },
        /// Removes these additions of an element.
        Remove {
            /// The element.
            element: E,
            /// Of its additions, those that the issuer has seen.
            tags: BTreeSet<Tag>,
        },
    }
}

impl<E: Element> OrSet<E> {
    /// Whether an element is there.
    ///
    /// ```
    /// assert!(!farfield_hamband::types::OrSet::default().contains(&5));
    /// ```
    pub fn contains(&self, element: &E) -> bool {
        self.elements.contains_key(element)
    }

    /// All elements, in order.
    ///
    /// ```
    /// assert_eq!(farfield_hamband::types::OrSet::<u64>::default().elements().count(), 0);
    /// ```
    pub fn elements(&self) -> impl Iterator<Item = &E> {
        self.elements.keys()
    }

    /// An addition of this node.
    ///
    /// ```
    /// use farfield_hamband::types::{OrSet, OrSetUpdate, Tag};
    /// let addition = OrSet::default().addition_of('a', 3);
    /// assert_eq!(addition, OrSetUpdate::Add { element: 'a', tag: Tag { node: 3, count: 1 } });
    /// ```
    pub fn addition_of(&self, element: E, node: u16) -> OrSetUpdate<E> {
        OrSetUpdate::Add { element, tag: self.added.next(node) }
    }

    /// The removal of an element, if it is there.
    ///
    /// ```
    /// assert_eq!(farfield_hamband::types::OrSet::default().removal_of(&5), None);
    /// ```
    pub fn removal_of(&self, element: &E) -> Option<OrSetUpdate<E>> {
        let tags = self.elements.get(element)?;
        Some(OrSetUpdate::Remove { element: element.clone(), tags: tags.clone() })
    }
}

impl<E: Element> DataType for OrSet<E> {
    type Update = OrSetUpdate<E>;
    type Refusal = NotYetHere;

    fn apply(&mut self, update: &OrSetUpdate<E>) -> Result<(), NotYetHere> {
        self.check(update)?;
        match update {
            OrSetUpdate::Add { element, tag } => {
                if self.added.insert(*tag) {
                    self.elements.entry(element.clone()).or_default().insert(*tag);
                }
            }
            OrSetUpdate::Remove { element, tags } => {
                if let Some(here) = self.elements.get_mut(element) {
                    here.retain(|tag| !tags.contains(tag));
                    if here.is_empty() {
                        self.elements.remove(element);
                    }
                }
            }
        }
        Ok(())
    }

    fn check(&self, update: &OrSetUpdate<E>) -> Result<(), NotYetHere> {
        match update {
            OrSetUpdate::Remove { tags, .. } if !tags.iter().all(|tag| self.added.contains(*tag)) => Err(NotYetHere),
            _ => Ok(()),
        }
    }

    fn invariant(&self) -> bool {
        let is_added = |tags: &BTreeSet<Tag>| !tags.is_empty() && tags.iter().all(|tag| self.added.contains(*tag));
        self.elements.values().all(is_added)
    }

    fn coordination() -> Coordination<OrSetMethod> {
        Coordination::none().depends(OrSetMethod::Remove, OrSetMethod::Add)
    }
}
