//! The store: its calls, their round trips, and what is used again.

use std::time::Duration;

use farfield_core::{ByteString, ErrorKind, local_session, on_each};

use super::{cut_most, faulty, missed_most};
use crate::plan::Parts;
use crate::version::TIMESTAMP_MAX;
use crate::{StoreFull, SwarmOptions, SwarmStore, SwarmStoreClient, SwarmStoreOptions};
use farfield_core::{Node, Result};
use farfield_fabric::NodeId;
use farfield_fabric::fault::Faults;

type Store = SwarmStore<u64, [u64; 2]>;

fn options(keys: usize) -> SwarmStoreOptions {
    SwarmStoreOptions { keys, ..SwarmStoreOptions::default() }
}

fn open(nodes: &[Node], options: &SwarmStoreOptions) -> Result<Vec<Store>> {
    on_each(nodes, |node| SwarmStore::open(node, "store", options.clone()))
}

fn value(of: u64) -> [u64; 2] {
    [of, !of]
}

#[test]
fn invalid_options_are_errors() -> Result<()> {
    let node = local_session(1)?.remove(0);
    let with = |change: fn(&mut SwarmStoreOptions)| {
        let mut options = SwarmStoreOptions::default();
        change(&mut options);
        options
    };
    let invalid = [
        options(0),
        options(64 * 65_535),
        options(usize::MAX),
        with(|options| options.cached_keys = 0),
        with(|options| options.key_bytes_max = usize::MAX),
        with(|options| options.value_bytes_max = usize::MAX - 64),
        with(|options| options.replicas.clients_per_node = 0),
        with(|options| options.replicas.clients_per_node = 128),
        with(|options| options.replicas.spare_buffers = 0),
        with(|options| options.replicas.memory = vec![NodeId(7)]),
        with(|options| options.replicas.clients = vec![NodeId(0), NodeId(7)]),
        with(|options| options.replicas.clients = vec![NodeId(0); 2]),
    ];
    for options in invalid {
        let error = SwarmStore::<ByteString, ByteString>::open(&node, "invalid", options.clone()).err();
        let error = error.unwrap_or_else(|| panic!("{options:?} are valid"));
        assert!(matches!(error.kind(), ErrorKind::Config { .. }), "{error}");
        assert_eq!(error.object(), Some("invalid"));
    }
    assert_eq!(node.metrics().memory_bytes, 0);
    Ok(())
}

/// Registers, buffers and records have room for the clients of one node, and used ones come back without an answer of
/// the others.
#[test]
fn nodes_without_clients_only_lend_memory() -> Result<()> {
    let nodes = local_session(4)?;
    let lent = || nodes[0].metrics().memory_bytes;
    let mut options = options(20);
    let _everywhere = open(&nodes, &options)?;
    let everywhere = lent();
    options.replicas.clients = vec![NodeId(3)];
    let stores = on_each(&nodes, |node| Store::open(node, "apart", options.clone()))?;
    let apart = lent() - everywhere;
    assert!(apart < everywhere / 2, "{apart} and {everywhere} bytes");
    let shared = &stores[3].opened.shards[0];
    let table = shared.asks.as_ref().expect("this node has clients").table;
    let parts = Parts::new(shared.shards, &shared.layout, shared.index.as_ref(), table)?;
    let regions: usize = parts.all()?.iter().map(|(_, bytes)| *bytes).sum();
    assert_eq!(apart, regions as u64, "the regions that it lends, and nothing that a client needs");
    let (ep, memory) = (nodes[3].endpoint()?, nodes[0].endpoint()?);
    let error = stores[0].client(&memory).map(drop).expect_err("it has none");
    assert!(matches!(error.kind(), ErrorKind::Config { .. }), "{error}");
    let client = stores[3].client(&ep)?;
    for round in 0..200 {
        assert!(client.insert_blocking(&(round % 7), &value(round))?);
        assert_eq!(client.get_blocking(&(round % 7))?, Some(value(round)));
        client.delete_blocking(&(round % 7))?;
    }
    Ok(())
}

/// The clocks pass the end of the first registers' timestamps, while clients of all nodes make calls.
#[test]
fn timestamps_of_a_store_are_renewed_under_load() -> Result<()> {
    const KEYS: u64 = 120;
    let nodes = local_session(3)?;
    let mut options = options(KEYS as usize);
    options.replicas.first_timestamp = TIMESTAMP_MAX - 500_000;
    let stores = open(&nodes, &options)?;
    let epochs = |client: &SwarmStoreClient<'_, u64, [u64; 2]>| -> Result<Vec<u64>> {
        let core = client.cores.first();
        let entries = |cell| core.endpoint.block_on(core.settled_entries(cell));
        let all: Result<Vec<_>> = (0..core.index().buckets).map(entries).collect();
        Ok(all?.iter().flatten().filter(|entry| entry.is_mapped()).map(|entry| entry.at().base()).collect())
    };
    let rounds = on_each(&nodes, |node| {
        let (own, endpoint) = (u64::from(node.id().0), node.endpoint()?);
        let (client, start) = (stores[node.id().index()].client(&endpoint)?, endpoint.now());
        // A third of the keys is this client's, and all are read by all.
        let keys = (0..KEYS).filter(|key| key % 3 == own);
        keys.clone().try_for_each(|key| client.insert_blocking(&key, &value(0)).map(|is_new| assert!(is_new)))?;
        let mut round = 0;
        while endpoint.now() - start < Duration::from_millis(1500) {
            round += 1;
            for key in keys.clone() {
                match key % 5 {
                    0 => {
                        client.delete_blocking(&key)?;
                        assert!(client.insert_blocking(&key, &value(round))?);
                    }
                    1 => assert!(client.update_if_blocking(&key, |old| *old == value(round - 1), &value(round))?),
                    _ => assert!(client.update_blocking(&key, &value(round))?),
                }
                assert_eq!(client.get_blocking(&key)?, Some(value(round)));
                let other = client.get_blocking(&((key + 1) % KEYS))?;
                assert!(other.is_none_or(|found| found[1] == !found[0]));
            }
        }
        Ok(round)
    })?;
    let rounds: u64 = rounds.into_iter().sum();
    assert!(rounds > 6, "{rounds} rounds");
    let endpoint = nodes[0].endpoint()?;
    let epochs = epochs(&stores[0].client(&endpoint)?)?;
    assert_eq!(epochs.len() as u64, KEYS);
    assert!(epochs.iter().all(|base| *base > 0), "a key is where it was in the first epoch");
    Ok(())
}

#[test]
fn every_call_sees_the_effects_of_other_clients_calls() -> Result<()> {
    for replicas in [1, 3, 5] {
        let nodes = local_session(replicas.max(2))?;
        let mut options = options(200);
        options.replicas.memory = (0..replicas as u16).map(NodeId).collect();
        let stores = open(&nodes, &options)?;
        let (ep, far) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
        let clients = [stores[0].client(&ep)?, stores[1].client(&far)?];
        for key in 0..200 {
            let [mine, yours] = if key % 2 == 0 { [&clients[0], &clients[1]] } else { [&clients[1], &clients[0]] };
            assert!(!mine.update_blocking(&key, &value(1))?);
            assert_eq!(yours.get_blocking(&key)?, None);
            assert!(mine.insert_blocking(&key, &value(2))?, "key {key}");
            assert!(!yours.insert_blocking(&key, &value(3))?);
            assert_eq!(yours.get_blocking(&key)?, Some(value(2)));
            assert!(yours.update_blocking(&key, &value(4))?);
            assert_eq!(mine.get_blocking(&key)?, Some(value(4)));
            mine.upsert_blocking(&key, &value(key))?;
            if key % 3 == 0 {
                yours.delete_blocking(&key)?;
                assert_eq!(mine.get_blocking(&key)?, None);
                assert!(!mine.update_blocking(&key, &value(5))?);
            }
        }
        for client in &clients {
            for key in 0..200 {
                assert_eq!(client.get_blocking(&key)?, (key % 3 != 0).then_some(value(key)));
            }
            assert_eq!(scan(client)?, (0..200).filter(|key| key % 3 != 0).collect::<Vec<u64>>());
        }
    }
    Ok(())
}

fn scan(client: &SwarmStoreClient<'_, u64, [u64; 2]>) -> Result<Vec<u64>> {
    let (mut from, mut keys) = (Some(0), Vec::new());
    while let Some(position) = from {
        let (entries, next) = client.cores.first().endpoint.block_on(client.scan(position))?;
        assert!(entries.iter().all(|(key, found)| *found == value(*key)));
        keys.extend(entries.iter().map(|(key, _)| *key));
        from = next;
    }
    keys.sort_unstable();
    Ok(keys)
}

/// More keys than a metadata word could have buffers for: all of them find room, each in its shard.
#[test]
fn a_store_of_many_keys_has_several_shards() -> Result<()> {
    const KEYS: u64 = 100_000;
    let nodes = local_session(2)?;
    let stores = open(&nodes, &options(KEYS as usize))?;
    let (ep, far) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
    let (mine, yours) = (stores[0].client(&ep)?, stores[1].client(&far)?);
    assert!(mine.cores.len() > 1);
    for key in 0..KEYS {
        let client = if key % 2 == 0 { &mine } else { &yours };
        assert!(client.insert_blocking(&key, &value(key))?, "key {key}");
    }
    assert_eq!(scan(&mine)?, (0..KEYS).collect::<Vec<_>>());
    let keys: Vec<u64> = (0..KEYS).step_by(997).collect();
    for key in &keys {
        yours.delete_blocking(key)?;
    }
    assert!(mine.get_many_blocking(&keys)?.iter().all(Option::is_none));
    for key in &keys {
        assert!(mine.insert_blocking(key, &value(*key + 1))?);
    }
    let found = yours.get_many_blocking(&keys)?;
    assert!(found.iter().zip(&keys).all(|(found, key)| *found == Some(value(key + 1))));

    // Registers are made free in all shards at the same time, beside the calls.
    let calls = (0..5_000).map(|key| {
        let mine = &mine;
        async move {
            mine.delete(&key).await?;
            assert!(mine.insert(&key, &value(key)).await?);
            Ok(())
        }
    });
    ep.run_window(32, calls, |ended: Result<()>| ended.expect("a client may have 64 calls under way"));

    let error = stores[0].client(&ep).map(drop).expect_err("the only one is in use");
    assert!(matches!(error.kind(), ErrorKind::InUse { .. }), "{error}");
    assert_eq!(error.object(), Some("store"));
    drop(mine);
    let again = stores[0].client(&ep)?;
    assert_eq!(again.get_blocking(&1)?, Some(value(1)));
    drop(again);
    drop(yours);
    Ok(())
}

#[test]
fn strings_have_any_length_up_to_the_limits() -> Result<()> {
    let nodes = local_session(3)?;
    let mut options = options(16);
    (options.key_bytes_max, options.value_bytes_max) = (20, 8192);
    let stores = on_each(&nodes, |node| SwarmStore::<ByteString, ByteString>::open(node, "s", options.clone()))?;
    let ep = nodes[0].endpoint()?;
    let client = stores[0].client(&ep)?;
    let string = |length: usize| ByteString::from(vec![length as u8; length]);
    for length in [0, 1, 7, 8, 9, 20] {
        assert!(client.insert_blocking(&string(length), &string(length * 400))?);
    }
    for length in [0, 1, 7, 8, 9, 20] {
        assert_eq!(client.get_blocking(&string(length))?, Some(string(length * 400)));
    }
    for (key, text) in [(string(21), string(0)), (string(2), string(8193))] {
        let error = client.insert_blocking(&key, &text).expect_err("it is too long");
        assert!(matches!(error.kind(), ErrorKind::TooLarge { .. }), "{error}");
    }
    assert_eq!(client.get_blocking(&string(2))?, None);
    Ok(())
}

#[test]
fn uncontended_calls_take_one_round_trip() -> Result<()> {
    let nodes = local_session(3)?;
    let stores = open(&nodes, &options(1000))?;
    let (ep, far) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
    let (client, other) = (stores[0].client(&ep)?, stores[1].client(&far)?);
    let mut inserts = Vec::new();
    for key in 0..500 {
        let (inserted, counts) = ep.block_on(ep.counted(client.insert(&key, &value(key))));
        assert!(inserted?);
        inserts.push(counts.round_trips);
        let (found, counts) = ep.block_on(ep.counted(client.get(&key)));
        assert_eq!((found?, counts.round_trips), (Some(value(key)), 1));
        let (updated, counts) = ep.block_on(ep.counted(client.update(&key, &value(key))));
        assert_eq!((updated?, counts.round_trips), (true, 1));
    }
    inserts.sort_unstable();
    assert_eq!(inserts[250], 1, "of the median insert, of {inserts:?}");
    // A key that this client does not remember.
    for key in 0..500 {
        let (found, counts) = far.block_on(far.counted(other.get(&key)));
        assert_eq!((found?, counts.round_trips), (Some(value(key)), 2));
    }
    let mut deletes = Vec::new();
    for key in 0..100 {
        let (deleted, counts) = ep.block_on(ep.counted(client.delete(&key)));
        deleted?;
        deletes.push(counts.round_trips);
    }
    deletes.sort_unstable();
    assert_eq!(deletes[50], 1, "of the median delete, of {deletes:?}");
    Ok(())
}

#[test]
fn a_full_store_says_so_and_has_room_again_after_a_delete() -> Result<()> {
    let nodes = local_session(3)?;
    let stores = open(&nodes, &options(40))?;
    let (ep, far) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
    let (client, other) = (stores[0].client(&ep)?, stores[1].client(&far)?);
    let mut keys = Vec::new();
    let full = loop {
        let key = keys.len() as u64;
        match client.insert_blocking(&key, &value(key)) {
            Ok(inserted) => assert!(inserted),
            Err(error) => break error,
        }
        keys.push(key);
    };
    assert_eq!(full.custom_ref::<StoreFull>(), Some(&StoreFull { keys: 40 }));
    assert!(keys.len() >= 40, "it was full with {} keys", keys.len());
    assert_eq!(scan(&client)?, keys);
    while keys.len() > 40 {
        client.delete_blocking(&keys.pop().expect("there are more than 40"))?;
    }
    // Whichever client deletes, and whichever inserts.
    for round in 0..200u64 {
        let [mine, yours] = if round % 3 == 0 { [&client, &other] } else { [&other, &client] };
        let gone = keys.remove(round as usize * 7 % keys.len());
        yours.delete_blocking(&gone)?;
        let key = 1000 + round;
        assert!(mine.insert_blocking(&key, &value(key))?, "round {round}");
        keys.push(key);
    }
    keys.sort_unstable();
    assert_eq!(scan(&client)?, keys);
    assert_eq!(scan(&other)?, keys);
    Ok(())
}

/// A node opens the store and closes it, more often than the store has registers. Its clients insert, delete and move
/// keys, and keep registers. A register that got lost at each end would be missing long before the last one.
#[test]
fn clients_that_come_and_go_lose_no_registers() -> Result<()> {
    const KEYS: u64 = 40;
    // The first three lend memory.
    let nodes = local_session(4)?;
    let options = options(KEYS as usize);
    let stores = open(&nodes[..3], &options)?;
    let ep = nodes[0].endpoint()?;
    let stays = stores[0].client(&ep)?;
    let last = KEYS - 1;
    for key in 0..last {
        assert!(stays.insert_blocking(&key, &value(0))?, "key {key}");
    }
    let registers = stays.cores.first().index().registers() as u64;
    for round in 1..=registers + 20 {
        let store: Store = SwarmStore::open(&nodes[3], "store", options.clone())?;
        let endpoint = nodes[3].endpoint()?;
        let client = store.client(&endpoint)?;
        let (replaced, deleted) = (round % last, (round + 7) % last);
        // Each key has been written in another round, and in this one.
        let before = client.get_blocking(&replaced)?;
        assert!(before.is_some(), "key {replaced} in round {round}");
        assert!(client.update_if_blocking(&replaced, |found| Some(*found) == before, &value(round))?, "round {round}");
        client.delete_blocking(&deleted)?;
        assert!(client.insert_blocking(&deleted, &value(round))?, "round {round}");
        // The register of a deleted key, and the one of a key that has moved, are on their way back.
        assert!(client.insert_blocking(&last, &value(round))?, "round {round}");
        assert!(!client.insert_blocking(&last, &value(0))?, "round {round}");
        client.delete_blocking(&last)?;
        drop(client);
        drop(store);
        assert_eq!(stays.get_blocking(&replaced)?, Some(value(round)));
        assert_eq!(stays.get_blocking(&deleted)?, Some(value(round)));
        assert_eq!(stays.get_blocking(&last)?, None);
    }
    // The store has room for all of its keys, wherever their registers were.
    assert!(stays.insert_blocking(&last, &value(1))?);
    let all: Vec<u64> = (0..KEYS).collect();
    assert!(stays.get_many_blocking(&all)?.iter().all(Option::is_some));
    Ok(())
}

#[test]
fn a_cell_without_room_says_so_and_has_room_again_after_a_delete() -> Result<()> {
    let nodes = local_session(3)?;
    let stores = open(&nodes, &options(1000))?;
    let ep = nodes[0].endpoint()?;
    let client = stores[0].client(&ep)?;
    let one_cell = (0..).filter(|key: &u64| xxhash_rust::xxh3::xxh3_64(&key.to_ne_bytes()) % 1000 == 7);
    let keys: Vec<u64> = one_cell.take(crate::cell::ENTRIES + 2).collect();
    let (fit, more) = keys.split_at(crate::cell::ENTRIES);
    for key in fit {
        assert!(client.insert_blocking(key, &value(*key))?);
    }
    for (key, gone) in more.iter().zip(fit) {
        let error = client.insert_blocking(key, &value(*key)).expect_err("the cell is full");
        assert!(error.custom_ref::<StoreFull>().is_some(), "{error}");
        client.delete_blocking(gone)?;
        assert!(client.insert_blocking(key, &value(*key))?);
    }
    for (at, key) in keys.iter().enumerate() {
        assert_eq!(client.get_blocking(key)?, (at >= 2).then_some(value(*key)));
    }
    Ok(())
}

#[test]
fn many_calls_at_a_time_end_well() -> Result<()> {
    let nodes = local_session(3)?;
    let stores = open(&nodes, &options(2000))?;
    let ep = nodes[0].endpoint()?;
    let client = &stores[0].client(&ep)?;
    for _ in 0..3 {
        let inserts = (0..500u64).map(|key| async move { client.insert(&key, &value(key)).await });
        ep.run_window(40, inserts, |inserted| assert!(inserted.unwrap()));
        let gets = (0..500u64).map(|key| async move { client.get(&key).await });
        let mut found = 0;
        ep.run_window(60, gets, |value| found += usize::from(value.unwrap().is_some()));
        assert_eq!(found, 500);
        let updates = (0..500u64).map(|_| async move { client.update(&7, &value(1)).await });
        ep.run_window(60, updates, |updated| assert!(updated.unwrap()));
        let deletes = (0..500u64).map(|key| async move { client.delete(&key).await });
        ep.run_window(40, deletes, |deleted| deleted.unwrap());
    }
    assert_eq!(scan(client)?, [0; 0]);
    Ok(())
}

#[test]
fn a_key_is_inserted_and_deleted_as_often_as_one_likes() -> Result<()> {
    let nodes = local_session(3)?;
    let mut options = options(4);
    options.replicas.spare_buffers = 2;
    let stores = open(&nodes, &options)?;
    let (ep, far) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
    let (client, other) = (stores[0].client(&ep)?, stores[1].client(&far)?);
    for round in 0..1000 {
        assert!(client.insert_blocking(&(round % 3), &value(round))?, "round {round}");
        assert_eq!(other.get_blocking(&(round % 3))?, Some(value(round)));
        other.delete_blocking(&(round % 3))?;
        assert_eq!(client.get_blocking(&(round % 3))?, None);
    }
    Ok(())
}

#[test]
fn fewer_cached_keys_than_there_are_cost_round_trips_and_nothing_else() -> Result<()> {
    let nodes = local_session(3)?;
    let stores = open(&nodes, &SwarmStoreOptions { cached_keys: 10, ..options(100) })?;
    let ep = nodes[0].endpoint()?;
    let client = stores[0].client(&ep)?;
    for round in 0..3 {
        for key in 0..100 {
            client.upsert_blocking(&key, &value(key + round))?;
            assert_eq!(client.get_blocking(&key)?, Some(value(key + round)));
        }
    }
    assert_eq!(client.get_many_blocking(&[3, 77, 500])?, [Some(value(5)), Some(value(79)), None]);
    Ok(())
}

#[test]
fn clients_may_share_metadata_words() -> Result<()> {
    let nodes = local_session(3)?;
    let mut options = options(8);
    options.replicas = SwarmOptions { metadata_words: 1, ..SwarmOptions::default() };
    let stores = open(&nodes, &options)?;
    let eps = nodes.iter().map(Node::endpoint).collect::<core::result::Result<Vec<_>, _>>()?;
    let clients = stores.iter().zip(&eps).map(|(store, ep)| store.client(ep)).collect::<Result<Vec<_>>>()?;
    for round in 0..300u64 {
        let (client, key) = (&clients[round as usize % 3], round % 5);
        client.upsert_blocking(&key, &value(round))?;
        for other in &clients {
            assert_eq!(other.get_blocking(&key)?, Some(value(round)));
        }
        if round % 4 == 0 {
            clients[round as usize / 4 % 3].delete_blocking(&key)?;
        }
    }
    Ok(())
}

/// Two of three memory nodes are cut off for a while, and come back. What was stored is there. A call that has failed
/// has happened, or will before its client's next one on the key, or has not.
#[test]
fn calls_work_again_when_a_majority_is_back() -> Result<()> {
    let nodes = local_session(3)?;
    let stores = open(&nodes, &options(200))?;
    let faults = Faults::default();
    let (ep, far) = (faulty(&nodes[0], &faults)?, faulty(&nodes[1], &faults)?);
    let (client, other) = (stores[0].client(&ep)?, stores[1].client(&far)?);
    for round in 0..8 {
        let [kept, gone, new] = [0, 1, 2].map(|key| 10 * round + key);
        for key in [kept, gone] {
            assert!(client.insert_blocking(&key, &value(1))?);
            assert_eq!(other.get_blocking(&key)?, Some(value(1)));
        }
        cut_most(&faults, true);
        let start = ep.now();
        let ended = [
            client.get_blocking(&kept).map(drop),
            other.get_blocking(&kept).map(drop),
            other.get_blocking(&new).map(drop),
            client.update_blocking(&kept, &value(2)).map(drop),
            client.delete_blocking(&gone),
            client.insert_blocking(&new, &value(3)).map(drop),
        ];
        let took = ep.now() - start;
        // Before any assertion: a client that is dropped waits for the memory nodes.
        cut_most(&faults, false);
        ended.into_iter().for_each(missed_most);
        assert!(took < Duration::from_secs(5), "{took:?}");
        let may_be = [(kept, [Some(1), Some(2)]), (gone, [Some(1), None]), (new, [None, Some(3)])];
        for (key, found) in may_be {
            let there = other.get_blocking(&key)?;
            assert!(found.map(|of| of.map(value)).contains(&there), "{key}: {there:?}");
        }
        assert!(client.update_blocking(&kept, &value(4))?);
        client.delete_blocking(&gone)?;
        assert_eq!(other.get_blocking(&gone)?, None);
        assert!(client.insert_blocking(&gone, &value(4))?);
        client.upsert_blocking(&new, &value(4))?;
        for key in [kept, gone, new] {
            assert_eq!(other.get_blocking(&key)?, Some(value(4)), "key {key}");
        }
    }
    Ok(())
}
