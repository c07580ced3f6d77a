//! Arguments, options, round trips, and calls that are given up.

use std::time::Duration;

use farfield_core::history::kv::{KvHistory, KvInput, KvOutput};
use farfield_core::history::{Budget, Event};
use farfield_core::{ErrorKind, local_session, on_each};
use farfield_fabric::EndpointOptions;
use farfield_fabric::fault::{Faults, inject};

use super::*;

mod store;

type Pair = [u64; 2];

fn open(nodes: &[Node], options: &SwarmOptions) -> Result<Vec<SwarmArray<Pair>>> {
    on_each(nodes, |node| SwarmArray::open(node, "array", 4, options.clone()))
}

#[test]
fn invalid_options_are_errors() -> Result<()> {
    let node = local_session(1)?.remove(0);
    let with = |change: fn(&mut SwarmOptions)| {
        let mut options = SwarmOptions::default();
        change(&mut options);
        options
    };
    let invalid = [
        (0, SwarmOptions::default()),
        (64 * 65_535, SwarmOptions::default()),
        (usize::MAX, SwarmOptions::default()),
        (4, with(|options| options.clients_per_node = 0)),
        (4, with(|options| options.clients_per_node = 128)),
        (4, with(|options| options.clients_per_node = usize::MAX)),
        (4, with(|options| options.spare_buffers = 1)),
        (4, with(|options| options.spare_buffers = usize::MAX)),
        (4, with(|options| options.metadata_words = 2)),
        (4, with(|options| options.first_timestamp = 0)),
        (4, with(|options| options.first_timestamp = u64::MAX)),
        (4, with(|options| options.memory = vec![NodeId(0), NodeId(0), NodeId(0)])),
        (4, with(|options| options.memory = vec![NodeId(7)])),
        (4, with(|options| options.memory = vec![NodeId(0), NodeId(1)])),
    ];
    for (registers, options) in invalid {
        let error = SwarmArray::<u64>::open(&node, "invalid", registers, options.clone()).err();
        let error = error.unwrap_or_else(|| panic!("{registers} registers, {options:?} are valid"));
        assert!(matches!(error.kind(), ErrorKind::Config { .. }), "{error}");
        assert_eq!(error.object(), Some("invalid"));
    }
    assert_eq!(node.metrics().memory_bytes, 0);
    Ok(())
}

#[test]
fn nodes_that_disagree_are_told() -> Result<()> {
    let nodes = local_session(2)?;
    let opened = on_each(&nodes, |node| {
        let mut options = SwarmOptions::default();
        options.spare_buffers += node.id().index();
        Ok(SwarmArray::<u64>::open(node, "array", 4, options))
    })?;
    let [home, other] = &opened[..] else { panic!("there are two nodes") };
    let is_mismatch = |error: &Error| matches!(error.kind(), ErrorKind::Mismatch { .. });
    // It needs no other node, but may hear of the other's options before it is open.
    assert!(home.as_ref().err().is_none_or(is_mismatch), "{:?}", home.as_ref().err());
    let error = other.as_ref().err().expect("the memory node has other options");
    assert!(is_mismatch(error), "{error}");
    Ok(())
}

#[test]
fn a_read_finds_the_last_write_of_any_client() -> Result<()> {
    for replicas in [1, 3, 5, 7] {
        let nodes = local_session(replicas.max(2))?;
        let options = SwarmOptions { memory: (0..replicas as u16).map(NodeId).collect(), ..SwarmOptions::default() };
        let arrays = open(&nodes, &options)?;
        let (ep, far) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
        let clients = [arrays[0].client(&ep)?, arrays[1].client(&far)?];
        assert_eq!(clients[1].read_blocking(3)?, [0; 2]);
        for value in 1..200u64 {
            let register = (value % 4) as usize;
            clients[(value % 2) as usize].write_blocking(register, [value, !value])?;
            for client in &clients {
                assert_eq!(client.read_blocking(register)?, [value, !value]);
            }
        }
    }
    Ok(())
}

/// More registers than a metadata word could have buffers for, beside timestamps that last for years.
#[test]
fn an_array_of_many_registers_has_several_shards() -> Result<()> {
    const REGISTERS: usize = 150_000;
    let nodes = local_session(2)?;
    let open = |node: &Node| SwarmArray::<u64>::open(node, "array", REGISTERS, SwarmOptions::default());
    let arrays = on_each(&nodes, open)?;
    let (ep, far) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
    let (mine, yours) = (arrays[0].client(&ep)?, arrays[1].client(&far)?);
    assert_eq!((mine.cores.len(), arrays[0].len()), (10, REGISTERS));
    let some = || (0..REGISTERS).step_by(1001).chain(REGISTERS - 3..REGISTERS);
    for register in some() {
        mine.write_blocking(register, register as u64 + 1)?;
    }
    for register in some() {
        assert_eq!(yours.read_blocking(register)?, register as u64 + 1);
    }
    assert_eq!(yours.read_blocking(4)?, 0);
    let error = mine.read_blocking(REGISTERS).expect_err("it is behind the last one");
    assert!(matches!(error.kind(), ErrorKind::Config { .. }) && error.to_string().contains("150000"), "{error}");
    Ok(())
}

#[test]
fn a_read_and_a_write_take_one_round_trip() -> Result<()> {
    let nodes = local_session(3)?;
    let arrays = open(&nodes, &SwarmOptions::default())?;
    let ep = nodes[0].endpoint()?;
    let client = arrays[0].client(&ep)?;
    client.write_blocking(1, [0; 2])?; // it reserves timestamps
    for value in 0..100 {
        let (written, counts) = ep.block_on(ep.counted(client.write(1, [value; 2])));
        written?;
        assert_eq!(counts.round_trips, 1, "of write {value}");
        let (read, counts) = ep.block_on(ep.counted(client.read(1)));
        assert_eq!(read?, [value; 2]);
        assert_eq!(counts.round_trips, 1, "of read {value}");
    }
    Ok(())
}

#[test]
fn a_client_whose_clock_is_behind_is_set_right() -> Result<()> {
    let nodes = local_session(3)?;
    let arrays = open(&nodes, &SwarmOptions::default())?;
    let (ep, far) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
    let (ahead, behind) = (arrays[0].client(&ep)?, arrays[1].client(&far)?);
    ahead.cores.first().ahead.set(10_000_000);
    ahead.write_blocking(0, [1; 2])?;
    behind.write_blocking(2, [1; 2])?;
    let (written, counts) = far.block_on(far.counted(behind.write(0, [2; 2])));
    written?;
    assert_eq!(counts.round_trips, 4, "of the first write: the guess, more timestamps, the lock, the value");
    assert_eq!(ahead.read_blocking(0)?, [2; 2]);
    let (written, counts) = far.block_on(far.counted(behind.write(1, [3; 2])));
    written?;
    assert_eq!(counts.round_trips, 1, "of the next");
    Ok(())
}

#[test]
fn timestamps_end_with_an_error_and_nothing_is_written() -> Result<()> {
    let nodes = local_session(3)?;
    let end = open(&nodes, &SwarmOptions::default())?[0].opened.shards[0].layout.format.timestamp_max();
    let years = Duration::from_micros(end).as_secs() / (365 * 24 * 3600);
    assert!(years >= 4, "its timestamps last for {years} years");
    let options = SwarmOptions { first_timestamp: end - 1_000_000, ..SwarmOptions::default() };
    let arrays = open(&nodes, &options)?;
    let ep = nodes[0].endpoint()?;
    let client = arrays[0].client(&ep)?;
    client.write_blocking(0, [7; 2])?;
    client.cores.first().ahead.set(2_000_000);
    let error = client.write_blocking(0, [8; 2]).unwrap_err();
    assert_eq!(error.custom_ref(), Some(&TimestampsUsedUp), "{error}");
    assert_eq!(client.read_blocking(0)?, [7; 2]);
    client.cores.first().ahead.set(0);
    for value in 0..200 {
        client.write_blocking(1, [value; 2])?; // no buffer was lost
    }
    Ok(())
}

#[test]
fn buffers_are_used_again() -> Result<()> {
    let nodes = local_session(3)?;
    let options = SwarmOptions { spare_buffers: 2, ..SwarmOptions::default() };
    let arrays = open(&nodes, &options)?;
    let ep = nodes[1].endpoint()?;
    let client = arrays[1].client(&ep)?;
    for value in 0..1000u64 {
        client.write_blocking((value % 4) as usize, [value; 2])?;
    }
    assert_eq!(client.read_blocking(3)?, [999; 2]);
    Ok(())
}

/// More writes at a time than there are spare buffers, to registers that all have one.
#[test]
fn windows_of_writes_wait_for_buffers_and_keep_clocks_together() -> Result<()> {
    let nodes = local_session(3)?;
    let options = SwarmOptions { spare_buffers: 2, ..SwarmOptions::default() };
    let open = |node: &Node| SwarmArray::<Pair>::open(node, "array", 8, options.clone());
    let arrays = on_each(&nodes, open)?;
    on_each(&nodes, |node| {
        let ep = node.endpoint()?;
        let client = arrays[node.id().index()].client(&ep)?;
        let start = ep.now();
        for round in 0..50 {
            let writes = (0..8).map(|register| client.write(register, [round; 2]));
            ep.run_window(8, writes, |written| written.unwrap());
        }
        for register in 0..8 {
            let [a, b] = ep.block_on(client.read(register))?;
            assert_eq!(a, b);
        }
        // They started at about the same time, so no clock is far ahead.
        let ahead = Duration::from_micros(client.cores.first().ahead.get());
        assert!(ahead < ep.now() - start + Duration::from_secs(1), "{ahead:?} ahead");
        Ok(())
    })?;
    Ok(())
}

#[test]
fn a_node_that_is_closed_answers_all_requests() -> Result<()> {
    let nodes = local_session(3)?;
    let options = SwarmOptions { spare_buffers: 2, ..SwarmOptions::default() };
    let mut arrays = open(&nodes, &options)?;
    drop(arrays.pop());
    let ep = nodes[1].endpoint()?;
    let client = arrays[1].client(&ep)?;
    for value in 0..100u64 {
        client.write_blocking(0, [value; 2])?;
    }
    Ok(())
}

#[test]
fn registers_and_clients_beyond_the_last_are_errors() -> Result<()> {
    let nodes = local_session(1)?;
    let array = open(&nodes, &SwarmOptions::default())?.remove(0);
    let ep = nodes[0].endpoint()?;
    let client = array.client(&ep)?;
    for error in [client.read_blocking(4).unwrap_err(), client.write_blocking(usize::MAX, [0; 2]).unwrap_err()] {
        assert!(matches!(error.kind(), ErrorKind::Config { .. }), "{error}");
    }
    let error = array.client(&ep).err().expect("there is one client for each node");
    assert!(matches!(error.kind(), ErrorKind::InUse { max: 1, .. }), "{error}");
    client.write_blocking(0, [5; 2])?;
    drop(client);
    assert_eq!(array.client(&ep)?.read_blocking(0)?, [5; 2]);
    Ok(())
}

#[test]
fn values_of_no_bytes_and_of_many_work() -> Result<()> {
    let node = local_session(1)?.remove(0);
    let ep = node.endpoint()?;
    let nothing = SwarmRegister::<()>::open(&node, "nothing", SwarmOptions::default())?;
    let client = nothing.client(&ep)?;
    client.write_blocking(())?;
    client.read_blocking()?;
    let long = SwarmRegister::<[u8; 8001]>::open(&node, "long", SwarmOptions::default())?;
    let client = long.client(&ep)?;
    client.write_blocking([7; 8001])?;
    assert_eq!(client.read_blocking()?, [7; 8001]);
    Ok(())
}

#[test]
fn a_majority_that_is_gone_is_named_in_time() -> Result<()> {
    let mut nodes = local_session(3)?;
    let few = SwarmOptions { spare_buffers: 2, ..SwarmOptions::default() };
    let arrays = open(&nodes, &few)?;
    let ep = nodes[0].endpoint()?;
    let client = arrays[0].client(&ep)?;
    for register in 1..4 {
        client.write_blocking(register, [1; 2])?;
    }
    client.write_blocking(0, [1; 2])?;
    let gone = nodes.pop().expect("there are three");
    let mut arrays = arrays.into_iter();
    let (_first, second, third) = (arrays.next(), arrays.next(), arrays.next());
    drop(third);
    gone.leave();
    assert_eq!(client.read_blocking(0)?, [1; 2]);
    client.write_blocking(0, [2; 2])?;
    drop(second);
    nodes.pop().expect("there were two").leave();
    let start = ep.now();
    let read = client.read_blocking(0).map(drop).unwrap_err();
    // Some of these have no free buffer.
    let writes = (0..4).map(|register| client.write_blocking(register, [3; 2]).unwrap_err());
    for error in writes.chain([read]) {
        let missing = error.custom_ref::<NoMajority>().unwrap_or_else(|| panic!("{error}"));
        assert_eq!((missing.of, missing.needed, missing.failed.len()), (3, 2, 2));
        assert!(error.is_unreachable(), "{error}");
    }
    assert!(ep.now() - start < Duration::from_secs(5));
    Ok(())
}

/// An endpoint of a node. Its operations to nodes that are cut off fail.
fn faulty(node: &Node, faults: &Faults) -> Result<Endpoint> {
    Ok(Endpoint::open(inject(node.transport().clone(), faults.clone()), EndpointOptions::default())?)
}

/// Cuts two of three memory nodes off, or brings them back.
fn cut_most(faults: &Faults, is_cut: bool) {
    [1, 2].into_iter().for_each(|node| faults.cut(NodeId(node), is_cut));
}

/// Asserts that a call has missed two of three memory nodes.
fn missed_most<T>(ended: Result<T>) {
    let Err(error) = ended else { panic!("it needs two of three memory nodes, and one was there") };
    let missing = error.custom_ref::<NoMajority>().unwrap_or_else(|| panic!("{error}"));
    assert_eq!((missing.of, missing.needed, missing.failed.len()), (3, 2, 2), "{error}");
}

/// Two of three memory nodes are cut off for a while, and come back. What was written is there. A write that has failed
/// has happened, or will before its writer's next one, or has not.
#[test]
fn calls_work_again_when_a_majority_is_back() -> Result<()> {
    let nodes = local_session(3)?;
    let arrays = open(&nodes, &SwarmOptions::default())?;
    let faults = Faults::default();
    let (ep, far) = (faulty(&nodes[0], &faults)?, faulty(&nodes[1], &faults)?);
    let clients = [arrays[0].client(&ep)?, arrays[1].client(&far)?];
    // A register is like the key of a store.
    let (mut history, mut clock) = (KvHistory::new(), 0);
    let mut call = |client: usize, register: usize, input: KvInput| {
        clock += 2;
        let ended = match input {
            KvInput::Upsert(value) => clients[client].write_blocking(register, [value; 2]).map(|()| KvOutput::Stored),
            _ => clients[client].read_blocking(register).map(|[found, _]| KvOutput::Found(Some(found))),
        };
        let event = match &ended {
            Ok(output) => Event::returned(client as u32, clock, clock + 1, input, *output),
            Err(_) => Event::pending(client as u32, clock, input),
        };
        history.record(register as u64, event);
        ended
    };
    for round in 1..=8u64 {
        let (acknowledged, failed) = (10 * round, 10 * round + 1);
        for register in 0..4 {
            call((register + round as usize) % 2, register, KvInput::Upsert(acknowledged))?;
        }
        cut_most(&faults, true);
        let start = ep.now();
        let mut ended = Vec::new();
        for register in 0..4 {
            ended.push(call(register % 2, register, KvInput::Get));
            ended.push(call(register / 2, register, KvInput::Upsert(failed)));
        }
        let took = ep.now() - start;
        // Before any assertion: a client that is dropped waits for the memory nodes.
        cut_most(&faults, false);
        ended.into_iter().for_each(missed_most);
        assert!(took < Duration::from_secs(5), "{took:?}");
        for (client, register) in (0..4).flat_map(|register| [(0, register), (1, register)]) {
            let found = call(client, register, KvInput::Get)?;
            assert!([acknowledged, failed].map(|value| KvOutput::Found(Some(value))).contains(&found), "{found:?}");
        }
    }
    history.check_each_key(Budget::default()).unwrap_or_else(|failure| panic!("{failure}"));
    Ok(())
}

#[test]
fn an_array_whose_first_memory_nodes_are_gone_cannot_be_opened() -> Result<()> {
    let mut nodes = local_session(2)?;
    let options = SwarmOptions { memory: vec![nodes[0].id()], ..SwarmOptions::default() };
    drop(open(&nodes, &options)?);
    let first = nodes.remove(0);
    let gone = first.id();
    first.leave();
    let ep = nodes[0].endpoint()?;
    ep.block_on(ep.wait_until(ep.deadline(), || nodes[0].has_gone(gone).then_some(())))?;
    let error = open(&nodes, &options).err().expect("no memory node lives");
    assert_eq!(error.custom_ref(), Some(&FirstMemoryGone { memory: vec![gone] }), "{error}");
    Ok(())
}
