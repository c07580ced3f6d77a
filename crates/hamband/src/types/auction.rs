//! An auction.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{Element, initially_empty};
use crate::{Coordination, DataType, methods};

/// An auction (after Hamsaz): registered buyers bid while it is open, and when it is closed, the winner's bid is the
/// highest. `Register` is reducible. `Close` conflicts with `Bid` and with itself; `Bid` depends on `Register`, and
/// `Close` on `Bid`.
///
/// ```
/// use farfield_hamband::DataType;
/// use farfield_hamband::types::{Auction, AuctionRefusal, AuctionUpdate::*};
/// let mut auction = Auction::default();
/// auction.apply(&Register(['a', 'b'].into()))?;
/// auction.apply(&Bid { buyer: 'a', amount: 5 })?;
/// auction.apply(&Bid { buyer: 'b', amount: 7 })?;
/// auction.apply(&auction.closing().expect("there is a bid"))?;
/// assert_eq!(auction.winner(), Some((&'b', 7)));
/// assert_eq!(auction.apply(&Bid { buyer: 'a', amount: 9 }), Err(AuctionRefusal::Closed));
/// # Ok::<(), AuctionRefusal>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(bound = "B: Element")]
pub struct Auction<B> {
    buyers: BTreeSet<B>,
    /// By amount, so that the highest is the last.
    bids: BTreeSet<(u64, B)>,
    winner: Option<(u64, B)>,
}

initially_empty!(Auction<B> { buyers, bids, winner });

methods! {
    /// The updates of an [`Auction`].
    ///
    /// ```
    /// use farfield_hamband::{DataType, types::{Auction, AuctionUpdate::Register}};
    /// assert_eq!(Auction::summarise(&Register([1].into()), &Register([2].into())), Some(Register([1, 2].into())));
    /// ```
    #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
    #[serde(bound = "B: Element")]
    pub enum AuctionUpdate<B: Element>: AuctionMethod {
        /// Registers all these buyers.
        Register(BTreeSet<B>),
        /// Makes a bid.
        Bid {
            /// A registered buyer.
            buyer: B,
            /// The offer.
            amount: u64,
        },
        /// Ends the auction.
        Close {
            /// The winner.
            buyer: B,
            /// The winner's bid.
            amount: u64,
        },
    }
}

/// Why an update of an [`Auction`] is refused.
///
/// ```
/// use farfield_hamband::DataType;
/// use farfield_hamband::types::{Auction, AuctionRefusal, AuctionUpdate};
/// let bid = AuctionUpdate::Bid { buyer: 'a', amount: 5 };
/// assert_eq!(Auction::default().apply(&bid), Err(AuctionRefusal::NotRegistered));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum AuctionRefusal {
    /// The buyer is not registered.
    #[error("the buyer is not registered")]
    NotRegistered,
    /// The auction is closed.
    #[error("the auction is closed")]
    Closed,
    /// The bid that is to win was not made.
    #[error("there is no such bid")]
    NoSuchBid,
    /// Another bid is higher than the one that is to win.
    #[error("another bid is higher")]
    Outbid,
}

impl<B: Element> Auction<B> {
    /// Whether bids are accepted.
    ///
    /// ```
    /// assert!(farfield_hamband::types::Auction::<u64>::default().is_open());
    /// ```
    pub fn is_open(&self) -> bool {
        self.winner.is_none()
    }

    /// The winner and the winning bid, if the auction is closed.
    ///
    /// ```
    /// assert_eq!(farfield_hamband::types::Auction::<u64>::default().winner(), None);
    /// ```
    pub fn winner(&self) -> Option<(&B, u64)> {
        self.winner.as_ref().map(|(amount, buyer)| (buyer, *amount))
    }

    /// The highest bid until now. Of equal ones, it is that of the last buyer in order.
    ///
    /// ```
    /// assert_eq!(farfield_hamband::types::Auction::<u64>::default().highest(), None);
    /// ```
    pub fn highest(&self) -> Option<(&B, u64)> {
        self.bids.last().map(|(amount, buyer)| (buyer, *amount))
    }

    /// Whether a buyer is registered.
    ///
    /// ```
    /// assert!(!farfield_hamband::types::Auction::default().is_registered(&1));
    /// ```
    pub fn is_registered(&self, buyer: &B) -> bool {
        self.buyers.contains(buyer)
    }

    /// The update that ends the auction with the highest bid until now.
    ///
    /// ```
    /// assert_eq!(farfield_hamband::types::Auction::<u64>::default().closing(), None);
    /// ```
    pub fn closing(&self) -> Option<AuctionUpdate<B>> {
        self.highest().map(|(buyer, amount)| AuctionUpdate::Close { buyer: buyer.clone(), amount })
    }
}

impl<B: Element> DataType for Auction<B> {
    type Update = AuctionUpdate<B>;
    type Refusal = AuctionRefusal;

    fn apply(&mut self, update: &AuctionUpdate<B>) -> Result<(), AuctionRefusal> {
        self.check(update)?;
        match update {
            AuctionUpdate::Register(more) => self.buyers.extend(more.iter().cloned()),
            AuctionUpdate::Bid { buyer, amount } => {
                self.bids.insert((*amount, buyer.clone()));
            }
            AuctionUpdate::Close { buyer, amount } => self.winner = Some((*amount, buyer.clone())),
        }
        Ok(())
    }

    fn check(&self, update: &AuctionUpdate<B>) -> Result<(), AuctionRefusal> {
        match update {
            AuctionUpdate::Register(_) => Ok(()),
            AuctionUpdate::Bid { buyer, .. } if !self.buyers.contains(buyer) => Err(AuctionRefusal::NotRegistered),
            _ if !self.is_open() => Err(AuctionRefusal::Closed),
            AuctionUpdate::Bid { .. } => Ok(()),
            AuctionUpdate::Close { buyer, amount } if !self.bids.contains(&(*amount, buyer.clone())) => {
                Err(AuctionRefusal::NoSuchBid)
            }
            AuctionUpdate::Close { amount, .. } if self.highest().is_some_and(|(_, highest)| highest > *amount) => {
                Err(AuctionRefusal::Outbid)
            }
            AuctionUpdate::Close { .. } => Ok(()),
        }
    }

    fn invariant(&self) -> bool {
        let is_of_buyer = self.bids.iter().all(|(_, buyer)| self.buyers.contains(buyer));
        let has_won = |winner: &(u64, B)| self.bids.contains(winner) && self.bids.iter().all(|(n, _)| *n <= winner.0);
        is_of_buyer && self.winner.as_ref().is_none_or(has_won)
    }

    fn coordination() -> Coordination<AuctionMethod> {
        use AuctionMethod::{Bid, Close, Register};
        let bids = Coordination::none().conflict(Bid, Close).conflict(Close, Close);
        bids.depends(Bid, Register).depends(Close, Bid).summarised([Register])
    }

    fn summarise(first: &AuctionUpdate<B>, then: &AuctionUpdate<B>) -> Option<AuctionUpdate<B>> {
        match (first, then) {
            (AuctionUpdate::Register(a), AuctionUpdate::Register(b)) => Some(AuctionUpdate::Register(a | b)),
            _ => None,
        }
    }

    fn remainder(earlier: &AuctionUpdate<B>, later: &AuctionUpdate<B>) -> Option<AuctionUpdate<B>> {
        match (earlier, later) {
            (AuctionUpdate::Register(a), AuctionUpdate::Register(b)) => Some(AuctionUpdate::Register(b - a)),
            _ => None,
        }
    }
}
