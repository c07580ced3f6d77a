//! Data types that are ready to replicate: those of the paper, and the usual CRDTs.
//!
//! | type | paper | reducible | irreducible conflict-free | conflicting |
//! |---|---|---|---|---|
//! | [`Counter`] | fig. 8 | Add | | |
//! | [`PnCounter`] | | Increment; Decrement | | |
//! | [`LwwRegister`] | fig. 8 | Write | | |
//! | [`MvRegister`] | | | Write | |
//! | [`GSet`] | figs. 8, 9, §2 | Add | | |
//! | [`GSetByElement`] | fig. 9, §2 | | Add | |
//! | [`OrSet`] | fig. 9 | | Add, Remove | |
//! | [`Cart`] | fig. 9 | | Put, Remove | |
//! | [`Account`] | §2, fig. 1 | Deposit | | Withdraw |
//! | [`BankMap`] | §2 | | Open, Deposit | Withdraw |
//! | [`ProjectManagement`] | §5 | AddEmployee | | AddProject, DeleteProject, WorksOn |
//! | [`Courseware`] | §5 | | RegisterStudent | AddCourse, DeleteCourse, Enroll |
//! | [`MovieRental`] | §5 | | | AddCustomer, DeleteCustomer; AddMovie, DeleteMovie |
//! | [`Auction`] | after Hamsaz | Register | | Bid, Close |
//!
//! Each has a specification in `types/*.wrdt`, of which the [analysis](crate::analysis) proves the relations. A test
//! compares them with the type's [`Coordination`](crate::Coordination).
//!
//! Updates of CRDTs are *effects*: they carry all that their result depends on, as the tags that a removal has seen.
//! The state has methods that make them, [`OrSet::removal_of`] for example. Call these on the replica that issues the
//! update.
//!
//! Replicas apply updates in any order that the relations allow. A removal depends on the additions that it has seen,
//! so no replica applies it before them, even if a third process made them.

mod auction;
mod bank;
mod cart;
mod counters;
mod registers;
mod schemata;
mod sets;
mod tags;

use core::fmt::Debug;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use self::auction::{Auction, AuctionMethod, AuctionRefusal, AuctionUpdate};
pub use self::bank::{
    Account, AccountMethod, AccountUpdate, Amount, BalanceTooLow, BankMap, BankMapMethod, BankMapUpdate, BankRefusal,
};
pub use self::cart::{Cart, CartMethod, CartRefusal, CartUpdate};
pub use self::counters::{Counter, CounterMethod, CounterUpdate, PnCounter, PnCounterMethod, PnCounterUpdate};
pub use self::registers::{LwwMethod, LwwRegister, LwwUpdate, MvMethod, MvRegister, MvUpdate, Timestamp};
pub use self::schemata::{
    Courseware, CoursewareMethod, CoursewareRefusal, CoursewareUpdate, MovieMethod, MovieRental, MovieUpdate,
    ProjectManagement, ProjectMethod, ProjectRefusal, ProjectUpdate,
};
pub use self::sets::{
    GSet, GSetByElement, GSetByElementMethod, GSetByElementUpdate, GSetMethod, GSetUpdate, OrSet, OrSetMethod,
    OrSetUpdate,
};
pub use self::tags::{NotYetHere, Tag, Tags};

/// A value that sets and maps can have as an element or a key. Every type with these bounds is one.
///
/// ```
/// fn is_element(_: impl farfield_hamband::types::Element) {}
/// is_element(5);
/// is_element("a string".to_owned());
/// ```
pub trait Element: Clone + Ord + Debug + Send + Serialize + DeserializeOwned + 'static {}

impl<E: Clone + Ord + Debug + Send + Serialize + DeserializeOwned + 'static> Element for E {}

/// The refusal of a type that refuses no update. There is no such value.
///
/// ```
/// use farfield_hamband::DataType;
/// use farfield_hamband::types::{Counter, CounterUpdate};
/// let Ok(()) = Counter::default().apply(&CounterUpdate::Add(1)); // no `Err` is possible
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum Never {}

/// The initial state of a type with parameters, which need no default of their own.
macro_rules! initially_empty {
    ($name:ident<$($parameter:ident),+> { $($field:ident),+ }) => {
        impl<$($parameter: $crate::types::Element),+> Default for $name<$($parameter),+> {
            fn default() -> Self {
                $name { $($field: Default::default()),+ }
            }
        }
    };
}
use initially_empty;
