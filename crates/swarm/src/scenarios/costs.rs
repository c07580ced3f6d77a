//! Round trips, as the documentation has them, of a client that is alone while no fault occurs.

use std::rc::Rc;

use farfield_check::Scenario;
use farfield_core::Result;
use farfield_fabric::{NodeId, Word};

use super::{parts, store_parts};
use crate::{SwarmOptions, SwarmStoreOptions};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![of_registers(), of_a_store(), of_a_dropped_write()]
}

/// Of four nodes, the last one has the client and no memory: all operations go to other nodes.
const CLIENT: usize = 3;

fn options() -> SwarmOptions {
    SwarmOptions { clients: vec![NodeId(CLIENT as u16)], ..SwarmOptions::default() }
}

fn takes(expected: u64, what: &str, trips: Result<u64>) -> Result<()> {
    assert_eq!(trips?, expected, "round trips of {what}");
    Ok(())
}

fn of_registers() -> Scenario {
    Scenario::new("swarm/costs", "a read and a write take one round trip", 4, |cluster| {
        let parts::Opened { clients, history } = parts::open(cluster, 3, options())?;
        parts::register(cluster, CLIENT, &clients, &history, |client| {
            takes(1, "a read before any write", client.trips_alone(|| client.read()))?;
            takes(2, "the first write, which also reserves timestamps", client.trips_alone(|| client.write(1)))?;
            // Each begins with another memory node.
            for register in 0..3 {
                takes(1, "a read", client.trips_alone(|| client.read_at(register)))?;
                takes(1, "a write", client.trips_alone(|| client.write_at(register, 2)))?;
                takes(1, "a read after it", client.trips_alone(|| client.read_at(register)))?;
                takes(1, "another write", client.trips_alone(|| client.write_at(register, 3)))?;
            }
            Ok(())
        });
        Ok(())
    })
}

fn of_a_store() -> Scenario {
    let about = "a call on a key that the client remembers takes one round trip, and a get of another one takes two";
    Scenario::new("swarm-kv/costs", about, 4, |cluster| {
        // So many keys that a delete leaves the entry in the index to later calls.
        let options =
            SwarmStoreOptions { keys: 128, cached_keys: 16, replicas: options(), ..SwarmStoreOptions::default() };
        let store_parts::Opened { stores, history } = store_parts::open(cluster, options)?;
        store_parts::client(cluster, CLIENT, &stores, &history, |client| {
            let [first, one, another, third] = client.keys_apart();
            // It also takes registers, and reserves timestamps.
            client.insert(first, 1)?;
            for key in [one, another, third] {
                takes(1, "an insert into an unused cell", client.trips_alone(|| client.insert(key, 1)))?;
            }
            takes(1, "a get", client.trips_alone(|| client.get(one)))?;
            takes(1, "an update", client.trips_alone(|| client.update(one, 2)))?;
            takes(1, "a get after it", client.trips_alone(|| client.get(one)))?;
            client.forget_all();
            takes(2, "a get of a key that is not remembered", client.trips_alone(|| client.get(one)))?;
            takes(1, "a get of one that is now", client.trips_alone(|| client.get(one)))?;
            takes(3, "an update of a key that is not remembered", client.trips_alone(|| client.update(another, 3)))?;
            takes(1, "an update of one that is now", client.trips_alone(|| client.update(another, 4)))?;
            takes(1, "a delete", client.trips_alone(|| client.delete(another)))?;
            takes(3, "a delete of a key that is not remembered", client.trips_alone(|| client.delete(third)))
        });
        Ok(())
    })
}

/// A write is dropped at some moment, and its client does nothing more. The value may be at a majority, and not
/// verified. The first reader verifies it then, so the next read takes one round trip.
fn of_a_dropped_write() -> Scenario {
    let about = "the first reader verifies a write that its caller has dropped";
    Scenario::new("swarm/dropped-verified", about, 3, |cluster| {
        let parts::Opened { clients, history } = parts::open(cluster, 1, SwarmOptions::default())?;
        let turn = Rc::new(Word::new(0));
        let now = Rc::clone(&turn);
        parts::register(cluster, 0, &clients, &history, move |client| {
            client.write_or_drop(1)?;
            client.wait_for_posted();
            now.store(1);
            Ok(())
        });
        parts::register(cluster, 2, &clients, &history, move |client| {
            client.wait_for(&turn, 1)?;
            client.read()?;
            takes(1, "the second read", client.trips_alone(|| client.read()))
        });
        Ok(())
    })
}
