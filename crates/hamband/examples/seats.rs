//! A data type of your own, a check of what it declares, and replicas of it: seats of a hall, none of which is sold
//! twice.
//!
//! `cargo run -p farfield-hamband --features check --example seats`

use std::collections::{BTreeMap, BTreeSet};

use farfield_hamband::check::Check;
use farfield_hamband::{Coordination, DataType, Replicated, ReplicatedOptions, methods};
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
            Sell { seat, .. } if self.sold.contains_key(seat) => return Err(Refusal::Sold(self.sold[seat].clone())),
            Sell { seat, to } => drop(self.sold.insert(*seat, to.clone())),
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

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Few seats and customers, so that the calls meet each other.
    let calls = prop_oneof![(0..3u16).prop_map(Install), (0..3u16, "[ab]").prop_map(|(seat, to)| Sell { seat, to }),];
    let check = Check::new(Hall::default(), calls);
    println!("{}\n", check.run()?);

    // With less coordination, two replicas sell one seat.
    let check = check.coordination(Coordination::none().depends(HallMethod::Sell, HallMethod::Install));
    for refuted in [check.exhaustively(), check.executions()] {
        println!("{}\n", refuted.expect_err("sales conflict"));
    }

    // Three nodes sell one seat at the same time, and one of them does.
    let nodes = farfield::local_session(3)?;
    let sold = farfield::on_each(&nodes, |node| {
        let hall = Replicated::open(node, "hall", Hall::default(), ReplicatedOptions::default())?;
        let (mut writer, ep) = (hall.writer()?, node.endpoint()?);
        let sold = ep.block_on(async {
            let install = writer.update(&ep, &Install(7)).await?;
            assert!(install.is_ok());
            writer.update(&ep, &Sell { seat: 7, to: format!("{:?}", node.id()) }).await
        })?;
        ep.block_on(writer.stable(&ep))?;
        Ok((sold, hall))
    })?;
    let buyers = sold.iter().filter(|(sold, _)| sold.is_ok()).count();
    assert_eq!(buyers, 1, "{:?}", sold.iter().map(|(sold, _)| sold).collect::<Vec<_>>());
    println!("of three sales of one seat, one was made: {:?}", sold[0].1.query(|hall| hall.sold.clone())?);
    Ok(())
}
