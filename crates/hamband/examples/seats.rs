//! A data type of your own, and a check of what it declares: seats of a hall, none of which is sold twice.
//!
//! `cargo run -p farfield-hamband --features check --example seats`

use std::collections::{BTreeMap, BTreeSet};

use farfield_hamband::check::Check;
use farfield_hamband::{Coordination, DataType, methods};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

/// Seats, and the customers that have one.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
struct Hall {
    seats: BTreeSet<u16>,
    sold: BTreeMap<u16, String>,
}

methods! {
    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    enum HallUpdate: HallMethod {
        Install(u16),
        Sell { seat: u16, to: String },
    }
}
use HallUpdate::{Install, Sell};

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, thiserror::Error)]
enum Refusal {
    #[error("there is no such seat")]
    NoSuchSeat,
    #[error("{0} has it")]
    Sold(String),
}

impl DataType for Hall {
    type Update = HallUpdate;
    type Refusal = Refusal;

    fn apply(&mut self, update: &HallUpdate) -> Result<(), Refusal> {
        match update {
            Install(seat) => drop(self.seats.insert(*seat)),
            Sell { seat, .. } if !self.seats.contains(seat) => return Err(Refusal::NoSuchSeat),
            Sell { seat, to } => match self.sold.get(seat) {
                Some(other) => return Err(Refusal::Sold(other.clone())),
                None => drop(self.sold.insert(*seat, to.clone())),
            },
        }
        Ok(())
    }

    fn invariant(&self) -> bool {
        self.sold.keys().all(|seat| self.seats.contains(seat))
    }

    fn coordination() -> Coordination<HallMethod> {
        use HallMethod::{Install, Sell};
        // A leader orders all sales. A replica applies one when it knows the seat. Seats come without coordination.
        Coordination::none().conflict(Sell, Sell).depends(Sell, Install)
    }
}

fn main() -> Result<(), farfield_hamband::check::Refuted> {
    // Few seats and customers, so that the calls meet each other.
    let calls = prop_oneof![(0..3u16).prop_map(Install), (0..3u16, "[ab]").prop_map(|(seat, to)| Sell { seat, to }),];
    let check = Check::new(Hall::default(), calls);
    println!("{}\n", check.run()?);

    // With less coordination, two replicas sell one seat.
    let check = check.coordination(Coordination::none().depends(HallMethod::Sell, HallMethod::Install));
    for refuted in [check.exhaustively(), check.executions()] {
        println!("{}\n", refuted.expect_err("sales conflict"));
    }
    Ok(())
}
