use core::time::Duration;

use farfield_core::ErrorKind;

use super::*;

fn open(nodes: &[Node], options: ObjectOptions) -> Vec<RomeObject> {
    let owner = nodes[0].id();
    on_each(nodes, |node| RomeObject::open(node, "object", owner, options)).expect("all open it")
}

#[test]
fn patches_are_read_as_they_were_written() {
    let (nodes, eps) = session(2);
    let options = ObjectOptions { bytes: 101, log_bytes: 64, blocks: 4, ..ObjectOptions::default() };
    let objects = open(&nodes, options);
    let (mut writer, mut reader) = (objects[0].writer().expect("a seat"), objects[1].reader().expect("a seat"));
    let (mut expected, mut here, mut there) = (vec![0; 101], Vec::new(), Vec::new());
    for round in 0..200usize {
        let (offset, len) = (round * 7 % 101, round % 20);
        let bytes: Vec<u8> = (0..len.min(101 - offset)).map(|at| (round + at) as u8).collect();
        expected[offset..offset + bytes.len()].copy_from_slice(&bytes);
        expected[100] = round as u8;
        writer.patch(&eps[0], &[(offset, &bytes), (100, &[round as u8])]).expect("there is room");
        writer.read(&mut here);
        assert_eq!(here, expected);
        let before = eps[1].counts();
        eps[1].block_on(reader.read(&eps[1], &mut there)).expect("the owner lives");
        let counts = eps[1].counts() - before;
        assert_eq!((&there, counts.gets, counts.posted(), counts.round_trips), (&expected, 2, 2, 2));
    }
    let before = eps[0].counts();
    writer.read(&mut here);
    assert_eq!((eps[0].counts() - before).posted(), 0, "a local read uses no operation");
    let error = writer.patch(&eps[0], &[(100, b"ab")]).expect_err("it is too long");
    assert!(matches!(error.kind(), ErrorKind::TooLarge { bytes: 102, max_bytes: 101 }), "{error}");
    assert!(objects[1].writer().is_err(), "node 1 is not the owner");
}

#[test]
fn a_reader_that_stops_holds_a_block_for_a_lease() {
    let (nodes, eps) = session(2);
    let lease = Duration::from_millis(200);
    let options = ObjectOptions { bytes: 64, log_bytes: 0, blocks: 2, lease, ..ObjectOptions::default() };
    let objects = open(&nodes, options);
    let mut writer = objects[0].writer().expect("a seat");
    writer.write(&eps[0], &[1; 64]).expect("there is another block");
    let seat = &mut objects[1].opened.seat().expect("a seat");
    seat.announce(&eps[1], 0);
    writer.write(&eps[0], &[2; 64]).expect("the first block was replaced before the announcement counts");
    eps[0].set_timeout(Duration::from_millis(20));
    seat.announce(&eps[1], 0);
    let full = writer.write(&eps[0], &[3; 64]).expect_err("a reader may need the other block");
    assert_eq!(full.custom_ref(), Some(&MemoryFull { blocks: 2, waiting: 1 }), "{full}");
    eps[0].set_timeout(lease * 10);
    writer.write(&eps[0], &[4; 64]).expect("the reader has stopped");
    assert!(seat.check(&eps[1]).is_err(), "and notices that");
}

#[test]
fn readers_see_whole_values_while_writers_write() {
    let (nodes, _) = session(2);
    let options = ObjectOptions { bytes: 800, log_bytes: 400, ..ObjectOptions::default() };
    let objects = open(&nodes, options);
    let threads: Vec<_> = (0..2usize)
        .map(|writes| {
            let mut writer = objects[0].writer().expect("a seat");
            let write = move |ep: Endpoint| {
                for round in 0..2000u64 {
                    // The first word and the last one are always equal.
                    let word = (round * 2 + writes as u64).to_le_bytes();
                    writer.patch(&ep, &[(0, &word), (8 * writes + 8, &word), (792, &word)]).expect("there is room");
                }
            };
            nodes[0].spawn("writes", write).expect("a thread")
        })
        .collect();
    let mut reader = objects[1].reader().expect("a seat");
    let read = move |ep: Endpoint| {
        let mut value = Vec::new();
        for _ in 0..2000 {
            ep.block_on(reader.read(&ep, &mut value)).expect("the owner lives");
            assert_eq!(value[..8], value[792..]);
        }
    };
    let reads = nodes[1].spawn("reads", read).expect("a thread");
    threads.into_iter().chain([reads]).for_each(|thread| thread.join().expect("no panic"));
}

#[test]
fn a_handle_that_was_reopened_does_nothing() {
    let (nodes, eps) = session(1);
    let (node, ep, owner) = (&nodes[0], &eps[0], nodes[0].id());
    let is_stale = |error: farfield_core::Error| assert!(matches!(error.kind(), ErrorKind::Reopened { .. }), "{error}");
    let object = RomeObject::open(node, "object", owner, ObjectOptions::default()).expect("it is the owner");
    let (mut writer, mut reader) = (object.writer().expect("a seat"), object.reader().expect("a seat"));
    writer.write(ep, &[1; 8]).expect("it is current");
    let again = node.reopen("object", |again| RomeObject::open(node, again.path(), owner, ObjectOptions::default()));
    let again = again.expect("no other node has it");
    is_stale(writer.write(ep, &[2; 8]).expect_err("it is stale"));
    is_stale(ep.block_on(reader.read(ep, &mut Vec::new())).expect_err("it is stale"));
    again.writer().expect("a seat").write(ep, &[3; 8]).expect("it is current");

    let open = |path: &str| RomeTree::<u64, u64>::open(node, path, owner, TreeOptions::default());
    let tree = open("tree").expect("it is the owner");
    let (mut partition, mut reader) = (tree.partition().expect("a seat"), tree.reader().expect("a seat"));
    partition.put(ep, 1, 1).expect("it is current");
    let mut scanner = tree.reader().expect("a seat");
    let mut scan = ep.block_on(scanner.scan(ep, ..)).expect("it is current");
    let _again = node.reopen("tree", |again| open(again.path())).expect("no other node has it");
    is_stale(partition.put(ep, 1, 2).expect_err("it is stale"));
    is_stale(partition.load(ep, [(1, 1)]).expect_err("it is stale"));
    is_stale(partition.range(ep, .., 1).expect_err("it is stale"));
    is_stale(ep.block_on(reader.get(ep, &1)).expect_err("it is stale"));
    is_stale(ep.block_on(reader.multi_get(ep, &[1])).expect_err("it is stale"));
    is_stale(ep.block_on(reader.range(ep, .., 1)).expect_err("it is stale"));
    is_stale(ep.block_on(async { reader.scan(ep, ..).await.map(drop) }).expect_err("it is stale"));
    // One that had begun before.
    is_stale(ep.block_on(scan.next(ep, &mut Vec::new())).expect_err("it is stale"));
}
