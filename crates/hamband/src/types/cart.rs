//! The shopping cart.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::tags::{NotYetHere, Tag, Tags};
use super::{Element, initially_empty};
use crate::{Coordination, DataType, methods};

/// A shopping cart (Shapiro et al., 2011, section 4; figure 9 of the paper): lines of a tag, an item and a quantity. To
/// change the quantity of an item, a new line replaces those that the issuer has seen. `Put` and `Remove` are
/// irreducible conflict-free, and both depend on `Put`.
///
/// ```
/// use farfield_hamband::DataType;
/// use farfield_hamband::types::Cart;
/// let mut cart = Cart::default();
/// cart.apply(&cart.put_of("tea".to_owned(), 2, 0))?;
/// cart.apply(&cart.put_of("tea".to_owned(), 3, 0))?; // 3 instead of 2
/// assert_eq!(cart.quantity(&"tea".to_owned()), 3);
/// cart.apply(&cart.removal_of(&"tea".to_owned()))?;
/// assert_eq!(cart.items().count(), 0);
/// # Ok::<(), farfield_hamband::types::CartRefusal>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(bound = "I: Element")]
pub struct Cart<I> {
    lines: BTreeMap<Tag, (I, u32)>,
    /// Of all lines that there ever were.
    tags: Tags,
}

initially_empty!(Cart<I> { lines, tags });

methods! {
    /// The updates of a [`Cart`].
    ///
    /// ```
    /// use farfield_hamband::types::{CartUpdate, Tag};
    /// let tag = Tag { node: 0, count: 1 };
    /// let put = CartUpdate::Put { tag, item: "tea".to_owned(), quantity: 2, replaced: [].into() };
    /// let remove = CartUpdate::<String>::Remove { seen: [tag].into() };
    /// ```
    #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
    #[serde(bound = "I: Element")]
    pub enum CartUpdate<I: Element>: CartMethod {
        /// Puts a line into the cart, and takes others away.
        Put {
            /// Unique.
            tag: Tag,
            /// The item.
            item: I,
            /// 1 or more.
            quantity: u32,
            /// The lines that it replaces.
            replaced: BTreeSet<Tag>,
        },
        /// Takes lines away.
        Remove {
            /// The lines that the issuer has seen.
            seen: BTreeSet<Tag>,
        },
    }
}

/// Why an update of a [`Cart`] is refused.
///
/// ```
/// use farfield_hamband::DataType;
/// use farfield_hamband::types::{Cart, CartRefusal};
/// let mut cart = Cart::default();
/// assert_eq!(cart.apply(&cart.put_of('a', 0, 0)), Err(CartRefusal::NoQuantity));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum CartRefusal {
    /// The quantity of a line is 0.
    #[error("a quantity is 1 or more")]
    NoQuantity,
    /// A line that the update names is not here yet.
    #[error(transparent)]
    NotYetHere(#[from] NotYetHere),
}

impl<I: Element> Cart<I> {
    /// How many there are of an item: the sum of its lines, of which concurrent updates may leave several.
    ///
    /// ```
    /// assert_eq!(farfield_hamband::types::Cart::default().quantity(&'a'), 0);
    /// ```
    pub fn quantity(&self, item: &I) -> u64 {
        self.lines.values().filter(|(other, _)| other == item).map(|(_, quantity)| u64::from(*quantity)).sum()
    }

    /// All lines: items and their quantities.
    ///
    /// ```
    /// assert_eq!(farfield_hamband::types::Cart::<u64>::default().items().count(), 0);
    /// ```
    pub fn items(&self) -> impl Iterator<Item = (&I, u32)> {
        self.lines.values().map(|(item, quantity)| (item, *quantity))
    }

    /// Sets the quantity of an item: this node's line replaces those of the item that are here.
    ///
    /// ```
    /// use farfield_hamband::types::{Cart, CartUpdate, Tag};
    /// let put = Cart::default().put_of('a', 2, 3);
    /// let tag = Tag { node: 3, count: 1 };
    /// assert_eq!(put, CartUpdate::Put { tag, item: 'a', quantity: 2, replaced: [].into() });
    /// ```
    pub fn put_of(&self, item: I, quantity: u32, node: u16) -> CartUpdate<I> {
        let replaced = self.tags_of(&item);
        CartUpdate::Put { tag: self.tags.next(node), item, quantity, replaced }
    }

    /// Removes an item: its lines that are here.
    ///
    /// ```
    /// use farfield_hamband::types::{Cart, CartUpdate};
    /// assert_eq!(Cart::default().removal_of(&'a'), CartUpdate::Remove { seen: [].into() });
    /// ```
    pub fn removal_of(&self, item: &I) -> CartUpdate<I> {
        CartUpdate::Remove { seen: self.tags_of(item) }
    }

    fn tags_of(&self, item: &I) -> BTreeSet<Tag> {
        self.lines.iter().filter(|(_, (other, _))| other == item).map(|(tag, _)| *tag).collect()
    }
}

impl<I: Element> DataType for Cart<I> {
    type Update = CartUpdate<I>;
    type Refusal = CartRefusal;

    fn apply(&mut self, update: &CartUpdate<I>) -> Result<(), CartRefusal> {
        self.check(update)?;
        let (CartUpdate::Put { replaced: removed, .. } | CartUpdate::Remove { seen: removed }) = update;
        self.lines.retain(|tag, _| !removed.contains(tag));
        if let CartUpdate::Put { tag, item, quantity, .. } = update
            && self.tags.insert(*tag)
        {
            self.lines.insert(*tag, (item.clone(), *quantity));
        }
        Ok(())
    }

    fn check(&self, update: &CartUpdate<I>) -> Result<(), CartRefusal> {
        let (CartUpdate::Put { replaced: removed, .. } | CartUpdate::Remove { seen: removed }) = update;
        if matches!(update, CartUpdate::Put { quantity: 0, .. }) {
            return Err(CartRefusal::NoQuantity);
        }
        if removed.iter().all(|tag| self.tags.contains(*tag)) { Ok(()) } else { Err(NotYetHere.into()) }
    }

    fn invariant(&self) -> bool {
        self.lines.iter().all(|(tag, (_, quantity))| self.tags.contains(*tag) && *quantity > 0)
    }

    fn coordination() -> Coordination<CartMethod> {
        Coordination::none().depends(CartMethod::Put, CartMethod::Put).depends(CartMethod::Remove, CartMethod::Put)
    }
}
